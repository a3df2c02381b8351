/* SPDX-License-Identifier: MIT */
/* matmul.c -- to += x y for n x n matrices in double, as exponentials need them:
 * sums run over the rows of y in their order, with plain products, so that every instruction
 * set has the same bits. */
#include "attn/thread.h"

#if QT > 1
enum { COLUMNS = 32 };

/* to[i][j] += sum of x[i][m] y[m][j] for some columns j.  Their number is a constant where this
 * is compiled, so that the sums stay in registers. */
INLINE void add_columns(const int columns, int n, const double *restrict x,
                        const double *restrict y, double *restrict to)
{
    for (int i = 0; i < n; i++) {
        double sum[COLUMNS] = { 0 };
        for (int m = 0; m < n; m++) {
            const double a = x[i * n + m];
            for (int j = 0; j < columns; j++) sum[j] += a * y[m * n + j];
        }
        for (int j = 0; j < columns; j++) to[i * n + j] += sum[j];
    }
}

void N(add_square)(int n, const double *x, const double *y, double *to)
{
    int j = 0;
    for (; j + 32 <= n; j += 32) add_columns(32, n, x, y + j, to + j);
    for (; j + 16 <= n; j += 16) add_columns(16, n, x, y + j, to + j);
    for (; j + 8 <= n; j += 8) add_columns(8, n, x, y + j, to + j);
    for (; j + 4 <= n; j += 4) add_columns(4, n, x, y + j, to + j);
    for (; j < n; j++) add_columns(1, n, x, y + j, to + j);
}
#endif
