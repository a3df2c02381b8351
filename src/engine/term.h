/* SPDX-License-Identifier: MIT */
/* term.h -- the interface of a term: hooks on the tile (tile.h) at the places where position
 * enters.  A hook that is NULL does nothing.  x is the index of the term's use in the plan.
 *
 * Forward, per query tile: open; per key tile, newest first: read, score, mix,
 * tile_weights, value; then close.  Backward, per query tile: open, open_bwd; per key tile,
 * oldest first: the hooks above once more, as scores are recomputed, then their _bwd in
 * reverse order; then close_bwd. */
#ifndef LOCI_ENGINE_TERM_H
#define LOCI_ENGINE_TERM_H

#include "engine/moves.h"
#include "engine/tile.h"

/* A weight term: hooks that the engine calls instead of its own softmax. */
struct weights {
    void (*chunk)(struct tile *, int x);        /* begins a chunk */
    void (*tile_weights)(struct tile *, int x); /* s -> p, and the sums of the chunk */
    void (*join)(struct tile *, int x);         /* the chunk joins the total */
    /* backward, after tile_weights: p becomes the final weights (chunk x total) */
    void (*whole)(struct tile *, int x);
    void (*tile_weights_bwd)(struct tile *, int x);
};

struct term {
    const char *name;

    /* Memory, for one query tile of one head, in rows of QT reals. */
    ptrdiff_t (*mem)(const struct call *, int x);  /* its own */
    ptrdiff_t (*out)(const struct call *, int x);  /* sums of weights */
    ptrdiff_t (*grad)(const struct call *, int x); /* sums of gradients */
    int (*carry)(const struct call *, int x);      /* state of a scan */
    /* Backward: how many of the first rows of mem are state that is saved from one chunk of keys
     * to the next.  Rows that open() and open_bwd() compute again need not be saved. */
    ptrdiff_t (*chunk_state)(const struct call *, int x);
    /* Forward, in parts: how many rows of mem, from row `first` on, are state that is saved from
     * one part to the next, besides sums and carries. */
    ptrdiff_t (*part_state)(const struct call *, int x, ptrdiff_t *first);
    void (*resume)(struct tile *, int x); /* the state has been restored */

    /* Gradient of tables: each work item sums a part per head and chunk of keys.  An item's
     * parts are added up, and then added to the total in the order of the items. */
    ptrdiff_t (*part)(const struct call *, int x); /* reals per head */
    /* How many of them, the first ones, each query tile sums from 0 in own.fresh.  The engine
     * adds these to the part when the rows leave a chunk.  NULL: none, as only sums over the
     * rows of a tile are added to the part. */
    ptrdiff_t (*fresh)(const struct call *, int x);
    /* Backward: the hooks of a tile add to the part.  Then no row of an item begins before the one
     * before it has left the chunk. */
    bool part_by_tile;
    /* Where a head's part is added in the total: heads that share a part have one place. */
    ptrdiff_t (*part_at)(const struct call *, int x, ptrdiff_t b, int h);
    ptrdiff_t (*total)(const struct call *, int x); /* reals of the total */
    /* A part may begin with numbers that are added to the total, followed by others.  added()
     * returns the number that are added (NULL: all).  finish() computes the first from the
     * second when all rows of a work item, from `row` on, are done with chunk number `chunk`. */
    ptrdiff_t (*added)(const struct call *, int x);
    void (*finish)(const struct call *, int x, const struct sequence *, ptrdiff_t row,
                   ptrdiff_t chunk, real *part);
    /* Numbers per key and head of a gradient that is summed in own.keys, 0 if there is none.
     * keys_at: where those of a head's first key are in the total, which stores them key by key. */
    int (*keyed)(const struct call *, int x);
    /* keyed() is 1, and the number is summed without padding; else the sums are
     * products, whose rows are padded() */
    bool keyed_alone;
    ptrdiff_t (*keys_at)(const struct call *, int x, ptrdiff_t b, int h);

    /* Reals per tile of keys and kv head that are summed in own.keys and added to the total,
     * [ktiles][kv heads][reals].  The last one says whether they have begun (tiled_sums_of()). */
    ptrdiff_t (*tiled)(const struct call *, int x);

    /* Changes the rows of Q, once per query tile, after they are loaded, rotated and scaled.  The
     * _bwd changes dqs, the gradient of the changed rows, after all other hooks. */
    void (*load)(struct tile *, int x), (*load_bwd)(struct tile *, int x);
    /* Once per query tile, after Q is loaded, and in _bwd dO, delta and lse. */
    void (*open)(struct tile *, int x), (*open_bwd)(struct tile *, int x);
    /* Sees scale q.k alone, before any term adds to it.  The _bwd adds its
     * gradient to ds, last of all. */
    void (*read)(struct tile *, int x), (*read_bwd)(struct tile *, int x);
    /* s += or s *= , in the order of the groups; reads ds, the gradient of its own stage. */
    void (*score)(struct tile *, int x), (*score_bwd)(struct tile *, int x);
    /* Once for all heads of the item; t is the tile of the first. */
    void (*mix)(struct tile *, int x), (*mix_bwd)(struct tile *, int x);
    /* Sums what it needs of p in out; the _bwd adds to dp. */
    void (*value)(struct tile *, int x), (*value_bwd)(struct tile *, int x);
    /* Adds to O from outs; the _bwd adds to dqs and to the part from grads. */
    void (*close)(struct tile *, int x), (*close_bwd)(struct tile *, int x);

