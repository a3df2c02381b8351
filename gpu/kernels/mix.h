/* SPDX-License-Identifier: MIT */
/* mix.h -- cape: a network of one hidden layer mixes the scores of all heads, pair by pair.  A
 * group has rows of one head.  So rows go in strips: `forward` stores the scores of a strip and its
 * biases, which the later terms add up to, mix_pairs mixes them, and `forward` runs again on mixed
 * scores.  mix_back.h has the way back.  See docs/bits.md, Terms, and src/terms/mix.c. */
#ifndef LOCI_GPU_KERNELS_MIX_H
#define LOCI_GPU_KERNELS_MIX_H

#include "kernels/terms.h"

/* Units that a thread computes side by side. */
enum { UNITS = 4 };

/* The tile of pairs of a head that begins with a row and a key, [key][row]. */
DEV GLOBAL float *mix_tile(struct block b, int64_t from, const struct span *q, int h, int row0,
                           int key0)
{
    const int64_t slot = q->tile + row0 / ROWS - MIX.first;
    return (GLOBAL float *)(b.at.apart + from)
         + ((slot * b.p->heads + h) * MIX.ktiles + key0 / KEYS) * (KEYS * ROWS);
}
/* The next head. */
DEV int64_t mix_head(struct block b) { return (int64_t)MIX.ktiles * (KEYS * ROWS); }
/* b1, b2, or the weights of input x: biases before scores, then those of head x to its output. */
DEV const GLOBAL float *mix_b1(struct block b)
{
    return (const GLOBAL float *)(b.at.tables + MIX.table);
}
DEV const GLOBAL float *mix_b2(struct block b) { return mix_b1(b) + MIX.padded; }
DEV const GLOBAL float *mix_weights(struct block b, int x)
{
    return mix_b2(b) + (b.p->heads + 15) / 16 * 16 + (int64_t)x * MIX.padded;
}
DEV int mix_inputs(struct block b) { return MIX.biased ? 2 * b.p->heads : b.p->heads; }
/* Input x of a pair of the tiles of head 0. */
DEV float mix_input(struct block b, const GLOBAL float *scores, const GLOBAL float *biases, int x)
{
    const int of_scores = MIX.biased ? x - b.p->heads : x;
    return of_scores < 0 ? biases[x * mix_head(b)] : scores[of_scores * mix_head(b)];
}

/* Do the biases of the rows of a sequence depend on the distance alone, as by_distance() of
 * src/terms/mix.c has it?  Sums over pairs are then sums over distances first. */
DEV int mixes_by_distance(struct block b, const struct span *q)
{
    return MIX.by_distance && q->run && !q->segments && !MASK_KIND && b.p->k_first < 0;
}

/* Keys first .. end - 1 of row r, whose scores are as products make them. */
DEV void store_row(struct block b, const SHARED float *s, const struct span *q, int h, int row0,
                   int r, int key0, int first, int end, int whole)
{
    struct term_state state[MOST_USES];
    GLOBAL float *scores = mix_tile(b, MIX.scores, q, h, row0, key0) + r,
                 *biases = mix_tile(b, MIX.biases, q, h, row0, key0) + r;
    open_terms(b, h, state);
    for (int k = first; k < end; k++) {
        const int row = row0 + r, key = key0 + k, seen = whole || sees(b, q, h, row, key);
        scores[k * ROWS] =
            seen ? some_terms(b, state, q, h, row, key, s[k * ROWS], 0, MIX.first_add) : 0.0f;
        if (MIX.biased)
            biases[k * ROWS] =
                seen ? some_terms(b, state, q, h, row, key, 0.0f, MIX.first_add, USES) : 0.0f;
    }
}
DEV void load_mixed(struct block b, const struct span *q, int h, int row0, int key0, int keys,
                    int tid, SHARED float *s)
{
    const GLOBAL float *mixed = mix_tile(b, MIX.mixed, q, h, row0, key0);
    for (int i = tid; i < keys * ROWS; i += THREADS) s[i] = mixed[i];
}

/* One pair.  y: shared memory for a number of each head, THREADS apart. */
DEV void mix_pair(struct block b, const GLOBAL float *scores, const GLOBAL float *biases,
                  GLOBAL float *mixed, SHARED float *y)
{
    const int heads = b.p->heads, inputs = mix_inputs(b);
    for (int h = 0; h < heads; h++) y[h * THREADS] = mix_b2(b)[h];
    for (int g = 0; g < MIX.units; g += UNITS) {
        const int n = least(MIX.units - g, UNITS);
        float u[UNITS];
        UNROLL_ for (int i = 0; i < UNITS; i++) u[i] = mix_b1(b)[g + i];
        for (int x = 0; x < inputs; x++) {
            const float in = mix_input(b, scores, biases, x);
            UNROLL_ for (int i = 0; i < UNITS; i++)
                u[i] = fma_(mix_weights(b, x)[g + i], in, u[i]);
        }
        UNROLL_ for (int i = 0; i < UNITS; i++) {
            const float up = max_(u[i], 0.0f);
            u[i] = fma_(MIX.leak, u[i] - up, up);
        }
        for (int h = 0; h < heads; h++)
            UNROLL_ for (int i = 0; i < UNITS; i++)
                if (i < n)
                    y[h * THREADS] = fma_(mix_weights(b, inputs + h)[g + i], u[i], y[h * THREADS]);
    }
    for (int h = 0; h < heads; h++) {
        float s = scores[h * mix_head(b)];
        if (MIX.biased) s = fma_(MIX.add, biases[h * mix_head(b)], s);
        mixed[h * mix_head(b)] = s + y[h * THREADS];
    }
}
/* A group has a tile of rows and one of keys, and all heads. */
DEV void mix_pairs(struct block b)
{
    if (!MIXES) return;
    const int tile = MIX.first + b.x / MIX.ktiles, key0 = b.x % MIX.ktiles * KEYS;
    const struct span q = span_of(b, BY_TILE, tile);
    const int row0 = (tile - q.tile) * ROWS, rows = least(q.nq - row0, ROWS);
    const struct keys_seen seen = keys_of(b, &q, row0, rows);
    const int keys = key0 + KEYS > seen.first ? least(seen.last + 1 - key0, KEYS) : 0;
    PHASE(tid)
        for (int i = tid; i < keys * ROWS; i += THREADS)
            if (sees(b, &q, 0, row0 + i % ROWS, key0 + i / ROWS))
                mix_pair(b, mix_tile(b, MIX.scores, &q, 0, row0, key0) + i,
                         mix_tile(b, MIX.biases, &q, 0, row0, key0) + i,
                         mix_tile(b, MIX.mixed, &q, 0, row0, key0) + i, b.room + tid);
    END
}

#endif
