/* SPDX-License-Identifier: MIT */
/* xpos.c -- rope whose scores fade with the distance.  Sun et al., ACL 2023 (arXiv 2212.10554).
 *
 *     q <- z[t]^(pos/scale_base) R(pos) q,   k <- z[t]^(-pos/scale_base) R(pos) k,
 *     z[t] = (2t/dim + gamma)/(1 + gamma)
 *
 * so that pair t of a score has the factor z[t]^((i - j)/scale_base): slow pairs last, fast
 * ones fade.  R is rope's, interleaved from channel 0.  Only differences of positions count,
 * but z^pos itself soon leaves the range of float.  So both sides fade from the position of
 * a nearby key: the first of its block of tiles, which has the number of tiles that keeps
 * z[0] within 10^6.  A cache stores keys that are rotated, never faded.  Alone, in stage
 * ROTATE, positions count from 0. */
#include "math/trig.h"
#include "contract/call.h"
#include "layout/pairs.h"

enum { BASE, DIM, SCALE_BASE, GAMMA };
static const loci_option opts[] = {
    [BASE] = { "base", LOCI_NUMBER, 0, 10000, 1, 1e18, NULL,
               "frequencies fall from 1 to about 1/base" },
    [DIM] = { "dim", LOCI_WHOLE, 0, BY_RULE, 2, 1024, NULL,
              "channels that are rotated; default the whole head" },
    [SCALE_BASE] = { "scale_base", LOCI_NUMBER, 0, 512, 1e-3, 1e18, NULL,
                     "distance at which pair t has faded to z[t]" },
    [GAMMA] = { "gamma", LOCI_NUMBER, 0, 0.4, 1e-6, 1e18, NULL,
                "the larger, the slower the fading" },
    { 0 },
};

/* z of pair 0, the one that fades fastest. */
static double z0(const struct config *c) { return c->opt[GAMMA] / (1 + c->opt[GAMMA]); }

static loci_status check(struct config *c, loci_error *e)
{
    double *o = c->opt;
    if (!c->given[DIM]) o[DIM] = c->dim;
    CHECK(e, fmod(o[DIM], 2) == 0, LOCI_BAD_ARG,
          "xpos: dim %g must be even: channels are rotated in pairs", o[DIM]);
    CHECK(e, o[DIM] <= c->dim, LOCI_BAD_ARG, "xpos: dim %g must not exceed the head's %d channels",
          o[DIM], c->dim);
    /* Within one tile both sides fade from one key: more would leave the range of float. */
    CHECK(e, -log(z0(c)) * KT / o[SCALE_BASE] <= log(1e15), LOCI_BAD_ARG,
          "xpos: with scale_base %g and gamma %g scores fade by more than 10^15 within %d "
          "positions; use a larger scale_base or gamma",
          o[SCALE_BASE], o[GAMMA], KT);
    return LOCI_OK;
}
static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_fading_pairs, GROUP_ROTATE);
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range;
    (void)real;
    return loci_fading_pairs_size((int)c->opt[DIM] / 2);
}
static void frequency(const struct prep *p, int axis, int group, int t, double *hi, double *lo)
{
    (void)axis;
    (void)group;
    loci_pow_dd(p->cfg->opt[BASE], 2.0 * t, p->cfg->opt[DIM], hi, lo);
}
/* z[t]^(1/scale_base), so that its powers by whole distances are those of the formula. */
static void fading(const struct prep *p, int axis, int group, int t, double *hi, double *lo)
{
    const double *o = p->cfg->opt;
    (void)axis;
    (void)group;
    loci_pow_dd((2 * t / o[DIM] + o[GAMMA]) / (1 + o[GAMMA]), -1, o[SCALE_BASE], hi, lo);
}
static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    /* The number of tiles that keeps z[0] within 10^6: a power of two up to a chunk, so that no
     * block crosses the border of a chunk. */
    int span = CHUNK / KT;
    while (span > 1 && -log(z0(c)) * KT * span / c->opt[SCALE_BASE] > log(1e6)) span /= 2;
    loci_fading_pairs_prepare(p,
                              (struct pairs){
                                  .count = (int)c->opt[DIM] / 2,
                                  .interleaved = true,
                                  .axes = 1,
                                  .groups = 1,
                                  .factor = 1,
                                  .span = span,
                                  .least = 0x1p-64 * pow(z0(c), KT * span / c->opt[SCALE_BASE]),
                              },
                              frequency, fading);
}

/* Keys of a block share a reference.  Positions with gaps can be so far apart within it that one
 * side would be 0 and the other infinite.  On runs check() and the span exclude that. */
static loci_status accept(const struct call *c, int enc)
{
    const struct config *cfg = &c->plan->enc[enc];
    const ptrdiff_t keys = (ptrdiff_t)KT * ((const struct pairs *)c->table[enc])->span;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        for (ptrdiff_t j = 0; j < q->nk && !q->run; j++) {
            const int64_t first = pos_k(c, q->b, q->k0 + j / keys * keys),
                          pos = pos_k(c, q->b, q->k0 + j);
            CHECK(c->in->error,
                  -log(z0(cfg)) * fabs((double)(pos - first)) / cfg->opt[SCALE_BASE] <= log(1e30),
                  LOCI_UNSUPPORTED,
                  "xpos: keys at positions %lld and %lld are less than %td keys apart, but scores "
                  "fade by more than 10^30 between them; use a larger scale_base or gamma",
                  (long long)first, (long long)pos, keys);
        }
    }
    return LOCI_OK;
}

const struct loci_pe loci_pe_xpos = {
    .name = "xpos",
    .cite = "Sun et al., ACL 2023",
    .family = FAMILY_ROTATION,
    .brief = "rope whose pairs fade with the distance, slow ones least",
    .example = "xpos",
    .places = LOCI_PLACE_ROTATE,
    .rotates = true,
    .tol = 4e-6,
    .opts = opts,
    .check = check,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .accept = accept,
};
