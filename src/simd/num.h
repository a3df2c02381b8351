/* SPDX-License-Identifier: MIT */
/* num.h -- the arithmetic of engine and terms on top of the ISA's vec.h.  It gives the
 * same bits for every ISA: lanes run across outputs, and each scalar function is the
 * vector one with one lane. */
#ifndef LOCI_SIMD_NUM_H
#define LOCI_SIMD_NUM_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "platform/fmaf.h"
/* src/simd/NAME/vec.h, the words of the instruction set that this is compiled for */
#include LOCI_VEC

#define PASTE2(a, b, c) loci_##a##_##b##_##c
#define PASTE(a, b, c) PASTE2(a, b, c)
/* Every global of an engine is named by its instruction set and tile width, as the same sources
 * are linked once for each of them: N(forward) is loci_forward_avx2_64. */
#define N(name) PASTE(name, LOCI_ISA, QT)
/* the name of the wide tiles, in files of either width */
#define WIDE(name) PASTE(name, LOCI_ISA, 64)

/* INLINE: a function that is written once and compiled for each constant argument.  UNROLL_FOR: a
 * for loop of constant length whose body indexes an array of vectors; unrolled, the array is
 * registers.  Sanitizer builds disable both (LOCI_ROLLED), because their checks in all these copies
 * take minutes to compile. */
#if defined LOCI_ROLLED
#define INLINE static inline
#define UNROLL_FOR for
#else
#define INLINE static inline __attribute__((always_inline))
#if defined __clang__
#define UNROLL_FOR _Pragma("clang loop unroll(full)") for
#else
#define UNROLL_FOR _Pragma("GCC unroll 16") for
#endif
#endif

/* Stops the compiler from making a pointer for each row and each unrolled step, and from moving
 * loads to another step: it would run out of registers. */
#define HIDE(p) __asm__("" : "+r"(p) : : "memory")

/* a * b + c, rounded once (in the f64 build twice: there only the value matters). */
INLINE real fma_(real a, real b, real c)
{
#if LOCI_DOUBLE
    return a * b + c;
#else
    return exact_fmaf(a, b, c);
#endif
}
/* b where a is NaN, as vf_max(); min_() likewise. */
INLINE real max_(real a, real b) { return a > b ? a : b; }
INLINE real min_(real a, real b) { return a < b ? a : b; }
INLINE real abs_(real a) { return a < 0 ? -a : a; }

/* The smallest number that is not -inf. */
#if LOCI_DOUBLE
#define LOWEST (-DBL_MAX)
#else
#define LOWEST (-FLT_MAX)
#endif

#if VL == 1
typedef uint32_t vu;
INLINE vu vu_load(const uint32_t *p) { return *p; }
INLINE vu vu_set1(uint32_t x) { return x; }
INLINE vu vu_add(vu a, vu b) { return a + b; }
INLINE vu vu_mul(vu a, vu b) { return a * b; }
INLINE vu vu_xor(vu a, vu b) { return a ^ b; }
INLINE vu vu_shift(vu x, int by) { return x >> by; }
INLINE vf vf_not_below(vu x, vu limit, vf y) { return (int32_t)x < (int32_t)limit ? 0 : y; }
#endif

/* e^x for x <= 0 (also a little above): x = n ln 2 + r, |r| <= ln 2 / 2, then a polynomial of
 * degree 5 in r that is 1 at 0.  Worst error 1.6 ulp plus |x| 2^-28 relative (ln 2 is one
 * float).  Below EXP_LOW it is 0, and so is e^-inf; e^0 is exactly 1: skipping tiles and joining
 * chunks rely on both.  NaN stays NaN, but not by scaling, which adds to any bits of a NaN.
 *
 * e^-60 is 2^-86: 2^20 such weights are less than half a last place of the largest one, in
 * double too.  Their factors, values and gradients, have 2^40 left before products become
 * subnormal, which some processors compute a hundred times as slowly. */
