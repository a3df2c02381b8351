/* SPDX-License-Identifier: MIT */
/* roll.c -- a vector for every distance, multiplied by the query, with the same
 * number of distances as keys.
 *
 *     s[k][r] += scale (q_r + v) . (W R_n)        n = d + r - k
 *
 * A tile needs two blocks of 64 distances, and the next tile shares one of them.  So the blocks
 * roll, and each is one product per query tile.  A skew lines them up with the keys.  In decode
 * the vectors are read as keys are.
 *
 * Backward, dS is collected by distance in two blocks that roll likewise.  A complete block
 * makes a gradient of queries and one of its vectors.  The gradients of vectors are summed by
 * distance until all rows of the work item are done: only then one product with the waves R
 * turns them into a gradient of W.  A block whose keys are far from the chunk in which it becomes
 * complete, as tiles between them are hidden, goes through its waves at once. */
#include "engine/tile_gemm.h"
#include "layout/roll.h"
#include "terms/bands.h"

enum { BLOCK = KT };

/* Blocks of dS by distance (backward), after the reach at the start of a tile's memory: which of
 * them are filled, and their first distances.  Rows save both from chunk to chunk. */
struct grads {
    bool filled[2];
    int64_t first[2];
};
/* State of the hooks of a query tile. */
struct roll_reach {
    struct roll of;
    const real *rows, *waves; /* of distance 0 */
    /* scale (q + v): [D][QT], and its rows [QT][padded D] (backward) */
    real *q, *qrows;
    real *sums[2];     /* blocks of (q + v).(W R_n) */
    bool full[2];      /* true: the block is computed */
    int64_t sum_of[2]; /* first distances of the blocks */
};
enum {
    REACH_ROWS = (sizeof(struct roll_reach) + sizeof(real) * QT - 1) / (sizeof(real) * QT),
    KEPT = QT > 1 ? 1 + 2 * BLOCK : 0
};

static const struct roll *table_of(const struct call *c, int x)
{
    return c->table[c->plan->use[x].enc];
}
static struct roll_reach *reach_of(const struct tile *t, int x)
{
    return (void *)(t->own[x].mem + KEPT * QT);
}
static int64_t clip(int64_t d, int64_t lo, int64_t hi) { return d < lo ? lo : d > hi ? hi : d; }
static int64_t clipped(const struct roll_reach *b, int64_t d)
{
    return clip(d, b->of.lo, b->of.hi);
}
/* The vector of a distance.  That of the next larger distance comes before it: distances fall
 * from key to key, so a walk over keys reads forwards. */
static const real *row_of(const struct roll_reach *b, int64_t d)
{
    return b->rows - (ptrdiff_t)d * b->of.width;
}

static ptrdiff_t mem(const struct call *c, int x)
{
    const int D = c->plan->dim;
    (void)x;
    return KEPT + REACH_ROWS + D + (QT > 1 ? padded(D) + 2 * BLOCK : CHUNK);
}

static void open(struct tile *t, int x)
{
    const int D = t->c->plan->dim;
    const real scale = (real)t->c->plan->scale;
    struct roll_reach b = { .of = *table_of(t->c, x) };
    const char *table = t->own[x].table;
    const real *v = (const real *)(table + b.of.heads) + t->h * roll_head(&b.of);
    b.rows = v + (ptrdiff_t)(1 + b.of.hi) * b.of.width;
    b.waves = (const real *)(table + b.of.waves) - (ptrdiff_t)b.of.lo * b.of.waves_width;
    real *at = t->own[x].mem + (KEPT + REACH_ROWS) * QT;
    b.q = at;
    at += D * QT;
    for (int i = 0; i < 2 && QT > 1; i++) {
        b.sums[i] = at;
        at += BLOCK * QT;
    }
    if (QT > 1) b.qrows = at;
    /* the queries are scaled already */
    for (int d = 0; d < D; d++)
        for (int r = 0; r < QT; r++) b.q[d * QT + r] = fma_(scale, v[d], t->q.across[d * QT + r]);
    memcpy(reach_of(t, x), &b, sizeof b);
}

/* ---- Scores ---------------------------------------------------------------------------------- */

#if QT > 1
/* Of the 64 distances from `first` on, those with vectors of their own: rows i .. i + n - 1 of a
 * block, and the distance of row i.  The rows before and after have the same vectors as the
 * first and the last of these. */
struct own_rows {
    int i, n;
    int64_t d;
};
static struct own_rows own_rows(const struct roll_reach *b, int64_t first)
{
    const int64_t low = clipped(b, first), high = clipped(b, first + BLOCK - 1);
    return (struct own_rows){ .i = (int)clip(low - first, 0, BLOCK - 1),
                              .n = (int)(high - low) + 1,
                              .d = low };
}

/* The vectors of the 64 distances from `first` on, for a product to prefetch as it runs; nothing if
 * some of them have none of their own. */
