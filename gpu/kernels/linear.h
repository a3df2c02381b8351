/* SPDX-License-Identifier: MIT */
/* linear.h -- linear attention: a row sees the keys of its own tile pair by pair, and all earlier
 * keys as one sum.  src/engine/linear.c has the formulas, and sums in the same order.
 *
 * Features of rows and keys are computed first, and rotated by rotate_rows().  Then sums of tiles,
 * which one thread for each number adds from tile to tile, and with them each tile of rows by
 * itself.  Backward likewise: gradients of rows, then sums over the rows behind each tile, then
 * gradients of keys. */
#ifndef LOCI_GPU_KERNELS_LINEAR_H
#define LOCI_GPU_KERNELS_LINEAR_H

#include "kernels/frequencies.h"

#define LINEAR (*(const GLOBAL struct gpu_linear *)(b.at.lists + b.p->linear))

DEV struct gpu_key_tile key_tile_of(struct block b, struct gpu_linear l, int i)
{
    return ((const GLOBAL struct gpu_key_tile *)(b.at.lists + l.key_tiles))[i];
}
DEV struct gpu_row_tile row_tile_of(struct block b, struct gpu_linear l, int i)
{
    return ((const GLOBAL struct gpu_row_tile *)(b.at.lists + l.row_tiles))[i];
}
/* How many keys of its tile each row of the tile sees. */
DEV const GLOBAL int32_t *seen_of(struct block b, struct gpu_linear l, struct gpu_row_tile t)
{
    return (const GLOBAL int32_t *)(b.at.lists + l.seen) + (int64_t)t.b * b.p->q_len + t.row;
}
/* Rows of queries, and of keys, of `width` numbers. */
DEV GLOBAL float *query_floats(struct block b, int64_t at, int entry, int h, int row, int width)
{
    return (GLOBAL float *)(b.at.apart + at)
         + (((int64_t)entry * b.p->heads + h) * b.p->q_len + row) * width;
}
DEV GLOBAL float *key_floats(struct block b, struct gpu_linear l, int64_t at, int entry, int kvh,
                             int key, int width)
{
    return (GLOBAL float *)(b.at.apart + at)
         + (((int64_t)entry * b.p->kv_heads + kvh) * l.key_rows + key) * width;
}
/* S [dim][value_lanes], then z [lanes]; 0: all of them are 0. */
DEV GLOBAL float *tile_sums(struct block b, struct gpu_linear l, int at, int kvh)
{
    if (at < 0) return 0;
    return (GLOBAL float *)(b.at.apart + l.sums)
         + ((int64_t)at * b.p->kv_heads + kvh) * l.sum_floats;
}
DEV float sum_at(const GLOBAL float *sums, int64_t i) { return sums ? sums[i] : 0.0f; }

/* f(x) = elu(x) + 1, and f'(x) from f(x). */
DEV float feature(float x) { return x > 0 ? x + 1 : exp_(x); }
DEV float slope(float f) { return f < 1 ? f : 1.0f; }

/* Sums over channels are 16 chains, over as many channels as the CPU pads rows to, folded by
 * halves. */
DEV float fold_chains(float *chain)
{
    for (int half_of = CHAINS / 2; half_of; half_of /= 2)
        for (int i = 0; i < half_of; i++) chain[i] = chain[i] + chain[i + half_of];
    return chain[0];
}

/* ---- Features, and states -------------------------------------------------------------------- */

/* From q to o: features of all rows, or with `plain` the rows as they are.  A group has 16 rows of
 * an entry in all heads. */
