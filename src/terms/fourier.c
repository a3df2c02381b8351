/* SPDX-License-Identifier: MIT */
/* fourier.c -- rotates and scales pairs of channels by sums of waves; see layout/fourier.h.
 * After cos and sin of the waves, its angles contain c and s of the rows and their
 * gradients: [2][KT][lanes] each. */
#include "terms/angles.h"

#include "layout/fourier.h"

static struct fourier fourier_of(const struct call *c, int x)
{
    return *(const struct fourier *)layout_of(c->plan, x);
}

static ptrdiff_t sums_stride(const struct call *c) { return fourier_lanes(c->plan->dim / 2); }
static ptrdiff_t buffer(const struct call *c, int x)
{
    return angles_size(fourier_of(c, x).waves) + 4 * KT * sums_stride(c);
}
/* 0 and 1: c and s of the rows; 2 and 3: their gradients. */
static real *sums_of(const struct call *c, const struct fourier *f, const struct angles *at,
                     int which)
{
    return at->buffer + angles_size(f->waves) + which * KT * sums_stride(c);
}

/* c and s of n rows: one small product each, of the waves' cos or sin and the coefficients.
 * They are computed per tile: for all rows of all heads they would be larger than the keys. */
static void sum(const struct call *c, const struct fourier *f, const struct pairs *p,
                struct angles *at, ptrdiff_t b, int h, bool query, ptrdiff_t i0, int n)
{
    const ptrdiff_t stride = sums_stride(c);
    const real *coefficients = (const real *)((const char *)p + fourier_at(f))
                             + (f->groups > 1 ? kv_head(c, h, query) : 0) * 2 * fourier_table(f);
    const int lanes = fourier_lanes(f->sums);
    make_angles(c, p, at, b, h, query, i0, n);
    for (int which = 0; which < 2; which++) {
        real *to = sums_of(c, f, at, which);
        const real rest = which ? (real)f->rest : 1;
        product(SET, n, lanes, f->waves, cos_of(at, p, 0) + which * p->width, 2 * p->width, 1,
                coefficients + which * fourier_table(f), lanes, to, stride, NULL);
        for (int r = 0; r < n; r++) /* after the product, as it writes whole lanes */
            for (int t = f->sums; t < c->plan->dim / 2; t++) to[r * stride + t] = rest;
    }
}

/* Multiplies pairs by c + is.  With sign -1 it is the adjoint, which multiplies by c - is.  The
 * length of c + is is not 1, so that is not an inverse. */
INLINE void apply(const struct call *c, const struct fourier *f, const struct angles *at, int n,
                  const real sign, real *rows, ptrdiff_t stride)
{
    const real *cos = sums_of(c, f, at, 0), *sin = sums_of(c, f, at, 1);
    for (int r = 0; r < n; r++)
        rotate_half(cos + r * sums_stride(c), sin + r * sums_stride(c), sign, c->plan->dim / 2,
                    rows + r * stride, rows + r * stride + c->plan->dim / 2);
}

static void rotate(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h, bool query,
                   ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    const struct fourier f = fourier_of(c, x);
    sum(c, &f, c->table[c->plan->use[x].enc], at, b, h, query, i0, n);
    apply(c, &f, at, n, 1, rows, stride);
}

/* dc = x . g, ds = x x g of every pair that is a sum.  Rows without a
 * gradient may contain anything. */
INLINE void pair_gradients(int sums, int half, const real *restrict x, const real *restrict g,
                           real *restrict dc, real *restrict ds)
{
    for (int t = 0; t < sums; t++) {
        const real g0 = g[t], g1 = g[t + half];
        const bool none = g0 == 0 && g1 == 0;
        const real x0 = none ? 0 : x[t], x1 = none ? 0 : x[t + half];
        dc[t] = fma_(g0, x0, g1 * x1);
        ds[t] = fma_(g1, x0, -(g0 * x1));
    }
}

static void rotate_bwd(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h,
                       bool query, ptrdiff_t i0, int n, const real *rows, real *d, ptrdiff_t stride,
                       real *part)
{
    const struct fourier f = fourier_of(c, x);
    const struct pairs *p = c->table[c->plan->use[x].enc];
    sum(c, &f, p, at, b, h, query, i0, n);
    /* dC += cos^T dc and dS += sin^T ds, over the rows.  Lanes beyond the sums are zeroed, as
     * they are added with the others. */
    if (part) {
        const ptrdiff_t to = sums_stride(c);
        const int lanes = fourier_lanes(f.sums);
        real *dc = sums_of(c, &f, at, 2), *ds = sums_of(c, &f, at, 3);
        for (int r = 0; r < n; r++) {
            pair_gradients(f.sums, c->plan->dim / 2, rows + r * stride, d + r * stride, dc + r * to,
                           ds + r * to);
            for (int t = f.sums; t < lanes; t++) dc[r * to + t] = ds[r * to + t] = 0;
        }
        product(ADD, f.waves, lanes, n, cos_of(at, p, 0), 1, 2 * p->width, dc, to, part, lanes,
                NULL);
        product(ADD, f.waves, lanes, n, cos_of(at, p, 0) + p->width, 1, 2 * p->width, ds, to,
                part + fourier_table(&f), lanes, NULL);
    }
    apply(c, &f, at, n, -1, d, stride);
}

static ptrdiff_t part(const struct call *c, int x)
{
    const struct fourier f = fourier_of(c, x);
    return fourier_part(&f);
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
};
const struct term N(term_fourier) = {
    .name = "fourier",
    .part = part,
    .part_at = part_at,
    .total = total,
    .rotation = &rotation,
};
