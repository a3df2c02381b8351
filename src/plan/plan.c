/* SPDX-License-Identifier: MIT */
/* plan.c -- from a description to a plan.  Every rule about the description is checked here.  So a
 * call can fail only because of its own shapes and positions. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "platform/numbers.h"
#include "util/arguments.h"
#include "util/shape_text.h"
#include "math/q8.h"
#include "contract/engine.h"
#include "plan/parse.h"

enum { MAX_HEADS = 65536, MAX_MODEL_DIM = 1 << 20, MAX_ISAS = 8 };

/* ---- Functions that encodings call ----------------------------------------------------------- */

/* A tensor by the name of its encoding and its own name.  NULL: it is not in the list. */
static const loci_tensor *find_tensor(const loci_tensor *list, int n, const char *encoding,
                                      const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(list[i].encoding, encoding) && !strcmp(list[i].name, name)) return &list[i];
    return NULL;
}

/* A tensor of the encoding: while a plan is being created, as the caller lists it; afterwards, as
 * the plan has it.  Encodings ask whether an optional tensor is present, and for shapes that carry
 * information. */
const loci_tensor *loci_have(const struct config *c, const char *name)
{
    return find_tensor(c->have, c->have_count, c->pe->name, name);
}

loci_tensor *loci_add_tensor(struct tensors *t, const struct config *c, const char *name,
                             loci_role role, enum init kind, double a, double b, int rank,
                             const ptrdiff_t *shape)
{
    /* The number of tensors of an encoding is fixed, and MAX_TENSORS covers it. */
    assert(t->n < MAX_TENSORS && rank <= COUNT(t->list->shape));
    int i = t->n++;
    t->init[i].kind = kind;
    t->init[i].a = a;
    t->init[i].b = b;
    t->low[i] = -INFINITY;
    t->list[i] = (loci_tensor){ .encoding = c->pe->name, .name = name, .role = role, .rank = rank };
    memcpy(t->list[i].shape, shape, (size_t)rank * sizeof *shape);
    return &t->list[i];
}

loci_tensor *loci_add_input(struct tensors *t, const struct config *c, const char *name,
                            loci_source source, int rank, const ptrdiff_t *shape)
{
    t->source[t->n] = source;
    return loci_add_tensor(t, c, name, LOCI_INPUT, INIT_ZERO, 0, 0, rank, shape);
}

void loci_add_term(struct termlist *t, enum term_id term, enum group group)
{
    assert(t->n < MAX_USES);
    t->use[t->n++] = (struct use){ .term = term, .group = group, .enc = t->enc };
}

void loci_add_term_layout(struct termlist *t, enum term_id term, enum group group,
                          const void *layout, size_t bytes)
{
    assert(bytes <= LAYOUT_BYTES);
    loci_add_term(t, term, group);
    memcpy(t->use[t->n - 1].layout, layout, bytes);
}

/* ---- The problem ----------------------------------------------------------------------------- */

/* Stage, dtype, numbers and scale.  Enums come from callers and may have any int value. */
static loci_status check_kind(const loci_desc *d, loci_error *e)
{
    CHECK(e, (int)d->stage >= LOCI_ATTENTION && d->stage <= LOCI_LINEAR_ATTENTION, LOCI_BAD_ARG,
          "stage %d must be LOCI_ATTENTION, LOCI_ROTATE, LOCI_EMBED or LOCI_LINEAR_ATTENTION",
          (int)d->stage);
    CHECK(e, (int)d->dtype >= LOCI_F32 && d->dtype <= LOCI_F16, LOCI_BAD_ARG,
          "dtype %d must be LOCI_F32, LOCI_F64, LOCI_BF16 or LOCI_F16", (int)d->dtype);
    const loci_dtype stored[] = { d->k_dtype, d->v_dtype };
    for (int i = 0; i < COUNT(stored); i++) {
        const bool as_dtype = stored[i] == LOCI_F32 || stored[i] == d->dtype;
        CHECK(e,
              as_dtype || stored[i] == LOCI_BF16 || stored[i] == LOCI_F16 || stored[i] == LOCI_Q8_0,
              LOCI_BAD_ARG,
              "%c_dtype %d must be LOCI_BF16, LOCI_F16 or LOCI_Q8_0, or 0 for the plan's dtype",
              "kv"[i], (int)stored[i]);
        CHECK(e, as_dtype || d->stage == LOCI_ATTENTION, LOCI_BAD_ARG,
              "%c_dtype must be 0 in stages other than ATTENTION", "kv"[i]);
    }
    CHECK(e, !d->fast || d->dtype == LOCI_BF16, LOCI_BAD_ARG,
          "fast requires dtype BF16, not %s: it means dot products of bf16 numbers",
          d->dtype == LOCI_F32   ? "F32"
          : d->dtype == LOCI_F64 ? "F64"
                                 : "F16");
    /* The scale, its products with options up to 10^6, and the inverses of both must be finite
     * reals. */
    const double most = d->dtype == LOCI_F64 ? 1e300 : 1e30;
    CHECK(e, d->scale == 0 || (fabs(d->scale) >= 1 / most && fabs(d->scale) <= most), LOCI_BAD_ARG,
          "scale %g must have a magnitude from %g to %g in this dtype, or be 0 for the encoding's "
          "rule",
          d->scale, 1 / most, most);
    CHECK(e, d->max_len >= 0, LOCI_BAD_ARG, "max_len %td must not be negative", d->max_len);
    return LOCI_OK;
}

