/* SPDX-License-Identifier: MIT */
/* mix_back.h -- backward through the network of mix.h, strip after strip.  grade_rows makes weights
 * of mixed scores, and gradients of these; unmix_pairs takes the gradients to scores and biases and
 * sums what the network learns; then backward_rows and backward_keys go on from there.  See
 * docs/bits.md, Backward, and src/terms/mix.c. */
#ifndef LOCI_GPU_KERNELS_MIX_BACK_H
#define LOCI_GPU_KERNELS_MIX_BACK_H

#include "kernels/backward.h"

/* Stores a thread's pairs, whose lanes are rows. */
DEV void store_pairs_of(struct block b, int64_t to, const struct span *q, int h, int row0, int key0,
                        int r0, int side, float (*from)[8])
{
    GLOBAL float *x = mix_tile(b, to, q, h, row0, key0);
    for (int i = 0; i < OTHERS(TILE_ROWS); i++)
        for (int j = 0; j < 8; j++)
            x[other_of(TILE_ROWS, side, i) * TILE_ROWS + lane_of(TILE_ROWS, r0, j)] = from[i][j];
}
/* Weights, with dropout, and gradients of a thread's pairs, from mixed scores and dp. */
DEV void grade_mixed(struct block b, struct rows_room at, const struct span *q, int h, int row0,
                     int key0, int tid, float (*p)[8], float (*ds)[8])
{
    const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
    for (int i = 0; i < OTHERS(TILE_ROWS); i++)
        for (int j = 0; j < 8; j++) {
            const int r = lane_of(TILE_ROWS, r0, j), row = row0 + r,
                      key = key0 + other_of(TILE_ROWS, side, i);
            const int seen = sees(b, q, h, row, key);
            float dp = ds[i][j], f = 1, weight = 0;
            ds[i][j] = 0;
            if (seen) {
                weight = pair_weight(b, NULL_AT, q, h, row, key, p[i][j], b.room[at.lse + r]);
                dp = with_vectors(b, q, h, row, key, dp);
                if (DROPOUT) f = drop_factor(b, q, drop_row_of(b, q, h, row), key);
                ds[i][j] = weight * ((DROPOUT ? dp * f : dp) - b.room[at.delta + r]);
            }
            p[i][j] = DROPOUT ? weight * f : weight;
        }
}
/* Have the rows of all heads ended before a tile of keys?  Nothing has a gradient there, and the
 * mask no -0. */
