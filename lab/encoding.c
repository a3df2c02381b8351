/* SPDX-License-Identifier: MIT */
/* encoding.c -- the plans of an arm, their tables, and rows added to embeddings. */
#include "lab/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Plans ----------------------------------------------------------------------------------- */

static loci_status open_attention(struct lab_model *m, struct lab_encoding *e, struct lab_view as,
                                  const char *family, loci_error *error)
{
    char text[LAB_TEXT];
    TRY(lab_change_text(as.change, &m->arm, m->shape.length, as.times, text, error));
    /* The scale overrides an encoding's own rule. */
    loci_desc d =
        LOCI_DESC(.encoding = text, .heads = m->shape.heads, .kv_heads = m->shape.kv_heads,
                  .dim = m->head, .model_dim = m->shape.dim, .dtype = m->dtype,
                  .scale = 1 / sqrt((double)m->head), .max_len = m->shape.longest,
                  .isa = m->shape.isa,
                  .keys_rotated =
                      as.cached && (strstr(family, "rotate") || strstr(family, "state")),
                  .window_left = as.change == LAB_WINDOW ? loci_window(m->shape.length) : 0);
    /* A cache stores keys as given if they rotate differently for near and far rows. */
    if (d.keys_rotated && loci_plan_create(&e->attention, &d, NULL)) d.keys_rotated = 0;
    return e->attention ? LOCI_OK : loci_plan_create(&e->attention, &d, error);
}

/* The slopes of alibi's own rule, divided by the length ratio. */
static void interpolate(const struct lab_model *m, const struct lab_encoding *e, int t,
                        double times)
{
    loci_tensor_init(e->attention, t, 0, e->extra[t]);
    for (ptrdiff_t i = 0; i < lab_count(&e->tensor[t]); i++)
        lab_put(m, e->extra[t], i, lab_get(m, e->extra[t], i) / times);
}

/* Sets the source of a plan tensor's numbers. */
static loci_status place_tensor(struct lab_model *m, struct lab_encoding *e, int t,
                                struct lab_view as, loci_error *error)
{
    const loci_tensor *x = &e->tensor[t];
    if (x->role == LOCI_INPUT) {
        e->place[t] = -1;
        e->input[t] = lab_input_of(m, x);
        return LOCI_OK;
    }
    for (int i = 0; i < m->pe_count; i++)
        if (!strcmp(m->pe_tensor[i].encoding, x->encoding)
            && !strcmp(m->pe_tensor[i].name, x->name)) {
            e->place[t] = i;
            return LOCI_OK;
        }
    if (e == &m->trained) {
        CHECK(error, m->pe_count < LAB_PE_TENSORS, LOCI_UNSUPPORTED,
              "arm '%s' has more than %d tensors", m->arm.text, LAB_PE_TENSORS);
        m->pe_tensor[m->pe_count] = *x;
        m->pe_low[m->pe_count] = loci_tensor_low(e->attention, t);
        e->place[t] = m->pe_count++;
        return LOCI_OK;
    }
    CHECK(error, as.change == LAB_INTERPOLATE && !strcmp(x->name, "slopes"), LOCI_UNSUPPORTED,
          "arm '%s': variant %s wants tensor %s, which was not trained", m->arm.text,
          lab_change_name(as.change), x->name);
    e->extra[t] = lab_alloc((size_t)lab_count(x), m->real);
    interpolate(m, e, t, as.times);
    e->place[t] = -2;
    return LOCI_OK;
}

/* The lab's model makes inputs by rules, and states, which mix.c carries from layer to layer. */
static loci_status check_inputs(const struct lab_model *m, const struct lab_encoding *e,
                                loci_error *error)
{
    for (int t = 0; t < e->tensors; t++)
        if (e->place[t] == -1)
            CHECK(error,
                  e->input[t] >= 0 || loci_tensor_source(e->attention, t) == LOCI_SOURCE_STATES,
                  LOCI_UNSUPPORTED, "arm '%s': the lab's model has nothing for input %s of %s",
                  m->arm.text, e->tensor[t].name, e->tensor[t].encoding);
    return LOCI_OK;
}

