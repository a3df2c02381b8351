/* SPDX-License-Identifier: MIT */
/* decode.c -- the fused pass for a few rows: decode.  The bits are those of forward.c; the order of
 * reading is another.
 *
 * What costs is to read the keys and values, so they are streamed, oldest first, once for all rows
 * that share a kv head and a thread:
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
 * Where many rows share their keys, arithmetic costs more than reading.  Then a chunk is read in
 * groups of tiles, newest first: scores, softmax and sums of one group before those of the next.
 *
 * Where no term carries anything from key to key, chunks are work items of their own, and their
 * sums join newest first.  decode_scores.h and decode_weights.h have the steps of a chunk. */
#include "engine/workspace.h"

#if QT == 1
#include "engine/decode_weights.h"

/* ---- One chunk of keys, all rows of an item -------------------------------------------------- */

/* What the terms of a call ask of a chunk.  order: scores of a tile depend on what newer tiles left
 * behind; ends: rows may end before their oldest key; values: terms want weights. */
struct needs {
    bool order, ends, values;
};
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

/* The end of a row's own tiles in a chunk, counted from its first one. */
static int own_end(const struct tile *t, ptrdiff_t base, ptrdiff_t end)
{
    const ptrdiff_t own = t->until / KT + 1;
    return (int)((own < end ? own : end) - base);
}
/* A chunk of keys on its way: its tiles from base on, of which rows see some, and some rows see
 * only a part of some. */
struct walk {
    const struct row_set *w;
    struct needs needs;
    ptrdiff_t base, end;
    bool see[TILES], partial[TILES];
};
/* Scores of the tiles from low to high.  Returns the oldest of them that any row still sees: where
 * all are exhausted it is newer than low. */
static ptrdiff_t score_group(struct walk *a, ptrdiff_t low, ptrdiff_t high)
{
    const struct row_set *w = a->w;
    const bool moves = w->t->c->plan->moves >= 0, weighs = w->t->c->plan->weight >= 0;
    for (ptrdiff_t i = low; i < high; i++) {
        const ptrdiff_t j = many(w) ? high - 1 - (i - low) : i;
        const struct sight sight = place_rows(w, j);
        a->see[j - a->base] = sight.some;
        a->partial[j - a->base] = sight.partial;
        if (!sight.some || moves) continue;
        score_tiles(w, j);
        if (!a->needs.order) add_to_tiles(w, j);
    }
    /* what goes from tile to tile */
    const bool again = a->needs.order || a->needs.ends || weighs;
    for (ptrdiff_t j = high - 1; j >= low; j--) {
        if (a->see[j - a->base] && again) {
            place_rows(w, j);
            if (a->needs.ends && all_exhausted(w->t, w->n)) return j + 1;
            if (moves) score_moved(w, j);
            if (a->needs.order) add_to_tiles(w, j);
            if (weighs) tiles_weights(w, j);
        }
        if (moves) step_all(w, j);
    }
    return low;
}
/* Weights of these tiles, from their scores, and what terms make of weights. */
static void weigh_group(const struct walk *a, ptrdiff_t low, ptrdiff_t high)
{
    const struct row_set *w = a->w;
    if (w->t->c->plan->weight >= 0) return;
    for (int i = 0; i < w->n; i++) {
        const struct tile *t = &w->t[i];
        softmax(w, i, (int)(low - a->base), own_end(t, a->base, high), t->until + 1 - a->base * KT,
                a->see);
    }
    for (ptrdiff_t j = high - 1; j >= low && a->needs.values; j--)
        if (a->see[j - a->base]) tiles_weights(w, j);
}
/* Sums of the values of these tiles.  Few rows wait for memory, so all values are read as one
 * stream, and the sums of tiles join after it.  Many rows are bound by arithmetic, and the sums of
 * a tile join at once. */
