/* SPDX-License-Identifier: MIT */
/* arena.h -- memory laid out in one block that somebody else owns. */
#ifndef LOCI_BASE_ARENA_H
#define LOCI_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ALIGN = 64 };                     /* blocks start on lines */
static inline size_t round_up(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }
static inline bool aligned(const void *p) { return p && (uintptr_t)p % ALIGN == 0; }

/* Memory for blocks that start on 64 bytes.  With base NULL it only measures; `used` grows either
 * way. */
struct arena { char *base; size_t used; bool full; };
static inline void *take_bytes(struct arena *a, size_t count, size_t each)
{
    size_t n;
    if (__builtin_mul_overflow(count, each, &n) || n > SIZE_MAX / 2 - a->used) {
        a->full = true;
        return NULL;
    }
    void *p = a->base ? a->base + a->used : NULL;
    a->used += (n + 63) & ~(size_t)63;
    return p;
}

#endif
