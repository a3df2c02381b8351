/* SPDX-License-Identifier: MIT */
/* arguments.h -- what every kernel gets: the same pointers, and the same struct of numbers.  Host
 * and device compile this file.  Numbers that a program is specialised for are constants there
 * (kernels/shape.h). */
#ifndef LOCI_GPU_KERNELS_ARGUMENTS_H
#define LOCI_GPU_KERNELS_ARGUMENTS_H

#include "kernels/words.h"

/* Threads of a group.  A program for one plan may have more. */
#ifdef LOCI_GROUP_THREADS
enum { THREADS = LOCI_GROUP_THREADS };
#else
enum { THREADS = 128 };
#endif

/* The kernels of each program, by the names of their functions. */
#define KERNELS(K)                                                                                 \
    K(rotate_rows)                                                                                 \
    K(forward)                                                                                     \
    K(vector_numbers)                                                                              \
    K(roll_numbers)                                                                                \
    K(count_keys)                                                                                  \
    K(decode_scores)                                                                               \
    K(decode_values)                                                                               \
    K(decode_join)                                                                                 \
    K(row_sums)                                                                                    \
    K(backward_keys)                                                                               \
    K(backward_rows)                                                                               \
    K(add_parts)                                                                                   \
    K(sum_gates)                                                                                   \
    K(sum_seen_gates)                                                                              \
    K(find_newest)                                                                                 \
    K(stage_keys)                                                                                  \
    K(walk_rows)                                                                                   \
    K(unstage_keys)                                                                                \
    K(reflect_tiles)                                                                               \
    K(reflect_nodes)                                                                               \
    K(reflect_rows)                                                                                \
    K(sum_own_tiles)                                                                               \
    K(sum_matrices)                                                                                \
    K(unreflect_nodes)                                                                             \
    K(unreflect_tiles)                                                                             \
    K(backward_inputs)                                                                             \
    K(finish_factors)                                                                              \
    K(query_frequencies)                                                                           \
    K(key_frequencies)                                                                             \
    K(add_frequencies)                                                                             \
    K(place_gradients)                                                                             \
    K(polar_rows)                                                                                  \
    K(fade_keys)                                                                                   \
    K(finish_row_vectors)                                                                          \
    K(row_vector_totals)                                                                           \
    K(key_vector_pairs)                                                                            \
    K(key_vector_totals)                                                                           \
    K(list_roll_blocks)                                                                            \
    K(roll_rows)                                                                                   \
    K(roll_parts)                                                                                  \
    K(roll_totals)                                                                                 \
    K(key_phases)                                                                                  \
    K(heir_values)                                                                                 \
    K(store_rows)                                                                                  \
    K(state_rows)                                                                                  \
    K(unturn_states)                                                                               \
    K(mix_pairs)                                                                                   \
    K(grade_rows)                                                                                  \
    K(unmix_pairs)                                                                                 \
    K(add_mixed)                                                                                   \
    K(store_inputs)                                                                                \
    K(fade_alone)                                                                                  \
    K(row_frequencies)                                                                             \
    K(add_row_frequencies)                                                                         \
    K(embed_rows)                                                                                  \
    K(embed_gradients)                                                                             \
    LINEAR_KERNELS_ALONE(K)                                                                        \
    K(copy_rate)                                                                                   \
    K(fma_rate)
#define FORWARD_KERNELS(K) K(rotate_rows) K(forward)
#define BACKWARD_KERNELS(K)                                                                        \
    K(rotate_rows) K(row_sums) K(backward_keys) K(backward_rows) K(add_parts)
#define DECODE_KERNELS(K) K(rotate_rows) K(decode_scores) K(decode_values) K(decode_join)
#define VECTOR_KERNELS(K) K(vector_numbers) K(roll_numbers) K(count_keys)
#define VECTOR_BACK_KERNELS(K)                                                                     \
    K(finish_row_vectors) K(row_vector_totals) K(key_vector_pairs) K(key_vector_totals)            \
    K(list_roll_blocks) K(roll_rows) K(roll_parts) K(roll_totals)
/* The same for plans with gates, polar rows or rows that fade, and with gradients of numbers that
 * come with the call, of factors or of frequencies. */
#define FORWARD_GATE_KERNELS(K)                                                                    \
    FORWARD_KERNELS(K) K(sum_gates) K(sum_seen_gates) K(polar_rows) K(fade_keys) K(find_newest)    \
    K(stage_keys) K(walk_rows) K(reflect_tiles) K(reflect_nodes) K(mix_pairs) K(state_rows)
