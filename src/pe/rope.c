/* SPDX-License-Identifier: MIT */
/* rope.c -- queries and keys turned by their positions.  Su et al., RoFormer, Neurocomputing 2024 (arXiv 2104.09864).
 *
 *     (x[a], x[b]) <- m (x[a] cos phi - x[b] sin phi, x[a] sin phi + x[b] cos phi)      phi = pos w[t], w[t] = base^(-2t/dim)
 *
 * so that q_i.k_j depends on i - j only.  Pair t of the `dim` channels from `offset` on is (2t, 2t+1) when interleaved
 * (RoFormer, GPT-J) and (t, t + dim/2) in half style (GPT-NeoX, Llama as most files store it).  The two differ by a
 * permutation of the channels and fit different weights, hence no default.  m is attention_factor, on q and on k.
 * Some code rounds an odd width up; we refuse it, as no pair is complete then. */
#include "pairs.h"
#include "trig.h"

enum { PAIRING, BASE, DIM, OFFSET, FREQ, ATTENTION_FACTOR };
enum { HALF, INTERLEAVED };              /* words of PAIRING and of FREQ */
enum { FORMULA, GIVEN };
static const double usual_base = 10000;
static const loci_option opts[] = {
    [PAIRING]          = { "pairing", LOCI_WORD, 1, BY_RULE, 0, 0, "half|interleaved", "which channels form a pair; the weights decide" },
    [BASE]             = { "base", LOCI_NUMBER, 0, 10000, 1, 1e18, NULL, "frequencies fall from 1 to about 1/base" },
    [DIM]              = { "dim", LOCI_WHOLE, 0, BY_RULE, 2, 1024, NULL, "channels that turn; by default all of the head" },
    [OFFSET]           = { "offset", LOCI_WHOLE, 0, 0, 0, 1022, NULL, "first channel that turns" },
    [FREQ]             = { "freq", LOCI_WORD, 0, FORMULA, 0, 0, "formula|given", "given: the frequencies are a learned tensor" },
    [ATTENTION_FACTOR] = { "attention_factor", LOCI_NUMBER, 0, 1, 1e-6, 1e6, NULL, "multiplies turned q and k" },
    { 0 }
};

static loci_status check(struct config *c, loci_error *e)
{
    double *o = c->opt;
    if (!c->given[DIM]) o[DIM] = c->dim;
    CHECK(e, fmod(o[DIM], 2) == 0, LOCI_BAD_ARG, "rope: dim %g must be even, as channels turn in pairs%s", o[DIM],
          c->given[DIM] ? "" : "; it is the head's, dim= can turn fewer");
    CHECK(e, o[OFFSET] + o[DIM] <= c->dim, LOCI_BAD_ARG, "rope: offset %g + dim %g must not exceed the head's %d channels%s",
          o[OFFSET], o[DIM], c->dim, c->given[DIM] ? "" : "; give dim=");
    CHECK(e, o[FREQ] == FORMULA || !c->given[BASE], LOCI_BAD_ARG, "rope: base has no meaning with freq=given; leave one out");
    if (o[FREQ] == GIVEN) o[BASE] = BY_RULE;
    return LOCI_OK;
}

static double usual_frequency(const struct config *c, ptrdiff_t t)
{
    double hi, lo;
    loci_pow_dd(usual_base, 2.0 * (double)t, c->opt[DIM], &hi, &lo);
    return hi;
}

static void tensors(const struct config *c, struct tensors *t)
{
    if (c->opt[FREQ] != GIVEN) return;
    loci_add_tensor(t, c, "freq", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE((ptrdiff_t)c->opt[DIM] / 2));
    t->fill[t->n - 1] = usual_frequency;
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_pairs, GROUP_ROTATE);
}

/* ---- Tables: the frequencies, and what pairs.h says about them ----------------------------------------------- */

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range, (void)real;
    return loci_pairs_size((int)c->opt[DIM] / 2, 1, 1);
}
static void frequency(const struct prep *p, int axis, int group, int t, double *hi, double *lo)
{
    const double *o = p->cfg->opt;
    (void)axis, (void)group;
    if (o[FREQ] == GIVEN) *hi = param(p, 0, t), *lo = 0;
    else loci_pow_dd(o[BASE], 2.0 * t, o[DIM], hi, lo);
}
static void prepare(const struct prep *p)
{
    const double *o = p->cfg->opt;
    loci_pairs_prepare(p, (struct pairs){ .count = (int)o[DIM] / 2, .offset = (int)o[OFFSET], .interleaved = o[PAIRING] == INTERLEAVED,
                                          .axes = 1, .groups = 1, .factor = o[ATTENTION_FACTOR] }, frequency);
}
/* All heads turn alike, so their gradients add up. */
static void fold(const struct prep *p)
{
    const struct config *c = p->cfg;
    if (c->opt[FREQ] != GIVEN || !p->dtensor[0]) return;
    const ptrdiff_t part = pairs_part(c->dim, 1);
    for (int h = 0; h < c->kv_heads; h++)
        for (int t = 0; t < (int)c->opt[DIM] / 2; t++) p->dtensor[0][t] += p->dtable[0][h * part + t];
}

const struct loci_pe loci_pe_rope = {
    .name = "rope", .cite = "Su et al., Neurocomputing 2024", .brief = "pairs of channels of q and k turn by pos base^(-2t/dim)",
    .example = "rope:pairing=half", .places = LOCI_PLACE_ROTATE, .rotates = true, .tol = 2e-6, .opts = opts,
    .check = check, .tensors = tensors, .terms = terms, .size = size, .prepare = prepare, .fold = fold,
};
