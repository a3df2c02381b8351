/* SPDX-License-Identifier: MIT */
/* linear.c -- linear attention: a row sees the keys of its own tile pair by pair, and
 * all earlier keys as one sum.
 *
 *     o_i = sum_j (R f(q_i)).(R f(k_j)) v_j / den_i      den_i = sum_j f(q_i).f(k_j)
 *     f = elu + 1
 *
 * Keys come in tiles of KT, counted from the first key of the sequence, even if a state
 * contains the earlier ones.  The tile of a row is that of the last key it sees.  With S =
 * sum of (R f(k_j)) v_j^T and z = sum of f(k_j) over the tiles before it, and p_ik = (R
 * f(q_i)).(R f(k_k)) in it,
 *
 *     o_i den_i = S^T R f(q_i) + sum_k p_ik v_k          den_i = (z + sum_k f(k_k)).f(q_i)
 *
 * so the bits of a row depend on its query and the keys it sees, however the keys are split into
 * calls.  Sums have two parts, the keys since the last multiple of SPAN and those before, so
 * that sums over long texts lose little in float.
 *
 * Backward, with g = dO / den, h = -(dO.o) / den, and G = sum of (R f(q_i)) g_i^T
 * over the rows behind a tile:
 *
 *     d R f(q_i) = S g_i + ...    d f(q_i) = h_i z + ...    d R f(k_k) = G v_k + ...
 *     dv_k = G^T R f(k_k) + ...
 *
 * dq is computed on a walk from the first tile to the last, dk and dv on a second walk back. */
#include "engine/workspace.h"

#if QT > 1

enum { SPAN = 1024 }; /* keys after which a sum is no longer recent */

/* A sum [D][Dvp] and one [Dp], each in two parts: since the last multiple
 * of SPAN keys, and before. */
struct running {
    real *recent, *older, *zrecent, *zolder;
};

/* All that later rows need of the keys so far.  A state stores it in this order, without gaps. */
struct memory {
    struct running sum;    /* of all tiles but the last */
    real *f, *rotated, *v; /* the last tile: [KT][Dp], [KT][Dp], [KT][Dvp] */
};

struct linear {
    struct angles *angles;
    real *buffer, *part; /* of the rotation */
    struct memory mem;
    ptrdiff_t count; /* keys in memory */
    int keys;        /* of them in the last tile */

    real *S, *z; /* the sums before the tile, both parts added */
    /* [KT][Dp]: z for a row that sees the keys 0 .. k of the tile */
    real *zk;
    real *keys_t; /* [D][KT]: rotated keys, transposed */
    bool finite;  /* all of the tile's keys and values */

    /* the current rows, and how many keys of the tile each sees */
    int rows, seen[QT];
    real *q, *rotated; /* [QT][Dp]: f of the rows, and the same rotated */
    real *p, *o;       /* [QT][KT], [QT][Dvp] */

    real *S_t, *v_t;       /* backward: [Dv][Dp], [Dv][KT] */
    real *g, *h, *dp, *dq; /* [QT][Dvp], [QT], [QT][KT], [QT][Dp] */
    bool finite_rows;
    struct running behind; /* G, and sums of h f(q) */
    real *G, *G_t, *y;     /* [D][Dvp], [Dv][Dp], [Dp]: both parts added */
    real *dk, *df, *dv;    /* [KT][Dp], [KT][Dp], [KT][Dvp] */
};

static void zero(real *x, ptrdiff_t n) { memset(x, 0, sizeof(real) * (size_t)n); }

static struct running lay_out_running(const struct loci_plan *p, struct arena *a)
{
    const int Dp = padded(p->dim), Dvp = padded(p->value_dim);
    struct running s;
    s.recent = carve_reals(a, (ptrdiff_t)p->dim * Dvp);
    s.older = carve_reals(a, (ptrdiff_t)p->dim * Dvp);
    s.zrecent = carve_reals(a, Dp);
    s.zolder = carve_reals(a, Dp);
    return s;
}
static struct memory lay_out_memory(const struct loci_plan *p, struct arena *a)
{
    const int Dp = padded(p->dim), Dvp = padded(p->value_dim);
    struct memory m = { .sum = lay_out_running(p, a) };
    m.f = carve_reals(a, (ptrdiff_t)KT * Dp);
    m.rotated = carve_reals(a, (ptrdiff_t)KT * Dp);
    m.v = carve_reals(a, (ptrdiff_t)KT * Dvp);
    return m;
}
/* Bytes of the state of a kv head: an image of the memory. */
size_t N(linear_state)(const struct loci_plan *p)
{
    struct arena a = { 0 };
    lay_out_memory(p, &a);
    return a.used;
}

