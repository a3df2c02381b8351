/* SPDX-License-Identifier: MIT */
/* gguf.c -- GGUF files written here, key by key: what each key does to the rotation, and files that
 * break one rule. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "io/model.h"
#include "harness.h"

/* ---- Writing --------------------------------------------------------------------------------- */

enum { T_U32 = 4, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9, ROOM = 1 << 15 };
static unsigned char file[ROOM];
static size_t end;
static uint64_t keys, tensors;
static struct { const char *name; float value; uint64_t count; uint32_t type; } tensor[4];
static const char *arch;

static void put(const void *p, size_t n) { memcpy(file + end, p, n), end += n; }
static void put32(uint32_t x) { put(&x, 4); }
static void put64(uint64_t x) { put(&x, 8); }
static void put_string(const char *s) { put64(strlen(s)), put(s, strlen(s)); }
static void key(const char *name, uint32_t type)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s%s", strncmp(name, "general.", 8) ? arch : "",
             strncmp(name, "general.", 8) ? "." : "", name);
    put_string(full), put32(type);
    keys++;
}
static void words(const char *name, const char *value) { key(name, T_STRING), put_string(value); }
static void whole(const char *name, uint32_t value) { key(name, T_U32), put32(value); }
static void number(const char *name, float value) { key(name, T_F32), put(&value, 4); }
static void list(const char *name, uint32_t n, const uint32_t *value)
{
    key(name, T_ARRAY), put32(T_U32), put64(n);
    for (uint32_t i = 0; i < n; i++) put32(value[i]);
}
/* `count` numbers value, value + 1, ...; they must be the last. */
static void factors(const char *name, float value, uint64_t count)
{
    tensor[tensors].name = name, tensor[tensors].value = value, tensor[tensors].count = count,
        tensor[tensors++].type = 0;
}
/* Heads of 64 channels, 8 layers, 4096 positions. */
static void start(const char *architecture)
{
    end = 24, keys = tensors = 0, arch = architecture;
    words("general.architecture", architecture);
    whole("block_count", 8), whole("context_length", 4096), whole("embedding_length", 512),
        whole("attention.head_count", 8);
}
/* not 0: so many divisors are all alike, and those behind hold their pairs still */
static uint64_t still;
static size_t finish(void)
{
    uint64_t at = 0;
    for (uint64_t i = 0; i < tensors; i++) {
        put_string(tensor[i].name), put32(1), put64(tensor[i].count), put32(tensor[i].type),
            put64(at);
        at += (tensor[i].count * 4 + 31) / 32 * 32;
    }
    for (uint64_t i = 0; i < tensors; i++) {
        while (end % 32) file[end++] = 0;
        for (uint64_t k = 0; k < tensor[i].count; k++) 
            put(&(float){ !still ? tensor[i].value + (float)k : k < still ? tensor[i].value
                          : 1e30f }, 4);
    }
    memcpy(file, "GGUF\3\0\0", 8);
    memcpy(file + 8, &tensors, 8), memcpy(file + 16, &keys, 8);
    return end;
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

/* What goes with the rotation. */
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
               && near(r.frequency[pair] * pow(base, 2.0 * pair / r.dim), ratio), "%s: %s, %.17g",
               arch, e.text, r.frequency ? r.frequency[pair] : 0);
    loci_rope_free(&r);
    loci_model_close(m);
}

static void refused(const char *says)
{
    loci_model *m;
    loci_rope r = { 0 };
    loci_error e = { 0 };
    loci_status s = loci_model_parse(&m, file, finish(), &e);
    if (!s) s = loci_model_rope(m, 0, 0, &r, &e);
    CHECK_SAYS(s, LOCI_BAD_ARG, &e, says, r.encoding ? r.encoding : "");
    loci_rope_free(&r);
    loci_model_close(m);
}

static void gemma4(void)
{
    start("gemma4"), number("rope.freq_base", 1e6f), number("rope.freq_base_swa", 1e4f);
    whole("attention.key_length_swa", 32), whole("rope.dimension_count", 64),
        whole("rope.dimension_count_swa", 24);
    list("attention.sliding_window_pattern", 8, (uint32_t[]){ 1, 1, 1, 1, 1, 0, 1, 1 });
}
static void hybrid(void)
{
    number("rope.freq_base", 1e7f), whole("attention.key_length", 256),
        whole("rope.dimension_count", 64);
    list("rope.dimension_sections", 4, (uint32_t[]){ 11, 11, 10, 0 });
}

