/* SPDX-License-Identifier: MIT */
/* sequences.c -- which rows see which keys: a call's sequences, and checks of its positions.
 *
 * A sequence is a range of rows and a range of keys that attend to each other only: a batch entry,
 * a range between two starts, or a packed segment.  Each has its own tile grid, which starts at its
 * first key.  So a row has the same bits wherever it is packed. */
#include "util/planted_bug.h"
#include "api/api.h"
#include "contract/cache.h"

/* Are n positions consecutive, starting at row i or key j?  Unsigned, so that no position can
 * overflow. */
static bool consecutive_q(const struct call *c, ptrdiff_t b, ptrdiff_t i, ptrdiff_t n)
{
    if (!c->in->q_pos) return true;
    for (ptrdiff_t k = 1; k < n; k++)
        if ((uint64_t)pos_q(c, b, i + k) != (uint64_t)pos_q(c, b, i) + (uint64_t)k) return false;
    return true;
}
static bool consecutive_k(const struct call *c, ptrdiff_t b, ptrdiff_t j, ptrdiff_t n)
{
    if (!c->where.k_pos) return true;
    for (ptrdiff_t k = 1; k < n; k++)
        if ((uint64_t)pos_k(c, b, j + k) != (uint64_t)pos_k(c, b, j) + (uint64_t)k) return false;
    return true;
}

/* The keys of a sequence whose positions are known: all of them, or the present ones. */
struct listed {
    ptrdiff_t first, count;
};
static struct listed listed_keys(const struct call *c, const struct sequence *q)
{
    return c->stream.here ? (struct listed){ 0, c->stream.part.count }
                          : (struct listed){ q->k0, q->nk };
}

/* Appends a sequence and updates the counts of rows, tiles and chunks.  `again`: it has the same
 * keys as the previous one.  The list has capacity for loci_most_sequences(). */
static void add_sequence(struct call *c, ptrdiff_t b, ptrdiff_t q0, ptrdiff_t nq, ptrdiff_t k0,
                         ptrdiff_t nk, bool segments, bool again)
{
    struct sequence *s = &c->seqs.list[c->seqs.n++];
    const ptrdiff_t count = c->seqs.n - 1;
    *s = (struct sequence){
        .b = b,
        .q0 = q0,
        .nq = nq,
        .k0 = k0,
        .nk = nk,
        .segments = segments,
        .first_row = c->seqs.rows,
        .first_tile = c->seqs.tiles,
        .first_chunk = c->seqs.chunks,
        .first_ktile = again ? s[-1].first_ktile : c->seqs.ktiles,
        .keys = again ? s[-1].keys : count,
    };
    const struct listed keys = listed_keys(c, s);
    s->run = !(c->stream.apart && c->stream.apart[b]) && consecutive_q(c, b, q0, nq)
          && PLANTED_BUG(1, consecutive_k(c, b, keys.first, keys.count));
    /* Unsigned, as above.  Without rows or keys there is no distance. */
    if (s->run && nq && keys.count)
        s->d0 = (int64_t)((uint64_t)pos_q(c, b, q0) - (uint64_t)pos_k(c, b, keys.first)
                          + (uint64_t)(keys.first - k0));
    c->seqs.rows += nq;
    c->seqs.tiles += tiles(nq, ROWS);
    c->seqs.chunks += tiles(nq, ROW_CHUNK);
    /* A cache numbers its tiles by capacity, so what is stored by tile does not move. */
    if (!again) c->seqs.ktiles += tiles(c->cache ? c->Lk : nk, KT);
    if (nk > c->seqs.longest) c->seqs.longest = nk;
}

/* How many consecutive rows, or keys, from i or j on have the same segment. */
static ptrdiff_t run_q(const struct call *c, ptrdiff_t b, ptrdiff_t i)
{
    ptrdiff_t n = 1;
    while (i + n < c->Lq && seg_q(c, b, i + n) == seg_q(c, b, i)) n++;
    return n;
}
static ptrdiff_t run_k(const struct call *c, ptrdiff_t b, ptrdiff_t j)
{
    ptrdiff_t n = 1;
    while (j + n < c->Lk && seg_k(c, b, j + n) == seg_k(c, b, j)) n++;
    return n;
}
/* Makes each segment a sequence, by merging the runs of rows and keys.  Ids rise on both sides, so
 * equal ones meet. */
