/* SPDX-License-Identifier: MIT */
/* layer.h -- shared by the functions of loci/layers.h: checks, rows as doubles, work by heads.  All
 * arithmetic is in double and in one order.  No code calls libm's exp or log, so bits depend on the
 * numbers only. */
#ifndef LOCI_LAYERS_LAYER_H
#define LOCI_LAYERS_LAYER_H

#include "util/arguments.h"
#include "util/overlap.h"
#include <math.h>
#include "loci/layers.h"

enum { PIECE = 256 }; /* channels of a row that are processed at a time */

/* One view of a call.  Its strides are explicit after the check.  An OUTPUT may be an INPUT, in
 * place, but not a KEPT one, which is read again after outputs are written.  A GRADIENT has a
 * buffer of its own, or is NULL. */
struct layer_view {
    const char *name;
    loci_view *view;
    int width;
    enum { LAYER_INPUT, LAYER_SAVED, LAYER_OUTPUT, LAYER_GRADIENT } use;
    int heads; /* 0: those of the layer */
};
/* Arrays in addition to views: numbers in a row.  NULL: not given. */
struct layer_list {
    const char *name;
    const void *data;
    ptrdiff_t count;
    enum use_of use;
    /* Numbers of the layer's dtype; positions or segments; doubles whatever the dtype is. */
    enum { LIST_REAL, LIST_INT64, LIST_DOUBLE } type;
};
/* Copies and checks the caller's struct.  Returns BAD_ARG without an error text if it is NULL. */
loci_status loci_layer_open(loci_layer *, const loci_layer *given);
/* Validates views and lists before any output is written. */
loci_status loci_layer_check(const loci_layer *, const struct layer_view *, int views,
                             const struct layer_list *, int lists);
/* Runs head(arg, h) for each head, on the host's threads if there are any. */
loci_status loci_layer_run(const loci_layer *, void (*head)(void *arg, int h), void *arg);

/* How many channels the piece that starts at channel `from` has. */
static inline int layer_piece(int from, int width)
{
    return width - from < PIECE ? width - from : PIECE;
}
/* Where row t of head h begins. */
static inline ptrdiff_t layer_at(const loci_view *v, ptrdiff_t b, int h, ptrdiff_t t)
{
    return b * v->batch + h * v->head + t * v->row;
}
/* Reads n numbers of the layer's dtype as doubles, starting at number `at`.  layer_write() rounds
 * them once. */
static inline void layer_read(const loci_layer *l, const void *data, ptrdiff_t at, int n,
                              double *restrict x)
{
    if (l->dtype == LOCI_F64) memcpy(x, (const double *)data + at, (size_t)n * sizeof *x);
    else
        for (int i = 0; i < n; i++) x[i] = (double)((const float *)data)[at + i];
}
static inline void layer_write(const loci_layer *l, void *data, ptrdiff_t at, int n,
                               const double *restrict x)
{
    if (l->dtype == LOCI_F64) memcpy((double *)data + at, x, (size_t)n * sizeof *x);
    else
        for (int i = 0; i < n; i++) ((float *)data)[at + i] = (float)x[i];
}

/* Sum of a[i] b[i].  Eight parallel sums vectorise.  Their fixed number and order give the same
 * bits on every machine. */
static inline double layer_dot(const double *a, const double *b, int n)
{
    double lane[8] = { 0 };
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) lane[k] += a[i + k] * b[i + k];
    for (int k = 0; i < n; i++, k++) lane[k] += a[i] * b[i];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6]))
         + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* e^x for x <= 0 by plain operations: x = n ln 2 + r with |r| <= ln 2 / 2, then Taylor's
 * polynomial, within 2 ulp.  It is 0 below -708, where 2^n is no longer a normal double.  ln 2 is
 * subtracted in two parts.  The first has so few bits that n times it is exact. */
static inline double layer_exp(double x)
{
    const double magic = 0x1.8p52; /* adding it rounds to an integer, in the low bits */
    double t = x * 0x1.71547652b82fep0 + magic, n = t - magic,
           r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double y = 1 + r / 13, scale;
    for (int k = 12; k >= 1; k--) y = 1 + y * (r * (1.0 / k));
    uint64_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 1023) << 52;
    memcpy(&scale, &bits, sizeof scale);
    return x >= -708 ? y * scale : x < -708 ? 0 : x; /* NaN stays NaN */
}
/* e^-|x| never overflows, whatever the sign of x is. */
static inline double layer_sigmoid(double x)
{
    const double e = layer_exp(x < 0 ? x : -x);
    return (x < 0 ? e : 1) / (1 + e);
}
/* log sigmoid(x) = min(x, 0) - log(1 + e), e = e^-|x|.  This keeps small results exact where
 * log(sigmoid(x)) would be 0.  log(1 + e) = 2 atanh(s) with s = e / (2 + e), at most 1/3.  The
 * terms after s^37 sum to less than 2^-60. */
static inline double layer_log_sigmoid(double x)
{
    const double e = layer_exp(x < 0 ? x : -x), s = e / (2 + e), g = s * s;
    double sum = 0;
    for (int n = 37; n >= 3; n -= 2) sum = (sum + 1.0 / n) * g;
    return (x < 0 ? x : 0) - 2 * (s + s * sum);
}

#endif
