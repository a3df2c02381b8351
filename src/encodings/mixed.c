/* SPDX-License-Identifier: MIT */
/* mixed.c -- rope in several axes at once, with learned frequencies.  Heo et al.,
 * ECCV 2024 (arXiv 2403.13298).
 *
 *     phi = sum over axes a of coordinate[a] freq[a][h][t]
 *
 * so that a pair can rotate along any direction, where rope2d rotates along x or y.
 * Pairs rotate as in rope.c.  freq has a head axis: that of the kv heads, as a group of
 * query heads shares its keys.
 *
 * It starts as in the paper's code: with base 10, a pair's frequency has length 10^(-4n/D), n
 * = t mod D/4, and each head draws an angle.  The first half of the pairs points along it,
 * the other half at a right angle to it.  The paper has two axes; a third one starts as x
 * does, with a separate angle. */
#include "math/random.h"
#include "layout/pairs.h"

enum { AXES, PAIRING };
enum { INTERLEAVED = 1 };
static const double start_base = 10, pi = 3.14159265358979312;
static const loci_option opts[] = {
    [AXES] = { "axes", LOCI_WHOLE, 0, 2, 1, MAX_AXES, NULL, "coordinates per position" },
    [PAIRING] = { "pairing", LOCI_WORD, 0, INTERLEAVED, 0, 0, "half|interleaved",
                  "which channels form a pair: half t, t + dim/2; interleaved 2t, 2t + 1" },
    { 0 }
};

static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, c->dim % 2 == 0, LOCI_BAD_ARG,
          "mixed: dim %d must be even: channels are rotated in pairs", c->dim);
    return LOCI_OK;
}
static int axes(const struct config *c) { return (int)c->opt[AXES]; }

/* Where the frequency of a pair is in the tensor. */
static ptrdiff_t at(const struct config *c, int axis, int head, int t)
{
    return ((ptrdiff_t)axis * c->kv_heads + head) * (c->dim / 2) + t;
}
/* The initial value of element i: cos of the head's angle for even axes, sin for odd ones, times
 * the length.  One angle per head and per two axes. */
static double start(const struct config *c, uint64_t stream, ptrdiff_t i)
{
    /* Half of the pairs, or with an odd number one more, point along the angle. */
    const int P = c->dim / 2, half = (P + 1) / 2, t = (int)(i % P),
              head = (int)(i / P % c->kv_heads), axis = (int)(i / P / c->kv_heads);
    const double angle = 2 * pi * loci_uniform(stream, (uint64_t)(axis / 2 * c->kv_heads + head))
                       + pi / 2 * (t / half);
    return pow(start_base, -4.0 * (t % half) / c->dim) * (axis % 2 ? sin(angle) : cos(angle));
}
static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_tensor(t, c, "freq", LOCI_LEARNED, INIT_ZERO, 0, 0,
                    SHAPE(axes(c), c->kv_heads, c->dim / 2));
    t->draw[t->n - 1] = start;
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
    return loci_pairs_size(c->dim / 2, axes(c), c->kv_heads);
}
/* Learned frequencies are exact: there is no low part. */
static void frequency(const struct prep *p, int axis, int group, int t, double *hi, double *lo)
{
    *hi = param(p, 0, at(p->cfg, axis, group, t));
    *lo = 0;
}
static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    const struct pairs form = {
        .count = c->dim / 2,
        .interleaved = c->opt[PAIRING] == INTERLEAVED,
        .axes = axes(c),
        .groups = c->kv_heads,
        .factor = 1,
    };
    loci_pairs_prepare(p, form, frequency);
}
/* The term sums by kv head, which is the head axis of freq: each element has one sum. */
static void fold(const struct prep *p)
{
    const struct config *c = p->cfg;
    const int P = c->dim / 2;
    if (!p->dtensor[0]) return;
    for (int h = 0; h < c->kv_heads; h++)
        for (int a = 0; a < axes(c); a++)
            for (int t = 0; t < P; t++)
                p->dtensor[0][at(c, a, h, t)] +=
                    p->dtable[0][h * pairs_part(c->dim, axes(c)) + a * P + t];
}

const struct loci_pe loci_pe_mixed = {
    .name = "mixed",
    .cite = "Heo et al., ECCV 2024",
    .family = FAMILY_ROTATION,
    .brief = "pairs are rotated by a learned sum over axes, per head",
    .example = "mixed",
    .places = LOCI_PLACE_ROTATE,
    .rotates = true,
    .tol = 2e-6,
    .opts = opts,
    .check = check,
    .axes = axes,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
