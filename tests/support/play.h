/* SPDX-License-Identifier: MIT */
/* play.h -- a walk's problem on one engine: its own buffers in float or double, NaN until written,
 * and the calls of its stage. */
#ifndef LOCI_TESTS_SUPPORT_PLAY_H
#define LOCI_TESTS_SUPPORT_PLAY_H

#include <stdbool.h>

#include "loci/cache.h"
#include "mem.h"
#include "walk.h"

struct play {
    const struct walk *w;
    const char *isa; /* "f64" for that engine */
    bool f64, stick;
    loci_plan *plan;
    loci_call call; /* its error is the one below */
    loci_grad grad;
    loci_error error;
    void *data[WALK_TENSORS], *ddata[WALK_TENSORS];
    void *tables, *work, *weights, *state; /* state: of linear attention, if available */
    size_t pairs;                          /* numbers of `weights` */
    /* Attention again, with its keys in a cache if possible; else the plan is NULL.  The keys may
     * be rotated, so it has its own plan and tables. */
    struct {
        loci_plan *plan;
        loci_call call;
        loci_cache *cache;
        void *tables, *work, *memory;
        size_t bytes;
        /* for a tree of one node: rows of zeros, its output and a workspace */
        void *zeros, *row, *tree_work;
    } cached;
    struct mem mem;
};

/* False: the plan cannot be created, which is a failed check. */
bool play_open(struct play *, const struct walk *, const char *isa, bool f64, const loci_host *);
void play_close(struct play *);

/* The passes, in the order in which results depend on each other.  WEIGHTS are of attention, the
 * last ones are on a cache, and all others are calls of its stage.  A pass that does not exist
 * succeeds at once. */
enum play_pass {
    PLAY_PREPARE,
    PLAY_FORWARD,
    PLAY_BACKWARD,
    PLAY_WEIGHTS,
    PLAY_APPEND,
    PLAY_DECODE,
    PLAY_REMOVE,
    PLAY_TREE,
    PLAY_PASSES
};
extern const char *const play_names[PLAY_PASSES];
loci_status play_pass(struct play *, enum play_pass);

/* Calls every function that needs no problem: layers, conversions, positions, lists and texts.
 * Returns the number of calls that rejected their arguments. */
int play_others(const loci_host *);

#endif
