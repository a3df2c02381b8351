/* SPDX-License-Identifier: MIT */
/* decode_scores.h -- decode: the scores of the tiles of a chunk, for all rows of an item.  Keys are
 * streamed in ascending order and read once for all rows that share them; then terms add. */
#ifndef LOCI_ENGINE_DECODE_SCORES_H
#define LOCI_ENGINE_DECODE_SCORES_H

#include "engine/gemv_stream.h"
#include "engine/workspace.h"

/* The rows of an item, with scores and weights by key and sums of values by tile. */
struct row_set {
    struct tile *t;
    int n;              /* of a group's heads, or of all heads, row by row; sequence by sequence */
    ptrdiff_t tiles;    /* of a chunk: as many as decode_tiles() */
    ptrdiff_t stride;   /* decode_stride() */
    ptrdiff_t held;     /* decode_sums() */
    real *s, *p;        /* [n][stride] */
    real *alpha, *sums; /* [n][tiles], [n][held][Dv] */
    real *lines;        /* struct chunk */
};
enum { TILES = CHUNK / KT };
/* Many rows share their keys: they read tiles newest first, few in the order of memory. */
static bool many(const struct row_set *w) { return w->held == 1; }
/* Row i's numbers of the first tile of a chunk. */
static real *row_of(const struct row_set *w, real *numbers, int i)
{
    return numbers + i * w->stride;
}

/* How many keys tile j of a row's sequence has; 0 if the sequence ends before it. */
static ptrdiff_t keys_on(const struct tile *t, ptrdiff_t j)
{
    const ptrdiff_t left = t->until + 1 - j * KT;
    return left < 0 ? 0 : left < KT ? left : KT;
}
/* Puts row i on tile j, with its share of scores and weights.  Does it see any key of it?
 * Positions that do not run may leave tiles out. */
static bool place_row(const struct row_set *w, int i, ptrdiff_t j)
{
    struct tile *t = &w->t[i];
    const ptrdiff_t at = j % TILES * KT;
    t->s = row_of(w, w->s, i) + at;
    t->p = row_of(w, w->p, i) + at;
    if (keys_on(t, j)) return set_keys(t, j * KT, t->until);
    t->j0 = t->seq->k0 + j * KT;
    t->keys = 0;
    return false;
}
/* Is tile j of two sequences the same memory?  Both have all of it, or end at the same key. */
static bool same_tile(const struct tile *a, const struct tile *b, ptrdiff_t j)
{
    const struct call *c = a->c;
    const loci_pages *p = c->in->pages;
    const ptrdiff_t keys = keys_on(a, j);
    if (!keys || keys != keys_on(b, j)) return false;
    if (c->cache) {
        const ptrdiff_t slot = j % (ptrdiff_t)c->cache->form.tiles;
        return cache_owner(c->cache, a->seq->b, slot) == cache_owner(c->cache, b->seq->b, slot);
    }
    for (ptrdiff_t page = j * KT / p->length; page <= (j * KT + keys - 1) / p->length; page++)
        if (p->table[a->seq->b * p->entry + page] != p->table[b->seq->b * p->entry + page])
            return false;
    return true;
}
/* Does this row read the same keys and values of tile j as the one before? */
static bool shares(const struct row_set *w, int i, ptrdiff_t j)
{
    if (!i || w->t[i].kvh != w->t[i - 1].kvh || w->t[i].kh != w->t[i - 1].kh) return false;
    return w->t[i].seq == w->t[i - 1].seq || same_tile(&w->t[i - 1], &w->t[i], j);
}
/* The same for values alone, which key heads may share. */
static bool shares_values(const struct row_set *w, int i, ptrdiff_t j)
{
    if (w->t[i].seq != w->t[i - 1].seq) return shares(w, i, j);
    return w->t[i].kvh == w->t[i - 1].kvh;
}

/* Keys or values of a tile as they are stored, or rows of reals where they
 * lie in several pieces. */
