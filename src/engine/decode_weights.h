/* SPDX-License-Identifier: MIT */
/* decode_weights.h -- decode: weights of the tiles of a chunk, and their sums of values.  The
 * softmax works on all tiles at once; only max and sum go from tile to tile, newest first. */
#ifndef LOCI_ENGINE_DECODE_WEIGHTS_H
#define LOCI_ENGINE_DECODE_WEIGHTS_H

#include "engine/decode_scores.h"
#include "engine/softmax.h"

/* The largest score of every tile.  The max of numbers is the same in any order. */
static void find_most(const real *s, int first, int end, real *most)
{
    real lanes[VL];
    for (int j = first; j < end; j++) {
        vf m = vf_load(s + j * KT);
        UNROLL_FOR(int k = VL; k < KT; k += VL) m = vf_max(m, vf_load(s + j * KT + k));
        vf_store(lanes, vf_most(m));
        most[j] = *lanes;
    }
}
/* Weights of a tile under a base, some vectors at once, so that their chains overlap. */
static void softmax_tile(const real *s, real base, real *p)
{
    enum { AT_ONCE = KT / VL < 8 ? KT / VL : 8 };
    for (int k = 0; k < KT; k += AT_ONCE * VL)
        UNROLL_FOR(int v = 0; v < AT_ONCE; v++)
            vf_store(p + k + v * VL, vf_exp(vf_sub(vf_load(s + k + v * VL), vf_set1(base))));
}
/* The sum of the weights of a tile: one chain over ascending keys, as in softmax.h. */
static real sum_tile(const real *p, int keys)
{
    real sum = 0;
    for (int k = 0; k < keys; k++) sum += p[k];
    return sum;
}
/* The same for VL tiles, which lie in the lanes: worth it where more than FEW of them are there. */
enum { FEW = VL / 4 };
static vf sum_lanes(const real *p)
{
    vf all = vf_set1(0);
    for (int k = 0; k < KT; k += VL) {
        vf x[VL];
        UNROLL_FOR(int i = 0; i < VL; i++) x[i] = vf_load(p + i * KT + k);
        vf_transpose(x);
        UNROLL_FOR(int i = 0; i < VL; i++) all = vf_add(all, x[i]);
    }
    return all;
}
/* The softmax of a row: what softmax.h says of every tile, newest first, step by step for all tiles
 * of the chunk, which has so many keys. */
static void softmax(const struct row_set *w, int i, int first, int end, ptrdiff_t keys,
                    const bool *seen)
{
    struct tile *t = &w->t[i];
    real *s = row_of(w, w->s, i), *p = row_of(w, w->p, i), *alpha = w->alpha + i * w->tiles;
    real most[TILES], base[TILES], fall[TILES] = { 0 }, sum[TILES];
    real m = *t->chunk.m, l = *t->chunk.l;
    find_most(s, first, end, most);
    /* Each tile's base is the max of it and of the newer ones, fall what m rises by. */
    for (int j = end - 1; j >= first; j--) {
        if (!seen[j]) continue;
        const real before = m;
        m = max_(m, most[j]);
        base[j] = m == -INFINITY ? 0 : m;
        fall[j] = before - base[j];
    }
    /* Lanes of tiles that nobody saw hold old memory, and their sums are not used. */
    for (int from = first / VL * VL; from < end; from += VL) {
        const int low = from > first ? from : first, high = from + VL < end ? from + VL : end;
        for (int j = low; j < high; j++) {
            const ptrdiff_t left = keys - j * KT;
            if (!seen[j]) continue;
            softmax_tile(s + j * KT, base[j], p + j * KT);
            if (high - low <= FEW) sum[j] = sum_tile(p + j * KT, left < KT ? (int)left : KT);
        }
        if (high - low > FEW) vf_store(sum + from, sum_lanes(p + from * KT));
        vf_store(fall + from, vf_exp(vf_load(fall + from)));
    }
    for (int j = end - 1; j >= first; j--) {
        if (!seen[j]) continue;
        alpha[j] = fall[j];
        l = fma_(l, alpha[j], sum[j]);
    }
    *t->chunk.m = m;
    *t->chunk.l = l;
}
/* Weights that a term makes, tile by tile; or, after softmax(), what terms make of weights. */
static void tiles_weights(const struct row_set *w, ptrdiff_t j)
{
    const int x = w->t->c->plan->weight;
    for (int i = 0; i < w->n; i++) {
        struct tile *t = &w->t[i];
        real *alpha = &w->alpha[i * w->tiles + j % TILES];
        place_row(w, i, j);
        if (x >= 0) {
            weights_of(t->c)->tile_weights(t, x);
            *alpha = *t->alpha;
        } else *t->alpha = *alpha;
        value_tile(t);
    }
}
/* The sums of values of one row, over visible keys only, as others hold numbers that are not
 * finite. */
