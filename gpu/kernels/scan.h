/* SPDX-License-Identifier: MIT */
/* scan.h -- cope: a row counts its gates, from the newest key on, and the count says which products
 * with learned positions a score gets.  The products are those of vectors.h.  The thread of a row
 * goes down its tile before scores are computed.  A backward call does so once before its passes
 * and keeps what rows carry from tile to tile.  See docs/bits.md, Terms and Backward, and
 * src/terms/scan.c. */
#ifndef LOCI_GPU_KERNELS_SCAN_H
#define LOCI_GPU_KERNELS_SCAN_H

#include "kernels/vectors.h"

/* Tiles of shared memory: scores as the product makes them, which become gates, and backward
 * gradients of their logits; fractions and whole numbers of counts.  sums() reads gates, and a row
 * behind them. */
enum scan_tile { SCAN_GATE, SCAN_FRACTION, SCAN_WHOLE };
/* What a row has at the start of a tile of keys, numbers of `apart`; SCAN_OLDER: the gradient by
 * the count, of older keys. */
enum scan_carry { SCAN_AT, SCAN_REST, SCAN_OLDER };

DEV GLOBAL float *carry_at(struct block b, enum scan_carry which, int tile, const struct span *q,
                           int h, int row)
{
    const struct gpu_use u = USE(SCAN);
    const int64_t head = (int64_t)q->b * b.p->heads + h;
    return (GLOBAL float *)(b.at.apart + u.carries)
         + (head * SCAN_CARRIES * u.tiles + (int)which * u.tiles + tile) * b.p->q_len + q->q0 + row;
}
/* Numbers of a row by position: products, or sums of gradients. */
DEV GLOBAL float *by_position(struct block b, int64_t from, const struct span *q, int h, int row)
{
    return (GLOBAL float *)(b.at.vectors + from)
         + (((int64_t)q->b * b.p->heads + h) * b.p->q_len + q->q0 + row) * USE(SCAN).vectors;
}

/* A tile of keys from key0 on and rows from row0 on begins, `lanes` keys or rows apart. */
DEV struct block with_scan(struct block b, int offset, int row0, int key0, int rows_as_lanes,
                           int lanes)
{
    b.scan = b.room + offset;
    b.scan_row = row0;
    b.scan_key = key0;
    b.scan_by_row = rows_as_lanes ? 1 : lanes;
    b.scan_by_key = rows_as_lanes ? lanes : 1;
    return b;
}
/* Where a tile has the number of a pair; a tile has 64 keys and as many rows as `lanes`, or 64. */
DEV SHARED float *scan_at(struct block b, enum scan_tile which, int row, int key)
{
    const int size = KEYS * most(TILE_ROWS, most(b.scan_by_row, b.scan_by_key));
    return b.scan + (int)which * size + (row - b.scan_row) * b.scan_by_row
         + (key - b.scan_key) * b.scan_by_key;
}

/* What queries are multiplied by for the gates of a kv head, if these are not the keys. */
DEV struct rows_at gate_rows(struct block b, const struct span *q, int kvh)
{
    const struct gpu_use u = USE(SCAN);
    struct strides s;
    if (u.gates == GATES_OF_VALUES) return value_rows(b, q, kvh);
    s.row = DIM;
    s.head = (int64_t)b.p->k_len * DIM;
    s.batch = b.p->kv_heads * s.head;
    return view_rows(u.key_input == 0 ? b.at.in0 : u.key_input == 1 ? b.at.in1 : b.at.in2, s, q->b,
                     kvh, q->k0, GPU_F32, 0);
}

/* Gradients of gates that calls give, of the keys of a sequence and a kv head. */
DEV GLOBAL double *gate_key_sums(struct block b, const struct span *q, int kvh)
{
    return (GLOBAL double *)(b.at.apart + USE(SCAN).gate_sums)
         + (((int64_t)q->b * b.p->kv_heads + kvh) * b.p->k_len + q->k0) * DIM;
}

struct scan_state {
    int whole;
    float fraction;
};
/* The thread of a row: gates in place of their logits, and counts.  s: scores as the product makes
 * them, key k at k * stride, or NULL if they are the logits.  `whole`: it sees all keys. */
