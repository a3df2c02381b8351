/* SPDX-License-Identifier: MIT */
/* mix.c -- a network of one hidden layer mixes the scores of all heads, pair by pair (cape).
 *
 *     t = b1 + W1b b + W1a a      g = t > 0 ? t : leak t      y = (a + add b) + (b2 + W2 g)
 *
 * a is the H scores of a pair before the ADD terms, b the sum of those terms; without ADD terms
 * there is no b.  Each of the two products is one chain per number that starts at the bias and
 * runs over the heads of b, then those of a, or over the units.  Lanes run over a line of 64
 * pairs: the queries of one key, or with QT = 1 the keys of one query.
 *
 * If b depends on the distance alone, so does b1 + W1b b: it is computed once for the
 * 127 distances of a tile, and the chains continue from there, to the same bits.
 * Backward, the gradient of b is then summed by distance first, and each sum is stored
 * on one pair of that distance. */
#include "engine/visible.h"
#include "layout/mix.h"

enum { LINE = 64, SPAN = 128 }; /* pairs of a line; distances of a tile, padded */
_Static_assert(MIX_LINE % PAD == 0, "units are worked on in whole rows of PAD");

/* The network of layout/mix.h, with its table. */
struct net {
    int H, in, G, Gp, own; /* own: inputs before the first of a */
    real leak, add;
    const real *b1, *b2, *w1, *w2;
};
static struct mix form_of(const struct call *c, int x)
{
    return mix_of(&c->plan->enc[c->plan->use[x].enc]);
}
static struct net net_of(const struct call *c, int x)
{
    const struct mix m = form_of(c, x);
    const real *table = c->table[c->plan->use[x].enc];
    struct net n = { .H = m.H,
                     .in = m.in,
                     .G = m.G,
                     .Gp = m.Gp,
                     .own = m.in - m.H,
                     .leak = (real)m.leak,
                     .add = (real)m.add };
    if (table) /* without a table only sizes are needed */
    {
        n.b1 = table;
        n.b2 = table + mix_b2(&m);
        n.w1 = table + mix_w1(&m, 0);
        n.w2 = table + mix_w2(&m, 0);
    }
    return n;
}

/* Scratch of a work item, in the first tile's mem. */
struct net_scratch {
    const real **in, **unit; /* lines of the inputs, of the units */
    real **out;
    real *units; /* [Gp][LINE] */
#if QT > 1
    const real **near, **span; /* lines of b by distance, and of `flat` */
    const real **dy;
    /* [H][SPAN]: by distance, that of (key k, row r) is keys - 1 - k + r */
    real *b, *db;
    real *flat; /* [Gp][SPAN]: b1 + W1b b */
    /* [SPAN][Gp]: the same with the units in the lanes, and its gradient */
    real *flat_rows, *dflat_rows;
    real *g, *dt; /* [LINE][Gp]: g is t at first */
    real *dw;     /* [H + in][Gp]: gradients of W2 and W1 */
    real *sum;    /* [H][LINE]: of dy over the keys */
#endif
};
static size_t lay_out(const struct net *n, char *base, struct net_scratch *w)
{
    struct arena a = { .base = base };
    const size_t H = (size_t)n->H, G = (size_t)n->Gp, in = (size_t)n->in, one = sizeof(real);
    w->in = carve_bytes(&a, in, sizeof *w->in);
    w->unit = carve_bytes(&a, G, sizeof *w->unit);
    w->out = carve_bytes(&a, H, sizeof *w->out);
    w->units = carve_bytes(&a, G * LINE, one);
#if QT > 1
    w->near = carve_bytes(&a, H, sizeof *w->near);
    w->span = carve_bytes(&a, G, sizeof *w->span);
    w->dy = carve_bytes(&a, H, sizeof *w->dy);
    w->b = carve_bytes(&a, H * SPAN, one);
    w->db = carve_bytes(&a, H * SPAN, one);
    w->flat = carve_bytes(&a, G * SPAN, one);
    w->flat_rows = carve_bytes(&a, G * SPAN, one);
    w->dflat_rows = carve_bytes(&a, G * SPAN, one);
    w->g = carve_bytes(&a, G * LINE, one);
    w->dt = carve_bytes(&a, G * LINE, one);
    w->dw = carve_bytes(&a, (H + in) * G, one);
    w->sum = carve_bytes(&a, H * LINE, one);
#endif
    return a.used;
}
static ptrdiff_t mem(const struct call *c, int x)
{
    struct net n = net_of(c, x);
    struct net_scratch w;
    return (ptrdiff_t)((lay_out(&n, NULL, &w) + QT * sizeof(real) - 1) / (QT * sizeof(real)));
}
static struct net_scratch net_scratch_of(const struct tile *t, int x, const struct net *n)
{
    struct net_scratch w;
    lay_out(n, (char *)t->own[x].mem, &w);
    for (int g = 0; g < n->Gp; g++) w.unit[g] = w.units + (ptrdiff_t)g * LINE;
#if QT > 1
    for (int h = 0; h < n->H; h++) w.near[h] = w.b + (ptrdiff_t)h * SPAN;
    for (int g = 0; g < n->Gp; g++) w.span[g] = w.flat + (ptrdiff_t)g * SPAN;
#endif
    return w;
}