#define BACKWARD_INPUT_KERNELS(K)                                                                  \
    BACKWARD_KERNELS(K) K(sum_gates) K(sum_seen_gates) K(backward_inputs) K(store_inputs)          \
    K(finish_factors) K(query_frequencies) K(key_frequencies) K(add_frequencies)                   \
    K(place_gradients) K(polar_rows) K(key_phases) K(fade_keys) K(heir_values) K(find_newest)      \
    K(stage_keys) K(walk_rows) K(unstage_keys) K(grade_rows) K(unmix_pairs) K(add_mixed)           \
    K(state_rows) K(unturn_states) K(reflect_tiles) K(reflect_nodes) K(reflect_rows)               \
    K(sum_own_tiles) K(sum_matrices) K(unreflect_nodes) K(unreflect_tiles)
#define CACHE_KERNELS(K) K(rotate_rows) K(polar_rows) K(store_rows) K(state_rows)
#define ROW_KERNELS(K)                                                                             \
    K(rotate_rows) K(polar_rows) K(state_rows) K(fade_alone) K(place_gradients)                    \
    K(row_frequencies) K(add_row_frequencies) K(unturn_states) K(embed_rows) K(embed_gradients)
#define PROBE_KERNELS(K) K(copy_rate) K(fma_rate)
/* Linear attention. */
#define LINEAR_KERNELS_ALONE(K)                                                                    \
    K(linear_features)                                                                             \
    K(linear_carry)                                                                                \
    K(linear_tiles)                                                                                \
    K(linear_sums)                                                                                 \
    K(linear_rows)                                                                                 \
    K(linear_state)                                                                                \
    K(linear_cotangents)                                                                           \
    K(linear_dq)                                                                                   \
    K(linear_df)                                                                                   \
    K(linear_behind)                                                                               \
    K(linear_keys)                                                                                 \
    K(linear_dk)                                                                                   \
    K(linear_query_parts)                                                                          \
    K(linear_key_parts)                                                                            \
    K(linear_totals)
#define LINEAR_KERNELS(K) K(rotate_rows) K(place_gradients) LINEAR_KERNELS_ALONE(K)

/* Every pointer.  One that a call does not have is NULL. */
#define ARRAYS(A)                                                                                  \
    A(q)                                                                                           \
    A(k)                                                                                           \
    A(v)                                                                                           \
    A(o)                                                                                           \
    A(lse)                                                                                         \
    A(dout)                                                                                        \
    A(dlse)                                                                                        \
    A(delta)                                                                                       \
    A(dq)                                                                                          \
    A(dk)                                                                                          \
    A(dv)                                                                                          \
    A(mask)                                                                                        \
    A(dmask)                                                                                       \
    A(tables)                                                                                      \
    A(lists)                                                                                       \
    A(sums)                                                                                        \
    A(parts)                                                                                       \
    A(totals)                                                                                      \
    A(scores)                                                                                      \
    A(apart)                                                                                       \
    A(in0)                                                                                         \
    A(in1)                                                                                         \
    A(in2)                                                                                         \
    A(din0)                                                                                        \
    A(din1)                                                                                        \
    A(din2)                                                                                        \
    A(tops)                                                                                        \
    A(weights)                                                                                     \
    A(vectors)

/* Steps of a tile of rows: how many, at most two for each tile of keys, and which tiles are met,
 * two of them in a step. */
#define ROLL_STEPS(key_tiles) (1 + 3 * (int64_t)(key_tiles))

struct arrays {
#define ARRAY(name) GLOBAL char *name;
    ARRAYS(ARRAY)
#undef ARRAY
};

/* Strides in numbers, as loci_view has them. */
struct strides {
    int64_t batch, head, row;
};

/* Rows and keys that attend to each other only; see struct sequence of contract/call.h.  tile:
 * query tiles of all earlier sequences, item: their items of 1024 rows, ktile: their tiles of
 * keys, roll: their blocks of 64 distances of a head (kernels/vectors_back.h). */
struct span {
    int64_t d0;
    int64_t k_from; /* position of key 0 of the sequence */
    int64_t row_number; /* of row 0, where weights are dropped */
    int32_t b, q0, nq, k0, nk, run, segments, tile, item, ktile, roll;
    int32_t entry, key_number; /* the same: of the sequence, and of key 0 */
};

