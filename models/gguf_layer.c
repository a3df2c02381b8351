/* SPDX-License-Identifier: MIT */
/* gguf_layer.c -- one layer of a model in a GGUF file: the meaning of the keys for it. */
#include <math.h>
#include <string.h>

#include "models/gguf.h"

/* ---- Its kind -------------------------------------------------------------------------------- */

static bool has_window(const struct gguf_model *g)
{
    const struct entry *v = loci_gguf_setting(g, "attention.sliding_window");
    return v && v->value[0] > 0; /* find_kind() has checked that it is a number */
}

/* Tests if a layer is full.  The file's list or period precedes the architecture's.  If there is
 * neither, a layer without a window is full. */
static loci_status find_kind(const struct gguf_model *g, int layer, bool *full, loci_error *e)
{
    const struct entry *v = loci_gguf_setting(g, "attention.sliding_window_pattern");
    int period = g->arch->period, window = g->arch->window;
    loci_status s = loci_gguf_whole(g, "attention.sliding_window", layer, 0, INT32_MAX, &window, e);
    *full = true;
    if (s) return s;
    /* a wrong guess would give layers the other kind's base */
    IO_CHECK(e, v || g->arch->layers != LOCAL_BASE || period > 0,
             "attention.sliding_window_pattern is missing; it must say which layers have full "
             "attention");
    if (v && v->array) { /* per layer: does its window slide? */
        double slides = 0;
        s = loci_gguf_number(g, "attention.sliding_window_pattern", layer, 0, 1, &slides, e);
        *full = slides == 0;
        return s;
    }
    s = loci_gguf_whole(g, "attention.sliding_window_pattern", layer, 1, MAX_LAYERS, &period, e);
    if (s) return s;
    /* If kinds also differ in their rotation, they differ without a window as well. */
    const bool windowless =
        !g->arch->first && (g->arch->layers == LOCAL_BASE || g->arch->layers == SOME_ROTATE);
    if (period > 0 && (window > 0 || windowless))
        *full = (g->arch->first ? layer : layer + 1) % period == 0;
    return LOCI_OK;
}

/* Hybrid models: not every layer attends.  Convolutions are recognised by their lack
 * of key heads, states by a list or a period.  Layers after the main ones, which
 * predict further tokens, attend. */
static loci_status find_attention(const struct gguf_model *g, int layer, int layers, bool *attends,
                                  loci_error *e)
{
    const bool recurs = g->arch->layers == SOME_RECUR;
    int more = 0, period = g->arch->period, kv_heads = 1;
    const struct entry *list = loci_gguf_setting(g, "attention.recurrent_layers");
    double is = 0;
    loci_status s;
    if (!recurs) {
        s = loci_gguf_whole(g, "attention.head_count_kv", layer, 0, 65536, &kv_heads, e);
        *attends = kv_heads > 0;
        return s;
    }
    if (list) {
        IO_CHECK(e, list->array,
                 "attention.recurrent_layers must be a list of one number per layer");
        s = loci_gguf_number(g, "attention.recurrent_layers", layer, 0, 1, &is, e);
        *attends = is == 0;
        return s;
    }
    if ((s = loci_gguf_whole(g, "full_attention_interval", layer, 1, MAX_LAYERS, &period, e))
        || (s = loci_gguf_whole(g, "nextn_predict_layers", layer, 0, MAX_LAYERS, &more, e)))
        return s;
    *attends = layer >= layers - more || (layer + 1) % period == 0;
    return LOCI_OK;
}

/* ---- Its head, and the channels that rotate -------------------------------------------------- */

/* The width of a head; 0: not in the file.  Later keys precede earlier ones. */
static loci_status find_head(const struct gguf_model *g, int layer, bool full, struct settings *t,
                             loci_error *e)
{
    int width = 0, heads = 0;
    loci_status s;
    int *d = &t->head_dim;
    if ((s = loci_gguf_whole(g, "embedding_length", layer, 1, 1 << 20, &width, e))
        || (s = loci_gguf_whole(g, "attention.head_count", layer, 0, 65536, &heads, e))
        || (s = loci_gguf_whole(g, "attention.key_length", layer, 1, MAX_HEAD, d, e))
        || (s = loci_gguf_whole(g, "attention.key_length_mla", layer, 1, MAX_HEAD, d, e)))
        return s;
    if (!full && (s = loci_gguf_whole(g, "attention.key_length_swa", layer, 1, MAX_HEAD, d, e)))
        return s;
    t->heads = heads;
    if (t->head_dim == 0 && width > 0 && heads > 0) t->head_dim = width / heads;
    return loci_check_head(t, e);
}

