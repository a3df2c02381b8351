/* SPDX-License-Identifier: MIT */
/* skew.c -- normal forms and exponentials of skew matrices: of all sizes, with equal and zero
 * eigenvalues. */
#include "math/skew_form.h"

#include <math.h>
#include <string.h>

#include "math/expm.h"
#include "harness.h"
#include "walk.h"

enum { MOST = 64 };

static double work[32 * MOST * MOST];

static double apart(int n, const double *a, const double *b)
{
    double most = 0;
    for (int i = 0; i < n * n; i++)
        most = fmax(most, isnan(a[i] - b[i]) ? INFINITY : fabs(a[i] - b[i]));
    return most;
}
static void product(int m, int k, int n, const double *x, const double *y, double *to)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            for (int l = 0; l < k; l++) to[i * n + j] += x[i * k + l] * y[l * n + j];
}
/* c = a b^T. */
static void times_transposed(int n, const double *a, const double *b, double *c)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            c[i * n + j] = 0;
            for (int k = 0; k < n; k++) c[i * n + j] += a[i * n + k] * b[j * n + k];
        }
}

/* Random; all angles equal; of low rank; only the last channel interacts with others; zero. */
enum kind { ANY, EQUAL, LOW_RANK, LAST, ZERO, KINDS };
static void fill(int n, enum kind kind, double size, double *s)
{
    memset(s, 0, sizeof *s * (size_t)(n * n));
    double u[MOST], v[MOST];
    for (int i = 0; i < n; i++) {
        u[i] = walk_uniform();
        v[i] = walk_uniform();
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            double x = kind == ANY      ? walk_uniform()
                     : kind == LOW_RANK ? u[i] * v[j] - v[i] * u[j]
                                        : 0;
            if (kind == LAST && i == n - 1) x = u[j];
            if (kind == EQUAL) x = i == j + n / 2 && n % 2 == 0;
            s[i * n + j] = size * x;
            s[j * n + i] = -size * x;
        }
}

static void form(int n, enum kind kind)
{
    static double s[MOST * MOST], t[MOST * MOST], u[MOST * MOST], a[MOST * MOST], b[MOST * MOST];
    double lambda[MOST / 2 + 1];
    fill(n, kind, 3, s);
    memcpy(t, s, sizeof t);
    loci_skew_form(n, t, u, lambda);
    times_transposed(n, u, u, a);
    for (int i = 0; i < n * n; i++) b[i] = i % (n + 1) == 0;
    CHECK_CLOSE(apart(n, a, b), 0, 1e-13, "the basis is orthogonal, %d channels", n);
    memset(a, 0, sizeof a); /* a = U N, by columns */
    for (int k = 0; k < n / 2; k++)
        for (int i = 0; i < n; i++) {
            a[i * n + 2 * k] = u[i * n + 2 * k + 1] * lambda[k];
            a[i * n + 2 * k + 1] = -u[i * n + 2 * k] * lambda[k];
        }
    times_transposed(n, a, u, b);
    CHECK_CLOSE(apart(n, s, b), 0, 1e-14 * (1 + 3 * n), "S = U N U^T, %d channels", n);
}

static void exponential(int n, enum kind kind, double size)
{
    static double x[MOST * MOST], r[MOST * MOST], a[MOST * MOST], b[MOST * MOST], s[MOST * MOST],
        u[MOST * MOST];
    double lambda[MOST / 2 + 1] = { 0 };
    fill(n, kind, size, x);
    loci_exponential(n, x, r, work, product);
    memcpy(s, x, sizeof s);
    loci_skew_form(n, s, u, lambda);
    for (int i = 0; i < n; i++) { /* a = U exp(N) */
        for (int k = 0; k < n / 2; k++) {
            const double c = cos(lambda[k]), sine = sin(lambda[k]), p = u[i * n + 2 * k],
                         q = u[i * n + 2 * k + 1];
            a[i * n + 2 * k] = p * c + q * sine;
            a[i * n + 2 * k + 1] = q * c - p * sine;
        }
        if (n % 2) a[i * n + n - 1] = u[i * n + n - 1];
    }
    times_transposed(n, a, u, b);
    CHECK_CLOSE(apart(n, r, b), 0, 1e-14 * (1 + size) * (1 + n),
                "the exponential is that of the normal form, %d channels", n);

    /* The gradient of <G, exp(X)> along one entry and its mirror. */
    static double g[MOST * MOST], d[MOST * MOST];
    for (int i = 0; i < n * n; i++) g[i] = walk_uniform();
    loci_exponential_adjoint(n, x, g, d, work, product);
    const int row = n - 1, column = n / 3;
    double slope = 0, most = 0;
    for (int step = -2; step <= 2; step++) {
        const double h = 1e-3 / (1 + size), factor[] = { 1, -8, 0, 8, -1 };
        memcpy(s, x, sizeof s);
        s[row * n + column] += step * h;
        s[column * n + row] -= step * h;
        loci_exponential(n, s, r, work, product);
        for (int i = 0; i < n * n; i++) slope += factor[step + 2] * g[i] * r[i] / (12 * h);
    }
    for (int i = 0; i < n * n; i++) most = fmax(most, fabs(d[i]));
    CHECK_CLOSE(fabs(slope - d[row * n + column]), 0, 1e-8 * (1 + most) * (1 + size),
                "the adjoint is the slope, %d channels", n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) r[i * n + j] = -d[j * n + i];
    CHECK_CLOSE(apart(n, r, d), 0, 1e-12 * (1 + most), "and skew, %d channels", n);
}

int main(void)
{
    const int sizes[] = { 2, 3, 4, 5, 6, 7, 8, 17, 32, MOST };
    walk_restart(9);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (enum kind kind = ANY; kind < KINDS; kind++) {
            form(sizes[i], kind);
            exponential(sizes[i], kind, 0.3);
            if (sizes[i] < 32) exponential(sizes[i], kind, 20);
        }
    return harness_end();
}
