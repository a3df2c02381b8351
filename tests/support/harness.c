/* SPDX-License-Identifier: MIT */
/* harness.c -- see harness.h. */
#include "harness.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN = 20, TEXT = 6000 };

static atomic_int passed, failed;

bool harness_pass(void)
{
    atomic_fetch_add(&passed, 1);
    return true;
}

bool harness_that(bool holds) { return holds && harness_pass(); }

/* Prints in one call, so that lines of threads do not mix, and at once, since a crash may
 * follow. */
static bool fail(const char *file, int line, const char *context, const char *words)
{
    if (atomic_fetch_add(&failed, 1) >= SHOWN) return false;
    const char *name = strrchr(file, '/');
    printf("%s:%d: %s\n%s%s%s", name ? name + 1 : file, line, context, *words ? "    " : "", words,
           *words ? "\n" : "");
    fflush(stdout);
    return false;
}

bool harness_fail(const char *file, int line, const char *words, const char *format, ...)
{
    char context[TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    return fail(file, line, context, words);
}

bool harness_close(const char *file, int line, const char *words, double got, double want,
                   double bound, const char *format, ...)
{
    const double off = fabs(got - want);
    if (got == want || off <= bound) return harness_pass();
    char context[TEXT], more[TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    snprintf(more, sizeof more, "%s is %.17g, wanted %.17g; off by %.3g, where %.3g is allowed",
             words, got, want, off, bound);
    return fail(file, line, context, more);
}

bool harness_says(const char *file, int line, const char *words, loci_status got, loci_status want,
                  const loci_error *error, const char *const *says)
{
    const bool sentence = error->text[0] && !strchr(error->text, '\n');
    if (got == want && sentence && strstr(error->text, says[0])) return harness_pass();
    char context[TEXT], more[TEXT];
    snprintf(context, sizeof context, "%s%s%s", says[1], says[1][0] ? ": " : "", words);
    snprintf(more, sizeof more, "status %d, wanted %d; it says '%s', wanted '%s'", (int)got,
             (int)want, got ? error->text : "", says[0]);
    return fail(file, line, context, more);
}

int harness_checks(void) { return atomic_load(&passed) + atomic_load(&failed); }

int harness_end(void)
{
    const int bad = atomic_load(&failed);
    if (bad > SHOWN) printf("%d more checks failed\n", bad - SHOWN);
    printf("%d passed, %d failed\n", atomic_load(&passed), bad);
    return bad != 0;
}
