/* SPDX-License-Identifier: MIT */
/* rope.c -- queries and keys rotated by their positions.  Su et al., RoFormer,
 * Neurocomputing 2024 (arXiv 2104.09864).
 *
 *     (x[a], x[b]) <- m (x[a] cos phi - x[b] sin phi, x[a] sin phi + x[b] cos phi)
 *     phi = pos w[t], w[t] = base^(-2t/dim)
 *
 * so that q_i.k_j depends on i - j only.  Pair t of the `dim` channels from `offset` on is (2t,
 * 2t+1) when interleaved (RoFormer, GPT-J) and (t, t + dim/2) in half style (GPT-NeoX, Llama as
 * most files store it).  The two differ by a permutation of the channels and fit different
 * weights, hence no default.  m is attention_factor, on q and on k.  Rules that change w for
 * longer contexts are in rope_scaling.h.  With positions=given, pos is a real number z of each row
 * and key of a head, which a layer computes from the tokens (RePo).  Some code rounds an odd width
 * up; loci rejects it, as one pair would be incomplete.
 *
 * With values=1 (DeepSeek-V4), the same channels of values rotate like those of their keys, and
 * outputs rotate back like their rows, both without m: o_i = sum over j of P_ij R(j - i) v_j. */
#include "encodings/rope_scaling.h"

enum { POSITIONS = ROPE_OPTIONS, VALUES, OPTIONS };
_Static_assert((int)OPTIONS <= (int)MAX_OPTIONS, "a config has room for all");
enum { TOKEN, GIVEN }; /* words of positions */
static const loci_option opts[] = {
    [ROPE_PAIRING] = { "pairing", LOCI_WORD, 1, BY_RULE, 0, 0, "half|interleaved",
                       "half: channels t, t + dim/2; interleaved: 2t, 2t + 1. Use half for a new "
                       "model; `loci rope config.json` prints that of an existing one" },
    ROPE_ROWS,
    [POSITIONS] = { "positions", LOCI_WORD, 0, TOKEN, 0, 0, "token|given",
                    "given: each row and key of a head has a real position, an input" },
    [VALUES] = ROPE_VALUES_ROW,
    { 0 }
};

static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, c->opt[POSITIONS] != GIVEN || c->opt[ROPE_ANGLES] != ROPE_F32, LOCI_BAD_ARG,
          "rope: leave out angles=f32 with positions=given: rounded angles have no gradient");
    /* Options without effect are omitted from the plan's text. */
    if (c->opt[POSITIONS] != GIVEN) c->opt[POSITIONS] = BY_RULE;
    const loci_status status = loci_rope_check(c, e);
    return status ? status : loci_rope_check_values(c, VALUES, e);
}
static int first_rotated(const struct config *c) { return (int)c->opt[ROPE_OFFSET]; }
static bool turns_values(const struct config *c) { return c->opt[VALUES] == 1; }
/* The positions come after what is learned. */
static void tensors(const struct config *c, struct tensors *t)
{
    loci_rope_tensors(c, t);
    if (c->opt[POSITIONS] != GIVEN) return;
    loci_add_input(t, c, "z_q", LOCI_SOURCE_OTHER,
                   SHAPE(LOCI_DIM_BATCH, c->heads, LOCI_DIM_QUERIES));
    loci_add_input(t, c, "z_k", LOCI_SOURCE_OTHER,
                   SHAPE(LOCI_DIM_BATCH, c->kv_heads, LOCI_DIM_KEYS));
}
static void terms(const struct config *c, struct termlist *t)
{
    loci_add_term(t, c->opt[POSITIONS] == GIVEN ? TERM_positioned_pairs : TERM_pairs, GROUP_ROTATE);
}

/* ---- Tables: the frequencies, and the header of layout/pairs.h ------------------------------- */

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range;
    (void)real;
    return loci_pairs_size((int)c->opt[ROPE_DIM] / 2, 1, 1);
}
static void frequency(const struct prep *p, int axis, int group, int t, double *hi, double *lo)
{
    (void)axis;
    (void)group;
    loci_rope_frequency(p, t, hi, lo);
}
/* One axis and one group: all heads rotate alike. */
static void prepare(const struct prep *p) { loci_rope_prepare(p, 1, 1, frequency); }

const struct loci_pe loci_pe_rope = {
    .name = "rope",
    .cite = "Su et al., Neurocomputing 2024",
    .family = FAMILY_ROTATION,
    .brief = "pairs of channels of q and k are rotated by pos base^(-2t/dim)",
    .example = "rope:pairing=half",
    .places = LOCI_PLACE_ROTATE,
    .rotates = true,
    .tol = 2e-6,
    .opts = opts,
    .check = check,
    .first_rotated = first_rotated,
    .turns_values = turns_values,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = loci_rope_fold,
    .multiplies = loci_pairs_factor,
    .frequencies = loci_rope_frequencies,
};
