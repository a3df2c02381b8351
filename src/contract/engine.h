/* SPDX-License-Identifier: MIT */
/* engine.h -- one build of the engine: the same sources for every instruction set,
 * and once more in double. */
#ifndef LOCI_CONTRACT_ENGINE_H
#define LOCI_CONTRACT_ENGINE_H

#include "contract/call.h"

enum { LATER_TILES = 16 };               /* tiles that sum_later() works on at once */

/* What append and remove do with the rows of a cache. */
struct cache_update {
    struct loci_cache *to;
    loci_view k, v;                      /* append: strides resolved */
    /* append: how many of the last rows count, by entry; NULL: all */
    const int64_t *counts;
    bool remove;
    ptrdiff_t entry, first, count;       /* remove */
    bool rotate;                           /* keys turn as they are put there */
    /* remove: keys turn on from where they are.  A rotation that also multiplies would do so twice,
     * so the channels that turn, `channels` of them from `channel` on, are multiplied by `undo`. */
    double undo;
    int channel, channels;
};

/* The steps of a backward pass of many processes (struct chain in call.h). */
struct chain_sizes {
    size_t item, part;                   /* bytes of an item, and of its gradients of tables */
    size_t tile;                         /* of what all heads of a key tile leave of the rotation's
                                            */
    int groups;                          /* items for the same rows of an entry */
    bool scans;                          /* chunks are swept before they are summed */
};
struct chained {
    struct chain_sizes (*sizes)(const struct call *);
    /* Numbers by key of a term's total, 0 if there are none: lists of such rows, `count` of them
     * for all keys that there is room for, begin with number `first`, and parts lie before. */
    int (*keyed)(const struct call *, int x, ptrdiff_t *first, ptrdiff_t *count);
    /* Carries of the items of a run before the chunk that is older, newest chunks first; then their
     * sums in a chunk, oldest first.  LOCI_CANCELLED, or LOCI_OK. */
    loci_status (*sweep)(struct call *, ptrdiff_t run, ptrdiff_t chunk);
    loci_status (*sum)(struct call *, ptrdiff_t run, ptrdiff_t chunk);
    /* Adds what they have to the sums by key, and, of one batch entry, to the totals of tables. */
    void (*add_keys)(struct call *, ptrdiff_t run, ptrdiff_t chunk);
    void (*add_parts)(struct call *, ptrdiff_t run, ptrdiff_t b);
    /* Turns dk of key tiles back, tile number `tile` of each sequence and those that follow, which
     * are `own` and so on of the process's own; and adds what that left of an entry. */
    void (*rotate_back)(struct call *, ptrdiff_t tile, ptrdiff_t tiles, ptrdiff_t own);
    void (*add_tiles)(struct call *, ptrdiff_t b, ptrdiff_t own, ptrdiff_t tiles);
};

struct engine {
    /* "scalar", "avx2", "avx512", "neon"; "f64" for the double build */
    const char *isa;
    /* Bytes of one thread's workspace, and of a block of sums in the backward pass, SIZE_MAX when
     * too many; in decode, reals that are stored of every chunk; reals of the total of a term's
     * parts (0: it has none). */
    size_t    (*workspace)(const struct call *, bool backward);
    size_t    (*block)(const struct call *);
    size_t    (*chunk_sums)(const struct call *);
    ptrdiff_t (*total)(const struct call *, int x);
    bool      (*skips)(const struct call *);         /* wants to know the norms of the keys */
    void      (*keys)(struct call *);                /* turns and measures them */
    size_t    (*part_slot)(const struct call *);          /* bytes of a slot of struct part */
    loci_status (*forward)(struct call *), (*backward)(struct call *);
    loci_status (*weights)(struct call *);           /* stored, not summed up with values */
    loci_status (*fast)(struct call *);              /* forward with bf16 dot products; NULL: this
                                                        build has none */
    /* dk and dv where they were summed elsewhere, when all is added up: those of `count` keys from
     * `first` on, which are the caller's from number `to` on. */
    void      (*store_gradients)(struct call *, ptrdiff_t first, ptrdiff_t count, ptrdiff_t to);
    const struct chained *chained;
    size_t (*cache_workspace)(const struct call *);        /* of one thread in keep() */
    loci_status (*update_cache)(struct call *, const struct cache_update *);
    size_t    (*rotate_workspace)(const struct call *);   /* what rotate() needs of one */
    loci_status (*rotate)(struct call *, loci_which, const loci_view *x, const loci_view *y);
    loci_status (*rotate_backward)(struct call *, loci_which, const loci_view *x,
                                   const loci_view *dy, const loci_view *dx);
    /* Stage LINEAR_ATTENTION: bytes of a thread's workspace, and of the state of a kv head, in
     * whole lines of 64. */
    size_t    (*linear_workspace)(const struct call *, bool backward);
    size_t    (*linear_state)(const struct loci_plan *);
    loci_status (*linear)(struct call *), (*linear_backward)(struct call *);
    /* For LATER_TILES tiles of KT reals: the sum, newest first, of those after each in its tile; of
     * all; the largest of the former. */
    void      (*sum_later)(const void *x, void *later, double *sum, double *top);
    /* to [m][n] += x [m][k] y [k][n]; same bits everywhere */
    void      (*add_product)(int m, int k, int n, const double *x, const double *y, double *to);
};

/* isa.c: the best engine this CPU and operating system run, or the one asked for (NULL: unknown, or
 * cannot run here). The f64 engine is portable C and the same for every ISA name. */
const struct engine *loci_engine(const char *isa, bool f64);
bool loci_dots_bf16(void);               /* do this CPU and operating system run engine.fast? */

#endif
