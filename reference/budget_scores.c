/* SPDX-License-Identifier: MIT */
/* budget_scores.c -- the budget of scores: derivatives of the numbers that
 * encodings add, one at a time. */
#include "reference/budget.h"

/* ---- Derivatives, one at a time -------------------------------------------------------------- */

double loci_harvest(double *j, ptrdiff_t n, const double *size, double by, double least, double *to)
{
    double sum = 0;
    for (ptrdiff_t c = 0; c < n; c++) {
        if (j[c] == 0) continue;
        const double d = fabs(j[c]);
        sum += d * fabs(size[c]);
        if (by > 0) to[c] += by * d + least;
        j[c] = 0;
    }
    return sum;
}
double loci_harvest_tensors(const struct problem *p, int e, double by)
{
    struct sizes *z = p->budget;
    double sum = 0;
    for (int t = p->plan->first_tensor[e]; t < p->plan->first_tensor[e + 1]; t++)
        sum +=
            loci_harvest(z->jt[t], z->elements[t], p->tensors[t], by, z->to->least, z->dtensor[t]);
    return sum;
}

/* Inputs of the numbers that an encoding adds. */
enum { ON_NOTHING, ON_Q = 1, ON_K = 2, ON_V = 4, ON_TENSORS = 8 };

/* The derivatives of one number that an encoding adds.  Unless the number sums over a row, only
 * its key is shown, which is faster. */
static double derive(struct problem *p, int e, int h, ptrdiff_t j, enum kind kind, int on,
                     double by)
{
    struct sizes *z = p->budget;
    const ptrdiff_t q = q_row(p, h), k = k_row(p, h, 0), v = v_row(p, h, 0);
    bool *const seen = p->seen;
    const bool alone = !p->def[e]->over_row;
    p->draw = kind == RAW ? z->hot : z->none;
    p->dadd = kind == ADD ? z->hot : z->none;
    p->dlog_mul = kind == LOG ? z->hot : z->none;
    of_head(p, z->hot, h)[j] = 1;
    if (alone) {
        p->seen = z->alone;
        z->alone[j] = true;
    }
    p->def[e]->score_backward(p, e, h);
    p->seen = seen;
    z->alone[j] = false;
    of_head(p, z->hot, h)[j] = 0;
    /* The gradient of a sum is the row's gradient for all keys minus that for newer ones. */
    if (by > 0 && !alone)
        for (ptrdiff_t l = 0; l < p->Lk; l++)
            if (p->seen[l]) z->jt[p->plan->first_tensor[e]][(p->b * p->H + h) * p->Lk + l] = 1;
    const ptrdiff_t first = alone ? j : 0, n = alone ? 1 : p->Lk, kd = k + first * p->D,
                    vd = v + first * p->Dv;
    const double least = z->to->least;
    return (on & ON_Q ? loci_harvest(z->jq + q, p->D, z->q + q, by, least, z->dq + q) : 0)
         + (on & ON_K ? loci_harvest(z->jk + kd, n * p->D, z->k + kd, by, least, z->dk + kd) : 0)
         + (on & ON_V ? loci_harvest(z->jv + vd, n * p->Dv, p->v + vd, by, least, z->dv + vd) : 0)
         + (on & ON_TENSORS ? loci_harvest_tensors(p, e, by) : 0);
}
static bool touched(double *j, ptrdiff_t n)
{
    bool any = false;
    for (ptrdiff_t c = 0; c < n; c++) {
        any |= j[c] != 0;
        j[c] = 0;
    }
    return any;
}
static int depends(struct problem *p, int e, int h, enum kind kind)
{
    struct sizes *z = p->budget;
    for (ptrdiff_t j = 0; j < p->Lk; j++) of_head(p, z->hot, h)[j] = 1 + (double)(j % 7) / 8;
    p->draw = kind == RAW ? z->hot : z->none;
    p->dadd = kind == ADD ? z->hot : z->none;
    p->dlog_mul = kind == LOG ? z->hot : z->none;
    p->def[e]->score_backward(p, e, h);
    zero(of_head(p, z->hot, h), p->Lk);
    const ptrdiff_t q = q_row(p, h), k = k_row(p, h, 0), v = v_row(p, h, 0);
    int on = (touched(z->jq + q, p->D) ? ON_Q : 0) | (touched(z->jk + k, p->Lk * p->D) ? ON_K : 0)
           | (touched(z->jv + v, p->Lk * p->Dv) ? ON_V : 0);
    for (int t = p->plan->first_tensor[e]; t < p->plan->first_tensor[e + 1]; t++)
        if (touched(z->jt[t], z->elements[t])) on |= ON_TENSORS;
    return on;
}

