/* SPDX-License-Identifier: MIT */
/* band_q.c -- vectors by distance: one is multiplied by the query, and one is
 * summed besides the values.
 *
 *     s[k][r] += scale q_r . K[n]        o_r += sum over k of p[k][r] V[n]
 *     n the row of the distance d + r - k
 *
 * K is a second, virtual set of keys.  One product per query tile makes every row's number for
 * every distance.  A skew turns them into lines that keys add as they are.  The first and the
 * last line serve all keys further on.
 *
 * In the other direction, weights (and in the backward pass dS) are collected by distance, and
 * one product each ends that.  On a run a row has one key at each distance between lo and hi,
 * so the keys' rows are copied to their lines.  Weights of a softmax need not even fade at a
 * later max: lines store the scores, and become weights at the end.  At lo and hi are the sums
 * over all keys further on. */
#include "engine/tile_gemm.h"
#include "layout/band_q.h"
#include "terms/bands.h"

/* State of the hooks of a query tile, at the start of their memory. */
struct query_reach {
    struct vectors of;
    int lo, hi;           /* distances of visible pairs are clipped to these */
    int from, to;         /* of these, those of this query tile; none: to < from */
    int m, lines;         /* lines m .. m + lines - 1 are all that the tile needs */
    int first, rows;      /* rows of the table, likewise */
    const int32_t *index; /* row of each distance from `from` on */
    const real *k, *v;    /* the table: K^T [D][columns], V [rows][width] */
    /* lines of q.K; scratch for the same number; lines of dO.V (backward) */
    real *scores, *spare, *values;
};

static struct vectors vectors_of(const struct call *c, int x)
{
    return *(const struct vectors *)layout_of(c->plan, x);
}
static int clip(int64_t d, int lo, int hi) { return d < lo ? lo : d > hi ? hi : (int)d; }

/* The table's range, cut to distances that the mask allows. */
struct ends {
    int lo, hi;
};
static struct ends ends_of(const struct call *c, const struct vectors *v)
{
    const struct band w = band(c->plan);
    struct ends e = { clip(w.lo, v->lo, v->hi), clip(w.hi, v->lo, v->hi) };
    if (e.hi < e.lo) e.hi = e.lo;
    return e;
}

/* Most lines of a query tile: one per distance, and QT - 1 more for the slope of a tile.
 * Default positions are 0, 1, 2 ..., so then the keys bound the distances. */
static ptrdiff_t most_lines(const struct call *c, int x)
{
    const struct vectors v = vectors_of(c, x);
    const struct ends e = ends_of(c, &v);
    ptrdiff_t span = e.hi - e.lo;
    const ptrdiff_t keys = all_keys(c);
    if (!c->in->q_pos && keys + QT - 2 < span) span = keys > 0 ? keys + QT - 2 : 0;
    return span + QT;
}
enum { REACH_ROWS = (sizeof(struct query_reach) + sizeof(real) * QT - 1) / (sizeof(real) * QT) };
/* Rows of `spare` and similar arrays: with QT = 1 a product's last vector reaches further. */
static ptrdiff_t line_rows(const struct call *c, int x)
{
    return most_lines(c, x) + (QT == 1 ? PAD : 0);
}
static ptrdiff_t mem(const struct call *c, int x)
{
    const ptrdiff_t n = line_rows(c, x);
    if (QT == 1) return REACH_ROWS + 2 * n + padded(c->plan->value_dim);
    return REACH_ROWS + (vectors_of(c, x).values ? 3 * n : 2 * n);
}

/* The lines of scores, if they become weights at the end. */
static ptrdiff_t part_state(const struct call *c, int x, ptrdiff_t *first)
{
    const bool lines = vectors_of(c, x).values && c->plan->weight < 0;
    *first = REACH_ROWS + line_rows(c, x);
    return lines ? line_rows(c, x) : 0;
}

static const struct query_reach *reach_of(const struct tile *t, int x)
{
    return (const void *)t->own[x].mem;
}

