/* SPDX-License-Identifier: MIT */
/* backward.c -- gradients: scores are recomputed, with five products per tile and no atomics.
 *
 *     P = e^(S - lse)    dP = dO V^T    dS = P (dP - delta),  delta = dO.o - dlse
 *     dV += P^T dO       dK += dS^T Q   dQ = dS K
 *
 * A work item is a kv head (or all heads, if a term mixes them) and 1024 query rows.  It walks
 * over the chunks of keys, oldest first.  In each chunk it sums dK, dV and the gradients of
 * parameters into its own parts, and saves the state of its rows for the next chunk.
 * backward_items.c has the threads, and adds the parts up. */
#include "engine/backward.h"

#if QT > 1

static void zero(real *x, ptrdiff_t n) { memset(x, 0, sizeof(real) * (size_t)n); }

/* Loads dO, delta and lse of the rows, and begins the terms.  Every dP of a row is compared with
 * delta = dO.o - dlse: dS = P (dP - delta), since dlse reaches S through P as well. */
static void open_gradient(struct tile *t)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const int Dv = p->value_dim, Dvp = padded(Dv);
    const ptrdiff_t at = (t->seq->b * p->heads + t->h) * c->Lq + t->i0;
    const real *lse = c->in->lse, *dlse = c->grad->dlse;

    /* without dO, only dlse and the terms contribute a gradient */
    if (c->g.dout.data) load_rows(c, &c->g.dout, t->seq->b, t->h, t->i0, t->rows, Dv, t->dout.rows);
    else zero(t->dout.rows, (ptrdiff_t)QT * Dvp);
    transpose(t->dout.rows, Dvp, QT, Dv, t->dout.across, QT);
    load_rows(c, &c->o, t->seq->b, t->h, t->i0, t->rows, Dv, t->scratch);
    transpose(t->scratch, Dvp, QT, Dv, t->chunk.o, QT);
    zero(t->delta, QT);
    for (int n = 0; n < Dv; n++)
        for (int r = 0; r < QT; r++)
            t->delta[r] = fma_(t->dout.across[n * QT + r], t->chunk.o[n * QT + r], t->delta[r]);
    /* delta is the same before and after the turn, but o is stored turned back */
    if (p->turns_values && c->g.dout.data) {
        turn_outputs(c, t->angles, t->seq->b, t->h, 1, t->i0, t->rows, t->dout.rows, Dvp);
        transpose(t->dout.rows, Dvp, QT, Dv, t->dout.across, QT);
    }
    for (int r = 0; r < QT; r++) {
        const bool live = r < t->rows;
        /* A row that sees no key has lse -inf; its scores are -inf, and -inf - 0 gives weight 0. */
        t->lse[r] = live && lse && lse[at + r] != -INFINITY ? lse[at + r] : 0;
        if (live && dlse) t->delta[r] -= dlse[at + r];
    }
    /* outer() sums over all rows of the tile.  A row that is not finite must not reach
     * keys that it does not see. */
    t->finite = finite_rows(t->dout.rows, Dvp, t->rows, Dv) && finite_rows(t->lse, QT, 1, QT);
    for (int form = 0; form < p->row_forms; form++)
        t->finite &= finite_rows(t->q.rows + form * QT * padded(p->score_dim), padded(p->score_dim),
                                 t->rows, p->score_dim);

    zero(t->dqs, (ptrdiff_t)p->row_forms * p->score_dim * QT);
    EACH_USE(c, x, term) {
        zero(t->own[x].grads, (ptrdiff_t)t->own[x].gradn * QT);
        if (term->open) term->open(t, x);
        if (term->open_bwd) term->open_bwd(t, x);
    }
}

/* p = e^(s - lse) and ds = p (dp - delta), with rows in the lanes.  Two vectors of rows are
 * computed at a time, over all keys, so that their lse and delta stay in registers. */
static void weights_again(int keys, const real *s, const real *lse, real *p)
{
    for (int r = 0; r < QT; r += 2 * VL) {
        const vf l[2] = { vf_load(lse + r), vf_load(lse + r + VL) };
        for (int n = r; n < keys * QT; n += QT)
            UNROLL_FOR(int i = 0; i < 2; i++)
                vf_store(p + n + i * VL, vf_exp(vf_sub(vf_load(s + n + i * VL), l[i])));
    }
}
static void dscore(int keys, const real *p, const real *dp, const real *delta, real *ds)
{
    for (int r = 0; r < QT; r += 2 * VL) {
        const vf d[2] = { vf_load(delta + r), vf_load(delta + r + VL) };
        for (int n = r; n < keys * QT; n += QT)
            UNROLL_FOR(int i = 0; i < 2; i++)
                vf_store(ds + n + i * VL,
                         vf_mul(vf_load(p + n + i * VL), vf_sub(vf_load(dp + n + i * VL), d[i])));
    }
}

