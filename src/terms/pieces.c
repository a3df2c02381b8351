/* SPDX-License-Identifier: MIT */
/* pieces.c -- adds a number that is piecewise linear in x = psi(|d|) / N_i;
 * layout/pieces.h describes the table.
 *
 *     s[k][r] += a[p] x + b[p]       p = the last piece whose end is at most x
 *
 * psi rises with the distance, so the pairs of a block are in a few neighbouring pieces.  Their
 * values are those of the first piece, with two selects per end that the block may cross.  Which
 * ends are tried depends on the block; which piece a pair is in does not.
 *
 * Backward: sums of dS and dS x by piece; and per row u = sum dS a x, w = sum dS a psi', from
 * which the gradients of c and T are computed. */
#include "engine/term.h"
#include "layout/pieces.h"
#include "terms/diagonals.h"

/* Rows of own.mem: 1 / N; and of own.grad: u and w as above. */
enum { INVERSE, MEM };
enum { U, W, GRAD };

static ptrdiff_t mem(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return MEM;
}

static const double *inverses(const struct tile *t, int x)
{
    return (const double *)t->own[x].scratch + t->seq->b * t->c->Lq + t->i0;
}
/* Dead rows are like the last live row, so that ranges over all rows of a
 * tile stay those of live ones. */
static void open(struct tile *t, int x)
{
    real *inverse = t->own[x].mem + INVERSE * QT;
    for (int r = 0; r < QT; r++) inverse[r] = (real)inverses(t, x)[r < t->rows ? r : t->rows - 1];
}

/* ---- Pieces of pairs ------------------------------------------------------------------------- */

/* A head's pieces: all of them, or those first .. last that contain some pair of a block. */
struct lines {
    const real *ends, *a, *b;
    int first, last;
};

static struct lines lines_of(const struct tile *t, int x)
{
    const struct pieces *p = t->own[x].table;
    return (struct lines){ .ends = pieces_ends(p),
                           .a = pieces_lines(p, t->h, false, sizeof(real)),
                           .b = pieces_lines(p, t->h, true, sizeof(real)),
                           .first = 0,
                           .last = p->count - 1 };
}
/* The piece of x, one of first .. last, by bisection.  It has no branch that depends on x. */
static int find_piece(const struct lines *g, real x)
{
    int low = g->first, count = g->last - low + 1;
    while (count > 1) {
        const int half = count / 2;
        low += x >= g->ends[low + half] ? half : 0;
        count -= half;
    }
    return low;
}

/* psi of the distances of a tile, and its derivative; element 0 is distance 0. */
static const real *psi_of(const struct tile *t, int x, bool slope)
{
    const struct pieces *p = t->own[x].table;
    return (const real *)pieces_psi(p, slope, sizeof(real)) - p->lo;
}

/* Keys k0 .. k0 + kn - 1 of a run's tile against rows r0 .. r0 + rn - 1. */
struct piece_block {
    int k0, kn, r0, rn;
};

/* Bounds for x of the block's pairs, or of those behind the query if nothing else is visible.
 * False if there is none.  psi falls, then rises with the distance, and 1 / N changes in one
 * direction along the rows, so the corners and distance 0 bound them. */
static bool x_range(const struct tile *t, int x, struct piece_block b, real *low, real *high)
{
    const real *psi = psi_of(t, x, false), *inverse = t->own[x].mem + INVERSE * QT;
    int64_t lo = t->d + b.r0 - (b.k0 + b.kn - 1), hi = t->d + b.r0 + b.rn - 1 - b.k0;
    if (!t->c->plan->full && lo < 0) lo = 0;
    if (lo > hi) return false;
    const real near = lo <= 0 && hi >= 0 ? 0 : min_(psi[lo], psi[hi]), far = max_(psi[lo], psi[hi]);
    const real one = inverse[b.r0], other = inverse[b.r0 + b.rn - 1];
    *low = near * min_(one, other);
    *high = far * max_(one, other);
    return true;
}

/* Cuts the pieces down to those of a block; false if it has no visible pair.  More pieces than
 * needed would cost time and change no bit. */
static bool few_pieces(const struct tile *t, int x, struct piece_block b, struct lines *g)
{
    real low, high;
    if (!x_range(t, x, b, &low, &high)) return false;
    const int first = find_piece(g, low);
    g->last = find_piece(g, high);
    g->first = first;
    return true;
}

