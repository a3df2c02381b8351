/* SPDX-License-Identifier: MIT */
/* budget.c -- the budget of rounding: its memory, rotated rows, and the calls from attention.c. */
#include <stdlib.h>

#include "reference/budget.h"

static double *carve(double *base, ptrdiff_t *used, ptrdiff_t n)
{
    double *x = base ? base + *used : NULL;
    *used += n;
    return x;
}
static ptrdiff_t count_of(const struct problem *p, const loci_tensor *t)
{
    ptrdiff_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i] == LOCI_DIM_BATCH   ? p->B
           : t->shape[i] == LOCI_DIM_QUERIES ? p->Lq
           : t->shape[i] == LOCI_DIM_KEYS    ? p->Lk
                                             : t->shape[i];
    return n;
}

static ptrdiff_t lay_out(const struct problem *p, struct sizes *z, double *base)
{
    ptrdiff_t used = 0;
    const ptrdiff_t q = forms_of(p, true) * p->H * p->Lq * p->Dr,
                    k = forms_of(p, false) * p->Hk * p->Lk * p->Dr, v = p->Hkv * p->Lk * p->Dv,
                    row = p->H * p->Lk;
    for (int t = 0; t < p->plan->tensors.n; t++) {
        z->elements[t] = count_of(p, &p->plan->tensors.list[t]);
        z->dtensor[t] = carve(base, &used, z->elements[t]);
        z->jt[t] = carve(base, &used, z->elements[t]);
    }
    double **const whole[] = { &z->q,  &z->eq, &z->dq, &z->jq, &z->k, &z->ek,
                               &z->dk, &z->jk, &z->dv, &z->jv, &z->v };
    const ptrdiff_t size[] = { q, q, q, q, k, k, k, k, v, v, v };
    for (int i = 0; i < COUNT(whole); i++) *whole[i] = carve(base, &used, size[i]);
    double **const rows[] = { &z->product, &z->raw,     &z->logs,    &z->add,     &z->flat,
                              &z->a,       &z->s,       &z->dw,      &z->ds,      &z->da,
                              &z->dadd,    &z->term[0], &z->term[1], &z->term[2], &z->hot,
                              &z->none,    &z->j[0],    &z->j[1],    &z->j[2] };
    for (int i = 0; i < COUNT(rows); i++) *rows[i] = carve(base, &used, row);
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->bend) z->before[e] = carve(base, &used, row);
    double **const heads[] = {
        &z->lse, &z->rem, &z->delta, &z->drem, &z->cotrow[0], &z->cotrow[1]
    };
    for (int i = 0; i < COUNT(heads); i++) *heads[i] = carve(base, &used, p->H);
    z->o = carve(base, &used, p->H * p->Dv);
    z->cot = carve(base, &used, p->H * p->Dv);
    z->dout = carve(base, &used, p->H * p->Dv);
    z->turned[0] = carve(base, &used, p->Dv);
    z->turned[1] = carve(base, &used, p->Dv);
    z->ae = carve(base, &used, p->H * p->D);
    z->cotae = carve(base, &used, p->H * p->D);
    z->ones = carve(base, &used, p->D);
    z->column = carve(base, &used, p->D);
    z->sum = carve(base, &used, p->Dr);
    z->widest = carve(base, &used, 2 * p->H);
    z->group = (int *)carve(base, &used, p->D);
    z->alone = (bool *)carve(base, &used, p->Lk);
    z->cope = carve(base, &used, 3 * p->Lk);
    return used;
}

loci_status loci_budget_open(struct problem *p, const struct loci_budget *to)
{
    struct sizes *z = calloc(1, sizeof *z);
    if (!z) return LOCI_NO_MEMORY;
    z->to = to;
    z->memory = calloc((size_t)lay_out(p, z, NULL) + 1, sizeof *z->memory);
    if (!z->memory) {
        free(z);
        return LOCI_NO_MEMORY;
    }
    lay_out(p, z, z->memory);
    /* e^x ends at -60, and shares and remainders of a stick at -34.5 */
    z->lost = exp(loci_reference_weights(p) < 0 ? -60 : -34.5) / to->unit;
    p->budget = z;
    return LOCI_OK;
}