/* All of the head rotates unless the file gives another number. */
static loci_status find_channels(const struct gguf_model *g, int layer, bool full,
                                 struct settings *t, loci_error *e)
{
    const bool of_sliding = !full && loci_gguf_setting(g, "rope.dimension_count_swa");
    const char *key = of_sliding ? "rope.dimension_count_swa" : "rope.dimension_count";
    IO_CHECK(e, t->head_dim > 0,
             "attention.key_length is missing, and cannot be computed without embedding_length and "
             "attention.head_count");
    t->dim = t->head_dim;
    const loci_status s = loci_gguf_whole(g, key, layer, 2, MAX_HEAD, &t->dim, e);
    if (s) return s;
    IO_CHECK(e, t->dim <= t->head_dim, "%s %d must not exceed the head's %d channels", key, t->dim,
             t->head_dim);
    if (g->arch->last) t->offset = t->head_dim - t->dim;
    return LOCI_OK;
}

/* Pairs by time, height and width.  The format has a fourth number, which no known model uses. */
static loci_status find_sections(const struct gguf_model *g, struct settings *t, loci_error *e)
{
    const struct entry *v = loci_gguf_setting(g, "rope.dimension_sections");
    if (!v) return LOCI_OK;
    IO_CHECK(e, v->array && v->type != STRING && (v->count == 3 || v->count == 4),
             "rope.dimension_sections must have 3 or 4 numbers of pairs");
    int sum = 0;
    for (int i = 0; i < v->count; i++) {
        const double x = v->value[i], most = i < 3 ? MAX_PAIRS_READ : 0;
        IO_CHECK(e, x >= 0 && x <= most && x == floor(x),
                 "number %d of rope.dimension_sections is %g; the first three must count pairs, "
                 "the fourth must be 0",
                 i, x);
        if (i < 3) sum += t->sections[i] = (int)x;
    }
    IO_CHECK(e, sum == 0 || sum == t->dim / 2,
             "rope.dimension_sections add up to %d pairs, but the head has %d", sum, t->dim / 2);
    t->spread = g->arch->spread;
    return LOCI_OK;
}

/* ---- Scaling --------------------------------------------------------------------------------- */

/* Divisors that are 1 for the first pairs and stop all others (Gemma 4): the
 * library's proportional, with `all` as its factor.  It must compute the same
 * number of pairs from the share. */
static bool find_still(const struct gguf_model *g, double all, struct settings *t)
{
    const int pairs = t->dim / 2, count = g->factor_count[FREQS];
    const double *x = g->factors[FREQS];
    int n = 0;
    while (n < count && x[n] == 1) n++;
    for (int i = n; i < count; i++)
        if (x[i] != STILL) return false;
    const bool some = count == pairs && n > 0 && n < pairs, whole_head = t->dim == t->head_dim;
    if (!some || !whole_head || (int)((double)n / pairs * t->head_dim / 2) != n) return false;
    t->scaling = "proportional";
    set_option(t, "partial", (double)n / pairs);
    if (all != 1) set_option(t, "factor", all);
    return true;
}

/* One list.  A divisor that stops a pair would mean a frequency of 0,
 * which longrope cannot express. */
static loci_status divide_by(const struct gguf_model *g, enum factors k, double all, int pairs,
                             double *to, loci_error *e)
{
    const char *name = loci_gguf_factor_names[k];
    IO_CHECK(e, g->factor_count[k], "%s is missing", name);
    IO_CHECK(e, g->factor_count[k] == pairs, "%s has %d numbers, but the head has %d pairs", name,
             g->factor_count[k], pairs);
    for (int i = 0; i < pairs; i++) {
        IO_CHECK(e, g->factors[k][i] < STILL,
                 "number %d of %s stops its pair, which is supported only after factors of 1 in "
                 "heads that rotate as a whole",
                 i, name);
        to[i] = g->factors[k][i] * all;
    }
    return LOCI_OK;
}

