/* SPDX-License-Identifier: MIT */
/* config.c -- a Hugging Face config.json.
 *
 * Where a setting is looked for, first to last: rope_parameters (flat, or one dictionary per kind
 * of layer), then rope_scaling; rope_theta in that dictionary, beside it, rotary_emb_base, the
 * class's own default; rope_type, then type; partial_rotary_factor in the dictionary, beside it,
 * rotary_pct, the class's default.  What the class decides and the file does not say is in
 * families.c: a model_type that is not there is refused, since its pairing would be a guess.  What
 * one layer has otherwise than the rest is in per_layer_config, by its number. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "io/families.h"
#include "io/model.h"

enum { MAX_BYTES = 1 << 20, MAX_DEPTH = 32 };

/* ---- Values ---------------------------------------------------------------------------------- */

/* Absent and null leave *to alone. */
static loci_status number(const json_t *o, const char *key, bool zero, double *to, loci_error *e)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return LOCI_OK;
    IO_CHECK(e, json_is_number(v), "%s must be a number", key);
    const double x = json_number_value(v);
    IO_CHECK(e, (zero ? x >= 0 : x > 0) && x <= 1e18,
             "%s is %g, but must be a number %s and at most 1e18", key, x,
             zero ? "not below 0" : "above 0");
    *to = x;
    return LOCI_OK;
}
static loci_status whole(const json_t *o, const char *key, int low, int high, int *to,
                         loci_error *e)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return LOCI_OK;
    IO_CHECK(e, json_is_integer(v) && json_integer_value(v) >= low && json_integer_value(v) <= high,
             "%s must be a whole number from %d to %d", key, low, high);
    *to = (int)json_integer_value(v);
    return LOCI_OK;
}
static bool given(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v);
}
/* The same value under one of several names, the first that is there. */
static loci_status any_whole(const json_t *o, const char *const *names, int low, int high, int *to,
                             loci_error *e)
{
    for (; *names; names++)
        if (given(o, *names)) return whole(o, *names, low, high, to, e);
    return LOCI_OK;
}
static loci_status flag(const json_t *o, const char *key, bool *to, loci_error *e)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return LOCI_OK;
    IO_CHECK(e, json_is_boolean(v), "%s must be true or false", key);
    *to = json_is_true(v);
    return LOCI_OK;
}

/* ---- The dictionary rope_parameters or rope_scaling ------------------------------------------ */

enum type { DEFAULT, LINEAR, DYNAMIC, NTK, YARN, LONGROPE, LLAMA3, PROPORTIONAL };
static const struct { const char *name; enum type type; const char *scaling; } types[] = {
    { "default", DEFAULT, NULL }, { "mrope", DEFAULT, NULL }, { "linear", LINEAR, "linear" },
    { "dynamic", DYNAMIC, "dynamic" },
    { "ntk", NTK, "ntk_fixed" }, { "yarn", YARN, "yarn" }, { "longrope", LONGROPE, "longrope" },
    { "su", LONGROPE, "longrope" },
    { "llama3", LLAMA3, "llama3" }, { "proportional", PROPORTIONAL, "proportional" },
};
enum { TYPES = sizeof types / sizeof *types };

#define IN(type) (1 << (type))
enum key {
    K_TYPE, K_OLD_TYPE, K_THETA, K_PARTIAL, K_ORIGINAL, K_MAX, K_FACTOR, K_BETA_FAST, K_BETA_SLOW,
    K_TRUNCATE, K_EXTRAPOLATION, K_MSCALE, K_MSCALE_ALL, K_LOW, K_HIGH, K_MIXED_B, K_ALPHA,
    K_ATTENTION, K_SHORT, K_LONG, K_SHORT_MSCALE, K_LONG_MSCALE, K_SECTION, K_SPREAD, K_SPREAD_TOO,
    K_FINETUNED, K_BETA, KEYS
};
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

struct dict {
    const char *where;                   /* its name, for sentences */
    const json_t *json;                  /* NULL: there is none */
    enum type type;
    const char *scaling;
    double value[KEYS];                  /* NaN: not there; flags 0 or 1 */
};

static loci_status find_type(struct dict *d, loci_error *e)
{
    const json_t *v = json_object_get(d->json, "rope_type");
    if (!v || json_is_null(v)) v = json_object_get(d->json, "type");
    const char *name = v && !json_is_null(v) ? json_string_value(v) : "default";
    IO_CHECK(e, name, "rope_type in %s must be a word", d->where);
    for (int i = 0; i < TYPES; i++)
        if (!strcmp(types[i].name, name)) {
            d->type = types[i].type, d->scaling = types[i].scaling;
            /* Early files of Phi-3 say yarn and mean their lists. */
            if (d->type == YARN && json_object_get(d->json, "short_factor"))
                d->type = LONGROPE, d->scaling = "longrope";
            IO_CHECK(e, v || !json_object_get(d->json, "factor"),
                     "%s has a factor, but no rope_type that says what it does", d->where);
            return LOCI_OK;
        }
    return loci_io_fail(e, LOCI_BAD_ARG,
                        "unknown rope_type '%.32s' in %s; known: default mrope linear dynamic ntk "
                        "yarn longrope su llama3 "
                        "proportional",
                        name, d->where);
}

static loci_status unknown_key(const struct dict *d, const char *name, loci_error *e)
{
    char list[192] = "";
    size_t n = 0;
    for (int i = 0; i < KEYS; i++)
        if (keys[i].in & IN(d->type) && i != K_OLD_TYPE
            && n + strlen(keys[i].name) + 2 < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, " %s", keys[i].name);
    return loci_io_fail(e, LOCI_BAD_ARG, "%.20s has the unknown key '%.32s'; known here:%s",
                        d->where, name, list);
}

static loci_status read_dict(struct dict *d, loci_error *e)
{
    for (int i = 0; i < KEYS; i++) d->value[i] = NAN;
    if (!d->json) return LOCI_OK;
    loci_status s = find_type(d, e);
    if (s) return s;
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)d->json, name, v) {
        int k = 0;
        bool on = false;
        while (k < KEYS && strcmp(keys[k].name, name)) k++;
        if (k == KEYS && SOUND(1, false)) continue;
        if (k == KEYS) return unknown_key(d, name, e);
        if (json_is_null(v)) continue;
        switch (keys[k].kind) {
        case NUMBER:
        case OR_ZERO:
            s = number(d->json, name, keys[k].kind == OR_ZERO, &d->value[k], e);
            break;
        case FLAG:
            s = flag(d->json, name, &on, e);
            d->value[k] = on;
            break;
        case LIST:
            IO_CHECK(e, json_is_array(v), "%s must be a list of numbers", name);
            break;
        case WORD:
            IO_CHECK(e, json_is_string(v), "%s must be a word", name);
            break;
        }
        if (s) return s;
    }
    return LOCI_OK;
}

