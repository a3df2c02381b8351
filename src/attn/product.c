/* SPDX-License-Identifier: MIT */
/* product.c -- the blocks of product.h, once for each way that A lies, C is made and the next
 * product is asked for: they are functions of their own, so that the passes, which call them in
 * many places, do not hold copies. */
#include "attn/product.h"

#include <assert.h>

#if QT > 1

/* At step k of a block of mb rows of A from row m on: asks for a line of the next A.  Where its
 * rows are contiguous their lines are spread evenly over the steps; down columns each step is a
 * line of its own. */
INLINE void fetch_next(const int mb, const int size, const struct next *next, int m, int k)
{
    const int line = 64 / size;
    const char *from = next->first + m * next->row;
    if (next->step != size) __builtin_prefetch(from + k * next->step, 0, 2);
    else if (k * mb % line < mb)
        __builtin_prefetch(from + k % line * mb / line * next->row + k / line * 64, 0, 2);
}

/* mb rows of C and nb vectors of its columns.  All sums stay in registers over k: mb nb chains,
 * enough to hide the latency of an fma, and each number that is loaded serves several of them. */
INLINE void product_block(const int mb, const int nb, const enum then then, int K, const real *a,
                          ptrdiff_t am, ptrdiff_t ak, const real *b, ptrdiff_t bk, real *c,
                          ptrdiff_t cm, const real *factor, const int fetch,
                          const struct next *next, int first)
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

/* All rows of one column block of nb vectors.  With fewer vectors than NR a block has more rows,
 * so that there are as many chains: an fma waits for the one before it in its chain.
 * The few rows left over do not ask for the next A. */
INLINE void product_column(const int nb, const enum then then, int M, int K, const real *a,
                           ptrdiff_t am, ptrdiff_t ak, const real *b, ptrdiff_t bk, real *c,
                           ptrdiff_t cm, const real *factor, const int fetch,
                           const struct next *next)
{
    const int tall = MR * NR / nb;
    int m = 0;
    for (; m + tall <= M; m += tall)
        product_block(tall, nb, then, K, a + m * am, am, ak, b, bk, c + m * cm, cm, factor, fetch,
                      next, m);
    for (; tall > MR && m + MR <= M; m += MR)
        product_block(MR, nb, then, K, a + m * am, am, ak, b, bk, c + m * cm, cm, factor, 0, NULL,
                      0);
    for (; m < M; m++)
        product_block(1, nb, then, K, a + m * am, am, ak, b, bk, c + m * cm, cm, factor, 0, NULL,
                      0);
}

/* All columns, in the widest blocks that there are.  b and factor move on with
 * the columns, a does not. */
INLINE void product_all(const enum then then, int M, int n, int K, const real *a, ptrdiff_t am,
                        ptrdiff_t ak, const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm,
                        const real *factor, const int fetch, const struct next *next)
{
    const int all = n / VL;
    int v = 0;
    for (; v + NR <= all; v += NR)
        product_column(NR, then, M, K, a, am, ak, b + v * VL, bk, c + v * VL, cm,
                       factor ? factor + v * VL : NULL, fetch, next);
    for (; NR > 2 && v + 2 <= all; v += 2)
        product_column(2, then, M, K, a, am, ak, b + v * VL, bk, c + v * VL, cm,
                       factor ? factor + v * VL : NULL, fetch, next);
    for (; v < all; v++)
        product_column(1, then, M, K, a, am, ak, b + v * VL, bk, c + v * VL, cm,
                       factor ? factor + v * VL : NULL, fetch, next);
}

/* ---- The ways -------------------------------------------------------------------------------- */

/* Constants reach product_all() through functions that are compiled for them, one per way. */
#define WAY(name)                                                                                  \
    void name(int M, int n, int K, const real *a, ptrdiff_t stride, const real *b, ptrdiff_t bk,   \
              real *c, ptrdiff_t cm, const real *factor, const struct next *next)
typedef WAY(way);
#define ROWS_OF_A(name, then, fetch)                                                               \
    static WAY(name)                                                                               \
    {                                                                                              \
        product_all(then, M, n, K, a, stride, 1, b, bk, c, cm, factor, fetch, next);               \
    }
#define COLUMNS_OF_A(name, then, fetch)                                                            \
    static WAY(name)                                                                               \
    {                                                                                              \
        product_all(then, M, n, K, a, 1, stride, b, bk, c, cm, factor, fetch, next);               \
    }

ROWS_OF_A(rows_set, SET, 0)
ROWS_OF_A(rows_set_on, SET, sizeof(real))
ROWS_OF_A(rows_set_on16, SET, sizeof(uint16_t))
ROWS_OF_A(rows_add, ADD, 0)
ROWS_OF_A(rows_add_on, ADD, sizeof(real))
COLUMNS_OF_A(columns_set, SET, 0)
COLUMNS_OF_A(columns_set_on, SET, sizeof(real))
COLUMNS_OF_A(columns_set_on16, SET, sizeof(uint16_t))
COLUMNS_OF_A(columns_add, ADD, 0)
COLUMNS_OF_A(columns_fade, FADE, 0)
COLUMNS_OF_A(columns_fade_on, FADE, sizeof(real))
COLUMNS_OF_A(columns_fade_on16, FADE, sizeof(uint16_t))

/* The ways, by `then` and by what is asked for: nothing, reals, or numbers of 16 bits.
 * Ways that nobody uses are NULL, and then the one that asks for nothing serves. */
static way *const by_rows[][3] = {
    [SET] = { rows_set, rows_set_on, rows_set_on16 },
    [ADD] = { rows_add, rows_add_on, NULL },
    [FADE] = { NULL },
};
static way *const by_columns[][3] = {
    [SET] = { columns_set, columns_set_on, columns_set_on16 },
    [ADD] = { columns_add, NULL, NULL },
    [FADE] = { columns_fade, columns_fade_on, columns_fade_on16 },
};

void N(product)(enum then then, int M, int n, int K, const real *a, ptrdiff_t am, ptrdiff_t ak,
                const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm, const real *factor,
                const struct next *next)
{
    const int asks = !next ? 0 : next->size == sizeof(real) ? 1 : 2;
    const bool rows = ak == 1 && am != 1;            /* both are 1 where A is one number wide */
    way *const *const ways = (rows ? by_rows : by_columns)[then];
    way *const f = ways[asks] ? ways[asks] : ways[0];
    assert(f && (rows || am == 1 || M == 1));
    f(M, n, K, a, rows ? am : ak, b, bk, c, cm, factor, next);
}
#endif
