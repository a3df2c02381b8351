/* SPDX-License-Identifier: MIT */
/* comrope.c -- blocks of channels rotated by learned generators that commute.  Yu et al.,
 * ComRoPE, CVPR 2025 (arXiv 2506.03737).
 *
 *     x[block j] <- exp(sum over axes a of coordinate[a] A[a][j]) x[block j],
 *     S[j] = P[j] - P[j]^T
 *
 * kind=ap gives each block one axis: A[a][j] = S[j] where j mod axes = a, else 0.  kind=ld
 * scales one generator for all: A[a][j] = theta[a][j] S[j].  The paper writes one theta per
 * axis; its code has one per axis and block, shared by the heads.  The code's form is the
 * default; a theta of shape [axes][1] gives the paper's.  P has a head axis, that of the kv
 * heads, as a group of query heads shares its keys.
 *
 * All generators of a block are multiples of S[j] = U N U^T, so a row needs one basis and plain
 * pairs in it: layout/blocks.h.  For a block of 2, U is the identity. */
#include "layout/blocks.h"

enum { KIND, AXES, BLOCK };
enum { AP, LD };
enum { P, THETA };
static const loci_option opts[] = {
    [KIND] = { "kind", LOCI_WORD, 0, AP, 0, 0, "ap|ld",
               "ap: one axis per block; ld: all axes, scaled by theta" },
    [AXES] = { "axes", LOCI_WHOLE, 0, 2, 1, MAX_AXES, NULL, "coordinates per position" },
    [BLOCK] = { "block", LOCI_WHOLE, 0, 2, 2, MAX_BLOCK, NULL,
                "channels that are rotated together" },
    { 0 }
};

/* Sizes: blocks of a kv head, each with its own generator. */
static int axes(const struct config *c) { return (int)c->opt[AXES]; }
static struct blocks blocks(const struct config *c)
{
    const int block = (int)c->opt[BLOCK];
    return (struct blocks){
        .block = block, .count = c->dim / block, .axes = axes(c), .groups = c->kv_heads
    };
}

static loci_status check(struct config *c, loci_error *e)
{
    const int block = (int)c->opt[BLOCK];
    CHECK(e, c->dim % block == 0, LOCI_BAD_ARG,
          "comrope: the head's %d channels must be a multiple of the block size %d", c->dim, block);
    CHECK(e, c->opt[KIND] == LD || c->dim / block % axes(c) == 0, LOCI_BAD_ARG,
          "comrope: with kind=ap the %d blocks of a head must divide evenly among %d axes",
          c->dim / block, axes(c));
    return LOCI_OK;
}

/* theta has a column per block, or one for all, as in the caller's tensor. */
static void tensors(const struct config *c, struct tensors *t)
{
    const struct blocks b = blocks(c);
    loci_add_tensor(t, c, "p", LOCI_LEARNED, INIT_NORMAL, 1, 0,
                    SHAPE(c->kv_heads, b.count, b.block, b.block));
    if (c->opt[KIND] == AP) return;
    const loci_tensor *theta = loci_have(c, "theta");
    const ptrdiff_t columns = theta && theta->rank == 2 && theta->shape[1] == 1 ? 1 : b.count;
    loci_add_tensor(t, c, "theta", LOCI_LEARNED, INIT_NORMAL, 1, 0, SHAPE(b.axes, columns));
}
static void terms(const struct config *c, struct termlist *t)
{
    const struct blocks b = blocks(c);
    loci_add_term_layout(t, b.block == 2 ? TERM_pairs : TERM_blocks, GROUP_ROTATE, &b, sizeof b);
}

/* ---- Tables ---------------------------------------------------------------------------------- */

/* Where a number is in the tensors. */
static ptrdiff_t p_at(const struct blocks *b, int head, int j, int row, int column)
{
    return (((ptrdiff_t)head * b->count + j) * b->block + row) * b->block + column;
}
static ptrdiff_t theta_at(const struct prep *p, int axis, int j)
{
    const ptrdiff_t columns = p->tensor[THETA].shape[1];
    return axis * columns + (columns > 1 ? j : 0);
}
/* The factor of a coordinate before it scales S: theta, or with kind=ap 1
 * for the block's own axis. */
static double weight(const struct prep *p, int axis, int j)
{
    return p->cfg->opt[KIND] == LD ? param(p, THETA, theta_at(p, axis, j))
                                   : j % axes(p->cfg) == axis;
}
/* S = P - P^T. */
static double generator(const struct prep *p, int head, int j, int row, int column)
{
    const struct blocks b = blocks(p->cfg);
    return param(p, P, p_at(&b, head, j, row, column))
         - param(p, P, p_at(&b, head, j, column, row));
}