/* The part of the table that the rows of this query tile can reach, and where their lines are. */
static struct query_reach find_reach(const struct tile *t, int x)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const struct sequence *q = t->seq;
    struct query_reach b = { .of = vectors_of(c, x) };
    const struct ends e = ends_of(c, &b.of);
    const struct band w = band(p);
    /* of the first row and the first key */
    const int64_t d = q->d0 + (t->i0 - q->q0);
    b.lo = b.from = e.lo;
    b.hi = b.to = e.hi;
    if (q->run) {
        const int64_t low = d - (q->nk - 1) > w.lo ? d - (q->nk - 1) : w.lo,
                      high = d + t->rows - 1 < w.hi ? d + t->rows - 1 : w.hi;
        b.from = clip(low, e.lo, e.hi);
        b.to = clip(high, e.lo, e.hi);
        if (high < low) b.to = b.from - 1;
    }
    if (!q->nk) b.to = b.from - 1;
    b.m = b.from - (QT - 1);
    b.lines = b.to - b.from + QT;

    const char *table = t->own[x].table;
    b.index = (const int32_t *)table + (b.from - b.of.lo);
    /* The index rises or falls, so its ends bound the rows. */
    if (b.to >= b.from) {
        const int one = b.index[0], other = b.index[b.to - b.from];
        b.first = one < other ? one : other;
        b.rows = (one < other ? other : one) - b.first + 1;
    }
    const int number = b.of.tables > 1 ? t->h : 0;
    b.k = (const real *)(table + vectors_index(&b.of))
        + (size_t)number * vectors_table(&b.of, p->dim, p->value_dim);
    b.v = b.k + vectors_values(&b.of, p->dim);
    b.scores = t->own[x].mem + REACH_ROWS * QT;
    b.spare = b.scores + line_rows(c, x) * QT;
    b.values = b.spare + line_rows(c, x) * QT;
    return b;
}
static struct by_distance by_distance(const struct query_reach *b, real *rows)
{
    return (struct by_distance){
        .rows = rows, .index = b->index, .from = b->from, .to = b->to, .first = b->first
    };
}

/* ---- From distances to keys ------------------------------------------------------------------ */

/* Every key adds its line to x.  On a run keys before `near` are at least as far away as the
 * last line, those from `far` on no further than the first.  Between them each key has the line
 * before that of its older neighbour. */
static void add_lines(const struct tile *t, const struct query_reach *b, const real *restrict lines,
                      real *restrict x)
{
    const int keys = t->keys;
    if (!t->run) {
        for (int k = 0; k < keys; k++)
            for (int r = 0; r < t->rows; r++)
                x[k * QT + r] +=
                    lines[(ptrdiff_t)(clip(distance(t, k, r), b->from, b->to) - r - b->m) * QT + r];
        return;
    }
    const int near = clip(t->d - b->to + 1, 0, keys), far = clip(t->d - b->m, near, keys);
    const real *restrict newest = lines + (ptrdiff_t)(b->lines - 1) * QT;
    for (int k = 0; k < near; k++)
        for (int r = 0; r < QT; r++) x[k * QT + r] += newest[r];
    for (int k = near; k < far; k++) {
        const real *restrict line = lines + (ptrdiff_t)(t->d - k - b->m) * QT;
        for (int r = 0; r < QT; r++) x[k * QT + r] += line[r];
    }
    for (int k = far; k < keys; k++)
        for (int r = 0; r < QT; r++) x[k * QT + r] += lines[r];
}

#if QT == 1
/* C[n] = sum over d of a[d][n] q[d]: a stream, as a table may come from memory. */
static void dot_rows(int D, ptrdiff_t n, const real *a, ptrdiff_t as, const real *q, real *c)
{
    for (ptrdiff_t i = 0; i < n; i += VL) vf_store(c + i, vf_set1(0));
    for (int d = 0; d < D; d++)
        for (ptrdiff_t i = 0; i < n; i += VL)
            vf_store(c + i, vf_fma(vf_load(a + d * as + i), vf_set1(q[d]), vf_load(c + i)));
}
#endif

/* Computes the lines of q.K.  This uses `spare`, which then becomes the lines of scores,
 * -inf where there is no key. */
