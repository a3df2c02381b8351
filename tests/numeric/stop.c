/* SPDX-License-Identifier: MIT */
/* stop.c -- keys that are skipped.  Rows that may end early drop at most the permitted weight,
 * whichever channel of whichever key is the large one, in every dtype, in memory of every layout;
 * and they do end.  Only negligible tiles are skipped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "math/half.h"
#include "loci/cache.h"
#include "attend.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

enum { G = 2, H = 4, KEYS = 330, WIDTH = 4, TILE = 64 };
static const char *const dtypes[] = { "f32", "f64", "bf16", "f16" };

/* One call, with numbers of its dtype. */
struct trial {
    const char *encoding;
    loci_dtype dtype;
    ptrdiff_t rows, keys;
    int dim, batch;
    bool cached;               /* in a cache, which stores keys channel by channel */
    double *q, *k, *v, *gates; /* [batch][H or G][.][.]; gates [batch][H][keys] */
    struct mem mem;
};

static double *numbers(struct trial *t, ptrdiff_t n, double size)
{
    double *x = mem_alloc(&t->mem, (size_t)n * sizeof *x);
    for (ptrdiff_t i = 0; i < n; i++) x[i] = size * walk_uniform();
    return x;
}
static void *stored(struct trial *t, const double *x, ptrdiff_t n)
{
    void *to = mem_alloc(&t->mem, (size_t)n * stored_size(t->dtype));
    for (ptrdiff_t i = 0; i < n; i++) store_stored(to, t->dtype, i, x[i]);
    return to;
}
static ptrdiff_t key_at(const struct trial *t, ptrdiff_t b, int g, ptrdiff_t j)
{
    return ((b * G + g) * t->keys + j) * t->dim;
}
static ptrdiff_t value_at(const struct trial *t, ptrdiff_t b, int g, ptrdiff_t j)
{
    return ((b * G + g) * t->keys + j) * WIDTH;
}

static struct trial make(const char *encoding, loci_dtype dtype, ptrdiff_t rows, int dim, int batch)
{
    struct trial t = {
        .encoding = encoding, .dtype = dtype, .rows = rows, .keys = KEYS, .dim = dim, .batch = batch
    };
    walk_restart(17);
    t.q = numbers(&t, batch * H * rows * dim, 0.01);
    t.k = numbers(&t, batch * G * KEYS * dim, 0.01);
    t.v = numbers(&t, batch * G * KEYS * WIDTH, 0);
    t.gates = numbers(&t, batch * H * KEYS, 0);
    return t;
}

/* o, [batch][H][rows][WIDTH], and rem if there is one, of `encoding`. */
static void run(struct trial *t, const char *encoding, double *o, double *rem)
{
    loci_plan *plan;
    loci_cache *cache = NULL;
    loci_error e = { 0 };
    const bool stick = strstr(encoding, "sba") != NULL;
    const int blocks = t->mem.blocks;
    const loci_desc d = LOCI_DESC(.encoding = encoding, .heads = H, .kv_heads = G, .dim = t->dim,
                                  .value_dim = WIDTH, .dtype = t->dtype, .scale = 1,
                                  .keys_rotated = t->cached && strstr(encoding, "rope"));
    if (!CHECK_THAT(!loci_plan_create(&plan, &d, &e), "%s: %s", encoding, e.text)) exit(1);
    const size_t real = t->dtype == LOCI_F64 ? sizeof(double) : sizeof(float);
    const ptrdiff_t outputs = t->batch * H * t->rows * WIDTH;
    void *gates = mem_alloc(&t->mem, (size_t)(t->batch * H * t->keys) * real),
         *left = mem_alloc(&t->mem, (size_t)(t->batch * H * t->rows) * real);
    for (ptrdiff_t i = 0; i < t->batch * H * t->keys; i++)
        store_stored(gates, t->dtype == LOCI_F64 ? LOCI_F64 : LOCI_F32, i, t->gates[i]);
    const void *const tensors[] = { gates };
    loci_call c = LOCI_CALL(.batch = t->batch, .q_len = t->rows, .k_len = t->keys,
                            .q = { stored(t, t->q, t->batch * H * t->rows * t->dim), 0, 0, 0 },
                            .k = { stored(t, t->k, t->batch * G * t->keys * t->dim), 0, 0, 0 },
                            .v = { stored(t, t->v, t->batch * G * t->keys * WIDTH), 0, 0, 0 },
                            .tensors = tensors, .rem = stick ? left : NULL, .error = &e);
    c.o.data = mem_alloc(&t->mem, (size_t)outputs * stored_size(t->dtype));
    if (t->cached) {
        void *memory = mem_alloc(&t->mem, loci_cache_size(plan, t->batch, t->keys));
        if (loci_cache_create(&cache, plan, t->batch, t->keys, 0, memory, &e)) exit(2);
        c.cache = cache;
    }
    void *tables = mem_alloc(&t->mem, loci_tables_size(plan, t->keys)),
         *work = mem_alloc(&t->mem, loci_workspace(plan, &c, 0));
    loci_status status = loci_prepare(plan, t->keys, tensors, tables);
    if (cache && !status) status = loci_cache_append(plan, tables, work, cache, &c);
    if (!status) status = loci_forward(plan, tables, work, &c);
    CHECK_THAT(!status, "%s: %s", encoding, e.text);
    for (ptrdiff_t i = 0; i < outputs; i++) o[i] = load_stored(c.o.data, t->dtype, i);
    for (ptrdiff_t i = 0; rem && i < t->batch * H * t->rows; i++)
        rem[i] = load_stored(left, t->dtype == LOCI_F64 ? LOCI_F64 : LOCI_F32, i);
    loci_plan_destroy(plan);
    mem_release(&t->mem, blocks);
}

