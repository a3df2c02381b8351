/* SPDX-License-Identifier: MIT */
/* clock.c -- see platform/clock.h. */
#define _DEFAULT_SOURCE
#include "platform/clock.h"

#include <time.h>

static double seconds(const struct timespec *t)
{
    return (double)t->tv_sec + 1e-9 * (double)t->tv_nsec;
}
static double read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return seconds(&t);
}
double loci_clock_utc(void) { return read_clock(CLOCK_REALTIME); }
double loci_clock_steady(void) { return read_clock(CLOCK_MONOTONIC); }
#if defined CLOCK_THREAD_CPUTIME_ID && !defined __wasi__
double loci_clock_thread(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }
double loci_clock_process(void) { return read_clock(CLOCK_PROCESS_CPUTIME_ID); }
#else
double loci_clock_thread(void) { return loci_clock_steady(); }
double loci_clock_process(void) { return loci_clock_steady(); }
#endif
