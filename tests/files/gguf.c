/* SPDX-License-Identifier: MIT */
/* gguf.c -- GGUF files written here, key by key: the effect of each key on the rotation, and files
 * that break one rule. */
#define _DEFAULT_SOURCE
#include "inject.h"

#include <math.h>
#include <stdint.h>

#include "models/model.h"
#include "util/byte_order.h"
#include "harness.h"
#include "scratch.h"

/* ---- Writing --------------------------------------------------------------------------------- */

enum {
    T_U8,
    T_I8,
    T_U16,
    T_I16,
    T_U32,
    T_I32,
    T_F32,
    T_BOOL,
    T_STRING,
    T_ARRAY,
    T_U64,
    T_I64,
    T_F64,
    ROOM = 1 << 15
};
static unsigned char file[ROOM];
static size_t end;
/* raw: tensors put by hand, after all keys */
static uint64_t keys, tensors, raw;
static unsigned char version = 3;
static bool big; /* numbers are big-endian */
static struct {
    const char *name;
    float value;
    uint64_t count, off;
    uint32_t type;
} tensor[4];
static const char *arch;

static void put(const void *p, size_t n)
{
    memcpy(file + end, p, n);
    end += n;
}
static void put_numbers(const void *p, size_t n, size_t each)
{
    put(p, n * each);
    if (big != BIG_ENDIAN_HERE) reverse_bytes(file + end - n * each, n, each);
}
static void put32(uint32_t x) { put_numbers(&x, 1, 4); }
static void put64(uint64_t x) { put_numbers(&x, 1, 8); }
static void put_string(const char *s)
{
    put64(strlen(s));
    put(s, strlen(s));
}
static void key(const char *name, uint32_t type)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s%s", strncmp(name, "general.", 8) ? arch : "",
             strncmp(name, "general.", 8) ? "." : "", name);
    put_string(full);
    put32(type);
    keys++;
}
static void words(const char *name, const char *value)
{
    key(name, T_STRING);
    put_string(value);
}
static void whole(const char *name, uint32_t value)
{
    key(name, T_U32);
    put32(value);
}
static void number(const char *name, float value)
{
    key(name, T_F32);
    put_numbers(&value, 1, 4);
}
static void list(const char *name, uint32_t n, const uint32_t *value)
{
    key(name, T_ARRAY);
    put32(T_U32);
    put64(n);
    for (uint32_t i = 0; i < n; i++) put32(value[i]);
}
/* `count` numbers value, value + 1, ...; they must be the last. */
static void factors(const char *name, float value, uint64_t count)
{
    tensor[tensors].name = name;
    tensor[tensors].value = value;
    tensor[tensors].count = count;
    tensor[tensors].off = 0;
    tensor[tensors++].type = 0;
}
/* Heads of 64 channels, 8 layers, 4096 positions; all keys except the named ones. */
static void start_without(const char *architecture, const char *without)
{
    static const struct {
        const char *name;
        uint32_t value;
    } usual[] = {
        { "block_count", 8 },
        { "context_length", 4096 },
        { "embedding_length", 512 },
        { "attention.head_count", 8 },
    };
    end = 24;
    keys = tensors = raw = 0;
    arch = architecture;
    words("general.architecture", architecture);
    for (int i = 0; i < 4; i++)
        if (!strstr(without, usual[i].name)) whole(usual[i].name, usual[i].value);
}
static void start(const char *architecture) { start_without(architecture, ""); }
/* not 0: this number of divisors are equal, and later ones disable their pairs */
static uint64_t still;
static size_t finish(void)
{
    uint64_t at = 0;
    for (uint64_t i = 0; i < tensors; i++) {
        put_string(tensor[i].name);
        put32(1);
        put64(tensor[i].count);
        put32(tensor[i].type);
        put64(at + tensor[i].off);
        at += (tensor[i].count * 4 + 31) / 32 * 32;
    }
    for (uint64_t i = 0; i < tensors; i++) {
        while (end % 32) file[end++] = 0;
        for (uint64_t k = 0; k < tensor[i].count; k++)
            put_numbers(&(float){ !still      ? tensor[i].value + (float)k
                                  : k < still ? tensor[i].value
                                              : 1e30f },
                        1, 4);
    }
    while (raw && end % 32) file[end++] = 0;
    const size_t all = end;
    end = 0;
    put("GGUF", 4);
    put32(version);
    put64(tensors + raw);
    put64(keys);
    return end = all;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static bool near(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

/* `attention` 0: any. */
static void expect(int layer, double length, const char *encoding, double attention, double softmax)
{
    loci_model *m;
    loci_rope r;
    loci_error e = { 0 };
    if (loci_model_parse(&m, file, finish(), &e) || loci_model_rope(m, layer, length, &r, &e)) {
        CHECK_FAILED("%s, layer %d: %s", arch, layer, e.text);
        loci_model_close(m);
        return;
    }
    CHECK_THAT(!strncmp(r.encoding, encoding, strlen(encoding)), "%s, layer %d: %.200s", arch,
               layer, r.encoding);
    if (r.rotates) {
        CHECK_THAT(attention == 0 || near(r.attention_factor, attention),
                   "%s: attention factor %.17g", arch, r.attention_factor);
        CHECK_THAT(near(r.softmax_factor, softmax), "%s: softmax factor %.17g", arch,
                   r.softmax_factor);
    }
    loci_rope_free(&r);
    loci_model_close(m);
}

/* Checks the properties of the layer besides its rotation. */
static void expect_beside(int layer, const char *attention, double scale, int64_t window)
{
    loci_model *m;
    loci_rope r = { 0 };
    loci_error e = { 0 };
    CHECK_THAT(!loci_model_parse(&m, file, finish(), &e) && !loci_model_rope(m, layer, 0, &r, &e)
                   && !strcmp(r.attention, attention) && near(r.scale, scale) && r.window == window,
               "%s, layer %d: %s %.200s, scale %.17g, window %lld", arch, layer, e.text,
               r.attention ? r.attention : "", r.scale, (long long)r.window);
    loci_rope_free(&r);
    loci_model_close(m);
}

/* The frequency of a pair in units of the unscaled one. */
static void expect_ratio(int pair, double length, double base, double ratio)
{
    loci_model *m;
    loci_rope r = { 0 };
    loci_error e = { 0 };
    CHECK_THAT(!loci_model_parse(&m, file, finish(), &e) && !loci_model_rope(m, 0, length, &r, &e)
                   && near(r.frequency[pair] * pow(base, 2.0 * pair / r.dim), ratio),
               "%s: %s, %.17g", arch, e.text, r.frequency ? r.frequency[pair] : 0);
    loci_rope_free(&r);
    loci_model_close(m);
}

static void refused_at(int layer, const char *says)
{
    loci_model *m;
    loci_rope r = { 0 };
    loci_error e = { 0 };
    loci_status s = loci_model_parse(&m, file, finish(), &e);
    if (!s) s = loci_model_rope(m, layer, 0, &r, &e);
    CHECK_SAYS(s, LOCI_BAD_ARG, &e, says, r.encoding ? r.encoding : "");
    loci_rope_free(&r);
    loci_model_close(m);
}
static void refused(const char *says) { refused_at(0, says); }

static void gemma4(void)
{
    start("gemma4");
    number("rope.freq_base", 1e6f);
    number("rope.freq_base_swa", 1e4f);
    whole("attention.key_length_swa", 32);
    whole("rope.dimension_count", 64);
    whole("rope.dimension_count_swa", 24);
    list("attention.sliding_window_pattern", 8, (uint32_t[]){ 1, 1, 1, 1, 1, 0, 1, 1 });
}
static void hybrid(void)
{
    number("rope.freq_base", 1e7f);
    whole("attention.key_length", 256);
    whole("rope.dimension_count", 64);
    list("rope.dimension_sections", 4, (uint32_t[]){ 11, 11, 10, 0 });
}

static void check_keys(void)
{
    start("llama");
    expect(0, 0, "rope:pairing=interleaved,base=10000,dim=64", 1, 1);
    start("qwen2");
    number("rope.freq_base", 1e6f);
    whole("rope.dimension_count", 32);
    expect(7, 0, "rope:pairing=half,base=1000000,dim=32", 1, 1);
    start("llama");
    number("rope.scale_linear", 4);
    expect(0, 0, "rope:pairing=interleaved,base=10000,dim=64,scaling=linear,factor=4", 1, 1);
    start("llama");
    words("rope.scaling.type", "none");
    number("rope.scaling.factor", 4);
    expect_ratio(3, 0, 10000, 1);
    start("llama");
    factors("rope_freqs.weight", 1, 32);
    expect_ratio(3, 0, 10000, 0.25);
    start("llama");
    number("rope.scaling.factor", 2);
    factors("rope_freqs.weight", 1, 32);
    expect_ratio(3, 0, 10000, 0.125);
    start("phi3");
    number("rope.scaling.attn_factor", 1.25f);
    whole("rope.scaling.original_context_length", 1024);
    factors("rope_factors_short.weight", 1, 32);
    factors("rope_factors_long.weight", 3, 32);
    expect(0, 0,
           "rope:pairing=half,base=10000,dim=64,scaling=longrope,factor=4,original_length=1024",
           1.25, 1);
    start("phi3");
    words("rope.scaling.type", "longrope");
    whole("rope.scaling.original_context_length", 1024);
    factors("rope_factors_short.weight", 1, 32);
    factors("rope_factors_long.weight", 3, 32);
    expect_ratio(1, 1024, 10000, 0.5);
    start("phi3");
    whole("rope.scaling.original_context_length", 1024);
    factors("rope_factors_short.weight", 1, 32);
    factors("rope_factors_long.weight", 3, 32);
    expect_ratio(1, 1025, 10000, 0.25);
    start("qwen2");
    words("rope.scaling.type", "yarn");
    number("rope.scaling.factor", 4);
    number("rope.scaling.attn_factor", 2);
    expect(0, 0, "rope:pairing=half,base=10000,dim=64,scaling=yarn,factor=4,original_length=4096",
           2 * (1 + 0.1 * log(4)), 1);
    start("deepseek2");
    words("rope.scaling.type", "yarn");
    number("rope.scaling.factor", 40);
    whole("rope.dimension_count", 64);
    whole("attention.key_length", 192);
    number("rope.scaling.yarn_log_multiplier", 0.1f);
    expect(0, 0, "rope:pairing=interleaved,base=10000,dim=64,offset=128,scaling=yarn,factor=40", 1,
           pow(1 + 0.1 * log(40), 2));
    start("llama4");
    expect(3, 0, "nope", 0, 1);
    start("llama4");
    expect(4, 0, "rope:pairing=interleaved", 1, 1);
    start("smollm3");
    expect(7, 0, "nope", 0, 1);
    start("smollm3");
    expect(6, 0, "rope:pairing=interleaved", 1, 1);
    start("cohere2");
    whole("attention.sliding_window", 128);
    expect(3, 0, "nope", 0, 1);
    start("cohere2");
    whole("attention.sliding_window", 128);
    expect(2, 0, "rope:pairing=interleaved", 1, 1);
    start("exaone4");
    expect(3, 0, "rope:pairing=half", 1, 1);
    start("gemma3");
    number("rope.freq_base", 1e6f);
    number("rope.scaling.factor", 8);
    number("rope.freq_base_swa", 5000);
    expect(0, 0, "rope:pairing=half,base=5000,dim=64", 1, 1);
    start("gemma3");
    number("rope.freq_base", 1e6f);
    number("rope.scaling.factor", 8);
    expect(5, 0, "rope:pairing=half,base=1000000,dim=64,scaling=linear,factor=8", 1, 1);
    start("gemma3");
    number("rope.freq_base", 1e6f);
    list("attention.sliding_window_pattern", 8, (uint32_t[]){ 0, 1, 1, 1, 1, 1, 1, 1 });
    expect(0, 0, "rope:pairing=half,base=1000000", 1, 1);
    start("olmo2");
    whole("attention.sliding_window", 128);
    words("rope.scaling.type", "yarn");
    number("rope.scaling.factor", 8);
    expect(0, 0, "rope:pairing=half,base=10000,dim=64", 1, 1);
    start("qwen2vl");
    list("rope.dimension_sections", 4, (uint32_t[]){ 8, 12, 12, 0 });
    expect(0, 0, "mrope:pairing=half,base=10000,dim=64,sections=8/12/12", 1, 1);
    start("qwen3vl");
    list("rope.dimension_sections", 4, (uint32_t[]){ 12, 10, 10, 0 });
    expect(0, 0, "mrope:pairing=half,base=10000,dim=64,sections=12/10/10,order=interleaved", 1, 1);
    for (int layer = 0; layer < 8; layer++) {
        gemma4();
        factors("rope_freqs.weight", 1, 32);
        still = 8;
        expect(layer, 0,
               layer % 6 == 5
                   ? "rope:pairing=half,base=1000000,dim=64,scaling=proportional,partial=0.25"
                   : "rope:pairing=half,base=10000,dim=24",
               1, 1);
        start("qwen35");
        hybrid();
        expect(layer, 0,
               layer % 4 == 3 ? "mrope:pairing=half,base=10000000,dim=64,sections=11/11/10,"
                                "order=interleaved"
                              : "nope",
               0, 1);
        start("qwen35moe");
        hybrid();
        whole("nextn_predict_layers", 2);
        expect(layer, 0, layer % 4 == 3 || layer >= 6 ? "mrope:pairing=half" : "nope", 0, 1);
        start("qwen35");
        hybrid();
        list("attention.recurrent_layers", 8, (uint32_t[]){ 0, 1, 1, 0, 0, 1, 0, 1 });
        expect(layer, 0, 0xa6 >> layer & 1 ? "nope" : "mrope:pairing=half", 0, 1);
        start("qwen3next");
        whole("full_attention_interval", 2);
        expect(layer, 0, layer % 2 ? "rope:pairing=half" : "nope", 0, 1);
        start("lfm2");
        list("attention.head_count_kv", 8, (uint32_t[]){ 0, 0, 8, 0, 0, 8, 0, 8 });
        expect(layer, 0, 0xa4 >> layer & 1 ? "rope:pairing=half,base=10000,dim=64" : "nope", 0, 1);
    }
    start("llama");
    number("rope.scaling.factor", 4);
    factors("rope_freqs.weight", 1, 32);
    still = 16;
    expect(0, 0,
           "rope:pairing=interleaved,base=10000,dim=64,scaling=proportional,partial=0.5,"
           "factor=4",
           1, 1);
    still = 0;
    start("llama");
    list("attention.head_count_kv", 8, (uint32_t[]){ 1, 2, 3, 4, 5, 6, 7, 8 });
    expect(0, 0, "rope", 1, 1);
    start("gemma3");
    whole("attention.sliding_window_pattern", 2);
    number("rope.freq_base", 1e6f);
    number("rope.freq_base_swa", 5000);
    expect(3, 0, "rope:pairing=half,base=1000000,dim=64", 1, 1);
    start("olmo2");
    whole("attention.sliding_window", 128);
    number("rope.scaling.factor", 8);
    expect(3, 0, "rope:pairing=half,base=10000,dim=64,scaling=linear,factor=8", 1, 1);
    start("qwen2vl");
    list("rope.dimension_sections", 4, (uint32_t[]){ 0, 0, 0, 0 });
    expect(0, 0, "rope:pairing=half,base=10000,dim=64", 1, 1);
    start("llama");
    number("rope.scaling.attn_factor", 2);
    expect(0, 0, "rope:pairing=interleaved,base=10000,dim=64,attention_factor=2", 2, 1);
    start("qwen2");
    words("rope.scaling.type", "yarn");
    number("rope.scaling.factor", 4);
    number("rope.scaling.yarn_attn_factor", 3);
    number("rope.scaling.yarn_beta_fast", 0);
    number("rope.scaling.yarn_beta_slow", 2);
    expect(0, 0,
           "rope:pairing=half,base=10000,dim=64,scaling=yarn,factor=4,"
           "original_length=4096,beta_slow=2",
           3 * (1 + 0.1 * log(4)), 1);
    start("llama");
    words("rope.scaling.type", "yarn");
    number("rope.scaling.factor", 40);
    number("rope.scaling.yarn_log_multiplier", 0.5f);
    expect(0, 0,
           "rope:pairing=interleaved,base=10000,dim=64,scaling=yarn,factor=40,"
           "original_length=4096,mscale=1,mscale_all_dim=0.5",
           0, 1);
    start("glm-dsa");
    words("rope.scaling.type", "yarn");
    number("rope.scaling.factor", 40);
    number("rope.scaling.yarn_log_multiplier", 0.1f);
    expect(0, 0, "rope:pairing=interleaved,base=10000,dim=64,scaling=yarn,factor=40", 1,
           pow(1 + 0.1 * log(40), 2));
    start("phi3");
    number("rope.scaling.factor", 3);
    whole("rope.scaling.original_context_length", 1024);
    factors("rope_factors_short.weight", 1, 32);
    factors("rope_factors_long.weight", 3, 32);
    expect(0, 0,
           "rope:pairing=half,base=10000,dim=64,scaling=longrope,factor=3,"
           "original_length=1024",
           0, 1);
    /* a file without a context length, with divisors that disable no pair */
    start_without("llama", "context_length");
    factors("rope_freqs.weight", 1, 32);
    expect_ratio(3, 0, 10000, 0.25);
    start("llama");
    factors("rope_freqs.weight", 1, 32);
    still = 32;
    expect_ratio(3, 0, 10000, 1);
    still = 0;
}

#define ROPE "rope:pairing=half,base=10000,dim=64"
#define ROPE128 "rope:pairing=half,base=10000,dim=128"
static void expect_warmth(int layer, double warmth, double length, double shift)
{
    loci_model *m;
    loci_rope r = { 0 };
    loci_error e = { 0 };
    CHECK_THAT(!loci_model_parse(&m, file, finish(), &e) && !loci_model_rope(m, layer, 0, &r, &e)
                   && near(r.warmth, warmth) && r.warm_length == length && r.warm_shift == shift,
               "%s, layer %d: %s warmth %g, %g, %g", arch, layer, e.text, r.warmth, r.warm_length,
               r.warm_shift);
    loci_rope_free(&r);
    loci_model_close(m);
}

static void check_company(void)
{
    start("llama4");
    expect_warmth(3, 0.1, 8192, 1);
    start("llama4");
    number("attention.temperature_scale", 0.25f);
    expect_warmth(3, 0.25, 8192, 1);
    start("llama4");
    number("attention.temperature_scale", 0.25f);
    expect_warmth(0, 0, 0, 0);
    start("mistral3");
    number("attention.temperature_scale", 0.25f);
    whole("attention.temperature_length", 64);
    expect_warmth(0, 0.25, 64, 0);
    start_without("gemma2", "block_count");
    whole("block_count", 46);
    whole("attention.key_length", 128);
    expect_beside(1, ROPE128 "+softcap:cap=50", 0.125, 0);
    start_without("gemma3", "block_count");
    whole("block_count", 62);
    whole("attention.key_length", 128);
    expect_beside(5, ROPE128, 0.125, 0);
    start_without("gemma3", "block_count");
    whole("block_count", 61);
    whole("attention.key_length", 128);
    expect_beside(5, ROPE128, 0.08838834764831845, 0);
    start_without("gemma2", "block_count attention.head_count");
    whole("block_count", 46);
    whole("attention.key_length", 64);
    expect_beside(1, ROPE "+softcap:cap=50", 0.125, 0);
    start_without("gpt2", "embedding_length");
    expect_beside(0, "nope", 0, 0);
    start_without("gpt2", "attention.head_count");
    expect_beside(0, "nope", 0, 0);
    start("baichuan");
    expect_beside(0, "rope:pairing=interleaved,base=10000,dim=64", 0.125, 0);
    start_without("baichuan", "block_count");
    whole("block_count", 40);
    expect_beside(0, "alibi", 0.125, 0);
    start("gemma2");
    expect_beside(0, ROPE "+softcap:cap=50", 0.125, 4096);
    start("gemma2");
    whole("attention.sliding_window", 7);
    number("attn_logit_softcapping", 30);
    expect_beside(1, ROPE "+softcap:cap=30", 0.125, 0);
    start("gpt-oss");
    whole("attention.sliding_window", 128);
    factors("blk.0.attn_sinks.weight", 1, 8);
    expect_beside(0, ROPE "+sink", 0.125, 128);
    start("gpt-oss");
    whole("attention.sliding_window", 128);
    factors("blk.0.attn_sinks.weight", 1, 8);
    expect_beside(1, ROPE, 0.125, 0);
    start("gpt-oss");
    factors("blk.99999999999999999999.attn_sinks.weight", 1, 8);
    expect_beside(1, ROPE, 0.125, 0);
    start("grok");
    expect_beside(0, ROPE "+softcap:cap=30", 0.08838834764831845, 0);
    start("granite");
    number("attention.scale", 0.015625f);
    expect_beside(0, "rope:pairing=interleaved,base=10000,dim=64", 0.015625, 0);
    start("granite");
    key("rope.scaling.finetuned", T_BOOL);
    put("\0", 1);
    expect_beside(0, "nope", 0.125, 0);
    start("gemma-embedding");
    whole("attention.sliding_window", 512);
    expect_beside(0, ROPE, 0.125, 257);
    start("modern-bert");
    whole("attention.sliding_window", 128);
    number("rope.freq_base", 160000);
    expect_beside(0, "rope:pairing=half,base=160000,dim=64", 0.125, 0);
    start("modern-bert");
    whole("attention.sliding_window", 128);
    number("rope.freq_base_swa", 10000);
    expect_beside(1, ROPE, 0.125, 65);
    start("smallthinker");
    whole("attention.sliding_window", 4096);
    expect_beside(0, "nope", 0.125, 0);
    start("smallthinker");
    whole("attention.sliding_window", 4096);
    expect_beside(1, ROPE, 0.125, 4096);
    start("smallthinker");
    whole("attention.sliding_window", 0);
    expect_beside(0, ROPE, 0.125, 0);
    start("laguna");
    expect_beside(1, ROPE, 0.125, 0);
    start("gpt2");
    expect_beside(0, "nope", 0.125, 0);
    start("starcoder");
    expect_beside(0, "nope", 0.125, 0);
    start("bloom");
    expect_beside(0, "alibi", 0.125, 0);
    start("mpt");
    number("attention.max_alibi_bias", 8);
    expect_beside(0, "alibi", 0.125, 0);
    start("mpt");
    expect_beside(0, "nope", 0.125, 0);
    start("t5");
    expect_beside(0, "t5:bidirectional=0", 1, 0);
    start("falcon-h1");
    expect_beside(0, ROPE, 0.125, 0);
    start("mistral4");
    words("rope.scaling.type", "yarn");
    number("rope.scaling.factor", 128);
    whole("rope.dimension_count", 64);
    whole("attention.key_length", 128);
    number("rope.scaling.yarn_log_multiplier", 1);
    expect(0, 0, "rope:pairing=interleaved,base=10000,dim=64,offset=64,scaling=yarn,factor=128", 1,
           pow(1 + 0.1 * log(128), 2));
}

static void check_refusals(void)
{
    start("mpt");
    number("attention.max_alibi_bias", 16);
    refused("only 8 is supported");
    start_without("llama", "block_count");
    refused("llama.block_count is missing");
    start_without("llama", "block_count");
    number("block_count", 1.5f);
    refused("block_count is 1.5, but must be a whole number");
    start_without("llama", "embedding_length");
    refused("attention.key_length is missing");
    start_without("llama", "attention.head_count");
    refused("attention.key_length is missing");
    start("llama");
    list("rope.freq_base", 2, (uint32_t[]){ 7, 7 });
    refused_at(2, "rope.freq_base must be a number, or one per layer");
    start("llama");
    list("rope.freq_base", 5000, (uint32_t[5000]){ 7 });
    refused("rope.freq_base must be a number, or one per layer");
    start("qwen2vl");
    whole("rope.dimension_sections", 8);
    refused("must have 3 or 4 numbers");
    start("qwen2vl");
    list("rope.dimension_sections", 2, (uint32_t[]){ 8, 24 });
    refused("must have 3 or 4 numbers");
    start("qwen2vl");
    key("rope.dimension_sections", T_ARRAY);
    put32(T_STRING);
    put64(3);
    put_string("8");
    put_string("12");
    put_string("12");
    refused("must have 3 or 4 numbers");
    start("qwen2vl");
    list("rope.dimension_sections", 3, (uint32_t[]){ 600, 0, 0 });
    refused("number 0 of rope.dimension_sections is 600");
    start("qwen2vl");
    key("rope.dimension_sections", T_ARRAY);
    put32(T_F32);
    put64(3);
    put_numbers((float[]){ 8, 11.5f, 12.5f }, 3, 4);
    refused("number 1 of rope.dimension_sections is 11.5");
    start("qwen2vl");
    key("rope.dimension_sections", T_ARRAY);
    put32(T_F32);
    put64(3);
    put_numbers((float[]){ 8, 12, -1 }, 3, 4);
    refused("number 2 of rope.dimension_sections is -1");
    start("llama");
    whole("rope.scaling.type", 1);
    refused("rope.scaling.type must be a string");
    start_without("llama", "context_length");
    words("rope.scaling.type", "yarn");
    number("rope.scaling.factor", 2);
    refused("original_context_length or context_length is "
            "missing");
    start("llama");
    words("rope.scaling.type", "yarn");
    number("rope.scaling.factor", 2);
    factors("rope_freqs.weight", 1, 32);
    refused("type yarn is not supported");
    start("llama");
    factors("rope_freqs.weight", 1, 0);
    refused("0 numbers, but must have");
    start("llama");
    factors("rope_freqs.weight", 1, 513);
    refused("has 513 numbers");
    start("llama");
    factors("rope_freqs.weight", 2e30f, 32);
    refused("at most 1e30");
    start("llama");
    factors("rope_freqs.weight", 1e30f, 32);
    still = 32;
    refused("number 0 of rope_freqs.weight stops its pair");
    start("llama");
    factors("rope_freqs.weight", 1, 16);
    still = 8;
    refused("has 16 numbers, but the head has 32 pairs");
    /* ones before divisors that disable pairs, whose share of the pairs no double represents
     * exactly */
    start("llama");
    whole("attention.key_length", 44);
    factors("rope_freqs.weight", 1, 22);
    still = 15;
    refused("number 15 of rope_freqs.weight stops its pair");
    still = 0;
    start("llama");
    end = 24;
    keys = 0;
    words("general.architecture", "llama");
    whole("block_count", 1);
    whole("embedding_length", 1 << 20);
    whole("attention.head_count", 1);
    refused("the head has 1048576 channels");

    start("gemma4");
    refused("attention.sliding_window_pattern is missing");
    start("gemma4");
    list("attention.sliding_window_pattern", 8, (uint32_t[]){ 1, 1, 1, 1, 1, 0, 1, 1 });
    refused("rope.freq_base_swa is missing");
    gemma4();
    whole("rope.dimension_count_swa", 98);
    refused("occurs twice");
    start("llama");
    factors("rope_freqs.weight", 2, 32);
    still = 8;
    refused("number 8 of rope_freqs.weight stops its pair");
    start("llama");
    whole("rope.dimension_count", 32);
    factors("rope_freqs.weight", 1, 16);
    still = 8;
    refused("stops its pair");
    still = 0;
    start("qwen35");
    list("attention.recurrent_layers", 2, (uint32_t[]){ 2, 1 });
    refused("attention.recurrent_layers is 2");
    start("qwen35");
    whole("attention.recurrent_layers", 1);
    refused("attention.recurrent_layers must be a list of one number per layer");
    start_without("llama", "block_count");
    list("block_count", 2, (uint32_t[]){ 8, 9 });
    refused("llama.block_count must be one number, not a list");
    start("qwen35");
    whole("full_attention_interval", 0);
    refused("full_attention_interval is 0");

    start("lama");
    refused("'lama' is not supported");
    start("llama");
    whole("block_count", 8);
    refused("'llama.block_count' occurs twice");
    start("llama");
    number("rope.freq_base", -1);
    refused("rope.freq_base is -1");
    start("llama");
    number("rope.freq_base", NAN);
    refused("rope.freq_base is");
    start("llama");
    words("rope.freq_base", "1e4");
    refused("must be a number");
    start("llama");
    words("rope.scaling.type", "cubic");
    refused("known: none linear yarn longrope");
    start("llama");
    words("rope.scaling.type", "yarn");
    refused("rope.scaling.factor is missing");
    start("llama");
    number("rope.scaling.alpha", 2);
    refused("rope.scaling.alpha is not supported");
    start("llama");
    whole("rope.dimension_count", 128);
    refused("must not exceed the head's 64");
    start("llama");
    whole("rope.dimension_count", 31);
    refused("must be even");
    start("llama");
    whole("general.alignment", 24);
    refused("power of two");
    start("llama");
    factors("rope_freqs.weight", 1, 31);
    refused("has 31 numbers, but the head has 32 pairs");
    start("llama");
    factors("rope_freqs.weight", 0, 32);
    refused("number 0 of rope_freqs.weight is 0");
    start("llama");
    factors("rope_freqs.weight", 1, 32);
    tensor[0].type = 1;
    refused("must be stored as F32");
    start("llama");
    factors("a", 1, 8);
    factors("a", 1, 8);
    refused("the tensor 'a' occurs twice");
    start("phi3");
    factors("rope_factors_long.weight", 1, 32);
    refused("rope_factors_short.weight is missing");
    start("qwen2vl");
    list("rope.dimension_sections", 4, (uint32_t[]){ 8, 12, 11, 1 });
    refused("the fourth must be 0");
    start("qwen2vl");
    list("rope.dimension_sections", 3, (uint32_t[]){ 8, 12, 11 });
    refused("add up to 31 pairs");
    start("llama");
    key("x", T_ARRAY);
    put32(T_ARRAY);
    put64(1);
    refused("must contain numbers or strings");
    start("llama");
    key("x", T_ARRAY);
    put32(T_U32);
    put64(UINT64_MAX);
    refused("claims 18446744073709551615 values");
    start("llama");
    key("x", T_STRING);
    put64(UINT64_MAX);
    refused("claims 18446744073709551615 bytes");
    start("llama");
    key("x", 13);
    refused("unknown type 13");
    start("llama");
    key("x", T_BOOL);
    put("\2", 1);
    refused("must be 0 or 1");
    start("llama");
    key("", T_U32);
    put32(1);
    keys += 1000000;
    refused("keys, more than its");
}

/* The same number in every type that the format has for one. */
static void check_types(void)
{
    const struct {
        uint32_t type;
        const void *value;
        size_t bytes;
    } list[] = {
        { T_U8, &(uint8_t){ 100 }, 1 },   { T_I8, &(int8_t){ 100 }, 1 },
        { T_U16, &(uint16_t){ 100 }, 2 }, { T_I16, &(int16_t){ 100 }, 2 },
        { T_U32, &(uint32_t){ 100 }, 4 }, { T_I32, &(int32_t){ 100 }, 4 },
        { T_F32, &(float){ 100 }, 4 },    { T_U64, &(uint64_t){ 100 }, 8 },
        { T_I64, &(int64_t){ 100 }, 8 },  { T_F64, &(double){ 100 }, 8 },
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        start("llama");
        key("rope.freq_base", list[i].type);
        put_numbers(list[i].value, 1, list[i].bytes);
        expect(0, 0, "rope:pairing=interleaved,base=100,dim=64", 1, 1);
    }
}

/* A word in place of a number, at each place where a key is read. */
static void check_words(void)
{
    static const struct {
        const char *arch, *key, *beside;
    } list[] = {
        { "llama", "block_count", NULL },
        { "llama", "context_length", NULL },
        { "llama", "embedding_length", NULL },
        { "bloom", "embedding_length", NULL },
        { "llama", "attention.head_count", NULL },
        { "llama", "attention.key_length", NULL },
        { "llama", "attention.key_length_mla", NULL },
        { "gpt-oss", "attention.key_length_swa", "attention.sliding_window" },
        { "llama", "attention.sliding_window", NULL },
        { "llama", "attention.scale", NULL },
        { "llama", "attention.sliding_window_pattern", NULL },
        { "llama", "attention.output_scale", NULL },
        { "llama", "attn_logit_softcapping", NULL },
        { "llama", "attention.temperature_scale", NULL },
        { "llama", "attention.temperature_length", NULL },
        { "lfm2", "attention.head_count_kv", NULL },
        { "qwen35", "full_attention_interval", NULL },
        { "qwen35", "nextn_predict_layers", NULL },
        { "llama", "rope.dimension_count", NULL },
        { "gemma3", "rope.freq_base_swa", NULL },
        { "laguna", "rope.freq_base", "attention.sliding_window" },
        { "llama", "rope.scale_linear", NULL },
        { "llama", "rope.scaling.factor", NULL },
        { "llama", "rope.scaling.original_context_length", NULL },
        { "llama", "rope.scaling.attn_factor", NULL },
        { "llama", "rope.scaling.yarn_attn_factor", NULL },
        { "qwen2", "rope.scaling.yarn_log_multiplier", "yarn" },
        { "qwen2", "rope.scaling.yarn_beta_fast", "yarn" },
        { "granite", "rope.scaling.finetuned", NULL },
        { "mpt", "attention.max_alibi_bias", NULL },
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char says[128];
        const char *beside = list[i].beside;
        snprintf(says, sizeof says, "%s must be a number", list[i].key);
        start_without(list[i].arch, list[i].key);
        words(list[i].key, "x");
        if (beside && !strcmp(beside, "yarn")) {
            words("rope.scaling.type", "yarn");
            number("rope.scaling.factor", 2);
        } else if (beside) whole(beside, 128);
        /* whose first layer is full, and the second one has a window */
        if (!strcmp(list[i].arch, "laguna")) refused_at(1, says);
        else refused(says);
    }
}

/* Errors of the container, whatever the keys mean. */
static void check_container(void)
{
    static char long_word[1200];
    memset(long_word, 'x', sizeof long_word - 1);
    start("llama");
    put_string("");
    put32(T_U32);
    put32(1);
    keys++;
    refused("a key is empty");
    start("llama");
    put_string(long_word);
    keys++;
    refused("has 1199 bytes; the limit is 1024");
    start("llama");
    put64(3);
    put("a\0b", 3);
    keys++;
    refused("a key contains a zero byte");
    start("llama");
    key("x", T_STRING);
    put64(3);
    put("a\0b", 3);
    refused("a string contains a zero byte");
    start("llama");
    key("x", T_ARRAY);
    put32(13);
    put64(1);
    refused("an array of type 13");
    start("llama");
    key("x", T_ARRAY);
    put32(T_STRING);
    put64(9);
    refused("claims 9 values");
    start("llama");
    key("x", T_ARRAY);
    put32(T_STRING);
    put64(2);
    put_string("a");
    put64(99);
    refused("claims 99 bytes");
    start("llama");
    key("x", T_ARRAY);
    put32(T_STRING);
    put64(2);
    put_string("a");
    put_string("b");
    expect(0, 0, "rope", 1, 1);

    start("llama");
    whole("general.alignment", 64);
    expect(0, 0, "rope", 1, 1);
    start("llama");
    whole("general.alignment", 0);
    refused("power of two");
    start("llama");
    number("general.alignment", 32);
    refused("stored as U32");
    start("llama");
    list("general.alignment", 1, (uint32_t[]){ 32 });
    refused("stored as U32");

    start("llama");
    put_string("t");
    put32(9);
    raw++;
    refused("'t' has 9 dimensions, but");
    start("llama");
    put_string("t");
    put32(2);
    put64(1u << 31);
    put64(UINT64_C(1) << 33);
    raw++;
    refused("the shape of tensor 't' is too large");
    start("llama");
    put_string("t");
    put32(1);
    put64(UINT64_C(1) << 63);
    raw++;
    refused("the shape of tensor 't' is too large");
    start("llama");
    put_string("rope_freqs.weight");
    put32(1);
    put64(400);
    put32(0);
    put64(0);
    raw++;
    refused("the file ends early");
    start("llama");
    factors("t", 1, 8);
    tensor[0].off = 8;
    refused("at 8, not a multiple of 32");
    start("llama");
    factors("t", 1, 8);
    tensor[0].off = 1 << 20;
    refused("start after the end of the file");
    start("llama");
    whole("general.alignment", 1 << 20);
    factors("t", 1, 8);
    refused("start after the end of the file");
    start("llama");
    tensors = 0;
    raw = 1000000;
    refused("tensors, more than its");

    version = 2;
    start("llama");
    if (big) refused("GGUF version 2 in big-endian is not supported");
    else expect(0, 0, "rope", 1, 1);
    version = 1;
    start("llama");
    refused(big ? "GGUF version 1 in big-endian is" : "GGUF version 1 is not supported");
    version = 4;
    start("llama");
    refused(big ? "GGUF version 4 in big-endian is" : "GGUF version 4 is not supported");
    version = 0;
    start("llama");
    refused("GGUF version 0 is not supported");
    version = 3;

    end = 24;
    keys = tensors = raw = 0;
    arch = "llama";
    whole("block_count", 1);
    refused("general.architecture is missing");
    end = 24;
    keys = 0;
    whole("general.architecture", 1);
    refused("general.architecture is missing");
}

/* Each system call on a file fails once, does half of the requested work, or is interrupted.  The
 * file is rejected with a sentence, or read without any effect. */
static void check_reading(void)
{
    static const struct {
        int kind, error;
        enum inject_how how;
        const char *says;
    } list[] = {
        { INJECT_OPEN, EACCES, INJECT_ONCE, "cannot open: Permission denied" },
        { INJECT_STATUS, EIO, INJECT_ONCE, "cannot read: Input/output error" },
        { INJECT_READ, EIO, INJECT_ONCE, "cannot read: Input/output error" },
        { INJECT_READ, EINTR, INJECT_ONCE, NULL },
        { INJECT_READ, 0, INJECT_SHORT, NULL },
    };
    static char text[17000], path[SCRATCH];
    scratch(path, "gguf");
    const int fd = mkstemp(path);
    /* longer than one read */
    memset(text, 'x', sizeof text - 1);
    start("llama");
    words("x", text);
    factors("rope_freqs.weight", 1, 32);
    const size_t size = finish();
    if (fd < 0 || write(fd, file, size) != (ssize_t)size || close(fd)) exit(2);
    inject_open();
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        long n = 0;
        for (bool fired = true; fired; n++) {
            loci_model *m;
            loci_error e = { 0 };
            inject_arm(list[i].kind, list[i].how, list[i].error, n);
            const loci_status s = loci_model_open(&m, path, &e);
            fired = inject->fired;
            inject_off();
            if (fired && list[i].says) CHECK_SAYS(s, LOCI_BAD_ARG, &e, list[i].says, path);
            else CHECK_THAT(!s, "call %ld: %s", n, e.text);
            CHECK_THAT(!m == (s != LOCI_OK), "call %ld: half a model", n);
            loci_model_close(m);
        }
        /* one opens; of the reads one is for the first bytes, two for all keys, one for the
         * divisors */
        const long fewest = list[i].kind == INJECT_READ ? 4 : list[i].kind == INJECT_OPEN ? 1 : 0;
        CHECK_THAT(n - 1 >= fewest, "only %ld calls failed", n - 1);
    }
    unlink(path);
}

/* Files large enough for their claims, which fail because the claims are too large. */
static void check_large(void)
{
    static const struct {
        uint32_t type, of;
        uint64_t keys;
        const char *says;
    } list[] = {
        { T_U32, 0, (1 << 20) + 1, "the file has 1048577 keys; the limit is 1048576" },
        { T_ARRAY, T_U8, 0, "has 1048577 values; the limit is 1048576" },
        { T_STRING, 0, 0, "a string has 1048577 bytes; the limit is 1048576" },
    };
    const size_t size = 1 << 24;
    unsigned char *large = calloc(size, 1);
    if (!large) exit(2);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        loci_model *m;
        loci_error e = { 0 };
        start("llama");
        key("x", list[i].type);
        if (list[i].type == T_ARRAY) put32(list[i].of);
        put64((1 << 20) + 1);
        if (list[i].keys) keys = list[i].keys;
        memcpy(large, file, finish());
        CHECK_SAYS(loci_model_parse(&m, large, size, &e), LOCI_BAD_ARG, &e, list[i].says);
    }
    free(large);
}

static void check_truncations(void)
{
    start("llama");
    list("attention.head_count_kv", 2, (uint32_t[]){ 1, 2 });
    key("x", T_ARRAY);
    put32(T_STRING);
    put64(2);
    put_string("a");
    put_string("b");
    factors("rope_freqs.weight", 1, 32);
    for (size_t n = 0, whole_size = finish(); n < whole_size; n++) { /* every truncation */
        loci_model *m;
        loci_error e = { 0 };
        CHECK_THAT(loci_model_parse(&m, file, n, &e) == LOCI_BAD_ARG && !m,
                   "%zu of %zu bytes were taken", n, whole_size);
    }
}

int main(void)
{
    for (int order = 0; order < 2; order++) {
        big = order;
        check_keys();
        check_company();
        check_refusals();
        check_types();
        check_words();
        check_container();
        check_large();
        check_reading();
        check_truncations();
    }
    return harness_end();
}
