/* SPDX-License-Identifier: MIT */
/* forward.h -- the forward pass: a group computes ROWS rows of a head.  See docs/bits.md, Forward.
 */
#ifndef LOCI_GPU_KERNELS_FORWARD_H
#define LOCI_GPU_KERNELS_FORWARD_H

#include "kernels/dropout.h"
#include "kernels/fades.h"
#include "kernels/forms.h"
#include "kernels/mix.h"
#include "kernels/stick.h"

/* Sums of values of a thread: 8 rows, fours of channels. */
struct forward_mine {
    float o[MOST_GROUPS][8][4];
    struct scan_state count; /* of the thread's row, from tile to tile */
};

/* Threads of a row in the row phase, each with a part of the keys. */
#define TEAM (THREADS / ROWS)

enum { BATCH = 8 }; /* keys whose scores a thread reads before it computes */

/* Terms and mask of the keys first .. end - 1 of row r, and the largest score, from m on. */
DEV float score_row(struct block b, struct forward_room at, const struct span *q, int h, int row0,
                    int r, int key0, int first, int end, int whole, float m)
{
    SHARED float *s = b.room + at.s + r;
    struct term_state state[MOST_USES];
    if (MIXES && MIX.stores) {
        store_row(b, s, q, h, row0, r, key0, first, end, whole);
        return m;
    }
    if (whole && (USES == 0 || (MIXES && !VALUES)) && MASK_KIND != 2) {
        int k = first;
        for (; k + BATCH <= end; k += BATCH) {
            float x[BATCH];
            UNROLL for (int i = 0; i < BATCH; i++) x[i] = s[(k + i) * ROWS];
            UNROLL for (int i = 0; i < BATCH; i++) m = max_nan(m, x[i]);
        }
        for (; k < end; k++) m = max_nan(m, s[k * ROWS]);
        return m;
    }
    open_terms(b, h, state);
    for (int k0 = first; k0 < end; k0 += 16) {
        uint32_t seen = 0;
        for (int k1 = k0; k1 < k0 + 16 && k1 < end; k1 += BATCH) {
            float x[BATCH];
            UNROLL for (int i = 0; i < BATCH; i++)
                x[i] = k1 + i < end ? s[(k1 + i) * ROWS] : -INFINITY;
            UNROLL for (int i = 0; i < BATCH; i++) {
                const int k = k1 + i;
                if (k >= end) continue;
                if (whole || sees(b, q, h, row0 + r, key0 + k)) {
                    x[i] = all_terms(b, state, q, h, row0 + r, key0 + k, x[i], NULL_AT);
                    seen |= 1u << k % 16;
                    if (VALUES && STORES_SCORES && q->run && row0 + r < q->nq)
                        store_score(b, q, h, row0 + r, key0 + k, x[i]);
                } else {
                    x[i] = -INFINITY;
                }
                m = max_nan(m, x[i]);
            }
            UNROLL for (int i = 0; i < BATCH; i++)
                if (k1 + i < end) s[(k1 + i) * ROWS] = x[i];
        }
        ((SHARED uint32_t *)b.room)[at.seen + 4 * r + k0 / 16] = seen;
    }
    return m;
}
/* Weights of these keys against the largest score, in place of the scores; returns their sum, from
 * the first key on. */
DEV float weigh_keys(SHARED float *s, int rows, int first, int end, float base)
{
    float sum = 0;
    int k = first;
    for (; k + BATCH <= end; k += BATCH) {
        float x[BATCH];
        UNROLL for (int i = 0; i < BATCH; i++) x[i] = s[(k + i) * rows];
        UNROLL for (int i = 0; i < BATCH; i++) x[i] = exp_(x[i] - base);
        UNROLL for (int i = 0; i < BATCH; i++) {
            s[(k + i) * rows] = x[i];
            sum = sum + x[i];
        }
    }
    for (; k < end; k++) {
        s[k * rows] = exp_(s[k * rows] - base);
        sum = sum + s[k * rows];
    }
    return sum;
}
DEV float sum_weights(const SHARED float *s, int rows, int keys)
{
    float sum = 0;
    int k = 0;
    for (; k + BATCH <= keys; k += BATCH) {
        float x[BATCH];
        UNROLL for (int i = 0; i < BATCH; i++) x[i] = s[(k + i) * rows];
        UNROLL for (int i = 0; i < BATCH; i++) sum = sum + x[i];
    }
    for (; k < keys; k++) sum = sum + s[k * rows];
    return sum;
}
/* The largest score of a row is known: keys of this thread get their weights.  Returns their sum.
 */
