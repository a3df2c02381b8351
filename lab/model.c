/* SPDX-License-Identifier: MIT */
/* model.c -- the parts of a model: its tensors, their initial numbers, row buffers, AdamW. */

#include "lab/inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "math/random.h"
#include "common/alloc.h"
#include "lab/clock.h"
#include "lab/decode.h"

void *lab_alloc(size_t count, size_t each)
{
    void *p = alloc_zeroed(count, each);
    if (!p) {
        fprintf(stderr, "loci: out of memory: %zu values of %zu bytes were asked for\n", count,
                each);
        exit(2);
    }
    return p;
}
void *lab_grow(struct lab_model *m, void **block, size_t *bytes, size_t wanted)
{
    if (wanted > *bytes) {
        free(*block);
        *block = lab_alloc(wanted, 1);
        m->bytes += wanted - *bytes;
        *bytes = wanted;
    }
    return *block;
}
void lab_share(const struct lab_model *m, int n, void (*job)(void *arg, int index), void *arg)
{
    if (m->host) m->host->run(m->host->user, n, job, arg);
    else
        for (int i = 0; i < n; i++) job(arg, i);
}

void lab_spend(struct lab_model *m, enum lab_part part)
{
    const double now = lab_seconds();
    if (part < LAB_PARTS) m->part[part] += now - m->since;
    m->since = now;
}
double *lab_model_parts(struct lab_model *m) { return m->part; }

/* ---- Batches --------------------------------------------------------------------------------- */

