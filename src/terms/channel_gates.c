/* SPDX-License-Identifier: MIT */
/* channel_gates.c -- forget gates per channel: rows that fade, channel by channel, on their walk
 * over the keys (engine/moves.h; encodings/wall.c has the formula).
 *
 *     staged key     k~_j = k_j E_j,  E_j = exp(sum of the gates after j in its tile)
 *     row            u_i = q_i e_i,   e_i = exp(sum of the gates between the tile and the row)
 *     step           e_i <- e_i F,    F = exp(sum of the gates of the tile)
 *
 * No exponent is above 0 if no gate is.  A row owns the tile of its newest key, number p of it, and
 * starts with e = exp(sum of the gates 0 .. p of that tile).  There it meets key j at the largest
 * bit in which p and j differ: the key is in the lower half of a block, the row in the upper one,
 * and m is the newest key of the lower half.
 *
 *     s = (q_i exp(sum of the gates m + 1 .. p)) . (k_j exp(sum of the gates j + 1 .. m))
 *
 * All sums of gates are sums in double from their reference on, so that a gate that is NaN or shut
 * reaches only what lies across it.  Where segments are no neighbours, gates of other segments
 * count 0, which makes one set of factors per segment.
 *
 * Backward, products with rows that do not own the tile give dk~; encodings/wall.c makes dlog_f of
 * q dq and k dk. */
#include "engine/keys.h"
#include "engine/tile_gemm.h"
#include "layout/channel_gates.h"

enum { LEVELS = 6 }; /* of a tile of KT keys */
/* Factors end at 2^-40 (in double 2^-500): a smaller share of |q| |k| changes no score of floats,
 * and the product of two such factors leaves room for what it is multiplied by.  So do gradients by
 * scores at 2^-60 and 2^-500. */
#if LOCI_DOUBLE
#define LOW_FACTOR 0x1p-500
#define LOW_GRADIENT 0x1p-500
#define LOW_SCORE 0x1p-500
#define LOW_SUM 0x1p-500
#define LOW_GATES (-346.6)
#else
#define LOW_FACTOR 0x1p-40f
#define LOW_GRADIENT 0x1p-60f
#define LOW_SCORE 0x1p-50f
#define LOW_SUM 0x1p-84f
#define LOW_GATES (-27.7f)
#endif

/* What a query tile remembers, followed by arrays of reals. */
struct row_state {
    ptrdiff_t last[QT]; /* newest key of every row, counted in the sequence; negative: none */
    int number[QT];     /* of these in the tile, for rows that own it and are computed now, or -1 */
};
struct arrays {
    real *q0;     /* [D][QT]: rows as they were loaded */
    real *factor; /* [KT][Dp]: of keys and rows at a level */
    real *keys;   /* [KT][Dp]: keys times their factors */
    real *rows;   /* [QT][Dp]: rows times theirs */
    real *across; /* [D][QT]: the same */
    real *s;      /* [KT][QT] */
    /* backward */
    real *da, *dc; /* [D][QT] and [KT][Dp]: gradients of rows and keys of a level */
    real *dq;      /* [QT][Dp]: of the rows that own the tile */
    ptrdiff_t reals;
};
static struct arrays arrays_of(const struct call *c, real *base)
{
    const ptrdiff_t D = c->plan->dim, Dp = padded(c->plan->dim);
    struct arrays a = { .reals = 0 };
    real **const list[] = {
        &a.q0, &a.factor, &a.keys, &a.rows, &a.across, &a.s, &a.da, &a.dc, &a.dq
    };
    const ptrdiff_t size[] = { D * QT,  KT * Dp, KT * Dp, QT * Dp, D * QT,
                               KT * QT, D * QT,  KT * Dp, QT * Dp };
    const int n = c->backward ? COUNT(list) : 6;
    for (int i = 0; i < n; i++) {
        if (base) *list[i] = base + a.reals;
        a.reals += (size[i] + PAD - 1) / PAD * PAD;
    }
    return a;
}
static ptrdiff_t state_reals(void)
{
    const ptrdiff_t bytes = PAD * sizeof(real);
    return ((ptrdiff_t)sizeof(struct row_state) + bytes - 1) / bytes * PAD;
}
static ptrdiff_t mem(const struct call *c, int x)
{
    (void)x;
    return (state_reals() + arrays_of(c, NULL).reals + QT - 1) / QT;
}
static struct row_state *state_of(const struct tile *t, int x)
{
    return (struct row_state *)t->own[x].mem;
}
static struct arrays here(const struct tile *t, int x)
{
    return arrays_of(t->c, t->own[x].mem + state_reals());
}
static int carry(const struct call *c, int x)
{
    (void)x;
    return c->plan->dim;
}

