/* SPDX-License-Identifier: MIT */
/* config.c -- a Hugging Face config.json.
 *
 * Where a setting is looked for, first to last: rope_parameters (flat, or one dictionary per kind of layer), then
 * rope_scaling; rope_theta in that dictionary, beside it, rotary_emb_base, the class's own default; rope_type, then type;
 * partial_rotary_factor in the dictionary, beside it, rotary_pct, the class's default.  What the class decides and the
 * file does not say is in `families`: a model_type that is not there is refused, since its pairing would be a guess. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "model.h"

enum { MAX_BYTES = 1 << 20, MAX_DEPTH = 32 };

/* ---- What classes decide -------------------------------------------------------------------------------- */

/* Which layers rotate, and how, when it is not the same for all. */
enum layers {
    ALIKE,
    LOCAL_BASE,                          /* sliding layers have their own base and no scaling */
    SLIDING_TURN,                        /* only sliding layers rotate, if there is a window */
    LISTED,                              /* no_rope_layers: 1 rotates, 0 does not */
    FULL_SCALED,                         /* the scaling is for full layers only */
    SOME_ATTEND,                         /* the others have linear attention and no positions */
    SOME_CONVOLVE,                       /* full_attn_idxs; the others are convolutions */
    GLOBAL_LOCAL                         /* global_rope_theta and local_rope_theta */
};
#define MUST NAN
static const struct family {
    const char *type;                    /* a "_text" at the end of the file's word does not count */
    bool interleaved;
    double base, partial;                /* MUST: no default that we know for certain */
    int head_dim;                        /* 0: hidden_size / heads */
    enum layers layers;
    int period;                          /* the last of so many layers is full (GLOBAL_LOCAL: the first) */
    bool warm_scores;                    /* YaRN's mscale_all_dim multiplies the softmax scale, squared */
    enum own { COMMON, BLOOM, MPT, CHATGLM } own;      /* files in words of their own, see read_own() */
} families[] = {
    { "llama", .base = 10000 }, { "mistral", .base = 10000 }, { "mixtral", .base = 1e6 }, { "ministral3", .base = 1e6 },
    { "qwen2", .base = 10000 }, { "qwen2_moe", .base = 10000 }, { "qwen3", .base = 10000, .head_dim = 128 },
    { "qwen3_moe", .base = 10000 }, { "qwen2_vl", .base = 1e6 }, { "qwen2_5_vl", .base = 1e6 },
    { "qwen3_vl", .base = 5e5, .head_dim = 128 }, { "qwen3_vl_moe", .base = 5e5 },
    { "qwen3_next", .base = 10000, .partial = 0.25, .head_dim = 256, .layers = SOME_ATTEND, .period = 4 },
    { "qwen3_5", .base = MUST, .partial = 0.25, .head_dim = 256, .layers = SOME_ATTEND, .period = 4 },
    { "qwen3_5_moe", .base = MUST, .partial = 0.25, .head_dim = 256, .layers = SOME_ATTEND, .period = 4 },
    { "gemma", .base = 10000, .head_dim = 256 }, { "gemma2", .base = 10000, .head_dim = 256 },
    { "gemma3", .base = 1e6, .head_dim = 256, .layers = LOCAL_BASE, .period = 6 },
    { "gemma4", .base = 1e6, .head_dim = 256, .layers = LOCAL_BASE, .period = 6 },
    { "phi", .base = 10000, .partial = 0.5 }, { "phi3", .base = 10000 }, { "phimoe", .base = 1e6 },
    { "gpt_neox", .base = 10000, .partial = 0.25 }, { "falcon", .base = 10000 },
    { "gptj", .interleaved = true, .base = 10000 }, { "codegen", .interleaved = true, .base = 10000 },
    { "roformer", .interleaved = true, .base = 10000 }, { "helium", .interleaved = true, .base = MUST, .head_dim = 128 },
    { "moonshine", .interleaved = true, .base = 10000, .partial = 0.9 },
    { "ernie4_5", .interleaved = true, .base = 5e5 }, { "ernie4_5_moe", .interleaved = true, .base = 5e5 },
    { "deepseek_v2", .interleaved = true, .base = 10000, .warm_scores = true },
    { "deepseek_v3", .interleaved = true, .base = 10000, .warm_scores = true },
    { "kimi_k2", .interleaved = true, .base = 10000, .warm_scores = true },
    { "glm4_moe_lite", .interleaved = true, .base = MUST, .warm_scores = true },
    { "longcat_flash", .interleaved = true, .base = MUST, .warm_scores = true },
    { "youtu", .interleaved = true, .base = MUST, .warm_scores = true },
    { "mistral4", .interleaved = true, .base = 10000 },
    { "glm", .interleaved = true, .base = 10000, .partial = 0.5, .head_dim = 128 },
    { "glm4", .interleaved = true, .base = 10000, .partial = 0.5, .head_dim = 128 },
    { "glm4_moe", .base = 10000, .partial = 0.5 },
    { "gpt_oss", .base = 150000, .head_dim = 64 },
    { "llama4", .interleaved = true, .base = 5e5, .head_dim = 128, .layers = LISTED, .period = 4 },
    { "smollm3", .base = 2e6, .layers = LISTED, .period = 4 },
    { "cohere", .interleaved = true, .base = 10000 },
    { "cohere2", .interleaved = true, .base = 10000, .layers = SLIDING_TURN, .period = 4 },
    { "exaone4", .base = 10000, .layers = SLIDING_TURN, .period = 4 },
    { "olmo", .base = 10000 }, { "olmo2", .base = 10000 }, { "olmoe", .base = 10000 },
    { "olmo3", .base = 10000, .layers = FULL_SCALED, .period = 4 },
    { "persimmon", .base = MUST, .partial = 0.5 }, { "nemotron", .base = 10000, .partial = 0.5 },
    { "stablelm", .base = 10000, .partial = 0.25 }, { "starcoder2", .base = 10000 }, { "seed_oss", .base = 10000 },
    { "modernbert", .base = 160000, .layers = GLOBAL_LOCAL, .period = 3 },
    { "lfm2", .base = 1e6, .layers = SOME_CONVOLVE }, { "lfm2_moe", .base = MUST, .layers = SOME_CONVOLVE },
    { "chatglm", .interleaved = true, .base = 10000, .partial = 0.5, .own = CHATGLM },
    { "bloom", .own = BLOOM }, { "mpt", .own = MPT },
};
enum { FAMILIES = sizeof families / sizeof *families };