void loci_budget_close(struct problem *p)
{
    struct sizes *z = p->budget;
    for (int t = 0; t < p->plan->tensors.n && z->to->dtensors; t++)
        if (z->to->dtensors[t])
            memcpy(z->to->dtensors[t], z->dtensor[t], (size_t)z->elements[t] * sizeof(double));
    free(z->memory);
    free(z);
    p->budget = NULL;
}

/* ---- Rotated rows ---------------------------------------------------------------------------- */

static bool learns(const struct problem *p, int e)
{
    for (int t = p->plan->first_tensor[e]; t < p->plan->first_tensor[e + 1]; t++)
        if (p->plan->tensors.list[t].role != LOCI_FIXED) return true;
    return false;
}

/* Channels that any row mixes are a group. */
static void find_groups(struct problem *p, int e)
{
    struct sizes *z = p->budget;
    for (int c = 0; c < p->D; c++) z->group[c] = c;
    for (int n = 0; n < 8; n++) {
        const loci_which which = n < 4 ? LOCI_QUERY : LOCI_KEY;
        const ptrdiff_t rows = which == LOCI_QUERY ? p->Lq : p->Lk, row = rows * (n % 4) / 4;
        if (rows == 0) continue;
        for (int c = 0; c < p->D; c++) {
            zero(z->ones, p->D);
            z->ones[c] = 1;
            p->def[e]->rotate(p, e, which, 0, row, z->ones, z->column);
            for (int r = 0; r < p->D; r++) {
                const int from = z->group[r], into = z->group[c];
                for (int x = 0; z->column[r] != 0 && from != into && x < p->D; x++)
                    if (z->group[x] == from) z->group[x] = into;
            }
        }
    }
}

/* column[g] becomes the factor by which group g of a row is scaled. */
static void stretch(struct problem *p, int e, loci_which which, int h, ptrdiff_t row)
{
    struct sizes *z = p->budget;
    for (int c = 0; c < p->D; c++) z->ones[c] = z->group[c] == c;
    p->def[e]->rotate(p, e, which, h, row, z->ones, z->sum);
    zero(z->column, p->D);
    for (int c = 0; c < p->D; c++) z->column[z->group[c]] += z->sum[c] * z->sum[c];
    for (int c = 0; c < p->D; c++) z->column[c] = sqrt(z->column[c]);
    if (!p->def[e]->cancels) return;
    /* what cancels in one row does not in another: the widest counts */
    double *widest = &z->widest[(which == LOCI_KEY) * p->H + h];
    for (int c = 0; c < p->D; c++)
        if (z->column[c] > *widest) *widest = z->column[c];
    for (int c = 0; c < p->D; c++) z->column[c] = *widest;
}

/* y = sums of |x| over groups, scaled. */
static void spread(const struct problem *p, const double *x, double *y)
{
    struct sizes *z = p->budget;
    zero(z->sum, p->D);
    for (int c = 0; c < p->D; c++) z->sum[z->group[c]] += fabs(x[c]);
    for (int c = 0; c < p->D; c++) y[c] = z->column[z->group[c]] * z->sum[z->group[c]];
}

static void sizes_of_rows(struct problem *p, loci_which which, loci_view x, int heads, int copies,
                          ptrdiff_t rows, const double *rotated, double *size, double *off)
{
    const int e = loci_reference_rotation(p);
    const bool cached = which == LOCI_KEY && p->plan->keys_rotated;
    const bool own = e >= 0 && p->def[e]->row_sizes;
    x = dense(x, heads, rows, p->D);
    for (int h = 0; h < heads * copies && e >= 0 && !cached && !own; h++)
        for (ptrdiff_t i = 0; i < rows; i++) stretch(p, e, which, h, i); /* fope's widest */
    for (int h = 0; h < heads * copies; h++)
        for (ptrdiff_t i = 0; i < rows; i++, rotated += p->Dr, size += p->Dr, off += p->Dr) {
            for (int c = 0; c < p->Dr; c++) {
                size[c] = fabs(rotated[c]);
                off[c] = 0;
            }
            if (e < 0) continue;
            if (cached) {
                if (p->def[e]->cached) memcpy(off, size, (size_t)p->Dr * sizeof *off);
                continue;
            }
            if (own)
                p->def[e]->row_sizes(p, e, which, h, i, view_row(x, p->b, h / copies, i), size);
            else {
                stretch(p, e, which, h, i);
                spread(p, view_row(x, p->b, h / copies, i), size);
            }
            memcpy(off, size, (size_t)p->Dr * sizeof *off);
        }
}

