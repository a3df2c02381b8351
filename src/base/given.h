/* SPDX-License-Identifier: MIT */
/* given.h -- what callers give, checked in one place for all public functions: structs of several
 * versions, views, positions, and memory that must not overlap. */
#ifndef LOCI_BASE_GIVEN_H
#define LOCI_BASE_GIVEN_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"

enum { MAX_THREADS = 256 };              /* of a host; each has memory of its own in a workspace */

/* Of a call: with fewer numbers no size or index that is made of them can overflow.  Distances that
 * tables reach.  Both are less where a pointer has 32 bits. */
#if PTRDIFF_MAX > INT32_MAX
#define MOST_NUMBERS ((ptrdiff_t)1 << 48)
#define MOST_DISTANCE FAR
#define MOST_DISTANCE_TEXT "2^40"
#else
#define MOST_NUMBERS ((ptrdiff_t)1 << 25)
#define MOST_DISTANCE ((ptrdiff_t)1 << 30)
#define MOST_DISTANCE_TEXT "2^30"
#endif

/* ---- Structs that grow ----------------------------------------------------------------------- */

/* Every such struct begins with its size as the caller's header has it.  sized: a size of 0 is
 * refused; else it stands for the struct of version 0.1, whose last field UP_TO() names.  Fields
 * that the caller's struct lacks become 0.  Fields that this library does not know must be 0, or
 * the caller asks for something it would silently not get. */
loci_status loci_take_struct(void *to, size_t now, size_t frozen, bool sized, const void *from,
                             const char *name, loci_error *e);
#define UP_TO(type, last) \
    ((offsetof(type, last) + sizeof((type *)0)->last + _Alignof(type) - 1) / _Alignof(type) \
     * _Alignof(type))
#define TAKE(type, to, from, last, sized, e) \
    loci_take_struct(to, sizeof(type), UP_TO(type, last), sized, from, #type, e)

/* BAD_ARG, with no sentence, when there is no call. */
loci_status loci_take_call(loci_call *to, bool sized, const loci_call *from);

/* ---- Positions ------------------------------------------------------------------------------- */

#define FAR ((int64_t)1 << 40)           /* positions beyond are refused: differences stay exact */

/* Both take NULL for "not given", and name the first value that lies beyond. */
loci_status loci_check_near(const int64_t *pos, ptrdiff_t n, const char *name, loci_error *e);
loci_status loci_check_near_axes(const double *x, ptrdiff_t n, const char *name, loci_error *e);

/* ---- Views ----------------------------------------------------------------------------------- */

/* Makes all strides of a view of [B][H][L][width] explicit: dense ones where all three are 0,
 * and steps of 0 for LOCI_BROADCAST.  Afterwards offset arithmetic on it cannot overflow. */
loci_status loci_spell_out(loci_view *, const char *name, ptrdiff_t B, ptrdiff_t H, ptrdiff_t L,
                           ptrdiff_t width, loci_error *e);

/* ---- Memory ---------------------------------------------------------------------------------- */

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
