/* SPDX-License-Identifier: MIT */
/* terms.h -- what terms do to the score of a pair, and back.  docs/bits.md has the same formulas.
 * The host puts them in the order in which a score meets them. */
#ifndef LOCI_GPU_KERNELS_TERMS_H
#define LOCI_GPU_KERNELS_TERMS_H

#include "kernels/channel_gates.h"
#include "kernels/reflections.h"
#include "kernels/scan.h"

/* The table of a term `distance`: see struct distances of src/layout/distance.h. */
struct distance_table {
    int64_t lo, hi;
    uint64_t largest, row, classes, slope, bytes;
    int32_t slopes, first;
};
/* What a head reads of a term. */
struct term_state {
    const GLOBAL float *numbers; /* distance: that of distance lo; pieces: a of each */
    const GLOBAL float *offsets; /* pieces: b of each */
    distance_t lo, hi;
    float a, b; /* affine: slopes behind and ahead; softcap: cap and 1 / cap */
    int piece;  /* pieces: that of the pair before, as neighbours mostly share it */
};

DEV const GLOBAL struct distance_table *distance_table_of(struct block b, int u)
{
    return (const GLOBAL struct distance_table *)(b.at.tables + USE(u).table);
}
/* A row of numbers by distance of a head: the biases, or those of slope i. */
DEV const GLOBAL float *distance_row(const GLOBAL struct distance_table *t, uint64_t from, int row)
{
    const uint64_t bytes = ((uint64_t)(t->hi - t->lo + 1) * 4 + 63) & ~(uint64_t)63;
    return (const GLOBAL float *)((const GLOBAL char *)t + from + row * bytes);
}

/* ---- Slopes that come with the call ---------------------------------------------------------- */

