/* SPDX-License-Identifier: MIT */
/* gathered.h -- a rank's pass over the keys of all ranks, forward or backward.  The rows of the
 * rank are runs of one long sequence.  The keys that these rows may see are gathered, or arrive
 * chunk by chunk. */
#ifndef LOCI_DISTRIBUTED_GATHERED_H
#define LOCI_DISTRIBUTED_GATHERED_H

#include "distributed/rank_context.h"

/* A call, the call after opening, and where the transfer puts its keys. */
struct rank_pass {
    struct rank_ctx *rank_ctx;
    loci_call call;
    struct opening opening;
    const void *tensors[MAX_TENSORS];
    const struct keyed *k, *v, *k_pos, *k_coord, *tensor[MAX_TENSORS];
    const loci_grad *grad; /* NULL: a forward pass */
    struct chain chain;
    struct call open;
    /* The caller's host; its cancel hook also polls the transport. */
    loci_host host;
    const char *caller; /* the thread that called */
    double attention;   /* seconds */
    /* Makes progress on messages other than keys.  Returns false if none is open.  NULL: only keys
     * are transferred. */
    bool (*progress)(struct rank_pass *);
};

/* Collects what the call says about rows, keys and shares, and finds the arrays to transfer. */
loci_status loci_open_arrays(struct rank_ctx *, struct rank_pass *);
/* Carves the required ranges, the rank's runs of rows and the transfer out of the workspace.  Then
 * fills in the call over them, except for the pass's own memory.  Returns the number of row
 * tiles. */
ptrdiff_t loci_lay_out_rank(struct rank_ctx *, struct rank_pass *, struct arena *);
/* Fills in what a pass needs to be measured while its memory does not exist yet. */
void loci_measure_rank(struct rank_pass *, bool streamed);
/* Turns the public call into a call over all keys.  lay_out returns the bytes, SIZE_MAX if there
 * are too many.  It is first called with base NULL, to measure. */
typedef size_t lay_out_rank(struct rank_ctx *, char *base, struct rank_pass *);
loci_status loci_open_rank(struct rank_ctx *, const void *tables, void *work, struct rank_pass *,
                           lay_out_rank *);
/* Opens the pass over all keys.  All checks are done here, and no key is read. */
loci_status loci_open_pass(struct rank_ctx *, const void *tables, struct rank_pass *);
/* The extents of an INPUT tensor before and after its keys.  Returns false if it has no keys. */
bool loci_by_key(const struct rank_ctx *, const loci_tensor *, ptrdiff_t *outer, ptrdiff_t *inner);
/* parts.c.  loci_begin_others() calls begin() of all encodings except the rotation, before the
 * first part.  loci_begin_part() begins the rotation and the keys before each part; the keys of the
 * part start at number `first`. */
void loci_begin_others(struct call *);
void loci_begin_part(struct call *, ptrdiff_t first);
void loci_report(const struct rank_ctx *, const struct rank_pass *);

#endif
