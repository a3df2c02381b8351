/* SPDX-License-Identifier: MIT */
/* chain.c -- the backward pass of one rank, step by step.  Items are summed as in a single
 * process, but there is no ordered sum here: an item keeps its sums until those of later rows
 * have arrived, which other ranks may own. */
#include <stdatomic.h>

#include "engine/backward.h"
#include "contract/engine.h"

#if QT > 1

/* ---- Items: those of a run of rows, batch entry by batch entry ------------------------------- */

static const struct sequence *sequence_of(const struct call *c, ptrdiff_t run, ptrdiff_t b)
{
    return &c->seqs.list[b * c->stream.run_count + run];
}
static ptrdiff_t items_each(const struct call *c, ptrdiff_t run)
{
    return tiles_of_rows(sequence_of(c, run, 0)) * groups_of(c);
}
/* Items of all runs share one numbering. */
static ptrdiff_t items_before(const struct call *c, ptrdiff_t run)
{
    ptrdiff_t n = 0;
    for (ptrdiff_t r = 0; r < run; r++) n += c->B * items_each(c, r);
    return n;
}
static struct item find_item(const struct call *c, ptrdiff_t run, ptrdiff_t i, struct sums *w)
{
    const ptrdiff_t each = items_each(c, run);
    N(use_item)(c, i, items_before(c, run) + i, w);
    return N(item_at)(c, sequence_of(c, run, i / each), i % each);
}

/* ---- Sums of a chunk ------------------------------------------------------------------------- */

