/* SPDX-License-Identifier: MIT */
/* skew_form.h -- the normal form of a skew matrix:
 * in the right basis it turns pairs of channels. */
#ifndef LOCI_MATH_SKEW_FORM_H
#define LOCI_MATH_SKEW_FORM_H

/* S = U N U^T for a skew S [n][n], with U orthogonal and N zero but for N[2k+1][2k] = lambda[k] =
 * -N[2k][2k+1]; with odd n the last column of U stays where it is.  Equal and zero lambdas are no
 * special case; they come in no order and with any sign.  s becomes N, to rounding. */
void loci_skew_form(int n, double *s, double *u, double *lambda);
/* lambda + the result turns pair k to 100 bits: the Rayleigh quotient of its columns, whose error
 * is the square of theirs. */
double loci_skew_rest(int n, const double *s, const double *u, int k, double lambda);

#endif
