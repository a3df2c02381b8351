/* SPDX-License-Identifier: MIT */
/* expm.c -- up to 4 channels in closed form, by quaternions; else a Taylor series and squarings.
 *
 * A skew matrix of four channels is the map of quaternions v -> a v + v b with imaginary a and b.
 * So its exponential is v -> e^a v e^b.  Three channels are i, j, k only, where b = -a.  The
 * adjoint at a gradient G is the skew part of the integral over s in 0 .. 1 of e^(-sX) M e^(sX), M
 * = G exp(X)^T.  Its own a and b rotate about those of X by -2s |a|, and their means are in closed
 * form, too.
 *
 * Otherwise the adjoint is the derivative of exp at -X in the direction G.  Matrices carry it along
 * as dual numbers. */
#include "math/expm.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* ---- Quaternions ----------------------------------------------------------------------------- */

/* sin t / t and (1 - cos t) / t.  The second uses half the angle, because 1 - cos t would lose all
 * its digits for small t. */
static void quotients(double t, double *sinc, double *rest)
{
    const double half = t / 2, s = half == 0 ? 1 : sin(half) / half;
    *sinc = t == 0 ? 1 : sin(t) / t;
    *rest = half * s * s;
}

/* a and b of a skew matrix, and the matrix of a and b.  The first column of the matrix is a + b,
 * its lower right corner a - b.  With n = 3 the former is 0.  The matrix always has four channels
 * 1, i, j, k.  With n = 3 channel 1 is absent, and its row and column are 0. */
static inline void split(int n, const double *x, double *a, double *b)
{
    double m[4][4] = { { 0 } };
    for (int r = 4 - n; r < 4; r++)
        for (int c = 4 - n; c < 4; c++) m[r][c] = x[(r - (4 - n)) * n + c - (4 - n)];
    const double p[3] = { m[1][0], m[2][0], m[3][0] }, q[3] = { m[3][2], -m[3][1], m[2][1] };
    for (int i = 0; i < 3; i++) {
        a[i] = (p[i] + q[i]) / 2;
        b[i] = (p[i] - q[i]) / 2;
    }
}
static inline void join(int n, const double *a, const double *b, double *x)
{
    double m[4][4] = { { 0 } };
    for (int i = 0; i < 3; i++) m[i + 1][0] = a[i] + b[i];
    m[3][2] = a[0] - b[0];
    m[3][1] = b[1] - a[1];
    m[2][1] = a[2] - b[2];
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < r; c++) m[c][r] = -m[r][c];
    for (int r = 4 - n; r < 4; r++)
        for (int c = 4 - n; c < 4; c++) x[(r - (4 - n)) * n + c - (4 - n)] = m[r][c];
}
/* The matrix of v -> q v, or v -> v q. */
static inline void multiply_by(const double *q, bool left, double m[4][4])
{
    const double s = left ? 1 : -1;
    const double rows[4][4] = { { q[0], -q[1], -q[2], -q[3] },
                                { q[1], q[0], -s * q[3], s * q[2] },
                                { q[2], s * q[3], q[0], -s * q[1] },
                                { q[3], -s * q[2], s * q[1], q[0] } };
    memcpy(m, rows, sizeof rows);
}
/* e^a of an imaginary a is cos |a| + a sin |a| / |a|, a quaternion of length 1.  With n = 3 b = -a,
 * and so e^b has the same cos and sin. */
static inline void exp_quaternions(int n, const double *a, const double *b, double *p, double *q)
{
    const double *of[2] = { a, b };
    double *to[2] = { p, q }, sinc = 1;
    for (int k = 0; k < 2; k++) {
        const double *v = of[k];
        if (!k || n == 4) {
            const double t = sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
            sinc = t == 0 ? 1 : sin(t) / t;
            to[k][0] = cos(t);
        } else to[k][0] = p[0];
        for (int i = 0; i < 3; i++) to[k][i + 1] = sinc * v[i];
    }
}
/* r = exp(x) by v -> p v q, p = e^a and q = e^b, as the product of two 4 x 4 matrices that
 * commute. */
static inline void closed_form(int n, const double *x, double *r)
{
    double a[3], b[3], p[4], q[4], left[4][4], right[4][4];
    split(n, x, a, b);
    exp_quaternions(n, a, b, p, q);
    multiply_by(p, true, left);
    multiply_by(q, false, right);
    for (int i = 4 - n; i < 4; i++)
        for (int j = 4 - n; j < 4; j++) {
            double sum = 0;
            for (int m = 0; m < 4; m++) sum += left[i][m] * right[m][j];
            r[(i - (4 - n)) * n + j - (4 - n)] = sum;
        }
}

/* v <- the mean over s in 0 .. 1 of v rotated about `axis` by the angle 2 s |axis|, in the opposite
 * direction if `sign` is -1.  The part of v along the axis does not change.  The part across it is
 * multiplied by the means of cos and sin of the angle. */
static inline void mean_rotation(const double *axis, double sign, double *v)
{
    const double length = sqrt(axis[0] * axis[0] + axis[1] * axis[1] + axis[2] * axis[2]);
    if (length == 0) return;
    const double n[3] = { axis[0] / length, axis[1] / length, axis[2] / length },
                 along = n[0] * v[0] + n[1] * v[1] + n[2] * v[2];
    const double across[3] = { n[1] * v[2] - n[2] * v[1], n[2] * v[0] - n[0] * v[2],
                               n[0] * v[1] - n[1] * v[0] };
    double sinc, rest;
    quotients(2 * length, &sinc, &rest);
    for (int i = 0; i < 3; i++)
        v[i] = sinc * v[i] + (1 - sinc) * along * n[i] + sign * rest * across[i];
}
/* The skew part M - M^T of M = G exp(X)^T is split like X itself.  Then a is rotated by e^(-sa) .
 * e^(sa) and b by e^(sb) . e^(-sb), so each mean is one mean_rotation(). */
