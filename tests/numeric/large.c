/* SPDX-License-Identifier: MIT */
/* large.c -- shapes beyond 32 bits.
 *
 *     strides      rows, heads and batch entries more than 2^33 numbers apart have the bits of
 *                  dense ones, in every stage and every gradient; the memory between them is
 *                  reserved and never touched
 *     long texts   2^20 rows in the workspace of 2^16, with the bits of their parts
 *     tables       a larger distance never needs less memory: nothing wraps around
 *     too large    every function rejects shapes and strides whose products do not fit, with a
 *                  sentence, and writes nothing */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "loci/convert.h"
#include "loci/layers.h"
#include "loci/positions.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
/* ---- Strides --------------------------------------------------------------------------------- */

enum { VIEWS = 8 };
struct problem {
    const struct walk *w;
    loci_dtype dtype;
    size_t real, stored; /* bytes of a number of tensors, and of views */
    ptrdiff_t row;       /* from a row to the next; 0: dense */
    struct field {
        loci_view view;
        size_t mapped;
        ptrdiff_t heads, len;
        int width;
    } field[VIEWS];
    int fields;
    struct mem mem;
};

static void *own(struct problem *p, size_t count) { return mem_alloc(&p->mem, count * p->real); }
static void put(const struct problem *p, void *x, ptrdiff_t i, double to)
{
    if (p->real == 8) ((double *)x)[i] = to;
    else ((float *)x)[i] = (float)to;
}
static void store(const struct problem *p, void *x, ptrdiff_t i, double to)
{
    loci_round(p->dtype, 1, &to, (char *)x + (size_t)i * p->stored);
}
static ptrdiff_t place(const struct field *f, ptrdiff_t b, ptrdiff_t h, ptrdiff_t i)
{
    return b * f->view.batch + h * f->view.head + i * f->view.row;
}

static size_t span(const struct problem *p, const struct field *f)
{
    return (size_t)(place(f, p->w->call.batch - 1, f->heads - 1, f->len - 1) + f->width)
         * p->stored;
}
/* A view of [batch][heads][len][width], with the numbers of `from` unless that is NULL. */
static loci_view view(struct problem *p, const double *from, ptrdiff_t heads, ptrdiff_t len,
                      int width)
{
    struct field *f = &p->field[p->fields++];
    const ptrdiff_t row = p->row ? p->row : width;
    *f = (struct field){ .view = { NULL, (len * row + (p->row ? 5 : 0)) * heads + (p->row ? 3 : 0),
                                   len * row + (p->row ? 5 : 0), row },
                         .heads = heads,
                         .len = len,
                         .width = width };
    const size_t bytes = span(p, f);
    if (p->row) {
        f->view.data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (f->view.data == MAP_FAILED) exit(2);
        f->mapped = bytes;
    } else {
        f->view.data = mem_alloc(&p->mem, bytes);
    }
    for (ptrdiff_t b = 0; b < p->w->call.batch; b++)
        for (ptrdiff_t h = 0; h < heads; h++)
            for (ptrdiff_t i = 0; i < len; i++)
                for (int n = 0; n < width; n++)
                    store(p, f->view.data, place(f, b, h, i) + n,
                          from ? from[((b * heads + h) * len + i) * width + n] : 77);
    return f->view;
}
static bool same(const struct problem *a, const struct problem *b)
{
    for (int k = 0; k < a->fields; k++) {
        const struct field *f = &a->field[k], *g = &b->field[k];
        for (ptrdiff_t e = 0; e < a->w->call.batch; e++)
            for (ptrdiff_t h = 0; h < f->heads; h++)
                for (ptrdiff_t i = 0; i < f->len; i++)
                    if (memcmp((const char *)f->view.data + (size_t)place(f, e, h, i) * a->stored,
                               (const char *)g->view.data + (size_t)place(g, e, h, i) * a->stored,
                               (size_t)f->width * a->stored))
                        return false;
    }
    return true;
}
static void release(struct problem *p)
{
    for (int k = 0; k < p->fields; k++)
        if (p->field[k].mapped) munmap(p->field[k].view.data, p->field[k].mapped);
    mem_release(&p->mem, 0);
}

