/* SPDX-License-Identifier: MIT */
/* walks.c -- encodings whose products depend on the keys between key and query: wall.  `the last`
 * is the newest key that a row sees. */
#include "reference/budget.h"

/* ---- wall: q.k whose summands fade --------------------------------------------------------------
 *
 *     product_ij = sum over n of q_i[n] k_j[n] exp(sum of log_f[n] over the keys after j up to the
 *                  last)
 *
 * Keys in index order, seen or not, of the row's segment.  A log_f below -10^4 counts as that; one
 * at or above 10^4 counts as NaN. */

static double wall_gate(double log_f)
{
    return log_f >= 1e4 || isnan(log_f) ? NAN : log_f < -1e4 ? -1e4 : log_f;
}
static ptrdiff_t wall_gates(const struct problem *p, int h)
{
    return (p->b * p->H + h) * p->Lk * p->D;
}
/* The last key that the row sees, or -1. */
static ptrdiff_t last_seen(const struct problem *p)
{
    ptrdiff_t last = p->Lk - 1;
    while (last >= 0 && !p->seen[last]) last--;
    return last;
}
static bool of_segment(const struct problem *p, ptrdiff_t j)
{
    return k_segment(p, j) == q_segment(p, p->i);
}

static void wall(struct problem *p, int e, int h, double *product)
{
    const double *log_f = tensor(p, e, "log_f") + wall_gates(p, h), *q = p->q + q_row(p, h);
    const ptrdiff_t last = last_seen(p);
    for (ptrdiff_t j = 0; j < p->Lk; j++) product[j] = 0;
    for (int n = 0; n < p->D; n++) {
        double after = 0;
        for (ptrdiff_t j = last; j >= 0; j--) {
            if (p->seen[j]) product[j] += q[n] * p->k[k_row(p, h, j) + n] * exp(after);
            if (of_segment(p, j)) after += wall_gate(log_f[j * p->D + n]);
        }
    }
}
/* Gate l is part of the summands of all keys before it. */
static void wall_backward(struct problem *p, int e, int h, const double *dproduct)
{
    const double *log_f = tensor(p, e, "log_f") + wall_gates(p, h);
    double *dlog_f = dtensor(p, e, "log_f") + wall_gates(p, h), *decay = p->scratch[0];
    const ptrdiff_t last = last_seen(p), q = q_row(p, h);
    for (int n = 0; n < p->D; n++) {
        double after = 0, before = 0;
        for (ptrdiff_t j = last; j >= 0; j--) {
            decay[j] = exp(after);
            if (of_segment(p, j)) after += wall_gate(log_f[j * p->D + n]);
        }
        for (ptrdiff_t j = 0; j <= last; j++) {
            const ptrdiff_t k = k_row(p, h, j);
            if (of_segment(p, j) && log_f[j * p->D + n] > -1e4) dlog_f[j * p->D + n] += before;
            if (!p->seen[j]) continue;
            const double d = dproduct[j] * decay[j];
            before += d * p->q[q + n] * p->k[k + n];
            p->dq[q + n] += d * p->k[k + n];
            p->dk[k + n] += d * p->q[q + n];
        }
    }
}

/* Sums of gates have errors, and so have products; the gradient of a gate is a sum of q dq over
 * rows minus one of k dk over keys, from the gate on.  `by`: sizes of the gradients of products;
 * NULL: sizes of products are wanted. */
static void wall_sizes(struct problem *p, int e, int h, double *size, const double *by)
{
    struct sizes *z = p->budget;
    const double *log_f = tensor(p, e, "log_f") + wall_gates(p, h), least = z->to->least;
    double *to = by ? z->dtensor[tensor_number(p, e, "log_f")] + wall_gates(p, h) : NULL;
    const ptrdiff_t last = last_seen(p), q = q_row(p, h);
    for (ptrdiff_t j = 0; j < p->Lk && size; j++) size[j] = p->D * least;
    for (int n = 0; n < p->D; n++) {
        double after = 0, sum = 0, row = 0;
        for (ptrdiff_t j = last; j >= 0; j--) {
            const ptrdiff_t k = k_row(p, h, j);
            const double rounding = 1 + sum, decay = exp(after);
            if (of_segment(p, j)) {
                const double gate = wall_gate(log_f[j * p->D + n]);
                after += gate;
                /* below -60 the factor is 0 */
                sum += fabs(gate);
            }
            if (!p->seen[j]) continue;
            const double a = fabs(p->q[q + n]), b = fabs(p->k[k + n]), ea = z->eq[q + n],
                         eb = z->ek[k + n];
            /* a factor below 2^-40 may be 0 (of doubles, 2^-500) */
            const double gone = (z->to->unit > 1e-10 ? 0x1p-40 : 0x1p-500) / z->to->unit;
            const double f = decay * rounding + gone;
            if (size) size[j] += a * b * f + (ea * b + a * eb) * decay;
            if (!by) continue;
            z->dq[q + n] += by[j] * (b * f + eb * decay) + least;
            z->dk[k + n] += by[j] * (a * f + ea * decay) + least;
            row += by[j] * (a * b * f + (ea * b + a * eb) * decay) + least;
        }
        for (ptrdiff_t j = last; j >= 0 && by; j--) to[j * p->D + n] += 2 * row;
    }
}
static bool wall_factors(const struct problem *p, int e)
{
    (void)p;
    (void)e;
    return true;
}
const struct definition loci_define_wall = {
    .name = "wall",
    .products = wall,
    .products_backward = wall_backward,
    .product_sizes = wall_sizes,
    .factors = wall_factors,
};