void lab_batch_free(struct lab_batch *b)
{
    free(b->starts);
    free(b->token);
    free(b->target);
    free(b->pos);
    free(b->seg);
    *b = (struct lab_batch){ .sequences = 0 };
}
void lab_batch_reserve(struct lab_batch *b, int sequences, ptrdiff_t rows)
{
    if (sequences > b->capacity_sequences || !b->starts) {
        free(b->starts);
        b->starts = lab_alloc((size_t)sequences + 1, sizeof *b->starts);
        b->capacity_sequences = sequences;
    }
    if (rows <= b->capacity_rows) return;
    free(b->token);
    free(b->target);
    free(b->pos);
    free(b->seg);
    b->token = lab_alloc((size_t)rows, sizeof *b->token);
    b->target = lab_alloc((size_t)rows, sizeof *b->target);
    b->pos = lab_alloc((size_t)rows, sizeof *b->pos);
    b->seg = lab_alloc((size_t)rows, sizeof *b->seg);
    b->capacity_rows = rows;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

static int add_tensor(struct lab_model *m, const char *name, int layer, ptrdiff_t rows,
                      ptrdiff_t cols, ptrdiff_t stride)
{
    if (m->tensors == m->tensor_capacity) {
        m->tensor_capacity = 2 * m->tensor_capacity + 32;
        struct lab_tensor *more = realloc(m->tensor, (size_t)m->tensor_capacity * sizeof *more);
        if (!more) exit((fputs("loci: out of memory\n", stderr), 2));
        m->tensor = more;
    }
    struct lab_tensor *t = &m->tensor[m->tensors];
    *t = (struct lab_tensor){
        .rows = rows, .cols = cols, .stride = stride, .at = m->numbers, .rank = 1, .shape = { cols }
    };
    if (layer < 0) snprintf(t->name, sizeof t->name, "%s", name);
    else snprintf(t->name, sizeof t->name, "layers.%d.%s", layer, name);
    m->numbers += lab_padded(rows * stride);
    return m->tensors++;
}
static void set_shape(struct lab_model *m, int t, ptrdiff_t rows, ptrdiff_t cols)
{
    m->tensor[t].rank = 2;
    m->tensor[t].shape[0] = rows;
    m->tensor[t].shape[1] = cols;
}
static int add_matrix(struct lab_model *m, const char *name, int layer, ptrdiff_t rows,
                      ptrdiff_t cols)
{
    const int t = add_tensor(m, name, layer, rows, cols, lab_padded(cols));
    m->tensor[t].decays = true;
    set_shape(m, t, rows, cols);
    return t;
}
static int add_list(struct lab_model *m, const char *name, int layer, ptrdiff_t count)
{
    return add_tensor(m, name, layer, 1, count, count);
}
static int of_encoding(struct lab_model *m, int t)
{
    m->tensor[t].encoding = true;
    return t;
}

static void add_encoding(struct lab_model *m, int layer, const loci_tensor *list, int count,
                         int *index)
{
    for (int i = 0; i < count; i++) {
        char name[48];
        snprintf(name, sizeof name, "pe.%s", list[i].name);
        /* two encodings may use the same tensor name */
        for (int k = 0; k < count; k++)
            if (k != i && !strcmp(list[k].name, list[i].name))
                snprintf(name, sizeof name, "pe.%s.%s", list[i].encoding, list[i].name);
        index[i] = of_encoding(m, add_list(m, name, layer, lab_count(&list[i])));
        struct lab_tensor *t = &m->tensor[index[i]];
        t->fixed = list[i].role == LOCI_FIXED
                || (lab_arm_bias_by_distance(&m->arm) && !m->arm.bias.learn
                    && !strcmp(list[i].encoding, lab_bias_encoding));
        t->rank = list[i].rank;
        memcpy(t->shape, list[i].shape, sizeof t->shape);
    }
}

static void add_layer(struct lab_model *m, int l)
{
    const ptrdiff_t d = m->shape.dim, H = m->shape.heads, kv = m->shape.kv_heads * m->head,
                    wide = m->shape.ffn;
    const bool pro = m->arm.layer == LAB_FOX_PRO, tape = m->arm.layer == LAB_TAPE;
    int *map = m->map[l], *own = m->own[l];
    for (int i = 0; i < MAPS; i++) map[i] = -1;
    for (int i = 0; i < OWNS; i++) own[i] = -1;
    own[OWN_NORM1] = add_list(m, "norm1", l, d);
    map[MAP_Q] = add_matrix(m, "wq", l, d, d);
    map[MAP_K] = add_matrix(m, "wk", l, d, kv);
    map[MAP_V] = add_matrix(m, "wv", l, d, kv);
    for (int i = 0; i < m->inputs; i++) {
        const ptrdiff_t n = (ptrdiff_t)m->input[i].heads * m->input[i].width;
        char w[16], b[16];
        lab_input_names(m, i, w, b);
        map[MAP_I + i] = of_encoding(m, add_matrix(m, w, l, d, n));
        if (lab_input_shifts(&m->input[i])) own[OWN_BI + i] = of_encoding(m, add_list(m, b, l, n));
    }
    if (pro) {
        map[MAP_G] = of_encoding(m, add_matrix(m, "wg", l, d, d));
        map[MAP_SK] = of_encoding(m, add_matrix(m, "sk", l, d, m->shape.kv_heads));
        map[MAP_SV] = of_encoding(m, add_matrix(m, "sv", l, d, m->shape.kv_heads));
        own[OWN_NQ] = of_encoding(m, add_list(m, "nq", l, d));
        own[OWN_NK] = of_encoding(m, add_list(m, "nk", l, kv));
        own[OWN_NO] = of_encoding(m, add_list(m, "no", l, d));
    }
    add_encoding(m, l, m->pe_tensor, m->pe_count, m->pe[l]);
    if (m->arm.bias.rank == 3) {
        const ptrdiff_t *shape = m->arm.bias.shape;
        own[OWN_BIAS] = of_encoding(m, add_list(m, "pe.bias", l, shape[0] * shape[1] * shape[2]));
        m->tensor[own[OWN_BIAS]].fixed = !m->arm.bias.learn;
        m->tensor[own[OWN_BIAS]].rank = 3;
        memcpy(m->tensor[own[OWN_BIAS]].shape, shape, sizeof m->arm.bias.shape);
    }
    own[OWN_WO] = add_matrix(m, "wo", l, d, d);
    own[OWN_NORM2] = add_list(m, "norm2", l, d);
    own[OWN_W1] = add_matrix(m, "w1", l, d, wide);
    own[OWN_W2] = add_matrix(m, "w2", l, wide, d);
    if (tape) {
        own[OWN_TW] = of_encoding(m, add_list(m, "tape.w", l, H * H));
        own[OWN_TX] = of_encoding(m, add_matrix(m, "tape.wx", l, d, LAB_TAPE_UNITS));
        own[OWN_TUP] = of_encoding(m, add_list(m, "tape.up", l, LAB_TAPE_UNITS * H));
        own[OWN_TDOWN] = of_encoding(m, add_list(m, "tape.down", l, H * LAB_TAPE_UNITS));
        set_shape(m, own[OWN_TW], H, H);
        set_shape(m, own[OWN_TUP], LAB_TAPE_UNITS, H);
        set_shape(m, own[OWN_TDOWN], H, LAB_TAPE_UNITS);
    }
}

static loci_status check_shape(const struct lab_shape *s, loci_error *e)
{
    CHECK(e, s->layers >= 1 && s->layers <= 64, LOCI_BAD_ARG, "layers %d must be 1 to 64",
          s->layers);
    CHECK(e, s->dim >= LAB_PAD && s->dim <= 8192 && s->dim % LAB_PAD == 0, LOCI_BAD_ARG,
          "dim %d must be a multiple of %d up to 8192", s->dim, LAB_PAD);
    CHECK(e,
          s->heads >= 1 && s->heads <= LAB_PAD && s->dim % s->heads == 0
              && s->dim / s->heads % 4 == 0,
          LOCI_BAD_ARG, "heads %d must be 1 to %d, and dim %d over heads a multiple of 4", s->heads,
          LAB_PAD, s->dim);
    CHECK(e, s->kv_heads >= 0 && (!s->kv_heads || s->heads % s->kv_heads == 0), LOCI_BAD_ARG,
          "kv_heads %d must divide heads %d", s->kv_heads, s->heads);
    CHECK(e, s->ffn >= 0 && s->ffn % LAB_PAD == 0 && s->ffn <= 65536, LOCI_BAD_ARG,
          "ffn %d must be a multiple of %d up to 65536, or 0 for the usual", s->ffn, LAB_PAD);
    CHECK(e, s->vocabulary >= 2 && s->vocabulary <= 65536, LOCI_BAD_ARG,
          "a vocabulary of %d tokens must have 2 to 65536", s->vocabulary);
    CHECK(e, s->length >= 2 && s->longest >= s->length, LOCI_BAD_ARG,
          "length %d must be at least 2, and no longer than the longest test, %d", s->length,
          s->longest);
    return LOCI_OK;
}

/* Reads the table of a bias, which must fit the model. */
static loci_status open_bias(struct lab_model *m, loci_error *e)
{
    const struct lab_bias *b = &m->arm.bias;
    if (!b->rank) return LOCI_OK;
    CHECK(e, b->shape[0] == m->shape.heads, LOCI_BAD_ARG,
          "%s: its bias has %td heads, and the model %d", b->path, b->shape[0], m->shape.heads);
    const ptrdiff_t reach = lab_arm_reach(&m->arm);
    CHECK(e, reach >= m->shape.length, LOCI_BAD_ARG,
          "%s: its bias has rows and keys for %td positions, and training has %d tokens", b->path,
          reach, m->shape.length);
    char family[LAB_NAME * 2];
    lab_arm_family(&m->arm, family);
    bool alone = b->rank == 2 || (m->trained.axes <= 1 && !strstr(family, "weight"));
    for (int t = 0; t < m->trained.tensors && b->rank == 3; t++)
        alone &= m->trained.place[t] >= 0 && m->trained.tensor[t].role == LOCI_FIXED;
    CHECK(e, alone, LOCI_UNSUPPORTED,
          "arm '%s': a bias by row and key goes with encodings that learn nothing, read nothing "
          "by token, have one axis and leave the softmax",
          m->arm.text);
    ptrdiff_t count = 1;
    for (int i = 0; i < b->rank; i++) count *= b->shape[i];
    m->bias = lab_alloc((size_t)count, sizeof *m->bias);
    return lab_bias_read(b, m->bias, e);
}

/* The layer of FoX (Pro) compensates for its gate with a narrower MLP: 3.5 dim instead of 4, as its
 * authors do. */
static void fill_shape(struct lab_model *m)
{
    struct lab_shape *s = &m->shape;
    if (!s->kv_heads) s->kv_heads = s->heads;
    if (!s->ffn)
        s->ffn = m->arm.layer == LAB_FOX_PRO ? (int)lab_padded(7 * s->dim / 2 - LAB_PAD + 1)
                                             : 4 * s->dim;
}

static loci_status open_model(struct lab_model *m, loci_error *e)
{
    TRY(check_shape(&m->shape, e));
    m->head = m->shape.dim / m->shape.heads;
    TRY(lab_arm_parse(&m->arm, m->shape.arm, m->shape.length, m->shape.longest, m->head, e));
    fill_shape(m);
    m->engine = lab_engine(m->shape.isa, m->shape.f64);
    CHECK(e, m->engine, LOCI_UNSUPPORTED, "isa '%s' does not run here",
          m->shape.isa ? m->shape.isa : "best");
    m->dtype = m->shape.f64 ? LOCI_F64 : LOCI_F32;
    m->real = m->engine->real;
    m->stride = lab_padded(m->shape.vocabulary);
    const struct lab_view usual = { m->shape.change, m->shape.times, false };
    TRY(lab_encoding_open(m, &m->trained, usual, e));
    TRY(open_bias(m, e));
    lab_inputs_start(m);
    m->view = &m->trained;
    m->as = usual;
    const size_t layers = (size_t)m->shape.layers;
    m->map = lab_alloc(layers, sizeof *m->map);
    m->own = lab_alloc(layers, sizeof *m->own);
    m->pe = lab_alloc(layers, sizeof *m->pe);
    m->saved = lab_alloc(layers, sizeof *m->saved);
    m->embed = add_matrix(m, "embed", -1, m->shape.vocabulary, m->shape.dim);
    add_encoding(m, -1, m->trained.added, m->added_count, m->added);
    for (int l = 0; l < m->shape.layers; l++) add_layer(m, l);
    bool opens = false;
    for (int i = 0; i < m->inputs; i++) opens |= m->input[i].rule->open != 0;
    CHECK(e, !m->arm.open || opens, LOCI_BAD_ARG,
          "arm '%s' has no forget gates that could start open", m->arm.text);
    m->norm = add_list(m, "norm", -1, m->shape.dim);
    m->unembed = add_matrix(m, "unembed", -1, m->shape.dim, m->shape.vocabulary);
    for (int i = 0; i < 4; i++) m->list[i] = lab_alloc((size_t)m->numbers, m->real);
    m->transposed = lab_alloc((size_t)m->numbers, m->real);
    m->sums = lab_alloc((size_t)m->numbers, m->real);
    m->bytes += 6 * (size_t)m->numbers * m->real;
    return LOCI_OK;
}

loci_status lab_model_open(struct lab_model **to, const struct lab_shape *s, const loci_host *host,
                           loci_error *e)
{
    struct lab_model *m = lab_alloc(1, sizeof *m);
    m->shape = *s;
    m->host = host;
    const loci_status status = open_model(m, e);
    *to = m;
    if (status) {
        lab_model_close(m);
        *to = NULL;
    } else m->shape.arm = m->arm.text;
    return status;
}

static void free_rows(struct lab_model *m)
{
    for (int l = 0; m->saved && l < m->shape.layers; l++) {
        char **list = (char **)&m->saved[l];
        for (size_t i = 0; i < sizeof m->saved[l] / sizeof *list; i++) {
            free(list[i]);
            list[i] = NULL;
        }
    }
    char **const rows[] = { &m->top, &m->top_scale, &m->picked, &m->ys,  &m->logits, &m->dx,
                            &m->dy,  &m->db,        &m->dh,     &m->d_o, &m->parts,  &m->d1,
                            &m->d2,  &m->d3,        &m->dv,     &m->de,  &m->de1,    &m->de2,
                            &m->dae, &m->dm,        &m->dt };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        free(*rows[i]);
        *rows[i] = NULL;
    }
    for (int i = 0; i < MAPS; i++) {
        free(m->dmap[i]);
        m->dmap[i] = NULL;
    }
    for (int t = 0; t < LAB_PE_TENSORS; t++) {
        free(m->dgiven[t]);
        m->dgiven[t] = NULL;
    }
    for (int i = 0; i < LAB_INPUTS; i++) {
        free(m->dmade[i]);
        m->dmade[i] = NULL;
    }
    free(m->dprojected);
    m->dprojected = NULL;
    free(m->rows_asked);
    m->rows_asked = NULL;
    free(m->where);
    free(m->asked);
    free(m->said);
    free(m->cost);
    free(m->coord);
    free(m->factor);
    m->where = NULL;
    m->asked = m->said = NULL;
    m->cost = m->coord = m->factor = NULL;
    m->capacity = 0;
}

