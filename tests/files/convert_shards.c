/* SPDX-License-Identifier: MIT */
/* convert_shards.c -- `loci convert` of an index: randomly cut shards give the same result as one
 * file of all tensors, an index that does not fit its files fails with one sentence, and failures
 * leave no file. */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "models/safetensors.h"
#include "harness.h"
#include "scratch.h"
#include "walk.h"

enum { PATH = SCRATCH + 300, TENSORS = 32, SHARDS = 6, D = 16, M = 5, LAYERS = 3 };

static char home[SCRATCH], said[8192];

static int below(int n) { return (int)((walk_uniform() + 1) / 2 * n) % n; }

/* Returns one of a few buffers. */
static char *in_home(const char *format, ...)
{
    static char paths[8][PATH];
    static int next;
    char *path = paths[next++ % 8];
    va_list args;
    const int n = snprintf(path, PATH, "%s/", home);
    va_start(args, format);
    vsnprintf(path + n, (size_t)(PATH - n), format, args);
    va_end(args);
    return path;
}

/* ---- Running it ------------------------------------------------------------------------------ */

/* convert FROM --to PAIRING --dim 16 -o TO.  Its output is in `said`. */
static int convert(const char *from, const char *pairing, const char *to)
{
    char words[8][PATH];
    char *argv[8];
    const char *const list[] = { from, "--to", pairing, "--dim", "16", to ? "-o" : "-n", to };
    const int argc = to ? 7 : 6;
    for (int i = 0; i < argc; i++) {
        snprintf(words[i], PATH, "%s", list[i]);
        argv[i] = words[i];
    }
    FILE *f = scratch_file();
    fflush(stdout);
    const int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    if (!f || dup2(fileno(f), STDOUT_FILENO) < 0 || dup2(fileno(f), STDERR_FILENO) < 0) exit(2);
    struct args a;
    int code = EXIT_ERROR;
    if (args_parse(&a, &cmd_convert, argc, argv)) code = cmd_convert.run(&a);
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

/* The number of files in a folder. -1: there is no such folder. */
static int files_in(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    if (!d) return -1;
    for (struct dirent *f; (f = readdir(d));) n += f->d_name[0] != '.';
    closedir(d);
    return n;
}
static void empty(const char *path)
{
    DIR *d = opendir(path);
    char name[PATH];
    if (!d) return;
    for (struct dirent *f; (f = readdir(d));) {
        snprintf(name, sizeof name, "%s/%.255s", path, f->d_name);
        if (f->d_name[0] != '.') unlink(name);
    }
    closedir(d);
    rmdir(path);
}

static void refused(const char *from, const char *to, const char *sentence)
{
    const int before = files_in(to), code = convert(from, "interleaved", to);
    const char *end = strchr(said, '\n');
    CHECK_THAT(code == EXIT_ERROR && !strncmp(said, "loci: ", 6) && end && !end[1]
                   && strstr(said, sentence),
               "exit code %d, '%s', wanted '%s'", code, said, sentence);
    CHECK_THAT(files_in(to) == before, "'%s': %d files, and there were %d", sentence, files_in(to),
               before);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static struct model {
    int count, shards;
    struct safetensor t[TENSORS];
    char name[TENSORS][80];
    void *data[TENSORS];
    int shard[TENSORS];
} m;

static void add(const char *name, enum safetensors_type type, ptrdiff_t rows, ptrdiff_t width)
{
    const int i = m.count++;
    if (i >= TENSORS) exit(2);
    snprintf(m.name[i], sizeof m.name[i], "%s", name);
    m.t[i] =
        (struct safetensor){ .name = m.name[i], .type = type, .rank = 2, .shape = { rows, width } };
    const size_t bytes = loci_safetensors_type_size(type) * (size_t)(rows * width);
    if (!(m.data[i] = malloc(bytes))) exit(2);
    for (size_t k = 0; k < bytes; k++) ((unsigned char *)m.data[i])[k] = (unsigned char)below(256);
}
static const char *shard_name(int i)
{
    static char name[4][64];
    static int next;
    char *to = name[next++ % 4];
    snprintf(to, 64, "model-%05d-of-%05d.safetensors", i + 1, m.shards);
    return to;
}
/* Tensors of one shard. -1: all of them. */
static void save(const char *path, int shard, const char *pairing)
{
    struct safetensor t[TENSORS];
    const void *data[TENSORS];
    const struct safetensors_meta meta[] = { { "format", "pt" }, { "loci.pairing", pairing } };
    int n = 0;
    loci_error e;
    for (int i = 0; i < m.count; i++)
        if (shard < 0 || m.shard[i] == shard) {
            t[n] = m.t[i];
            data[n++] = m.data[i];
        }
    if (loci_safetensors_write(path, n, t, data, pairing ? 2 : 1, meta, &e)) exit(2);
}
static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) exit(2);
}
/* Adds the text `extra` to the map, and omits tensor number `but`. */
static void put_index(const char *path, const char *extra, int but)
{
    char text[8192];
    int n = snprintf(text, sizeof text, "{\"metadata\": {\"total_size\": 1},\n \"weight_map\": {");
    const char *comma = "";
    for (int i = 0; i < m.count; i++) {
        if (i == but) continue;
        n += snprintf(text + n, sizeof text - (size_t)n, "%s\n  \"%s\": \"%s\"", comma, m.name[i],
                      shard_name(m.shard[i]));
        comma = ",";
    }
    n += snprintf(text + n, sizeof text - (size_t)n, "%s%s}}\n", *extra ? comma : "", extra);
    put(path, text);
}

