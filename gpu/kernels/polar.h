/* SPDX-License-Identifier: MIT */
/* polar.h -- pope: rows of D channels become rows of 2 D, softplus times cos and sin, and gradients
 * go back.  The table is that of src/layout/polar.h.  See docs/bits.md, Rotating. */
#ifndef LOCI_GPU_KERNELS_POLAR_H
#define LOCI_GPU_KERNELS_POLAR_H

#include "kernels/frequencies.h"

DEV float minus_abs(float x) { return x < 0 ? x : -x; }
DEV float softplus(float x)
{
    const float e = exp_(minus_abs(x)), s = e / (e + 2.0f), z = s * s, twice = s + s;
    float y = fma_(z, 0x1.1ef878p-3f, 0x1.1eb610p-3f);
    y = fma_(z, y, 0x1.99d27cp-3f);
    y = fma_(z, y, 0x1.5555p-2f);
    return max_(0.0f, x) + fma_(twice * z, y, twice);
}
DEV float sigmoid(float x)
{
    const float e = exp_(minus_abs(x)), y = 1.0f / (e + 1.0f);
    return x < 0 ? e * y : y;
}

/* cos and sin of a row at a position; kvh: of a key, whose phases add to the angle; -1: a query. */
DEV void polar_angle(const GLOBAL struct pairs_table *t, int kvh, double position, int i,
                     float *cosine, float *sine)
{
    const struct two a = angle_on_axis(t, 0, 0, position, i);
    *cosine = (float)a.hi;
    *sine = (float)a.lo;
    if (kvh < 0) return;
    const GLOBAL double *phase = pairs_row(t, 1, 0) + (int64_t)3 * kvh * t->width + i;
    const double c = phase[0], s = phase[t->width];
    *cosine = (float)(a.hi * c - a.lo * s);
    *sine = (float)(a.lo * c + a.hi * s);
}
/* The place of row i of an entry. */
DEV double place_of(struct block b, int64_t batch, int i)
{
    const GLOBAL double *where = (const GLOBAL double *)(b.at.lists + b.p->where);
    return b.p->counted ? (double)(((const GLOBAL int64_t *)where)[batch] + i)
                        : where[batch * b.p->q_len + i];
}
/* A row of zeros stays zero, whatever else is in it. */
DEV int row_is_zero(const GLOBAL char *at, int64_t first, int n)
{
    int zero = 1;
    for (int i = 0; i < n; i++) zero &= ((const GLOBAL float *)at)[first + i] == 0;
    return zero;
}

/* Rows of q to o; `back`: gradients in q, of the rows that v has, to o.  A group has 16 rows of a
 * batch entry in all heads. */
