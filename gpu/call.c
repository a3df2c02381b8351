/* SPDX-License-Identifier: MIT */
/* call.c -- from a public call to what kernels read.  The code that validates calls of the CPU
 * validates these, too.  Sequences, positions and factors are found on the host and uploaded as
 * lists; everything else that a kernel needs is a number in struct params. */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "aligned.h"
#include "api/linear.h"
#include "api/tables.h"
#include "layout/band_k.h"
#include "layout/blocks.h"
#include "layout/channel_gates.h"
#include "layout/distance.h"
#include "layout/factor.h"
#include "layout/fourier.h"
#include "layout/gate.h"
#include "layout/given_pairs.h"
#include "layout/matrices.h"
#include "layout/mix.h"
#include "layout/ranged_pairs.h"
#include "layout/reflect.h"
#include "layout/roll.h"
#include "layout/scan.h"
#include "layout/slopes.h"
#include "layout/states.h"
#include "layout/softcap.h"
#include "layout/stick.h"
#include "kernels/rooms.h"

/* given: bytes of `work` that the caller knows of; 0: none. */
loci_status loci_gpu_check_work(const void *work, size_t given, size_t needed, loci_error *e)
{
    CHECK(e, work && (uintptr_t)work % 64 == 0, LOCI_BAD_ARG,
          "work must not be NULL and must be aligned to 64 bytes");
    CHECK(e, !given || given >= needed, LOCI_BAD_ARG,
          "work has %zu bytes, but this call needs %zu; loci_gpu_workspace() returns the size",
          given, needed);
    return LOCI_OK;
}

/* ---- Memory of the host ---------------------------------------------------------------------- */

/* In place of loci_lay_out(): sequences and positions, what encodings compute of them, and in a
 * backward pass sums of what is learned. */
static size_t lay_out_host(struct call *c, char *base, bool backward)
{
    const struct loci_plan *p = c->plan;
    struct arena a = { .base = base };
    c->backward = backward;
    c->seqs.list = carve_bytes(&a, loci_most_sequences(c), sizeof(struct sequence));
    loci_carve_positions(c, &a);
    c->seqs.longest = all_keys(c);
    c->seqs.ktiles = loci_most_ktiles(c);
    /* what encodings compute of inputs is computed on the device */
    for (int e = 0; e < p->encs; e++) {
        const struct loci_pe *pe = p->enc[e].pe;
        c->mem.scratch[e] = pe->scratch && !loci_gpu_has_inputs(p, e)
                              ? carve_bytes(&a, pe->scratch(c, e), 1)
                              : NULL;
    }
    if (is_linear(p))
        c->linear.seen = carve_bytes(&a, (size_t)(c->B * c->Lq), sizeof *c->linear.seen);
    for (int x = 0; x < p->uses && backward; x++) {
        const ptrdiff_t total =
            loci_gpu_by_key(p->use[x].term) || x == p->moves || p->use[x].term == TERM_states
                ? 0
                : loci_gpu_total(c, x);
        c->g.total_count[x] = total;
        if (total) c->g.total[x] = carve_bytes(&a, (size_t)total, sizeof(double));
    }
    for (int i = 0; i < p->tensors.n && backward; i++) {
        if (p->tensors.list[i].role == LOCI_INPUT) continue;
        c->g.dtensor_count[i] = tensor_count(&p->tensors.list[i]);
        c->g.dtensor[i] = carve_bytes(&a, (size_t)c->g.dtensor_count[i], sizeof(double));
    }
    return a.full ? SIZE_MAX : a.used ? a.used : 64;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

/* Are pairs tested one by one?  It must follow from which pointers are set, as sizes do. */
static bool has_positions(const loci_call *in) { return in->q_pos || in->q_starts || in->q_seg; }
/* Packed sequences alone have runs of positions. */
static bool may_scatter(const loci_call *in) { return in->q_pos || in->q_seg; }
static bool is_listed(const loci_call *in)
{
    return has_positions(in) || in->mask_kind || in->k_first;
}
/* Keys that are rotated, or are to be rotated now. */
static bool turns_keys(const struct gpu_call *g)
{
    return !g->call.plan->keys_rotated || g->update.to || g->alone;
}
/* Does a kernel walk over all keys that there is room for?  Those of a cache may not be there. */
static bool walks_over_room(const struct gpu_call *g)
{
    const struct loci_plan *p = g->call.plan;
    bool walks = p->rotate >= 0 && (!p->keys_rotated || g->params.fades);
    for (int u = 0; u < g->params.uses; u++) walks |= g->use[u].term == GPU_KEY_VECTORS;
    return walks;
}
/* Items of 1024 rows of all sequences, of which cape takes as many together as are not larger. */
static size_t most_items(const struct call *c)
{
    return loci_most_sequences(c) + (size_t)(c->B * tiles(c->Lq, ROW_CHUNK));
}
/* Tiles of rows of a strip. */
static int strip_tiles(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const size_t all = loci_most_sequences(c) + (size_t)(c->B * tiles(c->Lq, g->params.rows));
    const int most = ROW_CHUNK / g->params.rows;
    return all < (size_t)most ? (int)all : most;
}
struct piece_row {
    double inverse;
    int64_t position;
    float rounded;
};
/* Offsets of the lists, and their bytes.  Those of an arena that starts at 0. */
static size_t lay_out_lists(struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const loci_call *in = &g->in;
    struct params *k = &g->params;
    struct arena a = { 0 };
    const size_t B = (size_t)c->B, Lq = (size_t)c->Lq, Lk = (size_t)c->Lk,
                 each = in->per_batch ? B : 1;
#define LIST(to, count, type) \
    do { \
        (to) = (int64_t)a.used; \
        carve_bytes(&a, count, sizeof(type)); \
    } while (0)
    k->q_pos = k->k_pos = k->q_seg = k->k_seg = k->k_first = k->k_last = k->q_factor = -1;
    LIST(k->spans, loci_most_sequences(c), struct span);
    LIST(k->use, GPU_USES, struct gpu_use);
    LIST(k->turn, 1, struct gpu_turn);
    k->stick = k->mix = -1;
    if (p->mix >= 0) LIST(k->mix, 2 * most_items(c), struct gpu_mix);
    if (p->weight >= 0) LIST(k->stick, 2, struct gpu_stick);
    if (g->stick.heir != HEIR_NONE) LIST(g->stick.heirs, B * Lq, int64_t);
    if (g->stick.heir == HEIR_VALUE && g->backward) {
        LIST(g->stick.rows, B * Lq, int64_t);
        LIST(g->stick.first, B * (Lk + 1), int64_t);
    }
    if (has_positions(in)) {
        LIST(k->q_pos, B * Lq, int64_t);
        LIST(k->k_pos, B * Lk, int64_t);
    }
    if (in->q_seg) {
        LIST(k->q_seg, B * Lq, int64_t);
        LIST(k->k_seg, B * Lk, int64_t);
    }
    if (in->k_first) {
        LIST(k->k_first, each * Lq, int64_t);
        LIST(k->k_last, each * Lq, int64_t);
    }
    if (p->rotate >= 0) {
        /* places that are counted are a number for each entry */
        const bool counted = !in->q_pos && !in->q_starts, axes = p->axes > 1;
        const size_t q_rows = counted && !in->q_coord && !axes ? 1 : (size_t)p->axes * Lq,
                     k_rows = counted && !in->k_coord && !axes ? 1 : (size_t)p->axes * Lk;
        const size_t forms = (size_t)p->row_forms;
        LIST(g->q_where, forms > 1 ? forms * B * Lq : B * q_rows, double);
        LIST(g->k_where, forms > 1 ? forms * B * Lk : B * k_rows, double);
    }
    if (in->pages) {
        k->page_keys = in->pages->length < INT32_MAX ? (int32_t)in->pages->length : INT32_MAX;
        k->page_entry = (int32_t)tiles(c->Lk, k->page_keys > 0 ? k->page_keys : 1);
        LIST(k->pages, B * (size_t)k->page_entry, int32_t);
    }
    g->used = -1;
    if (in->cache ? walks_over_room(g) : in->k_lens || in->q_seg) LIST(g->used, B * Lk, char);
    g->used_rows = -1;
    if (p->turns_values && (in->q_seg || in->q_lens || g->measured))
        LIST(g->used_rows, B * Lq, char);
    for (int u = 0; u < k->uses; u++) {
        if (g->use[u].term == GPU_FACTOR) LIST(g->use[u].table, B * (size_t)p->heads * Lq, float);
        if (g->use[u].term == GPU_PIECES) LIST(g->use[u].rows, B * Lq, struct piece_row);
    }
    for (int u = 0; u < k->uses && g->backward; u++)
        if (g->use[u].term == GPU_FACTOR) LIST(g->use[u].rows, B * (size_t)p->heads * Lq, double);
    k->factor_rows = -1;
    for (int x = 0; x < p->uses; x++)
        if (loci_gpu_counts(g, x)) LIST(g->counts[x], Lk + 1, double);
    for (int x = 0; x < p->uses; x++)
        if (p->use[x].term == TERM_factor && factor_folds(p, x)) {
            LIST(k->q_factor, B * (size_t)p->heads * Lq, float);
            if (g->backward) LIST(k->factor_rows, B * (size_t)p->heads * Lq, double);
        }
    if (k->rotation == TURN_MATRICES) {
        const struct blocks *w = layout_of(p, p->rotate);
        const struct matrices *m = c->mem.scratch[p->use[p->rotate].enc];
        const size_t slots = g->measured ? each * (Lq + Lk) : (size_t)m->slots,
                     count = slots * (size_t)(w->groups * w->count * w->block * w->block);
        LIST(g->turn.slots[0], each * Lq, int64_t);
        LIST(g->turn.slots[1], turns_keys(g) ? each * Lk : 0, int64_t);
        LIST(g->turn.matrices[0], count, float);
        if (g->backward) LIST(g->turn.matrices[1], count, float);
    }
    if (g->update.to) {
        LIST(g->moves, 2 * B * Lk, struct row_move);
        LIST(g->input_moves, 2 * B * Lk, struct row_move);
    }
#undef LIST
    if (is_linear(p)) loci_gpu_list_linear(g, &a);
    return a.full ? SIZE_MAX : a.used;
}
/* Strips of whole items, each twice: `forward` makes scores, and takes them. */
static void fill_strips(struct gpu_call *g, int rows)
{
    const struct call *c = &g->call;
    struct gpu_mix *to = (struct gpu_mix *)(g->lists + g->params.mix);
    int32_t tile = 0;
    g->mix.tiles = 0;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++)
        for (ptrdiff_t row = 0; row < c->seqs.list[s].nq; row += ROW_CHUNK) {
            const ptrdiff_t left = c->seqs.list[s].nq - row;
            const int32_t n = (int32_t)tiles(left < ROW_CHUNK ? left : ROW_CHUNK, rows);
            if (!g->strips || g->mix.tiles + n > ROW_CHUNK / rows) {
                g->strips++;
                g->mix.first = tile;
                g->mix.tiles = 0;
            }
            g->mix.tiles += n;
            tile += n;
            to[2 * g->strips - 2] = to[2 * g->strips - 1] = g->mix;
            to[2 * g->strips - 2].stores = 1;
        }
}
/* The rotation, from the plan and the tables of the host. */
static void fill_turn(struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    struct gpu_turn *to = &g->turn;
    if (p->rotate < 0) return;
    const void *layout = layout_of(p, p->rotate), *table = c->table[p->use[p->rotate].enc];
    const int64_t offset = (const char *)table - (const char *)c->table[0] + ALIGN;
    if (g->params.rotation == TURN_PAIRS) {
        const struct pairs *t = table;
        to->count = t->count;
        to->offset = t->offset;
        to->inside = t->interleaved;
        to->groups = t->groups;
    } else if (g->params.rotation == TURN_RANGES) {
        const struct pairs *t = table;
        const struct ranged_pairs *r = layout;
        to->count = t->count;
        to->offset = t->offset;
        to->inside = t->interleaved;
        to->rule = (int32_t)r->rule;
        to->window = r->window;
        to->group = r->group;
        to->leak = r->leak;
        to->key_forms = p->key_forms;
        to->q_form = (int64_t)c->B * p->heads * c->Lq * p->score_dim;
        to->k_form = (int64_t)c->B * p->kv_heads * c->Lk * p->score_dim;
    } else if (g->params.rotation == TURN_GIVEN) {
        const struct given_pairs *t = layout;
        to->count = t->count;
        to->offset = t->offset;
        to->inside = t->interleaved;
    } else if (g->params.rotation == TURN_STATES) {
        to->width = p->value_dim;
        to->offset = FOURS(p->value_dim);
        for (int x = 0; x < p->rotate; x++)
            to->rule |=
                p->use[x].term == TERM_band_q && ((const struct vectors *)layout_of(p, x))->values;
    } else if (g->params.rotation == TURN_WAVES) {
        const struct fourier *f = layout;
        to->count = p->dim / 2;
        to->groups = f->groups;
        to->sums = f->sums;
        to->lanes = fourier_lanes(f->sums);
        to->rest = (float)f->rest;
        to->numbers = offset + (int64_t)fourier_at(f);
    } else {
        const struct blocks *w = layout;
        to->groups = w->groups;
        to->block = w->block;
        to->blocks = w->count;
        to->axes = w->axes;
        to->per_panel = blocks_per_panel(w);
        to->panels = blocks_panels(w);
        to->width = blocks_width(w);
        to->back_lanes = blocks_lanes(blocks_channels(w));
        to->numbers = offset + (int64_t)blocks_at(w);
        to->weights = offset + (const char *)blocks_weight(w, table) - (const char *)table;
    }
    memcpy(g->lists + g->params.turn, to, sizeof *to);
}
/* Who gets what is left of the sticks, and the rows of each key that does, rising. */
static void fill_heirs(struct gpu_call *g)
{
    const struct call *c = &g->call;
    const ptrdiff_t *own = c->mem.scratch[c->plan->use[c->plan->weight].enc];
    int64_t *heir = (int64_t *)(g->lists + g->stick.heirs);
    for (ptrdiff_t i = 0; i < c->B * c->Lq; i++) heir[i] = -1;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        for (ptrdiff_t i = q->b * c->Lq + q->q0; i < q->b * c->Lq + q->q0 + q->nq; i++)
            if (seg_q(c, q->b, i - q->b * c->Lq) >= 0)
                heir[i] = g->stick.heir == HEIR_VECTOR ? 0 : own[i];
    }
    if (g->stick.heir != HEIR_VALUE || !g->backward) return;
    for (ptrdiff_t b = 0; b < c->B; b++, heir += c->Lq) {
        int64_t *first = (int64_t *)(g->lists + g->stick.first) + b * (c->Lk + 1),
                *rows = (int64_t *)(g->lists + g->stick.rows) + b * c->Lq;
        for (ptrdiff_t i = 0; i < c->Lq; i++)
            if (heir[i] >= 0) first[heir[i] + 1]++;
        for (ptrdiff_t j = 0; j < c->Lk; j++) first[j + 1] += first[j];
        for (ptrdiff_t i = c->Lq - 1; i >= 0; i--) /* from the ends down, which become firsts */
            if (heir[i] >= 0) rows[--first[heir[i] + 1]] = i;
        for (ptrdiff_t j = 0; j < c->Lk; j++) first[j] = first[j + 1];
        int64_t n = 0;
        for (ptrdiff_t i = 0; i < c->Lq; i++) n += heir[i] >= 0;
        first[c->Lk] = n;
    }
}
static void fill_matrices(struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const struct matrices *m = c->mem.scratch[p->use[p->rotate].enc];
    const ptrdiff_t each = g->in.per_batch ? c->B : 1, rows[] = { each * c->Lq, each * c->Lk };
    const size_t bytes =
        sizeof(float) * (size_t)(m->slots * m->groups * m->count * m->block * m->block);
    for (int side = 0; side < 2; side++) {
        g->turn.slot_entry[side] = g->in.per_batch ? rows[side] / each : 0;
        if (side ? c->where.k_coord && turns_keys(g) : g->in.q_coord != NULL)
            memcpy(g->lists + g->turn.slots[side], m->slot[side],
                   sizeof(int64_t) * (size_t)rows[side]);
    }
    memcpy(g->lists + g->turn.matrices[0], m->into, bytes);
    if (g->backward) memcpy(g->lists + g->turn.matrices[1], m->back, bytes);
}
/* 1 / N of rows as doubles, their positions, and 1 / N as floats, for src/terms/pieces.c. */
static void fill_pieces(const struct gpu_call *g, int x, int64_t at)
{
    const struct call *c = &g->call;
    const double *rows = c->mem.scratch[c->plan->use[x].enc];
    const ptrdiff_t n = c->B * c->Lq;
    double *inverse = (double *)(g->lists + at);
    int64_t *position = (int64_t *)(inverse + n);
    float *rounded = (float *)(position + n);
    for (ptrdiff_t i = 0; i < n; i++) {
        inverse[i] = rows[i];
        position[i] = pos_q(c, i / c->Lq, i % c->Lq);
        rounded[i] = (float)rows[i];
    }
}
static int64_t *list(const struct gpu_call *g, int64_t at) { return (int64_t *)(g->lists + at); }

