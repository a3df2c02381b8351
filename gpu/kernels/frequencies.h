/* SPDX-License-Identifier: MIT */
/* frequencies.h -- backward: gradients of the frequencies of a rotation, from rows and their
 * gradients.  Rows of a tile are added in double, and tiles as docs/bits.md, Backward, says. */
#ifndef LOCI_GPU_KERNELS_FREQUENCIES_H
#define LOCI_GPU_KERNELS_FREQUENCIES_H

#include "kernels/inputs.h"
#include "kernels/rotate.h"

/* The gradient of the angle of a pair, from row r of x, times scale, and its gradient d. */
DEV double angle_gradient(struct block b, struct rows_at x, struct rows_at d, float scale, int r,
                          int pair)
{
    const struct gpu_turn u = TURN;
    const int a = u.offset + (u.inside ? 2 * pair : pair), c = a + (u.inside ? 1 : u.count);
    const int64_t row = x.first + r * x.row, to = d.first + r * d.row;
    const float ga = load_number(d.at, d.type, to + a), gc = load_number(d.at, d.type, to + c);
    if (ga == 0 && gc == 0) return 0;
    return (double)(load_number(x.at, x.type, row + a) * scale) * (double)gc
         - (double)(load_number(x.at, x.type, row + c) * scale) * (double)ga;
}
/* Number i of a part, [axes][dim / 2]: the sum of coordinate times gradient of the angle over the
 * rows first .. first + n - 1 of a head of an entry.  x and d: these rows and their gradients. */
DEV double frequency_gradient(struct block b, struct rows_at x, struct rows_at d, int64_t batch,
                              int h, int first, int n, int i)
{
    const GLOBAL struct pairs_table *t =
        (const GLOBAL struct pairs_table *)(b.at.tables + b.p->pairs);
    const int axis = i / (b.p->dim / 2), pair = i % (b.p->dim / 2);
    const GLOBAL double *where = (const GLOBAL double *)(b.at.lists + b.p->where);
    double sum = 0;
    if (pair >= t->count) return 0;
    for (int r = 0; r < n; r++) {
        const double turn = angle_gradient(b, x, d, b.p->scale, r, pair);
        double at = b.p->given >= 0 ? given_place(b, batch, h, first + r)
                  : b.p->counted ? (double)(((const GLOBAL int64_t *)where)[batch] + first + r)
                                 : where[(batch * t->axes + axis) * b.p->q_len + first + r];
        if (ROTATION == TURN_RANGES && b.p->form_leaks) { /* src/layout/ranged_pairs.h */
            const double window = b.p->keys_side ? 0.0 : (double)TURN.window;
            at = window + TURN.leak * (at - window);
        }
        if (b.p->given < 0 || turn != 0) sum += at * turn;
    }
    return sum;
}
/* The gradient of cos, or of sin, of a pair that is a sum of waves. */
DEV float wave_gradient(struct block b, struct rows_at x, struct rows_at d, int r, int pair,
                        int sine)
{
    const int apart = b.p->dim / 2;
    const GLOBAL float *g = (const GLOBAL float *)d.at + d.first + r * d.row + pair;
    const int64_t row = x.first + r * x.row + pair;
    const float g0 = g[0], g1 = g[apart];
    const int none = g0 == 0 && g1 == 0;
    const float x0 = none ? 0.0f : load_number(x.at, x.type, row) * b.p->scale,
                x1 = none ? 0.0f : load_number(x.at, x.type, row + apart) * b.p->scale;
    return sine ? fma_(g1, x0, -(g0 * x1)) : fma_(g0, x0, g1 * x1);
}
/* The mean of e^(-i s theta) over s in 0 .. 1: see src/terms/blocks.c. */
DEV struct two mean_turn(double theta, double cosine, double sine)
{
    const double z = theta * theta;
    struct two m;
    m.hi = 1 - z / 6 * (1 - z / 20 * (1 - z / 42 * (1 - z / 72 * (1 - z / 110))));
    m.lo = theta / 2 * (1 - z / 12 * (1 - z / 30 * (1 - z / 56 * (1 - z / 90 * (1 - z / 132)))));
    if (z < 0.25) return m;
    m.hi = sine / theta;
    m.lo = (1 - cosine) / theta;
    return m;
}
/* Of 64 rows: cos and sin, and the rows and their gradients in the basis of a panel, each
 * [64][width]. */
