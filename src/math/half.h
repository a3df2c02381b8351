/* SPDX-License-Identifier: MIT */
/* half.h -- numbers of 16 bits: bf16 (8 bits of exponent, 7 of fraction) and f16 (5 and 10).
 * Widening is exact.  Narrowing rounds to nearest, ties to even, and NaN stays NaN.  simd/ has the
 * same operations for vectors. */
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
/* Adding half of the last remaining bit, less one if that bit is even, and truncating rounds to
 * nearest, ties to even.  A carry propagates correctly into the exponent, and the largest floats
 * become infinite.  A NaN is handled apart, because the same carry could make it infinite; 0x40
 * makes it quiet. */
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
    /* Numbers from 2^16 on are infinite.  Smaller ones that round up to 2^16 carry into the
     * exponent at the end. */
    if (size >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    /* Numbers below 2^-14 are multiples of 2^-24, which is the last bit of 0.5 in float.  So adding
     * 0.5 rounds to them. */
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
    case LOCI_F64:
        return ((const double *)p)[i];
    case LOCI_F32:
        return (double)((const float *)p)[i];
    case LOCI_BF16:
        return (double)from_bf16(((const uint16_t *)p)[i]);
    default:
        return (double)from_f16(((const uint16_t *)p)[i]);
    }
}
/* Numbers of 16 bits are rounded from x as a float, like in the engine.  Rounding once from the
 * double would occasionally give another bit. */
static inline void store_stored(void *p, loci_dtype dtype, ptrdiff_t i, double x)
{
    switch (dtype) {
    case LOCI_F64:
        ((double *)p)[i] = x;
        break;
    case LOCI_F32:
        ((float *)p)[i] = (float)x;
        break;
    case LOCI_BF16:
        ((uint16_t *)p)[i] = to_bf16((float)x);
        break;
    default:
        ((uint16_t *)p)[i] = to_f16((float)x);
    }
}

#endif