static void fill_spans(struct gpu_call *g, int rows)
{
    const struct call *c = &g->call;
    struct span *to = (struct span *)(g->lists + g->params.spans);
    int32_t tile = 0, item = 0, ktile = 0;
    int64_t roll = 0;
    bool rolls = false;
    for (int u = 0; u < g->params.uses; u++) rolls |= g->use[u].term == GPU_ROLL;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        to[s] = (struct span){
            .d0 = q->d0,
            .k_from = q->nk ? pos_k(c, q->b, q->k0) : 0,
            .b = (int32_t)q->b,
            .q0 = (int32_t)q->q0,
            .nq = (int32_t)q->nq,
            .k0 = (int32_t)q->k0,
            .nk = (int32_t)q->nk,
            .run = q->run,
            .segments = q->segments,
            .tile = tile,
            .item = item,
            .ktile = ktile,
            .roll = (int32_t)roll,
            .entry = (int32_t)(g->in.q_starts ? s : q->b),
            .row_number = number_of_row(c, q, q->q0),
            .key_number = (int32_t)number_of_key(c, q, q->k0),
        };
        tile += (int32_t)tiles(q->nq, rows);
        item += (int32_t)tiles(q->nq, ROW_CHUNK);
        ktile += (int32_t)tiles(q->nk, KT);
        if (q->run && rolls)
            roll += tiles(q->nq, ROW_CHUNK) * ROLL_CHUNKS(q->nk) * ROLL_BLOCKS(q->nq, q->nk);
    }
    g->params.sequences = (int32_t)c->seqs.n;
    g->params.tiles = tile;
    g->params.ktiles = ktile;
    g->items = item;
    g->roll_blocks = roll;
}
/* Keys of an entry that have positions: of a cache, those that are there. */
static ptrdiff_t listed_keys(const struct call *c, ptrdiff_t b)
{
    return c->cache ? keys_in(c, b) : c->Lk;
}
/* The page of keys 64 i .. of an entry of a cache. */
static int32_t cache_page(const struct loci_cache *k, ptrdiff_t b, ptrdiff_t i)
{
    const ptrdiff_t count = (ptrdiff_t)k->form.tiles,
                    slot = ((ptrdiff_t)cache_list(k, k->base)[b] / KT + i) % count;
    return (int32_t)(cache_owner(k, b, slot) * count + slot);
}
/* Places of the rows of a side: the position of the first row of each entry if they are counted,
 * else coordinates [B][axes][rows]. */
static void fill_places(struct gpu_call *g, bool query, int64_t at)
{
    const struct call *c = &g->call;
    const ptrdiff_t rows = query ? c->Lq : c->Lk;
    const int axes = c->plan->axes;
    const bool counted =
        query ? !c->where.q_pos && !g->in.q_coord : !c->where.k_pos && !c->where.k_coord;
    double *place = (double *)(g->lists + at);
    for (int form = 0; form < c->plan->row_forms && c->plan->row_forms > 1; form++)
        for (ptrdiff_t b = 0; b < c->B; b++, place += rows)
            for (ptrdiff_t i = 0; i < (query ? rows : listed_keys(c, b)); i++)
                place[i] = range_place(layout_of(c->plan, c->plan->rotate), query, form,
                                       query ? pos_q(c, b, i) : pos_k(c, b, i))
                               .x;
    if (c->plan->row_forms > 1) return;
    for (ptrdiff_t b = 0; b < c->B && counted && rows; b++)
        list(g, at)[b] = query ? pos_q(c, b, 0) : pos_k(c, b, 0);
    double *x = (double *)(g->lists + at);
    for (ptrdiff_t b = 0; b < c->B && !counted; b++)
        for (int axis = 0; axis < axes; axis++, x += rows)
            for (ptrdiff_t i = 0; i < (query ? rows : listed_keys(c, b)); i++)
                x[i] = query ? coord_q(c, b, axis, i) : coord_k(c, b, axis, i);
}
bool loci_gpu_counts(const struct gpu_call *g, int x)
{
    const struct loci_plan *p = g->plan->plan;
    return p->use[x].term == TERM_factor && g->in.mask_kind
        && loci_factor_counts(p, p->use[x].enc) == COUNT_KEYS;
}
/* Factors of rows as src/terms/factor.c finds them; backward also what they are made of.  Or, where
 * the device counts keys, what a count makes. */
