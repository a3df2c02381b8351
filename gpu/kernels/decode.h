/* SPDX-License-Identifier: MIT */
/* decode.h -- the forward pass of few rows, split over tiles of keys, with the bits of forward().
 *
 *     decode_scores   a group has some tiles of keys of a kv head, and lanes: rows of its heads.
 *                     Final scores, and the largest one of each tile.
 *     decode_values   the same for values.  The running maximum of a tile is the largest score of
 *                     all tiles of the chunk that are not older.  Weights, their sum, and sums of
 *                     values of each tile.
 *     decode_join     a group has a row and 32 channels.  Tiles of four chunks join side by side,
 *                     newest first, then the chunks.
 *
 * Keys and values are read once for all lanes; keys in several forms, once for each class of a
 * tile.  Those of wide heads are read slice by slice, and scores wait in shared memory.  Rows of
 * the lists are numbered as in lse; a list has numbers by key or by tile for each.
 */
#ifndef LOCI_GPU_KERNELS_DECODE_H
#define LOCI_GPU_KERNELS_DECODE_H

#include "kernels/forward.h"

#define HALF_LANES (LANES / 2)
enum { AT_ONCE = 8 }; /* loads of a thread */

/* What a group works on. */
struct decode_part {
    struct span q;
    int kvh, lane0, lanes; /* lanes lane0 .. lane0 + lanes - 1 of the kv head */
    int from, to;          /* tiles; to < from: none */
    struct keys_seen seen; /* by some row */
};
DEV struct decode_part decode_part_of(struct block b)
{
    struct decode_part d;
    const int group = b.p->heads / b.p->kv_heads, parts = b.p->lane_parts;
    const int x = b.x / parts, y = x / b.p->kv_heads;
    d.q = span_at(b, y % b.p->sequences);
    d.kvh = x % b.p->kv_heads;
    d.lane0 = b.x % parts * LANES;
    d.lanes = least(LANES, d.q.nq * group - d.lane0);
    d.seen = keys_of(b, &d.q, 0, d.q.nq);
    d.from = d.seen.first / KEYS + y / b.p->sequences * b.p->part_tiles;
    d.to = least(d.seen.last / KEYS, d.from + b.p->part_tiles - 1);
    if (d.lanes <= 0 || d.seen.last < d.seen.first) d.to = d.from - 1;
    return d;
}
DEV int lane_row(struct block b, const struct decode_part *d, int lane)
{
    return (d->lane0 + lane) / (b.p->heads / b.p->kv_heads);
}
DEV int lane_head(struct block b, const struct decode_part *d, int lane)
{
    const int group = b.p->heads / b.p->kv_heads;
    return d->kvh * group + (d->lane0 + lane) % group;
}
/* The number of a lane's row in the lists. */
DEV int64_t lane_list(struct block b, const struct decode_part *d, int lane)
{
    return ((int64_t)d->q.b * b.p->heads + lane_head(b, d, lane)) * b.p->q_len + d->q.q0
         + lane_row(b, d, lane);
}

/* Rows of a tile, as load_rows() loads them, but many on their way at the same time. */
DEV int load_tile(struct rows_at v, int i0, int n, int width, int stride, int tid, SHARED float *to)
{
    const int fours = FOURS(width) / 4, all = KEYS * fours;
    int finite = 1;
    ROLLED for (int i = tid; i < all; i += AT_ONCE * THREADS) {
        four x[AT_ONCE];
        UNROLL for (int e = 0; e < AT_ONCE; e++) {
            const int at = i + e * THREADS, row = at / fours;
            x[e] = four_of(0, 0, 0, 0);
            if (at < all && row < n) x[e] = load_four_at(v, i0 + row, at % fours * 4, width);
        }
        UNROLL for (int e = 0; e < AT_ONCE; e++) {
            const int at = i + e * THREADS;
            if (at >= all) continue;
            finite &= finite_four(x[e]);
            *(SHARED four *)(to + at / fours * stride + at % fours * 4) = x[e];
        }
    }
    return finite;
}