/* ---- Factors --------------------------------------------------------------------------------- */

/* Gates of a head from key j of an entry on. */
static const real *gates(const struct call *c, int x, ptrdiff_t b, int h, ptrdiff_t j)
{
    return (const real *)input(c, c->plan->use[x].enc, CHANNEL_GATES_LOG_F)
         + channel_gates_at(c, b, h) + j * c->plan->dim;
}
INLINE void add_gates(const real *restrict f, int D, double *restrict sum)
{
    const real least = (real)-LEAST_GATE, most = (real)LEAST_GATE;
    for (int n = 0; n < D; n++) {
        const real low = f[n] < least ? least : f[n];
        sum[n] += (double)(low < most ? low : NAN);
    }
}
/* to = e^sum, in whole vectors.  It is 0 below LOW_GATES, and infinite where reals end. */
INLINE void exponentials(const double *sum, int D, real *restrict to)
{
    for (int n = 0; n < D; n++) to[n] = (real)sum[n];
    for (int n = D; n < padded(D); n++) to[n] = 0;
#if LOCI_DOUBLE
    for (int n = 0; n < D; n++) to[n] = to[n] < LOW_GATES ? 0 : exp(to[n]);
#else
    for (int n = 0; n < D; n += VL) {
        const vf x = vf_load(to + n);
        vf_store(to + n, vf_from(x, 88.7228f, vf_set1(INFINITY), vf_exp_from(LOW_GATES, x)));
    }
#endif
}
/* Keys of one head, with the segment whose gates count; all: there is only one. */
struct gated {
    const real *f; /* of the first key */
    const struct tile *t;
    bool all;
    int64_t segment;
    int D;
};
static bool counts(const struct gated *g, int k) { return g->all || g->t->kg[k] == g->segment; }
/* Adds the gate of key k, if it counts. */
INLINE void add_gate(const struct gated *g, int k, double *sum)
{
    if (counts(g, k)) add_gates(g->f + (ptrdiff_t)k * g->D, g->D, sum);
}
/* to[k]: of the keys k + 1 .. middle - 1 for k < middle, of the keys middle .. k for others. */
static void fill_block(const struct gated *g, int first, int middle, int end, real *to)
{
    const int Dp = padded(g->D);
    double sum[MAX_DIM];
    memset(sum, 0, sizeof *sum * (size_t)g->D);
    for (int k = middle - 1; k >= first; k--) {
        exponentials(sum, g->D, to + k * Dp);
        if (k > first) add_gate(g, k, sum);
    }
    memset(sum, 0, sizeof *sum * (size_t)g->D);
    for (int k = middle; k < end; k++) {
        add_gate(g, k, sum);
        exponentials(sum, g->D, to + k * Dp);
    }
}

/* ---- Keys that are staged -------------------------------------------------------------------- */

static size_t bytes(const struct call *c, int x)
{
    (void)x;
    return sizeof(real) * (size_t)c->plan->heads * (size_t)c->seqs.ktiles * (size_t)c->plan->dim;
}
/* F of a tile. */
static real *tile_factor(const struct call *c, const struct sequence *q, int h, ptrdiff_t tile)
{
    return (real *)c->mem.moved
         + (h * c->seqs.ktiles + q->first_ktile + tile) * (ptrdiff_t)c->plan->dim;
}
/* E of key k of n, from `sum`, the gates after it; where segments are no neighbours, from those of
 * its own segment. */
