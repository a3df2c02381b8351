/* SPDX-License-Identifier: MIT */
/* budget.c -- how much rounding the numbers of attention may have: sums of absolute values.
 *
 * Every number on the way has a size: what it would move by, to the first order, if all that it is
 * made of moved by their own sizes, each in its own direction.  So a size is a sum of |derivative|
 * times size, plus the number itself, which is rounded when it is kept.  Derivatives are those of
 * the definitions, asked one at a time, so that an encoding has a budget without a line here.
 *
 *     turned row     the sum of |x| over channels that turn together, times how far they stretch
 *     score          sum |q k|, |term| and |d term / d x| |x| for all x it reads; through factors,
 *                    cap and mix by their derivatives
 *     weight         w (1 + size of s + |s - lse| + size of lse)
 *     o              |o| + sum |do/ds| (size of s + 1 + |s - m|) + sum w |v|
 *     ds             w (|dw - D| (as a weight) + sum |dout v| + size of D),    D = sum dout o
 *     gradients      sum over the pairs of (size of ds) |d s / d x|, turned back as rows are */
#include <float.h>
#include <stdlib.h>

#include "reference/problem.h"

enum kind { RAW, ADD, LOG, KINDS };

struct sizes {
    const struct loci_budget *to;
    double *room;
    double lost;                         /* weights below this times the unit may be 0 */
    /* Turned rows; what they may be off by, 0 where rows do not turn; their gradients. */
    double *q, *k, *eq, *ek, *dq, *dk, *dv;
    double *jq, *jk, *jv;                /* derivatives of one number at a time */
    double *dtensor[MAX_TENSORS], *jt[MAX_TENSORS];
    ptrdiff_t elements[MAX_TENSORS];
    int *group;                          /* of channels that turn together */
    bool *alone;                         /* [Lk], a key that is shown alone */
    double *cope;                        /* [3][Lk] */
    double *ones, *column, *sum, *widest;        /* [D], the last [2][H] */
    /* Of the row, [H][Lk]: sizes, */
    double *raw, *logs, *before, *add, *flat, *a, *s, *dw, *ds, *da, *dadd;
    double *term[KINDS], *hot, *none, *j[3];     /* terms alone, a single 1, zeros, derivatives */
    double *o, *ae, *lse, *rem, *delta, *drem;   /* [H][Dv], [H][D], [H] */
    double *cot, *cotae, *cotrow[2];     /* single cotangents */
};

static double *take(double *base, ptrdiff_t *used, ptrdiff_t n)
{
    double *x = base ? base + *used : NULL;
    *used += n;
    return x;
}
static void zero(double *x, ptrdiff_t n) { memset(x, 0, (size_t)n * sizeof *x); }

static ptrdiff_t count_of(const struct problem *p, const loci_tensor *t)
{
    ptrdiff_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i] == LOCI_DIM_BATCH ? p->B : t->shape[i] == LOCI_DIM_QUERIES ? p->Lq
           : t->shape[i] == LOCI_DIM_KEYS ? p->Lk : t->shape[i];
    return n;
}

static ptrdiff_t lay_out(const struct problem *p, struct sizes *z, double *base)
{
    ptrdiff_t used = 0;
    const ptrdiff_t q = p->H * p->Lq * p->D, k = p->Hk * p->Lk * p->D, v = p->Hkv * p->Lk * p->Dv,
        row = p->H * p->Lk;
    for (int t = 0; t < p->plan->tensors.n; t++) {
        z->elements[t] = count_of(p, &p->plan->tensors.list[t]);
        z->dtensor[t] = take(base, &used, z->elements[t]);
        z->jt[t] = take(base, &used, z->elements[t]);
    }
    double **const whole[] = { &z->q, &z->eq, &z->dq, &z->jq, &z->k, &z->ek, &z->dk, &z->jk, &z->dv,
                               &z->jv };
    const ptrdiff_t size[] = { q, q, q, q, k, k, k, k, v, v };
    for (int i = 0; i < COUNT(whole); i++) *whole[i] = take(base, &used, size[i]);
    double **const rows[] = { &z->raw, &z->logs, &z->before, &z->add, &z->flat, &z->a, &z->s,
                              &z->dw, &z->ds, &z->da, &z->dadd, &z->term[0], &z->term[1],
                              &z->term[2], &z->hot, &z->none, &z->j[0], &z->j[1], &z->j[2] };
    for (int i = 0; i < COUNT(rows); i++) *rows[i] = take(base, &used, row);
    double **const heads[] = { &z->lse, &z->rem, &z->delta, &z->drem, &z->cotrow[0],
                               &z->cotrow[1] };
    for (int i = 0; i < COUNT(heads); i++) *heads[i] = take(base, &used, p->H);
    z->o = take(base, &used, p->H * p->Dv), z->cot = take(base, &used, p->H * p->Dv);
    z->ae = take(base, &used, p->H * p->D), z->cotae = take(base, &used, p->H * p->D);
    z->ones = take(base, &used, p->D), z->column = take(base, &used, p->D);
    z->sum = take(base, &used, p->D), z->widest = take(base, &used, 2 * p->H);
    z->group = (int *)take(base, &used, p->D), z->alone = (bool *)take(base, &used, p->Lk);
    z->cope = take(base, &used, 3 * p->Lk);
    return used;
}

