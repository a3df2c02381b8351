/* SPDX-License-Identifier: MIT */
/* workspace.c -- loci_workspace() of the largest call of a generation suffices for every smaller
 * one, for every encoding, random sizes, with and without a cache.  Its size also suffices for
 * append, remove and rotations. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "harness.h"
#include "loci/cache.h"
#include "walk.h"

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(64, bytes ? (bytes + 63) / 64 * 64 : 64);
    if (!p) exit(2);
    return memset(p, 0, bytes);
}
/* 0 .. most */
static ptrdiff_t draw(ptrdiff_t most)
{
    const double x = (walk_uniform() + 1) / 2;
    const ptrdiff_t n = (ptrdiff_t)(x * (double)(most + 1));
    return n > most ? most : n;
}
static void run_here(void *user, int n, void (*job)(void *, int), void *arg)
{
    (void)user;
    for (int i = 0; i < n; i++) job(arg, i);
}

/* Plans with heads that share keys in groups of 1, 3 and 6; in float, double and 16 bits. */
static loci_plan *make_plan(const struct walk_text *t, int round, bool rotated, loci_desc *d)
{
    static const struct {
        int heads, kv_heads;
        loci_dtype dtype;
        int fast;
    } kinds[] = {
        { 6, 3, LOCI_F32, 0 }, { 6, 6, LOCI_F64, 0 },   { 12, 4, LOCI_BF16, 0 },
        { 6, 1, LOCI_F16, 0 }, { 12, 4, LOCI_BF16, 1 },
    };
    const int kind = round % 5;
    loci_plan *p;
    loci_error e;
    *d = (loci_desc)LOCI_DESC(.encoding = t->text, .heads = kinds[kind].heads,
                              .kv_heads = kinds[kind].kv_heads, .dtype = kinds[kind].dtype,
                              .fast = kinds[kind].fast, .dim = walk_dim(t->text, 16),
                              .keys_rotated = rotated);
    if (!t->square) d->value_dim = 24;
    const loci_status status = loci_plan_create(&p, d, &e);
    /* not every encoding can store rotated keys; those without a rotation say so */
    if (!rotated) CHECK_THAT(!status, "%s: %s", t->text, e.text);
    return p;
}

/* ---- Fewer rows, keys, entries and threads --------------------------------------------------- */

/* The workspace of a backward pass of path must fit into 32 bits where sizes have no more. */
enum { MOST = PTRDIFF_MAX > INT32_MAX ? 9000 : 2000 };

/* Favours row counts around the limit of decode, and key counts around a tile and a chunk. */
static ptrdiff_t few_or_many(ptrdiff_t most)
{
    const ptrdiff_t n = draw(2) ? draw(MOST) : draw(9);
    return n < most ? n : most;
}

static void check_fewer(const loci_plan *p, const char *text, const loci_cache *cache)
{
    static int64_t list[2 * MOST + 2];
    static const double coord[1];
    static const loci_grad none = LOCI_GRAD();
    struct measured measured;
    loci_host host = { .run = run_here, .threads = 1 + (int)draw(8) };
    loci_call most = LOCI_CALL(.batch = cache ? 2 : draw(3), .q_len = few_or_many(MOST),
                               .k_len = few_or_many(MOST), .cache = cache, .host = &host);
    const ptrdiff_t way = draw(5);
    if (way == 0 && !cache) most.q_seg = most.k_seg = list;
    if (way == 1) most.k_first = most.k_last = list;
    if (way == 2 && !cache) {
        most.batch = 1;
        most.q_starts = most.k_starts = list;
        most.sequences = draw(50);
    }
    if (way > 1 && draw(1)) most.q_pos = most.k_pos = list;
    if (way == 3) most.mask_kind = LOCI_MASK_ADDED;
    if (loci_axes(p) > 1) most.q_coord = most.k_coord = coord;
    const int backward = !cache && draw(1);
    const size_t enough = loci_workspace(p, &most, backward);
    CHECK_THAT(enough > 0, "%s: no workspace for %td rows and %td keys", text, most.q_len,
               most.k_len);
    for (int i = 0; i < 6; i++) {
        loci_call fewer = most;
        loci_host alone = { .run = run_here, .threads = 1 + (int)draw(host.threads - 1) };
        fewer.host = &alone;
        fewer.q_len = few_or_many(most.q_len);
        fewer.k_len = few_or_many(most.k_len);
        if (!cache) fewer.batch = draw(most.batch);
        if (fewer.q_starts) {
            fewer.batch = 1;
            fewer.sequences = draw(most.sequences);
        }
        /* the size from loci_workspace(), or the one that the pass itself uses */
        const bool back = backward && draw(1);
        const struct opening pass = {
            .stage = LOCI_ATTENTION,
            .grad = back ? &none : NULL,
            .tiles = back,
        };
        const size_t need = draw(1) ? loci_workspace(p, &fewer, back)
                                    : loci_measure_attention(p, &fewer, &pass, &measured);
        CHECK_THAT(need > 0 && need <= enough,
                   "%s: %zu bytes for %td entries, %td rows, %td keys and %d threads, but %zu for "
                   "%td, %td, %td and %d%s%s",
                   text, need, fewer.batch, fewer.q_len, fewer.k_len, alone.threads, enough,
                   most.batch, most.q_len, most.k_len, host.threads, backward ? ", backward" : "",
                   cache ? ", with a cache" : "");
    }
}

