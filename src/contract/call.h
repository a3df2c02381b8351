/* SPDX-License-Identifier: MIT */
/* call.h -- a call as encodings and the engine see it: sequences, positions,
 * and where everything is. */
#ifndef LOCI_CONTRACT_CALL_H
#define LOCI_CONTRACT_CALL_H

#include "util/arena.h"
#include "util/limits.h"
#include "contract/plan.h"
#include "contract/stream.h"

/* Rows and keys that attend to each other alone: a whole batch entry, or one packed segment.
 * The tile grid starts at its first key, so a row has the same bits wherever its sequence lies.
 * run: positions are consecutive on both sides, so distance(key k, row r) = d0 + r - k. */
struct sequence {
    ptrdiff_t b, q0, nq, k0, nk;
    /* query rows, their tiles and chunks, and key tiles of all sequences before it; those that
     * have the same keys share their tiles */
    ptrdiff_t first_row, first_tile, first_chunk, first_ktile;
    ptrdiff_t keys;                      /* which sequence is the first one with these keys */
    int64_t d0;
    bool run;
    /* ids must be compared: segments here are no runs of neighbours */
    bool segments;
};

/* Where rows and keys are, as the caller says or as it is counted. */
struct where {
    const int64_t *lens, *firsts;        /* [B]: keys of an entry, position of its first key; NULL:
                                            Lk, and 0 */
    int64_t from;                        /* position of key 0 where firsts is NULL */
    /* of the queries and the keys: the caller's, or made from starts or runs.  NULL: keys are
     * counted, and the queries are the last of them.  Entry b is at b * .._entry. */
    const int64_t *q_pos;
    const int64_t *k_pos;
    ptrdiff_t q_pos_entry, k_pos_entry;
    const double *k_coord;
};

/* All sequences, and what they have together: query rows, their tiles and chunks, and key tiles. */
struct sequences {
    ptrdiff_t n;
    struct sequence *list;
    ptrdiff_t rows, tiles, chunks, ktiles;
    ptrdiff_t longest;                   /* most keys of one */
};

/* Backward: gradients that come and go. */
struct gradients {
    loci_view dout, dq, dk, dv, dmask;   /* dk has key_heads */
    /* the caller's, where dk and dv are summed elsewhere: stored in 16 bits, or dk for kv_heads
     * that are fewer than key_heads */
    loci_view dk_out, dv_out;
    /* dense [B][key_heads][Lk][D], [B][kv_heads][Lk][Dv] reals: where they are summed then,
     * and dk also when a rotation learns and nobody wants dk */
    void *dk_sum, *dv_sum;
    /* sums of a term's parts over all work items, in item order */
    double *total[MAX_USES];
    double *dtensor[MAX_TENSORS];        /* of tensors, zeroed; NULL where not wanted */
    ptrdiff_t dtensor_count[MAX_TENSORS];
};

/* How the memory of a call lies: its workspace, and pieces of it. */
struct call_memory {
    size_t work_bytes;                   /* of the workspace, as this call needs it */
    int64_t *counted;                    /* positions that are counted from starts */
    void *scratch[MAX_ENCODINGS];        /* made by begin() */
    /* keys after rotation, [B][key_heads][Lk][D] reals; NULL: k is read in place */
    void *rotated;
    /* [key_heads][ktiles]: largest |k| of a tile, rounded up, NaN where k or v are not all
     * finite; NULL: not needed */
    float *knorm;
    void *chunk_sums;                    /* decode: the sums of every chunk until they join */
    char *workspaces;                    /* one per thread: tiles, and what it saves */
    size_t workspace;                    /* bytes of each */
    /* backward: sums that are added in order (util/ordered_sum.h) */
    char *blocks;
    size_t block;
};

