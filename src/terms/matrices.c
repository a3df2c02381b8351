/* SPDX-License-Identifier: MIT */
/* matrices.c -- rotates blocks of channels by the matrices of their
 * coordinates; see layout/matrices.h. */
#include "engine/term.h"

#include "layout/blocks.h"
#include "layout/matrices.h"

static const struct matrices *matrices_of(const struct call *c, int x)
{
    return c->mem.scratch[c->plan->use[x].enc];
}

/* Of each block to[o] = sum over i of row[i] m[i][o], in place: one chain for each number, with the
 * outputs in the lanes. */
INLINE void apply(int n, int count, const real *restrict m, real *restrict row)
{
    for (int j = 0; j < count; j++, row += n, m += (ptrdiff_t)n * n) {
        real to[MAX_BLOCK];
        for (int o = 0; o < n; o++) to[o] = 0;
        for (int i = 0; i < n; i++)
            for (int o = 0; o < n; o++) to[o] = fma_(row[i], m[i * n + o], to[o]);
        memcpy(row, to, sizeof(real) * (size_t)n);
    }
}
/* Rotates all blocks of a row by the matrices of its slot: rows at one coordinate share a slot. */
static void apply_all(const struct call *c, const struct matrices *w, const void *table,
                      ptrdiff_t b, int h, bool query, ptrdiff_t i, real *row)
{
    const int n = w->block, kvh = kv_head(c, h, query);
    const int64_t slot = w->slot[!query][matrices_row(c, query, b, i)];
    const real *m =
        (const real *)table + (slot * w->groups + (w->groups > 1 ? kvh : 0)) * w->count * n * n;
    if (n == 3) apply(3, w->count, m, row);
    else if (n == 4) apply(4, w->count, m, row);
    else apply(n, w->count, m, row);
}

static void rotate(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h, bool query,
                   ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    const struct matrices *w = matrices_of(c, x);
    (void)at;
    for (int r = 0; r < n; r++) apply_all(c, w, w->into, b, h, query, i0 + r, rows + r * stride);
}
/* Gradients rotate by the transposed matrices.  For the learned generators, rows and gradients
 * are stored in the scratch, where end() sums them by coordinate. */
static void rotate_bwd(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h,
                       bool query, ptrdiff_t i0, int n, const real *rows, real *d, ptrdiff_t stride,
                       real *part)
{
    const struct matrices *w = matrices_of(c, x);
    const size_t bytes = sizeof(real) * (size_t)c->plan->dim;
    (void)at;
    for (int r = 0; r < n; r++) {
        const ptrdiff_t to = matrices_at(c, query, b, h, i0 + r);
        if (part) {
            memcpy((real *)w->x[!query] + to, rows + r * stride, bytes);
            memcpy((real *)w->g[!query] + to, d + r * stride, bytes);
        }
        apply_all(c, w, w->back, b, h, query, i0 + r, d + r * stride);
    }
}

/* end() computes the gradient; the part only tells rotate_bwd() that it is wanted. */
static ptrdiff_t part(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return 1;
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)c;
    (void)x;
    (void)b;
    (void)h;
    return 0;
}

static const struct rotation rotation = {
    .rotate = rotate,
    .rotate_bwd = rotate_bwd,
    .of_input = true,
};
const struct term N(term_matrices) = {
    .name = "matrices",
    .part = part,
    .part_at = part_at,
    .total = part,
    .rotation = &rotation,
};
