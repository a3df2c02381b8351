/* SPDX-License-Identifier: MIT */
/* clip.c -- one learned bias per distance, where distances from `max` on share one: T5's bias
 * without its logarithmic buckets.
 *
 *     S_ij = scale q_i.k_j + table[min(|i - j|, max)][h]               table is [max+1][H]
 *     S_ij = scale q_i.k_j + table[clip(i - j, -max, max) + max][h]
 *     sided=2; table is [2max+1][H]
 *
 * The plain form is defined for keys behind the query only.  Ahead of it the distance loses its
 * sign, unless sided=2 gives each side separate numbers.  Initial zeros have no effect. */
#include "layout/distance.h"

enum { MAX, SIDED };
static const loci_option opts[] = {
    [MAX] = { "max", LOCI_WHOLE, 0, 16, 0, 65536, NULL, "distances from here on share a bias" },
    [SIDED] = { "sided", LOCI_WHOLE, 0, 1, 1, 2, NULL,
                "2: keys after the query have their own biases" },
    { 0 },
};

static bool two_sided(const struct config *c) { return c->opt[SIDED] == 2; }
static ptrdiff_t rows(const struct config *c)
{
    return (ptrdiff_t)(two_sided(c) ? 2 * c->opt[MAX] : c->opt[MAX]) + 1;
}

enum { TABLE };
static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_tensor(t, c, "table", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(rows(c), c->heads));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_distance, GROUP_ADD);
}

/* Distances from `max` on share a number, so a table needs no more of
 * them, for any context length. */
static struct distances layout(const struct config *c, ptrdiff_t range, size_t real)
{
    const int64_t max = (int64_t)c->opt[MAX], hi = range < max ? range : max;
    return distances_layout(c->heads, c->full ? -hi : 0, hi, true, 0, 0, real);
}
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    return distances_size(layout(c, range, real).bytes);
}

static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    const struct distances form = layout(c, p->range, p->f64 ? sizeof(double) : sizeof(float));
    struct distances *t = distances_open(p, p->table, &form);
    for (int64_t d = t->lo; d <= t->hi; d++) {
        /* The row of the learned table, and so the class of the distance. */
        const int64_t row = two_sided(c) ? d + (int64_t)c->opt[MAX] : d < 0 ? -d : d;
        distances_classes(t)[d - t->lo] = (int32_t)row;
        for (int h = 0; h < c->heads; h++)
            distances_put(p, t, h, d, param(p, TABLE, (ptrdiff_t)row * c->heads + h));
    }
}

/* The term has summed dS by class, which is the row of the table. */
static void fold(const struct prep *p)
{
    const struct config *c = p->cfg;
    for (int h = 0; h < c->heads && p->dtensor[TABLE]; h++)
        for (ptrdiff_t i = 0; i < rows(c); i++)
            p->dtensor[TABLE][i * c->heads + h] += p->dtable[0][h * rows(c) + i];
}

const struct loci_pe loci_pe_clip = {
    .name = "clip",
    .cite = "as Raffel et al., JMLR 2020, without buckets",
    .family = FAMILY_DISTANCE,
    .brief = "S += table[min(|i - j|, max)][h]",
    .example = "clip",
    .places = LOCI_PLACE_SCORE,
    .tol = 2e-6,
    .opts = opts,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