/* Lays out the scratch of a thread; with base NULL it only measures.  If the caller wants a
 * state, open_memory() puts the memory there. */
static size_t lay_out_all(const struct call *c, char *base, bool backward, struct linear *d)
{
    const struct loci_plan *p = c->plan;
    const int D = p->dim, Dv = p->value_dim, Dp = padded(D), Dvp = padded(Dv);
    const struct rotation *rotation = rotation_of(c);
    struct arena a = { .base = base };
    *d = (struct linear){ .mem = lay_out_memory(p, &a) };
    if (rotation) {
        d->angles = carve_bytes(&a, 1, sizeof *d->angles);
        d->buffer = carve_reals(&a, rotation->buffer ? rotation->buffer(c, p->rotate) : 0);
    }
    d->S = carve_reals(&a, (ptrdiff_t)D * Dvp);
    d->z = carve_reals(&a, Dp);
    d->zk = carve_reals(&a, (ptrdiff_t)KT * Dp);
    d->keys_t = carve_reals(&a, (ptrdiff_t)D * KT);
    d->q = carve_reals(&a, (ptrdiff_t)QT * Dp);
    d->rotated = carve_reals(&a, (ptrdiff_t)QT * Dp);
    d->p = carve_reals(&a, QT * KT);
    d->o = carve_reals(&a, (ptrdiff_t)QT * Dvp);
    if (backward) {
        d->S_t = carve_reals(&a, (ptrdiff_t)Dv * Dp);
        d->v_t = carve_reals(&a, (ptrdiff_t)Dv * KT);
        d->g = carve_reals(&a, (ptrdiff_t)QT * Dvp);
        d->h = carve_reals(&a, QT);
        d->dp = carve_reals(&a, QT * KT);
        d->dq = carve_reals(&a, (ptrdiff_t)QT * Dp);
        d->behind = lay_out_running(p, &a);
        d->G = carve_reals(&a, (ptrdiff_t)D * Dvp);
        d->G_t = carve_reals(&a, (ptrdiff_t)Dv * Dp);
        d->y = carve_reals(&a, Dp);
        d->dk = carve_reals(&a, (ptrdiff_t)KT * Dp);
        d->df = carve_reals(&a, (ptrdiff_t)KT * Dp);
        d->dv = carve_reals(&a, (ptrdiff_t)KT * Dvp);
        d->part = carve_reals(&a, rotation ? rotation_part(c) : 0);
    }
    return a.full ? SIZE_MAX : a.used;
}
size_t N(linear_workspace)(const struct call *c, bool backward)
{
    struct linear d;
    return lay_out_all(c, NULL, backward, &d);
}
static struct linear open_workspace(const struct call *c, int index)
{
    struct linear d;
    lay_out_all(c, c->mem.workspaces + (size_t)index * c->mem.workspace, c->grad != NULL, &d);
    return d;
}

/* ---- Rows of queries and keys ---------------------------------------------------------------- */

/* f(x) = elu(x) + 1, and f'(x) from f(x): below 0 both are e^x. */
INLINE real feature(real x) { return x > 0 ? x + 1 : exp_(x); }
INLINE real slope(real f) { return f < 1 ? f : 1; }

/* A sum in PAD lanes, so that its bits are the same for every width of
 * vectors.  n counts whole lanes. */