static const struct family *find_family(const char *type)
{
    size_t n = strlen(type);
    if (n > 5 && !strcmp(type + n - 5, "_text")) n -= 5;
    for (int i = 0; i < FAMILIES; i++)
        if (strlen(families[i].type) == n && !memcmp(families[i].type, type, n)) return &families[i];
    return NULL;
}

/* ---- Values --------------------------------------------------------------------------------------------- */

/* Absent and null leave *to alone. */
static loci_status number(const json_t *o, const char *key, bool zero, double *to, loci_error *e)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return LOCI_OK;
    IO_CHECK(e, json_is_number(v), "%s must be a number", key);
    const double x = json_number_value(v);
    IO_CHECK(e, (zero ? x >= 0 : x > 0) && x <= 1e18, "%s is %g, but must be a number %s and at most 1e18", key, x,
             zero ? "not below 0" : "above 0");
    *to = x;
    return LOCI_OK;
}
static loci_status whole(const json_t *o, const char *key, int low, int high, int *to, loci_error *e)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return LOCI_OK;
    IO_CHECK(e, json_is_integer(v) && json_integer_value(v) >= low && json_integer_value(v) <= high,
             "%s must be a whole number from %d to %d", key, low, high);
    *to = (int)json_integer_value(v);
    return LOCI_OK;
}
/* The same value under one of several names, the first that is there. */
static loci_status any_whole(const json_t *o, const char *const *names, int high, int *to, loci_error *e)
{
    for (; *names; names++)
        if (json_object_get(o, *names)) return whole(o, *names, 1, high, to, e);
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

/* ---- The dictionary rope_parameters or rope_scaling ----------------------------------------------------- */

enum type { DEFAULT, LINEAR, DYNAMIC, NTK, YARN, LONGROPE, LLAMA3, PROPORTIONAL };
static const struct { const char *name; enum type type; const char *scaling; } types[] = {
    { "default", DEFAULT, NULL }, { "mrope", DEFAULT, NULL }, { "linear", LINEAR, "linear" }, { "dynamic", DYNAMIC, "dynamic" },
    { "ntk", NTK, "ntk_fixed" }, { "yarn", YARN, "yarn" }, { "longrope", LONGROPE, "longrope" }, { "su", LONGROPE, "longrope" },
    { "llama3", LLAMA3, "llama3" }, { "proportional", PROPORTIONAL, "proportional" },
};
enum { TYPES = sizeof types / sizeof *types };

#define IN(type) (1 << (type))
enum key {
    K_TYPE, K_OLD_TYPE, K_THETA, K_PARTIAL, K_ORIGINAL, K_MAX, K_FACTOR, K_BETA_FAST, K_BETA_SLOW, K_TRUNCATE, K_EXTRAPOLATION,
    K_MSCALE, K_MSCALE_ALL, K_LOW, K_HIGH, K_MIXED_B, K_ALPHA, K_ATTENTION, K_SHORT, K_LONG, K_SHORT_MSCALE, K_LONG_MSCALE,
    K_SECTION, K_SPREAD, K_SPREAD_TOO, K_FINETUNED, K_BETA, KEYS
};
static const struct { const char *name; enum { WORD, NUMBER, OR_ZERO, FLAG, LIST } kind; int in; } keys[KEYS] = {
    [K_TYPE] = { "rope_type", WORD, ~0 }, [K_OLD_TYPE] = { "type", WORD, ~0 }, [K_THETA] = { "rope_theta", NUMBER, ~0 },
    [K_PARTIAL] = { "partial_rotary_factor", NUMBER, ~0 },
    [K_ORIGINAL] = { "original_max_position_embeddings", NUMBER, IN(DYNAMIC) | IN(YARN) | IN(LONGROPE) | IN(LLAMA3) },
    [K_MAX] = { "max_position_embeddings", NUMBER, 0 },
    [K_FACTOR] = { "factor", NUMBER, IN(LINEAR) | IN(DYNAMIC) | IN(NTK) | IN(YARN) | IN(LONGROPE) | IN(LLAMA3) | IN(PROPORTIONAL) },
    [K_BETA_FAST] = { "beta_fast", OR_ZERO, IN(YARN) }, [K_BETA_SLOW] = { "beta_slow", OR_ZERO, IN(YARN) },
    [K_TRUNCATE] = { "truncate", FLAG, IN(YARN) }, [K_EXTRAPOLATION] = { "extrapolation_factor", NUMBER, IN(YARN) },
    [K_MSCALE] = { "mscale", OR_ZERO, IN(YARN) }, [K_MSCALE_ALL] = { "mscale_all_dim", OR_ZERO, IN(YARN) },
    [K_LOW] = { "low_freq_factor", NUMBER, IN(LLAMA3) }, [K_HIGH] = { "high_freq_factor", NUMBER, IN(LLAMA3) },
    [K_MIXED_B] = { "mixed_b", OR_ZERO, IN(NTK) }, [K_ALPHA] = { "alpha", NUMBER, IN(DYNAMIC) },
    [K_ATTENTION] = { "attention_factor", NUMBER, IN(YARN) | IN(LONGROPE) },
    [K_SHORT] = { "short_factor", LIST, IN(LONGROPE) }, [K_LONG] = { "long_factor", LIST, IN(LONGROPE) },
    [K_SHORT_MSCALE] = { "short_mscale", NUMBER, IN(LONGROPE) }, [K_LONG_MSCALE] = { "long_mscale", NUMBER, IN(LONGROPE) },
    [K_SECTION] = { "mrope_section", LIST, IN(DEFAULT) }, [K_SPREAD] = { "mrope_interleaved", FLAG, IN(DEFAULT) },
    [K_SPREAD_TOO] = { "interleaved", FLAG, 0 }, [K_FINETUNED] = { "finetuned", FLAG, 0 },
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
            if (d->type == YARN && json_object_get(d->json, "short_factor")) d->type = LONGROPE, d->scaling = "longrope";
            IO_CHECK(e, v || !json_object_get(d->json, "factor"), "%s has a factor, but no rope_type that says what it does", d->where);
            return LOCI_OK;
        }
    return loci_io_fail(e, LOCI_BAD_ARG, "unknown rope_type '%.32s' in %s; known: default mrope linear dynamic ntk yarn longrope su llama3 "
                        "proportional", name, d->where);
}

