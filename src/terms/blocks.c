/* SPDX-License-Identifier: MIT */
/* blocks.c -- rotates blocks of channels: into the basis of their generator, where pairs rotate,
 * and back; see layout/blocks.h.  After cos and sin, struct angles has two sets of rows in the
 * basis and one panel of rows on their way back. */
#include "terms/angles.h"

#include "layout/blocks.h"

static struct blocks blocks_of(const struct call *c, int x)
{
    return *(const struct blocks *)layout_of(c->plan, x);
}
static const struct pairs *table_of(const struct call *c, int x)
{
    return c->table[c->plan->use[x].enc];
}

static ptrdiff_t basis_stride(const struct blocks *b) { return 2 * (ptrdiff_t)blocks_pairs(b); }
static ptrdiff_t buffer(const struct call *c, int x)
{
    const struct blocks b = blocks_of(c, x);
    return angles_size(blocks_pairs(&b))
         + KT * (2 * basis_stride(&b) + blocks_lanes(blocks_channels(&b)));
}
/* Memory of the rows in the basis: 0 the rows, 1 their gradients, 2 the panel on its way back. */
static real *in_basis(const struct blocks *b, const struct angles *at, int which)
{
    return at->buffer + angles_size(blocks_pairs(b)) + which * KT * basis_stride(b);
}

/* ---- The basis ------------------------------------------------------------------------------- */

/* The matrix into the basis, followed by the one back. */
static const real *panel_of(const struct blocks *b, const struct pairs *p, int group, int panel)
{
    const real *reals = (const real *)((const char *)p + blocks_at(b));
    return reals + (ptrdiff_t)(group * blocks_panels(b) + panel) * blocks_panel(b);
}
static int channels_of(const struct blocks *b, int panel) /* the last panel may have fewer */
{
    const int all = b->count * b->block, each = blocks_channels(b);
    return all - panel * each < each ? all - panel * each : each;
}
/* n rows into the basis, panel by panel, and back.  The way back writes whole lanes, so it goes
 * through `way`: a row must not be written beyond its channels. */
static void enter(const struct blocks *b, const struct pairs *p, int group, int n, const real *rows,
                  ptrdiff_t stride, real *to)
{
    const int width = blocks_width(b);
    for (int panel = 0; panel < blocks_panels(b); panel++)
        product(SET, n, width, channels_of(b, panel), rows + panel * blocks_channels(b), stride, 1,
                panel_of(b, p, group, panel), width, to + panel * width, basis_stride(b), NULL);
}
static void leave(const struct blocks *b, const struct pairs *p, int group, int n, const real *from,
                  real *way, real *rows, ptrdiff_t stride)
{
    const int width = blocks_width(b), lanes = blocks_lanes(blocks_channels(b));
    for (int panel = 0; panel < blocks_panels(b); panel++) {
        product(SET, n, lanes, width, from + panel * width, basis_stride(b), 1,
                panel_of(b, p, group, panel) + blocks_channels(b) * width, lanes, way, lanes, NULL);
        for (int r = 0; r < n; r++)
            memcpy(rows + r * stride + panel * blocks_channels(b), way + r * lanes,
                   sizeof(real) * (size_t)channels_of(b, panel));
    }
}

static void rotate(const struct call *c, int x, struct angles *at, ptrdiff_t batch, int h,
                   bool query, ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    const struct blocks b = blocks_of(c, x);
    const struct pairs *p = table_of(c, x);
    const int group = b.groups > 1 ? kv_head(c, h, query) : 0;
    real *y = in_basis(&b, at, 0);
    make_angles(c, p, at, batch, h, query, i0, n);
    enter(&b, p, group, n, rows, stride, y);
    /* in the basis each two neighbours are a pair of the block's generator */
    for (int r = 0; r < n; r++)
        rotate_interleaved(cos_of(at, p, r), cos_of(at, p, r) + p->width, 1, p->count,
                           y + r * basis_stride(&b));
    leave(&b, p, group, n, y, in_basis(&b, at, 2), rows, stride);
}

