/* SPDX-License-Identifier: MIT */
/* channel_gates.h -- wall: rows fade on their walk over the keys, channel by channel.  Keys are
 * staged as rows of newer tiles read them, faded to the end of their tile.  In the tile of its
 * newest key, which it owns, a row meets each key in a level of halves.  See docs/bits.md, Terms
 * and Backward, and src/terms/channel_gates.c. */
#ifndef LOCI_GPU_KERNELS_CHANNEL_GATES_H
#define LOCI_GPU_KERNELS_CHANNEL_GATES_H

#include "kernels/gates.h"

/* The term comes first. */
#define GATED (FIRST_TERM == GPU_CHANNEL_GATES)

/* Below these, factors, gradients by scores, scores, and gradients that are multiplied by a factor
 * are 0. */
#define LOW_FACTOR 0x1p-40f
#define LOW_GRADIENT 0x1p-60f
#define LOW_SCORE 0x1p-50f
#define LOW_SUM 0x1p-84f

enum { CHUNK_TILES = CHUNK / KEYS };
/* How a row meets a key: the key is in an older tile; they are in both halves, of 2^level keys
 * each, of a block of the row's own tile; the key is the newest one that the row sees. */
enum gate_level { OLDER_TILE = -1, FIRST_LEVEL, NEWEST_KEY = 6 };

DEV float unless_low(float x, float low) { return x <= low && x >= -low ? 0.0f : x; }
DEV float times_factor(float d, float factor)
{
    return d > -LOW_SUM && d < LOW_SUM ? 0.0f : d * factor;
}

/* ---- Gates ----------------------------------------------------------------------------------- */

/* Of a head, from key 0 of the sequence on. */
DEV const GLOBAL float *channel_gates_of(struct block b, const struct span *q, int h)
{
    return input_at(b, USE(0).key_input, q, h, b.p->k_len * DIM) + (int64_t)q->k0 * DIM;
}
DEV double channel_gate(float f)
{
    const float low = f < -10000.0f ? -10000.0f : f;
    return (double)(low < 10000.0f ? low : NAN);
}
DEV float factor_of_gates(double sum)
{
    const float x = (float)sum;
    return x >= 88.7228f ? INFINITY : exp_from(-27.7f, x);
}
/* Where segments mix, only gates of keys of its own segment count for a key. */
DEV int in_segment(struct block b, const struct span *q, int key, int other)
{
    if (!q->segments) return 1;
    const GLOBAL int64_t *k = list_at(b, b.p->k_seg) + (int64_t)q->b * b.p->k_len + q->k0;
    return k[key] == k[other];
}
/* Over channel d of the gates f of the keys from, from + step .. before `to` that count for a key,
 * in this order. */
DEV double sum_of_gates(struct block b, const struct span *q, const GLOBAL float *f, int d, int key,
                        int from, int to, int step)
{
    double sum = 0;
    for (int k = from; step > 0 ? k < to : k > to; k += step)
        if (in_segment(b, q, k, key)) sum += channel_gate(f[(int64_t)k * DIM + d]);
    return sum;
}

/* ---- Memory of the call, in `apart` ---------------------------------------------------------- */

/* `each` numbers of every key of a head, or double ones. */
DEV GLOBAL float *gated_keys(struct block b, int64_t from, const struct span *q, int h, int each)
{
    return (GLOBAL float *)(b.at.apart + from)
         + (((int64_t)q->b * b.p->heads + h) * b.p->k_len + q->k0) * each;
}
DEV GLOBAL double *gated_sums(struct block b, const struct span *q, int h)
{
    return (GLOBAL double *)(b.at.apart + USE(0).gate_sums)
         + (((int64_t)q->b * b.p->heads + h) * b.p->k_len + q->k0) * 2 * DIM;
}
/* DIM numbers of a row, of list number n. */
DEV GLOBAL float *gated_row(struct block b, int64_t from, int n, const struct span *q, int h,
                            int row)
{
    return (GLOBAL float *)(b.at.apart + from)
         + ((((int64_t)n * b.p->batch + q->b) * b.p->heads + h) * b.p->q_len + q->q0 + row) * DIM;
}
/* Keys from key0 of the sequence on, as rows. */
DEV struct rows_at gated_rows(struct block b, int64_t from, const struct span *q, int h, int key0)
{
    struct strides s;
    s.row = DIM;
    s.head = (int64_t)b.p->k_len * DIM;
    s.batch = b.p->heads * s.head;
    return view_rows(b.at.apart + from, s, q->b, h, q->k0 + key0, GPU_F32, DIM % 4 == 0);
}
DEV struct rows_at staged_keys(struct block b, const struct span *q, int h)
{
    return gated_rows(b, USE(0).staged, q, h, 0);
}
/* Of all gates of a tile, where segments do not mix. */
DEV GLOBAL float *tile_factors(struct block b, const struct span *q, int h, int tile)
{
    return (GLOBAL float *)(b.at.apart + USE(0).tile_factors)
         + ((int64_t)h * b.p->ktiles + q->ktile + tile) * DIM;
}