static void sum_group(const struct walk *a, ptrdiff_t low, ptrdiff_t high)
{
    const struct row_set *w = a->w;
    for (ptrdiff_t k = low; k < high; k++) {
        const ptrdiff_t j = many(w) ? high - 1 - (k - low) : k;
        const int at = (int)(j - a->base);
        if (!a->see[at]) continue;
        sum_tiles(w, j, a->partial[at]);
        for (int i = 0; i < w->n && many(w); i++)
            if (at < own_end(&w->t[i], a->base, a->end)) join_tiles(w, i, at, at + 1, a->see);
    }
    for (int i = 0; i < w->n && !many(w); i++)
        join_tiles(w, i, (int)(low - a->base), own_end(&w->t[i], a->base, high), a->see);
}
/* Scores, weights and sums of one chunk for all rows of an item, in groups of tiles, newest first.
 * Rows may end at different keys: each takes part up to its own last one.  Few rows take the chunk
 * as one group.  Where rows may end early, a group is as long as all before it, those of newer
 * chunks too: at most twice the work that is needed, and still long streams.  Many rows take
 * AT_ONCE tiles, whose keys are still near when their values are read: they may be the same. */
enum { AT_ONCE = 8 };
static void chunk_rows(const struct row_set *w, const struct keyrange range, ptrdiff_t chunk)
{
    const ptrdiff_t last = range.last, base = chunk * TILES;
    const ptrdiff_t end = last / KT < base + TILES - 1 ? last / KT + 1 : base + TILES;
    const ptrdiff_t start = range.first / KT > base ? range.first / KT : base;
    struct walk a = { .w = w, .needs = needs_of(w->t->c), .base = base, .end = end };
    ptrdiff_t oldest = end, low = end;
    for (int i = 0; i < w->n; i++) {
        open_chunk(&w->t[i]);
        set_values(&w->t[i], &w->t[i].chunk);
    }
    while (low > start && oldest == low) {
        const ptrdiff_t newer = last / KT + 1 - low, high = low;
        ptrdiff_t size = many(w) ? AT_ONCE : TILES;
        if (a.needs.ends && newer <= size) size = newer ? newer : 1;
        low = high - size > start ? high - size : start;
        oldest = score_group(&a, low, high);
        weigh_group(&a, oldest, high);
        if (many(w)) sum_group(&a, oldest, high);
    }
    /* rows of an exhausted chunk go on through its keys */
    for (ptrdiff_t j = oldest - 1; j >= start && w->t->c->plan->moves >= 0; j--) step_all(w, j);
    if (!many(w)) sum_group(&a, oldest, end);
}

/* ---- Work items ------------------------------------------------------------------------------ */

/* An item has the rows of one sequence and one kv head (or, with a mix, all heads), and one chunk
 * of keys or all.  What a chunk leaves for the join is m, l, o and the terms' sums. */
struct decode_pass {
    struct call *c;
    /* chunks > 1: items are chunks, joined in a second round */
    ptrdiff_t items, chunks;
    int groups, shares;  /* shares: jobs among which the rows of an item are divided */
    bool apart, joining; /* chunks are items of their own; and are joined now */
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
    for (int x = 0; x < t->c->plan->uses; x++) {
        block[n] = t->own[x].out;
        size[n++] = t->own[x].outn;
    }
    for (int i = 0; i < n; to += size[i++]) {
        if (back) memcpy(block[i], to, sizeof(real) * (size_t)size[i]);
        else memcpy(to, block[i], sizeof(real) * (size_t)size[i]);
    }
    t->chunk.empty = false;
}

/* The number of a row's slot in struct part. */
static size_t slot_of(const struct call *c, const struct tile *t)
{
    return (size_t)((t->seq->b * c->Lq + t->i0) * c->plan->heads + t->h);
}

/* The keys that any row of an item may see: rows of a sequence, and of others with which it shares
 * tiles. */
