/* SPDX-License-Identifier: MIT */
/* decode.c -- the fused pass for a few rows: decode.  The bits are those of forward.c; the order of
 * reading is another.
 *
 * What costs is to read the keys and values, so they are streamed, oldest first, once for all rows
 * that share a kv head:
 *
 *     scores of a whole chunk   K ascending, each 16 x 16 block transposed in registers once for
 *                               all rows, and terms; terms that go from key to key, and sticks,
 *                               tile by tile, newest first
 *     softmax                   all tiles of the chunk at once; only max and sum go from tile to
 *                               tile, newest first
 *     sums of values            V ascending: the sum of a tile is a chain of its own, so the order
 *                               of tiles is free
 *     o = o alpha + sum         newest first
 *
 * Where no term carries anything from key to key, chunks are work items of their own, and their
 * sums join newest first. */
#include "engine/softmax.h"
#include "engine/gemv_stream.h"
#include "engine/workspace.h"

#if QT == 1

/* ---- One chunk of keys, all rows of an item -------------------------------------------------- */

/* The rows of an item, with scores and weights by key and sums of values by tile. */
struct rows {
    struct tile *t;
    int n;                               /* of a group's heads, or of all heads, row by row */
    ptrdiff_t tiles;                     /* of a chunk: as many as decode_tiles() */
    real *s, *p;                         /* [n][tiles][KT] */
    real *alpha, *sums;                  /* [n][tiles], [n][tiles][Dv] */
};
enum { TILES = CHUNK / KT };
/* Row i's numbers of the first tile of a chunk. */
static real *row_of(const struct rows *w, real *numbers, int i)
{
    return numbers + (ptrdiff_t)i * w->tiles * KT;
}

/* Puts row i on tile j, with its share of scores and weights.  Does it see any key of it?
 * Positions that do not run may leave tiles out. */
static bool place_row(const struct rows *w, int i, ptrdiff_t j, ptrdiff_t last)
{
    struct tile *t = &w->t[i];
    const ptrdiff_t at = j % TILES * KT;
    t->s = row_of(w, w->s, i) + at, t->p = row_of(w, w->p, i) + at;
    return set_keys(t, j * KT, last);
}
/* Does this row read the same keys and values as the one before? */
static bool shares(const struct rows *w, int i)
{
    return i > 0 && w->t[i].kvh == w->t[i - 1].kvh && w->t[i].kh == w->t[i - 1].kh;
}

/* Keys or values of a tile as they are stored, or rows of reals where they
 * lie in several pieces. */
static struct source source_of(const struct tile *t, enum side side)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const ptrdiff_t b = t->seq->b, width = side_width(c, side);
    const enum form form = in_place(c) ? REALS : p->dtype == LOCI_BF16 ? BITS_BF16 : BITS_F16;
    /* staged keys are reals, whatever the caller's are */
    if (side == KEYS && c->mem.rotated)
        return (struct source){ .at = (const real *)c->mem.rotated
                                    + ((b * p->key_heads + t->kh) * c->Lk + t->j0) * width,
                                .stride = width };
    if (side == KEYS && c->cache)
        return (struct source){ .at = cache_keys(c->cache, b, t->kvh,
                                                 t->j0 + cache_list(c->cache, c->cache->base)[b]),
                                .form = form,
                                .across = true };
    if (in_one_piece(c, t->j0, t->keys))
        return (struct source){ .at = stored_key(c, side, b, t->kvh, t->j0),
                                .stride = c->cache ? width : side_view(c, side)->row,
                                .form = form };
    real *buffer = side == KEYS ? t->k.buffer : t->v.buffer;
    load_keys(c, side, b, t->kvh, t->j0, t->keys, buffer);
    return (struct source){ .at = buffer, .stride = width };
}
/* Finds the keys of a tile as reals, for a term whose hooks read them.  A term that had them
 * multiplied by a vector of its own has what it wants already. */
static void find_for_terms(const struct rows *w, int x)
{
    const struct term *term = term_of(w->t->c, x);
    const struct tile *found = NULL;
    struct source own;
    real *to;
    for (int i = 0; i < w->n && term->reads_keys; i++) {
        struct tile *t = &w->t[i];
        if (!shares(w, i)) found = NULL;
        if (term->extra_query && term->extra_query(t, x, &own, &to)) continue;
        if (found) t->k.at = found->k.at, t->k.row = found->k.row, t->k.step = found->k.step;
        else find_keys(t), found = t;
    }
}
/* Puts all rows on tile j: does any row see a key of it, and does any not see all?
 * Heads of a row see the same, so on a run they copy what the first has found. */