loci_status loci_budget_open(struct problem *p, const struct loci_budget *to)
{
    struct sizes *z = calloc(1, sizeof *z);
    if (!z) return LOCI_NO_MEMORY;
    z->to = to;
    z->room = calloc((size_t)lay_out(p, z, NULL) + 1, sizeof *z->room);
    if (!z->room) {
        free(z);
        return LOCI_NO_MEMORY;
    }
    lay_out(p, z, z->room);
    /* e^x ends at -60, and what breaks off a stick, or is left of it, at -34.5 */
    z->lost = exp(loci_reference_weighing(p) < 0 ? -60 : -34.5) / to->unit;
    p->budget = z;
    return LOCI_OK;
}

void loci_budget_close(struct problem *p)
{
    struct sizes *z = p->budget;
    for (int t = 0; t < p->plan->tensors.n && z->to->dtensors; t++)
        if (z->to->dtensors[t])
            memcpy(z->to->dtensors[t], z->dtensor[t], (size_t)z->elements[t] * sizeof(double));
    free(z->room);
    free(z);
    p->budget = NULL;
}

/* ---- Rows that turn -------------------------------------------------------------------------- */

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
            zero(z->ones, p->D), z->ones[c] = 1;
            p->def[e]->turn(p, e, which, 0, row, z->ones, z->column);
            for (int r = 0; r < p->D; r++) {
                const int from = z->group[r], into = z->group[c];
                for (int x = 0; z->column[r] != 0 && from != into && x < p->D; x++)
                    if (z->group[x] == from) z->group[x] = into;
            }
        }
    }
}

/* column[g] becomes what group g of a row is stretched by. */
static void stretch(struct problem *p, int e, loci_which which, int h, ptrdiff_t row)
{
    struct sizes *z = p->budget;
    for (int c = 0; c < p->D; c++) z->ones[c] = z->group[c] == c;
    p->def[e]->turn(p, e, which, h, row, z->ones, z->sum);
    zero(z->column, p->D);
    for (int c = 0; c < p->D; c++) z->column[z->group[c]] += z->sum[c] * z->sum[c];
    for (int c = 0; c < p->D; c++) z->column[c] = sqrt(z->column[c]);
    if (strcmp(p->def[e]->name, "fope") != 0) return;
    /* its waves may cancel in a row: the widest row counts */
    double *widest = &z->widest[(which == LOCI_KEY) * p->H + h];
    for (int c = 0; c < p->D; c++)
        if (z->column[c] > *widest) *widest = z->column[c];
    for (int c = 0; c < p->D; c++) z->column[c] = *widest;
}

/* y = sums of |x| over groups, stretched. */
static void spread(const struct problem *p, const double *x, double *y)
{
    struct sizes *z = p->budget;
    zero(z->sum, p->D);
    for (int c = 0; c < p->D; c++) z->sum[z->group[c]] += fabs(x[c]);
    for (int c = 0; c < p->D; c++) y[c] = z->column[z->group[c]] * z->sum[z->group[c]];
}

static void sizes_of_rows(struct problem *p, loci_which which, loci_view x, int heads, int copies,
                          ptrdiff_t rows, const double *turned, double *size, double *off)
{
    const int e = loci_reference_turning(p);
    const bool cached = which == LOCI_KEY && p->plan->keys_rotated;
    x = dense(x, heads, rows, p->D);
    for (int h = 0; h < heads * copies && e >= 0 && !cached; h++)
        for (ptrdiff_t i = 0; i < rows; i++) stretch(p, e, which, h, i);      /* fope's widest */
    for (int h = 0; h < heads * copies; h++)
        for (ptrdiff_t i = 0; i < rows; i++, turned += p->D, size += p->D, off += p->D) {
            for (int c = 0; c < p->D; c++) size[c] = fabs(turned[c]), off[c] = 0;
            if (e < 0) continue;
            if (cached) {
                if (p->def[e]->cached) memcpy(off, size, (size_t)p->D * sizeof *off);
                continue;
            }
            stretch(p, e, which, h, i);
            spread(p, view_row(x, p->b, h / copies, i), size);
            memcpy(off, size, (size_t)p->D * sizeof *off);
        }
}

void loci_budget_begin(struct problem *p)
{
    struct sizes *z = p->budget;
    const int e = loci_reference_turning(p);
    if (e >= 0) find_groups(p, e);
    sizes_of_rows(p, LOCI_QUERY, p->call->q, p->H, 1, p->Lq, p->q, z->q, z->eq);
    sizes_of_rows(p, LOCI_KEY, p->call->k, p->Hkv, p->Hk / p->Hkv, p->Lk, p->k, z->k, z->ek);
    zero(z->dq, p->H * p->Lq * p->D);
    zero(z->dk, p->Hk * p->Lk * p->D);
    zero(z->dv, p->Hkv * p->Lk * p->Dv);
}

/* ---- Derivatives, one at a time -------------------------------------------------------------- */

