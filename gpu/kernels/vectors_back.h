/* SPDX-License-Identifier: MIT */
/* vectors_back.h -- backward: gradients of products with vectors, after backward_rows has stored
 * ds, by distance where rows or keys meet the vectors of a table (shaw, deberta), by key where each
 * distance has its own (xl).  Totals of what is learned have one thread per number, which walks
 * over items, chunks and tiles of rows in the order of docs/bits.md, Backward. */
#ifndef LOCI_GPU_KERNELS_VECTORS_BACK_H
#define LOCI_GPU_KERNELS_VECTORS_BACK_H

#include "kernels/backward.h"

/* A row of q of a head, scaled and rotated. */
DEV const GLOBAL float *query_row(struct block b, const struct span *q, int h, int row)
{
    return (const GLOBAL float *)b.at.q + q->b * b.p->q.batch + h * b.p->q.head
         + (int64_t)(q->q0 + row) * b.p->q.row;
}
DEV GLOBAL float *dq_row(struct block b, const struct span *q, int h, int row)
{
    return (GLOBAL float *)b.at.dq + q->b * b.p->dq.batch + h * b.p->dq.head
         + (int64_t)(q->q0 + row) * b.p->dq.row;
}
/* The newest chunk that a tile of rows sees. */
DEV int newest_chunk(struct block b, const struct span *q, int row0, int rows)
{
    const struct keys_seen seen = keys_of(b, q, row0, rows);
    return seen.last < seen.first ? first_chunk(b, q, row0) : seen.last / CHUNK;
}

/* ---- Vectors that rows meet ------------------------------------------------------------------ */

/* Distances of the table that a tile of rows can meet, and their rows of the table. */
struct row_reach {
    int from, to, first, count; /* none: to < from */
};
DEV struct row_reach row_reach_of(struct block b, struct gpu_use u, const struct span *q, int row0,
                                  int rows)
{
    const GLOBAL int32_t *index = (const GLOBAL int32_t *)(b.at.tables + u.table);
    const int64_t d = q->d0 + row0;
    int64_t low = u.ends_lo, high = u.ends_hi;
    struct row_reach a = { u.ends_lo, u.ends_hi, 0, 0 };
    if (q->run) {
        low = d - (q->nk - 1) > b.p->lo ? d - (q->nk - 1) : b.p->lo;
        high = d + rows - 1 < b.p->hi ? d + rows - 1 : b.p->hi;
        a.from = (int)clamp_distance(low, u.ends_lo, u.ends_hi);
        a.to = (int)clamp_distance(high, u.ends_lo, u.ends_hi);
    }
    if (high < low || !q->nk) a.to = a.from - 1;
    if (a.to < a.from) return a;
    const int one = index[a.from - u.lo], other = index[a.to - u.lo];
    a.first = least(one, other);
    a.count = most(one, other) - a.first + 1;
    return a;
}
/* Sums of ds of a row by row of the table, in place of the products of the forward pass. */
DEV GLOBAL float *sums_of_row(struct block b, struct gpu_use u, const struct span *q, int h, int row)
{
    return (GLOBAL float *)(b.at.vectors + u.numbers)
         + (((int64_t)q->b * b.p->heads + h) * b.p->q_len + q->q0 + row) * u.vectors;
}
/* A group has 64 rows of a head: dq, and the sums. */
DEV void finish_row_vectors(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const struct gpu_use u = USE(b.p->vector_use);
    const int row0 = (tile - q.tile) * TILE_ROWS, rows = least(q.nq - row0, TILE_ROWS);
    const struct row_reach a = row_reach_of(b, u, &q, row0, rows);
    const GLOBAL int32_t *index = (const GLOBAL int32_t *)(b.at.tables + u.table);
    const GLOBAL float *table =
        (const GLOBAL float *)(b.at.tables + u.vectors_at) + h * u.vectors_head;
    PHASE(tid)
        const int r = tid % TILE_ROWS, part = tid / TILE_ROWS, parts = THREADS / TILE_ROWS;
        if (r < rows && a.to >= a.from) {
            GLOBAL float *to = sums_of_row(b, u, &q, h, row0 + r);
            const GLOBAL float *ds = ds_row(b, &q, h, row0 + r, 0);
            const int first = a.from > u.ends_lo ? a.from : u.ends_lo + 1,
                      last = a.to < u.ends_hi ? a.to : u.ends_hi - 1;
            for (int n = a.first; n < a.first + a.count; n++)
                if (n % parts == part) to[n] = 0;
            for (int end = 0; end < 2; end++) {
                const int d = end ? u.ends_hi : u.ends_lo, n = index[d - u.lo];
                if (n % parts == part && (end ? a.to == d : a.from == d))
                    to[n] = to[n] + *row_sum_at(b, u.by_row + end, 1, &q, h, row0 + r);
            }
            for (int d = first; d <= last; d++) {
                const int n = index[d - u.lo];
                if (n % parts == part) to[n] = to[n] + ds[d - b.p->ds_lo];
            }
        }
    END
    PHASE(tid)
        for (int i = tid; b.at.dq && a.to >= a.from && i < rows * DIM; i += THREADS) {
            const int r = i / DIM, d = i % DIM;
            const GLOBAL float *w = sums_of_row(b, u, &q, h, row0 + r),
                               *k = table + (int64_t)d * u.columns;
            GLOBAL float *to = dq_row(b, &q, h, row0 + r) + d;
            float sum = 0;
            for (int n = a.first; n < a.first + a.count; n++) sum = fma_(k[n], w[n], sum);
            *to = *to + sum;
        }
    END
}
/* Number i of the vectors of a table, [rows][padded D], of one head or of all. */
DEV void row_vector_totals(struct block b)
{
    const struct gpu_use u = USE(b.p->vector_use);
    const int tables = u.vectors_head ? b.p->heads : 1, width = (DIM + 15) / 16 * 16;
    PHASE(tid)
        const int i = b.x / tables * THREADS + tid, head = b.x % tables, n = i / width,
                  d = i % width;
        double total = 0;
        for (int s = b.p->sequences - 1; s >= 0 && n < u.vectors && d < DIM; s--) {
            const struct span q = span_at(b, s);
            for (int item = (q.nq + ITEM - 1) / ITEM - 1; item >= 0; item--)
                for (int h = head; h < (tables > 1 ? head + 1 : b.p->heads); h++) {
                    const int end = least(q.nq, item * ITEM + ITEM);
                    double all = 0;
                    float part = 0;
                    int chunk = -1;
                    for (int row0 = item * ITEM; row0 < end; row0 += TILE_ROWS) {
                        const int rows = least(q.nq - row0, TILE_ROWS),
                                  now = newest_chunk(b, &q, row0, rows);
                        const struct row_reach a = row_reach_of(b, u, &q, row0, rows);
                        float sum = 0;
                        if (now != chunk) {
                            all += (double)part;
                            part = 0;
                        }
                        chunk = now;
                        if (n < a.first || n >= a.first + a.count || a.to < a.from) continue;
                        for (int r = 0; r < rows; r++) {
                            const float w = sums_of_row(b, u, &q, h, row0 + r)[n];
                            if (w != 0) sum = fma_(w, query_row(b, &q, h, row0 + r)[d], sum);
                        }
                        part = part + sum;
                    }
                    total += all + (double)part;
                }
        }
        if (n < u.vectors)
            ((GLOBAL double *)b.at.totals)[u.direct + (int64_t)head * u.vectors * width + i] = total;
    END
}

