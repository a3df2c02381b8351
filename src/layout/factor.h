/* SPDX-License-Identifier: MIT */
/* factor.h -- what the term `factor` reads: a factor of the scores of each row.
 *
 *     f = c_i                            a number of each row, in the scratch of the call
 *     f = table[h][0] c_i + table[h][1]  where the factor is learned
 *
 * c_i is computed in double once per call, for all heads, or for each head if the caller's mask
 * differs between heads. */
#ifndef LOCI_LAYOUT_FACTOR_H
#define LOCI_LAYOUT_FACTOR_H

#include "contract/call.h"

/* How the keys of a row are counted. */
enum factor_count { COUNT_KEYS, COUNT_POSITION };

/* Is the factor of this encoding learned? */
static inline bool factor_learned(const struct loci_plan *p, int enc)
{
    return p->first_tensor[enc + 1] > p->first_tensor[enc];
}
/* Reals of a head, in the table and in a part of its gradient. */
enum { FACTOR_SLOPE, FACTOR_BIAS, FACTOR_NUMBERS };
static inline ptrdiff_t factor_at(int h, int which)
{
    return (ptrdiff_t)h * FACTOR_NUMBERS + which;
}

/* c of all rows, [B][heads][Lq] doubles.  Heads have numbers of their own if their masks differ. */
static inline bool factor_each(const struct call *c)
{
    return c->in->mask_kind && c->mask.head != 0;
}
static inline ptrdiff_t factor_row(const struct call *c, ptrdiff_t b, int h, ptrdiff_t i)
{
    return (factor_each(c) ? b * c->plan->heads + h : b) * c->Lq + i;
}

/* What rows of this encoding count: keys that they see, or their position + 1. */
enum factor_count loci_factor_counts(const struct loci_plan *, int enc);

/* Hooks of encodings: c of every row is factor_of_count() of what it counts, and at least 1.
 * accept(): the positions of all keys must be known that rows count. */
loci_status loci_factor_accept(const struct call *, int enc);
size_t loci_factor_scratch(const struct call *, int enc);
void loci_factor_begin(struct call *, int enc);

/* May the factor be multiplied into the rows of q when they are loaded?  It may if nothing adds to
 * q.k before it, nothing bends the score before it, and no term reads q alone. */
static inline bool factor_folds(const struct loci_plan *p, int x)
{
    if (p->use[x].group != GROUP_CAP) return false;
    for (int y = 0; y < p->uses; y++)
        if (y != x
            && (p->use[y].group == GROUP_RAW || term_is(p->use[y].term, READS_ALONE)
                || (p->use[y].group == GROUP_CAP && y < x)))
            return false;
    return true;
}

#endif
