/* SPDX-License-Identifier: MIT */
/* config_layer.c -- one layer of a config.json: its kind, whether it rotates, its head, and the
 * settings of scores and weights besides the rotation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/config.h"

/* ---- Words for kinds ------------------------------------------------------------------------- */

/* The first words are those of the kinds, in their order.  A sparse layer's choice of keys does
 * not change how it rotates, so it is full here. */
static const struct layer_word layer_words[] = {
    [FULL] = { "full_attention", FULL, NULL },
    [SLIDING] = { "sliding_attention", SLIDING, NULL },
    [CHUNKED] = { "chunked_attention", CHUNKED, NULL },
    [WITHOUT] = { "linear_attention", WITHOUT, NULL },
    { "conv", WITHOUT, NULL },
    { "moe", WITHOUT, NULL },
    { "mlp", WITHOUT, NULL },
    { "hybrid", FULL, NULL },
    { "hybrid_sliding", SLIDING, NULL },
    { "indexed_attention", FULL, NULL },
    { "compressed_sparse_attention", FULL, NULL },
    { "heavily_compressed_attention", FULL, NULL },
    { "minimax_m3_sparse", FULL, NULL },
    { "reference_sliding_attention", FULL, NULL },
    /* Outdated words are mapped to current ones, under which dictionaries are found. */
    { "attention", FULL, "full_attention" },
    { "mamba", WITHOUT, "linear_attention" },
    { "recurrent", WITHOUT, "linear_attention" },
    { "deepseek_sparse_attention", FULL, "indexed_attention" },
    { "qwen_sparse_attention", FULL, "indexed_attention" },
};
enum { WORDS = sizeof layer_words / sizeof *layer_words };

const struct layer_word *loci_layer_word(const char *word)
{
    for (int i = 0; i < WORDS; i++)
        if (!strcmp(layer_words[i].word, word)) return &layer_words[i];
    return NULL;
}

static void set_kind(struct layer *l, enum kind kind)
{
    l->kind = kind;
    l->word = layer_words[kind].word;
}

/* ---- Settings of single layers --------------------------------------------------------------- */

/* Where a key of this layer is. */
static const json_t *place(const struct config *c, const struct layer *l, const char *key)
{
    return l->over && json_object_get(l->over, key) ? l->over : c->text;
}
static loci_status own_whole(const struct config *c, const struct layer *l, const char *key,
                             int low, int high, int *to, loci_error *e)
{
    return loci_json_whole(place(c, l, key), key, low, high, to, e);
}

/* per_layer_config has layer numbers as keys, with or without leading zeros.  All of them are
 * checked, since a wrong one may have been meant for this layer. */
static loci_status find_override(const struct config *c, struct layer *l, loci_error *e)
{
    const json_t *all = json_object_get(c->text, "per_layer_config");
    if (!loci_json_given(c->text, "per_layer_config")) return LOCI_OK;
    IO_CHECK(e, is_a(all, JSON_OBJECT),
             "per_layer_config must be an object whose keys are layer numbers");
    for (struct member m = { .of = all }; next_member(&m);) {
        char *end;
        const long index = strtol(m.key, &end, 10);
        IO_CHECK(e, end != m.key && !*end && index >= 0 && index < c->layers,
                 "per_layer_config has the key '%.32s', but layers are 0 to %d", m.key,
                 c->layers - 1);
        IO_CHECK(e, is_a(m.value, JSON_OBJECT), "'%.32s' in per_layer_config must be an object",
                 m.key);
        if (index == l->index) l->over = m.value;
    }
    return LOCI_OK;
}

