/* SPDX-License-Identifier: MIT */
/* linear.c -- linear attention, pair by pair, and its whole gradient.
 *
 *     o_i = sum_j n_ij v_j / sum_j m_ij      n_ij = (R f(q_i)).(R f(k_j))   m_ij = f(q_i).f(k_j)
 *     f = elu + 1
 *
 * over the keys j that row i sees; 0 if it sees none.  With den_i = sum_j m_ij and
 * the cotangent g_i of o_i,
 *
 *     dn_ij = g_i.v_j / den_i      dm_ij = -(g_i.o_i) / den_i      dv_j += n_ij g_i / den_i */
#include <stdlib.h>

#include "reference/problem.h"

/* elu(x) + 1, and its slope. */
static double feature(double x) { return x > 0 ? x + 1 : exp(x); }
static double slope(double x) { return x > 0 ? 1 : exp(x); }

/* Rows [heads][rows][D] of a view: f of them, and f rotated.  The denominator uses
 * f, the numerator f rotated. */
static void features(const struct problem *p, loci_which which, loci_view x, int heads,
                     ptrdiff_t rows, double *f, double *rotated)
{
    x = dense(x, heads, rows, p->D);
    for (int h = 0; h < heads; h++)
        for (ptrdiff_t i = 0; i < rows; i++, f += p->D, rotated += p->D) {
            for (int c = 0; c < p->D; c++) f[c] = feature(view_row(x, p->b, h, i)[c]);
            if (p->def[0]->rotate) p->def[0]->rotate(p, 0, which, h, i, f, rotated);
            else memcpy(rotated, f, (size_t)p->D * sizeof *f);
        }
}
/* dx from the gradients of f (df) and of f rotated (dturned), which is rotated back first. */
static void features_backward(struct problem *p, loci_which which, loci_view x, int heads,
                              ptrdiff_t rows, const double *f, const double *dturned,
                              const double *df, loci_view dx)
{
    x = dense(x, heads, rows, p->D);
    dx = dense(dx, heads, rows, p->D);
    for (int h = 0; h < heads; h++)
        for (ptrdiff_t i = 0; i < rows; i++, f += p->D, dturned += p->D, df += p->D) {
            /* f reaches the loss twice, rotated and unrotated, and dx is the sum of
             * both times the slope of f. */
            double *back = p->scratch[0];
            if (p->def[0]->rotate) p->def[0]->rotate_backward(p, 0, which, h, i, f, dturned, back);
            else memcpy(back, dturned, (size_t)p->D * sizeof *back);
            for (int c = 0; c < p->D && dx.data; c++)
                view_row(dx, p->b, h, i)[c] = (back[c] + df[c]) * slope(view_row(x, p->b, h, i)[c]);
        }
}

/* Windows do not apply here: the sum over the keys that a row sees must be a running sum. */
static bool sees(const struct problem *p, ptrdiff_t j)
{
    return q_segment(p, p->i) >= 0 && q_segment(p, p->i) == k_segment(p, j)
        && (p->plan->full || distance(p, j) >= 0);
}

/* Scratch of one batch entry: f, f rotated, and their gradients, of
 * queries and keys; rows of dv. */
struct scratch {
    double *q, *tq, *k, *tk, *dq, *dtq, *dk, *dtk, *dv, *o, *g;
};

/* Lays out everything after the gradients of tensors; with base NULL it only measures.  dq and
 * dtq are adjacent, as are dk, dtk and dv: batch_entry() zeroes them at once. */
static ptrdiff_t lay_out(struct problem *p, struct scratch *r, double *base)
{
    const ptrdiff_t q = p->H * p->Lq * p->D, k = p->Hkv * p->Lk * p->D, v = p->Hkv * p->Lk * p->Dv;
    double **part[] = {
        &r->q, &r->tq, &r->dq,         &r->dtq,           &r->k, &r->tk, &r->dk, &r->dtk, &r->dv,
        &r->o, &r->g,  &p->scratch[0], &p->rotate_scratch
    };
    const ptrdiff_t size[] = {
        q, q, q, q, k, k, k, k, v, p->Dv, p->Dv, p->D, loci_reference_scratch(p)
    };
    ptrdiff_t used = loci_reference_dtensors(p, base);
    for (int i = 0; i < COUNT(part); i++) {
        *part[i] = base ? base + used : NULL;
        used += size[i];
    }
    return used;
}

