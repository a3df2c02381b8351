/* SPDX-License-Identifier: MIT */
/* fast.c -- plans that multiply by bf16 dot products: their error against the float64 reference,
 * compared with the documented bound and with textbook attention that rounds everything to bf16.  A
 * row's bits depend on its query and keys only.  Where the flag has no effect, bits do not
 * change. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "math/half.h"
#include "contract/plan.h"
#include "reference/reference.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

static double worst_o, worst_row;
/* relative to 1 + the largest exact value */
static const double bound_o = 3e-2, bound_row = 1e-2;

static bool runs(const loci_plan *p) { return strstr(loci_plan_text(p), " fast=") != NULL; }

/* ---- A call ---------------------------------------------------------------------------------- */

struct side {
    loci_plan *plan;
    loci_call call;
    void *data[WALK_TENSORS], *tables, *work;
    struct mem mem;
    loci_error error;
};
static void close_side(struct side *s)
{
    mem_release(&s->mem, 0);
    loci_plan_destroy(s->plan);
}
static void *stored(struct side *s, const double *x, size_t count)
{
    uint16_t *to = mem_alloc(&s->mem, count * sizeof *to);
    for (size_t i = 0; i < count; i++) to[i] = to_bf16((float)x[i]);
    return to;
}
static bool forward(struct side *s, ptrdiff_t range)
{
    s->call.error = &s->error;
    s->tables = mem_alloc(&s->mem, loci_tables_size(s->plan, range));
    s->work = mem_alloc(&s->mem, loci_workspace(s->plan, &s->call, 0));
    return CHECK_THAT(!loci_prepare(s->plan, range, s->call.tensors, s->tables)
                          && !loci_forward(s->plan, s->tables, s->work, &s->call),
                      "%s: %s", loci_plan_text(s->plan), s->error.text);
}

/* ---- Every text ------------------------------------------------------------------------------ */

/* The largest difference relative to 1 + the largest exact number.  Numbers that are not finite
 * must agree. */
static double error_of(const double *want, const void *got, loci_dtype dtype, size_t count)
{
    double most = 0, worst = 0;
    for (size_t i = 0; i < count; i++)
        if (isfinite(want[i])) most = fmax(most, fabs(want[i]));
    for (size_t i = 0; i < count; i++) {
        const double x = load_stored(got, dtype, (ptrdiff_t)i),
                     d = x == want[i] || (isnan(x) && isnan(want[i])) ? 0 : fabs(x - want[i]);
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
    }
    return worst / (1 + most);
}
static void check_error(const struct walk *w, const char *name, const double *want, const void *got,
                        loci_dtype dtype, size_t count, double bound, double *worst)
{
    if (!got) return;
    const double error = error_of(want, got, dtype, count);
    if (error > *worst) *worst = error;
    CHECK_CLOSE(error, 0, bound, "%s (%s): %s", w->encoding, w->shape, name);
}
static void compare(struct walk *w)
{
    if (w->stage != LOCI_ATTENTION) return;
    const int stage = w->inputs - w->tensors;
    struct side s = { .call = w->call };
    loci_desc d = w->desc;
    d.dtype = LOCI_BF16;
    d.fast = 1;
    if (!CHECK_THAT(!loci_plan_create(&s.plan, &d, &s.error), "%s: %s", w->encoding, s.error.text))
        return;
    void **in[] = { &s.call.q.data, &s.call.k.data, &s.call.v.data };
    for (int i = 0; i < w->inputs; i++) {
        const size_t count = w->input[i].count;
        if (i < stage) {
            *in[i] = stored(&s, w->input[i].x, count);
            for (size_t k = 0; k < count; k++)
                w->input[i].x[k] = load_stored(*in[i], LOCI_BF16, (ptrdiff_t)k);
        } else {
            float *to = s.data[i - stage] = mem_alloc(&s.mem, count * sizeof *to);
            for (size_t k = 0; k < count; k++) to[k] = (float)w->input[i].x[k];
        }
    }
    s.call.tensors = (const void *const *)s.data;
    s.call.o.data = mem_alloc(&s.mem, w->out_count * sizeof(uint16_t));
    const bool stick = s.plan->weight >= 0;
    s.call.lse = stick ? NULL : mem_alloc(&s.mem, w->row_count * sizeof(float));
    s.call.rem = stick ? mem_alloc(&s.mem, w->row_count * sizeof(float)) : NULL;
    s.call.ae = w->state_count ? mem_alloc(&s.mem, w->state_count * sizeof(float)) : NULL;
    if (CHECK_THAT(!loci_reference(w->plan, w->data, &w->call, NULL), "%s: the reference refuses",
                   w->encoding)
        && forward(&s, 2 * WALK_LENGTH)) {
        check_error(w, "o", w->call.o.data, s.call.o.data, LOCI_BF16, w->out_count, bound_o,
                    &worst_o);
        check_error(w, "lse", w->call.lse, s.call.lse, LOCI_F32, w->row_count, bound_row,
                    &worst_row);
        check_error(w, "rem", w->call.rem, s.call.rem, LOCI_F32, w->row_count, bound_row,
                    &worst_row);
        check_error(w, "ae", w->call.ae, s.call.ae, LOCI_F32, w->state_count, bound_o, &worst_o);
    }
    close_side(&s);
}

