/* SPDX-License-Identifier: MIT */
/* vectors_back.h -- backward: gradients of products with vectors, after backward_rows has stored
 * ds, by distance where rows or keys meet the vectors of a table (shaw, deberta), by key where each
 * distance has its own (xl), and where positions are not consecutive (deberta).  Totals of what is
 * learned have one thread per number, which walks over items, chunks and tiles of rows in the order
 * of docs/bits.md, Backward. */
#ifndef LOCI_GPU_KERNELS_VECTORS_BACK_H
#define LOCI_GPU_KERNELS_VECTORS_BACK_H

#include "kernels/backward.h"

/* A row of q of a head, scaled and rotated. */
DEV const GLOBAL float *query_row(struct block b, const struct span *q, int h, int row)
{
    return (const GLOBAL float *)b.at.q + q->b * b.p->q.batch + h * b.p->q.head
         + (int64_t)(q->q0 + row) * b.p->q.row;
}
DEV float dout_number(struct block b, const struct span *q, int h, int row, int d)
{
    return b.at.dout ? load_number(b.at.dout, O_TYPE,
                                   q->b * b.p->dout.batch + h * b.p->dout.head
                                       + (int64_t)(q->q0 + row) * b.p->dout.row + d)
                     : 0.0f;
}
DEV GLOBAL float *dq_row(struct block b, const struct span *q, int h, int row)
{
    return (GLOBAL float *)b.at.dq + q->b * b.p->dq.batch + h * b.p->dq.head
         + (int64_t)(q->q0 + row) * b.p->dq.row;
}
/* The newest chunk that a tile of rows sees. */
DEV int newest_chunk(struct block b, const struct span *q, int row0, int rows)
{
    const struct keys_seen seen = keys_of(b, q, row0, rows);
    return seen.last < seen.first ? first_chunk(b, q, row0) : seen.last / CHUNK;
}

/* ---- Vectors that rows meet ------------------------------------------------------------------ */

/* A group has 64 rows of a head: dq, and the sums. */
DEV void finish_row_vectors(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const struct gpu_use u = USE(b.p->vector_use);
    const int row0 = (tile - q.tile) * TILE_ROWS, rows = least(q.nq - row0, TILE_ROWS);
    const struct row_reach a = row_reach_of(b, u, &q, row0, rows);
    const GLOBAL float *table =
        (const GLOBAL float *)(b.at.tables + u.vectors_at) + h * u.vectors_head;
    PHASE(tid) /* the sums of a scan are there */
        const int count = rows * u.vectors;
        for (int i = tid; u.term == GPU_SCAN && i < count; i += THREADS)
            sums_of_row(b, u, 0, &q, h, row0)[i] = by_position(b, u.by_all, &q, h, row0)[i] * u.b;
    END
    PHASE(tid)
        const int r = tid % TILE_ROWS, part = tid / TILE_ROWS, parts = THREADS / TILE_ROWS;
        if (r < rows && u.term == GPU_ROW_VECTORS)
            gather_row(b, u, a, 0, &q, h, row0 + r, part, parts, u.by_row,
                       row_by_distance(b, b.p->ds_by_distance, &q, h, row0 + r), 0, 0);
        if (r < rows && u.term == GPU_ROW_VECTORS && u.values_at >= 0 && b.p->p_by_distance >= 0)
            gather_row(b, u, a, 1, &q, h, row0 + r, part, parts, u.by_row + 2,
                       row_by_distance(b, b.p->p_by_distance, &q, h, row0 + r), 0, 0);
    END
    PHASE(tid)
        for (int i = tid; b.at.dq && a.to >= a.from && i < rows * DIM; i += THREADS) {
            const int r = i / DIM, d = i % DIM;
            const GLOBAL float *w = sums_of_row(b, u, 0, &q, h, row0 + r),
                               *k = table + (int64_t)d * u.columns;
            const int step = u.term == GPU_SCAN ? u.value_width : 1;
            GLOBAL float *to = dq_row(b, &q, h, row0 + r) + d;
            float sum = 0;
            for (int n = a.first; n < a.first + a.count; n++) sum = fma_(k[n * step], w[n], sum);
            *to = *to + sum;
        }
    END
}
/* Number i of the vectors of a table, [rows][padded D], of one head or of all; or of those of
 * values, which come behind them.  A scan whose gates calls give has sums for each batch entry, of
 * a head or of those that share keys. */
