/* SPDX-License-Identifier: MIT */
/* cape.c -- a small network mixes the scores of all heads with their biases.  Zheng et al.
 * (CAPE, later DAPE), NeurIPS 2024.
 *
 *     S = a + add_bias add + W2 leaky(W1 [a; add] + b1) + b2
 *     a: scaled scores of the H heads, add: the other ADD terms
 *
 * for each pair (i, j).  W1 is [hidden][2H], or [hidden][H] if no other encoding adds
 * anything.  The paper's formula has no separate add.  All official classes have it, and so
 * does loci unless add_bias=0. */
#include "layout/mix.h"

static const loci_option opts[] = {
    [MIX_HIDDEN] = { "hidden", LOCI_WHOLE, 0, 32, 1, 4096, NULL, "width of the hidden layer" },
    [MIX_ADD_BIAS] = { "add_bias", LOCI_WORD, 0, 1, 0, 0, "0|1",
                       "1: the biases are added to the scores; 0: they are inputs of the network "
                       "only" },
    [MIX_LEAK] = { "leak", LOCI_NUMBER, 0, 0.01, -1e6, 1e6, NULL,
                   "slope of the activation below 0" },
    { 0 }
};

/* The initial values are the usual ones of a linear layer, uniform within 1/sqrt of its inputs. */
static void tensors(const struct config *c, struct tensors *t)
{
    const struct mix m = mix_of(c);
    const double first = 1 / sqrt((double)m.in), second = 1 / sqrt((double)m.G);
    loci_add_tensor(t, c, "w1", LOCI_LEARNED, INIT_UNIFORM, first, 0, SHAPE(m.G, m.in));
    loci_add_tensor(t, c, "b1", LOCI_LEARNED, INIT_UNIFORM, first, 0, SHAPE(m.G));
    loci_add_tensor(t, c, "w2", LOCI_LEARNED, INIT_UNIFORM, second, 0, SHAPE(m.H, m.G));
    loci_add_tensor(t, c, "b2", LOCI_LEARNED, INIT_UNIFORM, second, 0, SHAPE(m.H));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_mix, GROUP_MIX);
}

enum { W1, B1, W2, B2 };

/* The column of W1 that row x of the table contains: the tensor has those of the scores first. */
static int column(const struct mix *m, int x)
{
    return m->in == m->H ? x : x < m->H ? m->H + x : x - m->H;
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    const struct mix m = mix_of(c);
    (void)range;
    return (size_t)mix_reals(&m) * real;
}

static void prepare(const struct prep *p)
{
    const struct mix m = mix_of(p->cfg);
    for (ptrdiff_t i = 0; i < mix_reals(&m); i++) put(p, i, 0); /* padding stays 0 */
    for (int h = 0; h < m.H; h++) put(p, mix_b2(&m) + h, param(p, B2, h));
    for (int g = 0; g < m.G; g++) {
        put(p, g, param(p, B1, g));
        for (int x = 0; x < m.in; x++)
            put(p, mix_w1(&m, x) + g, param(p, W1, (ptrdiff_t)g * m.in + column(&m, x)));
        for (int h = 0; h < m.H; h++)
            put(p, mix_w2(&m, h) + g, param(p, W2, (ptrdiff_t)h * m.G + g));
    }
}

/* W2, b2 and the columns of W1 belong to one head each, so their sums
 * are complete; b1 is shared. */
static void fold(const struct prep *p)
{
    const struct mix m = mix_of(p->cfg);
    if (!p->dtable[0]) return;
    double *dw1 = p->dtensor[W1], *db1 = p->dtensor[B1], *dw2 = p->dtensor[W2],
           *db2 = p->dtensor[B2];
    for (int h = 0; h < m.H; h++) {
        const double *d = p->dtable[0] + h * mix_part(&m);
        for (int g = 0; g < m.G; g++) {
            if (dw2) dw2[(ptrdiff_t)h * m.G + g] = d[mix_row(&m, MIX_DW2) + g];
            if (dw1) dw1[(ptrdiff_t)g * m.in + h] = d[mix_row(&m, MIX_DW1) + g];
            if (dw1 && m.in > m.H)
                dw1[(ptrdiff_t)g * m.in + m.H + h] = d[mix_row(&m, MIX_DW1_ADD) + g];
            if (db1) db1[g] += d[mix_row(&m, MIX_DB1) + g];
        }
        if (db2) db2[h] = d[mix_row(&m, MIX_DB2)];
    }
}

const struct loci_pe loci_pe_cape = {
    .name = "cape",
    .cite = "Zheng et al., NeurIPS 2024",
    .family = FAMILY_DISTANCE,
    .brief = "S = a + add + MLP([a; add]) over the heads",
    .example = "cape",
    .places = LOCI_PLACE_MIX,
    .tol = 5e-6,
    .opts = opts,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
