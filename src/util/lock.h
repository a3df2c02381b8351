/* SPDX-License-Identifier: MIT */
/* lock.h -- a lock with a condition to wait for, a job that runs once, and a pause for spinning.
 *
 * They are those of the system.  A library built without threads (LOCI_NO_THREADS) has its own,
 * which spin.  Such a library starts no threads, so they never wait, unless its host has threads.
 * Even then they are correct. */
#ifndef LOCI_UTIL_LOCK_H
#define LOCI_UTIL_LOCK_H

/* Tells the core that this thread spins.  This saves power and helps the other thread of the
 * core. */
static inline void cpu_relax(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("isb");
#endif
}

#ifndef LOCI_NO_THREADS
#include "platform/thread.h"

struct lock {
    struct mutex taken;
    struct condition woken;
};

/* Set by values, because calls could fail. */
static inline void lock_open(struct lock *l)
{
    l->taken = (struct mutex)MUTEX_INIT;
    l->woken = (struct condition)CONDITION_INIT;
}
static inline void lock_close(struct lock *l)
{
    condition_destroy(&l->woken);
    mutex_destroy(&l->taken);
}
static inline void lock_acquire(struct lock *l) { mutex_lock(&l->taken); }
static inline void lock_release(struct lock *l) { mutex_unlock(&l->taken); }
/* The caller has the lock.  Releases it, waits for a wake-up, and acquires it again.  It may return
 * without a wake-up. */
static inline void lock_wait(struct lock *l) { condition_wait(&l->woken, &l->taken); }
/* The caller has the lock.  Wakes all waiting threads. */
static inline void lock_wake(struct lock *l) { condition_broadcast(&l->woken); }

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
#define ONCE_INIT \
    { \
        0 \
    }
static inline void once_run(struct once *o, void (*job)(void))
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
