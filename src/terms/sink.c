/* SPDX-License-Identifier: MIT */
/* sink.c -- a logit per head in the sum of the softmax.  It precedes the first chunk of keys,
 * like a chunk of one key without a value:
 *
 *     M = logit   L = 1   O = 0
 *
 * Backward: dlogit = -sum over rows of e^(logit - lse) delta, with delta = dO.o - dlse + ...
 * after all terms have added theirs. */
#include "engine/term.h"
#include "layout/sink.h"

static real logit_of(const struct tile *t, int x)
{
    return ((const real *)t->own[x].table)[sink_at(t->h)];
}

static void open(struct tile *t, int x)
{
    const real logit = logit_of(t, x);
    for (int r = 0; r < QT; r++) {
        t->total.m[r] = logit;
        t->total.l[r] = logit == -INFINITY ? 0 : 1;
    }
}

static real ceiling(const struct tile *t, int x)
{
    (void)t;
    (void)x;
    return 0;
}

static ptrdiff_t part(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return 1;
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)c;
    (void)x;
    (void)b;
    return sink_at(h);
}
static ptrdiff_t total(const struct call *c, int x)
{
    (void)x;
    return sink_at(c->plan->heads);
}

#if QT > 1
/* Backward, per row: 1 where o is 0, as in rows that see no key.  Their dO, which may be
 * padding, does not affect the logit. */
static ptrdiff_t mem(const struct call *c, int x)
{
    (void)x;
    return c->backward;
}
static void open_bwd(struct tile *t, int x)
{
    real *empty = t->own[x].mem;
    for (int r = 0; r < QT; r++) empty[r] = 1;
    for (int n = 0; n < t->c->plan->value_dim; n++)
        for (int r = 0; r < QT; r++) empty[r] = t->chunk.o[n * QT + r] == 0 ? empty[r] : 0;
}
static void close_bwd(struct tile *t, int x)
{
    const real *dlse = t->c->grad->dlse, *empty = t->own[x].mem, logit = logit_of(t, x);
    const ptrdiff_t at = (t->seq->b * t->c->plan->heads + t->h) * t->c->Lq + t->i0;
    double sum = 0;
    if (!t->own[x].part) return;
    for (int r = 0; r < t->rows; r++) {
        const real delta = !empty[r] ? t->delta[r] : dlse ? -dlse[at + r] : 0;
        sum += (double)(exp_(logit - t->lse[r]) * delta);
    }
    t->own[x].part[0] -= (real)sum;
}
#endif

const struct term N(term_sink) = {
    .name = "sink",
    .part = part,
    .part_at = part_at,
    .total = total,
    .open = open,
    .ceiling = ceiling,
#if QT > 1
    .mem = mem,
    .open_bwd = open_bwd,
    .close_bwd = close_bwd,
#endif
};
