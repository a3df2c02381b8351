/* SPDX-License-Identifier: MIT */
/* index.c -- the position itself, added to every channel of the embedding.  The
 * first idea of many textbooks.
 *
 *     x[pos][c] += pos                 c = 0 .. Dm - 1
 *
 * It tells positions apart, and that is all.  The numbers outgrow the embedding within a few
 * tokens, and no layer has seen those of lengths beyond training.  Every channel gets the same
 * number, so the model learns to read one direction.  Floats represent whole numbers up to
 * 2^24 exactly.  Beyond, neighbours would share a value, so such positions are errors.
 * Nothing is learned, so dx is dy. */
#include "contract/encoding.h"

static ptrdiff_t positions(const struct config *c)
{
    (void)c;
    return ((ptrdiff_t)1 << 24) + 1;
}

static void embed(const struct config *c, const void *table, bool f64, int64_t pos, int from, int n,
                  double *row)
{
    (void)c;
    (void)table;
    (void)f64;
    (void)from;
    for (int i = 0; i < n; i++) row[i] = (double)pos;
}

static struct embed_shape shape(const struct config *c)
{
    (void)c;
    return (struct embed_shape){ .kind = EMBED_POSITION, .divisor = 1 };
}

const struct loci_pe loci_pe_index = {
    .name = "index",
    .cite = "textbooks",
    .brief = "x += pos",
    .example = "index",
    .family = FAMILY_ABSOLUTE,
    .places = LOCI_PLACE_EMBED,
    .tol = 2e-7,
    .embed = &(const struct encoding_embed){ .positions = positions, .row = embed, .shape = shape },
};
