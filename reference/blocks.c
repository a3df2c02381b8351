/* SPDX-License-Identifier: MIT */
/* blocks.c -- encodings that rotate blocks of channels by the exponential of a skew matrix:
 *
 *     x[block j] <- exp(X) x[block j],     X = sum over axes a of coordinate[a] A[a][j]
 *
 * The exponential is a Taylor series after halving and before squaring, which loses the norm
 * of X times the unit round-off.  So X is computed in `precise`, and so is the exponential
 * of a large one.  For the gradient, exp of [[X^T, G], [0, X^T]] has dL/dX above its
 * diagonal, with G = dL/dexp(X). */
#include "reference/problem.h"

/* How an encoding defines its generators. */
struct blocks_by {
    int block, count, axes;
    /* A[axis][j] of a kv head, and the function that adds dL/dA to the tensors. */
    precise (*generator)(const struct problem *, int e, int kv, int axis, int j, int row,
                         int column);
    void (*give)(const struct problem *, int e, int kv, int axis, int j, int row, int column,
                 double d);
};

/* Up to this norm `wide` is enough: 2^-64 times it is 2^-48. */
#if LDBL_MANT_DIG == 64
static const double near = 65536;
#else
static const double near = 1;
#endif
enum { WIDE_TERMS = 18, PRECISE_TERMS = 28 }; /* at a norm of 1/2: below 2^-70, 2^-120 */

/* The largest matrix and three more of `precise`, and one of double. */
static ptrdiff_t room_of(const struct blocks_by *b)
{
    const ptrdiff_t numbers = 4 * (ptrdiff_t)b->block * b->block;
    return numbers * (4 * (ptrdiff_t)(sizeof(precise) / sizeof(double)) + 1) + 1;
}
/* The matrix of that many numbers in the scratch; *out: the one of double. */
static precise *matrix_of(const struct problem *p, ptrdiff_t numbers, double **out)
{
    char *at = (char *)p->rotate_scratch;
    at += (sizeof(precise) - (uintptr_t)at % sizeof(precise)) % sizeof(precise);
    *out = (double *)((precise *)at + 4 * numbers);
    return (precise *)at;
}

/* y = exp(x)^(2^halvings), n x n, by Horner's rule and squaring; t is scratch.  x is any matrix
 * if half is n; else [[a, b], [0, a]] with n = 2 half, and so are all of the series. */
#define DEFINE_SERIES(name_, number, terms) \
    static void name_(int n, int half, const number *x, number *y, number *t, int halvings) \
    { \
        for (int i = 0; i < n * n; i++) y[i] = i % (n + 1) == 0; \
        for (int k = terms; k > -halvings; k--) { \
            const number *left = k > 0 ? x : y; \
            for (int i = 0; i < half; i++) \
                for (int j = 0; j < n; j++) { \
                    number sum = 0; \
                    for (int m = 0; m < (j < half ? half : n); m++) \
                        sum += left[i * n + m] * y[m * n + j]; \
                    t[i * n + j] = k > 0 ? (i == j) + sum / k : sum; /* 1 + x y / k, or y y */ \
                } \
            for (int i = half; i < n; i++) \
                for (int j = 0; j < n; j++) \
                    t[i * n + j] = j < half ? 0 : t[(i - half) * n + j - half]; \
            memcpy(y, t, (size_t)(n * n) * sizeof *y); \
        } \
    }
DEFINE_SERIES(series_wide, wide, WIDE_TERMS)
DEFINE_SERIES(series_precise, precise, PRECISE_TERMS)

/* out = exp(x), n x n, with `half` as above; overwrites x and the three matrices after it.
 * exp(x) = exp(x / 2^k)^(2^k). */
static void exponential(int n, int half, precise *x, double *out)
{
    const int numbers = n * n;
    double norm = 0; /* of a alone, as the exponential is linear in b */
    for (int i = 0; i < half; i++) {
        double sum = 0;
        for (int j = 0; j < half; j++) sum += fabs((double)x[i * n + j]);
        norm = fmax(norm, sum);
    }
    /* Halved until the norm is at most 1/2. */
    const int halvings = isfinite(norm) && norm > 0.5 ? ilogb(norm) + 2 : 0;
    const long double part = ldexpl(1, -halvings);
    precise *y = x + numbers;
    if (isfinite(norm) && norm > near) {
        for (int i = 0; i < numbers; i++) x[i] *= (precise)part;
        series_precise(n, half, x, y, y + numbers, halvings);
        for (int i = 0; i < numbers; i++) out[i] = (double)y[i];
    } else {
        wide *w = (wide *)y;
        for (int i = 0; i < numbers; i++) w[i] = (wide)(x[i] * (precise)part);
        series_wide(n, half, w, w + numbers, w + 2 * numbers, halvings);
        for (int i = 0; i < numbers; i++) out[i] = (double)w[numbers + i];
    }
}

/* An entry of X for the coordinates of a row. */
static precise exponent(const struct problem *p, int e, const struct blocks_by *b, loci_which which,
                        int kv, ptrdiff_t row, int j, int r, int c)
{
    precise sum = 0;
    for (int axis = 0; axis < b->axes; axis++)
        sum += coordinate(p, which, axis, row) * b->generator(p, e, kv, axis, j, r, c);
    return sum;
}

