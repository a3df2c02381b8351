/* SPDX-License-Identifier: MIT */
/* liere_stream.c -- gradients of generators over many ranks.  Rows at one coordinate may be on
 * any rank, so the gradient needs each row and its gradient in one place. */
#include "encodings/streams.h"
#include "layout/matrices.h"

/* All rows rotate, and their gradients must survive until the last chunk of keys. */
static void begin(struct call *c, int enc) { loci_liere_begin(c, enc, chained(c)); }

static size_t row_size(const struct call *c, int enc)
{
    for (int x = 0; x < c->plan->uses; x++)
        if (c->plan->use[x].enc == enc && c->plan->use[x].term == TERM_matrices)
            return 2 * (size_t)c->plan->dim * c->plan->real;
    return 0;
}
static void move_rows(const struct call *c, int enc, bool query, ptrdiff_t i, ptrdiff_t first,
                      ptrdiff_t count, char *rows, bool back)
{
    const struct matrices *w = c->mem.scratch[enc];
    const size_t bytes = (size_t)c->plan->dim * c->plan->real;
    const ptrdiff_t from = i * (query ? c->Lq : c->Lk) + first;
    for (ptrdiff_t k = from; k < from + count; k++, rows += 2 * bytes) {
        char *x = (char *)w->x[!query] + (size_t)k * bytes;
        char *g = (char *)w->g[!query] + (size_t)k * bytes;
        memcpy(back ? x : rows, back ? rows : x, bytes);
        memcpy(back ? g : rows + bytes, back ? rows + bytes : g, bytes);
    }
}

const struct encoding_stream loci_liere_stream = {
    .begin = begin,
    .row_size = row_size,
    .move_rows = move_rows,
};