/* With dropout: dP of the weights before, and ds from these weights. */
static void dscore_before(const struct tile *t)
{
    const real *factor = t->drop.factor, *p = t->drop.whole;
    for (int r = 0; r < QT; r += 2 * VL) {
        const vf d[2] = { vf_load(t->delta + r), vf_load(t->delta + r + VL) };
        for (int n = r; n < t->keys * QT; n += QT)
            UNROLL_FOR(int i = 0; i < 2; i++) {
                const int at = n + i * VL;
                const vf dp = vf_mul(vf_load(t->dp + at), vf_load(factor + at));
                vf_store(t->ds + at, vf_mul(vf_load(p + at), vf_sub(dp, d[i])));
            }
    }
}
/* The same for weights that are no softmax. */
static void weights_before(struct tile *t, int x)
{
    for (int n = 0; n < t->keys * QT; n += VL)
        vf_store(t->dp + n, vf_mul(vf_load(t->dp + n), vf_load(t->drop.factor + n)));
    swap_weights(t);
    weights_of(t->c)->tile_weights_bwd(t, x);
    swap_weights(t);
}

/* p and ds of a tile whose scores are computed.  The mask sets ds of pairs that no row sees to
 * 0: their p is 0, but dP may be inf or NaN. */
static void weights_gradient(struct tile *t)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    if (p->weight < 0) weights_again(t->keys, t->s, t->lse, t->p);
    else {
        weights_of(c)->tile_weights(t, p->weight);
        weights_of(c)->whole(t, p->weight);
    }
    if (c->dropout.on) drop_weights_again(t);
    t->next = to_next(t, VALUES, t->next.first);
    dot(t, t->v.at, t->v.row, p->value_dim, t->dout.across, t->dp, t->next);
    t->next.first = NULL; /* keys are prefetched once */
    EACH_USE(c, x, term)
        if (term->value_bwd) term->value_bwd(t, x);
    if (c->dropout.on && p->weight < 0) dscore_before(t);
    else if (c->dropout.on) weights_before(t, p->weight);
    else if (p->weight < 0) dscore(t->keys, t->p, t->dp, t->delta, t->ds);
    else weights_of(c)->tile_weights_bwd(t, p->weight);
    mask(t, t->ds, 0);
}

/* The gradient of the mask equals that of the final scores. */
static void store_mask_gradient(const struct tile *t)
{
    const loci_view *v = &t->c->g.dmask;
    real *to = (real *)v->data + t->seq->b * v->batch + t->h * v->head + t->i0 * v->row + t->j0;
    transpose(t->ds, QT, t->keys, t->rows, to, v->row);
}

/* From the gradient of the final scores to that of scale q.k, last stage first. */
static void score_gradient(struct tile *t)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    for (enum group g = GROUP_ADD; g >= GROUP_RAW; g--) {
        for (int x = p->uses - 1; x >= 0; x--) {
            const struct term *term = term_of(c, x);
            if (p->use[x].group == g && term->score_bwd) term->score_bwd(t, x);
        }
        /* mix_bwd() has stored the gradient of the ADD terms in ds and that of the scores in da. */
        if (g == GROUP_ADD && p->mix >= 0) {
            real *ds = t->ds;
            t->ds = t->da;
            t->da = ds;
        }
    }
    /* Contributions of terms to q.k belong to no stage, so their
     * gradient comes after all stages. */
    for (int x = p->uses - 1; x >= 0; x--)
        if (term_of(c, x)->read_bwd) term_of(c, x)->read_bwd(t, x);
}

/* ---- Which rows meet which keys -------------------------------------------------------------- */

/* The tiles first .. last of a chunk for a range of keys; none if last < first. */
struct tiles {
    ptrdiff_t first, last;
};
static struct tiles tiles_of(struct keyrange keys, ptrdiff_t chunk)
{
    const ptrdiff_t low = chunk * (CHUNK / KT), high = low + CHUNK / KT - 1;
    if (keys.last < keys.first) return (struct tiles){ low, low - 1 };
    return (struct tiles){ keys.first / KT > low ? keys.first / KT : low,
                           keys.last / KT < high ? keys.last / KT : high };
}

/* Items in order: the latest rows first, and all kv heads of a chunk of rows next to each other.
 * Items that run at the same time then cost the same and seldom add to the same keys. */
