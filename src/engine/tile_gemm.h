/* SPDX-License-Identifier: MIT */
/* tile_gemm.h -- products of a tile: queries with keys, weights with values, gradients with
 * either.  They skip the pairs that no row of the tile sees. */
#ifndef LOCI_ENGINE_TILE_GEMM_H
#define LOCI_ENGINE_TILE_GEMM_H

#include "engine/visible.h"

/* One vector q: C[k] = sum over d of a[d][k] q[d], with rows of A `ad` apart and lanes over
 * keys.  Four vectors at a time, as an fma waits for the one before it in its chain.  The last
 * keys go one by one, in the same chain and so with the same bits. */
INLINE void dot_across(int keys, const real *a, ptrdiff_t ad, int D, const real *q, real *c)
{
    int k = 0;
    for (; k + 4 * VL <= keys; k += 4 * VL) {
        vf acc[4];
        UNROLL_FOR(int i = 0; i < 4; i++) acc[i] = vf_set1(0);
        for (int d = 0; d < D; d++)
            UNROLL_FOR(int i = 0; i < 4; i++)
                acc[i] = vf_fma(vf_load(a + d * ad + k + i * VL), vf_set1(q[d]), acc[i]);
        UNROLL_FOR(int i = 0; i < 4; i++) vf_store(c + k + i * VL, acc[i]);
    }
    for (; k + VL <= keys; k += VL) {
        vf acc = vf_set1(0);
        for (int d = 0; d < D; d++) acc = vf_fma(vf_load(a + d * ad + k), vf_set1(q[d]), acc);
        vf_store(c + k, acc);
    }
    for (; k < keys; k++) {
        real sum = 0;
        for (int d = 0; d < D; d++) sum = fma_(a[d * ad + k], q[d], sum);
        c[k] = sum;
    }
}
/* The same with a[k][d]: VL x VL blocks are transposed in registers, so that the lanes are keys
 * here too, and every sum is one chain over the channels. */
INLINE void dot_keys(int keys, const real *a, ptrdiff_t as, int D, const real *q, real *c)
{
    int k = 0;
#if VL > 1
    for (; k + VL <= keys; k += VL) {
        vf acc = vf_set1(0);
        int d = 0;
        for (; d + VL <= D; d += VL) {
            vf x[VL];
            UNROLL_FOR(int i = 0; i < VL; i++) x[i] = vf_load(a + (k + i) * as + d);
            vf_transpose(x);
            UNROLL_FOR(int i = 0; i < VL; i++) acc = vf_fma(x[i], vf_set1(q[d + i]), acc);
        }
        for (; d < D; d++) {
            real x[VL];
            for (int i = 0; i < VL; i++) x[i] = a[(k + i) * as + d];
            acc = vf_fma(vf_load(x), vf_set1(q[d]), acc);
        }
        vf_store(c + k, acc);
    }
#endif
    for (; k < keys; k++) {
        real sum = 0;
        for (int d = 0; d < D; d++) sum = fma_(a[k * as + d], q[d], sum);
        c[k] = sum;
    }
}

/* What to prefetch of an array of reals with a row per key, whose row a belongs to the tile's
 * first key: the rows of the next tile, or nothing if none follows. */
INLINE struct next next_rows(const struct tile *t, const real *a, ptrdiff_t as)
{
    if (!t->next.first) return t->next;
    return (struct next){ (const char *)(a + next_tile(t->c) * as), as * (ptrdiff_t)sizeof(real),
                          sizeof(real), sizeof(real) };
}

/* Queries with keys, and weights with values.  next: what the product prefetches as it runs, the
 * rows of the next tile.  With one row per tile it prefetches nothing: decode has its own loops. */