/* Where definitions put gradients: for a while into j... instead. */
struct places {
    double *dq, *dk, *dv, *dtensor[MAX_TENSORS], *dadd, *draw, *dlog_mul, *da, *ds, *dw;
    double *dout, *dae, *dlse, *drem, *rem, *w;
};
static struct places keep(const struct problem *p)
{
    struct places s = { .dq = p->dq, .dk = p->dk, .dv = p->dv, .dadd = p->dadd, .draw = p->draw,
                        .dlog_mul = p->dlog_mul, .da = p->da, .ds = p->ds, .dw = p->dw,
                        .dout = p->dout, .dae = p->dae, .dlse = p->dlse, .drem = p->drem,
                        .rem = p->rem, .w = p->w };
    memcpy(s.dtensor, p->dtensor, sizeof s.dtensor);
    return s;
}
static void give_back(struct problem *p, const struct places *s)
{
    p->dq = s->dq, p->dk = s->dk, p->dv = s->dv, p->dadd = s->dadd, p->draw = s->draw;
    p->dlog_mul = s->dlog_mul, p->da = s->da, p->ds = s->ds, p->dw = s->dw, p->dout = s->dout;
    p->dae = s->dae, p->dlse = s->dlse, p->drem = s->drem, p->rem = s->rem, p->w = s->w;
    memcpy(p->dtensor, s->dtensor, sizeof s->dtensor);
}
static void divert(struct problem *p)
{
    struct sizes *z = p->budget;
    p->dq = z->jq, p->dk = z->jk, p->dv = z->jv;
    memcpy(p->dtensor, z->jt, sizeof p->dtensor);
}

/* Reads derivatives and clears them: returns the sum of |derivative| size, and with `by` adds by
 * |derivative| to the sizes of gradients. */
static double harvest(double *j, ptrdiff_t n, const double *size, double by, double least,
                      double *to)
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
static double harvest_tensors(const struct problem *p, int e, double by)
{
    struct sizes *z = p->budget;
    double sum = 0;
    for (int t = p->plan->first_tensor[e]; t < p->plan->first_tensor[e + 1]; t++)
        sum += harvest(z->jt[t], z->elements[t], p->tensors[t], by, z->to->least,
                       z->dtensor[t]);
    return sum;
}

/* What numbers that an encoding adds depend on. */
enum { ON_NOTHING, ON_Q = 1, ON_K = 2, ON_V = 4, ON_TENSORS = 8 };

/* The derivatives of one number that an encoding adds.  All but fox, which looks at other keys,
 * are shown its key alone, which is faster. */
