/* SPDX-License-Identifier: MIT */
/* mrope.c -- rope for text with images and video: each pair rotates by one of time, height and
 * width.  Wang et al., Qwen2-VL, 2024 (arXiv 2409.12191).
 *
 *     phi = coordinate[axis of t] w[t]
 *
 * Frequencies, scalings and pairs are those of rope; w[t] depends on the number of the pair in
 * the head, not in its section.  The sections t/h/w count pairs.  order=chunked (Qwen2-VL,
 * 2.5-VL) stores them one after the other.  order=interleaved (Qwen3-VL) spreads h over the
 * pairs 1, 4, 7, ... and w over 2, 5, 8, ..., up to the size of their sections and of the head.
 * All others rotate by t, even where other code does not rotate them.  Text has equal t, h and
 * w, and then this is rope. */
#include "encodings/rope_scaling.h"

enum { SECTIONS = ROPE_OPTIONS, ORDER, VALUES, OPTIONS };
enum { CHUNKED, ORDER_INTERLEAVED };
enum { AXES = 3 };
_Static_assert((int)OPTIONS <= (int)MAX_OPTIONS, "a config has room for all");
static const loci_option opts[] = {
    [ROPE_PAIRING] = { "pairing", LOCI_WORD, 0, ROPE_HALF, 0, 0, "half|interleaved",
                       "which channels form a pair: half t, t + dim/2; interleaved 2t, 2t + 1" },
    ROPE_ROWS,
    [SECTIONS] = { "sections", LOCI_LIST, 1, BY_RULE, 0, 512, NULL, "pairs of time/height/width" },
    [ORDER] = { "order", LOCI_WORD, 0, CHUNKED, 0, 0, "chunked|interleaved",
                "chunked: time pairs, then height, then width; interleaved: they "
                "alternate" },
    [VALUES] = ROPE_VALUES_ROW,
    { 0 }
};

static loci_status check(struct config *c, loci_error *e)
{
    const double *s = c->list[SECTIONS];
    const loci_status status = loci_rope_check(c, e);
    if (status) return status;
    CHECK(e, c->count[SECTIONS] == AXES, LOCI_BAD_ARG,
          "mrope: sections has %d numbers, but must have 3: time/height/width", c->count[SECTIONS]);
    for (int a = 0; a < AXES; a++)
        CHECK(e, s[a] == floor(s[a]), LOCI_BAD_ARG,
              "mrope: sections count pairs, so %g must be a whole number", s[a]);
    /* A section less or more would shift all pairs behind it. */
    CHECK(e, s[0] + s[1] + s[2] == c->opt[ROPE_DIM] / 2, LOCI_BAD_ARG,
          "mrope: sections %g/%g/%g must add up to dim/2 = %g", s[0], s[1], s[2],
          c->opt[ROPE_DIM] / 2);
    return loci_rope_check_values(c, VALUES, e);
}
static int first_rotated(const struct config *c) { return (int)c->opt[ROPE_OFFSET]; }
static bool turns_values(const struct config *c) { return c->opt[VALUES] == 1; }
static int axes(const struct config *c)
{
    (void)c;
    return AXES;
}
/* The axis that pair t rotates by.  Interleaved, the remainder of t by 3 selects a section, and
 * the pair is in it if the section reaches that far. */
static int axis_of(const struct config *c, int t)
{
    const double *s = c->list[SECTIONS];
    if (c->opt[ORDER] == CHUNKED) return t < s[0] ? 0 : t < s[0] + s[1] ? 1 : 2;
    return t % 3 && t < 3 * s[t % 3] ? t % 3 : 0;
}
static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_pairs, GROUP_ROTATE);
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range;
    (void)real;
    return loci_pairs_size((int)c->opt[ROPE_DIM] / 2, AXES, 1);
}
/* On all other axes the pair has frequency 0. */
static void frequency(const struct prep *p, int axis, int group, int t, double *hi, double *lo)
{
    (void)group;
    if (axis == axis_of(p->cfg, t)) loci_rope_frequency(p, t, hi, lo);
}
static void prepare(const struct prep *p) { loci_rope_prepare(p, AXES, 1, frequency); }
/* All heads share the frequencies; a pair has a gradient on its own axis only. */
static void fold(const struct prep *p)
{
    const struct config *c = p->cfg;
    if (c->opt[ROPE_FREQ] != ROPE_GIVEN || !p->dtensor[0]) return;
    const ptrdiff_t part = pairs_part(c->dim, AXES), row = pairs_part(c->dim, 1);
    for (int h = 0; h < c->kv_heads; h++)
        for (int t = 0; t < (int)c->opt[ROPE_DIM] / 2; t++)
            p->dtensor[0][t] += p->dtable[0][h * part + axis_of(c, t) * row + t];
}

const struct loci_pe loci_pe_mrope = {
    .name = "mrope",
    .cite = "Wang et al., Qwen2-VL, 2024",
    .family = FAMILY_ROTATION,
    .brief = "each pair is rotated by time, height or width",
    .example = "mrope:sections=1/1/1,dim=6",
    .places = LOCI_PLACE_ROTATE,
    .rotates = true,
    .tol = 2e-6,
    .opts = opts,
    .check = check,
    .axes = axes,
    .first_rotated = first_rotated,
    .turns_values = turns_values,
    .tensors = loci_rope_tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
    .multiplies = loci_pairs_factor,
    .frequencies = loci_rope_frequencies,
};