/* Heads and widths.  Rows of stage EMBED only have model_dim; heads and dim may be 0 there. */
static loci_status set_shape(loci_plan *p, const loci_desc *d, loci_error *e)
{
    bool embed = d->stage == LOCI_EMBED;
    p->heads = embed && d->heads == 0 ? 1 : d->heads;
    p->kv_heads = d->kv_heads == 0 ? p->heads : d->kv_heads;
    p->dim = d->dim;
    p->score_dim = p->dim;
    p->value_dim = d->value_dim == 0 ? d->dim : d->value_dim;
    p->model_dim = d->model_dim;
    /* Heads times a width is an int in many places, and this keeps it in range. */
    CHECK(e, p->heads >= 1 && p->heads <= MAX_HEADS, LOCI_BAD_ARG, "heads %d must be from 1 to %d",
          p->heads, MAX_HEADS);
    CHECK(e, p->kv_heads >= 1 && p->heads % p->kv_heads == 0, LOCI_BAD_ARG,
          "kv_heads %d must divide heads %d", p->kv_heads, p->heads);
    CHECK(e, p->dim >= (embed ? 0 : 1) && p->dim <= MAX_DIM, LOCI_BAD_ARG,
          "dim %d must be from 1 to %d", p->dim, MAX_DIM);
    CHECK(e, p->value_dim >= (embed ? 0 : 1) && p->value_dim <= MAX_DIM, LOCI_BAD_ARG,
          "value_dim %d must be from 1 to %d, or 0 for dim", p->value_dim, MAX_DIM);
    CHECK(e, p->model_dim >= (embed ? 1 : 0) && p->model_dim <= MAX_MODEL_DIM, LOCI_BAD_ARG,
          "model_dim %d must be from 1 to %d", p->model_dim, MAX_MODEL_DIM);
    p->group = p->heads / p->kv_heads;
    return LOCI_OK;
}

/* The largest visible distance on one side.  0 means no limit, as in the whole struct, so LOCI_NONE
 * stands for no keys on that side. */
static loci_status set_window(int64_t *to, int64_t wish, const char *side, loci_error *e)
{
    CHECK(e, wish >= LOCI_NONE, LOCI_BAD_ARG,
          "window_%s %lld must be a distance, 0 for no limit, or LOCI_NONE for no key on that side",
          side, (long long)wish);
    *to = wish == 0 ? INT64_MAX : wish == LOCI_NONE ? 0 : wish;
    return LOCI_OK;
}

/* What linear attention does not support. */
static loci_status check_linear(const loci_desc *d, loci_error *e)
{
    CHECK(e, d->window_left == 0 && d->window_right == 0, LOCI_BAD_ARG,
          "linear attention has no windows: it cannot remove keys from its sums");
    CHECK(e, d->scale == 0, LOCI_BAD_ARG,
          "linear attention has no scale: %g would multiply both of its sums and cancel", d->scale);
    CHECK(e, !d->keys_rotated, LOCI_BAD_ARG,
          "keys_rotated must be 0: linear attention rotates features of keys, which no cache "
          "stores");
    return LOCI_OK;
}