/* Row p->i of head h: o; returns the denominator, 0 for a row that sees no key. */
static double forward_row(const struct problem *p, const struct scratch *r, int h, loci_view v)
{
    double den = 0;
    for (int c = 0; c < p->Dv; c++) r->o[c] = 0;
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!sees(p, j)) continue;
        den += dot(r->q + q_row(p, h), r->k + k_row(p, h, j), p->D);
        add_scaled(r->o, dot(r->tq + q_row(p, h), r->tk + k_row(p, h, j), p->D),
                   view_row(v, p->b, (int)kv_head(p, h), j), p->Dv);
    }
    /* A denominator of 0 means that a row sees no key: o stays 0. */
    for (int c = 0; c < p->Dv && den != 0; c++) r->o[c] /= den;
    return den;
}
/* g is the cotangent over the denominator; dn and dm as in the file comment. */
static void backward_row(const struct problem *p, const struct scratch *r, int h, loci_view v)
{
    const double dm = -dot(r->g, r->o, p->Dv);
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!sees(p, j)) continue;
        const ptrdiff_t q = q_row(p, h), k = k_row(p, h, j);
        const double dn = dot(r->g, view_row(v, p->b, (int)kv_head(p, h), j), p->Dv);
        /* n through the rotated features, m through the others */
        add_scaled(r->dtq + q, dn, r->tk + k, p->D);
        add_scaled(r->dtk + k, dn, r->tq + q, p->D);
        add_scaled(r->dq + q, dm, r->k + k, p->D);
        add_scaled(r->dk + k, dm, r->q + q, p->D);
        add_scaled(r->dv + v_row(p, h, j), dot(r->tq + q, r->tk + k, p->D), r->g, p->Dv);
    }
}

static void batch_entry(struct problem *p, const struct scratch *r, const loci_grad *grad)
{
    const loci_call *c = p->call;
    const loci_view v = dense(c->v, p->Hkv, p->Lk, p->Dv), o = dense(c->o, p->H, p->Lq, p->Dv);
    features(p, LOCI_QUERY, c->q, p->H, p->Lq, r->q, r->tq);
    features(p, LOCI_KEY, c->k, p->Hkv, p->Lk, r->k, r->tk);
    memset(r->dq, 0, (size_t)(2 * p->H * p->Lq * p->D) * sizeof(double)); /* dtq too */
    /* dtk and dv too */
    memset(r->dk, 0, (size_t)(2 * p->Hkv * p->Lk * p->D + p->Hkv * p->Lk * p->Dv) * sizeof(double));
    for (int h = 0; h < p->H; h++)
        for (p->i = 0; p->i < p->Lq; p->i++) {
            const double den = forward_row(p, r, h, v);
            if (o.data) memcpy(view_row(o, p->b, h, p->i), r->o, (size_t)p->Dv * sizeof(double));
            /* A row that sees no key has no gradient. */
            if (!grad || den == 0 || !grad->dout.data) continue;
            const loci_view dout = dense(grad->dout, p->H, p->Lq, p->Dv);
            /* Cotangent over the denominator, as both gradients need it. */
            for (int x = 0; x < p->Dv; x++) r->g[x] = view_row(dout, p->b, h, p->i)[x] / den;
            backward_row(p, r, h, v);
        }
    if (!grad) return;
    features_backward(p, LOCI_QUERY, c->q, p->H, p->Lq, r->q, r->dtq, r->dq, grad->dq);
    features_backward(p, LOCI_KEY, c->k, p->Hkv, p->Lk, r->k, r->dtk, r->dk, grad->dk);
    const loci_view dv = dense(grad->dv, p->Hkv, p->Lk, p->Dv);
    for (int h = 0; h < p->Hkv && dv.data; h++)
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            memcpy(view_row(dv, p->b, h, j), r->dv + (h * p->Lk + j) * p->Dv,
                   (size_t)p->Dv * sizeof(double));
}

loci_status loci_reference_linear(const loci_plan *plan, const void *const *tensors,
                                  const loci_call *call, const loci_grad *grad)
{
    struct problem problem, *p = &problem;
    struct scratch scratch;
    loci_status status = loci_reference_open(p, plan, tensors, 0, call);
    if (status) return status;
    CHECK(call->error, plan->stage == LOCI_LINEAR_ATTENTION, LOCI_BAD_ARG,
          "the plan is not one of stage linear_attention");
    double *base = calloc((size_t)lay_out(p, &scratch, NULL) + 1, sizeof *base);
    CHECK(call->error, base, LOCI_NO_MEMORY, "no memory for the reference");
    lay_out(p, &scratch, base);
    for (p->b = 0; p->b < p->B; p->b++) batch_entry(p, &scratch, grad);
    if (grad) loci_reference_give(p, grad->dtensors);
    free(base);
    return LOCI_OK;
}