static inline void closed_adjoint(int n, const double *x, const double *g, double *d)
{
    double r[16], skew[16], a[3], b[3], da[3], db[3];
    closed_form(n, x, r);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int m = 0; m < n; m++)
                sum += g[i * n + m] * r[j * n + m] - r[i * n + m] * g[j * n + m];
            skew[i * n + j] = sum;
        }
    split(n, x, a, b);
    split(n, skew, da, db);
    mean_rotation(a, -1, da);
    if (n == 4) mean_rotation(b, 1, db);
    else
        for (int i = 0; i < 3; i++) db[i] = -da[i]; /* as b = -a */
    join(n, da, db, d);
}

/* ---- Any size -------------------------------------------------------------------------------- */

/* The series ends at x^16.  With the norm halved to at most 1/2 the rest is below 2^-64.  16 terms
 * in steps of x^4 need 6 products.  One step per term would need 15. */
enum { POWERS = 4, DEGREE = POWERS * POWERS };
size_t loci_exponential_work(int n)
{
    return n <= 4 ? 0 : (size_t)(POWERS + 2) * 2 * (size_t)n * (size_t)n;
}

/* to = x y.  Each is a matrix and, if `dual`, its derivative after it.  The derivative of a product
 * is x dy + dx y. */
static void multiply(int n, bool dual, add_product *add, const double *x, const double *y,
                     double *to)
{
    const ptrdiff_t all = (ptrdiff_t)n * n;
    memset(to, 0, sizeof *to * (size_t)(dual ? 2 * all : all));
    add(n, n, n, x, y, to);
    if (dual) {
        add(n, n, n, x, y + all, to + all);
        add(n, n, n, x + all, y, to + all);
    }
}

/* exp of the first matrix in `work`, which is overwritten, as the sum over k of x^k / k!  in steps
 * of x^4.  `work` has x .. x^4 and two more matrices, y and t, which are swapped after each
 * product.  Returns the one with the result. */
static const double *series(int n, bool dual, add_product *add, double *work)
{
    const ptrdiff_t all = (ptrdiff_t)n * n, size = 2 * all, count = dual ? size : all;
    double norm = 0, coefficient[DEGREE + 1] = { 1 };
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int j = 0; j < n; j++) sum += fabs(work[i * n + j]);
        norm = fmax(norm, sum);
    }
    /* exp(x) = exp(x / 2^n)^(2^n).  A norm that is not finite is not halved, and the result is NaN
     * anyway. */
    const int halvings = isfinite(norm) && norm > 0.5 ? ilogb(norm) + 2 : 0;
    for (ptrdiff_t i = 0; i < count; i++) work[i] = ldexp(work[i], -halvings);
    for (int k = 1; k <= DEGREE; k++) coefficient[k] = coefficient[k - 1] / k;

    double *y = work + POWERS * size, *t = y + size;
    const double *highest = work + (POWERS - 1) * size;
    for (int k = 1; k < POWERS; k++)
        multiply(n, dual, add, work, work + (k - 1) * size, work + k * size);
    for (ptrdiff_t i = 0; i < count; i++) y[i] = coefficient[DEGREE] * highest[i];
    /* Horner in x^4: each step adds the next four terms and multiplies by x^4. */
    for (int k = DEGREE - POWERS; k >= 0; k -= POWERS) {
        for (int m = 1; m < POWERS; m++)
            for (ptrdiff_t i = 0; i < count; i++)
                y[i] += coefficient[k + m] * work[(m - 1) * size + i];
        for (ptrdiff_t i = 0; i < all; i += n + 1) y[i] += coefficient[k];
        if (k == 0) break;
        multiply(n, dual, add, highest, y, t);
        double *swap = y;
        y = t;
        t = swap;
    }
    for (int k = 0; k < halvings; k++) {
        multiply(n, dual, add, y, y, t);
        double *swap = y;
        y = t;
        t = swap;
    }
    return y;
}

void loci_exponential(int n, const double *x, double *r, double *work, add_product *add)
{
    if (n == 3) closed_form(3, x, r);
    if (n == 4) closed_form(4, x, r);
    if (n == 3 || n == 4) return;
    memcpy(work, x, sizeof *x * (size_t)(n * n));
    memcpy(r, series(n, false, add, work), sizeof *r * (size_t)(n * n));
}

void loci_exponential_adjoint(int n, const double *x, const double *g, double *d, double *work,
                              add_product *add)
{
    if (n == 3) closed_adjoint(3, x, g, d);
    if (n == 4) closed_adjoint(4, x, g, d);
    if (n == 3 || n == 4) return;
    /* The adjoint of exp at X is its derivative at X^T, and X^T = -X.  Only the skew part is
     * needed. */
    for (int i = 0; i < n * n; i++) {
        work[i] = -x[i];
        work[n * n + i] = g[i];
    }
    const double *dx = series(n, true, add, work) + n * n;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) d[i * n + j] = dx[i * n + j] - dx[j * n + i];
}