/* Everything that does not depend on the encodings. */
static loci_status set_problem(loci_plan *p, const loci_desc *d, loci_error *e)
{
    loci_status status;
    if ((status = check_kind(d, e)) || (status = set_shape(p, d, e))
        || (status = set_window(&p->window_left, d->window_left, "left", e))
        || (status = set_window(&p->window_right, d->window_right, "right", e))
        || (status = d->stage == LOCI_LINEAR_ATTENTION ? check_linear(d, e) : LOCI_OK))
        return status;
    p->stage = d->stage;
    p->dtype = d->dtype;
    p->f64 = d->dtype == LOCI_F64;
    p->real = p->f64 ? sizeof(double) : sizeof(float);
    p->stored = stored_size(d->dtype);
    p->k_dtype = d->k_dtype ? d->k_dtype : d->dtype;
    p->v_dtype = d->v_dtype ? d->v_dtype : d->dtype;
    p->full = d->full != 0;
    p->keys_rotated = d->keys_rotated != 0;
    p->values_in_keys = d->values_in_keys != 0;
    if (p->values_in_keys) p->v_dtype = p->k_dtype;
    return LOCI_OK;
}

/* Values that are channels of the keys: as many as there are, and none that a rotation changes. */
static loci_status check_values_in_keys(const loci_plan *p, const loci_desc *d,
                                        const struct config *rotation, loci_error *e)
{
    if (!p->values_in_keys) return LOCI_OK;
    const int first = !rotation                   ? p->dim
                    : rotation->pe->first_rotated ? rotation->pe->first_rotated(rotation)
                                                  : 0;
    CHECK(e, p->stage == LOCI_ATTENTION, LOCI_BAD_ARG,
          "values_in_keys must be 0 in stages other than ATTENTION");
    CHECK(e, p->value_dim <= p->dim, LOCI_BAD_ARG,
          "value_dim %d must be at most dim %d: values_in_keys is 1", p->value_dim, p->dim);
    CHECK(e, !d->v_dtype || d->v_dtype == d->k_dtype, LOCI_BAD_ARG,
          "v_dtype must be 0 or k_dtype: values_in_keys is 1");
    CHECK(e, p->value_dim <= first, LOCI_BAD_ARG,
          "%s rotates channels of keys from number %d on, and values_in_keys makes the first %d of "
          "them values: rotate later ones, as rope does with offset=%d",
          rotation->pe->name, first, p->value_dim, p->value_dim);
    CHECK(e, p->moves < 0 && !p->turns_values, LOCI_UNSUPPORTED,
          "values_in_keys does not support %s, which changes keys or values",
          p->enc[p->use[p->moves < 0 ? p->rotate : p->moves].enc].pe->name);
    return LOCI_OK;
}
/* Blocks of q8_0 do not end within a row. */
static loci_status check_blocks(const loci_plan *p, loci_error *e)
{
    CHECK(e, p->k_dtype != LOCI_Q8_0 || key_dim(p) % Q8_BLOCK == 0, LOCI_BAD_ARG,
          "k_dtype LOCI_Q8_0 has blocks of %d numbers, which must divide the width of keys, %d",
          Q8_BLOCK, key_dim(p));
    CHECK(e, p->v_dtype != LOCI_Q8_0 || p->value_dim % Q8_BLOCK == 0, LOCI_BAD_ARG,
          "v_dtype LOCI_Q8_0 has blocks of %d numbers, which must divide the width of values, %d",
          Q8_BLOCK, p->value_dim);
    return LOCI_OK;
}

/* The engine of that name, or the best.  `fast` is a wish: if the instructions are missing, the
 * plan does not use them, and its text says so. */
static loci_status set_engine(loci_plan *p, const loci_desc *d, loci_error *e)
{
    p->engine = loci_engine(d->isa, p->f64);
    p->fast = d->fast && p->stage == LOCI_ATTENTION && plain_keys(p) && p->row_forms == 1
           && p->moves < 0 && p->engine && p->engine->fast && loci_dots_bf16();
    p->prefetch_streams = loci_prefetch_streams();
    if (p->engine) return LOCI_OK;
    /* No such engine: the error lists the valid names. */
    const char *names[MAX_ISAS];
    char list[128] = "";
    int count = loci_isas(names, MAX_ISAS);
    CHECK(e, count > 0, LOCI_UNSUPPORTED,
          "this library was built for float64 only (LOCI_ISAS=none): dtype must be F64%s",
          d->isa ? ", without an isa" : "");
    for (int i = 0; i < count && i < MAX_ISAS; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", names[i]);
    }
    return loci_fail(e, LOCI_BAD_ARG,
                     "isa '%.32s' is unknown or cannot run on this CPU, which runs %s",
                     d->isa ? d->isa : "(the best)", list);
}