static void fill_factors(const struct gpu_call *g, int x, int64_t at, int64_t numbers)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const int e = p->use[x].enc;
    if (loci_gpu_counts(g, x)) {
        double *by_count = (double *)(g->lists + g->counts[x]);
        for (ptrdiff_t n = 0; n <= c->Lk; n++)
            by_count[n] = p->enc[e].pe->factor_of_count(&p->enc[e], n < 1 ? 1 : (double)n);
        return;
    }
    const float *table = c->table[e];
    const double *rows = c->mem.scratch[e];
    float *to = (float *)(g->lists + at);
    double *number = g->backward ? (double *)(g->lists + numbers) : NULL;
    for (ptrdiff_t b = 0; b < c->B; b++)
        for (int h = 0; h < p->heads; h++)
            for (ptrdiff_t i = 0; i < c->Lq; i++) {
                const double n = rows[factor_row(c, b, h, i)];
                if (g->backward) *number++ = n;
                *to++ = factor_learned(p, e) ? (float)((double)table[factor_at(h, FACTOR_SLOPE)] * n
                                                       + (double)table[factor_at(h, FACTOR_BIAS)])
                                             : (float)n;
            }
}
static void fill_lists(struct gpu_call *g, int rows)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const loci_call *in = &g->in;
    struct params *k = &g->params;
    fill_spans(g, rows);
    for (ptrdiff_t b = 0; b < c->B; b++) {
        for (ptrdiff_t i = 0; i < c->Lq; i++) {
            if (k->q_pos >= 0) list(g, k->q_pos)[b * c->Lq + i] = pos_q(c, b, i);
            if (k->q_seg >= 0) list(g, k->q_seg)[b * c->Lq + i] = seg_q(c, b, i);
        }
        const ptrdiff_t keys = k->k_pos >= 0 || k->k_seg >= 0 ? listed_keys(c, b) : 0;
        for (ptrdiff_t j = 0; j < keys; j++) {
            if (k->k_pos >= 0) list(g, k->k_pos)[b * c->Lk + j] = pos_k(c, b, j);
            if (k->k_seg >= 0) list(g, k->k_seg)[b * c->Lk + j] = seg_k(c, b, j);
        }
    }
    if (in->k_first) {
        const size_t n = sizeof(int64_t) * (size_t)((in->per_batch ? c->B : 1) * c->Lq);
        memcpy(list(g, k->k_first), in->k_first, n);
        memcpy(list(g, k->k_last), in->k_last, n);
        k->list_entry = in->per_batch ? (int32_t)c->Lq : 0;
    }
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        if (g->used >= 0) memset(g->lists + g->used + q->b * c->Lk + q->k0, 1, (size_t)q->nk);
        if (g->used_rows >= 0)
            memset(g->lists + g->used_rows + q->b * c->Lq + q->q0, 1, (size_t)q->nq);
    }
    for (ptrdiff_t b = 0; b < c->B && in->pages; b++)
        for (ptrdiff_t i = 0; i < tiles(keys_in(c, b), k->page_keys); i++)
            ((int32_t *)(g->lists + k->pages))[b * k->page_entry + i] =
                c->cache ? cache_page(c->cache, b, i) : in->pages->table[b * in->pages->entry + i];
    if (k->rotation == TURN_MATRICES) fill_matrices(g);
    fill_turn(g);
    if (g->stick.heir != HEIR_NONE) fill_heirs(g);
    if (k->mix >= 0) fill_strips(g, rows);
    for (int i = 0; k->stick >= 0 && i < 2; i++) { /* what is left is for no state */
        struct gpu_stick stick = g->stick;
        if (i) stick.heir = HEIR_NONE;
        memcpy((struct gpu_stick *)(g->lists + k->stick) + i, &stick, sizeof stick);
    }
    if (p->rotate >= 0) {
        fill_places(g, true, g->q_where);
        fill_places(g, false, g->k_where);
    }
    int u = p->moves >= 0;
    for (enum group group = GROUP_RAW; group <= GROUP_ADD; group++)
        for (int x = 0; x < p->uses; x++) {
            if (p->use[x].group != group) continue;
            if (p->use[x].term == TERM_factor && factor_folds(p, x))
                fill_factors(g, x, k->q_factor, k->factor_rows);
            else if (p->use[x].term == TERM_factor) {
                fill_factors(g, x, g->use[u].table, g->use[u].rows);
                u++;
            } else if (p->use[x].term == TERM_pieces) fill_pieces(g, x, g->use[u++].rows);
            else u++;
        }
    if (is_linear(p)) loci_gpu_fill_linear(g);
}

/* ---- Terms ----------------------------------------------------------------------------------- */

/* Distances that a row may see. */
static void find_band(const struct loci_plan *p, int64_t *lo, int64_t *hi)
{
    *lo = p->full ? -((int64_t)1 << 60) : p->strict;
    if (p->window_right < -*lo) *lo = -p->window_right;
    *hi = p->window_left;
}
static int64_t clip(int64_t d, int64_t lo, int64_t hi) { return d < lo ? lo : d > hi ? hi : d; }
/* Vectors by distance, and where a table has them; offsets without a table do not matter. */
static void list_vectors(const struct call *c, int x, const char *table, struct gpu_use *use)
{
    const struct loci_plan *p = c->plan;
    if (use->term == GPU_ROW_VECTORS) {
        const struct vectors *v = layout_of(p, x);
        int64_t lo, hi;
        find_band(p, &lo, &hi);
        use->lo = v->lo;
        use->hi = v->hi;
        use->vectors = v->rows;
        use->vectors_at = use->table + (int64_t)vectors_index(v);
        use->vectors_head = v->tables > 1 ? (int64_t)vectors_table(v, p->dim, p->value_dim) : 0;
        use->columns = (int32_t)vectors_columns(v);
        use->ends_lo = (int32_t)clip(lo, v->lo, v->hi);
        use->ends_hi = (int32_t)clip(hi, v->lo, v->hi);
        if (use->ends_hi < use->ends_lo) use->ends_hi = use->ends_lo;
        if (!v->values) return;
        use->values_at = use->vectors_at + (int64_t)(vectors_values(v, p->dim) * sizeof(float));
        use->value_width = (int32_t)vectors_width(p->value_dim);
    } else if (use->term == GPU_KEY_VECTORS) {
        const struct key_vectors *v = layout_of(p, x);
        use->lo = v->lo;
        use->hi = v->hi;
        use->vectors = v->hi - v->lo + 1;
        use->vectors_at = use->table + (int64_t)v->at;
        use->vectors_head = (int64_t)key_table(v, p->dim);
        use->columns = (int32_t)key_columns(v);
        use->width = (int32_t)vectors_width(p->dim);
    } else if (use->term == GPU_SCAN) {
        const struct scan a = scan_of(c, p->use[x].enc);
        use->vectors = a.npos;
        use->vectors_at = use->table;
        use->vectors_head = a.per_head ? (int64_t)a.npos * p->dim : 0;
        use->columns = 1;
        use->gates = a.gates == GATES_V     ? GATES_OF_VALUES
                   : a.gates == GATES_GIVEN ? GATES_OF_INPUT
                                            : GATES_OF_KEYS;
        if (a.gates == GATES_GIVEN)
            use->key_input = loci_gpu_input_number(p, p->use[x].enc, SCAN_GATE_K);
        use->value_width = p->dim;
        use->a = (float)a.gate;
        use->b = (float)a.pos;
        use->tiles = (int32_t)tiles(c->Lk, KEYS);
    } else if (use->term == GPU_ROLL && use->table >= 0) {
        const struct roll *v = (const void *)table;
        use->lo = (int32_t)v->lo;
        use->hi = (int32_t)v->hi;
        use->vectors_at = use->table + (int64_t)v->heads;
        use->vectors_head = roll_head(v);
        use->waves_at = use->table + (int64_t)v->waves;
        use->columns = (int32_t)v->waves_width;
        use->width = (int32_t)v->width;
    }
}
ptrdiff_t loci_gpu_total(const struct call *c, int x)
{
    if (c->plan->use[x].term != TERM_scan) return c->plan->engine->total(c, x);
    const struct scan a = scan_of(c, c->plan->use[x].enc);
    return scan_places(c, &a) * a.part;
}
bool loci_gpu_gives_gates(const struct gpu_call *g)
{
    const int scan = g->params.scan;
    return scan >= 0 && g->use[scan].gates == GATES_OF_INPUT && g->inputs[g->use[scan].key_input];
}
/* The number of an input tensor among those of the plan. */
int8_t loci_gpu_input_number(const struct loci_plan *p, int enc, int which)
{
    int8_t n = 0;
    for (int i = 0; i < p->first_tensor[enc] + which; i++)
        n = (int8_t)(n + (p->tensors.list[i].role == LOCI_INPUT));
    return n;
}
int8_t loci_gpu_states(const struct loci_plan *p, bool query)
{
    return loci_gpu_input_number(p, p->use[p->rotate].enc, query ? STATES_Q : STATES_K);
}
/* Does the use have vectors of values? */
static bool has_values(const struct gpu_use *use)
{
    return use->term == GPU_ROW_VECTORS && use->value_width > 0;
}
/* Sums by row of a use; returns the first. */
static int8_t by_row(struct gpu_call *g, int8_t n)
{
    g->row_sums = (int8_t)(g->row_sums + n);
    return (int8_t)(g->row_sums - n);
}
/* Weights that break a stick. */
static void list_stick(struct gpu_call *g, const void *tables)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const double stop = p->enc[p->use[p->weight].enc].opt[STICK_STOP], spent = 0x1p-64;
    const int remainder = stick_remainder(c, p->weight);
    g->stick = (struct gpu_stick){
        .shortest = stop > spent ? stop : spent,
        .tiles = (int32_t)tiles(c->Lk, KEYS),
        .chunks = (int32_t)tiles(c->Lk, CHUNK),
        .heir = remainder == REMAINDER_VALUE  ? HEIR_VALUE
              : remainder == REMAINDER_VECTOR ? HEIR_VECTOR
                                              : HEIR_NONE,
        .part = -1,
    };
    if (tables)
        g->stick.vectors = (const char *)c->table[p->use[p->weight].enc] - (const char *)tables;
}
/* A network that mixes heads. */
static void list_mix(struct gpu_call *g, const void *tables)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const int enc = p->use[p->mix].enc;
    const struct mix m = mix_of(&p->enc[enc]);
    g->mix = (struct gpu_mix){
        .units = m.G,
        .padded = m.Gp,
        .biased = m.in > m.H,
        .leak = (float)m.leak,
        .add = (float)m.add,
        .by_distance = m.in > m.H,
        .part = -1,
        .ktiles = (int32_t)tiles(c->Lk, KEYS),
    };
    if (tables) g->mix.table = (const char *)c->table[enc] - (const char *)tables;
    for (int x = 0; x < p->uses; x++)
        g->mix.by_distance &= p->use[x].group != GROUP_ADD || p->use[x].term == TERM_affine
                           || p->use[x].term == TERM_distance;
}
/* A term without anything but its place. */
static struct gpu_use empty_use(int32_t term)
{
    return (struct gpu_use){ .term = (int8_t)term,
                             .table = -1,
                             .key_input = -1,
                             .row_input = -1,
                             .by_key = -1,
                             .by_row = -1,
                             .direct = -1,
                             .values_at = -1 };
}
static void list_rotation(struct gpu_call *g)
{
    const struct loci_plan *p = g->call.plan;
    struct params *k = &g->params;
    k->fades = p->rotate >= 0 && p->use[p->rotate].term == TERM_fading_pairs;
    k->forms = p->row_forms;
    k->roomy = g->plan->roomy;
    k->scan = -1;
    k->rotation = p->rotate < 0 ? TURN_PAIRS : loci_gpu_rotation_of(p->use[p->rotate].term);
}
/* The kernels' terms in the order in which scores meet them: the one that changes rows on their
 * walk, then by group, then as in the text. */
