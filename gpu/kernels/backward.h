/* SPDX-License-Identifier: MIT */
/* backward.h -- gradients in two passes, without atomics.  backward_keys: a group has 64 keys of a
 * kv head and walks over the rows that see them, for dk and dv.  backward_rows: a group has 64 rows
 * of a head and walks over the keys that they see, for dq and what is learned.  See docs/bits.md,
 * Backward. */
#ifndef LOCI_GPU_KERNELS_BACKWARD_H
#define LOCI_GPU_KERNELS_BACKWARD_H

#include "kernels/vector_sums.h"

enum { PAIR_OTHERS = 4, PAIR_GROUPS = 4 }; /* of a thread with 64 lanes */

/* ---- delta = dO o - dlse --------------------------------------------------------------------- */

/* Of sba, whose dlse is drem: the gradient of what is left of a row's stick. */
DEV float rest_gradient(struct block b, int64_t batch, int h, int64_t row, struct rows_at dout,
                        float drem)
{
    const int64_t heir = heir_of(b, batch, row);
    const struct rows_at v = view_rows(b.at.v, b.p->v, batch, h / (b.p->heads / b.p->kv_heads), 0,
                                       V_TYPE, b.p->wide);
    float sum = drem;
    for (int n = 0; b.at.dout && heir >= 0 && n < VALUE_DIM; n++)
        sum = fma_(load_number(dout.at, dout.type, dout.first + n),
                   heir_number(b, v, h, (int)heir, n), sum);
    return sum;
}
/* One thread per row.  With a sink a second number: the delta that its logit reads, which leaves
 * out dO of rows whose o is 0. */
DEV void row_sums(struct block b)
{
    const int64_t rows = (int64_t)b.p->batch * b.p->q_len;
    const int h = b.x % b.p->heads;
    PHASE(tid)
        const int64_t i = (int64_t)(b.x / b.p->heads) * THREADS + tid;
        if (i < rows) {
            const int64_t batch = i / b.p->q_len, row = i % b.p->q_len;
            const struct rows_at o = view_rows(b.at.o, b.p->o, batch, h, row, b.p->o_type, 0),
                                 dout = view_rows(b.at.dout, b.p->dout, batch, h, row,
                                                  b.p->o_type, 0);
            const int64_t at = (batch * b.p->heads + h) * b.p->q_len + row;
            const float dlse = b.at.dlse ? ((const GLOBAL float *)b.at.dlse)[at] : 0.0f;
            float sum = 0;
            int empty = 1;
            for (int n = 0; !STICK && n < VALUE_DIM; n++) {
                const float x = load_number(o.at, o.type, o.first + n);
                const float g = b.at.dout ? load_number(dout.at, dout.type, dout.first + n) : 0.0f;
                sum = fma_(g, x, sum);
                empty &= x == 0;
            }
            if (b.at.dlse) sum = sum - dlse;
            for (int n = 0; STATES && !STICK && b.at.weights && n < DIM; n++)
                sum = fma_(((const GLOBAL float *)b.at.weights)[at * DIM + n],
                           ((const GLOBAL float *)b.at.tops)[at * DIM + n], sum);
            if (STICK) sum = rest_gradient(b, batch, h, row, dout, dlse);
            ((GLOBAL float *)b.at.delta)[at] = sum;
            if (HAS_SINK)
                ((GLOBAL float *)b.at.delta)[rows * b.p->heads + at] =
                    !empty ? sum : b.at.dlse ? -dlse : 0.0f;
        }
    END
}

/* ---- A pair ---------------------------------------------------------------------------------- */

/* lse of a row as weights read it: a row without keys has none. */
DEV float lse_of(struct block b, int64_t at)
{
    const float lse = ((const GLOBAL float *)b.at.lse)[at];
    return lse == -INFINITY ? 0.0f : lse;
}
/* From the gradient of the final score to that of the score before term `from` - 1 .. `to`. */
DEV float terms_back(struct block b, struct term_state *state, const struct span *q, int h,
                     int row, int key, float s, float ds, int from, int to)
{
    const distance_t d = distance_of(b, q, row, key);
    UNROLL for (int v = USES - 1; v >= 0; v--) {
        if (v >= from || v < to) continue;
        const float f = TERM_OF(v) == GPU_FACTOR ? factor_of(b, v, q, h, row) : 1.0f;
        const float before =
            TERM_OF(v) == GPU_SOFTCAP ? some_terms(b, state, q, h, row, key, s, 0, v) : 0.0f;
        ds = term_gradient(TERM_OF(v), MULTIPLIES(v), state[v], before, ds, d, f);
    }
    return ds;
}
/* Weight and gradient of the final score of a visible pair, from q k and dp. */
DEV float pair_weight(struct block b, struct term_state *state, const struct span *q, int h,
                      int row, int key, float s, float lse)
{
    return exp_(all_terms(b, state, q, h, row, key, s, NULL_AT) - lse);
}

/* The threads of rows count the gates of a tile, from what rows carry; a row beyond the last one
 * has none.  s: scores, in the places of the tile's pairs, or NULL if they are the logits. */
DEV void count_gates(struct block b, const struct span *q, int h, int row0, int rows, int key0,
                     int keys, int whole, const SHARED float *s, int tid)
{
    /* a loop, see PHASE_IF() */
    for (int r = tid; r < TILE_ROWS; r += THREADS) {
        struct scan_state c = { 0, 0 };
        if (r < rows) {
            c.whole = (int)*carry_at(b, SCAN_AT, key0 / KEYS, q, h, row0 + r);
            c.fraction = *carry_at(b, SCAN_REST, key0 / KEYS, q, h, row0 + r);
            scan_row(b, q, h, row0 + r, key0, keys, whole, s ? s + r * b.scan_by_row : NULL_AT,
                     b.scan_by_key, c);
        }
        for (int k = r < rows ? keys : 0; k < KEYS; k++)
            *scan_at(b, SCAN_GATE, row0 + r, key0 + k) = 0;
    }
}
/* The logits of gates that are no products with keys, in their tile.  k: room for what rows are
 * multiplied by. */
DEV void logits_of_keys(struct block b, const struct span *q, int kvh, int row0, int key0, int keys,
                        int apart, SHARED float *k, const SHARED float *rows)
{
    PHASE(tid)
        if (apart) load_across(gate_rows(b, q, kvh), key0, keys, KEYS, DIM, 1.0f, tid, k);
    END
    PHASE(tid)
        float c[PAIR_OTHERS][8];
        const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
        if (apart) {
            product(KEYS, k, rows, WIDER(DIM), FOURS(DIM), r0, side, c);
            store_tile(KEYS, scan_at(b, SCAN_GATE, row0, key0), r0, side, c);
        }
    END
}
/* Do vectors of values come before states in dp? */
DEV int vectors_first(struct block b)
{
    return VALUES && STATES && TURN.rule && TURN.offset < FOURS(VALUE_DIM);
}
/* dp of a pair: vectors of values that come last. */
DEV float with_vectors(struct block b, const struct span *q, int h, int row, int key, float dp)
{
    return VALUES && !vectors_first(b) ? dp + value_number(b, q, h, row, key) : dp;
}
/* Pairs that go from their threads to those of rows and back.  Lanes are rows, or keys.  Of sba,
 * final scores and dp, and what the threads of rows make of them: a pair that is not visible has
 * the score -inf, and no dp. */
struct tile_pairs {
    SHARED float *z, *dp;
    int lanes, by_key; /* by_key: lanes are keys */
    int row0, key0, keys, whole;
};
DEV void open_stick_pairs(struct block b, const struct span *q, int h, struct tile_pairs a,
                          int tid, float (*s)[8], float (*dp)[8])
{
    struct term_state state[MOST_USES];
    float z[PAIR_OTHERS][8];
    const int r0 = first_lane(a.lanes, tid), side = place(a.lanes, tid);
    open_terms(b, h, state);
    UNROLL for (int i = 0; i < OTHERS(a.lanes); i++)
        UNROLL for (int j = 0; j < 8; j++) {
            const int lane = lane_of(a.lanes, r0, j), other = other_of(a.lanes, side, i),
                      row = a.row0 + (a.by_key ? other : lane), k = a.by_key ? lane : other,
                      visible = k < a.keys && (a.whole || sees(b, q, h, row, a.key0 + k));
            struct drop_row drop = { 0, 0 };
            if (DROPOUT && visible) drop = drop_row_of(b, q, h, row);
            z[i][j] = visible ? all_terms(b, state, q, h, row, a.key0 + k, s[i][j], NULL_AT)
                              : -INFINITY;
            if (visible) dp[i][j] = with_vectors(b, q, h, row, a.key0 + k, dp[i][j]);
            if (DROPOUT && visible) dp[i][j] = dp[i][j] * drop_factor(b, q, drop, a.key0 + k);
            if (!visible) dp[i][j] = 0;
        }
    store_tile(a.lanes, a.z, r0, side, z);
    store_tile(a.lanes, a.dp, r0, side, dp);
}
/* p with dropout, and ds of final scores. */
DEV void close_stick_pairs(struct block b, const struct span *q, int h, struct tile_pairs a,
                           int tid, float (*p)[8], float (*ds)[8])
{
    const int r0 = first_lane(a.lanes, tid), side = place(a.lanes, tid);
    UNROLL for (int i = 0; i < OTHERS(a.lanes); i++)
        UNROLL for (int j = 0; j < 8; j++) {
            const int lane = lane_of(a.lanes, r0, j), other = other_of(a.lanes, side, i),
                      row = a.row0 + (a.by_key ? other : lane), k = a.by_key ? lane : other,
                      visible = k < a.keys && (a.whole || sees(b, q, h, row, a.key0 + k));
            p[i][j] = visible ? a.z[other * a.lanes + lane] : 0.0f;
            ds[i][j] = visible ? a.dp[other * a.lanes + lane] : 0.0f;
            if (DROPOUT && visible)
                p[i][j] = p[i][j] * drop_factor(b, q, drop_row_of(b, q, h, row), a.key0 + k);
        }
}
/* Terms `from` - 1 .. `to` back, of such pairs. */
DEV void pair_terms_back(struct block b, const struct span *q, int h, struct tile_pairs a,
                         int from, int to, int tid, float (*s)[8], float (*ds)[8])
{
    struct term_state state[MOST_USES];
    const int r0 = first_lane(a.lanes, tid), side = place(a.lanes, tid);
    open_terms(b, h, state);
    UNROLL for (int i = 0; i < OTHERS(a.lanes); i++)
        UNROLL for (int j = 0; j < 8; j++) {
            const int lane = lane_of(a.lanes, r0, j), other = other_of(a.lanes, side, i),
                      row = a.row0 + (a.by_key ? other : lane), k = a.by_key ? lane : other;
            if (k < a.keys && (a.whole || sees(b, q, h, row, a.key0 + k)))
                ds[i][j] =
                    terms_back(b, state, q, h, row, a.key0 + k, s[i][j], ds[i][j], from, to);
        }
}

/* Products of one class, of keys as lanes with rows, or of rows as lanes with keys: the first one
 * fills the tile, and later ones take their pairs. */
DEV void take_class(struct block b, const struct span *q, int h, int row0, int key0, int class_,
                    int first, int by_key, const SHARED float *lanes, const SHARED float *others,
                    int tid, float (*to)[8])
{
    float s[PAIR_OTHERS][8];
    const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
    product(KEYS, lanes, others, WIDER(DIM), FOURS(DIM), r0, side, s);
    for (int i = 0; i < OTHERS(KEYS); i++)
        for (int j = 0; j < 8; j++) {
            const int lane = lane_of(KEYS, r0, j), other = other_of(KEYS, side, i);
            if (first
                || is_of_class(b, q, h, row0 + (by_key ? other : lane),
                               key0 + (by_key ? lane : other), class_))
                to[i][j] = s[i][j];
        }
}

/* The same of the rows that go a way over the keys, of path. */
DEV void take_way(struct block b, const struct span *q, int h, int row0, int key0, int way,
                  int by_key, const SHARED float *lanes, const SHARED float *others, int tid,
                  float (*to)[8])
{
    float s[PAIR_OTHERS][8];
    const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
    product(KEYS, lanes, others, WIDER(DIM), FOURS(DIM), r0, side, s);
    for (int i = 0; i < OTHERS(KEYS); i++)
        for (int j = 0; j < 8; j++) {
            const int lane = lane_of(KEYS, r0, j), other = other_of(KEYS, side, i);
            if (way_of(b, q, h, row0 + (by_key ? other : lane), key0 / KEYS) == way)
                to[i][j] = s[i][j];
        }
}
/* And of the rows that own the tile: reflect_rows() has kept their scores. */
DEV void take_own(struct block b, const struct span *q, int h, int row0, int key0, int n,
                  int by_key, int tid, float (*to)[8])
{
    const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
    for (int i = 0; i < OTHERS(KEYS); i++)
        for (int j = 0; j < 8; j++) {
            const int lane = lane_of(KEYS, r0, j), other = other_of(KEYS, side, i),
                      row = row0 + (by_key ? other : lane), k = by_key ? lane : other;
            if (k < n && way_of(b, q, h, row, key0 / KEYS) == REFLECT_OWN)
                to[i][j] = own_numbers(b, OWN_SCORE, q, h, row)[k];
        }
}

