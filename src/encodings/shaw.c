/* SPDX-License-Identifier: MIT */
/* shaw.c -- learned vectors per clipped distance, added to keys and
 * values.  Shaw et al., NAACL 2018.
 *
 *     S_ij = scale q_i.(k_j + ak[r])       o_i = sum_j P_ij (v_j + av[r])
 *     r = clip(d, -left, right) + left
 *
 * with d = pos_k - pos_q as in the paper and in the authors' code (sign=ji), or pos_q - pos_k
 * (sign=ij).  ak is [left+right+1][D], av [left+right+1][Dv], shared by the heads.  With a
 * leading axis of H they are per query head.  values=0 omits av.  The authors leave the initial
 * values to their framework's default, uniform as below. */
#include "contract/encoding.h"
#include "layout/band_q.h"

enum { LEFT_SIDE, RIGHT_SIDE, VALUES, SIGN };
static const loci_option opts[] = {
    [LEFT_SIDE] = { "left", LOCI_WHOLE, 0, 16, 0, 65536, NULL, "d below -left share a vector" },
    [RIGHT_SIDE] = { "right", LOCI_WHOLE, 0, 16, 0, 65536, NULL, "d above right share a vector" },
    [VALUES] = { "values", LOCI_WORD, 0, 1, 0, 0, "0|1", "1: values also have vectors" },
    [SIGN] = { "sign", LOCI_WORD, 0, 0, 0, 0, "ji|ij", "d = pos_k - pos_q, or pos_q - pos_k" },
    { 0 }
};

/* Adds a tensor [rows][width], or [H][rows][width]. */
static void add_vectors(struct tensors *t, const struct config *c, const char *name, int width,
                        bool heads)
{
    ptrdiff_t rows = (ptrdiff_t)(c->opt[LEFT_SIDE] + c->opt[RIGHT_SIDE]) + 1;
    double bound = sqrt(6.0 / (double)(rows + width)); /* of Glorot and Bengio */
    if (heads)
        loci_add_tensor(t, c, name, LOCI_LEARNED, INIT_UNIFORM, bound, 0,
                        SHAPE(c->heads, rows, width));
    else loci_add_tensor(t, c, name, LOCI_LEARNED, INIT_UNIFORM, bound, 0, SHAPE(rows, width));
}

/* Keys and values both have heads or neither, as the keys' tensor says. */
static bool per_head(const struct config *c)
{
    const loci_tensor *k = loci_have(c, "k");
    return k && k->rank == 3;
}

enum { QUERY_VECTORS, VALUE_VECTORS };
static void tensors(const struct config *c, struct tensors *t)
{
    add_vectors(t, c, "k", c->dim, per_head(c));
    if (c->opt[VALUES]) add_vectors(t, c, "v", c->value_dim, per_head(c));
}

/* The term counts distances pos_q - pos_k, that is -d, or d with sign=ij. */
static struct vectors vectors(const struct config *c)
{
    const int left = (int)c->opt[LEFT_SIDE], right = (int)c->opt[RIGHT_SIDE];
    const bool ij = c->opt[SIGN];
    return (struct vectors){
        .lo = ij ? -left : -right,
        .hi = ij ? right : left,
        .rows = left + right + 1,
        .tables = per_head(c) ? c->heads : 1,
        .values = c->opt[VALUES],
    };
}

static void terms(const struct config *c, struct termlist *t)
{
    const struct vectors v = vectors(c);
    loci_add_term_layout(t, TERM_band_q, GROUP_RAW, &v, sizeof v);
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    const struct vectors v = vectors(c);
    (void)range;
    return vectors_size(&v, c->dim, c->value_dim, real);
}

/* The index by distance, ascending or descending.  Then query vectors transposed, as the term
 * multiplies queries with all rows at once, and value vectors unchanged.  Padding is 0. */
static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    const struct vectors v = vectors(c);
    const size_t real = p->f64 ? sizeof(double) : sizeof(float),
                 table = vectors_table(&v, c->dim, c->value_dim);
    const ptrdiff_t columns = (ptrdiff_t)vectors_columns(&v),
                    width = (ptrdiff_t)vectors_width(c->value_dim);
    int32_t *row = p->table;
    for (int d = v.lo; d <= v.hi; d++) row[d - v.lo] = c->opt[SIGN] ? d - v.lo : v.hi - d;
    for (int h = 0; h < v.tables; h++) {
        char *k = (char *)p->table + vectors_index(&v) + (size_t)h * table * real,
             *values = k + vectors_values(&v, c->dim) * real;
        for (ptrdiff_t n = 0; n < v.rows; n++) {
            for (int d = 0; d < c->dim; d++)
                store_real(k, p->f64, d * columns + n,
                           param(p, QUERY_VECTORS, (h * (ptrdiff_t)v.rows + n) * c->dim + d));
            for (int d = 0; d < c->value_dim && v.values; d++)
                store_real(values, p->f64, n * width + d,
                           param(p, VALUE_VECTORS, (h * (ptrdiff_t)v.rows + n) * c->value_dim + d));
        }
    }
}

/* Parts have padded rows; tensors have not. */
static void add_gradient(double *to, const double *from, ptrdiff_t rows, int width)
{
    for (ptrdiff_t n = 0; to && n < rows; n++)
        for (int d = 0; d < width; d++)
            to[n * width + d] += from[n * (ptrdiff_t)vectors_padded(width) + d];
}
/* A part consists of the query vectors, then the value vectors, of one table. */
static void fold(const struct prep *p)
{
    const struct config *c = p->cfg;
    const struct vectors v = vectors(c);
    const ptrdiff_t rows = v.rows;
    for (int h = 0; h < v.tables && p->dtable[0]; h++) {
        const double *part = p->dtable[0] + (size_t)h * vectors_part(&v, c->dim, c->value_dim);
        double *dk = p->dtensor[QUERY_VECTORS], *dv = v.values ? p->dtensor[VALUE_VECTORS] : NULL;
        add_gradient(dk ? dk + h * rows * c->dim : NULL, part, rows, c->dim);
        add_gradient(dv ? dv + h * rows * c->value_dim : NULL,
                     part + (size_t)rows * vectors_padded(c->dim), rows, c->value_dim);
    }
}

static bool adds_vectors(const struct config *c) { return c->opt[VALUES] == 1; }

const struct loci_pe loci_pe_shaw = {
    .name = "shaw",
    .cite = "Shaw et al., NAACL 2018",
    .family = FAMILY_VECTORS,
    .brief = "k += ak[clip(j - i)], v += av[clip(j - i)]",
    .example = "shaw",
    .places = LOCI_PLACE_SCORE | LOCI_PLACE_VALUE,
    .tol = 4e-6,
    .opts = opts,
    .adds_vectors = adds_vectors,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
