/* SPDX-License-Identifier: MIT */
/* inputs.h -- backward: gradients of numbers that come with the call, by key and by row.  A group
 * of backward_inputs has 64 keys of a head and walks over the rows that see them, as backward_keys
 * does; it runs after backward_rows, whose sums it reads.  See docs/bits.md, Backward. */
#ifndef LOCI_GPU_KERNELS_INPUTS_H
#define LOCI_GPU_KERNELS_INPUTS_H

#include "kernels/backward.h"

struct inputs_mine {
    float s[PAIR_OTHERS][8], ds[PAIR_OTHERS][8];
};

/* Over the rows of a key: rows n, 16 + n, 32 + n, 48 + n, then halves over the 16. */
DEV float sum_of_key(const SHARED float *x)
{
    float lane[16];
    for (int n = 0; n < 16; n++)
        lane[n] = ((x[n * KEYS] + x[(16 + n) * KEYS]) + x[(32 + n) * KEYS]) + x[(48 + n) * KEYS];
    for (int upper = 8; upper; upper /= 2)
        for (int n = 0; n < upper; n++) lane[n] = lane[n] + lane[n + upper];
    return lane[0];
}
/* gate: what rows of the tile whose newest key is this one add to its C. */
DEV float newest_rows(struct block b, const struct span *q, int h, int u, int row0, int rows,
                      int key, float part)
{
    float sum = 0;
    int any = 0;
    for (int r = 0; r < rows; r++)
        if (newest_key(b, q, row0 + r) == key) {
            sum = sum + *row_sum_at(b, USE(u).by_row, 1, q, h, row0 + r);
            any = 1;
        }
    return any ? part + sum : part;
}
DEV GLOBAL double *key_sums(struct block b, int u, const struct span *q, int h)
{
    return (GLOBAL double *)(b.at.apart + b.p->by_key)
         + (((int64_t)USE(u).by_key * b.p->batch + q->b) * b.p->heads + h) * b.p->k_len
         + q->k0;
}

/* The first rows from row0 on whose tile meets the keys, or end. */
DEV int meeting_rows(struct block b, const struct span *q, int h, int row0, int end, int key0,
                     int keys)
{
    while (row0 < end
           && (!tiles_meet(b, q, row0, least(q->nq - row0, TILE_ROWS), key0, keys)
               || (STICK && !MIXES
                   && stick_ended(b, q, h, row0, least(q->nq - row0, TILE_ROWS), key0 / KEYS))))
        row0 += TILE_ROWS;
    return row0;
}