DEV float weigh_part(struct block b, struct forward_room at, int r, int part, int first, int end)
{
    float m = b.room[at.tops + r];
    for (int i = 1; i < TEAM; i++) m = max_(m, b.room[at.tops + i * ROWS + r]);
    const float base = m == -INFINITY ? 0.0f : m;
    const float sum = weigh_keys(b.room + at.s + r, ROWS, first, end, base);
    if (part == 0) {
        b.room[at.alpha + r] = exp_(b.room[at.m + r] - base);
        b.room[at.m + r] = m;
    }
    return sum;
}

/* The sums where a value is not finite: pairs that are not visible are left out. */
DEV void visible_sums(struct block b, struct forward_room at, int keys, int r0, int place,
                      float (*c)[8][4])
{
    const SHARED uint32_t *seen = (const SHARED uint32_t *)b.room + at.seen;
    for (int g = 0; g < GROUPS(ROWS, VALUE_DIM); g++)
        for (int j = 0; j < 8; j++)
            for (int i = 0; i < 4; i++) {
                const int row = lane_of(ROWS, r0, j), channel = channel_of(ROWS, place, g) + i;
                float sum = 0;
                for (int k = 0; k < keys && channel < VALUE_DIM; k++)
                    if (seen[4 * row + k / 16] >> k % 16 & 1)
                        sum = fma_(b.room[at.v + k * FOURS(VALUE_DIM) + channel],
                                   b.room[at.s + k * ROWS + row], sum);
                c[g][j][i] = sum;
            }
}
DEV void add_values(struct block b, struct forward_room at, int keys, int tid,
                    struct forward_mine *mine)
{
    float c[MOST_GROUPS][8][4];
    const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
    sums(ROWS, GROUPS(ROWS, VALUE_DIM), 0, VALUE_DIM, b.room + at.s, b.room + at.v,
         FOURS(VALUE_DIM), keys, r0, side, c);
    if (((SHARED int *)b.room)[at.flag]) visible_sums(b, at, keys, r0, side, c);
    UNROLL for (int j = 0; j < 8; j++) {
        const float alpha = b.room[at.alpha + lane_of(ROWS, r0, j)];
        UNROLL for (int g = 0; g < GROUPS(ROWS, VALUE_DIM); g++)
            UNROLL for (int i = 0; i < 4; i++)
                mine->o[g][j][i] = STATES && b.p->plain /* rounded twice */
                                     ? mine->o[g][j][i] * alpha + c[g][j][i]
                                     : fma_(mine->o[g][j][i], alpha, c[g][j][i]);
    }
}

/* Vectors of values, by their sums of weights, join the sums of all chunks. */
DEV void add_value_vectors(struct block b, struct gpu_use u, const struct span *q, int h, int row0,
                           int rows, int tid, struct forward_mine *mine)
{
    const struct row_reach a = row_reach_of(b, u, q, row0, rows);
    const GLOBAL float *v = value_vectors(b, u, h);
    const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
    if (a.to < a.from) return;
    for (int g = 0; g < GROUPS(ROWS, VALUE_DIM); g++)
        for (int j = 0; j < 8; j++)
            for (int i = 0; i < 4; i++) {
                const int r = lane_of(ROWS, r0, j), d = channel_of(ROWS, side, g) + i;
                float sum = 0;
                if (r >= rows || d >= VALUE_DIM) continue;
                const GLOBAL float *w = sums_of_row(b, u, 0, q, h, row0 + r);
                for (int n = a.first; n < a.first + a.count; n++)
                    sum = fma_(v[n * u.value_width + d], w[n], sum);
                mine->o[g][j][i] = mine->o[g][j][i] + sum;
            }
}

