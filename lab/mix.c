/* SPDX-License-Identifier: MIT */
/* mix.c -- attention of a layer with everything that an encoding needs: inputs by token (inputs.c),
 * the layer of FoX (Pro), the states of tape.
 *
 * loci/layers.h and the pages of the encodings define the steps.  This file calls them in order,
 * forward and backward. */
#include "lab/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static loci_layer layer_of(const struct lab_model *m, const struct lab_batch *b, int heads,
                           int width, loci_error *error)
{
    return (loci_layer)LOCI_LAYER(.dtype = m->dtype, .batch = 1, .rows = b->rows, .heads = heads,
                                  .width = width, .host = m->host, .error = error);
}
static ptrdiff_t map_stride(const struct lab_model *m, int layer, enum lab_map map)
{
    return m->tensor[m->map[layer][map]].stride;
}
/* Views of rows as projections write them, heads side by side, and of one number per head. */
static loci_view heads_of(const struct lab_model *m, const struct lab_batch *b, char *x,
                          ptrdiff_t stride)
{
    return (loci_view){ x, b->rows * stride, m->head, stride };
}
static loci_view ones_of(const struct lab_batch *b, char *x, ptrdiff_t stride)
{
    return (loci_view){ x, b->rows * stride, 1, stride };
}
static loci_view dense(void *x) { return (loci_view){ .data = x }; }

/* ---- The call -------------------------------------------------------------------------------- */

/* With one axis, positions take the place of coordinates. */
static bool has_coordinates(const struct lab_model *m)
{
    return m->view->axes > 1 || m->arm.unit > 0;
}

struct mixing {
    loci_call call;
    void *tensors[LAB_PE_TENSORS];
    loci_view q, k, v;
};

/* Sets the inputs of attention: the maps or, in FoX (Pro), what was computed from them. */
static void open_mixing(struct lab_model *m, const struct lab_batch *b, int layer, struct mixing *x,
                        loci_error *error)
{
    struct lab_saved *k = &m->saved[layer];
    const struct lab_encoding *e = m->view;
    const bool pro = m->arm.layer == LAB_FOX_PRO;
    const ptrdiff_t kv = map_stride(m, layer, MAP_K);
    lab_encoding_tensors(m, e, layer, LAB_WEIGHTS, x->tensors);
    for (int t = 0; t < e->tensors; t++)
        if (e->place[t] == -1)
            x->tensors[t] =
                e->input[t] >= 0 ? lab_input(m, layer, &e->tensor[t], e->input[t]) : k->e;
    x->q = heads_of(m, b, pro ? k->q : k->map[MAP_Q], m->shape.dim);
    x->k = heads_of(m, b, pro ? k->kn : k->map[MAP_K], kv);
    x->v = heads_of(m, b, pro ? k->v : k->map[MAP_V], kv);
    x->call =
        (loci_call)LOCI_CALL(.batch = 1, .q_len = b->rows, .k_len = b->rows, .q = x->q, .k = x->k,
                             .v = x->v, .o = heads_of(m, b, pro ? k->o1 : k->o, m->shape.dim),
                             .q_starts = b->starts, .k_starts = b->starts,
                             .sequences = b->sequences, .tensors = (const void *const *)x->tensors,
                             .host = m->host, .error = error,
                             .ae = m->arm.layer == LAB_TAPE ? k->ae : NULL);
    if (e->sticks) x->call.rem = k->lse;
    else x->call.lse = k->lse;
    if (m->arm.random) x->call.q_pos = x->call.k_pos = b->pos;
    if (has_coordinates(m)) x->call.q_coord = x->call.k_coord = m->coord;
}

/* (position, 0, ...) for rotations with several coordinates, in the units of the arm */
static void fill_coordinates(struct lab_model *m, const struct lab_batch *b)
{
    const double unit = m->arm.unit > 0 ? m->arm.unit : 1;
    for (int axis = 0; axis < m->view->axes; axis++)
        for (ptrdiff_t r = 0; r < b->rows; r++)
            m->coord[axis * b->rows + r] = axis ? 0 : unit * (double)b->pos[r];
}

/* ---- FoX (Pro) ------------------------------------------------------------------------------- */

