/* SPDX-License-Identifier: MIT */
/* thread.h -- pthreads; see platform/thread.h. */
#ifndef LOCI_PLATFORM_POSIX_THREAD_H
#define LOCI_PLATFORM_POSIX_THREAD_H

#include <pthread.h>

struct mutex {
    pthread_mutex_t own;
};
struct condition {
    pthread_cond_t own;
};
struct once {
    pthread_once_t own;
};
struct thread {
    pthread_t own;
};
#define MUTEX_INIT \
    { \
        PTHREAD_MUTEX_INITIALIZER \
    }
#define CONDITION_INIT \
    { \
        PTHREAD_COND_INITIALIZER \
    }
#define ONCE_INIT \
    { \
        PTHREAD_ONCE_INIT \
    }

static inline void mutex_lock(struct mutex *m) { pthread_mutex_lock(&m->own); }
static inline void mutex_unlock(struct mutex *m) { pthread_mutex_unlock(&m->own); }
static inline void mutex_destroy(struct mutex *m) { pthread_mutex_destroy(&m->own); }
static inline void condition_wait(struct condition *c, struct mutex *m)
{
    pthread_cond_wait(&c->own, &m->own);
}
static inline void condition_signal(struct condition *c) { pthread_cond_signal(&c->own); }
static inline void condition_broadcast(struct condition *c) { pthread_cond_broadcast(&c->own); }
static inline void condition_destroy(struct condition *c) { pthread_cond_destroy(&c->own); }
static inline void once_run(struct once *o, void (*job)(void)) { pthread_once(&o->own, job); }

#endif
