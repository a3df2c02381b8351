/* SPDX-License-Identifier: MIT */
/* harness.h -- checks that are counted, and the one way to end a test.
 *
 *     CHECK_THAT(plan, "%s: %s", encoding, e.text);
 *     CHECK_CLOSE(sum, 1, 1e-12, "row %d", row);
 *     CHECK_SAYS(loci_plan_create(&plan, &d, &e), LOCI_BAD_ARG, &e, "heads 0 must be");
 *     return harness_end();
 *
 * A check that fails prints where it stands, its context and its own words; after the first 20 they
 * are only counted.  Threads may check at the same time; what a child process counts is lost. */
#ifndef LOCI_TESTS_SUPPORT_HARNESS_H
#define LOCI_TESTS_SUPPORT_HARNESS_H

#include <stdbool.h>

#include "loci/loci.h"

#if defined __GNUC__
#define HARNESS_PRINTS(string, first) __attribute__((format(printf, string, first)))
#else
#define HARNESS_PRINTS(string, first)
#endif

/* All are true when the check passes.  The context, a format and its arguments, is read after the
 * condition, and by CHECK_THAT only when that is false. */
#define CHECK_THAT(holds, ...) \
    harness_that((holds) || harness_fail(__FILE__, __LINE__, #holds, __VA_ARGS__))

/* |got - want| <= bound.  Infinities are close to themselves, NaN to nothing. */
#define CHECK_CLOSE(got, want, bound, ...) \
    harness_close(__FILE__, __LINE__, #got, got, want, bound, __VA_ARGS__)

/* A call that ends with this status and one line in *error, which contains the text.  The text may
 * be followed by one more: the context. */
#define CHECK_SAYS(call, status, error, ...) \
    harness_says(__FILE__, __LINE__, #call, call, status, error, \
                 (const char *const[]){ __VA_ARGS__, "" })

/* What could not even be tried. */
#define CHECK_FAILED(...) harness_fail(__FILE__, __LINE__, "", __VA_ARGS__)

bool harness_pass(void);
bool harness_that(bool holds);           /* a failure is counted already */
bool harness_fail(const char *file, int line, const char *words, const char *format, ...)
    HARNESS_PRINTS(4, 5);
bool harness_close(const char *file, int line, const char *words, double got, double want,
                   double bound, const char *format, ...) HARNESS_PRINTS(7, 8);
bool harness_says(const char *file, int line, const char *words, loci_status got, loci_status want,
                  const loci_error *error, const char *const *says);

/* Checks so far, whatever came of them. */
int harness_checks(void);

/* Prints "N passed, N failed"; what main() returns. */
int harness_end(void);

#endif
