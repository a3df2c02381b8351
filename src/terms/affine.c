/* SPDX-License-Identifier: MIT */
/* affine.c -- a penalty linear in the distance, with one slope per head for keys behind and one for
 * keys ahead.
 *
 *     s -= left[h] d  where d >= 0       s -= right[h] |d|  where d < 0
 *
 * Backward, where slopes are learned: dleft = -sum dS d, dright = -sum dS |d|, summed per row. */
#include "engine/visible.h"
#include "layout/affine.h"

/* Up to here, distances of a run's tile are exact reals, and so are the
 * steps from one to the next. */
static bool near(const struct tile *t)
{
    return t->run && t->d < (1 << 24) - QT && t->d > -(1 << 24) + KT;
}

/* d of row r at key 0; that of key k is k less. */
static void ramp(const struct tile *t, real *d)
{
    const real first = (real)t->d;
    for (int r = 0; r < QT; r++) d[r] = first + (real)r;
}

/* A slope that rewards distance, or is NaN, may add an infinity to pairs that a row does not
 * see. */
static bool falls(real slope) { return slope >= 0 && slope < INFINITY; }

static real slope_of(const struct tile *t, int x, int side)
{
    return ((const real *)t->own[x].table)[affine_at(t->h, side)];
}

static void score(struct tile *t, int x)
{
    const real behind = -slope_of(t, x, AFFINE_BEHIND), ahead = slope_of(t, x, AFFINE_AHEAD);
    real *restrict s = t->s;
    if (near(t)) {
        real first[QT];
        ramp(t, first);
        for (int k = 0; k < t->keys; k++)
            for (int r = 0; r < QT; r++) {
                const real d = first[r] - (real)k;
                s[k * QT + r] = fma_(d < 0 ? ahead : behind, d, s[k * QT + r]);
            }
    } else {
        for (int k = 0; k < t->keys; k++)
            for (int r = 0; r < t->rows; r++) {
                const real d = (real)distance(t, k, r);
                s[k * QT + r] = fma_(d < 0 ? ahead : behind, d, s[k * QT + r]);
            }
    }
    if (!falls(-behind) || !falls(ahead)) mask(t, t->s, t->c->plan->mix < 0 ? -INFINITY : 0);
}

/* Smallest and largest distance of the tile's pairs. */
static struct band span(const struct tile *t)
{
    if (t->run) return (struct band){ t->d - (t->keys - 1), t->d + t->rows - 1 };
    int64_t qlow = INT64_MAX, qhigh = INT64_MIN, klow = INT64_MAX, khigh = INT64_MIN;
    for (int r = 0; r < t->rows; r++) {
        if (t->qp[r] < qlow) qlow = t->qp[r];
        if (t->qp[r] > qhigh) qhigh = t->qp[r];
    }
    for (int k = 0; k < t->keys; k++) {
        if (t->kp[k] < klow) klow = t->kp[k];
        if (t->kp[k] > khigh) khigh = t->kp[k];
    }
    return (struct band){ qlow - khigh, qhigh - klow };
}

/* Linear on both sides of distance 0, so the largest value is at an end or at 0. */
static real ceiling(const struct tile *t, int x)
{
    const real behind = -slope_of(t, x, AFFINE_BEHIND), ahead = slope_of(t, x, AFFINE_AHEAD);
    const struct band d = span(t);
    const real low = (d.lo < 0 ? ahead : behind) * (real)d.lo,
               high = (d.hi < 0 ? ahead : behind) * (real)d.hi;
    const real most = max_(low, high);
    return d.lo < 0 && d.hi > 0 ? max_(most, 0) : most;
}

static ptrdiff_t part(const struct call *c, int x)
{
    const int e = c->plan->use[x].enc;
    return c->plan->first_tensor[e + 1] > c->plan->first_tensor[e] ? AFFINE_COUNT : 0;
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)c;
    (void)x;
    (void)b;
    return affine_at(h, 0);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->heads * part(c, x); }

#if QT > 1
/* Rows of gradient: sums of dS |d| over keys behind, and over keys ahead. */
static void score_bwd(struct tile *t, int x)
{
    if (!t->own[x].part) return;
    real *left = t->own[x].grad, *right = left + QT, first[QT];
    if (!near(t)) {
        for (int k = 0; k < t->keys; k++)
            for (int r = 0; r < t->rows; r++) {
                const real d = (real)distance(t, k, r), ds = t->ds[k * QT + r];
                left[r] = fma_(ds, max_(d, 0), left[r]);
                right[r] = fma_(ds, max_(-d, 0), right[r]);
            }
        return;
    }
    ramp(t, first);
    const vf zero = vf_set1(0);
    for (int r = 0; r < QT; r += VL) {
        vf behind = zero, ahead = zero;
        for (int k = 0; k < t->keys; k++) {
            const vf d = vf_sub(vf_load(first + r), vf_set1((real)k)),
                     ds = vf_load(t->ds + k * QT + r);
            behind = vf_fma(ds, vf_max(d, zero), behind);
            ahead = vf_fma(ds, vf_max(vf_sub(zero, d), zero), ahead);
        }
        vf_store(left + r, vf_add(vf_load(left + r), behind));
        vf_store(right + r, vf_add(vf_load(right + r), ahead));
    }
}

static void close_bwd(struct tile *t, int x)
{
    if (!t->own[x].part) return;
    for (int side = AFFINE_BEHIND; side < AFFINE_COUNT; side++) {
        double sum = 0;
        for (int r = 0; r < t->rows; r++) sum += (double)t->own[x].grads[side * QT + r];
        t->own[x].part[side] -= (real)sum;
    }
}
#endif

const struct term N(term_affine) = {
    .name = "affine",
    .part = part,
    .part_at = part_at,
    .total = total,
    .grad = part,
    .score = score,
    .ceiling = ceiling,
    .fades = true,
#if QT > 1
    .score_bwd = score_bwd,
    .close_bwd = close_bwd,
#endif
};
