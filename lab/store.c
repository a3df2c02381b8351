/* SPDX-License-Identifier: MIT */
/* store.c -- see store.h. */
#include "lab/store.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "platform/file.h"
#include "platform/system.h"
#include "platform/thread.h"
#include "util/error.h"
#include "models/json.h"
#include "models/output.h"
#include "models/safetensors.h"
#include "lab/clock.h"
#include "lab/sha256.h"

static struct mutex writing = MUTEX_INIT;
void lab_write_begin(void) { mutex_lock(&writing); }
void lab_write_end(void) { mutex_unlock(&writing); }

/* ---- Paths ----------------------------------------------------------------------------------- */

static loci_status join(char to[LAB_PATH], const char *folder, const char *name, loci_error *e)
{
    const int n = snprintf(to, LAB_PATH, "%s/%s", folder, name);
    CHECK(e, n < LAB_PATH, LOCI_BAD_ARG, "a path with %d bytes is too long", n);
    return LOCI_OK;
}
static loci_status make_folder(const char *path, loci_error *e)
{
    struct file_info i;
    if (loci_folder_make(path)) return LOCI_OK;
    const int why = errno;
    if (why == EEXIST && loci_path_info(path, &i) && i.kind == FILE_FOLDER) return LOCI_OK;
    return loci_fail(e, LOCI_UNSUPPORTED, "%s: cannot make this folder: %s", path, strerror(why));
}
static loci_status write_text(const char *path, const struct text *t, loci_error *e)
{
    struct new_file f;
    lab_write_begin();
    loci_status status = loci_output_begin(&f, path, e);
    if (!status) status = loci_output_end(&f, loci_output_put(&f, t->s, t->n, e), e);
    lab_write_end();
    return status;
}

/* ---- lab.json -------------------------------------------------------------------------------- */

const char *lab_compiler(void)
{
#if defined __clang__
    return "clang " __clang_version__;
#elif defined __GNUC__
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}

/* An earlier lab.json, or NULL.  A damaged or foreign one is not overwritten. */
static loci_status read_old(const char *dir, const char *path, json_t **old, loci_error *e)
{
    struct file_info i;
    loci_error why = { .text = "it is not of this lab" };
    if (!loci_link_info(path, &i) && errno == ENOENT) return LOCI_OK;
    if (!lab_json_read(old, dir, "lab.json", &why)) {
        if (json_integer_value(json_object_get(*old, "format")) == LAB_FORMAT) return LOCI_OK;
        json_decref(*old);
    }
    return loci_fail(e, LOCI_UNSUPPORTED, "%.200s: %.200s; remove it, or choose another folder",
                     path, why.text);
}

/* A list of an earlier lab.json, or an empty one. */
static json_t *list_of(const json_t *old, const char *key)
{
    json_t *list = json_object_get(old, key);
    return json_is_array(list) ? json_incref(list) : json_array();
}
static bool has_command(const json_t *list, const char *command)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one && !strcmp(one, command)) return true;
    }
    return false;
}

/* Appends new runs to the existing list. */
static void add_runs(json_t *list, const struct lab_runs *runs)
{
    json_t *known = json_object();
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *id = json_string_value(json_object_get(json_array_get(list, i), "id"));
        if (id) json_object_set_new(known, id, json_true());
    }
    for (int i = 0; i < runs->count; i++) {
        const struct lab_config *c = &runs->list[i];
        if (c->waits) continue; /* it has no identity yet */
        char id[33];
        lab_config_id(c, id);
        if (json_object_get(known, id)) continue;
        json_object_set_new(known, id, json_true());
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:i, s:i}", "id", id, "arm", c->arm,
                                              "task", c->task, "seed", c->seed, "steps", c->steps));
    }
    json_decref(known);
}

loci_status lab_store_open(const char *dir, const char *command, const char *preset,
                           const struct lab_runs *runs, loci_error *e)
{
    char path[LAB_PATH];
    TRY(make_folder(dir, e));
    TRY(join(path, dir, "runs", e));
    TRY(make_folder(path, e));
    TRY(join(path, dir, "lab.json", e));
    json_t *old = NULL;
    TRY(read_old(dir, path, &old, e));
    json_t *commands = list_of(old, "commands"), *list = list_of(old, "runs");
    json_decref(old);
    if (!has_command(commands, command)) json_array_append_new(commands, json_string(command));
    add_runs(list, runs);
    json_t *root =
        json_pack("{s:i, s:s, s:s, s:s, s:s, s:o, s:o}", "format", LAB_FORMAT, "version",
                  loci_version_text(), "compiler", lab_compiler(), "preset", preset ? preset : "",
                  "command", command, "commands", commands, "runs", list);
    char *dump = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    CHECK(e, dump, LOCI_NO_MEMORY, "%s: out of memory", path);
    struct text t = { .s = NULL };
    text_add(&t, "%s\n", dump);
    free(dump);
    const loci_status status = write_text(path, &t, e);
    text_free(&t);
    return status;
}

