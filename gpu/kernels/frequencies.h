/* SPDX-License-Identifier: MIT */
/* frequencies.h -- backward: gradients of the frequencies of a rotation, from rows and their
 * gradients.  Rows of a tile are added in double, and tiles as docs/bits.md, Backward, says. */
#ifndef LOCI_GPU_KERNELS_FREQUENCIES_H
#define LOCI_GPU_KERNELS_FREQUENCIES_H

#include "kernels/inputs.h"
#include "kernels/rotate.h"

/* The gradient of the angle of a pair, from row r of x, times scale, and its gradient d. */
DEV double angle_gradient(struct block b, struct rows_at x, struct rows_at d, int r, int pair)
{
    const GLOBAL struct pairs_table *t =
        (const GLOBAL struct pairs_table *)(b.at.tables + b.p->pairs);
    const int a = t->offset + (t->interleaved ? 2 * pair : pair),
              c = a + (t->interleaved ? 1 : t->count);
    const GLOBAL float *g = (const GLOBAL float *)d.at + d.first + r * d.row;
    const int64_t row = x.first + r * x.row;
    if (g[a] == 0 && g[c] == 0) return 0;
    return (double)(load_number(x.at, x.type, row + a) * b.p->scale) * (double)g[c]
         - (double)(load_number(x.at, x.type, row + c) * b.p->scale) * (double)g[a];
}
/* Number i of a part, [axes][dim / 2]: the sum of coordinate times gradient of the angle over the
 * rows first .. first + n - 1 of a head of an entry.  x and d: these rows and their gradients. */
DEV double frequency_gradient(struct block b, struct rows_at x, struct rows_at d, int64_t batch,
                              int h, int first, int n, int i)
{
    const GLOBAL struct pairs_table *t =
        (const GLOBAL struct pairs_table *)(b.at.tables + b.p->pairs);
    const int axis = i / (b.p->dim / 2), pair = i % (b.p->dim / 2);
    const GLOBAL double *where = (const GLOBAL double *)(b.at.lists + b.p->where);
    double sum = 0;
    if (pair >= t->count) return 0;
    for (int r = 0; r < n; r++) {
        const double turn = angle_gradient(b, x, d, r, pair);
        const double at = b.p->given >= 0 ? given_place(b, batch, h, first + r)
                        : b.p->counted
                            ? (double)(((const GLOBAL int64_t *)where)[batch] + first + r)
                            : where[(batch * t->axes + axis) * b.p->q_len + first + r];
        if (b.p->given < 0 || turn != 0) sum += at * turn;
    }
    return sum;
}
/* A group has 64 rows of a head. */
DEV void query_frequencies(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const int row0 = (tile - q.tile) * TILE_ROWS, rows = least(q.nq - row0, TILE_ROWS);
    const struct keys_seen seen = keys_of(b, &q, row0, rows);
    const int newest = seen.last < seen.first ? first_chunk(b, &q, row0) : seen.last / CHUNK;
    PHASE(tid)
        for (int i = tid; i < b.p->rotation_count; i += THREADS)
            part_of(b, tile, h, newest)[b.p->rotation_part + i] = (float)frequency_gradient(
                b, view_rows(b.at.q, b.p->q, q.b, h, q.q0 + row0, b.p->q_type, 0),
                view_rows(b.at.dq, b.p->dq, q.b, h, q.q0 + row0, GPU_F32, 0), q.b, h, q.q0 + row0,
                rows, i);
    END
}
/* Of 64 keys of a kv head: floats in `apart`, [ktiles][kv_heads][count].  The keys and their
 * gradients are q and dq here, and their number q_len. */
DEV void key_frequencies(struct block b)
{
    const int tile = b.x / b.p->kv_heads, h = b.x % b.p->kv_heads;
    const struct span q = span_of(b, BY_KTILE, tile);
    const int key0 = (tile - q.ktile) * KEYS, keys = least(q.nk - key0, KEYS);
    GLOBAL float *to =
        (GLOBAL float *)(b.at.apart + b.p->by_tile) + (int64_t)b.x * b.p->rotation_count;
    PHASE(tid)
        for (int i = tid; i < b.p->rotation_count; i += THREADS)
            to[i] = (float)frequency_gradient(
                b, view_rows(b.at.q, b.p->q, q.b, h, q.k0 + key0, b.p->q_type, 0),
                view_rows(b.at.dq, b.p->dq, q.b, h, q.k0 + key0, GPU_F32, 0), q.b, h, q.k0 + key0,
                keys, i);
    END
}
/* Gradients of places that come with the call.  A group has ROTATED_ROWS rows of an entry. */
DEV void place_gradients(struct block b)
{
    const int tiles = (b.p->q_len + ROTATED_ROWS - 1) / ROTATED_ROWS;
    const int batch = b.x / tiles, row0 = b.x % tiles * ROTATED_ROWS,
              rows = least(b.p->q_len - row0, ROTATED_ROWS);
    const GLOBAL struct pairs_table *t =
        (const GLOBAL struct pairs_table *)(b.at.tables + b.p->pairs);
    GLOBAL float *to = (GLOBAL float *)(b.p->given == 0   ? b.at.din0
                                        : b.p->given == 1 ? b.at.din1
                                                          : b.at.din2);
    PHASE(tid)
        for (int i = tid; i < rows * b.p->heads; i += THREADS) {
            const int h = i / rows, row = row0 + i % rows;
            const struct rows_at x = view_rows(b.at.q, b.p->q, batch, h, row, b.p->q_type, 0),
                                 d = view_rows(b.at.dq, b.p->dq, batch, h, row, GPU_F32, 0);
            const GLOBAL double *w =
                pairs_row(t, t->groups > 1 ? h / (b.p->heads / b.p->kv_heads) : 0, 0);
            double sum = 0;
            if (b.p->used >= 0 && !b.at.lists[b.p->used + (int64_t)batch * b.p->q_len + row])
                continue;
            for (int n = 0; n < t->count; n++) sum += w[n] * angle_gradient(b, x, d, 0, n);
            to[((int64_t)batch * b.p->heads + h) * b.p->q_len + row] = (float)sum;
        }
    END
}
/* One thread per number of a kv head, after add_parts: items as there, in each the heads of the
 * group; then the tiles of keys, rising. */
DEV void add_frequencies(struct block b)
{
    const int group = b.p->heads / b.p->kv_heads;
    PHASE(tid)
        const int i = b.x / b.p->kv_heads * THREADS + tid, kvh = b.x % b.p->kv_heads;
        double total = 0;
        for (int s = b.p->sequences - 1; s >= 0 && i < b.p->rotation_count; s--) {
            const struct span q = span_at(b, s);
            for (int item = (q.nq + ITEM - 1) / ITEM - 1; item >= 0; item--)
                for (int h = kvh * group; h < (kvh + 1) * group; h++)
                    total += item_sum(b, &q, item, h, b.p->rotation_part + i);
        }
        const int on = b.p->by_tile >= 0 && i < b.p->rotation_count;
        for (int tile = 0; on && tile < b.p->ktiles; tile++)
            total += (double)((const GLOBAL float *)(b.at.apart + b.p->by_tile))
                [((int64_t)tile * b.p->kv_heads + kvh) * b.p->rotation_count + i];
        if (i < b.p->rotation_count)
            ((GLOBAL double *)b.at.totals)[(int64_t)kvh * group * PARTS + b.p->rotation_part + i] =
                total;
    END
}

#endif
