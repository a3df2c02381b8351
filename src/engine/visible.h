/* SPDX-License-Identifier: MIT */
/* visible.h -- which keys the rows of a tile may see, and the values of masked scores. */
#ifndef LOCI_ENGINE_VISIBLE_H
#define LOCI_ENGINE_VISIBLE_H

#include "engine/term.h"

/* Distances that are visible: lo <= d <= hi.  Positions are within 2^40, so with 2^60 for an
 * open end sums with distances do not overflow.  An open hi is INT64_MAX and is only compared. */
struct band {
    int64_t lo, hi;
};
INLINE struct band band(const struct loci_plan *p)
{
    /* strict is 1 if a row does not see its own key */
    int64_t lo = p->full ? -((int64_t)1 << 60) : p->strict;
    if (p->window_right < -lo) lo = -p->window_right;
    return (struct band){ lo, p->window_left };
}

/* Keys of the sequence that some row of the tile may see: first .. last (none if last < first). */
struct keyrange {
    ptrdiff_t first, last;
};
/* The first and last key of a row of the sequence, where the caller gives them. */
INLINE ptrdiff_t first_key(const struct call *c, const struct sequence *q, ptrdiff_t row)
{
    const ptrdiff_t at = (c->in->per_batch ? q->b * c->Lq : 0) + q->q0 + row;
    const int64_t first = c->in->k_first[at] - q->k0;
    return first < 0 ? 0 : first > q->nk ? q->nk : (ptrdiff_t)first;
}
INLINE ptrdiff_t last_key(const struct call *c, const struct sequence *q, ptrdiff_t row)
{
    const ptrdiff_t at = (c->in->per_batch ? q->b * c->Lq : 0) + q->q0 + row;
    const int64_t last = c->in->k_last[at] - q->k0;
    return last < -1 ? -1 : last >= q->nk ? q->nk - 1 : (ptrdiff_t)last;
}
INLINE struct keyrange keys_of(const struct call *c, const struct sequence *q, ptrdiff_t row,
                               int rows)
{
    struct keyrange a = { 0, q->nk - 1 };
    if (c->in->k_first) {
        struct keyrange most = { q->nk, -1 };
        for (int r = 0; r < rows; r++) {
            const ptrdiff_t first = first_key(c, q, row + r), last = last_key(c, q, row + r);
            if (first <= last && first < most.first) most.first = first;
            if (first <= last && last > most.last) most.last = last;
        }
        a = most;
    }
    /* Positions may have any order, so each tile must be tested. */
    if (!q->run || q->segments) return a;
    struct band w = band(c->plan);
    int64_t d = q->d0 + row; /* distance of the tile's first row to key 0 */
    /* The last row sees the newest keys, the first row the oldest. */
    if (d + rows - 1 - w.lo < a.last) a.last = (ptrdiff_t)(d + rows - 1 - w.lo);
    if (w.hi < d && d - w.hi > a.first) a.first = (ptrdiff_t)(d - w.hi);
    return a;
}

/* The present keys of a range. */
INLINE struct keyrange present_of(const struct call *c, struct keyrange a)
{
    const struct key_span k = present_keys(c);
    return (struct keyrange){ a.first > k.first ? a.first : (ptrdiff_t)k.first,
                              a.last < k.end ? a.last : (ptrdiff_t)k.end - 1 };
}

/* ---- Pair by pair ---------------------------------------------------------------------------- */

/* The numbers of a row in the mask, from the tile's first key on, mask_key apart. */
INLINE const void *mask_row(const struct tile *t, int r)
{
    const struct call *c = t->c;
    const size_t each = c->in->mask_kind == LOCI_MASK_SEEN ? 1 : sizeof(real);
    return (const char *)c->mask.data
         + (size_t)(t->seq->b * c->mask.batch + t->h * c->mask.head + (t->i0 + r) * c->mask.row
                    + t->j0 * c->mask_key)
               * each;
}
/* Bits of rows first .. end - 1. */
INLINE uint64_t rows_bits(int first, int end)
{
    const uint64_t below = end < 64 ? ((uint64_t)1 << end) - 1 : UINT64_MAX;
    return first < end ? below & (UINT64_MAX << first) : 0;
}
/* Rows of a run that see key k: first .. end - 1. */
struct rowrange {
    int first, end;
};
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

