/* SPDX-License-Identifier: MIT */
/* lock.h -- a lock with a condition to wait for, and a job that runs once.
 *
 * They use pthreads.  A library built without threads (LOCI_NO_THREADS) has its own versions, which
 * spin.  Such a library starts no threads, so they never wait, unless its host has threads.  Even
 * then they are correct. */
#ifndef LOCI_UTIL_LOCK_H
#define LOCI_UTIL_LOCK_H

#ifndef LOCI_NO_THREADS
#include <pthread.h>

struct lock {
    pthread_mutex_t taken;
    pthread_cond_t woken;
};

/* Set by values, because calls could fail. */
static inline void lock_open(struct lock *l)
{
    l->taken = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    l->woken = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
static inline void lock_close(struct lock *l)
{
    pthread_cond_destroy(&l->woken);
    pthread_mutex_destroy(&l->taken);
}
static inline void lock_acquire(struct lock *l) { pthread_mutex_lock(&l->taken); }
static inline void lock_release(struct lock *l) { pthread_mutex_unlock(&l->taken); }
/* The caller has the lock.  Releases it, waits for a wake-up, and acquires it again.  It may return
 * without a wake-up. */
static inline void lock_wait(struct lock *l) { pthread_cond_wait(&l->woken, &l->taken); }
/* The caller has the lock.  Wakes all waiting threads. */
static inline void lock_wake(struct lock *l) { pthread_cond_broadcast(&l->woken); }

/* Initialise it with ONCE. */
struct once {
    pthread_once_t done;
};
#define ONCE \
    { \
        PTHREAD_ONCE_INIT \
    }
static inline void once_do(struct once *o, void (*job)(void)) { pthread_once(&o->done, job); }

#else
#include <stdatomic.h>

struct lock {
    atomic_int taken;
    atomic_uint wakes;
};

static inline void lock_open(struct lock *l)
{
    atomic_init(&l->taken, 0);
    atomic_init(&l->wakes, 0);
}
static inline void lock_close(struct lock *l) { (void)l; }
static inline void lock_acquire(struct lock *l)
{
    while (atomic_exchange(&l->taken, 1)) {}
}
static inline void lock_release(struct lock *l) { atomic_store(&l->taken, 0); }
static inline void lock_wait(struct lock *l)
{
    const unsigned seen = atomic_load(&l->wakes);
    lock_release(l);
    while (atomic_load(&l->wakes) == seen) {}
    lock_acquire(l);
}
static inline void lock_wake(struct lock *l) { atomic_fetch_add(&l->wakes, 1); }

struct once {
    atomic_int done;
}; /* 1: in progress; 2: done */
#define ONCE \
    { \
        0 \
    }
static inline void once_do(struct once *o, void (*job)(void))
{
    int none = 0;
    if (atomic_compare_exchange_strong(&o->done, &none, 1)) {
        job();
        atomic_store(&o->done, 2);
    }
    while (atomic_load(&o->done) != 2) {}
}
#endif

#endif
