/* SPDX-License-Identifier: MIT */
/* matrices.h -- what the term `matrices` finds in the scratch of its encoding: a matrix for
 * every block of every distinct coordinate of a call, made by begin(), as tokens of a picture
 * share coordinates across heads, batch entries and often rows; and room for the rows that
 * turn with their gradients, from which end() makes the gradient of the matrices. */
#ifndef LOCI_LAYOUT_MATRICES_H
#define LOCI_LAYOUT_MATRICES_H

#include "contract/call.h"

struct matrices {
    int block, count, groups;            /* groups: 1, or the kv heads */
    int64_t slots;                       /* distinct coordinates */
    /* of queries and of keys, [batch entries that differ][length] */
    int64_t *slot[2];
    int64_t *first, *next;               /* rows of a slot: numbers in slot[0], then in slot[1]; -1
                                            after the last */
    int64_t *hash, hashes;
    void *into, *back;                   /* reals [slots][groups][count][block][block]: transposed,
                                            and for gradients as they are */
    void *x[2], *g[2];                   /* what rotated and its gradient, reals
                                            [B][heads][length][D]; queries, keys */
    double *work;                        /* of each thread: `each` doubles */
    size_t each;
};

/* The number of a row in slot[]: entries that share their coordinates share its rows. */
static inline int64_t matrices_row(const struct call *c, bool query, ptrdiff_t b, ptrdiff_t i)
{
    return (c->in->per_batch ? b * (query ? c->Lq : c->Lk) : 0) + i;
}
/* Where x and g have the row of a head: of a query head, or a kv head. */
static inline ptrdiff_t matrices_at(const struct call *c, bool query, ptrdiff_t b, int h,
                                    ptrdiff_t i)
{
    return ((b * (query ? c->plan->heads : c->plan->kv_heads) + h) * (query ? c->Lq : c->Lk) + i)
         * c->plan->dim;
}

#endif
