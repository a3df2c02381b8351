/* SPDX-License-Identifier: MIT */
/* band_k.h -- the table of the term `band_k`: vectors by distance for keys.  They are copied out,
 * one for each of the distances lo .. hi, so that a run of distances is a run in memory, and the
 * ends go on for KEY_MARGIN distances more.  For each head the prepared table has them transposed,
 * real [D][columns], and as rows, real [columns][width].  A part is the sums of those pairs that
 * were found to be at an end without a look at each, [2][padded D] for lo and hi, and then
 * [D][columns]. */
#ifndef LOCI_LAYOUT_BAND_K_H
#define LOCI_LAYOUT_BAND_K_H

#include "layout/band_q.h"

/* at: bytes before them in the table of the encoding */
struct key_vectors { int lo, hi; size_t at; };
enum { KEY_MARGIN = 80 };                /* distances of 16 keys to 64 rows, one product */

static inline size_t key_columns(const struct key_vectors *v)
{
    return vectors_odd(vectors_padded(v->hi - v->lo + 1 + 2 * KEY_MARGIN));
}
/* Reals of one head in the table, transposed and as rows; of the ends in a part; of a part. */
static inline size_t key_table(const struct key_vectors *v, int dim)
{
    return key_columns(v) * ((size_t)dim + vectors_width(dim));
}
static inline size_t key_ends(int dim) { return 2 * vectors_padded(dim); }
static inline size_t key_part(const struct key_vectors *v, int dim)
{
    return key_ends(dim) + (size_t)dim * key_columns(v);
}
/* The distance of a column; those in the margin have that of the nearer end. */
static inline int key_distance(const struct key_vectors *v, ptrdiff_t column)
{
    const ptrdiff_t d = v->lo - KEY_MARGIN + column;
    return (int)(d < v->lo ? v->lo : d > v->hi ? v->hi : d);
}

#endif
