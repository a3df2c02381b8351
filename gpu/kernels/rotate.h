/* SPDX-License-Identifier: MIT */
/* rotate.h -- rotates all rows of a view into another, or back.  A group has 16 rows of a batch
 * entry in all heads, which share cos and sin.  See docs/bits.md, Rotating. */
#ifndef LOCI_GPU_KERNELS_ROTATE_H
#define LOCI_GPU_KERNELS_ROTATE_H

#include "kernels/turns.h"

DEV const GLOBAL struct pairs_table *pairs_of(struct block b)
{
    return (const GLOBAL struct pairs_table *)(b.at.tables + (b.p->pairs < 0 ? 0 : b.p->pairs));
}
/* Numbers of a row that come with the call, `each` of them: [B][heads][q_len][each]. */
DEV const GLOBAL float *given_numbers(struct block b, int64_t batch, int h, int row, int each)
{
    const GLOBAL char *at = b.p->given == 0 ? b.at.in0 : b.p->given == 1 ? b.at.in1 : b.at.in2;
    return (const GLOBAL float *)at + ((batch * b.p->heads + h) * b.p->q_len + row) * each;
}
/* The place of a row, if it comes with the call. */
DEV double given_place(struct block b, int64_t batch, int h, int row)
{
    return (double)*given_numbers(b, batch, h, row, 1);
}
/* cos and sin of pair i of a row. */
DEV void turn_angle(struct block b, const GLOBAL struct pairs_table *t, int batch, int h, int row,
                    int group, int i, SHARED float *cosine, SHARED float *sine)
{
    const GLOBAL double *x = (const GLOBAL double *)(b.at.lists + b.p->where);
    double counted = 0;
    if (ROTATION == TURN_GIVEN) {
        const double phi = (double)given_numbers(b, batch, h, row, TURN.count)[i];
        const struct two c = sincos_of(phi, 1.0, 0.0);
        *cosine = (float)c.hi;
        *sine = (float)c.lo;
        return;
    }
    if (b.p->counted) counted = (double)(((const GLOBAL int64_t *)x)[batch] + row);
    if (ROTATION == TURN_RANGES) {
        const double place = x[(int64_t)batch * b.p->q_len + row],
                     m = b.p->form_twice ? t->factor : 1.0;
        struct two a = angle_on_axis(t, b.p->form_leaks, 0, place, i);
        if (b.p->form_leaks && !b.p->keys_side) { /* the constant part of rows */
            const GLOBAL double *c = pairs_row(t, 2, 0) + i;
            const double cosine_of = a.hi, sine_of = a.lo;
            a.hi = cosine_of * c[0] - sine_of * c[t->width];
            a.lo = sine_of * c[0] + cosine_of * c[t->width];
        }
        *cosine = (float)(m * a.hi);
        *sine = (float)(m * a.lo);
        return;
    }
    if (b.p->given >= 0) counted = given_place(b, batch, h, row);
    angle_of(t, t->groups > 1 ? group : 0,
             b.p->counted || b.p->given >= 0 ? (const GLOBAL double *)0
                                             : x + (int64_t)batch * t->axes * b.p->q_len + row,
             b.p->q_len, counted, i, b.p->plain, cosine, sine);
}
/* Is a row in no sequence?  Nobody reads it, or the caller has cleared it. */
DEV int is_unused(struct block b, int batch, int row)
{
    return b.p->used >= 0 && !b.at.lists[b.p->used + (int64_t)batch * b.p->q_len + row];
}
/* Where a row of q begins. */
DEV int64_t row_from(struct block b, int batch, int h, int row)
{
    if (!b.p->q_paged)
        return (int64_t)batch * b.p->q.batch + h * b.p->q.head + (int64_t)row * b.p->q.row;
    const GLOBAL int32_t *pages =
        (const GLOBAL int32_t *)(b.at.lists + b.p->pages) + (int64_t)batch * b.p->page_entry;
    return pages[row / b.p->page_keys] * b.p->q.batch + h * b.p->q.head
         + (int64_t)(row % b.p->page_keys) * b.p->q.row;
}
/* Rows of zeros stay zeros, whatever their place, as those of padding need not be numbers. */
DEV int stays_zero(struct block b, struct gpu_turn u, int64_t from)
{
    int zero = b.p->given >= 0 && (b.p->back || b.p->plain);
    for (int i = 0; zero && i < 2 * u.count; i++)
        zero = load_number(b.at.q, b.p->q_type, from + u.offset + i) == 0;
    return zero;
}
/* A number of o, or an addend. */
DEV void put_number(struct block b, int64_t to, float x)
{
    if (b.p->adds == ADDS_TO_SUM) x = ((const GLOBAL float *)b.at.o)[to] + x;
    if (b.p->adds == ADDS_ZERO) x = x + 0.0f;
    store_number(b.at.o, b.p->o_type, to, x);
}
/* From q to o, both of q_len rows and `heads` heads: stored as `q_type` and as `o_type`.  Without
 * pairs rows are copied, which rounds sums to how they are stored. */
