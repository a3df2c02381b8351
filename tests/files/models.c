/* SPDX-License-Identifier: MIT */
/* models.c -- `loci rope` on the files of models: NAME.expect.json describes the result for
 * NAME.json or NAME.gguf, and NAME.error the error.  The folders are tests/cases/rope, whose
 * frequencies come from another implementation, and tests/cases/models, one file per family.
 * tests/cases/families.jsonl has a config of many families in one line each, with the float32
 * frequencies that the families' own code computes from it. */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "cli/cli.h"
#include "loci/io.h"
#include "harness.h"
#include "scratch.h"

static FILE *out, *err; /* output of the command */

/* Runs the command.  Returns its exit code. */
static int rope(int count, char **argv)
{
    struct args a;
    const int to[2] = { dup(1), dup(2) };
    fflush(stdout);
    rewind(out);
    rewind(err);
    if (ftruncate(fileno(out), 0) || ftruncate(fileno(err), 0)) exit(1);
    dup2(fileno(out), 1);
    dup2(fileno(err), 2);
    const int code = args_parse(&a, &cmd_rope, count, argv) ? cmd_rope.run(&a) : EXIT_ERROR;
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < 2; i++) {
        dup2(to[i], 1 + i);
        close(to[i]);
    }
    return code;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }
static bool same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return near(json_number_value(a), json_number_value(b));
    if (!json_is_array(a) || !json_is_array(b)) return json_equal(a, b);
    if (json_array_size(a) != json_array_size(b)) return false;
    for (size_t i = 0; i < json_array_size(a); i++)
        if (!same(json_array_get(a, i), json_array_get(b, i))) return false;
    return true;
}

/* Compares texts by the rotation that a plan makes of them. */
static bool same_encoding(const char *a, const char *b, int dim, double factor)
{
    enum { ROOM = 512 };
    double w[2][ROOM], m[2] = { 0, 0 };
    const char *text[2] = { a, b };
    int n[2];
    for (int i = 0; i < 2; i++) {
        loci_plan *plan;
        loci_error e;
        const loci_desc d =
            LOCI_DESC(.encoding = text[i], .heads = 1, .dim = dim); /* dca is no stage ROTATE */
        if (loci_plan_create(&plan, &d, &e)) {
            printf("models: %s\n", e.text);
            return false;
        }
        n[i] = loci_frequencies(plan, w[i], ROOM, &m[i]);
        loci_plan_destroy(plan);
    }
    bool ok = n[0] == n[1] && n[0] > 0 && near(m[0], factor) && near(m[1], factor)
           && strcspn(a, ",") == strcspn(b, ",");
    for (int t = 0; t < n[0] && ok; t++) ok = near(w[0][t], w[1][t]);
    return ok;
}

static void check_query(const char *path, const json_t *query)
{
    char *argv[16] = { (char *)path, "--json" };
    char said[512] = "";
    int n = 2;
    size_t i;
    json_t *v;
    const char *key;
    json_array_foreach(json_object_get(query, "args"), i, v) if (n < 16) argv[n++] =
        (char *)json_string_value(v);
    const int code = rope(n, argv);
    rewind(out);
    rewind(err);
    if (fread(said, 1, sizeof said - 1, err) == 0) said[0] = 0;
    json_t *got = code ? NULL : json_loadf(out, 0, NULL);
    CHECK_THAT(got, "%s: exit code %d, %s", path, code, said);
    if (!got) return;
    const json_t *expect = json_object_get(query, "expect");
    json_object_foreach((json_t *)expect, key, v)
    {
        const json_t *g = json_object_get(got, key);
        bool ok;
        if (!strcmp(key, "encoding") && json_is_true(json_object_get(got, "rope")))
            ok = same_encoding(json_string_value(g), json_string_value(v),
                               (int)json_integer_value(json_object_get(got, "head_dim")),
                               json_number_value(json_object_get(got, "attention_factor")));
        /* a layer's other property may have more text */
        else if (!strcmp(key, "encoding") && json_is_string(g))
            ok = !strncmp(json_string_value(g), json_string_value(v), strlen(json_string_value(v)));
        else ok = g && same(g, v);
        char *text = json_dumps(g, JSON_ENCODE_ANY);
        CHECK_THAT(ok, "%s, layer %s: %s is %.300s", path, argv[3] ? argv[3] : "0", key,
                   text ? text : "missing");
        free(text);
    }
    json_decref(got);
}

static void check_refused(const char *path)
{
    char text[1024] = "", *argv[] = { (char *)path, "--json" };
    const int code = rope(2, argv);
    rewind(err);
    const size_t n = fread(text, 1, sizeof text - 1, err);
    CHECK_THAT(code == EXIT_ERROR && lseek(fileno(out), 0, SEEK_END) == 0 && n > 0
                   && strchr(text, '\n') == text + n - 1 && !strncmp(text, "loci: ", 6)
                   && strstr(text, path),
               "%s: exit code %d, said: %s", path, code, text);
}

/* The table for people: exits with success, fits 140 columns, and has every layer. */
static void check_table(const char *path)
{
    char line[1024], *argv[] = { (char *)path };
    size_t longest = 0;
    const int code = rope(1, argv);
    rewind(out);
    while (fgets(line, sizeof line, out)) longest = strlen(line) > longest ? strlen(line) : longest;
    CHECK_THAT(code == EXIT_DONE && longest > 20 && longest <= 140,
               "%s: the table has exit code %d and %zu columns", path, code, longest);
}

static bool ends(const char *name, const char *with)
{
    const size_t n = strlen(name), m = strlen(with);
    return n > m && !strcmp(name + n - m, with);
}

/* NAME.expect.json or NAME.error, next to the file NAME.json or NAME.gguf. */
static void check_file(const char *folder, const char *name)
{
    char path[512], of[512];
    const bool refused = ends(name, ".error");
    if (!refused && !ends(name, ".expect.json")) return;
    const int n = (int)(strlen(name) - strlen(refused ? ".error" : ".expect.json"));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(of, sizeof of, "%s/%.*s.json", folder, n, name);
    if (access(of, R_OK)) snprintf(of, sizeof of, "%s/%.*s.gguf", folder, n, name);
    if (refused) {
        check_refused(of);
        return;
    }
    json_error_t why;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why), *query;
    size_t i;
    CHECK_THAT(root, "%s: %s", path, why.text);
    json_array_foreach(json_object_get(root, "queries"), i, query) check_query(of, query);
    json_decref(root);
    check_table(of);
}

/* ---- One rule broken at a time --------------------------------------------------------------- */

