/* SPDX-License-Identifier: MIT */
/* vectors.h -- products of rows of q, or of keys, with the vectors of a table (shaw, deberta, xl),
 * before scores look them up by distance.  A group has rows of a head.  See docs/bits.md, Terms. */
#ifndef LOCI_GPU_KERNELS_VECTORS_H
#define LOCI_GPU_KERNELS_VECTORS_H

#include "kernels/visible.h"

/* From q, of q_len rows, to the numbers of the use: [B][H][q_len][vectors].  Or from dO, with the
 * vectors of values, which are rows. */
DEV void vector_numbers(struct block b)
{
    const int tiles = (b.p->q_len + VECTOR_ROWS - 1) / VECTOR_ROWS;
    const int row0 = b.x % tiles * VECTOR_ROWS, rows = least(b.p->q_len - row0, VECTOR_ROWS);
    const int h = b.x / tiles % b.p->heads, batch = b.x / tiles / b.p->heads;
    const int64_t list = ((int64_t)batch * b.p->heads + h) * b.p->q_len + row0;
    const struct gpu_use u = USE(b.p->vector_use);
    const int values = b.p->vector_values, count = u.vectors, dim = values ? VALUE_DIM : DIM;
    const int columns = values ? 1 : u.columns,
              apart = values || u.term == GPU_SCAN ? u.value_width : 1;
    const GLOBAL float *table =
        (const GLOBAL float *)(b.at.tables + (values ? u.values_at : u.vectors_at))
        + h * u.vectors_head + (u.term == GPU_KEY_VECTORS ? GPU_KEY_MARGIN : 0);
    struct rows_at x = view_rows(b.at.q, b.p->q, b.p->q_paged ? 0 : batch, h / b.p->vector_share,
                                 b.p->q_paged ? 0 : row0, b.p->q_type, 0);
    if (b.p->q_paged) {
        x.pages = (const GLOBAL int32_t *)(b.at.lists + b.p->pages)
                + (int64_t)batch * b.p->page_entry;
        x.page = b.p->q.batch;
        x.length = b.p->page_keys;
        x.from = row0;
    }
    PHASE(tid)
        for (int i = tid; i < VECTOR_ROWS * dim; i += THREADS) {
            const int r = i / dim, d = i % dim;
            float y = 0;
            if (r < rows && b.at.q
                && (b.p->used < 0
                    || b.at.lists[b.p->used + (int64_t)batch * b.p->q_len + row0 + r])) {
                y = load_number(x.at, x.type, row_offset(x, r) + d) * b.p->vector_scale;
                if (b.p->q_factor >= 0)
                    y = y * ((const GLOBAL float *)(b.at.lists + b.p->q_factor))[list + r];
            }
            b.room[i] = y;
        }
    END
    PHASE(tid)
        for (int n = tid; n < count; n += THREADS) {
            float c[VECTOR_ROWS];
            const int64_t from = values ? u.value_numbers : u.numbers;
            GLOBAL float *to = (GLOBAL float *)(b.at.vectors + from) + list * count + n;
            UNROLL for (int r = 0; r < VECTOR_ROWS; r++) c[r] = 0;
            ROLLED for (int d = 0; d < dim; d++) {
                const float a = table[(int64_t)d * columns + n * apart];
                UNROLL for (int r = 0; r < VECTOR_ROWS; r++)
                    c[r] = fma_(a, b.room[r * dim + d], c[r]);
            }
            for (int r = 0; r < rows; r++)
                to[(int64_t)r * count] = u.term == GPU_SCAN ? c[r] * u.b : c[r];
        }
    END
}

/* xl: products of the rows of a tile with the vectors of their distances, [B][H][q_len][k_len].  On
 * a run a thread has a distance, which 16 rows meet at 16 keys. */