/* ---- Append and remove ----------------------------------------------------------------------- */

enum { CAPACITY = 192, NEW = 70 };

/* A call on a cache needs the size of loci_workspace() for that call.  It needs no positions of
 * queries, which neither append nor remove reads. */
static void check_cache(const loci_plan *p, const loci_desc *d, const char *text, bool placed)
{
    loci_error e = { 0 };
    loci_tensor list[WALK_TENSORS];
    const void *data[WALK_TENSORS] = { 0 };
    void *block[WALK_TENSORS + 4];
    int64_t pos[NEW];
    int blocks = 0;
    const int count = loci_tensors(p, list, WALK_TENSORS);
    for (int i = 0; i < count; i++) {
        void *x = block[blocks++] = allocate(8 * walk_count(&list[i], 2, NEW, NEW));
        if (list[i].role != LOCI_INPUT) loci_tensor_init(p, i, 1, x);
        data[i] = x;
    }
    const size_t bytes = loci_cache_size(p, 2, CAPACITY);
    void *tables = block[blocks++] = allocate(loci_tables_size(p, 1000));
    void *memory = block[blocks++] = allocate(bytes);
    void *rows = block[blocks++] = allocate(2 * NEW * 8 * (size_t)(d->kv_heads * 64));
    loci_cache *cache;
    CHECK_THAT(!loci_prepare(p, 1000, data, tables), "%s: tables", text);
    if (CHECK_THAT(!loci_cache_create(&cache, p, 2, CAPACITY, 0, memory, &e), "%s: %s", text,
                   e.text)) {
        for (int i = 0; i < NEW; i++) pos[i] = 3 * i;
        loci_host host = { .run = run_here, .threads = 1 + (int)draw(3) };
        loci_call add =
            LOCI_CALL(.batch = 2, .k_len = 1 + draw(NEW - 1), .cache = cache, .tensors = data,
                      .host = &host, .error = &e, .k_pos = placed ? pos : NULL,
                      .k = { .data = rows }, .v = { .data = rows });
        if (loci_axes(p) > 1) add.k_coord = rows;
        for (int i = 0; i < 3; i++) {
            /* the second time the cache has positions, or none */
            add.work_bytes = 0;
            e.text[0] = 0;
            const size_t enough = add.work_bytes = loci_workspace(p, &add, 0);
            if (!enough) add.work_bytes = 1; /* must fail and write nothing */
            void *work = allocate(enough);
            loci_status status = LOCI_OK;
            if (i < 2) {
                status = loci_cache_append(p, tables, work, cache, &add);
            } else {
                loci_call call = LOCI_CALL(.batch = 2, .cache = cache, .host = &host, .error = &e);
                call.work_bytes = loci_workspace(p, &call, 0);
                free(work);
                work = allocate(call.work_bytes);
                status = loci_cache_remove(p, tables, work, cache, 1, 1, 1, &call);
                /* some encodings cannot remove, and say so */
                if (status && !strstr(e.text, "work")) status = LOCI_OK;
                CHECK_THAT(call.work_bytes > 0, "%s: no workspace for remove: %s", text, e.text);
            }
            CHECK_THAT(enough > 0 && !status, "%s: %s with %zu bytes: %s", text,
                       i < 2 ? "append" : "remove", enough, e.text);
            free(work);
        }
        check_fewer(p, text, cache);
    }
    while (blocks) free(block[--blocks]);
}

int main(int argc, char **argv)
{
    walk_only(argc, argv);
    int round = 0;
    for (struct walk_text t = { 0 }; walk_next(&t); round++) {
        loci_desc d;
        for (int kind = 0; kind < 2; kind++) {
            loci_plan *p = make_plan(&t, round + kind, false, &d);
            for (int i = 0; i < 12 && p; i++) check_fewer(p, t.text, NULL);
            loci_plan *caches = make_plan(&t, round + kind, true, &d);
            if (!caches) caches = make_plan(&t, round + kind, false, &d);
            if (caches) check_cache(caches, &d, t.text, kind);
            loci_plan_destroy(caches);
            loci_plan_destroy(p);
            d.stage = LOCI_LINEAR_ATTENTION;
            d.keys_rotated = 0;
            d.fast = 0;
            if (loci_plan_create(&p, &d, NULL)) continue; /* most texts have no such stage */
            for (int i = 0; i < 12; i++) check_fewer(p, t.text, NULL);
            loci_plan_destroy(p);
        }
    }
    return harness_end();
}
