/* SPDX-License-Identifier: MIT */
/* budget.h -- declarations shared by the files of the budget, and an encoding's own rounding.
 *
 * Every number of the computation has a size: its change, to the first order, if all its
 * inputs changed by their own sizes, each in its own direction.  So a size is a sum of
 * |derivative| times size, plus the number itself, which is rounded when it is stored.
 * Derivatives are those of the definitions, computed one at a time, so that an encoding has a
 * budget without a line here.
 *
 *     rotated row    the sum of |x| over channels that rotate together, times their scale
 *     score          sum |q k|, |term| and |d term / d x| |x| for all x it reads; through factors,
 *                    cap and mix by their derivatives
 *     weight         w (1 + size of s + |s - lse| + size of lse)
 *     o              |o| + sum |do/ds| (size of s + 1 + |s - m|) + sum w |v|
 *     ds             w (|dw - D| (as a weight) + sum |dout v| + size of D),    D = sum dout o
 *     gradients      sum over the pairs of (size of ds) |d s / d x|, rotated back as rows are */
#ifndef LOCI_REFERENCE_BUDGET_H
#define LOCI_REFERENCE_BUDGET_H

#include "reference/problem.h"

enum kind { RAW, ADD, LOG, KINDS };

struct sizes {
    const struct loci_budget *to;
    double *memory;
    double lost; /* weights below this times the unit may be 0 */
    /* Rotated rows; their errors, 0 if rows are not rotated; their gradients. */
    double *q, *k, *eq, *ek, *dq, *dk, *dv;
    /* [Hkv][Lk][Dv] and [H][Dv]: values and cotangents of outputs; where they turn, sums over
     * the pair */
    double *v, *dout;
    double *jq, *jk, *jv; /* derivatives of one number at a time */
    double *dtensor[MAX_TENSORS], *jt[MAX_TENSORS];
    ptrdiff_t elements[MAX_TENSORS];
    int *group;                           /* of channels that rotate together */
    bool *alone;                          /* [Lk], a key that is shown alone */
    double *cope;                         /* [3][Lk] */
    double *ones, *column, *sum, *widest; /* [D], the last [2][H] */
    /* Sizes of the row, [H][Lk]. */
    double *product, *raw, *logs, *before[MAX_ENCODINGS], *add, *flat, *a, *s, *dw, *ds, *da, *dadd;
    double *term[KINDS], *hot, *none, *j[3];   /* terms alone, a single 1, zeros, derivatives */
    double *o, *ae, *lse, *rem, *delta, *drem; /* [H][Dv], [H][D], [H] */
    double *cot, *cotae, *cotrow[2];           /* single cotangents */
    double *turned[2];                         /* [Dv] */
};

static inline void zero(double *x, ptrdiff_t n) { memset(x, 0, (size_t)n * sizeof *x); }
/* True unless the key has weight 0 because its score is -inf. */
static inline bool counts(const struct problem *p, int h, ptrdiff_t j)
{
    return p->sees[h * p->Lk + j] && isfinite(p->s[h * p->Lk + j]);
}

/* Where definitions add gradients; while derivatives are computed, the j... arrays instead. */
struct places {
    double *dq, *dk, *dv, *dtensor[MAX_TENSORS], *dadd, *draw, *dlog_mul, *da, *ds, *dw;
    double *dout, *dae, *dlse, *drem, *rem, *w;
};

/* y = |x| of values or outputs, or sums over the pairs that turn together. */
void loci_spread_pairs(const struct problem *, const double *x, double *y);

/* Reads derivatives and clears them: returns the sum of |derivative| size, and adds `by` times
 * |derivative| to the sizes of gradients. */
double loci_harvest(double *j, ptrdiff_t n, const double *size, double by, double least,
                    double *to);
double loci_harvest_tensors(const struct problem *, int e, double by);

/* budget_scores.c: sizes of the scores of a head, from the numbers that encodings
 * add; sizes after a mix, or of ds with `back`; and sizes of ds through the score to
 * rows and learned numbers. */
void loci_score_sizes(struct problem *, int h);
void loci_mix_sizes(struct problem *, int e, bool back);
void loci_score_back_sizes(struct problem *, int h);

/* budget_weights.c: sizes of the outputs of a head; of ds, and of gradients of values. */
void loci_output_sizes(struct problem *, int h, const struct places *real);
void loci_weight_sizes(struct problem *, int h, const struct places *real);

#endif
