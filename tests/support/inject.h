/* SPDX-License-Identifier: MIT */
/* inject.h -- system calls that fail on demand.
 *
 *     inject_open();
 *     inject_arm(INJECT_MEMORY, INJECT_ONCE, ENOMEM, 3);     the fourth allocation from now on
 *     ...
 *     inject_off();                        inject->seen: calls of the kind; inject->fired: failures
 *
 * For one file of a test.  tests/CMakeLists.txt links the test so that calls of our sources, and
 * no others, come here (--wrap).  Children of the test share the counters.
 * Requires _DEFAULT_SOURCE. */
#ifndef LOCI_TESTS_SUPPORT_INJECT_H
#define LOCI_TESTS_SUPPORT_INJECT_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum inject_kind {
    INJECT_MEMORY = 1,
    INJECT_THREAD = 2,
    INJECT_WRITE = 4,
    INJECT_SYNC = 8,
    INJECT_NAME = 16,
    INJECT_OPEN = 32,
    INJECT_CLOSE = 64,
    INJECT_READ = 128,
    INJECT_MODE = 256,
    INJECT_STATUS = 512 /* never with a C library before 2.33, where fstat() is no function */
};
/* SHORT: reads and writes process half of the request, other calls succeed.  HOOK: a function of
 * the test runs first, then the call proceeds. */
enum inject_how { INJECT_ONCE, INJECT_ON, INJECT_SHORT, INJECT_HOOK };

struct inject {
    int kinds, error;
    enum inject_how how;
    void (*hook)(void);
    atomic_long left, seen, fired; /* calls until the one; so far; that failed */
    atomic_long live;              /* blocks not freed */
};
static struct inject *inject;

static inline void inject_open(void)
{
    inject = mmap(NULL, sizeof *inject, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (inject == MAP_FAILED) exit(2);
}
static inline void inject_arm(int kinds, enum inject_how how, int error, long at)
{
    inject->how = how;
    inject->error = error;
    atomic_store(&inject->left, at);
    atomic_store(&inject->seen, 0);
    atomic_store(&inject->fired, 0);
    inject->kinds = kinds;
}
static inline void inject_off(void) { inject->kinds = 0; }

/* Is this the call to fail? */
static inline bool inject_due(int kind)
{
    if (!inject || !(inject->kinds & kind)) return false;
    atomic_fetch_add(&inject->seen, 1);
    const long left = atomic_fetch_sub(&inject->left, 1);
    if (left > 0 || (left < 0 && inject->how != INJECT_ON)) return false;
    atomic_fetch_add(&inject->fired, 1);
    if (inject->how == INJECT_HOOK) {
        inject->hook();
        return false;
    }
    errno = inject->error;
    return true;
}
static inline void *inject_count(void *block)
{
    if (inject && block) atomic_fetch_add(&inject->live, 1);
    return block;
}

/* The replacement of a call, and the call itself. */
#define INJECT(kind, instead, type, name, parameters, arguments) \
    type __real_##name parameters; \
    type __wrap_##name parameters; \
    type __wrap_##name parameters { return inject_due(kind) ? (instead) : __real_##name arguments; }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic" /* names that only the linker makes */
#if defined __GLIBC__ && UINTPTR_MAX == UINT32_MAX
/* There, calls for large files and late dates have other names. */
#define WIDE(type, name, called, parameters) \
    type __real_##name parameters __asm__("__real_" called); \
    type __wrap_##name parameters __asm__("__wrap_" called);
WIDE(int, fstat, "__fstat64_time64", (int, struct stat *))
WIDE(FILE *, fopen, "fopen64", (const char *, const char *))
WIDE(int, open, "open64", (const char *, int, ...))
WIDE(ssize_t, pwrite, "pwrite64", (int, const void *, size_t, off_t))
WIDE(ssize_t, pread, "pread64", (int, void *, size_t, off_t))
#endif

void *__real_malloc(size_t), *__wrap_malloc(size_t);
void *__real_calloc(size_t, size_t), *__wrap_calloc(size_t, size_t);
void *__real_realloc(void *, size_t), *__wrap_realloc(void *, size_t);
void *__real_aligned_alloc(size_t, size_t), *__wrap_aligned_alloc(size_t, size_t);
void __real_free(void *), __wrap_free(void *);

void *__wrap_malloc(size_t n)
{
    return inject_due(INJECT_MEMORY) ? NULL : inject_count(__real_malloc(n));
}
/* Not calloc(), which in a static libc would come here again for its memory. */
void *__wrap_calloc(size_t n, size_t each)
{
    size_t bytes;
    if (inject_due(INJECT_MEMORY) || __builtin_mul_overflow(n, each, &bytes)) return NULL;
    void *p = __real_malloc(bytes);
    return p ? inject_count(memset(p, 0, bytes)) : NULL;
}
void *__wrap_realloc(void *old, size_t n)
{
    if (inject_due(INJECT_MEMORY)) return NULL;
    void *p = __real_realloc(old, n);
    return old ? p : inject_count(p);
}
void *__wrap_aligned_alloc(size_t line, size_t n)
{
    return inject_due(INJECT_MEMORY) ? NULL : inject_count(__real_aligned_alloc(line, n));
}
void __wrap_free(void *p)
{
    if (inject && p) atomic_fetch_sub(&inject->live, 1);
    __real_free(p);
}

INJECT(INJECT_THREAD, EAGAIN, int, pthread_create,
       (pthread_t * t, const pthread_attr_t *how, void *(*run)(void *), void *arg),
       (t, how, run, arg))
INJECT(INJECT_SYNC, -1, int, fsync, (int fd), (fd))
INJECT(INJECT_NAME, -1, int, rename, (const char *from, const char *to), (from, to))
INJECT(INJECT_NAME, -1, int, mkdir, (const char *path, mode_t mode), (path, mode))
INJECT(INJECT_MODE, -1, int, fchmod, (int fd, mode_t mode), (fd, mode))
INJECT(INJECT_MODE, -1, int, fchown, (int fd, uid_t user, gid_t group), (fd, user, group))
INJECT(INJECT_STATUS, -1, int, fstat, (int fd, struct stat *to), (fd, to))
INJECT(INJECT_CLOSE, (__real_close(fd), -1), int, close, (int fd), (fd))
INJECT(INJECT_OPEN, NULL, FILE *, fopen, (const char *path, const char *mode), (path, mode))
INJECT(INJECT_OPEN, NULL, DIR *, opendir, (const char *path), (path))

int __real_open(const char *, int, ...), __wrap_open(const char *, int, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    return inject_due(INJECT_OPEN) ? -1 : __real_open(path, flags, mode);
}

/* At least a byte, since 0 would mean the end of a file. */
#define INJECT_PART(kind, name, parameters, whole, half) \
    ssize_t __real_##name parameters; \
    ssize_t __wrap_##name parameters; \
    ssize_t __wrap_##name parameters \
    { \
        if (!inject_due(kind)) return __real_##name whole; \
        return inject->how == INJECT_SHORT ? __real_##name half : -1; \
    }
INJECT_PART(INJECT_WRITE, write, (int fd, const void *data, size_t n), (fd, data, n),
            (fd, data, n > 1 ? n / 2 : n))
INJECT_PART(INJECT_WRITE, pwrite, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at),
            (fd, data, n > 1 ? n / 2 : n, at))
INJECT_PART(INJECT_READ, read, (int fd, void *to, size_t n), (fd, to, n),
            (fd, to, n > 1 ? n / 2 : n))
INJECT_PART(INJECT_READ, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at),
            (fd, to, n > 1 ? n / 2 : n, at))
#pragma GCC diagnostic pop

#endif