    /* While decode reads the keys of a tile, it asks for another vector to multiply them by,
     * besides the query, and where the numbers go.  NULL: none, and then the term's hooks may
     * read k.  If `keys` is set, its rows are multiplied instead of the tile's keys. */
    const real *(*extra_query)(struct tile *, int x, struct source *keys, real **numbers);
    bool reads_keys; /* its hooks read k */

    /* Work that can be skipped. */
    /* The most it adds to any score of this tile; NULL: no bound.  fades: the bound falls with
     * the distance, so asking is worth the time. */
    real (*ceiling)(const struct tile *, int x);
    bool fades;
    /* True if no older tile changes the carry, so that the backward sweep can stop. */
    bool (*fixed)(const struct tile *, int x);
    /* True if every weight from this tile on in this chunk is an exact 0.  ends: true if that
     * can happen in this call.  NULL: yes, if there is an exhausted hook. */
    bool (*exhausted)(const struct tile *, int x);
    bool (*ends)(const struct call *, int x);

    const struct weights *weights;   /* of a weight term */
    const struct rotation *rotation; /* of a term that rotates rows */
    const struct moves *moves;       /* of a term whose rows change on their walk */
};

#define TERM(name, traits) extern const struct term N(term_##name);
#include "terms/list.h"
#undef TERM

/* ---- The terms of a plan --------------------------------------------------------------------- */

INLINE const struct term *term_of(const struct call *c, int x)
{
    extern const struct term *const N(terms)[TERM_COUNT];
    return N(terms)[c->plan->use[x].term];
}
/* Runs the body for every use x of a term, in the order of the plan;
 * `break` leaves one use only. */
#define EACH_USE(c, x, term) \
    for (int x = 0; x < (c)->plan->uses; x++) \
        for (const struct term *term = term_of(c, x); term; term = NULL)

/* The hooks of the plan's weight term; NULL: softmax. */
INLINE const struct weights *weights_of(const struct call *c)
{
    return c->plan->weight >= 0 ? term_of(c, c->plan->weight)->weights : NULL;
}
/* The rotation of a plan, or NULL. */
INLINE const struct rotation *rotation_of(const struct call *c)
{
    return c->plan->rotate >= 0 ? term_of(c, c->plan->rotate)->rotation : NULL;
}
/* The hooks of a plan whose rows change on their walk, or NULL. */
INLINE const struct moves *moves_of(const struct call *c)
{
    return c->plan->moves >= 0 ? term_of(c, c->plan->moves)->moves : NULL;
}
/* The sums of a term for the tile's keys and kv head, or those of the tile of keys that is `newer`
 * tiles later; zeroed when they begin.  NULL: not wanted. */
INLINE real *tiled_sums_of(struct tile *t, int x, int newer)
{
    const ptrdiff_t n = term_of(t->c, x)->tiled(t->c, x), last = n - 1;
    real *sums = t->own[x].keys ? t->own[x].keys + newer * n : NULL;
    if (sums && sums[last] == 0) {
        memset(sums, 0, sizeof(real) * (size_t)last);
        sums[last] = 1;
    }
    return sums;
}
/* All n tiles step over the tile of keys that they are on. */
INLINE void step_rows(struct tile *t, int n)
{
    const struct moves *moves = moves_of(t->c);
    for (int i = 0; i < n && moves; i++) moves->step(&t[i], t->c->plan->moves);
}
/* Turns n rows of outputs or of their gradients of a head in place; sign -1: back. */
INLINE void turn_outputs(const struct call *c, struct angles *angles, ptrdiff_t b, int h, real sign,
                         ptrdiff_t i, int n, real *rows, ptrdiff_t stride)
{
    rotation_of(c)->turn(c, c->plan->rotate, angles, b, h, true, sign, i, n, rows, stride);
}
/* Reals of the rotation's part of the gradient of tables, per head. */
INLINE ptrdiff_t rotation_part(const struct call *c)
{
    const struct term *term = term_of(c, c->plan->rotate);
    return term->part ? term->part(c, c->plan->rotate) : 0;
}
/* True if rotate_bwd(), with this part, needs the rows as they were before rotation: for the part,
 * or for gradients of the rotation's inputs. */
INLINE bool wants_input(const struct call *c, const real *part)
{
    const struct rotation *r = rotation_of(c);
    return r->bends
        || (r->of_input && (part || !term_of(c, c->plan->rotate)->part || rotation_learns(c)));
}
/* The rotation, if it fades. */
INLINE const struct rotation *fading(const struct call *c)
{
    const struct rotation *r = rotation_of(c);
    return r && r->fade ? r : NULL;
}
/* The position from which key tile number `tile` of a sequence fades, and the queries
 * that it is multiplied by. */
INLINE int64_t fade_from(const struct call *c, const struct sequence *q, ptrdiff_t tile)
{
    const int span = fading(c)->span(c, c->plan->rotate);
    return pos_k(c, q->b, q->k0 + tile / span * span * KT);
}

#endif