DEV void backward_inputs(struct block b)
{
    PRIVATE(struct inputs_mine);
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads,
              kvh = h / (b.p->heads / b.p->kv_heads);
    const struct span q = span_of(b, BY_KTILE, tile);
    const struct inputs_room at = inputs_room(DIM, VALUE_DIM, ROOMY);
    const int key0 = (tile - q.ktile) * KEYS, keys = least(q.nk - key0, KEYS);
    const struct rows_at k = view_rows(b.at.k, b.p->k, q.b, kvh, q.k0 + key0, K_TYPE, b.p->wide),
                         v = view_rows(b.at.v, b.p->v, q.b, kvh, q.k0 + key0, V_TYPE, b.p->wide);
    const int gates_apart = SCAN >= 0 && USE(most(SCAN, 0)).gates != GATES_OF_KEYS;
    const int tight = at.k == at.v;
    SHARED float *part = b.room + at.part;
    PHASE_IF(tid, !tight)
        load_across(k, 0, keys, KEYS, DIM, 1.0f, tid, b.room + at.k);
        load_across(v, 0, keys, KEYS, VALUE_DIM, 1.0f, tid, b.room + at.v);
    END_IF
    for (int item = last_item(b, &q); item >= first_item(b, &q); item--) {
        const int first_row = item * ITEM, end_row = least(q.nq, first_row + ITEM);
        PHASE(tid)
            for (int i = tid; i < GPU_USES * KEYS; i += THREADS) part[i] = 0;
        END
        for (int row0 = meeting_rows(b, &q, h, first_row, end_row, key0, keys); row0 < end_row;
             row0 = meeting_rows(b, &q, h, row0 + TILE_ROWS, end_row, key0, keys)) {
            const struct tile_pairs pairs = { b.room + at.g, b.room + at.size, KEYS, 1, row0, key0,
                                               keys, 0 };
            const int rows = least(q.nq - row0, TILE_ROWS),
                      own = GATED && owns_tile(b, &q, h, row0, rows, key0 / KEYS);
            const struct tile_place by_keys = { h, row0, key0, 1 };
            const struct grid lanes = grid_of(b.room + at.k, 1, KEYS),
                              others = grid_of(b.room + at.q, WIDER(DIM), 1);
            const int64_t list = ((int64_t)q.b * b.p->heads + h) * b.p->q_len + q.q0 + row0;
            const struct rows_at
                rows_q = view_rows(b.at.q, b.p->q, q.b, h, q.q0 + row0, Q_TYPE, b.p->wide),
                rows_dout =
                    view_rows(b.at.dout, b.p->dout, q.b, h, q.q0 + row0, O_TYPE, b.p->wide);
            PHASE(tid)
                if (tight) load_across(v, 0, keys, KEYS, VALUE_DIM, 1.0f, tid, b.room + at.v);
                if (b.at.dout)
                    load_rows(rows_dout, 0, rows, TILE_ROWS, VALUE_DIM, WIDER(VALUE_DIM), tid,
                              b.room + at.dout);
                else
                    for (int i = tid; i < TILE_ROWS * WIDER(VALUE_DIM); i += THREADS)
                        b.room[at.dout + i] = 0;
                if (tid < TILE_ROWS) {
                    b.room[at.lse + tid] = tid < rows ? lse_of(b, list + tid) : 0.0f;
                    b.room[at.delta + tid] =
                        tid < rows ? ((const GLOBAL float *)b.at.delta)[list + tid] : 0.0f;
                }
            END
            PHASE(tid)
                product_values(b, &q, by_keys, KEYS, b.room + at.v, b.room + at.dout,
                               first_lane(KEYS, tid), place(KEYS, tid), MINE.ds);
            END
            PHASE(tid) /* where dO was, if there is no room for both */
                load_rows(rows_q, 0, rows, TILE_ROWS, DIM, WIDER(DIM), tid, b.room + at.q);
                if (tight) load_across(k, 0, keys, KEYS, DIM, 1.0f, tid, b.room + at.k);
                if (GATED)
                    load_across(staged_keys(b, &q, h), key0, keys, KEYS, DIM, 1.0f, tid,
                                b.room + at.k);
            END
            PHASE_IF(tid, GATED)
                load_moved_rows(b, &q, h, rows_q, row0, rows, TILE_ROWS, key0 / KEYS, 1.0f, -1, 0,
                                tid, NULL_AT, others);
            END_IF
            PHASE_IF(tid, FADES)
                fade_rows(b, &q, row0, rows, key0 / KEYS, WIDER(DIM), tid, b.room + at.q);
            END_IF
            if (REFLECTS) {
                const int ways = MIXES ? 0 : ways_of(b, &q, h, row0, rows, key0 / KEYS);
                int way = next_way(ways, REFLECT_OWN);
                PHASE(tid)
                    load_reflected_rows(b, &q, h, row0, rows, TILE_ROWS, key0 / KEYS, ALL_WAYS, tid,
                                        others);
                END
                do {
                    const int go = way < WAYS;
                    PHASE(tid)
                        if (go)
                            load_across(carried_keys(b, &q, kvh, way - REFLECT_NODE), key0, keys,
                                        KEYS, DIM, 1.0f, tid, b.room + at.k);
                    END
                    PHASE(tid)
                        if (go)
                            take_way(b, &q, h, row0, key0, way, 1, b.room + at.k, b.room + at.q,
                                     tid, MINE.s);
                    END
                    way = next_way(ways, way);
                } while (way < WAYS);
                PHASE(tid)
                    if (ways >> REFLECT_OWN & 1)
                        take_own(b, &q, h, row0, key0, keys, 1, tid, MINE.s);
                END
            }
            const struct tile_classes classes = classes_of(b, &q, row0, rows, key0, keys);
            int form = MIXES ? classes.most : classes.least;
            if (MAYBE(FORMS > 1)) do {
                PHASE(tid)
                    if (FORMS > 1 && !MIXES) {
                        load_row_form(b, &q, h, row0, rows, TILE_ROWS, form, 0, WIDER(DIM), 1.0f,
                                      -1, tid, b.room + at.q);
                        load_key_form(b, &q, kvh, key0, keys, form, 1, tid, b.room + at.k);
                    }
                END
                PHASE(tid)
                    if (FORMS > 1 && !MIXES)
                        take_class(b, &q, h, row0, key0, form, form == classes.least, 1,
                                   b.room + at.k, b.room + at.q, tid, MINE.s);
                END
            } while (++form <= classes.most && FORMS > 1);
            if (GATED && !MIXES) {
                int level = own ? OLDER_TILE : NEWEST_KEY;
                do {
                    PHASE(tid)
                        if (own) load_level_keys(b, &q, h, key0, keys, level, 0, tid, lanes);
                    END
                    PHASE(tid)
                        if (own)
                            load_level_rows(b, &q, h, row0, rows, TILE_ROWS, key0, level, 1.0f, -1,
                                            tid, lanes, others);
                    END
                    PHASE(tid)
                        if (own)
                            take_class(b, &q, h, row0, key0, level, level == OLDER_TILE, 1,
                                       b.room + at.k, b.room + at.q, tid, MINE.s);
                    END
                } while (++level <= NEWEST_KEY);
            }
            if (SCAN >= 0)
                b = with_scan(b, at.size + (STICK ? STICK_ROOM : 0), row0, key0, 0, KEYS);
            PHASE_IF(tid, SCAN >= 0 && !MIXES)
                product(KEYS, b.room + at.k, b.room + at.q, WIDER(DIM), FOURS(DIM),
                        first_lane(KEYS, tid), place(KEYS, tid), MINE.s);
                store_tile(KEYS, gates_apart ? b.room + at.g : scan_at(b, SCAN_GATE, row0, key0),
                           first_lane(KEYS, tid), place(KEYS, tid), MINE.s);
            END_IF
            if (SCAN >= 0 && !MIXES)
                logits_of_keys(b, &q, kvh, row0, key0, keys, gates_apart, b.room + at.k,
                               b.room + at.q);
            PHASE_IF(tid, SCAN >= 0 && !MIXES)
                count_gates(b, &q, h, row0, rows, key0, keys, 0,
                            gates_apart ? b.room + at.g : NULL_AT, tid);
                if (gates_apart) load_across(k, 0, keys, KEYS, DIM, 1.0f, tid, b.room + at.k);
            END_IF
            PHASE(tid)
                struct term_state state[MOST_USES];
                const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
                open_terms(b, h, state);
                if (MIXES) load_pairs(b, MIX.biases, &q, h, row0, key0, r0, side, 1, MINE.ds);
                if (FORMS < 2 && SCAN < 0 && !own && !MIXES && !REFLECTS)
                    product(KEYS, b.room + at.k, b.room + at.q, WIDER(DIM), FOURS(DIM), r0, side,
                            MINE.s);
                if (STICK && !MIXES) open_stick_pairs(b, &q, h, pairs, tid, MINE.s, MINE.ds);
                for (int i = 0; !STICK && !MIXES && i < OTHERS(KEYS); i++) {
                    const int r = other_of(KEYS, side, i), row = row0 + r;
                    const float lse = b.room[at.lse + r], delta = b.room[at.delta + r];
                    struct drop_row drop = { 0, 0 };
                    if (DROPOUT) drop = drop_row_of(b, &q, h, row);
                    for (int j = 0; j < 8; j++) {
                        const int key = key0 + lane_of(KEYS, r0, j);
                        float ds = 0, dp = MINE.ds[i][j];
                        if (sees(b, &q, h, row, key)) dp = with_vectors(b, &q, h, row, key, dp);
                        if (DROPOUT) dp = dp * drop_factor(b, &q, drop, key);
                        if (sees(b, &q, h, row, key))
                            ds = pair_weight(b, state, &q, h, row, key, MINE.s[i][j], lse)
                               * (dp - delta);
                        MINE.ds[i][j] = ds;
                    }
                }
            END
            PHASE_IF(tid, STICK && !MIXES)
                if (tid < rows)
                    stick_back(b, &q, h, row0, rows, tid, key0, keys, pairs.z + tid * KEYS,
                               pairs.dp + tid * KEYS, pairs.dp + (TILE_ROWS + tid) * KEYS, 1,
                               *stick_at(b, STICK_OLDER, key0 / KEYS, &q, h, row0 + tid));
            END_IF
            PHASE_IF(tid, STICK && !MIXES)
                float weight[PAIR_OTHERS][8];
                close_stick_pairs(b, &q, h, pairs, tid, weight, MINE.ds);
            END_IF
            for (int u = USES - 1; u >= (MIXES ? MIX.first_add : 0); u--) {
                PHASE(tid)
                    struct term_state state[MOST_USES];
                    float g[PAIR_OTHERS][8];
                    const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
                    open_terms(b, h, state);
                    for (int i = 0; i < OTHERS(KEYS); i++)
                        for (int j = 0; j < 8; j++) {
                            const int row = row0 + other_of(KEYS, side, i),
                                      key = key0 + lane_of(KEYS, r0, j);
                            float ds = 0;
                            if (sees(b, &q, h, row, key))
                                ds = terms_back(b, state, &q, h, row, key, MINE.s[i][j],
                                                MINE.ds[i][j], u + 2, u + 1);
                            MINE.ds[i][j] = ds;
                            g[i][j] = USE(u).term == GPU_SLOPES && ds != 0
                                        ? ds * magnitude(distance_of(b, &q, row, key))
                                        : ds;
                        }
                    if (USE(u).by_key >= 0) store_tile(KEYS, b.room + at.g, r0, side, g);
                END
                PHASE(tid)
                    if (tid < keys && USE(u).by_key >= 0) {
                        const int gate = USE(u).term == GPU_GATE;
                        float sum = part[u * KEYS + tid];
                        if (gate && !sees_interval(b, &q))
                            sum = sum
                                + ds_of_older(b, u, &q, h, row0, rows, key0, tid, b.room + at.g);
                        else sum = sum - sum_of_key(b.room + at.g + tid);
                        if (gate && sees_interval(b, &q))
                            sum = newest_rows(b, &q, h, u, row0, rows, key0 + tid, sum);
                        part[u * KEYS + tid] = sum;
                    }
                END
            }
        }
        PHASE(tid)
            for (int u = 0; u < USES; u++)
                if (USE(u).by_key >= 0 && tid < keys) {
                    GLOBAL double *total = key_sums(b, u, &q, h) + key0 + tid;
                    *total = *total + (double)part[u * KEYS + tid];
                }
        END
    }
}