static void *converted(struct problem *p, const double *x, size_t count)
{
    void *to = own(p, count);
    for (size_t i = 0; i < count; i++) put(p, to, (ptrdiff_t)i, x[i]);
    return to;
}

/* The problem of the walk, forward and backward.  `sums` are the results without a view: lse or
 * rem, ae, gradients of tensors. */
struct sums {
    void *x[3 + WALK_TENSORS];
    size_t count[3 + WALK_TENSORS];
    int n;
};
static void *sum(struct problem *p, struct sums *s, size_t count)
{
    s->count[s->n] = count;
    return s->x[s->n++] = own(p, count);
}
static loci_status solve(struct problem *p, struct sums *s)
{
    const struct walk *w = p->w;
    loci_desc d = w->desc;
    d.dtype = p->dtype;
    loci_error e;
    loci_plan *plan;
    loci_status status = loci_plan_create(&plan, &d, &e);
    if (status) return status;
    const void *data[WALK_TENSORS];
    void *ddata[WALK_TENSORS];
    for (int t = 0; t < w->tensors; t++) {
        const int k = w->inputs - w->tensors + t;
        data[t] = converted(p, w->input[k].x, w->input[k].count);
        ddata[t] = w->tensor[t].role == LOCI_FIXED ? NULL : sum(p, s, w->input[k].count);
    }
    loci_call c = w->call;
    loci_grad g = LOCI_GRAD(.dtensors = ddata);
    const int value = d.value_dim ? d.value_dim : d.dim, kv = d.kv_heads ? d.kv_heads : d.heads;
    const ptrdiff_t heads = w->stage == LOCI_EMBED ? 1 : d.heads;
    c.tensors = data;
    c.lse = c.rem = c.ae = NULL;
    c.error = &e;
    const bool attends = w->stage == LOCI_ATTENTION || w->stage == LOCI_LINEAR_ATTENTION;
    c.q = view(p, w->input[0].x, heads, c.q_len, d.dim);
    c.o = view(p, NULL, heads, c.q_len, attends ? value : d.dim);
    g.dout = view(p, w->grad.dout.data, heads, c.q_len, attends ? value : d.dim);
    g.dq = view(p, NULL, heads, c.q_len, d.dim);
    if (attends) {
        c.k = view(p, w->input[1].x, kv, c.k_len, walk_key_dim(&d));
        c.v = view(p, w->input[2].x, kv, c.k_len, value);
        g.dk = view(p, NULL, kv, c.k_len, walk_key_dim(&d));
        g.dv = view(p, NULL, kv, c.k_len, value);
    }
    const bool stick = strstr(w->encoding, "sba") != NULL;
    if (w->row_count) {
        *(stick ? &c.rem : &c.lse) = sum(p, s, w->row_count);
        *(stick ? &g.drem : &g.dlse) =
            converted(p, stick ? w->grad.drem : w->grad.dlse, w->row_count);
    }
    if (w->state_count) {
        c.ae = sum(p, s, w->state_count);
        g.dae = converted(p, w->grad.dae, w->state_count);
    }
    void *tables = mem_alloc(&p->mem, loci_tables_size(plan, 1000));
    void *work = mem_alloc(&p->mem, loci_workspace(plan, &c, 1));
    status = loci_prepare(plan, 1000, data, tables);
    switch (w->stage) {
    case LOCI_ATTENTION:
        if (!status) status = loci_forward(plan, tables, work, &c);
        if (!status) status = loci_backward(plan, tables, work, &c, &g);
        break;
    case LOCI_LINEAR_ATTENTION:
        if (!status) status = loci_linear_forward(plan, tables, work, &c, NULL, NULL);
        if (!status) status = loci_linear_backward(plan, tables, work, &c, &g);
        break;
    case LOCI_ROTATE:
        if (!status) status = loci_rotate(plan, tables, work, &c, LOCI_QUERY, c.q, c.o);
        if (!status)
            status =
                loci_rotate_backward(plan, tables, work, &c, LOCI_QUERY, c.q, g.dout, g.dq, ddata);
        break;
    case LOCI_EMBED:
        if (!status) status = loci_embed(plan, tables, &c, c.q, c.o);
        if (!status) status = loci_embed_backward(plan, tables, work, &c, g.dout, ddata);
        break;
    }
    if (status) printf("%s (%s): %s\n", w->encoding, w->shape, e.text);
    loci_plan_destroy(plan);
    return status;
}