/* A row whose weights are all 0: is it so because its products overflowed?  docs/bits.md leaves
 * this to src/engine/overflow.c, which says why.  Slow, and seldom called. */
DEV int overflows(struct block b, struct forward_room at, const struct span *q, int h,
                  struct rows_at k, int row, int r)
{
    const struct keys_seen seen = keys_of(b, q, row, 1);
    for (int j = seen.first; j <= seen.last; j++) {
        if (!sees(b, q, h, row, j)) continue;
        double sum = 0;
        for (int d = 0; d < DIM; d++) {
            const float y =
                FADES   ? faded_query(b, q, h, row, j / KEYS, d, b.p->scale, b.p->q_factor)
                : GATED || REFLECTS
                    ? query_number(b, q, h, row, d, b.p->scale, b.p->q_factor)
                    : b.room[at.q + d * ROWS + r];
            if (FORMS > 1) {
                const int class_ = pair_class(b, q, h, row, j);
                const struct rows_at f =
                    keys_in_form(b, q, h / (b.p->heads / b.p->kv_heads), class_);
                const double z = (double)form_of_row(b, q, h, row, class_, d, b.p->scale,
                                                     b.p->q_factor)
                               * (double)load_number(f.at, f.type, row_offset(f, j) + d);
                sum += z < 0 ? -z : z;
                continue;
            }
            const double x = (double)y * (double)load_number(k.at, k.type, row_offset(k, j) + d);
            sum += x < 0 ? -x : x;
        }
        if (!(sum <= 3.4028234663852886e+38)) return 1;
    }
    return 0;
}

/* Scores of a tile: of all pairs, of those of a class, or of the rows that go a way. */
enum { ALL_CLASSES = -1, NO_WAY = -1 };
DEV void take_scores(struct block b, struct forward_room at, const struct span *q, int h, int row0,
                     int key0, int class_, int way, int tid)
{
    float c[MOST_OTHERS][8];
    const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
    product(ROWS, b.room + at.q, b.room + at.k, WIDER(DIM), FOURS(DIM), r0, side, c);
    for (int i = 0; i < OTHERS(ROWS) * 8; i++) {
        const int k = other_of(ROWS, side, i / 8), r = lane_of(ROWS, r0, i % 8);
        if (way != NO_WAY ? way_of(b, q, h, row0 + r, key0 / KEYS) == way
                          : class_ == ALL_CLASSES
                                || is_of_class(b, q, h, row0 + r, key0 + k, class_))
            b.room[at.s + k * ROWS + r] = c[i / 8][i % 8];
    }
}
/* Rows that own the tile, if `own`: kernels/channel_gates.h.  Every thread passes every barrier,
 * and loops run at least once: see PHASE_IF(). */
DEV void score_levels(struct block b, struct forward_room at, const struct span *q, int h, int row0,
                      int rows, int key0, int n, float scale, int own)
{
    const struct grid lanes = grid_of(b.room + at.q, 1, ROWS),
                      others = grid_of(b.room + at.k, WIDER(DIM), 1);
    int level = own ? FIRST_LEVEL : NEWEST_KEY;
    do {
        PHASE(tid)
            if (own) load_level_keys(b, q, h, key0, n, level, 0, tid, others);
        END
        PHASE(tid)
            if (own)
                load_level_rows(b, q, h, row0, rows, ROWS, key0, level, scale, b.p->q_factor, tid,
                                others, lanes);
        END
        PHASE(tid)
            if (own) take_scores(b, at, q, h, row0, key0, level, NO_WAY, tid);
        END
    } while (++level <= NEWEST_KEY);
}
/* Rows that keys reflect go these `ways`, and on to the next older tile: kernels/reflections.h.
 * Loops run at least once here, too. */