/* Keys that some of n rows from r on see, if an edge of the band crosses the tile; else all. */
INLINE struct keyrange keys_of_rows(const struct tile *t, int r, int n)
{
    const struct band w = band(t->c->plan);
    struct keyrange a = { 0, t->keys - 1 };
    if (!t->cut) return a;
    const int64_t newest = t->d + r + n - 1 - w.lo,
                  oldest = w.hi >= ((int64_t)1 << 60) ? 0 : t->d + r - w.hi;
    if (newest < a.last) a.last = newest < 0 ? -1 : (ptrdiff_t)newest;
    if (oldest > 0) a.first = oldest > a.last ? a.last + 1 : (ptrdiff_t)oldest;
    return a;
}

/* True if order and window hide some pair of a tile. */
INLINE bool band_cuts(const struct tile *t, struct band w)
{
    /* The smallest distance of a run is that of the last key and the first row. */
    return !t->run || t->d - (t->keys - 1) < w.lo || t->d + t->rows - 1 > w.hi;
}
/* True if all rows and keys belong to one segment that is not padding. */
INLINE bool one_segment(const struct tile *t)
{
    bool same = t->qg[0] >= 0;
    for (int r = 1; r < t->rows; r++) same &= t->qg[r] == t->qg[0];
    for (int k = 0; k < t->keys; k++) same &= t->kg[k] == t->qg[0];
    return same;
}
/* True if some rows begin after the tile's first key, or end before its last one. */
INLINE bool ranges_cut(const struct tile *t, int64_t j)
{
    bool cut = false;
    for (int r = 0; r < t->rows; r++) cut |= t->first[r] > j || t->last[r] < j + t->keys - 1;
    return cut;
}

/* Adds to hidden[] what a mask hides.  A constant step gives vectors. */
INLINE void list_masked(struct tile *t, ptrdiff_t step)
{
    const loci_mask kind = t->c->in->mask_kind;
    const uint64_t one = 1;
    uint64_t *hidden = t->hidden;
    for (int r = 0; kind == LOCI_MASK_SEEN && r < t->rows; r++) {
        const unsigned char *seen = mask_row(t, r);
        for (int k = 0; k < t->keys; k++) hidden[k] |= (uint64_t)(seen[k * step] == 0) * (one << r);
    }
    for (int r = 0; kind == LOCI_MASK_ADDED && r < t->rows; r++) {
        const real *added = mask_row(t, r);
        for (int k = 0; k < t->keys; k++)
            hidden[k] |= (uint64_t)(added[k * step] == -INFINITY) * (one << r);
    }
}
/* hidden[] of the tile: what order and window, segments, ranges and a mask hide. */
INLINE void list_hidden(struct tile *t, struct band w)
{
    const uint64_t rows = rows_bits(0, t->rows);
    uint64_t *hidden = t->hidden;
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (int r = 0; !t->run && r < t->rows; r++) {
        if (t->qp[r] < low) low = t->qp[r];
        if (t->qp[r] > high) high = t->qp[r];
    }
    const bool cut = band_cuts(t, w), apart = t->qg && !one_segment(t);
    for (int k = 0; k < t->keys; k++) {
        uint64_t bits = 0;
        if (t->run && cut) {
            const struct rowrange a = rows_of(t, w, k);
            bits = rows & ~rows_bits(a.first, a.end);
        } else if (cut && (low - t->kp[k] < w.lo || high - t->kp[k] > w.hi)) {
            for (int r = 0; r < t->rows; r++) {
                const int64_t d = t->qp[r] - t->kp[k];
                bits |= (uint64_t)(d < w.lo || d > w.hi) << r;
            }
        }
        for (int r = 0; apart && r < t->rows; r++)
            bits |= (uint64_t)(t->qg[r] != t->kg[k] || t->kg[k] < 0) << r;
        hidden[k] = bits;
    }
    const int64_t j = t->j0 - t->seq->k0;
    const bool ranges = t->first && ranges_cut(t, j);
    for (int r = 0; ranges && r < t->rows; r++)
        for (int k = 0; k < t->keys; k++)
            hidden[k] |= (uint64_t)(j + k < t->first[r] || j + k > t->last[r]) << r;
    if (t->c->mask_key == 1) list_masked(t, 1);
    else list_masked(t, t->c->mask_key);
}
/* Lists what rows do not see.  True if any of them sees a key of the tile. */
INLINE bool list_tile(struct tile *t, struct band w)
{
    const uint64_t rows = rows_bits(0, t->rows);
    uint64_t some = 0, all = rows;
    list_hidden(t, w);
    for (int k = 0; k < t->keys; k++) {
        some |= t->hidden[k];
        all &= t->hidden[k];
    }
    t->partial = t->rows < t->live || some;
    return all != rows;
}

