/* SPDX-License-Identifier: MIT */
/* loci/convert.h: what moves a model from one engine's conventions to another's.
 *
 * Weights between pairings, tables of cos and sin in the layouts that engines read, and rounding to
 * 16 bits.  How the keys of a cache are moved to other positions is told in docs/convert.md:
 * loci_rotate does it.  Nothing here allocates. */
#ifndef LOCI_LOCI_CONVERT_H
#define LOCI_LOCI_CONVERT_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Weights --------------------------------------------------------------------------------- */

/* Numbers [outer][heads][dim][inner] whose channels (dim) are put into the order of another
 * pairing.  What they are:
 *
 *     a weight [heads * dim][model], as most files have it         inner = model
 *     a weight [model][heads * dim], its transpose                 outer = model
 *     a bias [heads * dim], a norm per channel, heads = 1 if shared
 *     a projection or a cache [tokens][heads * dim]                outer = tokens
 *
 * Convert W_q (with the query heads), W_k (with the kv heads), their biases and norms, and nothing
 * else: scores stay what they were, because q and k get the same order. */
typedef enum { LOCI_HALF, LOCI_INTERLEAVED } loci_pairing;
typedef struct {
    size_t size;                         /* sizeof(loci_channels) */
    size_t element;                      /* bytes of a number, 1 to 8; they are moved, never read as
                                            numbers */
    int heads, dim;
    int turned, offset;                  /* channels offset .. offset + turned - 1 turn; turned 0 =
                                            all from offset on */
    ptrdiff_t outer, inner;              /* 0 = 1 */
    ptrdiff_t stride;                    /* numbers from one [heads][dim][inner] to the next; 0 =
                                            dense */
} loci_channels;
#define LOCI_CHANNELS(...) { .size = sizeof(loci_channels), __VA_ARGS__ }
/* y may be x; else they must not overlap.  error may be NULL. */
LOCI_API loci_status loci_convert_channels(const loci_channels *, loci_pairing from,
                                           loci_pairing to, const void *x, void *y,
                                           loci_error *error);

/* ---- Tables of cos and sin ------------------------------------------------------------------- */

/* A row per position: SPLIT c0 c1 .. (dim/2 numbers), HALF c0 c1 .. c0 c1 .., INTERLEAVED c0 c0 c1
 * c1 .. (dim numbers), dim being rope's, the channels that turn.  Both are multiplied by the
 * attention factor, and rounded once. */
typedef enum { LOCI_TABLE_SPLIT, LOCI_TABLE_HALF, LOCI_TABLE_INTERLEAVED } loci_table_layout;
typedef struct {
    size_t size;                         /* sizeof(loci_rope_table) */
    loci_table_layout layout;            /* of its own: the pairing of the plan's text does not
                                            matter here */
    loci_dtype dtype;                    /* of the table, whatever the plan's: F64, F32, BF16 or
                                            F16 */
    ptrdiff_t count;                     /* rows */
    const int64_t *pos;                  /* [count]; NULL: 0, 1, ... */
    ptrdiff_t row;                       /* numbers from a row to the next; 0 = dense.  cos beside
                                            sin in one buffer: twice that */
    void *cos, *sin;                     /* either may be NULL: not wanted */
} loci_rope_table;
#define LOCI_ROPE_TABLE(...) { .size = sizeof(loci_rope_table), __VA_ARGS__ }
/* Of a plan whose text has one rope; tensors as for loci_prepare (NULL where the plan has none). */
LOCI_API loci_status loci_export_rope(const loci_plan *, const void *const *tensors,
                                      const loci_rope_table *, loci_error *error);

/* ---- Rounding -------------------------------------------------------------------------------- */

/* y = x in dtype, to nearest, ties to even; too large becomes infinite, too small subnormal or 0,
 * NaN stays NaN. */
LOCI_API loci_status loci_round(loci_dtype, ptrdiff_t count, const double *x, void *y);

#ifdef __cplusplus
}
#endif
#endif
