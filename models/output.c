/* SPDX-License-Identifier: MIT */
/* output.c -- see output.h. */
#define _DEFAULT_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/output.h"
#include "models/io.h"

static loci_status system_error(loci_error *e, const char *what)
{
    return loci_io_fail(e, LOCI_BAD_ARG, "cannot %s: %s", what, strerror(errno));
}

/* ---- Names ----------------------------------------------------------------------------------- */

/* The length of a path's folder, including its slash. */
static int folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path) + 1 : 0;
}

/* A path of three parts; NULL: no memory. */
static char *join(const char *path, int folder, const char *name, const char *end)
{
    const size_t capacity = (size_t)folder + strlen(name) + strlen(end) + 1;
    char *to = malloc(capacity);
    if (to) snprintf(to, capacity, "%.*s%s%s", folder, path, name, end);
    return to;
}

/* The target of symbolic links, even if it does not exist; NULL and errno: no
 * memory, or too many links. */
static char *follow(const char *path)
{
    enum { MOST = 40 }; /* as the system itself */
    char to[4096], *at = join(path, 0, path, "");
    for (int links = 0; at; links++) {
        const ssize_t n = readlink(at, to, sizeof to - 1);
        if (n < 0) return at; /* not a link */
        to[n] = 0;
        char *next = links < MOST ? join(at, *to == '/' ? 0 : folder_length(at), to, "")
                                  : (errno = ELOOP, NULL);
        free(at);
        at = next;
    }
    return NULL;
}

/* Writing a file next to the target, and renaming it, requires a writable folder. */
static loci_status check_folder(const char *path, loci_error *e)
{
    char *folder = join(path, folder_length(path), ".", "");
    if (!folder) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    const bool open = !faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS);
    free(folder);
    return open ? LOCI_OK : system_error(e, "write into its folder");
}

/* *target: the file that `path` refers to.  *old: the status of the existing file,
 * with mode 0 if there is none. */
static loci_status look(const char *path, char **target, struct stat *old, loci_error *e)
{
    IO_CHECK(e, *path, "cannot write: the name is empty");
    IO_CHECK(e, strcmp(path, "-"),
             "cannot write to standard output: a file is written completely or not at all; use ./- "
             "for a file of that name");
    IO_CHECK(e, path[strlen(path) - 1] != '/', "cannot write: this names a folder, not a file");
    if (stat(path, old)) {
        if (errno != ENOENT) return system_error(e, "write");
        old->st_mode = 0;
    } else {
        IO_CHECK(e, !S_ISDIR(old->st_mode), "cannot write: this is a folder, not a file");
        IO_CHECK(e, S_ISREG(old->st_mode), "cannot write: this is not a regular file");
        if (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS)) return system_error(e, "write");
    }
    if (!(*target = follow(path)))
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
    struct stat old, in;
    const loci_status s = look(path, &target, &old, e);
    if (s) return s;
    free(target);
    for (int i = 0; i < inputs && old.st_mode; i++)
        IO_CHECK(e, stat(input[i], &in) || in.st_dev != old.st_dev || in.st_ino != old.st_ino,
                 "this is an input file and would be overwritten; write the result to another "
                 "file");
    return LOCI_OK;
}

/* ---- Signals --------------------------------------------------------------------------------- */

static const int ending[] = { SIGINT, SIGTERM, SIGHUP };
enum { ENDING = sizeof ending / sizeof *ending };
static bool caught[ENDING];
/* changed only while these signals are blocked */
static struct new_file *volatile unfinished;

/* Handlers may call unlink().  The signal is raised again for its default action. */
static void on_ending(int number)
{
    for (const struct new_file *o = unfinished; o; o = o->next) unlink(o->temp);
    signal(number, SIG_DFL);
    raise(number); /* arrives when this function returns */
}

/* The handler must wait while the list changes, and between the creation
 * of a file and its listing. */
static sigset_t block_signals(void)
{
    sigset_t set, before;
    sigemptyset(&set);
    for (int i = 0; i < ENDING; i++) sigaddset(&set, ending[i]);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    return before;
}

/* Ignored signals, as under nohup, stay ignored, and those that the host handles are not
 * changed. */
