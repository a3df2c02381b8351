/* SPDX-License-Identifier: MIT */
/* lab_clock.c -- the lab under clocks that step back: seconds never fall, and a claim keeps
 * recording the progress of its run.  A claim that is not touched for ten minutes is replaced. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lab/clock.h"
#include "lab/store.h"
#include "harness.h"

/* Replaces the system's: a clock of whole seconds. */
static time_t clock_seconds;
int clock_gettime(clockid_t id, struct timespec *t)
{
    (void)id;
    *t = (struct timespec){ .tv_sec = clock_seconds };
    return 0;
}

static const struct {
    int read, passed;
} list[] = { { 1000, 0 }, { 1003, 3 }, { 50, 3 }, { 51, 4 }, { 10, 4 }, { 30, 24 }, { 30, 24 } };
static void *read_elsewhere(void *seconds)
{
    *(double *)seconds = lab_seconds();
    return NULL;
}
static void never_falls(void)
{
    clock_seconds = list[0].read;
    const double start = lab_seconds();
    for (int i = 0; i < (int)(sizeof list / sizeof *list); i++) {
        clock_seconds = list[i].read;
        /* another thread may be the first that sees a step */
        pthread_t other;
        double seconds = 0;
        if (pthread_create(&other, NULL, read_elsewhere, &seconds) || pthread_join(other, NULL))
            exit(2);
        CHECK_CLOSE(seconds - start, list[i].passed, 1e-9, "another thread at %d s", list[i].read);
        CHECK_CLOSE(lab_seconds() - start, list[i].passed, 1e-9, "at %d s", list[i].read);
    }
}

/* The step that the claim records, or -1. */
static int step_of(int fd)
{
    char line[256] = "", host[64];
    long pid;
    int step = -1;
    if (pread(fd, line, sizeof line - 1, 0) < 1
        || sscanf(line, "%63s %ld %d", host, &pid, &step) != 3)
        return -1;
    return step;
}
static void claims_go_on(void)
{
    FILE *f = tmpfile();
    if (!f) exit(2);
    struct lab_claim c = { .fd = fileno(f) };
    clock_seconds = 5000;
    lab_claim_tell(&c, 1, 100, 0.5);
    CHECK_THAT(step_of(c.fd) == 1, "the first step is told");
    clock_seconds = 5001;
    lab_claim_tell(&c, 2, 100, 0.5);
    CHECK_THAT(step_of(c.fd) == 1, "no more than every two seconds");
    clock_seconds = 100; /* 4901 seconds back */
    lab_claim_tell(&c, 3, 100, 0.5);
    clock_seconds = 103;
    lab_claim_tell(&c, 4, 100, 0.5);
    CHECK_THAT(step_of(c.fd) == 4, "three seconds after a clock stepped back, step %d is told",
               step_of(c.fd));
    fclose(f);
}

int main(void)
{
    never_falls();
    claims_go_on();
    return harness_end();
}
