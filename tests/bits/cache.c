/* SPDX-License-Identifier: MIT */
/* cache.c -- keys in a cache, in pages, or below the capacity give the bits of contiguous keys:
 * every text of the walk, f32, bf16 and f16, in chunks and token by token.  Keys and values that
 * are stored in another type than queries give the bits of the same numbers in f32. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/cache.h"
#include "loci/convert.h"
#include "math/q8.h"
#include "contract/plan.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

static const char *isa; /* of the plans; NULL: the best */
static bool fast;       /* likewise, for BF16 */
/* Likewise: the stored types of keys and values, if they are not that of queries. */
static loci_dtype k_dtype, v_dtype;

/* Whole sequences, and the results of one call for all of their rows. */
struct problem {
    loci_desc desc;
    loci_plan *plan;
    ptrdiff_t B, H, G, D, Dv, L;
    ptrdiff_t Dk; /* the width of `keys` */
    size_t size;  /* of a stored number */
    /* keys, values: as stored in a cache */
    char *q, *k, *v, *keys, *values, *o;
    float *rows, *ae;
    double *coord;
    int tensors;
    loci_tensor tensor[WALK_TENSORS];
    float *data[WALK_TENSORS];
    void *tables, *work;
    loci_error e;
    struct mem mem;
};

static void drop(struct problem *p)
{
    mem_release(&p->mem, 0);
    loci_plan_destroy(p->plan);
}
static bool broken(struct problem *p, const char *what)
{
    CHECK_FAILED("%s, %s: %s", p->desc.encoding, what, p->e.text);
    return false;
}

static void *numbers(struct problem *p, loci_dtype dtype, size_t count, double size)
{
    void *x = mem_alloc(&p->mem, count * stored_size(dtype));
    for (size_t i = 0; i < count; i++) store_stored(x, dtype, (ptrdiff_t)i, size * walk_uniform());
    return x;
}
/* Bytes of n keys, or values, as rows read them. */
static ptrdiff_t key_bytes(const struct problem *p, ptrdiff_t n)
{
    return stored_bytes(p->plan->k_dtype, n * p->Dk);
}
static ptrdiff_t value_bytes(const struct problem *p, ptrdiff_t n)
{
    return stored_bytes(p->plan->v_dtype, n * p->Dv);
}
/* Numbers of `from` rounded to `to`; with `back` as `from` again, those that the rounded ones
 * stand for. */
static void *rounded(struct problem *p, loci_dtype from, loci_dtype to, const void *x, size_t count,
                     bool back)
{
    double *exact = mem_alloc(&p->mem, count * sizeof *exact);
    char *y = mem_alloc(&p->mem, (size_t)stored_bytes(to, (ptrdiff_t)count)),
         *z = mem_alloc(&p->mem, count * stored_size(from));
    for (size_t i = 0; i < count; i++) exact[i] = load_stored(x, from, (ptrdiff_t)i);
    if (loci_round(to, (ptrdiff_t)count, exact, y)) exit(2);
    for (size_t i = 0; i < count && back; i++)
        store_stored(z, from, (ptrdiff_t)i, stored_number(y, to, (ptrdiff_t)i));
    return back ? z : y;
}
static loci_view rows_at(const struct problem *p, char *x, ptrdiff_t heads, ptrdiff_t width,
                         ptrdiff_t from)
{
    return (loci_view){ x + from * width * (ptrdiff_t)p->size, heads * p->L * width, p->L * width,
                        width };
}
/* The part of a tensor for rows from .. and keys from .. of a call. */
static float *cut(struct problem *p, int i, ptrdiff_t q_from, ptrdiff_t q_len, ptrdiff_t k_from,
                  ptrdiff_t k_len)
{
    const loci_tensor *t = &p->tensor[i];
    for (int r = 0; r < t->rank; r++) {
        if (t->shape[r] != LOCI_DIM_KEYS && t->shape[r] != LOCI_DIM_QUERIES) continue;
        const bool query = t->shape[r] == LOCI_DIM_QUERIES;
        const size_t from = (size_t)(query ? q_from : k_from),
                     len = (size_t)(query ? q_len : k_len);
        size_t inner = sizeof(float), outer = walk_count(t, p->B, p->L, p->L);
        for (int k = r + 1; k < t->rank; k++) inner *= (size_t)t->shape[k];
        outer = outer * sizeof(float) / ((size_t)p->L * inner);
        char *to = mem_alloc(&p->mem, outer * len * inner);
        for (size_t o = 0; o < outer; o++)
            memcpy(to + o * len * inner, (char *)p->data[i] + (o * (size_t)p->L + from) * inner,
                   len * inner);
        return (float *)to;
    }
    return p->data[i];
}
/* Coordinates of tokens from .. on, [axes][n]. */
static double *coordinates(struct problem *p, ptrdiff_t from, ptrdiff_t n)
{
    const ptrdiff_t axes = loci_axes(p->plan);
    if (axes < 2) return NULL;
    double *to = mem_alloc(&p->mem, (size_t)(axes * n) * sizeof *to);
    for (ptrdiff_t a = 0; a < axes; a++)
        memcpy(to + a * n, p->coord + a * p->L + from, (size_t)n * sizeof *to);
    return to;
}

/* The outputs of a call besides o. */
static void more_outputs(struct problem *p, loci_call *c, ptrdiff_t n)
{
    float *row = mem_alloc(&p->mem, (size_t)(p->B * p->H * n) * sizeof *row);
    *(p->plan->weight < 0 ? &c->lse : &c->rem) = row;
    c->ae = p->plan->states ? mem_alloc(&p->mem, (size_t)(p->B * p->H * n * p->D) * sizeof(float))
                            : NULL;
}
static bool forward(struct problem *p, loci_call *c)
{
    c->error = &p->e;
    return !loci_forward(p->plan, p->tables, mem_alloc(&p->mem, loci_workspace(p->plan, c, 0)), c);
}

/* The values of a call as a cache stores them. */
static loci_status rotate_values(struct problem *p, const loci_call *c, loci_view to)
{
    return loci_rotate(p->plan, p->tables, mem_alloc(&p->mem, loci_workspace(p->plan, c, 0)), c,
                       LOCI_VALUE, c->v, to);
}

/* The same bits.  NaN is NaN, whatever its sign and payload: processors choose them. */
static bool same_numbers(const void *x, const void *y, loci_dtype type, ptrdiff_t n)
{
    if (!memcmp(x, y, (size_t)n * stored_size(type))) return true;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double a = load_stored(x, type, i), b = load_stored(y, type, i);
        if ((a != b || signbit(a) != signbit(b)) && (a == a || b == b)) return false;
    }
    return true;
}
/* Compares the rows of a call with rows from[b] .. of the whole, starting at the call's row
 * skip[b]. */
static void same_rows(struct problem *p, const char *what, const loci_call *c,
                      const ptrdiff_t *from, const ptrdiff_t *skip)
{
    const float *row = c->lse ? c->lse : c->rem;
    const ptrdiff_t n = c->q_len;
    for (ptrdiff_t i = 0; i < p->B * p->H; i++)
        for (ptrdiff_t r = skip ? skip[i / p->H] : 0; r < n; r++) {
            const ptrdiff_t at = i * p->L + from[i / p->H] + r - (skip ? skip[i / p->H] : 0),
                            mine = i * n + r;
            if (same_numbers((char *)c->o.data + mine * p->Dv * (ptrdiff_t)p->size,
                             p->o + at * p->Dv * (ptrdiff_t)p->size, p->desc.dtype, p->Dv)
                && same_numbers(row + mine, p->rows + at, LOCI_F32, 1)
                && (!c->ae
                    || same_numbers((float *)c->ae + mine * p->D, p->ae + at * p->D, LOCI_F32,
                                    p->D)))
                continue;
            CHECK_FAILED("%s, %s: row %td of head %td differs", p->desc.encoding, what, at % p->L,
                         i);
            return;
        }
    harness_pass();
}
/* The outputs of the call with all rows. */
static void whole_outputs(struct problem *p, loci_call *c)
{
    more_outputs(p, c, p->L);
    p->rows = c->lse ? c->lse : c->rem;
    p->ae = c->ae;
}
/* The call with all rows, in a plan that has one type, on the numbers that rounded keys and values
 * stand for. */
