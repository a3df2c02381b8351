/* SPDX-License-Identifier: MIT */
/* json.h -- settings in JSON: values of an object, each of the required kind.
 *
 * A key that is absent or null does not change *to, so callers store the default there first. */
#ifndef LOCI_MODELS_JSON_H
#define LOCI_MODELS_JSON_H

#include <jansson.h>

#include "models/io.h"

/* True if the value exists and has this kind; for numbers, either of JSON's kinds.  jansson's
 * own macros test for NULL a second time wherever they are used. */
static inline bool is_a(const json_t *v, json_type kind) { return v && json_typeof(v) == kind; }
static inline bool is_number(const json_t *v)
{
    return is_a(v, JSON_INTEGER) || is_a(v, JSON_REAL);
}
static inline bool is_flag(const json_t *v) { return is_a(v, JSON_TRUE) || is_a(v, JSON_FALSE); }

/* The keys of an object one by one; none if it is not an object:
 *
 *     for (struct member m = { .of = object }; next_member(&m);)      m.key, m.value */
struct member {
    const json_t *of;
    void *at;
    const char *key;
    const json_t *value;
};
static inline bool next_member(struct member *m)
{
    /* jansson does not accept const here, and changes nothing */
    json_t *of = (json_t *)m->of;
    m->at = m->at ? json_object_iter_next(of, m->at) : json_object_iter(of);
    m->key = json_object_iter_key(m->at);
    m->value = json_object_iter_value(m->at);
    return m->at;
}

/* The object or list in `text`; the caller releases it. */
loci_status loci_json_parse(const char *text, size_t bytes, json_t **root, loci_error *);

/* True if the key exists with a value other than null. */
bool loci_json_given(const json_t *, const char *key);

/* A number above 0 and at most 1e18; `zero` allows 0, too. */
loci_status loci_json_number(const json_t *, const char *key, bool zero, double *to, loci_error *);
loci_status loci_json_whole(const json_t *, const char *key, int low, int high, int *to,
                            loci_error *);
loci_status loci_json_flag(const json_t *, const char *key, bool *to, loci_error *);

/* A number of a list; -1, which no list here may contain, if the item is not a number. */
double loci_json_item(const json_t *list, size_t index);

/* A whole number under the first existing one of several names; NULL ends the names. */
loci_status loci_json_any_whole(const json_t *, const char *const *names, int low, int high,
                                int *to, loci_error *);

#endif
