/* SPDX-License-Identifier: MIT */
/* parallel_ranks.c -- see parallel_ranks.h. */
#include "parallel_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "math/half.h"
#include "harness.h"

/* ---- Memory ---------------------------------------------------------------------------------- */

static void *keep(struct blocks *b, void *p, size_t bytes)
{
    if (b->n == b->capacity) {
        b->capacity = 2 * b->capacity + 16;
        b->list = realloc(b->list, (size_t)b->capacity * sizeof *b->list);
    }
    if (!p || !b->list) exit(2);
    return b->list[b->n++] = memset(p, 0xff, bytes);
}
void *blocks_alloc(struct blocks *b, size_t bytes)
{
    return keep(b, malloc(bytes + !bytes), bytes);
}
void *blocks_lines(struct blocks *b, size_t bytes)
{
    return keep(b, aligned_alloc(64, bytes), bytes);
}
void blocks_drop(struct blocks *b)
{
    for (int i = 0; i < b->n; i++) free(b->list[i]);
    free(b->list);
    *b = (struct blocks){ 0 };
}

/* ---- One process ----------------------------------------------------------------------------- */

static void put(void *to, size_t i, size_t each, double x)
{
    if (each == sizeof(double)) ((double *)to)[i] = x;
    else if (each == sizeof(float)) ((float *)to)[i] = (float)x;
    else ((uint16_t *)to)[i] = to_bf16((float)x);
}
static double get(const void *from, size_t i, size_t each)
{
    return each == sizeof(double) ? ((const double *)from)[i] : (double)((const float *)from)[i];
}

static struct lines lines(struct blocks *b, const char *name, bool keys, size_t outer,
                          ptrdiff_t len, size_t inner)
{
    return (struct lines){ name, keys, outer, inner, blocks_alloc(b, outer * (size_t)len * inner) };
}
static void fill(const struct lines *l, ptrdiff_t len, size_t each, double middle, double size)
{
    for (size_t i = 0; i < l->outer * (size_t)len * l->inner / each; i++)
        put(l->data, i, each, middle + size * walk_uniform());
}

static int64_t key_at(enum places places, int64_t entry, int64_t j, int64_t keys)
{
    switch (places) {
    case SPREAD:
        return 3 + 2 * j + (j % 3 == 2);
    case PER_BATCH:
        return entry ? 5 + 3 * j : j - 7;
    case SHUFFLED:
        return ((j < 0 ? j + 2 * keys : j) * 37 + 11) % keys;
    default:
        return j;
    }
}
static void place(struct whole_call *w)
{
    const struct form *f = &w->form;
    const ptrdiff_t entries = f->places == PER_BATCH ? f->batch : 1;
    const ptrdiff_t axes = loci_axes(w->on[0].plan);
    int64_t low = 0, high = 0;
    w->q_pos = lines(&w->blocks, "q_pos", false, (size_t)entries, f->q_len, sizeof low);
    w->k_pos = lines(&w->blocks, "k_pos", true, (size_t)entries, f->k_len, sizeof low);
    for (ptrdiff_t b = 0; b < entries; b++) {
        for (ptrdiff_t j = f->k_len < f->q_len ? f->k_len - f->q_len : 0; j < f->k_len; j++) {
            const int64_t at = key_at(f->places, b, j, f->k_len);
            const ptrdiff_t i = j - (f->k_len - f->q_len);
            if (at < low) low = at;
            if (at > high) high = at;
            if (j >= 0) ((int64_t *)w->k_pos.data)[b * f->k_len + j] = at;
            if (i >= 0) ((int64_t *)w->q_pos.data)[b * f->q_len + i] = at;
        }
    }
    w->range = (ptrdiff_t)(high - low) + 1;
    if (f->places != COUNTED) {
        w->call.q_pos = (int64_t *)w->q_pos.data;
        w->call.k_pos = (int64_t *)w->k_pos.data;
        w->call.per_batch = f->places == PER_BATCH;
    }
    if (axes < 2) return;
    const size_t outer = (size_t)(entries * axes);
    w->q_coord = lines(&w->blocks, "q_coord", false, outer, f->q_len, sizeof(double));
    w->k_coord = lines(&w->blocks, "k_coord", true, outer, f->k_len, sizeof(double));
    double *const q = (double *)w->q_coord.data, *const k = (double *)w->k_coord.data;
    for (size_t i = 0; i < outer * (size_t)f->q_len; i++) q[i] = walk_coordinate(50);
    for (size_t i = 0; i < outer * (size_t)f->k_len; i++) k[i] = walk_coordinate(50);
    w->call.q_coord = q;
    w->call.k_coord = k;
}