/* Channels of values turn in the pairs of the same channels of keys. */
void loci_spread_pairs(const struct problem *p, const double *x, double *y)
{
    struct sizes *z = p->budget;
    const bool turns = loci_reference_turning(p) >= 0;
    zero(z->sum, p->D);
    for (int c = 0; c < p->D && c < p->Dv; c++) z->sum[z->group[c]] += fabs(x[c]);
    for (int c = 0; c < p->Dv; c++) y[c] = turns && c < p->D ? z->sum[z->group[c]] : fabs(x[c]);
}
static bool values_turn(const struct problem *p)
{
    return loci_reference_turning(p) >= 0 && !p->plan->keys_rotated;
}

void loci_budget_begin(struct problem *p)
{
    struct sizes *z = p->budget;
    const int e = loci_reference_rotation(p);
    if (e >= 0 && !p->def[e]->row_sizes) find_groups(p, e);
    for (ptrdiff_t n = 0; n < p->Hkv * p->Lk * p->Dv; n += p->Dv) {
        for (int c = 0; c < p->Dv; c++) z->v[n + c] = fabs(p->v[n + c]);
        if (values_turn(p)) loci_spread_pairs(p, p->v + n, z->v + n);
    }
    const ptrdiff_t q = p->H * p->Lq * p->Dr, k = p->Hk * p->Lk * p->Dr;
    for (p->form = 0; p->form < forms_of(p, true); p->form++)
        sizes_of_rows(p, LOCI_QUERY, p->call->q, p->H, 1, p->Lq, p->q + p->form * q,
                      z->q + p->form * q, z->eq + p->form * q);
    for (p->form = 0; p->form < forms_of(p, false); p->form++)
        sizes_of_rows(p, LOCI_KEY, p->call->k, p->Hkv, p->Hk / p->Hkv, p->Lk, p->k + p->form * k,
                      z->k + p->form * k, z->ek + p->form * k);
    zero(z->dq, forms_of(p, true) * q);
    zero(z->dk, forms_of(p, false) * k);
    zero(z->dv, p->Hkv * p->Lk * p->Dv);
}

/* ---- Gradients in other places --------------------------------------------------------------- */

static struct places save_places(const struct problem *p)
{
    struct places s = { .dq = p->dq,
                        .dk = p->dk,
                        .dv = p->dv,
                        .dadd = p->dadd,
                        .draw = p->draw,
                        .dlog_mul = p->dlog_mul,
                        .da = p->da,
                        .ds = p->ds,
                        .dw = p->dw,
                        .dout = p->dout,
                        .dae = p->dae,
                        .dlse = p->dlse,
                        .drem = p->drem,
                        .rem = p->rem,
                        .w = p->w };
    memcpy(s.dtensor, p->dtensor, sizeof s.dtensor);
    return s;
}
static void give_back(struct problem *p, const struct places *s)
{
    p->dq = s->dq;
    p->dk = s->dk;
    p->dv = s->dv;
    p->dadd = s->dadd;
    p->draw = s->draw;
    p->dlog_mul = s->dlog_mul;
    p->da = s->da;
    p->ds = s->ds;
    p->dw = s->dw;
    p->dout = s->dout;
    p->dae = s->dae;
    p->dlse = s->dlse;
    p->drem = s->drem;
    p->rem = s->rem;
    p->w = s->w;
    memcpy(p->dtensor, s->dtensor, sizeof s->dtensor);
}
static void divert(struct problem *p)
{
    struct sizes *z = p->budget;
    p->dq = z->jq;
    p->dk = z->jk;
    p->dv = z->jv;
    memcpy(p->dtensor, z->jt, sizeof p->dtensor);
}

/* ---- The calls from attention.c -------------------------------------------------------------- */