static void key_factor(const struct call *c, const struct sequence *q, ptrdiff_t j, int k, int n,
                       const real *f, double *sum, real *to)
{
    const int D = c->plan->dim;
    if (q->segments) {
        memset(sum, 0, sizeof *sum * (size_t)D);
        for (int l = n - 1; l > k; l--)
            if (seg_k(c, q->b, j + l) == seg_k(c, q->b, j + k))
                add_gates(f + (ptrdiff_t)l * D, D, sum);
    }
    exponentials(sum, D, to);
    if (!q->segments) add_gates(f + (ptrdiff_t)k * D, D, sum);
}
static void keys(const struct call *c, int x, const struct sequence *q, ptrdiff_t tile, int kh,
                 int n, real *rows)
{
    const int D = c->plan->dim;
    const ptrdiff_t j = q->k0 + tile * KT;
    const real *f = gates(c, x, q->b, kh, j);
    double sum[MAX_DIM];
    real e[MAX_DIM + PAD];
    memset(sum, 0, sizeof *sum * (size_t)D);
    for (int k = n - 1; k >= 0; k--) {
        key_factor(c, q, j, k, n, f, sum, e);
        for (int d = 0; d < D; d++) rows[(ptrdiff_t)k * D + d] *= e[d];
    }
    exponentials(sum, D, e);
    memcpy(tile_factor(c, q, kh, tile), e, sizeof(real) * (size_t)D);
}
/* A gradient of 0 stays 0: pairs that are not visible may lie across a gate that is NaN.  So does
 * one whose product with a factor could be subnormal. */
INLINE bool is_low(real d) { return d > -LOW_SUM && d < LOW_SUM; }
/* From the gradient of staged keys, and that by rows that own their tile, to the gradient of the
 * keys; and the total's sums of q dq become those of q dq - k dk. */