/* Where the pairs of a tile are, whose lanes are rows, or keys. */
struct tile_place {
    int h, row0, key0, by_key;
};
/* dp: of values with dO.  Of states that are values, too, the same in a product of its own, after
 * vectors of values that come first in the text. */
DEV void product_values(struct block b, const struct span *q, struct tile_place t, int lanes,
                        const SHARED float *lane_rows, const SHARED float *others, int r0, int at,
                        float (*c)[8])
{
    const int all = FOURS(VALUE_DIM), split = STATES ? least(TURN.offset, all) : all;
    product(lanes, lane_rows, others, WIDER(VALUE_DIM), split, r0, at, c);
    if (STATES && split < all) {
        float more[PAIR_OTHERS][8];
        const int first = vectors_first(b);
        product(lanes, lane_rows + split * lanes, others + split, WIDER(VALUE_DIM), all - split, r0,
                at, more);
        for (int i = 0; i < OTHERS(lanes) * 8; i++) {
            const int lane = lane_of(lanes, r0, i % 8), other = other_of(lanes, at, i / 8),
                      row = t.row0 + (t.by_key ? other : lane),
                      key = t.key0 + (t.by_key ? lane : other);
            if (first && row < q->nq && key < q->nk)
                c[i / 8][i % 8] += value_number(b, q, t.h, row, key);
            c[i / 8][i % 8] += more[i / 8][i % 8];
        }
    }
}
/* Pairs of a tile that mix.h keeps, of a thread whose lanes are rows, or keys. */
DEV void load_pairs(struct block b, int64_t from, const struct span *q, int h, int row0, int key0,
                    int r0, int side, int by_key, float (*to)[8])
{
    const GLOBAL float *x = mix_tile(b, from, q, h, row0, key0);
    for (int i = 0; i < OTHERS(KEYS); i++)
        for (int j = 0; j < 8; j++) {
            const int lane = lane_of(KEYS, r0, j), other = other_of(KEYS, side, i);
            to[i][j] = x[by_key ? lane * TILE_ROWS + other : other * TILE_ROWS + lane];
        }
}

/* ---- dk and dv ------------------------------------------------------------------------------- */

/* A thread in the pass over keys: sums of an item for 8 keys and fours of channels, and a tile of
 * pairs. */
struct keys_mine {
    float dk[PAIR_GROUPS][8][4], dv[PAIR_GROUPS][8][4], p[PAIR_OTHERS][8];
    float s[PAIR_OTHERS][8]; /* of pairs in several classes, or of sba */
};

/* Sums over the rows that see a key, where q, dO or lse of a row is not finite. */
DEV void visible_rows(struct block b, const struct span *q, int h, int row0, int rows, int key,
                      const SHARED float *w, const SHARED float *x, int stride, int channel,
                      float *c)
{
    for (int i = 0; i < 4; i++) {
        float sum = 0;
        for (int r = 0; r < rows && channel + i < stride; r++)
            if (sees(b, q, h, row0 + r, key))
                sum = fma_(x[r * stride + channel + i], w[r * KEYS], sum);
        c[i] = sum;
    }
}
/* Adds a tile of rows to the sums: w[row][key] x[row][channel]. */
DEV void add_rows(struct block b, const struct span *q, int h, int row0, int rows, int key0,
                  int finite, const SHARED float *w, const SHARED float *x, int stride, int width,
                  int tid, float (*to)[8][4])
{
    const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
    UNROLL for (int g = 0; g < GROUPS(KEYS, width); g++) {
        float c[1][8][4];
        sums(KEYS, 1, g, width, w, x, stride, rows, r0, side, c);
        for (int j = 0; !finite && j < 8; j++) {
            const int lane = lane_of(KEYS, r0, j);
            visible_rows(b, q, h, row0, rows, key0 + lane, w + lane, x, stride,
                         channel_of(KEYS, side, g), c[0][j]);
        }
        UNROLL for (int j = 0; j < 8; j++)
            UNROLL for (int i = 0; i < 4; i++) to[g][j][i] = to[g][j][i] + c[0][j][i];
    }
}
/* Adds the part of an item to a gradient in memory, or begins it; or to one in doubles. */
DEV void add_item(GLOBAL char *at, struct rows_at v, int keys, int width, int first, int doubles,
                  int tid, float (*part)[8][4])
{
    const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
    int64_t from = v.first;
    HERE(from);
    UNROLL for (int g = 0; g < GROUPS(KEYS, width); g++)
        UNROLL for (int j = 0; j < 8; j++)
            UNROLL for (int i = 0; i < 4; i++) {
                const int key = lane_of(KEYS, r0, j), n = channel_of(KEYS, side, g) + i;
                if (key >= keys || n >= width) continue;
                GLOBAL float *to = (GLOBAL float *)at + from + key * v.row + n;
                GLOBAL double *sum = (GLOBAL double *)at + from + key * v.row + n;
                if (doubles) *sum = *sum + (double)part[g][j][i];
                else *to = (first ? 0.0f : *to) + part[g][j][i];
            }
}
DEV void clear_item(int width, float (*part)[8][4])
{
    UNROLL for (int g = 0; g < GROUPS(KEYS, width); g++)
        UNROLL for (int j = 0; j < 8; j++)
            UNROLL for (int i = 0; i < 4; i++) part[g][j][i] = 0;
}
/* May some row of a tile see some key of another? */
DEV int tiles_meet(struct block b, const struct span *q, int row, int rows, int key, int keys)
{
    const struct keys_seen seen = keys_of(b, q, row, rows);
    return seen.first <= seen.last && key <= seen.last && key + keys > seen.first;
}

DEV int items_of(int tiles) { return (most(tiles, 0) * TILE_ROWS + ITEM - 1) / ITEM; }
/* The items of a launch: all of a sequence, or those of a strip. */
DEV int last_item(struct block b, const struct span *q)
{
    const int items = (q->nq + ITEM - 1) / ITEM;
    return least(items, MIXES ? items_of(MIX.first + MIX.tiles - q->tile) : items) - 1;
}
DEV int first_item(struct block b, const struct span *q)
{
    return MIXES ? items_of(MIX.first - q->tile) : 0;
}
/* Heads that mix are summed tile by tile, but for keys that each of them gates, and for gradients
 * of gates that calls give. */
DEV int heads_by_tile(struct block b)
{
    return MIXES && !(GATED && b.at.dk) && b.p->adds != ADDS_GATES;
}
/* The tiles of rows that meet a tile of keys, in the order of the sums: items from the latest rows
 * on, in each the heads of the group, in each the rows rising.  item < 0: no more.  Heads that mix
 * may come in two rounds. */
struct row_tile {
    int item, h, row0, round, rounds;
};
DEV struct row_tile next_rows(struct block b, const struct span *q, int kvh, int key0, int keys,
                              struct row_tile t)
{
    const int group = b.p->heads / b.p->kv_heads, first = kvh * group, end = first + group,
              last = first_item(b, q), by_tile = heads_by_tile(b);
    while (t.item >= last) {
        if (!by_tile || ++t.h == end) {
            t.round = (t.round + 1) % t.rounds;
            if (t.round == 0) t.row0 += TILE_ROWS;
            if (by_tile) t.h = first;
        }
        if (t.row0 >= least(q->nq, (t.item + 1) * ITEM)) {
            t.h = by_tile ? end : t.h + 1;
            t.row0 = t.item * ITEM;
        }
        if (t.h == end) {
            t.item--;
            t.h = first;
            t.row0 = t.item * ITEM;
        }
        if (t.item >= last
            && tiles_meet(b, q, t.row0, least(q->nq - t.row0, TILE_ROWS), key0, keys)
            && !(STICK && !MIXES
                 && stick_ended(b, q, t.h, t.row0, least(q->nq - t.row0, TILE_ROWS), key0 / KEYS)))
            return t;
    }
    t.item = -1;
    return t;
}
/* Before the first rows that meet a tile of keys. */
DEV struct row_tile before_rows(struct block b, const struct span *q, int kvh, int rounds)
{
    const int group = b.p->heads / b.p->kv_heads;
    struct row_tile t = { last_item(b, q), kvh * group + (heads_by_tile(b) ? group - 1 : 0), 0,
                          rounds - 1, rounds };
    t.row0 = t.item * ITEM - TILE_ROWS;
    return t;
}
DEV struct rows_at rows_of_tile(struct block b, const struct span *q, struct row_tile t, int dout)
{
    if (dout)
        return view_rows(b.at.dout, b.p->dout, q->b, t.h, q->q0 + t.row0, O_TYPE, b.p->wide);
    return view_rows(b.at.q, b.p->q, q->b, t.h, q->q0 + t.row0, Q_TYPE, b.p->wide);
}
/* Rows of q, or of dO, as rows of shared memory.  Where some pair is hidden, the flag falls if a
 * number is not finite. */
DEV void fetch_rows(struct block b, const struct span *q, struct row_tile t, int dout, int whole,
                    int tid, SHARED float *to, SHARED int *flag)
{
    const int rows = least(q->nq - t.row0, TILE_ROWS), width = dout ? VALUE_DIM : DIM;
    if (dout && !b.at.dout) {
        for (int i = tid; i < TILE_ROWS * WIDER(VALUE_DIM); i += THREADS) to[i] = 0;
    } else if (whole) {
        copy_rows(rows_of_tile(b, q, t, dout), 0, rows, TILE_ROWS, width, WIDER(width), tid, to);
    } else if (!load_rows(rows_of_tile(b, q, t, dout), 0, rows, TILE_ROWS, width, WIDER(width), tid,
                          to)) {
        *flag = 0;
    }
}
/* Weights and gradients of a thread's pairs, from dp and s in place; of a scan, those of the scores
 * that it makes. */
DEV void grade_pairs(struct block b, struct keys_room at, const struct span *q, struct row_tile t,
                     int key0, int whole, int tid, float (*dp)[8], float (*s)[8])
{
    struct term_state state[MOST_USES];
    const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
    open_terms(b, t.h, state);
    UNROLL for (int i = 0; i < OTHERS(KEYS); i++) {
        const int r = other_of(KEYS, side, i);
        const float lse = b.room[at.lse + r], delta = b.room[at.delta + r];
        struct drop_row drop = { 0, 0 };
        if (DROPOUT) drop = drop_row_of(b, q, t.h, t.row0 + r);
        UNROLL for (int j = 0; j < 8; j++) {
            const int row = t.row0 + r, key = key0 + lane_of(KEYS, r0, j);
            float p = 0, ds = 0;
            if (whole || sees(b, q, t.h, row, key)) {
                const float f = DROPOUT ? drop_factor(b, q, drop, key) : 1.0f;
                p = pair_weight(b, state, q, t.h, row, key, s[i][j], lse);
                dp[i][j] = with_vectors(b, q, t.h, row, key, dp[i][j]);
                ds = p * ((DROPOUT ? dp[i][j] * f : dp[i][j]) - delta);
                if (DROPOUT) p = p * f;
                ds = terms_back(b, state, q, t.h, row, key, s[i][j], ds, USES, SCAN + 1);
            }
            dp[i][j] = p;
            s[i][j] = ds;
        }
    }
}
/* path: sums by key, of list number `which`, of an item, and of all.  Lists: keys of nodes by
 * level, then k and w of own tiles. */
enum { OWN_KEYS = NODE_LEVELS, OWN_W, TILE_LISTS };
DEV int64_t tile_number(struct block b, int which, const struct span *q, int kvh)
{
    const int64_t entry = (int64_t)which * b.p->batch + q->b;
    return ((entry * b.p->kv_heads + kvh) * b.p->k_len + q->k0) * DIM;
}
DEV GLOBAL float *tile_part(struct block b, int which, const struct span *q, int kvh)
{
    return (GLOBAL float *)(b.at.apart + USE(0).tile_parts) + tile_number(b, which, q, kvh);
}
DEV GLOBAL double *tile_sum(struct block b, int which, const struct span *q, int kvh)
{
    return (GLOBAL double *)(b.at.apart + USE(0).tile_sums) + tile_number(b, which, q, kvh);
}
DEV void join_tile_parts(struct block b, const struct span *q, int kvh, int first, int end,
                         int key0, int keys, int tid)
{
    for (int which = first; which < end; which++) {
        GLOBAL float *part = tile_part(b, which, q, kvh) + (int64_t)key0 * DIM;
        GLOBAL double *sum = tile_sum(b, which, q, kvh) + (int64_t)key0 * DIM;
        for (int i = tid; i < keys * DIM; i += THREADS) {
            sum[i] = sum[i] + (double)part[i];
            part[i] = 0;
        }
    }
}
DEV int finite_pairs(const SHARED float *ds, int tid)
{
    float zero = 0;
    for (int i = tid; i < TILE_ROWS * KEYS; i += THREADS) zero = zero + ds[i] * 0.0f;
    return zero == 0.0f;
}
/* Pairs of rows that do not read the tile in an older block, whose lanes are keys, or rows. */
DEV void clear_other_ways(struct block b, const struct span *q, int h, int row0, int key0,
                          int by_row, int tid, SHARED float *ds)
{
    for (int i = tid; i < TILE_ROWS * KEYS; i += THREADS)
        if (way_of(b, q, h, row0 + (by_row ? i % TILE_ROWS : i / KEYS), key0 / KEYS)
            != REFLECT_BLOCK)
            ds[i] = 0;
}
/* Adds a tile of rows, of which those of other ways are 0, to the gradient of keys at the end of
 * their node.  What is not finite does not reach what it has a factor of 0 for. */
