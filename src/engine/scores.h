/* SPDX-License-Identifier: MIT */
/* scores.h -- code that forward, backward and decode share: how a query tile begins, how the
 * scores of a tile of keys are computed, and which tiles can be skipped. */
#ifndef LOCI_ENGINE_SCORES_H
#define LOCI_ENGINE_SCORES_H

#include "engine/tile_gemm.h"
#include "engine/dropout.h"
#include "engine/keys.h"

/* ---- Forms of rows and keys ------------------------------------------------------------------ */

/* Selects the forms of rows and keys that pairs of this class read, and their dq. */
INLINE void use_form(struct tile *t, int class)
{
    const struct loci_plan *p = t->c->plan;
    const ptrdiff_t by = class - t->q.form;
    if (!by) return;
    t->q.rows += by * QT * padded(p->score_dim);
    t->q.faded = t->q.rows;
    t->q.across += by * p->score_dim * QT;
    if (t->dq) {
        t->dq += by * p->score_dim * QT;
        t->dqs += by * p->score_dim * QT;
    }
    t->q.form = class;
    t->kh = key_head(p, t->h) + key_form(p, class);
}

/* The classes of the tile's pairs: least .. most.  Pairs that are not visible count too. */
struct classes {
    int least, most;
};
INLINE int pair_class(const struct call *c, int64_t q, int64_t k)
{
    return rotation_of(c)->class_of(c, c->plan->rotate, q, k);
}
INLINE struct classes classes_of(const struct tile *t)
{
    const struct call *c = t->c;
    const ptrdiff_t b = t->seq->b;
    int64_t q[2] = { pos_q(c, b, t->i0), pos_q(c, b, t->i0 + t->rows - 1) },
            k[2] = { pos_k(c, b, t->j0), pos_k(c, b, t->j0 + t->keys - 1) };
    for (int r = 0; !t->run && r < t->rows; r++) {
        const int64_t at = pos_q(c, b, t->i0 + r);
        if (at < q[0]) q[0] = at;
        if (at > q[1]) q[1] = at;
    }
    for (int i = 0; !t->run && i < t->keys; i++) {
        const int64_t at = pos_k(c, b, t->j0 + i);
        if (at < k[0]) k[0] = at;
        if (at > k[1]) k[1] = at;
    }
    return (struct classes){ pair_class(c, q[0], k[1]), pair_class(c, q[1], k[0]) };
}
/* Bit r of rows[k] is set if the pair of key k and row r is of this class or a later one.  On a run
 * these are the rows from one on, which is later for the next key. */
INLINE void later_rows(const struct tile *t, int class, uint64_t *rows)
{
    const struct call *c = t->c;
    const ptrdiff_t b = t->seq->b;
    const uint64_t one = 1;
    int first = 0;
    for (int k = 0; k < t->keys; k++) {
        const int64_t at = pos_k(c, b, t->j0 + k);
        rows[k] = 0;
        if (t->run) {
            while (first < t->rows && pair_class(c, pos_q(c, b, t->i0 + first), at) < class)
                first++;
            rows[k] = rows_bits(first, t->rows);
        }
        for (int r = 0; !t->run && r < t->rows; r++)
            rows[k] |= pair_class(c, pos_q(c, b, t->i0 + r), at) >= class ? one << r : 0;
    }
}
/* to[k][r] = from[k][r] for the pairs of these rows. */
INLINE void take_rows(const struct tile *t, const uint64_t *rows, const real *from, real *to)
{
    for (int k = 0; k < t->keys; k++)
        for (uint64_t bits = rows[k]; bits; bits &= bits - 1) {
            const int at = k * QT + __builtin_ctzll(bits);
            to[at] = from[at];
        }
}

/* ---- Queries --------------------------------------------------------------------------------- */

/* True if the queries go across as the caller stores them, times scale, and nothing reads q.rows,
 * which are scratch then. */
INLINE bool only_across(const struct tile *t)
{
    const struct call *c = t->c;
    if (QT == 1 || c->backward || c->plan->rotate >= 0 || c->plan->moves >= 0) return false;
    EACH_USE(c, x, term)
        if (term->load) return false;
    return in_place(c);
}
/* Scales and transposes stored rows.  The last of them, fewer than a vector, are copied and padded
 * with rows of 0 first, and the rest of the tile is 0. */
