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
    s->values = carve_reals(&a, c->plan->turns_values ? (ptrdiff_t)KT * c->plan->value_dim : 0);
    return a.full ? SIZE_MAX : a.used;
}
size_t N(cache_workspace)(const struct call *c)
{
    struct staging s;
    const size_t bytes = lay_out(c, NULL, &s), block = block_bytes(c); /* one after the other */
    return bytes > block ? bytes : block;
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
    real *across = in_place(c) ? (real *)tile + at % KT : t->across;
    transpose(t->rows, Dp, n, D, across, KT);
    for (int d = 0; d < D && !in_place(c); d++)
        from_reals(c, across + d * KT, n, tile + (d * KT + at % KT) * (ptrdiff_t)p->stored);
}
/* The address of value `at` of a sequence in the cache. */
static char *value_row(const struct call *c, loci_cache *to, ptrdiff_t b, int h, ptrdiff_t at)
{
    return (char *)cache_values(to, b, h, at)
         + at % KT * c->plan->value_dim * (ptrdiff_t)c->plan->stored;
}
/* Turns n values of one tile where they are stored, from value `at` of the sequence on, by the
 * positions of the call's keys j .. */
static void turn_values(const struct call *c, const struct cache_update *a, const struct staging *t,
                        ptrdiff_t b, int h, ptrdiff_t at, ptrdiff_t j, int n)
{
    const struct loci_plan *p = c->plan;
    const int Dv = p->value_dim;
    char *stored = value_row(c, a->to, b, h, at);
    if (!a->rotate || !p->turns_values) return;
    to_reals(c, stored, n * Dv, t->values);
    rotation_of(c)->turn(c, p->rotate, t->angles, b, h, false, 1, j, n, t->values, Dv);
    from_reals(c, t->values, n * Dv, stored);
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
        to_reals(c, stored_row(c, &a->k, b, h, j + i), p->dim, t->rows + i * padded(p->score_dim));
    put_keys(c, a, t, b, h, from, j, n);
    for (int i = 0; i < n; i++)
        memcpy(value_row(c, a->to, b, h, from + i), stored_row(c, &a->v, b, h, j + i),
               p->stored * (size_t)p->value_dim);
    turn_values(c, a, t, b, h, from, j, n);
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
        load_keys(c, KEYS, b, h, from, (int)n, t->rows, padded(p->score_dim));
        put_keys(c, a, t, b, h, at, 0, (int)n);
        for (ptrdiff_t i = 0; i < n; i++)
            memmove(value_row(c, a->to, b, h, at + i), value_row(c, a->to, b, h, from + i),
                    p->stored * (size_t)p->value_dim);
        turn_values(c, a, t, b, h, at, 0, (int)n);
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
