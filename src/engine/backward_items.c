/* SPDX-License-Identifier: MIT */
/* backward_items.c -- the backward pass: threads sum work items, and the sums are added up.
 *
 * Threads fetch items one after the other, and parts are added to the totals in the order of the
 * items (util/ordered_sum.h).  So sums do not depend on the number of threads, and each thread
 * needs memory for one chunk only.  A thread that finds no item left helps with the rows of
 * another thread's item (util/pipeline.h). */
#include "engine/backward.h"
#include "util/ordered_sum.h"

#if QT > 1

/* ---- Ordered sums ---------------------------------------------------------------------------- */

/* The keys of a chunk that an item has sums for, [heads][keys][row] of each gradient by key. */
struct share {
    const struct call *c;
    const struct sequence *q;
    ptrdiff_t first, end;
};
static const real *sums_at(const struct share *s, const real *from, int h, ptrdiff_t j, int row)
{
    return from + (h * part_keys(s->c) + j % CHUNK) * row;
}
/* Adds the sums of some heads to a gradient of keys or values, or, in
 * double, to the total of a term. */
static void add_to_view(const struct share *s, const real *from, const loci_view *to, int h0,
                        int heads, int width)
{
    for (int h = 0; h < heads && to->data; h++)
        for (ptrdiff_t j = s->first; j < s->end; j++) {
            real *row = (real *)to->data + s->q->b * to->batch + (h0 + h) * to->head
                      + (s->q->k0 + j) * to->row;
            const real *sums = sums_at(s, from, h, j, padded(width));
            add_numbers(row, sums, width);
        }
}
static void add_to_total(const struct share *s, const real *from, int x, int h0, int heads)
{
    const struct term *term = term_of(s->c, x);
    const int width = term->keyed(s->c, x);
    for (int h = 0; h < heads; h++) {
        double *to = s->c->g.total[x] + term->keys_at(s->c, x, s->q->b, h0 + h);
        for (ptrdiff_t j = s->first; j < s->end; j++) {
            double *row = to + (s->q->k0 + j) * width;
            const real *sums = sums_at(s, from, h, j, key_row(term, s->c, x));
            for (int n = 0; n < width; n++) row[n] += (double)sums[n];
        }
    }
}

/* Sums by tile and kv head, those of the item's chunk that have begun. */
static void add_tiled(const struct call *c, const struct sums *sums, const struct item *item,
                      ptrdiff_t chunk, int x)
{
    const ptrdiff_t n = term_of(c, x)->tiled(c, x), tiles = part_tiles(c),
                    first = item->q->first_ktile + chunk * (CHUNK / KT);
    for (int h = 0; h < item_kv_heads(c->plan); h++)
        for (ptrdiff_t i = 0; i < tiles; i++) {
            const real *from = sums->tiled[x] + (h * tiles + i) * n;
            if (from[n - 1] == 0) continue;
            double *to = c->g.total[x] + ((first + i) * c->plan->kv_heads + item->kvh + h) * n;
            for (ptrdiff_t k = 0; k < n; k++) to[k] += (double)from[k];
        }
}
void N(add_item_keys)(const struct call *c, const struct sums *sums, const struct item *item,
                      ptrdiff_t chunk)
{
    const struct loci_plan *p = c->plan;
    const struct keyrange keys = keys_in_chunk(item, chunk);
    const struct share s = { .c = c, .q = item->q, .first = keys.first, .end = keys.last + 1 };
    add_to_view(&s, sums->dk, &c->g.dk, item->kvh * (p->key_heads / p->kv_heads), item_key_heads(p),
                p->score_dim);
    add_to_view(&s, sums->dv, &c->g.dv, item->kvh, item_kv_heads(p), p->value_dim);
    EACH_USE(c, x, term)
        if (sums->keys[x] && c->g.total[x])
            add_to_total(&s, sums->keys[x], x, item->kvh * p->group, item_heads(p));
    EACH_USE(c, x, term)
        if (sums->tiled[x] && c->g.total[x]) add_tiled(c, sums, item, chunk, x);
}

