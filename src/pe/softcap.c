/* SPDX-License-Identifier: MIT */
/* softcap.c -- scores that stay below a cap.  Gemma
 * Team, Gemma 2, 2024; Grok and others have it too.
 *
 *     S_ij = cap tanh(scale q_i.k_j / cap)        then what other encodings add
 *
 * As in those models the scaled score is capped, before the mask and before any bias; what
 * multiplies the score or adds to q.k (kerple's weight, shaw, xl, deberta) comes first. */
#include "shape/softcap.h"
#include "plan/encoding.h"

/* The cap has no usual value: a model that has one says which. */
static const loci_option opts[] = {
    [SOFTCAP_CAP] = { "cap", LOCI_NUMBER, 1, NAN, 1e-3, 1e6, NULL,
                      "what scores stay below: 50 in Gemma 2, 30 in Grok" },
    { 0 }
};

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_softcap, GROUP_CAP);
}

const struct loci_pe loci_pe_softcap = {
    .name = "softcap", .cite = "Gemma Team, 2024",
    .brief = "S = cap tanh(scale q.k / cap), and then biases", .example = "softcap:cap=50",
    .places = LOCI_PLACE_SCORE, .beside = true, .tol = 2e-6, .opts = opts, .terms = terms,
};