static const struct {
    const char *json, *says;
} broken[] = {
#define FAMILY(type) \
    "{\"model_type\":\"" type "\",\"hidden_size\":64," \
    "\"num_attention_heads\":4,\"num_hidden_layers\":2"
#define LLAMA FAMILY("llama") ",\"max_position_embeddings\":128"
    { "[]", "an object" },
    { "{}", "model_type is missing" },
    { "", "neither GGUF nor valid JSON" },
    { "{\"model_type\":\"lama\"}", "'lama' is not supported" },
    { "{\"model_type\":\"llama\"}", "num_hidden_layers is missing" },
    { "{\"model_type\":\"llama\",\"num_hidden_layers\":2}", "head_dim is missing" },
    { LLAMA ",\"num_hidden_layers\":2}", "duplicate" },
    { LLAMA ",\"rope_theta\":0}", "rope_theta is 0" },
    { LLAMA ",\"rope_theta\":\"1e4\"}", "rope_theta must be a number" },
    { LLAMA ",\"rope_theta\":1e999}", "valid JSON" },
    { LLAMA ",\"rope_theta\":1e19}", "at most 1e18" },
    { LLAMA ",\"rope_theta\":0.5}", "base" },
    { LLAMA ",\"head_dim\":0}", "from 1 to 1024" },
    { LLAMA ",\"head_dim\":33}", "33 of 33 channels rotate, but" },
    { LLAMA ",\"head_dim\":1e3}", "whole number" },
    { LLAMA ",\"partial_rotary_factor\":1.5}", "must be at most 1" },
    { FAMILY("phi") ",\"partial_rotary_factor\":1e-9}", "the number must be even" },
    { LLAMA ",\"rope_scaling\":4}", "an object or null" },
    { LLAMA ",\"rope_scaling\":{\"factor\":4}}", "no rope_type" },
    { LLAMA ",\"rope_scaling\":{\"type\":4}}", "must be a string" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"4\"}}",
      "factor must be a number" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4,\"betafast\":1}}",
      "'betafast'; known keys: rope_type" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":4}}",
      "original_max_position_embeddings is missing" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":4,"
            "\"original_max_position_embeddings\":64}}",
      "low_freq_factor is missing" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":4}}", "short_factor is missing" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[4,4]}}", "has 2 numbers" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[4,4,4]}}",
      "adds up to 12 pairs, but the head has 8" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"truncate\":1}}", "true or false" },
    { LLAMA ",\"rope_parameters\":{\"full_attention\":{},\"rope_theta\":1}}",
      "also the key 'rope_theta'" },
    { LLAMA ",\"rope_parameters\":{\"sliding_attention\":{}}}", "has no entry 'full_attention'" },
    { LLAMA ",\"layer_types\":[\"full_attention\"]}", "one per layer" },
    { LLAMA ",\"layer_types\":[\"full_attention\",\"half\"]}", "'half' for layer 1" },
    { LLAMA ",\"qk_rope_head_dim\":64}", "qk_nope_head_dim is missing" },
    { FAMILY("gptj") ",\"rotary_dim\":64}", "rotary_dim is 64, but the head has 16" },
    { LLAMA ",\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}",
      "more than 32 deep" },
    { FAMILY("mpt") "}", "attn_config is missing" },
    { FAMILY("mpt") ",\"attn_config\":{}}", "must have alibi true" },
    { FAMILY("mpt") ",\"attn_config\":{\"alibi\":true,\"rope\":true}}", "and no rope" },
    { FAMILY("mpt") ",\"attn_config\":{\"alibi\":true,\"alibi_bias_max\":16}}",
      "alibi_bias_max is 16" },
    { FAMILY("chatglm") ",\"position_encoding_2d\":true}", "kv_channels is missing" },
    { FAMILY("chatglm") ",\"kv_channels\":16,\"rope_ratio\":50,\"padded_vocab_size\":65024}",
      "which is ambiguous" },
    { FAMILY("lfm2") ",\"full_attn_idxs\":[2]}", "must be a layer number, 0 to 1" },
    { FAMILY("lfm2") ",\"full_attn_idxs\":7}", "a list of layer numbers" },
    { FAMILY("minimax") "}", "layer_types is missing" },
    { FAMILY("bert") ",\"position_embedding_type\":\"relative_key\"}", "'relative_key'" },
    { FAMILY("phi") ",\"partial_rotary_factor\":0.2,\"rope_scaling\":{\"type\":\"yarn\","
                    "\"factor\":2}}",
      "3 of 16 channels rotate, but" },
    { LLAMA ",\"partial_rotary_factor\":0.5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
      "rotates whole heads" },
    { FAMILY("gemma4") ",\"per_layer_config\":{\"2\":{}}}",
      "has the key '2', but layers are 0 to 1" },
    { FAMILY("gemma4") ",\"per_layer_config\":{\"\":{}}}", "has the key ''" },
    { FAMILY("gemma4") ",\"per_layer_config\":[]}", "must be an object" },
    { FAMILY("gemma4") ",\"per_layer_config\":{\"0\":1}}", "'0' in per_layer_config" },
    { FAMILY("esm") ",\"head_dim\":\"x\"}", "whole number" },
    { LLAMA ",\"qk_rope_head_dim\":1,\"qk_nope_head_dim\":7}", "1 of 8 channels rotate, but" },
    { FAMILY("deepseek_v3") ",\"qk_rope_head_dim\":8,\"qk_nope_head_dim\":8,"
                            "\"rope_scaling\":{\"type\":\"proportional\"}}",
      "but 8 of 16" },
    { FAMILY("muse_spark") ",\"layer_rope_theta\":[1]}", "one per layer" },
    { FAMILY("muse_spark") ",\"layer_rope_theta\":[-1,2]}", "number 0 of" },
    { FAMILY("molmo2") ",\"rope_scaling_layers\":[7]}", "must be a layer number, 0 to 1" },
    { FAMILY("falcon") ",\"alibi\":true,\"hidden_size\":null}", "dupl" },
    { FAMILY("gemma2") ",\"sliding_window\":-1}", "from 0 to" },
    { FAMILY("gemma2") ",\"attn_logit_softcapping\":-1}", "is -1" },
    { "GGUF", "ends early" },
    { "GGUF\1", "ends early" },
    { "GGUF\1\0\0", "ends early" },
    { LLAMA ",\"x\":\"\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\",\"head_dim\":2000}",
      "from 1 to 1024" },
    { "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"num_attention_heads\":4}",
      "head_dim is missing" },
    { "{\"model_type\":\"a word of more than 63 letters cannot be the name of any model type\"}",
      "longer than 63 bytes" },
    { FAMILY("recurrent_gemma") ",\"block_types\":[]}", "must be a list of 2 strings" },
    { LLAMA ",\"layer_types\":[\"full_attention\",7]}", "'?' for layer 1" },
    { LLAMA ",\"rope_parameters\":{\"full_attention\":{},\"sliding_attention\":4}}",
      "also the key 'sliding_attention'" },
    { LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":0}}}", "rope_theta is 0" },
    { FAMILY("gemma4") ",\"per_layer_config\":{\"-1\":{}}}", "has the key '-1'" },
    { FAMILY("gemma4") ",\"per_layer_config\":{\"0x\":{}}}", "has the key '0x'" },
    { FAMILY("lfm2") ",\"full_attn_idxs\":[\"x\"]}", "must be a layer number, 0 to 1" },
    { FAMILY("lfm2") ",\"full_attn_idxs\":[-1]}", "must be a layer number, 0 to 1" },
    { FAMILY("muse_spark") ",\"layer_rope_theta\":[1e19,1]}", "from 0 to 1e18" },
    { FAMILY("muse_spark") ",\"layer_rope_theta\":[\"x\",1]}", "number 0 of" },
    { FAMILY("smollm3") ",\"no_rope_layers\":3}", "a list of 2 numbers" },
    { FAMILY("smollm3") ",\"no_rope_layers\":[2,1]}", "0 and 1 only" },
    { "{\"model_type\":\"falcon\",\"alibi\":true,\"num_hidden_layers\":2}",
      "num_attention_heads or hidden_size is missing" },
    { "{\"model_type\":\"falcon\",\"alibi\":true,\"num_hidden_layers\":2,"
      "\"num_attention_heads\":8}",
      "num_attention_heads or hidden_size is missing" },
    { "{\"model_type\":\"bloom\",\"num_hidden_layers\":2,\"num_attention_heads\":1,"
      "\"hidden_size\":4096}",
      "the head has 4096 channels" },
    { FAMILY("ministral3") ",\"rope_parameters\":{\"llama_4_scaling_beta\":0.1}}",
      "llama_4_scaling_beta requires it" },