DEV void roll_numbers(struct block b)
{
    const struct gpu_use u = USE(b.p->vector_use);
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads, width = u.width;
    const struct span q = span_of(b, BY_TILE, tile);
    const int first = (tile - q.tile) * b.p->vector_rows,
              end = least(q.nq, first + b.p->vector_rows);
    const int64_t lo = u.lo, hi = u.hi;
    const GLOBAL float *v = (const GLOBAL float *)(b.at.tables + u.vectors_at) + h * u.vectors_head,
                       *vectors = v + (1 + hi) * width; /* of distance 0 */
    for (int row0 = first; row0 < end; row0 += VECTOR_ROWS) {
        const int rows = least(end - row0, VECTOR_ROWS);
        const int64_t list = ((int64_t)q.b * b.p->heads + h) * b.p->q_len + q.q0 + row0;
        GLOBAL float *to =
            (GLOBAL float *)(b.at.vectors + u.numbers) + list * b.p->k_len + q.k0;
        const struct rows_at x = view_rows(b.at.q, b.p->q, q.b, h, q.q0 + row0, b.p->q_type, 0);
        PHASE(tid)
            for (int i = tid; i < VECTOR_ROWS * DIM; i += THREADS) {
                const int r = i / DIM, d = i % DIM;
                float y = 0;
                if (r < rows)
                    y = load_number(x.at, x.type, row_offset(x, r) + d) * b.p->vector_scale;
                if (r < rows && b.p->q_factor >= 0)
                    y = y * ((const GLOBAL float *)(b.at.lists + b.p->q_factor))[list + r];
                b.room[i] = fma_(b.p->scale, v[d], y);
            }
        END
        PHASE(tid)
            for (int n = tid - (VECTOR_ROWS - 1); q.run && n < q.nk; n += THREADS) {
                float c[VECTOR_ROWS];
                const int64_t d0 = q.d0 + row0 - n;
                const GLOBAL float *a = vectors - (d0 < lo ? lo : d0 > hi ? hi : d0) * width;
                UNROLL for (int r = 0; r < VECTOR_ROWS; r++) c[r] = 0;
                ROLLED for (int d = 0; d < DIM; d++)
                    UNROLL for (int r = 0; r < VECTOR_ROWS; r++)
                        c[r] = fma_(a[d], b.room[r * DIM + d], c[r]);
                for (int r = 0; r < rows; r++)
                    if (n + r >= 0 && n + r < q.nk) to[(int64_t)r * b.p->k_len + n + r] = c[r];
            }
            for (int i = tid; !q.run && i < rows * q.nk; i += THREADS) {
                const int r = i / q.nk, key = i % q.nk;
                const int64_t d0 = distance_of(b, &q, row0 + r, key);
                const GLOBAL float *a = vectors - (d0 < lo ? lo : d0 > hi ? hi : d0) * width;
                float c = 0;
                for (int d = 0; d < DIM; d++) c = fma_(a[d], b.room[r * DIM + d], c);
                to[(int64_t)r * b.p->k_len + key] = c;
            }
        END
    }
}

/* The product of a pair for term u. */
DEV float vector_number(struct block b, int u, int term, const struct span *q, int h, int row,
                        int key, distance_t d)
{
    const GLOBAL float *from = (const GLOBAL float *)(b.at.vectors + USE(u).numbers);
    const int64_t lo = USE(u).lo, hi = USE(u).hi,
                  at = (d < lo ? lo : d > hi ? hi : d) - lo, head = (int64_t)q->b * b.p->heads + h;
    if (term == GPU_ROLL)
        return from[(head * b.p->q_len + q->q0 + row) * b.p->k_len + q->k0 + key];
    if (term == GPU_KEY_VECTORS)
        return from[(head * b.p->k_len + q->k0 + key) * USE(u).vectors + at];
    return from[(head * b.p->q_len + q->q0 + row) * USE(u).vectors
                + ((const GLOBAL int32_t *)(b.at.tables + USE(u).table))[at]];
}

/* ---- From distances to rows of a table ------------------------------------------------------- */

