/* SPDX-License-Identifier: MIT */
/* gemm.c -- the kernels of gemm.h.
 *
 * A block is some rows of C and some vectors of its columns.  Its sums stay in registers over
 * all k.  There are enough of them to hide the latency of a multiply-add, and each number that
 * is loaded is used several times.  A step of k is a load for every vector of columns, a number
 * of A for every row, the multiply-adds, and one or two additions that move pointers.  The 6 x 4
 * vectors of AVX-512 are 35 instructions for 24 multiply-adds.  That is few enough for a
 * processor that issues four per cycle and multiplies in two of them. */
#include "engine/gemm.h"

#include <assert.h>

#if QT > 1

/* The arguments of a product, as kernels use them.  stride: between the rows of
 * A, or between its columns. */
struct gemm_job {
    enum then then;
    int M, K;
    const real *a;
    ptrdiff_t stride;
    const real *b;
    ptrdiff_t bk;
    real *c;
    ptrdiff_t cm;
    const real *factor;
    const struct next *next;
};

enum { TALLEST = 16 }; /* the largest number of rows of a block */
/* Where a block is in A: pointers to its rows 0, 3, 6 and so on, from which the stride leads to
 * the others; or to its first number in a column. */
struct place {
    const real *at[(TALLEST + 2) / 3];
};

INLINE void load_row(const int nb, const real **b, ptrdiff_t bk, vf x[NR])
{
    UNROLL_FOR(int v = 0; v < nb; v++) x[v] = vf_load(*b + v * VL);
    *b += bk;
    HIDE(*b);
}
/* KR steps where A is stored by rows. */
INLINE void rows_steps(const int mb, const int nb, struct place *a, ptrdiff_t stride,
                       const real **b, ptrdiff_t bk, vf (*acc)[NR])
{
    four y[TALLEST];
    vf x[NR];
    UNROLL_FOR(int m = 0; m < mb; m++) y[m] = four_at(a->at[m / 3] + m % 3 * stride);
    UNROLL_FOR(int k = 0; k < KR; k++) {
        load_row(nb, b, bk, x);
        UNROLL_FOR(int m = 0; m < mb; m++)
            UNROLL_FOR(int v = 0; v < nb; v++) acc[m][v] = vf_fma4(y[m], k, x[v], acc[m][v]);
    }
    UNROLL_FOR(int m = 0; m < mb; m += 3) {
        a->at[m / 3] += KR;
        HIDE(a->at[m / 3]);
    }
}
/* The same where A is stored by columns.  The numbers of a single row are not consecutive there. */
INLINE void columns_steps(const int mb, const int nb, struct place *a, ptrdiff_t stride,
                          const real **b, ptrdiff_t bk, vf (*acc)[NR])
{
    UNROLL_FOR(int k = 0; k < KR; k++) {
        four y[TALLEST / 4];
        vf x[NR];
        UNROLL_FOR(int m = 0; m < mb && mb > 1; m += 4) y[m / 4] = four_at(a->at[0] + m);
        load_row(nb, b, bk, x);
        UNROLL_FOR(int m = 0; m < mb; m++)
            UNROLL_FOR(int v = 0; v < nb; v++)
                acc[m][v] = mb > 1 ? vf_fma4(y[m / 4], m % 4, x[v], acc[m][v])
                                   : vf_fma1(*a->at[0], x[v], acc[m][v]);
        a->at[0] += stride;
        HIDE(a->at[0]);
    }
}
/* One of the last steps. */
INLINE void last_step(const int mb, const int nb, const bool by_rows, struct place *a,
                      ptrdiff_t stride, const real **b, ptrdiff_t bk, vf (*acc)[NR])
{
    vf x[NR];
    load_row(nb, b, bk, x);
    UNROLL_FOR(int m = 0; m < mb; m++) {
        const real y = by_rows ? a->at[m / 3][m % 3 * stride] : a->at[0][m];
        UNROLL_FOR(int v = 0; v < nb; v++) acc[m][v] = vf_fma1(y, x[v], acc[m][v]);
    }
    if (by_rows)
        UNROLL_FOR(int m = 0; m < mb; m += 3) a->at[m / 3]++;
    else a->at[0] += stride;
}

