/* SPDX-License-Identifier: MIT */
/* rope_scaling.c -- see rope_scaling.h.  Frequencies are computed to 106 bits if their rule
 * consists of powers and quotients.  Results of a logarithm (yarn's ramp, llama3's blend) are
 * doubles that count as exact. */
#include "encodings/rope_scaling.h"

#include "math/dd.h"
#include "math/trig.h"

enum scaling { NONE, LINEAR, NTK, NTK_FIXED, DYNAMIC, YARN, LONGROPE, LLAMA3, PROPORTIONAL };
static const double start_base = 10000, two_pi = 6.28318530717958648;

/* The options of each rule, and their defaults: MUST be given, or computed LATER. */
#define MUST NAN
#define LATER (-1)
static const struct rule {
    const char *name;
    struct {
        int option;
        double usual;
    } has[12]; /* ends with option 0 */
} rules[] = {
    [NONE] = { "none", { { 0, 0 } } },
    [LINEAR] = { "linear", { { ROPE_FACTOR, MUST } } },
    [NTK] = { "ntk", { { ROPE_FACTOR, MUST } } },
    [NTK_FIXED] = { "ntk_fixed", { { ROPE_FACTOR, MUST }, { ROPE_MIXED_B, 0 } } },
    [DYNAMIC] = { "dynamic",
                  { { ROPE_FACTOR, MUST },
                    { ROPE_ORIGINAL_LENGTH, MUST },
                    { ROPE_LENGTH, LATER } } },
    [YARN] = { "yarn",
               { { ROPE_FACTOR, MUST },
                 { ROPE_ORIGINAL_LENGTH, MUST },
                 { ROPE_BETA_FAST, 32 },
                 { ROPE_BETA_SLOW, 1 },
                 { ROPE_TRUNCATE, 1 },
                 { ROPE_EXTRAPOLATION_FACTOR, 1 },
                 { ROPE_MSCALE, 0 },
                 { ROPE_MSCALE_ALL_DIM, 0 } } },
    [LONGROPE] = { "longrope",
                   { { ROPE_FACTOR, MUST },
                     { ROPE_ORIGINAL_LENGTH, MUST },
                     { ROPE_SHORT, MUST },
                     { ROPE_LONG, MUST },
                     { ROPE_LENGTH, LATER } } },
    [LLAMA3] = { "llama3",
                 { { ROPE_FACTOR, MUST },
                   { ROPE_ORIGINAL_LENGTH, MUST },
                   { ROPE_LOW_FREQ_FACTOR, 1 },
                   { ROPE_HIGH_FREQ_FACTOR, 4 } } },
    [PROPORTIONAL] = { "proportional", { { ROPE_PARTIAL, MUST }, { ROPE_FACTOR, 1 } } },
};

/* freq=given has no rule: then the option is NaN. */
static enum scaling scaling_of(const struct config *c)
{
    const double word = c->opt[ROPE_SCALING];
    return isnan(word) ? NONE : (enum scaling)word;
}

/* ---- Options --------------------------------------------------------------------------------- */

/* An option that the rule does not have must not be given: ignoring it would hide a mistake in a
 * model's configuration.  Options of the rule that are missing get their default value. */
static loci_status check_given(struct config *c, loci_error *e)
{
    const struct rule *rule = &rules[scaling_of(c)];
    const loci_option *opts = c->pe->opts;
    for (int i = ROPE_FACTOR; i < ROPE_OPTIONS; i++) {
        int k = 0;
        while (rule->has[k].option && rule->has[k].option != i) k++;
        const bool has = rule->has[k].option == i;
        CHECK(e, has || !c->given[i], LOCI_BAD_ARG,
              "%s: leave out %s, which scaling=%s does not have", c->pe->name, opts[i].name,
              rule->name);
        CHECK(e, !has || c->given[i] || !isnan(rule->has[k].usual), LOCI_BAD_ARG,
              "%s: scaling=%s needs %s=", c->pe->name, rule->name, opts[i].name);
        if (has && !c->given[i]) c->opt[i] = rule->has[k].usual;
    }
    return LOCI_OK;
}

