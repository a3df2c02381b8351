/* SPDX-License-Identifier: MIT */
/* sba.c -- stick-breaking attention: each key, newest first, takes its share of what is left.  Tan et al., ICLR 2025.
 *
 *     A_ij = sigmoid(S_ij) prod over visible keys l after j of (1 - sigmoid(S_il))       rem_i = 1 - sum_j A_ij
 *
 * in place of the softmax.  As in the paper a row does not see its own key, unless current=1.  The paper drops what is
 * left of the stick; the authors' tests give it to the row's own value (remainder=value), their trained models to a
 * learned vector per head (remainder=vector, r [H][Dv], 0 at the start). */
#include "pe.h"

enum { CURRENT, REMAINDER, STOP };
enum { NONE, VALUE, VECTOR };
static const loci_option opts[] = {
    [CURRENT]   = { "current", LOCI_WORD, 0, 0, 0, 0, "0|1", "1: a row sees its own key" },
    [REMAINDER] = { "remainder", LOCI_WORD, 0, NONE, 0, 0, "none|value|vector", "who gets what is left of the stick" },
    [STOP]      = { "stop", LOCI_NUMBER, 0, 0, 0, 1, NULL, "stick length below which a row may end; 0 is exact" },
    { 0 }
};

static void tensors(const struct config *c, struct tensors *t)
{
    if (c->opt[REMAINDER] == VECTOR)
        loci_add_tensor(t, c, "r", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(c->heads, c->value_dim));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_stick, GROUP_WEIGHT);
}

const struct loci_pe loci_pe_sba = {
    .name = "sba", .cite = "Tan et al., ICLR 2025", .brief = "weights break a stick from the newest key on, no softmax",
    .example = "sba", .places = LOCI_PLACE_WEIGHT, .causal_only = true, .tol = 4e-6, .opts = opts,
    .tensors = tensors, .terms = terms,
};