/* ---- Claims ---------------------------------------------------------------------------------- */

bool lab_run_done(const char *dir, const char *id)
{
    char path[LAB_PATH];
    struct file_info i;
    snprintf(path, sizeof path, "%s/runs/%s/result.json", dir, id);
    return loci_path_info(path, &i) && i.kind == FILE_PLAIN;
}

/* Is the run done?  A result that cannot be read is worthless, and the run is repeated.  But
 * anything except a regular file in its place could not be replaced at the end, so it is an error
 * now. */
static loci_status look_done(const char *folder, bool tell, bool *done, loci_error *e)
{
    char path[LAB_PATH];
    struct file_info i;
    struct lab_result r;
    loci_error why = { .text = "" };
    *done = false;
    TRY(join(path, folder, "result.json", e));
    if (!loci_path_info(path, &i)) return LOCI_OK;
    CHECK(e, i.kind == FILE_PLAIN, LOCI_UNSUPPORTED, "%.300s: this is not a regular file", path);
    *done = !lab_result_read(&r, folder, &why);
    if (*done) lab_result_free(&r);
    else if (tell)
        fprintf(stderr, "loci: %s is left aside, and the run made again: %s\n", path, why.text);
    return LOCI_OK;
}

static void this_host(char *name, size_t capacity)
{
    loci_host_name(name, capacity);
    for (char *c = name; *c; c++)
        if (*c <= ' ' || *c > '~') *c = '?';
}

/* One line of fixed length, so that a reader never sees half of one. */
enum { CLAIM = 192 };
static void write_claim(const struct lab_claim *c, int step, int steps, double loss)
{
    char line[CLAIM + 1], host[64];
    this_host(host, sizeof host);
    memset(line, ' ', sizeof line);
    const int n =
        snprintf(line, CLAIM, "%s %ld %d %d %.6g", host, loci_process(), step, steps, loss);
    line[n < CLAIM ? n : CLAIM - 1] = ' ';
    line[CLAIM - 1] = '\n';
    /* it only informs others of the progress */
    if (loci_file_write_at(c->fd, line, CLAIM, 0) != CLAIM) return;
}

bool lab_claim_read(const char *folder, struct lab_told *told)
{
    char path[LAB_PATH], line[CLAIM + 1];
    struct file_info i;
    snprintf(path, sizeof path, "%s/claim", folder);
    const int fd = loci_file_open_here(path);
    if (fd < 0) return false;
    const ptrdiff_t n = loci_file_read(fd, line, CLAIM, 0);
    const bool whole = loci_file_info(fd, &i) && i.kind == FILE_PLAIN;
    loci_file_close(fd);
    if (!whole) return false;
    *told = (struct lab_told){ .host = "", .age = (double)time(NULL) - i.changed };
    line[n < 0 ? 0 : n] = 0;
    if (sscanf(line, "%63s %ld %d %d %lf", told->host, &told->pid, &told->step, &told->steps,
               &told->loss)
            != 5
        || told->pid < 1 || told->pid > INT_MAX || told->step < 0)
        told->pid = told->step = 0;
    return true;
}

/* Has the owning process gone? */
static bool is_stale(const char *folder)
{
    struct lab_told told;
    char host[64];
    if (!lab_claim_read(folder, &told)) return false;
    this_host(host, sizeof host);
    if (told.pid > 0 && !strcmp(told.host, host) && loci_process_gone(told.pid)) return true;
    return told.age > LAB_STALE;
}

/* Removes a stale claim.  Of several processes that see it, the one that creates the file `taking`
 * looks again.  So a claim that another process has just created is never removed. */
static void remove_stale(const char *folder)
{
    char claim[LAB_PATH], taking[LAB_PATH];
    struct file_info i;
    snprintf(claim, sizeof claim, "%.*s/claim", LAB_PATH - 64, folder);
    snprintf(taking, sizeof taking, "%.*s/taking", LAB_PATH - 64, folder);
    if (loci_path_info(taking, &i) && (double)time(NULL) - i.changed > LAB_STALE)
        loci_path_remove(taking);
    const int fd = loci_file_create(taking, false);
    if (fd < 0) return;
    loci_file_close(fd);
    if (is_stale(folder)) loci_path_remove(claim);
    loci_path_remove(taking);
}