static void add_runs(struct call *c, ptrdiff_t b)
{
    ptrdiff_t i = 0, j = 0;
    while (i < c->Lq || j < c->Lk) {
        while (j < c->Lk && seg_k(c, b, j) < 0) j += run_k(c, b, j);
        const ptrdiff_t nq = i < c->Lq ? run_q(c, b, i) : 0, nk = j < c->Lk ? run_k(c, b, j) : 0;
        const int64_t q = nq ? seg_q(c, b, i) : INT64_MAX, k = nk ? seg_k(c, b, j) : INT64_MAX;
        if (q == k) {
            add_sequence(c, b, i, nq, j, nk, false, false);
            i += nq;
            j += nk;
        } else if (q < k) { /* padding, or no keys */
            add_sequence(c, b, i, nq, 0, 0, false, false);
            i += nq;
        } else { /* keys that no row sees */
            add_sequence(c, b, c->Lq, 0, j, nk, false, false);
            j += nk;
        }
    }
}
/* Do ids of the runs rise on both sides, except for padding (below 0)?  Only then can segments be
 * merged.  Otherwise equal ids may not be neighbours, and each pair must be compared. */
static bool rising(const struct call *c, ptrdiff_t b)
{
    int64_t last = -1;
    for (ptrdiff_t i = 0; i < c->Lq; i += run_q(c, b, i))
        if (seg_q(c, b, i) >= 0) {
            if (seg_q(c, b, i) <= last) return false;
            last = seg_q(c, b, i);
        }
    last = -1;
    for (ptrdiff_t j = 0; j < c->Lk; j += run_k(c, b, j))
        if (seg_k(c, b, j) >= 0) {
            if (seg_k(c, b, j) <= last) return false;
            last = seg_k(c, b, j);
        }
    return true;
}
/* Fills c->seqs.list and computes the totals of all sequences. */
void loci_find_sequences(struct call *c)
{
    const int64_t *qs = c->in->q_starts, *ks = c->in->k_starts;
    c->seqs.n = c->seqs.rows = c->seqs.tiles = c->seqs.chunks = c->seqs.ktiles = c->seqs.longest =
        0;
    for (ptrdiff_t s = 0; qs && s < c->in->sequences; s++)
        add_sequence(c, 0, qs[s], qs[s + 1] - qs[s], ks[s], ks[s + 1] - ks[s], false, false);
    if (qs) return;
    const struct stream *w = &c->stream;
    for (ptrdiff_t b = 0; w->runs && b < c->B; b++)
        for (ptrdiff_t r = 0; r < w->run_count; r++)
            add_sequence(c, b, w->runs[r].first, w->runs[r].count, -c->stream.first, all_keys(c),
                         false, r > 0);
    if (w->runs) return;
    /* Segments are sequences of their own if that is possible.  Otherwise the entry is one sequence
     * whose pairs compare ids. */
    for (ptrdiff_t b = 0; b < c->B; b++) {
        const ptrdiff_t n = c->in->q_lens ? (ptrdiff_t)c->in->q_lens[b] : c->Lq;
        if (!c->in->q_seg) add_sequence(c, b, c->Lq - n, n, 0, keys_in(c, b), false, false);
        else if (PLANTED_BUG(2, rising(c, b))) add_runs(c, b);
        else add_sequence(c, b, 0, c->Lq, 0, c->Lk, true, false);
    }
}

/* Starts must rise from 0 to the number of rows.  Otherwise offsets computed from them would be out
 * of range. */
static loci_status check_list(const struct call *c, const int64_t *starts, ptrdiff_t len,
                              const char *name)
{
    const ptrdiff_t n = c->in->sequences;
    loci_error *e = c->in->error;
    if (!starts) return LOCI_OK;
    CHECK(e, starts[0] == 0, LOCI_BAD_ARG, "%s: the first start is %lld, but must be 0", name,
          (long long)starts[0]);
    for (ptrdiff_t s = 0; s < n; s++)
        CHECK(e, starts[s + 1] >= starts[s], LOCI_BAD_ARG,
              "%s: start %td is %lld, below the %lld before it; starts must not fall", name, s + 1,
              (long long)starts[s + 1], (long long)starts[s]);
    CHECK(e, starts[n] == len, LOCI_BAD_ARG,
          "%s: the last start, number %td, is %lld, but must be the number of rows, %td", name, n,
          (long long)starts[n], len);
    return LOCI_OK;
}
loci_status loci_check_starts(const struct call *c)
{
    const loci_status status = check_list(c, c->in->q_starts, c->Lq, "q_starts");
    return status ? status : check_list(c, c->in->k_starts, c->Lk, "k_starts");
}
/* Writes positions if the caller gave only starts or runs.  Between starts, keys count from 0, and
 * queries are the last of the keys.  Without keys, rows count from 0. */