static bool plain_whole(struct problem *p, loci_call *c, const char *k, const char *v)
{
    const size_t rows = (size_t)(p->B * p->G * p->L);
    loci_plan *mixed = p->plan;
    loci_desc d = p->desc;
    d.k_dtype = d.v_dtype = 0;
    if (loci_plan_create(&p->plan, &d, &p->e)) return false;
    c->k = rows_at(p, rounded(p, LOCI_F32, mixed->k_dtype, k, rows * (size_t)p->Dk, true), p->G,
                   p->Dk, 0);
    c->v = rows_at(p, rounded(p, LOCI_F32, mixed->v_dtype, v, rows * (size_t)p->Dv, true), p->G,
                   p->Dv, 0);
    const bool done = forward(p, c);
    loci_plan_destroy(p->plan);
    p->plan = mixed;
    return done;
}
/* The call with all rows, on rounded keys and values.  If queries are floats it has the bits of
 * that call. */
static bool open_rounded(struct problem *p, loci_call *c)
{
    const loci_dtype dtype = p->desc.dtype;
    const size_t rows = (size_t)(p->B * p->G * p->L);
    const ptrdiff_t from[2] = { 0, 0 };
    whole_outputs(p, c);
    if (dtype == LOCI_F32 && !plain_whole(p, c, p->keys, p->values))
        return broken(p, "the whole, of one type");
    p->keys = rounded(p, dtype, p->plan->k_dtype, p->keys, rows * (size_t)p->Dk, false);
    p->values = rounded(p, dtype, p->plan->v_dtype, p->values, rows * (size_t)p->Dv, false);
    loci_call again = *c;
    if (dtype == LOCI_F32) {
        again.o.data = mem_alloc(&p->mem, (size_t)(p->B * p->H * p->L * p->Dv) * p->size);
        again.lse = again.rem = NULL;
        more_outputs(p, &again, p->L);
    }
    again.k = rows_at(p, p->keys, p->G, p->Dk, 0);
    again.v = rows_at(p, p->values, p->G, p->Dv, 0);
    if (!forward(p, &again)) return broken(p, "the whole");
    same_rows(p, "rounded keys and values", &again, from, NULL);
    return true;
}

static bool open(struct problem *p, const char *text, loci_dtype dtype, int64_t window,
                 ptrdiff_t length, int D, int Dv, int heads)
{
    const int kv_heads = heads > 8 ? heads / 8 : heads > 1 ? heads / 2 : 1;
    *p = (struct problem){ .desc = LOCI_DESC(.encoding = text, .heads = heads, .kv_heads = kv_heads,
                                             .dim = D, .value_dim = Dv, .dtype = dtype,
                                             .window_left = window, .fast = fast, .isa = isa,
                                             .k_dtype = k_dtype, .v_dtype = v_dtype),
                           .B = 2,
                           .H = heads,
                           .G = heads > 8 ? heads / 8
                              : heads > 1 ? heads / 2
                                          : 1,
                           .D = D,
                           .Dv = Dv,
                           .L = length,
                           .size = stored_size(dtype) };
    walk_restart(3);
    if (loci_plan_create(&p->plan, &p->desc, &p->e)) return broken(p, "plan");
    if (p->plan->rotate >= 0 && (p->plan->key_heads == p->plan->kv_heads || p->plan->moves >= 0)) {
        loci_plan_destroy(p->plan);
        p->desc.keys_rotated = 1;
        if (loci_plan_create(&p->plan, &p->desc, &p->e)) return broken(p, "plan");
    }
    p->Dk = walk_key_dim(&p->desc);
    const size_t q_rows = (size_t)(p->B * p->H * p->L), k_rows = (size_t)(p->B * p->G * p->L);
    p->q = numbers(p, dtype, q_rows * (size_t)D, 1.5);
    p->k = p->keys = numbers(p, dtype, k_rows * (size_t)D, 1.5);
    p->v = p->values = numbers(p, dtype, k_rows * (size_t)Dv, 1);
    p->o = mem_alloc(&p->mem, q_rows * (size_t)Dv * p->size);
    p->coord = mem_alloc(&p->mem, (size_t)(loci_axes(p->plan) * p->L) * sizeof(double));
    for (ptrdiff_t i = 0; i < loci_axes(p->plan) * p->L; i++) p->coord[i] = walk_coordinate(100);
    p->tensors = loci_tensors(p->plan, p->tensor, WALK_TENSORS);
    for (int i = 0; i < p->tensors; i++) {
        const size_t count = walk_count(&p->tensor[i], p->B, p->L, p->L);
        p->data[i] = numbers(p, LOCI_F32, count, 0.2);
        float *start = mem_alloc(&p->mem, count * sizeof *start);
        memset(start, 0, count * sizeof *start);
        if (p->tensor[i].role != LOCI_INPUT) loci_tensor_init(p->plan, i, 1, start);
        for (size_t n = 0; n < count; n++)
            p->data[i][n] =
                p->tensor[i].role == LOCI_INPUT
                    ? p->data[i][n] - 0.25f
                    : (float)walk_learned(&p->tensor[i], 0.25 + (double)p->data[i][n]) + start[n];
        const bool gates = !strcmp(p->tensor[i].name, "log_f") && !strstr(text, "cape");
        for (size_t n = 41; n < count && gates; n += 97) p->data[i][n] = -1e30f; /* shut */
    }
    const ptrdiff_t range = 2 * length;
    p->tables = mem_alloc(&p->mem, loci_tables_size(p->plan, range));
    loci_call c =
        LOCI_CALL(.batch = 2, .q_len = length, .k_len = length, .q = rows_at(p, p->q, heads, D, 0),
                  .v = rows_at(p, p->v, p->G, Dv, 0), .o = rows_at(p, p->o, heads, Dv, 0),
                  .tensors = (const void *const *)p->data, .error = &p->e);
    c.q_coord = c.k_coord = coordinates(p, 0, length);
    if (loci_prepare(p->plan, range, c.tensors, p->tables)) return broken(p, "tables");
    if (p->desc.keys_rotated) {
        p->keys = mem_alloc(&p->mem, k_rows * (size_t)p->Dk * p->size);
        if (loci_rotate(p->plan, p->tables, mem_alloc(&p->mem, loci_workspace(p->plan, &c, 0)), &c,
                        LOCI_CACHE, rows_at(p, p->k, p->G, D, 0),
                        rows_at(p, p->keys, p->G, p->Dk, 0)))
            return broken(p, "rotation");
    }
    if (p->plan->turns_values) {
        p->values = mem_alloc(&p->mem, k_rows * (size_t)Dv * p->size);
        c.v = rows_at(p, p->v, p->G, Dv, 0);
        if (rotate_values(p, &c, rows_at(p, p->values, p->G, Dv, 0)))
            return broken(p, "rotation of values");
    }
    if (!one_dtype(p->plan)) return open_rounded(p, &c);
    c.k = rows_at(p, p->keys, p->G, p->Dk, 0);
    c.v = rows_at(p, p->values, p->G, Dv, 0);
    whole_outputs(p, &c);
    return forward(p, &c) || broken(p, "the whole");
}

/* A call on rows from .. + n of every entry: q is copied, o and the rest are dense. */
static loci_call rows_call(struct problem *p, const ptrdiff_t *from, ptrdiff_t n)
{
    char *q = mem_alloc(&p->mem, (size_t)(p->B * p->H * n * p->D) * p->size);
    for (ptrdiff_t i = 0; i < p->B * p->H; i++)
        for (ptrdiff_t r = 0; r < n; r++)
            if (from[i / p->H] + r >= 0)
                memcpy(q + (i * n + r) * p->D * (ptrdiff_t)p->size,
                       p->q + (i * p->L + from[i / p->H] + r) * p->D * (ptrdiff_t)p->size,
                       (size_t)p->D * p->size);
    void *o = mem_alloc(&p->mem, (size_t)(p->B * p->H * n * p->Dv) * p->size);
    loci_call c = LOCI_CALL(.batch = p->B, .q_len = n, .q.data = q, .o.data = o, .error = &p->e);
    more_outputs(p, &c, n);
    return c;
}

/* ---- A cache --------------------------------------------------------------------------------- */