/* `count` numbers above 0; sections may be 0. */
static loci_status list(const struct dict *d, enum key k, int count, double *to, loci_error *e)
{
    const json_t *v = json_object_get(d->json, keys[k].name);
    IO_CHECK(e, v && !json_is_null(v), "%s is missing in %s", keys[k].name, d->where);
    IO_CHECK(e, json_array_size(v) == (size_t)count, "%s has %zu numbers, but %s needs %d",
             keys[k].name, json_array_size(v),
             k == K_SECTION ? "a triple of time, height and width" : "one per pair of channels",
             count);
    for (int i = 0; i < count; i++) {
        const json_t *x = json_array_get(v, (size_t)i);
        to[i] = json_is_number(x) ? json_number_value(x) : -1;
        IO_CHECK(e, to[i] > 0 || (k == K_SECTION && to[i] == 0), "number %d of %s must be above 0",
                 i, keys[k].name);
    }
    return LOCI_OK;
}

/* ---- The file -------------------------------------------------------------------------------- */

struct config {
    json_t *root;
    json_t *usual;                       /* the class's own rope_parameters, for files without */
    const json_t *text;                  /* the part about the language model */
    const struct family *family;
    int layers, heads, hidden, head_dim;
    double trained, base;                /* base: of the class, which a file of CHATGLM changes */
    bool alibi, turns;                   /* turns: some layer may */
    const json_t *layer_types;           /* block_types, shorter, begin again */
    const char *note;
};

/* One layer: its kind, the file's word for it, and its object in per_layer_config, if there is
 * one. */
struct layer { int index; enum kind kind; const char *word; const json_t *over; };

/* Words of other times stand for those of today. */
static const struct { const char *word; enum kind kind; const char *now; } layer_words[] = {
    { "full_attention", FULL, NULL }, { "sliding_attention", SLIDING, NULL },
    { "chunked_attention", CHUNKED, NULL },
    { "linear_attention", WITHOUT, NULL }, { "conv", WITHOUT, NULL }, { "hybrid", FULL, NULL },
    { "hybrid_sliding", SLIDING, NULL },
    { "indexed_attention", FULL, NULL }, { "compressed_sparse_attention", FULL, NULL },
    { "heavily_compressed_attention", FULL, NULL }, { "minimax_m3_sparse", FULL, NULL },
    { "reference_sliding_attention", FULL, NULL }, { "moe", WITHOUT, NULL },
    { "mlp", WITHOUT, NULL },
    { "attention", FULL, "full_attention" }, { "mamba", WITHOUT, "linear_attention" },
    { "recurrent", WITHOUT, "linear_attention" },
    { "deepseek_sparse_attention", FULL, "indexed_attention" },
    { "qwen_sparse_attention", FULL, "indexed_attention" },
};
enum { WORDS = sizeof layer_words / sizeof *layer_words };

static int word_of(const char *name)
{
    int i = 0;
    while (i < WORDS && strcmp(layer_words[i].word, name)) i++;
    return i;
}
/* Names of dictionaries: those of layers, and of DeepSeek-V4's two rotations. */
static bool names_dict(const char *name)
{
    return word_of(name) < WORDS || !strcmp(name, "main") || !strcmp(name, "compress");
}

static loci_status check_layer_types(struct config *c, loci_error *e)
{
    static const char *const names[] = { "layer_types", "layers_block_type", "block_types" };
    int which = 0;
    while (which < 3 && !given(c->text, names[which])) which++;
    if (which == 3) return LOCI_OK;
    const char *key = names[which];
    const json_t *v = json_object_get(c->text, key);
    IO_CHECK(e,
             json_is_array(v)
                 && (json_array_size(v) == (size_t)c->layers
                     || (which == 2 && json_array_size(v) > 0)),
             "%s must be a list of %d words, one per layer", key, c->layers);
    for (int l = 0; l < c->layers; l++) {
        const char *name = json_string_value(json_array_get(v, (size_t)l % json_array_size(v)));
        IO_CHECK(e, name && word_of(name) < WORDS,
                 "%s names '%.32s' for layer %d; known: full_attention sliding_attention "
                 "chunked_attention linear_attention conv hybrid and others in docs/models.md",
                 key, name ? name : "?", l);
    }
    c->layer_types = v;
    return LOCI_OK;
}

static loci_status read_mpt(struct config *c, loci_error *e)
{
    /* Slopes of alibi_bias_max 8 are the usual ones, for any number of heads. */
    const json_t *attention = json_object_get(c->text, "attn_config");
    bool rope = false;
    double most = 8;
    loci_status s;
    IO_CHECK(e, json_is_object(attention),
             "attn_config is missing; it says whether this model has alibi");
    if ((s = flag(attention, "alibi", &c->alibi, e)) || (s = flag(attention, "rope", &rope, e)) ||
        (s = number(attention, "alibi_bias_max", false, &most, e)))
        return s;
    IO_CHECK(e, c->alibi && !rope,
             "attn_config must say alibi true, and rope not; other files of mpt are not known "
             "here");
    IO_CHECK(e, most == 8, "alibi_bias_max is %g, but slopes are known for 8", most);
    return LOCI_OK;
}

static loci_status read_chatglm(struct config *c, loci_error *e)
{
    double ratio = 1;
    int vocabulary = 0;
    loci_status s;
    if ((s = whole(c->text, "kv_channels", 1, MAX_HEAD, &c->head_dim, e))
        || (s = number(c->text, "rope_ratio", false, &ratio, e))
        || (s = whole(c->text, "padded_vocab_size", 1, 1 << 30, &vocabulary, e)))
        return s;
    IO_CHECK(e, c->head_dim > 0,
             "kv_channels is missing; the first ChatGLM, which turns by two positions, is not "
             "known here");
    IO_CHECK(e, ratio == 1 || vocabulary >= 150000,
             "rope_ratio is %g, and which of two things it does the file does not say: ChatGLM2 "
             "divides positions by it, ChatGLM3 multiplies the base",
             ratio);
    c->base *= ratio;                    /* GLM-4, which its vocabulary tells */
    return LOCI_OK;
}

