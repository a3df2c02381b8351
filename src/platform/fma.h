/* SPDX-License-Identifier: MIT */
/* fma.h -- a * b + c in double, rounded once.  Angles of rotations depend on it.
 *
 * fma() of MinGW-w64 rounds the product to 64 bits before it adds, so that the error of a product
 * comes out as 0.  There, unless the compiler may use the processor's instruction, the sum is
 * computed in integers of 128 bits. */
#ifndef LOCI_PLATFORM_FMA_H
#define LOCI_PLATFORM_FMA_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __SIZEOF_INT128__

__extension__ typedef unsigned __int128 fma_bits;

/* x is mantissa * 2^exponent, and the mantissa has 53 bits. */
struct fma_number {
    uint64_t mantissa;
    int exponent;
};
static inline struct fma_number fma_number(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    struct fma_number n = { bits & 0xfffffffffffff, (int)(bits >> 52 & 0x7ff) - 1075 };
    if (n.exponent > -1075) {
        n.mantissa |= (uint64_t)1 << 52;
        return n;
    }
    for (n.exponent = -1074; n.mantissa >> 52 == 0; n.exponent--) n.mantissa *= 2;
    return n;
}
/* x / 2^by; the last bit is set if others are lost. */
static inline fma_bits fma_shift(fma_bits x, int by)
{
    if (by >= 128) return x != 0;
    return x >> by | (by > 0 && x << (128 - by) != 0);
}
/* In integers of 128 bits.  The product has 106 bits and the addend 53.  The larger one gets bit
 * 124 or 125 as its highest; the other is shifted to the same exponent, and its last bit is set if
 * bits are lost (a sticky bit). */
static inline double fma_by_integers(double a, double b, double c)
{
    if (a - a != 0 || b - b != 0 || a == 0 || b == 0) return a * b + c;
    if (c - c != 0) return c;
    const struct fma_number x = fma_number(a), y = fma_number(b);
    fma_bits sum = (fma_bits)x.mantissa * y.mantissa << 20, other = 0;
    int exponent = x.exponent + y.exponent - 20;
    bool minus = signbit(a) != signbit(b);
    if (c != 0) {
        const struct fma_number z = fma_number(c);
        const int apart = z.exponent - exponent;
        other = z.mantissa;
        if (apart > 73) {
            other <<= 73;
            sum = fma_shift(sum, apart - 73);
            exponent = z.exponent - 73;
        } else if (apart >= 0) {
            other <<= apart;
        } else {
            other = fma_shift(other, -apart);
        }
        if (minus == (signbit(c) != 0)) {
            sum += other;
        } else if (other > sum) {
            sum = other - sum;
            minus = !minus;
        } else {
            sum -= other;
        }
        if (sum == 0) return 0;
    }
    const uint64_t high = (uint64_t)(sum >> 64);
    const int top = high ? 127 - __builtin_clzll(high) : 63 - __builtin_clzll((uint64_t)sum);
    /* numbers below 2^-1022 have fewer bits */
    const int drop = exponent + top < -1022 ? -1074 - exponent : top - 52;
    uint64_t kept = drop < 128 && drop > 0 ? (uint64_t)(sum >> drop) : 0;
    if (drop <= 0) {
        kept = (uint64_t)sum;
    } else {
        const fma_bits half = drop > 128 ? 0 : (fma_bits)1 << (drop - 1),
                       rest = drop < 128 ? sum & (2 * half - 1) : sum;
        if (half && (rest > half || (rest == half && kept % 2))) kept++;
    }
    const double size = ldexp((double)kept, drop > 0 ? exponent + drop : exponent);
    return minus ? -size : size;
}

#endif

#if defined _WIN32 && !defined __FMA__ && !defined __aarch64__
static inline double exact_fma(double a, double b, double c) { return fma_by_integers(a, b, c); }
#else
static inline double exact_fma(double a, double b, double c) { return fma(a, b, c); }
#endif

#endif