DEV void add_node_keys(struct block b, const struct span *q, int kvh, int level, int key0, int keys,
                       int rows, int finite, const SHARED float *ds, const SHARED float *u,
                       int tid)
{
    GLOBAL float *part = tile_part(b, level, q, kvh) + (int64_t)key0 * DIM;
    const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
    for (int g = 0; g < GROUPS(KEYS, DIM); g++) {
        float c[1][8][4];
        sums(KEYS, 1, g, DIM, ds, u, WIDER(DIM), rows, r0, side, c);
        UNROLL for (int j = 0; j < 8; j++)
            UNROLL for (int i = 0; i < 4; i++) {
                const int key = lane_of(KEYS, r0, j), d = channel_of(KEYS, side, g) + i;
                float sum = c[0][j][i];
                if (key >= keys || d >= DIM) continue;
                if (!finite) {
                    sum = 0;
                    for (int r = 0; r < rows; r++)
                        if (ds[r * KEYS + key] != 0 && u[r * WIDER(DIM) + d] != 0)
                            sum = fma_(ds[r * KEYS + key], u[r * WIDER(DIM) + d], sum);
                }
                part[key * DIM + d] = part[key * DIM + d] + sum;
            }
    }
}
DEV int whole_tile(struct block b, const struct span *q, struct row_tile t, int key0, int keys)
{
    return q->nq - t.row0 >= TILE_ROWS && keys == KEYS
        && all_visible(b, q, t.row0, TILE_ROWS, key0, keys);
}

DEV void backward_keys(struct block b)
{
    PRIVATE(struct keys_mine);
    const int tile = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads,
              group = b.p->heads / b.p->kv_heads;
    const struct span q = span_of(b, BY_KTILE, tile);
    const struct keys_room at = keys_room(DIM, VALUE_DIM, ROOMY);
    const int doubles = STATES && b.p->adds == ADDS_DOUBLES; /* of states */
    const int gates_alone = SCAN >= 0 && b.p->adds == ADDS_GATES; /* dk: of gates that calls give */
    const int apart = at.q != at.dout; /* rows of q and of dO have room side by side */
    const int tight = at.k == at.v;    /* and keys and values have not */
    const int gates = SCAN >= 0 ? USE(most(SCAN, 0)).gates : (int)GATES_OF_KEYS,
              gates_apart = gates != GATES_OF_KEYS, gates_of_values = gates == GATES_OF_VALUES;
    SHARED int *flag = (SHARED int *)b.room + at.flag;
    const int key0 = (tile - q.ktile) * KEYS, keys = least(q.nk - key0, KEYS);
    const struct rows_at k = view_rows(b.at.k, b.p->k, q.b, kvh, q.k0 + key0, K_TYPE, b.p->wide),
                         v = view_rows(b.at.v, b.p->v, q.b, kvh, q.k0 + key0, V_TYPE, b.p->wide),
                         dk = view_rows(b.at.dk, b.p->dk, q.b, kvh, q.k0 + key0, GPU_F32, 0),
                         dv = view_rows(b.at.dv, b.p->dv, q.b, kvh, q.k0 + key0, GPU_F32, 0);
    /* The gates of all heads are added to dv after the weights of all. */
    const int rounds = heads_by_tile(b) && gates_of_values && group > 1 ? 2 : 1;
    GLOBAL char *const dk_of_call = b.at.dk;
    struct row_tile t = before_rows(b, &q, kvh, rounds);
    int begun = MIXES; /* some item has been added */
    t = next_rows(b, &q, kvh, key0, keys, t);
    PHASE(tid)
        if (!tight) load_across(k, 0, keys, KEYS, DIM, 1.0f, tid, b.room + at.k);
        load_across(v, 0, keys, KEYS, VALUE_DIM, 1.0f, tid, b.room + at.v);
        clear_item(DIM, MINE.dk);
        clear_item(VALUE_DIM, MINE.dv);
        if (tid == 0) flag[0] = flag[1] = 1;
    END
    PHASE(tid)
        if (t.item >= 0)
            fetch_rows(b, &q, t, 1, whole_tile(b, &q, t, key0, keys), tid, b.room + at.dout, flag);
        COPIES_DONE
    END
    int touched = 0; /* some rows of the item have read the keys in a node of their block */
    while (t.item >= 0) {
        const int rows = least(q.nq - t.row0, TILE_ROWS),
                  whole = whole_tile(b, &q, t, key0, keys);
        const int64_t list = ((int64_t)q.b * b.p->heads + t.h) * b.p->q_len + q.q0 + t.row0;
        const struct row_tile next = next_rows(b, &q, kvh, key0, keys, t);
        const struct tile_pairs pairs = { b.room + at.ds, b.room + at.size, KEYS, 1, t.row0, key0,
                                           keys, whole };
        const struct grid lanes = grid_of(b.room + at.k, 1, KEYS),
                          others = grid_of(b.room + at.q, WIDER(DIM), 1);
        const struct tile_place by_keys = { t.h, t.row0, key0, 1 };
        const int own = GATED && owns_tile(b, &q, t.h, t.row0, rows, key0 / KEYS),
                  ends = next.item != t.item || ((GATED || gates_alone) && next.h != t.h);
        const int ways = REFLECTS ? ways_of(b, &q, t.h, t.row0, rows, key0 / KEYS) : 0,
                  several = ways != 1 << REFLECT_BLOCK, blocks = ways >> REFLECT_BLOCK & 1,
                  nodes = ways & ((1 << REFLECT_BLOCK) - (1 << REFLECT_NODE));
        const int weights_now = t.round == 0, gates_now = t.round == t.rounds - 1;
        b.at.dk = gates_now ? dk_of_call : NULL_AT;
        touched |= nodes;
        PHASE(tid)
            if (apart) fetch_rows(b, &q, t, 0, whole, tid, b.room + at.q, flag);
            if (GATED)
                load_across(staged_keys(b, &q, t.h), key0, keys, KEYS, DIM, 1.0f, tid,
                            b.room + at.k);
            if (STATES && group > 1) /* each head has rotated its keys */
                load_across(view_rows(b.at.k, b.p->k, q.b, t.h, q.k0 + key0, K_TYPE, b.p->wide), 0,
                            keys, KEYS, DIM, 1.0f, tid, b.room + at.k);
            if (tid < TILE_ROWS) {
                const float lse = tid < rows ? lse_of(b, list + tid) : 0.0f;
                b.room[at.lse + tid] = lse;
                b.room[at.delta + tid] =
                    tid < rows ? ((const GLOBAL float *)b.at.delta)[list + tid] : 0.0f;
                if (lse * 0.0f != 0.0f && !whole) *flag = 0;
            }
            product_values(b, &q, by_keys, KEYS, b.room + at.v, b.room + at.dout,
                           first_lane(KEYS, tid), place(KEYS, tid), MINE.p);
            COPIES_DONE
        END
        PHASE_IF(tid, !apart)
            fetch_rows(b, &q, t, 0, whole, tid, b.room + at.q, flag);
            if (tight) load_across(k, 0, keys, KEYS, DIM, 1.0f, tid, b.room + at.k);
            COPIES_DONE
        END_IF
        PHASE_IF(tid, FADES)
            if (!fade_rows(b, &q, t.row0, rows, key0 / KEYS, WIDER(DIM), tid, b.room + at.q)
                && !whole)
                *flag = 0;
        END_IF
        PHASE_IF(tid, GATED)
            if (!load_moved_rows(b, &q, t.h, rows_of_tile(b, &q, t, 0), t.row0, rows, TILE_ROWS,
                                 key0 / KEYS, 1.0f, -1, 0, tid, NULL_AT, others)
                && !whole)
                *flag = 0;
        END_IF
        if (REFLECTS) {
            int way = next_way(ways, REFLECT_OWN);
            PHASE(tid)
                if (!load_reflected_rows(b, &q, t.h, t.row0, rows, TILE_ROWS, key0 / KEYS, ALL_WAYS,
                                         tid, others)
                    && !whole && !several)
                    *flag = 0;
                if (tid == 0) flag[2] = 1;
            END
            do {
                const int go = way < WAYS && !MIXES;
                PHASE(tid)
                    if (go)
                        load_across(carried_keys(b, &q, kvh, way - REFLECT_NODE), key0, keys, KEYS,
                                    DIM, 1.0f, tid, b.room + at.k);
                END
                PHASE(tid)
                    if (go)
                        take_way(b, &q, t.h, t.row0, key0, way, 1, b.room + at.k, b.room + at.q,
                                 tid, MINE.s);
                END
                way = next_way(ways, way);
            } while (way < WAYS);
            PHASE(tid)
                if (ways >> REFLECT_OWN & 1 && !MIXES)
                    take_own(b, &q, t.h, t.row0, key0, keys, 1, tid, MINE.s);
            END
        }
        const struct tile_classes classes = classes_of(b, &q, t.row0, rows, key0, keys);
        int form = MIXES ? classes.most : classes.least;
        if (MAYBE(FORMS > 1)) do {
            PHASE(tid)
                if (FORMS > 1 && !MIXES) {
                    load_row_form(b, &q, t.h, t.row0, rows, TILE_ROWS, form, 0, WIDER(DIM), 1.0f,
                                  -1, tid, b.room + at.q);
                    load_key_form(b, &q, kvh, key0, keys, form, 1, tid, b.room + at.k);
                }
            END
            PHASE(tid)
                if (FORMS > 1 && !MIXES)
                    take_class(b, &q, t.h, t.row0, key0, form, form == classes.least, 1,
                               b.room + at.k, b.room + at.q, tid, MINE.s);
            END
        } while (++form <= classes.most && FORMS > 1);
        if (GATED && !MIXES) {
            int level = own ? OLDER_TILE : NEWEST_KEY;
            do {
                PHASE(tid)
                    if (own) load_level_keys(b, &q, t.h, key0, keys, level, 0, tid, lanes);
                END
                PHASE(tid)
                    if (own)
                        load_level_rows(b, &q, t.h, t.row0, rows, TILE_ROWS, key0, level, 1.0f, -1,
                                        tid, lanes, others);
                END
                PHASE(tid)
                    if (own)
                        take_class(b, &q, t.h, t.row0, key0, level, level == OLDER_TILE, 1,
                                   b.room + at.k, b.room + at.q, tid, MINE.s);
                END
            } while (++level <= NEWEST_KEY);
        }
        if (SCAN >= 0) b = with_scan(b, at.size + (STICK ? STICK_ROOM : 0), t.row0, key0, 0, KEYS);
        PHASE_IF(tid, SCAN >= 0 && !MIXES)
            product(KEYS, b.room + at.k, b.room + at.q, WIDER(DIM), FOURS(DIM),
                    first_lane(KEYS, tid), place(KEYS, tid), MINE.s);
            store_tile(KEYS, gates_apart ? b.room + at.ds : scan_at(b, SCAN_GATE, t.row0, key0),
                       first_lane(KEYS, tid), place(KEYS, tid), MINE.s);
        END_IF
        if (SCAN >= 0 && !MIXES)
            logits_of_keys(b, &q, kvh, t.row0, key0, keys, gates_apart, b.room + at.k,
                           b.room + at.q);
        PHASE_IF(tid, SCAN >= 0 && !MIXES)
            count_gates(b, &q, t.h, t.row0, rows, key0, keys, whole,
                        gates_apart ? b.room + at.ds : NULL_AT, tid);
            if (gates_apart) load_across(k, 0, keys, KEYS, DIM, 1.0f, tid, b.room + at.k);
        END_IF
        PHASE(tid)
            float s[PAIR_OTHERS][8];
            const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
            const int made = FORMS > 1 || SCAN >= 0 || own || MIXES
                          || REFLECTS; /* scores are in MINE.s */
            if (MIXES) {
                load_pairs(b, MIX.mixed, &q, t.h, t.row0, key0, r0, side, 1, MINE.p);
                load_pairs(b, MIX.scores, &q, t.h, t.row0, key0, r0, side, 1, MINE.s);
            }
            if (!made)
                product(KEYS, b.room + at.k, b.room + at.q, WIDER(DIM), FOURS(DIM), r0, side, s);
            for (int i = 0; made && i < OTHERS(KEYS) * 8; i++)
                s[i / 8][i % 8] = MINE.s[i / 8][i % 8];
            for (int i = 0; STICK && !made && i < OTHERS(KEYS) * 8; i++)
                MINE.s[i / 8][i % 8] = s[i / 8][i % 8];
            if (STICK && !MIXES) {
                open_stick_pairs(b, &q, t.h, pairs, tid, s, MINE.p);
            } else {
                if (!MIXES) grade_pairs(b, at, &q, t, key0, whole, tid, MINE.p, s);
                if (apart) store_tile(KEYS, b.room + at.p, r0, side, MINE.p);
                store_tile(KEYS, b.room + at.ds, r0, side, s);
            }
        END
        PHASE_IF(tid, STICK && !MIXES)
            for (int r = tid; r < rows; r += THREADS)
                stick_back(b, &q, t.h, t.row0, rows, r, key0, keys, pairs.z + r * KEYS,
                           pairs.dp + r * KEYS, pairs.dp + (TILE_ROWS + r) * KEYS, 1,
                           *stick_at(b, STICK_OLDER, key0 / KEYS, &q, t.h, t.row0 + r));
        END_IF
        PHASE_IF(tid, STICK && !MIXES)
            float ds[PAIR_OTHERS][8];
            const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
            close_stick_pairs(b, &q, t.h, pairs, tid, MINE.p, ds);
            pair_terms_back(b, &q, t.h, pairs, USES, SCAN + 1, tid, MINE.s, ds);
            if (apart) store_tile(KEYS, b.room + at.p, r0, side, MINE.p);
            store_tile(KEYS, b.room + at.ds, r0, side, ds);
        END_IF
        PHASE_IF(tid, SCAN >= 0 && !MIXES)
            for (int r = tid; r < rows; r += THREADS)
                scan_back(b, &q, t.h, t.row0 + r, key0, keys, b.room + at.ds + r * KEYS, 1, 0,
                          *carry_at(b, SCAN_OLDER, key0 / KEYS, &q, t.h, t.row0 + r));
        END_IF
        PHASE_IF(tid, SCAN >= 0 && !MIXES)
            float ds[PAIR_OTHERS][8];
            const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
            UNROLL for (int i = 0; i < OTHERS(KEYS); i++)
                UNROLL for (int j = 0; j < 8; j++)
                    ds[i][j] = pairs.z[other_of(KEYS, side, i) * KEYS + lane_of(KEYS, r0, j)];
            pair_terms_back(b, &q, t.h, pairs, SCAN + 1, 0, tid, MINE.s, ds);
            store_tile(KEYS, b.room + at.ds, r0, side, ds);
        END_IF
        PHASE_IF(tid, VECTORS)
            if (b.at.dk)
                add_key_vectors(b, &q, t.h, t.row0, rows, key0,
                                keys_of(b, &q, t.row0, rows).last, b.room + at.ds, tid, MINE.dk);
        END_IF
        PHASE_IF(tid, SCAN >= 0)
            float ds[PAIR_OTHERS][8];
            const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
            if (MIXES) load_pairs(b, MIX.gradients, &q, t.h, t.row0, key0, r0, side, 1, ds);
            if (MIXES) store_tile(KEYS, scan_at(b, SCAN_GATE, t.row0, key0), r0, side, ds);
        END_IF
        PHASE_IF(tid, SCAN >= 0)
            if (!gates_apart) add_logits(b, tid, b.room + at.ds);
        END_IF
        PHASE_IF(tid, GATED)
            if (own) fetch_rows(b, &q, t, 0, 0, tid, b.room + at.q, flag);
        END_IF
        if (GATED) {
            const int go = own && b.at.dk;
            int level = go ? FIRST_LEVEL : NEWEST_KEY;
            do {
                PHASE(tid)
                    if (go) load_level_keys(b, &q, t.h, key0, keys, level, 1, tid, lanes);
                END
                PHASE(tid)
                    if (go)
                        add_level_keys(b, &q, t.h, t.row0, rows, key0, keys, level, b.room + at.k,
                                       b.room + at.ds, b.room + at.q, WIDER(DIM), tid);
                END
            } while (++level <= NEWEST_KEY);
        }
        PHASE_IF(tid, GATED)
            if (own) {
                clear_own_rows(b, &q, t.h, t.row0, key0, tid, b.room + at.ds);
                load_moved_rows(b, &q, t.h, rows_of_tile(b, &q, t, 0), t.row0, rows, TILE_ROWS,
                                key0 / KEYS, 1.0f, -1, 0, tid, NULL_AT, others);
            }
        END_IF
        if (REFLECTS) {
            int way = b.at.dk ? next_way(nodes, REFLECT_OWN) : (int)WAYS;
            do {
                const int go = way < WAYS;
                PHASE(tid)
                    if (go
                        && (!load_reflected_rows(b, &q, t.h, t.row0, rows, TILE_ROWS, key0 / KEYS,
                                                 way, tid, others)
                            || !finite_pairs(b.room + at.ds, tid)))
                        flag[2] = 0;
                END
                PHASE(tid)
                    if (go)
                        add_node_keys(b, &q, kvh, way - REFLECT_NODE, key0, keys, rows, flag[2],
                                      b.room + at.ds, b.room + at.q, tid);
                END
                way = next_way(nodes, way);
            } while (way < WAYS);
            PHASE(tid)
                if (several && blocks) {
                    clear_other_ways(b, &q, t.h, t.row0, key0, 0, tid, b.room + at.ds);
                    if (!load_reflected_rows(b, &q, t.h, t.row0, rows, TILE_ROWS, key0 / KEYS,
                                             REFLECT_BLOCK, tid, others)
                        && !whole)
                        *flag = 0;
                }
            END
        }
        PHASE_IF(tid, !apart)
            if (b.at.dk && !gates_alone && (!REFLECTS || blocks))
                add_rows(b, &q, t.h, t.row0, rows, key0, *flag, b.room + at.ds, b.room + at.q,
                         WIDER(DIM), DIM, tid, MINE.dk);
        END_IF
        PHASE_IF(tid, !apart)
            fetch_rows(b, &q, t, 1, whole, tid, b.room + at.dout, flag);
            store_tile(KEYS, b.room + at.p, first_lane(KEYS, tid), place(KEYS, tid), MINE.p);
            COPIES_DONE
        END_IF
        PHASE(tid)
            if (b.at.dv && weights_now)
                add_rows(b, &q, t.h, t.row0, rows, key0, *flag, b.room + at.p, b.room + at.dout,
                         WIDER(VALUE_DIM), VALUE_DIM, tid, MINE.dv);
        END
        PHASE_IF(tid, SCAN >= 0 && !apart)
            if (gates_apart) fetch_rows(b, &q, t, 0, whole, tid, b.room + at.q, flag);
            COPIES_DONE
        END_IF
        PHASE_IF(tid, SCAN >= 0)
            const SHARED float *logits = scan_at(b, SCAN_GATE, t.row0, key0);
            if (gates_of_values && b.at.dv && gates_now)
                add_rows(b, &q, t.h, t.row0, rows, key0, *flag, logits, b.room + at.q, WIDER(DIM),
                         DIM, tid, MINE.dv);
            if (gates_alone)
                add_rows(b, &q, t.h, t.row0, rows, key0, *flag, logits, b.room + at.q, WIDER(DIM),
                         DIM, tid, MINE.dk);
        END_IF
        form = classes.least;
        if (MAYBE(FORMS > 1)) do {
            const int go =
                FORMS > 1 && b.at.dk && (TURN.key_forms > 1 ? form : 0) == b.p->form;
            PHASE(tid)
                if (go) {
                    load_row_form(b, &q, t.h, t.row0, rows, TILE_ROWS, form, 0, WIDER(DIM), 1.0f,
                                  -1, tid, b.room + at.q);
                    mask_class(b, &q, t.h, t.row0, key0, form, 0, tid, b.room + at.ds,
                               b.room + at.p);
                }
            END
            PHASE(tid)
                if (go)
                    add_rows(b, &q, t.h, t.row0, rows, key0, *flag, b.room + at.p, b.room + at.q,
                             WIDER(DIM), DIM, tid, MINE.dk);
            END
        } while (++form <= classes.most && FORMS > 1);
        PHASE(tid)
            if (next.item >= 0 && apart)
                fetch_rows(b, &q, next, 1, whole_tile(b, &q, next, key0, keys), tid,
                           b.room + at.dout, flag + 1);
            if (b.at.dk && apart && !gates_alone && FORMS < 2 && (!REFLECTS || blocks))
                add_rows(b, &q, t.h, t.row0, rows, key0, *flag, b.room + at.ds, b.room + at.q,
                         WIDER(DIM), DIM, tid, MINE.dk);
            if (ends && GATED && b.at.dk) {
                add_item(b.at.apart + USE(0).staged_gradients,
                         gated_rows(b, USE(0).staged_gradients, &q, t.h, key0), keys, DIM, 0, 0,
                         tid, MINE.dk);
                join_gate_parts(b, &q, t.h, key0, keys, tid);
            }
            if (ends) {
                if (b.at.dk && !GATED)
                    add_item(b.at.dk, dk, keys, DIM, !begun, gates_alone, tid, MINE.dk);
                clear_item(DIM, MINE.dk);
            }
            if (REFLECTS && ends && b.at.dk && touched)
                join_tile_parts(b, &q, kvh, 0, NODE_LEVELS, key0, keys, tid);
            if (next.item != t.item) {
                if (b.at.dv)
                    add_item(b.at.dv, dv, keys, VALUE_DIM, !begun, doubles, tid, MINE.dv);
                clear_item(VALUE_DIM, MINE.dv);
            }
            COPIES_DONE
        END
        PHASE(tid) /* what the next rows of dO are like */
            if (tid == 0) {
                flag[0] = flag[1];
                flag[1] = 1;
            }
        END
        PHASE_IF(tid, !apart)
            if (next.item >= 0)
                fetch_rows(b, &q, next, 1, whole_tile(b, &q, next, key0, keys), tid,
                           b.room + at.dout, flag);
            if (tight && next.item >= 0)
                load_across(v, 0, keys, KEYS, VALUE_DIM, 1.0f, tid, b.room + at.v);
            COPIES_DONE
        END_IF
        begun |= next.item != t.item;
        if (ends) touched = 0;
        t = next;
    }
    b.at.dk = dk_of_call;
    PHASE(tid)
        /* no row sees these keys */
        if (b.at.dk && !begun && !GATED)
            add_item(b.at.dk, dk, keys, DIM, 1, gates_alone, tid, MINE.dk);
        if (b.at.dv && !begun)
            add_item(b.at.dv, dv, keys, VALUE_DIM, 1, doubles, tid, MINE.dv);
    END
}

