/* SPDX-License-Identifier: MIT */
/* convert_shards.c -- the files that `loci convert` reads and writes: a single file of weights, or
 * the shards that an index names.
 *
 * An index is {"weight_map": {TENSOR: FILE, ..}}, in the folder of its files.  It must name every
 * tensor of every shard, and no others.  A tensor in two files, or in none, is an error. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "platform/file.h"
#include "platform/system.h"
#include "cli/convert.h"
#include "models/json.h"

static const char index_name[] = "model.safetensors.index.json", index_end[] = ".index.json",
                  shard_end[] = ".safetensors";
enum { MOST_BYTES = 64 << 20, MOST_SHARDS = 4096 };

static bool ends(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n > m && !strcmp(text + n - m, end);
}
static char *join(const char *folder, int length, const char *name)
{
    const size_t capacity = (size_t)length + strlen(name) + 2;
    char *to = alloc(capacity, 1);
    const bool slash = length && loci_path_folder(folder) != (size_t)length;
    snprintf(to, capacity, "%.*s%s%s", length, folder, slash ? "/" : "", name);
    return to;
}
static bool is_folder(const char *path)
{
    struct file_info i;
    return loci_path_info(path, &i) && i.kind == FILE_FOLDER;
}

/* The file reader rejects a folder without an index, as it does any folder. */
char *shards_index(const char *path)
{
    if (!is_folder(path)) return ends(path, index_end) ? join(path, 0, path) : NULL;
    char *index = join(path, (int)strlen(path), index_name);
    struct file_info i;
    if (loci_path_info(index, &i)) return index;
    free(index);
    return NULL;
}

/* ---- The index ------------------------------------------------------------------------------- */

static bool read_text(struct shards *s)
{
    struct source from;
    loci_error e;
    if (loci_io_open(&from, s->index, &e)) return refuse("%s: %s", s->index, e.text);
    bool good = from.size <= MOST_BYTES
             || refuse("%s: an index of more than %d bytes", s->index, MOST_BYTES);
    if (good) {
        s->bytes = (size_t)from.size;
        s->text = alloc(s->bytes + 1, 1);
        good = !loci_io_read(&from, s->text, s->bytes, 0, &e) || refuse("%s: %s", s->index, e.text);
    }
    loci_io_close(&from);
    return good;
}

/* Is it the name of a file in the index's folder itself? */
static bool is_shard_name(const char *name)
{
    return strlen(name) <= 255 && *name != '.' && !strpbrk(name, "/\\") && ends(name, shard_end);
}

/* Lists each file once, in the order of the index. */
static bool list_shards(struct shards *s, const json_t *map)
{
    const int folder = (int)loci_path_folder(s->index);
    if (!is_a(map, JSON_OBJECT) || !json_object_size(map))
        return refuse("%s: there is no weight_map that says which file has which tensor", s->index);
    s->list = alloc(json_object_size(map), sizeof *s->list);
    json_t *known = json_object();
    bool good = known || refuse("out of memory");
    for (struct member m = { .of = map }; good && next_member(&m);) {
        const char *name = json_string_value(m.value);
        if (!name || !is_shard_name(name))
            good = refuse("%s: tensor '%.64s' is in '%.64s', which is no NAME%s in its folder",
                          s->index, m.key, name ? name : "", shard_end);
        else if (json_object_get(known, name)) continue;
        else if (s->count == MOST_SHARDS)
            good = refuse("%s: more than %d files", s->index, MOST_SHARDS);
        else if (json_object_set_new(known, name, json_true())) good = refuse("out of memory");
        else {
            struct shard *f = &s->list[s->count++];
            f->name = join(name, 0, name);
            f->path = join(s->index, folder, name);
            f->file.fd = -1;
        }
    }
    json_decref(known);
    return good;
}

/* The index and the shard must agree in every tensor. */
static bool check_shard(const struct shards *s, const struct shard *f, const json_t *map)
{
    for (int i = 0; i < f->file.count; i++) {
        const char *name = f->file.tensor[i].name,
                   *where = json_string_value(json_object_get(map, name));
        if (!where)
            return refuse("%s: tensor '%.64s' is not in the index %s", f->path, name, s->index);
        if (strcmp(where, f->name))
            return refuse("%s: it has tensor '%.64s', but the index says that '%.64s' has it",
                          f->path, name, where);
    }
    return true;
}
static bool has(const struct shard *f, const char *name)
{
    for (int i = 0; i < f->file.count; i++)
        if (!strcmp(f->file.tensor[i].name, name)) return true;
    return false;
}
/* Called if the shards have fewer tensors than the index.  Reports a missing one. */
static bool find_missing(const struct shards *s, const json_t *map)
{
    for (struct member m = { .of = map }; next_member(&m);)
        for (int i = 0; i < s->count; i++)
            if (!strcmp(s->list[i].name, json_string_value(m.value)) && !has(&s->list[i], m.key))
                return refuse("%s: the index says that it has tensor '%.64s', and it has not",
                              s->list[i].path, m.key);
    return refuse("%s: its tensors are not those of its files", s->index);
}

/* ---- All tensors ----------------------------------------------------------------------------- */

/* Each shard needs two open files at the same time. */
static void allow_files(int shards) { loci_allow_files(2 * shards + 64); }