#define SCALED(family, type, more) \
    FAMILY(family) ",\"head_dim\":4,\"rope_scaling\":{\"type\":\"" type "\"" more "}"
    { SCALED("llama", "linear", ",\"factor\":2,\"short_factor\":4") "}",
      "short_factor must be a list" },
    { FAMILY("llama") ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2,\"type\":4}}",
      "type must be a string" },
    { SCALED("llama", "yarn", ",\"factor\":2,\"beta_fast\":-1") "}",
      "beta_fast is -1, but must be a number not below 0" },
    { SCALED("llama", "yarn", ",\"factor\":2") "}", "original_max_position_embeddings is missing" },
    { SCALED("llama", "yarn", ",\"original_max_position_embeddings\":64") "}",
      "factor is missing" },
    { SCALED("llama", "dynamic", ",\"factor\":2") "}", "max_position_embeddings is missing" },
    { SCALED("llama", "llama3",
             ",\"factor\":2,\"original_max_position_embeddings\":64,"
             "\"low_freq_factor\":1") "}",
      "high_freq_factor is missing" },
    { SCALED("phi3", "longrope", ",\"short_factor\":[1,1],\"long_factor\":[1,1]") "}",
      "factor is missing" },
    { SCALED("phi3", "longrope", ",\"factor\":2,\"short_factor\":[1,0],\"long_factor\":[1,1]") "}",
      "number 1 of short_factor must be above 0" },
    { SCALED("phi3", "longrope",
             ",\"factor\":2,\"short_factor\":[1,1],"
             "\"long_factor\":[1,\"x\"]") "}",
      "number 1 of long_factor must be above 0" },
    { SCALED("llama", "mrope", ",\"mrope_section\":[-1,2,1]") "}", "number 0 of mrope_section" },
    { SCALED("llama", "mrope", ",\"mrope_section\":[1.5,0.5,0]") "}",
      "1.5 must be a whole number in range" },
    { SCALED("llama", "mrope", ",\"mrope_section\":[600,0,0]") "}",
      "600 must be a whole number in range" },
    { FAMILY("phi") ",\"partial_rotary_factor\":0.2,\"max_position_embeddings\":64,"
                    "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}",
      "3 of 16 channels rotate, but" },
/* a word in the place of what a key holds, where each of them is read */
/* clang-format off */
#define WORD(family, key) { FAMILY(family) ",\"" key "\":\"x\"}", key " must be" }
/* clang-format on */
#define WORD_IN(family, object, key) \
    { \
        FAMILY(family) ",\"" object "\":{\"" key "\":\"x\"}}", key " must be" \
    }
#define WORD_BESIDE(family, more, key) \
    { \
        FAMILY(family) "," more ",\"" key "\":\"x\"}", key " must be" \
    }
    { "{\"model_type\":\"llama\",\"n_layer\":\"x\"}", "n_layer must be" },
    { "{\"model_type\":\"llama\",\"n_head\":\"x\"}", "n_head must be" },
    { "{\"model_type\":\"llama\",\"n_embd\":\"x\"}", "n_embd must be" },
    WORD("llama", "head_dim"),
    WORD("llama", "max_position_embeddings"),
    WORD("llama", "qk_rope_head_dim"),
    WORD("llama", "qk_nope_head_dim"),
    WORD("llama", "global_head_dim"),
    WORD("llama", "use_sliding_window"),
    WORD("llama", "sliding_window"),
    WORD("llama", "rotary_emb_base"),
    WORD("llama", "compress_rope_theta"),
    WORD("llama", "rotary_pct"),
    WORD("phi", "partial_rotary_factor"),
    WORD("gptj", "rotary_dim"),
    WORD("gptj", "sliding_window_pattern"),
    WORD("chatglm", "rope_ratio"),
    WORD("chatglm", "padded_vocab_size"),
    WORD_BESIDE("chatglm", "\"head_dim\":16", "kv_channels"),
    WORD("bloom", "sliding_window"),
    WORD("zamba2", "use_mem_rope"),
    WORD("qwen3_next", "full_attention_interval"),
    WORD_IN("dbrx", "attn_config", "rope_theta"),
    WORD_IN("mpt", "attn_config", "alibi"),
    WORD_IN("mpt", "attn_config", "rope"),
    WORD_IN("mpt", "attn_config", "alibi_bias_max"),
    { FAMILY("mpt") ",\"attn_config\":{\"alibi\":true,\"softmax_scale\":\"x\"}}",
      "softmax_scale must be" },
    WORD_BESIDE("smollm3", "\"layer_types\":[\"attention\",\"attention\"]",
                "no_rope_layer_interval"),
    WORD_BESIDE("granite_swa", "\"layer_types\":[\"attention\",\"attention\"]",
                "sliding_window_pattern"),
    WORD_BESIDE("llama4_text", "\"no_rope_layers\":[0,1]", "attn_temperature_tuning"),
    WORD_BESIDE("llama4_text", "\"no_rope_layers\":[0,1]", "attn_scale"),
    WORD_BESIDE("llama4_text", "\"no_rope_layers\":[0,1]", "floor_scale"),
    WORD_BESIDE("llama", "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}",
                "original_max_position_embeddings"),
    { FAMILY("gemma4") ",\"per_layer_config\":{\"0\":{\"head_dim\":\"x\"}}}", "head_dim must be" },
    { FAMILY("gemma4") ",\"per_layer_config\":{\"0\":{\"num_attention_heads\":\"x\"}}}",
      "num_attention_heads must be" },
    { FAMILY("gemma4") ",\"per_layer_config\":{\"0\":{\"hidden_size\":\"x\"}}}",
      "hidden_size must be" },
};

static void check_broken(const char *json, const char *says)
{
    loci_model *m;
    loci_rope r;
    loci_error e = { 0 };
    loci_status s = loci_model_parse(&m, json, strlen(json), &e);
    if (!s) s = loci_model_rope(m, 0, 0, &r, &e);
    CHECK_THAT(s == LOCI_BAD_ARG && strstr(e.text, says) && (!m || (!r.encoding && !r.frequency)),
               "%s: %d, %s", json, (int)s, e.text);
    if (!s) loci_rope_free(&r);
    loci_model_close(m);
}