/* What some families say otherwise than all others. */
static loci_status read_own(struct config *c, loci_error *e)
{
    bool values = false;
    loci_status s = LOCI_OK;
    switch (c->family->own) {
    case BLOOM:
        c->alibi = true;
        break;
    case FALCON:
        return flag(c->text, "alibi", &c->alibi, e);
    case MPT:
        return read_mpt(c, e);
    case CHATGLM:
        return read_chatglm(c, e);
    case DBRX:
        if (json_is_object(json_object_get(c->text, "attn_config")))
            return number(json_object_get(c->text, "attn_config"), "rope_theta", false, &c->base,
                          e);
        break;
    case ROFORMER:
        s = flag(c->text, "rotary_value", &values, e);
        if (values) c->note = "values are turned as keys are";
        break;
    case COMMON: case DEEPSEEK_V4:
        break;
    }
    return s;
}

/* Whether the file's switch, where its family has one, lets layers rotate. */
static loci_status read_switch(struct config *c, loci_error *e)
{
    const struct family *f = c->family;
    const json_t *v = f->only_if ? json_object_get(c->text, f->only_if) : NULL;
    c->turns = !f->instead && !f->only_if;
    if (f->only_word)
        c->turns = v && json_is_string(v) && !strcmp(json_string_value(v), f->only_word);
    else if (f->only_if) return flag(c->text, f->only_if, &c->turns, e);
    /* BERT's relatives may have tables of relative positions, which are not described here. */
    v = json_object_get(c->text, "position_embedding_type");
    const char *word = v && json_is_string(v) ? json_string_value(v) : "absolute";
    IO_CHECK(e, c->turns || strncmp(word, "relative", 8),
             "position_embedding_type is '%.32s', which is not known here", word);
    return LOCI_OK;
}

static loci_status read_shape(struct config *c, loci_error *e)
{
    static const char *const layers[] = { "num_hidden_layers",
                                          "n_layer",
                                          "num_layers",
                                          "n_layers",
                                          "decoder_num_hidden_layers",
                                          "decoder_layers",
                                          "encoder_num_hidden_layers",
                                          "encoder_layers",
                                          NULL };
    static const char *const heads[] = { "num_attention_heads",
                                         "n_head",
                                         "n_heads",
                                         "num_heads",
                                         "decoder_num_attention_heads",
                                         "decoder_attention_heads",
                                         "encoder_num_attention_heads",
                                         "encoder_attention_heads",
                                         NULL };
    static const char *const hidden[] = { "hidden_size", "n_embd", "d_model", NULL };
    static const char *const head_dim[] = { "head_dim", "attention_head_dim", "kv_channels", "d_kv",
                                            NULL };
    static const char *const lengths[] = {
        "max_position_embeddings", "n_positions",         "seq_length", "max_seq_len",
        "model_max_length",        "max_sequence_length", NULL
    };
    const int low = c->family->instead ? 0 : 1;      /* some without rotation state heads of no
                                                        width */
    loci_status s;
    if ((s = any_whole(c->text, layers, 1, MAX_LAYERS, &c->layers, e))
        || (s = any_whole(c->text, heads, low, 65536, &c->heads, e))
        || (s = any_whole(c->text, hidden, 1, 1 << 20, &c->hidden, e))
        || (s = any_whole(c->text, head_dim, low, MAX_HEAD, &c->head_dim, e)))
        return s;
    for (int i = 0; lengths[i] && c->trained == 0; i++)
        if ((s = number(c->text, lengths[i], false, &c->trained, e))) return s;
    IO_CHECK(e, c->layers > 0, "num_hidden_layers is missing");
    c->base = c->family->base > 0 ? c->family->base : 10000;
    c->note = c->family->note;
    if ((s = read_own(c, e)) || (s = read_switch(c, e))) return s;
    return c->family->instead ? LOCI_OK : check_layer_types(c, e);
}

/* The object about the language model, which may be two deep, and the word for its type, which may
 * stand above it. */
static const json_t *find_type_word(struct config *c)
{
    static const char *const nested[] = { "text_config",    "llm_config",     "language_config",
                                          "thinker_config", "decoder_config", "decoder" };
    const json_t *type = json_object_get(c->root, "model_type");
    c->text = c->root;
    for (int depth = 0; depth < 3; depth++) {
        const json_t *above = c->text;
        for (int i = 0; i < (int)(sizeof nested / sizeof *nested) && c->text == above; i++)
            if (json_is_object(json_object_get(above, nested[i])))
                c->text = json_object_get(above, nested[i]);
        if (c->text == above) break;
        if (given(c->text, "model_type")) type = json_object_get(c->text, "model_type");
    }
    return type;
}

static loci_status interpret(struct loci_model *m, struct config *c, loci_error *e)
{
    IO_CHECK(e, json_is_object(c->root), "a config.json is an object: {\"model_type\": ...}");
    const json_t *type = find_type_word(c);
    IO_CHECK(e, json_is_string(type),
             "model_type is missing; it decides which channels form a pair");
    IO_CHECK(e, SOUND(3, json_string_length(type) < MAX_TYPE), "model_type is longer than %d bytes",
             MAX_TYPE - 1);
    strcpy(m->type, json_string_value(type));
    c->family = loci_find_family(m->type);
    IO_CHECK(e, c->family,
             "model_type '%s' is not known here, and which channels form a pair would be a guess; "
             "docs/models.md lists "
             "those that are",
             m->type);
    if (c->family->rope) {
        c->usual = json_loads(c->family->rope, 0, NULL);
        if (!c->usual) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    }
    loci_status s = read_shape(c, e);
    m->layers = c->layers;
    return s;
}

/* ---- One layer: its kind, and whether it rotates --------------------------------------------- */

/* Where a key of this layer stands. */
static const json_t *place(const struct config *c, const struct layer *l, const char *key)
{
    return l->over && json_object_get(l->over, key) ? l->over : c->text;
}

/* per_layer_config has layers' numbers as keys, with or without leading zeros. */
static loci_status find_override(const struct config *c, struct layer *l, loci_error *e)
{
    const json_t *all = json_object_get(c->text, "per_layer_config");
    const char *key;
    json_t *v;
    if (!all || json_is_null(all)) return LOCI_OK;
    IO_CHECK(e, json_is_object(all),
             "per_layer_config must be an object with layers' numbers as keys");
    json_object_foreach((json_t *)all, key, v) {
        char *end;
        const long index = strtol(key, &end, 10);
        IO_CHECK(e, end != key && !*end && index >= 0 && index < c->layers,
                 "per_layer_config has the key '%.32s', but layers are 0 to %d", key,
                 c->layers - 1);
        IO_CHECK(e, json_is_object(v), "'%.32s' in per_layer_config must be an object", key);
        if (index == l->index) l->over = v;
    }
    return LOCI_OK;
}

