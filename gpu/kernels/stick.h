/* SPDX-License-Identifier: MIT */
/* stick.h -- sba: each key, newest first, gets its share of what is left of a stick.  A backward
 * call walks over the scores once before its passes, newest keys first, and keeps what rows leave
 * at the borders of tiles and chunks.  See docs/bits.md, Forward and Backward, and
 * src/terms/stick.c. */
#ifndef LOCI_GPU_KERNELS_STICK_H
#define LOCI_GPU_KERNELS_STICK_H

#include "kernels/terms.h"

#define LEAST_SHARE 0x1p-75f

/* What a row has, numbers of `apart`: by tile the stick at its start, 0 where the row has ended,
 * and the sum of h over older keys; by chunk what was left before it. */
enum stick_number { STICK_BEGUN, STICK_OLDER, STICK_REST };
DEV GLOBAL float *stick_at(struct block b, enum stick_number which, int n, const struct span *q,
                           int h, int row)
{
    const int tiles = STICK_OF.tiles, each = 2 * tiles + STICK_OF.chunks;
    const int64_t head = (int64_t)q->b * b.p->heads + h;
    return (GLOBAL float *)(b.at.apart + STICK_OF.numbers)
         + (head * each + (int)which * tiles + n) * b.p->q_len + q->q0 + row;
}
/* A stick as a float: 0 if no product with it would be worth adding. */
DEV float stick_rest(double stick)
{
    return stick < (double)LEAST_SHARE ? 0.0f : (float)stick;
}

/* Weights of a row's keys, in place of their scores, key k at k * stride, from the stick *left on;
 * returns their sum.  sigmoids, if not NULL: the share of each key, 0 without a weight. */