/* ---- Variations of one shape ----------------------------------------------------------------- */

/* H heads of D and Dv, L tokens.  The caller changes some inputs before the call. */
struct shape {
    const char *text;
    int heads, kv_heads, dim, value_dim;
    ptrdiff_t len;
    int full;
};
static void random_numbers(double *x, size_t count, double scale)
{
    for (size_t i = 0; i < count; i++) x[i] = scale * walk_uniform();
}
/* The same numbers for the same shape. */
static struct side open_shape(const struct shape *f, bool fast, const char *isa)
{
    struct side s = { .call = LOCI_CALL(.batch = 1, .q_len = f->len, .k_len = f->len) };
    const loci_desc d = LOCI_DESC(.encoding = f->text, .heads = f->heads, .kv_heads = f->kv_heads,
                                  .dim = f->dim, .value_dim = f->value_dim, .full = f->full,
                                  .dtype = LOCI_BF16, .fast = fast, .isa = isa);
    if (loci_plan_create(&s.plan, &d, &s.error)) {
        printf("%s: %s\n", f->text, s.error.text);
        exit(2);
    }
    const size_t q = (size_t)(f->heads * f->len * f->dim),
                 k = (size_t)(f->kv_heads * f->len * f->dim),
                 v = (size_t)(f->kv_heads * f->len * f->value_dim),
                 o = (size_t)(f->heads * f->len * f->value_dim);
    double *x = mem_alloc(&s.mem, (q + k + v) * sizeof *x);
    walk_restart(5);
    random_numbers(x, q + k + v, 2);
    s.call.q.data = stored(&s, x, q);
    s.call.k.data = stored(&s, x + q, k);
    s.call.v.data = stored(&s, x + q + k, v);
    s.call.o.data = mem_alloc(&s.mem, o * sizeof(uint16_t));
    float *rows = mem_alloc(&s.mem, (size_t)(f->heads * f->len) * sizeof *rows);
    if (s.plan->weight >= 0) s.call.rem = rows;
    else s.call.lse = rows;
    loci_tensor tensor[WALK_TENSORS];
    const int n = loci_tensors(s.plan, tensor, WALK_TENSORS);
    for (int i = 0; i < n; i++) {
        const size_t count = walk_count(&tensor[i], 1, f->len, f->len);
        float *data = s.data[i] = mem_alloc(&s.mem, count * sizeof *data);
        if (tensor[i].role != LOCI_INPUT) loci_tensor_init(s.plan, i, 3, data);
        for (size_t e = 0; e < count && tensor[i].role == LOCI_INPUT; e++)
            data[e] = strncmp(tensor[i].name, "log_", 4) ? (float)walk_uniform()
                                                         : (float)(-0.05 * (1 + walk_uniform()));
    }
    return s;
}
static void run_shape(struct side *s)
{
    s->call.tensors = (const void *const *)s->data;
    forward(s, s->call.k_len);
}
/* Compares rows `first` .. of every head in two results of q_len a and b rows. */
static bool same_rows(const void *x, ptrdiff_t a, const void *y, ptrdiff_t b, int heads,
                      ptrdiff_t rows, size_t width)
{
    bool same = true;
    for (int h = 0; h < heads; h++)
        same &= !memcmp((const char *)x + (size_t)(h * a + a - rows) * width,
                        (const char *)y + (size_t)(h * b + b - rows) * width, (size_t)rows * width);
    return same;
}
static void *rows_of(const struct side *s) { return s->call.lse ? s->call.lse : s->call.rem; }