static void sum_visible(const struct tile *t, int D, real *c)
{
    for (int d = 0; d < D; d++) {
        real sum = 0;
        for (int k = 0; k < t->keys; k++)
            if (visible(t, k, 0)) sum = fma_(t->v.at[k * t->v.row + d], t->p[k], sum);
        c[d] = sum;
    }
}
/* The sums of values of tile j, for all rows.  Only where some row does not see all of it does it
 * matter whether the values are finite. */
static void sum_tiles(const struct row_set *w, ptrdiff_t j, bool partial)
{
    const int Dv = w->t->c->plan->value_dim;
    const ptrdiff_t apart = w->held * Dv, slot = many(w) ? 0 : j % TILES * Dv;
    for (int i = 0, n; i < w->n; i += n) {
        struct tile *t = &w->t[i];
        real *sums = w->sums + i * apart + slot;
        place_row(w, i, j);
        for (n = 1; i + n < w->n && shares_values(w, i + n, j); n++) {}
        if (!t->keys) continue;
        if (partial) find_values(t);
        if (partial && !finite_rows(t->v.at, t->v.row, t->keys, Dv)) {
            for (int s = 0; s < n; s++) {
                place_row(w, i + s, j);
                t[s].v.at = t->v.at;
                t[s].v.row = t->v.row;
                sum_visible(&t[s], Dv, sums + s * apart);
            }
        } else {
            struct source value = source_of(t, VALUES);
            value.next = many(w) ? -1 : 1;
            value.prefetch_streams = t->c->plan->prefetch_streams;
            const struct summing of = { .value = &value,
                                        .D = Dv,
                                        .keys = t->keys,
                                        .p = t->p,
                                        .sums = sums,
                                        .weights = w->stride,
                                        .apart = apart };
            N(sum_values)(&of, n);
        }
    }
}

/* o = o alpha + sum for n vectors of d, tiles newest first.  The sums of tiles are `step` apart. */
INLINE void join_block(const int n, const real *alpha, const real *sums, ptrdiff_t step, int first,
                       int end, const bool *seen, real *o)
{
    vf all[4];
    UNROLL_FOR(int v = 0; v < n; v++) all[v] = vf_load(o + v * VL);
    for (int j = end - 1; j >= first; j--) {
        if (!seen[j]) continue;
        UNROLL_FOR(int v = 0; v < n; v++)
            all[v] = vf_fma(all[v], vf_set1(alpha[j]), vf_load(sums + j * step + v * VL));
    }
    UNROLL_FOR(int v = 0; v < n; v++) vf_store(o + v * VL, all[v]);
}
/* The chunk's o of one row, from the sums of its tiles: the same chain as in forward.h. */
static void join_tiles(const struct row_set *w, int i, int first, int end, const bool *seen)
{
    const int D = w->t->c->plan->value_dim;
    const ptrdiff_t step = many(w) ? 0 : D;
    const real *alpha = w->alpha + i * w->tiles, *sums = w->sums + i * w->held * D;
    real *o = w->t[i].chunk.o;
    int d = 0;
    for (; d + 4 * VL <= D; d += 4 * VL)
        join_block(4, alpha, sums + d, step, first, end, seen, o + d);
    for (; d + VL <= D; d += VL) join_block(1, alpha, sums + d, step, first, end, seen, o + d);
    for (; d < D; d++)
        for (int j = end - 1; j >= first; j--)
            if (seen[j]) o[d] = fma_(o[d], alpha[j], sums[j * step + d]);
}

#endif
