/* SPDX-License-Identifier: MIT */
/* forward.h -- the forward pass: a group computes ROWS rows of a head.  See docs/bits.md, Forward. */
#ifndef LOCI_KERNELS_FORWARD_H
#define LOCI_KERNELS_FORWARD_H

#include "kernels/terms.h"

/* Sums of values of a thread: 8 rows, fours of channels. */
struct forward_mine {
    float o[MOST_GROUPS][8][4];
};

/* The row phase: terms, mask, weights, and sums of row r of the tile. */
DEV void weigh_row(struct block b, struct forward_room at, const struct span *q, int h, int row0,
                   int r, int key0, int keys, int whole)
{
    SHARED float *s = b.room + at.s + r;
    struct term_state state[MOST_USES];
    uint32_t seen[2] = { 0, 0 };
    float m = b.room[at.m + r];
    const float old = m;
    open_terms(b, h, state);
    for (int k = 0; k < keys; k++) {
        const int visible = whole || sees(b, q, h, row0 + r, key0 + k);
        float x = -INFINITY;
        if (visible) x = all_terms(b, state, q, h, row0 + r, key0 + k, s[k * ROWS], NULL_AT);
        if (visible) seen[k / 32] |= 1u << k % 32;
        s[k * ROWS] = x;
        m = m > x ? m : x;
    }
    const float base = m == -INFINITY ? 0.0f : m, alpha = exp_(old - base);
    float sum = 0;
    for (int k = 0; k < keys; k++) {
        const float p = exp_(s[k * ROWS] - base);
        s[k * ROWS] = p;
        sum = sum + p;
    }
    b.room[at.m + r] = m;
    b.room[at.alpha + r] = alpha;
    b.room[at.l + r] = fma_(b.room[at.l + r], alpha, sum);
    ((SHARED uint32_t *)b.room)[at.seen + 2 * r] = seen[0];
    ((SHARED uint32_t *)b.room)[at.seen + 2 * r + 1] = seen[1];
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
                    if (seen[2 * row + k / 32] >> k % 32 & 1)
                        sum = fma_(b.room[at.x + k * FOURS(VALUE_DIM) + channel],
                                   b.room[at.s + k * ROWS + row], sum);
                c[g][j][i] = sum;
            }
}
DEV void add_values(struct block b, struct forward_room at, int keys, int tid,
                    struct forward_mine *mine)
{
    float c[MOST_GROUPS][8][4];
    const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
    sums(ROWS, GROUPS(ROWS, VALUE_DIM), 0, VALUE_DIM, b.room + at.s, b.room + at.x,
         FOURS(VALUE_DIM), keys, r0, side, c);
    if (((SHARED int *)b.room)[at.flag]) visible_sums(b, at, keys, r0, side, c);
    UNROLL for (int j = 0; j < 8; j++) {
        const float alpha = b.room[at.alpha + lane_of(ROWS, r0, j)];
        UNROLL for (int g = 0; g < GROUPS(ROWS, VALUE_DIM); g++)
            UNROLL for (int i = 0; i < 4; i++)
                mine->o[g][j][i] = fma_(mine->o[g][j][i], alpha, c[g][j][i]);
    }
}

/* A row whose weights are all 0: is it so because its products overflowed?  docs/bits.md leaves this
 * to src/engine/overflow.c, which says why.  Slow, and seldom called. */
DEV int overflows(struct block b, struct forward_room at, const struct span *q, int h,
                  struct rows_at k, int row, int r)
{
    const struct keys_seen seen = keys_of(b, q, row, 1);
    for (int j = seen.first; j <= seen.last; j++) {
        if (!sees(b, q, h, row, j)) continue;
        double sum = 0;
        for (int d = 0; d < DIM; d++) {
            const double x = (double)b.room[at.q + d * ROWS + r]
                           * (double)load_number(k.at, k.type, k.first + j * k.row + d);
            sum += x < 0 ? -x : x;
        }
        if (!(sum <= 3.4028234663852886e+38)) return 1;
    }
    return 0;
}