/* Whether a list of layers in the file names this one; *there: there is such a list. */
static loci_status in_list(const struct config *c, const char *key, int layer, bool *there,
                           bool *in, loci_error *e)
{
    const json_t *v = json_object_get(c->text, key);
    *in = false;
    *there = given(c->text, key);
    if (!*there) return LOCI_OK;
    IO_CHECK(e, json_is_array(v), "%s must be a list of layers", key);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *x = json_array_get(v, i);
        IO_CHECK(e,
                 json_is_integer(x) && json_integer_value(x) >= 0
                     && json_integer_value(x) < c->layers,
                 "number %zu of %s must be a layer, 0 to %d", i, key, c->layers - 1);
        if (json_integer_value(x) == layer) *in = true;
    }
    return LOCI_OK;
}

/* A list of one number per layer, of which this is the layer's; *there: there is such a list. */
static loci_status own_number(const struct config *c, const char *key, int layer, bool *there,
                              double *to, loci_error *e)
{
    const json_t *v = json_object_get(c->text, key);
    *there = given(c->text, key) && (!json_is_array(v) || json_array_size(v) > 0);
    if (!*there) return LOCI_OK;
    IO_CHECK(e, json_is_array(v) && json_array_size(v) == (size_t)c->layers,
             "%s must be a list of %d numbers, one per layer", key, c->layers);
    v = json_array_get(v, (size_t)layer);
    IO_CHECK(e, json_is_number(v) && json_number_value(v) >= 0 && json_number_value(v) <= 1e18,
             "number %d of %s must be a number not below 0 and at most 1e18", layer, key);
    *to = json_number_value(v);
    return LOCI_OK;
}

static void set_kind(struct layer *l, enum kind kind)
{
    l->kind = kind;
    l->word = layer_words[kind].word;    /* the first words are those of the kinds, in their
                                            order */
}

static loci_status find_listed(const struct config *c, struct layer *l, loci_error *e)
{
    static const char *const lists[] = { "full_attn_idxs", "attn_layer_indices",
                                         "hybrid_layer_ids" };
    for (int i = 0; i < 3; i++) {
        bool there, in;
        loci_status s = in_list(c, lists[i], l->index, &there, &in, e);
        if (s) return s;
        if (!there) continue;
        if (!in) l->kind = WITHOUT, l->word = i ? "linear_attention" : "conv";
        return LOCI_OK;
    }
    return LOCI_OK;                      /* every layer attends */
}

static loci_status find_period(const struct config *c, int *period, loci_error *e)
{
    static const char *const names[] = { "sliding_window_pattern", "global_attn_every_n_layers",
                                         "full_attention_interval", "no_rope_layer_interval" };
    *period = c->family->period;
    for (int i = 0; i < 4; i++) {
        loci_status s = whole(c->text, names[i], 1, MAX_LAYERS, period, e);
        if (s) return s;
    }
    return LOCI_OK;
}

/* no_rope_layers; without it one layer of each interval does not rotate. */
static loci_status listed_turn(const struct config *c, int layer, bool *turns, loci_error *e)
{
    bool there;
    double one = 1;
    int period;
    loci_status s = own_number(c, "no_rope_layers", layer, &there, &one, e);
    if (s || (s = find_period(c, &period, e))) return s;
    IO_CHECK(e, one == 0 || one == 1,
             "no_rope_layers must be numbers 0 and 1, where 1 means that a layer rotates");
    *turns = there ? one == 1 : (layer + 1) % period != 0;
    return LOCI_OK;
}

static loci_status find_kind(const struct config *c, struct layer *l, loci_error *e)
{
    const enum pattern how = c->family->pattern;
    int period;
    bool listed = true;
    set_kind(l, FULL);
    if (c->layer_types) {
        const json_t *v = json_array_get(c->layer_types,
                                         (size_t)l->index % json_array_size(c->layer_types));
        const int i = word_of(json_string_value(v));
        l->kind = layer_words[i].kind;
        l->word = layer_words[i].now ? layer_words[i].now : layer_words[i].word;
        return LOCI_OK;
    }
    loci_status s = find_period(c, &period, e);
    if (s) return s;
    const int n = l->index;
    switch (how) {
    case ALL_FULL:
        break;
    case LAST_FULL:
        if ((n + 1) % period && (c->family->full_head_dim == 0 || n < c->layers - 1))
            set_kind(l, SLIDING);
        break;
    case FIRST_FULL:
        if (n % period) set_kind(l, SLIDING);
        break;
    case LATE_FULL:
        if ((c->layers - 1 - n) % period) set_kind(l, SLIDING);
        break;
    case LAST_CHUNKLESS:
        s = listed_turn(c, n, &listed, e);
        if (listed) set_kind(l, CHUNKED);
        break;
    case LAST_ATTENDS:
        if ((n + 1) % period) set_kind(l, WITHOUT);
        break;
    case LISTED_ATTEND:
        return find_listed(c, l, e);
    case ONLY_LISTED:
        return loci_io_fail(e, LOCI_BAD_ARG,
                            "layer_types is missing; nothing else says what each layer of %s does",
                            c->family->type);
    }
    return s;
}

/* Cohere's mixtures: a dense layer before the experts rotates if that prefix has no pattern of its
 * own. */
static bool in_prefix(const struct config *c, int layer)
{
    const json_t *mlps = json_object_get(c->text, "mlp_layer_types");
    const json_t *pattern = json_object_get(c->text, "prefix_dense_sliding_window_pattern");
    const char *word = json_string_value(json_array_get(mlps, (size_t)layer));
    return word && !strcmp(word, "dense")
        && (!json_is_integer(pattern) || json_integer_value(pattern) == 1);
}

