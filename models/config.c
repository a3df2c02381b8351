/* SPDX-License-Identifier: MIT */
/* config.c -- a Hugging Face config.json: the file, and its settings for all layers.
 *
 * Settings are searched in this order.  Dictionary: rope_parameters (flat, or one dictionary per
 * kind of layer), then rope_scaling.  Base: rope_theta in that dictionary, next to it,
 * rotary_emb_base, the class's own default.  Type: rope_type, then type.  Share:
 * partial_rotary_factor in the dictionary, next to it, rotary_pct, the class's default.
 * Decisions of the class that the file does not state are in families.c.  An unknown model_type
 * is rejected, since its pairing would be a guess.  Settings that differ for one layer are in
 * per_layer_config, by its number. */
#include <stdlib.h>
#include <string.h>

#include "models/config.h"

/* A longer file is something else, weights perhaps, and is rejected before it is read. */
enum { MAX_BYTES = 1 << 20 };

/* ---- Families with their own words ----------------------------------------------------------- */

/* MPT has its positions in attn_config.  With alibi_bias_max 8 the slopes are the default ones,
 * for any number of heads; with another value the encoding would have to list them all. */
static loci_status read_mpt(struct config *c, loci_error *e)
{
    const json_t *attention = json_object_get(c->text, "attn_config");
    bool rope = false;
    double most = 8;
    loci_status s;
    IO_CHECK(e, is_a(attention, JSON_OBJECT),
             "attn_config is missing; it must say whether this model has alibi");
    if ((s = loci_json_flag(attention, "alibi", &c->alibi, e))
        || (s = loci_json_flag(attention, "rope", &rope, e))
        || (s = loci_json_number(attention, "alibi_bias_max", false, &most, e)))
        return s;
    IO_CHECK(e, c->alibi && !rope,
             "attn_config must have alibi true and no rope; other mpt models are not supported");
    IO_CHECK(e, most == 8, "alibi_bias_max is %g, but only 8 is supported", most);
    return LOCI_OK;
}

/* Three generations share the word chatglm, and rope_ratio has a different meaning in each.
 * Only GLM-4's is known to multiply the base, and only its vocabulary size identifies GLM-4. */
static loci_status read_chatglm(struct config *c, loci_error *e)
{
    double ratio = 1;
    int vocabulary = 0;
    loci_status s;
    if ((s = loci_json_whole(c->text, "kv_channels", 1, MAX_HEAD, &c->head_dim, e))
        || (s = loci_json_number(c->text, "rope_ratio", false, &ratio, e))
        || (s = loci_json_whole(c->text, "padded_vocab_size", 1, 1 << 30, &vocabulary, e)))
        return s;
    IO_CHECK(e, c->head_dim > 0,
             "kv_channels is missing; the first ChatGLM, which rotates by two positions, is not "
             "supported");
    IO_CHECK(e, ratio == 1 || vocabulary >= 150000,
             "rope_ratio is %g, which is ambiguous: ChatGLM2 divides positions by it, ChatGLM3 "
             "multiplies the base; only 1 can be read here",
             ratio);
    c->base *= ratio;
    return LOCI_OK;
}

static loci_status read_own(struct config *c, loci_error *e)
{
    const json_t *attention = json_object_get(c->text, "attn_config");
    bool values = false;
    loci_status s = LOCI_OK;
    switch (c->family->own) {
    case BLOOM:
        c->alibi = true;
        break;
    case FALCON:
        return loci_json_flag(c->text, "alibi", &c->alibi, e);
    case MPT:
        return read_mpt(c, e);
    case CHATGLM:
        return read_chatglm(c, e);
    case DBRX:
        return loci_json_number(attention, "rope_theta", false, &c->base, e);
    case ROFORMER:
        s = loci_json_flag(c->text, "rotary_value", &values, e);
        if (values) c->note = "values are rotated as keys are";
        break;
    case COMMON:
    case DEEPSEEK_V4: /* settings of V4 alone are read layer by layer */
        break;
    }
    return s;
}

/* ---- All families ---------------------------------------------------------------------------- */

/* Every word is tested when the file is opened, so that no layer fails later
 * for a word of another one. */
static loci_status check_layer_types(struct config *c, loci_error *e)
{
    static const char *const names[] = { "layer_types", "layers_block_type", "block_types" };
    int which = 0;
    while (which < 3 && !loci_json_given(c->text, names[which])) which++;
    if (which == 3) return LOCI_OK;
    const char *key = names[which];
    const json_t *v = json_object_get(c->text, key);
    const size_t n = json_array_size(v); /* 0: no list */
    const bool repeats = which == 2;     /* RecurrentGemma's block_types, one period */
    IO_CHECK(e, n == (size_t)c->layers || (repeats && n > 0),
             "%s must be a list of %d strings, one per layer", key, c->layers);
    for (int l = 0; l < c->layers; l++) {
        const char *name = json_string_value(json_array_get(v, (size_t)l % n));
        IO_CHECK(e, name && loci_layer_word(name),
                 "%s names '%.32s' for layer %d; known: full_attention sliding_attention "
                 "chunked_attention linear_attention conv hybrid and others in docs/models.md",
                 key, name ? name : "?", l);
    }
    c->layer_types = v;
    return LOCI_OK;
}

