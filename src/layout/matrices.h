/* SPDX-License-Identifier: MIT */
/* matrices.h -- the scratch that the term `matrices` reads.  begin() computes a matrix for every
 * block of every distinct coordinate of a call, because tokens of a picture share coordinates
 * across heads, batch entries and often rows.  There is also memory for the rotated rows and their
 * gradients, from which end() computes the gradient of the matrices. */
#ifndef LOCI_LAYOUT_MATRICES_H
#define LOCI_LAYOUT_MATRICES_H

#include "contract/call.h"

struct matrices {
    int block, count, groups; /* groups: 1, or the kv heads */
    int64_t slots;            /* distinct coordinates */
    /* Of queries and of keys, [distinct batch entries][length]. */
    int64_t *slot[2];
    /* Lists of the rows of a slot: indices into slot[0], then into slot[1].  -1 ends a list. */
    int64_t *first, *next;
    int64_t *hash, hashes;
    /* Reals [slots][groups][count][block][block]: transposed, and not transposed for gradients. */
    void *into, *back;
    /* The rotated rows and their gradient, reals [B][heads][length][D].  Queries, keys. */
    void *x[2], *g[2];
    double *work; /* `each` doubles per thread */
    size_t each;
};

/* The number of a row in slot[].  Entries that share coordinates share its rows. */
static inline int64_t matrices_row(const struct call *c, bool query, ptrdiff_t b, ptrdiff_t i)
{
    return (c->in->per_batch ? b * (query ? c->Lq : c->Lk) : 0) + i;
}
/* Where x and g have the row of a query head or a kv head. */
static inline ptrdiff_t matrices_at(const struct call *c, bool query, ptrdiff_t b, int h,
                                    ptrdiff_t i)
{
    return ((b * (query ? c->plan->heads : c->plan->kv_heads) + h) * (query ? c->Lq : c->Lk) + i)
         * c->plan->dim;
}

#endif
