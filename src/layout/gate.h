/* SPDX-License-Identifier: MIT */
/* gate.h -- the sums of log_f that fox computes once per call and its term reads.
 *
 * Two levels of sums make every bias a difference of few rounded numbers.  For each head and key
 * tile of a run there is the sum over all keys up to the end of the tile, in double.  There is also
 * the number of gates up to there that are shut or invalid.  Those count as 0 in the sum, because
 * -inf would never leave it again.  So they cut off the keys before them and nothing else.  For
 * each key there is the sum over the later keys of its tile. */
#ifndef LOCI_LAYOUT_GATE_H
#define LOCI_LAYOUT_GATE_H

#include "contract/call.h"

enum { GATE_STOP };  /* the option */
enum { GATE_LOG_F }; /* the tensor */

/* A gate of at most -SHUT is shut, like -inf: e^-10000 is 0 in any float.  Sums of the gates in
 * between are at most SHUT times the number of keys, so a double still resolves small ones.  Values
 * from SHUT on, and NaN, are invalid, and the row becomes NaN. */
static const double SHUT = 1e4;
/* The mark of an invalid gate, more than all shut ones together.  A shut gate counts 1. */
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
    double *sum;    /* [H][ktiles] */
    int64_t *marks; /* [H][ktiles] */
    void *later;    /* [B][H][Lk] reals */
    void *top;      /* [H][ktiles] reals: the largest of `later` in the tile */
    bool stops;     /* rows may end early; then also the following: */
    /* [H][ktiles]: the largest excess of D of a key up to this tile's end over D of the tile's last
     * key, plus the log of the number of these keys. */
    double *rise;
    /* [key_heads][ktiles]: the largest |k| up to the tile's end. */
    double *knorm;
};

/* The state that the sums of a head continue from if its first keys are not present: [B][H]. */
struct gate_state {
    double sum;
    int64_t marks;
};
/* gate_keys(): how many keys of each head there is capacity for.  gate_at(): where log_f of a head,
 * and arrays by key that follow from it, have the first present key. */
static inline ptrdiff_t gate_keys(const struct call *c) { return input_capacity(c); }
static inline ptrdiff_t gate_at(const struct call *c, ptrdiff_t b, int h)
{
    return (b * c->plan->heads + h) * gate_keys(c)
         + (ptrdiff_t)(present_keys(c).first - input_keys(c).first);
}

/* May rows end early?  The bound on the dropped weights needs softmax weights from q.k and the
 * gates only.  It also needs rows that see all keys in the sums. */
static inline bool gate_stops(const struct call *c, int enc)
{
    const struct loci_plan *p = c->plan;
    bool alone = p->window_left == INT64_MAX;
    for (int x = 0; x < p->uses; x++)
        alone &= p->use[x].enc == enc || p->use[x].group == GROUP_ROTATE;
    return alone && p->enc[enc].opt[GATE_STOP] > 0;
}

/* The newest key that a row of a run sees, counted in the sequence.  Negative: none.  The row is at
 * `distance` from the sequence's first key.  The distance falls by 1 per key. */
static inline ptrdiff_t gate_newest_at(const struct call *c, const struct sequence *q,
                                       int64_t distance)
{
    const struct loci_plan *p = c->plan;
    const int64_t nearest = p->window_right < -(int64_t)p->strict ? -p->window_right : p->strict;
    const int64_t key = distance - nearest;
    return (ptrdiff_t)(key < q->nk ? key : q->nk - 1);
}
/* The same for a row that is counted in the sequence. */
static inline ptrdiff_t gate_newest(const struct call *c, const struct sequence *q, ptrdiff_t row)
{
    return gate_newest_at(c, q, q->d0 + row);
}

/* The total of the term of an encoding.  NULL: no gradient needs it. */
static inline const double *gate_total(const struct call *c, int enc)
{
    const double *total = NULL;
    for (int x = 0; x < c->plan->uses; x++)
        if (c->plan->use[x].enc == enc) total = c->g.total[x];
    return total;
}
/* In a run the totals are dC by key.  dlog_f[l] is the sum of dC over the keys from l on.  All dC
 * sum to 0, so this is minus the sum over the keys before l.  Elsewhere the totals are dlog_f. */
static inline void gate_end_keys(const double *total, double *dlog_f, ptrdiff_t n, bool sums,
                                 double *older)
{
    for (ptrdiff_t l = 0; l < n; l++) {
        dlog_f[l] = sums ? *older : total[l];
        *older -= total[l]; /* minus the sum of dC over the keys before the next */
    }
}

#endif