#if QT == 1
INLINE void dot(const struct tile *t, const real *a, ptrdiff_t as, int D, const real *q, real *c,
                const struct next next)
{
    (void)next;
    dot_keys(t->keys, a, as, D, q, c);
}
/* C[n] = C[n] * fade + sum over k of a[k][n] p[k], lanes over n. */
INLINE void mix_tile(const struct tile *t, const real *a, ptrdiff_t as, int D, const real *p,
                     real *c, const real *fade, const struct next next)
{
    int n = 0;
    (void)next;
    for (; n + 4 * VL <= D; n += 4 * VL) {
        vf x[4];
        UNROLL_FOR(int i = 0; i < 4; i++) x[i] = vf_set1(0);
        for (int k = 0; k < t->keys; k++) {
            vf w = vf_set1(p[k]);
            UNROLL_FOR(int i = 0; i < 4; i++)
                x[i] = vf_fma(vf_load(a + k * as + n + i * VL), w, x[i]);
        }
        UNROLL_FOR(int i = 0; i < 4; i++)
            vf_store(c + n + i * VL, vf_fma(vf_load(c + n + i * VL), vf_set1(*fade), x[i]));
    }
    for (; n + VL <= D; n += VL) {
        vf x = vf_set1(0);
        for (int k = 0; k < t->keys; k++) x = vf_fma(vf_load(a + k * as + n), vf_set1(p[k]), x);
        vf_store(c + n, vf_fma(vf_load(c + n), vf_set1(*fade), x));
    }
    for (; n < D; n++) {
        real x = 0;
        for (int k = 0; k < t->keys; k++) x = fma_(a[k * as + n], p[k], x);
        c[n] = fma_(c[n], *fade, x);
    }
}
#else
/* Keys or rows that skip the same part of a tile on the diagonal: small enough to skip most of
 * what is masked, large enough for the blocks of a product. */
enum { STRIP = 16 };

/* The same from a later key on. */
INLINE struct next from_row(struct next next, int row)
{
    if (next.first) next.first += row * next.row;
    return next;
}
/* C[k][r] = sum over d of a[k * as + d * ad] b[d][r], or C plus that sum.  In a tile that
 * the diagonal crosses, rows before the first that sees any key of a strip are not written:
 * the mask overwrites them. */
INLINE void dot_as(const enum then then, const struct tile *t, const real *a, ptrdiff_t as,
                   ptrdiff_t ad, struct next next, int D, const real *b, real *c)
{
    if (!t->cut) {
        product_on(then, t->keys, t->live, D, a, as, ad, b, QT, c, QT, NULL, next);
        return;
    }
    struct band w = band(t->c->plan);
    for (int k = 0; k < t->keys; k += STRIP) {
        /* the strip's oldest key has the first row that sees any of it */
        int n = t->keys - k < STRIP ? t->keys - k : STRIP, first = rows_of(t, w, k).first / VL * VL;
        if (first >= t->live) continue;
        product_on(then, n, t->live - first, D, a + k * as, as, ad, b + first, QT,
                   c + k * QT + first, QT, NULL, from_row(next, k));
    }
}
INLINE void dot(const struct tile *t, const real *a, ptrdiff_t as, int D, const real *b, real *c,
                const struct next next)
{
    dot_as(SET, t, a, as, 1, next, D, b, c);
}
/* C[n][r] = C[n][r] * fade[r] + sum over k of a[k][n] p[k][r], or, without fade, 0 + that sum.
 * Keys after the last that a strip of rows sees have p = 0 and are skipped. */
INLINE void mix_tile(const struct tile *t, const real *a, ptrdiff_t as, int D, const real *p,
                     real *c, const real *fade, const struct next rows)
{
    /* A is read down its columns, so its steps and rows are exchanged. */
    const struct next next = { rows.first, rows.step, rows.row, rows.size };
    const enum then then = fade ? FADE : BEGIN;
    if (!t->cut) {
        product_on(then, D, t->live, t->keys, a, 1, as, p, QT, c, QT, fade, next);
        return;
    }
    struct band w = band(t->c->plan);
    for (int r = 0; r < t->live; r += STRIP) {
        /* the newest key that the strip's last row sees */
        int64_t last = t->d + r + STRIP - 1 - w.lo;
        int keys = last + 1 < t->keys ? (int)(last + 1 > 0 ? last + 1 : 0) : t->keys;
        product_on(then, D, STRIP, keys, a, 1, as, p + r, QT, c + r, QT, fade ? fade + r : NULL,
                   next);
    }
}
#endif

/* True if every number of these rows is finite.  If not, 0 * NaN must not reach rows that
 * do not see the key.  A finite number times 0 is 0 and any other NaN, so one sum decides
 * for all, without a branch. */
