/* SPDX-License-Identifier: MIT */
/* tile_sums.h -- sums over the rows and over the keys of a tile of numbers, [KT][QT]. */
#ifndef LOCI_ENGINE_TILE_SUMS_H
#define LOCI_ENGINE_TILE_SUMS_H

#include "engine/tile_gemm.h"

/* Subtracts from keys[k] the sum of a key's numbers over the rows, and adds to rows[r] the sum of a
 * row's numbers over the keys.  Rows n, 16 + n, 32 + n and 48 + n are summed in lane n, then halves
 * of the lanes.  Lanes are transposed for that, because sums across a vector are slow. */
#if QT > 1
INLINE void sum_tile(const real *x, int n, real *keys, real *rows)
{
    enum { LANES = 16, ALL = QT / VL, STEP = LANES / VL };
    real lanes[KT * LANES], across[LANES * KT];
    vf all[ALL], y[ALL];
    UNROLL_FOR(int i = 0; i < ALL; i++) all[i] = vf_set1(0);
    for (int k = 0; k < n; k++) {
        UNROLL_FOR(int i = 0; i < ALL; i++) {
            y[i] = vf_load(x + k * QT + i * VL);
            all[i] = vf_add(all[i], y[i]);
        }
        UNROLL_FOR(int i = 0; i < STEP; i++)
            vf_store(lanes + k * LANES + i * VL,
                     vf_add(vf_add(vf_add(y[i], y[STEP + i]), y[2 * STEP + i]), y[3 * STEP + i]));
    }
    UNROLL_FOR(int i = 0; i < ALL; i++)
        vf_store(rows + i * VL, vf_add(vf_load(rows + i * VL), all[i]));
    transpose(lanes, LANES, n, LANES, across, KT);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            for (int k = 0; k < n; k++) across[i * KT + k] += across[(i + half) * KT + k];
    for (int k = 0; k < n; k++) keys[k] -= across[k];
}
#endif

#endif