/* Removes files that a killed process was writing.  The claim is ours, so no other process is
 * writing. */
static void sweep(const char *folder)
{
    static const char end[] = ".loci-tmp"; /* as models/output.c names them */
    char path[LAB_PATH];
    struct folder *d = loci_folder_open(folder);
    for (const char *name; d && (name = loci_folder_next(d));) {
        const size_t n = strlen(name);
        if (n > sizeof end && !strcmp(name + n - sizeof end + 1, end)
            && !join(path, folder, name, NULL))
            loci_path_remove(path);
    }
    if (d) loci_folder_close(d);
}

loci_status lab_claim_acquire(struct lab_claim *c, const char *dir, const struct lab_config *config,
                              enum lab_claimed *what, loci_error *e)
{
    char id[33], path[LAB_PATH];
    lab_config_id(config, id);
    struct file_info i;
    bool done;
    *what = LAB_DONE;
    const int n = snprintf(c->folder, sizeof c->folder, "%s/runs/%s", dir, id);
    CHECK(e, n < LAB_PATH - 64, LOCI_BAD_ARG, "a path with %d bytes is too long", n);
    TRY(look_done(c->folder, true, &done, e));
    if (done) { /* its end may have been cut off */
        lab_state_remove(c->folder);
        if (is_stale(c->folder)) remove_stale(c->folder);
        return LOCI_OK;
    }
    TRY(make_folder(c->folder, e));
    TRY(join(path, c->folder, "claim", e));
    CHECK(e, !loci_link_info(path, &i) || i.kind == FILE_PLAIN, LOCI_UNSUPPORTED,
          "%.300s: this is not a regular file; remove it", path);
    int why = 0;
    for (int attempt = 0; attempt < 2; attempt++) {
        c->fd = loci_file_create(path, false);
        why = errno;
        if (c->fd >= 0 || why != EEXIST || !is_stale(c->folder)) break;
        remove_stale(c->folder);
    }
    *what = LAB_OTHERS;
    if (c->fd < 0 && why == EEXIST) return LOCI_OK;
    CHECK(e, c->fd >= 0, LOCI_UNSUPPORTED, "%.300s: cannot make this file: %s", path,
          strerror(why));
    *what = LAB_MINE;
    c->told = 0;
    write_claim(c, 0, config->steps, NAN);
    loci_status status = look_done(c->folder, false, &done, e);
    if (status || done) { /* by the previous owner of the claim */
        lab_claim_drop(c);
        *what = LAB_DONE;
        return status;
    }
    sweep(c->folder);
    struct text t = { .s = NULL };
    lab_config_json(config, &t);
    status = join(path, c->folder, "config.json", e);
    if (!status) status = write_text(path, &t, e);
    text_free(&t);
    if (status) lab_claim_drop(c);
    return status;
}

void lab_claim_tell(struct lab_claim *c, int step, int steps, double loss)
{
    const double now = lab_seconds();
    if (now - c->told < 2) return;
    c->told = now;
    write_claim(c, step, steps, loss);
}

/* Removes the claim only if it is still ours: a process that considered us dead has created its
 * own. */
void lab_claim_drop(struct lab_claim *c)
{
    char path[LAB_PATH];
    struct file_info mine, there;
    snprintf(path, sizeof path, "%.*s/claim", LAB_PATH - 64, c->folder);
    if (loci_file_info(c->fd, &mine) && loci_path_info(path, &there) && mine.number == there.number
        && mine.device == there.device)
        loci_path_remove(path);
    loci_file_close(c->fd);
    c->fd = -1;
}

/* ---- Checkpoints ----------------------------------------------------------------------------- */

static const char *const list_names[] = {
    "weights", [LAB_MEANS] = "means", [LAB_SQUARES] = "squares"
};
static const enum lab_list lists[] = { LAB_WEIGHTS, LAB_MEANS, LAB_SQUARES };

/* A hash of a checkpoint's contents: a run must not continue from one that the disk has
 * corrupted. */
