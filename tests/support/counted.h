/* SPDX-License-Identifier: MIT */
/* counted.h -- counting allocators, of which one call fails: for tests that compile the sources
 * they test. */
#ifndef LOCI_TESTS_SUPPORT_COUNTED_H
#define LOCI_TESTS_SUPPORT_COUNTED_H

#include <stdlib.h>

/* allocations until the failing one; blocks not yet freed */
static int left, live;

static inline void *counted(void *block)
{
    live += block != NULL;
    return block;
}
static inline void *counted_malloc(size_t n) { return left-- == 0 ? NULL : counted(malloc(n)); }
static inline void *counted_calloc(size_t n, size_t size)
{
    return left-- == 0 ? NULL : counted(calloc(n, size));
}
static inline void counted_free(void *block)
{
    live -= block != NULL;
    free(block);
}
#define malloc counted_malloc
#define calloc counted_calloc
#define free counted_free

#endif
