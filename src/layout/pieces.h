/* SPDX-License-Identifier: MIT */
/* pieces.h -- the table of the term `pieces`: an additive score that is continuous and piecewise
 * linear in x = psi(|d|) / N_i, with psi by distance, N_i by the query's position, and pieces whose
 * ends all heads share.
 *
 *     b_h(x) = a[h][p] x + b[h][p]          where end[p] <= x < end[p + 1]
 *
 * Everything is computed in double and rounded once.  1 / N_i is not in the table, because the
 * table's range does not bound positions.  begin() writes it to the scratch of the call, as doubles
 * [B][Lq]. */
#ifndef LOCI_LAYOUT_PIECES_H
#define LOCI_LAYOUT_PIECES_H

#include "contract/plan.h"

enum { PIECES_LAYERS, PIECES_HIDDEN, PIECES_THRESHOLD }; /* options of the encoding */

/* The most pieces that one or two hidden layers of n units can have.  Each unit of the second layer
 * adds one end to each piece of the first.  x = 0 may be a piece of its own. */
static inline int32_t pieces_capacity(const struct config *c)
{
    const int32_t n = (int32_t)c->opt[PIECES_HIDDEN];
    return 1 + (c->opt[PIECES_LAYERS] == 2 ? (n + 1) * (n + 1) : n + 1);
}

/* psi extends beyond visible distances as far as a tile with one visible pair can reach.  The term
 * reads it for whole tiles and masks later. */
enum { MARGIN = KT + ROWS };

/* The head of a table.  All blocks are aligned to 64 bytes.  ends: [capacity]; lines: [H][a,
 * b][capacity]; psi and its derivative by c: [hi - lo + 1].  Further data that the encoding needs
 * in fold() follows. */
struct pieces {
    int64_t lo, hi;
    /* psi(d) = log(|c| d + 1).  N_i is psi of max(|far|, pos_i). */
    double c, far;
    uint64_t lines, psi, bytes; /* byte offsets from here */
    int32_t count, capacity;    /* pieces, and the most that there can be */
};
_Static_assert(sizeof(struct pieces) == 64, "what follows must start on 64 bytes");

static inline uint64_t pieces_line(uint64_t bytes) { return (bytes + 63) & ~(uint64_t)63; }
static inline uint64_t pieces_row(const struct pieces *t, size_t each)
{
    return pieces_line((uint64_t)t->capacity * each);
}
static inline struct pieces pieces_layout(const struct config *c, int64_t range, size_t each)
{
    struct pieces t = { .lo = (c->full ? -range : 0) - MARGIN,
                        .hi = range + MARGIN,
                        .capacity = pieces_capacity(c) };
    t.lines = sizeof t + pieces_row(&t, each);
    t.psi = t.lines + 2 * (uint64_t)c->heads * pieces_row(&t, each);
    t.bytes = t.psi + 2 * pieces_line((uint64_t)(t.hi - t.lo + 1) * each);
    return t;
}

static inline void *pieces_at(const struct pieces *t, uint64_t bytes)
{
    return (char *)(uintptr_t)t + bytes;
}
static inline void *pieces_ends(const struct pieces *t) { return pieces_at(t, sizeof *t); }
/* a of a head.  With `offset`, b. */
static inline void *pieces_lines(const struct pieces *t, int h, bool offset, size_t each)
{
    return pieces_at(t, t->lines + (2 * (uint64_t)h + offset) * pieces_row(t, each));
}
/* psi, or its derivative by c; element d - lo is that of distance d. */
static inline void *pieces_psi(const struct pieces *t, bool slope, size_t each)
{
    return pieces_at(t, t->psi + (slope ? pieces_line((uint64_t)(t->hi - t->lo + 1) * each) : 0));
}

/* A part of the gradient, for each head: sums of dS by piece, sums of dS x by piece, then dc and dT
 * (as if c and T were positive).  fold() needs no other sums, because everything is linear in x
 * within a piece. */
static inline ptrdiff_t pieces_part(int32_t capacity) { return 2 * (ptrdiff_t)capacity + 2; }

#endif