static struct keyrange keys_of_item(const struct call *c, const struct sequence *q)
{
    struct keyrange all = { PTRDIFF_MAX, -1 };
    for (const struct sequence *s = q; s < q + q->together; s++) {
        const struct keyrange own = present_of(c, keys_of(c, s, 0, (int)s->nq));
        if (own.last < own.first) continue;
        if (own.first < all.first) all.first = own.first;
        if (own.last > all.last) all.last = own.last;
    }
    return all;
}
/* The rows of the sequences that are computed together, of a kv head. */
static ptrdiff_t rows_together(const struct call *c, const struct sequence *q)
{
    ptrdiff_t rows = 0;
    for (const struct sequence *s = q; s < q + q->together; s++) rows += s->nq;
    return rows * item_heads(c->plan);
}
/* Opens the rows of a share of an item. */
static void open_item(struct row_set *w, const struct decode_pass *a, const struct sequence *q,
                      int group, int share)
{
    const struct call *c = a->c;
    const int heads = item_heads(c->plan);
    const ptrdiff_t rows = rows_together(c, q), first = rows * share / a->shares,
                    end = rows * (share + 1) / a->shares;
    ptrdiff_t row = 0;
    w->n = 0;
    for (const struct sequence *s = q; s < q + q->together; s++) {
        const ptrdiff_t last = present_of(c, keys_of(c, s, 0, (int)s->nq)).last;
        for (int i = 0; i < s->nq * heads; i++, row++) {
            if (row < first || row >= end) continue;
            struct tile *t = &w->t[w->n++];
            open_rows(t, s, group * heads + i % heads, i / heads, 1);
            t->until = last;
            open_total(t);
            set_values(t, &t->total);
        }
    }
}
/* Where an item leaves the sums of a chunk of a row: with those of the row's own sequence. */
static real *chunk_sums_of(const struct decode_pass *a, const struct tile *t, ptrdiff_t chunk)
{
    const struct call *c = a->c;
    const int heads = item_heads(c->plan);
    const ptrdiff_t item = (t->seq - c->seqs.list) * a->groups + t->h / heads,
                    row = (t->i0 - t->seq->q0) * heads + t->h % heads;
    return (real *)c->mem.chunk_sums
         + ((item * a->chunks + chunk) * decode_rows(c) + row) * N(chunk_reals)(c);
}
/* Three ways of one item: all chunks, newest first; one chunk, whose sums are stored; and, when
 * joining, all chunks from what was stored.  A chunk's sums are the same whoever made them, so the
 * three give the same bits. */
static void decode_item(const struct decode_pass *a, const struct workspace *d,
                        const struct sequence *q, int group, ptrdiff_t chunk, int share)
{
    struct call *c = a->c;
    const struct loci_plan *p = c->plan;
    const struct part *part = c->stream.part.state ? &c->stream.part : NULL;
    const ptrdiff_t base = part ? c->stream.first / CHUNK : 0; /* chunk of the first key */
    struct row_set w = {
        .t = d->tile,
        .tiles = decode_tiles(c),
        .stride = decode_stride(c),
        .held = decode_sums(c),
        .s = d->chunk.s,
        .p = d->chunk.p,
        .alpha = d->chunk.alpha,
        .sums = d->chunk.sums,
        .lines = d->chunk.lines,
    };
    const struct keyrange range = keys_of_item(c, q);
    const ptrdiff_t newest = range.last >= range.first ? range.last / CHUNK : -1,
                    oldest = range.first / CHUNK;
    if (a->apart && !a->joining && (chunk > newest || chunk < oldest)) return;
    open_item(&w, a, q, group, share);
    if (!w.n) return;
    for (int i = 0; i < w.n && part && !part->opens && part->step != PART_SUM; i++)
        N(save_part)(&w.t[i], part->state + slot_of(c, &w.t[i]) * part->slot, true);
    for (ptrdiff_t k = newest; k >= oldest && k >= 0; k--) {
        if (a->apart && !a->joining) k = chunk; /* and return after it */
        if (!a->joining) chunk_rows(&w, range, k);
        for (int i = 0; i < w.n; i++) {
            struct tile *t = &w.t[i];
            if (a->apart) save_chunk(t, chunk_sums_of(a, t, k - base), a->joining);
            if (a->apart && !a->joining) continue;
            if (p->weight >= 0) weights_of(c)->join(t, p->weight);
            else softmax_join(t);
        }
        if (a->apart && !a->joining) return;
    }
    for (int i = 0; i < w.n; i++) {
        struct tile *t = &w.t[i];
        if (!part || part->closes) close_rows(t);
        else {
            find_lost(t);
            N(save_part)(t, part->state + slot_of(c, t) * part->slot, false);
        }
    }
}

