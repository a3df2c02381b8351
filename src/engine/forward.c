/* SPDX-License-Identifier: MIT */
/* forward.c -- the fused pass in f32: forward.h with the products of tile_gemm.h. */
#include "engine/forward.h"

#if QT > 1

/* The products of scores prefetch the keys of the next tile, those of sums its values. */
static void scores(struct tile *t, bool more)
{
    find_keys(t);
    t->next = to_next(t, KEYS, more);
    score_tile(t);
}
static void sums(struct tile *t, bool more)
{
    const int weight = t->c->plan->weight;
    if (weight >= 0) weights_of(t->c)->tile_weights(t, weight);
    else softmax(t);
    drop_weights(t);
    find_values(t);
    t->next = to_next(t, VALUES, more);
    value_tile(t);
    mix_safe(t, t->v.at, t->v.row, t->c->plan->value_dim, t->p, t->chunk.o,
             t->chunk.empty ? NULL : t->alpha, t->next);
    t->chunk.empty = false;
}
static void rows(struct tile *t) { open_columns(t); }
static void close(struct tile *t) { close_rows(t); }
static void job(void *arg, int index)
{
    forward_job(arg, index, &(struct products){ rows, scores, sums, close });
}

loci_status N(forward)(struct call *c) { return forward_all(c, job); }
#endif