static bool counts(const struct call *c)
{
    return (c->in->q_starts || c->stream.runs) && !c->in->q_pos;
}
void loci_carve_positions(struct call *c, struct arena *a)
{
    const ptrdiff_t n = c->stream.runs ? c->Lq : c->Lq + c->Lk;
    if (counts(c)) c->mem.counted = carve_bytes(a, (size_t)n, sizeof *c->mem.counted);
}
void loci_count_positions(struct call *c)
{
    const int64_t *qs = c->in->q_starts, *ks = c->in->k_starts;
    if (!counts(c)) return;
    int64_t *q_pos = c->mem.counted, *k_pos = q_pos + c->Lq;
    c->where.q_pos = q_pos;
    c->where.q_pos_entry = 0;
    for (ptrdiff_t r = 0; r < c->stream.run_count; r++) {
        const struct run *run = &c->stream.runs[r];
        for (ptrdiff_t i = 0; i < run->count; i++) q_pos[run->first + i] = run->at + i;
    }
    if (c->stream.runs) return;
    c->where.k_pos = k_pos;
    for (ptrdiff_t s = 0; s < c->in->sequences; s++) {
        const int64_t nq = qs[s + 1] - qs[s], nk = ks[s + 1] - ks[s];
        for (int64_t i = 0; i < nq; i++) q_pos[qs[s] + i] = nk ? nk - nq + i : i;
        for (int64_t j = 0; j < nk; j++) k_pos[ks[s] + j] = j;
    }
}

/* Tables by distance end at c->range.  In every sequence the largest distance is bounded by its
 * extreme positions and the window.  In a run the first and the last position are the extremes, so
 * the loops step from one to the other. */
loci_status loci_check_positions(const struct call *c)
{
    const struct loci_plan *p = c->plan;
    loci_error *e = c->in->error;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        int64_t qlow = INT64_MAX, qhigh = INT64_MIN, klow = INT64_MAX, khigh = INT64_MIN;
        if (!q->nq || !listed_keys(c, q).count) continue;
        for (ptrdiff_t i = 0; i < q->nq; i += q->run && q->nq > 1 ? q->nq - 1 : 1) {
            const int64_t x = pos_q(c, q->b, q->q0 + i);
            if (x < qlow) qlow = x;
            if (x > qhigh) qhigh = x;
        }
        const struct listed keys = listed_keys(c, q);
        for (ptrdiff_t j = 0; j < keys.count; j += q->run && keys.count > 1 ? keys.count - 1 : 1) {
            const int64_t x = pos_k(c, q->b, keys.first + j);
            if (x < klow) klow = x;
            if (x > khigh) khigh = x;
        }
        /* most: largest distance before the query.  ahead: after it.  Open sides of the window are
         * INT64_MAX. */
        int64_t most = qhigh - klow, ahead = p->full ? khigh - qlow : 0;
        if (most > p->window_left) most = p->window_left;
        if (ahead > p->window_right) ahead = p->window_right;
        if (ahead > most) most = ahead;
        CHECK(e, most <= c->range, LOCI_BAD_ARG,
              "the call has distances up to %lld, but the tables were prepared for max_distance "
              "%lld",
              (long long)most, (long long)c->range);
    }
    return LOCI_OK;
}

/* Positions must lie within 2^40 before they are subtracted.  This includes counted ones and those
 * of a cache.  Coordinates matter to rotations only. */
loci_status loci_check_given(const struct call *c)
{
    const loci_call *in = c->in;
    loci_error *e = in->error;
    const ptrdiff_t each = in->per_batch ? c->B : 1;
    /* If keys have positions of their own, queries cannot be counted as the last keys. */
    CHECK(e, !c->cache || !c->cache->placed || in->q_pos, LOCI_BAD_ARG,
          "q_pos must be given, because keys were appended to the cache with k_pos");
    TRY(loci_check_near(in->q_pos, each * in->q_len, "q_pos", e));
    TRY(loci_check_near(in->k_pos, each * in->k_len, "k_pos", e));
    for (ptrdiff_t b = 0; b < c->B; b++) {
        if (c->cache && c->where.k_pos)
            TRY(loci_check_near(c->where.k_pos + b * c->where.k_pos_entry, keys_in(c, b),
                                "the cache's k_pos", e));
        const int64_t keys = first_pos(c, b) + keys_in(c, b);
        CHECK(e, c->where.k_pos || keys <= FAR, LOCI_BAD_ARG,
              "entry %td has %lld keys, but positions must lie within 2^40", b, (long long)keys);
    }
    if (c->plan->rotate < 0) return LOCI_OK;
    TRY(loci_check_near_axes(in->q_coord, each * c->plan->axes * in->q_len, "q_coord", e));
    return loci_check_near_axes(in->k_coord, each * c->plan->axes * in->k_len, "k_coord", e);
}

size_t loci_most_sequences(const struct call *c)
{
    if (c->in->q_starts) return (size_t)c->in->sequences;
    if (c->stream.runs) return (size_t)(c->B * c->stream.run_count);
    if (!c->in->q_seg) return (size_t)c->B;
    return (size_t)c->B * (size_t)(c->Lq + c->Lk + 1); /* every row or key may be a run */
}
ptrdiff_t loci_most_ktiles(const struct call *c)
{
    /* Each sequence has at most one partial tile.  A sequence without keys has no tile. */
    if (c->in->q_starts) return c->Lk / KT + (c->in->sequences < c->Lk ? c->in->sequences : c->Lk);
    return c->in->q_seg ? c->B * c->Lk : c->B * tiles(all_keys(c), KT);
}
