/* SPDX-License-Identifier: MIT */
/* keys.h -- the keys and values of a tile, wherever they are: in views, pages or a cache, stored
 * in 16 bits, or rotated beforehand. */
#ifndef LOCI_ENGINE_KEYS_H
#define LOCI_ENGINE_KEYS_H

#include "engine/stored.h"
#include "contract/cache.h"

/* Which of the two a function reads, and the width of its rows as they are stored. */
enum side { KEYS, VALUES };
INLINE int side_width(const struct call *c, enum side side)
{
    return side == KEYS ? key_dim(c->plan) : c->plan->value_dim;
}
INLINE loci_dtype side_dtype(const struct call *c, enum side side)
{
    return side == KEYS ? c->plan->k_dtype : c->plan->v_dtype;
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

/* Channel d of the n keys of a cached tile from number `from` on, as reals. */
INLINE void load_line(const struct call *c, char *tile, int d, ptrdiff_t from, int n, real *to)
{
    const loci_dtype dtype = c->plan->k_dtype;
    const void *line = cached_line(tile, dtype, key_dim(c->plan), d);
    if (dtype != LOCI_Q8_0) {
        to_reals(dtype, (const char *)line + stored_bytes(dtype, from), n, to);
        return;
    }
    const int8_t *x = (const int8_t *)line + from;
    const uint16_t *scale = cached_scales(tile, d) + from;
    int i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(to + i, vf_mul(vf_load_s8(x + i), vf_load_f16(scale + i)));
    for (; i < n; i++) to[i] = (real)x[i] * (real)from_f16(scale[i]);
}
/* Keys j .. j + n - 1 of a cache, all of one tile, as rows of reals. */
INLINE void load_cached(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j, int n, real *to,
                        ptrdiff_t stride)
{
    ptrdiff_t from;
    char *tile = cached_tile(c, b, h, j, &from);
    const int D = key_dim(c->plan);
    /* Channels are stored in lines there: VL of them are transposed at once. */
    real lines[VL * KT];
    for (int d = 0; d < D; d += VL) {
        const int m = D - d < VL ? D - d : VL;
        for (int i = 0; i < m; i++) load_line(c, tile, d + i, from, n, lines + i * KT);
        transpose(lines, KT, m, n, to + d, stride);
    }
}
/* `width` numbers of n rows of q8_0 of a cached tile, from number `from` on, as reals. */
INLINE void load_whole_rows(void *tile, ptrdiff_t row, int width, ptrdiff_t from, int n, real *to,
                            ptrdiff_t stride)
{
    const int8_t *x = cached_whole(tile, row);
    for (int k = 0; k < n; k++)
        for (int d = 0; d < width; d += Q8_BLOCK) {
            const vf scale = vf_set1((real)from_f16(cached_scales(tile, d)[from + k]));
            for (int i = d; i < d + Q8_BLOCK; i += VL)
                vf_store(to + k * stride + i, vf_mul(vf_load_s8(x + (from + k) * row + i), scale));
        }
}
/* Where a cache stores row `at` of a sequence: a value, and a key if it stores them as rows.  In
 * q8_0 these are its whole numbers. */
INLINE char *cached_row(const loci_cache *cache, ptrdiff_t b, int h, ptrdiff_t at)
{
    const loci_dtype dtype = (loci_dtype)cache->form.v_dtype;
    const ptrdiff_t width = cached_row_width(cache);
    char *tile = cache_values(cache, b, h, at);
    if (dtype == LOCI_Q8_0) return (char *)cached_whole(tile, width) + at % KT * width;
    return tile + stored_bytes(dtype, at % KT * width);
}
/* Row j of entry b: of a view, in pages or not, or of a cache.  j is counted in the call's keys. */

INLINE const void *stored_key(const struct call *c, enum side side, ptrdiff_t b, int h, ptrdiff_t j)
{
    if (c->cache) return cached_row(c->cache, b, h, j + cache_list(c->cache, c->cache->base)[b]);
    return side == KEYS ? view_key(c, b, h, j) : view_value(c, b, h, j);
}
/* Rows j .. j + n - 1, all of one tile, as reals. */
INLINE void load_keys(const struct call *c, enum side side, ptrdiff_t b, int h, ptrdiff_t j, int n,
                      real *to, ptrdiff_t stride)
{
    const int width = side_width(c, side);
    if (keys_across(c) && side == KEYS) {
        load_cached(c, b, h, j, n, to, stride);
        return;
    }
    if (c->cache && c->plan->v_dtype == LOCI_Q8_0) {
        const ptrdiff_t at = j + cache_list(c->cache, c->cache->base)[b];
        load_whole_rows(cache_values(c->cache, b, h, at), cached_row_width(c->cache), width,
                        at % KT, n, to, stride);
        return;
    }
    for (int k = 0; k < n; k++)
        to_reals(side_dtype(c, side), stored_key(c, side, b, h, j + k), width, to + k * stride);
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
    return form_of(side_dtype(c, side)) == REALS && !(keys_across(c) && side == KEYS)
        && in_one_piece(c, j, n);
}
/* Rows j .. j + n - 1 of a tile as reals: in place, or in `buffer`.  Values have turned. */
INLINE const real *find_rows(const struct call *c, enum side side, ptrdiff_t b, int h, ptrdiff_t j,
                             int n, real *buffer, ptrdiff_t *stride)
{
    *stride = side_width(c, side);
    if (side == VALUES && c->mem.turned) return turned_value(c, b, h, j);
    if (rows_in_place(c, side, j, n)) {
        *stride = c->cache ? cached_row_width(c->cache) : side_view(c, side)->row;
        return stored_key(c, side, b, h, j);
    }
    load_keys(c, side, b, h, j, n, buffer, *stride);
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
    load_keys(c, KEYS, q->b, t->kvh, t->j0, t->keys, t->k.buffer, c->plan->score_dim);
    rotation_of(c)->rotate(c, c->plan->rotate, t->angles, q->b, t->kh, false, t->j0, t->keys,
                           t->k.buffer, c->plan->score_dim);
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
        t->k.at = (const real *)c->mem.rotated
                + ((q->b * p->key_heads + t->kh) * c->Lk + t->j0) * p->score_dim;
        t->k.row = p->score_dim;
    } else if (rotate_late(t)) {
        t->k.at = t->k.buffer;
        t->k.row = p->score_dim;
    } else if (keys_across(c)) {
        /* A call's key 0 is a multiple of CHUNK in the cache, so its tiles are those of the
         * cache, and whole.  Numbers past the last key may be converted; they are never read. */
        ptrdiff_t first;
        char *tile = cached_tile(c, q->b, t->kvh, t->j0, &first);
        const bool reals = form_of(p->k_dtype) == REALS;
        for (int d = 0; d < key_dim(p) && !reals; d++)
            load_line(c, tile, d, 0, KT, t->k.buffer + d * KT);
        t->k.at = reals ? (const real *)tile : t->k.buffer;
        t->k.row = 1;
        t->k.step = KT;
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
    const ptrdiff_t b = t->seq->b, j = t->j0 + next_tile(c), width = side_width(c, side);
    const loci_dtype dtype = side_dtype(c, side);
    /* of q8_0 a byte stands for a number */
    const int each = dtype == LOCI_Q8_0 ? 1 : (int)stored_size(dtype);
    if (side == KEYS && staged(t)) {
        const real *first =
            (const real *)c->mem.rotated + ((b * p->key_heads + t->kh) * c->Lk + j) * p->score_dim;
        return (struct next){ (const char *)first, p->score_dim * (ptrdiff_t)sizeof(real),
                              sizeof(real), sizeof(real) };
    }
    if (side == VALUES && c->mem.turned) {
        const real *first = turned_value(c, b, t->kvh, j);
        return (struct next){ (const char *)first, width * (ptrdiff_t)sizeof(real), sizeof(real),
                              sizeof(real) };
    }
    if (side == KEYS && keys_across(c)) {
        ptrdiff_t first;
        const char *tile = cached_tile(c, b, t->kvh, j, &first);
        return (struct next){ tile, each, stored_bytes(dtype, Q8_BLOCK * KT) / Q8_BLOCK, each };
    }
    /* Rows of several pages have no common stride to prefetch by. */
    if (!in_one_piece(c, j, KT)) return (struct next){ 0 };
    const ptrdiff_t row =
        c->cache ? cached_row_width(c->cache) * each : stored_bytes(dtype, side_view(c, side)->row);
    return (struct next){ stored_key(c, side, b, t->kvh, j), row, each, each };
}

#endif
