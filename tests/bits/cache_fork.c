/* SPDX-License-Identifier: MIT */
/* cache_fork.c -- entries of a cache that were forked have the bits of entries that were not: every
 * text of the walk, however they go on.  q_lens: rows that an entry lacks are neither read nor
 * written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/cache.h"
#include "contract/cache.h"
#include "contract/plan.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

/* Three sequences: 1 begins like 0, and 2 like 1. */
enum { B = 3, L = 200, H = 4, G = 2, FIRST = 130, SECOND = 150 };

struct forks {
    loci_desc desc;
    loci_plan *plan;
    int Dk, Dv;
    size_t size; /* of a stored number */
    void *q, *k, *v;
    double *coord; /* [B][axes][L] */
    int tensors;
    loci_tensor tensor[WALK_TENSORS];
    float *data[WALK_TENSORS];
    loci_cache *plain, *forked;
    void *tables;
    loci_error e;
    struct mem mem;
};
static bool broken(struct forks *f, const char *what)
{
    CHECK_FAILED("%s, %s: %s", f->desc.encoding, what, f->e.text);
    return false;
}

/* Gives sequences the rows that they share: [B][outer][L][inner]. */
static void share_rows(char *x, size_t outer, size_t inner)
{
    for (int b = 1; b < B; b++)
        for (size_t o = 0; o < outer; o++)
            memcpy(x + (b * outer + o) * L * inner, x + ((b - 1) * outer + o) * L * inner,
                   (size_t)(b == 1 ? FIRST : SECOND) * inner);
}
static void *numbers(struct forks *f, size_t outer, int width, double size)
{
    const size_t count = B * outer * L * (size_t)width;
    char *x = mem_alloc(&f->mem, count * f->size);
    for (size_t i = 0; i < count; i++)
        store_stored(x, f->desc.dtype, (ptrdiff_t)i, size * walk_uniform());
    share_rows(x, outer, (size_t)width * f->size);
    return x;
}
/* Rows of a call of n: entry b has count[b] of them, from number from[b] on, at its end.  All other
 * bytes are set. */
static void *rows(struct forks *f, const void *x, size_t outer, size_t inner,
                  const ptrdiff_t *from, const int64_t *count, ptrdiff_t n)
{
    char *to = mem_alloc(&f->mem, B * outer * (size_t)n * inner);
    for (size_t i = 0; i < B * outer; i++) {
        const size_t b = i / outer, some = (size_t)count[b];
        memcpy(to + (i * (size_t)n + (size_t)n - some) * inner,
               (const char *)x + (i * L + (size_t)from[b]) * inner, some * inner);
    }
    return to;
}
/* The tensors of a call; those by row and by key are cut. */
static const void *const *tensors_of(struct forks *f, bool query, const ptrdiff_t *from,
                                     const int64_t *count, ptrdiff_t n)
{
    const void **list = mem_alloc(&f->mem, sizeof *list * WALK_TENSORS);
    for (int i = 0; i < f->tensors; i++) {
        const loci_tensor *t = &f->tensor[i];
        list[i] = f->data[i];
        for (int r = 1; r < t->rank; r++) {
            if (t->shape[r] != (query ? LOCI_DIM_QUERIES : LOCI_DIM_KEYS)) continue;
            size_t inner = sizeof(float);
            for (int k = r + 1; k < t->rank; k++) inner *= (size_t)t->shape[k];
            const size_t outer = walk_count(t, B, L, L) * sizeof(float) / (B * L * inner);
            list[i] = rows(f, f->data[i], outer, inner, from, count, n);
        }
    }
    return list;
}
/* Coordinates are validated for all rows of a call, so those of other rows are 0. */
static double *coordinates(struct forks *f, const ptrdiff_t *from, const int64_t *count,
                           ptrdiff_t n)
{
    const size_t axes = (size_t)loci_axes(f->plan);
    if (axes == 1) return NULL;
    double *to = rows(f, f->coord, axes, sizeof *to, from, count, n);
    for (size_t i = 0; i < B * axes; i++)
        memset(to + i * (size_t)n, 0, (size_t)(n - count[i / axes]) * sizeof *to);
    return to;
}
static size_t by_row(const struct forks *f, int width) { return (size_t)width * f->size; }