DEV void row_vector_totals(struct block b)
{
    const struct gpu_use u = USE(b.p->vector_use);
    const int by_entry = u.term == GPU_SCAN && u.gates == GATES_OF_INPUT,
              abreast = u.vectors_head ? b.p->heads : by_entry ? b.p->kv_heads : 1,
              tables = by_entry ? abreast * b.p->batch : abreast, heads = b.p->heads / abreast;
    const int values = b.p->vector_values,
              dim = values ? VALUE_DIM : DIM, width = (dim + 15) / 16 * 16;
    const int64_t each = (int64_t)u.vectors * ((DIM + 15) / 16 * 16), /* of vectors, and of all */
        all_of = each + (u.values_at < 0 ? 0 : (int64_t)u.vectors * ((VALUE_DIM + 15) / 16 * 16));
    PHASE(tid)
        const int i = b.x / tables * THREADS + tid, table = b.x % tables, n = i / width,
                  d = i % width, head = table % abreast * heads;
        double total = 0;
        for (int s = b.p->sequences - 1; s >= 0 && n < u.vectors && d < dim; s--) {
            const struct span q = span_at(b, s);
            if (by_entry && q.b != table / abreast) continue;
            for (int item = (q.nq + ITEM - 1) / ITEM - 1; item >= 0; item--)
                for (int h = head; h < head + heads; h++) {
                    const int end = least(q.nq, item * ITEM + ITEM);
                    double all = 0;
                    float part = 0;
                    int chunk = -1;
                    for (int row0 = item * ITEM; row0 < end; row0 += TILE_ROWS) {
                        const int rows = least(q.nq - row0, TILE_ROWS),
                                  now = newest_chunk(b, &q, row0, rows);
                        const struct row_reach a = row_reach_of(b, u, &q, row0, rows);
                        float sum = 0;
                        if (now != chunk) {
                            all += (double)part;
                            part = 0;
                        }
                        chunk = now;
                        if (n < a.first || n >= a.first + a.count || a.to < a.from) continue;
                        for (int r = 0; r < rows; r++) {
                            const float w = sums_of_row(b, u, values, &q, h, row0 + r)[n];
                            const float x = values ? dout_number(b, &q, h, row0 + r, d)
                                                   : query_row(b, &q, h, row0 + r)[d];
                            if (w != 0) sum = fma_(w, x, sum);
                        }
                        part = part + sum;
                    }
                    total += all + (double)part;
                }
        }
        if (n < u.vectors)
            ((GLOBAL double *)
                 b.at.totals)[u.direct + table * all_of + (values ? each : 0) + i] = total;
    END
}

/* ---- Vectors that keys meet ------------------------------------------------------------------ */

/* Where positions are not consecutive: sums of an item, a head and a chunk by distance,
 * [columns][DIM], and behind them those of a pair of tiles. */
