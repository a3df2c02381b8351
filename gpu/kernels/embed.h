/* SPDX-License-Identifier: MIT */
/* embed.h -- stage EMBED: y = x + p(pos), in double and rounded once, and gradients of vectors by
 * position.  A group has ROTATED_ROWS rows of an entry. */
#ifndef LOCI_GPU_KERNELS_EMBED_H
#define LOCI_GPU_KERNELS_EMBED_H

#include "kernels/angles.h"
#include "kernels/visible.h"

#define EMBEDDING (*(const GLOBAL struct gpu_embed *)(b.at.lists + b.p->turn))
enum { EMBED_STEPS = 64, MOST_BITS = 62 };

/* cos and sin of wave t at a position: see src/encodings/sinusoidal.c. */
DEV struct two wave_of(const GLOBAL double *table, int waves, int64_t pos, int t)
{
    const int digits = (int)table[0];
    const int64_t low = pos & (((int64_t)1 << 6 * digits) - 1);
    const GLOBAL double *w = table + 1 + 2 * t, *steps = table + 1 + 2 * waves + t;
    struct two z;
    z.hi = 1;
    z.lo = 0;
    if (pos != low) z = sincos_of((double)(pos - low), w[0], w[1]);
    for (int digit = digits - 1; digit >= 0; digit--) {
        const int value = (int)(low >> 6 * digit & (EMBED_STEPS - 1));
        const GLOBAL double *step = steps + (int64_t)(digit * EMBED_STEPS + value) * 2 * waves;
        const double c = step[0], s = step[waves], x = z.hi;
        z.hi = x * c - z.lo * s;
        z.lo = z.lo * c + x * s;
    }
    return z;
}
/* Channel d of the row of a position, but of waves. */
DEV double embedding_of(struct block b, struct gpu_embed e, int64_t pos, int d)
{
    if (e.kind == EMBED_OF_VECTORS)
        return (double)((const GLOBAL float *)(b.at.tables + e.table))[pos * b.p->dim + d];
    if (e.kind == EMBED_OF_BITS) return d < MOST_BITS ? (double)(pos >> d & 1) : 0.0;
    return (double)pos / e.divisor;
}
DEV void add_to_row(struct block b, int64_t from, int64_t to, int d, double x)
{
    if (d >= b.p->dim) return;
    store_number(b.at.o, b.p->o_type, to + d,
                 (float)((double)load_number(b.at.q, b.p->q_type, from + d) + x));
}
DEV void embed_rows(struct block b)
{
    const struct gpu_embed e = EMBEDDING;
    const int tiles = (b.p->q_len + ROTATED_ROWS - 1) / ROTATED_ROWS;
    const int batch = b.x / tiles, row0 = b.x % tiles * ROTATED_ROWS,
              rows = least(b.p->q_len - row0, ROTATED_ROWS), dim = b.p->dim;
    /* A wave has two columns, its sine first.  The last column may have none. */
    const int of_waves = e.kind == EMBED_OF_WAVES, apart = e.halves ? e.waves : 1,
              units = !of_waves  ? dim
                    : !e.halves  ? (dim + 1) / 2
                    : dim - e.waves > e.waves ? dim - e.waves : e.waves;
    PHASE(tid)
        for (int i = tid; i < rows * units; i += THREADS) {
            const int row = row0 + i / units, n = i % units, d = of_waves && !e.halves ? 2 * n : n;
            const int64_t from = (int64_t)batch * b.p->q.batch + (int64_t)row * b.p->q.row,
                          to = (int64_t)batch * b.p->o.batch + (int64_t)row * b.p->o.row,
                          pos = e.places < 0 ? e.start + row
                                             : list_at(b, e.places)[batch * e.entry + row];
            struct two z;
            if (!of_waves) {
                add_to_row(b, from, to, d, embedding_of(b, e, pos, d));
                continue;
            }
            z.hi = z.lo = 0;
            if (n < e.waves) {
                z = wave_of((const GLOBAL double *)(b.at.tables + e.table), e.waves, pos, n);
                add_to_row(b, from, to, d, z.lo);
            }
            if (n < e.waves || e.halves) add_to_row(b, from, to, d + apart, z.hi);
            else add_to_row(b, from, to, d, 0.0);
        }
    END
}
/* Of each distinct position: the sum of the rows dy that have it, in their order. */
DEV void embed_gradients(struct block b)
{
    const struct gpu_embed e = EMBEDDING;
    const int64_t end = (int64_t)e.distinct * b.p->dim, first = (int64_t)b.x * THREADS;
    PHASE(tid)
        for (int64_t i = first + tid; i < end && i < first + THREADS; i += THREADS) {
            const int n = (int)(i / b.p->dim), d = (int)(i % b.p->dim);
            double sum = 0;
            for (int64_t r = list_at(b, e.first)[n]; r < list_at(b, e.first)[n + 1]; r++) {
                const int64_t row = list_at(b, e.rows)[r];
                sum += (double)load_number(b.at.q, b.p->q_type,
                                           row / b.p->q_len * b.p->q.batch
                                               + row % b.p->q_len * b.p->q.row + d);
            }
            ((GLOBAL float *)b.at.o)[i] = (float)sum;
        }
    END
}

#endif
