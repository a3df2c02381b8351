/* SPDX-License-Identifier: MIT */
/* factor.c -- the score at this stage is multiplied by a factor of its row.
 *
 *     s *= f_i        f of layout/factor.h, rounded once
 *
 * If q.k is all that it multiplies, the rows of q are multiplied when they are loaded.  Otherwise
 * scores are.  Where f is 0 or less, masked pairs stay masked.
 *
 * Backward: the gradient of f_i is sum_j dS_ij x_ij, x the score before.  With rows that were
 * multiplied it is q.g, q the row before and g the gradient of the multiplied one. */
#include "engine/visible.h"
#include "layout/factor.h"

static bool folds(const struct call *c, int x) { return factor_folds(c->plan, x); }
static bool learned(const struct call *c, int x)
{
    return factor_learned(c->plan, c->plan->use[x].enc);
}

/* Rows of memory: the factors; backward also the rows of q, or the scores, before. */
static ptrdiff_t mem(const struct call *c, int x)
{
    if (!c->backward) return 1;
    return 1
         + (folds(c, x)     ? c->plan->row_forms * padded(c->plan->score_dim)
            : learned(c, x) ? KT
                            : 0);
}

/* c_i of a row, see layout/factor.h. */
static double row_number(const struct tile *t, int x, int r)
{
    const double *rows = t->own[x].scratch;
    return rows[factor_row(t->c, t->seq->b, t->h, t->i0 + r)];
}
/* The rows of q before, in their form. */
static real *rows_before(const struct tile *t, int x)
{
    return t->own[x].mem + QT + (ptrdiff_t)t->q.form * QT * padded(t->c->plan->score_dim);
}
/* Dead rows have factor 1. */
static void find_factors(struct tile *t, int x)
{
    const real *table = t->own[x].table;
    real *f = t->own[x].mem;
    for (int r = 0; r < QT; r++) {
        const double n = r < t->rows ? row_number(t, x, r) : 1;
        f[r] = r >= t->rows      ? 1
             : !learned(t->c, x) ? (real)n
                                 : (real)((double)table[factor_at(t->h, FACTOR_SLOPE)] * n
                                          + (double)table[factor_at(t->h, FACTOR_BIAS)]);
    }
}

static void load(struct tile *t, int x)
{
    find_factors(t, x);
    if (!folds(t->c, x)) return;
    const int D = t->c->plan->score_dim, Dp = padded(D);
    const real *f = t->own[x].mem;
    if (t->c->backward) memcpy(rows_before(t, x), t->q.rows, sizeof(real) * (size_t)(QT * Dp));
    for (int r = 0; r < t->rows; r++)
        for (int d = 0; d < D; d++) t->q.rows[r * Dp + d] *= f[r];
}

static void score(struct tile *t, int x)
{
    if (folds(t->c, x)) return;
    const real *f = t->own[x].mem;
    bool positive = true;
    if (t->c->backward && learned(t->c, x))
        memcpy(t->own[x].mem + QT, t->s, sizeof(real) * (size_t)(t->keys * QT));
    for (int r = 0; r < QT; r++) positive &= f[r] > 0;
    for (int k = 0; k < t->keys; k++)
        for (int r = 0; r < QT; r++) t->s[k * QT + r] *= f[r];
    if (!positive) mask(t, t->s, -INFINITY);
}

/* In the product, the factor is in |q|. */
static real ceiling(const struct tile *t, int x) { return folds(t->c, x) ? 0 : INFINITY; }

static ptrdiff_t part(const struct call *c, int x) { return learned(c, x) ? FACTOR_NUMBERS : 0; }
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)c;
    (void)x;
    (void)b;
    return factor_at(h, 0);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->heads * part(c, x); }
/* A row of gradient: the sums of dS x. */
static ptrdiff_t grad(const struct call *c, int x) { return learned(c, x) && !folds(c, x); }

#if QT > 1
static void score_bwd(struct tile *t, int x)
{
    if (folds(t->c, x)) return;
    const real *f = t->own[x].mem, *before = t->own[x].mem + QT;
    real *sum = t->own[x].grad;
    for (int k = 0; k < t->keys; k++)
        for (int r = 0; r < QT; r++) {
            const real ds = t->ds[k * QT + r];
            /* The score of a masked pair is -inf, and its gradient 0. */
            if (t->own[x].part) sum[r] += ds == 0 ? 0 : ds * before[k * QT + r];
            t->ds[k * QT + r] = ds * f[r];
        }
}

/* Adds the gradients of the factors of all rows to the part. */
static void add_gradients(struct tile *t, int x, const real *df)
{
    double slope = 0, bias = 0;
    for (int r = 0; r < t->rows; r++) {
        slope += (double)df[r] * row_number(t, x, r);
        bias += (double)df[r];
    }
    t->own[x].part[FACTOR_SLOPE] += (real)slope;
    t->own[x].part[FACTOR_BIAS] += (real)bias;
}
static void close_bwd(struct tile *t, int x)
{
    if (t->own[x].part && !folds(t->c, x)) add_gradients(t, x, t->own[x].grads);
}
static void load_bwd(struct tile *t, int x)
{
    if (!folds(t->c, x)) return;
    const int D = t->c->plan->score_dim, Dp = padded(D);
    const real *f = t->own[x].mem, *before = rows_before(t, x);
    if (t->own[x].part) {
        real df[QT] = { 0 };
        for (int r = 0; r < t->rows; r++)
            for (int d = 0; d < D; d++) /* padding, which may contain NaN, has no gradient */
                if (t->dqs[d * QT + r] != 0)
                    df[r] = fma_(before[r * Dp + d], t->dqs[d * QT + r], df[r]);
        add_gradients(t, x, df);
    }
    for (int d = 0; d < D; d++)
        for (int r = 0; r < QT; r++) t->dqs[d * QT + r] *= f[r];
    /* A rotation that learns reads the rows that it made. */
    memcpy(t->q.rows, before, sizeof(real) * (size_t)(QT * Dp));
}
#endif

const struct term N(term_factor) = {
    .name = "factor",
    .mem = mem,
    .grad = grad,
    .part = part,
    .part_at = part_at,
    .total = total,
    .load = load,
    .score = score,
    .ceiling = ceiling,
#if QT > 1
    .score_bwd = score_bwd,
    .close_bwd = close_bwd,
    .load_bwd = load_bwd,
#endif
};