DEV GLOBAL float *key_parts_of(struct block b, struct gpu_use u, const struct span *q, int item,
                               int h, int chunk)
{
    return (GLOBAL float *)(b.at.vectors + b.p->key_parts)
         + (((int64_t)(q->item + item) * b.p->heads + h) * b.p->chunks + chunk) * 2 * u.columns
               * DIM;
}
/* A group has an item, a head and a chunk, and goes over their pairs. */
DEV void key_vector_pairs(struct block b)
{
    const struct gpu_use u = USE(b.p->vector_use);
    const int chunk = b.x % b.p->chunks, head = b.x / b.p->chunks, h = head % b.p->heads;
    const struct span q = span_of(b, BY_ITEM, head / b.p->heads);
    const int item = head / b.p->heads - q.item, end = least(q.nq, item * ITEM + ITEM),
              last = least(q.nk, chunk * CHUNK + CHUNK), count = u.columns * DIM;
    const struct rows_at keys =
        view_rows(b.at.k, b.p->k, q.b, h / (b.p->heads / b.p->kv_heads), q.k0, K_TYPE, 0);
    GLOBAL float *part = key_parts_of(b, u, &q, item, h, chunk), *sum = part + count;
    PHASE(tid)
        for (int d = tid; d < DIM && !q.run; d += THREADS) {
            for (int n = d; n < count; n += DIM) part[n] = 0;
            for (int row0 = item * ITEM; row0 < end; row0 += TILE_ROWS)
                for (int k0 = chunk * CHUNK; k0 < last; k0 += KEYS) {
                    for (int n = d; n < count; n += DIM) sum[n] = 0;
                    for (int k = k0; k < least(last, k0 + KEYS); k++) {
                        const float x =
                            load_number(keys.at, keys.type, row_offset(keys, k) + d);
                        for (int r = row0; r < least(end, row0 + TILE_ROWS); r++) {
                            const float g = b.p->scale * ds_of_keys(b, &q, h, r)[k];
                            const int64_t at =
                                clamp_distance(distance_of(b, &q, r, k), u.lo, u.hi) - u.lo
                                + GPU_KEY_MARGIN;
                            if (g != 0) sum[at * DIM + d] = fma_(g, x, sum[at * DIM + d]);
                        }
                    }
                    for (int n = d; n < count; n += DIM) part[n] = part[n] + sum[n];
                }
        }
    END
}
/* Number i of the vectors by distance, [D][columns], of a head. */
DEV void key_vector_totals(struct block b)
{
    const struct gpu_use u = USE(b.p->vector_use);
    PHASE(tid)
        const int h = b.x % b.p->heads, i = b.x / b.p->heads * THREADS + tid,
                  d = i / u.columns, n = u.lo - GPU_KEY_MARGIN + i % u.columns; /* the distance */
        double total = 0;
        for (int s = b.p->sequences - 1; s >= 0 && d < DIM; s--) {
            const struct span q = span_at(b, s);
            const struct rows_at keys =
                view_rows(b.at.k, b.p->k, q.b, h / (b.p->heads / b.p->kv_heads), q.k0, K_TYPE, 0);
            for (int item = (q.nq + ITEM - 1) / ITEM - 1; item >= 0; item--) {
                const struct keys_seen all_seen =
                    keys_of(b, &q, item * ITEM, least(q.nq - item * ITEM, ITEM));
                double all = 0;
                for (int chunk = all_seen.first / CHUNK;
                     q.nk && chunk <= all_seen.last / CHUNK; chunk++) {
                    float part = 0;
                    if (!q.run)
                        part = key_parts_of(b, u, &q, item, h, chunk)[i % u.columns * DIM + d];
                    for (int row0 = item * ITEM;
                         q.run && row0 < least(q.nq, item * ITEM + ITEM); row0 += TILE_ROWS) {
                        const int rows = least(q.nq - row0, TILE_ROWS);
                        const struct keys_seen seen = keys_of(b, &q, row0, rows);
                        const int64_t key = q.d0 + row0 - n; /* of the first row */
                        int64_t from = most(seen.first, chunk * CHUNK) / KEYS * KEYS,
                                to = least(seen.last, chunk * CHUNK + CHUNK - 1);
                        if (key > from) from = key / 16 * 16;
                        if (key + TILE_ROWS - 1 < to) to = key + TILE_ROWS - 1;
                        for (int k0 = (int)from; k0 <= to; k0 += 16) {
                            const int count = least(seen.last + 1 - k0, 16);
                            float sum = 0;
                            if (key_end(u, q.d0 + row0 - k0, count)) continue;
                            for (int k = k0; k < k0 + count; k++) {
                                const int r = (int)(k - key);
                                if (r < 0 || r >= rows) continue;
                                const float g = b.p->scale * ds_at(b, &q, h, row0 + r, n);
                                if (g != 0)
                                    sum = fma_(load_number(keys.at, keys.type,
                                                           row_offset(keys, k) + d),
                                               g, sum);
                            }
                            part = part + sum;
                        }
                    }
                    all += (double)part;
                }
                total += all;
            }
        }
        if (d < DIM)
            ((GLOBAL double *)b.at.totals)[u.direct + (int64_t)h * DIM * u.columns + i] = total;
    END
}

