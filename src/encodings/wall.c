/* SPDX-License-Identifier: MIT */
/* wall.c -- Wall attention: a forget gate per channel.  Tilde Research, 2026.
 *
 *     S_ij = scale sum over n of q_i[n] k_j[n] exp(sum of log_f[b][h][l][n] over the keys l after
 *            j, up to the last key that row i sees)
 *
 * The layer computes log_f = log sigmoid(gate).  It comes with each call, [B][H][Lk][D] by query
 * head.  As with fox the gate of the key itself does not count, that of the newest key does, and
 * keys are counted in index order, so the mask is causal.  q and k are those after a rotation.  What
 * has faded has score 0 and not weight 0, so no key is forgotten altogether.
 *
 * Keys of a group are gated by head, so every query head has keys of its own. */
#include "layout/channel_gates.h"

static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_input(t, c, "log_f", LOCI_SOURCE_OTHER,
                   SHAPE(LOCI_DIM_BATCH, c->heads, LOCI_DIM_KEYS, c->dim));
}
static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_channel_gates, GROUP_MOVE);
}

/* ---- Gradient -------------------------------------------------------------------------------- */

/* With t_ij[n] the summand of a score times its gradient, dlog_f[l] sums t_ij over the pairs with j <
 * l <= last key of i.  By rows t sums to q dq, by keys to k dk.  So dlog_f[l] is the sum of q dq - k
 * dk over the indices from l on, where a row counts at its last key.  No key is before the first of a
 * sequence, so its gradient is an exact 0; so is that of a gate that is shut. */
struct gradient {
    const struct call *c;
    const struct sequence *q;
    const void *log_f;
    const double *total; /* of the sequence's first key */
    double *dlog_f;
    ptrdiff_t at; /* of the first key in log_f */
};
/* The keys of segment number `segment`, or all; returns the oldest of them. */
static ptrdiff_t sum_gates(const struct gradient *g, bool segments, int64_t segment)
{
    const struct call *c = g->c;
    const int D = c->plan->dim;
    double sum[MAX_DIM] = { 0 };
    ptrdiff_t oldest = -1;
    for (ptrdiff_t l = g->q->nk - 1; l >= 0; l--) {
        if (segments && seg_k(c, g->q->b, g->q->k0 + l) != segment) continue;
        oldest = l;
        for (int n = 0; n < D; n++) {
            const double gate = load_real(g->log_f, c->plan->f64, g->at + l * D + n);
            sum[n] += g->total[(2 * l + 1) * D + n];
            g->dlog_f[l * D + n] = gate <= -LEAST_GATE ? 0 : sum[n];
        }
    }
    for (int n = 0; n < D && oldest >= 0; n++) g->dlog_f[oldest * D + n] = 0;
    return oldest;
}
/* Every segment once: at its oldest key. */
static bool begins(const struct call *c, const struct sequence *q, ptrdiff_t l)
{
    for (ptrdiff_t j = 0; j < l; j++)
        if (seg_k(c, q->b, q->k0 + j) == seg_k(c, q->b, q->k0 + l)) return false;
    return true;
}
static void end_keys(struct call *c, int enc)
{
    const struct loci_plan *p = c->plan;
    const int tensor = p->first_tensor[enc] + CHANNEL_GATES_LOG_F, D = p->dim;
    const double *total = c->g.total[p->moves];
    if (!c->g.dtensor[tensor] || !total) return;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        for (int h = 0; h < p->heads && q->nq && q->nk; h++) {
            const ptrdiff_t at = channel_gates_at(c, q->b, h) + q->k0 * D;
            const struct gradient g = {
                c, q, c->input[tensor], total + 2 * at, c->g.dtensor[tensor] + at, at
            };
            if (!q->segments) sum_gates(&g, false, 0);
            for (ptrdiff_t l = 0; l < q->nk && q->segments; l++)
                if (begins(c, q, l)) sum_gates(&g, true, seg_k(c, q->b, q->k0 + l));
        }
    }
}

const struct loci_pe loci_pe_wall = {
    .name = "wall",
    .cite = "Tilde Research, 2026",
    .family = FAMILY_CONTENT,
    .brief = "channels of q.k fade by the sum of log f over the keys after j",
    .example = "wall",
    .places = LOCI_PLACE_SCORE,
    .causal_only = true,
    .tol = 5e-6,
    .tensors = tensors,
    .terms = terms,
    .end_keys = end_keys,
};
