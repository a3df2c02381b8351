/* SPDX-License-Identifier: MIT */
/* gemm_f64.c -- to += x y for matrices in double, as exponentials and projections need them.
 * Each sum runs from 0 over the rows of y in their order, with plain products, so that every
 * instruction set has the same bits. */
#include "engine/workspace.h"

#if QT > 1
enum { COLUMNS = 32 };

/* to[i][j] += sum of x[i][l] y[l][j] for some of the n columns j.  Their number is a constant
 * where this is compiled, so that the sums stay in registers. */
INLINE void add_columns(const int columns, int m, int k, int n, const double *restrict x,
                        const double *restrict y, double *restrict to)
{
    for (int i = 0; i < m; i++) {
        double sum[COLUMNS] = { 0 };
        for (int l = 0; l < k; l++) {
            const double a = x[i * k + l];
            for (int j = 0; j < columns; j++) sum[j] += a * y[l * n + j];
        }
        for (int j = 0; j < columns; j++) to[i * n + j] += sum[j];
    }
}

void N(add_product)(int m, int k, int n, const double *x, const double *y, double *to)
{
    int j = 0;
    for (; j + 32 <= n; j += 32) add_columns(32, m, k, n, x, y + j, to + j);
    for (; j + 16 <= n; j += 16) add_columns(16, m, k, n, x, y + j, to + j);
    for (; j + 8 <= n; j += 8) add_columns(8, m, k, n, x, y + j, to + j);
    for (; j + 4 <= n; j += 4) add_columns(4, m, k, n, x, y + j, to + j);
    for (; j < n; j++) add_columns(1, m, k, n, x, y + j, to + j);
}
#endif
