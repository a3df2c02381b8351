/* SPDX-License-Identifier: MIT */
/* states.c -- rotates queries and keys by states that come with the call, and
 * averages the states of the keys.
 *
 *     (x[t], x[t + D/2]) <- (c x[t] - s x[t + D/2], s x[t] + c x[t + D/2])
 *     (c, s): state t of the row, by query head
 *     ae_i = sum over j of P_ij ek_j
 *
 * A state may have any length, so its gradient is computed from the rows before rotation:
 *
 *     d(c, s) = (dy[t] x[t] + dy[t + D/2] x[t + D/2], dy[t + D/2] x[t] - dy[t] x[t + D/2])
 *
 * The states of the keys are a second value: dP += dae ek^T, dek += P^T dae, delta += dae.ae. */
#include "engine/tile_gemm.h"
#include "engine/stored.h"
#include "layout/states.h"

/* Where the states of the rows or keys of a query head are in their tensor, from number i on. */
static ptrdiff_t place_of(const struct call *c, bool query, ptrdiff_t b, int h, ptrdiff_t i)
{
    return ((b * c->plan->heads + h) * (query ? c->Lq : c->Lk) + i) * c->plan->dim;
}
static const real *states(const struct call *c, int x, bool query, ptrdiff_t b, int h, ptrdiff_t i)
{
    return (const real *)input(c, c->plan->use[x].enc, query ? STATES_Q : STATES_K)
         + place_of(c, query, b, h, i);
}

/* ---- Rotation: the same sums as those of the term `pairs` ------------------------------------ */

INLINE void turn_row(const real *restrict e, int n, real *restrict a, real *restrict b)
{
    for (int t = 0; t < n; t++) {
        const real x = a[t], y = b[t], c = e[2 * t], s = e[2 * t + 1];
        a[t] = fma_(x, c, -(y * s));
        b[t] = fma_(x, s, y * c);
    }
}
static void rotate(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h, bool query,
                   ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    const int half = c->plan->dim / 2;
    const real *e = states(c, x, query, b, h, i0);
    (void)at; /* no angles: each row has its own numbers */
    for (int r = 0; r < n; r++)
        turn_row(e + (ptrdiff_t)r * 2 * half, half, rows + r * stride, rows + r * stride + half);
}

/* Adds d(c, s) of one row.  Pairs without a gradient add nothing, whatever they
 * and their states contain. */
static void gather(const real *x, const real *d, int n, double *de)
{
    for (int t = 0; t < n; t++) {
        const double a = (double)x[t], b = (double)x[t + n], da = (double)d[t],
                     db = (double)d[t + n];
        if (da == 0 && db == 0) continue;
        de[2 * t] += da * a + db * b;
        de[2 * t + 1] += db * a - da * b;
    }
}
/* The adjoint, by c - is; a gradient of 0 stays 0, whatever the state. */
INLINE void rotate_back(const real *restrict e, int n, real *restrict a, real *restrict b)
{
    for (int t = 0; t < n; t++) {
        const real x = a[t], y = b[t], c = e[2 * t], s = e[2 * t + 1];
        const bool none = x == 0 && y == 0;
        a[t] = none ? 0 : fma_(x, c, y * s);
        b[t] = none ? 0 : fma_(x, -s, y * c);
    }
}
/* Each row of each head is rotated back once, by one thread, so the gradient of its state goes
 * straight to the tensor and needs no part. */
static void rotate_bwd(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h,
                       bool query, ptrdiff_t i0, int n, const real *rows, real *d, ptrdiff_t stride,
                       real *part)
{
    const int half = c->plan->dim / 2;
    const real *e = states(c, x, query, b, h, i0);
    double *de =
        c->g.dtensor[c->plan->first_tensor[c->plan->use[x].enc] + (query ? STATES_Q : STATES_K)];
    (void)at;
    (void)part;
    for (int r = 0; r < n; r++) {
        real *row = d + r * stride;
        if (de) gather(rows + r * stride, row, half, de + place_of(c, query, b, h, i0 + r));
        rotate_back(e + (ptrdiff_t)r * 2 * half, half, row, row + half);
    }
}

/* ---- Averages -------------------------------------------------------------------------------- */

/* Sums of ek under the weights, if the call wants ae; the backward pass reads the
 * result of the forward pass. */
static ptrdiff_t out(const struct call *c, int x)
{
    (void)x;
    return !c->backward && c->in->ae ? c->plan->dim : 0;
}
static const real *states_of_keys(const struct tile *t, int x)
{
    return states(t->c, x, false, t->seq->b, t->h, t->j0);
}

