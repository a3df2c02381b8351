/* SPDX-License-Identifier: MIT */
/* clock.c -- see clock.h. */
#define _POSIX_C_SOURCE 200809L

#include "lab/clock.h"

#include <pthread.h>
#include <time.h>

/* One clock for all threads: what one of them told, another compares with. */
double lab_seconds(void)
{
    static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
    static double last, lost;
    struct timespec t;
    pthread_mutex_lock(&reading);
    clock_gettime(CLOCK_MONOTONIC, &t);
    const double read = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec + lost;
    if (read < last) lost += last - read;
    else last = read;
    const double seconds = last;
    pthread_mutex_unlock(&reading);
    return seconds;
}
