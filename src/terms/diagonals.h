/* SPDX-License-Identifier: MIT */
/* diagonals.h -- sums of a tile along its diagonals, where the distance is the same: the
 * adjoint of a table by distance.
 *
 * Adding each key's row to one array at an offset that moves by one makes every load span two
 * earlier stores, which is many times slower.  So key k is added to buffer k mod 16, where all
 * its offsets differ by 16, and the buffers are added once a tile.  The order of every sum is
 * fixed: keys of a buffer ascending, then buffers ascending. */
#ifndef LOCI_TERMS_DIAGONALS_H
#define LOCI_TERMS_DIAGONALS_H

#include "simd/num.h"
#include "contract/plan.h"

#if QT > 1
/* DEEP keys share a buffer.  A row of the tile is WIDE blocks, and all offsets within
 * a buffer are whole blocks. */
enum { BUFFERS = 16, BLOCK = 16, DIAGONALS = KT + QT, DEEP = KT / BUFFERS, WIDE = QT / BLOCK };

/* sums[KT - 1 + r - k] = sum of x[k][r]; the last of the DIAGONALS is 0.  Rows of
 * x from `keys` on become 0. */
INLINE void diagonals(int keys, real *x, real *sums)
{
    /* Buffer j is the sum over m of row j + 16 m, shifted left by 16 m, between
     * zeros that absorb the shift. */
    enum { BLOCKS = WIDE + DEEP - 1, ROOM = BLOCK + BLOCKS * BLOCK + BLOCK };
    real buffer[BUFFERS][ROOM];
    memset(x + keys * QT, 0, sizeof(real) * (size_t)((KT - keys) * QT));
    for (int j = 0; j < BUFFERS; j++) {
        for (int i = 0; i < BLOCK; i++) buffer[j][i] = buffer[j][ROOM - BLOCK + i] = 0;
        UNROLL_FOR(int q = 0; q < BLOCKS; q++)
            for (int v = 0; v < BLOCK; v += VL) {
                vf sum = vf_set1(0);
                UNROLL_FOR(int m = 0; m < DEEP; m++) {
                    const int block = q + m - (DEEP - 1);
                    if (block >= 0 && block < WIDE)
                        sum = vf_add(sum, vf_load(x + (j + m * BUFFERS) * QT + block * BLOCK + v));
                }
                vf_store(&buffer[j][BLOCK + q * BLOCK + v], sum);
            }
    }
    /* The 16 remaining offsets, each read once. */
    for (int n = 0; n < DIAGONALS; n += VL) {
        vf sum = vf_set1(0);
        UNROLL_FOR(int j = 0; j < BUFFERS; j++)
            sum = vf_add(sum, vf_load(&buffer[j][BLOCK - (BUFFERS - 1) + n + j]));
        vf_store(sums + n, sum);
    }
}

/* Sum of n numbers, n a power of two and at most 128, halves added to halves: an order that
 * vectors of any width can use. */
INLINE real fold_halves(real *x, int n)
{
    for (n /= 2; n; n /= 2)
        for (int i = 0; i < n; i++) x[i] += x[n + i];
    return *x;
}

/* Sum of all of x[keys][QT]: over the keys of each row, then over the rows. */
INLINE real tile_sum(int keys, const real *x)
{
    enum { V = 4 };
    real row[QT];
    for (int r = 0; r < QT; r += V * VL) {
        vf sum[V];
        UNROLL_FOR(int i = 0; i < V; i++) sum[i] = vf_set1(0);
        for (int k = 0; k < keys; k++)
            UNROLL_FOR(int i = 0; i < V; i++)
                sum[i] = vf_add(sum[i], vf_load(x + k * QT + r + i * VL));
        UNROLL_FOR(int i = 0; i < V; i++) vf_store(row + r + i * VL, sum[i]);
    }
    return fold_halves(row, QT);
}
#endif

#endif
