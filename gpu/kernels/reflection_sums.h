/* SPDX-License-Identifier: MIT */
/* reflection_sums.h -- backward, after both passes over path: gradients of k, w and beta.  Rows
 * have left what they were and their gradients at both ends of their nodes and own tiles.  First
 * own tiles and matrices are summed over the rows, then gradients go down the tree: from matrices
 * and keys of a node to those of its children, and from those of a tile to its keys.  See
 * docs/bits.md, Backward, and src/terms/reflect_forms.c. */
#ifndef LOCI_GPU_KERNELS_REFLECTION_SUMS_H
#define LOCI_GPU_KERNELS_REFLECTION_SUMS_H

#include "kernels/backward.h"

/* ---- Sums over rows -------------------------------------------------------------------------- */

DEV GLOBAL float *beta_part(struct block b, const struct span *q, int kvh)
{
    return (GLOBAL float *)(b.at.apart + USE(0).beta_parts)
         + ((int64_t)q->b * b.p->kv_heads + kvh) * b.p->k_len + q->k0;
}
DEV GLOBAL double *beta_sum(struct block b, const struct span *q, int kvh)
{
    return doubles_by_key(b, USE(0).beta_sums, q, kvh, 1);
}
/* Two numbers of rows with keys that act on them; a factor of 0 stops what is not finite. */
DEV float add_unless_zero(float x, float y, float sum)
{
    return x != 0 && y != 0 ? fma_(x, y, sum) : sum;
}

/* What a row tile adds to the sums of an own tile.  acts: how many keys act on each row.  With the
 * row and its gradient at both ends of the tile, those at a key are sums over the keys between:
 * products of pairs join them. */