/* Channels after the last block are copied. */
static void rotate_blocks(const struct problem *p, int e, const struct blocks_by *b,
                          loci_which which, int head, ptrdiff_t row, const double *x, double *y)
{
    int n = b->block, kv = which == LOCI_QUERY ? kv_head(p, head) : head;
    double *out;
    precise *in = matrix_of(p, n * n, &out);
    memcpy(y, x, (size_t)p->D * sizeof *y);
    for (int j = 0; j < b->count; j++) {
        for (int r = 0; r < n; r++)
            for (int c = 0; c < n; c++) in[r * n + c] = exponent(p, e, b, which, kv, row, j, r, c);
        exponential(n, n, in, out);
        for (int r = 0; r < n; r++) y[j * n + r] = dot(out + r * n, x + j * n, n);
    }
}

/* y = exp(X) x: dx = exp(X)^T dy, and dL/dexp(X) = dy x^T goes into the upper right of the
 * doubled matrix, whose exponential has exp(X)^T as its first block. */
static void rotate_blocks_backward(const struct problem *p, int e, const struct blocks_by *b,
                                   loci_which which, int head, ptrdiff_t row, const double *x,
                                   const double *dy, double *dx)
{
    int n = b->block, m = 2 * n, kv = which == LOCI_QUERY ? kv_head(p, head) : head;
    double *out;
    precise *in = matrix_of(p, m * m, &out);
    memcpy(dx, dy, (size_t)p->D * sizeof *dx);
    for (int j = 0; j < b->count; j++) {
        const double *g = dy + j * n;
        /* padding may contain anything, even NaN */
        bool any = false;
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
        exponential(m, n, in, out);
        /* The first block of the result is exp(X)^T, the upper right one dL/dX. */
        for (int r = 0; r < n; r++) dx[j * n + r] = dot(out + r * m, g, n);
        for (int axis = 0; axis < b->axes; axis++)
            for (int r = 0; r < n; r++)
                for (int c = 0; c < n; c++)
                    b->give(p, e, kv, axis, j, r, c,
                            coordinate(p, which, axis, row) * out[r * m + n + c]);
    }
}

/* Defines the functions of an encoding from its blocks. */
#define DEFINE_BLOCKS(name_) \
    static void name_(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row, \
                      const double *x, double *y) \
    { \
        struct blocks_by b = blocks_of_##name_(p, e); \
        rotate_blocks(p, e, &b, which, head, row, x, y); \
    } \
    static void name_##_backward(const struct problem *p, int e, loci_which which, int head, \
                                 ptrdiff_t row, const double *x, const double *dy, double *dx) \
    { \
        struct blocks_by b = blocks_of_##name_(p, e); \
        rotate_blocks_backward(p, e, &b, which, head, row, x, dy, dx); \
    } \
    static ptrdiff_t name_##_room(const struct problem *p, int e) \
    { \
        struct blocks_by b = blocks_of_##name_(p, e); \
        return room_of(&b); \
    } \
    const struct definition loci_define_##name_ = { \
        .name = #name_, \
        .rotate = name_, \
        .rotate_backward = name_##_backward, \
        .scratch_size = name_##_room, \
        .matrices = true, \
    };

/* ---- comrope -----------------------------------------------------------------------------------
 *
 * A[a][j] = weight[a][j] (P[j] - P[j]^T); the weight is theta, or 1 on one axis per block. */

/* Where a number is in the tensors; a theta of one column serves all blocks. */
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
static precise comrope_skew(const struct problem *p, int e, int kv, int j, int row, int column)
{
    const double *P = tensor(p, e, "p");
    return (precise)P[p_number(p, e, kv, j, row, column)] - P[p_number(p, e, kv, j, column, row)];
}
static precise comrope_generator(const struct problem *p, int e, int kv, int axis, int j, int row,
                                 int column)
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
    if (dtheta)
        dtheta[theta_number(p, e, axis, j)] += d * (double)comrope_skew(p, e, kv, j, row, column);
}
static struct blocks_by blocks_of_comrope(const struct problem *p, int e)
{
    int block = (int)option(p, e, "block", 2);
    return (struct blocks_by){
        .block = block,
        .count = p->D / block,
        .axes = (int)option(p, e, "axes", 2),
        .generator = comrope_generator,
        .give = comrope_give,
    };
}
DEFINE_BLOCKS(comrope)

/* ---- liere: A[a][j] = U - U^T, U the part of raw[a][j] above the diagonal -------------------- */

/* Where a number is in raw: one table for all heads, or one per kv head. */
static int liere_number(const struct problem *p, int e, int kv, int axis, int j, int row,
                        int column)
{
    int block = (int)option(p, e, "block", 64), count = p->D / block,
        heads = form(p, e, "raw")->rank == 5 ? p->Hkv : 1;
    return (((axis * heads + (heads > 1 ? kv : 0)) * count + j) * block + row) * block + column;
}
/* An entry of U - U^T. */
static precise liere_generator(const struct problem *p, int e, int kv, int axis, int j, int row,
                               int column)
{
    const double *raw = tensor(p, e, "raw");
    if (row < column) return raw[liere_number(p, e, kv, axis, j, row, column)];
    return row == column ? 0 : -raw[liere_number(p, e, kv, axis, j, column, row)];
}
/* An entry and its mirror image both lead to the entry above the diagonal. */
static void liere_give(const struct problem *p, int e, int kv, int axis, int j, int row, int column,
                       double d)
{
    double *draw = dtensor(p, e, "raw");
    if (row < column) draw[liere_number(p, e, kv, axis, j, row, column)] += d;
    if (row > column) draw[liere_number(p, e, kv, axis, j, column, row)] -= d;
}
static struct blocks_by blocks_of_liere(const struct problem *p, int e)
{
    int block = (int)option(p, e, "block", 64);
    return (struct blocks_by){
        .block = block,
        .count = p->D / block,
        .axes = (int)option(p, e, "axes", 2),
        .generator = liere_generator,
        .give = liere_give,
    };
}
DEFINE_BLOCKS(liere)
