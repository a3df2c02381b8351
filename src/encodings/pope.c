/* SPDX-License-Identifier: MIT */
/* pope.c -- polar coordinate position embedding, "Decoupling the 'what' and 'where' with polar
 * coordinate positional embeddings" (PoPE, arXiv 2509.10534).  A channel is a magnitude, which
 * says what, and the position is its angle, which says where:
 *
 *     s_ij = scale sum over t of softplus(q[t]) softplus(k[t]) cos((i - j) w[t] - phase[t])
 *     w[t] = base^(-t/D), phase = delta of the kv head, cut to [-2 pi, 0]
 *
 * Each of the D channels has a frequency of its own, where rope has one per two channels, and its
 * sign cannot shift the angle.  delta is learned; a key's phase says which distance its channel
 * looks for.  Rows of scores have 2D channels, the cosines first.  The scale stays 1/sqrt(D).
 *
 * x-transformers has delta by query head.  Here it belongs to kv heads, as keys do. */
#include "math/trig.h"
#include "layout/polar.h"

enum { BASE };
static const loci_option opts[] = {
    [BASE] = { "base", LOCI_NUMBER, 0, 10000, 1, 1e18, NULL, "w[t] = base^(-t/dim)" }, { 0 }
};
static const double full_circle = 6.28318530717958648;

static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, 2 * c->dim <= MAX_DIM, LOCI_BAD_ARG,
          "pope: dim %d must be at most %d: scores read rows of 2 dim channels", c->dim,
          MAX_DIM / 2);
    return LOCI_OK;
}

static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_tensor(t, c, "delta", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(c->kv_heads, c->dim));
}
static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_polar, GROUP_ROTATE);
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range;
    (void)real;
    return polar_size(c->dim, c->kv_heads);
}
static void frequency(const struct prep *p, int axis, int group, int t, double *hi, double *lo)
{
    (void)axis;
    (void)group;
    loci_pow_dd(p->cfg->opt[BASE], t, p->cfg->dim, hi, lo);
}
static void prepare(const struct prep *p)
{
    const int D = p->cfg->dim;
    loci_pairs_prepare(p, (struct pairs){ .count = D, .axes = 1, .groups = 1, .factor = 1 },
                       frequency);
    const int W = pairs_width(D);
    for (int h = 0; h < p->cfg->kv_heads; h++) {
        double *cos = (double *)polar_phase(p->table, h), *sin = cos + W, *slope = sin + W;
        for (int t = 0; t < W; t++) {
            const double delta = t < D ? param(p, 0, (ptrdiff_t)h * D + t) : 0;
            const double phase = delta < -full_circle ? -full_circle : delta > 0 ? 0 : delta;
            loci_sincos(phase, 1, 0, &cos[t], &sin[t]);
            /* 0 where delta is cut.  The ends are not: also -2 pi as a float, which is a little
             * less. */
            slope[t] = delta <= 0 && (float)delta >= (float)-full_circle;
        }
    }
}
static void fold(const struct prep *p)
{
    const int D = p->cfg->dim, W = pairs_width(D);
    if (!p->dtensor[0]) return;
    for (int h = 0; h < p->cfg->kv_heads; h++) {
        const double *slope = polar_phase(p->table, h) + (ptrdiff_t)2 * W;
        for (int t = 0; t < D; t++)
            p->dtensor[0][(ptrdiff_t)h * D + t] += slope[t] * p->dtable[0][(ptrdiff_t)h * D + t];
    }
}

const struct loci_pe loci_pe_pope = {
    .name = "pope",
    .cite = "Gopalakrishnan et al., 2025",
    .family = FAMILY_ROTATION,
    .brief = "channels of q and k are magnitudes, and positions their angles",
    .example = "pope",
    .places = LOCI_PLACE_ROTATE,
    .widens = 2,
    .tol = 2e-6,
    .opts = opts,
    .check = check,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