static struct next next_block(const struct roll_reach *b, int64_t first)
{
    if (first < b->of.lo || first + BLOCK - 1 > b->of.hi) return (struct next){ 0 };
    return (struct next){ (const char *)row_of(b, first), -b->of.width * (ptrdiff_t)sizeof(real),
                          sizeof(real), sizeof(real) };
}

/* Returns the number of the block from `first` on.  If it is not there, it is
 * computed, and replaces the block that does not begin at `other`.  Distances beyond
 * the table copy the row of its end. */
static int block_of(const struct tile *t, struct roll_reach *b, int64_t first, int64_t other)
{
    for (int i = 0; i < 2; i++)
        if (b->full[i] && b->sum_of[i] == first) return i;
    const int i = b->full[0] && b->sum_of[0] == other;
    const struct own_rows o = own_rows(b, first);
    real *x = b->sums[i];
    b->full[i] = true;
    b->sum_of[i] = first;
    product_on(SET, o.n, t->live, t->c->plan->dim, row_of(b, o.d), -b->of.width, 1, b->q, QT,
               x + o.i * QT, QT, NULL, next_block(b, first - next_tile(t->c)));
    for (int n = 0; n < o.i; n++) memcpy(x + n * QT, x + o.i * QT, sizeof(real) * QT);
    for (int n = o.i + o.n; n < BLOCK; n++)
        memcpy(x + n * QT, x + (o.i + o.n - 1) * QT, sizeof(real) * QT);
    return i;
}

/* The tile's distances are `first` .. first + 2 BLOCK - 2.  The tile before, which is newer, has
 * computed the block from `first` on. */
static void score_run(struct tile *t, struct roll_reach *b)
{
    const int64_t first = t->d - (BLOCK - 1);
    const int older = block_of(t, b, first + BLOCK, first);
    const int i = block_of(t, b, first, b->sum_of[older]);
    spread_tile((const real *const[]){ b->sums[i], b->sums[older] }, t->keys, t->s);
}
#else
/* True if every key has a distance of its own: the vectors are rows like keys, one
 * after the other in memory. */
static bool apart(const struct tile *t, const struct roll_reach *b)
{
    return t->d - (t->keys - 1) >= b->of.lo && t->d <= b->of.hi;
}
/* Numbers of the tile's keys, for all tiles of a chunk. */
static real *numbers_of(const struct tile *t, const struct roll_reach *b)
{
    return b->q + t->c->plan->dim + (t->j0 - t->seq->k0) % CHUNK;
}
/* Decode multiplies (q + v) by the vectors instead of keys, as it streams keys. */
static const real *extra_query(struct tile *t, int x, struct source *keys, real **numbers)
{
    const struct roll_reach *b = reach_of(t, x);
    if (!t->run || !apart(t, b)) return NULL;
    *keys = (struct source){ .at = row_of(b, t->d),
                             .stride = b->of.width,
                             .rest = (ptrdiff_t)(t->d - b->of.lo) + 1,
                             .concurrent = true };
    *numbers = numbers_of(t, b);
    return b->q;
}

/* Near the ends several keys share a vector: each is multiplied once. */
static void score_run(struct tile *t, struct roll_reach *b)
{
    const int64_t low = clipped(b, t->d - (t->keys - 1)), high = clipped(b, t->d);
    real sums[KT];
    if (apart(t, b)) {
        const real *numbers = numbers_of(t, b);
        for (int k = 0; k < t->keys; k++) t->s[k] += numbers[k];
        return;
    }
    dot_keys((int)(high - low) + 1, row_of(b, high), b->of.width, t->c->plan->dim, b->q, sums);
    for (int k = 0; k < t->keys; k++) t->s[k] += sums[high - clipped(b, t->d - k)];
}
#endif

/* Positions that are not a run: pair by pair. */
static void score_pairs(struct tile *t, const struct roll_reach *b)
{
    for (int k = 0; k < t->keys; k++)
        for (int r = 0; r < t->rows; r++) {
            const real *row = row_of(b, clipped(b, distance(t, k, r)));
            real sum = 0;
            for (int d = 0; d < t->c->plan->dim; d++) sum = fma_(row[d], b->q[d * QT + r], sum);
            t->s[k * QT + r] += sum;
        }
}

