/* SPDX-License-Identifier: MIT */
/* layers_round.c -- see layers_round.h.
 *
 *     definition   the output is that of plain loops in double, rounded once
 *     bits         strides, threads, in place, omitted gradients, and chunks of rows with states
 *                  change none, and nothing is written between the rows
 *     gradients    along a random direction, equal to the differences of the function */
#include <math.h>
#include <string.h>

#include "layers_round.h"
#include "contract/plan.h"
#include "harness.h"
#include "loci/layers.h"
#include "reference/angle.h"
#include "walk.h"

static int below(int n) { return n < 2 ? 0 : (int)((walk_uniform() + 1) / 2 * n) % n; }
static bool one_in(int n) { return below(n) == 0; }
#define ONE_OF(list) (list)[below((int)(sizeof(list) / sizeof *(list)))]

enum op {
    NORM,
    SHIFT,
    LOG_GATE,
    GATE,
    SILU,
    TEMPERATURE,
    ANGLES,
    TAPE_START,
    ROWSUM,
    FULL,
    MLP,
    OPS
};
static const char *const names[] = { "rmsnorm",        "shift",       "log_gate", "gate",
                                     "gate with silu", "temperature", "angles",   "tape_start",
                                     "tape, rowsum",   "tape, full",  "tape, mlp" };
enum { INPUTS = 4 };

/* An array [B][H][L][W] of a call, or one that is not a view: [n].  `wide`: of doubles in every
 * call. */
struct array {
    ptrdiff_t B, H, L, W;
    bool plain;
    double *x;
    bool wide;
};
static size_t count_of(const struct array *a) { return (size_t)(a->B * a->H * a->L * a->W); }
struct task {
    enum op op;
    ptrdiff_t B, L, W;
    int H, units;
    struct array in[INPUTS], y;
    int inputs;
    double eps, base, factor, beta, length;
    int from, per_batch, exclusive;
    int64_t *seg, *pos; /* or NULL */
    double *dy;
    struct mem *mem;
};

/* ---- Random problems ------------------------------------------------------------------------- */

static struct array array_of(struct task *t, ptrdiff_t B, ptrdiff_t H, ptrdiff_t L, ptrdiff_t W,
                             bool plain, double size)
{
    struct array a = { B, H, L, W, plain, NULL, false };
    a.x = mem_alloc(t->mem, (count_of(&a) + 1) * sizeof *a.x);
    /* away from 0, where rmsnorm is too curved for differences */
    for (size_t i = 0; i < count_of(&a); i++) {
        const double u = walk_uniform();
        a.x[i] = (float)(size * (u + (u < 0 ? -0.5 : 0.5)));
    }
    return a;
}
static void draw(struct task *t, struct mem *mem)
{
    static const int lens[] = { 1, 2, 3, 5, 8, 17, 64, 65 }, heads[] = { 1, 2, 3, 4, 7 },
                     widths[] = { 1, 2, 3, 4, 7, 16, 64, 130 }, batches[] = { 1, 1, 2, 3, 0 };
    *t = (struct task){ .op = (enum op)below(OPS),
                        .B = ONE_OF(batches),
                        .L = ONE_OF(lens),
                        .W = ONE_OF(widths),
                        .H = ONE_OF(heads),
                        .units = 1 + below(9),
                        .mem = mem };
    if (one_in(20)) t->L = 0;
    const bool tape = t->op >= TAPE_START;
    if (tape) t->W += t->W % 2;
    if (t->op == LOG_GATE) t->W = 1;
    const ptrdiff_t B = t->B, H = t->H, L = t->L, W = t->W;
    const double size = !one_in(8) ? 1 : t->op == ANGLES ? 1000 : 1e9;
    if (t->op != TAPE_START) t->in[t->inputs++] = array_of(t, B, H, L, W, false, size);
    switch (t->op) {
    case NORM:
        t->eps = ONE_OF(((const double[]){ 1e-5, 1e-6, 0.1 }));
        if (one_in(2)) t->in[t->inputs++] = array_of(t, 1, H, 1, W, true, 1);
        break;
    case SHIFT:
        t->in[t->inputs++] = array_of(t, B, H, L, 1, false, 2);
        break;
    case GATE:
    case SILU:
        t->in[t->inputs++] = array_of(t, B, H, L, W, false, 2);
        break;
    case ANGLES:
        t->exclusive = one_in(2);
        if (one_in(3)) break;
        t->in[t->inputs] = array_of(t, 1, H, 1, W, true, 1);
        t->in[t->inputs++].wide = true;
        break;
    case ROWSUM:
    case FULL:
        t->in[t->inputs++] = array_of(t, B, H, L, W, false, 1);
        t->in[t->inputs++] = array_of(t, 1, H, 1, H, true, 1);
        break;
    case MLP:
        t->in[t->inputs++] = array_of(t, B, 1, L, t->units, false, 1);
        t->in[t->inputs++] = array_of(t, 1, t->units, 1, H, true, 1);
        t->in[t->inputs++] = array_of(t, 1, H, 1, t->units, true, 1);
        break;
    default:
        break;
    }
    t->y = array_of(t, B, H, L, W, false, 1);
    t->dy = array_of(t, B, H, L, W, false, 1).x;
    t->base = ONE_OF(((const double[]){ 10000, 50, 500000 }));
    t->factor = ONE_OF(((const double[]){ 1, 2, 8 }));
    t->beta = 0.1 * (1 + below(5));
    t->length = 1 + below(9000);
    t->from = below(2);
    t->per_batch = one_in(3);
    const size_t listed = (size_t)(t->per_batch ? B : 1) * (size_t)L;
    if ((t->op == SHIFT || t->op == ANGLES) && one_in(2)) {
        t->seg = mem_alloc(mem, (listed + 1) * sizeof *t->seg);
        for (size_t i = 0; i < listed; i++)
            t->seg[i] = i && !one_in(4) ? t->seg[i - 1] : below(4) - 1;
    }
    if ((t->op == TEMPERATURE || t->op == TAPE_START) && one_in(2)) {
        t->pos = mem_alloc(mem, (listed + 1) * sizeof *t->pos);
        const int64_t reach = ONE_OF(((const int64_t[]){ 100, 100000, (int64_t)1 << 40 }));
        for (size_t i = 0; i < listed; i++) {
            t->pos[i] = (int64_t)(walk_uniform() * (double)reach);
            if (t->op == TEMPERATURE && t->pos[i] < 0) t->pos[i] = -t->pos[i];
        }
    }
}