/* ---- Scores ---------------------------------------------------------------------------------- */

static void add_terms(struct problem *p, int e, int h)
{
    struct sizes *z = p->budget;
    if (p->def[e]->score_sizes) {
        p->def[e]->score_sizes(p, e, h, z->add, NULL);
        return;
    }
    double *const raw = p->raw, *const logs = p->log_mul, *const add = p->add,
                  *const size[KINDS] = { z->raw, z->add, z->logs };
    for (int n = 0; n < KINDS; n++) zero(of_head(p, z->term[n], h), p->Lk);
    p->raw = z->term[RAW];
    p->add = z->term[ADD];
    p->log_mul = z->term[LOG];
    p->def[e]->score(p, e, h);
    p->raw = raw;
    p->add = add;
    p->log_mul = logs;
    for (enum kind n = 0; n < KINDS; n++) {
        const int on = depends(p, e, h, n);
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            if (counts(p, h, j))
                of_head(p, size[n], h)[j] +=
                    fabs(of_head(p, z->term[n], h)[j]) + (on ? derive(p, e, h, j, n, on, 0) : 0);
    }
}

/* The size of the score after bend number n, from the size of the score before it and without what
 * is added there. */
static double bent_size(struct problem *p, int h, ptrdiff_t j, const struct bends *b, int n,
                        double size)
{
    const int e = b->enc[n];
    double slope, learned = 0;
    const double y = p->def[e]->bend(p, e, h, b->x[n], &slope);
    if (p->def[e]->bend_backward) {
        p->def[e]->bend_backward(p, e, h, b->x[n], 1);
        learned = loci_harvest_tensors(p, e, 0);
    }
    return fabs(slope) * (size + of_head(p, p->budget->before[e], h)[j]) + learned + fabs(y);
}

/* The size of the gradient by the score before bend number n, from that by the score after it and
 * the size of the score before it.  A slope has an error from its own slope, from what is learned
 * and from rounding.  With `tensors` it adds to the sizes of gradients of what is learned. */
static double bent_back_size(struct problem *p, int h, const struct bends *b, int n, double size,
                             double by, bool tensors)
{
    const int e = b->enc[n];
    const double x = b->x[n], step = 1e-6 * (1 + fabs(x));
    double slope, up, down, learned = 0;
    p->def[e]->bend(p, e, h, x, &slope);
    p->def[e]->bend(p, e, h, x + step, &up);
    p->def[e]->bend(p, e, h, x - step, &down);
    const double curve = fabs(up - down) / (2 * step);
    if (p->def[e]->bend_backward) {
        p->def[e]->bend_backward(p, e, h, x, 1);
        loci_harvest_tensors(p, e, tensors ? by : 0);
        p->def[e]->bend_backward(p, e, h, x + step, 1 / (2 * step));
        p->def[e]->bend_backward(p, e, h, x - step, -1 / (2 * step));
        learned = loci_harvest_tensors(p, e, tensors ? by * size : 0);
    }
    const double rounding = slope != 1 || up != down ? 1 + fabs(slope) : 0;
    return (fabs(slope) + curve * size + learned + rounding) * by;
}

