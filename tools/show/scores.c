/* SPDX-License-Identifier: MIT */
/* scores.c -- scores and weights computed by the engine.  A row that sees one key has the score of
 * the pair as its lse, to the last bit.  Where keys in between matter, scores follow from weights
 * and lse of whole rows. */
#include <stdlib.h>
#include <string.h>

#include "loci/layers.h"
#include "show/subject.h"

enum { MOST_TABLES = 1 << 28 };

/* Buffers of one call, freed together. */
struct buffers {
    int n;
    void *own[16];
};
static void *buffers_alloc(struct buffers *r, ptrdiff_t count, size_t each)
{
    return r->own[r->n++] = draw_alloc((size_t)count, each);
}
static void room_free(struct buffers *r)
{
    while (r->n > 0) free(r->own[--r->n]);
}
/* 64-byte aligned lines within draw_alloc() memory. */
static void *alloc_lines(struct buffers *r, size_t bytes)
{
    char *p = buffers_alloc(r, (ptrdiff_t)bytes + 64, 1);
    return p + (64 - (uintptr_t)p % 64) % 64;
}

/* Tables for distances up to `reach`, reused by later calls. */
static loci_status prepare(struct show *s, struct side *side, ptrdiff_t reach, loci_error *e)
{
    if (side->tables && reach <= side->reach) return LOCI_OK;
    const size_t bytes = loci_tables_size(side->plan, reach);
    CHECK(e, bytes && bytes <= MOST_TABLES, LOCI_BAD_ARG,
          "tables for distances up to %td would take more than 256 MiB", reach);
    free(side->tables);
    side->tables = aligned_alloc(64, bytes);
    /* otherwise an out-of-memory error would read as a refusal */
    if (!side->tables) draw_no_memory();
    side->reach = reach;
    const void *const *data = (const void *const *)s->data;
    if (side == &s->plain) data = NULL;
    if (side == &s->turn) data += s->turn_tensor;
    return loci_prepare_on(NULL, side->plan, reach, data, side->tables, e);
}

/* INPUT tensors of a call with this number of entries, queries and keys. at [batch][axes][rows]
 * gives tape's states, which are those of its first layer. */
static loci_status inputs(struct show *s, struct buffers *r, ptrdiff_t batch, ptrdiff_t rows,
                          const double *q_at, const double *k_at, const void **list, loci_error *e)
{
    for (int i = 0; i < s->tensors; i++) {
        const loci_tensor *t = &s->tensor[i];
        list[i] = s->data[i];
        if (s->data[i]) continue;
        ptrdiff_t n = 1;
        for (int k = 0; k < t->rank; k++)
            n *= t->shape[k] == LOCI_DIM_BATCH ? batch : t->shape[k] < 0 ? rows : t->shape[k];
        double *x = buffers_alloc(r, n, sizeof *x);
        list[i] = x;
        if (t->rank < 5) {
            const loci_source source = loci_tensor_source(s->causal.plan, i);
            if (!strncmp(t->name, "log_", 4)) show_gates(s, x, n);
            else show_normal(s, STREAM_GATE, x, n);
            for (ptrdiff_t k = 0; k < n && source == LOCI_SOURCE_STRENGTH; k++)
                x[k] = 2 / (1 + exp(-x[k]));
            for (ptrdiff_t k = 0; k < n && source == LOCI_SOURCE_UNIT; k += s->dim) {
                double sum = 1e-30;
                for (int d = 0; d < s->dim; d++) sum += x[k + d] * x[k + d];
                for (int d = 0; d < s->dim; d++) x[k + d] /= sqrt(sum);
            }
            continue;
        }
        const double *at = t->shape[2] == LOCI_DIM_QUERIES ? q_at : k_at;
        int64_t *pos = buffers_alloc(r, batch * rows, sizeof *pos);
        for (ptrdiff_t k = 0; k < batch * rows; k++) pos[k] = (int64_t)at[k];
        const loci_layer layer = LOCI_LAYER(.dtype = LOCI_F64, .batch = batch, .rows = rows,
                                            .heads = s->heads, .width = s->dim, .error = e);
        TRY(loci_tape_start(&layer, 0, 0, pos, 1, (loci_view){ .data = x }));
    }
    return LOCI_OK;
}

