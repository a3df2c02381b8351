/* SPDX-License-Identifier: MIT */
/* fork.c -- processes created by fork() while other threads use plans, tables and a pool.  The
 * child computes the same bits with inherited objects, and with a pool of its own.  It may use,
 * destroy or ignore its parent's pool. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loci/loci.h"
#include "harness.h"
#include "walk.h"

enum { H = 2, L = 96, D = 16, N = H * L * D, FORKS = LOCI_SLOW || LOCI_EMULATED ? 9 : 100 };
enum { PATIENCE = 600 }; /* seconds, for a very busy machine */

static float q[N], k[N], v[N], dout[N], right[2 * N];
static loci_plan *plan;
static void *tables;
static loci_host pool;
static atomic_int stop;

/* Buffers that each caller has for itself. */
struct buffers {
    float *x, *lse;
    void *work;
};
static struct buffers alloc_buffers(const loci_host *host, const loci_plan *of)
{
    const loci_call c = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q.data = q, .k.data = k,
                                  .v.data = v, .host = host);
    const struct buffers r = { malloc(sizeof right), malloc(sizeof(float) * H * L),
                               aligned_alloc(64, loci_workspace(of, &c, 1)) };
    if (!r.x || !r.lse || !r.work) exit(2);
    return r;
}
static void free_buffers(const struct buffers *r)
{
    free(r->x);
    free(r->lse);
    free(r->work);
}

/* Forward and backward. */
static bool compute_in(const struct buffers *r, const loci_host *host, const loci_plan *of,
                       const void *with)
{
    const loci_call c = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q.data = q, .k.data = k,
                                  .v.data = v, .o.data = r->x, .lse = r->lse, .host = host);
    const loci_grad g = LOCI_GRAD(.dout.data = dout, .dk.data = r->x + N);
    const bool done =
        !loci_forward(of, with, r->work, &c) && !loci_backward(of, with, r->work, &c, &g);
    if (!right[0]) memcpy(right, r->x, sizeof right);
    return done && !memcmp(right, r->x, sizeof right);
}
static bool compute(const loci_host *host, const loci_plan *of, const void *with)
{
    const struct buffers r = alloc_buffers(host, of);
    const bool same = compute_in(&r, host, of, with);
    free_buffers(&r);
    return same;
}
/* fork() waits until all threads have begun and callers have their memory: sanitizers do not
 * support children created while another thread is inside them. */
static atomic_int begun;
static void meet(void *arg, int index)
{
    (void)index;
    for (atomic_fetch_add(&begun, 1); atomic_load(&begun) < *(int *)arg;) sched_yield();
}
struct caller {
    pthread_t thread;
    struct buffers buffers;
    int wrong;
};
static void *busy(void *arg)
{
    struct caller *a = arg;
    atomic_fetch_add(&begun, 1);
    while (!atomic_load(&stop)) a->wrong += !compute_in(&a->buffers, &pool, plan, tables);
    return NULL;
}

static loci_plan *make_plan(void)
{
    loci_plan *p;
    const loci_desc d = LOCI_DESC(.encoding = "rope:pairing=half+alibi", .heads = H, .dim = D);
    return loci_plan_create(&p, &d, NULL) ? NULL : p;
}

/* The work of a child, in three ways. 0: success. */
static int child(int way)
{
    loci_host own;
    alarm(PATIENCE);
    if (way == 0) { /* ignores the parent's pool */
        if (loci_pool_create(&own, 3)) return 1;
        if (!compute(&own, plan, tables)) return 2;
        loci_pool_destroy(&own);
    } else if (way == 1) { /* destroys it; creates a new pool and a plan */
        loci_pool_destroy(&pool);
        loci_plan *mine = make_plan();
        if (pool.user || !mine || loci_pool_create(&pool, 4)) return 3;
        if (!compute(&pool, mine, tables) || !compute(NULL, plan, tables)) return 4;
        loci_pool_destroy(&pool);
        loci_plan_destroy(mine);
    } else { /* uses it, in the calling thread */
        if (!compute(&pool, plan, tables)) return 5;
        loci_pool_destroy(&pool);
    }
    return 0;
}

static void forks(const char *name)
{
    for (int i = 0; i < FORKS; i++) {
        int status = 0;
        fflush(stdout);
        const pid_t pid = fork();
        if (pid == 0) _exit(child(i % 3));
        CHECK_THAT(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status)
                       && WEXITSTATUS(status) == 0,
                   "%s, child %d: exit code %d, signal %d", name, i,
                   WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                   WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    }
}

int main(void)
{
    enum { CALLERS = 2 };
    struct caller caller[CALLERS] = { 0 };
    for (int i = 0; i < N; i++) {
        q[i] = (float)(i * 37 % 101) / 50 - 1;
        k[i] = (float)(i * 53 % 97) / 48 - 1;
        v[i] = (float)(i * 71 % 89) / 44 - 1;
        dout[i] = (float)(i * 29 % 83) / 41 - 1;
    }
    plan = make_plan();
    tables = plan ? aligned_alloc(64, loci_tables_size(plan, L)) : NULL;
    if (!tables || loci_prepare(plan, L, NULL, tables) || loci_pool_create(&pool, 4)) return 2;
    CHECK_THAT(compute(NULL, plan, tables) && compute(&pool, plan, tables), "the parent itself");
    pool.run(pool.user, pool.threads, meet, &pool.threads);
    forks("an idle pool");
    for (int i = 0; i < CALLERS; i++) caller[i].buffers = alloc_buffers(&pool, plan);
    for (int i = 0; i < CALLERS; i++)
        if (pthread_create(&caller[i].thread, NULL, busy, &caller[i])) return 2;
    while (atomic_load(&begun) < pool.threads + CALLERS) sched_yield();
    forks("a pool at work");
    atomic_store(&stop, 1);
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(caller[i].thread, NULL);
        CHECK_THAT(!caller[i].wrong, "%d calls of the parent had other bits", caller[i].wrong);
        free_buffers(&caller[i].buffers);
    }
    CHECK_THAT(compute(&pool, plan, tables), "the parent afterwards");
    loci_pool_destroy(&pool);
    loci_plan_destroy(plan);
    free(tables);
    return harness_end();
}
