/* SPDX-License-Identifier: MIT */
/* error.h -- how every function reports an error: a status and one sentence with the value, the
 * rule and a hint. */
#ifndef LOCI_UTIL_ERROR_H
#define LOCI_UTIL_ERROR_H

#include "loci/loci.h"

/* Writes the sentence to `e` unless it is NULL, and returns the status. */
loci_status loci_fail(loci_error *e, loci_status status, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 3, 4)))
#endif
    ;
/* `CHECK(e, d > n, LOCI_BAD_ARG, "t5: ...", ...)` returns from the function if the rule does not
 * hold.  TRY returns the status of a failed callee, which has already written its sentence. */
#define CHECK(e, rule, status, ...) \
    do { \
        if (!(rule)) return loci_fail(e, status, __VA_ARGS__); \
    } while (0)
#define TRY(x) \
    do { \
        const loci_status status_ = (x); \
        if (status_) return status_; \
    } while (0)

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

#endif
