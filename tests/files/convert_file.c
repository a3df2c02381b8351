/* SPDX-License-Identifier: MIT */
/* convert_file.c -- `loci convert`: channels of a file move to their pair and everything else
 * stays, tables are the library's, and a partial conversion fails with one sentence and leaves no
 * file. */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "models/safetensors.h"
#include "loci/convert.h"
#include "harness.h"
#include "scratch.h"

static char folder[SCRATCH], input[SCRATCH + 16], output[SCRATCH + 16], back[SCRATCH + 16],
    config[SCRATCH + 16], said[4096];

/* ---- Running it ------------------------------------------------------------------------------ */

/* Words are separated by spaces.  IN, OUT, BACK and CONFIG are the files.  Its output is in
 * `said`. */
static int command(const struct command *c, const char *line)
{
    char text[1024], *argv[64];
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = !strcmp(word, "IN")     ? input
                     : !strcmp(word, "OUT")    ? output
                     : !strcmp(word, "BACK")   ? back
                     : !strcmp(word, "CONFIG") ? config
                                               : word;
    FILE *f = scratch_file();
    fflush(stdout);
    const int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    if (!f || dup2(fileno(f), STDOUT_FILENO) < 0 || dup2(fileno(f), STDERR_FILENO) < 0) exit(2);
    struct args a;
    int code = EXIT_ERROR;
    if (args_parse(&a, c, argc, argv)) code = c->run(&a);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    rewind(f);
    said[fread(said, 1, sizeof said - 1, f)] = 0;
    fclose(f);
    return code;
}
static int convert(const char *line) { return command(&cmd_convert, line); }

/* The folder contains no unfinished file. */
static bool tidy(void)
{
    bool good = true;
    DIR *d = opendir(folder);
    for (struct dirent *f; d && (f = readdir(d));) good = good && !strstr(f->d_name, ".loci-tmp");
    if (d) closedir(d);
    return good;
}
static bool absent(const char *path) { return access(path, F_OK) && tidy(); }

static void refused(const char *line, const char *sentence)
{
    unlink(output);
    const int code = convert(line);
    const char *end = strchr(said, '\n');
    CHECK_THAT(code == EXIT_ERROR && !strncmp(said, "loci: ", 6) && end && !end[1]
                   && strstr(said, sentence),
               "%s: exit code %d, '%s', wanted '%s'", line, code, said, sentence);
    CHECK_THAT(absent(output), "nothing is left of what was refused (said: %s)", said);
}

/* ---- Files ----------------------------------------------------------------------------------- */

enum { H = 4, KV = 2, D = 16, M = 6, LAYERS = 4, MOST = 80 };

static struct list {
    int count;
    struct safetensor t[MOST];
    char name[MOST][80];
    void *data[MOST];
} made;

static void add(const char *name, enum safetensors_type type, int rank, ptrdiff_t a, ptrdiff_t b)
{
    static unsigned seed = 1;
    struct list *l = &made;
    const int i = l->count++;
    if (i >= MOST) exit(2);
    snprintf(l->name[i], sizeof l->name[i], "%s", name);
    l->t[i] =
        (struct safetensor){ .name = l->name[i], .type = type, .rank = rank, .shape = { a, b } };
    const size_t bytes =
        loci_safetensors_type_size(type) * (size_t)((rank > 0 ? a : 1) * (rank > 1 ? b : 1));
    l->data[i] = malloc(bytes + 1);
    if (!l->data[i]) exit(2);
    for (size_t k = 0; k < bytes; k++)
        ((unsigned char *)l->data[i])[k] =
            (unsigned char)((seed = seed * 1103515245 + 12345) >> 16);
}
static void clear(void)
{
    for (int i = 0; i < made.count; i++) free(made.data[i]);
    made.count = 0;
}
static void save(const char *pairing)
{
    const struct safetensors_meta meta[] = { { "format", "pt" }, { "loci.pairing", pairing } };
    loci_error e;
    if (loci_safetensors_write(input, made.count, made.t, (const void *const *)made.data,
                               pairing ? 2 : 1, meta, &e))
        exit(2);
}

