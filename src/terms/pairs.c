/* SPDX-License-Identifier: MIT */
/* pairs.c -- turns pairs of channels by their coordinates; the table is described in pairs.h. */
#include "aim.h"

INLINE void turn_row(const struct heading *at, const struct pairs *p, int r, const real sign, real *row)
{
    const real *cos = aim_of(at, p, r), *sin = cos + p->width;
    real *a = row + p->offset;
    if (p->interleaved) turn_interleaved(cos, sin, sign, p->count, a);
    else turn_half(cos, sin, sign, p->count, a, a + p->count);
}

static const struct pairs *table_of(const struct call *c, int x) { return c->table[c->plan->use[x].enc]; }

static void turn(const struct call *c, int x, struct heading *at, ptrdiff_t b, int h, bool query, ptrdiff_t i0, int n,
                 real *rows, ptrdiff_t stride)
{
    const struct pairs *p = table_of(c, x);
    aim(c, p, at, b, h, query, i0, n);
    for (int r = 0; r < n; r++) turn_row(at, p, r, 1, rows + r * stride);
}

/* ---- From one place to another ----------------------------------------------------------------------------- */

enum { AHEAD = 8, PAST_CACHES = 4 << 20 };       /* rows asked for early; bytes of all rows from which they go past the caches */

INLINE void move_row(const struct heading *at, const struct pairs *p, int r, const real sign, int D, const real *from, real *to)
{
    const real *cos = aim_of(at, p, r), *sin = cos + p->width;
    const int first = p->offset, end = first + 2 * p->count;
    if (first) memcpy(to, from, sizeof(real) * (size_t)first);
    if (p->interleaved) move_interleaved(cos, sin, sign, p->count, from + first, to + first);
    else move_half(cos, sin, sign, p->count, from + first, to + first, to + first + p->count);
    if (end < D) memcpy(to + end, from + end, sizeof(real) * (size_t)(D - end));
}
/* A store that misses the caches reads its line first, and a copy of many rows would be half as fast. */
INLINE bool goes_past(const struct call *c, bool query, const real *to, ptrdiff_t stride)
{
    const struct loci_plan *p = c->plan;
    const double rows = (double)c->B * (double)(query ? c->Lq * p->heads : c->Lk * p->kv_heads);
    return p->dim <= 2 * MAX_PAIRS && p->dim % VL == 0 && stride % VL == 0 && (uintptr_t)to % (VL * sizeof(real)) == 0
        && rows * p->dim * (double)sizeof(real) >= PAST_CACHES;
}
INLINE void move_rows(const int D, const struct pairs *p, const struct heading *at, const bool past, const real sign, int n,
                      const real *from, ptrdiff_t from_stride, real *to, ptrdiff_t to_stride)
{
    real row[2 * MAX_PAIRS];
    for (int r = 0; r < n; r++, from += from_stride, to += to_stride) {
        for (int t = 0; r + AHEAD < n && t < D; t += 64 / (int)sizeof(real)) __builtin_prefetch(from + AHEAD * from_stride + t);
        move_row(at, p, r, sign, D, from, past ? row : to);
        for (int t = 0; past && t < D; t += VL) vf_stream(to + t, vf_load(row + t));
    }
    if (past) vf_streamed();
}
static void move(const struct call *c, int x, struct heading *at, ptrdiff_t b, int h, int heads, bool query, bool back, ptrdiff_t i0, int n,
                 struct rows_at from, struct rows_at to)
{
    const struct pairs *p = table_of(c, x);
    const bool past = goes_past(c, query, to.first, to.row) && to.head % VL == 0;
    for (int i = 0; i < heads; i++, from.first += from.head, to.first += to.head) {
        if (i == 0 || p->groups > 1) aim(c, p, at, b, h + i, query, i0, n);
        if (back) move_rows(c->plan->dim, p, at, past, -1, n, from.first, from.row, to.first, to.row);
        else move_rows(c->plan->dim, p, at, past, 1, n, from.first, from.row, to.first, to.row);
    }
}

/* ---- Back ---------------------------------------------------------------------------------------------------- */