static bool open_all(struct shards *s, const json_t *map)
{
    loci_error e;
    int n = 0;
    allow_files(s->count);
    for (int i = 0; i < s->count; i++) {
        struct shard *f = &s->list[i];
        if (loci_safetensors_open(&f->file, f->path, &e)) return refuse("%s: %s", f->path, e.text);
        f->first = n;
        if (map && !check_shard(s, f, map)) return false;
        if ((n += f->file.count) > ST_MAX_TENSORS)
            return refuse("%s: more than %d tensors", s->index, ST_MAX_TENSORS);
    }
    if (map && (size_t)n != json_object_size(map)) return find_missing(s, map);
    s->all = (struct safetensors){
        .fd = -1, .count = n, .meta = s->list[0].file.meta, .meta_count = s->list[0].file.meta_count
    };
    s->all.tensor = alloc((size_t)n + 1, sizeof *s->all.tensor);
    for (int i = 0; i < s->count; i++) {
        const struct shard *f = &s->list[i];
        if (f->file.count)
            memcpy(s->all.tensor + f->first, f->file.tensor,
                   (size_t)f->file.count * sizeof *f->file.tensor);
    }
    return true;
}

bool shards_open(struct shards *s, const char *path)
{
    json_t *root = NULL;
    loci_error e;
    if (!s->index) {
        s->list = alloc(1, sizeof *s->list);
        *s->list = (struct shard){ .path = join(path, 0, path), .file.fd = -1 };
        s->count = 1;
        return open_all(s, NULL);
    }
    if (!read_text(s)) return false;
    if (loci_json_parse(s->text, s->bytes, &root, &e)) {
        /* the file might have been GGUF */
        const char *why = strstr(e.text, "sound JSON");
        return refuse("%s: %s%s", s->index, why ? "this is not " : "", why ? why : e.text);
    }
    const json_t *map = json_object_get(root, "weight_map");
    const bool good = list_shards(s, map) && open_all(s, map);
    json_decref(root);
    return good;
}

void shards_close(struct shards *s)
{
    for (int i = 0; i < s->count; i++) {
        loci_safetensors_close(&s->list[i].file);
        free(s->list[i].name);
        free(s->list[i].path);
    }
    free(s->all.tensor);
    free(s->list);
    free(s->text);
    free(s->index);
    *s = (struct shards){ .count = 0 };
}

/* ---- The new files --------------------------------------------------------------------------- */

static const char *file_name(const char *path) { return path + loci_path_folder(path); }

/* No file is replaced, so a failure can remove all new files. */
bool shards_check_output(const struct shards *s, const char *folder)
{
    struct file_info i;
    loci_error e;
    if (!*folder) return refuse("convert: the name of the folder is empty");
    if (!loci_path_info(folder, &i)) {
        /* its parent folder must exist and be writable */
        char *path = join(folder, (int)strlen(folder), "");
        for (size_t n = strlen(path); n > 1 && loci_path_folder(path) == n; n--) path[n - 1] = 0;
        const bool good = !loci_output_check(path, 0, NULL, &e) || refuse("%s: %s", folder, e.text);
        free(path);
        return good;
    }
    if (i.kind != FILE_FOLDER)
        return refuse("%s: this is a file; the result of an index is a folder of files", folder);
    bool good = true;
    for (int n = -1; n < s->count && good; n++) {
        char *path =
            join(folder, (int)strlen(folder), n < 0 ? file_name(s->index) : s->list[n].name);
        good = loci_link_info(path, &i)
                 ? refuse("%s: there is such a file already; the result must go "
                          "to a folder without it",
                          path)
                 : !loci_output_check(path, 0, NULL, &e) || refuse("%s: %s", path, e.text);
        free(path);
    }
    return good;
}

/* All files are written next to their final names until complete.  The index is renamed last, so a
 * folder with an index is complete. */
bool shards_write(const struct shards *s, const char *folder, write_shard *put, const void *user)
{
    const int length = (int)strlen(folder);
    loci_error e = { .status = LOCI_OK };
    struct safetensors_writer *w = alloc((size_t)s->count, sizeof *w);
    char **path = alloc((size_t)s->count + 1, sizeof *path), *at = NULL;
    struct new_file index;
    loci_status status = LOCI_OK;
    const bool made = loci_folder_make(folder);
    if (!made && errno != EEXIST) {
        free(w);
        free(path);
        return refuse("%s: cannot make this folder: %s", folder, strerror(errno));
    }
    for (int i = 0; i <= s->count; i++)
        path[i] = join(folder, length, i < s->count ? s->list[i].name : file_name(s->index));
    int begun = 0, ended = 0;
    bool listed = false;
    for (; begun < s->count && !status; begun++) {
        at = path[begun];
        status = put(user, &s->list[begun], &w[begun], at, &e);
        if (status) break; /* it has ended its file */
    }
    if (!status) {
        at = path[s->count];
        status = loci_output_begin(&index, at, &e);
        listed = !status;
        if (!status) status = loci_output_put(&index, s->text, s->bytes, &e);
    }
    loci_error ignored; /* report the first failure only */
    for (int i = 0; i < begun; i++) {
        const bool failed = status;
        if (!failed) at = path[i];
        status = loci_safetensors_end(&w[i], status, failed ? &ignored : &e);
        if (!status) ended = i + 1;
    }
    if (listed) {
        const bool failed = status;
        if (!failed) at = path[s->count];
        status = loci_output_end(&index, status, failed ? &ignored : &e);
    }
    for (int i = 0; i < ended && status; i++) loci_path_remove(path[i]);
    if (status && made) loci_folder_remove(folder);
    if (status) fail("%s: %s", at, e.text);
    for (int i = 0; i <= s->count; i++) free(path[i]);
    free(w);
    free(path);
    return !status;
}