/* ---- Many families --------------------------------------------------------------------------- */

/* Layers whose class computes frequencies that it then does not apply: Flint's full layers,
 * Zamba2's without use_mem_rope. */
static bool stands_still(const char *type)
{
    return !strcmp(type, "flint") || !strcmp(type, "zamba2");
}

static bool same_layer(const loci_rope *r, const json_t *expect, const char *type)
{
    const json_t *list = json_object_get(expect, "inv_freq");
    const bool interleaved =
        !strcmp(json_string_value(json_object_get(expect, "pairing")), "interleaved");
    if (stands_still(type)) return !r->rotates && !strcmp(r->encoding, "nope");
    if (!r->rotates || r->interleaved != interleaved || (size_t)r->dim != 2 * json_array_size(list))
        return false;
    if (fabs(r->attention_factor - json_number_value(json_object_get(expect, "attention_factor")))
        > 2e-6)
        return false;
    for (int t = 0; t < r->dim / 2; t++)
        if (fabs(r->frequency[t] - json_number_value(json_array_get(list, (size_t)t)))
            > 4e-6 * r->frequency[t])
            return false;
    return true;
}

static void check_family(const json_t *f)
{
    const char *type = json_string_value(json_object_get(f, "model_type"));
    char *text = json_dumps(json_object_get(f, "config"), 0);
    loci_model *m;
    loci_error e = { 0 };
    size_t i;
    json_t *expect;
    CHECK_THAT(!loci_model_parse(&m, text, strlen(text), &e), "%s: %s", type, e.text);
    json_array_foreach(json_object_get(f, "layers"), i, expect)
    {
        loci_rope r = { 0 };
        const int layer = (int)json_integer_value(json_object_get(expect, "layer"));
        const loci_status s = m ? loci_model_rope(m, layer, 0, &r, &e) : LOCI_BAD_ARG;
        CHECK_THAT(!s && same_layer(&r, expect, type), "%s, layer %d: %s %.160s", type, layer,
                   s ? e.text : "", r.encoding ? r.encoding : "");
        loci_rope_free(&r);
    }
    loci_model_close(m);
    free(text);
}

static void check_families(const char *path)
{
    FILE *f = fopen(path, "r");
    int count = 0;
    for (json_t *line; f && (line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL));
         json_decref(line), count++)
        check_family(line);
    CHECK_THAT(count == 121, "%s has %d families", path, count);
    if (f) fclose(f);
}

/* ---- Other fields, and defaults of the class ------------------------------------------------- */

