/* SPDX-License-Identifier: MIT */
/* whole.h -- a rank's pass over the keys of all ranks, forward or backward: its rows are runs of
 * one long sequence, and the keys that they may see are collected, or come by chunk by chunk. */
#ifndef LOCI_DISTRIBUTED_GATHERED_H
#define LOCI_DISTRIBUTED_GATHERED_H

#include "distributed/rank_context.h"

/* A call, that call opened, and where in the cargo its keys are. */
struct whole {
    struct rank_ctx *rank_ctx;
    loci_call call;
    struct opening opening;
    const void *tensors[MAX_TENSORS];
    const struct keyed *k, *v, *k_pos, *k_coord, *tensor[MAX_TENSORS];
    const loci_grad *grad;               /* NULL: a forward pass */
    struct chain chain;
    struct call open;
    loci_host host;                      /* the caller's, that asks the transport, too */
    const char *caller;                  /* the thread that called */
    double attention;                    /* seconds */
    /* Lets the transport go on with what is on its way beside keys; false: nothing is.  NULL: only
     * keys ever are. */
    bool (*progress)(struct whole *);
};

/* All that is said of rows, keys and shares; what travels is found. */
loci_status loci_open_whole(struct rank_ctx *, struct whole *);
/* Lists of who needs what, the rank's runs of rows, and what travels, out of the workspace; then
 * the call over them, all but the pass's own memory.  Returns how many tiles the rows are. */
ptrdiff_t loci_lay_out_whole(struct rank_ctx *, struct whole *, struct arena *);
/* What the pass wants to know to be measured, where nothing is there yet. */
void loci_measure_whole(struct whole *, bool streamed);
/* To the call over all keys.  lay_out returns the bytes, SIZE_MAX if there are too many; it
 * measures first, with base NULL. */
typedef size_t lay_out_rank(struct rank_ctx *, char *base, struct whole *);
loci_status loci_open_rank(struct rank_ctx *, const void *tables, void *work, struct whole *,
                            lay_out_rank *);
/* The pass over all keys: all that can be wrong with it, but nothing of the keys is read. */
loci_status loci_open_pass(struct rank_ctx *, const void *tables, struct whole *);
/* How an INPUT tensor lies around its keys; false: it has none. */
bool loci_by_key(const struct rank_ctx *, const loci_tensor *, ptrdiff_t *outer, ptrdiff_t *inner);
/* parts.c: begin() of all encodings but the rotation, before the first part; of the rotation and the
 * keys, before each part, which has the keys from number `first` on. */
void loci_begin_others(struct call *);
void loci_begin_part(struct call *, ptrdiff_t first);
void loci_report(const struct rank_ctx *, const struct whole *);

#endif
