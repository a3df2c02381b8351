/* SPDX-License-Identifier: MIT */
/* reflect.c -- every key that a row passes on its walk reflects the row (encodings/path.c).
 *
 *     u <- u - beta_l (w_l.u) w_l        for l from the row's newest key down
 *
 * layout/reflect.h has the forms of keys that spare rows most of these steps.  A row meets the keys
 * of a tile in a way that depends on its newest key alone:
 *
 *     OWN         its newest key lies in the tile: key by key, with keys and w as they are
 *     NODE + n    it lies in a newer tile of the block, in the right sibling of the tile's node of
 *                 level n: S = u.k(n) for all tiles of the node, then u <- M u
 *     BLOCK       it lies in a newer block: the same, and the node is the block
 *
 * Rows own the tiles of their block in the sense of engine/moves.h.  Where segments are not ranges
 * of keys, only the keys of a row's segment act on it, so it meets all tiles as OWN.
 *
 * Backward, oldest key first, with a the gradient of u:
 *
 *     NODE + n    dM += a u^T, a <- M^T a, then dk(n) += dS u, a += dS k(n) tile by tile
 *     OWN         dbeta_l -= (w_l.u)(w_l.a), dw_l -= beta_l ((w_l.u) a + (w_l.a) u),
 *                 a <- H_l a + dS k_l, dk_l += dS u
 *
 * reflect_forms.c turns the sums dM and dk(n) into gradients of k, w and beta. */
#include "engine/tile_gemm.h"
#include "terms/reflect.h"

enum way { LATER, OWN, NODE, BLOCK = NODE + LEVELS };
struct walk {
    ptrdiff_t last[QT]; /* newest key, counted in the sequence; -1: none */
    ptrdiff_t took;     /* the tile that `after` and `coef` belong to, or -1 */
    /* the oldest and the newest tile with the newest key of a row; none: -1 */
    ptrdiff_t oldest, newest;
    bool apart;     /* segments are not ranges of keys */
    real floor[QT]; /* numbers of the row below this are 0 */
};

/* ---- Memory of a query tile ------------------------------------------------------------------ */

static ptrdiff_t head_rows(void)
{
    const ptrdiff_t row = QT * sizeof(real);
    return ((ptrdiff_t)sizeof(struct walk) + row - 1) / row;
}
static int side(const struct call *c) { return c->plan->dim > KT ? c->plan->dim : KT; }
/* after, coef, scores, and two squares of scratch; backward: back, turn, a, u,
 * rows of u and a, and two arrays of keys. */