static loci_cache *cache_of(struct problem *p, ptrdiff_t capacity, int ring)
{
    loci_cache *cache;
    const size_t bytes = loci_cache_size(p->plan, p->B, capacity);
    if (!bytes
        || loci_cache_create(&cache, p->plan, p->B, capacity, ring, mem_alloc(&p->mem, bytes),
                             &p->e)) {
        broken(p, "cache");
        return NULL;
    }
    return cache;
}
/* Appends tokens from .. + n to all entries and runs their rows. */
static bool step(struct problem *p, loci_cache *cache, const char *what, ptrdiff_t from,
                 ptrdiff_t n)
{
    const ptrdiff_t at[2] = { from, from };
    void *data[WALK_TENSORS];
    loci_call c = rows_call(p, at, n);
    for (int i = 0; i < p->tensors; i++) data[i] = cut(p, i, from, n, from, n);
    c.k_len = n;
    c.cache = cache;
    c.tensors = (const void *const *)data;
    c.k = rows_at(p, p->k, p->G, p->D, from);
    c.v = rows_at(p, p->v, p->G, p->Dv, from);
    c.q_coord = c.k_coord = coordinates(p, from, n);
    void *work = mem_alloc(&p->mem, loci_workspace(p->plan, &c, 0));
    if (loci_cache_append(p->plan, p->tables, work, cache, &c)
        || loci_forward(p->plan, p->tables, work, &c))
        return broken(p, what);
    same_rows(p, what, &c, at, NULL);
    return true;
}
/* One workspace serves all calls of at most that many rows. */
static void mem(struct problem *p, loci_cache *cache)
{
    const ptrdiff_t from[2] = { 0, 0 }, many = 70;
    loci_call c = rows_call(p, from, many);
    c.cache = cache;
    c.k_len = many;
    c.q_coord = c.k_coord = coordinates(p, 0, many);
    const size_t bytes = loci_workspace(p->plan, &c, 0);
    for (c.q_len = c.k_len = 1; bytes && c.q_len < many; c.q_len++, c.k_len++) {
        const size_t fewer = loci_workspace(p->plan, &c, 0);
        if (fewer && fewer <= bytes) continue;
        CHECK_FAILED("%s: %td rows want %zu bytes of workspace, %td rows %zu", p->desc.encoding,
                     c.q_len, fewer, many, bytes);
        return;
    }
    CHECK_THAT(bytes, "%s: %td rows want no workspace", p->desc.encoding, many);
}
static void steps(struct problem *p, const char *what, ptrdiff_t capacity, int ring, ptrdiff_t most,
                  ptrdiff_t from)
{
    static const ptrdiff_t cuts[] = { 5, 1, 70, 3, 64, 1, 2, 33 };
    const int before = p->mem.blocks;
    loci_cache *cache = cache_of(p, capacity, ring);
    if (cache) mem(p, cache);
    const int mine = p->mem.blocks;
    for (ptrdiff_t at = 0, i = 0, n; cache && at < p->L; at += n, i++) {
        n = from && at < from ? from : cuts[i % COUNT(cuts)];
        if (n > most) n = most;
        if (n > p->L - at) n = p->L - at;
        if (!step(p, cache, what, at, n)) break;
        mem_release(&p->mem, mine);
    }
    mem_release(&p->mem, before);
}

/* Appends, removes the last keys, appends again, then removes keys in the middle. */
static void forget(struct problem *p)
{
    const int before = p->mem.blocks;
    loci_cache *cache = cache_of(p, p->L, 0);
    if (!cache) return;
    bool ok = step(p, cache, "before truncate", 0, p->L);
    for (ptrdiff_t b = 0; b < p->B && ok; b++)
        ok = !loci_cache_truncate(cache, b, p->L - 77, &p->e);
    if (!ok) broken(p, "truncate");
    else if (step(p, cache, "after truncate", p->L - 77, 13))
        step(p, cache, "after truncate", p->L - 64, 64);
    mem_release(&p->mem, before);
}
static void removal(struct problem *p)
{
    const ptrdiff_t first = 21, count = 50, from[2] = { p->L - 1, p->L - 1 }, left = p->L - count;
    const int before = p->mem.blocks;
    loci_cache *cache = cache_of(p, p->L, 0);
    if (!cache || !step(p, cache, "before remove", 0, p->L)) return;
    void *data[WALK_TENSORS];
    loci_call c = rows_call(p, from, 1), alone = rows_call(p, from, 1);
    for (int i = 0; i < p->tensors; i++) data[i] = cut(p, i, p->L - 1, 1, 0, 1);
    c.tensors = (const void *const *)data;
    c.cache = cache;
    for (ptrdiff_t b = 0; b < p->B; b++)
        if (loci_cache_remove(p->plan, p->tables,
                              mem_alloc(&p->mem, loci_workspace(p->plan, &c, 0)), cache, b, first,
                              count, &c)
            || loci_cache_length(cache, b) != left) {
            broken(p, "remove");
            return;
        }
    /* The same keys in one piece: those behind the gap, rotated for their new positions. */
    char *k = mem_alloc(&p->mem, (size_t)(p->B * p->G * left * p->D) * p->size),
         *v = mem_alloc(&p->mem, (size_t)(p->B * p->G * left * p->Dv) * p->size);
    for (ptrdiff_t i = 0; i < p->B * p->G; i++)
        for (ptrdiff_t j = 0; j < left; j++) {
            const ptrdiff_t old = i * p->L + (j < first ? j : j + count), now = i * left + j;
            memcpy(k + now * p->D * (ptrdiff_t)p->size, p->k + old * p->D * (ptrdiff_t)p->size,
                   (size_t)p->D * p->size);
            memcpy(v + now * p->Dv * (ptrdiff_t)p->size, p->v + old * p->Dv * (ptrdiff_t)p->size,
                   (size_t)p->Dv * p->size);
        }
    for (int i = 0; i < p->tensors; i++) {
        const float *head = cut(p, i, p->L - 1, 1, 0, first),
                    *tail = cut(p, i, p->L - 1, 1, first + count, left - first);
        data[i] = (void *)tail;
        size_t inner = 1, outer = walk_count(&p->tensor[i], p->B, 1, 1);
        bool by_key = false;
        for (int r = 0; r < p->tensor[i].rank; r++) {
            if (by_key) inner *= (size_t)p->tensor[i].shape[r];
            by_key |= p->tensor[i].shape[r] == LOCI_DIM_KEYS;
        }
        if (!by_key) continue;
        outer /= inner;
        float *both = data[i] = mem_alloc(&p->mem, outer * (size_t)left * inner * sizeof *both);
        for (size_t o = 0; o < outer; o++) {
            memcpy(both + o * (size_t)left * inner, head + o * (size_t)first * inner,
                   (size_t)first * inner * sizeof *both);
            memcpy(both + (o * (size_t)left + (size_t)first) * inner,
                   tail + o * (size_t)(left - first) * inner,
                   (size_t)(left - first) * inner * sizeof *both);
        }
    }
    alone.tensors = (const void *const *)data;
    alone.k_len = left;
    alone.k.data = k;
    alone.v.data = v;
    if (p->desc.keys_rotated
        && loci_rotate(p->plan, p->tables, mem_alloc(&p->mem, loci_workspace(p->plan, &alone, 0)),
                       &alone, LOCI_CACHE, alone.k, alone.k)) {
        broken(p, "rotation");
        return;
    }
    if (p->plan->turns_values && rotate_values(p, &alone, alone.v)) {
        broken(p, "rotation");
        return;
    }
    if (!one_dtype(p->plan)) {
        const size_t rows = (size_t)(p->B * p->G * left);
        alone.k.data =
            rounded(p, p->desc.dtype, p->plan->k_dtype, alone.k.data, rows * (size_t)p->Dk, false);
        alone.v.data =
            rounded(p, p->desc.dtype, p->plan->v_dtype, alone.v.data, rows * (size_t)p->Dv, false);
    }
    for (int i = 0; i < p->tensors; i++)
        if (p->tensor[i].role != LOCI_INPUT) data[i] = p->data[i];
    if (!forward(p, &c) || !forward(p, &alone)) {
        broken(p, "after remove");
        return;
    }
    double most = 0; /* keys that are rotated twice are rounded twice */
    for (ptrdiff_t i = 0; i < p->B * p->H * p->Dv; i++)
        most = fmax(most, fabs(load_stored(c.o.data, p->desc.dtype, i)
                               - load_stored(alone.o.data, p->desc.dtype, i)));
    const bool exact = p->desc.dtype == LOCI_F32 && one_dtype(p->plan);
    const double allowed = !p->desc.keys_rotated ? 0 : exact ? 1e-4 : 5e-2;
    CHECK_THAT(most <= allowed, "%s: after remove, o is off by %.1e", p->desc.encoding, most);
    mem_release(&p->mem, before);
}

