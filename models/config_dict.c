/* SPDX-License-Identifier: MIT */
/* config_dict.c -- the dictionary rope_parameters, or rope_scaling of older files: which keys
 * each rope_type has, and which of several dictionaries is a layer's.
 *
 * A key that is not in the table is rejected: its effect would silently be missing. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/config.h"

/* ---- Keys ------------------------------------------------------------------------------------ */

/* Two words for one type: mrope is recognised by its sections, and su is
 * Phi-3's word for longrope. */
static const struct {
    const char *name;
    enum type type;
    const char *scaling;
} types[] = {
    { "default", DEFAULT, NULL },         { "mrope", DEFAULT, NULL },
    { "linear", LINEAR, "linear" },       { "dynamic", DYNAMIC, "dynamic" },
    { "ntk", NTK, "ntk_fixed" },          { "yarn", YARN, "yarn" },
    { "longrope", LONGROPE, "longrope" }, { "su", LONGROPE, "longrope" },
    { "llama3", LLAMA3, "llama3" },       { "proportional", PROPORTIONAL, "proportional" },
};
enum { TYPES = sizeof types / sizeof *types };

/* `in` is the set of types that read a key.  A key with an empty set is known but decides
 * nothing here, or is read with the layer (llama_4_scaling_beta).  A key of another type than
 * the dictionary's is a leftover in many files: classes ignore it, and so does this reader. */
#define IN(type) (1 << (type))
static const struct {
    const char *name;
    enum { WORD, NUMBER, OR_ZERO, FLAG, LIST } kind;
    int in;
} keys[KEYS] = {
    [K_TYPE] = { "rope_type", WORD, ~0 },
    [K_OLD_TYPE] = { "type", WORD, ~0 },
    [K_THETA] = { "rope_theta", NUMBER, ~0 },
    [K_PARTIAL] = { "partial_rotary_factor", NUMBER, ~0 },
    [K_ORIGINAL] = { "original_max_position_embeddings", NUMBER,
                     IN(DYNAMIC) | IN(YARN) | IN(LONGROPE) | IN(LLAMA3) },
    [K_MAX] = { "max_position_embeddings", NUMBER, 0 },
    [K_FACTOR] = { "factor", NUMBER,
                   IN(LINEAR) | IN(DYNAMIC) | IN(NTK) | IN(YARN) | IN(LONGROPE) | IN(LLAMA3)
                       | IN(PROPORTIONAL) },
    [K_BETA_FAST] = { "beta_fast", OR_ZERO, IN(YARN) },
    [K_BETA_SLOW] = { "beta_slow", OR_ZERO, IN(YARN) },
    [K_TRUNCATE] = { "truncate", FLAG, IN(YARN) },
    [K_EXTRAPOLATION] = { "extrapolation_factor", NUMBER, IN(YARN) },
    [K_MSCALE] = { "mscale", OR_ZERO, IN(YARN) },
    [K_MSCALE_ALL] = { "mscale_all_dim", OR_ZERO, IN(YARN) },
    [K_LOW] = { "low_freq_factor", NUMBER, IN(LLAMA3) },
    [K_HIGH] = { "high_freq_factor", NUMBER, IN(LLAMA3) },
    [K_MIXED_B] = { "mixed_b", OR_ZERO, IN(NTK) },
    [K_ALPHA] = { "alpha", NUMBER, IN(DYNAMIC) },
    [K_ATTENTION] = { "attention_factor", NUMBER, IN(YARN) | IN(LONGROPE) },
    [K_SHORT] = { "short_factor", LIST, IN(LONGROPE) },
    [K_LONG] = { "long_factor", LIST, IN(LONGROPE) },
    [K_SHORT_MSCALE] = { "short_mscale", NUMBER, IN(LONGROPE) },
    [K_LONG_MSCALE] = { "long_mscale", NUMBER, IN(LONGROPE) },
    [K_SECTION] = { "mrope_section", LIST, IN(DEFAULT) },
    [K_SPREAD] = { "mrope_interleaved", FLAG, IN(DEFAULT) },
    [K_SPREAD_TOO] = { "interleaved", FLAG, 0 },
    [K_FINETUNED] = { "finetuned", FLAG, 0 },
    [K_BETA] = { "llama_4_scaling_beta", NUMBER, 0 },
};

/* ---- Reading a dictionary -------------------------------------------------------------------- */