static void apart(const struct walk *w, loci_dtype dtype, ptrdiff_t row)
{
    const size_t real = dtype == LOCI_F64 ? 8 : 4,
                 stored = dtype == LOCI_BF16 || dtype == LOCI_F16 ? 2 : real;
    struct problem dense = { w, dtype, real, stored, .row = 0 },
                   far = { w, dtype, real, stored, .row = row };
    struct sums a = { .n = 0 }, b = { .n = 0 };
    bool good = !solve(&dense, &a) && !solve(&far, &b);
    CHECK_THAT(good, "%s: was refused", w->encoding);
    CHECK_THAT(!good || same(&dense, &far), "%s: %s", w->encoding, w->shape);
    for (int i = 0; i < a.n && good; i++)
        CHECK_THAT(!memcmp(a.x[i], b.x[i], a.count[i] * real), "%s: sums", w->encoding);
    release(&dense);
    release(&far);
}
static void few_rows(struct walk *w)
{
    apart(w, LOCI_F32, ((ptrdiff_t)1 << 33) + 37);
    if (strchr(w->encoding, '+')) return;
    apart(w, LOCI_F64, ((ptrdiff_t)1 << 33) + 37);
    apart(w, LOCI_BF16, ((ptrdiff_t)1 << 33) + 37);
}
static void tiles(struct walk *w)
{
    const bool gaps = strstr(w->shape, "gaps"),
               borders = strstr(w->shape, "border") || strstr(w->shape, "three");
    if (!strchr(w->encoding, '+') && (LOCI_SLOW ? gaps : borders))
        apart(w, LOCI_F32, ((ptrdiff_t)1 << 31) + 37);
}

static void strides(void)
{
    const size_t most = (size_t)1 << 43;
    void *p = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        printf("large: %zu bytes cannot be reserved here, so wide strides were not tried\n", most);
        return;
    }
    munmap(p, most);
    walk_all(WALK_SMALL, few_rows);
    walk_all(WALK_TILES, tiles);
}

/* ---- Long texts ------------------------------------------------------------------------------ */

enum { LONG = 1 << 20, D = 8, WINDOW = 40, PART = 200 };
static float *q, *k, *v, *o, *part;

static loci_plan *plan_of(const char *text, bool windows)
{
    const loci_desc d =
        LOCI_DESC(.encoding = text, .heads = 1, .dim = D, .window_left = windows ? WINDOW : 0,
                  .keys_rotated = strstr(text, "rope") != NULL);
    loci_error e;
    loci_plan *p;
    if (loci_plan_create(&p, &d, &e)) {
        printf("%s: %s\n", text, e.text);
        exit(2);
    }
    return p;
}
/* Rows first .. first + n - 1 of the text, with keys up to the last of them. */
static bool rows(const loci_plan *p, const void *tables, ptrdiff_t first, ptrdiff_t n, float *to)
{
    const loci_call c =
        LOCI_CALL(.batch = 1, .q_len = n, .k_len = first + n, .q = { q + first * D, 0, 0, 0 },
                  .k = { k, 0, 0, 0 }, .v = { v, 0, 0, 0 }, .o = { to, 0, 0, 0 });
    void *work = mem_block(loci_workspace(p, &c, 0));
    const bool done = !loci_forward(p, tables, work, &c);
    free(work);
    return done;
}
static void *tables_of(const loci_plan *p, ptrdiff_t range)
{
    void *tables = mem_block(loci_tables_size(p, range));
    if (loci_prepare(p, range, NULL, tables)) exit(2);
    return tables;
}
/* Is the workspace the same for long and short texts, except for the sums of every chunk of keys in
 * a decode of four rows? */