static loci_status unknown_key(const struct dict *d, const char *name, loci_error *e)
{
    char list[192] = "";
    size_t n = 0;
    for (int i = 0; i < KEYS; i++)
        if (keys[i].in & IN(d->type) && i != K_OLD_TYPE && n + strlen(keys[i].name) + 2 < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, " %s", keys[i].name);
    return loci_io_fail(e, LOCI_BAD_ARG, "%.20s has the unknown key '%.32s'; known here:%s", d->where, name, list);
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
    IO_CHECK(e, json_array_size(v) == (size_t)count, "%s has %zu numbers, but %s needs %d", keys[k].name, json_array_size(v),
             k == K_SECTION ? "a triple of time, height and width" : "one per pair of channels", count);
    for (int i = 0; i < count; i++) {
        const json_t *x = json_array_get(v, (size_t)i);
        to[i] = json_is_number(x) ? json_number_value(x) : -1;
        IO_CHECK(e, to[i] > 0 || (k == K_SECTION && to[i] == 0), "number %d of %s must be above 0", i, keys[k].name);
    }
    return LOCI_OK;
}

/* ---- The file ------------------------------------------------------------------------------------------- */

struct config {
    json_t *root;
    const json_t *text;                  /* the part about the language model */
    const struct family *family;
    int layers, heads, hidden, head_dim;
    double trained, base;                /* base: of the class, which a file of CHATGLM changes */
    bool alibi;
    const json_t *layer_types;
};

