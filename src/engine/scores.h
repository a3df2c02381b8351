/* SPDX-License-Identifier: MIT */
/* scores.h -- code that forward, backward and decode share: how a query tile begins, how the
 * scores of a tile of keys are computed, and which tiles can be skipped. */
#ifndef LOCI_ENGINE_SCORES_H
#define LOCI_ENGINE_SCORES_H

#include "engine/tile_gemm.h"
#include "engine/keys.h"

/* ---- Queries --------------------------------------------------------------------------------- */

/* Begins a query tile: positions, and Q rotated, scaled and transposed.  Dead rows are 0.  All
 * columns are live until open_columns() says otherwise. */
INLINE void open_rows(struct tile *t, const struct sequence *q, int h, ptrdiff_t row, int rows)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const int Dp = padded(p->dim);
    t->seq = q;
    t->h = h;
    t->kvh = h / p->group;
    t->kh = key_head(p, h);
    t->i0 = q->q0 + row;
    t->rows = rows;
    t->live = QT;
    t->run = q->run;
    t->qg = NULL;
    t->kg = NULL;
    t->q.block = -1;
    t->next = (struct next){ 0 };
    t->listed = !sees_intervals(c, q);
    /* On a run t->d gives all distances.  With segments set_keys() still reads positions. */
    if (!q->run || q->segments) {
        int64_t *qp = (int64_t *)t->qp;
        for (int r = 0; r < rows; r++) qp[r] = pos_q(c, q->b, t->i0 + r);
    }
    if (q->segments) {
        int64_t *qg = (int64_t *)t->qp + QT;
        for (int r = 0; r < rows; r++) qg[r] = seg_q(c, q->b, t->i0 + r);
        t->qg = qg;
        t->kg = t->kp + KT;
    }
    int64_t *first = (int64_t *)t->first, *last = (int64_t *)t->last;
    for (int r = 0; first && r < rows; r++) {
        first[r] = first_key(c, q, row + r);
        last[r] = last_key(c, q, row + r);
    }
    if (t->added) memset(t->added, 0, sizeof(real) * KT * QT);
    load_rows(c, &c->q, q->b, h, t->i0, rows, p->dim, t->q.rows);
    if (p->rotate >= 0)
        rotation_of(c)->rotate(c, p->rotate, t->angles, q->b, t->h, true, t->i0, rows, t->q.rows,
                               Dp);
    const real scale = (real)p->scale;
    for (int n = 0; n < QT * Dp; n++) t->q.rows[n] *= scale;
    EACH_USE(c, x, term)
        if (term->load) term->load(t, x);
    transpose(t->q.rows, Dp, QT, p->dim, t->q.across, QT);
}

/* Fades the queries from the reference of the tile's keys.  Tiles share references in blocks, so
 * this is repeated only when the block changes.  It always starts from the original rows: faded
 * rows do not depend on the tiles before. */
INLINE void fade_queries(struct tile *t)
{
    const struct call *c = t->c;
    const struct rotation *rotation = fading(c);
    if (!rotation) return;
    const struct sequence *q = t->seq;
    const int x = c->plan->rotate, D = c->plan->dim, Dp = padded(D);
    const ptrdiff_t tile = (t->j0 - q->k0) / KT, block = tile / rotation->span(c, x);
    if (t->q.block == block) return;
    t->q.block = block;
    memcpy(t->q.faded, t->q.rows, sizeof(real) * (size_t)(QT * Dp));
    rotation->fade(c, x, q->b, true, q->run, fade_from(c, q, tile), t->i0, t->rows, t->q.faded, Dp);
    transpose(t->q.faded, Dp, QT, D, t->q.across, QT);
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* The tile's s, all but mix, from scale q.k: masked, then the hooks in the order read, RAW, MUL,
 * CAP, ADD.  With a mix, a gets the scores and s the sum of ADDs. */
INLINE void add_terms(struct tile *t)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    mask(t, t->s, -INFINITY);
    if (!p->uses) return;
    EACH_USE(c, x, term)
        if (term->read) term->read(t, x);
    bool mul = false;
    for (enum group g = GROUP_RAW; g <= GROUP_ADD; g++) {
        if (g == GROUP_ADD && p->mix >= 0) {
            /* From here on terms add to a separate tile. */
            real *a = t->a;
            t->a = t->s;
            t->s = a;
            memset(t->s, 0, sizeof(real) * KT * QT);
        }
        EACH_USE(c, x, term) {
            if (p->use[x].group != g || !term->score) continue;
            /* The gradient of a factor needs what it multiplied. */
            if (g == GROUP_MUL && !mul && t->pre) memcpy(t->pre, t->s, sizeof(real) * KT * QT);
            mul |= g == GROUP_MUL;
            term->score(t, x);
        }
        /* A factor of 0 or less has turned -inf into NaN or +inf. */
        if (g == GROUP_MUL && mul) mask(t, t->s, -INFINITY);
    }
}
/* A mask is added last.  Columns of dead rows are 0. */
INLINE void add_mask(struct tile *t)
{
    if (!t->added) return;
#if QT > 1
    const real *added = mask_row(t, 0);
    transpose(added, t->c->mask.row, t->rows, t->keys, t->added, QT);
    for (int n = 0; n < t->keys * QT; n++) t->s[n] += t->added[n];
#else
    const real *added = mask_row(t, 0);
    for (int k = 0; k < t->keys; k++) t->s[k] += added[k];
#endif
}
/* The final scores of n tiles, of the heads that are computed together, from
 * the results of add_terms(). */
