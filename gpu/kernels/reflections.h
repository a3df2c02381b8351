/* SPDX-License-Identifier: MIT */
/* reflections.h -- path: every key that a row passes on its walk reflects it.  Before the pass keys
 * are carried to the ends of nodes, which are 1, 2, 4, 8 and 16 tiles, and nodes get matrices.  A
 * row meets the keys of its own tile 16 at a time; of a node it takes a product with the keys that
 * are carried to its end, and one with its matrix.  See docs/bits.md, Terms, and
 * src/layout/reflect.h. */
#ifndef LOCI_GPU_KERNELS_REFLECTIONS_H
#define LOCI_GPU_KERNELS_REFLECTIONS_H

#include "kernels/channel_gates.h"

/* The term comes first. */
#define REFLECTS (FIRST_TERM == GPU_REFLECTIONS)

/* Numbers of matrices below this are 0, and those of a row below it times its largest one. */
#define LEAST_PART 0x1p-40
enum { FEW = REFLECTED_TOGETHER, NODE_LEVELS = 4, BLOCK_TILES = 16 };
/* How a row meets the keys of a tile: not at all, as its own, as those of a node. */
enum reflect_way {
    REFLECT_LATER = -1,
    REFLECT_OWN,
    REFLECT_NODE,
    REFLECT_BLOCK = REFLECT_NODE + NODE_LEVELS,
    WAYS
};

/* ---- Inputs, and memory of the call ---------------------------------------------------------- */

/* w and beta of a kv head, from key 0 of the sequence on. */
DEV const GLOBAL float *reflect_w(struct block b, const struct span *q, int kvh)
{
    return input_of(b, USE(0).key_input)
         + (((int64_t)q->b * b.p->kv_heads + kvh) * b.p->k_len + q->k0) * DIM;
}
DEV const GLOBAL float *reflect_beta(struct block b, const struct span *q, int kvh)
{
    return input_of(b, USE(0).row_input)
         + ((int64_t)q->b * b.p->kv_heads + kvh) * b.p->k_len + q->k0;
}
/* Of a key, what it takes from the scores of others of the FEW, and the row of DOTS. */
DEV GLOBAL float *few_of(struct block b, const struct span *q, int kvh)
{
    return (GLOBAL float *)(b.at.apart + USE(0).few)
         + (((int64_t)q->b * b.p->kv_heads + kvh) * b.p->k_len + q->k0) * 2 * FEW;
}
/* Keys of a sequence, carried to the ends of nodes of a level. */
DEV struct rows_at carried_keys(struct block b, const struct span *q, int kvh, int level)
{
    struct strides s;
    s.row = DIM;
    s.head = (int64_t)b.p->k_len * DIM;
    s.batch = b.p->kv_heads * s.head;
    return view_rows(b.at.apart + USE(0).carried + level * b.p->batch * s.batch * 4, s, q->b, kvh,
                     q->k0, GPU_F32, DIM % 4 == 0);
}
/* The matrix of the node of a level that ends with a tile, or its gradient: left children and
 * blocks are found by their last tiles, right children by their first ones, so no two share it. */
DEV GLOBAL float *node_at(struct block b, int64_t from, const struct span *q, int kvh, int level,
                          int last)
{
    const int right = level < NODE_LEVELS && (last >> level & 1),
              tile = right ? last + 1 - (1 << level) : last;
    return (GLOBAL float *)(b.at.apart + from)
         + (((int64_t)right * b.p->kv_heads + kvh) * b.p->ktiles + q->ktile + tile) * DIM * DIM;
}
DEV GLOBAL float *node_matrix(struct block b, const struct span *q, int kvh, int level, int last)
{
    return node_at(b, USE(0).matrices, q, kvh, level, last);
}
/* The matrix that takes rows of a way to the start of their node, which begins with a tile. */
DEV struct rows_at matrix_rows(struct block b, const struct span *q, int kvh, int way, int tile)
{
    const int level = way - REFLECT_NODE;
    struct strides s;
    s.batch = s.head = 0;
    s.row = DIM;
    return view_rows((const GLOBAL char *)node_matrix(b, q, kvh, level, tile + (1 << level) - 1), s,
                     0, 0, 0, GPU_F32, DIM % 4 == 0);
}
/* The level at which rows read the keys of a tile that are carried to the end of its node of
 * `level`: in a right child they stay what they are. */