static bool stays_small(const loci_plan *p)
{
    const ptrdiff_t lens[] = { LONG, LONG / 16 };
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        const loci_call c = LOCI_CALL(.batch = 1, .q_len = lens[i], .k_len = lens[i]);
        bytes[i] = loci_workspace(p, &c, 0);
    }
    const size_t sums = (size_t)(lens[0] - lens[1]) / 4096 * 4 * (2 + D) * sizeof(float);
    return bytes[1] > 0 && bytes[0] <= bytes[1] + sums;
}

static void long_text(const char *text)
{
    loci_plan *p = plan_of(text, true);
    void *tables = tables_of(p, WINDOW);
    CHECK_THAT(stays_small(p), "%s: the workspace does not grow with the text", text);
    CHECK_THAT(rows(p, tables, 0, LONG, o), "%s: 2^20 rows", text);
    static const ptrdiff_t firsts[] = { 0, 12345, LONG / 2 - 7, LONG - PART };
    bool good = true;
    for (int i = 0; i < COUNT(firsts); i++)
        good &= rows(p, tables, firsts[i], PART, part)
             && !memcmp(part, o + firsts[i] * D, sizeof(float) * PART * D);
    CHECK_THAT(good, "%s: parts of it are the same", text);
    good =
        rows(p, tables, LONG - 1, 1, part) && !memcmp(part, o + (LONG - 1) * D, sizeof(float) * D);
    CHECK_THAT(good, "%s: and so is a decode", text);
    free(tables);
    loci_plan_destroy(p);
}
/* One row sees them all. */
static void long_decode(void)
{
    loci_plan *p = plan_of("nope", false);
    void *tables = tables_of(p, LONG);
    const bool done = rows(p, tables, LONG - 1, 1, part);
    double l = 0, sum[D] = { 0 }, off = 0;
    for (ptrdiff_t j = 0; j < LONG; j++) {
        double s = 0;
        for (int d = 0; d < D; d++) s += (double)q[(LONG - 1) * D + d] * (double)k[j * D + d];
        const double e = exp(s / sqrt(D));
        l += e;
        for (int d = 0; d < D; d++) sum[d] += e * (double)v[j * D + d];
    }
    for (int d = 0; d < D; d++) off = fmax(off, fabs(sum[d] / l - (double)part[d]));
    CHECK_THAT(done && off < 1e-6, "nope: a decode over 2^20 keys");
    free(tables);
    loci_plan_destroy(p);
}
static void long_texts(void)
{
    static const char *const texts[] = { "nope", "clip:max=9", "t5", "rope:pairing=half",
                                         "rope:pairing=interleaved,scaling=linear,factor=3" };
    const size_t n = (size_t)LONG * D;
    q = mem_block(n * sizeof *q);
    k = mem_block(n * sizeof *k);
    v = mem_block(n * sizeof *v);
    o = mem_block(n * sizeof *o);
    part = mem_block(PART * D * sizeof *part);
    for (size_t i = 0; i < n; i++) {
        q[i] = (float)walk_uniform();
        k[i] = (float)walk_uniform();
        v[i] = (float)walk_uniform();
    }
    for (int i = 0; i < COUNT(texts); i++) {
        /* learned tensors: only the workspace matters here */
        if (strstr(texts[i], "clip") || strstr(texts[i], "t5")) {
            loci_plan *p = plan_of(texts[i], false);
            CHECK_THAT(stays_small(p), "%s: the workspace does not grow with the text", texts[i]);
            loci_plan_destroy(p);
        } else {
            long_text(texts[i]);
        }
    }
    long_decode();
    free(q);
    free(k);
    free(v);
    free(o);
    free(part);
}

/* ---- Tables and workspaces ------------------------------------------------------------------- */

