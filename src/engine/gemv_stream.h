/* SPDX-License-Identifier: MIT */
/* stream.h -- products of decode.  Reading the keys and the values is what costs, so several rows
 * share one reading, in the form in which these are stored. */
#ifndef LOCI_ENGINE_GEMV_STREAM_H
#define LOCI_ENGINE_GEMV_STREAM_H

#include "engine/tile.h"

/* Rows that share one reading of a block: as many as have their sums in registers. */
enum { MOST = VL == 16 ? 8 : 4 };

/* A vector whose dot product with every key of a tile is wanted, and where the numbers go. */
struct dot { const real *with; real *to; };
/* The dot products of n vectors with the keys of a tile.  first: nobody has read these keys yet, so
 * that what comes next is worth asking for. */
void N(dots)(const struct dot *list, int n, const struct source *key, int D, int keys, bool first);

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
