/* SPDX-License-Identifier: MIT */
/* take.h -- memory as programs want it; the library takes none. */
#ifndef LOCI_COMMON_ALLOC_H
#define LOCI_COMMON_ALLOC_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Zeroed, on 64 bytes, which tables and workspaces want; NULL where there is none.  aligned_alloc()
 * wants whole multiples. */
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
