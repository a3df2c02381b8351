/* SPDX-License-Identifier: MIT */
/* gates.h -- the sums of the gates of fox, made once per call, and what lies between a row and a
 * key.  Where rows do not see intervals of keys, each row has sums of the gates that it sees.  See
 * docs/bits.md, Terms, and src/layout/gate.h. */
#ifndef LOCI_GPU_KERNELS_GATES_H
#define LOCI_GPU_KERNELS_GATES_H

#include "kernels/visible.h"

/* The mark of an invalid gate.  A gate that is shut counts 1. */
#define NOT_A_GATE ((int64_t)1 << 40)
DEV int64_t gate_mark(double log_f)
{
    return log_f <= -10000.0 ? 1 : log_f < 10000.0 ? 0 : NOT_A_GATE;
}
DEV double gate_value(double log_f)
{
    return log_f <= -10000.0 ? (double)-INFINITY : log_f >= 10000.0 ? (double)NAN : log_f;
}

/* Sums in `apart`: C and marks of each key, [B][H][k_len]; C and marks at the end of each tile,
 * [H][ktiles]; the sum of the later gates of the tile, floats, [B][H][k_len]. */
struct gate_sums {
    GLOBAL double *C, *end;
    GLOBAL int64_t *marks, *end_marks;
    GLOBAL float *later;
};
DEV struct gate_sums gates_of(struct block b, const struct span *q, int h)
{
    struct gate_sums g;
    const int64_t keys = (int64_t)b.p->batch * b.p->heads * b.p->k_len,
                  tiles = (int64_t)b.p->heads * b.p->ktiles,
                  key = ((int64_t)q->b * b.p->heads + h) * b.p->k_len + q->k0,
                  tile = (int64_t)h * b.p->ktiles + q->ktile;
    GLOBAL double *at = (GLOBAL double *)(b.at.apart + b.p->gates);
    g.C = at + key;
    g.marks = (GLOBAL int64_t *)(at + keys) + key;
    g.end = at + 2 * keys + tile;
    g.end_marks = (GLOBAL int64_t *)(at + 2 * keys + tiles) + tile;
    g.later = (GLOBAL float *)(at + 2 * keys + 2 * tiles) + key;
    return g;
}
/* The newest key that a row of a run sees.  Below 0: none. */
DEV int newest_key(struct block b, const struct span *q, int row)
{
    const int64_t key = q->d0 + row - b.p->lo;
    return key < 0 ? -1 : key < q->nk ? (int)key : q->nk - 1;
}
/* Over marks that differ a gate is shut or invalid. */
DEV float across_gates(int64_t marks) { return marks < NOT_A_GATE ? -INFINITY : NAN; }
/* What a visible pair's score gets, where rows see intervals. */
DEV float gate_of_interval(struct block b, const struct span *q, int h, int row, int key)
{
    const struct gate_sums g = gates_of(b, q, h);
    const int newest = newest_key(b, q, row), tile = key / KEYS;
    const int64_t mark = g.marks[newest];
    if (newest / KEYS == tile)
        return mark == g.marks[key] ? (float)(g.C[newest] - g.C[key])
                                    : across_gates(mark - g.marks[key]);
    const float c = mark == g.end_marks[tile] ? (float)(g.C[newest] - g.end[tile])
                                              : across_gates(mark - g.end_marks[tile]);
    return c + g.later[key];
}

/* ---- Gates that a row sees ------------------------------------------------------------------- */

/* C and marks at the end of a tile, and a bit for each of its keys that the row sees.  Behind the
 * tiles, C and marks of the row's newest key, and its number in place of bits; below 0: none.
 * [B][H][tiles + 1][q_len] */