DEV void linear_features(struct block b)
{
    const int tiles = (b.p->q_len + ROTATED_ROWS - 1) / ROTATED_ROWS, dim = b.p->dim;
    const int batch = b.x / tiles, row0 = b.x % tiles * ROTATED_ROWS,
              rows = least(b.p->q_len - row0, ROTATED_ROWS);
    PHASE(tid)
        for (int i = tid; i < b.p->heads * rows * dim; i += THREADS) {
            const int d = i % dim, row = row0 + i / dim % rows, h = i / dim / rows;
            const float x = load_number(b.at.q, b.p->q_type,
                                        (int64_t)batch * b.p->q.batch + h * b.p->q.head
                                            + (int64_t)row * b.p->q.row + d);
            ((GLOBAL float *)b.at.o)[(int64_t)batch * b.p->o.batch + h * b.p->o.head
                                     + (int64_t)row * b.p->o.row + d] =
                b.p->plain ? x : feature(x);
        }
    END
}
/* Where the rows of the last tile are in a state: features, rotated ones, values. */
DEV int64_t state_rows_at(struct block b, struct gpu_linear l)
{
    return 2 * ((int64_t)b.p->dim * l.value_lanes + l.lanes);
}
/* A state of the call. */
DEV const GLOBAL float *state_before(struct block b, struct gpu_linear l, int entry, int kvh)
{
    return (const GLOBAL float *)(b.at.apart + l.states)
         + ((int64_t)entry * b.p->kv_heads + kvh) * l.state_floats;
}
/* The keys in the last tile of a state become the first rows of keys.  A group has those of a kv
 * head. */
DEV void linear_carry(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const int entry = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads;
    const GLOBAL float *f = state_before(b, l, entry, kvh) + state_rows_at(b, l),
                       *turned = f + KEYS * l.lanes, *v = turned + KEYS * l.lanes;
    PHASE(tid)
        GLOBAL float *k = key_floats(b, l, l.k, entry, kvh, 0, DIM),
                     *k_turned = key_floats(b, l, l.k_turned, entry, kvh, 0, DIM),
                     *values = key_floats(b, l, l.v, entry, kvh, 0, VALUE_DIM);
        for (int i = tid; i < l.carried * DIM; i += THREADS) {
            const int from = i / DIM * l.lanes + i % DIM;
            k[i] = f[from];
            k_turned[i] = turned[from];
        }
        for (int i = tid; i < l.carried * VALUE_DIM; i += THREADS)
            values[i] = v[i / VALUE_DIM * l.value_lanes + i % VALUE_DIM];
    END
}
/* The last tile of the new state, at `sums`.  Rows beyond its keys keep those of the tile before,
 * or what the state of the call has, as on the CPU. */
DEV void linear_state(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const int entry = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads, keys = l.key_rows;
    const int start = keys ? (keys - 1) / KEYS * KEYS : 0;
    const GLOBAL float *before = state_before(b, l, entry, kvh) + state_rows_at(b, l);
    GLOBAL float *to = (GLOBAL float *)b.at.sums + (int64_t)b.x * l.state_floats
                     + state_rows_at(b, l);
    PHASE(tid)
        const int each = 2 * l.lanes + l.value_lanes;
        for (int i = tid; i < KEYS * each; i += THREADS) {
            const int part = i < KEYS * l.lanes ? 0 : i < 2 * KEYS * l.lanes ? 1 : 2;
            const int at = i - part * KEYS * l.lanes, lanes = part < 2 ? l.lanes : l.value_lanes,
                      width = part < 2 ? DIM : VALUE_DIM, d = at % lanes;
            int key = start + at / lanes;
            if (key >= keys) key -= KEYS;
            const int64_t from = part == 0 ? l.k : part == 1 ? l.k_turned : l.v;
            float x = l.goes_on ? before[i] : 0.0f;
            if (key >= 0 && d < width) x = key_floats(b, l, from, entry, kvh, key, width)[d];
            to[i] = x;
        }
    END
}

/* ---- Sums of tiles --------------------------------------------------------------------------- */

/* Sums of features up to each key, and those of the tile where the next tile has its own.  A group
 * has a tile of a kv head. */
