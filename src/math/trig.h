/* SPDX-License-Identifier: MIT */
/* trig.h -- cos and sin of position times frequency, and the frequencies, independent of any libm.
 *
 * A frequency is the unevaluated sum w_hi + w_lo of two doubles (106 bits).  So the angle is
 * accurate far beyond a double even at position 2^40.  Every operation is an IEEE one (+, -, *,
 * fma, bits).  So the result has the same bits on every machine, inlined, vectorised or not.
 * Rounding must be to nearest. */
#ifndef LOCI_MATH_TRIG_H
#define LOCI_MATH_TRIG_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "platform/fma.h"

/* cos and sin of x * (w_hi + w_lo), correct to 0.51 ulp for |x| <= 2^40 and angles up to 2^42 (to 1
 * ulp where the value itself is below 2^-50).  NaN beyond 2^50, where this reduction ends.  |w_lo|
 * is at most half an ulp of w_hi. */
void loci_sincos(double x, double w_hi, double w_lo, double *c, double *s);

/* hi + lo = base^(-num / den), relative error below 1e-30, for base > 0; NaN for any other base. */
void loci_pow_dd(double base, double num, double den, double *hi, double *lo);

/* a + b = *sum + the result, exactly, in any order of size (Knuth). */
static inline double trig_two_sum(double a, double b, double *sum)
{
    double s = a + b, t = s - a;
    *sum = s;
    return (a - (s - t)) + (b - t);
}

/* The same for |a| >= |b|, with half of the operations (Dekker). */
static inline double trig_fast_two_sum(double a, double b, double *sum)
{
    double s = a + b;
    *sum = s;
    return b - (s - a);
}

/* loci_sincos in parts without a call or a branch, so that loops over them vectorise.  Each part is
 * short enough that a CPU, in a loop over one part, works on several vectors at a time. */

/* r + t = x (w_hi + w_lo) - n pi/2, |r| up to pi/4; n is in the last bits of turns. */
static inline __attribute__((always_inline)) void trig_reduce(double x, double w_hi, double w_lo,
                                                              double *r, double *t, double *turns)
{
    /* pi/2 = p1 + p2 + p3 within 2^-163.  whole + integer has the integer's low bits at the end of
     * the word. */
    const double p1 = 0x1.921fb54442d18p+0, p2 = 0x1.1a62633145c07p-54,
                 p3 = -0x1.f1976b7ed8fbcp-110;
    /* Adding 1.5 2^52 rounds to an integer, because doubles of that size have no other bits. */
    const double two_over_pi = 0x1.45f306dc9c883p-1, whole = 0x1.8p52;

    /* 1.  The angle, exactly: h + he + l + le. */
    double h = x * w_hi, he = exact_fma(x, w_hi, -h);
    double l = x * w_lo, le = exact_fma(x, w_lo, -l);

    /* 2.  h - n p1 is exact.  Parts near ulp(h) are added in pairs with their errors. */
    *turns = exact_fma(h, two_over_pi, whole);
    double n = *turns - whole;
    double n1 = n * p1, n1e = exact_fma(n, p1, -n1);
    double n2 = n * p2, n2e = exact_fma(n, p2, -n2);
    double a, b, sum;
    double ae = trig_two_sum(he, -n1e, &a);
    double be = trig_two_sum(l, -n2, &b);
    double abe = trig_two_sum(a, b, &a);
    double re = trig_two_sum(h - n1, a, &sum);
    *t = trig_two_sum(sum, re + (abe + (ae + be + ((le - n2e) - n * p3))), r);
}
/* z + ze = (r + t)^2. */
static inline __attribute__((always_inline)) double trig_square(double r, double t, double *ze)
{
    double z = r * r;
    *ze = exact_fma(r, r, -z) + 2 * r * t;
    return z;
}
/* sin = r + t + r^3 (-1/6 + z q): Taylor's series up to r^17, below 2^-63 at pi/4.  q needs only a
 * double.  The cubic factor k and its product v are in two parts, because their rounding alone
 * would cost more than 0.01 ulp. */
