/* SPDX-License-Identifier: MIT */
/* selfextend.c -- rope whose positions are counted in groups from a window on.  Jin et al., LLM
 * Maybe LongLM: Self-Extend LLM Context Window Without Tuning, ICML 2024 (arXiv 2401.01325).
 *
 *     r = d                                                               d < window
 *     r = floor(pos_i / group) - floor(pos_j / group) + window - window / group   else
 *
 * A model that was trained with n keys then reads about (n - window) group + window of them,
 * without training.  window is a multiple of group, so that r is `window` at d = window. */
#include "encodings/ranged.h"

enum { GROUP = ROPE_OPTIONS, WINDOW, OPTIONS };
_Static_assert((int)OPTIONS <= (int)MAX_OPTIONS, "a config has room for all");
static const loci_option opts[] = {
    RANGED_ROWS,
    [GROUP] = { "group", LOCI_WHOLE, 1, BY_RULE, 1, RANGE_MOST, NULL,
                "far positions that count as one" },
    [WINDOW] = { "window", LOCI_WHOLE, 1, BY_RULE, 1, RANGE_MOST, NULL,
                 "distances below it are as they are; a multiple of group" },
    { 0 }
};

static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, fmod(c->opt[WINDOW], c->opt[GROUP]) == 0, LOCI_BAD_ARG,
          "selfextend: window %.0f must be a multiple of group %.0f", c->opt[WINDOW],
          c->opt[GROUP]);
    return loci_rope_check(c, e);
}
static struct ranged_pairs rule(const struct config *c)
{
    return (struct ranged_pairs){ .rule = RANGE_SELFEXTEND,
                                  .window = (int64_t)c->opt[WINDOW],
                                  .group = (int64_t)c->opt[GROUP] };
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

const struct loci_pe loci_pe_selfextend = {
    .name = "selfextend",
    .cite = "Jin et al., ICML 2024",
    .family = FAMILY_ROTATION,
    .brief = "rope whose positions are counted in groups from a window on",
    .example = "selfextend:pairing=half,group=4,window=32",
    .places = LOCI_PLACE_ROTATE,
    .causal_only = true,
    .row_forms = 2,
    .key_forms = 2,
    .tol = 2e-6,
    .opts = opts,
    .check = check,
    .tensors = loci_rope_tensors,
    .terms = terms,
    .size = size,
    .prepare = loci_ranged_prepare,
    .fold = loci_rope_fold,
    .frequencies = loci_rope_frequencies,
};
