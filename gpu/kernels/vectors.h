/* SPDX-License-Identifier: MIT */
/* vectors.h -- products of rows of q, or of keys, with the vectors of a table (shaw, deberta), before
 * scores look them up by distance.  A group has 16 rows of a head.  See docs/bits.md, Terms. */
#ifndef LOCI_KERNELS_VECTORS_H
#define LOCI_KERNELS_VECTORS_H

#include "kernels/visible.h"

/* From q, of q_len rows, to `vectors` + vector_to: [B][H][q_len][vector_count]. */
DEV void vector_numbers(struct block b)
{
    const int tiles = (b.p->q_len + VECTOR_ROWS - 1) / VECTOR_ROWS;
    const int row0 = b.x % tiles * VECTOR_ROWS, rows = least(b.p->q_len - row0, VECTOR_ROWS);
    const int h = b.x / tiles % b.p->heads, batch = b.x / tiles / b.p->heads;
    const int64_t list = ((int64_t)batch * b.p->heads + h) * b.p->q_len + row0;
    const int columns = b.p->vector_columns, count = b.p->vector_count;
    const GLOBAL float *table = (const GLOBAL float *)(b.at.tables + b.p->vector_table)
                              + h * b.p->vector_head;
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
                y = load_number(x.at, x.type, row_offset(x, r) + d) * b.p->scale;
                if (b.p->q_factor >= 0)
                    y = y * ((const GLOBAL float *)(b.at.lists + b.p->q_factor))[list + r];
            }
            b.room[i] = y;
        }
    END
    PHASE(tid)
        for (int n = tid; n < count; n += THREADS) {
            float c[VECTOR_ROWS];
            GLOBAL float *to = (GLOBAL float *)(b.at.vectors + b.p->vector_to) + list * count + n;
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

/* The product of a pair for term u. */
DEV float vector_number(struct block b, int u, int term, const struct span *q, int h, int row,
                        int key, int64_t d)
{
    const GLOBAL float *from = (const GLOBAL float *)(b.at.vectors + b.p->use[u].numbers);
    const int64_t lo = b.p->use[u].lo, hi = b.p->use[u].hi, at = (d < lo ? lo : d > hi ? hi : d) - lo,
                  head = (int64_t)q->b * b.p->heads + h;
    if (term == GPU_KEY_VECTORS)
        return from[(head * b.p->k_len + q->k0 + key) * b.p->use[u].vectors + at];
    return from[(head * b.p->q_len + q->q0 + row) * b.p->use[u].vectors
                + ((const GLOBAL int32_t *)(b.at.tables + b.p->use[u].table))[at]];
}

#endif
