/* SPDX-License-Identifier: MIT */
/* shape_text.h -- shapes of tensors as text. */
#ifndef LOCI_UTIL_SHAPE_TEXT_H
#define LOCI_UTIL_SHAPE_TEXT_H

#include <stdio.h>

#include "loci/loci.h"

/* "[32,2]".  Extents that only a call knows are letters, as in "[B,2,Lk]". */
static inline const char *shape_text(int rank, const ptrdiff_t *shape, char *text, size_t capacity)
{
    size_t n = (size_t)snprintf(text, capacity, "[");
    for (int i = 0; i < rank && n < capacity; i++) {
        const ptrdiff_t s = shape[i];
        const char *comma = i ? "," : "";
        const char *letter = s == LOCI_DIM_BATCH   ? "B"
                           : s == LOCI_DIM_QUERIES ? "Lq"
                           : s == LOCI_DIM_KEYS    ? "Lk"
                                                   : NULL;
        if (letter) n += (size_t)snprintf(text + n, capacity - n, "%s%s", comma, letter);
        else n += (size_t)snprintf(text + n, capacity - n, "%s%td", comma, s);
    }
    if (n < capacity) snprintf(text + n, capacity - n, "]");
    return text;
}

#endif