struct item N(item_at)(const struct call *c, const struct sequence *q, ptrdiff_t i)
{
    const int groups = groups_of(c);
    struct item a = { .q = q, .kvh = (int)(i % groups) };
    a.row = (tiles_of_rows(q) - 1 - i / groups) * ROW_CHUNK;
    a.rows = q->nq - a.row < ROW_CHUNK ? q->nq - a.row : ROW_CHUNK;
    a.keys = keys_of(c, q, a.row, (int)a.rows);
    const ptrdiff_t none = oldest_chunk(c);
    a.chunks = a.keys.last < a.keys.first
                 ? (struct chunks){ none, none }
                 : (struct chunks){ a.keys.first / CHUNK, a.keys.last / CHUNK };
    return a;
}
/* QT rows of an item, of one head or, with a mix, of all heads from h on. */
struct item_rows {
    const struct item *item;
    int h;
    ptrdiff_t row;
    int n;
    struct keyrange keys;
    /* Rows that see no key also have gradients: they are computed with the first chunk. */
    struct chunks chunks;
};
static struct item_rows rows_at(const struct call *c, const struct item *a, int h, ptrdiff_t row)
{
    struct item_rows r = {
        .item = a,
        .h = a->kvh * c->plan->group + h,
        .row = a->row + row,
        .n = a->rows - row < QT ? (int)(a->rows - row) : QT,
    };
    r.keys = keys_of(c, a->q, r.row, r.n);
    r.chunks = r.keys.last < r.keys.first
                 ? (struct chunks){ a->chunks.first, a->chunks.first }
                 : (struct chunks){ r.keys.first / CHUNK, r.keys.last / CHUNK };
    return r;
}
/* The last existing key that these rows may see. */
static ptrdiff_t last_here(const struct call *c, const struct item_rows *r)
{
    return present_of(c, r->keys).last;
}
/* The slot of head number i of the rows. */
static ptrdiff_t slot_of(const struct call *c, const struct item_rows *r, int i)
{
    return (r->h + i) % item_heads(c->plan) * item_tiles(c) + (r->row - r->item->row) / QT;
}

/* ---- From chunk to chunk --------------------------------------------------------------------- */

/* Saves n rows to chunk_state, or restores them; returns the end of their slot. */
static real *copy_rows(real *rows, ptrdiff_t n, real *chunk_state, bool back)
{
    const size_t bytes = sizeof(real) * (size_t)(n * QT);
    if (back) memcpy(rows, chunk_state, bytes);
    else memcpy(chunk_state, rows, bytes);
    return chunk_state + n * QT;
}
/* Saves the sums of the rows at the end of a chunk of keys, or restores them: dq and gradients
 * of terms, already joined, and the state of terms. */
static void save_rows(struct tile *t, const struct sums *w, ptrdiff_t slot, bool back)
{
    const struct call *c = t->c;
    const ptrdiff_t dqs = (ptrdiff_t)c->plan->row_forms * c->plan->score_dim;
    ptrdiff_t n = dqs;
    EACH_USE(c, x, term) n += t->own[x].gradn + (term->chunk_state ? term->chunk_state(c, x) : 0);
    real *at = copy_rows(t->dqs, dqs, w->chunk_state + slot * n * QT, back);
    EACH_USE(c, x, term) {
        at = copy_rows(t->own[x].grads, t->own[x].gradn, at, back);
        if (term->chunk_state) at = copy_rows(t->own[x].mem, term->chunk_state(c, x), at, back);
    }
}
/* The same for the carries just before the newest key of a chunk. */
static void save_carries(struct tile *t, const struct sums *w, ptrdiff_t slot, ptrdiff_t chunk,
                         bool back)
{
    EACH_USE(t->c, x, term) {
        const ptrdiff_t n = t->own[x].carryn;
        if (n)
            copy_rows(t->own[x].carry, n,
                      w->border[x] + (slot * most_chunks(t->c) + chunk) * n * QT, back);
    }
    /* rows as the carry has them */
    if (back && t->c->plan->moves >= 0) moves_of(t->c)->form(t, t->c->plan->moves);
}

/* True if no scan changes its carry any more.  Older tiles then have the carries of this one. */
static bool all_fixed(const struct tile *t, int n)
{
    for (int i = 0; i < n; i++)
        EACH_USE(t->c, x, term)
            if (term->carry && x != t->c->plan->moves && !(term->fixed && term->fixed(&t[i], x)))
                return false;
    return true;
}

/* Do rows that move read this tile as they read the one before? */
static bool keeps(const struct tile *t)
{
    const struct moves *moves = moves_of(t->c);
    return moves && moves->keeps && moves->keeps(t, t->c->plan->moves);
}

/* Sweeps a chunk from newest to oldest for the carries of all scans.  With w, the carries before
 * each tile are saved for the backward walk, which runs the other way. */
