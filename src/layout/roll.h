/* SPDX-License-Identifier: MIT */
/* roll.h -- what the term `roll` reads at the start of an encoding's table: a vector for every
 * distance, a product of learned weights and waves.
 *
 * For each head, starting at `heads`, the table has v, real [width].  Then come the vectors W R_d
 * of the distances hi .. lo, real [hi - lo + 1][width], the largest distance first, in the order of
 * the keys.  For all heads, starting at `waves`, it has the R_d, real [hi - lo + 1][waves_width].
 * The sums of a head are those of dW, [D][waves_width], and of dv, [width]. */
#ifndef LOCI_LAYOUT_ROLL_H
#define LOCI_LAYOUT_ROLL_H

#include "contract/encoding.h"

struct waves {
    int numbers;
}; /* set by the encoding: numbers of a wave */
struct roll {
    int64_t lo, hi;               /* distances beyond have the vectors of the ends */
    ptrdiff_t width, waves_width; /* padded D and Dm */
    size_t heads, waves;          /* byte offsets from the start of the table */
};
enum { ROLL_HEADER = 64 };
_Static_assert(sizeof(struct roll) <= ROLL_HEADER, "what comes next starts on 64 bytes");

/* Reals of one head: v and a vector per distance. */
static inline ptrdiff_t roll_head(const struct roll *v)
{
    return (ptrdiff_t)(v->hi - v->lo + 2) * v->width;
}

#endif
