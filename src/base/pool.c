/* SPDX-License-Identifier: MIT */
/* pool.c -- a host with threads of its own.
 *
 * Each run() is a batch on its caller's stack, linked into the pool while it has work left.
 * Workers and the caller take indices from it by one atomic counter, so several host threads may
 * run batches at once, and a job may run one of its own: whoever waits for a batch has finished its
 * own share of it, and waits only for jobs that are running.  A batch is met by the workers and its
 * caller only, so at most `threads` of its jobs overlap. */
#define _POSIX_C_SOURCE 200809L
#include "base/given.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

enum { SPINS = 200 };                    /* looks before sleeping: some five microseconds, what
                                            waking costs */

struct batch {
    void (*job)(void *arg, int index);
    void *arg;
    int n;
    atomic_int next;                     /* first index that nobody has taken */
    atomic_int helpers;                  /* workers inside; changed under the lock */
    struct batch *later;
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work, left;           /* a batch came; a worker left a batch */
    struct batch *first;                 /* under the lock: batches that may have indices to give */
    atomic_uint posted;                  /* batches so far, for those who spin */
    int sleeping;
    bool stop;
    int spins;
    pid_t owner;                         /* threads do not survive a fork: the child runs its
                                            batches alone */
    int workers;
    pthread_t worker[];
};

static void relax(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("isb");
#endif
}

static void work_on(struct batch *b)
{
    for (int i; (i = atomic_fetch_add_explicit(&b->next, 1, memory_order_relaxed)) < b->n;)
        b->job(b->arg, i);
}

/* Under the lock. */
static struct batch *open_batch(const struct pool *p)
{
    struct batch *b = p->first;
    while (b && atomic_load_explicit(&b->next, memory_order_relaxed) >= b->n) b = b->later;
    return b;
}

static void *worker(void *user)
{
    struct pool *p = user;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        struct batch *b = open_batch(p);
        if (b) {
            atomic_fetch_add(&b->helpers, 1);
            pthread_mutex_unlock(&p->lock);
            work_on(b);
            pthread_mutex_lock(&p->lock);
            if (atomic_fetch_sub(&b->helpers, 1) == 1) pthread_cond_broadcast(&p->left);
            continue;
        }
        unsigned seen = atomic_load(&p->posted);
        pthread_mutex_unlock(&p->lock);
        for (int i = 0; i < p->spins && atomic_load(&p->posted) == seen; i++) relax();
        pthread_mutex_lock(&p->lock);
        if (atomic_load(&p->posted) != seen || p->stop) continue;
        p->sleeping++;
        pthread_cond_wait(&p->work, &p->lock);
        p->sleeping--;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void run(void *user, int n, void (*job)(void *arg, int index), void *arg)
{
    struct pool *p = user;
    if (n <= 1 || p->workers == 0 || p->owner != getpid()) {
        for (int i = 0; i < n; i++) job(arg, i);
        return;
    }
    struct batch b = { .job = job, .arg = arg, .n = n };

    pthread_mutex_lock(&p->lock);
    struct batch **end = &p->first;
    while (*end) end = &(*end)->later;
    *end = &b;
    atomic_fetch_add(&p->posted, 1);
    for (int i = 0; i < n - 1 && i < p->sleeping; i++) pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);

    work_on(&b);

    for (int i = 0; i < p->spins && atomic_load(&b.helpers) > 0; i++) relax();
    pthread_mutex_lock(&p->lock);
    struct batch **at = &p->first;
    while (*at != &b) at = &(*at)->later;
    *at = b.later;
    while (atomic_load(&b.helpers) > 0) pthread_cond_wait(&p->left, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* Ends and joins the first `workers` threads, then frees the pool. */
static void end(struct pool *p, int workers)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    atomic_fetch_add(&p->posted, 1);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < workers; i++) pthread_join(p->worker[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->left);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

loci_status loci_pool_create(loci_host *host, int threads)
{
    if (!host || threads < 1 || threads > MAX_THREADS) return LOCI_BAD_ARG;
    int workers = threads - 1;
    struct pool *p = calloc(1, sizeof *p + (size_t)workers * sizeof *p->worker);
    if (!p) return LOCI_NO_MEMORY;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->left, NULL);
    p->owner = getpid();
    p->workers = workers;
    if (threads <= sysconf(_SC_NPROCESSORS_ONLN)) p->spins = SPINS;

    /* Workers inherit a mask that leaves every signal to the host's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = 0;
    while (started < workers && pthread_create(&p->worker[started], NULL, worker, p) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started < workers) {
        end(p, started);
        return LOCI_NO_MEMORY;
    }
    *host = (loci_host){ .run = run, .user = p, .threads = threads };
    return LOCI_OK;
}

void loci_pool_destroy(loci_host *host)
{
    if (!host || !host->user) return;
    struct pool *p = host->user;
    if (p->owner == getpid()) end(p, p->workers);
    else free(p);
    *host = (loci_host){ 0 };
}
