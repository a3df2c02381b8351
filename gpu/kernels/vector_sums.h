/* SPDX-License-Identifier: MIT */
/* vector_sums.h -- backward: what tiles of pairs give to products with vectors.  Rows store their
 * ds by distance and by key for the kernels of vectors_back.h; keys get their dk at once.  See
 * docs/bits.md, Backward. */
#ifndef LOCI_GPU_KERNELS_VECTOR_SUMS_H
#define LOCI_GPU_KERNELS_VECTOR_SUMS_H

#include "kernels/row_sums.h"

DEV float ds_at(struct block b, const struct span *q, int h, int row, int64_t d)
{
    const int64_t n = d - b.p->ds_lo;
    return n < 0 || n >= b.p->ds_width
             ? 0.0f
             : row_by_distance(b, b.p->ds_by_distance, q, h, row)[n];
}
/* The same by key: ds of a row and key 0 of its sequence. */
DEV GLOBAL float *ds_of_keys(struct block b, const struct span *q, int h, int row)
{
    return (GLOBAL float *)(b.at.vectors + b.p->ds_by_key)
         + (((int64_t)q->b * b.p->heads + h) * b.p->q_len + q->q0 + row) * b.p->k_len + q->k0;
}
/* Are n keys, the first of them at distance d from the first row of a tile, at one end for all
 * rows?  1: at lo, 2: at hi. */
