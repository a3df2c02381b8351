/* SPDX-License-Identifier: MIT */
/* json.h -- printing JSON for scripts: one object per line. */
#ifndef LOCI_CLI_JSON_H
#define LOCI_CLI_JSON_H

#include <math.h>
#include <stdio.h>

#include <jansson.h>

static inline json_t *json_number_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

/* Prints and releases. */
static inline void json_print(json_t *j)
{
    json_dumpf(j, stdout, JSON_COMPACT | JSON_REAL_PRECISION(10));
    putchar('\n');
    fflush(stdout);
    json_decref(j);
}

#endif
