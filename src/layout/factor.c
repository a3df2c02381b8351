/* SPDX-License-Identifier: MIT */
/* factor.c -- how many keys a row sees, or its position, for the term `factor`. */
#include "layout/factor.h"

/* Keys that a row of a run sees, from its distance to the first key of its sequence. */
static double count_run(const struct loci_plan *p, const struct sequence *q, ptrdiff_t row)
{
    const int64_t d = q->d0 + row;
    int64_t oldest = 0, newest = q->nk - 1;
    int64_t low = p->full ? -((int64_t)1 << 60) : p->strict;
    if (p->window_right < -low) low = -p->window_right;
    if (d - low < newest) newest = d - low;
    if (p->window_left < d) oldest = d - p->window_left;
    return newest < oldest ? 0 : (double)(newest - oldest + 1);
}

/* Does row i of the batch entry see key j of it?  Order, window and segments. */
static bool in_order(const struct call *c, const struct sequence *q, ptrdiff_t i, ptrdiff_t j)
{
    const struct loci_plan *p = c->plan;
    const int64_t d = pos_q(c, q->b, i) - pos_k(c, q->b, j);
    if (!p->full && d < p->strict) return false;
    if (d > p->window_left || -d > p->window_right) return false;
    if (!q->segments) return true;
    const int64_t segment = seg_q(c, q->b, i);
    return segment >= 0 && segment == seg_k(c, q->b, j);
}
/* Does the mask of head h let row i see key j? */
static bool unmasked(const struct call *c, ptrdiff_t b, int h, ptrdiff_t i, ptrdiff_t j)
{
    const ptrdiff_t at = b * c->mask.batch + h * c->mask.head + i * c->mask.row + j * c->mask_key;
    if (c->in->mask_kind == LOCI_MASK_SEEN) return ((const unsigned char *)c->mask.data)[at] != 0;
    return !c->in->mask_kind || load_real(c->mask.data, c->plan->f64, at) != -INFINITY;
}
static double count_listed(const struct call *c, const struct sequence *q, int h, ptrdiff_t row)
{
    const ptrdiff_t i = q->q0 + row, at = (c->in->per_batch ? q->b * c->Lq : 0) + i;
    int64_t first = 0, end = q->nk, n = 0;
    if (c->in->k_first) {
        if (c->in->k_first[at] - q->k0 > first) first = c->in->k_first[at] - q->k0;
        if (c->in->k_last[at] - q->k0 < end - 1) end = c->in->k_last[at] - q->k0 + 1;
    }
    for (ptrdiff_t j = (ptrdiff_t)first; j < end; j++)
        n += in_order(c, q, i, q->k0 + j) && unmasked(c, q->b, h, i, q->k0 + j);
    return (double)n;
}

enum factor_count loci_factor_counts(const struct loci_plan *p, int enc)
{
    return (enum factor_count)p->enc[enc].opt[p->enc[enc].pe->count_option];
}
loci_status loci_factor_accept(const struct call *c, int enc)
{
    CHECK(c->in->error,
          loci_factor_counts(c->plan, enc) == COUNT_POSITION || !c->stream.here || !c->where.k_pos,
          LOCI_UNSUPPORTED,
          "%s: decode over several processes cannot count keys at given positions, because each "
          "process knows only its own; omit k_pos, or set count=position",
          c->plan->enc[enc].pe->name);
    return LOCI_OK;
}
size_t loci_factor_scratch(const struct call *c, int enc)
{
    const int heads = c->in->mask_kind ? c->plan->heads : 1;
    (void)enc;
    return (size_t)c->B * (size_t)heads * (size_t)c->Lq * sizeof(double);
}
void loci_factor_begin(struct call *c, int enc)
{
    const struct config *config = &c->plan->enc[enc];
    const bool position = loci_factor_counts(c->plan, enc) == COUNT_POSITION;
    const int heads = factor_each(c) ? c->plan->heads : 1;
    double *to = c->mem.scratch[enc];
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        for (int h = 0; h < heads; h++)
            for (ptrdiff_t row = 0; row < q->nq; row++) {
                const double n = position             ? (double)pos_q(c, q->b, q->q0 + row) + 1
                               : sees_intervals(c, q) ? count_run(c->plan, q, row)
                                                      : count_listed(c, q, h, row);
                to[factor_row(c, q->b, h, q->q0 + row)] =
                    config->pe->factor_of_count(config, n < 1 ? 1 : n);
            }
    }
}
