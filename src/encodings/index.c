/* SPDX-License-Identifier: MIT */
/* index.c -- the position itself, added to every channel
 * of the embedding.  The first idea of many textbooks.
 *
 *     x[pos][c] += pos                 c = 0 .. Dm - 1
 *
 * It tells positions apart, and that is all: the numbers outgrow the embedding within a few tokens,
 * and lengths beyond those of training are numbers that no layer has seen.  Every channel gets the
 * same number, so what the model learns to read is one direction.  Floats hold whole numbers up to
 * 2^24 exactly; beyond, neighbours would share a value, so positions beyond are errors.  Nothing is
 * learned, so dx is dy. */
#include "contract/encoding.h"

static const loci_option opts[] = { { 0 } };

static ptrdiff_t positions(const struct config *c)
{
    (void)c;
    return ((ptrdiff_t)1 << 24) + 1;
}

static void embed(const struct config *c, const void *table, bool f64, int64_t pos, int from, int n,
                  double *row)
{
    (void)c, (void)table, (void)f64, (void)from;
    for (int i = 0; i < n; i++) row[i] = (double)pos;
}

const struct loci_pe loci_pe_index = {
    .name = "index", .cite = "textbooks", .brief = "x += pos", .example = "index",
    .places = LOCI_PLACE_EMBED, .tol = 2e-7, .opts = opts,
    .embed = &(const struct encoding_embed){ .positions = positions, .row = embed },
};
