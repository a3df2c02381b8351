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

/* Sequences: each begins like the one before it. */
enum { B = 4, H = 4, G = 2 };
/* Rows of a sequence; and those that 1 shares with 0, and each later one with the one before. */
static ptrdiff_t L, first, second;

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
            memcpy(x + ((size_t)b * outer + o) * (size_t)L * inner,
                   x + ((size_t)(b - 1) * outer + o) * (size_t)L * inner,
                   (size_t)(b == 1 ? first : second) * inner);
}
static void *numbers(struct forks *f, size_t outer, int width, double size)
{
    const size_t count = (size_t)(B * L) * outer * (size_t)width;
    char *x = mem_alloc(&f->mem, count * f->size);
    for (size_t i = 0; i < count; i++)
        store_stored(x, f->desc.dtype, (ptrdiff_t)i, size * walk_uniform());
    share_rows(x, outer, (size_t)width * f->size);
    return x;
}
/* Rows of a call of n: entry b has count[b] of them, from number from[b] on, at its end.  All other
 * bytes are set. */
static void *rows(struct forks *f, const void *x, size_t outer, size_t inner, const ptrdiff_t *from,
                  const int64_t *count, ptrdiff_t n)
{
    char *to = mem_alloc(&f->mem, B * outer * (size_t)n * inner);
    for (size_t i = 0; i < B * outer; i++) {
        const size_t b = i / outer, some = (size_t)count[b];
        memcpy(to + (i * (size_t)n + (size_t)n - some) * inner,
               (const char *)x + (i * (size_t)L + (size_t)from[b]) * inner, some * inner);
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
            const size_t outer = walk_count(t, B, L, L) * sizeof(float) / ((size_t)(B * L) * inner);
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
    const bool done = !loci_cache_fork(f->plan, f->tables, work, f->forked, from, to, length, &c);
    mem_release(&f->mem, blocks);
    return done || broken(f, "fork");
}
/* The outputs of the last n rows: o and lse, or the remainder. */
struct outputs {
    char *o;
    float *row;
};
static struct outputs rows_from(struct forks *f, const loci_cache *cache, ptrdiff_t n,
                                const ptrdiff_t *from, const int64_t *count)
{
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
    const ptrdiff_t from[B] = { L - count[0], L - count[1], L - count[2], L - count[3] };
    const struct outputs a = rows_from(f, f->plain, n, from, count),
                         b = rows_from(f, f->forked, n, from, count);
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
    agree(f, what, 1, (const int64_t[B]){ 1, 1, 1, 1 });
    agree(f, what, 3, (const int64_t[B]){ 2, 3, 0, 3 });
    agree(f, what, 40, (const int64_t[B]){ 1, 17, 40, 2 });
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
                                           .value_dim = value_dim, .dtype = dtype, .k_dtype = kept,
                                           .v_dtype = kept),
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
    f->coord = mem_alloc(&f->mem, (size_t)(B * L) * axes * sizeof *f->coord);
    for (size_t i = 0; i < (size_t)(B * L) * axes; i++) f->coord[i] = walk_coordinate(100);
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
            share_rows((char *)f->data[i], count * sizeof(float) / ((size_t)(B * L) * inner),
                       inner);
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
        && append(&f, f.plain, none, (const int64_t[B]){ L, L, L, L })
        /* each goes on for a while before the next one leaves it */
        && append(&f, f.forked, none, (const int64_t[B]){ first + 7, 0, 0 })
        && fork_entry(&f, 0, 1, first)
        && append(&f, f.forked, (const ptrdiff_t[B]){ 0, first, 0 },
                  (const int64_t[B]){ 0, second + 3 - first, 0 })
        && fork_entry(&f, 1, 2, second)
        && append(&f, f.forked, (const ptrdiff_t[B]){ first + 7, second + 3, second },
                  (const int64_t[B]){ L - first - 7, L - second - 3, L - second })
        && fork_entry(&f, 2, 3, second)
        && append(&f, f.forked, (const ptrdiff_t[B]){ 0, 0, 0, second },
                  (const int64_t[B]){ 0, 0, 0, L - second })) {
        agree_all(&f, "forks");
        opens(&f);
        CHECK_SAYS(open_copy(&f, (const int64_t[B]){ 0, 4, 0, 0 }), LOCI_BAD_ARG, &f.e,
                   "tile 0 of entry 1 is in entry 4 of 4");
        CHECK_SAYS(open_copy(&f, (const int64_t[B]){ 0, 0, 1, 0 }), LOCI_BAD_ARG, &f.e,
                   "tile 0 of its entries contradicts who reads it");
        CHECK_SAYS(open_copy(&f, (const int64_t[B]){ 0, 0, 2, 0 }), LOCI_BAD_ARG, &f.e,
                   "tile 0 of its entries contradicts who reads it");
        /* An owner writes tiles that others read; and a fork replaces a sequence. */
        if (!loci_cache_truncate(f.forked, 0, 70, &f.e)
            && append(&f, f.forked, (const ptrdiff_t[B]){ 70, 0, 0 },
                      (const int64_t[B]){ L - 70, 0, 0 }))
            agree_all(&f, "the owner writes");
        if (fork_entry(&f, 2, 0, 128)
            && append(&f, f.forked, (const ptrdiff_t[B]){ 128, 0, 0 },
                      (const int64_t[B]){ L - 128, 0, 0 }))
            agree_all(&f, "forked again");
        if (!loci_cache_truncate(f.forked, 2, 3, &f.e)
            && append(&f, f.forked, (const ptrdiff_t[B]){ 0, 0, 3 },
                      (const int64_t[B]){ 0, 0, L - 3 }))
            agree_all(&f, "the first one writes");
        opens(&f);
        /* it ends inside a tile that others see all of */
        if (!loci_cache_truncate(f.plain, 3, 100, &f.e)
            && !loci_cache_truncate(f.forked, 3, 100, &f.e))
            agree_all(&f, "a shorter one");
    }
    mem_release(&f.mem, 0);
    loci_plan_destroy(f.plan);
}