static struct source source_of(struct tile *t, enum side side)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const ptrdiff_t b = t->seq->b, width = side_width(c, side);
    const enum form form = form_of(side_dtype(c, side));
    /* staged keys are reals, whatever the caller's are */
    if (side == KEYS && staged(t))
        return (struct source){ .at = (const real *)c->mem.rotated
                                    + ((b * p->key_heads + t->kh) * c->Lk + t->j0) * p->score_dim,
                                .stride = p->score_dim };
    if (side == VALUES && c->mem.turned)
        return (struct source){ .at = turned_value(c, b, t->kvh, t->j0), .stride = width };
    if (side == KEYS && rotate_late(t))
        return (struct source){ .at = t->k.buffer, .stride = p->score_dim };
    if (c->cache) {
        const ptrdiff_t at = t->j0 + cache_list(c->cache, c->cache->base)[b];
        const bool across = side == KEYS && keys_across(c);
        char *tile = side == KEYS ? cache_keys(c->cache, b, t->kvh, at)
                                  : cache_values(c->cache, b, t->kvh, at);
        const ptrdiff_t row = across ? width : cached_row_width(c->cache);
        struct source own = { .at = tile, .stride = row, .form = form, .across = across };
        if (form == BLOCKS_Q8) {
            own.form = WHOLE_Q8;
            own.at = cached_whole(tile, row);
            own.scales = cached_scales(tile, 0);
        }
        return own;
    }
    if (in_one_piece(c, t->j0, t->keys))
        return (struct source){ .at = stored_key(c, side, b, t->kvh, t->j0),
                                .stride = side_view(c, side)->row,
                                .form = form };
    real *buffer = side == KEYS ? t->k.buffer : t->v.buffer;
    load_keys(c, side, b, t->kvh, t->j0, t->keys, buffer, width);
    return (struct source){ .at = buffer, .stride = width };
}
/* Finds the keys of a tile as reals, for a term whose hooks read them.  A term that had them
 * multiplied by a vector of its own has what it wants already. */
static void find_for_terms(const struct row_set *w, ptrdiff_t j, int x)
{
    const struct term *term = term_of(w->t->c, x);
    const struct tile *found = NULL;
    struct source own;
    real *to;
    for (int i = 0; i < w->n && term->reads_keys; i++) {
        struct tile *t = &w->t[i];
        if (!shares(w, i, j)) found = NULL;
        if (term->extra_query && term->extra_query(t, x, &own, &to)) continue;
        if (found) {
            t->k.at = found->k.at;
            t->k.row = found->k.row;
            t->k.step = found->k.step;
        } else {
            find_keys(t);
            found = t;
        }
    }
}
/* Puts all rows on tile j: does any row see a key of it, and does any not see all?
 * Heads of a row see the same, so on a run they copy what the first has found. */
struct sight {
    bool some, partial;
};
static struct sight place_rows(const struct row_set *w, ptrdiff_t j)
{
    struct sight a = { false, false };
    for (int i = 0; i < w->n; i++) {
        struct tile *t = &w->t[i];
        if (i && !t->listed && t->i0 == t[-1].i0 && t->seq == t[-1].seq) {
            t->j0 = t[-1].j0;
            t->keys = t[-1].keys;
            t->d = t[-1].d;
            t->partial = t[-1].partial;
            t->cut = t[-1].cut;
            t->s = t[-1].s + w->stride;
            t->p = t[-1].p + w->stride;
        } else {
            const bool sees = place_row(w, i, j);
            a.some |= sees;
            a.partial |= t->keys && t->partial;
        }
    }
    for (int i = 0; i < w->n && fading(w->t->c); i++) fade_queries(&w->t[i]);
    return a;
}

/* Rows from the tile's first key on that may be read: up to the last key where all lie in line,
 * else those of the tile. */
static ptrdiff_t rows_from(const struct tile *t, ptrdiff_t j)
{
    if (rotates_late(t->c) && !reads_still(t)) return t->keys;
    return staged(t) || (!t->c->cache && !t->c->in->pages) ? t->until + 1 - j * KT : t->keys;
}
/* The keys of tile j, which no row has read yet. */
static struct source keys_to_read(const struct row_set *w, struct tile *t, ptrdiff_t j)
{
    struct source keys = source_of(t, KEYS);
    keys.rest = rows_from(t, j);
    keys.next = many(w) ? -1 : 1;
    keys.prefetch_streams = t->c->plan->prefetch_streams;
    return keys;
}
/* The scores of rows and keys with several forms, class by class; then every pair of a tile with
 * several classes gets its own. */
