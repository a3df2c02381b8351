/* SPDX-License-Identifier: MIT */
/* layout.c -- which rank owns which rows and keys, and which ranges of keys it requires. */
#include "distributed/rank_context.h"

/* Piece p of n begins at this row, a multiple of `unit`.  The last piece has the remainder. */
static int64_t border(int64_t rows, int64_t p, int64_t n, int64_t unit)
{
    if (p == n) return rows;
    /* rows / n each, and one more for the first rows % n, without products that overflow */
    const int64_t exact = rows / n * p + rows % n * p / n, at = (exact + unit / 2) / unit * unit;
    return at < rows ? at : rows;
}

int loci_share_out(loci_layout layout, int64_t rows, int ranks, loci_share *list, int measured)
{
    if (rows < 0 || ranks < 1 || ranks > INT32_MAX / 4 || rows > INT64_MAX / 4
        || (layout != LOCI_CONTIGUOUS && layout != LOCI_ZIGZAG))
        return 0;
    const int pieces = layout == LOCI_ZIGZAG ? 2 * ranks : ranks;
    const int64_t least = rows / (2 * (int64_t)ranks);
    const int64_t unit = least >= CHUNK ? CHUNK : least >= ROW_CHUNK ? ROW_CHUNK : ROWS;
    for (int p = 0; p < pieces && p < measured; p++) {
        const int64_t first = border(rows, p, pieces, unit);
        list[p] = (loci_share){ .first = first,
                                .count = border(rows, p + 1, pieces, unit) - first,
                                .rank = p < ranks ? p : pieces - 1 - p };
    }
    return pieces;
}

loci_status loci_check_shares(const loci_share *list, int count, int ranks, const char *name,
                              int64_t *all, loci_error *e)
{
    *all = 0;
    CHECK(e, list && count >= 1, LOCI_BAD_ARG,
          "%s must have at least one share; loci_share_out() makes a list", name);
    for (int i = 0; i < count; i++) {
        CHECK(e, list[i].rank >= 0 && list[i].rank < ranks, LOCI_BAD_ARG,
              "%s: share %d has rank %d, but ranks are 0 .. %d", name, i, list[i].rank, ranks - 1);
        CHECK(e, list[i].first == *all, LOCI_BAD_ARG,
              "%s: share %d begins at %lld, but must begin at %lld, the end of those before it",
              name, i, (long long)list[i].first, (long long)*all);
        CHECK(e, list[i].count >= 0 && list[i].count <= FAR - *all, LOCI_BAD_ARG,
              "%s: share %d has %lld rows; all shares together must have 0 .. 2^40", name, i,
              (long long)list[i].count);
        *all += list[i].count;
    }
    return LOCI_OK;
}

int64_t loci_owned(const loci_share *list, int count, int rank)
{
    int64_t n = 0;
    for (int i = 0; i < count; i++) n += list[i].rank == rank ? list[i].count : 0;
    return n;
}

static void include(struct key_span *all, int64_t first, int64_t end)
{
    if (end <= first) return;
    const bool none = all->end <= all->first;
    if (none || first < all->first) all->first = first;
    if (none || end > all->end) all->end = end;
}
/* The keys that rows at positions first .. last see, by order and window.  Also the keys at these
 * positions, because a stick may give its remainder to their values even if they are not
 * visible. */
static struct key_span seen(const struct rank_ctx *a, int64_t first, int64_t last)
{
    const struct loci_plan *p = a->plan;
    struct key_span s = { 0, a->keys };
    if (!p->full && last + 1 < s.end) s.end = last + 1;
    if (p->window_right >= 0 && p->window_right < FAR && last + p->window_right + 1 < s.end)
        s.end = last + p->window_right + 1;
    if (p->window_left >= 0 && p->window_left < FAR && first - p->window_left > s.first)
        s.first = first - p->window_left;
    return s;
}
bool loci_from_first(const loci_plan *p, int enc)
{
    for (int x = 0; x < p->uses; x++)
        if (p->use[x].enc == enc && term_is(p->use[x].term, FROM_FIRST)) return true;
    return false;
}

/* The keys that rows of this share see.  Empty if there are no rows. */
static struct key_span seen_by(const struct rank_ctx *a, const loci_share *s)
{
    const int64_t first = s->first + a->keys - a->rows;
    if (!s->count) return (struct key_span){ 0, 0 };
    return a->placed ? (struct key_span){ 0, a->keys } : seen(a, first, first + s->count - 1);
}
/* Tiles and chunks are counted from a chunk border, and sums continue to the next border. */
static struct key_span whole_chunks(const struct rank_ctx *a, struct key_span s)
{
    if (!span_length(s)) return (struct key_span){ 0, 0 };
    const int64_t end = (s.end + CHUNK - 1) / CHUNK * CHUNK;
    return (struct key_span){ s.first / CHUNK * CHUNK, end < a->keys ? end : a->keys };
}
struct required_range loci_share_required_range(const struct rank_ctx *a, int share)
{
    const loci_share *s = &a->all.shares[share];
    return (struct required_range){ .rank = s->rank,
                                    .rows = s->count > 0,
                                    .gathered = whole_chunks(a, seen_by(a, s)) };
}
struct required_range loci_required_range(const struct rank_ctx *a, int rank)
{
    struct key_span all = { 0, 0 };
    bool rows = false;
    for (int i = 0; i < a->all.count; i++) {
        const loci_share *s = &a->all.shares[i];
        const struct key_span one = seen_by(a, s);
        if (s->rank != rank || !s->count) continue;
        rows = true;
        include(&all, one.first, one.end);
    }
    /* Gathering ranks sum from the first key on. */
    for (int e = 0; e < a->plan->encs; e++)
        if (a->all.gather && all.end > all.first && loci_from_first(a->plan, e)) all.first = 0;
    for (int i = 0; i < a->key_count; i++) {
        const loci_share *s = &a->key_shares[i];
        if (s->rank == rank) include(&all, s->first, s->first + s->count);
        /* keys are rotated back by their owner */
        if (s->rank == rank && s->count && a->sums) rows = true;
    }
    if (a->sums) all = whole_chunks(a, all);
    else all.first = all.first / CHUNK * CHUNK;
    return (struct required_range){ .rank = rank, .gathered = all, .rows = rows };
}
