/* SPDX-License-Identifier: MIT */
/* blocks.c -- encodings that turn blocks of channels by the exponential of a skew matrix:
 *
 *     x[block j] <- exp(X) x[block j],     X = sum over axes a of coordinate[a] A[a][j]
 *
 * The exponential is a Taylor series after halving and before squaring.  For the gradient, exp of
 * [[X^T, G], [0, X^T]] has above its diagonal what dL/dexp(X) = G makes of dL/dX. */
#include "reference/problem.h"

/* How an encoding makes its generators. */
struct blocks_by {
    int block, count, axes;
    /* A[axis][j] of a kv head, and what dL/dA adds to the tensors. */
    double (*generator)(const struct problem *, int e, int kv, int axis, int j, int row,
                        int column);
    void (*give)(const struct problem *, int e, int kv, int axis, int j, int row,
                 int column, double d);
};

enum { TERMS = 18 };                                     /* at a norm of 1/2: below 2^-70 */

/* Three matrices of twice a block, for the backward pass. */
static ptrdiff_t room_of(const struct blocks_by *b)
{
    return 3 * 4 * (ptrdiff_t)b->block * b->block;
}

/* y = exp(x), n x n; x is overwritten, t is scratch.
 * exp(x) = exp(x / 2^k)^(2^k), and the series by Horner's rule. */
static void exponential(int n, double *x, double *y, double *t)
{
    double norm = 0;
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int j = 0; j < n; j++) sum += fabs(x[i * n + j]);
        norm = fmax(norm, sum);
    }
    /* Halved until the norm is at most 1/2. */
    int halvings = isfinite(norm) && norm > 0.5 ? ilogb(norm) + 2 : 0;
    for (int i = 0; i < n * n; i++) x[i] = ldexp(x[i], -halvings), y[i] = i % (n + 1) == 0;
    for (int k = TERMS; k > 0; k--) {                    /* y = 1 + x y / k */
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int m = 0; m < n; m++) sum += x[i * n + m] * y[m * n + j];
                t[i * n + j] = (i == j) + sum / k;
            }
        memcpy(y, t, (size_t)(n * n) * sizeof *y);
    }
    for (; halvings > 0; halvings--) {
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int m = 0; m < n; m++) sum += y[i * n + m] * y[m * n + j];
                t[i * n + j] = sum;
            }
        memcpy(y, t, (size_t)(n * n) * sizeof *y);
    }
}

/* An entry of X for the coordinates of a row. */
static double exponent(const struct problem *p, int e, const struct blocks_by *b, loci_which which,
                       int kv, ptrdiff_t row, int j, int r, int c)
{
    double sum = 0;
    for (int axis = 0; axis < b->axes; axis++)
        sum += coordinate(p, which, axis, row) * b->generator(p, e, kv, axis, j, r, c);
    return sum;
}

/* Channels after the last block stay as they are. */
static void rotate_blocks(const struct problem *p, int e, const struct blocks_by *b, loci_which which,
                        int head, ptrdiff_t row, const double *x, double *y)
{
    int n = b->block, kv = which == LOCI_QUERY ? kv_head(p, head) : head;
    double *in = p->scratch_size, *out = in + n * n, *t = out + n * n;
    memcpy(y, x, (size_t)p->D * sizeof *y);
    for (int j = 0; j < b->count; j++) {
        for (int r = 0; r < n; r++)
            for (int c = 0; c < n; c++) in[r * n + c] = exponent(p, e, b, which, kv, row, j, r, c);
        exponential(n, in, out, t);
        for (int r = 0; r < n; r++) y[j * n + r] = dot(out + r * n, x + j * n, n);
    }
}

/* y = exp(X) x: dx = exp(X)^T dy, and dL/dexp(X) = dy x^T goes into the upper right
 * of the doubled matrix, whose exponential has exp(X)^T as its first block. */
static void rotate_blocks_backward(const struct problem *p, int e, const struct blocks_by *b,
                                 loci_which which, int head, ptrdiff_t row, const double *x,
                                 const double *dy, double *dx)
{
    int n = b->block, m = 2 * n, kv = which == LOCI_QUERY ? kv_head(p, head) : head;
    double *in = p->scratch_size, *out = in + m * m, *t = out + m * m;
    memcpy(dx, dy, (size_t)p->D * sizeof *dx);
    for (int j = 0; j < b->count; j++) {
        const double *g = dy + j * n;
        bool any = false;                                /* padding need not hold numbers */
        for (int r = 0; r < n; r++) any |= g[r] != 0;
        if (!any) continue;
        for (int r = 0; r < n; r++)
            for (int c = 0; c < n; c++) {
                /* X^T twice on the diagonal, dy x^T above it, 0 below. */
                in[r * m + c] = in[(n + r) * m + n + c] =
                    exponent(p, e, b, which, kv, row, j, c, r);
                in[r * m + n + c] = g[r] * x[j * n + c];
                in[(n + r) * m + c] = 0;
            }
        exponential(m, in, out, t);
        /* The first block of the result is exp(X)^T, the upper right one dL/dX. */
        for (int r = 0; r < n; r++) dx[j * n + r] = dot(out + r * m, g, n);
        for (int axis = 0; axis < b->axes; axis++)
            for (int r = 0; r < n; r++)
                for (int c = 0; c < n; c++)
                    b->give(p, e, kv, axis, j, r, c,
                            coordinate(p, which, axis, row) * out[r * m + n + c]);
    }
}