struct basis_rows {
    const SHARED float *angles, *y, *g;
    int n, width;
};
/* Does row r have a gradient in the block whose first pair is t0? */
DEV int speaks(struct basis_rows a, int r, int t0, int size)
{
    int any = 0;
    for (int i = 0; i < 2 * size; i++) any |= a.g[r * a.width + 2 * t0 + i] != 0;
    return any;
}
DEV double coordinate_of(struct block b, int axes, int axis, int batch, int row)
{
    const GLOBAL double *where = (const GLOBAL double *)(b.at.lists + b.p->where);
    return b.p->counted ? (double)(((const GLOBAL int64_t *)where)[batch] + row)
                        : where[((int64_t)batch * axes + axis) * b.p->q_len + row];
}
/* The gradient by the angle of pair k of a block, times the coordinate. */
DEV double basis_turn(struct block b, struct gpu_turn u, struct basis_rows a, int batch, int first,
                      int t0, int size, int axis, int k)
{
    double sum = 0;
    for (int r = 0; r < a.n; r++) {
        const SHARED float *y = a.y + r * a.width + 2 * (t0 + k),
                           *g = a.g + r * a.width + 2 * (t0 + k);
        if (!speaks(a, r, t0, size)) continue;
        sum += coordinate_of(b, u.axes, axis, batch, first + r)
             * ((double)y[0] * (double)g[1] - (double)y[1] * (double)g[0]);
    }
    return sum;
}
/* The four sums of pairs k < l of block j, as src/terms/blocks.c has them. */
DEV void basis_twos(struct block b, struct gpu_turn u, struct basis_rows a, int batch, int first,
                    int group, int j, int t0, int size, int k, int l, GLOBAL float *to)
{
    const GLOBAL double *weight = (const GLOBAL double *)(b.at.tables + u.weights),
                        *lambda = weight + u.axes * u.blocks
                                + ((u.groups > 1 ? group : 0) * u.blocks + j) * size;
    double sum[4] = { 0, 0, 0, 0 };
    for (int r = 0; r < a.n; r++) {
        const SHARED float *y = a.y + r * a.width + 2 * t0, *g = a.g + r * a.width + 2 * t0,
                           *c = a.angles + r * a.width + t0, *s = c + a.width / 2;
        const double y0 = y[2 * k], y1 = y[2 * k + 1], g0 = g[2 * k], g1 = g[2 * k + 1],
                     ck = c[k], sk = s[k], y2 = y[2 * l], y3 = y[2 * l + 1], g2 = g[2 * l],
                     g3 = g[2 * l + 1], cl = c[l], sl = s[l];
        double x = 0;
        if (!speaks(a, r, t0, size)) continue;
        for (int axis = 0; axis < u.axes; axis++)
            x += coordinate_of(b, u.axes, axis, batch, first + r) * weight[axis * u.blocks + j];
        const struct two f = mean_turn(x * (lambda[k] - lambda[l]), ck * cl + sk * sl,
                                       sk * cl - ck * sl),
                         p = mean_turn(x * (lambda[k] + lambda[l]), ck * cl - sk * sl,
                                       sk * cl + ck * sl);
        const double a0 = g0 * y2 + g1 * y3 - y0 * g2 - y1 * g3,
                     a1 = g1 * y2 - g0 * y3 - y1 * g2 + y0 * g3;
        const double b0 = g0 * y2 - g1 * y3 - y0 * g2 + y1 * g3,
                     b1 = g1 * y2 + g0 * y3 - y1 * g2 - y0 * g3;
        const double h = x / 2;
        sum[0] += h * (a0 * f.hi + a1 * f.lo);
        sum[1] += h * (a1 * f.hi - a0 * f.lo);
        sum[2] += h * (b0 * p.hi + b1 * p.lo);
        sum[3] += h * (b1 * p.hi - b0 * p.lo);
    }
    for (int i = 0; i < 4; i++) to[i] = (float)sum[i];
}
/* The part of a rotation that learns, of rows first .. first + n - 1 of a head of an entry, at most
 * 64: x the rows, d their gradients.  Every thread passes every barrier. */