/* Tests if a list of layers in the file contains this one; *there: such a list exists. */
static loci_status in_list(const struct config *c, const char *key, int layer, bool *there,
                           bool *in, loci_error *e)
{
    const json_t *v = json_object_get(c->text, key);
    *in = false;
    *there = loci_json_given(c->text, key);
    if (!*there) return LOCI_OK;
    IO_CHECK(e, is_a(v, JSON_ARRAY), "%s must be a list of layer numbers", key);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *x = json_array_get(v, i);
        const json_int_t n = is_a(x, JSON_INTEGER) ? json_integer_value(x) : -1;
        IO_CHECK(e, n >= 0 && n < c->layers, "number %zu of %s must be a layer number, 0 to %d", i,
                 key, c->layers - 1);
        if (n == layer) *in = true;
    }
    return LOCI_OK;
}

/* The layer's number in a list of one number per layer; *there: such a list exists.  An empty
 * list counts as absent, as in Llama 4's class. */
static loci_status own_number(const struct config *c, const char *key, int layer, bool *there,
                              double *to, loci_error *e)
{
    const json_t *v = json_object_get(c->text, key);
    *there = loci_json_given(c->text, key) && (!is_a(v, JSON_ARRAY) || json_array_size(v) > 0);
    if (!*there) return LOCI_OK;
    IO_CHECK(e, json_array_size(v) == (size_t)c->layers,
             "%s must be a list of %d numbers, one per layer", key, c->layers);
    const double x = loci_json_item(v, (size_t)layer);
    IO_CHECK(e, x >= 0 && x <= 1e18, "number %d of %s must be from 0 to 1e18", layer, key);
    *to = x;
    return LOCI_OK;
}

/* ---- Its kind, and whether it rotates -------------------------------------------------------- */

/* Hybrids that list their layers with attention: LFM2's, Bamba's and Zamba's words. */
static loci_status find_listed(const struct config *c, struct layer *l, loci_error *e)
{
    static const char *const lists[] = { "full_attn_idxs", "attn_layer_indices",
                                         "hybrid_layer_ids" };
    for (int i = 0; i < 3; i++) {
        bool there, in;
        loci_status s = in_list(c, lists[i], l->index, &there, &in, e);
        if (s) return s;
        if (!there) continue;
        if (!in) {
            l->kind = WITHOUT;
            l->word = i ? "linear_attention" : "conv";
        }
        return LOCI_OK;
    }
    return LOCI_OK; /* every layer attends */
}

/* The n of "one in every n layers", for which each family has its own word. */
static loci_status find_period(const struct config *c, int *period, loci_error *e)
{
    static const char *const names[] = { "sliding_window_pattern", "global_attn_every_n_layers",
                                         "full_attention_interval", "no_rope_layer_interval" };
    *period = c->family->period;
    for (int i = 0; i < 4; i++) {
        loci_status s = loci_json_whole(c->text, names[i], 1, MAX_LAYERS, period, e);
        if (s) return s;
    }
    return LOCI_OK;
}

/* no_rope_layers; without it one layer of each interval does not rotate. */
static loci_status listed_rotation(const struct config *c, int layer, bool *rotates, loci_error *e)
{
    bool there;
    double one = 1;
    int period;
    loci_status s = own_number(c, "no_rope_layers", layer, &there, &one, e);
    if (s || (s = find_period(c, &period, e))) return s;
    IO_CHECK(e, one == 0 || one == 1,
             "no_rope_layers must contain 0 and 1 only; 1 means that the layer rotates");
    /* the last layer of a period does not rotate */
    *rotates = there ? one == 1 : (layer + 1) % period != 0;
    return LOCI_OK;
}

/* DeepSeek-V4's older files: how many keys a layer pools into one, 0 for a sliding layer.  The list
 * may be longer than the model. */
static loci_status ratio_kind(const struct config *c, struct layer *l, loci_error *e)
{
    const json_t *v = json_object_get(c->text, "compress_ratios");
    const double ratio = loci_json_item(v, (size_t)l->index);
    IO_CHECK(e, ratio == 0 || ratio == 4 || ratio == 128,
             "compress_ratios must be a list of 0, 4 and 128, one per layer");
    if (ratio == 0) set_kind(l, SLIDING);
    else l->word = ratio == 4 ? "compressed_sparse_attention" : "heavily_compressed_attention";
    return LOCI_OK;
}

