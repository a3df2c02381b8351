/* SPDX-License-Identifier: MIT */
/* gemv_stream.c -- see gemv_stream.h. */
#include "engine/gemv_stream.h"

#if QT == 1

/* Keys and values are processed in blocks of BLOCK keys, LINE bytes of one row after those of
 * another.  Hardware prefetchers do not recognise that as a stream, so rows are fetched AHEAD of
 * the work in the order in which they are stored, some at each step.  With little work per row
 * and no other stream besides it, it is better (`light`) to load one number of each line of the
 * next block: that is a plain stream. */
enum { BLOCK = 16, AHEAD = 64, LINE = 64 };
/* Number i from p on, in each form. */
INLINE size_t size_of(const enum form f) { return f == REALS ? sizeof(real) : sizeof(uint16_t); }
INLINE const void *number_at(const enum form f, const void *p, ptrdiff_t i)
{
    return (const char *)p + i * (ptrdiff_t)size_of(f);
}
INLINE vf vf_load_as(const enum form f, const void *p, ptrdiff_t i)
{
    return f == REALS     ? vf_load((const real *)p + i)
         : f == BITS_BF16 ? vf_load_bf16((const uint16_t *)p + i)
                          : vf_load_f16((const uint16_t *)p + i);
}
INLINE real load_as(const enum form f, const void *p, ptrdiff_t i)
{
    return f == REALS ? ((const real *)p)[i]
                      : (real)(f == BITS_BF16 ? from_bf16(((const uint16_t *)p)[i])
                                              : from_f16(((const uint16_t *)p)[i]));
}

/* n vectors from number i on.  Those of bf16 come in pairs, even numbers before odd ones, which
 * saves half of the work.  line_up() then puts results that were computed in pairs into order. */
INLINE bool pairs_up(const enum form f, const int n) { return f == BITS_BF16 && n % 2 == 0; }
INLINE void load_vectors(const enum form f, const int n, const void *p, ptrdiff_t i, vf *x)
{
    if (!pairs_up(f, n)) {
        UNROLL_FOR(int v = 0; v < n; v++) x[v] = vf_load_as(f, p, i + v * VL);
        return;
    }
    UNROLL_FOR(int v = 0; v < n / 2; v++)
        vf_load2_bf16((const uint16_t *)p + i + 2 * v * VL, &x[2 * v], &x[2 * v + 1]);
}
INLINE void line_up(const enum form f, const int n, vf *x)
{
    if (!pairs_up(f, n)) return;
    UNROLL_FOR(int v = 0; v < n / 2; v++) {
        const vf even = x[2 * v], odd = x[2 * v + 1];
        vf_zip(even, odd, &x[2 * v], &x[2 * v + 1]);
    }
}

/* A transposed block of VL x VL numbers.  vf_load_columns() issues four times the number of
 * loads, and these delay the loads that prefetch from memory.  So it serves only the last NEAR
 * rows of a single stream, and hence few keys, which are cached. */
enum { NEAR = 256 };
INLINE void load_columns(const enum form f, const bool near, const void *p, ptrdiff_t stride, vf *x)
{
    if (f == REALS && near) {
        vf_load_columns(p, stride, x);
        return;
    }
    UNROLL_FOR(int i = 0; i < VL; i++) x[i] = vf_load_as(f, p, i * stride);
    vf_transpose(x);
}

/* Fetches a row by a load of one number per line, or by prefetches, which do not wait. */
INLINE void touch(const void *row, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE) (void)*((const volatile char *)row + i);
}
INLINE void fetch(const void *row, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE) __builtin_prefetch((const char *)row + i, 0, 2);
}

/* Rows read whole, and keys stored across, are a plain stream, unless a visit skips some of a
 * row.  But hardware prefetchers stop at the end of a page.  Where reading and multiplying
 * take the same time, nothing makes up for that.  In that case (`hurried`) the next tile is
 * fetched during work on this one. */
INLINE bool hurried(const enum form f, const int rows) { return f != REALS && rows >= 4; }

