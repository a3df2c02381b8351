/* SPDX-License-Identifier: MIT */
/* bands.h -- numbers by distance, lined up with tiles.
 *
 * Numbers of QT query rows are stored in rows of lanes, by distance: x[d][r].  Row r is at the
 * distance d0 + r - k from key k, if d0 is that of the tile's first pair.  So key k needs the
 * diagonal x[d0 - k + r][r].  Line m of a skewed array is the diagonal that starts at m, and key
 * k reads line d0 - k as it is.
 *
 * Lane r of a line comes from r rows further on.  With one blend per bit of the lane's
 * number every row is read once. */
#ifndef LOCI_TERMS_BANDS_H
#define LOCI_TERMS_BANDS_H

#include "simd/num.h"
#include "contract/plan.h"

/* Rows of QT by distance: distances beyond from .. to use those of the ends.  Several
 * distances may share a row. */
struct by_distance {
    real *rows;
    /* of the distances from .. to; row number `first` is the first in memory */
    const int32_t *index;
    int from, to, first;
};
INLINE real *row_at(const struct by_distance *x, int d)
{
    d = d < x->from ? x->from : d > x->to ? x->to : d;
    return x->rows + (ptrdiff_t)(x->index[d - x->from] - x->first) * QT;
}

#if QT == 1
/* With one row a line is one number, and no skew is needed. */
INLINE void skew(const struct by_distance *x, int m, int n, real *lines)
{
    for (int i = 0; i < n; i++) lines[i] = *row_at(x, m + i);
}
INLINE void unskew(const real *lines, int m, int n, const real *base, const struct by_distance *x,
                   int first, int last)
{
    (void)n;
    for (int d = first; d <= last; d++)
        *row_at(x, d) += base ? exp_(lines[d - m] - *base) : lines[d - m];
}
#else
/* Gets one vector after the other and returns one whose lane n is that of the vector n steps
 * before; i counts steps.  Bit by bit: lanes whose number has this bit wait 1 << bit steps more,
 * in a ring of that many vectors. */
struct cascade {
    vf held[VL];
};
INLINE vf push(struct cascade *c, const int i, vf x)
{
    UNROLL_FOR(int bit = 0; bit < VBITS; bit++) {
#if VL > 1
        /* rings of 1, 2, 4 ... vectors one after the other; i is a constant
         * where this is unrolled */
        const int at = (1 << bit) - 1, turn = at + (i & at);
        const vf before = c->held[turn];
        c->held[turn] = x;
        x = vf_pick(bit, x, before);
#endif
    }
    (void)c;
    (void)i;
    return x;
}

/* lines[i][r] = x[m + i + r][r], i = 0 .. n - 1.  From the top down, so that a line's lane 0
 * comes last.  The first VL - 1 lines fill the cascade and are not stored. */
INLINE void skew(const struct by_distance *x, int m, int n, real *lines)
{
    for (int v = 0; v < QT; v += VL) {
        struct cascade c;
        UNROLL_FOR(int i = 0; i < VL; i++) c.held[i] = vf_set1(0);
        for (int top = n + VL - 2; top >= 0; top -= VL) {
            UNROLL_FOR(int i = 0; i < VL; i++) {
                const int line = top - i;
                const vf y = push(&c, i, vf_load(row_at(x, m + line + v) + v));
                if (line >= 0 && line < n) vf_store(lines + (ptrdiff_t)line * QT + v, y);
            }
        }
    }
}

/* The adjoint: x[d][r] += lines[d - r - m][r], d = first .. last; with a base, e^(the line's -
 * base[r]).  There are n lines, among them all that are needed.  Lines outside are not needed:
 * an existing one is read instead. */
INLINE void unskew(const real *lines, int m, int n, const real *base, const struct by_distance *x,
                   int first, int last)
{
    for (int v = 0; v < QT; v += VL) {
        const vf b = base ? vf_load(base + v) : vf_set1(0);
        struct cascade c;
        UNROLL_FOR(int i = 0; i < VL; i++) c.held[i] = vf_set1(0);
        for (int low = first - (VL - 1); low <= last; low += VL) {
            UNROLL_FOR(int i = 0; i < VL; i++) {
                const int d = low + i, line = d - v - m;
                const real *from = lines
                                 + (ptrdiff_t)(line < 0   ? 0
                                               : line < n ? line
                                                          : n - 1)
                                       * QT
                                 + v;
                vf y = push(&c, i, vf_load(from));
                if (d < first || d > last) continue;
                if (base) y = vf_exp(vf_sub(y, b));
                real *to = row_at(x, d) + v;
                vf_store(to, vf_add(vf_load(to), y));
            }
        }
    }
}

/* skew() straight into a tile of n keys, from two blocks of KT distances: pair (k, r) has the
 * distance r + KT - 1 - k, and s[k][r] += x[r + KT - 1 - k][r].  No lines are stored between. */
INLINE void spread_tile(const real *const *blocks, int n, real *s)
{
    for (int v = 0; v < QT; v += VL) {
        struct cascade c;
        UNROLL_FOR(int i = 0; i < VL; i++) c.held[i] = vf_set1(0);
        for (int top = KT + VL - 2; top >= 0; top -= VL) {
            UNROLL_FOR(int i = 0; i < VL; i++) {
                const int line = top - i, d = line + v < 0 ? 0 : line + v, k = KT - 1 - line;
                const vf y = push(&c, i, vf_load(blocks[d / KT] + (ptrdiff_t)(d % KT) * QT + v));
                real *to = s + (ptrdiff_t)k * QT + v;
                if (k >= 0 && k < n) vf_store(to, vf_add(vf_load(to), y));
            }
        }
    }
}
/* The adjoint: x[r + KT - 1 - k][r] += s[k][r].  Keys that do not exist give zeros. */
INLINE void gather_tile(const real *s, int n, real *const *blocks)
{
    for (int v = 0; v < QT; v += VL) {
        struct cascade c;
        UNROLL_FOR(int i = 0; i < VL; i++) c.held[i] = vf_set1(0);
        for (int low = 0; low < KT + VL - 1; low += VL) {
            UNROLL_FOR(int i = 0; i < VL; i++) {
                const int d = low + i + v, k = KT - 1 - (low + i);
                const vf y =
                    push(&c, i, k >= 0 && k < n ? vf_load(s + (ptrdiff_t)k * QT + v) : vf_set1(0));
                real *to = blocks[d / KT] + (ptrdiff_t)(d % KT) * QT + v;
                vf_store(to, vf_add(vf_load(to), y));
            }
        }
    }
}
#endif

#endif