/* ---- Trees ----------------------------------------------------------------------------------- */

/* Nodes of a tree after PREFIX tokens, as rows of sequence 0 from there on: it has three paths,
 * which cross the border of a tile. */
enum { PREFIX = 126, NODES = 9 };
static const int64_t parents[NODES] = { -1, 0, 0, 1, 2, -1, 5, 3, 7 };
static const ptrdiff_t paths[B][5] = { { 0 }, { 0, 2, 4 }, { 5, 6 }, { 0, 1, 3, 7, 8 } };
static const int depth[B] = { 0, 3, 2, 5 };

/* Outputs of a tree, and of its nodes one by one. */
struct rows_of_tree {
    char *o;    /* [H][NODES][Dv] */
    float *row; /* [H][NODES] */
};
static struct rows_of_tree outputs_of(struct forks *f)
{
    return (struct rows_of_tree){ mem_alloc(&f->mem, (size_t)(H * NODES) * by_row(f, f->Dv)),
                                  mem_alloc(&f->mem, (size_t)(H * NODES) * sizeof(float)) };
}
/* Decodes the nodes of every path, token by token, in a cache whose sequences all begin alike. */
static bool decode_paths(struct forks *f, struct rows_of_tree to)
{
    const ptrdiff_t none[B] = { 0 };
    if (!append(f, f->plain, none, (const int64_t[B]){ PREFIX, PREFIX, PREFIX, PREFIX }))
        return false;
    for (int step = 0; step < 5; step++) {
        ptrdiff_t from[B] = { 0 };
        int64_t count[B] = { 0 };
        for (int b = 1; b < B; b++) {
            if (step >= depth[b]) continue;
            from[b] = PREFIX + paths[b][step];
            count[b] = 1;
        }
        if (!append(f, f->plain, from, count)) return false;
        const struct outputs out = rows_from(f, f->plain, 1, from, count);
        for (int b = 1; b < B; b++)
            for (ptrdiff_t h = 0; count[b] && h < H; h++) {
                const ptrdiff_t at = h * NODES + from[b] - PREFIX;
                memcpy(to.o + (size_t)at * by_row(f, f->Dv),
                       out.o + (size_t)(b * H + h) * by_row(f, f->Dv), by_row(f, f->Dv));
                to.row[at] = out.row[b * H + h];
            }
    }
    return true;
}
static loci_call tree_call(struct forks *f, struct rows_of_tree to)
{
    const ptrdiff_t from[B] = { PREFIX, PREFIX, PREFIX, PREFIX };
    const int64_t count[B] = { NODES, NODES, NODES, NODES };
    loci_call c =
        LOCI_CALL(.batch = 1, .q_len = NODES, .k_len = NODES, .o.data = to.o, .error = &f->e);
    *(f->plan->weight < 0 ? &c.lse : &c.rem) = to.row;
    c.q.data = rows(f, f->q, H, by_row(f, f->desc.dim), from, count, NODES);
    c.k.data = rows(f, f->k, G, by_row(f, f->desc.dim), from, count, NODES);
    c.v.data = rows(f, f->v, G, by_row(f, f->Dv), from, count, NODES);
    c.k_coord = c.q_coord = coordinates(f, from, count, NODES);
    /* those of sequence 0 come first; a tensor may have rows or keys, never both */
    const void *const *by_query = tensors_of(f, true, from, count, NODES), *const *by_key =
                                                                               tensors_of(f, false,
                                                                                          from,
                                                                                          count,
                                                                                          NODES);
    const void **list = mem_alloc(&f->mem, sizeof *list * WALK_TENSORS);
    for (int i = 0; i < f->tensors; i++)
        list[i] = by_query[i] != f->data[i] ? by_query[i] : by_key[i];
    c.tensors = list;
    return c;
}
/* The rows of a tree are those of decoding its paths; and so is what follows a path that is
 * kept. */
