/* SPDX-License-Identifier: MIT */
/* overlap.h -- tests whether the memory of two arguments overlaps. */
#ifndef LOCI_UTIL_OVERLAP_H
#define LOCI_UTIL_OVERLAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/error.h"

/* The bytes of one argument: a run of bytes, repeated by spans, the innermost first.  Each step is
 * at least as long as what it repeats, unless a view of an input overlaps itself.  Then the region
 * is all bytes from its first to its last. */
struct region {
    const char *name;
    uintptr_t at;
    size_t each; /* bytes of a number */
    int spans;
    struct {
        size_t step, count;
    } span[3];
    /* Bytes from the first to the last: of the run, then with each span. */
    size_t reach[4];
    /* As given.  Two equal views are the same array in the same order. */
    loci_view view;
    /* REPLACED: read, and an output may be exactly this array, in place. */
    enum use_of { READ, WRITTEN, REPLACED } use;
    bool itself; /* two of its elements share bytes */
};
enum { MAX_REGIONS = 128 };
struct regions {
    int n;
    struct region list[MAX_REGIONS];
};

/* Numbers of `each` bytes start on a multiple of it, or of less where compilers align them so: i686
 * has numbers of 8 bytes on 4. */
struct aligned_number {
    char before;
    int64_t number;
};
static inline size_t alignment_of(size_t each)
{
    const size_t most = offsetof(struct aligned_number, number);
    return each < most ? each : most;
}

/* Adds a region.  Does nothing if the pointer is NULL or there are no elements. */
void loci_add_list(struct regions *, const char *name, const void *, size_t count, size_t each,
                   enum use_of);
void loci_add_view(struct regions *, const char *name, const loci_view *, ptrdiff_t B, ptrdiff_t H,
                   ptrdiff_t L, ptrdiff_t width, size_t each, enum use_of);
/* Checks that every pointer is aligned as its numbers are.  Written regions must share no byte
 * with any other region, or within themselves. */
loci_status loci_check_regions(const struct regions *, loci_error *e);

#endif
