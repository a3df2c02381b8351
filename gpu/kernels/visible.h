/* SPDX-License-Identifier: MIT */
/* visible.h -- sequences, and which keys their rows see. */
#ifndef LOCI_GPU_KERNELS_VISIBLE_H
#define LOCI_GPU_KERNELS_VISIBLE_H

#include "kernels/tile.h"

DEV const GLOBAL int64_t *list_at(struct block b, int64_t at)
{
    return (const GLOBAL int64_t *)(b.at.lists + at);
}
DEV struct span span_at(struct block b, int i)
{
    return ((const GLOBAL struct span *)(b.at.lists + b.p->spans))[i];
}
/* The sequence that a tile belongs to, by the first number of each: the last that is not above. */
enum tiles_by { BY_TILE, BY_KTILE, BY_ITEM, BY_ROLL };
DEV struct span span_of(struct block b, enum tiles_by by, int tile)
{
    int low = 0, high = b.p->sequences;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        const struct span s = span_at(b, middle);
        const int first = by == BY_TILE  ? s.tile
                        : by == BY_KTILE ? s.ktile
                        : by == BY_ROLL  ? s.roll
                                         : s.item;
        if (first <= tile) low = middle;
        else high = middle;
    }
    return span_at(b, low);
}

DEV distance_t distance_of(struct block b, const struct span *q, int row, int key)
{
    if (q->run) return (distance_t)q->d0 + row - key;
    return (distance_t)(list_at(b, b.p->q_pos)[(int64_t)q->b * b.p->q_len + q->q0 + row]
         - list_at(b, b.p->k_pos)[(int64_t)q->b * b.p->k_len + q->k0 + key]);
}
/* The number of a pair in the mask. */
DEV int64_t mask_at(struct block b, const struct span *q, int h, int row, int key)
{
    return (int64_t)q->b * b.p->mask.batch + h * b.p->mask.head
         + (int64_t)(q->q0 + row) * b.p->mask.row + (int64_t)(q->k0 + key) * b.p->mask_key;
}
/* The gradient of that number, from the one of the final score. */
DEV void store_mask_gradient(struct block b, const struct span *q, int h, int row, int key,
                             float ds)
{
    const int64_t at = (int64_t)q->b * b.p->dmask.batch + h * b.p->dmask.head
                     + (int64_t)(q->q0 + row) * b.p->dmask.row + q->k0 + key;
    ((GLOBAL float *)b.at.dmask)[at] = ds;
}
/* Rows and keys are those of the sequence.  A pair beyond its ends is not visible. */
DEV int sees(struct block b, const struct span *q, int h, int row, int key)
{
    if (row >= q->nq || key >= q->nk) return 0;
    const int64_t d = distance_of(b, q, row, key);
    if (d < b.p->lo || d > b.p->hi) return 0;
    if (!LISTED) return 1;
    const int64_t entry = (int64_t)q->b * b.p->list_entry + q->q0 + row;
    if (q->segments) {
        const int64_t k = list_at(b, b.p->k_seg)[(int64_t)q->b * b.p->k_len + q->k0 + key];
        if (k < 0 || k != list_at(b, b.p->q_seg)[(int64_t)q->b * b.p->q_len + q->q0 + row])
            return 0;
    }
    if (b.p->k_first >= 0
        && (key < list_at(b, b.p->k_first)[entry] - q->k0
            || key > list_at(b, b.p->k_last)[entry] - q->k0))
        return 0;
    if (MASK_KIND == 1) return b.at.mask[mask_at(b, q, h, row, key)] != 0;
    if (MASK_KIND == 2)
        return ((const GLOBAL float *)b.at.mask)[mask_at(b, q, h, row, key)] != -INFINITY;
    return 1;
}

