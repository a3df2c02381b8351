/* SPDX-License-Identifier: MIT */
/* sums.h -- a backward pass over many processes: the sums that pass from rank to rank. */
#ifndef LOCI_DISTRIBUTED_SUMS_H
#define LOCI_DISTRIBUTED_SUMS_H

#include "distributed/gathered.h"

/* Sums by key: [lists][present keys] rows of `row` bytes. */
struct sum_list {
    char *data;
    ptrdiff_t lists;
    size_t row;
};
/* Messages of sums, and their requests. */
struct sum_buffer {
    char *data;
    void **requests;
    int n;
};
enum { OUTS = 2 };

/* Own keys of one chunk.  Between two shares of the same rank their sums are in forward_buf, and
 * `waits_for` is the share that needs them next.  `gone`: they were sent back for it.  After the
 * earliest rows the final sums are in `data`. */
struct own_chunk {
    struct message p;
    int waits_for;
    bool gone;
    char *forward_buf, *data;
    void *buffered, *back, *final; /* requests */
};

/* What is collected: the part of this rank's keys, and on rank 0 a call over all rows and keys. */
struct collected {
    char *keys, *message;
    double *q_coord, *k_coord;
    loci_call in;
    struct call call;
    void *scratch;
};

struct backward {
    struct rank_pass w;    /* must be the first field */
    loci_grad grad, inner; /* the caller's, and the one of the pass */
    loci_view dk, dv;      /* the caller's, of own keys */
    bool want_dk, want_dv;
    void *want[MAX_TENSORS];      /* not NULL: some rank wants its gradient */
    struct required_range *spans; /* [shares]: keys that rows of a share may see */
    struct transfer sweep;        /* a second transfer of the same keys, for scans */
    bool scans, tiles;            /* tiles: key tiles have parts of a rotation's gradients */

    struct sum_list sums[2 + MAX_USES];
    int n;
    size_t bytes; /* per key, of all sums */
    /* Bytes of messages.  key_state: one state per encoding, one after the other. */
    size_t total_bytes, key_state_bytes;

    struct sum_buffer in, out[OUTS];
    int out_index;                /* index of the buffer that sends next */
    struct own_chunk *own_chunks; /* the rank's own messages, oldest first */
    int64_t own_chunk_count;
    int served; /* the last share that loci_serve() sent sums back for */
    char *own_sums, *forwarded, *totals, *key_state;
    struct collected collected;
    int64_t *shifts; /* [2 entries]; see agree_on_runs() */
    int64_t *last;
    bool *apart;
};

/* ---- Sums by key: sums.c */

/* Finds the sums that an open call makes.  `all`: as if every gradient were wanted. */
void loci_find_sums(struct backward *, const struct call *, bool all);
/* The index of a key among the present keys. */
ptrdiff_t loci_key_number(const struct rank_ctx *, const struct backward *, int64_t key);
/* Clears the sums of `keys` keys from number `at` on, packs them into a message, or unpacks them
 * from one. */
enum what { CLEAR, PACK, UNPACK };
void loci_copy_sums(const struct backward *, enum what, ptrdiff_t at, ptrdiff_t keys,
                    char *message);
/* loci_ask_sums() requests the sums that later rows have made of a chunk.  loci_recv_sums()
 * receives them, or starts with 0.  loci_forward_sums() sends them on after the items of a share
 * are added. */
void loci_ask_sums(struct rank_ctx *, struct backward *, int share, int64_t chunk);
void loci_recv_sums(struct rank_ctx *, struct backward *, int share, int64_t chunk);
void loci_forward_sums(struct rank_ctx *, struct backward *, int share, int64_t chunk);

/* loci_buffered_keys(): own keys whose sums are buffered here between two shares of a rank.
 * loci_open_own_chunks() must come before any other step. */
int64_t loci_buffered_keys(const struct rank_ctx *, const struct backward *);
void loci_open_own_chunks(struct rank_ctx *, struct backward *);
/* Sends back all sums that are buffered here for shares from the latest down to this one.  A rank
 * does so before it begins with the rows of a share, so ranks cannot wait in a circle.  Between two
 * chunks loci_serve_early() sends back what has arrived by then, so that no rank waits long. */
void loci_serve(struct rank_ctx *, struct backward *, int share);
void loci_serve_early(struct rank_ctx *, struct backward *);
void loci_end_own_chunks(struct rank_ctx *, struct backward *);

/* Messages of 0 bytes are not sent. */
void loci_send_to(struct rank_ctx *, struct sum_buffer *, int to, int tag, const char *data,
                  size_t bytes);
void loci_receive_from(struct rank_ctx *, void **request, int from, int tag, char *data,
                       size_t bytes);
void loci_end_sends(struct rank_ctx *, struct sum_buffer *);

/* ---- Totals of tables, which end up on all ranks: totals.c */

void loci_sum_totals(struct rank_ctx *, struct backward *, bool works);

/* ---- What is collected: collect.c */

void loci_lay_out_collected(const struct rank_ctx *, const struct measured *, struct collected *,
                            struct arena *);
/* Keys whose sums are complete: `keys` keys, starting at present key `at` and at own key `own`. */
void loci_collect_keys(const struct rank_ctx *, const struct backward *, ptrdiff_t at,
                       ptrdiff_t keys, ptrdiff_t own);
/* After the sums of all keys are complete: computes the gradients of encodings that need all rows
 * and keys. */
void loci_collect(struct rank_ctx *, struct backward *, bool works);

#endif