/* Inputs by row or key become lines.  Other inputs are the same on all ranks. */
static void give_tensors(struct whole_call *w)
{
    const struct form *f = &w->form;
    w->tensors = loci_tensors(w->on[0].plan, w->tensor, WALK_TENSORS);
    for (int i = 0; i < w->tensors; i++) {
        const loci_tensor *t = &w->tensor[i];
        const size_t n = walk_count(t, f->batch, f->q_len, f->k_len);
        unsigned char *x = blocks_alloc(&w->blocks, n * w->real);
        memset(x, 0, n * w->real);
        if (t->role != LOCI_INPUT) loci_tensor_init(w->on[0].plan, i, 1, x);
        for (size_t m = 0; m < n; m++) {
            double more = walk_learned(t, 0.25 + 0.2 * walk_uniform()) + get(x, m, w->real);
            if (t->role == LOCI_INPUT) {
                const bool gate = f->lasting && !strcmp(t->name, "gate_k");
                more = 0.2 * walk_uniform() - (gate ? 3 : 0.25);
                if (f->lasting && !strcmp(t->name, "log_f")) more *= 0.002;
            }
            put(x, m, w->real, more);
        }
        w->data[i] = x;
        size_t outer = 1;
        for (int r = 0; r < t->rank; r++) {
            const bool keys = t->shape[r] == LOCI_DIM_KEYS;
            if (keys || t->shape[r] == LOCI_DIM_QUERIES) {
                const size_t len = (size_t)(keys ? f->k_len : f->q_len);
                w->input[i] = (struct lines){ t->name, keys, outer, n / outer / len * w->real, x };
                break;
            }
            outer *= (size_t)(t->shape[r] == LOCI_DIM_BATCH ? f->batch : t->shape[r]);
        }
    }
    w->call.tensors = w->data;
}

static loci_desc desc_of(const struct form *f)
{
    return (loci_desc){
        .encoding = f->text, .kv_heads = f->kv_heads, .dim = f->dim, .keys_rotated = f->keys_rotated
    };
}
static size_t key_width(const struct form *f)
{
    const loci_desc d = desc_of(f);
    return (size_t)walk_key_dim(&d);
}
/* Wide keys must have strides. */
static void spell_out(const struct form *f, loci_view *v)
{
    const loci_desc d = desc_of(f);
    if (walk_key_dim(&d) > f->dim) *v = walk_wide_keys(&d, f->k_len, v->data);
}
static bool plans(struct whole_call *w)
{
    const struct form *f = &w->form;
    const char *isas[8];
    w->isas = loci_isas(isas, 8);
    if (!w->isas) {
        isas[0] = NULL;
        w->isas = 1;
        w->form.dtype = LOCI_F64;
    }
    for (int i = 0; i < w->isas; i++) {
        const loci_desc d =
            LOCI_DESC(.encoding = f->text, .heads = f->heads, .kv_heads = f->kv_heads,
                      .dim = f->dim, .value_dim = f->value_dim, .dtype = w->form.dtype,
                      .full = f->full, .window_left = f->left, .window_right = f->right,
                      .keys_rotated = f->keys_rotated, .isa = isas[i]);
        loci_error e;
        if (loci_plan_create(&w->on[i].plan, &d, &e))
            return CHECK_FAILED("%s (%s): %s", f->text, f->name, e.text);
    }
    return true;
}

static bool prepare(struct whole_call *w)
{
    loci_error e;
    for (int i = 0; i < w->isas; i++) {
        w->on[i].bytes = loci_tables_size(w->on[i].plan, w->range);
        w->on[i].tables = blocks_lines(&w->blocks, w->on[i].bytes);
        if (loci_prepare_on(NULL, w->on[i].plan, w->range, w->data, w->on[i].tables, &e))
            return CHECK_FAILED("%s (%s): %s", w->form.text, w->form.name, e.text);
    }
    return true;
}