static void keys_bwd(const struct call *c, int x, const struct sequence *q, ptrdiff_t tile, int kh,
                     int n, real *d, ptrdiff_t stride)
{
    const struct loci_plan *p = c->plan;
    const int D = p->dim, kvh = kv_head_of(p, kh);
    const ptrdiff_t j = q->k0 + tile * KT;
    const real *f = gates(c, x, q->b, kh, j),
               *staged = (const real *)c->mem.rotated
                       + ((q->b * p->key_heads + kh) * c->Lk + j) * (ptrdiff_t)D;
    double sum[MAX_DIM], *total = c->g.total[x];
    real e[MAX_DIM + PAD], row[MAX_DIM], kept[MAX_DIM], key[MAX_DIM];
    if (total) total += channel_gates_total(c, q->b, kh) + 2 * j * D;
    memset(sum, 0, sizeof *sum * (size_t)D);
    for (int k = n - 1; k >= 0; k--) {
        real *g = d + k * stride;
        key_factor(c, q, j, k, n, f, sum, e);
        /* a key or a factor without a gradient may be NaN */
        for (int i = 0; i < D; i++) {
            kept[i] = is_low(g[i]) ? 0 : g[i];
            e[i] = kept[i] != 0 ? e[i] : 0;
            key[i] = kept[i] != 0 ? staged[(ptrdiff_t)k * D + i] : 0;
        }
        if (!total) {
            for (int i = 0; i < D; i++) g[i] = kept[i] * e[i];
            continue;
        }
        if (c->mem.unmoved) memcpy(row, unmoved_key(c, q->b, kvh, j + k), sizeof(real) * (size_t)D);
        else to_reals(c->plan->dtype, stored_row(c, &c->k, q->b, kvh, j + k), D, row);
        double *own = total + (ptrdiff_t)2 * k * D, *sums = own + D;
        for (int i = 0; i < D; i++) {
            if (own[i] == 0) row[i] = 0;
            sums[i] -= (double)key[i] * (double)kept[i] + (double)row[i] * own[i];
            g[i] = (real)((double)e[i] * (double)kept[i] + own[i]);
        }
    }
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* The newest key that each row sees. */
static void find_last(struct tile *t, ptrdiff_t *last)
{
    const struct call *c = t->c;
    const struct sequence *q = t->seq;
    const struct band w = band(c->plan);
    int left = t->rows;
    for (int r = 0; r < QT; r++) last[r] = -1;
    for (int r = 0; r < t->rows && !t->listed; r++) {
        const int64_t d = q->d0 + (t->i0 - q->q0) + r,
                      key = d - w.lo < q->nk ? d - w.lo : q->nk - 1;
        if (d - key <= w.hi) last[r] = (ptrdiff_t)key;
    }
    for (ptrdiff_t J = (q->nk - 1) / KT; t->listed && J >= 0 && q->nk && left; J--) {
        if (!set_keys(t, J * KT, q->nk - 1)) continue;
        for (int r = 0; r < t->rows; r++)
            for (int k = t->keys - 1; k >= 0 && last[r] < 0; k--)
                if (visible(t, k, r)) {
                    last[r] = J * KT + k;
                    left--;
                }
    }
}
static void open(struct tile *t, int x)
{
    const struct arrays a = here(t, x);
    const int n = t->c->plan->dim * QT;
    find_last(t, state_of(t, x)->last);
    memcpy(a.q0, t->q.across, sizeof(real) * (size_t)n);
    for (int i = 0; i < n; i++) t->own[x].carry[i] = 1;
}
static void form(struct tile *t, int x)
{
    const real *restrict q0 = here(t, x).q0, *restrict e = t->own[x].carry;
    real *restrict q = t->q.across;
    for (int i = 0; i < t->c->plan->dim * QT; i++) q[i] = q0[i] * e[i];
}

/* Number of row r's newest key, counted in the tile: from KT on the row reads its keys by a
 * product; below 0 it sees none of them. */
static ptrdiff_t number_in(const struct tile *t, int x, int r)
{
    return state_of(t, x)->last[r] - (t->j0 - t->seq->k0);
}
static enum owners owners(const struct tile *t, int x)
{
    const ptrdiff_t *last = state_of(t, x)->last, first = t->j0 - t->seq->k0;
    int own = 0, reads = 0;
    for (int r = 0; r < QT; r++) {
        own |= last[r] >= first && last[r] < first + KT;
        reads |= last[r] >= first + KT;
    }
    return !own ? NO_ROWS : reads ? SOME_ROWS : ALL_ROWS;
}
/* The gates of row r: those of its segment. */
static struct gated of_row(const struct tile *t, int x, int r)
{
    return (struct gated){ .f = gates(t->c, x, t->seq->b, t->h, t->j0),
                           .t = t,
                           .all = !t->seq->segments,
                           .segment = t->qg ? t->qg[r] : 0,
                           .D = t->c->plan->dim };
}
/* Rows of this segment that own the tile get their numbers.  Returns the largest of them + 1. */
static int number_rows(struct tile *t, int x, const struct gated *g)
{
    int *number = state_of(t, x)->number, end = 0;
    for (int r = 0; r < QT; r++) {
        const ptrdiff_t n = number_in(t, x, r);
        const bool own = n >= 0 && n < KT && (g->all || t->qg[r] == g->segment);
        number[r] = own ? (int)n : -1;
        if (number[r] + 1 > end) end = number[r] + 1;
    }
    return end;
}
/* True for the first row of its segment among those that own the tile or read its keys. */
static bool leads(const struct tile *t, int x, int r)
{
    const ptrdiff_t n = number_in(t, x, r);
    if (n < 0) return false;
    for (int i = 0; i < r; i++)
        if (number_in(t, x, i) >= 0 && (!t->seq->segments || t->qg[i] == t->qg[r])) return false;
    return true;
}

/* ---- Step ------------------------------------------------------------------------------------ */

/* e of the rows that own the tile. */
static void start_rows(struct tile *t, int x, const struct gated *g)
{
    const struct arrays a = here(t, x);
    const int D = g->D, Dp = padded(D), end = number_rows(t, x, g);
    const int *number = state_of(t, x)->number;
    real *e = t->own[x].carry;
    if (!end) return;
    fill_block(g, 0, 0, end, a.factor);
    for (int r = 0; r < QT; r++)
        memcpy(a.rows + (ptrdiff_t)r * Dp, a.factor + (number[r] < 0 ? 0 : number[r]) * Dp,
               sizeof(real) * (size_t)Dp);
    transpose(a.rows, Dp, QT, D, a.across, QT);
    for (int d = 0; d < D; d++)
        for (int r = 0; r < QT; r++)
            if (number[r] >= 0) e[d * QT + r] = a.across[d * QT + r];
}
/* e of the rows that read the keys of the tile by a product. */
static void fade_rows_by(struct tile *t, int x, const struct gated *g)
{
    real factor[MAX_DIM + PAD], *e = t->own[x].carry;
    const real *F = tile_factor(t->c, t->seq, t->h, (t->j0 - t->seq->k0) / KT);
    bool fades[QT], every = true;
    for (int r = 0; r < QT; r++) {
        fades[r] = number_in(t, x, r) >= KT && (g->all || t->qg[r] == g->segment);
        every &= fades[r];
    }
    if (!g->all) {
        double sum[MAX_DIM] = { 0 };
        for (int k = t->keys - 1; k >= 0; k--) add_gate(g, k, sum);
        exponentials(sum, g->D, factor);
        F = factor;
    }
    for (int d = 0; d < g->D; d++) {
        real *row = e + (ptrdiff_t)d * QT;
        if (every) {
            for (int r = 0; r < QT; r++) row[r] = row[r] * F[d] < LOW_FACTOR ? 0 : row[r] * F[d];
            continue;
        }
        for (int r = 0; r < QT; r++) {
            const real y = row[r] * F[d] < LOW_FACTOR ? 0 : row[r] * F[d];
            row[r] = fades[r] ? y : row[r];
        }
    }
}
static void step(struct tile *t, int x)
{
    for (int r = 0; r < t->rows; r++) {
        if (!leads(t, x, r)) continue;
        const struct gated g = of_row(t, x, r);
        fade_rows_by(t, x, &g);
        start_rows(t, x, &g);
        if (g.all) break;
    }
    form(t, x);
}

/* ---- Rows that own the tile ------------------------------------------------------------------ */

#if QT == 1
static void own_scores(struct tile *t, int x, const struct gated *g, const real *k,
                       ptrdiff_t stride)
{
    const struct arrays a = here(t, x);
    const int D = g->D, Dp = padded(D), p = number_rows(t, x, g) - 1;
    for (int bit = 0; bit < LEVELS; bit++) {
        if (!(p >> bit & 1)) continue;
        const int half = 1 << bit, middle = p >> bit << bit, first = middle - half;
        fill_block(g, first, middle, p + 1, a.factor);
        for (int i = first; i < middle; i++)
            for (int d = 0; d < D; d++)
                a.keys[i * Dp + d] = k[i * stride + d] * a.factor[i * Dp + d];
        for (int d = 0; d < D; d++) a.across[d] = t->q.rows[d] * a.factor[p * Dp + d];
        dot_keys(half, a.keys + first * Dp, Dp, D, a.across, t->s + first);
    }
    real sum = 0;
    for (int d = 0; d < D; d++) sum = fma_(k[p * stride + d], a.q0[d], sum);
    t->s[p] = sum;
}
#else
/* The rows whose newest key is one of middle .. end - 1: some of first .. last. */
struct rows_of_block {
    int first, last;
};
static struct rows_of_block find_rows_of(const int *number, int middle, int end)
{
    struct rows_of_block b = { QT, -1 };
    for (int r = 0; r < QT; r++) {
        if (number[r] < middle || number[r] >= end) continue;
        if (b.first == QT) b.first = r;
        b.last = r;
    }
    b.first = b.first / VL * VL;
    return b;
}
static bool in_upper_half(int number, int bit) { return number >= 0 && (number >> bit & 1); }

/* Factors of all blocks of a level, and its keys and rows times theirs.  Rows of other blocks are
 * 0. */
static void make_level(const struct tile *t, int x, const struct gated *g, int bit, int end,
                       const real *k, ptrdiff_t stride)
{
    const struct arrays a = here(t, x);
    const int D = g->D, Dp = padded(D), half = 1 << bit, *number = state_of(t, x)->number;
    for (int first = 0; first + half < end; first += 2 * half) {
        const int middle = first + half;
        fill_block(g, first, middle, middle + half < end ? middle + half : end, a.factor);
        for (int i = first; i < middle; i++)
            for (int d = 0; d < D; d++)
                a.keys[i * Dp + d] = k[i * stride + d] * a.factor[i * Dp + d];
    }
    for (int r = 0; r < QT; r++) {
        real *row = a.rows + (ptrdiff_t)r * Dp;
        const real *from = t->q.rows + (ptrdiff_t)r * Dp, *by = a.factor + number[r] * Dp;
        if (in_upper_half(number[r], bit))
            for (int d = 0; d < D; d++) row[d] = from[d] * by[d];
        else memset(row, 0, sizeof(real) * (size_t)Dp);
        for (int d = D; d < Dp; d++) row[d] = 0;
    }
    transpose(a.rows, Dp, QT, D, a.across, QT);
}
static void own_scores(struct tile *t, int x, const struct gated *g, const real *k,
                       ptrdiff_t stride)
{
    const struct arrays a = here(t, x);
    const int D = g->D, Dp = padded(D), end = number_rows(t, x, g);
    const int *number = state_of(t, x)->number;
    for (int bit = 0; bit < LEVELS && 1 << bit < end; bit++) {
        const int half = 1 << bit;
        make_level(t, x, g, bit, end, k, stride);
        for (int first = 0; first + half < end; first += 2 * half) {
            const int middle = first + half;
            const struct rows_of_block b = find_rows_of(number, middle, middle + half);
            if (b.last < 0) continue;
            const int n = (b.last - b.first) / VL * VL + VL;
            product(SET, half, n, D, a.keys + first * Dp, Dp, 1, a.across + b.first, QT,
                    a.s + first * QT + b.first, QT, NULL);
            for (int r = b.first; r <= b.last; r++)
                for (int i = first; i < middle && number[r] >= middle && number[r] < middle + half;
                     i++)
                    S(t, i, r) = a.s[i * QT + r];
        }
    }
    /* every row with its newest key */
    for (int r = 0; r < QT; r++)
        for (int d = 0; d < D; d++)
            a.rows[(ptrdiff_t)r * Dp + d] = number[r] < 0 ? 0 : k[number[r] * stride + d];
    transpose(a.rows, Dp, QT, D, a.across, QT);
    for (int r = 0; r < QT; r += VL) {
        vf sum = vf_set1(0);
        for (int d = 0; d < D; d++)
            sum = vf_fma(vf_load(a.across + d * QT + r), vf_load(a.q0 + d * QT + r), sum);
        vf_store(a.s + r, sum);
    }
    for (int r = 0; r < QT; r++)
        if (number[r] >= 0) S(t, number[r], r) = a.s[r];
}
#endif

static void scores(struct tile *t, int x)
{
    ptrdiff_t stride;
    const real *k = find_unmoved(t, t->keys, t->k.buffer, &stride);
    for (int r = 0; r < t->rows; r++) {
        if (!leads(t, x, r)) continue;
        const struct gated g = of_row(t, x, r);
        own_scores(t, x, &g, k, stride);
        if (g.all) break;
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

static int keyed(const struct call *c, int x)
{
    (void)x;
    return 2 * c->plan->dim;
}
static ptrdiff_t keys_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)x;
    return channel_gates_total(c, b, h);
}
static ptrdiff_t total(const struct call *c, int x)
{
    (void)x;
    return channel_gates_total(c, c->B, 0);
}

#if QT > 1
/* A low gradient counts as 0.  The factor is chosen and not the product: a vectorising compiler
 * also computes a product that it discards, and that one would be subnormal. */
INLINE real times(real d, real factor) { return d * (is_low(d) ? 0 : factor); }
/* Gradients of a block's rows and keys, with `finite` by products, else over visible pairs. */
static void block_bwd(struct tile *t, int x, int D, int first, int half, bool finite)
{
    const struct arrays a = here(t, x);
    const int Dp = padded(D), middle = first + half, *number = state_of(t, x)->number;
    const struct rows_of_block b = find_rows_of(number, middle, middle + half);
    if (b.last < 0) return;
    const int n = (b.last - b.first) / VL * VL + VL;
    for (int i = first; i < middle; i++)
        for (int r = b.first; r < b.first + n; r++) {
            const bool in = number[r] >= middle && number[r] < middle + half;
            a.s[i * QT + r] = in ? t->ds[i * QT + r] : 0;
        }
    const real *ds = a.s + first * QT + b.first;
    if (finite) {
        product(ADD, D, n, half, a.keys + first * Dp, 1, Dp, ds, QT, a.da + b.first, QT, NULL);
        product(ADD, half, Dp, n, ds, QT, 1, a.rows + b.first * Dp, Dp, a.dc + first * Dp, Dp,
                NULL);
        return;
    }
    for (int i = first; i < middle; i++)
        for (int r = b.first; r < b.first + n; r++) {
            const real s = a.s[i * QT + r];
            if (number[r] < middle || number[r] >= middle + half || !visible(t, i, r)) continue;
            for (int d = 0; d < D; d++) {
                a.da[d * QT + r] = fma_(a.keys[i * Dp + d], s, a.da[d * QT + r]);
                a.dc[i * Dp + d] = fma_(s, a.rows[r * Dp + d], a.dc[i * Dp + d]);
            }
        }
}
/* Adds to a.dq and to own.keys. */
static void own_bwd(struct tile *t, int x, const struct gated *g, const real *k, ptrdiff_t stride)
{
    const struct arrays a = here(t, x);
    const int D = g->D, Dp = padded(D), row = padded(2 * D), end = number_rows(t, x, g);
    const int *number = state_of(t, x)->number;
    real *to = t->own[x].keys;
    for (int bit = 0; bit < LEVELS && 1 << bit < end; bit++) {
        const int half = 1 << bit;
        make_level(t, x, g, bit, end, k, stride);
        memset(a.da, 0, sizeof(real) * (size_t)(D * QT));
        memset(a.dc, 0, sizeof(real) * (size_t)(KT * Dp));
        for (int first = 0; first + half < end; first += 2 * half) {
            const bool finite =
                finite_rows(a.keys + first * Dp, Dp, half, D) && finite_rows(a.rows, Dp, QT, D);
            block_bwd(t, x, D, first, half, finite || !t->partial);
        }
        transpose(a.da, QT, D, QT, a.rows, Dp);
        for (int r = 0; r < QT; r++)
            for (int d = 0; d < D && in_upper_half(number[r], bit); d++)
                a.dq[r * Dp + d] += times(a.rows[r * Dp + d], a.factor[number[r] * Dp + d]);
        for (int i = 0; i < end && to; i++) {
            /* keys of lower halves that have rows */
            if (i >> bit & 1 || (i >> bit << bit) + half >= end) continue;
            for (int d = 0; d < D; d++)
                to[i * row + d] += times(a.dc[i * Dp + d], a.factor[i * Dp + d]);
        }
    }
    for (int r = 0; r < t->rows; r++) {
        if (number[r] < 0) continue;
        const real s = t->ds[number[r] * QT + r], *key = k + number[r] * stride,
                   *q = t->q.rows + r * Dp;
        for (int d = 0; d < D; d++) a.dq[r * Dp + d] = fma_(s, key[d], a.dq[r * Dp + d]);
        for (int d = 0; d < D && to; d++)
            to[number[r] * row + d] = fma_(s, q[d], to[number[r] * row + d]);
    }
}
/* Products of small gradients by faded rows would be subnormal. */
static void end_low(struct tile *t, int x)
{
    (void)x;
    for (int i = 0; i < t->keys * QT; i += VL) {
        const vf ds = vf_load(t->ds + i);
        vf_store(t->ds + i, vf_from(vf_minus_abs(ds), -LOW_GRADIENT, vf_set1(0), ds));
    }
}
/* No row has a gradient by keys that are newer than its newest one, so dq of the rows that own the
 * tile is complete after it. */
static void scores_bwd(struct tile *t, int x)
{
    const struct arrays a = here(t, x);
    const int D = t->c->plan->dim, Dp = padded(D), row = padded(2 * D);
    ptrdiff_t stride;
    const real *k = find_unmoved(t, t->keys, t->k.buffer, &stride);
    memset(a.dq, 0, sizeof(real) * (size_t)(QT * Dp));
    for (int r = 0; r < t->rows; r++) {
        if (!leads(t, x, r)) continue;
        const struct gated g = of_row(t, x, r);
        own_bwd(t, x, &g, k, stride);
        if (g.all) break;
    }
    transpose(a.dq, Dp, QT, D, a.across, QT);
    for (int r = 0; r < t->rows; r++) {
        const ptrdiff_t number = number_in(t, x, r);
        if (number < 0 || number >= KT) continue;
        real *to = t->own[x].keys ? t->own[x].keys + number * row + D : NULL;
        for (int d = 0; d < D; d++) {
            t->dq[d * QT + r] += a.across[d * QT + r];
            if (to) to[d] = fma_(a.q0[d * QT + r], t->dqs[d * QT + r] + t->dq[d * QT + r], to[d]);
            t->q.faded[r * Dp + d] = 0;
        }
        for (int i = 0; i < t->keys; i++) t->ds[i * QT + r] = 0;
    }
}
static void add_dq(struct tile *t, int x, const real *d)
{
    const real *e = t->own[x].carry;
    real reads[QT];
    bool every = true;
    for (int r = 0; r < QT; r++) {
        reads[r] = number_in(t, x, r) >= KT;
        every &= reads[r] != 0;
    }
    if (every) {
        for (int i = 0; i < t->c->plan->dim * QT; i++) t->dq[i] += times(d[i], e[i]);
        return;
    }
    for (int i = 0; i < t->c->plan->dim; i++)
        for (int r = 0; r < QT; r++) {
            const real y = t->dq[i * QT + r] + times(d[i * QT + r], e[i * QT + r]);
            t->dq[i * QT + r] = reads[r] != 0 ? y : t->dq[i * QT + r];
        }
}
#endif

/* Squares of scores that have faded would be subnormal, and weights cannot tell them from 0. */
static void drop_faded(struct tile *t, int x)
{
    (void)x;
    for (int i = 0; i < t->keys * QT; i += VL) {
        const vf y = vf_load(t->s + i);
        vf_store(t->s + i, vf_from(vf_minus_abs(y), -LOW_SCORE, vf_set1(0), y));
    }
}

static const struct moves moves = {
    .bytes = bytes,
    .keys = keys,
    .keys_bwd = keys_bwd,
    .form = form,
    .owners = owners,
    .scores = scores,
    .step = step,
#if QT > 1
    .scores_bwd = scores_bwd,
    .add_dq = add_dq,
#endif
};
const struct term N(term_channel_gates) = {
    .name = "channel_gates",
    .mem = mem,
    .carry = carry,
    .open = open,
    .keyed = keyed,
    .keys_at = keys_at,
    .total = total,
    .read = drop_faded,
#if QT > 1
    .read_bwd = end_low,
#endif
    .moves = &moves,
};
