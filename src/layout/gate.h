/* SPDX-License-Identifier: MIT */
/* gate.h -- the sums of log_f that fox makes once per call and its term reads.
 *
 * Two levels of sums make every bias a difference of few rounded numbers.  Per head
 * and key tile of a run: the sum over all keys up to the end of the tile, in
 * double, and how many gates up to there were shut or no numbers.  Those count as 0
 * in the sum, as -inf would never leave it again; so they forget what lies before
 * them and nothing else.  Per key: the sum over the later keys of its tile. */
#ifndef LOCI_LAYOUT_GATE_H
#define LOCI_LAYOUT_GATE_H

#include "contract/call.h"

enum { GATE_STOP };                      /* the option */
enum { GATE_LOG_F };                     /* the tensor */

/* A gate of at most -SHUT is shut, as -inf is: e^-10000 is 0 in any float.  Sums of those
 * between are at most SHUT times the number of keys, so that a double still has the small
 * ones behind them.  From SHUT on upwards, as NaN, it is no gate, and the row becomes NaN. */
static const double SHUT = 1e4;
/* What a gate that is none counts for, more than all shut ones together; a shut one counts 1. */
static const int64_t NOT_A_GATE = (int64_t)1 << 40;
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
    /* [H][ktiles]: most that D of a key up to this tile's end exceeds D
     * of the tile's last key, plus the log of how many these keys are */
    double *rise;
    double *knorm;                       /* [key_heads][ktiles]: largest |k| up to the tile's end */
};

/* What the sums of a head continue from, if its first keys are not present: [B][H] of them. */
struct gate_state { double sum; int64_t marks; };
/* Where a head's log_f, and what is made of it by key, have the first key that is present; and the
 * keys of each head that there is memory for. */
static inline ptrdiff_t gate_keys(const struct call *c) { return input_capacity(c); }
static inline ptrdiff_t gate_at(const struct call *c, ptrdiff_t b, int h)
{
    return (b * c->plan->heads + h) * gate_keys(c)
         + (ptrdiff_t)(present_keys(c).first - input_keys(c).first);
}

/* May rows end early?  The bound on what they drop counts on softmax weights made
 * of q.k and the gates alone, and on seeing all keys that the sums count. */
static inline bool gate_stops(const struct call *c, int enc)
{
    const struct loci_plan *p = c->plan;
    bool alone = p->window_left == INT64_MAX;
    for (int x = 0; x < p->uses; x++)
        alone &= p->use[x].enc == enc || p->use[x].group == GROUP_ROTATE;
    return alone && p->enc[enc].opt[GATE_STOP] > 0;
}

/* The newest key that a row of a run sees, counted in the sequence; negative: none.  The row is
 * `distance` behind the sequence's first key; that falls by 1 per key. */
static inline ptrdiff_t gate_newest_at(const struct call *c, const struct sequence *q,
                                       int64_t distance)
{
    const struct loci_plan *p = c->plan;
    const int64_t nearest = p->window_right < -(int64_t)p->strict ? -p->window_right : p->strict;
    const int64_t key = distance - nearest;
    return (ptrdiff_t)(key < q->nk ? key : q->nk - 1);
}
/* The same of a row that is counted in the sequence, too. */
static inline ptrdiff_t gate_newest(const struct call *c, const struct sequence *q, ptrdiff_t row)
{
    return gate_newest_at(c, q, q->d0 + row);
}

/* The total of the term of an encoding; NULL: no gradient needs it. */
static inline const double *gate_total(const struct call *c, int enc)
{
    const double *total = NULL;
    for (int x = 0; x < c->plan->uses; x++)
        if (c->plan->use[x].enc == enc) total = c->g.total[x];
    return total;
}
/* On a run the totals are dC by key: dlog_f[l] is the sum of dC over the keys from l on, and as all
 * of dC sums to 0, minus the sum over those before l.  Elsewhere they are dlog_f itself. */
static inline void gate_end_keys(const double *total, double *dlog_f, ptrdiff_t n, bool sums,
                                 double *older)
{
    for (ptrdiff_t l = 0; l < n; l++) {
        dlog_f[l] = sums ? *older : total[l];
        *older -= total[l];              /* minus the sum of dC over the keys before the next */
    }
}

#endif
