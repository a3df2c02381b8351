/* SPDX-License-Identifier: MIT */
/* product.h -- the one matrix product of loci:  C[m][n] = sum over k of A(m, k) B[k][n].
 *
 * Lanes run over n; every element is one fma chain over k = 0 .. K-1 that starts at 0, so its bits
 * do not depend on vector width or blocking.  A is read one number at a time and broadcast, at a[m
 * * am + k * ak], so the same code is
 *     dot    S^T = K Q^T      rows of K against the transposed queries
 *     mix    O^T += V^T P     columns of V against the weights
 *     outer  dK  += dS Q      rows of dS against the rows of Q
 * and, with a table in the place of K, V or P, everything that positions need of matrix
 * arithmetic. */
#ifndef LOCI_ATTN_PRODUCT_H
#define LOCI_ATTN_PRODUCT_H

#include "isa/num.h"

/* What happens to C: C = sum;  C = C + sum;  C = C * factor[n] + sum. */
enum then { SET, ADD, FADE };

/* What a product asks for as it goes, as the next one reads it: number (m, k) of A as it is stored,
 * at first + m * row + k * step bytes, `size` each.  Without a first: nothing. */
struct next { const char *first; ptrdiff_t row, step; int size; };

/* n counts columns and is a multiple of VL.  A lies in rows (ak 1) or in columns (am 1).  What
 * `next` has is asked for.  The same function for tiles of any width: product.c. */
void WIDE(product)(enum then, int M, int n, int K, const real *a, ptrdiff_t am, ptrdiff_t ak,
                   const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm, const real *factor,
                   const struct next *next);

INLINE void product(const enum then then, int M, int n, int K, const real *a, ptrdiff_t am,
                    ptrdiff_t ak, const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm,
                    const real *factor)
{
    WIDE(product)(then, M, n, K, a, am, ak, b, bk, c, cm, factor, NULL);
}
/* The same, and what the next one reads is asked for. */
INLINE void product_on(const enum then then, int M, int n, int K, const real *a, ptrdiff_t am,
                       ptrdiff_t ak, const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm,
                       const real *factor, const struct next next)
{
    WIDE(product)(then, M, n, K, a, am, ak, b, bk, c, cm, factor, next.first ? &next : NULL);
}

#endif