static const char *const attention_kinds[] = { "full_attention", "sliding_attention", "chunked_attention", "linear_attention", "conv" };
enum { FULL, SLIDING, CHUNKED, WITHOUT, CONVOLUTION, KINDS };

static int kind_of(const char *name)
{
    int k = 0;
    while (k < KINDS && strcmp(attention_kinds[k], name)) k++;
    return k;
}

static loci_status check_layer_types(struct config *c, loci_error *e)
{
    const json_t *v = json_object_get(c->text, "layer_types");
    if (!v || json_is_null(v)) return LOCI_OK;
    IO_CHECK(e, json_is_array(v) && json_array_size(v) == (size_t)c->layers, "layer_types must be a list of %d words, one per layer",
             c->layers);
    for (int l = 0; l < c->layers; l++) {
        const char *name = json_string_value(json_array_get(v, (size_t)l));
        IO_CHECK(e, name && kind_of(name) < KINDS, "layer_types names '%.32s' for layer %d; known: full_attention sliding_attention "
                 "chunked_attention linear_attention conv", name ? name : "?", l);
    }
    c->layer_types = v;
    return LOCI_OK;
}

/* What three families say otherwise than all others. */
static loci_status read_own(struct config *c, loci_error *e)
{
    const enum own own = c->family->own;
    loci_status s;
    if (own == BLOOM) c->alibi = true;
    if (own == MPT) {                    /* slopes of alibi_bias_max 8 are the usual ones, for any number of heads */
        const json_t *attention = json_object_get(c->text, "attn_config");
        bool rope = false;
        double most = 8;
        IO_CHECK(e, json_is_object(attention), "attn_config is missing; it says whether this model has alibi");
        if ((s = flag(attention, "alibi", &c->alibi, e)) || (s = flag(attention, "rope", &rope, e)) ||
            (s = number(attention, "alibi_bias_max", false, &most, e)))
            return s;
        IO_CHECK(e, c->alibi && !rope, "attn_config must say alibi true, and rope not; other files of mpt are not known here");
        IO_CHECK(e, most == 8, "alibi_bias_max is %g, but slopes are known for 8", most);
    }
    if (own == CHATGLM) {
        double ratio = 1;
        int vocabulary = 0;
        if ((s = whole(c->text, "kv_channels", 1, 1024, &c->head_dim, e)) || (s = number(c->text, "rope_ratio", false, &ratio, e)) ||
            (s = whole(c->text, "padded_vocab_size", 1, 1 << 30, &vocabulary, e)))
            return s;
        IO_CHECK(e, c->head_dim > 0, "kv_channels is missing; the first ChatGLM, which turns by two positions, is not known here");
        IO_CHECK(e, ratio == 1 || vocabulary >= 150000, "rope_ratio is %g, and which of two things it does the file does not say: ChatGLM2 "
                 "divides positions by it, ChatGLM3 multiplies the base", ratio);
        c->base *= ratio;                /* GLM-4, which its vocabulary tells */
    }
    return LOCI_OK;
}

static loci_status read_shape(struct config *c, loci_error *e)
{
    static const char *const layers[] = { "num_hidden_layers", "n_layer", "num_layers", "n_layers", NULL };
    static const char *const heads[] = { "num_attention_heads", "n_head", "n_heads", NULL };
    static const char *const hidden[] = { "hidden_size", "n_embd", "d_model", NULL };
    static const char *const lengths[] = { "max_position_embeddings", "n_positions", "seq_length", "max_seq_len", NULL };
    loci_status s;
    if ((s = any_whole(c->text, layers, MAX_LAYERS, &c->layers, e)) || (s = any_whole(c->text, heads, 65536, &c->heads, e)) ||
        (s = any_whole(c->text, hidden, 1 << 20, &c->hidden, e)) || (s = whole(c->text, "head_dim", 1, 1024, &c->head_dim, e)) ||
        (s = flag(c->text, "alibi", &c->alibi, e)))
        return s;
    for (int i = 0; lengths[i] && c->trained == 0; i++)
        if ((s = number(c->text, lengths[i], false, &c->trained, e))) return s;
    IO_CHECK(e, c->layers > 0, "num_hidden_layers is missing");
    c->base = c->family->base;
    if ((s = read_own(c, e))) return s;
    if (c->head_dim == 0) c->head_dim = c->family->head_dim;
    if (c->head_dim == 0 && c->heads > 0 && c->hidden > 0) c->head_dim = c->hidden / c->heads;
    return check_layer_types(c, e);
}