static void list_terms(struct gpu_call *g, const void *tables)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    struct params *k = &g->params;
    bool scans = false;
    for (int x = 0; x < p->uses; x++) scans |= p->use[x].term == TERM_scan;
    k->rows = g->backward && (p->weight >= 0 || scans || p->moves >= 0 || p->mix >= 0)
                ? TILE_ROWS
                : g->plan->rows;
    list_rotation(g);
    if (p->weight >= 0) list_stick(g, tables);
    if (p->mix >= 0) list_mix(g, tables);
    if (p->moves >= 0) {
        const int enc = p->use[p->moves].enc;
        const bool reflects = reflects_rows(p);
        g->use[0] = empty_use(reflects ? GPU_REFLECTIONS : GPU_CHANNEL_GATES);
        g->use[0].key_input =
            loci_gpu_input_number(p, enc, reflects ? REFLECT_W : CHANNEL_GATES_LOG_F);
        if (reflects) g->use[0].row_input = loci_gpu_input_number(p, enc, REFLECT_BETA);
        g->plan_use[0] = p->moves;
        k->uses = 1;
    }
    for (enum group group = GROUP_RAW; group <= GROUP_ADD; group++) {
        if (group == GROUP_ADD) g->mix.first_add = k->uses;
        for (int x = 0; x < p->uses; x++) {
            int32_t term;
            if (p->use[x].group != group || !loci_gpu_term_of(p->use[x].term, &term)) continue;
            struct gpu_use use = empty_use(term);
            if (use.term == GPU_FACTOR && factor_folds(p, x)) continue;
            use.multiplies = group == GROUP_MUL;
            const char *table = c->table[p->use[x].enc];
            for (int y = 0; y < x && use.term == GPU_DISTANCE && tables; y++)
                if (p->use[y].enc == p->use[x].enc)
                    table += ((const struct distances *)table)->bytes;
            if (tables) use.table = table - (const char *)tables;
            list_vectors(c, x, table, &use);
            if (has_values(&use) && !g->backward) use.by_row = by_row(g, 2);
            if (use.term == GPU_SOFTCAP) {
                const double cap = p->enc[p->use[x].enc].opt[SOFTCAP_CAP];
                use.a = (float)cap;
                use.b = (float)(1 / cap);
            }
            if (use.term == GPU_GATE) {
                use.key_input = loci_gpu_input_number(p, p->use[x].enc, GATE_LOG_F);
                use.tiles = (int32_t)tiles(c->Lk, KEYS);
            }
            if (use.term == GPU_SLOPES) {
                const struct slopes *s = layout_of(p, x);
                if (s->key >= 0) use.key_input = loci_gpu_input_number(p, p->use[x].enc, s->key);
                if (s->query >= 0)
                    use.row_input = loci_gpu_input_number(p, p->use[x].enc, s->query);
            }
            if (use.term == GPU_SCAN) k->scan = k->uses;
            g->plan_use[k->uses] = x;
            g->use[k->uses++] = use;
        }
    }
}
/* Sums for the gradients of inputs.  Those of gates by key need those of rows. */
static void want_sums(struct gpu_call *g, struct gpu_use *use)
{
    const bool gate = use->term == GPU_GATE,
               keys = use->key_input >= 0 && g->inputs[use->key_input],
               rows = gate ? keys : use->row_input >= 0 && g->inputs[use->row_input];
    if (keys) use->by_key = g->key_sums++;
    if (rows) use->by_row = by_row(g, 1);
    use->count = rows;
}
/* Learned numbers of a head of a use.  A use with sums by row counts one that stays 0.  What
 * matrices learn is found on the host. */
static int count_parts(const struct call *c, int x)
{
    const struct loci_plan *p = c->plan;
    if (p->use[x].term == TERM_matrices || p->use[x].term == TERM_states) return 0;
    const int heads = x == p->rotate ? p->kv_heads : p->heads;
    return loci_gpu_by_key(p->use[x].term) ? 1 : (int)(p->engine->total(c, x) / heads);
}
/* Parts of a rotation that learns, for each number: outputs that turn come before rows, and rows
 * have forms. */
static int rotation_parts(const struct loci_plan *p) { return p->turns_values ? 2 : p->row_forms; }
/* Of a use with vectors: numbers that tiles of rows sum, and totals that are summed at once. */
static int vector_parts(struct gpu_call *g, int u, int x)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    struct gpu_use *use = &g->use[u];
    if (!c->g.total[x] && !g->measured) return 0;
    const int count = use->term == GPU_ROW_VECTORS || use->term == GPU_SCAN ? 0
                    : use->term == GPU_KEY_VECTORS                          ? (int)key_ends(p->dim)
                                                   : (int)vectors_padded(p->dim);
    use->direct = -1;
    /* all keys are at an end, but where positions are not consecutive that is not tested */
    if (use->term == GPU_KEY_VECTORS && use->lo == use->hi && !may_scatter(&g->in)) return count;
    use->direct = g->direct;
    g->direct += loci_gpu_total(c, x) - (ptrdiff_t)p->heads * count;
    return count;
}
/* Learned numbers of a head: of every use whose sums are wanted, in order.  Returns their number
 * for the workspace even if nothing is wanted. */
static int list_parts(struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    struct params *k = &g->params;
    int u = p->moves >= 0, all = 0;
    k->sink_part = k->factor_part = -1;
    for (enum group group = GROUP_RAW; group <= GROUP_SINK; group++)
        for (int x = 0; x < p->uses; x++) {
            int32_t term;
            if (p->use[x].group != group) continue;
            const bool sink = p->use[x].term == TERM_sink;
            if (p->use[x].term == TERM_stick || p->use[x].term == TERM_mix) {
                *(x == p->mix ? &g->mix.part : &g->stick.part) = c->g.total[x] ? all : -1;
                all += count_parts(c, x);
                continue;
            }
            if (!sink && !loci_gpu_term_of(p->use[x].term, &term)) continue;
            const bool folded = !sink && term == GPU_FACTOR && factor_folds(p, x);
            const bool vectors = !sink && is_of_vectors(term);
            const int count = vectors ? vector_parts(g, u, x) : count_parts(c, x);
            if (sink) k->sink_part = c->g.total[x] ? all : -1;
            else if (folded && count && (c->g.total[x] || g->measured)) {
                k->factor_part = all;
                k->factor_row_sum = by_row(g, 1);
            } else if (!folded) {
                g->use[u].part = all;
                g->use[u].count = c->g.total[x] ? count : 0;
                if (term == GPU_ROW_VECTORS)
                    g->use[u].by_row = by_row(g, has_values(&g->use[u]) ? 4 : 2);
                if (loci_gpu_by_key(p->use[x].term)) want_sums(g, &g->use[u]);
                else if (term == GPU_PIECES && (c->g.total[x] || g->measured))
                    g->use[u].by_row = by_row(g, 2);
                else if (term == GPU_FACTOR && count && (c->g.total[x] || g->measured))
                    g->use[u].by_row = by_row(g, 1);
            }
            u += !sink && !folded;
            all += folded ? p->row_forms * count : count;
        }
    k->rotation_part = -1;
    k->rotation_count = p->rotate >= 0 ? count_parts(c, p->rotate) : 0;
    if (k->rotation_count && (c->g.total[p->rotate] || g->measured)) k->rotation_part = all;
    all += rotation_parts(p) * k->rotation_count;
    for (u = 0; u < k->uses; u++)
        if (g->use[u].direct >= 0) g->use[u].direct += (int64_t)p->heads * all;
    g->fetches_rows = k->rotation == TURN_MATRICES && c->g.total[p->rotate];
    return all;
}

int loci_gpu_part_of(const struct gpu_call *g, int x, int *count)
{
    const struct loci_plan *p = g->call.plan;
    *count = count_parts(&g->call, x);
    if (p->use[x].term == TERM_sink) return g->params.sink_part;
    if (x == p->weight) return g->stick.part;
    if (x == p->mix) return g->mix.part;
    if (x == p->rotate) return g->params.rotation_part;
    for (int u = 0; u < g->params.uses; u++)
        if (g->plan_use[u] == x) return g->use[u].part;
    return g->params.factor_part;
}

size_t loci_gpu_input_bytes(const struct call *c, int tensor)
{
    const loci_tensor *t = &c->plan->tensors.list[tensor];
    size_t n = sizeof(float);
    for (int k = 0; k < t->rank; k++)
        n *= (size_t)(t->shape[k] == LOCI_DIM_BATCH     ? c->B
                      : t->shape[k] == LOCI_DIM_QUERIES ? c->Lq
                      : t->shape[k] == LOCI_DIM_KEYS    ? c->Lk
                                                        : t->shape[k]);
    return n;
}

/* ---- Decode ---------------------------------------------------------------------------------- */

enum { DECODE_ROWS = 8, DECODE_LANES = 64, DECODE_KEYS = 256 };

/* Few rows leave most of a tile of the forward pass empty, so they are split over keys.  The answer
 * follows from sizes and from which pointers are set. */
static bool decodes(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const char *wanted = getenv("LOCI_GPU_DECODE"); /* tests: "never", "always" */
    const ptrdiff_t lanes = c->Lq * (p->heads / p->kv_heads);
    if (g->backward || !loci_gpu_splits(p)) return false;
    if (loci_gpu_has_wide_heads(p)) return c->Lq > 0;
    if (g->in.q_starts || g->in.q_seg) return false;
    if (c->Lq > DECODE_ROWS || lanes > DECODE_LANES || !c->Lq || !c->Lk) return false;
    if (wanted && strcmp(wanted, "never") == 0) return false;
    if (!wanted && c->Lk < DECODE_KEYS) return false;
    return loci_gpu_decode_shared(p) <= g->plan->gpu->facts.shared;
}
/* The most rows that are split over keys. */
static ptrdiff_t most_split_rows(const struct loci_plan *p)
{
    const ptrdiff_t rows = DECODE_LANES / (p->heads / p->kv_heads);
    return rows < DECODE_ROWS && !loci_gpu_has_wide_heads(p) ? rows : DECODE_ROWS;
}
static void set_lanes(struct gpu_call *g)
{
    const struct loci_plan *p = g->call.plan;
    const int lanes = (int)g->call.Lq * (p->heads / p->kv_heads);
    struct params *k = &g->params;
    k->lanes = 2;
    if (!g->decode) return;
    while (k->lanes < lanes && k->lanes < MOST_LANES) k->lanes *= 2;
    k->lane_parts = (int32_t)tiles(lanes, k->lanes);
}
/* Rows that may not see intervals, of all heads. */
static size_t scattered_rows(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const loci_call *in = &g->in;
    const bool may = may_scatter(in) || in->mask_kind || in->k_first;
    return may ? (size_t)(c->B * c->Lq) * (size_t)c->plan->heads : 0;
}

/* ---- Memory of the device -------------------------------------------------------------------- */