static void write_row(double *to, const struct problem *p, int h, int width, const double *from)
{
    if (to)
        memcpy(to + ((p->b * p->H + h) * p->Lq + p->i) * width, from, (size_t)width * sizeof *to);
}

static bool has_factors(const struct problem *p)
{
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->factors && p->def[e]->factors(p, e)) return true;
    return false;
}

/* Sizes of the gradients of the angles of a row, through each number of x: d is the other side, of
 * sizes `by`. */
static void turn_sizes(struct problem *p, loci_which which, int h, ptrdiff_t row, const double *x,
                       const double *by)
{
    struct sizes *z = p->budget;
    const int e = loci_reference_turning(p);
    for (int c = 0; c < p->Dv && e >= 0 && learns(p, e); c++) {
        zero(z->turned[1], p->Dv);
        z->turned[1][c] = 1;
        p->def[e]->turn_gradient(p, e, which, h, row, x, z->turned[1]);
        loci_harvest_tensors(p, e, by[c]);
    }
}
/* The output, which is turned back, and then the gradient of the row's angles. */
static void turn_output(struct problem *p, int h, const struct places *real)
{
    struct sizes *z = p->budget;
    double *o = z->o + h * p->Dv, *size = z->turned[0];
    loci_spread_pairs(p, o, size);
    memcpy(o, size, (size_t)p->Dv * sizeof *o);
    if (!z->to->dq || loci_reference_turning(p) < 0) return;
    loci_spread_pairs(p, p->o + h * p->Dv, size);
    for (int c = 0; c < p->Dv; c++)
        size[c] = o[c] + (size[c] + z->to->least) * z->to->stored / z->to->unit;
    turn_sizes(p, LOCI_QUERY, h, p->i, real->dout + h * p->Dv, size);
}

void loci_budget_row(struct problem *p)
{
    struct sizes *z = p->budget;
    const ptrdiff_t n = p->H * p->Lk;
    const struct places real = save_places(p);
    double *const clear[] = { z->raw, z->logs, z->add, z->flat, z->a, z->s };
    for (int i = 0; i < COUNT(clear); i++) zero(clear[i], n);
    divert(p);
    for (int h = 0; h < p->H; h++) loci_score_sizes(p, h);
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->mix) loci_mix_sizes(p, e, false);
    for (int h = 0; h < p->H; h++)
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            if (counts(p, h, j))
                of_head(p, z->s, h)[j] += fabs(loci_reference_added(p, h, j))
                                        + fabs(of_head(p, p->s, h)[j]) + z->to->least;
    for (int h = 0; h < p->H; h++) {
        loci_spread_pairs(p, real.dout + h * p->Dv, z->dout + h * p->Dv);
        loci_output_sizes(p, h, &real);
        turn_output(p, h, &real);
        write_row(z->to->o, p, h, p->Dv, z->o + h * p->Dv);
        write_row(z->to->ae, p, h, p->D, z->ae + h * p->D);
        write_row(z->to->lse, p, h, 1, z->lse + h);
        write_row(z->to->rem, p, h, 1, z->rem + h);
        if (p->backward && z->to->dq) loci_weight_sizes(p, h, &real);
    }
    if (z->to->dq) {
        memcpy(z->da, z->ds, (size_t)n * sizeof(double));
        memcpy(z->dadd, z->ds, (size_t)n * sizeof(double));
        for (int e = 0; e < p->plan->encs; e++)
            if (p->def[e]->mix) loci_mix_sizes(p, e, true);
        /* with factors, gradients below 2^-60 are 0 (of doubles, 2^-500) */
        const double low = (z->to->unit > 1e-10 ? 0x1p-60 : 0x1p-500) / z->to->unit;
        for (ptrdiff_t hj = 0; hj < n && has_factors(p); hj++) {
            z->da[hj] += low;
            z->dadd[hj] += low;
        }
        for (int h = 0; h < p->H; h++) loci_score_back_sizes(p, h);
    }
    give_back(p, &real);
}

/* Numbers of a matrix that rotates a block are learned together: all
 * have the largest derivative. */
