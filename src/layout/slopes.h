/* SPDX-License-Identifier: MIT */
/* slopes.h -- what the term `slopes` reads: slopes that come with the call, for each key, for each
 * query, or both. */
#ifndef LOCI_LAYOUT_SLOPES_H
#define LOCI_LAYOUT_SLOPES_H

#include "contract/call.h"

/* The number of a tensor of the encoding, or -1: [B][H][Lk] and [B][H][Lq]. */
struct slopes {
    int key, query;
};

/* Where the slopes of a head have the first present key. */
static inline ptrdiff_t slopes_at(const struct call *c, ptrdiff_t b, int h)
{
    return (b * c->plan->heads + h) * c->Lk;
}

#endif
