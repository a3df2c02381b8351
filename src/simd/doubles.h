/* SPDX-License-Identifier: MIT */
/* doubles.h -- vectors of doubles, as wide as those of vec.h, for sums that reals are not precise
 * enough for.  Where reals are floats products are fused, as in vec.h. */
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

/* a x + c */
INLINE vd vd_fma(double a, vd x, vd c)
{
#if VL == 16
    return (vd)_mm512_fmadd_pd(_mm512_set1_pd(a), (__m512d)x, (__m512d)c);
#elif VL == 8
    return (vd)_mm256_fmadd_pd(_mm256_set1_pd(a), (__m256d)x, (__m256d)c);
#elif defined __wasm_simd128__
    return (vd){ __builtin_fma(a, x[0], c[0]), __builtin_fma(a, x[1], c[1]) };
#elif VL == 4
    return (vd)vfmaq_f64((float64x2_t)c, vdupq_n_f64(a), (float64x2_t)x);
#elif LOCI_DOUBLE
    return a * x + c;
#else
    return __builtin_fma(a, x, c);
#endif
}
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
            UNROLL_FOR(int j = 0; j < 2; j++)
                sum[i][j] = vd_fma(a[i * am + k * ak], y[j], sum[i][j]);
    }
    UNROLL_FOR(int i = 0; i < rows; i++)
        UNROLL_FOR(int j = 0; j < 2; j++)
            vd_store(c + i * cm + j * DL, vd_load(c + i * cm + j * DL) + sign * sum[i][j]);
}
/* C[m][n] += sign times the sum over k = 0 .. K - 1 of A(m, k) B[k][n].  Number (m, k) of A is
 * a[m * am + k * ak]; n is a multiple of 16.  Each sum is one chain over k. */
static __attribute__((noinline, unused)) void vd_product(double sign, int M, int n, int K,
                                                         const double *a, ptrdiff_t am,
                                                         ptrdiff_t ak, const double *b,
                                                         ptrdiff_t bk, double *c, ptrdiff_t cm)
{
    enum { PACKED = 192 };
    /* Columns of B in one piece: rows of a power of two would share few lines of a cache. */
    double packed[PACKED * 2 * DL];
    for (int i = 0; i < n; i += 2 * DL) {
        const bool pack = M >= 16 && K <= PACKED;
        const double *from = pack ? packed : b + i;
        const ptrdiff_t stride = pack ? 2 * DL : bk;
        for (int k = 0; k < K && pack; k++) {
            vd_store(packed + k * 2 * DL, vd_load(b + k * bk + i));
            vd_store(packed + k * 2 * DL + DL, vd_load(b + k * bk + i + DL));
        }
        int m = 0;
        for (; m + 4 <= M; m += 4)
            vd_block(4, K, sign, a + m * am, am, ak, from, stride, c + m * cm + i, cm);
        for (; m < M; m++)
            vd_block(1, K, sign, a + m * am, am, ak, from, stride, c + m * cm + i, cm);
    }
}

#endif