/* *base is set where layers have bases of their own. */
static loci_status find_turns(const struct config *c, const struct layer *l, bool *turns,
                              double *base, loci_error *e)
{
    bool there;
    int period;
    loci_status s = LOCI_OK;
    *turns = l->kind != WITHOUT;
    switch (c->family->turns) {
    case ALL_TURN: case SCALED_TURN: case NULL_STILL: case NULL_BASE_STILL:
        break;
    case SLIDING_TURN:
        *turns = l->kind == SLIDING;
        break;
    case SLIDING_OR_OPEN:
        *turns = l->kind == SLIDING
              || (json_object_get(c->text, "sliding_window") && !given(c->text, "sliding_window"));
        break;
    case LISTED_TURN:
        return listed_turn(c, l->index, turns, e);
    case BASES_TURN: case LATE_ZEROS_STILL:
        if ((s = own_number(c, "layer_rope_theta", l->index, &there, base, e))
            || (s = find_period(c, &period, e)))
            return s;
        if (there) *turns = *base > 0;
        else if (c->family->turns == LATE_ZEROS_STILL)
            *turns = (c->layers - 1 - l->index) % period != 0;
        if (c->family->turns == LATE_ZEROS_STILL) *base = 0;
        break;
    case PREFIX_TURN:
        *turns = l->kind == SLIDING || in_prefix(c, l->index);
        break;
    }
    return s;
}

/* ---- One layer: its dictionary and its base -------------------------------------------------- */

/* Sliding layers of families with two dictionaries or bases are not what a single dictionary is
 * about. */
static bool is_local(const struct config *c, const struct layer *l)
{
    const json_t *sliding = json_object_get(c->usual, "sliding_attention");
    return l->kind == SLIDING && (c->family->local != SAME_BASE || json_is_object(sliding));
}

/* Of several dictionaries, the layer's.  A null one is read as plain. */
static loci_status pick_dict(const struct layer *l, const json_t *all, struct dict *d,
                             loci_error *e)
{
    const char *name, *rotation = l->kind == SLIDING ? "main" : "compress";
    json_t *v;
    json_object_foreach((json_t *)all, name, v)
        IO_CHECK(e, names_dict(name) && (json_is_object(v) || json_is_null(v)),
                 "%s has one dictionary per kind of layer and also "
                 "the key '%.32s'; known: full_attention sliding_attention chunked_attention "
                 "linear_attention",
                 d->where, name);
    d->json = json_object_get(all, l->word);
    if (!d->json) d->json = json_object_get(all, rotation);
    IO_CHECK(e, d->json, "%s has no '%s', but a layer is one", d->where, l->word);
    if (json_is_null(d->json)) d->json = NULL;
    return LOCI_OK;
}

/* The base stays. */
static loci_status strip_scaling(struct dict *d, loci_error *e)
{
    const double theta = d->value[K_THETA];
    *d = (struct dict){ .where = d->where };
    loci_status s = read_dict(d, e);
    d->value[K_THETA] = theta;
    return s;
}

static bool has_several(const json_t *dict)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)dict, name, v)
        if (json_is_object(v) || (json_is_null(v) && names_dict(name))) return true;
    return false;
}

