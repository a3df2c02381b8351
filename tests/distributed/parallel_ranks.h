/* SPDX-License-Identifier: MIT */
/* parallel_ranks.h -- one attention in one process, and its parts that ranks own.  Each array of a
 * part is separate and has no spare byte. */
#ifndef LOCI_TESTS_DISTRIBUTED_PARALLEL_RANKS_H
#define LOCI_TESTS_DISTRIBUTED_PARALLEL_RANKS_H

#include "mailbox.h"
#include "walk.h"

/* ---- Memory: all bits set, which is NaN ------------------------------------------------------ */

struct blocks {
    void **list;
    int n, capacity;
};
void *blocks_alloc(struct blocks *, size_t bytes); /* never NULL */
/* 64-byte aligned, for tables and workspaces */
void *blocks_lines(struct blocks *, size_t bytes);
void blocks_drop(struct blocks *);

/* ---- One process ----------------------------------------------------------------------------- */

struct form {
    const char *text, *name; /* name: printed on failure */
    loci_dtype dtype;        /* a library without float has F64 instead */
    int batch, heads, kv_heads, dim, value_dim;
    ptrdiff_t q_len, k_len;
    int64_t left, right; /* windows */
    bool full, keys_rotated;
    /* Positions: none given; rising with gaps; those of each batch entry; in no order. */
    enum places { COUNTED, SPREAD, PER_BATCH, SHUFFLED } places;
    bool lasting; /* far keys matter: gates and sticks hardly act */
    bool no_rows; /* neither lse nor rem */
    bool grads;   /* with gradients */
    bool drops;   /* with dropout */
};

/* An array of lines, one for each row or key, repeated: [outer][len][inner bytes]. */
struct lines {
    const char *name;
    bool keys;
    size_t outer, inner;
    unsigned char *data;
};

struct whole_call {
    struct form form;
    size_t stored, real;
    loci_call call;
    loci_status status; /* of the call in one process */
    loci_error error;
    int tensors;
    loci_tensor tensor[WALK_TENSORS];
    const void *data[WALK_TENSORS];
    struct lines q, k, v, q_pos, k_pos, q_coord, k_coord, o, lse, rem, ae, input[WALK_TENSORS];
    loci_grad grad; /* of everything; sums, and cotangents */
    struct lines dq, dk, dv, dinput[WALK_TENSORS], dout, dlse, drem, dae;
    void *dtensor[WALK_TENSORS];
    loci_status grad_status;
    ptrdiff_t range;
    int isas; /* a plan for each instruction set, and its tables */
    struct {
        loci_plan *plan;
        void *tables;
        size_t bytes;
    } on[8];
    struct blocks blocks;
};

/* Creates the problem and computes it.  False: a plan or tables failed, which counts as a failed
 * check. */
bool whole_make(struct whole_call *, const struct form *, int seed);
void whole_drop(struct whole_call *);

/* ---- Ranks ----------------------------------------------------------------------------------- */

enum { MOST_SHARES = 64 };
struct split {
    const char *name;
    int ranks, count, key_count; /* key_count 0: keys are shared like rows */
    loci_share rows[MOST_SHARES], keys[MOST_SHARES];
};

/* Layouts of loci_share_out(), and a random one: cut anywhere, with empty shares, and sometimes
 * with several adjacent shares of one rank, or a rank that owns nothing. */
enum layout { CONTIGUOUS, ZIGZAG, RANDOM, LAYOUTS };
/* keys_apart: keys have their own list, drawn separately or over another number of keys. grads:
 * with borders that gradients require. */
void split_make(struct split *, enum layout, int ranks, ptrdiff_t q_len, ptrdiff_t k_len,
                bool keys_apart, bool grads, uint64_t seed);

struct part {
    const struct whole_call *whole;
    const struct split *split;
    int rank;
    const loci_plan *plan;
    const void *tables;
    size_t tables_bytes;
    unsigned char *memory; /* work of the call, and its first byte */
    void *work;
    size_t work_bytes;
    loci_call call, *callp;
    loci_parallel all, *allp;
    loci_transport transport;
    loci_parallel_report report;
    loci_host host;
    loci_error error;
    struct lines q, k, v, o, lse, rem, ae;
    loci_grad grad, *gradp;
    bool backward; /* the last call was that of the gradients */
    struct lines dq, dk, dv, dinput[WALK_TENSORS], dout, dlse, drem, dae;
    void *dtensor[WALK_TENSORS];
    bool token_major;               /* layout of q, k, v and o */
    ptrdiff_t *rows, *keys, nq, nk; /* indices of its rows and keys, in its order */
    const void *data[WALK_TENSORS];
    struct blocks blocks;
    int inputs;    /* number of read-only blocks */
    uint64_t hash; /* of them */
};

/* Ranks differ in instruction set, threads and the order of memory.  `turn` rotates the
 * assignment. */
void part_make(struct part *, const struct whole_call *, const struct split *,
               const loci_transport *, int turn);
/* Allocates `work` with exactly the requested bytes. */
void part_take_work(struct part *);
/* Allocates work if there is none, sets all bits of outputs and work, then calls forward and, if
 * the form has gradients, backward.  Open requests and changed inputs are failures. */
loci_status part_call(struct part *);
uint64_t part_hash(const struct part *); /* of read-only memory */
/* Are outputs unchanged since the last call? */
bool part_untouched(const struct part *);
bool part_same(const struct part *, const char *context); /* The same as in one process? */
void part_drop(struct part *);

/* All ranks of a split, each a thread: their results are those of one process.  A call that it
 * rejects, or that is expected to be `refused`, fails on all ranks with the same sentence. */
void parts_together(const struct whole_call *, const struct split *, bool gather, bool refused,
                    int turn);

#endif
