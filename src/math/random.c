/* SPDX-License-Identifier: MIT */
/* random.c -- see random.h. */
#include "math/random.h"

#include <math.h>

/* The mixing steps of splitmix64 (Steele, Lea and Flood, 2014): every input bit
 * flips about half of the output bits, and no two inputs share an output. */
uint64_t loci_scramble(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The constant is 2^64 over the golden ratio, the step of splitmix64.  Adding a half avoids 0,
 * whose logarithm loci_normal() would compute.  The largest value would round to 1. */
double loci_uniform(uint64_t stream, uint64_t i)
{
    const uint64_t bits = loci_scramble(stream + (i + 1) * 0x9e3779b97f4a7c15u) >> 11;
    const double u = ((double)bits + 0.5) * 0x1p-53;
    return u < 1 ? u : 1 - 0x1p-53;
}

/* Box and Muller, only the cosine.  So number i does not depend on another number. */
double loci_normal(uint64_t stream, uint64_t i)
{
    const double two_pi = 6.283185307179586;
    return sqrt(-2 * log(loci_uniform(stream, 2 * i)))
         * cos(two_pi * loci_uniform(stream, 2 * i + 1));
}