/* A number that is not finite must not leave a masked pair unmasked. */
static void score(struct tile *t, int x)
{
    if (t->run) score_run(t, reach_of(t, x));
    else score_pairs(t, reach_of(t, x));
    mask(t, t->s, -INFINITY);
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* dW [D][waves_width] and dv [width], followed by the gradients of vectors by distance,
 * from item_distances().first on. */
static ptrdiff_t added(const struct call *c, int x)
{
    const struct waves *w = layout_of(c->plan, x);
    return (ptrdiff_t)c->plan->dim * padded(w->numbers) + padded(c->plan->dim);
}
/* A work item has at most ROW_CHUNK rows, and the keys of one chunk.  That gives the number of
 * distances, plus what tiles and blocks reach beyond on both sides. */
static ptrdiff_t part(const struct call *c, int x)
{
    return added(c, x)
         + ((c->Lk < CHUNK ? c->Lk : CHUNK) + ROW_CHUNK + 4 * KT) * padded(c->plan->dim);
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)b;
    return h * added(c, x);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->heads * added(c, x); }

#if QT > 1
static ptrdiff_t grad(const struct call *c, int x)
{
    (void)x;
    return c->plan->dim;
}

static ptrdiff_t chunk_state(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return KEPT;
}
static struct grads *grads_of(const struct tile *t, int x) { return (void *)t->own[x].mem; }
static real *grads_at(const struct tile *t, int x, int i)
{
    return t->own[x].mem + (1 + i * BLOCK) * QT;
}

/* Distances of the work item whose rows begin at `row` to a chunk of keys; blocks of its tiles may
 * reach beyond its keys by less than two tiles. */
struct distances {
    int64_t first, last;
};
static struct distances item_distances(const struct roll *v, const struct sequence *q,
                                       ptrdiff_t row, ptrdiff_t chunk)
{
    const ptrdiff_t end = (chunk + 1) * CHUNK,
                    rows = q->nq - row < ROW_CHUNK ? q->nq - row : ROW_CHUNK;
    return (struct distances){
        clip(q->d0 + row - ((end < q->nk ? end : q->nk) - 1) - KT, v->lo, v->hi),
        clip(q->d0 + row + rows - 1 + 2 * KT - chunk * CHUNK, v->lo, v->hi),
    };
}

/* (q + v) in rows, padded with zeros: the gradient of a vector is a sum of them. */
static void open_bwd(struct tile *t, int x)
{
    const struct roll_reach *b = reach_of(t, x);
    *grads_of(t, x) = (struct grads){ 0 };
    transpose(b->q, QT, t->c->plan->dim, QT, b->qrows, b->of.width);
    for (int r = 0; r < QT; r++)
        for (ptrdiff_t d = t->c->plan->dim; d < b->of.width; d++) b->qrows[r * b->of.width + d] = 0;
}

/* Gradients of vectors go through their waves at once, without a place by distance.  g: dS of the
 * distances from d on. */
static void give_apart(const struct tile *t, int x, const struct roll_reach *b, int64_t d, int n,
                       const real *g)
{
    const int D = t->c->plan->dim;
    real *dw = t->own[x].fresh;
    for (int i = 0; i < n; i++) {
        const real *waves = b->waves + (ptrdiff_t)(d + i) * b->of.waves_width;
        for (int e = 0; e < D; e++) {
            real y = 0;
            for (int r = 0; r < t->rows; r++)
                if (g[i * QT + r] != 0) y = fma_(g[i * QT + r], b->q[e * QT + r], y);
            for (ptrdiff_t m = 0; m < b->of.waves_width; m++)
                dw[e * b->of.waves_width + m] = fma_(y, waves[m], dw[e * b->of.waves_width + m]);
        }
    }
}
/* Turns block i of dS by distance into gradients.  Rows beyond the table are first added to that
 * of its end, whose vector they used.  The block may have begun in an older chunk.  If the tiles
 * from there to this one are hidden, the item may have no place for its distances. */
static void give(const struct tile *t, int x, const struct roll_reach *b, int i, real *dq)
{
    struct grads *all = grads_of(t, x);
    if (!all->filled[i]) return;
    const struct own_rows o = own_rows(b, all->first[i]);
    const ptrdiff_t row = (t->i0 - t->seq->q0) / ROW_CHUNK * ROW_CHUNK,
                    chunk = (t->j0 - t->seq->k0) / CHUNK;
    const struct distances item = item_distances(&b->of, t->seq, row, chunk);
    const bool learns = t->own[x].part, apart = o.d < item.first || o.d + o.n - 1 > item.last;
    real *g = grads_at(t, x, i);
    for (int n = 0; n < BLOCK; n++) {
        const int to = n < o.i ? o.i : n >= o.i + o.n ? o.i + o.n - 1 : n;
        for (int r = 0; r < QT && to != n; r++) g[to * QT + r] += g[n * QT + r];
    }
    real *part = learns && !apart
                   ? t->own[x].part + added(t->c, x) + (ptrdiff_t)(o.d - item.first) * b->of.width
                   : NULL;
    const struct next next = { (const char *)part, sizeof(real),
                               b->of.width * (ptrdiff_t)sizeof(real), sizeof(real) };
    product_on(ADD, t->c->plan->dim, QT, o.n, row_of(b, o.d), 1, -b->of.width, g + o.i * QT, QT, dq,
               QT, NULL, next);
    if (part) add_outer(t, o.n, g + o.i * QT, b->qrows, (int)b->of.width, part);
    if (learns && apart) give_apart(t, x, b, o.d, o.n, g + o.i * QT);
    all->filled[i] = false;
}

