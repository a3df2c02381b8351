/* SPDX-License-Identifier: MIT */
/* trig.c -- angles against fixed-point arithmetic of 64 + 320 bits, with its own pi, logarithm and
 * series. */
#include "math/trig.h"

#include <stdbool.h>
#include <stdio.h>

#include "harness.h"

enum { FRACTION = 10, LIMBS = FRACTION + 2 };
struct big {
    uint32_t limb[LIMBS];
}; /* sum of limb[i] 2^(32 (i - FRACTION)), never negative */

static struct big whole(uint64_t n)
{
    struct big r = { { 0 } };
    r.limb[FRACTION] = (uint32_t)n;
    r.limb[FRACTION + 1] = (uint32_t)(n >> 32);
    return r;
}

static int compare(struct big a, struct big b)
{
    int i = LIMBS - 1;
    while (i > 0 && a.limb[i] == b.limb[i]) i--;
    return (a.limb[i] > b.limb[i]) - (a.limb[i] < b.limb[i]);
}

static struct big plus(struct big a, struct big b)
{
    uint64_t carry = 0;
    for (int i = 0; i < LIMBS; i++, carry >>= 32) {
        carry += (uint64_t)a.limb[i] + b.limb[i];
        a.limb[i] = (uint32_t)carry;
    }
    return a;
}

static struct big minus(struct big a, struct big b) /* a >= b */
{
    int64_t borrow = 0;
    for (int i = 0; i < LIMBS; i++) {
        int64_t d = (int64_t)a.limb[i] - b.limb[i] + borrow;
        a.limb[i] = (uint32_t)d;
        borrow = d < 0 ? -1 : 0;
    }
    return a;
}

static struct big times(struct big a, struct big b)
{
    uint32_t wide[2 * LIMBS] = { 0 };
    for (int i = 0; i < LIMBS; i++) {
        uint64_t carry = 0;
        for (int j = 0; j < LIMBS; j++, carry >>= 32) {
            carry += wide[i + j] + (uint64_t)a.limb[i] * b.limb[j];
            wide[i + j] = (uint32_t)carry;
        }
        wide[i + LIMBS] = (uint32_t)carry;
    }
    memcpy(a.limb, wide + FRACTION, sizeof a.limb);
    return a;
}

static struct big over(struct big a, uint32_t n)
{
    uint64_t rest = 0;
    for (int i = LIMBS - 1; i >= 0; i--) {
        rest = rest << 32 | a.limb[i];
        a.limb[i] = (uint32_t)(rest / n);
        rest %= n;
    }
    return a;
}

static struct big shifted(struct big a, int right)
{
    for (; right >= 31; right -= 31) a = over(a, 1u << 31);
    return over(a, 1u << right);
}

static struct big from_double(double x) /* 0 <= x < 2^64; exact down to 2^-320 */
{
    struct big r;
    x = ldexp(x, -32 * (LIMBS - FRACTION - 1));
    for (int i = LIMBS - 1; i >= 0; i--) {
        r.limb[i] = (uint32_t)x;
        x = (x - r.limb[i]) * 0x1p32;
    }
    return r;
}

static double to_double(struct big a)
{
    double x = 0;
    for (int i = LIMBS - 1; i >= 0; i--) x += ldexp(a.limb[i], 32 * (i - FRACTION));
    return x;
}

/* (a + b) - exact, for doubles that agree with it closely. */
static double error_of(double a, double b, struct big exact)
{
    struct big up = from_double(a), down = exact;
    if (b > 0) up = plus(up, from_double(b));
    else down = plus(down, from_double(-b));
    return compare(up, down) >= 0 ? to_double(minus(up, down)) : -to_double(minus(down, up));
}

/* z^k / (2k + 1) summed with sign (-1)^k or 1, times s, where z = s^2: atan s or atanh s. */
static struct big arc(struct big s, bool hyperbolic)
{
    struct big z = times(s, s), power = s, sum = whole(0), less = whole(0);
    for (uint32_t k = 0; k < 400; k++, power = times(power, z)) {
        struct big term = over(power, 2 * k + 1);
        if (k % 2 && !hyperbolic) less = plus(less, term);
        else sum = plus(sum, term);
    }
    return minus(sum, less);
}

