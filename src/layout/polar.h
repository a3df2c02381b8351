/* SPDX-License-Identifier: MIT */
/* polar.h -- the table of the term `polar`: channels become magnitudes at angles.
 *
 *     row of D channels x -> row of 2D: softplus(x[t]) cos phi[t], then softplus(x[t]) sin phi[t]
 *     phi = pos w[t] for a query, pos w[t] + phase[kv head][t] for a key
 *
 * The table is that of layout/pairs.h for D frequencies.  After it comes what belongs to the phases
 * of each kv head, [kv heads][3][width] doubles: cos, sin, and the slope of the phase by what is
 * learned. */
#ifndef LOCI_LAYOUT_POLAR_H
#define LOCI_LAYOUT_POLAR_H

#include "layout/pairs.h"

static inline size_t polar_size(int dim, int kv_heads)
{
    return loci_pairs_size(dim, 1, 1)
         + (size_t)kv_heads * 3 * (size_t)pairs_width(dim) * sizeof(double);
}
/* cos of the phases of a kv head; sin and slopes follow, each `width` doubles behind. */
static inline const double *polar_phase(const struct pairs *p, int kv_head)
{
    return pairs_rows(p, 1, 0) + (ptrdiff_t)3 * kv_head * p->width;
}

#endif
