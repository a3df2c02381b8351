/* SPDX-License-Identifier: MIT */
/* room.h -- memory for tests: lines of 64 bytes, a vector more than was asked for, all bits set, so
 * that in floats and in bf16 it is NaN wherever nothing was written. */
#ifndef LOCI_TESTS_ROOM_H
#define LOCI_TESTS_ROOM_H

#include <stdlib.h>
#include <string.h>

/* One block, for free(). */
static inline void *room_block(size_t bytes)
{
    const size_t lines = (bytes + 127) / 64 * 64;
    void *p = aligned_alloc(64, lines);
    if (!p) exit(2);
    return memset(p, 0xff, lines);
}

/* Blocks that are given back together. */
struct room { void *block[512]; int blocks; };

static inline void *room_take(struct room *r, size_t bytes)
{
    if (r->blocks == (int)(sizeof r->block / sizeof *r->block)) exit(2);
    return r->block[r->blocks++] = room_block(bytes);
}
/* All but the first `blocks`. */
static inline void room_leave(struct room *r, int blocks)
{
    while (r->blocks > blocks) free(r->block[--r->blocks]);
}

#endif
