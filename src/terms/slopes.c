/* SPDX-License-Identifier: MIT */
/* slopes.c -- a penalty linear in the distance, with a slope of each key, of each query, or the sum
 * of both.
 *
 *     s -= (slope_k[j] + slope_q[i]) |d|
 *
 * Backward: dslope_k[j] = -sum over rows of dS |d|, dslope_q[i] = -sum over keys of dS |d|. */
#include "engine/tile_sums.h"
#include "engine/visible.h"
#include "layout/slopes.h"

static struct slopes slopes_of(const struct call *c, int x)
{
    return *(const struct slopes *)layout_of(c->plan, x);
}

/* Distances of a run's tile are exact reals up to here. */
static bool near(const struct tile *t)
{
    return t->run && t->d < (1 << 24) - QT && t->d > -(1 << 24) + KT;
}
/* |d| of all rows at key k. */
static void distances(const struct tile *t, int k, real *d)
{
    if (near(t)) {
        const real first = (real)(t->d - k);
        for (int r = 0; r < QT; r++) d[r] = abs_(first + (real)r);
        return;
    }
    for (int r = 0; r < QT; r++) d[r] = r < t->rows ? abs_((real)distance(t, k, r)) : 0;
}

/* Slopes of the tile's rows, 0 in dead ones.  Slopes of its keys, or NULL. */
static void row_slopes(const struct tile *t, int x, real *slope)
{
    const struct call *c = t->c;
    const int which = slopes_of(c, x).query;
    const real *from = which < 0 ? NULL : input(c, c->plan->use[x].enc, which);
    const ptrdiff_t at = (t->seq->b * c->plan->heads + t->h) * c->Lq + t->i0;
    for (int r = 0; r < QT; r++) slope[r] = from && r < t->rows ? from[at + r] : 0;
}
static const real *key_slopes(const struct tile *t, int x)
{
    const struct call *c = t->c;
    const int which = slopes_of(c, x).key;
    if (which < 0) return NULL;
    return (const real *)input(c, c->plan->use[x].enc, which) + slopes_at(c, t->seq->b, t->h)
         + t->j0;
}

static void score(struct tile *t, int x)
{
    const real *keys = key_slopes(t, x);
    real rows[QT], d[QT], *restrict s = t->s;
    bool finite = true;
    row_slopes(t, x, rows);
    for (int k = 0; k < t->keys; k++) {
        const real key = keys ? keys[k] : 0;
        distances(t, k, d);
        for (int r = 0; r < QT; r++) s[k * QT + r] = fma_(-(key + rows[r]), d[r], s[k * QT + r]);
        finite &= key - key == 0;
    }
    for (int r = 0; r < t->rows; r++) finite &= rows[r] - rows[r] == 0;
    /* A slope that is not finite may change the score of a masked pair. */
    if (!finite) mask(t, t->s, t->c->plan->mix < 0 ? -INFINITY : 0);
}

static int keyed(const struct call *c, int x) { return slopes_of(c, x).key >= 0; }
static ptrdiff_t keys_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)x;
    return (b * c->plan->heads + h) * c->Lk;
}
static ptrdiff_t total(const struct call *c, int x)
{
    return keyed(c, x) ? c->B * c->plan->heads * c->Lk : 0;
}
/* A row of gradient: the sums of dS |d| over the keys. */
static ptrdiff_t grad(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return 1;
}
/* Backward: dS |d| of a tile. */
static ptrdiff_t mem(const struct call *c, int x)
{
    (void)x;
    return c->backward ? KT : 0;
}

#if QT > 1
/* The gradient of the rows' slopes, or NULL. */
static double *row_gradient(const struct tile *t, int x)
{
    const struct call *c = t->c;
    const int which = slopes_of(c, x).query;
    double *to =
        which < 0 ? NULL : c->g.dtensor[c->plan->first_tensor[c->plan->use[x].enc] + which];
    return to ? to + (t->seq->b * c->plan->heads + t->h) * c->Lq + t->i0 : NULL;
}
static void score_bwd(struct tile *t, int x)
{
    if (!t->own[x].keys && !row_gradient(t, x)) return;
    real *by = t->own[x].mem, d[QT], none[KT] = { 0 };
    for (int k = 0; k < t->keys; k++) {
        distances(t, k, d);
        for (int r = 0; r < QT; r++) by[k * QT + r] = t->ds[k * QT + r] * d[r];
    }
    sum_tile(by, t->keys, t->own[x].keys ? t->own[x].keys : none, t->own[x].grad);
}
static void close_bwd(struct tile *t, int x)
{
    double *to = row_gradient(t, x);
    for (int r = 0; to && r < t->rows; r++) to[r] -= (double)t->own[x].grads[r];
}
#endif

const struct term N(term_slopes) = {
    .name = "slopes",
    .mem = mem,
    .keyed = keyed,
    .keyed_alone = true,
    .keys_at = keys_at,
    .total = total,
    .grad = grad,
    .score = score,
#if QT > 1
    .score_bwd = score_bwd,
    .close_bwd = close_bwd,
#endif
};