static double derive(struct problem *p, int e, int h, ptrdiff_t j, enum kind kind, int on,
                     double by)
{
    struct sizes *z = p->budget;
    const ptrdiff_t q = q_row(p, h), k = k_row(p, h, 0), v = v_row(p, h, 0);
    bool *const seen = p->seen;
    const bool alone = strcmp(p->def[e]->name, "fox") != 0;
    p->draw = kind == RAW ? z->hot : z->none, p->dadd = kind == ADD ? z->hot : z->none;
    p->dlog_mul = kind == LOG ? z->hot : z->none;
    of_head(p, z->hot, h)[j] = 1;
    if (alone) p->seen = z->alone, z->alone[j] = true;
    p->def[e]->score_backward(p, e, h);
    p->seen = seen, z->alone[j] = false;
    of_head(p, z->hot, h)[j] = 0;
    /* A gate's gradient is what its row gives to all keys less what it gives to newer ones. */
    if (by > 0 && strcmp(p->def[e]->name, "fox") == 0)
        for (ptrdiff_t l = 0; l < p->Lk; l++)
            if (p->seen[l]) z->jt[p->plan->first_tensor[e]][(p->b * p->H + h) * p->Lk + l] = 1;
    const ptrdiff_t first = alone ? j : 0, n = alone ? 1 : p->Lk, kd = k + first * p->D,
        vd = v + first * p->Dv;
    const double least = z->to->least;
    return (on & ON_Q ? harvest(z->jq + q, p->D, z->q + q, by, least, z->dq + q) : 0)
         + (on & ON_K ? harvest(z->jk + kd, n * p->D, z->k + kd, by, least, z->dk + kd) : 0)
         + (on & ON_V ? harvest(z->jv + vd, n * p->Dv, p->v + vd, by, least, z->dv + vd) : 0)
         + (on & ON_TENSORS ? harvest_tensors(p, e, by) : 0);
}
static bool touched(double *j, ptrdiff_t n)
{
    bool any = false;
    for (ptrdiff_t c = 0; c < n; c++) any |= j[c] != 0, j[c] = 0;
    return any;
}
static int depends(struct problem *p, int e, int h, enum kind kind)
{
    struct sizes *z = p->budget;
    for (ptrdiff_t j = 0; j < p->Lk; j++) of_head(p, z->hot, h)[j] = 1 + (double)(j % 7) / 8;
    p->draw = kind == RAW ? z->hot : z->none, p->dadd = kind == ADD ? z->hot : z->none;
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

/* A key of weight 0, as its score is -inf, is none. */
static bool counts(const struct problem *p, int h, ptrdiff_t j)
{
    return p->sees[h * p->Lk + j] && isfinite(p->s[h * p->Lk + j]);
}

/* cope: what a position may be off by decides which rows of its table a key meets, and how far its
 * gates' derivatives are off; so it is written out.  Adds to sizes of scores, or, from sizes of the
 * gradients of what was added, to those of gradients. */
static void cope_sizes(struct problem *p, int e, int h, double *score, double *back)
{
    struct sizes *z = p->budget;
    const ptrdiff_t q = q_row(p, h), D = p->D, given = tensor_number(p, e, "gate_k"),
        te = tensor_number(p, e, "e"), first = table_of_head(form(p, e, "e"), h);
    const double npos = option(p, e, "npos", 64), *table = tensor(p, e, "e") + first,
        gate_scale = option(p, e, "gate_scale", 1 / sqrt(p->D)),
        pos_scale = option(p, e, "pos_scale", 1), *g, *eg = NULL;
    double *dg, *de = z->dtensor[te] + first, *const at = z->cope, *const off = at + p->Lk,
        *const slopes = off + p->Lk, sum = 0, off_sum = 0, dgate = 0;
    const ptrdiff_t values = kv_head(p, h) * p->Lk * D, batch = p->b * p->Hkv * p->Lk * D;
    if (given >= 0) {
        g = tensor(p, e, "gate_k") + batch + values, dg = z->dtensor[given] + batch + values;
    } else if (option(p, e, "gates", 0) == 0) {
        g = p->k + k_row(p, h, 0), eg = z->ek + k_row(p, h, 0), dg = z->dk + k_row(p, h, 0);
    } else {
        g = p->v + values, dg = z->dv + values;
    }
    for (ptrdiff_t j = p->Lk; j-- > 0;) {
        if (!p->seen[j]) continue;
        double size = 1;
        for (int c = 0; c < D; c++)
            size += gate_scale * (fabs(p->q[q + c] * g[j * D + c]) + z->eq[q + c]
                                  * fabs(g[j * D + c])
                                  + (eg ? eg[j * D + c] * fabs(p->q[q + c]) : 0));
        const double y = gate_scale * dot(p->q + q, g + j * D, D), gate = sigmoid(y);
        sum += gate;
        off_sum += gate * sigmoid(-y) * size + gate;
        at[j] = sum, off[j] = off_sum;
        slopes[j] = gate * sigmoid(-y) * size;
    }
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        /* the rows that p may lie between, with its error, and the sizes of their products */
        const double room = 64 * z->to->unit * off[j];
        const ptrdiff_t low = (ptrdiff_t)fmax(0, floor(fmin(at[j] - room, npos - 1))),
            high = (ptrdiff_t)ceil(fmin(at[j] + room, npos - 1)),
            on = (ptrdiff_t)fmin(at[j], npos - 1);
        double most = 0, steep = 0;
        for (ptrdiff_t r = low; r <= high; r++) {
            double product = 0;
            for (int c = 0; c < D; c++)
                product += (fabs(p->q[q + c]) + z->eq[q + c]) * fabs(table[r * D + c]);
            most = fmax(most, product);
            if (r == high) break;
            const double step = dot(p->q + q, table + (r + 1) * D, D)
                              - dot(p->q + q, table + r * D, D);
            steep = fmax(steep, fabs(step));
        }
        if (score && counts(p, h, j))
            of_head(p, score, h)[j] += pos_scale * (2 * most + steep * off[j]);
        if (!back) continue;
        const double dz = pos_scale * (counts(p, h, j) ? of_head(p, back, h)[j] : 0),
            t = at[j] < npos - 1 ? at[j] - (double)on : 0;
        for (ptrdiff_t r = low; r <= high; r++) {
            double share = r == on ? 1 - t : r == on + 1 ? t : 0;
            share += off[j];
            for (int c = 0; c < D; c++) {
                z->dq[q + c] += dz * share * fabs(table[r * D + c]) + z->to->least;
                de[r * D + c] += dz * share * (fabs(p->q[q + c]) + z->eq[q + c]) + z->to->least;
            }
        }
        /* beside a whole position the slope of either side is right */
        dgate += dz * (2 * most + (high - low > 1 || at[j] + room >= npos - 1
                                   ? 2 * steep / z->to->unit : 0));
        const double dlogit = gate_scale * dgate * slopes[j];
        for (int c = 0; c < D; c++) {
            z->dq[q + c] += dlogit * (fabs(g[j * D + c]) + (eg ? eg[j * D + c] : 0))
                          + z->to->least;
            dg[j * D + c] += dlogit * (fabs(p->q[q + c]) + z->eq[q + c]) + z->to->least;
        }
    }
}

static void add_terms(struct problem *p, int e, int h)
{
    struct sizes *z = p->budget;
    if (!strcmp(p->def[e]->name, "cope")) {
        cope_sizes(p, e, h, z->add, NULL);
        return;
    }
    double *const raw = p->raw, *const logs = p->log_mul, *const add = p->add,
        *const size[KINDS] = { z->raw, z->add, z->logs };
    for (int n = 0; n < KINDS; n++) zero(of_head(p, z->term[n], h), p->Lk);
    p->raw = z->term[RAW], p->add = z->term[ADD], p->log_mul = z->term[LOG];
    p->def[e]->score(p, e, h);
    p->raw = raw, p->add = add, p->log_mul = logs;
    for (enum kind n = 0; n < KINDS; n++) {
        const int on = depends(p, e, h, n);
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            if (counts(p, h, j))
                of_head(p, size[n], h)[j] += fabs(of_head(p, z->term[n], h)[j])
                                           + (on ? derive(p, e, h, j, n, on, 0) : 0);
    }
}