static bool append(struct forks *f, loci_cache *cache, const ptrdiff_t *from, const int64_t *count)
{
    const int blocks = f->mem.blocks;
    ptrdiff_t n = 0;
    for (int b = 0; b < B; b++) n = count[b] > n ? (ptrdiff_t)count[b] : n;
    loci_call c = LOCI_CALL(.batch = B, .q_len = n, .k_len = n, .k_lens = count, .cache = cache,
                            .error = &f->e);
    c.k.data = rows(f, f->k, G, by_row(f, f->desc.dim), from, count, n);
    c.v.data = rows(f, f->v, G, by_row(f, f->Dv), from, count, n);
    c.tensors = tensors_of(f, false, from, count, n);
    c.k_coord = coordinates(f, from, count, n);
    c.per_batch = c.k_coord != NULL;
    void *work = mem_alloc(&f->mem, loci_workspace(f->plan, &c, 0));
    const bool done = !loci_cache_append(f->plan, f->tables, work, cache, &c);
    mem_release(&f->mem, blocks);
    return done || broken(f, "append");
}
static bool fork_entry(struct forks *f, ptrdiff_t from, ptrdiff_t to, int64_t length)
{
    loci_call c = LOCI_CALL(.batch = B, .cache = f->forked, .error = &f->e);
    const int blocks = f->mem.blocks;
    void *work = mem_alloc(&f->mem, loci_workspace(f->plan, &c, 0));
    const bool done =
        !loci_cache_fork(f->plan, f->tables, work, f->forked, from, to, length, &c);
    mem_release(&f->mem, blocks);
    return done || broken(f, "fork");
}
/* The outputs of the last n rows: o and lse, or the remainder. */
struct outputs {
    char *o;
    float *row;
};
static struct outputs last_rows(struct forks *f, const loci_cache *cache, ptrdiff_t n,
                                const int64_t *count)
{
    const ptrdiff_t from[B] = { L - count[0], L - count[1], L - count[2] };
    struct outputs out = { mem_alloc(&f->mem, (size_t)(B * H * n * f->Dv) * f->size),
                           mem_alloc(&f->mem, (size_t)(B * H * n) * sizeof(float)) };
    loci_call c = LOCI_CALL(.batch = B, .q_len = n, .cache = cache, .q_lens = count,
                            .o.data = out.o, .error = &f->e);
    *(f->plan->weight < 0 ? &c.lse : &c.rem) = out.row;
    c.q.data = rows(f, f->q, H, by_row(f, f->desc.dim), from, count, n);
    c.tensors = tensors_of(f, true, from, count, n);
    c.q_coord = coordinates(f, from, count, n);
    c.per_batch = c.q_coord != NULL;
    void *work = mem_alloc(&f->mem, loci_workspace(f->plan, &c, 0));
    if (loci_forward(f->plan, f->tables, work, &c)) broken(f, "forward");
    return out;
}
/* Do the entries of both caches agree in their last rows?  count: of each entry. */
static void agree(struct forks *f, const char *what, ptrdiff_t n, const int64_t *count)
{
    const int blocks = f->mem.blocks;
    const struct outputs a = last_rows(f, f->plain, n, count),
                         b = last_rows(f, f->forked, n, count);
    bool same = true, untouched = true;
    for (ptrdiff_t i = 0; i < B * H * n; i++) {
        const size_t bytes = by_row(f, f->Dv);
        const char *o = b.o + (size_t)i * bytes;
        same &= !memcmp(a.o + (size_t)i * bytes, o, bytes) && !memcmp(a.row + i, b.row + i, 4);
        for (size_t k = 0; k < bytes && i % n < n - count[i / n / H]; k++)
            untouched &= (unsigned char)o[k] == 0xff;
    }
    if (same && untouched) harness_pass();
    else
        CHECK_FAILED("%s, %s, %td rows: %s", f->desc.encoding, what, n,
                     same ? "a row that q_lens lacks was written" : "bits differ");
    mem_release(&f->mem, blocks);
}
static void agree_all(struct forks *f, const char *what)
{
    agree(f, what, 1, (const int64_t[]){ 1, 1, 1 });
    agree(f, what, 3, (const int64_t[]){ 2, 3, 0 });
    agree(f, what, 40, (const int64_t[]){ 1, 17, 40 });
}

