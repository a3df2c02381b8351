/* SPDX-License-Identifier: MIT */
/* harness.h -- counted checks, and the one way to end a test.
 *
 *     CHECK_THAT(plan, "%s: %s", encoding, e.text);
 *     CHECK_CLOSE(sum, 1, 1e-12, "row %d", row);
 *     CHECK_SAYS(loci_plan_create(&plan, &d, &e), LOCI_BAD_ARG, &e, "heads 0 must be");
 *     return harness_end();
 *
 * A check that fails prints its location, its context and its own words.  After the first 20
 * failures they are only counted.  Threads may check at the same time.  Counts of a child process
 * are lost. */
#ifndef LOCI_TESTS_SUPPORT_HARNESS_H
#define LOCI_TESTS_SUPPORT_HARNESS_H

#include <stdbool.h>

#include "loci/loci.h"

#if defined __GNUC__
#define HARNESS_PRINTS(string, first) __attribute__((format(printf, string, first)))
#else
#define HARNESS_PRINTS(string, first)
#endif

/* 2^n as a size, or the largest power of two that this machine's sizes have. */
#define POWER(n) \
    ((ptrdiff_t)1 << ((n) < 8 * (int)sizeof(ptrdiff_t) - 2 ? (n) : 8 * (int)sizeof(ptrdiff_t) - 2))

/* All are true when the check passes.  The context, a format and its arguments, is evaluated after
 * the condition, and by CHECK_THAT only if that is false. */
#define CHECK_THAT(holds, ...) \
    harness_that((holds) || harness_fail(__FILE__, __LINE__, #holds, __VA_ARGS__))

/* |got - want| <= bound.  Infinities are close to themselves, NaN to nothing. */
#define CHECK_CLOSE(got, want, bound, ...) \
    harness_close(__FILE__, __LINE__, #got, got, want, bound, __VA_ARGS__)

/* A call that ends with this status and one line in *error, which contains the text.  The context
 * may follow the text. */
#define CHECK_SAYS(call, status, error, ...) \
    harness_says(__FILE__, __LINE__, #call, call, status, error, \
                 (const char *const[]){ __VA_ARGS__, "" })

/* A failure before the check itself. */
#define CHECK_FAILED(...) harness_fail(__FILE__, __LINE__, "", __VA_ARGS__)

bool harness_pass(void);
bool harness_that(bool holds); /* a failure is counted already */
bool harness_fail(const char *file, int line, const char *words, const char *format, ...)
    HARNESS_PRINTS(4, 5);
bool harness_close(const char *file, int line, const char *words, double got, double want,
                   double bound, const char *format, ...) HARNESS_PRINTS(7, 8);
bool harness_says(const char *file, int line, const char *words, loci_status got, loci_status want,
                  const loci_error *error, const char *const *says);

/* Checks so far, passed or failed. */
int harness_checks(void);

/* Prints "N passed, N failed".  Returns the exit code of main(). */
int harness_end(void);

#endif
