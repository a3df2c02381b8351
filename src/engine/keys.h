/* SPDX-License-Identifier: MIT */
/* keys.h -- the keys and values of a tile, wherever they are: in views, pages or a cache, stored
 * in 16 bits, or rotated beforehand. */
#ifndef LOCI_ENGINE_KEYS_H
#define LOCI_ENGINE_KEYS_H

#include "engine/stored.h"
#include "contract/cache.h"

/* Which of the two a function reads. */
enum side { KEYS, VALUES };
INLINE int side_width(const struct call *c, enum side side)
{
    return side == KEYS ? c->plan->dim : c->plan->value_dim;
}
INLINE const loci_view *side_view(const struct call *c, enum side side)
{
    return side == KEYS ? &c->k : &c->v;
}

/* Row j of the values of a kv head, where they are staged after they have turned. */
INLINE real *turned_value(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j)
{
    const struct loci_plan *p = c->plan;
    return (real *)c->mem.turned + ((b * p->kv_heads + h) * c->Lk + j) * p->value_dim;
}

/* Row j of the rotated keys of a kv head, where they are staged before rows move over them. */
INLINE real *unmoved_key(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j)
{
    const struct loci_plan *p = c->plan;
    return (real *)c->mem.unmoved + ((b * p->kv_heads + h) * c->Lk + j) * p->dim;
}

/* Row j of entry b: of a view, in pages or not, or a value in a cache.  j is
 * counted in the call's keys. */
INLINE const void *stored_key(const struct call *c, enum side side, ptrdiff_t b, int h, ptrdiff_t j)
{
    const loci_pages *p = c->in->pages;
    if (c->cache) {
        const ptrdiff_t at = j + cache_list(c->cache, c->cache->base)[b];
        return (const char *)cache_values(c->cache, b, h, at)
             + at % KT * c->plan->value_dim * (ptrdiff_t)c->plan->stored;
    }
    return p ? stored_row(c, side_view(c, side), p->table[b * p->entry + j / p->length], h,
                          j % p->length)
             : stored_row(c, side_view(c, side), b, h, j);
}
/* Keys j .. j + n - 1 of a cache, all of one tile, as dense rows of reals. */
INLINE void load_cached(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j, int n, real *to)
{
    const ptrdiff_t at = j + cache_list(c->cache, c->cache->base)[b], from = at % KT;
    const int D = c->plan->dim;
    const char *tile = cache_keys(c->cache, b, h, at);
    /* Channels are stored in lines there: VL of them are transposed at once. */
    real lines[VL * KT];
    for (int d = 0; d < D; d += VL) {
        const int m = D - d < VL ? D - d : VL;
        for (int i = 0; i < m; i++)
            to_reals(c, tile + ((d + i) * KT + from) * (ptrdiff_t)c->plan->stored, n,
                     lines + i * KT);
        transpose(lines, KT, m, n, to + d, D);
    }
}
/* Rows j .. j + n - 1, all of one tile, as dense rows of reals. */
INLINE void load_keys(const struct call *c, enum side side, ptrdiff_t b, int h, ptrdiff_t j, int n,
                      real *to)
{
    const int width = side_width(c, side);
    if (c->cache && side == KEYS) {
        load_cached(c, b, h, j, n, to);
        return;
    }
    for (int k = 0; k < n; k++)
        to_reals(c, stored_key(c, side, b, h, j + k), width, to + (ptrdiff_t)k * width);
}
/* True if rows j .. j + n - 1 of a tile have a constant stride.  Without pages they always have;
 * with pages, if one page contains them all. */
INLINE bool in_one_piece(const struct call *c, ptrdiff_t j, int n)
{
    const loci_pages *p = c->in->pages;
    return !p || j / p->length == (j + n - 1) / p->length;
}
/* True if they are also reals.  A cache stores keys by channel, so its
 * rows of keys must be built. */
INLINE bool rows_in_place(const struct call *c, enum side side, ptrdiff_t j, int n)
{
    return in_place(c) && !(c->cache && side == KEYS) && in_one_piece(c, j, n);
}
/* Rows j .. j + n - 1 of a tile as reals: in place, or in `buffer`.  Values have turned. */
INLINE const real *find_rows(const struct call *c, enum side side, ptrdiff_t b, int h, ptrdiff_t j,
                             int n, real *buffer, ptrdiff_t *stride)
{
    *stride = side_width(c, side);
    if (side == VALUES && c->mem.turned) return turned_value(c, b, h, j);
    if (rows_in_place(c, side, j, n)) {
        if (!c->cache) *stride = side_view(c, side)->row;
        return stored_key(c, side, b, h, j);
    }
    load_keys(c, side, b, h, j, n, buffer);
    return buffer;
}
/* The same for one row. */
INLINE const real *find_row(const struct call *c, enum side side, ptrdiff_t b, int h, ptrdiff_t j,
                            real *buffer)
{
    ptrdiff_t stride;
    return find_rows(c, side, b, h, j, 1, buffer, &stride);
}

