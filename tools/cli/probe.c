/* SPDX-License-Identifier: MIT */
/* probe.c -- see probe.h.
 *
 * Functions for an instruction set have it as an attribute, so the file needs no flags of its own.
 * They are called only for the instruction set that the library uses.  Twelve independent chains
 * cover a latency of four cycles on two pipes with margin, and fit into 16 registers with both
 * factors.  The sum of the results prevents the compiler from dropping any. */

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "platform/clock.h"
#include "platform/system.h"
#include "cli/cli.h"
#include "cli/probe.h"

#if defined __x86_64__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#endif

enum { MAX_THREADS = 256, CHAINS = 12, STEPS = 5000 };
/* Pieces per thread, so that a late thread costs little: of multiply-adds, and of memory, where
 * pieces must not be small. */
enum { FLOP_JOBS = 64, JOBS = 8 };

/* ---- Multiply-adds: x = x a + b, which converges to 1 ---------------------------------------- */

typedef float four __attribute__((vector_size(16)));

/* The compiler's baseline: a multiplication and an addition of four lanes. */
static float flops_base(float a, float b)
{
    four x[CHAINS], va = { a, a, a, a }, vb = { b, b, b, b }, sum = { 0 };
    for (int i = 0; i < CHAINS; i++) x[i] = vb * (float)i;
    for (int n = 0; n < STEPS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) x[i] = x[i] * va + vb;
    for (int i = 0; i < CHAINS; i++) sum += x[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* Eight sums, so that additions wait for memory only, not for each other. */
static float read_base(const float *p, size_t n)
{
    four s[8] = { { 0 } }, v;
    for (size_t k = 0; k + 32 <= n; k += 32)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            memcpy(&v, p + k + 4 * i, sizeof v);
            s[i] += v;
        }
    four t = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
    return t[0] + t[1] + t[2] + t[3];
}

#if defined __x86_64__
__attribute__((target("avx512f"))) static float flops_avx512(float a, float b)
{
    __m512 x[CHAINS], va = _mm512_set1_ps(a), vb = _mm512_set1_ps(b), sum = vb;
    for (int i = 0; i < CHAINS; i++) x[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < STEPS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) x[i] = _mm512_fmadd_ps(x[i], va, vb);
    for (int i = 0; i < CHAINS; i++) sum = _mm512_add_ps(sum, x[i]);
    return _mm512_cvtss_f32(sum);
}

/* Two products of bf16 numbers in each lane. */
__attribute__((target("avx512f,avx512bf16"))) static float flops_dots(float a, float b)
{
    __m512 x[CHAINS], sum = _mm512_setzero_ps();
    const __m512bh va = (__m512bh)_mm512_castps_si512(_mm512_set1_ps(a)),
                   vb = (__m512bh)_mm512_castps_si512(_mm512_set1_ps(b));
    for (int i = 0; i < CHAINS; i++) x[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < STEPS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) x[i] = _mm512_dpbf16_ps(x[i], va, vb);
    for (int i = 0; i < CHAINS; i++) sum = _mm512_add_ps(sum, x[i]);
    return _mm512_cvtss_f32(sum);
}

__attribute__((target("avx512f"))) static float read_avx512(const float *p, size_t n)
{
    __m512 s[8], t = _mm512_setzero_ps();
    for (int i = 0; i < 8; i++) s[i] = t;
    for (size_t k = 0; k + 128 <= n; k += 128)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) s[i] = _mm512_add_ps(s[i], _mm512_loadu_ps(p + k + 16 * i));
    for (int i = 0; i < 8; i++) t = _mm512_add_ps(t, s[i]);
    return _mm512_cvtss_f32(t);
}

__attribute__((target("avx2,fma"))) static float flops_avx2(float a, float b)
{
    __m256 x[CHAINS], va = _mm256_set1_ps(a), vb = _mm256_set1_ps(b), sum = vb;
    for (int i = 0; i < CHAINS; i++) x[i] = _mm256_set1_ps((float)i);
    for (int n = 0; n < STEPS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) x[i] = _mm256_fmadd_ps(x[i], va, vb);
    for (int i = 0; i < CHAINS; i++) sum = _mm256_add_ps(sum, x[i]);
    return _mm256_cvtss_f32(sum);
}

__attribute__((target("avx2,fma"))) static float read_avx2(const float *p, size_t n)
{
    __m256 s[8], t = _mm256_setzero_ps();
    for (int i = 0; i < 8; i++) s[i] = t;
    for (size_t k = 0; k + 64 <= n; k += 64)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) s[i] = _mm256_add_ps(s[i], _mm256_loadu_ps(p + k + 8 * i));
    for (int i = 0; i < 8; i++) t = _mm256_add_ps(t, s[i]);
    return _mm256_cvtss_f32(t);
}
#elif defined __aarch64__
enum { NEON_CHAINS = 24 }; /* up to four pipes, and 32 registers */
static float flops_neon(float a, float b)
{
    float32x4_t x[NEON_CHAINS], va = vdupq_n_f32(a), vb = vdupq_n_f32(b), sum = vb;
    for (int i = 0; i < NEON_CHAINS; i++) x[i] = vdupq_n_f32((float)i);
    for (int n = 0; n < STEPS * CHAINS / NEON_CHAINS; n++)
#pragma GCC unroll 24
        for (int i = 0; i < NEON_CHAINS; i++) x[i] = vfmaq_f32(vb, x[i], va);
    for (int i = 0; i < NEON_CHAINS; i++) sum = vaddq_f32(sum, x[i]);
    return vgetq_lane_f32(sum, 0);
}
#endif

