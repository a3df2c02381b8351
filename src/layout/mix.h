/* SPDX-License-Identifier: MIT */
/* mix.h -- shared by cape and its term `mix`: options, and the layout of the network and of the
 * parts of its gradient.
 *
 * Table: b1 [Gp], b2 [H] padded, W1 [in][Gp] with the inputs of the ADD terms before those of the
 * scores, W2 [H][Gp].  Weights are transposed, so that the term adds a row of W1 per input with the
 * units in the lanes.  Part of a head: its row of W2, its columns of W1 for ADD terms and scores,
 * and b1, [Gp] each, then b2, padded.  Only b1 is shared by the heads; head 0 has its gradient. */
#ifndef LOCI_LAYOUT_MIX_H
#define LOCI_LAYOUT_MIX_H

#include "contract/encoding.h"

enum { MIX_HIDDEN, MIX_ADD_BIAS, MIX_LEAK };              /* options */
enum { MIX_DW2, MIX_DW1_ADD, MIX_DW1, MIX_DB1, MIX_DB2 }; /* rows of a part */

enum { MIX_LINE = 16 }; /* whole vectors of every instruction set */
static inline int mix_padded(int n) { return (n + MIX_LINE - 1) / MIX_LINE * MIX_LINE; }

struct mix {
    /* Heads; inputs: H, or 2 H if other encodings have ADD terms. */
    int H, in;
    int G, Gp;        /* units; padded by zeros, for units that stay 0 */
    double leak, add; /* slope of units below 0; factor of the ADD terms */
};
static inline struct mix mix_of(const struct config *c)
{
    const int units = (int)c->opt[MIX_HIDDEN];
    return (struct mix){ .H = c->heads,
                         .in = c->adds ? 2 * c->heads : c->heads,
                         .G = units,
                         .Gp = mix_padded(units),
                         .leak = c->opt[MIX_LEAK],
                         .add = c->opt[MIX_ADD_BIAS] };
}

/* Offsets in the table: b1 at 0, b2, row x of W1, row h of W2.  mix_reals() is the total. */
static inline ptrdiff_t mix_b2(const struct mix *m) { return m->Gp; }
static inline ptrdiff_t mix_w1(const struct mix *m, int x)
{
    return mix_b2(m) + mix_padded(m->H) + (ptrdiff_t)x * m->Gp;
}
static inline ptrdiff_t mix_w2(const struct mix *m, int h)
{
    return mix_w1(m, m->in) + (ptrdiff_t)h * m->Gp;
}
static inline ptrdiff_t mix_reals(const struct mix *m) { return mix_w2(m, m->H); }

/* Where a row of a part begins, and reals of a part. */
static inline ptrdiff_t mix_row(const struct mix *m, int row) { return (ptrdiff_t)row * m->Gp; }
static inline ptrdiff_t mix_part(const struct mix *m) { return mix_row(m, MIX_DB2) + MIX_LINE; }

#endif