/* All gradients, for random cotangents.  Some problems omit that of o. */
static void alloc_grads(struct whole_call *w, int seed)
{
    const struct form *f = &w->form;
    const size_t heads = (size_t)(f->batch * f->heads), kv_heads = (size_t)(f->batch * f->kv_heads);
    const size_t dim = (size_t)f->dim, value_dim = (size_t)f->value_dim;
    loci_plan *best = w->on[w->isas - 1].plan;
    const void *tables = w->on[w->isas - 1].tables;
    const bool stick = strstr(f->text, "sba");
    w->dout = lines(&w->blocks, "dout", false, heads, f->q_len, value_dim * w->stored);
    fill(&w->dout, f->q_len, w->stored, 0, 1);
    struct lines *more = stick ? &w->drem : &w->dlse;
    *more = lines(&w->blocks, stick ? "drem" : "dlse", false, heads, f->q_len, w->real);
    fill(more, f->q_len, w->real, 0, 1);
    if (w->ae.data) {
        w->dae = lines(&w->blocks, "dae", false, heads, f->q_len, dim * w->real);
        fill(&w->dae, f->q_len, w->real, 0, 1);
    }
    w->dq = lines(&w->blocks, "dq", false, heads, f->q_len, dim * w->stored);
    w->dk = lines(&w->blocks, "dk", true, kv_heads, f->k_len, key_width(f) * w->stored);
    w->dv = lines(&w->blocks, "dv", true, kv_heads, f->k_len, value_dim * w->stored);
    for (int i = 0; i < w->tensors; i++) {
        const size_t n = walk_count(&w->tensor[i], f->batch, f->q_len, f->k_len);
        w->dtensor[i] = blocks_alloc(&w->blocks, n * w->real);
        if (!w->input[i].data) continue;
        w->dinput[i] = w->input[i];
        w->dinput[i].data = w->dtensor[i];
    }
    w->grad = (loci_grad)LOCI_GRAD(.dout.data = seed % 7 ? w->dout.data : NULL,
                                   .dlse = w->dlse.data, .drem = w->drem.data, .dae = w->dae.data,
                                   .dq.data = w->dq.data, .dk.data = seed % 5 ? w->dk.data : NULL,
                                   .dv.data = w->dv.data, .dtensors = w->dtensor);
    spell_out(f, &w->grad.dk);
    const size_t bytes = loci_workspace(best, &w->call, 1);
    void *work = bytes ? blocks_lines(&w->blocks, bytes) : NULL;
    w->grad_status = loci_backward(best, tables, work, &w->call, &w->grad);
}

bool whole_make(struct whole_call *w, const struct form *f, int seed)
{
    *w = (struct whole_call){ .form = *f };
    walk_restart(seed);
    if (!plans(w)) {
        whole_drop(w);
        return false;
    }
    const loci_dtype dtype = w->form.dtype;
    const size_t heads = (size_t)(f->batch * f->heads), kv_heads = (size_t)(f->batch * f->kv_heads);
    const size_t dim = (size_t)f->dim, value_dim = (size_t)f->value_dim;
    const bool last = f->lasting;
    w->real = dtype == LOCI_F64 ? sizeof(double) : sizeof(float);
    w->stored = dtype == LOCI_BF16 ? sizeof(uint16_t) : w->real;
    w->q = lines(&w->blocks, "q", false, heads, f->q_len, dim * w->stored);
    w->k = lines(&w->blocks, "k", true, kv_heads, f->k_len, key_width(f) * w->stored);
    w->v = lines(&w->blocks, "v", true, kv_heads, f->k_len, value_dim * w->stored);
    w->o = lines(&w->blocks, "o", false, heads, f->q_len, value_dim * w->stored);
    fill(&w->q, f->q_len, w->stored, last ? 1 : 0, last ? 0.3 : 1.5);
    fill(&w->k, f->k_len, w->stored, last ? -3 : 0, last ? 0.5 : 1.5);
    fill(&w->v, f->k_len, w->stored, 0, 1);
    w->call = (loci_call)LOCI_CALL(.batch = f->batch, .q_len = f->q_len, .k_len = f->k_len,
                                   .q.data = w->q.data, .k.data = w->k.data, .v.data = w->v.data,
                                   .o.data = w->o.data);
    if (f->drops) {
        w->call.dropout = 0.3;
        w->call.dropout_seed = 0xfedcba9876543210u;
        w->call.dropout_offset = 5;
    }
    spell_out(f, &w->call.k);
    if (!f->no_rows) {
        w->lse = lines(&w->blocks, "lse", false, heads, f->q_len, w->real);
        w->rem = lines(&w->blocks, "rem", false, heads, f->q_len, w->real);
        w->call.lse = w->lse.data;
        w->call.rem = w->rem.data;
    }
    if (walk_states(f->text)) {
        w->ae = lines(&w->blocks, "ae", false, heads, f->q_len, dim * w->real);
        w->call.ae = w->ae.data;
    }
    give_tensors(w);
    place(w);
    if (!prepare(w)) {
        whole_drop(w);
        return false;
    }
    loci_plan *best = w->on[w->isas - 1].plan;
    const size_t bytes = loci_workspace(best, &w->call, 0);
    void *work = bytes ? blocks_lines(&w->blocks, bytes) : NULL;
    w->call.error = &w->error;
    w->status = loci_forward(best, w->on[w->isas - 1].tables, work, &w->call);
    if (f->grads && !w->status) alloc_grads(w, seed);
    return true;
}