/* ---- Vectors that keys meet ------------------------------------------------------------------ */

/* Number i of the vectors by distance, [D][columns], of a head. */
DEV void key_vector_totals(struct block b)
{
    const struct gpu_use u = USE(b.p->vector_use);
    PHASE(tid)
        const int h = b.x % b.p->heads, i = b.x / b.p->heads * THREADS + tid,
                  d = i / u.columns, n = u.lo - GPU_KEY_MARGIN + i % u.columns; /* the distance */
        double total = 0;
        for (int s = b.p->sequences - 1; s >= 0 && d < DIM; s--) {
            const struct span q = span_at(b, s);
            const struct rows_at keys =
                view_rows(b.at.k, b.p->k, q.b, h / (b.p->heads / b.p->kv_heads), q.k0, K_TYPE, 0);
            for (int item = (q.nq + ITEM - 1) / ITEM - 1; item >= 0; item--) {
                const struct keys_seen all_seen =
                    keys_of(b, &q, item * ITEM, least(q.nq - item * ITEM, ITEM));
                double all = 0;
                for (int chunk = all_seen.first / CHUNK; chunk <= all_seen.last / CHUNK; chunk++) {
                    float part = 0;
                    for (int row0 = item * ITEM; row0 < least(q.nq, item * ITEM + ITEM);
                         row0 += TILE_ROWS) {
                        const int rows = least(q.nq - row0, TILE_ROWS);
                        const struct keys_seen seen = keys_of(b, &q, row0, rows);
                        const int64_t key = q.d0 + row0 - n; /* of the first row */
                        int64_t from = most(seen.first, chunk * CHUNK) / KEYS * KEYS,
                                to = least(seen.last, chunk * CHUNK + CHUNK - 1);
                        if (key > from) from = key / 16 * 16;
                        if (key + TILE_ROWS - 1 < to) to = key + TILE_ROWS - 1;
                        for (int k0 = (int)from; k0 <= to; k0 += 16) {
                            const int count = least(seen.last + 1 - k0, 16);
                            float sum = 0;
                            if (key_end(u, q.d0 + row0 - k0, count)) continue;
                            for (int k = k0; k < k0 + count; k++) {
                                const int r = (int)(k - key);
                                if (r < 0 || r >= rows) continue;
                                const float g = b.p->scale * ds_at(b, &q, h, row0 + r, n);
                                if (g != 0)
                                    sum = fma_(load_number(keys.at, keys.type,
                                                           row_offset(keys, k) + d),
                                               g, sum);
                            }
                            part = part + sum;
                        }
                    }
                    all += (double)part;
                }
                total += all;
            }
        }
        if (d < DIM)
            ((GLOBAL double *)b.at.totals)[u.direct + (int64_t)h * DIM * u.columns + i] = total;
    END
}

#endif