/* ---- Forgetting gates ------------------------------------------------------------------------ */

/* In each entry and head one old key has all the weight, by one channel of it that is not
 * rotated. */
static void one_channel(const char *encoding, loci_dtype dtype, ptrdiff_t rows, int dim, int turned,
                        bool cached)
{
    struct trial t = make(encoding, dtype, rows, dim, dim - turned);
    const ptrdiff_t outputs = t.batch * H * rows * WIDTH;
    double *o = mem_alloc(&t.mem, (size_t)outputs * sizeof *o);
    t.cached = cached;
    for (ptrdiff_t b = 0; b < t.batch; b++) {
        const ptrdiff_t old = b % 6;
        for (int g = 0; g < G; g++) {
            const int d = turned + (int)(b + g) % (dim - turned);
            t.k[key_at(&t, b, g, old) + d] = 9;
            for (int n = 0; n < WIDTH; n++) t.v[value_at(&t, b, g, old) + n] = 1;
            for (ptrdiff_t r = 0; r < rows * (H / G); r++)
                t.q[((b * H + g * (H / G)) * rows + r) * dim + d] = 9;
        }
        for (ptrdiff_t i = 0; i < H * KEYS; i++) t.gates[b * H * KEYS + i] = -0.2;
    }
    run(&t, encoding, o, NULL);
    /* 81 minus 0.2 for each of at most 329 gates, against 1 + e^-0.2 + ... */
    double least = 1;
    for (ptrdiff_t i = 0; i < outputs; i++) least = fmin(least, o[i]);
    CHECK_THAT(least > 0.99, "%s, %s, %td rows, dim %d%s: the key that has all the weight has %g",
               encoding, dtypes[dtype], rows, dim, cached ? ", cached" : "", least);
    mem_release(&t.mem, 0);
}

/* Forgotten keys are not read: their values are NaN. */
static void forgotten(const char *encoding, loci_dtype dtype, ptrdiff_t rows, bool cached)
{
    struct trial t = make(encoding, dtype, rows, 20, 3);
    const ptrdiff_t outputs = t.batch * H * rows * WIDTH;
    double *o = mem_alloc(&t.mem, (size_t)outputs * sizeof *o);
    t.cached = cached;
    for (ptrdiff_t i = 0; i < t.batch * H * KEYS; i++) t.gates[i] = -1;
    for (ptrdiff_t b = 0; b < t.batch; b++)
        for (int g = 0; g < G; g++)
            for (ptrdiff_t i = 0; i < TILE * WIDTH; i++) t.v[value_at(&t, b, g, 0) + i] = NAN;
    run(&t, encoding, o, NULL);
    bool finite = true;
    for (ptrdiff_t i = 0; i < outputs; i++) finite &= isfinite(o[i]) != 0;
    CHECK_THAT(finite, "%s, %s, %td rows%s: keys are read that are forgotten", encoding,
               dtypes[dtype], rows, cached ? ", cached" : "");
    mem_release(&t.mem, 0);
}