/* Rows from a slice of their channels on. */
DEV struct rows_at from_slice(struct rows_at v, int slice)
{
    v.first += slice * SLICE;
    return v;
}
DEV int slice_width(int width, int slice)
{
    return least(slice_of(width), width - slice * slice_of(width));
}
/* A tile that arrives at COPIES_DONE; nobody asks whether it is finite. */
DEV void fetch_tile(struct rows_at v, int i0, int n, int width, int stride, int tid,
                    SHARED float *to)
{
    if (v.wide && v.type == GPU_F32 && n == KEYS) copy_rows(v, i0, n, KEYS, width, stride, tid, to);
    else load_tile(v, i0, n, width, stride, tid, to);
}
DEV int keys_of_tile(const struct decode_part *d, int tile)
{
    return least(KEYS, d->seen.last + 1 - tile * KEYS);
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* Number d of a row of q, times the scale and its factor, as it meets keys of a tile, in the form
 * of a class. */
DEV float decode_query(struct block b, const struct span *q, int h, int row, int tile, int class_,
                       int d)
{
    if (FADES) return faded_query(b, q, h, row, tile, d, b.p->scale, b.p->q_factor);
    if (FORMS > 1) return form_of_row(b, q, h, row, class_, d, b.p->scale, b.p->q_factor);
    return query_number(b, q, h, row, d, b.p->scale, b.p->q_factor);
}
DEV void load_queries(struct block b, struct decode_room at, const struct decode_part *part,
                      int tile, int class_, int tid)
{
    for (int i = tid; i < LANES * FOURS(DIM); i += THREADS) {
        const int lane = i / FOURS(DIM), d = i % FOURS(DIM);
        b.room[at.q + i] = lane < part->lanes && d < DIM
                             ? decode_query(b, &part->q, lane_head(b, part, lane),
                                            lane_row(b, part, lane), tile, class_, d)
                             : 0.0f;
    }
}
/* Scores of the lanes first .. first + LANES / 2 - 1 with key k of the tile in shared memory: of
 * all pairs, or of those of a class.  Sums over a slice are continued in the next one. */
DEV void decode_scores_of(struct block b, struct decode_room at, const struct decode_part *part,
                          int tile, int class_, int slice, int k, int first)
{
    float c[MOST_LANES / 2];
    const int d0 = slice * SLICE, last = slice == slices_of(DIM) - 1;
    const SHARED float *x = b.room + at.x + k * WIDER(slice_of(DIM)),
                       *q = b.room + at.q + first * FOURS(DIM) + d0;
    UNROLL for (int i = 0; i < HALF_LANES; i++)
        c[i] = slice ? b.room[at.s + (first + i) * (KEYS + 1) + k] : 0.0f;
    ROLLED for (int d = 0; d < FOURS(slice_width(DIM, slice)); d += 4) {
        const four a = load_four(x + d);
        UNROLL for (int i = 0; i < HALF_LANES; i++) {
            const four y = load_four(q + i * FOURS(DIM) + d);
            c[i] = fma_(a.x, y.x, c[i]);
            c[i] = fma_(a.y, y.y, c[i]);
            c[i] = fma_(a.z, y.z, c[i]);
            c[i] = fma_(a.w, y.w, c[i]);
        }
    }
    UNROLL for (int i = 0; i < HALF_LANES; i++) {
        const int lane = first + i, key = tile * KEYS + k;
        float s = last ? -INFINITY : c[i];
        if (last && lane < part->lanes) {
            const int h = lane_head(b, part, lane), row = lane_row(b, part, lane);
            if (class_ != ALL_CLASSES && !is_of_class(b, &part->q, h, row, key, class_)) continue;
            if (key <= part->seen.last && sees(b, &part->q, h, row, key)) {
                struct term_state state[MOST_USES];
                open_terms(b, h, state);
                s = all_terms(b, state, &part->q, h, row, key, c[i], NULL_AT);
            }
            ((GLOBAL float *)
                 b.at.scores)[lane_list(b, part, lane) * b.p->key_tiles * KEYS + key] = s;
        }
        b.room[at.s + lane * (KEYS + 1) + k] = s;
    }
}
DEV void decode_scores(struct block b)
{
    const struct decode_part part = decode_part_of(b);
    const struct decode_room at = decode_room(LANES, DIM, VALUE_DIM);
    const struct rows_at keys = key_rows(b, &part.q, part.kvh);
    if (part.to < part.from) return;
    /* Whole rows of the next tile are on their way while a tile becomes scores. */
    const int slices = slices_of(DIM), ahead = FORMS < 2 && slices == 1,
              stride = WIDER(slice_of(DIM));
    PHASE(tid)
        if (ahead)
            fetch_tile(keys, part.to * KEYS, keys_of_tile(&part, part.to), DIM, stride, tid,
                       b.room + at.x);
        if (FORMS < 2) load_queries(b, at, &part, part.to, ALL_CLASSES, tid);
        COPIES_DONE
    END
    for (int tile = part.to; tile >= part.from; tile--) {
        const int n = keys_of_tile(&part, tile);
        const struct tile_classes classes = classes_of(b, &part.q, 0, part.q.nq, tile * KEYS, n);
        int class_ = classes.least;
        do {
            PHASE_IF(tid, FORMS > 1)
                load_queries(b, at, &part, tile, class_, tid);
                load_tile(keys_in_form(b, &part.q, part.kvh, class_), tile * KEYS, n, DIM, stride,
                          tid, b.room + at.x);
            END_IF
            int slice = 0;
            do {
                PHASE_IF(tid, slices > 1)
                    fetch_tile(from_slice(keys, slice), tile * KEYS, n, slice_width(DIM, slice),
                               stride, tid, b.room + at.x);
                    COPIES_DONE
                END_IF
                PHASE(tid) /* the first class fills the tile */
                    decode_scores_of(b, at, &part, tile,
                                     class_ == classes.least ? ALL_CLASSES : class_, slice,
                                     tid % KEYS, tid / KEYS * HALF_LANES);
                END
            } while (++slice < slices);
        } while (++class_ <= classes.most && FORMS > 1);
        PHASE(tid)
            const int share = THREADS / LANES, lane = tid / share;
            float m = -INFINITY;
            if (FADES && tile > part.from && ends_block(b, tile - 1, 1))
                load_queries(b, at, &part, tile - 1, ALL_CLASSES, tid);
            if (ahead && tile > part.from)
                fetch_tile(keys, (tile - 1) * KEYS, KEYS, DIM, stride, tid, b.room + at.x);
            for (int k = tid % share; k < KEYS; k += share)
                m = max_(m, b.room[at.s + lane * (KEYS + 1) + k]);
            b.room[at.m + tid] = m;
        END
        PHASE(tid)
            float m = -INFINITY;
            for (int i = 0; i < THREADS / LANES && tid < LANES; i++)
                m = max_(m, b.room[at.m + tid * (THREADS / LANES) + i]);
            if (tid < part.lanes)
                ((GLOBAL float *)b.at.tops)[lane_list(b, &part, tid) * b.p->key_tiles + tile] = m;
            COPIES_DONE
        END
    }
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* The sum of a channel of the slice over the keys of a tile, for lanes first .. first + lanes - 1.
 */
DEV void decode_sum(struct block b, struct decode_room at, const struct decode_part *part, int tile,
                    int n, int finite, int slice, int channel, int first, int lanes)
{
    float c[MOST_LANES];
    const int stride = FOURS(slice_of(VALUE_DIM));
    const SHARED float *x = b.room + at.x + channel, *p = b.room + at.s + first;
    UNROLL for (int i = 0; i < lanes; i++) c[i] = 0;
    ROLLED for (int k = 0; k < n; k++) {
        const float v = x[k * stride];
        if (lanes % 4 == 0) {
            UNROLL for (int i = 0; i < lanes; i += 4) {
                const four y = load_four(p + k * LANES + i);
                c[i] = fma_(v, y.x, c[i]);
                c[i + 1] = fma_(v, y.y, c[i + 1]);
                c[i + 2] = fma_(v, y.z, c[i + 2]);
                c[i + 3] = fma_(v, y.w, c[i + 3]);
            }
        } else {
            UNROLL for (int i = 0; i < lanes; i++) c[i] = fma_(v, p[k * LANES + i], c[i]);
        }
    }
    for (int i = 0; i < lanes; i++) {
        const int lane = first + i;
        if (lane >= part->lanes) continue;
        float sum = c[i];
        if (!finite) {
            sum = 0;
            for (int k = 0; k < n; k++)
                if (sees(b, &part->q, lane_head(b, part, lane), lane_row(b, part, lane),
                         tile * KEYS + k))
                    sum = fma_(x[k * stride], p[k * LANES + i], sum);
        }
        ((GLOBAL float *)b.at.sums)[(lane_list(b, part, lane) * b.p->key_tiles + tile) * VALUE_DIM
                                    + slice * SLICE + channel] = sum;
    }
}
DEV void decode_values(struct block b)
{
    const struct decode_part part = decode_part_of(b);
    const struct decode_room at = decode_room(LANES, DIM, VALUE_DIM);
    const struct rows_at values = value_rows(b, &part.q, part.kvh);
    const int64_t tiles = b.p->key_tiles;
    const int slices = slices_of(VALUE_DIM), stride = FOURS(slice_of(VALUE_DIM));
    if (part.to < part.from) return;
    for (int tile = part.to; tile >= part.from; tile--) {
        const int n = keys_of_tile(&part, tile),
                  whole = n == KEYS && all_visible(b, &part.q, 0, part.q.nq, tile * KEYS, n);
        const int newest = least(part.seen.last / KEYS, tile / CHUNK_TILES * CHUNK_TILES
                                                            + CHUNK_TILES - 1);
        PHASE(tid)
            const int share = THREADS / LANES, lane = tid / share;
            float m = -INFINITY;
            if (tid == 0) ((SHARED int *)b.room)[at.flag] = 1;
            if (whole && slices == 1)
                fetch_tile(values, tile * KEYS, n, VALUE_DIM, stride, tid, b.room + at.x);
            if (lane < part.lanes) {
                const GLOBAL float *top =
                    (const GLOBAL float *)b.at.tops + lane_list(b, &part, lane) * tiles;
                for (int t = tile + tid % share; t <= newest; t += share) m = max_(m, top[t]);
            }
            b.room[at.m + tid] = m;
        END
        PHASE(tid)
            float m = -INFINITY;
            if (tid < LANES) {
                for (int i = 0; i < THREADS / LANES; i++)
                    m = max_(m, b.room[at.m + tid * (THREADS / LANES) + i]);
                b.room[at.base + tid] = m == -INFINITY ? 0.0f : m;
            }
            if (!whole && slices == 1
                && !load_tile(values, tile * KEYS, n, VALUE_DIM, stride, tid, b.room + at.x))
                ((SHARED int *)b.room)[at.flag] = 0;
        END
        PHASE(tid)
            for (int i = tid; i < LANES * KEYS; i += THREADS) {
                const int lane = i / KEYS, k = i % KEYS;
                float p = 0;
                if (lane < part.lanes && k < n)
                    p = exp_(((const GLOBAL float *)b.at.scores)
                                 [(lane_list(b, &part, lane) * tiles + tile) * KEYS + k]
                             - b.room[at.base + lane]);
                b.room[at.s + k * LANES + lane] = p;
            }
            COPIES_DONE
        END
        PHASE(tid)
            if (tid < part.lanes) {
                float sum = 0;
                for (int k = 0; k < n; k++) sum = sum + b.room[at.s + k * LANES + tid];
                ((GLOBAL float *)b.at.weights)[lane_list(b, &part, tid) * tiles + tile] = sum;
            }
        END
        if (DROPOUT) {
            PHASE(tid)
                for (int i = tid; i < LANES * n; i += THREADS) {
                    const int lane = i % LANES;
                    if (lane >= part.lanes) continue;
                    const struct drop_row row = drop_row_of(b, &part.q, lane_head(b, &part, lane),
                                                            lane_row(b, &part, lane));
                    b.room[at.s + i] = b.room[at.s + i]
                                     * drop_factor(b, &part.q, row, tile * KEYS + i / LANES);
                }
            END
        }
        int slice = 0;
        do {
            const int width = slice_width(VALUE_DIM, slice);
            PHASE_IF(tid, slices > 1)
                if (tid == 0) ((SHARED int *)b.room)[at.flag] = 1;
            END_IF
            PHASE_IF(tid, slices > 1)
                const struct rows_at v = from_slice(values, slice);
                if (whole) fetch_tile(v, tile * KEYS, n, width, stride, tid, b.room + at.x);
                else if (!load_tile(v, tile * KEYS, n, width, stride, tid, b.room + at.x))
                    ((SHARED int *)b.room)[at.flag] = 0;
                COPIES_DONE
            END_IF
            PHASE(tid)
                const int finite = ((SHARED int *)b.room)[at.flag];
                if (VALUE_DIM <= THREADS / 2) {
                    const int channel = tid % (THREADS / 2);
                    if (channel < VALUE_DIM)
                        decode_sum(b, at, &part, tile, n, finite, 0, channel,
                                   tid / (THREADS / 2) * HALF_LANES, HALF_LANES);
                } else {
                    for (int channel = tid; channel < width; channel += THREADS)
                        decode_sum(b, at, &part, tile, n, finite, slice, channel, 0, LANES);
                }
            END
        } while (++slice < slices);
    }
}

/* ---- Join ------------------------------------------------------------------------------------ */

/* See overflows() of forward.h. */
DEV int decode_overflows(struct block b, const struct span *q, int h, int row)
{
    const struct keys_seen seen = keys_of(b, q, row, 1);
    const int kvh = h / (b.p->heads / b.p->kv_heads);
    for (int j = seen.first; j <= seen.last; j++) {
        if (!sees(b, q, h, row, j)) continue;
        const int class_ = FORMS > 1 ? pair_class(b, q, h, row, j) : ALL_CLASSES;
        const struct rows_at k =
            FORMS > 1 ? keys_in_form(b, q, kvh, class_) : key_rows(b, q, kvh);
        double sum = 0;
        for (int d = 0; d < DIM; d++) {
            const double x = (double)decode_query(b, q, h, row, j / KEYS, class_, d)
                           * (double)load_number(k.at, k.type, row_offset(k, j) + d);
            sum += x < 0 ? -x : x;
        }
        if (!(sum <= 3.4028234663852886e+38)) return 1;
    }
    return 0;
}
DEV void decode_join(struct block b)
{
    const int fours = (VALUE_DIM + JOIN_WIDTH - 1) / JOIN_WIDTH, x = b.x / fours,
              channel0 = b.x % fours * JOIN_WIDTH;
    const int h = x % b.p->heads, row = x / b.p->heads % b.p->q_len;
    const struct span q = span_at(b, x / b.p->heads / b.p->q_len);
    const struct join_room at = join_room();
    if (row >= q.nq) return;
    const int64_t list = ((int64_t)q.b * b.p->heads + h) * b.p->q_len + q.q0 + row;
    const struct keys_seen seen = keys_of(b, &q, 0, q.nq);
    const int none = seen.last < seen.first, oldest = none ? 0 : seen.first / CHUNK,
              newest = none ? -1 : seen.last / CHUNK;
    const GLOBAL float *tops = (const GLOBAL float *)b.at.tops + list * b.p->key_tiles,
                       *weights = (const GLOBAL float *)b.at.weights + list * b.p->key_tiles,
                       *sums_at = (const GLOBAL float *)b.at.sums
                                + list * b.p->key_tiles * VALUE_DIM;
    PHASE(tid)
        if (tid < JOIN_WIDTH) b.room[at.all_o + tid] = 0;
        if (tid == 0) {
            float m = -INFINITY, l = 0;
            if (HAS_SINK) {
                m = ((const GLOBAL float *)(b.at.tables + b.p->sink))[h];
                l = m == -INFINITY ? 0.0f : 1.0f;
            }
            b.room[at.all_m] = m;
            b.room[at.all_l] = l;
        }
    END
    for (int first = newest; first >= oldest; first -= JOIN_CHUNKS) {
        PHASE(tid)
            const int side = tid / JOIN_WIDTH, chunk = first - side, lane = tid % JOIN_WIDTH,
                      channel = least(channel0 + lane, VALUE_DIM - 1);
            float m = -INFINITY, l = 0, o = 0;
            if (chunk >= oldest) {
                const int from = most(seen.first / KEYS, chunk * CHUNK_TILES),
                          to = least(seen.last / KEYS, chunk * CHUNK_TILES + CHUNK_TILES - 1);
                ROLLED for (int tile = to; tile >= from; tile -= AT_ONCE) {
                    float top[AT_ONCE], weight[AT_ONCE], sum[AT_ONCE];
                    UNROLL for (int i = 0; i < AT_ONCE; i++) {
                        const int t = most(tile - i, from);
                        top[i] = tops[t];
                        weight[i] = weights[t];
                        sum[i] = sums_at[(int64_t)t * VALUE_DIM + channel];
                    }
                    UNROLL for (int i = 0; i < AT_ONCE; i++) {
                        if (tile - i < from) continue;
                        const float after = max_(m, top[i]),
                                    base = after == -INFINITY ? 0.0f : after,
                                    alpha = exp_(m - base);
                        l = fma_(l, alpha, weight[i]);
                        o = fma_(o, alpha, sum[i]);
                        m = after;
                    }
                }
            }
            b.room[at.o + tid] = o;
            if (lane == 0) {
                b.room[at.m + side] = m;
                b.room[at.l + side] = l;
            }
        END
        PHASE(tid)
            if (tid < JOIN_WIDTH) {
                float all_m = b.room[at.all_m], all_l = b.room[at.all_l],
                      o = b.room[at.all_o + tid];
                for (int side = 0; side < JOIN_CHUNKS && first - side >= oldest; side++) {
                    const float after = b.room[at.m + side];
                    const float m = max_(all_m, after), base = m == -INFINITY ? 0.0f : m;
                    const float a = exp_(all_m - base), c = exp_(after - base);
                    all_l = fma_(b.room[at.l + side], c, all_l * a);
                    o = fma_(b.room[at.o + side * JOIN_WIDTH + tid], c, o * a);
                    all_m = m;
                }
                b.room[at.all_o + tid] = o;
                b.room[at.next_m + tid] = all_m;
                b.room[at.next_l + tid] = all_l;
            }
        END
        PHASE(tid)
            if (tid == 0) {
                b.room[at.all_m] = b.room[at.next_m];
                b.room[at.all_l] = b.room[at.next_l];
            }
        END
    }
    PHASE(tid)
        if (tid == 0) {
            float l = b.room[at.all_l];
            if (l == 0 && decode_overflows(b, &q, h, row)) l = NAN;
            b.room[at.all_l] = l == 0 ? 0.0f : 1.0f / l;
            if (b.at.lse && channel0 == 0)
                ((GLOBAL float *)b.at.lse)[list] =
                    l == 0 ? -INFINITY : (float)((double)b.room[at.all_m] + log_((double)l));
        }
    END
    PHASE(tid)
        const struct rows_at o = view_rows(b.at.o, b.p->o, q.b, h, q.q0 + row, O_TYPE, 0);
        if (tid < JOIN_WIDTH && channel0 + tid < VALUE_DIM)
            store_number(b.at.o, O_TYPE, o.first + channel0 + tid,
                         b.room[at.all_o + tid] * b.room[at.all_l]);
    END
}

#endif
