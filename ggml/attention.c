/* SPDX-License-Identifier: MIT */
/* attention.c -- an operation of ggml becomes a call of loci.
 *
 *     ggml                                      loci
 *     q [batch][heads][rows][dim], f32          view q; any strides
 *     k, v in f32, f16, bf16 or q8_0            views k and v in their own types
 *     o [batch][rows][heads][dim], f32          view o
 *     mask, f16, added to scores                first and last keys; or a mask of bytes or floats
 *     max_bias: a factor of the mask per head   a mask of floats for each head
 *     softcap                                   softcap:cap=...
 *     sinks                                     sink; its tensor is prepared in each call
 *
 * A mask that is not ranges is written out for some rows at a time, so that its memory is bounded.
 * The bits of a row depend on neither. */
#include "ggml/attention.h"
#include "ggml/mask.h"
#include "ggml/threads.h"

#include <ggml.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/loci.h"

enum {
    MOST_PLANS = 64,
    MOST_WIDTH = 1024,     /* of a head, in loci */
    MOST_HEADS = 4096,     /* far below the limit of loci */
    Q8_NUMBERS = 32,       /* of a block */
    Q8_BYTES = 34,         /* likewise */
    MASK_BYTES = 64 << 20, /* a written-out mask takes more only if a single row does */
    FEW = 2,               /* a row alone costs up to twice what it costs in a tile */
    ROWS = 64              /* of a tile: pieces have a multiple of that */
};

/* ---- Log ------------------------------------------------------------------------------------- */

static bool fail(const char *format, ...)
{
    char text[640];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);

    ggml_log_callback log = NULL;
    void *user = NULL;
    ggml_log_get(&log, &user);
    if (log) log(GGML_LOG_LEVEL_ERROR, text, user);
    return false;
}

/* ---- Memory that grows ----------------------------------------------------------------------- */

