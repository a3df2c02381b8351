/* SPDX-License-Identifier: MIT */
/* ssmax.c -- scalable softmax: scores grow with the logarithm of the number of keys, so that a
 * longer context does not flatten the weights.  Nakanishi, 2025.
 *
 *     S_ij = (s[h] ln n_i + b[h]) x_ij
 *
 * n_i is the number of keys that row i sees, or its position + 1, and at least 1.  x is the score
 * of everything that precedes this encoding in the text: `ssmax+alibi` multiplies the product
 * alone, `alibi+ssmax` the product with its bias.  Encodings that add to q.k or multiply the score
 * come first wherever they are in the text; cape, the mask and sinks come last. */
#include "contract/encoding.h"
#include "layout/factor.h"
#include "math/log.h"

enum { BIAS, COUNT };
static const loci_option opts[] = {
    [BIAS] = { "bias", LOCI_WORD, 0, 0, 0, 0, "0|1", "1: adds a learned number to s ln n" },
    [COUNT] = { "count", LOCI_WORD, 0, COUNT_KEYS, 0, 0, "keys|position",
                "n: the number of keys that the row sees, or its position + 1" },
    { 0 }
};

enum { S, B };
static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_tensor(t, c, "s", LOCI_LEARNED, INIT_CONSTANT, 0.43, 0, SHAPE(c->heads));
    if (c->opt[BIAS] == 1)
        loci_add_tensor(t, c, "b", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(c->heads));
}

static void terms(const struct config *c, struct termlist *t)
{
    bool biased = false;
    (void)c;
    for (int i = 0; i < t->n; i++) biased |= t->use[i].group == GROUP_ADD;
    loci_add_term(t, TERM_factor, biased ? GROUP_ADD : GROUP_CAP);
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range;
    return FACTOR_NUMBERS * (size_t)c->heads * real;
}
static void prepare(const struct prep *p)
{
    for (int h = 0; h < p->cfg->heads; h++) {
        put(p, factor_at(h, FACTOR_SLOPE), param(p, S, h));
        put(p, factor_at(h, FACTOR_BIAS), p->cfg->opt[BIAS] == 1 ? param(p, B, h) : 0);
    }
}
static void fold(const struct prep *p)
{
    const double *sum = p->dtable[0];
    for (int h = 0; h < p->cfg->heads && sum; h++) {
        if (p->dtensor[S]) p->dtensor[S][h] += sum[factor_at(h, FACTOR_SLOPE)];
        if (p->cfg->opt[BIAS] == 1 && p->dtensor[B])
            p->dtensor[B][h] += sum[factor_at(h, FACTOR_BIAS)];
    }
}

static double number(const struct config *c, double n)
{
    (void)c;
    return plain_log(n);
}

const struct loci_pe loci_pe_ssmax = {
    .name = "ssmax",
    .cite = "Nakanishi, 2025",
    .brief = "S *= s log n, n the number of keys that the row sees",
    .example = "ssmax",
    .places = LOCI_PLACE_SCORE,
    .neutral = true,
    .tol = 2e-6,
    .opts = opts,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
    .accept = loci_factor_accept,
    .scratch = loci_factor_scratch,
    .begin = loci_factor_begin,
    .factor_of_count = number,
    .count_option = COUNT,
};