#define EXP_LOW ((real)-60)
#if LOCI_DOUBLE
/* Cut off at the same place as in float, so that both builds skip the same tiles. */
INLINE real exp_(real x) { return x < EXP_LOW ? 0 : exp(x); }
INLINE vf vf_exp_from(real low, vf x) { return x < low ? 0 : exp(x); }
#else
#define EXP_LOG2E 1.44269504f
/* 1.5 * 2^23: adding it rounds to an integer in the low bits */
#define EXP_MAGIC 12582912.0f
#define EXP_LN2 0.693147182f
/* Fitted for the smallest error over |r| <= ln 2 / 2, hence
 * near the inverse factorials but not equal to them. */
#define EXP_C1 0x1.fffff6p-1f
#define EXP_C2 0x1.fffdc0p-2f
#define EXP_C3 0x1.555a76p-3f
#define EXP_C4 0x1.573c42p-5f
#define EXP_C5 0x1.0fa6c4p-7f
/* y times 2^n: n in the low bits of t is added to the exponent of y. */
INLINE float bits_scale2(float y, float t)
{
    uint32_t a, b;
    memcpy(&a, &y, 4);
    memcpy(&b, &t, 4);
    a += b << 23;
    memcpy(&y, &a, 4);
    return y;
}
INLINE real exp_(real x)
{
    /* t - EXP_MAGIC is n exactly, and r = x - n ln 2 is rounded once. */
    float t = fma_(x, EXP_LOG2E, EXP_MAGIC), r = fma_(t - EXP_MAGIC, -EXP_LN2, x);
    float y = fma_(r, EXP_C5, EXP_C4);
    y = fma_(r, y, EXP_C3);
    y = fma_(r, y, EXP_C2);
    y = fma_(r, y, EXP_C1);
    y = fma_(r, y, 1.0f);
    y = bits_scale2(y, t);
    return x >= EXP_LOW ? y : max_(0, x);
}
#if VL == 1
INLINE vf vf_scale2(vf y, vf t) { return bits_scale2(y, t); }
INLINE vf vf_scale_from(vf x, real limit, vf y, vf t, vf n)
{
    (void)n;
    return x >= limit ? bits_scale2(y, t) : max_(0, x);
}
#endif
/* The same with another limit, above EXP_LOW. */
INLINE vf vf_exp_from(real low, vf x)
{
    vf t = vf_fma(x, vf_set1(EXP_LOG2E), vf_set1(EXP_MAGIC)), n = vf_sub(t, vf_set1(EXP_MAGIC));
    vf r = vf_fma(n, vf_set1(-EXP_LN2), x);
    vf y = vf_fma(r, vf_set1(EXP_C5), vf_set1(EXP_C4));
    y = vf_fma(r, y, vf_set1(EXP_C3));
    y = vf_fma(r, y, vf_set1(EXP_C2));
    y = vf_fma(r, y, vf_set1(EXP_C1));
    y = vf_fma(r, y, vf_set1(1.0f));
    return vf_scale_from(x, low, y, t, n);
}
#endif
INLINE vf vf_exp(vf x) { return vf_exp_from(EXP_LOW, x); }

/* tanh x = -e / (e + 2), e = e^(-2|x|) - 1, with the sign of x.  As in exp_(), -2|x| = n ln 2 +
 * r, and e = 2^n (e^r - 1) + (2^n - 1), where neither cancels: e^r - 1 is a polynomial of degree
 * 6 that is exact at 0.  Worst error 2.5 ulp, near 0 too; NaN stays NaN. */