DEV int all_sticks_ended(struct block b, const struct span *q, int row0, int rows, int tile)
{
    int h = 0;
    while (h < b.p->heads && stick_ended(b, q, h, row0, rows, tile)) h++;
    return h == b.p->heads;
}
/* A group has 64 rows of a head. */
DEV void grade_rows(struct block b)
{
    PRIVATE(struct rows_mine);
    if (!MIXES) return;
    const int tile = b.p->tiles - 1 - b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const struct rows_room at = rows_room(DIM, VALUE_DIM, ROOMY);
    const int row0 = (tile - q.tile) * TILE_ROWS, rows = least(q.nq - row0, TILE_ROWS);
    const struct rows_at
        rows_dout = view_rows(b.at.dout, b.p->dout, q.b, h, q.q0 + row0, O_TYPE, b.p->wide),
        rows_v = view_rows(b.at.v, b.p->v, q.b, h / (b.p->heads / b.p->kv_heads), q.k0, V_TYPE,
                           b.p->wide);
    const int64_t list = ((int64_t)q.b * b.p->heads + h) * b.p->q_len + q.q0 + row0;
    const struct keys_seen seen = keys_of(b, &q, row0, rows);
    const int weights = VALUES && b.p->p_by_distance >= 0; /* vectors of values learn */
    PHASE(tid)
        for (int i = tid; !b.at.dout && i < FOURS(VALUE_DIM) * TILE_ROWS; i += THREADS)
            b.room[at.dout + i] = 0;
        if (b.at.dout)
            load_across(rows_dout, 0, rows, TILE_ROWS, VALUE_DIM, 1.0f, tid, b.room + at.dout);
        for (int r = tid; r < rows; r += THREADS) {
            const float delta = ((const GLOBAL float *)b.at.delta)[list + r];
            b.room[at.lse + r] = lse_of(b, list + r);
            b.room[at.delta + r] = delta;
            if (STICK)
                MINE.older =
                    (double)((const GLOBAL float *)b.at.lse)[list + r] * (double)delta;
        }
        for (int i = tid; i < b.p->chunks * PARTS; i += THREADS) part_of(b, tile, h, 0)[i] = 0;
    END
    for (int j = seen.first / KEYS; seen.first <= seen.last && j <= seen.last / KEYS; j++) {
        const int key0 = j * KEYS, n = least(seen.last + 1 - key0, KEYS),
                  ends = j == seen.last / KEYS || (j + 1) % (CHUNK / KEYS) == 0;
        const struct tile_place by_rows = { h, row0, key0, 0 };
        const int masked = MASK_KIND == 2 && b.at.dmask
                        && !(STICK && all_sticks_ended(b, &q, row0, rows, j));
        const struct tile_pairs pairs = { b.room + at.s, b.room + at.size, TILE_ROWS, 0, row0,
                                           key0, n, 0 };
        PHASE(tid)
            copy_rows(rows_v, key0, n, KEYS, VALUE_DIM, WIDER(VALUE_DIM), tid, b.room + at.v);
            COPIES_DONE
        END
        PHASE(tid)
            const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
            product_values(b, &q, by_rows, TILE_ROWS, b.room + at.dout, b.room + at.v, r0, side,
                           MINE.ds);
            load_pairs(b, MIX.mixed, &q, h, row0, key0, r0, side, 0, MINE.s);
            if (STICK) open_stick_pairs(b, &q, h, pairs, tid, MINE.s, MINE.ds);
            else grade_mixed(b, at, &q, h, row0, key0, tid, MINE.s, MINE.ds);
            if (weights && !STICK) store_tile(TILE_ROWS, b.room + at.s, r0, side, MINE.s);
        END
        PHASE_IF(tid, STICK)
            for (int r = tid; r < rows; r += THREADS) {
                const float older = *stick_at(b, STICK_BEGUN, j, &q, h, row0 + r) == 0
                                      ? 0.0f
                                      : (float)MINE.older;
                MINE.older += (double)stick_back(
                    b, &q, h, row0, rows, r, key0, n, pairs.z + r, pairs.dp + r,
                    pairs.dp + KEYS * TILE_ROWS + r, TILE_ROWS, older);
            }
        END_IF
        PHASE(tid)
            const int r0 = first_lane(TILE_ROWS, tid), side = place(TILE_ROWS, tid);
            if (STICK) close_stick_pairs(b, &q, h, pairs, tid, MINE.s, MINE.ds);
            if (STICK && weights && DROPOUT) store_tile(TILE_ROWS, pairs.z, r0, side, MINE.s);
            store_pairs_of(b, MIX.mixed, &q, h, row0, key0, r0, side, MINE.s);
            store_pairs_of(b, MIX.gradients, &q, h, row0, key0, r0, side, MINE.ds);
            for (int i = 0; masked && i < OTHERS(TILE_ROWS) * 8; i++) {
                const int row = row0 + lane_of(TILE_ROWS, r0, i % 8),
                          key = key0 + other_of(TILE_ROWS, side, i / 8);
                if (sees(b, &q, h, row, key))
                    store_mask_gradient(b, &q, h, row, key, MINE.ds[i / 8][i % 8]);
            }
        END
        PHASE_IF(tid, weights)
            store_pairs(b, b.room + at.s, 1, &q, h, row0, rows, key0, n, tid);
            if (tid < rows) add_ends(b, b.room + at.s, 1, &q, h, row0, tid, key0, n);
        END_IF
        PHASE_IF(tid, weights)
            if (ends && tid < rows) join_row_sums(b, &q, h, row0 + tid);
            if (ends) join_ds(b, &q, h, row0, rows, tid);
        END_IF
    }
}

/* ---- From the gradients of mixed scores to those of scores, biases and the network ----------- */

/* Units that pass at a time, and distances of a tile, padded. */
enum { PASSING = MIX_PASSING, SPREAD = MIX_SPREAD };

/* What a tile of pairs gives: the parts of the heads, then gradients of units by distance or by
 * row, [SPREAD][padded]. */
DEV int mix_part_size(struct block b) { return 4 * MIX.padded + 16; }
DEV GLOBAL float *mix_sums(struct block b, const struct span *q, int row0, int key0)
{
    const int64_t slot = q->tile + row0 / TILE_ROWS - MIX.first,
                  each = (int64_t)b.p->heads * mix_part_size(b) + SPREAD * MIX.padded;
    return (GLOBAL float *)(b.at.apart + MIX.sums) + (slot * MIX.ktiles + key0 / KEYS) * each;
}
/* Rows of the part of a head: see src/layout/mix.h. */
enum { MIX_OUT, MIX_OF_BIASES, MIX_OF_SCORES, MIX_B1, MIX_B2 };