/* x of a pair at any distance, and that distance in *at.  Masked pairs may be further away than
 * the table reaches, and are clipped to its range. */
static real x_at(const struct tile *t, int x, int k, int r, int64_t *at)
{
    const struct pieces *p = t->own[x].table;
    const int64_t d = distance(t, k, r), a = d < 0 ? -d : d;
    *at = a < p->hi ? a : p->hi;
    return psi_of(t, x, false)[*at] * t->own[x].mem[INVERSE * QT + r];
}

/* ---- Forward --------------------------------------------------------------------------------- */

enum { PAIR = 2 }; /* vectors processed together: their selects overlap */

/* s += a x + b for n <= PAIR vectors: a and b are those of the first piece,
 * and of a later one from its end on. */
INLINE void add_lines(const struct lines *g, const int n, const vf *x, real *s)
{
    vf a[PAIR], b[PAIR];
    UNROLL_FOR(int i = 0; i < n; i++) {
        a[i] = vf_set1(g->a[g->first]);
        b[i] = vf_set1(g->b[g->first]);
    }
    for (int p = g->first + 1; p <= g->last; p++) {
        const vf end = vf_set1(g->ends[p]), ap = vf_set1(g->a[p]), bp = vf_set1(g->b[p]);
        UNROLL_FOR(int i = 0; i < n; i++) {
            const vf over = vf_sub(x[i], end);
            a[i] = vf_negative(over, a[i], ap);
            b[i] = vf_negative(over, b[i], bp);
        }
    }
    UNROLL_FOR(int i = 0; i < n; i++)
        vf_store(s + i * VL, vf_add(vf_load(s + i * VL), vf_fma(a[i], x[i], b[i])));
}

/* Positions that are not a run: pair by pair. */
static void score_apart(struct tile *t, int x)
{
    const struct lines g = lines_of(t, x);
    for (int k = 0; k < t->keys; k++)
        for (int r = 0; r < t->rows; r++) {
            int64_t at;
            const real y = x_at(t, x, k, r, &at);
            const int p = find_piece(&g, y);
            t->s[k * QT + r] += fma_(g.a[p], y, g.b[p]);
        }
}

#if QT == 1
static void score(struct tile *t, int x)
{
    struct lines g = lines_of(t, x);
    if (!t->run) {
        score_apart(t, x);
        return;
    }
    if (!few_pieces(t, x, (struct piece_block){ 0, t->keys, 0, 1 }, &g)) return;
    const real *psi = psi_of(t, x, false) + t->d, inverse = t->own[x].mem[INVERSE];
    real y[KT];
    /* psi's margin covers keys that a tile lacks; their scores are never read */
    for (int k = 0; k < KT; k++) y[k] = psi[-k] * inverse;
    for (int k = 0; k < t->keys; k += VL) {
        const vf one = vf_load(y + k);
        add_lines(&g, 1, &one, t->s + k);
    }
}
#else
enum { SIDE = 32 }; /* side of a block, if a tile has more than one piece */

/* Rows in the lanes, and one contiguous load of psi per key. */
static void add_block(struct tile *t, int x, const struct lines *g, struct piece_block b)
{
    const real *psi = psi_of(t, x, false) + t->d, *inverse = t->own[x].mem + INVERSE * QT;
    for (int r = b.r0; r < b.r0 + b.rn; r += PAIR * VL) {
        const vf one = vf_load(inverse + r), other = vf_load(inverse + r + VL);
        for (int k = b.k0; k < b.k0 + b.kn; k++) {
            const vf y[PAIR] = { vf_mul(vf_load(psi + r - k), one),
                                 vf_mul(vf_load(psi + r - k + VL), other) };
            add_lines(g, PAIR, y, t->s + k * QT + r);
        }
    }
}

/* Passes on a run's tile as a whole if it is in one piece, else block by
 * block what can be visible. */
