/* SPDX-License-Identifier: MIT */
/* numbers.h -- the plainest table: a few numbers per head, reals [H][count].  The gradient has the
 * same form: a part is the numbers of a head. */
#ifndef LOCI_SHAPE_NUMBERS_H
#define LOCI_SHAPE_NUMBERS_H

#include <stddef.h>

enum { AFFINE_BEHIND, AFFINE_AHEAD, AFFINE_COUNT };      /* of the term `affine`: slopes for keys
                                                            behind the query, and ahead of it */
enum { SINK_LOGIT, SINK_COUNT };                         /* of the term `sink` */

static inline ptrdiff_t numbers_at(int count, int h, int number)
{
    return (ptrdiff_t)h * count + number;
}

#endif