/* dw[axis][t] += x[axis] dphi, dphi = row[a] d[b] - row[b] d[a] from what turn() gave and its gradient.  Rows without a
 * gradient may hold anything. */
static void gather(const struct pairs *p, const double *x, const real *row, const real *d, double (*dw)[MAX_PAIRS])
{
    for (int t = 0; t < p->count; t++) {
        const int a = p->offset + (p->interleaved ? 2 * t : t), b = a + (p->interleaved ? 1 : p->count);
        const double dphi = d[a] == 0 && d[b] == 0 ? 0 : (double)row[a] * (double)d[b] - (double)row[b] * (double)d[a];
        for (int axis = 0; axis < p->axes; axis++) dw[axis][t] += x[axis] * dphi;
    }
}

static void turn_bwd(const struct call *c, int x, struct heading *at, ptrdiff_t b, int h, bool query, ptrdiff_t i0, int n,
                     const real *rows, real *d, ptrdiff_t stride, real *part)
{
    const struct pairs *p = table_of(c, x);
    if (part) {
        double dw[MAX_AXES][MAX_PAIRS] = { { 0 } };
        for (int r = 0; r < n; r++) {
            double from[MAX_AXES];
            coordinates(c, p, b, query, i0 + r, from);
            gather(p, from, rows + r * stride, d + r * stride, dw);
        }
        for (int axis = 0; axis < p->axes; axis++)
            for (int t = 0; t < p->count; t++) part[axis * (c->plan->dim / 2) + t] += (real)dw[axis][t];
    }
    aim(c, p, at, b, h, query, i0, n);
    for (int r = 0; r < n; r++) turn_row(at, p, r, -1, d + r * stride);
}

static ptrdiff_t room(const struct call *c, int x)
{
    (void)x;
    return aim_room(c->plan->dim / 2);
}

/* ---- Parts of learned frequencies ------------------------------------------------------------------------- */

static ptrdiff_t part(const struct call *c, int x)
{
    const struct loci_plan *p = c->plan;
    const int e = p->use[x].enc;
    for (int i = p->first_tensor[e]; i < p->first_tensor[e + 1]; i++)
        if (p->tensors.list[i].role == LOCI_LEARNED) return pairs_part(p->dim, p->axes);
    return 0;
}
static ptrdiff_t home(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)b;
    return h / c->plan->group * part(c, x);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->kv_heads * part(c, x); }

const struct term N(term_pairs) = {
    .name = "pairs", .part = part, .home = home, .total = total, .room = room, .turn = turn, .move = move, .turn_bwd = turn_bwd,
};

/* ---- Pairs that fade ----------------------------------------------------------------------------------------- */

static int span(const struct call *c, int x) { return table_of(c, x)->span; }

static void fade(const struct call *c, int x, ptrdiff_t b, bool query, int64_t ref, ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    const struct pairs *p = table_of(c, x);
    const int W = p->width;
    for (int r = 0; r < n; r++) {
        const int64_t power = query ? pos_q(c, b, i0 + r) - ref : ref - pos_k(c, b, i0 + r);
        const double *digit = pairs_rows(p, 1, 0);
        double z[MAX_PAIRS];
        for (int t = 0; t < W; t++) z[t] = 1;
        for (int64_t left = power < 0 ? -power : power; left; left /= PAIR_STEPS, digit += PAIR_STEPS * W) {
            const double *row = digit + left % PAIR_STEPS * W;
            for (int t = 0; t < W; t++) z[t] *= row[t];
        }
        real *to = rows + r * stride + p->offset;
        for (int t = 0; t < p->count; t++) {
            const real f = (real)(power < 0 ? 1 / z[t] : z[t]);
            to[p->interleaved ? 2 * t : t] *= f;
            to[p->interleaved ? 2 * t + 1 : t + p->count] *= f;
        }
    }
}

const struct term N(term_fading_pairs) = {
    .name = "fading pairs", .part = part, .home = home, .total = total, .room = room, .turn = turn, .turn_bwd = turn_bwd,
    .span = span, .fade = fade,
};