/* ---- Combinations of encodings --------------------------------------------------------------- */

static const char *stage_name(loci_stage stage)
{
    static const char *const names[] = { [LOCI_ATTENTION] = "attention",
                                         [LOCI_ROTATE] = "rotate",
                                         [LOCI_EMBED] = "embed",
                                         [LOCI_LINEAR_ATTENTION] = "linear_attention" };
    return names[stage];
}

/* Checks that every encoding works in this stage and with this mask. */
static loci_status check_stage(const loci_plan *p, loci_error *e)
{
    for (int i = 0; i < p->encs; i++) {
        const struct loci_pe *pe = p->enc[i].pe;
        bool fits = p->stage == LOCI_EMBED            ? (pe->places & LOCI_PLACE_EMBED) != 0
                  : p->stage == LOCI_ROTATE           ? pe->rotates
                  : p->stage == LOCI_LINEAR_ATTENTION ? pe->rotates || pe->places == 0
                                                      : pe->places != LOCI_PLACE_EMBED;
        CHECK(e, fits, LOCI_BAD_ARG, "%s does not support stage %s%s", pe->name,
              stage_name(p->stage),
              pe->places == LOCI_PLACE_EMBED ? "; it is added to the embeddings, in stage embed"
              : p->stage == LOCI_LINEAR_ATTENTION ? ", which accepts nope or a rotation"
                                                  : "");
        /* only attention has places for several encodings */
        CHECK(e, p->stage == LOCI_ATTENTION || p->encs == 1, LOCI_BAD_ARG,
              "stage %s accepts one encoding, not %d", stage_name(p->stage), p->encs);
        CHECK(e, !pe->causal_only || !p->full, LOCI_BAD_ARG,
              "%s requires a causal plan, but full is 1", pe->name);
    }
    return LOCI_OK;
}

/* Gives every encoding the problem and calls its check().  An encoding that is alone may set the
 * scale. */
static loci_status check_encodings(loci_plan *p, const loci_desc *d, loci_error *e)
{
    /* nope has no effect, so an encoding next to it is still alone */
    int speaking = 0;
    for (int i = 0; i < p->encs; i++)
        speaking += p->enc[i].pe->places != 0 && !p->enc[i].pe->neutral;
    for (int i = 0; i < p->encs; i++) {
        struct config *c = &p->enc[i];
        c->stage = p->stage;
        c->heads = p->heads;
        c->kv_heads = p->kv_heads;
        c->dim = p->dim;
        c->value_dim = p->value_dim;
        c->model_dim = p->model_dim;
        c->full = p->full;
        c->max_len = d->max_len;
        c->real = p->real;
        c->alone = speaking <= 1;
        c->have = d->tensors;
        c->have_count = d->tensor_count;
        loci_status status = c->pe->check ? c->pe->check(c, e) : LOCI_OK;
        if (status) return status;
    }
    return LOCI_OK;
}

/* A place that only one encoding can have.  `at` becomes the index of its term. */
static loci_status set_single(loci_plan *p, int *at, enum group group, const char *what,
                              loci_error *e)
{
    *at = -1;
    for (int i = 0; i < p->uses; i++) {
        if (p->use[i].group != group) continue;
        CHECK(e, *at < 0, LOCI_BAD_ARG, "%s and %s both %s; at most one encoding can",
              p->enc[p->use[*at].enc].pe->name, p->enc[p->use[i].enc].pe->name, what);
        *at = i;
    }
    return LOCI_OK;
}

/* Do values turn with the keys? */
static loci_status set_values(loci_plan *p, const struct config *rotation, loci_error *e)
{
    p->turns_values = rotation && p->stage != LOCI_ROTATE && rotation->pe->turns_values
                   && rotation->pe->turns_values(rotation);
    CHECK(e, p->stage != LOCI_LINEAR_ATTENTION || !p->turns_values, LOCI_BAD_ARG,
          "%s with values=1 does not support stage linear_attention", rotation->pe->name);
    for (int i = 0; i < p->encs && p->turns_values; i++)
        CHECK(e, !p->enc[i].pe->adds_vectors || !p->enc[i].pe->adds_vectors(&p->enc[i]),
              LOCI_BAD_ARG,
              "%s adds vectors to the outputs, and %s with values=1 would turn them back; leave "
              "one out",
              p->enc[i].pe->name, rotation->pe->name);
    return LOCI_OK;
}