/* The dictionary that counts for a layer. */
static loci_status find_dict(const struct config *c, const struct layer *l, struct dict *d,
                             loci_error *e)
{
    const char *key = given(c->text, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const json_t *of_file = given(c->text, key) ? json_object_get(c->text, key) : NULL;
    *d = (struct dict){ .where = of_file ? key : "the class's rope_parameters",
                        .json = of_file ? of_file : c->usual };
    IO_CHECK(e, !d->json || json_is_object(d->json), "%s must be an object or null", d->where);
    if (has_several(d->json)) {
        loci_status s = pick_dict(l, d->json, d, e);
        if (s || (s = read_dict(d, e))) return s;
        d->value[K_TRUNCATE] = NAN;      /* classes look for it beside the dictionaries, where it
                                            cannot be */
        return LOCI_OK;
    }
    loci_status s = read_dict(d, e);
    if (s || !is_local(c, l)) return s;
    /* a single dictionary is about full layers */
    if (c->family->local == FULL_SCALED) return strip_scaling(d, e);
    *d = (struct dict){ .where = d->where, .json = json_object_get(c->usual, "sliding_attention") };
    return read_dict(d, e);
}

static loci_status find_base(const struct config *c, const struct layer *l, const struct dict *d,
                             double *base, loci_error *e)
{
    const enum local local = c->family->local;
    loci_status s;
    if (*base > 0) return LOCI_OK;       /* the layer's own */
    *base = d->value[K_THETA];
    if (!isnan(*base)) return LOCI_OK;
    if (l->kind == SLIDING && (local == LOCAL_FREQ || local == GLOBAL_LOCAL)) {
        *base = 10000;
        return number(c->text, local == GLOBAL_LOCAL ? "local_rope_theta" : "rope_local_base_freq",
                      false, base, e);
    }
    *base = c->base;
    if ((s = number(c->text, "rotary_emb_base", false, base, e))) return s;
    if (!c->family->rotary_words && (s = number(c->text, "rope_theta", false, base, e))) return s;
    if (l->kind != SLIDING && given(c->text, "compress_rope_theta"))
        s = number(c->text, "compress_rope_theta", false, base, e);
    return s || local != GLOBAL_LOCAL ? s : number(c->text, "global_rope_theta", false, base, e);
}

/* Whether what the layer's dictionary says, or the lack of one, keeps it still. */
static bool kept_still(const struct config *c, const struct dict *d)
{
    const json_t *o = json_object_get(d->json, "rope_theta") ? d->json : c->text;
    if (c->family->turns == NULL_STILL) return !d->json;
    return c->family->turns == NULL_BASE_STILL && json_is_null(json_object_get(o, "rope_theta"));
}

/* ---- One layer: its channels ----------------------------------------------------------------- */

/* Heads of [without | with] positions say how wide both are; *rope is 0 for others. */
static loci_status find_head(const struct config *c, const struct layer *l, struct settings *t,
                             int *rope, loci_error *e)
{
    const json_t *o = place(c, l, "qk_rope_head_dim");
    int nope = 0, heads = c->heads, hidden = c->hidden;
    loci_status s;
    *rope = 0;
    if ((s = whole(o, "qk_rope_head_dim", 0, MAX_HEAD, rope, e))
        || (s = whole(place(c, l, "qk_nope_head_dim"), "qk_nope_head_dim", 0, MAX_HEAD, &nope, e))
        || (s = whole(place(c, l, "num_attention_heads"), "num_attention_heads",
                      c->family->instead ? 0 : 1, 65536, &heads, e))
        || (s = whole(place(c, l, "hidden_size"), "hidden_size", 1, 1 << 20, &hidden, e)))
        return s;
    t->heads = heads;
    if (c->family->partial > 0) *rope = 0;           /* they say it as a share */
    if (*rope > 0) {
        IO_CHECK(e, given(place(c, l, "qk_nope_head_dim"), "qk_nope_head_dim"),
                 "qk_nope_head_dim is missing beside qk_rope_head_dim");
        t->head_dim = *rope + nope;
    } else {
        t->head_dim = c->family->width_rules ? 0
                    : c->head_dim > 0        ? c->head_dim
                                             : c->family->head_dim;
        if (l->kind == FULL && !given(c->text, "per_layer_config")) {
            if (c->family->full_head_dim > 0) t->head_dim = c->family->full_head_dim;
            s = whole(c->text, "global_head_dim", 1, MAX_HEAD, &t->head_dim, e);
        }
        if (!s && l->over) s = whole(l->over, "head_dim", 1, MAX_HEAD, &t->head_dim, e);
        if (s) return s;
        if (t->head_dim == 0 && heads > 0 && hidden > 0) t->head_dim = hidden / heads;
    }
    IO_CHECK(e, t->head_dim <= MAX_HEAD, "a head of %d channels is none; 1 to %d can be",
             t->head_dim, MAX_HEAD);
    return LOCI_OK;
}

/* The share of the head that turns. */
static loci_status find_share(const struct config *c, const struct dict *d,
                              const struct settings *t, double *share, loci_error *e)
{
    int rotary = 0;
    loci_status s;
    *share = c->family->partial > 0 ? c->family->partial : 1;
    if (c->family->rotary_dim && (s = whole(c->text, "rotary_dim", 2, MAX_HEAD, &rotary, e)))
        return s;
    IO_CHECK(e, rotary <= t->head_dim, "rotary_dim is %d, but the head has %d channels", rotary,
             t->head_dim);
    if (rotary > 0) *share = (double)rotary / t->head_dim;
    if ((s = number(c->text, "rotary_pct", false, share, e))) return s;
    /* Classes with a dictionary for each kind of layer look nowhere else. */
    if (!c->family->rotary_words && !has_several(c->usual)
        && (s = number(c->text, "partial_rotary_factor", false, share, e)))
        return s;
    if (!isnan(d->value[K_PARTIAL])) *share = d->value[K_PARTIAL];
    IO_CHECK(e, *share <= 1,
             "partial_rotary_factor is %g, but no more than 1, the whole head, can turn", *share);
    return LOCI_OK;
}

/* Which channels turn. */
static loci_status find_channels(const struct config *c, const struct dict *d, int rope,
                                 struct settings *t, loci_error *e)
{
    double share;
    bool interleaved = t->interleaved;
    loci_status s;
    IO_CHECK(e, t->head_dim > 0,
             "head_dim is missing, and so is hidden_size or num_attention_heads that would tell "
             "it");
    if (rope > 0) {
        t->dim = rope, t->offset = t->head_dim - rope;
        IO_CHECK(e, d->type != PROPORTIONAL,
                 "rope_type proportional shares out whole heads, but of these only %d of %d "
                 "channels turn",
                 rope, t->head_dim);
        s = flag(c->text, "rope_interleave", &interleaved, e);
        t->interleaved = interleaved;
        return s;
    }
    if ((s = find_share(c, d, t, &share, e))) return s;
    t->dim = (int)(t->head_dim * share);
    t->stretch = 1;
    if (d->type == PROPORTIONAL) {
        t->dim = t->head_dim;
        set_option(t, "partial", share);
    } else if (c->family->partial == 0 && share < 1) {
        IO_CHECK(e, d->type == DEFAULT,
                 "partial_rotary_factor is %g, but the class of %s turns whole heads, which the "
                 "fewer "
                 "frequencies of its scaling would not fit",
                 share, c->family->type);
        t->dim = t->head_dim;
        t->note = "partial_rotary_factor is in the file, but the class of this model type turns "
                  "whole heads";
    }
    IO_CHECK(e, t->dim >= 1, "%g of %d channels cannot turn; it must be an even number of them",
             share, t->head_dim);
    /* rounded up to pairs, whose exponents still count the odd number */
    if (t->dim % 2) {
        IO_CHECK(e, t->dim < t->head_dim && d->type != DYNAMIC && d->type != YARN,
                 "%d of %d channels cannot turn; it must be an even number of them", t->dim,
                 t->head_dim);
        t->stretch = (t->dim + 1.0) / t->dim;
        t->dim++;
    }
    if (c->family->head_end) t->offset = t->head_dim - t->dim;
    return LOCI_OK;
}

static loci_status find_sections(const struct config *c, const struct dict *d, struct settings *t,
                                 loci_error *e)
{
    const int *usual = c->family->sections;
    double x[3];
    if (!given(d->json, "mrope_section")) {
        if (usual[0] + usual[1] + usual[2] != t->dim / 2) return LOCI_OK;
        memcpy(t->sections, usual, sizeof t->sections);
        t->spread = c->family->spread;
        return LOCI_OK;
    }
    loci_status s = list(d, K_SECTION, 3, x, e);
    if (s) return s;
    for (int i = 0; i < 3; i++) {
        IO_CHECK(e, x[i] == floor(x[i]) && x[i] <= MAX_PAIRS_READ,
                 "mrope_section counts pairs of channels, and %g is no such number", x[i]);
        t->sections[i] = (int)x[i];
    }
    IO_CHECK(e, t->sections[0] + t->sections[1] + t->sections[2] == t->dim / 2,
             "mrope_section adds up to %d pairs, but the head has %d",
             t->sections[0] + t->sections[1] + t->sections[2], t->dim / 2);
    t->spread = c->family->spread || d->value[K_SPREAD] == 1 || d->value[K_SPREAD_TOO] == 1;
    return LOCI_OK;
}

/* ---- One layer: its scaling ------------------------------------------------------------------ */

/* What stands beside the dictionary is a file's own word, and goes before what is in it. */
static loci_status find_original(const struct config *c, const struct dict *d, double *original,
                                 loci_error *e)
{
    *original = d->value[K_ORIGINAL];
    loci_status s = number(c->text, "original_max_position_embeddings", false, original, e);
    if (s) return s;
    if (isnan(*original) && c->family->original > 0) *original = c->family->original;
    if (isnan(*original) && c->trained > 0 && d->type != LLAMA3) *original = c->trained;
    IO_CHECK(e, !isnan(*original), "original_max_position_embeddings is missing in %s", d->where);
    return LOCI_OK;
}

static void set_options(const struct dict *d, struct settings *t)
{
    static const struct { enum key key; const char *option; } options[] = {
        { K_BETA_FAST, "beta_fast" }, { K_BETA_SLOW, "beta_slow" }, { K_TRUNCATE, "truncate" },
        { K_EXTRAPOLATION, "extrapolation_factor" }, { K_MSCALE, "mscale" },
        { K_MSCALE_ALL, "mscale_all_dim" },
        { K_LOW, "low_freq_factor" }, { K_HIGH, "high_freq_factor" }, { K_MIXED_B, "mixed_b" },
        { K_ATTENTION, "attention_factor" },
    };
    for (int i = 0; i < (int)(sizeof options / sizeof *options); i++) {
        const enum key k = options[i].key;
        /* 0 stands for the usual there */
        const bool usual = (k == K_BETA_FAST || k == K_BETA_SLOW) && d->value[k] == 0;
        if (!isnan(d->value[k]) && !usual && keys[k].in & IN(d->type))
            set_option(t, options[i].option, d->value[k]);
    }
}

static loci_status find_lists(const struct dict *d, double length, double original,
                              struct settings *t, loci_error *e)
{
    loci_status s;
    t->factors = t->dim / 2;             /* find_head() has bounded it */
    if ((s = list(d, K_SHORT, t->factors, t->short_factor, e))
        || (s = list(d, K_LONG, t->factors, t->long_factor, e)))
        return s;
    const double m = d->value[length > original ? K_LONG_MSCALE : K_SHORT_MSCALE];
    if (isnan(d->value[K_ATTENTION]) && !isnan(m)) set_option(t, "attention_factor", m);
    return LOCI_OK;
}

static loci_status find_scaling(const struct config *c, const struct dict *d, double length,
                                struct settings *t, loci_error *e)
{
    const double *v = d->value;
    double original = NAN, factor = v[K_FACTOR];
    loci_status s = LOCI_OK;
    t->scaling = d->scaling;
    if (d->type == DEFAULT) return LOCI_OK;
    if (d->type == DYNAMIC && !isnan(v[K_ALPHA])) {
        t->scaling = "ntk";              /* a fixed stretch under dynamic's name (Hunyuan) */
        set_option(t, "factor", v[K_ALPHA]);
        return LOCI_OK;
    }
    if (d->type == DYNAMIC) {
        IO_CHECK(e, c->trained > 0,
                 "max_position_embeddings is missing, which rope_type dynamic needs");
        original = c->trained;
    } else if (d->type == YARN || d->type == LONGROPE || d->type == LLAMA3) {
        if ((s = find_original(c, d, &original, e))) return s;
    }
    if ((d->type == YARN || d->type == LONGROPE) && isnan(factor) && c->trained > 0
        && c->trained >= original)
        factor = c->trained / original;
    if (d->type == LONGROPE && isnan(factor) && c->trained > 0) factor = 1;
    IO_CHECK(e, !isnan(factor) || d->type == PROPORTIONAL, "factor is missing in %s", d->where);
    IO_CHECK(e, d->type != LLAMA3 || !isnan(v[K_LOW]), "low_freq_factor is missing in %s",
             d->where);
    IO_CHECK(e, d->type != LLAMA3 || !isnan(v[K_HIGH]), "high_freq_factor is missing in %s",
             d->where);
    if (!isnan(factor)) set_option(t, "factor", factor);
    if (!isnan(original)) set_option(t, "original_length", original), t->trained_length = original;
    set_options(d, t);
    if (d->type == LONGROPE && (s = find_lists(d, length, original, t, e))) return s;
    if (c->family->mla_scale && v[K_MSCALE_ALL] > 0) {
        const double m = loci_yarn_mscale(factor, v[K_MSCALE_ALL]);
        t->softmax_factor = m * m;
    }
    return LOCI_OK;
}

/* rope_scaling_layers: the others have the base and no scaling. */
static loci_status unscale(const struct config *c, const struct layer *l, struct dict *d,
                           loci_error *e)
{
    bool there, in;
    loci_status s = c->family->turns == SCALED_TURN
                      ? in_list(c, "rope_scaling_layers", l->index, &there, &in, e)
                      : LOCI_OK;
    if (s || c->family->turns != SCALED_TURN || !there || in) return s;
    return strip_scaling(d, e);
}

/* ---- One layer: what goes with the rotation -------------------------------------------------- */

/* Queries that grow with their position, against the flattening of the softmax. */
static loci_status find_warmth(const struct config *c, const struct dict *d, bool rotates,
                               struct settings *t, loci_error *e)
{
    loci_status s;
    if (!rotates && !strncmp(c->family->type, "llama4", 6)) {
        double on = 1, warmth = 0.1, length = 8192;
        const json_t *v = json_object_get(c->text, "attn_temperature_tuning");
        if (json_is_boolean(v)) on = json_is_true(v);
        else if ((s = number(c->text, "attn_temperature_tuning", true, &on, e))) return s;
        if ((s = number(c->text, "attn_scale", true, &warmth, e))
            || (s = number(c->text, "floor_scale", false, &length, e)))
            return s;
        if (on > 0) t->warmth = warmth, t->warm_length = length, t->warm_shift = 1;
    } else if (!isnan(d->value[K_BETA])) {
        IO_CHECK(e, !isnan(d->value[K_ORIGINAL]),
                 "llama_4_scaling_beta needs original_max_position_embeddings beside it");
        t->warmth = d->value[K_BETA], t->warm_length = d->value[K_ORIGINAL];
    }
    return LOCI_OK;
}

/* What multiplies q.k, before the factor of the rotation's scaling; 0 where the head's width is
 * unknown. */
static loci_status find_scale(const struct config *c, struct settings *t, loci_error *e)
{
    const struct family *f = c->family;
    const json_t *mpt = f->own == MPT ? json_object_get(c->text, "attn_config") : NULL;
    double of = f->scale_of > 0 ? f->scale_of : t->head_dim;
    loci_status s = LOCI_OK;
    t->scale = t->head_dim > 0 ? 1 / sqrt(t->head_dim) : 0;
    switch (f->scale) {
    case ROOT:
        return mpt ? number(mpt, "softmax_scale", false, &t->scale, e) : LOCI_OK;
    case ONE:
        t->scale = 1;
        break;
    case PRE_ATTENTION:
        s = number(c->text, "query_pre_attn_scalar", false, &of, e);
        t->scale = of > 0 ? 1 / sqrt(of) : 0;
        break;
    case MULTIPLIER:
        if (f->scale_of > 0) t->scale = f->scale_of;
        s = number(c->text, "attention_multiplier", false, &t->scale, e);
        break;
    case QK_FACTOR:
        s = number(c->text, "qk_scale_factor", false, &of, e);
        t->scale *= of;
        break;
    case HALF_HEAD:
        t->scale *= sqrt(2);
        break;
    }
    return s;
}

/* Gemma's models for embeddings see both ways, half of the window each. */
static bool sees_both_ways(const struct config *c)
{
    const json_t *v = json_object_get(c->text, "use_bidirectional_attention");
    return c->family->local == LOCAL_FREQ
        && (json_is_true(v) || (json_is_string(v) && !strcmp(json_string_value(v), "all")));
}

/* Keys that a row sees, itself included; 0: all. */
static loci_status find_window(const struct config *c, const struct layer *l, struct settings *t,
                               loci_error *e)
{
    const struct family *f = c->family;
    static const char *const names[] = { "sliding_window", "attention_window_size" };
    int window = f->window, chunk = 8192;
    bool asked = f->windowed != IF_ASKED;
    loci_status s = flag(c->text, "use_sliding_window", &asked, e);
    for (int i = 0; i < 2 && !s; i++) {
        const json_t *o = place(c, l, names[i]);
        if (json_object_get(o, names[i]) && !given(o, names[i])) window = 0;
        s = whole(o, names[i], 0, 1 << 30, &window, e);
    }
    if (!s && f->windowed == HALVED) {
        window = f->window;
        s = whole(c->text, "local_attention", 0, 1 << 30, &window, e);
        window /= 2;
    }
    if (!s && l->kind == CHUNKED) {
        s = whole(c->text, "attention_chunk_size", 1, 1 << 30, &chunk, e);
        t->chunk = chunk;
    }
    const bool everywhere = f->windowed == EVERYWHERE
                         && (!c->layer_types || f->pattern == ONLY_LISTED);
    if (s || !asked || window == 0 || (l->kind != SLIDING && !(everywhere && l->kind == FULL)))
        return s;
    t->window = sees_both_ways(c) ? window / 2 + 1 : window + f->both;
    return LOCI_OK;
}

static loci_status find_company(const struct config *c, const struct layer *l, struct settings *t,
                                loci_error *e)
{
    const enum sinks sinks = c->family->sinks;
    const json_t *cap = json_object_get(c->text, "attn_logit_softcapping");
    loci_status s;
    t->sink = sinks == SINKS || (sinks == SLIDING_SINKS && l->kind == SLIDING);
    t->cap = cap ? 0 : c->family->cap;
    if ((s = number(c->text, "attn_logit_softcapping", false, &t->cap, e))
        || (s = find_window(c, l, t, e)))
        return s;
    return find_scale(c, t, e);
}

/* ---- One layer ------------------------------------------------------------------------------- */

/* Families that have a bias instead.  Falcon rounds its slopes to bfloat16 and divides them as it
 * does the scores. */
static loci_status read_instead(const struct config *c, struct settings *t, loci_error *e)
{
    t->instead = c->family->instead ? c->family->instead : c->alibi ? "alibi" : "nope";
    if (!strcmp(t->instead, "t5")) {
        t->instead = "t5:bidirectional=0";
        t->note = "the encoder's distances are bidirectional, the decoder's are not";
    }
    if (c->family->own != FALCON) return LOCI_OK;
    IO_CHECK(e, t->heads > 0 && t->head_dim > 0,
             "num_attention_heads is missing, or hidden_size, which the slopes of alibi need");
    t->instead = "alibi:slopes=given";
    t->slope_scale = 1 / sqrt(t->head_dim);
    return LOCI_OK;
}

static loci_status read_layer(const struct loci_model *m, int layer, double length,
                              struct settings *t, loci_error *e)
{
    const struct config *c = m->file;
    struct layer l = { .index = layer };
    struct dict d;
    int rope;
    bool turns;
    double own_base = 0;
    loci_status s;
    t->interleaved = c->family->interleaved;
    t->trained_length = c->trained;
    t->note = c->note;
    t->values = c->note && (c->family->own == ROFORMER || c->family->own == DEEPSEEK_V4);
    if (c->alibi || c->family->instead) {
        set_kind(&l, FULL);
        if ((s = find_head(c, &l, t, &rope, e)) || (s = find_company(c, &l, t, e))) return s;
        return read_instead(c, t, e);
    }
    if ((s = find_override(c, &l, e)) || (s = find_kind(c, &l, e))) return s;
    t->layer = l.word;
    if (l.kind == WITHOUT) return t->instead = "nope", LOCI_OK;
    if ((s = find_turns(c, &l, &turns, &own_base, e)) || (s = find_dict(c, &l, &d, e))
        || (s = unscale(c, &l, &d, e)) || (s = find_head(c, &l, t, &rope, e))
        || (s = find_company(c, &l, t, e)))
        return s;
    turns = turns && c->turns && !kept_still(c, &d);
    if ((s = find_warmth(c, &d, turns, t, e))) return s;
    if (!turns) return t->instead = "nope", LOCI_OK;
    t->base = own_base;
    if ((s = find_base(c, &l, &d, &t->base, e)) || (s = find_channels(c, &d, rope, t, e))
        || (s = find_sections(c, &d, t, e)))
        return s;
    return find_scaling(c, &d, length, t, e);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void close_config(struct loci_model *m)
{
    struct config *c = m->file;
    json_decref(c->root);
    json_decref(c->usual);
    free(c);
}

static loci_status parse(struct config *c, const char *text, size_t n, loci_error *e)
{
    json_error_t why;
    IO_CHECK(e, !loci_io_too_deep(text, n, MAX_DEPTH), "the file is nested more than %d deep",
             MAX_DEPTH);
    c->root = json_loadb(text, n, SOUND(2, false) ? 0 : JSON_REJECT_DUPLICATES, &why);
    if (c->root) return LOCI_OK;
    if (!why.text[0] || json_error_code(&why) == json_error_out_of_memory)
        return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    return loci_io_fail(e, LOCI_BAD_ARG, "neither GGUF nor sound JSON: %.120s (line %d)", why.text,
                        why.line);
}

loci_status loci_config_open(struct loci_model *m, const struct source *from, loci_error *e)
{
    IO_CHECK(e, from->size <= MAX_BYTES, "the file has %llu bytes; a config.json has at most %d",
             (unsigned long long)from->size, MAX_BYTES);
    const size_t n = (size_t)from->size;
    struct config *c = calloc(1, sizeof *c);
    char *text = malloc(n + 1);
    loci_status s = c && text ? LOCI_OK : loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    if (!s) s = loci_io_read(from, text, n, 0, e);
    if (!s) s = parse(c, text, n, e);
    if (!s) s = interpret(m, c, e);
    free(text);
    m->file = c, m->read = read_layer, m->close = close_config;
    if (s && c) close_config(m);
    return s;
}
