/* SPDX-License-Identifier: MIT */
/* trig.c -- frequencies base^(-num/den) as double-doubles, and the called form of sincos.
 *
 * base = m 2^k with m in [sqrt 1/2, sqrt 2), so base^-e = 2^-q exp(-(f ln 2 + e ln m)) with e k = q + f.  q and f come
 * from an exact division, so nothing large is ever rounded and errors stay near 2^-104. */
#include "trig.h"

#include <float.h>

_Static_assert(FLT_EVAL_METHOD == 0, "doubles must be rounded to double");

struct dd { double hi, lo; };

static struct dd norm(double a, double b)
{
    struct dd r;
    r.lo = trig_two_sum(a, b, &r.hi);
    return r;
}

static struct dd add(struct dd a, struct dd b)
{
    struct dd s = norm(a.hi, b.hi), t = norm(a.lo, b.lo);
    s = norm(s.hi, s.lo + t.hi);
    return norm(s.hi, s.lo + t.lo);
}

static struct dd mul(struct dd a, struct dd b)
{
    double p = a.hi * b.hi;
    return norm(p, fma(a.hi, b.hi, -p) + (a.hi * b.lo + a.lo * b.hi));
}

/* One step of long division after each of the first two quotient digits. */
static struct dd div(struct dd a, double b)
{
    double q = a.hi / b;
    return norm(q, (fma(-q, b, a.hi) + a.lo) / b);
}

static const struct dd ln2 = { 0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56 };

/* ln m = 2 atanh(s) = 2 s (1 + s^2/3 + s^4/5 + ...) with s = (m - 1)/(m + 1), |s| < 0.172: 22 terms leave 2^-112. */
static struct dd log_near_one(double m)
{
    struct dd up = norm(m, -1), down = norm(m, 1);
    struct dd s = div(up, down.hi);                   /* up / down.hi (1 - down.lo / down.hi): down.lo may be one bit */
    s = add(s, mul(s, (struct dd){ -down.lo / down.hi, 0 }));
    struct dd z = mul(s, s), sum = { 0, 0 };
    for (int k = 22; k >= 0; k--) sum = add(mul(sum, z), div((struct dd){ 1, 0 }, 2 * k + 1));
    return mul(mul(s, sum), (struct dd){ 2, 0 });
}

/* e^x for |x| <= ln2/2, by 26 terms of the series: the next is below 2^-120. */
static struct dd exp_near_zero(struct dd x)
{
    const struct dd one = { 1, 0 };
    struct dd sum = one;
    for (int k = 26; k >= 1; k--) sum = add(one, mul(sum, div(x, k)));
    return sum;
}

void loci_pow_dd(double base, double num, double den, double *hi, double *lo)
{
    if (!(base > 0 && base <= DBL_MAX && fabs(num / den) <= 1000)) {
        *hi = *lo = NAN;
        return;
    }
    int k;
    double m = frexp(base, &k);
    if (m < 0.70710678118654752) {
        m *= 2;
        k--;
    }

    /* num k = q den + f den: products and differences are exact, f is rounded as a double-double. */
    double a = num * k, ae = fma(num, k, -a);
    double q = rint(a / den), b = q * den, be = fma(q, den, -b);
    struct dd f = div(add(norm(a, -b), norm(ae, -be)), den);
    struct dd e = div((struct dd){ num, 0 }, den);

    struct dd x = add(mul(f, ln2), mul(e, log_near_one(m)));
    double j = rint(x.hi / ln2.hi);
    x = add(x, mul((struct dd){ -j, 0 }, ln2));
    struct dd r = exp_near_zero((struct dd){ -x.hi, -x.lo });
    *hi = ldexp(r.hi, -(int)(q + j));
    *lo = ldexp(r.lo, -(int)(q + j));
}

void loci_sincos(double x, double w_hi, double w_lo, double *c, double *s)
{
    trig_sincos(x, w_hi, w_lo, c, s);
}
