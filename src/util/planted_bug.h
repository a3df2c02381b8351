/* SPDX-License-Identifier: MIT */
/* mutation.h -- mistakes planted on purpose.  tests/fuzz builds a reader once more for each
 * LOCI_PLANT = 1, 2, ..., in which the rule of that number is forgotten; a fuzzer that does not
 * notice within its time is no test. */
#ifndef LOCI_UTIL_PLANTED_BUG_H
#define LOCI_UTIL_PLANTED_BUG_H

#ifndef LOCI_PLANT
#define LOCI_PLANT 0
#endif
#define PLANTED_BUG(number, rule) (LOCI_PLANT == (number) || (rule))

#endif