static void make(int shards)
{
    static const enum safetensors_type types[] = { ST_BF16, ST_F32, ST_F8_E4M3, ST_F64 };
    char name[80];
    for (int i = 0; i < m.count; i++) free(m.data[i]);
    m.count = 0;
    m.shards = shards;
    add("model.embed_tokens.weight", ST_F16, 7, M);
    for (int n = 0; n < LAYERS; n++) {
        const enum safetensors_type type = types[below(4)];
        const char *const parts[] = { "q_proj", "k_proj", "v_proj", "o_proj" };
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%s.weight", n, parts[i]);
            add(name, type, i == 0 ? 2 * D : D, M);
        }
    }
    /* each has at least one, and a q may be in another file than its k */
    for (int i = 0; i < m.count; i++) m.shard[i] = i < shards ? i : below(shards);
    empty(in_home("model"));
    if (mkdir(in_home("model"), 0777)) exit(2);
    for (int i = 0; i < shards; i++) save(in_home("model/%s", shard_name(i)), i, NULL);
    put_index(in_home("model/model.safetensors.index.json"), "", -1);
    save(in_home("whole"), -1, NULL);
}

/* ---- Results --------------------------------------------------------------------------------- */

static bool same_text(const char *path, const char *other)
{
    char a[8192], b[8192];
    FILE *f = fopen(path, "r"), *g = fopen(other, "r");
    if (!f || !g) return false;
    const size_t n = fread(a, 1, sizeof a, f), k = fread(b, 1, sizeof b, g);
    fclose(f);
    fclose(g);
    return n && n == k && !memcmp(a, b, n);
}
/* Shards in a folder have the bytes of one file of all tensors. */
static bool as_whole(const char *folder, const char *whole, const char *pairing)
{
    struct safetensors all, one;
    loci_error e;
    int found = 0;
    bool good = true;
    if (loci_safetensors_open(&all, whole, &e)) return false;
    for (int s = 0; s < m.shards && good; s++) {
        if (loci_safetensors_open(&one, in_home("%s/%s", folder, shard_name(s)), &e)) {
            good = false;
            break;
        }
        const char *is = loci_safetensors_meta(&one, "loci.pairing");
        good = is && !strcmp(is, pairing) && !strcmp(loci_safetensors_meta(&one, "format"), "pt");
        for (int i = 0; i < one.count && good; i++, found++) {
            const struct safetensor *t = &one.tensor[i], *w = NULL;
            for (int k = 0; k < all.count; k++)
                if (!strcmp(all.tensor[k].name, t->name)) w = &all.tensor[k];
            good = w && w->bytes == t->bytes && w->type == t->type && w->rank == t->rank;
            char *bytes = malloc(2 * t->bytes);
            if (!bytes) exit(2);
            good = good && !loci_safetensors_read(&one, t, bytes, &e)
                && !loci_safetensors_read(&all, w, bytes + t->bytes, &e)
                && !memcmp(bytes, bytes + t->bytes, t->bytes);
            free(bytes);
        }
        loci_safetensors_close(&one);
    }
    good = good && found == all.count;
    loci_safetensors_close(&all);
    return good;
}