static const struct kernels {
    const char *isa;
    int lanes;
    float (*flops)(float a, float b), (*read)(const float *, size_t count);
} kernels[] = {
#if defined __x86_64__
    { "avx512", 16, flops_avx512, read_avx512 },
    { "avx2", 8, flops_avx2, read_avx2 },
#elif defined __aarch64__
    { "neon", 4, flops_neon, read_base },
#endif
    { NULL, 4, flops_base, read_base }, /* everything else */
};

/* The last entry serves every other name. */
static const struct kernels *find_kernels(const char *isa)
{
    const struct kernels *k = kernels;
    while (k->isa && strcmp(k->isa, isa)) k++;
    return k;
}

/* ---- On all threads -------------------------------------------------------------------------- */

struct work {
    const struct kernels *kernels;
    float *to;
    const float *from;
    size_t count;         /* floats per piece */
    volatile float *sink; /* per piece */
};

static void flops_job(void *arg, int i)
{
    struct work *w = arg;
    volatile float a = 0.999f, b = 0.001f; /* volatile: unknown to the compiler */
    w->sink[i] = w->kernels->flops(a, b);
}

static void read_job(void *arg, int i)
{
    struct work *w = arg;
    w->sink[i] = w->kernels->read(w->from + (size_t)i * w->count, w->count);
}

static void copy_job(void *arg, int i)
{
    struct work *w = arg;
    memcpy(w->to + (size_t)i * w->count, w->from + (size_t)i * w->count, w->count * sizeof *w->to);
}

#if defined __x86_64__
static void dots_job(void *arg, int i)
{
    struct work *w = arg;
    volatile float a = 0.999f, b = 0.001f;
    w->sink[i] = flops_dots(a, b);
}
#endif

/* Without a host, runs on this thread alone. */
static double seconds(struct work *w, void (*job)(void *, int), const loci_host *host, int pieces)
{
    volatile float sink[MAX_THREADS * FLOP_JOBS];
    w->sink = sink;
    double start = now();
    if (host) host->run(host->user, pieces, job, w);
    else
        for (int i = 0; i < pieces; i++) job(w, i);
    return now() - start;
}

double probe_flops(const char *isa, const loci_host *host, int threads)
{
    struct work w = { .kernels = find_kernels(isa) };
    int pieces = threads * FLOP_JOBS;
    return 2.0 * w.kernels->lanes * CHAINS * STEPS * pieces / seconds(&w, flops_job, host, pieces);
}

/* Four flops per lane: two products and two sums. */
double probe_dots(const loci_host *host, int threads)
{
#if defined __x86_64__
    struct work w = { 0 };
    const int pieces = threads * FLOP_JOBS;
    return 4.0 * 16 * CHAINS * STEPS * pieces / seconds(&w, dots_job, host, pieces);
#else
    (void)host;
    (void)threads;
    return 0;
#endif
}

/* A piece is a whole number of steps of the widest kernel, 128 floats. */
double probe_read(const char *isa, const float *from, size_t bytes, const loci_host *host,
                  int threads)
{
    int pieces = threads > 1 ? threads * JOBS : 1;
    struct work w = { .kernels = find_kernels(isa), .from = from };
    w.count = bytes / sizeof *from / (size_t)pieces / 128 * 128;
    return (double)(w.count * sizeof *from) * pieces / seconds(&w, read_job, host, pieces);
}

double probe_copy(float *to, const float *from, size_t bytes, const loci_host *host, int threads)
{
    int pieces = threads > 1 ? threads * JOBS : 1;
    struct work w = { .to = to, .from = from, .count = bytes / sizeof *from / (size_t)pieces };
    return 2.0 * (double)(w.count * sizeof *from) * pieces / seconds(&w, copy_job, host, pieces);
}

struct spent spent_now(void)
{
    return (struct spent){ now(), loci_clock_thread(), loci_preemptions() };
}

/* Waiting for busy threads does not count, so both must have changed. */
double taken_between(struct spent from, struct spent to)
{
    const double wall = to.wall - from.wall, core = to.core - from.core;
    return to.aside == from.aside ? 0 : fmax(0, (wall - core) / wall);
}

/* Four times the last-level cache, so that data is evicted before it is read again. */
size_t beyond_caches(void)
{
    const double cache = loci_system_cache(), memory = loci_system_memory();
    double bytes = 4 * (cache > 0 ? cache : 32 << 20), most = 1 << 30;
    if (memory > 0 && memory / 16 < most) most = memory / 16;
    return (size_t)(bytes < most ? bytes : most);
}