/* ---- Newest keys ----------------------------------------------------------------------------- */

/* Where rows do not see intervals of keys: [B][H][q_len]. */
DEV GLOBAL int32_t *newest_at(struct block b, const struct span *q, int h, int row)
{
    return (GLOBAL int32_t *)(b.at.apart + USE(0).newest)
         + ((int64_t)q->b * b.p->heads + h) * b.p->q_len + q->q0 + row;
}
/* A group has rows of a head. */
DEV void find_newest(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const int first = (tile - q.tile) * ROWS,
              end = sees_interval(b, &q) ? first : least(q.nq, first + ROWS);
    PHASE(tid)
        for (int row = first + tid; row < end; row += THREADS) {
            int key = q.nk - 1;
            while (key >= 0 && !sees(b, &q, h, row, key)) key--;
            *newest_at(b, &q, h, row) = key;
        }
    END
}
/* The newest key of a row.  Below 0: none.  A window may hide that of an interval. */
DEV int newest_of(struct block b, const struct span *q, int h, int row)
{
    if (row >= q->nq) return -1;
    return sees_interval(b, q) ? newest_key(b, q, row) : *newest_at(b, q, h, row);
}
/* Is it in this tile for some row? */
DEV int owns_tile(struct block b, const struct span *q, int h, int row0, int rows, int tile)
{
    if (sees_interval(b, q)) {
        const int last = newest_key(b, q, row0 + rows - 1);
        return last >= 0 && newest_key(b, q, row0) / KEYS <= tile && last / KEYS >= tile;
    }
    for (int row = row0; row < row0 + rows; row++) {
        const int newest = *newest_at(b, q, h, row);
        if (newest >= 0 && newest / KEYS == tile) return 1;
    }
    return 0;
}

/* ---- Before the passes ----------------------------------------------------------------------- */

/* A group has a tile of keys of a head. */
DEV void stage_keys(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_KTILE, tile);
    const int key0 = (tile - q.ktile) * KEYS, n = least(q.nk - key0, KEYS);
    const struct rows_at keys = key_rows(b, &q, h / (b.p->heads / b.p->kv_heads));
    const GLOBAL float *f = channel_gates_of(b, &q, h);
    GLOBAL float *to = gated_keys(b, USE(0).staged, &q, h, DIM) + (int64_t)key0 * DIM;
    PHASE(tid)
        for (int d = tid; d < DIM; d += THREADS) {
            double sum = 0;
            for (int k = n - 1; k >= 0; k--) {
                if (q.segments)
                    sum = sum_of_gates(b, &q, f, d, key0 + k, key0 + n - 1, key0 + k, -1);
                to[k * DIM + d] = load_number(keys.at, keys.type, row_offset(keys, key0 + k) + d)
                                * factor_of_gates(sum);
                sum += channel_gate(f[(int64_t)(key0 + k) * DIM + d]);
            }
            tile_factors(b, &q, h, tile - q.ktile)[d] = factor_of_gates(sum);
        }
    END
}

/* Does a row see a key that is not newer than its newest one? */
DEV int sees_older(struct block b, const struct span *q, int h, int row, int key)
{
    return sees_interval(b, q) ? q->d0 + row - key <= b.p->hi : sees(b, q, h, row, key);
}
/* The newest key that a row sees; below 0: none. */
DEV int newest_seen(struct block b, const struct span *q, int h, int row)
{
    const int key = newest_of(b, q, h, row);
    return key >= 0 && sees_older(b, q, h, row, key) ? key : -1;
}
DEV int level_of(struct block b, const struct span *q, int h, int row, int key)
{
    const int newest = newest_seen(b, q, h, row);
    int level = 0;
    if (newest < 0 || newest / KEYS != key / KEYS) return OLDER_TILE;
    if (newest == key) return NEWEST_KEY;
    for (int bits = (newest ^ key) >> 1; bits; bits >>= 1) level++;
    return level;
}

