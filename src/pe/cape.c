/* SPDX-License-Identifier: MIT */
/* cape.c -- a small network mixes the scores of all heads with their biases.  Zheng et al. (CAPE,
 * later DAPE), NeurIPS 2024.
 *
 *     S = a + add_bias add + W2 leaky(W1 [a; add] + b1) + b2
 *     a: scaled scores of the H heads, add: the other ADD terms
 *
 * for each pair (i, j); W1 is [hidden][2H], or [hidden][H] where no other
 * encoding adds anything.  The paper's formula has no separate add; all
 * official classes have it, and so have we unless add_bias=0. */
#include "plan/encoding.h"

enum { HIDDEN, ADD_BIAS, LEAK };
static const loci_option opts[] = {
    [HIDDEN]   = { "hidden", LOCI_WHOLE, 0, 32, 1, 4096, NULL, "width of the hidden layer" },
    [ADD_BIAS] = { "add_bias", LOCI_WORD, 0, 1, 0, 0, "0|1",
                   "0: biases enter through the network only" },
    [LEAK]     = { "leak", LOCI_NUMBER, 0, 0.01, -1e6, 1e6, NULL,
                   "slope of the hidden layer below 0" },
    { 0 }
};

/* The start is the usual one of a linear layer, uniform within 1/sqrt of its inputs. */
static void tensors(const struct config *c, struct tensors *t)
{
    ptrdiff_t hidden = (ptrdiff_t)c->opt[HIDDEN], in = c->adds ? 2 * (ptrdiff_t)c->heads : c->heads;
    double first = 1 / sqrt((double)in), second = 1 / sqrt((double)hidden);
    loci_add_tensor(t, c, "w1", LOCI_LEARNED, INIT_UNIFORM, first, 0, SHAPE(hidden, in));
    loci_add_tensor(t, c, "b1", LOCI_LEARNED, INIT_UNIFORM, first, 0, SHAPE(hidden));
    loci_add_tensor(t, c, "w2", LOCI_LEARNED, INIT_UNIFORM, second, 0, SHAPE(c->heads, hidden));
    loci_add_tensor(t, c, "b2", LOCI_LEARNED, INIT_UNIFORM, second, 0, SHAPE(c->heads));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_mix, GROUP_MIX);
}

/* Table: leak, add_bias, padded to 16; b1 [Gp]; b2 [H] padded to 16; W1 [in][Gp],
 * the columns of add before those of a; W2 [H][Gp].  Gp is hidden padded to 16
 * with zeros: units that stay 0, so that the term works on whole vectors. */
enum { W1, B1, W2, B2 };
struct sizes { ptrdiff_t H, in, hidden, Gp; };
static ptrdiff_t padded(ptrdiff_t n) { return (n + 15) / 16 * 16; }
static struct sizes sizes_of(const struct config *c)
{
    const ptrdiff_t hidden = (ptrdiff_t)c->opt[HIDDEN];
    return (struct sizes){ c->heads, c->adds ? 2 * (ptrdiff_t)c->heads : c->heads, hidden,
                           padded(hidden) };
}
/* The column of W1 that row x of the table holds: the tensor has those of a first. */
static ptrdiff_t column(struct sizes n, ptrdiff_t x)
{
    return n.in == n.H ? x : x < n.H ? n.H + x : x - n.H;
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    const struct sizes n = sizes_of(c);
    (void)range;
    return (size_t)(16 + n.Gp + padded(n.H) + (n.in + n.H) * n.Gp) * real;
}

/* Weights transposed, so that the term adds a row of W1 per input, with the units in the lanes. */
static void prepare(const struct prep *p)
{
    const struct sizes n = sizes_of(p->cfg);
    ptrdiff_t at = 0;
    for (; at < 16; at++)
        put(p, at, at == 0 ? p->cfg->opt[LEAK] : at == 1 ? p->cfg->opt[ADD_BIAS] : 0);
    for (ptrdiff_t g = 0; g < n.Gp; g++) put(p, at++, g < n.hidden ? param(p, B1, g) : 0);
    for (ptrdiff_t h = 0; h < padded(n.H); h++) put(p, at++, h < n.H ? param(p, B2, h) : 0);
    for (ptrdiff_t x = 0; x < n.in; x++)
        for (ptrdiff_t g = 0; g < n.Gp; g++)
            put(p, at++, g < n.hidden ? param(p, W1, g * n.in + column(n, x)) : 0);
    for (ptrdiff_t h = 0; h < n.H; h++)
        for (ptrdiff_t g = 0; g < n.Gp; g++)
            put(p, at++, g < n.hidden ? param(p, W2, h * n.hidden + g) : 0);
}

/* The term sums, for each head: its row of W2 [Gp], its columns of W1 for add and for a [Gp],
 * b1 [Gp], b2, padded to 16.  Only b1 is shared by the heads, so only its sums are added up. */
static void fold(const struct prep *p)
{
    const struct sizes n = sizes_of(p->cfg);
    if (!p->dtable[0]) return;
    double *dw1 = p->dtensor[W1], *db1 = p->dtensor[B1], *dw2 = p->dtensor[W2],
           *db2 = p->dtensor[B2];
    for (ptrdiff_t h = 0; h < n.H; h++) {
        const double *d = p->dtable[0] + h * (4 * n.Gp + 16);
        for (ptrdiff_t g = 0; g < n.hidden; g++) {
            /* W2, b2 and the columns of W1 belong to one head each, so their sums are whole. */
            if (dw2) dw2[h * n.hidden + g] = d[g];
            if (dw1) dw1[g * n.in + h] = d[2 * n.Gp + g];
            if (dw1 && n.in > n.H) dw1[g * n.in + n.H + h] = d[n.Gp + g];
            if (db1) db1[g] += d[3 * n.Gp + g];
        }
        if (db2) db2[h] = d[4 * n.Gp];
    }
}

const struct loci_pe loci_pe_cape = {
    .name = "cape", .cite = "Zheng et al., NeurIPS 2024",
    .brief = "S = a + add + MLP([a; add]) over the heads",
    .example = "cape", .places = LOCI_PLACE_MIX, .tol = 5e-6, .opts = opts,
    .tensors = tensors, .terms = terms, .size = size, .prepare = prepare, .fold = fold,
};
