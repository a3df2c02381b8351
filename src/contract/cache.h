/* SPDX-License-Identifier: MIT */
/* cache.h -- how a cache is laid out in memory.  See loci/cache.h.
 *
 * Keys of a head are stored in tiles of 64, channel by channel, as products read them:
 * [tiles][D][KT].  Values are stored as rows: [tiles][KT][Dv].  In q8_0 the scales of a tile come
 * first, [D / 32][KT], and then its whole numbers.  If values are channels of the keys, keys are
 * stored as rows, and there is nothing else.  Tile number t of a sequence is in slot t; in a
 * ring, in slot t modulo the number of tiles.  All places are offsets from the start,
 * so a cache can be moved or saved byte by byte.
 *
 * A tile of entry b may be in the memory of another entry, its owner: after a fork both read it.
 * An entry whose tile is elsewhere lends its own memory to no one.  So before a tile is written,
 * its other readers can move to the memory of one of them (cache_edit.c).
 *
 * A cache of a device (loci/gpu.h) has its struct, lists and positions in memory of the host, and
 * behind them the address of its memory there: all from `keys` on.  Keys and values are pages of a
 * tile there, [B * tiles][kv heads][KT][D], each page with the rows of all heads.  It stores
 * nothing that encodings make of inputs, and no staged keys. */
#ifndef LOCI_CONTRACT_CACHE_H
#define LOCI_CONTRACT_CACHE_H

#include "loci/cache.h"
#include "contract/call.h"
#include "math/q8.h"

enum { CACHE_MAGIC = 0x6c6f6361, CACHE_MAGIC_THERE = 0x6c6f6367 };

/* What the cache was created for.  Plans and calls must agree with it.  rotated: 1 if keys are
 * rotated, 2 if values have turned as well. */
struct cache_form {
    int64_t magic, batch, tiles, ring, kv_heads, dim, value_dim, dtype, k_dtype, v_dtype, rotated,
        values_in_keys;
};
/* An INPUT tensor by key: [B][outer][capacity][inner] reals. */
struct cache_input {
    ptrdiff_t at, outer, inner;
};

struct loci_cache {
    struct cache_form form;
    int placed; /* some key's position is not its number */
    /* Lists of [B] numbers.  len: keys so far.  most: the largest len so far.  base: the number of
     * a call's key 0, a multiple of CHUNK.  present: how many keys a call has.  first: positions
     * that append() computes. */
    ptrdiff_t len, most, base, present, first;
    ptrdiff_t pos; /* [B][capacity] if placed */
    ptrdiff_t keys, values;
    struct cache_input input[MAX_TENSORS];
    ptrdiff_t made[MAX_ENCODINGS]; /* what encodings store for their inputs; 0: nothing */
    /* For rows that change on their walk (engine/moves.h): keys in the form that rows of later
     * tiles read, and what the term stages besides, as a call has them in its workspace; 0: not
     * kept. */
    ptrdiff_t staged, moved;
    ptrdiff_t done; /* [B]: the length that these cover */
    /* [B][tiles]: the owner of each tile of an entry, relative to the entry; and how many other
     * entries read each tile of an entry's memory. */
    ptrdiff_t owner, readers;
};

/* Are keys and values in memory of a device?  The pointer need not be that of a cache. */
static inline bool cache_is_there(const struct loci_cache *c)
{
    return (uintptr_t)c % 64 == 0 && c->form.magic == CACHE_MAGIC_THERE;
}
/* The address of its memory there, and of offset `at`. */
static inline char **cache_there(const struct loci_cache *c)
{
    return (char **)((char *)c + c->keys - ALIGN);
}
static inline char *cache_there_at(const struct loci_cache *c, ptrdiff_t at)
{
    return *cache_there(c) + (at - c->keys);
}
static inline ptrdiff_t cache_capacity(const struct loci_cache *c)
{
    return (ptrdiff_t)c->form.tiles * KT;
}
/* The most keys that a call can have.  A ring counts its keys from the border of a chunk. */
static inline ptrdiff_t cache_max_keys(const struct loci_cache *c)
{
    return cache_capacity(c) + (c->form.ring ? CHUNK : 0);
}
static inline int64_t *cache_list(const struct loci_cache *c, ptrdiff_t at)
{
    return (int64_t *)((char *)c + at);
}

/* What was made of the keys, at this offset, or NULL if it does not cover exactly the keys of the
 * cache.  After truncate() it is stale until keys are appended. */
