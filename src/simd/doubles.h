/* SPDX-License-Identifier: MIT */
/* doubles.h -- vectors of doubles, as wide as those of vec.h, for sums that reals are not precise
 * enough for.  Products are plain, not fused, so that every instruction set has the same bits. */
#ifndef LOCI_SIMD_DOUBLES_H
#define LOCI_SIMD_DOUBLES_H

#include "simd/num.h"

#if VL > 1
enum { DL = VL / 2 };
typedef double vd __attribute__((vector_size(DL * sizeof(double))));
#else
enum { DL = 1 };
typedef double vd;
#endif

INLINE vd vd_load(const double *p)
{
    vd x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE void vd_store(double *p, vd x) { memcpy(p, &x, sizeof x); }

/* rows x 2 vectors of C += sign A B. */
INLINE void vd_block(const int rows, int K, double sign, const double *restrict a, ptrdiff_t am,
                     ptrdiff_t ak, const double *restrict b, ptrdiff_t bk, double *restrict c,
                     ptrdiff_t cm)
{
    vd sum[4][2];
    UNROLL_FOR(int i = 0; i < rows; i++)
        UNROLL_FOR(int j = 0; j < 2; j++) sum[i][j] = (vd){ 0 };
    for (int k = 0; k < K; k++) {
        const vd y[2] = { vd_load(b + k * bk), vd_load(b + k * bk + DL) };
        UNROLL_FOR(int i = 0; i < rows; i++)
            UNROLL_FOR(int j = 0; j < 2; j++) sum[i][j] += a[i * am + k * ak] * y[j];
    }
    UNROLL_FOR(int i = 0; i < rows; i++)
        UNROLL_FOR(int j = 0; j < 2; j++)
            vd_store(c + i * cm + j * DL, vd_load(c + i * cm + j * DL) + sign * sum[i][j]);
}
/* C[m][n] += sign times the sum over k = 0 .. K - 1 of A(m, k) B[k][n].  Number (m, k) of A is
 * a[m * am + k * ak]; n is a multiple of 16.  Each sum is one chain over k. */
static inline void vd_product(double sign, int M, int n, int K, const double *a, ptrdiff_t am,
                              ptrdiff_t ak, const double *b, ptrdiff_t bk, double *c, ptrdiff_t cm)
{
    int m = 0;
    for (; m + 4 <= M; m += 4)
        for (int i = 0; i < n; i += 2 * DL)
            vd_block(4, K, sign, a + m * am, am, ak, b + i, bk, c + m * cm + i, cm);
    for (; m < M; m++)
        for (int i = 0; i < n; i += 2 * DL)
            vd_block(1, K, sign, a + m * am, am, ak, b + i, bk, c + m * cm + i, cm);
}

#endif
