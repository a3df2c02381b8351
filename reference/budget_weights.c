/* SPDX-License-Identifier: MIT */
/* budget_weights.c -- the budget of outputs, weights and the gradients that pass through them. */
#include "reference/budget.h"

/* ---- Outputs --------------------------------------------------------------------------------- */

/* The greatest score of the head, or the sink if that is greater; 0 if it is not finite. */
static double top_of(const struct problem *p, int h)
{
    const int e = loci_reference_sinking(p);
    double top = e < 0 ? -INFINITY : p->def[e]->sink(p, e, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (counts(p, h, j) && of_head(p, p->s, h)[j] > top) top = of_head(p, p->s, h)[j];
    return isfinite(top) ? top : 0;
}

/* The size of one output, for which the problem is set up with cotangent 1; the contribution
 * of the values is separate. */
static double output_size(struct problem *p, int h, double top)
{
    struct sizes *z = p->budget;
    double sum = 0;
    zero(p->dw, p->H * p->Lk);
    zero(p->ds, p->H * p->Lk);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (counts(p, h, j))
            of_head(p, p->dw, h)[j] = dot(p->dout + h * p->Dv, p->v + v_row(p, h, j), p->Dv);
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->value) p->def[e]->value_backward(p, e, h);
    loci_reference_weights_backward(p, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (counts(p, h, j))
            sum += fabs(of_head(p, p->ds, h)[j])
                 * (of_head(p, z->s, h)[j] + 1 + fabs(of_head(p, p->s, h)[j] - top));
    const int s = loci_reference_sinking(p);
    for (int e = 0; e < p->plan->encs; e++) {
        if (e == s) /* the logit is as far from the top as its own value */
            sum += fabs(z->jt[p->plan->first_tensor[e]][h])
                 * (1 + fabs(p->def[e]->sink(p, e, h) - top));
        if (p->def[e]->value || e == s) sum += loci_harvest_tensors(p, e, 0);
    }
    sum += loci_harvest(z->jv + v_row(p, h, 0), p->Lk * p->Dv, z->v + v_row(p, h, 0), 0, 0,
                        z->dv + v_row(p, h, 0));
    return sum;
}

void loci_output_sizes(struct problem *p, int h, const struct places *real)
{
    struct sizes *z = p->budget;
    const bool stick = loci_reference_weights(p) >= 0;
    const double top = stick ? 0 : top_of(p, h), *w = of_head(p, p->w, h);
    p->seen = p->sees + h * p->Lk;
    p->dout = z->cot;
    p->dae = z->cotae;
    p->dlse = z->cotrow[0];
    p->drem = z->cotrow[1];
    p->dw = z->j[0];
    p->ds = z->j[1];
    zero(of_head(p, z->dw, h), p->Lk);
    z->delta[h] = fabs(real->dlse[h]);
    z->drem[h] = fabs(real->drem[h]);

    if (stick) {
        p->drem[h] = 1;
        z->rem[h] = output_size(p, h, 0) + fabs(p->rem[h]) + z->lost;
    } else {
        p->dlse[h] = 1;
        z->lse[h] = output_size(p, h, top) + fabs(top) + 1 + fabs(p->lse[h]);
    }
    p->drem[h] = p->dlse[h] = 0;
    for (int c = 0; c < p->Dv + (p->plan->states ? p->D : 0); c++) {
        const bool state = c >= p->Dv;
        const ptrdiff_t at = state ? h * p->D + c - p->Dv : h * p->Dv + c;
        double *const one = (state ? p->dae : p->dout) + at;
        *one = 1;
        p->drem[h] = 0;
        double size = output_size(p, h, top);
        *one = 0;
        const double cotangent = state ? fabs(real->dae[at]) : z->dout[at];
        z->drem[h] += cotangent * fabs(p->drem[h]);
        size += z->lost * fabs(p->drem[h]);
        p->drem[h] = 0;
        for (ptrdiff_t j = 0; j < p->Lk; j++) {
            if (!counts(p, h, j)) continue;
            size += z->lost * fabs(of_head(p, p->dw, h)[j]) + z->to->least;
            if (!state) size += w[j] * z->v[v_row(p, h, j) + c];
        }
        const double value = state ? p->ae[at] : p->o[at];
        size += fabs(value);
        (state ? z->ae : z->o)[at] = size;
        z->delta[h] +=
            cotangent * (size + fabs(value) * z->to->stored / z->to->unit) + z->to->least;
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            if (counts(p, h, j))
                of_head(p, z->dw, h)[j] += cotangent * fabs(of_head(p, p->dw, h)[j]) + z->to->least;
    }
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* j[0] becomes the size of each weight; returns that of rem. */
static double weight_sizes(struct problem *p, int h)
{
    struct sizes *z = p->budget;
    const double *w = of_head(p, p->whole, h), *s = of_head(p, p->s, h);
    double *size = of_head(p, z->j[0], h), newer = 0;
    zero(size, p->Lk);
    if (loci_reference_weights(p) < 0) {
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            if (counts(p, h, j))
                size[j] = (w[j] + z->lost)
                        * (1 + of_head(p, z->s, h)[j] + fabs(s[j] - p->lse[h]) + z->lse[h]);
        return 0;
    }
    for (ptrdiff_t j = p->Lk; j-- > 0;) {
        if (!counts(p, h, j)) continue;
        size[j] = (w[j] + z->lost) * (1 + of_head(p, z->s, h)[j] * sigmoid(-s[j]) + newer);
        newer += of_head(p, z->s, h)[j] * sigmoid(s[j]) + sigmoid(s[j]);
    }
    return (p->rem[h] + z->lost) * (1 + newer);
}

/* Sizes of ds from those of weights, and of the learned numbers of values and weights. */
void loci_weight_sizes(struct problem *p, int h, const struct places *real)
{
    struct sizes *z = p->budget;
    double *size = of_head(p, z->j[0], h);
    const double rem = weight_sizes(p, h), *dw = of_head(p, real->dw, h),
                 *w = of_head(p, p->whole, h), *s = of_head(p, p->s, h);
    const int sink = loci_reference_sinking(p);
    double mean = 0, older = 0;
    for (ptrdiff_t j = 0; j < p->Lk; j++) mean += counts(p, h, j) ? w[j] * dw[j] : 0;
    mean -= real->dlse[h];
    if (loci_reference_weights(p) >= 0) older = rem * z->drem[h];
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        of_head(p, z->ds, h)[j] = 0;
        if (!counts(p, h, j)) continue;
        const double by = w[j] + z->lost;
        if (loci_reference_weights(p) < 0) {
            of_head(p, z->ds, h)[j] = size[j] * fabs(dw[j] - mean)
                                    + by * (of_head(p, z->dw, h)[j] + z->delta[h]) + z->to->least;
        } else {
            const double mine = size[j] * fabs(dw[j]) + by * of_head(p, z->dw, h)[j];
            const double off = of_head(p, z->s, h)[j];
            of_head(p, z->ds, h)[j] = mine * (1 + off * sigmoid(s[j]) * sigmoid(-s[j]))
                                    + older * (sigmoid(s[j]) * (1 + off * sigmoid(-s[j])) + z->lost)
                                    + z->to->least;
            older += mine;
        }
    }
    /* Values: their definitions applied to sizes, of weights after dropout. */
    for (ptrdiff_t j = 0; j < p->Lk; j++) size[j] *= of_head(p, p->keep, h)[j];
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        for (int c = 0; c < p->Dv && counts(p, h, j); c++)
            z->dv[v_row(p, h, j) + c] += size[j] * z->dout[h * p->Dv + c] + z->to->least;
    p->w = z->j[0];
    p->dw = z->j[1];
    p->rem = z->cotrow[1];
    p->drem = z->cotrow[0];
    const double saved = p->rem[h];
    p->rem[h] = rem;
    for (int c = 0; c < p->Dv; c++) z->cot[h * p->Dv + c] = z->dout[h * p->Dv + c];
    for (int c = 0; c < p->D; c++) z->cotae[h * p->D + c] = fabs(real->dae[h * p->D + c]);
    p->dout = z->cot;
    p->dae = z->cotae;
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->value) {
            p->def[e]->value_backward(p, e, h);
            loci_harvest_tensors(p, e, 1);
        }
    loci_harvest(z->jv + v_row(p, h, 0), p->Lk * p->Dv, p->v + v_row(p, h, 0), 1, z->to->least,
                 z->dv + v_row(p, h, 0));
    if (sink >= 0 && p->lse[h] != -INFINITY) {
        const double logit = p->def[sink]->sink(p, sink, h), share = exp(logit - p->lse[h]);
        p->def[sink]->sink_backward(p, sink, h,
                                    (share + z->lost)
                                        * ((2 + fabs(logit - p->lse[h]) + z->lse[h]) * fabs(mean)
                                           + z->delta[h]));
        loci_harvest_tensors(p, sink, 1);
    }
    p->rem[h] = saved;
    p->w = real->w;
    p->rem = real->rem;
    z->cotrow[0][h] = z->cotrow[1][h] = 0;
    for (int c = 0; c < p->Dv; c++) z->cot[h * p->Dv + c] = 0;
    for (int c = 0; c < p->D; c++) z->cotae[h * p->D + c] = 0;
}
