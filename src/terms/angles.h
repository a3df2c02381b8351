/* SPDX-License-Identifier: MIT */
/* angles.h -- cos and sin of the coordinates of rows times frequencies; the table is
 * described in layout/pairs.h.
 *
 * With x = 64 n + k, the angle of a whole coordinate x is that of the anchor 64 n,
 * reduced exactly, plus that of the step k, from the table.  They are joined in double by
 * plain products, so cos and sin depend on x alone and have the same bits for every
 * instruction set.  They are rounded to real once, with an absolute error near 2^-52
 * before that.  Coordinates that are not whole are computed directly.  struct angles
 * stores them as [rows][cos, sin][width]. */
#ifndef LOCI_TERMS_ANGLES_H
#define LOCI_TERMS_ANGLES_H

#include "engine/term.h"

#include "math/trig.h"
#include "layout/pairs.h"

/* Pairs that are computed at once: their anchors stay in the L1 cache for all rows. */
enum { SLICE = 64 };

/* The pairs t0 .. t0 + n - 1 of a group; n counts whole lanes. */
struct slice {
    const struct pairs *p;
    int group, t0, n;
    double undo;             /* of the factor that steps contain: 1, or without the factor 1 / m */
    double anchor[MAX_AXES]; /* coordinates of anchor_cos and anchor_sin; NaN: none */
    _Alignas(64) double anchor_cos[MAX_AXES][SLICE];
    _Alignas(64) double anchor_sin[MAX_AXES][SLICE];
};

/* A row of zeros stays zero whatever its angles.  Those of padding need not be numbers, and 0 times
 * NaN is NaN. */
INLINE bool all_zero(const real *row, int n)
{
    for (int i = 0; i < n; i++)
        if (row[i] != 0) return false;
    return true;
}

/* Begins with pair t0 of a group.  Values of anchors are not cleared.  plain: without
 * the factor of the rotation. */
INLINE void open_slice(struct slice *k, const struct pairs *p, int group, int t0, bool plain)
{
    k->p = p;
    k->group = group;
    k->t0 = t0;
    k->undo = plain ? 1 / p->factor : 1;
    k->n = p->width - t0 < SLICE ? p->width - t0 : SLICE;
    for (int axis = 0; axis < p->axes; axis++) k->anchor[axis] = NAN;
}

/* cos and sin of x w from the frequency in two parts: exact reduction, then a polynomial. */
static inline void direct(const struct slice *k, int axis, double x, double *restrict cos,
                          double *restrict sin)
{
    const double *hi = pairs_rows(k->p, k->group, axis) + k->t0, *lo = hi + k->p->width;
    /* Three loops, as each of them has no branch and vectorises by itself. */
    double rest[SLICE], more[SLICE], turns[SLICE];
    for (int t = 0; t < k->n; t++) trig_reduce(x, hi[t], lo[t], &rest[t], &more[t], &turns[t]);
    for (int t = 0; t < k->n; t++) {
        cos[t] = trig_cos(rest[t], more[t]);
        sin[t] = trig_sin(rest[t], more[t]);
    }
    for (int t = 0; t < k->n; t++) trig_quarter(x * hi[t], turns[t], &cos[t], &sin[t]);
}

/* A coordinate as an anchor and, if it is whole, a step from there; otherwise step is -1. */
struct split {
    double anchor;
    int step;
};
INLINE struct split split_at(double x)
{
    const double anchor = floor(x / PAIR_STEPS) * PAIR_STEPS, rest = x - anchor;
    const int step = rest > 0 && rest < PAIR_STEPS ? (int)rest : 0;
    return (struct split){ anchor, rest == step ? step : -1 };
}
/* Neighbouring rows mostly share an anchor, so the last one is reused. */
INLINE void set_anchor(struct slice *k, int axis, double anchor)
{
    if (k->anchor[axis] == anchor) return;
    direct(k, axis, anchor, k->anchor_cos[axis], k->anchor_sin[axis]);
    k->anchor[axis] = anchor;
}
/* The table's row of a step: cos, and sin after it. */
INLINE const double *step_of(const struct slice *k, int axis, int step)
{
    return pairs_rows(k->p, k->group, axis) + (2 + 2 * step) * k->p->width + k->t0;
}

