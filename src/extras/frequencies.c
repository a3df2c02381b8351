/* SPDX-License-Identifier: MIT */
/* frequencies.c -- what a plan with rope or mrope turns by, for those who inspect it. */
#include "contract/plan.h"
#include "encodings/rope_scaling.h"

/* Returns how many pairs turn, and fills in as many frequencies as there is room for; 0 if no
 * encoding has frequencies that follow from its options.  Learned ones are the caller's already. */
int loci_frequencies(const loci_plan *p, double *list, int capacity, double *factor)
{
    for (int i = 0; p && i < p->encs; i++) {
        const struct config *c = &p->enc[i];
        if ((c->pe != &loci_pe_rope && c->pe != &loci_pe_mrope) || c->opt[ROPE_FREQ] == ROPE_GIVEN)
            continue;
        const int pairs = (int)c->opt[ROPE_DIM] / 2;
        for (int t = 0; list && t < pairs && t < capacity; t++) {
            double rest;                 /* a double is enough to look at */
            loci_rope_frequency(&(struct prep){ .cfg = c }, t, &list[t], &rest);
        }
        if (factor) *factor = c->opt[ROPE_ATTENTION_FACTOR];
        return pairs;
    }
    return 0;
}