void lab_model_close(struct lab_model *m)
{
    if (!m) return;
    lab_decode_end(m);
    lab_encoding_close(m, &m->trained);
    lab_encoding_close(m, &m->changed);
    free_rows(m);
    for (int i = 0; i < 4; i++) free(m->list[i]);
    free(m->transposed);
    free(m->sums);
    free(m->tensor);
    free(m->map);
    free(m->own);
    free(m->pe);
    free(m->saved);
    free(m->position_rows);
    free(m->bias);
    for (int i = 0; i < m->inputs; i++) {
        free(m->input[i].rate);
        free(m->input[i].ones);
    }
    free(m->work);
    free(m);
}

/* ---- Initialisation -------------------------------------------------------------------------- */

static void fill(const struct lab_model *m, int t, double value)
{
    for (ptrdiff_t i = 0; i < m->tensor[t].cols; i++) lab_put(m, lab_weight(m, t), i, value);
}
/* Rounds to float, so that a model in double starts from the same numbers. */
static void normal(const struct lab_model *m, int t, uint64_t seed, double scale)
{
    const struct lab_tensor *x = &m->tensor[t];
    const uint64_t stream = lab_stream(seed, x->name);
    for (ptrdiff_t r = 0; r < x->rows; r++)
        for (ptrdiff_t c = 0; c < x->cols; c++)
            lab_put(m, lab_weight(m, t), r * x->stride + c,
                    (float)(scale * loci_normal(stream, (uint64_t)(r * x->cols + c))));
}
static void start_encoding(const struct lab_model *m, const loci_plan *plan, int which, int t,
                           uint64_t seed)
{
    const struct lab_tensor *x = &m->tensor[t];
    loci_tensor_init(plan, which, lab_stream(seed, x->name), lab_weight(m, t));
    if (m->shape.f64)
        for (ptrdiff_t i = 0; i < x->cols; i++) {
            double *w = lab_weight(m, t);
            w[i] = (float)w[i];
        }
}

