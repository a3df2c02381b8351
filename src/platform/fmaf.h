/* SPDX-License-Identifier: MIT */
/* fmaf.h -- a * b + c in float, rounded once.  The bits of every engine depend on it.
 *
 * The function of Microsoft's C library, and that of MinGW-w64, round twice.  There the sum is made
 * in double, rounded to odd: if it is not exact, its last bit is set.  Then no digit that decides
 * the second rounding is lost (Boldo and Melquiond, IEEE Trans. Comput. 2008). */
#ifndef LOCI_PLATFORM_FMAF_H
#define LOCI_PLATFORM_FMAF_H

#if defined _WIN32 && !defined __FMA__ && !defined __aarch64__
#include <stdint.h>
#include <string.h>

static inline float exact_fmaf(float a, float b, float c)
{
    const double p = (double)a * b; /* exact */
    double sum = p + c;
    const double back = sum - p, rest = (p - (sum - back)) + (c - back); /* p + c = sum + rest */
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (sum - sum == 0 && rest != 0 && bits % 2 == 0) {
        bits += (rest > 0) == (sum > 0) ? 1 : -1;
        memcpy(&sum, &bits, sizeof sum);
    }
    return (float)sum;
}
#else
static inline float exact_fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#endif

#endif
