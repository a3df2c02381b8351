/* SPDX-License-Identifier: MIT */
/* turns.h -- rotations that are more than pairs at angles of a table: cos and sin as sums of waves
 * (fope), pairs in another basis (comrope, liere), blocks times matrices (liere).  The tables are
 * those of src/layout/fourier.h and blocks.h.  See docs/bits.md, Rotating. */
#ifndef LOCI_GPU_KERNELS_TURNS_H
#define LOCI_GPU_KERNELS_TURNS_H

#include "kernels/angles.h"

/* Coefficients of cos, or of sin, of a group: [waves][lanes]. */
DEV const GLOBAL float *wave_coefficients(struct block b, struct gpu_turn u, int group, int waves,
                                          int sine)
{
    return (const GLOBAL float *)(b.at.tables + u.numbers)
         + (int64_t)(2 * (u.groups > 1 ? group : 0) + sine) * waves * u.lanes;
}
/* cos, or sin, of a pair: a chain over the waves x of a row, `waves` numbers. */
DEV float sum_of_waves(struct block b, struct gpu_turn u, int group, const SHARED float *x,
                       int waves, int pair, int sine)
{
    const GLOBAL float *c = wave_coefficients(b, u, group, waves, sine) + pair;
    float sum = 0;
    if (pair >= u.sums) return sine ? u.rest : 1.0f;
    for (int l = 0; l < waves; l++) sum = fma_(x[l], c[l * u.lanes], sum);
    return sum;
}

/* Channels of a panel of blocks: the last one may have fewer. */
DEV int panel_channels(struct gpu_turn u, int panel)
{
    const int each = u.per_panel * u.block;
    return least(u.blocks * u.block - panel * each, each);
}
/* The matrix of a panel into its basis, [channels][width], and after it the one back. */
DEV const GLOBAL float *panel_of(struct block b, struct gpu_turn u, int group, int panel)
{
    return (const GLOBAL float *)(b.at.tables + u.numbers)
         + (int64_t)((u.groups > 1 ? group : 0) * u.panels + panel) * u.width
               * (u.per_panel * u.block + u.back_lanes);
}
/* Number w of a row in the basis of a panel: a chain over the panel's channels. */
DEV float enter_basis(struct block b, struct gpu_turn u, int group, int panel, int w,
                      const GLOBAL char *at, int type, int64_t row)
{
    const GLOBAL float *m = panel_of(b, u, group, panel) + w;
    const int channels = panel_channels(u, panel);
    float sum = 0;
    row += panel * u.per_panel * u.block;
    for (int d = 0; d < channels; d++)
        sum = fma_(load_number(at, type, row + d), m[d * u.width], sum);
    return sum;
}
/* Channel d of a row whose numbers in all bases are x: a chain over the width. */
DEV float leave_basis(struct block b, struct gpu_turn u, int group, int d, const SHARED float *x)
{
    const int each = u.per_panel * u.block, panel = d / each;
    const GLOBAL float *m =
        panel_of(b, u, group, panel) + (int64_t)each * u.width + d % each;
    float sum = 0;
    x += panel * u.width;
    for (int w = 0; w < u.width; w++) sum = fma_(x[w], m[w * u.back_lanes], sum);
    return sum;
}
/* Pair w, w + 1 of a row in a basis, turned. */
DEV void turn_pair(SHARED float *x, float cosine, float sine)
{
    const float a = x[0], c = x[1];
    x[0] = fma_(a, cosine, -(c * sine));
    x[1] = fma_(a, sine, c * cosine);
}

/* Channel d of a row times the matrix of its place: a chain over the channels of the block. */
DEV float times_matrix(struct block b, struct gpu_turn u, int group, int batch, int i, int d,
                       int64_t row)
{
    const int side = b.p->keys_side, n = u.block, block = d / n;
    const int64_t slot = ((const GLOBAL int64_t *)(b.at.lists + u.slots[side]))
        [batch * u.slot_entry[side] + i];
    const GLOBAL float *m =
        (const GLOBAL float *)(b.at.lists + u.matrices[b.p->back])
        + ((slot * u.groups + (u.groups > 1 ? group : 0)) * u.blocks + block) * n * n + d % n;
    float sum = 0;
    for (int k = 0; k < n; k++)
        sum = fma_(load_number(b.at.q, b.p->q_type, row + block * n + k), m[k * n], sum);
    return sum;
}

#endif
