/* SPDX-License-Identifier: MIT */
/* band_k.h -- the table of the term `band_k`: vectors by distance for keys.  The table has a copy
 * for each of the distances lo .. hi, so that a run of distances is contiguous.  The ends extend by
 * KEY_MARGIN distances.  For each head the prepared table has the vectors transposed, real
 * [D][columns], and as rows, real [columns][width].  A part has the sums of pairs that are known to
 * be at an end without a test of each, [2][padded D] for lo and hi, and then [D][columns]. */
#ifndef LOCI_LAYOUT_BAND_K_H
#define LOCI_LAYOUT_BAND_K_H

#include "layout/band_q.h"

/* at: byte offset in the table of the encoding */
struct key_vectors {
    int lo, hi;
    size_t at;
};
enum { KEY_MARGIN = 80 }; /* distances of 16 keys to 64 rows, one product */

static inline size_t key_columns(const struct key_vectors *v)
{
    return vectors_odd(vectors_padded(v->hi - v->lo + 1 + 2 * KEY_MARGIN));
}
/* key_table(): reals of one head in the table, transposed and as rows.  key_ends(): of the ends in
 * a part.  key_part(): of a part. */
static inline size_t key_table(const struct key_vectors *v, int dim)
{
    return key_columns(v) * ((size_t)dim + vectors_width(dim));
}
static inline size_t key_ends(int dim) { return 2 * vectors_padded(dim); }
static inline size_t key_part(const struct key_vectors *v, int dim)
{
    return key_ends(dim) + (size_t)dim * key_columns(v);
}
/* The distance of a column.  Columns in the margin have the distance of the nearer end. */
static inline int key_distance(const struct key_vectors *v, ptrdiff_t column)
{
    const ptrdiff_t d = v->lo - KEY_MARGIN + column;
    return (int)(d < v->lo ? v->lo : d > v->hi ? v->hi : d);
}

#endif
