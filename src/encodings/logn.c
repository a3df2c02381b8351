/* SPDX-License-Identifier: MIT */
/* logn.c -- scores that grow with the logarithm of the number of keys beyond the trained length.
 *
 *     rule=ratio    S_ij = max(1, ln n_i / ln length) x_ij             Qwen-1, Su's ReRoPE
 *     rule=added    S_ij = (1 + beta max(0, ln(n_i / length))) x_ij    YaRN's form
 *
 * n_i is the number of keys that row i sees, or its position + 1, and at least 1.  x is the score
 * of everything that precedes this encoding in the text, as for ssmax.  Nothing is learned. */
#include "contract/encoding.h"
#include "layout/factor.h"
#include "math/log.h"

enum { LENGTH, RULE, BETA, COUNT };
enum { RATIO, ADDED };
static const loci_option opts[] = {
    [LENGTH] = { "length", LOCI_NUMBER, 1, NAN, 1, 1e18, NULL,
                 "trained context: up to here the factor is 1" },
    [RULE] = { "rule", LOCI_WORD, 0, RATIO, 0, 0, "ratio|added",
               "ratio: ln n / ln length; added: 1 + beta ln(n / length)" },
    [BETA] = { "beta", LOCI_NUMBER, 0, BY_RULE, 1e-9, 1e3, NULL, "of rule=added; default 0.1" },
    [COUNT] = { "count", LOCI_WORD, 0, COUNT_KEYS, 0, 0, "keys|position",
                "n: the number of keys that the row sees, or its position + 1" },
    { 0 }
};

static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, c->opt[LENGTH] > 1, LOCI_BAD_ARG, "logn: length %g must be above 1", c->opt[LENGTH]);
    CHECK(e, c->opt[RULE] == ADDED || !c->given[BETA], LOCI_BAD_ARG,
          "logn: beta is an option of rule=added, not of rule=ratio");
    if (c->opt[RULE] == ADDED && !c->given[BETA]) c->opt[BETA] = 0.1;
    return LOCI_OK;
}

static void terms(const struct config *c, struct termlist *t)
{
    bool biased = false;
    (void)c;
    for (int i = 0; i < t->n; i++) biased |= t->use[i].group == GROUP_ADD;
    loci_add_term(t, TERM_factor, biased ? GROUP_ADD : GROUP_CAP);
}

static double number(const struct config *c, double n)
{
    const double length = c->opt[LENGTH];
    if (n <= length) return 1;
    return c->opt[RULE] == RATIO ? plain_log(n) / plain_log(length)
                                 : 1 + c->opt[BETA] * plain_log(n / length);
}

const struct loci_pe loci_pe_logn = {
    .name = "logn",
    .cite = "Su, 2021; Qwen, 2023",
    .brief = "S *= max(1, log n / log length), n the number of keys that the row sees",
    .example = "logn:length=512",
    .places = LOCI_PLACE_SCORE,
    .neutral = true,
    .tol = 2e-6,
    .opts = opts,
    .check = check,
    .terms = terms,
    .accept = loci_factor_accept,
    .scratch = loci_factor_scratch,
    .begin = loci_factor_begin,
    .factor_of_count = number,
    .count_option = COUNT,
};
