/* SPDX-License-Identifier: MIT */
/* gpu_cache.c -- caches in memory of a device: what grows there in chunks and token by token has
 * the bits of a cache of the CPU, with keys that rotate and values that turn, in every stored type,
 * in rings, with inputs by key, given positions and lengths.
 *
 * Devices are those of gpu_bits.c; an OpenCL device that nobody named has the first problems.  The
 * argument, if there is one, is the number of a problem. */
#define _POSIX_C_SOURCE 200809L /* setenv() */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/gpu.h"
#include "contract/plan.h"
#include "devices.h"
#include "math/q8.h"
#include "mem.h"

static long long compared;

struct problem {
    const char *text;
    int batch, heads, kv_heads, dim, value_dim;
    ptrdiff_t capacity;
    int64_t left;
    loci_dtype dtype, k_dtype, v_dtype;
    enum {
        LENS = 1,
        RING = 2,
        PLACED = 4,
        LONG = 8, /* keys of more than a chunk */
        FULL = 16,
        BROKEN = 32,
        RAW = 64,      /* keys are not rotated before they are stored */
        TREES = 128,   /* of tokens, in four entries */
        IN_KEYS = 256, /* values are channels of the keys */
    } with;
};
#define F32 LOCI_F32, LOCI_F32, LOCI_F32
#define Q8 LOCI_F32, LOCI_Q8_0, LOCI_Q8_0
static const struct problem problems[] = {
    { "nope", 1, 4, 2, 32, 48, 500, 0, F32, 0 },
    { "nope", 3, 4, 2, 64, 32, 500, 0, Q8, LENS },
    { "rope:pairing=half", 2, 4, 2, 64, 64, 500, 0, F32, LENS },
    { "rope:pairing=half", 2, 4, 2, 64, 32, 500, 0, Q8, LENS },
    { "rope:pairing=interleaved,dim=16,offset=2", 2, 2, 1, 24, 20, 500, 0, LOCI_BF16, LOCI_BF16,
      LOCI_BF16, 0 },
    { "rope:pairing=half+t5", 1, 4, 1, 32, 32, 500, 0, LOCI_F16, LOCI_Q8_0, LOCI_F16, 0 },
    { "alibi", 1, 2, 2, 16, 16, 500, 0, LOCI_F32, LOCI_BF16, LOCI_F16, LENS },
    { "rope:pairing=half", 1, 4, 2, 32, 32, 5000, 0, F32, LONG },
    { "rope:pairing=half", 2, 2, 1, 32, 32, 320, 100, F32, RING | LENS },
    { "rope:pairing=half+alibi", 1, 2, 1, 32, 32, 320, 100, Q8, RING | LONG },
    { "rope:pairing=half", 2, 2, 1, 32, 32, 500, 0, F32, PLACED | LENS },
    { "clip:max=9", 2, 4, 2, 32, 32, 500, 0, Q8, PLACED | FULL },
    { "rope:pairing=half,dim=16,values=1", 1, 2, 1, 32, 32, 500, 0, F32, 0 },
    { "rope:pairing=half,dim=16,values=1", 1, 2, 1, 32, 32, 500, 0, Q8, 0 },
    { "rope:pairing=half,dim=16,values=1,attention_factor=1.3", 1, 2, 1, 32, 32, 500, 0, LOCI_BF16,
      LOCI_BF16, LOCI_BF16, 0 },
    { "rope:pairing=interleaved,dim=8,values=1", 1, 2, 1, 32, 32, 500, 0, LOCI_F16, LOCI_F16,
      LOCI_Q8_0, 0 },
    { "rope:pairing=half", 2, 2, 1, 64, 32, 500, 0, Q8, BROKEN },
    { "rope:pairing=half,scaling=yarn,factor=4,original_length=60", 1, 2, 1, 32, 32, 500, 0, F32,
      0 },
    { "mrope:pairing=half,sections=4/6/6", 1, 2, 1, 32, 32, 500, 0, F32, 0 },
    { "rope:pairing=half,values=1", 2, 4, 2, 32, 32, 500, 0, F32, LENS },
    { "rope:pairing=half,freq=given", 2, 4, 2, 32, 32, 500, 0, F32, LENS },
    { "angles:pairing=half", 2, 4, 2, 32, 32, 500, 0, Q8, LENS },
    { "pope:base=20", 1, 4, 2, 16, 32, 500, 0, Q8, LENS },
    { "xpos:scale_base=40", 2, 2, 1, 32, 32, 500, 0, F32, LENS },
    { "xpos:scale_base=40", 1, 2, 1, 32, 32, 500, 0, F32, PLACED },
    { "selfextend:pairing=half,group=7,window=42", 2, 2, 1, 32, 32, 500, 0, Q8, RAW | LENS },
    { "rerope:pairing=half,window=70", 1, 2, 1, 32, 32, 500, 0, F32, RAW | PLACED },
    { "dca:pairing=half,chunk=90,local=20", 2, 4, 2, 32, 32, 500, 0, F32, LENS },
    { "dca:pairing=half,chunk=60,local=20", 1, 2, 1, 32, 32, 500, 0, Q8, PLACED },
    { "dca:pairing=half,chunk=70,local=20,freq=given", 2, 2, 1, 24, 20, 500, 60, LOCI_BF16,
      LOCI_BF16, LOCI_BF16, 0 },
    { "liere:block=4,axes=1", 2, 2, 1, 32, 32, 500, 0, F32, LENS },
    { "liere:block=4,axes=2", 1, 2, 1, 32, 32, 500, 0, F32, 0 },
    { "fope:train_length=60", 1, 2, 1, 32, 32, 500, 0, Q8, 0 },
    { "comrope:kind=ld,block=4,axes=1", 1, 2, 1, 32, 32, 500, 0, F32, 0 },
    { "rope:pairing=half+fox", 2, 4, 2, 32, 32, 500, 0, Q8, LENS },
    { "alibi:slopes=both", 2, 4, 2, 32, 32, 500, 0, F32, LENS },
    { "shaw", 1, 4, 2, 24, 24, 500, 0, F32, 0 },
    { "deberta", 2, 4, 2, 32, 24, 500, 0, F32, LENS | FULL },
    { "xl", 1, 4, 2, 24, 24, 500, 0, F32, FULL },
    { "logn:length=20+sink", 2, 4, 2, 32, 32, 500, 0, Q8, LENS },
    { "sba", 2, 4, 2, 32, 32, 500, 0, Q8, LENS },
    { "sba:remainder=value", 1, 4, 2, 32, 32, 500, 0, F32, 0 },
    { "cope", 1, 4, 2, 32, 32, 500, 0, F32, 0 },
    { "rope:pairing=half+cope:gates=given", 2, 4, 2, 32, 32, 500, 0, F32, LENS },
    { "wall", 2, 4, 2, 32, 20, 500, 0, F32, LENS },
    { "rope:pairing=half+wall", 1, 4, 2, 32, 32, 500, 0, Q8, 0 },
    { "path", 2, 4, 2, 24, 20, 500, 0, F32, LENS },
    { "cape:hidden=4", 2, 4, 2, 24, 20, 500, 0, F32, LENS },
    { "rope:pairing=half+alibi+cape:hidden=4", 1, 2, 1, 32, 32, 500, 0, Q8, 0 },
    { "tape", 2, 4, 2, 24, 20, 500, 0, F32, LENS | RAW },
    { "tape", 1, 2, 2, 32, 32, 500, 0, Q8, 0 },
    { "rope:pairing=half", 4, 4, 2, 32, 20, 500, 0, F32, TREES },
    { "rope:pairing=half,values=1+t5", 4, 2, 1, 32, 32, 500, 0, LOCI_BF16, LOCI_Q8_0, LOCI_F16,
      TREES | LENS },
    { "xpos:scale_base=40+alibi", 4, 2, 2, 24, 24, 500, 90, LOCI_F16, LOCI_F16, LOCI_F16,
      TREES | PLACED },
    { "liere:block=4,axes=2", 4, 2, 1, 32, 32, 500, 0, F32, TREES },
    { "rope:pairing=half+fox", 4, 4, 2, 16, 20, 500, 0, F32, TREES },
    { "path+sba", 4, 2, 1, 16, 20, 500, 0, F32, TREES },
    { "rope:pairing=half+cope:gates=given,npos=20", 4, 4, 2, 16, 16, 500, 0, F32, TREES },
    { "rope:pairing=half,values=1", 4, 2, 1, 32, 32, 16384, 0, F32, TREES },
    { "tape+cape:hidden=4", 4, 2, 2, 24, 20, 500, 0, F32, TREES },
    { "rope:pairing=half,dim=16,offset=20", 2, 4, 1, 36, 20, 500, 0, F32, LENS | IN_KEYS },
    { "rope:pairing=half,dim=32,offset=32,scaling=yarn,factor=4,original_length=60", 4, 4, 2, 64,
      32, 500, 0, Q8, TREES | LENS | IN_KEYS },
    { "rope:pairing=half,dim=16,offset=64", 2, 2, 1, 80, 40, 320, 100, LOCI_F32, LOCI_BF16,
      LOCI_BF16, RING | LENS | IN_KEYS },
    { "rope:pairing=half,dim=64,offset=512", 2, 20, 1, 576, 512, 320, 0, F32, LENS | IN_KEYS },
    { "rope:pairing=half,dim=64,offset=512", 1, 9, 1, 576, 512, 320, 0, LOCI_BF16, LOCI_Q8_0,
      LOCI_Q8_0, IN_KEYS },
    { "alibi", 2, 4, 2, 260, 300, 320, 0, LOCI_F16, LOCI_F16, LOCI_F16, LENS },
    { "rope:pairing=half,dim=64,offset=256", 4, 4, 1, 320, 256, 320, 0, F32, TREES | IN_KEYS },
    { "rope:pairing=half", 2, 2, 1, 272, 20, 320, 100, F32, RING | LENS },
};
/* Wide heads have up to eight rows at once. */
static ptrdiff_t most_rows(const struct problem *s)
{
    return s->dim > 256 || s->value_dim > 256 ? 8 : PTRDIFF_MAX;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static size_t bytes_of(size_t count, loci_dtype dtype)
{
    return (size_t)stored_bytes(dtype, (ptrdiff_t)count);
}
static void *numbers(struct mem *m, size_t count, loci_dtype dtype, double size)
{
    char *x = mem_alloc(m, bytes_of(count, dtype));
    for (size_t i = 0; i < count; i++) store_stored(x, dtype, (ptrdiff_t)i, size * walk_uniform());
    return x;
}
static bool same(const char *name, const char *what, const void *a, const void *b, size_t count,
                 loci_dtype dtype)
{
    compared += (long long)count;
    for (size_t i = 0; i < count; i++) {
        const double x = load_stored(a, dtype, (ptrdiff_t)i),
                     y = load_stored(b, dtype, (ptrdiff_t)i);
        const size_t each = stored_size(dtype);
        if (memcmp((const char *)a + i * each, (const char *)b + i * each, each)
            && (x == x || y == y))
            return CHECK_FAILED("%s: %s differs at number %zu of %zu: %.9g, not %.9g", name, what,
                                i, count, y, x);
    }
    return harness_pass();
}

/* ---- A cache that grows ---------------------------------------------------------------------- */

/* The plan and the cache of the CPU, and those of a device. */
struct pair {
    const struct problem *s;
    const char *name;
    loci_plan *plan;
    loci_gpu_plan *plan_there;
    loci_cache *cache, *cache_there;
    void *tables;
    loci_gpu_tables tables_there;
    struct there memory;
    loci_tensor list[WALK_TENSORS];
    void *learned[WALK_TENSORS];
    int tensors, step;
    int64_t next; /* position of the next key */
};
/* The numbers of a step, and its calls. */
struct step {
    struct mem mem;
    struct there there;
    loci_error e;
    loci_call call, call_there;
    size_t rows, outputs;
};

static void make_input(const struct pair *p, const loci_tensor *t, float *x, size_t count)
{
    const bool gate = strcmp(t->name, "log_f") == 0, path = strcmp(t->encoding, "path") == 0;
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(gate                   ? -0.1 - 0.1 * walk_uniform()
                       : path && t->rank == 4 ? sqrt(3.0 / p->s->dim) * walk_uniform()
                       : path                 ? 1 + walk_uniform()
                                              : 0.1 + 0.1 * walk_uniform());
}
/* Trees of tokens, and which of their nodes are kept. */
struct trees {
    int count;
    loci_tree tree;
    const int64_t *last;
};
/* The rows of trees on both sides, of which some nodes are kept. */
static loci_status attend_here(const struct pair *p, const struct trees *t, loci_call *c)
{
    struct mem mem = { 0 };
    c->work_bytes =
        t ? loci_tree_workspace(p->plan, p->cache, &t->tree, c) : loci_workspace(p->plan, c, 0);
    void *work = mem_alloc(&mem, c->work_bytes);
    loci_status status = t ? loci_tree_forward(p->plan, p->tables, work, p->cache, &t->tree, c)
                           : loci_cache_append(p->plan, p->tables, work, p->cache, c);
    if (!status)
        status = t ? loci_tree_keep(p->plan, p->tables, work, p->cache, &t->tree, t->last, c)
                   : loci_forward(p->plan, p->tables, work, c);
    mem_release(&mem, 0);
    return status;
}
static loci_status attend_there(const struct pair *p, const struct trees *t, loci_call *c)
{
    struct there there = { .gpu = p->memory.gpu };
    const loci_gpu_tables *tables = &p->tables_there;
    loci_cache *cache = p->cache_there;
    loci_call many = *c; /* whose workspace holds for fewer rows */
    many.q_len = many.k_len = c->q_len + (most_rows(p->s) < 9 ? 20 : 0);
    many.q_lens = many.k_lens = NULL;
    c->work_bytes = t ? loci_gpu_tree_workspace(p->plan_there, cache, &t->tree, c)
                      : loci_gpu_workspace(p->plan_there, &many, 0);
    if (!CHECK_THAT(c->work_bytes > 0, "%s: does not run", p->name)) return LOCI_UNSUPPORTED;
    void *work = copy_there(&there, NULL, c->work_bytes);
    loci_status status = t ? loci_gpu_tree_forward(p->plan_there, tables, work, cache, &t->tree, c)
                           : loci_gpu_cache_append(p->plan_there, tables, work, cache, c);
    if (!status)
        status = t ? loci_gpu_tree_keep(p->plan_there, cache, &t->tree, t->last, c)
                   : loci_gpu_forward(p->plan_there, tables, work, c);
    release(&there);
    return status;
}
/* Appends n tokens on both sides, and computes their rows; or those of n nodes of trees. */
static void grow(struct pair *p, ptrdiff_t n, const struct trees *trees)
{
    const struct problem *s = p->s;
    const int batch = trees ? trees->count : s->batch;
    struct step a = { .there.gpu = p->memory.gpu };
    const int axes = loci_axes(p->plan);
    const size_t B = (size_t)batch, N = (size_t)n, H = (size_t)s->heads, K = (size_t)s->kv_heads,
                 D = (size_t)s->dim, V = (size_t)s->value_dim;
    a.rows = B * H * N;
    a.outputs = a.rows * V;
    loci_call *c = &a.call;
    *c = (loci_call)LOCI_CALL(.batch = batch, .q_len = n, .k_len = n,
                              .cache = trees ? NULL : p->cache, .error = &a.e);
    c->q.data = numbers(&a.mem, a.rows * D, s->dtype, 2);
    c->k.data = numbers(&a.mem, B * K * N * D, s->dtype, 2);
    if (!(s->with & IN_KEYS)) c->v.data = numbers(&a.mem, B * K * N * V, s->dtype, 1);
    if (s->with & BROKEN && p->step == 4) {
        ((float *)c->v.data)[3] = NAN;
        ((float *)c->k.data)[40] = 1e9f;
    }
    for (size_t i = 0; s->with & BROKEN && i < N; i++) /* scales between two of 16 bits */
        ((float *)c->v.data)[i * V] =
            nextafterf(127 * (1 + (float)(2 * i % 2048 + 1) / 2048), INFINITY);
    c->o.data = mem_alloc(&a.mem, bytes_of(a.outputs, s->dtype));
    float *lse = mem_alloc(&a.mem, a.rows * sizeof *lse);
    *(p->plan->weight < 0 ? &c->lse : &c->rem) = lse;
    int64_t *lens = mem_alloc(&a.mem, B * sizeof *lens), *pos = mem_alloc(&a.mem, N * sizeof *pos);
    for (ptrdiff_t b = 0; b < batch; b++) lens[b] = n - (b && p->step % 2 ? n / (b + 1) : 0);
    if (s->with & LENS && !trees) c->k_lens = c->q_lens = lens;
    for (ptrdiff_t i = 0; i < n; i++) pos[i] = p->next + 3 * i + (i > 4);
    if (s->with & PLACED) c->q_pos = c->k_pos = pos;
    p->next += 3 * n + 1;
    double *places = mem_alloc(&a.mem, (size_t)axes * N * sizeof *places);
    for (size_t i = 0; i < (size_t)axes * N; i++) places[i] = floor(50 + 50 * walk_uniform());
    if (axes > 1) c->q_coord = c->k_coord = places;
    void *data[WALK_TENSORS] = { 0 };
    const void *there[WALK_TENSORS] = { 0 };
    for (int i = 0; i < p->tensors; i++) {
        data[i] = p->learned[i];
        if (p->list[i].role != LOCI_INPUT) continue;
        const size_t count = walk_count(&p->list[i], batch, n, n);
        data[i] = mem_alloc(&a.mem, count * sizeof(float));
        make_input(p, &p->list[i], data[i], count);
        there[i] = copy_there(&a.there, data[i], count * sizeof(float));
    }
    c->tensors = (const void *const *)data;
    const size_t states = p->plan->states ? a.rows * D : 0;
    float *ae = mem_alloc(&a.mem, states * sizeof *ae), *ae_back = mem_alloc(&a.mem, states * 4);
    if (states) c->ae = ae;
    loci_status status = attend_here(p, trees, c);
    if (status) CHECK_FAILED("%s on the CPU: %s", p->name, a.e.text);

    loci_call *t = &a.call_there;
    *t = *c;
    t->cache = trees ? NULL : p->cache_there;
    t->tensors = there;
    t->q.data = copy_there(&a.there, c->q.data, bytes_of(a.rows * D, s->dtype));
    t->k.data = copy_there(&a.there, c->k.data, bytes_of(B * K * N * D, s->dtype));
    if (c->v.data) t->v.data = copy_there(&a.there, c->v.data, bytes_of(B * K * N * V, s->dtype));
    void *o = mem_alloc(&a.mem, bytes_of(a.outputs, s->dtype));
    float *lse_back = mem_alloc(&a.mem, a.rows * sizeof *lse);
    t->o.data = copy_there(&a.there, o, bytes_of(a.outputs, s->dtype));
    void *lse_there = copy_there(&a.there, lse_back, a.rows * sizeof *lse);
    *(p->plan->weight < 0 ? &t->lse : &t->rem) = lse_there;
    if (states) t->ae = copy_there(&a.there, ae_back, states * 4);
    status = attend_there(p, trees, t);
    if (!status)
        status = loci_gpu_copy(a.there.gpu, o, t->o.data, bytes_of(a.outputs, s->dtype),
                               LOCI_GPU_DOWNLOAD, &a.e);
    if (!status)
        status = loci_gpu_copy(a.there.gpu, lse_back, lse_there, a.rows * sizeof *lse,
                               LOCI_GPU_DOWNLOAD, &a.e);
    if (!status && states)
        status = loci_gpu_copy(a.there.gpu, ae_back, t->ae, states * 4, LOCI_GPU_DOWNLOAD, &a.e);
    if (!CHECK_THAT(!status, "%s: %s", p->name, a.e.text)) goto end;
    same(p->name, "ae", ae, ae_back, states, LOCI_F32);
    same(p->name, "o", c->o.data, o, a.outputs, s->dtype);
    same(p->name, "lse", lse, lse_back, a.rows, LOCI_F32);
    for (int b = 0; b < s->batch; b++)
        CHECK_THAT(loci_cache_length(p->cache, b) == loci_cache_length(p->cache_there, b),
                   "%s: lengths", p->name);
end:
    p->step++;
    release(&a.there);
    mem_release(&a.mem, 0);
}
/* In as many calls as it takes. */
static void grow_by(struct pair *p, ptrdiff_t n)
{
    for (ptrdiff_t most = most_rows(p->s); n > 0; n -= most < n ? most : n)
        grow(p, most < n ? most : n, NULL);
}
/* A path of nine nodes in wide heads. */
static void refuse_tree(const struct pair *p, const loci_tree *tree)
{
    loci_error e = { 0 };
    const int64_t length = loci_cache_length(p->cache_there, 0),
                  other = loci_cache_length(p->cache_there, 1);
    loci_call c = LOCI_CALL(.batch = 1, .q_len = 10, .k_len = 10, .error = &e);
    CHECK_THAT(!loci_gpu_tree_workspace(p->plan_there, p->cache_there, tree, &c)
                   && loci_gpu_tree_forward(p->plan_there, &p->tables_there, NULL, p->cache_there,
                                            tree, &c)
                          == LOCI_UNSUPPORTED
                   && strstr(e.text, "a path of 9 nodes does not run")
                   && length == loci_cache_length(p->cache_there, 0)
                   && other == loci_cache_length(p->cache_there, 1),
               "%s: a long path: %s", p->name, e.text);
}
/* A tree of three paths that cross the border of a tile, of which one is kept without its last
 * node; one whose rows are split over keys, but would not be if all paths were as long as the
 * longest; and two trees of a path each, of which the first has fewer nodes than rows. */
static void grow_trees(struct pair *p)
{
    static const int64_t first = 0, one = 1, entry[] = { 0, 2 }, branch[] = { 1, 3 },
                         nodes[] = { 2, 3 }, last[] = { -1, 1 }, seven = 7, root = -1,
                         parents[] = { -1, 0, 0, 1, 2, -1, 5, 3, 7 },
                         chains[] = { -1, 0, 99, -1, 0, 1 },
                         deep[] = { -1, 0, 0, 2, 3, 4, 5, 6, 7, 8 };
    const struct trees tree = { 1,
                                LOCI_TREE(.entry = &first, .branch = &one, .room = 3,
                                          .parents = parents),
                                &seven },
                       long_one = { 1,
                                    LOCI_TREE(.entry = &first, .branch = &one, .room = 3,
                                              .parents = deep),
                                    &root },
                       two = { 2,
                               LOCI_TREE(.entry = entry, .branch = branch, .room = 1,
                                         .nodes = nodes, .parents = chains),
                               last };
    grow(p, 9, &tree);
    if (most_rows(p->s) < 9) refuse_tree(p, &long_one.tree);
    else grow(p, 10, &long_one);
    grow(p, 3, &two);
}
static void drop(struct pair *p, ptrdiff_t entry, int64_t count)
{
    const int64_t length = loci_cache_length(p->cache, entry) - count;
    loci_error e = { 0 };
    CHECK_THAT(!loci_cache_truncate(p->cache, entry, length, &e)
                   && !loci_cache_truncate(p->cache_there, entry, length, &e),
               "%s: truncate: %s", p->name, e.text);
}
/* Removes keys of an entry, and forks it, on both sides. */
static void edit(struct pair *p)
{
    const struct problem *s = p->s;
    const ptrdiff_t entry = s->batch - 1;
    const int64_t length = loci_cache_length(p->cache, entry);
    struct mem mem = { 0 };
    struct there t = { .gpu = p->memory.gpu };
    loci_error e = { 0 }, f = { 0 };
    loci_call c = LOCI_CALL(.batch = s->batch, .cache = p->cache, .error = &e), d = c;
    d.cache = p->cache_there;
    d.error = &f;
    c.work_bytes = loci_workspace(p->plan, &c, 0);
    d.work_bytes = loci_gpu_workspace(p->plan_there, &d, 0);
    void *work = mem_alloc(&mem, c.work_bytes), *work_there = copy_there(&t, NULL, d.work_bytes);
    static const int64_t removed[][2] = { { 5, 70 }, { 64, 1 }, { 30, 0 } };
    for (int i = 0; i < 3; i++) {
        const loci_status here = loci_cache_remove(p->plan, p->tables, work, p->cache, entry,
                                                   removed[i][0], removed[i][1], &c),
                          there = loci_gpu_cache_remove(p->plan_there, &p->tables_there, work_there,
                                                        p->cache_there, entry, removed[i][0],
                                                        removed[i][1], &d);
        CHECK_THAT(here == there && (!here || strcmp(e.text, f.text) == 0),
                   "%s: removing gives %d, %s, not %d, %s", p->name, there, f.text, here, e.text);
    }
    const ptrdiff_t to = s->batch > 1 ? 0 : 1;
    const loci_status here = loci_cache_fork(p->plan, p->tables, work, p->cache, entry, to,
                                             length / 2, &c),
                      there = loci_gpu_cache_fork(p->plan_there, p->cache_there, entry, to,
                                                  length / 2, &f);
    CHECK_THAT(here == there && (!here || strcmp(e.text, f.text) == 0),
               "%s: a fork gives %d, %s, not %d, %s", p->name, there, f.text, here, e.text);
    release(&t);
    mem_release(&mem, 0);
}
static void check(const struct problem *s, int device, const char *way)
{
    struct mem mem = { 0 };
    loci_error e = { 0 };
    char name[256];
    snprintf(name, sizeof name, "problem %d, %s, %s split, on %s", (int)(s - problems), s->text,
             way, devices[device]);
    struct pair p = { .s = s, .name = name, .memory.gpu = gpus[device] };
    const loci_desc d =
        LOCI_DESC(.encoding = s->text, .heads = s->heads, .kv_heads = s->kv_heads, .dim = s->dim,
                  .value_dim = s->value_dim, .full = (s->with & FULL) != 0, .window_left = s->left,
                  .dtype = s->dtype, .k_dtype = s->k_dtype, .v_dtype = s->v_dtype,
                  .keys_rotated = !(s->with & RAW), .values_in_keys = (s->with & IN_KEYS) != 0);
    setenv("LOCI_GPU_DECODE", way, 1);
    if (loci_plan_create(&p.plan, &d, &e)
        || loci_gpu_plan_create(&p.plan_there, gpus[device], p.plan, &e)) {
        CHECK_FAILED("%s: %s", name, e.text);
        goto end;
    }
    const ptrdiff_t range = 3 * 6000;
    p.tensors = loci_tensors(p.plan, p.list, WALK_TENSORS);
    for (int i = 0; i < p.tensors; i++) {
        if (p.list[i].role == LOCI_INPUT) continue;
        const size_t count = walk_count(&p.list[i], s->batch, 1, 1);
        float *x = p.learned[i] = mem_alloc(&mem, count * sizeof *x);
        loci_tensor_init(p.plan, i, 1, x);
        for (size_t j = 0; j < count; j++) x[j] += (float)(0.1 + 0.1 * walk_uniform());
    }
    const size_t bytes = loci_tables_size(p.plan, range);
    p.tables = mem_alloc(&mem, bytes);
    CHECK_THAT(!loci_prepare(p.plan, range, (const void *const *)p.learned, p.tables), "tables");
    p.tables_there = (loci_gpu_tables){ p.tables, copy_there(&p.memory, p.tables, bytes) };
    const loci_gpu_cache_bytes room = loci_gpu_cache_size(p.plan_there, s->batch, s->capacity);
    CHECK_THAT(!loci_cache_create(&p.cache, p.plan, s->batch, s->capacity, (s->with & RING) != 0,
                                  mem_alloc(&mem, loci_cache_size(p.plan, s->batch, s->capacity)),
                                  &e),
               "%s: %s", name, e.text);
    void *ones = mem_alloc(&mem, room.device);
    CHECK_THAT(!loci_gpu_cache_create(&p.cache_there, p.plan_there, s->batch, s->capacity,
                                      (s->with & RING) != 0, mem_alloc(&mem, room.host),
                                      copy_there(&p.memory, ones, room.device), &e),
               "%s: %s", name, e.text);
    if (!p.cache || !p.cache_there) goto end;
    for (int i = 0; i < 16 && s->with & LONG; i++) grow(&p, s->with & RING ? 129 : 299, NULL);
    static const ptrdiff_t steps[] = { 70, 1, 130, 3, 1, 1, 20, 2 };
    for (int i = 0; i < (int)(sizeof steps / sizeof *steps); i++) {
        grow_by(&p, steps[i]);
        if (i == 2 && s->with & TREES) grow_trees(&p);
        if (i == 3) drop(&p, s->batch - 1, 2);
        if (i == 4) edit(&p);
        if (i == 5) drop(&p, s->batch - 1, 20);
    }
    edit(&p);
    grow_by(&p, 3);
    grow_by(&p, 40);
end:
    loci_gpu_plan_destroy(p.plan_there);
    loci_plan_destroy(p.plan);
    release(&p.memory);
    mem_release(&mem, 0);
}

/* ---- Bad input ------------------------------------------------------------------------------- */

static void check_refusals(int device)
{
    struct mem mem = { 0 };
    struct there t = { .gpu = gpus[device] };
    loci_error e = { 0 };
    loci_plan *plan = NULL, *raw = NULL;
    loci_gpu_plan *there = NULL, *raw_there = NULL;
    loci_cache *here = NULL, *cache = NULL, *none = NULL;
    enum { LENGTH = 100, PART = 1 << 14 };
    loci_desc d =
        LOCI_DESC(.encoding = "rope:pairing=half", .heads = 2, .dim = 16, .keys_rotated = 1);
    loci_status status = loci_plan_create(&plan, &d, &e);
    if (!status) status = loci_gpu_plan_create(&there, gpus[device], plan, &e);
    d.keys_rotated = 0;
    if (!status) status = loci_plan_create(&raw, &d, &e);
    if (!status) status = loci_gpu_plan_create(&raw_there, gpus[device], raw, &e);
    if (!CHECK_THAT(!status, "%s", e.text)) return;
    const size_t bytes = loci_tables_size(plan, LENGTH);
    void *tables = mem_alloc(&mem, bytes);
    loci_prepare(plan, LENGTH, NULL, tables);
    const loci_gpu_tables both = { tables, copy_there(&t, tables, bytes) };
    const loci_gpu_cache_bytes room = loci_gpu_cache_size(there, 1, LENGTH);
    void *host = mem_alloc(&mem, room.host), *device_memory = copy_there(&t, NULL, room.device);
    char *memory = copy_there(&t, NULL, 8 * PART);

#define REFUSES(call, want, words) \
    do { \
        e.text[0] = 0; \
        CHECK_THAT((call) == (want) && strstr(e.text, words), "%s: %s", words, e.text); \
    } while (0)
    CHECK_THAT(room.host && room.device, "sizes");
    CHECK_THAT(!loci_gpu_cache_size(raw_there, 1, LENGTH).host
                   && !loci_gpu_cache_size(there, -1, LENGTH).device
                   && !loci_gpu_cache_size(there, 1, 0).host
                   && !loci_gpu_cache_size(there, 1 << 20, LENGTH).host
                   && !loci_gpu_cache_size(NULL, 1, LENGTH).host,
               "sizes of what does not run");
    REFUSES(loci_gpu_cache_create(&none, raw_there, 1, LENGTH, 0, host, device_memory, &e),
            LOCI_BAD_ARG, "keys_rotated must be 1");
    REFUSES(loci_gpu_cache_create(&none, there, 1, LENGTH, 0, NULL, device_memory, &e),
            LOCI_BAD_ARG, "memory must not be NULL");
    REFUSES(loci_gpu_cache_create(&none, there, 1, LENGTH, 0, host, (char *)device_memory + 4, &e),
            LOCI_BAD_ARG, "device must be memory of the device");
    REFUSES(loci_gpu_cache_create(&none, there, 1, LENGTH, 1, host, device_memory, &e),
            LOCI_BAD_ARG, "must have a window_left");
    CHECK_THAT(!none, "no cache");
    CHECK_THAT(!loci_cache_create(&here, plan, 1, LENGTH, 0,
                                  mem_alloc(&mem, loci_cache_size(plan, 1, LENGTH)), &e)
                   && !loci_gpu_cache_create(&cache, there, 1, LENGTH, 0, host, device_memory, &e),
               "%s", e.text);

    loci_call c =
        LOCI_CALL(.batch = 1, .q_len = 2, .k_len = 2, .q.data = memory, .k.data = memory + PART,
                  .v.data = memory + 2 * PART, .o.data = memory + 3 * PART,
                  .lse = memory + 4 * PART, .error = &e, .cache = cache);
    void *work = memory + 5 * PART;
    CHECK_THAT(loci_gpu_workspace(there, &c, 0) > 0, "a workspace");
    CHECK_THAT(!loci_gpu_cache_append(there, &both, work, cache, &c), "append: %s", e.text);
    CHECK_THAT(!loci_gpu_forward(there, &both, work, &c), "forward: %s", e.text);
    REFUSES(loci_gpu_cache_append(there, &both, work, here, &c), LOCI_BAD_ARG,
            "a device reads those of loci_gpu_cache_create()");
    REFUSES(loci_cache_append(plan, tables, work, cache, &c), LOCI_BAD_ARG,
            "only functions of loci/gpu.h read it");
    REFUSES(loci_forward(plan, tables, work, &c), LOCI_BAD_ARG,
            "only functions of loci/gpu.h read it");
    REFUSES(loci_cache_open(&none, plan, host, room.host, &e), LOCI_BAD_ARG,
            "only functions of loci/gpu.h read it");
    const loci_grad g = LOCI_GRAD(.dout.data = memory + 6 * PART, .dq.data = memory + 7 * PART);
    REFUSES(loci_gpu_backward(there, &both, work, &c, &g), LOCI_BAD_ARG,
            "pages and cache must be NULL");
    c.cache = here;
    CHECK_THAT(loci_gpu_workspace(there, &c, 0) == 0, "no workspace");
    REFUSES(loci_gpu_forward(there, &both, work, &c), LOCI_BAD_ARG,
            "a device reads those of loci_gpu_cache_create()");
    c.cache = cache;
    c.work_bytes = 64;
    REFUSES(loci_gpu_cache_append(there, &both, work, cache, &c), LOCI_BAD_ARG,
            "work has 64 bytes");
    c.work_bytes = 0;
    REFUSES(loci_gpu_cache_append(there, &both, (char *)work + 4, cache, &c), LOCI_BAD_ARG,
            "work must not be NULL and must be aligned");
    REFUSES(loci_gpu_cache_append(there, NULL, work, cache, &c), LOCI_BAD_ARG,
            "tables must have those of loci_prepare()");
    c.k.data = device_memory;
    REFUSES(loci_gpu_cache_append(there, &both, work, cache, &c), LOCI_BAD_ARG, "overlap");
    c.k.data = memory + PART;
    c.o.data = device_memory;
    REFUSES(loci_gpu_forward(there, &both, work, &c), LOCI_BAD_ARG, "overlap");
    c.o.data = memory + 3 * PART;
    c.k_len = LENGTH + 27;
    REFUSES(loci_gpu_cache_append(there, &both, work, cache, &c), LOCI_BAD_ARG, "do not fit");
    c.k_len = 2;
    c.batch = 2;
    REFUSES(loci_gpu_forward(there, &both, work, &c), LOCI_BAD_ARG, "must be that of the cache");
    c.batch = 1;
    REFUSES(loci_gpu_cache_remove(there, &both, work, cache, 0, 1, INT64_MIN, &c), LOCI_BAD_ARG,
            "reach beyond the end");
    REFUSES(loci_gpu_cache_remove(there, &both, work, here, 0, 0, 1, &c), LOCI_BAD_ARG,
            "a device reads those of loci_gpu_cache_create()");
    REFUSES(loci_cache_remove(plan, tables, work, cache, 0, 0, 1, &c), LOCI_BAD_ARG,
            "only functions of loci/gpu.h read it");
    const int64_t root = -1, zero = 0;
    loci_tree tree = LOCI_TREE(.entry = &zero, .branch = &zero, .room = 1, .parents = &root);
    c.q_len = c.k_len = 1;
    REFUSES(loci_gpu_tree_forward(there, &both, work, cache, &tree, &c), LOCI_BAD_ARG,
            "a tree continues an entry that paths may take: 0");
    CHECK_THAT(!loci_gpu_tree_workspace(there, cache, &tree, &c)
                   && !loci_gpu_tree_workspace(NULL, cache, &tree, &c),
               "no workspace of such a tree");
    REFUSES(loci_gpu_tree_forward(there, NULL, work, cache, &tree, &c), LOCI_BAD_ARG,
            "tables must have those of loci_prepare()");
    REFUSES(loci_gpu_tree_forward(there, &both, work, here, &tree, &c), LOCI_BAD_ARG,
            "a device reads those of loci_gpu_cache_create()");
    REFUSES(loci_tree_forward(plan, tables, work, cache, &tree, &c), LOCI_BAD_ARG,
            "only functions of loci/gpu.h read it");
    tree.branch = &root;
    REFUSES(loci_gpu_tree_keep(there, cache, &tree, &root, &c), LOCI_BAD_ARG,
            "must be entries of the cache, which has 1");
    c.q_len = c.k_len = 2;
    REFUSES(loci_gpu_cache_fork(there, cache, 0, 1, 1, &e), LOCI_BAD_ARG, "two different ones");
    REFUSES(loci_gpu_cache_fork(there, here, 0, 1, 1, &e), LOCI_BAD_ARG,
            "a device reads those of loci_gpu_cache_create()");
    REFUSES(loci_gpu_cache_fork(NULL, cache, 0, 1, 1, &e), LOCI_BAD_ARG, "plan must be one of");
    CHECK_THAT(loci_cache_length(cache, 0) == 2, "nothing was appended or removed");
#undef REFUSES
    loci_gpu_plan_destroy(there);
    loci_gpu_plan_destroy(raw_there);
    loci_plan_destroy(plan);
    loci_plan_destroy(raw);
    release(&t);
    mem_release(&mem, 0);
}

int main(int argc, char **argv)
{
    open_devices("host:2", !LOCI_SLOW);
    for (int i = 0; i < device_count && argc < 2; i++) check_refusals(i);
    for (int i = 0; i < (int)(sizeof problems / sizeof *problems); i++) {
        if (argc < 2 ? LOCI_SLOW && i % 8 : atoi(argv[1]) != i) continue;
        for (int k = 0; k < (getenv("LOCI_DEVICES") || i < 4 ? device_count : 1); k++) {
            check(&problems[i], k, "always");
            if (i % 4 == 0) check(&problems[i], k, "never");
        }
    }
    printf("%lld numbers compared\n", compared);
    close_devices();
    return harness_end();
}