/* What the kernels know of a term of the plan. */
enum gpu_term {
    GPU_AFFINE,
    GPU_DISTANCE,
    GPU_SOFTCAP,
    GPU_FACTOR,
    GPU_SLOPES,
    GPU_PIECES,
    GPU_GATE,
    GPU_ROW_VECTORS,
    GPU_KEY_VECTORS,
    GPU_ROLL,
    GPU_SCAN,
    GPU_CHANNEL_GATES,
    GPU_REFLECTIONS
};
/* GPU_KEY_MARGIN: KEY_MARGIN of src/layout/band_k.h, FACTOR_PARTS: FACTOR_NUMBERS of factor.h. */
enum { GPU_USES = 6, GPU_INPUTS = 3, GPU_KEY_MARGIN = 80, FACTOR_PARTS = 2 };
enum gpu_gates { GATES_OF_KEYS, GATES_OF_VALUES, GATES_OF_INPUT };
/* Numbers that a row of a scan carries from tile to tile. */
enum { SCAN_CARRIES = 3 };
/* Rows that turn join a sum; or are one of several heads, of which the others are 0: no -0.
 * backward_keys: values are states, whose gradients are doubles; or dk is the gradient of gates
 * that calls give, doubles as well. */
enum gpu_adds { ADDS_NOTHING, ADDS_TO_SUM, ADDS_ZERO, ADDS_DOUBLES, ADDS_GATES };
/* How numbers are stored. */
enum { GPU_F32, GPU_BF16, GPU_F16, GPU_Q8 };

struct gpu_use {
    int64_t table; /* byte offset in `tables`, or of a factor's rows in `lists` */
    int64_t rows;  /* pieces, factor: numbers of rows in `lists` */
    /* Learned numbers of a head, and where they start in a part; count 0: none. */
    int32_t part, count;
    float a, b; /* softcap: cap and 1 / cap */
    /* Vectors: products by row or by key in `vectors`, how many there are of each, and distances.
     */
    int64_t numbers;
    int32_t vectors, lo, hi;
    /* The table: byte offset of head 0 in `tables`, numbers from head to head, from channel to
     * channel, and from vector to vector where they are rows. */
    int64_t vectors_at, vectors_head;
    /* Vectors of values: of head 0, -1: none; from row to row, and products with dO in
     * `vectors`. */
    int64_t values_at, value_numbers;
    int32_t value_width;
    int64_t waves_at; /* xl: of the waves, rows of `columns` numbers */
    int32_t columns, width;
    int32_t ends_lo, ends_hi; /* distances that rows can meet; backward */
    /* scan: what rows carry, in `apart`; sums by position of the chunk and of all, in `vectors`; b:
     * the factor of products, a: of gates.  gates where rows do not see intervals: carries are
     * those of kernels/gates.h, and ds_before is ds before each tile. */
    int64_t carries, by_chunk, by_all, ds_before;
    int32_t tiles, gates; /* gates: what queries are multiplied by for the gates */
    /* channel gates: byte offsets in `apart`.  Staged keys, [B][H][k_len][dim], factors of tiles,
     * [H][ktiles][dim], what rows carry to chunks, [chunks][B][H][q_len][dim].  Backward, gradients
     * of staged keys; dq, [B][H][q_len][dim]; by key the gradient of rows that own its tile and the
     * sum of q dq, [B][H][k_len][2][dim]: of an item, and of all, doubles.  gate_sums: of a scan,
     * the gradient of gates that calls give, doubles, [B][kv heads][k_len][dim].  newest: also of
     * reflections, the newest key of each row that does not see an interval, [B][H][q_len]. */
    int64_t newest, staged, tile_factors, carries_of_rows;
    int64_t staged_gradients, row_gradients, gate_part, gate_sums;
    /* reflections, likewise: matrices of FEW keys, [B][kv heads][k_len][2][FEW]; keys carried to
     * the ends of nodes, [levels][B][kv heads][k_len][dim], and matrices of nodes,
     * [2][kv heads][ktiles][dim][dim].  Backward, rows at the ends of `nodes` nodes,
     * [nodes][B][H][q_len][dim], and their gradients at the starts, with those at the start of the
     * own tile last; numbers of pairs in own tiles, [6][B][H][q_len][KEYS]; sums of an item by key,
     * [6][B][kv heads][k_len][dim], and of all, doubles; the same for beta, one by key; gradients
     * of matrices, doubles by the last tiles of their nodes, and as the matrices are.  Of tiles,
     * doubles by key: y, dim of them, KEYS products of w, and FEW of TURNS. */
    int64_t few, carried, matrices, reflected, returned, own_pairs;
    int64_t tile_parts, tile_sums, beta_parts, beta_sums, matrix_sums, matrix_gradients;
    int64_t tile_y, tile_products, tile_turns;
    int32_t nodes;
    int64_t direct;           /* totals that no part has: the first one; -1: not wanted */
    int8_t term;       /* in the order in which scores meet them */
    int8_t multiplies; /* distance: a factor of the score */
    /* slopes, gates: which of `in0` .. are the numbers of keys and rows, -1: none.  reflections: w
     * and beta. */
    int8_t key_input, row_input;
    /* The numbers of its sums by key, doubles, and of its first sum by row, each two floats, in
     * `apart`; -1: not wanted. */
    int8_t by_key, by_row;
};

