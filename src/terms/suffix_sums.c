/* SPDX-License-Identifier: MIT */
/* suffix_sums.c -- sums of the gates that come later in their tile, newest first, in double.
 * Each sum is a chain from key to key, so tiles are in the lanes. */
#include "engine/workspace.h"
#include "contract/engine.h"
#include "layout/gate.h"

#if QT > 1
void N(sum_later)(const void *x, void *later, double *sum, double *top)
{
    real in[KT * LATER_TILES], out[KT * LATER_TILES];
    double s[LATER_TILES] = { 0 }, most[LATER_TILES] = { 0 };
    transpose(x, KT, LATER_TILES, KT, in, LATER_TILES);
    for (int k = KT - 1; k >= 0; k--) {
        /* prefetches a line of the tiles of the next call */
        const size_t next = (size_t)(2 * KT - 1 - k) * LATER_TILES * sizeof(real);
        __builtin_prefetch((const char *)x + next);
        __builtin_prefetch((char *)later + next, 1);
        for (int i = 0; i < LATER_TILES; i++) {
            out[k * LATER_TILES + i] = (real)s[i];
            most[i] = s[i] > most[i] ? s[i] : most[i];
            s[i] += gate_value((double)in[k * LATER_TILES + i]);
        }
    }
    transpose(out, LATER_TILES, KT, LATER_TILES, later, KT);
    memcpy(sum, s, sizeof s);
    memcpy(top, most, sizeof most);
}
#endif
