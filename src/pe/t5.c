/* SPDX-License-Identifier: MIT */
/* t5.c -- one learned bias per bucket of distance.  Raffel et al., JMLR 2020, section 2.1.
 *
 *     S_ij = scale q_i.k_j + bias_scale table[bucket(i - j)][h]          table is [N][H]; scale is 1 when t5 is alone
 *
 * The first buckets hold one distance each, the rest widen logarithmically up to max_distance, and everything beyond
 * shares the last.  (A description in circulation numbers that last bucket N, one past the table; the official code
 * clamps to N-1, and so do we.)  Keys ahead of the query fall into bucket 0, or with bidirectional=1 into the upper half
 * of the table.  Ports that divide the scores by sqrt(D) have bias_scale = sqrt(D). */
#include "pe.h"

enum { BUCKETS, MAX_DISTANCE, BIDIRECTIONAL, BIAS_SCALE };
static const loci_option opts[] = {
    [BUCKETS]       = { "buckets", LOCI_WHOLE, 0, 32, 2, 65536, NULL, "learned biases per head" },
    [MAX_DISTANCE]  = { "max_distance", LOCI_WHOLE, 0, 128, 2, 1e9, NULL, "distances from here on share a bias" },
    [BIDIRECTIONAL] = { "bidirectional", LOCI_WORD, 0, 0, 0, 0, "0|1", "1: half of the buckets are for keys ahead" },
    [BIAS_SCALE]    = { "bias_scale", LOCI_NUMBER, 0, 1, -1e6, 1e6, NULL, "multiplies the biases" },
    { 0 }
};

static int side(const double *opt) { return (int)opt[BUCKETS] / (opt[BIDIRECTIONAL] ? 2 : 1); }   /* buckets of one direction */

static loci_status check(struct config *c, loci_error *e)
{
    const double *o = c->opt;
    int exact = side(o) / 2;
    CHECK(e, exact >= 1, LOCI_BAD_ARG, "t5: buckets %g must be at least 4 with bidirectional=1", o[BUCKETS]);
    CHECK(e, o[MAX_DISTANCE] > exact, LOCI_BAD_ARG, "t5: max_distance %g must exceed %d, the distances with a bucket of their own",
          o[MAX_DISTANCE], exact);
    return LOCI_OK;
}

static double scale(const struct config *c)
{
    (void)c;
    return 1;
}

enum { TABLE };
static void tensors(const struct config *c, struct tensors *t)
{
    double width = c->model_dim ? c->model_dim : (double)c->heads * c->dim;
    loci_add_tensor(t, c, "table", LOCI_LEARNED, INIT_NORMAL, 1 / sqrt(width), 0, SHAPE((ptrdiff_t)c->opt[BUCKETS], c->heads));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_distance, GROUP_ADD);
}

const struct loci_pe loci_pe_t5 = {
    .name = "t5", .cite = "Raffel et al., JMLR 2020", .brief = "S += table[bucket(i - j)][h], buckets widen with the distance",
    .example = "t5", .places = LOCI_PLACE_SCORE, .tol = 2e-6, .opts = opts,
    .check = check, .scale = scale, .tensors = tensors, .terms = terms,
};
