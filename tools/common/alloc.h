/* SPDX-License-Identifier: MIT */
/* alloc.h -- memory allocation for programs.  The library allocates none. */
#ifndef LOCI_COMMON_ALLOC_H
#define LOCI_COMMON_ALLOC_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Zeroed, with the 64-byte alignment of tables and workspaces.  NULL if out of memory.
 * aligned_alloc() requires whole multiples. */
static inline void *alloc_zeroed(size_t count, size_t each)
{
    size_t bytes;
    void *p = NULL;
    if (!__builtin_mul_overflow(count, each, &bytes) && bytes < SIZE_MAX - 64) {
        bytes = bytes ? (bytes + 63) / 64 * 64 : 64;
        p = aligned_alloc(64, bytes);
    }
    return p ? memset(p, 0, bytes) : NULL;
}

#endif
