/* SPDX-License-Identifier: MIT */
/* rope_scaling.h -- options shared by rope and mrope, and the frequency of a pair
 * under each rule that scales to longer contexts.  With w = base^(-2t/dim), t = 0 ..
 * dim/2 - 1, and s = factor:
 *
 *     linear        w / s
 *     ntk           with base s^(dim/(dim-2)): the first pair is unchanged, the last divided by s
 *     ntk_fixed     w s^(-2(t+1)/dim), with mixed_b w s^(-((t+1)/(dim/2))^mixed_b)
 *     dynamic       ntk with s' = 1 + s (length/original_length - 1), length at least
 *                   original_length
 *     yarn          w (share + (1 - share)/s), share falling from 1 to 0 between two pairs
 *     longrope      w / short[t], or w / long[t] when length > original_length
 *     llama3        w / s for wavelengths beyond original_length/low_freq_factor, w for those below
 *                   original_length/high_freq_factor, and in between a blend linear in
 *                   original_length / wavelength
 *     proportional  w / s for the first floor(partial dim/2) pairs; the others do not rotate
 *
 * linear: Chen et al.  2023 (arXiv 2306.15595); yarn: Peng et al.  2024 (arXiv 2309.00071);
 * longrope: Ding et al.  2024 (arXiv 2402.13753).
 *
 * yarn's ramp is linear in the pair, as in all code, not in the number of turns, as the paper
 * writes it: weights were trained with the code.  It runs from pair(beta_fast) to
 * pair(beta_slow), where pair(r) = dim ln(original_length/(2 pi r)) / (2 ln base) is the pair
 * that makes r turns.  Both are rounded outwards with truncate=1 and clipped to 0 .. dim - 1.
 *
 * attention_factor by rule: yarn f(mscale)/f(mscale_all_dim) if both are given, else
 * f(1), f(c) = 1 + 0.1 c ln s; longrope sqrt(1 + ln s / ln original_length); both 1
 * for s <= 1; all others 1. */
#ifndef LOCI_ENCODINGS_ROPE_SCALING_H
#define LOCI_ENCODINGS_ROPE_SCALING_H

#include "layout/pairs.h"
enum {
    ROPE_PAIRING,
    ROPE_BASE,
    ROPE_DIM,
    ROPE_OFFSET,
    ROPE_FREQ,
    ROPE_ATTENTION_FACTOR,
    ROPE_ANGLES,
    ROPE_SCALING,
    ROPE_FACTOR,
    ROPE_ORIGINAL_LENGTH,
    ROPE_LENGTH,
    ROPE_MIXED_B,
    ROPE_BETA_FAST,
    ROPE_BETA_SLOW,
    ROPE_TRUNCATE,
    ROPE_EXTRAPOLATION_FACTOR,
    ROPE_MSCALE,
    ROPE_MSCALE_ALL_DIM,
    ROPE_SHORT,
    ROPE_LONG,
    ROPE_LOW_FREQ_FACTOR,
    ROPE_HIGH_FREQ_FACTOR,
    ROPE_PARTIAL,
    ROPE_OPTIONS
};
enum { ROPE_HALF, ROPE_INTERLEAVED }; /* words of pairing, and of freq */
enum { ROPE_FORMULA, ROPE_GIVEN };
enum { ROPE_EXACT, ROPE_F32 }; /* of angles */

/* All but pairing.  Options of a scaling have defaults by rule, so that
 * texts without it stay short. */
/* clang-format off */
#define ROPE_ROWS                                                                                  \
    ROPE_ROWS_WITH("exact|f32",                                                                    \
                   "f32: frequency, position and product are rounded, as in float32 code")