/* ---- Products with the pairs in the lanes ---------------------------------------------------- */

/* units or heads processed together; units are padded to a multiple */
enum { FEW = 4 };

/* Continues acc[m][..] with the sum over k of w[m * wm + k * wk] row[k][at ..]. */
INLINE void go_on(const int mb, int K, const real *w, ptrdiff_t wm, ptrdiff_t wk,
                  const real *const *row, ptrdiff_t at, vf acc[FEW][NR])
{
    for (int k = 0; k < K; k++) {
        vf x[NR];
        UNROLL_FOR(int n = 0; n < NR; n++) x[n] = vf_load(row[k] + at + n * VL);
        UNROLL_FOR(int m = 0; m < mb; m++) {
            const vf y = vf_set1(w[m * wm + k * wk]);
            UNROLL_FOR(int n = 0; n < NR; n++) acc[m][n] = vf_fma(y, x[n], acc[m][n]);
        }
    }
}

/* A line of all units, to[g][..]: chains over the inputs first .. end - 1 that start at b1, or
 * at u[g][..] if given.  bend: these are the last inputs, so the units are bent below 0. */
INLINE void units(const struct net *n, int first, int end, const real *const *row, ptrdiff_t at,
                  const real *u, const bool bend, real *to, ptrdiff_t ts)
{
    for (int m = 0; m < n->G; m += FEW)
        for (int v = 0; v < LINE; v += NR * VL) {
            vf acc[FEW][NR];
            UNROLL_FOR(int i = 0; i < FEW; i++)
                UNROLL_FOR(int j = 0; j < NR; j++)
                    acc[i][j] =
                        u ? vf_load(u + (m + i) * SPAN + v + j * VL) : vf_set1(n->b1[m + i]);
            go_on(FEW, end - first, n->w1 + (ptrdiff_t)first * n->Gp + m, 1, n->Gp, row + first,
                  at + v, acc);
            UNROLL_FOR(int i = 0; i < FEW; i++)
                UNROLL_FOR(int j = 0; j < NR; j++) {
                    vf y = acc[i][j];
                    if (bend) {
                        const vf up = vf_max(y, vf_set1(0));
                        y = vf_fma(vf_set1(n->leak), vf_sub(y, up), up);
                    }
                    vf_store(to + (m + i) * ts + v + j * VL, y);
                }
        }
}

/* y of mb heads from the line of units. */
INLINE void heads_block(const int mb, const struct net *n, const struct net_scratch *w, int h,
                        ptrdiff_t at)
{
    for (int v = 0; v < LINE; v += NR * VL) {
        vf acc[FEW][NR];
        UNROLL_FOR(int i = 0; i < mb; i++)
            UNROLL_FOR(int j = 0; j < NR; j++) acc[i][j] = vf_set1(n->b2[h + i]);
        go_on(mb, n->G, n->w2 + (ptrdiff_t)h * n->Gp, n->Gp, 1, w->unit, v, acc);
        UNROLL_FOR(int i = 0; i < mb; i++)
            UNROLL_FOR(int j = 0; j < NR; j++) {
                const ptrdiff_t l = at + v + j * VL;
                vf y = vf_load(w->in[n->own + h + i] + l);
                if (n->own) y = vf_fma(vf_set1(n->add), vf_load(w->in[h + i] + l), y);
                vf_store(w->out[h + i] + l, vf_add(y, acc[i][j]));
            }
    }
}
static void heads(const struct net *n, const struct net_scratch *w, ptrdiff_t at)
{
    int h = 0;
    for (; h + FEW <= n->H; h += FEW) heads_block(FEW, n, w, h, at);
    for (; h < n->H; h++) heads_block(1, n, w, h, at);
}