/* What came in, how memory lies, and how it is streamed. */
struct call {
    const struct loci_plan *plan;
    const loci_call *in;
    const loci_grad *grad;               /* NULL in the forward pass */
    ptrdiff_t B, Lq, Lk;
    int threads;
    bool backward;                       /* there is room for gradients */
    bool decode;                         /* few rows: engine/decode.c walks them one by one */
    bool fast, packed;                   /* bf16 dot products; rotated keys are bf16, each in the
                                            first half of its row */

    loci_view q, k, v, o, mask, weights; /* strides resolved */
    ptrdiff_t mask_keys;                 /* of a row of the mask */
    const struct loci_cache *cache;
    struct where where;
    struct sequences seqs;
    struct gradients g;

    const void *input[MAX_TENSORS];      /* INPUT tensors; those by key have room for Lk keys */
    const void *table[MAX_ENCODINGS];    /* prepared */
    ptrdiff_t range;                     /* that they were prepared for */

    struct call_memory mem;
    struct stream stream;

    struct {                             /* stage LINEAR_ATTENTION */
        ptrdiff_t *seen;                 /* [B][Lq]: keys of its sequence that a row sees: the first
                                            ones, never fewer than the row before it */
        void *den;                       /* [B][H][Lq] reals (backward) */
        const char *before;              /* states [B][Hkv], or NULL */
        char *after;
    } linear;
};

/* Sequences are counted through in rows, query tiles, query chunks or key tiles: the first of a
 * sequence, and the sequence that number i belongs to. */
enum count { BY_ROW, BY_TILE, BY_CHUNK, BY_KTILE };
static inline ptrdiff_t first_of(const struct sequence *q, enum count by)
{
    return by == BY_ROW   ? q->first_row
         : by == BY_TILE  ? q->first_tile
         : by == BY_CHUNK ? q->first_chunk
                          : q->first_ktile;
}
static inline const struct sequence *find_sequence(const struct call *c, enum count by, ptrdiff_t i)
{
    /* first_of(low) <= i < first_of(high).  Empty sequences share their first with the one that
     * follows; the search ends at the last of them, which is not empty. */
    ptrdiff_t low = 0, high = c->seqs.n;
    while (high - low > 1) {
        const ptrdiff_t middle = low + (high - low) / 2;
        if (first_of(&c->seqs.list[middle], by) <= i) low = middle;
        else high = middle;
    }
    return &c->seqs.list[low];
}

/* Do the rows of a sequence see intervals of its keys, by their distance alone?  Else who sees whom
 * is listed pair by pair. */
static inline bool sees_intervals(const struct call *c, const struct sequence *q)
{
    return q->run && !q->segments && !c->in->mask_kind && !c->in->k_first;
}

/* ---- Keys that are present ------------------------------------------------------------------- */

/* Keys first .. end - 1, counted in their sequence; end <= first: none. */
struct key_span { int64_t first, end; };

/* Keys of an entry, present or not. */
static inline ptrdiff_t all_keys(const struct call *c)
{
    return c->stream.keys ? c->stream.keys : c->Lk;
}
/* Do keys come in parts?  Then rows are restored and saved between parts. */
static inline bool streamed(const struct call *c) { return c->stream.part.state != NULL; }
static inline struct key_span present_keys(const struct call *c)
{
    const ptrdiff_t first = c->stream.first;
    return streamed(c) ? (struct key_span){ first, first + c->stream.part.count }
                       : (struct key_span){ 0, INT64_MAX };
}
/* Is key j of an entry present?  j counts from the first present key. */
static inline bool is_present(const struct call *c, ptrdiff_t j)
{
    return !streamed(c) || (j >= 0 && j < c->Lk);
}
/* The keys that INPUT tensors by key have, and the keys of a head that they have memory for. */
static inline struct key_span input_keys(const struct call *c)
{
    return c->stream.part.partial_inputs ? present_keys(c) : (struct key_span){ 0, INT64_MAX };
}
static inline ptrdiff_t input_capacity(const struct call *c)
{
    return c->stream.part.partial_inputs ? c->Lk : all_keys(c);
}
/* Do INPUT tensors by key have some of the keys only? */
static inline bool partial_inputs(const struct call *c) { return c->stream.part.partial_inputs; }
/* State of sums over the keys before input_keys(); used only if those do not begin at 0. */
static inline const void *restored_state(const struct call *c, int enc)
{
    return c->stream.part.restored[enc];
}
/* Values of the rows' own keys, if those keys need not be present; else NULL. */
static inline const loci_view *row_values(const struct call *c)
{
    return streamed(c) ? &c->stream.part.values : NULL;
}
/* Does this backward pass keep the sums of its items beyond the keys that are present? */
static inline bool chained(const struct call *c) { return c->stream.chain.on; }

