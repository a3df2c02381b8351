/* SPDX-License-Identifier: MIT */
/* json.h -- settings in JSON: an object's values, each of the kind that it has to be.
 *
 * A key that is absent or null leaves *to as it was, so callers put the usual value there first. */
#ifndef LOCI_IO_JSON_H
#define LOCI_IO_JSON_H

#include <jansson.h>

#include "io/io.h"

/* The object or list that `text` holds; the caller releases it. */
loci_status loci_json_parse(const char *text, size_t bytes, json_t **root, loci_error *);

/* Whether the key is there with a value other than null. */
bool loci_json_given(const json_t *, const char *key);

/* A number above 0 and at most 1e18; `zero` allows 0, too. */
loci_status loci_json_number(const json_t *, const char *key, bool zero, double *to, loci_error *);
loci_status loci_json_whole(const json_t *, const char *key, int low, int high, int *to,
                            loci_error *);
loci_status loci_json_flag(const json_t *, const char *key, bool *to, loci_error *);

/* A whole number under the first of several names that is there; NULL ends the names. */
loci_status loci_json_any_whole(const json_t *, const char *const *names, int low, int high,
                                int *to, loci_error *);

#endif