/* Entries of different lengths, appended in two ragged batches that are aligned at their ends. */
static void ragged_cache(struct problem *p)
{
    static const int64_t counts[2][2] = { { 40, 71 }, { 30, 2 } };
    ptrdiff_t old[2] = { 0, 0 };
    const int before = p->mem.blocks;
    loci_cache *cache = cache_of(p, 80, 0);
    for (int s = 0; s < 2 && cache && loci_axes(p->plan) == 1; s++) {
        const ptrdiff_t n = counts[s][0] > counts[s][1] ? counts[s][0] : counts[s][1];
        const ptrdiff_t from[2] = { old[0] + counts[s][0] - n, old[1] + counts[s][1] - n },
                        skip[2] = { n - counts[s][0], n - counts[s][1] };
        loci_call c = rows_call(p, from, n);
        char *k = mem_alloc(&p->mem, (size_t)(p->B * p->G * n * p->D) * p->size),
             *v = mem_alloc(&p->mem, (size_t)(p->B * p->G * n * p->Dv) * p->size);
        for (ptrdiff_t i = 0; i < p->B * p->G; i++)
            for (ptrdiff_t r = skip[i / p->G]; r < n; r++) {
                const ptrdiff_t at = i * p->L + from[i / p->G] + r, mine = i * n + r;
                memcpy(k + mine * p->D * (ptrdiff_t)p->size, p->k + at * p->D * (ptrdiff_t)p->size,
                       (size_t)p->D * p->size);
                memcpy(v + mine * p->Dv * (ptrdiff_t)p->size,
                       p->v + at * p->Dv * (ptrdiff_t)p->size, (size_t)p->Dv * p->size);
            }
        void *data[WALK_TENSORS];
        for (int i = 0; i < p->tensors; i++) {
            data[i] = p->data[i];
            const loci_tensor *t = &p->tensor[i];
            if (t->role != LOCI_INPUT) continue;
            const size_t count = walk_count(t, p->B, n, n),
                         inner = count / (size_t)(p->B * t->shape[1] * n);
            float *to = data[i] = mem_alloc(&p->mem, count * sizeof *to);
            for (ptrdiff_t row = 0; row < p->B * t->shape[1]; row++)
                for (ptrdiff_t r = skip[row / t->shape[1]]; r < n; r++)
                    memcpy(to + (size_t)(row * n + r) * inner,
                           p->data[i] + (size_t)(row * p->L + from[row / t->shape[1]] + r) * inner,
                           inner * sizeof *to);
        }
        c.k_len = n;
        c.k_lens = counts[s];
        c.cache = cache;
        c.k.data = k;
        c.v.data = v;
        c.tensors = (const void *const *)data;
        void *work = mem_alloc(&p->mem, loci_workspace(p->plan, &c, 0));
        if (loci_cache_append(p->plan, p->tables, work, cache, &c)
            || loci_forward(p->plan, p->tables, work, &c)) {
            broken(p, "ragged cache");
            break;
        }
        for (int b = 0; b < 2; b++) old[b] += (ptrdiff_t)counts[s][b];
        ptrdiff_t first[2] = { from[0] + skip[0], from[1] + skip[1] };
        same_rows(p, "ragged cache", &c, first, skip);
    }
    mem_release(&p->mem, before);
}

/* ---- Pages, and fewer keys than the capacity ------------------------------------------------- */

/* Keys beyond an entry's own are NaN. */
static void poison(const struct problem *p, char *x, ptrdiff_t row, const int64_t *lens)
{
    for (ptrdiff_t i = 0; i < p->B * p->G; i++)
        memset(x + (i * p->L + lens[i / p->G]) * row, 0xff,
               (size_t)((p->L - lens[i / p->G]) * row));
}
static void lengths(struct problem *p, ptrdiff_t n)
{
    const int64_t lens[2] = { p->L, p->L - 37 };
    const ptrdiff_t from[2] = { p->L - n, p->L - 37 - n };
    const int before = p->mem.blocks;
    const size_t k_bytes = (size_t)key_bytes(p, p->B * p->G * p->L),
                 v_bytes = (size_t)value_bytes(p, p->B * p->G * p->L);
    char *k = memcpy(mem_alloc(&p->mem, k_bytes), p->keys, k_bytes),
         *v = memcpy(mem_alloc(&p->mem, v_bytes), p->values, v_bytes);
    poison(p, k, key_bytes(p, 1), lens);
    poison(p, v, value_bytes(p, 1), lens);
    loci_call c = rows_call(p, from, n);
    c.k_len = p->L;
    c.k_lens = lens;
    c.k = rows_at(p, k, p->G, p->Dk, 0);
    c.v.data = v;
    void *data[WALK_TENSORS];
    /* rows of the entries differ, and so would those inputs */
    bool by_query = loci_axes(p->plan) > 1;
    for (int i = 0; i < p->tensors; i++) {
        data[i] = p->data[i];
        for (int r = 0; r < p->tensor[i].rank; r++)
            by_query |= p->tensor[i].shape[r] == LOCI_DIM_QUERIES;
    }
    c.tensors = (const void *const *)data;
    if (by_query) harness_pass();
    else if (!forward(p, &c)) broken(p, "lengths");
    else same_rows(p, "lengths", &c, from, NULL);
    mem_release(&p->mem, before);
}
/* Gradients of a batch whose entries have different lengths are those of each entry alone.
 * Gradients of missing keys are 0. */
