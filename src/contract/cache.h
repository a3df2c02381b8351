/* SPDX-License-Identifier: MIT */
/* cache.h -- how a cache is laid out in memory.  See loci/cache.h.
 *
 * Keys of a head are stored in tiles of 64, channel by channel, as products read them:
 * [tiles][D][KT].  Values are stored as rows: [tiles][KT][Dv].  Tile number t of a sequence is in
 * slot t; in a ring, in slot t modulo the number of tiles.  All places are offsets from the start,
 * so a cache can be moved or saved byte by byte. */
#ifndef LOCI_CONTRACT_CACHE_H
#define LOCI_CONTRACT_CACHE_H

#include "loci/cache.h"
#include "contract/call.h"

enum { CACHE_MAGIC = 0x6c6f6361 };

/* What the cache was created for.  Plans and calls must agree with it.  rotated: 1 if keys are
 * rotated, 2 if values have turned as well. */
struct cache_form {
    int64_t magic, batch, tiles, ring, kv_heads, dim, value_dim, dtype, rotated;
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
};

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

/* The tile of key j of entry b.  j counts from the first key of the sequence. */
static inline void *cache_tile(const struct loci_cache *c, ptrdiff_t at, int64_t width, ptrdiff_t b,
                               int h, ptrdiff_t j)
{
    const ptrdiff_t slot = j / KT % (ptrdiff_t)c->form.tiles;
    const ptrdiff_t tile = (b * (ptrdiff_t)c->form.kv_heads + h) * (ptrdiff_t)c->form.tiles + slot;
    return (char *)c + at
         + tile * KT * (ptrdiff_t)width * (ptrdiff_t)stored_size((loci_dtype)c->form.dtype);
}
static inline void *cache_keys(const struct loci_cache *c, ptrdiff_t b, int h, ptrdiff_t j)
{
    return cache_tile(c, c->keys, c->form.dim, b, h, j);
}
static inline void *cache_values(const struct loci_cache *c, ptrdiff_t b, int h, ptrdiff_t j)
{
    return cache_tile(c, c->values, c->form.value_dim, b, h, j);
}

/* The numbers of key j as the call stores them.  Returns the first one; *step is the distance from
 * one to the next. */
static inline const void *key_at(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j,
                                 ptrdiff_t *step)
{
    const loci_pages *p = c->in->pages;
    ptrdiff_t at = j % KT;
    *step = c->cache ? KT : 1;
    if (c->cache)
        return (const char *)cache_keys(c->cache, b, h, j + cache_list(c->cache, c->cache->base)[b])
             + at * (ptrdiff_t)c->plan->stored;
    if (p) at = p->table[b * p->entry + j / p->length] * c->k.batch + j % p->length * c->k.row;
    else at = b * c->k.batch + j * c->k.row;
    return (const char *)c->k.data + (at + h * c->k.head) * (ptrdiff_t)c->plan->stored;
}

#endif