/* Keys or values of a sequence, in pages or not.  `pages`: the table's place in `lists`. */
DEV struct rows_at sequence_rows(struct block b, const struct span *q, const GLOBAL char *at,
                                 struct strides s, int head, int type, int paged, int64_t pages)
{
    if (!paged) return view_rows(at, s, q->b, head, q->k0, type, b.p->wide);
    struct rows_at v = view_rows(at, s, 0, head, 0, type, b.p->wide);
    v.pages = (const GLOBAL int32_t *)(b.at.lists + pages) + (int64_t)q->b * b.p->page_entry;
    v.page = s.batch;
    v.length = b.p->page_keys;
    v.from = q->k0;
    return v;
}
DEV struct rows_at key_rows(struct block b, const struct span *q, int head)
{
    return sequence_rows(b, q, b.at.k, b.p->k, head, K_TYPE, K_PAGED, b.p->pages);
}
DEV struct rows_at value_rows(struct block b, const struct span *q, int head)
{
    return sequence_rows(b, q, b.at.v, b.p->v, head, V_TYPE, V_PAGED, b.p->pages);
}

/* Tensor number i of the inputs, and that of a head: [B][H][length]. */
DEV const GLOBAL float *input_of(struct block b, int i)
{
    return (const GLOBAL float *)(i == 0 ? b.at.in0 : i == 1 ? b.at.in1 : b.at.in2);
}
DEV const GLOBAL float *input_at(struct block b, int i, const struct span *q, int h, int length)
{
    return input_of(b, i) + ((int64_t)q->b * b.p->heads + h) * length;
}
/* A number of q, times scale and the factor of its row: byte offset in `lists`, -1: none. */
DEV float query_number(struct block b, const struct span *q, int h, int row, int d, float scale,
                       int64_t factors)
{
    const struct rows_at v = view_rows(b.at.q, b.p->q, q->b, h, q->q0 + row, Q_TYPE, 0);
    const float x = load_number(v.at, v.type, v.first + d) * scale;
    if (factors < 0) return x;
    const int64_t list = ((int64_t)q->b * b.p->heads + h) * b.p->q_len + q->q0 + row;
    return x * ((const GLOBAL float *)(b.at.lists + factors))[list];
}

/* Keys that rows row .. row + n - 1 may see: first .. last, none if last < first. */
struct keys_seen {
    int first, last;
};
DEV struct keys_seen keys_of(struct block b, const struct span *q, int row, int n)
{
    struct keys_seen a = { 0, q->nk - 1 };
    if (LISTED && b.p->k_first >= 0) {
        struct keys_seen all = { q->nk, -1 };
        for (int r = row; r < row + n; r++) {
            const int64_t entry = (int64_t)q->b * b.p->list_entry + q->q0 + r,
                          first = list_at(b, b.p->k_first)[entry] - q->k0,
                          last = list_at(b, b.p->k_last)[entry] - q->k0;
            const int from = (int)(first < 0 ? 0 : first < q->nk ? first : q->nk),
                      to = (int)(last < -1 ? -1 : last < q->nk ? last : q->nk - 1);
            if (from > to) continue;
            all.first = least(all.first, from);
            all.last = most(all.last, to);
        }
        a = all;
    }
    if (!q->run || q->segments) return a;
    const int64_t d = q->d0 + row;
    if (d + n - 1 - b.p->lo < a.last)
        a.last = d + n - 1 - b.p->lo < 0 ? -1 : (int)(d + n - 1 - b.p->lo);
    if (b.p->hi < d && d - b.p->hi > a.first)
        a.first = d - b.p->hi > q->nk ? q->nk : (int)(d - b.p->hi);
    return a;
}
/* Does a tile of a run hide nothing from any of its rows? */
DEV int all_visible(struct block b, const struct span *q, int row, int rows, int key, int keys)
{
    return !LISTED && q->run && q->d0 + row - (key + keys - 1) >= b.p->lo
        && q->d0 + row + rows - 1 - key <= b.p->hi;
}

DEV int64_t clamp_distance(int64_t d, int64_t lo, int64_t hi)
{
    return d < lo ? lo : d > hi ? hi : d;
}
/* Sum number n of a row: of the chunk, then of all. */
DEV GLOBAL float *row_sum_at(struct block b, int n, int all, const struct span *q, int h, int row)
{
    return (GLOBAL float *)(b.at.apart + b.p->by_row)
         + (((int64_t)(2 * n + all) * b.p->batch + q->b) * b.p->heads + h) * b.p->q_len + q->q0
         + row;
}

#endif
