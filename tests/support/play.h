/* SPDX-License-Identifier: MIT */
/* play.h -- a walk's problem on one engine: buffers of its own in float or double, all of them NaN
 * until they are written, and the calls that its stage has. */
#ifndef LOCI_TESTS_SUPPORT_PLAY_H
#define LOCI_TESTS_SUPPORT_PLAY_H

#include <stdbool.h>

#include "loci/cache.h"
#include "mem.h"
#include "walk.h"

struct play {
    const struct walk *w;
    const char *isa;                     /* "f64" where that is it */
    bool f64, stick;
    loci_plan *plan;
    loci_call call;                      /* its error is the one below */
    loci_grad grad;
    loci_error error;
    void *data[WALK_TENSORS], *ddata[WALK_TENSORS];
    void *tables, *work, *weights, *state;   /* state: of linear attention, where it can be had */
    size_t pairs;                        /* numbers of `weights` */
    /* Attention again, with its keys in a cache, where they can be in one; else the plan is NULL.
     * The keys may be turned, so the plan and the tables are others. */
    struct {
        loci_plan *plan;
        loci_call call;
        loci_cache *cache;
        void *tables, *work, *memory;
        size_t bytes;
    } cached;
    struct mem mem;
};

/* False: the plan cannot be made, which is a check that failed. */
bool play_open(struct play *, const struct walk *, const char *isa, bool f64, const loci_host *);
void play_close(struct play *);

/* What it can do, in the order in which results need each other.  WEIGHTS are of attention, the
 * last ones of a cache, and all else is a call of its stage; what is not there is done at once. */
enum play_pass {
    PLAY_PREPARE, PLAY_FORWARD, PLAY_BACKWARD, PLAY_WEIGHTS, PLAY_APPEND, PLAY_DECODE, PLAY_REMOVE,
    PLAY_PASSES
};
extern const char *const play_names[PLAY_PASSES];
loci_status play_pass(struct play *, enum play_pass);

/* Every function that takes no problem: layers, conversions, positions, lists and texts.  Returns
 * how many refused what they were given. */
int play_others(const loci_host *);

#endif