/* The file's list if it has one, otherwise the family's pattern. */
static loci_status find_kind(const struct config *c, struct layer *l, loci_error *e)
{
    const int n = l->index;
    int period;
    bool listed = true;
    set_kind(l, FULL);
    if (c->layer_types) { /* check_layer_types() knows all its words */
        const json_t *v =
            json_array_get(c->layer_types, (size_t)n % json_array_size(c->layer_types));
        const struct layer_word *w = loci_layer_word(json_string_value(v));
        l->kind = w->kind;
        l->word = w->now ? w->now : w->word;
        return LOCI_OK;
    }
    loci_status s = find_period(c, &period, e);
    if (s) return s;
    switch (c->family->pattern) {
    case ALL_FULL:
        break;
    case LAST_FULL:
        /* Families with wider full heads end with a full layer, for any period. */
        if ((n + 1) % period && (c->family->full_head_dim == 0 || n < c->layers - 1))
            set_kind(l, SLIDING);
        break;
    case FIRST_FULL:
        if (n % period) set_kind(l, SLIDING);
        break;
    case LATE_FULL:
        if ((c->layers - 1 - n) % period) set_kind(l, SLIDING);
        break;
    case LAST_CHUNKLESS:
        s = listed_rotation(c, n, &listed, e);
        if (listed) set_kind(l, CHUNKED);
        break;
    case LAST_ATTENDS:
        if ((n + 1) % period) set_kind(l, WITHOUT);
        break;
    case LISTED_ATTEND:
        return find_listed(c, l, e);
    case ONLY_LISTED:
        if (c->family->own == DEEPSEEK_V4 && loci_json_given(c->text, "compress_ratios"))
            return ratio_kind(c, l, e);
        return loci_io_fail(e, LOCI_BAD_ARG, "layer_types is missing; %s requires it",
                            c->family->type);
    }
    return s;
}

/* Cohere's mixtures of experts: a dense layer before them rotates if that prefix
 * has no pattern of its own. */
static bool in_prefix(const struct config *c, int layer)
{
    const json_t *mlps = json_object_get(c->text, "mlp_layer_types");
    const json_t *pattern = json_object_get(c->text, "prefix_dense_sliding_window_pattern");
    const char *word = json_string_value(json_array_get(mlps, (size_t)layer));
    return word && !strcmp(word, "dense")
        && (!is_a(pattern, JSON_INTEGER) || json_integer_value(pattern) == 1);
}

/* Tests if the family's rule lets this kind of layer rotate; *base is set if
 * layers have their own bases. */
static loci_status find_rotations(const struct config *c, const struct layer *l, bool *rotates,
                                  double *base, loci_error *e)
{
    const bool zeros_only = c->family->rotates == LATE_ZEROS_STILL;
    bool there;
    int period;
    *rotates = l->kind != WITHOUT;
    switch (c->family->rotates) {
    case ALL_ROTATE:
    case SCALED_ROTATE:
    case NULL_STILL:
    case NULL_BASE_STILL:
        break;
    case SLIDING_ROTATES:
        *rotates = l->kind == SLIDING;
        break;
    /* an absent window is the class's own; null means no window */
    case SLIDING_OR_OPEN:
        *rotates =
            l->kind == SLIDING || is_a(json_object_get(c->text, "sliding_window"), JSON_NULL);
        break;
    case LISTED_ROTATE:
        return listed_rotation(c, l->index, rotates, e);
    case BASES_ROTATE:
    case LATE_ZEROS_STILL: {
        loci_status s;
        if ((s = own_number(c, "layer_rope_theta", l->index, &there, base, e))
            || (s = find_period(c, &period, e)))
            return s;
        if (there) *rotates = *base > 0;
        else if (zeros_only) *rotates = (c->layers - 1 - l->index) % period != 0;
        if (zeros_only) *base = 0; /* numbers other than zero are not bases there */
        break;
    }
    case PREFIX_ROTATES:
        *rotates = l->kind == SLIDING || in_prefix(c, l->index);
        break;
    }
    return LOCI_OK;
}

