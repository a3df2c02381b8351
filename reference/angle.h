/* SPDX-License-Identifier: MIT */
/* angle.h -- angles and frequencies with 113 bits where the compiler has them, so that those of
 * positions up to 2^40 are correct to more than a double; otherwise in long double. */
#ifndef LOCI_REFERENCE_ANGLE_H
#define LOCI_REFERENCE_ANGLE_H

#include <float.h>
#include <math.h>

#if LDBL_MANT_DIG == 64 && defined __SIZEOF_FLOAT128__
__extension__ typedef __float128 precise;

/* atan(1 / n) or, with sign 1, atanh(1 / n). */
static inline precise angle_arc(int n, int sign)
{
    precise power = (precise)1 / n, sum = 0;
    for (int k = 1; k < 180 && power != 0; k += 2, power = sign * power / (n * n)) sum += power / k;
    return sum;
}
/* pi / 2 by Machin's formula, and ln 2 = 2 atanh(1/3). */
static inline precise angle_right(void)
{
    static _Thread_local precise right;
    if (right == 0) right = 8 * angle_arc(5, -1) - 2 * angle_arc(239, -1);
    return right;
}
static inline precise angle_ln2(void)
{
    static _Thread_local precise ln2;
    if (ln2 == 0) ln2 = 2 * angle_arc(3, 1);
    return ln2;
}

/* phi minus whole quarters of a turn, whose number goes to *quarters. */
static inline long double angle_reduce(precise phi, int *quarters)
{
    *quarters = 0;
    if (!isfinite((long double)phi)) return NAN;
    const long double by_right = 0.636619772367581343075535053490057448L; /* 2 / pi */
    const long double whole = rintl((long double)phi * by_right);
    *quarters = fabsl(whole) < 0x1p62L ? (int)((long long)whole & 3) : (int)fmodl(whole, 4) & 3;
    return whole == 0 ? (long double)phi : (long double)(phi - (precise)whole * angle_right());
}
/* The sine of r and n quarters. */
static inline double angle_rotated(long double r, int n)
{
    const long double y = n & 1 ? cosl(r) : sinl(r);
    return (double)(n & 2 ? -y : y);
}
static inline void angle_turn(precise phi, double *cosine, double *sine)
{
    int n;
    const long double r = angle_reduce(phi, &n);
    *cosine = angle_rotated(r, n + 1);
    *sine = angle_rotated(r, n);
}
static inline double angle_cos(precise phi)
{
    int n;
    const long double r = angle_reduce(phi, &n);
    return angle_rotated(r, n + 1);
}
static inline double angle_sin(precise phi)
{
    int n;
    const long double r = angle_reduce(phi, &n);
    return angle_rotated(r, n);
}

/* e^x: the whole powers of 2 are split off, the rest is halved 8 times and summed as a series. */
static inline precise angle_exp(precise x)
{
    const int twos = (int)lrintl((long double)(x / angle_ln2()));
    const precise r = (x - twos * angle_ln2()) / 256;
    precise y = 1;
    for (int k = 18; k > 0; k--) y = 1 + r * y / k;
    for (int i = 0; i < 8; i++) y *= y;
    return y * (precise)ldexpl(1, twos);
}
/* One step of Newton's method doubles the 64 correct bits. */
static inline precise angle_log(precise x)
{
    const precise y = (precise)logl((long double)x);
    return y + (x * angle_exp(-y) - 1);
}
static inline precise angle_pow(precise base, precise exponent)
{
    const long double about = powl((long double)base, (long double)exponent);
    if (!(base > 0) || !isfinite(about) || about == 0) return about;
    return angle_exp(exponent * angle_log(base));
}

#else
typedef long double precise;
static inline void angle_turn(precise phi, double *cosine, double *sine)
{
    *cosine = (double)cosl(phi);
    *sine = (double)sinl(phi);
}
static inline double angle_cos(precise phi) { return (double)cosl(phi); }
static inline double angle_sin(precise phi) { return (double)sinl(phi); }
static inline precise angle_exp(precise x) { return expl(x); }
static inline precise angle_log(precise x) { return logl(x); }
static inline precise angle_pow(precise base, precise exponent) { return powl(base, exponent); }
#endif

/* base^exponent, cached, as rows and heads ask for the same few again and again, and no
 * other function here is slower. */
static inline precise power_of(precise base, precise exponent)
{
    enum { SAVED = 509 };
    static _Thread_local struct {
        precise base, exponent, power;
    } saved[SAVED];
    const int slot = (int)fabsl(fmodl((long double)exponent * 123457, SAVED));
    if (saved[slot].base != base || saved[slot].exponent != exponent) {
        saved[slot].base = base;
        saved[slot].exponent = exponent;
        saved[slot].power = angle_pow(base, exponent);
    }
    return saved[slot].power;
}

#endif