struct own_tile {
    const struct span *q;
    int h, kvh, row0, key0, n;
    const SHARED float *products; /* of two keys, over rows: of gradients, then of turns */
    const SHARED int *acts;
};
DEV float own_number(struct block b, struct own_tile t, int which, int r, int k)
{
    return k < t.acts[r] ? own_numbers(b, which, t.q, t.h, t.row0 + r)[k] : 0.0f;
}
/* Over the rows: numbers of key k with channel d of the rows, or of their gradients. */
DEV float own_outer(struct block b, struct own_tile t, int which, int k, int d)
{
    const struct rows_at u = view_rows(b.at.q, b.p->q, t.q->b, t.h, t.q->q0 + t.row0, Q_TYPE, 0),
                         a = rows_of_list(b, USE(0).returned, USE(0).nodes, t.q, t.h, t.row0);
    float sum = 0;
    for (int r = 0; r < TILE_ROWS; r++) {
        if (k >= t.acts[r]) continue;
        const float y = which == OWN_PART ? load_number(a.at, a.type, row_offset(a, r) + d)
                                          : load_number(u.at, u.type, row_offset(u, r) + d);
        sum = add_unless_zero(own_number(b, t, which, r, k), y, sum);
    }
    return sum;
}
/* Over the keys that are newer than key k, or older: products with their w, or with themselves. */
DEV float own_mix(struct block b, struct own_tile t, int which, int newer, int of_w, int k, int d)
{
    const SHARED float *g = t.products + which * KEYS * KEYS;
    const struct rows_at keys = key_rows(b, t.q, t.kvh);
    const GLOBAL float *w = reflect_w(b, t.q, t.kvh) + (int64_t)t.key0 * DIM;
    float sum = 0;
    for (int m = newer ? k + 1 : 0; m < (newer ? t.n : k); m++) {
        const float by = newer ? g[k * KEYS + m] : g[m * KEYS + k];
        if (by != 0)
            sum = fma_(by,
                       of_w ? w[m * DIM + d]
                            : load_number(keys.at, keys.type, row_offset(keys, t.key0 + m) + d),
                       sum);
    }
    return sum;
}
/* A group has a tile of keys of a kv head, and goes over the rows that own it. */
DEV void sum_own_tiles(struct block b)
{
    if (!REFLECTS) return;
    const int tile = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads;
    const struct span q = span_of(b, BY_KTILE, tile);
    const int J = tile - q.ktile, key0 = J * KEYS, n = least(q.nk - key0, KEYS);
    SHARED int *acts = (SHARED int *)(b.room + 2 * KEYS * KEYS);
    int touched = 0;
    struct row_tile t = next_rows(b, &q, kvh, key0, n, before_rows(b, &q, kvh, 1));
    while (t.item >= 0) {
        const int rows = least(q.nq - t.row0, TILE_ROWS),
                  owned = ways_of(b, &q, t.h, t.row0, rows, J) >> REFLECT_OWN & 1;
        const struct row_tile next = next_rows(b, &q, kvh, key0, n, t);
        const struct own_tile own = { &q, t.h, kvh, t.row0, key0, n, b.room, acts };
        touched |= owned;
        PHASE(tid)
            for (int r = tid; r < TILE_ROWS; r += THREADS)
                acts[r] = r < rows && way_of(b, &q, t.h, t.row0 + r, J) == REFLECT_OWN
                            ? newest_of(b, &q, t.h, t.row0 + r) - key0 + 1
                            : 0;
        END
        PHASE(tid)
            for (int i = tid; owned && i < 2 * KEYS * KEYS; i += THREADS) {
                const int which = i / KEYS / KEYS, k = i / KEYS % KEYS, m = i % KEYS;
                float sum = 0;
                for (int r = 0; m > k && r < TILE_ROWS; r++)
                    sum = add_unless_zero(
                        own_number(b, own, which ? OWN_BACK : OWN_GRADIENT, r, k),
                        own_number(b, own, OWN_PART, r, m), sum);
                b.room[i] = sum;
            }
        END
        PHASE(tid)
            for (int i = tid; owned && i < n * DIM; i += THREADS) {
                const int k = i / DIM, d = i % DIM;
                GLOBAL float *dk = tile_part(b, OWN_KEYS, &q, kvh) + (int64_t)key0 * DIM + i,
                             *dw = tile_part(b, OWN_W, &q, kvh) + (int64_t)key0 * DIM + i;
                float x = *dk, y = *dw;
                x = x + own_outer(b, own, OWN_GRADIENT, k, d);
                y = y + own_outer(b, own, OWN_BACK, k, d);
                y = y + own_outer(b, own, OWN_PART, k, d);
                x = x + own_mix(b, own, 0, 1, 1, k, d);
                y = y + own_mix(b, own, 0, 0, 0, k, d);
                y = y + own_mix(b, own, 1, 1, 1, k, d);
                y = y + own_mix(b, own, 1, 0, 1, k, d);
                *dk = x;
                *dw = y;
            }
            for (int k = tid; owned && k < n; k += THREADS) {
                GLOBAL float *part = beta_part(b, &q, kvh) + key0 + k;
                float sum = 0;
                for (int r = 0; r < TILE_ROWS; r++) {
                    const float turn = own_number(b, own, OWN_TURN, r, k);
                    if (turn != 0) sum = fma_(own_number(b, own, OWN_DOT, r, k), turn, sum);
                }
                *part = *part - sum;
            }
        END
        PHASE(tid)
            if (touched && next.item != t.item) {
                join_tile_parts(b, &q, kvh, OWN_KEYS, TILE_LISTS, key0, n, tid);
                for (int k = tid; k < n; k += THREADS) {
                    GLOBAL float *part = beta_part(b, &q, kvh) + key0 + k;
                    GLOBAL double *sum = beta_sum(b, &q, kvh) + key0 + k;
                    *sum = *sum + (double)*part;
                    *part = 0;
                }
            }
        END
        if (next.item != t.item) touched = 0;
        t = next;
    }
}

/* Rows of a matrix that a group has, and what a thread sums of them: of an item. */
struct matrix_mine {
    float part[PAIR_GROUPS][8][4];
};
DEV GLOBAL double *matrix_sum(struct block b, const struct span *q, int kvh, int last)
{
    return (GLOBAL double *)(b.at.apart + USE(0).matrix_sums)
         + ((int64_t)kvh * b.p->ktiles + q->ktile + last) * DIM * DIM;
}
/* The gradient of the matrix of the left child or block that ends with a tile: sums over the rows
 * that pass it.  A group has 64 rows of the matrix. */