DEV int key_end(struct gpu_use u, int64_t d, int n)
{
    return u.lo == u.hi || d - (n - 1) >= u.hi ? 2 : d + TILE_ROWS - 1 <= u.lo ? 1 : 0;
}
/* The sum of 64 numbers, by halves. */
DEV float sum_by_halves(const SHARED float *x, int stride)
{
    float y[TILE_ROWS / 2];
    UNROLL for (int i = 0; i < TILE_ROWS / 2; i++)
        y[i] = x[i * stride] + x[(i + TILE_ROWS / 2) * stride];
    UNROLL for (int upper = TILE_ROWS / 4; upper; upper /= 2)
        UNROLL for (int i = 0; i < upper; i++) y[i] = y[i] + y[i + upper];
    return y[0];
}
/* Vectors as rows, from distance lo on. */
DEV const GLOBAL float *key_vectors_of(struct block b, struct gpu_use u, int h)
{
    return (const GLOBAL float *)(b.at.tables + u.vectors_at) + h * u.vectors_head
         + (int64_t)DIM * u.columns + (int64_t)GPU_KEY_MARGIN * u.width;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* The same place for weights as this one of ds. */
DEV int64_t by_distance(struct block b, int weights, int64_t ds)
{
    return weights ? ds + (b.p->p_by_distance - b.p->ds_by_distance) : ds;
}
/* The tile x, ds or with `weights` p, [key][row]: of a row, by one thread, the ends of the tables
 * and, where positions may repeat, sums by distance. */
DEV void add_ends(struct block b, const SHARED float *x, int weights, const struct span *q, int h,
                  int row0, int r, int key0, int keys)
{
    for (int u = 0; u < USES; u++) {
        const struct gpu_use use = USE(u);
        const int first = use.by_row + 2 * weights;
        if (use.term != GPU_ROW_VECTORS || (weights && use.values_at < 0)) continue;
        const struct end_sums s =
            end_sums_of(b, use, x + r, TILE_ROWS, q, row0 + r, key0, keys);
        GLOBAL float *lo = row_sum_at(b, first, 0, q, h, row0 + r),
                     *hi = row_sum_at(b, first + 1, 0, q, h, row0 + r);
        *lo = *lo + s.lo;
        *hi = *hi + s.hi;
    }
    if (q->run) return;
    GLOBAL float *to = row_by_distance(
        b, by_distance(b, weights, b.p->ds_chunk >= 0 ? b.p->ds_chunk : b.p->ds_by_distance), q, h,
        row0 + r);
    for (int k = 0; k < keys; k++) {
        const int64_t n = distance_of(b, q, row0 + r, key0 + k) - b.p->ds_lo;
        if (n >= 0 && n < b.p->ds_width) to[n] = to[n] + x[k * TILE_ROWS + r];
    }
}
/* Every pair of the tile. */
DEV void store_pairs(struct block b, const SHARED float *x, int weights, const struct span *q,
                     int h, int row0, int rows, int key0, int keys, int tid)
{
    for (int i = tid; i < keys * TILE_ROWS; i += THREADS) {
        const int k = i / TILE_ROWS, r = i % TILE_ROWS;
        if (r >= rows) continue;
        if (b.p->ds_by_key >= 0 && !weights) ds_of_keys(b, q, h, row0 + r)[key0 + k] = x[i];
        const int64_t n = distance_of(b, q, row0 + r, key0 + k) - b.p->ds_lo;
        if (q->run && n >= 0 && n < b.p->ds_width)
            row_by_distance(b, by_distance(b, weights, b.p->ds_by_distance), q, h, row0 + r)[n] =
                x[i];
    }
}
/* A chunk is done: its sums by distance join those of all. */
DEV void join_ds(struct block b, const struct span *q, int h, int row0, int rows, int tid)
{
    if (b.p->ds_chunk < 0 || q->run) return;
    for (int weights = 0; weights <= (b.p->p_by_distance >= 0); weights++)
        for (int i = tid; i < rows * b.p->ds_width; i += THREADS) {
            const int r = row0 + i / b.p->ds_width, n = i % b.p->ds_width;
            const int64_t from = by_distance(b, weights, b.p->ds_chunk),
                          to = by_distance(b, weights, b.p->ds_by_distance);
            GLOBAL float *chunk = row_by_distance(b, from, q, h, r) + n,
                         *all = row_by_distance(b, to, q, h, r) + n;
            *all = *all + *chunk;
            *chunk = 0;
        }
}
/* Gradients of the vectors of the ends, [lo, hi][padded D], from keys that are there for all rows.
 * sums: of the rows of each key, times scale.  By one thread per channel. */
DEV void add_end_vectors(struct block b, struct gpu_use u, const SHARED float *sums,
                         const SHARED float *keys, int stride, int64_t d, int n, int channel,
                         GLOBAL float *part)
{
    for (int k0 = 0; k0 < n; k0 += 16) {
        const int count = least(n - k0, 16), end = key_end(u, d - k0, count);
        GLOBAL float *to = part + (end == 2 ? (DIM + 15) / 16 * 16 : 0) + channel;
        for (int k = k0; k < k0 + count && end; k++)
            if (sums[k] != 0) *to = fma_(sums[k], keys[k * stride + channel], *to);
    }
}

/* ---- Keys ------------------------------------------------------------------------------------ */

/* What a pair of tiles gives to the gradients of a thread's keys, before the product of ds and q.
 * ds: [row][key]; `last`: the newest key that the rows see. */
DEV void add_key_vectors(struct block b, const struct span *q, int h, int row0, int rows, int key0,
                         int last, const SHARED float *ds, int tid, float (*dk)[8][4])
{
    const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
    for (int i = 0; i < USES * 8; i++) {
        const int u = USES - 1 - i / 8, j = i % 8, key = lane_of(KEYS, r0, j);
        if (TERM_OF(u) != GPU_KEY_VECTORS) continue;
        const struct gpu_use use = USE(u);
        const GLOBAL float *v = key_vectors_of(b, use, h);
        const int k0 = key / 16 * 16, n = least(last + 1 - key0 - k0, 16);
        const int64_t distance = q->d0 + row0 - key0;
        const int end = q->run ? key_end(use, distance - k0, n) : 0;
        const float g_end = end ? sum_by_halves(ds + key, KEYS) * b.p->scale : 0.0f;
        const int64_t at_end = end == 2 ? use.hi - use.lo : 0;
        if (n <= 0 || (end && g_end == 0)) continue;
        for (int c = 0; c < GROUPS(KEYS, DIM) * 4; c++) {
            const int d = channel_of(KEYS, side, c / 4) + c % 4;
            float x = dk[c / 4][j][c % 4], sum = 0;
            if (d >= DIM) continue;
            if (end) x = fma_(g_end, v[at_end * use.width + d], x);
            for (int r = 0; r < rows && !end; r++) {
                const int64_t at = q->run ? distance + r - key - use.lo
                                          : clamp_distance(distance_of(b, q, row0 + r, key0 + key),
                                                           use.lo, use.hi)
                                                - use.lo;
                const float g = b.p->scale * ds[r * KEYS + key];
                if (g == 0) continue;
                if (q->run) sum = fma_(g, v[at * use.width + d], sum);
                else x = fma_(g, v[at * use.width + d], x);
            }
            dk[c / 4][j][c % 4] = q->run && !end ? x + sum : x;
        }
    }
}

#endif