static inline void *cache_made_at(const struct loci_cache *c, ptrdiff_t at)
{
    bool whole = at != 0;
    for (int64_t b = 0; b < c->form.batch; b++)
        whole &= cache_list(c, c->done)[b] == cache_list(c, c->len)[b];
    return whole ? (char *)c + at : NULL;
}
/* What an encoding has stored. */
static inline void *cache_made(const struct loci_cache *c, int enc)
{
    return cache_made_at(c, c->made[enc]);
}

/* The oldest key that a ring still has.  Keys are dropped by whole tiles: a new tile overwrites the
 * oldest one. */
static inline int64_t cache_oldest(const struct loci_cache *c, ptrdiff_t b)
{
    const int64_t beyond = cache_list(c, c->most)[b] - cache_capacity(c);
    return beyond > 0 ? (beyond + KT - 1) / KT * KT : 0;
}

/* A number of a list of [B][tiles]. */
static inline int64_t *cache_slot(const struct loci_cache *c, ptrdiff_t at, ptrdiff_t b,
                                  ptrdiff_t slot)
{
    return cache_list(c, at) + b * (ptrdiff_t)c->form.tiles + slot;
}
/* The entry whose memory has a tile of entry b. */
static inline ptrdiff_t cache_owner(const struct loci_cache *c, ptrdiff_t b, ptrdiff_t slot)
{
    return b + (ptrdiff_t)*cache_slot(c, c->owner, b, slot);
}

/* The tile of key j of entry b.  j counts from the first key of the sequence. */
static inline void *cache_tile(const struct loci_cache *c, ptrdiff_t at, int64_t width,
                               int64_t dtype, ptrdiff_t b, int h, ptrdiff_t j)
{
    const ptrdiff_t slot = j / KT % (ptrdiff_t)c->form.tiles, owner = cache_owner(c, b, slot);
    const ptrdiff_t tile =
        (owner * (ptrdiff_t)c->form.kv_heads + h) * (ptrdiff_t)c->form.tiles + slot;
    return (char *)c + at + tile * stored_bytes((loci_dtype)dtype, KT * (ptrdiff_t)width);
}
static inline void *cache_keys(const struct loci_cache *c, ptrdiff_t b, int h, ptrdiff_t j)
{
    return cache_tile(c, c->keys, c->form.dim, c->form.k_dtype, b, h, j);
}
static inline void *cache_values(const struct loci_cache *c, ptrdiff_t b, int h, ptrdiff_t j)
{
    if (c->form.values_in_keys) return cache_keys(c, b, h, j);
    return cache_tile(c, c->values, c->form.value_dim, c->form.v_dtype, b, h, j);
}
/* Numbers of a row of cache_values(). */
static inline ptrdiff_t cached_row_width(const struct loci_cache *c)
{
    return (ptrdiff_t)(c->form.values_in_keys ? c->form.dim : c->form.value_dim);
}
/* Does the call read keys from lines of channels? */
static inline bool keys_across(const struct call *c)
{
    return c->cache && !c->cache->form.values_in_keys;
}
/* A tile of q8_0: the scales of the block of channel d, one for each key, and the whole numbers. */
static inline uint16_t *cached_scales(void *tile, ptrdiff_t d)
{
    return (uint16_t *)tile + d / Q8_BLOCK * KT;
}
static inline int8_t *cached_whole(void *tile, ptrdiff_t width)
{
    return (int8_t *)cached_scales(tile, width);
}
/* Channel d of the keys of a tile; of q8_0 the whole numbers. */
static inline void *cached_line(void *tile, loci_dtype dtype, ptrdiff_t width, ptrdiff_t d)
{
    if (dtype == LOCI_Q8_0) return cached_whole(tile, width) + d * KT;
    return (char *)tile + stored_bytes(dtype, d * KT);
}

/* The tile of a cache that has key j of the call, and the key's number in it. */
static inline char *cached_tile(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j,
                                ptrdiff_t *number)
{
    const ptrdiff_t at = j + (ptrdiff_t)cache_list(c->cache, c->cache->base)[b];
    *number = at % KT;
    return cache_keys(c->cache, b, h, at);
}
/* Row j of the view k or v, in pages or not. */
static inline const char *row_in_view(const struct call *c, const loci_view *v, loci_dtype dtype,
                                      ptrdiff_t b, int h, ptrdiff_t j)
{
    const loci_pages *p = c->in->pages;
    const ptrdiff_t at =
        p ? p->table[b * p->entry + j / p->length] * v->batch + j % p->length * v->row
          : b * v->batch + j * v->row;
    return (const char *)v->data + stored_bytes(dtype, at + h * v->head);
}
static inline const char *view_key(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j)
{
    return row_in_view(c, &c->k, c->plan->k_dtype, b, h, j);
}
static inline const char *view_value(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j)
{
    return row_in_view(c, &c->v, c->plan->v_dtype, b, h, j);
}

#endif
