/* SPDX-License-Identifier: MIT */
/* bias.c -- encodings that add a number to the score, computed from the distance and the head:
 *
 *     add_ij += b_h(d_ij) */
#include <stdlib.h>

#include "reference/problem.h"

/* ---- alibi: -m_h |d| ------------------------------------------------------------------------- */

enum { OFFICIAL, GEOMETRIC, GIVEN, KEYS, QUERIES, BOTH };

/* Official: p slopes of the largest power of two p <= H, then every other one of 2p heads. */
static double slope(int rule, int H, int h)
{
    int p = 1;
    while (2 * p <= H) p *= 2;
    if (rule == GEOMETRIC) return pow(2, -8.0 * (h + 1) / H);
    return h < p ? pow(2, -8.0 * (h + 1) / p) : pow(2, -8.0 * (2 * (h - p) + 1) / (2 * p));
}

/* Where an input by key or by query has the numbers of row i of head h. */
static ptrdiff_t by_key(const struct problem *p, int h) { return (p->b * p->H + h) * p->Lk; }
static ptrdiff_t by_query(const struct problem *p, int h)
{
    return (p->b * p->H + h) * p->Lq + p->i;
}

/* Keys ahead have separate slopes only if these are learned. */
static void alibi(struct problem *p, int e, int h)
{
    int rule = (int)option(p, e, "slopes", OFFICIAL);
    const double *left = tensor(p, e, "slopes"), *right = tensor(p, e, "slopes_right"),
                 *key = tensor(p, e, "slope_k"), *query = tensor(p, e, "slope_q");
    double *add = of_head(p, p->add, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        double d = (double)distance(p, j);
        /* Distances ahead are negative; their size counts. */
        double m = rule < GIVEN ? slope(rule, p->H, h) : 0;
        if (left) m = d < 0 && right ? right[h] : left[h];
        if (key) m += key[by_key(p, h) + j];
        if (query) m += query[by_query(p, h)];
        add[j] -= m * fabs(d);
    }
}
/* The derivative by a slope is -|d|; rules have none. */
static void alibi_backward(struct problem *p, int e, int h)
{
    double *left = dtensor(p, e, "slopes"), *right = dtensor(p, e, "slopes_right"),
           *key = dtensor(p, e, "slope_k"), *query = dtensor(p, e, "slope_q");
    const double *dadd = of_head(p, p->dadd, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        double d = (double)distance(p, j);
        if (key) key[by_key(p, h) + j] -= dadd[j] * fabs(d);
        if (query) query[by_query(p, h)] -= dadd[j] * fabs(d);
        if (!left) continue;
        if (d < 0 && right) right[h] -= dadd[j] * fabs(d);
        else left[h] -= dadd[j] * fabs(d);
    }
}
const struct definition loci_define_alibi = {
    .name = "alibi",
    .score = alibi,
    .score_backward = alibi_backward,
};

/* ---- t5: one number per bucket of distance --------------------------------------------------- */

/* Half of the buckets of a side contain one distance each, the rest widen logarithmically up
 * to `max`, and the last contains all beyond.  Keys ahead share bucket 0, or with `both` have
 * the upper half of the table. */
static ptrdiff_t t5_bucket(int64_t d, int buckets, double max, bool both)
{
    int side = both ? buckets / 2 : buckets, exact = side / 2;
    int64_t n = both ? llabs(d) : d > 0 ? d : 0;
    ptrdiff_t first = both && d < 0 ? side : 0;
    if (n < exact) return first + n;
    /* floor() of the logarithm between exact and max, in the number of steps
     * of the remaining buckets. */
    double far = floor(log((double)n / exact) / log(max / exact) * (side - exact));
    return first + (ptrdiff_t)fmin(exact + far, side - 1);
}