struct sight { bool some, partial; };
static struct sight place_rows(const struct rows *w, ptrdiff_t j, ptrdiff_t last)
{
    struct sight a = { false, false };
    for (int i = 0; i < w->n; i++) {
        struct tile *t = &w->t[i];
        if (i && !t->listed && t->i0 == t[-1].i0) {
            t->j0 = t[-1].j0, t->keys = t[-1].keys, t->d = t[-1].d, t->partial = t[-1].partial;
            t->s = t[-1].s + w->tiles * KT, t->p = t[-1].p + w->tiles * KT;
        } else {
            a.some |= place_row(w, i, j, last), a.partial |= t->partial;
        }
    }
    for (int i = 0; i < w->n && fading(w->t->c); i++) fade_queries(&w->t[i]);
    return a;
}

/* Rows from the tile's first key on that may be read: up to the last key where all lie in line,
 * else those of the tile. */
static ptrdiff_t rows_from(const struct tile *t, ptrdiff_t j, ptrdiff_t last)
{
    return t->c->mem.rotated || (!t->c->cache && !t->c->in->pages) ? last + 1 - j * KT : t->keys;
}
/* The scores before any term, and what terms want multiplied by the keys, or by vectors of their
 * own.  Vectors are collected as long as rows share their keys, MOST at a time. */
static void score_tiles(const struct rows *w, ptrdiff_t j, ptrdiff_t last)
{
    const struct call *c = w->t->c;
    const int D = c->plan->dim;
    struct dot list[MOST];
    struct source keys = { 0 };
    int n = 0;
    bool first = true;
    for (int i = 0; i < w->n; i++) {
        struct tile *t = &w->t[i];
        if (!shares(w, i))
            keys = source_of(t, KEYS), keys.rest = rows_from(t, j, last), first = true;
        list[n++] = (struct dot){ t->q.across, t->s };
        /* One round more than there are terms: what has been collected goes when the list is full,
         * and after the last row that shares these keys. */
        for (int x = 0; x <= c->plan->uses; x++) {
            const bool end = x == c->plan->uses;
            if (n == MOST || (end && n && (i + 1 == w->n || !shares(w, i + 1))))
                N(dots)(list, n, &keys, D, t->keys, first), n = 0, first = false;
            if (end || !term_of(c, x)->extra_query) continue;
            struct source own = { 0 };
            list[n].with = term_of(c, x)->extra_query(t, x, &own, &list[n].to);
            if (list[n].with && own.at) N(dots)(list + n, 1, &own, D, t->keys, true);
            else if (list[n].with) n++;
        }
    }
}
/* Terms add to the scores.  Keys that a tile lacks get -inf, as the
 * softmax works on whole tiles. */
static void add_to_tiles(const struct rows *w, ptrdiff_t j)
{
    const struct loci_plan *p = w->t->c->plan;
    for (int x = 0; x < p->uses; x++) find_for_terms(w, x);
    for (int i = 0; i < w->n; i++) add_terms(&w->t[i]);
    const int together = locked(p);
    for (int i = 0; i < w->n; i += together) finish_scores(&w->t[i], together);
    for (int i = 0; i < w->n; i++) {
        struct tile *t = &w->t[i];
        real *s = row_of(w, w->s, i) + j % TILES * KT;
        if (p->mix >= 0) {               /* the two changed places */
            memcpy(s, t->s, sizeof(real) * (size_t)t->keys);
            t->a = t->s, t->s = s;
        }
        for (int k = t->keys; k < KT; k++) s[k] = -INFINITY;
    }
}

