/* SPDX-License-Identifier: MIT */
/* overlap.h -- finds out whether the memory of two arguments overlaps. */
#ifndef LOCI_UTIL_OVERLAP_H
#define LOCI_UTIL_OVERLAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/error.h"

/* The bytes of one argument: a run of them, repeated by spans, the innermost first.  Each step is
 * at least as long as what it repeats, unless a view of an input runs into itself; then the bytes
 * are those from its first to its last. */
struct region {
    const char *name;
    uintptr_t at;
    size_t each;                         /* bytes of a number */
    int spans;
    struct { size_t step, count; } span[3];
    size_t reach[4];                     /* bytes from the first to the last: of the run, and with
                                            each span more */
    /* as given: two that are the same are one array in the same order */
    loci_view view;
    enum use_of { READ, WRITTEN, REPLACED } use;    /* REPLACED: read, and an output may be it
                                                       exactly, in place */
    bool itself;                         /* two of its numbers share bytes */
};
enum { MAX_REGIONS = 128 };
struct regions { int n; struct region list[MAX_REGIONS]; };

/* Adds what is there: nothing, where the pointer is NULL or there are no numbers. */
void loci_add_list(struct regions *, const char *name, const void *, size_t count, size_t each,
                   enum use_of);
void loci_add_view(struct regions *, const char *name, const loci_view *, ptrdiff_t B, ptrdiff_t H,
                   ptrdiff_t L, ptrdiff_t width, size_t each, enum use_of);
/* Every pointer is a multiple of its number's size; what is written shares no byte with itself nor
 * with anything else. */
loci_status loci_check_regions(const struct regions *, loci_error *e);

#endif