/* What a group has: its tiles of head 0, shared memory and places of distances. */
struct mix_tiles {
    GLOBAL float *scores, *biases, *sums;
    const GLOBAL float *ds;
    SHARED float *units, *gradients, *inputs; /* [PASSING][64] twice, [inputs][64] */
    int keys, flat;
};
/* The distance of a pair, or its row. */
DEV int mix_place(struct mix_tiles a, int k, int r) { return a.flat ? a.keys - 1 - k + r : r; }
DEV GLOBAL float *mix_spread(struct block b, struct mix_tiles a, int place)
{
    return a.sums + b.p->heads * mix_part_size(b) + place * MIX.padded;
}
/* Unit g of a pair, times its slope, and its gradient. */
DEV void pass_unit(struct block b, struct mix_tiles a, int g0, int g, int k, int r)
{
    const int at = k * TILE_ROWS + r, inputs = mix_inputs(b);
    float t = mix_b1(b)[g0 + g], dt = 0;
    for (int x = 0; x < inputs; x++)
        t = fma_(mix_weights(b, x)[g0 + g], mix_input(b, a.scores + at, a.biases + at, x), t);
    for (int h = 0; h < b.p->heads; h++)
        dt = fma_(mix_weights(b, inputs + h)[g0 + g], a.ds[h * mix_head(b) + at], dt);
    const float slope = t > 0 ? 1.0f : MIX.leak;
    a.units[g * TILE_ROWS + r] = t * slope;
    a.gradients[g * TILE_ROWS + r] = dt * slope;
    GLOBAL float *spread = mix_spread(b, a, mix_place(a, k, r)) + g0 + g;
    *spread = *spread + dt * slope;
}
/* Over the pairs of key k, what number i of these units adds: i is of an output, then of a bias,
 * then of a score. */
