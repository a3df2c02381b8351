/* SPDX-License-Identifier: MIT */
/* cache_update.c -- puts keys and values into a cache.  Keys are rotated if the plan stores them
 * rotated, and values that turn with them are turned.  Keys are stored channel by channel. */
#include "engine/workspace.h"
#include "contract/engine.h"

#if QT > 1

/* State shared by all threads: the call, the update, and the next item. */
struct update {
    struct call *c;
    const struct cache_update *a;
    ptrdiff_t tiles; /* of a head; removal walks a head in one item */
    atomic_llong next;
    atomic_bool stop;
};

/* Scratch of a thread: keys of a tile, as padded rows and channel by channel, and values. */
struct staging {
    struct angles *angles;
    real *rows, *across, *values;
};
static size_t lay_out(const struct call *c, char *base, struct staging *s)
{
    struct arena a = { .base = base, .used = N(angles_bytes)(c) };
    s->rows = carve_reals(&a, (ptrdiff_t)KT * padded(c->plan->score_dim));
    s->across = carve_reals(&a, (ptrdiff_t)KT * c->plan->score_dim);
    const struct loci_plan *p = c->plan;
    const bool values = p->turns_values || p->v_dtype != p->dtype;
    s->values = carve_reals(&a, values ? (ptrdiff_t)KT * p->value_dim : 0);
    return a.full ? SIZE_MAX : a.used;
}
size_t N(cache_workspace)(const struct call *c)
{
    struct staging s;
    const size_t bytes = lay_out(c, NULL, &s), block = block_bytes(c); /* one after the other */
    return bytes > block ? bytes : block;
}

/* Rounds a row to q8_0 as number `at` of a tile.  Its whole numbers are `step` apart, from `to`
 * on. */
static void round_row(const real *row, int width, char *tile, ptrdiff_t at, int8_t *to,
                      ptrdiff_t step)
{
    for (int d = 0; d < width; d += Q8_BLOCK) {
        float x[Q8_BLOCK];
        for (int i = 0; i < Q8_BLOCK; i++) x[i] = (float)row[d + i];
        cached_scales(tile, d)[at] = q8_round(x, to + d * step, step);
    }
}
/* Stores n rows of reals in a tile, from number `at` of it on, where the first one goes to `to`. */
static void put_rows(loci_dtype dtype, const real *rows, ptrdiff_t stride, int width, char *tile,
                     char *to, ptrdiff_t at, int n)
{
    for (int i = 0; i < n; i++)
        if (dtype == LOCI_Q8_0)
            round_row(rows + i * stride, width, tile, at + i, (int8_t *)to + i * width, 1);
        else from_reals(dtype, rows + i * stride, width, to + i * stored_bytes(dtype, width));
}
/* Stores n keys of one tile, from key `at` of the sequence on.  They come in t->rows, with the
 * stride of padded rows, and are rotated by the positions of the call's keys j .. */
static void put_keys(const struct call *c, const struct cache_update *a, struct staging *t,
                     ptrdiff_t b, int h, ptrdiff_t at, ptrdiff_t j, int n)
{
    const struct loci_plan *p = c->plan;
    const int D = p->score_dim, Dp = padded(D);
    char *tile = cache_keys(a->to, b, h, at);
    if (a->rotate) rotation_of(c)->rotate(c, p->rotate, t->angles, b, h, false, j, n, t->rows, Dp);
    /* The channels that rotate() has stretched a second time (engine.h). */
    for (int i = 0; i < n && a->channels; i++)
        for (int d = a->channel; d < a->channel + a->channels; d++)
            t->rows[i * Dp + d] *= (real)a->undo;
    if (p->values_in_keys) {
        put_rows(p->k_dtype, t->rows, Dp, D, tile, cached_row(a->to, b, h, at), at % KT, n);
        return;
    }
    if (p->k_dtype == LOCI_Q8_0) {
        for (int i = 0; i < n; i++)
            round_row(t->rows + i * Dp, D, tile, at % KT + i, cached_whole(tile, D) + at % KT + i,
                      KT);
        return;
    }
    const bool reals = form_of(p->k_dtype) == REALS;
    real *across = reals ? (real *)tile + at % KT : t->across;
    transpose(t->rows, Dp, n, D, across, KT);
    for (int d = 0; d < D && !reals; d++)
        from_reals(p->k_dtype, across + d * KT, n,
                   tile + stored_bytes(p->k_dtype, d * KT + at % KT));
}
/* Do values turn when they are stored? */
static bool turns(const struct call *c, const struct cache_update *a)
{
    return a->rotate && c->plan->turns_values;
}
/* Turns n values of t->values by the positions of the call's keys j .., and stores them from value
 * `at` of a sequence on. */