void whole_drop(struct whole_call *w)
{
    for (int i = 0; i < w->isas; i++) loci_plan_destroy(w->on[i].plan);
    blocks_drop(&w->blocks);
    *w = (struct whole_call){ 0 };
}

/* ---- Shares ---------------------------------------------------------------------------------- */

static uint64_t roll(uint64_t *dice, uint64_t sides)
{
    *dice ^= *dice << 13;
    *dice ^= *dice >> 7;
    *dice ^= *dice << 17;
    return *dice % sides;
}
static int by_first(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}
/* Cuts at multiples of tiles, items and chunks, or anywhere. */
static int draw(loci_share *list, int ranks, int64_t rows, int64_t least, uint64_t *dice)
{
    static const int64_t units[] = { 1, 1, 64, 1024, 4096 };
    const int n = 1 + (int)roll(dice, 3 * (uint64_t)ranks);
    const int without = roll(dice, 2) ? (int)roll(dice, (uint64_t)ranks) : -1;
    int64_t cut[MOST_SHARES + 1] = { 0 };
    for (int i = 1; i < n; i++) {
        const int64_t drawn = units[roll(dice, 5)], unit = drawn < least ? least : drawn;
        cut[i] = (int64_t)roll(dice, (uint64_t)rows + 1) / unit * unit;
        if (!roll(dice, 6)) cut[i] = cut[i - 1];
    }
    cut[n] = rows;
    qsort(cut, (size_t)n, sizeof *cut, by_first);
    for (int i = 0; i < n; i++) {
        int rank = (int)roll(dice, (uint64_t)ranks);
        if (rank == without) rank = (rank + 1) % ranks;
        list[i] = (loci_share){ cut[i], cut[i + 1] - cut[i], rank };
    }
    return n;
}
/* Equal shares, except for rounding of the borders. */
static int share(loci_share *list, enum layout layout, int ranks, int64_t rows, int64_t unit)
{
    const loci_layout ours = layout == ZIGZAG ? LOCI_ZIGZAG : LOCI_CONTIGUOUS;
    const int n = loci_share_out(ours, rows, ranks, list, MOST_SHARES);
    int64_t at = 0;
    for (int i = 0; i < n && unit > 1; i++) {
        const int64_t end = i == n - 1 ? rows : (rows * (i + 1) / n + unit / 2) / unit * unit;
        list[i].first = at;
        list[i].count = (end < rows ? end : rows) - at;
        at += list[i].count;
    }
    return n;
}
void split_make(struct split *s, enum layout layout, int ranks, ptrdiff_t q_len, ptrdiff_t k_len,
                bool keys_apart, bool grads, uint64_t seed)
{
    static const char *const names[] = { "contiguous", "zig-zag", "random shares" };
    const int64_t row = grads ? 1024 : 1, key = grads ? 64 : 1;
    uint64_t dice = 0x9e3779b97f4a7c15u * (2 * seed + 1);
    for (int i = 0; i < 9; i++) roll(&dice, 2);
    *s = (struct split){ .name = names[layout], .ranks = ranks };
    s->count = layout == RANDOM ? draw(s->rows, ranks, q_len, row, &dice)
                                : share(s->rows, layout, ranks, q_len, row);
    if (!keys_apart) return;
    s->key_count = layout == RANDOM ? draw(s->keys, ranks, k_len, key, &dice)
                                    : share(s->keys, layout, ranks, k_len, key);
}

static ptrdiff_t *owned(struct blocks *b, const loci_share *list, int n, int rank, ptrdiff_t *count)
{
    ptrdiff_t all = 0, at = 0;
    for (int i = 0; i < n; i++) all += list[i].rank == rank ? list[i].count : 0;
    ptrdiff_t *rows = blocks_alloc(b, (size_t)all * sizeof *rows);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < list[i].count && list[i].rank == rank; k++)
            rows[at++] = (ptrdiff_t)(list[i].first + k);
    *count = all;
    return rows;
}

/* ---- A rank ---------------------------------------------------------------------------------- */

static ptrdiff_t len_of(const struct whole_call *w, const struct lines *l)
{
    return l->keys ? w->form.k_len : w->form.q_len;
}
/* Line i of the part's rows or keys, in repetition n.  In a token-major part, `heads` of them are
 * adjacent. */
