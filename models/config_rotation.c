/* SPDX-License-Identifier: MIT */
/* config_rotation.c -- how one layer of a config.json rotates: its base, the channels that
 * rotate, the sections of multimodal rotations, and the scaling. */
#include <math.h>
#include <string.h>

#include "models/config.h"

/* ---- Base ------------------------------------------------------------------------------------ */

/* The dictionary precedes everything next to it; next to it, the more special word precedes the
 * common one.  So the last one read counts. */
static loci_status find_base(const struct config *c, const struct layer *l, const struct dict *d,
                             double *base, loci_error *e)
{
    const bool two = c->family->local == GLOBAL_LOCAL;
    loci_status s;
    if (*base > 0) return LOCI_OK; /* the layer's own */
    *base = d->value[K_THETA];
    if (!isnan(*base)) return LOCI_OK;
    if (l->kind == SLIDING && (two || c->family->local == LOCAL_FREQ)) {
        const char *key = two ? "local_rope_theta" : "rope_local_base_freq";
        *base = 10000;
        return loci_json_number(c->text, key, false, base, e);
    }
    *base = c->base;
    if ((s = loci_json_number(c->text, "rotary_emb_base", false, base, e))) return s;
    if (!c->family->rotary_words && (s = loci_json_number(c->text, "rope_theta", false, base, e)))
        return s;
    /* DeepSeek-V4: layers that compress their keys have their own base */
    if (l->kind != SLIDING && c->family->own == DEEPSEEK_V4) *base = 160000;
    if (l->kind != SLIDING
        && (s = loci_json_number(c->text, "compress_rope_theta", false, base, e)))
        return s;
    return two ? loci_json_number(c->text, "global_rope_theta", false, base, e) : LOCI_OK;
}

/* ---- Channels -------------------------------------------------------------------------------- */

/* The share of the head that rotates: a class's own, then each word in order, the dictionary's
 * last, since that precedes the others. */
static loci_status find_share(const struct config *c, const struct dict *d,
                              const struct settings *t, double *share, loci_error *e)
{
    int rotary = 0;
    loci_status s;
    *share = c->family->partial > 0 ? c->family->partial : 1;
    if (c->family->rotary_dim
        && (s = loci_json_whole(c->text, "rotary_dim", 2, MAX_HEAD, &rotary, e)))
        return s;
    IO_CHECK(e, rotary <= t->head_dim, "rotary_dim is %d, but the head has %d channels", rotary,
             t->head_dim);
    if (rotary > 0) *share = (double)rotary / t->head_dim;
    if ((s = loci_json_number(c->text, "rotary_pct", false, share, e))) return s;
    /* Classes with a dictionary for each kind of layer read no other place. */
    if (!c->family->rotary_words && !loci_dict_several(c->usual)
        && (s = loci_json_number(c->text, "partial_rotary_factor", false, share, e)))
        return s;
    if (!isnan(d->value[K_PARTIAL])) *share = d->value[K_PARTIAL];
    IO_CHECK(e, *share <= 1, "partial_rotary_factor is %g, but must be at most 1, the whole head",
             *share);
    return LOCI_OK;
}

/* Which channels rotate, and how they form pairs. */
static loci_status find_channels(const struct config *c, const struct dict *d, int rope,
                                 struct settings *t, loci_error *e)
{
    double share;
    loci_status s;
    IO_CHECK(e, t->head_dim > 0,
             "head_dim is missing, and cannot be computed without hidden_size and "
             "num_attention_heads");
    if (rope > 0) {
        t->dim = rope;
        t->offset = t->head_dim - rope;
        IO_CHECK(e, d->type != PROPORTIONAL,
                 "rope_type proportional requires that the whole head rotates, but %d of %d "
                 "channels do",
                 rope, t->head_dim);
        /* a word of models with latent keys: other files do not choose their pairs */
        return loci_json_flag(c->text, "rope_interleave", &t->interleaved, e);
    }
    if ((s = find_share(c, d, t, &share, e))) return s;
    t->dim = (int)(t->head_dim * share);
    t->stretch = 1;
    if (d->type == PROPORTIONAL) { /* pairs after the share have frequency 0 */
        t->dim = t->head_dim;
        set_option(t, "partial", share);
    } else if (c->family->partial == 0 && share < 1) {
        IO_CHECK(e, d->type == DEFAULT,
                 "partial_rotary_factor is %g, but model type %s rotates whole heads, and its "
                 "scaling would have too few frequencies for them",
                 share, c->family->type);
        t->dim = t->head_dim;
        t->note = "partial_rotary_factor is in the file, but this model type rotates whole heads";
    }
    IO_CHECK(e, t->dim >= 1, "%g of %d channels rotate, but the number must be even", share,
             t->head_dim);
    /* Classes round an odd number of channels up to pairs, and their exponents still divide by
     * the odd number: the base of the text compensates for that (write_text() in model.c).
     * Scalings that compare wavelengths by the number of channels would be wrong. */
    if (t->dim % 2) {
        IO_CHECK(e, t->dim < t->head_dim && d->type != DYNAMIC && d->type != YARN,
                 "%d of %d channels rotate, but the number must be even", t->dim, t->head_dim);
        t->stretch = (t->dim + 1.0) / t->dim;
        t->dim++;
    }
    if (c->family->head_end) t->offset = t->head_dim - t->dim;
    return LOCI_OK;
}