/* Where the number of head h for key j is in the table. */
static ptrdiff_t t5_number(const struct problem *p, int e, int h, ptrdiff_t j)
{
    return t5_bucket(distance(p, j), (int)option(p, e, "buckets", 32),
                     option(p, e, "max_distance", 128), option(p, e, "bidirectional", 0) == 1)
             * p->H
         + h;
}
/* The gradient of a number is the sum of dadd over the pairs that used it. */
static void t5(struct problem *p, int e, int h)
{
    const double *table = tensor(p, e, "table");
    double *add = of_head(p, p->add, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (p->seen[j]) add[j] += option(p, e, "bias_scale", 1) * table[t5_number(p, e, h, j)];
}
static void t5_backward(struct problem *p, int e, int h)
{
    double *table = dtensor(p, e, "table");
    const double *dadd = of_head(p, p->dadd, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (p->seen[j]) table[t5_number(p, e, h, j)] += option(p, e, "bias_scale", 1) * dadd[j];
}
const struct definition loci_define_t5 = {
    .name = "t5",
    .score = t5,
    .score_backward = t5_backward,
};

/* ---- clip: one number per distance; those from `max` on share one ---------------------------- */

/* Where the number of head h for key j is in the table: by |d|, or by d from -max on. */
static ptrdiff_t clip_number(const struct problem *p, int e, int h, ptrdiff_t j)
{
    double max = option(p, e, "max", 16), d = (double)distance(p, j);
    double row = option(p, e, "sided", 1) == 1 ? clip(fabs(d), 0, max) : clip(d, -max, max) + max;
    return (ptrdiff_t)row * p->H + h;
}
/* The table has a row per distance and a column per head. */
static void clip_table(struct problem *p, int e, int h)
{
    const double *table = tensor(p, e, "table");
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (p->seen[j]) of_head(p, p->add, h)[j] += table[clip_number(p, e, h, j)];
}
static void clip_table_backward(struct problem *p, int e, int h)
{
    double *table = dtensor(p, e, "table");
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (p->seen[j]) table[clip_number(p, e, h, j)] += of_head(p, p->dadd, h)[j];
}
const struct definition loci_define_clip = {
    .name = "clip",
    .score = clip_table,
    .score_backward = clip_table_backward,
};

/* ---- kerple ------------------------------------------------------------------------------------
 *
 * -r1 log(1 + r2 |d|), -r1 |d|^r2 or -r1 log(1 + r2 |d|^r3); with weight=1 also
 * mul = exp(-w1 |d|^w2). */

enum { KERPLE_LOG, KERPLE_POWER, KERPLE_LOG3 };

/* |d|^x and its derivative by x; both 0 at distance 0. */
static double power(double d, double x) { return d == 0 ? 0 : pow(d, x); }
static double power_slope(double d, double x) { return d == 0 ? 0 : pow(d, x) * log(d); }

/* The weight is stored as a logarithm, so that several encodings could multiply. */
static void kerple(struct problem *p, int e, int h)
{
    int kernel = (int)option(p, e, "kernel", KERPLE_LOG);
    const double *r1 = tensor(p, e, "r1"), *r2 = tensor(p, e, "r2"), *r3 = tensor(p, e, "r3");
    const double *w1 = tensor(p, e, "w1"), *w2 = tensor(p, e, "w2");
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        double d = fabs((double)distance(p, j)),
               inner = kernel == KERPLE_LOG3 ? power(d, r3[h]) : d;
        of_head(p, p->add, h)[j] -=
            r1[h] * (kernel == KERPLE_POWER ? power(d, r2[h]) : log1p(r2[h] * inner));
        if (w1) of_head(p, p->log_mul, h)[j] -= w1[h] * power(d, w2[h]);
    }
}
/* Derivatives by r1, r2, r3 of the bias and by w1, w2 of log mul. */
static void kerple_backward(struct problem *p, int e, int h)
{
    int kernel = (int)option(p, e, "kernel", KERPLE_LOG);
    const double *r1 = tensor(p, e, "r1"), *r2 = tensor(p, e, "r2"), *r3 = tensor(p, e, "r3");
    const double *w1 = tensor(p, e, "w1"), *w2 = tensor(p, e, "w2");
    double *dr1 = dtensor(p, e, "r1"), *dr2 = dtensor(p, e, "r2"), *dr3 = dtensor(p, e, "r3");
    double *dw1 = dtensor(p, e, "w1"), *dw2 = dtensor(p, e, "w2");
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        double d = fabs((double)distance(p, j)),
               inner = kernel == KERPLE_LOG3 ? power(d, r3[h]) : d;
        double g = of_head(p, p->dadd, h)[j], gm = of_head(p, p->dlog_mul, h)[j];
        if (kernel == KERPLE_POWER) {
            /* b = -r1 d^r2 */
            dr1[h] -= g * power(d, r2[h]);
            dr2[h] -= g * r1[h] * power_slope(d, r2[h]);
        } else {
            /* d/dx of r1 log(1 + x) is r1 / (1 + x). */
            double slope = r1[h] / (1 + r2[h] * inner);
            dr1[h] -= g * log1p(r2[h] * inner);
            dr2[h] -= g * slope * inner;
            if (kernel == KERPLE_LOG3) dr3[h] -= g * slope * r2[h] * power_slope(d, r3[h]);
        }
        if (!w1) continue;
        /* log mul = -w1 d^w2 */
        dw1[h] -= gm * power(d, w2[h]);
        dw2[h] -= gm * w1[h] * power_slope(d, w2[h]);
    }
}
static bool kerple_factors(const struct problem *p, int e)
{
    return tensor_number(p, e, "w1") >= 0;
}
const struct definition loci_define_kerple = {
    .name = "kerple", .score = kerple, .score_backward = kerple_backward, .factors = kerple_factors
};

