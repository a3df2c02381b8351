/* SPDX-License-Identifier: MIT */
/* cape.c -- a small network mixes the scores of all heads with their biases.  Zheng et al. (CAPE, later DAPE), NeurIPS 2024.
 *
 *     S = a + add_bias add + W2 leaky(W1 [a; add] + b1) + b2        a: scaled scores of the H heads, add: the other ADD terms
 *
 * for each pair (i, j); W1 is [hidden][2H], or [hidden][H] where no other encoding adds anything.  The paper's formula
 * has no separate add; all official classes have it, and so have we unless add_bias=0. */
#include "pe.h"

enum { HIDDEN, ADD_BIAS, LEAK };
static const loci_option opts[] = {
    [HIDDEN]   = { "hidden", LOCI_WHOLE, 0, 32, 1, 4096, NULL, "width of the hidden layer" },
    [ADD_BIAS] = { "add_bias", LOCI_WORD, 0, 1, 0, 0, "0|1", "0: biases enter through the network only" },
    [LEAK]     = { "leak", LOCI_NUMBER, 0, 0.01, -1e6, 1e6, NULL, "slope of the hidden layer below 0" },
    { 0 }
};

static void tensors(const struct config *c, struct tensors *t)
{
    ptrdiff_t hidden = (ptrdiff_t)c->opt[HIDDEN], in = c->adds ? 2 * (ptrdiff_t)c->heads : c->heads;
    double first = 1 / sqrt((double)in), second = 1 / sqrt((double)hidden);
    loci_add_tensor(t, c, "w1", LOCI_LEARNED, INIT_UNIFORM, first, 0, SHAPE(hidden, in));
    loci_add_tensor(t, c, "b1", LOCI_LEARNED, INIT_UNIFORM, first, 0, SHAPE(hidden));
    loci_add_tensor(t, c, "w2", LOCI_LEARNED, INIT_UNIFORM, second, 0, SHAPE(c->heads, hidden));
    loci_add_tensor(t, c, "b2", LOCI_LEARNED, INIT_UNIFORM, second, 0, SHAPE(c->heads));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_mix, GROUP_MIX);
}

const struct loci_pe loci_pe_cape = {
    .name = "cape", .cite = "Zheng et al., NeurIPS 2024", .brief = "S = a + add + MLP([a; add]) over the heads",
    .example = "cape", .places = LOCI_PLACE_MIX, .tol = 5e-6, .opts = opts,
    .tensors = tensors, .terms = terms,
};
