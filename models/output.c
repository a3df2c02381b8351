/* SPDX-License-Identifier: MIT */
/* output.c -- see output.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/ending.h"
#include "platform/file.h"
#include "models/output.h"
#include "models/io.h"

static loci_status system_error(loci_error *e, const char *what)
{
    return loci_io_fail(e, LOCI_BAD_ARG, "cannot %s: %s", what, strerror(errno));
}

/* ---- Names ----------------------------------------------------------------------------------- */

/* A path of three parts; NULL: no memory. */
static char *join(const char *path, size_t folder, const char *name, const char *end)
{
    const size_t capacity = folder + strlen(name) + strlen(end) + 1;
    char *to = malloc(capacity);
    if (to) snprintf(to, capacity, "%.*s%s%s", (int)folder, path, name, end);
    return to;
}

/* Writing a file next to the target, and renaming it, requires a writable folder. */
static loci_status check_folder(const char *path, loci_error *e)
{
    char *folder = join(path, loci_path_folder(path), ".", "");
    if (!folder) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    const bool open = loci_folder_writable(folder);
    free(folder);
    return open ? LOCI_OK : system_error(e, "write into its folder");
}

/* *target: the file that `path` refers to.  *old: the existing file, with kind 0 if there is
 * none. */
static loci_status look(const char *path, char **target, struct file_info *old, loci_error *e)
{
    IO_CHECK(e, *path, "cannot write: the name is empty");
    IO_CHECK(e, strcmp(path, "-"),
             "cannot write to standard output: a file is written completely or not at all; use ./- "
             "for a file of that name");
    IO_CHECK(e, path[loci_path_folder(path)], "cannot write: this names a folder, not a file");
    if (!loci_path_info(path, old)) {
        if (errno != ENOENT) return system_error(e, "write");
        old->kind = 0;
    } else {
        IO_CHECK(e, old->kind != FILE_FOLDER, "cannot write: this is a folder, not a file");
        IO_CHECK(e, old->kind == FILE_PLAIN, "cannot write: this is not a regular file");
        if (!loci_path_writable(path)) return system_error(e, "write");
    }
    if (!(*target = loci_path_target(path)))
        return errno == ELOOP ? system_error(e, "write")
                              : loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    const loci_status s = check_folder(*target, e);
    if (s) free(*target);
    return s;
}

/* The same file under another name, through a link or dots, has the same number. */
loci_status loci_output_check(const char *path, int inputs, const char *const *input, loci_error *e)
{
    char *target;
    struct file_info old, in;
    const loci_status s = look(path, &target, &old, e);
    if (s) return s;
    free(target);
    for (int i = 0; i < inputs && old.kind; i++)
        IO_CHECK(e,
                 !loci_path_info(input[i], &in) || in.device != old.device
                     || in.number != old.number,
                 "this is an input file and would be overwritten; write the result to another "
                 "file");
    return LOCI_OK;
}

/* ---- Files being written --------------------------------------------------------------------- */

/* changed only while the program cannot end */
static struct new_file *volatile unfinished;

static void remove_unfinished(void)
{
    for (const struct new_file *o = unfinished; o; o = o->next) loci_path_remove(o->temp);
}
static void list(struct new_file *o)
{
    if (!unfinished) loci_ending_catch(remove_unfinished);
    o->next = unfinished;
    unfinished = o;
}
static void unlist(struct new_file *o)
{
    if (unfinished == o) unfinished = o->next;
    else
        for (struct new_file *p = unfinished; p; p = p->next)
            if (p->next == o) p->next = o->next;
    if (!unfinished) loci_ending_forget();
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Creates a file under an unused name; *temp and the descriptor, or -1 and errno. */
static int open_beside(const char *path, const struct file_info *old, char **temp)
{
    enum { TRIES = 100, LONGEST = 200 }; /* a longer name leaves no space for the suffix */
    const size_t folder = loci_path_folder(path);
    const char *name = strlen(path + folder) > LONGEST ? "loci" : path + folder;
    int fd = -1;
    for (int i = 0; i < TRIES && fd < 0; i++) {
        uint64_t random;
        char end[32];
        if (!loci_random(&random)) return -1;
        snprintf(end, sizeof end, ".%016" PRIx64 ".loci-tmp", random);
        if (!(*temp = join(path, folder, name, end))) {
            errno = ENOMEM;
            return -1;
        }
        fd = loci_file_create(*temp, old->kind != 0);
        if (fd >= 0) break;
        const int why = errno;
        free(*temp);
        errno = why;
        if (why != EEXIST && why != EINTR) return -1;
    }
    return fd;
}

/* The program cannot end from before the new file exists until it is listed, so that it is never
 * left behind. */
loci_status loci_output_begin(struct new_file *o, const char *path, loci_error *e)
{
    struct file_info old;
    struct ending ending;
    *o = (struct new_file){ .fd = -1 };
    loci_status s = look(path, &o->path, &old, e);
    if (s) return s;
    loci_ending_hold(&ending);
    o->fd = open_beside(o->path, &old, &o->temp);
    if (o->fd >= 0) list(o);
    else
        s = errno == ENOMEM ? loci_io_fail(e, LOCI_NO_MEMORY, "out of memory")
                            : system_error(e, "write into its folder");
    loci_ending_release(&ending);
    if (s) {
        free(o->path);
        return s;
    }
    return old.kind && !loci_file_inherit(o->fd, &old)
             ? loci_output_end(o, system_error(e, "give the new file the old one's mode"), e)
             : LOCI_OK;
}

loci_status loci_output_put(struct new_file *o, const void *data, size_t bytes, loci_error *e)
{
    for (const char *p = data; bytes > 0;) {
        const ptrdiff_t n = loci_file_write(o->fd, p, bytes < (1 << 30) ? bytes : 1 << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return system_error(e, "write");
        p += n;
        bytes -= (size_t)n;
    }
    return LOCI_OK;
}

/* Makes the new name, too, survive a crash of the machine. */
static void sync_folder(const char *path)
{
    char *folder = join(path, loci_path_folder(path), ".", "");
    if (folder) loci_folder_sync(folder);
    free(folder);
}

/* The data are on the disk before they get the name: a crash in between leaves the old file. */
loci_status loci_output_end(struct new_file *o, loci_status so_far, loci_error *e)
{
    struct ending ending;
    if (!so_far && !loci_file_sync(o->fd)) so_far = system_error(e, "write");
    loci_ending_hold(&ending);
    if (!so_far && !loci_path_rename(o->temp, o->path))
        so_far = system_error(e, "rename the new file");
    if (so_far) loci_path_remove(o->temp);
    unlist(o);
    loci_ending_release(&ending);
    if (!so_far) sync_folder(o->path);
    loci_file_close(o->fd);
    free(o->path);
    free(o->temp);
    *o = (struct new_file){ .fd = -1 };
    return so_far;
}