static ptrdiff_t mem(const struct call *c, int x)
{
    const ptrdiff_t D = c->plan->dim;
    (void)x;
    return head_rows() + D + 3 * KT + 2 * side(c)
         + (c->backward ? 4 * KT + 2 * D + 2 * padded((int)D) : 0);
}
struct arrays {
    real *after;     /* [D][QT]: u behind the row's own tile */
    real *coef;      /* [KT][QT]: -beta w.u, what each key of it adds of its w */
    real *dots;      /* [KT][QT]: w.u */
    real *s;         /* [KT][QT] */
    real *one, *two; /* [side][QT] */
    /* backward */
    real *back, *turn;   /* [KT][QT]: -beta w.a, and w.a */
    real *a, *u;         /* [D][QT] */
    real *urows, *arows; /* [QT][Dp] */
    real *by_row;        /* [QT][KT] */
    real *gram;          /* [KT][KT] */
};
static struct walk *walk_of(const struct tile *t, int x) { return (struct walk *)t->own[x].mem; }
static struct arrays arrays_of(const struct tile *t, int x)
{
    const ptrdiff_t D = t->c->plan->dim, Dp = padded((int)D), n = side(t->c);
    real *at = t->own[x].mem + head_rows() * QT;
    struct arrays a = { .after = at };
    a.coef = a.after + D * QT;
    a.dots = a.coef + KT * QT;
    a.s = a.dots + KT * QT;
    a.one = a.s + KT * QT;
    a.two = a.one + n * QT;
    a.back = a.two + n * QT;
    a.turn = a.back + KT * QT;
    a.a = a.turn + KT * QT;
    a.u = a.a + D * QT;
    a.urows = a.u + D * QT;
    a.arows = a.urows + Dp * QT;
    a.by_row = a.arows + Dp * QT;
    a.gram = a.by_row + KT * QT;
    return a;
}
static int carry(const struct call *c, int x)
{
    (void)x;
    return c->plan->dim;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* The newest key of every row: of the band of distances, or of the pairs that are listed. */
static void find_newest(struct tile *t, struct walk *w)
{
    const struct call *c = t->c;
    const struct sequence *q = t->seq;
    const ptrdiff_t row = t->i0 - q->q0;
    if (!t->listed) {
        const int64_t low = band(c->plan).lo;
        for (int r = 0; r < t->rows; r++) {
            const int64_t key = q->d0 + row + r - low;
            w->last[r] = key < 0 ? -1 : key < q->nk ? (ptrdiff_t)key : q->nk - 1;
        }
        return;
    }
    const struct keyrange range = keys_of(c, q, row, t->rows);
    uint64_t found = 0;
    for (ptrdiff_t j = range.last / KT; j >= 0 && range.last >= 0; j--) {
        if (found == rows_bits(0, t->rows)) break;
        if (!set_keys(t, j * KT, range.last)) continue;
        for (int k = t->keys - 1; k >= 0; k--)
            for (uint64_t bits = rows_bits(0, t->rows) & ~t->hidden[k] & ~found; bits;
                 bits &= bits - 1) {
                const int r = __builtin_ctzll(bits);
                w->last[r] = j * KT + k;
                found |= (uint64_t)1 << r;
            }
    }
}
static void open(struct tile *t, int x)
{
    const struct call *c = t->c;
    const struct sequence *q = t->seq;
    struct walk *w = walk_of(t, x);
    w->took = -1;
    w->apart = q->segments;
    for (int r = 0; r < QT; r++) w->last[r] = -1;
    if (c->backward) { /* padding stays 0 */
        const struct arrays a = arrays_of(t, x);
        memset(a.urows, 0, sizeof(real) * (size_t)(2 * QT * padded(c->plan->dim)));
    }
    memcpy(t->own[x].carry, t->q.across, sizeof(real) * (size_t)(c->plan->dim * QT));
    /* A row that has faded to 2^-40 of what it was changes no score, and later products would be
     * subnormal numbers. */
    for (int r = 0; r < QT; r++) w->floor[r] = 0;
    for (int d = 0; d < c->plan->dim; d++)
        for (int r = 0; r < QT; r++) {
            const real size = abs_(t->q.across[d * QT + r]);
            w->floor[r] = size > w->floor[r] ? size : w->floor[r];
        }
    for (int r = 0; r < QT; r++) w->floor[r] *= (real)LEAST;
    find_newest(t, w);
    w->oldest = w->newest = -1;
    for (int r = 0; r < t->rows; r++) {
        const ptrdiff_t tile = w->last[r] / KT;
        if (w->last[r] < 0) continue;
        w->oldest = w->oldest < 0 || tile < w->oldest ? tile : w->oldest;
        w->newest = tile > w->newest ? tile : w->newest;
    }
}

/* Numbers below the floor of their row become 0. */
INLINE void flush(const struct walk *w, int n, real *x, int lane)
{
    for (int i = 0; i < n; i++)
        for (int r = lane; r < QT; r++)
            x[i * QT + r] = abs_(x[i * QT + r]) < w->floor[r] ? 0 : x[i * QT + r];
}

static ptrdiff_t tile_of(const struct tile *t) { return (t->j0 - t->seq->k0) / KT; }
/* The way of rows whose newest key is in tile `own`. */
static enum way way_from(const struct walk *w, ptrdiff_t own, ptrdiff_t tile)
{
    if (own < tile) return LATER;
    if (own == tile || w->apart) return OWN;
    if (own / SPAN != tile / SPAN) return BLOCK;
    int level = 0;
    for (ptrdiff_t apart = own ^ tile; apart > 1; apart >>= 1) level++;
    return NODE + level;
}
static enum way way_of(const struct walk *w, int r, ptrdiff_t tile)
{
    return way_from(w, w->last[r] < 0 ? -1 : w->last[r] / KT, tile);
}
/* Which ways occur: bit `way` is set.  Rows that see no key go any way. */
static unsigned ways(const struct tile *t, int x, ptrdiff_t tile)
{
    const struct walk *w = walk_of(t, x);
    unsigned set = 0;
    if (w->oldest < 0) return 0;
    if (w->oldest == w->newest) return 1u << way_from(w, w->newest, tile);
    for (int r = 0; r < t->rows; r++)
        if (w->last[r] >= 0) set |= 1u << way_of(w, r, tile);
    return set;
}
static bool has(unsigned set, enum way way) { return set >> way & 1; }
static bool single(unsigned set) { return !(set & (set - 1)); }
/* Do rows read tiles of their block as nodes? */
static bool in_nodes(unsigned set) { return set >> NODE & ((1u << LEVELS) - 1); }
/* Is this the oldest tile of its node, whose step takes rows of this way to the node's start? */
static bool begins(enum way way, ptrdiff_t tile) { return !(tile & ((1 << (way - NODE)) - 1)); }

/* to[n][r] = from[n][r] for the rows that go this way. */
static void take(const struct tile *t, int x, enum way way, int n, const real *from, real *to)
{
    const struct walk *w = walk_of(t, x);
    const ptrdiff_t tile = tile_of(t);
    real yes[QT];
    for (int r = 0; r < QT; r++) yes[r] = way_of(w, r, tile) == way;
    for (int i = 0; i < n; i++)
        for (int r = 0; r < QT; r++)
            to[i * QT + r] = yes[r] != 0 ? from[i * QT + r] : to[i * QT + r];
}

/* out[i] = a_i.u for n rows of a, for the columns from `lane` on, a multiple of PAD or 0. */
INLINE void dot_rows(int n, const real *a, ptrdiff_t stride, int D, const real *u, real *out,
                     int lane)
{
#if QT > 1
    product(SET, n, QT - lane, D, a, stride, 1, u + lane, QT, out + lane, QT, NULL);
#else
    (void)lane;
    dot_keys(n, a, stride, D, u, out);
#endif
}
/* u += sum over n rows of f_i w_i.  Factors of 0 are those of keys that must not reach the row: if
 * w is not finite they are left out, with the same sums of the others. */
INLINE void add_rows(int n, const real *w, ptrdiff_t stride, int D, const real *f, real *u,
                     int lane)
{
    const bool fine = finite_rows(w, stride, n, D);
#if QT > 1
    if (fine) {
        product(ADD, D, QT - lane, n, w, 1, stride, f + lane, QT, u + lane, QT, NULL);
        return;
    }
#endif
    for (int d = 0; d < D; d++)
        for (int r = lane; r < QT; r++) {
            real sum = 0;
            for (int i = 0; i < n; i++)
                if (fine || f[i * QT + r] != 0) sum = fma_(w[i * stride + d], f[i * QT + r], sum);
            u[d * QT + r] += sum;
        }
}

/* The products with matrices of FEW keys. */
INLINE void dot_few(int n, const real *by, const real *x, real *out, int lane)
{
#if QT > 1
    product(SET, n, QT - lane, n, by, BY, 1, x + lane, QT, out + lane, QT, NULL);
#else
    (void)lane;
    for (int j = 0; j < n; j++) {
        real sum = 0;
        for (int m = 0; m < n; m++) sum = fma_(by[j * BY + m], x[m], sum);
        out[j] = sum;
    }
#endif
}
INLINE void add_few(int n, const real *by, const real *x, real *out, int lane)
{
#if QT > 1
    product(ADD, n, QT - lane, n, by, BY, 1, x + lane, QT, out + lane, QT, NULL);
#else
    real some[FEW];
    dot_few(n, by, x, some, lane);
    for (int i = 0; i < n; i++) out[i] += some[i];
#endif
}

static const real *own_keys(struct tile *t, real *buffer, ptrdiff_t *stride)
{
    return find_rows(t->c, KEYS, t->seq->b, t->kvh, t->j0, t->keys, buffer, stride);
}
/* How many keys of the tile are not newer than the newest one of each row. */
struct limits {
    int keys[QT];
};
static struct limits limits_of(const struct tile *t, const struct walk *w)
{
    struct limits a;
    const ptrdiff_t j = t->j0 - t->seq->k0;
    for (int r = 0; r < QT; r++) {
        const ptrdiff_t n = w->last[r] + 1 - j;
        a.keys[r] = n < 0 ? 0 : n < KT ? (int)n : KT;
    }
    return a;
}
/* No key from this one on acts on a row before the lane. */
static int first_lane(const struct limits *a, int key)
{
    int r = 0;
    while (r < QT && a->keys[r] <= key) r++;
    return QT > 1 ? r / PAD * PAD : 0;
}
/* x[r] becomes 0 where the key does not act on the row. */
INLINE void limit(const struct tile *t, const struct walk *w, const struct limits *a, int k,
                  real *x)
{
    for (int r = 0; r < QT; r++) x[r] = k < a->keys[r] ? x[r] : 0;
    for (int r = 0; r < t->rows && w->apart; r++)
        if (t->kg[k] != t->qg[r]) x[r] = 0;
}

/* FEW keys of a tile. */
struct few {
    int first, n;
    const real *k, *w, *beta, *by; /* of the first of them */
    ptrdiff_t stride;              /* of k */
    bool fine;                     /* w and beta are finite */
};
static struct few few_of(const struct tile *t, int x, const real *k, ptrdiff_t stride, int first)
{
    const struct call *c = t->c;
    const ptrdiff_t j = t->j0 + first, D = c->plan->dim;
    struct few f = { .first = first, .k = k + first * stride, .stride = stride };
    f.n = t->keys - first < FEW ? t->keys - first : FEW;
    f.w = w_of(c, x, t->seq->b, t->kvh, j);
    f.beta = beta_of(c, x, t->seq->b, t->kvh, j);
    f.by = forms_of(c, t->seq->b, t->kvh).few + j * BY;
    f.fine = finite_rows(f.w, D, f.n, (int)D) && finite_rows(f.beta, 1, f.n, 1);
    return f;
}
static bool bad_key(const struct few *f, int j, int D)
{
    return !(finite_rows(f->w + (ptrdiff_t)j * D, D, 1, D) && f->beta[j] * 0 == 0);
}
/* What is not finite makes a row NaN for all older keys, and no newer one. */
static void spoil(const struct tile *t, const struct limits *limits, const struct few *f,
                  const struct arrays *a)
{
    const int D = t->c->plan->dim;
    for (int j = 0; j < f->n; j++) {
        if (!bad_key(f, j, D)) continue;
        for (int r = 0; r < QT; r++) {
            if (f->first + j >= limits->keys[r]) continue;
            for (int d = 0; d < D; d++) a->after[d * QT + r] = NAN;
            for (int i = f->first; i <= f->first + j; i++) {
                a->coef[i * QT + r] = a->dots[i * QT + r] = NAN;
                if (i < f->first + j) a->s[i * QT + r] = NAN;
            }
        }
    }
}
/* Keys one by one: dots are w.u before them, and become w.u at each key. */
static void meet_one_by_one(const struct tile *t, const struct walk *walk,
                            const struct limits *limits, const struct few *f,
                            const struct arrays *a)
{
    for (int j = f->n - 1; j >= 0; j--) {
        const ptrdiff_t at = (f->first + j) * QT;
        real *s = a->s + at, *dots = a->dots + at, *coef = a->coef + at;
        for (int m = j + 1; m < f->n; m++) {
            const real kw = f->by[j * BY + KEYS_BY + m], ww = f->by[j * BY + DOTS_BY + m];
            const real *by = a->coef + (f->first + m) * QT;
            for (int r = 0; r < QT; r++) {
                s[r] = fma_(kw, by[r], s[r]);
                dots[r] = fma_(ww, by[r], dots[r]);
            }
        }
        for (int r = 0; r < QT; r++) coef[r] = -f->beta[j] * dots[r];
        limit(t, walk, limits, f->first + j, coef);
        flush(walk, 1, coef, 0);
    }
}
/* Scores of all rows, as if the tile were their own, and u behind it.  Not those of rows that see
 * none of FEW keys. */
static void meet_keys(struct tile *t, int x, real *scores)
{
    const struct call *c = t->c;
    const int D = c->plan->dim;
    struct walk *walk = walk_of(t, x);
    struct arrays a = arrays_of(t, x);
    ptrdiff_t stride;
    const real *k = own_keys(t, t->k.buffer, &stride);
    const struct limits limits = limits_of(t, walk);
    a.s = scores;
    memcpy(a.after, t->own[x].carry, sizeof(real) * (size_t)(D * QT));
    for (int first = (t->keys - 1) / FEW * FEW; first >= 0; first -= FEW) {
        const struct few f = few_of(t, x, k, stride, first);
        const int lane = walk->apart ? 0 : first_lane(&limits, first);
        real *s = a.s + first * QT, *dots = a.dots + first * QT, *coef = a.coef + first * QT;
        for (int j = 0; j < f.n && lane; j++) {
            memset(dots + j * QT, 0, sizeof(real) * (size_t)lane);
            memset(coef + j * QT, 0, sizeof(real) * (size_t)lane);
        }
        if (lane == QT) continue;
        dot_rows(f.n, f.k, stride, D, a.after, s, lane);
        dot_rows(f.n, f.w, D, D, a.after, dots, lane);
        if (walk->apart) meet_one_by_one(t, walk, &limits, &f, &a);
        else {
            real before[FEW * QT];
            for (int j = 0; j < f.n; j++) {
                const bool bad = !f.fine && bad_key(&f, j, D);
                for (int r = lane; r < QT; r++)
                    before[j * QT + r] = first + j < limits.keys[r] && !bad ? dots[j * QT + r] : 0;
            }
            dot_few(f.n, f.by + DOTS_BY, before, dots, lane);
            for (int j = 0; j < f.n; j++) {
                const real by = f.fine || f.beta[j] * 0 == 0 ? -f.beta[j] : 0;
                for (int r = lane; r < QT; r++) {
                    const real y = by * dots[j * QT + r];
                    coef[j * QT + r] = abs_(y) < walk->floor[r] ? 0 : y;
                }
            }
            add_few(f.n, f.by + KEYS_BY, coef, s, lane);
        }
        add_rows(f.n, f.w, D, D, coef, a.after, lane);
        if (!f.fine && !walk->apart) spoil(t, &limits, &f, &a);
        flush(walk, D, a.after, lane);
    }
    walk->took = tile_of(t);
}

/* ---- Walk ------------------------------------------------------------------------------------ */

static void form(struct tile *t, int x)
{
    memcpy(t->q.across, t->own[x].carry, sizeof(real) * (size_t)(t->c->plan->dim * QT));
}
static enum owners owners(const struct tile *t, int x)
{
    const unsigned set = ways(t, x, tile_of(t));
    if (!has(set, BLOCK)) return ALL_ROWS;
    return has(set, OWN) || in_nodes(set) ? SOME_ROWS : NO_ROWS;
}
static void scores(struct tile *t, int x)
{
    const struct call *c = t->c;
    const int D = c->plan->dim;
    const unsigned set = ways(t, x, tile_of(t));
    const struct arrays a = arrays_of(t, x);
    for (int level = 0; level < LEVELS && in_nodes(set); level++) {
        if (!has(set, NODE + level)) continue;
        const struct forms f = forms_of(c, t->seq->b, t->kvh);
        const real *k = form_keys(t->c, &f, t->seq, tile_of(t), level);
        real *s = single(set) ? t->s : a.s;
#if QT > 1
        /* it prefetches the keys of the next tile of the node, in the order of this pass */
        const bool ends = begins(NODE + level, tile_of(t) + (c->backward ? 1 : 0));
        const struct next next = { ends ? NULL : (const char *)(k + next_tile(c) * D),
                                   D * (ptrdiff_t)sizeof(real), sizeof(real), sizeof(real) };
        product_on(SET, t->keys, t->live, D, k, D, 1, t->own[x].carry, QT, s, QT, NULL, next);
#else
        dot_rows(t->keys, k, D, D, t->own[x].carry, s, 0);
#endif
        if (!single(set)) take(t, x, NODE + level, t->keys, a.s, t->s);
    }
    if (has(set, OWN)) {
        meet_keys(t, x, single(set) ? t->s : a.s);
        if (!single(set)) take(t, x, OWN, t->keys, a.s, t->s);
    }
}
/* Does a step over this tile change no row? */
static bool keeps(const struct tile *t, int x)
{
    const ptrdiff_t tile = tile_of(t);
    const unsigned set = ways(t, x, tile);
    bool steps = has(set, OWN);
    for (int way = NODE; way <= BLOCK; way++) steps |= has(set, way) && begins(way, tile);
    return !tile || !steps;
}
static void step(struct tile *t, int x)
{
    const struct call *c = t->c;
    const int D = c->plan->dim;
    const ptrdiff_t tile = tile_of(t);
    struct walk *walk = walk_of(t, x);
    const unsigned set = ways(t, x, tile);
    const struct arrays a = arrays_of(t, x);
    const struct forms f = forms_of(c, t->seq->b, t->kvh);
    real *u = t->own[x].carry;
    if (keeps(t, x)) return;
    if (has(set, OWN) && walk->took != tile) meet_keys(t, x, a.s);
    const real *to = has(set, OWN) ? a.after : a.one; /* if all rows go one way */
    const bool mixed = !single(set);
    if (mixed) {
        to = a.two;
        memcpy(a.two, u, sizeof(real) * (size_t)(D * QT));
        if (has(set, OWN)) take(t, x, OWN, D, a.after, a.two);
    }
    for (int way = NODE; way <= BLOCK; way++) {
        if (!has(set, way) || !begins(way, tile)) continue;
        dot_rows(D, left_matrix(c, &f, t->seq, tile, way - NODE), D, D, u, a.one, 0);
        if (mixed) take(t, x, way, D, a.one, a.two);
    }
    for (int i = 0; i < D; i++)
        for (int r = 0; r < QT; r++) {
            const real y = abs_(to[i * QT + r]) < walk->floor[r] ? 0 : to[i * QT + r];
            u[i * QT + r] = y;
            t->q.across[i * QT + r] = y;
        }
    walk->took = -1;
}

/* ---- Backward -------------------------------------------------------------------------------- */

#if QT > 1
/* Zeroes the columns of rows that do not go this way. */
static void keep(const struct tile *t, int x, enum way way, int n, real *rows)
{
    const struct walk *w = walk_of(t, x);
    for (int r = 0; r < QT; r++)
        if (r >= t->rows || way_of(w, r, tile_of(t)) != way)
            for (int i = 0; i < n; i++) rows[i * QT + r] = 0;
}
/* C[m][n] += sum over the rows r of x[m][r] rows[r][n].  What is not finite does not reach what it
 * has a factor of 0 for.  With limits, x is 0 where a key does not act on the row, and only columns
 * from the strip of the key on are wanted if `newer`. */
static void add_outers(int n, const real *x, const real *rows, int width, real *c,
                       const struct limits *limits, bool newer)
{
    if (finite_rows(rows, width, QT, width) && finite_rows(x, QT, n, QT)) {
        const int strip = limits ? FEW : n;
        for (int m = 0; m < n; m += strip) {
            const int lane = limits ? first_lane(limits, m) : 0, from = newer ? m : 0;
            if (lane < QT)
                product(ADD, n - m < strip ? n - m : strip, width - from, QT - lane,
                        x + m * QT + lane, QT, 1, rows + lane * width + from, width,
                        c + m * width + from, width, NULL);
        }
        return;
    }
    for (int i = 0; i < n; i++)
        for (int d = 0; d < width; d++) {
            real sum = 0;
            for (int r = 0; r < QT; r++)
                if (x[i * QT + r] != 0 && rows[r * width + d] != 0)
                    sum = fma_(x[i * QT + r], rows[r * width + d], sum);
            c[i * width + d] += sum;
        }
}
/* C[i] += sum over the keys m of g(i, m) rows[m], for rows of width D of a tile, where g is 0
 * unless m > i, or m < i if `older`. */
static void mix_rows(int keys, const real *g, bool older, const real *rows, ptrdiff_t stride, int D,
                     real *c)
{
    const ptrdiff_t gi = older ? 1 : KT, gm = older ? KT : 1;
    const bool fine = finite_rows(rows, stride, keys, D);
    const int Dp = padded(D);
    for (int i = 0; i < keys && fine && D == Dp; i += FEW) {
        const int n = keys - i < FEW ? keys - i : FEW, m = older ? 0 : i,
                  end = older ? i + n : keys;
        product(ADD, n, D, end - m, g + i * gi + m * gm, gi, gm, rows + m * stride, stride,
                c + i * Dp, Dp, NULL);
    }
    for (int i = 0; i < keys && !(fine && D == Dp); i++)
        for (int d = 0; d < D; d++) {
            real sum = 0;
            for (int m = 0; m < keys; m++) {
                const real by = g[i * gi + m * gm];
                if (fine || by != 0) sum = fma_(by, rows[m * stride + d], sum);
            }
            c[i * Dp + d] += sum;
        }
}
/* The rows of this way pass the node that begins with the tile.  dq is the gradient of the row as
 * older keys meet it: dM += dq u^T, and dq <- M^T dq.  Rows that have met no older key keep dq = 0.
 */
static void pass(struct tile *t, int x, enum way way)
{
    const int D = t->c->plan->dim, Dp = padded(D), level = way - NODE;
    const ptrdiff_t tile = tile_of(t);
    const struct arrays a = arrays_of(t, x);
    const struct forms f = forms_of(t->c, t->seq->b, t->kvh);
    real some[QT] = { 0 }, any = 0;
    if (!tile || !begins(way, tile)) return;
    for (int d = 0; d < D; d++)
        for (int r = 0; r < QT; r++) some[r] = t->dq[d * QT + r] != 0 ? 1 : some[r];
    for (int r = 0; r < QT; r++) any = some[r] != 0 ? 1 : any;
    if (any == 0) return;
    real *sums = tiled_sums_of(t, x, (1 << level) - 1);
    if (sums) {
        memcpy(a.one, t->dq, sizeof(real) * (size_t)(D * QT));
        keep(t, x, way, D, a.one);
        transpose(t->own[x].carry, QT, D, QT, a.urows, Dp);
        add_outers(D, a.one, a.urows, Dp, sums + sums_in(D).node, NULL, false);
    }
    product(SET, D, QT, D, left_matrix(t->c, &f, t->seq, tile, level), 1, D, t->dq, QT, a.two, QT,
            NULL);
    for (int d = 0; d < D; d++)
        for (int r = 0; r < QT; r++) a.two[d * QT + r] = some[r] != 0 ? a.two[d * QT + r] : 0;
    take(t, x, way, D, a.two, t->dq);
}
static bool reads(const struct tile *t, int x, int r)
{
    return way_of(walk_of(t, x), r, tile_of(t)) == BLOCK;
}
static void step_bwd(struct tile *t, int x)
{
    if (has(ways(t, x, tile_of(t)), BLOCK)) pass(t, x, BLOCK);
}

static void node_bwd(struct tile *t, int x, int level)
{
    const int D = t->c->plan->dim, Dp = padded(D);
    const struct arrays a = arrays_of(t, x);
    const struct forms f = forms_of(t->c, t->seq->b, t->kvh);
    pass(t, x, NODE + level);
    real *sums = tiled_sums_of(t, x, 0);
    memcpy(a.s, t->ds, sizeof(real) * (size_t)(t->keys * QT));
    keep(t, x, NODE + level, t->keys, a.s);
    if (sums) {
        transpose(t->own[x].carry, QT, D, QT, a.urows, Dp);
        add_outers(t->keys, a.s, a.urows, Dp, sums + level * KT * Dp, NULL, false);
    }
    add_rows(t->keys, form_keys(t->c, &f, t->seq, tile_of(t), level), D, D, a.s, t->dq, 0);
}

/* turn[j] += sum over m < j of (k_m.w_j) ds[m].  A key that is not finite does not reach rows that
 * do not see it. */
static void turn_few(const struct few *f, const real *ds, real *turn, int lane)
{
    const real *kw = f->by + KEYS_BY;
    if (finite_rows(kw, BY, f->n, f->n)) {
        product(ADD, f->n, QT - lane, f->n, kw, 1, BY, ds + lane, QT, turn + lane, QT, NULL);
        return;
    }
    for (int j = 0; j < f->n; j++)
        for (int r = 0; r < QT; r++) {
            real sum = 0;
            for (int m = 0; m < f->n; m++)
                if (ds[m * QT + r] != 0) sum = fma_(kw[m * BY + j], ds[m * QT + r], sum);
            turn[j * QT + r] += sum;
        }
}
/* Keys one by one: turn is w.a before them, and becomes w.a at each key. */
static void turn_one_by_one(const struct tile *t, const struct walk *walk,
                            const struct limits *limits, const struct few *f,
                            const struct arrays *a)
{
    for (int j = 0; j < f->n; j++) {
        real *turn = a->turn + (f->first + j) * QT, *back = a->back + (f->first + j) * QT;
        for (int m = 0; m < j; m++) {
            const real kw = f->by[m * BY + KEYS_BY + j], ww = f->by[m * BY + DOTS_BY + j];
            const real *b = a->back + (f->first + m) * QT, *ds = a->s + (f->first + m) * QT;
            for (int r = 0; r < QT; r++) {
                turn[r] = ds[r] != 0 ? fma_(kw, ds[r], turn[r]) : turn[r];
                turn[r] = fma_(ww, b[r], turn[r]);
            }
        }
        for (int r = 0; r < QT; r++) back[r] = -f->beta[j] * turn[r];
        limit(t, walk, limits, f->first + j, back);
    }
}
static void own_bwd(struct tile *t, int x)
{
    const struct call *c = t->c;
    const int D = c->plan->dim, Dp = padded(D), keys = t->keys;
    const struct walk *walk = walk_of(t, x);
    const struct arrays a = arrays_of(t, x);
    const struct sums_at at = sums_in(D);
    const real *w = w_of(c, x, t->seq->b, t->kvh, t->j0);
    real *sums = tiled_sums_of(t, x, 0);
    ptrdiff_t stride;
    const real *k = own_keys(t, t->k.buffer, &stride);
    const struct limits limits = limits_of(t, walk);
    /* scores() has met the keys of this tile */
    memcpy(a.s, t->ds, sizeof(real) * (size_t)(keys * QT));
    keep(t, x, OWN, keys, a.s);
    keep(t, x, OWN, keys, a.coef);
    keep(t, x, OWN, keys, a.dots);
    memcpy(a.a, t->dq, sizeof(real) * (size_t)(D * QT));
    keep(t, x, OWN, D, a.a);
    transpose(a.a, QT, D, QT, a.arows, Dp);
    for (int first = 0; first < keys; first += FEW) {
        const struct few f = few_of(t, x, k, stride, first);
        real *turn = a.turn + first * QT, *back = a.back + first * QT, *ds = a.s + first * QT;
        const int lane = walk->apart ? 0 : first_lane(&limits, first);
        memset(turn, 0, sizeof(real) * (size_t)(f.n * QT));
        memset(back, 0, sizeof(real) * (size_t)(f.n * QT));
        if (lane == QT) continue;
        dot_rows(f.n, f.w, D, D, a.a, turn, lane);
        if (walk->apart) turn_one_by_one(t, walk, &limits, &f, &a);
        else {
            real before[FEW * QT];
            turn_few(&f, ds, turn, lane);
            memcpy(before, turn, sizeof(real) * (size_t)(f.n * QT));
            for (int j = 0; j < f.n; j++) limit(t, walk, &limits, first + j, before + j * QT);
            dot_few(f.n, f.by + TURNS_BY, before, turn, lane);
        }
        for (int j = 0; j < f.n; j++) {
            for (int r = 0; r < QT; r++) back[j * QT + r] = -f.beta[j] * turn[j * QT + r];
            limit(t, walk, &limits, first + j, turn + j * QT);
            limit(t, walk, &limits, first + j, back + j * QT);
        }
        add_rows(f.n, f.w, D, D, back, a.a, lane);
        add_rows(f.n, f.k, stride, D, ds, a.a, lane);
    }
    take(t, x, OWN, D, a.a, t->dq);
    if (!sums) return;
    /* With u and a of the row at both ends of the tile, u_j = u + sum of coef_m w_m over m > j, and
     * a before key j is a + sum over m < j of back_m w_m + ds_m k_m. */
    transpose(t->own[x].carry, QT, D, QT, a.urows, Dp);
    real *dk = sums + at.own_k, *dw = sums + at.own_w, *db = sums + at.own_beta;
    const struct limits *some = walk->apart ? NULL : &limits;
    add_outers(keys, a.s, a.urows, Dp, dk, some, false);
    add_outers(keys, a.back, a.urows, Dp, dw, some, false);
    add_outers(keys, a.coef, a.arows, Dp, dw, some, false);
    memset(a.by_row, 0, sizeof(real) * KT * QT);
    transpose(a.coef, QT, keys, QT, a.by_row, KT);
    /* g_im = sum of ds_i coef_m, or back_i coef_m, of m > i */
    real *g = a.gram;
    for (int i = 0; i < 2; i++) {
        memset(g, 0, sizeof(real) * KT * KT);
        add_outers(keys, i ? a.back : a.s, a.by_row, KT, g, some, true);
        for (int j = 0; j < keys; j++)
            for (int m = 0; m <= j; m++) g[j * KT + m] = 0;
        mix_rows(keys, g, false, w, D, D, i ? dw : dk);
        mix_rows(keys, g, true, i ? w : k, i ? D : stride, D, dw);
    }
    for (int j = 0; j < keys; j++) {
        real sum = 0;
        for (int r = 0; r < QT; r++)
            if (a.turn[j * QT + r] != 0) sum = fma_(a.dots[j * QT + r], a.turn[j * QT + r], sum);
        db[j] -= sum;
    }
}

static void scores_bwd(struct tile *t, int x)
{
    const int Dp = padded(t->c->plan->dim);
    const unsigned set = ways(t, x, tile_of(t));
    if (has(set, OWN)) own_bwd(t, x);
    for (int level = 0; level < LEVELS; level++)
        if (has(set, NODE + level)) node_bwd(t, x, level);
    if (!has(set, BLOCK)) return;
    for (int r = 0; r < QT; r++) {
        if (r < t->rows && reads(t, x, r)) continue;
        for (int k = 0; k < t->keys; k++) t->ds[k * QT + r] = 0;
        for (int d = 0; d < Dp; d++) t->q.faded[r * Dp + d] = 0;
    }
}

static ptrdiff_t total(const struct call *c, int x)
{
    (void)x;
    return c->seqs.ktiles * c->plan->kv_heads * sums_in(c->plan->dim).end;
}
static ptrdiff_t tiled(const struct call *c, int x)
{
    (void)x;
    return sums_in(c->plan->dim).end;
}
#endif

static size_t bytes(const struct call *c, int x)
{
    (void)x;
    return sizeof(real) * (size_t)(c->plan->kv_heads * forms_reals(c));
}
static size_t memory(const struct call *c, int x)
{
    (void)x;
    return WIDE(reflect_bytes)(c);
}

static const struct moves moves = {
    .span = SPAN,
    .bytes = bytes,
    .block_bytes = memory,
    .blocks = WIDE(reflect_block),
    .form = form,
    .owners = owners,
    .scores = scores,
    .step = step,
    .keeps = keeps,
#if QT > 1
    .blocks_bwd = WIDE(reflect_block_bwd),
    .step_bwd = step_bwd,
    .reads = reads,
    .scores_bwd = scores_bwd,
#endif
};
const struct term N(term_reflect) = {
    .name = "reflect",
    .mem = mem,
    .carry = carry,
    .open = open,
#if QT > 1
    .tiled = tiled,
    .total = total,
#endif
    .moves = &moves,
};
