/* SPDX-License-Identifier: MIT */
/* row_sums.h -- backward: sums over the keys of a row, of a tile, of a chunk and of all, and what
 * pieces learn.  They are in `apart`, because few plans have them.  See docs/bits.md, Backward. */
#ifndef LOCI_GPU_KERNELS_ROW_SUMS_H
#define LOCI_GPU_KERNELS_ROW_SUMS_H

#include "kernels/forward.h"

DEV int row_sums_of(struct block b, int u)
{
    const int term = USE(u).term;
    if (USE(u).by_row < 0) return 0;
    if (term == GPU_ROW_VECTORS) return USE(u).values_at < 0 ? 2 : 4;
    return term == GPU_PIECES ? 2 : 1;
}
/* The chunk is done. */
DEV void join_row_sums(struct block b, const struct span *q, int h, int row)
{
    for (int u = 0; u < USES; u++)
        for (int i = 0; i < row_sums_of(b, u); i++) {
            GLOBAL float *chunk = row_sum_at(b, USE(u).by_row + i, 0, q, h, row),
                         *all = row_sum_at(b, USE(u).by_row + i, 1, q, h, row);
            *all = *all + *chunk;
            *chunk = 0;
        }
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* Keys k0 .. k0 + kn - 1 of a run's tile against rows r0 .. r0 + rn - 1, and the pieces of its
 * pairs, none if last < first. */
struct piece_block {
    int k0, kn, r0, rn, first, last;
};
/* The pieces of a block: distance 0 and the corners bound them. */
DEV struct piece_block with_pieces(struct block b, int u, const struct span *q, int row0, int rows,
                                   int key0, struct piece_block a)
{
    const GLOBAL struct pieces_table *t = pieces_of(b, u);
    const GLOBAL float *psi = piece_psi(t, 0), *inverse = inverse_row(b, u, q) + row0;
    const int64_t d = q->d0 + row0 - key0;
    int64_t lo = d + a.r0 - (a.k0 + a.kn - 1);
    const int64_t hi = d + a.r0 + a.rn - 1 - a.k0;
    a.first = 0;
    a.last = -1;
    if (!b.p->full && lo < 0) lo = 0;
    if (lo > hi) return a;
    const float x = psi[lo], y = psi[hi], one = inverse[least(a.r0, rows - 1)],
                other = inverse[least(a.r0 + a.rn, rows) - 1];
    const float near = lo <= 0 && hi >= 0 ? 0.0f : x < y ? x : y, far = max_(x, y);
    a.first = piece_of(piece_ends(t), t->count, near * (one < other ? one : other), 0);
    a.last = piece_of(piece_ends(t), t->count, far * max_(one, other), 0);
    return a;
}
/* Sums of a block, piece by piece: by row, then halves over the rows. */
DEV void add_piece_block(struct block b, const SHARED float *ds, SHARED float *x,
                         const struct span *q, GLOBAL float *part, int h, int u, int row0, int rows,
                         int key0, struct piece_block a)
{
    const int some = a.first <= a.last; /* if not, the term may be another one */
    const GLOBAL struct pieces_table *t = some ? pieces_of(b, u) : NULL_AT;
    const GLOBAL float *psi = some ? piece_psi(t, 0) : NULL_AT,
                       *slope = some ? piece_psi(t, 1) : NULL_AT,
                       *ends = some ? piece_ends(t) : NULL_AT;
    const int64_t d0 = q->d0 + row0 - key0;
    int p = a.first;
    do {
        const int go = p <= a.last;
        int upper = a.rn / 2;
        PHASE(tid)
            const int r = a.r0 + tid;
            float s0 = 0, s1 = 0, s2 = 0;
            for (int k = a.k0; k < a.k0 + a.kn && tid < a.rn && go; k++) {
                const float y = psi[d0 + r - k] * inverse_row(b, u, q)[row0 + least(r, rows - 1)];
                float g = ds[k * TILE_ROWS + r];
                if ((p > a.first && y < ends[p]) || (p < a.last && !(y < ends[p + 1]))) g = 0;
                s0 = s0 + g;
                s1 = fma_(g, y, s1);
                s2 = fma_(g, slope[d0 + r - k], s2);
            }
            if (tid < a.rn && go) {
                x[tid] = s0;
                x[TILE_ROWS + tid] = s1;
            }
            if (tid < a.rn && r < rows && go) {
                const float factor = piece_lines(t, h, 0)[p];
                GLOBAL float *by_x = row_sum_at(b, USE(u).by_row, 0, q, h, row0 + r),
                             *by_c = row_sum_at(b, USE(u).by_row + 1, 0, q, h, row0 + r);
                *by_x = fma_(factor, s1, *by_x);
                *by_c = fma_(factor, s2, *by_c);
            }
        END
        do {
            PHASE(tid)
                if (go && tid < upper) {
                    x[tid] = x[tid] + x[tid + upper];
                    x[TILE_ROWS + tid] = x[TILE_ROWS + tid] + x[TILE_ROWS + tid + upper];
                }
            END
        } while (upper /= 2);
        PHASE(tid)
            if (go && tid == 0) {
                part[p] = part[p] + x[0];
                part[t->capacity + p] = part[t->capacity + p] + x[TILE_ROWS];
            }
        END
    } while (++p <= a.last);
}
/* Positions that are not a run: row by row, in each the keys, a sum for keys of one piece. */
DEV void add_pieces_apart(struct block b, const SHARED float *ds, const struct span *q,
                          GLOBAL float *part, int h, int u, int row0, int rows, int key0, int keys)
{
    const GLOBAL struct pieces_table *t = pieces_of(b, u);
    const GLOBAL float *factors = piece_lines(t, h, 0), *slope = piece_psi(t, 1);
    for (int r = 0; r < rows; r++) {
        GLOBAL float *by_x = row_sum_at(b, USE(u).by_row, 0, q, h, row0 + r),
                     *by_c = row_sum_at(b, USE(u).by_row + 1, 0, q, h, row0 + r);
        int p = 0;
        float s = 0, sx = 0;
        for (int k = 0; k < keys; k++) {
            const int64_t d = distance_of(b, q, row0 + r, key0 + k), a = d < 0 ? -d : d;
            const float y = piece_x(b, t, u, q, row0 + r, d), g = ds[k * TILE_ROWS + r];
            const int now = piece_of(piece_ends(t), t->count, y, p);
            if (now != p) {
                part[p] = part[p] + s;
                part[t->capacity + p] = part[t->capacity + p] + sx;
                s = sx = 0;
                p = now;
            }
            s = s + g;
            sx = fma_(g, y, sx);
            *by_x = fma_(g * factors[p], y, *by_x);
            *by_c = fma_(g * factors[p], slope[a < t->hi ? a : t->hi], *by_c);
        }
        part[p] = part[p] + s;
        part[t->capacity + p] = part[t->capacity + p] + sx;
    }
}
/* Block number i of a run's tile: the tile if it is in one piece, else its quarters. */
DEV struct piece_block block_of(struct block b, int u, const struct span *q, int row0, int rows,
                                int key0, int keys, int i)
{
    struct piece_block a = { 0, keys, 0, TILE_ROWS, 0, -1 };
    a = with_pieces(b, u, q, row0, rows, key0, a);
    if (a.last <= a.first && i == 0) return a;
    const int one = a.last <= a.first, k = i / 2 * 32;
    a.k0 = k;
    a.kn = least(keys - k, 32);
    a.r0 = i % 2 * 32;
    a.rn = 32;
    a.first = 0;
    a.last = -1;
    return one || a.kn <= 0 ? a : with_pieces(b, u, q, row0, rows, key0, a);
}
/* c and T, from the rows: see close_bwd() of src/terms/pieces.c. */
DEV void finish_pieces(struct block b, const struct span *q, GLOBAL float *part, int h, int u,
                       int row0, int rows)
{
    const GLOBAL struct pieces_table *t = pieces_of(b, u);
    const GLOBAL double *inverse = (const GLOBAL double *)(b.at.lists + USE(u).rows)
                                 + (int64_t)q->b * b.p->q_len + q->q0 + row0;
    const GLOBAL int64_t *position =
        list_at(b, USE(u).rows + 8 * rows_in(b)) + (int64_t)q->b * b.p->q_len + q->q0 + row0;
    const double c = t->c < 0 ? -t->c : t->c, far = t->far < 0 ? -t->far : t->far;
    double dc = 0, dfar = 0;
    for (int r = 0; r < rows; r++) {
        const double pos = (double)position[r], m = far > pos ? far : pos;
        const double share = far > pos ? 1.0 : far == pos ? 0.5 : 0.0;
        const double by_x = (double)*row_sum_at(b, USE(u).by_row, 1, q, h, row0 + r),
                     by_c = (double)*row_sum_at(b, USE(u).by_row + 1, 1, q, h, row0 + r);
        const double dx = by_x * inverse[r] / (c * m + 1);
        dc += by_c * inverse[r] - dx * m;
        dfar -= share * dx * c;
    }
    part[2 * t->capacity] = (float)dc;
    part[2 * t->capacity + 1] = (float)dfar;
}

/* ---- Factors --------------------------------------------------------------------------------- */

/* Slope and bias of a factor from the gradients of the factors of rows, sum number n.  `numbers`:
 * doubles in `lists`, [B][H][q_len]. */
DEV void add_factors(struct block b, const struct span *q, GLOBAL float *part, int h, int n,
                     int64_t numbers, int row0, int rows)
{
    const GLOBAL double *number = (const GLOBAL double *)(b.at.lists + numbers)
                                + ((int64_t)q->b * b.p->heads + h) * b.p->q_len + q->q0 + row0;
    double slope = 0, bias = 0;
    for (int r = 0; r < rows; r++) {
        const double df = (double)*row_sum_at(b, n, 1, q, h, row0 + r);
        slope += df * number[r];
        bias += df;
    }
    part[0] = (float)slope;
    part[1] = (float)bias;
}

/* ---- All terms ------------------------------------------------------------------------------- */

/* The tile ds of term u, [key][row], if `on`; x: shared memory for 128 numbers.  Every thread
 * passes every barrier. */
DEV void add_row_sums(struct block b, const SHARED float *ds, SHARED float *x, const struct span *q,
                      GLOBAL float *part, int h, int u, int row0, int rows, int key0, int keys,
                      int on)
{
    const int term = USE(u).term, pieces = on && term == GPU_PIECES,
              seen = on && term == GPU_GATE && !sees_interval(b, q);
    PHASE(tid)
        if (pieces && !q->run && tid == 0)
            add_pieces_apart(b, ds, q, part, h, u, row0, rows, key0, keys);
        if (seen && tid < rows) {
            GLOBAL double *before = ds_before(b, u, q, h, row0 + tid, key0 / KEYS);
            double sum = *before;
            for (int k = 0; k < keys; k++) sum += (double)ds[k * TILE_ROWS + tid];
            before[b.p->q_len] = sum;
        }
        if (on && !pieces && !seen && tid < rows) {
            GLOBAL float *chunk = row_sum_at(b, USE(u).by_row, 0, q, h, row0 + tid);
            /* factor: one sum through all tiles of the chunk */
            float sum = term == GPU_FACTOR ? *chunk : 0.0f;
            for (int k = 0; k < keys; k++) {
                const float g = ds[k * TILE_ROWS + tid];
                const float by =
                    term == GPU_SLOPES ? g * magnitude(distance_of(b, q, row0 + tid, key0 + k)) : g;
                sum = sum + by;
            }
            *chunk = term == GPU_FACTOR ? sum : *chunk + sum;
        }
    END
    int i = 0;
    do {
        struct piece_block none = { 0, 0, 0, TILE_ROWS, 0, -1 };
        add_piece_block(b, ds, x, q, part, h, u, row0, rows, key0,
                        pieces && q->run ? block_of(b, u, q, row0, rows, key0, keys, i) : none);
    } while (++i < (pieces && q->run ? 4 : 0));
}
/* All chunks are done: by one thread. */
DEV void finish_row_sums(struct block b, const struct span *q, GLOBAL float *part, int h, int u,
                         int row0, int rows)
{
    if (USE(u).term == GPU_PIECES) finish_pieces(b, q, part, h, u, row0, rows);
    if (USE(u).term == GPU_FACTOR)
        add_factors(b, q, part, h, USE(u).by_row, USE(u).rows, row0, rows);
}

#endif
