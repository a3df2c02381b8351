/* SPDX-License-Identifier: MIT */
/* sums.h -- a backward pass over many processes: what goes from rank to rank. */
#ifndef LOCI_DISTRIBUTED_SUMS_H
#define LOCI_DISTRIBUTED_SUMS_H

#include "distributed/gathered.h"

/* Sums by key, [lists][keys there] rows of bytes. */
struct sum_list { char *data; ptrdiff_t lists; size_t row; };
/* Messages of sums, and their requests. */
struct box { char *data; void **requests; int n; };
enum { OUTS = 2 };

/* Own keys of one chunk.  Their sums wait in `relay` for rows of share waits_for, unless they have
 * gone back for them, and have come home to `data` when no earlier rows are left. */
struct own_chunk {
    struct message p;
    int waits_for;
    bool gone;
    char *forward_buf, *data;
    void *buffered, *back, *final;         /* requests */
};

/* What is collected: own keys' part of it, and on rank 0 a call over all rows and keys. */
struct collected {
    char *keys, *message;
    double *q_coord, *k_coord;
    loci_call in;
    struct call call;
    void *scratch;
};

struct backward {
    struct whole w;                      /* first */
    loci_grad grad, inner;               /* the caller's, and that of the pass */
    loci_view dk, dv;                    /* the caller's, of own keys */
    bool want_dk, want_dv;
    void *want[MAX_TENSORS];             /* not NULL: somebody wants its gradient */
    struct required_range *spans;                  /* [shares] keys that rows of a share may see */
    struct transfer sweep;                  /* the same keys once more, for scans */
    bool scans, tiles;                   /* tiles: key tiles have parts of a rotation's gradients */

    struct sum_list sums[2 + MAX_USES];
    int n;
    size_t bytes;                        /* by key, of all sums */
    size_t total_bytes, key_state_bytes;   /* of messages; key_state: of each encoding, one after the
                                            other */

    struct box in, out[OUTS];
    int out_index;                            /* which box to send next is */
    struct own_chunk *own_chunks;                  /* own packets, oldest first */
    int64_t own_chunk_count;
    int served;                          /* the last share that sums have waited for */
    char *own_sums, *forwarded, *totals, *key_state;
    struct collected collected;
    int64_t *shifts;                     /* [2 entries]: see agree_on_runs() */
    int64_t *last;
    bool *apart;
};

/* ---- Sums by key: sums.c */

/* What there is to sum, of an open call; `all`: as if everything were wanted. */
void loci_find_sums(struct backward *, const struct call *, bool all);
/* Where a key is among those that are there. */
ptrdiff_t loci_key_number(const struct rank_ctx *, const struct backward *, int64_t key);
/* The sums of `keys` keys from number `at` on become 0, or go to a message or come from one. */
enum what { CLEAR, PACK, UNPACK };
void loci_copy_sums(const struct backward *, enum what, ptrdiff_t at, ptrdiff_t keys,
                    char *message);
/* Asks for the sums that later rows have made of a chunk; takes them, or begins with 0; and hands
 * them on when those of a share are added. */
void loci_ask_sums(struct rank_ctx *, struct backward *, int share, int64_t chunk);
void loci_recv_sums(struct rank_ctx *, struct backward *, int share, int64_t chunk);
void loci_forward_sums(struct rank_ctx *, struct backward *, int share, int64_t chunk);

/* Own keys whose sums wait at home at times; homes are opened before all else. */
int64_t loci_buffered_keys(const struct rank_ctx *, const struct backward *);
void loci_open_own_chunks(struct rank_ctx *, struct backward *);
/* Sends back all that waits here for shares from the latest to this one.  A rank does so before it
 * begins with rows of a share, so nobody waits for it in a circle; and what has come by then it
 * sends back between two chunks, so that nobody waits for long. */
void loci_serve(struct rank_ctx *, struct backward *, int share);
void loci_serve_early(struct rank_ctx *, struct backward *);
void loci_end_own_chunks(struct rank_ctx *, struct backward *);

/* A message of no bytes is none. */
void loci_send_to(struct rank_ctx *, struct box *, int to, int tag, const char *data, size_t bytes);
void loci_receive_from(struct rank_ctx *, void **request, int from, int tag, char *data,
                       size_t bytes);
void loci_end_box(struct rank_ctx *, struct box *);

/* ---- Totals of tables, which end up on all ranks: totals.c */

void loci_sum_totals(struct rank_ctx *, struct backward *, bool works);

/* ---- What is collected: collect.c */

void loci_lay_out_collected(const struct rank_ctx *, const struct measured *, struct collected *,
                            struct arena *);
/* Keys that have all their sums: `keys` of them from number `at` of those that are there, which are
 * the rank's own from `own` on. */
void loci_collect_keys(const struct rank_ctx *, const struct backward *, ptrdiff_t at, ptrdiff_t keys,
                       ptrdiff_t own);
/* When all keys have: the gradients of tables that want it. */
void loci_collect(struct rank_ctx *, struct backward *, bool works);

#endif