static void open(struct tile *t, int x)
{
    const struct query_reach b = find_reach(t, x);
    const struct loci_plan *p = t->c->plan;
    const ptrdiff_t columns = (ptrdiff_t)vectors_columns(&b.of);
    memcpy(t->own[x].mem, &b, sizeof b);
    if (b.to < b.from) return;
#if QT == 1
    dot_rows(p->dim, padded(b.rows), b.k + b.first, columns, t->q.across, b.spare);
#else
    product(SET, b.rows, t->live, p->dim, b.k + b.first, 1, columns, t->q.across, QT, b.spare, QT,
            NULL);
    for (ptrdiff_t n = 0; n < b.rows && t->live < QT; n++)
        memset(b.spare + n * QT + t->live, 0, sizeof(real) * (size_t)(QT - t->live));
#endif
    const struct by_distance numbers = by_distance(&b, b.spare);
    skew(&numbers, b.m, b.lines, b.scores);
    for (ptrdiff_t n = 0; n < (ptrdiff_t)b.lines * QT; n++) b.spare[n] = -INFINITY;
}

/* A number that is not finite must not leave a masked pair unmasked. */
static void score(struct tile *t, int x)
{
    const struct query_reach *b = reach_of(t, x);
    add_lines(t, b, b->scores, t->s);
    mask(t, t->s, -INFINITY);
}

/* The largest number that a key of the tile can add, of all rows; NaN if there is one,
 * so that nothing is skipped. */
static real ceiling(const struct tile *t, int x)
{
    const struct query_reach *b = reach_of(t, x);
    if (!t->run || b->to < b->from) return INFINITY;
    real most = -INFINITY;
    const real *lines = b->scores;
    const int last = clip(t->d - b->m, 0, b->lines - 1),
              first = clip(t->d - (t->keys - 1) - b->m, 0, b->lines - 1);
    for (ptrdiff_t n = (ptrdiff_t)first * QT; n < (ptrdiff_t)(last + 1) * QT; n++)
        most = lines[n] > most || lines[n] != lines[n] ? lines[n] : most;
    return most;
}

/* ---- From keys to distances ------------------------------------------------------------------ */

/* Adds rows of keys first .. end - 1 of x, for every query row in ascending order. */
static void sum_keys(const real *x, int first, int end, real *sum)
{
#if QT == 1
    for (int k = first; k < end; k++) *sum += x[k];
#else
    for (int r = 0; r < QT; r += VL) {
        vf a = vf_load(sum + r);
        for (int k = first; k < end; k++) a = vf_add(a, vf_load(x + k * QT + r));
        vf_store(sum + r, a);
    }
#endif
}

/* Adds to rows 0 and 1 of `ends` the sums of x over the keys up to lo and from hi on.  Keys that
 * all rows have at an end are summed as vectors, the few on the slope row by row.  Either way a
 * row's sum starts at 0 and runs over ascending keys. */
static void add_ends(const struct tile *t, const struct query_reach *b, const real *restrict x,
                     real *restrict ends)
{
    /* if both ends are equal, all keys go to hi */
    const int lo = b->lo < b->hi ? b->lo : b->hi - 1, hi = b->hi, keys = t->keys;
    real sum[2][QT] = { { 0 } };
    if (!t->run) {
        for (int k = 0; k < keys; k++)
            for (int r = 0; r < t->rows; r++) {
                const int64_t d = distance(t, k, r);
                if (d >= hi) sum[1][r] += x[k * QT + r];
                else if (d <= lo) sum[0][r] += x[k * QT + r];
            }
    } else {
        /* keys before `whole` are at hi or beyond for all rows, those before `last` for some */
        const int whole = clip(t->d - hi + 1, 0, keys), last = clip(t->d - hi + QT, 0, keys);
        sum_keys(x, 0, whole, sum[1]);
        for (int k = whole; k < last; k++)
            for (int r = (int)(hi - t->d) + k; r < QT; r++) sum[1][r] += x[k * QT + r];
        /* and from `rest` on at lo or nearer for all rows, from `begin` on for some */
        const int begin = clip(t->d - lo, 0, keys), rest = clip(t->d - lo + QT - 1, 0, keys);
        for (int k = begin; k < rest; k++)
            for (int r = (int)(lo - t->d) + k; r >= 0; r--) sum[0][r] += x[k * QT + r];
        sum_keys(x, rest, keys, sum[0]);
    }
    for (int r = 0; r < QT; r++) {
        ends[r] += sum[0][r];
        ends[QT + r] += sum[1][r];
    }
}