/* Forms of rows and keys.  Several forms leave no q and k to read beside their product, and none of
 * them is the one that a cache could store for all rows. */
static loci_status set_forms(loci_plan *p, const struct loci_pe *rotation, loci_error *e)
{
    p->row_forms = rotation && rotation->row_forms ? rotation->row_forms : 1;
    p->key_forms = rotation && rotation->key_forms ? rotation->key_forms : 1;
    for (int i = 0; i < p->uses && p->row_forms > 1; i++)
        CHECK(e, !term_is(p->use[i].term, READS_ALONE), LOCI_BAD_ARG,
              "%s reads queries or keys alone, but %s rotates them differently for near and far "
              "keys; leave one out",
              p->enc[p->use[i].enc].pe->name, rotation->name);
    CHECK(e, p->key_forms == 1 || !p->keys_rotated, LOCI_BAD_ARG,
          "%s: keys_rotated must be 0: a key is rotated differently for near and far rows",
          rotation->name);
    return LOCI_OK;
}

/* Rows that change on their walk leave no q to read beside a product, and nothing that a score
 * could be computed from otherwise. */
static loci_status set_moves(loci_plan *p, loci_error *e)
{
    if (p->moves < 0) return LOCI_OK;
    const char *name = p->enc[p->use[p->moves].enc].pe->name;
    for (int i = 0; i < p->uses; i++)
        CHECK(
            e, !term_is(p->use[i].term, READS_ALONE), LOCI_BAD_ARG,
            "%s reads queries or keys alone, but %s changes queries from key to key; leave one out",
            p->enc[p->use[i].enc].pe->name, name);
    if (p->rotate < 0) return LOCI_OK;
    const struct loci_pe *rotation = p->enc[p->use[p->rotate].enc].pe;
    CHECK(e, !term_is(p->use[p->moves].term, UNROTATED), LOCI_BAD_ARG,
          "%s and %s both rotate q and k; at most one encoding can", rotation->name, name);
    CHECK(
        e,
        !term_is(p->use[p->rotate].term, FADES) && !rotation->states && !rotation->widens
            && p->row_forms == 1 && p->key_forms == 1,
        LOCI_BAD_ARG,
        "%s does not go with %s: rows that %s changes from key to key must be rotated in one way, "
        "by their position alone",
        name, rotation->name, name);
    return LOCI_OK;
}

/* Rows of scores, wider than those of the caller if the rotation widens them. */
static loci_status set_width(loci_plan *p, const struct loci_pe *rotation, loci_error *e)
{
    if (!rotation || !rotation->widens) return LOCI_OK;
    p->score_dim = rotation->widens * p->dim;
    for (int i = 0; i < p->uses; i++)
        CHECK(e, !term_is(p->use[i].term, READS_ALONE), LOCI_BAD_ARG,
              "%s reads queries or keys alone, but %s makes wider rows of them; leave one out",
              p->enc[p->use[i].enc].pe->name, rotation->name);
    return LOCI_OK;
}

/* The terms of all encodings in order, and what depends on all of them: the terms that rotate, mix
 * and weight, whether they can be combined, the number of axes, and the scale. */
