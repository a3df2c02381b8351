/* SPDX-License-Identifier: MIT */
/* fused.c -- the engine against the reference: every encoding, every instruction set, outputs and
 * all gradients.
 *
 * In double the two agree to rounding.  In float, an output may be off by the tolerance that its
 * encodings claim times 1 + max|exact|, and a gradient by ten times that.  Workspaces and outputs
 * start as NaN, so whoever reads before writing is caught. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "reference/reference.h"
#include "harness.h"
#include "room.h"
#include "walk.h"

/* What the engine computes, in the precision of one plan, beside what the reference says. */
struct run {
    struct walk *w;
    const char *isa;
    loci_plan *plan;
    bool f64;
    double tolerance;
    loci_call call;
    loci_grad grad;
    void *data[WALK_TENSORS], *ddata[WALK_TENSORS];
    struct room room;
};

static void *copy(struct run *r, const double *x, size_t count)
{
    float *to = room_take(&r->room, count * sizeof(double));
    if (r->f64) return memcpy(to, x, count * sizeof *x);
    for (size_t i = 0; i < count; i++) to[i] = (float)x[i];
    return to;
}

static double claim(const char *text)
{
    const loci_encoding_info *list;
    double most = 0;
    const int count = loci_encodings(&list);
    for (; text; text = strchr(text, '+') ? strchr(text, '+') + 1 : NULL)
        for (int i = 0; i < count; i++)
            if (strcspn(text, ":+") == strlen(list[i].name)
                && !strncmp(text, list[i].name, strlen(list[i].name)))
                most += list[i].tolerance;
    return most;
}

static void compare(const struct run *r, const char *owner, const char *name, const void *got,
                    const double *want, size_t count, double bound)
{
    double most = 0, off = 0;
    size_t at = 0;
    for (size_t i = 0; i < count; i++)
        if (isfinite(want[i]) && fabs(want[i]) > most) most = fabs(want[i]);
    for (size_t i = 0; i < count; i++) {
        const double x = r->f64 ? ((const double *)got)[i] : (double)((const float *)got)[i];
        const double d = isfinite(want[i]) ? fabs(x - want[i]) : x == want[i] ? 0 : INFINITY;
        if (!(d <= off)) off = d, at = i;
    }
    CHECK_THAT(off <= bound * (1 + most),
               "%s (%s) on %s: %s%s%s[%zu] is %.9g, the reference says %.9g, off by %.1e where "
               "%.1e "
               "is allowed",
               r->w->encoding, r->w->shape, r->isa, owner, *owner ? "." : "", name, at,
               r->f64 ? ((const double *)got)[at] : (double)((const float *)got)[at], want[at], off,
               bound * (1 + most));
}

static loci_status engine(struct run *r, const void *tables, void *work)
{
    const struct walk *w = r->w;
    loci_status status;
    switch (w->stage) {
    case LOCI_ATTENTION:
        status = loci_forward(r->plan, tables, work, &r->call);
        return status ? status : loci_backward(r->plan, tables, work, &r->call, &r->grad);
    case LOCI_LINEAR_ATTENTION:
        status = loci_linear_forward(r->plan, tables, work, &r->call, NULL, NULL);
        return status ? status : loci_linear_backward(r->plan, tables, work, &r->call, &r->grad);
    case LOCI_ROTATE:
        status = loci_rotate(r->plan, tables, work, &r->call, LOCI_QUERY, r->call.q, r->call.o);
        return status ? status : loci_rotate_backward(r->plan, tables, work, &r->call, LOCI_QUERY,
                                                      r->call.q, r->grad.dout, r->grad.dq,
                                                      r->ddata);
    default:
        status = loci_embed(r->plan, tables, &r->call, r->call.q, r->call.o);
        return status ? status : loci_embed_backward(r->plan, tables, work, &r->call, r->grad.dout,
                                                     r->ddata);
    }
}

