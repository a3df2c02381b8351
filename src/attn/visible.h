/* SPDX-License-Identifier: MIT */
/* visible.h -- which keys the rows of a tile may see, and what masked scores become. */
#ifndef LOCI_ATTN_VISIBLE_H
#define LOCI_ATTN_VISIBLE_H

#include "attn/term.h"

/* Distances that are visible: lo <= d <= hi.  Positions lie within 2^40, so with 2^60 for an open
 * end sums with distances do not overflow; hi is INT64_MAX then, and is only compared. */
struct band { int64_t lo, hi; };
INLINE struct band band(const struct loci_plan *p)
{
    /* strict is 1 where a row does not see its own key */
    int64_t lo = p->full ? -((int64_t)1 << 60) : p->strict;
    if (p->window_right < -lo) lo = -p->window_right;
    return (struct band){ lo, p->window_left };
}

/* Keys of the sequence that some row of the tile may see: first .. last
 * (none when last < first). */
struct keyrange { ptrdiff_t first, last; };
INLINE struct keyrange keys_of(const struct call *c, const struct sequence *q, ptrdiff_t row,
                               int rows)
{
    struct keyrange a = { 0, q->nk - 1 };
    /* Positions in any order: only a look at each tile can tell. */
    if (!q->run || q->segments) return a;
    struct band w = band(c->plan);
    int64_t d = q->d0 + row;             /* distance of the tile's first row to key 0 */
    /* The last row sees the newest keys, the first row the oldest. */
    if (d + rows - 1 - w.lo < a.last) a.last = (ptrdiff_t)(d + rows - 1 - w.lo);
    if (w.hi < d) a.first = (ptrdiff_t)(d - w.hi);
    return a;
}

/* Puts the tile on the keys j .. of its sequence, at most to `last`.  False when
 * no row sees any of them. */
INLINE bool set_keys(struct tile *t, ptrdiff_t j, ptrdiff_t last)
{
    const struct call *c = t->c;
    const struct sequence *q = t->seq;
    struct band w = band(c->plan);
    t->j0 = q->k0 + j;
    t->keys = last - j + 1 < KT ? (int)(last - j + 1) : KT;
    if (t->run && !t->qg) {
        /* Some row sees some of them, as keys_of() has left out the others.  The smallest distance
         * is that of the last key and the first row. */
        t->d = q->d0 + (t->i0 - q->q0) - j;
        t->partial = t->rows < t->live || t->d - (t->keys - 1) < w.lo || t->d + t->rows - 1 > w.hi;
        return true;
    }
    if (t->run) t->d = q->d0 + (t->i0 - q->q0) - j;
    /* Else the extremes of the positions bound all distances.  Segments are looked at pair by
     * pair, so with them every tile counts as partial. */
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

/* Rows of a run that see key k: first .. end - 1. */
struct rowrange { int first, end; };
INLINE struct rowrange rows_of(const struct tile *t, struct band w, int k)
{
    /* An open hi would overflow here. */
    int64_t first = w.lo - t->d + k,
            end = w.hi >= ((int64_t)1 << 60) ? t->rows : w.hi - t->d + k + 1;
    if (first < 0) first = 0;
    if (end > t->rows) end = t->rows;
    if (first > end) first = end < 0 ? 0 : end;
    if (end < first) end = first;
    return (struct rowrange){ (int)first, (int)end };
}

/* Sets s[k][r] of all pairs that row r does not see: to -inf in scores, to 0 in gradients and
 * weights.  It selects and never multiplies, as 0 * NaN is NaN. */
INLINE void mask(const struct tile *t, real *s, real with)
{
    /* Products leave out the columns from `live` on, so these hold old memory. */
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

#endif