static void score_classes(const struct row_set *w, ptrdiff_t j)
{
    const struct call *c = w->t->c;
    for (int class = 0; class < c->plan->row_forms; class ++) {
        struct dot list[MOST];
        struct source keys = { 0 };
        const struct tile *before = NULL;
        bool first = true;
        int n = 0;
        for (int i = 0; i < w->n; i++) {
            struct tile *t = &w->t[i];
            const struct classes a = classes_of(t);
            if (class < a.least || class > a.most) continue;
            use_form(t, class);
            const bool shared = before && before->kvh == t->kvh && before->kh == t->kh;
            if (n && (n == MOST || !shared)) {
                N(dots)(list, n, &keys, c->plan->score_dim, t->keys, first);
                n = 0;
                first = false;
            }
            if (!shared) {
                keys = keys_to_read(w, t, j);
                first = true;
            }
            list[n++] = (struct dot){ t->q.across, class == a.least ? t->s : t->of_class };
            before = t;
        }
        if (n) N(dots)(list, n, &keys, c->plan->score_dim, before->keys, first);
        for (int i = 0; i < w->n; i++) {
            struct tile *t = &w->t[i];
            const struct classes a = classes_of(t);
            uint64_t later[KT];
            use_form(t, 0);
            if (class <= a.least || class > a.most) continue;
            later_rows(t, class, later);
            take_rows(t, later, t->of_class, t->s);
        }
    }
}
/* The scores before any term, and what terms want multiplied by the keys, or by vectors of their
 * own.  Vectors are collected as long as rows share their keys, MOST at a time. */
static void score_tiles(const struct row_set *w, ptrdiff_t j)
{
    const struct call *c = w->t->c;
    const int D = c->plan->score_dim;
    if (c->plan->row_forms > 1) {
        score_classes(w, j);
        return;
    }
    struct dot list[MOST];
    struct source keys = { 0 };
    int n = 0;
    bool first = true;
    for (int i = 0; i < w->n; i++) {
        struct tile *t = &w->t[i];
        if (!t->keys) continue;
        if (!shares(w, i, j)) {
            keys = keys_to_read(w, t, j);
            first = true;
        }
        list[n++] = (struct dot){ t->q.across, t->s };
        /* One round more than there are terms: what has been collected goes when the list is full,
         * and after the last row that shares these keys. */
        for (int x = 0; x <= c->plan->uses; x++) {
            const bool end = x == c->plan->uses;
            if (n == MOST || (end && n && (i + 1 == w->n || !shares(w, i + 1, j)))) {
                /* Each read of rows transposes them in registers, so many rows do it once. */
                if (first && w->lines && !keys.across) {
                    keys = N(dots_to_lines)(list, n, &keys, D, t->keys, w->lines);
                } else {
                    N(dots)(list, n, &keys, D, t->keys, first);
                    keys.beside = NULL;
                }
                n = 0;
                first = false;
            }
            if (end || !term_of(c, x)->extra_query) continue;
            struct source own = { 0 };
            list[n].with = term_of(c, x)->extra_query(t, x, &own, &list[n].to);
            if (list[n].with && own.at) N(dots)(list + n, 1, &own, D, t->keys, true);
            else if (list[n].with) n++;
        }
    }
}
/* The scores of rows that change on their walk, and their step over a tile. */
static void score_moved(const struct row_set *w, ptrdiff_t j)
{
    const struct call *c = w->t->c;
    const struct moves *moves = moves_of(c);
    const int x = c->plan->moves;
    bool products = false;
    for (int i = 0; i < w->n; i++) products |= moves->owners(&w->t[i], x) != ALL_ROWS;
    if (products) score_tiles(w, j);
    for (int i = 0; i < w->n; i++)
        if (moves->owners(&w->t[i], x) != NO_ROWS) moves->scores(&w->t[i], x);
}
static void step_all(const struct row_set *w, ptrdiff_t j)
{
    for (int i = 0; i < w->n; i++) place_row(w, i, j);
    step_rows(w->t, w->n);
}
/* Terms add to the scores.  Keys that a tile lacks get -inf, as the
 * softmax works on whole tiles. */
static void add_to_tiles(const struct row_set *w, ptrdiff_t j)
{
    const struct loci_plan *p = w->t->c->plan;
    for (int x = 0; x < p->uses; x++) find_for_terms(w, j, x);
    for (int i = 0; i < w->n; i++)
        if (w->t[i].keys) add_terms(&w->t[i]);
    const int together = locked(p);
    for (int i = 0; i < w->n; i += together)
        if (w->t[i].keys) finish_scores(&w->t[i], together);
    for (int i = 0; i < w->n; i++) {
        struct tile *t = &w->t[i];
        if (!t->keys) continue;
        real *s = row_of(w, w->s, i) + j % TILES * KT;
        if (p->mix >= 0) { /* the two changed places */
            memcpy(s, t->s, sizeof(real) * (size_t)t->keys);
            t->a = t->s;
            t->s = s;
        }
        for (int k = t->keys; k < KT; k++) s[k] = -INFINITY;
    }
}

#endif