/* ---- A vector for every distance ------------------------------------------------------------- */

/* The distances of a tile of rows in blocks of 64: block j ends at that of the first row and key
 * 64 j.  Tile j of keys fills blocks j - 1 and j.  Two blocks are kept.  A block is summed when
 * another one takes its place, and the last two in the end (src/terms/roll.c). */
struct roll_step {
    int32_t block, chunk; /* the chunk in which the block is summed */
};
/* Steps of a tile of rows: the last ones, from `ends` on, are those in the end. */
struct roll_steps {
    int32_t count, ends;
};
DEV GLOBAL struct roll_steps *roll_steps_of(struct block b, const struct span *q, int h, int row0)
{
    return (GLOBAL struct roll_steps *)(b.at.vectors + b.p->roll_steps)
         + ((int64_t)(q->tile + row0 / TILE_ROWS) * b.p->heads + h) * ROLL_STEPS(b.p->key_tiles);
}
DEV GLOBAL struct roll_step *roll_list(GLOBAL struct roll_steps *s)
{
    return (GLOBAL struct roll_step *)(s + 1);
}
/* Does a row see a key of a tile of keys? */
DEV int is_seen(struct block b, const struct span *q, int h, int row0, int rows, int tile)
{
    if (!LISTED) return 1;
    for (int k = tile * KEYS; k < least(q->nk, tile * KEYS + KEYS); k++)
        for (int r = row0; r < row0 + rows; r++)
            if (sees(b, q, h, r, k)) return 1;
    return 0;
}
/* A block that has no place takes that of the one that is not `other`, which is summed now. */
DEV void place_block(struct roll_step *places, int block, int other, int chunk,
                     GLOBAL struct roll_steps *s)
{
    if (places[0].block == block || places[1].block == block) return;
    struct roll_step *place = &places[places[0].block == other];
    if (place->chunk >= 0) {
        place->chunk = chunk;
        roll_list(s)[s->count++] = *place;
    }
    place->block = block;
    place->chunk = chunk;
}
/* Have the sticks of a row tile ended before a tile of keys?  With cape those of all heads. */
DEV int sticks_ended(struct block b, const struct span *q, int h, int row0, int rows, int tile)
{
    int ended = STICK;
    for (int i = MIXES ? 0 : h; i < (MIXES ? b.p->heads : h + 1) && ended; i++)
        ended = stick_ended(b, q, i, row0, rows, tile);
    return ended;
}
DEV void list_roll_blocks(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads, none = -2;
    const struct span q = span_of(b, BY_TILE, tile);
    const int row0 = (tile - q.tile) * TILE_ROWS, rows = least(q.nq - row0, TILE_ROWS);
    const struct keys_seen seen = keys_of(b, &q, row0, rows);
    const int first = seen.first / KEYS, last = seen.last < seen.first ? -1 : seen.last / KEYS;
    GLOBAL struct roll_steps *s = roll_steps_of(b, &q, h, row0);
    GLOBAL int32_t *met = (GLOBAL int32_t *)(roll_list(s) + 2 * b.p->key_tiles);
    PHASE(tid)
        for (int j = first + tid; j <= last && q.run; j += THREADS)
            met[j] = is_seen(b, &q, h, row0, rows, j)
                  && !sticks_ended(b, &q, h, row0, rows, j);
    END
    PHASE(tid)
        for (int once = tid; once < 1; once += THREADS) {
            struct roll_step places[2] = { { none, -1 }, { none, -1 } };
            s->count = 0;
            for (int j = first; j <= last && q.run; j++) {
                if (!met[j]) continue;
                place_block(places, j, j - 1, j / (CHUNK / KEYS), s);
                place_block(places, j - 1, j, j / (CHUNK / KEYS), s);
            }
            s->ends = s->count;
            for (int i = 0; i < 2; i++) {
                if (places[i].chunk < 0) continue;
                places[i].chunk = seen.last / CHUNK;
                roll_list(s)[s->count++] = places[i];
            }
        }
    END
}
/* Distances of a block that have vectors of their own, low .. high, of which the first is number i
 * of the block: the others count as the nearer end. */
