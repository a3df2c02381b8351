/* SPDX-License-Identifier: MIT */
/* loci/layers.h: the parts around attention in layers that belong to an encoding.
 *
 * A layer of FoX (Pro).  Your projections of the hidden states x give q, k~ and v~; per head the
 * logits a_k and a_v of the shifts and f of the forget gates; per channel those of the output gate
 * g.  Then:
 *
 *     loci_shift       k = shift(k~, a_k), v = shift(v~, a_v): mixes in the token before
 *     loci_rmsnorm     q, k, per head, before attention and any rotation
 *     loci_log_gate    log_f, the input of the encoding `fox`
 *     loci_forward     o, with the encoding `fox`
 *     loci_rmsnorm     o, output norm, per head
 *     loci_gate        o * sigmoid(g), output gate
 *
 * Each function has a backward function.  It reads the inputs of the forward function and the
 * gradient of its output.  Gradients are overwritten, not added to; those that are NULL are not
 * computed.  Everything is computed in double and rounded once, so the bits depend on the numbers
 * only.
 *
 * Views are those of loci.h, [batch][heads][rows][width].  Views of logits have width 1: logits
 * [batch][rows][heads], as a projection writes them, are { logits, rows * heads, 1, heads }.  An
 * output may replace its input in place unless the function says otherwise.  Gradients need
 * buffers of their own. */
#ifndef LOCI_LOCI_LAYERS_H
#define LOCI_LOCI_LAYERS_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    /* sizeof(loci_layer) */
    size_t size;
    /* Of all buffers: F32 or F64. */
    loci_dtype dtype;
    ptrdiff_t batch, rows;
    int heads, width;
    /* Its threads share the heads.  NULL = the calling thread. */
    const loci_host *host;
    /* Receives the sentence of a failed call, or NULL. */
    loci_error *error;
} loci_layer;
#define LOCI_LAYER(...) LOCI_SIZED(loci_layer, __VA_ARGS__)

/* y = w x / sqrt(mean(x^2) + eps) over the width of each row.  weight is [heads][width], NULL =
 * ones.  FoX (Pro) has eps 1e-5 for q and k, and 1e-6 for its output. */
LOCI_API loci_status loci_rmsnorm(const loci_layer *, loci_view x, const void *weight, double eps,
                                  loci_view y);
LOCI_API loci_status loci_rmsnorm_backward(const loci_layer *, loci_view x, const void *weight,
                                           double eps, loci_view dy, loci_view dx, void *dweight);

/* y_t = a_t x_(t-1) + (1 - a_t) x_t with a = sigmoid(logits).  y must not be x.
 *
 * `before` [batch][heads][width] is the x before the first row; NULL = 0.  `after` (NULL: not
 * written) receives the last x, not shifted, for the `before` of the next call.  The two may be one
 * buffer.  Gradients are those of a call with before NULL.
 *
 * seg is [rows], with per_batch [batch][rows]; NULL: one sequence.  A sequence starts where it
 * changes.  Rows with a negative seg are padding and get 0. */
LOCI_API loci_status loci_shift(const loci_layer *, loci_view x, loci_view logits,
                                const int64_t *seg, int per_batch, const void *before, void *after,
                                loci_view y);
LOCI_API loci_status loci_shift_backward(const loci_layer *, loci_view x, loci_view logits,
                                         const int64_t *seg, int per_batch, loci_view dy,
                                         loci_view dx, loci_view dlogits);

/* log_f = log sigmoid(logits), both of width 1. */
LOCI_API loci_status loci_log_gate(const loci_layer *, loci_view logits, loci_view log_f);
LOCI_API loci_status loci_log_gate_backward(const loci_layer *, loci_view logits, loci_view dlog_f,
                                            loci_view dlogits);

/* SIGMOID: y = x sigmoid(g).  SILU: y = x g sigmoid(g). */
typedef enum { LOCI_SIGMOID, LOCI_SILU } loci_activation;
LOCI_API loci_status loci_gate(const loci_layer *, loci_activation, loci_view x, loci_view g,
                               loci_view y);
LOCI_API loci_status loci_gate_backward(const loci_layer *, loci_activation, loci_view x,
                                        loci_view g, loci_view dy, loci_view dx, loci_view dg);

/* ---- Temperature ----------------------------------------------------------------------------- */

/* y = x (1 + beta ln(1 + floor((pos + from) / length))) for queries x.  from is 1 in Llama 4 (beta
 * 0.1, length 8192, layers without rotation) and 0 in Ministral 3 and Mistral 4.  pos is that of
 * loci_tape_start(), and not negative.  For the gradient, pass dy as x: y is then dx. */