/* Checks that ranges cannot express: divisors and arguments of logarithms must not be 0. */
static loci_status check_scaling(struct config *c, loci_error *e)
{
    double *o = c->opt;
    const char *name = c->pe->name;
    const enum scaling s = scaling_of(c);
    loci_status status = check_given(c, e);
    if (status) return status;
    if (o[ROPE_LENGTH] == LATER)
        o[ROPE_LENGTH] = c->max_len > 0 ? (double)c->max_len : o[ROPE_ORIGINAL_LENGTH];
    CHECK(e, (s != NTK && s != DYNAMIC) || o[ROPE_DIM] > 2, LOCI_BAD_ARG,
          "%s: scaling=%s needs a dim above 2: at least two pairs", name, rules[s].name);
    CHECK(e, s != YARN || o[ROPE_BASE] > 1, LOCI_BAD_ARG, "%s: scaling=yarn needs a base above 1",
          name);
    CHECK(e, s != LONGROPE || o[ROPE_ORIGINAL_LENGTH] > 1, LOCI_BAD_ARG,
          "%s: scaling=longrope needs an original_length above 1", name);
    for (int i = ROPE_SHORT; s == LONGROPE && i <= ROPE_LONG; i++)
        CHECK(e, c->count[i] == (int)o[ROPE_DIM] / 2, LOCI_BAD_ARG,
              "%s: %s has %d numbers, but must have one per pair, %d", name, c->pe->opts[i].name,
              c->count[i], (int)o[ROPE_DIM] / 2);
    CHECK(e, s != LLAMA3 || o[ROPE_LOW_FREQ_FACTOR] <= o[ROPE_HIGH_FREQ_FACTOR], LOCI_BAD_ARG,
          "%s: low_freq_factor %g must not exceed high_freq_factor %g", name,
          o[ROPE_LOW_FREQ_FACTOR], o[ROPE_HIGH_FREQ_FACTOR]);
    CHECK(e, s != PROPORTIONAL || o[ROPE_DIM] == c->dim, LOCI_BAD_ARG,
          "%s: with scaling=proportional dim must be the whole head, %d; leave it out", name,
          c->dim);
    return LOCI_OK;
}

/* f(c) = 1 + 0.1 c ln s, 1 without scaling. */
static double yarn_mscale(double factor, double c)
{
    return factor <= 1 ? 1 : 1 + 0.1 * c * log(factor);
}
/* The factor of a rule on q and k. */
static double attention_factor(const struct config *c)
{
    const double *o = c->opt, s = o[ROPE_FACTOR];
    switch (scaling_of(c)) {
    case YARN:
        if (o[ROPE_MSCALE] != 0 && o[ROPE_MSCALE_ALL_DIM] != 0)
            return yarn_mscale(s, o[ROPE_MSCALE]) / yarn_mscale(s, o[ROPE_MSCALE_ALL_DIM]);
        return yarn_mscale(s, 1);
    case LONGROPE:
        return s <= 1 ? 1 : sqrt(1 + log(s) / log(o[ROPE_ORIGINAL_LENGTH]));
    default:
        return 1;
    }
}

loci_status loci_rope_check(struct config *c, loci_error *e)
{
    double *o = c->opt;
    const char *name = c->pe->name;
    const bool given = o[ROPE_FREQ] == ROPE_GIVEN;
    if (!c->given[ROPE_DIM]) o[ROPE_DIM] = c->dim;
    CHECK(e, fmod(o[ROPE_DIM], 2) == 0, LOCI_BAD_ARG,
          "%s: dim %g must be even: channels are rotated in pairs%s", name, o[ROPE_DIM],
          c->given[ROPE_DIM] ? "" : "; it is the head's, and dim= can rotate fewer");
    CHECK(e, o[ROPE_OFFSET] + o[ROPE_DIM] <= c->dim, LOCI_BAD_ARG,
          "%s: offset %g + dim %g must not exceed the head's %d channels%s", name, o[ROPE_OFFSET],
          o[ROPE_DIM], c->dim, c->given[ROPE_DIM] ? "" : "; give dim=");
    CHECK(e, !given || !c->given[ROPE_BASE], LOCI_BAD_ARG, "%s: leave out base with freq=given",
          name);
    CHECK(e, !given || !c->given[ROPE_SCALING], LOCI_BAD_ARG,
          "%s: leave out scaling with freq=given", name);
    CHECK(e, !given || o[ROPE_ANGLES] == ROPE_EXACT, LOCI_BAD_ARG,
          "%s: leave out angles=f32 with freq=given: rounded angles have no gradient", name);
    const loci_status status = check_scaling(c, e);
    if (status) return status;
    if (!c->given[ROPE_ATTENTION_FACTOR]) o[ROPE_ATTENTION_FACTOR] = attention_factor(c);
    /* Options without effect are omitted from the plan's text. */
    if (given) o[ROPE_BASE] = o[ROPE_SCALING] = o[ROPE_ANGLES] = BY_RULE;
    return LOCI_OK;
}

