/* SPDX-License-Identifier: MIT */
/* convert.c -- `loci convert` on random arguments, configurations and files.  A rejected input
 * leaves no file.  Converted weights have the same names and shapes, and converting back restores
 * the original bytes. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "models/safetensors.h"

/* The same tensors.  `same`: with the same bytes. */
static void compare(const char *path, const char *other, bool same)
{
    struct safetensors a, b;
    loci_error e;
    FUZZ_CHECK(!loci_safetensors_open(&a, path, &e) && !loci_safetensors_open(&b, other, &e));
    FUZZ_CHECK(a.count == b.count);
    for (int i = 0; i < a.count; i++) {
        const struct safetensor *x = &a.tensor[i], *y = &b.tensor[i];
        FUZZ_CHECK(!strcmp(x->name, y->name) && x->type == y->type && x->rank == y->rank
                   && x->bytes == y->bytes
                   && !memcmp(x->shape, y->shape, sizeof *x->shape * (size_t)x->rank));
        unsigned char *bytes = malloc(2 * x->bytes + 1);
        FUZZ_CHECK(bytes && !loci_safetensors_read(&a, x, bytes, &e)
                   && !loci_safetensors_read(&b, y, bytes + x->bytes, &e));
        FUZZ_CHECK(!same || !memcmp(bytes, bytes + x->bytes, x->bytes));
        /* every moved element is there once */
        unsigned sum[2] = { 0 };
        for (size_t k = 0; k < 2 * x->bytes; k++) sum[k / x->bytes] += bytes[k];
        FUZZ_CHECK(sum[0] == sum[1]);
        free(bytes);
    }
    loci_safetensors_close(&a);
    loci_safetensors_close(&b);
}

/* Converts OUT to BACK, with the other pairing.  All other arguments stay. */
static void turn_back(struct input *in)
{
    const char *const before = input_value(in, "--to");
    char *const other = !strcmp(before, "half") ? "interleaved" : "half";
    for (int i = 0; i < in->count; i++) {
        if (!strcmp(in->word[i], "OUT")) in->word[i] = "BACK";
        else if (!strcmp(in->word[i], "FILE")) in->word[i] = "OUT";
        else if (in->word[i] == before) in->word[i] = other;
    }
    FUZZ_CHECK(run_command(&cmd_convert, in) == EXIT_DONE);
    compare(in->file, in->out, false);
    compare(in->file, in->back, true);
}
static int count(const struct input *in, const char *word)
{
    int n = 0;
    for (int i = 0; i < in->count; i++) n += !strcmp(in->word[i], word);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in;
    if (!input_open(&in, data, size)) return 0;
    /* the written table has this number of rows */
    const char *rows = input_value(&in, "--rows"), *to = input_value(&in, "--to");
    const bool dry = count(&in, "-n") || count(&in, "--dry-run");
    if (input_value(&in, "--table") && !dry && (!rows || strlen(rows) > 3)) return 0;
    const int code = run_command(&cmd_convert, &in);
    const bool written = !access(in.out, F_OK);
    FUZZ_CHECK(!written || code == EXIT_DONE);
    /* A repeated option uses its last value, but the search here finds the first. */
    if (written && !input_value(&in, "--table") && to && in.word[0]
        && (!strcmp(to, "half") || !strcmp(to, "interleaved")) && count(&in, "--to") == 1
        && count(&in, "FILE") == 1 && count(&in, "OUT") == 1 && !strcmp(in.word[0], "FILE"))
        turn_back(&in);
    input_close(&in);
    return 0;
}

/* ---- Seeds ----------------------------------------------------------------------------------- */

/* Two layers of 2 query heads and 1 key head of 8, or with a norm and a bias as well. */
static void make_weights(const char *path, bool more)
{
    const ptrdiff_t D = 8, M = 2;
    const struct safetensor t[] = {
        { .name = "model.embed.weight", .type = ST_U8, .rank = 1, .shape = { 5 } },
        { .name = "model.layers.0.self_attn.k_proj.weight",
          .type = ST_F32,
          .rank = 2,
          .shape = { D, M } },
        { .name = "model.layers.0.self_attn.q_proj.weight",
          .type = ST_F32,
          .rank = 2,
          .shape = { 2 * D, M } },
        { .name = "model.layers.1.self_attn.k_proj.weight",
          .type = ST_BF16,
          .rank = 2,
          .shape = { D, M } },
        { .name = "model.layers.1.self_attn.q_proj.weight",
          .type = ST_BF16,
          .rank = 2,
          .shape = { 2 * D, M } },
        { .name = "model.layers.1.self_attn.q_proj.bias",
          .type = ST_F32,
          .rank = 1,
          .shape = { 2 * D } },
        { .name = "model.layers.1.self_attn.k_norm.weight",
          .type = ST_F16,
          .rank = 1,
          .shape = { D } },
    };
    const struct safetensors_meta meta[] = { { "format", "pt" } };
    const int count = more ? 7 : 5;
    struct safetensors_writer w;
    loci_error e;
    loci_status s = loci_safetensors_begin(&w, path, count, t, 1, meta, &e);
    unsigned char x = 0, element[8];
    for (int i = 0; i < count && !s; i++) {
        const size_t each = loci_safetensors_type_size(t[i].type);
        ptrdiff_t n = 1;
        for (int k = 0; k < t[i].rank; k++) n *= t[i].shape[k];
        for (; n > 0 && !s; n--) {
            for (size_t b = 0; b < each; b++) element[b] = x = (unsigned char)(x * 5 + 1);
            s = loci_safetensors_put(&w, element, each, &e);
        }
    }
    if (loci_safetensors_end(&w, s, &e)) exit(2);
}

void fuzz_seeds(void (*add)(const void *, size_t))
{
    static const char model[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 16, \"num_attention_heads\": 2, "
        "\"num_key_value_heads\": 1, \"num_hidden_layers\": 2, \"max_position_embeddings\": 64}";
    static const char *const lines[] = {
        "FILE --to half --dim 8 -o OUT",
        "FILE --to interleaved --heads 2 --kv-heads 1 -o OUT",
        "FILE --to half --dim 8 --turned 4 --offset 2 -o OUT --part",
        "FILE --to half --dim 4 --q *q_* --k *k_* -o OUT",
        "FILE CONFIG --to interleaved -o OUT",
        "FILE CONFIG --to interleaved -n",
    };
    static const char *const tables[] = {
        "--table half CONFIG --rows 20 -o OUT",
        "--table split CONFIG --rows 9 --dtype bf16 -o OUT",
        "--table interleaved -e rope:pairing=half,base=500000 --dim 16 --rows 7 -o OUT",
        "--table half CONFIG --layer 1 --length 9000 -n",
    };
    static const char *const configs[] = {
        model,
        "tests/cases/models/command-r.json",
        "tests/cases/models/gemma-3-1b.json",
        "tests/cases/models/phi-3-mini-128k.json",
        "tests/cases/models/qwen2.5-yarn.json",
    };
    const char *const path = fuzz_scratch();
    for (int i = 0; i < COUNT(lines); i++)
        for (int more = 0; more < 2; more++) {
            make_weights(path, more);
            add_input(add, lines[i], model, path);
        }
    unlink(path);
    for (int i = 0; i < COUNT(tables); i++)
        for (int k = 0; k < COUNT(configs); k++) add_input(add, tables[i], configs[k], NULL);
}
