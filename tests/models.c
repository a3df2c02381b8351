/* SPDX-License-Identifier: MIT */
/* models.c -- `loci rope` on the files of models: what NAME.expect.json says about NAME.json or NAME.gguf, and the refusal of
 * files beside a NAME.error.  The folders are tests/cases/rope, whose frequencies come from another implementation, and
 * tests/cases/models, one file per family. */
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
#include "scratch.h"

static int passed, failed;
static FILE *out, *err;                  /* what the command prints */

#define CHECK(ok, ...) ((ok) ? (void)passed++ : (void)(failed++, printf("models: " __VA_ARGS__), printf("\n")))

/* Runs the command; its exit code. */
static int rope(int count, char **argv)
{
    struct args a;
    const int to[2] = { dup(1), dup(2) };
    fflush(stdout);
    rewind(out), rewind(err);
    if (ftruncate(fileno(out), 0) || ftruncate(fileno(err), 0)) exit(1);
    dup2(fileno(out), 1), dup2(fileno(err), 2);
    const int code = args_parse(&a, &cmd_rope, count, argv) ? cmd_rope.run(&a) : EXIT_ERROR;
    fflush(stdout), fflush(stderr);
    for (int i = 0; i < 2; i++) dup2(to[i], 1 + i), close(to[i]);
    return code;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }
static bool same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return near(json_number_value(a), json_number_value(b));
    if (!json_is_array(a) || !json_is_array(b)) return json_equal(a, b);
    if (json_array_size(a) != json_array_size(b)) return false;
    for (size_t i = 0; i < json_array_size(a); i++)
        if (!same(json_array_get(a, i), json_array_get(b, i))) return false;
    return true;
}

/* A text stands for the rotation that a plan makes of it. */
static bool same_encoding(const char *a, const char *b, int dim, double factor)
{
    enum { ROOM = 512 };
    double w[2][ROOM], m[2] = { 0, 0 };
    const char *text[2] = { a, b };
    int n[2];
    for (int i = 0; i < 2; i++) {
        loci_plan *plan;
        loci_error e;
        const loci_desc d = { .encoding = text[i], .stage = LOCI_ROTATE, .heads = 1, .dim = dim };
        if (loci_plan_create(&plan, &d, &e)) return printf("models: %s\n", e.text), false;
        n[i] = loci_frequencies(plan, w[i], ROOM, &m[i]);
        loci_plan_destroy(plan);
    }
    bool ok = n[0] == n[1] && n[0] > 0 && near(m[0], factor) && near(m[1], factor) && strcspn(a, ",") == strcspn(b, ",");
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
    json_array_foreach(json_object_get(query, "args"), i, v) if (n < 16) argv[n++] = (char *)json_string_value(v);
    const int code = rope(n, argv);
    rewind(out), rewind(err);
    if (fread(said, 1, sizeof said - 1, err) == 0) said[0] = 0;
    json_t *got = code ? NULL : json_loadf(out, 0, NULL);
    CHECK(got, "%s: exit code %d, %s", path, code, said);
    if (!got) return;
    const json_t *expect = json_object_get(query, "expect");
    json_object_foreach((json_t *)expect, key, v) {
        const json_t *g = json_object_get(got, key);
        bool ok;
        if (!strcmp(key, "encoding") && json_is_true(json_object_get(got, "rope")))
            ok = same_encoding(json_string_value(g), json_string_value(v), (int)json_integer_value(json_object_get(got, "head_dim")),
                               json_number_value(json_object_get(got, "attention_factor")));
        else ok = g && same(g, v);
        char *text = json_dumps(g, JSON_ENCODE_ANY);
        CHECK(ok, "%s, layer %s: %s is %.300s", path, argv[3] ? argv[3] : "0", key, text ? text : "missing");
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
    CHECK(code == EXIT_ERROR && lseek(fileno(out), 0, SEEK_END) == 0 && n > 0 && strchr(text, '\n') == text + n - 1 &&
          !strncmp(text, "loci: ", 6) && strstr(text, path), "%s: exit code %d, said: %s", path, code, text);
}

/* The table for people: done, within 140 columns, and about every layer. */
static void check_table(const char *path)
{
    char line[1024], *argv[] = { (char *)path };
    size_t longest = 0;
    const int code = rope(1, argv);
    rewind(out);
    while (fgets(line, sizeof line, out)) longest = strlen(line) > longest ? strlen(line) : longest;
    CHECK(code == EXIT_DONE && longest > 20 && longest <= 140, "%s: the table has exit code %d and %zu columns", path, code, longest);
}

static bool ends(const char *name, const char *with)
{
    const size_t n = strlen(name), m = strlen(with);
    return n > m && !strcmp(name + n - m, with);
}

/* NAME.expect.json or NAME.error: the file NAME.json or NAME.gguf beside it. */
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
    CHECK(root, "%s: %s", path, why.text);
    json_array_foreach(json_object_get(root, "queries"), i, query) check_query(of, query);
    json_decref(root);
    check_table(of);
}

/* ---- One rule broken at a time ---------------------------------------------------------------------------- */