loci_status loci_rope_check_values(struct config *c, int values, loci_error *e)
{
    const double *o = c->opt, end = o[ROPE_OFFSET] + o[ROPE_DIM];
    CHECK(e, o[values] != 1 || c->stage != LOCI_ATTENTION || end <= c->value_dim, LOCI_BAD_ARG,
          "%s: values=1 rotates channels up to offset %g + dim %g, but values have %d channels",
          c->pe->name, o[ROPE_OFFSET], o[ROPE_DIM], c->value_dim);
    /* Options without effect are omitted from the plan's text. */
    if (o[values] != 1) c->opt[values] = BY_RULE;
    return LOCI_OK;
}

/* ---- Frequencies ----------------------------------------------------------------------------- */

static struct dd power(double base, double num, double den) /* base^(-num/den) */
{
    struct dd w;
    loci_pow_dd(base, num, den, &w.hi, &w.lo);
    return w;
}

/* w (share + (1 - share)/s): a share of the frequency stays, the rest is divided by s. */
static struct dd blend(struct dd w, double share, double s)
{
    const struct dd stretched = dd_div(dd_norm(1, -share), s);
    return dd_mul(w, dd_add(stretched, (struct dd){ share, 0 }));
}

/* The share of pair t, from 1 to 0 between the pairs that make beta_fast and beta_slow turns in
 * the trained length.  The order of rounding and clipping, and the 0.001 that avoids a division
 * by 0, are those of the models' code. */
static double yarn_share(const double *o, int t)
{
    const double dim = o[ROPE_DIM], per_turn = dim / (2 * log(o[ROPE_BASE]));
    double low = per_turn * log(o[ROPE_ORIGINAL_LENGTH] / (o[ROPE_BETA_FAST] * two_pi));
    double high = per_turn * log(o[ROPE_ORIGINAL_LENGTH] / (o[ROPE_BETA_SLOW] * two_pi));
    if (o[ROPE_TRUNCATE] == 1) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, dim - 1);
    if (low == high) high += 0.001;
    return o[ROPE_EXTRAPOLATION_FACTOR] * (1 - fmin(fmax((t - low) / (high - low), 0), 1));
}
/* In turns of the trained context instead of wavelengths: turns = original_length / wavelength. */
static struct dd llama3(const double *o, struct dd w)
{
    const double turns = o[ROPE_ORIGINAL_LENGTH] * w.hi / two_pi;
    const double low = o[ROPE_LOW_FREQ_FACTOR], high = o[ROPE_HIGH_FREQ_FACTOR];
    if (turns >= high) return w;
    return blend(w, turns <= low ? 0 : (turns - low) / (high - low), o[ROPE_FACTOR]);
}
/* The frequency of pair t under the rule, as in the table of rope_scaling.h. */
static struct dd scaled(const struct config *c, int t)
{
    const double *o = c->opt, s = o[ROPE_FACTOR], dim = o[ROPE_DIM];
    const struct dd w = power(o[ROPE_BASE], 2.0 * t, dim);
    switch (scaling_of(c)) {
    case LINEAR:
        return dd_div(w, s);
    case NTK:
        return dd_mul(w, power(s, 2.0 * t, dim - 2));
    case NTK_FIXED:
        if (o[ROPE_MIXED_B] == 0) return dd_mul(w, power(s, 2.0 * (t + 1), dim));
        return dd_mul(w, power(s, pow((t + 1) / (dim / 2), o[ROPE_MIXED_B]), 1));
    case DYNAMIC: {
        const double original = o[ROPE_ORIGINAL_LENGTH], length = fmax(o[ROPE_LENGTH], original);
        return dd_mul(w, power(1 + s * (length - original) / original, 2.0 * t, dim - 2));
    }
    case YARN:
        return blend(w, yarn_share(o, t), s);
    case LONGROPE:
        return dd_div(
            w, c->list[o[ROPE_LENGTH] > o[ROPE_ORIGINAL_LENGTH] ? ROPE_LONG : ROPE_SHORT][t]);
    case LLAMA3:
        return llama3(o, w);
    case PROPORTIONAL:
        return t < floor(o[ROPE_PARTIAL] * dim / 2) ? dd_div(w, s) : (struct dd){ 0, 0 };
    default:
        return w;
    }
}