/* Divisors of the frequencies: the library's longrope, whose two lists may be one. */
static loci_status divide(const struct gguf_model *g, enum factors from_short,
                          enum factors from_long, double all, struct settings *t, loci_error *e)
{
    loci_status s;
    t->scaling = "longrope";
    t->factors = t->dim / 2;
    if ((s = divide_by(g, from_short, all, t->factors, t->short_factor, e))) return s;
    return divide_by(g, from_long, all, t->factors, t->long_factor, e);
}

/* YaRN, with default numbers where the file has none, or 0. */
static loci_status find_yarn(const struct gguf_model *g, int layer, double factor, double original,
                             struct settings *t, loci_error *e)
{
    static const struct {
        const char *key, *option;
    } options[] = {
        { "rope.scaling.yarn_beta_fast", "beta_fast" },
        { "rope.scaling.yarn_beta_slow", "beta_slow" },
        { "rope.scaling.yarn_ext_factor", "extrapolation_factor" },
    };
    double log_multiplier = 0;
    loci_status s =
        loci_gguf_number(g, "rope.scaling.yarn_log_multiplier", layer, 0, 1e3, &log_multiplier, e);
    if (s) return s;
    IO_CHECK(e, factor > 0, "rope.scaling.factor is missing; rope.scaling.type yarn requires it");
    IO_CHECK(e, !g->factor_count[FREQS], "%s together with rope.scaling.type yarn is not supported",
             loci_gguf_factor_names[FREQS]);
    t->scaling = "yarn";
    set_option(t, "factor", factor);
    set_option(t, "original_length", original);
    for (int i = 0; i < (int)(sizeof options / sizeof *options); i++) {
        double x = NAN;
        if ((s = loci_gguf_number(g, options[i].key, layer, 0, 1e6, &x, e))) return s;
        if (x > 0) set_option(t, options[i].option, x); /* 0 means the default */
    }
    /* It represents mscale_all_dim: a tenth of it in DeepSeek's files, whose mscale is the same. */
    if (log_multiplier > 0) {
        const bool deepseek =
            !strncmp(g->arch->name, "deepseek", 8) || !strcmp(g->arch->name, "glm-dsa");
        const double all = deepseek ? log_multiplier * 10 : log_multiplier;
        const double m = loci_yarn_mscale(factor, all);
        set_option(t, "mscale", deepseek ? all : 1);
        set_option(t, "mscale_all_dim", all);
        if (deepseek || !strcmp(g->arch->name, "mistral4")) t->softmax_factor = m * m;
    }
    return LOCI_OK;
}

/* One factor for all pairs, or none, and divisors of single pairs if the file has them: longrope
 * with one list twice, whose own factor is 1 as the divisors contain it. */
static loci_status find_linear(const struct gguf_model *g, double factor, double original,
                               struct settings *t, loci_error *e)
{
    const bool divided = g->factor_count[FREQS] > 0;
    if (!divided && factor != 1) {
        t->scaling = "linear";
        set_option(t, "factor", factor);
    }
    if (!divided || find_still(g, factor, t)) return LOCI_OK;
    const loci_status s = divide(g, FREQS, FREQS, factor, t, e);
    if (s) return s;
    set_option(t, "factor", 1);
    set_option(t, "original_length", original >= 2 ? original : 2);
    return LOCI_OK;
}

/* rope.scale_linear is the factor of older files.  attn_factor multiplies the attention factor
 * of the rule; for longrope it is the whole factor. */
