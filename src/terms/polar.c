/* SPDX-License-Identifier: MIT */
/* polar.c -- rows of channels become rows of polar coordinates, twice as wide: the magnitude is
 * softplus of the channel, the angle follows from the position, and for keys from a phase.  The
 * table is described in layout/polar.h.
 *
 *     y[t] = softplus(x[t]) cos phi[t]      y[D + t] = softplus(x[t]) sin phi[t]
 *
 * Backward, from the gradient g of y:
 *
 *     dx[t]     = sigmoid(x[t]) (g[t] cos phi[t] + g[D + t] sin phi[t])
 *     dphase[t] = sum over keys of softplus(x[t]) (g[D + t] cos phi[t] - g[t] sin phi[t]) */
#include "terms/angles.h"
#include "layout/polar.h"

static const struct pairs *table_of(const struct call *c, int x)
{
    return c->table[c->plan->use[x].enc];
}

/* ---- Angles ---------------------------------------------------------------------------------- */

/* cos and sin of a key's angle: those of the position turned by the phase, in double, rounded
 * once. */
static void add_phase(struct slice *k, int kv_head, double pos, real *to)
{
    const int W = k->p->width;
    const double *const c = polar_phase(k->p, kv_head) + k->t0, *const s = c + W;
    double cos[SLICE], sin[SLICE];
    angles_on_axis(k, 0, pos, cos, sin);
    for (int t = 0; t < k->n; t++) {
        to[t] = (real)(cos[t] * c[t] - sin[t] * s[t]);
        to[W + t] = (real)(sin[t] * c[t] + cos[t] * s[t]);
    }
}
/* Queries of all heads have the same angles, keys those of their head. */
static void make(const struct call *c, const struct pairs *p, struct angles *at, ptrdiff_t b, int h,
                 bool query, ptrdiff_t i0, int n)
{
    if (query) {
        make_angles(c, p, at, b, h, true, i0, n);
        return;
    }
    if (at->set && at->b == b && at->group == h && !at->query && at->i0 == i0 && at->rows >= n)
        return;
    *at = (struct angles){
        .set = true, .group = h, .rows = n, .b = b, .i0 = i0, .buffer = at->buffer
    };
    for (int t0 = 0; t0 < p->width; t0 += SLICE) {
        struct slice k;
        open_slice(&k, p, 0, t0, false);
        for (int r = 0; r < n; r++)
            add_phase(&k, h, coord_k(c, b, 0, i0 + r), cos_of(at, p, r) + t0);
    }
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* The last channels of a row, fewer than a vector, in place of a whole one. */
struct rest {
    real x[VL], cos[VL], sin[VL], by_cos[VL], by_sin[VL];
};
INLINE void fetch(struct rest *a, int n, const real *x, const real *cos, const real *sin)
{
    for (int i = 0; i < VL; i++) {
        a->x[i] = i < n ? x[i] : 0;
        a->cos[i] = i < n ? cos[i] : 0;
        a->sin[i] = i < n ? sin[i] : 0;
    }
}

INLINE void widen(const real *x, const real *cos, const real *sin, real *by_cos, real *by_sin)
{
    const vf size = vf_softplus(vf_load(x));
    vf_store(by_cos, vf_mul(size, vf_load(cos)));
    vf_store(by_sin, vf_mul(size, vf_load(sin)));
}
/* In place: the first half is read before it is written, the second half only written. */
static void widen_row(const struct pairs *p, const real *cos, real *row)
{
    const int D = p->count;
    const real *sin = cos + p->width;
    int t = 0;
    for (; t + VL <= D; t += VL) widen(row + t, cos + t, sin + t, row + t, row + D + t);
    if (t == D) return;
    struct rest a;
    fetch(&a, D - t, row + t, cos + t, sin + t);
    widen(a.x, a.cos, a.sin, a.by_cos, a.by_sin);
    for (int i = 0; t + i < D; i++) {
        row[t + i] = a.by_cos[i];
        row[D + t + i] = a.by_sin[i];
    }
}
static void rotate(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h, bool query,
                   ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    const struct pairs *p = table_of(c, x);
    make(c, p, at, b, h, query, i0, n);
    for (int r = 0; r < n; r++) widen_row(p, cos_of(at, p, r), rows + r * stride);
}

INLINE void narrow(const real *x, const real *cos, const real *sin, const real *by_cos,
                   const real *by_sin, real *dx)
{
    const vf along = vf_fma(vf_load(by_cos), vf_load(cos), vf_mul(vf_load(by_sin), vf_load(sin)));
    vf_store(dx, vf_mul(vf_sigmoid(vf_load(x)), along));
}
/* dx takes the place of the first half of d. */
static void narrow_row(const struct pairs *p, const real *cos, const real *x, real *d)
{
    const int D = p->count;
    const real *sin = cos + p->width;
    int t = 0;
    for (; t + VL <= D; t += VL) narrow(x + t, cos + t, sin + t, d + t, d + D + t, d + t);
    if (t == D) return;
    struct rest a;
    fetch(&a, D - t, x + t, cos + t, sin + t);
    for (int i = 0; i < VL; i++) {
        a.by_cos[i] = t + i < D ? d[t + i] : 0;
        a.by_sin[i] = t + i < D ? d[D + t + i] : 0;
    }
    narrow(a.x, a.cos, a.sin, a.by_cos, a.by_sin, a.by_cos);
    for (int i = 0; t + i < D; i++) d[t + i] = a.by_cos[i];
}
/* Adds dphase of a key.  Channels without a gradient add nothing, whatever they contain. */
static void gather(const struct pairs *p, const real *cos, const real *x, const real *d, double *to)
{
    const int D = p->count;
    const real *sin = cos + p->width;
    real size[MAX_PAIRS + VL], last[VL] = { 0 };
    for (int t = 0; t < D; t += VL) {
        const bool whole = t + VL <= D;
        for (int i = 0; i < VL && !whole; i++) last[i] = t + i < D ? x[t + i] : 0;
        vf_store(size + t, vf_softplus(vf_load(whole ? x + t : last)));
    }
    for (int t = 0; t < D; t++) {
        const double along = (double)d[D + t] * (double)cos[t] - (double)d[t] * (double)sin[t];
        to[t] += along == 0 ? 0 : (double)size[t] * along;
    }
}
static void rotate_bwd(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h,
                       bool query, ptrdiff_t i0, int n, const real *rows, real *d, ptrdiff_t stride,
                       real *part)
{
    const struct pairs *p = table_of(c, x);
    double dphase[MAX_PAIRS] = { 0 };
    make(c, p, at, b, h, query, i0, n);
    for (int r = 0; r < n; r++) {
        const real *row = rows + r * stride, *cos = cos_of(at, p, r);
        real *g = d + r * stride;
        /* Padding, which may contain NaN, has no gradient. */
        if (all_zero(g, 2 * p->count)) continue;
        if (part && !query) gather(p, cos, row, g, dphase);
        narrow_row(p, cos, row, g);
    }
    for (int t = 0; t < p->count && part && !query; t++) part[t] += (real)dphase[t];
}

static ptrdiff_t buffer(const struct call *c, int x)
{
    (void)x;
    return angles_size(c->plan->dim);
}

/* ---- Parts of the phases --------------------------------------------------------------------- */

static ptrdiff_t part(const struct call *c, int x)
{
    (void)x;
    return c->plan->dim;
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)b;
    return h / c->plan->group * part(c, x);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->kv_heads * part(c, x); }

static const struct rotation rotation = {
    .buffer = buffer,
    .rotate = rotate,
    .rotate_bwd = rotate_bwd,
    .of_input = true,
    .bends = true,
};
const struct term N(term_polar) = {
    .name = "polar",
    .part = part,
    .part_at = part_at,
    .total = total,
    .rotation = &rotation,
};
