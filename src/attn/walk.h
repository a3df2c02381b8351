/* SPDX-License-Identifier: MIT */
/* walk.h -- what the forward and the backward pass share: packing queries, the range of keys that
 * rows see, scores. */
#ifndef LOCI_ATTN_WALK_H
#define LOCI_ATTN_WALK_H

#include "attn/term.h"
#include "plan/cache.h"

enum { PAD = 16 };                       /* rows of queries and gradients are padded to whole
                                            vectors of every ISA */
INLINE int padded(int n) { return (n + PAD - 1) / PAD * PAD; }

INLINE const struct term *term_of(const struct call *c, int x)
{
    extern const struct term *const N(terms)[TERM_COUNT];
    return N(terms)[c->plan->use[x].term];
}
#define EACH_USE(c, x, term) \
    for (int x = 0; x < (c)->plan->uses; x++) \
        for (const struct term *term = term_of(c, x); term; term = NULL)

/* What weighs in the place of the softmax, or NULL. */
INLINE const struct weights *weights_of(const struct call *c)
{
    return c->plan->weight >= 0 ? term_of(c, c->plan->weight)->weights : NULL;
}
/* The rotation of a plan, or NULL. */
INLINE const struct rotation *rotation_of(const struct call *c)
{
    return c->plan->rotate >= 0 ? term_of(c, c->plan->rotate)->rotation : NULL;
}
/* Reals of its part of the gradient of tables, per head. */
INLINE ptrdiff_t rotation_part(const struct call *c)
{
    const struct term *term = term_of(c, c->plan->rotate);
    return term->part ? term->part(c, c->plan->rotate) : 0;
}
/* Does turn_bwd(), with this part, want to see the rows before they turned? */
INLINE bool wants_input(const struct call *c, const real *part)
{
    return rotation_of(c)->of_input && (part || !term_of(c, c->plan->rotate)->part);
}
/* The rotation, if it fades. */
INLINE const struct rotation *fading(const struct call *c)
{
    const struct rotation *r = rotation_of(c);
    return r && r->fade ? r : NULL;
}
/* The position that key tile number `tile` of a sequence, and queries that meet it, fade from. */
INLINE int64_t fade_from(const struct call *c, const struct sequence *q, ptrdiff_t tile)
{
    const int span = fading(c)->span(c, c->plan->rotate);
    return pos_k(c, q->b, q->k0 + tile / span * span * KT);
}

/* ---- Which keys ------------------------------------------------------------------------------ */

/* Distances that are visible: lo <= d <= hi. */
struct band { int64_t lo, hi; };
INLINE struct band band(const struct loci_plan *p)
{
    int64_t lo = p->full ? -((int64_t)1 << 60) : p->strict;
    if (p->window_right < -lo) lo = -p->window_right;
    return (struct band){ lo, p->window_left };
}

/* Keys of the sequence that some row of the tile may see: first .. last (none when last <
 * first). */
struct keyrange { ptrdiff_t first, last; };
INLINE struct keyrange keys_of(const struct call *c, const struct sequence *q, ptrdiff_t row,
                               int rows)
{
    struct keyrange a = { 0, q->nk - 1 };
    if (!q->run || q->segments) return a;
    struct band w = band(c->plan);
    int64_t d = q->d0 + row;             /* distance of the tile's first row to key 0 */
    if (d + rows - 1 - w.lo < a.last) a.last = (ptrdiff_t)(d + rows - 1 - w.lo);
    if (w.hi < d) a.first = (ptrdiff_t)(d - w.hi);
    return a;
}

/* Puts the tile on the keys j .. of its sequence, at most to `last`.  False when no row sees any of
 * them. */