/* ---- sandwich: (sum over t of cos(d base^(-2t/dim)) - dim/2) / (8 (h + 1) / H) --------------- */

static ptrdiff_t sandwich_waves(const struct problem *p, int e)
{
    (void)p;
    (void)e;
    return 1; /* their sum */
}
static void sandwich_wave(const struct problem *p, int e, double d, double *sum)
{
    int dim = (int)option(p, e, "dim", 128), first = (int)option(p, e, "first", 1);
    double base = option(p, e, "base", 10000);
    *sum = option(p, e, "centre", 1) == 1 ? -(dim / 2) : 0;
    for (int t = first; t < first + dim / 2; t++)
        *sum += angle_cos(d * power_of(base, (precise)-2 * t / dim));
}
static void sandwich(struct problem *p, int e, int h)
{
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        const double sum = *loci_reference_wave(p, e, (double)distance(p, j));
        of_head(p, p->add, h)[j] += sum / (8.0 * (h + 1) / p->H);
    }
}
static void sandwich_backward(struct problem *p, int e, int h)
{
    (void)p;
    (void)e;
    (void)h; /* nothing is learned */
}
const struct definition loci_define_sandwich = {
    .name = "sandwich",
    .waves = sandwich_waves,
    .wave = sandwich_wave,
    .score = sandwich,
    .score_backward = sandwich_backward,
};

/* ---- fire ---------------------------------------------------------------------------------------
 *
 * f_h(x), x = log(|c| |d| + 1) / N_i, N_i = log(|c| max(T, pos_i) + 1) + 1e-6, T = |l| threshold.
 * f is a network with relu, of one or two hidden layers that the heads share. */

static double relu(double x) { return x > 0 ? x : 0; }
static double sign(double x) { return (x > 0) - (x < 0); }

struct fire {
    bool finite; /* all learned numbers are finite: else the bias is NaN */
    int hidden;
    double c, limit, far, norm;                /* |c|; T; max(T, pos_i); N_i */
    const double *w1, *b1, *w2, *b2, *w3, *b3; /* w2 NULL: one hidden layer */
};
/* The numbers that all pairs of row i share. */
static struct fire fire_of(const struct problem *p, int e)
{
    struct fire f = {
        .hidden = (int)option(p, e, "hidden", 32),
        .c = fabs(*tensor(p, e, "c")),
        .limit = fabs(*tensor(p, e, "l")) * option(p, e, "threshold", 512),
        .w1 = tensor(p, e, "w1"),
        .b1 = tensor(p, e, "b1"),
        .w2 = tensor(p, e, "w2"),
        .b2 = tensor(p, e, "b2"),
        .w3 = tensor(p, e, "w3"),
        .b3 = tensor(p, e, "b3"),
    };
    /* Any infinity makes every bias NaN, even if it would not reach the output. */
    f.finite = true;
    for (int t = p->plan->first_tensor[e]; t < p->plan->first_tensor[e + 1]; t++)
        for (ptrdiff_t i = 0; i < tensor_count(&p->plan->tensors.list[t]); i++)
            f.finite &= isfinite(((const double *)p->tensors[t])[i]);
    f.far = fmax(f.limit, (double)q_position(p, p->i));
    f.norm = log1p(f.c * f.far) + 1e-6;
    return f;
}
/* Fills the outputs of both hidden layers; with one hidden layer they are the same. */
static double fire_network(const struct fire *f, double x, int h, double *y1, double *y2)
{
    double sum = f->finite ? f->b3[h] : NAN;
    for (int n = 0; n < f->hidden; n++) y1[n] = y2[n] = relu(f->w1[n] * x + f->b1[n]);
    for (int n = 0; n < f->hidden && f->w2; n++)
        y2[n] = relu(dot(f->w2 + n * f->hidden, y1, f->hidden) + f->b2[n]);
    for (int n = 0; n < f->hidden; n++) sum += f->w3[h * f->hidden + n] * y2[n];
    return sum;
}

