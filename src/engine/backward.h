/* SPDX-License-Identifier: MIT */
/* backward.h -- the steps of a backward pass, which goes through all of them in one process, and
 * takes them one by one where many processes add to the same sums. */
#ifndef LOCI_ENGINE_BACKWARD_H
#define LOCI_ENGINE_BACKWARD_H

#include "engine/workspace.h"

/* Chunks of keys, first .. last; there is always one. */
struct chunks { ptrdiff_t first, last; };

/* Rows of a sequence, ROW_CHUNK at most, and the heads of one kv head, or all heads.  kvh: its
 * only, or its first kv head. */
struct item {
    const struct sequence *q;
    ptrdiff_t row, rows;
    int kvh;
    struct keyrange keys;                /* that any of its rows may see */
    struct chunks chunks;
};
INLINE ptrdiff_t tiles_of_rows(const struct sequence *q)
{
    return (q->nq + ROW_CHUNK - 1) / ROW_CHUNK;
}
/* How many items there are for the same rows. */
INLINE int groups_of(const struct call *c)
{
    return c->plan->kv_heads / item_kv_heads(c->plan);
}
/* Item number i of a sequence, latest rows first. */
struct item N(item_at)(const struct call *, const struct sequence *, ptrdiff_t i);

/* Is there a scan? */
bool N(scans)(const struct call *);
/* An item and one chunk of keys: all their sums, from 0.  False: the host has cancelled. */
bool N(sum_item)(const struct call *, const struct workspace *, const struct sums *,
                 const struct item *, ptrdiff_t chunk);
/* The carries that a chunk hands on to the older one, where chunks are swept one by one, newest
 * first, before any is summed. */
bool N(sweep_item)(const struct call *, const struct workspace *, const struct sums *,
                   const struct item *, ptrdiff_t chunk);
/* Adds an item's gradients by key to the totals; and parts of its heads, in double, where they
 * belong. */
void N(add_item_keys)(const struct call *, const struct sums *, const struct item *,
                      ptrdiff_t chunk);
void N(add_item_parts)(const struct call *, const struct sums *, const struct item *);

/* dK has been summed over all rows as scores read keys: rotated and faded.  One tile of one key head
 * goes back, where it is, and leaves its part of the parameters' gradient, unless that is NULL. */
void N(unrotate_tile)(struct call *, const struct workspace *, const struct sequence *,
                    ptrdiff_t tile, int kh, real *part);
void N(add_tile_part)(const struct call *, ptrdiff_t b, int kh, const real *part);
/* All tiles; their parts are added in the order of the tiles. */
void N(unrotate_keys)(struct call *);

#endif
