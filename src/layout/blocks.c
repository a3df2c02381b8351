/* SPDX-License-Identifier: MIT */
/* blocks.c -- fills the table of the term `blocks`, and transforms its gradients to those of
 * generators and weights. */
#include "layout/blocks.h"

#include "math/skew_form.h"
#include "math/trig.h"

/* The layout that the encoding gave its term. */
static struct blocks blocks_of(const struct prep *p) { return *(const struct blocks *)p->layout; }

size_t loci_blocks_size(const struct blocks *b, size_t real)
{
    return blocks_at(b) + (size_t)(b->groups * blocks_panels(b)) * (size_t)blocks_panel(b) * real;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

/* Writes the two matrices of each panel of a head group: U of its blocks along the diagonal, and
 * the transpose.  Lanes beyond the blocks are 0, so products can process whole panels. */
static void fill_panels(const struct prep *p, const struct blocks *b, int g)
{
    const int per = blocks_per_panel(b), width = blocks_width(b), channels = blocks_channels(b),
              back = blocks_lanes(channels), n = b->block;
    char *reals = (char *)p->table + blocks_at(b);
    for (int panel = 0; panel < blocks_panels(b); panel++) {
        const ptrdiff_t to = (ptrdiff_t)(g * blocks_panels(b) + panel) * blocks_panel(b),
                        from = to + (ptrdiff_t)channels * width;
        for (ptrdiff_t i = 0; i < blocks_panel(b); i++) store_real(reals, p->f64, to + i, 0);
        for (int i = 0; i < per && panel * per + i < b->count; i++) {
            const double *u =
                blocks_basis(b, p->table) + (ptrdiff_t)(g * b->count + panel * per + i) * n * n;
            for (int r = 0; r < n; r++)
                for (int c = 0; c < n; c++) {
                    const ptrdiff_t channel = i * n + r, lane = i * 2 * blocks_half(b) + c;
                    store_real(reals, p->f64, to + channel * width + lane, u[r * n + c]);
                    store_real(reals, p->f64, from + lane * back + channel, u[r * n + c]);
                }
        }
    }
}

/* The frequency of pair t of all panels: weight times lambda, to 100 bits.  It stays 0 for fixed
 * channels and unused lanes. */
static void frequency(const struct prep *p, int axis, int group, int t, double *hi, double *lo)
{
    const struct blocks b = blocks_of(p);
    const int pairs = blocks_width(&b) / 2, half = blocks_half(&b), i = t % pairs / half,
              j = t / pairs * blocks_per_panel(&b) + i;
    if (i >= blocks_per_panel(&b) || j >= b.count) return;
    const double weight = blocks_weight(&b, p->table)[axis * b.count + j];
    const ptrdiff_t at = (group * b.count + j) * half + t % pairs % half;
    const double lambda = blocks_lambda(&b, p->table)[at], rest = blocks_rest(&b, p->table)[at],
                 product = weight * lambda;
    *lo = trig_two_sum(product, exact_fma(weight, lambda, -product) + weight * rest, hi);
}

/* Writes the whole table.  Weights and the form of each block come first, because frequency() and
 * fill_panels() read them from the table.  The two matrices after the bases are scratch for S and
 * its form. */
void loci_blocks_prepare(const struct prep *p, blocks_generator *generator, blocks_weights *weight)
{
    const struct blocks b = blocks_of(p);
    const int n = b.block, half = blocks_half(&b);
    double *weights = (double *)blocks_weight(&b, p->table),
           *lambda = (double *)blocks_lambda(&b, p->table);
    double *rest = (double *)blocks_rest(&b, p->table),
           *basis = (double *)blocks_basis(&b, p->table);
    double *s = basis + (ptrdiff_t)b.groups * b.count * n * n, *form = s + (ptrdiff_t)n * n;
    for (int a = 0; a < b.axes; a++)
        for (int j = 0; j < b.count; j++) weights[a * b.count + j] = weight(p, a, j);
    for (int g = 0; g < b.groups; g++) {
        for (int j = 0; j < b.count; j++, lambda += half, rest += half, basis += (ptrdiff_t)n * n) {
            for (int r = 0; r < n; r++) {
                s[r * n + r] = 0;
                for (int c = r + 1; c < n; c++) {
                    s[r * n + c] = generator(p, g, j, r, c);
                    s[c * n + r] = -s[r * n + c];
                }
            }
            /* In an odd block the pair of the last channel is fixed. */
            lambda[half - 1] = rest[half - 1] = 0;
            memcpy(form, s, sizeof *s * (size_t)(n * n));
            loci_skew_form(n, form, basis, lambda);
            for (int k = 0; k < n / 2; k++) rest[k] = loci_skew_rest(n, s, basis, k, lambda[k]);
        }
        fill_panels(p, &b, g);
    }
    const struct pairs pairs = {
        .count = blocks_pairs(&b),
        .interleaved = true,
        .axes = b.axes,
        .groups = b.groups,
        .factor = 1,
    };
    loci_pairs_prepare(p, pairs, frequency);
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* The sums of the term for kv head h, block j.  See blocks_part(). */
static const double *part_of(const struct prep *p, const struct blocks *b, int h, int j)
{
    return p->dtable[0] + (h * b->count + j) * blocks_part(b);
}

/* Two rows and two columns of the skew gradient in the basis, those of the pairs k and l.  On the
 * diagonal it is only the rotation: x is multiplied by weight times lambda.  Off the diagonal A and
 * B of y -> A y + B conj(y) give the four entries, and skewness gives those of (l, k). */
static void gradient_pair(const struct prep *p, const struct blocks *b, const double *part, int j,
                          int k, int l, double m[2][2])
{
    if (k == l) {
        double turn = 0;
        for (int a = 0; a < b->axes; a++)
            turn += blocks_weight(b, p->table)[a * b->count + j] * part[a * blocks_half(b) + k];
        m[0][0] = m[1][1] = 0;
        m[0][1] = -turn;
        m[1][0] = turn;
        return;
    }
    const double *x = part + (k < l ? blocks_two(b, k, l) : blocks_two(b, l, k));
    const double two[2][2] = { { x[0] + x[2], x[3] - x[1] }, { x[1] + x[3], x[0] - x[2] } };
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 2; c++) m[r][c] = k < l ? two[r][c] : -two[c][r];
}

/* A row of U K U^T, K the skew gradient in the basis, summed over the kv heads that share the
 * group. */
void loci_blocks_gradient(const struct prep *p, int g, int j, int row, double *to)
{
    const struct blocks b = blocks_of(p);
    const int n = b.block, half = blocks_half(&b), heads = b.groups > 1 ? 1 : p->cfg->kv_heads;
    const double *u = blocks_basis(&b, p->table) + (ptrdiff_t)(g * b.count + j) * n * n;
    double rotated[MAX_BLOCK] = { 0 }; /* the row of U K */
    for (int h = g; h < g + heads; h++)
        for (int k = 0; k < half; k++)
            for (int l = 0; l < half; l++) {
                double m[2][2];
                gradient_pair(p, &b, part_of(p, &b, h, j), j, k, l, m);
                for (int r = 0; r < 2 && 2 * k + r < n; r++)
                    for (int c = 0; c < 2 && 2 * l + c < n; c++)
                        rotated[2 * l + c] += u[row * n + 2 * k + r] * m[r][c];
            }
    for (int column = 0; column < n; column++)
        for (int c = 0; c < n; c++) to[column] += rotated[c] * u[column * n + c];
}

/* x S has the weight as a factor of lambda: the gradient by the angle of each pair times its
 * lambda. */
double loci_blocks_weight_gradient(const struct prep *p, int axis, int j)
{
    const struct blocks b = blocks_of(p);
    double sum = 0;
    for (int h = 0; h < p->cfg->kv_heads; h++) {
        const double *lambda =
            blocks_lambda(&b, p->table) + ((b.groups > 1 ? h : 0) * b.count + j) * blocks_half(&b);
        for (int k = 0; k < blocks_half(&b); k++)
            sum += lambda[k] * part_of(p, &b, h, j)[axis * blocks_half(&b) + k];
    }
    return sum;
}
