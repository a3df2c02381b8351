/* SPDX-License-Identifier: MIT */
/* dropout.h -- which weights are dropped, from counters alone: see docs/bits.md, Dropout. */
#ifndef LOCI_GPU_KERNELS_DROPOUT_H
#define LOCI_GPU_KERNELS_DROPOUT_H

#include "kernels/terms.h"

/* The key of a row, which does not depend on the keys it meets. */
struct drop_row {
    uint32_t a, b;
};
DEV uint64_t drop_mix(uint64_t x)
{
    x += (uint64_t)0x9e3779b9 << 32 | 0x7f4a7c15;
    x = (x ^ x >> 30) * ((uint64_t)0xbf58476d << 32 | 0x1ce4e5b9);
    x = (x ^ x >> 27) * ((uint64_t)0x94d049bb << 32 | 0x133111eb);
    return x ^ x >> 31;
}
DEV struct drop_row drop_row_of(struct block b, const struct span *q, int h, int row)
{
    const uint64_t entry =
                       drop_mix(drop_mix(b.p->drop_seed) + b.p->drop_offset + (uint64_t)q->entry),
                   x = drop_mix(drop_mix(entry + (uint64_t)h) + (uint64_t)(q->row_number + row));
    struct drop_row r;
    r.a = (uint32_t)x;
    r.b = (uint32_t)(x >> 32);
    return r;
}
/* The factor of the weight of a key: 0, or that of weights that are kept. */
DEV float drop_factor(struct block b, const struct span *q, struct drop_row row, int key)
{
    uint32_t u = row.a + (uint32_t)(q->key_number + key) * 0x9e3779b9u;
    u = ((u ^ u >> 16) * 0x21f0aaadu) ^ row.b;
    u = (u ^ u >> 15) * 0x735a2d97u;
    return (int32_t)u < (int32_t)b.p->drop_limit ? 0.0f : b.p->drop_kept;
}
/* Forward: the weights of a tile, [key][lanes], after they are summed. */
DEV void drop_weights(struct block b, const struct span *q, int h, int row0, int key0, int keys,
                      int lanes, int tid, SHARED float *s)
{
    const int r = tid % lanes;
    const struct drop_row row = drop_row_of(b, q, h, row0 + r);
    for (int k = tid / lanes; k < keys; k += THREADS / lanes)
        s[k * lanes + r] = s[k * lanes + r] * drop_factor(b, q, row, key0 + k);
}

#endif
