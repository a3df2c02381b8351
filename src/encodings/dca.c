/* SPDX-License-Identifier: MIT */
/* dca.c -- rope in chunks: Dual Chunk Attention.  An et al., Training-Free Long-Context Scaling of
 * Large Language Models (ChunkLlama), ICML 2024 (arXiv 2402.17463); Qwen2.5-1M.
 *
 *     c = chunk - local, C = floor(pos / c), r = row's place - key's place
 *     key's place    pos mod c
 *     row's place    pos mod c                        C_i = C_j      the same chunk
 *                    min(pos mod c + c, chunk)        C_i = C_j + 1  the chunk before
 *                    min(2c - 1, chunk)               else           an older chunk
 *
 * No r exceeds `chunk`, so a model that was trained up to that distance reads longer texts without
 * training.  Distances up to `local` are as they are, also across the border of a chunk.  Chunks
 * are counted from position 0, so shifting all positions changes the scores. */
#include "encodings/ranged.h"

enum { CHUNK_SIZE = ROPE_OPTIONS, LOCAL, OPTIONS };
_Static_assert((int)OPTIONS <= (int)MAX_OPTIONS, "a config has room for all");
static const loci_option opts[] = {
    RANGED_ROWS,
    [CHUNK_SIZE] = { "chunk", LOCI_WHOLE, 1, BY_RULE, 2, RANGE_MOST, NULL,
                     "the largest distance that scores see" },
    [LOCAL] = { "local", LOCI_WHOLE, 1, BY_RULE, 1, RANGE_MOST, NULL,
                "distances up to it are as they are; chunks have chunk - local keys" },
    { 0 }
};

static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, c->opt[LOCAL] < c->opt[CHUNK_SIZE], LOCI_BAD_ARG,
          "dca: local %.0f must be less than chunk %.0f", c->opt[LOCAL], c->opt[CHUNK_SIZE]);
    return loci_rope_check(c, e);
}
static struct ranged_pairs rule(const struct config *c)
{
    return (struct ranged_pairs){ .rule = RANGE_DCA,
                                  .window = (int64_t)c->opt[CHUNK_SIZE],
                                  .group = (int64_t)(c->opt[CHUNK_SIZE] - c->opt[LOCAL]) };
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

const struct loci_pe loci_pe_dca = {
    .name = "dca",
    .cite = "An et al., ICML 2024",
    .family = FAMILY_ROTATION,
    .brief = "rope in chunks: no distance exceeds the trained one",
    .example = "dca:pairing=half,chunk=48,local=16",
    .places = LOCI_PLACE_ROTATE,
    .causal_only = true,
    .row_forms = 3,
    .key_forms = 1,
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