void loci_score_sizes(struct problem *p, int h)
{
    struct sizes *z = p->budget;
    p->seen = p->sees + h * p->Lk;
    for (int e = 0; e < p->plan->encs; e++) {
        if (p->def[e]->score) add_terms(p, e, h);
        if (!p->def[e]->bend) continue;
        memcpy(of_head(p, z->before[e], h), of_head(p, z->add, h), (size_t)p->Lk * sizeof(double));
        zero(of_head(p, z->add, h), p->Lk);
    }
    const int walking = loci_reference_walking(p);
    double *const size = of_head(p, z->product, h);
    if (walking >= 0) p->def[walking]->product_sizes(p, walking, h, size, NULL);
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!counts(p, h, j)) continue;
        const ptrdiff_t hj = h * p->Lk + j, q = q_of(p, h, j), k = k_of(p, h, j);
        double products = walking < 0 ? 0 : size[j];
        for (int c = 0; c < p->D && walking < 0; c++)
            products += fabs(p->q[q + c] * p->k[k + c]) + z->eq[q + c] * fabs(p->k[k + c])
                      + fabs(p->q[q + c]) * z->ek[k + c] + z->to->least;
        const double by = exp(p->log_mul[hj]) * p->plan->scale;
        /* a factor below 2^-40 may be 0 */
        z->flat[hj] = by * (products + z->raw[hj]) + fabs(p->flat[hj]) * z->logs[hj];
        if (p->log_mul[hj] != 0)
            z->flat[hj] += p->plan->scale * (products + z->raw[hj]) * 0x1p-40 / z->to->unit;
        struct bends bends;
        loci_reference_bend(p, h, j, &bends);
        z->a[hj] = z->flat[hj] + (bends.n ? 0 : fabs(p->a[hj]));
        for (int n = 0; n < bends.n; n++) z->a[hj] = bent_size(p, h, j, &bends, n, z->a[hj]);
        z->s[hj] = z->a[hj] + z->add[hj];
    }
}

/* Sizes after a mix: its derivatives by a and add, head by head, then those by its learned
 * numbers, pair by pair.  With `back` sizes of ds go backwards, into da and dadd. */
void loci_mix_sizes(struct problem *p, int e, bool back)
{
    struct sizes *z = p->budget;
    const ptrdiff_t n = p->H * p->Lk;
    bool *const sees = p->sees;
    p->ds = z->j[0];
    p->da = z->j[1];
    p->dadd = z->j[2];
    if (back) {
        zero(z->da, n);
        zero(z->dadd, n);
    }
    for (int h = 0; h < p->H; h++) {
        zero(p->ds, n);
        for (ptrdiff_t j = 0; j < p->Lk; j++) of_head(p, p->ds, h)[j] = 1;
        memcpy(p->da, p->ds, (size_t)n * sizeof(double));
        memcpy(p->dadd, p->ds, (size_t)n * sizeof(double));
        p->seen = sees;
        p->def[e]->mix_backward(p, e);
        for (int t = p->plan->first_tensor[e]; t < p->plan->first_tensor[e + 1]; t++)
            zero(z->jt[t], z->elements[t]);
        for (ptrdiff_t j = 0; j < p->Lk; j++) {
            if (!counts(p, h, j)) continue;
            double sum = 0;
            for (int x = 0; x < p->H; x++) {
                const ptrdiff_t xj = x * p->Lk + j;
                sum += fabs(p->da[xj]) * z->a[xj] + fabs(p->dadd[xj]) * z->add[xj];
                if (back) z->da[xj] += fabs(p->da[xj]) * of_head(p, z->ds, h)[j];
                if (back) z->dadd[xj] += fabs(p->dadd[xj]) * of_head(p, z->ds, h)[j];
            }
            if (!back) of_head(p, z->s, h)[j] = sum;
        }
    }
    /* one pair at a time: the others are not seen */
    bool *const one = (bool *)z->hot;
    p->sees = p->seen = one;
    for (int h = 0; h < p->H; h++)
        for (ptrdiff_t j = 0; j < p->Lk; j++) {
            if (!sees[h * p->Lk + j] || !isfinite(p->s[h * p->Lk + j])) continue;
            zero(p->ds, n);
            zero(p->da, n);
            zero(p->dadd, n);
            of_head(p, p->ds, h)[j] = 1;
            one[j] = true;
            p->def[e]->mix_backward(p, e);
            one[j] = false;
            const double sum = loci_harvest_tensors(p, e, back ? of_head(p, z->ds, h)[j] : 0);
            if (!back) of_head(p, z->s, h)[j] += sum;
        }
    p->sees = sees;
}