#if QT > 1
/* True if the additions depend on the distance alone. */
static bool by_distance(const struct tile *t, const struct net *n)
{
    const struct loci_plan *p = t->c->plan;
    if (!n->own || t->listed) return false;
    for (int x = 0; x < p->uses; x++)
        if (p->use[x].group == GROUP_ADD && p->use[x].term != TERM_affine
            && p->use[x].term != TERM_distance)
            return false;
    return true;
}
/* b of the tile's distances: those of row 0, which is live, then those of key 0. */
static void gather(const struct tile *t, const struct net *n, const struct net_scratch *w)
{
    for (int h = 0; h < n->H; h++) {
        real *b = w->b + (ptrdiff_t)h * SPAN;
        for (int k = 1; k < t->keys; k++) b[t->keys - 1 - k] = w->in[h][k * QT];
        memcpy(b + t->keys - 1, w->in[h], sizeof(real) * QT);
    }
}
#endif

static void mix_scores(struct tile *t, int x)
{
    const struct net n = net_of(t->c, x);
    struct net_scratch w = net_scratch_of(t, x, &n);
    for (int h = 0; h < n.H; h++) {
        if (n.own) w.in[h] = t[h].s;
        w.in[n.own + h] = t[h].a;
        w.out[h] = t[h].da ? t[h].da : t[h].s;
    }
#if QT == 1
    units(&n, 0, n.in, w.in, 0, NULL, true, w.units, LINE);
    heads(&n, &w, 0);
#else
    const bool flat = by_distance(t, &n);
    if (flat) {
        gather(t, &n, &w);
        for (int v = 0; v < SPAN; v += LINE)
            units(&n, 0, n.own, w.near, v, NULL, false, w.flat + v, SPAN);
    }
    for (int k = 0; k < t->keys; k++) {
        if (flat)
            units(&n, n.own, n.in, w.in, k * QT, w.flat + t->keys - 1 - k, true, w.units, LINE);
        else units(&n, 0, n.in, w.in, k * QT, NULL, true, w.units, LINE);
        heads(&n, &w, k * QT);
    }
#endif
    for (int h = 0; h < n.H; h++) {
        /* the backward pass needs b: it is stored where its gradient will be */
        if (t[h].da) {
            real *b = t[h].s;
            t[h].s = t[h].da;
            t[h].da = b;
        }
        mask(&t[h], t[h].s, -INFINITY);
    }
}

#if QT > 1
/* ---- Gradients ------------------------------------------------------------------------------- */

/* Products with the units in the lanes, PAD units at a time. */
enum { WIDE = PAD / VL, TALL = VL >= 16 ? 8 : VL >= 4 ? 4 : 1 };

/* to[l][..] = start[l][..] + sum over k of row[k][at + l] w[k][..], for `lines` pairs; step is from
 * one start to the next. */
INLINE void rows(const struct net *n, int lines, int K, const real *const *row, ptrdiff_t at,
                 const real *w, const real *start, ptrdiff_t step, real *to)
{
    for (int l = 0; l < lines; l += TALL)
        for (int v = 0; v < n->Gp; v += PAD) {
            vf acc[TALL][WIDE];
            UNROLL_FOR(int i = 0; i < TALL; i++)
                UNROLL_FOR(int j = 0; j < WIDE; j++)
                    acc[i][j] = start ? vf_load(start + (l + i) * step + v + j * VL) : vf_set1(0);
            for (int k = 0; k < K; k++) {
                vf y[WIDE];
                UNROLL_FOR(int j = 0; j < WIDE; j++)
                    y[j] = vf_load(w + (ptrdiff_t)k * n->Gp + v + j * VL);
                UNROLL_FOR(int i = 0; i < TALL; i++) {
                    const vf z = vf_set1(row[k][at + l + i]);
                    UNROLL_FOR(int j = 0; j < WIDE; j++) acc[i][j] = vf_fma(z, y[j], acc[i][j]);
                }
            }
            UNROLL_FOR(int i = 0; i < TALL; i++)
                UNROLL_FOR(int j = 0; j < WIDE; j++)
                    vf_store(to + (ptrdiff_t)(l + i) * n->Gp + v + j * VL, acc[i][j]);
        }
}

