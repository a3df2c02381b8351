/* SPDX-License-Identifier: MIT */
/* fmaf.h -- a * b + c in float, rounded once.  The bits of every engine depend on it.
 *
 * The function of Microsoft's C library, and that of MinGW-w64, round twice, and WebAssembly has no
 * instruction for it.  Code for every x86 may not use one: glibc's function takes twice as long as
 * the sum in double where the processor has it, and 30 times where it has not.  There the sum is
 * made in double.  Rounding it once more is wrong only if it lies halfway between two floats.
 * Then it is first rounded to odd: if it is not exact, its last bit is set, and no digit that
 * decides the second rounding is lost (Boldo and Melquiond, IEEE Trans. Comput. 2008). */
#ifndef LOCI_PLATFORM_FMAF_H
#define LOCI_PLATFORM_FMAF_H

#include <stdint.h>
#include <string.h>

/* By products and sums in double. */
static inline float fmaf_by_double(float a, float b, float c)
{
    const double p = (double)a * b; /* exact */
    double sum = p + c;
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    /* Floats below 2^-126 have other halfway points. */
    const uint32_t high = (uint32_t)(bits >> 32) & 0x7fffffff, least = 0x38100000;
    if (__builtin_expect((bits & 0x1fffffff) != 0x10000000 && high - 1 >= least - 1, 1))
        return (float)sum;
    const double back = sum - p, rest = (p - (sum - back)) + (c - back); /* p + c = sum + rest */
    if (sum - sum == 0 && rest != 0 && bits % 2 == 0) {
        bits += (rest > 0) == (sum > 0) ? 1 : -1;
        memcpy(&sum, &bits, sizeof sum);
    }
    return (float)sum;
}

#if defined __wasm__ \
    || ((defined __SSE2_MATH__ || defined _WIN32) && !defined __FMA__ && !defined __FMA4__ \
        && !defined __aarch64__)
static inline float exact_fmaf(float a, float b, float c) { return fmaf_by_double(a, b, c); }
#else
static inline float exact_fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#endif

#endif