static void put_config(const char *text)
{
    FILE *f = fopen(config, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) exit(2);
}

static void layer(const char *home, int n, enum safetensors_type type)
{
    static const struct {
        const char *name;
        int rank, rows, width;
    } parts[] = {
        { "self_attn.q_proj.weight", 2, H * D, M },  { "self_attn.q_proj.bias", 1, H * D, 0 },
        { "self_attn.k_proj.weight", 2, KV * D, M }, { "self_attn.k_proj.bias", 1, KV * D, 0 },
        { "self_attn.q_norm.weight", 1, D, 0 },      { "self_attn.k_norm.weight", 2, KV, D },
        { "self_attn.v_proj.weight", 2, KV * D, M }, { "self_attn.o_proj.weight", 2, M, H * D },
        { "mlp.up_proj.weight", 2, 8, M },           { "self_attn.q_proj.input_scale", 0, 0, 0 },
    };
    char name[80];
    for (int i = 0; i < COUNT(parts); i++) {
        snprintf(name, sizeof name, "%s%d.%s", home, n, parts[i].name);
        add(name, type, parts[i].rank, parts[i].rows, parts[i].width);
    }
}
static void usual_file(void)
{
    static const enum safetensors_type types[LAYERS] = { ST_BF16, ST_F8_E4M3, ST_F32, ST_I64 };
    clear();
    add("model.embed_tokens.weight", ST_F16, 2, 10, M);
    for (int n = 0; n < LAYERS; n++) layer("model.layers.", n, types[n]);
    add("vision_tower.layers.0.self_attn.q_proj.weight", ST_F32, 2, H * D, M);
    add("empty", ST_F32, 1, 0, 0);
    save(NULL);
}

/* The source of rotated channel i, written independently of the library. */
static int from(int i, int turned, bool to_interleaved)
{
    return to_interleaved ? (i % 2 ? turned / 2 + i / 2 : i / 2)
                          : (i < turned / 2 ? 2 * i : 2 * (i - turned / 2) + 1);
}

/* Compares the new file with `made`: rows of tensors that `moves` selects follow the rule, and
 * everything else is unchanged. */
static bool right(const char *path, bool (*moves)(const char *), int dim, int turned, int offset,
                  bool to_interleaved, int *moved)
{
    struct safetensors f;
    loci_error e;
    if (loci_safetensors_open(&f, path, &e)) return false;
    bool good = f.count == made.count && !strcmp(loci_safetensors_meta(&f, "format"), "pt")
             && !strcmp(loci_safetensors_meta(&f, "loci.pairing"),
                        to_interleaved ? "interleaved" : "half");
    *moved = 0;
    for (int i = 0; i < f.count && good; i++) {
        int k = 0;
        while (strcmp(made.name[k], f.tensor[i].name)) k++;
        const struct safetensor *t = &f.tensor[i];
        char *got = malloc(t->bytes + 1);
        const char *was = made.data[k];
        if (!got || loci_safetensors_read(&f, t, got, &e)) exit(2);
        good = t->type == made.t[k].type && t->rank == made.t[k].rank;
        if (moves(t->name)) {
            const bool norm = strstr(t->name, "norm");
            const int own = strstr(t->name, "kv_a") ? (int)t->shape[0] : dim,
                      at = own - dim + offset;
            const ptrdiff_t rows = norm ? t->count : t->shape[0];
            const size_t row = t->bytes / (size_t)rows;
            for (ptrdiff_t r = 0; r < rows && good; r++) {
                const int c = (int)(r % own), ordered_sum = c >= at && c < at + turned;
                const ptrdiff_t source =
                    ordered_sum ? r - c + at + from(c - at, turned, to_interleaved) : r;
                good = !memcmp(got + (size_t)r * row, was + (size_t)source * row, row);
            }
            *moved += good && memcmp(got, was, t->bytes);
        } else {
            good = good && !memcmp(got, was, t->bytes);
        }
        free(got);
    }
    loci_safetensors_close(&f);
    return good;
}
static bool usual(const char *name)
{
    return !strncmp(name, "model.layers", 12) && !strstr(name, "input_scale")
        && (strstr(name, "q_proj") || strstr(name, "k_proj") || strstr(name, "q_norm")
            || strstr(name, "k_norm"));
}
static bool usual_turning(const char *name) { return usual(name) && !strstr(name, "layers.3."); }
static bool latent(const char *name)
{
    return strstr(name, "q_b_proj") || strstr(name, "kv_a_proj");
}
static bool named(const char *name)
{
    return strstr(name, "query.weight") || strstr(name, "key.weight");
}