static void check_keys(void)
{
    start("llama"), expect(0, 0, "rope:pairing=interleaved,base=10000,dim=64", 1, 1);
    start("qwen2"), number("rope.freq_base", 1e6f), whole("rope.dimension_count", 32),
        expect(7, 0, "rope:pairing=half,base=1000000,dim=32", 1, 1);
    start("llama"), number("rope.scale_linear", 4),
        expect(0, 0, "rope:pairing=interleaved,base=10000,dim=64,scaling=linear,factor=4", 1, 1);
    start("llama"), words("rope.scaling.type", "none"), number("rope.scaling.factor", 4),
        expect_ratio(3, 0, 10000, 1);
    start("llama"), factors("rope_freqs.weight", 1, 32), expect_ratio(3, 0, 10000, 0.25);
    start("llama"), number("rope.scaling.factor", 2), factors("rope_freqs.weight", 1, 32),
        expect_ratio(3, 0, 10000, 0.125);
    start("phi3"), number("rope.scaling.attn_factor", 1.25f),
        whole("rope.scaling.original_context_length", 1024),
        factors("rope_factors_short.weight", 1, 32), factors("rope_factors_long.weight", 3, 32),
        expect(0, 0,
               "rope:pairing=half,base=10000,dim=64,scaling=longrope,factor=4,original_length=1024",
               1.25, 1);
    start("phi3"), words("rope.scaling.type", "longrope"),
        whole("rope.scaling.original_context_length", 1024),
        factors("rope_factors_short.weight", 1, 32), factors("rope_factors_long.weight", 3, 32),
        expect_ratio(1, 1024, 10000, 0.5);
    start("phi3"), whole("rope.scaling.original_context_length", 1024),
        factors("rope_factors_short.weight", 1, 32),
        factors("rope_factors_long.weight", 3, 32), expect_ratio(1, 1025, 10000, 0.25);
    start("qwen2"), words("rope.scaling.type", "yarn"), number("rope.scaling.factor", 4),
        number("rope.scaling.attn_factor", 2),
        expect(0, 0,
               "rope:pairing=half,base=10000,dim=64,scaling=yarn,factor=4,original_length=4096",
               2 * (1 + 0.1 * log(4)), 1);
    start("deepseek2"), words("rope.scaling.type", "yarn"), number("rope.scaling.factor", 40),
        whole("rope.dimension_count", 64),
        whole("attention.key_length", 192), number("rope.scaling.yarn_log_multiplier", 0.1f),
        expect(0, 0, "rope:pairing=interleaved,base=10000,dim=64,offset=128,scaling=yarn,factor=40",
               1, pow(1 + 0.1 * log(40), 2));
    start("llama4"), expect(3, 0, "nope", 0, 1), start("llama4"),
        expect(4, 0, "rope:pairing=interleaved", 1, 1);
    start("smollm3"), expect(7, 0, "nope", 0, 1), start("smollm3"),
        expect(6, 0, "rope:pairing=interleaved", 1, 1);
    start("cohere2"), whole("attention.sliding_window", 128), expect(3, 0, "nope", 0, 1);
    start("cohere2"), whole("attention.sliding_window", 128),
        expect(2, 0, "rope:pairing=interleaved", 1, 1);
    start("exaone4"), expect(3, 0, "rope:pairing=half", 1, 1);
    start("gemma3"), number("rope.freq_base", 1e6f), number("rope.scaling.factor", 8),
        number("rope.freq_base_swa", 5000),
        expect(0, 0, "rope:pairing=half,base=5000,dim=64", 1, 1);
    start("gemma3"), number("rope.freq_base", 1e6f), number("rope.scaling.factor", 8),
        expect(5, 0, "rope:pairing=half,base=1000000,dim=64,scaling=linear,factor=8", 1, 1);
    start("gemma3"), number("rope.freq_base", 1e6f), list("attention.sliding_window_pattern", 8,
                                                          (uint32_t[]){ 0, 1, 1, 1, 1, 1, 1, 1 }),
        expect(0, 0, "rope:pairing=half,base=1000000", 1, 1);
    start("olmo2"), whole("attention.sliding_window", 128), words("rope.scaling.type", "yarn"),
        number("rope.scaling.factor", 8),
        expect(0, 0, "rope:pairing=half,base=10000,dim=64", 1, 1);
    start("qwen2vl"), list("rope.dimension_sections", 4, (uint32_t[]){ 8, 12, 12, 0 }),
        expect(0, 0, "mrope:pairing=half,base=10000,dim=64,sections=8/12/12", 1, 1);
    start("qwen3vl"), list("rope.dimension_sections", 4, (uint32_t[]){ 12, 10, 10, 0 }),
        expect(0, 0, "mrope:pairing=half,base=10000,dim=64,sections=12/10/10,order=interleaved", 1,
               1);
    for (int layer = 0; layer < 8; layer++) {
        gemma4(), factors("rope_freqs.weight", 1, 32), still = 8;
        expect(layer, 0, layer % 6 == 5
               ? "rope:pairing=half,base=1000000,dim=64,scaling=proportional,partial=0.25" :
               "rope:pairing=half,base=10000,dim=24", 1, 1);
        start("qwen35"), hybrid();
        expect(layer, 0,
               layer % 4 == 3 ? "mrope:pairing=half,base=10000000,dim=64,sections=11/11/10,"
               "order=interleaved" : "nope", 0, 1);
        start("qwen35moe"), hybrid(), whole("nextn_predict_layers", 2);
        expect(layer, 0, layer % 4 == 3 || layer >= 6 ? "mrope:pairing=half" : "nope", 0, 1);
        start("qwen35"), hybrid(), list("attention.recurrent_layers", 8,
                                        (uint32_t[]){ 0, 1, 1, 0, 0, 1, 0, 1 });
        expect(layer, 0, 0xa6 >> layer & 1 ? "nope" : "mrope:pairing=half", 0, 1);
        start("qwen3next"), whole("full_attention_interval", 2),
            expect(layer, 0, layer % 2 ? "rope:pairing=half" : "nope", 0, 1);
        start("lfm2"), list("attention.head_count_kv", 8, (uint32_t[]){ 0, 0, 8, 0, 0, 8, 0, 8 });
        expect(layer, 0, 0xa4 >> layer & 1 ? "rope:pairing=half,base=10000,dim=64" : "nope", 0, 1);
    }
    start("llama"), number("rope.scaling.factor", 4), factors("rope_freqs.weight", 1, 32),
        still = 16;
    expect(0, 0, "rope:pairing=interleaved,base=10000,dim=64,scaling=proportional,partial=0.5,"
           "factor=4", 1, 1);
    still = 0;
    start("llama"), list("attention.head_count_kv", 8, (uint32_t[]){ 1, 2, 3, 4, 5, 6, 7, 8 }),
        expect(0, 0, "rope", 1, 1);
}

