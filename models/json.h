/* SPDX-License-Identifier: MIT */
/* json.h -- settings in JSON: an object's values, each of the kind that it has to be.
 *
 * A key that is absent or null leaves *to as it was, so callers put the usual value there first. */
#ifndef LOCI_MODELS_JSON_H
#define LOCI_MODELS_JSON_H

#include <jansson.h>

#include "models/io.h"

/* Whether there is a value, of this kind; of its kinds of numbers each will do.  jansson's own
 * macros look for NULL once more wherever they stand. */
static inline bool is_a(const json_t *v, json_type kind) { return v && json_typeof(v) == kind; }
static inline bool is_number(const json_t *v)
{
    return is_a(v, JSON_INTEGER) || is_a(v, JSON_REAL);
}
static inline bool is_flag(const json_t *v) { return is_a(v, JSON_TRUE) || is_a(v, JSON_FALSE); }

/* The keys of an object one by one; of what is no object, none:
 *
 *     for (struct member m = { .of = object }; next_member(&m);)      m.key, m.value */
struct member { const json_t *of; void *at; const char *key; const json_t *value; };
static inline bool next_member(struct member *m)
{
    json_t *of = (json_t *)m->of;        /* jansson takes no const here, and changes nothing */
    m->at = m->at ? json_object_iter_next(of, m->at) : json_object_iter(of);
    m->key = json_object_iter_key(m->at);
    m->value = json_object_iter_value(m->at);
    return m->at;
}

/* The object or list that `text` holds; the caller releases it. */
loci_status loci_json_parse(const char *text, size_t bytes, json_t **root, loci_error *);

/* Whether the key is there with a value other than null. */
bool loci_json_given(const json_t *, const char *key);

/* A number above 0 and at most 1e18; `zero` allows 0, too. */
loci_status loci_json_number(const json_t *, const char *key, bool zero, double *to, loci_error *);
loci_status loci_json_whole(const json_t *, const char *key, int low, int high, int *to,
                            loci_error *);
loci_status loci_json_flag(const json_t *, const char *key, bool *to, loci_error *);

/* A number of a list; -1, which no list here may hold, for what is none. */
double loci_json_item(const json_t *list, size_t index);

/* A whole number under the first of several names that is there; NULL ends the names. */
loci_status loci_json_any_whole(const json_t *, const char *const *names, int low, int high,
                                int *to, loci_error *);

#endif
