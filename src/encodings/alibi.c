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
 * tensor, else the same slopes.
 *
 * Slopes may also come with the call, for each key, for each query, or both, as a layer computes
 * them from the tokens (GRAPE-A):
 *
 *     S_ij = scale q_i.k_j - (slope_k[h][j] + slope_q[h][i]) |i - j| */
#include "math/trig.h"
#include "contract/encoding.h"
#include "layout/affine.h"
#include "layout/slopes.h"

enum { SLOPES };
enum { OFFICIAL, GEOMETRIC, GIVEN, KEYS, QUERIES, BOTH };
static const loci_option opts[] = {
    [SLOPES] = { "slopes", LOCI_WORD, 0, OFFICIAL, 0, 0,
                 "official|geometric|given|keys|queries|both",
                 "official: the authors' rule for any H; geometric: 2^(-8h/H); given: a learned "
                 "tensor; keys, queries, both: inputs of each call" },
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
    const bool keys = c->opt[SLOPES] == KEYS || c->opt[SLOPES] == BOTH,
               queries = c->opt[SLOPES] == QUERIES || c->opt[SLOPES] == BOTH;
    if (keys)
        loci_add_input(t, c, "slope_k", LOCI_SOURCE_OTHER,
                       SHAPE(LOCI_DIM_BATCH, c->heads, LOCI_DIM_KEYS));
    if (queries)
        loci_add_input(t, c, "slope_q", LOCI_SOURCE_OTHER,
                       SHAPE(LOCI_DIM_BATCH, c->heads, LOCI_DIM_QUERIES));
    if (c->opt[SLOPES] != GIVEN) return;
    loci_add_tensor(t, c, "slopes", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(c->heads));
    t->fill[t->n - 1] = slope;
    if (!loci_have(c, "slopes_right")) return;
    loci_add_tensor(t, c, "slopes_right", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(c->heads));
    t->fill[t->n - 1] = slope;
}

static void terms(const struct config *c, struct termlist *t)
{
    const bool keys = c->opt[SLOPES] != QUERIES, queries = c->opt[SLOPES] != KEYS;
    const struct slopes s = { keys ? 0 : -1, !queries ? -1 : keys ? 1 : 0 };
    if (c->opt[SLOPES] < KEYS) loci_add_term(t, TERM_affine, GROUP_ADD);
    else loci_add_term_layout(t, TERM_slopes, GROUP_ADD, &s, sizeof s);
}

/* The total of the term has the gradient of the keys' slopes. */
static void end_keys(struct call *c, int enc)
{
    const struct loci_plan *p = c->plan;
    if (p->enc[enc].opt[SLOPES] != KEYS && p->enc[enc].opt[SLOPES] != BOTH) return;
    double *to = c->g.dtensor[p->first_tensor[enc]];
    for (int x = 0; to && x < p->uses; x++)
        for (ptrdiff_t i = 0; p->use[x].enc == enc && i < c->B * p->heads * c->Lk; i++)
            to[i] += c->g.total[x][i];
}

/* Keys ahead without separate slopes have those of keys behind. */
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range;
    return c->opt[SLOPES] < KEYS ? AFFINE_COUNT * (size_t)c->heads * real : 0;
}

static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    if (c->opt[SLOPES] >= KEYS) return;
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
    if (p->cfg->opt[SLOPES] != GIVEN) return;
    const double *sum = p->dtable[0];
    double *left = p->dtensor[LEFT],
           *right = loci_have(p->cfg, "slopes_right") ? p->dtensor[RIGHT] : left;
    for (int h = 0; h < p->cfg->heads && sum; h++) {
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
    .end_keys = end_keys,
};
