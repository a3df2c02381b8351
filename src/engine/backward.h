/* SPDX-License-Identifier: MIT */
/* backward.h -- the steps of a backward pass.  One process runs all of them; ranks that add to
 * the same sums run them one by one. */
#ifndef LOCI_ENGINE_BACKWARD_H
#define LOCI_ENGINE_BACKWARD_H

#include "engine/workspace.h"
#include "util/pipeline.h"

INLINE void add_numbers(real *to, const real *from, ptrdiff_t n)
{
    ptrdiff_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(to + i, vf_add(vf_load(to + i), vf_load(from + i)));
    for (; i < n; i++) to[i] += from[i];
}

/* The chunks of keys first .. last.  There is always at least one. */
struct chunks {
    ptrdiff_t first, last;
};

/* Up to ROW_CHUNK rows of a sequence, with the heads of one kv head or all heads.  kvh: its only
 * kv head, or the first one. */
struct item {
    const struct sequence *q;
    ptrdiff_t row, rows;
    int kvh;
    struct keyrange keys; /* all keys that any of its rows may see */
    struct chunks chunks;
};
INLINE ptrdiff_t tiles_of_rows(const struct sequence *q)
{
    return (q->nq + ROW_CHUNK - 1) / ROW_CHUNK;
}
/* The number of items for the same rows. */
INLINE int groups_of(const struct call *c) { return c->plan->kv_heads / item_kv_heads(c->plan); }
/* Item number i of a sequence, latest rows first. */
struct item N(item_at)(const struct call *, const struct sequence *, ptrdiff_t i);
/* The keys of an item in a chunk, counted in its sequence. */
INLINE struct keyrange keys_in_chunk(const struct item *a, ptrdiff_t chunk)
{
    const ptrdiff_t low = chunk * CHUNK, high = low + CHUNK - 1;
    return (struct keyrange){ a->keys.first > low ? a->keys.first : low,
                              a->keys.last < high ? a->keys.last : high };
}

/* The query tiles of an item are its units.  Several threads may process them: in the order of
 * their numbers, and in a pipeline whose stages are the tiles of a chunk. */
struct unit {
    struct pipelines *pipelines;
    struct pipeline *pipeline; /* NULL: one thread processes all units */
    ptrdiff_t number;
};
ptrdiff_t N(units_of)(const struct call *, const struct item *);

/* True if the plan has a scan. */
bool N(scans)(const struct call *);
/* The sums of an item for one chunk of keys start at 0; each unit adds to them; then they are
 * complete.  False: the host has cancelled. */
void N(open_sums)(const struct call *, const struct sums *, const struct item *, ptrdiff_t chunk);
bool N(sum_unit)(const struct call *, const struct workspace *, const struct sums *,
                 const struct item *, ptrdiff_t chunk, const struct unit *);
void N(close_sums)(const struct call *, const struct sums *, const struct item *, ptrdiff_t chunk);
/* All of this in one thread. */
bool N(sum_item)(const struct call *, const struct workspace *, const struct sums *,
                 const struct item *, ptrdiff_t chunk);
/* Computes the carries that a chunk passes to the older one.  Chunks are swept one by one,
 * newest first, before any is summed. */
bool N(sweep_item)(const struct call *, const struct workspace *, const struct sums *,
                   const struct item *, ptrdiff_t chunk);
/* Adds an item's gradients by key to the totals, or the parts of its heads, in double,
 * to the totals of the terms. */
void N(add_item_keys)(const struct call *, const struct sums *, const struct item *,
                      ptrdiff_t chunk);
void N(add_item_parts)(const struct call *, const struct sums *, const struct item *);

/* dK has been summed over all rows for the keys as scores read them: rotated and faded, and dV
 * for values that have turned.  Rotates one tile of one key head back in place.  Writes its part
 * of the parameters' gradient unless `part` is NULL. */
void N(unrotate_tile)(struct call *, const struct workspace *, const struct sequence *,
                      ptrdiff_t tile, int kh, real *part);
void N(add_tile_part)(const struct call *, ptrdiff_t b, int kh, const real *part);
/* True if there is something to rotate back. */
INLINE bool unrotates(const struct call *c)
{
    return c->plan->rotate >= 0 && c->mem.rotated
        && (c->g.dk.data || (c->mem.turned && c->g.dv.data));
}
/* If rows change on their walk: dk of the keys before, summed over the heads that read them. */
void N(unmove_keys)(struct call *);
/* Rotates all tiles back; their parts are added in the order of the tiles. */
void N(unrotate_keys)(struct call *);

#endif