/* The largest score of every tile.  The max of numbers is the same in any order. */
static void find_most(const real *s, int first, int end, real *most)
{
    real lanes[VL];
    for (int j = first; j < end; j++) {
        vf m = vf_load(s + j * KT);
        UNROLL for (int k = VL; k < KT; k += VL) m = vf_max(m, vf_load(s + j * KT + k));
        vf_store(lanes, vf_most(m));
        most[j] = *lanes;
    }
}
/* Weights of a tile under a base, some vectors at once, so that their chains overlap. */
static void softmax_tile(const real *s, real base, real *p)
{
    enum { AT_ONCE = KT / VL < 8 ? KT / VL : 8 };
    for (int k = 0; k < KT; k += AT_ONCE * VL)
        UNROLL for (int v = 0; v < AT_ONCE; v++)
            vf_store(p + k + v * VL, vf_exp(vf_sub(vf_load(s + k + v * VL), vf_set1(base))));
}
/* The sum of the weights of a tile: one chain over ascending keys, as in softmax.h. */
static real sum_tile(const real *p, int keys)
{
    real sum = 0;
    for (int k = 0; k < keys; k++) sum += p[k];
    return sum;
}
/* The same for VL tiles, which lie in the lanes: worth it where more than FEW of them are there. */
enum { FEW = VL / 4 };
static vf sum_lanes(const real *p)
{
    vf all = vf_set1(0);
    for (int k = 0; k < KT; k += VL) {
        vf x[VL];
        UNROLL for (int i = 0; i < VL; i++) x[i] = vf_load(p + i * KT + k);
        vf_transpose(x);
        UNROLL for (int i = 0; i < VL; i++) all = vf_add(all, x[i]);
    }
    return all;
}
/* The softmax of a row: what softmax.h says of every tile, newest first, step by step for all tiles
 * of the chunk, which has so many keys. */
static void softmax(const struct rows *w, int i, int first, int end, ptrdiff_t keys,
                   const bool *seen)
{
    struct tile *t = &w->t[i];
    real *s = row_of(w, w->s, i), *p = row_of(w, w->p, i), *alpha = w->alpha + i * w->tiles;
    real most[TILES], base[TILES], fall[TILES] = { 0 }, sum[TILES];
    real m = *t->chunk.m, l = *t->chunk.l;
    find_most(s, first, end, most);
    /* Each tile's base is the max of it and of the newer ones, fall what m rises by. */
    for (int j = end - 1; j >= first; j--) {
        if (!seen[j]) continue;
        const real before = m;
        m = max_(m, most[j]);
        base[j] = m == -INFINITY ? 0 : m;
        fall[j] = before - base[j];
    }
    /* Lanes of tiles that nobody saw hold old memory, and their sums are not used. */
    for (int from = first / VL * VL; from < end; from += VL) {
        const int low = from > first ? from : first, high = from + VL < end ? from + VL : end;
        for (int j = low; j < high; j++) {
            const ptrdiff_t left = keys - j * KT;
            if (!seen[j]) continue;
            softmax_tile(s + j * KT, base[j], p + j * KT);
            if (high - low <= FEW) sum[j] = sum_tile(p + j * KT, left < KT ? (int)left : KT);
        }
        if (high - low > FEW) vf_store(sum + from, sum_lanes(p + from * KT));
        vf_store(alpha + from, vf_exp(vf_load(fall + from)));
    }
    for (int j = end - 1; j >= first; j--)
        if (seen[j]) l = fma_(l, alpha[j], sum[j]);
    *t->chunk.m = m, *t->chunk.l = l;
}
/* Weights that a term makes, tile by tile; or, after soften(), what terms make of weights. */
static void tiles_weights(const struct rows *w, ptrdiff_t j, ptrdiff_t last)
{
    const int x = w->t->c->plan->weight;
    for (int i = 0; i < w->n; i++) {
        struct tile *t = &w->t[i];
        real *alpha = &w->alpha[i * w->tiles + j % TILES];
        place_row(w, i, j, last);
        if (x >= 0) weights_of(t->c)->tile_weights(t, x), *alpha = *t->alpha;
        else *t->alpha = *alpha;
        value_tile(t);
    }
}
/* The sums of values of one row, over visible keys only, as others hold numbers that are not
 * finite. */
static void sum_visible(const struct tile *t, int D, real *c)
{
    for (int d = 0; d < D; d++) {
        real sum = 0;
        for (int k = 0; k < t->keys; k++)
            if (visible(t, k, 0)) sum = fma_(t->v.at[k * t->v.row + d], t->p[k], sum);
        c[d] = sum;
    }
}
/* The sums of values of tile j, for all rows.  Only where some row does not see all of it does it
 * matter whether the values are finite. */
