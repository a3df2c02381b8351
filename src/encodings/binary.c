/* SPDX-License-Identifier: MIT */
/* binary.c -- the position in binary, a bit per channel.  The third idea of many textbooks.
 *
 *     x[pos][c] += bit c of pos        c = 0 .. Dm - 1, the lowest bit first
 *
 * The numbers are bounded and every position has its own code.  Channel c is a square wave of
 * period 2^(c+1), and sinusoidal.c is the same with its corners rounded off.  But neighbours may
 * differ in one channel or in all (7 and 8), so distance in the code does not reflect distance
 * in the text.  Dm channels distinguish 2^Dm positions.  Others, and negative ones, have no code
 * and are errors.  Nothing is learned, so dx is dy. */
#include "contract/encoding.h"

enum { MAX_BITS = 62 }; /* 2^62 positions are still a ptrdiff_t */

static ptrdiff_t positions(const struct config *c)
{
    return (ptrdiff_t)1 << (c->model_dim < MAX_BITS ? c->model_dim : MAX_BITS);
}

/* Channels from bit 62 on are 0: shifting by a word's width or more is undefined. */
static void embed(const struct config *c, const void *table, bool f64, int64_t pos, int from, int n,
                  double *row)
{
    (void)c;
    (void)table;
    (void)f64;
    for (int i = 0; i < n; i++) row[i] = from + i < MAX_BITS ? (double)(pos >> (from + i) & 1) : 0;
}

static struct embed_shape shape(const struct config *c)
{
    (void)c;
    return (struct embed_shape){ .kind = EMBED_BITS };
}

const struct loci_pe loci_pe_binary = {
    .name = "binary",
    .cite = "textbooks",
    .brief = "x[c] += bit c of pos",
    .example = "binary",
    .family = FAMILY_ABSOLUTE,
    .places = LOCI_PLACE_EMBED,
    .tol = 2e-7,
    .embed = &(const struct encoding_embed){ .positions = positions, .row = embed, .shape = shape },
};
