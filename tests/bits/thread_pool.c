/* SPDX-License-Identifier: MIT */
/* thread_pool.c -- the pool: every index exactly once, at most `threads` at a time, from several
 * callers, nested, after a fork. */
#define _POSIX_C_SOURCE 200809L
#include "loci/loci.h"
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* A sanitizer reserves terabytes of address space, so no limit can be set. */
#ifndef LOCI_SANITIZED
#define LOCI_SANITIZED 0
#endif

enum { MOST = 5000 };
struct count {
    const loci_host *host;
    atomic_int seen[MOST], now, most;
    int plain[MOST]; /* written without atomics: run() must publish it */
};

static void count_job(void *arg, int i)
{
    struct count *c = arg;
    int now = atomic_fetch_add(&c->now, 1) + 1, most = atomic_load(&c->most);
    while (now > most && !atomic_compare_exchange_weak(&c->most, &most, now)) {}
    atomic_fetch_add(&c->seen[i], 1);
    c->plain[i] = i + 1;
    atomic_fetch_sub(&c->now, 1);
}

static void check_once(const loci_host *host, int n)
{
    struct count *c = calloc(1, sizeof *c);
    host->run(host->user, n, count_job, c);
    int wrong = 0;
    for (int i = 0; i < MOST; i++)
        wrong += c->seen[i] != (i < n) || c->plain[i] != (i < n ? i + 1 : 0);
    CHECK_THAT(wrong == 0, "an index was not run exactly once (%d, %d)", host->threads, n);
    CHECK_THAT(c->most <= host->threads, "too many jobs overlapped (%d, %d)", host->threads,
               c->most);
    free(c);
}

static void inner_job(void *arg, int i) { atomic_fetch_add((atomic_int *)arg, i); }

struct outer {
    const loci_host *host;
    atomic_int sum;
};
static void outer_job(void *arg, int i)
{
    struct outer *o = arg;
    atomic_int mine = 0;
    o->host->run(o->host->user, 50 + i, inner_job, &mine);
    atomic_fetch_add(&o->sum, mine == (50 + i) * (49 + i) / 2);
}

static void check_nested(const loci_host *host)
{
    struct outer o = { .host = host };
    host->run(host->user, 40, outer_job, &o);
    CHECK_THAT(o.sum == 40, "nested batches were not complete (%d, %d)", host->threads, o.sum);
}

static void *caller(void *arg)
{
    const loci_host *host = arg;
    for (int i = 0; i < 50; i++) check_once(host, 1 + 13 * i);
    check_nested(host);
    return NULL;
}

static void check_callers(loci_host *host)
{
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, caller, host);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
}

/* seconds, for a very busy machine; threads that every system allows */
enum { PATIENCE = 600, USUAL_THREADS = 8 };

/* Runs `child` in a forked process and returns its exit status, or -1 if it hung or crashed. */
static int in_child(int (*child)(loci_host *), loci_host *host)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(PATIENCE);
        _exit(child(host));
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int use_and_destroy(loci_host *host)
{
    atomic_int sum = 0;
    host->run(host->user, 100, inner_job, &sum);
    loci_pool_destroy(host);
    return sum == 4950 ? 0 : 1;
}

/* With hardly any address space left, 255 stacks cannot be allocated. */
static int starve(loci_host *host)
{
    (void)host;
    struct rlimit limit = { 64 << 20, 64 << 20 };
    setrlimit(RLIMIT_AS, &limit);
    loci_host fresh, before;
    memset(&fresh, 0x5a, sizeof fresh);
    before = fresh;
    loci_status status = loci_pool_create(&fresh, 256);
    if (status == LOCI_OK) return use_and_destroy(&fresh);
    return status == LOCI_NO_MEMORY && memcmp(&fresh, &before, sizeof fresh) == 0 ? 0 : 1;
}

