/* SPDX-License-Identifier: MIT */
/* normalised.c -- the position as a part of the length, added to every channel.  The
 * second idea of many textbooks.
 *
 *     x[pos][c] += pos / (length - 1)  c = 0 .. Dm - 1
 *
 * The numbers stay within 0 .. 1, but a step of one token is 1 / (length - 1).  So the same two
 * neighbours look different in texts of different lengths, and decode cannot start before the
 * length is known.  Hence the length belongs to the plan, never to the call: the option
 * `length`, else desc.max_len.  A length of 1 has no steps, and positions beyond the length are
 * outside 0 .. 1; both are errors.  Nothing is learned, so dx is dy. */
#include "contract/encoding.h"

enum { LENGTH };
static const loci_option opts[] = {
    [LENGTH] = { "length", LOCI_WHOLE, 0, BY_RULE, 2, 1e12, NULL,
                 "length of the text, whose last position becomes 1; default max_len" },
    { 0 }
};

static loci_status check(struct config *c, loci_error *e)
{
    if (isnan(c->opt[LENGTH])) c->opt[LENGTH] = (double)c->max_len;
    CHECK(e, c->opt[LENGTH] > 0, LOCI_BAD_ARG,
          "normalised: the length is unknown; set the option length, or max_len");
    CHECK(e, c->opt[LENGTH] <= opts[LENGTH].max, LOCI_BAD_ARG,
          "normalised: max_len %td must be at most %g", c->max_len, opts[LENGTH].max);
    CHECK(e, c->opt[LENGTH] >= 2, LOCI_BAD_ARG,
          "normalised: the length must be at least 2: position 0 becomes 0 and the last one 1");
    return LOCI_OK;
}

/* Positions beyond the length are rejected: no model was trained on numbers above 1. */
static ptrdiff_t positions(const struct config *c) { return (ptrdiff_t)c->opt[LENGTH]; }

static void embed(const struct config *c, const void *table, bool f64, int64_t pos, int from, int n,
                  double *row)
{
    (void)table;
    (void)f64;
    (void)from;
    for (int i = 0; i < n; i++) row[i] = (double)pos / (c->opt[LENGTH] - 1);
}

static struct embed_shape shape(const struct config *c)
{
    return (struct embed_shape){ .kind = EMBED_POSITION, .divisor = c->opt[LENGTH] - 1 };
}

const struct loci_pe loci_pe_normalised = {
    .name = "normalised",
    .cite = "textbooks",
    .brief = "x += pos / (length - 1)",
    .family = FAMILY_ABSOLUTE,
    .example = "normalised",
    .places = LOCI_PLACE_EMBED,
    .tol = 2e-7,
    .opts = opts,
    .check = check,
    .embed = &(const struct encoding_embed){ .positions = positions, .row = embed, .shape = shape },
};