LOCI_API loci_status loci_temperature(const loci_layer *, double beta, double length, int from,
                                      const int64_t *pos, int per_batch, loci_view x, loci_view y);

/* ---- Running angles -------------------------------------------------------------------------- */

/* y_t = sum of rate[h][c] x_l[c] over rows l <= t, or l < t if exclusive: angles of the encoding
 * `angles`.  y may be x.
 *
 * The sum is a double that each step reduces by multiples of 2 pi.  Angles are within pi of 0, and
 * right to half an ulp of pi at any length.  `before` [batch][heads][width] is the sum so far;
 * NULL = 0.  `after` (NULL: not written) receives the sum over all rows, for the `before` of the
 * next call.  The two may be one buffer.  Rows in one call or in many have the same bits.
 *
 * rate is [heads][width], NULL = ones.  Like the sums it is of doubles for any dtype.  seg is that
 * of loci_shift().  Each sequence starts at 0; rows of padding are 0 and add nothing.  With seg,
 * the sums must be NULL. */
LOCI_API loci_status loci_running_angles(const loci_layer *, loci_view x, const double *rate,
                                         int exclusive, const int64_t *seg, int per_batch,
                                         const double *before, double *after, loci_view y);
/* dafter [batch][heads][width] is the gradient of `after`; NULL = 0.  drate and dbefore are of
 * doubles as well. */
LOCI_API loci_status loci_running_angles_backward(const loci_layer *, loci_view x,
                                                  const double *rate, int exclusive,
                                                  const int64_t *seg, int per_batch, loci_view dy,
                                                  const double *dafter, loci_view dx, double *drate,
                                                  double *dbefore);

/* ---- TaPE ------------------------------------------------------------------------------------ */

/* How the states of tokens, the inputs eq and ek of the encoding `tape`, pass from layer to layer
 * (docs/encodings/tape.md).  States are views of an even width that contain pairs (c, s) in
 * neighbouring channels; so is ae, an output of attention.
 *
 *     loci_tape_start              before the first layer                    e
 *     loci_forward                 with the encoding `tape`                  o, ae
 *     loci_tape_attention_update   e, ae -> e
 *     loci_tape_mlp_update         e, gates = (output of the layer's MLP) Wx -> e
 *
 * The start has no learned tensor.  In attention_update the gradient of e is dy. */

/* e = (cos, sin) of (pos / factor) base^(-2t/width), the same for all heads.  With these states
 * tape equals rope.  base 0 = 10000, factor 0 = 1.  pos is [rows], with per_batch [batch][rows];
 * NULL = 0, 1, 2, ... */
LOCI_API loci_status loci_tape_start(const loci_layer *, double base, double factor,
                                     const int64_t *pos, int per_batch, loci_view e);

/* ROWSUM: y_h = e_h + (sum over g of w[h][g]) ae_h, as the authors' code computes it.
 * FULL: y_h = e_h + sum over g of w[h][g] ae_g, as the shape of w suggests.
 * w [heads][heads] starts at 0.  y may be e, but not ae. */
typedef enum { LOCI_TAPE_ROWSUM, LOCI_TAPE_FULL } loci_tape_mix;
LOCI_API loci_status loci_tape_attention_update(const loci_layer *, loci_tape_mix, loci_view e,
                                                loci_view ae, const void *w, loci_view y);
LOCI_API loci_status loci_tape_attention_update_backward(const loci_layer *, loci_tape_mix,
                                                         loci_view ae, const void *w, loci_view dy,
                                                         loci_view dae, void *dw);

/* y_h = e_h + sum over p of down[h][p] silu(gates_p) sum over g of up[p][g] e_g.  gates have one
 * head and `units` numbers per row, [batch][rows][units].  up [units][heads] starts at 0, down
 * [heads][units] at N(0, 0.02).  y must not be e. */
LOCI_API loci_status loci_tape_mlp_update(const loci_layer *, int units, loci_view e,
                                          loci_view gates, const void *up, const void *down,
                                          loci_view y);
LOCI_API loci_status loci_tape_mlp_update_backward(const loci_layer *, int units, loci_view e,
                                                   loci_view gates, const void *up,
                                                   const void *down, loci_view dy, loci_view de,
                                                   loci_view dgates, void *dup, void *ddown);

#ifdef __cplusplus
}
#endif
#endif