/* The factor of a row whose newest key is `newest`, as the next older tile reads it. */
DEV float next_carry(struct block b, const struct span *q, int h, int newest, int tile, int d,
                     float e)
{
    const int key0 = tile * KEYS;
    const float factor =
        q->segments
            ? factor_of_gates(sum_of_gates(b, q, channel_gates_of(b, q, h), d, newest,
                                           key0 + KEYS - 1, key0 - 1, -1))
            : tile_factors(b, q, h, tile)[d];
    const float y = e * factor;
    return y < LOW_FACTOR ? 0.0f : y;
}
/* What rows carry to the newest tile of each chunk that they read from a newer one.  A group has
 * rows of a head. */
DEV void walk_rows(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const int row0 = (tile - q.tile) * ROWS, rows = least(q.nq - row0, ROWS),
              oldest = keys_of(b, &q, row0, rows).first / KEYS;
    const GLOBAL float *f = channel_gates_of(b, &q, h);
    PHASE(tid)
        for (int i = tid; i < rows * DIM; i += THREADS) {
            const int row = row0 + i / DIM, d = i % DIM, newest = newest_seen(b, &q, h, row),
                      own = newest / KEYS;
            if (newest < 0) continue;
            float e = factor_of_gates(
                sum_of_gates(b, &q, f, d, newest, own * KEYS, newest + 1, 1));
            for (int j = own - 1; j >= oldest; j--) {
                if (j == own - 1 || (j + 1) % CHUNK_TILES == 0)
                    gated_row(b, USE(0).carries_of_rows, j / CHUNK_TILES, &q, h, row)[d] = e;
                e = next_carry(b, &q, h, newest, j, d, e);
            }
        }
    END
}
/* What a row carries to a tile that is older than that of its newest key. */
DEV float carry_to(struct block b, const struct span *q, int h, int row, int newest, int tile,
                   int d)
{
    const int chunk = tile / CHUNK_TILES,
              top = least(newest / KEYS, (chunk + 1) * CHUNK_TILES) - 1;
    float e = gated_row(b, USE(0).carries_of_rows, chunk, q, h, row)[d];
    for (int j = top; j > tile; j--) e = next_carry(b, q, h, newest, j, d, e);
    return e;
}

/* ---- A tile ---------------------------------------------------------------------------------- */

/* Rows or keys in shared memory, as lanes or as rows: channel d of number i is at[i * one + d *
 * channel]. */
struct grid {
    SHARED float *at;
    int one, channel;
};
DEV struct grid grid_of(SHARED float *at, int one, int channel)
{
    struct grid g;
    g.at = at;
    g.one = one;
    g.channel = channel;
    return g;
}
/* Rows as keys of a tile read them by a product.  Those that own it, or see none of it, are 0, and
 * so are those of `all` beyond `rows`.  carry, if not NULL: their factors, [channel][all], 0 for
 * such rows; with `steps` it has those of the next newer tile of the chunk.  True if all that this
 * thread makes are finite. */