static void sum_tiles(const struct rows *w, ptrdiff_t j, ptrdiff_t last, bool partial)
{
    const int Dv = w->t->c->plan->value_dim;
    const ptrdiff_t apart = w->tiles * Dv;
    for (int i = 0, n; i < w->n; i += n) {
        struct tile *t = &w->t[i];
        real *sums = w->sums + i * apart + j % TILES * Dv;
        place_row(w, i, j, last);
        for (n = 1; i + n < w->n && t[n].kvh == t->kvh; n++) {}      /* rows that share values */
        if (partial) find_values(t);
        if (partial && !finite_rows(t->v.at, t->v.row, t->keys, Dv)) {
            for (int s = 0; s < n; s++) {
                place_row(w, i + s, j, last);
                t[s].v.at = t->v.at, t[s].v.row = t->v.row;
                sum_visible(&t[s], Dv, sums + s * apart);
            }
        } else {
            const struct source value = source_of(t, VALUES);
            N(sum_values)(&(struct summing){ &value, Dv, t->keys, t->p, sums,
                                               w->tiles * KT, apart }, n);
        }
    }
}

/* o = o alpha + sum for n vectors of d, tiles newest first. */
INLINE void join_block(const int n, const real *alpha, const real *sums, int D, int first, int end,
                       const bool *seen, real *o)
{
    vf all[4];
    UNROLL for (int v = 0; v < n; v++) all[v] = vf_load(o + v * VL);
    for (int j = end - 1; j >= first; j--) {
        if (!seen[j]) continue;
        UNROLL for (int v = 0; v < n; v++)
            all[v] = vf_fma(all[v], vf_set1(alpha[j]), vf_load(sums + j * D + v * VL));
    }
    UNROLL for (int v = 0; v < n; v++) vf_store(o + v * VL, all[v]);
}
/* The chunk's o of one row, from the sums of its tiles: the same chain as in forward.h. */
static void join_tiles(const struct rows *w, int i, int first, int end, const bool *seen)
{
    const int D = w->t->c->plan->value_dim;
    const real *alpha = w->alpha + i * w->tiles, *sums = w->sums + i * w->tiles * D;
    real *o = w->t[i].chunk.o;
    int d = 0;
    for (; d + 4 * VL <= D; d += 4 * VL) join_block(4, alpha, sums + d, D, first, end, seen, o + d);
    for (; d + VL <= D; d += VL) join_block(1, alpha, sums + d, D, first, end, seen, o + d);
    for (; d < D; d++)
        for (int j = end - 1; j >= first; j--)
            if (seen[j]) o[d] = fma_(o[d], alpha[j], sums[j * D + d]);
}

/* What the terms of a call ask of a chunk.  order: scores of a tile depend on what newer tiles left
 * behind; ends: rows may end before their oldest key; values: terms want weights. */
struct needs { bool order, ends, values; };
static struct needs needs_of(const struct call *c)
{
    struct needs a = { false, false, false };
    EACH_USE(c, x, term) {
        a.order |= term->carry && term->carry(c, x) && x != c->plan->weight;
        a.ends |= term->exhausted && (!term->ends || term->ends(c, x));
        a.values |= term->value != NULL;
    }
    return a;
}

/* Scores, weights and sums of one chunk for all rows of an item.  Rows may end at different keys:
 * each takes part up to its own last one.  Where rows may end early, tiles are scored in groups,
 * newest first, each as long as all before it, those of newer chunks too: at most twice the work
 * that is needed, and still long streams. */
