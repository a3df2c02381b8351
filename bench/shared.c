/* SPDX-License-Identifier: MIT */
/* shared.c -- decode of sequences that begin alike, one thread: with keys of their own, and as forks
 * of one sequence, which share them.
 *
 *     cmake --build build --target shared_keys && build/shared_keys
 *
 * A line for each shape: the median of ROUNDS ratios of neighbouring calls, time apart divided by
 * time shared, with its quartiles. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "loci/cache.h"

enum { DIM = 128, MOST = 16, ROUNDS = 31 };
static loci_error error;

static void need(loci_status status)
{
    if (!status) return;
    fprintf(stderr, "shared_keys: %s\n", error.text);
    exit(1);
}
static void *take(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) exit(1);
    return p;
}
static float *numbers(ptrdiff_t count)
{
    float *x = take((size_t)count * sizeof *x);
    for (ptrdiff_t i = 0; i < count; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return x;
}
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(ptrdiff_t batch, ptrdiff_t keys, int heads, int kv_heads)
{
    loci_plan *plan;
    const loci_desc d = LOCI_DESC(.heads = heads, .kv_heads = kv_heads, .dim = DIM);
    need(loci_plan_create(&plan, &d, &error));
    void *tables = take(loci_tables_size(plan, keys + 1)), *memory[2], *work[2];
    need(loci_prepare(plan, keys + 1, NULL, tables));
    float *k = numbers(batch * kv_heads * keys * DIM), *q = numbers(batch * heads * DIM),
          *o = numbers(batch * heads * DIM);
    loci_call call[2];
    for (int forks = 0; forks < 2; forks++) {
        loci_cache *cache;
        int64_t lens[MOST] = { 0 };
        memory[forks] = take(loci_cache_size(plan, batch, keys + 1));
        need(loci_cache_create(&cache, plan, batch, keys + 1, 0, memory[forks], &error));
        loci_call *c = &call[forks];
        *c = (loci_call)LOCI_CALL(.batch = batch, .q_len = 1, .k_len = keys, .q.data = q,
                                  .k.data = k, .v.data = k, .o.data = o, .cache = cache,
                                  .k_lens = lens, .error = &error);
        work[forks] = take(loci_workspace(plan, c, 0));
        for (ptrdiff_t b = 0; b < batch; b++) lens[b] = forks && b ? 0 : keys;
        need(loci_cache_append(plan, tables, work[forks], cache, c));
        for (ptrdiff_t b = 1; forks && b < batch; b++)
            need(loci_cache_fork(plan, tables, work[forks], cache, 0, b, keys, c));
        c->k_len = 1;
        c->k_lens = NULL;
        need(loci_cache_append(plan, tables, work[forks], cache, c));
    }
    double ratio[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        double t[3];
        for (int forks = 0; forks < 2; forks++) {
            t[forks] = now();
            need(loci_forward(plan, tables, work[forks], &call[forks]));
        }
        t[2] = now();
        ratio[i] = (t[1] - t[0]) / (t[2] - t[1]);
    }
    qsort(ratio, ROUNDS, sizeof *ratio, by_size);
    printf("%2td sequences, %5td keys, %2d heads on %d: %.2f (%.2f to %.2f)\n", batch, keys, heads,
           kv_heads, ratio[ROUNDS / 2], ratio[ROUNDS / 4], ratio[3 * ROUNDS / 4]);
    loci_plan_destroy(plan);
    void *const all[] = { tables, memory[0], memory[1], work[0], work[1], k, q, o };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

int main(void)
{
    measure(2, 8192, 4, 4);
    measure(8, 8192, 4, 4);
    measure(16, 1024, 4, 4);
    measure(8, 8192, 16, 4);
    return 0;
}