/* The number of pairs that rotate by time, height and width.  A class's own sections apply to
 * heads whose pairs they add up to; other heads have none. */
static loci_status find_sections(const struct config *c, const struct dict *d, struct settings *t,
                                 loci_error *e)
{
    const int *usual = c->family->sections;
    double x[3];
    if (!loci_json_given(d->json, "mrope_section")) {
        if (usual[0] + usual[1] + usual[2] != t->dim / 2) return LOCI_OK;
        memcpy(t->sections, usual, sizeof t->sections);
        t->spread = c->family->spread;
        return LOCI_OK;
    }
    loci_status s = loci_dict_list(d, K_SECTION, 3, x, e);
    if (s) return s;
    for (int i = 0; i < 3; i++) {
        IO_CHECK(e, x[i] == floor(x[i]) && x[i] <= MAX_PAIRS_READ,
                 "mrope_section counts pairs of channels, so %g must be a whole number in range",
                 x[i]);
        t->sections[i] = (int)x[i];
    }
    const int sum = t->sections[0] + t->sections[1] + t->sections[2];
    IO_CHECK(e, sum == t->dim / 2, "mrope_section adds up to %d pairs, but the head has %d", sum,
             t->dim / 2);
    t->spread = c->family->spread || d->value[K_SPREAD] == 1 || d->value[K_SPREAD_TOO] == 1;
    return LOCI_OK;
}

/* ---- Scaling --------------------------------------------------------------------------------- */

/* The length in training before the scaling.  A value next to the dictionary is the file's own,
 * and precedes that in it.  Llama 3's rule does not use max_position_embeddings, which is the
 * length after the scaling there. */
static loci_status find_original(const struct config *c, const struct dict *d, double *original,
                                 loci_error *e)
{
    *original = d->value[K_ORIGINAL];
    loci_status s =
        loci_json_number(c->text, "original_max_position_embeddings", false, original, e);
    if (s) return s;
    if (isnan(*original) && c->family->original > 0) *original = c->family->original;
    if (isnan(*original) && c->trained > 0 && d->type != LLAMA3) *original = c->trained;
    IO_CHECK(e, !isnan(*original), "original_max_position_embeddings is missing in %s", d->where);
    return LOCI_OK;
}

/* Keys that are options of the grammar under another name, or the same one. */
static void set_options(const struct dict *d, struct settings *t)
{
    static const struct {
        enum key key;
        const char *option;
    } options[] = {
        { K_BETA_FAST, "beta_fast" }, { K_BETA_SLOW, "beta_slow" },
        { K_TRUNCATE, "truncate" },   { K_EXTRAPOLATION, "extrapolation_factor" },
        { K_MSCALE, "mscale" },       { K_MSCALE_ALL, "mscale_all_dim" },
        { K_LOW, "low_freq_factor" }, { K_HIGH, "high_freq_factor" },
        { K_MIXED_B, "mixed_b" },     { K_ATTENTION, "attention_factor" },
    };
    for (int i = 0; i < (int)(sizeof options / sizeof *options); i++) {
        const enum key k = options[i].key;
        /* classes write "beta or 32", so that 0 means the default */
        const bool usual = (k == K_BETA_FAST || k == K_BETA_SLOW) && d->value[k] == 0;
        if (loci_dict_heeds(d, k) && !usual) set_option(t, options[i].option, d->value[k]);
    }
}

/* Longrope's two lists.  The length selects their attention factors, as it selects the lists. */
static loci_status find_lists(const struct dict *d, double length, double original,
                              struct settings *t, loci_error *e)
{
    loci_status s;
    t->factors = t->dim / 2; /* find_head() has bounded it */
    if ((s = loci_dict_list(d, K_SHORT, t->factors, t->short_factor, e))
        || (s = loci_dict_list(d, K_LONG, t->factors, t->long_factor, e)))
        return s;
    const double m = d->value[length > original ? K_LONG_MSCALE : K_SHORT_MSCALE];
    if (isnan(d->value[K_ATTENTION]) && !isnan(m)) set_option(t, "attention_factor", m);
    return LOCI_OK;
}