/* The last rows alone, next to rows of another tile, and with three threads. */
static void pure(const struct shape *f)
{
    struct side all = open_shape(f, true, NULL), many = open_shape(f, true, NULL),
                some = open_shape(f, true, NULL);
    const size_t width = sizeof(uint16_t) * (size_t)f->value_dim;
    const ptrdiff_t rows = f->len - 37;
    loci_host pool;
    if (loci_pool_create(&pool, 3)) exit(2);
    run_shape(&all);
    many.call.host = &pool;
    run_shape(&many);
    CHECK_THAT(same_rows(all.call.o.data, f->len, many.call.o.data, f->len, f->heads, f->len, width)
                   && same_rows(rows_of(&all), f->len, rows_of(&many), f->len, f->heads, f->len,
                                sizeof(float)),
               "%s: other bits with three threads", f->text);
    for (int h = 0; h < f->heads; h++)
        memmove((uint16_t *)some.call.q.data + h * rows * f->dim,
                (uint16_t *)some.call.q.data + (h * f->len + 37) * f->dim,
                sizeof(uint16_t) * (size_t)(rows * f->dim));
    some.call.q_len = rows;
    run_shape(&some);
    CHECK_THAT(same_rows(all.call.o.data, f->len, some.call.o.data, rows, f->heads, rows, width)
                   && same_rows(rows_of(&all), f->len, rows_of(&some), rows, f->heads, rows,
                                sizeof(float)),
               "%s: other bits in another tile", f->text);
    loci_pool_destroy(&pool);
    close_side(&all);
    close_side(&many);
    close_side(&some);
}

/* Keys that a row does not see may contain anything.  A visible value that is not finite reaches
 * the row. */
static void poison(const struct shape *f, uint16_t with)
{
    struct side clean = open_shape(f, true, NULL), bad = open_shape(f, true, NULL);
    const ptrdiff_t at = f->len - 30;
    for (int h = 0; h < f->kv_heads; h++) {
        for (int d = 0; d < f->dim; d++)
            ((uint16_t *)bad.call.k.data)[(h * f->len + at) * f->dim + d] = with;
        ((uint16_t *)bad.call.v.data)[(h * f->len + at + 3) * f->value_dim + 1] = with;
        ((uint16_t *)bad.call.v.data)[(h * f->len + 2) * f->value_dim] = with;
    }
    run_shape(&clean);
    run_shape(&bad);
    bool same = true, reaches = true;
    for (int h = 0; h < f->heads; h++)
        for (ptrdiff_t i = 0; i < f->len; i++) {
            const uint16_t *x = (uint16_t *)clean.call.o.data + (h * f->len + i) * f->value_dim,
                           *y = (uint16_t *)bad.call.o.data + (h * f->len + i) * f->value_dim;
            const bool sees = f->full || i >= 2;
            const float got = from_bf16(y[0]), put = from_bf16(with);
            if (sees) reaches &= !isfinite(got);
            /* an infinity stays, multiplied by a weight that is not 0 */
            if (sees && i < 40 && !f->full) reaches &= isnan(put) ? isnan(got) : got == put;
            for (int d = sees; d < f->value_dim && i < at && !f->full; d++) same &= x[d] == y[d];
        }
    CHECK_THAT(same, "%s: a key that is not seen changes bits", f->text);
    CHECK_THAT(reaches, "%s: a value that is not finite is lost", f->text);
    close_side(&clean);
    close_side(&bad);
}