static loci_cache *cache_of(struct forks *f)
{
    loci_cache *cache;
    const size_t bytes = loci_cache_size(f->plan, B, L);
    return loci_cache_create(&cache, f->plan, B, L, 0, mem_alloc(&f->mem, bytes), &f->e) ? NULL
                                                                                       : cache;
}
static bool open(struct forks *f, const char *text, loci_dtype dtype, loci_dtype kept, int dim,
                 int value_dim)
{
    *f = (struct forks){ .desc = LOCI_DESC(.encoding = text, .heads = H, .kv_heads = G, .dim = dim,
                                            .value_dim = value_dim, .dtype = dtype,
                                            .k_dtype = kept, .v_dtype = kept),
                          .Dv = value_dim,
                          .size = stored_size(dtype) };
    walk_restart(5);
    if (loci_plan_create(&f->plan, &f->desc, &f->e)) return broken(f, "plan");
    if (f->plan->rotate >= 0 && (f->plan->key_heads == f->plan->kv_heads || f->plan->moves >= 0)) {
        loci_plan_destroy(f->plan);
        f->desc.keys_rotated = 1;
        if (loci_plan_create(&f->plan, &f->desc, &f->e)) return broken(f, "plan");
    }
    f->q = numbers(f, H, dim, 1.5);
    f->k = numbers(f, G, dim, 1.5);
    f->v = numbers(f, G, value_dim, 1);
    const size_t axes = (size_t)loci_axes(f->plan);
    f->coord = mem_alloc(&f->mem, B * axes * L * sizeof *f->coord);
    for (size_t i = 0; i < B * axes * L; i++) f->coord[i] = walk_coordinate(100);
    share_rows((char *)f->coord, axes, sizeof *f->coord);
    f->tensors = loci_tensors(f->plan, f->tensor, WALK_TENSORS);
    for (int i = 0; i < f->tensors; i++) {
        const loci_tensor *t = &f->tensor[i];
        const size_t count = walk_count(t, B, L, L);
        f->data[i] = mem_alloc(&f->mem, count * sizeof(float));
        if (t->role != LOCI_INPUT) loci_tensor_init(f->plan, i, 1, f->data[i]);
        for (size_t n = 0; n < count && t->role == LOCI_INPUT; n++)
            f->data[i][n] = (float)(0.2 * walk_uniform() - 0.25);
        for (int r = 1; r < t->rank; r++) {
            if (t->shape[r] != LOCI_DIM_QUERIES && t->shape[r] != LOCI_DIM_KEYS) continue;
            size_t inner = sizeof(float);
            for (int k = r + 1; k < t->rank; k++) inner *= (size_t)t->shape[k];
            share_rows((char *)f->data[i], count * sizeof(float) / (B * L * inner), inner);
        }
    }
    f->tables = mem_alloc(&f->mem, loci_tables_size(f->plan, L));
    if (loci_prepare(f->plan, L, (const void *const *)f->data, f->tables))
        return broken(f, "tables");
    f->plain = cache_of(f);
    f->forked = cache_of(f);
    return (f->plain && f->forked) || broken(f, "cache");
}

/* Opens a copy of the cache, in which the tile 0 of entries 1 and 2 is elsewhere if given. */
static loci_status open_copy(struct forks *f, const int64_t *owners)
{
    const size_t bytes = loci_cache_size(f->plan, B, L);
    const int blocks = f->mem.blocks;
    struct loci_cache *c = mem_alloc(&f->mem, bytes), *cache;
    memcpy(c, f->forked, bytes);
    for (int b = 1; b < B && owners; b++) *cache_slot(c, c->owner, b, 0) = owners[b] - b;
    f->e.text[0] = 0;
    const loci_status status = loci_cache_open(&cache, f->plan, c, bytes, &f->e);
    mem_release(&f->mem, blocks);
    return status;
}
static void opens(struct forks *f)
{
    if (open_copy(f, NULL)) broken(f, "open");
    else harness_pass();
}

