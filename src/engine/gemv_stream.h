/* SPDX-License-Identifier: MIT */
/* gemv_stream.h -- products of decode.  Their cost is reading the keys and values, so several
 * rows share one read, in the stored form. */
#ifndef LOCI_ENGINE_GEMV_STREAM_H
#define LOCI_ENGINE_GEMV_STREAM_H

#include "engine/tile.h"

/* The largest number of rows that share one read of a block: all of them
 * have their sums in registers. */
enum { MOST = VL == 16 ? 8 : 4 };

/* A vector to multiply with every key of a tile, and where the dot products go. */
struct dot {
    const real *with;
    real *to;
};
/* The dot products of n vectors with the keys of a tile.  first: these keys have not been read
 * yet, so fetching ahead is worthwhile. */
void N(dots)(const struct dot *list, int n, const struct source *key, int D, int keys, bool first);

/* The same for rows that have not been read yet and that many more vectors share: they are left as
 * lines of channels, [D][KT] reals, which it returns.  Reading lines needs no memory, so the tile
 * before the next one is fetched meanwhile, unless it has reals, which would be too many. */
struct source N(dots_to_lines)(const struct dot *list, int n, const struct source *key, int D,
                               int keys, real *lines);

/* Rows that sum the same values of a tile: their weights are `weights` numbers apart, their sums
 * `apart`. */
struct summing {
    const struct source *value;
    int D, keys;
    const real *p;
    real *sums;
    ptrdiff_t weights, apart;
};
/* The sums of values of n rows that share a kv head. */
void N(sum_values)(const struct summing *, int n);

#endif
