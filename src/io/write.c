/* SPDX-License-Identifier: MIT */
/* write.c -- writes safetensors files atomically.
 *
 * The new file grows under one fixed name, "<path>.loci-tmp", which is locked: what a killed program left there is
 * taken over and overwritten, so strays never pile up, and two writers of one file cannot mix. */
#define _DEFAULT_SOURCE

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "io.h"
#include "safetensors.h"

static loci_status system_error(loci_error *e, const char *what)
{
    return loci_io_fail(e, LOCI_BAD_ARG, "cannot %s: %s", what, strerror(errno));
}

/* The header's text, padded so that the data starts on 8 bytes; NULL: out of memory, or a name that is no UTF-8. */
static char *header(int count, const struct safetensor *t, int meta_count, const struct safetensors_meta *meta,
                    size_t *length)
{
    json_t *root = json_object(), *strings = json_object();
    bool ok = root && strings;
    for (int i = 0; i < meta_count && ok; i++)
        ok = !json_object_set_new(strings, meta[i].key, json_string(meta[i].value));
    ok = ok && (!meta_count || !json_object_set(root, "__metadata__", strings));
    json_int_t at = 0;
    for (int i = 0; i < count && ok; i++) {
        json_t *entry = json_object(), *shape = json_array(), *range = json_array();
        json_int_t bytes = (json_int_t)loci_safetensors_type_size(t[i].type);
        int bad = 0;
        for (int k = 0; k < t[i].rank; k++) {
            bad |= json_array_append_new(shape, json_integer(t[i].shape[k]));
            bytes *= t[i].shape[k];
        }
        bad |= json_array_append_new(range, json_integer(at)) | json_array_append_new(range, json_integer(at + bytes));
        /* Each is given away, whether or not there was memory for it. */
        bad |= json_object_set_new(entry, "dtype", json_string(loci_safetensors_type_name(t[i].type)));
        bad |= json_object_set_new(entry, "shape", shape) | json_object_set_new(entry, "data_offsets", range);
        bad |= json_object_set_new(root, t[i].name, entry);
        ok = !bad;
        at += bytes;
    }
    char *text = ok ? json_dumps(root, JSON_COMPACT) : NULL, *padded = NULL;
    if (text) {
        size_t n = strlen(text);
        *length = (n + 7) / 8 * 8;
        padded = malloc(*length + 1);
        if (padded) snprintf(padded, *length + 1, "%-*s", (int)*length, text);
    }
    free(text);
    json_decref(strings);
    json_decref(root);
    return padded;
}

static bool write_all(int fd, const void *from, size_t bytes)
{
    const char *p = from;
    while (bytes > 0) {
        ssize_t n = write(fd, p, bytes < (1 << 30) ? bytes : 1 << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n, bytes -= (size_t)n;
    }
    return true;
}

/* Opens and locks the temporary name; -1 and errno on failure.  Whoever held the lock before us may have renamed
 * the file away in the meantime: then the name stands for another file, and we try again. */
static int open_locked(const char *temp)
{
    for (;;) {
        int fd = open(temp, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
        if (fd < 0) return -1;
        struct stat ours, named;
        if (flock(fd, LOCK_EX | LOCK_NB) || fstat(fd, &ours)) {
            int why = errno;
            close(fd);
            errno = why;
            return -1;
        }
        if (!stat(temp, &named) && ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) return fd;
        close(fd);
    }
}

static void sync_folder(const char *path)
{
    char *folder = strdup(path);
    if (!folder) return;
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);                       /* a filesystem that cannot is no reason to fail: the data is safe already */
        close(fd);
    }
    free(folder);
}

static uint64_t data_bytes(int count, const struct safetensor *t)
{
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) {
        uint64_t bytes = loci_safetensors_type_size(t[i].type);
        for (int k = 0; k < t[i].rank; k++) bytes *= (uint64_t)t[i].shape[k];
        sum += bytes;
    }
    return sum;
}

static void forget(struct safetensors_writer *w)
{
    if (w->fd >= 0) close(w->fd);
    free(w->path);
    free(w->temp);
    *w = (struct safetensors_writer){ .fd = -1 };
}

loci_status loci_safetensors_begin(struct safetensors_writer *w, const char *path, int count, const struct safetensor *t,
                                   int meta_count, const struct safetensors_meta *meta, loci_error *e)
{
    struct stat st;
    *w = (struct safetensors_writer){ .fd = -1 };
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return loci_io_fail(e, LOCI_BAD_ARG, "cannot write: this is not a regular file");
    size_t length = 0;
    const size_t room = strlen(path) + sizeof ".loci-tmp";
    char *head = header(count, t, meta_count, meta, &length);
    w->path = strdup(path), w->temp = malloc(room), w->left = data_bytes(count, t);
    loci_status s = LOCI_OK;
    if (!w->path || !w->temp || !head) {
        s = loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    } else {
        snprintf(w->temp, room, "%s.loci-tmp", path);
        w->fd = open_locked(w->temp);
        const uint64_t n = length;
        if (w->fd < 0) {
            s = errno == EWOULDBLOCK ? loci_io_fail(e, LOCI_BAD_ARG, "another program is writing this file")
                                     : system_error(e, "write");
        } else if (ftruncate(w->fd, 0) || !write_all(w->fd, &n, 8) || !write_all(w->fd, head, length)) {
            s = system_error(e, "write");
            unlink(w->temp);
        }
    }
    free(head);
    if (s) forget(w);
    return s;
}

loci_status loci_safetensors_put(struct safetensors_writer *w, const void *data, uint64_t bytes, loci_error *e)
{
    assert(bytes <= w->left);
    w->left -= bytes;
    return write_all(w->fd, data, bytes) ? LOCI_OK : system_error(e, "write");
}

loci_status loci_safetensors_end(struct safetensors_writer *w, loci_status so_far, loci_error *e)
{
    assert(so_far || w->left == 0);
    if (!so_far && (fsync(w->fd) || rename(w->temp, w->path))) so_far = system_error(e, "write");
    if (so_far) unlink(w->temp);
    else sync_folder(w->path);
    forget(w);
    return so_far;
}

loci_status loci_safetensors_write(const char *path, int count, const struct safetensor *t, const void *const *data,
                                   int meta_count, const struct safetensors_meta *meta, loci_error *e)
{
    struct safetensors_writer w;
    loci_status s = loci_safetensors_begin(&w, path, count, t, meta_count, meta, e);
    if (s) return s;
    for (int i = 0; i < count && !s; i++) s = loci_safetensors_put(&w, data[i], data_bytes(1, &t[i]), e);
    return loci_safetensors_end(&w, s, e);
}