/* Numbers of a row by distance, from ds_lo on, `from` bytes in `vectors`. */
DEV GLOBAL float *row_by_distance(struct block b, int64_t from, const struct span *q, int h,
                                  int row)
{
    return (GLOBAL float *)(b.at.vectors + from)
         + (((int64_t)q->b * b.p->heads + h) * b.p->q_len + q->q0 + row) * b.p->ds_width;
}
/* Distances of the table that a tile of rows can meet, and their rows of the table. */
struct row_reach {
    int from, to, first, count; /* none: to < from */
};
DEV struct row_reach row_reach_of(struct block b, struct gpu_use u, const struct span *q, int row0,
                                  int rows)
{
    const GLOBAL int32_t *index = (const GLOBAL int32_t *)(b.at.tables + u.table);
    const int64_t d = q->d0 + row0;
    int64_t low = u.ends_lo, high = u.ends_hi;
    struct row_reach a = { u.ends_lo, u.ends_hi, 0, 0 };
    if (u.term == GPU_SCAN) { /* every position, whatever keys rows see */
        a.count = u.vectors;
        return a;
    }
    if (q->run) {
        low = d - (q->nk - 1) > b.p->lo ? d - (q->nk - 1) : b.p->lo;
        high = d + rows - 1 < b.p->hi ? d + rows - 1 : b.p->hi;
        a.from = (int)clamp_distance(low, u.ends_lo, u.ends_hi);
        a.to = (int)clamp_distance(high, u.ends_lo, u.ends_hi);
    }
    if (high < low || !q->nk) a.to = a.from - 1;
    if (a.to < a.from) return a;
    const int one = index[a.from - u.lo], other = index[a.to - u.lo];
    a.first = least(one, other);
    a.count = most(one, other) - a.first + 1;
    return a;
}
/* Sums of a row by row of the table, in place of its products; values: those of dO with them. */
DEV GLOBAL float *sums_of_row(struct block b, struct gpu_use u, int values, const struct span *q,
                              int h, int row)
{
    return (GLOBAL float *)(b.at.vectors + (values ? u.value_numbers : u.numbers))
         + (((int64_t)q->b * b.p->heads + h) * b.p->q_len + q->q0 + row) * u.vectors;
}
/* Sums of row row0 + tid % 64 by row of the table: those of both ends, sums by row number `ends`,
 * then numbers by distance, or with a base e^(the number - base). */
DEV void gather_row(struct block b, struct gpu_use u, struct row_reach a, int values,
                    const struct span *q, int h, int row, int part, int parts, int ends,
                    const GLOBAL float *lines, int scores, float base)
{
    const GLOBAL int32_t *index = (const GLOBAL int32_t *)(b.at.tables + u.table) - u.lo;
    GLOBAL float *to = sums_of_row(b, u, values, q, h, row);
    const int first = a.from > u.ends_lo ? a.from : u.ends_lo + 1,
              last = a.to < u.ends_hi ? a.to : u.ends_hi - 1;
    if (a.to < a.from) return;
    for (int n = a.first; n < a.first + a.count; n++)
        if (n % parts == part) to[n] = 0;
    for (int end = 0; end < 2; end++) {
        const int d = end ? u.ends_hi : u.ends_lo, n = index[d];
        if (n % parts == part && (end ? a.to == d : a.from == d))
            to[n] = to[n] + *row_sum_at(b, ends + end, 1, q, h, row);
    }
    for (int d = first; d <= last; d++) {
        const float x = lines[d - b.p->ds_lo];
        if (index[d] % parts == part)
            to[index[d]] = to[index[d]] + (scores ? exp_(x - base) : x);
    }
}
/* Sums over the keys of a row's tile at the ends, x [key][stride]: at lo, and at hi. */
struct end_sums {
    float lo, hi;
};
DEV struct end_sums end_sums_of(struct block b, struct gpu_use u, const SHARED float *x, int stride,
                                const struct span *q, int row, int key0, int keys)
{
    /* if both ends are equal, all keys go to hi */
    const int lo = u.ends_lo < u.ends_hi ? u.ends_lo : u.ends_hi - 1;
    struct end_sums s = { 0, 0 };
    for (int k = 0; k < keys; k++) {
        const int64_t d = distance_of(b, q, row, key0 + k);
        if (d >= u.ends_hi) s.hi = s.hi + x[k * stride];
        else if (d <= lo) s.lo = s.lo + x[k * stride];
    }
    return s;
}

/* ---- Vectors of values ----------------------------------------------------------------------- */

#define HAS_VALUES(u) (TERM_OF(u) == GPU_ROW_VECTORS && USE(u).values_at >= 0)

/* The vectors of a head as rows. */
DEV const GLOBAL float *value_vectors(struct block b, struct gpu_use u, int h)
{
    return (const GLOBAL float *)(b.at.tables + u.values_at) + h * u.vectors_head;
}
/* Rows store final scores by distance, from which weights follow in the end; or weights, where a
 * stick breaks or some are dropped. */
#define STORES_SCORES (!STICK && !DROPOUT)

