/* SPDX-License-Identifier: MIT */
/* compare.h -- two arms, or variants of arms, side by side: differences paired by seed. */
#ifndef LOCI_LAB_COMPARE_H
#define LOCI_LAB_COMPARE_H

#include "lab/result.h"

/* A column of both: means over the seeds that measured it in both, and the mean difference a - b
 * with its interval of 95 %: Student's t with the variance of these differences, joined with the
 * error of the test sequences, as in reports.  With one seed low, high and p are NaN. */
struct lab_difference {
    const struct lab_measured *head;
    int n;
    double a, b, mean, low, high, p;
};
/* Runs of one task, size, length and number of steps. */
struct lab_compared {
    const struct lab_result *a, *b; /* the first of their runs */
    int seeds, learned_a, learned_b;
    int columns;
    struct lab_difference column[LAB_COLUMNS];
};
struct lab_comparison {
    int count;
    struct lab_compared *list; /* in the order of the results */
};

/* Compares `a` and `b`: the text of an arm, or ARM@VARIANT.  task NULL: all tasks.  Fails with a
 * sentence if one of them has no run, or if no two runs can be paired. */
loci_status lab_compare(struct lab_comparison *, const struct lab_results *, const char *a,
                        const char *b, const char *task, loci_error *);
void lab_comparison_free(struct lab_comparison *);

#endif
