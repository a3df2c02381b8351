/* SPDX-License-Identifier: MIT */
/* sinusoidal.c -- sines and cosines of the position, added to the embedding.  Vaswani et al., NeurIPS 2017.
 *
 *     x[pos][2t] += sin(pos w[t])      x[pos][2t+1] += cos(pos w[t])      w[t] = base^(-2t/Dm), t = 0 .. ceil(Dm/2) - 1
 *
 * The paper's formula and the authors' code (tensor2tensor) differ.  Ours is the paper's; `layout=halves` puts all sines
 * before all cosines, and `freq=t2t` is w[t] = base^(-t/(n-1)) with n = floor(Dm/2), whose last one is 1/base exactly.
 * An odd width ends with a lone sine (paper) or a column of zeros (t2t).  Nothing is learned, so dx is dy. */
#include "pe.h"
#include "trig.h"

enum { BASE, LAYOUT, FREQ };
enum { INTERLEAVED, HALVES };
enum { PAPER, T2T };
static const loci_option opts[] = {
    [BASE]   = { "base", LOCI_NUMBER, 0, 10000, 1, 1e18, NULL, "the slowest wave is about 2 pi base positions long" },
    [LAYOUT] = { "layout", LOCI_WORD, 0, INTERLEAVED, 0, 0, "interleaved|halves", "sines and cosines in turn, or all sines first" },
    [FREQ]   = { "freq", LOCI_WORD, 0, PAPER, 0, 0, "paper|t2t", "base^(-2t/Dm), or as the authors' code has it" },
    { 0 }
};

static int waves(const struct config *c) { return c->opt[FREQ] == T2T ? c->model_dim / 2 : (c->model_dim + 1) / 2; }

/* Table: the frequencies, each the sum of two doubles, so that angles are right at any position. */
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range, (void)real;
    return (size_t)waves(c) * 2 * sizeof(double);
}

static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    double *w = p->table;
    int n = waves(c);
    for (int t = 0; t < n; t++) {
        if (c->opt[FREQ] == T2T) loci_pow_dd(c->opt[BASE], t, n > 1 ? n - 1 : 1, &w[2 * t], &w[2 * t + 1]);
        else loci_pow_dd(c->opt[BASE], 2.0 * t, c->model_dim, &w[2 * t], &w[2 * t + 1]);
    }
}

static void embed(const struct config *c, const void *table, bool f64, int64_t pos, int from, int n, double *row)
{
    (void)f64;
    const double *w = table;
    int all = waves(c);
    for (int i = 0; i < n; i++) {
        int column = from + i;
        bool halves = c->opt[LAYOUT] == HALVES, cosine = halves ? column >= all : column % 2 == 1;
        int t = halves ? column - (cosine ? all : 0) : column / 2;
        double cos_x = 0, sin_x = 0;     /* t = all: the column of zeros */
        if (t < all) loci_sincos((double)pos, w[2 * t], w[2 * t + 1], &cos_x, &sin_x);
        row[i] = cosine ? cos_x : sin_x;
    }
}

const struct loci_pe loci_pe_sinusoidal = {
    .name = "sinusoidal", .cite = "Vaswani et al., NeurIPS 2017", .brief = "x += sin, cos of pos base^(-2t/Dm)",
    .example = "sinusoidal", .places = LOCI_PLACE_EMBED, .tol = 2e-7, .opts = opts,
    .size = size, .prepare = prepare, .embed = embed,
};
