/* SPDX-License-Identifier: MIT */
/* q8.h -- q8_0: blocks of 32 numbers, an f16 scale and 32 whole numbers from -127 to 127.  Number i
 * of a block is scale times whole number i, which is exact in a float.  docs/bits.md has the
 * rounding.  A block's bytes are those of other programs: the scale, lower byte first, then the
 * whole numbers. */
#ifndef LOCI_MATH_Q8_H
#define LOCI_MATH_Q8_H

#include "math/half.h"

enum { Q8_BLOCK = 32, Q8_BYTES = 34 };

/* Bytes of n numbers; of whole blocks if they come in blocks. */
static inline ptrdiff_t stored_bytes(loci_dtype dtype, ptrdiff_t n)
{
    return dtype == LOCI_Q8_0 ? n / Q8_BLOCK * Q8_BYTES : n * (ptrdiff_t)stored_size(dtype);
}

static inline uint16_t q8_scale_bits(const void *block)
{
    const unsigned char *p = block;
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline const int8_t *q8_numbers(const void *block)
{
    return (const int8_t *)block + sizeof(uint16_t);
}

/* Number i from `p` on, in any stored type. */
static inline double stored_number(const void *p, loci_dtype dtype, ptrdiff_t i)
{
    if (dtype != LOCI_Q8_0) return load_stored(p, dtype, i);
    const char *block = (const char *)p + i / Q8_BLOCK * Q8_BYTES;
    return (double)from_f16(q8_scale_bits(block)) * q8_numbers(block)[i % Q8_BLOCK];
}

/* The scale of a block whose largest |number| is `most`, as f16.  NaN if a number is not finite or
 * beyond what a scale can reach: then all 32 become NaN. */
static inline uint16_t q8_scale_of(float most)
{
    const uint16_t scale = to_f16(most / 127);
    return (scale & 0x7c00) == 0x7c00 ? 0x7e00 : scale;
}
/* The whole number nearest to x / scale, ties to even.  The scale is rounded, so the quotient may
 * exceed 127. */
static inline int8_t q8_number(float x, float scale)
{
    /* Adding 1.5 * 2^23 rounds to whole numbers. */
    const float n = scale > 0 ? (x / scale + 12582912.0f) - 12582912.0f : 0;
    return (int8_t)(n > 127 ? 127 : n < -127 ? -127 : n);
}
/* Rounds 32 floats.  Whole numbers are `step` bytes apart.  Returns the scale. */
static inline uint16_t q8_round(const float *x, int8_t *to, ptrdiff_t step)
{
    float most = 0;
    for (int i = 0; i < Q8_BLOCK; i++) {
        const float size = x[i] < 0 ? -x[i] : x[i];
        most = size > most || size != size ? size : most; /* NaN stays to the end */
    }
    const uint16_t bits = q8_scale_of(most);
    const float scale = from_f16(bits);
    for (int i = 0; i < Q8_BLOCK; i++) to[i * step] = q8_number(x[i], scale);
    return bits;
}
/* Rounds 32 floats to a block. */
static inline void q8_round_block(const float *x, void *block)
{
    unsigned char *to = block;
    const uint16_t scale = q8_round(x, (int8_t *)to + sizeof scale, 1);
    to[0] = (unsigned char)(scale & 0xff);
    to[1] = (unsigned char)(scale >> 8);
}

#endif
