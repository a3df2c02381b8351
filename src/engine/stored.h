/* SPDX-License-Identifier: MIT */
/* stored.h -- numbers as the caller stores them, and as reals. */
#ifndef LOCI_ENGINE_STORED_H
#define LOCI_ENGINE_STORED_H

#include "engine/term.h"
#include "math/q8.h"

/* True if q, o and all gradients are reals already. */
INLINE bool in_place(const struct call *c) { return c->plan->stored == sizeof(real); }
INLINE void *stored_row(const struct call *c, const loci_view *v, ptrdiff_t b, int h, ptrdiff_t i)
{
    return (char *)v->data + (b * v->batch + h * v->head + i * v->row) * (ptrdiff_t)c->plan->stored;
}
INLINE enum form form_of(loci_dtype dtype)
{
    return dtype == LOCI_BF16 ? BITS_BF16
         : dtype == LOCI_F16  ? BITS_F16
         : dtype == LOCI_Q8_0 ? BLOCKS_Q8
                              : REALS;
}

/* n numbers of 16 bits to reals, and back.  The last ones are converted one by
 * one, with the same rounding. */
INLINE void reals_of_16(const bool bf16, const uint16_t *from, int n, real *to)
{
    int i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(to + i, bf16 ? vf_load_bf16(from + i) : vf_load_f16(from + i));
    for (; i < n; i++) to[i] = (real)(bf16 ? from_bf16(from[i]) : from_f16(from[i]));
}
INLINE void reals_to_16(const bool bf16, const real *from, int n, uint16_t *to)
{
    int i = 0;
    for (; i + VL <= n; i += VL) {
        if (bf16) vf_store_bf16(to + i, vf_load(from + i));
        else vf_store_f16(to + i, vf_load(from + i));
    }
    for (; i < n; i++) to[i] = bf16 ? to_bf16((float)from[i]) : to_f16((float)from[i]);
}
/* n numbers in blocks of q8_0. */
INLINE void reals_of_q8(const char *from, int n, real *to)
{
    for (; n > 0; n -= Q8_BLOCK, from += Q8_BYTES, to += Q8_BLOCK) {
        const vf scale = vf_set1((real)from_f16(q8_scale_bits(from)));
        for (int i = 0; i < Q8_BLOCK; i += VL)
            vf_store(to + i, vf_mul(vf_load_s8(q8_numbers(from) + i), scale));
    }
}
INLINE void to_reals(loci_dtype dtype, const void *from, int n, real *to)
{
    const enum form form = form_of(dtype);
    if (form == REALS) memcpy(to, from, sizeof(real) * (size_t)n);
    else if (form == BLOCKS_Q8) reals_of_q8(from, n, to);
    else if (form == BITS_BF16) reals_of_16(true, from, n, to);
    else reals_of_16(false, from, n, to);
}
/* Not to q8_0, which only a cache has as an output (cache_update.c). */
INLINE void from_reals(loci_dtype dtype, const real *from, int n, void *to)
{
    const enum form form = form_of(dtype);
    if (form == REALS) memcpy(to, from, sizeof(real) * (size_t)n);
    else if (form == BITS_BF16) reals_to_16(true, from, n, to);
    else reals_to_16(false, from, n, to);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* n rows of reals; rows past n up to QT, and the padding, are 0. */
INLINE void pad_rows(int n, int width, real *rows, int stride)
{
    for (int r = 0; r < QT; r++)
        for (int d = r < n ? width : 0; d < stride; d++) rows[(ptrdiff_t)r * stride + d] = 0;
}
/* n rows of a view as padded reals. */
INLINE void load_rows(const struct call *c, const loci_view *v, ptrdiff_t b, int h, ptrdiff_t i,
                      int n, int width, real *rows)
{
    for (int r = 0; r < n; r++)
        to_reals(c->plan->dtype, stored_row(c, v, b, h, i + r), width,
                 rows + (ptrdiff_t)r * padded(width));
    pad_rows(n, width, rows, padded(width));
}
/* n rows of queries, not yet rotated, with the stride of rotated ones. */
INLINE void load_queries(const struct call *c, ptrdiff_t b, int h, ptrdiff_t i, int n, real *rows)
{
    const int D = c->plan->dim, stride = padded(c->plan->score_dim);
    for (int r = 0; r < n; r++)
        to_reals(c->plan->dtype, stored_row(c, &c->q, b, h, i + r), D,
                 rows + (ptrdiff_t)r * stride);
    pad_rows(n, D, rows, stride);
}
/* The reverse: n rows of reals, each number rounded once. */
INLINE void store_rows(const struct call *c, const real *rows, ptrdiff_t stride, const loci_view *v,
                       ptrdiff_t b, int h, ptrdiff_t i, int n, int width)
{
    for (int r = 0; r < n; r++)
        from_reals(c->plan->dtype, rows + r * stride, width, stored_row(c, v, b, h, i + r));
}
/* Zeroes a view row by row: gaps between rows and heads belong to the caller. */
INLINE void clear(const loci_view *v, ptrdiff_t B, int H, ptrdiff_t L, int width, size_t size)
{
    if (!v->data) return;
    for (ptrdiff_t b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (ptrdiff_t i = 0; i < L; i++)
                memset((char *)v->data
                           + (b * v->batch + h * v->head + i * v->row) * (ptrdiff_t)size,
                       0, size * (size_t)width);
}

#endif
