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

/* A variance pooled over several arms: a sum of squares over its degrees of freedom.  With 0
 * degrees it is unknown. */
struct pooled {
    double sum, freedom;
};
double pooled_variance(const struct pooled *); /* NaN without freedom */
/* Within an arm: seeds around their own mean.  Arms are added one after another. */
void pool_arm(struct pooled *, const double *x, int n);
/* The residual of y [arms][seeds] without the means of its rows and columns.  Seeds are blocks,
 * since all arms saw the same data and the same initial values.  A difference of two arms by seed
 * then has twice this variance. */
struct pooled pool_blocks(const double *y, int arms, int seeds);

/* A mean of n numbers with its interval of 95 %, by the pooled variance (that of one number) if
 * there is one.  An arm whose own variance is more than STRAYS times that uses its own: results in
 * two clusters must not benefit from the small spread of the others. p: two-sided, of a mean of 0.
 * n = 1: low, high and p are NaN. */
enum { STRAYS = 4 };
struct interval {
    int n;
    double mean, low, high, p, freedom;
};
struct interval interval_of(const double *x, int n, const struct pooled *);

/* Holm's correction of n values of p, in place.  NaN stays and does not count. */
void holm(double *p, int n);

/* Wilson's interval of 95 % for `hits` of n. */
void wilson(int hits, int n, double *low, double *high);

/* Standard error of the mean of x by bootstrap, with `draws` resamples.  A stream has its own
 * resamples, so that all arms of a test get the same ones. */
double bootstrap_error(const double *x, int n, int draws, uint64_t stream);

/* Ranks from 1.  Ties share their mean rank.  NaN has no rank (NaN). more: large values come
 * first. */
void ranks_of(const double *x, int n, bool more, double *rank);
/* The mean of 1 / rank over the ranks present.  NaN if there are none. */
double mean_reciprocal_rank(const double *rank, int n);

#endif
