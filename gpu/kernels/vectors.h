/* SPDX-License-Identifier: MIT */
/* vectors.h -- products of rows of q, or of keys, with the vectors of a table (shaw, deberta, xl),
 * before scores look them up by distance.  A group has rows of a head.  See docs/bits.md, Terms. */
#ifndef LOCI_GPU_KERNELS_VECTORS_H
#define LOCI_GPU_KERNELS_VECTORS_H

#include "kernels/visible.h"

/* From q, of q_len rows, to the numbers of the use: [B][H][q_len][vectors]. */
DEV void vector_numbers(struct block b)
{
    const int tiles = (b.p->q_len + VECTOR_ROWS - 1) / VECTOR_ROWS;
    const int row0 = b.x % tiles * VECTOR_ROWS, rows = least(b.p->q_len - row0, VECTOR_ROWS);
    const int h = b.x / tiles % b.p->heads, batch = b.x / tiles / b.p->heads;
    const int64_t list = ((int64_t)batch * b.p->heads + h) * b.p->q_len + row0;
    const struct gpu_use u = USE(b.p->vector_use);
    const int columns = u.columns, count = u.vectors;
    const GLOBAL float *table = (const GLOBAL float *)(b.at.tables + u.vectors_at)
                              + h * u.vectors_head
                              + (u.term == GPU_KEY_VECTORS ? GPU_KEY_MARGIN : 0);
    struct rows_at x = view_rows(b.at.q, b.p->q, b.p->q_paged ? 0 : batch, h / b.p->vector_share,
                                 b.p->q_paged ? 0 : row0, b.p->q_type, 0);
    if (b.p->q_paged) {
        x.pages = (const GLOBAL int32_t *)(b.at.lists + b.p->pages)
                + (int64_t)batch * b.p->page_entry;
        x.page = b.p->q.batch;
        x.length = b.p->page_keys;
        x.from = row0;
    }
    PHASE(tid)
        for (int i = tid; i < VECTOR_ROWS * DIM; i += THREADS) {
            const int r = i / DIM, d = i % DIM;
            float y = 0;
            if (r < rows
                && (b.p->used < 0
                    || b.at.lists[b.p->used + (int64_t)batch * b.p->q_len + row0 + r])) {
                y = load_number(x.at, x.type, row_offset(x, r) + d) * b.p->vector_scale;
                if (b.p->q_factor >= 0)
                    y = y * ((const GLOBAL float *)(b.at.lists + b.p->q_factor))[list + r];
            }
            b.room[i] = y;
        }
    END
    PHASE(tid)
        for (int n = tid; n < count; n += THREADS) {
            float c[VECTOR_ROWS];
            GLOBAL float *to = (GLOBAL float *)(b.at.vectors + u.numbers) + list * count + n;
            UNROLL for (int r = 0; r < VECTOR_ROWS; r++) c[r] = 0;
            ROLLED for (int d = 0; d < DIM; d++) {
                const float a = table[(int64_t)d * columns + n];
                UNROLL for (int r = 0; r < VECTOR_ROWS; r++)
                    c[r] = fma_(a, b.room[r * DIM + d], c[r]);
            }
            for (int r = 0; r < rows; r++) to[(int64_t)r * count] = c[r];
        }
    END
}

/* xl: products of the rows of a tile with the vectors of their distances, [B][H][q_len][k_len].  On
 * a run a thread has a distance, which 16 rows meet at 16 keys. */
DEV void roll_numbers(struct block b)
{
    const struct gpu_use u = USE(b.p->vector_use);
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads, width = u.width;
    const struct span q = span_of(b, BY_TILE, tile);
    const int first = (tile - q.tile) * b.p->vector_rows,
              end = least(q.nq, first + b.p->vector_rows);
    const int64_t lo = u.lo, hi = u.hi;
    const GLOBAL float *v = (const GLOBAL float *)(b.at.tables + u.vectors_at) + h * u.vectors_head,
                       *vectors = v + (1 + hi) * width; /* of distance 0 */
    for (int row0 = first; row0 < end; row0 += VECTOR_ROWS) {
        const int rows = least(end - row0, VECTOR_ROWS);
        const int64_t list = ((int64_t)q.b * b.p->heads + h) * b.p->q_len + q.q0 + row0;
        GLOBAL float *to =
            (GLOBAL float *)(b.at.vectors + u.numbers) + list * b.p->k_len + q.k0;
        const struct rows_at x = view_rows(b.at.q, b.p->q, q.b, h, q.q0 + row0, b.p->q_type, 0);
        PHASE(tid)
            for (int i = tid; i < VECTOR_ROWS * DIM; i += THREADS) {
                const int r = i / DIM, d = i % DIM;
                float y = 0;
                if (r < rows) y = load_number(x.at, x.type, row_offset(x, r) + d) * b.p->vector_scale;
                if (r < rows && b.p->q_factor >= 0)
                    y = y * ((const GLOBAL float *)(b.at.lists + b.p->q_factor))[list + r];
                b.room[i] = fma_(b.p->scale, v[d], y);
            }
        END
        PHASE(tid)
            for (int n = tid - (VECTOR_ROWS - 1); q.run && n < q.nk; n += THREADS) {
                float c[VECTOR_ROWS];
                const int64_t d0 = q.d0 + row0 - n;
                const GLOBAL float *a = vectors - (d0 < lo ? lo : d0 > hi ? hi : d0) * width;
                UNROLL for (int r = 0; r < VECTOR_ROWS; r++) c[r] = 0;
                ROLLED for (int d = 0; d < DIM; d++)
                    UNROLL for (int r = 0; r < VECTOR_ROWS; r++)
                        c[r] = fma_(a[d], b.room[r * DIM + d], c[r]);
                for (int r = 0; r < rows; r++)
                    if (n + r >= 0 && n + r < q.nk) to[(int64_t)r * b.p->k_len + n + r] = c[r];
            }
            for (int i = tid; !q.run && i < rows * q.nk; i += THREADS) {
                const int r = i / q.nk, key = i % q.nk;
                const int64_t d0 = distance_of(b, &q, row0 + r, key);
                const GLOBAL float *a = vectors - (d0 < lo ? lo : d0 > hi ? hi : d0) * width;
                float c = 0;
                for (int d = 0; d < DIM; d++) c = fma_(a[d], b.room[r * DIM + d], c);
                to[(int64_t)r * b.p->k_len + key] = c;
            }
        END
    }
}

/* The product of a pair for term u. */
DEV float vector_number(struct block b, int u, int term, const struct span *q, int h, int row,
                        int key, distance_t d)
{
    const GLOBAL float *from = (const GLOBAL float *)(b.at.vectors + USE(u).numbers);
    const int64_t lo = USE(u).lo, hi = USE(u).hi,
                  at = (d < lo ? lo : d > hi ? hi : d) - lo, head = (int64_t)q->b * b.p->heads + h;
    if (term == GPU_ROLL)
        return from[(head * b.p->q_len + q->q0 + row) * b.p->k_len + q->k0 + key];
    if (term == GPU_KEY_VECTORS)
        return from[(head * b.p->k_len + q->k0 + key) * USE(u).vectors + at];
    return from[(head * b.p->q_len + q->q0 + row) * USE(u).vectors
                + ((const GLOBAL int32_t *)(b.at.tables + USE(u).table))[at]];
}

#endif
