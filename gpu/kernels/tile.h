/* SPDX-License-Identifier: MIT */
/* tile.h -- tiles in shared memory and their two products.  128 threads share a tile: each has 8
 * lanes, which are rows (or keys in the pass over keys), and some of the other side.
 *
 *     product:  c[other][lane] = chain over d of others[other][d] lanes[d][lane]
 *     sums:     c[lane][channel] = chain over the others of x[other][channel] w[other][lane]
 */
#ifndef LOCI_GPU_KERNELS_TILE_H
#define LOCI_GPU_KERNELS_TILE_H

#include "kernels/functions.h"

/* Threads side by side over the others: 128 lanes leave 8, 64 lanes 16, 32 lanes 32. */
#define SIDE(lanes) (THREADS * 8 / (lanes))
/* Others of a thread, and fours of channels for `width` of them. */
#define OTHERS(lanes) (KEYS / SIDE(lanes))
#define GROUPS(lanes, width) (((width) + 4 * SIDE(lanes) - 1) / (4 * SIDE(lanes)))
enum { MOST_OTHERS = 8, MOST_GROUPS = 8 };

/* The first of the lanes of a thread, which are r0 .. r0 + 3 and r0 + half .. r0 + half + 3, and
 * its place among the others.  The 32 threads of a warp read 8 fours of lanes and 4 of the others,
 * so that no two of them wait for each other. */
#define HALF(lanes) ((lanes) == 32 ? 16 : 32)
DEV int first_lane(int lanes, int tid)
{
    const int lane = tid % 32;
    return lanes == 32 ? lane / 8 * 4 : tid / 32 % (lanes / 64) * 64 + lane / 4 * 4;
}
DEV int place(int lanes, int tid)
{
    const int lane = tid % 32;
    return lanes == 32 ? tid / 32 * 8 + lane % 8 : tid / 32 / (lanes / 64) * 4 + lane % 4;
}
DEV int lane_of(int lanes, int r0, int j) { return r0 + j % 4 + j / 4 * HALF(lanes); }
/* Other number i of a thread, and the first channel of four number g. */
DEV int other_of(int lanes, int at, int i) { return at + SIDE(lanes) * i; }
DEV int channel_of(int lanes, int at, int g) { return (g * SIDE(lanes) + at) * 4; }

DEV four load_four(const SHARED float *p) { return *(const SHARED four *)p; }
DEV void store_four(SHARED float *p, float a, float b, float c, float d)
{
    *(SHARED four *)p = four_of(a, b, c, d);
}
/* The eight numbers of a thread's lanes. */
DEV void load_lanes(const SHARED float *p, int apart, float *x)
{
    const four a = load_four(p), c = load_four(p + apart);
    x[0] = a.x;
    x[1] = a.y;
    x[2] = a.z;
    x[3] = a.w;
    x[4] = c.x;
    x[5] = c.y;
    x[6] = c.z;
    x[7] = c.w;
}

/* c[other][lane] of this thread.  `width` is a multiple of 4; columns beyond the channels are 0. */
DEV void product(int lanes, const SHARED float *lane_rows, const SHARED float *others, int stride,
                 int width, int r0, int at, float (*c)[8])
{
    UNROLL for (int i = 0; i < OTHERS(lanes); i++)
        UNROLL for (int j = 0; j < 8; j++) c[i][j] = 0;
    float y[8];
    load_lanes(lane_rows + r0, HALF(lanes), y);
    UNROLL2 for (int d = 0; d < width; d += 4) {
        four x[MOST_OTHERS];
        UNROLL for (int i = 0; i < OTHERS(lanes); i++)
            x[i] = load_four(others + other_of(lanes, at, i) * stride + d);
        UNROLL for (int e = 0; e < 4; e++) {
            /* the next lanes are on their way; those behind the last ones are not used */
            float next[8];
            load_lanes(lane_rows + (d + e + 1) * lanes + r0, HALF(lanes), next);
            UNROLL for (int i = 0; i < OTHERS(lanes); i++) {
                const float a = e == 0 ? x[i].x : e == 1 ? x[i].y : e == 2 ? x[i].z : x[i].w;
                UNROLL for (int j = 0; j < 8; j++) c[i][j] = fma_(a, y[j], c[i][j]);
            }
            UNROLL for (int j = 0; j < 8; j++) y[j] = next[j];
        }
    }
}
/* Stores what product() made, as [other][lane]. */
DEV void store_tile(int lanes, SHARED float *to, int r0, int at, float (*c)[8])
{
    UNROLL for (int i = 0; i < OTHERS(lanes); i++) {
        SHARED float *p = to + other_of(lanes, at, i) * lanes + r0;
        store_four(p, c[i][0], c[i][1], c[i][2], c[i][3]);
        store_four(p + HALF(lanes), c[i][4], c[i][5], c[i][6], c[i][7]);
    }
}