/* ---- Gradients ----------------------------------------------------------------------------------
 *
 * With X = x S, y the rotated row and g its gradient, dL = <K, dX>.  K is the skew integral over s
 * in 0 .. 1 of e^(-sX) (g y^T - y g^T) e^(sX).  In the basis e^(sX) rotates pair k by s theta_k.
 * So the action of K from pair l to pair k, z -> A z + B conj(z), is that of g y^T - y g^T times
 * the means of e^(-is (theta_k - theta_l)) and e^(-is (theta_k + theta_l)).  No eigenvector is
 * differentiated, and equal angles need no special case. */

/* The mean of e^(-is theta) over s in 0 .. 1, F - iG, from theta and its cos and sin.  Near 0
 * the quotients would lose their digits; the terms that the series there omits are below 1e-13. */
INLINE void mean_turn(double theta, double cos, double sin, double *F, double *G)
{
    const double z = theta * theta;
    const double f = 1 - z / 6 * (1 - z / 20 * (1 - z / 42 * (1 - z / 72 * (1 - z / 110))));
    const double g =
        theta / 2 * (1 - z / 12 * (1 - z / 30 * (1 - z / 56 * (1 - z / 90 * (1 - z / 132)))));
    const bool small = z < 0.25;
    *F = small ? f : sin / theta;
    *G = small ? g : (1 - cos) / theta;
}

/* Rows of a tile in the basis, with their gradients. */
struct rotated {
    const struct pairs *p;
    const struct angles *at;
    const real *y, *g;
    ptrdiff_t stride;
    int n;
    double coordinate[KT][MAX_AXES];
};

/* True if block j of row r has a gradient.  If not, y may contain anything. */
static bool speaks(const struct rotated *a, const struct blocks *b, int j, int r)
{
    const real *g = a->g + r * a->stride + 2 * blocks_pair(b, j, 0);
    bool any = false;
    for (int i = 0; i < 2 * blocks_half(b); i++) any |= g[i] != 0;
    return any;
}

/* Adds row r to pairs k and l > k of block j: to[4][l], the real and imaginary parts of A and of
 * B.  a and b are those of g y^T - y g^T; times the means they become those of K. */
INLINE void add_twos(const struct rotated *a, const struct blocks *b, const double *lambda,
                     double x, int t0, int r, int k, double (*restrict to)[MAX_BLOCK / 2])
{
    const ptrdiff_t at = r * a->stride + 2 * t0;
    const real *restrict y = a->y + at, *restrict g = a->g + at;
    const real *restrict cos = cos_of(a->at, a->p, r) + t0, *restrict sin = cos + a->p->width;
    const double y0 = y[2 * k], y1 = y[2 * k + 1], g0 = g[2 * k], g1 = g[2 * k + 1], ck = cos[k],
                 sk = sin[k];
    for (int l = k + 1; l < blocks_half(b); l++) {
        const double y2 = y[2 * l], y3 = y[2 * l + 1], g2 = g[2 * l], g3 = g[2 * l + 1],
                     cl = cos[l], sl = sin[l];
        /* cos and sin of difference and sum, from those of the two angles */
        double F, G, P, Q;
        mean_turn(x * (lambda[k] - lambda[l]), ck * cl + sk * sl, sk * cl - ck * sl, &F, &G);
        mean_turn(x * (lambda[k] + lambda[l]), ck * cl - sk * sl, sk * cl + ck * sl, &P, &Q);
        const double a0 = g0 * y2 + g1 * y3 - y0 * g2 - y1 * g3,
                     a1 = g1 * y2 - g0 * y3 - y1 * g2 + y0 * g3;
        const double b0 = g0 * y2 - g1 * y3 - y0 * g2 + y1 * g3,
                     b1 = g1 * y2 + g0 * y3 - y1 * g2 - y0 * g3;
        const double h = x / 2;
        to[0][l] += h * (a0 * F + a1 * G);
        to[1][l] += h * (a1 * F - a0 * G);
        to[2][l] += h * (b0 * P + b1 * Q);
        to[3][l] += h * (b1 * P - b0 * Q);
    }
}

