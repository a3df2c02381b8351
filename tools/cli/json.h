/* SPDX-License-Identifier: MIT */
/* json.h -- printing JSON for scripts: one object per line, in ASCII, so that no text in it steers
 * a terminal. */
#ifndef LOCI_CLI_JSON_H
#define LOCI_CLI_JSON_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cli/cli.h"
#include "util/printable.h"

static inline json_t *json_number_or_null(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* Text from outside: as it is where it is UTF-8, which JSON must be, and else made plain. */
static inline json_t *json_text(const char *text)
{
    char *copy = is_utf8(text) ? NULL : alloc(strlen(text) + 1, 1);
    if (copy) make_plain(strcpy(copy, text));
    json_t *j = json_string(copy ? copy : text);
    free(copy);
    return j;
}

/* Prints and releases.  DEL is the one control character that JSON leaves as it is. */
static inline void json_print(json_t *j)
{
    char *text = json_dumps(j, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(10));
    for (const char *c = text ? text : ""; *c; c++) {
        if (*c == 0x7f) fputs("\\u007f", stdout);
        else putchar(*c);
    }
    putchar('\n');
    fflush(stdout);
    free(text);
    json_decref(j);
}

#endif
