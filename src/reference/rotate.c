/* SPDX-License-Identifier: MIT */
/* rotate.c -- encodings that turn queries and keys, and the rotation alone. */
#include <stdlib.h>

#include "reference/problem.h"

/* ---- rope: pair t turns by its coordinate times w_t, base^(-2t/dim) or a given frequency ----------------------- */

struct pairs { int count, offset; bool interleaved; double base, factor; const double *freq; };

static struct pairs pairs_of_rope(const struct problem *p, int e)
{
    int dim = (int)option(p, e, "dim", p->D);
    return (struct pairs){
        .count = dim / 2, .offset = (int)option(p, e, "offset", 0), .interleaved = option(p, e, "pairing", 0) == 1,
        .base = option(p, e, "base", 10000), .factor = option(p, e, "attention_factor", 1), .freq = tensor(p, e, "freq"),
    };
}
static double frequency(const struct pairs *r, int t)
{
    return r->freq ? r->freq[t] : pow(r->base, -(double)t / r->count);
}
static int first_channel(const struct pairs *r, int t) { return r->offset + (r->interleaved ? 2 * t : t); }
static int second_channel(const struct pairs *r, int t) { return r->offset + (r->interleaved ? 2 * t + 1 : t + r->count); }

static void rope(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row, const double *x, double *y)
{
    struct pairs r = pairs_of_rope(p, e);
    (void)head;
    memcpy(y, x, (size_t)p->D * sizeof *y);
    for (int t = 0; t < r.count; t++) {
        double phi = coordinate(p, which, 0, row) * frequency(&r, t);
        int a = first_channel(&r, t), b = second_channel(&r, t);
        y[a] = r.factor * (x[a] * cos(phi) - x[b] * sin(phi));
        y[b] = r.factor * (x[a] * sin(phi) + x[b] * cos(phi));
    }
}
static void rope_backward(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                          const double *x, const double *dy, double *dx)
{
    struct pairs r = pairs_of_rope(p, e);
    double *dfreq = dtensor(p, e, "freq");
    (void)head;
    memcpy(dx, dy, (size_t)p->D * sizeof *dx);
    for (int t = 0; t < r.count; t++) {
        double at = coordinate(p, which, 0, row), phi = at * frequency(&r, t);
        int a = first_channel(&r, t), b = second_channel(&r, t);
        dx[a] = r.factor * (dy[a] * cos(phi) + dy[b] * sin(phi));
        dx[b] = r.factor * (-dy[a] * sin(phi) + dy[b] * cos(phi));
        /* dphi = x_a dx_b - x_b dx_a; padding, which need not hold numbers, has no gradient. */
        if (dfreq && (dx[a] != 0 || dx[b] != 0)) dfreq[t] += at * (x[a] * dx[b] - x[b] * dx[a]);
    }
}

const struct definition loci_define_rope = { .name = "rope", .turn = rope, .turn_backward = rope_backward };

/* ---- The rotation alone ---------------------------------------------------------------------------------- */

/* One row; x and dy are copies, since y may be x and dx may be dy. */
static void rotate_row(const struct problem *p, int e, loci_which which, int h, ptrdiff_t i, const double *x,
                       const double *dy, double *y, double *dx, double *unused)
{
    const struct definition *def = e < 0 ? NULL : p->def[e];
    size_t bytes = (size_t)p->D * sizeof *x;
    if (dy && def) def->turn_backward(p, e, which, h, i, x, dy, dx ? dx : unused);
    else if (dy && dx) memcpy(dx, dy, bytes);
    if (y && def) def->turn(p, e, which, h, i, x, y);
    else if (y) memcpy(y, x, bytes);
}

loci_status loci_reference_rotate(const loci_plan *plan, const void *const *tensors, const loci_call *call,
                                  loci_which which, loci_view x, loci_view y, loci_view dy, loci_view dx,
                                  void *const *dtensors)
{
    struct problem problem, *p = &problem;
    loci_status status = loci_reference_open(p, plan, tensors, call);
    if (status) return status;
    CHECK(call->error, plan->stage != LOCI_EMBED, LOCI_BAD_ARG, "a plan of stage embed rotates nothing");

    int heads = which == LOCI_QUERY ? p->H : p->Hkv, turning = -1;
    ptrdiff_t rows = which == LOCI_QUERY ? p->Lq : p->Lk;
    for (int e = 0; e < plan->encs; e++)
        if (p->def[e]->turn) turning = e;

    double *room = calloc((size_t)(loci_reference_dtensors(p, NULL) + 3 * p->D), sizeof *room);
    CHECK(call->error, room, LOCI_NO_MEMORY, "no memory for the reference");
    double *x1 = room + loci_reference_dtensors(p, room), *dy1 = x1 + p->D, *unused = dy1 + p->D;
    x = dense(x, heads, rows, p->D), y = dense(y, heads, rows, p->D);
    dy = dense(dy, heads, rows, p->D), dx = dense(dx, heads, rows, p->D);
    for (p->b = 0; p->b < p->B; p->b++)
        for (int h = 0; h < heads; h++)
            for (ptrdiff_t i = 0; i < rows; i++) {
                memcpy(x1, view_row(x, p->b, h, i), (size_t)p->D * sizeof *x1);
                if (dy.data) memcpy(dy1, view_row(dy, p->b, h, i), (size_t)p->D * sizeof *dy1);
                rotate_row(p, turning, which, h, i, x1, dy.data ? dy1 : NULL, y.data ? view_row(y, p->b, h, i) : NULL,
                           dx.data ? view_row(dx, p->b, h, i) : NULL, unused);
            }
    if (dy.data) loci_reference_give(p, dtensors);
    free(room);
    return LOCI_OK;
}
