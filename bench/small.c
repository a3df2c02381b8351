/* SPDX-License-Identifier: MIT */
/* small.c -- how long a call takes when there is hardly anything to compute: one row of q, 8 heads
 * of 64, few keys that the last call left in the caches, one thread, no host.
 *
 *     cmake --build build --target small_calls && chrt -f 20 taskset -c 1 build/small_calls
 *
 * Each figure is the least mean of BATCHES batches of CALLS calls, in microseconds: what a machine
 * with neighbours still does undisturbed now and then.  Builds are compared by turns. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "loci/cache.h"

enum { HEADS = 8, DIM = 64, MOST = 4096, BATCHES = 200, CALLS = 500 };

static float q[HEADS * DIM], k[HEADS * MOST * DIM], v[HEADS * MOST * DIM], o[HEADS * DIM],
    lse[HEADS], learned[1 << 16];
static loci_error error;

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}
static void need(loci_status status)
{
    if (!status) return;
    fprintf(stderr, "small_calls: %s\n", error.text);
    exit(1);
}
static void *take(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) exit(1);
    return p;
}

/* A plan with its tables, and a call of one row. */
struct small {
    loci_plan *plan;
    void *tables, *work;
    loci_cache *cache;
    loci_call call;
};

static void forward(struct small *s) { need(loci_forward(s->plan, s->tables, s->work, &s->call)); }
/* The next token, which takes the place of the last one. */
static void decode(struct small *s)
{
    need(loci_cache_truncate(s->cache, 0, loci_cache_length(s->cache, 0) - 1, &error));
    need(loci_cache_append(s->plan, s->tables, s->work, s->cache, &s->call));
    forward(s);
}
static void measure(struct small *s)
{
    if (!loci_workspace(s->plan, &s->call, 0)) exit(1);
}

static struct small open_small(const char *encoding, ptrdiff_t len, int cached)
{
    static const void *const tensors[32] = { learned, learned, learned, learned };
    const loci_desc d =
        LOCI_DESC(.encoding = encoding, .heads = HEADS, .dim = DIM, .keys_rotated = cached);
    struct small s = { .call = LOCI_CALL(.batch = 1, .q_len = 1, .k_len = len, .q.data = q,
                                         .k.data = k, .v.data = v, .o.data = o, .lse = lse,
                                         .tensors = tensors, .error = &error) };
    need(loci_plan_create(&s.plan, &d, &error));
    s.tables = take(loci_tables_size(s.plan, len));
    need(loci_prepare(s.plan, len, tensors, s.tables));
    if (cached)
        need(loci_cache_create(&s.cache, s.plan, 1, len, 0, take(loci_cache_size(s.plan, 1, len)),
                               &error));
    s.call.cache = s.cache;
    s.work = take(loci_workspace(s.plan, &s.call, 0));
    if (cached) need(loci_cache_append(s.plan, s.tables, s.work, s.cache, &s.call));
    if (cached) s.call.k_len = 1;
    return s;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}
static double least(struct small *s, void (*call)(struct small *))
{
    double best = 0;
    for (int b = 0; b < BATCHES; b++) {
        const double start = now();
        for (int i = 0; i < CALLS; i++) call(s);
        const double mean = (now() - start) / CALLS;
        if (!b || mean < best) best = mean;
    }
    return best;
}

static void row(const char *encoding, ptrdiff_t len)
{
    struct small s = open_small(encoding, len, 0), c = open_small(encoding, len, 1);
    printf("%-24s %5td %9.2f %18.2f %11.2f %14.2f\n", encoding, len, least(&s, forward),
           least(&c, decode), least(&s, measure), least(&c, measure));
}

int main(int argc, char **argv)
{
    static const char *const usual[] = { "nope", "rope:pairing=half", "t5", "alibi" };
    static const ptrdiff_t lens[] = { 16, 128 };
    const int n = argc > 1 ? argc - 1 : (int)(sizeof usual / sizeof *usual);
    fill(q, sizeof q / sizeof *q);
    fill(k, sizeof k / sizeof *k);
    fill(v, sizeof v / sizeof *v);
    fill(learned, sizeof learned / sizeof *learned);
    printf("%-24s %5s %9s %18s %11s %14s\n", "us a call", "len", "forward", "append + forward",
           "workspace", "- with a cache");
    for (int i = 0; i < n; i++)
        for (int l = 0; l < 2; l++) row(argc > 1 ? argv[i + 1] : usual[i], lens[l]);
    return 0;
}
