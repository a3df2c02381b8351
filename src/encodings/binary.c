/* SPDX-License-Identifier: MIT */
/* binary.c -- the position in binary, a bit per channel.  The third idea of many textbooks.
 *
 *     x[pos][c] += bit c of pos        c = 0 .. Dm - 1, the lowest bit first
 *
 * The numbers are bounded and every position has a code of its own: channel c is a square wave of
 * period 2^(c+1), and sinusoidal.c is what is left when the corners are rounded off.  But
 * neighbours may differ in one channel or in all (7 and 8), so distance in the code says nothing of
 * distance in the text.  Dm channels tell 2^Dm positions apart; others, and negative ones, have no
 * code and are errors.  Nothing is learned, so dx is dy. */
#include "contract/encoding.h"

static const loci_option opts[] = { { 0 } };

enum { MAX_BITS = 62 };                  /* 2^62 positions are still a ptrdiff_t */

static ptrdiff_t positions(const struct config *c)
{
    return (ptrdiff_t)1 << (c->model_dim < MAX_BITS ? c->model_dim : MAX_BITS);
}

/* Channels from bit 62 on are 0: shifting by more than a word has is undefined. */
static void embed(const struct config *c, const void *table, bool f64, int64_t pos, int from, int n,
                  double *row)
{
    (void)c, (void)table, (void)f64;
    for (int i = 0; i < n; i++) row[i] = from + i < MAX_BITS ? (double)(pos >> (from + i) & 1) : 0;
}

const struct loci_pe loci_pe_binary = {
    .name = "binary", .cite = "textbooks", .brief = "x[c] += bit c of pos", .example = "binary",
    .places = LOCI_PLACE_EMBED, .tol = 2e-7, .opts = opts,
    .embed = &(const struct encoding_embed){ .positions = positions, .row = embed },
};
