/* SPDX-License-Identifier: MIT */
/* fox.c -- forgetting attention: gates in [0, 1] decide how much of the past is left.  Lin et al., ICLR 2025.
 *
 *     S_ij = scale q_i.k_j + sum of log_f[b][h][l] over the keys l after j, up to the last key that row i sees
 *
 * log_f = log sigmoid(gate) is made by the layer and comes with each call, [B][H][Lk] by query head.  The gate of the
 * key itself does not count, that of the newest key does.  Keys are counted in index order, so the mask is causal.
 * With a constant gate this is alibi with slope -log f. */
#include "pe.h"

enum { STOP };
static const loci_option opts[] = {
    [STOP] = { "stop", LOCI_NUMBER, 0, 0, 0, 1, NULL, "weight mass that may be dropped per row; 0 is exact" },
    { 0 }
};

static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_tensor(t, c, "log_f", LOCI_INPUT, INIT_ZERO, 0, 0, SHAPE(LOCI_DIM_BATCH, c->heads, LOCI_DIM_KEYS));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_gate, GROUP_ADD);
}

const struct loci_pe loci_pe_fox = {
    .name = "fox", .cite = "Lin et al., ICLR 2025", .brief = "S += sum of log f over the keys after j",
    .example = "fox", .places = LOCI_PLACE_SCORE, .causal_only = true, .tol = 5e-6, .opts = opts,
    .tensors = tensors, .terms = terms,
};