static void tree(const char *text, loci_dtype dtype, loci_dtype kept, int dim, int value_dim)
{
    struct forks f;
    const ptrdiff_t none[B] = { 0 };
    const int64_t zero = 0, one = 1, last = 7;
    const loci_tree t = LOCI_TREE(.entry = &zero, .branch = &one, .room = 3, .parents = parents);
    L = first = second = 160;
    if (open(&f, text, dtype, kept, dim, value_dim)
        && append(&f, f.forked, none, (const int64_t[B]){ PREFIX, 0, 0, 0 })) {
        const struct rows_of_tree want = outputs_of(&f), got = outputs_of(&f);
        loci_call c = tree_call(&f, got);
        void *work = mem_alloc(&f.mem, loci_tree_workspace(f.plan, f.forked, &t, &c));
        c.work_bytes = loci_tree_workspace(f.plan, f.forked, &t, &c);
        for (int times = 0; times < 2; times++) /* again, with entries that share already */
            if (loci_tree_forward(f.plan, f.tables, work, f.forked, &t, &c)) broken(&f, "tree");
        if (decode_paths(&f, want))
            CHECK_THAT(!memcmp(got.o, want.o, (size_t)(H * NODES) * by_row(&f, f.Dv))
                           && !memcmp(got.row, want.row, (size_t)(H * NODES) * sizeof(float)),
                       "%s", text);
        CHECK_THAT(loci_cache_length(f.forked, 0) == PREFIX, "%s", text);
        if (loci_tree_keep(f.plan, f.tables, work, f.forked, &t, &last, &c)) broken(&f, "keep");
        CHECK_THAT(loci_cache_length(f.forked, 0) == PREFIX + 4, "%s", text);
        opens(&f);
        /* path 3 without its last node, in the plain cache, as sequence 0 of the other one */
        if (!loci_cache_truncate(f.plain, 3, PREFIX + 4, &f.e)
            && append(&f, f.plain, (const ptrdiff_t[B]){ 0, 0, 0, 150 },
                      (const int64_t[B]){ 0, 0, 0, 5 })
            && append(&f, f.forked, (const ptrdiff_t[B]){ 150, 0, 0, 0 },
                      (const int64_t[B]){ 5, 0, 0, 0 })) {
            const struct outputs a = rows_from(&f, f.plain, 1, (const ptrdiff_t[B]){ 0, 0, 0, 154 },
                                               (const int64_t[B]){ 0, 0, 0, 1 }),
                                 b = rows_from(&f, f.forked, 1,
                                               (const ptrdiff_t[B]){ 154, 0, 0, 0 },
                                               (const int64_t[B]){ 1, 0, 0, 0 });
            const size_t bytes = H * by_row(&f, f.Dv);
            CHECK_THAT(!memcmp(b.o, a.o + 3 * bytes, bytes), "%s, after a path", text);
        }
    }
    mem_release(&f.mem, 0);
    loci_plan_destroy(f.plan);
}

