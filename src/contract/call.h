/* SPDX-License-Identifier: MIT */
/* call.h -- a call as encodings and the engine see it: sequences, positions,
 * and where everything is. */
#ifndef LOCI_CONTRACT_CALL_H
#define LOCI_CONTRACT_CALL_H

#include "util/arena.h"
#include "util/limits.h"
#include "contract/plan.h"

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

/* Rows first .. first + count - 1 of a call, the first of which is at position `at`. */
struct run { ptrdiff_t first, count; int64_t at; };

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
    bool here;                           /* k_pos has those of the keys that are there, and no
                                            others (see struct call) */
    /* The rows of an entry are some of those that see its keys: each run of them is a sequence.
     * NULL: they follow one another. */
    const struct run *runs;
    ptrdiff_t run_count;
    const bool *apart;                   /* [B]: runs of a call whose rows are no run together;
                                            NULL: they are */
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

/* A forward pass in parts, each with some chunks of keys, newest first: what the rows of each query
 * tile have of the keys so far waits in `state`.  A pass row by row can do most of a part before
 * it knows that: PART_SUM makes sums of chunks where that is possible, PART_JOIN does the rest. */
struct part {
    char *state;                         /* [tiles][heads] slots; NULL: the pass is in one piece */
    size_t slot;                         /* bytes of each */
    ptrdiff_t count;                     /* keys that are there */
    bool opens, closes;                  /* the first part; the last one */
    /* INPUT tensors by key have those that are there, also where sums run over all keys; then what
     * was summed before them is here, by encoding (see loci_pe). */
    bool linked;
    const void *before[MAX_ENCODINGS];
    enum { PART_WHOLE, PART_SUM, PART_JOIN } step;
    loci_view values;                    /* of the rows' own keys */
};

/* A backward pass of many processes, whose sums over rows go from one to the next: it works on the
 * items of one run of rows at a time, and leaves their sums with them until their turn has come.
 * Keys are there chunk by chunk, as in a part, or all of them. */
struct chain {
    bool on;
    char *items;                         /* of the run at hand, and bytes of each */
    size_t item;
    char *parts;                         /* gradients of tables, of all items of all runs */
    size_t part;
    void *tiles;                         /* the same of the rotation, of all own key tiles: [B][own
                                            tiles][key_heads] parts, in reals */
    ptrdiff_t own_tiles;
    ptrdiff_t oldest;                    /* the chunk that rows without keys are done with */
    const int64_t *last;                 /* [B]: the position of the last of all rows */
    /* end() is called for keys that are there and the process's own, `count` of them from number
     * `own` on, which have all their sums; and once for all the rest. */
    enum { END_ALL, END_KEYS, END_REST } end;
    ptrdiff_t own, count;
    void *carried[MAX_ENCODINGS];        /* what end() goes on with from key to key */
};

struct call {
    const struct loci_plan *plan;
    const loci_call *in;
    const loci_grad *grad;               /* NULL in the forward pass */
    ptrdiff_t B, Lq, Lk;
    /* Where a pass goes in parts, Lk keys are there, from number `first` on of `keys`: its
     * sequences have all of them, and begin at key -first.  Else 0 and 0. */
    ptrdiff_t first, keys;
    struct part part;
    struct chain chain;
    int threads;
    bool backward;                       /* there is room for gradients */
    bool decode;                         /* few rows: engine/decode.c walks them one by one */
    bool fast, packed;                   /* bf16 dot products; rotated keys are bf16, each in the
                                            first half of its row */

    loci_view q, k, v, o, mask, weights; /* strides resolved */
    ptrdiff_t mask_keys;                 /* of a row of the mask */
    const struct loci_cache *cache;
    struct where where;
    int64_t *counted;                    /* room for positions that are counted from starts */
    struct sequences seqs;
    struct gradients g;

    const void *input[MAX_TENSORS];      /* INPUT tensors; those by key have room for Lk keys */
    const void *table[MAX_ENCODINGS];    /* prepared */
    ptrdiff_t range;                     /* that they were prepared for */
    void *scratch[MAX_ENCODINGS];        /* made by begin() */

    size_t work_bytes;                   /* of the workspace, as this call needs it */
    char *workspaces;                    /* one per thread: tiles, and what it keeps */
    size_t workspace;                    /* bytes of each */
    /* backward: sums that are added in order (util/ordered_sum.h) */
    char *blocks;
    size_t block;
    void *rotated;                        /* keys after rotation, [B][key_heads][Lk][D] reals; NULL:
                                            k is read in place */
    /* [key_heads][ktiles]: largest |k| of a tile, rounded up, NaN where k or v are not all
     * finite; NULL: nobody asks */
    float *knorm;
    void *chunk_sums;                    /* decode: the sums of every chunk until they join */

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

/* Keys of an entry, those that are not there, too. */
static inline ptrdiff_t all_keys(const struct call *c) { return c->keys ? c->keys : c->Lk; }

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
    const ptrdiff_t at = c->first + j;
    return c->where.k_pos
             ? c->where.k_pos[b * c->where.k_pos_entry + (c->where.here ? j : at)]
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
