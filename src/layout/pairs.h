/* SPDX-License-Identifier: MIT */
/* pairs.h -- the table of the term `pairs`: which channels are rotated together, and how fast.
 *
 * Pair t of head group g is rotated by phi = sum over axes a of coordinate[a] w[a][g][t]:
 *
 *     (x[a], x[b]) <- m (x[a] cos phi - x[b] sin phi, x[a] sin phi + x[b] cos phi)
 *
 * For every group and axis, rows of `width` doubles follow this struct: the frequencies in two
 * parts (hi, lo), then cos and sin of n w for n = 0 .. 63, on the first axis times m.  A whole
 * coordinate x is rotated by its last six bits after it is rotated by x & ~63.  So cos and sin of a
 * row cost four products per pair.
 *
 * The term `fading_pairs` has further rows after that.  For each digit of a distance to base 64
 * these are 64 rows: z[t]^(digit 64^place). */
#ifndef LOCI_LAYOUT_PAIRS_H
#define LOCI_LAYOUT_PAIRS_H

#include "contract/encoding.h"

/* PAIR_LANES: a row has whole vectors of double on every instruction set.  FADE_DIGITS: distances
 * up to 64^7 = 2^42, which positions within 2^40 do not exceed. */
enum { PAIR_STEPS = 64, PAIR_LANES = 8, MAX_PAIRS = 512, FADE_DIGITS = 7 };

/* Without padding, so that tables of the same numbers have the same bytes. */
struct pairs {
    int count, offset; /* pairs, and the first rotated channel */
    /* Pair t is (2t, 2t + 1), else (t, t + count), counted from offset. */
    int interleaved;
    int axes, groups; /* groups: 1, or the kv heads */
    /* count in whole lanes; the additional pairs have frequency 0 */
    int width;
    double factor; /* m */
    /* Angles as code in float computes them: see terms/angles.h.  Frequencies are floats then. */
    int angles_f32;
    /* Of a rotation that fades.  span: key tiles that share a reference.  least: the power of z
     * below which a query of a run is negligible, because no key of those tiles makes it large. */
    int span;
    double least;
};
_Static_assert(sizeof(struct pairs) == 6 * 4 + 8 + 2 * 4 + 8, "no holes");
_Static_assert(sizeof(struct pairs) <= 64, "rows start 64 bytes behind the struct");

/* The frequency of a pair in two parts: hi + lo, lo at most half an ulp of hi.  Both are 0 on entry
 * and stay 0 for pairs that an axis does not rotate. */
typedef void pairs_frequency(const struct prep *, int axis, int group, int t, double *hi,
                             double *lo);

size_t loci_pairs_size(int count, int axes, int groups);
/* Writes the table; `width` is set here. */
void loci_pairs_prepare(const struct prep *, struct pairs, pairs_frequency *);

/* The return values of an encoding's multiplies() for such a table. */
double loci_pairs_factor(const void *table, int *channel, int *channels);

/* The same for fading pairs of one axis and group: z[t] = hi + lo. */
size_t loci_fading_pairs_size(int count);
void loci_fading_pairs_prepare(const struct prep *, struct pairs, pairs_frequency *,
                               pairs_frequency *z);

static inline int pairs_width(int count)
{
    return (count + PAIR_LANES - 1) / PAIR_LANES * PAIR_LANES;
}

/* The rows of a group and axis: hi, lo, then cos and sin of each step. */
static inline const double *pairs_rows(const struct pairs *p, int group, int axis)
{
    return (const double *)((const char *)p + 64)
         + (ptrdiff_t)(group * p->axes + axis) * (2 + 2 * PAIR_STEPS) * p->width;
}

/* Parts of the gradient are [axes][dim / 2] per kv head for any count.  Their size must not depend
 * on tables, which loci_workspace() does not see. */
static inline ptrdiff_t pairs_part(int dim, int axes) { return (ptrdiff_t)axes * (dim / 2); }

#endif
