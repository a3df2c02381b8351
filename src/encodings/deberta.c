/* SPDX-License-Identifier: MIT */
/* deberta.c -- products of content with position, from both sides.  He et al., ICLR
 * 2021 (v1) and 2023 (v2, v3).
 *
 *     S_ij = scale (q_i.k_j + q_i.K[row(d)] + k_j.Q[row(d)])        d = i - j
 *     scale is 1/sqrt(D (1 + terms)) when alone
 *
 * K and Q are [H][2 span][D], the relative embeddings after the projections of keys and queries.
 *     v1    row(d) = clip(d + span, 0, 2 span - 1)
 *     v2    the same with sign(d) size(|d|) instead of d.  With m = span/2 and
 *           x = max_distance - 1, size(a) is a up to m, and beyond
 *           m + ceil((m - 1) ln(a/m) / ln(x/m)); first |d| is clipped to x, but not with
 *           saturate=0.
 *
 * The paper has row(j - i) in the last product (p2c=ji).  All three revisions of the authors'
 * code have row(i - j), which checkpoints are trained with (p2c=ij).  Their later code clips |d|
 * (saturate=1).  That of v2's first release does not, nor does that of transformers, which runs
 * every checkpoint: keys far ahead use row 0 and not row 1 (saturate=0). */
#include "math/trig.h"
#include "contract/encoding.h"
#include "layout/band_k.h"

enum { KIND, SPAN, MAX_DISTANCE, TERMS, P2C, SATURATE };
enum { V1, V2 };
enum { BOTH, C2P_ALONE, P2C_ALONE };
static const loci_option opts[] = {
    [KIND] = { "kind", LOCI_WORD, 0, V2, 0, 0, "v1|v2",
               "v1: a row per distance; v2: rows cover more distances the farther they are" },
    [SPAN] = { "span", LOCI_WHOLE, 0, BY_RULE, 1, 65536, NULL,
               "half the number of rows; default 512 (v1), 256 (v2)" },
    [MAX_DISTANCE] = { "max_distance", LOCI_WHOLE, 0, 512, 2, 65536, NULL,
                       "v2: distances from here on share a row" },
    [TERMS] = { "terms", LOCI_WORD, 0, BOTH, 0, 0, "both|c2p|p2c",
                "c2p: products of queries and K; p2c: products of keys and Q" },
    [P2C] = { "p2c", LOCI_WORD, 0, 0, 0, 0, "ij|ji",
              "Q's row by i - j as in the code, or by j - i as in the paper" },
    [SATURATE] = { "saturate", LOCI_WORD, 0, 1, 0, 0, "0|1",
                   "v2: 1 clips distances at max_distance, as the authors' later code; 0 does not, "
                   "as transformers" },
    { 0 }
};

/* Which of the two products are enabled: content to position (K), position to content (Q). */
static bool c2p(const struct config *c) { return c->opt[TERMS] != P2C_ALONE; }
static bool p2c(const struct config *c) { return c->opt[TERMS] != C2P_ALONE; }

/* v2: the largest distance of size m + n, which is floor(m (x/m)^(n/(m - 1))), x = max_distance
 * - 1.  The powers have 100 bits.  If the exact value is a whole number, a libm's rounding would
 * put that distance into one row or the next. */
static double last(const double *opt, int n)
{
    const int m = (int)opt[SPAN] / 2;
    double far, far_rest, near, near_rest;
    if (n == 0) return m;
    loci_pow_dd(opt[MAX_DISTANCE] - 1, -n, m - 1, &far, &far_rest);
    loci_pow_dd(m, n - (m - 1), m - 1, &near, &near_rest);
    const double x = far * near, rest = fma(far, near, -x) + far * near_rest + far_rest * near,
                 whole = rint(x);
    /* Within the error of the powers x is a whole number, and such a
     * distance still has size m + n. */
    if (fabs(x - whole + rest) <= 1e-20 * x) return whole;
    return x - whole + rest < 0 ? whole - 1 : whole;
}

/* Rows do not change from this distance on, on either side: the table ends there. */
static double reach(const double *opt)
{
    const int span = (int)opt[SPAN], m = span / 2;
    if (opt[KIND] == V1) return span;
    return opt[SATURATE] ? opt[MAX_DISTANCE] - 1 : m == 1 ? 1 : last(opt, span - m - 1) + 1;
}

