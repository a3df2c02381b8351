/* SPDX-License-Identifier: MIT */
/* t5.c -- one learned bias per bucket of distance.  Raffel et al., JMLR 2020, section 2.1.
 *
 *     S_ij = scale q_i.k_j + bias_scale table[bucket(i - j)][h]
 *     table is [N][H]; scale is 1 when t5 is alone
 *
 * The first buckets contain one distance each, the rest widen logarithmically up to
 * max_distance, and everything beyond shares the last.  (A description in circulation numbers
 * that last bucket N, one past the table.  The official code clamps to N-1, and so does loci.)
 * Keys ahead of the query, if the mask shows them, are in bucket 0, or with bidirectional=1 in
 * the upper half of the table; the text must say which.  Ports that divide the scores by sqrt(D)
 * have bias_scale = sqrt(D). */
#include "math/trig.h"
#include "layout/distance.h"

enum { BUCKETS, MAX_DISTANCE, BIDIRECTIONAL, BIAS_SCALE };
static const loci_option opts[] = {
    [BUCKETS] = { "buckets", LOCI_WHOLE, 0, 32, 2, 65536, NULL,
                  "number of learned biases per head" },
    [MAX_DISTANCE] = { "max_distance", LOCI_WHOLE, 0, 128, 2, 1e9, NULL,
                       "distances from here on share a bias" },
    [BIDIRECTIONAL] = { "bidirectional", LOCI_WORD, 0, 0, 0, 0, "0|1",
                        "1: half of the buckets are for keys after the query; required with a full "
                        "plan" },
    [BIAS_SCALE] = { "bias_scale", LOCI_NUMBER, 0, 1, -1e6, 1e6, NULL, "factor of the biases" },
    { 0 }
};

/* Buckets of one direction. */
static int side(const double *opt) { return (int)opt[BUCKETS] / (opt[BIDIRECTIONAL] ? 2 : 1); }

static loci_status check(struct config *c, loci_error *e)
{
    const double *o = c->opt;
    int exact = side(o) / 2;
    CHECK(e, exact >= 1, LOCI_BAD_ARG, "t5: buckets %g must be at least 4 with bidirectional=1",
          o[BUCKETS]);
    CHECK(e, o[MAX_DISTANCE] > exact, LOCI_BAD_ARG,
          "t5: max_distance %g must exceed %d, the number of distances with their own bucket",
          o[MAX_DISTANCE], exact);
    CHECK(e, !c->full || c->given[BIDIRECTIONAL], LOCI_BAD_ARG,
          "t5: with a full plan, keys may lie ahead of the query: set bidirectional=1 to give them "
          "their own buckets, or bidirectional=0 for bucket 0");
    return LOCI_OK;
}

/* T5 does not divide scores by sqrt(D); its initial projections make up for that. */
static double scale(const struct config *c)
{
    (void)c;
    return 1;
}

enum { TABLE };
/* The initial values of T5: N(0, 1/sqrt(model width)). */
static void tensors(const struct config *c, struct tensors *t)
{
    double width = c->model_dim ? c->model_dim : (double)c->heads * c->dim;
    loci_add_tensor(t, c, "table", LOCI_LEARNED, INIT_NORMAL, 1 / sqrt(width), 0,
                    SHAPE((ptrdiff_t)c->opt[BUCKETS], c->heads));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_distance, GROUP_ADD);
}

/* First distance of bucket b, ceil(e (max_distance / e)^((b - e) / (n - e))), of n buckets a
 * side, e of them exact.  The powers have 100 bits: if the exact value is a whole number,
 * rounding must not turn it into the next one. */
static double first(const double *opt, int b)
{
    const int n = side(opt), e = n / 2;
    /* The exact buckets, and the first one after them. */
    if (b <= e) return b;
    double far, far_rest, exact, exact_rest;
    loci_pow_dd(opt[MAX_DISTANCE], -(b - e), n - e, &far, &far_rest);
    loci_pow_dd(e, -(n - b), n - e, &exact, &exact_rest);
    const double x = far * exact, rest = fma(far, exact, -x) + far * exact_rest + far_rest * exact,
                 whole = rint(x);
    /* ceil(x), where an x within the error of the powers of a whole
     * number counts as that number. */
    return x - whole + rest > 1e-20 * x ? whole + 1 : whole;
}

/* Table: numbers by distance, up to the one from which on all share a bucket.  Keys ahead count
 * only with bidirectional=1. */
static struct distances layout(const struct config *c, ptrdiff_t range, size_t real)
{
    const int64_t max = (int64_t)c->opt[MAX_DISTANCE], hi = range < max ? range : max;
    return distances_layout(c->heads, c->full && c->opt[BIDIRECTIONAL] ? -hi : 0, hi, true, 0, 0,
                            real);
}
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    return distances_size(layout(c, range, real).bytes);
}

/* Computes buckets by distance once, rather than a logarithm per score: `next` is the first
 * distance of the next bucket.  Ahead, with bidirectional=1, bucket b is b + n. */
static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    const struct distances form = layout(c, p->range, p->f64 ? sizeof(double) : sizeof(float));
    struct distances *t = distances_open(p, p->table, &form);
    const int n = side(c->opt);
    double next = first(c->opt, 1);
    for (int64_t d = 0, b = 0; d <= t->hi; d++) {
        while (b + 1 < n && (double)d >= next) next = first(c->opt, (int)++b + 1);
        distances_classes(t)[d - t->lo] = (int32_t)b;
        if (t->lo && d) distances_classes(t)[-d - t->lo] = (int32_t)b + n;
    }
    for (int64_t d = t->lo; d <= t->hi; d++)
        for (int h = 0; h < c->heads; h++)
            distances_put(p, t, h, d,
                          c->opt[BIAS_SCALE]
                              * param(p, TABLE,
                                      (ptrdiff_t)distances_classes(t)[d - t->lo] * c->heads + h));
}

/* The term sums by class, which is the bucket. */
static void fold(const struct prep *p)
{
    const struct config *c = p->cfg;
    const ptrdiff_t buckets = (ptrdiff_t)c->opt[BUCKETS];
    for (int h = 0; h < c->heads && p->dtensor[TABLE]; h++)
        for (ptrdiff_t b = 0; b < buckets; b++)
            p->dtensor[TABLE][b * c->heads + h] +=
                c->opt[BIAS_SCALE] * p->dtable[0][h * buckets + b];
}

const struct loci_pe loci_pe_t5 = {
    .name = "t5",
    .cite = "Raffel et al., JMLR 2020",
    .family = FAMILY_DISTANCE,
    .brief = "S += table[bucket(i - j)][h], buckets widen with the distance",
    .example = "t5:bidirectional=0",
    .places = LOCI_PLACE_SCORE,
    .tol = 2e-6,
    .opts = opts,
    .check = check,
    .scale = scale,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