DEV void score_reflected(struct block b, struct forward_room at, const struct span *q, int h,
                         int kvh, int row0, int rows, int key0, int n, int ways)
{
    const struct walk_room walk = walk_room_of(b, at.size);
    const int tile = key0 / KEYS;
    SHARED float *u = b.room + at.q, *s = b.room + at.s;
    int way = next_way(ways, REFLECT_OWN);
    do {
        const int go = way < WAYS;
        PHASE(tid)
            if (go)
                load_rows(carried_keys(b, q, kvh, way - REFLECT_NODE), key0, n, KEYS, DIM,
                          WIDER(DIM), tid, b.room + at.k);
        END
        PHASE(tid)
            if (go) take_scores(b, at, q, h, row0, key0, ALL_CLASSES, way, tid);
        END
        way = next_way(ways, way);
    } while (way < WAYS);
    meet_own_tile(b, q, h, kvh, row0, rows, key0, n, ways >> REFLECT_OWN & 1, 0, walk, u, s);
    step_over_nodes(b, q, h, kvh, row0, tile, nodes_begun(ways, tile), walk, u, b.room + at.k);
}

DEV void forward(struct block b)
{
    PRIVATE(struct forward_mine);
    /* the rows that see most keys come first, and heads that share keys side by side */
    const int tile = b.p->tiles - 1 - b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const struct forward_room at = forward_room(ROWS, DIM, VALUE_DIM, ROOMY);
    const int row0 = (tile - q.tile) * ROWS, rows = least(q.nq - row0, ROWS);
    const int kvh = h / (b.p->heads / b.p->kv_heads);
    const struct rows_at
        queries = view_rows(b.at.q, b.p->q, q.b, h, q.q0 + row0, Q_TYPE, b.p->wide),
        keys = GATED ? staged_keys(b, &q, h) : key_rows(b, &q, kvh),
        values = value_rows(b, &q, kvh),
        outputs = view_rows(b.at.o, b.p->o, q.b, h, q.q0 + row0, O_TYPE, 0);
    /* sums of all chunks so far, where there is more than one: reals, [B][H][q_len][VALUE_DIM] */
    const int64_t list = ((int64_t)q.b * b.p->heads + h) * b.p->q_len + q.q0 + row0;
    GLOBAL float *total = (GLOBAL float *)b.at.sums;
    if (total) total += list * VALUE_DIM;
    const struct keys_seen seen = keys_of(b, &q, row0, rows);
    const int oldest = seen.last < seen.first ? 1 : seen.first / CHUNK,
              newest = seen.last < seen.first ? 0 : seen.last / CHUNK;
    /* before a backward pass, whose rows are scaled already: what rows carry, without values */
    const int keep = (STICK || SCAN >= 0 || MIXES) && !b.at.o;
    const float scale = keep ? 1.0f : b.p->scale;
    int ended = 0; /* sba: all rows have */
    /* of heads that mix, the first pass makes scores, and the second one takes them */
    const int stores = MIXES && MIX.stores, mixed = MIXES && !stores,
              breaks = STICK && !stores;

    PHASE(tid)
        load_across(queries, 0, rows, ROWS, DIM, scale, tid, b.room + at.q);
        if (VALUES && !keep) open_values(b, &q, h, row0, rows, tid);
        if (SCAN >= 0) {
            MINE.count.whole = 0;
            MINE.count.fraction = 0;
        }
        if (STICK && tid < ROWS) {
            whole_sticks(b, at)[tid] = chunk_sticks(b, at)[tid] = 1;
            if (tid % TILE_ROWS == 0) ended_rows(b, at)[tid / TILE_ROWS] = 0;
        }
        if (tid < ROWS) {
            float m = -INFINITY, l = 0;
            if (HAS_SINK) {
                m = ((const GLOBAL float *)(b.at.tables + b.p->sink))[h];
                l = m == -INFINITY ? 0.0f : 1.0f;
            }
            b.room[at.all_m + tid] = m;
            b.room[at.all_l + tid] = l;
        }
    END
    PHASE(tid)
        const GLOBAL float *factor = (const GLOBAL float *)(b.at.lists + b.p->q_factor) + list;
        for (int i = tid; b.p->q_factor >= 0 && i < DIM * ROWS; i += THREADS)
            if (i % ROWS < rows) b.room[at.q + i] = b.room[at.q + i] * factor[i % ROWS];
    END
    PHASE_IF(tid, REFLECTS)
        for (int r = tid; r < ROWS; r += THREADS)
            open_floor(b, walk_room_of(b, at.size), b.room + at.q, r);
    END_IF
    for (int chunk = newest; chunk >= oldest; chunk--) {
        const int from = most(seen.first / KEYS, chunk * (CHUNK / KEYS)),
                  to = least(seen.last / KEYS, chunk * (CHUNK / KEYS) + CHUNK / KEYS - 1);
        PHASE(tid)
            UNROLL for (int g = 0; g < GROUPS(ROWS, VALUE_DIM); g++)
                UNROLL for (int j = 0; j < 8; j++)
                    UNROLL for (int i = 0; i < 4; i++) MINE.o[g][j][i] = 0;
            if (tid < ROWS && !STICK) {
                b.room[at.m + tid] = -INFINITY;
                b.room[at.l + tid] = 0;
            }
            if (STICK && tid < ROWS) {
                SHARED double *all = whole_sticks(b, at) + tid, *left = chunk_sticks(b, at) + tid;
                *all = *all * *left;
                *left = 1;
                b.room[at.alpha + tid] = 1;
                if (keep && breaks && tid < rows)
                    *stick_at(b, STICK_REST, chunk, &q, h, row0 + tid) = stick_rest(*all);
            }
        END
        for (int j = to; j >= from && !ended; j--) {
            const int key0 = j * KEYS, n = least(seen.last + 1 - key0, KEYS);
            const int whole = rows == ROWS && all_visible(b, &q, row0, rows, key0, n);
            const int plain = whole && !STICK; /* nobody asks whether values are finite */
            PHASE_IF(tid, FADES && !mixed && (j == to || ends_block(b, j, 1)))
                fade_lanes(b, &q, h, row0, rows, j, ROWS, scale, b.p->q_factor, tid,
                           b.room + at.q);
            END_IF
            PHASE_IF(tid, GATED && !mixed)
                load_moved_rows(b, &q, h, queries, row0, rows, ROWS, j, scale, b.p->q_factor,
                                j < to, tid, b.room + at.size, grid_of(b.room + at.q, 1, ROWS));
            END_IF
            const struct tile_classes classes = classes_of(b, &q, row0, rows, key0, n);
            int form = mixed ? classes.most : classes.least;
            if (MAYBE(FORMS > 1)) do {
                PHASE(tid)
                    if (FORMS > 1 && !mixed) {
                        load_row_form(b, &q, h, row0, rows, ROWS, form, 1, ROWS, scale,
                                      b.p->q_factor, tid, b.room + at.q);
                        load_key_form(b, &q, kvh, key0, n, form, 0, tid, b.room + at.k);
                    }
                END
                PHASE(tid)
                    if (FORMS > 1 && !mixed)
                        take_scores(b, at, &q, h, row0, key0,
                                    form == classes.least ? ALL_CLASSES : form, NO_WAY, tid);
                END
            } while (++form <= classes.most && FORMS > 1);
            PHASE_IF(tid, at.v == at.k || j == to)
                copy_rows(keys, key0, n, KEYS, DIM, WIDER(DIM), tid, b.room + at.k);
                COPIES_DONE
            END_IF
            if (SCAN >= 0) b = with_scan(b, at.size, row0, key0, 1, ROWS);
            PHASE(tid)
                float c[MOST_OTHERS][8];
                const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
                if (tid == 0) ((SHARED int *)b.room)[at.flag] = 0;
                if (breaks && keep && tid < rows)
                    *stick_at(b, STICK_BEGUN, j, &q, h, row0 + tid) = begun_stick(b, at, tid);
                if (plain && at.v != at.k)
                    copy_rows(values, key0, n, KEYS, VALUE_DIM, FOURS(VALUE_DIM), tid,
                              b.room + at.v);
                if (mixed) load_mixed(b, &q, h, row0, key0, n, tid, b.room + at.s);
                if (FORMS < 2 && !REFLECTS && !mixed) {
                    product(ROWS, b.room + at.q, b.room + at.k, WIDER(DIM), FOURS(DIM), r0, side,
                            c);
                    store_tile(ROWS, b.room + at.s, r0, side, c);
                    if (SCAN >= 0)
                        store_tile(ROWS, scan_at(b, SCAN_GATE, row0, key0), r0, side, c);
                }
            END
            if (REFLECTS)
                score_reflected(b, at, &q, h, kvh, row0, rows, key0, n,
                                mixed ? 0 : ways_of(b, &q, h, row0, rows, j));
            if (GATED)
                score_levels(b, at, &q, h, row0, rows, key0, n, scale,
                             !mixed && owns_tile(b, &q, h, row0, rows, j));
            const int apart = SCAN >= 0 && !mixed && USE(most(SCAN, 0)).gates != GATES_OF_KEYS;
            PHASE_IF(tid, SCAN >= 0)
                if (apart)
                    load_rows(gate_rows(b, &q, kvh), key0, n, KEYS, DIM, WIDER(DIM), tid,
                              b.room + at.k);
            END_IF
            PHASE_IF(tid, SCAN >= 0)
                float c[MOST_OTHERS][8];
                const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
                if (apart) {
                    product(ROWS, b.room + at.q, b.room + at.k, WIDER(DIM), FOURS(DIM), r0, side,
                            c);
                    store_tile(ROWS, scan_at(b, SCAN_GATE, row0, key0), r0, side, c);
                }
            END_IF
            PHASE_IF(tid, SCAN >= 0 && !mixed)
                /* a loop, see PHASE_IF() */
                for (int r = tid; r < rows; r += THREADS) {
                    if (keep) {
                        *carry_at(b, SCAN_AT, j, &q, h, row0 + r) = (float)MINE.count.whole;
                        *carry_at(b, SCAN_REST, j, &q, h, row0 + r) = MINE.count.fraction;
                    }
                    MINE.count = scan_row(b, &q, h, row0 + r, key0, n, whole,
                                          apart ? b.room + at.s + r : NULL_AT, ROWS, MINE.count);
                }
            END_IF
            PHASE(tid)
                const int r = tid % ROWS, part = tid / ROWS;
                const int first = part * (KEYS / TEAM), end = least(n, first + KEYS / TEAM);
                if (plain && at.v == at.k)
                    copy_rows(values, key0, n, KEYS, VALUE_DIM, FOURS(VALUE_DIM), tid,
                              b.room + at.v);
                if (!plain
                    && !load_rows(values, key0, n, KEYS, VALUE_DIM, FOURS(VALUE_DIM), tid,
                                  b.room + at.v))
                    ((SHARED int *)b.room)[at.flag] = 1;
                const float top = score_row(b, at, &q, h, row0, r, key0, first, end, whole,
                                            part || STICK ? -INFINITY : b.room[at.m + r]);
                if (!STICK) b.room[at.tops + part * ROWS + r] = top;
                if (VALUES && STORES_SCORES && TEAM == 1 && !q.run && !stores && r < rows)
                    join_scores(b, b.room + at.s + r, ROWS, &q, h, row0 + r, key0, n);
                if (TEAM == 1 && !STICK && !stores) {
                    const float sum = weigh_part(b, at, r, 0, 0, n);
                    b.room[at.l + r] = fma_(b.room[at.l + r], b.room[at.alpha + r], sum);
                }
                COPIES_DONE
            END
            PHASE_IF(tid, breaks)
                /* a loop, see PHASE_IF() */
                for (int r = tid; r < ROWS; r += THREADS) weigh_stick(b, at, r, n, whole);
            END_IF
            PHASE_IF(tid, VALUES && STORES_SCORES && TEAM > 1 && !stores)
                if (!q.run && tid < rows)
                    join_scores(b, b.room + at.s + tid, ROWS, &q, h, row0 + tid, key0, n);
            END_IF
            PHASE_IF(tid, TEAM > 1 && !STICK && !stores)
                const int part = tid / ROWS, first = part * (KEYS / TEAM);
                weigh_part(b, at, tid % ROWS, part, first, least(n, first + KEYS / TEAM));
            END_IF
            /* sums are those before any weights are dropped */
            PHASE_IF(tid, DROPOUT && TEAM > 1 && !STICK)
                if (tid < ROWS)
                    b.room[at.l + tid] = fma_(b.room[at.l + tid], b.room[at.alpha + tid],
                                              sum_weights(b.room + at.s + tid, ROWS, n));
            END_IF
            PHASE_IF(tid, DROPOUT)
                drop_weights(b, &q, h, row0, key0, n, ROWS, tid, b.room + at.s);
            END_IF
            PHASE(tid)
                if (at.v != at.k && j > from)
                    copy_rows(keys, key0 - KEYS, KEYS, KEYS, DIM, WIDER(DIM), tid, b.room + at.k);
                if (breaks && tid < rows && tid % TILE_ROWS == 0) ask_ended(b, at, rows, tid);
                if (TEAM > 1 && !DROPOUT && !STICK && tid < ROWS)
                    b.room[at.l + tid] = fma_(b.room[at.l + tid], b.room[at.alpha + tid],
                                              sum_weights(b.room + at.s + tid, ROWS, n));
                if (VALUES && !stores && tid < rows)
                    add_end_weights(b, b.room + at.s + tid, ROWS, &q, h, row0 + tid, key0, n,
                                    b.room[at.alpha + tid]);
                if (VALUES && !STORES_SCORES && !stores && !keep && tid < rows)
                    store_weights(b, b.room + at.s + tid, ROWS, &q, h, row0 + tid, key0, n,
                                  b.room[at.alpha + tid]);
                if (!keep && !stores) add_values(b, at, n, tid, &MINE);
                COPIES_DONE
            END
            if (breaks) ended = all_ended(b, at, rows);
        }
        PHASE(tid)
            if (STICK && tid < ROWS) {
                b.room[at.a + tid] = 1;
                b.room[at.c + tid] = stick_rest(whole_sticks(b, at)[tid]);
            }
            if (VALUES && STICK && !stores && tid < rows) {
                const float c = b.room[at.c + tid];
                join_end_weights(b, &q, h, row0 + tid, 1, c);
                if (!keep) join_weights(b, &q, h, row0 + tid, 1, c);
            }
            if (!STICK && tid < ROWS) {
                const float before = b.room[at.all_m + tid], after = b.room[at.m + tid];
                const float m = max_(before, after), base = m == -INFINITY ? 0.0f : m;
                const float a = exp_(before - base), c = exp_(after - base);
                b.room[at.all_m + tid] = m;
                b.room[at.a + tid] = a;
                b.room[at.c + tid] = c;
                if (VALUES && tid < rows) join_end_weights(b, &q, h, row0 + tid, a, c);
                if (VALUES && !STORES_SCORES && !keep && tid < rows)
                    join_weights(b, &q, h, row0 + tid, a, c);
                b.room[at.all_l + tid] =
                    fma_(b.room[at.l + tid], c, b.room[at.all_l + tid] * a);
            }
        END
        PHASE(tid)
            const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
            int64_t width = VALUE_DIM;
            HERE(width);
            UNROLL for (int g = 0; !keep && g < GROUPS(ROWS, VALUE_DIM); g++)
                UNROLL for (int j = 0; j < 8; j++)
                    UNROLL for (int i = 0; i < 4; i++) {
                        const int r = lane_of(ROWS, r0, j), n = channel_of(ROWS, side, g) + i;
                        const int here = r < rows && n < VALUE_DIM;
                        float all = chunk < newest && here ? total[r * width + n] : 0;
                        all = fma_(MINE.o[g][j][i], b.room[at.c + r], all * b.room[at.a + r]);
                        MINE.o[g][j][i] = all;
                        if (chunk > oldest && here) total[r * width + n] = all;
                    }
        END
    }
    if (stores) return;
    PHASE_IF(tid, VALUES)
        const int r = tid % ROWS;
        const float m = b.room[at.all_m + r];
        for (int u = 0; u < USES; u++)
            if (HAS_VALUES(u) && r < rows)
                gather_row(b, USE(u), row_reach_of(b, USE(u), &q, row0, rows), 0, &q, h, row0 + r,
                           tid / ROWS, TEAM, USE(u).by_row,
                           row_by_distance(b, b.p->ds_by_distance, &q, h, row0 + r), STORES_SCORES,
                           m == -INFINITY ? 0.0f : m);
    END_IF
    PHASE_IF(tid, VALUES)
        for (int u = 0; u < USES; u++)
            if (HAS_VALUES(u) && newest >= oldest)
                add_value_vectors(b, USE(u), &q, h, row0, rows, tid, &MINE);
    END_IF
    PHASE(tid)
        if (STICK && tid < rows) {
            const float left =
                stick_rest(whole_sticks(b, at)[tid] * chunk_sticks(b, at)[tid]);
            b.room[at.a + tid] = 1;
            b.room[at.c + tid] = left;
            if (b.at.lse && !keep) ((GLOBAL float *)b.at.lse)[list + tid] = left; /* rem */
        }
        if (!STICK && tid < rows) {
            float l = b.room[at.all_l + tid];
            if (l == 0 && overflows(b, at, &q, h, key_rows(b, &q, kvh), row0 + tid, tid)) l = NAN;
            b.room[at.a + tid] = l == 0 ? 0.0f : 1.0f / l;
            if (b.at.lse && !keep)
                ((GLOBAL float *)b.at.lse)[list + tid] =
                    l == 0 ? -INFINITY
                           : (float)((double)b.room[at.all_m + tid] + log_((double)l));
        }
    END
    PHASE_IF(tid, STICK)
        const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
        UNROLL for (int g = 0; !keep && g < GROUPS(ROWS, VALUE_DIM); g++)
            UNROLL for (int j = 0; j < 8; j++) {
                const int r = lane_of(ROWS, r0, j), n = channel_of(ROWS, side, g);
                const int64_t heir = r < rows ? heir_of(b, q.b, q.q0 + row0 + r) : -1;
                UNROLL for (int i = 0; i < 4; i++) {
                    if (newest < oldest) MINE.o[g][j][i] = 0;
                    if (heir >= 0 && n + i < VALUE_DIM)
                        MINE.o[g][j][i] =
                            fma_(b.room[at.c + r],
                                 heir_number(b, values, h, (int)(heir - q.k0), n + i),
                                 MINE.o[g][j][i]);
                }
            }
    END_IF
    PHASE(tid)
        const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
        UNROLL for (int g = 0; !keep && g < GROUPS(ROWS, VALUE_DIM); g++)
            UNROLL for (int j = 0; j < 8; j++) {
                const int r = lane_of(ROWS, r0, j), n = channel_of(ROWS, side, g);
                const float inverse = b.room[at.a + r];
                for (int i = 0; i < 4; i++)
                    if (r < rows && n + i < VALUE_DIM)
                        store_number(b.at.o, O_TYPE,
                                     outputs.first + (int64_t)r * outputs.row + n + i,
                                     (newest < oldest && !STICK ? 0.0f : MINE.o[g][j][i])
                                         * inverse);
            }
    END
}

#endif