/* True if the layer's dictionary, or the lack of one, disables its rotation.  A base of null
 * counts in the first place where a base is searched. */
static bool stays_still(const struct config *c, const struct dict *d)
{
    const json_t *o = json_object_get(d->json, "rope_theta") ? d->json : c->text;
    if (c->family->rotates == NULL_STILL) return !d->json;
    return c->family->rotates == NULL_BASE_STILL
        && is_a(json_object_get(o, "rope_theta"), JSON_NULL);
}

/* ---- Its head -------------------------------------------------------------------------------- */

/* The width of a head, 0 if the file does not give it.  Latent keys are [without |
 * with] positions, and their files give the width of both parts: *rope channels rotate;
 * *rope is 0 for other heads. */
static loci_status find_head(const struct config *c, const struct layer *l, struct settings *t,
                             int *rope, loci_error *e)
{
    const int least = c->family->instead ? 0 : 1;
    int nope = 0, heads = c->heads, hidden = c->hidden;
    loci_status s;
    *rope = 0;
    if ((s = own_whole(c, l, "qk_rope_head_dim", 0, MAX_HEAD, rope, e))
        || (s = own_whole(c, l, "qk_nope_head_dim", 0, MAX_HEAD, &nope, e))
        || (s = own_whole(c, l, "num_attention_heads", least, 65536, &heads, e))
        || (s = own_whole(c, l, "hidden_size", 1, 1 << 20, &hidden, e)))
        return s;
    t->heads = heads;
    if (c->family->partial > 0) *rope = 0; /* these give it as a share */
    if (*rope > 0) {
        IO_CHECK(e, loci_json_given(place(c, l, "qk_nope_head_dim"), "qk_nope_head_dim"),
                 "qk_nope_head_dim is missing; qk_rope_head_dim requires it");
        t->head_dim = *rope + nope;
    } else {
        t->head_dim = c->family->width_rules ? 0
                    : c->head_dim > 0        ? c->head_dim
                                             : c->family->head_dim;
        if (l->kind == FULL && !loci_json_given(c->text, "per_layer_config")) {
            if (c->family->full_head_dim > 0) t->head_dim = c->family->full_head_dim;
            s = loci_json_whole(c->text, "global_head_dim", 1, MAX_HEAD, &t->head_dim, e);
        }
        /* a layer's own width precedes every rule; without one, the width is divided evenly */
        if (!s && l->over) s = loci_json_whole(l->over, "head_dim", 1, MAX_HEAD, &t->head_dim, e);
        if (s) return s;
        if (t->head_dim == 0 && heads > 0 && hidden > 0) t->head_dim = hidden / heads;
    }
    return loci_check_head(t, e);
}

/* ---- Besides the rotation -------------------------------------------------------------------- */

/* Queries that grow with their position, against the flattening of the softmax: those of Llama
 * 4's layers without rotation by its numbers or the file's, and those of all layers if the
 * dictionary has Mistral's word for it. */
static loci_status find_warmth(const struct config *c, const struct dict *d, bool rotates,
                               struct settings *t, loci_error *e)
{
    loci_status s;
    if (!rotates && !strncmp(c->family->type, "llama4", 6)) {
        double on = 1, warmth = 0.1, length = 8192;
        const json_t *v = json_object_get(c->text, "attn_temperature_tuning");
        if (is_flag(v)) on = is_a(v, JSON_TRUE);
        else if ((s = loci_json_number(c->text, "attn_temperature_tuning", true, &on, e))) return s;
        if ((s = loci_json_number(c->text, "attn_scale", true, &warmth, e))
            || (s = loci_json_number(c->text, "floor_scale", false, &length, e)))
            return s;
        if (on > 0) {
            t->warmth = warmth;
            t->warm_length = length;
            t->warm_shift = 1;
        }
    } else if (!isnan(d->value[K_BETA])) {
        IO_CHECK(e, !isnan(d->value[K_ORIGINAL]),
                 "original_max_position_embeddings is missing; llama_4_scaling_beta requires it");
        t->warmth = d->value[K_BETA];
        t->warm_length = d->value[K_ORIGINAL];
    }
    return LOCI_OK;
}