/* Doubling a size never needs less memory.  Once a size is too large, larger ones are too. */
static void sizes_of(const char *text)
{
    const int heads = strstr(text, "cape") ? 1024 : 65520; /* a mix needs them all at once */
    loci_desc d = LOCI_DESC(.encoding = text, .heads = heads, .dim = walk_dim(text, 960),
                            .full = !walk_causal_only(text), .max_len = 1000, .model_dim = 1 << 20);
    loci_plan *p;
    if (loci_plan_create(&p, &d, NULL)) {
        d.heads = 12;
        d.dim = walk_dim(text, 48);
        d.stage = loci_plan_create(&p, &d, NULL) ? LOCI_EMBED : LOCI_ATTENTION;
        if (d.stage == LOCI_EMBED && loci_plan_create(&p, &d, NULL)) {
            CHECK_FAILED("%s: no plan", text);
            return;
        }
    }
    bool good = true;
    size_t before = 1;
    for (ptrdiff_t range = 1; range > 0; range = range < PTRDIFF_MAX / 2 ? 2 * range : -1) {
        const size_t now = loci_tables_size(p, range);
        good &= now == 0 || (before > 0 && now >= before);
        before = now;
    }
    CHECK_THAT(good, "%s: tables for twice the distance", text);
    for (int backward = 0; backward < 2; backward++)
        for (int which = 0; which < 7; which++) {
            before = 1;
            good = true;
            for (ptrdiff_t n = 1; n > 0; n = n < PTRDIFF_MAX / 2 ? 2 * n : -1) {
                const loci_call c =
                    LOCI_CALL(.batch = which & 1 ? n : 1, .q_len = which & 2 ? n : 1,
                              .k_len = which & 4 ? n : 1);
                const size_t now = loci_workspace(p, &c, backward);
                good &= now == 0 || (before > 0 && now >= before);
                before = now;
            }
            CHECK_THAT(good, "%s: %s", text,
                       backward ? "workspace, backward, of twice as much"
                                : "workspace of twice as much");
        }
    loci_plan_destroy(p);
}
static void sizes(void)
{
    const loci_encoding_info *list;
    const int count = loci_encodings(&list);
    for (struct walk_text t = { 0 }; walk_next(&t);) sizes_of(t.text);
    for (int i = 0; i < count; i++)
        if (list[i].places == LOCI_PLACE_EMBED) sizes_of(list[i].example);
}

/* ---- Too large ------------------------------------------------------------------------------- */

static float numbers[64], result[64];
static loci_error error;

static void refused(loci_status status, const char *name, int shape)
{
    CHECK_THAT(status == LOCI_BAD_ARG && strlen(error.text) > 20
                   && strpbrk(error.text, "0123456789"),
               "%s, shape %d: status %d, %s", name, shape, (int)status, error.text);
    for (int i = 0; i < COUNT(result); i++)
        if (result[i] != 5) {
            CHECK_FAILED("%s: something was written", name);
            i = COUNT(result);
        }
    error = (loci_error){ .text = "" };
}