/* ---- Definitions ----------------------------------------------------------------------------- */

static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double *row(const struct array *a, ptrdiff_t b, ptrdiff_t h, ptrdiff_t l)
{
    return a->x + ((b * a->H + h) * a->L + l) * a->W;
}
static int64_t listed(const struct task *t, const int64_t *list, ptrdiff_t b, ptrdiff_t l)
{
    return list ? list[(t->per_batch ? b * t->L : 0) + l] : l;
}
/* A running sum, not reduced: from the last row that belongs to it to the first. */
static precise angle(const struct task *t, ptrdiff_t b, ptrdiff_t h, ptrdiff_t l, ptrdiff_t c)
{
    const double rate = t->inputs > 1 ? t->in[1].x[h * t->W + c] : 1;
    precise sum = 0;
    for (ptrdiff_t m = l; m >= 0; m--) {
        if (t->seg && (listed(t, t->seg, b, m) != listed(t, t->seg, b, l))) break;
        if (m < l || !t->exclusive) sum += (precise)rate * row(&t->in[0], b, h, m)[c];
    }
    return t->seg && listed(t, t->seg, b, l) < 0 ? 0 : sum;
}
static void define_row(const struct task *t, ptrdiff_t b, ptrdiff_t h, ptrdiff_t l, double *y)
{
    const struct array *in = t->in;
    const double *x = t->inputs ? row(&in[0], b, h, l) : NULL;
    double square = 0, sum = 0;
    for (ptrdiff_t c = 0; c < t->W && x; c++) square += x[c] * x[c];
    const int64_t pos = listed(t, t->pos, b, l);
    for (int g = 0; g < t->H && t->op == ROWSUM; g++) sum += in[2].x[h * t->H + g];
    for (ptrdiff_t c = 0; c < t->W; c++) {
        double a, s = 0;
        bool alone;
        switch (t->op) {
        case NORM:
            y[c] = (t->inputs > 1 ? in[1].x[h * t->W + c] : 1) * x[c]
                 / sqrt(square / (double)t->W + t->eps);
            break;
        case SHIFT:
            a = sigmoid(*row(&in[1], b, h, l));
            alone = l == 0 || (t->seg && listed(t, t->seg, b, l) != listed(t, t->seg, b, l - 1));
            y[c] = a * (alone ? 0 : x[c - t->W]) + (1 - a) * x[c];
            if (t->seg && listed(t, t->seg, b, l) < 0) y[c] = 0;
            break;
        case LOG_GATE:
            y[c] = x[c] < 0 ? x[c] - log1p(exp(x[c])) : -log1p(exp(-x[c]));
            break;
        case GATE:
        case SILU:
            a = row(&in[1], b, h, l)[c];
            y[c] = x[c] * sigmoid(a) * (t->op == SILU ? a : 1);
            break;
        case TEMPERATURE:
            y[c] = x[c] * (1 + t->beta * log1p(floor(((double)pos + t->from) / t->length)));
            break;
        case ANGLES:
            y[c] = (double)angle(t, b, h, l, c);
            break;
        case TAPE_START: {
            const precise angle =
                (precise)pos / t->factor * power_of(t->base, (precise)-2 * (c / 2) / t->W);
            y[c] = c % 2 ? angle_sin(angle) : angle_cos(angle);
            break;
        }
        case ROWSUM:
            y[c] = x[c] + sum * row(&in[1], b, h, l)[c];
            break;
        case FULL:
            for (int g = 0; g < t->H; g++) s += in[2].x[h * t->H + g] * row(&in[1], b, g, l)[c];
            y[c] = x[c] + s;
            break;
        default:
            for (int p = 0; p < t->units; p++) {
                const double gate = row(&in[1], b, 0, l)[p];
                double up = 0;
                for (int g = 0; g < t->H; g++)
                    up += in[2].x[p * t->H + g] * row(&in[0], b, g, l)[c];
                s += in[3].x[h * t->units + p] * gate * sigmoid(gate) * up;
            }
            y[c] = x[c] + s;
        }
    }
}
static void define(const struct task *t, double *to)
{
    for (ptrdiff_t b = 0; b < t->B; b++)
        for (ptrdiff_t h = 0; h < t->H; h++)
            for (ptrdiff_t l = 0; l < t->L; l++, to += t->W) define_row(t, b, h, l, to);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* An array of the task in the form of a call, with gaps between rows. */
struct stored {
    loci_view view;
    void *data;
    size_t numbers;
    const struct array *of;
    loci_dtype dtype;
};
enum { GAP = 0xa5 };

static struct stored store(struct task *t, const struct array *a, loci_dtype dtype, bool dense,
                           const double *from)
{
    if (a->wide) dtype = LOCI_F64;
    const size_t each = dtype == LOCI_F64 ? sizeof(double) : sizeof(float);
    const ptrdiff_t pad = dense || a->plain ? 0 : below(3);
    const bool heads_inside = !dense && !a->plain && one_in(2);
    loci_view v;
    if (heads_inside) {
        v.head = a->W + pad;
        v.row = v.head * a->H;
        v.batch = v.row * a->L + pad;
    } else {
        v.row = a->W + pad;
        v.head = v.row * a->L + pad;
        v.batch = v.head * a->H + pad;
    }
    if (a->L == 0 || dense) {
        v.row = a->W;
        v.head = a->W * a->L;
        v.batch = a->W * a->L * a->H;
    }
    struct stored s = { .of = a, .dtype = dtype };
    s.numbers = (size_t)(a->B * (v.batch > 0 ? v.batch : 1) + a->L * v.row + a->H * v.head) + 8;
    s.data = mem_alloc(t->mem, s.numbers * each);
    memset(s.data, GAP, s.numbers * each);
    v.data = s.data;
    s.view = v;
    if (!from) return s;
    for (ptrdiff_t b = 0; b < a->B; b++)
        for (ptrdiff_t h = 0; h < a->H; h++)
            for (ptrdiff_t l = 0; l < a->L; l++)
                for (ptrdiff_t c = 0; c < a->W; c++)
                    store_stored(s.data, dtype, b * v.batch + h * v.head + l * v.row + c, *from++);
    return s;
}
/* Its contents.  False: bytes between its rows were written. */
static bool load(struct task *t, const struct stored *s, double **to)
{
    const struct array *a = s->of;
    const size_t each = s->dtype == LOCI_F64 ? sizeof(double) : sizeof(float);
    double *x = *to = mem_alloc(t->mem, (count_of(a) + 1) * sizeof *x);
    for (ptrdiff_t b = 0; b < a->B; b++)
        for (ptrdiff_t h = 0; h < a->H; h++)
            for (ptrdiff_t l = 0; l < a->L; l++)
                for (ptrdiff_t c = 0; c < a->W; c++) {
                    const ptrdiff_t at = b * s->view.batch + h * s->view.head + l * s->view.row + c;
                    *x++ = load_stored(s->data, s->dtype, at);
                    memset((char *)s->data + (size_t)at * each, GAP, each);
                }
    for (size_t i = 0; i < s->numbers * each; i++)
        if (((unsigned char *)s->data)[i] != GAP) return false;
    return true;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

struct states {
    const void *before;
    void *after;
};
static loci_status forward(const struct task *t, const loci_layer *l, const loci_view *in,
                           const int64_t *pos, struct states s, loci_view y)
{
    switch (t->op) {
    case NORM:
        return loci_rmsnorm(l, in[0], in[1].data, t->eps, y);
    case SHIFT:
        return loci_shift(l, in[0], in[1], t->seg, t->per_batch, s.before, s.after, y);
    case LOG_GATE:
        return loci_log_gate(l, in[0], y);
    case GATE:
        return loci_gate(l, LOCI_SIGMOID, in[0], in[1], y);
    case SILU:
        return loci_gate(l, LOCI_SILU, in[0], in[1], y);
    case ANGLES:
        return loci_running_angles(l, in[0], in[1].data, t->exclusive, t->seg, t->per_batch,
                                   s.before, s.after, y);
    case TEMPERATURE:
        return loci_temperature(l, t->beta, t->length, t->from, pos, t->per_batch, in[0], y);
    case TAPE_START:
        return loci_tape_start(l, t->base, t->factor, pos, t->per_batch, y);
    case ROWSUM:
    case FULL:
        return loci_tape_attention_update(l, t->op == FULL ? LOCI_TAPE_FULL : LOCI_TAPE_ROWSUM,
                                          in[0], in[1], in[2].data, y);
    default:
        return loci_tape_mlp_update(l, t->units, in[0], in[1], in[2].data, in[3].data, y);
    }
}
static loci_status backward(const struct task *t, const loci_layer *l, const loci_view *in,
                            loci_view dy, const loci_view *d)
{
    switch (t->op) {
    case NORM:
        return loci_rmsnorm_backward(l, in[0], in[1].data, t->eps, dy, d[0], d[1].data);
    case SHIFT:
        return loci_shift_backward(l, in[0], in[1], t->seg, t->per_batch, dy, d[0], d[1]);
    case LOG_GATE:
        return loci_log_gate_backward(l, in[0], dy, d[0]);
    case GATE:
        return loci_gate_backward(l, LOCI_SIGMOID, in[0], in[1], dy, d[0], d[1]);
    case SILU:
        return loci_gate_backward(l, LOCI_SILU, in[0], in[1], dy, d[0], d[1]);
    case ANGLES:
        return loci_running_angles_backward(l, in[0], in[1].data, t->exclusive, t->seg,
                                            t->per_batch, dy, NULL, d[0], d[1].data, NULL);
    case ROWSUM:
    case FULL:
        return loci_tape_attention_update_backward(l,
                                                   t->op == FULL ? LOCI_TAPE_FULL
                                                                 : LOCI_TAPE_ROWSUM,
                                                   in[1], in[2].data, dy, d[1], d[2].data);
    default:
        return loci_tape_mlp_update_backward(l, t->units, in[0], in[1], in[2].data, in[3].data, dy,
                                             d[0], d[1], d[2].data, d[3].data);
    }
}
/* Does the function have a gradient of this input?  That of e in an attention update is dy. */
static bool differentiates(const struct task *t, int i)
{
    return t->op != TEMPERATURE && !((t->op == ROWSUM || t->op == FULL) && i == 0);
}

/* One forward call.  NULL: it failed, and a check has reported it. */
static double *compute(struct task *t, unsigned long seed, loci_dtype dtype, bool dense,
                       const loci_host *host)
{
    struct stored in[INPUTS];
    loci_view views[INPUTS] = { { .data = NULL } };
    loci_error e = { 0 };
    const loci_layer l = LOCI_LAYER(.dtype = dtype, .batch = t->B, .rows = t->L, .heads = t->H,
                                    .width = (int)t->W, .host = host, .error = &e);
    for (int i = 0; i < t->inputs; i++) {
        in[i] = store(t, &t->in[i], dtype, dense, t->in[i].x);
        views[i] = in[i].view;
    }
    const bool may = t->inputs && t->op != SHIFT && t->op != MLP, in_place = may && one_in(2);
    struct stored y = in_place ? in[0] : store(t, &t->y, dtype, dense, NULL);
    const loci_status status = forward(t, &l, views, t->pos, (struct states){ NULL, NULL }, y.view);
    if (!CHECK_THAT(!status, "seed %lu: %s: %s", seed, names[t->op], e.text)) return NULL;
    double *got;
    y.of = &t->y;
    CHECK_THAT(load(t, &y, &got), "seed %lu: %s writes between its rows", seed, names[t->op]);
    return got;
}

/* Rows in pieces, one call each.  States pass from piece to piece. */
static double *in_chunks(struct task *t, unsigned long seed, loci_dtype dtype,
                         const loci_host *host)
{
    const size_t each = dtype == LOCI_F64 ? sizeof(double) : sizeof(float),
                 state =
                     (size_t)(t->B * t->H * t->W) * (t->op == ANGLES ? sizeof(double) : each) + 8;
    struct stored in[INPUTS];
    loci_error e = { 0 };
    for (int i = 0; i < t->inputs; i++) in[i] = store(t, &t->in[i], dtype, false, t->in[i].x);
    struct stored y = store(t, &t->y, dtype, false, NULL);
    char *own = mem_alloc(t->mem, state), *spare = mem_alloc(t->mem, state);
    int64_t *pos = mem_alloc(t->mem, (size_t)(t->L + 1) * sizeof *pos);
    for (ptrdiff_t i = 0; i < t->L; i++) pos[i] = listed(t, t->pos, 0, i);
    for (ptrdiff_t at = 0, n; at < t->L; at += n) {
        n = 1 + below((int)(t->L - at));
        loci_view views[INPUTS] = { { .data = NULL } }, to = y.view;
        for (int i = 0; i < t->inputs; i++) {
            views[i] = in[i].view;
            if (!t->in[i].plain)
                views[i].data = (char *)views[i].data + (size_t)(at * views[i].row) * each;
        }
        to.data = (char *)to.data + (size_t)(at * to.row) * each;
        const bool one_buffer = one_in(2);
        const struct states s = { at ? own : NULL, one_buffer ? own : spare };
        const loci_layer l =
            LOCI_LAYER(.dtype = dtype, .batch = t->B, .rows = n, .heads = t->H, .width = (int)t->W,
                       .host = one_in(2) ? host : NULL, .error = &e);
        const loci_status status = forward(t, &l, views, pos + at, s, to);
        if (!CHECK_THAT(!status, "seed %lu: %s, %td rows from %td on: %s", seed, names[t->op], n,
                        at, e.text))
            return NULL;
        if (!one_buffer) memcpy(own, spare, state);
    }
    double *got;
    CHECK_THAT(load(t, &y, &got), "seed %lu: %s writes between its rows", seed, names[t->op]);
    return got;
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* Gradients of every input, NULL if not requested.  Returns false if the call failed. */
static bool gradients(struct task *t, unsigned long seed, loci_dtype dtype, bool dense,
                      const loci_host *host, bool all, double *to[INPUTS])
{
    struct stored in[INPUTS], d[INPUTS];
    loci_view views[INPUTS] = { { .data = NULL } }, dviews[INPUTS] = { { .data = NULL } };
    loci_error e = { 0 };
    const loci_layer l = LOCI_LAYER(.dtype = dtype, .batch = t->B, .rows = t->L, .heads = t->H,
                                    .width = (int)t->W, .host = host, .error = &e);
    for (int i = 0; i < t->inputs; i++) {
        in[i] = store(t, &t->in[i], dtype, dense, t->in[i].x);
        views[i] = in[i].view;
        d[i] = store(t, &t->in[i], dtype, dense, NULL);
        to[i] = NULL;
        if (differentiates(t, i) && (all || !one_in(3))) dviews[i] = d[i].view;
    }
    const struct stored dy = store(t, &t->y, dtype, dense, t->dy);
    const loci_status status = backward(t, &l, views, dy.view, dviews);
    if (!CHECK_THAT(!status, "seed %lu: backward of %s: %s", seed, names[t->op], e.text))
        return false;
    for (int i = 0; i < t->inputs; i++)
        if (dviews[i].data)
            CHECK_THAT(load(t, &d[i], &to[i]), "seed %lu: backward of %s writes between its rows",
                       seed, names[t->op]);
    return true;
}
static double loss(const struct task *t, double *y)
{
    double sum = 0;
    define(t, y);
    for (size_t i = 0; i < count_of(&t->y); i++) sum += t->dy[i] * y[i];
    return sum;
}
/* The slope along a direction, by four points of the definition. */
static void check_slope(struct task *t, unsigned long seed, double *const d[INPUTS])
{
    static const double at[] = { -2, -1, 1, 2 }, weight[] = { 1, -8, 8, -1 };
    const double h = 0x1p-11;
    double *y = mem_alloc(t->mem, (count_of(&t->y) + 1) * sizeof *y);
    for (int i = 0; i < t->inputs; i++) {
        if (!d[i]) continue;
        const size_t n = count_of(&t->in[i]);
        double *was = t->in[i].x, *u = mem_alloc(t->mem, (n + 1) * sizeof *u);
        double *moved = mem_alloc(t->mem, (n + 1) * sizeof *moved), got = 0, want = 0, most = 1;
        for (size_t k = 0; k < n; k++) {
            u[k] = walk_uniform();
            got += d[i][k] * u[k];
            most += fabs(d[i][k] * u[k]);
        }
        t->in[i].x = moved;
        for (int p = 0; p < 4; p++) {
            for (size_t k = 0; k < n; k++) moved[k] = was[k] + at[p] * h * u[k];
            want += weight[p] * loss(t, y) / (12 * h);
        }
        t->in[i].x = was;
        CHECK_THAT(fabs(got - want) < 1e-7 * most, "seed %lu: %s, input %d: slope %.12g for %.12g",
                   seed, names[t->op], i, got, want);
    }
}

/* The distance of two results.  Angles may differ by turns of 2 pi. */
static double apart(const struct task *t, double got, double want)
{
    return fabs(t->op == ANGLES ? remainder(got - want, 0x1.921fb54442d18p2) : got - want);
}

/* ---- A round --------------------------------------------------------------------------------- */

static bool same(const double *a, const double *b, size_t n)
{
    return !n || !memcmp(a, b, n * sizeof *a);
}
void layers_round(unsigned long seed, const loci_host *pool, struct mem *mem)
{
    struct task task, *const t = &task;
    draw(t, mem);
    const size_t n = count_of(&t->y);
    const loci_dtype dtype = one_in(2) ? LOCI_F64 : LOCI_F32;
    double *want = mem_alloc(mem, (n + 1) * sizeof *want), most = 0, far = 0;
    define(t, want);
    const double *got = compute(t, seed, dtype, true, NULL),
                 *other = compute(t, seed, dtype, false, pool);
    if (!got || !other) return;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs(want[i]));
    const double unit = dtype == LOCI_F64 ? 0 : 0x1p-24;
    for (size_t i = 0; i < n; i++)
        far = fmax(far, apart(t, got[i], want[i]) - 1.01 * unit * fabs(want[i]));
    CHECK_THAT(far <= 1e-13 * (1 + most), "seed %lu: %s, %td x %d x %td x %td: off by %.1e of %.1e",
               seed, names[t->op], t->B, t->H, t->L, t->W, far, most);
    CHECK_THAT(same(got, other, n),
               "seed %lu: %s, %td x %d x %td x %td: strides, threads or in "
               "place: other bits",
               seed, names[t->op], t->B, t->H, t->L, t->W);
    if (!t->seg && !(t->pos && t->per_batch)) {
        const int per_batch = t->per_batch;
        t->per_batch = 0;
        const double *chunks = in_chunks(t, seed, dtype, pool);
        t->per_batch = per_batch;
        CHECK_THAT(chunks && same(got, chunks, n),
                   "seed %lu: %s, %td x %d x %td x %td: chunks: "
                   "other bits",
                   seed, names[t->op], t->B, t->H, t->L, t->W);
    }
    double *d[INPUTS], *few[INPUTS];
    if (t->op == TEMPERATURE || t->op == TAPE_START) return;
    if (!gradients(t, seed, dtype, true, NULL, true, d)
        || !gradients(t, seed, dtype, false, pool, false, few))
        return;
    for (int i = 0; i < t->inputs; i++)
        if (few[i])
            CHECK_THAT(same(d[i], few[i], count_of(&t->in[i])),
                       "seed %lu: backward of %s, input "
                       "%d: strides, threads or gradients that are not wanted: other bits",
                       seed, names[t->op], i);
    if (dtype == LOCI_F64 && most < 1e4) check_slope(t, seed, d);
}
