/* SPDX-License-Identifier: MIT */
/* thread.h -- locks and threads of Windows; see platform/thread.h.
 *
 * Slim locks, conditions and INIT_ONCE are one pointer each, NULL at first, and need no end.  They
 * are declared as such, so that no other file reads windows.h, which defines thousands of names. */
#ifndef LOCI_PLATFORM_WIN32_THREAD_H
#define LOCI_PLATFORM_WIN32_THREAD_H

struct mutex {
    void *own;
};
struct condition {
    void *own;
};
struct once {
    void *own;
};
struct thread {
    void *own, *(*body)(void *), *arg;
    unsigned short x87; /* how its x87 unit rounds */
};
#define MUTEX_INIT \
    { \
        0 \
    }
#define CONDITION_INIT MUTEX_INIT
#define ONCE_INIT MUTEX_INIT

void loci_win32_lock(struct mutex *);
void loci_win32_unlock(struct mutex *);
void loci_win32_wait(struct condition *, struct mutex *);
void loci_win32_signal(struct condition *);
void loci_win32_broadcast(struct condition *);
void loci_win32_once(struct once *, void (*job)(void));

static inline void mutex_lock(struct mutex *m) { loci_win32_lock(m); }
static inline void mutex_unlock(struct mutex *m) { loci_win32_unlock(m); }
static inline void mutex_destroy(struct mutex *m) { (void)m; }
static inline void condition_wait(struct condition *c, struct mutex *m) { loci_win32_wait(c, m); }
static inline void condition_signal(struct condition *c) { loci_win32_signal(c); }
static inline void condition_broadcast(struct condition *c) { loci_win32_broadcast(c); }
static inline void condition_destroy(struct condition *c) { (void)c; }
static inline void once_run(struct once *o, void (*job)(void)) { loci_win32_once(o, job); }

#endif