/* C[s][k] = sum over d of a[k][d] q[s][d] for n rows and subs * VL keys, in n * subs chains.
 * `rest` rows may be read from a on, and fetches stay within them. */
INLINE void dot_block(const int n, const int subs, const enum form form, const bool light,
                      const bool near, const void *a, ptrdiff_t as, int D, const real *const *q,
                      real *const *c, ptrdiff_t rest)
{
    const ptrdiff_t ahead = light ? BLOCK : AHEAD;
    vf acc[4][MOST];
    ptrdiff_t row = 0;
    int d = 0;
    UNROLL_FOR(int b = 0; b < subs; b++)
        UNROLL_FOR(int s = 0; s < n; s++) acc[b][s] = vf_set1(0);
    for (; d + VL <= D; d += VL) {
        /* the share of rows ahead that belongs to this step */
        for (; ahead + row < rest && row * (D / VL) < subs * VL * (d / VL + 1); row++) {
            if (light) touch(number_at(form, a, (ahead + row) * as), size_of(form) * (size_t)D);
            else fetch(number_at(form, a, (ahead + row) * as), size_of(form) * (size_t)D);
        }
        UNROLL_FOR(int b = 0; b < subs; b++) {
            vf x[VL];
            load_columns(form, near, number_at(form, a, b * VL * as + d), as, x);
            UNROLL_FOR(int i = 0; i < VL; i++)
                UNROLL_FOR(int s = 0; s < n; s++)
                    acc[b][s] = vf_fma(x[i], vf_set1(q[s][d + i]), acc[b][s]);
        }
    }
    for (; d < D; d++)
        UNROLL_FOR(int b = 0; b < subs; b++) {
            real x[VL];
            for (int i = 0; i < VL; i++) x[i] = load_as(form, a, (b * VL + i) * as + d);
            UNROLL_FOR(int s = 0; s < n; s++)
                acc[b][s] = vf_fma(vf_load(x), vf_set1(q[s][d]), acc[b][s]);
        }
    UNROLL_FOR(int b = 0; b < subs; b++)
        UNROLL_FOR(int s = 0; s < n; s++) vf_store(c[s] + b * VL, acc[b][s]);
}

/* n such vectors, and a block of keys from k on.  Fewer than four vectors use more keys at once:
 * four chains are the fewest that keep an fma busy. */
INLINE void dots_block(const int n, const enum form form, const bool light, const bool near,
                       const struct dot *list, const struct source *key, int D, int k,
                       ptrdiff_t rest)
{
    const int chains = n < 4 ? 4 / n : 1, subs = chains * VL < BLOCK ? chains : BLOCK / VL;
    for (int b = 0; b < BLOCK; b += subs * VL) {
        const real *q[MOST];
        real *c[MOST];
        UNROLL_FOR(int s = 0; s < n; s++) {
            q[s] = list[s].with;
            c[s] = list[s].to + k + b;
        }
        dot_block(n, subs, form, light, near, number_at(form, key->at, (k + b) * key->stride),
                  key->stride, D, q, c, rest - k - b);
    }
}
/* All keys of a tile, as rows.  Only the first visit to a block fetches ahead.  The last keys of
 * a tile, fewer than a block, go one by one. */
INLINE void dots_rows(const enum form form, const struct dot *list, int n, const struct source *key,
                      int D, int keys, ptrdiff_t rest)
{
    int k = 0;
    for (; k + BLOCK <= keys; k += BLOCK)
        for (int i = 0, m; i < n; i += m) {
            const ptrdiff_t more = i ? 0 : rest;
            m = n - i >= MOST ? MOST : n - i >= 4 ? 4 : n - i >= 2 ? 2 : 1;
            if (m == MOST) dots_block(MOST, form, false, false, list + i, key, D, k, more);
            else if (m == 4) dots_block(4, form, false, false, list + i, key, D, k, more);
            else if (m == 2) dots_block(2, form, false, false, list + i, key, D, k, more);
            else if (key->concurrent || VL < BLOCK)
                dots_block(1, form, false, false, list + i, key, D, k, more);
            else if (rest - k > NEAR) dots_block(1, form, true, false, list + i, key, D, k, more);
            else dots_block(1, form, true, true, list + i, key, D, k, more);
        }
    for (; k < keys; k++)
        for (int i = 0; i < n; i++) {
            real sum = 0;
            for (int d = 0; d < D; d++)
                sum = fma_(load_as(form, key->at, k * key->stride + d), list[i].with[d], sum);
            list[i].to[k] = sum;
        }
}
/* Keys that are stored across, in the lanes already: n vectors against nv vectors of
 * keys.  Numbers just past the last key are computed too, as the whole tile is in
 * memory; they are never read. */