DEV void sum_matrices(struct block b)
{
    PRIVATE(struct matrix_mine);
    if (!REFLECTS) return;
    const int pieces = (DIM + KEYS - 1) / KEYS, m0 = b.x % pieces * KEYS,
              tile = b.x / pieces / b.p->kv_heads, kvh = b.x / pieces % b.p->kv_heads;
    const struct span q = span_of(b, BY_KTILE, tile);
    const int J = tile - q.ktile, level = reading_level(J, 0), first = J + 1 - (1 << level),
              way = REFLECT_NODE + level;
    SHARED float *a = b.room, *u = a + TILE_ROWS * KEYS;
    SHARED int *flag = (SHARED int *)(u + (TILE_ROWS + 1) * WIDER(DIM));
    if (!first || !is_passed(&q, J + 1)) return;
    struct row_tile t = next_rows(b, &q, kvh, first * KEYS, KEYS, before_rows(b, &q, kvh, 1));
    PHASE(tid)
        clear_item(DIM, MINE.part);
        if (tid == 0) *flag = 1;
    END
    while (t.item >= 0) {
        const int rows = least(q.nq - t.row0, TILE_ROWS),
                  go = ways_of(b, &q, t.h, t.row0, rows, first) >> way & 1;
        const struct row_tile next = next_rows(b, &q, kvh, first * KEYS, KEYS, t);
        PHASE(tid)
            const struct rows_at rows_a =
                rows_of_list(b, USE(0).returned, list_of_way(way, first), &q, t.h, t.row0);
            int finite = 1;
            if (go)
                finite = load_reflected_rows(b, &q, t.h, t.row0, rows, TILE_ROWS, first, way, tid,
                                             grid_of(u, WIDER(DIM), 1));
            for (int i = tid; go && i < TILE_ROWS * KEYS; i += THREADS) {
                const int r = i / KEYS, m = m0 + i % KEYS;
                float x = 0;
                if (r < rows && m < DIM && way_of(b, &q, t.h, t.row0 + r, first) == way)
                    x = load_number(rows_a.at, rows_a.type, row_offset(rows_a, r) + m);
                finite &= x * 0.0f == 0.0f;
                a[i] = x;
            }
            if (!finite) *flag = 0;
        END
        PHASE(tid)
            const int r0 = first_lane(KEYS, tid), side = place(KEYS, tid);
            UNROLL for (int g = 0; g < GROUPS(KEYS, DIM); g++) {
                float c[1][8][4];
                if (!go) continue;
                sums(KEYS, 1, g, DIM, a, u, WIDER(DIM), TILE_ROWS, r0, side, c);
                for (int j = 0; !*flag && j < 8; j++)
                    for (int i = 0; i < 4; i++) {
                        const int m = lane_of(KEYS, r0, j), d = channel_of(KEYS, side, g) + i;
                        float sum = 0;
                        for (int r = 0; r < rows && d < DIM; r++)
                            sum = add_unless_zero(a[r * KEYS + m], u[r * WIDER(DIM) + d], sum);
                        c[0][j][i] = sum;
                    }
                UNROLL for (int j = 0; j < 8; j++)
                    UNROLL for (int i = 0; i < 4; i++)
                        MINE.part[g][j][i] = MINE.part[g][j][i] + c[0][j][i];
            }
            if (next.item != t.item) {
                GLOBAL double *to = matrix_sum(b, &q, kvh, J) + (int64_t)m0 * DIM;
                UNROLL for (int g = 0; g < GROUPS(KEYS, DIM); g++)
                    UNROLL for (int j = 0; j < 8; j++)
                        UNROLL for (int i = 0; i < 4; i++) {
                            const int m = lane_of(KEYS, r0, j),
                                      d = channel_of(KEYS, side, g) + i;
                            if (m0 + m < DIM && d < DIM)
                                to[m * DIM + d] = to[m * DIM + d] + (double)MINE.part[g][j][i];
                        }
                clear_item(DIM, MINE.part);
            }
        END
        PHASE(tid)
            if (tid == 0) *flag = 1;
        END
        t = next;
    }
}

/* ---- Down the tree --------------------------------------------------------------------------- */

DEV GLOBAL float *node_gradient(struct block b, const struct span *q, int kvh, int level, int last)
{
    return node_at(b, USE(0).matrix_gradients, q, kvh, level, last);
}
/* The gradient of keys of a tile at the end of a node, which becomes that of the keys. */
DEV GLOBAL float *carried_gradient(struct block b, const struct span *q, int kvh, int key)
{
    const struct rows_at dk =
        view_rows(b.at.dk, b.p->dk, q->b, kvh, q->k0 + key, GPU_F32, 0);
    return (GLOBAL float *)b.at.dk + dk.first;
}
/* From the gradients of a node of level `form`, of its matrix and of keys at its end, to those of
 * its children.  A group has a node of a kv head that begins with its tile. */