/* How rows turn: pairs by their places, in forms for ranges of distances, or by angles of the call;
 * pairs whose cos and sin are sums of waves; pairs in another basis; blocks by matrices; pairs by
 * states of the call. */
enum gpu_rotation {
    TURN_PAIRS,
    TURN_RANGES,
    TURN_GIVEN,
    TURN_WAVES,
    TURN_BASES,
    TURN_MATRICES,
    TURN_STATES
};
/* The rotation of a plan, in `lists`. */
struct gpu_turn {
    int32_t count, offset, inside; /* pairs: see struct pairs of src/layout/pairs.h */
    int32_t groups;                /* of angles, coefficients, bases or matrices */
    int32_t sums, lanes;           /* waves: pairs that are sums, and numbers of a row of them */
    float rest;                    /* waves: sin of the other pairs */
    /* bases: as src/layout/blocks.h has them; `block` and `blocks` also of matrices.  states: width
     * is that of values, and offset is where the states behind them begin. */
    int32_t block, blocks, axes, per_panel, panels, width, back_lanes;
    int64_t numbers; /* byte offset in `tables`: coefficients, or matrices of bases */
    int64_t weights; /* bases: weights of coordinates, then lambdas, doubles */
    /* ranges: see struct ranged_pairs of src/layout/ranged_pairs.h; forms of keys, and numbers from
     * form to form of q and of k.  states: rule is 1 if vectors of values come before them in dp */
    int32_t rule, key_forms;
    int64_t window, group, q_form, k_form;
    double leak;
    /* matrices: byte offsets in `lists` of matrices into and back, and of slots of rows, keys */
    int64_t matrices[2], slots[2], slot_entry[2];
    /* store_rows with `finish`: channels that are multiplied, and by what */
    float undo;
    int32_t undo_from, undo_count;
};

/* The embedding of a plan, in `lists`: see struct embed_shape of src/contract/encoding.h. */
enum gpu_embedding { EMBED_OF_WAVES, EMBED_OF_POSITION, EMBED_OF_BITS, EMBED_OF_VECTORS };
struct gpu_embed {
    int64_t table; /* byte offset in `tables` */
    /* Positions in `lists`, and numbers from entry to entry; -1: they are counted from `start` */
    int64_t places, entry, start;
    /* Backward, in `lists`: rows by position, and where those of a position begin. */
    int64_t rows, first;
    double divisor;
    int32_t kind, waves, halves, distinct; /* distinct: positions */
};

/* The stick of sba, in `lists`: see kernels/stick.h. */
enum gpu_heir { HEIR_NONE, HEIR_VALUE, HEIR_VECTOR };
struct gpu_stick {
    double shortest;     /* a row goes on with this rest */
    int64_t numbers;     /* byte offset in `apart`: what rows leave by tile and by chunk */
    int32_t tiles, chunks;
    /* Who gets what is left.  In `lists`: the key of each row, [B][q_len], -1: nobody; rows by
     * their key, [B][q_len], from first[key] on, [B][k_len + 1].  In `tables`: vectors of heads. */
    int64_t heirs, rows, first, vectors;
    int32_t heir, part; /* part: of the vectors' gradient; -1: not wanted */
};

/* Where a row of store_rows comes from and goes to, in rows of the two views, in `lists`; to < 0:
 * it stays. */
