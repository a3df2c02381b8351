/* SPDX-License-Identifier: MIT */
/* workspace.h -- the memory of a thread, and how work is passed to threads. */
#ifndef LOCI_ENGINE_WORKSPACE_H
#define LOCI_ENGINE_WORKSPACE_H

#include <stdatomic.h>

#include "engine/scores.h"

/* The memory of a thread for the backward pass, besides its tiles. */
struct sums {
    /* A block: sums of a work item and one chunk of keys, of part_keys() keys at most.  Threads
     * change blocks, as one may have to wait until its sums are added. */
    real *dk, *dv;         /* [key heads, kv heads of an item][keys][Dp], [Dvp] */
    real *part[MAX_USES];  /* [heads of an item][part of the term] */
    real *keys[MAX_USES];  /* [heads of an item][keys][key_row() of the term] */
    real *tiled[MAX_USES]; /* [kv heads of an item][tiles][tiled() of the term] */
    /* [heads of an item][added of the term]: of all chunks of the item, if sequences have
     * several, else NULL; in a chain always, and apart from the block */
    double *all[MAX_USES];

    /* the thread's own */
    /* parts of one query tile, per head of an item when they mix */
    real *fresh[MAX_USES];
    /* [key tiles][carry rows][QT], per head of an item when they mix */
    real *carry[MAX_USES];
    /* [key tiles][KT][QT], from the sweep of carries; NULL: computed twice */
    real *scores;

    /* Only if sequences have several chunks, else NULL.  It belongs to the thread, or in a chain
     * to the item.  A slot is a query tile of one head. */
    /* [heads of an item][added of the term]: of the chunks so far */
    double *so_far[MAX_USES];
    real *chunk_state; /* [slots][saved rows][QT]: state of rows */
    /* [slots][chunks][carry rows][QT]: carries at the start of each chunk */
    real *border[MAX_USES];
};
/* The memory of a thread in decode: scores and weights of a whole chunk, and sums of its tiles or,
 * with MANY_ROWS, of one.  lines: the keys of a tile, [D][KT], if MANY_ROWS share them, else
 * NULL. */
enum { MANY_ROWS = 16 };
struct chunk {
    real *s, *p, *alpha, *sums, *lines;
};
struct workspace {
    struct tile *tile;
    struct chunk chunk;
};

INLINE real *carve_reals(struct arena *a, ptrdiff_t n)
{
    return carve_bytes(a, (size_t)n, sizeof(real));
}

/* Heads that an item computes in lockstep; heads and kv heads that a backward item owns.  A
 * mix ties all heads together.  Otherwise a backward item has all heads of one kv head, as
 * they add to the same dK and dV. */
INLINE int locked(const struct loci_plan *p) { return p->mix >= 0 ? p->heads : 1; }
INLINE int item_heads(const struct loci_plan *p) { return p->mix >= 0 ? p->heads : p->group; }
INLINE int item_kv_heads(const struct loci_plan *p) { return p->mix >= 0 ? p->kv_heads : 1; }
INLINE int item_key_heads(const struct loci_plan *p)
{
    return item_kv_heads(p) * (p->key_heads / p->kv_heads);
}
/* Do all rows of an item of decode read the same keys? */
INLINE bool one_key_head(const struct loci_plan *p)
{
    return p->mix < 0 && p->key_heads == p->kv_heads;
}
/* Keys of a chunk, or of the longest sequence if it has fewer, and their
 * tiles; chunks of that sequence. */
INLINE ptrdiff_t part_keys(const struct call *c)
{
    return c->seqs.longest < CHUNK ? c->seqs.longest : CHUNK;
}
INLINE ptrdiff_t part_tiles(const struct call *c) { return (part_keys(c) + KT - 1) / KT; }
INLINE ptrdiff_t most_chunks(const struct call *c) { return (c->seqs.longest + CHUNK - 1) / CHUNK; }
/* The number of chunks of present keys. */
INLINE ptrdiff_t chunks_there(const struct call *c)
{
    const ptrdiff_t keys = streamed(c) ? c->Lk : c->seqs.longest;
    return (keys + CHUNK - 1) / CHUNK;
}
/* Query tiles of a backward item. */
INLINE ptrdiff_t item_tiles(const struct call *c)
{
    return ((c->Lq < ROW_CHUNK ? c->Lq : ROW_CHUNK) + QT - 1) / QT;
}
/* Reals from key to key where a term sums by key. */
INLINE int key_row(const struct term *term, const struct call *c, int x)
{
    return term->keyed_alone ? 1 : padded(term->keyed(c, x));
}
/* How much of a part is added to the total. */
INLINE ptrdiff_t added_part(const struct call *c, int x)
{
    const struct term *term = term_of(c, x);
    return term->added ? term->added(c, x) : term->part(c, x);
}
/* True if the scores that the sweep of carries computed can be reused.  Not if score() may
 * store something for score_bwd(), which needs memory of its own.  Only a weight term's sweep
 * ends at the final scores. */
INLINE bool reuses_scores(const struct call *c)
{
    const struct loci_plan *p = c->plan;
    if (p->weight < 0 || p->mix >= 0) return false;
    EACH_USE(c, x, term)
        if (x != p->weight && x != p->rotate
            && (term->mem || term->carry || term->read || p->use[x].group == GROUP_MUL))
            return false;
    return term_of(c, p->weight)->carry != NULL;
}