DEV void linear_tiles(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const int n = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads;
    const struct gpu_key_tile t = key_tile_of(b, l, n);
    const GLOBAL float *f = key_floats(b, l, l.k, t.b, kvh, t.key, DIM),
                       *k = key_floats(b, l, l.k_turned, t.b, kvh, t.key, DIM),
                       *v = key_floats(b, l, l.v, t.b, kvh, t.key, VALUE_DIM);
    GLOBAL float *z = key_floats(b, l, l.z, t.b, kvh, t.key, DIM),
                 *to = tile_sums(b, l, t.next, kvh);
    PHASE(tid)
        for (int i = tid; i < DIM * l.value_lanes && to; i += THREADS) {
            const int d = i / l.value_lanes, x = i % l.value_lanes;
            float sum = 0;
            for (int j = 0; j < t.keys; j++)
                sum = fma_(k[j * DIM + d], x < VALUE_DIM ? v[j * VALUE_DIM + x] : 0.0f, sum);
            to[i] = sum;
        }
        for (int d = tid; d < l.lanes; d += THREADS) {
            float sum = 0;
            for (int j = 0; j < t.keys && d < DIM; j++) {
                sum = f[j * DIM + d] + sum;
                z[j * DIM + d] = sum;
            }
            if (to) to[DIM * l.value_lanes + d] = sum;
        }
    END
}
/* From sums of tiles to the sums before them, and to those of the new state, at `sums`.  A thread
 * has one number of a kv head of a sequence. */
