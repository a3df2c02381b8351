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
/* A tile.  Rows after the last key are 0. */
struct made {
    double *w, *wt, *y, *z; /* [KT][Dp], [Dp][KT], [KT][Dp]; z = beta y */
    double *gram;           /* [KT][KT]: w_l.w_m of m >= l, and of a strip of FEW keys */
    double *dots, *turns;   /* [KT][FEW]: of each strip, see reflect.h */
    double *beta;           /* [KT] */
    const real *k, *rw;     /* [KT][Dp]: k and w, in place if their rows are not padded */
    real *kbuf, *wbuf, *kp; /* [KT][Dp]: k' */
    real *e;                /* [KT][KT]: k_j.w_l, likewise */
    real *rwt, *rz;         /* w across, and z rounded */
    int bad;                /* the newest key whose w or beta is not finite, or -1 */
};
struct memory {
    struct made tile;
    real *node[LEVELS + 1]; /* [D][Dp]: M of the node that ends here */
    real *rows;             /* [KT][Dp] */
    /* backward */
    double *dz, *dy, *part;       /* [KT][Dp] */
    real *rdy, *dw, *dk;          /* [KT][Dp] */
    real *zt, *across;            /* [Dp][KT], [D][Dp] */
    real *de;                     /* [KT][KT] */
    real *dnode[LEVELS + 1], *by; /* [D][Dp]: dM of nodes */
    real *carried;                /* [SPAN][KT][Dp]: dk(n) */
};
static size_t lay_out(const struct call *c, char *base, struct memory *m)
{
    const int D = c->plan->dim;
    const size_t Dp = (size_t)padded(D), rows = KT * Dp, square = (size_t)D * Dp;
    struct arena a = { .base = base };
    struct made *t = &m->tile;
    double **const doubles[] = { &t->w, &t->wt, &t->y, &t->z, &m->dz, &m->dy, &m->part };
    real **const reals[] = { &t->kbuf, &t->kp,  &t->wbuf, &t->rwt, &t->rz,
                             &m->rows, &m->rdy, &m->dw,   &m->dk,  &m->zt };
    for (int i = 0; i < (c->backward ? 7 : 4); i++)
        *doubles[i] = carve_bytes(&a, rows, sizeof(double));
    for (int i = 0; i < (c->backward ? 10 : 6); i++)
        *reals[i] = carve_bytes(&a, rows, sizeof(real));
    for (int i = 0; i <= LEVELS; i++) m->node[i] = carve_bytes(&a, square, sizeof(real));
    t->gram = carve_bytes(&a, KT * KT, sizeof(double));
    t->dots = carve_bytes(&a, KT * FEW, sizeof(double));
    t->beta = carve_bytes(&a, KT, sizeof(double));
    t->e = carve_bytes(&a, KT * KT, sizeof(real));
    if (c->backward) {
        t->turns = carve_bytes(&a, KT * FEW, sizeof(double));
        m->across = carve_bytes(&a, square, sizeof(real));
        m->de = carve_bytes(&a, KT * KT, sizeof(real));
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

static void zero_reals(real *x, ptrdiff_t n) { memset(x, 0, sizeof *x * (size_t)n); }
/* n rows padded to KT of Dp. */
static const real *copy_rows(const real *from, ptrdiff_t stride, int n, int D, real *to)
{
    const int Dp = padded(D);
    if (n < KT || D < Dp) zero_reals(to, (ptrdiff_t)KT * Dp);
    for (int l = 0; l < n; l++) memcpy(to + l * Dp, from + l * stride, sizeof(real) * (size_t)D);
    return to;
}
static void widen(const real *from, ptrdiff_t n, double *to)
{
    for (ptrdiff_t i = 0; i < n; i++) to[i] = (double)from[i];
}

/* ---- One tile -------------------------------------------------------------------------------- */

/* DOTS and TURNS of a strip, of which g are the products; turns NULL: not wanted. */
static void make_strip(const double *g, const double *beta, double *dots, double *turns)
{
    memset(dots, 0, sizeof(double) * FEW * FEW);
    for (int j = FEW - 1; j >= 0; j--) {
        double row[FEW] = { 0 };
        row[j] = 1;
        for (int m = j + 1; m < FEW; m++) {
            const double by = g[j * KT + m] * beta[m];
            for (int l = 0; l < FEW; l++) row[l] -= by * dots[m * FEW + l];
        }
        memcpy(dots + j * FEW, row, sizeof row);
    }
    if (!turns) return;
    memset(turns, 0, sizeof(double) * FEW * FEW);
    for (int j = 0; j < FEW; j++) {
        double row[FEW] = { 0 };
        row[j] = 1;
        for (int m = 0; m < j; m++) {
            const double by = g[m * KT + j] * beta[m];
            for (int l = 0; l < FEW; l++) row[l] -= by * turns[m * FEW + l];
        }
        memcpy(turns + j * FEW, row, sizeof row);
    }
}
/* w, y, z and k of n keys, and k.w.  A w or beta that is not finite counts as 0 here: it reaches
 * only the older keys, which become NaN.  Unless rows pass the tile, strips need only themselves,
 * and y and z are not made. */
static void make_tile(const struct call *c, int x, const struct sequence *q, ptrdiff_t tile,
                      int kvh, bool is_passed, struct made *t)
{
    const int D = c->plan->dim, Dp = padded(D);
    const ptrdiff_t j0 = q->k0 + tile * KT, rows = (ptrdiff_t)KT * Dp;
    const int n = q->nk - tile * KT < KT ? (int)(q->nk - tile * KT) : KT;
    const real *w = w_of(c, x, q->b, kvh, j0), *beta = beta_of(c, x, q->b, kvh, j0);
    const bool fine = finite_rows(w, D, n, D) && finite_rows(beta, 1, 1, n);
    ptrdiff_t stride;
    const real *k = find_rows(c, KEYS, q->b, kvh, j0, n, t->kp, &stride);
    t->bad = -1;
    t->rw = w;
    t->k = k;
    for (int l = 0; l < KT; l++) t->beta[l] = l < n ? (double)beta[l] : 0;
    if (!fine || n < KT || D < Dp) t->rw = copy_rows(w, D, n, D, t->wbuf);
    if (k == t->kp || stride != Dp || n < KT || D < Dp) t->k = copy_rows(k, stride, n, D, t->kbuf);
    for (int l = 0; l < n && !fine; l++) {
        if (finite_rows(w + (ptrdiff_t)l * D, D, 1, D) && beta[l] * 0 == 0) continue;
        t->bad = l;
        t->beta[l] = 0;
        zero_reals(t->wbuf + l * Dp, D);
    }
    transpose(t->rw, Dp, KT, Dp, t->rwt, KT);
    widen(t->rw, rows, t->w);
    widen(t->rwt, rows, t->wt);
    memset(t->gram, 0, sizeof(double) * KT * KT);
    for (int l = 0; l < KT; l += FEW)
        vd_product(1, FEW, is_passed ? KT - l : FEW, D, t->w + l * Dp, Dp, 1, t->wt + l, KT,
                   t->gram + l * KT + l, KT);
    /* strips, newest first: y = DOTS (w - the sum of g z over newer strips) */
    for (int l = KT - FEW; l >= 0; l -= FEW) {
        double *dots = t->dots + l * FEW, *rest = t->w + l * Dp, *y = t->y + l * Dp;
        make_strip(t->gram + l * KT + l, t->beta + l, dots,
                   c->backward ? t->turns + l * FEW : NULL);
        if (!is_passed) continue;
        if (l + FEW < KT)
            vd_product(-1, FEW, Dp, KT - FEW - l, t->gram + l * KT + l + FEW, KT, 1,
                       t->z + (l + FEW) * Dp, Dp, rest, Dp);
        memset(y, 0, sizeof(double) * (size_t)(FEW * Dp));
        vd_product(1, FEW, Dp, FEW, dots, FEW, 1, rest, Dp, y, Dp);
        for (int i = l; i < l + FEW; i++)
            for (int d = 0; d < Dp; d++) {
                const double z = t->beta[i] * t->y[i * Dp + d];
                t->z[i * Dp + d] = z;
                t->rz[i * Dp + d] = fabs(z) < LEAST ? 0 : (real)z;
            }
    }
    for (int j = 0; j < KT; j += FEW)
        product(SET, FEW, is_passed ? KT - j : FEW, D, t->k + j * Dp, Dp, 1, t->rwt + j, KT,
                t->e + j * KT + j, KT, NULL);
}
/* What rows read of n keys that they meet FEW at a time. */
static void store_few(const struct made *t, int n, bool apart, bool backward, real *to)
{
    for (int j = 0; j < n; j++, to += BY) {
        const ptrdiff_t strip = j * KT + j / FEW * FEW;
        const double *dots = apart ? t->gram + strip : t->dots + j * FEW;
        for (int m = 0; m < FEW; m++) to[KEYS_BY + m] = t->e[strip + m];
        for (int m = 0; m <= j % FEW && !apart; m++) to[KEYS_BY + m] = 0;
        for (int m = 0; m < FEW; m++) to[DOTS_BY + m] = (real)dots[m];
        for (int m = 0; m < FEW && backward; m++) to[TURNS_BY + m] = (real)t->turns[j * FEW + m];
    }
}
static void store_rows_of(const real *from, int n, int D, real *to)
{
    for (int j = 0; j < n; j++)
        memcpy(to + (ptrdiff_t)j * D, from + (ptrdiff_t)j * padded(D), sizeof(real) * (size_t)D);
}
/* k' from k and k.w, which become what is multiplied by z: strips of 16 keys need no older one. */
static void carry_keys(struct made *t, int D, real *to)
{
    const int Dp = padded(D);
    real *kp = D == Dp ? to : t->kp;
    for (int j = 0; j < KT; j++) {
        for (int l = j / FEW * FEW; l < KT; l++) t->e[j * KT + l] = -t->e[j * KT + l];
        for (int l = j / FEW * FEW; l <= j; l++) t->e[j * KT + l] = 0;
    }
    memcpy(kp, t->k, sizeof(real) * (size_t)(KT * Dp));
    for (int j = 0; j < KT; j += FEW)
        product(ADD, FEW, Dp, KT - j, t->e + j * KT + j, KT, 1, t->rz + j * Dp, Dp, kp + j * Dp, Dp,
                NULL);
    for (int j = 0; j < t->bad; j++)
        for (int d = 0; d < Dp; d++) kp[j * Dp + d] = NAN;
    if (kp != to) store_rows_of(kp, KT, D, to);
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
/* Does a row come from behind the tiles before `end` and pass nodes that end there?  If they begin
 * with the first tile, no key is older, and their M is never used. */
static bool passed(const struct block *b, ptrdiff_t end) { return end < b->all && !b->q->segments; }

/* Where rows read the keys of a tile of a node of this level, a left child or the block. */
static real *keys_of_node(const struct block *b, ptrdiff_t tile, int level)
{
    const struct call *c = b->c;
    if (level < LEVELS) return form_keys(c, &b->f, b->q, tile, level);
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
    if (left) store_rows_of(m, D, D, left_matrix(b->c, &b->f, b->q, first, level));
    else if (b->f.right) store_rows_of(m, D, D, right_matrix(b->c, &b->f, b->q, first));
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
        real *to = carried_keys(b, i, level + 1), *rows = D == Dp ? to : b->m.rows;
        if (!to) continue;
        product(SET, KT, Dp, D, from, D, 1, m, Dp, rows, Dp, NULL);
        if (rows != to) store_rows_of(rows, KT, D, to);
    }
    if (!first) return;
    product(SET, D, Dp, D, left_matrix(b->c, &b->f, b->q, first, level), D, 1, m, Dp,
            b->m.node[level + 1], Dp, NULL);
    store_node(b, tile, level + 1, b->m.node[level + 1]);
}
void WIDE(reflect_block)(const struct call *c, int x, const struct sequence *q, ptrdiff_t tile,
                         int kvh, void *memory)
{
    const int D = c->plan->dim;
    struct block b = open_block(c, q, tile, kvh, memory);
    struct made *t = &b.m.tile;
    const ptrdiff_t block_end = (tile / SPAN + 1) * SPAN,
                    end = block_end < b.all ? block_end : b.all;
    for (ptrdiff_t i = tile; i < end; i++) {
        const int n = q->nk - i * KT < KT ? (int)(q->nk - i * KT) : KT;
        make_tile(c, x, q, i, kvh, passed(&b, i + 1), t);
        store_few(t, n, q->segments, c->backward, b.f.few + (q->k0 + i * KT) * BY);
        if (q->segments) store_rows_of(t->k, n, D, keys_of_node(&b, i, LEVELS));
        if (!passed(&b, i + 1)) continue;
        real *to = carried_keys(&b, i, 0);
        if (to) carry_keys(t, D, to);
        if (i) {
            make_matrix(t, D, b.m.node[0]);
            store_node(&b, i, 0, b.m.node[0]);
        }
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

/* out_j += sum over l of a_jl x_l, where a is 0 but for l > j. */
static void add_newer(const real *a, const real *x, int Dp, real *out)
{
    for (int j = 0; j < KT; j += FEW)
        product(ADD, FEW, Dp, KT - j, a + j * KT + j, KT, 1, x + j * Dp, Dp, out + j * Dp, Dp,
                NULL);
}
/* out_l += sum over j of a_jl x_j, likewise. */
static void add_older(const real *a, const real *x, int Dp, real *out)
{
    for (int l = 0; l < KT; l += FEW)
        product(ADD, FEW, Dp, l + FEW, a + l, 1, KT, x, Dp, out + l * Dp, Dp, NULL);
}
/* a_jl = x_j.y_l for l > j, else 0; y is across. */
static void newer_dots(const real *x, const real *y, int D, real *a)
{
    const int Dp = padded(D);
    for (int j = 0; j < KT; j += FEW)
        product(SET, FEW, KT - j, D, x + j * Dp, Dp, 1, y + j, KT, a + j * KT + j, KT, NULL);
    for (int j = 0; j < KT; j++)
        for (int l = 0; l <= j; l++) a[j * KT + l] = 0;
}

/* From dM and dk' of a tile, and what rows have summed in it: dk, dw and dbeta.
 *
 *     M            dz_l = -dM^T w_l                         dw_l = -dM z_l
 *     k' = k - e z dk = dk', de = -dk' z^T                  dz -= e^T dk'
 *     e = k w^T    dk += de w                               dw += de^T k
 *     z            dz_l -= sum over o < l of g_ol dy_o, dy = beta dz, oldest first;
 *                  dbeta = dz.y, dw += dy
 *     g            dg_lm = -dy_l.z_m of m > l               dw += (dg + dg^T) w */
static void tile_bwd(const struct call *c, int x, const struct sequence *q, ptrdiff_t tile, int kvh,
                     struct memory *m, const real *dm, const real *dkp)
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
    double db[KT];
    memcpy(db, sums + at.own_beta, sizeof db);
    zero_reals(m->dk, rows);
    zero_reals(m->dw, rows);
    if (tile < tiles_in(q) - 1 && !q->segments) {
        make_tile(c, x, q, tile, kvh, true, t);
        real *dz = m->rows, *dg = m->de;
        zero_reals(m->zt, rows);
        transpose(t->rz, Dp, KT, Dp, m->zt, KT);
        zero_reals(m->across, (ptrdiff_t)D * Dp);
        transpose(dm, Dp, D, D, m->across, Dp);
        for (int j = 0; j < KT; j++)
            for (int l = 0; l <= j; l++) t->e[j * KT + l] = 0;
        /* of dz, dw and dk the negatives */
        zero_reals(dz, rows);
        if (tile) {
            product(SET, KT, Dp, D, t->rw, Dp, 1, dm, Dp, dz, Dp, NULL);
            product(SET, KT, Dp, D, t->rz, Dp, 1, m->across, Dp, m->dw, Dp, NULL);
        }
        add_older(t->e, dkp, Dp, dz);
        newer_dots(dkp, m->zt, D, dg);
        add_newer(dg, t->rw, Dp, m->dk);
        add_older(dg, t->k, Dp, m->dw);
        for (int l = 0; l < KT; l += FEW) {
            double *part = m->part + l * Dp, *to = m->dz + l * Dp;
            for (int i = 0; i < FEW * Dp; i++) part[i] = -(double)dz[l * Dp + i];
            if (l) vd_product(-1, FEW, Dp, l, t->gram + l, 1, KT, m->dy, Dp, part, Dp);
            memset(to, 0, sizeof(double) * (size_t)(FEW * Dp));
            vd_product(1, FEW, Dp, FEW, t->turns + l * FEW, FEW, 1, part, Dp, to, Dp);
            for (int i = l; i < l + FEW; i++)
                for (int d = 0; d < Dp; d++) {
                    const double dy = t->beta[i] * m->dz[i * Dp + d];
                    m->dy[i * Dp + d] = dy;
                    m->rdy[i * Dp + d] = (real)dy;
                }
        }
        for (int l = 0; l < KT; l++)
            for (int d = 0; d < D; d++) db[l] += m->dz[l * Dp + d] * t->y[l * Dp + d];
        newer_dots(m->rdy, m->zt, D, dg);
        add_newer(dg, t->rw, Dp, m->dw);
        add_older(dg, t->rw, Dp, m->dw);
        for (int i = 0; i < rows; i++) {
            m->dk[i] = dkp[i] - m->dk[i];
            m->dw[i] = m->rdy[i] - m->dw[i];
        }
        for (int l = 0; l <= t->bad; l++) {
            db[l] = NAN;
            for (int d = 0; d < D; d++) m->dw[l * Dp + d] = m->dk[l * Dp + d] = NAN;
        }
    }
    real *dk = dk_at(c, q, tile, kvh);
    for (int j = 0; j < n; j++) {
        const double *own_k = sums + at.own_k + j * Dp, *own_w = sums + at.own_w + j * Dp;
        for (int d = 0; d < D && dw; d++)
            dw[(key + j) * D + d] = own_w[d] + (double)m->dw[j * Dp + d];
        for (int d = 0; d < D; d++)
            dk[j * c->g.dk.row + d] = (real)(own_k[d] + (double)m->dk[j * Dp + d]);
        if (dbeta) dbeta[key + j] = db[j];
    }
}

/* From the gradients of M of the node of this level that begins with a tile, and of its keys as
 * they are carried to its end, to those of its tiles.  Only rows and nodes behind it have made
 * them. */
static void node_bwd(struct block *b, int x, ptrdiff_t tile, int level)
{
    const struct call *c = b->c;
    const int D = c->plan->dim, Dp = padded(D), below = level - 1;
    const ptrdiff_t size = (ptrdiff_t)KT * Dp, square = (ptrdiff_t)D * Dp;
    struct memory *m = &b->m;
    real *const carried = m->carried + (tile - b->tile) * size, *const dm = m->dnode[level];
    if (tile >= b->all) return;
    if (!level) {
        tile_bwd(c, x, b->q, tile, b->kvh, m, dm, carried);
        return;
    }
    const ptrdiff_t half = 1 << below, middle = tile + half;
    const bool whole = passed(b, middle + half);
    real *const dleft = m->dnode[below], *const dright = m->by;
    zero_reals(dleft, square);
    if (whole) {
        /* M = left right, k(n+1) = k(n) right */
        real *by = m->node[0];
        zero_reals(by, square);
        transpose(right_matrix(c, &b->f, b->q, middle), D, D, D, by, Dp);
        zero_reals(dright, square);
        if (tile) {
            product(SET, D, Dp, D, dm, Dp, 1, by, Dp, dleft, Dp, NULL);
            product(SET, D, Dp, D, left_matrix(c, &b->f, b->q, tile, below), 1, D, dm, Dp, dright,
                    Dp, NULL);
        }
        for (ptrdiff_t i = 0; i < half; i++) {
            real *d = carried + i * size;
            product(ADD, D, Dp, KT, keys_of_node(b, tile + i, below), 1, D, d, Dp, dright, Dp,
                    NULL);
            product(SET, KT, Dp, D, d, Dp, 1, by, Dp, m->rows, Dp, NULL);
            memcpy(d, m->rows, sizeof(real) * (size_t)size);
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
