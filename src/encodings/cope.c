/* SPDX-License-Identifier: MIT */
/* cope.c -- contextual positions: a row counts the keys for which its gates open.  Golovneva
 * et al., arXiv 2405.18719.
 *
 *     g_ij = sigmoid(gate_scale q_i.gk_j)
 *     p_ij = min(sum of g_ik over visible k >= j, npos - 1)
 *     S_ij = scale q_i.k_j + pos_scale z_i(p_ij)       z_i(p) = q_i.e[p], linear between whole p
 *
 * gk is k, v, or a tensor of the call (gates=given, [B][Hkv][Lk][D]).  e is [npos][D], shared by
 * the heads, or [H][npos][D], and starts at 0.  gate_scale and pos_scale differ between the
 * paper's text (1, 1), its listing (1/sqrt D, 1) and the authors' repository (1/sqrt D, 1/sqrt
 * D).  The defaults are those of the listing. */
#include "layout/scan.h"

static const loci_option opts[] = {
    [SCAN_NPOS] = { "npos", LOCI_WHOLE, 0, 64, 1, 65536, NULL,
                    "number of learned positions; larger counts become the last one" },
    [SCAN_GATE_SCALE] = { "gate_scale", LOCI_NUMBER, 0, BY_RULE, -1e6, 1e6, NULL,
                          "factor of q.k in the gates; default 1/sqrt(dim)" },
    [SCAN_POS_SCALE] = { "pos_scale", LOCI_NUMBER, 0, 1, -1e6, 1e6, NULL, "factor of the bias" },
    [SCAN_GATES] = { "gates", LOCI_WORD, 0, GATES_K, 0, 0, "k|v|given",
                     "the tensor whose product with q gives the gates: k, v, or an input" },
    { 0 }
};

/* Values open gates by a product with q, so they must have its width. */
static loci_status check(struct config *c, loci_error *e)
{
    if (!c->given[SCAN_GATE_SCALE]) c->opt[SCAN_GATE_SCALE] = 1 / sqrt(c->dim);
    CHECK(e, c->opt[SCAN_GATES] != GATES_V || c->value_dim == c->dim, LOCI_BAD_ARG,
          "cope: gates=v needs value_dim %d to be dim %d", c->value_dim, c->dim);
    return LOCI_OK;
}

/* e has a head axis if the caller's tensor has one.  gate_k comes with each call. */
static void tensors(const struct config *c, struct tensors *t)
{
    const loci_tensor *e = loci_have(c, "e");
    ptrdiff_t npos = (ptrdiff_t)c->opt[SCAN_NPOS];
    if (e && e->rank == 3)
        loci_add_tensor(t, c, "e", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(c->heads, npos, c->dim));
    else loci_add_tensor(t, c, "e", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(npos, c->dim));
    if (c->opt[SCAN_GATES] == GATES_GIVEN)
        loci_add_input(t, c, "gate_k", LOCI_SOURCE_KEYS,
                       SHAPE(LOCI_DIM_BATCH, c->kv_heads, LOCI_DIM_KEYS, c->dim));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_scan, GROUP_ADD);
}

/* The table is a copy of e, one or one per head. */
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    const loci_tensor *e = loci_have(c, "e");
    (void)range;
    return (e && e->rank == 3 ? (size_t)c->heads : 1) * (size_t)c->opt[SCAN_NPOS] * (size_t)c->dim
         * real;
}
static void prepare(const struct prep *p)
{
    for (ptrdiff_t i = 0; i < tensor_count(&p->tensor[SCAN_E]); i++) put(p, i, param(p, SCAN_E, i));
}

static const double *total_of(const struct call *c, int enc)
{
    const double *total = NULL;
    for (int x = 0; x < c->plan->uses; x++)
        if (c->plan->use[x].enc == enc) total = c->g.total[x];
    return total;
}
/* Adds the gradients by key in the total to those of the keys of given gates. */
static void end_keys(struct call *c, int enc)
{
    const struct loci_plan *p = c->plan;
    const struct scan a = scan_of(c, enc);
    const double *total = total_of(c, enc);
    double *dgate = c->g.dtensor[p->first_tensor[enc] + SCAN_GATE_K];
    if (!total || a.gates != GATES_GIVEN || !dgate) return;
    total += scan_keys(c, &a, 0, 0);
    const ptrdiff_t count = c->B * p->kv_heads * c->Lk * p->dim;
    for (ptrdiff_t i = 0; i < count; i++) dgate[i] += total[i];
}
/* Adds the parts of the total to e: batch entries, and heads that share it. */
static void end(struct call *c, int enc)
{
    const struct loci_plan *p = c->plan;
    const struct scan a = scan_of(c, enc);
    const double *total = total_of(c, enc);
    double *de = c->g.dtensor[p->first_tensor[enc] + SCAN_E];
    for (ptrdiff_t n = 0; total && de && n < scan_places(c, &a); n++) {
        const double *from = total + n * a.part;
        double *to = de + (a.per_head ? n % p->heads * a.npos * p->dim : 0);
        for (int i = 0; i < a.npos; i++)
            for (int d = 0; d < p->dim; d++) to[i * p->dim + d] += from[i * a.width + d];
    }
}

const struct loci_pe loci_pe_cope = {
    .name = "cope",
    .cite = "Golovneva et al., 2024",
    .family = FAMILY_CONTENT,
    .brief = "S += q_i.e[sum of sigmoid(q_i.k) over the keys from j on]",
    .example = "cope",
    .places = LOCI_PLACE_SCORE,
    .tol = 1e-5,
    .opts = opts,
    .check = check,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .end_keys = end_keys,
    .end = end,
};
