/* SPDX-License-Identifier: MIT */
/* own_rows.c -- see own_rows.h. */
#include "own_rows.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "mem.h"
#include "walk.h"

enum { HEADS = 2, KV_HEADS = 1, DIM = 12, MOST_SHARES = 64, OUTPUTS = 4 };
/* index of the array; tensors come first */
enum { Q = WALK_TENSORS, K, V, Q_COORD, K_COORD };

static double number(int array, ptrdiff_t outer, ptrdiff_t row, ptrdiff_t inner)
{
    uint64_t h = 1;
    const int64_t place[] = { array, outer, row, inner };
    for (int i = 0; i < COUNT(place); i++) {
        h = (h ^ (uint64_t)place[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 31;
    }
    return (double)(h >> 40) / (1 << 23) - 1;
}

struct rows {
    struct mem mem;
    const ptrdiff_t *at; /* indices of its rows among all */
    ptrdiff_t n;
};

/* [outer][rows][inner] in float. */
static float *floats(struct rows *r, int array, ptrdiff_t outer, ptrdiff_t inner, double size,
                     double middle)
{
    float *x = mem_alloc(&r->mem, (size_t)(outer * r->n * inner) * sizeof *x), *next = x;
    for (ptrdiff_t o = 0; o < outer; o++)
        for (ptrdiff_t i = 0; i < r->n; i++)
            for (ptrdiff_t c = 0; c < inner; c++)
                *next++ = (float)(middle + size * number(array, o, r->at[i], c));
    return x;
}
static double *coordinates(struct rows *r, int array, ptrdiff_t axes)
{
    double *x = mem_alloc(&r->mem, (size_t)(axes * r->n) * sizeof *x), *next = x;
    for (ptrdiff_t a = 0; a < axes; a++)
        for (ptrdiff_t i = 0; i < r->n; i++) *next++ = 50 * number(array, a, r->at[i], 0);
    return x;
}
static float *tensor(struct rows *r, const loci_plan *p, const loci_tensor *t, int which)
{
    ptrdiff_t outer = 1, inner = 1;
    bool by_row = false;
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] == LOCI_DIM_QUERIES || t->shape[i] == LOCI_DIM_KEYS) by_row = true;
        else *(by_row ? &inner : &outer) *= t->shape[i] == LOCI_DIM_BATCH ? 1 : t->shape[i];
    }
    if (by_row) return floats(r, which, outer, inner, 0.2, -0.25);
    float *x = mem_alloc(&r->mem, (size_t)outer * sizeof *x);
    if (t->role != LOCI_INPUT) loci_tensor_init(p, which, 1, x);
    for (ptrdiff_t i = 0; i < outer; i++)
        x[i] =
            (float)(0.2 * number(which, 0, i, 0) + 0.25) + (t->role != LOCI_INPUT ? x[i] : -0.5f);
    return x;
}

static uint64_t hash_row(uint64_t h, const float *x, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        h = (h ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return h;
}

loci_status own_rows(const char *encoding, ptrdiff_t len, loci_layout layout, int gather,
                     double dropout, const loci_transport *t, uint64_t *hash, loci_error *e)
{
    loci_share shares[MOST_SHARES] = { { 0, len, 0 } };
    const int count = t ? loci_share_out(layout, len, t->ranks, shares, MOST_SHARES) : 1;
    struct rows r = { .n = 0 };
    ptrdiff_t *at = mem_alloc(&r.mem, (size_t)len * sizeof *at);
    for (int s = 0; s < count; s++)
        for (int64_t i = 0; i < shares[s].count && shares[s].rank == (t ? t->rank : 0); i++)
            at[r.n++] = (ptrdiff_t)(shares[s].first + i);
    r.at = at;

    loci_plan *p;
    const loci_desc d =
        LOCI_DESC(.encoding = encoding, .heads = HEADS, .kv_heads = KV_HEADS, .dim = DIM);
    loci_status status = loci_plan_create(&p, &d, e);
    if (status) {
        mem_release(&r.mem, 0);
        return status;
    }

    loci_tensor list[WALK_TENSORS];
    const void *tensors[WALK_TENSORS] = { NULL };
    const int tensor_count = loci_tensors(p, list, WALK_TENSORS);
    for (int i = 0; i < tensor_count; i++) tensors[i] = tensor(&r, p, &list[i], i);
    void *tables = mem_alloc(&r.mem, loci_tables_size(p, len));
    float *out[OUTPUTS];
    const ptrdiff_t width[OUTPUTS] = { DIM, 1, 1, walk_states(encoding) ? DIM : 0 };
    for (int i = 0; i < OUTPUTS; i++) {
        const size_t bytes = (size_t)(HEADS * r.n * width[i]) * sizeof *out[i];
        out[i] = memset(mem_alloc(&r.mem, bytes), 0, bytes);
    }
    loci_call call =
        LOCI_CALL(.batch = 1, .q_len = r.n, .k_len = r.n, .tensors = tensors, .error = e,
                  .q = { .data = floats(&r, Q, HEADS, DIM, 1.5, 0) },
                  .k = { .data = floats(&r, K, KV_HEADS, DIM, 1.5, 0) },
                  .v = { .data = floats(&r, V, KV_HEADS, DIM, 1, 0) }, .o = { .data = out[0] },
                  .lse = out[1], .rem = out[2], .ae = width[3] ? out[3] : NULL, .dropout = dropout,
                  .dropout_seed = 7);
    if (loci_axes(p) > 1) {
        call.q_coord = coordinates(&r, Q_COORD, loci_axes(p));
        call.k_coord = coordinates(&r, K_COORD, loci_axes(p));
    }
    const loci_parallel all = LOCI_PARALLEL(.transport = t, .shares = shares, .count = count,
                                            .gather = gather, .check_tables = 1);
    status = loci_prepare_on(NULL, p, len, tensors, tables, e);
    if (!status) {
        void *work = mem_alloc(&r.mem, t ? loci_parallel_workspace(p, &call, &all, 0)
                                         : loci_workspace(p, &call, 0));
        status = t ? loci_parallel_forward(p, tables, work, &call, &all)
                   : loci_forward(p, tables, work, &call);
    }
    *hash = 0;
    for (int i = 0; i < OUTPUTS && width[i]; i++)
        for (ptrdiff_t h = 0; h < HEADS; h++)
            for (ptrdiff_t n = 0; n < r.n; n++) {
                const uint64_t place = (uint64_t)((i * HEADS + h) * len + at[n]);
                *hash ^= hash_row(place, out[i] + (h * r.n + n) * width[i], width[i]);
            }
    loci_plan_destroy(p);
    mem_release(&r.mem, 0);
    return status;
}