static void sweep_carries(const struct call *c, struct tile *t, int n, const struct sums *w,
                          ptrdiff_t last, struct tiles tiles)
{
    const struct loci_plan *p = c->plan;
    bool scans = false; /* scores change a carry */
    EACH_USE(c, x, term) scans |= term->carry && x != p->moves;
    for (ptrdiff_t j = tiles.last; j >= tiles.first; j--) {
        const ptrdiff_t at = j % (CHUNK / KT);
        bool seen = true;
        for (int i = 0; i < n; i++) {
            if (j == tiles.last)
                EACH_USE(c, x, term)
                    if (term->weights) term->weights->chunk(&t[i], x);
            seen &= set_keys(&t[i], j * KT, last);
            EACH_USE(c, x, term) {
                const ptrdiff_t rows = t[i].own[x].carryn;
                if (rows && w && !(x == p->moves && j > tiles.first && keeps(&t[i])))
                    copy_rows(t[i].own[x].carry, rows,
                              w->carry[x] + (i * part_tiles(c) + at) * rows * QT, false);
            }
        }
        /* Tiles that change no carry need no scores, but their carries are stored too. */
        if (seen && scans && !all_exhausted(t, n) && !all_fixed(t, n)) {
            if (w && w->scores) t->s = w->scores + at * KT * QT;
            for (int i = 0; i < n; i++) {
                find_keys(&t[i]);
                score_tile(&t[i]);
            }
            finish_scores(t, n);
            for (int i = 0; i < n && p->weight >= 0; i++)
                weights_of(c)->tile_weights(&t[i], p->weight);
        }
        step_rows(t, n);
    }
}

/* ---- One query tile -------------------------------------------------------------------------- */

/* Adds the tile's gradient of the keys in this form to dk_part, and that of the rows to dq. */
static void add_products(struct tile *t, const real *ds, real *dk_part)
{
    const struct loci_plan *p = t->c->plan;
    if (t->c->g.dk.data) outer_safe(t, ds, t->q.faded, padded(p->score_dim), dk_part);
    mix_safe(t, t->k.at, t->k.row, p->score_dim, ds, t->dq, t->alpha, t->next);
}
/* The same class by class: each gets the gradients of its own pairs.  The key forms of a head
 * follow each other in dk_part. */
static void add_classes(struct tile *t)
{
    const struct call *c = t->c;
    const struct classes a = classes_of(t);
    const ptrdiff_t form = part_keys(c) * padded(c->plan->score_dim);
    for (int class = a.least; class <= a.most; class ++) {
        uint64_t rows[KT], later[KT];
        const real *ds = t->ds;
        if (a.least != a.most) {
            later_rows(t, class, rows);
            later_rows(t, class + 1, later);
            for (int k = 0; k < t->keys; k++) rows[k] &= ~later[k];
            zero(t->of_class, (ptrdiff_t)t->keys * QT);
            take_rows(t, rows, t->ds, t->of_class);
            ds = t->of_class;
        }
        use_form(t, class);
        find_keys(t);
        add_products(t, ds, t->dk_part ? t->dk_part + key_form(c->plan, class) * form : NULL);
    }
    use_form(t, 0);
}

/* The same for rows that change on their walk: the term takes the rows that own the tile, and
 * products the others. */
static void add_moved(struct tile *t, bool again)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const struct moves *moves = moves_of(c);
    const int x = p->moves, D = p->dim, Dp = padded(D);
    const enum owners owners = moves->owners(t, x);
    const bool finite = t->finite;
    real *const dq = t->dq;
    if (moves->step_bwd) moves->step_bwd(t, x);
    if (!again) transpose(t->q.across, QT, D, QT, t->q.faded, Dp);
    if (owners != NO_ROWS) moves->scores_bwd(t, x);
    if (owners != ALL_ROWS) {
        if (moves->add_dq) {
            t->dq = t->of_class;
            zero(t->dq, (ptrdiff_t)D * QT);
        } else if (owners == SOME_ROWS) memcpy(t->of_class, dq, sizeof(real) * (size_t)(D * QT));
        /* rows may have become NaN on their walk */
        t->finite &= !t->partial || finite_rows(t->q.faded, Dp, QT, D);
        add_products(t, t->ds, t->dk_part);
        t->finite = finite;
        t->dq = dq;
        if (moves->add_dq) moves->add_dq(t, x, t->of_class);
        /* 0 times a key that is not finite must not reach rows that do not read it */
        for (int r = 0; r < t->rows && !moves->add_dq && owners == SOME_ROWS; r++) {
            if (moves->reads(t, x, r)) continue;
            for (int d = 0; d < D; d++) dq[d * QT + r] = t->of_class[d * QT + r] + 0;
        }
    }
}