/* The factor, if a file omits it: the ratio of the model's length to its length in training. */
static double usual_factor(const struct config *c, const struct dict *d, double original)
{
    const bool longer = c->trained > 0 && c->trained >= original;
    if ((d->type == YARN || d->type == LONGROPE) && longer) return c->trained / original;
    return d->type == LONGROPE && c->trained > 0 ? 1 : NAN;
}

static loci_status find_scaling(const struct config *c, const struct dict *d, double length,
                                struct settings *t, loci_error *e)
{
    const double *v = d->value;
    double original = NAN, factor = v[K_FACTOR];
    loci_status s = LOCI_OK;
    t->scaling = d->scaling;
    if (d->type == DEFAULT) return LOCI_OK;
    if (d->type == DYNAMIC && !isnan(v[K_ALPHA])) {
        t->scaling = "ntk"; /* a fixed scaling under dynamic's name (Hunyuan) */
        set_option(t, "factor", v[K_ALPHA]);
        return LOCI_OK;
    }
    if (d->type == DYNAMIC) {
        IO_CHECK(e, c->trained > 0,
                 "max_position_embeddings is missing; rope_type dynamic requires it");
        original = c->trained;
    } else if (d->type == YARN || d->type == LONGROPE || d->type == LLAMA3) {
        if ((s = find_original(c, d, &original, e))) return s;
    }
    if (isnan(factor)) factor = usual_factor(c, d, original);
    IO_CHECK(e, !isnan(factor) || d->type == PROPORTIONAL, "factor is missing in %s", d->where);
    IO_CHECK(e, d->type != LLAMA3 || !isnan(v[K_LOW]), "low_freq_factor is missing in %s",
             d->where);
    IO_CHECK(e, d->type != LLAMA3 || !isnan(v[K_HIGH]), "high_freq_factor is missing in %s",
             d->where);
    if (!isnan(factor)) set_option(t, "factor", factor);
    if (!isnan(original)) {
        set_option(t, "original_length", original);
        t->trained_length = original;
    }
    set_options(d, t);
    if (d->type == LONGROPE && (s = find_lists(d, length, original, t, e))) return s;
    /* DeepSeek's code multiplies the scale of the scores by it twice, besides attention_factor. */
    if (c->family->mla_scale && v[K_MSCALE_ALL] > 0) {
        const double m = loci_yarn_mscale(factor, v[K_MSCALE_ALL]);
        t->softmax_factor = m * m;
    }
    return LOCI_OK;
}

/* Qwen's models for a million tokens and their Dual Chunk Attention, with the defaults of vLLM,
 * which runs them.  It multiplies keys and scores by a factor that grows with the length of the
 * prompt. */
static loci_status find_dual_chunks(const struct config *c, double length, struct settings *t,
                                    loci_error *e)
{
    const json_t *v = json_object_get(c->text, "dual_chunk_attention_config");
    double original = 0;
    loci_status s;
    if (!is_a(v, JSON_OBJECT)) return LOCI_OK;
    t->dual_chunk = 8192;
    t->dual_local = 1024;
    if ((s = loci_json_whole(v, "chunk_size", 2, 1 << 30, &t->dual_chunk, e))
        || (s = loci_json_whole(v, "local_size", 1, 1 << 30, &t->dual_local, e))
        || (s = loci_json_number(v, "original_max_position_embeddings", true, &original, e)))
        return s;
    IO_CHECK(e, t->dual_local < t->dual_chunk,
             "dual_chunk_attention_config: local_size %d must be less than chunk_size %d",
             t->dual_local, t->dual_chunk);
    IO_CHECK(e, t->sections[0] + t->sections[1] + t->sections[2] == 0,
             "dual_chunk_attention_config next to mrope_section is not supported");
    if (original > 0) t->trained_length = original; /* not the file's, which it reaches */
    if (original > 0 && length > original) t->times = 1 + 0.1 * log(length / original);
    return LOCI_OK;
}

loci_status loci_config_rotation(const struct config *c, const struct layer *l,
                                 const struct dict *d, double own_base, int rope, double length,
                                 struct settings *t, loci_error *e)
{
    loci_status s;
    t->base = own_base;
    if ((s = find_base(c, l, d, &t->base, e)) || (s = find_channels(c, d, rope, t, e))
        || (s = find_sections(c, d, t, e)) /* they count the pairs of the channels */
        || (s = find_scaling(c, d, length, t, e)))
        return s;
    return find_dual_chunks(c, length, t, e);
}