static size_t line_at(const struct part *p, const struct lines *l, size_t n, ptrdiff_t i,
                      size_t heads)
{
    const size_t len = (size_t)(l->keys ? p->nk : p->nq);
    return l->inner
         * (p->token_major && heads ? (n / heads * len + (size_t)i) * heads + n % heads
                                    : n * len + (size_t)i);
}
/* heads 0: arrays without a view. */
static struct lines alloc(struct part *p, const struct lines *from, size_t heads, bool copy)
{
    const ptrdiff_t n = from->keys ? p->nk : p->nq, *at = from->keys ? p->keys : p->rows;
    struct lines to = *from;
    if (!from->data) return to;
    to.data = blocks_alloc(&p->blocks, from->outer * (size_t)n * from->inner);
    for (size_t o = 0; o < from->outer && copy; o++)
        for (ptrdiff_t i = 0; i < n; i++)
            memcpy(to.data + line_at(p, &to, o, i, heads),
                   from->data + (o * (size_t)len_of(p->whole, from) + (size_t)at[i]) * from->inner,
                   from->inner);
    return to;
}
static loci_view view(const struct part *p, const struct lines *l, int heads, int width)
{
    const ptrdiff_t len = l->keys ? p->nk : p->nq, row = (ptrdiff_t)heads * width;
    /* an empty array sometimes has no address */
    const bool none = !len && p->rank % 2;
    loci_view v = { .data = none ? NULL : l->data };
    if (width > p->whole->form.dim) {
        v.batch = len * row;
        v.head = len * width;
        v.row = width;
    }
    if (p->token_major) {
        v.batch = len * row;
        v.row = row;
        v.head = width;
    }
    return v;
}

static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
    const unsigned char *x = data;
    for (size_t i = 0; i < bytes; i++) h = (h ^ x[i]) * 0x100000001b3u;
    return h;
}
static uint64_t hash_lines(const struct part *p, const struct lines *l, uint64_t h)
{
    return l->data ? hash(h, l->data, l->outer * (size_t)(l->keys ? p->nk : p->nq) * l->inner) : h;
}
uint64_t part_hash(const struct part *p)
{
    uint64_t h = 0xcbf29ce484222325u;
    h = hash_lines(p, &p->q, h);
    h = hash_lines(p, &p->k, h);
    h = hash_lines(p, &p->v, h);
    return hash(h, p->tables, p->tables_bytes);
}

/* A rank without rows or keys may pass any value for empty arrays. */
static void part_take_grads(struct part *p)
{
    const struct whole_call *w = p->whole;
    const struct form *f = &w->form;
    const size_t heads = (size_t)f->heads, kv_heads = (size_t)f->kv_heads;
    p->dout = alloc(p, &w->dout, heads, true);
    p->dlse = alloc(p, &w->dlse, 0, true);
    p->drem = alloc(p, &w->drem, 0, true);
    p->dae = alloc(p, &w->dae, 0, true);
    p->dq = alloc(p, &w->dq, heads, false);
    p->dk = alloc(p, &w->dk, kv_heads, false);
    p->dv = alloc(p, &w->dv, kv_heads, false);
    for (int i = 0; i < w->tensors; i++) {
        p->dinput[i] = alloc(p, &w->dinput[i], 0, false);
        p->dtensor[i] =
            w->dinput[i].data
                ? p->dinput[i].data
                : blocks_alloc(&p->blocks,
                               w->real * walk_count(&w->tensor[i], f->batch, f->q_len, f->k_len));
    }
    p->grad = (loci_grad)LOCI_GRAD(.dlse = p->dlse.data, .drem = p->drem.data, .dae = p->dae.data,
                                   .dq = view(p, &p->dq, f->heads, f->dim),
                                   .dv = view(p, &p->dv, f->kv_heads, f->value_dim),
                                   .dtensors = p->dtensor);
    if (w->grad.dout.data) p->grad.dout = view(p, &p->dout, f->heads, f->value_dim);
    if (w->grad.dk.data) p->grad.dk = view(p, &p->dk, f->kv_heads, (int)key_width(f));
    p->gradp = &p->grad;
}

