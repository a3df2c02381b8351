/* SPDX-License-Identifier: MIT */
/* random.c -- uniform numbers are within (0, 1), including the smallest and the largest, and normal
 * ones have the right mean and variance. */
#include "math/random.h"

#include <math.h>

#include "harness.h"

int main(void)
{
    /* The streams whose number 0 has no bit set, and all bits set, found by inverting the
     * mixing. */
    const uint64_t none = 0u - 0x9e3779b97f4a7c15u, all = 0x31628af67b2131abu;
    CHECK_THAT(loci_scramble(none + 0x9e3779b97f4a7c15u) == 0, "a stream that begins with no bit");
    CHECK_THAT(loci_scramble(all + 0x9e3779b97f4a7c15u) == UINT64_MAX, "and one with all");
    CHECK_CLOSE(loci_uniform(none, 0), 0x1p-54, 0, "the smallest number");
    CHECK_CLOSE(loci_uniform(all, 0), 1 - 0x1p-53, 0, "the largest number");
    CHECK_THAT(isfinite(loci_normal(none, 0)) && isfinite(loci_normal(all, 0)), "normal ones");

    double sum = 0, squares = 0;
    enum { MANY = 100000 };
    for (uint64_t i = 0; i < MANY; i++) {
        const double x = loci_normal(7, i);
        sum += x;
        squares += x * x;
    }
    CHECK_CLOSE(sum / MANY, 0, 5 / sqrt(MANY), "mean of normal numbers");
    CHECK_CLOSE(squares / MANY, 1, 5 * sqrt(2.0 / MANY), "variance of normal numbers");
    return harness_end();
}
