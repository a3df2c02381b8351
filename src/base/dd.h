/* SPDX-License-Identifier: MIT */
/* dd.h -- numbers of 106 bits: the unevaluated sum of two doubles, the second at most half an ulp
 * of the first. */
#ifndef LOCI_BASE_DD_H
#define LOCI_BASE_DD_H

#include "base/trig.h"

struct dd { double hi, lo; };

static inline struct dd dd_norm(double a, double b)
{
    struct dd r;
    r.lo = trig_two_sum(a, b, &r.hi);
    return r;
}

static inline struct dd dd_add(struct dd a, struct dd b)
{
    struct dd s = dd_norm(a.hi, b.hi), t = dd_norm(a.lo, b.lo);
    s = dd_norm(s.hi, s.lo + t.hi);
    return dd_norm(s.hi, s.lo + t.lo);
}

static inline struct dd dd_mul(struct dd a, struct dd b)
{
    double p = a.hi * b.hi;
    return dd_norm(p, fma(a.hi, b.hi, -p) + (a.hi * b.lo + a.lo * b.hi));
}

/* One step of long division after each of the first two quotient digits. */
static inline struct dd dd_div(struct dd a, double b)
{
    double q = a.hi / b;
    return dd_norm(q, (fma(-q, b, a.hi) + a.lo) / b);
}

#endif
