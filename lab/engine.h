/* SPDX-License-Identifier: MIT */
/* engine.h -- the arithmetic of the lab: what a Transformer computes besides attention.
 *
 * The same sources are compiled for every instruction set, and once more in double, like the engine
 * of the library, whose product does the linear algebra.  In float every build gives the same bits:
 * an element of a product is a chain over k, sums over a row run in PAD lanes, and everything else
 * is elementwise.  So a model trains to the same bits on every machine.
 *
 * Numbers are float, or double in the build "f64".  Rows are contiguous, and a width is a multiple
 * of PAD, unless a function says otherwise. */
#ifndef LOCI_LAB_ENGINE_H
#define LOCI_LAB_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LAB_PAD = 16 };
static inline ptrdiff_t lab_padded(ptrdiff_t n) { return (n + LAB_PAD - 1) / LAB_PAD * LAB_PAD; }

/* The constants of one AdamW step on a tensor: rate is the learning rate, decay that times the
 * weight decay. clip multiplies gradients. fix1 and fix2 are 1 / (1 - beta^step). */
struct lab_adam {
    double rate, decay, clip, beta1, beta2, fix1, fix2, eps;
};

struct lab_engine {
    const char *isa;
    size_t real; /* bytes of a number */

    /* C[m][n] = sum over k of A(m, k) B[k][n], or C += it.  A(m, k) is a[m * am + k * ak], with am
     * or ak 1. n is a multiple of PAD. */
    void (*product)(bool add, ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const void *a, ptrdiff_t am,
                    ptrdiff_t ak, const void *b, ptrdiff_t bk, void *c, ptrdiff_t cm);
    /* to [cols][rows] */
    void (*transpose)(ptrdiff_t rows, ptrdiff_t cols, const void *from, void *to);

    /* y = gain x scale, scale[row] = 1 / sqrt(mean x^2 + 1e-6) */
    void (*norm)(ptrdiff_t rows, ptrdiff_t width, const void *x, const void *gain, void *y,
                 void *scale);
    /* dx += the gradient by x. dgain [width] is set to that of these rows. */
    void (*norm_backward)(ptrdiff_t rows, ptrdiff_t width, const void *x, const void *gain,
                          const void *scale, const void *dy, void *dx, void *dgain);
    /* u = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2; du becomes the gradient by x. */
    void (*gelu)(ptrdiff_t n, const void *x, void *u);
    void (*gelu_backward)(ptrdiff_t n, const void *x, void *du);

    /* The first `width` of each row of `stride` logits are tokens. target[row] is the right one, or
     * -1 for none.  Sets loss[row] = -log softmax, and best[row] to the likeliest token, the first
     * of equals.  Replaces logits by the gradient of the sum of losses times `share`, unless share
     * is 0. */
    void (*cross_entropy)(ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t width, const int32_t *target,
                          double share, void *logits, double *loss, int32_t *best);

    void (*add)(ptrdiff_t n, const void *x, void *to); /* to += x, any n */
    void (*scale_rows)(ptrdiff_t rows, ptrdiff_t width, const double *factor,
                       void *x);                   /* any width */
    double (*squares)(ptrdiff_t n, const void *x); /* sum of x^2, in double; any n */
    /* w -= rate (m / (sqrt(v) + eps) ...) with m and v the running means of g and g^2.  Any n. */
    void (*adam)(ptrdiff_t n, const struct lab_adam *, const void *g, void *m, void *v, void *w);
};

/* Returns the build for an instruction set of loci_isas (NULL: the best), in double if f64.  NULL:
 * there is none. */
const struct lab_engine *lab_engine(const char *isa, bool f64);

#endif
