/* SPDX-License-Identifier: MIT */
/* blocks.h -- the table of the term `blocks`: blocks of channels, each rotated by one generator.
 *
 * Block j of head group g is rotated by exp(x S), S skew [block][block], x = sum over axes a of
 * coordinate[a] weight[a][j].  With S = U N U^T (math/skew_form.h) that is U exp(x N) U^T, where
 * the middle factor rotates pairs of channels.  So a row is transformed into the basis U, rotated
 * as in pairs.h with frequencies weight[a][j] lambda[g][j][k], and transformed back.  An odd block
 * has one fixed channel.  It is stored as a pair of frequency 0 whose second channel is 0.  So each
 * block has `half` pairs.
 *
 * Panels of whole blocks are one matrix each, so that short blocks fill the lanes.  A panel is
 * PANEL channels wide in the basis, unless a block is wider.  Unused lanes are also pairs of
 * frequency 0.
 *
 * The table is that of pairs.h for all pairs of all panels.  Then come doubles:
 * weight[axes][count], lambda[groups][count][half], low parts of lambda in the same form,
 * U[groups][count][block][block], and scratch for two S.  Then come reals, for each group and
 * panel: the matrix into the basis [channels][width], and the matrix back [width][lanes of
 * channels]. */
#ifndef LOCI_LAYOUT_BLOCKS_H
#define LOCI_LAYOUT_BLOCKS_H

#include "layout/pairs.h"

enum { PANEL = 16, MAX_BLOCK = 256 };

/* Set by the encoding.  groups: 1, or the kv heads.  axes: coordinates.  block and count: size and
 * number of blocks. */
struct blocks {
    int block, count, axes, groups;
};

/* blocks_half(): pairs of a block.  blocks_lanes(): whole lanes.  blocks_per_panel(): blocks that
 * share a panel, as many as fit, at least one.  blocks_panels(): panels of a head. */
static inline int blocks_half(const struct blocks *b) { return (b->block + 1) / 2; }
static inline int blocks_lanes(int n) { return (n + PANEL - 1) / PANEL * PANEL; }
static inline int blocks_per_panel(const struct blocks *b)
{
    const int fit = PANEL / (2 * blocks_half(b));
    return fit > 1 ? fit : 1;
}
static inline int blocks_panels(const struct blocks *b)
{
    return (b->count + blocks_per_panel(b) - 1) / blocks_per_panel(b);
}
/* Channels of a panel, and its width in the basis, in whole lanes. */
static inline int blocks_channels(const struct blocks *b) { return blocks_per_panel(b) * b->block; }
static inline int blocks_width(const struct blocks *b)
{
    return blocks_lanes(blocks_per_panel(b) * 2 * blocks_half(b));
}
static inline int blocks_pairs(const struct blocks *b)
{
    return blocks_panels(b) * blocks_width(b) / 2;
}
/* The index of pair k of block j. */
static inline int blocks_pair(const struct blocks *b, int j, int k)
{
    const int per = blocks_per_panel(b);
    return j / per * blocks_width(b) / 2 + j % per * blocks_half(b) + k;
}

static inline const double *blocks_weight(const struct blocks *b, const void *table)
{
    return (const double *)((const char *)table
                            + loci_pairs_size(blocks_pairs(b), b->axes, b->groups));
}
static inline const double *blocks_lambda(const struct blocks *b, const void *table)
{
    return blocks_weight(b, table) + b->axes * b->count;
}
/* The low parts of lambda, then the bases U. */
static inline const double *blocks_rest(const struct blocks *b, const void *table)
{
    return blocks_lambda(b, table) + b->groups * b->count * blocks_half(b);
}
static inline const double *blocks_basis(const struct blocks *b, const void *table)
{
    return blocks_rest(b, table) + b->groups * b->count * blocks_half(b);
}
/* Where the panels start, in whole cache lines, and how many reals a panel has. */
static inline size_t blocks_at(const struct blocks *b)
{
    const size_t doubles = (size_t)(b->axes * b->count + 2 * b->groups * b->count * blocks_half(b))
                         + (size_t)(b->groups * b->count + 2) * (size_t)(b->block * b->block);
    return loci_pairs_size(blocks_pairs(b), b->axes, b->groups) + (doubles + 7) / 8 * 64;
}
static inline ptrdiff_t blocks_panel(const struct blocks *b)
{
    return (ptrdiff_t)blocks_channels(b) * blocks_width(b)
         + (ptrdiff_t)blocks_width(b) * blocks_lanes(blocks_channels(b));
}

/* A part of the gradient, for each kv head and block.  It has sums of coordinate[a] dphi,
 * [axes][half].  For each two pairs k < l of the block it then has four sums: the complex numbers
 * (A, B) of the skew gradient by S in the basis, y -> A y + B conj(y). */
static inline ptrdiff_t blocks_part(const struct blocks *b)
{
    const ptrdiff_t half = blocks_half(b);
    return half * (b->axes + 2 * (half - 1));
}
/* Where the four sums of k and l start: rows of a triangle without its diagonal. */
static inline ptrdiff_t blocks_two(const struct blocks *b, int k, int l)
{
    const ptrdiff_t half = blocks_half(b);
    return half * b->axes + 4 * (k * half - (ptrdiff_t)k * (k + 1) / 2 + (l - k - 1));
}

/* S[row][column] for row < column, and the weights. */
typedef double blocks_generator(const struct prep *, int group, int j, int row, int column);
typedef double blocks_weights(const struct prep *, int axis, int j);

/* Bytes of the table; `each` is the size of a real. prepare() writes the whole table. */
size_t loci_blocks_size(const struct blocks *, size_t each);
void loci_blocks_prepare(const struct prep *, blocks_generator *, blocks_weights *);
/* For fold().  loci_blocks_gradient() adds to to[block] a row of the skew gradient by S of block j,
 * summed over the kv heads of group g.  loci_blocks_weight_gradient() returns the gradient by
 * weight[axis][j], over all heads. */
void loci_blocks_gradient(const struct prep *, int g, int j, int row, double *to);
double loci_blocks_weight_gradient(const struct prep *, int axis, int j);

#endif
