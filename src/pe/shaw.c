/* SPDX-License-Identifier: MIT */
/* shaw.c -- learned vectors per clipped distance, added to keys and values.  Shaw et al., NAACL 2018.
 *
 *     S_ij = scale q_i.(k_j + ak[r])       o_i = sum_j P_ij (v_j + av[r])       r = clip(d, -left, right) + left
 *
 * with d = pos_k - pos_q as in the paper and in the authors' code (sign=ji), or pos_q - pos_k (sign=ij).  ak is
 * [left+right+1][D], av [left+right+1][Dv], shared by the heads; a caller who holds them with H in front has them per
 * query head.  values=0 leaves av out.  The authors leave the start to their framework's default, uniform as below. */
#include "pe.h"

enum { LEFT_SIDE, RIGHT_SIDE, VALUES, SIGN };
static const loci_option opts[] = {
    [LEFT_SIDE]  = { "left", LOCI_WHOLE, 0, 16, 0, 65536, NULL, "smaller d share a vector" },
    [RIGHT_SIDE] = { "right", LOCI_WHOLE, 0, 16, 0, 65536, NULL, "larger d share a vector" },
    [VALUES]     = { "values", LOCI_WORD, 0, 1, 0, 0, "0|1", "1: values have vectors too" },
    [SIGN]       = { "sign", LOCI_WORD, 0, 0, 0, 0, "ji|ij", "d = pos_k - pos_q, or pos_q - pos_k" },
    { 0 }
};

static void add_vectors(struct tensors *t, const struct config *c, const char *name, int width, bool per_head)
{
    ptrdiff_t rows = (ptrdiff_t)(c->opt[LEFT_SIDE] + c->opt[RIGHT_SIDE]) + 1;
    double bound = sqrt(6.0 / (double)(rows + width));     /* Glorot's */
    if (per_head) loci_add_tensor(t, c, name, LOCI_LEARNED, INIT_UNIFORM, bound, 0, SHAPE(c->heads, rows, width));
    else loci_add_tensor(t, c, name, LOCI_LEARNED, INIT_UNIFORM, bound, 0, SHAPE(rows, width));
}

static void tensors(const struct config *c, struct tensors *t)
{
    const loci_tensor *k = loci_have(c, "k");
    bool per_head = k && k->rank == 3;
    add_vectors(t, c, "k", c->dim, per_head);
    if (c->opt[VALUES]) add_vectors(t, c, "v", c->value_dim, per_head);
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_band_q, GROUP_RAW);
}

const struct loci_pe loci_pe_shaw = {
    .name = "shaw", .cite = "Shaw et al., NAACL 2018", .brief = "k += ak[clip(j - i)], v += av[clip(j - i)]",
    .example = "shaw", .places = LOCI_PLACE_SCORE | LOCI_PLACE_VALUE, .tol = 4e-6, .opts = opts,
    .tensors = tensors, .terms = terms,
};