static const struct said {
    const char *json;
    int layer;
    const char *attention;
    double scale;
    int64_t window;
    double warmth;
} saids[] = {
#define FILE(type) \
    "{\"model_type\":\"" type "\",\"hidden_size\":512," \
    "\"num_attention_heads\":8,\"num_hidden_layers\":6"
    { FILE("gemma2") "}", 0, "rope:pairing=half,base=10000,dim=256+softcap:cap=50", 1.0 / 16, 4096,
      0 },
    { FILE("gemma2") ",\"attn_logit_softcapping\":null,\"sliding_window\":7}", 2,
      "rope:pairing=half,base=10000,dim=256", 1.0 / 16, 7, 0 },
    { FILE("gemma2") ",\"attn_logit_softcapping\":30,\"query_pre_attn_scalar\":144}", 1,
      "rope:pairing=half,base=10000,dim=256+softcap:cap=30", 1.0 / 12, 0, 0 },
    { FILE("gemma3_text") ",\"use_bidirectional_attention\":true,\"sliding_window\":512}", 0,
      "rope:pairing=half,base=10000,dim=256", 1.0 / 16, 257, 0 },
    { FILE("gemma4_text") "}", 5,
      "rope:pairing=half,base=1000000,dim=512,scaling=proportional,partial=0.25", 1, 0, 0 },
    { FILE("gemma4_text") ",\"per_layer_config\":{\"05\":{\"head_dim\":128}}}", 5,
      "rope:pairing=half,base=1000000,dim=128,scaling=proportional,partial=0.25", 1, 0, 0 },
    { FILE("gemma4_text") ",\"per_layer_config\":{\"5\":{\"head_dim\":128}}}", 4,
      "rope:pairing=half,base=10000,dim=256", 1, 512, 0 },
    { FILE("gpt_oss") "}", 0,
      "rope:pairing=half,base=150000,dim=64,scaling=yarn,factor=32,original_length=4096,"
      "beta_fast=32,beta_slow=1,truncate=0"
      "+sink",
      0.125, 128, 0 },
    { FILE("ministral3") "}", 0,
      "rope:pairing=half,base=1000000,dim=128,scaling=yarn,factor=16,original_length=16384,"
      "beta_fast=32,beta_slow=1,"
      "mscale=1,mscale_all_dim=1",
      0.08838834764831845, 0, 0.1 },
    { FILE("mistral4") ",\"qk_rope_head_dim\":64,\"qk_nope_head_dim\":64}", 0,
      "rope:pairing=interleaved,base=10000,dim=64,offset=64,scaling=yarn,"
      "factor=128,original_length=8192,beta_fast=32,beta_slow=1,mscale=1,mscale_all_dim=1",
      0.19496949473302969, 0, 0.1 },
    { FILE("cohere") "}", 0, "rope:pairing=interleaved,base=500000,dim=64", 0.125, 0, 0 },
    { FILE("ernie4_5") "}", 0, "rope:pairing=interleaved,base=500000,dim=128", 0.08838834764831845,
      0, 0 },
    { FILE("granite") "}", 0, "rope:pairing=half,base=10000,dim=64", 1, 0, 0 },
    { FILE("granite") ",\"attention_multiplier\":0.0078125}", 0,
      "rope:pairing=half,base=10000,dim=64", 0.0078125, 0, 0 },
    { FILE("mistral") "}", 3, "rope:pairing=half,base=10000,dim=64", 0.125, 4096, 0 },
    { FILE("mistral") ",\"sliding_window\":null}", 3, "rope:pairing=half,base=10000,dim=64", 0.125,
      0, 0 },
    { FILE("qwen2") ",\"sliding_window\":4096,\"use_sliding_window\":false}", 3,
      "rope:pairing=half,base=10000,dim=64", 0.125, 0, 0 },
    { FILE("modernbert") "}", 1, "rope:pairing=half,base=10000,dim=64", 0.125, 65, 0 },
    { FILE("openai_privacy_filter") "}", 1,
      "rope:pairing=interleaved,base=150000,dim=64,scaling=yarn,factor=32,original_length=4096,"
      "beta_fast=32,"
      "beta_slow=1,truncate=0+sink",
      0.125, 129, 0 },
    { FILE("llama4_text") "}", 3, "nope", 0.08838834764831845, 0, 0.1 },
    { FILE("gpt2") "}", 3, "nope", 0.125, 0, 0 },
    { FILE("opt") "}", 3, "nope", 0.125, 0, 0 },
    { FILE("t5") ",\"d_kv\":64}", 3, "t5:bidirectional=0", 1, 0, 0 },
    { FILE("bloom") "}", 3, "alibi", 0.125, 0, 0 },
    { FILE("falcon") ",\"alibi\":true}", 3, "alibi:slopes=given", 0.125, 0, 0 },
    { FILE("zamba2") ",\"use_mem_rope\":true}", 3, "rope:pairing=half,base=10000,dim=64",
      0.17677669529663689, 0, 0 },
    { FILE("granitemoehybrid") ",\"position_embedding_type\":\"rope\"}", 3,
      "rope:pairing=half,base=10000,dim=64", 1, 0, 0 },
    { FILE("granitemoehybrid") "}", 3, "nope", 1, 0, 0 },
    { FILE("phi3") ",\"max_position_embeddings\":4096,\"head_dim\":4,"
                   "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1],"
                   "\"long_factor\":[2,2]}}",
      0,
      "rope:pairing=half,base=10000,dim=4,scaling=longrope,factor=1,original_length=4096,short="
      "1/1,"
      "long=2/2",
      0.5, 0, 0 },
    { FILE("llama") ",\"partial_rotary_factor\":0.5}", 0, "rope:pairing=half,base=10000,dim=64",
      0.125, 0, 0 },
    { FILE("glm4_moe") ",\"head_dim\":42}", 0, "rope:pairing=half,base=15505.157798326254,dim=22",
      0.1543033499620919, 0, 0 },
    { FILE("gpt_neox") ",\"rotary_pct\":0.5,\"rotary_emb_base\":5000,\"rope_theta\":7,"
                       "\"partial_rotary_factor\":1}",
      0, "rope:pairing=half,base=5000,dim=32", 0.125, 0, 0 },
    { FILE("minimax_m2") ",\"head_dim\":128,\"rotary_dim\":64}", 0,
      "rope:pairing=half,base=5000000,dim=64", 0.08838834764831845, 0, 0 },
    { FILE("minimax_m3_vl_text") ",\"rotary_dim\":64}", 0, "rope:pairing=half,base=5000000,dim=128",
      0.08838834764831845, 0, 0 },
    { FILE("muse_spark_text") ",\"layer_rope_theta\":[7,7,0,7,7,7]}", 0,
      "rope:pairing=half,base=500000,dim=64", 5.4730064863875 / 8, 2048, 0 },
    { FILE("muse_spark_text") ",\"layer_rope_theta\":[7,7,0,7,7,7]}", 2, "nope",
      5.4730064863875 / 8, 2048, 0 },
    { FILE("olmo_hybrid") ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":null}"
                          "}",
      3, "nope", 0.125, 0, 0 },
    { FILE("olmo_hybrid") ",\"rope_theta\":null}", 3, "nope", 0.125, 0, 0 },
    { FILE("olmo_hybrid") "}", 3, "rope:pairing=half,base=10000,dim=64", 0.125, 0, 0 },
    { FILE("beam") "}", 5, "nope", 0.08838834764831845, 0, 0 },
    { FILE("beam") "}", 0, "rope:pairing=half,base=10000,dim=128", 0.08838834764831845, 512, 0 },
    { FILE("granite_swa") ",\"layer_rope_theta\":[7,7,0,7,7,7]}", 1,
      "rope:pairing=half,base=7,dim=64", 1, 128, 0 },
    { FILE("qwen3_vl_text") ",\"head_dim\":128}", 0,
      "mrope:pairing=half,base=500000,dim=128,sections=24/20/20,order=interleaved",
      0.08838834764831845, 0, 0 },
    { "{\"model_type\":\"moonshine\",\"hidden_size\":288,\"encoder_num_hidden_layers\":6,"
      "\"decoder_num_hidden_layers\":4,"
      "\"decoder_num_attention_heads\":8}",
      3, "rope:pairing=interleaved,base=10000,dim=32", 1.0 / 6, 0, 0 },
    { "{\"model_type\":\"qwen2_5_omni\","
      "\"thinker_config\":{\"text_config\":" FILE("qwen2_5_omni_text") "}}}",
      0, "rope:pairing=half,base=1000000,dim=64", 0.125, 0, 0 },
    /* nested at most three deep */
    { FILE("llama") ",\"text_config\":" FILE("llama") ",\"text_config\":" FILE(
          "llama") ",\"text_config\":" FILE("qwen2") ",\"rope_theta\":5,\"text_"
                                                     "config\":" FILE("gptj") "}}}}}",
      0, "rope:pairing=half,base=5,dim=64", 0.125, 0, 0 },
    { FILE("llama") ",\"rope_scaling\":{\"rope_theta\":7},\"rope_theta\":8}", 0,
      "rope:pairing=half,base=7,dim=64", 0.125, 0, 0 },
    { FILE("llama") ",\"rope_theta\":1e15}", 0, "rope:pairing=half,base=1e+15,dim=64", 0.125, 0,
      0 },
    { FILE("llama") ",\"layer_types\":[\"attention\",\"mamba\",\"conv\",\"attention\","
                    "\"attention\",\"attention\"],\"rope_parameters\":{\"full_attention\":{"
                    "\"rope_theta\":7}}}",
      3, "rope:pairing=half,base=7,dim=64", 0.125, 0, 0 },
    { FILE("recurrent_gemma") ",\"block_types\":[\"recurrent\",\"recurrent\",\"attention\"]}", 4,
      "nope", 0, 0, 0 },
    { FILE("recurrent_gemma") ",\"block_types\":[\"recurrent\",\"recurrent\",\"attention\"]}", 5,
      "rope:pairing=half,base=10000,dim=32", 0.125, 2048, 0 },
    { FILE("recurrent_gemma") ",\"block_types\":[\"chunked_attention\"]}", 0,
      "rope:pairing=half,base=10000,dim=32", 0.125, 0, 0 },
    { FILE("recurrent_gemma") "}", 2, "rope:pairing=half,base=10000,dim=32", 0.125, 2048, 0 },
    { FILE("recurrent_gemma") "}", 3, "nope", 0, 0, 0 },
    { FILE("recurrent_gemma") ",\"head_dim\":256,\"attention_window_size\":128}", 5,
      "rope:pairing=half,base=10000,dim=128", 0.0625, 128, 0 },
    { FILE("jetmoe") "}", 0, "rope:pairing=half,base=10000,dim=128", 0.08838834764831845, 0, 0 },
    { FILE("jetmoe") ",\"kv_channels\":64}", 0, "rope:pairing=half,base=10000,dim=64", 0.125, 0,
      0 },
    { FILE("esm") "}", 0, "nope", 0.125, 0, 0 },
    { FILE("esm") ",\"position_embedding_type\":\"rotary\"}", 0,
      "rope:pairing=half,base=10000,dim=64", 0.125, 0, 0 },
    { FILE("mistral") ",\"layer_types\":[\"full_attention\",\"sliding_attention\","
                      "\"full_attention\",\"full_attention\",\"full_attention\",\"full_"
                      "attention\"]}",
      0, "rope:pairing=half,base=10000,dim=64", 0.125, 0, 0 },
    { FILE("bamba") ",\"attn_layer_indices\":[3]}", 3, "rope:pairing=half,base=10000,dim=32", 0.125,
      0, 0 },
    { FILE("bamba") ",\"attn_layer_indices\":[3]}", 2, "nope", 0, 0, 0 },
    { FILE("gemma4") ",\"sliding_window_pattern\":4}", 5, "rope:pairing=half,base=1000000,dim=512",
      1, 0, 0 },
    { FILE("dbrx") ",\"attn_config\":{\"rope_theta\":7}}", 0, "rope:pairing=half,base=7,dim=64",
      0.125, 0, 0 },
    { FILE("mpt") ",\"attn_config\":{\"alibi\":true,\"softmax_scale\":0.5}}", 0, "alibi", 0.5, 0,
      0 },
    { FILE("roformer") ",\"rotary_value\":true}", 0, "rope:pairing=interleaved,base=10000,dim=64",
      0.125, 0, 0 },
    { FILE("roformer") "}", 0, "rope:pairing=interleaved,base=10000,dim=64", 0.125, 0, 0 },
    { FILE("ernie4_5_vl_moe") "}", 0, "rope:pairing=interleaved,base=500000,dim=64", 0.125, 0, 0 },
#define V4 \
    FILE("deepseek_v4") \
    ",\"layer_types\":[\"sliding_attention\"," \
    "\"compressed_sparse_attention\",\"heavily_compressed_attention\",\"sliding_attention\"," \
    "\"sliding_attention\",\"sliding_attention\"]"
/* One dictionary, which is about the layers that compress, and ratios in place of kinds. */
#define V4_FLAT \
    FILE("deepseek_v4") \
    ",\"compress_ratios\":[0,4,128,0,0,0,0]," \
    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":16," \
    "\"original_max_position_embeddings\":65536}"
    { FILE("deepseek_v4") ",\"block_types\":[\"linear_attention\"]}", 0, "nope", 0, 0, 0 },
    { V4 "}", 0, "rope:pairing=interleaved,base=10000,dim=64,offset=448,values=1+sink",
      0.044194173824159216, 128, 0 },
    { V4_FLAT "}", 0, "rope:pairing=interleaved,base=10000,dim=64,offset=448,values=1+sink",
      0.044194173824159216, 128, 0 },
    { V4_FLAT "}", 1,
      "rope:pairing=interleaved,base=160000,dim=64,offset=448,scaling=yarn,factor=16,"
      "original_length=65536,attention_factor=1,values=1+sink",
      0.044194173824159216, 0, 0 },
    { V4 "}", 1, "rope:pairing=interleaved,base=160000,dim=64,offset=448,values=1+sink",
      0.044194173824159216, 0, 0 },
    { V4 ",\"rope_parameters\":{\"rope_type\":\"default\"},\"rope_theta\":7,"
         "\"compress_rope_theta\":9}",
      1, "rope:pairing=interleaved,base=9,dim=64,offset=448,values=1+sink", 0.044194173824159216, 0,
      0 },
#define COHERE \
    FILE("cohere2_moe") \
    ",\"mlp_layer_types\":[\"dense\",\"dense\",\"dense\"," \
    "\"dense\",\"sparse\",\"sparse\"]"
#define TURNED "rope:pairing=interleaved,base=10000,dim=128"
    { COHERE "}", 3, TURNED, 0.08838834764831845, 0, 0 },
    { COHERE ",\"prefix_dense_sliding_window_pattern\":1}", 3, TURNED, 0.08838834764831845, 0, 0 },
    { COHERE ",\"prefix_dense_sliding_window_pattern\":4}", 3, "nope", 0.08838834764831845, 0, 0 },
    { COHERE ",\"sliding_window_pattern\":5}", 4, "nope", 0.08838834764831845, 0, 0 },
    { FILE("cohere2_moe") "}", 3, "nope", 0.08838834764831845, 0, 0 },
    { FILE("cohere2_moe") "}", 2, TURNED, 0.08838834764831845, 4096, 0 },
    { FILE("muse_spark_text") "}", 5, "nope", 5.4730064863875 / 8, 0, 0 },
    { FILE("muse_spark_text") "}", 4, "rope:pairing=half,base=500000,dim=64", 5.4730064863875 / 8,
      2048, 0 },
    { FILE("granite_swa") "}", 1, "rope:pairing=half,base=10000,dim=64", 1, 128, 0 },
    { FILE("smollm3") ",\"no_rope_layers\":[]}", 3, "nope", 0.125, 0, 0 },
    { FILE("molmo2") ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", 0,
      "rope:pairing=half,base=10000,dim=128,scaling=linear,factor=2", 0.08838834764831845, 0, 0 },
    { FILE("molmo2") ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
                     "\"rope_scaling_layers\":[1]}",
      1, "rope:pairing=half,base=10000,dim=128,scaling=linear,factor=2", 0.08838834764831845, 0,
      0 },
    { FILE("molmo2") ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
                     "\"rope_scaling_layers\":[1]}",
      0, "rope:pairing=half,base=10000,dim=128", 0.08838834764831845, 0, 0 },
    { FILE("beam") ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7}}", 0,
      "rope:pairing=half,base=10000,dim=128", 0.08838834764831845, 512, 0 },
    { FILE("granitemoehybrid") ",\"position_embedding_type\":\"none\"}", 3, "nope", 1, 0, 0 },
    { FILE("gemma3_text") ",\"use_bidirectional_attention\":\"all\",\"sliding_window\":512}", 0,
      "rope:pairing=half,base=10000,dim=256", 1.0 / 16, 257, 0 },
    { FILE("gemma3_text") ",\"use_bidirectional_attention\":\"vision\",\"sliding_window\":512}", 0,
      "rope:pairing=half,base=10000,dim=256", 1.0 / 16, 512, 0 },
    { FILE("llama4_text") ",\"attn_temperature_tuning\":false}", 3, "nope", 0.08838834764831845, 0,
      0 },
    { FILE("llama4_text") ",\"attn_temperature_tuning\":true,\"attn_scale\":0.25}", 3, "nope",
      0.08838834764831845, 0, 0.25 },
    { FILE("llama4_text") ",\"attn_temperature_tuning\":0}", 3, "nope", 0.08838834764831845, 0, 0 },
    { FILE("llama4_text") ",\"attn_temperature_tuning\":4}", 3, "nope", 0.08838834764831845, 0,
      0.1 },
    /* keys of other types in a dictionary are ignored, and 0 selects the default */
    { FILE("llama") ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"beta_fast\":3,"
                    "\"short_factor\":[]}}",
      0, "rope:pairing=half,base=10000,dim=64,scaling=linear,factor=2", 0.125, 0, 0 },
    { FILE("llama") ",\"max_position_embeddings\":4096,\"rope_scaling\":{\"type\":\"yarn\","
                    "\"original_max_position_embeddings\":1024,\"beta_fast\":0,\"beta_slow\":0}"
                    "}",
      0, "rope:pairing=half,base=10000,dim=64,scaling=yarn,factor=4,original_length=1024", 0.125, 0,
      0 },
    { FILE("hunyuan_v1_dense") ",\"head_dim\":64,\"rope_scaling\":{\"type\":\"dynamic\","
                               "\"alpha\":1000}}",
      0, "rope:pairing=half,base=10000,dim=64,scaling=ntk,factor=1000", 0.125, 0, 0 },