static void chunk_rows(const struct rows *w, const struct keyrange range, ptrdiff_t chunk)
{
    const struct needs needs = needs_of(w->t->c);
    const int weight = w->t->c->plan->weight;
    const int n = w->n;
    const ptrdiff_t last = range.last, base = chunk * TILES;
    const ptrdiff_t end = last / KT < base + TILES - 1 ? last / KT + 1 : base + TILES;
    const ptrdiff_t start = range.first / KT > base ? range.first / KT : base;
    bool see[TILES] = { false }, partial[TILES], exhausted = false;
    ptrdiff_t oldest = end;
    for (int i = 0; i < n; i++) open_chunk(&w->t[i]);
    while (oldest > start && !exhausted) {
        const ptrdiff_t newer = last / KT + 1 - oldest, high = oldest;
        ptrdiff_t size = TILES;
        if (needs.ends && newer <= TILES) size = newer ? newer : 1;
        const ptrdiff_t low = high - size > start ? high - size : start;
        for (ptrdiff_t j = low; j < high; j++) {
            const struct sight a = place_rows(w, j, last);
            see[j - base] = a.some, partial[j - base] = a.partial;
            if (!a.some) continue;
            score_tiles(w, j, last);
            if (!needs.order) add_to_tiles(w, j);
        }
        /* what goes from tile to tile */
        const bool again = needs.order || needs.ends || weight >= 0;
        for (ptrdiff_t j = high - 1; j >= low; j--) {
            if (see[j - base] && again) {
                place_rows(w, j, last);
                exhausted = needs.ends && all_exhausted(w->t, n);
                if (exhausted) break;
                if (needs.order) add_to_tiles(w, j);
                if (weight >= 0) tiles_weights(w, j, last);
            }
            oldest = j;
        }
    }
    if (weight < 0) {
        for (int i = 0; i < n; i++)
            softmax(w, i, (int)(oldest - base), (int)(end - base), last + 1 - base * KT, see);
        for (ptrdiff_t j = end - 1; j >= oldest && needs.values; j--)
            if (see[j - base]) tiles_weights(w, j, last);
    }
    for (ptrdiff_t j = oldest; j < end; j++)
        if (see[j - base]) sum_tiles(w, j, last, partial[j - base]);
    for (int i = 0; i < n; i++) join_tiles(w, i, (int)(oldest - base), (int)(end - base), see);
}

/* ---- Work items ------------------------------------------------------------------------------ */

/* An item has the rows of one sequence and one kv head (or, with a mix, all heads), and one chunk
 * of keys or all.  What a chunk leaves for the join is m, l, o and the terms' sums. */
struct pass {
    struct call *c;
    /* chunks > 1: items are chunks, joined in a second round */
    ptrdiff_t items, chunks;
    int groups;
    bool apart, joining;                 /* chunks are items of their own; and are joined now */
    atomic_llong next;
    atomic_bool stop;
};

/* Reals that a chunk leaves, per row. */
ptrdiff_t N(chunk_reals)(const struct call *c)
{
    ptrdiff_t n = 2 + c->plan->value_dim;
    EACH_USE(c, x, term) n += term->out ? term->out(c, x) : 0;
    return n;
}
/* Does a row have to walk its chunks one after the other?  One chunk is no choice,
 * and packed sequences are items enough. */
bool N(decode_in_turn)(const struct call *c)
{
    if ((c->seqs.longest <= CHUNK && !c->stream.part.state) || packed(c) || c->stream.run_count > 1)
        return true;
    EACH_USE(c, x, term) {
        ptrdiff_t first;
        if (term->carry && term->carry(c, x)) return true;
        if (term->part_state && term->part_state(c, x, &first)) return true;
        /* what it found in the weights may lie in its memory until close() */
        if (term->value && term->mem) return true;
    }
    return false;
}

/* Copies what a chunk leaves to c->mem.chunk_sums, or back from there. */
static void save_chunk(struct tile *t, real *to, bool back)
{
    real *block[3 + MAX_USES] = { t->chunk.m, t->chunk.l, t->chunk.o };
    int size[3 + MAX_USES] = { 1, 1, t->c->plan->value_dim }, n = 3;
    for (int x = 0; x < t->c->plan->uses; x++) block[n] = t->own[x].out, size[n++] = t->own[x].outn;
    for (int i = 0; i < n; to += size[i++]) {
        if (back) memcpy(block[i], to, sizeof(real) * (size_t)size[i]);
        else memcpy(to, block[i], sizeof(real) * (size_t)size[i]);
    }
}

/* The number of a row's slot in struct part. */
static size_t slot_of(const struct call *c, const struct tile *t)
{
    return (size_t)((t->seq->b * c->Lq + t->i0) * c->plan->heads + t->h);
}

/* Three ways of one item: all chunks, newest first; one chunk, whose sums are stored; and, when
 * joining, all chunks from what was stored.  A chunk's sums are the same whoever made them, so the
 * three give the same bits. */