/* Two trees in one call, the first with fewer nodes than rows: each is as alone. */
static void two_trees(const char *text, int dim)
{
    struct forks f;
    const ptrdiff_t none[B] = { 0 };
    const int64_t entry[] = { 0, 2 }, branch[] = { 1, 3 }, nodes[] = { 2, 3 },
                  chains[] = { -1, 0, 99, -1, 0, 1 };
    const loci_tree t =
        LOCI_TREE(.entry = entry, .branch = branch, .room = 1, .nodes = nodes, .parents = chains);
    L = 160;
    first = second = 0;
    if (open(&f, text, LOCI_F32, 0, dim, dim)
        && append(&f, f.forked, none, (const int64_t[B]){ 100, 0, 130, 0 })
        && append(&f, f.plain, none, (const int64_t[B]){ 102, 0, 133, 0 })) {
        char *q = mem_alloc(&f.mem, (size_t)(2 * H * 3) * by_row(&f, dim)),
             *k = mem_alloc(&f.mem, (size_t)(2 * G * 3) * by_row(&f, dim)),
             *v = mem_alloc(&f.mem, (size_t)(2 * G * 3) * by_row(&f, dim)),
             *o = mem_alloc(&f.mem, (size_t)(2 * H * 3) * by_row(&f, dim));
        for (int b = 0; b < 2; b++)
            for (int i = 0; i < nodes[b]; i++) {
                const ptrdiff_t from = (b ? 130 : 100) + i;
                for (int h = 0; h < H; h++)
                    memcpy(q + (size_t)((b * H + h) * 3 + i) * by_row(&f, dim),
                           (char *)f.q + (size_t)((2 * b * H + h) * L + from) * by_row(&f, dim),
                           by_row(&f, dim));
                for (int h = 0; h < G; h++) {
                    const size_t to = (size_t)((b * G + h) * 3 + i) * by_row(&f, dim),
                                 at = (size_t)((2 * b * G + h) * L + from) * by_row(&f, dim);
                    memcpy(k + to, (char *)f.k + at, by_row(&f, dim));
                    memcpy(v + to, (char *)f.v + at, by_row(&f, dim));
                }
            }
        loci_call c =
            LOCI_CALL(.batch = 2, .q_len = 3, .k_len = 3, .q.data = q, .k.data = k, .v.data = v,
                      .o.data = o, .tensors = (const void *const *)f.data, .error = &f.e);
        void *work = mem_alloc(&f.mem, loci_tree_workspace(f.plan, f.forked, &t, &c));
        if (loci_tree_forward(f.plan, f.tables, work, f.forked, &t, &c)) broken(&f, "two trees");
        const struct outputs want =
            rows_from(&f, f.plain, 3, (const ptrdiff_t[B]){ 100, 0, 130, 0 },
                      (const int64_t[B]){ 2, 0, 3, 0 });
        bool same = true;
        for (int b = 0; b < 2; b++)
            for (int h = 0; h < H; h++) {
                const size_t row = by_row(&f, dim);
                const char *mine = o + (size_t)((b * H + h) * 3) * row,
                           *theirs = want.o + (size_t)((2 * b * H + h) * 3 + 3 - nodes[b]) * row;
                same &= !memcmp(mine, theirs, (size_t)nodes[b] * row);
                for (size_t i = (size_t)nodes[b] * row; i < 3 * row; i++)
                    same &= (unsigned char)mine[i] == 0xff;
            }
        CHECK_THAT(same, "%s, two trees", text);
        const int64_t last[] = { 0, -1 };
        if (loci_tree_keep(f.plan, f.tables, work, f.forked, &t, last, &c)) broken(&f, "keep");
        CHECK_THAT(loci_cache_length(f.forked, 0) == 101 && loci_cache_length(f.forked, 2) == 130,
                   "%s", text);
    }
    mem_release(&f.mem, 0);
    loci_plan_destroy(f.plan);
}

