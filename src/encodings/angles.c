/* SPDX-License-Identifier: MIT */
/* angles.c -- queries and keys rotated by angles that come with the call, as a layer computes them
 * from the tokens: Selective RoPE (ICLR 2026), CARoPE, GRAPE-M, the rotation of Mamba-3.
 *
 *     (x[a], x[b]) <- (x[a] cos phi - x[b] sin phi, x[a] sin phi + x[b] cos phi)
 *     phi = phi_q[b][h][i][t] or phi_k[b][kv head][j][t]
 *
 * With phi = pos base^(-2t/dim) this is rope.  Angles may have any size: cos and sin are those of
 * the number as it is.  Layers that sum increments over the tokens use loci_running_angles(), which
 * keeps sums small.  Positions do not enter: masks, windows and biases have theirs as always.  With
 * values=1 values rotate by the angles of their keys, and outputs back by those of their rows. */
#include "layout/given_pairs.h"
#include "contract/encoding.h"

enum { PAIRING, DIM, OFFSET, VALUES };
enum { HALF, INTERLEAVED };
static const loci_option opts[] = {
    [PAIRING] = { "pairing", LOCI_WORD, 1, BY_RULE, 0, 0, "half|interleaved",
                  "half: channels t, t + dim/2; interleaved: 2t, 2t + 1" },
    [DIM] = { "dim", LOCI_WHOLE, 0, BY_RULE, 2, 1024, NULL,
              "channels that are rotated; default the whole head" },
    [OFFSET] = { "offset", LOCI_WHOLE, 0, 0, 0, 1022, NULL, "first channel that is rotated" },
    [VALUES] = { "values", LOCI_WORD, 0, 0, 0, 0, "0|1",
                 "1: values rotate with the keys, and outputs back with the rows" },
    { 0 }
};

static loci_status check(struct config *c, loci_error *e)
{
    double *o = c->opt;
    if (!c->given[DIM]) o[DIM] = c->dim;
    CHECK(e, fmod(o[DIM], 2) == 0, LOCI_BAD_ARG,
          "angles: dim %g must be even: channels are rotated in pairs%s", o[DIM],
          c->given[DIM] ? "" : "; it is the head's, and dim= can rotate fewer");
    CHECK(e, o[OFFSET] + o[DIM] <= c->dim, LOCI_BAD_ARG,
          "angles: offset %g + dim %g must not exceed the head's %d channels%s", o[OFFSET], o[DIM],
          c->dim, c->given[DIM] ? "" : "; give dim=");
    CHECK(e, o[VALUES] != 1 || c->stage != LOCI_ATTENTION || o[OFFSET] + o[DIM] <= c->value_dim,
          LOCI_BAD_ARG,
          "angles: values=1 rotates channels up to offset %g + dim %g, but values have %d channels",
          o[OFFSET], o[DIM], c->value_dim);
    /* An option without effect is omitted from the plan's text. */
    if (o[VALUES] != 1) o[VALUES] = BY_RULE;
    return LOCI_OK;
}
static int first_rotated(const struct config *c) { return (int)c->opt[OFFSET]; }
static bool turns_values(const struct config *c) { return c->opt[VALUES] == 1; }

static void tensors(const struct config *c, struct tensors *t)
{
    const ptrdiff_t pairs = (ptrdiff_t)c->opt[DIM] / 2;
    loci_add_input(t, c, "phi_q", LOCI_SOURCE_OTHER,
                   SHAPE(LOCI_DIM_BATCH, c->heads, LOCI_DIM_QUERIES, pairs));
    loci_add_input(t, c, "phi_k", LOCI_SOURCE_OTHER,
                   SHAPE(LOCI_DIM_BATCH, c->kv_heads, LOCI_DIM_KEYS, pairs));
}
static void terms(const struct config *c, struct termlist *t)
{
    const struct given_pairs p = { (int)c->opt[DIM] / 2, (int)c->opt[OFFSET],
                                   c->opt[PAIRING] == INTERLEAVED };
    loci_add_term_layout(t, TERM_given_pairs, GROUP_ROTATE, &p, sizeof p);
}

const struct loci_pe loci_pe_angles = {
    .name = "angles",
    .cite = "Selective RoPE, ICLR 2026",
    .family = FAMILY_ROTATION,
    .brief = "pairs of channels of q and k are rotated by angles of the call",
    .example = "angles:pairing=half",
    .places = LOCI_PLACE_ROTATE,
    .rotates = true,
    .tol = 2e-6,
    .opts = opts,
    .check = check,
    .first_rotated = first_rotated,
    .turns_values = turns_values,
    .tensors = tensors,
    .terms = terms,
};
