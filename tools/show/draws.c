/* SPDX-License-Identifier: MIT */
/* draws.c -- random queries and keys, scored at one distance after another. */
#include <stdlib.h>

#include "show/subject.h"

struct draws show_make_draws(const struct show *s, ptrdiff_t n, bool unit)
{
    const ptrdiff_t count = n * s->heads * s->dim;
    struct draws d = { .n = n,
                       .q = draw_alloc((size_t)count, sizeof(double)),
                       .k = draw_alloc((size_t)count, sizeof(double)),
                       .q_at = draw_alloc((size_t)(n * s->axes), sizeof(double)),
                       .k_at = draw_alloc((size_t)(n * s->axes), sizeof(double)),
                       .score = draw_alloc((size_t)(n * s->heads), sizeof(double)),
                       .plain = draw_alloc((size_t)(n * s->heads), sizeof(double)) };
    show_normal(s, STREAM_Q, d.q, count);
    show_normal(s, STREAM_K, d.k, count);
    if (unit) show_unit(d.q, n * s->heads, s->dim);
    if (unit) show_unit(d.k, n * s->heads, s->dim);
    return d;
}

void show_free_draws(struct draws *d)
{
    free(d->q);
    free(d->k);
    free(d->q_at);
    free(d->k_at);
    free(d->score);
    free(d->plain);
}

loci_status show_draw(struct show *s, struct draws *d, bool same, int axis, double query,
                      double key, loci_error *e)
{
    for (ptrdiff_t i = 0; i < d->n; i++)
        for (int a = 0; a < s->axes; a++) {
            d->k_at[i * s->axes + a] = key;
            d->q_at[i * s->axes + a] = axis < 0 || a == axis ? query : key;
        }
    const struct pairs p = { d->n, d->q, same ? d->q : d->k, d->q_at, d->k_at };
    return show_pairs(s, &p, d->score, e);
}