static loci_status pro_before(struct lab_model *m, const struct lab_batch *b, int layer,
                              loci_error *error)
{
    struct lab_saved *k = &m->saved[layer];
    const int *own = m->own[layer];
    const ptrdiff_t d = m->shape.dim, kv = map_stride(m, layer, MAP_K);
    const loci_layer q = layer_of(m, b, m->shape.heads, m->head, error),
                     kvs = layer_of(m, b, m->shape.kv_heads, m->head, error);
    struct lab_decoder *c = m->decoder;
    char *last_k = c ? lab_at(m, c->last_k, layer * d) : NULL,
         *last_v = c ? lab_at(m, c->last_v, layer * d) : NULL;
    const int64_t *seg = c ? NULL : b->seg;
    TRY(loci_shift(&kvs, heads_of(m, b, k->map[MAP_K], kv), ones_of(b, k->map[MAP_SK], LAB_PAD),
                   seg, 0, last_k, last_k, heads_of(m, b, k->k, kv)));
    TRY(loci_shift(&kvs, heads_of(m, b, k->map[MAP_V], kv), ones_of(b, k->map[MAP_SV], LAB_PAD),
                   seg, 0, last_v, last_v, heads_of(m, b, k->v, kv)));
    TRY(loci_rmsnorm(&q, heads_of(m, b, k->map[MAP_Q], d), lab_weight(m, own[OWN_NQ]), 1e-5,
                     heads_of(m, b, k->q, d)));
    return loci_rmsnorm(&kvs, heads_of(m, b, k->k, kv), lab_weight(m, own[OWN_NK]), 1e-5,
                        heads_of(m, b, k->kn, kv));
}
static loci_status pro_after(struct lab_model *m, const struct lab_batch *b, int layer,
                             loci_error *error)
{
    struct lab_saved *k = &m->saved[layer];
    const ptrdiff_t d = m->shape.dim;
    const loci_layer l = layer_of(m, b, m->shape.heads, m->head, error);
    TRY(loci_rmsnorm(&l, heads_of(m, b, k->o1, d), lab_weight(m, m->own[layer][OWN_NO]), 1e-6,
                     heads_of(m, b, k->o2, d)));
    return loci_gate(&l, LOCI_SIGMOID, heads_of(m, b, k->o2, d), heads_of(m, b, k->map[MAP_G], d),
                     heads_of(m, b, k->o, d));
}

/* Turns do into the gradient by attention's output, in d2. */
static loci_status pro_after_backward(struct lab_model *m, const struct lab_batch *b, int layer,
                                      loci_error *error)
{
    struct lab_saved *k = &m->saved[layer];
    const ptrdiff_t d = m->shape.dim;
    const loci_layer l = layer_of(m, b, m->shape.heads, m->head, error);
    const int no = m->own[layer][OWN_NO];
    TRY(loci_gate_backward(&l, LOCI_SIGMOID, heads_of(m, b, k->o2, d),
                           heads_of(m, b, k->map[MAP_G], d), heads_of(m, b, m->d_o, d),
                           heads_of(m, b, m->d1, d), heads_of(m, b, m->dmap[MAP_G], d)));
    return loci_rmsnorm_backward(&l, heads_of(m, b, k->o1, d), lab_weight(m, no), 1e-6,
                                 heads_of(m, b, m->d1, d), heads_of(m, b, m->d2, d),
                                 lab_gradient(m, no));
}
/* d1, d3 and dv: gradients by the normed q and k and the shifted v. */
static loci_status pro_before_backward(struct lab_model *m, const struct lab_batch *b, int layer,
                                       loci_error *error)
{
    struct lab_saved *k = &m->saved[layer];
    const int *own = m->own[layer];
    const ptrdiff_t d = m->shape.dim, kv = map_stride(m, layer, MAP_K);
    const loci_layer q = layer_of(m, b, m->shape.heads, m->head, error),
                     kvs = layer_of(m, b, m->shape.kv_heads, m->head, error);
    TRY(loci_rmsnorm_backward(&q, heads_of(m, b, k->map[MAP_Q], d), lab_weight(m, own[OWN_NQ]),
                              1e-5, heads_of(m, b, m->d1, d), heads_of(m, b, m->dmap[MAP_Q], d),
                              lab_gradient(m, own[OWN_NQ])));
    TRY(loci_rmsnorm_backward(&kvs, heads_of(m, b, k->k, kv), lab_weight(m, own[OWN_NK]), 1e-5,
                              heads_of(m, b, m->d3, kv), heads_of(m, b, m->d2, kv),
                              lab_gradient(m, own[OWN_NK])));
    TRY(loci_shift_backward(&kvs, heads_of(m, b, k->map[MAP_K], kv),
                            ones_of(b, k->map[MAP_SK], LAB_PAD), b->seg, 0,
                            heads_of(m, b, m->d2, kv), heads_of(m, b, m->dmap[MAP_K], kv),
                            ones_of(b, m->dmap[MAP_SK], LAB_PAD)));
    return loci_shift_backward(&kvs, heads_of(m, b, k->map[MAP_V], kv),
                               ones_of(b, k->map[MAP_SV], LAB_PAD), b->seg, 0,
                               heads_of(m, b, m->dv, kv), heads_of(m, b, m->dmap[MAP_V], kv),
                               ones_of(b, m->dmap[MAP_SV], LAB_PAD));
}