DEV int load_moved_rows(struct block b, const struct span *q, int h, struct rows_at queries,
                        int row0, int rows, int all, int tile, float scale, int64_t factors,
                        int steps, int tid, SHARED float *carry, struct grid to)
{
    const GLOBAL float *factor = (const GLOBAL float *)(b.at.lists + factors)
                               + ((int64_t)q->b * b.p->heads + h) * b.p->q_len + q->q0 + row0;
    int finite = 1;
    for (int i = tid; i < all * (FOURS(DIM) / 4); i += THREADS) {
        const int r = i % all, d = i / all * 4,
                  newest = r < rows ? newest_seen(b, q, h, row0 + r) : -1, own = newest / KEYS,
                  reads = newest >= 0 && own > tile;
        const int begins = !steps || own == tile + 1;
        const four x = reads ? load_four_at(queries, r, d, DIM) : four_of(0, 0, 0, 0);
        for (int n = 0; n < 4; n++) {
            float y = n == 0 ? x.x : n == 1 ? x.y : n == 2 ? x.z : x.w, e = 0;
            if (reads && d + n < DIM) {
                e = begins ? carry_to(b, q, h, row0 + r, newest, tile, d + n)
                           : next_carry(b, q, h, newest, tile + 1, d + n,
                                        carry[(d + n) * all + r]);
                y = y * scale;
                if (factors >= 0) y = y * factor[r];
                y = y * e;
            }
            if (carry) carry[(d + n) * all + r] = e;
            to.at[r * to.one + (d + n) * to.channel] = y;
            finite &= y * 0.0f == 0.0f;
        }
    }
    return finite;
}
/* Keys of a level in a tile, those before they are staged, and in the places of upper halves the
 * factors of rows; with `plain` factors of keys alone.  Rows and keys of OLDER_TILE are there, and
 * so are zeros in channels beyond DIM. */
DEV void load_level_keys(struct block b, const struct span *q, int h, int key0, int n, int level,
                         int plain, int tid, struct grid to)
{
    const int size = level == OLDER_TILE ? KEYS : 1 << level; /* of a half */
    const struct rows_at keys = key_rows(b, q, h / (b.p->heads / b.p->kv_heads));
    const GLOBAL float *f = channel_gates_of(b, q, h);
    for (int i = tid; level != OLDER_TILE && i < DIM * (KEYS / size); i += THREADS) {
        const int d = i % DIM, side = i / DIM, upper = side % 2, first = key0 + side * size,
                  end = least(first + size, key0 + n);
        double sum = 0;
        for (int s = 0; s < size; s++) {
            const int k = side * size + (upper ? s : size - 1 - s);
            float x = 1;
            if (k >= n) continue;
            const double gate = channel_gate(f[(int64_t)(key0 + k) * DIM + d]);
            if (upper) sum += gate;
            if (q->segments && level != NEWEST_KEY)
                sum = upper ? sum_of_gates(b, q, f, d, key0 + k, first, key0 + k + 1, 1)
                            : sum_of_gates(b, q, f, d, key0 + k, end - 1, key0 + k, -1);
            if (level != NEWEST_KEY) x = factor_of_gates(sum);
            if (!upper) sum += gate;
            if (!upper && !plain)
                x = load_number(keys.at, keys.type, row_offset(keys, key0 + k) + d) * x;
            to.at[k * to.one + d * to.channel] = x;
        }
    }
}
/* Rows that own the tile times their factors of the level, which load_level_keys() has left in
 * `keys`; others are 0. */