DEV float break_stick(SHARED float *z, SHARED float *sigmoids, int keys, int stride, float *left)
{
    float used = 0;
    for (int k = keys - 1; k >= 0; k--) {
        const float x = z[k * stride],
                    e = exp_from(-34.5f, from_bits(to_bits(x) | 0x80000000u)), w = e / (1.0f + e),
                    share = *left * w, small = share < LEAST_SHARE ? 0.0f : share,
                    big = *left - small, p = x < 0 ? small : big;
        *left = x < 0 ? big : small;
        used = used + p;
        z[k * stride] = p;
        if (sigmoids) {
            const float taken = share < LEAST_SHARE ? 0.0f : w;
            sigmoids[k * stride] = x < 0 ? taken : 1.0f - taken;
        }
    }
    return used;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Of the rows of a tile: the stick before the chunk and that of the chunk, where a softmax has its
 * largest scores; and whether all of 64 rows have ended, where it has those of chunks. */
DEV SHARED double *whole_sticks(struct block b, struct forward_room at)
{
    return (SHARED double *)(b.room + at.tops);
}
DEV SHARED double *chunk_sticks(struct block b, struct forward_room at)
{
    return whole_sticks(b, at) + ROWS;
}
DEV SHARED int *ended_rows(struct block b, struct forward_room at)
{
    return (SHARED int *)b.room + at.m;
}
DEV int has_ended(struct block b, struct forward_room at, int r)
{
    return whole_sticks(b, at)[r] * chunk_sticks(b, at)[r] < STICK_OF.shortest;
}
/* The stick with which a row begins a tile. */
DEV float begun_stick(struct block b, struct forward_room at, int r)
{
    return has_ended(b, at, r) ? 0.0f : (float)chunk_sticks(b, at)[r];
}
/* Have all rows of the tile?  Older tiles then have no weights. */
DEV int all_ended(struct block b, struct forward_room at, int rows)
{
    int all = 1;
    for (int r = 0; r < rows; r += TILE_ROWS) all &= ended_rows(b, at)[r / TILE_ROWS];
    return all;
}
/* Rows r .. r + 63 are asked, by the thread of the first one. */
DEV void ask_ended(struct block b, struct forward_room at, int rows, int r)
{
    int all = 1;
    for (int i = r; i < least(rows, r + TILE_ROWS); i++) all &= has_ended(b, at, i);
    ended_rows(b, at)[r / TILE_ROWS] = all;
}
/* The thread of row r.  Weights of rows that have all ended sum nothing, NaN neither. */
DEV void weigh_stick(struct block b, struct forward_room at, int r, int keys, int whole)
{
    SHARED double *rest = chunk_sticks(b, at) + r;
    SHARED float *s = b.room + at.s + r;
    SHARED uint32_t *seen = (SHARED uint32_t *)b.room + at.seen + 4 * r;
    const float begun = begun_stick(b, at, r);
    const int ended = ended_rows(b, at)[r / TILE_ROWS];
    float left = begun;
    for (int i = 0; (ended || whole) && i < 4; i++) seen[i] = ended ? 0 : 0xffff;
    const float used = ended ? 0.0f : break_stick(s, NULL_AT, keys, ROWS, &left);
    for (int k = 0; ended && k < keys; k++) s[k * ROWS] = 0;
    if (begun != 0) *rest = left < begun / 2 ? (double)left : *rest - (double)used;
}

/* ---- Who gets what is left ------------------------------------------------------------------- */

/* The heir of a row: its key in the entry, 0 for the vector of its head; below 0: none. */
DEV int64_t heir_of(struct block b, int64_t batch, int64_t row)
{
    if (STICK_OF.heir == HEIR_NONE) return -1;
    return list_at(b, STICK_OF.heirs)[batch * b.p->q_len + row];
}
DEV float heir_number(struct block b, struct rows_at v, int h, int key, int d)
{
    if (STICK_OF.heir == HEIR_VECTOR)
        return ((const GLOBAL float *)(b.at.tables + STICK_OF.vectors))[h * VALUE_DIM + d];
    return load_number(v.at, v.type, row_offset(v, key) + d);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Have all rows of a tile ended before a tile of keys? */
DEV int stick_ended(struct block b, const struct span *q, int h, int row0, int rows, int tile)
{
    const GLOBAL float *begun = stick_at(b, STICK_BEGUN, tile, q, h, row0);
    int r = 0;
    while (r < rows && begun[r] == 0) r++;
    return r == rows;
}
/* The oldest tile of keys where some row goes on, of first .. last. */
DEV int stick_oldest(struct block b, const struct span *q, int h, int row0, int rows, int first,
                     int last)
{
    while (first < last) {
        const int middle = first + (last - first) / 2;
        if (stick_ended(b, q, h, row0, rows, middle)) first = middle + 1;
        else last = middle;
    }
    return first;
}
/* The thread of a row: scores z of a tile become weights of its stick, and dp becomes ds, key k at
 * k * stride.  older: the sum of h over older keys; returns that of this tile. */
DEV float stick_back(struct block b, const struct span *q, int h, int row0, int rows, int r,
                     int key0, int keys, SHARED float *z, SHARED float *dp, SHARED float *sigmoids,
                     int stride, float older)
{
    const GLOBAL float *rests = stick_at(b, STICK_REST, key0 / CHUNK, q, h, row0);
    const float rest = rests[r], shortest = LEAST_SHARE / rest;
    float left = *stick_at(b, STICK_BEGUN, key0 / KEYS, q, h, row0 + r), sum = 0;
    int one = 1; /* the chunk's stick is that of all rows */
    for (int i = 0; i < rows && one; i++) one &= rests[i] == 1;
    break_stick(z, sigmoids, keys, stride, &left);
    for (int k = 0; k < keys; k++) {
        float p = z[k * stride], sigmoid = sigmoids[k * stride];
        if (!one) {
            const int none = p - shortest < 0;
            sigmoid = none ? 0.0f : sigmoid;
            p = (none ? 0.0f : p) * rest;
        }
        /* in a row that met NaN, keys that it does not see have it too */
        if (p != p && !sees(b, q, h, row0 + r, key0 + k)) p = 0;
        const float g = p * dp[k * stride];
        sum = sum + g;
        z[k * stride] = p;
        dp[k * stride] = g - sigmoid * (older + sum);
    }
    return sum;
}
/* dv of keys that get what is left of their rows' sticks, after backward_keys: a group has 64 keys
 * of a kv head. */
DEV void heir_values(struct block b)
{
    const int tiles = (b.p->k_len + KEYS - 1) / KEYS, group = b.p->heads / b.p->kv_heads;
    const int kvh = b.x / tiles % b.p->kv_heads, key0 = b.x % tiles * KEYS;
    const int64_t batch = b.x / tiles / b.p->kv_heads;
    const GLOBAL int64_t *first = list_at(b, STICK_OF.first) + batch * (b.p->k_len + 1),
                         *rows = list_at(b, STICK_OF.rows) + batch * b.p->q_len;
    PHASE(tid)
        for (int i = tid; i < KEYS * VALUE_DIM; i += THREADS) {
            const int key = key0 + i / VALUE_DIM, d = i % VALUE_DIM;
            if (key >= b.p->k_len || first[key] == first[key + 1]) continue;
            GLOBAL float *to = (GLOBAL float *)b.at.dv + batch * b.p->dv.batch
                             + kvh * b.p->dv.head + key * b.p->dv.row + d;
            float sum = *to;
            for (int h = kvh * group; h < (kvh + 1) * group; h++)
                for (int64_t n = first[key]; n < first[key + 1]; n++) {
                    const int64_t list = (batch * b.p->heads + h) * b.p->q_len + rows[n];
                    const float g = load_number(b.at.dout, O_TYPE,
                                                batch * b.p->dout.batch + h * b.p->dout.head
                                                    + rows[n] * b.p->dout.row + d);
                    sum = (float)((double)sum
                                  + (double)((const GLOBAL float *)b.at.lse)[list] * (double)g);
                }
            *to = sum;
        }
    END
}

#endif
