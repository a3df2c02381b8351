/* SPDX-License-Identifier: MIT */
/* trig.c -- frequencies base^(-num/den) as double-doubles, and sincos as a function.
 *
 * base = m 2^k with m in [sqrt 1/2, sqrt 2), so base^-e = 2^-q exp(-(f ln 2 + e ln m)) with e k = q
 * + f.  q and f come from an exact division, so no large number is ever rounded, and errors stay
 * near 2^-104. */
#include "math/trig.h"

#include <float.h>

#include "math/dd.h"

_Static_assert(FLT_EVAL_METHOD == 0, "doubles must be rounded to double");

static const struct dd ln2 = { 0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56 };

/* ln m = 2 atanh(s) = 2 s (1 + s^2/3 + s^4/5 + ...) with
 * s = (m - 1)/(m + 1), |s| < 0.172: 22 terms leave 2^-112. */
static struct dd log_near_one(double m)
{
    struct dd up = dd_norm(m, -1), down = dd_norm(m, 1);
    /* up / (down.hi + down.lo) = up / down.hi (1 - down.lo / down.hi); m + 1 may need one more
     * bit */
    struct dd s = dd_div(up, down.hi);
    s = dd_add(s, dd_mul(s, (struct dd){ -down.lo / down.hi, 0 }));
    struct dd z = dd_mul(s, s), sum = { 0, 0 };
    for (int k = 22; k >= 0; k--)
        sum = dd_add(dd_mul(sum, z), dd_div((struct dd){ 1, 0 }, 2 * k + 1));
    return dd_mul(dd_mul(s, sum), (struct dd){ 2, 0 });
}

/* e^x for |x| <= ln2/2, by 26 terms of the series: the next is below 2^-120. */
static struct dd exp_near_zero(struct dd x)
{
    const struct dd one = { 1, 0 };
    struct dd sum = one;
    for (int k = 26; k >= 1; k--) sum = dd_add(one, dd_mul(sum, dd_div(x, k)));
    return sum;
}

void loci_pow_dd(double base, double num, double den, double *hi, double *lo)
{
    /* With at most 1000 the powers of two below are an int for every base. */
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

    /* num k = q den + f den.  Products and differences are exact; f is rounded as a
     * double-double. */
    double a = num * k, ae = exact_fma(num, k, -a);
    double q = rint(a / den), b = q * den, be = exact_fma(q, den, -b);
    struct dd f = dd_div(dd_add(dd_norm(a, -b), dd_norm(ae, -be)), den);
    struct dd e = dd_div((struct dd){ num, 0 }, den);

    struct dd x = dd_add(dd_mul(f, ln2), dd_mul(e, log_near_one(m)));
    /* The rest of the exponent: whole powers of two are removed until |x| <= ln2/2. */
    double j = rint(x.hi / ln2.hi);
    x = dd_add(x, dd_mul((struct dd){ -j, 0 }, ln2));
    struct dd r = exp_near_zero((struct dd){ -x.hi, -x.lo });
    *hi = ldexp(r.hi, -(int)(q + j));
    *lo = ldexp(r.lo, -(int)(q + j));
}

void loci_sincos(double x, double w_hi, double w_lo, double *c, double *s)
{
    trig_sincos(x, w_hi, w_lo, c, s);
}