static void score_sizes(struct problem *p, int h)
{
    struct sizes *z = p->budget;
    p->seen = p->sees + h * p->Lk;
    for (int e = 0; e < p->plan->encs; e++) {
        if (p->def[e]->score) add_terms(p, e, h);
        if (!p->def[e]->bend) continue;
        memcpy(of_head(p, z->before, h), of_head(p, z->add, h), (size_t)p->Lk * sizeof(double));
        zero(of_head(p, z->add, h), p->Lk);
    }
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!counts(p, h, j)) continue;
        const ptrdiff_t hj = h * p->Lk + j, q = q_row(p, h), k = k_row(p, h, j);
        double products = 0, slope;
        for (int c = 0; c < p->D; c++)
            products += fabs(p->q[q + c] * p->k[k + c]) + z->eq[q + c] * fabs(p->k[k + c])
                      + fabs(p->q[q + c]) * z->ek[k + c] + z->to->least;
        const double by = exp(p->log_mul[hj]) * p->plan->scale;
        /* a factor below 2^-40 may be 0 */
        z->flat[hj] = by * (products + z->raw[hj]) + fabs(p->flat[hj]) * z->logs[hj];
        if (p->log_mul[hj] != 0)
            z->flat[hj] += p->plan->scale * (products + z->raw[hj]) * 0x1p-40 / z->to->unit;
        loci_reference_bend(p, p->flat[hj] + p->before[hj], &slope);
        z->a[hj] = fabs(slope) * (z->flat[hj] + z->before[hj]) + fabs(p->a[hj]);
        z->s[hj] = z->a[hj] + z->add[hj];
    }
}

/* What a mix makes of them: its derivatives by a and add, head by head, then those by what it
 * learns, pair by pair.  With `by` sizes of ds go back instead, into da and dadd. */
static void mix_sizes(struct problem *p, int e, bool back)
{
    struct sizes *z = p->budget;
    const ptrdiff_t n = p->H * p->Lk;
    bool *const sees = p->sees;
    p->ds = z->j[0], p->da = z->j[1], p->dadd = z->j[2];
    if (back) zero(z->da, n), zero(z->dadd, n);
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
            zero(p->ds, n), zero(p->da, n), zero(p->dadd, n);
            of_head(p, p->ds, h)[j] = 1;
            one[j] = true;
            p->def[e]->mix_backward(p, e);
            one[j] = false;
            const double sum = harvest_tensors(p, e, back ? of_head(p, z->ds, h)[j] : 0);
            if (!back) of_head(p, z->s, h)[j] += sum;
        }
    p->sees = sees;
}

/* ---- Outputs --------------------------------------------------------------------------------- */

