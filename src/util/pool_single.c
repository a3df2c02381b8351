/* SPDX-License-Identifier: MIT */
/* pool_single.c -- replaces pool.c in a library without threads (LOCI_THREADS=OFF): a host that
 * runs its jobs one by one. */
#include "util/error.h"
#include "util/limits.h"

static void run(void *user, int n, void (*job)(void *arg, int index), void *arg)
{
    (void)user;
    for (int i = 0; i < n; i++) job(arg, i);
}

loci_status loci_pool_create(loci_host *host, int threads)
{
    if (!host || threads < 1 || threads > MAX_THREADS) return LOCI_BAD_ARG;
    if (threads > 1) return LOCI_UNSUPPORTED;
    *host = (loci_host){ .run = run, .threads = 1 };
    return LOCI_OK;
}

loci_status loci_pool_create_openmp(loci_host *host, int threads,
                                    void (*parallel)(void (*body)(void *arg), void *arg,
                                                     unsigned threads, unsigned flags))
{
    return parallel ? loci_pool_create(host, threads) : LOCI_BAD_ARG;
}

void loci_pool_destroy(loci_host *host)
{
    if (host && host->run == run) *host = (loci_host){ 0 };
}