static real dot_row(const real *a, const real *b, int n)
{
    real lane[PAD] = { 0 };
    for (int d = 0; d < n; d += PAD)
        for (int i = 0; i < PAD; i++) lane[i] = fma_(a[d + i], b[d + i], lane[i]);
    for (int half = PAD / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

/* n rows of a view, padded with zeros. */
static void load(const struct call *c, const loci_view *v, ptrdiff_t b, int h, ptrdiff_t i, int n,
                 int width, real *rows)
{
    const int stride = padded(width);
    for (int r = 0; r < n; r++) {
        to_reals(c->plan->dtype, stored_row(c, v, b, h, i + r), width,
                 rows + (ptrdiff_t)r * stride);
        zero(rows + (ptrdiff_t)r * stride + width, stride - width);
    }
}
static void store(const struct call *c, const loci_view *v, ptrdiff_t b, int h, ptrdiff_t i, int n,
                  int width, const real *rows)
{
    if (v->data) store_rows(c, rows, padded(width), v, b, h, i, n, width);
}

/* f of n rows, and the same rotated. */
static void load_features(const struct call *c, struct linear *d, bool query, ptrdiff_t b, int h,
                          ptrdiff_t i, int n, real *f, real *rotated)
{
    const struct loci_plan *p = c->plan;
    const int D = p->dim, Dp = padded(D);
    load(c, query ? &c->q : &c->k, b, h, i, n, D, f);
    for (int r = 0; r < n; r++)
        for (int x = 0; x < D; x++) f[r * Dp + x] = feature(f[r * Dp + x]);
    memcpy(rotated, f, sizeof(real) * (size_t)(n * Dp));
    if (p->rotate >= 0)
        rotation_of(c)->rotate(c, p->rotate, d->angles, b, h, query, i, n, rotated, Dp);
}
/* Turns g from the gradient by n rotated rows into that by the rows, and adds the
 * rotation's gradient to its part. */
static void rotate_back(const struct call *c, struct linear *d, bool query, ptrdiff_t b, int h,
                        ptrdiff_t i, int n, const real *f, const real *rotated, real *g)
{
    const int x = c->plan->rotate;
    if (x < 0) return;
    const struct rotation *rotation = rotation_of(c);
    rotation->rotate_bwd(c, x, d->angles, b, h, query, i, n, rotation->of_input ? f : rotated, g,
                         padded(c->plan->dim), c->g.total[x] ? d->part : NULL);
}

/* Loads n rows of a query head, from `row` on, with `last` keys of their sequence in memory.  A
 * row sees the first seen[r] keys of the tile, and all tiles before it. */
static void open_rows_of(const struct call *c, struct linear *d, const struct sequence *q, int h,
                         ptrdiff_t row, int n, ptrdiff_t last)
{
    const ptrdiff_t *seen = c->linear.seen + q->b * c->Lq + q->q0 + row;
    d->rows = n;
    for (int r = 0; r < n; r++) d->seen[r] = (int)(seen[r] - last) + d->keys;
    load_features(c, d, true, q->b, h, q->q0 + row, n, d->q, d->rotated);
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

static void add_to(real *x, const real *y, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) x[i] += y[i];
}
static void clear_sums(const struct loci_plan *p, const struct running *s)
{
    const ptrdiff_t n = (ptrdiff_t)p->dim * padded(p->value_dim), m = padded(p->dim);
    zero(s->recent, n);
    zero(s->older, n);
    zero(s->zrecent, m);
    zero(s->zolder, m);
}
/* Adds the recent part to the older one.  Each sum then has few addends of one size, and the sum
 * over a long text does not absorb a single key. */
static void age(const struct loci_plan *p, const struct running *s)
{
    const ptrdiff_t n = (ptrdiff_t)p->dim * padded(p->value_dim), m = padded(p->dim);
    add_to(s->older, s->recent, n);
    add_to(s->zolder, s->zrecent, m);
    zero(s->recent, n);
    zero(s->zrecent, m);
}
static void both(const struct loci_plan *p, const struct running *s, real *S, real *z)
{
    const ptrdiff_t n = (ptrdiff_t)p->dim * padded(p->value_dim);
    for (ptrdiff_t i = 0; i < n; i++) S[i] = s->older[i] + s->recent[i];
    for (int i = 0; i < padded(p->dim); i++) z[i] = s->zolder[i] + s->zrecent[i];
}

/* Adds the last tile, which is full, to the sums.  It is first summed by itself, from 0 over
 * ascending keys, then added once.  So the bits do not depend on how many keys each call has. */
static void add_tile(const struct loci_plan *p, struct linear *d)
{
    const int D = p->dim, Dp = padded(D), Dvp = padded(p->value_dim);
    const struct memory *m = &d->mem;
    product(ADD, D, Dvp, KT, m->rotated, 1, Dp, m->v, Dvp, m->sum.recent, Dvp, NULL);
    zero(d->z, Dp);
    for (int k = 0; k < KT; k++) add_to(d->z, m->f + k * Dp, Dp);
    add_to(m->sum.zrecent, d->z, Dp);
    if (d->count % SPAN == 0) age(p, &m->sum);
    d->keys = 0;
}
/* Adds keys j .. of the sequence, up to the capacity of the tile.  Returns their number. */
static int add_keys(const struct call *c, struct linear *d, const struct sequence *q, int kvh,
                    ptrdiff_t j)
{
    const struct loci_plan *p = c->plan;
    const int Dp = padded(p->dim), Dvp = padded(p->value_dim);
    if (d->keys == KT) add_tile(p, d);
    const int n = q->nk - j < KT - d->keys ? (int)(q->nk - j) : KT - d->keys;
    load_features(c, d, false, q->b, kvh, q->k0 + j, n, d->mem.f + d->keys * Dp,
                  d->mem.rotated + d->keys * Dp);
    load(c, &c->v, q->b, kvh, q->k0 + j, n, p->value_dim, d->mem.v + d->keys * Dvp);
    d->keys += n;
    d->count += n;
    return n;
}
/* Computes what rows need of the tile and of all before it: S and z, z for every number of keys
 * of the tile that a row may see, and the rotated keys across. */
static void open_tile(const struct loci_plan *p, struct linear *d)
{
    const int D = p->dim, Dp = padded(D), Dvp = padded(p->value_dim);
    const struct memory *m = &d->mem;
    both(p, &m->sum, d->S, d->z);
    for (int k = 0; k < d->keys; k++)
        for (int x = 0; x < Dp; x++)
            d->zk[k * Dp + x] = m->f[k * Dp + x] + (k ? d->zk[(k - 1) * Dp + x] : 0);
    for (int k = 0; k < d->keys; k++) add_to(d->zk + k * Dp, d->z, Dp);
    transpose(m->rotated, Dp, d->keys, D, d->keys_t, KT);
    d->finite =
        finite_rows(m->rotated, Dp, d->keys, D) && finite_rows(m->v, Dvp, d->keys, p->value_dim);
}

/* Sets weights of pairs that a row does not see to an exact 0. */
static void hide(const struct linear *d, real *w)
{
    for (int r = 0; r < d->rows; r++) zero(w + r * KT + d->seen[r], KT - d->seen[r]);
}
/* C[r] += sum over the keys k that row r sees of w[r][k] B[k].  Where all numbers are finite,
 * hidden keys have weight 0 and one product serves all rows. */
static void add_seen_keys(const struct linear *d, const real *w, const real *b, int width, real *c)
{
    if (d->finite) product(ADD, d->rows, width, d->keys, w, KT, 1, b, width, c, width, NULL);
    else
        for (int r = 0; r < d->rows; r++)
            product(ADD, 1, width, d->seen[r], w + r * KT, KT, 1, b, width, c + r * width, width,
                    NULL);
}
/* C[k] += sum over the rows r that see key k of w[r][k] B[r].  No row sees fewer
 * keys than the row before it. */
static void add_seeing_rows(const struct linear *d, const real *w, const real *b, int width,
                            real *c)
{
    if (d->finite_rows) {
        product(ADD, d->keys, width, d->rows, w, 1, KT, b, width, c, width, NULL);
        return;
    }
    for (int k = 0, r = 0; k < d->keys; k++) {
        while (r < d->rows && d->seen[r] <= k) r++;
        product(ADD, 1, width, d->rows - r, w + r * KT + k, 1, KT, b + r * width, width,
                c + k * width, width, NULL);
    }
}

/* p of the rows against the tile's keys. */
static void score(const struct loci_plan *p, const struct linear *d)
{
    product(SET, d->rows, KT, p->dim, d->rotated, padded(p->dim), 1, d->keys_t, KT, d->p, KT, NULL);
    hide(d, d->p);
}
/* f(q).z over the keys that row r sees.  It is 0 for a row that sees no key, and where f
 * vanishes in all channels of the row or of all its keys. */
static real denominator(const struct loci_plan *p, const struct linear *d, int r)
{
    const int Dp = padded(p->dim);
    return d->seen[r] ? dot_row(d->q + r * Dp, d->zk + (d->seen[r] - 1) * Dp, Dp) : 0;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* The current rows: S^T R f(q) from the tiles before, then the keys of
 * the tile, then the division. */
static void forward_rows(const struct call *c, struct linear *d, const struct sequence *q, int h,
                         ptrdiff_t row, int n, ptrdiff_t last)
{
    const struct loci_plan *p = c->plan;
    const int D = p->dim, Dp = padded(D), Dvp = padded(p->value_dim);
    open_rows_of(c, d, q, h, row, n, last);
    score(p, d);
    product(SET, n, Dvp, D, d->rotated, Dp, 1, d->S, Dvp, d->o, Dvp, NULL);
    add_seen_keys(d, d->p, d->mem.v, Dvp, d->o);
    for (int r = 0; r < n; r++) {
        const real den = denominator(p, d, r);
        for (int x = 0; x < Dvp; x++) d->o[r * Dvp + x] = den == 0 ? 0 : d->o[r * Dvp + x] / den;
    }
    store(c, &c->o, q->b, h, q->q0 + row, n, p->value_dim, d->o);
}

/* Memory number i of the call is stored in the state that the call returns, if one is wanted,
 * else in the workspace.  It starts as a copy of the state that the call was given, or empty.
 * The two states may be the same memory. */
static void open_memory(const struct call *c, struct linear *d, size_t i)
{
    const size_t bytes = N(linear_state)(c->plan);
    const char *before = c->linear.before ? c->linear.before + i * bytes : NULL;
    if (c->linear.after) {
        struct arena a = { .base = c->linear.after + i * bytes };
        d->mem = lay_out_memory(c->plan, &a);
    }
    char *to = (char *)d->mem.sum.recent;
    if (!before) memset(to, 0, bytes);
    else if (before != to) memcpy(to, before, bytes);
}
/* Begins a work item: a kv head of a sequence, and the query heads that read it. */
static const struct sequence *open_item(const struct call *c, struct linear *d, ptrdiff_t item,
                                        int *kvh)
{
    const struct loci_plan *p = c->plan;
    const struct sequence *q = &c->seqs.list[item / p->kv_heads];
    *kvh = (int)(item % p->kv_heads);
    if (d->angles) *d->angles = (struct angles){ .buffer = d->buffer };
    d->count = c->where.from;
    /* a full tile has not been added yet: 1 .. KT keys, unless there are none */
    d->keys = d->count ? (int)((d->count - 1) % KT) + 1 : 0;
    open_memory(c, d, (size_t)(q->b * p->kv_heads + *kvh));
    return q;
}
/* The first row from `row` on that sees more than `keys` keys. */
static ptrdiff_t rows_within(const struct call *c, const struct sequence *q, ptrdiff_t row,
                             ptrdiff_t keys)
{
    const ptrdiff_t *seen = c->linear.seen + q->b * c->Lq + q->q0;
    while (row < q->nq && seen[row] <= keys) row++;
    return row;
}
/* The number of rows to process from `row` on. */
static int rows_from(ptrdiff_t row, ptrdiff_t end)
{
    return end - row < QT ? (int)(end - row) : QT;
}

/* The action of walk_forward() on rows and their tile: forward_rows() or dq_rows(). */
typedef void rows_job(const struct call *, struct linear *, const struct sequence *, int h,
                      ptrdiff_t row, int n, ptrdiff_t last);

/* Walks over the keys, tile by tile, and passes on the rows whose last key is in the tile, of
 * all heads that share it.  False: cancelled. */
INLINE bool walk_forward(const struct call *c, struct linear *d, const struct sequence *q, int kvh,
                         rows_job *job, bool backward)
{
    const struct loci_plan *p = c->plan;
    const int Dp = padded(p->dim), Dvp = padded(p->value_dim);
    /* i rows are done, j keys are in memory.  Rows that see no key come
     * first, with no keys in memory. */
    for (ptrdiff_t i = 0, j = 0;; j += add_keys(c, d, q, kvh, j)) {
        if (cancelled(c)) return false;
        const ptrdiff_t end = rows_within(c, q, i, j);
        if (end > i) {
            open_tile(p, d);
            if (backward) {
                transpose(d->S, Dvp, p->dim, p->value_dim, d->S_t, Dp);
                transpose(d->mem.v, Dvp, d->keys, p->value_dim, d->v_t, KT);
            }
            for (int h = kvh * p->group; h < (kvh + 1) * p->group; h++)
                for (ptrdiff_t row = i; row < end; row += QT)
                    job(c, d, q, h, row, rows_from(row, end), j);
        }
        i = end;
        /* Keys after the last row matter to a state only. */
        if (j == q->nk || (i == q->nq && !c->linear.after)) return true;
    }
}
static bool forward_item(const struct call *c, struct linear *d, ptrdiff_t item)
{
    int kvh;
    const struct sequence *q = open_item(c, d, item, &kvh);
    return walk_forward(c, d, q, kvh, forward_rows, false);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* g, h and dp of the rows; den is the result of denominator(). */
static void open_cotangents(const struct call *c, struct linear *d, const struct sequence *q, int h,
                            ptrdiff_t row, const real *den)
{
    const struct loci_plan *p = c->plan;
    const int Dv = p->value_dim, Dvp = padded(Dv);
    if (c->g.dout.data) load(c, &c->g.dout, q->b, h, q->q0 + row, d->rows, Dv, d->g);
    else zero(d->g, (ptrdiff_t)d->rows * Dvp);
    load(c, &c->o, q->b, h, q->q0 + row, d->rows, Dv, d->o);
    /* g = dO / den and h = -(dO.o) / den = -g.o: both are 0 if the denominator is 0. */
    for (int r = 0; r < d->rows; r++) {
        const real over = den[r];
        d->h[r] = over == 0 ? 0 : -dot_row(d->g + r * Dvp, d->o + r * Dvp, Dvp) / over;
        for (int x = 0; x < Dvp; x++) d->g[r * Dvp + x] = over == 0 ? 0 : d->g[r * Dvp + x] / over;
    }
    product(SET, d->rows, KT, Dv, d->g, Dvp, 1, d->v_t, KT, d->dp, KT, NULL);
    hide(d, d->dp);
}

/* From the gradient of a feature, h df + g, to that of its input. */
static void through_feature(int D, const real *restrict f, real h, const real *restrict df,
                            real *restrict g)
{
    for (int x = 0; x < D; x++) g[x] = fma_(h, df[x], g[x]) * slope(f[x]);
}

/* dq of the current rows: d R f(q) = S g + sum of dp R f(k), back through the rotation, then
 * with h z through f.  Denominators are stored for the walk back, which has no z. */
static void dq_rows(const struct call *c, struct linear *d, const struct sequence *q, int h,
                    ptrdiff_t row, int n, ptrdiff_t last)
{
    const struct loci_plan *p = c->plan;
    const int D = p->dim, Dp = padded(D), Dvp = padded(p->value_dim);
    real *den = (real *)c->linear.den + (q->b * p->heads + h) * c->Lq + q->q0 + row;
    open_rows_of(c, d, q, h, row, n, last);
    for (int r = 0; r < n; r++) den[r] = denominator(p, d, r);
    open_cotangents(c, d, q, h, row, den);
    product(SET, n, Dp, p->value_dim, d->g, Dvp, 1, d->S_t, Dp, d->dq, Dp, NULL);
    add_seen_keys(d, d->dp, d->mem.rotated, Dp, d->dq);
    rotate_back(c, d, true, q->b, h, q->q0 + row, n, d->q, d->rotated, d->dq);
    for (int r = 0; r < n; r++) {
        if (den[r] == 0) zero(d->dq + r * Dp, D);
        else
            through_feature(D, d->q + r * Dp, d->h[r], d->zk + (d->seen[r] - 1) * Dp,
                            d->dq + r * Dp);
    }
    store(c, &c->g.dq, q->b, h, q->q0 + row, n, D, d->dq);
}

/* Rows on the walk back.  They add to dk and dv of their tile; to df at the last key that each
 * sees, from where it is later summed to the keys before; and to G, for the tiles before. */
static void dk_rows(const struct call *c, struct linear *d, const struct sequence *q, int h,
                    ptrdiff_t row, int n, ptrdiff_t last)
{
    const struct loci_plan *p = c->plan;
    const int D = p->dim, Dp = padded(D), Dvp = padded(p->value_dim);
    open_rows_of(c, d, q, h, row, n, last);
    score(p, d);
    open_cotangents(c, d, q, h, row,
                    (const real *)c->linear.den + (q->b * p->heads + h) * c->Lq + q->q0 + row);
    d->finite_rows = finite_rows(d->rotated, Dp, n, D) && finite_rows(d->g, Dvp, n, p->value_dim);
    add_seeing_rows(d, d->dp, d->rotated, Dp, d->dk);
    add_seeing_rows(d, d->p, d->g, Dvp, d->dv);
    for (int r = 0; r < n; r++) {
        real *df = d->df + (d->seen[r] - 1) * Dp;
        for (int x = 0; x < Dp; x++) df[x] = fma_(d->h[r], d->q[r * Dp + x], df[x]);
    }
    /* G is used for a tile before its rows are added, so it contains later rows only */
    product(ADD, D, Dvp, n, d->rotated, 1, Dp, d->g, Dvp, d->behind.recent, Dvp, NULL);
}
/* Gradients of the keys first .. last - 1, a tile, from the rows row .. end - 1 whose last key
 * is in it and from the sums over all later rows. */
static void dk_tile(const struct call *c, struct linear *d, const struct sequence *q, int kvh,
                    ptrdiff_t first, ptrdiff_t last, ptrdiff_t row, ptrdiff_t end)
{
    const struct loci_plan *p = c->plan;
    const int D = p->dim, Dv = p->value_dim, Dp = padded(D), Dvp = padded(Dv);
    /* The tile as its rows saw it: read again, without keys from `last` on. */
    const struct sequence tile = { .b = q->b, .k0 = q->k0, .nk = last };
    d->keys = 0;
    add_keys(c, d, &tile, kvh, first);
    transpose(d->mem.rotated, Dp, d->keys, D, d->keys_t, KT);
    transpose(d->mem.v, Dvp, d->keys, Dv, d->v_t, KT);
    both(p, &d->behind, d->G, d->y);
    transpose(d->G, Dvp, D, Dv, d->G_t, Dp);
    product(SET, d->keys, Dp, Dv, d->mem.v, Dvp, 1, d->G_t, Dp, d->dk, Dp, NULL);
    product(SET, d->keys, Dvp, D, d->mem.rotated, Dp, 1, d->G, Dvp, d->dv, Dvp, NULL);
    zero(d->df, (ptrdiff_t)KT * Dp);
    for (int h = kvh * p->group; h < (kvh + 1) * p->group; h++)
        for (ptrdiff_t i = row; i < end; i += QT) dk_rows(c, d, q, h, i, rows_from(i, end), last);

    /* A key gets h f(q) of every row whose last key is this one or a later one. */
    for (int k = d->keys - 2; k >= 0; k--) add_to(d->df + k * Dp, d->df + (k + 1) * Dp, Dp);
    add_to(d->behind.zrecent, d->df, Dp);
    rotate_back(c, d, false, q->b, kvh, q->k0 + first, d->keys, d->mem.f, d->mem.rotated, d->dk);
    for (int k = 0; k < d->keys; k++) {
        add_to(d->df + k * Dp, d->y, D);
        through_feature(D, d->mem.f + k * Dp, 1, d->df + k * Dp, d->dk + k * Dp);
    }
    store(c, &c->g.dk, q->b, kvh, q->k0 + first, d->keys, D, d->dk);
    store(c, &c->g.dv, q->b, kvh, q->k0 + first, d->keys, Dv, d->dv);
    if (first % SPAN == 0) age(p, &d->behind);
}
/* The two walks of a kv head.  False: cancelled. */
static bool backward_item(const struct call *c, struct linear *d, ptrdiff_t item)
{
    const struct loci_plan *p = c->plan;
    int kvh;
    const struct sequence *q = open_item(c, d, item, &kvh);
    const ptrdiff_t *seen = c->linear.seen + q->b * c->Lq + q->q0;
    if (p->rotate >= 0 && c->g.total[p->rotate]) zero(d->part, rotation_part(c));
    if (!walk_forward(c, d, q, kvh, dq_rows, true)) return false;

    ptrdiff_t end = q->nq;
    clear_sums(p, &d->behind);
    /* Keys after the last row's last key have no gradient; the caller's dk was cleared. */
    for (ptrdiff_t last = q->nq ? seen[q->nq - 1] : 0, first; last > 0; last = first) {
        if (cancelled(c)) return false;
        first = (last - 1) / KT * KT;
        ptrdiff_t row = end;
        while (row > 0 && seen[row - 1] > first) row--;
        dk_tile(c, d, q, kvh, first, last, row, end);
        end = row;
    }
    return true;
}

/* ---- Work items ------------------------------------------------------------------------------ */

/* Items that threads fetch one after the other. */
struct line {
    struct call *c;
    /* false: cancelled */
    bool (*item)(const struct call *, struct linear *, ptrdiff_t item);
    ptrdiff_t first, end;
    atomic_llong next;
    atomic_bool stop;
};
static void line_job(void *arg, int index)
{
    struct line *a = arg;
    struct linear d = open_workspace(a->c, index);
    for (ptrdiff_t i; !a->stop && (i = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < a->end;)
        if (!a->item(a->c, &d, i)) a->stop = true;
}
static loci_status run_line(struct line *a, ptrdiff_t first, ptrdiff_t end)
{
    a->first = first;
    a->end = end;
    atomic_init(&a->next, first);
    N(run)(a->c, end - first < a->c->threads ? (int)(end - first) : a->c->threads, line_job, a);
    return a->stop ? LOCI_CANCELLED : LOCI_OK;
}

loci_status N(linear)(struct call *c)
{
    struct line a = { .c = c, .item = forward_item };
    return run_line(&a, 0, c->seqs.n * c->plan->kv_heads);
}

/* One item of a wave, with its part of the rotation's gradient. */
static void wave_job(void *arg, int index)
{
    struct line *a = arg;
    struct linear d = open_workspace(a->c, index);
    if (!a->item(a->c, &d, a->first + index)) a->stop = true;
}
loci_status N(linear_backward)(struct call *c)
{
    const struct loci_plan *p = c->plan;
    const int x = p->rotate;
    const ptrdiff_t items = c->seqs.n * p->kv_heads;
    struct line a = { .c = c, .item = backward_item };
    clear(&c->g.dk, c->B, p->kv_heads, c->Lk, p->dim, p->stored);
    clear(&c->g.dv, c->B, p->kv_heads, c->Lk, p->value_dim, p->stored);
    /* Without learned parameters items share nothing.  Otherwise they run
     * in waves as in backward.c. */
    if (x < 0 || !c->g.total[x]) return run_line(&a, 0, items);
    const struct term *term = term_of(c, x);
    for (; a.first < items; a.first += c->threads) {
        const int n = items - a.first < c->threads ? (int)(items - a.first) : c->threads;
        N(run)(c, n, wave_job, &a);
        if (a.stop) return LOCI_CANCELLED;
        for (int i = 0; i < n; i++) {
            const ptrdiff_t item = a.first + i;
            const struct linear d = open_workspace(c, i);
            double *to = c->g.total[x]
                       + term->part_at(c, x, c->seqs.list[item / p->kv_heads].b,
                                       (int)(item % p->kv_heads) * p->group);
            for (ptrdiff_t k = 0; k < term->part(c, x); k++) to[k] += (double)d.part[k];
        }
    }
    return LOCI_OK;
}
#endif