/* ---- A bias by row and key ------------------------------------------------------------------- */

void lab_add_bias(const struct lab_model *m, int layer, ptrdiff_t row, loci_call *call)
{
    const ptrdiff_t *shape = m->arm.bias.shape;
    char *table = lab_weight(m, m->own[layer][OWN_BIAS]);
    call->mask_kind = LOCI_MASK_ADDED;
    call->mask = (loci_view){ lab_at(m, table, row * shape[2]), shape[0] * shape[1] * shape[2],
                              shape[1] * shape[2], shape[2] };
}

/* The view from a row on, in elements of the model. */
static loci_view from_row(const struct lab_model *m, loci_view v, ptrdiff_t row)
{
    if (v.data) v.data = lab_at(m, v.data, row * v.row);
    return v;
}
/* The call of sequence s alone: each begins at the first row of the table. */
static loci_call sequence_of(const struct lab_model *m, const struct lab_batch *b, int layer,
                             const struct mixing *x, int s)
{
    const ptrdiff_t first = (ptrdiff_t)b->starts[s];
    loci_call c = x->call;
    c.q_len = c.k_len = (ptrdiff_t)b->starts[s + 1] - first;
    c.q = from_row(m, c.q, first);
    c.k = from_row(m, c.k, first);
    c.v = from_row(m, c.v, first);
    c.o = from_row(m, c.o, first);
    c.lse = lab_at(m, m->saved[layer].lse, first * m->shape.heads);
    c.q_starts = c.k_starts = NULL;
    c.sequences = 0;
    lab_add_bias(m, layer, 0, &c);
    return c;
}
static loci_status attend_each(struct lab_model *m, const struct lab_batch *b, int layer,
                               const struct mixing *x)
{
    for (int s = 0; s < b->sequences; s++) {
        const loci_call c = sequence_of(m, b, layer, x, s);
        lab_grow(m, &m->work, &m->work_bytes, loci_workspace(m->view->attention, &c, 0));
        TRY(loci_forward(m->view->attention, m->view->tables[layer], m->work, &c));
    }
    return LOCI_OK;
}

/* Adds the gradients of a sequence's biases, [heads][n][n], to those of the table. */
static void add_bias_gradient(const struct lab_model *m, int layer, const char *from, ptrdiff_t n)
{
    const ptrdiff_t *shape = m->arm.bias.shape;
    char *to = lab_gradient(m, m->own[layer][OWN_BIAS]);
    for (ptrdiff_t h = 0; h < shape[0]; h++)
        for (ptrdiff_t i = 0; i < n; i++)
            m->engine->add(i + 1, lab_at(m, (char *)(uintptr_t)from, (h * n + i) * n),
                           lab_at(m, to, (h * shape[1] + i) * shape[2]));
}
static loci_status attend_each_backward(struct lab_model *m, const struct lab_batch *b, int layer,
                                        const struct mixing *x, const loci_grad *grad)
{
    const int t = m->own[layer][OWN_BIAS];
    const bool learn = !m->tensor[t].fixed;
    loci_status status = LOCI_OK;
    if (learn) memset(lab_gradient(m, t), 0, (size_t)m->tensor[t].cols * m->real);
    for (int s = 0; s < b->sequences && !status; s++) {
        const loci_call c = sequence_of(m, b, layer, x, s);
        const ptrdiff_t first = (ptrdiff_t)b->starts[s], n = c.q_len;
        char *apart = learn ? lab_alloc((size_t)(m->shape.heads * n * n), m->real) : NULL;
        loci_grad g = *grad;
        g.dout = from_row(m, g.dout, first);
        g.dq = from_row(m, g.dq, first);
        g.dk = from_row(m, g.dk, first);
        g.dv = from_row(m, g.dv, first);
        g.dmask = dense(apart);
        lab_grow(m, &m->work, &m->work_bytes, loci_workspace(m->view->attention, &c, 1));
        status = loci_backward(m->view->attention, m->view->tables[layer], m->work, &c, &g);
        if (!status && learn) add_bias_gradient(m, layer, apart, n);
        free(apart);
    }
    return status;
}