void part_make(struct part *p, const struct whole_call *w, const struct split *s,
               const loci_transport *t, int turn)
{
    const struct form *f = &w->form;
    const int isa = (t->rank + turn) % w->isas;
    *p = (struct part){ .whole = w,
                        .split = s,
                        .rank = t->rank,
                        .plan = w->on[isa].plan,
                        .tables = w->on[isa].tables,
                        .tables_bytes = w->on[isa].bytes,
                        .transport = *t,
                        .token_major = (t->rank + turn) % 3 == 1,
                        .callp = &p->call,
                        .allp = &p->all };
    struct blocks *b = &p->blocks;
    const bool apart = s->key_count > 0;
    p->rows = owned(b, s->rows, s->count, p->rank, &p->nq);
    p->keys = owned(b, apart ? s->keys : s->rows, apart ? s->key_count : s->count, p->rank, &p->nk);

    const size_t heads = (size_t)f->heads, kv_heads = (size_t)f->kv_heads;
    p->q = alloc(p, &w->q, heads, true);
    p->k = alloc(p, &w->k, kv_heads, true);
    p->v = alloc(p, &w->v, kv_heads, true);
    p->o = alloc(p, &w->o, heads, false);
    p->lse = alloc(p, &w->lse, 0, false);
    p->rem = alloc(p, &w->rem, 0, false);
    p->ae = alloc(p, &w->ae, 0, false);
    p->call =
        (loci_call)LOCI_CALL(.batch = f->batch, .q_len = p->nq, .k_len = p->nk,
                             .q = view(p, &p->q, f->heads, f->dim),
                             .k = view(p, &p->k, f->kv_heads, (int)key_width(f)),
                             .v = view(p, &p->v, f->kv_heads, f->value_dim),
                             .o = view(p, &p->o, f->heads, f->value_dim), .lse = p->lse.data,
                             .rem = p->rem.data, .ae = p->ae.data, .per_batch = w->call.per_batch,
                             .tensors = p->data, .error = &p->error, .dropout = w->call.dropout,
                             .dropout_seed = w->call.dropout_seed,
                             .dropout_offset = w->call.dropout_offset,
                             .tables_bytes = turn % 2 ? p->tables_bytes : 0);
    if (w->call.q_pos) {
        p->call.q_pos = (int64_t *)alloc(p, &w->q_pos, 0, true).data;
        p->call.k_pos = (int64_t *)alloc(p, &w->k_pos, 0, true).data;
    }
    if (w->call.q_coord) {
        p->call.q_coord = (double *)alloc(p, &w->q_coord, 0, true).data;
        p->call.k_coord = (double *)alloc(p, &w->k_coord, 0, true).data;
    }
    /* Learned tensors are in the tables, so they are not read here. */
    for (int i = 0; i < w->tensors; i++)
        p->data[i] = w->tensor[i].role != LOCI_INPUT ? NULL
                   : w->input[i].data                ? alloc(p, &w->input[i], 0, true).data
                                                     : w->data[i];

    if (f->grads) part_take_grads(p);
    const size_t each = sizeof(loci_share);
    loci_share *rows = blocks_alloc(b, (size_t)s->count * each);
    memcpy(rows, s->rows, (size_t)s->count * each);
    p->report.size = sizeof p->report;
    p->all = (loci_parallel)LOCI_PARALLEL(.transport = &p->transport, .shares = rows,
                                          .count = s->count, .gather = 1, .report = &p->report);
    if (apart) {
        loci_share *keys = blocks_alloc(b, (size_t)s->key_count * each);
        memcpy(keys, s->keys, (size_t)s->key_count * each);
        p->all.key_shares = keys;
        p->all.key_count = s->key_count;
    }
#ifdef LOCI_NO_THREADS
    const int threads = 1;
#else
    const int threads = 1 + (t->rank + turn) % 2;
#endif
    if (loci_pool_create(&p->host, threads)) exit(2);
    if ((t->rank + turn) % 4) p->call.host = &p->host;
    p->hash = part_hash(p);
}

void part_take_work(struct part *p)
{
    const size_t bytes = loci_parallel_workspace(p->plan, p->callp, p->allp, p->whole->form.grads);
    const bool good = bytes && bytes % 64 == 0;
    CHECK_THAT(good, "%s (%s), %s: a workspace of %zu bytes for rank %d of %d", p->whole->form.text,
               p->whole->form.name, p->split->name, bytes, p->rank, p->split->ranks);
    /* a small one if there is none, so that the call can return its error */
    p->work_bytes = good ? bytes : 64;
    p->work = p->memory = blocks_lines(&p->blocks, p->work_bytes);
}

static const struct lines *output(const struct part *p, int i)
{
    const struct lines *const list[] = { &p->o, &p->lse, &p->rem, &p->ae };
    return list[i];
}
enum { OUTPUTS = 4 };