static void decode_item(const struct pass *a, const struct workspace *d, const struct sequence *q,
                     int group, ptrdiff_t item, ptrdiff_t chunk)
{
    struct call *c = a->c;
    const struct loci_plan *p = c->plan;
    const int heads = item_heads(p), first = group * heads, n = (int)q->nq * heads;
    const struct keyrange range = present_of(c, keys_of(c, q, 0, (int)q->nq));
    const struct part *part = c->stream.part.state ? &c->stream.part : NULL;
    const ptrdiff_t base = part ? c->stream.first / CHUNK : 0;      /* chunk of the first key */

    const struct rows w = { .t = d->tile, .n = n, .tiles = decode_tiles(c), .s = d->chunk.s,
                            .p = d->chunk.p, .alpha = d->chunk.alpha, .sums = d->chunk.sums };
    const ptrdiff_t newest = range.last >= range.first ? range.last / CHUNK : -1,
                    oldest = range.first / CHUNK;
    const ptrdiff_t reals = N(chunk_reals)(c);
    if (a->apart && !a->joining && (chunk > newest || chunk < oldest)) return;
    for (int i = 0; i < n; i++) {
        struct tile *t = &w.t[i];
        open_rows(t, q, first + i % heads, i / heads, 1);
        t->all = &w.t[i / heads * heads], t->tiles = locked(p);
        open_total(t);
        if (part && !part->opens && part->step != PART_SUM)
            N(save_part)(t, part->state + slot_of(c, t) * part->slot, true);
    }
    for (ptrdiff_t k = newest; k >= oldest && k >= 0; k--) {
        if (a->apart && !a->joining) k = chunk;          /* and return after it */
        if (!a->joining) chunk_rows(&w, range, k);
        for (int i = 0; i < n; i++) {
            real *saved = a->apart
                            ? (real *)c->mem.chunk_sums
                                  + ((item * a->chunks + k - base) * decode_rows(c) + i) * reals
                            : NULL;
            if (a->apart) save_chunk(&w.t[i], saved, a->joining);
            if (a->apart && !a->joining) continue;
            if (p->weight >= 0) weights_of(c)->join(&w.t[i], p->weight);
            else softmax_join(&w.t[i]);
        }
        if (a->apart && !a->joining) return;
    }
    for (int i = 0; i < n; i++) {
        struct tile *t = &w.t[i];
        if (!part || part->closes) close_rows(t);
        else find_lost(t), N(save_part)(t, part->state + slot_of(c, t) * part->slot, false);
    }
}

static void decode_job(void *arg, int index)
{
    struct pass *a = arg;
    struct call *c = a->c;
    const struct workspace d = N(workspace_of)(c, index, NULL);
    const ptrdiff_t per = a->joining ? 1 : a->chunks,
                    first = c->stream.part.state ? c->stream.first / CHUNK : 0;
    for (ptrdiff_t i; (i = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < a->items * per
                      && !atomic_load(&a->stop);) {
        if (cancelled(c)) {
            atomic_store(&a->stop, true);
            return;
        }
        const ptrdiff_t item = i / per;
        const struct sequence *q = &c->seqs.list[item / a->groups];
        if (q->nq) decode_item(a, &d, q, (int)(item % a->groups), item, first + i % per);
    }
}

/* Few rows make few items, so where chunks may go apart they are items of their own. */
loci_status N(forward)(struct call *c)
{
    struct pass a = { .c = c, .groups = c->plan->heads / item_heads(c->plan), .chunks = 1 };
    a.items = c->seqs.n * a.groups;
    a.apart = !N(decode_in_turn)(c);
    if (a.apart) a.chunks = chunks_there(c);
    atomic_init(&a.next, 0);
    atomic_init(&a.stop, false);
    if (c->stream.part.step == PART_SUM && !a.apart) return LOCI_OK;
    if (c->stream.part.step != PART_JOIN || !a.apart) N(run)(c, c->threads, decode_job, &a);
    if (a.apart && c->stream.part.step != PART_SUM) {
        a.joining = true;
        atomic_store(&a.next, 0);
        N(run)(c, c->threads, decode_job, &a);
    }
    return atomic_load(&a.stop) ? LOCI_CANCELLED : LOCI_OK;
}
#endif