/* Of rows that change on their walk: backward, what begins at 0; and what does not. */
static void lay_out_moves(struct gpu_call *g, struct arena *a, bool sums)
{
    const struct call *c = &g->call;
    struct gpu_use *use = &g->use[0];
    const size_t heads = (size_t)c->plan->heads, keys = (size_t)(c->B * c->Lk) * heads,
                 rows = (size_t)(c->B * c->Lq) * heads, dim = (size_t)c->plan->dim;
    const size_t kv_heads = (size_t)c->plan->kv_heads, kv_keys = keys / heads * kv_heads,
                 ktiles = loci_most_ktiles(c), back = g->backward ? sizeof(float) : 0,
                 nodes = LEVELS + (size_t)tiles(c->Lk, SPAN * KEYS);
    struct {
        int64_t *at;
        size_t count, each;
        bool sums, reflects;
    } list[] = {
        { &use->gate_sums, 2 * keys * dim, sizeof(double), true, false },
        { &use->gate_part, 2 * keys * dim, sizeof(float), true, false },
        { &use->staged_gradients, keys * dim, sizeof(float), true, false },
        { &use->row_gradients, rows * dim, back, false, false },
        { &use->staged, keys * dim, sizeof(float), false, false },
        { &use->tile_factors, heads * ktiles * dim, sizeof(float), false, false },
        { &use->carries_of_rows, rows * (size_t)tiles(c->Lk, CHUNK) * dim, sizeof(float), false,
          false },
        { &use->few, 2 * REFLECTED_TOGETHER * kv_keys, sizeof(float), false, true },
        { &use->carried, (LEVELS + 1) * kv_keys * dim, sizeof(float), false, true },
        { &use->matrices, 2 * kv_heads * ktiles * dim * dim, sizeof(float), false, true },
        { &use->tile_parts, 6 * kv_keys * dim, sizeof(float), true, true },
        { &use->tile_sums, 6 * kv_keys * dim, sizeof(double), true, true },
        { &use->beta_parts, kv_keys, sizeof(float), true, true },
        { &use->beta_sums, kv_keys, sizeof(double), true, true },
        { &use->matrix_sums, kv_heads * ktiles * dim * dim, sizeof(double), true, true },
        { &use->matrix_gradients, 2 * kv_heads * ktiles * dim * dim, back, false, true },
        { &use->reflected, nodes * rows * dim, back, false, true },
        { &use->returned, (nodes + 1) * rows * dim, back, false, true },
        { &use->own_pairs, 6 * rows * KEYS, back, false, true },
        { &use->tile_y, kv_keys * dim, 2 * back, false, true },
        { &use->tile_products, kv_keys * KEYS, 2 * back, false, true },
        { &use->tile_turns, kv_keys * REFLECTED_TOGETHER, 2 * back, false, true },
    };
    use->nodes = (int32_t)nodes;
    if (c->plan->moves >= 0 && !sums) {
        use->newest = (int64_t)a->used;
        carve_bytes(a, scattered_rows(g), sizeof(int32_t));
    }
    for (int i = 0; i < COUNT(list) && c->plan->moves >= 0; i++) {
        if (list[i].sums != sums || list[i].reflects != reflects_rows(c->plan)) continue;
        *list[i].at = (int64_t)a->used;
        carve_bytes(a, list[i].count, list[i].each);
    }
}
/* Tiles of pairs of a strip, and backward what they give to the gradient of the network. */
static void lay_out_mix(struct gpu_call *g, struct arena *a)
{
    const struct call *c = &g->call;
    struct gpu_mix *m = &g->mix;
    const size_t heads = (size_t)c->plan->heads,
                 pairs = (size_t)strip_tiles(g) * (size_t)m->ktiles, /* of tiles */
        numbers = pairs * heads * (size_t)(KEYS * g->params.rows);
    m->scores = m->biases = m->mixed = (int64_t)a->used;
    carve_bytes(a, numbers, sizeof(float));
    if (m->biased) m->biases = (int64_t)a->used;
    if (m->biased) carve_bytes(a, numbers, sizeof(float));
    if (!g->backward) return;
    m->mixed = (int64_t)a->used;
    carve_bytes(a, numbers, sizeof(float));
    m->gradients = (int64_t)a->used;
    carve_bytes(a, numbers, sizeof(float));
    m->sums = (int64_t)a->used;
    carve_bytes(a, pairs,
                sizeof(float)
                    * (heads * (size_t)(4 * m->padded + 16) + (size_t)(MIX_SPREAD * m->padded)));
}
/* Sums by key and by row, then those of gates. */
static size_t lay_out_apart(struct gpu_call *g)
{
    const struct call *c = &g->call;
    struct params *k = &g->params;
    struct arena a = { 0 };
    const size_t heads = (size_t)c->plan->heads, rows = (size_t)(c->B * c->Lq) * heads,
                 keys = (size_t)(c->B * c->Lk) * heads;
    k->by_key = 0;
    carve_bytes(&a, keys * (size_t)g->key_sums, sizeof(double));
    k->by_row = (int64_t)a.used;
    carve_bytes(&a, rows * 2 * (size_t)g->row_sums, sizeof(float));
    if (k->scan >= 0 && g->backward) {
        struct gpu_use *use = &g->use[k->scan];
        use->carries = (int64_t)a.used;
        carve_bytes(&a, rows * (size_t)(SCAN_CARRIES * use->tiles), sizeof(float));
        if (loci_gpu_gives_gates(g)) {
            use->gate_sums = (int64_t)a.used;
            carve_bytes(&a, keys / (size_t)c->plan->group * (size_t)c->plan->dim, sizeof(double));
        }
    }
    for (int u = 0; u < k->uses && g->backward; u++) {
        struct gpu_use *use = &g->use[u];
        if (use->term != GPU_GATE || use->by_key < 0) continue;
        use->ds_before = (int64_t)a.used;
        carve_bytes(&a, scattered_rows(g), (size_t)(use->tiles + 1) * sizeof(double));
    }
    if (c->plan->weight >= 0 && g->backward) {
        g->stick.numbers = (int64_t)a.used;
        carve_bytes(&a, rows * (size_t)(2 * g->stick.tiles + g->stick.chunks), sizeof(float));
    }
    if (g->backward) lay_out_moves(g, &a, true);
    g->cleared = a.used;
    lay_out_moves(g, &a, false);
    if (c->plan->mix >= 0) lay_out_mix(g, &a);
    k->gates = k->by_tile = -1;
    if (g->backward && k->rotation_part >= 0 && !c->plan->keys_rotated) {
        k->by_tile = (int64_t)a.used;
        carve_bytes(&a, loci_most_ktiles(c) * (size_t)(c->plan->kv_heads * c->plan->key_forms),
                    (size_t)k->rotation_count * sizeof(float));
    }
    for (int u = 0; u < k->uses; u++) {
        struct gpu_use *use = &g->use[u];
        if (use->term != GPU_GATE) continue;
        k->gates = (int64_t)a.used;
        carve_bytes(&a, 2 * keys + 2 * heads * loci_most_ktiles(c), sizeof(double));
        carve_bytes(&a, keys, sizeof(float));
        use->carries = (int64_t)a.used;
        carve_bytes(&a, scattered_rows(g), (size_t)(use->tiles + 1) * 3 * sizeof(double));
    }
    return a.full ? SIZE_MAX : a.used;
}
/* Blocks of distances of all sequences.  Each of several sequences has at most one partial item and
 * one partial chunk, which bounds their sum. */
static size_t most_roll_blocks(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const ptrdiff_t items = tiles(c->Lq, ROW_CHUNK), chunks = tiles(c->Lk, CHUNK),
                    blocks = ROLL_BLOCKS(c->Lq, c->Lk), least = c->Lq < c->Lk ? c->Lq : c->Lk;
    if (!g->in.q_seg && !g->in.q_starts) return (size_t)(c->B * items * chunks * blocks);
    const size_t sequences = loci_most_sequences(c), most = (size_t)(c->B * least);
    return (size_t)(c->B
                    * ((items * chunks + items + chunks) * blocks + tiles(c->Lq + c->Lk, KEYS)))
         + (sequences < most ? sequences : most) * ROLL_BLOCKS(1, 1);
}
/* ds by distance, of all chunks and of one, and by key. */
static void lay_out_ds(struct gpu_call *g, struct arena *a)
{
    const struct call *c = &g->call;
    struct params *k = &g->params;
    const size_t rows = (size_t)(c->B * c->Lq) * (size_t)c->plan->heads;
    const int64_t reach = has_positions(&g->in) ? (int64_t)1 << 40 : c->Lk + c->Lq;
    int64_t lo = INT64_MAX, hi = INT64_MIN, least, most;
    bool by_key = false, learned = false, weights = false, rolls = false;
    int32_t columns = 0; /* of what keys' vectors learn pair by pair */
    find_band(c->plan, &least, &most);
    k->ds_chunk = k->ds_by_key = k->key_parts = k->roll_steps = -1;
    k->ds_width = k->vectors = k->values = 0;
    k->p_by_distance = -1;
    for (int u = 0; u < k->uses; u++) {
        const struct gpu_use *use = &g->use[u];
        const bool row = use->term == GPU_ROW_VECTORS,
                   key = use->term == GPU_KEY_VECTORS && use->lo < use->hi;
        const int64_t first = row ? use->ends_lo : (int64_t)use->lo - KEY_MARGIN,
                      last = row ? use->ends_hi : (int64_t)use->hi + KEY_MARGIN;
        const bool pairs = use->term == GPU_KEY_VECTORS && use->direct >= 0 && may_scatter(&g->in);
        if (pairs && use->columns > columns) columns = use->columns;
        k->vectors |= is_of_vectors(use->term) && use->term != GPU_SCAN && g->backward;
        k->values |= has_values(use);
        weights |= has_values(use) && use->direct >= 0;
        by_key |= use->term == GPU_ROLL || pairs;
        rolls |= use->term == GPU_ROLL;
        learned |= use->term == GPU_ROLL && use->direct >= 0;
        if (row || key) {
            if (first < lo) lo = first;
            if (last > hi) hi = last;
        }
    }
    if (!g->backward && !k->values) return;
    lo = clip(lo, -reach > least ? -reach : least, INT64_MAX);
    hi = clip(hi, INT64_MIN, reach < most ? reach : most);
    k->ds_lo = hi >= lo ? lo : 0;
    if (hi >= lo) k->ds_width = (int32_t)(hi - lo + 1);
    g->ds_from = a->used;
    k->ds_by_distance = (int64_t)a->used;
    carve_bytes(a, rows * (size_t)k->ds_width, sizeof(float));
    if (weights) {
        k->p_by_distance = (int64_t)a->used;
        carve_bytes(a, rows * (size_t)k->ds_width, sizeof(float));
    }
    /* sums of weights fade, forward, and where positions repeat a distance has several keys */
    const bool sums =
        g->backward ? has_positions(&g->in) && c->Lk > CHUNK : k->stick >= 0 || g->in.dropout > 0;
    if (sums && k->ds_width) {
        k->ds_chunk = (int64_t)a->used;
        for (int i = 0; i <= weights; i++)
            carve_bytes(a, rows * (size_t)k->ds_width, sizeof(float));
    }
    if (by_key && g->backward) {
        k->ds_by_key = (int64_t)a->used;
        carve_bytes(a, rows * (size_t)c->Lk, sizeof(float));
    }
    if (k->scan >= 0 && g->backward) {
        struct gpu_use *use = &g->use[k->scan];
        use->by_chunk = (int64_t)a->used;
        carve_bytes(a, rows * (size_t)use->vectors, sizeof(float));
        use->by_all = (int64_t)a->used;
        carve_bytes(a, rows * (size_t)use->vectors, sizeof(float));
    }
    g->ds_bytes = a->used - g->ds_from;
    const size_t heads = (size_t)c->plan->heads, chunks = (size_t)(c->Lk ? tiles(c->Lk, CHUNK) : 1),
                 items = loci_most_sequences(c) + (size_t)(c->B * tiles(c->Lq, ROW_CHUNK)),
                 row_tiles = loci_most_sequences(c) + (size_t)(c->B * tiles(c->Lq, KEYS));
    if (rolls && g->backward) {
        k->roll_steps = (int64_t)a->used;
        carve_bytes(a, row_tiles * heads, 2 * (size_t)ROLL_STEPS(k->key_tiles) * sizeof(int32_t));
    }
    if (columns && g->backward) {
        k->key_parts = (int64_t)a->used;
        carve_bytes(a, items * heads * chunks,
                    2 * (size_t)(columns * c->plan->dim) * sizeof(float));
    }
    if (learned) {
        k->roll_parts = (int64_t)a->used;
        carve_bytes(a, most_roll_blocks(g) * heads * KEYS,
                    vectors_padded(c->plan->dim) * sizeof(float));
    }
}
static size_t lay_out_device(struct gpu_call *g, char *base, int parts)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    struct arena a = { .base = base };
    const size_t rows = (size_t)(c->B * c->Lq) * (size_t)p->heads,
                 keys = (size_t)(c->B * c->Lk) * (size_t)p->kv_heads, each = sizeof(float),
                 chunks = (size_t)tiles(c->Lk, CHUNK);
    const size_t head_keys =
        keys / (size_t)p->kv_heads * (size_t)(p->states ? p->heads : p->kv_heads);
    const bool apart = p->stored != sizeof(float);
    if (is_linear(p)) return loci_gpu_lay_out_linear(g, base);
    g->params.key_tiles = (int32_t)tiles(c->Lk, KEYS);
    g->apart_bytes = lay_out_apart(g);
    if (g->apart_bytes) g->at.apart = carve_bytes(&a, g->apart_bytes, 1);
    g->at.lists = carve_bytes(&a, g->list_bytes, 1);
    /* a backward pass reads rows of q many times, so they are scaled once */
    if (p->rotate >= 0 || g->backward)
        g->at.q = carve_bytes(&a, rows * (size_t)(p->score_dim * p->row_forms), each);
    if (p->rotate >= 0) {
        if (!p->keys_rotated || g->params.fades)
            g->at.k = carve_bytes(&a, head_keys * (size_t)(p->score_dim * p->key_forms), each);
    }
    if (p->states && p->group > 1)
        g->at.head_values = carve_bytes(&a, head_keys * (size_t)p->value_dim, each);
    if (p->turns_values) {
        if (!p->keys_rotated) g->at.v = carve_bytes(&a, keys * (size_t)p->value_dim, each);
        g->at.o = carve_bytes(&a, rows * (size_t)p->value_dim, each);
    }
    struct arena numbers = { 0 }; /* products with vectors */
    for (int u = 0; u < g->params.uses; u++) {
        struct gpu_use *use = &g->use[u];
        const bool query = use->term != GPU_KEY_VECTORS;
        if (!is_of_vectors(use->term)) continue;
        if (use->term == GPU_ROLL) use->vectors = (int32_t)c->Lk;
        use->numbers = (int64_t)numbers.used;
        carve_bytes(&numbers, (size_t)(c->B * (query ? c->Lq : c->Lk)) * (size_t)p->heads,
                    (size_t)use->vectors * each);
        if (!has_values(use) || !g->backward) continue;
        use->value_numbers = (int64_t)numbers.used;
        carve_bytes(&numbers, rows * (size_t)use->vectors, each);
    }
    lay_out_ds(g, &numbers);
    if (numbers.full) return SIZE_MAX;
    if (numbers.used) g->at.vectors = carve_bytes(&a, numbers.used, 1);
    if (g->decode) {
        const size_t by_tile = (size_t)tiles(c->Lk, KEYS);
        g->at.scores = carve_bytes(&a, rows, by_tile * KEYS * each);
        g->at.tops = carve_bytes(&a, rows, by_tile * each);
        g->at.weights = carve_bytes(&a, rows, by_tile * each);
        g->at.sums = carve_bytes(&a, rows * by_tile, (size_t)p->value_dim * each);
        return a.full ? SIZE_MAX : a.used;
    }
    if (!g->backward) {
        const int width = p->states && p->dim > p->value_dim ? p->dim : p->value_dim;
        if (chunks > 1) g->at.sums = carve_bytes(&a, rows * (size_t)width, each);
        return a.full ? SIZE_MAX : a.used;
    }
    if (p->states && g->in.ae) {
        const size_t width = (size_t)(FOURS(p->value_dim) + p->dim);
        g->at.wide_v = carve_bytes(&a, head_keys * width, each);
        g->at.wide_dout = carve_bytes(&a, rows * width, each);
        g->at.states = carve_bytes(&a, head_keys * (size_t)p->dim, sizeof(double));
    }
    g->at.delta = carve_bytes(&a, 2 * rows, each);
    if (apart || p->rotate >= 0 || g->params.factor_part >= 0 || g->params.vectors
        || g->params.scan >= 0 || p->moves >= 0) {
        g->at.dq = carve_bytes(&a, rows * (size_t)(p->score_dim * p->row_forms), each);
        g->at.dk = carve_bytes(&a, head_keys * (size_t)(p->score_dim * p->key_forms), each);
    }
    if (apart || (p->turns_values && !p->keys_rotated))
        g->at.dv = carve_bytes(&a, keys * (size_t)p->value_dim, each);
    if (parts) {
        const size_t most = loci_most_sequences(c) + (size_t)(c->B * tiles(c->Lq, TILE_ROWS));
        g->at.parts = carve_bytes(&a, most * (size_t)(p->heads * parts), (chunks + !chunks) * each);
    }
    if (parts || g->direct)
        g->at.totals = carve_bytes(&a, (size_t)(p->heads * parts + g->direct), sizeof(double));
    return a.full ? SIZE_MAX : a.used;
}