#if LOCI_DOUBLE
INLINE vf vf_tanh(vf x) { return tanh(x); }
#else
/* Fitted like those above. */
#define EXPM1_C2 0x1.fffffep-2f
#define EXPM1_C3 0x1.5554b0p-3f
#define EXPM1_C4 0x1.555674p-5f
#define EXPM1_C5 0x1.1227f6p-7f
#define EXPM1_C6 0x1.6bebf4p-10f
INLINE vf vf_tanh(vf x)
{
    const vf one = vf_set1(1);
    /* From -40 on the result is 1 in float.  The order of the arguments lets NaN through. */
    const vf y = vf_max(vf_set1(-40), vf_mul(vf_set1(2), vf_minus_abs(x)));
    const vf t = vf_fma(y, vf_set1(EXP_LOG2E), vf_set1(EXP_MAGIC));
    const vf r = vf_fma(vf_sub(t, vf_set1(EXP_MAGIC)), vf_set1(-EXP_LN2), y),
             power = vf_scale2(one, t);
    /* e^r - 1 = r + r^2 (...): the rest of the series after r is added
     * last, so small x stay precise. */
    vf e = vf_fma(r, vf_set1(EXPM1_C6), vf_set1(EXPM1_C5));
    e = vf_fma(r, e, vf_set1(EXPM1_C4));
    e = vf_fma(r, e, vf_set1(EXPM1_C3));
    e = vf_fma(r, e, vf_set1(EXPM1_C2));
    e = vf_fma(vf_mul(r, r), e, r);
    e = vf_fma(power, e, vf_sub(power, one));
    e = vf_div(e, vf_add(e, vf_set1(2)));
    return vf_negative(x, e, vf_sub(vf_set1(0), e));
}
#endif

/* softplus x = log(1 + e^x) = max(x, 0) + log(1 + e), e = e^-|x|, and its slope 1 / (1 + e^-x).
 * log(1 + e) = 2 atanh s, s = e / (e + 2), by a polynomial in s^2 <= 1/9.  Worst error 3 ulp plus
 * |x| 2^-28 relative, as in exp_(), whose end they share: below EXP_LOW both are 0.  NaN stays
 * NaN.  The doubles go on. */
