/* SPDX-License-Identifier: MIT */
/* memory_files.c -- reading and writing files out of memory: every allocation fails once, including
 * jansson's, and so does every call that opens or reads.  Nothing leaks, no partial file remains,
 * and the status reports it. */
#define _DEFAULT_SOURCE
#include "inject.h"

#include <jansson.h>
#include <string.h>

#include "harness.h"
#include "models/safetensors.h"
#include "loci/io.h"
#include "scratch.h"

static char folder[SCRATCH], file[SCRATCH + 8];

/* Each returns a status, and sets *whole if everything is right then. */
static loci_status write_file(bool *whole, loci_error *e)
{
    static const float numbers[] = { 1, 2, 3, 4, 5, 6 };
    const struct safetensor tensor[] = {
        { .name = "a", .type = ST_F32, .rank = 2, .shape = { 2, 3 } },
        { .name = "b", .type = ST_F32, .rank = 0 }
    };
    const struct safetensors_meta meta = { "key", "value" };
    const void *const data[] = { numbers, numbers };
    struct stat st;
    unlink(file);
    const loci_status status = loci_safetensors_write(file, 2, tensor, data, 1, &meta, e);
    *whole = !stat(file, &st) == !status;
    return status;
}
static loci_status read_file(bool *whole, loci_error *e)
{
    struct safetensors f;
    const loci_status status = loci_safetensors_open(&f, file, e);
    *whole = status || (f.count == 2 && f.meta_count == 1);
    if (!status) loci_safetensors_close(&f);
    return status;
}
static const char *path;
static loci_status read_model(bool *whole, loci_error *e)
{
    loci_model *m = (loci_model *)e;
    loci_status status = loci_model_open(&m, path, e);
    *whole = !status == (m != NULL) && (loci_model_layers(m) > 0) == !status
          && loci_model_type(m) != NULL;
    for (int l = 0; l < loci_model_layers(m) && l < 3 && !status; l++) {
        loci_rope r;
        status = loci_model_rope(m, l, 0, &r, e);
        if (!status) loci_rope_free(&r);
    }
    loci_model_close(m);
    return status;
}
static loci_status parse_model(bool *whole, loci_error *e)
{
    static const char text[] = "{\"model_type\":\"llama\",\"hidden_size\":64,"
                               "\"num_attention_heads\":4,\"num_hidden_layers\":4}";
    loci_model *m = (loci_model *)e;
    const loci_status status = loci_model_parse(&m, text, sizeof text - 1, e);
    *whole = !status == (m != NULL);
    loci_model_close(m);
    return status;
}

static void fail_kind(int kind, int error, loci_status says, const char *name,
                      loci_status (*job)(bool *, loci_error *), int fewest)
{
    bool whole, fired = true;
    int n = 0;
    for (; fired; n++) {
        loci_error e = { .text = "" };
        const long live = inject->live;
        inject_arm(kind, INJECT_ONCE, error, n);
        const loci_status status = job(&whole, &e);
        fired = inject->fired;
        inject_off();
        /* Without memory for its name the folder is not synced, which is not an error. */
        const bool right = !fired  ? status == LOCI_OK
                         : !status ? job == write_file
                                   : status == says && e.text[0];
        CHECK_THAT(right && whole && inject->live == live,
                   "%s, failing at %d: status %d (%s), %ld blocks left", name, n, status, e.text,
                   inject->live - live);
    }
    CHECK_THAT(n > fewest, "%s: only %d calls failed", name, n - 1);
}
static void fail_each(const char *name, loci_status (*job)(bool *, loci_error *), int fewest)
{
    fail_kind(INJECT_MEMORY, ENOMEM, LOCI_NO_MEMORY, name, job, fewest);
}
static void fail_reads(const char *name, loci_status (*job)(bool *, loci_error *), int fewest)
{
    fail_kind(INJECT_READ | INJECT_OPEN, EIO, LOCI_BAD_ARG, name, job, fewest);
}

/* A file that becomes a FIFO between the two checks must not block. */
static void make_fifo(void)
{
    if (unlink(file) || mkfifo(file, 0600)) exit(2);
}
static void change_kind(void)
{
    struct safetensors f;
    loci_error e;
    inject->hook = make_fifo;
    inject_arm(INJECT_OPEN, INJECT_HOOK, 0, 0);
    CHECK_SAYS(loci_safetensors_open(&f, file, &e), LOCI_BAD_ARG, &e, "not a regular file");
    inject_off();
}

int main(void)
{
    static const char *const models[] = {
        "tests/cases/models/gemma-3-12b.json", "tests/cases/models/deepseek-v3.json",
        "tests/cases/models/bloom.json",       "tests/cases/models/falcon-rw.json",
        "tests/cases/models/ministral-3.json", "tests/cases/rope/llama-3.1.gguf",
    };
    scratch(folder, "memory");
    if (!mkdtemp(folder)) return 2;
    snprintf(file, sizeof file, "%s/file", folder);
    inject_open();
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
    fail_each("writing", write_file, 4);
    fail_each("reading", read_file, 4);
    fail_reads("reading", read_file, 3);
    change_kind();
    fail_each("a model's text", parse_model, 4);
    for (int i = 0; i < (int)(sizeof models / sizeof *models); i++) {
        path = models[i];
        fail_each(path, read_model, 8);
        fail_reads(path, read_model, 3);
    }
    unlink(file);
    rmdir(folder);
    return harness_end();
}