DEV void rotation_part(struct block b, struct rows_at x, struct rows_at d, int batch, int h,
                       int group, int first, int n, GLOBAL float *to)
{
    const GLOBAL struct pairs_table *t = pairs_of(b);
    const struct gpu_turn u = TURN;
    const int pairs = ROTATION == TURN_WAVES || ROTATION == TURN_BASES ? t->count : 0;
    const int size = (u.block + 1) / 2, each = u.axes * size + 2 * size * (size - 1);
    const int panels = ROTATION == TURN_BASES ? u.panels : 0, waves = ROTATION == TURN_WAVES;
    PHASE_IF(tid, ROTATION <= TURN_GIVEN)
        for (int i = tid; i < b.p->rotation_count; i += THREADS) {
            const float sum = (float)frequency_gradient(b, x, d, batch, h, first, n, i);
            to[i] = b.p->adds == ADDS_TO_SUM ? to[i] + sum : sum;
        }
    END_IF
    /* chains over the rows, from some rows to the next */
    for (int r0 = 0; r0 < n && waves; r0 += ROTATED_ROWS) {
        const int rows = least(n - r0, ROTATED_ROWS);
        PHASE(tid)
            for (int i = tid; i < rows * pairs; i += THREADS) {
                const int r = i / pairs, at = 2 * r * pairs + i % pairs;
                turn_angle(b, t, batch, h, first + r0 + r, group, i % pairs, b.room + at,
                           b.room + at + pairs);
            }
        END
        PHASE(tid)
            for (int i = tid; i < b.p->rotation_count; i += THREADS) {
                const int lane = i % u.lanes, wave = i / u.lanes % pairs,
                          sine = i / u.lanes / pairs;
                float sum = r0 ? to[i] : 0.0f;
                for (int r = 0; r < rows && lane < u.sums; r++)
                    sum = fma_(b.room[(2 * r + sine) * pairs + wave],
                               wave_gradient(b, x, d, r0 + r, lane, sine), sum);
                to[i] = sum;
            }
        END
    }
    for (int panel = 0; panel < panels; panel++) {
        const int room = KEYS * u.width, t0 = panel * u.width / 2;
        const struct basis_rows a = { b.room, b.room + room, b.room + 2 * room, n, u.width };
        PHASE(tid)
            for (int i = tid; i < n * u.width; i += THREADS) {
                const int r = i / u.width, w = i % u.width;
                SHARED float *cosine = b.room + r * u.width + w;
                if (w < u.width / 2)
                    turn_angle(b, t, batch, h, first + r, group, t0 + w, cosine,
                               cosine + u.width / 2);
                b.room[room + i] =
                    enter_basis(b, u, group, panel, w, x.at, x.type, x.first + r * x.row);
                b.room[2 * room + i] =
                    enter_basis(b, u, group, panel, w, d.at, d.type, d.first + r * d.row);
            }
        END
        PHASE(tid)
            const int blocks = least(u.blocks - panel * u.per_panel, u.per_panel);
            for (int i = tid; i < blocks * size * (u.axes + size); i += THREADS) {
                const int j = i / (size * (u.axes + size)), at = i % (size * (u.axes + size)),
                          k = at % size, other = at / size, block = panel * u.per_panel + j;
                GLOBAL float *part = to + block * each;
                if (other < u.axes)
                    part[other * size + k] = (float)basis_turn(b, u, a, batch, first, j * size,
                                                               size, other, k);
                else if (other - u.axes > k)
                    basis_twos(b, u, a, batch, first, group, block, j * size, size, k,
                               other - u.axes,
                               part + size * u.axes
                                   + 4 * (k * size - k * (k + 1) / 2 + (other - u.axes - k - 1)));
            }
        END
    }
}
/* A group has 64 rows of a head, whose gradients are stored as `o_type`. */
DEV void query_frequencies(struct block b)
{
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads;
    const struct span q = span_of(b, BY_TILE, tile);
    const int row0 = (tile - q.tile) * TILE_ROWS, rows = least(q.nq - row0, TILE_ROWS);
    const struct keys_seen seen = keys_of(b, &q, row0, rows);
    const int newest = seen.last < seen.first ? first_chunk(b, &q, row0) : seen.last / CHUNK;
    rotation_part(b, view_rows(b.at.q, b.p->q, q.b, h, q.q0 + row0, b.p->q_type, 0),
                  view_rows(b.at.dq, b.p->dq, q.b, h, q.q0 + row0, b.p->o_type, 0), q.b, h,
                  h / (b.p->heads / b.p->kv_heads), q.q0 + row0, rows,
                  part_of(b, tile, h, newest) + b.p->rotation_part);
}
DEV int forms_of_keys(struct block b) { return ROTATION == TURN_RANGES ? TURN.key_forms : 1; }
/* Of 64 keys of a kv head in a form: floats in `apart`, [ktiles][kv_heads][forms][count].  The keys
 * and their gradients are q and dq here, and their number q_len. */
