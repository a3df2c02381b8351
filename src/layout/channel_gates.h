/* SPDX-License-Identifier: MIT */
/* channel_gates.h -- the gates of wall, its input log_f [B][H][Lk][D], and the total of its term:
 * for every key of a head 2 D numbers, of which the first D are the gradient of the key by rows
 * that own its tile, and the others the sum of q dq of the rows whose newest key it is. */
#ifndef LOCI_LAYOUT_CHANNEL_GATES_H
#define LOCI_LAYOUT_CHANNEL_GATES_H

#include "contract/call.h"

enum { CHANNEL_GATES_LOG_F }; /* the tensor */

/* A gate below -LEAST_GATE counts as that: e^-10000 is 0 in any float.  Values from LEAST_GATE up,
 * and NaN, are invalid, and rows that see across them become NaN. */
static const double LEAST_GATE = 1e4;
static inline double channel_gate(double log_f)
{
    return log_f > -LEAST_GATE ? log_f < LEAST_GATE ? log_f : NAN
         : log_f != log_f      ? NAN
                               : -LEAST_GATE;
}

/* Where log_f of a head begins, and what the total has of it. */
static inline ptrdiff_t channel_gates_at(const struct call *c, ptrdiff_t b, int h)
{
    return (b * c->plan->heads + h) * c->Lk * c->plan->dim;
}
static inline ptrdiff_t channel_gates_total(const struct call *c, ptrdiff_t b, int h)
{
    return 2 * channel_gates_at(c, b, h);
}

#endif