static loci_status set_terms(loci_plan *p, const loci_desc *d, loci_error *e)
{
    struct termlist list = { 0 };
    int adds[MAX_ENCODINGS] = { 0 }, all = 0;
    for (int i = 0; i < p->encs; i++) {
        list.enc = i;
        if (p->enc[i].pe->terms) p->enc[i].pe->terms(&p->enc[i], &list);
    }
    p->uses = list.n;
    memcpy(p->use, list.use, sizeof p->use);
    /* How many terms of other encodings add to the scores.  A mix has an input for their sum. */
    for (int i = 0; i < p->uses; i++) {
        adds[p->use[i].enc] += p->use[i].group == GROUP_ADD;
        all += p->use[i].group == GROUP_ADD;
    }
    for (int i = 0; i < p->encs; i++) p->enc[i].adds = all - adds[i];

    loci_status status;
    if ((status = set_single(p, &p->rotate, GROUP_ROTATE, "rotate q and k", e))
        || (status = set_single(p, &p->mix, GROUP_MIX, "mix the scores of the heads", e))
        || (status = set_single(p, &p->weight, GROUP_WEIGHT, "compute weights from scores", e))
        || (status = set_single(p, &p->moves, GROUP_MOVE, "change queries from key to key", e)))
        return status;
    /* Fading multiplies queries by what it divides keys by.  So q.k is right, but q and k alone are
     * not. */
    for (int i = 0; i < p->uses && p->rotate >= 0 && term_is(p->use[p->rotate].term, FADES); i++) {
        CHECK(e, !term_is(p->use[i].term, READS_ALONE), LOCI_BAD_ARG,
              "%s reads queries or keys alone, but %s scales them by their position; leave one out",
              p->enc[p->use[i].enc].pe->name, p->enc[p->use[p->rotate].enc].pe->name);
    }
    for (int i = 0; i < p->uses && p->mix >= 0; i++)
        CHECK(e, p->use[i].group != GROUP_ADD || !term_is(p->use[i].term, BENDS), LOCI_BAD_ARG,
              "%s comes after an encoding that adds to the scores, but %s needs scores and biases "
              "separately; put %s first",
              p->enc[p->use[i].enc].pe->name, p->enc[p->use[p->mix].enc].pe->name,
              p->enc[p->use[i].enc].pe->name);
    CHECK(e,
          p->stage != LOCI_LINEAR_ATTENTION || p->rotate < 0
              || !term_is(p->use[p->rotate].term, FADES),
          LOCI_BAD_ARG,
          "%s does not support stage linear_attention: a sum over keys cannot fade relative to "
          "each row",
          p->enc[0].pe->name);
    const struct config *rotation = p->rotate >= 0 ? &p->enc[p->use[p->rotate].enc] : NULL;
    TRY(set_values(p, rotation, e));
    TRY(set_forms(p, rotation ? rotation->pe : NULL, e));
    TRY(set_moves(p, e));
    TRY(set_width(p, rotation ? rotation->pe : NULL, e));
    TRY(check_values_in_keys(p, d, rotation, e));
    TRY(check_blocks(p, e));
    /* If each query head rotates or gates keys in its own way, a group no longer shares keys. */
    p->states = rotation && rotation->pe->states;
    const bool by_head = p->moves >= 0 && term_is(p->use[p->moves].term, BY_HEAD);
    p->key_heads = p->states || by_head ? p->heads : p->kv_heads * p->key_forms;
    CHECK(e, !p->states || !p->keys_rotated || p->key_heads == p->kv_heads, LOCI_BAD_ARG,
          "%s: keys_rotated requires kv_heads equal to heads %d, not %d: each head rotates its "
          "keys differently",
          p->enc[p->use[p->rotate].enc].pe->name, p->heads, p->kv_heads);
    for (int i = 0; i < p->uses && p->weight >= 0; i++)
        CHECK(e, p->use[i].group != GROUP_SINK, LOCI_BAD_ARG,
              "%s adds to the sum of a softmax, but %s has no softmax; leave one out",
              p->enc[p->use[i].enc].pe->name, p->enc[p->use[p->weight].enc].pe->name);
    const struct config *weight = p->weight >= 0 ? &p->enc[p->use[p->weight].enc] : NULL;
    p->strict = weight && weight->pe->strict && weight->pe->strict(weight);

    /* The encoding's own scale applies only if it is alone.  The caller's scale always applies. */
    p->axes = 1;
    p->scale = p->dim > 0 && p->stage != LOCI_LINEAR_ATTENTION ? 1 / sqrt(p->dim) : 1;
    for (int i = 0; i < p->encs; i++) {
        const struct config *c = &p->enc[i];
        if (c->pe->axes) p->axes = c->pe->axes(c);
        if (c->pe->scale && c->alone) p->scale = c->pe->scale(c);
    }
    if (d->scale != 0) p->scale = d->scale;
    return LOCI_OK;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* The caller's list of tensors, before it is searched. */
static loci_status check_list(const loci_desc *d, loci_error *e)
{
    CHECK(e, d->tensor_count >= 0, LOCI_BAD_ARG, "tensor_count %d must not be negative",
          d->tensor_count);
    CHECK(e, d->tensors || d->tensor_count == 0, LOCI_BAD_ARG,
          "tensors is NULL, but tensor_count is %d", d->tensor_count);
    for (int i = 0; i < d->tensor_count; i++) {
        const loci_tensor *t = &d->tensors[i];
        CHECK(e, t->encoding && t->name, LOCI_BAD_ARG,
              "tensors[%d] must have an encoding and a name", i);
        CHECK(e, t->rank >= 0 && t->rank <= COUNT(t->shape), LOCI_BAD_ARG,
              "tensor '%.32s' of %.32s has rank %d, but at most %d is allowed", t->name,
              t->encoding, t->rank, COUNT(t->shape));
        CHECK(e, !find_tensor(d->tensors, i, t->encoding, t->name), LOCI_BAD_ARG,
              "tensor '%.32s' of %.32s is listed twice", t->name, t->encoding);
    }
    return LOCI_OK;
}

/* Extents that only a call knows are negative.  They match any extent that the caller has. */
static bool shape_fits(const loci_tensor *have, const loci_tensor *want)
{
    if (have->rank != want->rank) return false;
    for (int i = 0; i < want->rank; i++)
        if (have->shape[i] != want->shape[i] && (want->shape[i] >= 0 || have->shape[i] < 0))
            return false;
    return true;
}

/* Explains an unknown tensor: its encoding expects others, or is not in the text. */
static loci_status unknown_tensor(const loci_plan *p, const loci_tensor *t, loci_error *e)
{
    char wanted[160] = "none";
    size_t n = 0;
    for (int i = 0; i < p->tensors.n && n < sizeof wanted; i++)
        if (!strcmp(p->tensors.list[i].encoding, t->encoding))
            n += (size_t)snprintf(wanted + n, sizeof wanted - n, "%s%s", n ? ", " : "",
                                  p->tensors.list[i].name);
    for (int i = 0; i < p->encs; i++)
        CHECK(e, strcmp(p->enc[i].pe->name, t->encoding), LOCI_BAD_ARG,
              "%s has no tensor '%.32s' here; it has: %s", t->encoding, t->name, wanted);
    return loci_fail(e, LOCI_BAD_ARG,
                     "tensor '%.32s' belongs to %.32s, which the encoding text does not name",
                     t->name, t->encoding);
}

/* Gradients are summed in double, so 8 bytes per number, rounded up, must fit into a ptrdiff_t.
 * Extents that a call decides are negative here.  Calls check those. */
static loci_status check_size(const loci_tensor *t, loci_error *e)
{
    char text[96];
    ptrdiff_t n = 1;
    bool fits = true;
    for (int i = 0; i < t->rank; i++)
        fits = fits && (t->shape[i] < 0 || !__builtin_mul_overflow(n, t->shape[i], &n));
    CHECK(e, fits && n <= PTRDIFF_MAX / 16, LOCI_BAD_ARG,
          "%s: tensor '%s' of shape %s has too many numbers", t->encoding, t->name,
          shape_text(t->rank, t->shape, text, sizeof text));
    return LOCI_OK;
}

/* The tensors of all encodings in order.  A list from the caller must have every tensor except
 * INPUT ones, which come with a call, and no others.  Otherwise a tensor with a misspelt name would
 * silently start at its initial value. */
static loci_status set_tensors(loci_plan *p, const loci_desc *d, loci_error *e)
{
    char have_text[96], want_text[96];
    struct tensors *t = &p->tensors;
    for (int i = 0; i < p->encs; i++) {
        p->first_tensor[i] = t->n;
        if (p->enc[i].pe->tensors) p->enc[i].pe->tensors(&p->enc[i], t);
    }
    p->first_tensor[p->encs] = t->n;
    for (int i = 0; i < t->n; i++) TRY(check_size(&t->list[i], e));
    /* Unknown names first: a misspelt name makes a better error than the missing one. */
    for (int i = 0; i < d->tensor_count; i++)
        if (!find_tensor(t->list, t->n, d->tensors[i].encoding, d->tensors[i].name))
            return unknown_tensor(p, &d->tensors[i], e);
    for (int i = 0; i < t->n && d->tensors; i++) {
        const loci_tensor *want = &t->list[i];
        const loci_tensor *have =
            find_tensor(d->tensors, d->tensor_count, want->encoding, want->name);
        shape_text(want->rank, want->shape, want_text, sizeof want_text);
        CHECK(e, have || want->role == LOCI_INPUT, LOCI_BAD_ARG,
              "%s: tensor '%s' of shape %s is missing", want->encoding, want->name, want_text);
        if (!have) continue;
        CHECK(e, shape_fits(have, want), LOCI_BAD_ARG,
              "%s: tensor '%s' has shape %s, but must have %s", want->encoding, want->name,
              shape_text(have->rank, have->shape, have_text, sizeof have_text), want_text);
    }
    /* From here on the forms are known, and the caller's list may be freed. */
    for (int i = 0; i < p->encs; i++) {
        p->enc[i].have = t->list;
        p->enc[i].have_count = t->n;
    }
    return LOCI_OK;
}

/* ---- The plan -------------------------------------------------------------------------------- */

/* A stored type of fewer bits; nothing if it is the usual one. */
enum { DTYPE_TEXT = 16 };
static const char *dtype_text(const char *what, loci_dtype dtype, loci_dtype usual, char *to)
{
    static const char *const names[] = {
        [LOCI_BF16] = "bf16", [LOCI_F16] = "f16", [LOCI_Q8_0] = "q8_0"
    };
    *to = 0;
    if (dtype != usual && dtype >= LOCI_BF16) snprintf(to, DTYPE_TEXT, "%s%s", what, names[dtype]);
    return to;
}

/* The canonical text, followed by the decisions.  It is measured first, then written. */
static loci_status set_text(loci_plan *p, loci_error *e)
{
    char scale[NUMBER_TEXT], tail[160], own[DTYPE_TEXT], keys[DTYPE_TEXT], values[DTYPE_TEXT];
    size_t n = loci_print(p, NULL, 0);
    int more =
        snprintf(tail, sizeof tail, " scale=%s isa=%s%s%s%s%s", loci_number_text(p->scale, scale),
                 p->engine->isa, dtype_text(" dtype=", p->dtype, LOCI_F32, own),
                 dtype_text(" k=", p->k_dtype, p->dtype, keys),
                 p->values_in_keys ? " v=k" : dtype_text(" v=", p->v_dtype, p->dtype, values),
                 p->fast ? " fast=bf16 dot products (other bits)" : "");
    p->text = malloc(n + (size_t)more + 1);
    CHECK(e, p->text, LOCI_NO_MEMORY, "out of memory for the plan");
    loci_print(p, p->text, n + 1);
    memcpy(p->text + n, tail, (size_t)more + 1);
    return LOCI_OK;
}

/* Each step relies on the checks of the previous ones. */
static loci_status make(loci_plan *p, const loci_desc *d, loci_error *e)
{
    loci_status status;
    p->magic = PLAN_MAGIC;
    if ((status = set_problem(p, d, e)) || (status = check_list(d, e))
        || (status = loci_parse(p, d->encoding ? d->encoding : loci_pe_plain(), e))
        || (status = check_stage(p, e)) || (status = check_encodings(p, d, e))
        || (status = set_terms(p, d, e)) || (status = set_tensors(p, d, e))
        || (status = set_engine(p, d, e)) || (status = set_text(p, e)))
        return status;
    return LOCI_OK;
}

loci_status loci_make_plan(loci_plan **plan, const loci_desc *given, bool sized, loci_error *e)
{
    loci_desc d;
    CHECK(e, plan, LOCI_BAD_ARG, "loci_plan_create: plan must not be NULL; it receives the plan");
    *plan = NULL;
    CHECK(e, given, LOCI_BAD_ARG, "loci_plan_create: desc must not be NULL");
    TRY(COPY_STRUCT(loci_desc, &d, given, tensor_count, sized, e));

    /* Numbers in texts use a point, whatever the program's locale is. */
    struct numbers numbers;
    CHECK(e, loci_numbers_begin(&numbers), LOCI_NO_MEMORY, "out of memory for the plan");
    /* Zeroed, so that an incomplete plan can be destroyed. */
    loci_plan *p = calloc(1, sizeof *p);
    if (p) p->sized = sized;
    loci_status status =
        p ? make(p, &d, e) : loci_fail(e, LOCI_NO_MEMORY, "out of memory for the plan");
    loci_numbers_end(&numbers);
    if (status) loci_plan_destroy(p);
    else *plan = p;
    return status;
}

void loci_plan_destroy(loci_plan *p)
{
    if (!p) return;
    for (int i = 0; i < p->encs; i++)
        for (int o = 0; o < MAX_OPTIONS; o++) free(p->enc[i].list[o]);
    free(p->text);
    free(p);
}

const char *loci_plan_text(const loci_plan *p) { return p ? p->text : ""; }
int loci_axes(const loci_plan *p) { return p ? p->axes : 0; }
bool loci_plan_is(const loci_plan *p, loci_stage stage)
{
    return p && p->magic == PLAN_MAGIC && p->stage == stage;
}
const void *loci_layout_of(const loci_plan *p, int enc)
{
    for (int x = 0; x < p->uses; x++)
        if (p->use[x].enc == enc) return layout_of(p, x);
    return NULL;
}