/* ---- dq, and what is learned ----------------------------------------------------------------- */

struct rows_mine {
    float dq[PAIR_GROUPS][8][4], s[PAIR_OTHERS][8], ds[PAIR_OTHERS][8];
    double older; /* sba: the sum of h over older keys */
    float before; /* scan: the gradient by the count, of older keys */
};

/* Learned numbers of a head that this tile of rows adds to, of a chunk: [tiles][H][chunks][parts].
 */
DEV GLOBAL float *part_of(struct block b, int tile, int h, int chunk)
{
    return (GLOBAL float *)b.at.parts
         + (((int64_t)tile * b.p->heads + h) * b.p->chunks + chunk) * PARTS;
}
/* Those of a use; no memory if nothing is learned. */
DEV GLOBAL float *part_of_use(struct block b, int tile, int h, int chunk, int u)
{
    return PARTS ? part_of(b, tile, h, chunk) + USE(u).part : NULL_AT;
}

/* affine: sums of ds |d| over keys behind and ahead, by row.  Tiles whose distances are exact
 * floats are summed from 0. */
DEV void add_slopes(struct block b, struct rows_room at, const struct span *q, int row0, int rows,
                    int key0, int keys, int r)
{
    const int64_t d0 = q->d0 + row0 - key0;
    const int near = q->run && d0 < (1 << 24) - 64 && d0 > -(1 << 24) + 64;
    SHARED float *sum = b.room + at.slopes + r;
    float behind = near ? 0.0f : sum[0], ahead = near ? 0.0f : sum[TILE_ROWS];
    for (int k = 0; k < keys && r < rows; k++) {
        const float d = (float)distance_of(b, q, row0 + r, key0 + k),
                    ds = b.room[at.s + k * 64 + r];
        behind = fma_(ds, max_(d, 0.0f), behind);
        ahead = fma_(ds, max_(0.0f - d, 0.0f), ahead);
    }
    sum[0] = near ? sum[0] + behind : behind;
    sum[TILE_ROWS] = near ? sum[TILE_ROWS] + ahead : ahead;
}
/* A learned number by its class or slope.  i: of the term's numbers of a head. */
struct learned {
    const GLOBAL struct distance_table *t;
    const GLOBAL int32_t *classes;
    int64_t d; /* of the first row and key */
    int slope; /* i is that of a slope, or -1 */
};
DEV struct learned learned_of(struct block b, int u, int64_t d, int i)
{
    struct learned l;
    l.t = distance_table_of(b, u);
    l.classes = l.t->classes ? (const GLOBAL int32_t *)((const GLOBAL char *)l.t + l.t->classes)
                             : (const GLOBAL int32_t *)0;
    l.d = d;
    l.slope = i - l.t->first < l.t->slopes && i >= l.t->first ? i - l.t->first : -1;
    return l;
}
DEV const GLOBAL float *slope_row(struct block b, const struct learned *l, int h)
{
    return distance_row(l->t, l->t->slope, l->slope * b.p->heads + h);
}
/* Sums of the tile's diagonals: number n is that of the pairs r - k = n - 63, in 16 buffers. */
DEV float diagonal(const SHARED float *ds, int keys, int n)
{
    float sum = 0;
    for (int j = 0; j < 16; j++) {
        float buffer = 0;
        for (int k = j; k < keys; k += 16) {
            const int r = n - 63 + k;
            if (r >= 0 && r < 64) buffer = buffer + ds[k * 64 + r];
        }
        sum = sum + buffer;
    }
    return sum;
}

