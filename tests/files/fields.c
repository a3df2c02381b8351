/* SPDX-License-Identifier: MIT */
/* fields.c -- every field that a model's file can have, with every kind of value: of each family's
 * config.json, of its dictionary of the rotation, and of GGUF files of each kind of architecture.
 * Every value gives layers with plausible numbers, or one sentence. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static bool sound; /* so far, of one file */
static const char *broken;
#define FUZZ_CHECK(rule) (void)((rule) || (sound = false, broken = #rule))
#include "tests/fuzz/layers.h"
#include "harness.h"
#include "models/model.h"
#include "util/byte_order.h"
#include "walk.h"

enum { EACH = 3 }; /* tests one file of EACH */
static int refused, taken;
static void try_file(const void *data, size_t size, const char *what, const char *key,
                     const char *value)
{
    loci_model *m;
    loci_error e = { 0 };
    sound = true;
    if (loci_model_parse(&m, data, size, &e)) {
        FUZZ_CHECK(!m && e.status && e.text[0] && !strchr(e.text, '\n'));
        refused++;
    } else {
        check_layers(m);
        loci_model_close(m);
        taken++;
    }
    CHECK_THAT(sound, "%s, %s %s: %s", what, key, value, broken);
}

/* ---- config.json ----------------------------------------------------------------------------- */

static const char *const values[] = {
    "null",
    "true",
    "false",
    "-1",
    "0",
    "1",
    "2",
    "3",
    "0.5",
    "64",
    "1e30",
    "3000000000",
    "\"x\"",
    "\"yarn\"",
    "\"linear\"",
    "\"longrope\"",
    "\"rope\"",
    "[]",
    "{}",
    "[1]",
    "[0]",
    "[\"x\"]",
    "[null]",
    "[1, 2, 3]",
    "[16, 24, 24]",
    "{\"x\": 1}",
    "{\"full_attention\": null}",
    "{\"0\": {\"head_dim\": 32}}",
    "{\"900\": 1}",
    "[0, 1]",
    "[\"full_attention\"]",
    "[1.5, -3]",
    "\"full_attention\"",
    "\"dynamic\"",
    "\"llama3\"",
    "\"all\"",
    "1.5",
    "-2.5",
};
enum { VALUES = sizeof values / sizeof *values };
static const char *const words[] = {
    "alibi",
    "alibi_bias_max",
    "attention",
    "attention_chunk_size",
    "attention_head_dim",
    "attention_multiplier",
    "attention_window_size",
    "attn_config",
    "attn_layer_indices",
    "attn_logit_softcapping",
    "attn_scale",
    "attn_temperature_tuning",
    "block_types",
    "compress_rope_theta",
    "d_kv",
    "d_model",
    "decoder",
    "floor_scale",
    "full_attention_interval",
    "full_attn_idxs",
    "global_attn_every_n_layers",
    "global_head_dim",
    "global_rope_theta",
    "head_dim",
    "hidden_size",
    "hybrid_layer_ids",
    "kv_channels",
    "layer_rope_theta",
    "layer_types",
    "layers_block_type",
    "local_attention",
    "local_rope_theta",
    "max_position_embeddings",
    "max_sequence_length",
    "mlp_layer_types",
    "model_type",
    "multi_query",
    "n_embd",
    "n_head",
    "n_layer",
    "n_positions",
    "no_rope_layer_interval",
    "no_rope_layers",
    "num_attention_heads",
    "num_hidden_layers",
    "padded_vocab_size",
    "partial_rotary_factor",
    "per_layer_config",
    "position_embedding_type",
    "prefix_dense_sliding_window_pattern",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "qk_scale_factor",
    "query_pre_attn_scalar",
    "rope_interleave",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_ratio",
    "rope_scaling",
    "rope_scaling_layers",
    "rope_theta",
    "rotary_dim",
    "rotary_emb_base",
    "rotary_pct",
    "rotary_value",
    "seq_length",
    "sliding_window",
    "sliding_window_pattern",
    "softmax_scale",
    "text_config",
    "use_bidirectional_attention",
    "use_sliding_window",
};
static const char *const dict_words[] = {
    "type",
    "rope_type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "max_position_embeddings",
    "partial_rotary_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "attention_factor",
    "extrapolation_factor",
    "truncate",
    "short_factor",
    "long_factor",
    "short_mscale",
    "long_mscale",
    "low_freq_factor",
    "high_freq_factor",
    "alpha",
    "mixed_b",
    "mrope_section",
    "mrope_interleaved",
    "interleaved",
    "finetuned",
    "llama_4_scaling_beta",
    "full_attention",
    "sliding_attention",
    "main",
    "compress",
    "unknown",
};
#define COUNT(list) (sizeof(list) / sizeof *(list))