/* How far a score lies from the greatest, or from the sink. */
static double top_of(const struct problem *p, int h)
{
    const int e = loci_reference_sinking(p);
    double top = e < 0 ? -INFINITY : p->def[e]->sink(p, e, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (counts(p, h, j) && of_head(p, p->s, h)[j] > top) top = of_head(p, p->s, h)[j];
    return isfinite(top) ? top : 0;
}

/* The size of one output, by whose cotangent 1 the problem is set up; what it has from values
 * apart. */
static double output_size(struct problem *p, int h, double top)
{
    struct sizes *z = p->budget;
    double sum = 0;
    zero(p->dw, p->H * p->Lk), zero(p->ds, p->H * p->Lk);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (counts(p, h, j))
            of_head(p, p->dw, h)[j] = dot(p->dout + h * p->Dv, p->v + v_row(p, h, j), p->Dv);
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->value) p->def[e]->value_backward(p, e, h);
    loci_reference_weigh_backward(p, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (counts(p, h, j))
            sum += fabs(of_head(p, p->ds, h)[j])
                 * (of_head(p, z->s, h)[j] + 1 + fabs(of_head(p, p->s, h)[j] - top));
    const int s = loci_reference_sinking(p);
    for (int e = 0; e < p->plan->encs; e++) {
        if (e == s)                      /* the logit is as far from the top as it is */
            sum += fabs(z->jt[p->plan->first_tensor[e]][h])
                 * (1 + fabs(p->def[e]->sink(p, e, h) - top));
        if (p->def[e]->value || e == s) sum += harvest_tensors(p, e, 0);
    }
    sum += harvest(z->jv + v_row(p, h, 0), p->Lk * p->Dv, p->v + v_row(p, h, 0), 0, 0,
                   z->dv + v_row(p, h, 0));
    return sum;
}

static void output_sizes(struct problem *p, int h, const struct places *real)
{
    struct sizes *z = p->budget;
    const bool stick = loci_reference_weighing(p) >= 0;
    const double top = stick ? 0 : top_of(p, h), *w = of_head(p, p->w, h);
    p->seen = p->sees + h * p->Lk;
    p->dout = z->cot, p->dae = z->cotae, p->dlse = z->cotrow[0], p->drem = z->cotrow[1];
    p->dw = z->j[0], p->ds = z->j[1];
    zero(of_head(p, z->dw, h), p->Lk);
    z->delta[h] = fabs(real->dlse[h]), z->drem[h] = fabs(real->drem[h]);

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
        z->drem[h] += fabs(state ? real->dae[at] : real->dout[at]) * fabs(p->drem[h]);
        size += z->lost * fabs(p->drem[h]);
        p->drem[h] = 0;
        for (ptrdiff_t j = 0; j < p->Lk; j++) {
            if (!counts(p, h, j)) continue;
            size += z->lost * fabs(of_head(p, p->dw, h)[j]) + z->to->least;
            if (!state) size += w[j] * fabs(p->v[v_row(p, h, j) + c]);
        }
        const double value = state ? p->ae[at] : p->o[at],
            cotangent = fabs(state ? real->dae[at] : real->dout[at]);
        size += fabs(value);
        (state ? z->ae : z->o)[at] = size;
        z->delta[h] += cotangent * (size + fabs(value) * z->to->stored / z->to->unit)
                     + z->to->least;
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            if (counts(p, h, j))
                of_head(p, z->dw, h)[j] += cotangent * fabs(of_head(p, p->dw, h)[j])
                                         + z->to->least;
    }
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* j[0] becomes the size of each weight; rem's is returned. */
static double weight_sizes(struct problem *p, int h)
{
    struct sizes *z = p->budget;
    const double *w = of_head(p, p->w, h), *s = of_head(p, p->s, h);
    double *size = of_head(p, z->j[0], h), newer = 0;
    zero(size, p->Lk);
    if (loci_reference_weighing(p) < 0) {
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            if (counts(p, h, j))
                size[j] = (w[j] + z->lost) * (1 + of_head(p, z->s, h)[j] + fabs(s[j] - p->lse[h])
                                              + z->lse[h]);
        return 0;
    }
    for (ptrdiff_t j = p->Lk; j-- > 0;) {
        if (!counts(p, h, j)) continue;
        size[j] = (w[j] + z->lost) * (1 + of_head(p, z->s, h)[j] * sigmoid(-s[j]) + newer);
        newer += of_head(p, z->s, h)[j] * sigmoid(s[j]) + sigmoid(s[j]);
    }
    return (p->rem[h] + z->lost) * (1 + newer);
}

/* Sizes of ds from those of weights, and what values and what weighs have learned. */
static void weigh_sizes(struct problem *p, int h, const struct places *real)
{
    struct sizes *z = p->budget;
    const double rem = weight_sizes(p, h), *size = of_head(p, z->j[0], h),
        *dw = of_head(p, real->dw, h), *w = of_head(p, p->w, h), *s = of_head(p, p->s, h);
    const int sink = loci_reference_sinking(p);
    double mean = 0, older = 0;
    for (ptrdiff_t j = 0; j < p->Lk; j++) mean += counts(p, h, j) ? w[j] * dw[j] : 0;
    mean -= real->dlse[h];
    if (loci_reference_weighing(p) >= 0) older = rem * z->drem[h];
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        of_head(p, z->ds, h)[j] = 0;
        if (!counts(p, h, j)) continue;
        const double by = w[j] + z->lost;
        if (loci_reference_weighing(p) < 0) {
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
    /* Values: their definitions on sizes. */
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        for (int c = 0; c < p->Dv && counts(p, h, j); c++)
            z->dv[v_row(p, h, j) + c] += size[j] * fabs(real->dout[h * p->Dv + c]) + z->to->least;
    p->w = z->j[0], p->dw = z->j[1], p->rem = z->cotrow[1], p->drem = z->cotrow[0];
    const double kept = p->rem[h];
    p->rem[h] = rem;
    for (int c = 0; c < p->Dv; c++) z->cot[h * p->Dv + c] = fabs(real->dout[h * p->Dv + c]);
    for (int c = 0; c < p->D; c++) z->cotae[h * p->D + c] = fabs(real->dae[h * p->D + c]);
    p->dout = z->cot, p->dae = z->cotae;
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->value) {
            p->def[e]->value_backward(p, e, h);
            harvest_tensors(p, e, 1);
        }
    harvest(z->jv + v_row(p, h, 0), p->Lk * p->Dv, p->v + v_row(p, h, 0), 1, z->to->least,
            z->dv + v_row(p, h, 0));
    if (sink >= 0 && p->lse[h] != -INFINITY) {
        const double logit = p->def[sink]->sink(p, sink, h), share = exp(logit - p->lse[h]);
        p->def[sink]->sink_backward(p, sink, h,
                                    (share + z->lost) * ((2 + fabs(logit - p->lse[h]) + z->lse[h])
                                                         * fabs(mean) + z->delta[h]));
        harvest_tensors(p, sink, 1);
    }
    p->rem[h] = kept, p->w = real->w, p->rem = real->rem;
    z->cotrow[0][h] = z->cotrow[1][h] = 0;
    for (int c = 0; c < p->Dv; c++) z->cot[h * p->Dv + c] = 0;
    for (int c = 0; c < p->D; c++) z->cotae[h * p->D + c] = 0;
}

/* Through the score to rows and to what encodings have learned. */
static void score_back_sizes(struct problem *p, int h)
{
    struct sizes *z = p->budget;
    double *const raw = of_head(p, z->j[0], h), *const logs = of_head(p, z->j[1], h),
        *const add = of_head(p, z->dadd, h), slope, up, down;
    p->seen = p->sees + h * p->Lk;
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!counts(p, h, j)) continue;
        const ptrdiff_t hj = h * p->Lk + j, q = q_row(p, h), k = k_row(p, h, j);
        const double x = p->flat[hj] + p->before[hj], step = 1e-6 * (1 + fabs(x)),
            by = exp(p->log_mul[hj]) * p->plan->scale;
        loci_reference_bend(p, x, &slope);
        loci_reference_bend(p, x + step, &up), loci_reference_bend(p, x - step, &down);
        /* the slope of a cap is off by what its own slope makes of x's size, and by rounding */
        const double bent = fabs(up - down) / (2 * step) * (z->flat[hj] + z->before[hj])
                          + (slope != 1 || up != down ? 1 : 0);
        const double d = (fabs(slope) + bent) * of_head(p, z->da, h)[j];
        raw[j] = (by + (p->log_mul[hj] != 0 ? p->plan->scale * 0x1p-40 / z->to->unit : 0)) * d;
        logs[j] = (fabs(p->flat[hj]) + z->flat[hj]) * d;
        for (int c = 0; c < p->D; c++) {
            z->dq[q + c] += raw[j] * (fabs(p->k[k + c]) + z->ek[k + c]) + z->to->least;
            z->dk[k + c] += raw[j] * (fabs(p->q[q + c]) + z->eq[q + c]) + z->to->least;
        }
    }
    for (int e = p->plan->encs - 1; e >= 0; e--) {
        const bool cope = !strcmp(p->def[e]->name, "cope");
        if (cope) cope_sizes(p, e, h, NULL, z->dadd);
        for (enum kind n = 0; n < KINDS && p->def[e]->score && !cope; n++) {
            const int on = depends(p, e, h, n);
            if (!on) continue;
            const double *const by = n == RAW ? raw : n == ADD ? add : logs;
            for (ptrdiff_t j = 0; j < p->Lk; j++)
                if (counts(p, h, j)) derive(p, e, h, j, n, on, by[j] + z->to->least);
        }
        for (ptrdiff_t j = 0; j < p->Lk && p->def[e]->bend; j++) {
            if (!counts(p, h, j)) continue;
            const double x = of_head(p, p->flat, h)[j] + of_head(p, p->before, h)[j],
                step = 1e-6 * (1 + fabs(x));
            loci_reference_bend(p, x, &slope);
            loci_reference_bend(p, x + step, &up), loci_reference_bend(p, x - step, &down);
            /* added before the cap, it goes through the cap's slope, and that comes with a */
            add[j] = of_head(p, z->da, h)[j]
                   * (fabs(slope) + 1 + fabs(up - down) / (2 * step)
                      * (of_head(p, z->flat, h)[j] + of_head(p, z->before, h)[j]));
        }
    }
}