/* Sums of `groups` fours of channels, from four number g0 on, over the first n of the others, whose
 * rows have `stride` numbers, `width` of them channels.  Fours beyond these stay 0. */
DEV void sums(int lanes, int groups, int g0, int width, const SHARED float *w,
              const SHARED float *x, int stride, int n, int r0, int at, float (*c)[8][4])
{
    UNROLL for (int g = 0; g < groups; g++)
        UNROLL for (int j = 0; j < 8; j++)
            UNROLL for (int i = 0; i < 4; i++) c[g][j][i] = 0;
    float y[8];
    four a[MOST_GROUPS];
    load_lanes(w + r0, HALF(lanes), y);
    UNROLL for (int g = 0; g < groups; g++)
        a[g] = load_four(x + least(channel_of(lanes, at, g0 + g), FOURS(width) - 4));
    UNROLL4 for (int k = 0; k < n; k++) {
        /* the next ones are on their way; those behind the last ones are not used */
        float next[8];
        four b[MOST_GROUPS];
        load_lanes(w + (k + 1) * lanes + r0, HALF(lanes), next);
        UNROLL for (int g = 0; g < groups; g++) {
            const int channel = channel_of(lanes, at, g0 + g);
            if (width % (4 * SIDE(lanes)) && channel >= width) continue;
            b[g] = load_four(x + (k + 1) * stride + channel);
            UNROLL for (int j = 0; j < 8; j++) {
                c[g][j][0] = fma_(a[g].x, y[j], c[g][j][0]);
                c[g][j][1] = fma_(a[g].y, y[j], c[g][j][1]);
                c[g][j][2] = fma_(a[g].z, y[j], c[g][j][2]);
                c[g][j][3] = fma_(a[g].w, y[j], c[g][j][3]);
            }
            a[g] = b[g];
        }
        UNROLL for (int j = 0; j < 8; j++) y[j] = next[j];
    }
}

/* ---- From memory to tiles -------------------------------------------------------------------- */

/* Where the rows of a view are: row i of a head.  In pages row i is row (from + i) % length of page
 * pages[(from + i) / length]. */
struct rows_at {
    const GLOBAL char *at;
    int64_t first, row;
    int type, wide;
    const GLOBAL int32_t *pages; /* of the entry; 0: none */
    int64_t page;
    int length, from;
};
DEV int64_t row_offset(struct rows_at v, int i)
{
    if (!v.pages) return v.first + (int64_t)i * v.row;
    const int j = v.from + i;
    return v.first + v.pages[j / v.length] * v.page + (int64_t)(j % v.length) * v.row;
}
DEV four load_four_at(struct rows_at v, int i, int d, int width)
{
    const int64_t at = row_offset(v, i) + d;
    if (v.wide && v.type == GPU_F32)
        return *(const GLOBAL four *)((const GLOBAL float *)v.at + at);
    if (v.type == GPU_Q8) { /* a four is in one block */
        const GLOBAL uint16_t *block = q8_block_of(v.at, at), *x = block + 1 + at % Q8_NUMBERS / 2;
        const float scale = from_half(GPU_F16, block[0]);
        const uint32_t a = x[0], b = x[1];
        return four_of(q8_number(a & 0xff, scale), q8_number(a >> 8, scale),
                       q8_number(b & 0xff, scale), q8_number(b >> 8, scale));
    }
    if (v.wide) {
        const uint64_t h = *(const GLOBAL uint64_t *)((const GLOBAL uint16_t *)v.at + at);
        return four_of(from_half(v.type, h & 0xffff), from_half(v.type, h >> 16 & 0xffff),
                       from_half(v.type, h >> 32 & 0xffff), from_half(v.type, (uint32_t)(h >> 48)));
    }
    float x[4];
    for (int e = 0; e < 4; e++) x[e] = d + e < width ? load_number(v.at, v.type, at + e) : 0.0f;
    return four_of(x[0], x[1], x[2], x[3]);
}
DEV int finite_four(four x)
{
    const float zero = x.x * 0.0f + x.y * 0.0f + x.z * 0.0f + x.w * 0.0f;
    return zero == 0.0f;
}
/* Rows i0 .. i0 + n - 1 as rows of `stride` numbers; the others of `all` are 0.  True if all
 * numbers that this thread reads are finite. */