/* Options of the other kind are rejected if given, and omitted from the plan's text. */
static loci_status check(struct config *c, loci_error *e)
{
    double *o = c->opt;
    const bool v1 = o[KIND] == V1;
    if (isnan(o[SPAN])) o[SPAN] = v1 ? 512 : 256;
    CHECK(e, !v1 || !c->given[MAX_DISTANCE], LOCI_BAD_ARG,
          "deberta: leave out max_distance with kind=v1, which has a row for every distance");
    CHECK(e, !v1 || !c->given[SATURATE], LOCI_BAD_ARG,
          "deberta: leave out saturate with kind=v1, which ends at span");
    CHECK(e, p2c(c) || !c->given[P2C], LOCI_BAD_ARG,
          "deberta: leave out p2c with terms=c2p, where keys have no product with Q");
    if (!p2c(c)) o[P2C] = BY_RULE;
    if (v1) {
        o[MAX_DISTANCE] = o[SATURATE] = BY_RULE;
        return LOCI_OK;
    }
    CHECK(e, o[SPAN] >= 2, LOCI_BAD_ARG, "deberta: span %g must be at least 2 with kind=v2",
          o[SPAN]);
    /* The logarithm of x/m must be positive. */
    CHECK(e, o[MAX_DISTANCE] - 1 > floor(o[SPAN] / 2), LOCI_BAD_ARG,
          "deberta: max_distance %g must exceed span/2 + 1 = %g", o[MAX_DISTANCE],
          floor(o[SPAN] / 2) + 1);
    CHECK(e, reach(o) <= 65536, LOCI_BAD_ARG,
          "deberta: with saturate=0 and an odd span %g rows differ up to distance %.0f; at most "
          "65536 is supported",
          o[SPAN], reach(o));
    return LOCI_OK;
}

/* The default scale counts the products that are summed: q.k and each of the two. */
static double scale(const struct config *c)
{
    return 1 / sqrt((double)c->dim * (1 + c2p(c) + p2c(c)));
}

static void tensors(const struct config *c, struct tensors *t)
{
    const ptrdiff_t rows = 2 * (ptrdiff_t)c->opt[SPAN];
    if (c2p(c))
        loci_add_tensor(t, c, "k", LOCI_LEARNED, INIT_NORMAL, 0.02, 0,
                        SHAPE(c->heads, rows, c->dim));
    if (p2c(c))
        loci_add_tensor(t, c, "q", LOCI_LEARNED, INIT_NORMAL, 0.02, 0,
                        SHAPE(c->heads, rows, c->dim));
}
/* The number of tensor "q", and of the term that multiplies keys: after K, if there is one. */
static int key_tensor(const struct config *c) { return c2p(c); }

/* ---- Tables: the row of each distance, K for band_q, Q for band_k ---------------------------- */

/* One table per head.  With terms=p2c there is no K, but the index by
 * distance remains, as Q uses it. */
static struct vectors vectors(const struct config *c)
{
    const int far = (int)reach(c->opt);
    return (struct vectors){
        .lo = -far, .hi = far, .rows = 2 * (int)c->opt[SPAN], .tables = c2p(c) ? c->heads : 0
    };
}
static struct key_vectors key_vectors(const struct config *c)
{
    const struct vectors v = vectors(c);
    return (struct key_vectors){ .lo = v.lo,
                                 .hi = v.hi,
                                 .at = (vectors_size(&v, c->dim, 0, c->real) + 63) / 64 * 64 };
}

static void terms(const struct config *c, struct termlist *t)
{
    const struct vectors v = vectors(c);
    const struct key_vectors kv = key_vectors(c);
    if (c2p(c)) loci_add_term_layout(t, TERM_band_q, GROUP_RAW, &v, sizeof v);
    if (p2c(c)) loci_add_term_layout(t, TERM_band_k, GROUP_RAW, &kv, sizeof kv);
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    const struct key_vectors v = key_vectors(c);
    (void)range;
    return v.at + (p2c(c) ? (size_t)c->heads * key_table(&v, c->dim) * real : 0);
}

/* Rows beyond either end are clipped to the last ones, as in the code. */
static int32_t clip(int row, int rows) { return row < 0 ? 0 : row < rows ? row : rows - 1; }
/* Fills the index: for each distance the row span + size, or span - size for keys
 * ahead.  `end` is the last distance of the current size, so a size is computed once
 * and not once per distance. */
static void find_rows(const struct config *c, int32_t *row)
{
    const struct vectors v = vectors(c);
    const int span = (int)c->opt[SPAN];
    const int exact = c->opt[KIND] == V1 ? v.hi : span / 2;
    double end = exact;
    for (int d = 0, size = 0, n = 0; d <= v.hi; d++) {
        if (d <= exact) size = d;
        else if (exact > 1)
            for (; d > end; size = exact + n) end = last(c->opt, ++n);
        row[d - v.lo] = clip(span + size, v.rows);
        row[-d - v.lo] = clip(span - size, v.rows);
    }
}
/* The row of Q for a column of band_k: by i - j, or with p2c=ji by j - i. */
static int32_t key_row(const struct config *c, const struct key_vectors *v, const int32_t *row,
                       ptrdiff_t column)
{
    const int d = key_distance(v, column);
    return row[(c->opt[P2C] ? -d : d) - v->lo];
}