/* Is the gradient of some input wanted? */
static bool wants_inputs(const struct gpu_call *g)
{
    bool any = false;
    for (int i = 0; i < GPU_INPUTS; i++) any |= g->inputs[i] != NULL;
    return any;
}

/* ---- Parameters ------------------------------------------------------------------------------ */

/* Can all rows be read by four numbers?  Those of q8_0 always are. */
static bool is_wide(const void *at, int32_t type, struct strides s, int width)
{
    if (type == GPU_Q8) return true;
    return (uintptr_t)at % 16 == 0 && s.batch % 4 == 0 && s.head % 4 == 0 && s.row % 4 == 0
        && width % 4 == 0;
}
/* Do distances of all pairs, and those of tables, have 32 bits? */
static bool is_near(const struct call *c)
{
    const int64_t most = (int64_t)1 << 29;
    bool near = c->range < most;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        near &= q->run && q->d0 < most && q->d0 > -most && q->nq < most && q->nk < most;
    }
    return near;
}
static void set_params(struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    struct params *k = &g->params;
    struct arrays *at = &g->arrays;
    find_band(p, &k->lo, &k->hi);
    k->dim = p->score_dim;
    k->value_dim = p->value_dim;
    k->heads = p->heads;
    k->kv_heads = p->states ? p->heads : p->kv_heads; /* states rotate keys for each head */
    k->batch = (int32_t)c->B;
    k->q_len = (int32_t)c->Lq;
    k->k_len = (int32_t)c->Lk;
    k->full = p->full;
    k->near = is_near(c);
    k->listed = is_listed(&g->in);
    k->mask_kind = g->in.mask_kind;
    k->mask = of_view(c->mask);
    k->mask_key = c->mask_key;
    k->chunks = (int32_t)tiles(c->seqs.longest, CHUNK);
    if (!k->chunks) k->chunks = 1;
    k->scale = (float)p->scale;
    k->dropout = c->dropout.on;
    k->drop_seed = c->dropout.seed;
    k->drop_offset = c->dropout.offset;
    k->drop_limit = c->dropout.limit;
    k->drop_kept = (float)c->dropout.factor;
    k->pairs = k->sink = k->used = k->factors = -1;
    k->q_type = k->o_type = stored_as(p->dtype);
    k->k_type = stored_as(p->k_dtype);
    k->v_type = stored_as(p->v_dtype);
    k->q = of_view(c->q);
    k->k = of_view(c->k);
    k->v = of_view(c->v);
    k->o = of_view(c->o);
    *at = (struct arrays){
        .q = c->q.data,
        .k = c->k.data,
        .v = c->v.data,
        .o = c->o.data,
        .lse = p->weight < 0 ? g->in.lse : g->in.rem,
        .mask = c->mask.data,
        .lists = g->at.lists,
        .sums = g->at.sums,
        .parts = g->at.parts,
        .totals = g->at.totals,
        .delta = g->at.delta,
        .scores = g->at.scores,
        .vectors = g->at.vectors,
        .tops = g->at.tops,
        .weights = g->at.weights,
        .apart = g->at.apart,
    };
    GLOBAL char **in[] = { &at->in0, &at->in1, &at->in2 },
                **din[] = { &at->din0, &at->din1, &at->din2 };
    for (int i = 0, n = 0; i < p->tensors.n; i++)
        if (p->tensors.list[i].role == LOCI_INPUT) {
            *in[n] = (char *)(uintptr_t)c->input[i];
            *din[n] = g->inputs[n];
            n++;
        }
    if (g->at.q) {
        k->q_type = GPU_F32;
        k->q = dense(p->heads, c->Lq, p->score_dim);
        at->q = g->at.q;
    }
    k->k_paged = g->in.pages && !g->at.k;
    k->v_paged = g->in.pages && !g->at.v;
    if (g->at.k) {
        k->k_type = GPU_F32;
        k->k = dense(k->kv_heads, c->Lk, p->score_dim);
        at->k = g->at.k;
    }
    if (g->at.head_values) {
        k->v_type = GPU_F32;
        k->v_paged = 0;
        k->v = dense(p->heads, c->Lk, p->value_dim);
        at->v = g->at.head_values;
    }
    if (g->at.v) {
        k->v_type = GPU_F32;
        k->v = dense(p->kv_heads, c->Lk, p->value_dim);
        at->v = g->at.v;
    }
    if (g->at.o) k->o_type = GPU_F32; /* backward, dO that has turned */
    if (g->at.o && !g->backward) {
        k->o = dense(p->heads, c->Lq, p->value_dim);
        at->o = g->at.o;
    }
    for (int x = 0; x < p->uses; x++) {
        const char *table = c->table[p->use[x].enc];
        const int64_t offset = table - (const char *)c->table[0] + ALIGN;
        if (p->use[x].term == TERM_sink) {
            k->has_sink = 1;
            k->sink = offset;
        }
        if (x == p->rotate) k->pairs = offset;
    }
    k->wide = is_wide(at->q, k->q_type, k->q, k->dim) && is_wide(at->k, k->k_type, k->k, k->dim)
           && is_wide(at->v, k->v_type, k->v, k->value_dim);
    if (!c->grad) return;
    at->dout = c->g.dout.data;
    at->dlse = (char *)(uintptr_t)(p->weight < 0 ? c->grad->dlse : c->grad->drem);
    k->dout = of_view(c->g.dout);
    k->wide =
        k->wide
        && (g->at.o ? k->value_dim % 4 == 0 : is_wide(at->dout, k->o_type, k->dout, k->value_dim));
    if (c->grad->dae) {
        at->tops = g->in.ae;
        at->weights = (char *)(uintptr_t)c->grad->dae;
    }
    at->dq = c->g.dq.data;
    at->dk = c->g.dk.data;
    at->dv = c->g.dv.data;
    k->dq = of_view(c->g.dq);
    k->dk = of_view(c->g.dk);
    k->dv = of_view(c->g.dv);
    at->dmask = c->g.dmask.data;
    k->dmask = of_view(c->g.dmask);
    const bool places =
        p->rotate >= 0
        && (k->rotation_part >= 0 || g->fetches_rows
            || ((loci_gpu_given(p->use[p->rotate].term) || p->states) && wants_inputs(g)));
    if (g->at.dq) {
        /* gradients of channel gates are sums of q dq and of k dk, and so is that of own tiles */
        const bool gates = p->moves >= 0 && wants_inputs(g), keys = c->g.dk.data || places || gates;
        at->dq = c->g.dq.data || k->factor_part >= 0 || places || (p->moves >= 0 && keys) ? g->at.dq
                                                                                          : NULL;
        at->dk = keys ? g->at.dk : NULL;
        k->dq = dense(p->heads, c->Lq, p->score_dim);
        k->dk = dense(k->kv_heads, c->Lk, p->score_dim);
    }
    if (g->at.dv) {
        at->dv = c->g.dv.data || (g->at.v && places) ? g->at.dv : NULL;
        k->dv = dense(p->kv_heads, c->Lk, p->value_dim);
    }
    k->finish = !g->at.dq;
}

/* ---- The call -------------------------------------------------------------------------------- */

