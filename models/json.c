/* SPDX-License-Identifier: MIT */
/* json.c -- see json.h. */
#include <string.h>

#include "models/json.h"

enum { MAX_DEPTH = 32 };

/* True if more than `most` objects and lists are nested.  The parser recurses once per level,
 * and the file must not decide the depth of its stack: so this is tested before. */
static bool too_deep(const char *s, size_t n, int most)
{
    int depth = 0;
    bool string = false; /* brackets in strings nest nothing */
    for (size_t i = 0; i < n; i++) {
        if (string) {
            if (s[i] == '\\') i++;
            else if (s[i] == '"') string = false;
        } else if (s[i] == '"') {
            string = true;
        } else if (s[i] == '{' || s[i] == '[') {
            if (++depth > most) return true;
        } else if (s[i] == '}' || s[i] == ']') {
            depth--;
        }
    }
    return false;
}

/* Engines disagree about which of two values under one key counts: such a file is rejected.
 *
 * If jansson has no memory for a longer string or number it continues without some of its
 * letters, and may even accept the rest as valid.  So a text is parsed twice, and only
 * equal results are trusted. */
loci_status loci_json_parse(const char *text, size_t n, json_t **root, loci_error *e)
{
    json_error_t why, again;
    IO_CHECK(e, !too_deep(text, n, MAX_DEPTH), "the file is nested more than %d deep", MAX_DEPTH);
    const size_t flags = PLANTED_BUG(2, false) ? 0 : JSON_REJECT_DUPLICATES;
    json_t *twin = json_loadb(text, n, flags, &again);
    *root = json_loadb(text, n, flags, &why);
    const bool agreed = *root && twin ? json_equal(*root, twin) == 1
                                      : !*root && !twin && !strcmp(why.text, again.text);
    json_decref(twin);
    if (agreed && *root) return LOCI_OK;
    json_decref(*root);
    *root = NULL;
    /* no memory for the sentence either */
    if (!agreed || !why.text[0] || json_error_code(&why) == json_error_out_of_memory)
        return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    return loci_io_fail(e, LOCI_BAD_ARG, "neither GGUF nor valid JSON: %.120s (line %d)", why.text,
                        why.line);
}

bool loci_json_given(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return v && !is_a(v, JSON_NULL);
}

/* The comparison with 1e18 also rejects infinity and keeps products of two numbers finite. */
loci_status loci_json_number(const json_t *o, const char *key, bool zero, double *to, loci_error *e)
{
    if (!loci_json_given(o, key)) return LOCI_OK;
    const json_t *v = json_object_get(o, key);
    IO_CHECK(e, is_number(v), "%s must be a number", key);
    const double x = json_number_value(v);
    IO_CHECK(e, (zero ? x >= 0 : x > 0) && x <= 1e18,
             "%s is %g, but must be a number %s and at most 1e18", key, x,
             zero ? "not below 0" : "above 0");
    *to = x;
    return LOCI_OK;
}

/* Compared as JSON's 64 bits before it becomes an int: 2^32 + 1 is not 1. */
loci_status loci_json_whole(const json_t *o, const char *key, int low, int high, int *to,
                            loci_error *e)
{
    if (!loci_json_given(o, key)) return LOCI_OK;
    const json_t *v = json_object_get(o, key);
    IO_CHECK(e,
             is_a(v, JSON_INTEGER) && json_integer_value(v) >= low && json_integer_value(v) <= high,
             "%s must be a whole number from %d to %d", key, low, high);
    *to = (int)json_integer_value(v);
    return LOCI_OK;
}

loci_status loci_json_flag(const json_t *o, const char *key, bool *to, loci_error *e)
{
    if (!loci_json_given(o, key)) return LOCI_OK;
    const json_t *v = json_object_get(o, key);
    IO_CHECK(e, is_flag(v), "%s must be true or false", key);
    *to = is_a(v, JSON_TRUE);
    return LOCI_OK;
}

double loci_json_item(const json_t *list, size_t index)
{
    const json_t *v = json_array_get(list, index);
    return is_number(v) ? json_number_value(v) : -1;
}

loci_status loci_json_any_whole(const json_t *o, const char *const *names, int low, int high,
                                int *to, loci_error *e)
{
    for (; *names; names++)
        if (loci_json_given(o, *names)) return loci_json_whole(o, *names, low, high, to, e);
    return LOCI_OK;
}
