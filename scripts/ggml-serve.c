/* SPDX-License-Identifier: MIT */
/* ggml-serve.c -- ggml's flash attention behind the protocol of `loci bench --against`.  It opens
 * the problem that its arguments name and makes a call for every line that it reads, as `loci bench
 * --serve` does (tools/cli/serve.h). scripts/against-ggml builds and calls it.
 *
 * ggml has a causal order only through a mask, which is made beforehand.  Its threads are not
 * used. */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-cpu.h"
#include "ggml.h"

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Multiply-adds per second in registers, times two, with the lanes that this is compiled for. */
typedef float lanes __attribute__((vector_size(64)));
static double probe(void)
{
    enum { CHAINS = 12, STEPS = 300000, LANES = sizeof(lanes) / sizeof(float) };
    lanes x[CHAINS], a = { 0 }, sum = { 0 };
    a += 0.5f;
    for (int i = 0; i < CHAINS; i++) x[i] = a * (float)i;
    const double start = seconds();
    for (int n = 0; n < STEPS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) x[i] = x[i] * a + a;
    const double time = seconds() - start;
    for (int i = 0; i < CHAINS; i++) sum += x[i];
    __asm__ volatile("" : : "m"(sum)); /* keeps the loop */
    return 2.0 * CHAINS * STEPS * LANES / time;
}

struct problem {
    const char *dtype;
    int dim, heads;
    long len;
};

/* Options that are not given have no meaning here, or are defaults of loci. */
static struct problem read_arguments(int argc, char **argv)
{
    struct problem p = { .dtype = "f32" };
    if (argc < 3 || strcmp(argv[2], "nope")) {
        fputs("ggml-serve knows nope alone\n", stderr);
        exit(2);
    }
    for (int i = 3; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--serve")) continue;
        const char *value = ++i < argc ? argv[i] : "";
        if (!strcmp(name, "--dim")) p.dim = atoi(value);
        else if (!strcmp(name, "--heads")) p.heads = atoi(value);
        else if (!strcmp(name, "--len")) p.len = atol(value);
        else if (!strcmp(name, "--dtype")) p.dtype = value;
        else if ((!strcmp(name, "--pass") && strcmp(value, "forward"))
                 || ((!strcmp(name, "--batch") || !strcmp(name, "--threads"))
                     && atoi(value) != 1)) {
            fprintf(stderr,
                    "ggml-serve makes forward passes of one batch and one thread, not %s %s\n",
                    name, value);
            exit(2);
        }
    }
    return p;
}

static struct ggml_tensor *numbers(struct ggml_context *c, enum ggml_type type,
                                   const struct problem *p)
{
    struct ggml_tensor *x = ggml_new_tensor_3d(c, type, p->dim, p->len, p->heads);
    for (int64_t i = 0; i < ggml_nelements(x); i++) {
        const float number = (float)rand() / (float)RAND_MAX * 2 - 1;
        if (type == GGML_TYPE_F16) ((ggml_fp16_t *)x->data)[i] = ggml_fp32_to_fp16(number);
        else ((float *)x->data)[i] = number;
    }
    return x;
}
static struct ggml_cgraph *make_graph(const struct problem *p)
{
    const enum ggml_type stored = strcmp(p->dtype, "f16") ? GGML_TYPE_F32 : GGML_TYPE_F16;
    const size_t rows = (size_t)p->len * (size_t)p->heads * (size_t)p->dim * 4 * sizeof(float),
                 mask = (size_t)p->len * (size_t)p->len * sizeof(ggml_fp16_t);
    struct ggml_context *c =
        ggml_init((struct ggml_init_params){ .mem_size = rows + mask + (1 << 22) });
    struct ggml_tensor *q = numbers(c, GGML_TYPE_F32, p), *k = numbers(c, stored, p),
                       *v = numbers(c, stored, p),
                       *m = ggml_new_tensor_2d(c, GGML_TYPE_F16, p->len, p->len);
    for (long i = 0; i < p->len; i++)
        for (long j = 0; j < p->len; j++)
            ((ggml_fp16_t *)m->data)[i * p->len + j] = ggml_fp32_to_fp16(j <= i ? 0 : -INFINITY);
    struct ggml_tensor *o = ggml_flash_attn_ext(c, q, k, v, m, 1 / sqrtf((float)p->dim), 0, 0);
    ggml_flash_attn_ext_set_prec(o, GGML_PREC_F32);
    struct ggml_cgraph *graph = ggml_new_graph(c);
    ggml_build_forward_expand(graph, o);
    return graph;
}

int main(int argc, char **argv)
{
    const struct problem p = read_arguments(argc, argv);
    struct ggml_cgraph *graph = make_graph(&p);
    struct ggml_cplan plan = ggml_graph_plan(graph, 1, NULL);
    plan.work_data = malloc(plan.work_size + 64);
    ggml_graph_compute(graph, &plan);
    printf("{\"serve\":1,\"loci\":\"ggml\",\"steps\":1,\"workspace_bytes\":%zu}\n", plan.work_size);
    fflush(stdout);
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        const int steps = atoi(line);
        const double before = probe(), start = seconds();
        for (int i = 0; i < steps; i++) ggml_graph_compute(graph, &plan);
        const double time = seconds() - start, after = probe();
        printf("{\"seconds\":%.9g,\"before\":%.9g,\"after\":%.9g,\"flops\":%.9g,\"taken\":0.0}\n",
               time / steps, before, after, after);
        fflush(stdout);
    }
    return 0;
}
