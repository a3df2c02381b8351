/* SPDX-License-Identifier: MIT */
/* gpu.c -- what attention reaches on a device, beside what the device can do.
 *
 *     gpu_bench [device] [text ...]
 *
 * Rates are those of useful multiply-adds, counted as two operations: 4 B H Lq Lk D in a forward
 * pass and 10 in a backward pass, half of them if causal.  Those of decode are bytes of keys and
 * values, beside a copy's bytes read and written.  Times are the device's own; the median of five.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/gpu.h"

enum { REPEATS = 5 };

static loci_error e;
static void need(loci_status status, const char *what)
{
    if (!status) return;
    fprintf(stderr, "%s: %s\n", what, e.text);
    exit(1);
}
static float *numbers(size_t n, unsigned seed)
{
    float *x = malloc(n * sizeof *x);
    if (!x) exit(1);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int)(seed >> 8) / 8388608.0f - 1;
    }
    return x;
}
static void *there(loci_gpu *gpu, size_t bytes, const void *from)
{
    void *at;
    need(loci_gpu_alloc(gpu, bytes, &at, &e), "memory");
    if (from) need(loci_gpu_copy(gpu, at, from, bytes, LOCI_GPU_UPLOAD, &e), "upload");
    return at;
}
static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct problem {
    int batch, heads, kv_heads, dim;
    ptrdiff_t q_len, k_len;
    bool full;
};
static size_t count_of(const loci_tensor *t, const struct problem *s)
{
    size_t n = 1;
    for (int k = 0; k < t->rank; k++)
        n *= (size_t)(t->shape[k] == LOCI_DIM_BATCH     ? s->batch
                      : t->shape[k] == LOCI_DIM_QUERIES ? s->q_len
                      : t->shape[k] == LOCI_DIM_KEYS    ? s->k_len
                                                        : t->shape[k]);
    return n;
}
static void measure(loci_gpu *gpu, const char *text, const struct problem *s, double peak,
                    double copies)
{
    loci_plan *plan;
    loci_gpu_plan *there_plan;
    const loci_desc d = LOCI_DESC(.encoding = text, .heads = s->heads, .kv_heads = s->kv_heads,
                                  .dim = s->dim, .full = s->full);
    const loci_status made = loci_plan_create(&plan, &d, &e);
    if (made && s->full) { /* a causal encoding */
        printf("%s: %s\n", text, e.text);
        return;
    }
    need(made, text);
    need(loci_gpu_plan_create(&there_plan, gpu, plan, &e), text);
    const size_t rows = (size_t)(s->batch * s->heads) * (size_t)s->q_len,
                 keys = (size_t)(s->batch * s->kv_heads) * (size_t)s->k_len, D = (size_t)s->dim,
                 F = sizeof(float);
    loci_tensor list[32];
    void *data[32] = { 0 };
    const int n = loci_tensors(plan, list, 32);
    const void *inputs[32] = { 0 };
    for (int i = 0; i < n; i++) {
        const size_t count = count_of(&list[i], s);
        data[i] = numbers(count, 2);
        if (list[i].role == LOCI_INPUT) { /* as gates are: logarithms of numbers below 1 */
            for (size_t k = 0; k < count; k++) ((float *)data[i])[k] *= -0.01f;
            inputs[i] = there(gpu, count * F, data[i]);
        } else {
            loci_tensor_init(plan, i, 1, data[i]);
        }
    }
    const size_t table_bytes = loci_tables_size(plan, s->k_len);
    void *tables = aligned_alloc(64, (table_bytes + 63) / 64 * 64);
    need(loci_prepare(plan, s->k_len, (const void *const *)data, tables), "prepare");
    const loci_gpu_tables both = { tables, there(gpu, table_bytes, tables) };
    float *x = numbers((rows > keys ? rows : keys) * D, 1);
    loci_call c = LOCI_CALL(.batch = s->batch, .q_len = s->q_len, .k_len = s->k_len, .error = &e);
    c.tensors = inputs;
    c.q.data = there(gpu, rows * D * F, x);
    c.k.data = there(gpu, keys * D * F, x);
    c.v.data = there(gpu, keys * D * F, x);
    c.o.data = there(gpu, rows * D * F, NULL);
    c.lse = there(gpu, rows * F, NULL);
    loci_grad g = LOCI_GRAD(.dout.data = there(gpu, rows * D * F, x));
    g.dq.data = there(gpu, rows * D * F, NULL);
    g.dk.data = there(gpu, keys * D * F, NULL);
    g.dv.data = there(gpu, keys * D * F, NULL);
    void *work = there(gpu, loci_gpu_workspace(there_plan, &c, 1), NULL);
    const bool decode = s->q_len == 1;
    const double pairs = (double)s->batch * s->heads * (double)s->q_len * (double)s->k_len
                       * (s->full || decode ? 1 : 0.5) * s->dim;
    double seconds[2][REPEATS];
    for (int i = -1; i < REPEATS; i++)
        for (int back = 0; back < 2 - decode; back++) {
            double t;
            need(loci_gpu_clock_start(gpu, &e), "clock");
            need(back ? loci_gpu_backward(there_plan, &both, work, &c, &g)
                      : loci_gpu_forward(there_plan, &both, work, &c),
                 text);
            need(loci_gpu_clock_stop(gpu, &t, &e), "clock");
            if (i >= 0) seconds[back][i] = t;
        }
    for (int back = 0; back < 2 - decode; back++)
        qsort(seconds[back], REPEATS, sizeof(double), by_size);
    printf("%-24s B %2d H %2d/%-2d D %3d rows %5td keys %6td %s  forward %8.3f ms", text, s->batch,
           s->heads, s->kv_heads, s->dim, s->q_len, s->k_len, s->full ? "full  " : "causal",
           seconds[0][REPEATS / 2] * 1e3);
    if (decode) {
        const double rate = 2 * (double)(keys * D * F) / seconds[0][REPEATS / 2];
        printf(" %6.0f GB/s of keys and values %4.1f %%\n", rate * 1e-9, 100 * rate / copies);
    } else {
        const double forward = 4 * pairs / seconds[0][REPEATS / 2],
                     backward = 10 * pairs / seconds[1][REPEATS / 2];
        printf(" %6.2f TFLOP/s %4.1f %%  backward %8.3f ms %6.2f TFLOP/s %4.1f %%\n",
               forward * 1e-12, 100 * forward / peak, seconds[1][REPEATS / 2] * 1e3,
               backward * 1e-12, 100 * backward / peak);
    }
    fflush(stdout);
    void *const all[] = { (void *)both.device, c.q.data,  c.k.data,  c.v.data,  c.o.data, c.lse,
                          (void *)g.dout.data, g.dq.data, g.dk.data, g.dv.data, work };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) loci_gpu_free(gpu, all[i]);
    free(x);
    free(tables);
    for (int i = 0; i < n; i++) {
        loci_gpu_free(gpu, (void *)inputs[i]);
        free(data[i]);
    }
    loci_gpu_plan_destroy(there_plan);
    loci_plan_destroy(plan);
}
int main(int argc, char **argv)
{
    static const char *const chief[] = { "nope", "alibi", "t5:bidirectional=1", "rope:pairing=half",
                                         "fox" };
    static const struct problem problems[] = {
        { 1, 16, 16, 64, 8192, 8192, false }, { 1, 16, 16, 128, 8192, 8192, false },
        { 1, 16, 16, 64, 4096, 4096, true },  { 1, 16, 16, 128, 4096, 4096, true },
        { 4, 16, 4, 128, 2048, 2048, false }, { 16, 16, 16, 64, 512, 512, false },
        { 4, 32, 8, 128, 1, 16384, false },   { 1, 32, 32, 128, 1, 65536, false },
    };
    const char *few = getenv("LOCI_PROBLEMS"); /* so many of the problems */
    const size_t most = few ? (size_t)atoi(few) : sizeof problems / sizeof *problems;
    loci_gpu *gpu;
    double flops, bytes;
    need(loci_gpu_open(&gpu, argc > 1 ? argv[1] : NULL, &e), "device");
    const loci_gpu_info info = loci_gpu_describe(gpu);
    need(loci_gpu_peaks(gpu, &flops, &bytes, &e), "peaks");
    printf("%s: %s, %s\nprobed: %.1f TFLOP/s of float32 multiply-adds, %.0f GB/s copied\n", info.id,
           info.name, info.driver, flops * 1e-12, bytes * 1e-9);
    const int texts = argc > 2 ? argc - 2 : (int)(sizeof chief / sizeof *chief);
    for (int i = 0; i < texts; i++)
        for (size_t k = 0; k < most; k++)
            measure(gpu, argc > 2 ? argv[2 + i] : chief[i], &problems[k], flops, bytes);
    loci_gpu_close(gpu);
    return 0;
}
