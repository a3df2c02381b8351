/* SPDX-License-Identifier: MIT */
/* reflect_forms.c -- before the pass of path: keys carried to the ends of their tiles and blocks,
 * and the matrices of tiles and blocks; after a backward pass, the adjoint.
 *
 * The product of the reflections after key j of a tile is I - sum over l > j of z_l w_l^T with
 *
 *     z_l = beta_l (w_l - sum over m > l of (w_m.w_l) z_m)
 *     k'_j = k_j - sum over l > j of (k_j.w_l) z_l        M = I - sum over l of w_l z_l^T
 *
 * This recurrence loses digits where neighbours' w agree, and errors of matrices add up from block
 * to block.  So z, M and products of M are computed in double and rounded once; M of a tile of wide
 * heads is made in float from z (WIDE_HEAD). */
#include "terms/reflect.h"

#include "util/arena.h"

#if QT > 1
#include "simd/doubles.h"
/* From this width on two products of 64 x D x D cost less than one of D x D x D and one for M. */
enum { WIDE_HEAD = 96 };

/* A tile in double.  Rows after the last key are 0. */
struct made {
    double *w, *z, *wt; /* [KT][Dp], [KT][Dp], [Dp][KT] */
    double *gram;       /* [KT][KT]: w_l.w_m */
    double *beta;       /* [KT] */
    real *k, *kp;       /* [KT][Dp]: k, k' */
    real *e;            /* [KT][KT]: k_j.w_l */
    real *rwt, *rz;     /* wt and z, rounded */
    int bad;            /* the newest key whose w or beta is not finite, or -1 */
};
struct memory {
    struct made tile;
    double *m, *p, *next;                                /* [D][Dp] */
    real *square[SPAN + 3], *rows;                       /* [D][Dp] each, [KT][Dp] */
    double *dz, *dw, *dg, *dy, *zt, *de, *dkp, *dk, *dm; /* backward */
};
static size_t lay_out(int D, char *base, struct memory *m)
{
    const size_t Dp = (size_t)padded(D), rows = KT * Dp, square = (size_t)D * Dp;
    struct arena a = { .base = base };
    struct made *t = &m->tile;
    double **const by_rows[] = { &t->w,  &t->z,  &t->wt,  &m->dz, &m->dw,
                                 &m->dy, &m->zt, &m->dkp, &m->dk };
    double **const squares[] = { &m->m, &m->p, &m->next, &m->dm };
    real **const real_rows[] = { &t->k, &t->kp, &t->rwt, &t->rz, &m->rows };
    for (size_t i = 0; i < sizeof by_rows / sizeof *by_rows; i++)
        *by_rows[i] = carve_bytes(&a, rows, sizeof(double));
    for (size_t i = 0; i < sizeof squares / sizeof *squares; i++)
        *squares[i] = carve_bytes(&a, square, sizeof(double));
    for (size_t i = 0; i < sizeof real_rows / sizeof *real_rows; i++)
        *real_rows[i] = carve_bytes(&a, rows, sizeof(real));
    for (int i = 0; i < SPAN + 3; i++) m->square[i] = carve_bytes(&a, square, sizeof(real));
    t->gram = carve_bytes(&a, KT * KT, sizeof(double));
    t->beta = carve_bytes(&a, KT, sizeof(double));
    t->e = carve_bytes(&a, KT * KT, sizeof(real));
    m->dg = carve_bytes(&a, KT * KT, sizeof(double));
    m->de = carve_bytes(&a, KT * KT, sizeof(double));
    return a.full ? SIZE_MAX : a.used;
}
size_t WIDE(reflect_bytes)(int D)
{
    struct memory m;
    return lay_out(D, NULL, &m);
}

static void zero(double *x, ptrdiff_t n) { memset(x, 0, sizeof *x * (size_t)n); }
static void zero_reals(real *x, ptrdiff_t n) { memset(x, 0, sizeof *x * (size_t)n); }
/* to[j][i] = from[i][j], an n x m matrix. */
static void flip(const double *from, ptrdiff_t stride, int n, int m, double *to,
                 ptrdiff_t to_stride)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) to[j * to_stride + i] = from[i * stride + j];
}

