/* SPDX-License-Identifier: MIT */
/* dd.h -- numbers of 106 bits: the unevaluated sum of two doubles, the second at most half an ulp
 * of the first. */
#ifndef LOCI_MATH_DD_H
#define LOCI_MATH_DD_H

#include "math/trig.h"

struct dd {
    double hi, lo;
};

/* Makes the sum of any two doubles such a number, exactly. */
static inline struct dd dd_norm(double a, double b)
{
    struct dd r;
    r.lo = trig_two_sum(a, b, &r.hi);
    return r;
}

/* Adds high and low parts exactly and propagates the carries in two steps.  One step would lose
 * bits if the high parts cancel. */
static inline struct dd dd_add(struct dd a, struct dd b)
{
    struct dd s = dd_norm(a.hi, b.hi), t = dd_norm(a.lo, b.lo);
    s = dd_norm(s.hi, s.lo + t.hi);
    return dd_norm(s.hi, s.lo + t.lo);
}

/* The fma is the exact error of the large product.  a.lo b.lo is left out, because it is no larger
 * than the rounding of the result. */
static inline struct dd dd_mul(struct dd a, struct dd b)
{
    double p = a.hi * b.hi;
    return dd_norm(p, exact_fma(a.hi, b.hi, -p) + (a.hi * b.lo + a.lo * b.hi));
}

/* One step of long division: the remainder of the first quotient is exact, and the second quotient
 * corrects the first. */
static inline struct dd dd_div(struct dd a, double b)
{
    double q = a.hi / b;
    return dd_norm(q, (exact_fma(-q, b, a.hi) + a.lo) / b);
}

#endif