static loci_status interpret(struct loci_model *m, struct config *c, loci_error *e)
{
    static const char *const nested[] = { "text_config", "llm_config", "language_config" };
    IO_CHECK(e, json_is_object(c->root), "a config.json is an object: {\"model_type\": ...}");
    c->text = c->root;
    for (int i = 0; i < (int)(sizeof nested / sizeof *nested) && c->text == c->root; i++)
        if (json_is_object(json_object_get(c->root, nested[i]))) c->text = json_object_get(c->root, nested[i]);
    const json_t *type = json_object_get(c->text, "model_type");
    if (!type) type = json_object_get(c->root, "model_type");
    IO_CHECK(e, json_is_string(type), "model_type is missing; it decides which channels form a pair");
    IO_CHECK(e, SOUND(3, json_string_length(type) < MAX_TYPE), "model_type is longer than %d bytes", MAX_TYPE - 1);
    strcpy(m->type, json_string_value(type));
    c->family = find_family(m->type);
    IO_CHECK(e, c->family, "model_type '%s' is not known here, and which channels form a pair would be a guess; docs/models.md lists "
             "those that are", m->type);
    loci_status s = read_shape(c, e);
    m->layers = c->layers;
    return s;
}

/* ---- One layer ------------------------------------------------------------------------------------------ */

/* full_attn_idxs; without it every layer attends. */
static loci_status listed_attention(const struct config *c, int layer, int *kind, loci_error *e)
{
    const json_t *v = json_object_get(c->text, "full_attn_idxs");
    if (!v || json_is_null(v)) return LOCI_OK;
    IO_CHECK(e, json_is_array(v), "full_attn_idxs must be a list of layers");
    *kind = CONVOLUTION;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *x = json_array_get(v, i);
        IO_CHECK(e, json_is_integer(x) && json_integer_value(x) >= 0 && json_integer_value(x) < c->layers,
                 "number %zu of full_attn_idxs must be a layer, 0 to %d", i, c->layers - 1);
        if (json_integer_value(x) == layer) *kind = FULL;
    }
    return LOCI_OK;
}

static loci_status layer_kind(const struct config *c, int layer, int *kind, loci_error *e)
{
    static const char *const names[] = {
        [ALIKE] = NULL, [LOCAL_BASE] = "sliding_window_pattern", [SLIDING_TURN] = "sliding_window_pattern",
        [LISTED] = "no_rope_layer_interval", [FULL_SCALED] = "sliding_window_pattern", [SOME_ATTEND] = "full_attention_interval",
        [GLOBAL_LOCAL] = "global_attn_every_n_layers",
    };
    const enum layers how = c->family->layers;
    int period = c->family->period;
    *kind = FULL;
    if (c->layer_types) {
        *kind = kind_of(json_string_value(json_array_get(c->layer_types, (size_t)layer)));
        return LOCI_OK;
    }
    if (how == SOME_CONVOLVE) return listed_attention(c, layer, kind, e);
    loci_status s = names[how] ? whole(c->text, names[how], 1, MAX_LAYERS, &period, e) : LOCI_OK;
    if (s || period == 0 || how == LISTED) return s;
    const bool full = how == GLOBAL_LOCAL ? layer % period == 0 : (layer + 1) % period == 0;
    if (!full) *kind = how == SOME_ATTEND ? WITHOUT : SLIDING;
    return LOCI_OK;
}

/* no_rope_layers; without it one layer of each interval does not rotate. */
static loci_status listed(const struct config *c, int layer, bool *rotates, loci_error *e)
{
    const json_t *v = json_object_get(c->text, "no_rope_layers");
    int period = c->family->period;
    if (v && !json_is_null(v) && json_array_size(v) > 0) {
        IO_CHECK(e, json_array_size(v) == (size_t)c->layers, "no_rope_layers must be a list of %d numbers, one per layer", c->layers);
        v = json_array_get(v, (size_t)layer);
        IO_CHECK(e, json_is_integer(v) && (json_integer_value(v) == 0 || json_integer_value(v) == 1),
                 "no_rope_layers must be numbers 0 and 1, where 1 means that a layer rotates");
        *rotates = json_integer_value(v) == 1;
        return LOCI_OK;
    }
    loci_status s = whole(c->text, "no_rope_layer_interval", 1, MAX_LAYERS, &period, e);
    *rotates = (layer + 1) % period != 0;
    return s;
}