/* The size of the gradient by the score before bend number `from`, from that by a.  With
 * `tensors`, gradients of what is learned get their sizes. */
static double before_bends(struct problem *p, int h, ptrdiff_t j, int from, double by, bool tensors)
{
    struct bends bends;
    double size[MAX_ENCODINGS + 1] = { of_head(p, p->budget->flat, h)[j] };
    loci_reference_bend(p, h, j, &bends);
    for (int n = 0; n < bends.n; n++) {
        size[n + 1] = bent_size(p, h, j, &bends, n, size[n]);
        size[n] += of_head(p, p->budget->before[bends.enc[n]], h)[j];
    }
    for (int n = bends.n - 1; n >= from; n--)
        by = bent_back_size(p, h, &bends, n, size[n], by, tensors);
    return by;
}

/* Through the score to rows and to the learned numbers of encodings. */
void loci_score_back_sizes(struct problem *p, int h)
{
    struct sizes *z = p->budget;
    double *const raw = of_head(p, z->j[0], h), *const logs = of_head(p, z->j[1], h),
                  *const add = of_head(p, z->dadd, h);
    const int walking = loci_reference_walking(p);
    p->seen = p->sees + h * p->Lk;
    for (ptrdiff_t j = 0; j < p->Lk && walking >= 0; j++) raw[j] = 0;
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!counts(p, h, j)) continue;
        const ptrdiff_t hj = h * p->Lk + j, q = q_of(p, h, j), k = k_of(p, h, j);
        const double by = exp(p->log_mul[hj]) * p->plan->scale,
                     d = before_bends(p, h, j, 0, of_head(p, z->da, h)[j], true);
        raw[j] = (by + (p->log_mul[hj] != 0 ? p->plan->scale * 0x1p-40 / z->to->unit : 0)) * d;
        logs[j] = (fabs(p->flat[hj]) + z->flat[hj]) * d;
        for (int c = 0; c < p->D && walking < 0; c++) {
            z->dq[q + c] += raw[j] * (fabs(p->k[k + c]) + z->ek[k + c]) + z->to->least;
            z->dk[k + c] += raw[j] * (fabs(p->q[q + c]) + z->eq[q + c]) + z->to->least;
        }
    }
    if (walking >= 0) p->def[walking]->product_sizes(p, walking, h, NULL, raw);
    int left = 0;
    for (int e = 0; e < p->plan->encs; e++) left += p->def[e]->bend != NULL;
    for (int e = p->plan->encs - 1; e >= 0; e--) {
        const bool own = p->def[e]->score_sizes != NULL;
        if (own) p->def[e]->score_sizes(p, e, h, NULL, z->dadd);
        for (enum kind n = 0; n < KINDS && p->def[e]->score && !own; n++) {
            const int on = depends(p, e, h, n);
            if (!on) continue;
            const double *const by = n == RAW ? raw : n == ADD ? add : logs;
            for (ptrdiff_t j = 0; j < p->Lk; j++)
                if (counts(p, h, j)) derive(p, e, h, j, n, on, by[j] + z->to->least);
        }
        if (!p->def[e]->bend) continue;
        left--;
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            if (counts(p, h, j))
                add[j] = before_bends(p, h, j, left, of_head(p, z->da, h)[j], false);
    }
}