/* What GOMP_parallel() does: all members of a team run the body.  The runtime may have fewer. */
static unsigned team_size;
static atomic_uint asked;
static atomic_int teams;
struct member {
    void (*body)(void *);
    void *arg;
};
static void *run_member(void *arg)
{
    const struct member *m = arg;
    m->body(m->arg);
    return NULL;
}
static void parallel(void (*body)(void *), void *arg, unsigned threads, unsigned flags)
{
    struct member m = { body, arg };
    pthread_t thread[8];
    const unsigned more = (team_size < threads ? team_size : threads) - 1;
    (void)flags;
    asked = threads;
    teams++;
    for (unsigned i = 0; i < more; i++)
        if (pthread_create(&thread[i], NULL, run_member, &m)) exit(2);
    body(arg);
    for (unsigned i = 0; i < more; i++) pthread_join(thread[i], NULL);
}

int main(void)
{
    loci_host host;
    static const int bad[] = { -1, 0, 257 };
    for (int i = 0; i < 3; i++) {
        memset(&host, 0x5a, sizeof host);
        loci_host before = host;
        CHECK_THAT(loci_pool_create(&host, bad[i]) == LOCI_BAD_ARG,
                   "a bad number of threads was taken (%d, 0)", bad[i]);
        CHECK_THAT(memcmp(&host, &before, sizeof host) == 0,
                   "a failing create wrote the host (%d, 0)", bad[i]);
    }
    CHECK_THAT(loci_pool_create(NULL, 1) == LOCI_BAD_ARG, "no host was taken (0, 0)");

    static const int threads[] = { 1, 2, 3, 8, 40, 256 }, items[] = { 0, 1, 2, 3, 17, MOST };
    for (int t = 0; t < 6; t++) {
        const loci_status status = loci_pool_create(&host, threads[t]);
        const bool spared = status == LOCI_NO_MEMORY && threads[t] > USUAL_THREADS;
        if (spared)
            printf("thread_pool: this system does not allow %d threads, so they were not "
                   "tried\n",
                   threads[t]);
        else CHECK_THAT(status == LOCI_OK, "create failed (%d, %d)", threads[t], status);
        if (status) continue;
        CHECK_THAT(host.threads == threads[t] && !host.cancelled,
                   "the host is not as asked (%d, %d)", threads[t], host.threads);
        for (int i = 0; i < 6; i++) check_once(&host, items[i]);
        for (int i = 0; i < 200; i++) check_once(&host, 2);
        check_nested(&host);
        if (threads[t] <= 8) check_callers(&host);
        CHECK_THAT(in_child(use_and_destroy, &host) == 0,
                   "a forked child could not use the pool (%d, 0)", threads[t]);
        check_once(&host, 100);
        loci_pool_destroy(&host);
        CHECK_THAT(!host.user && !host.run, "destroy left the host standing (%d, 0)", threads[t]);
        loci_pool_destroy(&host);
    }
    /* teams of a runtime, of which one is smaller than asked */
    for (int members = 4; members > 0; members -= 3) {
        team_size = (unsigned)members;
        CHECK_THAT(loci_pool_create_openmp(&host, 4, parallel) == LOCI_OK && host.threads == 4,
                   "create failed (4, %d)", members);
        for (int i = 0; i < 6; i++) check_once(&host, items[i]);
        check_nested(&host);
        check_callers(&host);
        CHECK_THAT(teams > 0 && asked == 4, "a team of 4 was not asked for (%d, %d)", (int)asked,
                   teams);
        CHECK_THAT(in_child(use_and_destroy, &host) == 0,
                   "a forked child could not use the pool (4, %d)", members);
        loci_pool_destroy(&host);
        CHECK_THAT(!host.user && !host.run, "destroy left the host standing (4, %d)", members);
    }
    CHECK_THAT(loci_pool_create_openmp(&host, 4, NULL) == LOCI_BAD_ARG
                   && loci_pool_create_openmp(&host, 0, parallel) == LOCI_BAD_ARG,
               "a team without a runtime, or of nobody (%d, %d)", 0, 0);
    for (int i = 0; i < 50; i++) {
        CHECK_THAT(loci_pool_create(&host, 4) == LOCI_OK, "create failed (4, %d)", i);
        loci_pool_destroy(&host);
    }
    if (!LOCI_SANITIZED)
        CHECK_THAT(in_child(starve, NULL) == 0, "a pool without memory for stacks (256, 0)");
    return harness_end();
}