struct step {
    const struct call *c;
    ptrdiff_t run, chunk;
    bool (*work)(const struct call *, const struct workspace *, const struct sums *,
                 const struct item *, ptrdiff_t chunk);
    atomic_llong next;
    atomic_bool stop;
};
static void step_job(void *arg, int index)
{
    struct step *a = arg;
    const struct call *c = a->c;
    const ptrdiff_t items = c->B * items_each(c, a->run);
    struct sums w;
    const struct workspace d = N(workspace_of)(c, index, &w);
    for (ptrdiff_t i;
         !atomic_load(&a->stop) && (i = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < items;) {
        const struct item item = find_item(c, a->run, i, &w);
        if (a->chunk < item.chunks.first || a->chunk > item.chunks.last) continue;
        if (!a->work(c, &d, &w, &item, a->chunk)) atomic_store(&a->stop, true);
    }
}
static loci_status run_step(struct step *a)
{
    const struct call *c = a->c;
    if (!c->B) return LOCI_OK;
    const ptrdiff_t items = c->B * items_each(c, a->run);
    const int jobs = items < c->threads ? (int)items : c->threads;
    atomic_init(&a->next, 0);
    atomic_init(&a->stop, false);
    if (jobs) N(run)(c, jobs, step_job, a);
    return atomic_load(&a->stop) ? LOCI_CANCELLED : LOCI_OK;
}
static loci_status sum(struct call *c, ptrdiff_t run, ptrdiff_t chunk)
{
    return run_step(&(struct step){ .c = c, .run = run, .chunk = chunk, .work = N(sum_item) });
}
static loci_status sweep(struct call *c, ptrdiff_t run, ptrdiff_t chunk)
{
    return run_step(&(struct step){ .c = c, .run = run, .chunk = chunk, .work = N(sweep_item) });
}

/* ---- Ordered sums ---------------------------------------------------------------------------- */

/* Items of different kv heads or entries add to different keys. */
static void add_job(void *arg, int index)
{
    struct step *a = arg;
    const struct call *c = a->c;
    const ptrdiff_t each = items_each(c, a->run);
    const int groups = groups_of(c);
    struct sums w = { .dk = NULL };
    (void)index;
    for (ptrdiff_t place; (place = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < c->B * groups;)
        for (ptrdiff_t i = place % groups; i < each; i += groups) {
            const struct item item = find_item(c, a->run, place / groups * each + i, &w);
            if (a->chunk >= item.chunks.first && a->chunk <= item.chunks.last)
                N(add_item_keys)(c, &w, &item, a->chunk);
        }
}
static void add_keys(struct call *c, ptrdiff_t run, ptrdiff_t chunk)
{
    struct step a = { .c = c, .run = run, .chunk = chunk };
    const ptrdiff_t places = c->B * groups_of(c);
    const int jobs = places < c->threads ? (int)places : c->threads;
    atomic_init(&a.next, 0);
    if (jobs) N(run)(c, jobs, add_job, &a);
}
static void add_parts(struct call *c, ptrdiff_t run, ptrdiff_t b)
{
    const ptrdiff_t each = items_each(c, run);
    struct sums w = { .dk = NULL };
    for (ptrdiff_t i = b * each; i < (b + 1) * each; i++) {
        const struct item item = find_item(c, run, i, &w);
        N(add_item_parts)(c, &w, &item);
    }
}

/* ---- Keys rotate back ------------------------------------------------------------------------ */

struct back {
    struct call *c;
    ptrdiff_t tile, tiles, own;
    atomic_llong next;
};
/* Parts of the rotation are stored by entry, own tile and key head. */
static real *tile_part(const struct call *c, ptrdiff_t b, ptrdiff_t own, int kh)
{
    return (real *)c->stream.chain.tiles
         + ((b * c->stream.chain.own_tiles + own) * c->plan->key_heads + kh) * rotation_part(c);
}
static void back_job(void *arg, int index)
{
    struct back *a = arg;
    struct call *c = a->c;
    const int heads = c->plan->key_heads;
    struct sums w;
    const struct workspace d = N(workspace_of)(c, index, &w);
    const bool learns = rotation_part(c) && c->g.total[c->plan->rotate];
    for (ptrdiff_t i; (i = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < c->B * a->tiles * heads;) {
        const int kh = (int)(i % heads);
        const ptrdiff_t tile = i / heads % a->tiles, b = i / heads / a->tiles;
        real *part = learns ? tile_part(c, b, a->own + tile, kh) : NULL;
        N(unrotate_tile)(c, &d, sequence_of(c, 0, b), a->tile + tile, kh, part);
    }
}
static void rotate_back(struct call *c, ptrdiff_t tile, ptrdiff_t tiles, ptrdiff_t own)
{
    struct back a = { .c = c, .tile = tile, .tiles = tiles, .own = own };
    const ptrdiff_t items = c->B * tiles * c->plan->key_heads;
    const int jobs = items < c->threads ? (int)items : c->threads;
    if (!unrotates(c) || !jobs) return;
    atomic_init(&a.next, 0);
    N(run)(c, jobs, back_job, &a);
}
static void add_tiles(struct call *c, ptrdiff_t b, ptrdiff_t own, ptrdiff_t tiles)
{
    if (!unrotates(c) || !rotation_part(c) || !c->g.total[c->plan->rotate]) return;
    for (ptrdiff_t t = own; t < own + tiles; t++)
        for (int kh = 0; kh < c->plan->key_heads; kh++)
            N(add_tile_part)(c, b, kh, tile_part(c, b, t, kh));
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static struct chain_sizes sizes(const struct call *c)
{
    const struct item_bytes bytes = N(item_bytes)(c);
    struct chain_sizes r = { .item = bytes.item, .part = bytes.part, .scans = N(scans)(c) };
    const int x = c->plan->rotate;
    if (x >= 0) r.tile = (size_t)(c->plan->key_heads * rotation_part(c)) * sizeof(real);
    r.groups = groups_of(c);
    return r;
}
static int keyed(const struct call *c, int x, ptrdiff_t *first, ptrdiff_t *count)
{
    const struct term *term = term_of(c, x);
    const int width = term->keyed ? term->keyed(c, x) : 0;
    const ptrdiff_t all = term->total ? term->total(c, x) : 0;
    *first = width ? term->keys_at(c, x, 0, 0) : all;
    *count = width && c->Lk ? (all - *first) / (c->Lk * width) : 0;
    return width;
}

const struct chained N(chained) = {
    .sizes = sizes,
    .keyed = keyed,
    .sweep = sweep,
    .sum = sum,
    .add_keys = add_keys,
    .add_parts = add_parts,
    .rotate_back = rotate_back,
    .add_tiles = add_tiles,
};
#endif