/* Does dq move with the rows? */
static bool passes(const struct call *c) { return c->plan->moves >= 0 && moves_of(c)->step_bwd; }
/* Takes dq over a tile whose scores have no gradient. */
static void pass_over(struct tile *t)
{
    const struct call *c = t->c;
    const struct moves *moves = moves_of(c);
    const int x = c->plan->moves;
    const enum owners owners = moves->owners(t, x);
    find_keys(t);
    moves->form(t, x);
    moves->step_bwd(t, x);
    /* newer tiles read these rows if no step changes them: see keeps() */
    transpose(t->q.across, QT, c->plan->dim, QT, t->q.faded, padded(c->plan->dim));
    if (owners == NO_ROWS) return;
    zero(t->ds, (ptrdiff_t)KT * QT);
    moves->scores(t, x);
    moves->scores_bwd(t, x);
}

/* One tile of keys, in all heads that are computed together: scores as in the forward pass, then
 * weights and their gradients, then the hooks in reverse order. */
static void backward_tile(const struct call *c, struct tile *t, const struct sums *w,
                          ptrdiff_t last, ptrdiff_t j, bool first)
{
    const struct loci_plan *p = c->plan;
    const int n = locked(p), Dp = padded(p->score_dim), Dvp = padded(p->value_dim);
    const ptrdiff_t at = j % (CHUNK / KT), keys = part_keys(c);
    bool seen = true;
    /* hidden tiles, too: terms ask where a tile is when they close */
    for (int i = 0; i < n; i++) seen &= set_keys(&t[i], j * KT, last);
    if (!seen && !passes(c)) return;
    for (int i = 0; i < n; i++)
        EACH_USE(c, x, term) {
            const ptrdiff_t number = t[i].kvh % item_kv_heads(p) * part_tiles(c) + at;
            if (w->tiled[x])
                t[i].own[x].keys = c->g.total[x] ? w->tiled[x] + number * term->tiled(c, x) : NULL;
            const ptrdiff_t rows = t[i].own[x].carryn;
            if (rows && !(x == p->moves && !first && keeps(&t[i])))
                copy_rows(t[i].own[x].carry, rows,
                          w->carry[x] + (i * part_tiles(c) + at) * rows * QT, true);
        }
    /* e^(s - lse) is an exact 0 for all pairs, so the tile would add exact zeros. */
    if (skips(c) && negligible(t, t->lse)) return;
    if (!seen || all_exhausted(t, n)) {
        for (int i = 0; i < n && passes(c); i++) pass_over(&t[i]);
        return;
    }

    /* The sweep has stored the scores, or they are recomputed. */
    if (w->scores) t->s = w->scores + at * KT * QT;
    for (int i = 0; i < n; i++) {
        find_keys(&t[i]);
        find_values(&t[i]);
        fade_queries(&t[i]);
        if (p->moves >= 0 && (first || !keeps(&t[i]))) moves_of(c)->form(&t[i], p->moves);
        t[i].next = to_next(&t[i], KEYS, (j + 2) * KT <= last + 1); /* a whole tile */
        if (!w->scores) score_tile(&t[i]);
    }
    if (!w->scores) finish_scores(t, n);
    for (int i = 0; i < n; i++) {
        /* Parts begin at the item's own heads, and sums by key at the first key of the chunk. */
        const ptrdiff_t kh = t[i].kh % item_key_heads(p), kvh = t[i].kvh % item_kv_heads(p);
        t[i].dk_part = c->g.dk.data ? w->dk + (kh * keys + at * KT) * Dp : NULL;
        t[i].dv_part = c->g.dv.data ? w->dv + (kvh * keys + at * KT) * Dvp : NULL;
        EACH_USE(c, x, term)
            if (!w->tiled[x])
                t[i].own[x].keys =
                    w->keys[x] && c->g.total[x]
                        ? w->keys[x]
                              + (t[i].h % item_heads(p) * keys + at * KT) * key_row(term, c, x)
                        : NULL;
        weights_gradient(&t[i]);
        if (c->g.dmask.data) store_mask_gradient(&t[i]);
        if (c->g.dv.data) outer_safe(&t[i], t[i].p, t[i].dout.rows, Dvp, t[i].dv_part);
    }
    if (p->mix >= 0) term_of(c, p->mix)->mix_bwd(t, p->mix);
    for (int i = 0; i < n; i++) {
        score_gradient(&t[i]);
        if (p->moves >= 0) add_moved(&t[i], !first && keeps(&t[i]));
        else if (p->row_forms > 1) add_classes(&t[i]);
        else add_products(&t[i], t[i].ds, t[i].dk_part);
    }
}

/* Removes the fading from dq of the tiles up to j, which share a reference, and adds it to dqs.
 * z^(pos - ref) multiplies each pair of channels, so it is its own adjoint. */