/* Sets all bits of lines, or tests whether they are set. */
static bool set_lines(const struct part *p, const struct lines *l, bool ask)
{
    if (!l->data) return true;
    const size_t bytes = l->outer * (size_t)(l->keys ? p->nk : p->nq) * l->inner;
    if (!ask) memset(l->data, 0xff, bytes);
    for (size_t k = 0; k < bytes; k++)
        if (l->data[k] != 0xff) return false;
    return true;
}
static size_t count_of(const struct whole_call *w, int i)
{
    return walk_count(&w->tensor[i], w->form.batch, w->form.q_len, w->form.k_len);
}
static bool set_outputs(const struct part *p, bool ask)
{
    bool all = true;
    for (int i = 0; i < OUTPUTS; i++) all &= set_lines(p, output(p, i), ask);
    return all;
}
static bool set_grads(const struct part *p, bool ask)
{
    bool all = set_lines(p, &p->dq, ask);
    all &= set_lines(p, &p->dk, ask) && set_lines(p, &p->dv, ask);
    for (int i = 0; i < p->whole->tensors && p->whole->form.grads; i++) {
        const size_t bytes = count_of(p->whole, i) * p->whole->real;
        unsigned char *x = p->dtensor[i];
        all &= set_lines(p, &p->dinput[i], ask);
        if (p->dinput[i].data || !x) continue;
        if (!ask) memset(x, 0xff, bytes);
        for (size_t k = 0; k < bytes; k++) all &= x[k] == 0xff;
    }
    return all;
}

/* After a call. */
static void look(const struct part *p, loci_status status)
{
    const int open = mailbox_open(&p->transport);
    CHECK_THAT(!open, "%s (%s), %s: rank %d has %d open requests after status %d, %s",
               p->whole->form.text, p->whole->form.name, p->split->name, p->rank, open, status,
               p->error.text);
    CHECK_THAT(part_hash(p) == p->hash, "%s (%s), %s: the inputs of rank %d have changed",
               p->whole->form.text, p->whole->form.name, p->split->name, p->rank);
}
loci_status part_call(struct part *p)
{
    if (!p->memory) part_take_work(p);
    /* NaN and -1, or an impossible position */
    memset(p->memory, p->rank % 2 ? 0xff : 0x7f, p->work_bytes);
    set_outputs(p, false);
    p->error = (loci_error){ 0 };
    p->backward = false;
    loci_status status = loci_parallel_forward(p->plan, p->tables, p->work, p->callp, p->allp);
    look(p, status);
    if (!p->whole->form.grads || status) return status;
    memset(p->memory, 0xff, p->work_bytes);
    set_grads(p, false);
    p->error = (loci_error){ 0 };
    p->backward = true;
    status = loci_parallel_backward(p->plan, p->tables, p->work, p->callp, p->gradp, p->allp);
    look(p, status);
    return status;
}

bool part_untouched(const struct part *p)
{
    return p->backward ? set_grads(p, true) : set_outputs(p, true);
}

static double first_number(const unsigned char *x, size_t each)
{
    double d;
    float f;
    uint16_t h;
    if (each == sizeof d) {
        memcpy(&d, x, sizeof d);
        return d;
    }
    if (each == sizeof f) {
        memcpy(&f, x, sizeof f);
        return (double)f;
    }
    memcpy(&h, x, sizeof h);
    return (double)from_bf16(h);
}
/* Lines of this part, and of one process. */
static bool same_lines(const struct part *p, const struct lines *l, const struct lines *all,
                       size_t each, size_t heads, const char *context)
{
    const struct whole_call *w = p->whole;
    const ptrdiff_t n = l->keys ? p->nk : p->nq, *at = l->keys ? p->keys : p->rows;
    for (size_t o = 0; l->data && o < l->outer; o++)
        for (ptrdiff_t i = 0; i < n; i++) {
            const unsigned char *got = l->data + line_at(p, l, o, i, heads);
            const unsigned char *want =
                all->data + (o * (size_t)len_of(w, l) + (size_t)at[i]) * l->inner;
            size_t c = 0;
            while (c < l->inner && !memcmp(got + c, want + c, each)) c += each;
            if (c < l->inner)
                return CHECK_FAILED(
                    "%s (%s), %s: rank %d of %d, %s of %s %td in batch entry and head %zu, "
                    "number %zu: got %.17g, one process has %.17g",
                    w->form.text, w->form.name, context, p->rank, p->split->ranks, l->name,
                    l->keys ? "key" : "row", at[i], o, c / each, first_number(got + c, each),
                    first_number(want + c, each));
        }
    return true;
}
static bool same_grads(const struct part *p, const char *context)
{
    const struct whole_call *w = p->whole;
    const size_t heads = (size_t)w->form.heads, kv_heads = (size_t)w->form.kv_heads;
    if (!same_lines(p, &p->dq, &w->dq, w->stored, heads, context)
        || (p->grad.dk.data && !same_lines(p, &p->dk, &w->dk, w->stored, kv_heads, context))
        || !same_lines(p, &p->dv, &w->dv, w->stored, kv_heads, context))
        return false;
    for (int i = 0; i < w->tensors; i++) {
        if (p->dinput[i].data) {
            if (!same_lines(p, &p->dinput[i], &w->dinput[i], w->real, 0, context)) return false;
            continue;
        }
        const unsigned char *got = p->dtensor[i], *want = w->dtensor[i];
        for (size_t n = 0; n < count_of(w, i); n++)
            if (memcmp(got + n * w->real, want + n * w->real, w->real))
                return CHECK_FAILED(
                    "%s (%s), %s: rank %d of %d, gradient of %s, number %zu: got %.17g, one "
                    "process has %.17g",
                    w->form.text, w->form.name, context, p->rank, p->split->ranks,
                    w->tensor[i].name, n, first_number(got + n * w->real, w->real),
                    first_number(want + n * w->real, w->real));
    }
    return true;
}
bool part_same(const struct part *p, const char *context)
{
    const struct whole_call *w = p->whole;
    const struct lines *const wholes[OUTPUTS] = { &w->o, &w->lse, &w->rem, &w->ae };
    for (int n = 0; n < OUTPUTS; n++)
        if (!same_lines(p, output(p, n), wholes[n], n == 0 ? w->stored : w->real,
                        n == 0 ? (size_t)w->form.heads : 0, context))
            return false;
    if (p->backward && !same_grads(p, context)) return false;
    return harness_pass();
}