/* Terms x^k/k! of k = first, first + step, ... with alternating signs: cos (0, 2), sin (1, 2), e^-x
 * (0, 1). */
static struct big series(struct big x, int first, int step)
{
    struct big term = whole(1), sum[2] = { whole(0), whole(0) };
    for (int k = 0, sign = 0; k < 80; k++, term = over(times(term, x), (uint32_t)k)) {
        if (k < first || (k - first) % step) continue;
        sum[sign] = plus(sum[sign], term);
        sign = !sign;
    }
    return minus(sum[0], sum[1]);
}

static struct big half_pi, ln2;

/* pi/2 = 8 atan 1/5 - 2 atan 1/239, ln 2 = 2 atanh 1/3 */
static void make_constants(void)
{
    half_pi = minus(times(whole(8), arc(over(whole(1), 5), false)),
                    times(whole(2), arc(over(whole(1), 239), false)));
    ln2 = times(whole(2), arc(over(whole(1), 3), true));
}

static struct big ln_of(uint32_t n) /* n = 2^k (1 + s)/(1 - s) */
{
    int k = 0;
    while (n >> (k + 1)) k++;
    uint32_t power = (uint32_t)1 << k;
    struct big s = over(whole(n - power), n + power);
    return plus(times(whole((uint64_t)k), ln2), times(whole(2), arc(s, true)));
}

static struct big exp_minus(struct big x)
{
    int n = 0;
    for (; compare(x, ln2) >= 0; n++) x = minus(x, ln2);
    return shifted(series(x, 0, 1), n);
}

/* cos and sin of position * w: magnitudes and signs. */
static void exact_sincos(struct big angle, struct big *c, struct big *s, double *c_sign,
                         double *s_sign)
{
    uint64_t quarter = (uint64_t)(to_double(angle) / to_double(half_pi));
    struct big near = times(whole(quarter), half_pi);
    if (compare(near, angle) > 0) {
        near = minus(near, half_pi);
        quarter--;
    }
    struct big r = minus(angle, near);
    if (compare(r, half_pi) >= 0) {
        r = minus(r, half_pi);
        quarter++;
    }
    struct big even = series(r, 0, 2), odd = series(r, 1, 2);
    *c = quarter & 1 ? odd : even;
    *s = quarter & 1 ? even : odd;
    *c_sign = (quarter + 1) & 2 ? -1 : 1;
    *s_sign = quarter & 2 ? -1 : 1;
}

static double ulp(double x)
{
    int e;
    frexp(x, &e);
    return ldexp(1, e - 53);
}

static double worst_double, worst_float, worst_pow;

/* Close to a multiple of pi/2 the value is as small as the rounding error of the reduction: 1 ulp
 * there. */
static void check_value(double got, double sign, struct big exact, double x, double w)
{
    float single = (float)got;
    double value = to_double(exact), err = fabs(error_of(got * sign, 0, exact)) / ulp(value);
    double float_err = fabs(error_of(single * sign, 0, exact)) / (ulp(value) * 0x1p29);
    if (value > 0x1p-50) worst_double = fmax(worst_double, err);
    if (fabs(x) <= 0x1p31) worst_float = fmax(worst_float, float_err);
    CHECK_CLOSE(err, 0, value > 0x1p-50 ? 0.51 : 1, "double at %.17g, %.17g", x, w);
    CHECK_CLOSE(float_err, 0, 0.502, "float at %.17g, %.17g", x, w);
}

static void check_angle(double x, double w_hi, double w_lo, struct big w)
{
    struct big c, s;
    double c_sign, s_sign, got_c, got_s, neg_c, neg_s;
    exact_sincos(times(from_double(x), w), &c, &s, &c_sign, &s_sign);
    loci_sincos(x, w_hi, w_lo, &got_c, &got_s);
    loci_sincos(-x, w_hi, w_lo, &neg_c, &neg_s);
    check_value(got_c, c_sign, c, x, w_hi);
    if (x != 0) check_value(got_s, s_sign, s, x, w_hi);
    else
        CHECK_THAT(got_s == 0 && got_c == 1, "at 0 times %.17g sin is %g, cos %g", w_hi, got_s,
                   got_c);
    CHECK_THAT(neg_c == got_c && neg_s == -got_s, "not even and odd at %.17g, %.17g", x, w_hi);
}