/* Does a sequence share the oldest tile of both that any of their rows sees?  Then it probably
 * shares more. */
static bool meets(const struct call *c, const struct sequence *q, const struct sequence *s)
{
    const struct keyrange a = keys_of(c, q, 0, (int)q->nq), b = keys_of(c, s, 0, (int)s->nq);
    const struct tile of_a = { .c = c, .seq = q, .until = a.last },
                      of_b = { .c = c, .seq = s, .until = b.last };
    return same_tile(&of_a, &of_b, (a.first > b.first ? a.first : b.first) / KT);
}
/* Finds which neighbours are computed together, as many as fit into an item. */
static void group_sequences(struct call *c)
{
    const ptrdiff_t rows = item_rows(c);
    const bool may = computes_together(c);
    const int heads = item_heads(c->plan);
    struct sequence *list = c->seqs.list;
    for (ptrdiff_t s = 0, n; s < c->seqs.n; s += n) {
        ptrdiff_t all = list[s].nq * heads;
        for (n = 1; may && list[s].nq && s + n < c->seqs.n; n++) {
            const struct sequence *q = &list[s + n];
            all += q->nq * heads;
            if (all > rows || !q->nq || !meets(c, &list[s], q)) break;
            list[s + n].together = 0;
        }
        list[s].together = n;
    }
}

static void decode_job(void *arg, int index)
{
    struct decode_pass *a = arg;
    struct call *c = a->c;
    const struct workspace d = N(workspace_of)(c, index, NULL);
    const ptrdiff_t per = a->joining ? 1 : a->chunks,
                    first = c->stream.part.state ? c->stream.first / CHUNK : 0;
    for (ptrdiff_t i; (i = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < a->items * per * a->shares
                      && !atomic_load(&a->stop);) {
        if (cancelled(c)) {
            atomic_store(&a->stop, true);
            return;
        }
        const ptrdiff_t at = i / a->shares, item = at / per;
        const struct sequence *q = &c->seqs.list[item / a->groups];
        if (q->nq && q->together)
            decode_item(a, &d, q, (int)(item % a->groups), first + at % per, (int)(i % a->shares));
    }
}

/* Where there are fewer items than threads, several share the rows of one.  Each reads all keys, so
 * it wants enough rows to be bound by arithmetic.  The heads of a row of cape mix, and rows of wall
 * and path share work on their keys. */
enum { LEAST_ROWS = 4 };
static int shares_of(const struct decode_pass *a)
{
    const struct call *c = a->c;
    const struct sequence *end = c->seqs.list + c->seqs.n;
    ptrdiff_t items = 0, fewest = PTRDIFF_MAX;
    for (const struct sequence *q = c->seqs.list; q < end; q += q->together) {
        const ptrdiff_t rows = rows_together(c, q);
        if (!rows) continue;
        items += a->groups * a->chunks;
        fewest = rows < fewest ? rows : fewest;
    }
    if (!items || locked(c->plan) > 1 || c->plan->moves >= 0) return 1;
    const ptrdiff_t wanted = (c->threads + items - 1) / items, most = fewest / LEAST_ROWS;
    return wanted < most ? (int)wanted : most > 1 ? (int)most : 1;
}
/* Few rows make few items, so where chunks may go apart they are items of their own. */
loci_status N(forward)(struct call *c)
{
    struct decode_pass a = { .c = c, .groups = c->plan->heads / item_heads(c->plan), .chunks = 1 };
    a.items = c->seqs.n * a.groups;
    group_sequences(c);
    a.apart = !N(decode_in_turn)(c);
    if (a.apart) a.chunks = chunks_there(c);
    a.shares = shares_of(&a);
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