/* Sets the places of tokens in the form of a call: [batch][axes][rows], or [batch][rows] whole
 * numbers. */
static void put_places(const struct show *s, struct buffers *r, loci_call *c, const double *q_at,
                       const double *k_at)
{
    const ptrdiff_t q_n = c->batch * c->q_len, k_n = c->batch * c->k_len;
    c->per_batch = 1;
    if (s->axes > 1) {
        c->q_coord = q_at;
        c->k_coord = k_at;
        return;
    }
    int64_t *q = buffers_alloc(r, q_n, sizeof *q), *k = buffers_alloc(r, k_n, sizeof *k);
    for (ptrdiff_t i = 0; i < q_n; i++) q[i] = (int64_t)q_at[i];
    for (ptrdiff_t i = 0; i < k_n; i++) k[i] = (int64_t)k_at[i];
    c->q_pos = q;
    c->k_pos = k;
}

/* The largest distance of pairs, and of tokens of a sequence, whose places ascend. */
static ptrdiff_t pairs_reach(const struct show *s, const struct pairs *p)
{
    double reach = 1;
    for (ptrdiff_t i = 0; i < p->n && s->axes == 1; i++)
        reach = fmax(reach, fabs(p->q_at[i] - p->k_at[i]));
    return (ptrdiff_t)reach;
}
static ptrdiff_t reach_of(const struct show *s, const double *at, ptrdiff_t n)
{
    return s->axes == 1 && n > 1 ? (ptrdiff_t)(at[n - 1] - at[0]) : n;
}

/* A row of zeros serves all of them. */
static loci_view numbers_or_zero(struct buffers *r, const double *x, ptrdiff_t width)
{
    if (x) return (loci_view){ .data = (void *)(uintptr_t)x };
    return (loci_view){ buffers_alloc(r, width, sizeof(double)), LOCI_BROADCAST, LOCI_BROADCAST,
                        LOCI_BROADCAST };
}