/* cos and sin of x w on one axis, on the first axis times m: the table's steps contain m, the
 * direct computation multiplies by it. */
static inline void angles_on_axis(struct slice *k, int axis, double x, double *restrict cos,
                                  double *restrict sin)
{
    const struct split split = split_at(x);
    if (split.step < 0) {
        const double m = axis == 0 ? k->p->factor : 1;
        direct(k, axis, x, cos, sin);
        for (int t = 0; t < k->n; t++) {
            cos[t] *= m;
            sin[t] *= m;
        }
        return;
    }
    set_anchor(k, axis, split.anchor);
    const double *restrict sc = step_of(k, axis, split.step), *restrict ss = sc + k->p->width;
    const double *restrict ac = k->anchor_cos[axis], *restrict as = k->anchor_sin[axis];
    for (int t = 0; t < k->n; t++) {
        cos[t] = ac[t] * sc[t] - as[t] * ss[t];
        sin[t] = as[t] * sc[t] + ac[t] * ss[t];
    }
}
/* Angles of several axes add up, by the products of angle addition:
 * in double, rounded at the end. */
static inline void angles_on_axes(struct slice *k, const double *x, real *to_cos, real *to_sin)
{
    double cos[SLICE], sin[SLICE];
    angles_on_axis(k, 0, x[0], cos, sin);
    for (int axis = 1; axis < k->p->axes; axis++) {
        double c[SLICE], s[SLICE];
        angles_on_axis(k, axis, x[axis], c, s);
        for (int t = 0; t < k->n; t++) {
            const double a = cos[t], b = sin[t];
            cos[t] = a * c[t] - b * s[t];
            sin[t] = b * c[t] + a * s[t];
        }
    }
    for (int t = 0; t < k->n; t++) {
        to_cos[t] = (real)(cos[t] * k->undo);
        to_sin[t] = (real)(sin[t] * k->undo);
    }
}

/* Angles as float code computes them: coordinate and frequency, their product, cos and sin, and
 * m are each rounded.  A pair reads one axis. */
static inline void angles_in_float(const struct slice *k, const double *x, real *restrict to_cos,
                                   real *restrict to_sin)
{
    const real m = k->undo == 1 ? (real)k->p->factor : 1;
    float phi[SLICE] = { 0 };
    for (int axis = 0; axis < k->p->axes; axis++) {
        const double *w = pairs_rows(k->p, k->group, axis) + k->t0;
        for (int t = 0; t < k->n; t++) phi[t] += (float)x[axis] * (float)w[t];
    }
    for (int t = 0; t < k->n; t++) {
        double cos, sin;
        trig_sincos(phi[t], 1, 0, &cos, &sin);
        to_cos[t] = (real)cos * m;
        to_sin[t] = (real)sin * m;
    }
}

/* The coordinates of a row or key on all axes. */
static inline void coordinates(const struct call *c, const struct pairs *p, ptrdiff_t b, bool query,
                               ptrdiff_t i, double *x)
{
    for (int axis = 0; axis < p->axes; axis++)
        x[axis] = query ? coord_q(c, b, axis, i) : coord_k(c, b, axis, i);
}

/* cos of row r; sin follows. */
INLINE real *cos_of(const struct angles *at, const struct pairs *p, int r)
{
    return at->buffer + (ptrdiff_t)2 * r * p->width;
}

/* Rows at steps from one anchor: the steps contain m, and each number is rounded once. */
INLINE void join(const struct slice *k, int rows, const struct split *split, real *to)
{
    const int W = k->p->width;
    for (int r = 0; r < rows; r++, to += 2 * W) {
        const double *restrict ac = k->anchor_cos[0], *restrict as = k->anchor_sin[0];
        const double *restrict sc = step_of(k, 0, split[r].step), *restrict ss = sc + W;
        real *restrict cos = to, *restrict sin = to + W;
        for (int t = 0; t < k->n && k->undo == 1; t++) {
            cos[t] = (real)(ac[t] * sc[t] - as[t] * ss[t]);
            sin[t] = (real)(as[t] * sc[t] + ac[t] * ss[t]);
        }
        for (int t = 0; t < k->n && k->undo != 1; t++) {
            cos[t] = (real)((ac[t] * sc[t] - as[t] * ss[t]) * k->undo);
            sin[t] = (real)((as[t] * sc[t] + ac[t] * ss[t]) * k->undo);
        }
    }
}
/* Rows at coordinates x of one axis.  All steps are found first, so that no
 * row waits for its own step. */
