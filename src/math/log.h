/* SPDX-License-Identifier: MIT */
/* log.h -- the natural logarithm by plain operations, so that its bits do not depend on a libm. */
#ifndef LOCI_MATH_LOG_H
#define LOCI_MATH_LOG_H

#include <math.h>

/* x > 0, finite.  x = m 2^e, log m = 2 atanh((m - 1) / (m + 1)), |m - 1| < 0.42. */
static inline double plain_log(double x)
{
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    const double f = (m - 1) / (m + 1), g = f * f;
    /* Odd powers of f up to 23, smallest first. */
    double sum = 0;
    for (int n = 23; n >= 3; n -= 2) sum = (sum + 1.0 / n) * g;
    return 2 * f + 2 * f * sum + e * 0.69314718055994530942;
}

#endif
