/* SPDX-License-Identifier: MIT */
/* mask.c -- see mask.h.  A call reads its whole mask, so loops go through blocks of a constant
 * length, which compilers turn into vectors. */
#include "ggml/mask.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { BLOCK = 64, HIDDEN = 0xfc00 /* -inf */, MAGNITUDE = 0x7fff };

/* Do all numbers of a block hide their keys? */
static bool all_hidden(const uint16_t *x)
{
    uint16_t other = 0;
    for (int i = 0; i < BLOCK; i++) other = (uint16_t)(other | (x[i] ^ HIDDEN));
    return other == 0;
}
static bool all_zero(const uint16_t *x)
{
    uint16_t other = 0;
    for (int i = 0; i < BLOCK; i++) other = (uint16_t)(other | (x[i] & MAGNITUDE));
    return other == 0;
}
static bool is_zero(uint16_t x) { return (x & MAGNITUDE) == 0; }

/* What n numbers say: all are 0, some hide keys, or some are added. */
static enum mask_form form_of(const uint16_t *x, ptrdiff_t n)
{
    enum mask_form form = MASK_RANGES;
    for (ptrdiff_t i = 0; i < n;) {
        if (n - i >= BLOCK && all_zero(x + i)) {
            i += BLOCK;
            continue;
        }
        const ptrdiff_t end = n - i < BLOCK ? n : i + BLOCK;
        for (; i < end; i++) {
            if (is_zero(x[i])) continue;
            if (x[i] != HIDDEN) return MASK_NUMBERS;
            form = MASK_HOLES;
        }
    }
    return form;
}

enum mask_form loci_mask_read(const uint16_t *mask, ptrdiff_t stride, ptrdiff_t rows,
                              ptrdiff_t keys, int64_t *first, int64_t *last)
{
    enum mask_form form = MASK_RANGES;
    for (ptrdiff_t i = 0; i < rows; i++) {
        const uint16_t *x = mask + i * stride;
        ptrdiff_t a = 0, end = keys;
        while (keys - a >= BLOCK && all_hidden(x + a)) a += BLOCK;
        while (a < keys && x[a] == HIDDEN) a++;
        while (end - a >= BLOCK && all_hidden(x + end - BLOCK)) end -= BLOCK;
        while (end > a && x[end - 1] == HIDDEN) end--;
        first[i] = a < end ? a : 0;
        last[i] = a < end ? end - 1 : -1;
        const enum mask_form row = form == MASK_NUMBERS ? form : form_of(x + a, end - a);
        if (row > form) form = row;
    }
    return form;
}

ptrdiff_t loci_mask_count(const uint16_t *row, ptrdiff_t keys)
{
    ptrdiff_t count = 0;
    for (ptrdiff_t j = 0; j < keys; j++) count += row[j] != HIDDEN;
    return count;
}
void loci_mask_list(const uint16_t *row, ptrdiff_t keys, int32_t *list)
{
    for (ptrdiff_t j = 0; j < keys;) {
        if (keys - j >= BLOCK && all_hidden(row + j)) {
            j += BLOCK;
            continue;
        }
        const ptrdiff_t end = keys - j < BLOCK ? keys : j + BLOCK;
        for (; j < end; j++)
            if (row[j] != HIDDEN) *list++ = (int32_t)j;
    }
}

void loci_mask_seen(const uint16_t *row, ptrdiff_t keys, unsigned char *seen)
{
    for (ptrdiff_t j = 0; j < keys; j++) seen[j] = row[j] != HIDDEN;
}

/* A float of 16 bits.  Its exponent and mantissa, shifted, are a float that is 2^112 too small, for
 * small numbers too. */
static float widen(uint16_t x)
{
    const uint32_t bits = (uint32_t)(x & MAGNITUDE) << 13, sign = (uint32_t)(x >> 15) << 31;
    uint32_t wide = bits | 0x7f800000u; /* inf and NaN */
    float y;
    memcpy(&y, &bits, sizeof y);
    y *= 0x1p112f;
    if ((x & 0x7c00) != 0x7c00) memcpy(&wide, &y, sizeof y);
    wide |= sign;
    memcpy(&y, &wide, sizeof y);
    return y;
}

void loci_mask_added(const uint16_t *row, ptrdiff_t keys, float factor, float *added)
{
    for (ptrdiff_t j = 0; j < keys; j++) added[j] = factor * widen(row[j]);
}
