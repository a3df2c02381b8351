/* SPDX-License-Identifier: MIT */
/* exponential.h -- exp of skew matrices in double, and its adjoint. */
#ifndef LOCI_MATH_EXPM_H
#define LOCI_MATH_EXPM_H

#include <stddef.h>

/* to [m][n] += x [m][k] y [k][n].  The caller brings the product,
 * so that it is the one of its instruction set. */
typedef void add_product(int m, int k, int n, const double *x, const double *y, double *to);

/* Doubles of scratch that n x n matrices take; the functions below want as many in `room`. */
size_t loci_exponential_work(int n);
/* r = exp(x), x skew. */
void loci_exponential(int n, const double *x, double *r, double *work, add_product *);
/* With dL/dexp(x) = g: the skew gradient d[i][j] = dL/dx[i][j] - dL/dx[j][i]. */
void loci_exponential_adjoint(int n, const double *x, const double *g, double *d, double *work,
                              add_product *);

#endif