/* The dictionary that counts for a kind of layer; `per_layer`: it is one of several. */
static loci_status find_dict(const struct config *c, int kind, struct dict *d, bool *per_layer, loci_error *e)
{
    *per_layer = false;
    *d = (struct dict){ .where = "rope_parameters", .json = json_object_get(c->text, "rope_parameters") };
    if (!d->json || json_is_null(d->json)) {
        d->where = "rope_scaling";
        d->json = json_object_get(c->text, "rope_scaling");
    }
    if (!d->json || json_is_null(d->json)) {
        d->json = NULL;
        return read_dict(d, e);
    }
    IO_CHECK(e, json_is_object(d->json), "%s must be an object or null", d->where);
    const char *name;
    json_t *v;
    int kinds = 0;
    json_object_foreach((json_t *)d->json, name, v) kinds += json_is_object(v) || (json_is_null(v) && kind_of(name) < KINDS);
    if (kinds > 0) {
        json_object_foreach((json_t *)d->json, name, v)
            IO_CHECK(e, kind_of(name) < KINDS && (json_is_object(v) || json_is_null(v)), "%s has one dictionary per kind of layer and also "
                     "the key '%.32s'; known: full_attention sliding_attention chunked_attention linear_attention", d->where, name);
        d->json = json_object_get(d->json, attention_kinds[kind]);
        IO_CHECK(e, d->json, "%s has no '%s', but a layer is one", d->where, attention_kinds[kind]);
        if (json_is_null(d->json)) d->json = NULL;
        *per_layer = true;
    }
    return read_dict(d, e);
}

static loci_status find_base(const struct config *c, const struct dict *d, int kind, bool per_layer, double *base, loci_error *e)
{
    const bool global_local = c->family->layers == GLOBAL_LOCAL, sliding = kind == SLIDING;
    *base = d->value[K_THETA];
    if (!isnan(*base)) return LOCI_OK;
    loci_status s;
    if (sliding && (c->family->layers == LOCAL_BASE || global_local)) {
        *base = 10000;
        return number(c->text, global_local ? "local_rope_theta" : "rope_local_base_freq", false, base, e);
    }
    IO_CHECK(e, !per_layer || c->family->layers != LOCAL_BASE, "rope_theta is missing in %s for %s", d->where, attention_kinds[kind]);
    *base = c->base;
    if ((s = number(c->text, "rotary_emb_base", false, base, e)) || (s = number(c->text, "rope_theta", false, base, e)) ||
        (global_local && (s = number(c->text, "global_rope_theta", false, base, e))))
        return s;
    IO_CHECK(e, !isnan(*base), "rope_theta is missing");
    return LOCI_OK;
}

/* Which channels turn. */
static loci_status find_channels(const struct config *c, const struct dict *d, int kind, struct settings *t, loci_error *e)
{
    loci_status s;
    int rope = 0, nope = 0, rotary = 0;
    bool interleaved = t->interleaved;
    if ((s = whole(c->text, "qk_rope_head_dim", 1, 1024, &rope, e)) || (s = whole(c->text, "qk_nope_head_dim", 0, 1024, &nope, e)) ||
        (s = whole(c->text, "rotary_dim", 2, 1024, &rotary, e)))
        return s;
    if (rope > 0) {                      /* heads of [without | with] positions */
        IO_CHECK(e, json_object_get(c->text, "qk_nope_head_dim"), "qk_nope_head_dim is missing beside qk_rope_head_dim");
        t->head_dim = rope + nope, t->dim = rope, t->offset = nope;
        s = flag(c->text, "rope_interleave", &interleaved, e);
        t->interleaved = interleaved;
        return s;
    }
    t->head_dim = c->head_dim;
    if (kind == FULL && (s = whole(c->text, "global_head_dim", 1, 1024, &t->head_dim, e))) return s;
    IO_CHECK(e, t->head_dim > 0, "head_dim is missing, and so is hidden_size or num_attention_heads that would tell it");
    double partial = c->family->partial > 0 ? c->family->partial : 1;
    if ((s = number(c->text, "rotary_pct", false, &partial, e)) || (s = number(c->text, "partial_rotary_factor", false, &partial, e))) return s;
    if (!isnan(d->value[K_PARTIAL])) partial = d->value[K_PARTIAL];
    IO_CHECK(e, partial <= 1, "partial_rotary_factor is %g, but no more than 1, the whole head, can turn", partial);
    t->dim = rotary > 0 ? rotary : (int)(t->head_dim * partial);
    if (d->type == PROPORTIONAL) {
        t->dim = t->head_dim;
        set_option(t, "partial", partial);
    }
    return LOCI_OK;
}