DEV int reading_level(int tile, int level)
{
    while (level < NODE_LEVELS && (tile >> level & 1)) level++;
    return level;
}
/* `each` doubles of every key of a kv head. */
DEV GLOBAL double *doubles_by_key(struct block b, int64_t from, const struct span *q, int kvh,
                                  int each)
{
    return (GLOBAL double *)(b.at.apart + from)
         + (((int64_t)q->b * b.p->kv_heads + kvh) * b.p->k_len + q->k0) * each;
}
DEV float least_part(float x)
{
    const float least = (float)LEAST_PART;
    return x < least && x > -least ? 0.0f : x;
}
/* Does a row come from behind the node that ends before tile `end`? */
DEV int is_passed(const struct span *q, int end) { return (int64_t)end * KEYS < q->nk; }

/* ---- Before the pass ------------------------------------------------------------------------- */

/* A tile.  Doubles: products of w of a strip of FEW keys with newer ones, DOTS of the strip, its w
 * as newer keys leave them, and z of all keys.  Then products of keys of the strip with w, and
 * which keys are bad: w or beta is not finite.  They reflect nothing, but rows that pass them are
 * NaN. */
struct reflect_room {
    SHARED double *gram, *dots, *rest, *z;
    SHARED float *kw;
    SHARED int *bad;
};
DEV struct reflect_room reflect_room_of(struct block b)
{
    struct reflect_room r;
    r.gram = (SHARED double *)b.room;
    r.dots = r.gram + FEW * KEYS;
    r.rest = r.dots + FEW * FEW;
    r.z = r.rest + FEW * DIM;
    r.kw = (SHARED float *)(r.z + KEYS * DIM);
    r.bad = (SHARED int *)(r.kw + FEW * KEYS);
    return r;
}
DEV int is_bad_key(const GLOBAL float *w, float beta, int dim)
{
    float zero = beta * 0.0f;
    for (int d = 0; d < dim; d++) zero = zero + w[d] * 0.0f;
    return !(zero == 0.0f);
}
/* z as keys and matrices read it. */
DEV float rounded_z(double z) { return z < LEAST_PART && z > -LEAST_PART ? 0.0f : (float)z; }
/* A column of DOTS of a strip, newest key first. */
DEV void make_dots(struct reflect_room r, const GLOBAL float *beta, int first, int n, int column)
{
    for (int j = FEW - 1; j >= 0; j--) {
        double x = j == column ? 1.0 : 0.0;
        for (int m = j + 1; m < FEW; m++) {
            const int key = first + m;
            const double g = r.gram[j * KEYS + key],
                         by = g * (key < n && !r.bad[key] ? (double)beta[key] : 0.0);
            x -= by * r.dots[m * FEW + column];
        }
        r.dots[j * FEW + column] = x;
    }
}
/* A column of TURNS, oldest key first, for a backward pass. */
DEV void make_turns(struct reflect_room r, const GLOBAL float *beta, int first, int n, int column,
                    GLOBAL double *turns)
{
    for (int j = 0; j < FEW; j++) {
        double x = j == column ? 1.0 : 0.0;
        for (int m = 0; m < j; m++) {
            const int key = first + m;
            const double g = r.gram[m * KEYS + first + j],
                         by = g * (key < n && !r.bad[key] ? (double)beta[key] : 0.0);
            x -= by * turns[m * FEW + column];
        }
        if (first + j < n) turns[j * FEW + column] = x;
    }
}
/* Of a tile of keys of a kv head: what rows read that meet its keys, and if they pass it, its keys
 * carried to its end, and its matrix.  Backward, it keeps what the gradients of the tile need. */