DEV void load_level_rows(struct block b, const struct span *q, int h, int row0, int rows, int all,
                         int key0, int level, float scale, int64_t factors, int tid,
                         struct grid keys, struct grid to)
{
    for (int i = tid; level != OLDER_TILE && i < all * DIM; i += THREADS) {
        const int r = i % all, d = i / all,
                  number = (r < rows ? newest_seen(b, q, h, row0 + r) : -1) - key0;
        const int in = number >= 0 && number < KEYS
                    && (level == NEWEST_KEY || (number >> level & 1));
        float x = 0;
        if (in) x = query_number(b, q, h, row0 + r, d, scale, factors);
        if (in && level != NEWEST_KEY) x = x * keys.at[number * keys.one + d * keys.channel];
        to.at[r * to.one + d * to.channel] = x;
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* dq of the rows that own the tile, from their ds, [key][row]: adds to theirs of the carries, which
 * are [channel][row].  keys: those of the level, [key][channel]. */
DEV void add_level_rows(struct block b, const struct span *q, int h, int row0, int rows, int key0,
                        int level, const SHARED float *keys, int stride, const SHARED float *ds,
                        int tid, SHARED float *carry)
{
    for (int i = tid; i < TILE_ROWS * DIM; i += THREADS) {
        const int r = i % TILE_ROWS, d = i / TILE_ROWS,
                  newest = (r < rows ? newest_seen(b, q, h, row0 + r) : -1) - key0;
        float sum = 0;
        if (newest < 0 || newest >= KEYS) continue;
        if (level == NEWEST_KEY) {
            carry[i] = fma_(ds[newest * TILE_ROWS + r], keys[newest * stride + d], carry[i]);
            continue;
        }
        if (!(newest >> level & 1)) continue;
        const int middle = newest >> level << level;
        for (int k = middle - (1 << level); k < middle; k++)
            if (sees_older(b, q, h, row0 + r, key0 + k))
                sum = fma_(keys[k * stride + d], ds[k * TILE_ROWS + r], sum);
        carry[i] = carry[i] + times_factor(sum, keys[newest * stride + d]);
    }
}
/* What a tile gives to dq of a row: by a product d, or summed in its carry if it owns the tile. */
DEV float moved_gradient(struct block b, const struct span *q, int h, int row, int tile, float d,
                         float carry)
{
    const int newest = newest_seen(b, q, h, row);
    return newest < 0 || newest / KEYS < tile ? 0.0f
         : newest / KEYS == tile              ? carry
                                              : times_factor(d, carry);
}
/* The gradient of the keys by rows that own their tile, and for each key the sum of q dq of the
 * rows whose newest key it is: of an item, `gate_part`.  rows: q, [row][channel]; ds: [row][key];
 * factors of the level, [channel][key]. */
DEV void add_level_keys(struct block b, const struct span *q, int h, int row0, int rows, int key0,
                        int n, int level, const SHARED float *factors, const SHARED float *ds,
                        const SHARED float *row, int stride, int tid)
{
    GLOBAL float *part = gated_keys(b, USE(0).gate_part, q, h, 2 * DIM) + (int64_t)key0 * 2 * DIM;
    const int bit = level == NEWEST_KEY ? 0 : level;
    for (int i = tid; i < n * DIM; i += THREADS) {
        const int k = i / DIM, d = i % DIM,
                  first = level == NEWEST_KEY ? k : (k >> bit | 1) << bit;
        GLOBAL float *own = part + k * 2 * DIM + d, *by_newest = own + DIM;
        float sum = 0;
        if (level != NEWEST_KEY && (k >> bit & 1)) continue;
        for (int r = 0; r < rows; r++) {
            const int newest = newest_seen(b, q, h, row0 + r) - key0;
            const float x = row[r * stride + d];
            if (newest < first || newest >= first + (1 << bit)
                || !sees_older(b, q, h, row0 + r, key0 + k))
                continue;
            if (level == NEWEST_KEY) {
                *own = fma_(ds[r * KEYS + k], x, *own);
                *by_newest =
                    fma_(x, gated_row(b, USE(0).row_gradients, 0, q, h, row0 + r)[d], *by_newest);
            } else {
                sum = fma_(ds[r * KEYS + k], x * factors[d * KEYS + newest], sum);
            }
        }
        if (level != NEWEST_KEY) *own = *own + times_factor(sum, factors[d * KEYS + k]);
    }
}
/* Products add nothing for rows that own the tile: ds, [row][key]. */
DEV void clear_own_rows(struct block b, const struct span *q, int h, int row0, int key0, int tid,
                        SHARED float *ds)
{
    for (int i = tid; i < TILE_ROWS * KEYS; i += THREADS)
        if (level_of(b, q, h, row0 + i / KEYS, key0) != OLDER_TILE) ds[i] = 0;
}
/* An item is done with a head: its parts join the sums. */
DEV void join_gate_parts(struct block b, const struct span *q, int h, int key0, int n, int tid)
{
    GLOBAL float *part = gated_keys(b, USE(0).gate_part, q, h, 2 * DIM) + (int64_t)key0 * 2 * DIM;
    GLOBAL double *sum = gated_sums(b, q, h) + (int64_t)key0 * 2 * DIM;
    for (int i = tid; i < n * 2 * DIM; i += THREADS) {
        sum[i] = sum[i] + (double)part[i];
        part[i] = 0;
    }
}

/* From gradients of staged keys to dk, over the heads that read them; sums of q dq become those of
 * q dq - k dk.  A group has a tile of keys of a kv head. */
DEV void unstage_keys(struct block b)
{
    const int tile = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads,
              group = b.p->heads / b.p->kv_heads;
    const struct span q = span_of(b, BY_KTILE, tile);
    const int key0 = (tile - q.ktile) * KEYS, n = least(q.nk - key0, KEYS);
    const struct rows_at keys = key_rows(b, &q, kvh),
                         dk = view_rows(b.at.dk, b.p->dk, q.b, kvh, q.k0 + key0, GPU_F32, 0);
    PHASE(tid)
        for (int i = tid; i < group * DIM; i += THREADS) {
            const int h = kvh * group + i / DIM, d = i % DIM;
            const int64_t first = (int64_t)key0 * DIM + d;
            const GLOBAL float *f = channel_gates_of(b, &q, h),
                               *staged = gated_keys(b, USE(0).staged, &q, h, DIM) + first;
            GLOBAL float *g = gated_keys(b, USE(0).staged_gradients, &q, h, DIM) + first;
            GLOBAL double *own = gated_sums(b, &q, h) + (int64_t)key0 * 2 * DIM + d;
            double sum = 0;
            for (int k = n - 1; k >= 0; k--) {
                if (q.segments)
                    sum = sum_of_gates(b, &q, f, d, key0 + k, key0 + n - 1, key0 + k, -1);
                const float e = factor_of_gates(sum), kept = times_factor(g[k * DIM], 1.0f);
                const double mine = own[k * 2 * DIM];
                /* a key or a factor without a gradient may be NaN */
                const double key = kept == 0 ? 0.0 : (double)staged[k * DIM],
                             row = mine == 0 ? 0.0
                                             : (double)load_number(keys.at, keys.type,
                                                                   row_offset(keys, key0 + k) + d);
                own[k * 2 * DIM + DIM] =
                    own[k * 2 * DIM + DIM] - (key * (double)kept + row * mine);
                g[k * DIM] = (float)((kept == 0 ? 0.0 : (double)e) * (double)kept + mine);
                sum += channel_gate(f[first + k * DIM]);
            }
        }
    END
    PHASE(tid)
        for (int i = tid; i < n * DIM; i += THREADS) {
            const int k = i / DIM, d = i % DIM;
            float sum = 0;
            for (int h = kvh * group; h < (kvh + 1) * group; h++) {
                const float x = gated_keys(b, USE(0).staged_gradients, &q, h,
                                           DIM)[(int64_t)(key0 + k) * DIM + d];
                sum = h == kvh * group ? x : sum + x;
            }
            ((GLOBAL float *)b.at.dk)[dk.first + k * dk.row + d] = sum;
        }
    END
}
/* The gradient of a gate is the sum of q dq - k dk over the keys from it on that count for key
 * `oldest`.  All of them are 0, so where one is NaN, older ones are summed from the oldest key. */
DEV void store_gates_of(struct block b, const struct span *q, int h, int oldest, int d,
                        GLOBAL float *to)
{
    const GLOBAL float *f = channel_gates_of(b, q, h);
    const GLOBAL double *sums = gated_sums(b, q, h) + DIM;
    double sum = 0;
    for (int l = q->nk - 1; l >= oldest; l--) {
        const int64_t i = (int64_t)l * DIM + d;
        if (!in_segment(b, q, l, oldest)) continue;
        sum += sums[i + (int64_t)l * DIM];
        to[i] = f[i] <= -10000.0f ? 0.0f : (float)sum;
    }
    if (sum - sum != 0) {
        sum = 0;
        for (int l = oldest; l < q->nk && sum - sum == 0; l++) {
            const int64_t i = (int64_t)l * DIM + d;
            if (!in_segment(b, q, l, oldest)) continue;
            to[i] = f[i] <= -10000.0f ? 0.0f : (float)-sum;
            sum += sums[i + (int64_t)l * DIM];
        }
    }
    to[(int64_t)oldest * DIM + d] = 0;
}
/* dlog_f of a sequence and a head, `to`. */
DEV void store_channel_gates(struct block b, const struct span *q, int h, int tid,
                             GLOBAL float *to)
{
    for (int d = tid; d < DIM && q->nq && q->nk && !q->segments; d += THREADS)
        store_gates_of(b, q, h, 0, d, to);
    for (int oldest = tid; oldest < q->nk && q->nq && q->segments; oldest += THREADS) {
        int begins = 1;
        for (int l = 0; l < oldest && begins; l++) begins = !in_segment(b, q, l, oldest);
        for (int d = 0; d < DIM && begins; d++) store_gates_of(b, q, h, oldest, d, to);
    }
}

#endif
