/* SPDX-License-Identifier: MIT */
/* band_q.h -- the table of the term `band_q`: vectors by distance for queries and, optionally, for
 * values.  Each table has `rows` vectors.  There is one table for all heads or one for each.  The
 * distances lo .. hi select rows by an index that rises or falls with the distance.  Distances
 * beyond have the rows of the nearer end.  The prepared table has the index, int32_t [hi - lo + 1].
 * For each table it then has the query vectors transposed, real [D][columns], and the value
 * vectors, real [rows][width].  A part of the gradients has them as [rows][padded D] and
 * [rows][padded Dv]. */
#ifndef LOCI_LAYOUT_BAND_Q_H
#define LOCI_LAYOUT_BAND_Q_H

#include "contract/encoding.h"

struct vectors {
    int lo, hi, rows, tables;
    bool values;
};

static inline size_t vectors_padded(int n) { return ((size_t)n + 15) / 16 * 16; }
/* Products read tables along columns.  An odd number of cache lines per row spreads a column over
 * all sets of the cache. */
static inline size_t vectors_odd(size_t padded) { return (padded / 16 | 1) * 16; }
/* 16 additional columns, so that whole vectors can be read from any row on. */
static inline size_t vectors_columns(const struct vectors *v)
{
    return vectors_odd(vectors_padded(v->rows) + 16);
}
static inline size_t vectors_width(int value_dim) { return vectors_odd(vectors_padded(value_dim)); }

/* vectors_index(): bytes of the index before the first table, in whole lines.  vectors_values():
 * reals of the query vectors before the values. */
static inline size_t vectors_index(const struct vectors *v)
{
    return ((size_t)(v->hi - v->lo + 1) * sizeof(int32_t) + 63) / 64 * 64;
}
static inline size_t vectors_values(const struct vectors *v, int dim)
{
    return (size_t)dim * vectors_columns(v);
}
/* Reals of one table, and bytes of all tables. */
static inline size_t vectors_table(const struct vectors *v, int dim, int value_dim)
{
    return vectors_values(v, dim) + (v->values ? (size_t)v->rows * vectors_width(value_dim) : 0);
}
static inline size_t vectors_size(const struct vectors *v, int dim, int value_dim, size_t each)
{
    return vectors_index(v) + (size_t)v->tables * vectors_table(v, dim, value_dim) * each;
}
/* Reals of a part of the gradients. */
static inline size_t vectors_part(const struct vectors *v, int dim, int value_dim)
{
    return (size_t)v->rows * (vectors_padded(dim) + (v->values ? vectors_padded(value_dim) : 0));
}

#endif
