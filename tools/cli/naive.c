/* SPDX-License-Identifier: MIT */
/* naive.c -- see naive.h.  Three-line matrix products whose inner loop runs over neighbours, which
 * compilers vectorise; on x86-64 with glibc they are compiled for AVX2 and AVX-512 as well, so that
 * the race is not decided by compiler flags. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/naive.h"

#if defined __x86_64__ && defined __GLIBC__ && defined __clang__ && __clang_major__ >= 14
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#elif defined __x86_64__ && defined __GLIBC__ && defined __GNUC__ && !defined __clang__
#define WIDE __attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* c[m][n] = a[m][k] b[k][n] */
WIDE static void product(const float *restrict a, const float *restrict b, float *restrict c,
                         ptrdiff_t m, ptrdiff_t k, ptrdiff_t n)
{
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    for (ptrdiff_t i = 0; i < m; i++)
        for (ptrdiff_t x = 0; x < k; x++)
            for (ptrdiff_t j = 0; j < n; j++) c[i * n + j] += a[i * k + x] * b[x * n + j];
}

/* c[m][n] = a[k][m]^T b[k][n] */
WIDE static void product_turned(const float *restrict a, const float *restrict b, float *restrict c,
                                ptrdiff_t m, ptrdiff_t k, ptrdiff_t n)
{
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    for (ptrdiff_t x = 0; x < k; x++)
        for (ptrdiff_t i = 0; i < m; i++)
            for (ptrdiff_t j = 0; j < n; j++) c[i * n + j] += a[x * m + i] * b[x * n + j];
}

/* t = a^T: then both products run along rows. */
static void transpose(const float *a, float *t, ptrdiff_t rows, ptrdiff_t columns)
{
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t j = 0; j < columns; j++) t[j * rows + i] = a[i * columns + j];
}

/* One square of scores for all heads in turn, but all weights: backward reads them again. */
void naive_open(struct naive *n, int heads, ptrdiff_t len, int dim)
{
    size_t square = (size_t)len * (size_t)len, wide = (size_t)len * (size_t)dim;
    *n = (struct naive){ .heads = heads, .len = len, .dim = dim };
    n->bytes = (square * ((size_t)heads + 1) + wide) * sizeof(float);
    n->weights = alloc(square * (size_t)heads, sizeof(float));
    n->scores = alloc(square, sizeof(float));
    n->turned = alloc(wide, sizeof(float));
}

void naive_close(struct naive *n)
{
    free(n->weights);
    free(n->scores);
    free(n->turned);
}

/* As a textbook has it: all scores, the largest of a row, e to the difference, the sum. */
void naive_forward(struct naive *n)
{
    ptrdiff_t L = n->len, D = n->dim;
    float scale = 1 / sqrtf((float)D);
    for (int h = 0; h < n->heads; h++) {
        float *p = n->weights + h * L * L;
        transpose(n->k + h * L * D, n->turned, L, D);
        product(n->q + h * L * D, n->turned, n->scores, L, D, L);
        for (ptrdiff_t i = 0; i < L; i++) {
            const float *s = n->scores + i * L;
            float most = -INFINITY, sum = 0;
            for (ptrdiff_t j = 0; j <= i; j++) most = fmaxf(most, s[j] * scale);
            /* what is masked is 0, and so drops out of all products */
            for (ptrdiff_t j = 0; j < L; j++) p[i * L + j] = j <= i ? expf(s[j] * scale - most) : 0;
            for (ptrdiff_t j = 0; j <= i; j++) sum += p[i * L + j];
            for (ptrdiff_t j = 0; j <= i; j++) p[i * L + j] /= sum;
            n->lse[h * L + i] = most + logf(sum);
        }
        product(p, n->v + h * L * D, n->o + h * L * D, L, L, D);
    }
}

/* dV = P^T dO; dS = P (dO V^T - rowsum(P dO V^T)), scaled; dQ = dS K; dK = dS^T Q. */
void naive_backward(struct naive *n)
{
    ptrdiff_t L = n->len, D = n->dim;
    float scale = 1 / sqrtf((float)D), *ds = n->scores;
    for (int h = 0; h < n->heads; h++) {
        const float *p = n->weights + h * L * L, *dout = n->dout + h * L * D;
        product_turned(p, dout, n->dv + h * L * D, L, L, D);
        transpose(n->v + h * L * D, n->turned, L, D);
        product(dout, n->turned, ds, L, D, L);
        for (ptrdiff_t i = 0; i < L; i++) {
            float delta = 0;
            for (ptrdiff_t j = 0; j < L; j++) delta += p[i * L + j] * ds[i * L + j];
            for (ptrdiff_t j = 0; j < L; j++)
                ds[i * L + j] = scale * p[i * L + j] * (ds[i * L + j] - delta);
        }
        product(ds, n->k + h * L * D, n->dq + h * L * D, L, L, D);
        product_turned(ds, n->q + h * L * D, n->dk + h * L * D, L, L, D);
    }
}
