/* SPDX-License-Identifier: MIT */
/* affine.h -- the table of the term `affine`: two slopes per head, reals [H][AFFINE_COUNT].  The
 * gradient has the same form.  A part has the sums of one head. */
#ifndef LOCI_LAYOUT_AFFINE_H
#define LOCI_LAYOUT_AFFINE_H

#include <stddef.h>

/* Slopes for keys before the query and for keys after it. */
enum { AFFINE_BEHIND, AFFINE_AHEAD, AFFINE_COUNT };

static inline ptrdiff_t affine_at(int h, int slope) { return (ptrdiff_t)h * AFFINE_COUNT + slope; }

#endif
