/* SPDX-License-Identifier: MIT */
/* halfway.h -- sums a * b + c next to a point halfway between two floats, where rounding twice is
 * wrong, for tests of fma: the same in every run. */
#ifndef LOCI_TESTS_SUPPORT_HALFWAY_H
#define LOCI_TESTS_SUPPORT_HALFWAY_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

static uint64_t halfway_state = 88172645463325252u;
static inline uint32_t draw(void)
{
    halfway_state ^= halfway_state << 13;
    halfway_state ^= halfway_state >> 7;
    halfway_state ^= halfway_state << 17;
    return (uint32_t)(halfway_state >> 16);
}
/* From low to high. */
static inline int between(int low, int high)
{
    return low + (int)(draw() % (uint32_t)(high - low + 1));
}
static inline float with_sign(double x) { return (float)(draw() & 1 ? -x : x); }

/* a * b is a power of two, but for a last digit far away, and half of the last place of c.  tiny: c
 * is below 2^-126, where halfway points lie elsewhere. */
static inline void draw_halfway(bool tiny, float *a, float *b, float *c)
{
    const int x = tiny ? between(-78, -71) : between(-20, 20),
              y = tiny ? -150 - x : between(-20, 20), k = between(-2, 2), l = draw() & 1 ? -k : k;
    const double whole = draw() >> 9;
    *a = with_sign(ldexp(1 + k * 0x1p-22, x));
    *b = with_sign(ldexp(1 + l * 0x1p-22, y));
    *c = with_sign(tiny ? ldexp(whole, -149) : ldexp(0x1p23 + whole, x + y + 1));
}

#endif
