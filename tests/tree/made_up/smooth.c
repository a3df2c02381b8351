/* SPDX-License-Identifier: MIT */
/* smooth.c -- a bias of the distance that is smooth at 0 and a straight line far from it, with one
 * learned number per head.  It is made up: tests/tree/made_up.sh adds it to a copy of this tree.
 *
 *     S_ij = scale q_i.k_j - r (sqrt(1 + (|i - j| / width)^2) - 1)
 *
 * r is positive, and training keeps it at 0.01 or more. */
#include "layout/distance.h"

enum { WIDTH };
static const loci_option opts[] = { [WIDTH] = { "width", LOCI_NUMBER, 0, 4, 1e-3, 1e6, NULL,
                                                "distance at which the line begins" },
                                    { 0 } };

static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_tensor(t, c, "r", LOCI_LEARNED, INIT_UNIFORM, 0, 1, SHAPE(c->heads));
    t->low[t->n - 1] = 0.01;
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_distance, GROUP_ADD);
}

static struct distances layout(const struct config *c, ptrdiff_t range, size_t real)
{
    return distances_layout(c->heads, c->full ? -range : 0, range, false, 1, 0, real);
}
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    return distances_size(layout(c, range, real).bytes);
}

static void prepare(const struct prep *p)
{
    const size_t real = p->f64 ? sizeof(double) : sizeof(float);
    const struct distances form = layout(p->cfg, p->range, real),
                           *t = distances_open(p, p->table, &form);
    for (int h = 0; h < p->cfg->heads; h++)
        for (int64_t d = t->lo; d <= t->hi; d++) {
            /* sqrt(1 + x) - 1 without losing the digits of a small x */
            const double a = (double)d / p->cfg->opt[WIDTH], x = a * a,
                         slope = -x / (sqrt(1 + x) + 1);
            distances_put(p, t, h, d, param(p, 0, h) * slope);
            distances_put_slope(p, t, 0, h, d, slope);
        }
}

static void fold(const struct prep *p)
{
    for (int h = 0; h < p->cfg->heads && p->dtensor[0]; h++) p->dtensor[0][h] += p->dtable[0][h];
}

const struct loci_pe loci_pe_smooth = {
    .name = "smooth",
    .cite = "made up for a test",
    .family = FAMILY_DISTANCE,
    .brief = "S += -r[h] (sqrt(1 + (|i - j| / width)^2) - 1)",
    .example = "smooth",
    .places = LOCI_PLACE_SCORE,
    .tol = 2e-6,
    .opts = opts,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
