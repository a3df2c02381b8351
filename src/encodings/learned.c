/* SPDX-License-Identifier: MIT */
/* learned.c -- one learned vector per position, added to the embedding.  Devlin
 * et al., NAACL 2019; GPT-2.
 *
 *     x[pos] += table[pos]             table is [Lmax][Dm]
 *
 * Lmax is that of the caller's table, else desc.max_len.  There is no row for other positions,
 * so they are errors.  Positions may repeat: their gradients are added. */
#include "contract/encoding.h"

enum { TABLE };
static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, loci_have(c, "table") || c->max_len > 0, LOCI_BAD_ARG,
          "learned: the number of positions is unknown; set max_len, or describe your table in "
          "desc.tensors");
    return LOCI_OK;
}

static ptrdiff_t positions(const struct config *c)
{
    const loci_tensor *table = loci_have(c, "table");
    return table && table->rank == 2 && table->shape[0] > 0 ? table->shape[0] : c->max_len;
}

static void tensors(const struct config *c, struct tensors *t)
{
    /* N(0, 0.02), as in BERT */
    loci_add_tensor(t, c, "table", LOCI_LEARNED, INIT_NORMAL, 0.02, 0,
                    SHAPE(positions(c), c->model_dim));
}

/* Table: a copy, so that calls need no tensors. */
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range;
    size_t row = (size_t)c->model_dim * real;
    return (size_t)positions(c) <= SIZE_MAX / 2 / row ? (size_t)positions(c) * row : SIZE_MAX / 2;
}

static void prepare(const struct prep *p)
{
    memcpy(p->table, p->data[TABLE],
           size(p->cfg, p->range, p->f64 ? sizeof(double) : sizeof(float)));
}

static void embed(const struct config *c, const void *table, bool f64, int64_t pos, int from, int n,
                  double *row)
{
    for (int i = 0; i < n; i++)
        row[i] = load_real(table, f64, (ptrdiff_t)pos * c->model_dim + from + i);
}

/* The row of a position gets the gradients of all its tokens. */
static void embed_bwd(const struct config *c, int64_t pos, const double *dy, double *const *dtensor)
{
    double *drow = dtensor[TABLE] + (ptrdiff_t)pos * c->model_dim;
    for (int i = 0; i < c->model_dim; i++) drow[i] += dy[i];
}

static struct embed_shape shape(const struct config *c)
{
    (void)c;
    return (struct embed_shape){ .kind = EMBED_VECTORS };
}

const struct loci_pe loci_pe_learned = {
    .name = "learned",
    .cite = "Devlin et al., NAACL 2019",
    .brief = "x += table[pos]",
    .family = FAMILY_ABSOLUTE,
    .example = "learned",
    .places = LOCI_PLACE_EMBED,
    .tol = 2e-7,
    .check = check,
    .tensors = tensors,
    .size = size,
    .prepare = prepare,
    .embed = &(const struct encoding_embed){ positions, embed, embed_bwd, shape },
};
