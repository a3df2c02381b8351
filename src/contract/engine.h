/* SPDX-License-Identifier: MIT */
/* engine.h -- one build of the engine.  The same sources are compiled for every instruction set,
 * and once more in double. */
#ifndef LOCI_CONTRACT_ENGINE_H
#define LOCI_CONTRACT_ENGINE_H

#include "contract/call.h"

enum { LATER_TILES = 16 }; /* tiles that sum_later() processes at once */

/* Arguments of append and remove for the rows of a cache. */
struct cache_update {
    struct loci_cache *to;
    loci_view k, v; /* append: strides resolved */
    /* append: how many of the last rows count, by entry.  NULL: all. */
    const int64_t *counts;
    bool remove;
    ptrdiff_t entry, first, count; /* remove */
    bool rotate;                   /* keys are rotated when they are stored */
    /* remove: rotates keys further from where they are.  A rotation that also multiplies would do
     * so twice.  So `channels` rotated channels, starting at `channel`, are multiplied by
     * `undo`. */
    double undo;
    int channel, channels;
};

/* The steps of a backward pass over many processes (struct chain in stream.h). */
struct chain_sizes {
    size_t item, part; /* bytes of an item, and of its gradients of tables */
    /* Bytes of the rotation's gradients of a key tile, over all heads. */
    size_t tile;
    int groups; /* items for the same rows of an entry */
    bool scans; /* chunks are swept before they are summed */
};
struct chained {
    struct chain_sizes (*sizes)(const struct call *);
    /* Numbers by key of a term's total, 0 if there are none.  The total has lists of such rows,
     * each with `count` rows, one for every key of the capacity.  The lists start at number
     * `first`, after the parts. */
    int (*keyed)(const struct call *, int x, ptrdiff_t *first, ptrdiff_t *count);
    /* sweep() computes the carries of a run's items before the older chunk, newest chunks first.
     * sum() then computes their sums in a chunk, oldest first.  Both return LOCI_CANCELLED or
     * LOCI_OK. */
    loci_status (*sweep)(struct call *, ptrdiff_t run, ptrdiff_t chunk);
    loci_status (*sum)(struct call *, ptrdiff_t run, ptrdiff_t chunk);
    /* Adds the items' sums to the sums by key, and those of one batch entry to the totals of
     * tables. */
    void (*add_keys)(struct call *, ptrdiff_t run, ptrdiff_t chunk);
    void (*add_parts)(struct call *, ptrdiff_t run, ptrdiff_t b);
    /* rotate_back() rotates dk of key tiles back: `tiles` tiles of each sequence, starting at
     * `tile`.  They are tiles `own` and following of this process.  add_tiles() adds the resulting
     * gradients of an entry. */
    void (*rotate_back)(struct call *, ptrdiff_t tile, ptrdiff_t tiles, ptrdiff_t own);
    void (*add_tiles)(struct call *, ptrdiff_t b, ptrdiff_t own, ptrdiff_t tiles);
};

enum { PROJECTED = 64 };
struct engine {
    /* "scalar", "avx2", "avx512", "neon", "simd128"; "f64" for the double build. */
    const char *isa;
    /* workspace(): bytes for one thread.  block(): bytes of a block of sums in the backward pass.
     * Both return SIZE_MAX if that is too many.  chunk_sums(): reals stored for every chunk in
     * decode.  total(): reals of the total of a term's parts, 0 if it has none. */
    size_t (*workspace)(const struct call *, bool backward);
    size_t (*block)(const struct call *);
    size_t (*chunk_sums)(const struct call *);
    ptrdiff_t (*total)(const struct call *, int x);
    bool (*skips)(const struct call *);       /* needs the norms of the keys */
    size_t (*moved)(const struct call *);     /* bytes of mem.moved */
    void (*keys)(struct call *);              /* rotates keys and computes norms */
    size_t (*part_slot)(const struct call *); /* bytes of a slot of struct part */
    loci_status (*forward)(struct call *), (*backward)(struct call *);
    loci_status (*weights)(struct call *); /* stored, not multiplied by values */
    /* Forward with bf16 dot products.  NULL: this build has none. */
    loci_status (*fast)(struct call *);
    /* Stores dk and dv that were summed elsewhere, after all additions: those of `count` keys from
     * `first` on.  In the caller's arrays they start at key `to`. */
    void (*store_gradients)(struct call *, ptrdiff_t first, ptrdiff_t count, ptrdiff_t to);
    /* Rotates dk and dv back if values turn; else backward() has done it. */
    void (*unrotate)(struct call *);
    /* Turns a row of reals of the gradient of outputs by the angles of row i of a head. */
    void (*turn_output)(const struct call *, ptrdiff_t b, int h, ptrdiff_t i, void *row);
    const struct chained *chained;
    size_t (*cache_workspace)(const struct call *); /* bytes of one thread */
    loci_status (*update_cache)(struct call *, const struct cache_update *);
    /* Stages the keys of a cache where mem.rotated and mem.moved say, from the tile of the key
     * before number from[b] of each entry on. */
    void (*stage_cache)(struct call *, const int64_t *from);
    size_t (*rotate_workspace)(const struct call *); /* bytes of one thread */
    loci_status (*rotate)(struct call *, loci_which, const loci_view *x, const loci_view *y);
    loci_status (*rotate_backward)(struct call *, loci_which, const loci_view *x,
                                   const loci_view *dy, const loci_view *dx);
    /* Stage LINEAR_ATTENTION: bytes of a thread's workspace, and of the state of a kv head, in
     * whole lines of 64 bytes. */
    size_t (*linear_workspace)(const struct call *, bool backward);
    size_t (*linear_state)(const struct loci_plan *);
    loci_status (*linear)(struct call *), (*linear_backward)(struct call *);
    /* For LATER_TILES tiles of KT reals.  later: for each number, the sum of those after it in its
     * tile, newest first.  sum: the sum of a tile.  top: the largest of `later` in a tile. */
    void (*sum_later)(const void *x, void *later, double *sum, double *top);
    /* to[m][n] += x[m][k] y[k][n]; the same bits on every machine.  Plans in double borrow it
     * from the best engine in float32. */
    void (*add_product)(int m, int k, int n, const double *x, const double *y, double *to);
    /* to[i][j] += x[i] . y[j] in reals, for m rows i and n <= PROJECTED rows j of k numbers.  Rows
     * of x, y and to are xs, ys and PROJECTED numbers apart.  Each 32 of the k are one chain. */
    void (*add_projected)(int m, int k, int n, const void *x, ptrdiff_t xs, const void *y,
                          ptrdiff_t ys, void *to);
};

/* isa.c.  Returns the best engine that this CPU and operating system run, or the one named.  NULL:
 * the name is unknown or cannot run here.  The f64 engine is portable C and the same for every ISA
 * name. */
const struct engine *loci_engine(const char *isa, bool f64);
bool loci_dots_bf16(void);        /* do this CPU and operating system run engine.fast? */
bool loci_prefetch_streams(void); /* does decode gain if it prefetches rows that adjoin? */

#endif
