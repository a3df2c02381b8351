/* SPDX-License-Identifier: MIT */
/* fades.h -- xpos: queries are multiplied by z^(pos - ref), keys by z^(ref - pos), and so are
 * gradients.  Tiles of keys share the reference, the place of a key, in blocks.  The table is that
 * of src/layout/pairs.h.  See docs/bits.md, Rotating. */
#ifndef LOCI_GPU_KERNELS_FADES_H
#define LOCI_GPU_KERNELS_FADES_H

#include "kernels/angles.h"
#include "kernels/visible.h"

DEV const GLOBAL struct pairs_table *fades_of(struct block b)
{
    return (const GLOBAL struct pairs_table *)(b.at.tables + (b.p->pairs < 0 ? 0 : b.p->pairs));
}
/* Is this the newest tile of its block, or the oldest one? */
DEV int ends_block(struct block b, int tile, int newest)
{
    if (!FADES) return 0;
    const int span = fades_of(b)->span;
    return newest ? tile % span == span - 1 : tile % span == 0;
}
/* z^power of the pair of channel d. */
DEV float fade_of(const GLOBAL struct pairs_table *t, int64_t power, int run, int d)
{
    const int pair = t->interleaved ? (d - t->offset) / 2 : (d - t->offset) % t->count;
    const double least = power < 0 ? 0 : run ? t->least : 0x1p-126;
    const GLOBAL double *digit = pairs_row(t, 1, 0) + pair;
    double z = 1;
    if (d < t->offset || d >= t->offset + 2 * t->count) return 1.0f;
    for (int64_t left = power < 0 ? -power : power; left; left /= PAIR_STEPS) {
        z *= digit[left % PAIR_STEPS * t->width];
        digit += PAIR_STEPS * t->width;
    }
    z = z < least ? 0 : z;
    return (float)(power < 0 ? 1 / z : z);
}
/* The factor of a row, for keys of a tile. */
DEV float fade_row(struct block b, const struct span *q, int row, int tile, int d)
{
    const GLOBAL struct pairs_table *t = fades_of(b);
    return fade_of(t, distance_of(b, q, row, tile / t->span * t->span * KEYS), q->run, d);
}
/* Number d of a row of q, times scale and its factor, as keys of a tile meet it. */
DEV float faded_query(struct block b, const struct span *q, int h, int row, int tile, int d,
                      float scale, int64_t factors)
{
    const int64_t list = ((int64_t)q->b * b.p->heads + h) * b.p->q_len + q->q0 + row;
    float x = ((const GLOBAL float *)b.at.q)[q->b * b.p->q.batch + h * b.p->q.head
                                             + (int64_t)(q->q0 + row) * b.p->q.row + d]
            * scale;
    if (factors >= 0) x = x * ((const GLOBAL float *)(b.at.lists + factors))[list];
    return x * fade_row(b, q, row, tile, d);
}
/* Rows as lanes, [channel][lanes]. */
DEV void fade_lanes(struct block b, const struct span *q, int h, int row0, int rows, int tile,
                    int lanes, float scale, int64_t factors, int tid, SHARED float *to)
{
    for (int i = tid; i < DIM * lanes; i += THREADS)
        if (i % lanes < rows)
            to[i] = faded_query(b, q, h, row0 + i % lanes, tile, i / lanes, scale, factors);
}
/* Rows as rows of `stride` numbers, in place.  True if all that this thread makes are finite. */
DEV int fade_rows(struct block b, const struct span *q, int row0, int rows, int tile, int stride,
                  int tid, SHARED float *x)
{
    int finite = 1;
    for (int i = tid; i < rows * DIM; i += THREADS) {
        SHARED float *to = x + i / DIM * stride + i % DIM;
        *to = *to * fade_row(b, q, row0 + i / DIM, tile, i % DIM);
        finite &= *to * 0.0f == 0.0f;
    }
    return finite;
}
/* Keys or their gradients, in place: a group has 64 of a kv head. */
DEV void fade_keys(struct block b)
{
    const int tile = b.x / b.p->kv_heads, h = b.x % b.p->kv_heads;
    const struct span q = span_of(b, BY_KTILE, tile);
    const GLOBAL struct pairs_table *t = fades_of(b);
    const int key0 = (tile - q.ktile) * KEYS, keys = least(q.nk - key0, KEYS),
              first = key0 / (t->span * KEYS) * t->span * KEYS;
    const GLOBAL int64_t *at =
        q.run ? (const GLOBAL int64_t *)0
              : list_at(b, b.p->k_pos) + (int64_t)q.b * b.p->k_len + q.k0;
    PHASE(tid)
        for (int i = tid; i < keys * DIM; i += THREADS) {
            const int key = key0 + i / DIM, d = i % DIM;
            const int64_t power = q.run ? first - key : at[first] - at[key];
            GLOBAL float *to = (GLOBAL float *)b.at.k + q.b * b.p->k.batch + h * b.p->k.head
                             + (int64_t)(q.k0 + key) * b.p->k.row + d;
            *to = *to * fade_of(t, power, q.run, d);
        }
    END
}

/* Rows of q, floats, as loci_rotate() has them: faded from position 0 on.  A group has ROTATED_ROWS
 * rows of an entry; their positions are in `k_pos`. */
DEV void fade_alone(struct block b)
{
    const int tiles = (b.p->q_len + ROTATED_ROWS - 1) / ROTATED_ROWS;
    const int batch = b.x / tiles, row0 = b.x % tiles * ROTATED_ROWS,
              rows = least(b.p->q_len - row0, ROTATED_ROWS), dim = b.p->dim;
    const GLOBAL struct pairs_table *t = fades_of(b);
    const GLOBAL int64_t *at = list_at(b, b.p->k_pos) + (int64_t)batch * b.p->q_len;
    PHASE(tid)
        for (int i = tid; i < rows * dim * b.p->heads; i += THREADS) {
            const int h = i / dim / rows, row = row0 + i / dim % rows, d = i % dim;
            const int64_t power = b.p->keys_side ? -at[row] : at[row];
            const float x = ((const GLOBAL float *)b.at.q)[batch * b.p->q.batch + h * b.p->q.head
                                                           + (int64_t)row * b.p->q.row + d];
            store_number(b.at.o, b.p->o_type,
                         batch * b.p->o.batch + h * b.p->o.head + (int64_t)row * b.p->o.row + d,
                         x * fade_of(t, power, 0, d));
        }
    END
}

#endif
