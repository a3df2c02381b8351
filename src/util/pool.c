/* SPDX-License-Identifier: MIT */
/* pool.c -- a host with threads of its own, or on those of an OpenMP runtime.
 *
 * Each run() is a batch on its caller's stack.  It is linked into the pool while it has work left.
 * Workers and the caller draw indices from it by one atomic counter.  So several host threads may
 * run batches at once, and a job may run a batch of its own without deadlock.  A thread waits for a
 * batch only after its own share is done, and only for jobs that are running.  Only the workers and
 * the caller draw from a batch, so at most `threads` of its jobs overlap. */
#include "util/error.h"
#include "util/limits.h"
#include "util/lock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* Polls before sleeping: some five microseconds, the cost of a wake-up. */
enum { SPINS = 200 };

struct batch {
    void (*job)(void *arg, int index);
    void *arg;
    int n;
    atomic_int next;    /* the first index that is not drawn */
    atomic_int helpers; /* workers in the batch; changed with the lock */
    struct batch *later;
};

struct pool {
    struct mutex lock;
    struct condition work, left; /* a batch was added; a worker left a batch */
    struct batch *first;         /* with the lock: batches that may have indices left */
    atomic_uint posted;          /* batches so far, for spinning workers */
    int sleeping;
    bool stop;
    int spins;
    /* Threads do not survive a fork: the child runs its batches alone. */
    long owner;
    /* GOMP_parallel(), which then runs all batches by `threads` threads; else NULL */
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int threads;
    int workers;
    struct thread worker[];
};

/* Draws indices until none is left.  The counter needs no memory order of its own.  The results of
 * jobs are published by the lock that every worker acquires when it leaves. */
static void work_on(struct batch *b)
{
    for (int i; (i = atomic_fetch_add_explicit(&b->next, 1, memory_order_relaxed)) < b->n;)
        b->job(b->arg, i);
}

/* The oldest batch with an index left, or NULL.  The caller must have the lock.  It protects the
 * list, and with it the batches on other stacks. */
static struct batch *open_batch(const struct pool *p)
{
    struct batch *b = p->first;
    while (b && atomic_load_explicit(&b->next, memory_order_relaxed) >= b->n) b = b->later;
    return b;
}

/* Works on batches until the pool stops.  Between two batches a worker spins first, because calls
 * often follow each other, and then sleeps. */
static void *worker(void *user)
{
    struct pool *p = user;
    mutex_lock(&p->lock);
    while (!p->stop) {
        struct batch *b = open_batch(p);
        if (b) {
            /* The count is raised before the lock is released.  So the owner cannot release its
             * stack frame. */
            atomic_fetch_add(&b->helpers, 1);
            mutex_unlock(&p->lock);
            work_on(b);
            mutex_lock(&p->lock);
            if (atomic_fetch_sub(&b->helpers, 1) == 1) condition_broadcast(&p->left);
            continue;
        }
        unsigned seen = atomic_load(&p->posted);
        mutex_unlock(&p->lock);
        for (int i = 0; i < p->spins && atomic_load(&p->posted) == seen; i++) cpu_relax();
        mutex_lock(&p->lock);
        /* Checked again with the lock.  A batch that was added meanwhile signalled no worker,
         * because this thread was not asleep yet. */
        if (atomic_load(&p->posted) != seen || p->stop) continue;
        p->sleeping++;
        condition_wait(&p->work, &p->lock);
        p->sleeping--;
    }
    mutex_unlock(&p->lock);
    return NULL;
}

static void team_member(void *batch) { work_on(batch); }

/* A forked child has no workers, so it runs its batches alone (`owner`). */
static void run(void *user, int n, void (*job)(void *arg, int index), void *arg)
{
    struct pool *p = user;
    if (n <= 1 || p->threads == 1 || p->owner != loci_process()) {
        for (int i = 0; i < n; i++) job(arg, i);
        return;
    }
    struct batch b = { .job = job, .arg = arg, .n = n };
    if (p->parallel) { /* always the whole team, as a runtime may end the threads of a larger one */
        p->parallel(team_member, &b, (unsigned)p->threads, 0);
        return;
    }

    mutex_lock(&p->lock);
    struct batch **end = &p->first;
    /* Appended, so that older batches are finished first. */
    while (*end) end = &(*end)->later;
    *end = &b;
    atomic_fetch_add(&p->posted, 1);
    for (int i = 0; i < n - 1 && i < p->sleeping; i++) condition_signal(&p->work);
    mutex_unlock(&p->lock);

    work_on(&b);

    /* The remaining jobs are mostly short, so polling for a while is cheaper than sleeping. */
    for (int i = 0; i < p->spins && atomic_load(&b.helpers) > 0; i++) cpu_relax();
    mutex_lock(&p->lock);
    /* The batch is unlinked before the wait, so that no more workers enter: it is on this stack. */
    struct batch **at = &p->first;
    while (*at != &b) at = &(*at)->later;
    *at = b.later;
    while (atomic_load(&b.helpers) > 0) condition_wait(&p->left, &p->lock);
    mutex_unlock(&p->lock);
}

/* Stops and joins the first `workers` threads, then frees the pool.  A pool that could not start
 * all threads has only those. */
static void end(struct pool *p, int workers)
{
    mutex_lock(&p->lock);
    p->stop = true;
    atomic_fetch_add(&p->posted, 1);
    condition_broadcast(&p->work);
    mutex_unlock(&p->lock);
    for (int i = 0; i < workers; i++) loci_thread_join(&p->worker[i]);
    condition_destroy(&p->work);
    condition_destroy(&p->left);
    mutex_destroy(&p->lock);
    free(p);
}

static loci_status create(loci_host *host, int threads,
                          void (*parallel)(void (*)(void *), void *, unsigned, unsigned))
{
    if (!host || threads < 1 || threads > MAX_THREADS) return LOCI_BAD_ARG;
    int workers = parallel ? 0 : threads - 1;
    struct pool *p = calloc(1, sizeof *p + (size_t)workers * sizeof *p->worker);
    if (!p) return LOCI_NO_MEMORY;
    p->parallel = parallel;
    p->threads = threads;
    /* values instead of calls, which could fail */
    p->lock = (struct mutex)MUTEX_INIT;
    p->work = p->left = (struct condition)CONDITION_INIT;
    p->owner = loci_process();
    p->workers = workers;
    /* If there are more threads than cores, a spinning thread would slow down a working one. */
    if (threads <= loci_processors()) p->spins = SPINS;

    int started = 0;
    while (started < workers && loci_thread_start(&p->worker[started], worker, p)) started++;
    if (started < workers) {
        end(p, started);
        return LOCI_NO_MEMORY;
    }
    *host = (loci_host){ .run = run, .user = p, .threads = threads };
    return LOCI_OK;
}

loci_status loci_pool_create(loci_host *host, int threads) { return create(host, threads, NULL); }
loci_status loci_pool_create_openmp(loci_host *host, int threads,
                                    void (*parallel)(void (*body)(void *arg), void *arg,
                                                     unsigned threads, unsigned flags))
{
    return parallel ? create(host, threads, parallel) : LOCI_BAD_ARG;
}

void loci_pool_destroy(loci_host *host)
{
    if (!host || !host->user) return;
    struct pool *p = host->user;
    if (p->owner == loci_process()) end(p, p->workers);
    else free(p); /* a forked child has no threads to join */
    *host = (loci_host){ 0 };
}
