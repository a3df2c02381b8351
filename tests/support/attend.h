/* SPDX-License-Identifier: MIT */
/* attend.h -- an attention call in one step, for tests of claims about encodings: f32 or f64, all
 * outputs and gradients; or the reference's result. */
#ifndef LOCI_TESTS_SUPPORT_ATTEND_H
#define LOCI_TESTS_SUPPORT_ATTEND_H

#include <stdbool.h>

#include "mem.h"
#include "walk.h"

/* Element i of a tensor, in the order of its shape. */
typedef double attend_fill(const char *encoding, const loci_tensor *, ptrdiff_t i);

struct attend {
    /* Inputs.  NULL: random numbers, from the seed.  They are [heads][len][dim], in double, rounded
     * if the call is f32. */
    loci_desc desc;
    ptrdiff_t q_len, k_len;
    int seed;
    const double *q, *k, *v;
    /* NULL: as the paper initialises them, plus a small change */
    attend_fill *fill;
    const int64_t *q_pos, *k_pos;
    const double *q_coord, *k_coord;
    const loci_host *host;
    bool reference; /* not the engine; desc.dtype must be LOCI_F64 */

    /* Outputs, in double, freed by attend_free(). rows: lse, or rem of a stick. */
    double *o, *rows, *dq, *dk, *dv, *dtensor[WALK_TENSORS];
    struct mem mem;
};

/* Forward and backward.  If the library fails, prints the sentence and exits. */
void attend(struct attend *);
void attend_free(struct attend *);

/* The largest |a - b|, or with `relative` |a - b| / (1 + |b|), of n numbers.  Infinite if a number
 * is NaN on one side only, so that no maximum loses it. */
double attend_apart(const double *a, const double *b, ptrdiff_t n, bool relative);

/* The bias of one pair: the lse of one query 0 and one key 0. */
double attend_bias(const char *encoding, int heads, int head, int64_t q_pos, int64_t k_pos,
                   attend_fill *);

#endif
