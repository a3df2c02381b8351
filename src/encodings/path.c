/* SPDX-License-Identifier: MIT */
/* path.c -- PaTH: between a key and a row every newer key reflects the row.  Yang et al.,
 * NeurIPS 2025.
 *
 *     S_ij = scale k_j . H_(j+1) H_(j+2) .. H_last q_i       H_l = I - beta_l w_l w_l^T
 *
 * `last` is the newest key that row i sees.  w and beta come with each call, by kv head: the layer
 * makes w of length 1 and beta from 0 to 2, so that no H makes a row longer.  Any w and beta are
 * computed as they are.  With beta = 0 this is attention without positions.
 *
 * layout/reflect.h says which forms of the keys the engine makes, and from which of them the
 * gradients of k, w and beta are computed. */
#include "layout/reflect.h"
#include "contract/encoding.h"

static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_input(t, c, "w", LOCI_SOURCE_UNIT,
                   SHAPE(LOCI_DIM_BATCH, c->kv_heads, LOCI_DIM_KEYS, c->dim));
    loci_add_input(t, c, "beta", LOCI_SOURCE_STRENGTH,
                   SHAPE(LOCI_DIM_BATCH, c->kv_heads, LOCI_DIM_KEYS));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_reflect, GROUP_MOVE);
}

const struct loci_pe loci_pe_path = {
    .name = "path",
    .cite = "Yang et al., NeurIPS 2025",
    .family = FAMILY_CONTENT,
    .brief = "keys between a key and a row reflect the row",
    .example = "path",
    .places = LOCI_PLACE_SCORE,
    .causal_only = true,
    .tol = 5e-6,
    .tensors = tensors,
    .terms = terms,
};
