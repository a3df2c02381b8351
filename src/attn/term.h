/* SPDX-License-Identifier: MIT */
/* term.h -- what a term is: hooks on the tile (tile.h) at the places where position enters.  Those
 * that are NULL do nothing; x is the term's use in the plan.
 *
 * Forward, per query tile: open; per key tile, newest first: read, score, mix, weigh, value; close.
 * Backward the same with _bwd, oldest first and in the other order within a tile. */
#ifndef LOCI_ATTN_TERM_H
#define LOCI_ATTN_TERM_H

#include "attn/tile.h"

/* A weight term: what stands in the place of the engine's softmax. */
struct weights {
    void (*chunk)(struct tile *, int x);             /* begins a chunk */
    void (*weigh)(struct tile *, int x);             /* s -> p, and what the chunk has in sum */
    void (*join)(struct tile *, int x);              /* the chunk joins the total */
    void (*whole)(struct tile *, int x);             /* backward, after weigh: p becomes the final
                                                        weights (chunk x total) */
    void (*weigh_bwd)(struct tile *, int x);
};

struct term {
    const char *name;

    /* Memory, for one query tile of one head, in rows of QT reals. */
    ptrdiff_t (*mem)(const struct call *, int x);    /* its own */
    ptrdiff_t (*out)(const struct call *, int x);    /* sums of weights */
    ptrdiff_t (*grad)(const struct call *, int x);   /* sums of gradients */
    int (*carry)(const struct call *, int x);        /* state of a scan */

    /* Gradient of tables: each work item sums a part per head, and parts are added to the total in
     * the order of the items. */
    ptrdiff_t (*part)(const struct call *, int x);   /* reals per head */
    /* its offset in the total */
    ptrdiff_t (*home)(const struct call *, int x, ptrdiff_t b, int h);
    ptrdiff_t (*total)(const struct call *, int x);  /* reals of the total */
    /* A part may begin with what is added to the total and have something else behind it: how much
     * is added (NULL: all), and what makes the one of the other when all rows of a work item, from
     * `row` on, are done. */
    ptrdiff_t (*added)(const struct call *, int x);
    void (*finish)(const struct call *, int x, const struct sequence *, ptrdiff_t row, int h,
                   real *part);
    /* Numbers per key and head of a gradient that is summed in own.keys.  The total is [B][H][Lk]
     * of them. */
    int (*keyed)(const struct call *, int x);

    /* Once per query tile; dO is there in _bwd. */
    void (*open)(struct tile *, int x), (*open_bwd)(struct tile *, int x);
    /* Sees scale q.k alone; adds to ds, last. */
    void (*read)(struct tile *, int x), (*read_bwd)(struct tile *, int x);
    /* s += or s *= ; reads ds. */
    void (*score)(struct tile *, int x), (*score_bwd)(struct tile *, int x);
    /* All heads at once; t is the first tile. */
    void (*mix)(struct tile *, int x), (*mix_bwd)(struct tile *, int x);
    /* p -> out ; dp += */
    void (*value)(struct tile *, int x), (*value_bwd)(struct tile *, int x);
    /* outs -> O ; grads -> dqs, part. */
    void (*close)(struct tile *, int x), (*close_bwd)(struct tile *, int x);

    /* Decode: a vector that all keys of this tile multiply beside the query, and where the products
     * go; NULL: none, and then its hooks may read k.  What `keys` is set to takes the place of the
     * tile's keys. */
    const real *(*extra_query)(struct tile *, int x, struct source *keys, real **numbers);
    bool reads_keys;                     /* its hooks read k */

    /* What need not be computed. */
    real (*ceiling)(const struct tile *, int x);     /* most it adds to any score of this tile;
                                                        NULL: no promise */
    bool fades;                          /* its ceiling falls with the distance: worth asking for */
    bool (*settled)(const struct tile *, int x);     /* no tile moves the carry any more: the sweep
                                                        for it can end */
    bool (*spent)(const struct tile *, int x);       /* every weight from here on in this chunk is
                                                        an exact 0 */
    bool (*ends)(const struct call *, int x);        /* can that happen in this call?  NULL: yes, if
                                                        it has spent */

    const struct weights *weights;       /* of a weight term */
    const struct rotation *rotation;     /* of a term that turns rows */
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
#define EACH_USE(c, x, term) \
    for (int x = 0; x < (c)->plan->uses; x++) \
        for (const struct term *term = term_of(c, x); term; term = NULL)

/* What weighs in the place of the softmax, or NULL. */
INLINE const struct weights *weights_of(const struct call *c)
{
    return c->plan->weight >= 0 ? term_of(c, c->plan->weight)->weights : NULL;
}
/* The rotation of a plan, or NULL. */
INLINE const struct rotation *rotation_of(const struct call *c)
{
    return c->plan->rotate >= 0 ? term_of(c, c->plan->rotate)->rotation : NULL;
}
/* Reals of its part of the gradient of tables, per head. */
INLINE ptrdiff_t rotation_part(const struct call *c)
{
    const struct term *term = term_of(c, c->plan->rotate);
    return term->part ? term->part(c, c->plan->rotate) : 0;
}
/* Does turn_bwd(), with this part, want to see the rows before they turned? */
INLINE bool wants_input(const struct call *c, const real *part)
{
    return rotation_of(c)->of_input && (part || !term_of(c, c->plan->rotate)->part);
}
/* The rotation, if it fades. */
INLINE const struct rotation *fading(const struct call *c)
{
    const struct rotation *r = rotation_of(c);
    return r && r->fade ? r : NULL;
}
/* The position that key tile number `tile` of a sequence, and queries that meet it, fade from. */
INLINE int64_t fade_from(const struct call *c, const struct sequence *q, ptrdiff_t tile)
{
    const int span = fading(c)->span(c, c->plan->rotate);
    return pos_k(c, q->b, q->k0 + tile / span * span * KT);
}

#endif