#define LEARNS(u) (PARTS && USE(u).count)
/* Do terms go back one by one, because some sum what they learn of the tile? */
#define ONE_BY_ONE (PARTS || SCAN >= 0)

/* What a tile gives to number i of a term `distance`, from its sums by distance or, where positions
 * are not a run, pair by pair. */
DEV float given_pairwise(struct block b, const struct learned *l, const SHARED float *ds,
                         const struct span *q, int h, int row0, int rows, int key0, int keys,
                         int i, float sum)
{
    for (int k = 0; k < keys; k++)
        for (int r = 0; r < rows; r++) {
            const float g = ds[k * 64 + r];
            const int64_t n =
                clamp_distance(distance_of(b, q, row0 + r, key0 + k), l->t->lo, l->t->hi)
                - l->t->lo;
            if (g == 0) continue;
            if (l->classes && l->classes[n] == i) sum = sum + g;
            if (l->slope >= 0) sum = sum + g * slope_row(b, l, h)[n];
        }
    return sum;
}
DEV float given_by_class(const struct learned *l, const SHARED float *x, int64_t d, int i,
                         float sum)
{
    for (int n = 0; n < 127; n++)
        if (l->classes[clamp_distance(d - 63 + n, l->t->lo, l->t->hi) - l->t->lo] == i)
            sum = sum + x[n];
    return sum;
}
/* The gradients of a tile, in the order of src/terms/distance.c.  `on`: there are any.  Every
 * thread passes every barrier. */
DEV void add_distances(struct block b, struct rows_room at, const struct span *q, int tile, int h,
                       int chunk, int u, int row0, int rows, int key0, int keys, int on)
{
    const GLOBAL struct distance_table *t = distance_table_of(b, u);
    const int64_t d = q->d0 + row0 - key0;
    GLOBAL float *to = part_of_use(b, tile, h, chunk, u);
    SHARED float *x = b.room + at.sums, *y = b.room + at.folds;
    const SHARED float *ds = b.room + at.s;
    const int count = on ? USE(u).count : 0, run = on && q->run;
    const int far = run && d - (keys - 1) >= t->hi, before = run && d + 63 <= t->lo,
              one = far || before, many = run && !one; /* distances of the table */
    const int slopes = many ? t->slopes : 0;
    PHASE(tid)
        float sum = 0;
        for (int k = 0; k < keys && one && tid < 64; k++) sum = sum + ds[k * 64 + tid];
        if (many && tid < 127) sum = diagonal(ds, keys, tid);
        if (tid < 128) x[tid] = sum;
    END
    int upper = 32, slope = 0;
    do {
        PHASE(tid)
            if (one && tid < upper) x[tid] = x[tid] + x[tid + upper];
        END
    } while (upper /= 2);
    PHASE(tid)
        for (int i = tid; i < count; i += THREADS) {
            const struct learned l = learned_of(b, u, 0, i);
            const int64_t n = far ? t->hi - t->lo : 0;
            float sum = to[i];
            if (!run) sum = given_pairwise(b, &l, ds, q, h, row0, rows, key0, keys, i, sum);
            if (one && x[0] != 0 && l.classes && l.classes[n] == i) sum = sum + x[0];
            if (one && x[0] != 0 && l.slope >= 0) sum = sum + x[0] * slope_row(b, &l, h)[n];
            if (many && l.classes) sum = given_by_class(&l, x, d, i, sum);
            to[i] = sum;
        }
    END
    do {
        const int go = slope < slopes;
        PHASE(tid)
            if (go && tid < 128) {
                const GLOBAL float *row = distance_row(t, t->slope, slope * b.p->heads + h);
                const int64_t n = clamp_distance(d - 63 + least(tid, 126), t->lo, t->hi) - t->lo;
                y[tid] = tid == 127 || x[tid] == 0 ? 0.0f : x[tid] * row[n];
            }
        END
        upper = 64;
        do {
            PHASE(tid)
                if (go && tid < upper) y[tid] = y[tid] + y[tid + upper];
            END
        } while (upper /= 2);
        PHASE(tid)
            if (go && tid == 0) to[t->first + slope] = to[t->first + slope] + y[0];
        END
    } while (++slope < slopes);
}

/* The chunk that rows without keys count in: the oldest one of their item. */
DEV int first_chunk(struct block b, const struct span *q, int row0)
{
    const int item = row0 / ITEM * ITEM;
    const struct keys_seen a = keys_of(b, q, item, least(q->nq - item, ITEM));
    return a.last < a.first ? 0 : a.first / CHUNK;
}

/* Keys of a tile; where some pair is hidden, the flag falls if a number is not finite. */
DEV void fetch_keys(struct rows_at k, int key0, int n, int whole, int width, int tid,
                    struct block b, struct rows_room at)
{
    if (whole) copy_rows(k, key0, n, KEYS, width, WIDER(width), tid, b.room + at.k);
    else if (!load_rows(k, key0, n, KEYS, width, WIDER(width), tid, b.room + at.k))
        ((SHARED int *)b.room)[at.flag] = 0;
}

/* dq of a block of tiles that share a reference fades and joins the sums in memory. */
DEV void unfade_rows(struct block b, const struct span *q, int row0, int rows, int tile,
                     struct rows_at dq, int tid, float (*part)[8][4])
{
    const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
    UNROLL for (int g = 0; g < GROUPS(TILE_ROWS, DIM); g++)
        UNROLL for (int j = 0; j < 8; j++)
            UNROLL for (int i = 0; i < 4; i++) {
                const int r = lane_of(TILE_ROWS, r0, j), d = channel_of(TILE_ROWS, side, g) + i;
                GLOBAL float *to = (GLOBAL float *)b.at.dq + dq.first + r * dq.row + d;
                if (b.at.dq && r < rows && d < DIM)
                    *to = *to + part[g][j][i] * fade_row(b, q, row0 + r, tile, d);
            }
    clear_item(DIM, part);
}

/* path: dq of rows goes to shared memory, [channel][row], while it moves over keys. */
DEV void store_gradients(struct block b, int tid, float (*part)[8][4], SHARED float *to)
{
    const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
    UNROLL for (int g = 0; g < GROUPS(TILE_ROWS, DIM); g++)
        UNROLL for (int j = 0; j < 8; j++)
            UNROLL for (int i = 0; i < 4; i++) {
                const int d = channel_of(TILE_ROWS, side, g) + i;
                if (d < DIM) to[d * TILE_ROWS + lane_of(TILE_ROWS, r0, j)] = part[g][j][i];
            }
}
/* Rows that own the tile come back. */
DEV void load_own_gradients(struct block b, const struct span *q, int h, int row0, int tile,
                            int tid, const SHARED float *from, float (*part)[8][4])
{
    const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
    UNROLL for (int j = 0; j < 8; j++) {
        const int r = lane_of(TILE_ROWS, r0, j),
                  own = way_of(b, q, h, row0 + r, tile) == REFLECT_OWN;
        UNROLL for (int g = 0; g < GROUPS(TILE_ROWS, DIM); g++)
            UNROLL for (int i = 0; i < 4; i++) {
                const int d = channel_of(TILE_ROWS, side, g) + i;
                if (own && d < DIM) part[g][j][i] = from[d * TILE_ROWS + r];
            }
    }
}
/* The gradients of rows of some ways, at the start of a node or of their own tile, for
 * kernels/reflection_sums.h.  Which rows have one that is not 0? */
DEV void keep_gradients(struct block b, const struct span *q, int h, int row0, int rows, int tile,
                        int ways, int tid, struct walk_room walk)
{
    for (int i = tid; i < rows * DIM; i += THREADS) {
        const int r = i / DIM, d = i % DIM, way = way_of(b, q, h, row0 + r, tile);
        if (way < REFLECT_OWN || !(ways >> way & 1)) continue;
        gated_row(b, USE(0).returned,
                  way == REFLECT_OWN ? USE(0).nodes : list_of_way(way, tile), q, h, row0 + r)[d] =
            walk.next[d * TILE_ROWS + r];
    }
    for (int r = tid; r < TILE_ROWS; r += THREADS) {
        int any = 0;
        for (int d = 0; d < DIM; d++) any |= walk.next[d * TILE_ROWS + r] != 0;
        walk.floor[r] = (float)any;
    }
}
/* From the start of a node to its end, for rows of a way: chains over the rows of its matrix, those
 * from m0 on. */
DEV void return_over_node(struct block b, const struct span *q, int h, int row0, int tile, int way,
                          int m0, const SHARED float *matrix, struct walk_room walk, int tid,
                          float (*part)[8][4])
{
    const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
    const int n = least(DIM - m0, KEYS);
    UNROLL for (int g = 0; g < GROUPS(TILE_ROWS, DIM); g++) {
        float c[8][4];
        const int d = channel_of(TILE_ROWS, side, g);
        UNROLL for (int j = 0; j < 8; j++)
            UNROLL for (int i = 0; i < 4; i++) c[j][i] = m0 ? part[g][j][i] : 0.0f;
        for (int m = 0; m < n && d < DIM; m++) {
            float y[8];
            const four x = load_four(matrix + m * WIDER(DIM) + d);
            load_lanes(walk.next + (m0 + m) * TILE_ROWS + r0, HALF(TILE_ROWS), y);
            UNROLL for (int j = 0; j < 8; j++) {
                c[j][0] = fma_(x.x, y[j], c[j][0]);
                c[j][1] = fma_(x.y, y[j], c[j][1]);
                c[j][2] = fma_(x.z, y[j], c[j][2]);
                c[j][3] = fma_(x.w, y[j], c[j][3]);
            }
        }
        UNROLL for (int j = 0; j < 8; j++) {
            const int r = lane_of(TILE_ROWS, r0, j), mine = way_of(b, q, h, row0 + r, tile) == way;
            UNROLL for (int i = 0; i < 4; i++)
                if (mine) part[g][j][i] = walk.floor[r] == 0 ? 0.0f : c[j][i];
        }
    }
}
/* Rows of a way and the keys of their node.  What is not finite does not reach rows that have a
 * factor of 0 for it. */