static void lengths_back(struct problem *p)
{
    const ptrdiff_t n = p->L - 37, from[2] = { p->L - n, 0 }, qn = p->H * n,
                    k_entry = p->G * p->L * p->Dk, v_entry = p->G * p->L * p->Dv;
    const int64_t lens[2] = { p->L, n };
    const int before = p->mem.blocks;
    const size_t size = p->size, q_bytes = (size_t)(p->B * qn * p->D) * size,
                 k_bytes = (size_t)(p->B * k_entry) * size,
                 v_bytes = (size_t)(p->B * v_entry) * size;
    char *k = memcpy(mem_alloc(&p->mem, k_bytes), p->keys, k_bytes),
         *v = memcpy(mem_alloc(&p->mem, v_bytes), p->values, v_bytes);
    poison(p, k, key_bytes(p, 1), lens);
    poison(p, v, value_bytes(p, 1), lens);
    char *dout = numbers(p, p->desc.dtype, (size_t)(p->B * qn * p->Dv), 1);
    loci_call c = rows_call(p, from, n);
    c.k_len = p->L;
    c.k_lens = lens;
    c.k = rows_at(p, k, p->G, p->Dk, 0);
    c.v = rows_at(p, v, p->G, p->Dv, 0);
    c.tensors = (const void *const *)p->data;
    loci_grad g = LOCI_GRAD(.dout.data = dout, .dq.data = mem_alloc(&p->mem, q_bytes),
                            .dk = rows_at(p, mem_alloc(&p->mem, k_bytes), p->G, p->Dk, 0),
                            .dv.data = mem_alloc(&p->mem, v_bytes));
    void *work = mem_alloc(&p->mem, loci_workspace(p->plan, &c, 1));
    bool ok = forward(p, &c) && !loci_backward(p->plan, p->tables, work, &c, &g);
    for (ptrdiff_t b = 0; b < 2 && ok; b++) {
        const float *rows = (c.lse ? c.lse : c.rem);
        void *data[WALK_TENSORS];
        /* of this entry, up to its number of keys */
        for (int i = 0; i < p->tensors; i++) {
            const loci_tensor *t = &p->tensor[i];
            data[i] = p->data[i];
            if (t->role != LOCI_INPUT) continue;
            const size_t heads = (size_t)t->shape[1], all = walk_count(t, p->B, p->L, p->L) / 2,
                         inner = all / heads / (size_t)p->L, len = (size_t)lens[b];
            if (t->shape[2] == LOCI_DIM_QUERIES) {
                data[i] = p->data[i] + (size_t)b * heads * (size_t)n * inner;
                continue;
            }
            float *to = data[i] = mem_alloc(&p->mem, heads * len * inner * sizeof *to);
            for (size_t h = 0; h < heads; h++)
                memcpy(to + h * len * inner,
                       p->data[i] + (size_t)b * all + h * (size_t)p->L * inner,
                       len * inner * sizeof *to);
        }
        loci_call one = c;
        one.batch = 1;
        one.k_lens = NULL;
        one.k_len = lens[b];
        one.tensors = (const void *const *)data;
        one.q.data = (char *)c.q.data + b * qn * p->D * (ptrdiff_t)size;
        one.o.data = (char *)c.o.data + b * qn * p->Dv * (ptrdiff_t)size;
        one.k.data = k + b * k_entry * (ptrdiff_t)size;
        one.v.data = v + b * v_entry * (ptrdiff_t)size;
        *(c.lse ? &one.lse : &one.rem) = (float *)rows + b * qn;
        loci_grad alone = LOCI_GRAD(.dout.data = dout + b * qn * p->Dv * (ptrdiff_t)size,
                                    .dq.data = mem_alloc(&p->mem, q_bytes),
                                    .dk = rows_at(p, mem_alloc(&p->mem, k_bytes), p->G, p->Dk, 0),
                                    .dv = rows_at(p, mem_alloc(&p->mem, v_bytes), p->G, p->Dv, 0));
        ok = !loci_backward(p->plan, p->tables,
                            mem_alloc(&p->mem, loci_workspace(p->plan, &one, 1)), &one, &alone);
        bool same = ok
                 && !memcmp(alone.dq.data, (char *)g.dq.data + b * qn * p->D * (ptrdiff_t)size,
                            q_bytes / 2),
             zero = true;
        for (ptrdiff_t h = 0; h < p->G && ok; h++) {
            const ptrdiff_t at = h * p->L * (ptrdiff_t)size, first = b * (ptrdiff_t)size;
            same &= !memcmp((char *)alone.dk.data + at * p->Dk,
                            (char *)g.dk.data + first * k_entry + at * p->Dk,
                            (size_t)(lens[b] * p->Dk) * size);
            same &= !memcmp((char *)alone.dv.data + at * p->Dv,
                            (char *)g.dv.data + first * v_entry + at * p->Dv,
                            (size_t)(lens[b] * p->Dv) * size);
            for (ptrdiff_t i = lens[b] * p->Dk; i < p->L * p->Dk; i++)
                zero &=
                    load_stored(g.dk.data, p->desc.dtype, b * k_entry + h * p->L * p->Dk + i) == 0;
            for (ptrdiff_t i = lens[b] * p->Dv; i < p->L * p->Dv; i++)
                zero &=
                    load_stored(g.dv.data, p->desc.dtype, b * v_entry + h * p->L * p->Dv + i) == 0;
        }
        if (ok)
            CHECK_THAT(same && zero, "%s, gradients of lengths: entry %td differs%s",
                       p->desc.encoding, b, zero ? "" : ", or keys that are not there have some");
    }
    if (!ok) broken(p, "gradients of lengths");
    mem_release(&p->mem, before);
}
static void paged(struct problem *p, ptrdiff_t length, ptrdiff_t n)
{
    const ptrdiff_t each = (p->L + length - 1) / length, pages = p->B * each + 3,
                    from[2] = { p->L - n, p->L - n };
    const int before = p->mem.blocks;
    int32_t *table = mem_alloc(&p->mem, (size_t)(p->B * each) * sizeof *table);
    const ptrdiff_t k_row = key_bytes(p, 1), v_row = value_bytes(p, 1);
    char *k = mem_alloc(&p->mem, (size_t)(pages * p->G * length * k_row)),
         *v = mem_alloc(&p->mem, (size_t)(pages * p->G * length * v_row));
    for (ptrdiff_t i = 0; i < p->B * each; i++) table[i] = (int32_t)((i * 7 + 2) % pages);
    /* steps of 7 may collide: then the next free page is used */
    for (ptrdiff_t i = 1; i < p->B * each; i++)
        for (ptrdiff_t j = 0; j < i; j++)
            if (table[j] == table[i]) {
                table[i] = (int32_t)((table[i] + 1) % pages);
                j = -1;
            }
    for (ptrdiff_t b = 0; b < p->B; b++)
        for (ptrdiff_t g = 0; g < p->G; g++)
            for (ptrdiff_t j = 0; j < p->L; j++) {
                const ptrdiff_t now =
                                    (table[b * each + j / length] * p->G + g) * length + j % length,
                                old = (b * p->G + g) * p->L + j;
                memcpy(k + now * k_row, p->keys + old * k_row, (size_t)k_row);
                memcpy(v + now * v_row, p->values + old * v_row, (size_t)v_row);
            }
    const loci_pages list = { table, length, each };
    loci_call c = rows_call(p, from, n);
    c.k_len = p->L;
    c.pages = &list;
    c.k = (loci_view){ k, p->G * length * p->Dk, length * p->Dk, p->Dk };
    c.v.data = v;
    void *data[WALK_TENSORS];
    for (int i = 0; i < p->tensors; i++) data[i] = cut(p, i, p->L - n, n, 0, p->L);
    c.tensors = (const void *const *)data;
    c.q_coord = coordinates(p, p->L - n, n);
    c.k_coord = coordinates(p, 0, p->L);
    if (!forward(p, &c)) broken(p, "pages");
    else same_rows(p, "pages", &c, from, NULL);
    mem_release(&p->mem, before);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

/* Types of keys and values that cannot be. */
static void misuse_types(void)
{
    struct problem p;
    loci_plan *plan;
    loci_cache *other;
    loci_error e = { 0 };
    const double x[Q8_BLOCK] = { 0 };
    uint16_t y[Q8_BYTES];
    loci_desc d = LOCI_DESC(.heads = 2, .dim = 48, .value_dim = 32, .k_dtype = LOCI_Q8_0);
    CHECK_SAYS(loci_plan_create(&plan, &d, &e), LOCI_BAD_ARG, &e, "32 numbers",
               "the width of keys, 48");
    d.k_dtype = 0;
    d.value_dim = 40;
    d.v_dtype = LOCI_Q8_0;
    CHECK_SAYS(loci_plan_create(&plan, &d, &e), LOCI_BAD_ARG, &e, "the width of values, 40");
    d.v_dtype = LOCI_F64;
    CHECK_SAYS(loci_plan_create(&plan, &d, &e), LOCI_BAD_ARG, &e, "v_dtype 1 must be LOCI_BF16");
    d = (loci_desc)LOCI_DESC(.heads = 2, .dim = 32, .dtype = LOCI_Q8_0);
    CHECK_SAYS(loci_plan_create(&plan, &d, &e), LOCI_BAD_ARG, &e, "dtype 4 must be");
    d = (loci_desc)LOCI_DESC(.encoding = "rope:pairing=half", .stage = LOCI_ROTATE, .heads = 2,
                             .dim = 32, .k_dtype = LOCI_F16);
    CHECK_SAYS(loci_plan_create(&plan, &d, &e), LOCI_BAD_ARG, &e,
               "k_dtype must be 0 in stages other than ATTENTION");
    CHECK_THAT(loci_round(LOCI_Q8_0, 31, x, y) == LOCI_BAD_ARG, "half a block");
    k_dtype = LOCI_Q8_0;
    if (open(&p, "nope", LOCI_F32, 0, 20, 32, 32, 2)) {
        loci_call c = rows_call(&p, (const ptrdiff_t[]){ 0, 0 }, 5);
        const loci_grad g = LOCI_GRAD(.dout.data = c.o.data, .dq.data = p.q);
        c.k_len = 20;
        c.k = rows_at(&p, p.keys, p.G, p.D, 0);
        c.v = rows_at(&p, p.values, p.G, p.Dv, 0);
        c.error = &e;
        CHECK_SAYS(loci_backward(p.plan, p.tables, p.q, &c, &g), LOCI_UNSUPPORTED, &e,
                   "k_dtype and v_dtype must be 0", "have no gradients");
        c.k.row = 33;
        CHECK_SAYS(loci_forward(p.plan, p.tables, p.q, &c), LOCI_BAD_ARG, &e,
                   "k: stride 33 must be a multiple of the 32 numbers of a block");
        loci_cache *cache = cache_of(&p, 20, 0);
        d = p.desc;
        d.k_dtype = LOCI_F16;
        if (cache && !loci_plan_create(&plan, &d, &e)) {
            CHECK_SAYS(loci_cache_open(&other, plan, cache, (size_t)1 << 40, &e), LOCI_BAD_ARG, &e,
                       "dtypes");
            loci_plan_destroy(plan);
        }
    }
    drop(&p);
    k_dtype = 0;
}
static void misuse(void)
{
    struct problem p;
    loci_cache *cache, *other;
    loci_error e = { 0 };
    if (!open(&p, "rope:pairing=half", LOCI_F32, 0, 100, 16, 16, 2)
        || !(cache = cache_of(&p, 100, 0)))
        return;
    const ptrdiff_t from[2] = { 0, 0 };
    loci_call c = rows_call(&p, from, 10);
    c.k_len = 10;
    c.cache = cache;
    c.error = &e;
    c.k = rows_at(&p, p.k, p.G, p.D, 0);
    c.v = rows_at(&p, p.v, p.G, p.Dv, 0);
    void *work = mem_alloc(&p.mem, loci_workspace(p.plan, &c, 0)),
         *memory = mem_alloc(&p.mem, loci_cache_size(p.plan, 2, 100));
    CHECK_SAYS(loci_cache_create(NULL, p.plan, 2, 100, 0, memory, &e), LOCI_BAD_ARG, &e,
               "cache must not be NULL");
    CHECK_SAYS(loci_cache_create(&other, p.plan, 2, 0, 0, memory, &e), LOCI_BAD_ARG, &e,
               "capacity 0");
    CHECK_SAYS(loci_cache_create(&other, p.plan, -1, 100, 0, memory, &e), LOCI_BAD_ARG, &e,
               "batch -1");
    CHECK_SAYS(loci_cache_create(&other, p.plan, 2, 100, 0, (char *)memory + 8, &e), LOCI_BAD_ARG,
               &e, "aligned to 64 bytes");
    CHECK_SAYS(loci_cache_create(&other, p.plan, 2, 100, 1, memory, &e), LOCI_BAD_ARG, &e,
               "so the plan must have a window");
    CHECK_SAYS(loci_cache_create(&other, p.plan, POWER(30), POWER(40), 0, memory, &e), LOCI_BAD_ARG,
               &e, "more bytes than size_t can count");
    CHECK_THAT(loci_cache_size(p.plan, POWER(32), POWER(40)) == 0
                   && loci_cache_size(NULL, 1, 1) == 0,
               "no size");
    CHECK_THAT(loci_cache_length(cache, 2) == LOCI_NONE && loci_cache_length(NULL, 0) == LOCI_NONE,
               "no entry");
    CHECK_SAYS(loci_cache_truncate(cache, 2, 0, &e), LOCI_BAD_ARG, &e, "entry 2 must be");
    CHECK_SAYS(loci_cache_truncate(cache, 1, 1, &e), LOCI_BAD_ARG, &e,
               "length 1 must be from 0 to 0");
    CHECK_SAYS(loci_cache_remove(p.plan, p.tables, work, cache, 0, 5, 5, &c), LOCI_BAD_ARG, &e,
               "5 keys from key 5 on");
    c.batch = 1;
    CHECK_SAYS(loci_cache_append(p.plan, p.tables, work, cache, &c), LOCI_BAD_ARG, &e,
               "batch 1 must be that of the cache, 2");
    c.batch = 2;
    c.k_len = 200;
    CHECK_SAYS(loci_cache_append(p.plan, p.tables, work, cache, &c), LOCI_BAD_ARG, &e, "k_len 200");
    c.k_len = 10;
    c.k.data = NULL;
    CHECK_SAYS(loci_cache_append(p.plan, p.tables, work, cache, &c), LOCI_BAD_ARG, &e,
               "k and v must not be NULL");
    c.k = rows_at(&p, p.k, p.G, p.D, 0);
    c.k_lens = (const int64_t[]){ 3, 11 };
    CHECK_SAYS(loci_cache_append(p.plan, p.tables, work, cache, &c), LOCI_BAD_ARG, &e,
               "k_lens: entry 1 has 11 keys");
    c.k_lens = NULL;
    /* 128 is the tiles' capacity */
    for (int i = 0; i < 12; i++)
        CHECK_THAT(!loci_cache_append(p.plan, p.tables, work, cache, &c), "append");
    CHECK_SAYS(loci_cache_append(p.plan, p.tables, work, cache, &c), LOCI_BAD_ARG, &e,
               "10 more do not fit");
    CHECK_THAT(loci_cache_length(cache, 0) == 120 && loci_cache_length(cache, 1) == 120,
               "nothing was added");
    c.k_len = 1;
    c.k_pos = (const int64_t[]){ 7 };
    CHECK_SAYS(loci_cache_append(p.plan, p.tables, work, cache, &c), LOCI_BAD_ARG, &e,
               "k_pos must be NULL: entry");
    c.k_pos = NULL;
    const loci_pages pages = { .table = (const int32_t[]){ 0, -1 }, .length = 100, .entry = 1 };
    c.pages = &pages;
    CHECK_SAYS(loci_forward(p.plan, p.tables, work, &c), LOCI_BAD_ARG, &e,
               "pages must be NULL with a cache");
    c.cache = NULL;
    c.k_len = 100;
    CHECK_SAYS(loci_forward(p.plan, p.tables, work, &c), LOCI_BAD_ARG, &e,
               "is -1, but must not be negative");
    c.pages = &(const loci_pages){ .table = pages.table, .length = 0 };
    CHECK_SAYS(loci_forward(p.plan, p.tables, work, &c), LOCI_BAD_ARG, &e, "length 0 must be");
    c.pages = &(const loci_pages){ .table = pages.table, .length = 10, .entry = 9 };
    CHECK_SAYS(loci_forward(p.plan, p.tables, work, &c), LOCI_BAD_ARG, &e,
               "entry 9 is less than the 10 pages");
    c.pages = &pages;
    loci_grad g = LOCI_GRAD();
    CHECK_SAYS(loci_backward(p.plan, p.tables, work, &c, &g), LOCI_BAD_ARG, &e,
               "pages and cache must be NULL");
    c.pages = NULL;
    c.k_lens = (const int64_t[]){ 3, 101 };
    CHECK_SAYS(loci_forward(p.plan, p.tables, work, &c), LOCI_BAD_ARG, &e,
               "entry 1 has 101 keys, and k_len is 100");
    c.k_len = 0;
    c.k_lens = (const int64_t[]){ 0, 5 };
    CHECK_SAYS(loci_forward(p.plan, p.tables, work, &c), LOCI_BAD_ARG, &e,
               "entry 1 has 5 keys, and k_len is 0");
    c.k_len = 100;
    c.k_lens = NULL;
    c.cache = (loci_cache *)memory;
    CHECK_SAYS(loci_forward(p.plan, p.tables, work, &c), LOCI_BAD_ARG, &e,
               "cache is damaged or was not made");
    struct problem q;
    if (open(&q, "rope:pairing=half", LOCI_F16, 0, 100, 16, 16, 2)) {
        c.cache = cache;
        CHECK_SAYS(loci_forward(q.plan, q.tables, work, &c), LOCI_BAD_ARG, &e,
                   "belongs to another plan");
        loci_plan_destroy(q.plan);
        q.desc.keys_rotated = 0;
        CHECK_THAT(!loci_plan_create(&q.plan, &q.desc, &e), "plan");
        CHECK_SAYS(loci_cache_create(&other, q.plan, 2, 100, 0, memory, &e), LOCI_BAD_ARG, &e,
                   "keys_rotated must be 1");
    }
    drop(&q);
    if (open(&q, "fope", LOCI_F32, 0, 20, 16, 16, 2) && (cache = cache_of(&q, 20, 0))) {
        c = rows_call(&q, from, 1);
        c.cache = cache;
        c.error = &e;
        CHECK_SAYS(loci_cache_remove(q.plan, q.tables, work, cache, 0, 0, 0, &c), LOCI_BAD_ARG, &e,
                   "keys of fope cannot be rotated to other positions");
    }
    drop(&q);
    if (open(&q, "fox", LOCI_F32, 20, 100, 16, 16, 2))
        CHECK_SAYS(loci_cache_create(&other, q.plan, 2, 200, 1, memory, &e), LOCI_BAD_ARG, &e,
                   "set ring = 0");
    drop(&q);
    drop(&p);
}

/* Keys whose positions differ from their numbers. */
static void placed(const char *text)
{
    struct problem p;
    int64_t pos[150];
    if (!open(&p, text, LOCI_F32, 0, 150, 16, 16, 2)) return;
    for (int i = 0; i < 150; i++) pos[i] = 3 * i / 2 + 4;
    loci_cache *cache = cache_of(&p, 150, 0);
    const ptrdiff_t from[2] = { 0, 0 }, last[2] = { 149, 149 };
    loci_call c = rows_call(&p, from, 150), whole = rows_call(&p, last, 1),
              one = rows_call(&p, last, 1);
    c.k_len = whole.k_len = 150;
    c.cache = one.cache = cache;
    c.tensors = whole.tensors = one.tensors = (const void *const *)p.data;
    c.k = whole.k = rows_at(&p, p.k, p.G, p.D, 0);
    c.v = whole.v = rows_at(&p, p.v, p.G, p.Dv, 0);
    c.q_pos = c.k_pos = whole.k_pos = pos;
    whole.q_pos = one.q_pos = pos + 149;
    char *k = mem_alloc(&p.mem, (size_t)(p.B * p.G * 150 * p.D) * p.size);
    if (p.desc.keys_rotated
        && loci_rotate(p.plan, p.tables, mem_alloc(&p.mem, loci_workspace(p.plan, &whole, 0)),
                       &whole, LOCI_CACHE, whole.k, rows_at(&p, k, p.G, p.D, 0)))
        broken(&p, "rotation");
    else if (p.desc.keys_rotated) whole.k = rows_at(&p, k, p.G, p.D, 0);
    char *v = mem_alloc(&p.mem, (size_t)(p.B * p.G * 150 * p.Dv) * p.size);
    if (p.plan->turns_values) {
        if (rotate_values(&p, &whole, rows_at(&p, v, p.G, p.Dv, 0)))
            broken(&p, "rotation of values");
        whole.v = rows_at(&p, v, p.G, p.Dv, 0);
    }
    if (loci_cache_append(p.plan, p.tables, mem_alloc(&p.mem, loci_workspace(p.plan, &c, 0)), cache,
                          &c)
        || !forward(&p, &whole) || !forward(&p, &one)) {
        broken(&p, "positions");
    } else {
        CHECK_THAT(!memcmp(whole.o.data, one.o.data, (size_t)(p.B * p.H * p.Dv) * p.size),
                   "positions of its own");
        one.q_pos = NULL;
        CHECK_THAT(!forward(&p, &one) && strstr(p.e.text, "q_pos must be given"),
                   "rows without positions");
    }
    drop(&p);
}

/* Does a cache of this plan store inputs by key?  A ring does not. */
static bool stores_inputs(const struct problem *p)
{
    for (int n = 0; n < p->tensors; n++)
        if (is_by_key(p->plan, n) && !rotated_already(p->plan, n)) return true;
    return false;
}

/* Other types of keys and values. */
static void mixed(const char *text, loci_dtype dtype, loci_dtype keys, loci_dtype values)
{
    struct problem p;
    const struct loci_plan *plan;
    /* a multiple of the numbers of a block of q8_0 and of what encodings ask for */
    const int dim = walk_dim(text, 96), value_dim = strstr(text, "path") ? dim : 32;
    k_dtype = keys;
    v_dtype = values;
    if (open(&p, text, dtype, 0, 150, dim, value_dim, 4)) {
        plan = p.plan;
        steps(&p, "a cache of other types", 150, 0, 150, 0);
        ragged_cache(&p);
        forget(&p);
        if (loci_axes(plan) == 1
            && (plan->rotate < 0 || !term_is(plan->use[plan->rotate].term, NOT_AGAIN)))
            removal(&p);
        lengths(&p, 1);
        lengths(&p, 9);
        paged(&p, 16, 1);
        paged(&p, 7, 40);
    }
    drop(&p);
    if (open(&p, text, dtype, 40, 260, dim, value_dim, 4) && !stores_inputs(&p))
        steps(&p, "a ring of other types", 192, 1, 80, 0);
    drop(&p);
    k_dtype = v_dtype = 0;
}

/* Values that are channels of the keys: the bits of a call whose view v points to k. */
struct latent {
    loci_plan *plain, *plan;
    ptrdiff_t heads, L;
    float *q, *k, *o, *lse; /* o and lse: of all rows */
    void *keys;             /* as they are stored */
    void *tables;
    struct mem mem;
    loci_error e;
};
enum { LATENT = 96, LATENT_VALUES = 64 };
/* The last n rows, by views, pages or a cache, against those of the whole. */
static void latent_rows(struct latent *t, const char *what, ptrdiff_t last, ptrdiff_t n,
                        loci_call c)
{
    const size_t rows = (size_t)(t->heads * n);
    float *q = mem_alloc(&t->mem, rows * LATENT * sizeof *q),
          *o = mem_alloc(&t->mem, rows * LATENT_VALUES * sizeof *o),
          *lse = mem_alloc(&t->mem, rows * sizeof *lse);
    for (ptrdiff_t h = 0; h < t->heads; h++)
        memcpy(q + h * n * LATENT, t->q + (h * t->L + last - n) * LATENT,
               (size_t)n * LATENT * sizeof *q);
    c.batch = 1;
    c.q_len = n;
    c.q.data = q;
    c.o.data = o;
    c.lse = lse;
    c.error = &t->e;
    void *work = mem_alloc(&t->mem, loci_workspace(t->plan, &c, 0));
    bool same =
        (!c.cache || !loci_cache_append(t->plan, t->tables, work, (loci_cache *)c.cache, &c))
        && !loci_forward(t->plan, t->tables, work, &c);
    for (ptrdiff_t h = 0; h < t->heads && same; h++)
        same = !memcmp(o + h * n * LATENT_VALUES, t->o + (h * t->L + last - n) * LATENT_VALUES,
                       (size_t)n * LATENT_VALUES * sizeof *o)
            && !memcmp(lse + h * n, t->lse + h * t->L + last - n, (size_t)n * sizeof *lse);
    CHECK_THAT(same, "values in keys, %s, %td rows: %s", what, n, t->e.text);
}
static void latent(const char *text, loci_dtype dtype, int heads, ptrdiff_t length)
{
    struct latent t = { .heads = heads, .L = length };
    const size_t keys = (size_t)t.L * LATENT, rows = (size_t)(heads * t.L);
    loci_desc d = LOCI_DESC(.encoding = text, .heads = heads, .kv_heads = 1, .dim = LATENT,
                            .value_dim = LATENT_VALUES, .keys_rotated = 1, .isa = isa);
    bool ok = !loci_plan_create(&t.plain, &d, &t.e);
    d.values_in_keys = 1;
    d.k_dtype = dtype;
    ok = ok && !loci_plan_create(&t.plan, &d, &t.e);
    t.q = mem_alloc(&t.mem, rows * LATENT * sizeof(float));
    t.k = mem_alloc(&t.mem, keys * sizeof(float));
    t.o = mem_alloc(&t.mem, rows * LATENT_VALUES * sizeof(float));
    t.lse = mem_alloc(&t.mem, rows * sizeof(float));
    for (size_t i = 0; i < rows * LATENT; i++) t.q[i] = (float)walk_uniform();
    for (size_t i = 0; i < keys; i++) t.k[i] = (float)walk_uniform();
    /* turned and rounded as a cache does it; then the numbers that these stand for */
    float *turned = mem_alloc(&t.mem, keys * sizeof *turned);
    double *exact = mem_alloc(&t.mem, keys * sizeof *exact);
    loci_call c = LOCI_CALL(.batch = 1, .q_len = t.L, .k_len = t.L, .q.data = t.q, .o.data = t.o,
                            .lse = t.lse, .error = &t.e);
    t.tables = mem_alloc(&t.mem, ok ? loci_tables_size(t.plain, t.L) : 0);
    ok = ok && !loci_prepare(t.plain, t.L, NULL, t.tables);
    memcpy(turned, t.k, keys * sizeof *turned);
    if (ok && t.plain->rotate >= 0) {
        const loci_view in_place = { .data = turned };
        ok = !loci_rotate(t.plain, t.tables, mem_alloc(&t.mem, loci_workspace(t.plain, &c, 0)), &c,
                          LOCI_CACHE, in_place, in_place);
    }
    for (size_t i = 0; i < keys; i++) exact[i] = (double)turned[i];
    t.keys = mem_alloc(&t.mem, keys * sizeof(float));
    ok = ok && !loci_round(dtype, (ptrdiff_t)keys, exact, t.keys);
    for (size_t i = 0; i < keys; i++) turned[i] = (float)stored_number(t.keys, dtype, (ptrdiff_t)i);
    c.k = c.v = (loci_view){ turned, t.L * LATENT, t.L * LATENT, LATENT };
    ok = ok
      && !loci_forward(t.plain, t.tables, mem_alloc(&t.mem, loci_workspace(t.plain, &c, 0)), &c);
    CHECK_THAT(ok, "values in keys: %s", t.e.text);
    const loci_call views = LOCI_CALL(.k_len = t.L, .k.data = t.keys);
    latent_rows(&t, "views", t.L, t.L, views);
    latent_rows(&t, "views", t.L, 3, views);
    latent_rows(&t, "views", t.L, 1, views);
    const ptrdiff_t page = stored_bytes(dtype, 64 * LATENT), n = (length + 63) / 64;
    int32_t *table = mem_alloc(&t.mem, (size_t)n * sizeof *table);
    char *paged = mem_alloc(&t.mem, (size_t)(n * page));
    for (ptrdiff_t i = 0; i < n; i++) {
        table[i] = (int32_t)((i + 2) % n);
        memcpy(paged + table[i] * page, (char *)t.keys + i * page,
               (size_t)stored_bytes(dtype, (i + 1 < n ? 64 : length - i * 64) * LATENT));
    }
    const loci_pages pages = { table, 64, n };
    latent_rows(&t, "pages", t.L, 1,
                (loci_call)LOCI_CALL(.k_len = t.L, .k.data = paged, .pages = &pages));
    latent_rows(&t, "pages", t.L, 40,
                (loci_call)LOCI_CALL(.k_len = t.L, .k.data = paged, .pages = &pages));
    loci_cache *cache;
    const size_t bytes = loci_cache_size(t.plan, 1, t.L);
    ok = !loci_cache_create(&cache, t.plan, 1, t.L, 0, mem_alloc(&t.mem, bytes), &t.e);
    CHECK_THAT(ok
                   && bytes < (size_t)stored_bytes(dtype, n * 64 * LATENT) + (size_t)n * 64 * 8
                                  + 4096,
               "values in keys: a cache has %zu bytes", bytes);
    const ptrdiff_t cuts[] = { length - 80, 1, 5, 1, 64, 9 };
    for (ptrdiff_t i = 0, at = 0; i < COUNT(cuts) && ok; at += cuts[i++])
        latent_rows(&t, "a cache", at + cuts[i], cuts[i],
                    (loci_call)LOCI_CALL(.k_len = cuts[i], .k.data = t.k + at * LATENT,
                                         .cache = cache));
    mem_release(&t.mem, 0);
    loci_plan_destroy(t.plain);
    loci_plan_destroy(t.plan);
}
static void latents(void)
{
    static const char *const texts[] = { "rope:pairing=half,dim=32,offset=64", "alibi", "nope" };
    static const loci_dtype types[] = { LOCI_F32, LOCI_F16, LOCI_Q8_0 };
    loci_plan *plan;
    loci_error e;
    for (int i = 0; i < COUNT(texts); i++)
        for (int k = 0; k < COUNT(types); k++) {
            if (LOCI_SLOW && k != i && !walk_whole()) continue;
            latent(texts[i], types[k], 16, 150);
            latent(texts[i], types[k], 16, 700); /* tiles of several groups: see decode.c */
            latent(texts[i], types[k], 2, 150);
        }
    loci_desc d = LOCI_DESC(.encoding = "rope:pairing=half", .heads = 2, .dim = 32, .value_dim = 16,
                            .values_in_keys = 1);
    CHECK_SAYS(loci_plan_create(&plan, &d, &e), LOCI_BAD_ARG, &e,
               "rope rotates channels of keys from number 0 on", "offset=16");
    d.encoding = "path";
    d.value_dim = 32;
    CHECK_SAYS(loci_plan_create(&plan, &d, &e), LOCI_UNSUPPORTED, &e, "does not support path");
    d.encoding = "nope";
    d.value_dim = 40;
    CHECK_SAYS(loci_plan_create(&plan, &d, &e), LOCI_BAD_ARG, &e,
               "value_dim 40 must be at most dim 32");
}

/* So many rows of a call share their keys that decode reads these in groups of tiles. */
static void many_rows(const char *text, loci_dtype dtype, int dim, int value_dim)
{
    struct problem p;
    if (LOCI_EMULATED && dtype != LOCI_F32) return;
    if (open(&p, text, dtype, 0, 760, dim, value_dim, 16)) steps(&p, "groups", 760, 0, 740, 740);
    drop(&p);
    if (open(&p, text, dtype, 600, 760, dim, value_dim, 16)) paged(&p, 64, 5);
    drop(&p);
}

/* By bf16 dot products: calls of many rows agree. */
static void by_dots(const char *text, int dim, int value_dim)
{
    struct problem p;
    fast = true;
    if (open(&p, text, LOCI_BF16, 40, 260, dim, value_dim, 4)) {
        forget(&p);
        ragged_cache(&p);
        lengths(&p, 9);
        paged(&p, 7, 40);
        paged(&p, 64, 9);
        if (!stores_inputs(&p)) steps(&p, "ring", 192, 1, 80, 260);
    }
    drop(&p);
    fast = false;
}

int main(int argc, char **argv)
{
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_BF16, LOCI_F16 };
    walk_only(argc, argv);
    for (struct walk_text t = { 0 }; walk_next(&t);) {
        const char *text = t.text;
        const int dim = walk_dim(text, 18), value_dim = t.square ? dim : 21;
        if (LOCI_SLOW && !t.example && t.next % 4 && !walk_whole()) continue;
        for (int d = 0; d < COUNT(dtypes); d++) {
            const loci_dtype dtype = dtypes[d];
            struct problem p;
            if ((!t.example && dtype != LOCI_BF16) || (LOCI_EMULATED && dtype != LOCI_F32))
                continue;
            if (LOCI_SLOW && !LOCI_EMULATED && t.example && t.next % 3 != d && !walk_whole())
                continue;
            if (!open(&p, text, dtype, 0, 150, dim, value_dim, 4)) continue;
            steps(&p, "cache", 150, 0, 150, 0);
            ragged_cache(&p);
            forget(&p);
            /* their rotated keys cannot be rotated to other positions */
            const bool stay = strstr(text, "fope") || strstr(text, "dca:") || strstr(text, "pope");
            if (loci_axes(p.plan) == 1 && !stay) removal(&p);
            lengths(&p, 1);
            lengths(&p, 9);
            if (loci_axes(p.plan) == 1 && !p.plan->states) lengths_back(&p);
            paged(&p, 16, 1);
            paged(&p, 64, 3);
            paged(&p, 7, 40);
            drop(&p);
            if (!open(&p, text, dtype, 40, 260, dim, value_dim, 4)) continue;
            if (!stores_inputs(&p)) steps(&p, "ring", 192, 1, 80, 0);
            drop(&p);
        }
        by_dots(text, dim, value_dim);
        if (!LOCI_SLOW || (t.example && t.next % 3 == 0) || walk_whole())
            many_rows(text, t.example ? LOCI_F32 : LOCI_BF16, dim, value_dim);
        if (!t.example || LOCI_EMULATED) continue;
        mixed(text, LOCI_F32, LOCI_Q8_0, LOCI_Q8_0);
        mixed(text, LOCI_F32, LOCI_BF16, LOCI_F16);
    }
    if (!walk_limited()) {
        mixed("kerple", LOCI_BF16, LOCI_Q8_0, 0);
        mixed("alibi", LOCI_F16, 0, LOCI_Q8_0);
        mixed("fox", LOCI_F32, LOCI_Q8_0, LOCI_BF16);
    }
    /* Every instruction set, for keys in lanes and keys in rows. */
    const char *isas[8];
    for (int i = 0, n = loci_isas(isas, 8); i < n && !walk_limited(); i++)
        for (int d = 0; d < COUNT(dtypes); d++) {
            struct problem p;
            isa = isas[i];
            if (open(&p, "rope:pairing=half", dtypes[d], 0, 150, 36, 40, 16)) {
                steps(&p, isa, 150, 0, 150, 100);
                paged(&p, 64, 1);
                lengths(&p, 1);
            }
            drop(&p);
            if (!d) mixed("rope:pairing=half", LOCI_F32, LOCI_Q8_0, LOCI_Q8_0);
            /* terms that read keys, or rows by key */
            static const char *const readers[] = { "deberta:span=6,max_distance=20", "xl" };
            for (int k = 0; k < COUNT(readers); k++) {
                if (open(&p, readers[k], dtypes[d], 0, 150, 36, 40, 4))
                    steps(&p, isa, 150, 0, 150, 100);
                drop(&p);
            }
        }
    isa = NULL;
    static const char *const lengthy[] = { "nope", "rope:pairing=half", "xpos", "alibi", "sba" };
    for (int i = 0; i < COUNT(lengthy) && !walk_limited() && !LOCI_SLOW; i++) {
        struct problem p;
        if (open(&p, lengthy[i], LOCI_F32, 300, 9000, 4, 4, 1))
            steps(&p, "a long ring", 1024, 1, 500, 500);
        drop(&p);
        if (open(&p, lengthy[i], LOCI_BF16, 0, 4300, 4, 4, 1))
            steps(&p, "a long cache", 4300, 0, 4300, 4200);
        drop(&p);
    }
    /* Forms of keys that an append makes from those of older tiles of their block. */
    static const char *const moving[] = { "path+fox", "wall" };
    for (int i = 0; i < COUNT(moving) && !walk_limited(); i++) {
        struct problem p;
        if (open(&p, moving[i], LOCI_F16, 0, 2200, 8, 4, 2))
            steps(&p, "a cache of blocks", 2200, 0, 900, 900);
        drop(&p);
    }
    if (!walk_limited()) by_dots("nope", 19, 33);
    misuse();
    misuse_types();
    latents();
    placed("rope:pairing=half+alibi");
    placed("fox");
    return harness_end();
}