static void hash_state(struct lab_model *m, const char *id, const char *step, const char *log,
                       char sha256[65])
{
    struct sha256 s;
    sha256_begin(&s);
    sha256_add(&s, id, strlen(id) + 1);
    sha256_add(&s, step, strlen(step) + 1);
    sha256_add(&s, log, strlen(log) + 1);
    for (int i = 0; i < COUNT(lists); i++)
        sha256_add(&s, lab_model_list(m, lists[i]), (size_t)lab_model_numbers(m) * sizeof(float));
    sha256_end(&s, sha256);
}

loci_status lab_state_write(const char *folder, const struct lab_config *config,
                            struct lab_model *m, int step, const struct lab_result *log,
                            loci_error *e)
{
    char path[LAB_PATH], id[33], steps[16], sha256[65];
    struct safetensor tensor[COUNT(lists)];
    const void *data[COUNT(lists)];
    struct text t = { .s = NULL };
    TRY(join(path, folder, "state.safetensors", e));
    lab_config_id(config, id);
    snprintf(steps, sizeof steps, "%d", step);
    for (int i = 0; i < COUNT(lists); i++) {
        tensor[i] = (struct safetensor){ .name = list_names[lists[i]],
                                         .type = ST_F32,
                                         .rank = 1,
                                         .shape = { lab_model_numbers(m) } };
        data[i] = lab_model_list(m, lists[i]);
    }
    for (int i = 0; i < log->logs; i++)
        text_add(&t, "%d %.17g %.17g %.17g %.17g %.17g\n", log->log[i].step, log->log[i].loss,
                 log->log[i].rate, log->log[i].norm, log->log[i].trained, log->log[i].far);
    const char *lines = t.s ? t.s : "";
    hash_state(m, id, steps, lines, sha256);
    const struct safetensors_meta meta[] = {
        { "id", id }, { "step", steps }, { "log", lines }, { "sha256", sha256 }
    };
    lab_write_begin();
    const loci_status status =
        loci_safetensors_write(path, COUNT(lists), tensor, data, COUNT(meta), meta, e);
    lab_write_end();
    text_free(&t);
    return status;
}

static bool read_log(const char *text, int step, struct lab_result *log)
{
    int lines = 0;
    for (const char *p = text; *p; p++) lines += *p == '\n';
    log->log = draw_alloc((size_t)lines + 1, sizeof *log->log);
    for (log->logs = 0; log->logs < lines; log->logs++) {
        struct lab_logged *l = &log->log[log->logs];
        int used;
        if (sscanf(text, "%d %lf %lf %lf %lf %lf%n", &l->step, &l->loss, &l->rate, &l->norm,
                   &l->trained, &l->far, &used)
                != 6
            || l->step < 1 || l->step > step)
            return false;
        text += used + 1;
    }
    return true;
}