DEV int load_rows(struct rows_at v, int i0, int n, int all, int width, int stride, int tid,
                  SHARED float *to)
{
    const int fours = FOURS(width) / 4;
    int finite = 1;
    for (int i = tid; i < all * fours; i += THREADS) {
        const int row = i / fours, d = i % fours * 4;
        four x = four_of(0, 0, 0, 0);
        if (row < n) x = load_four_at(v, i0 + row, d, width);
        finite &= finite_four(x);
        *(SHARED four *)(to + row * stride + d) = x;
    }
    return finite;
}
/* The same without a look at the numbers: they arrive at COPIES_DONE. */
DEV void copy_rows(struct rows_at v, int i0, int n, int all, int width, int stride, int tid,
                   SHARED float *to)
{
    if (!v.wide || v.type != GPU_F32 || n < all) {
        load_rows(v, i0, n, all, width, stride, tid, to);
        return;
    }
    const int fours = FOURS(width) / 4;
    if (THREADS % fours == 0 && THREADS / fours <= KEYS && !v.pages) { /* a thread has a column */
        const int row = tid / fours, d = tid % fours * 4, step = THREADS / fours;
        const GLOBAL float *from =
            (const GLOBAL float *)v.at + v.first + (int64_t)(i0 + row) * v.row + d;
        to += row * stride + d;
        UNROLL for (int i = 0; i < KEYS / step; i++)
            copy_four(to + i * step * stride, from + i * step * v.row);
        return;
    }
    for (int i = tid; i < all * fours; i += THREADS) {
        const int row = i / fours, d = i % fours * 4;
        copy_four(to + row * stride + d,
                  (const GLOBAL float *)v.at + row_offset(v, i0 + row) + d);
    }
}
/* The same as lanes, [width][lanes], times `scale`. */
DEV int load_across(struct rows_at v, int i0, int n, int lanes, int width, float scale, int tid,
                    SHARED float *to)
{
    const int fours = FOURS(width) / 4;
    int finite = 1;
    for (int i = tid; i < lanes * fours; i += THREADS) {
        const int row = i % lanes, d = i / lanes * 4;
        four x = four_of(0, 0, 0, 0);
        if (row < n) x = load_four_at(v, i0 + row, d, width);
        x = four_of(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
        finite &= finite_four(x);
        to[d * lanes + row] = x.x;
        to[(d + 1) * lanes + row] = x.y;
        to[(d + 2) * lanes + row] = x.z;
        to[(d + 3) * lanes + row] = x.w;
    }
    return finite;
}
DEV struct rows_at view_rows(const GLOBAL char *at, struct strides s, int64_t batch, int head,
                             int64_t row, int type, int wide)
{
    struct rows_at v;
    v.at = at;
    v.first = batch * s.batch + head * s.head + row * s.row;
    v.row = s.row;
    v.type = type;
    v.wide = wide;
    v.pages = 0;
    v.page = 0;
    v.length = v.from = 0;
    return v;
}

#endif
