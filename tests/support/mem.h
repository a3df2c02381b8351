/* SPDX-License-Identifier: MIT */
/* mem.h -- memory for tests: 64-byte lines, a vector longer than requested, with all bits set, so
 * that unwritten floats and bf16 are NaN.  Releasing a group also checks that nothing was written
 * behind the requested bytes. */
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

/* Blocks that are released together. */
struct mem {
    struct {
        unsigned char *at;
        size_t bytes;
    } block[512];
    int blocks;
};

static inline void *mem_alloc(struct mem *r, size_t bytes)
{
    if (r->blocks == (int)(sizeof r->block / sizeof *r->block)) exit(2);
    r->block[r->blocks].bytes = bytes;
    return r->block[r->blocks++].at = mem_block(bytes);
}
/* Releases all but the first `blocks`. */
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