/* The score of one key with the weight of two: log(e^a + e^b), computed from the larger. */
static real join(real a, real b)
{
    const real most = max_(a, b), least = min_(a, b);
    return least == -INFINITY ? most : most + (real)log_(1 + (double)exp_(least - most));
}
/* Keys store their rows of x on their lines.  If positions repeat, two keys of a row share a
 * line: weights are added, scores are joined. */
static void put_lines(const struct tile *t, const struct query_reach *b, const bool scores,
                      const real *restrict x, real *restrict lines)
{
    const int keys = t->keys;
    if (t->run) {
        const int first = clip(t->d - b->to, 0, keys), end = clip(t->d - b->m + 1, 0, keys);
        for (int k = first; k < end; k++)
            memcpy(lines + (ptrdiff_t)(t->d - k - b->m) * QT, x + k * QT, sizeof(real) * QT);
        return;
    }
    for (int k = 0; k < keys; k++)
        for (int r = 0; r < t->rows; r++) {
            const int64_t d = distance(t, k, r);
            if (d <= b->lo || d >= b->hi) continue;
            real *to = lines + (d - r - b->m) * QT + r;
            *to = scores ? join(*to, x[k * QT + r]) : *to + x[k * QT + r];
        }
}

/* Collects sums by row of the table, from ends and lines; with a base, the lines are scores.
 * Distances that share a row are added there. */