/* The file has a table by head, the encoding by distance. */
static void start_bias(const struct lab_model *m, int layer)
{
    const ptrdiff_t heads = m->arm.bias.shape[0], distances = m->arm.bias.shape[1];
    if (m->own[layer][OWN_BIAS] >= 0)
        for (ptrdiff_t i = 0; i < m->tensor[m->own[layer][OWN_BIAS]].cols; i++)
            lab_put(m, lab_weight(m, m->own[layer][OWN_BIAS]), i, (float)m->bias[i]);
    for (int t = 0; t < m->pe_count && lab_arm_bias_by_distance(&m->arm); t++) {
        if (strcmp(m->pe_tensor[t].encoding, lab_bias_encoding) != 0) continue;
        for (ptrdiff_t h = 0; h < heads; h++)
            for (ptrdiff_t d = 0; d < distances; d++)
                lab_put(m, lab_weight(m, m->pe[layer][t]), d * heads + h,
                        (float)m->bias[h * distances + d]);
    }
}

void lab_model_init(struct lab_model *m, uint64_t seed)
{
    const double std = m->shape.std > 0 ? m->shape.std : 0.02,
                 out = std / sqrt(2.0 * m->shape.layers);
    for (int i = 0; i < 4; i++) memset(m->list[i], 0, (size_t)m->numbers * m->real);
    for (int t = 0; t < m->tensors; t++)
        if (m->tensor[t].decays)
            normal(m, t, seed,
                   t == m->embed ? m->shape.embed_std > 0 ? m->shape.embed_std : 0.02 : std);
    fill(m, m->norm, 1);
    for (int i = 0; i < m->added_count; i++)
        start_encoding(m, m->trained.embed, i, m->added[i], seed);
    for (int l = 0; l < m->shape.layers; l++) {
        const int *own = m->own[l];
        const int ones[] = { OWN_NORM1, OWN_NORM2, OWN_NQ, OWN_NK, OWN_NO };
        for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
            if (own[ones[i]] >= 0) fill(m, own[ones[i]], 1);
        for (int i = 0; i < m->inputs; i++) {
            const struct lab_rule *rule = m->input[i].rule;
            if (own[OWN_BI + i] >= 0)
                fill(m, own[OWN_BI + i], m->arm.open && rule->open != 0 ? rule->open : rule->start);
        }
        if (own[OWN_TDOWN] >= 0) normal(m, own[OWN_TDOWN], seed, 0.02);
        normal(m, own[OWN_WO], seed, out);
        normal(m, own[OWN_W2], seed, out);
        for (int t = 0; t < m->trained.tensors; t++)
            if (m->trained.place[t] >= 0)
                start_encoding(m, m->trained.attention, t, m->pe[l][m->trained.place[t]], seed);
        start_bias(m, l);
    }
    m->trained.ready = m->changed.ready = false;
}