static loci_status find_scaling(const struct gguf_model *g, int layer, struct settings *t,
                                loci_error *e)
{
    const struct entry *v = loci_gguf_setting(g, "rope.scaling.type");
    const bool lists = g->factor_count[SHORT] || g->factor_count[LONG];
    const double context = t->trained_length;
    double factor = 0, old = 0, original = context, attention = 0, yarn = 0;
    loci_status s;
    IO_CHECK(e, !v || v->text, "rope.scaling.type must be a string");
    const char *type = v ? v->text : lists ? "longrope" : "linear";
    if ((s = loci_gguf_number(g, "rope.scale_linear", layer, 0, 1e18, &old, e))
        || (s = loci_gguf_number(g, "rope.scaling.factor", layer, 0, 1e18, &factor, e))
        || (s = loci_gguf_number(g, "rope.scaling.original_context_length", layer, 1, 1e18,
                                 &original, e))
        || (s = loci_gguf_number(g, "rope.scaling.attn_factor", layer, 0, 1e6, &attention, e))
        || (s = loci_gguf_number(g, "rope.scaling.yarn_attn_factor", layer, 0, 1e6, &yarn, e)))
        return s;
    IO_CHECK(e, !loci_gguf_setting(g, "rope.scaling.alpha"),
             "rope.scaling.alpha is not supported; supported: factor attn_factor "
             "original_context_length yarn_log_multiplier yarn_ext_factor yarn_attn_factor "
             "yarn_beta_fast yarn_beta_slow");
    if (factor == 0) factor = old;
    if (!strcmp(type, "none") || !strcmp(type, "linear")) {
        const bool scaled = !strcmp(type, "linear") && factor != 0;
        if (attention > 0) t->times = attention;
        return find_linear(g, scaled ? factor : 1, original, t, e);
    }
    IO_CHECK(e, original >= 1,
             "rope.scaling.original_context_length or context_length is missing; one of them is "
             "required");
    t->trained_length = original;
    if (!strcmp(type, "yarn")) {
        t->times = (attention > 0 ? attention : 1) * (yarn > 0 ? yarn : 1);
        return find_yarn(g, layer, factor, original, t, e);
    }
    IO_CHECK(e, !strcmp(type, "longrope"),
             "unknown rope.scaling.type '%.32s'; known: none linear yarn longrope", type);
    if ((s = divide(g, SHORT, LONG, 1, t, e))) return s;
    /* as config.json's rule: the ratio of the two lengths */
    set_option(t, "factor", factor > 0 ? factor : fmax(context / original, 1));
    set_option(t, "original_length", original);
    if (attention > 0) set_option(t, "attention_factor", attention);
    return LOCI_OK;
}

/* ---- Besides the rotation -------------------------------------------------------------------- */

/* Scale, softcap, sink, window. */
static loci_status find_company(const struct gguf_model *g, int layer, bool full, bool rotates,
                                struct settings *t, loci_error *e)
{
    const struct arch *a = g->arch;
    int window = a->window, width = 0;
    double of_file = 0;
    loci_status s;
    t->cap = a->cap;
    if ((s = loci_gguf_whole(g, "embedding_length", layer, 1, 1 << 20, &width, e))
        || (s = loci_gguf_number(g, "attn_logit_softcapping", layer, 0, 1e6, &t->cap, e))
        || (s = loci_gguf_number(g, "attention.scale", layer, 0, 1e6, &of_file, e))
        || (s = loci_gguf_number(g, "attention.output_scale", layer, 0, 1e6, &of_file, e))
        || (s = loci_gguf_whole(g, "attention.sliding_window", layer, 0, INT32_MAX, &window, e)))
        return s;
    t->sink = g->sinks[layer];
    /* Gemma's models of 27 billion use the width of the model, which files reveal only
     * by their number of layers. */
    const bool of_27b = (!strcmp(a->name, "gemma2") && g->layers == 46)
                     || (!strcmp(a->name, "gemma3") && g->layers == 62);
    const double of = of_27b && t->heads > 0 ? width / t->heads : t->head_dim;
    t->scale = of_file > 0 ? of_file : a->scale > 0 ? a->scale : of > 0 ? 1 / sqrt(of) : 0;
    /* Llama 4's chunks have no key, and its layers without rotation see all keys. */
    if (!strcmp(a->name, "llama4")) t->chunk = rotates ? 8192 : 0;
    else if (!full && window > 0) t->window = a->both ? window / 2 + 1 : window;
    return LOCI_OK;
}

/* ALiBi under its own key; the known slopes are those of 8. */
static loci_status read_instead(const struct gguf_model *g, struct settings *t, loci_error *e)
{
    double most = 0;
    t->instead = g->arch->instead;
    if (!g->arch->alibi_key) return LOCI_OK;
    loci_status s = loci_gguf_number(g, "attention.max_alibi_bias", 0, 0, 1e6, &most, e);
    if (s) return s;
    IO_CHECK(e, most == 0 || most == 8, "attention.max_alibi_bias is %g, but only 8 is supported",
             most);
    if (most > 0) t->instead = "alibi";
    return LOCI_OK;
}

/* Granite's files give in rope.scaling.finetuned if layers rotate; Baichuan's
 * with 40 layers have ALiBi. */