/* One field of an object with one value.  NULL: without it. */
static void try_field(json_t *root, json_t *object, const char *what, const char *key,
                      const char *value)
{
    json_t *before = json_incref(json_object_get(object, key));
    json_t *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    if (v) json_object_set_new(object, key, v);
    else json_object_del(object, key);
    char *text = json_dumps(root, 0);
    try_file(text, strlen(text), what, key, value ? value : "absent");
    free(text);
    if (before) json_object_set_new(object, key, before);
    else json_object_del(object, key);
}
/* Existing fields get all values, possible ones get some: different ones in each family. */
static void try_object(json_t *root, json_t *object, const char *what, const char *const *list,
                       size_t n)
{
    static size_t turn;
    for (size_t i = 0; i < n; i++) {
        const bool there = json_object_get(object, list[i]);
        if (there) try_field(root, object, what, list[i], NULL);
        for (size_t k = 0; k < (there ? VALUES : 3); k++)
            try_field(root, object, what, list[i], values[there ? k : turn++ % VALUES]);
    }
}
static void try_type(json_t *root, json_t *object, const char *what, const char *type)
{
    static const char *const numbers[] = { "rope_theta", "factor",
                                           "original_max_position_embeddings" };
    json_t *dict = json_object();
    json_object_set_new(dict, "rope_type", json_string(type));
    for (size_t i = 0; i < COUNT(numbers); i++)
        json_object_set_new(dict, numbers[i], json_integer(i == 0 ? 10000 : i == 1 ? 4 : 1024));
    json_t *before = json_incref(json_object_get(object, "rope_parameters"));
    json_object_set_new(object, "rope_parameters", dict);
    try_object(root, dict, what, dict_words, COUNT(dict_words));
    if (before) json_object_set_new(object, "rope_parameters", before);
    else json_object_del(object, "rope_parameters");
}
static void try_family(json_t *root, const char *what, int number)
{
    static const char *const types[] = { "linear", "dynamic", "yarn",         "longrope",
                                         "llama3", "ntk",     "proportional", "mrope" };
    json_t *object = json_object_get(root, "text_config");
    if (!json_is_object(object)) object = root;
    try_object(root, object, what, words, COUNT(words));
    json_t *dict = json_object_get(object, "rope_parameters");
    if (!json_is_object(dict)) dict = json_object_get(object, "rope_scaling");
    if (json_is_object(dict)) {
        json_incref(dict);
        try_object(root, dict, what, dict_words, COUNT(dict_words));
        json_decref(dict);
    }
    try_type(root, object, what, types[number % (int)COUNT(types)]);
}
/* Some of these have the language model's part nested deeper. */
static void models(void)
{
    static const char *const list[] = {
        "llama-4-scout", "qwen2.5-vl",      "chatglm3-6b", "deepseek-v3", "gemma-3-12b",
        "roformer",      "phi-3-mini-128k", "mpt-7b",      "glm-4.5",     "ministral-3",
    };
    for (size_t i = 0; i < COUNT(list); i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/cases/models/%s.json", list[i]);
        json_t *root = json_load_file(path, 0, NULL);
        if (i % EACH == 0 && CHECK_THAT(root, "%s cannot be read", path))
            try_family(root, list[i], (int)i);
        json_decref(root);
    }
}
static void configs(void)
{
    static char line[1 << 16];
    FILE *f = fopen("tests/cases/families.jsonl", "r");
    int number = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (number++ % EACH) continue;
        json_t *family = json_loads(line, 0, NULL), *config = json_object_get(family, "config");
        CHECK_THAT(json_is_object(config), "a line without a config");
        if (config)
            try_family(config, json_string_value(json_object_get(config, "model_type")), number);
        json_decref(family);
    }
    CHECK_THAT(number > 100, "families.jsonl has %d configs", number);
    if (f) fclose(f);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

enum {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    BOOL = 7,
    STRING = 8,
    ARRAY = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12
};
static unsigned char file[1 << 16];
static size_t end;
static uint64_t keys, tensors;

static void put(const void *p, size_t n)
{
    memcpy(file + end, p, n);
    end += n;
}
static void put_little(const void *p, size_t n)
{
    put(p, n);
    little_endian(file + end - n, 1, n);
}
static void put32(uint32_t x) { put_little(&x, sizeof x); }
static void put64(uint64_t x) { put_little(&x, sizeof x); }
static void put_text(const char *s)
{
    put64(strlen(s));
    put(s, strlen(s));
}

