/* SPDX-License-Identifier: MIT */
/* storage.c -- bf16 and f16: a call on 16-bit numbers equals the f32 call on the same numbers with
 * its outputs rounded once, to the last bit, for every text of the walk and every instruction set.
 * The backward pass reads the rounded o. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "math/half.h"
#include "loci/convert.h"
#include "contract/plan.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

static const char *const names[] = { "f32", "f64", "bf16", "f16" };

/* One of the two calls. */
struct side {
    loci_dtype dtype;
    loci_plan *plan;
    loci_call call;
    loci_grad grad;
    void *data[WALK_TENSORS], *ddata[WALK_TENSORS];
    struct mem mem;
};

/* Numbers as `half` stores them, in the side's own type. */
static void *stored(struct side *s, loci_dtype half, const double *x, size_t count)
{
    void *to = mem_alloc(&s->mem, count * stored_size(s->dtype));
    for (size_t i = 0; i < count; i++) {
        uint16_t h[4] = { 0 };
        store_stored(h, half, 0, x[i]);
        store_stored(to, s->dtype, (ptrdiff_t)i, load_stored(h, half, 0));
    }
    return to;
}
static void *floats(struct side *s, const double *x, size_t count)
{
    float *to = mem_alloc(&s->mem, count * sizeof *to);
    for (size_t i = 0; i < count; i++) to[i] = (float)x[i];
    return to;
}

static bool open(struct side *s, const struct walk *w, loci_dtype dtype, loci_dtype half,
                 const char *isa, loci_error *e)
{
    loci_desc d = w->desc;
    *s = (struct side){ .dtype = dtype, .call = w->call, .grad = w->grad };
    d.dtype = dtype;
    d.isa = isa;
    if (loci_plan_create(&s->plan, &d, e)) return false;
    const bool stick = s->plan->weight >= 0;
    const int stage = w->inputs - w->tensors;
    void **in[] = { &s->call.q.data, &s->call.k.data, &s->call.v.data },
         **out[] = { &s->grad.dq.data, &s->grad.dk.data, &s->grad.dv.data };
    for (int i = 0; i < w->inputs; i++) {
        const size_t count = w->input[i].count;
        if (i < stage) {
            *in[i] = stored(s, half, w->input[i].x, count);
            *out[i] = mem_alloc(&s->mem, count * stored_size(dtype));
        } else {
            s->data[i - stage] = floats(s, w->input[i].x, count);
            s->ddata[i - stage] = mem_alloc(&s->mem, count * sizeof(float));
        }
    }
    s->call.tensors = (const void *const *)s->data;
    s->grad.dtensors = s->ddata;
    s->call.error = e;
    s->call.o.data = mem_alloc(&s->mem, w->out_count * stored_size(dtype));
    s->grad.dout.data = stored(s, half, w->grad.dout.data, w->out_count);
    s->call.lse = stick || !w->row_count ? NULL : mem_alloc(&s->mem, w->row_count * sizeof(float));
    s->call.rem = stick ? mem_alloc(&s->mem, w->row_count * sizeof(float)) : NULL;
    s->grad.dlse = stick || !w->row_count ? NULL : floats(s, w->grad.dlse, w->row_count);
    s->grad.drem = stick ? floats(s, w->grad.drem, w->row_count) : NULL;
    if (w->state_count) {
        s->call.ae = mem_alloc(&s->mem, w->state_count * sizeof(float));
        s->grad.dae = floats(s, w->grad.dae, w->state_count);
    }
    return true;
}

