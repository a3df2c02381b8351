/* SPDX-License-Identifier: MIT */
/* overflow.c -- decides why all weights of a row that sees keys are 0: by their scores, or
 * because products overflowed the range of the reals. */
#include "engine/workspace.h"

/* Number d of key k of the tile.  gemm_bf16.c stores rotated keys as bf16, each in
 * the first half of its row. */
static double key_number(const struct tile *t, int k, int d)
{
    if (t->c->packed) return (double)from_bf16(((const uint16_t *)(t->k.at + k * t->k.row))[d]);
    return (double)t->k.at[k * t->k.row + d * t->k.step];
}
/* At this size a sum of products may be infinite, in any order of adding.  gemm_bf16.c
 * multiplies by the scale only afterwards. */
static double limit(const struct call *c)
{
    const double most = sizeof(real) == sizeof(double) ? DBL_MAX : FLT_MAX;
    return c->fast && fabs(c->plan->scale) < 1 ? most * fabs(c->plan->scale) : most;
}

/* Such a row has scores of -inf only.  If biases cause them, its output is 0.  If an overflow
 * causes them, the row must become NaN.  The sum of |q k|, in double, bounds every partial sum
 * of the products.  This is slow, but it is called only for rows whose sum is 0. */
bool N(overflows)(struct tile *t, int r)
{
    const struct call *c = t->c;
    const struct keyrange range = present_of(c, keys_of(c, t->seq, t->i0 - t->seq->q0, t->rows));
    const double most = limit(c);
    /* rows that have moved, and the keys that they move over, are bounded by what they were */
    const bool moved = c->plan->moves >= 0;
    const real *unmoved = NULL;
    ptrdiff_t stride = 0;
    for (ptrdiff_t j = range.first / KT; j * KT <= range.last; j++) {
        bool found = false;
        if (!set_keys(t, j * KT, range.last)) continue;
        for (int k = 0; k < t->keys; k++) {
            double sum = 0;
            if (!visible(t, k, r)) continue;
            if (c->plan->row_forms > 1) {
                use_form(t, pair_class(c, pos_q(c, t->seq->b, t->i0 + r),
                                       pos_k(c, t->seq->b, t->j0 + k)));
                found = false;
            }
            if (!found && moved) unmoved = find_unmoved(t, t->keys, t->k.buffer, &stride);
            else if (!found) {
                find_keys(t);
                fade_queries(t);
            }
            found = true;
            const int D = c->plan->score_dim;
            for (int d = 0; d < D; d++)
                sum += moved ? fabs((double)t->q.rows[r * padded(D) + d]
                                    * (double)unmoved[k * stride + d])
                             : fabs((double)t->q.across[d * QT + r] * key_number(t, k, d));
            use_form(t, 0);
            if (!(sum <= most)) return true;
        }
    }
    return false;
}
