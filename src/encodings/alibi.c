/* SPDX-License-Identifier: MIT */
/* alibi.c -- a penalty linear in the distance, with a slope per head.  Press et al., ICLR 2022.
 *
 *     S_ij = scale q_i.k_j - m[h] |i - j|
 *
 * For H a power of two m[h] = 2^(-8h/H), h = 1 .. H.  For other H, `official` follows the
 * authors' code: the slopes of the power of two below, then every other slope of twice that
 * many heads.  `geometric` uses the formula for any H.  The code adds +m j instead, which a
 * causal softmax cannot tell apart, but float32 can.  `given` slopes are learned.  The
 * paper has no keys ahead of the query; they use slopes_right if the caller has that
 * tensor, else the same slopes. */
#include "math/trig.h"
#include "contract/encoding.h"
#include "layout/affine.h"

enum { SLOPES };
enum { OFFICIAL, GEOMETRIC, GIVEN };
static const loci_option opts[] = {
    [SLOPES] = { "slopes", LOCI_WORD, 0, OFFICIAL, 0, 0, "official|geometric|given",
                 "official: the authors' rule for any H; geometric: 2^(-8h/H); given: a learned "
                 "tensor" },
    { 0 }
};

/* The slope of head h = 0 .. H-1 by rule; p is the power of two that `official` starts from. */
static double slope(const struct config *c, ptrdiff_t h)
{
    double m, rest;
    int p = 1;
    while (2 * p <= c->heads) p *= 2;
    if (c->opt[SLOPES] == GEOMETRIC) loci_pow_dd(2, 8.0 * (double)(h + 1), c->heads, &m, &rest);
    else if (h < p) loci_pow_dd(2, 8.0 * (double)(h + 1), p, &m, &rest);
    else loci_pow_dd(2, 8.0 * (double)(2 * (h - p) + 1), 2 * p, &m, &rest);
    return m;
}

enum { LEFT, RIGHT };
/* Learned slopes start from the rule.  The second tensor is added only
 * if the caller declares it. */
static void tensors(const struct config *c, struct tensors *t)
{
    if (c->opt[SLOPES] != GIVEN) return;
    loci_add_tensor(t, c, "slopes", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(c->heads));
    t->fill[t->n - 1] = slope;
    if (!loci_have(c, "slopes_right")) return;
    loci_add_tensor(t, c, "slopes_right", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(c->heads));
    t->fill[t->n - 1] = slope;
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_affine, GROUP_ADD);
}

/* Keys ahead without separate slopes have those of keys behind. */
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range;
    return AFFINE_COUNT * (size_t)c->heads * real;
}

static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    bool given = c->opt[SLOPES] == GIVEN, two_sides = given && loci_have(c, "slopes_right");
    for (int h = 0; h < c->heads; h++) {
        const double left = given ? param(p, LEFT, h) : slope(c, h);
        put(p, affine_at(h, AFFINE_BEHIND), left);
        put(p, affine_at(h, AFFINE_AHEAD), two_sides ? param(p, RIGHT, h) : left);
    }
}

/* The term has the gradient of each side; with one tensor both sides add to it. */
static void fold(const struct prep *p)
{
    const double *sum = p->dtable[0];
    double *left = p->dtensor[LEFT],
           *right = loci_have(p->cfg, "slopes_right") ? p->dtensor[RIGHT] : left;
    for (int h = 0; h < p->cfg->heads && sum && p->cfg->opt[SLOPES] == GIVEN; h++) {
        if (left) left[h] += sum[affine_at(h, AFFINE_BEHIND)];
        if (right) right[h] += sum[affine_at(h, AFFINE_AHEAD)];
    }
}

const struct loci_pe loci_pe_alibi = {
    .name = "alibi",
    .cite = "Press et al., ICLR 2022",
    .brief = "S += -m[h] |i - j|",
    .family = FAMILY_DISTANCE,
    .example = "alibi",
    .places = LOCI_PLACE_SCORE,
    .tol = 2e-6,
    .opts = opts,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