/* Puts the tile on the keys j .. of its sequence, at most to `last`.  False
 * if no row sees any of them. */
INLINE bool set_keys(struct tile *t, ptrdiff_t j, ptrdiff_t last)
{
    const struct call *c = t->c;
    const struct sequence *q = t->seq;
    struct band w = band(c->plan);
    t->j0 = q->k0 + j;
    t->keys = last - j + 1 < KT ? (int)(last - j + 1) : KT;
    if (t->run) t->d = q->d0 + (t->i0 - q->q0) - j;
    t->cut = !t->listed && band_cuts(t, w);
    if (!t->listed) {
        /* Some row sees some of them, as keys_of() has excluded the others. */
        t->partial = t->rows < t->live || t->cut;
        return true;
    }
    int64_t *kp = (int64_t *)t->kp, *kg = (int64_t *)t->kg;
    for (int k = 0; k < t->keys && (!t->run || kg); k++) {
        kp[k] = pos_k(c, q->b, t->j0 + k);
        if (kg) kg[k] = seg_k(c, q->b, t->j0 + k);
    }
    return list_tile(t, w);
}

/* Sets the numbers of all rows but first .. end - 1 among the live ones of a tile. */
INLINE void set_outside(real *row, const struct rowrange in, int live, real with)
{
#if QT > 1
    static const real lane[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    const vf x = vf_set1(with), lanes = vf_load(lane);
    int r = 0;
    for (; r + VL <= in.first; r += VL) vf_store(row + r, x);
    if (r < in.first)
        vf_store(row + r,
                 vf_negative(vf_sub(lanes, vf_set1((real)(in.first - r))), x, vf_load(row + r)));
    if (in.end == live) return;
    r = in.end / VL * VL;
    vf_store(row + r,
             vf_negative(vf_sub(vf_set1((real)(in.end - r - 1)), lanes), x, vf_load(row + r)));
    for (r += VL; r < live; r += VL) vf_store(row + r, x);
#else
    for (int r = 0; r < live; r++)
        if (r < in.first || r >= in.end) row[r] = with;
#endif
}
/* Sets s[k][r] of all pairs that row r does not see: to -inf in scores, to 0 in gradients and
 * weights.  It selects and never multiplies, as 0 * NaN is NaN. */
INLINE void mask(const struct tile *t, real *s, real with)
{
    /* Products skip the columns from `live` on, so these are stale. */
    if (t->live < QT)
        for (int k = 0; k < t->keys; k++)
            for (int r = t->live; r < QT; r += VL) vf_store(s + k * QT + r, vf_set1(with));
    if (!t->partial) return;
    struct band w = band(t->c->plan);
    const uint64_t dead = rows_bits(t->rows, t->live);
    for (int k = 0; k < t->keys; k++) {
        real *row = s + k * QT;
        if (t->listed) {
            for (uint64_t bits = t->hidden[k] | dead; bits; bits &= bits - 1)
                row[__builtin_ctzll(bits)] = with;
        } else {
            set_outside(row, rows_of(t, w, k), t->live, with);
        }
    }
}

#endif