static void check_company(void)
{
#define ROPE "rope:pairing=half,base=10000,dim=64"
    start("gemma2"), expect_beside(0, ROPE "+softcap:cap=50", 0.125, 4096);
    start("gemma2"), whole("attention.sliding_window", 7), number("attn_logit_softcapping", 30),
        expect_beside(1, ROPE "+softcap:cap=30", 0.125, 0);
    start("gpt-oss"), whole("attention.sliding_window", 128),
        factors("blk.0.attn_sinks.weight", 1, 8), expect_beside(0, ROPE "+sink", 0.125, 128);
    start("gpt-oss"), whole("attention.sliding_window", 128),
        factors("blk.0.attn_sinks.weight", 1, 8), expect_beside(1, ROPE, 0.125, 0);
    start("gpt-oss"), factors("blk.99999999999999999999.attn_sinks.weight", 1, 8),
        expect_beside(1, ROPE, 0.125, 0);
    start("grok"), expect_beside(0, ROPE "+softcap:cap=30", 0.08838834764831845, 0);
    start("granite"), number("attention.scale", 0.015625f),
        expect_beside(0, "rope:pairing=interleaved,base=10000,dim=64", 0.015625, 0);
    start("granite"), key("rope.scaling.finetuned", T_BOOL), put("\0", 1),
        expect_beside(0, "nope", 0.125, 0);
    start("gemma-embedding"), whole("attention.sliding_window", 512),
        expect_beside(0, ROPE, 0.125, 257);
    start("modern-bert"), whole("attention.sliding_window", 128), number("rope.freq_base", 160000),
        expect_beside(0, "rope:pairing=half,base=160000,dim=64", 0.125, 0);
    start("modern-bert"), whole("attention.sliding_window", 128),
        number("rope.freq_base_swa", 10000), expect_beside(1, ROPE, 0.125, 65);
    start("smallthinker"), whole("attention.sliding_window", 4096),
        expect_beside(0, "nope", 0.125, 0);
    start("smallthinker"), whole("attention.sliding_window", 4096),
        expect_beside(1, ROPE, 0.125, 4096);
    start("smallthinker"), whole("attention.sliding_window", 0), expect_beside(0, ROPE, 0.125, 0);
    start("laguna"), expect_beside(1, ROPE, 0.125, 0);
    start("gpt2"), expect_beside(0, "nope", 0.125, 0);
    start("starcoder"), expect_beside(0, "nope", 0.125, 0);
    start("bloom"), expect_beside(0, "alibi", 0.125, 0);
    start("mpt"), number("attention.max_alibi_bias", 8), expect_beside(0, "alibi", 0.125, 0);
    start("mpt"), expect_beside(0, "nope", 0.125, 0);
    start("t5"), expect_beside(0, "t5:bidirectional=0", 1, 0);
    start("falcon-h1"), expect_beside(0, ROPE, 0.125, 0);
    start("mistral4"), words("rope.scaling.type", "yarn"), number("rope.scaling.factor", 128),
        whole("rope.dimension_count", 64),
        whole("attention.key_length", 128), number("rope.scaling.yarn_log_multiplier", 1),
        expect(0, 0, "rope:pairing=interleaved,base=10000,dim=64,offset=64,scaling=yarn,factor=128",
               1, pow(1 + 0.1 * log(128), 2));
}