static void put_values(const struct call *c, const struct cache_update *a, const struct staging *t,
                       ptrdiff_t b, int h, ptrdiff_t at, ptrdiff_t j, int n)
{
    const struct loci_plan *p = c->plan;
    const int Dv = p->value_dim;
    if (turns(c, a))
        rotation_of(c)->turn(c, p->rotate, t->angles, b, h, false, 1, j, n, t->values, Dv);
    put_rows(p->v_dtype, t->values, Dv, Dv, cache_values(a->to, b, h, at),
             cached_row(a->to, b, h, at), at % KT, n);
}

/* Appends the new keys of one tile of the cache.  `tile` counts from the tile that contains the
 * end of the old keys.  A thread owns whole tiles, so no two threads write the same line. */
static void append_item(struct call *c, const struct cache_update *a, struct staging *t,
                        ptrdiff_t b, int h, ptrdiff_t tile)
{
    const struct loci_plan *p = c->plan;
    const ptrdiff_t old = (ptrdiff_t)cache_list(a->to, a->to->len)[b],
                    count = a->counts ? (ptrdiff_t)a->counts[b] : c->Lk;
    ptrdiff_t from = (old / KT + tile) * KT, end = from + KT;
    if (from < old) from = old;
    if (end > old + count) end = old + count;
    if (from >= end) return;
    /* the last `count` rows of the call are the new ones */
    const ptrdiff_t j = from - old + c->Lk - count;
    const int n = (int)(end - from);
    for (int i = 0; i < n; i++)
        to_reals(p->dtype, stored_row(c, &a->k, b, h, j + i), p->dim,
                 t->rows + i * padded(p->score_dim));
    put_keys(c, a, t, b, h, from, j, n);
    if (p->values_in_keys) return;
    const bool same = p->v_dtype == p->dtype && !turns(c, a);
    for (int i = 0; i < n; i++) {
        const void *given = stored_row(c, &a->v, b, h, j + i);
        if (same)
            memcpy(cached_row(a->to, b, h, from + i), given, p->stored * (size_t)p->value_dim);
        else to_reals(p->dtype, given, p->value_dim, t->values + i * p->value_dim);
    }
    if (!same) put_values(c, a, t, b, h, from, j, n);
}
/* Moves the scales of n keys or values of q8_0 from one tile to another. */
static void move_scales(char *tile, ptrdiff_t at, char *old, ptrdiff_t from, ptrdiff_t width,
                        ptrdiff_t n)
{
    for (ptrdiff_t d = 0; d < width; d += Q8_BLOCK)
        memmove(cached_scales(tile, d) + at, cached_scales(old, d) + from,
                (size_t)n * sizeof(uint16_t));
}
/* Moves n keys of a tile as they are, from key `from` of the sequence to key `at`. */
static void move_keys(const struct call *c, loci_cache *to, ptrdiff_t b, int h, ptrdiff_t at,
                      ptrdiff_t from, ptrdiff_t n)
{
    const loci_dtype dtype = c->plan->k_dtype;
    const size_t each = dtype == LOCI_Q8_0 ? 1 : stored_size(dtype), bytes = (size_t)n * each;
    const int D = key_dim(c->plan);
    char *tile = cache_keys(to, b, h, at), *old = cache_keys(to, b, h, from);
    for (int d = 0; d < D; d++)
        memmove((char *)cached_line(tile, dtype, D, d) + (size_t)(at % KT) * each,
                (char *)cached_line(old, dtype, D, d) + (size_t)(from % KT) * each, bytes);
    if (dtype == LOCI_Q8_0) move_scales(tile, at % KT, old, from % KT, D, n);
}
/* The same for values, or for keys that are stored as rows. */
static void move_rows(loci_cache *to, ptrdiff_t b, int h, ptrdiff_t at, ptrdiff_t from, ptrdiff_t n)
{
    const loci_dtype dtype = (loci_dtype)to->form.v_dtype;
    const ptrdiff_t width = cached_row_width(to);
    memmove(cached_row(to, b, h, at), cached_row(to, b, h, from),
            dtype == LOCI_Q8_0 ? (size_t)(n * width) : (size_t)stored_bytes(dtype, n * width));
    if (dtype == LOCI_Q8_0)
        move_scales(cache_values(to, b, h, at), at % KT, cache_values(to, b, h, from), from % KT,
                    width, n);
}
/* Moves the remaining keys of a head up over the removed ones.  It starts with the oldest, as
 * each key moves to a place before its own.  Each piece stays within one tile on both sides. */