static void unfade(struct tile *t, ptrdiff_t j)
{
    const struct call *c = t->c;
    const int D = c->plan->score_dim, Dp = padded(D);
    transpose(t->dq, QT, D, QT, t->scratch, Dp);
    fading(c)->fade(c, c->plan->rotate, t->seq->b, true, t->seq->run, fade_from(c, t->seq, j),
                    t->i0, t->rows, t->scratch, Dp);
    for (int d = 0; d < D; d++)
        for (int r = 0; r < QT; r++) t->dqs[d * QT + r] += t->scratch[r * Dp + d];
    zero(t->dq, (ptrdiff_t)D * QT);
}

/* The gradient of the angles by which outputs turn back, so with the sides exchanged: o[b] do[a] -
 * o[a] do[b]. */
static void output_angles(struct tile *t)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const int Dv = p->value_dim;
    if (!p->turns_values || !c->g.dout.data || !rotation_learns(c)) return;
    load_rows(c, &c->g.dout, t->seq->b, t->h, t->i0, t->rows, Dv, t->dout.rows);
    load_rows(c, &c->o, t->seq->b, t->h, t->i0, t->rows, Dv, t->scratch);
    rotation_of(c)->turn_bwd(c, p->rotate, t->seq->b, t->h, true, t->i0, t->rows, t->dout.rows,
                             t->scratch, padded(Dv), t->own[p->rotate].part);
}

/* Finishes the rows: terms add their sums to dq, which goes back through the rotation.  q.rows
 * hold the scaled, rotated queries, and dqs is the gradient by these.  So parameters of the
 * rotation get their gradient before dq is multiplied by scale. */
static void close_gradient(struct tile *t)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const int D = p->score_dim, Dp = padded(D);
    EACH_USE(c, x, term)
        if (term->close_bwd) term->close_bwd(t, x);
    output_angles(t);
    const real scale = (real)p->scale;
    /* The sum of several forms: the rows of the first are read only by its own rotate_bwd(). */
    real *const all = t->q.rows;
    for (int form = 0; form < p->row_forms; form++) {
        use_form(t, form);
        EACH_USE(c, x, term)
            if (term->load_bwd) term->load_bwd(t, x);
        transpose(t->dqs, QT, D, QT, t->scratch, Dp);
        if (p->rotate < 0) continue;
        real *part = t->own[p->rotate].part;
        /* q.rows are rotated; the original rows are in the caller's view only. */
        if (wants_input(c, part)) {
            load_queries(c, t->seq->b, t->h, t->i0, t->rows, t->q.rows);
            for (int n = 0; n < QT * Dp && !rotation_of(c)->bends; n++) t->q.rows[n] *= scale;
        }
        rotation_of(c)->rotate_bwd(c, p->rotate, t->angles, t->seq->b, t->h * p->row_forms + form,
                                   true, t->i0, t->rows, t->q.rows, t->scratch, Dp, part);
        if (p->row_forms == 1) continue;
        for (int n = 0; n < QT * Dp; n++) all[n] = form ? all[n] + t->scratch[n] : t->scratch[n];
    }
    use_form(t, 0);
    if (p->row_forms > 1) memcpy(t->scratch, all, sizeof(real) * (size_t)(QT * Dp));
    if (!c->g.dq.data) return;
    for (int n = 0; n < t->rows * Dp; n++) t->scratch[n] *= scale;
    store_rows(c, t->scratch, Dp, &c->g.dq, t->seq->b, t->h, t->i0, t->rows, p->dim);
}

bool N(scans)(const struct call *c)
{
    EACH_USE(c, x, term)
        if (term->carry) return true;
    return false;
}
static void open_backward(const struct call *c, struct tile *t, const struct item_rows *r)
{
    for (int i = 0; i < locked(c->plan); i++) {
        open_rows(&t[i], r->item->q, r->h + i, r->row, r->n);
        if (skips(c)) measure_rows(&t[i]);
        open_gradient(&t[i]);
        /* for products that fade what they add to; dq never fades */
        for (int k = 0; k < QT; k++) t[i].alpha[k] = 1;
    }
}
/* Before the oldest chunk is walked: sweeps for the carries at the start of every chunk but the
 * newest.  Storing the carries of all tiles would need as much memory as dK. */
static void sweep_chunk(const struct call *c, struct tile *t, const struct sums *w,
                        const struct item_rows *r, ptrdiff_t chunk)
{
    const int n = locked(c->plan);
    sweep_carries(c, t, n, NULL, last_here(c, r), tiles_of(r->keys, chunk));
    for (int i = 0; i < n; i++) save_carries(&t[i], w, slot_of(c, r, i), chunk - 1, false);
}
static void sweep_chunks(const struct call *c, struct tile *t, const struct sums *w,
                         const struct item_rows *r)
{
    open_backward(c, t, r);
    for (ptrdiff_t chunk = r->chunks.last; chunk > r->chunks.first; chunk--)
        sweep_chunk(c, t, w, r, chunk);
}