void N(add_item_parts)(const struct call *c, const struct sums *sums, const struct item *item)
{
    EACH_USE(c, x, term) {
        if (!c->g.total[x] || !term->part) continue;
        const ptrdiff_t size = term->part(c, x), added = added_part(c, x);
        for (int h = 0; h < item_heads(c->plan); h++) {
            double *to =
                c->g.total[x] + term->part_at(c, x, item->q->b, item->kvh * c->plan->group + h);
            for (ptrdiff_t i = 0; i < added; i++)
                to[i] += sums->all[x] ? sums->all[x][h * added + i]
                                      : (double)sums->part[x][h * size + i];
        }
    }
}

/* ---- Threads --------------------------------------------------------------------------------- */

static struct item item_of(const struct call *c, ptrdiff_t i)
{
    const int groups = groups_of(c);
    const ptrdiff_t rows = c->seqs.chunks - 1 - i / groups;
    const struct sequence *q = find_sequence(c, BY_CHUNK, rows);
    return N(item_at)(c, q, (q->first_chunk + tiles_of_rows(q) - 1 - rows) * groups + i % groups);
}

/* State shared by all threads. */
struct backward_pass {
    struct call *c;
    struct ordered_sum ordered_sum;
    struct pipelines pipelines;
    bool helps; /* threads without an item help others */
};

/* Gradients by key belong to a kv head, in all sequences that share its keys.  Parts of all
 * items may be added to the same total. */
static struct ordered_item find_item_of(void *arg, ptrdiff_t i)
{
    const struct call *c = ((const struct backward_pass *)arg)->c;
    const struct item item = item_of(c, i);
    return (struct ordered_item){ .place = item.q->keys * c->plan->kv_heads + item.kvh,
                                  .first = item.chunks.first,
                                  .last = item.chunks.last };
}
static void add_block(void *arg, int block, ptrdiff_t i, ptrdiff_t chunk, bool shared)
{
    const struct call *c = ((const struct backward_pass *)arg)->c;
    const struct item item = item_of(c, i);
    const struct sums sums = N(sums_of)(c, block);
    if (shared) N(add_item_parts)(c, &sums, &item);
    else N(add_item_keys)(c, &sums, &item, chunk);
}
static bool learns_parts(const struct call *c)
{
    EACH_USE(c, x, term)
        if (term->part && c->g.total[x]) return true;
    return false;
}

/* May several threads process the rows of an item?  Its rows meet a tile of keys one after the
 * other, and leave a chunk one after the other: all sums are made then, but for parts that rows add
 * to while they walk, and sums by tile that rows begin before they reach the tile. */
static bool rows_overlap(const struct call *c)
{
    EACH_USE(c, x, term)
        if (c->g.total[x] && (term->part_by_tile || term->tiled)) return false;
    return true;
}

/* An item that a thread owns, and the chunk of keys that it is at. */
struct own_item {
    struct pipeline pipeline; /* the first member, by which helpers find the rest */
    struct item item;
    ptrdiff_t chunk;
    struct sums sums;
};
static void sum_units(struct backward_pass *a, const struct workspace *d, const struct sums *sums,
                      struct own_item *o)
{
    struct unit u = { .pipelines = &a->pipelines, .pipeline = &o->pipeline };
    while ((u.number = loci_pipeline_next(&o->pipeline)) >= 0)
        if (!N(sum_unit)(a->c, d, sums, &o->item, o->chunk, &u)) {
            loci_pipelines_stop(&a->pipelines);
            return;
        }
}
static bool sum_with_helpers(struct backward_pass *a, const struct workspace *d, struct own_item *o)
{
    const struct call *c = a->c;
    N(open_sums)(c, &o->sums, &o->item, o->chunk);
    loci_pipeline_begin(&a->pipelines, &o->pipeline, N(units_of)(c, &o->item));
    sum_units(a, d, &o->sums, o);
    loci_pipeline_end(&a->pipelines, &o->pipeline);
    if (atomic_load(&a->pipelines.stop)) return false;
    N(close_sums)(c, &o->sums, &o->item, o->chunk);
    return true;
}
/* A helper adds to the owner's sums, in tiles of its own. */
static void help(struct backward_pass *a, const struct workspace *d, const struct sums *own)
{
    for (struct pipeline *p; (p = loci_pipeline_join(&a->pipelines));) {
        struct own_item *o = (struct own_item *)p;
        struct sums sums = o->sums;
        memcpy(sums.fresh, own->fresh, sizeof sums.fresh);
        memcpy(sums.carry, own->carry, sizeof sums.carry);
        sums.scores = own->scores;
        sum_units(a, d, &sums, o);
        loci_pipeline_leave(&a->pipelines, p);
    }
}

