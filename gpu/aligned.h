/* SPDX-License-Identifier: MIT */
/* aligned.h -- memory aligned to 64 bytes, on systems without aligned_alloc() too.  It ends with
 * the bytes that were asked for, so that sanitizers see an access behind them. */
#ifndef LOCI_GPU_ALIGNED_H
#define LOCI_GPU_ALIGNED_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* NULL: no memory. */
static inline void *aligned_new(size_t bytes)
{
    if (bytes > SIZE_MAX - 64 - sizeof(void *)) return NULL;
    char *whole = malloc(bytes + 64 + sizeof whole);
    if (!whole) return NULL;
    char *at = whole + sizeof whole;
    at += (64 - (uintptr_t)at % 64) % 64;
    memcpy(at - sizeof whole, &whole, sizeof whole);
    return at;
}
static inline void aligned_free(void *at)
{
    char *whole;
    if (!at) return;
    memcpy(&whole, (char *)at - sizeof whole, sizeof whole);
    free(whole);
}

#endif