/* ---- Properties ------------------------------------------------------------------------------ */

const struct lab_arm *lab_model_arm(const struct lab_model *m) { return &m->arm; }
const struct lab_shape *lab_model_shape(const struct lab_model *m) { return &m->shape; }
const struct lab_engine *lab_model_engine(const struct lab_model *m) { return m->engine; }
const loci_host *lab_model_host(const struct lab_model *m) { return m->host; }
void *lab_model_list(struct lab_model *m, enum lab_list list) { return m->list[list]; }
ptrdiff_t lab_model_numbers(const struct lab_model *m) { return m->numbers; }
size_t lab_model_bytes(const struct lab_model *m) { return m->bytes; }

int lab_model_tensors(const struct lab_model *m, const struct lab_tensor **list)
{
    *list = m->tensor;
    return m->tensors;
}
int lab_model_encoding(const struct lab_model *m, const loci_tensor **list)
{
    *list = m->pe_tensor;
    return m->pe_count;
}
int64_t lab_model_params(const struct lab_model *m, bool encoding)
{
    int64_t n = 0;
    for (int t = 0; t < m->tensors; t++)
        if (!m->tensor[t].fixed && (m->tensor[t].encoding || !encoding))
            n += m->tensor[t].rows * m->tensor[t].cols;
    return n;
}
/* Keys and values, and what encodings store per key: inputs, the states of tape. */
double lab_model_cache_bytes(const struct lab_model *m)
{
    double numbers = 2.0 * m->shape.kv_heads * m->head + lab_inputs_kept(m);
    if (m->arm.layer == LAB_TAPE) numbers += m->shape.dim;
    return numbers * m->shape.layers * (double)m->real;
}