static void even_out(struct problem *p, int e)
{
    struct sizes *z = p->budget;
    if (!p->def[e]->matrices) return;
    for (int t = p->plan->first_tensor[e]; t < p->plan->first_tensor[e + 1]; t++) {
        const loci_tensor *f = &p->plan->tensors.list[t];
        const ptrdiff_t n = f->rank < 2 ? 1 : f->shape[f->rank - 1] * f->shape[f->rank - 2];
        for (ptrdiff_t first = 0; first + n <= z->elements[t]; first += n) {
            double most = 0;
            for (ptrdiff_t c = first; c < first + n; c++) most = fmax(most, fabs(z->jt[t][c]));
            for (ptrdiff_t c = first; c < first + n; c++) z->jt[t][c] = most;
        }
    }
}

/* Rotates gradients of rows back, and adds to those of the rotation's parameters. */
static void rotate_back(struct problem *p, loci_which which, loci_view x, int heads, int copies,
                        ptrdiff_t rows, double *d, double *to)
{
    struct sizes *z = p->budget;
    const int e = loci_reference_rotation(p);
    const bool cached = which == LOCI_KEY && p->plan->keys_rotated;
    double *const sum = z->cotae;
    const bool own = e >= 0 && !cached && p->def[e]->row_back_sizes;
    x = dense(x, heads, rows, p->D);
    for (int h = 0; h < heads * copies; h++)
        for (ptrdiff_t i = 0; i < rows; i++) {
            double *const row = d + (h * rows + i) * p->Dr;
            if (e >= 0 && cached && p->def[e]->cached) p->def[e]->cached(p, e, i, row);
            if (own)
                p->def[e]->row_back_sizes(p, e, which, h, i, view_row(x, p->b, h / copies, i), row,
                                          row);
            else if (e >= 0 && !cached) {
                stretch(p, e, which, h, i);
                /* all of a group have the same sum, over its scale */
                zero(sum, p->D);
                for (int c = 0; c < p->D; c++) sum[z->group[c]] += row[c];
                for (int r = 0; r < p->D && learns(p, e); r++) {
                    zero(z->ones, p->D);
                    z->ones[r] = 1;
                    p->def[e]->rotate_backward(p, e, which, h, i, view_row(x, p->b, h / copies, i),
                                               z->ones, z->sum);
                    even_out(p, e);
                    loci_harvest_tensors(p, e, sum[z->group[r]]);
                }
                if (p->def[e]->turn_sizes)
                    p->def[e]->turn_sizes(p, e, which == LOCI_QUERY ? kv_head(p, h) : h,
                                          view_row(x, p->b, h / copies, i), sum);
                for (int c = 0; c < p->D; c++) row[c] = z->column[z->group[c]] * sum[z->group[c]];
                zero(sum, p->D);
            }
            const int width = cached ? p->Dr : p->D;
            double *const out = to + ((p->b * heads + h / copies) * rows + i) * width;
            for (int c = 0; c < width; c++) out[c] = (h % copies || p->form ? out[c] : 0) + row[c];
        }
}

void loci_budget_entry(struct problem *p)
{
    struct sizes *z = p->budget;
    if (!z->to->dq) return;
    const struct places real = save_places(p);
    divert(p);
    for (p->form = 0; p->form < forms_of(p, true); p->form++)
        rotate_back(p, LOCI_QUERY, p->call->q, p->H, 1, p->Lq,
                    z->dq + p->form * p->H * p->Lq * p->Dr, z->to->dq);
    for (p->form = 0; p->form < forms_of(p, false); p->form++)
        rotate_back(p, LOCI_KEY, p->call->k, p->Hkv, p->Hk / p->Hkv, p->Lk,
                    z->dk + p->form * p->Hk * p->Lk * p->Dr, z->to->dk);
    for (ptrdiff_t n = 0; n < p->Hkv * p->Lk; n++) {
        double *to = z->to->dv + (p->b * p->Hkv * p->Lk + n) * p->Dv, *from = z->dv + n * p->Dv;
        memcpy(to, from, (size_t)p->Dv * sizeof *to);
        if (!values_turn(p)) continue;
        loci_spread_pairs(p, from, to);
        turn_sizes(p, LOCI_KEY, (int)(n / p->Lk), n % p->Lk, p->v + n * p->Dv, to);
    }
    give_back(p, &real);
}