DEV struct scan_state scan_row(struct block b, const struct span *q, int h, int row, int key0,
                               int keys, int whole, const SHARED float *s, int stride,
                               struct scan_state c)
{
    const struct gpu_use u = USE(SCAN);
    for (int k = keys - 1; k >= 0; k--) {
        SHARED float *at = scan_at(b, SCAN_GATE, row, key0 + k);
        const float logit = *at, score = s ? s[k * stride] : logit;
        float gate = 0;
        if ((whole || sees(b, q, h, row, key0 + k)) && !(score < -3.4028234663852886e+38f)) {
            const float y = logit * u.a, e = exp_(from_bits(to_bits(y) | 0x80000000u));
            gate = (y < 0 ? e : 1.0f) / (1.0f + e);
        }
        const float sum = c.fraction + gate, rest = sum >= 1 ? sum - 1 : sum;
        if (sum >= 1 && c.whole < u.vectors - 1) c.whole++;
        c.fraction = c.whole == u.vectors - 1 ? 0.0f : rest;
        *at = gate;
        *scan_at(b, SCAN_FRACTION, row, key0 + k) = c.fraction;
        *scan_at(b, SCAN_WHOLE, row, key0 + k) = (float)c.whole;
    }
    return c;
}
/* Products at a position, and from there to the next one. */
struct scan_step {
    float low, slope;
};
DEV struct scan_step scan_step_of(struct block b, const struct span *q, int h, int row, int key)
{
    const GLOBAL float *z = by_position(b, USE(SCAN).numbers, q, h, row);
    const int at = (int)*scan_at(b, SCAN_WHOLE, row, key);
    struct scan_step s;
    s.low = z[at];
    s.slope = z[least(at + 1, USE(SCAN).vectors - 1)] - s.low;
    return s;
}
/* What a score gets. */
DEV float scan_number(struct block b, const struct span *q, int h, int row, int key)
{
    const struct scan_step s = scan_step_of(b, q, h, row, key);
    return fma_(*scan_at(b, SCAN_FRACTION, row, key), s.slope, s.low);
}
/* Backward, the thread of a row: gradients of its logits in place of its gates, from ds, key k at
 * k * stride; `older` is that by the count, over older keys, and returns with this tile's.  With
 * `sums` those of the products are added. */
DEV float scan_back(struct block b, const struct span *q, int h, int row, int key0, int keys,
                    const SHARED float *ds, int stride, int sums, float older)
{
    const struct gpu_use u = USE(SCAN);
    GLOBAL float *dz = by_position(b, sums ? u.by_chunk : u.numbers, q, h, row);
    int at = (int)*scan_at(b, SCAN_WHOLE, row, key0);
    float low = 0, high = 0;
    for (int k = 0; k < keys; k++) {
        SHARED float *gate = scan_at(b, SCAN_GATE, row, key0 + k);
        const int now = (int)*scan_at(b, SCAN_WHOLE, row, key0 + k);
        const float f = *scan_at(b, SCAN_FRACTION, row, key0 + k), d = ds[k * stride], g = *gate;
        const float slope = f > 0 ? scan_step_of(b, q, h, row, key0 + k).slope : 0.0f;
        if (now != at) {
            if (sums && at + 1 < u.vectors) dz[at + 1] = dz[at + 1] + high;
            high = low;
            low = 0;
            at = now;
        }
        high = fma_(f, d, high);
        low = fma_(1.0f - f, d, low);
        older = fma_(d, slope, older);
        *gate = g == 0 ? 0.0f : older * u.a * (g * (1.0f - g));
    }
    if (sums && at + 1 < u.vectors) dz[at + 1] = dz[at + 1] + high;
    if (sums) dz[at] = dz[at] + low;
    return older;
}
/* A chunk is done: its sums by position join those of all. */
DEV void join_positions(struct block b, const struct span *q, int h, int row0, int rows, int tid)
{
    const int count = USE(SCAN).vectors;
    for (int i = tid; i < rows * count; i += THREADS) {
        GLOBAL float *chunk = by_position(b, USE(SCAN).by_chunk, q, h, row0) + i,
                     *all = by_position(b, USE(SCAN).by_all, q, h, row0) + i;
        *all = *all + *chunk;
        *chunk = 0;
    }
}
/* ds of a tile, [key][row] or [row][key], gets the gradients of the logits, which are q k too. */
DEV void add_logits(struct block b, int tid, SHARED float *ds)
{
    const SHARED float *logits = b.scan + (int)SCAN_GATE * KEYS * TILE_ROWS;
    for (int i = tid; i < KEYS * TILE_ROWS; i += THREADS) ds[i] = ds[i] + logits[i];
}

#endif
