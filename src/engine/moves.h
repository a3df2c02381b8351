/* SPDX-License-Identifier: MIT */
/* moves.h -- rows that change on their walk over the keys: a score depends on the keys between its
 * key and the row, not as a number that is added, but as a linear map of the row.
 *
 *     row u_i, as the keys of tile J read it  ->  the row as the next older tile reads it
 *
 * The carry of the term is what it needs to know of u; form() makes q.across of it.  The passes
 * step over every tile from a row's newest key to its oldest one, seen or not.  Keys are staged in
 * the form that rows of later tiles read, rows of their own key head (plan.h).
 *
 * A row's newest key lies in one tile, where rows and keys interleave.  The row owns that tile:
 * there the term computes the scores, pair by pair of its own rows.  All other rows of the tile
 * read its keys by a product.  Which of the two ways a row takes depends on that row alone. */
#ifndef LOCI_ENGINE_MOVES_H
#define LOCI_ENGINE_MOVES_H

#include "simd/num.h"
#include "contract/call.h"

struct tile;

/* Rows of a tile that own it.  ALL_ROWS: no row reads its keys by a product. */
enum owners { NO_ROWS, SOME_ROWS, ALL_ROWS };

struct moves {
    /* ---- Keys, before the pass and after it ---- */

    /* Bytes of c->mem.moved, what the term stages besides keys.  NULL: nothing. */
    size_t (*bytes)(const struct call *, int x);
    /* Makes and stages the keys of a block of `span` tiles, blocks in any order; memory:
     * block_bytes() of it.  keys() is then NULL.  If older tiles of the block are staged already,
     * `tile` is the first one whose keys are new or have got newer ones behind them.
     * blocks_bwd(): after all sums; the gradient of staged keys becomes that of the keys. */
    int span;
    size_t (*block_bytes)(const struct call *, int x);
    void (*blocks)(const struct call *, int x, const struct sequence *, ptrdiff_t tile, int kh,
                   void *memory);
    void (*blocks_bwd)(const struct call *, int x, const struct sequence *, ptrdiff_t tile, int kh,
                       void *memory);
    /* n keys of a tile become those that rows of later tiles read, in place; rows of dim reals,
     * rotated if a rotation precedes.  Threads do tiles of key heads in any order. */
    void (*keys)(const struct call *, int x, const struct sequence *, ptrdiff_t tile, int kh, int n,
                 real *rows);
    /* The adjoint: d is the gradient of staged keys and becomes that of the keys before keys(). */
    void (*keys_bwd)(const struct call *, int x, const struct sequence *, ptrdiff_t tile, int kh,
                     int n, real *d, ptrdiff_t stride);

    /* ---- A tile ---- */

    void (*form)(struct tile *, int x); /* q.across from the carry */
    enum owners (*owners)(const struct tile *, int x);
    /* s of the rows that own the tile. */
    void (*scores)(struct tile *, int x);
    /* The carry becomes that of the next older tile, and q.across its form. */
    void (*step)(struct tile *, int x);

    /* True if step() changes no row.  NULL: false. */
    bool (*keeps)(const struct tile *, int x);

    /* Backward, oldest tile first.  scores_bwd() takes ds of the rows that own the tile: it adds to
     * dq, own.keys and part, and sets their ds and their rows of q.faded to 0, so that products
     * add nothing.  dq is one of two things:
     *
     *     with add_dq     the gradient of the rows as they were loaded.  add_dq() adds d, the
     *                     gradient by q.across of the rows that do not own the tile.
     *     with step_bwd   the gradient of the rows as the tile before reads them, from chunk to
     *                     chunk.  step_bwd() makes it that of the rows as this tile reads them,
     *                     if they do not own it, before products add to it; scores_bwd() for the
     *                     others.  reads() tells them apart: products leave dq of rows that do
     *                     not read the staged keys of the tile as it is. */
    void (*scores_bwd)(struct tile *, int x);
    void (*add_dq)(struct tile *, int x, const real *d);
    void (*step_bwd)(struct tile *, int x);
    bool (*reads)(const struct tile *, int x, int r);
};

#endif