/* The factor of q.k, before the factor of the rotation's scaling; 0 if
 * the head's width is unknown. */
static loci_status find_scale(const struct config *c, struct settings *t, loci_error *e)
{
    const struct family *f = c->family;
    const json_t *mpt = f->own == MPT ? json_object_get(c->text, "attn_config") : NULL;
    double of = f->scale_of > 0 ? f->scale_of : t->head_dim;
    loci_status s = LOCI_OK;
    t->scale = t->head_dim > 0 ? 1 / sqrt(t->head_dim) : 0;
    switch (f->scale) {
    case ROOT:
        return mpt ? loci_json_number(mpt, "softmax_scale", false, &t->scale, e) : LOCI_OK;
    case ONE:
        t->scale = 1;
        break;
    case PRE_ATTENTION:
        s = loci_json_number(c->text, "query_pre_attn_scalar", false, &of, e);
        t->scale = of > 0 ? 1 / sqrt(of) : 0;
        break;
    case MULTIPLIER: /* without a default, by the head */
        if (f->scale_of > 0) t->scale = f->scale_of;
        s = loci_json_number(c->text, "attention_multiplier", false, &t->scale, e);
        break;
    case QK_FACTOR:
        s = loci_json_number(c->text, "qk_scale_factor", false, &of, e);
        t->scale *= of;
        break;
    case HALF_HEAD:
        /* Zamba2's heads are twice as wide, for the embeddings next to the hidden state. */
        t->scale *= sqrt(2);
        break;
    }
    return s;
}

/* Gemma's models for embeddings see keys on both sides, half of the window each. */
static bool sees_both_ways(const struct config *c)
{
    const json_t *v = json_object_get(c->text, "use_bidirectional_attention");
    return c->family->local == LOCAL_FREQ
        && (is_a(v, JSON_TRUE) || (is_a(v, JSON_STRING) && !strcmp(json_string_value(v), "all")));
}

/* The number of keys that a row sees, including its own; 0: all.  An absent window is the
 * family's, and null means none. */
static loci_status find_window(const struct config *c, const struct layer *l, struct settings *t,
                               loci_error *e)
{
    const struct family *f = c->family;
    static const char *const names[] = { "sliding_window", "attention_window_size" };
    int window = f->window, chunk = 8192;
    bool asked = f->windowed != IF_ASKED;
    loci_status s = loci_json_flag(c->text, "use_sliding_window", &asked, e);
    for (int i = 0; i < 2 && !s; i++) {
        if (is_a(json_object_get(place(c, l, names[i]), names[i]), JSON_NULL)) window = 0;
        s = own_whole(c, l, names[i], 0, 1 << 30, &window, e);
    }
    if (!s && f->windowed == HALVED) { /* ModernBERT counts both sides in one number */
        window = f->window;
        s = loci_json_whole(c->text, "local_attention", 0, 1 << 30, &window, e);
        window /= 2;
    }
    if (!s && l->kind == CHUNKED) {
        s = loci_json_whole(c->text, "attention_chunk_size", 1, 1 << 30, &chunk, e);
        t->chunk = chunk;
    }
    /* A class with a window everywhere reads layer_types if the file has it, as all classes do.
     * In RecurrentGemma's list "attention" slides. */
    const bool everywhere =
        f->windowed == EVERYWHERE && (!c->layer_types || f->pattern == LAST_ATTENDS);
    const bool slides = l->kind == SLIDING || (everywhere && l->kind == FULL);
    if (s || !asked || window == 0 || !slides) return s;
    t->window = sees_both_ways(c) ? window / 2 + 1 : window + f->both;
    return LOCI_OK;
}