DEV void reflect_tiles(struct block b)
{
    const int tile = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads;
    const struct span q = span_of(b, BY_KTILE, tile);
    const int J = tile - q.ktile, key0 = J * KEYS, n = least(q.nk - key0, KEYS);
    const struct reflect_room r = reflect_room_of(b);
    const struct rows_at k = key_rows(b, &q, kvh);
    const GLOBAL float *w = reflect_w(b, &q, kvh) + (int64_t)key0 * DIM,
                       *beta = reflect_beta(b, &q, kvh) + key0;
    const int passed = is_passed(&q, J + 1), level = reading_level(J, 0),
              carries = is_passed(&q, ((J >> level) + 1) << level);
    const int keeps = b.at.delta != 0;
    GLOBAL float *few = few_of(b, &q, kvh) + (int64_t)key0 * 2 * FEW;
    PHASE(tid)
        for (int i = tid; i < KEYS; i += THREADS)
            r.bad[i] = i < n && is_bad_key(w + (int64_t)i * DIM, beta[i], DIM);
    END
    PHASE(tid)
        for (int i = tid; i < KEYS * DIM; i += THREADS)
            r.z[i] = i / DIM < n && !r.bad[i / DIM] ? (double)w[i] : 0.0;
    END
    int first = (n - 1) / FEW * FEW;
    do {
        const int end = passed ? KEYS : first + FEW;
        PHASE(tid)
            for (int i = tid; i < FEW * (end - first); i += THREADS) {
                const int j = i / (end - first), m = first + i % (end - first);
                const int finite = m < n && !r.bad[m], both = finite && !r.bad[first + j];
                double gram = 0;
                float kw = 0;
                for (int d = 0; d < DIM && first + j < n; d++) {
                    const float x = finite ? w[m * DIM + d] : 0.0f;
                    kw = fma_(load_number(k.at, k.type, row_offset(k, key0 + first + j) + d), x,
                              kw);
                    if (both) gram = fmad_((double)w[(first + j) * DIM + d], (double)x, gram);
                }
                r.gram[j * KEYS + m] = gram;
                r.kw[j * KEYS + m] = m > first + j ? kw : 0.0f;
                if (keeps && first + j < n)
                    doubles_by_key(b, USE(0).tile_products, &q, kvh,
                                   KEYS)[(int64_t)(key0 + first + j) * KEYS + m] = gram;
            }
        END
        PHASE(tid)
            if (tid < FEW) make_dots(r, beta, first, n, tid);
            if (tid < FEW && keeps)
                make_turns(r, beta, first, n, tid,
                           doubles_by_key(b, USE(0).tile_turns, &q, kvh, FEW)
                               + (int64_t)(key0 + first) * FEW);
        END
        PHASE(tid)
            for (int i = tid; i < FEW * FEW; i += THREADS)
                if (first + i / FEW < n) {
                    GLOBAL float *to = few + (first + i / FEW) * 2 * FEW + i % FEW;
                    to[0] = r.kw[i / FEW * KEYS + first + i % FEW];
                    to[FEW] = (float)r.dots[i];
                }
            for (int i = tid; passed && i < FEW * DIM; i += THREADS) {
                const int j = i / DIM, d = i % DIM;
                double sum = 0;
                for (int m = first + FEW; m < KEYS; m++)
                    sum = fmad_(r.gram[j * KEYS + m], r.z[m * DIM + d], sum);
                r.rest[i] = r.z[first * DIM + i] - sum;
            }
        END
        PHASE(tid)
            for (int i = tid; passed && i < FEW * DIM; i += THREADS) {
                const int j = i / DIM, d = i % DIM;
                double sum = 0;
                for (int m = 0; m < FEW; m++)
                    sum = fmad_(r.dots[j * FEW + m], r.rest[m * DIM + d], sum);
                r.z[first * DIM + i] = r.bad[first + j] ? 0.0 : (double)beta[first + j] * sum;
                if (keeps)
                    doubles_by_key(b, USE(0).tile_y, &q, kvh,
                                   DIM)[(int64_t)(key0 + first) * DIM + i] = sum;
            }
        END
        PHASE(tid)
            const struct rows_at to = carried_keys(b, &q, kvh, level);
            for (int i = tid; carries && i < FEW * DIM; i += THREADS) {
                const int j = i / DIM, d = i % DIM, key = first + j;
                const float x = load_number(k.at, k.type, row_offset(k, key0 + key) + d);
                float sum = 0;
                int bad = 0; /* some newer key is */
                for (int m = first; m < KEYS; m++) {
                    sum = fma_(-r.kw[j * KEYS + m], rounded_z(r.z[m * DIM + d]), sum);
                    bad |= m > key && r.bad[m];
                }
                ((GLOBAL float *)to.at)[row_offset(to, key0 + key) + d] = bad ? NAN : x + sum;
            }
        END
        first -= FEW;
    } while (first >= 0);
    PHASE(tid)
        GLOBAL float *m = node_matrix(b, &q, kvh, 0, J);
        int bad = 0;
        for (int l = 0; l < KEYS; l++) bad |= r.bad[l];
        for (int i = tid; passed && J && i < DIM * DIM; i += THREADS) {
            const int d = i / DIM, c = i % DIM;
            float sum = 0;
            for (int l = 0; l < n; l++)
                if (!r.bad[l]) sum = fma_(w[l * DIM + d], rounded_z(r.z[l * DIM + c]), sum);
            m[i] = bad ? NAN : least_part(-((d == c ? -1.0f : 0.0f) + sum));
        }
    END
}
/* A right child of a level that ends with a tile joins the left one: keys of that are carried on,
 * and their parent gets its matrix. */
