/* SPDX-License-Identifier: MIT */
/* rerope.c -- rope whose distance stops growing at a window, or grows more slowly from there on.
 * Su, ReRoPE and Leaky ReRoPE, 2023.
 *
 *     r = d                          d < window
 *     r = window + leak (d - window) else
 *
 * A model that was trained up to a distance then reads longer texts without training.  With leak 0
 * every far key stands at the distance `window`, and its order among far keys is lost.  LM-Infinite
 * (Han et al., NAACL 2024) bounds the distance in the same way, min(d, L0). */
#include "encodings/ranged.h"

enum { WINDOW = ROPE_OPTIONS, LEAK, OPTIONS };
_Static_assert((int)OPTIONS <= (int)MAX_OPTIONS, "a config has room for all");
static const loci_option opts[] = {
    RANGED_ROWS,
    [WINDOW] = { "window", LOCI_WHOLE, 1, BY_RULE, 1, RANGE_MOST, NULL,
                 "distances below it are as they are" },
    [LEAK] = { "leak", LOCI_NUMBER, 0, 0, 0, 1, NULL,
               "share of a distance beyond the window that counts; 1 is rope" },
    { 0 }
};

static struct ranged_pairs rule(const struct config *c)
{
    return (struct ranged_pairs){ .rule = RANGE_REROPE,
                                  .window = (int64_t)c->opt[WINDOW],
                                  .leak = c->opt[LEAK] };
}
static void terms(const struct config *c, struct termlist *t)
{
    const struct ranged_pairs r = rule(c);
    loci_ranged_terms(&r, t);
}
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    const struct ranged_pairs r = rule(c);
    (void)range;
    (void)real;
    return loci_ranged_size(c, &r);
}

const struct loci_pe loci_pe_rerope = {
    .name = "rerope",
    .cite = "Su, ReRoPE, 2023",
    .family = FAMILY_ROTATION,
    .brief = "rope whose distance stops, or slows down, at a window",
    .example = "rerope:pairing=half,window=32",
    .places = LOCI_PLACE_ROTATE,
    .causal_only = true,
    .row_forms = 2,
    .key_forms = 2,
    .tol = 2e-6,
    .opts = opts,
    .check = loci_rope_check,
    .tensors = loci_rope_tensors,
    .terms = terms,
    .size = size,
    .prepare = loci_ranged_prepare,
    .fold = loci_rope_fold,
    .frequencies = loci_rope_frequencies,
};
