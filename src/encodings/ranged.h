/* SPDX-License-Identifier: MIT */
/* ranged.h -- what rerope, selfextend and dca share: rope whose distance is another one from some
 * distance on.  Options are those of rope, and their own after them. */
#ifndef LOCI_ENCODINGS_RANGED_H
#define LOCI_ENCODINGS_RANGED_H

#include "encodings/rope_scaling.h"
#include "layout/ranged_pairs.h"

/* Positions lie within 2^40, so no window is longer. */
#define RANGE_MOST 2199023255552.0

/* clang-format off */
/* Rope's options.  Angles are never rounded: the places of rows and keys need not be whole. */
#define RANGED_ROWS                                                                                \
    [ROPE_PAIRING] = { "pairing", LOCI_WORD, 1, BY_RULE, 0, 0, "half|interleaved",                 \
                       "half: channels t, t + dim/2; interleaved: 2t, 2t + 1, as the model was "   \
                       "trained" },                                                                \
    ROPE_ROWS_WITH("exact", "always exact")
/* clang-format on */

/* Adds the term with its rule. */
void loci_ranged_terms(const struct ranged_pairs *, struct termlist *);
size_t loci_ranged_size(const struct config *, const struct ranged_pairs *);
/* The rule is the term's layout. */
void loci_ranged_prepare(const struct prep *);

#endif