DEV void key_frequencies(struct block b)
{
    const int tile = b.x / b.p->kv_heads, h = b.x % b.p->kv_heads;
    const struct span q = span_of(b, BY_KTILE, tile);
    const int key0 = (tile - q.ktile) * KEYS, keys = least(q.nk - key0, KEYS);
    rotation_part(b, view_rows(b.at.q, b.p->q, q.b, h, q.k0 + key0, b.p->q_type, 0),
                  view_rows(b.at.dq, b.p->dq, q.b, h, q.k0 + key0, GPU_F32, 0), q.b, h, h,
                  q.k0 + key0, keys,
                  (GLOBAL float *)(b.at.apart + b.p->by_tile)
                      + ((int64_t)b.x * forms_of_keys(b) + b.p->form) * b.p->rotation_count);
}
/* Of the place of row 0 of x, or of its angle number i: docs/bits.md, Backward. */
DEV double place_gradient(struct block b, struct rows_at x, struct rows_at d, float scale, int h,
                          int i)
{
    const struct gpu_turn u = TURN;
    double sum = 0;
    if (ROTATION == TURN_GIVEN) return angle_gradient(b, x, d, scale, 0, i);
    const GLOBAL double *w =
        pairs_row(pairs_of(b), u.groups > 1 ? h / (b.p->heads / b.p->kv_heads) : 0, 0);
    for (int n = 0; n < u.count; n++) sum += w[n] * angle_gradient(b, x, d, scale, 0, n);
    return sum;
}
/* Gradients of places or angles that come with the call.  plain: those of v and dv come first:
 * values of keys, or dO and outputs of rows.  A group has ROTATED_ROWS rows of an entry. */
DEV void place_gradients(struct block b)
{
    const int tiles = (b.p->q_len + ROTATED_ROWS - 1) / ROTATED_ROWS;
    const int batch = b.x / tiles, row0 = b.x % tiles * ROTATED_ROWS,
              rows = least(b.p->q_len - row0, ROTATED_ROWS);
    const struct gpu_turn u = TURN;
    const int each = ROTATION == TURN_GIVEN ? u.count : 1;
    GLOBAL float *all = (GLOBAL float *)(b.p->given == 0   ? b.at.din0
                                         : b.p->given == 1 ? b.at.din1
                                                           : b.at.din2);
    PHASE(tid)
        for (int i = tid; i < rows * b.p->heads * each; i += THREADS) {
            const int h = i / each / rows, row = row0 + i / each % rows;
            const struct rows_at x = view_rows(b.at.q, b.p->q, batch, h, row, b.p->q_type, 0),
                                 d = view_rows(b.at.dq, b.p->dq, batch, h, row, GPU_F32, 0);
            GLOBAL float *to =
                all + (((int64_t)batch * b.p->heads + h) * b.p->q_len + row) * each + i % each;
            double sum = 0;
            if (is_unused(b, batch, row)) continue;
            if (b.p->plain)
                sum += place_gradient(
                    b, view_rows(b.at.v, b.p->v, batch, h, row, b.p->v_type, 0),
                    view_rows(b.at.dv, b.p->dv, batch, h, row, b.p->o_type, 0), 1.0f, h, i % each);
            *to = (float)(sum + place_gradient(b, x, d, b.p->scale, h, i % each));
        }
    END
}
/* One thread per number of a kv head, after add_parts: items as there, in each the heads of the
 * group; then the tiles of keys, rising, in each their forms.  form: parts of rows that follow each
 * other, of outputs and rows, or of forms. */