void part_drop(struct part *p)
{
    loci_pool_destroy(&p->host);
    blocks_drop(&p->blocks);
}

/* ---- All ranks ------------------------------------------------------------------------------- */

struct job {
    const struct whole_call *whole;
    const struct split *split;
    int gather, turn;
    char context[160];
    loci_status status[MAILBOX_RANKS];
    char text[MAILBOX_RANKS][512];
    uint64_t sent[MAILBOX_RANKS], received[MAILBOX_RANKS];
};
/* Some runs make two calls, one after the other, in the same memory. */
static void body(const loci_transport *t, void *arg)
{
    struct job *j = arg;
    struct part p;
    part_make(&p, j->whole, j->split, t, j->turn);
    p.all.gather = j->gather;
    p.all.ahead = j->turn % 3;
    p.all.check_tables = j->turn % 4 == 1;
    for (int n = j->turn % 5 == 0 ? 2 : 1; n; n--) {
        j->status[t->rank] = part_call(&p);
        snprintf(j->text[t->rank], sizeof j->text[0], "%s", p.error.text);
        j->sent[t->rank] += p.report.sent;
        j->received[t->rank] += p.report.received;
        if (j->status[t->rank]) break;
        part_same(&p, j->context);
        CHECK_THAT(p.report.attention >= 0 && p.report.waited >= 0,
                   "%s: the report of rank %d: %g seconds, %g of waiting", j->context, t->rank,
                   p.report.attention, p.report.waited);
    }
    part_drop(&p);
}
void parts_together(const struct whole_call *w, const struct split *s, bool gather, bool refused,
                    int turn)
{
    struct job j = { .whole = w, .split = s, .gather = gather, .turn = turn };
    const struct mailbox_wishes wishes = { .seed = (uint64_t)turn, .no_test = turn % 3 == 2 };
    const loci_status alone = w->status ? w->status : w->grad_status;
    struct mailbox_story story;
    snprintf(j.context, sizeof j.context, "%s, %s, turn %d", gather ? "gathered" : "streamed",
             s->name, turn);
    mailbox_run(s->ranks, &wishes, body, &j, &story);
    CHECK_THAT(!story.faults, "%s (%s), %d ranks, %s: %s", w->form.text, w->form.name, s->ranks,
               j.context, story.fault);
    uint64_t sent = 0, received = 0;
    for (int i = 0; i < s->ranks; i++) {
        const bool right =
            refused ? j.status[i] && j.status[i] == j.status[0] : j.status[i] == alone;
        CHECK_THAT(right && !strcmp(j.text[i], j.text[0]),
                   "%s (%s), %d ranks, %s: rank %d has status %d and says '%s'", w->form.text,
                   w->form.name, s->ranks, j.context, i, j.status[i], j.text[i]);
        sent += j.sent[i];
        received += j.received[i];
    }
    CHECK_THAT(sent == received && sent <= story.bytes,
               "%s (%s), %d ranks, %s: reports say %llu bytes sent and %llu received, of %llu",
               w->form.text, w->form.name, s->ranks, j.context, (unsigned long long)sent,
               (unsigned long long)received, (unsigned long long)story.bytes);
}
