/* SPDX-License-Identifier: MIT */
/* rope2d.c -- rope for images: half of the pairs rotate by x, half by y.  Heo et al.,
 * ECCV 2024 (arXiv 2403.13298).
 *
 *     phi = x w[n] or y w[n],   w[n] = base^(-4n/D), n = 0 .. D/4 - 1
 *
 * and pairs rotate as in rope.c.  The paper alternates, pair 2n by x and 2n+1 by y.  Its code,
 * which released weights follow, gives the first half of the pairs to x and the rest to y:
 * layout=concat.  Vision towers of the Qwen-VL kind are pairing=half,base=10000 with the row as
 * x.  Coordinates are any numbers, mostly whole: 0-based columns and rows. */
#include "math/trig.h"
#include "layout/pairs.h"

enum { PAIRING, BASE, LAYOUT };
enum { INTERLEAVED = 1, ALTERNATE = 1 };
static const loci_option opts[] = {
    [PAIRING] = { "pairing", LOCI_WORD, 0, INTERLEAVED, 0, 0, "half|interleaved",
                  "half: channels t, t + dim/2; interleaved: 2t, 2t + 1; choose that of the "
                  "weights" },
    [BASE] = { "base", LOCI_NUMBER, 0, 100, 1, 1e18, NULL,
               "frequencies of both axes fall from 1 to about 1/base" },
    [LAYOUT] = { "layout", LOCI_WORD, 0, 0, 0, 0, "concat|alternate",
                 "concat: pairs of x, then pairs of y; alternate: x, y, x, y, ..." },
    { 0 }
};

/* Both axes have the same frequencies, so each needs half of the pairs. */
static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, c->dim % 4 == 0, LOCI_BAD_ARG,
          "rope2d: dim %d must be a multiple of 4: x and y rotate the same number of pairs",
          c->dim);
    return LOCI_OK;
}
static int axes(const struct config *c)
{
    (void)c;
    return 2;
}
static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_pairs, GROUP_ROTATE);
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range;
    (void)real;
    return loci_pairs_size(c->dim / 2, 2, 1);
}
/* On the other axis the pair has frequency 0. */
static void frequency(const struct prep *p, int axis, int group, int t, double *hi, double *lo)
{
    const struct config *c = p->cfg;
    const bool alternate = c->opt[LAYOUT] == ALTERNATE;
    const int quarter = c->dim / 4;
    (void)group;
    if (axis == (alternate ? t % 2 : t / quarter))
        loci_pow_dd(c->opt[BASE], 4.0 * (alternate ? t / 2 : t % quarter), c->dim, hi, lo);
}
static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    const struct pairs form = {
        .count = c->dim / 2,
        .interleaved = c->opt[PAIRING] == INTERLEAVED,
        .axes = 2,
        .groups = 1,
        .factor = 1,
    };
    loci_pairs_prepare(p, form, frequency);
}

const struct loci_pe loci_pe_rope2d = {
    .name = "rope2d",
    .cite = "Heo et al., ECCV 2024",
    .family = FAMILY_ROTATION,
    .brief = "half of the pairs are rotated by x, half by y",
    .example = "rope2d",
    .places = LOCI_PLACE_ROTATE,
    .rotates = true,
    .tol = 2e-6,
    .opts = opts,
    .check = check,
    .axes = axes,
    .terms = terms,
    .size = size,
    .prepare = prepare,
};