/* Adds " word" to a list for an error sentence; the capacity suffices for all words. */
static void add_word(char *list, size_t capacity, const char *word)
{
    const size_t n = strlen(list);
    snprintf(list + n, capacity - n, " %s", word);
}

static loci_status find_type(struct dict *d, loci_error *e)
{
    char known[128] = "";
    const char *key = loci_json_given(d->json, "rope_type") ? "rope_type" : "type";
    const json_t *v = json_object_get(d->json, key);
    const char *name = loci_json_given(d->json, key) ? json_string_value(v) : "default";
    IO_CHECK(e, name, "rope_type in %s must be a string", d->where);
    for (int i = 0; i < TYPES; i++)
        if (!strcmp(types[i].name, name)) {
            d->type = types[i].type;
            d->scaling = types[i].scaling;
            /* early files of Phi-3 say yarn for lists of longrope */
            if (d->type == YARN && json_object_get(d->json, "short_factor")) {
                d->type = LONGROPE;
                d->scaling = "longrope";
            }
            IO_CHECK(e, v || !json_object_get(d->json, "factor"),
                     "%s has a factor, but no rope_type, which is required with it", d->where);
            return LOCI_OK;
        }
    for (int i = 0; i < TYPES; i++) add_word(known, sizeof known, types[i].name);
    return loci_io_fail(e, LOCI_BAD_ARG, "unknown rope_type '%.32s' in %s; known:%s", name,
                        d->where, known);
}

/* The list is of the keys that this type reads: most likely the key belongs to another one. */
static loci_status unknown_key(const struct dict *d, const char *name, loci_error *e)
{
    char known[192] = "";
    for (int i = 0; i < KEYS; i++)
        if (keys[i].in & IN(d->type) && i != K_OLD_TYPE)
            add_word(known, sizeof known, keys[i].name);
    return loci_io_fail(e, LOCI_BAD_ARG, "%.20s has the unknown key '%.32s'; known keys:%s",
                        d->where, name, known);
}

/* Reads d->json.  Numbers are checked even if the type does not read them: a negative factor is
 * always a mistake.  Lists are read later, when their length is known. */
static loci_status read_dict(struct dict *d, loci_error *e)
{
    for (int i = 0; i < KEYS; i++) d->value[i] = NAN;
    if (!d->json) return LOCI_OK;
    loci_status s = find_type(d, e);
    if (s) return s;
    for (struct member m = { .of = d->json }; next_member(&m);) {
        const char *name = m.key;
        int k = 0;
        bool on = false;
        while (k < KEYS && strcmp(keys[k].name, name)) k++;
        if (k == KEYS && PLANTED_BUG(1, false)) continue;
        if (k == KEYS) return unknown_key(d, name, e);
        if (is_a(m.value, JSON_NULL)) continue; /* as if it were absent */
        switch (keys[k].kind) {
        case NUMBER:
        case OR_ZERO:
            s = loci_json_number(d->json, name, keys[k].kind == OR_ZERO, &d->value[k], e);
            break;
        case FLAG:
            s = loci_json_flag(d->json, name, &on, e);
            d->value[k] = on;
            break;
        case LIST:
            IO_CHECK(e, is_a(m.value, JSON_ARRAY), "%s must be a list of numbers", name);
            break;
        case WORD:
            IO_CHECK(e, is_a(m.value, JSON_STRING), "%s must be a string", name);
            break;
        }
        if (s) return s;
    }
    return LOCI_OK;
}

bool loci_dict_heeds(const struct dict *d, enum key k)
{
    return !isnan(d->value[k]) && keys[k].in & IN(d->type);
}

loci_status loci_dict_list(const struct dict *d, enum key k, int count, double *to, loci_error *e)
{
    const json_t *v = json_object_get(d->json, keys[k].name);
    IO_CHECK(e, loci_json_given(d->json, keys[k].name), "%s is missing in %s", keys[k].name,
             d->where);
    IO_CHECK(e, json_array_size(v) == (size_t)count, "%s has %zu numbers, but %s needs %d",
             keys[k].name, json_array_size(v),
             k == K_SECTION ? "a triple of time, height and width" : "one per pair of channels",
             count);
    for (int i = 0; i < count; i++) {
        to[i] = loci_json_item(v, (size_t)i);
        IO_CHECK(e, to[i] > 0 || (k == K_SECTION && to[i] == 0), "number %d of %s must be above 0",
                 i, keys[k].name);
    }
    return LOCI_OK;
}

