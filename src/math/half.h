/* SPDX-License-Identifier: MIT */
/* half.h -- numbers of 16 bits: bf16 (8 bits of exponent, 7 of fraction) and f16 (5 and 10).
 * Widening is exact; narrowing rounds to nearest, ties to even, and NaN stays NaN.  isa/ has the
 * same a vector at a time. */
#ifndef LOCI_MATH_HALF_H
#define LOCI_MATH_HALF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "loci/loci.h"

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float from_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }
/* Adding half of the last bit kept, less one if that bit is even, and cutting
 * off rounds to nearest, ties to even; a carry walks into the exponent, where
 * it belongs, and the largest floats become infinite.  A NaN is kept apart,
 * since the same carry could make it infinite; 0x40 makes it quiet. */
static inline uint16_t to_bf16(float x)
{
    const uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float from_f16(uint16_t h)
{
    /* The exponents of float are 112 larger (bias 127 instead of 15). */
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31,
                   fraction = h & 1023;
    if (exponent == 31)
        return float_of(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
    if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    /* below 2^-14: a multiple of 2^-24, which is exact in float */
    return float_of(sign | bits_of((float)fraction * 0x1p-24f));
}
static inline uint16_t to_f16(float x)
{
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
    /* 2^16 and more is infinite; what is below and still rounds
     * up to 2^16 carries into the exponent at the end. */
    if (size >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    /* Below 2^-14 there are multiples of 2^-24, the last
     * bit of 0.5 in float: adding 0.5 rounds to them. */
    if (size < 0x38800000) return (uint16_t)(sign | (bits_of(float_of(size) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13);
}

/* Bytes of a number, and number i of a list. */
static inline size_t stored_size(loci_dtype dtype)
{
    return dtype == LOCI_F64 ? 8 : dtype == LOCI_F32 ? 4 : 2;
}
static inline double load_stored(const void *p, loci_dtype dtype, ptrdiff_t i)
{
    switch (dtype) {
    case LOCI_F64: return ((const double *)p)[i];
    case LOCI_F32: return (double)((const float *)p)[i];
    case LOCI_BF16: return (double)from_bf16(((const uint16_t *)p)[i]);
    default: return (double)from_f16(((const uint16_t *)p)[i]);
    }
}
/* Numbers of 16 bits are rounded from x as a float, as in the engine:
 * rounding once from the double would now and then give another bit. */
static inline void store_stored(void *p, loci_dtype dtype, ptrdiff_t i, double x)
{
    switch (dtype) {
    case LOCI_F64: ((double *)p)[i] = x; break;
    case LOCI_F32: ((float *)p)[i] = (float)x; break;
    case LOCI_BF16: ((uint16_t *)p)[i] = to_bf16((float)x); break;
    default: ((uint16_t *)p)[i] = to_f16((float)x);
    }
}

#endif