/* Does the tile read keys in a form that is not rotated? */
INLINE bool reads_still(const struct tile *t)
{
    const struct call *c = t->c;
    const struct rotation *rotation = rotation_of(c);
    return rotation && rotation->still
        && rotation->still(c, c->plan->rotate, key_form(c->plan, t->q.form));
}
INLINE bool staged(const struct tile *t) { return t->c->mem.rotated && !reads_still(t); }
/* Rotates the keys of the tile in its buffer, unless they are read as they are. */
INLINE bool rotate_late(struct tile *t)
{
    const struct call *c = t->c;
    const struct sequence *q = t->seq;
    if (!rotates_late(c) || reads_still(t)) return false;
    load_keys(c, KEYS, q->b, t->kvh, t->j0, t->keys, t->k.buffer);
    rotation_of(c)->rotate(c, c->plan->rotate, t->angles, q->b, t->kh, false, t->j0, t->keys,
                           t->k.buffer, c->plan->dim);
    return true;
}
/* The keys and the values of the tile: in place, or rotated and staged,
 * or in the tile's buffers. */
INLINE void find_keys(struct tile *t)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const struct sequence *q = t->seq;
    t->k.step = 1;
    if (staged(t)) {
        t->k.at =
            (const real *)c->mem.rotated + ((q->b * p->key_heads + t->kh) * c->Lk + t->j0) * p->dim;
        t->k.row = p->dim;
    } else if (rotate_late(t)) {
        t->k.at = t->k.buffer;
        t->k.row = p->dim;
    } else if (c->cache) {
        t->k.at = key_at(c, q->b, t->kvh, t->j0, &t->k.step);
        t->k.row = 1;
        /* A call's key 0 is a multiple of CHUNK in the cache, so its tiles are those of the
         * cache, and whole.  Numbers past the last key may be converted; they are never read. */
        if (in_place(c)) return;
        to_reals(c, t->k.at, p->dim * KT, t->k.buffer);
        t->k.at = t->k.buffer;
    } else {
        t->k.at = find_rows(c, KEYS, q->b, t->kvh, t->j0, t->keys, t->k.buffer, &t->k.row);
    }
}
INLINE void find_values(struct tile *t)
{
    t->v.at = find_rows(t->c, VALUES, t->seq->b, t->kvh, t->j0, t->keys, t->v.buffer, &t->v.row);
}

/* n keys of a tile before rows move over them, rotated, as rows of reals. */
INLINE const real *find_unmoved(const struct tile *t, int n, real *buffer, ptrdiff_t *stride)
{
    const struct call *c = t->c;
    *stride = c->plan->dim;
    return c->mem.unmoved ? unmoved_key(c, t->seq->b, t->kvh, t->j0)
                          : find_rows(c, KEYS, t->seq->b, t->kvh, t->j0, n, buffer, stride);
}

/* What to prefetch for the next tile, if `more`.  Hardware prefetchers do not recognise a stream
 * in tiles that come newest first, or between products of two. */
INLINE struct next to_next(const struct tile *t, enum side side, bool more)
{
    if (!more) return (struct next){ 0 };
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const ptrdiff_t b = t->seq->b, j = t->j0 + next_tile(c), width = side_width(c, side),
                    stored = (ptrdiff_t)p->stored;
    if (side == KEYS && staged(t)) {
        const real *first =
            (const real *)c->mem.rotated + ((b * p->key_heads + t->kh) * c->Lk + j) * width;
        return (struct next){ (const char *)first, width * (ptrdiff_t)sizeof(real), sizeof(real),
                              sizeof(real) };
    }
    if (side == VALUES && c->mem.turned) {
        const real *first = turned_value(c, b, t->kvh, j);
        return (struct next){ (const char *)first, width * (ptrdiff_t)sizeof(real), sizeof(real),
                              sizeof(real) };
    }
    if (side == KEYS && c->cache) {
        ptrdiff_t step;
        const char *first = key_at(c, b, t->kvh, j, &step);
        return (struct next){ first, stored, step * stored, (int)stored };
    }
    /* Rows of several pages have no common stride to prefetch by. */
    if (!in_one_piece(c, j, KT)) return (struct next){ 0 };
    return (struct next){ stored_key(c, side, b, t->kvh, j),
                          (c->cache ? width : side_view(c, side)->row) * stored, stored,
                          (int)stored };
}

#endif
