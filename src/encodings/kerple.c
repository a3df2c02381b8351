/* SPDX-License-Identifier: MIT */
/* kerple.c -- kernels of the distance that are conditionally positive definite, with two or
 * three numbers per head.  Chi et al., NeurIPS 2022.
 *
 *     S_ij = scale q_i.k_j + b(|i - j|)
 *     b(a) = -r1 log(1 + r2 a)                         kernel=log
 *          = -r1 a^r2                                  kernel=power
 *          = -r1 log(1 + r2 a^r3)                      kernel=log3, a later form with one more
 *     S_ij = exp(-w1 a^w2) scale q_i.k_j + b(a)        weight=1, from the authors' code
 *
 * All numbers are positive, r2 of the power and w2 at most 2; the authors clamp them to at least
 * 0.01 after each step of training, which is the caller's to do (loci_tensor_low).  A text in
 * circulation has lost the minus of b. */
#include "layout/distance.h"

static const double LEAST = 0.01; /* of all numbers in training */
enum { KERNEL, WEIGHT };
enum { LOG, POWER, LOG3 };
static const loci_option opts[] = {
    [KERNEL] = { "kernel", LOCI_WORD, 0, LOG, 0, 0, "log|power|log3",
                 "how the bias falls with the distance" },
    [WEIGHT] = { "weight", LOCI_WORD, 0, 0, 0, 0, "0|1",
                 "1: scores are also multiplied by a kernel" },
    { 0 },
};

/* Numbers of b per head; those of the weight follow them. */
static int numbers(const struct config *c) { return c->opt[KERNEL] == LOG3 ? 3 : 2; }

/* A number per head, which starts uniform over the whole range that training keeps to, as the
 * authors start it; a constant with high = 0. */
static void add(struct tensors *t, const struct config *c, const char *name, double start,
                double high)
{
    loci_add_tensor(t, c, name, LOCI_LEARNED, high ? INIT_UNIFORM : INIT_CONSTANT, start, high,
                    SHAPE(c->heads));
    t->low[t->n - 1] = LEAST;
}
static void tensors(const struct config *c, struct tensors *t)
{
    const bool power = c->opt[KERNEL] == POWER;
    add(t, c, "r1", 0, power ? 1 : 2);
    add(t, c, "r2", 0, power ? 2 : 1);
    if (c->opt[KERNEL] == LOG3) add(t, c, "r3", 1, 0);
    if (!c->opt[WEIGHT]) return;
    add(t, c, "w1", 0, 1);
    add(t, c, "w2", 0, 2);
}

static void terms(const struct config *c, struct termlist *t)
{
    loci_add_term(t, TERM_distance, GROUP_ADD);
    if (c->opt[WEIGHT]) loci_add_term(t, TERM_distance, GROUP_MUL);
}

/* ---- Kernels: a number and its derivatives --------------------------------------------------- */

/* y[0] = -r1 a^r2, then its derivatives by r1 and r2; all 0 at distance 0. */
static void power(double a, double r1, double r2, double *y)
{
    const double x = a == 0 ? 0 : pow(a, r2);
    y[0] = -r1 * x;
    y[1] = -x;
    y[2] = a == 0 ? 0 : -r1 * x * log(a);
}
/* y[0] = -r1 log(1 + r2 x), then its derivatives by r1 and r2; log1p is precise for small r2 x.
 * With x = a^r3 the derivative by r3 follows. */
static void logarithm(double x, double r1, double r2, double *y)
{
    y[1] = -log1p(r2 * x);
    y[2] = -r1 / (1 + r2 * x) * x;
    y[0] = r1 * y[1];
}
static void logarithm3(double a, double r1, double r2, double r3, double *y)
{
    logarithm(a == 0 ? 0 : r3 == 1 ? a : pow(a, r3), r1, r2, y);
    y[3] = a == 0 ? 0 : y[2] * r2 * log(a);
}
/* The bias at distance a and its slopes, and below the weight exp(-w1 a^w2) and its slopes.  A
 * score times 2^-40 changes no softmax of floats, and smaller numbers would make subnormal
 * products: they are 0.  Doubles keep smaller ones. */