/* ---- One tile -------------------------------------------------------------------------------- */

/* w, z and k of n keys, k.w, and k'.  A w or beta that is not finite counts as 0 here: it reaches
 * only the older keys, which become NaN. */
static void make_tile(const struct call *c, int x, const struct sequence *q, ptrdiff_t tile,
                      int kvh, struct made *t)
{
    const int D = c->plan->dim, Dp = padded(D);
    const ptrdiff_t j0 = q->k0 + tile * KT;
    const int n = q->nk - tile * KT < KT ? (int)(q->nk - tile * KT) : KT;
    const real *w = w_of(c, x, q->b, kvh, j0), *beta = beta_of(c, x, q->b, kvh, j0);
    t->bad = -1;
    zero(t->w, (ptrdiff_t)KT * Dp);
    for (int l = 0; l < KT; l++) t->beta[l] = 0;
    for (int l = 0; l < n; l++) {
        if (!finite_rows(w + (ptrdiff_t)l * D, D, 1, D) || !(beta[l] * 0 == 0)) {
            t->bad = l;
            continue;
        }
        t->beta[l] = (double)beta[l];
        for (int d = 0; d < D; d++) t->w[l * Dp + d] = (double)w[(ptrdiff_t)l * D + d];
    }
    flip(t->w, Dp, KT, Dp, t->wt, KT);
    zero(t->gram, KT * KT);
    /* only pairs m >= l are read */
    for (int l = 0; l < KT; l += 16)
        vd_product(1, 16, KT - l, D, t->w + l * Dp, Dp, 1, t->wt + l, KT, t->gram + l * KT + l, KT);
    memcpy(t->z, t->w, sizeof(double) * (size_t)(KT * Dp));
    for (int l0 = KT - 4; l0 >= 0; l0 -= 4) {
        double *z = t->z + l0 * Dp;
        const double *g = t->gram + l0 * KT + l0;
        if (l0 + 4 < KT) vd_product(-1, 4, Dp, KT - 4 - l0, g + 4, KT, 1, z + 4 * Dp, Dp, z, Dp);
        for (int l = 3; l >= 0; l--) {
            for (int m = l + 1; m < 4; m++)
                for (int d = 0; d < Dp; d++) z[l * Dp + d] -= g[l * KT + m] * z[m * Dp + d];
            for (int d = 0; d < Dp; d++) z[l * Dp + d] *= t->beta[l0 + l];
        }
    }
    for (int i = 0; i < KT * Dp; i++) {
        t->rz[i] = fabs(t->z[i]) < LEAST ? 0 : (real)t->z[i];
        t->rwt[i] = (real)t->wt[i];
    }
    zero_reals(t->k, (ptrdiff_t)KT * Dp);
    ptrdiff_t stride;
    real buffer[MAX_DIM];
    for (int l = 0; l < n; l++)
        memcpy(t->k + l * Dp, find_rows(c, KEYS, q->b, kvh, j0 + l, 1, buffer, &stride),
               sizeof(real) * (size_t)D);
    product(SET, KT, KT, D, t->k, Dp, 1, t->rwt, KT, t->e, KT, NULL);
}
/* Products among the FEW keys that rows meet together. */
static void store_gram(const struct made *t, int n, real *to)
{
    for (int j = 0; j < n; j++, to += 2 * FEW) {
        const int first = j / FEW * FEW;
        for (int m = 0; m < FEW; m++) {
            to[m] = t->e[j * KT + first + m];
            to[FEW + m] = (real)t->gram[j < first + m ? j * KT + first + m : (first + m) * KT + j];
        }
    }
}
/* k' from k and k.w, which become what is multiplied by z: strips of 16 keys need no older one. */
static void carry_keys(struct made *t, int D)
{
    const int Dp = padded(D);
    for (int j = 0; j < KT; j++)
        for (int l = 0; l < KT; l++) t->e[j * KT + l] = l > j ? -t->e[j * KT + l] : 0;
    memcpy(t->kp, t->k, sizeof(real) * (size_t)(KT * Dp));
    for (int j = 0; j < KT; j += 16)
        product(ADD, 16, Dp, KT - j, t->e + j * KT + j, KT, 1, t->rz + j * Dp, Dp, t->kp + j * Dp,
                Dp, NULL);
    for (int j = 0; j < t->bad; j++)
        for (int d = 0; d < Dp; d++) t->kp[j * Dp + d] = NAN;
}
/* M = I - sum of w z^T. */
static void make_matrix(const struct made *t, int D, double *m)
{
    const int Dp = padded(D);
    zero(m, (ptrdiff_t)D * Dp);
    for (int d = 0; d < D; d++) m[d * Dp + d] = 1;
    vd_product(-1, D, Dp, KT, t->wt, KT, 1, t->z, Dp, m, Dp);
    for (ptrdiff_t i = 0; i < (ptrdiff_t)D * Dp && t->bad >= 0; i++) m[i] = NAN;
}
/* Wide heads: -M in floats, as P passes a tile by z and w. */
static void store_wide(const struct made *t, int D, real *scratch, real *to)
{
    const int Dp = padded(D);
    zero_reals(scratch, (ptrdiff_t)D * Dp);
    for (int d = 0; d < D; d++) scratch[d * Dp + d] = -1;
    product(ADD, D, Dp, KT, t->rwt, KT, 1, t->rz, Dp, scratch, Dp, NULL);
    for (int a = 0; a < D; a++)
        for (int b = 0; b < D; b++) {
            const real x = -scratch[a * Dp + b];
            to[a * D + b] = t->bad >= 0 ? (real)NAN : abs_(x) < (real)LEAST ? 0 : x;
        }
}
/* P <- M P = P - sum over l of w_l (z_l P). */
static void pass_wide(const struct made *t, int D, double *p, double *zp)
{
    const int Dp = padded(D);
    zero(zp, (ptrdiff_t)KT * Dp);
    vd_product(1, KT, Dp, D, t->z, Dp, 1, p, Dp, zp, Dp);
    vd_product(-1, D, Dp, KT, t->wt, KT, 1, zp, Dp, p, Dp);
    for (ptrdiff_t i = 0; i < (ptrdiff_t)D * Dp && t->bad >= 0; i++) p[i] = NAN;
}
static void store_rows_of(const real *from, int n, int D, real *to)
{
    for (int j = 0; j < n; j++)
        memcpy(to + (ptrdiff_t)j * D, from + (ptrdiff_t)j * padded(D), sizeof(real) * (size_t)D);
}
INLINE real rounded(double x) { return fabs(x) < LEAST ? 0 : (real)x; }
static void store_matrix(const double *m, int D, real *to)
{
    for (int a = 0; a < D; a++)
        for (int b = 0; b < D; b++) to[a * D + b] = rounded(m[a * padded(D) + b]);
}