/* The parts of an item are stored by head, from its first head on. */
static void open_parts(const struct call *c, struct tile *t, const struct sums *w,
                       const struct item_rows *r)
{
    for (int i = 0; i < locked(c->plan); i++)
        EACH_USE(c, x, term) {
            struct own *own = &t[i].own[x];
            const ptrdiff_t head = (r->h + i) % item_heads(c->plan);
            own->part = own->fresh = NULL;
            if (!term->part || !c->g.total[x]) continue;
            own->part = w->part[x] + head * term->part(c, x);
            if (!term->fresh) continue;
            own->fresh = w->fresh[x] + i * term->fresh(c, x);
            zero(own->fresh, term->fresh(c, x));
        }
}
static void add_fresh(struct tile *t)
{
    const struct call *c = t->c;
    EACH_USE(c, x, term) {
        const ptrdiff_t n = t->own[x].fresh ? term->fresh(c, x) : 0;
        for (ptrdiff_t i = 0; i < n; i++) t->own[x].part[i] += t->own[x].fresh[i];
    }
}

/* Tiles of keys are the stages of a unit. */
static bool await(const struct unit *u, ptrdiff_t stage)
{
    return !u->pipeline || loci_pipeline_wait(u->pipelines, u->pipeline, u->number, (int)stage);
}
static void pass(const struct unit *u, ptrdiff_t stage)
{
    if (u->pipeline) loci_pipeline_pass(u->pipelines, u->pipeline, u->number, (int)stage);
}

/* One query tile against the keys of a chunk that it sees, oldest first: scans run
 * backwards.  dq is summed in three levels like o, over keys, tiles and chunks, so
 * that float loses as little.  False: stopped. */
static bool backward_rows(const struct call *c, struct tile *t, const struct sums *w,
                          const struct item_rows *r, ptrdiff_t chunk, const struct unit *unit)
{
    const struct loci_plan *p = c->plan;
    const int n = locked(p), span = fading(c) ? fading(c)->span(c, p->rotate) : 0;
    const struct tiles tiles = tiles_of(r->keys, chunk);
    open_parts(c, t, w, r);
    open_backward(c, t, r);
    for (int i = 0; i < n; i++) {
        if (chunk > r->chunks.first) save_rows(&t[i], w, slot_of(c, r, i), true);
        if (chunk < r->chunks.last) save_carries(&t[i], w, slot_of(c, r, i), chunk, true);
        /* sums of a chunk start at 0, but a dq that moves with the rows goes on */
        if (passes(c)) memcpy(t[i].dq, t[i].dqs, sizeof(real) * (size_t)(p->dim * QT));
        else zero(t[i].dq, (ptrdiff_t)p->row_forms * p->score_dim * QT);
        EACH_USE(c, x, term) zero(t[i].own[x].grad, (ptrdiff_t)t[i].own[x].gradn * QT);
    }
    if (N(scans)(c)) sweep_carries(c, t, n, w, last_here(c, r), tiles);
    for (ptrdiff_t j = tiles.first; j <= tiles.last; j++) {
        if (!await(unit, j % (CHUNK / KT))) return false;
        backward_tile(c, t, w, last_here(c, r), j, j == tiles.first);
        pass(unit, j % (CHUNK / KT));
        /* the last tile of a reference */
        if (span && (j % span == span - 1 || j == tiles.last))
            for (int i = 0; i < n; i++) unfade(&t[i], j);
    }
    /* What follows adds to parts of the item. */
    if (!await(unit, LAST_STAGE)) return false;
    for (int i = 0; i < n; i++) {
        if (passes(c)) memcpy(t[i].dqs, t[i].dq, sizeof(real) * (size_t)(p->dim * QT));
        else add_numbers(t[i].dqs, t[i].dq, (ptrdiff_t)p->row_forms * p->score_dim * QT);
        EACH_USE(c, x, term)
            add_numbers(t[i].own[x].grads, t[i].own[x].grad, (ptrdiff_t)t[i].own[x].gradn * QT);
        if (chunk < r->chunks.last) save_rows(&t[i], w, slot_of(c, r, i), false);
        else close_gradient(&t[i]);
        add_fresh(&t[i]);
    }
    return true;
}

/* ---- Work items ------------------------------------------------------------------------------ */

/* Zeroes the rows of the tiles that contain the item's keys, in every head of
 * [heads][keys][width].  An item writes no others, and with a window they are few. */