INLINE bool place(struct tile *t, ptrdiff_t j, ptrdiff_t last)
{
    const struct call *c = t->c;
    const struct sequence *q = t->seq;
    struct band w = band(c->plan);
    t->j0 = q->k0 + j;
    t->keys = last - j + 1 < KT ? (int)(last - j + 1) : KT;
    if (t->run && !t->qg) {
        t->d = q->d0 + (t->i0 - q->q0) - j;
        t->partial = t->rows < t->live || t->d - (t->keys - 1) < w.lo || t->d + t->rows - 1 > w.hi;
        return true;
    }
    if (t->run) t->d = q->d0 + (t->i0 - q->q0) - j;
    int64_t *kp = (int64_t *)t->kp, *kg = (int64_t *)t->kg;
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (int k = 0; k < t->keys; k++) {
        kp[k] = pos_k(c, q->b, t->j0 + k);
        if (kg) kg[k] = seg_k(c, q->b, t->j0 + k);
        if (kp[k] < low) low = kp[k];
        if (kp[k] > high) high = kp[k];
    }
    int64_t qlow = INT64_MAX, qhigh = INT64_MIN;
    for (int r = 0; r < t->rows; r++) {
        if (t->qp[r] < qlow) qlow = t->qp[r];
        if (t->qp[r] > qhigh) qhigh = t->qp[r];
    }
    t->partial = t->rows < t->live || kg || qlow - high < w.lo || qhigh - low > w.hi;
    return qhigh - low >= w.lo && qlow - high <= w.hi;
}

/* Rows of a run that see key k: first .. end. */
struct rowrange { int first, end; };
INLINE struct rowrange rows_of(const struct tile *t, struct band w, int k)
{
    int64_t first = w.lo - t->d + k,
            end = w.hi >= ((int64_t)1 << 60) ? t->rows : w.hi - t->d + k + 1;
    if (first < 0) first = 0;
    if (end > t->rows) end = t->rows;
    if (first > end) first = end < 0 ? 0 : end;
    if (end < first) end = first;
    return (struct rowrange){ (int)first, (int)end };
}

/* What a masked score becomes. */
INLINE void mask(const struct tile *t, real *s, real with)
{
    if (t->live < QT)
        for (int k = 0; k < t->keys; k++)
            for (int r = t->live; r < QT; r += VL) vf_store(s + k * QT + r, vf_set1(with));
    if (!t->partial) return;
    struct band w = band(t->c->plan);
    for (int k = 0; k < t->keys; k++) {
        real *row = s + k * QT;
        if (t->run && !t->qg) {
            struct rowrange a = rows_of(t, w, k);
            for (int r = 0; r < a.first; r++) row[r] = with;
            for (int r = a.end; r < t->live; r++) row[r] = with;
        } else {
            for (int r = 0; r < t->live; r++)
                if (!visible(t, k, r)) row[r] = with;
        }
    }
}

/* ---- Products of a tile ---------------------------------------------------------------------- */