struct roll_own {
    int64_t low, high, first;
    int i;
};
DEV struct roll_own roll_own_of(struct gpu_use u, int64_t d0, int j)
{
    struct roll_own o;
    o.first = d0 - (int64_t)j * KEYS - (KEYS - 1);
    o.low = clamp_distance(o.first, u.lo, u.hi);
    o.high = clamp_distance(o.first + KEYS - 1, u.lo, u.hi);
    o.i = (int)clamp_distance(o.low - o.first, 0, KEYS - 1);
    return o;
}
/* ds of row number r of the tile and the key at distance number n of a block.  d0: of the first row
 * and key 0; ds: of the row and key 0. */
DEV float roll_pair(const struct span *q, const GLOBAL float *ds, struct roll_own o, int64_t d0,
                    int r, int n)
{
    const int64_t key = d0 + r - (o.first + n);
    return key >= 0 && key < q->nk ? ds[key] : 0.0f;
}
/* The same of a distance with a vector of its own, and those that count as it. */
DEV float roll_ds(const struct span *q, const GLOBAL float *ds, struct roll_own o, int64_t d0,
                  int r, int64_t d)
{
    const int at = o.i + (int)(d - o.low);
    float sum = roll_pair(q, ds, o, d0, r, at);
    for (int n = 0; n < o.i && d == o.low; n++) sum = sum + roll_pair(q, ds, o, d0, r, n);
    for (int n = at + 1; n < KEYS && d == o.high; n++) sum = sum + roll_pair(q, ds, o, d0, r, n);
    return sum;
}
/* v of a head; the vector of distance d is (1 + hi - d) widths behind. */
DEV const GLOBAL float *roll_vectors(struct block b, struct gpu_use u, int h)
{
    return (const GLOBAL float *)(b.at.tables + u.vectors_at) + h * u.vectors_head;
}
/* A group has 64 rows of a head: dq, and the gradient of v. */
DEV void roll_rows(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const struct gpu_use u = USE(b.p->vector_use);
    const int row0 = (tile - q.tile) * TILE_ROWS, rows = least(q.nq - row0, TILE_ROWS);
    const int64_t d0 = q.d0 + row0;
    GLOBAL struct roll_steps *s = roll_steps_of(b, &q, h, row0);
    const GLOBAL float *v = roll_vectors(b, u, h) + (int64_t)(1 + u.hi) * u.width;
    PHASE(tid)
        for (int i = tid; i < TILE_ROWS * DIM; i += THREADS) {
            const int r = i / DIM, d = i % DIM;
            const GLOBAL float *ds = ds_of_keys(b, &q, h, row0 + (r < rows ? r : 0));
            float all = 0, part = 0;
            for (int n = 0; n < s->count && r < rows; n++) {
                const struct roll_step step = roll_list(s)[n];
                const struct roll_own o = roll_own_of(u, d0, step.block);
                float sum = 0;
                for (int64_t x = o.low; x <= o.high; x++)
                    sum = fma_(v[d - x * u.width], roll_ds(&q, ds, o, d0, r, x), sum);
                if (n == s->ends || (n && step.chunk != roll_list(s)[n - 1].chunk)) {
                    all = all + part;
                    part = 0;
                }
                if (n < s->ends) part = part + sum;
                else all = all + sum;
            }
            for (int k = 0; k < q.nk && !q.run && r < rows; k++) {
                const int64_t x = clamp_distance(distance_of(b, &q, row0 + r, k), u.lo, u.hi);
                if (ds[k] != 0) part = fma_(ds[k], v[d - x * u.width], part);
                if (k + 1 < q.nk && (k + 1) % CHUNK) continue;
                all = all + part;
                part = 0;
            }
            b.room[i] = all;
            if (b.at.dq && r < rows) {
                GLOBAL float *to = dq_row(b, &q, h, row0 + r) + d;
                *to = *to + all;
            }
        }
    END
    PHASE(tid)
        for (int d = tid; PARTS && u.count && d < DIM; d += THREADS) {
            float sum = 0;
            for (int r = 0; r < TILE_ROWS; r++) sum = sum + b.room[r * DIM + d];
            part_of(b, tile, h, newest_chunk(b, &q, row0, rows))[u.part + d] = b.p->scale * sum;
        }
    END
}
/* Gradients of vectors are summed for each item and chunk: [items][H][chunks][distances][width],
 * from this distance on. */
