/* SPDX-License-Identifier: MIT */
/* states.h -- tape: rows are rotated by states that come with the call, two numbers for each pair
 * of channels.  States belong to query heads, so a key has a row for each of them.  The averages of
 * states are made as outputs are, by a second pass with states for values.  A group has 16 rows of
 * a batch entry in all heads.  See docs/bits.md, Rotating, and src/terms/states.c. */
#ifndef LOCI_GPU_KERNELS_STATES_H
#define LOCI_GPU_KERNELS_STATES_H

#include "kernels/rotate.h"

/* From q, where `vector_share` heads share a row, to o. */
DEV void state_rows(struct block b)
{
    const int tiles = (b.p->q_len + ROTATED_ROWS - 1) / ROTATED_ROWS, half_of = b.p->dim / 2;
    const int batch = b.x / tiles, row0 = b.x % tiles * ROTATED_ROWS,
              rows = least(b.p->q_len - row0, ROTATED_ROWS);
    PHASE(tid)
        for (int i = tid; i < b.p->heads * rows * half_of; i += THREADS) {
            const int h = i / half_of / rows, row = row0 + i / half_of % rows, t = i % half_of;
            if (is_unused(b, batch, row)) continue;
            const int64_t from = row_from(b, batch, h / b.p->vector_share, row) + t,
                          to = (int64_t)batch * b.p->o.batch + h * b.p->o.head
                             + (int64_t)row * b.p->o.row + t;
            const GLOBAL float *e = given_numbers(b, batch, h, row, b.p->dim) + 2 * t;
            const float x = load_number(b.at.q, b.p->q_type, from),
                        y = load_number(b.at.q, b.p->q_type, from + half_of);
            const float factor =
                b.p->factors < 0 ? 1.0f
                                 : ((const GLOBAL float *)(b.at.lists + b.p->factors))
                                       [((int64_t)batch * b.p->heads + h) * b.p->q_len + row];
            float v = fma_(x, e[0], -(y * e[1])), w = fma_(x, e[1], y * e[0]);
            if (b.p->finish) {
                v = v * b.p->scale * factor;
                w = w * b.p->scale * factor;
            }
            store_number(b.at.o, b.p->o_type, to, v);
            store_number(b.at.o, b.p->o_type, to + half_of, w);
        }
    END
}

/* Gradients of rows turn back, after all else: q has those of query heads, v the rows before they
 * turned, o gets the sums of heads that share a row, and `din0` the gradients of states, which with
 * `sums` have begun as values. */
DEV void unturn_states(struct block b)
{
    const int tiles = (b.p->q_len + ROTATED_ROWS - 1) / ROTATED_ROWS, half_of = b.p->dim / 2;
    const int batch = b.x / tiles, row0 = b.x % tiles * ROTATED_ROWS,
              rows = least(b.p->q_len - row0, ROTATED_ROWS), share = b.p->vector_share,
              turns = b.p->pairs >= 0;
    PHASE(tid)
        for (int i = tid; i < b.p->heads * rows * half_of; i += THREADS) {
            const int h = i / half_of / rows, row = row0 + i / half_of % rows, t = i % half_of;
            if (is_unused(b, batch, row)) continue;
            const int64_t from = (int64_t)batch * b.p->v.batch + h * b.p->v.head
                               + (int64_t)row * b.p->v.row + t,
                          to = (int64_t)batch * b.p->o.batch + h * b.p->o.head
                             + (int64_t)row * b.p->o.row + t;
            const float scale = b.p->finish ? b.p->scale : 1.0f;
            float v = 0, w = 0;
            for (int n = 0; n < share; n++) {
                const int64_t head = (int64_t)batch * b.p->heads * share + h * share + n,
                              at = (head * b.p->q_len + row) * b.p->dim;
                const GLOBAL float *e = input_of(b, b.p->given) + at + 2 * t,
                                   *d = (const GLOBAL float *)b.at.q + at + t;
                const float x = d[0], y = d[half_of];
                const int none = x == 0 && y == 0;
                float a = x, c = y;
                if (turns) {
                    a = none ? 0.0f : fma_(x, e[0], y * e[1]);
                    c = none ? 0.0f : fma_(x, -e[1], y * e[0]);
                }
                v = n ? v + a : a;
                w = n ? w + c : c;
                if (!b.at.din0) continue;
                double along = 0, across = 0;
                if (b.at.sums) {
                    const GLOBAL double *sums = (const GLOBAL double *)b.at.sums + at + 2 * t;
                    along = sums[0];
                    across = sums[1];
                }
                if (turns && !none) {
                    const double p = (double)(load_number(b.at.v, b.p->v_type, from) * scale),
                                 r = (double)(load_number(b.at.v, b.p->v_type, from + half_of)
                                              * scale);
                    along += (double)x * p + (double)y * r;
                    across += (double)y * p - (double)x * r;
                }
                ((GLOBAL float *)b.at.din0)[at + 2 * t] = (float)along;
                ((GLOBAL float *)b.at.din0)[at + 2 * t + 1] = (float)across;
            }
            if (!b.at.o) continue;
            store_number(b.at.o, b.p->o_type, to, v * scale);
            store_number(b.at.o, b.p->o_type, to + half_of, w * scale);
        }
    END
}

#endif