static const struct { const char *json, *says; } broken[] = {
#define LLAMA "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":4,\"num_hidden_layers\":2,\"max_position_embeddings\":128"
    { "[]", "an object" }, { "{}", "model_type is missing" }, { "", "neither GGUF nor sound JSON" },
    { "{\"model_type\":\"lama\"}", "'lama' is not known" }, { "{\"model_type\":\"llama\"}", "num_hidden_layers is missing" },
    { "{\"model_type\":\"llama\",\"num_hidden_layers\":2}", "head_dim is missing" },
    { LLAMA ",\"num_hidden_layers\":2}", "duplicate" }, { LLAMA ",\"rope_theta\":0}", "rope_theta is 0" },
    { LLAMA ",\"rope_theta\":\"1e4\"}", "rope_theta must be a number" }, { LLAMA ",\"rope_theta\":1e999}", "sound JSON" },
    { LLAMA ",\"rope_theta\":1e19}", "at most 1e18" }, { LLAMA ",\"rope_theta\":0.5}", "base" },
    { LLAMA ",\"head_dim\":0}", "from 1 to 1024" }, { LLAMA ",\"head_dim\":33}", "dim 33 must be even" },
    { LLAMA ",\"head_dim\":1e3}", "whole number" }, { LLAMA ",\"partial_rotary_factor\":1.5}", "no more than 1" },
    { LLAMA ",\"partial_rotary_factor\":1e-9}", "cannot turn" }, { LLAMA ",\"rope_scaling\":4}", "an object or null" },
    { LLAMA ",\"rope_scaling\":{\"factor\":4}}", "no rope_type" }, { LLAMA ",\"rope_scaling\":{\"type\":4}}", "must be a word" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"4\"}}", "factor must be a number" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4,\"betafast\":1}}", "'betafast'; known here: rope_type" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":4}}", "original_max_position_embeddings is missing" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":4,\"original_max_position_embeddings\":64}}", "low_freq_factor is missing" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":4}}", "short_factor is missing" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[4,4]}}", "has 2 numbers" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[4,4,4]}}", "adds up to 12 pairs, but the head has 8" },
    { LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"truncate\":1}}", "true or false" },
    { LLAMA ",\"rope_parameters\":{\"full_attention\":{},\"rope_theta\":1}}", "also the key 'rope_theta'" },
    { LLAMA ",\"rope_parameters\":{\"sliding_attention\":{}}}", "has no 'full_attention'" },
    { LLAMA ",\"layer_types\":[\"full_attention\"]}", "one per layer" }, { LLAMA ",\"layer_types\":[\"full_attention\",\"half\"]}", "'half' for layer 1" },
    { LLAMA ",\"qk_rope_head_dim\":64}", "qk_nope_head_dim is missing" }, { LLAMA ",\"rotary_dim\":64}", "64 of 16 channels" },
    { LLAMA ",\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}", "more than 32 deep" },
#define FAMILY(type) "{\"model_type\":\"" type "\",\"hidden_size\":64,\"num_attention_heads\":4,\"num_hidden_layers\":2"
    { FAMILY("mpt") "}", "attn_config is missing" }, { FAMILY("mpt") ",\"attn_config\":{}}", "must say alibi true" },
    { FAMILY("mpt") ",\"attn_config\":{\"alibi\":true,\"rope\":true}}", "and rope not" },
    { FAMILY("mpt") ",\"attn_config\":{\"alibi\":true,\"alibi_bias_max\":16}}", "alibi_bias_max is 16" },
    { FAMILY("chatglm") ",\"position_encoding_2d\":true}", "kv_channels is missing" },
    { FAMILY("chatglm") ",\"kv_channels\":16,\"rope_ratio\":50,\"padded_vocab_size\":65024}", "which of two things" },
    { FAMILY("lfm2") ",\"full_attn_idxs\":[2]}", "must be a layer, 0 to 1" }, { FAMILY("lfm2") ",\"full_attn_idxs\":7}", "a list of layers" },
    { FAMILY("lfm2_moe") "}", "rope_theta is missing" },
    { "GGUF", "ends early" }, { "GGUF\1", "ends early" }, { "GGUF\1\0\0", "ends early" },
};

static void check_broken(const char *json, const char *says)
{
    loci_model *m;
    loci_rope r;
    loci_error e = { 0 };
    loci_status s = loci_model_parse(&m, json, strlen(json), &e);
    if (!s) s = loci_model_rope(m, 0, 0, &r, &e);
    CHECK(s == LOCI_BAD_ARG && strstr(e.text, says) && (!m || (!r.encoding && !r.frequency)), "%s: %d, %s", json, (int)s, e.text);
    loci_model_close(m);
}

int main(void)
{
    static const char *const folders[] = { "tests/cases/rope", "tests/cases/models" };
    out = scratch_file(), err = scratch_file();
    if (!out || !err) return 2;
    for (int f = 0; f < COUNT(folders); f++) {
        struct dirent *entry;
        DIR *dir = opendir(folders[f]);
        const int before = passed + failed;
        while (dir && (entry = readdir(dir))) check_file(folders[f], entry->d_name);
        if (dir) closedir(dir);
        CHECK(passed + failed > before + 100, "%s holds too little", folders[f]);
    }
    for (int i = 0; i < COUNT(broken); i++) check_broken(broken[i].json, broken[i].says);
    fclose(out), fclose(err);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