static void misuse_trees(void)
{
    struct forks f;
    const int64_t zero = 0, one = 1, four = 4, many = 10, deep[] = { -1, 0, 1 },
                  late[] = { -1, 2, 0 };
    const ptrdiff_t none[B] = { 0 };
    L = first = second = 160;
    CHECK_THAT(loci_tree_paths(parents, NODES) == 3 && loci_tree_paths(late, 3) == LOCI_NONE
                   && loci_tree_paths(NULL, 0) == 0,
               "paths");
    if (open(&f, "alibi", LOCI_F32, 0, 8, 8)
        && append(&f, f.forked, none, (const int64_t[B]){ PREFIX, 0, 0, 0 })) {
        const struct rows_of_tree got = outputs_of(&f);
        loci_call c = tree_call(&f, got);
        const loci_tree good =
            LOCI_TREE(.entry = &zero, .branch = &one, .room = 3, .parents = parents);
        void *work = mem_alloc(&f.mem, loci_tree_workspace(f.plan, f.forked, &good, &c));
        const struct {
            loci_tree tree;
            const char *says;
        } bad[] = {
            { LOCI_TREE(.entry = &four, .branch = &one, .room = 3, .parents = parents),
              "entry 4 of tree 0 must be from 0 to 3" },
            { LOCI_TREE(.entry = &zero, .branch = &one, .room = 4, .parents = parents),
              "4 entries from 1 on must be entries of the cache, which has 4" },
            { LOCI_TREE(.entry = &one, .branch = &zero, .room = 3, .parents = parents),
              "a tree continues an entry that paths may take: 1" },
            { LOCI_TREE(.entry = &zero, .branch = &one, .room = 2, .parents = parents),
              "tree 0 has 3 paths, and room for 2" },
            { LOCI_TREE(.entry = &zero, .branch = &one, .room = 3),
              "entry, branch and parents of a tree must not be NULL" },
            { LOCI_TREE(.entry = &zero, .branch = &one, .room = 3, .nodes = &many,
                        .parents = parents),
              "tree 0 has 10 nodes, and q_len is 9" },
        };
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            CHECK_THAT(!loci_tree_workspace(f.plan, f.forked, &bad[i].tree, &c), "%s", bad[i].says);
            CHECK_SAYS(loci_tree_forward(f.plan, f.tables, work, f.forked, &bad[i].tree, &c),
                       LOCI_BAD_ARG, &f.e, bad[i].says);
        }
        c.k_len = 8;
        CHECK_SAYS(loci_tree_forward(f.plan, f.tables, work, f.forked, &good, &c), LOCI_BAD_ARG,
                   &f.e, "k_len 8 must be q_len 9");
        c.k_len = NODES;
        c.k_first = c.k_last = parents;
        CHECK_SAYS(loci_tree_forward(f.plan, f.tables, work, f.forked, &good, &c), LOCI_UNSUPPORTED,
                   &f.e, "k_first and k_last must be NULL");
        c.k_first = c.k_last = NULL;
        int64_t flat[NODES] = { 126, 127, 127, 128, 128, 126, 127, 128, 129 };
        c.q_pos = c.k_pos = flat;
        CHECK_SAYS(loci_tree_forward(f.plan, f.tables, work, f.forked, &good, &c), LOCI_BAD_ARG,
                   &f.e,
                   "node 7 of tree 0 is at position 128, and the node before it at 128: positions "
                   "must rise along a path");
        c.q_pos = c.k_pos = NULL;
        c.work_bytes = 64;
        CHECK_SAYS(loci_tree_forward(f.plan, f.tables, work, f.forked, &good, &c), LOCI_BAD_ARG,
                   &f.e, "work has 64 bytes, and these trees need");
        c.work_bytes = 0;
        CHECK_SAYS(loci_tree_keep(f.plan, f.tables, work, f.forked, &good, &many, &c), LOCI_BAD_ARG,
                   &f.e, "node 10 of tree 0 must be from -1 to 8");
        CHECK_SAYS(loci_tree_keep(f.plan, f.tables, work, f.forked, &good, &zero, &c), LOCI_BAD_ARG,
                   &f.e, "keep the trees of the last loci_tree_forward()");
        c.q_len = c.k_len = 3;
        loci_tree chain = good;
        chain.parents = late;
        CHECK_SAYS(loci_tree_forward(f.plan, f.tables, work, f.forked, &chain, &c), LOCI_BAD_ARG,
                   &f.e, "each must be the number of an earlier node, or -1");
        chain.parents = deep;
        append(&f, f.forked, none, (const int64_t[B]){ 64, 0, 0, 0 });
        CHECK_SAYS(loci_tree_forward(f.plan, f.tables, work, f.forked, &chain, &c), LOCI_BAD_ARG,
                   &f.e, "tree 0: 3 keys after the 190 of entry 0 do not fit into the cache's 192");
        loci_desc d = f.desc;
        loci_plan *full;
        d.full = 1;
        if (loci_plan_create(&full, &d, &f.e)) broken(&f, "plan");
        CHECK_SAYS(loci_tree_forward(full, f.tables, work, f.forked, &good, &c), LOCI_BAD_ARG, &f.e,
                   "trees need a causal plan: with full = 1 a row would see the nodes below it");
        loci_plan_destroy(full);
    }
    mem_release(&f.mem, 0);
    loci_plan_destroy(f.plan);
}