/* The dropped weight is within the limit, for random problems with gates and scores of all
 * sizes. */
static void share(const char *exact, const char *ends, double stop, bool stick)
{
    double worst = 0;
    for (int n = 0; n < (LOCI_EMULATED ? 6 : 40); n++) {
        struct trial t = make(exact, LOCI_F64, n % 3 ? 70 : 1, 20 + n % 2 * 2, 2);
        const ptrdiff_t outputs = t.batch * H * t.rows * WIDTH;
        double *o = mem_alloc(&t.mem, (size_t)outputs * sizeof *o),
               *less = mem_alloc(&t.mem, (size_t)outputs * sizeof *less);
        const double size = exp(2 * walk_uniform()), gate = exp(-3 + 2 * walk_uniform());
        for (ptrdiff_t i = 0; i < t.batch * H * t.rows * t.dim; i++) t.q[i] = size * walk_uniform();
        for (ptrdiff_t i = 0; i < t.batch * G * KEYS * t.dim; i++)
            t.k[i] = size * walk_uniform() - (stick ? 0.5 * size : 0);
        for (ptrdiff_t i = 0; i < t.batch * G * KEYS * WIDTH; i++)
            t.v[i] = walk_uniform() < 0 ? -1 : 1;
        for (ptrdiff_t i = 0; i < t.batch * H * KEYS; i++)
            t.gates[i] = gate * (walk_uniform() - (n % 4 ? 1 : 0.5));
        t.cached = n % 5 == 0;
        run(&t, exact, o, NULL);
        run(&t, ends, less, NULL);
        for (ptrdiff_t i = 0; i < outputs; i++) worst = fmax(worst, fabs(o[i] - less[i]));
        mem_release(&t.mem, 0);
    }
    /* a softmax renormalises the remaining weights; a stick does not */
    CHECK_THAT(worst <= (stick ? 1 : 2) * stop + 1e-12, "%s: %g is dropped", ends, worst);
    CHECK_THAT(worst > 0, "%s: no row has ended", ends);
}

/* ---- Sticks ---------------------------------------------------------------------------------- */

/* Each key gets half, so after the n keys of the newest tile 2^-n remains at its border.  A row
 * ends there if that is less than `stop`, and not if it is equal. */
static void border(loci_dtype dtype, ptrdiff_t rows)
{
    for (int more = 0; more < 2; more++) {
        struct trial t = make("sba", dtype, rows, 8, 1);
        const ptrdiff_t newest = KEYS - 1 - KEYS / TILE * TILE; /* without the row's own */
        const ptrdiff_t outputs = H * rows * WIDTH;
        char ends[64];
        double *o = mem_alloc(&t.mem, (size_t)outputs * sizeof *o),
               *rem = mem_alloc(&t.mem, (size_t)(H * rows) * sizeof *rem);
        memset(t.q, 0, (size_t)(H * rows * t.dim) * sizeof *t.q);
        snprintf(ends, sizeof ends, "sba:stop=%.17g", ldexp(more ? 1.001 : 1, -(int)newest));
        for (int g = 0; g < G; g++)
            for (ptrdiff_t i = 0; i < KEYS / TILE * TILE * WIDTH; i++)
                t.v[value_at(&t, 0, g, 0) + i] = 1;
        run(&t, ends, o, rem);
        bool right = true;
        for (int h = 0; h < H; h++) {
            const double left = rem[(h + 1) * rows - 1], older = o[(h + 1) * rows * WIDTH - 1];
            right &= more ? left == ldexp(1, -(int)newest) && older == 0
                          : left < ldexp(1, -(int)newest) && older > 0;
        }
        CHECK_THAT(right, "%s, %s, %td rows: with what `stop` says left a row %s", ends,
                   dtypes[dtype], rows, more ? "goes on" : "ends");
        mem_release(&t.mem, 0);
    }
}

/* ---- Bounds of scores ------------------------------------------------------------------------ */

