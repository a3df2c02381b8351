/* SPDX-License-Identifier: MIT */
/* softcap.c -- the score at this stage becomes cap tanh(score / cap), and
 * masked pairs stay masked.
 *
 * Backward: dS *= 1 - tanh^2, which score() has stored for the same tile. */
#include "engine/visible.h"
#include "layout/softcap.h"

/* Backward: the slopes of a tile. */
static ptrdiff_t mem(const struct call *c, int x)
{
    (void)x;
    return c->backward ? KT : 0;
}

static void score(struct tile *t, int x)
{
    const double cap = t->c->plan->enc[t->c->plan->use[x].enc].opt[SOFTCAP_CAP];
    const vf one = vf_set1(1), high = vf_set1((real)cap), inverse = vf_set1((real)(1 / cap));
    real *slope = t->c->backward ? t->own[x].mem : NULL;
    for (int n = 0; n < t->keys * QT; n += VL) { /* a tile has memory for whole vectors */
        const vf y = vf_tanh(vf_mul(vf_load(t->s + n), inverse));
        vf_store(t->s + n, vf_mul(high, y));
        if (slope) vf_store(slope + n, vf_sub(one, vf_mul(y, y)));
    }
    mask(t, t->s, -INFINITY); /* the cap has turned -inf into -cap */
}

/* |tanh x| <= |x|, so a bound on |score| remains valid.  But other terms that add before,
 * to q.k or to the score, may push scores below that bound, and the cap raises them
 * again: then there is no bound. */
static real ceiling(const struct tile *t, int x)
{
    const struct loci_plan *p = t->c->plan;
    for (int y = 0; y < p->uses; y++)
        if (p->use[y].group == GROUP_RAW || (p->use[y].group == GROUP_ADD && y < x))
            return INFINITY;
    return 0;
}

#if QT > 1
static void score_bwd(struct tile *t, int x)
{
    const real *slope = t->own[x].mem;
    for (int n = 0; n < t->keys * QT; n++) t->ds[n] *= slope[n];
}
#endif

const struct term N(term_softcap) = {
    .name = "softcap",
    .mem = mem,
    .score = score,
    .ceiling = ceiling,
#if QT > 1
    .score_bwd = score_bwd,
#endif
};
