/* SPDX-License-Identifier: MIT */
/* gate.h -- the sums of log_f that fox makes once per call and its term reads.
 *
 * Per head and key tile of a run: the sum over all keys up to the end of the tile, and how many
 * gates up to there were shut or no numbers: those count as 0 in the sum, so that they forget what
 * lies before them and nothing else.  Per key: the sum over the later keys of its tile. */
#ifndef LOCI_SHAPE_GATE_H
#define LOCI_SHAPE_GATE_H

#include "plan/call.h"

enum { GATE_STOP };                      /* the option */

/* A gate from -SHUT on down is shut, as -inf is.  Sums of those between are at most SHUT times the
 * number of keys, so that a double still has the small ones behind them.  From SHUT on upwards, as
 * NaN, it is no gate, and shows. */
static const double SHUT = 1e4;
static const int64_t NOT_A_GATE = (int64_t)1 << 40;      /* what it counts for; one that is shut
                                                            counts 1 */
static inline int64_t gate_mark(double log_f)
{
    return log_f <= -SHUT ? 1 : log_f < SHUT ? 0 : NOT_A_GATE;
}
static inline double gate_value(double log_f)
{
    return log_f <= -SHUT ? -INFINITY : log_f >= SHUT ? NAN : log_f;
}

struct gate_sums {
    double *sum;                         /* [H][ktiles] */
    int64_t *marks;                      /* [H][ktiles] */
    void *later;                         /* [B][H][Lk] reals */
    void *top;                           /* [H][ktiles] reals: the largest of `later` in the tile */
    bool stops;                          /* rows may end early; then also: */
    double *rise;                        /* [H][ktiles]: most that D of a key up to this tile's end
                                            exceeds D of the tile's last key, plus the log of how
                                            many these keys are */
    double *knorm;                       /* [key_heads][ktiles]: largest |k| up to the tile's end */
};

/* Newest key that a row of a run sees, both counted in the sequence; negative: none. */
static inline ptrdiff_t gate_newest(const struct call *c, const struct sequence *q, ptrdiff_t row)
{
    const struct loci_plan *p = c->plan;
    const int64_t nearest = p->window_right < -(int64_t)p->strict ? -p->window_right : p->strict;
    const int64_t key = q->d0 + row - nearest;
    return (ptrdiff_t)(key < q->nk ? key : q->nk - 1);
}

#endif
