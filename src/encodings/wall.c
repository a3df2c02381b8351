/* SPDX-License-Identifier: MIT */
/* wall.c -- Wall attention: a forget gate per channel.  Tilde Research, 2026.
 *
 *     S_ij = scale sum over n of q_i[n] k_j[n] exp(sum of log_f[b][h][l][n] over the keys l after
 *            j, up to the last key that row i sees)
 *
 * The layer computes log_f = log sigmoid(gate).  It comes with each call, [B][H][Lk][D] by query
 * head.  As with fox the gate of the key itself does not count, that of the newest key does, and
 * keys are counted in index order, so the mask is causal.  q and k are those after a rotation.
 * What has faded has score 0 and not weight 0, so no key is forgotten altogether.
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

/* With t_ij[n] the summand of a score times its gradient, dlog_f[l] sums t_ij over the pairs with j
 * < l <= last key of i.  By rows t sums to q dq, by keys to k dk.  So dlog_f[l] is the sum of q dq
 * - k dk over the indices from l on, where a row counts at its last key.  No key is before the
 * first of a sequence, so its gradient is an exact 0; so is that of a gate that is shut. */
struct gradient {
    const struct call *c;
    const struct sequence *q;
    const void *log_f;
    const double *total; /* of the sequence's first key */
    double *dlog_f;
    ptrdiff_t at;  /* of the first key in log_f */
    bool segments; /* only keys of this one count */
    int64_t segment;
};
static bool is_of(const struct gradient *g, ptrdiff_t l)
{
    return !g->segments || seg_k(g->c, g->q->b, g->q->k0 + l) == g->segment;
}
static void give(const struct gradient *g, ptrdiff_t l, int n, double sum)
{
    const ptrdiff_t i = l * g->c->plan->dim + n;
    const double gate = load_real(g->log_f, g->c->plan->f64, g->at + i);
    g->dlog_f[i] = gate <= -LEAST_GATE ? 0 : sum;
}
/* The sum over the indices from the first on is 0, so where a newer one is NaN, that before l has
 * the same gradient: no row that is NaN has a key before the oldest NaN. */
static void sum_older(const struct gradient *g, int n)
{
    double sum = 0;
    for (ptrdiff_t l = 0; l < g->q->nk && isfinite(sum); l++) {
        if (!is_of(g, l)) continue;
        give(g, l, n, -sum);
        sum += g->total[(2 * l + 1) * g->c->plan->dim + n];
    }
}
static void sum_gates(const struct gradient *g)
{
    const int D = g->c->plan->dim;
    double sum[MAX_DIM] = { 0 };
    ptrdiff_t oldest = -1;
    for (ptrdiff_t l = g->q->nk - 1; l >= 0; l--) {
        if (!is_of(g, l)) continue;
        oldest = l;
        for (int n = 0; n < D; n++) {
            sum[n] += g->total[(2 * l + 1) * D + n];
            give(g, l, n, sum[n]);
        }
    }
    for (int n = 0; n < D && oldest >= 0; n++) {
        if (!isfinite(sum[n])) sum_older(g, n);
        g->dlog_f[oldest * D + n] = 0;
    }
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
            struct gradient g = { .c = c,
                                  .q = q,
                                  .log_f = c->input[tensor],
                                  .total = total + 2 * at,
                                  .dlog_f = c->g.dtensor[tensor] + at,
                                  .at = at,
                                  .segments = q->segments };
            if (!q->segments) sum_gates(&g);
            for (ptrdiff_t l = 0; l < q->nk && q->segments; l++) {
                g.segment = seg_k(c, q->b, q->k0 + l);
                if (begins(c, q, l)) sum_gates(&g);
            }
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