/* ---- Weights --------------------------------------------------------------------------------- */

static void weights(void)
{
    int moved;
    usual_file();
    CHECK_THAT(!convert("IN --to interleaved --dim 16 --heads 4 --kv-heads 2 -n")
                   && strstr(said, "24 tensors would move") && absent(output),
               "a dry run (said: %s)", said);
    CHECK_THAT(strstr(said, "model.layers.1.self_attn.q_proj.weight  F8_E4M3 [64,6]  4 x 16, "
                            "channels 0-15\n")
                   != NULL,
               "what would move (said: %s)", said);
    CHECK_THAT(!strstr(said, "vision") && !strstr(said, "v_proj"), "and nothing else (said: %s)",
               said);
    CHECK_THAT(!convert("IN --to interleaved --dim 16 -o OUT")
                   && right(output, usual, D, D, 0, true, &moved) && moved == 24,
               "half to interleaved (said: %s)", said);
    CHECK_THAT(!convert("OUT --to half --dim 16 -o BACK"), "and back (said: %s)", said);
    CHECK_THAT(right(back, usual, D, 0, 0, false, &moved) && moved == 0,
               "there and back is bitwise the same (said: %s)", said);
    CHECK_THAT(!convert("IN --to half --heads 4 -o OUT")
                   && right(output, usual, D, D, 0, false, &moved) && moved == 24,
               "a width from heads (said: %s)", said);
    CHECK_THAT(!convert("IN --to half --dim 16 --turned 6 --offset 4 -o OUT")
                   && right(output, usual, D, 6, 4, false, &moved) && moved == 24,
               "a part turns (said: %s)", said);

    refused("BACK --to half --dim 16 -o OUT", "loci.pairing=half, so it is already converted");

    put_config("{\"model_type\":\"smollm3\",\"hidden_size\":64,\"num_attention_heads\":4,"
               "\"num_hidden_layers\":4,\"rope_theta\":1e4}");
    CHECK_THAT(!convert("IN CONFIG --to interleaved -o OUT")
                   && right(output, usual_turning, D, D, 0, true, &moved) && moved == 18,
               "a layer does not turn (said: %s)", said);
    put_config("{\"model_type\":\"stablelm\",\"hidden_size\":64,\"num_attention_heads\":4,"
               "\"num_hidden_layers\":4}");
    CHECK_THAT(!convert("IN CONFIG --to interleaved -o OUT")
                   && right(output, usual, D, 4, 0, true, &moved),
               "a config.json says "
               "what turns (said: %s)",
               said);
    CHECK_THAT(!convert("OUT CONFIG --to half -o BACK")
                   && right(back, usual, D, 0, 0, false, &moved) && moved == 0,
               "and back, with it (said: %s)", said);

    clear();
    add("bert.0.query.weight", ST_F64, 2, H * D, M);
    add("bert.0.key.weight", ST_U8, 2, KV * D, M);
    add("bert.0.value.weight", ST_F64, 2, 4, 4);
    save(NULL);
    CHECK_THAT(!convert("IN --to interleaved --dim 16 --q none,*.query.weight --k *.key.* -o OUT")
                   && right(output, named, D, D, 0, true, &moved) && moved == 2,
               "other names (said: %s)", said);
    clear();
    add("model.layers.0.self_attn.q_b_proj.weight", ST_BF16, 2, H * D, M);
    add("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", ST_BF16, 2, 37, M);
    add("model.layers.0.self_attn.kv_b_proj.weight", ST_BF16, 2, 64, 29);
    add("model.layers.0.self_attn.q_a_layernorm.weight", ST_BF16, 1, D, 0);
    save(NULL);
    CHECK_THAT(!convert("IN --to half --dim 16 --offset 8 -o OUT")
                   && right(output, latent, D, 8, 8, false, &moved) && moved == 2,
               "latent keys (said: %s)", said);
    clear();
    add("model.layers.0.self_attn.q_proj.weight", ST_F32, 2, H * D, M);
    save(NULL);
    CHECK_THAT(!convert("IN --to half --dim 16 --part -o OUT")
                   && right(output, usual, D, D, 0, false, &moved) && moved == 1,
               "one file of several (said: %s)", said);
    clear();
    add("\x1b[31m\n\xc2\x9b\xe2\x80\xae.q.weight", ST_F32, 2, H * D, M);
    save(NULL);
    CHECK_THAT(!convert("IN --to half --dim 16 --q *q.weight --part -n")
                   && strstr(said, "?[31m???.q.weight  F32 [64,6]"),
               "names that would steer a terminal (said: %s)", said);
    refused("IN --to half --dim 16 --q *q.weight -o OUT", "' has weights of queries only");
    clear();
    add("model.norm.weight", ST_F32, 1, 8, 0);
    save("half");
    CHECK_THAT(!convert("IN --to interleaved --dim 16 --part -o OUT")
                   && right(output, usual, D, D, 0, true, &moved) && moved == 0,
               "one without any (said: %s)", said);
}

