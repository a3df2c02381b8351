/* SPDX-License-Identifier: MIT */
/* linear.h -- the steps of a call of linear attention, for states in memory of the host and of
 * devices. */
#ifndef LOCI_API_LINEAR_H
#define LOCI_API_LINEAR_H

#include "api/api.h"

/* The head of a state, on its own cache line.  The sums of each batch entry and kv head follow. */
struct linear_state {
    uint64_t magic;
    int64_t keys, batch, kv_heads, dim, value_dim, real;
};
enum { STATE_MAGIC = 0x6c6f7369, STATE_HEAD = 64 };
_Static_assert(sizeof(struct linear_state) <= STATE_HEAD, "the sums start 64 bytes behind");

struct linear_state loci_linear_head(const loci_plan *, ptrdiff_t batch, int64_t keys);
/* head: that of `before`, in memory of the host. */
loci_status loci_linear_check_states(const loci_plan *, const loci_call *, const void *before,
                                     const void *after, const struct linear_state *head);
/* The memory of states, to check for overlap. */
void loci_linear_add_states(struct regions *, const loci_plan *, const loci_call *,
                            const void *before, const void *after);
/* The checks of attention, and those that differ. */
loci_status loci_linear_open(struct call *, const loci_plan *, const void *tables, void *work,
                             const loci_call *, const struct opening *);
/* Fills c->linear.seen. */
void loci_linear_find_seen(struct call *);

#endif