/* Keys of a cache, and its inputs by key, are memory of the device: keys in pages of a tile. */
static void open_cache(struct gpu_call *g)
{
    struct call *c = &g->call;
    const struct loci_cache *k = c->cache;
    if (!k) return;
    const ptrdiff_t page = (ptrdiff_t)k->form.kv_heads * KT, keys = (ptrdiff_t)k->form.dim,
                    values = (ptrdiff_t)k->form.value_dim;
    c->k = (loci_view){ cache_there_at(k, k->keys), page * keys, KT * keys, keys };
    c->v = (loci_view){ cache_there_at(k, k->values), page * values, KT * values, values };
    if (c->plan->values_in_keys) c->v = c->k;
    for (int i = 0; i < c->plan->tensors.n; i++)
        if (k->input[i].at) c->input[i] = cache_there_at(k, k->input[i].at);
    g->pages = (loci_pages){ .length = KT };
    g->in.pages = &g->pages;
}
static loci_status check_call(const struct loci_plan *p, const loci_call *in, loci_error *e)
{
    CHECK(e, in->q_len < INT32_MAX / 64 && in->k_len < INT32_MAX / 64 && in->batch < 1 << 20,
          LOCI_UNSUPPORTED, "batch %td, q_len %td and k_len %td are too large for a GPU", in->batch,
          in->q_len, in->k_len);
    CHECK(e, !in->pages || p->keys_rotated || p->rotate < 0 || p->use[p->rotate].term != TERM_polar,
          LOCI_UNSUPPORTED, "pages do not run on a GPU with pope: pages must be NULL");
    return LOCI_OK;
}
ptrdiff_t loci_gpu_most_rows(const struct loci_plan *p)
{
    return p->stage == LOCI_ATTENTION && loci_gpu_has_wide_heads(p) ? DECODE_ROWS : PTRDIFF_MAX;
}
/* Of an attention over keys. */
static loci_status check_rows(const struct loci_plan *p, const loci_call *in, loci_error *e)
{
    const ptrdiff_t most = loci_gpu_most_rows(p);
    CHECK(e, most == PTRDIFF_MAX || (in->q_len <= most && !in->q_starts && !in->q_seg),
          LOCI_UNSUPPORTED,
          "heads wider than %d run on a GPU with at most %td rows of each entry, in one sequence",
          MOST_WHOLE, most);
    return LOCI_OK;
}
/* Checks that need the list of sequences. */
static loci_status check_sequences(const struct call *c, loci_error *e)
{
    for (ptrdiff_t s = 0; s < c->seqs.n && reflects_rows(c->plan); s++)
        CHECK(e, !c->seqs.list[s].segments, LOCI_UNSUPPORTED,
              "path runs on a GPU only where segments are ranges of keys");
    return LOCI_OK;
}
static loci_status check_grad(const loci_gpu_plan *there, const loci_grad *grad, loci_error *e)
{
    const struct loci_plan *p = there->plan;
    CHECK(e, p->row_forms == 1 || (p->dim <= 128 && p->value_dim <= 128), LOCI_UNSUPPORTED,
          "gradients with %s do not run on a GPU in heads wider than 128",
          p->enc[p->use[p->rotate].enc].pe->name);
    CHECK(e, !loci_gpu_has_wide_heads(p), LOCI_UNSUPPORTED,
          "gradients do not run on a GPU in heads wider than %d", MOST_WHOLE);
    CHECK(e, !grad->dae || FOURS(p->value_dim) + p->dim <= 256, LOCI_UNSUPPORTED,
          "gradients of ae run on a GPU where dim %d and value_dim %d together are at most 256",
          p->dim, p->value_dim);
    return LOCI_OK;
}

/* Places the lists of a change of a cache, its rotated keys, and rows that are on their way. */
static size_t lay_out_update(struct gpu_call *g, char *base)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const size_t keys = (size_t)(c->B * c->Lk) * (size_t)p->kv_heads;
    struct arena a = { .base = base };
    g->list_bytes = lay_out_lists(g);
    if (g->list_bytes == SIZE_MAX) return SIZE_MAX;
    g->at.lists = carve_bytes(&a, g->list_bytes, 1);
    if (g->rotated) g->at.k = carve_bytes(&a, keys * (size_t)p->score_dim, sizeof(float));
    if (g->rotated && p->turns_values)
        g->at.v = carve_bytes(&a, keys * (size_t)p->value_dim, sizeof(float));
    size_t most = (size_t)p->kv_heads * (size_t)(p->score_dim + p->value_dim);
    for (int i = 0; i < p->tensors.n; i++) {
        const struct cache_input *in = &g->update.to->input[i];
        if ((size_t)(in->outer * in->inner) > most) most = (size_t)(in->outer * in->inner);
    }
    if (g->update.remove) g->at.q = carve_bytes(&a, (size_t)c->Lk * most, sizeof(float));
    return a.full ? SIZE_MAX : a.used;
}
/* An append is a call that has only its keys, for which pairs of rows and keys do not matter. */
static void prepare_append(struct gpu_call *g, const loci_gpu_plan *plan)
{
    *g = (struct gpu_call){ .plan = plan, .given = g->given };
    g->rotated = plan->plan->rotate >= 0 && plan->plan->keys_rotated;
    g->in = loci_cache_append_call(&g->given);
    g->in.work_bytes = 0;
    g->in.mask_kind = LOCI_NO_MASK;
    g->in.k_first = g->in.k_last = NULL;
    g->in.dropout = 0;
}
/* A removal has nothing but a number of keys of an entry, and how far they move. */
static void prepare_remove(struct gpu_call *g, const loci_gpu_plan *plan, const int64_t *shift)
{
    *g = (struct gpu_call){ .plan = plan, .given = g->given, .update.remove = true };
    g->rotated = plan->plan->rotate >= 0 && plan->plan->keys_rotated;
    g->in = (loci_call){ .batch = 1,
                         .k_len = MOVED_ROWS,
                         .q_pos = shift,
                         .k_pos = shift,
                         .tables_bytes = g->given.tables_bytes,
                         .error = g->given.error };
}
static size_t update_workspace(const loci_gpu_plan *plan, const loci_call *in, bool remove)
{
    struct gpu_call g = { .given = *in };
    const int64_t shift = 0; /* nobody reads it */
    if (remove) prepare_remove(&g, plan, &shift);
    else prepare_append(&g, plan);
    if (loci_open_call(&g.call, plan->plan, &g.in, true)) return 0;
    g.update.to = (loci_cache *)(uintptr_t)in->cache;
    g.measured = true;
    lay_out_host(&g.call, NULL, false);
    list_rotation(&g);
    return lay_out_update(&g, NULL);
}

/* Gradients of what is learned, and of inputs. */
static void divide_gradients(struct gpu_call *g, void *const *dtensors)
{
    const struct tensors *t = &g->plan->plan->tensors;
    for (int i = 0, n = 0; i < t->n && dtensors; i++)
        if (t->list[i].role == LOCI_INPUT) g->inputs[n++] = dtensors[i];
        else g->learned[i] = dtensors[i];
}
/* ---- A rotation of one side ------------------------------------------------------------------ */

/* Places the lists of a rotation, and rows of the longer side: x as a rotation reads it, and its
 * gradient; then what the rotation learns. */
static size_t lay_out_rotation(struct gpu_call *g, char *base)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const ptrdiff_t q_rows = c->B * c->Lq * p->heads, k_rows = c->B * c->Lk * p->kv_heads,
                    rows = q_rows > k_rows ? q_rows : k_rows;
    const size_t numbers = (size_t)rows * (size_t)(p->dim > p->value_dim ? p->dim : p->value_dim);
    struct params *k = &g->params;
    struct arena a = { .base = base };
    g->list_bytes = lay_out_lists(g);
    if (g->list_bytes == SIZE_MAX) return SIZE_MAX;
    k->mix = k->stick = k->rotation_part = -1;
    k->k_pos = (int64_t)round_up(g->list_bytes); /* positions of the side, for rows that fade */
    g->list_bytes =
        (size_t)k->k_pos + sizeof(int64_t) * (size_t)(c->B * (c->Lq > c->Lk ? c->Lq : c->Lk));
    g->used = g->used_rows = -1;
    g->at.lists = carve_bytes(&a, g->list_bytes, 1);
    if (g->backward || k->fades || k->rotation == TURN_MATRICES)
        g->at.q = carve_bytes(&a, numbers, sizeof(float));
    if (!g->backward) return a.full ? SIZE_MAX : a.used;
    g->at.dq = carve_bytes(&a, numbers, sizeof(float));
    k->rotation_count = count_parts(c, p->rotate);
    const size_t tiles_of_rows =
        (size_t)(c->B * tiles(c->Lq > c->Lk ? c->Lq : c->Lk, TILE_ROWS) * p->heads);
    g->at.parts = carve_bytes(&a, tiles_of_rows * (size_t)k->rotation_count, sizeof(float));
    g->at.totals = carve_bytes(&a, (size_t)p->kv_heads * (size_t)k->rotation_count, sizeof(double));
    return a.full ? SIZE_MAX : a.used;
}
size_t loci_gpu_rotation_workspace(const loci_gpu_plan *plan, const loci_call *given, bool backward)
{
    struct gpu_call g = {
        .plan = plan, .in = *given, .backward = backward, .measured = true, .alone = true
    };
    const int64_t any = 0; /* a call may add positions */
    if (loci_open_call(&g.call, plan->plan, &g.in, true)) return 0;
    g.in.q_pos = g.in.k_pos = &any;
    lay_out_host(&g.call, NULL, backward);
    list_rotation(&g);
    const size_t bytes = lay_out_rotation(&g, NULL);
    return bytes > PTRDIFF_MAX ? 0 : bytes;
}
/* Are the rows of a side there, for a rotation that is not of attention? */
static loci_status check_rotation(const struct loci_plan *p, const loci_call *in, loci_error *e)
{
    TRY(check_call(p, in, e));
    CHECK(e, !in->pages && !in->cache, LOCI_BAD_ARG,
          "a rotation alone reads rows of a view: pages and cache must be NULL");
    return LOCI_OK;
}
loci_status loci_gpu_open_rotation(struct gpu_call *g, const loci_gpu_plan *plan,
                                   const loci_gpu_tables *tables, void *work,
                                   const loci_call *given, loci_which which, loci_view *x,
                                   loci_view *y, loci_view *dx, void *const *dtensors)
{
    const struct loci_plan *p = plan->plan;
    const bool backward = dx != NULL;
    struct call measured;
    *g = (struct gpu_call){ .plan = plan, .backward = backward, .rotated = true, .alone = true };
    TRY(loci_copy_call(&g->in, wants_sizes(p), given));
    loci_error *e = g->in.error;
    const size_t work_bytes = g->in.work_bytes;
    CHECK(e, tables && tables->host && tables->device, LOCI_BAD_ARG,
          "tables must have those of loci_prepare() on the host, and a copy on the device");
    TRY(check_rotation(p, &g->in, e));
    TRY(loci_open_call(&measured, p, &g->in, true));
    const size_t bytes = lay_out_host(&measured, NULL, backward);
    CHECK(e, bytes < PTRDIFF_MAX, LOCI_BAD_ARG, "the shapes need more bytes than size_t can count");
    g->scratch = aligned_new(bytes);
    CHECK(e, g->scratch, LOCI_NO_MEMORY, "no memory for the lists of a call");
    g->in.work_bytes = 0;
    TRY(loci_open_rotation(&g->call, p, tables->host, g->scratch, &g->in, which, backward,
                           lay_out_host));
    TRY(loci_open_rotated(&g->call, which, tables->host, g->scratch, x, y, dx, dtensors));
    loci_fill_workspace(&g->call);
    divide_gradients(g, dtensors);
    if (backward) loci_want(&g->call, g->learned);
    if (!loci_gpu_has_inputs(p, p->use[p->rotate].enc))
        loci_begin_encoding(&g->call, p->use[p->rotate].enc);
    list_rotation(g);
    const size_t needed = lay_out_rotation(g, work);
    TRY(loci_gpu_check_work(work, work_bytes, needed, e));
    const bool query = which == LOCI_QUERY;
    const struct call *c = &g->call;
    const ptrdiff_t rows = query ? c->Lq : c->Lk;
    if (!c->B || !rows) return LOCI_OK;
    g->lists = calloc(1, g->list_bytes);
    CHECK(e, g->lists, LOCI_NO_MEMORY, "no memory for the lists of a call");
    if (g->params.rotation == TURN_MATRICES) fill_matrices(g);
    fill_turn(g);
    fill_places(g, query, query ? g->q_where : g->k_where);
    for (ptrdiff_t i = 0; i < c->B * rows && g->params.fades; i++)
        list(g, g->params.k_pos)[i] =
            query ? pos_q(c, i / rows, i % rows) : pos_k(c, i / rows, i % rows);
    set_params(g);
    set_lanes(g);
    g->params.batch = (int32_t)c->B;
    g->params.keys_side = !query;
    g->arrays.tables = (char *)(uintptr_t)tables->device;
    g->fetches_rows = backward && g->params.rotation == TURN_MATRICES && c->g.total[p->rotate];
    return LOCI_OK;
}

