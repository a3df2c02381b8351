/* SPDX-License-Identifier: MIT */
/* softcap.c -- scores that stay below a cap.  Gemma Team, Gemma 2, 2024;
 * Grok and others have it too.
 *
 *     S_ij = cap tanh(x / cap)
 *
 * x is scale q_i.k_j plus the biases that precede it in the text: `softcap:cap=50+alibi` caps
 * the product, as flash attention does, and `alibi+softcap:cap=50` their sum.  Encodings that
 * multiply the score or add to q.k (kerple's weight, shaw, xl, deberta) come first wherever they
 * are in the text, the mask last. */
#include "layout/softcap.h"
#include "contract/encoding.h"

/* The cap has no default: a model with a cap gives its value. */
static const loci_option opts[] = {
    [SOFTCAP_CAP] = { "cap", LOCI_NUMBER, 1, NAN, 1e-3, 1e6, NULL,
                      "upper limit of |S|: 50 in Gemma 2, 30 in Grok" },
    { 0 }
};

static void terms(const struct config *c, struct termlist *t)
{
    bool biased = false;
    (void)c;
    for (int i = 0; i < t->n; i++) biased |= t->use[i].group == GROUP_ADD;
    loci_add_term(t, TERM_softcap, biased ? GROUP_ADD : GROUP_CAP);
}

const struct loci_pe loci_pe_softcap = {
    .name = "softcap",
    .cite = "Gemma Team, 2024",
    .brief = "S = cap tanh(S / cap); S includes the biases before it",
    .example = "softcap:cap=50",
    .places = LOCI_PLACE_SCORE,
    .neutral = true,
    .tol = 2e-6,
    .opts = opts,
    .terms = terms,
};
