/* SPDX-License-Identifier: MIT */
/* blocks.h -- the table of the term `blocks`: blocks
 * of channels that turn about one generator each.
 *
 * Block j of head group g turns by exp(x S), S skew [block][block], x = sum over axes a of
 * coordinate[a] weight[a][j].  With S = U N U^T (math/skew_form.h) that is U exp(x N) U^T, where
 * the middle turns pairs of channels: so a row goes into the basis U, turns as in pairs.h with
 * frequencies weight[a][j] lambda[g][j][k], and comes back.  An odd block has one channel that
 * stays, as a pair of frequency 0 whose second channel is 0: `half` pairs per block.
 *
 * Panels of whole blocks, PANEL channels wide in the basis unless a block is wider, are one matrix
 * each, so that short blocks fill the lanes.  Where blocks leave lanes over, these are pairs of
 * frequency 0 too.
 *
 * The table is that of pairs.h for all pairs of all panels; then doubles: weight[axes][count],
 * lambda[groups][count][half] and as many low parts of them, U[groups][count][block][block], room
 * for two S; then reals, for each group and panel: the matrix into the basis [channels][width] and
 * the one back [width][lanes of channels]. */
#ifndef LOCI_LAYOUT_BLOCKS_H
#define LOCI_LAYOUT_BLOCKS_H

#include "layout/pairs.h"

enum { PANEL = 16, MAX_BLOCK = 256 };

/* What the encoding says: the size and number of blocks, coordinates, and 1 or the kv heads. */
struct blocks { int block, count, axes, groups; };

/* Pairs of a block; whole lanes; blocks that share a panel,
 * as many as fit but at least one; panels of a head. */
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
/* The pair that is number k of block j. */
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
/* Where the panels start, in whole cache lines, and how many reals one has. */
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

/* A part of the gradient, for each kv head and block: sums of coordinate[a] dphi, [axes][half];
 * then for each two of its pairs, k before l, four sums: the complex numbers (A, B) of the skew
 * gradient by S in the basis, y -> A y + B conj(y). */
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

/* Bytes of the table; `each` is the size of a real. prepare() writes all of it. */
size_t loci_blocks_size(const struct blocks *, size_t each);
void loci_blocks_prepare(const struct prep *, blocks_generator *, blocks_weights *);
/* For fold(): adds a row of the skew gradient by S of block j, summed over the kv heads of group g,
 * to to[block]; and returns the gradient by weight[axis][j], over all heads. */
void loci_blocks_gradient(const struct prep *, int g, int j, int row, double *to);
double loci_blocks_weight_gradient(const struct prep *, int axis, int j);

#endif
