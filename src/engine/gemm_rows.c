/* SPDX-License-Identifier: MIT */
/* gemm_rows.c -- to += x y^T, products of rows with rows, as projections need them.  Pieces of both
 * are copied, as rows of a power of two would share few lines of a cache. */
#include "engine/workspace.h"
#include "contract/engine.h"

#if QT > 1
enum { PIECE = 32, AT_ONCE = 144 / (int)sizeof(real) };

/* Asks for the next piece of some rows. */
static void ask_for(const real *x, ptrdiff_t stride, int rows)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PIECE; i += 64 / (int)sizeof(real))
            __builtin_prefetch(x + r * stride + PIECE + i, 0, 2);
}

void N(add_projected)(int m, int k, int n, const void *x, ptrdiff_t xs, const void *y, ptrdiff_t ys,
                      void *to)
{
    real columns[PIECE * PROJECTED] = { 0 }, rows[AT_ONCE * PIECE];
    for (int l = 0; l < k; l += PIECE) {
        const int most = k - l < PIECE ? k - l : PIECE;
        ask_for((const real *)y + l, ys, n);
        transpose((const real *)y + l, ys, n, most, columns, PROJECTED);
        for (int i = 0; i < m; i += AT_ONCE) {
            const int count = m - i < AT_ONCE ? m - i : AT_ONCE;
            const real *from = (const real *)x + i * xs + l;
            ask_for(from, xs, count);
            for (int r = 0; r < count; r++)
                memcpy(rows + r * PIECE, from + r * xs, sizeof(real) * (size_t)most);
            product(ADD, count, padded(n), most, rows, PIECE, 1, columns, PROJECTED,
                    (real *)to + i * PROJECTED, PROJECTED, NULL);
        }
    }
}
#endif