DEV void add_weight(struct block b, struct mix_tiles a, int g0, int k, int i)
{
    const int h = i / PASSING % b.p->heads, g = i % PASSING, row = i / PASSING / b.p->heads;
    const GLOBAL float *x = (row == MIX_OUT         ? a.ds
                             : row == MIX_OF_BIASES ? a.biases
                                                    : a.scores)
                          + h * mix_head(b) + k * TILE_ROWS;
    const SHARED float *y = (row == MIX_OUT ? a.units : a.gradients) + g * TILE_ROWS;
    GLOBAL float *to = a.sums + h * mix_part_size(b) + row * MIX.padded + g0 + g;
    float sum = 0;
    for (int r = 0; r < TILE_ROWS; r++) sum = fma_(x[r], y[r], sum);
    *to = *to + sum;
}
/* The part of a distance in the gradient of a bias. */
DEV float spread_gradient(struct block b, struct mix_tiles a, int h, int place)
{
    float sum = 0;
    for (int g = 0; g < MIX.units; g++)
        sum = fma_(mix_weights(b, h)[g], mix_spread(b, a, place)[g], sum);
    return sum;
}
/* The bias of a distance: on the pairs of row 0, then on those of key 0. */
DEV float bias_at(struct block b, struct mix_tiles a, int h, int place)
{
    const int n = place - (a.keys - 1);
    return a.biases[h * mix_head(b) + (n < 0 ? -n * TILE_ROWS : n)];
}
/* A group has a tile of rows and one of keys, and all heads. */
DEV void unmix_pairs(struct block b)
{
    if (!MIXES) return;
    const int tile = MIX.first + b.x / MIX.ktiles, key0 = b.x % MIX.ktiles * KEYS;
    const int heads = b.p->heads, inputs = mix_inputs(b), padded = MIX.padded;
    const struct span q = span_of(b, BY_TILE, tile);
    const int row0 = (tile - q.tile) * TILE_ROWS, rows = least(q.nq - row0, TILE_ROWS);
    const struct keys_seen seen = keys_of(b, &q, row0, rows);
    struct mix_tiles a;
    a.scores = mix_tile(b, MIX.scores, &q, 0, row0, key0);
    a.biases = mix_tile(b, MIX.biases, &q, 0, row0, key0);
    a.ds = mix_tile(b, MIX.gradients, &q, 0, row0, key0);
    a.sums = mix_sums(b, &q, row0, key0);
    a.units = b.room;
    a.gradients = a.units + PASSING * TILE_ROWS;
    a.inputs = a.gradients + PASSING * TILE_ROWS;
    a.keys = key0 + KEYS > seen.first ? least(seen.last + 1 - key0, KEYS) : 0;
    a.flat = MIX.biased && mixes_by_distance(b, &q);
    if (a.keys <= 0) return;
    const int spread = a.keys - 1 + TILE_ROWS; /* distances */
    PHASE(tid)
        for (int i = tid; i < heads * mix_part_size(b) + SPREAD * padded; i += THREADS)
            a.sums[i] = 0;
    END
    for (int k = 0; k < a.keys; k++) {
        const int lines = a.flat || !MIX.biased ? 2 : 3; /* biases of distances come later */
        int g0 = 0;
        PHASE(tid)
            for (int i = tid; i < inputs * TILE_ROWS; i += THREADS) a.inputs[i] = 0;
        END
        do {
            PHASE(tid)
                for (int i = tid; i < PASSING * TILE_ROWS; i += THREADS)
                    pass_unit(b, a, g0, i / TILE_ROWS, k, i % TILE_ROWS);
            END
            PHASE(tid)
                for (int i = tid; MIX.part >= 0 && i < lines * heads * PASSING; i += THREADS)
                    add_weight(b, a, g0, k,
                               lines == 2 && i >= heads * PASSING ? i + heads * PASSING : i);
                for (int i = tid; i < inputs * TILE_ROWS; i += THREADS)
                    for (int g = 0; g < least(MIX.units - g0, PASSING); g++)
                        a.inputs[i] = fma_(mix_weights(b, i / TILE_ROWS)[g0 + g],
                                           a.gradients[g * TILE_ROWS + i % TILE_ROWS],
                                           a.inputs[i]);
            END
            g0 += PASSING;
        } while (g0 < MIX.units);
        PHASE(tid)
            for (int i = tid; i < inputs * TILE_ROWS; i += THREADS) {
                const int biases = MIX.biased && i < heads * TILE_ROWS,
                          h = i / TILE_ROWS % heads;
                const int64_t at = h * mix_head(b) + k * TILE_ROWS + i % TILE_ROWS;
                if (!biases) a.scores[at] = a.ds[at] + a.inputs[i];
                else if (!a.flat) a.biases[at] = fma_(MIX.add, a.ds[at], a.inputs[i]);
            }
        END
    }
    PHASE(tid)
        for (int i = tid; a.flat && MIX.part >= 0 && i < heads * padded; i += THREADS) {
            const int h = i / padded, g = i % padded;
            float sum = 0;
            for (int n = 0; n < spread; n++)
                sum = fma_(bias_at(b, a, h, n), mix_spread(b, a, n)[g], sum);
            a.sums[h * mix_part_size(b) + MIX_OF_BIASES * padded + g] = 0.0f + sum;
        }
        for (int g = tid; MIX.part >= 0 && g < padded; g += THREADS) {
            float sum = 0;
            for (int n = 0; n < SPREAD; n++) sum = sum + mix_spread(b, a, n)[g];
            a.sums[MIX_B1 * padded + g] = sum;
        }
        for (int h = tid; MIX.part >= 0 && h < heads; h += THREADS) {
            float sum = 0;
            for (int r = 0; r < TILE_ROWS; r++) {
                float row = 0;
                for (int k = 0; k < a.keys; k++)
                    row = row + a.ds[h * mix_head(b) + k * TILE_ROWS + r];
                sum = sum + row;
            }
            a.sums[h * mix_part_size(b) + MIX_B2 * padded] = sum;
        }
    END
    PHASE(tid)
        for (int i = tid; a.flat && i < heads * a.keys * TILE_ROWS; i += THREADS) {
            const int h = i / (a.keys * TILE_ROWS), k = i / TILE_ROWS % a.keys, r = i % TILE_ROWS;
            const int64_t at = h * mix_head(b) + k * TILE_ROWS + r;
            float d = MIX.add == 0 ? 0.0f : a.ds[at];
            if (k == 0 || r == 0) d = d + spread_gradient(b, a, h, mix_place(a, k, r));
            a.biases[at] = d;
        }
    END
}
/* What the tiles of a tile of rows give joins its parts, oldest first: a group has a head. */
DEV void add_mixed(struct block b)
{
    if (!MIXES) return;
    const int tile = MIX.first + b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const int row0 = (tile - q.tile) * TILE_ROWS, rows = least(q.nq - row0, TILE_ROWS);
    const struct keys_seen seen = keys_of(b, &q, row0, rows);
    PHASE(tid)
        for (int i = tid; i < mix_part_size(b); i += THREADS)
            for (int j = seen.first / KEYS; seen.first <= seen.last && j <= seen.last / KEYS; j++) {
                GLOBAL float *to =
                    part_of(b, tile, h, j / (CHUNK / KEYS)) + MIX.part + i;
                *to = *to + (mix_sums(b, &q, row0, j * KEYS) + h * mix_part_size(b))[i];
            }
    END
}

#endif
