/* SPDX-License-Identifier: MIT */
/* gemm_f64.c -- to += x y for matrices in double, as exponentials and projections need them.
 * Each sum runs from 0 over the rows of y in their order, with plain products, so that every
 * instruction set has the same bits. */
#include "engine/workspace.h"

#if QT > 1
#include "simd/doubles.h"

/* to += x y for some rows of x and to, and two vectors of columns.  Their sums are as many as the
 * latency of an addition needs, and few enough for registers. */
INLINE void add_rows(const int rows, int k, int n, const double *x, const double *y, double *to)
{
    vd sum[4][2];
    UNROLL_FOR(int i = 0; i < rows; i++)
        UNROLL_FOR(int j = 0; j < 2; j++) sum[i][j] = (vd){ 0 };
    for (int l = 0; l < k; l++, y += n) {
        const vd at[2] = { vd_load(y), vd_load(y + DL) };
        UNROLL_FOR(int i = 0; i < rows; i++)
            UNROLL_FOR(int j = 0; j < 2; j++) sum[i][j] += x[i * k + l] * at[j];
    }
    UNROLL_FOR(int i = 0; i < rows; i++)
        UNROLL_FOR(int j = 0; j < 2; j++) {
            double *c = to + i * n + j * DL;
            vd_store(c, vd_load(c) + sum[i][j]);
        }
}
/* The columns that are left. */
INLINE void add_columns(const int columns, int m, int k, int n, const double *restrict x,
                        const double *restrict y, double *restrict to)
{
    for (int i = 0; i < m; i++) {
        double sum[2 * DL] = { 0 };
        for (int l = 0; l < k; l++)
            for (int j = 0; j < columns; j++) sum[j] += x[i * k + l] * y[l * n + j];
        for (int j = 0; j < columns; j++) to[i * n + j] += sum[j];
    }
}

void N(add_product)(int m, int k, int n, const double *x, const double *y, double *to)
{
    int j = 0;
    for (; j + 2 * DL <= n; j += 2 * DL) {
        int i = 0;
        for (; i + 4 <= m; i += 4) add_rows(4, k, n, x + i * k, y + j, to + i * n + j);
        for (; i < m; i++) add_rows(1, k, n, x + i * k, y + j, to + i * n + j);
    }
    for (; DL > 4 && j + 8 <= n; j += 8) add_columns(8, m, k, n, x, y + j, to + j);
    for (; DL > 2 && j + 4 <= n; j += 4) add_columns(4, m, k, n, x, y + j, to + j);
    for (; j < n; j++) add_columns(1, m, k, n, x, y + j, to + j);
}
#endif