static loci_status forward(struct side *s, const void *tables, void *work)
{
    switch (s->plan->stage) {
    case LOCI_ATTENTION:
        return loci_forward(s->plan, tables, work, &s->call);
    case LOCI_LINEAR_ATTENTION:
        return loci_linear_forward(s->plan, tables, work, &s->call, NULL, NULL);
    case LOCI_ROTATE:
        return loci_rotate(s->plan, tables, work, &s->call, LOCI_QUERY, s->call.q, s->call.o);
    default:
        return loci_embed(s->plan, tables, &s->call, s->call.q, s->call.o);
    }
}
static loci_status backward(struct side *s, const void *tables, void *work)
{
    switch (s->plan->stage) {
    case LOCI_ATTENTION:
        return loci_backward(s->plan, tables, work, &s->call, &s->grad);
    case LOCI_LINEAR_ATTENTION:
        return loci_linear_backward(s->plan, tables, work, &s->call, &s->grad);
    case LOCI_ROTATE:
        return loci_rotate_backward(s->plan, tables, work, &s->call, LOCI_QUERY, s->call.q,
                                    s->grad.dout, s->grad.dq, s->ddata);
    default:
        return loci_embed_backward(s->plan, tables, work, &s->call, s->grad.dout, s->ddata);
    }
}
static bool run(struct side *s, loci_status (*pass)(struct side *, const void *, void *))
{
    void *tables = mem_alloc(&s->mem, loci_tables_size(s->plan, 2 * WALK_LENGTH)),
         *work = mem_alloc(&s->mem, loci_workspace(s->plan, &s->call, 1));
    return !loci_prepare(s->plan, 2 * WALK_LENGTH, (const void *const *)s->data, tables)
        && !pass(s, tables, work);
}

/* x: the f32 call's; y: the other's, in its type. */
static void same(const struct walk *w, const char *isa, loci_dtype type, const char *name,
                 const float *x, const void *y, size_t count)
{
    for (size_t i = 0; i < count && x; i++) {
        float want = x[i];
        if (type != LOCI_F32) {
            uint16_t h[4] = { 0 }; /* as large as any type */
            store_stored(h, type, 0, (double)want);
            want = (float)load_stored(h, type, 0);
        }
        const float got = (float)load_stored(y, type, (ptrdiff_t)i);
        if (bits_of(want) == bits_of(got) || (isnan(want) && isnan(got))) continue;
        CHECK_FAILED("%s (%s), %s on %s: %s[%zu] is %.9g, the f32 call rounded %.9g", w->encoding,
                     w->shape, names[type], isa, name, i, (double)got, (double)want);
        return;
    }
    harness_pass();
}

static void compare(struct walk *w, const char *isa, loci_dtype half)
{
    struct side a = { 0 }, b = { 0 };
    loci_error e = { 0 };
    if (!open(&a, w, LOCI_F32, half, isa, &e) || !open(&b, w, half, half, isa, &e)
        || !run(&a, forward) || !run(&b, forward)) {
        CHECK_FAILED("%s (%s), %s on %s: %s", w->encoding, w->shape, names[half], isa, e.text);
    } else {
        same(w, isa, half, "o", a.call.o.data, b.call.o.data, w->out_count);
        same(w, isa, LOCI_F32, "lse", a.call.lse, b.call.lse, w->row_count);
        same(w, isa, LOCI_F32, "rem", a.call.rem, b.call.rem, w->row_count);
        same(w, isa, LOCI_F32, "ae", a.call.ae, b.call.ae, w->state_count);
        for (size_t i = 0; i < w->out_count; i++)
            ((float *)a.call.o.data)[i] = (float)load_stored(b.call.o.data, half, (ptrdiff_t)i);
        if (!run(&a, backward) || !run(&b, backward)) {
            CHECK_FAILED("%s (%s), %s on %s, backward: %s", w->encoding, w->shape, names[half], isa,
                         e.text);
        } else {
            const int stage = w->inputs - w->tensors;
            void *const x[] = { a.grad.dq.data, a.grad.dk.data, a.grad.dv.data }, *const y[] = {
                b.grad.dq.data, b.grad.dk.data, b.grad.dv.data
            };
            for (int i = w->stage == LOCI_EMBED; i < w->inputs; i++) {
                if (i < stage) same(w, isa, half, w->input[i].name, x[i], y[i], w->input[i].count);
                else if (w->tensor[i - stage].role != LOCI_FIXED)
                    same(w, isa, LOCI_F32, w->input[i].name, a.ddata[i - stage], b.ddata[i - stage],
                         w->input[i].count);
            }
        }
    }
    mem_release(&a.mem, 0);
    mem_release(&b.mem, 0);
    loci_plan_destroy(a.plan);
    loci_plan_destroy(b.plan);
}