struct row_move {
    int64_t from, to;
};
/* The network of cape, and a strip of rows, in `lists`: kernels/mix.h. */
struct gpu_mix {
    /* Byte offsets in `apart`, of tiles of pairs: scores, biases, mixed scores and gradients of
     * these.  Backward, mixed scores become weights, and scores and biases their gradients.  sums:
     * what a tile of pairs gives to the gradient of the network. */
    int64_t scores, biases, mixed, gradients, sums;
    int64_t table;                 /* byte offset in `tables`: see src/layout/mix.h */
    int32_t units, padded, biased; /* biased: biases are inputs, too */
    float leak, add;
    int32_t first_add;   /* the first of the terms that make biases */
    int32_t by_distance; /* they depend on the distance alone, of rows that see intervals */
    int32_t part;        /* of a head; -1: not wanted */
    int32_t ktiles;      /* tiles of keys that a tile of rows has memory for */
    int32_t first, tiles, stores; /* the strip; stores: `forward` makes scores */
};

/* Linear attention, in `lists`: kernels/linear.h.  A tile of keys of a sequence: its first key
 * among the rows of its entry in the workspace, how many it has, and how many of them any row sees;
 * which of all sums are those before it, and before the next tile, -1: none; the tiles of rows
 * whose last key it has; and whether what is recent becomes older, after it on the walk, and on the
 * walk back. */
struct gpu_key_tile {
    int32_t b, key, keys, seen, sums, next, first_rows, end_rows, ages, ages_back;
};
/* Rows of an entry whose last key is in a tile (-1: they see none), which had `keys` keys then. */
struct gpu_row_tile {
    int32_t b, row, rows, tile, keys;
};
/* The tiles of a sequence, and its tiles of rows before the first end of a tile: they see no key.
 */
struct gpu_walk {
    int32_t b, tile, tiles, first_rows, end_rows;
};
struct gpu_linear {
    /* Byte offsets in `lists`: tiles, sequences, and how many keys of its tile a row sees, 32 bits,
     * [B][q_len]. */
    int64_t key_tiles, row_tiles, walks, seen;
    /* In `apart`, rows of floats: features of q and k, before and after they rotate; values; sums
     * of features up to each key of its tile; backward dO / denominator, gradients of features
     * after and before they rotate back, and of values.  Those of q are [B][H][q_len], of keys
     * [B][kv heads][key_rows]. */
    int64_t q, q_turned, k, k_turned, v, z, g, dq, dk, df, dv;
    int64_t h, den; /* [B][H][q_len] */
    int64_t spare;  /* rows of the longer side, for matrices, which do not rotate in place */
    /* S and z before tiles, then G and its z behind the tile before, [tiles][kv heads]
     * [sum_floats]; states of the call, of `state_floats` each. */
    int64_t sums, states;
    /* What a rotation learns, rotation_count numbers each: of tiles of rows of each head, of tiles
     * of keys of each kv head. */
    int64_t query_parts, key_parts;
    int64_t state_floats, sum_floats;
    int32_t carried, key_rows; /* keys in the last tile of a state come before those of the call */
    int32_t lanes, value_lanes; /* dim and value_dim, padded as on the CPU */
    int32_t goes_on; /* the call has a state */
};