/* Blocks of 2 need no basis: S rotates the pair by lambda = -S[0][1], and the term
 * `pairs` does it.  fold() has no tensors, so after the pairs the table has
 * weight[axes][pairs] and lambda[H][pairs]. */
static double *weights_of(const struct prep *p)
{
    return (double *)((char *)p->table
                      + loci_pairs_size(p->cfg->dim / 2, axes(p->cfg), p->cfg->kv_heads));
}
static double *lambdas_of(const struct prep *p)
{
    return weights_of(p) + axes(p->cfg) * (p->cfg->dim / 2);
}
static void frequency(const struct prep *p, int axis, int head, int j, double *hi, double *lo)
{
    const double w = weights_of(p)[axis * (p->cfg->dim / 2) + j],
                 lambda = lambdas_of(p)[head * (p->cfg->dim / 2) + j];
    /* The exact product of two doubles. */
    *hi = w * lambda;
    *lo = fma(w, lambda, -*hi);
}
/* Weights and lambdas first: frequency() reads them from the table. */
static void prepare_pairs(const struct prep *p)
{
    const struct blocks b = blocks(p->cfg);
    for (int j = 0; j < b.count; j++) {
        for (int a = 0; a < b.axes; a++) weights_of(p)[a * b.count + j] = weight(p, a, j);
        for (int h = 0; h < b.groups; h++)
            lambdas_of(p)[h * b.count + j] = -generator(p, h, j, 0, 1);
    }
    const struct pairs form = {
        .count = b.count,
        .interleaved = true,
        .axes = b.axes,
        .groups = b.groups,
        .factor = 1,
    };
    loci_pairs_prepare(p, form, frequency);
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    const struct blocks b = blocks(c);
    (void)range;
    if (b.block > 2) return loci_blocks_size(&b, real);
    return loci_pairs_size(b.count, b.axes, b.groups)
         + (size_t)(b.axes + b.groups) * (size_t)b.count * sizeof(double);
}
static void prepare(const struct prep *p)
{
    if (p->cfg->opt[BLOCK] == 2) prepare_pairs(p);
    else loci_blocks_prepare(p, generator, weight);
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* With d = the gradient by the frequency w lambda: dlambda = d w, dw = d lambda, and
 * lambda = P[1][0] - P[0][1]. */
static void fold_pairs(const struct prep *p)
{
    const struct blocks b = blocks(p->cfg);
    for (int h = 0; h < b.groups; h++)
        for (int a = 0; a < b.axes; a++)
            for (int j = 0; j < b.count; j++) {
                const double d =
                    p->dtable[0][h * pairs_part(p->cfg->dim, b.axes) + a * b.count + j];
                const double w = weights_of(p)[a * b.count + j],
                             lambda = lambdas_of(p)[h * b.count + j];
                if (p->dtensor[P]) {
                    p->dtensor[P][p_at(&b, h, j, 0, 1)] -= d * w;
                    p->dtensor[P][p_at(&b, h, j, 1, 0)] += d * w;
                }
                if (p->cfg->opt[KIND] == LD && p->dtensor[THETA])
                    p->dtensor[THETA][theta_at(p, a, j)] += d * lambda;
            }
}
/* Larger blocks: S = P - P^T, so the skew gradient by S is the gradient by P, row by row. */
static void fold(const struct prep *p)
{
    const struct blocks b = blocks(p->cfg);
    if (!p->dtable[0]) return;
    if (b.block == 2) {
        fold_pairs(p);
        return;
    }
    for (int h = 0; h < b.groups && p->dtensor[P]; h++)
        for (int j = 0; j < b.count; j++)
            for (int row = 0; row < b.block; row++)
                loci_blocks_gradient(p, h, j, row, p->dtensor[P] + p_at(&b, h, j, row, 0));
    for (int a = 0; a < b.axes && p->cfg->opt[KIND] == LD && p->dtensor[THETA]; a++)
        for (int j = 0; j < b.count; j++)
            p->dtensor[THETA][theta_at(p, a, j)] += loci_blocks_weight_gradient(p, a, j);
}

const struct loci_pe loci_pe_comrope = {
    .name = "comrope",
    .cite = "Yu et al., CVPR 2025",
    .family = FAMILY_ROTATION,
    .brief = "blocks of channels are rotated by learned generators that commute",
    .example = "comrope",
    .places = LOCI_PLACE_ROTATE,
    .rotates = true,
    .tol = 2e-6,
    .opts = opts,
    .check = check,
    .axes = axes,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
