/* SPDX-License-Identifier: MIT */
/* file.c -- see platform/file.h. */
#define _DEFAULT_SOURCE
#include "platform/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#if defined __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>

/* ---- What a path is -------------------------------------------------------------------------- */

static bool fill(const struct stat *st, struct file_info *to)
{
    const mode_t mode = st->st_mode;
    *to = (struct file_info){
        .kind = S_ISREG(mode) ? FILE_PLAIN
              : S_ISDIR(mode) ? FILE_FOLDER
                              : FILE_OTHER,
        .size = (uint64_t)st->st_size,
        .changed = (double)st->st_mtime,
        .device = (uint64_t)st->st_dev,
        .number = (uint64_t)st->st_ino,
        .mode = (unsigned)mode & 0777,
        .owner = (unsigned)st->st_uid,
        .group = (unsigned)st->st_gid,
    };
    return true;
}
bool loci_path_info(const char *path, struct file_info *to)
{
    struct stat st;
    return !stat(path, &st) && fill(&st, to);
}
bool loci_link_info(const char *path, struct file_info *to)
{
    struct stat st;
    return !lstat(path, &st) && fill(&st, to);
}
bool loci_file_info(int file, struct file_info *to)
{
    struct stat st;
    return !fstat(file, &st) && fill(&st, to);
}

/* ---- Open files ------------------------------------------------------------------------------ */

int loci_file_open(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}
int loci_file_open_here(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
}
int loci_file_create(const char *path, bool secret)
{
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, secret ? 0600 : 0666);
}
void loci_file_close(int file) { close(file); }
ptrdiff_t loci_file_read(int file, void *to, size_t bytes, uint64_t at)
{
    return pread(file, to, bytes, (off_t)at);
}
ptrdiff_t loci_file_write(int file, const void *data, size_t bytes)
{
    return write(file, data, bytes);
}
ptrdiff_t loci_file_write_at(int file, const void *data, size_t bytes, uint64_t at)
{
    return pwrite(file, data, bytes, (off_t)at);
}
bool loci_file_sync(int file) { return !fsync(file); }

/* The permissions of a group that it cannot have are removed. */
bool loci_file_inherit(int file, const struct file_info *from)
{
    mode_t mode = (mode_t)from->mode;
    if (fchown(file, from->owner, from->group) && fchown(file, (uid_t)-1, from->group))
        mode &= ~(mode_t)070;
    return !fchmod(file, mode);
}

/* ---- Paths ----------------------------------------------------------------------------------- */

size_t loci_path_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}
bool loci_path_absolute(const char *path) { return *path == '/'; }

static char *join(const char *path, size_t folder, const char *name)
{
    const size_t capacity = folder + strlen(name) + 1;
    char *to = malloc(capacity);
    if (to) snprintf(to, capacity, "%.*s%s", (int)folder, path, name);
    return to;
}
char *loci_path_target(const char *path)
{
    enum { MOST = 40 }; /* as the system itself */
    char to[4096], *at = join(path, 0, path);
    for (int links = 0; at; links++) {
        const ssize_t n = readlink(at, to, sizeof to - 1);
        if (n < 0) return at; /* not a link */
        to[n] = 0;
        char *next = links < MOST ? join(at, loci_path_absolute(to) ? 0 : loci_path_folder(at), to)
                                  : (errno = ELOOP, NULL);
        free(at);
        at = next;
    }
    return NULL;
}
bool loci_path_writable(const char *path) { return !faccessat(AT_FDCWD, path, W_OK, AT_EACCESS); }
bool loci_folder_writable(const char *path)
{
    return !faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS);
}
bool loci_path_rename(const char *from, const char *to) { return !rename(from, to); }
bool loci_path_remove(const char *path) { return !unlink(path); }

/* ---- Folders --------------------------------------------------------------------------------- */

bool loci_folder_make(const char *path) { return !mkdir(path, 0777); }
bool loci_folder_remove(const char *path) { return !rmdir(path); }
void loci_folder_sync(const char *path)
{
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    fsync(folder); /* if a filesystem cannot, the data is safe all the same */
    close(folder);
}
struct folder *loci_folder_open(const char *path) { return (struct folder *)opendir(path); }
const char *loci_folder_next(struct folder *f)
{
    const struct dirent *next = readdir((DIR *)f);
    return next ? next->d_name : NULL;
}
void loci_folder_close(struct folder *f) { closedir((DIR *)f); }

#if defined __GLIBC__ && __GLIBC__ == 2 && __GLIBC_MINOR__ < 25
/* wheels for old systems: their C library lacks getentropy() */
bool loci_random(uint64_t *to)
{
    return syscall(SYS_getrandom, to, sizeof *to, 0) == (long)sizeof *to;
}
#else
bool loci_random(uint64_t *to) { return !getentropy(to, sizeof *to); }
#endif