/* A learned frequency is exact.  With angles=f32 it is rounded to a float, as float code does. */
void loci_rope_frequency(const struct prep *p, int t, double *hi, double *lo)
{
    struct dd w = { 0, 0 };
    if (p->cfg->opt[ROPE_FREQ] == ROPE_GIVEN) w.hi = param(p, 0, t);
    else w = scaled(p->cfg, t);
    if (p->cfg->opt[ROPE_ANGLES] == ROPE_F32) w = (struct dd){ (float)w.hi, 0 };
    *hi = w.hi;
    *lo = w.lo;
}

int loci_rope_frequencies(const struct config *c, double *list, int room, double *factor)
{
    if (c->opt[ROPE_FREQ] == ROPE_GIVEN) return 0; /* learned ones are the caller's already */
    const int pairs = (int)c->opt[ROPE_DIM] / 2;
    for (int t = 0; list && t < pairs && t < room; t++) {
        double rest; /* a double is enough to look at */
        loci_rope_frequency(&(struct prep){ .cfg = c }, t, &list[t], &rest);
    }
    if (factor) *factor = c->opt[ROPE_ATTENTION_FACTOR];
    return pairs;
}

/* ---- freq=given ------------------------------------------------------------------------------ */

/* The initial values of learned frequencies: base 10000, the default of rope. */
static double usual_frequency(const struct config *c, ptrdiff_t t)
{
    return power(start_base, 2.0 * (double)t, c->opt[ROPE_DIM]).hi;
}

void loci_rope_tensors(const struct config *c, struct tensors *t)
{
    if (c->opt[ROPE_FREQ] != ROPE_GIVEN) return;
    loci_add_tensor(t, c, "freq", LOCI_LEARNED, INIT_ZERO, 0, 0,
                    SHAPE((ptrdiff_t)c->opt[ROPE_DIM] / 2));
    t->fill[t->n - 1] = usual_frequency;
}

/* All heads share the frequencies, so gradients are added; only given ones have any. */
void loci_rope_fold(const struct prep *p)
{
    const struct config *c = p->cfg;
    if (c->opt[ROPE_FREQ] != ROPE_GIVEN || !p->dtensor[0]) return;
    const ptrdiff_t part = pairs_part(c->dim, 1);
    for (int h = 0; h < c->kv_heads; h++)
        for (int t = 0; t < (int)c->opt[ROPE_DIM] / 2; t++)
            p->dtensor[0][t] += p->dtable[0][h * part + t];
}

void loci_rope_prepare(const struct prep *p, int axes, int groups, pairs_frequency *frequency)
{
    const double *o = p->cfg->opt;
    const struct pairs form = {
        .count = (int)o[ROPE_DIM] / 2,
        .offset = (int)o[ROPE_OFFSET],
        .axes = axes,
        .groups = groups,
        .interleaved = o[ROPE_PAIRING] == ROPE_INTERLEAVED,
        .angles_f32 = o[ROPE_ANGLES] == ROPE_F32,
        .factor = o[ROPE_ATTENTION_FACTOR],
    };
    loci_pairs_prepare(p, form, frequency);
}