DEV void unreflect_nodes(struct block b)
{
    if (!REFLECTS) return;
    const int tile = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads, level = b.p->form;
    const struct span q = span_of(b, BY_KTILE, tile);
    const int J = tile - q.ktile, below = level - 1, size = 1 << below, middle = J + size,
              last = middle + size - 1, whole = is_passed(&q, last + 1);
    SHARED float *keys = b.room;
    if ((J & (2 * size - 1)) || !is_passed(&q, middle)) return;
    GLOBAL float *gradient = node_gradient(b, &q, kvh, level, last),
                 *left = node_gradient(b, &q, kvh, below, middle - 1),
                 *right = node_gradient(b, &q, kvh, below, last);
    const GLOBAL float *of_left = node_matrix(b, &q, kvh, below, middle - 1),
                       *of_right = node_matrix(b, &q, kvh, below, last);
    PHASE(tid)
        const GLOBAL double *sum = matrix_sum(b, &q, kvh, last);
        for (int i = tid; whole && level == NODE_LEVELS && i < DIM * DIM; i += THREADS)
            gradient[i] = (float)sum[i];
    END
    PHASE(tid)
        const GLOBAL double *sum = matrix_sum(b, &q, kvh, middle - 1);
        for (int i = tid; i < DIM * DIM; i += THREADS) {
            const int m = i / DIM, d = i % DIM;
            float x = 0, y = 0;
            for (int c = 0; whole && J && c < DIM; c++) {
                x = fma_(gradient[m * DIM + c], of_right[d * DIM + c], x);
                y = fma_(of_left[c * DIM + m], gradient[c * DIM + d], y);
            }
            left[i] = x + (float)sum[i];
            if (whole) right[i] = y;
        }
    END
    int j = J;
    do {
        const struct rows_at at_end = carried_keys(b, &q, kvh, below);
        PHASE(tid)
            for (int i = tid; whole && i < KEYS * DIM; i += THREADS)
                keys[i] = carried_gradient(b, &q, kvh, j * KEYS + i / DIM)[i % DIM];
        END
        PHASE(tid)
            const GLOBAL double *sum = tile_sum(b, below, &q, kvh) + (int64_t)j * KEYS * DIM;
            for (int i = tid; whole && i < DIM * DIM; i += THREADS) {
                const int m = i / DIM, d = i % DIM;
                float x = 0;
                for (int k = 0; k < KEYS; k++)
                    x = fma_(((const GLOBAL float *)at_end.at)[row_offset(at_end, j * KEYS + k)
                                                               + m],
                             keys[k * DIM + d], x);
                right[i] = right[i] + x;
            }
            for (int i = tid; i < KEYS * DIM; i += THREADS) {
                const int k = i / DIM, d = i % DIM;
                GLOBAL float *to = carried_gradient(b, &q, kvh, j * KEYS + k) + d;
                float x = 0;
                for (int c = 0; whole && c < DIM; c++)
                    x = fma_(keys[k * DIM + c], of_right[d * DIM + c], x);
                *to = (whole ? x : *to) + (float)sum[i];
            }
        END
        j++;
    } while (j < middle);
}

/* Numbers of a key of a tile: gradients on their way, negative, in the place of sums over rows that
 * have been added up; dy, doubles, in the place of the last two of them. */