/* ---- Attention ------------------------------------------------------------------------------- */

loci_status lab_mix(struct lab_model *m, const struct lab_batch *b, int layer, loci_error *error)
{
    struct lab_saved *k = &m->saved[layer];
    const loci_layer l = layer_of(m, b, m->shape.heads, m->head, error);
    struct mixing x;
    TRY(lab_make_inputs(m, b, layer, error));
    if (m->arm.layer == LAB_FOX_PRO) TRY(pro_before(m, b, layer, error));
    if (m->arm.layer == LAB_TAPE && layer == 0)
        TRY(loci_tape_start(&l, 0, 0, b->pos, 0, dense(k->e)));
    if (has_coordinates(m)) fill_coordinates(m, b);
    if (m->view->logn) {
        for (ptrdiff_t r = 0; r < b->rows; r++) m->factor[r] = m->view->logn[b->pos[r]];
        m->engine->scale_rows(b->rows, m->shape.dim, m->factor, k->map[MAP_Q]);
    }
    open_mixing(m, b, layer, &x, error);
    if (m->decoder) TRY(lab_decode_attend(m, layer, &x.call));
    else if (m->own[layer][OWN_BIAS] >= 0) TRY(attend_each(m, b, layer, &x));
    else {
        lab_grow(m, &m->work, &m->work_bytes, loci_workspace(m->view->attention, &x.call, 0));
        TRY(loci_forward(m->view->attention, m->view->tables[layer], m->work, &x.call));
    }
    if (m->arm.layer == LAB_FOX_PRO) TRY(pro_after(m, b, layer, error));
    if (m->arm.layer == LAB_TAPE)
        TRY(loci_tape_attention_update(&l, LOCI_TAPE_ROWSUM, dense(k->e), dense(k->ae),
                                       lab_weight(m, m->own[layer][OWN_TW]), dense(k->e1)));
    return LOCI_OK;
}

loci_status lab_mix_backward(struct lab_model *m, const struct lab_batch *b, int layer,
                             loci_error *error)
{
    struct lab_saved *k = &m->saved[layer];
    const struct lab_encoding *e = m->view;
    const bool pro = m->arm.layer == LAB_FOX_PRO, tape = m->arm.layer == LAB_TAPE,
               carries = tape && layer < m->shape.layers - 1; /* states that a later layer reads */
    const ptrdiff_t kv = map_stride(m, layer, MAP_K);
    const loci_layer l = layer_of(m, b, m->shape.heads, m->head, error);
    struct mixing x;
    void *dtensors[LAB_PE_TENSORS];
    if (pro) TRY(pro_after_backward(m, b, layer, error));
    if (carries)
        TRY(loci_tape_attention_update_backward(&l, LOCI_TAPE_ROWSUM, dense(k->ae),
                                                lab_weight(m, m->own[layer][OWN_TW]), dense(m->de1),
                                                dense(m->dae),
                                                lab_gradient(m, m->own[layer][OWN_TW])));
    open_mixing(m, b, layer, &x, error);
    lab_encoding_tensors(m, e, layer, LAB_GRADIENTS, dtensors);
    for (int t = 0; t < e->tensors; t++)
        if (e->place[t] == -1)
            dtensors[t] = e->input[t] >= 0                          ? m->dgiven[t]
                        : e->tensor[t].shape[2] == LOCI_DIM_QUERIES ? m->de
                                                                    : m->de2;
    const loci_grad grad =
        LOCI_GRAD(.dout = heads_of(m, b, pro ? m->d2 : m->d_o, m->shape.dim),
                  .dae = carries ? m->dae : NULL,
                  .dq = heads_of(m, b, pro ? m->d1 : m->dmap[MAP_Q], m->shape.dim),
                  .dk = heads_of(m, b, pro ? m->d3 : m->dmap[MAP_K], kv),
                  .dv = heads_of(m, b, pro ? m->dv : m->dmap[MAP_V], kv), .dtensors = dtensors);
    if (m->own[layer][OWN_BIAS] >= 0) TRY(attend_each_backward(m, b, layer, &x, &grad));
    else {
        lab_grow(m, &m->work, &m->work_bytes, loci_workspace(e->attention, &x.call, 1));
        TRY(loci_backward(e->attention, e->tables[layer], m->work, &x.call, &grad));
    }
    if (pro) TRY(pro_before_backward(m, b, layer, error));
    TRY(lab_make_inputs_backward(m, b, layer, error));
    if (tape) {
        const ptrdiff_t n = b->rows * m->shape.dim;
        m->engine->add(n, m->de2, m->de);
        if (carries) m->engine->add(n, m->de1, m->de);
    }
    return LOCI_OK;
}