/* Padding: rows that see no key, and keys that no row sees. */
static void padded(const struct shape *f)
{
    struct side clean = open_shape(f, true, NULL), bad = open_shape(f, true, NULL);
    int64_t *seg = mem_alloc(&clean.mem, (size_t)f->len * sizeof *seg);
    /* no runs of neighbours */
    for (ptrdiff_t i = 0; i < f->len; i++) seg[i] = i % 5 == 3 ? -1 : i % 2;
    clean.call.q_seg = clean.call.k_seg = bad.call.q_seg = bad.call.k_seg = seg;
    for (int h = 0; h < f->kv_heads; h++)
        for (ptrdiff_t j = 0; j < f->len; j++)
            for (int d = 0; d < f->dim && seg[j] < 0; d++) {
                uint16_t *k = bad.call.k.data, *v = bad.call.v.data;
                k[(h * f->len + j) * f->dim + d] = 0x7fc0;
                v[(h * f->len + j) * f->value_dim + d % f->value_dim] = 0x7fc0;
            }
    run_shape(&clean);
    run_shape(&bad);
    const size_t o = sizeof(uint16_t) * (size_t)(f->heads * f->len * f->value_dim);
    CHECK_THAT(!memcmp(clean.call.o.data, bad.call.o.data, o), "%s: padding changes bits", f->text);
    bool empty = true;
    for (ptrdiff_t i = 3; i < f->len; i += 5) {
        empty &= ((float *)clean.call.lse)[i] == -INFINITY;
        for (int d = 0; d < f->value_dim; d++)
            empty &= ((uint16_t *)clean.call.o.data)[i * f->value_dim + d] == 0;
    }
    CHECK_THAT(empty, "%s: a row without keys is not 0, or its lse not -inf", f->text);
    close_side(&clean);
    close_side(&bad);
}

/* A row whose products with all keys are -inf is NaN, and no other row is.  `whole`: they are
 * finite, since the scale is applied first.  Then all keys have about the same weight. */
static void overflow(const struct shape *f, double query, bool whole)
{
    enum { ROW = 70 };
    struct side s = open_shape(f, true, NULL);
    const ptrdiff_t last = f->dim - 1;
    for (ptrdiff_t i = 0; i < f->heads * f->len; i++)
        ((uint16_t *)s.call.q.data)[i * f->dim + last] =
            to_bf16(i % f->len == ROW ? (float)query : 0);
    for (ptrdiff_t i = 0; i < f->kv_heads * f->len; i++)
        ((uint16_t *)s.call.k.data)[i * f->dim + last] = to_bf16(-1e20f);
    run_shape(&s);
    bool shows = true;
    for (ptrdiff_t i = 0; i < f->heads * f->len; i++) {
        const bool none = i % f->len == ROW && !whole;
        shows &= !isnan(((float *)s.call.lse)[i]) != none;
        for (int d = 0; d < f->value_dim; d++) {
            const double o = load_stored(s.call.o.data, LOCI_BF16, i * f->value_dim + d);
            shows &= !isnan(o) != none && (none || fabs(o) <= 2);
        }
    }
    CHECK_THAT(shows, "%s: a row whose products overflow is not NaN, or another is", f->text);
    close_side(&s);
}

/* ---- Against attention that rounds everything ------------------------------------------------ */