/* ---- A block --------------------------------------------------------------------------------- */

void WIDE(reflect_block)(const struct call *c, int x, const struct sequence *q, ptrdiff_t tile,
                         int kvh, void *memory)
{
    const struct loci_plan *p = c->plan;
    const int D = p->dim, Dp = padded(D);
    const struct forms f = forms_of(c, q->b, kvh);
    struct memory m;
    lay_out(D, memory, &m);
    const ptrdiff_t all = tiles_in(q), end = tile + SPAN < all ? tile + SPAN : all;
    const bool whole = end < all && !q->segments; /* rows step over the block */
    /* P u is the row at the end of a tile, for the row u at the end of the block. */
    zero(m.p, (ptrdiff_t)D * Dp);
    for (int d = 0; d < D; d++) m.p[d * Dp + d] = 1;
    for (ptrdiff_t i = end - 1; i >= tile; i--) {
        const ptrdiff_t j0 = q->k0 + i * KT;
        const int n = q->nk - i * KT < KT ? (int)(q->nk - i * KT) : KT;
        real *staged = (real *)c->mem.rotated + ((q->b * p->kv_heads + kvh) * c->Lk + j0) * D;
        make_tile(c, x, q, i, kvh, &m.tile);
        store_gram(&m.tile, n, f.gram + j0 * 2 * FEW);
        if (q->segments) { /* rows meet keys one by one */
            store_rows_of(m.tile.k, n, D, staged);
            continue;
        }
        carry_keys(&m.tile, D);
        store_rows_of(m.tile.kp, n, D, f.keys + j0 * D);
        const real *last = m.tile.kp;
        if (whole && i < end - 1) {
            real *by = m.square[0];
            for (int a = 0; a < D; a++)
                for (int b = 0; b < Dp; b++) by[a * Dp + b] = rounded(m.p[a * Dp + b]);
            product(SET, KT, Dp, D, m.tile.kp, Dp, 1, by, Dp, m.rows, Dp, NULL);
            last = m.rows;
        }
        store_rows_of(last, n, D, staged);
        if (i == all - 1) continue; /* no row comes from behind it */
        real *matrix = f.tiles + (q->first_ktile + i) * D * D;
        if (D >= WIDE_HEAD) {
            store_wide(&m.tile, D, m.square[0], matrix);
            if (whole) pass_wide(&m.tile, D, m.p, m.dz);
            continue;
        }
        make_matrix(&m.tile, D, m.m);
        store_matrix(m.m, D, matrix);
        if (!whole) continue;
        if (i == end - 1) {
            memcpy(m.p, m.m, sizeof(double) * (size_t)(D * Dp));
            continue;
        }
        zero(m.next, (ptrdiff_t)D * Dp);
        vd_product(1, D, Dp, D, m.m, Dp, 1, m.p, Dp, m.next, Dp);
        double *next = m.next;
        m.next = m.p;
        m.p = next;
    }
    if (whole) store_matrix(m.p, D, f.blocks + block_number(q, tile) * D * D);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* The sums over rows for a tile. */
static const double *sums_of_tile(const struct call *c, int x, const struct sequence *q,
                                  ptrdiff_t tile, int kvh)
{
    return c->g.total[x]
         + ((q->first_ktile + tile) * c->plan->kv_heads + kvh) * sums_in(c->plan->dim).end;
}
/* The gradient of staged keys, [KT][Dp] reals. */
static real *dk_at(const struct call *c, const struct sequence *q, ptrdiff_t tile, int kvh)
{
    return (real *)c->g.dk.data + q->b * c->g.dk.batch + kvh * c->g.dk.head
         + (q->k0 + tile * KT) * c->g.dk.row;
}

/* dM, dk' and the sums of the rows' own tile -> dk, dw, dbeta. */
static void tile_bwd(const struct call *c, int x, const struct sequence *q, ptrdiff_t tile, int kvh,
                     struct memory *m)
{
    const struct loci_plan *p = c->plan;
    const int D = p->dim, Dp = padded(D);
    const struct sums_at at = sums_in(D);
    struct made *t = &m->tile;
    const double *sums = sums_of_tile(c, x, q, tile, kvh);
    const ptrdiff_t j0 = q->k0 + tile * KT, key = (q->b * p->kv_heads + kvh) * c->Lk + j0;
    const int n = q->nk - tile * KT < KT ? (int)(q->nk - tile * KT) : KT, rows = KT * Dp;
    const int first = p->first_tensor[p->use[x].enc];
    double *dw = c->g.dtensor[first + REFLECT_W], *dbeta = c->g.dtensor[first + REFLECT_BETA];
    memcpy(m->dk, sums + at.own_k, sizeof(double) * (size_t)rows);
    memcpy(m->dw, sums + at.own_w, sizeof(double) * (size_t)rows);
    double db[KT];
    memcpy(db, sums + at.own_beta, sizeof db);
    if (tile < tiles_in(q) - 1 && !q->segments) {
        make_tile(c, x, q, tile, kvh, t);
        /* e is -k_j.w_l of l > j, else 0 */
        for (int j = 0; j < KT; j++)
            for (int l = 0; l < KT; l++) m->de[j * KT + l] = l > j ? -(double)t->e[j * KT + l] : 0;
        flip(t->z, Dp, KT, Dp, m->zt, KT);
        /* M: dz_l = -dM^T w_l, dw_l = -dM z_l */
        zero(m->dz, rows);
        vd_product(-1, KT, Dp, D, t->w, Dp, 1, m->dm, Dp, m->dz, Dp);
        flip(m->dm, Dp, D, D, m->next, Dp);
        vd_product(-1, KT, Dp, D, t->z, Dp, 1, m->next, Dp, m->dw, Dp);
        /* k' = k + e z */
        vd_product(1, KT, Dp, KT, m->de, 1, KT, m->dkp, Dp, m->dz, Dp);
        for (int i = 0; i < rows; i++) m->dk[i] += m->dkp[i];
        zero(m->dg, KT * KT);
        vd_product(1, KT, KT, D, m->dkp, Dp, 1, m->zt, KT, m->dg, KT);
        for (int j = 0; j < KT; j++)
            for (int l = 0; l <= j; l++) m->dg[j * KT + l] = 0;
        vd_product(-1, KT, Dp, KT, m->dg, KT, 1, t->w, Dp, m->dk, Dp);
        for (int i = 0; i < rows; i++) m->dy[i] = (double)t->k[i];
        vd_product(-1, KT, Dp, KT, m->dg, 1, KT, m->dy, Dp, m->dw, Dp);
        /* z, oldest first: y_l = z_l / beta_l = w_l - sum over m > l of g_lm z_m, dy_l = beta dz */
        for (int l0 = 0; l0 < KT; l0 += 4) {
            for (int l = l0; l < l0 + 4; l++) {
                double *dz = m->dz + l * Dp, *dy = m->dy + l * Dp;
                for (int o = l0; o < l; o++)
                    for (int d = 0; d < Dp; d++) dz[d] -= t->gram[o * KT + l] * m->dy[o * Dp + d];
                for (int d = 0; d < Dp; d++) dy[d] = t->beta[l] * dz[d];
            }
            if (l0 + 4 < KT)
                vd_product(-1, KT - 4 - l0, Dp, 4, t->gram + l0 * KT + l0 + 4, 1, KT,
                           m->dy + l0 * Dp, Dp, m->dz + (l0 + 4) * Dp, Dp);
        }
        /* dbeta_l = dz_l . y_l, where y_l = w_l - sum of g z is computed again, as beta may be 0 */
        double *y = t->wt; /* not needed any more */
        memcpy(y, t->w, sizeof(double) * (size_t)rows);
        for (int l = 0; l < KT; l++)
            for (int o = 0; o <= l; o++) t->gram[l * KT + o] = 0;
        vd_product(-1, KT, Dp, KT, t->gram, KT, 1, t->z, Dp, y, Dp);
        for (int l = 0; l < KT; l++)
            for (int d = 0; d < D; d++) db[l] += m->dz[l * Dp + d] * y[l * Dp + d];
        /* dg_lm = -dy_l.z_m of m > l */
        zero(m->dg, KT * KT);
        vd_product(-1, KT, KT, D, m->dy, Dp, 1, m->zt, KT, m->dg, KT);
        for (int l = 0; l < KT; l++)
            for (int o = 0; o <= l; o++) m->dg[l * KT + o] = 0;
        for (int i = 0; i < rows; i++) m->dw[i] += m->dy[i];
        vd_product(1, KT, Dp, KT, m->dg, KT, 1, t->w, Dp, m->dw, Dp);
        vd_product(1, KT, Dp, KT, m->dg, 1, KT, t->w, Dp, m->dw, Dp);
        for (int l = 0; l <= t->bad; l++) {
            db[l] = NAN;
            for (int d = 0; d < D; d++) m->dw[l * Dp + d] = m->dk[l * Dp + d] = NAN;
        }
    }
    real *dk = dk_at(c, q, tile, kvh);
    for (int j = 0; j < n; j++) {
        for (int d = 0; d < D; d++) {
            if (dw) dw[(key + j) * D + d] = m->dw[j * Dp + d];
            dk[j * c->g.dk.row + d] = (real)m->dk[j * Dp + d];
        }
        if (dbeta) dbeta[key + j] = db[j];
    }
}

void WIDE(reflect_block_bwd)(const struct call *c, int x, const struct sequence *q, ptrdiff_t tile,
                             int kvh, void *memory)
{
    const int D = c->plan->dim, Dp = padded(D), square = D * Dp;
    const struct forms f = forms_of(c, q->b, kvh);
    const struct sums_at at = sums_in(D);
    struct memory m;
    lay_out(D, memory, &m);
    const ptrdiff_t all = tiles_in(q), end = tile + SPAN < all ? tile + SPAN : all;
    const bool whole = end < all && !q->segments;
    /* P of every tile, and dP from the oldest on: P before a tile is M P. */
    real *const *p = m.square, *dp = m.square[SPAN], *next = m.square[SPAN + 1],
                *flipped = m.square[SPAN + 2];
    if (whole) {
        real *last = p[SPAN - 1];
        zero_reals(last, square);
        for (int d = 0; d < D; d++) last[d * Dp + d] = 1;
        for (int i = SPAN - 1; i > 0; i--)
            product(SET, D, Dp, D, f.tiles + (q->first_ktile + tile + i) * D * D, D, 1, p[i], Dp,
                    p[i - 1], Dp, NULL);
        const double *sums = sums_of_tile(c, x, q, tile, kvh);
        for (int i = 0; i < square; i++) dp[i] = (real)sums[at.block + i];
    }
    for (ptrdiff_t i = tile; i < end; i++) {
        const double *sums = sums_of_tile(c, x, q, i, kvh);
        const int n = q->nk - i * KT < KT ? (int)(q->nk - i * KT) : KT;
        memcpy(m.dm, sums + at.tile, sizeof(double) * (size_t)square);
        memcpy(m.dkp, sums + at.keys, sizeof(double) * (size_t)(KT * Dp));
        if (whole) {
            const real *matrix = f.tiles + (q->first_ktile + i) * D * D,
                       *keys = f.keys + (q->k0 + i * KT) * D, *dk = dk_at(c, q, i, kvh);
            real *d = m.rows, *to = m.tile.kp;
            zero_reals(d, (ptrdiff_t)KT * Dp);
            for (int j = 0; j < n; j++)
                memcpy(d + j * Dp, dk + j * c->g.dk.row, sizeof(real) * (size_t)D);
            zero_reals(flipped, square);
            transpose(p[i - tile], Dp, D, D, flipped, Dp);
            product(SET, D, Dp, D, dp, Dp, 1, flipped, Dp, next, Dp, NULL);
            for (int k = 0; k < square; k++) m.dm[k] += (double)next[k];
            product(SET, KT, Dp, D, d, Dp, 1, flipped, Dp, to, Dp, NULL);
            for (int k = 0; k < KT * Dp; k++) m.dkp[k] += (double)to[k];
            product(SET, D, Dp, D, matrix, 1, D, dp, Dp, next, Dp, NULL);
            product(ADD, D, Dp, KT, keys, 1, D, d, Dp, next, Dp, NULL);
            real *swap = dp;
            dp = next;
            next = swap;
        }
        tile_bwd(c, x, q, i, kvh, &m);
    }
}
#endif
