/* SPDX-License-Identifier: MIT */
/* statistics.c -- see statistics.h. */
#include "lab/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "math/random.h"
#include "draw/text.h"

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double mean_of(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum / n;
}

static double squares_around(const double *x, int n, double mean)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    return sum;
}

struct summary summary_of(const double *x, int n)
{
    struct summary s = { n, NAN, NAN, NAN, NAN, NAN };
    if (n < 1 || isnan(mean_of(x, n))) return s;
    double *sorted = draw_alloc((size_t)n, sizeof *sorted);
    memcpy(sorted, x, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    s.least = sorted[0];
    s.most = sorted[n - 1];
    s.median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
    free(sorted);
    s.mean = mean_of(x, n);
    if (n > 1) s.variance = squares_around(x, n, s.mean) / (n - 1);
    return s;
}

/* ---- Student's t ----------------------------------------------------------------------------- */

/* The continued fraction of the incomplete beta function I_x(a, b), by Lentz's method.  It
 * converges fast for x < (a + 1) / (a + b + 2).  Abramowitz and Stegun 26.5.8. */
static double beta_fraction(double x, double a, double b)
{
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double f = d;
    for (int m = 1; m < 10000; m++) {
        for (int odd = 0; odd < 2; odd++) {
            const double k = a + 2 * m;
            const double up =
                odd ? -(a + m) * (a + b + m) * x / (k * (k + 1)) : m * (b - m) * x / ((k - 1) * k);
            d = 1 + up * d;
            c = 1 + up / c;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            if (fabs(c) < tiny) c = tiny;
            f *= c * d;
        }
        if (fabs(c * d - 1) < 1e-15) break;
    }
    return f;
}

static double beta_share(double x, double a, double b)
{
    if (x <= 0) return 0;
    if (x >= 1) return 1;
    const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(x, a, b) / a;
    return 1 - front * beta_fraction(1 - x, b, a) / b;
}

double student_below(double t, double freedom)
{
    if (isnan(t) || !(freedom > 0)) return NAN;
    if (isinf(t)) return t > 0;
    if (freedom > 1e7) return erfc(-t / sqrt(2)) / 2; /* the normal distribution, to 1e-8 */
    const double tail = beta_share(freedom / (freedom + t * t), freedom / 2, 0.5) / 2;
    return t > 0 ? 1 - tail : tail;
}

/* By bisection, which is fast enough for a few hundred calls. */
double student_quantile(double p, double freedom)
{
    if (!(p > 0 && p < 1) || !(freedom > 0)) return NAN;
    if (p == 0.5) return 0;
    if (p > 0.5) return -student_quantile(1 - p, freedom);
    double low = -1, high = 0;
    while (student_below(low, freedom) > p && low > -1e300) {
        high = low;
        low *= 2;
    }
    for (int i = 0; i < 200; i++) {
        const double middle = (low + high) / 2;
        if (student_below(middle, freedom) > p) high = middle;
        else low = middle;
    }
    return (low + high) / 2;
}

/* ---- Intervals ------------------------------------------------------------------------------- */

struct interval interval_of(const double *x, int n, double test)
{
    const struct summary s = summary_of(x, n);
    struct interval i = { n, s.mean, NAN, NAN, NAN, 0 };
    if (n < 2 || isnan(s.mean)) return i;
    const double seeds = s.variance / n, shared = isfinite(test) ? test * test : 0;
    const double error = sqrt(seeds + shared);
    /* The square of an estimated variance is too large by (n + 1) / (n - 1) in the mean.  Without
     * any variance of the seeds the degrees are infinite. */
    i.freedom = n - 1;
    if (shared > 0) i.freedom *= fmax(1, (n - 1.0) / (n + 1) * pow(1 + shared / seeds, 2));
    if (error > 0) {
        const double reach = student_quantile(0.975, i.freedom) * error;
        i.low = s.mean - reach;
        i.high = s.mean + reach;
        i.p = 2 * student_below(-fabs(s.mean) / error, i.freedom);
    } else { /* the same number each time */
        i.low = i.high = s.mean;
        i.p = s.mean == 0;
    }
    return i;
}

void holm(double *p, int n)
{
    int *order = draw_alloc((size_t)n, sizeof *order), count = 0;
    for (int i = 0; i < n; i++) {
        if (isnan(p[i])) continue;
        int k = count++;
        for (; k > 0 && p[order[k - 1]] > p[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    /* corrected p values must not decrease */
    double least = 0;
    for (int k = 0; k < count; k++) {
        least = fmax(least, p[order[k]] * (count - k));
        p[order[k]] = fmin(least, 1);
    }
    free(order);
}

void wilson(int hits, int n, double *low, double *high)
{
    *low = 0;
    *high = 1;
    if (n < 1) return;
    const double z = 1.959963984540054, p = (double)hits / n, zz = z * z / n;
    const double middle = (p + zz / 2) / (1 + zz);
    const double reach = z * sqrt(p * (1 - p) / n + zz / (4 * n)) / (1 + zz);
    if (hits > 0) *low = middle - reach;
    if (hits < n) *high = middle + reach;
}

double mean_error(const double *x, int n)
{
    return n < 2 ? NAN : sqrt(summary_of(x, n).variance / n);
}

double share_error(double share, int n)
{
    if (n < 1 || isnan(share)) return NAN;
    const double p = (share * n + 2) / (n + 4);
    return sqrt(p * (1 - p) / (n + 4));
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

void ranks_of(const double *x, int n, bool more, double *rank)
{
    for (int i = 0; i < n; i++) {
        int before = 0, same = 0;
        for (int k = 0; k < n; k++) {
            before += more ? x[k] > x[i] : x[k] < x[i];
            same += x[k] == x[i]; /* including itself */
        }
        rank[i] = isnan(x[i]) ? NAN : before + (same + 1) / 2.0;
    }
}

double mean_reciprocal_rank(const double *rank, int n)
{
    double sum = 0;
    int count = 0;
    for (int i = 0; i < n; i++)
        if (!isnan(rank[i])) {
            sum += 1 / rank[i];
            count++;
        }
    return count ? sum / count : NAN;
}