/* Folded factors that learn, after backward_rows: q has the rows before they were multiplied, and
 * dq the gradient of those that were.  A group has 64 rows of a head. */
DEV void finish_factors(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const int row0 = (tile - q.tile) * TILE_ROWS, rows = least(q.nq - row0, TILE_ROWS);
    const struct rows_at before = view_rows(b.at.q, b.p->q, q.b, h, q.q0 + row0, GPU_F32, 0),
                         dq = view_rows(b.at.dq, b.p->dq, q.b, h, q.q0 + row0, GPU_F32, 0);
    const GLOBAL float *factor = (const GLOBAL float *)(b.at.lists + b.p->q_factor)
                               + ((int64_t)q.b * b.p->heads + h) * b.p->q_len + q.q0 + row0;
    PHASE(tid)
        if (tid < rows) {
            const GLOBAL float *x =
                (const GLOBAL float *)before.at + before.first + tid * before.row;
            GLOBAL float *d = (GLOBAL float *)b.at.dq + dq.first + tid * dq.row;
            float df = 0;
            for (int n = 0; n < DIM; n++) {
                if (d[n] != 0) df = fma_(x[n], d[n], df);
                d[n] = d[n] * factor[tid];
            }
            *row_sum_at(b, b.p->factor_row_sum, 1, &q, h, row0 + tid) = df;
        }
    END
    PHASE(tid)
        if (tid == 0) {
            const struct keys_seen seen = keys_of(b, &q, row0, rows);
            const int newest =
                seen.last < seen.first ? first_chunk(b, &q, row0) : seen.last / CHUNK;
            add_factors(b, &q, part_of(b, tile, h, newest) + b.p->factor_part, h,
                        b.p->factor_row_sum, b.p->factor_rows, row0, rows);
        }
    END
}

