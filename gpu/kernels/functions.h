/* SPDX-License-Identifier: MIT */
/* functions.h -- the functions of docs/bits.md, and numbers of 16 and 8 bits. */
#ifndef LOCI_GPU_KERNELS_FUNCTIONS_H
#define LOCI_GPU_KERNELS_FUNCTIONS_H

#include "kernels/shape.h"

/* NaN in b is taken: see max in docs/bits.md. */
DEV float max_(float a, float b) { return a > b ? a : b; }

/* e^x, and 0 below `low`. */
DEV float exp_from(float low, float x)
{
    const float t = fma_(x, 1.44269504f, 12582912.0f),
                r = fma_(t - 12582912.0f, -0.693147182f, x);
    float y = fma_(r, 0x1.0fa6c4p-7f, 0x1.573c42p-5f);
    y = fma_(r, y, 0x1.555a76p-3f);
    y = fma_(r, y, 0x1.fffdc0p-2f);
    y = fma_(r, y, 0x1.fffff6p-1f);
    y = fma_(r, y, 1.0f);
    y = from_bits(to_bits(y) + (to_bits(t) << 23));
    return x >= low ? y : max_nan(0.0f, x);
}
DEV float exp_(float x) { return exp_from(-60.0f, x); }
DEV float scale2(float y, float t) { return from_bits(to_bits(y) + (to_bits(t) << 23)); }

/* src/simd/num.h says how. */
DEV float tanh_(float x)
{
    const float minus = from_bits(to_bits(x) | 0x80000000u), twice = 2.0f * minus,
                y = max_(-40.0f, twice);
    const float t = fma_(y, 1.44269504f, 12582912.0f),
                r = fma_(t - 12582912.0f, -0.693147182f, y), power = scale2(1.0f, t);
    float e = fma_(r, 0x1.6bebf4p-10f, 0x1.1227f6p-7f);
    e = fma_(r, e, 0x1.555674p-5f);
    e = fma_(r, e, 0x1.5554b0p-3f);
    e = fma_(r, e, 0x1.fffffep-2f);
    e = fma_(r * r, e, r);
    e = fma_(power, e, power - 1.0f);
    e = e / (e + 2.0f);
    return to_bits(x) >> 31 ? e : 0.0f - e;
}

/* src/math/log.h: x > 0 and not subnormal, as sums of weights are. */
DEV double log_(double x)
{
    const uint64_t bits = double_to_bits(x);
    int e = (int)(bits >> 52 & 2047) - 1022;
    if (e == 1025) return x; /* inf and NaN */
    double m = bits_to_double((bits & 0xfffffffffffffUL) | 0x3fe0000000000000UL);
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    const double f = (m - 1) / (m + 1), g = f * f;
    double sum = 0;
    for (int n = 23; n >= 3; n -= 2) sum = (sum + 1.0 / n) * g;
    return 2 * f + 2 * f * sum + e * 0.69314718055994530942;
}

/* ---- Numbers of 16 bits: src/math/half.h ----------------------------------------------------- */

DEV float from_half(int type, uint32_t h)
{
    if (type == GPU_BF16) return from_bits(h << 16);
    const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31)
        return from_bits(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0));
    if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    return from_bits(sign | to_bits((float)fraction * 0x1p-24f));
}
DEV uint32_t to_half(int type, float x)
{
    const uint32_t bits = to_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (type == GPU_BF16)
        return size > 0x7f800000 ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    if (size > 0x7f800000) return sign | 0x7e00 | (size >> 13 & 0x3ff);
    if (size >= 0x47800000) return sign | 0x7c00;
    if (size < 0x38800000) return sign | (to_bits(from_bits(size) + 0.5f) - 0x3f000000);
    return sign | (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13;
}

/* ---- Blocks of q8_0: src/math/q8.h ----------------------------------------------------------- */

enum { Q8_NUMBERS = 32, Q8_WORDS = 17 }; /* a scale of 16 bits, and 32 numbers of 8 */
/* The block of number i of an array.  Blocks are aligned to 16 bits. */
DEV const GLOBAL uint16_t *q8_block_of(const GLOBAL char *at, int64_t i)
{
    return (const GLOBAL uint16_t *)at + i / Q8_NUMBERS * Q8_WORDS;
}
/* A byte with a sign, times the scale: exact. */
DEV float q8_number(uint32_t byte, float scale)
{
    return (float)((int)(byte ^ 0x80) - 0x80) * scale;
}

/* ---- Numbers as they are stored -------------------------------------------------------------- */

/* Number i of an array. */
DEV float load_number(const GLOBAL char *at, int type, int64_t i)
{
    if (type == GPU_F32) return ((const GLOBAL float *)at)[i];
    if (type == GPU_Q8) {
        const GLOBAL uint16_t *block = q8_block_of(at, i);
        const int n = (int)(i % Q8_NUMBERS);
        return q8_number(block[1 + n / 2] >> n % 2 * 8 & 0xff, from_half(GPU_F16, block[0]));
    }
    return from_half(type, ((const GLOBAL uint16_t *)at)[i]);
}
DEV void store_number(GLOBAL char *at, int type, int64_t i, float x)
{
    if (type == GPU_F32) ((GLOBAL float *)at)[i] = x;
    else ((GLOBAL uint16_t *)at)[i] = (uint16_t)to_half(type, x);
}

#endif
