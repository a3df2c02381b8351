/* SPDX-License-Identifier: MIT */
/* product.h -- the one matrix product of loci:  C[m][n] = sum over k of A(m, k) B[k][n].
 *
 * Lanes run over n; every element is one fma chain over k = 0 .. K-1 that starts at 0, so its bits do not depend on
 * vector width or blocking.  A is read one number at a time and broadcast, at a[m * am + k * ak], so the same code is
 *     dot    S^T = K Q^T      rows of K against the transposed queries
 *     mix    O^T += V^T P     columns of V against the weights
 *     outer  dK  += dS Q      rows of dS against the rows of Q
 * and, with a table in the place of K, V or P, everything that positions need of matrix arithmetic. */
#ifndef LOCI_ATTN_PRODUCT_H
#define LOCI_ATTN_PRODUCT_H

#include "num.h"

/* What happens to C: C = sum;  C = C + sum;  C = C * factor[n] + sum. */
enum then { SET, ADD, FADE };

/* What a product asks for as it goes, as the next one reads it: number (m, k) of A as it is stored, at first + m * row + k * step
 * bytes, `size` each.  Without a first: nothing. */
struct next { const char *first; ptrdiff_t row, step; int size; };

/* At step k of a block of mb rows of A from row m on: a line of it. */
INLINE void fetch_next(const int mb, const int size, const struct next *next, int m, int k)
{
    const int line = 64 / size;
    const char *from = next->first + m * next->row;
    if (next->step != size) __builtin_prefetch(from + k * next->step, 0, 2);
    else if (k * mb % line < mb) __builtin_prefetch(from + k % line * mb / line * next->row + k / line * 64, 0, 2);
}

INLINE void product_block(const int mb, const int nb, const enum then then, int K, const real *a, ptrdiff_t am, ptrdiff_t ak,
                          const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm, const real *factor, const int fetch, const struct next *next, int first)
{
    vf acc[MR * NR][NR];
    UNROLL for (int m = 0; m < mb; m++)
        UNROLL for (int n = 0; n < nb; n++) acc[m][n] = vf_set1(0);
    for (int k = 0; k < K; k++) {
        vf x[NR];
        if (fetch) fetch_next(mb, fetch, next, first, k);
        UNROLL for (int n = 0; n < nb; n++) x[n] = vf_load(b + k * bk + n * VL);
        UNROLL for (int m = 0; m < mb; m++) {
            vf y = vf_set1(a[m * am + k * ak]);
            UNROLL for (int n = 0; n < nb; n++) acc[m][n] = vf_fma(y, x[n], acc[m][n]);
        }
    }
    UNROLL for (int m = 0; m < mb; m++)
        UNROLL for (int n = 0; n < nb; n++) {
            real *p = c + m * cm + n * VL;
            vf y = acc[m][n];
            if (then == ADD) y = vf_add(vf_load(p), y);
            if (then == FADE) y = vf_fma(vf_load(p), vf_load(factor + n * VL), y);
            vf_store(p, y);
        }
}

/* All rows of one column block of nb vectors.  Fewer vectors than NR go with more rows, as an fma waits for the one before
 * it in its chain. */
INLINE void product_column(const int nb, const enum then then, int M, int K, const real *a, ptrdiff_t am, ptrdiff_t ak,
                           const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm, const real *factor, const int fetch, const struct next *next)
{
    const int tall = MR * NR / nb;
    int m = 0;
    for (; m + tall <= M; m += tall)
        product_block(tall, nb, then, K, a + m * am, am, ak, b, bk, c + m * cm, cm, factor, fetch, next, m);
    for (; tall > MR && m + MR <= M; m += MR)
        product_block(MR, nb, then, K, a + m * am, am, ak, b, bk, c + m * cm, cm, factor, 0, NULL, 0);
    for (; m < M; m++)
        product_block(1, nb, then, K, a + m * am, am, ak, b, bk, c + m * cm, cm, factor, 0, NULL, 0);
}

/* n counts columns and is a multiple of VL. */
INLINE void product_all(const enum then then, int M, int n, int K, const real *a, ptrdiff_t am, ptrdiff_t ak,
                        const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm, const real *factor, const int fetch, const struct next *next)
{
    const int all = n / VL;
    int v = 0;
    for (; v + NR <= all; v += NR)
        product_column(NR, then, M, K, a, am, ak, b + v * VL, bk, c + v * VL, cm, factor ? factor + v * VL : NULL, fetch, next);
    for (; NR > 2 && v + 2 <= all; v += 2)
        product_column(2, then, M, K, a, am, ak, b + v * VL, bk, c + v * VL, cm, factor ? factor + v * VL : NULL, fetch, next);
    for (; v < all; v++)
        product_column(1, then, M, K, a, am, ak, b + v * VL, bk, c + v * VL, cm, factor ? factor + v * VL : NULL, fetch, next);
}
INLINE void product(const enum then then, int M, int n, int K, const real *a, ptrdiff_t am, ptrdiff_t ak,
                    const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm, const real *factor)
{
    product_all(then, M, n, K, a, am, ak, b, bk, c, cm, factor, 0, NULL);
}
/* The same, and what the next one reads is asked for. */
INLINE void product_on(const enum then then, int M, int n, int K, const real *a, ptrdiff_t am, ptrdiff_t ak,
                       const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm, const real *factor, const struct next next)
{
    if (!next.first) product_all(then, M, n, K, a, am, ak, b, bk, c, cm, factor, 0, NULL);
    else if (next.size == sizeof(real)) product_all(then, M, n, K, a, am, ak, b, bk, c, cm, factor, sizeof(real), &next);
    else product_all(then, M, n, K, a, am, ak, b, bk, c, cm, factor, sizeof(uint16_t), &next);
}

#endif