/* Runs the walk's problem on one engine and compares all that comes out. */
static void run(struct walk *w, const char *isa, bool f64)
{
    struct run r = { .w = w, .isa = f64 ? "f64" : isa, .f64 = f64, .tolerance = f64 ? 1e-11
                     : claim(w->encoding) };
    loci_desc d = w->desc;
    loci_error error = { 0 };
    d.dtype = f64 ? LOCI_F64 : LOCI_F32;
    d.isa = isa;
    if (loci_plan_create(&r.plan, &d, &error)) {
        CHECK_FAILED("%s (%s) on %s: %s", w->encoding, w->shape, r.isa, error.text);
        return;
    }
    const bool stick = r.plan->weight >= 0, keys = w->stage == LOCI_ATTENTION
        || w->stage == LOCI_LINEAR_ATTENTION;
    const size_t real = f64 ? 8 : 4;
    r.call = w->call;
    r.call.error = &error;
    r.grad = w->grad;
    for (int i = 0; i < w->inputs; i++) {
        void *x = copy(&r, w->input[i].x, w->input[i].count),
            *dx = room_take(&r.room, w->input[i].count * real);
        if (i == 0) r.call.q.data = x, r.grad.dq.data = dx;
        else if (keys && i == 1) r.call.k.data = x, r.grad.dk.data = dx;
        else if (keys && i == 2) r.call.v.data = x, r.grad.dv.data = dx;
        else r.data[i - (w->inputs - w->tensors)] = x, r.ddata[i - (w->inputs - w->tensors)] = dx;
    }
    r.call.tensors = (const void *const *)r.data;
    r.grad.dtensors = r.ddata;
    r.call.o.data = room_take(&r.room, w->out_count * real);
    r.call.lse = stick || !w->row_count ? NULL : room_take(&r.room, w->row_count * real);
    r.call.rem = stick ? room_take(&r.room, w->row_count * real) : NULL;
    r.grad.dout.data = copy(&r, w->grad.dout.data, w->out_count);
    r.grad.dlse = stick || !w->row_count ? NULL : copy(&r, w->grad.dlse, w->row_count);
    r.grad.drem = stick ? copy(&r, w->grad.drem, w->row_count) : NULL;
    if (w->state_count)
        r.call.ae = room_take(&r.room, w->state_count * real),
            r.grad.dae = copy(&r, w->grad.dae, w->state_count);

    void *tables = room_take(&r.room, loci_tables_size(r.plan, w->range));
    void *work = room_take(&r.room, loci_workspace(r.plan, &r.call, 1));
    if (loci_prepare(r.plan, w->range, (const void *const *)r.data, tables)
        || engine(&r, tables, work)) {
        CHECK_FAILED("%s (%s) on %s: %s", w->encoding, w->shape, r.isa, error.text);
    } else {
        compare(&r, "", "o", r.call.o.data, w->call.o.data, w->out_count, r.tolerance);
        if (r.call.lse) compare(&r, "", "lse", r.call.lse, w->call.lse, w->row_count, r.tolerance);
        if (r.call.rem) compare(&r, "", "rem", r.call.rem, w->call.rem, w->row_count, r.tolerance);
        if (r.call.ae) compare(&r, "", "ae", r.call.ae, w->call.ae, w->state_count, r.tolerance);
        for (int i = w->stage == LOCI_EMBED; i < w->inputs; i++) {
            const int t = i - (w->inputs - w->tensors);
            if (t >= 0 && w->tensor[t].role == LOCI_FIXED) continue;
            const void *got = t >= 0 ? r.ddata[t] : i == 0 ? r.grad.dq.data : i == 1
                ? r.grad.dk.data : r.grad.dv.data;
            compare(&r, w->input[i].owner, w->input[i].name, got, w->input[i].dx, w->input[i].count,
                    r.tolerance * 10);
        }
    }
    room_leave(&r.room, 0);
    loci_plan_destroy(r.plan);
}

static void check(struct walk *w)
{
    loci_error error = { 0 };
    loci_status status;
    w->call.error = &error;
    if (w->stage == LOCI_ATTENTION) status = loci_reference(w->plan, w->data, &w->call, &w->grad);
    else if (w->stage == LOCI_LINEAR_ATTENTION)
        status = loci_reference_linear(w->plan, w->data, &w->call, &w->grad);
    else if (w->stage == LOCI_ROTATE)
        status = loci_reference_rotate(w->plan, w->data, &w->call, LOCI_QUERY, w->call.q, w->call.o,
                                       w->grad.dout, w->grad.dq, w->ddata);
    else status = loci_reference_embed(w->plan, w->data, &w->call, w->call.q, w->call.o,
                                       w->grad.dout, w->ddata);
    if (status) {
        CHECK_FAILED("%s (%s), reference: %s", w->encoding, w->shape, error.text);
        return;
    }
    const char *isas[8];
    /* there, what runs elsewhere is left out */
    const int count = loci_isas(isas, 8), first = LOCI_EMULATED ? count - 1 : 0;
    if (!LOCI_EMULATED) run(w, NULL, true);
    /* and sanitizers, which take ten times as long, see the worst and the best */
    for (int i = first; i < count; i++)
        if (!LOCI_SLOW || i == 0 || i == count - 1) run(w, isas[i], false);
}

int main(int argc, char **argv)
{
    walk_only(argc, argv);
    walk_all(WALK_SMALL, check);
    walk_all(WALK_TILES, check);
    if (!LOCI_SLOW) walk_all(WALK_CHUNKS, check);
    return harness_end();
}