/* An encoding by its blocks. */
#define DEFINE_BLOCKS(name_)                                                                       \
    static void name_(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,   \
                      const double *x, double *y)                                                  \
    {                                                                                              \
        struct blocks_by b = blocks_of_##name_(p, e);                                              \
        rotate_blocks(p, e, &b, which, head, row, x, y);                                             \
    }                                                                                              \
    static void name_##_backward(const struct problem *p, int e, loci_which which, int head,       \
                                 ptrdiff_t row, const double *x, const double *dy, double *dx)     \
    {                                                                                              \
        struct blocks_by b = blocks_of_##name_(p, e);                                              \
        rotate_blocks_backward(p, e, &b, which, head, row, x, dy, dx);                               \
    }                                                                                              \
    static ptrdiff_t name_##_room(const struct problem *p, int e)                                  \
    {                                                                                              \
        struct blocks_by b = blocks_of_##name_(p, e);                                              \
        return room_of(&b);                                                                        \
    }                                                                                              \
    const struct definition loci_define_##name_ = {                                                \
        .name = #name_, .rotate = name_, .rotate_backward = name_##_backward, .scratch_size = name_##_room,    \
        .matrices = true,                                                                          \
    };

/* ---- comrope -----------------------------------------------------------------------------------
 *
 * A[a][j] = weight[a][j] (P[j] - P[j]^T); the weight is theta, or 1 on one axis per block. */

/* Where the tensors have a number; a theta of one column serves all blocks. */
static int theta_number(const struct problem *p, int e, int axis, int j)
{
    int columns = (int)form(p, e, "theta")->shape[1];
    return axis * columns + (columns == 1 ? 0 : j);
}
static int p_number(const struct problem *p, int e, int kv, int j, int row, int column)
{
    int block = (int)option(p, e, "block", 2);
    return ((kv * (p->D / block) + j) * block + row) * block + column;
}
/* theta, or with kind=ap 1 on the block's own axis and 0 on the others. */
static double comrope_weight(const struct problem *p, int e, int axis, int j)
{
    if (option(p, e, "kind", 0) == 1) return tensor(p, e, "theta")[theta_number(p, e, axis, j)];
    return j % (int)option(p, e, "axes", 2) == axis;
}
static double comrope_skew(const struct problem *p, int e, int kv, int j, int row, int column)
{
    const double *P = tensor(p, e, "p");
    return P[p_number(p, e, kv, j, row, column)] - P[p_number(p, e, kv, j, column, row)];
}
static double comrope_generator(const struct problem *p, int e, int kv, int axis, int j,
                                int row, int column)
{
    return comrope_weight(p, e, axis, j) * comrope_skew(p, e, kv, j, row, column);
}
/* dP and dtheta from dA: a product, and a difference of two entries. */
static void comrope_give(const struct problem *p, int e, int kv, int axis, int j, int row,
                         int column, double d)
{
    double *dP = dtensor(p, e, "p"), *dtheta = dtensor(p, e, "theta");
    dP[p_number(p, e, kv, j, row, column)] += d * comrope_weight(p, e, axis, j);
    dP[p_number(p, e, kv, j, column, row)] -= d * comrope_weight(p, e, axis, j);
    if (dtheta) dtheta[theta_number(p, e, axis, j)] += d * comrope_skew(p, e, kv, j, row, column);
}
static struct blocks_by blocks_of_comrope(const struct problem *p, int e)
{
    int block = (int)option(p, e, "block", 2);
    return (struct blocks_by){
        .block = block, .count = p->D / block, .axes = (int)option(p, e, "axes", 2),
        .generator = comrope_generator, .give = comrope_give,
    };
}
DEFINE_BLOCKS(comrope)

/* ---- liere: A[a][j] = U - U^T, U the part of raw[a][j] above the diagonal -------------------- */

/* Where raw has a number: one table for all heads, or one per kv head. */
static int liere_number(const struct problem *p, int e, int kv, int axis, int j,
                        int row, int column)
{
    int block = (int)option(p, e, "block", 64), count = p->D / block,
        heads = form(p, e, "raw")->rank == 5 ? p->Hkv : 1;
    return (((axis * heads + (heads > 1 ? kv : 0)) * count + j) * block + row) * block + column;
}
/* An entry of U - U^T. */
static double liere_generator(const struct problem *p, int e, int kv, int axis, int j,
                              int row, int column)
{
    const double *raw = tensor(p, e, "raw");
    if (row < column) return raw[liere_number(p, e, kv, axis, j, row, column)];
    return row == column ? 0 : -raw[liere_number(p, e, kv, axis, j, column, row)];
}
/* Entry and mirror image both lead to the one above the diagonal. */
static void liere_give(const struct problem *p, int e, int kv, int axis, int j, int row,
                       int column, double d)
{
    double *draw = dtensor(p, e, "raw");
    if (row < column) draw[liere_number(p, e, kv, axis, j, row, column)] += d;
    if (row > column) draw[liere_number(p, e, kv, axis, j, column, row)] -= d;
}
static struct blocks_by blocks_of_liere(const struct problem *p, int e)
{
    int block = (int)option(p, e, "block", 64);
    return (struct blocks_by){
        .block = block, .count = p->D / block, .axes = (int)option(p, e, "axes", 2),
        .generator = liere_generator, .give = liere_give,
    };
}
DEFINE_BLOCKS(liere)