/* One vector q: C[k] = sum over d of a[d][k] q[d], rows of A being `ad` apart, lanes over keys. */
INLINE void dot_across(int keys, const real *a, ptrdiff_t ad, int D, const real *q, real *c)
{
    int k = 0;
    for (; k + 4 * VL <= keys; k += 4 * VL) {
        vf acc[4];
        UNROLL for (int i = 0; i < 4; i++) acc[i] = vf_set1(0);
        for (int d = 0; d < D; d++)
            UNROLL for (int i = 0; i < 4; i++)
                acc[i] = vf_fma(vf_load(a + d * ad + k + i * VL), vf_set1(q[d]), acc[i]);
        UNROLL for (int i = 0; i < 4; i++) vf_store(c + k + i * VL, acc[i]);
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
/* The same with a[k][d], VL x VL blocks turned in registers. */
INLINE void dot_keys(int keys, const real *a, ptrdiff_t as, int D, const real *q, real *c)
{
    int k = 0;
#if VL > 1
    for (; k + VL <= keys; k += VL) {
        vf acc = vf_set1(0);
        int d = 0;
        for (; d + VL <= D; d += VL) {
            vf x[VL];
            UNROLL for (int i = 0; i < VL; i++) x[i] = vf_load(a + (k + i) * as + d);
            vf_transpose(x);
            UNROLL for (int i = 0; i < VL; i++) acc = vf_fma(x[i], vf_set1(q[d + i]), acc);
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

/* Rows of an array of reals, by key, before those of the tile at a: what comes next where older
 * tiles follow. */
INLINE struct next rows_before(const struct tile *t, const real *a, ptrdiff_t as)
{
    if (!t->next.first) return t->next;
    return (struct next){ (const char *)(a - KT * as), as * (ptrdiff_t)sizeof(real), sizeof(real),
                          sizeof(real) };
}

/* next: the rows of a of the next tile, if the product is to ask for them. */
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
        UNROLL for (int i = 0; i < 4; i++) x[i] = vf_set1(0);
        for (int k = 0; k < t->keys; k++) {
            vf w = vf_set1(p[k]);
            UNROLL for (int i = 0; i < 4; i++)
                x[i] = vf_fma(vf_load(a + k * as + n + i * VL), w, x[i]);
        }
        UNROLL for (int i = 0; i < 4; i++)
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
enum { STRIP = 16 };

INLINE struct next from_row(struct next next, int row)
{
    if (next.first) next.first += row * next.row;
    return next;
}
/* C[k][r] = sum over d of a[k * as + d * ad] b[d][r], or C + it.  In a tile that the diagonal
 * crosses, rows before the first that sees any key of a strip are left alone: the mask overwrites
 * them. */
INLINE void dot_as(const enum then then, const struct tile *t, const real *a, ptrdiff_t as,
                   ptrdiff_t ad, struct next next, int D, const real *b, real *c)
{
    if (!t->partial || !t->run || t->qg) {
        product_on(then, t->keys, t->live, D, a, as, ad, b, QT, c, QT, NULL, next);
        return;
    }
    struct band w = band(t->c->plan);
    for (int k = 0; k < t->keys; k += STRIP) {
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
/* C[n][r] = C[n][r] * fade[r] + sum over k of a[k][n] p[k][r]; keys after the last that a strip of
 * rows sees have p = 0 and are left out. */
INLINE void mix_tile(const struct tile *t, const real *a, ptrdiff_t as, int D, const real *p,
                     real *c, const real *fade, const struct next rows)
{
    /* A is the array across */
    const struct next next = { rows.first, rows.step, rows.row, rows.size };
    if (!t->partial || !t->run || t->qg) {
        product_on(FADE, D, t->live, t->keys, a, 1, as, p, QT, c, QT, fade, next);
        return;
    }
    struct band w = band(t->c->plan);
    for (int r = 0; r < t->live; r += STRIP) {
        int64_t last = t->d + r + STRIP - 1 - w.lo;
        int keys = last + 1 < t->keys ? (int)(last + 1 > 0 ? last + 1 : 0) : t->keys;
        product_on(FADE, D, STRIP, keys, a, 1, as, p + r, QT, c + r, QT, fade + r, next);
    }
}
#endif

/* Is every number of these rows finite?  Where not, 0 * NaN must not reach rows that do not see the
 * key. */
INLINE bool finite_rows(const real *x, ptrdiff_t stride, int rows, int width)
{
    vf zeros[4] = { vf_set1(0), vf_set1(0), vf_set1(0), vf_set1(0) };
    real bad = 0, lanes[VL];
    for (int i = 0; i < rows; i++) {
        int n = 0;
        for (; n + 4 * VL <= width; n += 4 * VL)
            UNROLL for (int v = 0; v < 4; v++)
                zeros[v] = vf_fma(vf_load(x + i * stride + n + v * VL), vf_set1(0), zeros[v]);
        for (; n < width; n++) bad += x[i * stride + n] * 0;
    }
    vf_store(lanes, vf_add(vf_add(zeros[0], zeros[1]), vf_add(zeros[2], zeros[3])));
    for (int v = 0; v < VL; v++) bad += lanes[v];
    return bad == 0;
}
/* mix_tile() over visible keys only: the same sums where all is finite. */
INLINE void mix_visible(const struct tile *t, const real *a, ptrdiff_t as, int D, const real *p,
                        real *c, const real *fade)
{
    for (int n = 0; n < D; n++)
        for (int r = 0; r < t->live; r++) {
            real sum = 0;
            for (int k = 0; k < t->keys; k++)
                if (visible(t, k, r)) sum = fma_(a[k * as + n], p[k * QT + r], sum);
            c[n * QT + r] = fma_(c[n * QT + r], fade[r], sum);
        }
}
INLINE void mix_safe(const struct tile *t, const real *a, ptrdiff_t as, int D, const real *p,
                     real *c, const real *fade, const struct next next)
{
    if (t->partial && !finite_rows(a, as, t->keys, D)) mix_visible(t, a, as, D, p, c, fade);
    else mix_tile(t, a, as, D, p, c, fade, next);
}

#if QT > 1
/* C[k][n] += sum over r of w[k][r] rows[r][n]: rows before the first that sees a key of the strip
 * have w = 0. */
INLINE void outer(const struct tile *t, const real *w, const real *rows, int width, real *c)
{
    if (!t->partial || !t->run || t->qg) {
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
/* C[n][d] += sum over r of w[n][r] rows[r][d]; rows that are not finite are left out where w is
 * 0. */
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

/* ---- Numbers as they are stored -------------------------------------------------------------- */

/* Are q, k, v, o and their gradients reals already? */
INLINE bool in_place(const struct call *c) { return c->plan->stored == sizeof(real); }
INLINE void *stored_row(const struct call *c, const loci_view *v, ptrdiff_t b, int h, ptrdiff_t i)
{
    return (char *)v->data + (b * v->batch + h * v->head + i * v->row) * (ptrdiff_t)c->plan->stored;
}

INLINE void widen16(const bool bf16, const uint16_t *from, int n, real *to)
{
    int i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(to + i, bf16 ? vf_load_bf16(from + i) : vf_load_f16(from + i));
    for (; i < n; i++) to[i] = (real)(bf16 ? from_bf16(from[i]) : from_f16(from[i]));
}
INLINE void narrow16(const bool bf16, const real *from, int n, uint16_t *to)
{
    int i = 0;
    for (; i + VL <= n; i += VL) {
        if (bf16) vf_store_bf16(to + i, vf_load(from + i));
        else vf_store_f16(to + i, vf_load(from + i));
    }
    for (; i < n; i++) to[i] = bf16 ? to_bf16((float)from[i]) : to_f16((float)from[i]);
}
INLINE void widen_row(const struct call *c, const void *from, int n, real *to)
{
    if (in_place(c)) memcpy(to, from, sizeof(real) * (size_t)n);
    else if (c->plan->dtype == LOCI_BF16) widen16(true, from, n, to);
    else widen16(false, from, n, to);
}
INLINE void narrow_row(const struct call *c, const real *from, int n, void *to)
{
    if (in_place(c)) memcpy(to, from, sizeof(real) * (size_t)n);
    else if (c->plan->dtype == LOCI_BF16) narrow16(true, from, n, to);
    else narrow16(false, from, n, to);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* n rows of reals, padded; rows past n up to QT, and the padding, are 0. */
INLINE void pad_rows(int n, int width, real *rows)
{
    const int stride = padded(width);
    for (int r = 0; r < QT; r++)
        for (int d = r < n ? width : 0; d < stride; d++) rows[(ptrdiff_t)r * stride + d] = 0;
}
/* n rows of a view as padded reals. */
INLINE void load_rows(const struct call *c, const loci_view *v, ptrdiff_t b, int h, ptrdiff_t i,
                      int n, int width, real *rows)
{
    for (int r = 0; r < n; r++)
        widen_row(c, stored_row(c, v, b, h, i + r), width, rows + (ptrdiff_t)r * padded(width));
    pad_rows(n, width, rows);
}
INLINE void store_rows(const struct call *c, const real *rows, ptrdiff_t stride, const loci_view *v,
                       ptrdiff_t b, int h, ptrdiff_t i, int n, int width)
{
    for (int r = 0; r < n; r++)
        narrow_row(c, rows + r * stride, width, stored_row(c, v, b, h, i + r));
}
INLINE void clear(const loci_view *v, ptrdiff_t B, int H, ptrdiff_t L, int width, size_t size)
{
    if (!v->data) return;
    for (ptrdiff_t b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (ptrdiff_t i = 0; i < L; i++)
                memset((char *)v->data
                           + (b * v->batch + h * v->head + i * v->row) * (ptrdiff_t)size,
                       0, size * (size_t)width);
}

/* Begins a query tile: positions, Q turned, scaled and transposed. */
INLINE void open_rows(struct tile *t, const struct sequence *q, int h, ptrdiff_t row, int rows)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const int Dp = padded(p->dim);
    t->seq = q, t->h = h, t->kvh = h / p->group, t->kh = key_head(p, h);
    t->i0 = q->q0 + row, t->rows = rows, t->live = QT, t->run = q->run;
    t->qg = NULL, t->kg = NULL, t->block = -1, t->next = (struct next){ 0 };
    if (!q->run || q->segments) {
        int64_t *qp = (int64_t *)t->qp;
        for (int r = 0; r < rows; r++) qp[r] = pos_q(c, q->b, t->i0 + r);
    }
    if (q->segments) {
        int64_t *qg = (int64_t *)t->qp + QT;
        for (int r = 0; r < rows; r++) qg[r] = seg_q(c, q->b, t->i0 + r);
        t->qg = qg, t->kg = t->kp + KT;
    }
    load_rows(c, &c->q, q->b, h, t->i0, rows, p->dim, t->qrows);
    if (p->rotate >= 0)
        rotation_of(c)->turn(c, p->rotate, t->angles, q->b, t->h, true, t->i0, rows, t->qrows, Dp);
    const real scale = (real)p->scale;
    for (int n = 0; n < QT * Dp; n++) t->qrows[n] *= scale;
    transpose(t->qrows, Dp, QT, p->dim, t->qt, QT);
}

/* ---- Keys and values, wherever they are ------------------------------------------------------ */

/* Which of the two, for what follows. */
enum side { KEYS, VALUES };
INLINE int side_width(const struct call *c, enum side side)
{
    return side == KEYS ? c->plan->dim : c->plan->value_dim;
}
INLINE const loci_view *side_view(const struct call *c, enum side side)
{
    return side == KEYS ? &c->k : &c->v;
}

/* Row j of entry b: of a view, in pages or not, or a value in a cache; j is counted in the call's
 * keys. */
INLINE const void *stored_key(const struct call *c, enum side side, ptrdiff_t b, int h, ptrdiff_t j)
{
    const loci_pages *p = c->in->pages;
    if (c->cache) {
        const ptrdiff_t at = j + cache_list(c->cache, c->cache->base)[b];
        return (const char *)cache_values(c->cache, b, h, at)
             + at % KT * c->plan->value_dim * (ptrdiff_t)c->plan->stored;
    }
    return p ? stored_row(c, side_view(c, side), p->table[b * p->entry + j / p->length], h,
                          j % p->length)
             : stored_row(c, side_view(c, side), b, h, j);
}
/* Keys j .. j + n - 1 of a cache, all of one tile, as dense rows of reals. */
INLINE void load_cached(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j, int n, real *to)
{
    const ptrdiff_t at = j + cache_list(c->cache, c->cache->base)[b], from = at % KT;
    const int D = c->plan->dim;
    const char *tile = cache_keys(c->cache, b, h, at);
    real lines[VL * KT];
    for (int d = 0; d < D; d += VL) {
        const int m = D - d < VL ? D - d : VL;
        for (int i = 0; i < m; i++)
            widen_row(c, tile + ((d + i) * KT + from) * (ptrdiff_t)c->plan->stored, n,
                      lines + i * KT);
        transpose(lines, KT, m, n, to + d, D);
    }
}
/* Rows j .. j + n - 1, all of one tile, as dense rows of reals. */
INLINE void load_keys(const struct call *c, enum side side, ptrdiff_t b, int h, ptrdiff_t j, int n,
                      real *to)
{
    const int width = side_width(c, side);
    if (c->cache && side == KEYS) {
        load_cached(c, b, h, j, n, to);
        return;
    }
    for (int k = 0; k < n; k++)
        widen_row(c, stored_key(c, side, b, h, j + k), width, to + (ptrdiff_t)k * width);
}
/* Are rows j .. j + n - 1 of a tile a constant stride apart? */
INLINE bool in_one_piece(const struct call *c, ptrdiff_t j, int n)
{
    const loci_pages *p = c->in->pages;
    return !p || j / p->length == (j + n - 1) / p->length;
}
/* Are they reals, too? */
INLINE bool rows_in_place(const struct call *c, enum side side, ptrdiff_t j, int n)
{
    return in_place(c) && !(c->cache && side == KEYS) && in_one_piece(c, j, n);
}
/* Rows j .. j + n - 1 of a tile as reals: where they are, or in `room`. */
INLINE const real *find_rows(const struct call *c, enum side side, ptrdiff_t b, int h, ptrdiff_t j,
                             int n, real *room, ptrdiff_t *stride)
{
    *stride = side_width(c, side);
    if (rows_in_place(c, side, j, n)) {
        if (!c->cache) *stride = side_view(c, side)->row;
        return stored_key(c, side, b, h, j);
    }
    load_keys(c, side, b, h, j, n, room);
    return room;
}
INLINE const real *find_row(const struct call *c, enum side side, ptrdiff_t b, int h, ptrdiff_t j,
                            real *room)
{
    ptrdiff_t stride;
    return find_rows(c, side, b, h, j, 1, room, &stride);
}

/* The keys and the values of the tile: in place, or turned and staged, or in its room. */
INLINE void find_keys(struct tile *t)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const struct sequence *q = t->seq;
    t->kd = 1;
    if (c->turned) {
        t->k = (const real *)c->turned + ((q->b * p->key_heads + t->kh) * c->Lk + t->j0) * p->dim;
        t->ks = p->dim;
    } else if (c->cache) {
        t->k = key_place(c, q->b, t->kvh, t->j0, &t->kd);
        t->ks = 1;
        if (in_place(c)) return;
        widen_row(c, t->k, p->dim * KT, t->keys_room);
        t->k = t->keys_room;
    } else {
        t->k = find_rows(c, KEYS, q->b, t->kvh, t->j0, t->keys, t->keys_room, &t->ks);
    }
}
INLINE void find_values(struct tile *t)
{
    t->v = find_rows(t->c, VALUES, t->seq->b, t->kvh, t->j0, t->keys, t->values_room, &t->vs);
}

/* What the next tile reads, which is the one before: no processor's prefetcher sees a stream in
 * blocks of rows, newest first. */
INLINE struct next to_older(const struct tile *t, enum side side)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const ptrdiff_t b = t->seq->b, j = t->j0 - KT, width = side_width(c, side),
                    stored = (ptrdiff_t)p->stored;
    if (side == KEYS && c->turned) {
        const real *first = (const real *)c->turned
                          + ((b * p->key_heads + t->kh) * c->Lk + j) * width;
        return (struct next){ (const char *)first, width * (ptrdiff_t)sizeof(real), sizeof(real),
                              sizeof(real) };
    }
    if (side == KEYS && c->cache) {
        ptrdiff_t step;
        const char *first = key_place(c, b, t->kvh, j, &step);
        return (struct next){ first, stored, step * stored, (int)stored };
    }
    if (!in_one_piece(c, j, KT)) return (struct next){ 0 };
    return (struct next){ stored_key(c, side, b, t->kvh, j),
                          (c->cache ? width : side_view(c, side)->row) * stored, stored,
                          (int)stored };
}

/* Fades the queries from the reference of the tile's keys. */
INLINE void fade_queries(struct tile *t)
{
    const struct call *c = t->c;
    const struct rotation *rotation = fading(c);
    if (!rotation) return;
    const struct sequence *q = t->seq;
    const int x = c->plan->rotate, D = c->plan->dim, Dp = padded(D);
    const ptrdiff_t tile = (t->j0 - q->k0) / KT, block = tile / rotation->span(c, x);
    if (t->block == block) return;
    t->block = block;
    memcpy(t->qf, t->qrows, sizeof(real) * (size_t)(QT * Dp));
    rotation->fade(c, x, q->b, true, fade_from(c, q, tile), t->i0, t->rows, t->qf, Dp);
    transpose(t->qf, Dp, QT, D, t->qt, QT);
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* The tile's s, all but mix, from scale q.k: masked, then the hooks.  With a mix, a gets the scores
 * and s the sum of ADDs. */
INLINE void add_terms(struct tile *t)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    mask(t, t->s, -INFINITY);
    if (!p->uses) return;
    EACH_USE(c, x, term) if (term->read) term->read(t, x);
    bool mul = false;
    for (enum group g = GROUP_RAW; g <= GROUP_ADD; g++) {
        if (g == GROUP_ADD && p->mix >= 0) {
            real *a = t->a;
            t->a = t->s, t->s = a;
            memset(t->s, 0, sizeof(real) * KT * QT);
        }
        EACH_USE(c, x, term) {
            if (p->use[x].group != g || !term->score) continue;
            if (g == GROUP_MUL && !mul && t->pre) memcpy(t->pre, t->s, sizeof(real) * KT * QT);
            mul |= g == GROUP_MUL;
            term->score(t, x);
        }
        if (g == GROUP_MUL && mul) mask(t, t->s, -INFINITY);
    }
}
#if QT > 1
INLINE void score_tile(struct tile *t)
{
    const int D = t->c->plan->dim;
    fade_queries(t);
    if (t->kd == 1) dot_as(SET, t, t->k, t->ks, 1, t->next, D, t->qt, t->s);
    else dot_as(SET, t, t->k, 1, KT, t->next, D, t->qt, t->s);
    add_terms(t);
}
#endif

/* Sum of the ceilings of all terms for this tile; +inf when one of them promises nothing. */
INLINE real ceilings(const struct tile *t)
{
    real sum = 0;
    EACH_USE(t->c, x, term) {
        enum group g = t->c->plan->use[x].group;
        if (g == GROUP_ROTATE) continue;
        if (!term->ceiling) return INFINITY;
        sum += term->ceiling(t, x);
    }
    return sum;
}

/* Is it worth asking for ceilings at all? */
INLINE bool skips(const struct call *c)
{
    if (QT == 1 || c->plan->mix >= 0 || c->plan->weight >= 0 || fading(c)) return false;
    bool fades = false;
    EACH_USE(c, x, term) {
        enum group g = c->plan->use[x].group;
        fades |= term->fades;
        if (g != GROUP_ROTATE && (!term->ceiling || g == GROUP_MUL)) return false;
    }
    return fades;
}
/* No score of the tile can come closer than EXP_LOW to `floor` of its row, so all its weights are
 * exact zeros. */
INLINE bool negligible(const struct tile *t, const real *floor)
{
    const struct sequence *q = t->seq;
    const real most = ceilings(t);
    if (!(most < INFINITY)) return false;
    const real knorm = t->c->knorm[t->kh * t->c->ktiles + q->first_ktile + (t->j0 - q->k0) / KT];
    for (int r = 0; r < t->rows; r++) {
        real bound = t->qnorm[r] * knorm + most;
        bound += abs_(bound) * (real)1e-5 + (real)1e-3;
        if (!(bound - floor[r] < EXP_LOW)) return false;
    }
    return true;
}
/* Does some term see to it that no tile has a weight left? */
INLINE bool all_spent(const struct tile *t, int n)
{
    for (int i = 0; i < n; i++) {
        bool some = false;
        EACH_USE(t->c, x, term) some |= term->spent && term->spent(&t[i], x);
        if (!some) return false;
    }
    return true;
}
/* |q| of every row (scaled already), a little larger than it is. */
INLINE void measure_rows(struct tile *t)
{
    const int D = t->c->plan->dim;
    for (int r = 0; r < QT; r++) t->qnorm[r] = 0;
    for (int d = 0; d < D; d++)
        for (int r = 0; r < QT; r++)
            t->qnorm[r] = fma_(t->qt[d * QT + r], t->qt[d * QT + r], t->qnorm[r]);
    for (int r = 0; r < QT; r++) t->qnorm[r] = (real)(sqrt((double)t->qnorm[r]) * 1.0001);
}

#endif