struct memory {
    void *at;
    size_t size;
};
/* At least `size` bytes, aligned to 64; NULL: out of memory.  Contents are lost. */
static void *room(struct memory *m, size_t size)
{
    if (size <= m->size && m->at) return m->at;
    const size_t more = (size + size / 4 + 64) / 64 * 64;
    free(m->at);
    *m = (struct memory){ .at = aligned_alloc(64, more), .size = more };
    return m->at;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

/* All that a plan depends on. */
struct shape {
    int heads, kv_heads, dim, value_dim;
    loci_dtype k_dtype, v_dtype;
    float scale, cap;
    int sinks, values_in_keys;
};
struct attention {
    struct threads threads;
    struct {
        struct shape shape;
        loci_plan *plan;
    } plans[MOST_PLANS];
    int count, oldest;
    struct memory tables, work, ranges, mask;
};

static bool same_shape(const struct shape *a, const struct shape *b)
{
    return a->heads == b->heads && a->kv_heads == b->kv_heads && a->dim == b->dim
        && a->value_dim == b->value_dim && a->k_dtype == b->k_dtype && a->v_dtype == b->v_dtype
        && a->scale == b->scale && a->cap == b->cap && a->sinks == b->sinks
        && a->values_in_keys == b->values_in_keys;
}

static const loci_plan *plan_for(struct attention *a, const struct shape *s)
{
    for (int i = 0; i < a->count; i++)
        if (same_shape(&a->plans[i].shape, s)) return a->plans[i].plan;

    char text[64];
    int n = snprintf(text, sizeof text, "%s", s->sinks ? "sink" : "nope");
    if (s->cap != 0) snprintf(text + n, sizeof text - (size_t)n, "+softcap:cap=%.9g", s->cap);
    const char *encoding = s->sinks || s->cap == 0 ? text : text + strlen("nope+");
    const loci_desc desc =
        LOCI_DESC(.encoding = encoding, .full = 1, .scale = s->scale, .heads = s->heads,
                  .kv_heads = s->kv_heads, .dim = s->dim, .value_dim = s->value_dim,
                  .dtype = LOCI_F32, .k_dtype = s->k_dtype, .v_dtype = s->v_dtype,
                  .values_in_keys = s->values_in_keys);
    loci_plan *plan;
    loci_error e;
    if (loci_plan_create(&plan, &desc, &e)) {
        fail("loci: %s\n", e.text);
        return NULL;
    }
    int at = a->count;
    if (at < MOST_PLANS) a->count++;
    else {
        at = a->oldest;
        a->oldest = (at + 1) % MOST_PLANS;
        loci_plan_destroy(a->plans[at].plan);
    }
    a->plans[at].shape = *s;
    a->plans[at].plan = plan;
    return plan;
}

struct attention *loci_attention_create(void)
{
    struct attention *a = calloc(1, sizeof *a);
    if (a) loci_threads_set(&a->threads, 1);
    return a;
}
void loci_attention_destroy(struct attention *a)
{
    if (!a) return;
    for (int i = 0; i < a->count; i++) loci_plan_destroy(a->plans[i].plan);
    loci_threads_end(&a->threads);
    free(a->tables.at);
    free(a->work.at);
    free(a->ranges.at);
    free(a->mask.at);
    free(a);
}
void loci_attention_threads(struct attention *a, int threads)
{
    loci_threads_set(&a->threads, threads);
}

/* ---- What is taken --------------------------------------------------------------------------- */

static bool dtype_of(enum ggml_type type, loci_dtype *dtype)
{
    switch (type) {
    case GGML_TYPE_F32:
        *dtype = LOCI_F32;
        return true;
    case GGML_TYPE_F16:
        *dtype = LOCI_F16;
        return true;
    case GGML_TYPE_BF16:
        *dtype = LOCI_BF16;
        return true;
    case GGML_TYPE_Q8_0:
        *dtype = LOCI_Q8_0;
        return true;
    default:
        return false;
    }
}

/* A stride in bytes as one in numbers; -1: it is between two numbers, or between two blocks. */
static ptrdiff_t numbers(loci_dtype dtype, size_t bytes)
{
    const size_t unit = dtype == LOCI_Q8_0 ? Q8_BYTES : dtype == LOCI_F32 ? 4 : 2;
    if (bytes % unit || bytes > PTRDIFF_MAX / Q8_NUMBERS) return -1;
    return (ptrdiff_t)(bytes / unit * (dtype == LOCI_Q8_0 ? Q8_NUMBERS : 1));
}

/* A tensor as a view of loci; false: its numbers or rows are not where a view can have them. */
static bool view_of(const struct ggml_tensor *t, loci_dtype dtype, loci_view *view)
{
    const size_t element = dtype == LOCI_Q8_0 ? Q8_BYTES : dtype == LOCI_F32 ? 4 : 2;
    const ptrdiff_t batch = numbers(dtype, t->nb[3]), head = numbers(dtype, t->nb[2]),
                    row = numbers(dtype, t->nb[1]);
    if (t->nb[0] != element || batch < 0 || head < 0 || row < 0) return false;
    if (dtype == LOCI_Q8_0 && t->ne[0] % Q8_NUMBERS) return false;
    /* all three 0 would mean dense */
    *view = (loci_view){ .data = t->data,
                         .batch = batch ? batch : LOCI_BROADCAST,
                         .head = head ? head : LOCI_BROADCAST,
                         .row = row ? row : LOCI_BROADCAST };
    return true;
}

struct parameters {
    float scale, max_bias, cap;
};
static struct parameters parameters_of(const struct ggml_tensor *op)
{
    struct parameters p;
    memcpy(&p, op->op_params, sizeof p);
    return p;
}

static bool between(double x, double low, double high) { return x >= low && x <= high; }

bool loci_attention_takes(const struct ggml_tensor *op)
{
    const struct ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *m = op->src[3],
                             *sinks = op->src[4];
    const struct parameters p = parameters_of(op);
    loci_dtype k_dtype, v_dtype;
    loci_view view;
    if (q->type != GGML_TYPE_F32 || op->type != GGML_TYPE_F32 || !dtype_of(k->type, &k_dtype)
        || !dtype_of(v->type, &v_dtype))
        return false;
    if (!view_of(q, LOCI_F32, &view) || !view_of(k, k_dtype, &view) || !view_of(v, v_dtype, &view)
        || !ggml_is_contiguous(op))
        return false;
    if (!between((double)k->ne[0], 1, MOST_WIDTH) || !between((double)v->ne[0], 1, MOST_WIDTH)
        || !between((double)q->ne[2], 1, MOST_HEADS) || q->ne[1] < 1 || k->ne[1] < 1
        || q->ne[3] < 1)
        return false;
    if (q->ne[0] != k->ne[0] || k->ne[1] != v->ne[1] || k->ne[2] < 1 || k->ne[2] != v->ne[2]
        || q->ne[2] % k->ne[2] || q->ne[3] != k->ne[3] || q->ne[3] != v->ne[3])
        return false;
    if (!between(fabs((double)p.scale), 1e-30, 1e30) || !between((double)p.max_bias, 0, 1e4)
        || !(p.cap == 0 || between((double)p.cap, 1e-3, 1e6)))
        return false;
    if (m
        && (m->type != GGML_TYPE_F16 || m->nb[0] != 2 || m->nb[1] % 2 || m->nb[2] % 2
            || m->nb[3] % 2 || m->ne[0] < k->ne[1] || m->ne[1] < q->ne[1] || m->ne[2] < 1
            || q->ne[2] % m->ne[2] || m->ne[3] < 1 || q->ne[3] % m->ne[3]))
        return false;
    return !sinks
        || (sinks->type == GGML_TYPE_F32 && sinks->nb[0] == 4 && sinks->ne[0] == q->ne[2]);
}

/* ---- The call -------------------------------------------------------------------------------- */

/* An operation and the call that it becomes: all rows, without a mask. */
struct operation {
    struct attention *a;
    const struct ggml_tensor *tensor;
    const loci_plan *plan;
    const void *tables;
    loci_call call;
};

static bool run_call(const struct operation *op, loci_call *call)
{
    loci_error e;
    call->error = &e;
    call->work_bytes = loci_workspace(op->plan, call, 0);
    void *work = room(&op->a->work, call->work_bytes);
    if (!work) return fail("loci: out of memory for a workspace of %zu bytes\n", call->work_bytes);
    if (loci_forward(op->plan, op->tables, work, call)) return fail("loci: %s\n", e.text);
    return true;
}

/* Row i of the mask, as head h of batch entry b reads it. */
static const uint16_t *mask_row(const struct operation *op, ptrdiff_t b, int h, ptrdiff_t i)
{
    const struct ggml_tensor *m = op->tensor->src[3];
    return (const uint16_t *)((const char *)m->data + (size_t)(b % m->ne[3]) * m->nb[3]
                              + (size_t)(h % m->ne[2]) * m->nb[2] + (size_t)i * m->nb[1]);
}

/* The factor of the mask of head h, by which ggml computes ALiBi. */
static float slope_of(float max_bias, int heads, int h)
{
    if (max_bias == 0) return 1;
    int power = 1;
    while (2 * power <= heads) power *= 2;
    const float base = powf(2, -max_bias / (float)power),
                between_two = powf(2, -max_bias / 2 / (float)power);
    return h < power ? powf(base, (float)(h + 1)) : powf(between_two, (float)(2 * (h - power) + 1));
}

/* ---- Rows that see few of the keys ----------------------------------------------------------- */

/* True if the rows of a batch entry see so few of the keys between the first and the last one of
 * their tile that each is better off alone: tokens of many sequences in one cache.  counts gets the
 * number of keys of each row. */
static bool is_sparse(const struct operation *op, enum mask_form form, ptrdiff_t b,
                      const int64_t *first, const int64_t *last, int64_t *counts)
{
    const ptrdiff_t rows = op->call.q_len;
    int64_t alone = 0, together = 0, most = 0;
    for (ptrdiff_t i = 0; i < rows; i += ROWS) {
        const ptrdiff_t end = rows - i < ROWS ? rows : i + ROWS;
        int64_t low = INT64_MAX, high = -1;
        for (ptrdiff_t r = i; r < end; r++) {
            const ptrdiff_t span = (ptrdiff_t)(last[r] - first[r] + 1);
            counts[r] = form == MASK_RANGES
                          ? span
                          : loci_mask_count(mask_row(op, b, 0, r) + first[r], span);
            alone += counts[r];
            if (counts[r] > most) most = counts[r];
            if (span > 0 && first[r] < low) low = first[r];
            if (span > 0 && last[r] > high) high = last[r];
        }
        if (high >= 0) together += (end - i) * (high - low + 1);
    }
    return FEW * alone < together && (double)rows * (double)most * sizeof(int32_t) < MASK_BYTES;
}

/* The call of entry b alone. */
static loci_call entry_call(const struct operation *op, ptrdiff_t b)
{
    const struct ggml_tensor *const *src = (const struct ggml_tensor *const *)op->tensor->src;
    loci_call call = op->call;
    call.batch = 1;
    call.q.data = (char *)src[0]->data + (size_t)b * src[0]->nb[3];
    call.k.data = (char *)src[1]->data + (size_t)b * src[1]->nb[3];
    if (call.v.data) call.v.data = (char *)src[2]->data + (size_t)b * src[2]->nb[3];
    call.o.data = (char *)op->tensor->data + (size_t)b * op->tensor->nb[3];
    return call;
}
/* The call from row i on. */
static void skip_rows(const struct operation *op, loci_call *call, ptrdiff_t i, ptrdiff_t rows)
{
    call->q_len = rows;
    call->q.data = (char *)call->q.data + (size_t)i * op->tensor->src[0]->nb[1];
    call->o.data = (char *)call->o.data + (size_t)i * op->tensor->nb[2];
}

/* Rows whose ranges overlap are a call, on the keys that they see.  Ranges are then counted from
 * the first of these. */
static bool run_apart(const struct operation *op, ptrdiff_t b, int64_t *first, int64_t *last)
{
    const struct ggml_tensor *k = op->tensor->src[1], *v = op->tensor->src[2];
    const ptrdiff_t rows = op->call.q_len;
    for (ptrdiff_t i = 0, end; i < rows; i = end) {
        int64_t low = first[i], high = last[i];
        for (end = i + 1; end < rows && first[end] <= high && last[end] >= low; end++) {
            if (first[end] < low) low = first[end];
            if (last[end] > high) high = last[end];
        }
        for (ptrdiff_t r = i; r < end; r++) {
            first[r] -= low;
            last[r] -= low;
        }
        loci_call call = entry_call(op, b);
        skip_rows(op, &call, i, end - i);
        call.k_len = (ptrdiff_t)(high - low + 1);
        call.k.data = (char *)call.k.data + (size_t)low * k->nb[1];
        if (call.v.data) call.v.data = (char *)call.v.data + (size_t)low * v->nb[1];
        call.k_first = first + i;
        call.k_last = last + i;
        if (!run_call(op, &call)) return false;
    }
    return true;
}

/* Each row of entry b becomes a batch entry, whose keys are pages of one key. */
static bool run_alone(const struct operation *op, ptrdiff_t b, const int64_t *counts)
{
    loci_call call = entry_call(op, b);
    const ptrdiff_t rows = call.q_len, keys = call.k_len;
    int64_t most = 1;
    for (ptrdiff_t i = 0; i < rows; i++)
        if (counts[i] > most) most = counts[i];
    int32_t *table = room(&op->a->mask, (size_t)(rows * most) * sizeof *table);
    if (!table) return fail("loci: out of memory for the keys of %td rows\n", rows);
    for (ptrdiff_t i = 0; i < rows; i++)
        loci_mask_list(mask_row(op, b, 0, i), keys, table + i * most);

    const loci_pages pages = { .table = table, .length = 1, .entry = (ptrdiff_t)most };
    call.batch = rows;
    call.q_len = 1;
    call.k_len = (ptrdiff_t)most;
    call.k_lens = counts;
    call.pages = &pages;
    call.q.batch = call.q.row;
    call.k.batch = call.k.row;
    call.v.batch = call.v.row;
    call.o.batch = call.o.row;
    return run_call(op, &call);
}

/* ---- Masks ----------------------------------------------------------------------------------- */

/* How a mask is written out: as bytes if it only hides keys, else as floats; once, or for each
 * head. */
struct written {
    bool bytes, each_head;
    const int64_t *first, *last; /* ranges of all rows of all entries, or NULL */
};

/* Rows i .. i + rows - 1 of entry b. */
static bool run_rows(const struct operation *op, const struct written *w, ptrdiff_t b, ptrdiff_t i,
                     ptrdiff_t rows)
{
    const struct ggml_tensor *const *src = (const struct ggml_tensor *const *)op->tensor->src;
    const float max_bias = parameters_of(op->tensor).max_bias;
    loci_call call = entry_call(op, b);
    const ptrdiff_t keys = call.k_len, all = call.q_len;
    const int heads = (int)src[0]->ne[2], copies = w->each_head ? heads : 1;
    const size_t size = w->bytes ? 1 : sizeof(float);
    char *to = room(&op->a->mask, (size_t)(copies * rows * keys) * size);
    if (!to) return fail("loci: out of memory for the mask of %td rows and %td keys\n", rows, keys);
    for (int h = 0; h < copies; h++)
        for (ptrdiff_t r = 0; r < rows; r++) {
            const uint16_t *from = mask_row(op, b, h, i + r);
            void *at = to + (size_t)((h * rows + r) * keys) * size;
            if (w->bytes) loci_mask_seen(from, keys, at);
            else loci_mask_added(from, keys, slope_of(max_bias, heads, h), at);
        }

    skip_rows(op, &call, i, rows);
    call.mask_kind = w->bytes ? LOCI_MASK_SEEN : LOCI_MASK_ADDED;
    call.mask = (loci_view){ .data = to,
                             .batch = LOCI_BROADCAST,
                             .head = w->each_head ? rows * keys : LOCI_BROADCAST,
                             .row = keys };
    if (w->first) {
        call.k_first = w->first + b * all + i;
        call.k_last = w->last + b * all + i;
    }
    return run_call(op, &call);
}

/* One call if the mask is ranges.  Else calls of some rows each, whose masks fit MASK_BYTES. */
static bool run_masked(const struct operation *op)
{
    const struct ggml_tensor *m = op->tensor->src[3];
    loci_call call = op->call;
    const ptrdiff_t rows = call.q_len, keys = call.k_len, batch = call.batch;
    const bool by_head = m->ne[2] > 1; /* ranges would be those of one head */
    struct written w = { .bytes = false, .each_head = true };
    if (!by_head) {
        enum mask_form form = MASK_RANGES;
        int64_t *first = room(&op->a->ranges, (size_t)(3 * batch * rows) * sizeof *first);
        if (!first) return fail("loci: out of memory for the mask of %td rows\n", rows);
        int64_t *last = first + batch * rows;
        for (ptrdiff_t b = 0; b < batch; b++) {
            const enum mask_form entry =
                loci_mask_read(mask_row(op, b, 0, 0), (ptrdiff_t)(m->nb[1] / 2), rows, keys,
                               first + b * rows, last + b * rows);
            if (entry > form) form = entry;
        }
        int64_t *counts = last + batch * rows;
        bool sparse = form != MASK_NUMBERS && rows > 1;
        for (ptrdiff_t b = 0, at = 0; b < batch && sparse; b++, at += rows)
            sparse = is_sparse(op, form, b, first + at, last + at, counts + at);
        for (ptrdiff_t b = 0, at = 0; b < batch && sparse; b++, at += rows)
            if (!(form == MASK_RANGES ? run_apart(op, b, first + at, last + at)
                                      : run_alone(op, b, counts + at)))
                return false;
        if (sparse) return true;
        call.k_first = first;
        call.k_last = last;
        call.per_batch = 1;
        if (form == MASK_RANGES) return run_call(op, &call);
        w = (struct written){ .bytes = form == MASK_HOLES,
                              .each_head =
                                  form == MASK_NUMBERS && parameters_of(op->tensor).max_bias > 0,
                              .first = first,
                              .last = last };
    }
    const ptrdiff_t copies = w.each_head ? (ptrdiff_t)op->tensor->src[0]->ne[2] : 1,
                    row = copies * keys * (w.bytes ? 1 : (ptrdiff_t)sizeof(float)),
                    fit = MASK_BYTES / row / ROWS * ROWS, most = fit < ROWS ? ROWS : fit;
    for (ptrdiff_t b = 0; b < batch; b++)
        for (ptrdiff_t i = 0; i < rows; i += most)
            if (!run_rows(op, &w, b, i, rows - i < most ? rows - i : most)) return false;
    return true;
}

/* Do keys contain the values, as their first channels? */
static bool values_in_keys(const struct ggml_tensor *k, const struct ggml_tensor *v)
{
    return v->data == k->data && v->type == k->type && v->ne[0] <= k->ne[0] && v->nb[1] == k->nb[1]
        && v->nb[2] == k->nb[2] && v->nb[3] == k->nb[3];
}

bool loci_attention_run(struct attention *a, struct ggml_tensor *tensor)
{
    const struct ggml_tensor *q = tensor->src[0], *k = tensor->src[1], *v = tensor->src[2],
                             *sinks = tensor->src[4];
    const struct parameters p = parameters_of(tensor);
    if (!loci_attention_takes(tensor))
        return fail("loci: %s is an attention that loci does not take\n", tensor->name);
    struct shape shape = { .heads = (int)q->ne[2],
                           .kv_heads = (int)k->ne[2],
                           .dim = (int)k->ne[0],
                           .value_dim = (int)v->ne[0],
                           .scale = p.scale,
                           .cap = p.cap,
                           .sinks = sinks != NULL,
                           .values_in_keys = values_in_keys(k, v) };
    dtype_of(k->type, &shape.k_dtype);
    dtype_of(v->type, &shape.v_dtype);
    struct operation op = { .a = a, .tensor = tensor, .plan = plan_for(a, &shape) };
    if (!op.plan) return false;

    loci_host host;
    op.call = (loci_call)LOCI_CALL(.batch = (ptrdiff_t)q->ne[3], .q_len = (ptrdiff_t)q->ne[1],
                                   .k_len = (ptrdiff_t)k->ne[1],
                                   .host = loci_threads_host(&a->threads, &host));
    view_of(q, LOCI_F32, &op.call.q);
    view_of(k, shape.k_dtype, &op.call.k);
    if (!shape.values_in_keys) view_of(v, shape.v_dtype, &op.call.v);
    op.call.o = (loci_view){ .data = tensor->data,
                             .batch = (ptrdiff_t)(tensor->nb[3] / sizeof(float)),
                             .head = (ptrdiff_t)(tensor->nb[1] / sizeof(float)),
                             .row = (ptrdiff_t)(tensor->nb[2] / sizeof(float)) };

    const ptrdiff_t range = op.call.q_len > op.call.k_len ? op.call.q_len : op.call.k_len;
    void *tables = room(&a->tables, loci_tables_size(op.plan, range));
    if (!tables) return fail("loci: out of memory for tables\n");
    const void *tensors[] = { sinks ? sinks->data : NULL };
    const loci_status status = loci_prepare(op.plan, range, tensors, tables);
    if (status) return fail("loci: the sinks cannot be prepared (status %d)\n", (int)status);
    op.tables = tables;
    return tensor->src[3] ? run_masked(&op) : run_call(&op, &op.call);
}