static void catch_signals(void)
{
    struct sigaction act = { .sa_handler = on_ending }, was;
    sigemptyset(&act.sa_mask);
    for (int i = 0; i < ENDING; i++) sigaddset(&act.sa_mask, ending[i]);
    for (int i = 0; i < ENDING; i++) {
        sigaction(ending[i], NULL, &was);
        caught[i] = !(was.sa_flags & SA_SIGINFO) && was.sa_handler == SIG_DFL;
        if (caught[i]) sigaction(ending[i], &act, NULL);
    }
}

/* The first file of the list installs the signal handlers, and the last one removes them. */
static void list(struct new_file *o)
{
    if (!unfinished) catch_signals();
    o->next = unfinished;
    unfinished = o;
}

static void unlist(struct new_file *o)
{
    if (unfinished == o) unfinished = o->next;
    else
        for (struct new_file *p = unfinished; p; p = p->next)
            if (p->next == o) p->next = o->next;
    for (int i = 0; i < ENDING && !unfinished; i++)
        if (caught[i]) signal(ending[i], SIG_DFL);
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* The new file gets the mode of the old one; the permissions of a group that
 * it cannot have are removed. */
static bool inherit(int fd, const struct stat *old)
{
    mode_t mode = old->st_mode & 0777;
    if (fchown(fd, old->st_uid, old->st_gid) && fchown(fd, (uid_t)-1, old->st_gid))
        mode &= ~(mode_t)070;
    return !fchmod(fd, mode);
}

/* Creates a file under an unused name; *temp and the descriptor, or -1 and errno. */
static int open_beside(const char *path, const struct stat *old, char **temp)
{
    enum { TRIES = 100, LONGEST = 200 }; /* a longer name leaves no space for the suffix */
    const int folder = folder_length(path);
    const char *name = strlen(path + folder) > LONGEST ? "loci" : path + folder;
    int fd = -1;
    for (int i = 0; i < TRIES && fd < 0; i++) {
        unsigned long long random;
        char end[32];
        if (getentropy(&random, sizeof random)) return -1;
        snprintf(end, sizeof end, ".%016llx.loci-tmp", random);
        if (!(*temp = join(path, folder, name, end))) {
            errno = ENOMEM;
            return -1;
        }
        fd = open(*temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                  old->st_mode ? 0600 : 0666);
        if (fd >= 0) break;
        const int why = errno;
        free(*temp);
        errno = why;
        if (why != EEXIST && why != EINTR) return -1;
    }
    return fd;
}

/* Signals are blocked from before the new file exists until it is listed, so
 * that none leaves it behind. */
loci_status loci_output_begin(struct new_file *o, const char *path, loci_error *e)
{
    struct stat old;
    *o = (struct new_file){ .fd = -1 };
    loci_status s = look(path, &o->path, &old, e);
    if (s) return s;
    const sigset_t before = block_signals();
    o->fd = open_beside(o->path, &old, &o->temp);
    if (o->fd >= 0) list(o);
    else
        s = errno == ENOMEM ? loci_io_fail(e, LOCI_NO_MEMORY, "out of memory")
                            : system_error(e, "write into its folder");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (s) {
        free(o->path);
        return s;
    }
    return old.st_mode && !inherit(o->fd, &old)
             ? loci_output_end(o, system_error(e, "give the new file the old one's mode"), e)
             : LOCI_OK;
}

loci_status loci_output_put(struct new_file *o, const void *data, size_t bytes, loci_error *e)
{
    for (const char *p = data; bytes > 0;) {
        const ssize_t n = write(o->fd, p, bytes < (1 << 30) ? bytes : 1 << 30);
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
    char *folder = join(path, folder_length(path), ".", "");
    const int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        /* if a filesystem cannot, the data is safe all the same */
        fsync(fd);
        close(fd);
    }
    free(folder);
}

/* The data are on the disk before they get the name: a crash in between leaves the old file. */
loci_status loci_output_end(struct new_file *o, loci_status so_far, loci_error *e)
{
    if (!so_far && fsync(o->fd)) so_far = system_error(e, "write");
    const sigset_t before = block_signals();
    if (!so_far && rename(o->temp, o->path)) so_far = system_error(e, "rename the new file");
    if (so_far) unlink(o->temp);
    unlist(o);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!so_far) sync_folder(o->path);
    close(o->fd);
    free(o->path);
    free(o->temp);
    *o = (struct new_file){ .fd = -1 };
    return so_far;
}