static double round16(double x) { return from_bf16(to_bf16((float)x)); }
static void textbook(int dim, double scale)
{
    enum { L = 300 };
    const struct shape f = { "nope", 1, 1, dim, dim, L, 0 };
    struct side s = open_shape(&f, true, NULL);
    for (ptrdiff_t i = 0; i < L * dim; i++)
        ((uint16_t *)s.call.q.data)[i] =
            to_bf16((float)(scale * from_bf16(((uint16_t *)s.call.q.data)[i])));
    run_shape(&s);
    double mine = 0, naive = 0, lse = 0;
    double *p = mem_alloc(&s.mem, L * sizeof *p), *r = mem_alloc(&s.mem, L * sizeof *r);
    for (ptrdiff_t i = 0; i < L; i++) {
        double sum = 0, rsum = 0, most = -INFINITY;
        for (ptrdiff_t j = 0; j <= i; j++) {
            double x = 0;
            for (int d = 0; d < dim; d++)
                x += load_stored(s.call.q.data, LOCI_BF16, i * dim + d)
                   * load_stored(s.call.k.data, LOCI_BF16, j * dim + d);
            p[j] = x / sqrt(dim);
            most = fmax(most, p[j]);
        }
        const double rmost = round16(most);
        for (ptrdiff_t j = 0; j <= i; j++) {
            r[j] = round16(exp(round16(round16(p[j]) - rmost)));
            rsum += r[j];
            p[j] = exp(p[j] - most);
            sum += p[j];
        }
        for (ptrdiff_t j = 0; j <= i; j++) r[j] = round16(r[j] / rsum);
        lse = fmax(lse, fabs(((float *)s.call.lse)[i] - (most + log(sum))));
        for (int d = 0; d < dim; d++) {
            double o = 0, ro = 0;
            for (ptrdiff_t j = 0; j <= i; j++) {
                const double v = load_stored(s.call.v.data, LOCI_BF16, j * dim + d);
                o += p[j] / sum * v;
                ro += r[j] * v;
            }
            mine = fmax(mine, fabs(load_stored(s.call.o.data, LOCI_BF16, i * dim + d) - o));
            naive = fmax(naive, fabs(round16(ro) - o));
        }
    }
    printf("nope, width %d, queries times %g: o within %.2g, attention rounded to bf16 at every "
           "step "
           "%.2g; lse within %.2g\n",
           dim, scale, mine, naive, lse);
    CHECK_THAT(mine <= naive, "nope: further from the exact result than attention that rounds "
                              "every "
                              "step");
    CHECK_CLOSE(lse, 0, 1e-4, "nope: lse is inexact");
    close_side(&s);
}

/* ---- No effect of the flag ------------------------------------------------------------------- */

/* With another instruction set, for a single row, and backward. */
static void unchanged(const struct shape *f, const char *isa)
{
    struct side with = open_shape(f, true, isa), without = open_shape(f, false, isa);
    CHECK_THAT(!runs(without.plan), "%s: fast without being asked", f->text);
    run_shape(&with);
    run_shape(&without);
    CHECK_THAT(!memcmp(with.call.o.data, without.call.o.data,
                       sizeof(uint16_t) * (size_t)(f->heads * with.call.q_len * f->value_dim)),
               "%s: other bits where fast is not used", f->text);
    close_side(&with);
    close_side(&without);
}
static void backward(const struct shape *f)
{
    struct side s[] = { open_shape(f, true, NULL), open_shape(f, false, NULL) };
    uint16_t *grad[2][3];
    const size_t counts[] = { (size_t)(f->heads * f->len * f->dim),
                              (size_t)(f->kv_heads * f->len * f->dim),
                              (size_t)(f->kv_heads * f->len * f->value_dim) };
    for (int i = 0; i < 2; i++) {
        run_shape(&s[i]);
        loci_grad g = LOCI_GRAD(.dout.data = s[0].call.o.data);
        for (int k = 0; k < 3; k++) grad[i][k] = mem_alloc(&s[i].mem, counts[k] * sizeof(uint16_t));
        g.dq.data = grad[i][0];
        g.dk.data = grad[i][1];
        g.dv.data = grad[i][2];
        if (i) {
            s[1].call.o = s[0].call.o;
            s[1].call.lse = s[0].call.lse;
        }
        void *work = mem_alloc(&s[i].mem, loci_workspace(s[i].plan, &s[i].call, 1));
        CHECK_THAT(!loci_backward(s[i].plan, s[i].tables, work, &s[i].call, &g), "%s: %s", f->text,
                   s[i].error.text);
    }
    for (int k = 0; k < 3; k++)
        CHECK_THAT(!memcmp(grad[0][k], grad[1][k], sizeof(uint16_t) * counts[k]),
                   "%s: other gradients of the same o and lse", f->text);
    close_side(&s[0]);
    close_side(&s[1]);
}

