/* SPDX-License-Identifier: MIT */
/* call.h -- a call as encodings and the engine see it: sequences, positions and memory. */
#ifndef LOCI_CONTRACT_CALL_H
#define LOCI_CONTRACT_CALL_H

#include "util/arena.h"
#include "util/limits.h"
#include "contract/plan.h"
#include "contract/stream.h"

/* Rows and keys that attend to each other only: a batch entry or a packed segment.  The tile grid
 * starts at the first key, so a row has the same bits wherever its sequence lies.  run: positions
 * are consecutive on both sides, so distance(key k, row r) = d0 + r - k. */
struct sequence {
    ptrdiff_t b, q0, nq, k0, nk;
    /* Query rows, their tiles and chunks, and key tiles of all earlier sequences.  Sequences with
     * the same keys share their tiles. */
    ptrdiff_t first_row, first_tile, first_chunk, first_ktile;
    ptrdiff_t keys; /* number of the first sequence with these keys */
    /* Decode computes the rows of so many sequences together, from this one on, as they share tiles
     * of keys.  0: together with an earlier one. */
    ptrdiff_t together;
    int64_t d0;
    bool run;
    /* Ids must be compared, because equal ids are not all neighbours here. */
    bool segments;
};

/* Positions of rows and keys: given by the caller, or counted. */
struct where {
    /* [B]: keys of an entry, and the position of its first key.  NULL: Lk, and 0. */
    const int64_t *lens, *firsts;
    int64_t from; /* position of key 0 if firsts is NULL */
    /* Positions of queries and keys: the caller's, or computed from starts or runs.  NULL: keys are
     * counted, and the queries are the last of them.  Entry b starts at b * .._entry. */
    const int64_t *q_pos;
    const int64_t *k_pos;
    ptrdiff_t q_pos_entry, k_pos_entry;
    const double *k_coord;
};

/* All sequences, and their totals: query rows, tiles and chunks of rows, and key tiles. */
struct sequences {
    ptrdiff_t n;
    struct sequence *list;
    ptrdiff_t rows, tiles, chunks, ktiles;
    ptrdiff_t longest; /* the most keys of a sequence */
};

/* Backward: gradients that are read and written. */
struct gradients {
    loci_view dout, dq, dk, dv, dmask; /* dk has key_heads */
    /* dk and dv are those of turned keys and values, which turn back after end_keys(). */
    bool turned;
    /* The caller's dk and dv if they are summed elsewhere.  This is so if they are stored in 16
     * bits, or for dk if sums_apart(). */
    loci_view dk_out, dv_out;
    /* Dense reals [B][key_heads][Lk][score_dim] and [B][kv_heads][Lk][Dv]: the sums then.  dk is
     * also summed here if a rotation learns and the caller does not want dk. */
    void *dk_sum, *dv_sum;
    /* sums of a term's parts over all work items, in item order */
    double *total[MAX_USES];
    ptrdiff_t total_count[MAX_USES];
    double *dtensor[MAX_TENSORS]; /* of tensors, zeroed; NULL if not wanted */
    ptrdiff_t dtensor_count[MAX_TENSORS];
};

/* The memory of a call: its workspace, and pieces of it. */
struct call_memory {
    size_t work_bytes;            /* workspace that this call needs */
    int64_t *counted;             /* positions that are counted from starts */
    void *scratch[MAX_ENCODINGS]; /* filled by begin() */
    /* Keys after rotation, reals [B][key_heads][Lk][score_dim].  NULL: k is read in place. */
    void *rotated;
    /* If rows change on their walk: keys after rotation alone, reals [B][kv_heads][Lk][D] (NULL: k
     * is read in place), and what the term stages. */
    void *unmoved, *moved;
    bool kept; /* rotated and moved are those of a cache, of all its keys */
    /* Values after they have turned, reals [B][kv_heads][Lk][Dv].  NULL: v is read in place. */
    void *turned;
    /* [key_heads][ktiles]: the largest |k| of a tile, rounded up; NaN if a k or v is not finite.
     * NULL: not needed. */
    float *knorm;
    void *chunk_sums; /* decode: the sums of every chunk until they join */
    char *workspaces; /* one per thread: tiles and saved state */
    size_t workspace; /* bytes of each */
    /* Backward: sums that are added in order (util/ordered_sum.h). */
    char *blocks;
    size_t block;
};