INLINE void each_block(struct tile *t, int x,
                       void (*work)(struct tile *, int x, const struct lines *, struct piece_block))
{
    const struct piece_block whole = { 0, t->keys, 0, QT };
    struct lines all = lines_of(t, x);
    if (!few_pieces(t, x, whole, &all)) return;
    if (all.first == all.last) {
        work(t, x, &all, whole);
        return;
    }
    for (int k = 0; k < t->keys; k += SIDE)
        for (int r = 0; r < QT; r += SIDE) {
            const struct piece_block b = { k, t->keys - k < SIDE ? t->keys - k : SIDE, r, SIDE };
            struct lines g = all;
            if (few_pieces(t, x, b, &g)) work(t, x, &g, b);
        }
}

static void score(struct tile *t, int x)
{
    if (t->run) each_block(t, x, add_block);
    else score_apart(t, x);
}
#endif

/* The largest value at the ends of the pieces that the tile's pairs may be in: a linear piece is
 * largest at an end.  NaN stays, and prevents skipping. */
static real ceiling(const struct tile *t, int x)
{
    const struct pieces *table = t->own[x].table;
    const real *inverse = t->own[x].mem + INVERSE * QT;
    struct lines g = lines_of(t, x);
    real low = 0, high = 0, most = -INFINITY;
    for (int r = 0; r < t->rows; r++)
        high = max_(high, psi_of(t, x, false)[table->hi] * inverse[r]);
    if (t->run && !x_range(t, x, (struct piece_block){ 0, t->keys, 0, QT }, &low, &high)) return 0;
    const int first = find_piece(&g, low), last = find_piece(&g, high);
    for (int p = first; p <= last; p++) {
        const real from = max_(low, g.ends[p]), to = p < last ? g.ends[p + 1] : high;
        const real value = max_(fma_(g.a[p], from, g.b[p]), fma_(g.a[p], to, g.b[p]));
        if (!(value <= most) && most == most) most = value;
    }
    return most;
}

/* ---- Backward -------------------------------------------------------------------------------- */

static ptrdiff_t part(const struct call *c, int x)
{
    return pieces_part(pieces_capacity(&c->plan->enc[c->plan->use[x].enc]));
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)b;
    return h * part(c, x);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->heads * part(c, x); }

#if QT > 1
static ptrdiff_t grad(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return GRAD;
}

/* Sums over the keys of a block, by row: of dS in a piece, and of these times x and times psi'. */
struct piece_sums {
    real s[QT], x[QT], slope[QT];
};

/* PAIR vectors of rows from r on.  The piece ends within the block's range on the lower side,
 * the upper, both or neither. */
INLINE void sum_keys(const struct tile *t, int x, struct piece_block b, int r, const bool lower,
                     const bool upper, real from, real to, struct piece_sums *sums)
{
    const real *psi = psi_of(t, x, false) + t->d + r, *slope = psi_of(t, x, true) + t->d + r,
               *ds = t->ds + r;
    const vf zero = vf_set1(0), start = vf_set1(from), end = vf_set1(to);
    vf inverse[PAIR], s0[PAIR], s1[PAIR], s2[PAIR];
    UNROLL_FOR(int i = 0; i < PAIR; i++) {
        inverse[i] = vf_load(t->own[x].mem + INVERSE * QT + r + i * VL);
        s0[i] = s1[i] = s2[i] = zero;
    }
    /* dS of other pieces becomes 0; comparisons are those of add_lines() */
    for (int k = b.k0; k < b.k0 + b.kn; k++)
        UNROLL_FOR(int i = 0; i < PAIR; i++) {
            const vf y = vf_mul(vf_load(psi - k + i * VL), inverse[i]);
            vf d = vf_load(ds + k * QT + i * VL);
            if (lower) d = vf_negative(vf_sub(y, start), zero, d);
            if (upper) d = vf_negative(vf_sub(y, end), d, zero);
            s0[i] = vf_add(s0[i], d);
            s1[i] = vf_fma(d, y, s1[i]);
            s2[i] = vf_fma(d, vf_load(slope - k + i * VL), s2[i]);
        }
    UNROLL_FOR(int i = 0; i < PAIR; i++) {
        vf_store(sums->s + r + i * VL, s0[i]);
        vf_store(sums->x + r + i * VL, s1[i]);
        vf_store(sums->slope + r + i * VL, s2[i]);
    }
}

/* Each piece is summed separately, as a pass over a block's keys with one or two selects: sums
 * stay in registers, and there are few pieces per block. */
