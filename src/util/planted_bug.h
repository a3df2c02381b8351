/* SPDX-License-Identifier: MIT */
/* planted_bug.h -- planted bugs.  tests/fuzz builds each reader again with LOCI_PLANT = 1, 2, ...
 * The rule of that number is then skipped.  A fuzzer that does not notice within its time is not a
 * test. */
#ifndef LOCI_UTIL_PLANTED_BUG_H
#define LOCI_UTIL_PLANTED_BUG_H

#ifndef LOCI_PLANT
#define LOCI_PLANT 0
#endif
#define PLANTED_BUG(number, rule) (LOCI_PLANT == (number) || (rule))

#endif