/* The same with other words for `angles`. */
#define ROPE_ROWS_WITH(words, help)                                                                \
    [ROPE_BASE]             = { "base", LOCI_NUMBER, 0, 10000, 1, 1e18, NULL,                      \
                                "frequencies fall from 1 to about 1/base" },                       \
    [ROPE_DIM]              = { "dim", LOCI_WHOLE, 0, BY_RULE, 2, 1024, NULL,                      \
                                "channels that are rotated; default the whole head" },             \
    [ROPE_OFFSET]           = { "offset", LOCI_WHOLE, 0, 0, 0, 1022, NULL,                         \
                                "first channel that is rotated" },                                 \
    [ROPE_FREQ]             = { "freq", LOCI_WORD, 0, ROPE_FORMULA, 0, 0, "formula|given",         \
                                "given: the frequencies are a learned tensor" },                   \
    [ROPE_ATTENTION_FACTOR] = { "attention_factor", LOCI_NUMBER, 0, BY_RULE, 1e-6, 1e6, NULL,      \
                                "factor of rotated q and k; default by scaling" },                 \
    [ROPE_ANGLES]           = { "angles", LOCI_WORD, 0, ROPE_EXACT, 0, 0, words, help },           \
    [ROPE_SCALING]          = { "scaling", LOCI_WORD, 0, 0, 0, 0,                                  \
                                "none|linear|ntk|ntk_fixed|dynamic|yarn|longrope|llama3|"          \
                                "proportional",                                                    \
                                "how a longer context changes the frequencies" },                  \
    [ROPE_FACTOR]           = { "factor", LOCI_NUMBER, 0, BY_RULE, 1e-3, 1e18, NULL,               \
                                "how many times longer; required (proportional: 1)" },             \
    [ROPE_ORIGINAL_LENGTH]  = { "original_length", LOCI_NUMBER, 0, BY_RULE, 1, 1e18, NULL,         \
                                "trained context; required: dynamic, yarn, longrope, "             \
                                "llama3" },                                                        \
    [ROPE_LENGTH]           = { "length", LOCI_NUMBER, 0, BY_RULE, 1, 1e18, NULL,                  \
                                "dynamic, longrope: context length; default max_len, else "        \
                                "original_length" },                                               \
    [ROPE_MIXED_B]          = { "mixed_b", LOCI_NUMBER, 0, BY_RULE, 0, 1e3, NULL,                  \
                                "ntk_fixed: power of the pair; 0 = off" },                         \
    [ROPE_BETA_FAST]        = { "beta_fast", LOCI_NUMBER, 0, BY_RULE, 1e-6, 1e6, NULL,             \
                                "yarn: pairs with more turns are unchanged (32)" },                \
    [ROPE_BETA_SLOW]        = { "beta_slow", LOCI_NUMBER, 0, BY_RULE, 1e-6, 1e6, NULL,             \
                                "yarn: pairs with fewer turns are divided by factor (1)" },        \
    [ROPE_TRUNCATE]         = { "truncate", LOCI_WHOLE, 0, BY_RULE, 0, 1, NULL,                    \
                                "yarn: 1: the ramp ends at whole pairs (1)" },                     \
    [ROPE_EXTRAPOLATION_FACTOR] = { "extrapolation_factor", LOCI_NUMBER, 0, BY_RULE, 0, 1e3, NULL, \
                                "yarn: factor of the unchanged share (1)" },                       \
    [ROPE_MSCALE]           = { "mscale", LOCI_NUMBER, 0, BY_RULE, 0, 1e3, NULL,                   \
                                "yarn: sets attention_factor; 0 = absent" },                       \
    [ROPE_MSCALE_ALL_DIM]   = { "mscale_all_dim", LOCI_NUMBER, 0, BY_RULE, 0, 1e3, NULL,           \
                                "yarn: sets attention_factor; 0 = absent" },                       \
    [ROPE_SHORT]            = { "short", LOCI_LIST, 0, BY_RULE, 1e-3, 1e18, NULL,                  \
                                "longrope: divisors up to original_length; required" },            \
    [ROPE_LONG]             = { "long", LOCI_LIST, 0, BY_RULE, 1e-3, 1e18, NULL,                   \
                                "longrope: divisors beyond it; required" },                        \
    [ROPE_LOW_FREQ_FACTOR]  = { "low_freq_factor", LOCI_NUMBER, 0, BY_RULE, 1e-6, 1e6, NULL,       \
                                "llama3: pairs with fewer turns: divided by factor (1)" },         \
    [ROPE_HIGH_FREQ_FACTOR] = { "high_freq_factor", LOCI_NUMBER, 0, BY_RULE, 1e-6, 1e6, NULL,      \
                                "llama3: pairs with more turns are unchanged (4)" },               \
    [ROPE_PARTIAL]          = { "partial", LOCI_NUMBER, 0, BY_RULE, 1e-6, 1, NULL,                 \
                                "proportional: share of pairs that rotate; required" }
/* clang-format on */

/* The option that turns values with the keys, at the place of the encoding's own options. */
#define ROPE_VALUES_ROW \
    { \
        "values", LOCI_WORD, 0, 0, 0, 0, "0|1", \
            "1: values rotate with the keys, and outputs back with the rows" \
    }
/* Checks option number `values`, after the others. */
loci_status loci_rope_check_values(struct config *, int values, loci_error *);

/* Checks the options against these rules, and fills in missing ones. */
loci_status loci_rope_check(struct config *, loci_error *);
/* Adds the tensor `freq` if freq=given. */
void loci_rope_tensors(const struct config *, struct tensors *);
/* Pair t rotates by its coordinate times hi + lo, with angles=f32 a float; data is that
 * of this encoding's tensors. */
void loci_rope_frequency(const struct prep *, int t, double *hi, double *lo);
extern const struct loci_pe loci_pe_rope;
/* The hook `frequencies`. */
int loci_rope_frequencies(const struct config *, double *list, int room, double *factor);
/* The hook `fold`, for one axis. */
void loci_rope_fold(const struct prep *);
/* Writes the table of the term `pairs`, the same for all heads; groups: 1, or what the term makes
 * of them. */
void loci_rope_prepare(const struct prep *, int axes, int groups, pairs_frequency *);

#endif
