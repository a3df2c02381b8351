/* SPDX-License-Identifier: MIT */
/* skew_form.h -- the normal form of a skew matrix: in the right basis it rotates pairs of
 * channels. */
#ifndef LOCI_MATH_SKEW_FORM_H
#define LOCI_MATH_SKEW_FORM_H

/* S = U N U^T for a skew S [n][n], with U orthogonal and N zero except for N[2k+1][2k] = lambda[k]
 * = -N[2k][2k+1].  If n is odd, the last column of U is fixed.  Equal lambdas and zeros are no
 * special case.  Lambdas have no order and any sign.  s becomes N, up to rounding. */
void loci_skew_form(int n, double *s, double *u, double *lambda);
/* lambda + the result rotates pair k to 100 bits.  It is the Rayleigh quotient of the columns,
 * whose error is the square of theirs. */
double loci_skew_rest(int n, const double *s, const double *u, int k, double lambda);

#endif