INLINE void finish_scores(struct tile *t, int n)
{
    const struct loci_plan *p = t->c->plan;
    if (p->mix >= 0) term_of(t->c, p->mix)->mix(t, p->mix);
    for (int i = 0; i < n; i++) add_mask(&t[i]);
}
#if QT > 1
/* All scores of a tile whose keys have been found, all but mix. */
INLINE void score_tile(struct tile *t)
{
    const int D = t->c->plan->dim;
    fade_queries(t);
    if (t->k.step == 1) dot_as(SET, t, t->k.at, t->k.row, 1, t->next, D, t->q.across, t->s);
    else dot_as(SET, t, t->k.at, 1, KT, t->next, D, t->q.across, t->s);
    add_terms(t);
}
#endif

/* Sum of the ceilings of all terms for this tile; +inf if a term has none. */
INLINE real ceilings(const struct tile *t)
{
    real sum = 0;
    EACH_USE(t->c, x, term) {
        enum group g = t->c->plan->use[x].group;
        if (g == GROUP_ROTATE) continue;
        if (!term->ceiling) return INFINITY;
        sum += term->ceiling(t, x);
    }
    return sum;
}

/* True if ceilings are worth computing.  Decode does not, as it scores whole chunks.  Ceilings
 * bound nothing for some plans: heads that mix, weights without a softmax, queries that fade,
 * factors, an additive mask. */
INLINE bool skips(const struct call *c)
{
    if (QT == 1 || c->plan->mix >= 0 || c->plan->weight >= 0 || fading(c)
        || c->in->mask_kind == LOCI_MASK_ADDED)
        return false;
    bool fades = false;
    EACH_USE(c, x, term) {
        enum group g = c->plan->use[x].group;
        fades |= term->fades;
        if (g != GROUP_ROTATE && (!term->ceiling || g == GROUP_MUL)) return false;
    }
    return fades;
}
/* True if no score of the tile can be within EXP_LOW of `floor` of its row.  All its weights are
 * then exact zeros, and skipping it changes no bit. |q.k| is at most |q| max |k|. */
INLINE bool negligible(const struct tile *t, const real *floor)
{
    const struct sequence *q = t->seq;
    const real most = ceilings(t);
    if (!(most < INFINITY)) return false;
    const real knorm =
        t->c->mem.knorm[t->kh * t->c->seqs.ktiles + q->first_ktile + (t->j0 - q->k0) / KT];
    for (int r = 0; r < t->rows; r++) {
        real bound = t->q.norm[r] * knorm + most;
        /* more than the rounding of scores and terms; NaN skips nothing */
        bound += abs_(bound) * (real)1e-5 + (real)1e-3;
        if (!(bound - floor[r] < EXP_LOW)) return false;
    }
    return true;
}
/* True if every head has a term that is exhausted, so that this tile and the older ones of the
 * chunk would only get zeros. */
INLINE bool all_exhausted(const struct tile *t, int n)
{
    for (int i = 0; i < n; i++) {
        bool some = false;
        EACH_USE(t->c, x, term) some |= term->exhausted && term->exhausted(&t[i], x);
        if (!some) return false;
    }
    return true;
}
/* |q| of every row (already scaled), rounded up a little. */
INLINE void measure_rows(struct tile *t)
{
    const int D = t->c->plan->dim;
    for (int r = 0; r < QT; r++) t->q.norm[r] = 0;
    for (int d = 0; d < D; d++)
        for (int r = 0; r < QT; r++)
            t->q.norm[r] = fma_(t->q.across[d * QT + r], t->q.across[d * QT + r], t->q.norm[r]);
    for (int r = 0; r < QT; r++) t->q.norm[r] = (real)(sqrt((double)t->q.norm[r]) * 1.0001);
}

#endif