enum { SPAN = 16 }; /* steps of k between two calls of fetch() */

/* Prefetches the part of the next A that corresponds to the steps k .. k + n - 1 of a block.
 * Rows are prefetched by their lines.  Down columns each step is a line of its own, which the
 * first block that shares it prefetches. */
INLINE void fetch(const struct next *next, const int mb, int m, int k, int n)
{
    const int line = next->size == sizeof(real) ? 64 / (int)sizeof(real) : 32;
    const char *from = next->first + m * next->row + k * next->step;
    if (next->step == next->size) {
        if (k % line == 0)
            for (int i = 0; i < mb; i++) __builtin_prefetch(from + i * next->row, 0, 2);
    } else if (m % line < mb) {
        for (int i = 0; i < n; i++) __builtin_prefetch(from + i * next->step, 0, 2);
    }
}

/* Prefetches C, to which the sums will be added: gradients of keys are in no near cache. */
INLINE void ask_for(const int mb, const int nb, const real *c, ptrdiff_t cm)
{
    enum { LINE = 64 / sizeof(real) };
    UNROLL_FOR(int m = 0; m < mb; m++) {
        UNROLL_FOR(int v = 0; v < nb * VL; v += LINE) __builtin_prefetch(c + v, 1, 3);
        c += cm;
        HIDE(c);
    }
}

INLINE void store(const int mb, const int nb, const enum then then, vf (*acc)[NR], real *c,
                  ptrdiff_t cm, const real *factor)
{
    UNROLL_FOR(int m = 0; m < mb; m++) {
        UNROLL_FOR(int v = 0; v < nb; v++) {
            vf y = acc[m][v];
            if (then == ADD) y = vf_add(vf_load(c + v * VL), y);
            if (then == FADE) y = vf_fma(vf_load(c + v * VL), vf_load(factor + v * VL), y);
            if (then == BEGIN) y = vf_add(vf_set1(0), y);
            vf_store(c + v * VL, y);
        }
        c += cm;
        HIDE(c);
    }
}