/* ---- The dictionary of a layer --------------------------------------------------------------- */

/* Names of dictionaries: those of layers, and of DeepSeek-V4's two rotations. */
static bool names_dict(const char *name)
{
    return loci_layer_word(name) || !strcmp(name, "main") || !strcmp(name, "compress");
}

/* True if a file's single dictionary does not apply to this layer: in families with two
 * dictionaries or two bases it is about the full layers, and this is a sliding one. */
static bool is_local(const struct config *c, const struct layer *l)
{
    const json_t *sliding = json_object_get(c->usual, "sliding_attention");
    return l->kind == SLIDING && (c->family->local != SAME_BASE || is_a(sliding, JSON_OBJECT));
}

/* Picks the layer's one of several dictionaries.  A null one is read as plain.  Other values
 * next to them are rejected, since they would be ignored. */
static loci_status pick_dict(const struct layer *l, const json_t *all, struct dict *d,
                             loci_error *e)
{
    const char *rotation = l->kind == SLIDING ? "main" : "compress";
    for (struct member m = { .of = all }; next_member(&m);)
        IO_CHECK(e, names_dict(m.key) && (is_a(m.value, JSON_OBJECT) || is_a(m.value, JSON_NULL)),
                 "%s has one object per layer type and also the key '%.32s'; known layer types: "
                 "full_attention sliding_attention chunked_attention linear_attention",
                 d->where, m.key);
    d->json = json_object_get(all, l->word);
    if (!d->json) d->json = json_object_get(all, rotation);
    IO_CHECK(e, d->json, "%s has no entry '%s', but a layer has this type", d->where, l->word);
    if (is_a(d->json, JSON_NULL)) d->json = NULL;
    return LOCI_OK;
}

loci_status loci_dict_unscale(struct dict *d, loci_error *e)
{
    const double theta = d->value[K_THETA];
    *d = (struct dict){ .where = d->where };
    loci_status s = read_dict(d, e);
    d->value[K_THETA] = theta;
    return s;
}

/* One object inside is enough: a single dictionary contains words, numbers and lists only. */
bool loci_dict_several(const json_t *dict)
{
    for (struct member m = { .of = dict }; next_member(&m);)
        if (is_a(m.value, JSON_OBJECT) || (is_a(m.value, JSON_NULL) && names_dict(m.key)))
            return true;
    return false;
}

/* DeepSeek-V4's single dictionary is about the layers that compress their keys.  It has no base,
 * and its yarn no factor of queries and keys. */
static loci_status v4_dict(const struct layer *l, struct dict *d, loci_error *e)
{
    d->value[K_THETA] = NAN;
    if (l->kind == SLIDING) return loci_dict_unscale(d, e);
    if (d->type == YARN && isnan(d->value[K_ATTENTION])) d->value[K_ATTENTION] = 1;
    return LOCI_OK;
}

loci_status loci_dict_find(const struct config *c, const struct layer *l, struct dict *d,
                           loci_error *e)
{
    const bool new = loci_json_given(c->text, "rope_parameters");
    const char *key = new ? "rope_parameters" : "rope_scaling";
    *d = loci_json_given(c->text, key)
           ? (struct dict){ .where = key, .json = json_object_get(c->text, key) }
           : (struct dict){ .where = "the default rope_parameters of the model type",
                            .json = c->usual };
    IO_CHECK(e, !d->json || is_a(d->json, JSON_OBJECT), "%s must be an object or null", d->where);
    if (loci_dict_several(d->json)) {
        loci_status s = pick_dict(l, d->json, d, e);
        if (s || (s = read_dict(d, e))) return s;
        /* classes look for it next to the dictionaries, where it cannot be */
        d->value[K_TRUNCATE] = NAN;
        return LOCI_OK;
    }
    loci_status s = read_dict(d, e);
    if (!s && c->family->own == DEEPSEEK_V4) return v4_dict(l, d, e);
    if (s || !is_local(c, l)) return s;
    if (c->family->local == FULL_SCALED) return loci_dict_unscale(d, e);
    *d = (struct dict){ .where = d->where, .json = json_object_get(c->usual, "sliding_attention") };
    return read_dict(d, e);
}