/* Which weights are dropped: engine/dropout.h. */
struct dropout {
    bool on;
    uint64_t seed, offset;
    uint32_t limit; /* numbers with a sign below it are dropped */
    double factor;  /* of the weights that are kept: 1 / (1 - p) */
};

/* The inputs of a call, its memory, and how it is streamed. */
struct call {
    const struct loci_plan *plan;
    const loci_call *in;
    const loci_grad *grad; /* NULL in the forward pass */
    ptrdiff_t B, Lq, Lk;
    int threads;
    bool backward; /* the workspace includes memory for gradients */
    bool decode;   /* few rows: engine/decode.c processes them one by one */
    /* fast: bf16 dot products.  packed: rotated keys are bf16, each in the first half of its
     * row. */
    bool fast, packed;
    struct dropout dropout;

    loci_view q, k, v, o, mask, weights; /* strides resolved */
    ptrdiff_t mask_keys, mask_key; /* keys in a row of the mask, and the stride between them */
    const struct loci_cache *cache;
    struct where where;
    struct sequences seqs;
    struct gradients g;

    const void *input[MAX_TENSORS];   /* INPUT tensors; those by key have capacity for Lk keys */
    const void *table[MAX_ENCODINGS]; /* prepared tables */
    ptrdiff_t range;                  /* the largest distance that the tables cover */

    struct call_memory mem;
    struct stream stream;

    struct { /* stage LINEAR_ATTENTION */
        /* [B][Lq]: how many keys of its sequence a row sees.  They are the first ones, and never
         * fewer than the previous row sees. */
        ptrdiff_t *seen;
        void *den;          /* [B][H][Lq] reals (backward) */
        const char *before; /* states [B][Hkv], or NULL */
        char *after;
    } linear;
};

/* Rows, query tiles, query chunks and key tiles are numbered through all sequences.  These
 * functions return the first number of a sequence, and the sequence that number i belongs to. */
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
    /* first_of(low) <= i < first_of(high).  An empty sequence has the same first number as the next
     * one.  The search ends at the last of these, which is not empty. */
    ptrdiff_t low = 0, high = c->seqs.n;
    while (high - low > 1) {
        const ptrdiff_t middle = low + (high - low) / 2;
        if (first_of(&c->seqs.list[middle], by) <= i) low = middle;
        else high = middle;
    }
    return &c->seqs.list[low];
}

/* Does every row of a sequence see an interval of keys that follows from distances alone?
 * Otherwise visible pairs are listed one by one. */
static inline bool sees_intervals(const struct call *c, const struct sequence *q)
{
    return q->run && !q->segments && !c->in->mask_kind && !c->in->k_first;
}

/* ---- Keys that are present ------------------------------------------------------------------- */

/* Keys first .. end - 1, counted in their sequence.  Empty if end <= first. */
struct key_span {
    int64_t first, end;
};

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
/* The keys that INPUT tensors by key cover, and how many keys of a head they have capacity for. */
static inline struct key_span input_keys(const struct call *c)
{
    return c->stream.part.partial_inputs ? present_keys(c) : (struct key_span){ 0, INT64_MAX };
}
static inline ptrdiff_t input_capacity(const struct call *c)
{
    return c->stream.part.partial_inputs ? c->Lk : all_keys(c);
}
/* Do INPUT tensors by key cover only some of the keys? */
static inline bool partial_inputs(const struct call *c) { return c->stream.part.partial_inputs; }
/* The state of sums over the keys before input_keys().  It is used only if those do not begin at
 * 0. */
static inline const void *restored_state(const struct call *c, int enc)
{
    return c->stream.part.restored[enc];
}
/* Values of the rows' own keys if those keys may be absent, else NULL. */
static inline const loci_view *row_values(const struct call *c)
{
    return streamed(c) ? &c->stream.part.values : NULL;
}
/* Does this backward pass save the sums of its items beyond the present keys? */
static inline bool chained(const struct call *c) { return c->stream.chain.on; }