static void remove_item(struct call *c, const struct cache_update *a, struct staging *t,
                        ptrdiff_t b, int h)
{
    const struct loci_plan *p = c->plan;
    const ptrdiff_t end = (ptrdiff_t)cache_list(a->to, a->to->len)[b] - a->count;
    for (ptrdiff_t at = a->first; at < end;) {
        const ptrdiff_t from = at + a->count;
        ptrdiff_t n = KT - at % KT;
        if (n > KT - from % KT) n = KT - from % KT;
        if (n > end - at) n = end - at;
        if (a->rotate) {
            load_keys(c, KEYS, b, h, from, (int)n, t->rows, padded(p->score_dim));
            put_keys(c, a, t, b, h, at, 0, (int)n);
        } else if (!p->values_in_keys) move_keys(c, a->to, b, h, at, from, n);
        if (turns(c, a)) {
            load_keys(c, VALUES, b, h, from, (int)n, t->values, p->value_dim);
            put_values(c, a, t, b, h, at, 0, (int)n);
        } else if (!p->values_in_keys || !a->rotate) move_rows(a->to, b, h, at, from, n);
        at += n;
    }
}

static void update_job(void *arg, int index)
{
    struct update *k = arg;
    struct call *c = k->c;
    struct staging t = { .angles = c->plan->rotate < 0 ? NULL : N(angles_of)(c, index) };
    lay_out(c, c->mem.workspaces + (size_t)index * c->mem.workspace, &t);
    const ptrdiff_t heads = c->plan->kv_heads, items = (k->a->remove ? 1 : c->B) * heads * k->tiles;
    for (ptrdiff_t i; (i = (ptrdiff_t)atomic_fetch_add(&k->next, 1)) < items;) {
        const int h = (int)(i % heads);
        /* A removal is never cancelled: half of one would destroy the cache. */
        if (!k->a->remove && cancelled(c)) {
            k->stop = true;
            return;
        }
        if (k->a->remove) remove_item(c, k->a, &t, k->a->entry, h);
        else append_item(c, k->a, &t, i / heads / k->tiles, h, i / heads % k->tiles);
    }
}
loci_status N(update_cache)(struct call *c, const struct cache_update *a)
{
    /* New keys may begin and end inside a tile, hence two more tiles. */
    struct update k = { .c = c, .a = a, .tiles = a->remove ? 1 : c->Lk / KT + 2 };
    atomic_init(&k.next, 0);
    atomic_init(&k.stop, false);
    N(run)(c, c->threads, update_job, &k);
    return k.stop ? LOCI_CANCELLED : LOCI_OK;
}
#endif