/* Adds a tile of rows to the part of block j, in double until the end: the angles' gradients,
 * which are the diagonal of K, then two pairs at a time. */
static void gather(const struct rotated *a, const struct blocks *b, int group, int j, real *part)
{
    const int half = blocks_half(b), t0 = blocks_pair(b, j, 0);
    const double *weight = blocks_weight(b, a->p),
                 *lambda = blocks_lambda(b, a->p) + (group * b->count + j) * half;
    bool speaking[KT];
    for (int r = 0; r < a->n; r++) speaking[r] = speaks(a, b, j, r);
    for (int k = 0; k < half; k++) {
        double rotate[MAX_AXES] = { 0 }, two[4][MAX_BLOCK / 2];
        for (int i = 0; i < 4; i++)
            for (int l = k + 1; l < half; l++) two[i][l] = 0;
        for (int r = 0; r < a->n; r++) {
            if (!speaking[r]) continue;
            const real *y = a->y + r * a->stride + 2 * (t0 + k),
                       *g = a->g + r * a->stride + 2 * (t0 + k);
            /* the gradient by the angle of pair k; x is the block's coordinate */
            const double dphi = (double)y[0] * (double)g[1] - (double)y[1] * (double)g[0];
            double x = 0;
            for (int axis = 0; axis < b->axes; axis++) {
                x += a->coordinate[r][axis] * weight[axis * b->count + j];
                rotate[axis] += a->coordinate[r][axis] * dphi;
            }
            add_twos(a, b, lambda, x, t0, r, k, two);
        }
        for (int axis = 0; axis < b->axes; axis++) part[axis * half + k] += (real)rotate[axis];
        for (int l = k + 1; l < half; l++)
            for (int i = 0; i < 4; i++) part[blocks_two(b, k, l) + i] += (real)two[i][l];
    }
}

static void rotate_bwd(const struct call *c, int x, struct angles *at, ptrdiff_t batch, int h,
                       bool query, ptrdiff_t i0, int n, const real *rows, real *d, ptrdiff_t stride,
                       real *part)
{
    const struct blocks b = blocks_of(c, x);
    const struct pairs *p = table_of(c, x);
    const int group = b.groups > 1 ? kv_head(c, h, query) : 0;
    real *y = in_basis(&b, at, 0), *g = in_basis(&b, at, 1);
    make_angles(c, p, at, batch, h, query, i0, n);
    enter(&b, p, group, n, d, stride, g);
    /* rows are the output of rotate(), so both sides of dL = <K, dX> are read in the same basis */
    if (part) {
        struct rotated a; /* no braces: they would clear all coordinates */
        a.p = p;
        a.at = at;
        a.y = y;
        a.g = g;
        a.stride = basis_stride(&b);
        a.n = n;
        for (int r = 0; r < n; r++) coordinates(c, p, batch, query, i0 + r, a.coordinate[r]);
        enter(&b, p, group, n, rows, stride, y);
        for (int j = 0; j < b.count; j++) gather(&a, &b, group, j, part + j * blocks_part(&b));
    }
    for (int r = 0; r < n; r++)
        rotate_interleaved(cos_of(at, p, r), cos_of(at, p, r) + p->width, -1, p->count,
                           g + r * basis_stride(&b));
    leave(&b, p, group, n, g, in_basis(&b, at, 2), d, stride);
}

static ptrdiff_t part(const struct call *c, int x)
{
    const struct blocks b = blocks_of(c, x);
    return b.count * blocks_part(&b);
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)b;
    return h / c->plan->group * part(c, x);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->kv_heads * part(c, x); }

static const struct rotation rotation = {
    .buffer = buffer,
    .rotate = rotate,
    .rotate_bwd = rotate_bwd,
};
const struct term N(term_blocks) = {
    .name = "blocks",
    .part = part,
    .part_at = part_at,
    .total = total,
    .rotation = &rotation,
};
