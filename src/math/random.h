/* SPDX-License-Identifier: MIT */
/* random.h -- random numbers by counting: number i of a stream depends only on the stream and i. */
#ifndef LOCI_MATH_RANDOM_H
#define LOCI_MATH_RANDOM_H

#include <stdint.h>

uint64_t loci_scramble(uint64_t x);               /* for the seed of a stream */
double loci_uniform(uint64_t stream, uint64_t i); /* in (0, 1) */
double loci_normal(uint64_t stream, uint64_t i);  /* N(0, 1) */

#endif