/* ---- States of tape after the MLP ------------------------------------------------------------ */

static loci_view units_of(const struct lab_batch *b, char *x)
{
    return (loci_view){ x, b->rows * LAB_TAPE_UNITS, 0, LAB_TAPE_UNITS };
}

loci_status lab_mix_after(struct lab_model *m, const struct lab_batch *b, int layer,
                          loci_error *error)
{
    if (m->arm.layer != LAB_TAPE || layer == m->shape.layers - 1) return LOCI_OK;
    struct lab_saved *k = &m->saved[layer];
    const int *own = m->own[layer];
    const ptrdiff_t d = m->shape.dim;
    const loci_layer l = layer_of(m, b, m->shape.heads, m->head, error);
    m->engine->product(false, b->rows, LAB_TAPE_UNITS, d, k->m, d, 1, lab_weight(m, own[OWN_TX]),
                       LAB_TAPE_UNITS, k->t, LAB_TAPE_UNITS);
    return loci_tape_mlp_update(&l, LAB_TAPE_UNITS, dense(k->e1), units_of(b, k->t),
                                lab_weight(m, own[OWN_TUP]), lab_weight(m, own[OWN_TDOWN]),
                                dense(m->saved[layer + 1].e));
}

/* From de, the gradient by the next layer's states, to de1. dm receives the share of the MLP's
 * output. */
loci_status lab_mix_after_backward(struct lab_model *m, const struct lab_batch *b, int layer,
                                   loci_error *error)
{
    if (m->arm.layer != LAB_TAPE || layer == m->shape.layers - 1) return LOCI_OK;
    struct lab_saved *k = &m->saved[layer];
    const int *own = m->own[layer];
    const ptrdiff_t d = m->shape.dim;
    const loci_layer l = layer_of(m, b, m->shape.heads, m->head, error);
    TRY(loci_tape_mlp_update_backward(&l, LAB_TAPE_UNITS, dense(k->e1), units_of(b, k->t),
                                      lab_weight(m, own[OWN_TUP]), lab_weight(m, own[OWN_TDOWN]),
                                      dense(m->de), dense(m->de1), units_of(b, m->dt),
                                      lab_gradient(m, own[OWN_TUP]),
                                      lab_gradient(m, own[OWN_TDOWN])));
    m->engine->product(true, b->rows, d, LAB_TAPE_UNITS, m->dt, LAB_TAPE_UNITS, 1,
                       lab_at(m, m->transposed, m->tensor[own[OWN_TX]].at), d, m->dm, d);
    m->engine->product(false, d, LAB_TAPE_UNITS, b->rows, k->m, 1, d, m->dt, LAB_TAPE_UNITS,
                       lab_gradient(m, own[OWN_TX]), LAB_TAPE_UNITS);
    return LOCI_OK;
}

/* ---- Inspection ------------------------------------------------------------------------------ */

loci_status lab_model_attention(struct lab_model *m, const struct lab_batch *b, int layer,
                                void *weights, loci_error *error)
{
    struct mixing x;
    CHECK(error, b->sequences == 1, LOCI_BAD_ARG, "attention is shown of one sequence, not of %d",
          b->sequences);
    open_mixing(m, b, layer, &x, error);
    x.call.q_starts = x.call.k_starts = NULL;
    x.call.sequences = 0;
    if (m->own[layer][OWN_BIAS] >= 0) lab_add_bias(m, layer, 0, &x.call);
    lab_grow(m, &m->work, &m->work_bytes, loci_workspace(m->view->attention, &x.call, 1));
    return loci_weights(m->view->attention, m->view->tables[layer], m->work, &x.call,
                        dense(weights));
}

enum lab_gates lab_model_has_gates(const struct lab_model *m)
{
    return lab_input_gates(m) >= 0 ? LAB_FORGET : m->view->sticks ? LAB_REMAINDER : LAB_NO_GATES;
}
void lab_model_gates(const struct lab_model *m, const struct lab_batch *b, int layer, double *gates)
{
    const struct lab_saved *k = &m->saved[layer];
    const enum lab_gates kind = lab_model_has_gates(m);
    const char *log_f = kind == LAB_FORGET ? k->made[lab_input_gates(m)] : NULL;
    for (ptrdiff_t i = 0; i < m->shape.heads * b->rows && kind; i++)
        gates[i] = kind == LAB_FORGET ? exp(lab_get(m, log_f, i)) : lab_get(m, k->lse, i);
}