INLINE void put_across(struct tile *t, const real *from, ptrdiff_t stride, int D, real scale)
{
    const int Dp = padded(D), whole = t->rows / VL * VL, rest = t->rows - whole;
    real scales[MAX_DIM], *across = t->q.across;
    int r = whole;
    for (int d = 0; d < D; d++) scales[d] = scale;
    transpose_times(from, stride, whole, D, false, scales, across, QT);
    if (rest) {
        for (int i = 0; i < VL; i++)
            for (int d = 0; d < D; d++)
                t->q.rows[i * Dp + d] = i < rest ? from[(whole + i) * stride + d] : 0;
        transpose_times(t->q.rows, Dp, VL, D, false, scales, across + whole, QT);
        r += VL;
    }
    /* with the sign that a scaled row of 0 has */
    for (; r < QT; r += VL)
        for (int d = 0; d < D; d++) vf_store(across + d * QT + r, vf_set1(0 * scale));
}
/* One form of the queries: rotated, scaled and transposed. */
INLINE void open_queries(struct tile *t, int form)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const int D = p->score_dim, Dp = padded(D);
    const ptrdiff_t b = t->seq->b;
    const real scale = (real)p->scale;
    if (only_across(t)) {
        put_across(t, stored_row(c, &c->q, b, t->h, t->i0), c->q.row, D, scale);
        return;
    }
    load_queries(c, b, t->h, t->i0, t->rows, t->q.rows);
    if (p->rotate >= 0)
        rotation_of(c)->rotate(c, p->rotate, t->angles, b, t->h * p->row_forms + form, true, t->i0,
                               t->rows, t->q.rows, Dp);
    for (int n = 0; n < QT * Dp; n++) t->q.rows[n] *= scale;
    EACH_USE(c, x, term)
        if (term->load) term->load(t, x);
    transpose(t->q.rows, Dp, QT, D, t->q.across, QT);
}
/* Begins a query tile: positions, and its queries.  Dead rows are 0.  All columns are live until
 * open_columns() says otherwise. */
INLINE void open_rows(struct tile *t, const struct sequence *q, int h, ptrdiff_t row, int rows)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
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
    for (int form = 0; form < p->row_forms; form++) {
        use_form(t, form);
        open_queries(t, form);
    }
    use_form(t, 0);
#if QT > 1
    open_dropout(t);
#endif
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
    const int x = c->plan->rotate, D = c->plan->score_dim, Dp = padded(D);
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
    const ptrdiff_t row = t->c->mask.row, key = t->c->mask_key;
    if (key == 1) transpose(added, row, t->rows, t->keys, t->added, QT);
    for (int k = 0; key != 1 && k < t->keys; k++)
        for (int r = 0; r < t->rows; r++) t->added[k * QT + r] = added[r * row + k * key];
    for (int n = 0; n < t->keys * QT; n++) t->s[n] += t->added[n];
#else
    const real *added = mask_row(t, 0);
    for (int k = 0; k < t->keys; k++) t->s[k] += added[k * t->c->mask_key];
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
INLINE void product_tile(const struct tile *t, real *s)
{
    const int D = t->c->plan->score_dim;
    if (t->k.step == 1) dot_as(SET, t, t->k.at, t->k.row, 1, t->next, D, t->q.across, s);
    else dot_as(SET, t, t->k.at, 1, KT, t->next, D, t->q.across, s);
}
/* Products of each class that the tile has, of which every pair gets its own. */
INLINE void product_classes(struct tile *t)
{
    const struct classes a = classes_of(t);
    for (int class = a.least; class <= a.most; class ++) {
        use_form(t, class);
        find_keys(t);
        t->next = to_next(t, KEYS, t->next.first && class == a.least);
        product_tile(t, class == a.least ? t->s : t->of_class);
        if (class == a.least) continue;
        uint64_t later[KT];
        later_rows(t, class, later);
        take_rows(t, later, t->of_class, t->s);
    }
    use_form(t, 0);
}
/* Scores of rows that change on their walk. */
INLINE void product_moved(struct tile *t)
{
    const struct moves *moves = moves_of(t->c);
    const int x = t->c->plan->moves;
    const enum owners owners = moves->owners(t, x);
    if (owners != ALL_ROWS) product_tile(t, t->s);
    if (owners != NO_ROWS) moves->scores(t, x);
}
/* All scores of a tile whose keys have been found, all but mix. */
INLINE void score_tile(struct tile *t)
{
    fade_queries(t);
    if (t->c->plan->moves >= 0) product_moved(t);
    else if (t->c->plan->row_forms > 1) product_classes(t);
    else product_tile(t, t->s);
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
 * bound nothing for some plans: heads that mix, weights without a softmax, queries that fade or
 * move, factors, an additive mask. */
INLINE bool skips(const struct call *c)
{
    if (QT == 1 || c->plan->mix >= 0 || c->plan->weight >= 0 || c->plan->moves >= 0 || fading(c)
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
    const int D = t->c->plan->score_dim;
    for (int r = 0; r < QT; r++) t->q.norm[r] = 0;
    for (int d = 0; d < D; d++)
        for (int r = 0; r < QT; r++)
            t->q.norm[r] = fma_(t->q.across[d * QT + r], t->q.across[d * QT + r], t->q.norm[r]);
    for (int r = 0; r < QT; r++) t->q.norm[r] = (real)(sqrt((double)t->q.norm[r]) * 1.0001);
}

#endif