static loci_status find_switch(const struct gguf_model *g, struct settings *t, loci_error *e)
{
    double on = 1;
    if (g->arch->finetuned) {
        loci_status s = loci_gguf_number(g, "rope.scaling.finetuned", 0, 0, 1, &on, e);
        if (s) return s;
    }
    if (on == 0) t->instead = "nope";
    if (!strcmp(g->arch->name, "baichuan") && g->layers == 40) t->instead = "alibi";
    return g->arch->instead ? read_instead(g, t, e) : LOCI_OK;
}

/* Bases of sliding layers have their own key.  Gemma's older files omit it, and for others
 * it is that of all layers. */
static loci_status find_local_base(const struct gguf_model *g, int layer, struct settings *t,
                                   loci_error *e)
{
    loci_status s;
    IO_CHECK(e, g->arch->period > 0 || loci_gguf_setting(g, "rope.freq_base_swa"),
             "rope.freq_base_swa is missing");
    if (strncmp(g->arch->name, "gemma", 5)
        && (s = loci_gguf_number(g, "rope.freq_base", layer, 1, 1e18, &t->base, e)))
        return s;
    return loci_gguf_number(g, "rope.freq_base_swa", layer, 1, 1e18, &t->base, e);
}

/* ---- One layer ------------------------------------------------------------------------------- */

/* Queries that grow with their position.  Llama 4 scales only its layers without rotation,
 * counts positions from 1 (warm_shift), and may omit the key; others scale all layers. */
static loci_status find_warmth(const struct gguf_model *g, int layer, bool rotates,
                               struct settings *t, loci_error *e)
{
    const bool some = g->arch->layers == SOME_ROTATE;
    double warmth = 0, length = 8192;
    loci_status s;
    if ((s = loci_gguf_number(g, "attention.temperature_scale", layer, 0, 1e3, &warmth, e))
        || (s = loci_gguf_number(g, "attention.temperature_length", layer, 1, 1e18, &length, e)))
        return s;
    if (warmth == 0 && !strcmp(g->arch->name, "llama4")) warmth = 0.1;
    if (warmth > 0 && !(some && rotates)) {
        t->warmth = warmth;
        t->warm_length = length;
        t->warm_shift = some;
    }
    return LOCI_OK;
}

/* `length` is not used: longrope itself chooses one of its two lists. */
loci_status loci_gguf_layer(const struct loci_model *m, int layer, double length,
                            struct settings *t, loci_error *e)
{
    const struct gguf_model *g = m->file;
    const enum layers how = g->arch->layers;
    bool full, attends = true;
    loci_status s;
    (void)length;
    if ((s = loci_gguf_number(g, "context_length", layer, 1, 1e18, &t->trained_length, e))
        || (s = find_kind(g, layer, &full, e)))
        return s;
    if ((how == SOME_RECUR || how == SOME_CONVOLVE)
        && (s = find_attention(g, layer, m->layers, &attends, e)))
        return s;
    /* SOME_ROTATE's "full" layers are those that do not rotate. */
    const bool by_window = how == SLIDING_ROTATES || (how == SOME_ROTATE && g->arch->first);
    const bool rotates = by_window ? !full || !has_window(g) : how != SOME_ROTATE || !full;
    if ((s = find_warmth(g, layer, rotates, t, e))) return s;
    if (how != SOME_ROTATE && !full) t->layer = "sliding_attention";
    if (!attends) {
        t->layer = strncmp(g->arch->name, "lfm", 3) ? "linear_attention" : "conv";
        t->instead = "nope";
        return LOCI_OK;
    }
    /* scale and window belong to every layer that attends, even if it does not rotate */
    if ((s = find_head(g, layer, full, t, e)) || (s = find_company(g, layer, full, rotates, t, e))
        || (s = find_switch(g, t, e)))
        return s;
    if (!rotates) t->instead = "nope";
    if (t->instead) return LOCI_OK;
    t->interleaved = g->arch->interleaved;
    t->base = 10000; /* of files without rope.freq_base */
    if ((s = find_channels(g, layer, full, t, e)) || (s = find_sections(g, t, e))) return s;
    if (how == LOCAL_BASE && !full) return find_local_base(g, layer, t, e);
    if ((s = loci_gguf_number(g, "rope.freq_base", layer, 1, 1e18, &t->base, e))) return s;
    return how == FULL_SCALED && !full ? LOCI_OK : find_scaling(g, layer, t, e);
}
