/* SPDX-License-Identifier: MIT */
/* softmax.h -- from scores to sums of values: softmax of a tile, the chunk's
 * sums, and how chunks join.
 *
 *     chunk:  m' = max(m, s)   p = e^(s - m')   l = l e^(m - m') + sum p
 *     o = o e^(m - m') + sum p v
 *     total:  the same with the chunk's m, l, o instead of s, p and p v
 *
 * Every chunk starts empty: that makes skipping exact and lets decode split its keys. */
#ifndef LOCI_ENGINE_SOFTMAX_H
#define LOCI_ENGINE_SOFTMAX_H

#include "engine/scores.h"

#if QT > 1
/* Both passes over a tile process n vectors of rows together, as each max and each sum waits for
 * the one before.  The first pass finds the largest score, of the chunk so far and the tile. */
INLINE void find_largest(const int n, const struct tile *t, int r, real *largest)
{
    const real *s = t->s + r, *end = s + t->keys * QT;
    vf m[4];
    UNROLL_FOR(int i = 0; i < n; i++) m[i] = vf_load(t->chunk.m + r + i * VL);
    for (; s < end; s += QT)
        UNROLL_FOR(int i = 0; i < n; i++) m[i] = vf_max(m[i], vf_load(s + i * VL));
    UNROLL_FOR(int i = 0; i < n; i++) vf_store(largest + r + i * VL, m[i]);
}
/* The second pass computes the weights.  Keys that no row of these vectors sees get 0, without exp.
 * A row that has seen no key yet has -inf for its largest score, and is compared with 0: -inf -
 * -inf would be NaN. */
INLINE void column_weights(const int n, struct tile *t, int r, const real *largest)
{
    const struct keyrange seen = keys_of_rows(t, r, n * VL);
    const real *s = t->s + seen.first * QT + r, *end = t->s + (seen.last + 1) * QT + r;
    real *p = t->p + r;
    vf m[2], sum[2];
    for (ptrdiff_t k = 0; k < t->keys; k++)
        UNROLL_FOR(int i = 0; i < n; i++)
            if (k < seen.first || k > seen.last) vf_store(p + k * QT + i * VL, vf_set1(0));
    p += seen.first * QT;
    UNROLL_FOR(int i = 0; i < n; i++) {
        const vf top = vf_load(largest + r + i * VL);
        m[i] = vf_zero_below(top, LOWEST, top);
        sum[i] = vf_set1(0);
        vf_store(t->alpha + r + i * VL, vf_exp(vf_sub(vf_load(t->chunk.m + r + i * VL), m[i])));
        vf_store(t->chunk.m + r + i * VL, top);
    }
    for (; s < end; s += QT, p += QT)
        UNROLL_FOR(int i = 0; i < n; i++) {
            const vf x = vf_exp(vf_sub(vf_load(s + i * VL), m[i]));
            vf_store(p + i * VL, x);
            sum[i] = vf_add(sum[i], x);
        }
    UNROLL_FOR(int i = 0; i < n; i++) {
        real *l = t->chunk.l + r + i * VL;
        vf_store(l, vf_fma(vf_load(l), vf_load(t->alpha + r + i * VL), sum[i]));
    }
}
/* Softmax of one tile against the chunk's running max: p, the new m and l, and alpha, the
 * factor of sums under the old max.  A NaN score may get lost in the max, but its weight
 * is NaN, and so is the sum. */
INLINE void softmax(struct tile *t)
{
    real largest[QT];
    int r = 0;
    for (; t->live - r >= 4 * VL; r += 4 * VL) find_largest(4, t, r, largest);
    for (; r < t->live; r += VL) find_largest(1, t, r, largest);
    for (r = 0; t->live - r >= 2 * VL; r += 2 * VL) column_weights(2, t, r, largest);
    for (; r < t->live; r += VL) column_weights(1, t, r, largest);
}
#endif

/* Scales rows x[n][QT] that were summed under an older max.  Most tiles do not change the max.
 * Times 1 is exact, so skipping that keeps the bits. */
INLINE void fade_rows(real *x, int n, const real *alpha)
{
    bool same = true;
    for (int r = 0; r < QT; r++) same &= alpha[r] == 1;
    if (same) return;
    for (int i = 0; i < n; i++)
        for (int r = 0; r < QT; r++) x[i * QT + r] *= alpha[r];
}

INLINE void fill(real *x, ptrdiff_t n, real with)
{
    for (ptrdiff_t i = 0; i < n; i++) x[i] = with;
}
/* Fills the sums of values with zeros if nothing has been summed yet. */
INLINE void set_values(const struct tile *t, struct state *x)
{
    if (x->empty) fill(x->o, (ptrdiff_t)t->c->plan->value_dim * QT, 0);
    x->empty = false;
}