static void too_large(void)
{
    const ptrdiff_t one = 1;
    /* Products that wrap around to 0, to something small, to something negative, and ones that only
     * exceed memory. */
    const struct {
        ptrdiff_t batch, len;
    } shapes[] = {
        { one << 32, one << 32 },
        { one << 33, one << 31 },
        { one << 62, 4 },
        { 3, PTRDIFF_MAX / 3 + 1 },
        { (one << 32) + 1, (one << 32) - 1 },
        { PTRDIFF_MAX, 1 },
        { 1, PTRDIFF_MAX },
        { PTRDIFF_MAX, PTRDIFF_MAX },
        { 1, one << 60 },
        { one << 60, 1 },
        { one << 31, one << 31 },
    };
    const loci_view in = { numbers, 0, 0, 0 }, to = { result, 0, 0, 0 };
    const loci_desc descs[] = {
        LOCI_DESC(.heads = 2, .dim = 4),
        LOCI_DESC(.encoding = "rope:pairing=half", .heads = 2, .dim = 4, .stage = LOCI_ROTATE),
        LOCI_DESC(.encoding = "sinusoidal", .model_dim = 4, .stage = LOCI_EMBED),
        LOCI_DESC(.encoding = "rope:pairing=half", .heads = 2, .dim = 4,
                  .stage = LOCI_LINEAR_ATTENTION),
    };
    loci_plan *plan[COUNT(descs)];
    void *tables[COUNT(descs)], *work = mem_block(1 << 20);
    for (int i = 0; i < COUNT(result); i++) result[i] = 5;
    for (int i = 0; i < COUNT(descs); i++) {
        if (loci_plan_create(&plan[i], &descs[i], &error)) exit(2);
        tables[i] = tables_of(plan[i], 100);
    }
    for (int s = 0; s < COUNT(shapes); s++) {
        for (int side = 0; side < 3; side++) {
            const loci_call c =
                LOCI_CALL(.batch = shapes[s].batch, .q_len = side == 1 ? 1 : shapes[s].len,
                          .k_len = side == 0 ? 1 : shapes[s].len, .q = in, .k = in, .v = in,
                          .o = to, .lse = numbers, .error = &error);
            const loci_grad g = LOCI_GRAD(.dout = in, .dq = to, .dk = to, .dv = to);
            loci_call plain = c;
            plain.lse = NULL;
            CHECK_THAT(loci_workspace(plan[0], &c, 0) == 0 && loci_workspace(plan[0], &c, 1) == 0,
                       "workspace: too large");
            refused(loci_forward(plan[0], tables[0], work, &c), "forward", s);
            refused(loci_backward(plan[0], tables[0], work, &c, &g), "backward", s);
            refused(loci_rotate(plan[1], tables[1], work, &c, side == 0 ? LOCI_QUERY : LOCI_KEY, in,
                                to),
                    "rotate", s);
            refused(loci_rotate_backward(plan[1], tables[1], work, &c,
                                         side == 0 ? LOCI_QUERY : LOCI_CACHE, in, in, to, NULL),
                    "rotate_backward", s);
            refused(loci_linear_forward(plan[3], tables[3], work, &plain, NULL, NULL),
                    "linear_forward", s);
            refused(loci_linear_backward(plan[3], tables[3], work, &plain, &g), "linear_backward",
                    s);
        }
        const loci_call c =
            LOCI_CALL(.batch = shapes[s].batch, .q_len = shapes[s].len, .error = &error);
        if (shapes[s].len > 1) {
            refused(loci_embed(plan[2], tables[2], &c, in, to), "embed", s);
            refused(loci_embed_backward(plan[2], tables[2], work, &c, in, NULL), "embed_backward",
                    s);
        }
        loci_layer l = LOCI_LAYER(.batch = shapes[s].batch, .rows = shapes[s].len, .heads = 2,
                                  .width = 4, .error = &error);
        const loci_view *i = &in, *t = &to;
        refused(loci_rmsnorm(&l, *i, NULL, 0, *t), "rmsnorm", s);
        refused(loci_rmsnorm_backward(&l, *i, NULL, 0, *i, *t, NULL), "rmsnorm_backward", s);
        refused(loci_shift(&l, *i, *i, NULL, 0, NULL, NULL, *t), "shift", s);
        refused(loci_shift_backward(&l, *i, *i, NULL, 0, *i, *t, *t), "shift_backward", s);
        refused(loci_log_gate(&l, *i, *t), "log_gate", s);
        refused(loci_log_gate_backward(&l, *i, *i, *t), "log_gate_backward", s);
        refused(loci_gate(&l, LOCI_SILU, *i, *i, *t), "gate", s);
        refused(loci_gate_backward(&l, LOCI_SILU, *i, *i, *i, *t, *t), "gate_backward", s);
        refused(loci_temperature(&l, 0.1, 8192, 0, NULL, 0, *i, *t), "temperature", s);
        refused(loci_running_angles(&l, *i, NULL, 0, NULL, 0, NULL, NULL, *t), "running_angles", s);
        refused(loci_running_angles_backward(&l, *i, NULL, 0, NULL, 0, *i, NULL, *t, NULL, NULL),
                "running_angles_backward", s);
        refused(loci_tape_start(&l, 0, 0, NULL, 0, *t), "tape_start", s);
        refused(loci_tape_attention_update(&l, LOCI_TAPE_FULL, *i, *i, numbers, *t),
                "tape_attention_update", s);
        refused(loci_tape_attention_update_backward(&l, LOCI_TAPE_FULL, *i, numbers, *i, *t, NULL),
                "tape_attention_update_backward", s);
        refused(loci_tape_mlp_update(&l, 4, *i, *i, numbers, numbers, *t), "tape_mlp_update", s);
        refused(loci_tape_mlp_update_backward(&l, 4, *i, *i, numbers, numbers, *i, *t, *t, NULL,
                                              NULL),
                "tape_mlp_update_backward", s);
        const loci_channels ch = LOCI_CHANNELS(.element = 4, .heads = 2, .dim = 4,
                                               .outer = shapes[s].batch, .inner = shapes[s].len);
        refused(loci_convert_channels(&ch, LOCI_HALF, LOCI_INTERLEAVED, numbers, result, &error),
                "convert_channels", s);
        const ptrdiff_t many = shapes[s].len > 4 ? shapes[s].len : shapes[s].batch;
        const loci_rope_table table =
            LOCI_ROPE_TABLE(.dtype = LOCI_F32, .count = many, .row = one << 20, .cos = result);
        refused(loci_export_rope(plan[1], NULL, &table, &error), "export_rope", s);
    }
    CHECK_THAT(loci_linear_state(plan[3], PTRDIFF_MAX) == 0
                   && loci_linear_state(plan[3], one << 60) == 0,
               "linear_state: too large");
    const loci_segment grid[] = { { .t = one << 32, .h = one << 32, .w = 1 },
                                  { .tokens = PTRDIFF_MAX } };
    CHECK_THAT(loci_segments_len(1, grid) == -1
                   && loci_segments_len(2, (loci_segment[]){ grid[1], grid[1] }) == -1,
               "segments_len: too large");

    /* Strides that exceed the address range, in rows, heads and batch entries. */
    for (int s = 0; s < 3; s++) {
        const ptrdiff_t far = PTRDIFF_MAX / 2 + 1;
        const loci_view wide = { result, s == 0 ? far : 64, s == 1 ? far : 16, s == 2 ? far : 4 };
        const loci_call c = LOCI_CALL(.batch = 3, .q_len = 3, .k_len = 3, .q = in, .k = in, .v = in,
                                      .o = wide, .error = &error);
        const loci_layer l =
            LOCI_LAYER(.batch = 3, .rows = 3, .heads = 3, .width = 4, .error = &error);
        if (s != 1) refused(loci_embed(plan[2], tables[2], &c, in, wide), "embed, strides", s);
        if (s != 1)
            refused(loci_embed_backward(plan[2], tables[2], work, &c, wide, NULL),
                    "embed_backward, strides", s);
        if (s != 1) refused(loci_forward(plan[0], tables[0], work, &c), "forward, strides", s);
        if (s != 1)
            refused(loci_rotate(plan[1], tables[1], work, &c, LOCI_QUERY, in, wide),
                    "rotate, strides", s);
        if (s != 1)
            refused(loci_linear_forward(plan[3], tables[3], work, &c, NULL, NULL),
                    "linear_forward, strides", s);
        refused(loci_rmsnorm(&l, in, NULL, 0, wide), "rmsnorm, strides", s);
    }
    for (int i = 0; i < COUNT(descs); i++) {
        free(tables[i]);
        loci_plan_destroy(plan[i]);
    }
    free(work);
}

int main(void)
{
    too_large();
    sizes();
    /* an emulator also allocates reserved memory, and addresses are plain C */
    if (!LOCI_EMULATED) {
        long_texts();
        strides();
    }
    return harness_end();
}