/* c[m][..] += sum over the pairs l of row[m][at + l] y[l][..]. */
INLINE void outer_block(const int mb, const struct net *n, int lines, const real *const *row,
                        ptrdiff_t at, const real *y, real *c)
{
    for (int v = 0; v < n->Gp; v += PAD) {
        vf acc[TALL][WIDE];
        UNROLL_FOR(int i = 0; i < mb; i++)
            UNROLL_FOR(int j = 0; j < WIDE; j++) acc[i][j] = vf_set1(0);
        for (int l = 0; l < lines; l++) {
            vf z[WIDE];
            UNROLL_FOR(int j = 0; j < WIDE; j++)
                z[j] = vf_load(y + (ptrdiff_t)l * n->Gp + v + j * VL);
            UNROLL_FOR(int i = 0; i < mb; i++) {
                const vf s = vf_set1(row[i][at + l]);
                UNROLL_FOR(int j = 0; j < WIDE; j++) acc[i][j] = vf_fma(s, z[j], acc[i][j]);
            }
        }
        UNROLL_FOR(int i = 0; i < mb; i++)
            UNROLL_FOR(int j = 0; j < WIDE; j++) {
                real *to = c + (ptrdiff_t)i * n->Gp + v + j * VL;
                vf_store(to, vf_add(vf_load(to), acc[i][j]));
            }
    }
}
static void outer_sums(const struct net *n, int M, int lines, const real *const *row, ptrdiff_t at,
                       const real *y, real *c)
{
    int m = 0;
    for (; m + TALL <= M; m += TALL)
        outer_block(TALL, n, lines, row + m, at, y, c + (ptrdiff_t)m * n->Gp);
#if VL >= 16
    for (; m + 4 <= M; m += 4) outer_block(4, n, lines, row + m, at, y, c + (ptrdiff_t)m * n->Gp);
#endif
    for (; m < M; m++) outer_block(1, n, lines, row + m, at, y, c + (ptrdiff_t)m * n->Gp);
}

/* A line of the gradient of mb inputs, those that w1 begins with: to[h][to_at ..] = add
 * from[h][to_at ..] + W1^T unit. */
INLINE void inputs_block(const int mb, const struct net *n, const real *w1, const real *const *unit,
                         ptrdiff_t at, real add, const real *const *from, real *const *to,
                         ptrdiff_t to_at)
{
    for (int v = 0; v < LINE; v += NR * VL) {
        vf acc[FEW][NR];
        UNROLL_FOR(int i = 0; i < mb; i++)
            UNROLL_FOR(int j = 0; j < NR; j++) acc[i][j] = vf_set1(0);
        go_on(mb, n->G, w1, n->Gp, 1, unit, at + v, acc);
        UNROLL_FOR(int i = 0; i < mb; i++)
            UNROLL_FOR(int j = 0; j < NR; j++) {
                vf y = acc[i][j];
                if (from) y = vf_fma(vf_set1(add), vf_load(from[i] + to_at + v + j * VL), y);
                vf_store(to[i] + to_at + v + j * VL, y);
            }
    }
}
static void inputs(const struct net *n, int first, const real *const *unit, ptrdiff_t at, real add,
                   const real *const *from, real *const *to, ptrdiff_t to_at)
{
    for (int h = 0; h < n->H;) {
        const real *w1 = n->w1 + (ptrdiff_t)(first + h) * n->Gp, *const *start =
                                                                     from ? from + h : NULL;
        if (h + FEW <= n->H) {
            inputs_block(FEW, n, w1, unit, at, add, start, to + h, to_at);
            h += FEW;
        } else {
            inputs_block(1, n, w1, unit, at, add, start, to + h, to_at);
            h++;
        }
    }
}

/* The line of key k: recomputes t and g, then dt, then the gradients of parameters and inputs. */
static void line_gradient(const struct tile *t, const struct net *n, const struct net_scratch *w,
                          int k, bool flat, bool learns)
{
    const ptrdiff_t at = k * QT;
    const int first = flat ? n->own : 0;
    const int place = flat ? t->keys - 1 - k : 0;
    rows(n, LINE, n->in - first, w->in + first, at, n->w1 + (ptrdiff_t)first * n->Gp,
         flat ? w->flat_rows + (ptrdiff_t)place * n->Gp : n->b1, flat ? n->Gp : 0, w->g);
    rows(n, LINE, n->H, w->dy, at, n->w2, NULL, 0, w->dt);
    const real leak = n->leak;
    real *restrict g = w->g, *restrict dt = w->dt,
                   *restrict dflat = w->dflat_rows + (ptrdiff_t)place * n->Gp;
    for (int i = 0; i < LINE * n->Gp; i++) {
        const real slope = g[i] > 0 ? 1 : leak;
        g[i] *= slope;
        dt[i] *= slope;
        dflat[i] += dt[i];
    }
    transpose(w->dt, n->Gp, LINE, n->Gp, w->units, LINE);
    if (learns) {
        outer_sums(n, n->H, LINE, w->dy, at, w->g, w->dw);
        outer_sums(n, n->in - first, LINE, w->in + first, at, w->dt,
                   w->dw + (ptrdiff_t)(n->H + first) * n->Gp);
        for (int h = 0; h < n->H; h++)
            for (int l = 0; l < LINE; l++) w->sum[h * LINE + l] += w->dy[h][at + l];
    }
    /* overwrites b, which is not needed any more */
    inputs(n, n->own, w->unit, 0, 1, w->dy, w->out, at);
    if (!n->own) return;
    if (!flat) inputs(n, 0, w->unit, 0, n->add, w->dy, (real *const *)w->dy, at);
    else if (n->add == 0)
        for (int h = 0; h < n->H; h++) memset((real *)w->dy[h] + at, 0, sizeof(real) * LINE);
}