static void random_shards(int round)
{
    walk_restart(round);
    make(1 + below(SHARDS));
    const char *const index = "model/model.safetensors.index.json";
    /* the folder, or the index itself; into an existing folder, or a new one */
    const char *const from = in_home("%s", below(2) ? "model" : index);
    if (below(2) && mkdir(in_home("out"), 0777)) exit(2);
    CHECK_THAT(!convert(in_home("whole"), "interleaved", in_home("whole-out")), "round %d: %s",
               round, said);
    CHECK_THAT(!convert(from, "interleaved", NULL) && strstr(said, "6 tensors would move"),
               "round %d: a dry run: %s", round, said);
    CHECK_THAT(!convert(from, "interleaved", in_home("out")) && strstr(said, "6 tensors moved"),
               "round %d: %s", round, said);
    CHECK_THAT(as_whole("out", in_home("whole-out"), "interleaved"),
               "round %d: %d shards are what one file is", round, m.shards);
    CHECK_THAT(same_text(in_home("%s", index), in_home("out/model.safetensors.index.json"))
                   && files_in(in_home("out")) == m.shards + 1,
               "round %d: and the index", round);
    CHECK_THAT(!convert(in_home("out"), "half", in_home("back"))
                   && as_whole("back", in_home("whole"), "half"),
               "round %d: and back: %s", round, said);
    empty(in_home("out"));
    empty(in_home("back"));
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static void bad_index(void)
{
    make(3);
    char *const path = strdup(in_home("model/model.safetensors.index.json")),
                *const from = strdup(in_home("model")), *const out = strdup(in_home("out"));
    static const char *const names[] = {
        "../model-00001-of-00003.safetensors",
        "/etc/x.safetensors",
        "..",
        ".",
        "",
        "a/b.safetensors",
        "a\\\\b.safetensors",
        ".hidden.safetensors",
        "config.json",
        ".safetensors",
    };
    char extra[256];
    for (int i = 0; i < COUNT(names); i++) {
        snprintf(extra, sizeof extra, "\"x\": \"%s\"", names[i]);
        put_index(path, extra, -1);
        refused(from, out, "which is no NAME.safetensors in its folder");
    }
    put_index(path, "\"x\": 5", -1);
    refused(from, out, "which is no NAME.safetensors in its folder");
    put_index(path, "\"x\": \"model-00004-of-00003.safetensors\"", -1);
    refused(from, out, "model-00004-of-00003.safetensors: cannot open");
    put_index(path, "\"x\": \"model-00002-of-00003.safetensors\"", -1);
    refused(from, out, "the index says that it has tensor 'x', and it has not");
    put_index(path, "", 4);
    refused(from, out, "' is not in the index");
    snprintf(extra, sizeof extra, "\"%s\": \"model-00002-of-00003.safetensors\"", m.name[2]);
    put_index(path, extra, -1);
    refused(from, out, "neither GGUF nor valid JSON: duplicate object key");
    static const char *const texts[] = {
        "{}",
        "{\"weight_map\": []}",
        "{\"weight_map\": {}}",
        "{\"weight_map\": null}",
    };
    for (int i = 0; i < COUNT(texts); i++) {
        put(path, texts[i]);
        refused(from, out, "there is no weight_map");
    }
    put(path, "");
    refused(from, out, "neither GGUF nor valid JSON");
    put(path, "[1]");
    refused(from, out, "there is no weight_map");
    put_index(path, "", -1);

    /* a tensor in two files, only one of which the index can name */
    const int was = m.shard[5];
    m.shard[5] = was ? 0 : 1;
    save(in_home("model/%s", shard_name(m.shard[5])), m.shard[5], NULL);
    refused(from, out, "but the index says that '");
    m.shard[5] = was;
    for (int i = 0; i < 3; i++) save(in_home("model/%s", shard_name(i)), i, i ? NULL : "half");
    refused(from, out, "differ in the loci.pairing");
    for (int i = 0; i < 3; i++) save(in_home("model/%s", shard_name(i)), i, "interleaved");
    refused(from, out, "so it is already converted to interleaved");
    for (int i = 0; i < 3; i++) save(in_home("model/%s", shard_name(i)), i, NULL);

    /* invalid destinations */
    refused(from, from, "there is such a file already");
    refused(from, in_home("nowhere/out"), "cannot write");
    put(out, "a file");
    refused(from, out, "this is a file");
    unlink(out);
    if (mkdir(out, 0777)) exit(2);
    put(in_home("out/%s", shard_name(1)), "another one");
    refused(from, out, "there is such a file already");
    unlink(in_home("out/%s", shard_name(1)));
    put(in_home("out/model.safetensors.index.json"), "another one");
    refused(from, out, "there is such a file already");
    empty(out);
    unlink(path);
    refused(from, out, "this is a folder");
    put_index(path, "", -1);
    CHECK_THAT(!convert(from, "interleaved", out), "and when all is well: %s", said);
    empty(out);
    free(path);
    free(from);
    free(out);
}

/* A full disk, simulated by a limit on the size of a file: of the first, a later or any shard. */
static void full_disk(void)
{
    struct rlimit was, little;
    make(4);
    char *const from = strdup(in_home("model")), *const out = strdup(in_home("out"));
    if (getrlimit(RLIMIT_FSIZE, &was)) exit(2);
    signal(SIGXFSZ, SIG_IGN);
    int failed = 0;
    for (rlim_t size = 0; size <= 8192; size += 256) {
        little = was;
        little.rlim_cur = size;
        if (size % 512 && mkdir(out, 0777)) exit(2);
        if (setrlimit(RLIMIT_FSIZE, &little)) exit(2);
        const int code = convert(from, "interleaved", out);
        if (setrlimit(RLIMIT_FSIZE, &was)) exit(2);
        failed += code != EXIT_DONE;
        if (code)
            CHECK_THAT(files_in(out) == (size % 512 ? 0 : -1),
                       "%d bytes: a full disk leaves nothing", (int)size);
        else CHECK_THAT(files_in(out) == 5, "%d bytes are enough", (int)size);
        empty(out);
    }
    CHECK_THAT(failed > 2, "some disks were full");
    free(from);
    free(out);
}

/* More shards than the limit of open files. */
static void few_files(void)
{
    struct rlimit was, few;
    make(6);
    if (getrlimit(RLIMIT_NOFILE, &was)) exit(2);
    few = was;
    few.rlim_cur = 12;
    if (setrlimit(RLIMIT_NOFILE, &few)) exit(2);
    const int code = convert(in_home("model"), "interleaved", in_home("out"));
    if (setrlimit(RLIMIT_NOFILE, &was)) exit(2);
    CHECK_THAT(!code && files_in(in_home("out")) == 7, "the limit is raised: %s", said);
    empty(in_home("out"));
}

int main(void)
{
    scratch(home, "shards");
    if (!mkdtemp(home)) return 2;
    for (int round = 1; round <= 30; round++) random_shards(round);
    bad_index();
    full_disk();
    few_files();
    for (int i = 0; i < m.count; i++) free(m.data[i]);
    empty(in_home("model"));
    unlink(in_home("whole"));
    unlink(in_home("whole-out"));
    CHECK_THAT(rmdir(home) == 0, "the folder is empty");
    return harness_end();
}