loci_status lab_state_read(const char *folder, const struct lab_config *config, struct lab_model *m,
                           int *step, struct lab_result *log, loci_error *e)
{
    char path[LAB_PATH], id[33], sha256[65];
    struct safetensors file;
    struct file_info there;
    *step = 0;
    TRY(join(path, folder, "state.safetensors", e));
    if (!loci_path_info(path, &there)) return LOCI_OK;
    lab_config_id(config, id);
    TRY(loci_safetensors_open(&file, path, e));
    const char *own = loci_safetensors_meta(&file, "id"),
               *at = loci_safetensors_meta(&file, "step"),
               *lines = loci_safetensors_meta(&file, "log"),
               *sum = loci_safetensors_meta(&file, "sha256");
    loci_status status = LOCI_OK;
    const int wanted = at ? atoi(at) : 0;
    if (!own || strcmp(own, id) != 0 || !lines || !sum || wanted < 1 || wanted > config->steps
        || file.count != COUNT(lists))
        status = loci_fail(e, LOCI_UNSUPPORTED, "it is no checkpoint of this run");
    for (int i = 0; i < COUNT(lists) && !status; i++) {
        const struct safetensor *t = NULL;
        for (int k = 0; k < file.count; k++)
            if (!strcmp(file.tensor[k].name, list_names[lists[i]])) t = &file.tensor[k];
        if (!t || t->type != ST_F32 || t->count != lab_model_numbers(m))
            status = loci_fail(e, LOCI_UNSUPPORTED, "it is no checkpoint of this run");
        else status = loci_safetensors_read(&file, t, lab_model_list(m, lists[i]), e);
    }
    if (!status) hash_state(m, id, at, lines, sha256);
    if (!status && strcmp(sum, sha256) != 0)
        status = loci_fail(e, LOCI_UNSUPPORTED, "it has changed since it was written");
    if (!status && !read_log(lines, wanted, log))
        status = loci_fail(e, LOCI_UNSUPPORTED, "its log is damaged");
    if (!status) *step = wanted;
    loci_safetensors_close(&file);
    return status;
}
void lab_state_remove(const char *folder)
{
    char path[LAB_PATH];
    snprintf(path, sizeof path, "%.*s/state.safetensors", LAB_PATH - 64, folder);
    loci_path_remove(path);
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* A tensor without the padding behind its columns. */
static float *packed(struct lab_model *m, const struct lab_tensor *t)
{
    const float *w = (const float *)lab_model_list(m, LAB_WEIGHTS) + t->at;
    float *to = draw_alloc((size_t)(t->rows * t->cols), sizeof *to);
    for (ptrdiff_t r = 0; r < t->rows; r++)
        memcpy(to + r * t->cols, w + r * t->stride, (size_t)t->cols * sizeof *to);
    return to;
}

/* Hashes names and numbers of all tensors in order. */
void lab_weights_hash(struct lab_model *m, char sha256[65])
{
    const struct lab_tensor *t;
    const int n = lab_model_tensors(m, &t);
    struct sha256 s;
    sha256_begin(&s);
    for (int i = 0; i < n; i++) {
        float *w = packed(m, &t[i]);
        sha256_add(&s, t[i].name, strlen(t[i].name) + 1);
        sha256_add(&s, w, (size_t)(t[i].rows * t[i].cols) * sizeof *w);
        free(w);
    }
    sha256_end(&s, sha256);
}

loci_status lab_weights_write(const char *folder, const struct lab_config *config,
                              struct lab_model *m, char sha256[65], loci_error *e)
{
    char path[LAB_PATH], id[33];
    const struct lab_tensor *t;
    const int n = lab_model_tensors(m, &t);
    struct safetensor *list = draw_alloc((size_t)n, sizeof *list);
    float **data = draw_alloc((size_t)n, sizeof *data);
    TRY(join(path, folder, "weights.safetensors", e));
    lab_config_id(config, id);
    lab_weights_hash(m, sha256);
    for (int i = 0; i < n; i++) {
        list[i] = (struct safetensor){ .name = t[i].name, .type = ST_F32, .rank = t[i].rank };
        memcpy(list[i].shape, t[i].shape, sizeof t[i].shape);
        data[i] = packed(m, &t[i]);
    }
    const struct safetensors_meta meta[] = { { "id", id }, { "sha256", sha256 } };
    lab_write_begin();
    const loci_status status =
        loci_safetensors_write(path, n, list, (const void *const *)data, COUNT(meta), meta, e);
    lab_write_end();
    for (int i = 0; i < n; i++) free(data[i]);
    free(list);
    free(data);
    return status;
}

loci_status lab_weights_read(const char *folder, struct lab_model *m, loci_error *e)
{
    char path[LAB_PATH];
    const struct lab_tensor *t;
    const int n = lab_model_tensors(m, &t);
    struct safetensors file;
    TRY(join(path, folder, "weights.safetensors", e));
    TRY(loci_safetensors_open(&file, path, e));
    loci_status status = LOCI_OK;
    for (int i = 0; i < n && !status; i++) {
        const struct safetensor *x = NULL;
        for (int k = 0; k < file.count; k++)
            if (!strcmp(file.tensor[k].name, t[i].name)) x = &file.tensor[k];
        if (!x || x->type != ST_F32 || x->count != t[i].rows * t[i].cols) {
            status =
                loci_fail(e, LOCI_UNSUPPORTED, "%s is not there as this run has it", t[i].name);
            break;
        }
        float *w = draw_alloc((size_t)x->count, sizeof *w), *to = lab_model_list(m, LAB_WEIGHTS);
        status = loci_safetensors_read(&file, x, w, e);
        for (ptrdiff_t r = 0; r < t[i].rows && !status; r++)
            memcpy(to + t[i].at + r * t[i].stride, w + r * t[i].cols,
                   (size_t)t[i].cols * sizeof *w);
        free(w);
    }
    char sha256[65];
    const char *sum = loci_safetensors_meta(&file, "sha256");
    if (!status) lab_weights_hash(m, sha256);
    if (!status && (!sum || strcmp(sum, sha256) != 0))
        status = loci_fail(e, LOCI_UNSUPPORTED, "they have changed since they were written");
    loci_safetensors_close(&file);
    return status;
}
