/* SPDX-License-Identifier: MIT */
/* forward.h -- the fused pass over tiles of 64 rows.  The rows of a tile walk over the keys they
 * see, newest first, in chunks of 4096 and tiles of 64.  The file that includes this one says
 * how a tile is multiplied, and what is done with the products. */
#ifndef LOCI_ENGINE_FORWARD_H
#define LOCI_ENGINE_FORWARD_H

#include "engine/softmax.h"
#include "engine/workspace.h"

/* How a tile is multiplied: forward.c does it in f32, gemm_bf16.c with bf16 dot products.
 * weights.c does not use values. */
struct products {
    void (*rows)(struct tile *); /* once per query tile, after open_rows() */
    /* finds the keys and computes s, all but mix; more: older tiles follow */
    void (*scores)(struct tile *, bool more);
    void (*sums)(struct tile *, bool more); /* computes weights, and sums the values */
    void (*close)(struct tile *);           /* once per query tile, after all sums */
};

/* True if every tile first .. end of a chunk is so far below the total that the chunk's sums
 * would join it as exact zeros. */
INLINE bool negligible_chunk(struct tile *t, ptrdiff_t first, ptrdiff_t end, ptrdiff_t last)
{
    for (ptrdiff_t j = end; j >= first; j--)
        if (set_keys(t, j * KT, last) && !negligible(t, t->total.m)) return false;
    return true;
}

/* One work item: QT rows of one head, or of all heads if a term mixes them.  In a part, `state`
 * is the state of the first head. */
INLINE void forward_item(struct call *c, struct tile *t, int n, const struct sequence *q, int h,
                         ptrdiff_t row, char *state, const struct products *by)
{
    const struct loci_plan *p = c->plan;
    const struct part *part = c->stream.part.state ? &c->stream.part : NULL;
    const int rows = q->nq - row < QT ? (int)(q->nq - row) : QT;
    const struct keyrange range = present_of(c, keys_of(c, q, row, rows));
    const bool skip = skips(c);

    if (part && range.last < range.first && !part->opens && !part->closes) return;

    for (int i = 0; i < n; i++) {
        open_rows(&t[i], q, h + i, row, rows);
        by->rows(&t[i]);
        if (skip) measure_rows(&t[i]);
        open_total(&t[i]);
        if (part && !part->opens) N(save_part)(&t[i], state + (size_t)i * part->slot, true);
    }
    const struct weights *weights = weights_of(c);
    /* Borders of chunks and tiles are multiples of CHUNK and KT whichever keys the rows see, as
     * the bits of a row depend on them.  Rows that see no key have no chunk. */
    for (ptrdiff_t chunk = range.last >= range.first ? range.last / CHUNK : -1;
         chunk >= range.first / CHUNK && chunk >= 0; chunk--) {
        const ptrdiff_t high = chunk * (CHUNK / KT) + CHUNK / KT - 1, low = chunk * (CHUNK / KT);
        const ptrdiff_t end = range.last / KT < high ? range.last / KT : high;
        const ptrdiff_t start = range.first / KT > low ? range.first / KT : low;
        if (skip && negligible_chunk(t, start, end, range.last)) continue;
        bool exhausted = false;
        for (int i = 0; i < n; i++) open_chunk(&t[i]);
        for (ptrdiff_t j = end; j >= start; j--) {
            bool seen = true;
            for (int i = 0; i < n; i++) seen &= set_keys(&t[i], j * KT, range.last);
            /* A tile older than a negligible one may count again, but an
             * exhausted row stays exhausted.  Rows that move go on through its keys. */
            if (seen && skip && negligible(t, t->chunk.m)) continue;
            exhausted |= seen && all_exhausted(t, n);
            if (exhausted && p->moves < 0) break;
            const bool more = j > range.first / KT;
            if (seen && !exhausted) {
                for (int i = 0; i < n; i++) by->scores(&t[i], more);
                finish_scores(t, n);
                for (int i = 0; i < n; i++) by->sums(&t[i], more);
            }
            step_rows(t, n);
        }
        for (int i = 0; i < n; i++) {
            if (weights) {
                set_values(&t[i], &t[i].chunk);
                set_values(&t[i], &t[i].total);
                weights->join(&t[i], p->weight);
            } else {
                softmax_join(&t[i]);
            }
        }
    }
    for (int i = 0; i < n; i++) {
        if (!part || part->closes) by->close(&t[i]);
        else {
            find_lost(&t[i]);
            set_values(&t[i], &t[i].total);
            N(save_part)(&t[i], state + (size_t)i * part->slot, false);
        }
    }
}

/* ---- All work items -------------------------------------------------------------------------- */

/* State shared by all threads. */
struct forward_pass {
    struct call *c;
    ptrdiff_t items, groups; /* groups of heads that are computed together */
    int locked;              /* heads of one group */
    atomic_llong next;
    atomic_bool stop; /* the host cancelled */
};

/* Items go from the rows that see most keys to those that see fewest, so that threads
 * end at about the same time.  The heads of a tile follow one another: those of a
 * group read the same keys. */
INLINE void forward_job(void *arg, int index, const struct products *by)
{
    struct forward_pass *a = arg;
    struct call *c = a->c;
    struct sums sums; /* weights.c uses the tiles of a backward pass */
    struct tile *t = N(workspace_of)(c, index, c->backward ? &sums : NULL).tile;
    for (;;) {
        const ptrdiff_t item = (ptrdiff_t)atomic_fetch_add(&a->next, 1);
        if (item >= a->items || atomic_load(&a->stop)) return;
        if (cancelled(c)) {
            atomic_store(&a->stop, true);
            return;
        }
        const ptrdiff_t tile = a->items / a->groups - 1 - item / a->groups;
        const struct sequence *q = find_sequence(c, BY_TILE, tile);
        const int h = (int)(item % a->groups) * a->locked;
        char *state =
            c->stream.part.state
                ? c->stream.part.state + (size_t)(tile * c->plan->heads + h) * c->stream.part.slot
                : NULL;
        forward_item(c, t, a->locked, q, h, (tile - q->first_tile) * QT, state, by);
    }
}

/* `job` is forward_job() with the products of the including file. */
INLINE loci_status forward_all(struct call *c, void (*job)(void *, int))
{
    struct forward_pass a = {
        .c = c,
        .locked = locked(c->plan),
        .groups = c->plan->heads / locked(c->plan),
    };
    a.items = c->seqs.tiles * a.groups;
    atomic_init(&a.next, 0);
    atomic_init(&a.stop, false);
    N(run)(c, c->threads, job, &a);
    return atomic_load(&a.stop) ? LOCI_CANCELLED : LOCI_OK;
}

#endif