/* Biases of up to `size` dominate, whether the large ones are far or near. */
static double size;
static double scattered(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    const double x = sin(12.9898 * (double)(i + 1)) * 43758.5453;
    const double y = (float)(x - floor(x));
    return t->role == LOCI_INPUT ? (float)(-0.05 * (1.1 + y)) : size * (2 * y - 1);
}
static double rising(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    return t->role == LOCI_INPUT ? scattered(encoding, t, i) : i % 2 ? size : -size;
}
static void bounds(const char *encoding, attend_fill *fill, bool full, int64_t shift)
{
    enum { ROWS = 70 };
    int64_t q_pos[ROWS], k_pos[KEYS];
    for (int i = 0; i < ROWS; i++) q_pos[i] = KEYS / (full ? 2 : 1) - ROWS + i;
    for (int j = 0; j < KEYS; j++) k_pos[j] = j + shift;
    for (size = 1; size < 100; size += 59) {
        struct attend want = {
            .desc = LOCI_DESC(.encoding = encoding, .heads = 2, .full = full,
                              .dim = walk_dim(encoding, 8), .dtype = LOCI_F64),
            .q_len = ROWS,
            .k_len = KEYS,
            .seed = 9,
            .fill = fill,
            .q_pos = q_pos,
            .k_pos = k_pos,
            .reference = true,
        };
        attend(&want);
        for (int f64 = 0; f64 < 2; f64++) {
            struct attend got = want;
            got.desc.dtype = f64 ? LOCI_F64 : LOCI_F32;
            got.reference = false;
            got.mem.blocks = 0;
            if (!shift && !full) got.q_pos = got.k_pos = NULL;
            attend(&got);
            double worst = 0;
            for (ptrdiff_t i = 0; i < 2 * ROWS * got.desc.dim; i++)
                worst = fmax(worst, fabs(got.o[i] - want.o[i]));
            CHECK_THAT(worst < (f64 ? 1e-10 : 2e-3), "%s, %s%s, keys from %d on, biases of %g: %g",
                       encoding, f64 ? "f64" : "f32", full ? ", full" : "", (int)shift, size,
                       worst);
            attend_free(&got);
        }
        attend_free(&want);
    }
}

int main(void)
{
    static const char *const biased[] = {
        "alibi:slopes=given",
        "clip:max=90",
        "t5:buckets=32,max_distance=300,bidirectional=0",
        "t5:buckets=16,max_distance=90,bidirectional=1",
        "shaw:left=80,right=80",
        "kerple",
        "kerple:kernel=power",
        "kerple:kernel=power,weight=1",
        "fire:hidden=6,threshold=50",
        "alibi:slopes=given+sink",
        "alibi:slopes=given+softcap:cap=9",
        "alibi:slopes=given+fox",
        "clip:max=90+softcap:cap=30",
        "fire:hidden=5,layers=1,threshold=9",
        "xl",
        "deberta:span=40,max_distance=200",
    };
    const size_t each = LOCI_EMULATED ? 5 : LOCI_SLOW ? 2 : 1;
    for (size_t i = 0; i < sizeof biased / sizeof *biased; i += each) {
        const bool counts = strstr(biased[i], "fox") != NULL;
        bounds(biased[i], rising, false, 0);
        if (!counts) bounds(biased[i], rising, true, 0);
        bounds(biased[i], scattered, false, 3);
    }

    for (loci_dtype dtype = LOCI_F32; dtype <= LOCI_F16; dtype++) {
        for (int i = 0; i < 8; i += LOCI_EMULATED ? 5 : 1)
            one_channel("fox:stop=0.001", dtype, i & 1 ? 66 : 1, i & 2 ? 37 : 20, 0, i & 4);
        one_channel("rope:pairing=half,dim=2+fox:stop=0.001", dtype, 66, LOCI_EMULATED ? 6 : 20, 2,
                    false);
        one_channel("rope:pairing=half,dim=2+fox:stop=0.001", dtype, 1, 20, 2, true);
        forgotten("fox:stop=0.001", dtype, 1, false);
        forgotten("fox:stop=0.001", dtype, 66, false);
        forgotten("fox:stop=0.001", dtype, 1, true);
        forgotten("fox:stop=0.001", dtype, 66, true);
        forgotten("rope:pairing=half+fox:stop=0.001", dtype, 66, false);
        border(dtype, 1);
        border(dtype, 40);
    }
    share("fox", "fox:stop=0.3", 0.3, false);
    share("fox", "fox:stop=0.001", 0.001, false);
    share("rope:pairing=half+fox", "rope:pairing=half+fox:stop=0.01", 0.01, false);
    share("sba", "sba:stop=0.1", 0.1, true);
    share("sba", "sba:stop=0.001", 0.001, true);
    return harness_end();
}