DEV void add_node_rows(struct block b, const struct span *q, int h, int row0, int tile, int way,
                       int n, int finite, const SHARED float *keys, const SHARED float *ds, int tid,
                       float (*part)[8][4])
{
    const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
    UNROLL for (int g = 0; g < GROUPS(TILE_ROWS, DIM); g++) {
        float c[1][8][4];
        sums(TILE_ROWS, 1, g, DIM, ds, keys, WIDER(DIM), n, r0, side, c);
        for (int j = 0; !finite && j < 8; j++)
            for (int i = 0; i < 4; i++) {
                const int r = lane_of(TILE_ROWS, r0, j), d = channel_of(TILE_ROWS, side, g) + i;
                float sum = 0;
                for (int k = 0; k < n && d < DIM; k++)
                    if (ds[k * TILE_ROWS + r] != 0)
                        sum = fma_(keys[k * WIDER(DIM) + d], ds[k * TILE_ROWS + r], sum);
                c[0][j][i] = sum;
            }
        UNROLL for (int j = 0; j < 8; j++) {
            const int mine = way_of(b, q, h, row0 + lane_of(TILE_ROWS, r0, j), tile) == way;
            UNROLL for (int i = 0; i < 4; i++)
                if (mine) part[g][j][i] = part[g][j][i] + c[0][j][i];
        }
    }
}
/* Products of gradients of rows with w of FEW keys of their own tile. */
DEV void turn_dots(struct block b, const struct span *q, int h, int kvh, int row0, int key0,
                   int first, int n, struct walk_room walk, int tid)
{
    const GLOBAL float *w = reflect_w(b, q, kvh) + (int64_t)(key0 + first) * DIM;
    for (int i = tid; i < FEW * TILE_ROWS; i += THREADS) {
        const int j = i / TILE_ROWS, r = i % TILE_ROWS;
        float y = 0;
        if (first + j >= n || way_of(b, q, h, row0 + r, key0 / KEYS) != REFLECT_OWN) continue;
        for (int d = 0; d < DIM; d++) y = fma_(w[j * DIM + d], walk.next[d * TILE_ROWS + r], y);
        walk.dots[i] = y;
    }
}
/* The thread of a row: what each of the FEW keys gives to its gradient.  ds: [key][row]. */
DEV void turn_few(struct block b, const struct span *q, int h, int kvh, int row0, int key0,
                  int first, int n, const SHARED float *ds, struct walk_room walk, int row)
{
    const GLOBAL float *by = few_of(b, q, kvh) + (int64_t)(key0 + first) * 2 * FEW,
                       *beta = reflect_beta(b, q, kvh) + key0 + first;
    const GLOBAL double *turns =
        doubles_by_key(b, USE(0).tile_turns, q, kvh, FEW) + (int64_t)(key0 + first) * FEW;
    const int all = least(n - first, FEW), newest = newest_of(b, q, h, row0 + row) - key0 - first;
    if (way_of(b, q, h, row0 + row, key0 / KEYS) != REFLECT_OWN) return;
    for (int j = 0; j < all; j++) {
        float sum = 0;
        for (int m = 0; m < all; m++) {
            const float g = ds[(first + m) * TILE_ROWS + row];
            if (g != 0) sum = fma_(by[m * 2 * FEW + j], g, sum);
        }
        sum = walk.dots[j * TILE_ROWS + row] + sum;
        walk.dots[j * TILE_ROWS + row] = j <= newest ? sum : 0.0f;
    }
    for (int j = 0; j < all; j++) {
        float turn = 0;
        for (int m = 0; m < all; m++)
            turn = fma_((float)turns[j * FEW + m], walk.dots[m * TILE_ROWS + row], turn);
        const float back = j <= newest ? -beta[j] * turn : 0.0f;
        walk.parts[j * TILE_ROWS + row] = back;
        own_numbers(b, OWN_GRADIENT, q, h, row0 + row)[first + j] =
            ds[(first + j) * TILE_ROWS + row];
        own_numbers(b, OWN_TURN, q, h, row0 + row)[first + j] = j <= newest ? turn : 0.0f;
        own_numbers(b, OWN_BACK, q, h, row0 + row)[first + j] = back;
    }
}
/* The gradients of rows behind the FEW keys. */
DEV void return_few(struct block b, const struct span *q, int h, int kvh, int row0, int key0,
                    int first, int n, const SHARED float *ds, struct walk_room walk, int tid)
{
    const GLOBAL float *w = reflect_w(b, q, kvh) + (int64_t)(key0 + first) * DIM;
    const struct rows_at k = key_rows(b, q, kvh);
    for (int i = tid; i < DIM * TILE_ROWS; i += THREADS) {
        const int d = i / TILE_ROWS, r = i % TILE_ROWS;
        float sum = 0, a = walk.next[i];
        if (way_of(b, q, h, row0 + r, key0 / KEYS) != REFLECT_OWN) continue;
        for (int j = 0; j < least(n - first, FEW); j++) {
            const float back = walk.parts[j * TILE_ROWS + r];
            if (back != 0) sum = fma_(w[j * DIM + d], back, sum);
        }
        a = a + sum;
        sum = 0;
        for (int j = 0; j < least(n - first, FEW); j++) {
            const float g = ds[(first + j) * TILE_ROWS + r];
            if (g != 0)
                sum = fma_(load_number(k.at, k.type, row_offset(k, key0 + first + j) + d), g, sum);
        }
        walk.next[i] = a + sum;
    }
}

/* Sums over the n keys of a tile times ds, for group g of a thread's channels.  Where keys are not
 * finite, over those that a row sees. */
DEV void sums_of_keys(struct block b, const struct span *q, int h, int row0, int key0, int n,
                      int finite, int g, const SHARED float *ds, const SHARED float *keys, int r0,
                      int side, float (*c)[8][4])
{
    sums(TILE_ROWS, 1, g, DIM, ds, keys, WIDER(DIM), n, r0, side, c);
    for (int j = 0; !finite && j < 8; j++) {
        const int r = lane_of(TILE_ROWS, r0, j);
        for (int i = 0; i < 4; i++) {
            const int d = channel_of(TILE_ROWS, side, g) + i;
            float sum = 0;
            for (int k = 0; k < n && d < DIM; k++)
                if (sees(b, q, h, row0 + r, key0 + k))
                    sum = fma_(keys[k * WIDER(DIM) + d], ds[k * TILE_ROWS + r], sum);
            c[0][j][i] = sum;
        }
    }
}

/* dO as lanes; without one it is 0. */
DEV void load_cotangents(struct block b, struct rows_at dout, int rows, int tid, SHARED float *to)
{
    if (b.at.dout) {
        load_across(dout, 0, rows, TILE_ROWS, VALUE_DIM, 1.0f, tid, to);
        return;
    }
    for (int i = tid; i < FOURS(VALUE_DIM) * TILE_ROWS; i += THREADS) to[i] = 0;
}