#define PHI \
    FILE("phi3") \
    ",\"max_position_embeddings\":8192,\"head_dim\":4,\"rope_scaling\":" \
    "{\"type\":\"longrope\",\"short_factor\":[1,1],\"long_factor\":[2,2]"
#define LONG "rope:pairing=half,base=10000,dim=4,scaling=longrope,factor=2,original_length=4096,"
    { PHI "}}", 0, LONG "short", 0.5, 0, 0 },
    { FILE("phi3") ",\"max_position_embeddings\":2048,\"head_dim\":4,\"rope_scaling\":{"
                   "\"type\":\"longrope\",\"short_factor\":[1,1],\"long_factor\":[2,2]}}",
      0, "rope:pairing=half,base=10000,dim=4,scaling=longrope,factor=1,original_length=4096", 0.5,
      0, 0 },
    { PHI ",\"short_mscale\":1.5,\"long_mscale\":3}}", 0,
      LONG "attention_factor=1.5,short=1/1,long=2/2", 0.5, 0, 0 },
    { PHI ",\"short_mscale\":1.5,\"attention_factor\":1.25}}", 0,
      LONG "attention_factor=1.25,short", 0.5, 0, 0 },
    { FILE("qwen2_vl_text") ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[8,12,12],"
                            "\"mrope_interleaved\":true}}",
      0, "mrope:pairing=half,base=1000000,dim=64,sections=8/12/12,order=interleaved", 0.125, 0, 0 },
    { FILE("qwen2_vl_text") ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[0,16,16],"
                            "\"interleaved\":true}}",
      0, "mrope:pairing=half,base=1000000,dim=64,sections=0/16/16,order=interleaved", 0.125, 0, 0 },
    { FILE("deepseek_v3") ",\"max_position_embeddings\":64,\"qk_rope_head_dim\":32,"
                          "\"qk_nope_head_dim\":32,\"rope_scaling\":{\"type\":\"yarn\","
                          "\"factor\":1,"
                          "\"mscale_all_dim\":1}}",
      0, "rope:pairing=interleaved,base=10000,dim=32,offset=32,scaling=yarn,factor=1", 0.125, 0,
      0 },
    { FILE("deepseek_v3") ",\"max_position_embeddings\":64,\"qk_rope_head_dim\":32,"
                          "\"qk_nope_head_dim\":32,\"rope_scaling\":{\"type\":\"yarn\","
                          "\"factor\":4}}",
      0, "rope:pairing=interleaved,base=10000,dim=32,offset=32,scaling=yarn,factor=4", 0.125, 0,
      0 },
    { FILE("kyutai_speech_to_text") ",\"layer_types\":[\"conv\",\"conv\",\"conv\","
                                    "\"full_attention\",\"full_attention\",\"full_attention\"]}",
      0, "nope", 0, 0, 0 },
};