static void bad_weights(void)
{
    usual_file();
    unlink(config);
    refused("", "no file given");
    refused("IN IN IN", "one argument too many");
    refused("IN --dim 16 -o OUT", "--to half or --to interleaved");
    refused("IN --to half --dim 16", "-o FILE");
    refused("IN --to quarter --dim 16 -o OUT", "must be one of");
    refused("IN --to half -o OUT", "CONFIG, --dim or --heads");
    refused("IN --to half --dim 24 -o OUT", "a multiple of the head width 24");
    refused("IN --to half --heads 5 -o OUT", "--heads does not divide");
    refused("IN --to half --dim 16 --heads 8 -o OUT", "4 heads of width 16, but must have 8 heads");
    refused("IN --to half --dim 16 --kv-heads 4 -o OUT",
            "2 heads of width 16, but must have 4 heads");
    refused("IN --to half --dim 16 --turned 5 -o OUT", "must be even");
    refused("IN --to half --dim 16 --turned 14 --offset 4 -o OUT", "must not exceed");
    refused("IN --to half --dim 16 --q nothing -o OUT", "has weights of keys only");
    refused("IN --to half --dim 16 --q nothing --k nothing -o OUT", "no tensor is a weight");
    refused("IN --to half --dim 16 --rows 5 -o OUT", "--rows applies to --table");
    refused("CONFIG --to half --dim 16 -o OUT", "cannot open");
    refused("IN CONFIG --to half -o OUT", "cannot open");
    refused("IN --to half --dim 16 -o IN", "would be overwritten");
    CHECK_THAT(!access(input, F_OK), "and is still there (said: %s)", said);
    refused("IN --to half --dim 16 -o /nowhere/at/all", "cannot write");
    refused("IN --to half --dim 16 -o /dev/full", "not a regular file");
    put_config("{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":4,"
               "\"num_hidden_layers\":4}");
    refused("IN CONFIG --to half -o OUT", "is already half");
    refused("IN CONFIG --to interleaved --dim 16 -o OUT", "exclude CONFIG, which states them");
    refused("IN CONFIG --to interleaved -o CONFIG", "would be overwritten");
    put_config("{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":4,"
               "\"num_hidden_layers\":3}");
    refused("IN CONFIG --to interleaved -o OUT", "to none of the layers 0 to 2");
    put_config("{\"model_type\":\"llama\",\"hidden_size\":32,\"num_attention_heads\":2,"
               "\"num_hidden_layers\":4}");
    /* as rows of gates between the heads would be */
    refused("IN CONFIG --to interleaved -o OUT", "4 heads of width 16, but must have 2 heads");
    put_config("GGUFxxxx");
    refused("IN CONFIG --to interleaved -o OUT", "GGUF file describes its own weights only");
    put_config("{}");
    refused("IN CONFIG --to interleaved -o OUT", "model_type is missing");
    refused("CONFIG --to interleaved --dim 16 -o OUT", "too short for a safetensors file");

    static const struct {
        const char *name;
        enum safetensors_type type;
        int rank;
        ptrdiff_t a, b;
        const char *sentence;
    } strays[] = {
        { "model.layers.0.self_attn.q_proj.weight_scale_inv", ST_F32, 2, 1, 2,
          "belongs to a weight whose rows are moved" },
        { "model.layers.0.self_attn.k_proj.lora_B.weight", ST_F32, 2, KV * D, 2,
          "belongs to a weight whose rows are moved" },
        { "model.layers.0.self_attn.query_norm.weight", ST_F32, 1, D, 0, "looks like a norm" },
        { "model.layers.5.self_attn.q_proj.weight", ST_F32, 2, H * D, M,
          "has weights of queries only" },
        { "model.layers.5.self_attn.k_proj.bias", ST_F32, 1, KV * D, 0,
          "has weights of keys only" },
        { "model.layers.0.self_attn.q_layernorm.bias", ST_F32, 1, D + 1, 0,
          "must have a multiple of the head width" },
        { "layers.0.attention.wq.weight", ST_F32, 3, D, 1, "has 3 dimensions" },
        { "layers.0.attention.wk.weight", ST_F32, 2, 0, M, "has 2 dimensions and 0 numbers" },
    };
    for (int i = 0; i < COUNT(strays); i++) {
        clear();
        layer("model.layers.", 0, ST_F32);
        add(strays[i].name, strays[i].type, strays[i].rank, strays[i].a, strays[i].b);
        if (strays[i].rank == 3) made.t[made.count - 1].shape[2] = 1;
        save(NULL);
        refused("IN --to half --dim 16 -o OUT", strays[i].sentence);
    }
    clear();
    layer("model.layers.", 0, ST_F32);
    save("spiral");
    refused("IN --to half --dim 16 -o OUT", "loci.pairing=spiral");
}