INLINE void dots_lanes(const int n, const int nv, const enum form form, const struct dot *list,
                       const void *keys, int D, int k)
{
    vf acc[MOST][8];
    UNROLL_FOR(int s = 0; s < n; s++)
        UNROLL_FOR(int v = 0; v < nv; v++) acc[s][v] = vf_set1(0);
    for (int d = 0; d < D; d++) {
        vf x[8];
        /* the same channel of the next tile */
        if (nv * VL < KT || hurried(form, n))
            fetch(number_at(form, keys, (ptrdiff_t)(D + d) * KT + k),
                  size_of(form) * (size_t)(nv * VL));
        load_vectors(form, nv, keys, (ptrdiff_t)d * KT + k, x);
        UNROLL_FOR(int s = 0; s < n; s++) {
            const vf q = vf_set1(list[s].with[d]);
            UNROLL_FOR(int v = 0; v < nv; v++) acc[s][v] = vf_fma(x[v], q, acc[s][v]);
        }
    }
    UNROLL_FOR(int s = 0; s < n; s++) {
        line_up(form, nv, acc[s]);
        UNROLL_FOR(int v = 0; v < nv; v++) vf_store(list[s].to + k + v * VL, acc[s][v]);
    }
}
INLINE void dots_across(const enum form form, const struct dot *list, int n, const void *at, int D,
                        int keys)
{
    /* vectors of keys at a time: fewer if more rows share them, by the number of registers */
    enum { ALL = KT / VL < 8 ? KT / VL : 8, SOME = VL == 8 ? 2 : 4, FEW = 2 };
    for (int i = 0, m; i < n; i += m) {
        m = n - i >= MOST ? MOST : n - i >= 4 ? 4 : n - i >= 2 ? 2 : 1;
        if (m == 1 && keys <= VL) dots_lanes(1, 1, form, list + i, at, D, 0);
        else if (m == 1)
            for (int k = 0; k < keys; k += ALL * VL) dots_lanes(1, ALL, form, list + i, at, D, k);
        else if (m == 2)
            for (int k = 0; k < keys; k += 4 * VL) dots_lanes(2, 4, form, list + i, at, D, k);
        else if (m == 4)
            for (int k = 0; k < keys; k += SOME * VL) dots_lanes(4, SOME, form, list + i, at, D, k);
        else
            for (int k = 0; k < keys; k += FEW * VL)
                dots_lanes(MOST, FEW, form, list + i, at, D, k);
    }
}
void N(dots)(const struct dot *list, int n, const struct source *key, int D, int keys, bool first)
{
    const ptrdiff_t rest = first ? key->rest : 0;
    switch (key->form) {
    case REALS:
        if (key->across) dots_across(REALS, list, n, key->at, D, keys);
        else dots_rows(REALS, list, n, key, D, keys, rest);
        return;
    case BITS_BF16:
        if (key->across) dots_across(BITS_BF16, list, n, key->at, D, keys);
        else dots_rows(BITS_BF16, list, n, key, D, keys, rest);
        return;
    case BITS_F16:
        if (key->across) dots_across(BITS_F16, list, n, key->at, D, keys);
        else dots_rows(BITS_F16, list, n, key, D, keys, rest);
    }
}

/* What is fetched next of rows that are read in strips: strips of the same width, in the order
 * in which they are stored. */
struct ahead {
    const void *row;
    int d;
};