static void value(struct tile *t, int x)
{
    const int D = t->c->plan->dim;
    /* The engine has already faded the sums, hence a factor of 1. */
    real one[QT];
    if (!t->own[x].outn) return;
    for (int r = 0; r < QT; r++) one[r] = 1;
    const real *e = states_of_keys(t, x);
    mix_safe(t, e, D, D, t->p, t->own[x].out, one, next_rows(t, e, D));
}
/* ae is divided by the sum of the weights as o is, and stored in a separate tensor. */
static void close(struct tile *t, int x)
{
    const struct call *c = t->c;
    const int D = c->plan->dim;
    if (!t->own[x].outn) return;
    if (c->plan->weight < 0) {
        real inverse[QT];
        for (int r = 0; r < QT; r++) inverse[r] = t->total.l[r] == 0 ? 0 : 1 / t->total.l[r];
        for (int n = 0; n < D; n++)
            for (int r = 0; r < QT; r++) t->own[x].outs[n * QT + r] *= inverse[r];
    }
    transpose(t->own[x].outs, QT, D, t->rows,
              (real *)c->in->ae + place_of(c, true, t->seq->b, t->h, t->i0), D);
}

/* Tiles may be skipped as usual, unless the keys are rotated already: then it is unknown
 * whether states are finite. */
static real ceiling(const struct tile *t, int x)
{
    (void)x;
    return t->c->plan->keys_rotated ? INFINITY : 0;
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* dek by key: sums of the same form as dV. */
static int keyed(const struct call *c, int x)
{
    (void)x;
    return c->plan->dim;
}
static ptrdiff_t keys_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)x;
    return place_of(c, false, b, h, 0);
}
static ptrdiff_t total(const struct call *c, int x)
{
    (void)x;
    return c->B * c->plan->heads * c->Lk * c->plan->dim;
}

#if QT > 1
/* dae^T [D][QT], then its rows [QT][Dp]. */
static ptrdiff_t mem(const struct call *c, int x)
{
    (void)x;
    return c->backward ? c->plan->dim + padded(c->plan->dim) : 0;
}
static real *dae_rows(const struct tile *t, int x)
{
    return t->own[x].mem + (ptrdiff_t)t->c->plan->dim * QT;
}

/* Loads dae, adds dae.ae to delta, and tests whether all of it is finite. */
static void open_bwd(struct tile *t, int x)
{
    const struct call *c = t->c;
    const int D = c->plan->dim, Dp = padded(D);
    real *columns = t->own[x].mem, *rows = dae_rows(t, x);
    if (!c->grad->dae) return;
    const ptrdiff_t at = place_of(c, true, t->seq->b, t->h, t->i0);
    for (int r = 0; r < t->rows; r++)
        memcpy(rows + (ptrdiff_t)r * Dp, (const real *)c->grad->dae + at + (ptrdiff_t)r * D,
               sizeof(real) * (size_t)D);
    pad_rows(t->rows, D, rows, padded(D));
    transpose(rows, Dp, QT, D, columns, QT);
    const real *ae = (const real *)c->in->ae + at;
    for (int n = 0; n < D; n++)
        for (int r = 0; r < t->rows; r++)
            t->delta[r] = fma_(columns[n * QT + r], ae[(ptrdiff_t)r * D + n], t->delta[r]);
    t->finite = t->finite && finite_rows(rows, Dp, t->rows, D);
}
static void value_bwd(struct tile *t, int x)
{
    const int D = t->c->plan->dim;
    if (!t->c->grad->dae) return;
    dot_as(ADD, t, states_of_keys(t, x), D, 1, t->next, D, t->own[x].mem, t->dp);
    if (t->own[x].keys) outer_safe(t, t->p, dae_rows(t, x), padded(D), t->own[x].keys);
}
#endif

static const struct rotation rotation = {
    .rotate = rotate,
    .rotate_bwd = rotate_bwd,
    .of_input = true,
};
const struct term N(term_states) = {
    .name = "states",
    .out = out,
    .value = value,
    .close = close,
    .ceiling = ceiling,
    .keyed = keyed,
    .keys_at = keys_at,
    .total = total,
#if QT > 1
    .mem = mem,
    .open_bwd = open_bwd,
    .value_bwd = value_bwd,
#endif
    .rotation = &rotation,
};
