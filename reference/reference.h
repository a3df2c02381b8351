/* SPDX-License-Identifier: MIT */
/* reference.h -- the definition of every encoding in float64: dense,
 * obvious, one pair at a time.
 *
 * The engine is compared with it, and `--engine reference` runs it.  It shares the parsed plan
 * with the engine and no arithmetic.  Plans are F64 plans, so all data is double; `tensors` are
 * all tensors of the plan, including inputs.  Positions and coordinates must be within 2^40, as
 * in every call.  Angles are wider than double, so they are correct there.  Memory grows with
 * the inputs and a few rows of scores, time with heads * q_len * k_len * dim. */
#ifndef LOCI_REFERENCE_REFERENCE_H
#define LOCI_REFERENCE_REFERENCE_H

#include "loci/loci.h"

/* Outputs of the call that are NULL are not written.  grad NULL: forward only.  Else computes
 * the gradients of sum(dout * o) + sum(dlse * lse) + sum(drem * rem) + sum(dae * ae), and writes
 * those of dq, dk, dv and dtensors that are not NULL. */
loci_status loci_reference(const loci_plan *, const void *const *tensors, const loci_call *,
                           const loci_grad *grad);

/* The rounding that every output may have: the sum of the absolute values that flow into it.  A
 * result computed with unit round-off u should be within C u of it, with a small C.
 * docs/accuracy.md defines it.  Arrays are dense and like those of the call and of its
 * gradients; NULL: not wanted.  It is some hundred times as slow as the definition. */
struct loci_budget {
    /* of the arithmetic: its unit round-off and the smallest number that has all digits */
    double unit, least;
    /* the unit round-off of o as a backward pass reads it; 0: it has all digits */
    double stored;
    double *o, *lse, *rem, *ae, *dq, *dk, *dv;
    double *const *dtensors;
};
loci_status loci_reference_budget(const loci_plan *, const void *const *tensors, const loci_call *,
                                  const loci_grad *grad, const struct loci_budget *);

/* The same for stage LINEAR_ATTENTION, of a call without states. */
loci_status loci_reference_linear(const loci_plan *, const void *const *tensors, const loci_call *,
                                  const loci_grad *grad);

/* y is written if y.data is not NULL; dx and dtensors, unless NULL, if dy.data is not.
 * y may be x, dx may be dy. */
loci_status loci_reference_rotate(const loci_plan *, const void *const *tensors, const loci_call *,
                                  loci_which, loci_view x, loci_view y, loci_view dy, loci_view dx,
                                  void *const *dtensors);
loci_status loci_reference_embed(const loci_plan *, const void *const *tensors, const loci_call *,
                                 loci_view x, loci_view y, loci_view dy, void *const *dtensors);

#endif