/* Rows of a sequence that a thread processes together in decode. */
INLINE ptrdiff_t decode_rows(const struct call *c) { return c->Lq * item_heads(c->plan); }
/* May decode compute rows of several sequences together, where these share tiles of keys?  The rows
 * must not depend on more than their own scores. */
INLINE bool computes_together(const struct call *c)
{
    const struct loci_plan *p = c->plan;
    if (c->B < 2 || !(c->cache || c->in->pages) || p->mix >= 0 || p->weight >= 0 || p->moves >= 0
        || p->row_forms > 1 || p->key_forms > 1 || p->key_heads != p->kv_heads
        || (p->rotate >= 0 && !p->keys_rotated) || (p->turns_values && !c->cache) || fading(c)
        || streamed(c))
        return false;
    EACH_USE(c, x, term)
        if (term->carry || term->exhausted || term->value || term->reads_keys || term->part_state)
            return false;
    return true;
}
/* Rows of an item of decode. */
enum { MOST_TOGETHER = 32 };
INLINE ptrdiff_t item_rows(const struct call *c)
{
    const ptrdiff_t rows = decode_rows(c), all = computes_together(c) ? c->B * rows : rows,
                    most = all < MOST_TOGETHER ? all : MOST_TOGETHER;
    return most > rows ? most : rows;
}
/* Tiles of a chunk that decode has memory for: softmax_tile() processes VL of them at once. */
INLINE ptrdiff_t decode_tiles(const struct call *c) { return (part_tiles(c) + VL - 1) / VL * VL; }

/* Reals from the scores of a row to those of the next.  Strides of a power of two would share few
 * lines of a cache. */
INLINE ptrdiff_t decode_stride(const struct call *c)
{
    return decode_tiles(c) * KT + 64 / (ptrdiff_t)sizeof(real);
}
/* Do so many rows of an item share their keys that arithmetic is the limit? */
INLINE bool many_rows(const struct call *c)
{
    return one_key_head(c->plan) && item_rows(c) >= MANY_ROWS;
}
/* Tiles whose sums of values are there at a time. */
INLINE ptrdiff_t decode_sums(const struct call *c) { return many_rows(c) ? 1 : decode_tiles(c); }

/* Lays out the memory of a thread at `base`, and returns its bytes; NULL: only measures.  sums:
 * its memory in a backward pass besides its block of sums, or NULL. */
size_t N(lay_out)(const struct call *, char *base, struct workspace *, struct sums *);
/* With sums, these include the thread's first block. */
struct workspace N(workspace_of)(const struct call *, int index, struct sums *);
/* Block number `index`, and nothing else; and its bytes.  The first blocks
 * are those of the threads. */
struct sums N(sums_of)(const struct call *, int index);
size_t N(sums_bytes)(const struct call *);
/* In a chain: all memory of item number `item` of the current run, whose gradients of tables are
 * number `part` of those of all runs; and the bytes of both. */
void N(use_item)(const struct call *, ptrdiff_t item, ptrdiff_t part, struct sums *);
struct item_bytes {
    size_t item, part;
} N(item_bytes)(const struct call *);
/* Makes this the thread's block. */
void N(use_block)(const struct call *, int index, struct sums *);
/* Its angles, which come first in workspaces of every tile width. */
struct angles *N(angles_of)(const struct call *, int index);
size_t N(angles_bytes)(const struct call *);

/* True if the host has cancelled.  It is called at least once for the rows of a
 * tile and the keys they see. */
INLINE bool cancelled(const struct call *c)
{
    const loci_host *host = c->in->host;
    return host && host->cancelled && host->cancelled(host->user);
}
/* What hooks that process blocks of tiles work in, by thread: behind what the term stages. */
INLINE size_t moved_bytes(const struct call *c)
{
    const struct moves *moves = moves_of(c);
    return moves && moves->bytes ? round_up(moves->bytes(c, c->plan->moves)) : 0;
}
INLINE size_t block_bytes(const struct call *c)
{
    const struct moves *moves = moves_of(c);
    return moves && moves->block_bytes ? round_up(moves->block_bytes(c, c->plan->moves)) : 0;
}
INLINE void *block_memory(const struct call *c, int index)
{
    return (char *)c->mem.moved + moved_bytes(c) + (size_t)index * block_bytes(c);
}
/* Saves the state of rows over the keys so far in a slot of that many bytes, or restores it. */
void N(save_part)(struct tile *, char *slot, bool back);
size_t N(part_slot_bytes)(const struct call *);
/* See sum_later in engine.h. */
void N(sum_later)(const void *x, void *later, double *sum, double *top);
/* See add_product and add_projected in engine.h. */
void N(add_product)(int m, int k, int n, const double *x, const double *y, double *to);
void N(add_projected)(int m, int k, int n, const void *x, ptrdiff_t xs, const void *y, ptrdiff_t ys,
                      void *to);
/* Runs job(arg, 0) .. job(arg, n - 1) on the host's threads, or here. */
void N(run)(const struct call *, int n, void (*job)(void *, int), void *arg);
/* Rotates, stages and measures the keys, where the plan requires it. */
void N(prepare_keys)(struct call *);

#endif