static loci_status find_sections(const struct dict *d, struct settings *t, loci_error *e)
{
    const json_t *v = json_object_get(d->json, "mrope_section");
    double x[3];
    if (!v || json_is_null(v)) return LOCI_OK;
    loci_status s = list(d, K_SECTION, 3, x, e);
    if (s) return s;
    for (int i = 0; i < 3; i++) {
        IO_CHECK(e, x[i] == floor(x[i]) && x[i] <= MAX_PAIRS_READ, "mrope_section counts pairs of channels, and %g is no such number", x[i]);
        t->sections[i] = (int)x[i];
    }
    IO_CHECK(e, t->sections[0] + t->sections[1] + t->sections[2] == t->dim / 2, "mrope_section adds up to %d pairs, but the head has %d",
             t->sections[0] + t->sections[1] + t->sections[2], t->dim / 2);
    t->spread = d->value[K_SPREAD] == 1 || d->value[K_SPREAD_TOO] == 1;
    return LOCI_OK;
}

/* The original length of longrope stands beside the dictionary first, of the others in it. */
static loci_status find_original(const struct config *c, const struct dict *d, double *original, loci_error *e)
{
    double beside = NAN;
    loci_status s = number(c->text, "original_max_position_embeddings", false, &beside, e);
    if (s) return s;
    *original = d->value[K_ORIGINAL];
    if (d->type == LONGROPE ? !isnan(beside) : isnan(*original)) *original = beside;
    if (isnan(*original) && c->trained > 0 && d->type != LLAMA3) *original = c->trained;
    IO_CHECK(e, !isnan(*original), "original_max_position_embeddings is missing in %s", d->where);
    return LOCI_OK;
}

static loci_status find_scaling(const struct config *c, const struct dict *d, double length, struct settings *t, loci_error *e)
{
    static const struct { enum key key; const char *option; } options[] = {
        { K_BETA_FAST, "beta_fast" }, { K_BETA_SLOW, "beta_slow" }, { K_TRUNCATE, "truncate" },
        { K_EXTRAPOLATION, "extrapolation_factor" }, { K_MSCALE, "mscale" }, { K_MSCALE_ALL, "mscale_all_dim" },
        { K_LOW, "low_freq_factor" }, { K_HIGH, "high_freq_factor" }, { K_MIXED_B, "mixed_b" }, { K_ATTENTION, "attention_factor" },
    };
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
        IO_CHECK(e, c->trained > 0, "max_position_embeddings is missing, which rope_type dynamic needs");
        original = c->trained;
    } else if (d->type == YARN || d->type == LONGROPE || d->type == LLAMA3) {
        if ((s = find_original(c, d, &original, e))) return s;
    }
    if ((d->type == YARN || d->type == LONGROPE) && isnan(factor) && c->trained > original) factor = c->trained / original;
    IO_CHECK(e, !isnan(factor) || d->type == PROPORTIONAL, "factor is missing in %s", d->where);
    IO_CHECK(e, d->type != LLAMA3 || !isnan(v[K_LOW]), "low_freq_factor is missing in %s", d->where);
    IO_CHECK(e, d->type != LLAMA3 || !isnan(v[K_HIGH]), "high_freq_factor is missing in %s", d->where);
    if (!isnan(factor)) set_option(t, "factor", factor);
    if (!isnan(original)) set_option(t, "original_length", original), t->trained_length = original;
    for (int i = 0; i < (int)(sizeof options / sizeof *options); i++) {
        const enum key k = options[i].key;
        const bool usual = (k == K_BETA_FAST || k == K_BETA_SLOW) && v[k] == 0;        /* 0 stands for the usual there */
        if (!isnan(v[k]) && !usual && keys[k].in & IN(d->type)) set_option(t, options[i].option, v[k]);
    }
    if (d->type == LONGROPE) {
        t->factors = t->dim / 2;
        assert(t->factors <= MAX_PAIRS_READ);
        if ((s = list(d, K_SHORT, t->factors, t->short_factor, e)) || (s = list(d, K_LONG, t->factors, t->long_factor, e))) return s;
        const double m = v[length > original ? K_LONG_MSCALE : K_SHORT_MSCALE];
        if (isnan(v[K_ATTENTION]) && !isnan(m)) set_option(t, "attention_factor", m);
    }
    if (c->family->warm_scores && d->type == YARN && v[K_MSCALE_ALL] > 0) {
        const double m = loci_yarn_mscale(factor, v[K_MSCALE_ALL]);
        t->softmax_factor = m * m;
    }
    return LOCI_OK;
}