static loci_status open_embedding(struct lab_model *m, struct lab_encoding *e, loci_error *error)
{
    if (!m->arm.embed[0]) return LOCI_OK;
    const loci_desc d = LOCI_DESC(.encoding = m->arm.embed, .stage = LOCI_EMBED,
                                  .model_dim = m->shape.dim, .dtype = m->dtype,
                                  .max_len = m->arm.random                  ? m->arm.range
                                           : m->shape.learned == LAB_RANDOM ? m->shape.longest
                                                                            : m->shape.length,
                                  .isa = m->shape.isa);
    TRY(loci_plan_create(&e->embed, &d, error));
    m->added_count = loci_tensors(e->embed, e->added, LAB_PE_TENSORS);
    const size_t bytes = loci_tables_size(e->embed, d.max_len);
    e->embed_tables = lab_alloc(bytes, 1);
    m->bytes += bytes;
    return LOCI_OK;
}

static void make_factors(struct lab_model *m, struct lab_encoding *e)
{
    e->logn = lab_alloc((size_t)m->shape.longest, sizeof *e->logn);
    for (int i = 0; i < m->shape.longest; i++)
        e->logn[i] = i < m->shape.length ? 1 : log(i + 1.0) / log((double)m->shape.length);
}

loci_status lab_encoding_open(struct lab_model *m, struct lab_encoding *e, struct lab_view as,
                              loci_error *error)
{
    char family[LAB_NAME * 2];
    lab_arm_family(&m->arm, family);
    *e = (struct lab_encoding){ .attention = NULL };
    TRY(open_attention(m, e, as, family, error));
    e->axes = loci_axes(e->attention);
    e->tensors = loci_tensors(e->attention, e->tensor, LAB_PE_TENSORS);
    CHECK(error, e->tensors <= LAB_PE_TENSORS, LOCI_UNSUPPORTED,
          "arm '%s' has more than %d tensors", m->arm.text, LAB_PE_TENSORS);
    if (e == &m->trained) lab_inputs_open(m, e);
    for (int t = 0; t < e->tensors; t++) {
        e->input[t] = -1;
        TRY(place_tensor(m, e, t, as, error));
        e->learns |= e->tensor[t].role == LOCI_LEARNED && e->place[t] >= 0;
    }
    TRY(check_inputs(m, e, error));
    e->sticks = strstr(family, "weight") != NULL;
    e->tables = lab_alloc((size_t)m->shape.layers, sizeof *e->tables);
    if (as.change == LAB_LOGN) make_factors(m, e);
    return e == &m->trained ? open_embedding(m, e, error) : LOCI_OK;
}

void lab_encoding_close(struct lab_model *m, struct lab_encoding *e)
{
    loci_plan_destroy(e->attention);
    loci_plan_destroy(e->embed);
    for (int t = 0; t < LAB_PE_TENSORS; t++) free(e->extra[t]);
    for (int l = 0; e->tables && l < m->shape.layers; l++)
        if (l == 0 || e->tables[l] != e->tables[0]) free(e->tables[l]);
    free(e->tables);
    free(e->embed_tables);
    free(e->logn);
    *e = (struct lab_encoding){ .attention = NULL };
}

/* ---- Tables ---------------------------------------------------------------------------------- */

void lab_encoding_tensors(const struct lab_model *m, const struct lab_encoding *e, int layer,
                          enum lab_list from, void **list)
{
    for (int t = 0; t < e->tensors; t++) {
        list[t] = e->place[t] == -2 && from == LAB_WEIGHTS ? e->extra[t] : NULL;
        if (e->place[t] < 0) continue;
        const struct lab_tensor *x = &m->tensor[m->pe[layer][e->place[t]]];
        if (from == LAB_WEIGHTS || !x->fixed) list[t] = lab_at(m, m->list[from], x->at);
    }
}

static loci_status make_room(struct lab_model *m, struct lab_encoding *e, ptrdiff_t reach,
                             loci_error *error)
{
    const size_t bytes = loci_tables_size(e->attention, reach);
    bool own = false; /* a table for each layer */
    for (int t = 0; t < e->tensors; t++) own |= e->place[t] >= 0;
    CHECK(error, bytes > 0, LOCI_BAD_ARG, "arm '%s' has no tables for distances up to %td",
          m->arm.text, reach);
    for (int l = 0; l < m->shape.layers; l++)
        if (l == 0 || e->tables[l] != e->tables[0]) free(e->tables[l]);
    for (int l = 0; l < m->shape.layers; l++)
        e->tables[l] = l == 0 || own ? lab_alloc(bytes, 1) : e->tables[0];
    e->reach = reach;
    e->ready = false;
    return LOCI_OK;
}