/* Settings besides the rotation: sink, softcap, window, scale. */
static loci_status find_company(const struct config *c, const struct layer *l, struct settings *t,
                                loci_error *e)
{
    const enum sinks sinks = c->family->sinks;
    const json_t *cap = json_object_get(c->text, "attn_logit_softcapping");
    loci_status s;
    t->sink = sinks == SINKS || (sinks == SLIDING_SINKS && l->kind == SLIDING);
    t->cap = cap ? 0 : c->family->cap; /* null in the file means none, as 0 is not allowed */
    if ((s = loci_json_number(c->text, "attn_logit_softcapping", false, &t->cap, e))
        || (s = find_window(c, l, t, e)))
        return s;
    return find_scale(c, t, e);
}

/* ---- One layer ------------------------------------------------------------------------------- */

/* Families that have a bias instead.  Falcon rounds its slopes to bfloat16 and divides them as
 * it does the scores, so they are listed one by one. */
static loci_status read_instead(const struct config *c, struct settings *t, loci_error *e)
{
    t->instead = c->family->instead ? c->family->instead : "alibi";
    if (!strcmp(t->instead, "t5")) {
        t->instead = "t5:bidirectional=0";
        t->note = "for the decoder; the encoder has bidirectional=1";
    }
    if (c->family->own != FALCON) return LOCI_OK;
    IO_CHECK(e, t->heads > 0 && t->head_dim > 0,
             "num_attention_heads or hidden_size is missing; the slopes of alibi require both");
    t->instead = "alibi:slopes=given";
    t->slope_scale = 1 / sqrt(t->head_dim);
    return LOCI_OK;
}

/* rope_scaling_layers: the others have the base and no scaling. */
static loci_status unscale(const struct config *c, const struct layer *l, struct dict *d,
                           loci_error *e)
{
    bool there, in;
    if (c->family->rotates != SCALED_ROTATE) return LOCI_OK;
    loci_status s = in_list(c, "rope_scaling_layers", l->index, &there, &in, e);
    return s || !there || in ? s : loci_dict_unscale(d, e);
}

/* A layer that cannot rotate returns early, so that rotation settings of its file are not read.
 * A layer that merely does not rotate is read like the rest, so that scale and window are known. */
loci_status loci_config_layer(const struct loci_model *m, int layer, double length,
                              struct settings *t, loci_error *e)
{
    const struct config *c = m->file;
    struct layer l = { .index = layer };
    struct dict d;
    int rope;
    bool rotates;
    double own_base = 0;
    loci_status s;
    t->interleaved = c->family->interleaved;
    t->trained_length = c->trained;
    t->note = c->note;
    t->turns_back = c->family->own == DEEPSEEK_V4;
    t->values = t->turns_back || (c->note && c->family->own == ROFORMER);
    if (c->alibi || c->family->instead) {
        set_kind(&l, FULL); /* a bias applies to every layer alike */
        if ((s = find_head(c, &l, t, &rope, e)) || (s = find_company(c, &l, t, e))) return s;
        return read_instead(c, t, e);
    }
    if ((s = find_override(c, &l, e)) || (s = find_kind(c, &l, e))) return s;
    t->layer = l.word;
    if (t->turns_back && l.kind == SLIDING) t->note = NULL;
    if (l.kind == WITHOUT) {
        t->instead = "nope";
        return LOCI_OK;
    }
    if ((s = find_rotations(c, &l, &rotates, &own_base, e)) || (s = loci_dict_find(c, &l, &d, e))
        || (s = unscale(c, &l, &d, e)) || (s = find_head(c, &l, t, &rope, e))
        || (s = find_company(c, &l, t, e)))
        return s;
    /* rule of the family, switch of the file, dictionary of the layer: each can disable rotation */
    rotates = rotates && c->rotates && !stays_still(c, &d);
    if ((s = find_warmth(c, &d, rotates, t, e))) return s;
    if (!rotates) {
        t->instead = "nope";
        return LOCI_OK;
    }
    return loci_config_rotation(c, &l, &d, own_base, rope, length, t, e);
}
