/* SPDX-License-Identifier: MIT */
/* sandwich.c -- the inner product of two sinusoidal embeddings as a bias.  Chi et al., ACL 2023.
 *
 *     S_ij = scale q_i.k_j + (sum_t cos((i - j) base^(-2t/dim)) - dim/2) / (8 (h + 1) / H)
 *     t = first .. first + dim/2 - 1
 *
 * Nothing is learned.  The sum starts at t = 1, as in the text and in a port in wide use;
 * first=0 is exactly the product of two rows of the sinusoidal encoding.  The constant dim/2
 * makes the largest bias 0.  It does not change the softmax, and centre=0 omits it.  Angles are
 * double-double, so that the sum is correct at any distance. */
#include "math/trig.h"
#include "layout/distance.h"

enum { DIM, FIRST, CENTRE, BASE };
static const loci_option opts[] = {
    [DIM] = { "dim", LOCI_WHOLE, 0, 128, 2, 65536, NULL,
              "width of the embeddings, an even number" },
    [FIRST] = { "first", LOCI_WHOLE, 0, 1, 0, 1, NULL, "index of the first frequency" },
    [CENTRE] = { "centre", LOCI_WORD, 0, 1, 0, 0, "0|1",
                 "1: dim/2 is subtracted, so the largest bias is 0" },
    [BASE] = { "base", LOCI_NUMBER, 0, 10000, 1e-3, 1e12, NULL, "base of the frequencies" },
    { 0 }
};

static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, fmod(c->opt[DIM], 2) == 0, LOCI_BAD_ARG, "sandwich: dim %g must be even", c->opt[DIM]);
    return LOCI_OK;
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_distance, GROUP_ADD);
}

static struct distances layout(const struct config *c, ptrdiff_t range, size_t real)
{
    return distances_layout(c->heads, c->full ? -range : 0, range, false, 0, 0, real);
}

/* The table is followed by the frequencies, double-double, with cos and sin of one step:
 * prepare() has no other memory. */
struct wave {
    double hi, lo, c, s;
};
static int waves(const struct config *c) { return (int)c->opt[DIM] / 2; }
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    return distances_size(layout(c, range, real).bytes + (uint64_t)waves(c) * sizeof(struct wave));
}

static void make_waves(const struct config *c, struct wave *w)
{
    for (int t = 0; t < waves(c); t++) {
        loci_pow_dd(c->opt[BASE], 2 * (t + c->opt[FIRST]), c->opt[DIM], &w[t].hi, &w[t].lo);
        loci_sincos(1, w[t].hi, w[t].lo, &w[t].c, &w[t].s);
    }
}

/* sum[i] += cos((d + i) w): the first from its angle, the next by rotation.  Every STEPS
 * distances it restarts from an exact angle, so rounding does not accumulate. */
enum { STEPS = 64 };
static void add_wave(const struct wave *w, int64_t d, double *sum)
{
    double c, s;
    loci_sincos((double)d, w->hi, w->lo, &c, &s);
    for (int i = 0; i < STEPS; i++) {
        const double rotated = c * w->c - s * w->s;
        sum[i] += c;
        s = s * w->c + c * w->s;
        c = rotated;
    }
}

/* cos is even, so keys ahead have the same numbers as those behind. */
static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    const struct distances form = layout(c, p->range, p->f64 ? sizeof(double) : sizeof(float));
    struct distances *t = distances_open(p, p->table, &form);
    struct wave *w = distances_at(t, t->bytes);
    make_waves(c, w);
    for (int64_t d = 0; d <= t->hi; d += STEPS) {
        double sum[STEPS] = { 0 };
        for (int i = 0; i < waves(c); i++) add_wave(&w[i], d, sum);
        for (int i = 0; i < STEPS && d + i <= t->hi; i++)
            for (int h = 0; h < c->heads; h++) {
                const double b =
                    (sum[i] - (c->opt[CENTRE] ? waves(c) : 0)) * c->heads / (8.0 * (h + 1));
                distances_put(p, t, h, d + i, b);
                if (t->lo) distances_put(p, t, h, -d - i, b);
            }
    }
}

const struct loci_pe loci_pe_sandwich = {
    .name = "sandwich",
    .cite = "Chi et al., ACL 2023",
    .family = FAMILY_DISTANCE,
    .brief = "S += (sum_t cos((i - j) base^(-2t/dim)) - dim/2) H / 8h",
    .example = "sandwich",
    .places = LOCI_PLACE_SCORE,
    .tol = 2e-6,
    .opts = opts,
    .check = check,
    .terms = terms,
    .size = size,
    .prepare = prepare,
};