DEV void polar_rows(struct block b)
{
    const int tiles = (b.p->q_len + ROTATED_ROWS - 1) / ROTATED_ROWS, D = b.p->dim;
    const int batch = b.x / tiles, row0 = b.x % tiles * ROTATED_ROWS,
              rows = least(b.p->q_len - row0, ROTATED_ROWS);
    const GLOBAL struct pairs_table *t =
        (const GLOBAL struct pairs_table *)(b.at.tables + b.p->pairs);
    SHARED float *angles = b.room, *zero = b.room + 2 * ROTATED_ROWS * D;
    for (int h = 0; h < b.p->heads; h++) {
        PHASE(tid)
            for (int i = tid; i < rows * D && (h == 0 || b.p->keys_side); i += THREADS) {
                float cosine, sine;
                polar_angle(t, b.p->keys_side ? h : -1, place_of(b, batch, row0 + i / D), i % D,
                            &cosine, &sine);
                angles[2 * i] = cosine;
                angles[2 * i + 1] = sine;
            }
            if (b.p->back && tid < rows)
                zero[tid] = row_is_zero(b.at.q,
                                        (int64_t)batch * b.p->q.batch + h * b.p->q.head
                                            + (int64_t)(row0 + tid) * b.p->q.row,
                                        2 * D)
                              ? 1.0f
                              : 0.0f;
        END
        PHASE(tid)
            for (int i = tid; i < rows * D; i += THREADS) {
                const int r = i / D, n = i % D;
                const int64_t from = (int64_t)batch * b.p->q.batch + h * b.p->q.head
                                   + (int64_t)(row0 + r) * b.p->q.row + n,
                              to = (int64_t)batch * b.p->o.batch + h * b.p->o.head
                                 + (int64_t)(row0 + r) * b.p->o.row + n,
                              row = (int64_t)batch * b.p->v.batch + h * b.p->v.head
                                  + (int64_t)(row0 + r) * b.p->v.row + n;
                const float cosine = angles[2 * i], sine = angles[2 * i + 1];
                const float factor =
                    b.p->factors < 0
                        ? 1.0f
                        : ((const GLOBAL float *)(b.at.lists + b.p->factors))
                            [((int64_t)batch * b.p->heads + h) * b.p->q_len + row0 + r];
                const float scale = b.p->finish ? b.p->scale : 1.0f;
                if (b.p->used >= 0
                    && !b.at.lists[b.p->used + (int64_t)batch * b.p->q_len + row0 + r])
                    continue; /* the caller has cleared it */
                if (b.p->back) {
                    float x = load_number(b.at.q, GPU_F32, from);
                    if (zero[r] == 0)
                        x = sigmoid(load_number(b.at.v, b.p->v_type, row))
                          * fma_(x, cosine, load_number(b.at.q, GPU_F32, from + D) * sine);
                    store_number(b.at.o, b.p->o_type, to, x * scale);
                } else {
                    const float size = softplus(load_number(b.at.q, b.p->q_type, from));
                    store_number(b.at.o, b.p->o_type, to, size * cosine * scale * factor);
                    store_number(b.at.o, b.p->o_type, to + D, size * sine * scale * factor);
                }
            }
        END
    }
}
/* Gradients of the phases of a kv head, of 64 keys: as key_frequencies.  v has the keys, dq the
 * gradients of their wide rows. */
DEV void key_phases(struct block b)
{
    const int tile = b.x / b.p->kv_heads, h = b.x % b.p->kv_heads, D = b.p->rotation_count;
    const struct span q = span_of(b, BY_KTILE, tile);
    const int key0 = (tile - q.ktile) * KEYS, keys = least(q.nk - key0, KEYS);
    const GLOBAL struct pairs_table *t =
        (const GLOBAL struct pairs_table *)(b.at.tables + b.p->pairs);
    const struct rows_at x = view_rows(b.at.v, b.p->v, q.b, h, q.k0 + key0, b.p->v_type, 0),
                         d = view_rows(b.at.dq, b.p->dq, q.b, h, q.k0 + key0, GPU_F32, 0);
    GLOBAL float *to = (GLOBAL float *)(b.at.apart + b.p->by_tile) + (int64_t)b.x * D;
    SHARED float *zero = b.room;
    PHASE(tid)
        if (tid < keys) zero[tid] = row_is_zero(d.at, d.first + tid * d.row, 2 * D) ? 1.0f : 0.0f;
    END
    PHASE(tid)
        for (int i = tid; i < D; i += THREADS) {
            double sum = 0;
            for (int r = 0; r < keys; r++) {
                const GLOBAL float *g = (const GLOBAL float *)d.at + d.first + r * d.row;
                float cosine, sine;
                if (zero[r] != 0) continue;
                polar_angle(t, h, place_of(b, q.b, q.k0 + key0 + r), i, &cosine, &sine);
                const double along =
                    (double)g[D + i] * (double)cosine - (double)g[i] * (double)sine;
                const float size = softplus(load_number(x.at, x.type, x.first + r * x.row + i));
                if (along != 0) sum += (double)size * along;
            }
            to[i] = (float)sum;
        }
    END
}

#endif