loci_status lab_encoding_prepare(struct lab_model *m, ptrdiff_t reach, loci_error *error)
{
    struct lab_encoding *e = m->view;
    if (reach > e->reach || !e->tables[0]) TRY(make_room(m, e, reach, error));
    for (int l = 0; l < m->shape.layers && (e->learns || !e->ready); l++) {
        void *list[LAB_PE_TENSORS];
        if (l > 0 && e->tables[l] == e->tables[0]) break;
        lab_encoding_tensors(m, e, l, LAB_WEIGHTS, list);
        TRY(loci_prepare_on(m->host, e->attention, e->reach, (const void *const *)list,
                            e->tables[l], error));
    }
    e->ready = true;
    return LOCI_OK;
}

/* ---- Embeddings ------------------------------------------------------------------------------ */

static void added_tensors(const struct lab_model *m, enum lab_list from, void **list)
{
    for (int t = 0; t < m->added_count; t++)
        list[t] = lab_at(m, m->list[from], m->tensor[m->added[t]].at);
}

/* For positions past the end of a table, the shape selects the row. */
static int64_t row_of(const struct lab_model *m, int64_t pos)
{
    if (pos < m->shape.length || m->arm.random) return pos;
    return m->shape.learned == LAB_CLAMP ? m->shape.length - 1
         : m->shape.learned == LAB_WRAP  ? pos % m->shape.length
                                         : pos;
}

static loci_status embed_rows(struct lab_model *m, const int64_t *pos, ptrdiff_t rows, void *x,
                              loci_error *error)
{
    void *list[LAB_PE_TENSORS];
    added_tensors(m, LAB_WEIGHTS, list);
    TRY(loci_prepare_on(m->host, m->trained.embed, m->shape.longest, (const void *const *)list,
                        m->trained.embed_tables, error));
    const loci_call call =
        LOCI_CALL(.batch = 1, .q_len = rows, .q_pos = pos, .host = m->host, .error = error);
    const loci_view view = { .data = x };
    return loci_embed(m->trained.embed, m->trained.embed_tables, &call, view, view);
}

/* Learned rows are computed each time, with the rows of the table.  Others are computed once. */
loci_status lab_encoding_embed(struct lab_model *m, const struct lab_batch *b, void *x,
                               loci_error *error)
{
    if (!m->trained.embed) return LOCI_OK;
    const ptrdiff_t d = m->shape.dim, most = m->arm.random ? m->arm.range : m->shape.longest;
    if (m->added_count) {
        for (ptrdiff_t r = 0; r < b->rows; r++) m->rows_asked[r] = row_of(m, b->pos[r]);
        return embed_rows(m, m->rows_asked, b->rows, x, error);
    }
    if (!m->position_rows) {
        int64_t *pos = lab_alloc((size_t)most, sizeof *pos);
        for (ptrdiff_t i = 0; i < most; i++) pos[i] = i;
        m->position_rows = lab_alloc((size_t)(most * d), m->real);
        m->bytes += (size_t)(most * d) * m->real;
        const loci_status status = embed_rows(m, pos, most, m->position_rows, error);
        free(pos);
        TRY(status);
    }
    for (ptrdiff_t r = 0; r < b->rows; r++)
        m->engine->add(d, lab_at(m, m->position_rows, b->pos[r] * d), lab_at(m, x, r * d));
    return LOCI_OK;
}

loci_status lab_encoding_embed_backward(struct lab_model *m, const struct lab_batch *b, void *dx,
                                        loci_error *error)
{
    if (!m->added_count) return LOCI_OK;
    void *grads[LAB_PE_TENSORS];
    added_tensors(m, LAB_GRADIENTS, grads);
    const loci_call call =
        LOCI_CALL(.batch = 1, .q_len = b->rows, .q_pos = b->pos, .host = m->host, .error = error);
    const size_t bytes = loci_workspace(m->trained.embed, &call, 1);
    lab_grow(m, &m->work, &m->work_bytes, bytes);
    return loci_embed_backward(m->trained.embed, m->trained.embed_tables, m->work, &call,
                               (loci_view){ .data = dx }, grads);
}