/* Returns the number of the block of dS from `first` on.  If it is not there, the block that
 * does not begin at `other` is complete: its gradients are added, and it begins again. */
static int fold_block(const struct tile *t, int x, const struct roll_reach *b, int64_t first,
                      int64_t other)
{
    struct grads *all = grads_of(t, x);
    for (int i = 0; i < 2; i++)
        if (all->filled[i] && all->first[i] == first) return i;
    const int i = all->filled[0] && all->first[0] == other;
    give(t, x, b, i, t->own[x].grad);
    memset(grads_at(t, x, i), 0, sizeof(real) * BLOCK * QT);
    all->filled[i] = true;
    all->first[i] = first;
    return i;
}

/* Pair by pair: the vector's gradient goes through its wave immediately. */
static void score_pairs_bwd(const struct tile *t, int x, const struct roll_reach *b)
{
    const int D = t->c->plan->dim;
    real *dq = t->own[x].grad, *dw = t->own[x].fresh;
    for (int k = 0; k < t->keys; k++)
        for (int r = 0; r < t->rows; r++) {
            const int64_t n = clipped(b, distance(t, k, r));
            const real g = t->ds[k * QT + r], *row = row_of(b, n),
                       *waves = b->waves + (ptrdiff_t)n * b->of.waves_width;
            if (g == 0) continue;
            for (int d = 0; d < D; d++) {
                dq[d * QT + r] = fma_(g, row[d], dq[d * QT + r]);
                const real y = g * b->q[d * QT + r];
                for (ptrdiff_t m = 0; dw && m < b->of.waves_width; m++)
                    dw[d * b->of.waves_width + m] =
                        fma_(y, waves[m], dw[d * b->of.waves_width + m]);
            }
        }
}

/* Tiles come oldest first, so the block of larger distances is complete first: it is replaced
 * when the newer one begins. */
static void score_bwd(struct tile *t, int x)
{
    const struct roll_reach *b = reach_of(t, x);
    if (!t->run) {
        score_pairs_bwd(t, x, b);
        return;
    }
    const int64_t first = t->d - (BLOCK - 1);
    const int newer = fold_block(t, x, b, first, first + BLOCK);
    const int older = fold_block(t, x, b, first + BLOCK, first);
    gather_tile(t->ds, t->keys, (real *const[]){ grads_at(t, x, newer), grads_at(t, x, older) });
}

static void close_bwd(struct tile *t, int x)
{
    const struct roll_reach *b = reach_of(t, x);
    const int D = t->c->plan->dim;
    const real scale = (real)t->c->plan->scale;
    real *dq = t->own[x].grads;
    for (int i = 0; i < 2; i++) give(t, x, b, i, dq);
    /* (q + v) has one gradient: q gets it by row, v the sum over the rows */
    for (int d = 0; d < D; d++) {
        real sum = 0;
        for (int r = 0; r < QT; r++) {
            t->dqs[d * QT + r] += dq[d * QT + r];
            sum += dq[d * QT + r];
        }
        if (t->own[x].part) t->own[x].part[D * b->of.waves_width + d] += scale * sum;
    }
}

/* dW += sum over n of the vectors' gradients times R_n. */
static void finish(const struct call *c, int x, const struct sequence *q, ptrdiff_t row,
                   ptrdiff_t chunk, real *p)
{
    const struct roll *v = table_of(c, x);
    const real *waves = (const real *)((const char *)v + v->waves), *from = p + added(c, x);
    if (!q->run || !q->nk) return;
    const struct distances item = item_distances(v, q, row, chunk);
    for (int64_t d = item.first; d <= item.last; d += BLOCK) {
        const int n = item.last - d + 1 < BLOCK ? (int)(item.last - d + 1) : BLOCK;
        product(ADD, c->plan->dim, (int)v->waves_width, n,
                from + (ptrdiff_t)(d - item.first) * v->width, 1, v->width,
                waves + (ptrdiff_t)(d - v->lo) * v->waves_width, v->waves_width, p, v->waves_width,
                NULL);
    }
}
#endif

const struct term N(term_roll) = {
    .name = "roll",
    .mem = mem,
    .part = part,
    .part_by_tile = true,
    .part_at = part_at,
    .total = total,
    .added = added,
    .fresh = added,
    .open = open,
    .score = score,
#if QT > 1
    .grad = grad,
    .chunk_state = chunk_state,
    .open_bwd = open_bwd,
    .score_bwd = score_bwd,
    .close_bwd = close_bwd,
    .finish = finish,
#else
    .extra_query = extra_query,
#endif
};