enum { MINUS_DZ, MINUS_DK, MINUS_DW, DOUBLE_DY = 4 };
struct tile_back {
    const struct span *q;
    int kvh, key0;
    SHARED float *pairs;
    const SHARED int *is_bad;
    const GLOBAL float *w, *beta;
    const GLOBAL double *y;
};
DEV GLOBAL float *minus_of(struct block b, struct tile_back t, int which)
{
    return tile_part(b, which, t.q, t.kvh) + (int64_t)t.key0 * DIM;
}
/* A key that is bad reflects nothing: see reflect_tiles(). */
DEV float w_number(struct block b, struct tile_back t, int k, int d)
{
    return t.is_bad[k] ? 0.0f : t.w[k * DIM + d];
}
DEV double beta_number(struct tile_back t, int k)
{
    return t.is_bad[k] ? 0.0 : (double)t.beta[k];
}
DEV float z_number(struct block b, struct tile_back t, int k, int d)
{
    return rounded_z(beta_number(t, k) * t.y[k * DIM + d]);
}
/* Sums of rows of pairs over newer keys, and of columns over older ones, a strip at least. */
DEV float newer_sum(struct block b, struct tile_back t, int k, int d)
{
    float sum = 0;
    for (int m = k / FEW * FEW; m < KEYS; m++)
        sum = fma_(t.pairs[k * KEYS + m], w_number(b, t, m, d), sum);
    return sum;
}
DEV float older_sum(struct block b, struct tile_back t, struct rows_at of, int of_w, int k, int d)
{
    float sum = 0;
    for (int m = 0; m < k / FEW * FEW + FEW; m++)
        sum = fma_(t.pairs[m * KEYS + k],
                   of_w ? w_number(b, t, m, d)
                        : load_number(of.at, of.type, row_offset(of, t.key0 + m) + d),
                   sum);
    return sum;
}
DEV GLOBAL float *gradient_of_input(struct block b, int i)
{
    return (GLOBAL float *)(i == 0 ? b.at.din0 : i == 1 ? b.at.din1 : b.at.din2);
}
/* From the gradients of the matrix of a tile and of its keys at its end, and what rows have summed
 * in it, to those of k, w and beta.  A group has a tile of a kv head. */