DEV void reflect_nodes(struct block b)
{
    const int tile = b.x / b.p->kv_heads, kvh = b.x % b.p->kv_heads, level = b.p->form;
    const struct span q = span_of(b, BY_KTILE, tile);
    const int J = tile - q.ktile, size = 1 << level, first = J + 1 - 2 * size;
    if ((J & (2 * size - 1)) != 2 * size - 1 || !is_passed(&q, J + 1)) return;
    const GLOBAL float *right = node_matrix(b, &q, kvh, level, J);
    PHASE(tid)
        const struct rows_at from = carried_keys(b, &q, kvh, level);
        for (int64_t i = tid; i < (int64_t)size * KEYS * DIM; i += THREADS) {
            const int key = first * KEYS + (int)(i / DIM), d = (int)(i % DIM),
                      to = reading_level(key / KEYS, level + 1);
            const GLOBAL float *x = (const GLOBAL float *)from.at + row_offset(from, key);
            float sum = 0;
            if (!is_passed(&q, ((key / KEYS >> to) + 1) << to)) continue;
            for (int c = 0; c < DIM; c++) sum = fma_(x[c], right[c * DIM + d], sum);
            const struct rows_at rows = carried_keys(b, &q, kvh, to);
            ((GLOBAL float *)rows.at)[row_offset(rows, key) + d] = sum;
        }
        for (int i = tid; first && i < DIM * DIM; i += THREADS) {
            const GLOBAL float *left = node_matrix(b, &q, kvh, level, J - size) + i / DIM * DIM;
            float sum = 0;
            for (int c = 0; c < DIM; c++) sum = fma_(left[c], right[c * DIM + i % DIM], sum);
            node_matrix(b, &q, kvh, level + 1, J)[i] = least_part(sum);
        }
    END
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* How a row whose newest key is in tile `own` meets a tile. */
DEV int way_from(int own, int tile)
{
    int way = REFLECT_NODE;
    if (own <= tile) return own == tile ? REFLECT_OWN : REFLECT_LATER;
    if (own / BLOCK_TILES != tile / BLOCK_TILES) return REFLECT_NODE + NODE_LEVELS;
    for (int apart = (own ^ tile) >> 1; apart; apart >>= 1) way++;
    return way;
}
DEV int way_of(struct block b, const struct span *q, int h, int row, int tile)
{
    const int newest = newest_of(b, q, h, row);
    return newest < 0 ? REFLECT_LATER : way_from(newest / KEYS, tile);
}
/* Bit `way` is set if some row goes this way. */
DEV int ways_of(struct block b, const struct span *q, int h, int row0, int rows, int tile)
{
    int set = 0;
    if (sees_interval(b, q)) {
        const int first = newest_key(b, q, row0) / KEYS, last = newest_key(b, q, row0 + rows - 1);
        for (int own = most(first, tile); last >= 0 && own <= last / KEYS; own++)
            set |= 1 << way_from(own, tile);
        return set;
    }
    for (int row = row0; row < row0 + rows; row++) {
        const int way = way_of(b, q, h, row, tile);
        if (way != REFLECT_LATER) set |= 1 << way;
    }
    return set;
}
/* The next way of the set `ways` after `way`, or WAYS if that was the last one. */
DEV int next_way(int ways, int way)
{
    do way++;
    while (way < WAYS && !(ways >> way & 1));
    return way;
}
/* Those of the ways whose node begins with this tile: a product with the matrix takes rows to its
 * start. */
DEV int nodes_begun(int ways, int tile)
{
    int set = 0;
    for (int way = REFLECT_NODE; tile > 0 && way < WAYS; way++)
        if (!(tile & ((1 << (way - REFLECT_NODE)) - 1))) set |= ways & 1 << way;
    return set;
}

/* What rows leave for a backward pass.  Their lists: nodes of their own block by level, then older
 * blocks. */
DEV int list_of_way(int way, int tile)
{
    return way < REFLECT_BLOCK ? way - REFLECT_NODE : NODE_LEVELS + tile / BLOCK_TILES;
}
/* Is a tile the newest one of the node that rows of a way read it in? */
DEV int ends_node(int way, int tile)
{
    const int size = way < REFLECT_NODE ? 1 : 1 << (way - REFLECT_NODE);
    return way >= REFLECT_NODE && (tile & (size - 1)) == size - 1;
}
/* Numbers of a row with the keys of its own tile: its score, w u, and -beta of that, which it takes
 * from the row; the gradient of the score, w a, and -beta of that. */
enum own_number { OWN_SCORE, OWN_DOT, OWN_PART, OWN_GRADIENT, OWN_TURN, OWN_BACK };
DEV GLOBAL float *own_numbers(struct block b, int which, const struct span *q, int h, int row)
{
    return (GLOBAL float *)(b.at.apart + USE(0).own_pairs)
         + ((((int64_t)which * b.p->batch + q->b) * b.p->heads + h) * b.p->q_len + q->q0 + row)
               * KEYS;
}
/* Rows of a list, from row0 on. */
DEV struct rows_at rows_of_list(struct block b, int64_t from, int list, const struct span *q, int h,
                                int row0)
{
    struct strides s;
    s.row = DIM;
    s.head = (int64_t)b.p->q_len * DIM;
    s.batch = b.p->heads * s.head;
    return view_rows(b.at.apart + from + list * b.p->batch * s.batch * 4, s, q->b, h, q->q0 + row0,
                     GPU_F32, DIM % 4 == 0);
}
/* Rows as the keys of a tile read them that are carried to the end of its node, of one way or of
 * all; others, and those of `all` beyond `rows`, are 0.  True if all that this thread reads are
 * finite. */
enum { ALL_WAYS = -1 };
DEV int load_reflected_rows(struct block b, const struct span *q, int h, int row0, int rows,
                            int all, int tile, int only, int tid, struct grid to)
{
    int finite = 1;
    for (int i = tid; i < all * (FOURS(DIM) / 4); i += THREADS) {
        const int r = i % all, d = i / all * 4,
                  way = r < rows ? way_of(b, q, h, row0 + r, tile) : REFLECT_LATER;
        SHARED float *x = to.at + r * to.one + d * to.channel;
        four y = four_of(0, 0, 0, 0);
        if (way >= REFLECT_NODE && (only == ALL_WAYS || way == only))
            y = load_four_at(
                rows_of_list(b, USE(0).reflected, list_of_way(way, tile), q, h, row0), r, d, DIM);
        finite &= finite_four(y);
        x[0] = y.x;
        x[to.channel] = y.y;
        x[2 * to.channel] = y.z;
        x[3 * to.channel] = y.w;
    }
    return finite;
}

/* Numbers of rows behind those of the pass: rows as a step makes them, [channel][ROWS], what keys
 * together take from them, [2][FEW][ROWS], and the least size of their numbers. */
struct walk_room {
    SHARED float *next, *dots, *parts, *floor;
};
DEV struct walk_room walk_room_of(struct block b, int offset)
{
    struct walk_room r;
    r.next = b.room + offset;
    r.dots = r.next + FOURS(DIM) * ROWS;
    r.parts = r.dots + FEW * ROWS;
    r.floor = r.parts + FEW * ROWS;
    return r;
}
DEV float from_floor(float x, float floor) { return x < floor && x > -floor ? 0.0f : x; }
/* The thread of a row. */
DEV void open_floor(struct block b, struct walk_room r, const SHARED float *u, int row)
{
    float most = 0;
    for (int d = 0; d < DIM; d++) {
        const float x = u[d * ROWS + row], size = x < 0 ? -x : x;
        most = size > most ? size : most;
    }
    r.floor[row] = most * (float)LEAST_PART;
}

/* Products of rows with k and w of FEW keys of their own tile, of the first of which `first` is the
 * number.  s: [key][ROWS]. */
DEV void dot_few(struct block b, const struct span *q, int h, int kvh, int row0, int key0,
                 int first, int n, struct walk_room r, const SHARED float *u, int tid,
                 SHARED float *s)
{
    const struct rows_at k = key_rows(b, q, kvh);
    const GLOBAL float *w = reflect_w(b, q, kvh) + (int64_t)(key0 + first) * DIM;
    for (int i = tid; i < FEW * ROWS; i += THREADS) {
        const int j = i / ROWS, row = i % ROWS;
        float x = 0, y = 0;
        if (first + j >= n || way_of(b, q, h, row0 + row, key0 / KEYS) != REFLECT_OWN) continue;
        const int64_t at = row_offset(k, key0 + first + j);
        for (int d = 0; d < DIM; d++) {
            x = fma_(load_number(k.at, k.type, at + d), u[d * ROWS + row], x);
            y = fma_(w[j * DIM + d], u[d * ROWS + row], y);
        }
        s[(first + j) * ROWS + row] = x;
        r.dots[i] = y;
    }
}
/* The thread of a row: what each of the FEW keys takes from it, and their scores.  keep: for a
 * backward pass, too. */
DEV void meet_few(struct block b, const struct span *q, int h, int kvh, int row0, int key0,
                  int first, int n, int keep, struct walk_room r, int row, SHARED float *s)
{
    const GLOBAL float *by = few_of(b, q, kvh) + (int64_t)(key0 + first) * 2 * FEW,
                       *w = reflect_w(b, q, kvh) + (int64_t)(key0 + first) * DIM,
                       *beta = reflect_beta(b, q, kvh) + key0 + first;
    const int all = least(n - first, FEW), newest = newest_of(b, q, h, row0 + row) - key0 - first;
    int spoilt = -1; /* the newest bad key that acts on the row */
    if (way_of(b, q, h, row0 + row, key0 / KEYS) != REFLECT_OWN) return;
    for (int j = 0; j < all; j++) {
        const int bad = is_bad_key(w + j * DIM, beta[j], DIM);
        if (bad || j > newest) r.dots[j * ROWS + row] = 0;
        if (bad && j <= newest) spoilt = j;
    }
    for (int j = 0; j < all; j++) {
        const float minus = beta[j] * 0.0f == 0.0f ? -beta[j] : 0.0f;
        float sum = 0;
        for (int m = 0; m < all; m++)
            sum = fma_(by[j * 2 * FEW + FEW + m], r.dots[m * ROWS + row], sum);
        r.parts[j * ROWS + row] = from_floor(minus * sum, r.floor[row]);
        if (keep) own_numbers(b, OWN_DOT, q, h, row0 + row)[first + j] = j > spoilt ? sum : NAN;
    }
    for (int j = 0; j < all; j++) {
        SHARED float *score = s + (first + j) * ROWS + row;
        float sum = 0;
        for (int m = 0; m < all; m++)
            sum = fma_(by[j * 2 * FEW + m], r.parts[m * ROWS + row], sum);
        *score = j < spoilt ? NAN : *score + sum;
    }
    for (int j = 0; j <= spoilt; j++) r.parts[j * ROWS + row] = NAN;
    for (int j = 0; keep && j < all; j++) {
        own_numbers(b, OWN_PART, q, h, row0 + row)[first + j] = r.parts[j * ROWS + row];
        own_numbers(b, OWN_SCORE, q, h, row0 + row)[first + j] = s[(first + j) * ROWS + row];
    }
}
/* The rows behind the FEW keys.  Keys that take nothing may have a w that is not finite. */
DEV void pass_few(struct block b, const struct span *q, int h, int kvh, int row0, int key0,
                  int first, int n, struct walk_room r, int tid, SHARED float *u)
{
    const GLOBAL float *w = reflect_w(b, q, kvh) + (int64_t)(key0 + first) * DIM;
    for (int i = tid; i < DIM * ROWS; i += THREADS) {
        const int d = i / ROWS, row = i % ROWS;
        float sum = 0;
        if (way_of(b, q, h, row0 + row, key0 / KEYS) != REFLECT_OWN) continue;
        for (int j = 0; j < least(n - first, FEW); j++)
            if (r.parts[j * ROWS + row] != 0)
                sum = fma_(w[j * DIM + d], r.parts[j * ROWS + row], sum);
        u[i] = from_floor(u[i] + sum, r.floor[row]);
    }
}
/* Rows of a way become those that a step has made. */
DEV void step_rows(struct block b, const struct span *q, int h, int row0, int tile, int way,
                   struct walk_room r, int tid, SHARED float *u)
{
    for (int i = tid; i < DIM * ROWS; i += THREADS)
        if (way_of(b, q, h, row0 + i % ROWS, tile) == way)
            u[i] = from_floor(r.next[i], r.floor[i % ROWS]);
}
/* Rows that own the tile, if `own`, meet its keys, and pass them. */
DEV void meet_own_tile(struct block b, const struct span *q, int h, int kvh, int row0, int rows,
                       int key0, int n, int own, int keep, struct walk_room walk, SHARED float *u,
                       SHARED float *s)
{
    int first = own ? (n - 1) / FEW * FEW : 0;
    do {
        PHASE(tid)
            if (own) dot_few(b, q, h, kvh, row0, key0, first, n, walk, u, tid, s);
        END
        PHASE(tid)
            for (int r = tid; own && r < rows; r += THREADS)
                meet_few(b, q, h, kvh, row0, key0, first, n, keep, walk, r, s);
        END
        PHASE(tid)
            if (own) pass_few(b, q, h, kvh, row0, key0, first, n, walk, tid, u);
        END
        first -= FEW;
    } while (first >= 0);
}
/* Rows pass the nodes that begin with the tile, of the ways `begun`; `k` has room for a tile of
 * keys. */
DEV void step_over_nodes(struct block b, const struct span *q, int h, int kvh, int row0, int tile,
                         int begun, struct walk_room walk, SHARED float *u, SHARED float *k)
{
    int way = next_way(begun, REFLECT_OWN);
    do {
        const int go = way < WAYS;
        int d0 = 0;
        do {
            PHASE(tid)
                if (go)
                    load_rows(matrix_rows(b, q, kvh, way, tile), d0, least(DIM - d0, KEYS), KEYS,
                              DIM, WIDER(DIM), tid, k);
            END
            PHASE(tid)
                float c[MOST_OTHERS][8];
                const int r0 = first_lane(ROWS, tid), side = place(ROWS, tid);
                if (go) product(ROWS, u, k, WIDER(DIM), FOURS(DIM), r0, side, c);
                for (int i = 0; go && i < OTHERS(ROWS) * 8; i++) {
                    const int d = d0 + other_of(ROWS, side, i / 8);
                    if (d < DIM) walk.next[d * ROWS + lane_of(ROWS, r0, i % 8)] = c[i / 8][i % 8];
                }
            END
            d0 += KEYS;
        } while (go && d0 < DIM);
        PHASE(tid)
            if (go) step_rows(b, q, h, row0, tile, way, walk, tid, u);
        END
        way = next_way(begun, way);
    } while (way < WAYS);
}

/* Before a backward pass: rows as their nodes read them, and their numbers with the keys of their
 * own tiles.  A group has rows of a head, and walks down the keys. */
DEV void reflect_rows(struct block b)
{
    if (!REFLECTS) return;
    const int tile = b.x / b.p->heads, h = b.x % b.p->heads,
              kvh = h / (b.p->heads / b.p->kv_heads);
    const struct span q = span_of(b, BY_TILE, tile);
    const int row0 = (tile - q.tile) * ROWS, rows = least(q.nq - row0, ROWS);
    const struct keys_seen seen = keys_of(b, &q, row0, rows);
    const struct rows_at queries =
        view_rows(b.at.q, b.p->q, q.b, h, q.q0 + row0, Q_TYPE, b.p->wide);
    const struct reflected_room at = reflected_room(ROWS, DIM);
    const struct walk_room walk = walk_room_of(b, at.walk);
    SHARED float *u = b.room;
    PHASE(tid)
        load_across(queries, 0, rows, ROWS, DIM, 1.0f, tid, u);
    END
    PHASE(tid)
        for (int r = tid; r < ROWS; r += THREADS) open_floor(b, walk, u, r);
    END
    for (int j = seen.last / KEYS; seen.first <= seen.last && j >= seen.first / KEYS; j--) {
        const int key0 = j * KEYS, n = least(seen.last + 1 - key0, KEYS),
                  ways = ways_of(b, &q, h, row0, rows, j);
        PHASE(tid)
            for (int i = tid; i < rows * DIM; i += THREADS) {
                const int r = i / DIM, d = i % DIM, way = way_of(b, &q, h, row0 + r, j);
                if (ends_node(way, j))
                    gated_row(b, USE(0).reflected, list_of_way(way, j), &q, h, row0 + r)[d] =
                        u[d * ROWS + r];
            }
        END
        meet_own_tile(b, &q, h, kvh, row0, rows, key0, n, ways >> REFLECT_OWN & 1, 1, walk, u,
                      b.room + at.s);
        step_over_nodes(b, &q, h, kvh, row0, j, nodes_begun(ways, j), walk, u, b.room + at.k);
    }
}

#endif