DEV void backward_rows(struct block b)
{
    PRIVATE(struct rows_mine);
    const int tile = b.p->tiles - 1 - b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const struct rows_room at = rows_room(DIM, VALUE_DIM, ROOMY);
    const int row0 = (tile - q.tile) * TILE_ROWS, rows = least(q.nq - row0, TILE_ROWS);
    const int kvh = h / (b.p->heads / b.p->kv_heads);
    const struct rows_at
        rows_q = view_rows(b.at.q, b.p->q, q.b, h, q.q0 + row0, Q_TYPE, b.p->wide),
        rows_dout = view_rows(b.at.dout, b.p->dout, q.b, h, q.q0 + row0, O_TYPE, b.p->wide),
        rows_k = GATED      ? staged_keys(b, &q, h)
               : REFLECTS ? carried_keys(b, &q, kvh, NODE_LEVELS)
                          : view_rows(b.at.k, b.p->k, q.b, kvh, q.k0, K_TYPE, b.p->wide),
        rows_v = view_rows(b.at.v, b.p->v, q.b, kvh, q.k0, V_TYPE, b.p->wide),
        dq = view_rows(b.at.dq, b.p->dq, q.b, h, q.q0 + row0, GPU_F32, 0);
    const int64_t list = ((int64_t)q.b * b.p->heads + h) * b.p->q_len + q.q0 + row0;
    const GLOBAL float *factor = b.p->q_factor < 0
                                   ? (const GLOBAL float *)0
                                   : (const GLOBAL float *)(b.at.lists + b.p->q_factor) + list;
    struct keys_seen seen = keys_of(b, &q, row0, rows);
    const int none = seen.last < seen.first;
    if (STICK && !MIXES && !none)
        seen.first = most(seen.first, KEYS * stick_oldest(b, &q, h, row0, rows, seen.first / KEYS,
                                                          seen.last / KEYS));
    const int oldest = none ? first_chunk(b, &q, row0) : seen.first / CHUNK,
              newest = none ? oldest : seen.last / CHUNK;
    const int oldest_tile = none ? 0 : seen.first / KEYS;
    const int apart = at.k != at.v;    /* keys and values have room side by side */
    const int tight = at.q == at.dout; /* and rows of q and of dO have not */
    const int gates_apart = SCAN >= 0 && USE(most(SCAN, 0)).gates != GATES_OF_KEYS;
    SHARED int *flag = (SHARED int *)b.room + at.flag;
    const int weights = VALUES && !MIXES && b.p->p_by_distance >= 0; /* vectors of values learn */
    const int again = MIXES && b.p->form > 0; /* gradients of scores have gone back to products */
    const int summing = PARTS && b.p->parts;  /* a launch for one form more makes dq alone */
    SHARED float *carry = b.room + at.size + (STICK ? STICK_ROOM : 0); /* of rows that move */
    const struct walk_room walk = walk_room_of(b, at.size + (STICK ? STICK_ROOM : 0));

    PHASE(tid)
        if (!tight) {
            load_across(rows_q, 0, rows, TILE_ROWS, DIM, 1.0f, tid, b.room + at.q);
            load_cotangents(b, rows_dout, rows, tid, b.room + at.dout);
        }
        if (tid < TILE_ROWS) {
            b.room[at.lse + tid] = tid < rows ? lse_of(b, list + tid) : 0.0f;
            b.room[at.delta + tid] =
                tid < rows ? ((const GLOBAL float *)b.at.delta)[list + tid] : 0.0f;
        }
        if (STICK && tid < rows)
            MINE.older = (double)((const GLOBAL float *)b.at.lse)[list + tid]
                       * (double)((const GLOBAL float *)b.at.delta)[list + tid];
        if (SCAN >= 0) MINE.before = 0;
        if (tid < TILE_ROWS)
            for (int i = 0; i < 4; i++) b.room[at.slopes + i * TILE_ROWS + tid] = 0;
        for (int i = tid; summing && !MIXES && i < b.p->chunks * PARTS; i += THREADS)
            part_of(b, tile, h, 0)[i] = 0;
        for (int i = tid; FADES && b.at.dq && i < rows * DIM; i += THREADS)
            ((GLOBAL float *)b.at.dq)[dq.first + i / DIM * dq.row + i % DIM] = 0;
        if (!none)
            copy_rows(rows_v, oldest_tile * KEYS, least(seen.last + 1 - oldest_tile * KEYS, KEYS),
                      KEYS, VALUE_DIM, WIDER(VALUE_DIM), tid, b.room + at.v);
        COPIES_DONE
    END
    for (int chunk = oldest; chunk <= newest; chunk++) {
        const int from = none ? 1 : most(seen.first / KEYS, chunk * (CHUNK / KEYS)),
                  to = none ? 0
                            : least(seen.last / KEYS, chunk * (CHUNK / KEYS) + CHUNK / KEYS - 1);
        PHASE(tid)
            if (!REFLECTS || chunk == oldest) clear_item(DIM, MINE.dq); /* or dq goes on */
        END
        for (int j = from; j <= to; j++) {
            const int key0 = j * KEYS, n = least(seen.last + 1 - key0, KEYS);
            const int whole = rows == TILE_ROWS && n == KEYS
                           && all_visible(b, &q, row0, rows, key0, n);
            const struct tile_pairs pairs = { b.room + at.s, b.room + at.size, TILE_ROWS, 0, row0,
                                               key0, n, whole };
            const struct grid lanes = grid_of(b.room + at.q, 1, TILE_ROWS),
                              others = grid_of(b.room + at.k, WIDER(DIM), 1);
            const struct tile_place by_rows = { h, row0, key0, 0 };
            const int own = GATED && owns_tile(b, &q, h, row0, rows, j);
            const int ways = REFLECTS ? ways_of(b, &q, h, row0, rows, j) : 0,
                      begun = REFLECTS ? nodes_begun(ways, j) : 0,
                      owned = ways >> REFLECT_OWN & 1, blocks = ways >> REFLECT_BLOCK & 1,
                      nodes = ways & ((1 << REFLECT_BLOCK) - (1 << REFLECT_NODE));
            PHASE(tid)
                if (tid < 4) flag[tid] = tid < 3;
                if (tight) load_cotangents(b, rows_dout, rows, tid, b.room + at.dout);
                if (FADES && (j == from || ends_block(b, j, 0)))
                    fade_lanes(b, &q, h, row0, rows, j, TILE_ROWS, 1.0f, -1, tid, b.room + at.q);
                if (GATED)
                    load_moved_rows(b, &q, h, rows_q, row0, rows, TILE_ROWS, j, 1.0f, -1, 0, tid,
                                    carry, lanes);
                if (REFLECTS)
                    load_reflected_rows(b, &q, h, row0, rows, TILE_ROWS, j, ALL_WAYS, tid, lanes);
            END
            PHASE(tid)
                if (apart && !REFLECTS) fetch_keys(rows_k, key0, n, whole, DIM, tid, b, at);
                product_values(b, &q, by_rows, TILE_ROWS, b.room + at.dout, b.room + at.v,
                               first_lane(TILE_ROWS, tid), place(TILE_ROWS, tid), MINE.ds);
                COPIES_DONE
            END
            PHASE_IF(tid, !apart && !REFLECTS)
                fetch_keys(rows_k, key0, n, whole, DIM, tid, b, at);
                if (tight) load_across(rows_q, 0, rows, TILE_ROWS, DIM, 1.0f, tid, b.room + at.q);
                COPIES_DONE
            END_IF
            if (REFLECTS) {
                int way = next_way(begun, REFLECT_OWN);
                PHASE(tid)
                    if (begun) store_gradients(b, tid, MINE.dq, carry);
                END
                PHASE(tid)
                    if (begun) keep_gradients(b, &q, h, row0, rows, j, begun, tid, walk);
                END
                do { /* back over the nodes that begin here */
                    const int go = way < WAYS;
                    int m0 = 0;
                    do {
                        PHASE(tid)
                            if (go)
                                load_rows(matrix_rows(b, &q, kvh, way, j), m0,
                                          least(DIM - m0, KEYS), KEYS, DIM, WIDER(DIM), tid,
                                          b.room + at.k);
                        END
                        PHASE(tid)
                            if (go)
                                return_over_node(b, &q, h, row0, j, way, m0, b.room + at.k, walk,
                                                 tid, MINE.dq);
                        END
                        m0 += KEYS;
                    } while (go && m0 < DIM);
                    way = next_way(begun, way);
                } while (way < WAYS);
                way = next_way(ways, REFLECT_OWN);
                do {
                    const int go = way < WAYS;
                    PHASE(tid)
                        if (go && way < REFLECT_BLOCK
                            && !load_rows(carried_keys(b, &q, kvh, way - REFLECT_NODE), key0, n,
                                          KEYS, DIM, WIDER(DIM), tid, b.room + at.k))
                            ((SHARED int *)b.room)[at.flag + 1] = 0;
                        if (way == REFLECT_BLOCK)
                            fetch_keys(rows_k, key0, n, whole, DIM, tid, b, at);
                        COPIES_DONE
                    END
                    PHASE(tid)
                        if (go)
                            take_way(b, &q, h, row0, key0, way, 0, b.room + at.q, b.room + at.k,
                                     tid, MINE.s);
                    END
                    way = next_way(ways, way);
                } while (way < WAYS);
                PHASE(tid)
                    if (owned) take_own(b, &q, h, row0, key0, n, 0, tid, MINE.s);
                END
            }
            const struct tile_classes classes = classes_of(b, &q, row0, rows, key0, n);
            int form = classes.least;
            if (MAYBE(FORMS > 1)) do {
                PHASE(tid)
                    if (FORMS > 1) {
                        load_row_form(b, &q, h, row0, rows, TILE_ROWS, form, 1, TILE_ROWS, 1.0f, -1,
                                      tid, b.room + at.q);
                        load_key_form(b, &q, kvh, key0, n, form, 0, tid, b.room + at.k);
                    }
                END
                PHASE(tid)
                    if (FORMS > 1)
                        take_class(b, &q, h, row0, key0, form, form == classes.least, 0,
                                   b.room + at.q, b.room + at.k, tid, MINE.s);
                END
            } while (++form <= classes.most && FORMS > 1);
            if (GATED) {
                int level = own ? OLDER_TILE : NEWEST_KEY;
                do {
                    PHASE(tid)
                        if (own) load_level_keys(b, &q, h, key0, n, level, 0, tid, others);
                    END
                    PHASE(tid)
                        if (own)
                            load_level_rows(b, &q, h, row0, rows, TILE_ROWS, key0, level, 1.0f, -1,
                                            tid, others, lanes);
                    END
                    PHASE(tid)
                        if (own)
                            take_class(b, &q, h, row0, key0, level, level == OLDER_TILE, 0,
                                       b.room + at.q, b.room + at.k, tid, MINE.s);
                    END
                } while (++level <= NEWEST_KEY);
            }
            if (SCAN >= 0)
                b = with_scan(b, at.size + (STICK ? STICK_ROOM : 0), row0, key0, 1, TILE_ROWS);
            PHASE_IF(tid, SCAN >= 0)
                product(TILE_ROWS, b.room + at.q, b.room + at.k, WIDER(DIM), FOURS(DIM),
                        first_lane(TILE_ROWS, tid), place(TILE_ROWS, tid), MINE.s);
                store_tile(TILE_ROWS,
                           gates_apart ? b.room + at.s : scan_at(b, SCAN_GATE, row0, key0),
                           first_lane(TILE_ROWS, tid), place(TILE_ROWS, tid), MINE.s);
            END_IF
            PHASE_IF(tid, SCAN >= 0)
                if (gates_apart
                    && !load_rows(gate_rows(b, &q, kvh), key0, n, KEYS, DIM, WIDER(DIM), tid,
                                  b.room + at.k)
                    && !whole)
                    flag[2] = 0;
                if (tid < rows
                    && *carry_at(b, SCAN_AT, j, &q, h, row0 + tid) < (float)(USE(SCAN).vectors - 1))
                    flag[3] = 1; /* gates of the tile count */
            END_IF
            PHASE_IF(tid, SCAN >= 0)
                float logits[PAIR_OTHERS][8];
                const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
                if (gates_apart) {
                    product(TILE_ROWS, b.room + at.q, b.room + at.k, WIDER(DIM), FOURS(DIM), r0,
                            side, logits);
                    store_tile(TILE_ROWS, scan_at(b, SCAN_GATE, row0, key0), r0, side, logits);
                }
            END_IF
            PHASE_IF(tid, SCAN >= 0)
                count_gates(b, &q, h, row0, rows, key0, n, whole,
                            gates_apart ? b.room + at.s : NULL_AT, tid);
            END_IF
            PHASE(tid)
                struct term_state state[MOST_USES];
                float weight[PAIR_OTHERS][8];
                const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
                open_terms(b, h, state);
                if (FORMS < 2 && SCAN < 0 && !own && !REFLECTS)
                    product(TILE_ROWS, b.room + at.q, b.room + at.k, WIDER(DIM), FOURS(DIM), r0,
                            side, MINE.s);
                if (STICK && !MIXES) open_stick_pairs(b, &q, h, pairs, tid, MINE.s, MINE.ds);
                if (MIXES)
                    load_pairs(b, ONE_BY_ONE && !again ? MIX.biases : MIX.scores, &q, h, row0, key0,
                               r0, side, 0, MINE.ds);
                UNROLL for (int j2 = 0; MIXES && !ONE_BY_ONE && !again && j2 < 8; j2++)
                    for (int i = 0; i < OTHERS(TILE_ROWS); i++) {
                        const int row = row0 + lane_of(TILE_ROWS, r0, j2),
                                  key = key0 + other_of(TILE_ROWS, side, i);
                        MINE.ds[i][j2] = sees(b, &q, h, row, key)
                                           ? terms_back(b, state, &q, h, row, key, MINE.s[i][j2],
                                                        MINE.ds[i][j2], MIX.first_add, 0)
                                           : 0.0f;
                    }
                UNROLL for (int j2 = 0; !STICK && !MIXES && j2 < 8; j2++) {
                    const int r = lane_of(TILE_ROWS, r0, j2), row = row0 + r;
                    const float lse = b.room[at.lse + r], delta = b.room[at.delta + r];
                    struct drop_row drop = { 0, 0 };
                    if (DROPOUT) drop = drop_row_of(b, &q, h, row);
                    UNROLL for (int i = 0; i < OTHERS(TILE_ROWS); i++) {
                        const int k = other_of(TILE_ROWS, side, i), key = key0 + k;
                        float ds = 0;
                        weight[i][j2] = 0;
                        if (k < n && (whole || sees(b, &q, h, row, key))) {
                            const float p =
                                pair_weight(b, state, &q, h, row, key, MINE.s[i][j2], lse);
                            float dp = MINE.ds[i][j2];
                            dp = with_vectors(b, &q, h, row, key, dp);
                            const float f = DROPOUT ? drop_factor(b, &q, drop, key) : 1.0f;
                            if (DROPOUT) dp = dp * f;
                            ds = p * (dp - delta);
                            weight[i][j2] = DROPOUT ? p * f : p;
                            if (MASK_KIND == 2 && b.at.dmask)
                                store_mask_gradient(b, &q, h, row, key, ds);
                            if (!ONE_BY_ONE)
                                ds = terms_back(b, state, &q, h, row, key, MINE.s[i][j2], ds, USES,
                                                0);
                        }
                        MINE.ds[i][j2] = ds;
                    }
                }
                if (weights && !STICK) store_tile(TILE_ROWS, b.room + at.s, r0, side, weight);
                else if (!ONE_BY_ONE && (!STICK || MIXES))
                    store_tile(TILE_ROWS, b.room + at.s, r0, side, MINE.ds);
            END
            PHASE_IF(tid, STICK && !MIXES)
                if (tid < rows) {
                    GLOBAL float *older = stick_at(b, STICK_OLDER, j, &q, h, row0 + tid);
                    *older = *stick_at(b, STICK_BEGUN, j, &q, h, row0 + tid) == 0
                               ? 0.0f
                               : (float)MINE.older;
                    MINE.older += (double)stick_back(
                        b, &q, h, row0, rows, tid, key0, n, pairs.z + tid, pairs.dp + tid,
                        pairs.dp + KEYS * TILE_ROWS + tid, TILE_ROWS, *older);
                }
            END_IF
            PHASE_IF(tid, STICK && !MIXES)
                float weight[PAIR_OTHERS][8];
                const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
                close_stick_pairs(b, &q, h, pairs, tid, weight, MINE.ds);
                if (weights && DROPOUT) store_tile(TILE_ROWS, pairs.z, r0, side, weight);
                for (int i = 0; MASK_KIND == 2 && b.at.dmask && i < OTHERS(TILE_ROWS) * 8; i++) {
                    const int row = row0 + lane_of(TILE_ROWS, r0, i % 8),
                              key = key0 + other_of(TILE_ROWS, side, i / 8);
                    if (sees(b, &q, h, row, key))
                        store_mask_gradient(b, &q, h, row, key, MINE.ds[i / 8][i % 8]);
                }
                if (!ONE_BY_ONE) {
                    pair_terms_back(b, &q, h, pairs, USES, 0, tid, MINE.s, MINE.ds);
                    if (!weights) store_tile(TILE_ROWS, b.room + at.s, r0, side, MINE.ds);
                }
            END_IF
            PHASE_IF(tid, weights) /* those of sticks are in place of scores */
                store_pairs(b, b.room + at.s, 1, &q, h, row0, rows, key0, n, tid);
                if (tid < rows) add_ends(b, b.room + at.s, 1, &q, h, row0, tid, key0, n);
            END_IF
            PHASE_IF(tid, weights && !ONE_BY_ONE)
                store_tile(TILE_ROWS, b.room + at.s, first_lane(TILE_ROWS, tid),
                           place(TILE_ROWS, tid), MINE.ds);
            END_IF
            for (int u = USES - 1; ONE_BY_ONE && u >= -1; u--) {
                PHASE(tid)
                    struct term_state state[MOST_USES];
                    float g[PAIR_OTHERS][8];
                    const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
                    const int mixed = MIXES && u == MIX.first_add - 1; /* before the biases */
                    const int flat = MIXES && u >= MIX.first_add && mixes_by_distance(b, &q);
                    open_terms(b, h, state);
                    if (mixed)
                        load_pairs(b, MIX.scores, &q, h, row0, key0, r0, side, 0, MINE.ds);
                    for (int j2 = 0; j2 < 8; j2++)
                        for (int i = 0; i < OTHERS(TILE_ROWS); i++) {
                            const int row = row0 + lane_of(TILE_ROWS, r0, j2);
                            const int k = other_of(TILE_ROWS, side, i), key = key0 + k;
                            const int visible =
                                k < n && (whole || flat || sees(b, &q, h, row, key));
                            float ds = MINE.ds[i][j2];
                            if (visible && u + 1 < USES && !mixed && !again)
                                ds = terms_back(b, state, &q, h, row, key, MINE.s[i][j2], ds,
                                                u + 2, u + 1);
                            MINE.ds[i][j2] = visible ? ds : 0.0f;
                            g[i][j2] = visible ? ds : 0.0f;
                            if (visible && u >= 0 && USE(u).term == GPU_FACTOR)
                                g[i][j2] = ds == 0 ? 0.0f
                                                   : ds
                                                         * some_terms(b, state, &q, h, row, key,
                                                                      MINE.s[i][j2], 0, u);
                            if (visible && u >= 0 && USE(u).multiplies) {
                                const float size = ds < 0 ? -ds : ds;
                                g[i][j2] = (size <= 0x1p-60f ? 0.0f : ds)
                                         * some_terms(b, state, &q, h, row, key, MINE.s[i][j2], 0,
                                                      u);
                            }
                        }
                    store_tile(TILE_ROWS, b.room + at.s, r0, side, g);
                END
                PHASE_IF(tid, SCAN >= 0)
                    /* a loop, see PHASE_IF() */
                    for (int r = tid; u == SCAN && !again && r < rows; r += THREADS) {
                        *carry_at(b, SCAN_OLDER, j, &q, h, row0 + r) = MINE.before;
                        MINE.before = scan_back(b, &q, h, row0 + r, key0, n, b.room + at.s + r,
                                                TILE_ROWS, 1, MINE.before);
                    }
                END_IF
                const int learns = u >= 0 && summing && LEARNS(most(u, 0)) && !again,
                          affine = learns && USE(u).term == GPU_AFFINE,
                          distances = learns && USE(u).term == GPU_DISTANCE;
                PHASE(tid)
                    if (affine && tid < TILE_ROWS)
                        add_slopes(b, at, &q, row0, rows, key0, n, tid);
                END
                add_distances(b, at, &q, tile, h, chunk, most(u, 0), row0, rows, key0, n,
                              distances);
                add_row_sums(b, b.room + at.s, b.room + at.folds, &q,
                             part_of_use(b, tile, h, chunk, most(u, 0)), h, most(u, 0), row0, rows,
                             key0, n,
                             learns && !affine && !distances && USE(u).term < GPU_ROW_VECTORS);
            }
            PHASE_IF(tid, SCAN >= 0)
                const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
                UNROLL for (int g = 0; g < GROUPS(TILE_ROWS, DIM); g++) {
                    float c[1][8][4];
                    if (!gates_apart || !flag[3]) continue;
                    sums_of_keys(b, &q, h, row0, key0, n, flag[2], g,
                                 scan_at(b, SCAN_GATE, row0, key0), b.room + at.k, r0, side, c);
                    UNROLL for (int i = 0; i < 32; i++)
                        MINE.dq[g][i / 4][i % 4] = MINE.dq[g][i / 4][i % 4] + c[0][i / 4][i % 4];
                }
            END_IF
            PHASE_IF(tid, SCAN >= 0)
                if (gates_apart) fetch_keys(rows_k, key0, n, whole, DIM, tid, b, at);
                COPIES_DONE
            END_IF
            PHASE_IF(tid, MIXES) /* for the pass over keys */
                const SHARED float *logits = b.scan + (int)SCAN_GATE * KEYS * TILE_ROWS;
                for (int i = tid; !again && i < KEYS * TILE_ROWS; i += THREADS) {
                    mix_tile(b, MIX.scores, &q, h, row0, key0)[i] = b.room[at.s + i];
                    if (SCAN >= 0) mix_tile(b, MIX.gradients, &q, h, row0, key0)[i] = logits[i];
                }
            END_IF
            PHASE_IF(tid, VECTORS)
                store_pairs(b, b.room + at.s, 0, &q, h, row0, rows, key0, n, tid);
                if (tid < rows) add_ends(b, b.room + at.s, 0, &q, h, row0, tid, key0, n);
                if (tid < n)
                    b.room[at.sums + tid] =
                        sum_by_halves(b.room + at.s + tid * TILE_ROWS, 1) * b.p->scale;
            END_IF
            PHASE_IF(tid, VECTORS && PARTS)
                for (int u = 0; u < USES; u++)
                    for (int d = tid; d < DIM && q.run; d += THREADS)
                        if (USE(u).term == GPU_KEY_VECTORS && USE(u).count)
                            add_end_vectors(b, USE(u), b.room + at.sums, b.room + at.k, WIDER(DIM),
                                            q.d0 + row0 - key0, n, d,
                                            part_of_use(b, tile, h, chunk, u));
            END_IF
            PHASE_IF(tid, SCAN >= 0)
                if (!gates_apart) add_logits(b, tid, b.room + at.s);
            END_IF
            if (GATED) {
                const int go = own && b.at.dq;
                int level = go ? FIRST_LEVEL : NEWEST_KEY;
                do {
                    PHASE(tid)
                        if (go) load_level_keys(b, &q, h, key0, n, level, 0, tid, others);
                    END
                    PHASE(tid)
                        if (go)
                            add_level_rows(b, &q, h, row0, rows, key0, level, b.room + at.k,
                                           WIDER(DIM), b.room + at.s, tid, carry);
                    END
                } while (++level <= NEWEST_KEY);
            }
            PHASE_IF(tid, GATED)
                if (own) fetch_keys(rows_k, key0, n, whole, DIM, tid, b, at);
                COPIES_DONE
            END_IF
            if (REFLECTS) {
                int first = 0, way = next_way(nodes, REFLECT_OWN);
                PHASE(tid)
                    if (owned) store_gradients(b, tid, MINE.dq, carry);
                END
                PHASE(tid)
                    if (owned) keep_gradients(b, &q, h, row0, rows, j, 1 << REFLECT_OWN, tid, walk);
                END
                do { /* back over the keys of an own tile */
                    const int go = owned && first < n;
                    PHASE(tid)
                        if (go) turn_dots(b, &q, h, kvh, row0, key0, first, n, walk, tid);
                    END
                    PHASE(tid)
                        for (int r = tid; go && r < rows; r += THREADS)
                            turn_few(b, &q, h, kvh, row0, key0, first, n, b.room + at.s, walk, r);
                    END
                    PHASE(tid)
                        if (go)
                            return_few(b, &q, h, kvh, row0, key0, first, n, b.room + at.s, walk,
                                       tid);
                    END
                    first += FEW;
                } while (owned && first < n);
                PHASE(tid)
                    if (owned) load_own_gradients(b, &q, h, row0, j, tid, carry, MINE.dq);
                END
                do {
                    const int go = way < WAYS;
                    PHASE(tid)
                        if (go)
                            load_rows(carried_keys(b, &q, kvh, way - REFLECT_NODE), key0, n, KEYS,
                                      DIM, WIDER(DIM), tid, b.room + at.k);
                    END
                    PHASE(tid)
                        if (go)
                            add_node_rows(b, &q, h, row0, j, way, n,
                                          ((SHARED int *)b.room)[at.flag + 1], b.room + at.k,
                                          b.room + at.s, tid, MINE.dq);
                    END
                    way = next_way(nodes, way);
                } while (way < WAYS);
                PHASE(tid)
                    if (blocks && nodes) fetch_keys(rows_k, key0, n, whole, DIM, tid, b, at);
                    if (blocks && (nodes || owned))
                        clear_other_ways(b, &q, h, row0, key0, 1, tid, b.room + at.s);
                    COPIES_DONE
                END
            }
            PHASE_IF(tid, FORMS > 1) /* dq of one form */
                load_key_form(b, &q, kvh, key0, n, b.p->form, 0, tid, b.room + at.k);
                mask_class(b, &q, h, row0, key0, b.p->form, 1, tid, b.room + at.s, b.room + at.s);
            END_IF
            PHASE(tid)
                const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
                const int finite = ((SHARED int *)b.room)[at.flag];
                if (apart && j < seen.last / KEYS)
                    copy_rows(rows_v, key0 + KEYS, least(seen.last + 1 - key0 - KEYS, KEYS), KEYS,
                              VALUE_DIM, WIDER(VALUE_DIM), tid, b.room + at.v);
                UNROLL for (int g = 0; g < GROUPS(TILE_ROWS, DIM); g++) {
                    float c[1][8][4];
                    if (REFLECTS && !blocks) continue;
                    sums_of_keys(b, &q, h, row0, key0, n, finite, g, b.room + at.s, b.room + at.k,
                                 r0, side, c);
                    for (int j2 = 0; GATED && j2 < 8; j2++)
                        for (int i = 0; i < 4; i++) {
                            const int r = lane_of(TILE_ROWS, r0, j2),
                                      d = channel_of(TILE_ROWS, side, g) + i;
                            if (d < DIM)
                                c[0][j2][i] = moved_gradient(b, &q, h, row0 + r, j, c[0][j2][i],
                                                             carry[d * TILE_ROWS + r]);
                        }
                    /* 0 times a key that is not finite is no 0 */
                    for (int j2 = 0; REFLECTS && (nodes || owned) && j2 < 8; j2++)
                        if (way_of(b, &q, h, row0 + lane_of(TILE_ROWS, r0, j2), j) != REFLECT_BLOCK)
                            for (int i = 0; i < 4; i++) c[0][j2][i] = 0;
                    UNROLL for (int j2 = 0; j2 < 8; j2++)
                        UNROLL for (int i = 0; i < 4; i++)
                            MINE.dq[g][j2][i] = MINE.dq[g][j2][i] + c[0][j2][i];
                }
                COPIES_DONE
            END
            PHASE_IF(tid, FADES && (j == to || ends_block(b, j, 1)))
                unfade_rows(b, &q, row0, rows, j, dq, tid, MINE.dq);
            END_IF
            PHASE_IF(tid, !apart)
                if (j < seen.last / KEYS)
                    copy_rows(rows_v, key0 + KEYS, least(seen.last + 1 - key0 - KEYS, KEYS), KEYS,
                              VALUE_DIM, WIDER(VALUE_DIM), tid, b.room + at.v);
                COPIES_DONE
            END_IF
        }
        /* chunks add up in memory; the last one finishes the rows */
        PHASE(tid)
            const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
            int64_t first = dq.first;
            HERE(first);
            UNROLL for (int g = 0; g < GROUPS(TILE_ROWS, DIM); g++)
                UNROLL for (int j2 = 0; j2 < 8; j2++)
                    UNROLL for (int i = 0; i < 4; i++) {
                        const int r = lane_of(TILE_ROWS, r0, j2),
                                  d = channel_of(TILE_ROWS, side, g) + i;
                        if (!b.at.dq || r >= rows || d >= DIM) continue;
                        GLOBAL float *at_dq = (GLOBAL float *)b.at.dq + first + r * dq.row + d;
                        float all = MINE.dq[g][j2][i];
                        if (!REFLECTS) all = (chunk == oldest && !FADES ? 0.0f : *at_dq) + all;
                        if (GATED && chunk == newest)
                            gated_row(b, USE(0).row_gradients, 0, &q, h, row0 + r)[d] = all;
                        if (chunk == newest && factor && b.p->factor_part < 0)
                            all = all * factor[r];
                        if (chunk == newest && b.p->finish) all = all * b.p->scale;
                        *at_dq = all;
                    }
            if (tid < rows) join_row_sums(b, &q, h, row0 + tid);
            if (VECTORS) join_ds(b, &q, h, row0, rows, tid);
            if (SCAN >= 0) join_positions(b, &q, h, row0, rows, tid);
            if (tid < TILE_ROWS)
                for (int side2 = 0; side2 < 2; side2++) {
                    SHARED float *sum = b.room + at.slopes + side2 * TILE_ROWS + tid;
                    sum[2 * TILE_ROWS] = sum[2 * TILE_ROWS] + sum[0];
                    sum[0] = 0;
                }
        END
    }
    if (!summing || again) return;
    /* What is made when the rows are done. */
    PHASE(tid)
        GLOBAL float *part = part_of(b, tile, h, newest);
        for (int u = 0; u < USES; u++)
            if (LEARNS(u) && USE(u).term == GPU_AFFINE && tid < 2) {
                double sum = 0;
                for (int r = 0; r < rows; r++)
                    sum += (double)b.room[at.slopes + (2 + tid) * TILE_ROWS + r];
                part[USE(u).part + tid] = 0.0f - (float)sum;
            }
        for (int u = 0; u < USES; u++)
            if (LEARNS(u) && tid == 0)
                finish_row_sums(b, &q, part + USE(u).part, h, u, row0, rows);
        for (int n = tid; STICK && STICK_OF.part >= 0 && n < (STATES ? TURN.width : VALUE_DIM);
             n += THREADS) {
            float sum = 0; /* the vector is the heir of all rows */
            for (int r = 0; r < rows; r++)
                if (heir_of(b, q.b, q.q0 + row0 + r) >= 0)
                    sum = fma_(((const GLOBAL float *)b.at.lse)[list + r],
                               b.room[at.dout + n * TILE_ROWS + r], sum);
            part[STICK_OF.part + n] = sum;
        }
        if (HAS_SINK && b.p->sink_part >= 0 && tid == 0) {
            const float logit = ((const GLOBAL float *)(b.at.tables + b.p->sink))[h];
            const GLOBAL float *delta = (const GLOBAL float *)b.at.delta
                                      + (int64_t)b.p->batch * b.p->q_len * b.p->heads + list;
            double sum = 0;
            for (int r = 0; r < rows; r++)
                sum += (double)(exp_(logit - b.room[at.lse + r]) * delta[r]);
            part[b.p->sink_part] = 0.0f - (float)sum;
        }
    END
}