/* The chunk after which rows without keys are complete. */
static inline ptrdiff_t oldest_chunk(const struct call *c) { return c->stream.chain.oldest; }
/* Memory of item number `item` of the current run, and of part number `part` of all runs. */
static inline char *chain_item(const struct call *c, ptrdiff_t item)
{
    return c->stream.chain.items + (size_t)item * c->stream.chain.item;
}
static inline char *chain_part(const struct call *c, ptrdiff_t part)
{
    return c->stream.chain.parts + (size_t)part * c->stream.chain.part;
}

/* ---- Positions ------------------------------------------------------------------------------- */

/* May a batch entry be more than one sequence? */
static inline bool packed(const struct call *c) { return c->in->q_seg || c->in->q_starts; }

/* Keys of a batch entry, and the position of its first key if positions are counted. */
static inline ptrdiff_t keys_in(const struct call *c, ptrdiff_t b)
{
    return c->where.lens ? (ptrdiff_t)c->where.lens[b] : c->Lk;
}
static inline int64_t first_pos(const struct call *c, ptrdiff_t b)
{
    return c->where.firsts ? c->where.firsts[b] : c->where.from;
}
static inline int64_t pos_q(const struct call *c, ptrdiff_t b, ptrdiff_t i)
{
    if (c->where.q_pos) return c->where.q_pos[b * c->where.q_pos_entry + i];
    /* Without keys, as in a rotation of queries alone, rows count from 0. */
    return first_pos(c, b) + (c->Lk ? keys_in(c, b) - c->Lq + i : i);
}
static inline int64_t pos_k(const struct call *c, ptrdiff_t b, ptrdiff_t j)
{
    const ptrdiff_t at = c->stream.first + j;
    return c->where.k_pos
             ? c->where.k_pos[b * c->where.k_pos_entry + (c->stream.here ? j : at)]
             : first_pos(c, b) + at;
}
static inline int64_t seg_q(const struct call *c, ptrdiff_t b, ptrdiff_t i)
{
    return c->in->q_seg ? c->in->q_seg[(c->in->per_batch ? b * c->Lq : 0) + i] : 0;
}
static inline int64_t seg_k(const struct call *c, ptrdiff_t b, ptrdiff_t j)
{
    return c->in->k_seg ? c->in->k_seg[(c->in->per_batch ? b * c->Lk : 0) + j] : 0;
}
/* Coordinate of a row or key on one axis: coordinates if the encoding has
 * axes, else the position. */
static inline double coord_q(const struct call *c, ptrdiff_t b, int axis, ptrdiff_t i)
{
    const loci_call *in = c->in;
    return in->q_coord ? in->q_coord[((in->per_batch ? b * c->plan->axes : 0) + axis) * c->Lq + i]
                       : (double)pos_q(c, b, i);
}
static inline double coord_k(const struct call *c, ptrdiff_t b, int axis, ptrdiff_t j)
{
    return c->where.k_coord
             ? c->where.k_coord[((c->in->per_batch ? b * c->plan->axes : 0) + axis) * c->Lk + j]
             : (double)pos_k(c, b, j);
}
/* An INPUT tensor of an encoding, by its number among the encoding's own. */
static inline const void *input(const struct call *c, int enc, int which)
{
    return c->input[c->plan->first_tensor[enc] + which];
}

#endif