loci_status lab_model_view(struct lab_model *m, struct lab_view as, loci_error *e)
{
    lab_encoding_close(m, &m->changed);
    m->view = &m->trained;
    m->as = (struct lab_view){ LAB_AS_TRAINED, 1, false };
    if (as.change == LAB_AS_TRAINED && !as.cached) return LOCI_OK;
    CHECK(e, as.change == LAB_AS_TRAINED || lab_change_fits(as.change, &m->arm), LOCI_BAD_ARG,
          "arm '%s' has no variant %s", m->arm.text, lab_change_name(as.change));
    const loci_status status = lab_encoding_open(m, &m->changed, as, e);
    if (status) {
        lab_encoding_close(m, &m->changed);
        return status;
    }
    m->view = &m->changed;
    m->as = as;
    return LOCI_OK;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static char *rows_of(struct lab_model *m, ptrdiff_t rows, ptrdiff_t width)
{
    m->bytes += (size_t)(rows * width) * m->real;
    return lab_alloc((size_t)(rows * width), m->real);
}

static void alloc_saved(struct lab_model *m, int l, ptrdiff_t n)
{
    struct lab_saved *k = &m->saved[l];
    const ptrdiff_t d = m->shape.dim, wide = m->shape.ffn, H = m->shape.heads;
    k->x = rows_of(m, n, d);
    k->a = rows_of(m, n, d);
    k->o = rows_of(m, n, d);
    k->y = rows_of(m, n, d);
    k->b = rows_of(m, n, d);
    k->h = rows_of(m, n, wide);
    k->u = rows_of(m, n, wide);
    k->scale1 = rows_of(m, n, 1);
    k->scale2 = rows_of(m, n, 1);
    k->lse = rows_of(m, n, H);
    for (int i = 0; i < MAPS; i++)
        if (m->map[l][i] >= 0) k->map[i] = rows_of(m, n, m->tensor[m->map[l][i]].stride);
    const ptrdiff_t kv = m->tensor[m->map[l][MAP_K]].stride;
    for (int i = 0; i < m->inputs; i++) {
        const struct lab_input *x = &m->input[i];
        k->projected[i] = rows_of(m, n, (ptrdiff_t)x->heads * x->width);
        k->made[i] = rows_of(m, n, (ptrdiff_t)x->heads * x->width);
        if (x->heads < m->shape.heads) k->repeated[i] = rows_of(m, n, H * x->width);
    }
    if (m->arm.layer == LAB_FOX_PRO) {
        k->q = rows_of(m, n, d);
        k->o1 = rows_of(m, n, d);
        k->o2 = rows_of(m, n, d);
        k->k = rows_of(m, n, kv);
        k->kn = rows_of(m, n, kv);
        k->v = rows_of(m, n, kv);
    }
    if (m->arm.layer == LAB_TAPE) {
        k->e = rows_of(m, n, d);
        k->ae = rows_of(m, n, d);
        k->e1 = rows_of(m, n, d);
        k->m = rows_of(m, n, d);
        k->t = rows_of(m, n, LAB_TAPE_UNITS);
    }
}

static void make_gradients(struct lab_model *m, ptrdiff_t n)
{
    const ptrdiff_t d = m->shape.dim, kv = m->tensor[m->map[0][MAP_K]].stride,
                    pieces = (n + LAB_ROWS - 1) / LAB_ROWS;
    m->dx = rows_of(m, n, d);
    m->dy = rows_of(m, n, d);
    m->db = rows_of(m, n, d);
    m->dh = rows_of(m, n, m->shape.ffn);
    m->d_o = rows_of(m, n, d);
    m->parts = rows_of(m, pieces, d);
    for (int i = 0; i < MAPS; i++)
        if (m->map[0][i] >= 0) m->dmap[i] = rows_of(m, n, m->tensor[m->map[0][i]].stride);
    for (int t = 0; t < m->trained.tensors; t++) {
        const int i = m->trained.input[t];
        if (i >= 0) m->dgiven[t] = rows_of(m, n, m->trained.tensor[t].shape[1] * m->input[i].width);
    }
    ptrdiff_t widest = 0;
    for (int i = 0; i < m->inputs; i++) {
        const ptrdiff_t wide = (ptrdiff_t)m->input[i].heads * m->input[i].width;
        m->dmade[i] = rows_of(m, n, wide);
        if (wide > widest) widest = wide;
    }
    if (widest) m->dprojected = rows_of(m, n, widest);
    if (m->arm.layer == LAB_FOX_PRO) {
        m->d1 = rows_of(m, n, d);
        m->d2 = rows_of(m, n, d);
        m->d3 = rows_of(m, n, kv);
        m->dv = rows_of(m, n, kv);
    }
    if (m->arm.layer == LAB_TAPE) {
        m->de = rows_of(m, n, d);
        m->de1 = rows_of(m, n, d);
        m->de2 = rows_of(m, n, d);
        m->dae = rows_of(m, n, d);
        m->dm = rows_of(m, n, d);
        m->dt = rows_of(m, n, LAB_TAPE_UNITS);
    }
}

void lab_make_rows(struct lab_model *m, ptrdiff_t rows, bool backward)
{
    if (rows <= m->capacity && (m->saved_all || !backward)) return;
    const ptrdiff_t n = rows > m->capacity ? rows : m->capacity;
    backward |= m->saved_all;
    free_rows(m);
    for (int l = 0; l < m->shape.layers; l++) alloc_saved(m, l, n);
    m->top = rows_of(m, n, m->shape.dim);
    m->top_scale = rows_of(m, n, 1);
    m->picked = rows_of(m, n, m->shape.dim);
    m->ys = rows_of(m, n, m->shape.dim);
    m->logits = rows_of(m, n, m->stride);
    m->where = lab_alloc((size_t)n, sizeof *m->where);
    m->asked = lab_alloc((size_t)n, sizeof *m->asked);
    m->said = lab_alloc((size_t)n, sizeof *m->said);
    m->rows_asked = lab_alloc((size_t)n, sizeof *m->rows_asked);
    m->cost = lab_alloc((size_t)n, sizeof *m->cost);
    m->factor = lab_alloc((size_t)n, sizeof *m->factor);
    m->coord = lab_alloc((size_t)n * 3, sizeof *m->coord);
    if (backward) make_gradients(m, n);
    m->saved_all = backward;
    m->capacity = n;
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

/* Numbers that training keeps at `low` or more, as authors clamp them after each step. */
static void clamp(const struct lab_model *m, int t, double low)
{
    for (ptrdiff_t i = 0; i < m->tensor[t].cols; i++) {
        char *w = lab_weight(m, t);
        if (lab_get(m, w, i) < low) lab_put(m, w, i, low);
    }
}

double lab_model_step(struct lab_model *m, int step, double rate)
{
    const double beta1 = 0.9, beta2 = 0.98, most = 1;
    double sum = 0;
    lab_spend(m, LAB_PARTS);
    for (int t = 0; t < m->tensors; t++)
        if (!m->tensor[t].fixed)
            sum += m->engine->squares(m->tensor[t].rows * m->tensor[t].stride, lab_gradient(m, t));
    const double norm = sqrt(sum);
    struct lab_adam a = { .rate = rate,
                          .clip = norm > most ? most / norm : 1,
                          .beta1 = beta1,
                          .beta2 = beta2,
                          .fix1 = 1,
                          .fix2 = 1,
                          .eps = 1e-8 };
    /* By multiplying, since pow() of a libm differs.  Below 1e-20 the powers have no effect. */
    double power1 = 1, power2 = 1;
    for (int i = 0; i < step && power2 > 1e-20; i++) {
        power1 *= beta1;
        power2 *= beta2;
    }
    a.fix1 = 1 / (1 - power1);
    a.fix2 = 1 / (1 - power2);
    for (int t = 0; t < m->tensors; t++) {
        const struct lab_tensor *x = &m->tensor[t];
        if (x->fixed) continue;
        a.decay = x->decays ? 0.1 * rate : 0;
        m->engine->adam(x->rows * x->stride, &a, lab_gradient(m, t),
                        lab_at(m, m->list[LAB_MEANS], x->at),
                        lab_at(m, m->list[LAB_SQUARES], x->at), lab_weight(m, t));
    }
    for (int l = 0; l < m->shape.layers; l++)
        for (int i = 0; i < m->pe_count; i++)
            if (m->pe_low[i] > -INFINITY) clamp(m, m->pe[l][i], m->pe_low[i]);
    lab_spend(m, LAB_UPDATE);
    return norm;
}