DEV void rotate_rows(struct block b)
{
    const int tiles = (b.p->q_len + ROTATED_ROWS - 1) / ROTATED_ROWS;
    const int batch = b.x / tiles, row0 = b.x % tiles * ROTATED_ROWS,
              rows = least(b.p->q_len - row0, ROTATED_ROWS);
    const int turns = b.p->pairs >= 0;
    const GLOBAL struct pairs_table *t = pairs_of(b);
    const struct gpu_turn u = TURN;
    /* angles of a row, pairs of a row, and numbers of a row in its bases */
    const int angles_of_row = !turns || ROTATION == TURN_MATRICES ? 0
                            : ROTATION == TURN_GIVEN              ? u.count
                                                                  : t->count,
              count = turns && ROTATION <= TURN_WAVES ? u.count : 0,
              width = ROTATION == TURN_BASES ? 2 * angles_of_row : 0;
    /* heads with the same angles, of several groups */
    const int share = b.p->heads / b.p->kv_heads;
    SHARED float *angles = b.room, *more = angles + 2 * ROTATED_ROWS * angles_of_row,
                 *pairs = ROTATION == TURN_WAVES ? more : angles;
    for (int h = 0; h < b.p->heads; h++) {
        const int group = h / share,
                  fresh = turns && (h == 0 || b.p->given >= 0 || (u.groups > 1 && h % share == 0));
        PHASE_IF(tid, fresh)
            for (int i = tid; i < rows * angles_of_row; i += THREADS) {
                const int r = i / angles_of_row, n = i % angles_of_row;
                turn_angle(b, t, batch, h, row0 + r, group, n,
                           angles + 2 * r * angles_of_row + n,
                           angles + (2 * r + 1) * angles_of_row + n);
            }
        END_IF
        PHASE_IF(tid, fresh && ROTATION == TURN_WAVES)
            for (int i = tid; i < 2 * rows * count; i += THREADS)
                more[i] = sum_of_waves(b, u, group, angles + i / count * angles_of_row,
                                       angles_of_row, i % count, i / count % 2);
        END_IF
        PHASE_IF(tid, ROTATION == TURN_BASES && turns)
            for (int i = tid; i < rows * width; i += THREADS) {
                const int r = i / width, w = i % width;
                if (!is_unused(b, batch, row0 + r))
                    more[i] = enter_basis(b, u, group, w / u.width, w % u.width, b.at.q,
                                          b.p->q_type, row_from(b, batch, h, row0 + r));
            }
        END_IF
        PHASE_IF(tid, ROTATION == TURN_BASES && turns)
            for (int i = tid; i < rows * angles_of_row; i += THREADS) {
                const SHARED float *c = angles + i / angles_of_row * width + i % angles_of_row;
                turn_pair(more + 2 * i, c[0], b.p->back ? -c[angles_of_row] : c[angles_of_row]);
            }
        END_IF
        PHASE(tid)
            const int dim = b.p->dim, units = dim - count; /* pairs, and channels that stay */
            for (int i = tid; i < rows * units; i += THREADS) {
                const int r = i / units, n = i % units;
                const int64_t to = (int64_t)batch * b.p->o.batch + h * b.p->o.head
                                 + (int64_t)(row0 + r) * b.p->o.row;
                if (is_unused(b, batch, row0 + r)) continue;
                const int64_t from = row_from(b, batch, h, row0 + r);
                const float factor =
                    b.p->factors < 0
                        ? 1.0f
                        : ((const GLOBAL float *)(b.at.lists + b.p->factors))
                            [((int64_t)batch * b.p->heads + h) * b.p->q_len + row0 + r];
                if (n >= count) { /* channels before the pairs, then those after them */
                    const int d = n - count < u.offset ? n - count : n + count;
                    const int turned = turns && d < u.block * u.blocks;
                    float x = 0;
                    if (turned && ROTATION == TURN_BASES)
                        x = leave_basis(b, u, group, d, more + r * width);
                    else if (turned && ROTATION == TURN_MATRICES)
                        x = times_matrix(b, u, group, batch, row0 + r, d, from);
                    else x = load_number(b.at.q, b.p->q_type, from + d);
                    if (b.p->finish) x = x * b.p->scale * factor;
                    put_number(b, to + d, x);
                    continue;
                }
                const int a = u.offset + (u.inside ? 2 * n : n), c = a + (u.inside ? 1 : count);
                const float cosine = pairs[2 * r * count + n], s = pairs[(2 * r + 1) * count + n],
                            sine = b.p->back ? -s : s;
                const float x = load_number(b.at.q, b.p->q_type, from + a),
                            y = load_number(b.at.q, b.p->q_type, from + c);
                float v = fma_(x, cosine, -(y * sine)), w = fma_(x, sine, y * cosine);
                if (stays_zero(b, u, from)) {
                    v = x;
                    w = y;
                }
                if (b.p->finish) {
                    v = v * b.p->scale * factor;
                    w = w * b.p->scale * factor;
                }
                put_number(b, to + a, v);
                put_number(b, to + c, w);
            }
        END
    }
}

#endif