DEV void linear_sums(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const int blocks = (int)((l.sum_floats + THREADS - 1) / THREADS), item = b.x / blocks,
              kvh = item % b.p->kv_heads;
    const struct gpu_walk w =
        ((const GLOBAL struct gpu_walk *)(b.at.lists + l.walks))[item / b.p->kv_heads];
    PHASE(tid)
        const int64_t i = (int64_t)(b.x % blocks) * THREADS + tid,
                      products = (int64_t)DIM * l.value_lanes;
        const int64_t recent_at = i < products ? i : products + i,
                      older_at = recent_at + (i < products ? products : l.lanes);
        float recent = 0, older = 0;
        if (i < l.sum_floats && l.goes_on) {
            recent = state_before(b, l, w.b, kvh)[recent_at];
            older = state_before(b, l, w.b, kvh)[older_at];
        }
        for (int n = 0; n < w.tiles && i < l.sum_floats; n++) {
            GLOBAL float *sums = tile_sums(b, l, key_tile_of(b, l, w.tile + n).sums, kvh);
            if (n > 0) {
                recent = recent + sums[i];
                if (key_tile_of(b, l, w.tile + n - 1).ages) {
                    older = older + recent;
                    recent = 0;
                }
            }
            if (sums) sums[i] = older + recent;
        }
        if (i < l.sum_floats && b.at.sums) {
            GLOBAL float *to = (GLOBAL float *)b.at.sums
                             + ((int64_t)w.b * b.p->kv_heads + kvh) * l.state_floats;
            to[recent_at] = recent;
            to[older_at] = older;
        }
    END
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Are the numbers of this thread finite? */
DEV int all_finite(const GLOBAL float *x, int n, int tid)
{
    int finite = 1;
    for (int i = tid; i < n; i += THREADS) finite &= x[i] * 0.0f == 0.0f;
    return finite;
}
/* What a tile of rows of a head reads. */
struct linear_rows_at {
    struct gpu_row_tile t;
    int h, kvh;
    const GLOBAL int32_t *seen;
    const GLOBAL float *f, *q;          /* rows */
    const GLOBAL float *k, *v, *z;      /* keys of their tile */
    const GLOBAL float *sums, *z_sums;  /* of the tiles before it */
};
DEV struct linear_rows_at rows_at_tile(struct block b, struct gpu_linear l, int n, int h)
{
    struct linear_rows_at a;
    a.t = row_tile_of(b, l, n);
    a.h = h;
    a.kvh = h / (b.p->heads / b.p->kv_heads);
    a.seen = seen_of(b, l, a.t);
    a.f = query_floats(b, l.q, a.t.b, h, a.t.row, DIM);
    a.q = query_floats(b, l.q_turned, a.t.b, h, a.t.row, DIM);
    const int none = a.t.tile < 0, key = none ? 0 : key_tile_of(b, l, a.t.tile).key;
    a.k = key_floats(b, l, l.k_turned, a.t.b, a.kvh, key, DIM);
    a.v = key_floats(b, l, l.v, a.t.b, a.kvh, key, VALUE_DIM);
    a.z = key_floats(b, l, l.z, a.t.b, a.kvh, key, DIM);
    a.sums = tile_sums(b, l, none ? -1 : key_tile_of(b, l, a.t.tile).sums, a.kvh);
    a.z_sums = a.sums ? a.sums + DIM * l.value_lanes : 0;
    return a;
}
/* f(q).z over the keys that row r sees. */
DEV float denominator(struct block b, struct gpu_linear l, struct linear_rows_at a, int r)
{
    if (!a.seen[r]) return 0;
    float chain[CHAINS];
    const GLOBAL float *f = a.f + r * DIM, *z = a.z + (a.seen[r] - 1) * DIM;
    for (int i = 0; i < CHAINS; i++) chain[i] = 0;
    for (int d = 0; d < l.lanes; d++) {
        const int in = d < DIM;
        chain[d % CHAINS] = fma_(in ? f[d] : 0.0f, in ? z[d] + sum_at(a.z_sums, d) : 0.0f,
                                 chain[d % CHAINS]);
    }
    return fold_chains(chain);
}
/* dO.o of a row. */
DEV float outputs_product(struct block b, struct gpu_linear l, int64_t dout, int64_t o)
{
    float chain[CHAINS];
    for (int i = 0; i < CHAINS; i++) chain[i] = 0;
    for (int x = 0; x < l.value_lanes; x++) {
        const int in = x < VALUE_DIM;
        const float y = in && b.at.dout ? load_number(b.at.dout, O_TYPE, dout + x) : 0.0f;
        chain[x % CHAINS] =
            fma_(y, in ? load_number(b.at.o, O_TYPE, o + x) : 0.0f, chain[x % CHAINS]);
    }
    return fold_chains(chain);
}
/* Products of rows x and keys y of a tile, of `width` numbers, for the pairs that rows see. */
DEV void multiply_pairs(const GLOBAL float *x, const GLOBAL float *y, int width,
                        const GLOBAL int32_t *seen, int rows, int keys, int tid, SHARED float *to)
{
    for (int i = tid; i < rows * KEYS; i += THREADS) {
        const int r = i / KEYS, k = i % KEYS;
        float sum = 0;
        if (k < keys && k < seen[r])
            for (int d = 0; d < width; d++) sum = fma_(x[r * width + d], y[k * width + d], sum);
        to[i] = sum;
    }
}
/* x + the sum over the keys that a row sees of w B.  If all numbers are finite, hidden keys have
 * weight 0 and are summed with the others. */
DEV float add_seen_keys(float x, const SHARED float *w, const GLOBAL float *rows, int width,
                        int keys)
{
    float sum = 0;
    for (int k = 0; k < keys; k++) sum = fma_(w[k], rows[k * width], sum);
    return x + sum;
}
DEV void linear_rows(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const struct linear_rows_at a = rows_at_tile(b, l, b.x / b.p->heads, b.x % b.p->heads);
    const struct linear_room m = linear_room();
    SHARED float *p = b.room + m.p, *den = b.room + m.den, *flag = b.room + m.flag;
    PHASE(tid)
        for (int i = tid; i < 1; i += THREADS) flag[i] = 1;
    END
    PHASE(tid)
        if (!all_finite(a.k, a.t.keys * DIM, tid) || !all_finite(a.v, a.t.keys * VALUE_DIM, tid))
            flag[0] = 0;
        multiply_pairs(a.q, a.k, DIM, a.seen, a.t.rows, a.t.keys, tid, p);
        for (int r = tid; r < a.t.rows; r += THREADS) den[r] = denominator(b, l, a, r);
    END
    PHASE(tid)
        for (int i = tid; i < a.t.rows * VALUE_DIM; i += THREADS) {
            const int r = i / VALUE_DIM, x = i % VALUE_DIM;
            float o = 0;
            for (int d = 0; d < DIM; d++)
                o = fma_(a.q[r * DIM + d], sum_at(a.sums, d * l.value_lanes + x), o);
            o = add_seen_keys(o, p + r * KEYS, a.v + x, VALUE_DIM,
                              flag[0] != 0 ? a.t.keys : a.seen[r]);
            store_number(b.at.o, O_TYPE,
                         (int64_t)a.t.b * b.p->o.batch + a.h * b.p->o.head
                             + (int64_t)(a.t.row + r) * b.p->o.row + x,
                         den[r] == 0 ? 0.0f : o / den[r]);
        }
    END
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* From dO: g = dO / den and h = -(dO.o) / den, and the gradient of rotated features. */
DEV void linear_cotangents(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const struct linear_rows_at a = rows_at_tile(b, l, b.x / b.p->heads, b.x % b.p->heads);
    const struct linear_room m = linear_room();
    SHARED float *dp = b.room + m.dp, *den = b.room + m.den, *flag = b.room + m.flag;
    GLOBAL float *g = query_floats(b, l.g, a.t.b, a.h, a.t.row, VALUE_DIM),
                 *h = query_floats(b, l.h, a.t.b, a.h, a.t.row, 1),
                 *all_den = query_floats(b, l.den, a.t.b, a.h, a.t.row, 1),
                 *dq = query_floats(b, l.dq, a.t.b, a.h, a.t.row, DIM);
    const int64_t dout = (int64_t)a.t.b * b.p->dout.batch + a.h * b.p->dout.head
                       + (int64_t)a.t.row * b.p->dout.row,
                  o = (int64_t)a.t.b * b.p->o.batch + a.h * b.p->o.head
                    + (int64_t)a.t.row * b.p->o.row;
    PHASE(tid)
        for (int i = tid; i < 1; i += THREADS) flag[i] = 1;
        for (int r = tid; r < a.t.rows; r += THREADS)
            all_den[r] = den[r] = denominator(b, l, a, r);
    END
    PHASE(tid)
        if (!all_finite(a.k, a.t.keys * DIM, tid) || !all_finite(a.v, a.t.keys * VALUE_DIM, tid))
            flag[0] = 0;
        for (int r = tid; r < a.t.rows; r += THREADS) {
            const float along = outputs_product(b, l, dout + r * b.p->dout.row,
                                                o + r * b.p->o.row);
            h[r] = den[r] == 0 ? 0.0f : -along / den[r];
        }
        for (int i = tid; i < a.t.rows * VALUE_DIM; i += THREADS) {
            const int r = i / VALUE_DIM, x = i % VALUE_DIM;
            const float y =
                b.at.dout ? load_number(b.at.dout, O_TYPE, dout + r * b.p->dout.row + x) : 0.0f;
            g[i] = den[r] == 0 ? 0.0f : y / den[r];
        }
    END
    PHASE(tid)
        multiply_pairs(g, a.v, VALUE_DIM, a.seen, a.t.rows, a.t.keys, tid, dp);
    END
    PHASE(tid)
        for (int i = tid; i < a.t.rows * DIM; i += THREADS) {
            const int r = i / DIM, d = i % DIM;
            float sum = 0;
            for (int x = 0; x < VALUE_DIM; x++)
                sum = fma_(g[r * VALUE_DIM + x], sum_at(a.sums, d * l.value_lanes + x), sum);
            dq[i] = add_seen_keys(sum, dp + r * KEYS, a.k + d, DIM,
                                  flag[0] != 0 ? a.t.keys : a.seen[r]);
        }
    END
}
/* From the gradient by features, after it has turned back, to that by rows. */
DEV void linear_dq(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const struct linear_rows_at a = rows_at_tile(b, l, b.x / b.p->heads, b.x % b.p->heads);
    const GLOBAL float *dq = query_floats(b, l.dq, a.t.b, a.h, a.t.row, DIM),
                       *h = query_floats(b, l.h, a.t.b, a.h, a.t.row, 1),
                       *den = query_floats(b, l.den, a.t.b, a.h, a.t.row, 1);
    PHASE(tid)
        for (int i = tid; i < a.t.rows * DIM; i += THREADS) {
            const int r = i / DIM, d = i % DIM;
            float x = 0;
            if (den[r] != 0)
                x = fma_(h[r], a.z[(a.seen[r] - 1) * DIM + d] + sum_at(a.z_sums, d), dq[i])
                  * slope(a.f[i]);
            store_number(b.at.dq, O_TYPE,
                         (int64_t)a.t.b * b.p->dq.batch + a.h * b.p->dq.head
                             + (int64_t)(a.t.row + r) * b.p->dq.row + d,
                         x);
        }
    END
}

/* h f(q) of all rows whose last key is this one or a later one of the tile. */
DEV void linear_df(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const int n = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads,
              group = b.p->heads / b.p->kv_heads;
    const struct gpu_key_tile t = key_tile_of(b, l, n);
    GLOBAL float *df = key_floats(b, l, l.df, t.b, kvh, t.key, DIM);
    PHASE(tid)
        for (int d = tid; d < DIM; d += THREADS) {
            for (int k = 0; k < t.seen; k++) df[k * DIM + d] = 0;
            for (int h = kvh * group; h < (kvh + 1) * group; h++)
                for (int i = t.first_rows; i < t.end_rows; i++) {
                    const struct gpu_row_tile rows = row_tile_of(b, l, i);
                    const GLOBAL int32_t *seen = seen_of(b, l, rows);
                    const GLOBAL float *f = query_floats(b, l.q, rows.b, h, rows.row, DIM) + d,
                                       *x = query_floats(b, l.h, rows.b, h, rows.row, 1);
                    for (int r = 0; r < rows.rows; r++) {
                        GLOBAL float *to = df + (seen[r] - 1) * DIM + d;
                        *to = fma_(x[r], f[r * DIM], *to);
                    }
                }
            for (int k = t.seen - 2; k >= 0; k--)
                df[k * DIM + d] = df[k * DIM + d] + df[(k + 1) * DIM + d];
        }
    END
}
/* G, and sums of h f(q), of the rows behind each tile, from the last tile to the first.  A thread
 * has one number of a kv head of a sequence. */
DEV void linear_behind(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const int blocks = (int)((l.sum_floats + THREADS - 1) / THREADS), item = b.x / blocks,
              kvh = item % b.p->kv_heads, group = b.p->heads / b.p->kv_heads;
    const struct gpu_walk w =
        ((const GLOBAL struct gpu_walk *)(b.at.lists + l.walks))[item / b.p->kv_heads];
    PHASE(tid)
        const int64_t i = (int64_t)(b.x % blocks) * THREADS + tid,
                      products = (int64_t)DIM * l.value_lanes;
        const int d = (int)(i < products ? i / l.value_lanes : i - products),
                  x = i < products ? (int)(i % l.value_lanes) : 0;
        const int works = i < l.sum_floats && d < DIM && x < VALUE_DIM;
        float recent = 0, older = 0;
        for (int n = w.tiles - 1; n >= 0 && works; n--) {
            const struct gpu_key_tile t = key_tile_of(b, l, w.tile + n);
            GLOBAL float *sums = tile_sums(b, l, t.next, kvh);
            if (sums) sums[i] = older + recent;
            if (!t.seen) continue;
            if (i >= products)
                recent = recent + key_floats(b, l, l.df, t.b, kvh, t.key, DIM)[d];
            for (int h = kvh * group; h < (kvh + 1) * group && i < products; h++)
                for (int j = t.first_rows; j < t.end_rows; j++) {
                    const struct gpu_row_tile rows = row_tile_of(b, l, j);
                    const GLOBAL float *q =
                        query_floats(b, l.q_turned, rows.b, h, rows.row, DIM) + d,
                        *g = query_floats(b, l.g, rows.b, h, rows.row, VALUE_DIM) + x;
                    float sum = 0;
                    for (int r = 0; r < rows.rows; r++)
                        sum = fma_(q[r * DIM], g[r * VALUE_DIM], sum);
                    recent = recent + sum;
                }
            if (t.ages_back) {
                older = older + recent;
                recent = 0;
            }
        }
    END
}
/* x + the sum over the rows first .. rows - 1 of w B. */
DEV float add_seeing_rows(float x, const SHARED float *w, const GLOBAL float *rows, int width,
                          int first, int n)
{
    float sum = 0;
    for (int r = first; r < n; r++) sum = fma_(w[r * KEYS], rows[r * width], sum);
    return x + sum;
}
/* The first row that sees key k. */
DEV int first_seeing(const GLOBAL int32_t *seen, int rows, int k)
{
    int r = 0;
    while (r < rows && seen[r] <= k) r++;
    return r;
}
/* Gradients of rotated features of keys, and of values: from the rows behind the tile, then from
 * its own.  A group has a tile of a kv head. */
DEV void linear_keys(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const int n = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads,
              group = b.p->heads / b.p->kv_heads;
    const struct gpu_key_tile t = key_tile_of(b, l, n);
    const struct linear_room m = linear_room();
    SHARED float *p = b.room + m.p, *dp = b.room + m.dp, *flag = b.room + m.flag;
    const GLOBAL float *k = key_floats(b, l, l.k_turned, t.b, kvh, t.key, DIM),
                       *v = key_floats(b, l, l.v, t.b, kvh, t.key, VALUE_DIM),
                       *behind = t.seen ? tile_sums(b, l, t.next, kvh) : 0;
    GLOBAL float *dk = key_floats(b, l, l.dk, t.b, kvh, t.key, DIM),
                 *dv = key_floats(b, l, l.dv, t.b, kvh, t.key, VALUE_DIM);
    const int each = t.end_rows - t.first_rows, items = t.seen ? group * each : 0;
    int item = 0;
    PHASE(tid)
        for (int i = tid; i < t.seen * DIM; i += THREADS) {
            const int d = i % DIM;
            float sum = 0;
            for (int x = 0; x < VALUE_DIM; x++)
                sum = fma_(v[i / DIM * VALUE_DIM + x], sum_at(behind, d * l.value_lanes + x), sum);
            dk[i] = sum;
        }
        for (int i = tid; i < t.seen * VALUE_DIM; i += THREADS) {
            const int x = i % VALUE_DIM;
            float sum = 0;
            for (int d = 0; d < DIM; d++)
                sum = fma_(k[i / VALUE_DIM * DIM + d], sum_at(behind, d * l.value_lanes + x), sum);
            dv[i] = sum;
        }
    END
    do {
        const int works = item < items, h = kvh * group + (works ? item / each : 0);
        const struct gpu_row_tile rows =
            row_tile_of(b, l, works ? t.first_rows + item % each : 0);
        const int count = works ? rows.rows : 0;
        const GLOBAL int32_t *seen = seen_of(b, l, rows);
        const GLOBAL float *q = query_floats(b, l.q_turned, rows.b, h, rows.row, DIM),
                           *g = query_floats(b, l.g, rows.b, h, rows.row, VALUE_DIM);
        PHASE(tid)
            for (int i = tid; i < 1; i += THREADS) flag[i] = 1;
        END
        PHASE(tid)
            if (!all_finite(q, count * DIM, tid) || !all_finite(g, count * VALUE_DIM, tid))
                flag[0] = 0;
            multiply_pairs(q, k, DIM, seen, count, t.seen, tid, p);
            multiply_pairs(g, v, VALUE_DIM, seen, count, t.seen, tid, dp);
        END
        PHASE(tid)
            for (int i = tid; i < t.seen * DIM && works; i += THREADS) {
                const int key = i / DIM,
                          first = flag[0] != 0 ? 0 : first_seeing(seen, count, key);
                dk[i] = add_seeing_rows(dk[i], dp + key, q + i % DIM, DIM, first, count);
            }
            for (int i = tid; i < t.seen * VALUE_DIM && works; i += THREADS) {
                const int key = i / VALUE_DIM,
                          first = flag[0] != 0 ? 0 : first_seeing(seen, count, key);
                dv[i] = add_seeing_rows(dv[i], p + key, g + i % VALUE_DIM, VALUE_DIM, first, count);
            }
        END
        item++;
    } while (item < items);
}
/* From gradients by features, after they have turned back, to those by keys; and those of values.
 */
DEV void linear_dk(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const int n = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads;
    const struct gpu_key_tile t = key_tile_of(b, l, n);
    const GLOBAL float *dk = key_floats(b, l, l.dk, t.b, kvh, t.key, DIM),
                       *dv = key_floats(b, l, l.dv, t.b, kvh, t.key, VALUE_DIM),
                       *df = key_floats(b, l, l.df, t.b, kvh, t.key, DIM),
                       *f = key_floats(b, l, l.k, t.b, kvh, t.key, DIM),
                       *behind = t.seen ? tile_sums(b, l, t.next, kvh) : 0;
    PHASE(tid)
        for (int i = tid; i < t.seen * DIM && b.at.dk; i += THREADS) {
            const int d = i % DIM;
            const float y = df[i] + sum_at(behind, DIM * l.value_lanes + d);
            store_number(b.at.dk, O_TYPE,
                         (int64_t)t.b * b.p->dk.batch + kvh * b.p->dk.head
                             + (int64_t)(t.key + i / DIM) * b.p->dk.row + d,
                         (y + dk[i]) * slope(f[i]));
        }
        for (int i = tid; i < t.seen * VALUE_DIM && b.at.dv; i += THREADS)
            store_number(b.at.dv, O_TYPE,
                         (int64_t)t.b * b.p->dv.batch + kvh * b.p->dv.head
                             + (int64_t)(t.key + i / VALUE_DIM) * b.p->dv.row + i % VALUE_DIM,
                         dv[i]);
    END
}

/* ---- What rotations learn -------------------------------------------------------------------- */

/* Of a tile of rows of a head, which are q, and their gradients dq. */
DEV void linear_query_parts(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const int h = b.x % b.p->heads;
    const struct gpu_row_tile t = row_tile_of(b, l, b.x / b.p->heads);
    rotation_part(b, view_rows(b.at.q, b.p->q, t.b, h, t.row, GPU_F32, 0),
                  view_rows(b.at.dq, b.p->dq, t.b, h, t.row, GPU_F32, 0), t.b, h,
                  h / (b.p->heads / b.p->kv_heads), t.row, t.rows,
                  (GLOBAL float *)(b.at.apart + l.query_parts)
                      + (int64_t)b.x * b.p->rotation_count);
}
/* Of a tile of keys of a kv head. */
DEV void linear_key_parts(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const int kvh = b.x % b.p->kv_heads;
    const struct gpu_key_tile t = key_tile_of(b, l, b.x / b.p->kv_heads);
    rotation_part(b, view_rows(b.at.q, b.p->q, t.b, kvh, t.key, GPU_F32, 0),
                  view_rows(b.at.dq, b.p->dq, t.b, kvh, t.key, GPU_F32, 0), t.b, kvh, kvh, t.key,
                  t.seen,
                  (GLOBAL float *)(b.at.apart + l.key_parts)
                      + (int64_t)b.x * b.p->rotation_count);
}
/* sum + number i of the parts of tiles of rows, of one head of a group after the other. */
DEV float add_query_parts(struct block b, struct gpu_linear l, float sum, int first, int end,
                          int kvh, int i)
{
    const int group = b.p->heads / b.p->kv_heads;
    for (int h = kvh * group; h < (kvh + 1) * group; h++)
        for (int n = first; n < end; n++)
            sum = sum
                + ((const GLOBAL float *)(b.at.apart + l.query_parts))
                    [((int64_t)n * b.p->heads + h) * b.p->rotation_count + i];
    return sum;
}
/* One thread per number of a kv head.  Sums of a sequence are float, in the order of the two
 * walks; totals are double. */
DEV void linear_totals(struct block b)
{
    const struct gpu_linear l = LINEAR;
    const int kvh = b.x % b.p->kv_heads;
    const GLOBAL struct gpu_walk *walks = (const GLOBAL struct gpu_walk *)(b.at.lists + l.walks);
    PHASE(tid)
        const int i = b.x / b.p->kv_heads * THREADS + tid, count = b.p->rotation_count;
        double total = 0;
        for (int s = 0; s < b.p->sequences && i < count; s++) {
            const struct gpu_walk w = walks[s];
            float part = add_query_parts(b, l, 0.0f, w.first_rows, w.end_rows, kvh, i);
            for (int n = 0; n < w.tiles; n++) {
                const struct gpu_key_tile t = key_tile_of(b, l, w.tile + n);
                part = add_query_parts(b, l, part, t.first_rows, t.end_rows, kvh, i);
            }
            for (int n = w.tiles - 1; n >= 0; n--)
                if (key_tile_of(b, l, w.tile + n).seen)
                    part = part
                         + ((const GLOBAL float *)(b.at.apart + l.key_parts))
                             [((int64_t)(w.tile + n) * b.p->kv_heads + kvh) * count + i];
            total += (double)part;
        }
        if (i < count) ((GLOBAL double *)b.at.totals)[(int64_t)kvh * count + i] = total;
    END
}

#endif