/* total = total * a + chunk * b, rows of QT. */
INLINE void join_rows(real *total, const real *chunk, int n, const real *a, const real *b)
{
    for (int i = 0; i < n; i++)
        for (int r = 0; r < QT; r++)
            total[i * QT + r] = fma_(chunk[i * QT + r], b[r], total[i * QT + r] * a[r]);
}
/* The same for sums of values.  The first chunk joins a total of 0, whose memory is not set. */
INLINE void join_values(struct tile *t, const real *a, const real *b)
{
    const int n = t->c->plan->value_dim;
    if (t->chunk.empty && t->total.empty) return;
    set_values(t, &t->chunk);
#if QT > 1
    for (int r = 0; r < t->live; r += VL) {
        const vf x = vf_load(a + r), y = vf_load(b + r);
        const real *chunk = t->chunk.o + r;
        real *total = t->total.o + r;
        if (t->total.empty)
            for (int i = 0; i < n; i++)
                vf_store(total + i * QT, vf_fma(vf_load(chunk + i * QT), y, vf_set1(0)));
        else
            for (int i = 0; i < n; i++)
                vf_store(total + i * QT,
                         vf_fma(vf_load(chunk + i * QT), y, vf_mul(vf_load(total + i * QT), x)));
    }
    t->total.empty = false;
#else
    join_rows(t->total.o, t->chunk.o, n, a, b);
#endif
}
/* Joins the chunk to the total.  The factor of the larger max is exactly 1, and a chunk that is
 * further below the total than EXP_LOW joins with an exact 0: that is why chunks may be skipped. */
INLINE void softmax_join(struct tile *t)
{
    real a[QT], b[QT];
    for (int r = 0; r < QT; r++) {
        const real m = max_(t->total.m[r], t->chunk.m[r]), base = m == -INFINITY ? 0 : m;
        a[r] = exp_(t->total.m[r] - base);
        b[r] = exp_(t->chunk.m[r] - base);
        t->total.m[r] = m;
    }
    join_rows(t->total.l, t->chunk.l, 1, a, b);
    join_values(t, a, b);
    EACH_USE(t->c, x, term) join_rows(t->own[x].outs, t->own[x].out, t->own[x].outn, a, b);
}

/* Excludes the columns that no live row needs from a forward pass.  Their weights are set to 0
 * once for all tiles, as sums of terms run over all columns. */
INLINE void open_columns(struct tile *t)
{
    t->live = padded(t->rows);
    if (t->live < QT) fill(t->p, KT * QT, 0);
}
/* Empties the sums of the row and of the chunk.  Terms begin with the
 * row, weights with the chunk. */
INLINE void open_total(struct tile *t)
{
    fill(t->total.m, QT, -INFINITY);
    fill(t->total.l, QT, 0);
    fill(t->lost, QT, 0);
    t->total.empty = true;
    EACH_USE(t->c, x, term) {
        fill(t->own[x].outs, (ptrdiff_t)t->own[x].outn * QT, 0);
        if (term->open) term->open(t, x);
    }
}
INLINE void open_chunk(struct tile *t)
{
    fill(t->chunk.m, QT, -INFINITY);
    fill(t->chunk.l, QT, 0);
    fill(t->alpha, QT, 1);
    t->chunk.empty = true;
    EACH_USE(t->c, x, term) {
        fill(t->own[x].out, (ptrdiff_t)t->own[x].outn * QT, 0);
        if (term->weights) term->weights->chunk(t, x);
    }
}

/* Hooks of terms on the weights of the tile.  Their sums so far fade before the tile is added. */
INLINE void value_tile(struct tile *t)
{
    EACH_USE(t->c, x, term) {
        if (t->own[x].outn) fade_rows(t->own[x].out, t->own[x].outn, t->alpha);
        if (term->value) term->value(t, x);
    }
}

/* Finds rows whose sum is still 0 because their products overflowed the reals,
 * not because of their scores. */
bool N(overflows)(struct tile *, int r);
INLINE void find_lost(struct tile *t)
{
    for (int r = 0; r < t->rows && t->c->plan->weight < 0; r++)
        if (t->total.l[r] == 0 && t->lost[r] == 0 && N(overflows)(t, r)) t->lost[r] = 1;
}

/* o, lse and rem of the finished rows.  A row that sees no key, or only keys of score -inf, has
 * sum 0 and output 0.  A lost row is NaN. */
INLINE void close_rows(struct tile *t)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const ptrdiff_t at = (t->seq->b * p->heads + t->h) * c->Lq + t->i0;
    real inverse[QT];
    find_lost(t);
    set_values(t, &t->total);
    for (int r = 0; r < t->rows && p->weight < 0; r++)
        if (t->total.l[r] == 0 && t->lost[r] != 0) t->total.l[r] = NAN;
    /* Terms that add to o have summed under the same max, so they come before the division. */
    EACH_USE(c, x, term)
        if (term->close && x != p->weight) term->close(t, x);
    if (p->weight >= 0) {
        term_of(c, p->weight)->close(t, p->weight);
    } else {
        for (int r = 0; r < QT; r++) inverse[r] = t->total.l[r] == 0 ? 0 : 1 / t->total.l[r];
        if (c->in->lse) {
            double logs[QT];
            log_rows(t->total.l, QT, logs);
            for (int r = 0; r < t->rows; r++)
                ((real *)c->in->lse)[at + r] =
                    t->total.l[r] == 0 ? -INFINITY : (real)(t->total.m[r] + logs[r]);
        }
    }
    /* the chunk's sums have joined, so their memory is free */
    const bool here = in_place(c);
    real *rows = here ? stored_row(c, &c->o, t->seq->b, t->h, t->i0) : t->chunk.o;
    const ptrdiff_t stride = here ? c->o.row : p->value_dim;
    transpose_times(t->total.o, QT, p->value_dim, t->rows, QT > 1, p->weight < 0 ? inverse : NULL,
                    rows, stride);
    if (p->turns_values)
        turn_outputs(c, t->angles, t->seq->b, t->h, -1, t->i0, t->rows, rows, stride);
    if (!here)
        store_rows(c, t->chunk.o, p->value_dim, &c->o, t->seq->b, t->h, t->i0, t->rows,
                   p->value_dim);
}

#endif
