/* SPDX-License-Identifier: MIT */
/* arena.h -- carves blocks from memory that the caller owns. */
#ifndef LOCI_UTIL_ARENA_H
#define LOCI_UTIL_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ALIGN = 64 }; /* blocks start on cache lines */
static inline size_t round_up(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }
static inline bool aligned(const void *p) { return p && (uintptr_t)p % ALIGN == 0; }

/* Carves blocks from one piece of memory, each aligned to 64 bytes.  It frees none; the owner of
 * the memory does.  With `base` NULL it only counts.  So the same code computes how large the
 * memory must be, and where each block lies.  `used` grows either way.  `full`: sizes overflowed,
 * and the count is meaningless. */
struct arena {
    char *base;
    size_t used;
    bool full;
};
static inline void *carve_bytes(struct arena *a, size_t count, size_t each)
{
    size_t n;
    /* Half of SIZE_MAX leaves a margin for rounding the sum up, here and where callers add sums. */
    if (__builtin_mul_overflow(count, each, &n) || n > SIZE_MAX / 2 - a->used) {
        a->full = true;
        return NULL;
    }
    void *p = a->base ? a->base + a->used : NULL;
    a->used += (n + 63) & ~(size_t)63;
    return p;
}

#endif
