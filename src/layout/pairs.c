/* SPDX-License-Identifier: MIT */
/* pairs.c -- fills the table of the term `pairs`. */
#include "layout/pairs.h"

#include "math/dd.h"
#include "math/trig.h"

/* 64 bytes of head, then rows of doubles: the frequency in two parts, and cos and sin of each
 * step. */
size_t loci_pairs_size(int count, int axes, int groups)
{
    return 64
         + (size_t)(axes * groups) * (2 + 2 * PAIR_STEPS) * (size_t)pairs_width(count)
               * sizeof(double);
}

void loci_pairs_prepare(const struct prep *p, struct pairs form, pairs_frequency *frequency)
{
    struct pairs *pairs = p->table;
    form.width = pairs_width(form.count);
    memset(pairs, 0, 64);
    *pairs = form;
    const int W = form.width;
    for (int g = 0; g < form.groups; g++)
        for (int axis = 0; axis < form.axes; axis++) {
            double *hi = (double *)pairs_rows(pairs, g, axis), *lo = hi + W, *step = lo + W;
            /* Rotations of several axes are multiplied, so the factor belongs to one of them. */
            const double m = axis == 0 ? form.factor : 1;
            for (int t = 0; t < W; t++) {
                /* A padding pair, or one that this axis does not rotate, has frequency 0: cos 1,
                 * sin 0. */
                hi[t] = lo[t] = 0;
                if (t < form.count) frequency(p, axis, g, t, &hi[t], &lo[t]);
            }
            for (int n = 0; n < PAIR_STEPS; n++)
                for (int t = 0; t < W; t++) {
                    double cos, sin;
                    loci_sincos(n, hi[t], lo[t], &cos, &sin);
                    step[2 * n * W + t] = m * cos;
                    step[(2 * n + 1) * W + t] = m * sin;
                }
        }
}

/* The factor that keys of a cache were multiplied by.  See loci_cache_remove(). */
double loci_pairs_factor(const void *table, int *channel, int *channels)
{
    const struct pairs *p = table;
    *channel = p->offset;
    *channels = 2 * p->count;
    return p->factor;
}

size_t loci_fading_pairs_size(int count)
{
    return loci_pairs_size(count, 1, 1)
         + (size_t)(FADE_DIGITS * PAIR_STEPS * pairs_width(count)) * sizeof(double);
}

void loci_fading_pairs_prepare(const struct prep *p, struct pairs form, pairs_frequency *frequency,
                               pairs_frequency *z)
{
    struct pairs *pairs = p->table;
    loci_pairs_prepare(p, form, frequency);
    double *rows = (double *)pairs_rows(pairs, 1, 0);
    const int W = pairs->width;
    for (int t = 0; t < W; t++) {
        struct dd base = { 1, 0 };
        if (t < form.count) z(p, 0, 0, t, &base.hi, &base.lo);
        /* Powers to 106 bits: 63 products per digit, over 7 digits, still leave a full double.
         * Powers whose low part would not be a normal double are 0. */
        for (int digit = 0; digit < FADE_DIGITS; digit++) {
            struct dd power = { 1, 0 };
            for (int n = 0; n < PAIR_STEPS; n++) {
                rows[(digit * PAIR_STEPS + n) * W + t] = power.hi;
                power =
                    power.hi * 0x1p900 < 1 / base.hi ? (struct dd){ 0, 0 } : dd_mul(power, base);
            }
            base = power;
        }
    }
}