/* Small, because OpenCL promises 1024 bytes for all arguments. */
struct params {
    int64_t lo, hi; /* distances that a row sees */
    struct strides q, k, v, o, dout, dq, dk, dv, mask, dmask;
    int64_t mask_key;
    /* Byte offsets in `lists`: spans, positions and segments of rows and keys, first and last keys
     * of rows, places of rows, or their moves; a byte for each key that is in a sequence, -1: all
     * are. */
    int64_t spans, q_pos, k_pos, q_seg, k_seg, k_first, k_last, where, used;
    int64_t pairs, sink; /* byte offsets in `tables` */
    /* Byte offsets in `apart`: sums by key, [n][B][H][k_len]; sums by row, [n][2][B][H][q_len];
     * sums of gates (kernels/gates.h). */
    int64_t by_key, by_row, gates;
    int64_t by_tile; /* in `apart`: gradients of frequencies of tiles of keys; -1: none */
    int64_t q_factor;    /* in `lists`: factors of rows of q, [B][H][q_len]; -1: none */
    /* Folded factors that learn: numbers of rows, doubles in `lists`; see factor_part. */
    int64_t factor_rows;
    int64_t factors;     /* the same, where rotate_rows multiplies by them; -1: it does not */
    int32_t dim, value_dim; /* of a row in scores, and of a value */
    int32_t heads, kv_heads;
    int32_t batch, q_len, k_len, sequences;
    int32_t rows;           /* of a query tile of the forward pass: 128, 64 or 32 */
    int32_t tiles, ktiles;  /* of `rows` rows, or of 64 rows in a backward pass, and of 64 keys */
    int32_t full;           /* rows see keys ahead */
    int32_t near;           /* distances of pairs have 32 bits */
    int32_t listed;         /* rows do not see intervals: pairs are tested one by one */
    int32_t mask_kind;
    int32_t list_entry;     /* k_first and k_last: rows from one batch entry to the next, or 0 */
    int32_t uses, parts;    /* parts: learned numbers of a head */
    int32_t chunks;         /* the most chunks that a row sees */
    int32_t rotation_part, rotation_count; /* of a kv head; part -1: no frequency learns */
    int32_t has_sink, sink_part, factor_part, factor_row_sum;
    int32_t q_type, k_type, v_type, o_type; /* how q, k, v are read, and o and dout stored */
    int32_t wide;           /* all rows of q, k, v, dout can be read by four numbers */
    /* rotate_rows.  back: the adjoint.  counted: places follow from row numbers.  finish, also of
     * backward_rows: dq is multiplied by scale. */
    int32_t back, counted, finish, keys_side; /* keys_side: rows are keys */
    int32_t given; /* places are numbers of rows: which of `in0` ..; -1: they are not */
    /* without the factor of the rotation, as values turn; forward: of states; place_gradients:
     * values turn, too */
    int32_t plain;
    int32_t rotation; /* enum gpu_rotation */
    int32_t forms;    /* of a row: kernels/forms.h */
    /* backward: the form whose gradient is summed, or of add_frequencies how many; reflect_nodes:
     * the level.  enum gpu_adds */
    int32_t form, adds;
    /* rotate_rows, of a form: its angle has two parts; twice factor */
    int32_t form_leaks, form_twice;
    int32_t fades;    /* rows and keys fade: kernels/fades.h */
    float scale;
    uint64_t drop_seed, drop_offset; /* kernels/dropout.h */
    uint32_t drop_limit;
    float drop_kept;
    int32_t dropout; /* weights are dropped */
    /* Pages: their numbers in `lists`, [B][page_entry], and the keys of each.  q_paged: rotate_rows
     * reads rows in pages. */
    int64_t pages;
    /* Kernels of vectors, and of gates: the use, heads that share a row (also of states), rows of a
     * tile, and what rows of q are multiplied by. */
    int32_t vector_use, vector_share, vector_rows, vector_values; /* values: with those of values */
    float vector_scale;
    int32_t scan; /* the term whose rows count gates: kernels/scan.h; -1: none */
    /* Backward: byte offsets in `vectors` of ds by distance, of all and of the chunk, and by key;
     * -1: none.  The first distance, and how many. */
    int64_t ds_by_distance, ds_chunk, ds_by_key, ds_lo;
    /* In `vectors`, -1: none.  Steps of tiles of rows, [tiles][H][ROLL_STEPS], two numbers each.
     * Where positions are not consecutive, gradients of keys' vectors by distance and those of a
     * pair of tiles, [items][H][chunks][2][columns][dim]. */
    int64_t roll_steps, key_parts;
    int64_t roll_parts; /* in `vectors`: gradients of vectors by distance */
    int64_t p_by_distance;     /* the same of weights */
    int32_t ds_width, vectors; /* vectors: some term has them */
    int32_t values;            /* some vectors are of values */
    /* Decode: lanes of a group, groups for all lanes of a kv head, tiles of a group.  key_tiles:
     * tiles of keys in lists by tile. */
    int32_t lanes, lane_parts, part_tiles, key_tiles;
    int32_t page_entry, page_keys, k_paged, v_paged, q_paged;
    int32_t roomy; /* passes that have room for both sides of a tile: kernels/rooms.h */
    int64_t use, turn; /* the terms, struct gpu_use, and the rotation, or embedding, in `lists` */
    int64_t stick;     /* the stick, in `lists`; -1: weights are a softmax */
    int64_t mix;       /* the network and strip, in `lists`; -1: heads do not mix */
    int64_t linear;    /* linear attention, in `lists` */
};

#endif