DEV void unreflect_tiles(struct block b)
{
    if (!REFLECTS) return;
    const int tile = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads;
    const struct span q = span_of(b, BY_KTILE, tile);
    const int J = tile - q.ktile, key0 = J * KEYS, n = least(q.nk - key0, KEYS),
              passed = is_passed(&q, J + 1);
    SHARED double *part = (SHARED double *)(b.room + KEYS * KEYS), *dz = part + FEW * DIM,
                  *dbeta = dz + FEW * DIM;
    SHARED int *is_bad = (SHARED int *)(dbeta + KEYS);
    const struct rows_at k = key_rows(b, &q, kvh);
    const int64_t lists = (int64_t)b.p->batch * b.p->kv_heads * b.p->k_len * DIM,
                  first_key = ((int64_t)q.b * b.p->kv_heads + kvh) * b.p->k_len + q.k0 + key0;
    const GLOBAL float *of_matrix = node_gradient(b, &q, kvh, 0, J);
    GLOBAL float *dw = gradient_of_input(b, USE(0).key_input),
                 *db = gradient_of_input(b, USE(0).row_input);
    struct tile_back t;
    t.q = &q;
    t.kvh = kvh;
    t.key0 = key0;
    t.pairs = b.room;
    t.is_bad = is_bad;
    t.w = reflect_w(b, &q, kvh) + (int64_t)key0 * DIM;
    t.beta = reflect_beta(b, &q, kvh) + key0;
    t.y = doubles_by_key(b, USE(0).tile_y, &q, kvh, DIM) + (int64_t)key0 * DIM;
    GLOBAL double *gram = doubles_by_key(b, USE(0).tile_products, &q, kvh, KEYS)
                        + (int64_t)key0 * KEYS,
                  *turns = doubles_by_key(b, USE(0).tile_turns, &q, kvh, FEW)
                         + (int64_t)key0 * FEW,
                  *dy = doubles_by_key(b, USE(0).tile_parts + DOUBLE_DY * lists * 4, &q, kvh, DIM)
                      + (int64_t)key0 * DIM;
    GLOBAL float *minus_dz = minus_of(b, t, MINUS_DZ), *minus_dk = minus_of(b, t, MINUS_DK),
                 *minus_dw = minus_of(b, t, MINUS_DW);
    PHASE(tid)
        for (int i = tid; i < KEYS; i += THREADS) {
            is_bad[i] = i < n && is_bad_key(t.w + (int64_t)i * DIM, t.beta[i], DIM);
            dbeta[i] = i < n ? beta_sum(b, &q, kvh)[key0 + i] : 0.0;
        }
    END
    PHASE(tid) /* k w of newer keys */
        for (int i = tid; passed && i < KEYS * KEYS; i += THREADS) {
            const int j = i / KEYS, l = i % KEYS;
            float sum = 0;
            for (int d = 0; l > j && d < DIM; d++)
                sum = fma_(load_number(k.at, k.type, row_offset(k, key0 + j) + d),
                           w_number(b, t, l, d), sum);
            t.pairs[i] = sum;
        }
    END
    PHASE(tid)
        for (int i = tid; passed && i < KEYS * DIM; i += THREADS) {
            const int l = i / DIM, d = i % DIM;
            float z = 0, w = 0, sum = 0;
            for (int c = 0; J && c < DIM; c++) {
                z = fma_(w_number(b, t, l, c), of_matrix[c * DIM + d], z);
                w = fma_(z_number(b, t, l, c), of_matrix[d * DIM + c], w);
            }
            for (int j = 0; j < l / FEW * FEW + FEW; j++)
                sum = fma_(t.pairs[j * KEYS + l], carried_gradient(b, &q, kvh, key0 + j)[d], sum);
            minus_dz[i] = z + sum;
            minus_dw[i] = w;
        }
    END
    PHASE(tid) /* of k w */
        for (int i = tid; passed && i < KEYS * KEYS; i += THREADS) {
            const int j = i / KEYS, l = i % KEYS;
            float sum = 0;
            for (int d = 0; l > j && d < DIM; d++)
                sum = fma_(carried_gradient(b, &q, kvh, key0 + j)[d], z_number(b, t, l, d), sum);
            t.pairs[i] = sum;
        }
    END
    PHASE(tid)
        for (int i = tid; passed && i < KEYS * DIM; i += THREADS) {
            minus_dk[i] = newer_sum(b, t, i / DIM, i % DIM);
            minus_dw[i] = minus_dw[i] + older_sum(b, t, k, 0, i / DIM, i % DIM);
        }
    END
    int first = 0;
    do { /* strips, oldest first */
        PHASE(tid)
            for (int i = tid; passed && i < FEW * DIM; i += THREADS) {
                const int l = first + i / DIM, d = i % DIM;
                double sum = 0;
                for (int o = 0; o < first; o++)
                    sum = fmad_(gram[o * KEYS + l], dy[o * DIM + d], sum);
                part[i] = -(double)minus_dz[first * DIM + i] - sum;
            }
        END
        PHASE(tid)
            for (int i = tid; passed && i < FEW * DIM; i += THREADS) {
                const int l = first + i / DIM, d = i % DIM;
                double sum = 0;
                for (int m = 0; m < FEW; m++)
                    sum = fmad_(turns[l * FEW + m], part[m * DIM + d], sum);
                dz[i] = sum;
                dy[l * DIM + d] = beta_number(t, l) * sum;
            }
        END
        PHASE(tid)
            for (int i = tid; passed && i < FEW; i += THREADS)
                for (int d = 0; d < DIM; d++)
                    dbeta[first + i] += dz[i * DIM + d] * t.y[(first + i) * DIM + d];
        END
        first += FEW;
    } while (first < KEYS);
    PHASE(tid) /* of products of w, by y */
        for (int i = tid; passed && i < KEYS * KEYS; i += THREADS) {
            const int j = i / KEYS, l = i % KEYS;
            float sum = 0;
            for (int d = 0; l > j && d < DIM; d++)
                sum = fma_((float)dy[j * DIM + d], z_number(b, t, l, d), sum);
            t.pairs[i] = sum;
        }
    END
    PHASE(tid)
        int bad = -1;
        for (int l = 0; passed && l < KEYS; l++) bad = is_bad[l] ? l : bad;
        for (int i = tid; i < n * DIM; i += THREADS) {
            const int l = i / DIM, d = i % DIM;
            const int64_t at = (int64_t)key0 * DIM + i;
            GLOBAL float *dk = carried_gradient(b, &q, kvh, key0 + l) + d;
            float of_k = 0, of_w = 0;
            if (passed) {
                of_w = minus_dw[i] + newer_sum(b, t, l, d);
                of_w = of_w + older_sum(b, t, k, 1, l, d);
                of_w = (float)dy[i] - of_w;
                of_k = *dk - minus_dk[i];
            }
            if (l <= bad) of_k = of_w = NAN;
            *dk = (float)(tile_sum(b, OWN_KEYS, &q, kvh)[at] + (double)of_k);
            if (dw)
                dw[first_key * DIM + i] =
                    (float)(tile_sum(b, OWN_W, &q, kvh)[at] + (double)of_w);
        }
        for (int l = tid; db && l < n; l += THREADS)
            db[first_key + l] = l <= bad ? NAN : (float)dbeta[l];
    END
}

#endif
