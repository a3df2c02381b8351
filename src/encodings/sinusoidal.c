/* SPDX-License-Identifier: MIT */
/* sinusoidal.c -- sines and cosines of the position, added to the embedding.
 * Vaswani et al., NeurIPS 2017.
 *
 *     x[pos][2t] += sin(pos w[t])      x[pos][2t+1] += cos(pos w[t])      w[t] = base^(-2t/Dm),
 *     t = 0 .. ceil(Dm/2) - 1
 *
 * The paper's formula and the authors' code (tensor2tensor) differ.  The default is the paper's.
 * `layout=halves` puts all sines before all cosines, and `freq=t2t` is w[t] = base^(-t/(n-1))
 * with n = floor(Dm/2), whose last one is 1/base exactly.  An odd width ends with a lone sine
 * (paper) or a column of zeros (t2t).  Nothing is learned, so dx is dy. */
#include "math/trig.h"
#include "contract/encoding.h"

enum { BASE, LAYOUT, FREQ };
enum { INTERLEAVED, HALVES };
enum { PAPER, T2T };
static const loci_option opts[] = {
    [BASE] = { "base", LOCI_NUMBER, 0, 10000, 1, 1e18, NULL,
               "the longest wavelength is about 2 pi base positions" },
    [LAYOUT] = { "layout", LOCI_WORD, 0, INTERLEAVED, 0, 0, "interleaved|halves",
                 "interleaved: sin, cos, sin, cos, ...; halves: all sines first" },
    [FREQ] = { "freq", LOCI_WORD, 0, PAPER, 0, 0, "paper|t2t",
               "paper: base^(-2t/Dm); t2t: as the authors' code, the last one is 1/base" },
    { 0 }
};

/* The paper rounds the number of waves up, t2t down. */
static int waves(const struct config *c)
{
    return c->opt[FREQ] == T2T ? c->model_dim / 2 : (c->model_dim + 1) / 2;
}

/* Table: its number of digits to base 64; the frequencies, each the sum of two doubles, so that
 * angles are correct at any position; then per digit, for its 64 values, a row of cosines and
 * one of sines of the angle it adds.  So a position costs one complex product per digit instead
 * of a cos and a sin.  The rest of a position with more digits is computed. */
enum { STEPS = 64, MOST_DIGITS = 4 };

/* Enough digits for the expected positions, at most 2^24 of them. */
static int digits(ptrdiff_t range)
{
    int n = 1;
    while (n < MOST_DIGITS && range >> 6 * n) n++;
    return n;
}
/* The row of cosines of a digit's value; the sines follow. */
static double *steps(const double *table, int n, int digit, ptrdiff_t value)
{
    return (double *)table + 1 + 2 * n + (digit * STEPS + value) * 2 * n;
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)real;
    return (1 + (size_t)waves(c) * 2 * (1 + STEPS * (size_t)digits(range))) * sizeof(double);
}

/* ldexp() gives value 64^digit, the position of a row. */
static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    double *table = p->table, *w = table + 1;
    const int n = waves(c);
    table[0] = digits(p->range);
    for (int t = 0; t < n; t++) {
        /* t2t: n waves in n - 1 equal steps of the logarithm; a single wave has frequency 1 */
        if (c->opt[FREQ] == T2T)
            loci_pow_dd(c->opt[BASE], t, n > 1 ? n - 1 : 1, &w[2 * t], &w[2 * t + 1]);
        else loci_pow_dd(c->opt[BASE], 2.0 * t, c->model_dim, &w[2 * t], &w[2 * t + 1]);
    }
    for (int digit = 0; digit < (int)table[0]; digit++)
        for (int value = 0; value < STEPS; value++) {
            double *row = steps(table, n, digit, value);
            for (int t = 0; t < n; t++)
                loci_sincos(ldexp(value, 6 * digit), w[2 * t], w[2 * t + 1], &row[t], &row[n + t]);
        }
}

/* cos and sin of waves from .. from + count - 1 at a position: first by the part that the table
 * lacks, then by one digit after the other, largest first. */
static void rotate(const double *table, int n, int64_t pos, int from, int count, double *cos_x,
                   double *sin_x)
{
    const int all = (int)table[0];
    const int64_t low = pos & (((int64_t)1 << 6 * all) - 1);
    for (int t = 0; t < count; t++) {
        const double *w = table + 1 + 2 * (from + t);
        cos_x[t] = 1;
        sin_x[t] = 0;
        if (pos != low) loci_sincos((double)(pos - low), w[0], w[1], &cos_x[t], &sin_x[t]);
    }
    for (int digit = all - 1; digit >= 0; digit--) {
        const double *c = steps(table, n, digit, low >> 6 * digit & (STEPS - 1)) + from, *s = c + n;
        for (int t = 0; t < count; t++) {
            const double x = cos_x[t];
            cos_x[t] = x * c[t] - sin_x[t] * s[t];
            sin_x[t] = sin_x[t] * c[t] + x * s[t];
        }
    }
}

/* Fills n columns from `from` on in blocks of waves.  t is the wave of the first column; `some`
 * is the number of columns until the columns, the block or the half ends. */
static void embed(const struct config *c, const void *table, bool f64, int64_t pos, int from, int n,
                  double *row)
{
    (void)f64;
    enum { BLOCK = 64 };
    /* consecutive columns of a wave: its sine and cosine, or in halves one */
    const int all = waves(c), each = c->opt[LAYOUT] == HALVES ? 1 : 2;
    double cos_x[BLOCK], sin_x[BLOCK];
    for (int i = 0; i < n;) {
        const int column = from + i, t = each == 1 && column >= all ? column - all : column / each;
        const int most = t < all ? all - t : 1, want = (n - i - 1 + column % each) / each + 1;
        const int count = want < most ? want : most, some = count < BLOCK ? count : BLOCK;
        if (t < all) rotate(table, all, pos, t, some, cos_x, sin_x);
        else cos_x[0] = sin_x[0] = 0; /* the column of zeros */
        for (int k = each == 1 ? 0 : column % 2; k < some * each && i < n; k++, i++)
            row[i] = (each == 1 ? column >= all : k % 2 == 1) ? cos_x[k / each] : sin_x[k / each];
    }
}

static struct embed_shape shape(const struct config *c)
{
    return (struct embed_shape){ .kind = EMBED_WAVES,
                                 .waves = waves(c),
                                 .halves = c->opt[LAYOUT] == HALVES };
}

const struct loci_pe loci_pe_sinusoidal = {
    .name = "sinusoidal",
    .cite = "Vaswani et al., NeurIPS 2017",
    .family = FAMILY_ABSOLUTE,
    .brief = "x += sin, cos of pos base^(-2t/Dm)",
    .example = "sinusoidal",
    .places = LOCI_PLACE_EMBED,
    .tol = 2e-7,
    .opts = opts,
    .size = size,
    .prepare = prepare,
    .embed = &(const struct encoding_embed){ .row = embed, .shape = shape },
};
