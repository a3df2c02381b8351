/* SPDX-License-Identifier: MIT */
/* ordered_sum.h -- jobs make the sums of work items at the same time, and the sums are added to
 * their totals in the order of the items.
 *
 * Jobs process items in order, and each item chunk by chunk.  The sums of an item in a chunk are in
 * a block.  A block is added after the earlier items that add to the same place have added that
 * chunk.  A job whose block must wait leaves it behind and continues with a spare block, if there
 * is one.  The job that adds the block before it then adds it, too.  A job waits only if there is
 * no spare block: until its own block can be added, or until a block is free.
 *
 * No job waits forever.  Items are processed in order, so the first item that is not added belongs
 * to a job that has begun, or was left behind by one.  A job always has a block of its own, so the
 * first item never waits: its block can be added as soon as it is summed.  Jobs that have not begun
 * own no item, and no other job waits for them.  So a host may run the jobs one by one. */
#ifndef LOCI_UTIL_ORDERED_SUM_H
#define LOCI_UTIL_ORDERED_SUM_H

#include <stdbool.h>
#include <stddef.h>

#include "util/limits.h"
#include "util/lock.h"

/* Blocks in addition to those of the jobs.  Half of that number suits items of falling cost.  It
 * has an upper limit, because blocks are what needs memory. */
enum { MOST_SPARE = 8, MOST_BLOCKS = MAX_THREADS + MOST_SPARE };
static inline int spare_blocks(int jobs) { return jobs / 2 < MOST_SPARE ? jobs / 2 : MOST_SPARE; }

/* What an item adds to.  Items with the same place add to the same numbers, in chunks first ..
 * last.  All items may also add once to totals that they share, after their last chunk. */
struct ordered_item {
    ptrdiff_t place, first, last;
};

enum ordered_stage {
    FREE,    /* not in use */
    IDLE,    /* belongs to a job without an item */
    FILLING, /* belongs to an item that has reached `chunk` */
    FULL,
    ADDING, /* summed; being added */
    PLACED,
    JOINING /* added, but not to the shared totals yet */
};
struct ordered_block {
    enum ordered_stage stage;
    bool owned;              /* a job continues with it */
    ptrdiff_t number, chunk; /* of the item */
    struct ordered_item item;
};

struct ordered_sum {
    /* Returns the item with this number.  Called with the lock. */
    struct ordered_item (*find)(void *arg, ptrdiff_t number);
    /* Adds the block of an item to its place or, if `shared`, to what all items share. */
    void (*add)(void *arg, int block, ptrdiff_t number, ptrdiff_t chunk, bool shared);
    void *arg;
    ptrdiff_t items;
    int blocks;  /* the first ones are those of the jobs */
    bool shares; /* there are shared totals */

    /* private */
    struct lock lock; /* woken when a block has changed its stage */
    ptrdiff_t next;   /* the first item that no job has */
    bool stop;
    struct ordered_block block[MOST_BLOCKS];
};

/* The caller has filled in the fields before `lock`.  jobs: the most jobs that there can be. */
void loci_ordered_sum_open(struct ordered_sum *, int jobs);
void loci_ordered_sum_close(struct ordered_sum *);
/* Returns the next item for the job that owns this block.  It starts at the item's first chunk.
 * -1: no items are left, or the sum was stopped.  The job ends then. */
ptrdiff_t loci_ordered_sum_next(struct ordered_sum *, int block);
/* The sums of the item's chunk are in the block.  Adds all blocks that can be added now.  Returns
 * the block for the next chunk, or for the next item after the last chunk.  -1: the job ends. */
int loci_ordered_sum_submit(struct ordered_sum *, int block);
/* Ends all jobs, also those that wait.  Blocks that are not added yet are dropped. */
void loci_ordered_sum_stop(struct ordered_sum *);

#endif