/* Sequences that begin with the same pages have the bits of those that have copies of them. */
static void same_pages(ptrdiff_t length)
{
    enum { D = 8, LENGTH = 200, PAGES = LENGTH };
    struct mem mem = { .blocks = 0 };
    loci_plan *plan;
    loci_error e;
    const loci_desc d = LOCI_DESC(.encoding = "alibi", .heads = H, .kv_heads = G, .dim = D);
    const ptrdiff_t each = (LENGTH + length - 1) / length, shared = 130 / length;
    walk_restart(9);
    if (loci_plan_create(&plan, &d, &e)) {
        CHECK_FAILED("plan: %s", e.text);
        return;
    }
    void *tables = mem_alloc(&mem, loci_tables_size(plan, LENGTH));
    float *k = mem_alloc(&mem, sizeof *k * (size_t)(B * each * length * G * D)),
          *q = mem_alloc(&mem, sizeof *q * B * H * D), *o[2];
    int32_t table[2][B * PAGES];
    for (ptrdiff_t i = 0; i < B * each * length * G * D; i++) k[i] = (float)walk_uniform();
    for (int i = 0; i < B * H * D; i++) q[i] = (float)walk_uniform();
    for (ptrdiff_t b = 0; b < B; b++)
        for (ptrdiff_t i = 0; i < each; i++) {
            table[0][b * each + i] = (int32_t)(b * each + i);
            table[1][b * each + i] = (int32_t)(i < shared ? i : b * each + i);
            if (i < shared)
                memcpy(k + (b * each + i) * length * G * D, k + i * length * G * D,
                       sizeof *k * (size_t)(length * G * D));
        }
    if (loci_prepare(plan, LENGTH, NULL, tables)) CHECK_FAILED("tables");
    for (int s = 0; s < 2; s++) {
        const loci_pages pages = { .table = table[s], .length = length, .entry = each };
        o[s] = mem_alloc(&mem, sizeof *q * B * H * D);
        loci_call c = LOCI_CALL(.batch = B, .q_len = 1, .k_len = LENGTH, .q.data = q, .k.data = k,
                                .v.data = k, .o.data = o[s], .pages = &pages, .error = &e);
        void *work = mem_alloc(&mem, loci_workspace(plan, &c, 0));
        if (loci_forward(plan, tables, work, &c)) CHECK_FAILED("pages: %s", e.text);
    }
    CHECK_THAT(!memcmp(o[0], o[1], sizeof *q * B * H * D), "pages of %td", length);
    mem_release(&mem, 0);
    loci_plan_destroy(plan);
}