INLINE bool finite_rows(const real *x, ptrdiff_t stride, int rows, int width)
{
    vf zeros[4] = { vf_set1(0), vf_set1(0), vf_set1(0), vf_set1(0) };
    real bad = 0, lanes[VL];
    for (int i = 0; i < rows; i++) {
        int n = 0;
        for (; n + 4 * VL <= width; n += 4 * VL)
            UNROLL_FOR(int v = 0; v < 4; v++)
                zeros[v] = vf_fma(vf_load(x + i * stride + n + v * VL), vf_set1(0), zeros[v]);
        UNROLL_FOR(int v = 0; v < 3; v++)
            if (n + VL <= width) {
                zeros[v] = vf_fma(vf_load(x + i * stride + n), vf_set1(0), zeros[v]);
                n += VL;
            }
        for (; n < width; n++) bad += x[i * stride + n] * 0;
    }
    vf_store(lanes, vf_add(vf_add(zeros[0], zeros[1]), vf_add(zeros[2], zeros[3])));
    for (int v = 0; v < VL; v++) bad += lanes[v];
    return bad == 0;
}
/* mix_tile() over visible keys only.  If all numbers are finite the sums are the same, as
 * a masked key has weight 0. */
INLINE void mix_visible(const struct tile *t, const real *a, ptrdiff_t as, int D, const real *p,
                        real *c, const real *fade)
{
    for (int n = 0; n < D; n++)
        for (int r = 0; r < t->live; r++) {
            real sum = 0;
            for (int k = 0; k < t->keys; k++)
                if (visible(t, k, r)) sum = fma_(a[k * as + n], p[k * QT + r], sum);
            c[n * QT + r] = fade ? fma_(c[n * QT + r], fade[r], sum) : 0 + sum;
        }
}
/* Chooses: rows that are not finite matter only if some row must not see them. */
INLINE void mix_safe(const struct tile *t, const real *a, ptrdiff_t as, int D, const real *p,
                     real *c, const real *fade, const struct next next)
{
    if (t->partial && !finite_rows(a, as, t->keys, D)) mix_visible(t, a, as, D, p, c, fade);
    else mix_tile(t, a, as, D, p, c, fade, next);
}

#if QT > 1
/* C[k][n] += sum over r of w[k][r] rows[r][n], as in dV += P^T dO and dK += dS^T Q.  Rows before
 * the first that sees a key of the strip have w = 0 and are skipped. */
INLINE void outer(const struct tile *t, const real *w, const real *rows, int width, real *c)
{
    if (!t->cut) {
        product(ADD, t->keys, width, QT, w, QT, 1, rows, width, c, width, NULL);
        return;
    }
    const struct band b = band(t->c->plan);
    for (int k = 0; k < t->keys; k += STRIP) {
        const int n = t->keys - k < STRIP ? t->keys - k : STRIP, first = rows_of(t, b, k).first;
        product(ADD, n, width, QT - first, w + k * QT + first, QT, 1, rows + first * width, width,
                c + k * width, width, NULL);
    }
}
/* The same; if a query, its dO or its lse is not finite, over visible pairs only. */
INLINE void outer_safe(const struct tile *t, const real *w, const real *rows, int width, real *c)
{
    if (!t->partial || t->finite) {
        outer(t, w, rows, width, c);
        return;
    }
    for (int k = 0; k < t->keys; k++)
        for (int n = 0; n < width; n++) {
            real sum = 0;
            for (int r = 0; r < QT; r++)
                if (visible(t, k, r)) sum = fma_(w[k * QT + r], rows[r * width + n], sum);
            c[k * width + n] += sum;
        }
}
/* The same for n rows of weights that are not by key, for instance by distance.  Rows that are
 * not finite are skipped where w is 0. */
INLINE void add_outer(const struct tile *t, int n, const real *w, const real *rows, int width,
                      real *c)
{
    if (t->finite) {
        product(ADD, n, width, QT, w, QT, 1, rows, width, c, width, NULL);
        return;
    }
    for (int i = 0; i < n; i++)
        for (int d = 0; d < width; d++) {
            real sum = 0;
            for (int r = 0; r < QT; r++)
                if (w[i * QT + r] != 0) sum = fma_(w[i * QT + r], rows[r * width + d], sum);
            c[(ptrdiff_t)i * width + d] += sum;
        }
}
#endif

#endif
