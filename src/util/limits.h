/* SPDX-License-Identifier: MIT */
/* limits.h -- the largest threads, positions, distances and sizes that a call may have. */
#ifndef LOCI_UTIL_LIMITS_H
#define LOCI_UTIL_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#define FAR ((int64_t)1 << 40) /* larger positions are refused: differences stay exact */

enum { MAX_THREADS = 256 }; /* of a host; each has its own memory in a workspace */

/* Limits of a call.  With fewer numbers, sizes and indices computed from them cannot overflow.
 * Also the distances that tables cover.  Both are smaller if a pointer has 32 bits. */
#if PTRDIFF_MAX > INT32_MAX
#define MOST_NUMBERS ((ptrdiff_t)1 << 48)
#define MOST_DISTANCE FAR
#define MOST_DISTANCE_TEXT "2^40"
#else
#define MOST_NUMBERS ((ptrdiff_t)1 << 25)
#define MOST_DISTANCE ((ptrdiff_t)1 << 30)
#define MOST_DISTANCE_TEXT "2^30"
#endif

#endif