static void give_block(struct tile *t, int x, const struct lines *g, struct piece_block b)
{
    const struct pieces *table = t->own[x].table;
    real *u = t->own[x].grad + U * QT, *w = t->own[x].grad + W * QT, *part = t->own[x].fresh;
    for (int p = g->first; p <= g->last; p++) {
        struct piece_sums sums;
        const real from = g->ends[p], to = p < g->last ? g->ends[p + 1] : from;
        for (int r = b.r0; r < b.r0 + b.rn; r += PAIR * VL) {
            if (p > g->first && p < g->last) sum_keys(t, x, b, r, true, true, from, to, &sums);
            else if (p > g->first) sum_keys(t, x, b, r, true, false, from, to, &sums);
            else if (p < g->last) sum_keys(t, x, b, r, false, true, from, to, &sums);
            else sum_keys(t, x, b, r, false, false, from, to, &sums);
        }
        for (int r = b.r0; r < b.r0 + b.rn; r++) {
            u[r] = fma_(g->a[p], sums.x[r], u[r]);
            w[r] = fma_(g->a[p], sums.slope[r], w[r]);
        }
        part[p] += fold_halves(sums.s + b.r0, b.rn);
        part[table->capacity + p] += fold_halves(sums.x + b.r0, b.rn);
    }
}

/* The same pair by pair, for positions that are not a run. */
static void give_apart(struct tile *t, int x)
{
    const struct pieces *table = t->own[x].table;
    const struct lines g = lines_of(t, x);
    real *u = t->own[x].grad + U * QT, *w = t->own[x].grad + W * QT, *part = t->own[x].fresh;
    for (int r = 0; r < t->rows; r++) {
        int p = g.first;
        real s = 0, sx = 0; /* of consecutive keys in piece p */
        for (int k = 0; k < t->keys; k++) {
            int64_t at;
            const real y = x_at(t, x, k, r, &at), ds = t->ds[k * QT + r];
            const int now = find_piece(&g, y);
            if (now != p) {
                part[p] += s;
                part[table->capacity + p] += sx;
                s = sx = 0;
                p = now;
            }
            s += ds;
            sx = fma_(ds, y, sx);
            u[r] = fma_(ds * g.a[p], y, u[r]);
            w[r] = fma_(ds * g.a[p], psi_of(t, x, true)[at], w[r]);
        }
        part[p] += s;
        part[table->capacity + p] += sx;
    }
}

static void score_bwd(struct tile *t, int x)
{
    if (!t->own[x].fresh) return;
    if (t->run) each_block(t, x, give_block);
    else give_apart(t, x);
}

/* dc and dT, from the rows.  With N = log(c m + 1) and m = max(T, pos), x = psi / N has dx/dc
 * = psi' / N - x m / (N (c m + 1)) and dx/dm = -x c / (N (c m + 1)).  Where T and pos are
 * equal, each has half of dm. */
static void close_bwd(struct tile *t, int x)
{
    const struct pieces *table = t->own[x].table;
    const double c = fabs(table->c), far = fabs(table->far);
    const real *u = t->own[x].grads + U * QT, *w = t->own[x].grads + W * QT;
    double dc = 0, dfar = 0;
    if (!t->own[x].fresh) return;
    for (int r = 0; r < t->rows; r++) {
        const double pos = (double)pos_q(t->c, t->seq->b, t->i0 + r), m = far > pos ? far : pos;
        const double share = far > pos ? 1 : far == pos ? 0.5 : 0;
        const double dx = (double)u[r] * inverses(t, x)[r] / (c * m + 1);
        dc += (double)w[r] * inverses(t, x)[r] - dx * m;
        dfar -= share * dx * c;
    }
    t->own[x].fresh[2 * (ptrdiff_t)table->capacity] += (real)dc;
    t->own[x].fresh[2 * (ptrdiff_t)table->capacity + 1] += (real)dfar;
}
#endif

const struct term N(term_pieces) = {
    .name = "pieces",
    .mem = mem,
    .part = part,
    .fresh = part,
    .part_at = part_at,
    .total = total,
    .open = open,
    .score = score,
    .ceiling = ceiling,
#if QT > 1
    .grad = grad,
    .score_bwd = score_bwd,
    .close_bwd = close_bwd,
#endif
};