/* Runs items one after the other, each through its chunks of keys, oldest first. */
static void sum_items(struct backward_pass *a, const struct workspace *d, struct own_item *o,
                      int block)
{
    struct call *c = a->c;
    for (ptrdiff_t i; block >= 0 && (i = loci_ordered_sum_next(&a->ordered_sum, block)) >= 0;) {
        o->item = item_of(c, i);
        for (o->chunk = o->item.chunks.first; o->chunk <= o->item.chunks.last && block >= 0;
             o->chunk++) {
            N(use_block)(c, block, &o->sums);
            if (!(a->helps ? sum_with_helpers(a, d, o)
                           : N(sum_item)(c, d, &o->sums, &o->item, o->chunk))) {
                loci_ordered_sum_stop(&a->ordered_sum);
                return;
            }
            block = loci_ordered_sum_submit(&a->ordered_sum, block);
        }
    }
}
static void item_job(void *arg, int index)
{
    struct backward_pass *a = arg;
    struct own_item own;
    const struct workspace d = N(workspace_of)(a->c, index, &own.sums);
    loci_pipelines_enter(&a->pipelines);
    sum_items(a, &d, &own, index);
    loci_pipelines_retire(&a->pipelines);
    if (a->helps) help(a, &d, &own.sums);
}
static loci_status run_items(struct call *c)
{
    const ptrdiff_t items = c->seqs.chunks * groups_of(c);
    const ptrdiff_t units = item_heads(c->plan) / locked(c->plan) * item_tiles(c);
    const bool helps = rows_overlap(c) && c->threads > 1 && units >= LEAST_UNITS;
    const ptrdiff_t most = helps ? items * PIPELINE_JOBS : items;
    const int jobs = most < c->threads ? (int)most : c->threads;
    struct backward_pass a = { .c = c,
                               .helps = helps,
                               .ordered_sum = { .find = find_item_of,
                                                .add = add_block,
                                                .items = items,
                                                .blocks = c->threads + spare_blocks(c->threads),
                                                .shares = learns_parts(c) } };
    a.ordered_sum.arg = &a;
    loci_ordered_sum_open(&a.ordered_sum, jobs);
    loci_pipelines_open(&a.pipelines);
    N(run)(c, jobs, item_job, &a);
    const bool stopped = a.ordered_sum.stop;
    loci_pipelines_close(&a.pipelines);
    loci_ordered_sum_close(&a.ordered_sum);
    return stopped ? LOCI_CANCELLED : LOCI_OK;
}

/* ---- The pass -------------------------------------------------------------------------------- */

loci_status N(backward)(struct call *c)
{
    const struct loci_plan *p = c->plan;
    /* Rows without keys, and keys without rows, are in no item: their gradient is 0. */
    clear(&c->g.dq, c->B, p->heads, c->Lq, p->dim, p->stored);
    clear(&c->g.dk, c->B, p->key_heads, c->Lk, p->score_dim, sizeof(real));
    clear(&c->g.dv, c->B, p->kv_heads, c->Lk, p->value_dim, sizeof(real));
    loci_status status = run_items(c);
    if (status != LOCI_OK) return status;
    N(unmove_keys)(c);
    if (!c->mem.turned) N(unrotate_keys)(c);
    return LOCI_OK;
}
#endif