static void refusals(void)
{
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_F64, LOCI_F16 };
    for (int i = 0; i < COUNT(dtypes); i++) {
        const loci_desc d = LOCI_DESC(.heads = 1, .dim = 8, .dtype = dtypes[i], .fast = 1);
        loci_error e = { 0 };
        loci_plan *p;
        CHECK_THAT(loci_plan_create(&p, &d, &e) == LOCI_BAD_ARG && !p
                       && !strncmp(e.text, "fast requires dtype BF16", 21),
                   "refusal: %s", e.text);
    }
}

int main(void)
{
    const char *isas[8];
    const int count = loci_isas(isas, 8);
    refusals();
    for (int i = 0; i + 1 < count; i++)
        unchanged(&(struct shape){ "rope:pairing=half", 2, 1, 16, 16, 70, 0 }, isas[i]);
    struct side one = open_shape(&(struct shape){ "nope", 1, 1, 8, 8, 8, 0 }, true, NULL);
    const bool here = runs(one.plan);
    close_side(&one);
    if (!here) {
        printf("this CPU, or this build, has no bf16 dot products: only what does not need them is "
               "tested\n");
        return harness_end();
    }
    unchanged(&(struct shape){ "rope:pairing=half", 2, 1, 16, 16, 1, 0 }, NULL);
    walk_all(WALK_SMALL, compare);
    if (!LOCI_SLOW || walk_whole()) walk_all(WALK_TILES, compare);
    printf("o is within %.2g and lse and rem within %.2g of the reference\n", worst_o, worst_row);
    static const struct shape shapes[] = {
        { "nope", 2, 1, 64, 64, 150, 0 },
        { "nope", 1, 1, 33, 37, 131, 0 },
        { "nope", 1, 1, 1, 1, 67, 1 },
        { "rope:pairing=half", 2, 1, 16, 40, 200, 0 },
        { "rope:pairing=half+alibi", 2, 2, 16, 16, 200, 1 },
        { "xpos", 1, 1, 16, 16, 200, 0 },
        { "shaw:left=8,right=8", 2, 2, 12, 12, 200, 0 },
        { "deberta", 2, 1, 32, 32, 140, 1 },
        { "fox", 2, 2, 32, 32, 4200, 0 },
        { "cope", 2, 2, 16, 16, 200, 0 },
        { "sba", 2, 2, 16, 16, 200, 0 },
        { "cape+alibi", 2, 2, 16, 16, 150, 0 },
    };
    for (int i = 0; i < COUNT(shapes); i++) pure(&shapes[i]);
    poison(&shapes[0], 0x7fc0);
    poison(&shapes[0], 0xff80);
    poison(&(struct shape){ "nope", 1, 1, 33, 37, 131, 1 }, 0x7fff);
    poison(&shapes[3], 0x7f80);
    padded(&shapes[0]);
    padded(&(struct shape){ "rope:pairing=half", 1, 1, 32, 32, 99, 1 });
    overflow(&shapes[0], 1e20, false);
    overflow(&shapes[1], 1e20, false);
    overflow(&shapes[9], 1e20, false);
    overflow(&(struct shape){ "rope:pairing=half,base=1e12", 2, 1, 16, 40, 200, 0 }, 1e20, false);
    /* a product beyond the floats, times a scale that is applied to the queries or afterwards */
    overflow(&shapes[0], 4e18, true);
    overflow(&shapes[1], 4e18, false);
    textbook(64, 1);
    textbook(128, 1);
    textbook(64, 6);
    textbook(57, 3);
    backward(&shapes[0]);
    backward(&shapes[3]);
    return harness_end();
}