/* Gradients summed by distance: of W1b, and of b on the pairs of row 0 and of key 0. */
static void distance_gradient(struct tile *t, const struct net *n, struct net_scratch *w,
                              bool learns)
{
    const int keys = t->keys, count = keys - 1 + QT;
    if (learns)
        outer_sums(n, n->H, count, w->near, 0, w->dflat_rows, w->dw + (ptrdiff_t)n->H * n->Gp);
    transpose(w->dflat_rows, n->Gp, SPAN, n->Gp, w->flat, SPAN);
    for (int h = 0; h < n->H; h++) w->out[h] = w->db + (ptrdiff_t)h * SPAN;
    for (int v = 0; v < SPAN; v += LINE) inputs(n, 0, w->span, v, 0, NULL, w->out, v);
    for (int h = 0; h < n->H; h++) {
        const real *db = w->db + (ptrdiff_t)h * SPAN;
        for (int k = 1; k < keys; k++) t[h].ds[k * QT] += db[keys - 1 - k];
        for (int r = 0; r < QT; r++) t[h].ds[r] += db[keys - 1 + r];
    }
}

static void mix_gradient(struct tile *t, int x)
{
    const struct mix form = form_of(t->c, x);
    const struct net n = net_of(t->c, x);
    struct net_scratch w = net_scratch_of(t, x, &n);
    const bool flat = by_distance(t, &n), learns = t->own[x].fresh != NULL;
    for (int h = 0; h < n.H; h++) {
        if (n.own) w.in[h] = t[h].da;
        w.in[n.own + h] = t[h].a;
        w.out[h] = t[h].da;
        w.dy[h] = t[h].ds;
    }
    if (flat) {
        gather(t, &n, &w);
        rows(&n, SPAN, n.H, w.near, 0, n.w1, n.b1, 0, w.flat_rows);
    }
    /* dy is 0 where a pair is masked; the other factor must be finite */
    for (int h = 0; h < n.H; h++) {
        mask(&t[h], t[h].a, 0);
        if (n.own && !flat) mask(&t[h], t[h].da, 0);
    }
    memset(w.dflat_rows, 0, sizeof(real) * SPAN * (size_t)n.Gp);
    memset(w.dw, 0, sizeof(real) * (size_t)((n.H + n.in) * n.Gp));
    memset(w.sum, 0, sizeof(real) * (size_t)(n.H * LINE));
    for (int k = 0; k < t->keys; k++) line_gradient(t, &n, &w, k, flat, learns);
    if (flat) distance_gradient(t, &n, &w, learns);
    if (!learns) return;

    for (int h = 0; h < n.H; h++) {
        real *part = t[h].own[x].fresh, *dw2 = part + mix_row(&form, MIX_DW2),
             *dw1_add = part + mix_row(&form, MIX_DW1_ADD), *dw1 = part + mix_row(&form, MIX_DW1);
        const ptrdiff_t Gp = n.Gp;
        for (int g = 0; g < n.Gp; g++) {
            dw2[g] += w.dw[h * Gp + g];
            if (n.own) dw1_add[g] += w.dw[(n.H + h) * Gp + g];
            dw1[g] += w.dw[(n.in + h) * Gp + g];
        }
        real sum = 0;
        for (int l = 0; l < LINE; l++) sum += w.sum[h * LINE + l];
        part[mix_row(&form, MIX_DB2)] += sum;
    }
    real *db1 = t->own[x].fresh + mix_row(&form, MIX_DB1);
    for (int g = 0; g < n.Gp; g++) {
        real sum = 0;
        for (int l = 0; l < SPAN; l++) sum += w.dflat_rows[l * n.Gp + g];
        db1[g] += sum;
    }
}
#endif

static ptrdiff_t part(const struct call *c, int x)
{
    const struct mix m = form_of(c, x);
    return mix_part(&m);
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)b;
    return h * part(c, x);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->heads * part(c, x); }

const struct term N(term_mix) = {
    .name = "mix",
    .mem = mem,
    .part = part,
    .fresh = part,
    .part_at = part_at,
    .total = total,
    .mix = mix_scores,
#if QT > 1
    .mix_bwd = mix_gradient,
#endif
};
