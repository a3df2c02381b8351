/* SPDX-License-Identifier: MIT */
/* loci/layers.h: what stands around attention in the layers that some encodings come with.
 *
 * A layer of FoX (Pro) is, from hidden states x and after the projections that are the host's (q,
 * k~, v~ and, per head, the logits a_k, a_v of the shifts and f of the forget gates; per channel,
 * those of the output gate g):
 *
 *     loci_shift    k = shift(k~, a_k), v = shift(v~, a_v): the token before lends a part of its
 *                   key and value
 *     loci_rmsnorm  q, k, per head, before attention and any rotation
 *     loci_log_gate log_f, the input of the encoding `fox`
 *     loci_forward  o, with the encoding `fox`
 *     loci_rmsnorm  o, output norm, per head
 *     loci_gate     o * sigmoid(g), output gate
 *
 * Each function has its backward, which takes the inputs of the forward one and the gradient of its
 * output.  Gradients are written, never added to; those that are NULL are not wanted.  All is
 * computed in double and rounded once, so the bits depend on nothing but the numbers.  Views are as
 * in loci.h, [batch][heads][rows][width]; views of logits have width 1, so [batch][rows][heads], as
 * a projection leaves them, is { logits, rows * heads, 1, heads }.  An output may be its input in
 * place, unless it says otherwise; gradients have buffers of their own. */
#ifndef LOCI_LOCI_LAYERS_H
#define LOCI_LOCI_LAYERS_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    size_t size;                         /* sizeof(loci_layer) */
    loci_dtype dtype;                    /* of all buffers: F32 or F64 */
    ptrdiff_t batch, rows;
    int heads, width;
    const loci_host *host;               /* shares heads among its threads; NULL = the calling
                                            thread */
    loci_error *error;                   /* where a failing call puts its sentence; NULL =
                                            nowhere */
} loci_layer;
#define LOCI_LAYER(...) { .size = sizeof(loci_layer), __VA_ARGS__ }

/* y = w x / sqrt(mean(x^2) + eps) over the width of each row; weight [heads][width], NULL = ones.
 * FoX (Pro) has eps 1e-5 for q and k, and 1e-6 for its output. */
LOCI_API loci_status loci_rmsnorm(const loci_layer *, loci_view x, const void *weight, double eps,
                                  loci_view y);
LOCI_API loci_status loci_rmsnorm_backward(const loci_layer *, loci_view x, const void *weight,
                                           double eps, loci_view dy, loci_view dx, void *dweight);

/* y_t = a_t x_(t-1) + (1 - a_t) x_t, a = sigmoid(logits); y must not be x.  Before the first row
 * there is 0, or `before` [batch][heads][width] (NULL: 0), which is what an earlier call left in
 * `after` (NULL: not wanted): its last x, not shifted.  The two may be one buffer; gradients are
 * those of a call with before NULL.  seg (NULL: one sequence) is [rows], or with per_batch
 * [batch][rows]: where it changes a sequence begins, and rows where it is negative are padding and
 * get 0. */
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

/* y = x sigmoid(g), or with SILU x g sigmoid(g). */
typedef enum { LOCI_SIGMOID, LOCI_SILU } loci_activation;
LOCI_API loci_status loci_gate(const loci_layer *, loci_activation, loci_view x, loci_view g,
                               loci_view y);
LOCI_API loci_status loci_gate_backward(const loci_layer *, loci_activation, loci_view x,
                                        loci_view g, loci_view dy, loci_view dx, loci_view dg);

/* ---- Temperature --------------------------------------------------------------------------------
 *
 * y = x (1 + beta ln(1 + floor((pos + from) / length))) for queries x; from is 1 in Llama 4 (beta
 * 0.1, length 8192; its layers without rotation), 0 in Ministral 3 and Mistral 4.  pos is as in
 * loci_tape_start(), and not negative.  dx is the same function of dy. */
LOCI_API loci_status loci_temperature(const loci_layer *, double beta, double length, int from,
                                      const int64_t *pos, int per_batch, loci_view x, loci_view y);

/* ---- TaPE ---------------------------------------------------------------------------------------
 *
 * How the states of tokens, the inputs eq and ek of the encoding `tape`, go from layer to layer
 * (docs/encodings/tape.md).  States are views of an even width, with the pairs (c, s) side by side,
 * and so is ae, which attention gave:
 *
 *     loci_tape_start              before the first layer                 e
 *     loci_forward                 with the encoding `tape`               o, ae
 *     loci_tape_attention_update   e, ae -> e
 *     loci_tape_mlp_update         e, gates = (output of the layer's MLP) Wx -> e
 *
 * The start has nothing to learn, and the gradient of e in attention_update is that of its output,
 * dy. */

/* e = (cos, sin) of pos / factor base^(-2t/width), the same for all heads: with these, tape is
 * rope.  base 0 = 10000, factor 0 = 1; pos is [rows], or with per_batch [batch][rows]; NULL: 0, 1,
 * 2, ... */
LOCI_API loci_status loci_tape_start(const loci_layer *, double base, double factor,
                                     const int64_t *pos, int per_batch, loci_view e);

/* y_h = e_h + (sum over g of w[h][g]) ae_h, as the authors' code computes it; or y_h = e_h + sum
 * over g of w[h][g] ae_g, as the shape of w suggests.  w [heads][heads] starts at 0.  y may be e,
 * and must not be ae. */
typedef enum { LOCI_TAPE_ROWSUM, LOCI_TAPE_FULL } loci_tape_mix;
LOCI_API loci_status loci_tape_attention_update(const loci_layer *, loci_tape_mix, loci_view e,
                                                loci_view ae, const void *w, loci_view y);
LOCI_API loci_status loci_tape_attention_update_backward(const loci_layer *, loci_tape_mix,
                                                         loci_view ae, const void *w, loci_view dy,
                                                         loci_view dae, void *dw);

/* y_h = e_h + sum over p of down[h][p] silu(gates_p) sum over g of up[p][g] e_g.  gates have one
 * head and `units` numbers per row, [batch][rows][units]; up [units][heads] starts at 0, down
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