static void check_said(const struct said *w)
{
    loci_model *m;
    loci_rope r = { 0 };
    loci_error e = { 0 };
    loci_status s = loci_model_parse(&m, w->json, strlen(w->json), &e);
    if (!s) s = loci_model_rope(m, w->layer, 0, &r, &e);
    CHECK_THAT(!s && !strncmp(r.attention, w->attention, strlen(w->attention)), "%s: %s %s",
               w->json, e.text, s ? "" : r.attention);
    CHECK_THAT(!s && near(r.scale, w->scale) && r.window == w->window && near(r.warmth, w->warmth),
               "%s: scale %.17g, window %d, warmth %g", w->json, r.scale, (int)r.window, r.warmth);
    loci_rope_free(&r);
    loci_model_close(m);
}

/* Whether values are rotated as keys are, and the name of the kind of layer. */
static void check_kinds(void)
{
    static const struct {
        const char *json;
        bool values;
        const char *layer;
    } list[] = {
        { FILE("roformer") ",\"rotary_value\":true}", true, "full_attention" },
        { FILE("roformer") "}", false, "full_attention" },
        { V4 "}", true, "sliding_attention" },
        { FILE("ernie4_5_vl_moe") "}", false, "full_attention" },
        { FILE("deepseek_v4") ",\"block_types\":[\"linear_attention\"]}", false,
          "linear_attention" },
        { FILE("bamba") ",\"attn_layer_indices\":[3]}", false, "linear_attention" },
        { FILE("lfm2") ",\"full_attn_idxs\":[3]}", false, "conv" },
        { FILE("zamba2") ",\"hybrid_layer_ids\":[0]}", false, "full_attention" },
    };
    for (int i = 0; i < COUNT(list); i++) {
        loci_model *m;
        loci_rope r = { 0 };
        loci_error e = { 0 };
        CHECK_THAT(!loci_model_parse(&m, list[i].json, strlen(list[i].json), &e)
                       && !loci_model_rope(m, 0, 0, &r, &e) && r.values == list[i].values
                       && !strcmp(r.layer, list[i].layer),
                   "%s: %s, %s, values %d", list[i].json, e.text, r.layer ? r.layer : "", r.values);
        loci_rope_free(&r);
        loci_model_close(m);
    }
}

/* Dual Chunk Attention of Qwen's models for a million tokens. */
static void check_dual_chunks(void)
{
    static const struct {
        const char *chunks; /* dual_chunk_attention_config */
        double length;
        const char *says; /* the encoding, or part of the sentence */
    } list[] = {
        { "{\"chunk_size\":262144,\"local_size\":8192,\"original_max_position_embeddings\":262144}",
          0, "dca:pairing=half,base=10000,dim=64,chunk=262144,local=8192" },
        { "{\"chunk_size\":262144,\"local_size\":8192,\"original_max_position_embeddings\":1000}",
          1000, "dca:pairing=half,base=10000,dim=64,chunk=262144,local=8192" },
        /* 1 + ln(e) / 10 */
        { "{\"chunk_size\":30,\"local_size\":8,\"original_max_position_embeddings\":1}",
          2.718281828459045,
          "dca:pairing=half,base=10000,dim=64,attention_factor=1.1,chunk=30,local=8" },
        { "{}", 1e6, "dca:pairing=half,base=10000,dim=64,chunk=8192,local=1024" },
        { "null", 0, "rope:pairing=half,base=10000,dim=64" },
        { "{\"chunk_size\":100}", 0, "local_size 1024 must be less than chunk_size 100" },
        { "{\"chunk_size\":1.5}", 0, "chunk_size" },
    };
    for (int i = 0; i < COUNT(list); i++) {
        char json[512];
        loci_model *m = NULL;
        loci_rope r = { 0 };
        loci_error e = { 0 };
        snprintf(json, sizeof json, FILE("qwen2") ",\"dual_chunk_attention_config\":%s}",
                 list[i].chunks);
        const bool read = !loci_model_parse(&m, json, strlen(json), &e)
                       && !loci_model_rope(m, 0, list[i].length, &r, &e);
        CHECK_THAT(read ? !strcmp(r.encoding, list[i].says)
                        : strchr(list[i].says, ':') == NULL && strstr(e.text, list[i].says),
                   "%s: %s%s", list[i].chunks, read ? r.encoding : "", e.text);
        loci_rope_free(&r);
        loci_model_close(m);
    }
}

