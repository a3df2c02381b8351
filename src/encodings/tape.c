/* SPDX-License-Identifier: MIT */
/* tape.c -- tokens carry a state that rotates them, and attention averages the states too.  Zhu
 * et al., ICML 2025 (arXiv 2501.00712).
 *
 *     q'_i = R(eq_i) q_i,  k'_j = R(ek_j) k_j
 *     R(c, s): (x[t], x[t + D/2]) <- (c x[t] - s x[t + D/2], s x[t] + c x[t + D/2])
 *     S_ij = scale q'_i.k'_j        o_i = sum over j of P_ij v_j
 *     ae_i = sum over j of P_ij ek_j
 *
 * A state is a pair (c, s) per head and pair of channels.  The first layer has (cos, sin) of
 * rope's angles, so there it is rope in half style.  From layer to layer it becomes state + w ae
 * and more, of any length, and R rotates and scales.  The authors store c and s twice, for both
 * halves of the head, and compute o and ae in three passes.  The halves stay equal, and one pass
 * with wider values gives the same.
 *
 * States belong to query heads, so the keys of a group are rotated for each of its heads. */
#include "layout/states.h"

#include "contract/call.h"

static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, c->dim % 2 == 0, LOCI_BAD_ARG,
          "tape: the head's %d channels must be an even number: they are rotated in pairs", c->dim);
    return LOCI_OK;
}
/* States come with each call: for queries and for keys, by query head. */
static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_input(t, c, "eq", LOCI_SOURCE_STATES,
                   SHAPE(LOCI_DIM_BATCH, c->heads, LOCI_DIM_QUERIES, c->dim / 2, 2));
    loci_add_input(t, c, "ek", LOCI_SOURCE_STATES,
                   SHAPE(LOCI_DIM_BATCH, c->heads, LOCI_DIM_KEYS, c->dim / 2, 2));
}
static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_states, GROUP_ROTATE);
}

/* The gradient of a key's state has two parts.  That of the rotation is in dtensor already; the
 * total of the term is P^T dae, from the average. */
static void end_keys(struct call *c, int enc)
{
    const struct loci_plan *p = c->plan;
    const int which = p->first_tensor[enc] + STATES_K;
    const double *total = c->g.total[p->rotate];
    for (ptrdiff_t i = 0; c->g.dtensor[which] && i < c->g.dtensor_count[which]; i++)
        c->g.dtensor[which][i] += total[i];
}

const struct loci_pe loci_pe_tape = {
    .name = "tape",
    .cite = "Zhu et al., ICML 2025",
    .family = FAMILY_CONTENT,
    .brief = "states of the tokens rotate q and k, and are averaged like values",
    .example = "tape",
    .places = LOCI_PLACE_STATE,
    .states = true,
    .tol = 2e-6,
    .check = check,
    .tensors = tensors,
    .terms = terms,
    .end_keys = end_keys,
};
