/* SPDX-License-Identifier: MIT */
/* dropout.h -- which weights are dropped, from counters alone: nothing is stored, and the backward
 * pass asks again.  docs/bits.md defines it.
 *
 *     row key   a, b: the halves of mix(mix(mix(mix(seed) + offset + entry) + head) + row)
 *     key j     u = (x ^ x >> 16) A ^ b, x = a + j W;  then u = (u ^ u >> 15) B, all in 32 bits
 *     dropped   if u, as a number with a sign, is below p 2^32 - 2^31 */
#ifndef LOCI_ENGINE_DROPOUT_H
#define LOCI_ENGINE_DROPOUT_H

#include "engine/tile.h"

#define DROP_W UINT32_C(0x9e3779b9)
#define DROP_A UINT32_C(0x21f0aaad)
#define DROP_B UINT32_C(0x735a2d97)

/* A bijection of 64 bits in which every bit depends on every bit. */
static inline uint64_t drop_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
/* Packed sequences are entries of their own. */
INLINE int64_t drop_entry(const struct tile *t)
{
    return t->c->in->q_starts ? t->seq - t->c->seqs.list : t->seq->b;
}

#if QT > 1
/* The keys of the tile's rows, once per query tile. */
INLINE void open_dropout(struct tile *t)
{
    const struct dropout *d = &t->c->dropout;
    if (!d->on) return;
    const uint64_t head = drop_mix(drop_mix(drop_mix(d->seed) + d->offset + (uint64_t)drop_entry(t))
                                   + (uint64_t)t->h);
    const uint64_t row = (uint64_t)number_of_row(t->c, t->seq, t->i0);
    for (int r = 0; r < QT; r++) {
        const uint64_t x = drop_mix(head + row + (uint64_t)r);
        t->drop.a[r] = (uint32_t)x;
        t->drop.b[r] = (uint32_t)(x >> 32);
    }
}

/* n vectors of rows from r on: p[k][r] = from[k][r] times its factor, 0 or 1 / (1 - p).  With
 * `factor` the factors are stored too. */
INLINE void drop_columns(const int n, const struct tile *t, int r, const real *from, real *p,
                         real *factor)
{
    const vu limit = vu_set1(t->c->dropout.limit), step = vu_set1(DROP_W), A = vu_set1(DROP_A),
             B = vu_set1(DROP_B);
    const vf kept = vf_set1((real)t->c->dropout.factor);
    const vu first = vu_set1((uint32_t)number_of_key(t->c, t->seq, t->j0) * DROP_W);
    vu x[4], b[4];
    UNROLL_FOR(int i = 0; i < n; i++) {
        x[i] = vu_add(vu_load(t->drop.a + r + i * VL), first);
        b[i] = vu_load(t->drop.b + r + i * VL);
    }
    for (int at = r; at < t->keys * QT; at += QT)
        UNROLL_FOR(int i = 0; i < n; i++) {
            vu u = vu_xor(vu_mul(vu_xor(x[i], vu_shift(x[i], 16)), A), b[i]);
            u = vu_mul(vu_xor(u, vu_shift(u, 15)), B);
            x[i] = vu_add(x[i], step);
            const vf f = vf_not_below(u, limit, kept);
            if (factor) vf_store(factor + at + i * VL, f);
            vf_store(p + at + i * VL, vf_mul(vf_load(from + at + i * VL), f));
        }
}
/* Forward: in place, in the live columns. */
INLINE void drop_weights(struct tile *t)
{
    if (!t->c->dropout.on) return;
    int r = 0;
    for (; t->live - r >= 4 * VL; r += 4 * VL) drop_columns(4, t, r, t->p, t->p, NULL);
    for (; r < t->live; r += VL) drop_columns(1, t, r, t->p, t->p, NULL);
}

/* Backward: p becomes what multiplies the values, and drop.whole the weights before. */
INLINE void swap_weights(struct tile *t)
{
    real *p = t->p;
    t->p = t->drop.whole;
    t->drop.whole = p;
}
INLINE void drop_weights_again(struct tile *t)
{
    swap_weights(t);
    for (int r = 0; r < QT; r += 2 * VL) drop_columns(2, t, r, t->drop.whole, t->p, t->drop.factor);
}
#endif

#endif