INLINE void fetch_strip(const enum form form, struct ahead *a, ptrdiff_t stride, int width, int n)
{
    fetch(number_at(form, a->row, a->d), size_of(form) * (size_t)n);
    a->d += n;
    if (a->d + VL > width) {
        a->d = 0;
        a->row = number_at(form, a->row, stride);
    }
}

/* C[s][d] += sum over k of v[k][d] p[s][k] for nv vectors of d and a block of keys; = with
 * `first`.  Until the `last` block C is in the order in which vectors are loaded.  Between
 * blocks the sum is in memory, and its chain continues from there. */
INLINE void sum_block(const int n, const int nv, const enum form form, bool first, bool last,
                      int keys, const void *v, ptrdiff_t vs, int D, const real *const *p,
                      real *const *c, int d, struct ahead *ahead)
{
    vf acc[4][4];
    UNROLL_FOR(int s = 0; s < n; s++)
        UNROLL_FOR(int i = 0; i < nv; i++)
            acc[s][i] = first ? vf_set1(0) : vf_load(c[s] + d + i * VL);
    for (int k = 0; k < keys; k++) {
        vf x[4];
        if (D != nv * VL || hurried(form, n)) fetch_strip(form, ahead, vs, D, nv * VL);
        load_vectors(form, nv, v, k * vs + d, x);
        UNROLL_FOR(int s = 0; s < n; s++) {
            const vf w = vf_set1(p[s][k]);
            UNROLL_FOR(int i = 0; i < nv; i++) acc[s][i] = vf_fma(x[i], w, acc[s][i]);
        }
    }
    UNROLL_FOR(int s = 0; s < n; s++) {
        if (last) line_up(form, nv, acc[s]);
        UNROLL_FOR(int i = 0; i < nv; i++) vf_store(c[s] + d + i * VL, acc[s][i]);
    }
}
/* The same for n rows from `row` on and all channels, for a block from key k on. */
INLINE void sum_rows(const int n, const enum form form, const struct summing *a, int row, int k,
                     int block)
{
    const ptrdiff_t vs = a->value->stride;
    const int D = a->D, keys = a->keys - k < block ? a->keys - k : block;
    const void *v = number_at(form, a->value->at, k * vs);
    const real *p[4];
    real *c[4];
    struct ahead ahead = { number_at(form, v, AHEAD * vs), 0 };
    const bool last = k + block >= a->keys;
    int d = 0;
    UNROLL_FOR(int s = 0; s < n; s++) {
        p[s] = a->p + (row + s) * a->weights + k;
        c[s] = a->sums + (row + s) * a->apart;
    }
    for (; d + 4 * VL <= D; d += 4 * VL)
        sum_block(n, 4, form, k == 0, last, keys, v, vs, D, p, c, d, &ahead);
    for (; d + VL <= D; d += VL)
        sum_block(n, 1, form, k == 0, last, keys, v, vs, D, p, c, d, &ahead);
    for (; d < D; d++)
        for (int s = 0; s < n; s++) {
            real sum = k == 0 ? 0 : c[s][d];
            for (int i = 0; i < keys; i++) sum = fma_(load_as(form, v, i * vs + d), p[s][i], sum);
            c[s][d] = sum;
        }
}
INLINE void sum_values_as(const enum form form, const struct summing *a, int n)
{
    /* If all rows fit in one visit, a tile is one block.  Otherwise later
     * visits should find it cached. */
    const int block = n == 1 || n == 2 || n == 4 ? KT : BLOCK;
    for (int k = 0; k < a->keys; k += block)
        for (int i = 0, m; i < n; i += m) {
            m = n - i >= 4 ? 4 : n - i >= 2 ? 2 : 1;
            if (m == 4) sum_rows(4, form, a, i, k, block);
            else if (m == 2) sum_rows(2, form, a, i, k, block);
            else sum_rows(1, form, a, i, k, block);
        }
}
void N(sum_values)(const struct summing *a, int n)
{
    if (a->value->form == REALS) sum_values_as(REALS, a, n);
    else if (a->value->form == BITS_BF16) sum_values_as(BITS_BF16, a, n);
    else sum_values_as(BITS_F16, a, n);
}
#endif
