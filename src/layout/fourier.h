/* SPDX-License-Identifier: MIT */
/* fourier.h -- the table of the term `fourier`: pairs of channels in half style whose cos and sin
 * are sums of waves.
 *
 *     c[t] = sum over l of cos(pos w[l]) C[l][t],  s[t] = sum over l of sin(pos w[l]) S[l][t],
 *     t < sums; then 1 and `rest`
 *     (x[t], x[t + D/2]) <- (x[t] c[t] - x[t + D/2] s[t], x[t] s[t] + x[t + D/2] c[t])
 *
 * The table is that of pairs.h for the waves.  Then come doubles, [groups][C, S][sums]: the factors
 * that the coefficients of a column were multiplied by.  Then come reals,
 * [groups][C, S][waves][lanes]: the coefficients. */
#ifndef LOCI_LAYOUT_FOURIER_H
#define LOCI_LAYOUT_FOURIER_H

#include "layout/pairs.h"

/* Set by the encoding.  waves and sums: as above.  groups: 1, or the kv heads.  learned: a gradient
 * is wanted.  rest: the sin of pairs that are no sum. */
struct fourier {
    int waves, sums, groups;
    bool learned;
    double rest;
};

static inline int fourier_lanes(int n) { return (n + 15) / 16 * 16; }
static inline const double *fourier_factors(const struct fourier *f, const void *table, int group,
                                            int which)
{
    return (const double *)((const char *)table + loci_pairs_size(f->waves, 1, 1))
         + (2 * group + which) * f->sums;
}
/* Bytes before the coefficients, and reals of one block of them. */
static inline size_t fourier_at(const struct fourier *f)
{
    return loci_pairs_size(f->waves, 1, 1)
         + ((size_t)(2 * f->groups * f->sums) * sizeof(double) + 63) / 64 * 64;
}
static inline ptrdiff_t fourier_table(const struct fourier *f)
{
    return (ptrdiff_t)f->waves * fourier_lanes(f->sums);
}

/* A part of the gradient, for each kv head: [C, S][waves][lanes], by the coefficients in the
 * table. */
static inline ptrdiff_t fourier_part(const struct fourier *f)
{
    return f->learned ? 2 * fourier_table(f) : 0;
}

#endif
