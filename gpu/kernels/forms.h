/* SPDX-License-Identifier: MIT */
/* forms.h -- rerope, selfextend and dca: a row has a form for each class of its distances, and a
 * score is the product of those of the pair's class.  See src/layout/ranged_pairs.h.  Levels of
 * channel_gates.h are classes, too. */
#ifndef LOCI_GPU_KERNELS_FORMS_H
#define LOCI_GPU_KERNELS_FORMS_H

#include "kernels/channel_gates.h"

DEV int64_t floor_div(int64_t x, int64_t by) { return x / by - (x % by < 0); }
DEV int64_t row_place(struct block b, const struct span *q, int row)
{
    return q->run ? q->k_from + q->d0 + row
                  : list_at(b, b.p->q_pos)[(int64_t)q->b * b.p->q_len + q->q0 + row];
}
DEV int64_t key_place(struct block b, const struct span *q, int key)
{
    return q->run ? q->k_from + key
                  : list_at(b, b.p->k_pos)[(int64_t)q->b * b.p->k_len + q->k0 + key];
}
DEV int range_class(struct block b, const struct span *q, int row, int key)
{
    const struct gpu_turn u = TURN;
    const int64_t x = row_place(b, q, row), y = key_place(b, q, key);
    if (u.rule != 2) return x - y >= u.window;
    const int64_t chunks = floor_div(x, u.group) - floor_div(y, u.group);
    return chunks <= 0 ? 0 : chunks == 1 ? 1 : 2;
}
DEV int pair_class(struct block b, const struct span *q, int h, int row, int key)
{
    return GATED ? level_of(b, q, h, row, key) : range_class(b, q, row, key);
}
/* The classes that a tile may have: least .. most. */
struct tile_classes {
    int least, most;
};
DEV struct tile_classes classes_of(struct block b, const struct span *q, int row0, int rows,
                                   int key0, int keys)
{
    struct tile_classes c = { 0, FORMS - 1 };
    if (FORMS > 1 && q->run) {
        c.least = range_class(b, q, row0, key0 + keys - 1);
        c.most = range_class(b, q, row0 + rows - 1, key0);
    }
    return c;
}
/* Number d of a row of q, times scale and its factor, or of a key, in the form of a class. */
DEV float form_of_row(struct block b, const struct span *q, int h, int row, int class_, int d,
                      float scale, int64_t factors)
{
    const int64_t list = ((int64_t)q->b * b.p->heads + h) * b.p->q_len + q->q0 + row;
    const float x = ((const GLOBAL float *)b.at.q)[class_ * TURN.q_form + q->b * b.p->q.batch
                                                   + h * b.p->q.head
                                                   + (int64_t)(q->q0 + row) * b.p->q.row + d]
                  * scale;
    return factors < 0 ? x : x * ((const GLOBAL float *)(b.at.lists + factors))[list];
}
/* Keys in the form of a class.  Those that come rotated have one form. */
DEV struct rows_at keys_in_form(struct block b, const struct span *q, int kvh, int class_)
{
    struct rows_at k = key_rows(b, q, kvh);
    if (TURN.key_forms > 1) k.first += class_ * TURN.k_form;
    return k;
}
/* A form of rows of q, as lanes ([channel][lanes], from channel to channel `across`) or as rows of
 * `across` numbers; those beyond `rows` are 0. */
DEV void load_row_form(struct block b, const struct span *q, int h, int row0, int rows, int all,
                       int class_, int lanes, int stride, float scale, int64_t factors, int tid,
                       SHARED float *to)
{
    for (int i = tid; i < all * FOURS(DIM); i += THREADS) {
        const int r = i % all, d = i / all;
        to[lanes ? d * stride + r : r * stride + d] =
            r < rows && d < DIM ? form_of_row(b, q, h, row0 + r, class_, d, scale, factors) : 0.0f;
    }
}
/* Keys as lanes, or as rows. */
DEV void load_key_form(struct block b, const struct span *q, int kvh, int key0, int keys,
                       int class_, int lanes, int tid, SHARED float *to)
{
    const struct rows_at k = keys_in_form(b, q, kvh, class_);
    if (lanes) load_across(k, key0, keys, KEYS, DIM, 1.0f, tid, to);
    else load_rows(k, key0, keys, KEYS, DIM, WIDER(DIM), tid, to);
}
DEV int is_of_class(struct block b, const struct span *q, int h, int row, int key, int class_)
{
    return row < q->nq && key < q->nk && pair_class(b, q, h, row, key) == class_;
}
/* ds of one class: pairs of others become 0.  x: [key][row], or [row][key]; to: where they go. */
DEV void mask_class(struct block b, const struct span *q, int h, int row0, int key0, int class_,
                    int by_key, int tid, const SHARED float *x, SHARED float *to)
{
    for (int i = tid; i < KEYS * TILE_ROWS; i += THREADS) {
        const int r = by_key ? i % TILE_ROWS : i / KEYS, k = by_key ? i / TILE_ROWS : i % KEYS;
        to[i] = is_of_class(b, q, h, row0 + r, key0 + k, class_) ? x[i] : 0.0f;
    }
}

#endif
