/* SPDX-License-Identifier: MIT */
/* terms.h -- what terms do to the score of a pair, and back.  docs/bits.md has the same formulas.
 * The host puts them in the order in which a score meets them. */
#ifndef LOCI_KERNELS_TERMS_H
#define LOCI_KERNELS_TERMS_H

#include "kernels/vectors.h"

/* The table of a term `distance`: see struct distances of src/layout/distance.h. */
struct distance_table {
    int64_t lo, hi;
    uint64_t largest, row, classes, slope, bytes;
    int32_t slopes, first;
};
/* What a head reads of a term. */
struct term_state {
    const GLOBAL float *numbers; /* distance: that of distance 0 */
    int64_t lo, hi;
    float a, b; /* affine: slopes behind and ahead; softcap: cap and 1 / cap */
};

DEV const GLOBAL struct distance_table *distance_table_of(struct block b, int u)
{
    return (const GLOBAL struct distance_table *)(b.at.tables + b.p->use[u].table);
}
/* A row of numbers by distance of a head: the biases, or those of slope i. */
DEV const GLOBAL float *distance_row(const GLOBAL struct distance_table *t, uint64_t from, int row)
{
    const uint64_t bytes = ((uint64_t)(t->hi - t->lo + 1) * 4 + 63) & ~(uint64_t)63;
    return (const GLOBAL float *)((const GLOBAL char *)t + from + row * bytes);
}
DEV void open_terms(struct block b, int h, struct term_state *state)
{
    UNROLL for (int u = 0; u < USES; u++) {
        const GLOBAL float *table = (const GLOBAL float *)(b.at.tables + b.p->use[u].table);
        if (TERM_OF(u) == GPU_AFFINE) {
            state[u].a = -table[2 * h];
            state[u].b = table[2 * h + 1];
        } else if (TERM_OF(u) == GPU_DISTANCE) {
            const GLOBAL struct distance_table *t = distance_table_of(b, u);
            state[u].lo = t->lo;
            state[u].hi = t->hi;
            state[u].numbers = distance_row(t, t->row, h);
        } else if (TERM_OF(u) == GPU_KEY_VECTORS) {
            state[u].a = b.p->scale;
        } else if (TERM_OF(u) == GPU_SOFTCAP) {
            state[u].a = b.p->use[u].a;
            state[u].b = b.p->use[u].b;
        }
    }
}
DEV int64_t clamp_distance(int64_t d, int64_t lo, int64_t hi)
{
    return d < lo ? lo : d > hi ? hi : d;
}
/* The factor of a row (ssmax, logn), made on the host. */
DEV float factor_of(struct block b, int u, const struct span *q, int h, int row)
{
    const int64_t at = (int64_t)q->b * b.p->heads + h;
    return ((const GLOBAL float *)(b.at.lists + b.p->use[u].table))[at * b.p->q_len + q->q0 + row];
}
/* The number that a term looks up for a pair: the factor of the row, or a product with a vector. */
DEV float number_of(struct block b, int u, int term, const struct span *q, int h, int row, int key,
                    int64_t d)
{
    if (term == GPU_FACTOR) return factor_of(b, u, q, h, row);
    if (term == GPU_ROW_VECTORS || term == GPU_KEY_VECTORS || term == GPU_ROLL)
        return vector_number(b, u, term, q, h, row, key, d);
    return 1.0f;
}
/* One term on a score at distance d; f is the number that it looks up. */
DEV float term_score(int term, int multiplies, struct term_state t, float s, int64_t d, float f)
{
    if (term == GPU_AFFINE) return fma_(d < 0 ? t.b : t.a, (float)d, s);
    if (term == GPU_DISTANCE) {
        const float bias = t.numbers[clamp_distance(d, t.lo, t.hi) - t.lo];
        return multiplies ? s * bias : s + bias;
    }
    if (term == GPU_SOFTCAP) return t.a * tanh_(s * t.b);
    if (term == GPU_ROW_VECTORS || term == GPU_ROLL) return s + f;
    if (term == GPU_KEY_VECTORS) return fma_(t.a, f, s);
    return s * f;
}
/* Its gradient, from the score before it. */
DEV float term_gradient(int term, int multiplies, struct term_state t, float before, float ds,
                        int64_t d, float f)
{
    if (term == GPU_DISTANCE && multiplies) {
        const float least = 0x1p-60f, size = ds < 0 ? -ds : ds;
        const float bias = t.numbers[clamp_distance(d, t.lo, t.hi) - t.lo];
        return (size <= least ? 0.0f : ds) * bias;
    }
    if (term == GPU_SOFTCAP) {
        const float y = tanh_(before * t.b);
        return ds * (1.0f - y * y);
    }
    return term == GPU_FACTOR ? ds * f : ds;
}
/* All terms in order, and the number of an additive mask last.  before[u]: the score before term u,
 * if not NULL. */
DEV float all_terms(struct block b, const struct term_state *state, const struct span *q, int h,
                    int row, int key, float s, float *before)
{
    const int64_t d = distance_of(b, q, row, key);
    UNROLL for (int u = 0; u < USES; u++) {
        const float f = number_of(b, u, TERM_OF(u), q, h, row, key, d);
        if (before) before[u] = s;
        s = term_score(TERM_OF(u), MULTIPLIES(u), state[u], s, d, f);
    }
    if (MASK_KIND == 2) s = s + ((const GLOBAL float *)b.at.mask)[mask_at(b, q, h, row, key)];
    return s;
}

#endif
