/* SPDX-License-Identifier: MIT */
/* counts.h -- factors of rows by the number of keys that each of them sees, where a mask hides
 * some: it is in memory of the device (src/layout/factor.h). */
#ifndef LOCI_GPU_KERNELS_COUNTS_H
#define LOCI_GPU_KERNELS_COUNTS_H

#include "kernels/visible.h"

/* A group has a tile of rows of a head.  In `lists`, `where` has the number of a row by how many
 * keys it sees, doubles; q_factor gets factors, and factor_rows, if it is not -1, these numbers.
 * pairs: slope and bias of each head in `tables`, -1: factors are the numbers. */
DEV void count_keys(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const int first = (tile - q.tile) * b.p->vector_rows,
              end = least(q.nq, first + b.p->vector_rows);
    SHARED int *counts = (SHARED int *)b.room;
    for (int row0 = first; row0 < end; row0 += COUNTED_ROWS) {
        const int rows = least(end - row0, COUNTED_ROWS);
        const struct keys_seen seen = keys_of(b, &q, row0, rows);
        PHASE(tid)
            for (int r = 0; r < rows; r++) {
                int n = 0;
                for (int key = seen.first + tid; key <= seen.last; key += THREADS)
                    n += sees(b, &q, h, row0 + r, key);
                counts[r * THREADS + tid] = n;
            }
        END
        PHASE(tid)
            if (tid < rows) {
                const GLOBAL double *numbers = (const GLOBAL double *)(b.at.lists + b.p->where);
                const int64_t list =
                    ((int64_t)q.b * b.p->heads + h) * b.p->q_len + q.q0 + row0 + tid;
                int n = 0;
                for (int i = 0; i < THREADS; i++) n += counts[tid * THREADS + i];
                double x = numbers[n];
                if (b.p->factor_rows >= 0)
                    ((GLOBAL double *)(b.at.lists + b.p->factor_rows))[list] = x;
                if (b.p->pairs >= 0) {
                    const GLOBAL float *table =
                        (const GLOBAL float *)(b.at.tables + b.p->pairs) + 2 * h;
                    x = (double)table[0] * x + (double)table[1];
                }
                ((GLOBAL float *)(b.at.lists + b.p->q_factor))[list] = (float)x;
            }
        END
    }
}

#endif
