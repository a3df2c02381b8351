/* SPDX-License-Identifier: MIT */
/* room.h -- memory for tests: lines of 64 bytes, a vector more than was asked for, all bits set, so
 * that in floats and in bf16 it is NaN wherever nothing was written.  What is given back together
 * must not have been written to behind what was asked for. */
#ifndef LOCI_TESTS_SUPPORT_ROOM_H
#define LOCI_TESTS_SUPPORT_ROOM_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline size_t room_lines(size_t bytes) { return (bytes + 127) / 64 * 64; }
/* One block, for free(). */
static inline void *room_block(size_t bytes)
{
    void *p = aligned_alloc(64, room_lines(bytes));
    if (!p) exit(2);
    return memset(p, 0xff, room_lines(bytes));
}

/* Blocks that are given back together. */
struct room { struct { unsigned char *at; size_t bytes; } block[512]; int blocks; };

static inline void *room_take(struct room *r, size_t bytes)
{
    if (r->blocks == (int)(sizeof r->block / sizeof *r->block)) exit(2);
    r->block[r->blocks].bytes = bytes;
    return r->block[r->blocks++].at = room_block(bytes);
}
/* All but the first `blocks`. */
static inline void room_leave(struct room *r, int blocks)
{
    while (r->blocks > blocks) {
        const size_t bytes = r->block[--r->blocks].bytes;
        unsigned char *at = r->block[r->blocks].at;
        for (size_t i = bytes; i < room_lines(bytes); i++)
            if (at[i] != 0xff) {
                printf("byte %zu of a block of %zu was written\n", i, bytes);
                exit(1);
            }
        free(at);
    }
}

#endif