static void check_pow(uint32_t base, int num, int den, double *hi, double *lo)
{
    struct big exact = exp_minus(over(times(ln_of(base), whole((uint64_t)num)), (uint32_t)den));
    loci_pow_dd(base, num, den, hi, lo);
    double err = fabs(error_of(*hi, *lo, exact)) / to_double(exact);
    worst_pow = fmax(worst_pow, err);
    CHECK_CLOSE(err, 0, 1e-30, "pow_dd of %u, -%d/%d", base, num, den);
    CHECK_THAT(fabs(*lo) <= ulp(*hi) / 2, "pow_dd of %u, -%d/%d is not normalised: %.17g, %g", base,
               num, den, *hi, *lo);
}

static void check_family(uint32_t base, int dim)
{
    for (int i = 0; 2 * i < dim; i++) {
        double hi, lo;
        check_pow(base, 2 * i, dim, &hi, &lo);
        if (i % 3) continue;
        struct big w = lo < 0 ? minus(from_double(hi), from_double(-lo))
                              : plus(from_double(hi), from_double(lo));
        check_angle(0, hi, lo, w);
        for (int k = 0; k <= 40; k++)
            for (int d = k > 1 ? -1 : 0; d <= (k < 40); d++)
                check_angle(ldexp(1, k) + d, hi, lo, w);
        check_angle(1234567.890625, hi, lo, w);
        check_angle(0x1.921fb54442d18p+19 + i, hi, lo, w);
    }
}

/* Frequencies chosen so that the angle falls within 2^-53 and less of a multiple of pi/2. */
static void check_near_multiples(void)
{
    for (int k = 0; k <= 40; k += 4) {
        double hi = 0x1.921fb54442d18p+0,
               lo[] = { 0x1.1a62633145c07p-54, 0x1.1a62633145c06p-54, 0 };
        for (int i = 0; i < 3; i++) {
            struct big w = plus(from_double(hi), from_double(lo[i]));
            check_angle(ldexp(1, k), hi, lo[i], w);
            check_angle(ldexp(1, k) + 1, hi, lo[i], w);
        }
    }
}

static void check_edges(void)
{
    double c, s, hi, lo;
    loci_sincos(0x1p40, 0x1p11, 0, &c, &s);
    CHECK_THAT(isnan(c) && isnan(s), "beyond 2^50: %g, %g", c, s);
    loci_sincos(INFINITY, 1, 0, &c, &s);
    CHECK_THAT(isnan(c) && isnan(s), "infinite position: %g, %g", c, s);
    loci_sincos(1, NAN, 0, &c, &s);
    CHECK_THAT(isnan(c) && isnan(s), "frequency not a number: %g, %g", c, s);
    static const double bad[] = { 0, -2, INFINITY, NAN };
    for (int i = 0; i < 4; i++) {
        loci_pow_dd(bad[i], 1, 2, &hi, &lo);
        CHECK_THAT(isnan(hi), "base %g: %g", bad[i], hi);
    }
    loci_pow_dd(2, 1, 0, &hi, &lo);
    CHECK_THAT(isnan(hi), "zero denominator: %g", hi);
    loci_pow_dd(4, 3, 2, &hi, &lo);
    CHECK_THAT(hi == 0.125 && lo == 0, "4^-3/2 is %.17g, %g", hi, lo);
    loci_pow_dd(4, -3, 2, &hi, &lo);
    CHECK_THAT(hi == 8 && lo == 0, "4^3/2 is %.17g, %g", hi, lo);
    loci_pow_dd(12345.678, 0, 64, &hi, &lo);
    CHECK_THAT(hi == 1 && lo == 0, "zeroth power: %.17g, %g", hi, lo);
}

int main(void)
{
    make_constants();
    static const uint32_t bases[] = { 10000, 500000, 10000000 };
    for (int b = 0; b < 3; b++)
        for (int dim = 64; dim <= 128; dim += 64) check_family(bases[b], dim);
    check_near_multiples();
    check_edges();
    printf("worst: double %.4f ulp, float %.4f ulp, pow_dd %.2g\n", worst_double, worst_float,
           worst_pow);
    return harness_end();
}