static void bias(const struct prep *p, int h, double a, double *y)
{
    const double r1 = param(p, 0, h), r2 = param(p, 1, h);
    switch ((int)p->cfg->opt[KERNEL]) {
    case POWER:
        power(a, r1, r2, y);
        break;
    case LOG:
        logarithm(a, r1, r2, y);
        break;
    default:
        logarithm3(a, r1, r2, param(p, 2, h), y);
    }
}
static void weight(const struct prep *p, int h, double a, double *y)
{
    const int n = numbers(p->cfg);
    power(a, param(p, n, h), param(p, n + 1, h), y);
    y[0] = y[0] < log(p->f64 ? 0x1p-500 : 0x1p-40) ? 0 : exp(y[0]);
    y[1] *= y[0];
    y[2] *= y[0];
}

/* ---- Tables: the bias, then the weight ------------------------------------------------------- */

static struct distances layout(const struct config *c, ptrdiff_t range, bool weights, size_t real)
{
    return distances_layout(c->heads, c->full ? -range : 0, range, false, weights ? 2 : numbers(c),
                            weights ? numbers(c) : 0, real);
}
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    return distances_size(layout(c, range, false, real).bytes
                          + (c->opt[WEIGHT] ? layout(c, range, true, real).bytes : 0));
}

/* A number and its slopes at one distance. */
static void put_both(const struct prep *p, const struct distances *t, int h, int64_t d,
                     const double *y)
{
    distances_put(p, t, h, d, y[0]);
    for (int i = 0; i < t->slopes; i++) distances_put_slope(p, t, i, h, d, y[1 + i]);
}
/* Fills a head of a table, the bias or the weight.  Both depend on |d| alone, so the side
 * ahead has the same numbers. */
struct kerple_work {
    const struct prep *p;
    struct distances *t;
    bool weights;
};
static void head_job(void *arg, int h)
{
    const struct kerple_work *a = arg;
    for (int64_t d = 0; d <= a->t->hi; d++) {
        double y[4];
        if (a->weights) weight(a->p, h, (double)d, y);
        else bias(a->p, h, (double)d, y);
        put_both(a->p, a->t, h, d, y);
        if (a->t->lo) put_both(a->p, a->t, h, -d, y);
    }
}
static struct distances *fill(const struct prep *p, void *at, bool weights)
{
    const struct distances form =
        layout(p->cfg, p->range, weights, p->f64 ? sizeof(double) : sizeof(float));
    struct kerple_work a = { .p = p, .t = distances_open(p, at, &form), .weights = weights };
    prepare_each(p, p->cfg->heads, head_job, &a);
    return a.t;
}
static void prepare(const struct prep *p)
{
    const struct distances *t = fill(p, p->table, false);
    if (p->cfg->opt[WEIGHT]) fill(p, distances_at(t, t->bytes), true);
}

/* Numbers of the bias are in the sums of the first term, those of the weight in the second; each
 * term has a place for all numbers of a head. */
static void fold(const struct prep *p)
{
    const struct config *c = p->cfg;
    const int n = numbers(c) + (c->opt[WEIGHT] ? 2 : 0);
    for (int i = 0; i < n; i++)
        for (int h = 0; h < c->heads && p->dtensor[i]; h++)
            p->dtensor[i][h] += p->dtable[i >= numbers(c)][h * n + i];
}

const struct loci_pe loci_pe_kerple = {
    .name = "kerple",
    .cite = "Chi et al., NeurIPS 2022",
    .family = FAMILY_DISTANCE,
    .brief = "S += -r1[h] log(1 + r2[h] |i - j|)",
    .example = "kerple",
    .places = LOCI_PLACE_SCORE,
    .tol = 2e-6,
    .opts = opts,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