/* Falcon's slopes: those of ALiBi in bfloat16, divided by the root of the head's width. */
static void check_slopes(void)
{
    static const char json[] =
        "{\"model_type\":\"falcon\",\"alibi\":true,\"hidden_size\":768,\"num_attention_heads\":12,"
        "\"num_hidden_layers\":2}";
    static const double bf16[12] = { 0.5,        0.25,        0.125,        0.0625,
                                     0.03125,    0.015625,    0.0078125,    0.00390625,
                                     0.70703125, 0.353515625, 0.1767578125, 0.08837890625 };
    loci_model *m;
    loci_rope r = { 0 };
    loci_error e = { 0 };
    CHECK_THAT(!loci_model_parse(&m, json, strlen(json), &e) && !loci_model_rope(m, 0, 0, &r, &e)
                   && r.slopes && r.heads == 12,
               "falcon: %s", e.text);
    for (int h = 0; h < 12 && r.slopes; h++)
        CHECK_THAT(near(r.slopes[h], bf16[h] / 8), "falcon: slope %d is %.17g", h, r.slopes[h]);
    loci_rope_free(&r);
    loci_model_close(m);
}

/* ---- Callers' mistakes ----------------------------------------------------------------------- */

static void check_callers(void)
{
    const char *json = FILE("llama") "}";
    loci_model *m, *other = NULL;
    loci_rope r;
    loci_error e = { 0 };
    CHECK_THAT(!loci_model_parse(&m, json, strlen(json), &e), "%s", e.text);
    CHECK_SAYS(loci_model_open(NULL, "x", &e), LOCI_BAD_ARG, &e, "model must not be NULL");
    CHECK_SAYS(loci_model_open(&other, NULL, &e), LOCI_BAD_ARG, &e, "path must not be NULL");
    CHECK_SAYS(loci_model_parse(NULL, "{}", 2, &e), LOCI_BAD_ARG, &e, "model must not be NULL");
    CHECK_SAYS(loci_model_parse(&other, NULL, 2, &e), LOCI_BAD_ARG, &e, "bytes must not be NULL");
    CHECK_SAYS(loci_model_parse(&other, NULL, 0, &e), LOCI_BAD_ARG, &e,
               "neither GGUF nor valid JSON");
    CHECK_SAYS(loci_model_rope(NULL, 0, 0, &r, &e), LOCI_BAD_ARG, &e, "model must not be NULL");
    CHECK_SAYS(loci_model_rope(m, 0, 0, NULL, &e), LOCI_BAD_ARG, &e, "no place for the result");
    CHECK_SAYS(loci_model_rope(m, -1, 0, &r, &e), LOCI_BAD_ARG, &e, "layer -1 must be from 0");
    CHECK_SAYS(loci_model_rope(m, 0, NAN, &r, &e), LOCI_BAD_ARG, &e, "the context length");
    CHECK_THAT(loci_model_parse(&other, NULL, 2, NULL) == LOCI_BAD_ARG
                   && loci_model_rope(m, 9, 0, &r, NULL) == LOCI_BAD_ARG,
               "no place for an error");
    CHECK_SAYS(loci_model_rope(m, 0, 2e18, &r, &e), LOCI_BAD_ARG, &e, "the context length");
    CHECK_SAYS(loci_model_open(&other, "tests/none", &e), LOCI_BAD_ARG, &e,
               "tests/none: cannot open: No");
    CHECK_SAYS(loci_model_open(&other, "tests/cases", &e), LOCI_BAD_ARG, &e, "this is a folder");
    CHECK_SAYS(loci_model_open(&other, "README.md", &e), LOCI_BAD_ARG, &e,
               "README.md: neither GGUF");
    char path[2000] = "";
    for (int i = 0; i < 400; i++) strcat(path, "./..");
    strcat(path, "/none");
    CHECK_SAYS(loci_model_open(&other, path, &e), LOCI_BAD_ARG, &e, "/none: cannot open: ");
    CHECK_THAT(!strncmp(e.text, "...", 3) && strlen(e.text) == sizeof e.text - 1, "%s", e.text);
    CHECK_SAYS(loci_model_open(&other, "/dev/null", &e), LOCI_BAD_ARG, &e, "not a regular file");
    CHECK_THAT(!other && loci_model_layers(NULL) == 0 && !strcmp(loci_model_type(NULL), ""),
               "a NULL model");
    loci_model_close(NULL);
    loci_rope_free(NULL);
    loci_model_close(m);
}

/* A longrope file of 12 KB whose heads are far wider than any list has its own error in every
 * build. */
static void check_wide_head(void)
{
    enum { N = 2000 };
    char *text = malloc(64 * 1024), *at = text;
    if (!text) exit(2);
    at += sprintf(at,
                  "{\"model_type\":\"llama\",\"hidden_size\":%d,\"num_attention_heads\":1,"
                  "\"num_hidden_layers\":1,"
                  "\"max_position_embeddings\":8192,\"rope_scaling\":{\"type\":\"longrope\","
                  "\"original_max_position_embeddings\":4096",
                  2 * N);
    for (int k = 0; k < 2; k++) {
        at += sprintf(at, ",\"%s_factor\":[", k ? "long" : "short");
        for (int i = 0; i < N; i++) at += sprintf(at, i ? ",1" : "1");
        at += sprintf(at, "]");
    }
    sprintf(at, "}}");
    check_broken(text, "the head has 4000 channels, but must have 1 to 1024");
    free(text);
}

/* No config.json has a megabyte, and a longer one is not read. */
static void check_long(void)
{
    enum { MOST = 1 << 20 };
    char *text = malloc(MOST + 1);
    loci_model *m;
    loci_error e;
    if (!text) exit(2);
    memset(text, ' ', MOST + 1);
    memcpy(text, FILE("llama") "}", strlen(FILE("llama") "}"));
    CHECK_THAT(!loci_model_parse(&m, text, MOST, &e), "a config.json of a megabyte");
    loci_model_close(m);
    CHECK_SAYS(loci_model_parse(&m, text, MOST + 1, &e), LOCI_BAD_ARG, &e, "has 1048577 bytes");
    free(text);
}

int main(void)
{
    static const char *const folders[] = { "tests/cases/rope", "tests/cases/models" };
    out = scratch_file();
    err = scratch_file();
    if (!out || !err) return 2;
    for (int f = 0; f < COUNT(folders); f++) {
        struct dirent *entry;
        DIR *dir = opendir(folders[f]);
        const int before = harness_checks();
        while (dir && (entry = readdir(dir))) check_file(folders[f], entry->d_name);
        if (dir) closedir(dir);
        CHECK_THAT(harness_checks() > before + 100, "%s holds too little", folders[f]);
    }
    check_families("tests/cases/families.jsonl");
    for (int i = 0; i < COUNT(saids); i++) check_said(&saids[i]);
    check_slopes();
    check_dual_chunks();
    check_kinds();
    check_callers();
    check_wide_head();
    check_long();
    for (int i = 0; i < COUNT(broken); i++) check_broken(broken[i].json, broken[i].says);
    fclose(out);
    fclose(err);
    return harness_end();
}