static inline __attribute__((always_inline)) double trig_sin(double r, double t)
{
    double ze, z = trig_square(r, t, &ze);
    double q = 1 / 355687428096000.0;
    q = exact_fma(z, q, -1 / 1307674368000.0);
    q = exact_fma(z, q, 1 / 6227020800.0);
    q = exact_fma(z, q, -1 / 39916800.0);
    q = exact_fma(z, q, 1 / 362880.0);
    q = exact_fma(z, q, -1 / 5040.0);
    q = exact_fma(z, q, 1 / 120.0);
    double k, ke = trig_fast_two_sum(-0x1.5555555555555p-3, z * q, &k) - 0x1.5555555555555p-57;
    double y = z * r, ye = exact_fma(z, r, -y) + exact_fma(ze, r, z * t);
    double v = y * k, ve = exact_fma(y, k, -v) + exact_fma(y, ke, ye * k);
    double sin_hi, sin_lo = trig_fast_two_sum(r, v, &sin_hi);
    return sin_hi + (sin_lo + (ve + t));
}
/* cos = 1 - z/2 + z^2 (1/24 + z q), likewise.  1 - z/2 is added first, because these are the
 * largest. */
static inline __attribute__((always_inline)) double trig_cos(double r, double t)
{
    double ze, z = trig_square(r, t, &ze);
    double q = -1 / 6402373705728000.0;
    q = exact_fma(z, q, 1 / 20922789888000.0);
    q = exact_fma(z, q, -1 / 87178291200.0);
    q = exact_fma(z, q, 1 / 479001600.0);
    q = exact_fma(z, q, -1 / 3628800.0);
    q = exact_fma(z, q, 1 / 40320.0);
    q = exact_fma(z, q, -1 / 720.0);
    double k, ke = trig_fast_two_sum(0x1.5555555555555p-5, z * q, &k) + 0x1.5555555555555p-59;
    double y = z * z, ye = exact_fma(z, z, -y) + 2 * z * ze;
    double v = y * k, ve = exact_fma(y, k, -v) + exact_fma(y, ke, ye * k);
    double cos_hi, cos_lo = trig_fast_two_sum(1, -0.5 * z, &cos_hi);
    cos_lo += trig_fast_two_sum(cos_hi, v, &cos_hi);
    return cos_hi + (cos_lo + exact_fma(-0.5, ze, ve));
}
/* Rotates by the quarters that trig_reduce() subtracted: cos and sin swap in odd quarters, cos < 0
 * in quarters 1 and 2, sin < 0 in 2 and 3.  It works on bits instead of branching, so that loops
 * vectorise.  NaN for angles beyond 2^50, where the reduction ends. */
static inline __attribute__((always_inline)) void trig_quarter(double h, double turns, double *c,
                                                               double *s)
{
    uint64_t quarter, cos_bits, sin_bits;
    memcpy(&quarter, &turns, 8);
    memcpy(&cos_bits, c, 8);
    memcpy(&sin_bits, s, 8);
    uint64_t odd = -(quarter & 1), swap = (cos_bits ^ sin_bits) & odd;
    cos_bits ^= swap ^ (((quarter + 1) & 2) << 62);
    sin_bits ^= swap ^ ((quarter & 2) << 62);
    double cos_x, sin_x;
    memcpy(&cos_x, &cos_bits, 8);
    memcpy(&sin_x, &sin_bits, 8);
    *c = fabs(h) <= 0x1p50 ? cos_x : NAN;
    *s = fabs(h) <= 0x1p50 ? sin_x : NAN;
}

static inline __attribute__((always_inline)) void trig_sincos(double x, double w_hi, double w_lo,
                                                              double *c, double *s)
{
    double r, t, turns;
    trig_reduce(x, w_hi, w_lo, &r, &t, &turns);
    *c = trig_cos(r, t);
    *s = trig_sin(r, t);
    trig_quarter(x * w_hi, turns, c, s);
}

#endif