static void fire(struct problem *p, int e, int h)
{
    struct fire f = fire_of(p, e);
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        double x = log1p(f.c * fabs((double)distance(p, j))) / f.norm;
        of_head(p, p->add, h)[j] += fire_network(&f, x, h, p->scratch[0], p->scratch[1]);
    }
}
/* Adds the gradients of the network's tensors for one pair, whose bias has the gradient g, and
 * returns the gradient by x.  A unit at exactly 0 counts as closed. */
static double fire_network_backward(struct problem *p, int e, const struct fire *f, double x, int h,
                                    double g)
{
    double *y1 = p->scratch[0], *y2 = p->scratch[1], *dy1 = p->scratch[2], dx = 0;
    double *dw1 = dtensor(p, e, "w1"), *db1 = dtensor(p, e, "b1"), *dw2 = dtensor(p, e, "w2"),
           *db2 = dtensor(p, e, "b2");
    fire_network(f, x, h, y1, y2);
    dtensor(p, e, "b3")[h] += g;
    add_scaled(dtensor(p, e, "w3") + h * f->hidden, g, y2, f->hidden);
    for (int n = 0; n < f->hidden; n++) dy1[n] = f->w2 ? 0 : g * f->w3[h * f->hidden + n];
    for (int n = 0; n < f->hidden && f->w2; n++) {
        /* From the output to the second layer, through the open units. */
        if (y2[n] <= 0) continue;
        double dt = g * f->w3[h * f->hidden + n];
        db2[n] += dt;
        add_scaled(dw2 + n * f->hidden, dt, y1, f->hidden);
        add_scaled(dy1, dt, f->w2 + n * f->hidden, f->hidden);
    }
    for (int n = 0; n < f->hidden; n++) {
        if (y1[n] <= 0) continue; /* likewise from the second to the first, and to x */
        db1[n] += dy1[n];
        dw1[n] += dy1[n] * x;
        dx += dy1[n] * f->w1[n];
    }
    return dx;
}
/* c affects x and N_i, l affects N_i alone. */
static void fire_backward(struct problem *p, int e, int h)
{
    struct fire f = fire_of(p, e);
    /* The share of T in the max: if both are equal, half, between the slopes of either side. */
    double pos = (double)q_position(p, p->i), share = f.limit > pos ? 1 : f.limit == pos ? 0.5 : 0;
    double dc = 0, dfar = 0;
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        double d = fabs((double)distance(p, j)), x = log1p(f.c * d) / f.norm;
        double dx = fire_network_backward(p, e, &f, x, h, of_head(p, p->dadd, h)[j]);
        /* x = log(..) / N, so dx/dN = -x / N. */
        double dnorm = -dx * x / f.norm;
        /* d/dc log(c d + 1) = d / (c d + 1), in x and in N_i. */
        dc += dx * d / ((f.c * d + 1) * f.norm) + dnorm * f.far / (f.c * f.far + 1);
        dfar += dnorm * f.c / (f.c * f.far + 1);
    }
    *dtensor(p, e, "c") += sign(*tensor(p, e, "c")) * dc;
    *dtensor(p, e, "l") += sign(*tensor(p, e, "l")) * option(p, e, "threshold", 512) * share * dfar;
}
const struct definition loci_define_fire = {
    .name = "fire",
    .score = fire,
    .score_backward = fire_backward,
};