static void misuse(void)
{
    struct forks f;
    L = 200;
    first = second = 0;
    if (open(&f, "rope:pairing=half+alibi", LOCI_F32, 0, 8, 8)) {
        loci_call c = LOCI_CALL(.batch = B, .cache = f.forked, .error = &f.e);
        const ptrdiff_t none[B] = { 0 };
        void *work = mem_alloc(&f.mem, loci_workspace(f.plan, &c, 0));
        append(&f, f.forked, none, (const int64_t[B]){ 9, 0, 0 });
        CHECK_SAYS(loci_cache_fork(f.plan, f.tables, work, f.forked, 0, 1, 10, &c), LOCI_BAD_ARG,
                   &f.e, "length 10 must be from 0 to 9, the keys of entry 0");
        CHECK_SAYS(loci_cache_fork(f.plan, f.tables, work, f.forked, 0, 0, 1, &c), LOCI_BAD_ARG,
                   &f.e, "must be two different ones from 0 to 3");
        CHECK_SAYS(loci_cache_fork(f.plan, f.tables, work, f.forked, 4, 0, 0, &c), LOCI_BAD_ARG,
                   &f.e, "must be two different ones from 0 to 3");
        CHECK_SAYS(loci_cache_fork(f.plan, f.tables, work, NULL, 0, 1, 0, &c), LOCI_BAD_ARG, &f.e,
                   "cache is damaged or was not made by loci_cache_create()");
        const int64_t many[B] = { 1, 2, 1 };
        float x[B * H * 8] = { 0 };
        c = (loci_call)LOCI_CALL(.batch = B, .q_len = 1, .q_lens = many, .cache = f.forked,
                                 .q.data = x, .o.data = f.q, .error = &f.e);
        CHECK_SAYS(loci_forward(f.plan, f.tables, work, &c), LOCI_BAD_ARG, &f.e,
                   "q_lens: entry 1 has 2 rows, and q_len is 1");
    }
    mem_release(&f.mem, 0);
    loci_plan_destroy(f.plan);
}

static void short_forks(const char *text, loci_dtype dtype, loci_dtype kept, int dim, int value_dim)
{
    L = 200;
    first = 130;
    second = 150;
    family(text, dtype, kept, dim, value_dim);
    tree(text, dtype, kept, dim, value_dim);
}
int main(int argc, char **argv)
{
    walk_only(argc, argv);
    for (struct walk_text t = { 0 }; walk_next(&t);) {
        const int dim = walk_dim(t.text, 18), value_dim = t.square ? dim : 21;
        if (LOCI_SLOW && !t.example) continue;
        short_forks(t.text, t.example ? LOCI_F32 : LOCI_BF16, 0, dim, value_dim);
    }
    short_forks("rope:pairing=half", LOCI_F32, LOCI_Q8_0, 32, 64);
    short_forks("fox", LOCI_F32, LOCI_Q8_0, 32, 32);
    /* several chunks of keys, which are items of their own */
    static const char *const lengthy[] = { "nope", "alibi", "sba" };
    for (size_t i = 0; i < sizeof lengthy / sizeof *lengthy && !LOCI_SLOW; i++) {
        L = 8400;
        first = 8250;
        second = 8320;
        family(lengthy[i], LOCI_F32, 0, 4, 4);
    }
    if (walk_limited()) return harness_end();
    misuse();
    misuse_trees();
    two_trees("alibi", 8);
    two_trees("rope:pairing=half", 8);
    same_pages(16);
    same_pages(64);
    same_pages(7);
    return harness_end();
}
