/* SPDX-License-Identifier: MIT */
/* rounds.c -- which rounds of a measurement count, for invented machines. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/rounds.h"
#include "harness.h"

static struct rounds begun(bool apart)
{
    struct rounds r = { .wanted = 5, .tolerance = 0.04, .apart = apart };
    rounds_open(&r);
    return r;
}

/* A round with these probes, whose calls lasted 2 and 1 seconds. */
static struct pair probed(double a, double b, double c, double d)
{
    return (struct pair){ { 2, a, b, 0, 0 }, { 1, c, d, 0, 0 } };
}
static struct pair all(double probe) { return probed(probe, probe, probe, probe); }

static double mine(const struct pair *p, const void *times)
{
    return p->mine.seconds * *(const double *)times;
}
static double median_of(const struct rounds *r) { return rounds_at(r, mine, &(double){ 1 }, 0.5); }

static void quiet(void)
{
    struct rounds r = begun(false);
    CHECK_THAT(isnan(median_of(&r)), "without rounds there is no median: %g", median_of(&r));
    for (int i = 0; i < 5; i++) {
        CHECK_THAT(rounds_due(&r), "round %d of 5", i);
        rounds_add(&r, all(i % 2 ? 100 : 97));
    }
    CHECK_THAT(!rounds_due(&r) && r.made == 5, "five are enough: %d", r.made);
    CHECK_THAT(rounds_counted(&r) == 5, "all count: %d", rounds_counted(&r));
    rounds_close(&r);
}

/* Any one of the probes, and any time lost to another process. */
static void disturbed(void)
{
    struct rounds r = begun(false);
    struct pair p = all(100);
    rounds_add(&r, p);
    rounds_add(&r, probed(95, 100, 100, 100));
    rounds_add(&r, probed(100, 95, 100, 100));
    rounds_add(&r, probed(100, 100, 95, 100));
    rounds_add(&r, probed(100, 100, 100, 95));
    p.mine.taken = 0.1;
    rounds_add(&r, p);
    p.mine.taken = 0;
    p.other.taken = 0.1;
    rounds_add(&r, p);
    p.other.taken = 0.001;
    rounds_add(&r, p);
    for (int i = 0; i < r.made; i++)
        CHECK_THAT(rounds_count(&r, i) == (i == 0 || i == 7), "round %d", i);
    rounds_close(&r);
}

/* A row that looked undisturbed before the machine showed its full speed. */
static void better_later(void)
{
    struct rounds r = begun(false);
    for (int i = 0; i < 4; i++) rounds_add(&r, all(50));
    CHECK_THAT(rounds_counted(&r) == 4, "four count: %d", rounds_counted(&r));
    rounds_add(&r, probed(50, 50, 50, 100));
    CHECK_THAT(rounds_counted(&r) == 0, "none does any more: %d", rounds_counted(&r));
    CHECK_THAT(isnan(median_of(&r)), "and there is no figure: %g", median_of(&r));
    while (rounds_due(&r)) rounds_add(&r, all(50));
    CHECK_THAT(r.made == 50, "patience ends: %d", r.made);

    rounds_row(&r);
    rounds_add(&r, all(50));
    CHECK_THAT(r.made == 1 && !rounds_counted(&r), "the next row knows it: %d", r.made);
    rounds_row(&r);
    rounds_forget(&r);
    rounds_add(&r, all(50));
    CHECK_THAT(rounds_counted(&r) == 1, "another limit: %d", rounds_counted(&r));
    rounds_close(&r);
}

/* Two programs may have different probe speeds. */
static void apart(void)
{
    for (int i = 0; i < 2; i++) {
        struct rounds r = begun(i);
        rounds_add(&r, probed(100, 100, 50, 50));
        CHECK_THAT(rounds_counted(&r) == i, "apart %d: %d", i, rounds_counted(&r));
        rounds_add(&r, probed(100, 100, 50, 40));
        rounds_add(&r, probed(90, 100, 50, 50));
        CHECK_THAT(rounds_counted(&r) == i, "apart %d: %d", i, rounds_counted(&r));
        rounds_close(&r);
    }
}

static void figures(void)
{
    struct rounds r = begun(false);
    const double one = 1, ten = 10;
    for (int i = 0; i < 6; i++) {
        struct pair p = all(i == 2 ? 10 : 100);
        p.mine.seconds = i == 2 ? 1000 : i; /* 0 1 3 4 5 count */
        rounds_add(&r, p);
    }
    CHECK_CLOSE(rounds_at(&r, mine, &one, 0), 0, 0, "the least");
    CHECK_CLOSE(rounds_at(&r, mine, &one, 0.25), 1, 0, "a quarter");
    CHECK_CLOSE(rounds_at(&r, mine, &ten, 0.5), 30, 0, "the median, in another unit");
    CHECK_CLOSE(rounds_at(&r, mine, &one, 0.75), 4, 0, "three quarters");
    CHECK_CLOSE(rounds_at(&r, mine, &one, 1), 5, 0, "the largest");
    rounds_add(&r, (struct pair){ { 10, 100, 100, 0, 0 }, { NAN, 100, 100, 0, 0 } });
    CHECK_CLOSE(rounds_at(&r, mine, &one, 0.5), 3.5, 0, "of six, one without another side");
    rounds_close(&r);
}

#ifndef _WIN32 /* whose clock is another function */
/* Replaces the system's: a clock of whole seconds. */
static time_t clock_seconds;
int clock_gettime(clockid_t id, struct timespec *t)
{
    (void)id;
    *t = (struct timespec){ .tv_sec = clock_seconds };
    return 0;
}

/* A clock that steps back, as some virtual machines' do: no time is negative, and it advances
 * again. */
static void backward_clock(void)
{
    static const struct {
        int read, passed;
    } list[] = { { 100, 0 }, { 103, 3 }, { 50, 3 }, { 51, 4 }, { 10, 4 }, { 30, 24 }, { 30, 24 } };
    clock_seconds = list[0].read;
    const double start = now();
    for (int i = 0; i < (int)(sizeof list / sizeof *list); i++) {
        clock_seconds = list[i].read;
        CHECK_CLOSE(now() - start, list[i].passed, 1e-9, "at %d s", list[i].read);
    }
}
#endif

int main(void)
{
#ifndef _WIN32
    backward_clock();
#endif
    quiet();
    disturbed();
    better_later();
    apart();
    figures();
    return harness_end();
}