DEV int64_t roll_first(struct gpu_use u, const struct span *q, int item, int chunk)
{
    return clamp_distance(q->d0 + item * ITEM - (least(q->nk, chunk * CHUNK + CHUNK) - 1) - KEYS,
                          u.lo, u.hi);
}
DEV int64_t roll_last(struct gpu_use u, const struct span *q, int item, int chunk)
{
    const int rows = least(q->nq - item * ITEM, ITEM);
    return clamp_distance(q->d0 + item * ITEM + rows - 1 + 2 * KEYS - chunk * CHUNK, u.lo, u.hi);
}
/* Is a block that is summed in a chunk too far from its keys to have a place among these distances?
 * Then its gradients of vectors go through their waves at once. */
DEV int is_apart(struct gpu_use u, const struct span *q, int item, int chunk, struct roll_own o)
{
    return o.low < roll_first(u, q, item, chunk) || o.high > roll_last(u, q, item, chunk);
}
/* q + v of a head. */
DEV float roll_query(struct block b, struct gpu_use u, const struct span *q, int h, int row, int d)
{
    return fma_(b.p->scale, roll_vectors(b, u, h)[d], query_row(b, q, h, row)[d]);
}
/* Number d of the gradient of the vector at distance x, over the rows of a tile. */
DEV float roll_vector(struct block b, struct gpu_use u, const struct span *q, int h, int row0,
                      int rows, struct roll_own o, int64_t x, int d)
{
    float sum = 0;
    for (int r = 0; r < rows; r++) {
        const float g = roll_ds(q, ds_of_keys(b, q, h, row0 + r), o, q->d0 + row0, r, x);
        if (g != 0) sum = fma_(g, roll_query(b, u, q, h, row0 + r, d), sum);
    }
    return sum;
}
/* Gradients of vectors by distance, [sequences][items][chunks][H][ROLL_BLOCKS][KEYS][width]. */
DEV GLOBAL float *roll_parts_of(struct block b, struct gpu_use u, const struct span *q, int item,
                                int h, int chunk)
{
    const int64_t head = ((int64_t)item * ROLL_CHUNKS(q->nk) + chunk) * b.p->heads + h;
    return (GLOBAL float *)(b.at.vectors + b.p->roll_parts)
         + ((int64_t)q->roll * b.p->heads + head * ROLL_BLOCKS(q->nq, q->nk)) * KEYS * u.width;
}
/* A group has 64 distances of an item, a head and a chunk. */
DEV void roll_parts(struct block b)
{
    const struct gpu_use u = USE(b.p->vector_use);
    const struct span q = span_of(b, BY_ROLL, b.x / b.p->heads);
    const int own = b.x - q.roll * b.p->heads, blocks = ROLL_BLOCKS(q.nq, q.nk),
              n0 = own % blocks * KEYS, head = own / blocks, h = head % b.p->heads,
              chunk = head / b.p->heads % ROLL_CHUNKS(q.nk),
              item = head / b.p->heads / ROLL_CHUNKS(q.nk), end = least(q.nq, item * ITEM + ITEM);
    GLOBAL float *to = roll_parts_of(b, u, &q, item, h, chunk);
    PHASE(tid)
        for (int i = tid; i < KEYS * DIM; i += THREADS) {
            const int n = n0 + i / DIM, d = i % DIM;
            const int64_t x = roll_first(u, &q, item, chunk) + n;
            float part = 0;
            for (int row0 = item * ITEM; row0 < end && x <= u.hi; row0 += TILE_ROWS) {
                const int rows = least(q.nq - row0, TILE_ROWS);
                const int64_t d0 = q.d0 + row0;
                GLOBAL struct roll_steps *s = roll_steps_of(b, &q, h, row0);
                for (int k = 0; k < s->count; k++) {
                    const struct roll_own o = roll_own_of(u, d0, roll_list(s)[k].block);
                    if (roll_list(s)[k].chunk != chunk || x < o.low || x > o.high
                        || is_apart(u, &q, item, chunk, o))
                        continue;
                    part = part + roll_vector(b, u, &q, h, row0, rows, o, x, d);
                }
            }
            to[(int64_t)n * u.width + d] = part;
        }
    END
}
/* Row d and column m of dW, of an item and a chunk: from blocks that are apart, and from all pairs
 * where positions are not consecutive.  These have no sums by distance. */
