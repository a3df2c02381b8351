/* SPDX-License-Identifier: MIT */
/* gguf_model.c -- a model in a GGUF file: the decisions of its architecture, and the tensors
 * that determine how pairs rotate.
 *
 * Engines and this reader agree on the rule: a pair's frequency is base^(-2t/dim), divided by
 * rope_freqs.weight[t] if that exists, or by rope_factors_short/long; then scaled as
 * rope.scaling.type says.  The weights of the llama family were permuted when the file was
 * written, so that their pairs are interleaved; the architecture decides. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/gguf.h"

/* ---- Decisions of architectures -------------------------------------------------------------- */

/* A name alone rotates plain halves of whole heads in every layer. */
static const struct arch archs[] = {
    { "afmoe", .layers = SLIDING_ROTATES, .period = 4 },
    { .name = "apertus" },
    { "arcee", .interleaved = true },
    { "arctic", .interleaved = true },
    { "baichuan", .interleaved = true },
    { "bailingmoe", .interleaved = true },
    { .name = "bailingmoe2" },
    { .name = "bitnet" },
    { "chameleon", .interleaved = true },
    { "chatglm", .interleaved = true },
    { .name = "codeshell" },
    { .name = "cogvlm" },
    { "cohere2", .interleaved = true, .layers = SLIDING_ROTATES, .period = 4 },
    { "cohere2moe", .interleaved = true, .layers = SLIDING_ROTATES, .period = 4 },
    { "command-r", .interleaved = true },
    { .name = "dbrx" },
    { "deci", .interleaved = true },
    { "deepseek", .interleaved = true },
    { "deepseek2", .interleaved = true, .last = true },
    { "deepseek2-ocr", .interleaved = true, .last = true },
    { "deepseek32", .interleaved = true, .last = true },
    { .name = "dots1" },
    { .name = "dream" },
    { "ernie4_5", .interleaved = true },
    { "ernie4_5-moe", .interleaved = true },
    { .name = "eurobert" },
    { .name = "exaone" },
    { "exaone-moe", .layers = SLIDING_ROTATES, .period = 4 },
    { "exaone4", .layers = SLIDING_ROTATES, .period = 4 },
    { .name = "falcon" },
    { .name = "falcon-h1" },
    { .name = "gemma" },
    { "gemma-embedding", .layers = LOCAL_BASE, .period = 6, .both = true },
    { "gemma2", .period = 2, .window = 4096, .cap = 50 },
    { "gemma3", .layers = LOCAL_BASE, .period = 6 },
    { "gemma3n", .layers = LOCAL_BASE, .period = 5, .scale = 1 },
    { "gemma4", .layers = LOCAL_BASE, .scale = 1 },
    { "glm-dsa", .interleaved = true, .last = true },
    { "glm4", .interleaved = true },
    { .name = "glm4moe" },
    { "gpt-oss", .period = 2 },
    { .name = "gptneox" },
    { "granite", .interleaved = true, .finetuned = true },
    { "granitehybrid", .interleaved = true, .layers = SOME_CONVOLVE, .finetuned = true },
    { "granitemoe", .interleaved = true, .finetuned = true },
    { "grok", .scale = 0.08838834764831845, .cap = 30 },
    { .name = "grovemoe" },
    { .name = "hunyuan-dense" },
    { .name = "hunyuan-moe" },
    { .name = "hunyuan_vl" },
    { .name = "hy_v3" },
    { "internlm2", .interleaved = true },
    { .name = "jais2" },
    { .name = "jina-bert-v3" },
    { "laguna", .layers = LOCAL_BASE, .period = 4, .first = true },
    { "lfm2", .layers = SOME_CONVOLVE },
    { "lfm2moe", .layers = SOME_CONVOLVE },
    { "llada", .interleaved = true },
    { .name = "llada-moe" },
    { "llama", .interleaved = true },
    { "llama-embed", .interleaved = true },
    { "llama4", .interleaved = true, .layers = SOME_ROTATE, .period = 4 },
    { "maincoder", .interleaved = true },
    { "mimo2", .layers = LOCAL_BASE },
    { "minicpm", .interleaved = true },
    { "minicpm3", .last = true },
    { .name = "minimax-m2" },
    { "mistral3", .interleaved = true },
    { "mistral4", .interleaved = true, .last = true },
    { "modern-bert", .layers = LOCAL_BASE, .period = 3, .first = true, .both = true },
    { "neo-bert", .interleaved = true },
    { .name = "nemotron" },
    { .name = "nomic-bert" },
    { .name = "nomic-bert-moe" },
    { "olmo", .interleaved = true },
    { "olmo2", .layers = FULL_SCALED, .period = 4 },
    { .name = "olmoe" },
    { .name = "openelm" },
    { .name = "orion" },
    { .name = "paddleocr" },
    { .name = "pangu-embedded" },
    { .name = "phi2" },
    { .name = "phi3" },
    { .name = "phimoe" },
    { .name = "plamo" },
    { "plamo2", .layers = SOME_CONVOLVE },
    { "plm", .interleaved = true, .last = true },
    { .name = "qwen" },
    { .name = "qwen2" },
    { .name = "qwen2moe" },
    { .name = "qwen2vl" },
    { .name = "qwen3" },
    { .name = "qwen3moe" },
    { "qwen3next", .layers = SOME_RECUR, .period = 4 },
    { "qwen3vl", .spread = true },
    { "qwen3vlmoe", .spread = true },
    { "qwen35", .spread = true, .layers = SOME_RECUR, .period = 4 },
    { "qwen35moe", .spread = true, .layers = SOME_RECUR, .period = 4 },
    { .name = "rnd1" },
    { .name = "seed_oss" },
    { "smallthinker", .layers = SOME_ROTATE, .period = 4, .first = true },
    { "smollm3", .interleaved = true, .layers = SOME_ROTATE, .period = 4 },
    { .name = "stablelm" },
    { .name = "starcoder2" },
    { "step35", .layers = LOCAL_BASE },
    { .name = "talkie" },
    { "xverse", .interleaved = true },
    /* No rotation: positions are in the embeddings, in a bias or in the recurrence. */
    { "arwkv7", .instead = "nope" },
    { "bert", .instead = "nope" },
    { "bloom", .instead = "alibi" },
    { "gpt2", .instead = "nope" },
    { "jais", .instead = "nope", .alibi_key = true },
    { "jamba", .instead = "nope" },
    { "jina-bert-v2", .instead = "alibi" },
    { "kimi-linear", .instead = "nope" },
    { "mamba", .instead = "nope" },
    { "mamba2", .instead = "nope" },
    { "mpt", .instead = "nope", .alibi_key = true },
    { "nemotron_h", .instead = "nope" },
    { "nemotron_h_moe", .instead = "nope" },
    { "refact", .instead = "alibi" },
    { "rwkv6", .instead = "nope" },
    { "rwkv6qwen2", .instead = "nope" },
    { "rwkv7", .instead = "nope" },
    { "starcoder", .instead = "nope" },
    { "t5", .instead = "t5:bidirectional=0", .scale = 1 },
    { "t5encoder", .instead = "t5:bidirectional=1", .scale = 1 },
};
enum { ARCHS = sizeof archs / sizeof *archs };