struct seen_gates {
    double C;
    int64_t marks, keys;
};
DEV int sees_interval(struct block b, const struct span *q)
{
    return !LISTED || (q->run && !q->segments && MASK_KIND == 0 && b.p->k_first < 0);
}
/* The index of a row and a tile in such a list. */
DEV int64_t row_gate(struct block b, int u, const struct span *q, int h, int row, int tile)
{
    const int64_t head = (int64_t)q->b * b.p->heads + h;
    return (head * (USE(u).tiles + 1) + tile) * b.p->q_len + q->q0 + row;
}
DEV GLOBAL struct seen_gates *seen_gates_at(struct block b, int u, const struct span *q, int h,
                                            int row, int tile)
{
    return (GLOBAL struct seen_gates *)(b.at.apart + USE(u).carries)
         + row_gate(b, u, q, h, row, tile);
}
/* Backward: the sum of ds of the keys before a tile that a row sees. */
DEV GLOBAL double *ds_before(struct block b, int u, const struct span *q, int h, int row, int tile)
{
    return (GLOBAL double *)(b.at.apart + USE(u).ds_before) + row_gate(b, u, q, h, row, tile);
}
DEV const GLOBAL float *gates_at(struct block b, int u, const struct span *q, int h)
{
    return input_at(b, USE(u).key_input, q, h, b.p->k_len) + q->k0;
}
/* A group has a tile of rows and a head, a thread has rows. */
DEV void sum_seen_gates(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads, u = b.p->vector_use;
    const struct span q = span_of(b, BY_TILE, tile);
    const int first = (tile - q.tile) * b.p->vector_rows,
              end = sees_interval(b, &q) ? first : least(q.nq, first + b.p->vector_rows);
    const GLOBAL float *f = gates_at(b, u, &q, h);
    PHASE(tid)
        for (int row = first + tid; row < end; row += THREADS) {
            struct seen_gates own = { 0, 0, -1 }, sum = { 0, 0, 0 };
            for (int J = 0; J * KEYS < q.nk; J++) {
                const int n = least(q.nk - J * KEYS, KEYS);
                double up = 0, down = 0;
                sum.keys = 0;
                for (int k = 0; k < n; k++) {
                    const double x = (double)f[J * KEYS + k];
                    if (!sees(b, &q, h, row, J * KEYS + k)) continue;
                    if (gate_mark(x)) sum.marks += gate_mark(x);
                    else up += x;
                    sum.keys = (int64_t)((uint64_t)sum.keys | (uint64_t)1 << k);
                    own.keys = J * KEYS + k;
                    own.C = sum.C + up;
                }
                for (int k = n - 1; k >= 0; k--) {
                    const double x = (double)f[J * KEYS + k];
                    if (((uint64_t)sum.keys >> k & 1) && !gate_mark(x)) down += x;
                }
                sum.C += down;
                *seen_gates_at(b, u, &q, h, row, J) = sum;
            }
            own.marks = sum.marks;
            *seen_gates_at(b, u, &q, h, row, USE(u).tiles) = own;
        }
    END
}
/* What a visible pair's score gets, over the gates that the row sees. */
DEV float gate_of_seen(struct block b, int u, const struct span *q, int h, int row, int key)
{
    const int tile = key / KEYS;
    const GLOBAL float *f = gates_at(b, u, q, h) + tile * KEYS;
    const struct seen_gates own = *seen_gates_at(b, u, q, h, row, USE(u).tiles),
                            at = *seen_gates_at(b, u, q, h, row, tile);
    const int64_t newest = own.keys;
    double sum = 0;
    if (newest / KEYS == tile) {
        struct seen_gates start = { 0, 0, 0 };
        if (tile) start = *seen_gates_at(b, u, q, h, row, tile - 1);
        for (int k = 0; k <= key % KEYS; k++) {
            const double x = (double)f[k];
            if (!((uint64_t)at.keys >> k & 1)) continue;
            if (gate_mark(x)) start.marks += gate_mark(x);
            else sum += x;
        }
        return own.marks == start.marks ? (float)(own.C - (start.C + sum))
                                        : across_gates(own.marks - start.marks);
    }
    for (int k = least(q->nk - tile * KEYS, KEYS) - 1; k > key % KEYS; k--)
        if ((uint64_t)at.keys >> k & 1) sum += gate_value((double)f[k]);
    const float c =
        own.marks == at.marks ? (float)(own.C - at.C) : across_gates(own.marks - at.marks);
    return c + (float)sum;
}
/* Backward, the thread of a key: every gate that a row sees affects its older keys.  ds: of rows
 * and the tile of keys from key0 on, [row][key], 0 for pairs that are not visible. */
DEV float ds_of_older(struct block b, int u, const struct span *q, int h, int row0, int rows,
                      int key0, int key, const SHARED float *ds)
{
    double sum = 0;
    for (int r = 0; r < rows; r++) {
        if (!sees(b, q, h, row0 + r, key0 + key)) continue;
        double before = *ds_before(b, u, q, h, row0 + r, key0 / KEYS);
        for (int k = 0; k < key; k++) before += (double)ds[r * KEYS + k];
        sum += before;
    }
    return (float)sum;
}

/* What a visible pair's score gets. */
DEV float gate_between(struct block b, int u, const struct span *q, int h, int row, int key)
{
    return sees_interval(b, q) ? gate_of_interval(b, q, h, row, key)
                               : gate_of_seen(b, u, q, h, row, key);
}

/* ---- Intervals ------------------------------------------------------------------------------- */

/* A group has a sequence and a head.  Tiles from their ends down, then tile after tile, then keys
 * from the start of their tile up. */
DEV void sum_gates(struct block b)
{
    const int s = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_at(b, s);
    const struct gate_sums g = gates_of(b, &q, h);
    const int tiles = sees_interval(b, &q) ? (q.nk + KEYS - 1) / KEYS : 0;
    const GLOBAL float *f = gates_at(b, b.p->vector_use, &q, h);
    PHASE(tid)
        for (int J = tid; J < tiles; J += THREADS) {
            double sum = 0, finite = 0;
            int64_t marks = 0;
            for (int k = least(q.nk, J * KEYS + KEYS) - 1; k >= J * KEYS; k--) {
                const double x = (double)f[k];
                g.later[k] = (float)sum;
                sum += gate_value(x);
                if (gate_mark(x)) marks += gate_mark(x);
                else finite += x;
            }
            g.end[J] = sum - sum == 0 ? sum : finite;
            g.end_marks[J] = sum - sum == 0 ? 0 : marks;
        }
    END
    PHASE(tid)
        double C = 0;
        int64_t marks = 0;
        for (int J = 0; J < tiles && tid == 0; J++) {
            C += g.end[J];
            marks += g.end_marks[J];
            g.end[J] = C;
            g.end_marks[J] = marks;
        }
    END
    PHASE(tid)
        for (int J = tid; J < tiles; J += THREADS) {
            const double start = J ? g.end[J - 1] : 0;
            double sum = 0;
            int64_t marks = J ? g.end_marks[J - 1] : 0;
            for (int k = J * KEYS; k < least(q.nk, J * KEYS + KEYS); k++) {
                const double x = (double)f[k];
                if (gate_mark(x)) marks += gate_mark(x);
                else sum += x;
                g.C[k] = start + sum;
                g.marks[k] = marks;
            }
        }
    END
}

#endif