/* ---- Sums of what is learned ----------------------------------------------------------------- */

/* Number i of a head, over an item: its chunks from the oldest on, in double; in each the tiles of
 * rows, in float, of each n numbers, `apart` from each other. */
DEV double item_sum(struct block b, const struct span *q, int item, int h, int i, int n, int apart)
{
    const int row = item * ITEM, rows = least(q->nq - row, ITEM);
    const struct keys_seen seen = keys_of(b, q, row, rows);
    const int none = seen.last < seen.first, oldest = none ? 0 : seen.first / CHUNK,
              newest = none ? 0 : seen.last / CHUNK;
    double all = 0;
    for (int chunk = oldest; chunk <= newest; chunk++) {
        float part = 0;
        for (int r = 0; r < rows; r += TILE_ROWS) {
            const GLOBAL float *x = part_of(b, q->tile + (row + r) / TILE_ROWS, h, chunk) + i;
            for (int k = 0; k < n; k++) part = part + x[k * apart];
        }
        all = all + (double)part;
    }
    return all;
}
/* One thread per number of a head.  Items from the latest rows to the earliest. */
DEV void add_parts(struct block b)
{
    PHASE(tid)
        const int i = b.x / b.p->heads * THREADS + tid, h = b.x % b.p->heads,
                  factor = i - b.p->factor_part; /* of rows in each of their forms */
        const int forms =
            b.p->factor_part >= 0 && factor >= 0 && factor < FACTOR_PARTS ? FORMS : 1;
        double total = 0;
        for (int s = b.p->sequences - 1; s >= 0 && i < PARTS; s--) {
            const struct span q = span_at(b, s);
            for (int item = (q.nq + ITEM - 1) / ITEM - 1; item >= 0; item--)
                total += item_sum(b, &q, item, h, i, forms, FACTOR_PARTS);
        }
        if (i < PARTS) ((GLOBAL double *)b.at.totals)[(int64_t)h * PARTS + i] = total;
    END
}

#endif
