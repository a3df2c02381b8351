/* SPDX-License-Identifier: MIT */
/* skew_form.c -- Jacobi's method on blocks of two pairs (Paardekooper 1971).
 *
 * A skew matrix of four channels, read as a map of quaternions, is x -> a x + x b with imaginary a
 * and b.  It consists of two pairs, (1, i) and (j, k), exactly if a and b lie along i.  For unit
 * quaternions p and q the basis p x q* makes a and b into p* a p and q* b q.  So each is rotated
 * onto i separately, the shorter way.  Repeating this for all pairs of pairs leaves N after a few
 * rounds, as in Jacobi's method for symmetric matrices.  If n is odd, the last channel is the
 * second half of a pair without a first half. */
#include "math/skew_form.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "math/dd.h"

/* Rounds converge quadratically, so a few are enough.  The limit ends loops over NaN or
 * infinities. */
enum { MOST_ROUNDS = 60 };

struct quaternion {
    double at[4];
};

/* The product of quaternions 1, i, j, k. */
static struct quaternion times(struct quaternion x, struct quaternion y)
{
    const double *a = x.at, *b = y.at;
    return (struct quaternion){ { a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
                                  a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
                                  a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
                                  a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0] } };
}

/* A unit w that makes w a w* lie along i: along +i if `ahead`, else along -i.  Callers ask for the
 * side that a is already on, so that w0 is no difference of large numbers. */
static struct quaternion to_first_axis(const double *a, bool ahead)
{
    const double length = sqrt(a[0] * a[0] + a[1] * a[1] + a[2] * a[2]), side = ahead ? 1 : -1;
    if (length == 0) return (struct quaternion){ { 1, 0, 0, 0 } };
    const double w0 = length + fabs(a[0]), w2 = side * a[2], w3 = -side * a[1],
                 norm = sqrt(w0 * w0 + w2 * w2 + w3 * w3);
    return (struct quaternion){ { w0 / norm, 0, w2 / norm, w3 / norm } };
}

/* x [rows][n] <- x Q on the channels at[4].  A negative number stands for an absent channel. */
static void rotate_columns(double *x, int rows, int n, const int *at, double q[4][4])
{
    for (int i = 0; i < rows; i++, x += n) {
        double y[4] = { 0 };
        for (int r = 0; r < 4; r++)
            for (int c = 0; c < 4 && at[r] >= 0; c++) y[c] += x[at[r]] * q[r][c];
        for (int c = 0; c < 4; c++)
            if (at[c] >= 0) x[at[c]] = y[c];
    }
}
/* x <- Q^T x on the same channels.  Both together are the change of basis. */
static void rotate_rows(double *x, int n, const int *at, double q[4][4])
{
    for (int j = 0; j < n; j++) {
        double y[4] = { 0 };
        for (int r = 0; r < 4; r++)
            for (int c = 0; c < 4 && at[r] >= 0; c++) y[c] += x[at[r] * n + j] * q[r][c];
        for (int c = 0; c < 4; c++)
            if (at[c] >= 0) x[at[c] * n + j] = y[c];
    }
}

/* Changes the basis so that the channels at[0], at[1] and at[2], at[3] become two pairs.  Updates s
 * and u.  Returns whether they were two pairs before, up to `small`. */
static bool part_pairs(int n, double *s, double *u, const int *at, double small)
{
    double m[4][4] = { { 0 } };
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++)
            if (at[r] >= 0 && at[c] >= 0) m[r][c] = s[at[r] * n + at[c]];
    if (fabs(m[2][0]) <= small && fabs(m[3][1]) <= small && fabs(m[3][0]) <= small
        && fabs(m[2][1]) <= small)
        return true;
    const double a[3] = { (m[1][0] + m[3][2]) / 2, (m[2][0] - m[3][1]) / 2,
                          (m[3][0] + m[2][1]) / 2 };
    const double b[3] = { (m[1][0] - m[3][2]) / 2, (m[2][0] + m[3][1]) / 2,
                          (m[3][0] - m[2][1]) / 2 };
    /* The sides differ at 0.  So a = -b, a matrix of three channels, gives p = q, and the absent
     * first channel stays separate. */
    struct quaternion p = to_first_axis(a, a[0] >= 0), q = to_first_axis(b, b[0] > 0);
    for (int i = 1; i < 4; i++) p.at[i] = -p.at[i];
    double basis[4][4];
    for (int c = 0; c < 4; c++) {
        struct quaternion x = { { 0 } };
        x.at[c] = 1;
        x = times(times(p, x), q);
        for (int r = 0; r < 4; r++) basis[r][c] = x.at[r];
    }
    rotate_columns(s, n, n, at, basis);
    rotate_rows(s, n, at, basis);
    rotate_columns(u, n, n, at, basis);
    return false;
}

void loci_skew_form(int n, double *s, double *u, double *lambda)
{
    double sum = 0;
    for (int i = 0; i < n * n; i++) {
        sum += s[i] * s[i];
        u[i] = i % (n + 1) == 0;
    }
    /* The tolerance for rounding errors outside the pairs, relative to the norm of the whole. */
    const double small = DBL_EPSILON * sqrt(sum);
    bool done = false;
    for (int round = 0; round < MOST_ROUNDS && !done; round++) {
        done = true;
        for (int i = 0; i + 1 < n; i += 2) {
            for (int j = i + 2; j + 1 < n; j += 2)
                done &= part_pairs(n, s, u, (int[]){ i, i + 1, j, j + 1 }, small);
            if (n % 2) done &= part_pairs(n, s, u, (int[]){ -1, n - 1, i, i + 1 }, small);
        }
    }
    for (int k = 0; k < n / 2; k++) lambda[k] = s[(2 * k + 1) * n + 2 * k];
}

/* The dot product of two columns in 106 bits. */
static struct dd column_product(int n, const double *x, const double *y)
{
    struct dd sum = { 0, 0 };
    for (int r = 0; r < n; r++)
        sum = dd_add(sum, dd_mul((struct dd){ x[r * n], 0 }, (struct dd){ y[r * n], 0 }));
    return sum;
}
double loci_skew_rest(int n, const double *s, const double *u, int k, double lambda)
{
    const double *x = u + 2 * k, *y = x + 1;
    struct dd quotient = { 0, 0 };
    for (int r = 0; r < n; r++) {
        struct dd sum = { 0, 0 };
        for (int c = 0; c < n; c++)
            sum = dd_add(sum, dd_mul((struct dd){ s[r * n + c], 0 }, (struct dd){ x[c * n], 0 }));
        quotient = dd_add(quotient, dd_mul(sum, (struct dd){ y[r * n], 0 }));
    }
    /* The quotient is divided by |x| |y|, which is 1 except for rounding: 1 / sqrt(1 + off) is 1 -
     * off / 2 to 100 bits. */
    const struct dd squares = dd_mul(column_product(n, x, x), column_product(n, y, y)),
                    off = dd_add(squares, (struct dd){ -1, 0 });
    quotient = dd_mul(quotient, dd_norm(1, -off.hi / 2));
    return dd_add(quotient, (struct dd){ -lambda, 0 }).hi;
}
