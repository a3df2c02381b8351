/* SPDX-License-Identifier: MIT */
/* turns.h -- jobs make the sums of work items at the same time, and the sums are added to their
 * totals in the order of the items.
 *
 * Jobs take items in their order and go through each chunk by chunk.  What an item has summed in a
 * chunk lies in a block, and a block is added when its turn has come: when the items before it that
 * add to the same place have added that chunk.  A job whose block must wait leaves it behind and
 * goes on with a spare one, if there is one; whoever adds what it waited for then adds it, too.
 * Only a job that finds no spare block waits, for its own turn or for a block.
 *
 * Nobody waits for ever.  Items are taken in order, so of all that are not yet added the first one
 * is in the hands of a job that has begun, or was left behind by one.  A job always has a block of
 * its own, so that of the first item never waits: its turn has come as soon as it is summed.  Jobs
 * that have not begun hold no item, and nobody waits for them: a host may run them one by one. */
#ifndef LOCI_UTIL_ORDERED_SUM_H
#define LOCI_UTIL_ORDERED_SUM_H

#include <stdbool.h>
#include <stddef.h>

#include "util/limits.h"
#include "util/lock.h"

/* Blocks beside those of the jobs: half as many, as items of falling cost want, but a few at most,
 * as they are what takes memory. */
enum { MOST_SPARE = 8, MOST_BLOCKS = MAX_THREADS + MOST_SPARE };
static inline int spare_blocks(int jobs) { return jobs / 2 < MOST_SPARE ? jobs / 2 : MOST_SPARE; }

/* What an item adds to: items with the same place add to the same numbers, in chunks first .. last;
 * beside that all items may add to totals that they share, once, after their last chunk. */
struct ordered_item { ptrdiff_t place, first, last; };

enum ordered_stage {
    FREE,                                /* nobody's */
    IDLE,                                /* of a job that has no item in hand */
    FILLING,                             /* of an item, which has come to `chunk` */
    FULL, ADDING,                        /* summed; somebody adds it */
    PLACED, JOINING                      /* it is, but its share of the shared totals is not */
};
struct ordered_block {
    enum ordered_stage stage;
    bool owned;                           /* a job goes on with it */
    ptrdiff_t number, chunk;             /* of the item */
    struct ordered_item item;
};

struct ordered_sum {
    /* What the item with this number is.  Asked under the lock. */
    struct ordered_item (*find)(void *arg, ptrdiff_t number);
    /* Adds the block of an item: to its place, or, `shared`, to what all items share. */
    void (*add)(void *arg, int block, ptrdiff_t number, ptrdiff_t chunk, bool shared);
    void *arg;
    ptrdiff_t items;
    int blocks;                          /* the first ones are those of the jobs */
    bool shares;                         /* there are shared totals */

    /* its own */
    struct lock lock;                    /* woken when a block has moved on */
    ptrdiff_t next;                      /* first item that nobody has taken */
    bool stop;
    struct ordered_block block[MOST_BLOCKS];
};

/* The caller has filled in the fields before `lock`; jobs: how many there will be at most. */
void loci_ordered_sum_open(struct ordered_sum *, int jobs);
void loci_ordered_sum_close(struct ordered_sum *);
/* Takes the next item for the job that has this block, which begins with the item's first chunk;
 * -1: none is left, or all stop, and the job ends. */
ptrdiff_t loci_ordered_sum_next(struct ordered_sum *, int block);
/* The sums of the item's chunk are in the block: adds what may be added now.  Returns the block for
 * the next chunk, or for the next item after the last one; -1: the job ends. */
int loci_ordered_sum_submit(struct ordered_sum *, int block);
/* All jobs end, and those that wait stop waiting; blocks that were not added never are. */
void loci_ordered_sum_stop(struct ordered_sum *);

#endif
