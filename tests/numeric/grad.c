/* SPDX-License-Identifier: MIT */
/* grad.c -- every gradient of the reference against differences of its forward pass.
 *
 * For each input x of each problem, a random direction u checks the whole tensor with four
 * evaluations:
 *
 *     sum(u * dx) = (8 (L(x + hu) - L(x - hu)) - (L(x + 2hu) - L(x - 2hu))) / 12h + O(h^4)
 *
 * L = sum(dout * o) + sum(dlse * lse) + sum(drem * rem) + sum(dae * ae).  h is small.  If they
 * differ, a smaller h is tried, and then another u, since cope, cape and fire have corners: a step
 * across one causes an error, but a wrong gradient fails at every h and in every direction. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/reference.h"
#include "harness.h"
#include "walk.h"

static const double steps[] = { 0x1p-16, 0x1p-18, 0x1p-20 }, BOUND = 1e-8;
enum { WAYS = 3 }; /* directions to try */
static loci_status run(struct walk *w, bool backward)
{
    if (w->stage == LOCI_ATTENTION)
        return loci_reference(w->plan, w->data, &w->call, backward ? &w->grad : NULL);
    if (w->stage == LOCI_LINEAR_ATTENTION)
        return loci_reference_linear(w->plan, w->data, &w->call, backward ? &w->grad : NULL);
    loci_view dout = backward ? w->grad.dout : (loci_view){ 0 };
    if (w->stage == LOCI_ROTATE)
        return loci_reference_rotate(w->plan, w->data, &w->call, LOCI_QUERY, w->call.q, w->call.o,
                                     dout, w->grad.dq, w->grad.dtensors);
    return loci_reference_embed(w->plan, w->data, &w->call, w->call.q, w->call.o, dout,
                                w->grad.dtensors);
}

static double loss(struct walk *w)
{
    const double *o = w->call.o.data, *lse = w->call.lse, *rem = w->call.rem, *ae = w->call.ae;
    const double *dout = w->grad.dout.data, *dlse = w->grad.dlse, *drem = w->grad.drem,
                 *dae = w->grad.dae;
    double sum = 0;
    if (run(w, false)) return NAN;
    for (size_t i = 0; i < w->out_count; i++) sum += dout[i] * o[i];
    for (size_t i = 0; i < w->row_count; i++)
        sum += (isinf(lse[i]) ? 0 : dlse[i] * lse[i]) + drem[i] * rem[i];
    for (size_t i = 0; i < w->state_count; i++) sum += dae[i] * ae[i];
    return sum;
}

static double loss_at(struct walk *w, double *x, const double *x0, const double *u, size_t count,
                      double step)
{
    for (size_t i = 0; i < count; i++) x[i] = x0[i] + step * u[i];
    return loss(w);
}

/* Slope of the loss along u. */
static double difference(struct walk *w, double *x, const double *x0, const double *u, size_t count,
                         double h)
{
    double near = loss_at(w, x, x0, u, count, h) - loss_at(w, x, x0, u, count, -h);
    double far = loss_at(w, x, x0, u, count, 2 * h) - loss_at(w, x, x0, u, count, -2 * h);
    return (8 * near - far) / (12 * h);
}

static void check_input(struct walk *w, int n)
{
    size_t count = w->input[n].count;
    double *x = w->input[n].x, *x0 = malloc(2 * count * sizeof *x0 + 1), got = 0, want = 0,
           error = INFINITY;
    if (!x0) exit(2);
    double *u = x0 + count;
    memcpy(x0, x, count * sizeof *x0);
    for (int way = 0; way < WAYS && !(error <= BOUND); way++) {
        got = 0;
        for (size_t i = 0; i < count; i++) {
            u[i] = walk_uniform();
            got += u[i] * w->input[n].dx[i];
        }
        for (size_t i = 0; i < sizeof steps / sizeof *steps && !(error <= BOUND); i++) {
            want = difference(w, x, x0, u, count, steps[i]);
            error = fabs(got - want) / fmax(1, fabs(want));
        }
    }
    for (size_t i = 0; i < count; i++) x[i] = x0[i];
    free(x0);
    CHECK_THAT(error <= BOUND, "%s (%s), d %s.%s: off by %.1e, got %.10g, differences say %.10g",
               w->encoding, w->shape, w->input[n].owner, w->input[n].name, error, got, want);
}

static void check(struct walk *w)
{
    loci_error error = { 0 };
    w->call.error = &error;
    if (run(w, true)) {
        CHECK_FAILED("%s (%s): %s", w->encoding, w->shape, error.text);
        return;
    }
    /* The addition to embeddings leaves their gradient unchanged; fixed tensors have none. */
    for (int n = w->stage == LOCI_EMBED; n < w->inputs; n++) {
        const int tensor = n - (w->inputs - w->tensors);
        if (tensor < 0 || w->tensor[tensor].role != LOCI_FIXED) check_input(w, n);
    }
}

int main(int argc, char **argv)
{
    walk_only(argc, argv);
    walk_all(WALK_SMALL, check);
    return harness_end();
}