/* Rows without keys are complete after this chunk. */
static inline ptrdiff_t oldest_chunk(const struct call *c) { return c->stream.chain.oldest; }
/* Memory of item `item` of the current run, and of part `part` of all runs. */
static inline char *chain_item(const struct call *c, ptrdiff_t item)
{
    return c->stream.chain.items + (size_t)item * c->stream.chain.item;
}
static inline char *chain_part(const struct call *c, ptrdiff_t part)
{
    return c->stream.chain.parts + (size_t)part * c->stream.chain.part;
}

/* ---- Positions ------------------------------------------------------------------------------- */

/* Can a batch entry contain several sequences? */
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
    /* Without keys, for example if only queries are rotated, rows count from 0. */
    return first_pos(c, b) + (c->Lk ? keys_in(c, b) - c->Lq + i : i);
}
static inline int64_t pos_k(const struct call *c, ptrdiff_t b, ptrdiff_t j)
{
    const ptrdiff_t at = c->stream.first + j;
    return c->where.k_pos ? c->where.k_pos[b * c->where.k_pos_entry + (c->stream.here ? j : at)]
                          : first_pos(c, b) + at;
}
/* The numbers of row i and key j of a sequence through the rows and keys of its entry, or of its
 * packed sequence, whichever of them are present.  A row has that of the key that it would be if
 * the rows were the last keys. */
static inline int64_t number_of_row(const struct call *c, const struct sequence *s, ptrdiff_t i)
{
    const struct stream *w = &c->stream;
    const struct run *run = w->runs ? w->runs + (s - c->seqs.list) % w->run_count : NULL;
    return run             ? run->at + i - run->first
         : c->in->q_starts ? i - s->q0 + s->nk - s->nq
                           : i + keys_in(c, s->b) - c->Lq;
}
static inline int64_t number_of_key(const struct call *c, const struct sequence *s, ptrdiff_t j)
{
    return c->in->q_starts ? j - s->k0 : c->stream.runs ? c->where.from + c->stream.first + j : j;
}
static inline int64_t seg_q(const struct call *c, ptrdiff_t b, ptrdiff_t i)
{
    return c->in->q_seg ? c->in->q_seg[(c->in->per_batch ? b * c->Lq : 0) + i] : 0;
}
static inline int64_t seg_k(const struct call *c, ptrdiff_t b, ptrdiff_t j)
{
    return c->in->k_seg ? c->in->k_seg[(c->in->per_batch ? b * c->Lk : 0) + j] : 0;
}
/* The coordinate of a row or key on one axis.  Without coordinates it is the position. */
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
/* INPUT tensor number `which` of an encoding. */
static inline const void *input(const struct call *c, int enc, int which)
{
    return c->input[c->plan->first_tensor[enc] + which];
}
/* Are keys rotated tile by tile as rows read them?  So they are in decode where a cache stores them
 * as given, because they have several forms: staging all of them would read and write them once
 * more.  Terms that read staged keys need them all. */
static inline bool rotates_late(const struct call *c)
{
    const struct loci_plan *p = c->plan;
    bool late = c->decode && p->key_forms > 1;
    for (int x = 0; x < p->uses; x++) late &= !term_is(p->use[x].term, READS_STAGED);
    return late;
}
/* Does a gradient of the term whose rows move need that of its keys? */
static inline bool moves_learn(const struct call *c)
{
    const struct loci_plan *p = c->plan;
    if (p->moves < 0) return false;
    const int e = p->use[p->moves].enc;
    bool learns = false;
    for (int i = p->first_tensor[e]; i < p->first_tensor[e + 1]; i++)
        learns |= c->g.dtensor[i] != NULL;
    return learns;
}
/* Does a gradient of the rotation's tensors need those of rotated keys? */
static inline bool rotation_learns(const struct call *c)
{
    const struct loci_plan *p = c->plan;
    if (p->rotate < 0) return false;
    bool learns = c->g.total[p->rotate] != NULL;
    for (int i = 0; i < p->tensors.n; i++) learns |= c->g.dtensor[i] && rotates_by(p, i);
    return learns;
}

#endif
