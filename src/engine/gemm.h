/* SPDX-License-Identifier: MIT */
/* gemm.h -- the one matrix product of loci:  C[m][n] = sum over k of A(m, k) B[k][n].
 *
 * Lanes run over n.  Every element is one fma chain over k = 0 .. K-1 that starts at 0, so its
 * bits do not depend on vector width or blocking.  A is read one number at a time and broadcast.
 * Number (m, k) of it is a[m * am + k * ak], so the same code computes
 *     dot    S^T = K Q^T      rows of K against the transposed queries
 *     mix    O^T += V^T P     columns of V against the weights
 *     outer  dK  += dS Q      rows of dS against the rows of Q
 * and, with a table instead of K, V or P, all matrix arithmetic that positions need. */
#ifndef LOCI_ENGINE_GEMM_H
#define LOCI_ENGINE_GEMM_H

#include "simd/num.h"

/* How the sum is stored: C = sum;  C = C + sum;  C = C * factor[n] + sum;  C = 0 + sum, which is
 * never -0 and so what ADD and FADE make of a C of 0. */
enum then { SET, ADD, FADE, BEGIN };

/* What a product prefetches as it runs: the A of the next product, as it is stored.  Number (m,
 * k) of it is at first + m * row + k * step bytes and has `size` bytes.  first NULL: nothing. */
struct next {
    const char *first;
    ptrdiff_t row, step;
    int size;
};

/* n counts columns and is a multiple of VL.  A is stored by rows (ak 1) or by columns (am 1).
 * The lines of `next` are prefetched unless it is NULL.  Tiles of any width share this function. */
void WIDE(product)(enum then, int M, int n, int K, const real *a, ptrdiff_t am, ptrdiff_t ak,
                   const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm, const real *factor,
                   const struct next *next);

INLINE void product(const enum then then, int M, int n, int K, const real *a, ptrdiff_t am,
                    ptrdiff_t ak, const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm,
                    const real *factor)
{
    WIDE(product)(then, M, n, K, a, am, ak, b, bk, c, cm, factor, NULL);
}
/* The same; `next` may be empty. */
INLINE void product_on(const enum then then, int M, int n, int K, const real *a, ptrdiff_t am,
                       ptrdiff_t ak, const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm,
                       const real *factor, const struct next next)
{
    WIDE(product)(then, M, n, K, a, am, ak, b, bk, c, cm, factor, next.first ? &next : NULL);
}

#endif