/* ---- Settings -------------------------------------------------------------------------------- */

const struct entry *loci_gguf_setting(const struct gguf_model *g, const char *name)
{
    char full[128]; /* both parts are names from this file, and short */
    snprintf(full, sizeof full, "%s.%s", g->arch->name, name);
    return loci_gguf_find(&g->file, full);
}

/* A list that is too long to be stored has count 0, and so no number for any layer. */
loci_status loci_gguf_number(const struct gguf_model *g, const char *name, int layer, double low,
                             double high, double *to, loci_error *e)
{
    const struct entry *v = loci_gguf_setting(g, name);
    if (!v) return LOCI_OK;
    IO_CHECK(e, v->type != STRING && (!v->array || layer < v->count), "%s must be a number%s", name,
             v->array ? ", or one per layer" : "");
    const double x = v->value[v->array ? layer : 0];
    IO_CHECK(e, x >= low && x <= high, "%s is %g, but must be from %g to %g", name, x, low, high);
    *to = x;
    return LOCI_OK;
}

loci_status loci_gguf_whole(const struct gguf_model *g, const char *name, int layer, int low,
                            int high, int *to, loci_error *e)
{
    double x = *to;
    loci_status s = loci_gguf_number(g, name, layer, low, high, &x, e);
    if (s) return s;
    IO_CHECK(e, x == floor(x), "%s is %g, but must be a whole number", name, x);
    *to = (int)x;
    return LOCI_OK;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

const char *const loci_gguf_factor_names[FACTORS] = {
    [FREQS] = "rope_freqs.weight",
    [SHORT] = "rope_factors_short.weight",
    [LONG] = "rope_factors_long.weight",
};

/* A factor divides a frequency: 0 would give none, and a factor that is not finite is invalid. */
static loci_status read_factors(struct gguf_model *g, const struct source *from, enum factors k,
                                loci_error *e)
{
    const struct place *p = loci_gguf_tensor(&g->file, loci_gguf_factor_names[k]);
    float x[MAX_PAIRS_READ];
    if (!p) return LOCI_OK;
    IO_CHECK(e, p->type == 0, "%s must be stored as F32 (type 0), not as type %u", p->name,
             (unsigned)p->type);
    IO_CHECK(e, p->count >= 1 && p->count <= MAX_PAIRS_READ,
             "%s has %" PRIu64 " numbers, but must have 1 to %d", p->name, p->count,
             MAX_PAIRS_READ);
    const loci_status s = loci_gguf_floats(&g->file, from, p, x, e);
    if (s) return s;
    g->factor_count[k] = (int)p->count;
    for (int i = 0; i < g->factor_count[k]; i++) {
        g->factors[k][i] = x[i];
        IO_CHECK(e, x[i] > 0 && x[i] <= STILL,
                 "number %d of %s is %g, but must be above 0 and at most 1e30", i, p->name,
                 (double)x[i]);
    }
    return LOCI_OK;
}

/* Learned logits in the softmax are recognised by their tensors: no key declares them. */
static void find_sinks(struct gguf_model *g)
{
    for (int l = 0; l < g->layers; l++) {
        char name[40];
        snprintf(name, sizeof name, "blk.%d.attn_sinks.weight", l);
        g->sinks[l] = loci_gguf_tensor(&g->file, name) != NULL;
    }
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void close_gguf(struct loci_model *m)
{
    struct gguf_model *g = m->file;
    loci_gguf_free(&g->file);
    free(g);
}

static loci_status find_arch(struct gguf_model *g, loci_error *e)
{
    const struct entry *v = loci_gguf_find(&g->file, "general.architecture");
    IO_CHECK(e, v && v->text,
             "general.architecture is missing; it determines the pairing of channels");
    for (int i = 0; i < ARCHS; i++)
        if (!strcmp(archs[i].name, v->text)) g->arch = &archs[i];
    IO_CHECK(e, g->arch,
             "architecture '%.32s' is not supported, and its pairing would be a guess; "
             "docs/models.md lists the supported ones",
             v->text);
    return LOCI_OK;
}

/* The architecture comes before all other keys, whose names begin with it. */
static loci_status read_file(struct gguf_model *g, const struct source *from, loci_error *e)
{
    const struct entry *count;
    loci_status s;
    if ((s = loci_gguf_read(&g->file, from, e)) || (s = find_arch(g, e))) return s;
    count = loci_gguf_setting(g, "block_count");
    IO_CHECK(e, !count || !count->array, "%s.block_count must be one number, not a list",
             g->arch->name);
    if ((s = loci_gguf_whole(g, "block_count", 0, 1, MAX_LAYERS, &g->layers, e))) return s;
    IO_CHECK(e, g->layers > 0, "%s.block_count is missing", g->arch->name);
    for (enum factors k = 0; k < FACTORS; k++)
        if ((s = read_factors(g, from, k, e))) return s;
    find_sinks(g);
    loci_gguf_free_places(&g->file); /* thousands of names, not needed any more */
    return LOCI_OK;
}

/* All or nothing: if a file fails, everything read of it is freed immediately. */
loci_status loci_gguf_open(struct loci_model *m, const struct source *from, loci_error *e)
{
    struct gguf_model *g = calloc(1, sizeof *g);
    if (!g) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    m->file = g;
    m->read = loci_gguf_layer;
    m->close = close_gguf;
    const loci_status s = read_file(g, from, e);
    if (s) {
        close_gguf(m);
        return s;
    }
    m->layers = g->layers;
    strcpy(m->type, g->arch->name);
    return LOCI_OK;
}