DEV float magnitude(distance_t d)
{
    const float x = (float)d;
    return x < 0 ? -x : x;
}
DEV float add_slope(struct block b, int u, const struct span *q, int h, int row, int key,
                    distance_t d, float s)
{
    const int of_key = USE(u).key_input, of_row = USE(u).row_input;
    const float x = of_key < 0 ? 0.0f : input_at(b, of_key, q, h, b.p->k_len)[q->k0 + key],
                y = of_row < 0 ? 0.0f : input_at(b, of_row, q, h, b.p->q_len)[q->q0 + row];
    return fma_(-(x + y), magnitude(d), s);
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* The head of a table of pieces: see struct pieces of src/layout/pieces.h. */
struct pieces_table {
    int64_t lo, hi;
    double c, far;
    uint64_t lines, psi, bytes;
    int32_t count, capacity;
};
DEV const GLOBAL struct pieces_table *pieces_of(struct block b, int u)
{
    return (const GLOBAL struct pieces_table *)(b.at.tables + USE(u).table);
}
DEV const GLOBAL float *piece_ends(const GLOBAL struct pieces_table *t)
{
    return (const GLOBAL float *)((const GLOBAL char *)t + 64);
}
/* a of a head, or with `offset` b. */
DEV const GLOBAL float *piece_lines(const GLOBAL struct pieces_table *t, int h, int offset)
{
    const uint64_t row = ((uint64_t)t->capacity * 4 + 63) & ~(uint64_t)63;
    return (const GLOBAL float *)((const GLOBAL char *)t + t->lines
                                  + (2 * (uint64_t)h + offset) * row);
}
/* psi by distance, or with `slope` its derivative; element 0 is distance 0. */
DEV const GLOBAL float *piece_psi(const GLOBAL struct pieces_table *t, int slope)
{
    const uint64_t row = ((uint64_t)(t->hi - t->lo + 1) * 4 + 63) & ~(uint64_t)63;
    return (const GLOBAL float *)((const GLOBAL char *)t + t->psi + (slope ? row : 0)) - t->lo;
}
/* Numbers of rows: 1 / N as doubles, positions, 1 / N as floats; [B][q_len] each. */
DEV int64_t rows_in(struct block b) { return (int64_t)b.p->batch * b.p->q_len; }
DEV const GLOBAL float *inverse_row(struct block b, int u, const struct span *q)
{
    return (const GLOBAL float *)(b.at.lists + USE(u).rows + 16 * rows_in(b))
         + (int64_t)q->b * b.p->q_len + q->q0;
}
/* The last piece whose end is at most x.  `near` is tried first. */
DEV int piece_of(const GLOBAL float *ends, int count, float x, int near)
{
    int low = 0;
    if ((near == 0 || x >= ends[near]) && (near + 1 >= count || !(x >= ends[near + 1])))
        return near;
    while (count > 1) {
        const int half_way = count / 2;
        low += x >= ends[low + half_way] ? half_way : 0;
        count -= half_way;
    }
    return low;
}
/* x = psi / N of a pair.  Pairs that nobody sees may be further away than the table reaches. */
DEV float piece_x(struct block b, const GLOBAL struct pieces_table *t, int u, const struct span *q,
                  int row, distance_t d)
{
    const int64_t a = d < 0 ? -d : d;
    return piece_psi(t, 0)[a < t->hi ? a : t->hi] * inverse_row(b, u, q)[row];
}
DEV float add_piece(struct block b, int u, struct term_state *state, const struct span *q, int row,
                    distance_t d, float s)
{
    const GLOBAL struct pieces_table *t = pieces_of(b, u);
    const float x = piece_x(b, t, u, q, row, d);
    state->piece = piece_of(piece_ends(t), t->count, x, state->piece);
    return s + fma_(state->numbers[state->piece], x, state->offsets[state->piece]);
}

/* ---- One term after the other ---------------------------------------------------------------- */

DEV void open_terms(struct block b, int h, struct term_state *state)
{
    UNROLL for (int u = 0; u < USES; u++) {
        const GLOBAL float *table = (const GLOBAL float *)(b.at.tables + USE(u).table);
        if (TERM_OF(u) == GPU_AFFINE) {
            state[u].a = -table[2 * h];
            state[u].b = table[2 * h + 1];
        } else if (TERM_OF(u) == GPU_DISTANCE) {
            const GLOBAL struct distance_table *t = distance_table_of(b, u);
            state[u].lo = (distance_t)t->lo;
            state[u].hi = (distance_t)t->hi;
            state[u].numbers = distance_row(t, t->row, h) - t->lo;
        } else if (TERM_OF(u) == GPU_KEY_VECTORS) {
            state[u].a = b.p->scale;
        } else if (TERM_OF(u) == GPU_SOFTCAP) {
            state[u].a = USE(u).a;
            state[u].b = USE(u).b;
        } else if (TERM_OF(u) == GPU_PIECES) {
            state[u].numbers = piece_lines(pieces_of(b, u), h, 0);
            state[u].offsets = piece_lines(pieces_of(b, u), h, 1);
            state[u].piece = 0;
        }
    }
}
DEV distance_t clamp_near(distance_t d, distance_t lo, distance_t hi)
{
    return d < lo ? lo : d > hi ? hi : d;
}
/* The factor of a row (ssmax, logn), made on the host. */
DEV float factor_of(struct block b, int u, const struct span *q, int h, int row)
{
    const int64_t at = (int64_t)q->b * b.p->heads + h;
    return ((const GLOBAL float *)(b.at.lists + USE(u).table))[at * b.p->q_len + q->q0 + row];
}
/* The number that a term looks up for a pair: the factor of the row, or a product with a vector. */
DEV float number_of(struct block b, int u, int term, const struct span *q, int h, int row, int key,
                    distance_t d)
{
    if (term == GPU_FACTOR) return factor_of(b, u, q, h, row);
    if (term == GPU_ROW_VECTORS || term == GPU_KEY_VECTORS || term == GPU_ROLL)
        return vector_number(b, u, term, q, h, row, key, d);
    if (term == GPU_SCAN) return scan_number(b, q, h, row, key);
    return 1.0f;
}
/* One term on a score at distance d; f is the number that it looks up. */
DEV float term_score(int term, int multiplies, struct term_state t, float s, distance_t d, float f)
{
    if (term == GPU_AFFINE) return fma_(d < 0 ? t.b : t.a, (float)d, s);
    if (term == GPU_DISTANCE) {
        const float bias = t.numbers[clamp_near(d, t.lo, t.hi)];
        return multiplies ? s * bias : s + bias;
    }
    if (term == GPU_SOFTCAP) return t.a * tanh_(s * t.b);
    if (term == GPU_CHANNEL_GATES) return unless_low(s, LOW_SCORE);
    if (term == GPU_REFLECTIONS) return s;
    if (term == GPU_ROW_VECTORS || term == GPU_ROLL || term == GPU_SCAN) return s + f;
    if (term == GPU_KEY_VECTORS) return fma_(t.a, f, s);
    return s * f;
}
/* Its gradient, from the score before it. */
DEV float term_gradient(int term, int multiplies, struct term_state t, float before, float ds,
                        distance_t d, float f)
{
    if (term == GPU_DISTANCE && multiplies) {
        const float least = 0x1p-60f, size = ds < 0 ? -ds : ds;
        const float bias = t.numbers[clamp_near(d, t.lo, t.hi)];
        return (size <= least ? 0.0f : ds) * bias;
    }
    if (term == GPU_SOFTCAP) {
        const float y = tanh_(before * t.b);
        return ds * (1.0f - y * y);
    }
    if (term == GPU_CHANNEL_GATES) return unless_low(ds, LOW_GRADIENT);
    return term == GPU_FACTOR ? ds * f : ds;
}
/* Term u on the score of a pair. */
DEV float score_after(struct block b, struct term_state *state, const struct span *q, int h,
                      int row, int key, distance_t d, float s, int u)
{
    if (TERM_OF(u) == GPU_SLOPES) return add_slope(b, u, q, h, row, key, d, s);
    if (TERM_OF(u) == GPU_PIECES) return add_piece(b, u, &state[u], q, row, d, s);
    if (TERM_OF(u) == GPU_GATE) return s + gate_between(b, u, q, h, row, key);
    const float f = number_of(b, u, TERM_OF(u), q, h, row, key, d);
    return term_score(TERM_OF(u), MULTIPLIES(u), state[u], s, d, f);
}
/* The score after terms first .. end - 1. */
DEV float some_terms(struct block b, struct term_state *state, const struct span *q, int h, int row,
                     int key, float s, int first, int end)
{
    const distance_t d = distance_of(b, q, row, key);
    UNROLL for (int u = 0; u < USES; u++) {
        if (u >= first && u < end) s = score_after(b, state, q, h, row, key, d, s, u);
    }
    return s;
}
/* All terms in order, and the number of an additive mask last; a mixed score has its terms already.
 * before[u]: the score before term u, if not NULL. */
DEV float all_terms(struct block b, struct term_state *state, const struct span *q, int h, int row,
                    int key, float s, float *before)
{
    const distance_t d = distance_of(b, q, row, key);
    UNROLL for (int u = 0; u < USES && !MIXES; u++) {
        if (before) before[u] = s;
        s = score_after(b, state, q, h, row, key, d, s, u);
    }
    if (MASK_KIND == 2) s = s + ((const GLOBAL float *)b.at.mask)[mask_at(b, q, h, row, key)];
    return s;
}

#endif