#if LOCI_DOUBLE
INLINE vf vf_softplus(vf x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
INLINE vf vf_sigmoid(vf x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
#else
#define ATANH_C1 0x1.5555p-2f
#define ATANH_C2 0x1.99d27cp-3f
#define ATANH_C3 0x1.1eb610p-3f
#define ATANH_C4 0x1.1ef878p-3f
INLINE vf vf_softplus(vf x)
{
    const vf e = vf_exp(vf_minus_abs(x)), s = vf_div(e, vf_add(e, vf_set1(2))), z = vf_mul(s, s),
             twice = vf_add(s, s);
    vf y = vf_fma(z, vf_set1(ATANH_C4), vf_set1(ATANH_C3));
    y = vf_fma(z, y, vf_set1(ATANH_C2));
    y = vf_fma(z, y, vf_set1(ATANH_C1));
    /* The order of the arguments lets NaN through. */
    return vf_add(vf_max(vf_set1(0), x), vf_fma(vf_mul(twice, z), y, twice));
}
INLINE vf vf_sigmoid(vf x)
{
    const vf e = vf_exp(vf_minus_abs(x)), y = vf_div(vf_set1(1), vf_add(e, vf_set1(1)));
    return vf_negative(x, vf_mul(e, y), y);
}
#endif

/* The natural logarithm of m 2^e, m in [0.5, 1), in double and plain operations only, so that its
 * bits do not depend on libm: with m in [0.7, 1.42), log m = 2 atanh((m - 1) / (m + 1)).  Within 2
 * ulp. */
INLINE double log_of(double m, double e)
{
    const bool low = m < 0.70710678118654752;
    m = low ? 2 * m : m;
    e = low ? e - 1 : e;
    /* A series in odd powers of f, smallest first: |f| < 0.172, so f^25 is below 2^-63. */
    double f = (m - 1) / (m + 1), g = f * f, s = 0;
    UNROLL_FOR(int n = 23; n >= 3; n -= 2) s = (s + 1.0 / n) * g;
    return 2 * f + 2 * f * s + e * 0.69314718055994530942;
}
/* x > 0 and finite. */
INLINE double log_(double x)
{
    int e;
    const double m = frexp(x, &e);
    return log_of(m, e);
}
/* n of them in vectors: x is not subnormal, and NaN stays. */
INLINE void log_rows(const real *x, int n, double *to)
{
    for (int i = 0; i < n; i++) {
        const double y = (double)x[i];
        uint64_t bits, exponent, fraction;
        double m, e;
        memcpy(&bits, &y, sizeof bits);
        fraction = (bits & 0xfffffffffffff) | 0x3fe0000000000000;
        exponent = bits >> 52 | 0x4330000000000000; /* 2^52 + exponent */
        memcpy(&m, &fraction, sizeof m);
        memcpy(&e, &exponent, sizeof e);
        to[i] = log_of(m, e - (0x1p52 + 1022)) + (y - y);
    }
}

/* The largest lane, in all of them. */
INLINE vf vf_most(vf x)
{
#if VL > 1
    UNROLL_FOR(int bit = 0; bit < VBITS; bit++) x = vf_max(x, vf_swap(bit, x));
#endif
    return x;
}

/* Transposes VL vectors of VL lanes in VBITS rounds: each round swaps one bit
 * of the number of the vector with the same bit of the number of the lane. */
INLINE void vf_transpose(vf *x)
{
    /* The pairs of vectors whose numbers differ in this bit exchange half of their lanes. */
    UNROLL_FOR(int bit = 0; bit < VBITS; bit++) {
        UNROLL_FOR(int i = 0; i < VL; i++) {
            /* its pair has been done */
            if (i >> bit & 1) continue;
            vf a = x[i], b = x[i + (1 << bit)];
#if VL > 1
            x[i] = vf_pick(bit, a, vf_swap(bit, b));
            x[i + (1 << bit)] = vf_pick(bit, vf_swap(bit, a), b);
#else
            x[i] = a;
            x[i + (1 << bit)] = b;
#endif
        }
    }
}

/* Rows to columns: to[col][row] = from[row][col] for `rows` x `cols`, times by[col] unless `by` is
 * NULL.  Blocks of VL x VL go through registers, the edges one by one.  whole: rows of `from`
 * are whole vectors in memory, so the last columns go through registers, too.  A row whose columns
 * have one number each, or a column whose rows have, stays as it is. */
INLINE void transpose_times(const real *from, ptrdiff_t fs, int rows, int cols, const bool whole,
                            const real *by, real *to, ptrdiff_t ts)
{
    int r = 0;
    (void)whole; /* without vectors */
    if (!by && ((rows == 1 && ts == 1) || (cols == 1 && fs == 1))) {
        memcpy(to, from, sizeof(real) * (size_t)(rows * cols));
        return;
    }
#if VL > 1
    for (; r + VL <= rows; r += VL) {
        int c = 0;
        for (; c + VL <= cols; c += VL) {
            vf x[VL];
            vf_load_columns(from + r * fs + c, fs, x);
            for (int i = 0; i < VL && by; i++) x[i] = vf_mul(x[i], vf_set1(by[c + i]));
            UNROLL_FOR(int i = 0; i < VL; i++) vf_store(to + (c + i) * ts + r, x[i]);
        }
        if (whole && c < cols) {
            vf x[VL];
            vf_load_columns(from + r * fs + c, fs, x);
            UNROLL_FOR(int i = 0; i < VL; i++)
                if (c + i < cols)
                    vf_store(to + (c + i) * ts + r, by ? vf_mul(x[i], vf_set1(by[c + i])) : x[i]);
            continue;
        }
        for (; c < cols; c++)
            for (int i = 0; i < VL; i++) {
                const real x = from[(r + i) * fs + c];
                to[c * ts + r + i] = by ? x * by[c] : x;
            }
    }
#endif
    for (; r < rows; r++)
        for (int c = 0; c < cols; c++)
            to[c * ts + r] = by ? from[r * fs + c] * by[c] : from[r * fs + c];
}
INLINE void transpose(const real *from, ptrdiff_t fs, int rows, int cols, real *to, ptrdiff_t ts)
{
    transpose_times(from, fs, rows, cols, false, NULL, to, ts);
}

#endif