/* Queries that grow with their position, against the flattening of the softmax. */
static loci_status find_warmth(const struct config *c, const struct dict *d, bool rotates, struct settings *t, loci_error *e)
{
    loci_status s;
    if (!rotates && !strncmp(c->family->type, "llama4", 6)) {
        double on = 1, warmth = 0.1, length = 8192;
        const json_t *v = json_object_get(c->text, "attn_temperature_tuning");
        if (json_is_boolean(v)) on = json_is_true(v);
        else if ((s = number(c->text, "attn_temperature_tuning", true, &on, e))) return s;
        if ((s = number(c->text, "attn_scale", true, &warmth, e)) || (s = number(c->text, "floor_scale", false, &length, e))) return s;
        if (on > 0) t->warmth = warmth, t->warm_length = length, t->warm_shift = 1;
    } else if (!isnan(d->value[K_BETA])) {
        IO_CHECK(e, !isnan(d->value[K_ORIGINAL]), "llama_4_scaling_beta needs original_max_position_embeddings beside it");
        t->warmth = d->value[K_BETA], t->warm_length = d->value[K_ORIGINAL];
    }
    return LOCI_OK;
}

static loci_status read_layer(const struct loci_model *m, int layer, double length, struct settings *t, loci_error *e)
{
    const struct config *c = m->file;
    const enum layers how = c->family->layers;
    struct dict d;
    int kind;
    bool per_layer, rotates = true;
    loci_status s;
    t->interleaved = c->family->interleaved;
    t->trained_length = c->trained;
    t->heads = c->heads;
    if (c->alibi) return t->instead = "alibi", LOCI_OK;
    if ((s = layer_kind(c, layer, &kind, e))) return s;
    t->layer = attention_kinds[kind];
    if (kind == WITHOUT || kind == CONVOLUTION) return t->instead = "nope", LOCI_OK;
    if (how == LISTED && (s = listed(c, layer, &rotates, e))) return s;
    if (how == SLIDING_TURN) {
        const json_t *window = json_object_get(c->text, "sliding_window");
        rotates = kind == SLIDING || !window || json_is_null(window);
    }
    if ((s = find_dict(c, kind, &d, &per_layer, e)) || (s = find_warmth(c, &d, rotates, t, e))) return s;
    if (!rotates) return t->instead = "nope", LOCI_OK;
    if (!per_layer && kind == SLIDING && (how == LOCAL_BASE || how == FULL_SCALED || how == GLOBAL_LOCAL)) {
        const double theta = d.value[K_THETA];       /* a flat dictionary is about the full layers */
        d = (struct dict){ .where = d.where };
        if ((s = read_dict(&d, e))) return s;
        if (how == FULL_SCALED) d.value[K_THETA] = theta;
    }
    if ((s = find_base(c, &d, kind, per_layer, &t->base, e))) return s;
    if ((s = find_channels(c, &d, kind, t, e)) || (s = find_sections(&d, t, e))) return s;
    return find_scaling(c, &d, length, t, e);
}

/* ---- Opening -------------------------------------------------------------------------------------------- */

static void close_config(struct loci_model *m)
{
    struct config *c = m->file;
    json_decref(c->root);
    free(c);
}

static loci_status parse(struct config *c, const char *text, size_t n, loci_error *e)
{
    json_error_t why;
    IO_CHECK(e, !loci_io_too_deep(text, n, MAX_DEPTH), "the file is nested more than %d deep", MAX_DEPTH);
    c->root = json_loadb(text, n, SOUND(2, false) ? 0 : JSON_REJECT_DUPLICATES, &why);
    if (c->root) return LOCI_OK;
    if (!why.text[0] || json_error_code(&why) == json_error_out_of_memory) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    return loci_io_fail(e, LOCI_BAD_ARG, "neither GGUF nor sound JSON: %.120s (line %d)", why.text, why.line);
}

loci_status loci_config_open(struct loci_model *m, const struct source *from, loci_error *e)
{
    IO_CHECK(e, from->size <= MAX_BYTES, "the file has %llu bytes; a config.json has at most %d", (unsigned long long)from->size, MAX_BYTES);
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