/* ---- The calls of attention.c ---------------------------------------------------------------- */

static void write_row(double *to, const struct problem *p, int h, int width, const double *from)
{
    if (to)
        memcpy(to + ((p->b * p->H + h) * p->Lq + p->i) * width, from, (size_t)width * sizeof *to);
}

static bool has_factors(const struct problem *p)
{
    for (int e = 0; e < p->plan->encs; e++)
        if (!strcmp(p->def[e]->name, "kerple") && tensor_number(p, e, "w1") >= 0) return true;
    return false;
}

void loci_budget_row(struct problem *p)
{
    struct sizes *z = p->budget;
    const ptrdiff_t n = p->H * p->Lk;
    const struct places real = keep(p);
    double *const clear[] = { z->raw, z->logs, z->before, z->add, z->flat, z->a, z->s };
    for (int i = 0; i < COUNT(clear); i++) zero(clear[i], n);
    divert(p);
    for (int h = 0; h < p->H; h++) score_sizes(p, h);
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->mix) mix_sizes(p, e, false);
    for (int h = 0; h < p->H; h++)
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            if (counts(p, h, j))
                of_head(p, z->s, h)[j] += fabs(loci_reference_added(p, h, j))
                                        + fabs(of_head(p, p->s, h)[j]) + z->to->least;
    for (int h = 0; h < p->H; h++) {
        output_sizes(p, h, &real);
        write_row(z->to->o, p, h, p->Dv, z->o + h * p->Dv);
        write_row(z->to->ae, p, h, p->D, z->ae + h * p->D);
        write_row(z->to->lse, p, h, 1, z->lse + h), write_row(z->to->rem, p, h, 1, z->rem + h);
        if (p->backward && z->to->dq) weigh_sizes(p, h, &real);
    }
    if (z->to->dq) {
        memcpy(z->da, z->ds, (size_t)n * sizeof(double));
        memcpy(z->dadd, z->ds, (size_t)n * sizeof(double));
        for (int e = 0; e < p->plan->encs; e++)
            if (p->def[e]->mix) mix_sizes(p, e, true);
        /* where there are factors, gradients below 2^-60 are 0 (of doubles, 2^-500) */
        const double low = (z->to->unit > 1e-10 ? 0x1p-60 : 0x1p-500) / z->to->unit;
        for (ptrdiff_t hj = 0; hj < n && has_factors(p); hj++) z->da[hj] += low, z->dadd[hj] += low;
        for (int h = 0; h < p->H; h++) score_back_sizes(p, h);
    }
    give_back(p, &real);
}