static void check_refusals(void)
{
    start("mpt"), number("attention.max_alibi_bias", 16), refused("slopes are known for 8");
    start("llama"), end = 24, keys = 0, words("general.architecture", "llama"),
        whole("block_count", 1), whole("embedding_length", 1 << 20),
        whole("attention.head_count", 1), refused("a head of 1048576 channels");

    start("gemma4"), refused("attention.sliding_window_pattern is missing");
    start("gemma4"), list("attention.sliding_window_pattern", 8,
                          (uint32_t[]){ 1, 1, 1, 1, 1, 0, 1, 1 }),
                          refused("rope.freq_base_swa is missing");
    gemma4(), whole("rope.dimension_count_swa", 98), refused("is there twice");
    start("llama"), factors("rope_freqs.weight", 2, 32), still = 8,
        refused("number 8 of rope_freqs.weight holds its pair still");
    start("llama"), whole("rope.dimension_count", 32), factors("rope_freqs.weight", 1, 16),
        still = 8, refused("holds its pair still");
    still = 0;
    start("qwen35"), list("attention.recurrent_layers", 2, (uint32_t[]){ 2, 1 }),
        refused("attention.recurrent_layers is 2");
    start("qwen35"), whole("full_attention_interval", 0), refused("full_attention_interval is 0");

    start("lama"), refused("'lama' is not known");
    start("llama"), whole("block_count", 8), refused("'llama.block_count' is there twice");
    start("llama"), number("rope.freq_base", -1), refused("rope.freq_base is -1");
    start("llama"), number("rope.freq_base", NAN), refused("rope.freq_base is");
    start("llama"), words("rope.freq_base", "1e4"), refused("must be a number");
    start("llama"), words("rope.scaling.type", "cubic"),
        refused("known: none linear yarn longrope");
    start("llama"), words("rope.scaling.type", "yarn"), refused("rope.scaling.factor is missing");
    start("llama"), number("rope.scaling.alpha", 2), refused("rope.scaling.alpha is not known");
    start("llama"), whole("rope.dimension_count", 128), refused("more than the head's 64");
    start("llama"), whole("rope.dimension_count", 31), refused("must be even");
    start("llama"), whole("general.alignment", 24), refused("power of two");
    start("llama"), factors("rope_freqs.weight", 1, 31),
        refused("has 31 numbers, but the head has 32 pairs");
    start("llama"), factors("rope_freqs.weight", 0, 32),
        refused("number 0 of rope_freqs.weight is 0");
    start("llama"), factors("rope_freqs.weight", 1, 32), tensor[0].type = 1,
        refused("must be stored as F32");
    start("llama"), factors("a", 1, 8), factors("a", 1, 8),
        refused("the tensor 'a' is there twice");
    start("phi3"), factors("rope_factors_long.weight", 1, 32),
        refused("rope_factors_short.weight is missing");
    start("qwen2vl"), list("rope.dimension_sections", 4, (uint32_t[]){ 8, 12, 11, 1 }),
        refused("the fourth must be 0");
    start("qwen2vl"), list("rope.dimension_sections", 3, (uint32_t[]){ 8, 12, 11 }),
        refused("add up to 31 pairs");
    start("llama"), key("x", T_ARRAY), put32(T_ARRAY), put64(1),
        refused("arrays hold numbers or strings");
    start("llama"), key("x", T_ARRAY), put32(T_U32), put64(UINT64_MAX),
        refused("claims 18446744073709551615 values");
    start("llama"), key("x", T_STRING), put64(UINT64_MAX),
        refused("claims 18446744073709551615 bytes");
    start("llama"), key("x", 13), refused("unknown type 13");
    start("llama"), key("x", T_BOOL), put("\2", 1), refused("neither 0 nor 1");
    start("llama"), key("", T_U32), put32(1), keys += 1000000, refused("keys, more than its");
}

int main(void)
{
    check_keys();
    check_company();
    check_refusals();
    start("llama");
    for (size_t n = 0, whole_size = finish(); n < whole_size; n++) {     /* every truncation */
        loci_model *m;
        loci_error e = { 0 };
        CHECK_THAT(loci_model_parse(&m, file, n, &e) == LOCI_BAD_ARG && !m,
                   "%zu of %zu bytes were taken", n, whole_size);
    }
    return harness_end();
}