/* K goes into the table once per row, as queries are multiplied with all rows and scores choose
 * one.  Q goes in once per distance, as keys read runs of distances. */
static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    const size_t real = p->f64 ? sizeof(double) : sizeof(float);
    const struct vectors v = vectors(c);
    const struct key_vectors kv = key_vectors(c);
    const ptrdiff_t columns = (ptrdiff_t)vectors_columns(&v), wide = (ptrdiff_t)key_columns(&kv),
                    width = (ptrdiff_t)vectors_width(c->dim);
    int32_t *row = p->table;
    find_rows(c, row);
    for (int h = 0; h < v.tables; h++) {
        char *k =
            (char *)p->table + vectors_index(&v) + (size_t)h * vectors_table(&v, c->dim, 0) * real;
        for (ptrdiff_t n = 0; n < v.rows; n++)
            for (int d = 0; d < c->dim; d++)
                store_real(k, p->f64, d * columns + n,
                           param(p, 0, (h * (ptrdiff_t)v.rows + n) * c->dim + d));
    }
    for (int h = 0; h < c->heads && p2c(c); h++) {
        /* transposed for the scores, as rows for the gradient of the keys */
        char *across = (char *)p->table + kv.at + (size_t)h * key_table(&kv, c->dim) * real,
             *rows = across + (size_t)(c->dim * wide) * real;
        for (ptrdiff_t n = 0; n < wide; n++)
            for (int d = 0; d < c->dim; d++) {
                const ptrdiff_t at = h * (ptrdiff_t)v.rows + key_row(c, &kv, row, n);
                const double x = param(p, key_tensor(c), at * c->dim + d);
                store_real(across, p->f64, d * wide + n, x);
                store_real(rows, p->f64, n * width + d, x);
            }
    }
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* Columns that share a row of Q are added; `ends` are sums of pairs that the term found to be
 * beyond an end without testing each. */
static void fold_keys(const struct prep *p, int h, const double *ends, double *dq)
{
    const struct config *c = p->cfg;
    const struct key_vectors v = key_vectors(c);
    const ptrdiff_t columns = (ptrdiff_t)key_columns(&v), first = h * 2 * (ptrdiff_t)c->opt[SPAN],
                    Dp = (ptrdiff_t)vectors_padded(c->dim);
    const double *part = ends + key_ends(c->dim);
    for (int d = 0; d < c->dim; d++) {
        for (ptrdiff_t n = 0; n < columns; n++)
            dq[(first + key_row(c, &v, p->table, n)) * c->dim + d] += part[d * columns + n];
        dq[(first + key_row(c, &v, p->table, 0)) * c->dim + d] += ends[d];
        dq[(first + key_row(c, &v, p->table, columns - 1)) * c->dim + d] += ends[Dp + d];
    }
}
/* Both parts are padded to whole vectors. */
static void fold(const struct prep *p)
{
    const struct config *c = p->cfg;
    const struct vectors v = vectors(c);
    const ptrdiff_t Dp = (ptrdiff_t)vectors_padded(c->dim);
    for (int h = 0; h < v.tables && p->dtable[0] && p->dtensor[0]; h++)
        for (ptrdiff_t n = 0; n < v.rows; n++)
            for (int d = 0; d < c->dim; d++)
                p->dtensor[0][(h * (ptrdiff_t)v.rows + n) * c->dim + d] +=
                    p->dtable[0][(h * (ptrdiff_t)v.rows + n) * Dp + d];
    const int q = key_tensor(c);
    if (!p2c(c) || !p->dtable[q] || !p->dtensor[q]) return;
    const struct key_vectors kv = key_vectors(c);
    for (int h = 0; h < c->heads; h++)
        fold_keys(p, h, p->dtable[q] + (size_t)h * key_part(&kv, c->dim), p->dtensor[q]);
}

const struct loci_pe loci_pe_deberta = {
    .name = "deberta",
    .cite = "He et al., ICLR 2021",
    .family = FAMILY_VECTORS,
    .brief = "S += scale (q_i.K[row(i - j)] + k_j.Q[row(i - j)])",
    .example = "deberta",
    .places = LOCI_PLACE_SCORE,
    .tol = 4e-6,
    .opts = opts,
    .check = check,
    .scale = scale,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