/* The final score of a visible pair of a run. */
DEV void store_score(struct block b, const struct span *q, int h, int row, int key, float s)
{
    const int64_t n = distance_of(b, q, row, key) - b.p->ds_lo;
    if (n >= 0 && n < b.p->ds_width)
        row_by_distance(b, b.p->ds_by_distance, q, h, row)[n] = s;
}
/* Positions may repeat: the score of one key with the weight of two. */
DEV float join_score(float a, float b)
{
    const float most = max_(a, b), least = a < b ? a : b;
    return least == -INFINITY ? most : most + (float)log_(1 + (double)exp_(least - most));
}
/* Scores of a row's keys, [key][stride]. */
DEV void join_scores(struct block b, const SHARED float *s, int stride, const struct span *q, int h,
                     int row, int key0, int keys)
{
    GLOBAL float *x = row_by_distance(b, b.p->ds_by_distance, q, h, row);
    for (int k = 0; k < keys; k++) {
        const int64_t n = distance_of(b, q, row, key0 + k) - b.p->ds_lo;
        if (n >= 0 && n < b.p->ds_width) x[n] = join_score(x[n], s[k * stride]);
    }
}
/* Weights of a row's keys, [key][stride]: those of the chunk so far fade by alpha. */
DEV void store_weights(struct block b, const SHARED float *p, int stride, const struct span *q,
                       int h, int row, int key0, int keys, float alpha)
{
    GLOBAL float *x = row_by_distance(b, b.p->ds_chunk, q, h, row);
    for (int n = 0; n < b.p->ds_width && alpha != 1; n++) x[n] = x[n] * alpha;
    for (int k = 0; k < keys; k++) {
        const int64_t n = distance_of(b, q, row, key0 + k) - b.p->ds_lo;
        if (n >= 0 && n < b.p->ds_width)
            x[n] = q->run ? p[k * stride] : x[n] + p[k * stride];
    }
}
/* A chunk joins all others. */
DEV void join_weights(struct block b, const struct span *q, int h, int row, float a, float c)
{
    GLOBAL float *chunk = row_by_distance(b, b.p->ds_chunk, q, h, row),
                 *all = row_by_distance(b, b.p->ds_by_distance, q, h, row);
    for (int n = 0; n < b.p->ds_width; n++) {
        all[n] = fma_(chunk[n], c, all[n] * a);
        chunk[n] = 0;
    }
}
/* A row begins: no scores or weights, no sums. */
DEV void open_values(struct block b, const struct span *q, int h, int row0, int rows, int tid)
{
    for (int i = tid; i < rows * b.p->ds_width; i += THREADS) {
        const int r = row0 + i / b.p->ds_width, n = i % b.p->ds_width;
        row_by_distance(b, b.p->ds_by_distance, q, h, r)[n] = STORES_SCORES ? -INFINITY : 0.0f;
        if (!STORES_SCORES) row_by_distance(b, b.p->ds_chunk, q, h, r)[n] = 0;
    }
    for (int u = 0; u < USES; u++)
        for (int i = tid; HAS_VALUES(u) && i < 4 * rows; i += THREADS)
            *row_sum_at(b, USE(u).by_row + i % 4 / 2, i % 2, q, h, row0 + i / 4) = 0;
}
/* Weights of a tile, [key][stride], at the ends of the tables: sums so far fade by alpha. */
DEV void add_end_weights(struct block b, const SHARED float *p, int stride, const struct span *q,
                         int h, int row, int key0, int keys, float alpha)
{
    for (int u = 0; u < USES; u++) {
        if (!HAS_VALUES(u)) continue;
        const struct end_sums s = end_sums_of(b, USE(u), p, stride, q, row, key0, keys);
        GLOBAL float *lo = row_sum_at(b, USE(u).by_row, 0, q, h, row),
                     *hi = row_sum_at(b, USE(u).by_row + 1, 0, q, h, row);
        *lo = *lo * alpha + s.lo;
        *hi = *hi * alpha + s.hi;
    }
}
/* A chunk joins the sums of all. */
DEV void join_end_weights(struct block b, const struct span *q, int h, int row, float a, float c)
{
    for (int u = 0; u < USES; u++)
        for (int i = 0; HAS_VALUES(u) && i < 2; i++) {
            GLOBAL float *chunk = row_sum_at(b, USE(u).by_row + i, 0, q, h, row),
                         *all = row_sum_at(b, USE(u).by_row + i, 1, q, h, row);
            *all = fma_(*chunk, c, *all * a);
            *chunk = 0;
        }
}
/* dO of a pair times the vector of its distance. */
DEV float value_number(struct block b, const struct span *q, int h, int row, int key)
{
    float sum = 0;
    for (int u = 0; u < USES; u++) {
        if (!HAS_VALUES(u)) continue;
        const struct gpu_use use = USE(u);
        const int64_t d = clamp_distance(distance_of(b, q, row, key), use.lo, use.hi);
        sum = sums_of_row(b, use, 1, q, h, row)
            [((const GLOBAL int32_t *)(b.at.tables + use.table))[d - use.lo]];
    }
    return sum;
}

#endif