DEV void add_frequencies(struct block b)
{
    const int group = b.p->heads / b.p->kv_heads, forms = forms_of_keys(b);
    PHASE(tid)
        const int i = b.x / b.p->kv_heads * THREADS + tid, kvh = b.x % b.p->kv_heads;
        double total = 0;
        for (int s = b.p->sequences - 1; s >= 0 && i < b.p->rotation_count; s--) {
            const struct span q = span_at(b, s);
            for (int item = (q.nq + ITEM - 1) / ITEM - 1; item >= 0; item--)
                for (int h = kvh * group; h < (kvh + 1) * group; h++)
                    total += item_sum(b, &q, item, h, b.p->rotation_part + i, b.p->form,
                                      b.p->rotation_count);
        }
        const int on = b.p->by_tile >= 0 && i < b.p->rotation_count;
        for (int n = 0; on && n < b.p->ktiles * forms; n++)
            total += (double)((const GLOBAL float *)(b.at.apart + b.p->by_tile))
                [(((int64_t)(n / forms) * b.p->kv_heads + kvh) * forms + n % forms)
                     * b.p->rotation_count
                 + i];
        if (i < b.p->rotation_count)
            ((GLOBAL double *)b.at.totals)[(int64_t)kvh * group * PARTS + b.p->rotation_part + i] =
                total;
    END
}

/* Rows of a side alone: a group has 64 rows of a head of an entry.  Floats in `parts`, [B][tiles]
 * [heads][count]. */
DEV void row_frequencies(struct block b)
{
    const int tiles = (b.p->q_len + TILE_ROWS - 1) / TILE_ROWS, h = b.x % b.p->heads,
              tile = b.x / b.p->heads, batch = tile / tiles, row0 = tile % tiles * TILE_ROWS,
              rows = least(b.p->q_len - row0, TILE_ROWS);
    rotation_part(b, view_rows(b.at.q, b.p->q, batch, h, row0, b.p->q_type, 0),
                  view_rows(b.at.dq, b.p->dq, batch, h, row0, GPU_F32, 0), batch, h,
                  h / (b.p->heads / b.p->kv_heads), row0, rows,
                  (GLOBAL float *)b.at.parts + (int64_t)b.x * b.p->rotation_count);
}
/* One thread per number of a kv head: tiles of rows as they come, in each the heads of the group.
 */
DEV void add_row_frequencies(struct block b)
{
    const int tiles = (b.p->q_len + TILE_ROWS - 1) / TILE_ROWS,
              group = b.p->heads / b.p->kv_heads;
    PHASE(tid)
        const int i = b.x / b.p->kv_heads * THREADS + tid, kvh = b.x % b.p->kv_heads;
        double total = 0;
        for (int tile = 0; tile < b.p->batch * tiles && i < b.p->rotation_count; tile++)
            for (int h = kvh * group; h < (kvh + 1) * group; h++)
                total += (double)((const GLOBAL float *)b.at.parts)
                    [((int64_t)tile * b.p->heads + h) * b.p->rotation_count + i];
        if (i < b.p->rotation_count)
            ((GLOBAL double *)b.at.totals)[(int64_t)kvh * b.p->rotation_count + i] = total;
    END
}

#endif
