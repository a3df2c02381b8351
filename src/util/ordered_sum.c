/* SPDX-License-Identifier: MIT */
/* ordered_sum.c -- see ordered_sum.h. */
#include "util/ordered_sum.h"

void loci_ordered_sum_open(struct ordered_sum *t, int jobs)
{
    t->next = 0;
    t->stop = false;
    for (int i = 0; i < t->blocks; i++)
        t->block[i] = (struct ordered_block){ .stage = i < jobs ? IDLE : FREE, .owned = i < jobs };
    lock_open(&t->lock);
}
void loci_ordered_sum_close(struct ordered_sum *t) { lock_close(&t->lock); }

/* Must `before` add to the same place before a full block does?  A block that its job continues
 * with also stands for the later chunks. */
static bool comes_first(const struct ordered_block *before, const struct ordered_block *b)
{
    if (before->stage < FILLING || before->number >= b->number) return false;
    if (b->stage == PLACED) return true;
    if (before->item.place != b->item.place || before->stage >= PLACED) return false;
    return before->chunk <= b->chunk
        && b->chunk <= (before->owned ? before->item.last : before->chunk);
}
/* A block that the job of block `own` may add now: its own, or one that was left behind.  Blocks of
 * other jobs are added by those.  Otherwise the job of the first item would be delayed. */
static struct ordered_block *find_due(struct ordered_sum *t, int own)
{
    for (int i = 0; i < t->blocks; i++) {
        struct ordered_block *b = &t->block[i];
        if ((b->stage != FULL && b->stage != PLACED) || (b->owned && i != own)) continue;
        bool due = true;
        for (int k = 0; k < t->blocks && due; k++) due = !comes_first(&t->block[k], b);
        if (due) return b;
    }
    return NULL;
}
/* The block that a job continues with after it has submitted `from`. */
static void go_on(struct ordered_block *to, const struct ordered_block *from)
{
    const struct ordered_block last = *from;
    *to = (struct ordered_block){ .stage = last.chunk < last.item.last ? FILLING : IDLE,
                                  .owned = true,
                                  .number = last.number,
                                  .chunk = last.chunk + 1,
                                  .item = last.item };
}
/* Called with the lock, which is released while the sums are added. */
static void add(struct ordered_sum *t, struct ordered_block *b)
{
    const bool shared = b->stage == PLACED;
    b->stage = shared ? JOINING : ADDING;
    lock_release(&t->lock);
    t->add(t->arg, (int)(b - t->block), b->number, b->chunk, shared);
    lock_acquire(&t->lock);
    if (!shared && t->shares && b->chunk == b->item.last) b->stage = PLACED;
    else if (b->owned) go_on(b, b);
    else b->stage = FREE;
    lock_wake(&t->lock);
}

ptrdiff_t loci_ordered_sum_next(struct ordered_sum *t, int block)
{
    struct ordered_block *b = &t->block[block];
    lock_acquire(&t->lock);
    const ptrdiff_t number = t->stop || t->next == t->items ? -1 : t->next++;
    if (number >= 0) {
        const struct ordered_item item = t->find(t->arg, number);
        *b = (struct ordered_block){
            .stage = FILLING, .owned = true, .number = number, .chunk = item.first, .item = item
        };
    } else {
        *b = (struct ordered_block){ .stage = FREE };
        lock_wake(&t->lock);
    }
    lock_release(&t->lock);
    return number;
}

/* Leaves behind a full block that cannot be added yet.  Returns a spare block, or -1 if the job has
 * nothing more to do.  Without a spare block the job stays with its own, which is returned. */
static int leave(struct ordered_sum *t, int own)
{
    struct ordered_block *b = &t->block[own];
    const bool ends = b->chunk == b->item.last && t->next == t->items;
    for (int i = 0; i < t->blocks && !ends; i++)
        if (t->block[i].stage == FREE) {
            go_on(&t->block[i], b);
            b->owned = false;
            return i;
        }
    if (ends) b->owned = false;
    return ends ? -1 : own;
}
int loci_ordered_sum_submit(struct ordered_sum *t, int own)
{
    int on = own;
    lock_acquire(&t->lock);
    t->block[own].stage = FULL;
    while (!t->stop) {
        struct ordered_block *due = find_due(t, own);
        if (due) {
            add(t, due);
            continue;
        }
        if (t->block[own].stage < FULL) break; /* it has been added */
        on = leave(t, own);
        if (on != own) break;
        lock_wait(&t->lock);
    }
    if (t->stop) on = -1;
    lock_release(&t->lock);
    return on;
}

void loci_ordered_sum_stop(struct ordered_sum *t)
{
    lock_acquire(&t->lock);
    t->stop = true;
    lock_wake(&t->lock);
    lock_release(&t->lock);
}
