/* SPDX-License-Identifier: MIT */
/* statistics.h -- statistics of a few seeds and of a few hundred test sequences.
 *
 * NaN is a missing measurement.  A result that depends on it is NaN. */
#ifndef LOCI_LAB_STATISTICS_H
#define LOCI_LAB_STATISTICS_H

#include <stdbool.h>
#include <stdint.h>

struct summary {
    int n;
    double mean, least, most, median, variance;
}; /* variance: divides by n - 1 */
struct summary summary_of(const double *x, int n);

/* P(T <= t) of Student's t, and its inverse for 0 < p < 1.  Any freedom > 0, not only whole
 * numbers. */
double student_below(double t, double freedom);
double student_quantile(double p, double freedom);

/* A mean of n numbers with its interval of 95 % by Student's t.  p: two-sided, of a mean of 0.
 * With n = 1, low, high and p are NaN.  Variances of arms are never pooled: those of one task
 * differ by four orders of magnitude.
 *
 * test: the standard error of the mean that comes from the choice of the test sequences; 0 or NaN:
 * none.  All n seeds saw the same sequences, so more seeds do not reduce it.  It is added to the
 * error of the seeds, and the degrees of freedom follow Welch and Satterthwaite. */
struct interval {
    int n;
    double mean, low, high, p, freedom;
};
struct interval interval_of(const double *x, int n, double test);

/* Holm's correction of n values of p, in place.  NaN stays and does not count. */
void holm(double *p, int n);

/* Wilson's interval of 95 % for `hits` of n. */
void wilson(int hits, int n, double *low, double *high);

/* Standard error of the mean of x. */
double mean_error(const double *x, int n);
/* Standard error of a share of n by Agresti and Coull.  It is above 0 also if all n agree. */
double share_error(double share, int n);

/* Ranks from 1.  Ties share their mean rank.  NaN has no rank (NaN). more: large values come
 * first. */
void ranks_of(const double *x, int n, bool more, double *rank);
/* The mean of 1 / rank over the ranks present.  NaN if there are none. */
double mean_reciprocal_rank(const double *rank, int n);

#endif
