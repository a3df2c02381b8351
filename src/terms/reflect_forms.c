/* SPDX-License-Identifier: MIT */
/* reflect_forms.c -- before the pass of path: keys carried to the ends of their tiles and blocks,
 * and the matrices of tiles and blocks; after a backward pass, the adjoint.
 *
 * The product of the reflections after key j of a tile is I - sum over l > j of z_l w_l^T with
 *
 *     z_l = beta_l (w_l - sum over m > l of (w_m.w_l) z_m)
 *     k'_j = k_j - sum over l > j of (k_j.w_l) z_l        M = I - sum over l of w_l z_l^T
 *
 * This recurrence loses digits where neighbours' w agree, so z is computed in double and rounded
 * once.  All else is float: M of a tile, products of M, and keys that are carried on. */
#include "terms/reflect.h"

#include "util/arena.h"

#if QT > 1
#include "simd/doubles.h"
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
    real *node[LEVELS + 1];                              /* [D][Dp]: M of the node that ends here */
    real *rows[2];                                       /* [KT][Dp] */
    double *dz, *dw, *dg, *dy, *zt, *de, *dkp, *dk, *dm; /* backward */
    double *across;                                      /* [D][Dp] */
    real *dnode[LEVELS + 1], *by;                        /* [D][Dp]: dM of nodes */
    real *carried;                                       /* [SPAN][KT][Dp]: dk(n) */
};
static size_t lay_out(const struct call *c, char *base, struct memory *m)
{
    const int D = c->plan->dim;
    const size_t Dp = (size_t)padded(D), rows = KT * Dp, square = (size_t)D * Dp;
    struct arena a = { .base = base };
    struct made *t = &m->tile;
    double **const by_rows[] = { &t->w, &t->z, &t->wt };
    double **const more[] = { &m->dz, &m->dw, &m->dy, &m->zt, &m->dkp, &m->dk };
    real **const real_rows[] = { &t->k, &t->kp, &t->rwt, &t->rz, &m->rows[0], &m->rows[1] };
    for (size_t i = 0; i < sizeof by_rows / sizeof *by_rows; i++)
        *by_rows[i] = carve_bytes(&a, rows, sizeof(double));
    for (size_t i = 0; i < sizeof real_rows / sizeof *real_rows; i++)
        *real_rows[i] = carve_bytes(&a, rows, sizeof(real));
    for (int i = 0; i <= LEVELS; i++) m->node[i] = carve_bytes(&a, square, sizeof(real));
    t->gram = carve_bytes(&a, KT * KT, sizeof(double));
    t->beta = carve_bytes(&a, KT, sizeof(double));
    t->e = carve_bytes(&a, KT * KT, sizeof(real));
    if (c->backward) {
        for (size_t i = 0; i < sizeof more / sizeof *more; i++)
            *more[i] = carve_bytes(&a, rows, sizeof(double));
        m->dm = carve_bytes(&a, square, sizeof(double));
        m->across = carve_bytes(&a, square, sizeof(double));
        m->dg = carve_bytes(&a, KT * KT, sizeof(double));
        m->de = carve_bytes(&a, KT * KT, sizeof(double));
        for (int i = 0; i <= LEVELS; i++) m->dnode[i] = carve_bytes(&a, square, sizeof(real));
        m->by = carve_bytes(&a, square, sizeof(real));
        m->carried = carve_bytes(&a, SPAN * rows, sizeof(real));
    }
    return a.full ? SIZE_MAX : a.used;
}
size_t WIDE(reflect_bytes)(const struct call *c)
{
    struct memory m;
    return lay_out(c, NULL, &m);
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
/* The matrices of FEW keys each that rows meet together, of n keys. */
static void store_few(const struct made *t, int n, bool apart, real *to)
{
    for (int first = 0; first < n; first += FEW) {
        double dots[FEW][FEW] = { { 0 } }, turns[FEW][FEW] = { { 0 } };
        real *few = to + first * BY;
        for (int i = 0; i < FEW; i++) {
            const int j = FEW - 1 - i;
            dots[j][j] = turns[i][i] = 1;
            for (int m = j + 1; m < FEW; m++) {
                const double by = t->gram[(first + j) * KT + first + m] * t->beta[first + m];
                for (int l = 0; l < FEW; l++) dots[j][l] -= by * dots[m][l];
            }
            for (int m = 0; m < i; m++) {
                const double by = t->gram[(first + m) * KT + first + i] * t->beta[first + m];
                for (int l = 0; l < FEW; l++) turns[i][l] -= by * turns[m][l];
            }
        }
        for (int j = 0; j < FEW && first + j < n; j++)
            for (int m = 0; m < FEW; m++) {
                const int old = j < m ? j : m, new = j < m ? m : j;
                const real kw = t->e[(first + j) * KT + first + m];
                few[j * BY + KEYS_BY + m] = apart || m > j ? kw : 0;
                few[j * BY + DOTS_BY + m] =
                    (real)(apart ? t->gram[(first + old) * KT + first + new] : dots[j][m]);
                few[j * BY + TURNS_BY + m] = (real)turns[j][m];
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
static void make_matrix(const struct made *t, int D, real *m)
{
    const int Dp = padded(D);
    zero_reals(m, (ptrdiff_t)D * Dp);
    for (int d = 0; d < D; d++) m[d * Dp + d] = -1;
    product(ADD, D, Dp, KT, t->rwt, KT, 1, t->rz, Dp, m, Dp, NULL);
    for (ptrdiff_t i = 0; i < (ptrdiff_t)D * Dp; i++) m[i] = t->bad >= 0 ? (real)NAN : -m[i];
}
static void store_rows_of(const real *from, int n, int D, real *to)
{
    for (int j = 0; j < n; j++)
        memcpy(to + (ptrdiff_t)j * D, from + (ptrdiff_t)j * padded(D), sizeof(real) * (size_t)D);
}
/* ---- A block --------------------------------------------------------------------------------- */

struct block {
    const struct call *c;
    const struct sequence *q;
    ptrdiff_t tile, all; /* its first tile; tiles of the sequence */
    int kvh;
    struct forms f;
    struct memory m;
};
static struct block open_block(const struct call *c, const struct sequence *q, ptrdiff_t tile,
                               int kvh, void *memory)
{
    struct block b = { .c = c, .q = q, .tile = tile, .all = tiles_in(q), .kvh = kvh };
    b.f = forms_of(c, q->b, kvh);
    lay_out(c, memory, &b.m);
    return b;
}
/* Does a row come from behind the tiles before `end` and pass nodes that end there? */
static bool passed(const struct block *b, ptrdiff_t end) { return end < b->all && !b->q->segments; }

/* Where rows read the keys of a tile of a node of this level, a left child or the block. */
static real *keys_of_node(const struct block *b, ptrdiff_t tile, int level)
{
    const struct call *c = b->c;
    if (level < LEVELS) return form_keys(&b->f, b->q, tile, level, c->plan->dim);
    return (real *)c->mem.rotated
         + ((b->q->b * c->plan->kv_heads + b->kvh) * c->Lk + b->q->k0 + tile * KT) * c->plan->dim;
}
/* m is M of the node of this level that ends with a tile. */
static void store_node(const struct block *b, ptrdiff_t tile, int level, real *m)
{
    const int D = b->c->plan->dim, Dp = padded(D);
    const ptrdiff_t first = tile + 1 - (1 << level);
    const bool left = level == LEVELS || !(tile >> level & 1);
    for (ptrdiff_t i = 0; i < (ptrdiff_t)D * Dp; i++) m[i] = abs_(m[i]) < (real)LEAST ? 0 : m[i];
    if (left) store_rows_of(m, D, D, left_matrix(&b->f, b->q, first, level, D));
    else if (b->f.right) store_rows_of(m, D, D, right_matrix(&b->f, b->q, first, D));
}
/* Where keys of a tile go that have been carried to the end of its node of this level: the rows
 * that read them first see a left child, as they stay what they are in a right one.  NULL: no row
 * reads them. */
static real *carried_keys(const struct block *b, ptrdiff_t tile, int level)
{
    while (level < LEVELS && tile >> level & 1) level++;
    const ptrdiff_t end = ((tile >> level) + 1) << level;
    return passed(b, end) ? keys_of_node(b, tile, level) : NULL;
}
/* A right child of this level ends with a tile, and its parent with it. */
static void join_nodes(const struct block *b, ptrdiff_t tile, int level)
{
    const int D = b->c->plan->dim, Dp = padded(D);
    const ptrdiff_t middle = tile + 1 - (1 << level), first = middle - (1 << level);
    const real *m = b->m.node[level];
    for (ptrdiff_t i = first; i < middle; i++) {
        const real *from = keys_of_node(b, i, level);
        real *to = carried_keys(b, i, level + 1), *rows = D == Dp ? to : b->m.rows[0];
        if (!to) continue;
        product(SET, KT, Dp, D, from, D, 1, m, Dp, rows, Dp, NULL);
        if (rows != to) store_rows_of(rows, KT, D, to);
    }
    product(SET, D, Dp, D, left_matrix(&b->f, b->q, first, level, D), D, 1, m, Dp,
            b->m.node[level + 1], Dp, NULL);
    store_node(b, tile, level + 1, b->m.node[level + 1]);
}
void WIDE(reflect_block)(const struct call *c, int x, const struct sequence *q, ptrdiff_t tile,
                         int kvh, void *memory)
{
    const int D = c->plan->dim;
    struct block b = open_block(c, q, tile, kvh, memory);
    struct made *t = &b.m.tile;
    const ptrdiff_t end = tile + SPAN < b.all ? tile + SPAN : b.all;
    for (ptrdiff_t i = tile; i < end; i++) {
        const int n = q->nk - i * KT < KT ? (int)(q->nk - i * KT) : KT;
        make_tile(c, x, q, i, kvh, t);
        store_few(t, n, q->segments, b.f.few + (q->k0 + i * KT) * BY);
        if (q->segments) store_rows_of(t->k, n, D, keys_of_node(&b, i, LEVELS));
        if (!passed(&b, i + 1)) continue;
        carry_keys(t, D);
        real *to = carried_keys(&b, i, 0);
        if (to) store_rows_of(t->kp, KT, D, to);
        make_matrix(t, D, b.m.node[0]);
        store_node(&b, i, 0, b.m.node[0]);
        for (int level = 0; level < LEVELS && i >> level & 1; level++) join_nodes(&b, i, level);
    }
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
        flip(m->dm, Dp, D, D, m->across, Dp);
        vd_product(-1, KT, Dp, D, t->z, Dp, 1, m->across, Dp, m->dw, Dp);
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

/* From the gradients of M of the node of this level that begins with a tile, and of its keys as they
 * are carried to its end, to those of its tiles.  Only rows and nodes behind it have made them. */
static void node_bwd(struct block *b, int x, ptrdiff_t tile, int level)
{
    const struct call *c = b->c;
    const int D = c->plan->dim, Dp = padded(D), below = level - 1;
    const ptrdiff_t size = (ptrdiff_t)KT * Dp, square = (ptrdiff_t)D * Dp;
    struct memory *m = &b->m;
    real *const carried = m->carried + (tile - b->tile) * size, *const dm = m->dnode[level];
    if (tile >= b->all) return;
    if (!level) {
        for (ptrdiff_t i = 0; i < square; i++) m->dm[i] = (double)dm[i];
        for (ptrdiff_t i = 0; i < size; i++) m->dkp[i] = (double)carried[i];
        tile_bwd(c, x, b->q, tile, b->kvh, m);
        return;
    }
    const ptrdiff_t half = 1 << below, middle = tile + half;
    const bool whole = passed(b, middle + half);
    real *const dleft = m->dnode[below], *const dright = m->by;
    const real *left = left_matrix(&b->f, b->q, tile, below, D);
    zero_reals(dleft, square);
    if (whole) {
        /* M = left right, k(n+1) = k(n) right */
        real *by = m->node[0];
        zero_reals(by, square);
        transpose(right_matrix(&b->f, b->q, middle, D), D, D, D, by, Dp);
        product(SET, D, Dp, D, dm, Dp, 1, by, Dp, dleft, Dp, NULL);
        product(SET, D, Dp, D, left, 1, D, dm, Dp, dright, Dp, NULL);
        for (ptrdiff_t i = 0; i < half; i++) {
            real *d = carried + i * size;
            product(ADD, D, Dp, KT, keys_of_node(b, tile + i, below), 1, D, d, Dp, dright, Dp,
                    NULL);
            product(SET, KT, Dp, D, d, Dp, 1, by, Dp, m->rows[0], Dp, NULL);
            memcpy(d, m->rows[0], sizeof(real) * (size_t)size);
        }
        memcpy(dm, dright, sizeof(real) * (size_t)square); /* dm has been read */
    }
    if (middle < b->all) {
        const struct sums_at at = sums_in(D);
        const double *sums = sums_of_tile(c, x, b->q, middle - 1, b->kvh) + at.node;
        for (ptrdiff_t i = 0; i < square; i++) dleft[i] += (real)sums[i];
        for (ptrdiff_t i = 0; i < half; i++) {
            const double *dk = sums_of_tile(c, x, b->q, tile + i, b->kvh) + below * size;
            for (ptrdiff_t k = 0; k < size; k++) carried[i * size + k] += (real)dk[k];
        }
    }
    node_bwd(b, x, tile, below);
    memcpy(m->dnode[below], dm, sizeof(real) * (size_t)square);
    node_bwd(b, x, middle, below);
}

void WIDE(reflect_block_bwd)(const struct call *c, int x, const struct sequence *q, ptrdiff_t tile,
                             int kvh, void *memory)
{
    const int D = c->plan->dim, Dp = padded(D);
    const ptrdiff_t size = (ptrdiff_t)KT * Dp, square = (ptrdiff_t)D * Dp;
    struct block b = open_block(c, q, tile, kvh, memory);
    real *const dm = b.m.dnode[LEVELS];
    zero_reals(dm, square);
    zero_reals(b.m.carried, SPAN * size);
    if (passed(&b, tile + SPAN)) {
        const double *sums = sums_of_tile(c, x, q, tile + SPAN - 1, kvh) + sums_in(D).node;
        for (ptrdiff_t i = 0; i < square; i++) dm[i] = (real)sums[i];
        for (int i = 0; i < SPAN; i++) {
            const real *dk = dk_at(c, q, tile + i, kvh);
            for (int j = 0; j < KT; j++)
                memcpy(b.m.carried + i * size + j * Dp, dk + j * c->g.dk.row,
                       sizeof(real) * (size_t)D);
        }
    }
    node_bwd(&b, x, tile, LEVELS);
}
#endif
