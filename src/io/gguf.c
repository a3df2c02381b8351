/* SPDX-License-Identifier: MIT */
/* gguf.c -- a GGUF file: its metadata, and the tensors that say how pairs turn.
 *
 * Sizes, all little-endian: "GGUF", version (u32), tensors (u64), keys (u64); a key is a string
 * (u64 length, bytes), a type (u32) and a value; an array is a type, a count (u64) and values; a
 * tensor's entry is a name, a rank (u32), its shape (u64 each), a type (u32) and an offset (u64)
 * into the data, which start on the next multiple of the alignment.
 *
 * What engines do with it, and we too: a pair's frequency is base^(-2t/dim), divided by
 * rope_freqs.weight[t] where that is there, or by rope_factors_short/long; then scaled as
 * rope.scaling.type says.  The weights of the llama family were permuted when the file was made, so
 * that their pairs are interleaved; the architecture decides. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/model.h"

enum {
    MAX_STRING = 1 << 20, MAX_ARRAY = 1 << 20, MAX_NAME = 1024, MAX_RANK = 8, KEPT_NUMBERS = 4096,
    MAX_ENTRIES = 1 << 20
};

/* ---- What architectures decide --------------------------------------------------------------- */

enum layers {
    ALIKE,
    LOCAL_BASE,                          /* sliding layers have their own base and no scaling */
    SLIDING_TURN,                        /* only sliding layers rotate, if there is a window */
    SOME_TURN,                           /* all but the last of a period, or its first, rotate */
    FULL_SCALED,                         /* the scaling is for full layers only */
    SOME_RECUR, SOME_CONVOLVE            /* the others do not attend */
};
static const struct arch {
    const char *name;
    bool interleaved, spread;            /* spread: sections interleaved */
    enum layers layers;
    int period;                          /* the last of so many layers is full, or does not turn */
    bool first;                          /* the first is, instead */
    bool last;                           /* the channels that turn are the head's last */
    const char *instead;                 /* no rotation: the encoding */
    bool alibi_key;                      /* attention.max_alibi_bias, or none */
    bool finetuned;                      /* rope.scaling.finetuned, if it is there, says whether
                                            layers turn */
    bool both;                           /* half of the window lies ahead */
    int window;                          /* attention.sliding_window of a file that has none */
    double scale, cap;                   /* of q.k, where the head does not decide it;
                                            attn_logit_softcapping of a file without */
} archs[] = {
    { "afmoe", .layers = SLIDING_TURN, .period = 4 }, { .name = "apertus" },
    { "arcee", .interleaved = true },
    { "arctic", .interleaved = true }, { "baichuan", .interleaved = true },
    { "bailingmoe", .interleaved = true },
    { .name = "bailingmoe2" }, { .name = "bitnet" }, { "chameleon", .interleaved = true },
    { "chatglm", .interleaved = true }, { .name = "codeshell" }, { .name = "cogvlm" },
    { "cohere2", .interleaved = true, .layers = SLIDING_TURN, .period = 4 },
    { "cohere2moe", .interleaved = true, .layers = SLIDING_TURN, .period = 4 },
    { "command-r", .interleaved = true },
    { .name = "dbrx" }, { "deci", .interleaved = true }, { "deepseek", .interleaved = true },
    { "deepseek2", .interleaved = true, .last = true },
    { "deepseek2-ocr", .interleaved = true, .last = true },
    { "deepseek32", .interleaved = true, .last = true }, { .name = "dots1" }, { .name = "dream" },
    { "ernie4_5", .interleaved = true }, { "ernie4_5-moe", .interleaved = true },
    { .name = "eurobert" },
    { .name = "exaone" }, { "exaone-moe", .layers = SLIDING_TURN, .period = 4 },
    { "exaone4", .layers = SLIDING_TURN, .period = 4 }, { .name = "falcon" },
    { .name = "falcon-h1" },
    { .name = "gemma" }, { "gemma-embedding", .layers = LOCAL_BASE, .period = 6, .both = true },
    { "gemma2", .period = 2, .window = 4096, .cap = 50 },
    { "gemma3", .layers = LOCAL_BASE, .period = 6 },
    { "gemma3n", .layers = LOCAL_BASE, .period = 5, .scale = 1 },
    { "gemma4", .layers = LOCAL_BASE, .scale = 1 },
    { "glm-dsa", .interleaved = true, .last = true }, { "glm4", .interleaved = true },
    { .name = "glm4moe" },
    { "gpt-oss", .period = 2 }, { .name = "gptneox" },
    { "granite", .interleaved = true, .finetuned = true },
    { "granitehybrid", .interleaved = true, .layers = SOME_CONVOLVE, .finetuned = true },
    { "granitemoe", .interleaved = true, .finetuned = true },
    { "grok", .scale = 0.08838834764831845, .cap = 30 },
    { .name = "grovemoe" }, { .name = "hunyuan-dense" }, { .name = "hunyuan-moe" },
    { .name = "hunyuan_vl" },
    { .name = "hy_v3" }, { "internlm2", .interleaved = true }, { .name = "jais2" },
    { .name = "jina-bert-v3" },
    { "laguna", .layers = LOCAL_BASE, .period = 4, .first = true },
    { "lfm2", .layers = SOME_CONVOLVE },
    { "lfm2moe", .layers = SOME_CONVOLVE }, { "llada", .interleaved = true },
    { .name = "llada-moe" },
    { "llama", .interleaved = true }, { "llama-embed", .interleaved = true },
    { "llama4", .interleaved = true, .layers = SOME_TURN, .period = 4 },
    { "maincoder", .interleaved = true },
    { "mimo2", .layers = LOCAL_BASE }, { "minicpm", .interleaved = true },
    { "minicpm3", .last = true },
    { .name = "minimax-m2" }, { "mistral3", .interleaved = true },
    { "mistral4", .interleaved = true, .last = true },
    { "modern-bert", .layers = LOCAL_BASE, .period = 3, .first = true, .both = true },
    { "neo-bert", .interleaved = true },
    { .name = "nemotron" }, { .name = "nomic-bert" }, { .name = "nomic-bert-moe" },
    { "olmo", .interleaved = true },
    { "olmo2", .layers = FULL_SCALED, .period = 4 }, { .name = "olmoe" }, { .name = "openelm" },
    { .name = "orion" },
    { .name = "paddleocr" }, { .name = "pangu-embedded" }, { .name = "phi2" }, { .name = "phi3" },
    { .name = "phimoe" },
    { .name = "plamo" }, { "plamo2", .layers = SOME_CONVOLVE },
    { "plm", .interleaved = true, .last = true },
    { .name = "qwen" }, { .name = "qwen2" }, { .name = "qwen2moe" }, { .name = "qwen2vl" },
    { .name = "qwen3" },
    { .name = "qwen3moe" }, { "qwen3next", .layers = SOME_RECUR, .period = 4 },
    { "qwen3vl", .spread = true },
    { "qwen3vlmoe", .spread = true },
    { "qwen35", .spread = true, .layers = SOME_RECUR, .period = 4 },
    { "qwen35moe", .spread = true, .layers = SOME_RECUR, .period = 4 }, { .name = "rnd1" },
    { .name = "seed_oss" },
    { "smallthinker", .layers = SOME_TURN, .period = 4, .first = true },
    { "smollm3", .interleaved = true, .layers = SOME_TURN, .period = 4 }, { .name = "stablelm" },
    { .name = "starcoder2" }, { "step35", .layers = LOCAL_BASE }, { .name = "talkie" },
    { "xverse", .interleaved = true },
    /* No rotation. */
    { "arwkv7", .instead = "nope" }, { "bert", .instead = "nope" }, { "bloom", .instead = "alibi" },
    { "gpt2", .instead = "nope" }, { "jais", .instead = "nope", .alibi_key = true },
    { "jamba", .instead = "nope" },
    { "jina-bert-v2", .instead = "alibi" }, { "kimi-linear", .instead = "nope" },
    { "mamba", .instead = "nope" },
    { "mamba2", .instead = "nope" }, { "mpt", .instead = "nope", .alibi_key = true },
    { "nemotron_h", .instead = "nope" },
    { "nemotron_h_moe", .instead = "nope" }, { "refact", .instead = "alibi" },
    { "rwkv6", .instead = "nope" },
    { "rwkv6qwen2", .instead = "nope" }, { "rwkv7", .instead = "nope" },
    { "starcoder", .instead = "nope" },
    { "t5", .instead = "t5:bidirectional=0", .scale = 1 },
    { "t5encoder", .instead = "t5:bidirectional=1", .scale = 1 },
};
enum { ARCHS = sizeof archs / sizeof *archs };

