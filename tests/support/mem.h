/* SPDX-License-Identifier: MIT */
/* mem.h -- memory for tests: lines of 64 bytes, a vector more than was asked for, all bits set, so
 * that in floats and in bf16 it is NaN wherever nothing was written.  What is given back together
 * must not have been written to behind what was asked for. */
#ifndef LOCI_TESTS_SUPPORT_MEM_H
#define LOCI_TESTS_SUPPORT_MEM_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline size_t room_lines(size_t bytes) { return (bytes + 127) / 64 * 64; }
/* One block, for free(). */
static inline void *mem_block(size_t bytes)
{
    void *p = aligned_alloc(64, room_lines(bytes));
    if (!p) exit(2);
    return memset(p, 0xff, room_lines(bytes));
}

/* Blocks that are given back together. */
struct mem { struct { unsigned char *at; size_t bytes; } block[512]; int blocks; };

static inline void *mem_alloc(struct mem *r, size_t bytes)
{
    if (r->blocks == (int)(sizeof r->block / sizeof *r->block)) exit(2);
    r->block[r->blocks].bytes = bytes;
    return r->block[r->blocks++].at = mem_block(bytes);
}
/* All but the first `blocks`. */
static inline void mem_release(struct mem *r, int blocks)
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
