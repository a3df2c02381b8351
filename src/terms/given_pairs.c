/* SPDX-License-Identifier: MIT */
/* given_pairs.c -- rotates pairs of channels by angles that come with the call.
 *
 *     (x[a], x[b]) <- (x[a] cos phi - x[b] sin phi, x[a] sin phi + x[b] cos phi)
 *
 * cos and sin are those of phi as it is, of any size, computed in double and rounded once.
 *
 * Backward: dx is rotated back, and dphi = x[a] dx[b] - x[b] dx[a], from the rows before rotation
 * and their gradient.  That is the same as the product of the rotated row and its gradient. */
#include "terms/angles.h"
#include "layout/given_pairs.h"

static const struct given_pairs *form_of(const struct call *c, int x)
{
    return layout_of(c->plan, x);
}
/* Where the angles of rows or keys of a head are in their tensor, from number i on. */
static ptrdiff_t place_of(const struct call *c, int x, bool query, ptrdiff_t b, int h, ptrdiff_t i)
{
    const struct loci_plan *p = c->plan;
    return ((b * (query ? p->heads : p->kv_heads) + h) * (query ? c->Lq : c->Lk) + i)
         * form_of(c, x)->count;
}
static int tensor_of(bool query) { return query ? GIVEN_Q : GIVEN_K; }

static real *cos_at(const struct angles *at, int count, int r)
{
    return at->buffer + (ptrdiff_t)2 * r * pairs_width(count);
}
/* cos and sin of n rows, unless they are those that were computed last. */
static void make(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h, bool query,
                 ptrdiff_t i0, int n)
{
    const int count = form_of(c, x)->count, W = pairs_width(count);
    if (at->set && at->b == b && at->group == h && at->query == query && at->i0 == i0
        && at->rows >= n)
        return;
    *at = (struct angles){
        .set = true, .query = query, .group = h, .rows = n, .b = b, .i0 = i0, .buffer = at->buffer
    };
    const real *phi = (const real *)input(c, c->plan->use[x].enc, tensor_of(query))
                    + place_of(c, x, query, b, h, i0);
    for (int r = 0; r < n; r++, phi += count) {
        real *to_cos = cos_at(at, count, r), *to_sin = to_cos + W;
        for (int t0 = 0; t0 < count; t0 += SLICE) {
            const int m = count - t0 < SLICE ? count - t0 : SLICE;
            double rest[SLICE], more[SLICE], turns[SLICE], cos[SLICE], sin[SLICE];
            /* Three loops, as each of them has no branch and vectorises by itself. */
            for (int t = 0; t < m; t++)
                trig_reduce((double)phi[t0 + t], 1, 0, &rest[t], &more[t], &turns[t]);
            for (int t = 0; t < m; t++) {
                cos[t] = trig_cos(rest[t], more[t]);
                sin[t] = trig_sin(rest[t], more[t]);
            }
            for (int t = 0; t < m; t++)
                trig_quarter((double)phi[t0 + t], turns[t], &cos[t], &sin[t]);
            for (int t = 0; t < m; t++) {
                to_cos[t0 + t] = (real)cos[t];
                to_sin[t0 + t] = (real)sin[t];
            }
        }
    }
}

static void turn_row(const struct call *c, int x, const struct angles *at, int r, const real sign,
                     real *row)
{
    const struct given_pairs *p = form_of(c, x);
    const real *cos = cos_at(at, p->count, r), *sin = cos + pairs_width(p->count);
    real *a = row + p->offset;
    if (p->interleaved) rotate_interleaved(cos, sin, sign, p->count, a);
    else rotate_half(cos, sin, sign, p->count, a, a + p->count);
}
static void rotate(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h, bool query,
                   ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    make(c, x, at, b, h, query, i0, n);
    for (int r = 0; r < n; r++) turn_row(c, x, at, r, 1, rows + r * stride);
}
static void turn(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h, bool query,
                 real sign, ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    const struct given_pairs *p = form_of(c, x);
    make(c, x, at, b, h, query, i0, n);
    for (int r = 0; r < n; r++)
        if (!all_zero(rows + r * stride + p->offset, 2 * p->count))
            turn_row(c, x, at, r, sign, rows + r * stride);
}

/* Adds dphi of a row.  Pairs without a gradient add nothing, whatever they contain. */
static void gather(const struct given_pairs *p, const real *x, const real *d, double *to)
{
    for (int t = 0; t < p->count; t++) {
        const int a = p->offset + (p->interleaved ? 2 * t : t),
                  b = a + (p->interleaved ? 1 : p->count);
        if (d[a] == 0 && d[b] == 0) continue;
        to[t] += (double)x[a] * (double)d[b] - (double)x[b] * (double)d[a];
    }
}
/* Each row of each head is rotated back once, by one thread, so the gradients of its angles go
 * straight to the tensor and need no part. */
static void gather_rows(const struct call *c, int x, ptrdiff_t b, int h, bool query, ptrdiff_t i0,
                        int n, const real *rows, const real *d, ptrdiff_t stride, real *part)
{
    const int tensor = c->plan->first_tensor[c->plan->use[x].enc] + tensor_of(query);
    double *dphi = c->g.dtensor[tensor];
    (void)part;
    for (int r = 0; r < n && dphi; r++)
        gather(form_of(c, x), rows + r * stride, d + r * stride,
               dphi + place_of(c, x, query, b, h, i0 + r));
}
static void rotate_bwd(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h,
                       bool query, ptrdiff_t i0, int n, const real *rows, real *d, ptrdiff_t stride,
                       real *part)
{
    turn(c, x, at, b, h, query, -1, i0, n, d, stride);
    gather_rows(c, x, b, h, query, i0, n, rows, d, stride, part);
}

static ptrdiff_t buffer(const struct call *c, int x)
{
    (void)x;
    return angles_size(c->plan->dim / 2);
}

static const struct rotation rotation = {
    .buffer = buffer,
    .rotate = rotate,
    .rotate_bwd = rotate_bwd,
    .of_input = true,
    .turn = turn,
    .turn_bwd = gather_rows,
};
const struct term N(term_given_pairs) = {
    .name = "given pairs",
    .rotation = &rotation,
};