static void family(const char *text, loci_dtype dtype, loci_dtype kept, int dim, int value_dim)
{
    struct forks f;
    const ptrdiff_t none[B] = { 0 };
    if (open(&f, text, dtype, kept, dim, value_dim)
        && append(&f, f.plain, none, (const int64_t[]){ L, L, L })
        /* each goes on for a while before the next one leaves it */
        && append(&f, f.forked, none, (const int64_t[]){ FIRST + 7, 0, 0 })
        && fork_entry(&f, 0, 1, FIRST)
        && append(&f, f.forked, (const ptrdiff_t[]){ 0, FIRST, 0 },
                  (const int64_t[]){ 0, SECOND + 3 - FIRST, 0 })
        && fork_entry(&f, 1, 2, SECOND)
        && append(&f, f.forked, (const ptrdiff_t[]){ FIRST + 7, SECOND + 3, SECOND },
                  (const int64_t[]){ L - FIRST - 7, L - SECOND - 3, L - SECOND })) {
        agree_all(&f, "forks");
        opens(&f);
        CHECK_SAYS(open_copy(&f, (const int64_t[]){ 0, 3, 0 }), LOCI_BAD_ARG, &f.e,
                   "tile 0 of entry 1 is in entry 3 of 3");
        CHECK_SAYS(open_copy(&f, (const int64_t[]){ 0, 0, 1 }), LOCI_BAD_ARG, &f.e,
                   "tile 0 of its entries contradicts who reads it");
        CHECK_SAYS(open_copy(&f, (const int64_t[]){ 0, 0, 2 }), LOCI_BAD_ARG, &f.e,
                   "tile 0 of its entries contradicts who reads it");
        /* An owner writes tiles that others read; and a fork replaces a sequence. */
        if (!loci_cache_truncate(f.forked, 0, 70, &f.e)
            && append(&f, f.forked, (const ptrdiff_t[]){ 70, 0, 0 },
                      (const int64_t[]){ L - 70, 0, 0 }))
            agree_all(&f, "the owner writes");
        if (fork_entry(&f, 2, 0, 128)
            && append(&f, f.forked, (const ptrdiff_t[]){ 128, 0, 0 },
                      (const int64_t[]){ L - 128, 0, 0 }))
            agree_all(&f, "forked again");
        if (!loci_cache_truncate(f.forked, 2, 3, &f.e)
            && append(&f, f.forked, (const ptrdiff_t[]){ 0, 0, 3 },
                      (const int64_t[]){ 0, 0, L - 3 }))
            agree_all(&f, "the first one writes");
        opens(&f);
    }
    mem_release(&f.mem, 0);
    loci_plan_destroy(f.plan);
}

static void misuse(void)
{
    struct forks f;
    if (open(&f, "rope:pairing=half+alibi", LOCI_F32, 0, 8, 8)) {
        loci_call c = LOCI_CALL(.batch = B, .cache = f.forked, .error = &f.e);
        const ptrdiff_t none[B] = { 0 };
        void *work = mem_alloc(&f.mem, loci_workspace(f.plan, &c, 0));
        append(&f, f.forked, none, (const int64_t[]){ 9, 0, 0 });
        CHECK_SAYS(loci_cache_fork(f.plan, f.tables, work, f.forked, 0, 1, 10, &c), LOCI_BAD_ARG,
                   &f.e, "length 10 must be from 0 to 9, the keys of entry 0");
        CHECK_SAYS(loci_cache_fork(f.plan, f.tables, work, f.forked, 0, 0, 1, &c), LOCI_BAD_ARG,
                   &f.e, "must be two different ones from 0 to 2");
        CHECK_SAYS(loci_cache_fork(f.plan, f.tables, work, f.forked, 3, 0, 0, &c), LOCI_BAD_ARG,
                   &f.e, "must be two different ones from 0 to 2");
        CHECK_SAYS(loci_cache_fork(f.plan, f.tables, work, NULL, 0, 1, 0, &c), LOCI_BAD_ARG, &f.e,
                   "cache is damaged or was not made by loci_cache_create()");
        const int64_t many[B] = { 1, 2, 1 };
        float x[B * H * 8] = { 0 };
        c = (loci_call)LOCI_CALL(.batch = B, .q_len = 1, .q_lens = many, .cache = f.forked, .q.data = x,
                      .o.data = f.q, .error = &f.e);
        CHECK_SAYS(loci_forward(f.plan, f.tables, work, &c), LOCI_BAD_ARG, &f.e,
                   "q_lens: entry 1 has 2 rows, and q_len is 1");
    }
    mem_release(&f.mem, 0);
    loci_plan_destroy(f.plan);
}

int main(int argc, char **argv)
{
    walk_only(argc, argv);
    for (struct walk_text t = { 0 }; walk_next(&t);) {
        const int dim = walk_dim(t.text, 18), value_dim = t.square ? dim : 21;
        if (LOCI_SLOW && !t.example) continue;
        family(t.text, t.example ? LOCI_F32 : LOCI_BF16, 0, dim, value_dim);
    }
    family("rope:pairing=half", LOCI_F32, LOCI_Q8_0, 32, 64);
    family("fox", LOCI_F32, LOCI_Q8_0, 32, 32);
    if (!walk_limited()) misuse();
    return harness_end();
}