static inline void angles_on_line(struct slice *k, int rows, const double *x, real *to)
{
    const int W = k->p->width;
    struct split split[KT];
    for (int r = 0; r < rows; r++) split[r] = split_at(x[r]);
    for (int r = 0, n; r < rows; r += n, to += (ptrdiff_t)2 * n * W) {
        n = 1;
        /* not a whole coordinate */
        if (split[r].step < 0) {
            angles_on_axes(k, &x[r], to, to + W);
            continue;
        }
        while (r + n < rows && split[r + n].step >= 0 && split[r + n].anchor == split[r].anchor)
            n++;
        set_anchor(k, 0, split[r].anchor);
        join(k, n, &split[r], to);
    }
}

/* Computes the angles of n rows, unless they are there already: heads with the same angles ask
 * one after the other, and only the first computes them.  plain: without the factor. */
static inline void make_angles_of(const struct call *c, const struct pairs *p, struct angles *at,
                                  ptrdiff_t b, int h, bool query, bool plain, ptrdiff_t i0, int n)
{
    const int group = p->groups > 1 ? kv_head(c, h, query) : 0;
    plain &= p->factor != 1;
    if (at->set && at->b == b && at->group == group && at->query == query && at->plain == plain
        && at->i0 == i0 && at->rows >= n)
        return;
    *at = (struct angles){ .set = true,
                           .query = query,
                           .plain = plain,
                           .group = group,
                           .rows = n,
                           .b = b,
                           .i0 = i0,
                           .buffer = at->buffer };
    for (int t0 = 0; t0 < p->width; t0 += SLICE) {
        struct slice k;
        open_slice(&k, p, group, t0, plain);
        if (p->axes == 1 && !p->angles_f32) {
            double x[KT];
            for (int r = 0; r < n; r++) coordinates(c, p, b, query, i0 + r, &x[r]);
            angles_on_line(&k, n, x, at->buffer + t0);
            continue;
        }
        for (int r = 0; r < n; r++) {
            double x[MAX_AXES] = { 0 };
            coordinates(c, p, b, query, i0 + r, x);
            real *cos = cos_of(at, p, r) + t0, *sin = cos + p->width;
            if (p->angles_f32) angles_in_float(&k, x, cos, sin);
            else angles_on_axes(&k, x, cos, sin);
        }
    }
}

static inline void make_angles(const struct call *c, const struct pairs *p, struct angles *at,
                               ptrdiff_t b, int h, bool query, ptrdiff_t i0, int n)
{
    make_angles_of(c, p, at, b, h, query, false, i0, n);
}

/* One rounding of a product and one of the sum, in this order.  Every way to rotate a pair must
 * have the same bits: by rows, by vectors or past the caches. */
INLINE void rotate_pair(const real x, const real y, const real cos, const real sin, real *a,
                        real *b)
{
    *a = fma_(x, cos, -(y * sin));
    *b = fma_(x, sin, y * cos);
}
/* n pairs (a[t], b[t]) or (x[2t], x[2t + 1]), in place; sign -1 rotates back. */
INLINE void rotate_half(const real *restrict cos, const real *restrict sin, const real sign, int n,
                        real *restrict a, real *restrict b)
{
    for (int t = 0; t < n; t++) rotate_pair(a[t], b[t], cos[t], sign * sin[t], &a[t], &b[t]);
}
INLINE void rotate_interleaved(const real *restrict cos, const real *restrict sin, const real sign,
                               int n, real *restrict x)
{
    for (int t = 0; t < n; t++)
        rotate_pair(x[2 * t], x[2 * t + 1], cos[t], sign * sin[t], &x[2 * t], &x[2 * t + 1]);
}

/* Reals that the angles of that many pairs need. */
INLINE ptrdiff_t angles_size(int pairs) { return (ptrdiff_t)2 * KT * pairs_width(pairs); }

#endif
