/* SPDX-License-Identifier: MIT */
/* frequencies.c -- what a plan's rotation turns by, for those who inspect it. */
#include "contract/plan.h"

/* Returns how many pairs turn, and fills in as many frequencies as there is room for; 0 if no
 * encoding has frequencies that follow from its options. */
int loci_frequencies(const loci_plan *p, double *list, int capacity, double *factor)
{
    int pairs = 0;
    for (int i = 0; p && i < p->encs && !pairs; i++)
        if (p->enc[i].pe->frequencies)
            pairs = p->enc[i].pe->frequencies(&p->enc[i], list, capacity, factor);
    return pairs;
}