/* The block of mb rows from row m on and nb vectors from number v on. */
INLINE void block(const int mb, const int nb, const bool by_rows, const bool asks,
                  const struct gemm_job *j, int m, int v)
{
    const real *b = j->b + v * VL;
    real *c = j->c + m * j->cm + v * VL;
    struct place a;
    vf acc[TALLEST][NR];
    a.at[0] = j->a + (by_rows ? m * j->stride : m);
    UNROLL_FOR(int i = 3; i < mb; i += 3) a.at[i / 3] = a.at[i / 3 - 1] + 3 * j->stride;
    UNROLL_FOR(int i = 0; i < mb; i++)
        UNROLL_FOR(int n = 0; n < nb; n++) acc[i][n] = vf_set1(0);
    if (j->then == ADD) ask_for(mb, nb, c, j->cm);
    for (int k = 0, end; k < j->K; k = end) {
        end = asks && j->K - k > SPAN ? k + SPAN : j->K;
        if (asks) fetch(j->next, mb, m, k, end - k);
        for (int n = (end - k) / KR; n > 0; n--) {
            if (by_rows) rows_steps(mb, nb, &a, j->stride, &b, j->bk, acc);
            else columns_steps(mb, nb, &a, j->stride, &b, j->bk, acc);
        }
        for (int n = (end - k) % KR; n > 0; n--)
            last_step(mb, nb, by_rows, &a, j->stride, &b, j->bk, acc);
    }
    switch (j->then) {
    case SET:
        store(mb, nb, SET, acc, c, j->cm, NULL);
        break;
    case ADD:
        store(mb, nb, ADD, acc, c, j->cm, NULL);
        break;
    case FADE:
        store(mb, nb, FADE, acc, c, j->cm, j->factor + v * VL);
        break;
    case BEGIN:
        store(mb, nb, BEGIN, acc, c, j->cm, NULL);
        break;
    }
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* Blocks of one shape, of rows m .. end - 1.  Each kernel is a separate function and never
 * inlined: several in one function share registers badly. */
typedef void kernel(const struct gemm_job *, int m, int end, int v);
#define KERNEL(name, mb, nb, by_rows, asks) \
    static __attribute__((noinline)) void name(const struct gemm_job *j, int m, int end, int v) \
    { \
        for (; m < end; m += mb) block(mb, nb, by_rows, asks, j, m, v); \
    }
#define KERNELS(nb, tall) \
    KERNEL(rows_##nb, tall, nb, true, false) \
    KERNEL(rows_##nb##_asks, tall, nb, true, true) \
    KERNEL(rows_##nb##_four, 4, nb, true, false) \
    KERNEL(rows_##nb##_one, 1, nb, true, false) \
    KERNEL(columns_##nb, tall, nb, false, false) \
    KERNEL(columns_##nb##_asks, tall, nb, false, true) \
    KERNEL(columns_##nb##_four, 4, nb, false, false) \
    KERNEL(columns_##nb##_one, 1, nb, false, false)
/* clang-format off */
#define SHAPE(nb, tall)                                                                            \
    { nb, tall, { { columns_##nb, columns_##nb##_asks, columns_##nb##_four, columns_##nb##_one },  \
                  { rows_##nb, rows_##nb##_asks, rows_##nb##_four, rows_##nb##_one } } }
/* clang-format on */

/* Blocks of nb vectors: tall ones, the same with prefetches of the next A, of four rows, of one. */
enum { BLOCK, ASKING, FOUR, ONE };
struct shape {
    int nb, tall;
    kernel *by[2][4];
};

/* With fewer vectors a block has more rows, for the same number of sums. */
#if NR == 4
KERNELS(4, MR)
KERNELS(2, 8)
KERNELS(1, 4 * NR)
static const struct shape shapes[] = { SHAPE(4, MR), SHAPE(2, 8), SHAPE(1, 4 * NR) };
#elif NR == 2
KERNELS(2, MR)
KERNELS(1, 8)
static const struct shape shapes[] = { SHAPE(2, MR), SHAPE(1, 8) };
#else
KERNELS(1, MR)
static const struct shape shapes[] = { SHAPE(1, MR) };
#endif

/* All rows of some vectors of columns.  Rows that remain after the tall blocks go by four, and
 * then one by one.  A single row has too few sums to be fast, so the last tall block of six is
 * dropped where that makes two blocks of four.  The few remaining rows do not prefetch the next
 * A.  Of several columns of blocks only the first does. */
static void column(const struct shape *s, bool rows, const struct gemm_job *j, int v)
{
    kernel *const *by = s->by[rows];
    int tall = j->M / s->tall * s->tall;
    if (s->tall == 6 && tall && j->M - tall >= 2 && j->M - tall < 4) tall -= 6;
    const int fours = tall + (j->M - tall) / 4 * 4;
    by[j->next && v == 0 ? ASKING : BLOCK](j, 0, tall, v);
    by[FOUR](j, tall, fours, v);
    by[ONE](j, fours, j->M, v);
}

void N(product)(enum then then, int M, int n, int K, const real *a, ptrdiff_t am, ptrdiff_t ak,
                const real *b, ptrdiff_t bk, real *c, ptrdiff_t cm, const real *factor,
                const struct next *next)
{
    const bool rows = ak == 1 && am != 1; /* both are 1 if A is one number wide */
    const struct gemm_job j = { then, M, K, a, rows ? am : ak, b, bk, c, cm, factor, next };
    assert(rows || am == 1 || M == 1);
    int v = 0;
    for (const struct shape *s = shapes; v < n / VL; s++)
        for (; n / VL - v >= s->nb; v += s->nb) column(s, rows, &j, v);
}
#endif
