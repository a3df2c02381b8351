/* SPDX-License-Identifier: MIT */
/* arguments.h -- checks that all public functions share: struct versions, positions, strides. */
#ifndef LOCI_UTIL_ARGUMENTS_H
#define LOCI_UTIL_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "util/error.h"
#include "util/limits.h"

/* ---- Structs that grow ----------------------------------------------------------------------- */

/* Every such struct begins with its size as the caller's header has it.  sized: a size of 0 is
 * refused; else it stands for the struct of version 0.1, whose last field UP_TO() names.  Fields
 * that the caller's struct lacks become 0.  Fields that this library does not know must be 0, or
 * the caller asks for something it would silently not get. */
loci_status loci_copy_struct(void *to, size_t now, size_t frozen, bool sized, const void *from,
                             const char *name, loci_error *e);
#define UP_TO(type, last) \
    ((offsetof(type, last) + sizeof((type *)0)->last + _Alignof(type) - 1) / _Alignof(type) \
     * _Alignof(type))
#define COPY_STRUCT(type, to, from, last, sized, e) \
    loci_copy_struct(to, sizeof(type), UP_TO(type, last), sized, from, #type, e)

/* BAD_ARG, with no sentence, when there is no call. */
loci_status loci_copy_call(loci_call *to, bool sized, const loci_call *from);

/* ---- Positions ------------------------------------------------------------------------------- */

/* Both take NULL for "not given", and name the first value that lies beyond. */
loci_status loci_check_near(const int64_t *pos, ptrdiff_t n, const char *name, loci_error *e);
loci_status loci_check_near_axes(const double *x, ptrdiff_t n, const char *name, loci_error *e);

/* ---- Views ----------------------------------------------------------------------------------- */

/* Makes all strides of a view of [B][H][L][width] explicit: dense ones where all three are 0,
 * and steps of 0 for LOCI_BROADCAST.  Afterwards offset arithmetic on it cannot overflow. */
loci_status loci_spell_out(loci_view *, const char *name, ptrdiff_t B, ptrdiff_t H, ptrdiff_t L,
                           ptrdiff_t width, loci_error *e);

#endif