/* From sums to gradients of the inputs, which the host has cleared: a group has a sequence and a
 * head. */
DEV GLOBAL float *input_gradient(struct block b, int i, int64_t list, int length)
{
    GLOBAL char *at = i == 0 ? b.at.din0 : i == 1 ? b.at.din1 : b.at.din2;
    return at ? (GLOBAL float *)at + list * length : (GLOBAL float *)0;
}
/* dC becomes dlog_f: minus the sum of dC over the keys before. */
DEV void store_gates(struct block b, const struct span *q, const GLOBAL double *sums,
                     GLOBAL float *to)
{
    const int seen = q->nq ? newest_key(b, q, q->nq - 1) + 1 : 0;
    double older = 0;
    for (int j = 0; j < seen; j++) {
        to[q->k0 + j] = (float)older;
        older -= sums[j];
    }
}
DEV void store_inputs(struct block b)
{
    const int h = b.x % b.p->heads;
    const struct span q = span_at(b, b.x / b.p->heads);
    const int group = b.p->heads / b.p->kv_heads;
    const int64_t list = (int64_t)q.b * b.p->heads + h;
    PHASE(tid)
        for (int u = 0; u < USES; u++) {
            const struct gpu_use use = USE(u);
            if (u == SCAN && use.gates == GATES_OF_INPUT && h % group == 0) {
                GLOBAL float *to = input_gradient(b, use.key_input, list / group, b.p->k_len * DIM);
                const GLOBAL double *sums = gate_key_sums(b, &q, h / group);
                for (int64_t i = tid; to && i < (int64_t)q.nk * DIM; i += THREADS)
                    to[(int64_t)q.k0 * DIM + i] = (float)sums[i];
            }
            if (use.by_key >= 0) {
                GLOBAL float *to = input_gradient(b, use.key_input, list, b.p->k_len);
                const GLOBAL double *sums = key_sums(b, u, &q, h);
                if (use.term == GPU_GATE && sees_interval(b, &q)) {
                    if (tid == 0) store_gates(b, &q, sums, to);
                } else {
                    for (int j = tid; j < q.nk; j += THREADS) to[q.k0 + j] = (float)sums[j];
                }
            }
            if (use.term == GPU_CHANNEL_GATES) {
                GLOBAL float *to = input_gradient(b, use.key_input, list, b.p->k_len * DIM);
                if (to) store_channel_gates(b, &q, h, tid, to + (int64_t)q.k0 * DIM);
            }
            if (use.by_row >= 0 && use.row_input >= 0) {
                GLOBAL float *to = input_gradient(b, use.row_input, list, b.p->q_len);
                for (int i = tid; i < q.nq; i += THREADS)
                    to[q.q0 + i] = (float)(0.0 - (double)*row_sum_at(b, use.by_row, 1, &q, h, i));
            }
        }
    END
}

#endif
