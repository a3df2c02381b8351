/* SPDX-License-Identifier: MIT */
/* weights.c -- the weight of each row for each key, from the lse or rem of a forward pass.  It
 * walks as that pass does, and stores weights instead of summing values. */
#include "engine/forward.h"

#if QT > 1

static void rows(struct tile *t)
{
    const struct call *c = t->c;
    const ptrdiff_t at = (t->seq->b * c->plan->heads + t->h) * c->Lq + t->i0;
    const real *lse = c->in->lse;
    /* A row that sees no key has lse -inf; its scores are -inf, and -inf - 0 gives weight 0. */
    for (int r = 0; r < QT; r++)
        t->lse[r] = r < t->rows && lse && lse[at + r] != -INFINITY ? lse[at + r] : 0;
}
static void scores(struct tile *t, bool more)
{
    (void)more;
    find_keys(t);
    score_tile(t);
}
static void store(struct tile *t, bool more)
{
    const struct call *c = t->c;
    const int weight = c->plan->weight;
    const loci_view *v = &c->weights;
    real *to = (real *)v->data + t->seq->b * v->batch + t->h * v->head + t->i0 * v->row + t->j0;
    (void)more;
    if (weight >= 0) {
        weights_of(c)->tile_weights(t, weight);
        weights_of(c)->whole(t, weight);
    } else {
        for (int k = 0; k < t->keys; k++)
            for (int r = 0; r < QT; r += VL)
                vf_store(t->p + k * QT + r,
                         vf_exp(vf_sub(vf_load(t->s + k * QT + r), vf_load(t->lse + r))));
    }
    drop_weights(t);
    transpose(t->p, QT, t->keys, t->rows, to, v->row);
}
static void close(struct tile *t) { (void)t; }
static void job(void *arg, int index)
{
    forward_job(arg, index, &(struct products){ rows, scores, store, close });
}

loci_status N(weights)(struct call *c) { return forward_all(c, job); }
#endif
