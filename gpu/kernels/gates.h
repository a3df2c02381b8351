/* SPDX-License-Identifier: MIT */
/* gates.h -- the sums of the gates of fox, made once per call, and what lies between a row and a
 * key.  See docs/bits.md, Terms, and src/layout/gate.h. */
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
/* What a visible pair's score gets. */
DEV float gate_between(struct block b, const struct span *q, int h, int row, int key)
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

/* A group has a sequence and a head.  Tiles from their ends down, then tile after tile, then keys
 * from the start of their tile up. */
DEV void sum_gates(struct block b)
{
    const int s = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_at(b, s);
    const struct gate_sums g = gates_of(b, &q, h);
    const int tiles = (q.nk + KEYS - 1) / KEYS;
    const GLOBAL float *f = 0;
    for (int u = 0; u < b.p->uses; u++)
        if (USE(u).term == GPU_GATE)
            f = (const GLOBAL float *)(USE(u).key_input == 0   ? b.at.in0
                                       : USE(u).key_input == 1 ? b.at.in1
                                                                    : b.at.in2)
              + ((int64_t)q.b * b.p->heads + h) * b.p->k_len + q.k0;
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