DEV void forward(struct block b)
{
    PRIVATE(struct forward_mine);
    /* the rows that see most keys come first, and heads that share keys side by side */
    const int tile = b.p->tiles - 1 - b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const struct forward_room at = forward_room(ROWS, DIM, VALUE_DIM);
    const int row0 = (tile - q.tile) * ROWS, rows = least(q.nq - row0, ROWS);
    const int kvh = h / (b.p->heads / b.p->kv_heads), kh = h / (b.p->heads / b.p->key_heads);
    const struct rows_at
        queries = view_rows(b.at.q, b.p->q, q.b, h, q.q0 + row0, Q_TYPE, b.p->wide),
        keys = view_rows(b.at.k, b.p->k, q.b, kh, q.k0, K_TYPE, b.p->wide),
        values = view_rows(b.at.v, b.p->v, q.b, kvh, q.k0, V_TYPE, b.p->wide),
        outputs = view_rows(b.at.o, b.p->o, q.b, h, q.q0 + row0, O_TYPE, 0);
    /* sums of all chunks so far, where there is more than one: reals, [B][H][q_len][VALUE_DIM] */
    GLOBAL float *total = (GLOBAL float *)b.at.sums
                        + (((int64_t)q.b * b.p->heads + h) * b.p->q_len + q.q0 + row0) * VALUE_DIM;
    const int64_t list = ((int64_t)q.b * b.p->heads + h) * b.p->q_len + q.q0 + row0;
    const struct keys_seen seen = keys_of(b, &q, row0, rows);
    const int oldest = seen.last < seen.first ? 1 : seen.first / CHUNK,
              newest = seen.last < seen.first ? 0 : seen.last / CHUNK;

    PHASE(tid)
        load_across(queries, 0, rows, ROWS, DIM, b.p->scale, tid, b.room + at.q);
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
    if (b.p->q_factor >= 0) {
        const GLOBAL float *factor = (const GLOBAL float *)(b.at.lists + b.p->q_factor) + list;
        PHASE(tid)
            for (int i = tid; i < DIM * ROWS; i += THREADS)
                if (i % ROWS < rows) b.room[at.q + i] = b.room[at.q + i] * factor[i % ROWS];
        END
    }
    for (int chunk = newest; chunk >= oldest; chunk--) {
        const int from = most(seen.first / KEYS, chunk * (CHUNK / KEYS)),
                  to = least(seen.last / KEYS, chunk * (CHUNK / KEYS) + CHUNK / KEYS - 1);
        PHASE(tid)
            UNROLL for (int g = 0; g < GROUPS(ROWS, VALUE_DIM); g++)
                UNROLL for (int j = 0; j < 8; j++)
                    UNROLL for (int i = 0; i < 4; i++) MINE.o[g][j][i] = 0;
            if (tid < ROWS) {
                b.room[at.m + tid] = -INFINITY;
                b.room[at.l + tid] = 0;
            }
        END
        for (int j = to; j >= from; j--) {
            const int key0 = j * KEYS, n = least(seen.last + 1 - key0, KEYS);
            const int whole = rows == ROWS && all_visible(b, &q, row0, rows, key0, n);
            PHASE(tid)
                load_rows(keys, key0, n, KEYS, DIM, WIDER(DIM), tid, b.room + at.x);
                if (tid == 0) ((SHARED int *)b.room)[at.flag] = 0;
            END
            PHASE(tid)
                float c[MOST_OTHERS][8];
                const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
                product(ROWS, b.room + at.q, b.room + at.x, WIDER(DIM), FOURS(DIM), r0, side, c);
                store_tile(ROWS, b.room + at.s, r0, side, c);
            END
            PHASE(tid)
                if (!load_rows(values, key0, n, KEYS, VALUE_DIM, FOURS(VALUE_DIM), tid,
                               b.room + at.x))
                    ((SHARED int *)b.room)[at.flag] = !whole;
                if (tid < ROWS) weigh_row(b, at, &q, h, row0, tid, key0, n, whole);
            END
            PHASE(tid)
                add_values(b, at, n, tid, &MINE);
            END
        }
        PHASE(tid)
            if (tid < ROWS) {
                const float before = b.room[at.all_m + tid], after = b.room[at.m + tid];
                const float m = max_(before, after), base = m == -INFINITY ? 0.0f : m;
                const float a = exp_(before - base), c = exp_(after - base);
                b.room[at.all_m + tid] = m;
                b.room[at.a + tid] = a;
                b.room[at.c + tid] = c;
                b.room[at.all_l + tid] =
                    fma_(b.room[at.l + tid], c, b.room[at.all_l + tid] * a);
            }
        END
        PHASE(tid)
            const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
            UNROLL for (int g = 0; g < GROUPS(ROWS, VALUE_DIM); g++)
                UNROLL for (int j = 0; j < 8; j++)
                    UNROLL for (int i = 0; i < 4; i++) {
                        const int r = lane_of(ROWS, r0, j), n = channel_of(ROWS, side, g) + i;
                        const int here = r < rows && n < VALUE_DIM;
                        float all = chunk < newest && here ? total[(int64_t)r * VALUE_DIM + n] : 0;
                        all = fma_(MINE.o[g][j][i], b.room[at.c + r], all * b.room[at.a + r]);
                        MINE.o[g][j][i] = all;
                        if (chunk > oldest && here) total[(int64_t)r * VALUE_DIM + n] = all;
                    }
        END
    }
    PHASE(tid)
        if (tid < rows) {
            float l = b.room[at.all_l + tid];
            if (l == 0 && overflows(b, at, &q, h, keys, row0 + tid, tid)) l = NAN;
            b.room[at.a + tid] = l == 0 ? 0.0f : 1.0f / l;
            if (b.at.lse)
                ((GLOBAL float *)b.at.lse)[list + tid] =
                    l == 0 ? -INFINITY
                           : (float)((double)b.room[at.all_m + tid] + log_((double)l));
        }
    END
    PHASE(tid)
        const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
        UNROLL for (int g = 0; g < GROUPS(ROWS, VALUE_DIM); g++)
            UNROLL for (int j = 0; j < 8; j++) {
                const int r = lane_of(ROWS, r0, j), n = channel_of(ROWS, side, g);
                const float inverse = b.room[at.a + r];
                for (int i = 0; i < 4; i++)
                    if (r < rows && n + i < VALUE_DIM)
                        store_number(b.at.o, O_TYPE, outputs.first + (int64_t)r * outputs.row + n + i,
                                     (newest < oldest ? 0.0f : MINE.o[g][j][i]) * inverse);
            }
    END
}

#endif
