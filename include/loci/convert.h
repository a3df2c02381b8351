/* SPDX-License-Identifier: MIT */
/* loci/convert.h: converts a model from the conventions of one engine to those of another.
 *
 * Weights between pairings, tables of cos and sin in the layouts that engines read, and rounding to
 * 16 bits.  loci_rotate() moves the keys of a cache to other positions, see docs/convert.md.
 * Nothing here allocates memory. */
#ifndef LOCI_LOCI_CONVERT_H
#define LOCI_LOCI_CONVERT_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Weights --------------------------------------------------------------------------------- */

/* An array [outer][heads][dim][inner] whose channels (dim) are put into the order of another
 * pairing:
 *
 *     a weight [heads * dim][model], as in most files              inner = model
 *     a weight [model][heads * dim], its transpose                 outer = model
 *     a bias [heads * dim], or a norm per channel                  heads = 1 if it is shared
 *     a projection or a cache [tokens][heads * dim]                outer = tokens
 *
 * Convert W_q (with the query heads), W_k (with the kv heads), their biases and their norms, and
 * nothing else.  Scores do not change, because q and k get the same order. */
typedef enum { LOCI_HALF, LOCI_INTERLEAVED } loci_pairing;
typedef struct {
    /* sizeof(loci_channels) */
    size_t size;
    /* Bytes of a number, 1 to 8.  Bytes are moved and not interpreted. */
    size_t element;
    int heads, dim;
    /* Channels offset .. offset + turned - 1 are rotated.  turned 0 = all from offset on. */
    int turned, offset;
    /* 0 = 1 */
    ptrdiff_t outer, inner;
    /* Numbers from one [heads][dim][inner] to the next; 0 = dense. */
    ptrdiff_t stride;
} loci_channels;
#define LOCI_CHANNELS(...) LOCI_SIZED(loci_channels, __VA_ARGS__)
/* y may be x; otherwise they must not overlap.  error may be NULL. */
LOCI_API loci_status loci_convert_channels(const loci_channels *, loci_pairing from,
                                           loci_pairing to, const void *x, void *y,
                                           loci_error *error);

/* ---- Tables of cos and sin ------------------------------------------------------------------- */

/* One row per position, for the dim channels that rope rotates:
 *
 *     SPLIT          c0 c1 ..             dim/2 numbers
 *     HALF           c0 c1 .. c0 c1 ..    dim numbers
 *     INTERLEAVED    c0 c0 c1 c1 ..       dim numbers
 *
 * cos and sin are multiplied by the attention factor and rounded once. */
typedef enum { LOCI_TABLE_SPLIT, LOCI_TABLE_HALF, LOCI_TABLE_INTERLEAVED } loci_table_layout;
typedef struct {
    /* sizeof(loci_rope_table) */
    size_t size;
    /* Independent of the pairing in the plan's text. */
    loci_table_layout layout;
    /* Of the table: F64, F32, BF16 or F16, independent of the plan's. */
    loci_dtype dtype;
    /* Number of rows. */
    ptrdiff_t count;
    /* [count]; NULL = 0, 1, ... */
    const int64_t *pos;
    /* Numbers from one row to the next; 0 = dense.  For cos next to sin in one buffer, twice that
     * of a dense table. */
    ptrdiff_t row;
    /* Outputs.  NULL = not written. */
    void *cos, *sin;
} loci_rope_table;
#define LOCI_ROPE_TABLE(...) LOCI_SIZED(loci_rope_table, __VA_ARGS__)
/* The text of the plan has one rope.  tensors are those of loci_prepare(), NULL if the plan has
 * none. */
LOCI_API loci_status loci_export_rope(const loci_plan *, const void *const *tensors,
                                      const loci_rope_table *, loci_error *error);

/* ---- Rounding -------------------------------------------------------------------------------- */

/* y = x in dtype, rounded to nearest, ties to even.  A number that is too large becomes infinite,
 * one that is too small becomes subnormal or 0, and NaN remains NaN.  Q8_0: `count` is a multiple
 * of 32, y has 34 bytes for each 32 numbers, and a block with a number that is infinite, NaN or
 * beyond 8.3e6 becomes NaN. */
LOCI_API loci_status loci_round(loci_dtype, ptrdiff_t count, const double *x, void *y);

#ifdef __cplusplus
}
#endif
#endif