/* Attention of a call that has its places already. */
struct answer {
    double *lse, *rem, *weights;
};
static loci_status attend(struct show *s, struct side *side, struct buffers *r, loci_call *c,
                          ptrdiff_t reach, struct answer *a, loci_error *e)
{
    const bool plain = side == &s->plain;
    const ptrdiff_t rows = c->batch * s->heads * c->q_len;
    c->error = e;
    c->o.data = buffers_alloc(r, rows * s->dim, sizeof(double));
    a->lse = buffers_alloc(r, rows, sizeof(double));
    if (s->remainder && !plain) c->rem = a->rem = a->lse;
    else c->lse = a->lse;
    if ((s->places & LOCI_PLACE_STATE) && !plain)
        c->ae = buffers_alloc(r, rows * s->dim, sizeof(double));
    TRY(prepare(s, side, reach, e));
    e->text[0] = 0;
    const size_t bytes = loci_workspace(side->plan, c, 1);
    if (!bytes) return e->text[0] ? LOCI_BAD_ARG : loci_fail(e, LOCI_BAD_ARG, "impossible call");
    void *work = alloc_lines(r, bytes);
    TRY(loci_forward(side->plan, side->tables, work, c));
    if (!a->weights) return LOCI_OK;
    return loci_weights(side->plan, side->tables, work, c, (loci_view){ .data = a->weights });
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

/* Each pair is a batch entry of its own. */
static loci_status pairs(struct show *s, struct side *side, const struct pairs *p, double *out,
                         loci_error *e)
{
    struct buffers r = { 0 };
    struct answer a = { 0 };
    const ptrdiff_t width = (ptrdiff_t)s->heads * s->dim;
    const void **list = buffers_alloc(&r, s->tensors + 1, sizeof *list);
    loci_call c =
        LOCI_CALL(.batch = p->n, .q_len = 1, .k_len = 1, .q = numbers_or_zero(&r, p->q, width),
                  .k = numbers_or_zero(&r, p->k, width), .v = numbers_or_zero(&r, NULL, width),
                  .tensors = (const void *const *)list);
    loci_status status = LOCI_OK;
    const bool plain = side == &s->plain;
    if (!plain) status = inputs(s, &r, p->n, 1, p->q_at, p->k_at, list, e);
    if (!plain) put_places(s, &r, &c, p->q_at, p->k_at);
    if (s->sinks && !plain) a.weights = buffers_alloc(&r, p->n * s->heads, sizeof(double));
    const ptrdiff_t reach = plain ? 1 : pairs_reach(s, p);
    if (!status) status = attend(s, side, &r, &c, reach, &a, e);
    for (ptrdiff_t i = 0; !status && i < p->n * s->heads; i++)
        out[i] = a.weights ? log(a.weights[i]) + a.lse[i] : a.lse[i];
    room_free(&r);
    return status;
}

/* An embedding is added to both rows before the product. */
static loci_status embedded(struct show *s, const struct pairs *p, double *out, loci_error *e)
{
    struct buffers r = { 0 };
    const ptrdiff_t n = p->n * s->dim;
    double *q = buffers_alloc(&r, n, sizeof *q), *k = buffers_alloc(&r, n, sizeof *k);
    int64_t *at = buffers_alloc(&r, p->n, sizeof *at);
    for (ptrdiff_t i = 0; i < p->n; i++) at[i] = (int64_t)p->q_at[i];
    loci_status status = show_embed(s, p->n, p->q, at, q, e);
    for (ptrdiff_t i = 0; i < p->n; i++) at[i] = (int64_t)p->k_at[i];
    if (!status) status = show_embed(s, p->n, p->k, at, k, e);
    const struct pairs added = { p->n, q, k, p->q_at, p->k_at };
    if (!status) status = pairs(s, &s->plain, &added, out, e);
    room_free(&r);
    return status;
}

loci_status show_pairs(struct show *s, const struct pairs *p, double *out, loci_error *e)
{
    if (s->embeds) return embedded(s, p, out, e);
    return pairs(s, &s->all, p, out, e);
}

loci_status show_plain(struct show *s, const struct pairs *p, double *out, loci_error *e)
{
    return pairs(s, &s->plain, p, out, e);
}

/* ---- Whole sequences ------------------------------------------------------------------------- */

static ptrdiff_t rows_of(const struct tokens *t) { return t->last ? 1 : t->n; }

/* One call. out receives the weights, [heads][rows][n], and rows the lse or the remainder. */
static loci_status sequence(struct show *s, struct side *side, const struct tokens *t, double *out,
                            double *rows, loci_error *e)
{
    struct buffers r = { 0 };
    struct answer a = { .weights = out };
    const ptrdiff_t width = t->n * s->heads * s->dim, q_len = rows_of(t);
    const void **list = buffers_alloc(&r, s->tensors + 1, sizeof *list);
    loci_call c =
        LOCI_CALL(.batch = 1, .q_len = q_len, .k_len = t->n, .q = numbers_or_zero(&r, t->q, width),
                  .k = numbers_or_zero(&r, t->k, width), .v = numbers_or_zero(&r, t->v, width),
                  .tensors = (const void *const *)list);
    loci_status status = LOCI_OK;
    const bool plain = side == &s->plain;
    if (!plain && !s->embeds) status = inputs(s, &r, 1, t->n, t->at, t->at, list, e);
    if (!plain) put_places(s, &r, &c, t->at + t->n - q_len, t->at);
    const ptrdiff_t reach = plain ? t->n : reach_of(s, t->at, t->n);
    if (!status) status = attend(s, side, &r, &c, reach, &a, e);
    if (!status && rows) memcpy(rows, a.lse, (size_t)(s->heads * q_len) * sizeof *rows);
    room_free(&r);
    return status;
}

/* Scores of rows for encodings where the keys in between matter.  Weights below e^-60 of the
 * largest are 0, so their scores are lost. */
static loci_status ordered_scores(struct show *s, const struct tokens *t, double *out,
                                  loci_error *e)
{
    const ptrdiff_t count = rows_of(t), first = t->n - count;
    double *rows = draw_alloc((size_t)(s->heads * count), sizeof *rows);
    const loci_status status = sequence(s, &s->causal, t, out, rows, e);
    for (ptrdiff_t h = 0; !status && h < s->heads; h++)
        for (ptrdiff_t i = 0; i < count; i++)
            for (ptrdiff_t j = 0; j < t->n; j++) {
                double *x = &out[(h * count + i) * t->n + j];
                const bool sees = j < first + i || (j == first + i && !s->causal.plan->strict);
                *x = sees ? log(*x) + (s->remainder ? 0 : rows[h * count + i]) : NAN;
            }
    free(rows);
    return status;
}

/* Computes each query against all keys as a call of pairs. */
static loci_status paired_scores(struct show *s, const struct tokens *t, bool plain, double *out,
                                 loci_error *e)
{
    struct buffers r = { 0 };
    const ptrdiff_t n = t->n, width = (ptrdiff_t)s->heads * s->dim;
    double *q = buffers_alloc(&r, n * width, sizeof *q),
           *k = buffers_alloc(&r, n * width, sizeof *k);
    double *q_at = buffers_alloc(&r, n * s->axes, sizeof *q_at);
    double *k_at = buffers_alloc(&r, n * s->axes, sizeof *k_at);
    double *row = buffers_alloc(&r, n * s->heads, sizeof *row);
    loci_status status = LOCI_OK;
    for (ptrdiff_t j = 0; j < n; j++)
        for (int h = 0; h < s->heads; h++)
            for (int c = 0; c < s->dim && t->k; c++)
                k[(j * s->heads + h) * s->dim + c] = t->k[(h * n + j) * s->dim + c];
    for (ptrdiff_t j = 0; j < n; j++)
        for (int a = 0; a < s->axes; a++) k_at[j * s->axes + a] = t->at[a * n + j];
    for (ptrdiff_t i = 0; i < n && !status; i++) {
        for (ptrdiff_t j = 0; j < n; j++) {
            for (int h = 0; h < s->heads; h++)
                for (int c = 0; c < s->dim && t->q; c++)
                    q[(j * s->heads + h) * s->dim + c] = t->q[(h * n + i) * s->dim + c];
            for (int a = 0; a < s->axes; a++) q_at[j * s->axes + a] = t->at[a * n + i];
        }
        const struct pairs p = { n, q, k, q_at, k_at };
        status = plain ? show_plain(s, &p, row, e) : show_pairs(s, &p, row, e);
        for (ptrdiff_t j = 0; j < n && !status; j++)
            for (int h = 0; h < s->heads; h++) out[(h * n + i) * n + j] = row[j * s->heads + h];
    }
    room_free(&r);
    return status;
}

loci_status show_scores(struct show *s, const struct tokens *t, bool plain, double *out,
                        loci_error *e)
{
    if (s->in_order && !plain) return ordered_scores(s, t, out, e);
    return paired_scores(s, t, plain, out, e);
}

/* For embeddings, q and k get their rows first.  Positions are those of tokens. */
loci_status show_weights(struct show *s, const struct tokens *t, bool plain, double *out,
                         double *rem, loci_error *e)
{
    if (plain || s->embeds) {
        /* nope, causal: the encoding's own plan has another text */
        struct side side = { 0 };
        const loci_desc d = LOCI_DESC(.heads = s->heads, .dim = s->dim, .dtype = LOCI_F64,
                                      .scale = s->plain.plan->scale);
        TRY(loci_plan_create(&side.plan, &d, e));
        struct show alone = { .heads = s->heads, .dim = s->dim, .axes = 1, .plain = side };
        double *q = draw_alloc((size_t)(t->n * s->heads * s->dim), sizeof *q);
        double *k = draw_alloc((size_t)(t->n * s->heads * s->dim), sizeof *k);
        struct tokens moved = *t;
        loci_status status = LOCI_OK;
        if (!plain) {
            int64_t *at = draw_alloc((size_t)t->n, sizeof *at);
            for (ptrdiff_t i = 0; i < t->n; i++) at[i] = (int64_t)t->at[i];
            status = show_embed(s, t->n, t->q, at, q, e);
            if (!status) status = show_embed(s, t->n, t->k, at, k, e);
            moved.q = q;
            moved.k = k;
            free(at);
        }
        if (!status) status = sequence(&alone, &alone.plain, &moved, out, NULL, e);
        loci_plan_destroy(side.plan);
        free(alone.plain.tables);
        free(q);
        free(k);
        return status;
    }
    double *rows = draw_alloc((size_t)(s->heads * t->n), sizeof *rows);
    const loci_status status = sequence(s, &s->causal, t, out, rows, e);
    if (!status && rem && s->remainder) memcpy(rem, rows, (size_t)(s->heads * t->n) * sizeof *rem);
    free(rows);
    return status;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

loci_status show_embed(struct show *s, ptrdiff_t n, const double *x, const int64_t *at, double *out,
                       loci_error *e)
{
    const ptrdiff_t width = s->table.plan->model_dim;
    if (x) memcpy(out, x, (size_t)(n * width) * sizeof *out);
    else memset(out, 0, (size_t)(n * width) * sizeof *out);
    TRY(prepare(s, &s->table, s->len, e));
    const loci_call c =
        LOCI_CALL(.batch = 1, .q_len = n, .k_len = n, .q_pos = at, .k_pos = at, .error = e);
    return loci_embed(s->table.plan, s->table.tables, &c, (loci_view){ .data = out },
                      (loci_view){ .data = out });
}

loci_status show_rotate(struct show *s, ptrdiff_t n, const double *x, const double *at, double *y,
                        loci_error *e)
{
    struct buffers r = { 0 };
    struct side *side = s->turn.plan ? &s->turn : &s->all;
    const void **list = buffers_alloc(&r, s->tensors + 1, sizeof *list);
    loci_call c = LOCI_CALL(.batch = n, .q_len = 1, .k_len = 1, .error = e,
                            .tensors = (const void *const *)list);
    loci_status status = inputs(s, &r, n, 1, at, at, list, e);
    if (side == &s->turn) c.tensors += s->turn_tensor;
    put_places(s, &r, &c, at, at);
    if (!status) status = prepare(s, side, 1, e);
    e->text[0] = 0;
    const size_t bytes = status ? 0 : loci_workspace(side->plan, &c, 0);
    if (!status && !bytes)
        status = e->text[0] ? LOCI_BAD_ARG : loci_fail(e, LOCI_BAD_ARG, "impossible call");
    if (!status) {
        const loci_view from = { .data = (void *)(uintptr_t)x }, to = { .data = y };
        status =
            loci_rotate(side->plan, side->tables, alloc_lines(&r, bytes), &c, LOCI_QUERY, from, to);
    }
    room_free(&r);
    return status;
}

void show_places(const struct show *s, ptrdiff_t n, double first, double *at)
{
    for (int a = 0; a < s->axes; a++)
        for (ptrdiff_t i = 0; i < n; i++) at[a * n + i] = first + (double)i;
}

/* ---- By distance ----------------------------------------------------------------------------- */

loci_status show_bias(struct show *s, ptrdiff_t n, double *out, bool *nothing, loci_error *e)
{
    struct buffers r = { 0 };
    loci_status status;
    if (s->in_order) {
        double *at = buffers_alloc(&r, n, sizeof *at);
        double *all = buffers_alloc(&r, s->heads * n, sizeof *all);
        show_places(s, n, 0, at);
        const struct tokens t = { .n = n, .at = at, .last = true };
        status = show_scores(s, &t, false, all, e);
        for (ptrdiff_t d = 0; d < n; d++)
            for (int h = 0; h < s->heads; h++) out[d * s->heads + h] = all[h * n + n - 1 - d];
    } else {
        double *q_at = buffers_alloc(&r, n * s->axes, sizeof *q_at);
        double *k_at = buffers_alloc(&r, n * s->axes, sizeof *k_at);
        for (ptrdiff_t d = 0; d < n; d++)
            for (int a = 0; a < s->axes; a++) {
                q_at[d * s->axes + a] = (double)(n - 1);
                k_at[d * s->axes + a] = (double)(n - 1 - d);
            }
        const struct pairs p = { .n = n, .q_at = q_at, .k_at = k_at };
        status = show_pairs(s, &p, out, e);
    }
    *nothing = true;
    for (ptrdiff_t i = s->heads; !status && i < n * s->heads; i++)
        *nothing = *nothing && (out[i] == out[i % s->heads] || isnan(out[i]));
    room_free(&r);
    return status;
}