static void check_from(struct walk *w, int first)
{
    const char *isas[8];
    const int count = loci_isas(isas, 8);
    for (int i = first < count - 1 ? first : count - 1; i < count; i++) {
        compare(w, isas[i], LOCI_BF16);
        compare(w, isas[i], LOCI_F16);
    }
}
/* Small problems on every instruction set, large ones on the best. */
static void check_all(struct walk *w) { check_from(w, LOCI_EMULATED ? 8 : 0); }
static void check_best(struct walk *w) { check_from(w, 8); }

/* ---- Rounding -------------------------------------------------------------------------------- */

/* Two keys of equal weight whose values are adjacent numbers: o is the midpoint between them, which
 * is a tie.  Every finite 16-bit number, by tiles and row by row, against loci_round(), which uses
 * another method. */
static void ties(const char *isa, loci_dtype half, ptrdiff_t rows)
{
    enum { WIDTH = 67, ENTRIES = 65536 / WIDTH + 1 };
    loci_desc d =
        LOCI_DESC(.heads = 1, .dim = 2, .value_dim = WIDTH, .full = 1, .dtype = half, .isa = isa);
    loci_plan *plan;
    loci_error e = { 0 };
    uint16_t *v = calloc(ENTRIES, 2 * WIDTH * sizeof *v),
             *o = calloc(ENTRIES, (size_t)rows * WIDTH * sizeof *o),
             *qk = calloc(ENTRIES, 16 * sizeof *qk);
    if (!v || !o || !qk || loci_plan_create(&plan, &d, &e)) exit(2);
    for (int i = 0; i < 65536; i++) {
        uint16_t *x = v + i / WIDTH * 2 * WIDTH + i % WIDTH, next = (uint16_t)(i + 1);
        x[0] = (uint16_t)i;
        x[WIDTH] = isfinite(load_stored(&next, half, 0)) && isfinite(load_stored(x, half, 0))
                     ? next
                     : (uint16_t)i;
    }
    loci_call c = LOCI_CALL(.batch = ENTRIES, .q_len = rows, .k_len = 2, .q.data = qk, .k.data = qk,
                            .v.data = v, .o.data = o, .error = &e);
    void *tables = aligned_alloc(64, loci_tables_size(plan, 8) + 64),
         *work = aligned_alloc(64, loci_workspace(plan, &c, 0));
    int wrong = 0;
    if (!tables || !work || loci_prepare(plan, 8, NULL, tables)
        || loci_forward(plan, tables, work, &c))
        exit(2);
    for (int i = 0; i < 65536; i++) {
        const uint16_t *x = v + i / WIDTH * 2 * WIDTH + i % WIDTH;
        /* +0 if both are -0 */
        const float sum = (float)load_stored(x, half, 0) + (float)load_stored(x + WIDTH, half, 0);
        const double middle = (double)((0.0f + sum) * 0.5f);
        uint16_t want;
        loci_round(half, 1, &middle, &want);
        for (ptrdiff_t r = 0; r < rows; r++) {
            const uint16_t got = o[(i / WIDTH * rows + r) * WIDTH + i % WIDTH];
            if (got == want || (isnan(middle) && isnan(load_stored(&got, half, 0)))) continue;
            if (!wrong++)
                CHECK_FAILED("%s on %s, %td rows: half way from %04x is %04x, expected %04x",
                             names[half], isa, rows, *x, got, want);
        }
    }
    if (!wrong) harness_pass();
    free(v);
    free(o);
    free(qk);
    free(tables);
    free(work);
    loci_plan_destroy(plan);
}

int main(int argc, char **argv)
{
    const char *isas[8];
    const int count = loci_isas(isas, 8);
    walk_only(argc, argv);
    for (int i = 0; i < count; i++)
        for (loci_dtype half = LOCI_BF16; half <= LOCI_F16; half++) {
            ties(isas[i], half, 1);
            ties(isas[i], half, 7);
        }
    walk_all(WALK_SMALL, check_all);
    if (!LOCI_EMULATED) walk_all(WALK_TILES, check_best);
    return harness_end();
}