/* A full disk, simulated by a limit on the size of a file. */
static void full_disk(void)
{
    struct rlimit was, little;
    usual_file();
    if (getrlimit(RLIMIT_FSIZE, &was)) exit(2);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t size = 0; size <= 8192; size += 2048) {
        little = was;
        little.rlim_cur = size;
        unlink(output);
        if (setrlimit(RLIMIT_FSIZE, &little)) exit(2);
        /* its output goes to a file as well */
        const int code = convert("IN --to half --dim 16 -o OUT");
        const int table = convert("--table half -e rope:pairing=half --dim 16 --rows 9999 -o OUT");
        if (setrlimit(RLIMIT_FSIZE, &was)) exit(2);
        CHECK_THAT(code == EXIT_ERROR && table == EXIT_ERROR && absent(output),
                   "a full disk leaves nothing (said: %s)", said);
    }
    char old[64] = "";
    FILE *f = fopen(output, "w");
    if (!f || fputs("old", f) < 0 || fclose(f) || chmod(output, 0600)
        || setrlimit(RLIMIT_FSIZE, &little))
        exit(2);
    const int code = convert("IN --to half --dim 16 -o OUT");
    struct stat st;
    if (setrlimit(RLIMIT_FSIZE, &was) || !(f = fopen(output, "r"))) exit(2);
    CHECK_THAT(code == EXIT_ERROR && tidy() && fgets(old, sizeof old, f) && !strcmp(old, "old"),
               "a full disk leaves what was there (said: %s)", said);
    fclose(f);
    CHECK_THAT(!convert("IN --to half --dim 16 -o OUT") && !stat(output, &st)
                   && (st.st_mode & 07777) == 0600,
               "a new file is as private as the old one (said: %s)", said);
    unlink(output);
}