static void zero_keys(const struct call *c, real *x, int heads, struct keyrange keys, int width)
{
    const ptrdiff_t first = keys.first / KT * KT;
    for (int h = 0; h < heads && keys.last >= keys.first; h++)
        zero(x + (h * part_keys(c) + first % CHUNK) * width, (keys.last + 1 - first) * width);
}
static void zero_sums(const struct call *c, const struct sums *w, struct keyrange keys)
{
    const struct loci_plan *p = c->plan;
    zero_keys(c, w->dk, item_key_heads(p), keys, padded(p->score_dim));
    zero_keys(c, w->dv, item_kv_heads(p), keys, padded(p->value_dim));
    EACH_USE(c, x, term) {
        if (term->part) zero(w->part[x], item_heads(p) * term->part(c, x));
        if (w->keys[x]) zero_keys(c, w->keys[x], item_heads(p), keys, key_row(term, c, x));
        for (ptrdiff_t i = 1; w->tiled[x] && i <= item_kv_heads(p) * part_tiles(c); i++)
            w->tiled[x][i * term->tiled(c, x) - 1] = 0;
    }
}
/* Adds the parts of a chunk to those of the item's earlier chunks.  After the last one they are
 * added to the totals together with its block. */
static void add_chunk(const struct call *c, const struct sums *w, bool first, bool last)
{
    EACH_USE(c, x, term) {
        if (!w->all[x] || !c->g.total[x]) continue;
        const ptrdiff_t size = term->part(c, x), added = added_part(c, x);
        const double *before = w->so_far[x];
        double *to = last ? w->all[x] : w->so_far[x];
        for (int h = 0; h < item_heads(c->plan); h++)
            for (ptrdiff_t i = 0; i < added; i++)
                to[h * added + i] =
                    (first ? 0 : before[h * added + i]) + (double)w->part[x][h * size + i];
    }
}

/* Head by head, and all rows within a head: the order in which dK and dV of a group are summed. */
ptrdiff_t N(units_of)(const struct call *c, const struct item *a)
{
    return item_heads(c->plan) / locked(c->plan) * ((a->rows + QT - 1) / QT);
}
static struct item_rows unit_rows(const struct call *c, const struct item *a, ptrdiff_t unit)
{
    const ptrdiff_t tiles = (a->rows + QT - 1) / QT;
    return rows_at(c, a, (int)(unit / tiles) * locked(c->plan), unit % tiles * QT);
}
bool N(sum_unit)(const struct call *c, const struct workspace *d, const struct sums *w,
                 const struct item *item, ptrdiff_t chunk, const struct unit *unit)
{
    const struct item_rows r = unit_rows(c, item, unit->number);
    if (cancelled(c)) return false;
    if (chunk == item->chunks.first && r.chunks.last > r.chunks.first && N(scans)(c) && !chained(c))
        sweep_chunks(c, d->tile, w, &r);
    if (chunk >= r.chunks.first && chunk <= r.chunks.last
        && !backward_rows(c, d->tile, w, &r, chunk, unit))
        return false;
    if (!await(unit, LAST_STAGE)) return false;
    pass(unit, LAST_STAGE);
    return true;
}
void N(open_sums)(const struct call *c, const struct sums *w, const struct item *item,
                  ptrdiff_t chunk)
{
    zero_sums(c, w, keys_in_chunk(item, chunk));
}
void N(close_sums)(const struct call *c, const struct sums *w, const struct item *item,
                   ptrdiff_t chunk)
{
    const struct loci_plan *p = c->plan;
    EACH_USE(c, x, term)
        for (int h = 0; h < item_heads(p) && term->finish && c->g.total[x]; h++)
            term->finish(c, x, item->q, item->row, chunk, w->part[x] + h * term->part(c, x));
    add_chunk(c, w, chunk == item->chunks.first, chunk == item->chunks.last);
}
bool N(sum_item)(const struct call *c, const struct workspace *d, const struct sums *w,
                 const struct item *item, ptrdiff_t chunk)
{
    N(open_sums)(c, w, item, chunk);
    for (struct unit u = { .pipeline = NULL }; u.number < N(units_of)(c, item); u.number++)
        if (!N(sum_unit)(c, d, w, item, chunk, &u)) return false;
    N(close_sums)(c, w, item, chunk);
    return true;
}
bool N(sweep_item)(const struct call *c, const struct workspace *d, const struct sums *w,
                   const struct item *item, ptrdiff_t chunk)
{
    for (ptrdiff_t unit = 0; unit < N(units_of)(c, item); unit++) {
        const struct item_rows r = unit_rows(c, item, unit);
        if (cancelled(c)) return false;
        if (chunk <= r.chunks.first || chunk > r.chunks.last) continue;
        open_backward(c, d->tile, &r);
        for (int i = 0; i < locked(c->plan) && chunk < r.chunks.last; i++)
            save_carries(&d->tile[i], w, slot_of(c, &r, i), chunk, true);
        sweep_chunk(c, d->tile, w, &r, chunk);
    }
    return true;
}
#endif