DEV float apart_gradient(struct block b, struct gpu_use u, const struct span *q, int item, int h,
                        int chunk, int d, int m)
{
    const GLOBAL float *waves = (const GLOBAL float *)(b.at.tables + u.waves_at) + m
                              - (int64_t)u.lo * u.columns;
    const int last = least(q->nk, chunk * CHUNK + CHUNK);
    float part = 0;
    for (int row0 = item * ITEM; row0 < least(q->nq, item * ITEM + ITEM); row0 += TILE_ROWS) {
        const int rows = least(q->nq - row0, TILE_ROWS);
        GLOBAL struct roll_steps *s = roll_steps_of(b, q, h, row0);
        float sum = 0;
        for (int k = 0; k < s->count; k++) {
            const struct roll_own o = roll_own_of(u, q->d0 + row0, roll_list(s)[k].block);
            if (roll_list(s)[k].chunk != chunk || !is_apart(u, q, item, chunk, o)) continue;
            for (int64_t x = o.low; x <= o.high; x++)
                sum = fma_(roll_vector(b, u, q, h, row0, rows, o, x, d), waves[x * u.columns], sum);
        }
        for (int key = chunk * CHUNK; key < last && !q->run; key++)
            for (int r = row0; r < row0 + rows; r++) {
                const float g = ds_of_keys(b, q, h, r)[key];
                const int64_t x = clamp_distance(distance_of(b, q, r, key), u.lo, u.hi);
                if (g != 0)
                    sum = fma_(g * roll_query(b, u, q, h, r, d), waves[x * u.columns], sum);
            }
        part = part + sum;
    }
    return part;
}
/* Number i of W of a head, [D][columns]: gradients of vectors times waves, 64 distances at a time.
 */
DEV void roll_totals(struct block b)
{
    const struct gpu_use u = USE(b.p->vector_use);
    const GLOBAL float *waves = (const GLOBAL float *)(b.at.tables + u.waves_at);
    PHASE(tid)
        const int h = b.x % b.p->heads, i = b.x / b.p->heads * THREADS + tid, d = i / u.columns,
                  m = i % u.columns;
        double total = 0;
        for (int s = b.p->sequences - 1; s >= 0 && d < DIM; s--) {
            const struct span q = span_at(b, s);
            for (int item = (q.nq + ITEM - 1) / ITEM - 1; item >= 0 && q.nk; item--) {
                const struct keys_seen seen =
                    keys_of(b, &q, item * ITEM, least(q.nq - item * ITEM, ITEM));
                double all = 0;
                for (int chunk = seen.first / CHUNK; chunk <= seen.last / CHUNK; chunk++) {
                    const int64_t first = roll_first(u, &q, item, chunk),
                                  last = roll_last(u, &q, item, chunk);
                    const GLOBAL float *from = roll_parts_of(b, u, &q, item, h, chunk);
                    float part = LISTED ? apart_gradient(b, u, &q, item, h, chunk, d, m) : 0.0f;
                    for (int64_t x = first; x <= last && q.run; x += KEYS) {
                        float sum = 0;
                        for (int64_t y = x; y < x + KEYS && y <= last; y++)
                            sum = fma_(from[(y - first) * u.width + d],
                                       waves[(y - u.lo) * u.columns + m], sum);
                        part = part + sum;
                    }
                    all += (double)part;
                }
                total += all;
            }
        }
        if (d < DIM)
            ((GLOBAL double *)b.at.totals)[u.direct + (int64_t)h * DIM * u.columns + i] = total;
    END
}

#endif