/* Bytes for the pass of an open call; SIZE_MAX if there are too many. */
static size_t pass_workspace(struct gpu_call g, bool backward)
{
    g.backward = backward;
    g.decode = decodes(&g);
    g.measured = true;
    for (int i = 0; i < GPU_INPUTS && backward; i++) g.inputs[i] = &g; /* all gradients */
    open_cache(&g);
    lay_out_host(&g.call, NULL, true);
    list_terms(&g, NULL);
    g.list_bytes = lay_out_lists(&g);
    const size_t bytes = lay_out_device(&g, NULL, backward ? list_parts(&g) : 0);
    return g.list_bytes == SIZE_MAX ? SIZE_MAX : bytes;
}
/* The maximum over the passes of such a call, and over calls of fewer rows.  Passes over all keys
 * and those that split them both need more with more rows.  A call that is too long to be split
 * also counts the longest that is not. */
size_t loci_gpu_workspace(const loci_gpu_plan *plan, const loci_call *given, int backward)
{
    struct gpu_call g = { .plan = plan, .backward = backward != 0 };
    if (!plan || loci_copy_call(&g.in, wants_sizes(plan->plan), given)) return 0;
    g.in.error = NULL;
    if (plan->plan->stage == LOCI_EMBED)
        return loci_gpu_embed_workspace(plan->plan, &g.in, backward != 0);
    if (check_call(plan->plan, &g.in, NULL)) return 0;
    /* If not, keys may be appended and rotated, and calls of fewer rows run. */
    const bool runs = check_rows(plan->plan, &g.in, NULL) == LOCI_OK,
               learns = backward && !loci_gpu_has_wide_heads(plan->plan);
    if (loci_open_call(&g.call, plan->plan, &g.in, true)) return 0;
    if (g.call.cache && loci_cache_check(plan->plan, g.call.cache, true, NULL)) return 0;
    const bool rotates = plan->plan->rotate >= 0 && !g.in.pages && !g.in.cache;
    size_t most = rotates ? loci_gpu_rotation_workspace(plan, &g.in, backward != 0) : 0;
    if (plan->plan->stage == LOCI_ROTATE) return most;
    for (int remove = 0; remove < 2 && g.in.cache; remove++) {
        const size_t n = update_workspace(plan, &g.in, remove);
        if (n > PTRDIFF_MAX) return 0;
        if (n > most) most = n;
    }
    if (!runs && !g.in.cache) return most;
    for (int back = 0; runs && back <= learns; back++) {
        const size_t n = pass_workspace(g, back);
        if (n > PTRDIFF_MAX) return 0;
        if (n > most) most = n;
    }
    if (g.in.q_len > most_split_rows(plan->plan)) {
        g.in.q_len = most_split_rows(plan->plan);
        g.in.q_lens = NULL;
        if (loci_open_call(&g.call, plan->plan, &g.in, true)) return 0;
        const size_t n = pass_workspace(g, false);
        if (n > PTRDIFF_MAX) return 0;
        if (n > most) most = n;
    }
    return most;
}

/* Numbers the memory of the host, and validates the call in it. */
static loci_status open_on_host(struct gpu_call *g, const loci_gpu_tables *tables,
                                const loci_grad *grad)
{
    const struct loci_plan *p = g->plan->plan;
    struct call measured;
    loci_error *e = g->in.error;
    TRY(loci_open_call(&measured, p, &g->in, true));
    const size_t bytes = lay_out_host(&measured, NULL, grad != NULL);
    CHECK(e, bytes < PTRDIFF_MAX, LOCI_BAD_ARG, "the shapes need more bytes than size_t can count");
    g->scratch = aligned_new(bytes);
    CHECK(e, g->scratch, LOCI_NO_MEMORY, "no memory for the lists of a call");
    g->in.work_bytes = 0;
    const struct linear_states *states = g->states;
    const struct opening opening = { .stage = states ? LOCI_LINEAR_ATTENTION : LOCI_ATTENTION,
                                     .grad = grad,
                                     .from = states ? states->keys : 0,
                                     .more = states ? &states->memory : NULL,
                                     .tiles = true,
                                     .there = true,
                                     .lay_out = lay_out_host };
    TRY((states ? loci_linear_open : loci_open_attention)(&g->call, p, tables->host, g->scratch,
                                                          &g->in, &opening));
    if (states) loci_linear_find_seen(&g->call);
    if (grad && !states) TRY(loci_check_results(&g->call, grad));
    if (grad) loci_want(&g->call, g->learned);
    bool counted[MAX_ENCODINGS] = { false };
    for (int x = 0; x < p->uses; x++) counted[p->use[x].enc] |= loci_gpu_counts(g, x);
    for (int enc = 0; enc < p->encs; enc++)
        if (!loci_gpu_has_inputs(p, enc) && !counted[enc]) loci_begin_encoding(&g->call, enc);
    return check_sequences(&g->call, g->in.error);
}
loci_status loci_gpu_open_linear(struct gpu_call *g, const loci_gpu_plan *plan,
                                 const loci_gpu_tables *tables, void *work, const loci_call *given,
                                 const loci_grad *grad, const struct linear_states *states)
{
    const struct loci_plan *p = plan->plan;
    *g = (struct gpu_call){
        .plan = plan, .backward = grad != NULL, .rotated = p->rotate >= 0, .states = states
    };
    TRY(loci_copy_call(&g->in, wants_sizes(p), given));
    loci_error *e = g->in.error;
    const size_t work_bytes = g->in.work_bytes;
    CHECK(e, tables && tables->host && tables->device, LOCI_BAD_ARG,
          "tables must have those of loci_prepare() on the host, and a copy on the device");
    TRY(check_call(p, &g->in, e));
    TRY(check_rows(p, &g->in, e));
    if (grad) TRY(check_grad(plan, grad, e));
    if (grad) divide_gradients(g, grad->dtensors);
    TRY(open_on_host(g, tables, grad));
    if (!g->call.B || (!g->call.Lq && !grad && !(states && states->after))) return LOCI_OK;
    open_cache(g);
    g->decode = decodes(g);
    list_terms(g, tables->host);
    g->list_bytes = lay_out_lists(g);
    const int parts = grad ? list_parts(g) : 0;
    const size_t bytes = lay_out_device(g, work, parts);
    TRY(loci_gpu_check_work(work, work_bytes, bytes, e));
    for (int x = 0; x < p->uses; x++)
        if (g->call.g.total[x] || g->row_sums) g->params.parts = parts;
    g->lists = calloc(1, g->list_bytes);
    CHECK(e, g->lists, LOCI_NO_MEMORY, "no memory for the lists of a call");
    fill_lists(g, grad ? TILE_ROWS : plan->rows);
    set_params(g);
    memcpy(g->lists + g->params.use, g->use, sizeof g->use);
    set_lanes(g);
    g->arrays.tables = (char *)(uintptr_t)tables->device;
    return LOCI_OK;
}
loci_status loci_gpu_open_call(struct gpu_call *g, const loci_gpu_plan *plan,
                               const loci_gpu_tables *tables, void *work, const loci_call *given,
                               const loci_grad *grad)
{
    return loci_gpu_open_linear(g, plan, tables, work, given, grad, NULL);
}
/* Memory of the host for a change of a cache. */
static loci_status update_scratch(struct gpu_call *g)
{
    struct call measured;
    loci_error *e = g->given.error;
    TRY(loci_open_call(&measured, g->plan->plan, &g->in, true));
    const size_t bytes = lay_out_host(&measured, NULL, false);
    CHECK(e, bytes < PTRDIFF_MAX, LOCI_BAD_ARG, "the shapes need more bytes than size_t can count");
    g->scratch = aligned_new(bytes);
    CHECK(e, g->scratch, LOCI_NO_MEMORY, "no memory for the lists of a call");
    return LOCI_OK;
}
/* The lists and parameters of a change that has been validated. */
static loci_status list_update(struct gpu_call *g, const loci_gpu_tables *tables, void *work)
{
    const struct loci_plan *p = g->plan->plan;
    loci_error *e = g->given.error;
    const int enc = g->rotated ? p->use[p->rotate].enc : -1;
    if (g->rotated && !loci_gpu_has_inputs(p, enc)) loci_begin_encoding(&g->call, enc);
    g->call.k = g->update.k; /* not before: liere makes matrices for a call that has keys alone */
    g->call.v = g->update.v;
    list_rotation(g);
    const size_t needed = lay_out_update(g, work);
    TRY(loci_gpu_check_work(work, g->given.work_bytes, needed, e));
    g->lists = calloc(1, g->list_bytes);
    CHECK(e, g->lists, LOCI_NO_MEMORY, "no memory for the lists of a call");
    if (g->params.rotation == TURN_MATRICES && g->rotated) fill_matrices(g);
    fill_turn(g);
    if (g->rotated) fill_places(g, false, g->k_where);
    set_params(g);
    set_lanes(g);
    g->arrays.tables = (char *)(uintptr_t)tables->device;
    return LOCI_OK;
}
loci_status loci_gpu_open_append(struct gpu_call *g, const loci_gpu_plan *plan,
                                 const loci_gpu_tables *tables, void *work, loci_cache *to,
                                 const loci_call *given)
{
    const struct loci_plan *p = plan->plan;
    *g = (struct gpu_call){ 0 };
    TRY(loci_copy_call(&g->given, wants_sizes(p), given));
    loci_error *e = g->given.error;
    CHECK(e, tables && tables->host && tables->device, LOCI_BAD_ARG,
          "tables must have those of loci_prepare() on the host, and a copy on the device");
    TRY(loci_cache_check_plan(p, 0, 1, e));
    TRY(loci_cache_check(p, to, true, e));
    prepare_append(g, plan);
    TRY(update_scratch(g));
    TRY(loci_cache_open_append(&g->call, &g->update, &g->in, p, tables->host, g->scratch, to,
                               &g->given, lay_out_host));
    return g->call.B && g->call.Lk ? list_update(g, tables, work) : LOCI_OK;
}
loci_status loci_gpu_open_remove(struct gpu_call *g, const loci_gpu_plan *plan,
                                 const loci_gpu_tables *tables, void *work, loci_cache *to,
                                 ptrdiff_t entry, int64_t first, int64_t count,
                                 const int64_t *shift, const loci_call *given)
{
    const struct loci_plan *p = plan->plan;
    *g = (struct gpu_call){ 0 };
    TRY(loci_copy_call(&g->given, wants_sizes(p), given));
    loci_error *e = g->given.error;
    CHECK(e, tables && tables->host && tables->device, LOCI_BAD_ARG,
          "tables must have those of loci_prepare() on the host, and a copy on the device");
    TRY(loci_cache_check_remove(p, to, entry, first, count, true, e));
    prepare_remove(g, plan, shift);
    g->update.to = to;
    TRY(update_scratch(g));
    TRY(loci_open_call(&g->call, p, &g->in, true));
    TRY(loci_open_tables(&g->call, tables->host));
    TRY(loci_lay_out_workspace(&g->call, g->scratch, lay_out_host, false));
    loci_fill_workspace(&g->call);
    return count ? list_update(g, tables, work) : LOCI_OK;
}
void loci_gpu_close_call(struct gpu_call *g)
{
    free(g->lists);
    aligned_free(g->scratch);
}