static void gather(const struct query_reach *b, const real *ends, const real *lines,
                   const real *base, real *rows)
{
    const struct by_distance x = by_distance(b, rows);
    const int first = b->from > b->lo ? b->from : b->lo + 1,
              last = b->to < b->hi ? b->to : b->hi - 1;
    memset(rows, 0, sizeof(real) * (size_t)b->rows * QT);
    if (b->from == b->lo)
        for (int r = 0; r < QT; r++) row_at(&x, b->lo)[r] += ends[r];
    if (b->to == b->hi)
        for (int r = 0; r < QT; r++) row_at(&x, b->hi)[r] += ends[QT + r];
    if (first > last) return;
    if (base) unskew(lines, b->m, b->lines, base, &x, first, last);
    else unskew(lines, b->m, b->lines, NULL, &x, first, last);
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* Are the weights a softmax of all scores, so that lines can be scores? */
static bool from_scores(const struct call *c) { return c->plan->weight < 0 && !c->dropout.on; }
/* Sums of weights: the two ends, and lines if scores do not give them. */
static ptrdiff_t out(const struct call *c, int x)
{
    if (!vectors_of(c, x).values) return 0;
    return from_scores(c) ? 2 : 2 + most_lines(c, x);
}

/* Weights go to the ends and to lines: those of a softmax as scores, those of a stick, or some of
 * which are dropped, as they are. */
static void value(struct tile *t, int x)
{
    const struct query_reach *b = reach_of(t, x);
    real *to = t->own[x].out;
    if (!b->of.values) return;
    add_ends(t, b, t->p, to);
    if (from_scores(t->c)) put_lines(t, b, true, t->s, b->spare);
    else put_lines(t, b, false, t->p, to + 2 * QT);
}

/* o += V^T w, with w the weights by row of the table, under the max of all chunks. */
static void close(struct tile *t, int x)
{
    const struct query_reach *b = reach_of(t, x);
    const int Dv = t->c->plan->value_dim;
    const ptrdiff_t width = (ptrdiff_t)vectors_width(Dv);
    const real *outs = t->own[x].outs;
    if (!b->of.values || b->to < b->from) return;
    real base[QT], *w = b->scores;
    for (int r = 0; r < QT; r++) base[r] = t->total.m[r] == -INFINITY ? 0 : t->total.m[r];
    if (from_scores(t->c)) gather(b, outs, b->spare, base, w);
    else gather(b, outs, outs + 2 * QT, NULL, w);
    const real *v = b->v + b->first * width;
    if (QT > 1) {
        product(ADD, Dv, QT, b->rows, v, 1, width, w, QT, t->total.o, QT, NULL);
    } else {
        product(SET, 1, padded(Dv), b->rows, w, 0, 1, v, width, b->values, 0, NULL);
        for (int n = 0; n < Dv; n++) t->total.o[n] += b->values[n];
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

static ptrdiff_t part(const struct call *c, int x)
{
    const struct vectors v = vectors_of(c, x);
    return (ptrdiff_t)vectors_part(&v, c->plan->dim, c->plan->value_dim);
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)b;
    return vectors_of(c, x).tables > 1 ? h * part(c, x) : 0;
}
static ptrdiff_t total(const struct call *c, int x) { return vectors_of(c, x).tables * part(c, x); }

#if QT > 1
/* Sums of dS, then of weights: ends and lines of each. */
static ptrdiff_t kind(const struct call *c, int x) { return 2 + most_lines(c, x); }
static ptrdiff_t grad(const struct call *c, int x)
{
    return vectors_of(c, x).values ? 2 * kind(c, x) : kind(c, x);
}

/* Adds x, dS or weights, to ends and lines. */
static void collect(const struct tile *t, const struct query_reach *b, const real *x, real *to)
{
    add_ends(t, b, x, to);
    put_lines(t, b, false, x, to + 2 * QT);
}

/* Lines of dO.V, which dP adds as scores add those of q.K. */
static void open_bwd(struct tile *t, int x)
{
    const struct query_reach *b = reach_of(t, x);
    const int Dv = t->c->plan->value_dim;
    const ptrdiff_t width = (ptrdiff_t)vectors_width(Dv);
    if (!b->of.values || b->to < b->from) return;
    product(SET, b->rows, QT, Dv, b->v + b->first * width, width, 1, t->dout.across, QT, b->spare,
            QT, NULL);
    const struct by_distance numbers = by_distance(b, b->spare);
    skew(&numbers, b->m, b->lines, b->values);
}

static void score_bwd(struct tile *t, int x)
{
    const struct query_reach *b = reach_of(t, x);
    collect(t, b, t->ds, t->own[x].grad);
}

static void value_bwd(struct tile *t, int x)
{
    const struct query_reach *b = reach_of(t, x);
    if (!b->of.values) return;
    add_lines(t, b, b->values, t->dp);
    if (t->own[x].part) collect(t, b, t->p, t->own[x].grad + kind(t->c, x) * QT);
}

/* With w the sums of dS by row of the table: dq += K^T w, dK += w q^T.  With those of weights:
 * dV += w dO^T.  q.rows are scaled; dqs is scaled later. */
static void close_bwd(struct tile *t, int x)
{
    const struct query_reach *b = reach_of(t, x);
    const int D = t->c->plan->dim, Dp = padded(D), Dvp = padded(t->c->plan->value_dim);
    const real *sums = t->own[x].grads;
    real *to = t->own[x].part, *w = b->spare;
    if (b->to < b->from) return;
    gather(b, sums, sums + 2 * QT, NULL, w);
    product(ADD, D, QT, b->rows, b->k + b->first, (ptrdiff_t)vectors_columns(&b->of), 1, w, QT,
            t->dqs, QT, NULL);
    if (!to) return;
    add_outer(t, b->rows, w, t->q.rows, Dp, to + (ptrdiff_t)b->first * Dp);
    if (!b->of.values) return;
    sums += kind(t->c, x) * QT;
    gather(b, sums, sums + 2 * QT, NULL, w);
    add_outer(t, b->rows, w, t->dout.rows, Dvp,
              to + (ptrdiff_t)b->of.rows * Dp + (ptrdiff_t)b->first * Dvp);
}
#endif

const struct term N(term_band_q) = {
    .name = "band_q",
    .mem = mem,
    .part_state = part_state,
    .out = out,
    .part = part,
    .part_at = part_at,
    .total = total,
    .open = open,
    .score = score,
    .value = value,
    .close = close,
    .ceiling = ceiling,
#if QT > 1
    .grad = grad,
    .open_bwd = open_bwd,
    .score_bwd = score_bwd,
    .value_bwd = value_bwd,
    .close_bwd = close_bwd,
#endif
};