/* Reads the file's switch, if its family has one, that lets layers rotate. */
static loci_status read_switch(struct config *c, loci_error *e)
{
    const struct family *f = c->family;
    const json_t *v = f->only_if ? json_object_get(c->text, f->only_if) : NULL;
    c->rotates = !f->instead && !f->only_if;
    if (f->only_word)
        c->rotates = is_a(v, JSON_STRING) && !strcmp(json_string_value(v), f->only_word);
    else if (f->only_if) return loci_json_flag(c->text, f->only_if, &c->rotates, e);
    /* BERT's relatives may have tables of relative positions instead, which no encoding here
     * matches: calling such layers nope would be wrong. */
    v = json_object_get(c->text, "position_embedding_type");
    const char *word = is_a(v, JSON_STRING) ? json_string_value(v) : "absolute";
    IO_CHECK(e, c->rotates || strncmp(word, "relative", 8),
             "position_embedding_type '%.32s' is not supported", word);
    return LOCI_OK;
}

/* The number of layers and heads, the width of a head, and the length in training.  The first
 * existing name counts: files with both halves of a model are read for their decoder. */
static loci_status read_shape(struct config *c, loci_error *e)
{
    static const char *const layers[] = { "num_hidden_layers",
                                          "n_layer",
                                          "num_layers",
                                          "n_layers",
                                          "decoder_num_hidden_layers",
                                          "decoder_layers",
                                          "encoder_num_hidden_layers",
                                          "encoder_layers",
                                          NULL };
    static const char *const heads[] = { "num_attention_heads",
                                         "n_head",
                                         "n_heads",
                                         "num_heads",
                                         "decoder_num_attention_heads",
                                         "decoder_attention_heads",
                                         "encoder_num_attention_heads",
                                         "encoder_attention_heads",
                                         NULL };
    static const char *const hidden[] = { "hidden_size", "n_embd", "d_model", NULL };
    static const char *const head_dim[] = { "head_dim", "attention_head_dim", "kv_channels", "d_kv",
                                            NULL };
    static const char *const lengths[] = {
        "max_position_embeddings", "n_positions",         "seq_length", "max_seq_len",
        "model_max_length",        "max_sequence_length", NULL
    };
    /* Some families without rotation give heads of width 0. */
    const int low = c->family->instead ? 0 : 1;
    loci_status s;
    if ((s = loci_json_any_whole(c->text, layers, 1, MAX_LAYERS, &c->layers, e))
        || (s = loci_json_any_whole(c->text, heads, low, 65536, &c->heads, e))
        || (s = loci_json_any_whole(c->text, hidden, 1, 1 << 20, &c->hidden, e))
        || (s = loci_json_any_whole(c->text, head_dim, low, MAX_HEAD, &c->head_dim, e)))
        return s;
    for (int i = 0; lengths[i] && c->trained == 0; i++)
        if ((s = loci_json_number(c->text, lengths[i], false, &c->trained, e))) return s;
    IO_CHECK(e, c->layers > 0, "num_hidden_layers is missing");
    c->base = c->family->base > 0 ? c->family->base : 10000;
    c->note = c->family->note;
    if ((s = read_own(c, e)) || (s = read_switch(c, e))) return s;
    return c->family->instead ? LOCI_OK : check_layer_types(c, e);
}

/* Finds the object about the language model, which files of several models nest two or three
 * deep.  Returns the innermost word for its type, which may be above it. */
static const json_t *find_type_word(struct config *c)
{
    static const char *const nested[] = { "text_config",    "llm_config",     "language_config",
                                          "thinker_config", "decoder_config", "decoder" };
    const json_t *type = json_object_get(c->root, "model_type");
    c->text = c->root;
    for (int depth = 0; depth < 3; depth++) {
        const json_t *above = c->text;
        for (int i = 0; i < (int)(sizeof nested / sizeof *nested) && c->text == above; i++)
            if (is_a(json_object_get(above, nested[i]), JSON_OBJECT))
                c->text = json_object_get(above, nested[i]);
        if (c->text == above) break;
        if (loci_json_given(c->text, "model_type")) type = json_object_get(c->text, "model_type");
    }
    return type;
}

/* The family comes first: it decides how all other keys are read. */
static loci_status interpret(struct loci_model *m, struct config *c, loci_error *e)
{
    IO_CHECK(e, is_a(c->root, JSON_OBJECT),
             "a config.json must be an object: {\"model_type\": ...}");
    const json_t *type = find_type_word(c);
    IO_CHECK(e, is_a(type, JSON_STRING),
             "model_type is missing; it determines the pairing of channels");
    IO_CHECK(e, PLANTED_BUG(3, json_string_length(type) < MAX_TYPE),
             "model_type is longer than %d bytes", MAX_TYPE - 1);
    strcpy(m->type, json_string_value(type));
    c->family = loci_find_family(m->type);
    IO_CHECK(e, c->family,
             "model_type '%s' is not supported, and its pairing would be a guess; docs/models.md "
             "lists the supported types",
             m->type);
    loci_status s = LOCI_OK;
    if (c->family->rope)
        s = loci_json_parse(c->family->rope, strlen(c->family->rope), &c->usual, e);
    if (!s) s = read_shape(c, e);
    m->layers = c->layers;
    return s;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void close_config(struct loci_model *m)
{
    struct config *c = m->file;
    json_decref(c->root);
    json_decref(c->usual);
    free(c);
}

loci_status loci_config_open(struct loci_model *m, const struct source *from, loci_error *e)
{
    IO_CHECK(e, from->size <= MAX_BYTES,
             "the file has %llu bytes, but a config.json may have at most %d",
             (unsigned long long)from->size, MAX_BYTES);
    const size_t n = (size_t)from->size;
    struct config *c = calloc(1, sizeof *c);
    char *text = malloc(n + 1);
    loci_status s = c && text ? LOCI_OK : loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    if (!s) s = loci_io_read(from, text, n, 0, e);
    if (!s) s = loci_json_parse(text, n, &c->root, e);
    if (!s) s = interpret(m, c, e);
    free(text); /* jansson has copied what it needs */
    m->file = c;
    m->read = loci_config_layer;
    m->close = close_config;
    if (s && c) close_config(m);
    return s;
}