/* Values of a field: some kinds of each type. */
struct value {
    const char *name;
    uint32_t type, of;
    uint64_t count;
    double x;
    const char *text;
};
static const struct value gguf_values[] = {
    { "0", U32, 0, 0, 0, 0 },
    { "1", U32, 0, 0, 1, 0 },
    { "64", U32, 0, 0, 64, 0 },
    { "2^31", U32, 0, 0, 2147483648.0, 0 },
    { "-1", I32, 0, 0, -1, 0 },
    { "0.0", F32, 0, 0, 0, 0 },
    { "0.5", F32, 0, 0, 0.5, 0 },
    { "1e30", F32, 0, 0, 1e30, 0 },
    { "-2.5", F64, 0, 0, -2.5, 0 },
    { "8.0", F64, 0, 0, 8, 0 },
    { "9 of a byte", U8, 0, 0, 9, 0 },
    { "-9 of a byte", I8, 0, 0, -9, 0 },
    { "9 of two", U16, 0, 0, 9, 0 },
    { "-9 of two", I16, 0, 0, -9, 0 },
    { "9 of eight", U64, 0, 0, 9, 0 },
    { "-9 of eight", I64, 0, 0, -9, 0 },
    { "true", BOOL, 0, 0, 1, 0 },
    { "false", BOOL, 0, 0, 0, 0 },
    { "x", STRING, 0, 0, 0, "x" },
    { "yarn", STRING, 0, 0, 0, "yarn" },
    { "linear", STRING, 0, 0, 0, "linear" },
    { "none", STRING, 0, 0, 0, "none" },
    { "longrope", STRING, 0, 0, 0, "longrope" },
    { "8 times 16", ARRAY, U32, 8, 16, 0 },
    { "3 times 16", ARRAY, U32, 3, 16, 0 },
    { "4 times 8", ARRAY, I32, 4, 8, 0 },
    { "4 times 8.5", ARRAY, F32, 4, 8.5, 0 },
    { "4 times -1", ARRAY, F32, 4, -1, 0 },
    { "8 times true", ARRAY, BOOL, 8, 1, 0 },
    { "2 words", ARRAY, STRING, 2, 0, "x" },
    { "nothing", ARRAY, U32, 0, 0, 0 },
    { "5000 times 1", ARRAY, U32, 5000, 1, 0 },
    { "lists", ARRAY, ARRAY, 1, 0, 0 },
};
static void put_number(uint32_t type, double x)
{
    int64_t n = fabs(x) < 1e18 ? (int64_t)x : 0;
    little_endian(&n, 1, sizeof n);
    if (type == U8 || type == I8) put(&n, 1);
    if (type == U16 || type == I16) put(&n, 2);
    if (type == U32 || type == I32) put(&n, 4);
    if (type == U64 || type == I64) put(&n, 8);
    if (type == F32) put_little(&(float){ (float)x }, sizeof(float));
    if (type == F64) put_little(&x, sizeof x);
    if (type == BOOL) put(&(char){ x > 0 }, 1);
}
static void put_value(const struct value *v)
{
    put32(v->type);
    if (v->type == ARRAY) {
        put32(v->of);
        put64(v->count);
        for (uint64_t i = 0; i < v->count; i++) {
            if (v->of == STRING) put_text(v->text);
            else put_number(v->of, v->x);
        }
    } else if (v->type == STRING) put_text(v->text);
    else put_number(v->type, v->x);
    keys++;
}
static void put_key(const char *arch, const char *name)
{
    char full[128];
    const bool general = !strncmp(name, "general.", 8);
    snprintf(full, sizeof full, "%s%s%s", general ? "" : arch, general ? "" : ".", name);
    put_text(full);
}
struct tensor {
    const char *name;
    uint64_t count;
    uint32_t type;
    float x;
};
static size_t finish(const struct tensor *t)
{
    if (t) {
        put_text(t->name);
        put32(1);
        put64(t->count);
        put32(t->type);
        put64(0);
        tensors++;
    }
    while (end % 32) file[end++] = 0;
    for (uint64_t i = 0; t && i < t->count; i++) put_little(&t->x, sizeof t->x);
    while (end % 32) file[end++] = 0;
    const size_t all = end;
    end = 0;
    put("GGUF\3\0\0", 8);
    put64(tensors);
    put64(keys);
    return end = all;
}