/* Copying uses a small buffer. */
static void large_file(void)
{
    enum { MB = 1 << 20, LARGE = 48 };
    clear();
    layer("model.layers.", 0, ST_F32);
    add("model.embed_tokens.weight", ST_U8, 2, LARGE, MB);
    save(NULL);
    clear();
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    CHECK_THAT(!convert("IN --to half --dim 16 -o OUT"), "a large file (said: %s)", said);
    getrusage(RUSAGE_SELF, &after);
    struct stat a, b;
    CHECK_THAT(!stat(input, &a) && !stat(output, &b) && b.st_size >= a.st_size,
               "all of it (said: %s)", said);
#ifndef LOCI_SANITIZED
    CHECK_THAT(after.ru_maxrss - before.ru_maxrss < LARGE * 1024 / 2, "in little memory (said: %s)",
               said);
#endif
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static void table(const char *layout, loci_table_layout form, const char *type, loci_dtype dtype,
                  const char *text, int dim, int width)
{
    enum { ROWS = 9000 };
    char line[512];
    snprintf(line, sizeof line, "--table %s -e %s --dim %d --rows %d --dtype %s -o OUT", layout,
             text, dim, ROWS, type);
    if (!CHECK_THAT(!convert(line), "%s (said: %s)", line, said)) return;
    const loci_desc d = LOCI_DESC(.encoding = text, .heads = 1, .dim = dim);
    struct safetensors f;
    loci_error e;
    loci_plan *plan;
    if (loci_plan_create(&plan, &d, &e) || loci_safetensors_open(&f, output, &e)) exit(2);
    const size_t bytes = (size_t)ROWS * (size_t)width
                       * (dtype == LOCI_F64   ? 8
                          : dtype == LOCI_F32 ? 4
                                              : 2);
    char *want[2] = { malloc(bytes), malloc(bytes) }, *got = malloc(bytes);
    const loci_rope_table t = LOCI_ROPE_TABLE(.layout = form, .dtype = dtype, .count = ROWS,
                                              .cos = want[0], .sin = want[1]);
    if (!want[0] || !want[1] || !got || loci_export_rope(plan, NULL, &t, &e)) exit(2);
    bool good = f.count == 2 && !strcmp(loci_safetensors_meta(&f, "loci.encoding"), text)
             && !strcmp(loci_safetensors_meta(&f, "loci.layout"), layout);
    for (int i = 0; i < f.count && good; i++) {
        good = !strcmp(f.tensor[i].name, i ? "sin" : "cos") && f.tensor[i].bytes == bytes
            && f.tensor[i].shape[0] == ROWS && f.tensor[i].shape[1] == width;
        good = good && !loci_safetensors_read(&f, &f.tensor[i], got, &e)
            && !memcmp(got, want[i], bytes);
    }
    CHECK_THAT(good, "a table is the library's (said: %s)", said);
    free(want[0]);
    free(want[1]);
    free(got);
    loci_safetensors_close(&f);
    loci_plan_destroy(plan);
}

static void tables(void)
{
    static const struct {
        const char *name;
        loci_dtype dtype;
    } types[] = {
        { "f64", LOCI_F64 },
        { "f32", LOCI_F32 },
        { "bf16", LOCI_BF16 },
        { "f16", LOCI_F16 },
    };
    for (int i = 0; i < COUNT(types); i++) {
        table("half", LOCI_TABLE_HALF, types[i].name, types[i].dtype, "rope:pairing=half", 32, 32);
        table("interleaved", LOCI_TABLE_INTERLEAVED, types[i].name, types[i].dtype,
              "rope:pairing=interleaved,dim=20,offset=4", 32, 20);
        table("split", LOCI_TABLE_SPLIT, types[i].name, types[i].dtype,
              "rope:pairing=half,scaling=yarn,factor=4,original_length=64", 32, 16);
    }
    put_config("{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":4,"
               "\"num_hidden_layers\":4,\"max_position_embeddings\":77}");
    CHECK_THAT(!convert("--table split CONFIG -n") && strstr(said, "[77,8]"),
               "of a model, as long as it was trained (said: %s)", said);
    CHECK_THAT(!convert("--table split CONFIG -o OUT"), "and written (said: %s)", said);
    CHECK_THAT(!command(&cmd_check, "OUT CONFIG"), "loci check knows it again (said: %s)", said);
    put_config("{\"model_type\":\"smollm3\",\"hidden_size\":64,\"num_attention_heads\":4,"
               "\"num_hidden_layers\":4,\"rope_theta\":1e4}");
    CHECK_THAT(!convert("--table half CONFIG --layer 2 --rows 1 -o OUT"), "one position (said: %s)",
               said);
    refused("--table half CONFIG --layer 3 --rows 5 -o OUT", "layer 3 does not rotate");
    refused("--table half CONFIG --layer 9 --rows 5 -o OUT", "layer 9 must be from 0");
    refused("--table half CONFIG -o OUT", "give --rows N");
    refused("--table half CONFIG --dim 16 -o OUT", "--dim excludes CONFIG");
    refused("--table half CONFIG --rows 5", "the output is missing: -o FILE");
    refused("--table half CONFIG --rows 0 -o OUT", "from 1 to");
    refused("--table half CONFIG --rows 5 --dtype f8 -o OUT", "must be one of");
    refused("--table full CONFIG --rows 5 -o OUT", "must be one of");
    refused("--table half CONFIG --to half -o OUT", "--to applies to weights");
    refused("--table half -o OUT", "--table needs one config.json");
    refused("--table half CONFIG -e rope:pairing=half -o OUT", "--table needs one config.json");
    refused("--table half -e rope:pairing=half -o OUT", "needs --dim");
    refused("--table half -e rope:pairing=half --dim 16 --rows 5 --layer 1 -o OUT",
            "need a CONFIG");
    refused("--table half -e rope:pairing=half --dim 15 --rows 5 -o OUT", "dim");
    refused("--table half -e alibi --dim 16 --rows 5 -o OUT", "alibi");
    refused("--table half -e mrope:sections=2/3/3 --dim 16 --rows 5 -o OUT", "the encoding rope");
    refused("--table half -e rope:pairing=half,freq=given --dim 16 --rows 5 -o OUT",
            "are learned tensors");
    refused("--table half -e rope --dim 16 --rows 5 -o OUT", "pairing");
    refused("--table half IN --rows 5 -o OUT", "a config.json may have at most");
}

int main(void)
{
    scratch(folder, "convert");
    if (!mkdtemp(folder)) return 2;
    snprintf(input, sizeof input, "%s/in", folder);
    snprintf(output, sizeof output, "%s/out", folder);
    snprintf(back, sizeof back, "%s/back", folder);
    snprintf(config, sizeof config, "%s/config.json", folder);
    weights();
    bad_weights();
    full_disk();
    large_file();
    tables();
    clear();
    unlink(input);
    unlink(output);
    unlink(back);
    unlink(config);
    CHECK_THAT(rmdir(folder) == 0, "the folder is empty (said: %s)", said);
    return harness_end();
}