/* Numbers of a matrix that turns a block are learned together: all have the largest derivative. */
static void even_out(struct problem *p, int e)
{
    struct sizes *z = p->budget;
    for (int t = p->plan->first_tensor[e]; t < p->plan->first_tensor[e + 1]; t++) {
        const loci_tensor *f = &p->plan->tensors.list[t];
        const ptrdiff_t n = f->rank < 2 ? 1 : f->shape[f->rank - 1] * f->shape[f->rank - 2];
        if (strcmp(f->encoding, "comrope") != 0 && strcmp(f->encoding, "liere") != 0) continue;
        for (ptrdiff_t first = 0; first + n <= z->elements[t]; first += n) {
            double most = 0;
            for (ptrdiff_t c = first; c < first + n; c++) most = fmax(most, fabs(z->jt[t][c]));
            for (ptrdiff_t c = first; c < first + n; c++) z->jt[t][c] = most;
        }
    }
}

/* With norm, a coefficient of fope counts by its wave less the mean of all: they may be equal. */
static void fope_means(struct problem *p, int e, int kv, const double *x, const double *by)
{
    struct sizes *z = p->budget;
    double gradient = 0, channels = 0;
    if (option(p, e, "norm", 0) == 0 || option(p, e, "learn", 0) == 0) return;
    for (int c = 0; c < p->D; c++) gradient = fmax(gradient, by[c]), channels += fabs(x[c]);
    for (int n = p->plan->first_tensor[e]; n < p->plan->first_tensor[e + 1]; n++) {
        const loci_tensor *f = &p->plan->tensors.list[n];
        const ptrdiff_t sums = f->shape[f->rank - 1], waves = f->shape[f->rank - 2],
            first = table_of_head(f, kv);
        for (ptrdiff_t t = 0; t < sums; t++) {
            double whole = 0;
            for (ptrdiff_t l = 0; l < waves; l++)
                whole += ((const double *)p->tensors[n])[first + l * sums + t];
            for (ptrdiff_t l = 0; l < waves; l++)
                z->dtensor[n][first + l * sums + t] += gradient * channels / fabs(whole);
        }
    }
}

/* Gradients of rows turn back, and what turns them learns. */
static void turn_back(struct problem *p, loci_which which, loci_view x, int heads, int copies,
                      ptrdiff_t rows, double *d, double *to)
{
    struct sizes *z = p->budget;
    const int e = loci_reference_turning(p);
    const bool cached = which == LOCI_KEY && p->plan->keys_rotated;
    double *const sum = z->cotae;
    x = dense(x, heads, rows, p->D);
    for (int h = 0; h < heads * copies; h++)
        for (ptrdiff_t i = 0; i < rows; i++) {
            double *const row = d + (h * rows + i) * p->D;
            if (e >= 0 && cached && p->def[e]->cached) p->def[e]->cached(p, e, i, row);
            if (e >= 0 && !cached) {
                stretch(p, e, which, h, i);
                /* all of a group have the same sum, over what it is stretched by */
                zero(sum, p->D);
                for (int c = 0; c < p->D; c++) sum[z->group[c]] += row[c];
                for (int r = 0; r < p->D && learns(p, e); r++) {
                    zero(z->ones, p->D), z->ones[r] = 1;
                    p->def[e]->turn_backward(p, e, which, h, i, view_row(x, p->b, h / copies, i),
                                             z->ones, z->sum);
                    even_out(p, e);
                    harvest_tensors(p, e, sum[z->group[r]]);
                }
                if (!strcmp(p->def[e]->name, "fope"))
                    fope_means(p, e, which == LOCI_QUERY ? kv_head(p, h) : h,
                               view_row(x, p->b, h / copies, i), sum);
                for (int c = 0; c < p->D; c++) row[c] = z->column[z->group[c]] * sum[z->group[c]];
                zero(sum, p->D);
            }
            double *const out = to + ((p->b * heads + h / copies) * rows + i) * p->D;
            for (int c = 0; c < p->D; c++) out[c] = (h % copies ? out[c] : 0) + row[c];
        }
}

void loci_budget_entry(struct problem *p)
{
    struct sizes *z = p->budget;
    if (!z->to->dq) return;
    const struct places real = keep(p);
    divert(p);
    turn_back(p, LOCI_QUERY, p->call->q, p->H, 1, p->Lq, z->dq, z->to->dq);
    turn_back(p, LOCI_KEY, p->call->k, p->Hkv, p->Hk / p->Hkv, p->Lk, z->dk, z->to->dk);
    memcpy(z->to->dv + p->b * p->Hkv * p->Lk * p->Dv, z->dv,
           (size_t)(p->Hkv * p->Lk * p->Dv) * sizeof(double));
    give_back(p, &real);
}