/* The required fields, except for the one under test.  Some files have a scaling too. */
static void begin(const char *arch, const char *without, const char *scaling, int layers)
{
    const struct {
        const char *name;
        double x;
    } usual[] = {
        { "block_count", layers },
        { "context_length", 4096 },
        { "embedding_length", 512 },
        { "attention.head_count", 8 },
    };
    end = 24;
    keys = tensors = 0;
    put_text("general.architecture");
    put_value(&(struct value){ .type = STRING, .text = arch });
    for (size_t i = 0; i < COUNT(usual); i++) {
        if (without && !strcmp(without, usual[i].name)) continue;
        put_key(arch, usual[i].name);
        put_value(&(struct value){ .type = U32, .x = usual[i].x });
    }
    if (!scaling || (without && !strncmp(without, "rope.scaling.type", 17))) return;
    put_key(arch, "rope.scaling.type");
    put_value(&(struct value){ .type = STRING, .text = scaling });
    if (without && strstr(without, "scaling.factor")) return;
    put_key(arch, "rope.scaling.factor");
    put_value(&(struct value){ .type = F32, .x = 4 });
}
static void ggufs(void)
{
    static const char *const archs[] = {
        "afmoe",        "baichuan",    "bloom",
        "chatglm",      "cohere2",     "command-r",
        "deepseek2",    "gemma",       "gemma-embedding",
        "gemma2",       "gemma3",      "gemma3n",
        "gemma4",       "glm-dsa",     "glm4",
        "gpt-oss",      "granite",     "granitehybrid",
        "grok",         "jais",        "laguna",
        "lfm2",         "llama",       "llama4",
        "mimo2",        "minicpm3",    "mistral3",
        "mistral4",     "modern-bert", "mpt",
        "nemotron_h",   "olmo2",       "phi3",
        "plamo2",       "plm",         "qwen2vl",
        "qwen3next",    "qwen3vl",     "qwen35",
        "smallthinker", "smollm3",     "step35",
        "t5",           "hunyuan-moe", "unknown",
    };
    static const char *const fields[] = {
        "block_count",
        "context_length",
        "embedding_length",
        "attention.head_count",
        "attention.key_length",
        "attention.key_length_mla",
        "attention.key_length_swa",
        "attention.max_alibi_bias",
        "attention.output_scale",
        "attention.recurrent_layers",
        "attention.scale",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.temperature_length",
        "attention.temperature_scale",
        "attn_logit_softcapping",
        "attention.head_count_kv",
        "nextn_predict_layers",
        "rope.dimension_count",
        "rope.dimension_count_swa",
        "rope.dimension_sections",
        "rope.freq_base",
        "rope.freq_base_swa",
        "rope.scale_linear",
        "rope.scaling.alpha",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scaling.yarn_ext_factor",
        "rope.scaling.yarn_log_multiplier",
        "full_attention_interval",
        "general.alignment",
    };
    static const struct tensor tried[] = {
        { "rope_freqs.weight", 32, 0, 2 },         { "rope_freqs.weight", 32, 0, -1 },
        { "rope_freqs.weight", 32, 0, NAN },       { "rope_freqs.weight", 3, 0, 1 },
        { "rope_freqs.weight", 32, 1, 1 },         { "rope_freqs.weight", 0, 0, 1 },
        { "rope_freqs.weight", 4096, 0, 1 },       { "rope_factors_long.weight", 32, 0, 2 },
        { "rope_factors_short.weight", 32, 0, 2 }, { "blk.0.attn_sinks.weight", 8, 0, 1 },
    };
    static const char *const scalings[] = { NULL, "yarn", "linear", "longrope", "none" };
    static const int depths[] = { 8, 46, 62, 40, 1 };
    size_t turn = 0;
    for (size_t a = 0; a < COUNT(archs); a++) {
        for (size_t f = 0; f < COUNT(fields); f++)
            for (size_t v = 0; v <= COUNT(gguf_values); v++) {
                const struct value *value = v < COUNT(gguf_values) ? &gguf_values[v] : NULL;
                if ((a + f + v) % EACH) continue;
                turn++;
                begin(archs[a], fields[f], scalings[turn % COUNT(scalings)],
                      depths[turn / 8 % COUNT(depths)]);
                if (value) {
                    put_key(archs[a], fields[f]);
                    put_value(value);
                }
                const struct tensor *t = turn % 16 ? NULL : &tried[turn / 16 % COUNT(tried)];
                try_file(file, finish(t), archs[a], fields[f], value ? value->name : "absent");
            }
        for (size_t t = 0; t < COUNT(tried); t++)
            for (size_t s = 0; s < COUNT(scalings); s++) {
                begin(archs[a], NULL, scalings[s], 8);
                try_file(file, finish(&tried[t]), archs[a], tried[t].name, "");
            }
    }
}

int main(void)
{
    configs();
    models();
    ggufs();
    CHECK_THAT(refused > 1000 && taken > 1000, "%d files were refused, and %d taken", refused,
               taken);
    printf("%d files were refused, and %d taken\n", refused, taken);
    return harness_end();
}