/* ---- Reading, bounded by what is left -------------------------------------------------------- */

enum type { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, TYPES };
static const int sizes[TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

struct reader {
    const struct source *from;
    uint64_t at;
    unsigned char ahead[1 << 14];        /* bytes of the file from `first` on */
    uint64_t first, have;
    loci_error *e;
};

static uint64_t left(const struct reader *r) { return r->from->size - r->at; }

static loci_status take(struct reader *r, void *to, uint64_t n)
{
    IO_CHECK(r->e, SOUND(1, n <= left(r)),
             "the file ends early: byte %" PRIu64 " and %" PRIu64 " more were to follow", r->at, n);
    while (n > 0) {
        if (r->at < r->first || r->at >= r->first + r->have) {
            r->first = r->at;
            r->have = left(r) < sizeof r->ahead ? left(r) : sizeof r->ahead;
            loci_status s = loci_io_read(r->from, r->ahead, r->have, r->first, r->e);
            if (s) return s;
        }
        const uint64_t from = r->at - r->first, part = r->have - from < n ? r->have - from : n;
        memcpy(to, r->ahead + from, part);
        to = (char *)to + part, r->at += part, n -= part;
    }
    return LOCI_OK;
}
static loci_status skip(struct reader *r, uint64_t n)
{
    IO_CHECK(r->e, n <= left(r),
             "the file ends early: byte %" PRIu64 " and %" PRIu64 " more were to follow", r->at, n);
    r->at += n;
    return LOCI_OK;
}

/* A string of at most `most` bytes; *to is to be freed, NULL to pass over it. */
static loci_status string(struct reader *r, uint64_t most, const char *what, char **to)
{
    uint64_t n;
    loci_status s = take(r, &n, 8);
    if (s) return s;
    IO_CHECK(r->e, n <= left(r),
             "a %s claims %" PRIu64 " bytes, but %" PRIu64 " are left in the file", what, n,
             left(r));
    IO_CHECK(r->e, n <= most, "a %s has %" PRIu64 " bytes, at most %" PRIu64 " can be", what, n,
             most);
    if (!to) return skip(r, n);
    *to = malloc(n + 1);
    if (!*to) return loci_io_fail(r->e, LOCI_NO_MEMORY, "out of memory");
    (*to)[n] = 0;
    s = take(r, *to, n);
    if (!s && strlen(*to) != n)
        s = loci_io_fail(r->e, LOCI_BAD_ARG, "a %s holds a zero byte", what);
    if (s) free(*to), *to = NULL;
    return s;
}

static double value_of(enum type type, const unsigned char *b)
{
    union {
        uint64_t u;
        int64_t i;
        uint32_t u4;
        int32_t i4;
        uint16_t u2;
        int16_t i2;
        int8_t i1;
        float f;
        double d;
    } v = { 0 };
    memcpy(&v, b, (size_t)sizes[type]);
    switch (type) {
    case U8: case BOOL: return b[0];
    case I8:  return v.i1;
    case U16: return v.u2;
    case I16: return v.i2;
    case U32: return v.u4;
    case I32: return v.i4;
    case F32: return v.f;
    case U64: return (double)v.u;
    case I64: return (double)v.i;
    default:  return v.d;
    }
}

/* ---- Metadata -------------------------------------------------------------------------------- */

struct entry {
    char *name;
    enum type type;                      /* of an array: its values' */
    bool array;
    char *text;                          /* a string, if it is short enough to keep */
    double *value;                       /* numbers */
    int count;                           /* of numbers kept */
};

struct gguf {
    const struct arch *arch;
    struct entry *entry;                 /* by name */
    int entries, layers;
    double *factors[3];                  /* rope_freqs, rope_factors_short, rope_factors_long */
    int factor_count[3];
    unsigned char sinks[MAX_LAYERS];     /* layers with a tensor blk.N.attn_sinks.weight */
};
#define STILL (double)1e30f              /* divides the frequency of a pair that must not turn */
static const char *const factor_names[] = { "rope_freqs.weight", "rope_factors_short.weight",
                                            "rope_factors_long.weight" };

static loci_status numbers(struct reader *r, enum type type, uint64_t count, struct entry *to)
{
    const bool kept = count <= KEPT_NUMBERS;
    if (!kept) return skip(r, count * (uint64_t)sizes[type]);
    to->value = calloc((size_t)count + 1, sizeof *to->value);
    if (!to->value) return loci_io_fail(r->e, LOCI_NO_MEMORY, "out of memory");
    for (; to->count < (int)count; to->count++) {
        unsigned char b[8];
        loci_status s = take(r, b, (uint64_t)sizes[type]);
        if (s) return s;
        IO_CHECK(r->e, type != BOOL || b[0] <= 1,
                 "the truth value of '%.64s' is %d, neither 0 nor 1", to->name, b[0]);
        to->value[to->count] = value_of(type, b);
    }
    return LOCI_OK;
}

static loci_status array(struct reader *r, struct entry *to)
{
    uint32_t type;
    uint64_t count;
    loci_status s;
    if ((s = take(r, &type, 4)) || (s = take(r, &count, 8))) return s;
    IO_CHECK(r->e, SOUND(3, type < TYPES && type != ARRAY),
             "'%.64s' is an array of type %u; arrays hold numbers or strings", to->name,
             (unsigned)type);
    to->array = true, to->type = type;
    IO_CHECK(r->e, count <= left(r) / (type == STRING ? 8 : (uint64_t)sizes[type]),
             "'%.64s' claims %" PRIu64 " values, more than the %" PRIu64 " bytes left can hold",
             to->name, count, left(r));
    IO_CHECK(r->e, count <= MAX_ARRAY, "'%.64s' has %" PRIu64 " values, at most %d can be",
             to->name, count, MAX_ARRAY);
    if (type != STRING) return numbers(r, type, count, to);
    for (uint64_t i = 0; i < count; i++)
        if ((s = string(r, MAX_STRING, "string", NULL))) return s;
    return LOCI_OK;
}

static loci_status read_entry(struct reader *r, struct entry *to)
{
    uint32_t type;
    loci_status s;
    if ((s = string(r, MAX_NAME, "key", &to->name)) || (s = take(r, &type, 4))) return s;
    IO_CHECK(r->e, *to->name, "a key is empty");
    IO_CHECK(r->e, type < TYPES, "'%.64s' has the unknown type %u; 0 to %d are known", to->name,
             (unsigned)type, TYPES - 1);
    to->type = type;
    if (type == ARRAY) return array(r, to);
    if (type != STRING) return numbers(r, type, 1, to);
    return string(r, MAX_STRING, "string", &to->text);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static loci_status read_entries(struct reader *r, struct gguf *g, uint64_t count)
{
    /* A key takes 8 bytes of length, 1 of name, 4 of type and 1 of value, so that memory stays in
     * proportion. */
    IO_CHECK(r->e, count <= left(r) / 14,
             "the file claims %" PRIu64 " keys, more than its %" PRIu64 " bytes can hold", count,
             r->from->size);
    IO_CHECK(r->e, count <= MAX_ENTRIES, "the file has %" PRIu64 " keys, at most %d can be", count,
             MAX_ENTRIES);
    g->entry = calloc((size_t)count + 1, sizeof *g->entry);
    if (!g->entry) return loci_io_fail(r->e, LOCI_NO_MEMORY, "out of memory");
    while (g->entries < (int)count) {
        loci_status s = read_entry(r, &g->entry[g->entries++]);
        if (s) return s;
    }
    qsort(g->entry, (size_t)g->entries, sizeof *g->entry, by_name);
    for (int i = 1; i < g->entries; i++)
        IO_CHECK(r->e, by_name(&g->entry[i - 1], &g->entry[i]), "the key '%.64s' is there twice",
                 g->entry[i].name);
    return LOCI_OK;
}

static const struct entry *find(const struct gguf *g, const char *name)
{
    const struct entry key = { .name = (char *)name };
    return bsearch(&key, g->entry, (size_t)g->entries, sizeof key, by_name);
}

/* "%s.rope.freq_base" of this architecture. */
static const struct entry *setting(const struct gguf *g, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", g->arch->name, name);
    return find(g, full);
}

/* The number of a key, or of one layer where it is a list; absent leaves *to alone. */
static loci_status number(const struct gguf *g, const char *name, int layer, double low,
                          double high, double *to, loci_error *e)
{
    const struct entry *v = setting(g, name);
    if (!v) return LOCI_OK;
    IO_CHECK(e, v->type != STRING && (!v->array || layer < v->count), "%s must be a number%s", name,
             v->array ? ", or one per layer" : "");
    const double x = v->value[v->array ? layer : 0];
    IO_CHECK(e, x >= low && x <= high, "%s is %g, but must be from %g to %g", name, x, low, high);
    *to = x;
    return LOCI_OK;
}
static loci_status whole(const struct gguf *g, const char *name, int layer, int low, int high,
                         int *to, loci_error *e)
{
    double x = *to;
    loci_status s = number(g, name, layer, low, high, &x, e);
    if (s) return s;
    IO_CHECK(e, x == floor(x), "%s is %g, but must be a whole number", name, x);
    *to = (int)x;
    return LOCI_OK;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

struct place { char *name; uint64_t count, offset; uint32_t type; };

static loci_status read_place(struct reader *r, uint64_t alignment, struct place *p)
{
    uint32_t rank;
    loci_status s;
    if ((s = string(r, MAX_NAME, "tensor's name", &p->name)) || (s = take(r, &rank, 4))) return s;
    IO_CHECK(r->e, rank <= MAX_RANK, "tensor '%.64s' has %u dimensions, more than %d", p->name,
             (unsigned)rank, MAX_RANK);
    p->count = 1;
    for (uint32_t i = 0; i < rank; i++) {
        uint64_t n;
        if ((s = take(r, &n, 8))) return s;
        IO_CHECK(r->e, !__builtin_mul_overflow(p->count, n, &p->count) && p->count <= INT64_MAX,
                 "the shape of tensor '%.64s' is too large", p->name);
    }
    if ((s = take(r, &p->type, 4)) || (s = take(r, &p->offset, 8))) return s;
    IO_CHECK(r->e, p->offset % alignment == 0,
             "the data of tensor '%.64s' start at %" PRIu64 ", no multiple of %" PRIu64, p->name,
             p->offset, alignment);
    return LOCI_OK;
}

static int by_place(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->name, ((const struct place *)b)->name);
}

/* The layer of "blk.N.attn_sinks.weight", -1: another tensor. */
static int sink_layer(const char *name)
{
    static const char rest[] = ".attn_sinks.weight";
    char *end;
    if (strncmp(name, "blk.", 4) || name[4] < '0' || name[4] > '9') return -1;
    const unsigned long layer = strtoul(name + 4, &end, 10);
    return layer < MAX_LAYERS && !strcmp(end, rest) ? (int)layer : -1;
}

static loci_status read_factors(struct reader *r, struct gguf *g, const struct place *p,
                                uint64_t data)
{
    int k = 0;
    const int sink = sink_layer(p->name);
    if (sink >= 0) g->sinks[sink] = 1;
    while (k < 3 && strcmp(factor_names[k], p->name)) k++;
    IO_CHECK(r->e, SOUND(2, data <= r->from->size && p->offset <= r->from->size - data),
             "the data of tensor '%.64s' start behind the end of the file", p->name);
    if (k == 3) return LOCI_OK;
    IO_CHECK(r->e, p->type == 0, "%s must be stored as F32 (type 0), not as type %u", p->name,
             (unsigned)p->type);
    IO_CHECK(r->e, p->count >= 1 && p->count <= MAX_PAIRS_READ,
             "%s has %" PRIu64 " numbers; 1 to %d pairs can be", p->name, p->count, MAX_PAIRS_READ);
    r->at = data + p->offset;
    struct entry numbers_of = { .name = p->name };
    loci_status s = numbers(r, F32, p->count, &numbers_of);
    g->factors[k] = numbers_of.value, g->factor_count[k] = numbers_of.count;
    for (int i = 0; i < numbers_of.count && !s; i++)
        if (!(numbers_of.value[i] > 0 && numbers_of.value[i] <= STILL))
            s = loci_io_fail(r->e, LOCI_BAD_ARG,
                             "number %d of %s is %g, but must be above 0 and at most 1e30", i,
                             p->name, numbers_of.value[i]);
    return s;
}

static loci_status read_tensors(struct reader *r, struct gguf *g, uint64_t count)
{
    uint64_t alignment = 32;
    const struct entry *v = find(g, "general.alignment");
    if (v) {
        IO_CHECK(r->e,
                 v->type == U32 && !v->array && v->value[0] >= 1 && fmod(log2(v->value[0]), 1) == 0,
                 "general.alignment must be a power of two, stored as U32");
        alignment = (uint64_t)v->value[0];
    }
    /* A tensor takes 8 bytes of length, 1 of name, 4 of rank, 4 of type and 8 of offset. */
    IO_CHECK(r->e, count <= left(r) / 25,
             "the file claims %" PRIu64 " tensors, more than its %" PRIu64 " bytes can hold", count,
             r->from->size);
    IO_CHECK(r->e, count <= MAX_ENTRIES, "the file has %" PRIu64 " tensors, at most %d can be",
             count, MAX_ENTRIES);
    struct place *p = calloc((size_t)count + 1, sizeof *p);
    if (!p) return loci_io_fail(r->e, LOCI_NO_MEMORY, "out of memory");
    loci_status s = LOCI_OK;
    int n = 0;
    while (n < (int)count && !s) s = read_place(r, alignment, &p[n++]);
    const uint64_t data = (r->at + alignment - 1) / alignment * alignment;
    if (!s) qsort(p, (size_t)n, sizeof *p, by_place);
    for (int i = 1; i < n && !s; i++)
        if (!by_place(&p[i - 1], &p[i]))
            s = loci_io_fail(r->e, LOCI_BAD_ARG, "the tensor '%.64s' is there twice", p[i].name);
    for (int i = 0; i < n && !s; i++) s = read_factors(r, g, &p[i], data);
    for (int i = 0; i < n; i++) free(p[i].name);
    free(p);
    return s;
}

/* ---- One layer ------------------------------------------------------------------------------- */

static bool has_window(const struct gguf *g)
{
    const struct entry *v = setting(g, "attention.sliding_window");
    return v && v->count > 0 && v->value[0] > 0;
}

static loci_status find_kind(const struct gguf *g, int layer, bool *full, loci_error *e)
{
    const struct entry *v = setting(g, "attention.sliding_window_pattern");
    int period = g->arch->period, window = g->arch->window;
    loci_status s = whole(g, "attention.sliding_window", layer, 0, INT32_MAX, &window, e);
    *full = true;
    if (s) return s;
    IO_CHECK(e, v || g->arch->layers != LOCAL_BASE || period > 0,
             "attention.sliding_window_pattern is missing; it says which layers are full");
    if (v && v->array) {                 /* per layer: does its window slide? */
        double slides = 0;
        s = number(g, "attention.sliding_window_pattern", layer, 0, 1, &slides, e);
        *full = slides == 0;
        return s;
    }
    if ((s = whole(g, "attention.sliding_window_pattern", layer, 1, MAX_LAYERS, &period, e)))
        return s;
    const bool windowless = !g->arch->first
                         && (g->arch->layers == LOCAL_BASE || g->arch->layers == SOME_TURN);
    if (period > 0 && (window > 0 || windowless))
        *full = (g->arch->first ? layer : layer + 1) % period == 0;
    return LOCI_OK;
}

/* Hybrid models: not every layer attends.  Those behind the main ones, which predict further
 * tokens, do. */
static loci_status find_attention(const struct gguf *g, int layer, int layers, bool *attends,
                                  loci_error *e)
{
    const bool recurs = g->arch->layers == SOME_RECUR;
    int more = 0, period = g->arch->period, kv_heads = 1;
    double is = 0;
    loci_status s;
    if (!recurs && (s = whole(g, "attention.head_count_kv", layer, 0, 65536, &kv_heads, e)))
        return s;
    *attends = kv_heads > 0;
    if (!recurs) return LOCI_OK;
    if (setting(g, "attention.recurrent_layers")) {
        s = number(g, "attention.recurrent_layers", layer, 0, 1, &is, e);
        *attends = is == 0;
        return s;
    }
    if ((s = whole(g, "full_attention_interval", layer, 1, MAX_LAYERS, &period, e)) ||
        (s = whole(g, "nextn_predict_layers", layer, 0, MAX_LAYERS, &more, e)))
        return s;
    *attends = layer >= layers - more || (layer + 1) % period == 0;
    return LOCI_OK;
}

/* How wide a head is; 0: the file does not tell. */
static loci_status find_head(const struct gguf *g, int layer, bool full, struct settings *t,
                             loci_error *e)
{
    int width = 0, heads = 0;
    loci_status s;
    if ((s = whole(g, "embedding_length", layer, 1, 1 << 20, &width, e)) ||
        (s = whole(g, "attention.head_count", layer, 0, 65536, &heads, e)) ||
        (s = whole(g, "attention.key_length", layer, 1, MAX_HEAD, &t->head_dim, e)) ||
        (s = whole(g, "attention.key_length_mla", layer, 1, MAX_HEAD, &t->head_dim, e)) ||
        (!full && (s = whole(g, "attention.key_length_swa", layer, 1, MAX_HEAD, &t->head_dim, e))))
        return s;
    t->heads = heads;
    if (t->head_dim == 0 && width > 0 && heads > 0) t->head_dim = width / heads;
    IO_CHECK(e, t->head_dim <= MAX_HEAD, "a head of %d channels is none; 1 to %d can be",
             t->head_dim, MAX_HEAD);
    return LOCI_OK;
}

static loci_status find_channels(const struct gguf *g, int layer, bool full, struct settings *t,
                                 loci_error *e)
{
    loci_status s;
    IO_CHECK(e, t->head_dim > 0,
             "attention.key_length is missing, and so is embedding_length or attention.head_count "
             "that would tell it");
    t->dim = t->head_dim;
    const char *own = full || !setting(g, "rope.dimension_count_swa") ? "rope.dimension_count"
                                                                      : "rope.dimension_count_swa";
    if ((s = whole(g, own, layer, 2, MAX_HEAD, &t->dim, e))) return s;
    IO_CHECK(e, t->dim <= t->head_dim, "%s %d is more than the head's %d channels", own, t->dim,
             t->head_dim);
    if (g->arch->last) t->offset = t->head_dim - t->dim;
    return LOCI_OK;
}

static loci_status find_sections(const struct gguf *g, struct settings *t, loci_error *e)
{
    const struct entry *v = setting(g, "rope.dimension_sections");
    if (!v) return LOCI_OK;
    IO_CHECK(e, v->array && v->type != STRING && (v->count == 3 || v->count == 4),
             "rope.dimension_sections must be 3 or 4 numbers of pairs");
    int sum = 0;
    for (int i = 0; i < v->count; i++) {
        IO_CHECK(e,
                 v->value[i] >= 0 && v->value[i] <= (i < 3 ? MAX_PAIRS_READ : 0)
                     && v->value[i] == floor(v->value[i]),
                 "number %d of rope.dimension_sections is %g; the first three count pairs, the "
                 "fourth must be 0",
                 i, v->value[i]);
        if (i < 3) sum += t->sections[i] = (int)v->value[i];
    }
    IO_CHECK(e, sum == 0 || sum == t->dim / 2,
             "rope.dimension_sections add up to %d pairs, but the head has %d", sum, t->dim / 2);
    t->spread = g->arch->spread;
    return LOCI_OK;
}

/* Divisors that are 1 for the first pairs and hold all others still: the library's proportional, of
 * `all` as well. */
static bool find_still(const struct gguf *g, double all, struct settings *t)
{
    const int pairs = t->dim / 2;
    int n = 0;
    while (n < g->factor_count[0] && g->factors[0][n] == 1) n++;
    for (int i = n; i < g->factor_count[0]; i++)
        if (g->factors[0][i] != STILL) return false;
    if (g->factor_count[0] != pairs || n == 0 || n == pairs
        || (int)((double)n / pairs * t->head_dim / 2) != n || t->dim != t->head_dim)
        return false;
    t->scaling = "proportional";
    set_option(t, "partial", (double)n / pairs);
    if (all != 1) set_option(t, "factor", all);
    return true;
}

/* Divisors of the frequencies: the library's longrope, whose two lists may be one. */
static loci_status divide(const struct gguf *g, int from_short, int from_long, double all,
                          struct settings *t, loci_error *e)
{
    const int list[2] = { from_short, from_long };
    for (int k = 0; k < 2; k++) {
        IO_CHECK(e, g->factors[list[k]], "%s is missing", factor_names[list[k]]);
        IO_CHECK(e, g->factor_count[list[k]] == t->dim / 2,
                 "%s has %d numbers, but the head has %d pairs", factor_names[list[k]],
                 g->factor_count[list[k]], t->dim / 2);
        for (int i = 0; i < t->dim / 2; i++)
            IO_CHECK(e, g->factors[list[k]][i] < STILL,
                     "number %d of %s holds its pair still, which is known behind ones only, in "
                     "heads that "
                     "turn as a whole",
                     i, factor_names[list[k]]);
        for (int i = 0; i < t->dim / 2; i++)
            (k ? t->long_factor : t->short_factor)[i] = g->factors[list[k]][i] * all;
    }
    t->scaling = "longrope";
    t->factors = t->dim / 2;
    return LOCI_OK;
}

static loci_status find_yarn(const struct gguf *g, int layer, double factor, double original,
                             struct settings *t, loci_error *e)
{
    static const struct { const char *key, *option; } options[] = {
        { "rope.scaling.yarn_beta_fast", "beta_fast" },
        { "rope.scaling.yarn_beta_slow", "beta_slow" },
        { "rope.scaling.yarn_ext_factor", "extrapolation_factor" },
    };
    double log_multiplier = 0;
    loci_status s = number(g, "rope.scaling.yarn_log_multiplier", layer, 0, 1e3, &log_multiplier,
                           e);
    if (s) return s;
    IO_CHECK(e, factor > 0, "rope.scaling.factor is missing, which rope.scaling.type yarn needs");
    IO_CHECK(e, !g->factors[0],
             "%s beside rope.scaling.type yarn is a combination that we cannot express",
             factor_names[0]);
    t->scaling = "yarn";
    set_option(t, "factor", factor);
    set_option(t, "original_length", original);
    for (int i = 0; i < (int)(sizeof options / sizeof *options); i++) {
        double x = NAN;
        if ((s = number(g, options[i].key, layer, 0, 1e6, &x, e))) return s;
        if (x > 0) set_option(t, options[i].option, x);
    }
    /* of mscale_all_dim: a tenth of it in DeepSeek's files, whose mscale is the same */
    if (log_multiplier > 0) {
        const bool deepseek = !strncmp(g->arch->name, "deepseek", 8)
                           || !strcmp(g->arch->name, "glm-dsa");
        const double all = deepseek ? log_multiplier * 10 : log_multiplier,
                     m = loci_yarn_mscale(factor, all);
        set_option(t, "mscale", deepseek ? all : 1);
        set_option(t, "mscale_all_dim", all);
        if (deepseek || !strcmp(g->arch->name, "mistral4")) t->softmax_factor = m * m;
    }
    return LOCI_OK;
}

static loci_status find_scaling(const struct gguf *g, int layer, struct settings *t, loci_error *e)
{
    const struct entry *v = setting(g, "rope.scaling.type");
    double factor = 0, old = 0, context = t->trained_length, original = context, attention = 0,
           yarn_attention = 0;
    loci_status s;
    IO_CHECK(e, !v || v->text, "rope.scaling.type must be a word");
    const char *type = v ? v->text : g->factors[1] || g->factors[2] ? "longrope" : "linear";
    if ((s = number(g, "rope.scale_linear", layer, 0, 1e18, &old, e))
        || (s = number(g, "rope.scaling.factor", layer, 0, 1e18, &factor, e))
        || (s = number(g, "rope.scaling.original_context_length", layer, 1, 1e18, &original, e))
        || (s = number(g, "rope.scaling.attn_factor", layer, 0, 1e6, &attention, e))
        || (s = number(g, "rope.scaling.yarn_attn_factor", layer, 0, 1e6, &yarn_attention, e)))
        return s;
    IO_CHECK(e, !setting(g, "rope.scaling.alpha"),
             "rope.scaling.alpha is not known here; known: factor attn_factor "
             "original_context_length "
             "yarn_log_multiplier yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow");
    if (factor == 0) factor = old;
    if (!strcmp(type, "none") || !strcmp(type, "linear")) {
        if (strcmp(type, "linear") || factor == 0) factor = 1;
        if (g->factors[0] && !find_still(g, factor, t)) {
            if ((s = divide(g, 0, 0, factor, t, e))) return s;
            set_option(t, "factor", 1);
            set_option(t, "original_length", original >= 2 ? original : 2);
        } else if (!g->factors[0] && factor != 1) {
            t->scaling = "linear";
            set_option(t, "factor", factor);
        }
        if (attention > 0) t->times = attention;
        return LOCI_OK;
    }
    IO_CHECK(e, original >= 1,
             "rope.scaling.original_context_length is missing, and so is context_length");
    t->trained_length = original;
    if (!strcmp(type, "yarn")) {
        t->times = (attention > 0 ? attention : 1) * (yarn_attention > 0 ? yarn_attention : 1);
        return find_yarn(g, layer, factor, original, t, e);
    }
    IO_CHECK(e, !strcmp(type, "longrope"),
             "unknown rope.scaling.type '%.32s'; known: none linear yarn longrope", type);
    if ((s = divide(g, 1, 2, 1, t, e))) return s;
    set_option(t, "factor", factor > 0 ? factor : fmax(context / original, 1));
    set_option(t, "original_length", original);
    if (attention > 0) set_option(t, "attention_factor", attention);
    return LOCI_OK;
}

/* What goes with the rotation: scale, softcap, sink, window. */
static loci_status find_company(const struct gguf *g, int layer, bool full, bool turns,
                                struct settings *t, loci_error *e)
{
    const struct arch *a = g->arch;
    int window = a->window, width = 0;
    double of_file = 0;
    loci_status s;
    t->cap = a->cap;
    if ((s = whole(g, "embedding_length", layer, 1, 1 << 20, &width, e)) ||
        (s = number(g, "attn_logit_softcapping", layer, 0, 1e6, &t->cap, e)) ||
        (s = number(g, "attention.scale", layer, 0, 1e6, &of_file, e)) ||
        (s = number(g, "attention.output_scale", layer, 0, 1e6, &of_file, e)) ||
        (s = whole(g, "attention.sliding_window", layer, 0, INT32_MAX, &window, e)))
        return s;
    t->sink = g->sinks[layer];
    /* Gemma's of 27 billion go by the width of the model, which files show by their layers only. */
    const bool by_width = g->layers
                           == (!strcmp(a->name, "gemma2")   ? 46
                               : !strcmp(a->name, "gemma3") ? 62
                                                            : -1)
                       && t->heads > 0;
    const double of = by_width ? width / t->heads : t->head_dim;
    t->scale = of_file > 0 ? of_file : a->scale > 0 ? a->scale : of > 0 ? 1 / sqrt(of) : 0;
    if (!strcmp(a->name, "llama4")) t->chunk = turns ? 8192 : 0;
    else if (!full && window > 0) t->window = a->both ? window / 2 + 1 : window;
    return LOCI_OK;
}

/* ALiBi under a key of its own; the slopes that we know are those of 8. */
static loci_status read_instead(const struct gguf *g, struct settings *t, loci_error *e)
{
    double most = 0;
    t->instead = g->arch->instead;
    if (!g->arch->alibi_key) return LOCI_OK;
    loci_status s = number(g, "attention.max_alibi_bias", 0, 0, 1e6, &most, e);
    if (s) return s;
    IO_CHECK(e, most == 0 || most == 8,
             "attention.max_alibi_bias is %g, but slopes are known for 8", most);
    if (most > 0) t->instead = "alibi";
    return LOCI_OK;
}

/* Granite's files say with rope.scaling.finetuned whether layers turn; Baichuan's with 40 layers
 * have ALiBi. */
static loci_status find_switch(const struct gguf *g, struct settings *t, loci_error *e)
{
    double on = 1;
    loci_status s = g->arch->finetuned ? number(g, "rope.scaling.finetuned", 0, 0, 1, &on, e)
                                       : LOCI_OK;
    if (s) return s;
    if (on == 0) t->instead = "nope";
    if (!strcmp(g->arch->name, "baichuan") && g->layers == 40) t->instead = "alibi";
    return g->arch->instead ? read_instead(g, t, e) : LOCI_OK;
}

/* Bases of sliding layers stand under a key of their own; Gemma's older files leave theirs out, and
 * others' is that of all. */
static loci_status find_local_base(const struct gguf *g, int layer, struct settings *t,
                                   loci_error *e)
{
    const bool gemma = !strncmp(g->arch->name, "gemma", 5);
    IO_CHECK(e, g->arch->period > 0 || setting(g, "rope.freq_base_swa"),
             "rope.freq_base_swa is missing");
    loci_status s = gemma ? LOCI_OK : number(g, "rope.freq_base", layer, 1, 1e18, &t->base, e);
    return s ? s : number(g, "rope.freq_base_swa", layer, 1, 1e18, &t->base, e);
}

static loci_status read_layer(const struct loci_model *m, int layer, double length,
                              struct settings *t, loci_error *e)
{
    (void)length;                        /* which list counts is longrope's own affair */
    const struct gguf *g = m->file;
    const enum layers how = g->arch->layers;
    bool full, attends = true;
    double warmth = 0, warm_length = 8192;
    loci_status s;
    if ((s = number(g, "context_length", layer, 1, 1e18, &t->trained_length, e))
        || (s = find_kind(g, layer, &full, e))
        || ((how == SOME_RECUR || how == SOME_CONVOLVE)
            && (s = find_attention(g, layer, m->layers, &attends, e)))
        || (s = number(g, "attention.temperature_scale", layer, 0, 1e3, &warmth, e))
        || (s = number(g, "attention.temperature_length", layer, 1, 1e18, &warm_length, e)))
        return s;
    const bool by_window = how == SLIDING_TURN || (how == SOME_TURN && g->arch->first);
    const bool turns = by_window ? !full || !has_window(g) : how == SOME_TURN ? !full : true;
    if (warmth == 0 && !strcmp(g->arch->name, "llama4")) warmth = 0.1;
    if (warmth > 0 && (how != SOME_TURN || !turns))
        t->warmth = warmth, t->warm_length = warm_length, t->warm_shift = how == SOME_TURN;
    if (how != SOME_TURN && !full) t->layer = "sliding_attention";
    if (!attends)
        t->layer = how == SOME_CONVOLVE && !strncmp(g->arch->name, "lfm", 3) ? "conv"
                                                                             : "linear_attention";
    if (!attends) return t->instead = "nope", LOCI_OK;
    if ((s = find_head(g, layer, full, t, e)) || (s = find_company(g, layer, full, turns, t, e)) ||
        (s = find_switch(g, t, e)))
        return s;
    if (!turns && !t->instead) t->instead = "nope";
    if (t->instead) return LOCI_OK;

    t->interleaved = g->arch->interleaved;
    t->base = 10000;
    if ((s = find_channels(g, layer, full, t, e)) || (s = find_sections(g, t, e))) return s;
    if (how == LOCAL_BASE && !full) return find_local_base(g, layer, t, e);
    if ((s = number(g, "rope.freq_base", layer, 1, 1e18, &t->base, e))) return s;
    return how == FULL_SCALED && !full ? LOCI_OK : find_scaling(g, layer, t, e);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void close_gguf(struct loci_model *m)
{
    struct gguf *g = m->file;
    for (int i = 0; i < g->entries; i++) {
        free(g->entry[i].name);
        free(g->entry[i].text);
        free(g->entry[i].value);
    }
    for (int k = 0; k < 3; k++) free(g->factors[k]);
    free(g->entry);
    free(g);
}

static loci_status read_file(struct reader *r, struct loci_model *m, struct gguf *g)
{
    uint32_t magic, version;
    uint64_t tensors, keys;
    loci_status s;
    if ((s = take(r, &magic, 4)) || (s = take(r, &version, 4))) return s;
    IO_CHECK(r->e, version == 2 || version == 3,
             "GGUF version %u is not known here; 2 and 3, little-endian, are", (unsigned)version);
    if ((s = take(r, &tensors, 8)) || (s = take(r, &keys, 8)) || (s = read_entries(r, g, keys)))
        return s;
    const struct entry *v = find(g, "general.architecture");
    IO_CHECK(r->e, v && v->text,
             "general.architecture is missing; it decides which channels form a pair");
    for (int i = 0; i < ARCHS; i++)
        if (!strcmp(archs[i].name, v->text)) g->arch = &archs[i];
    IO_CHECK(r->e, g->arch,
             "architecture '%.32s' is not known here, and which channels form a pair would be a "
             "guess; docs/models.md lists "
             "those that are",
             v->text);
    strcpy(m->type, g->arch->name);
    if ((s = whole(g, "block_count", 0, 1, MAX_LAYERS, &m->layers, r->e))) return s;
    IO_CHECK(r->e, m->layers > 0, "%s.block_count is missing", g->arch->name);
    g->layers = m->layers;
    return read_tensors(r, g, tensors);
}

loci_status loci_gguf_open(struct loci_model *m, const struct source *from, loci_error *e)
{
    struct gguf *g = calloc(1, sizeof *g);
    struct reader *r = calloc(1, sizeof *r);
    loci_status s = LOCI_NO_MEMORY;
    if (!g || !r) {
        free(g);
        free(r);
        return loci_io_fail(e, s, "out of memory");
    }
    r->from = from, r->e = e;
    m->file = g, m->read = read_layer, m->close = close_gguf;
    s = read_file(r, m, g);
    free(r);
    if (s) close_gguf(m);
    return s;
}
