/* SPDX-License-Identifier: MIT */
/* memory.c -- when memory runs out: every allocation of the library fails once, and so does every
 * thread that a pool starts; nothing leaks, and the status says so.  The sources are compiled into
 * this test with functions that count. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counted.h"
#include "harness.h"

static int counted_thread(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *),
                          void *arg)
{
    return left-- == 0 ? -1 : pthread_create(thread, how, run, arg);
}
#define pthread_create counted_thread
#include <plan/parse.c>
#include <plan/plan.c>
#include <base/pool.c>

int main(void)
{
    static const char *const good[] = { "nope", "rope:pairing=half+t5+alibi+cape", "shaw+sba",
        ("rope:pairing=half,scaling=longrope,factor=2,original_length=64,short=1/1/1/1,"
         "long=2/2/2/2+fire") };
    static const char *const bad[] = { "t5:bucket=3", "rope", "rope:pairing=half+rope:pairing=half",
                                       "alibi+sba+zzz" };
    for (int i = 0; i < COUNT(good); i++)
        for (int n = 0; n < 20; n++) {
            loci_desc d = { .encoding = good[i], .heads = 4, .dim = 8, .isa = "scalar" };
            loci_error e = { 0 };
            loci_plan *p = (loci_plan *)&d;
            left = n;
            loci_status status = loci_plan_create(&p, &d, &e);
            bool ran_out = left < 0;
            bool ok = ran_out ? status == LOCI_NO_MEMORY && !p && strstr(e.text, "memory") : status
                == LOCI_OK && p;
            loci_plan_destroy(p);
            ok = ok && live == 0;
            CHECK_THAT(ok, "%s, failing at %d: status %d, %d blocks left", good[i], n, status,
                       live);
        }
    for (int i = 0; i < COUNT(bad); i++) {
        loci_desc d = { .encoding = bad[i], .heads = 4, .dim = 8, .isa = "scalar" };
        loci_plan *p;
        left = -1;
        bool ok = loci_plan_create(&p, &d, NULL) == LOCI_BAD_ARG && !p && live == 0;
        CHECK_THAT(ok, "%s, %d blocks left", bad[i], live);
    }
    for (int n = 0; n < 6; n++) {
        loci_host host = { 0 };
        left = n;
        const loci_status status = loci_pool_create(&host, 4);
        const bool ran_out = left < 0, ok = (status == LOCI_NO_MEMORY) == ran_out
            && (ran_out ? !host.user : status == LOCI_OK);
        loci_pool_destroy(&host);
        CHECK_THAT(ok && live == 0, "a pool, failing at %d: status %d, %d blocks left", n, status,
                   live);
    }
    return harness_end();
}
