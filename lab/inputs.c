/* SPDX-License-Identifier: MIT */
/* inputs.c -- what the model makes inputs of encodings of, by the rules INPUT of list.h: a
 * projection of the layer's rows, its own for each layer, and a function of it.
 *
 *     y = a W + b         W [dim][heads * width], N(0, s) at the start like all matrices
 *     PROJECTION          y, without b
 *     SOFTPLUS            log(1 + e^y)
 *     LOG_SIGMOID         -log(1 + e^-y)
 *     STRENGTH            2 sigmoid(y)
 *     UNIT                y / |y|, without b
 *     POSITION            the position + y, without b
 *     RUNNING             the sum of 10000^(-t/width) (1 + y_t) over the tokens so far, without b
 *
 * The input of a rule that is `like` another one repeats its heads for the heads of the queries.
 * Everything is computed by loci/layers.h, so its bits are the same everywhere. */
#include "lab/inside.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "math/trig.h"

static const struct lab_rule rules[] = {
#define INPUT(encoding, tensor, ...) { encoding, tensor, __VA_ARGS__ },
#include "lab/list.h"
};

/* ---- Rules ----------------------------------------------------------------------------------- */

static const struct lab_rule *rule_of(const char *encoding, const char *tensor)
{
    for (int i = 0; i < COUNT(rules); i++)
        if (!strcmp(rules[i].encoding, encoding) && !strcmp(rules[i].tensor, tensor))
            return &rules[i];
    return NULL;
}

/* The numbers of a head and row of an input [batch][heads][rows] ... */
static int width_of(const loci_tensor *t)
{
    ptrdiff_t n = 1;
    for (int i = 3; i < t->rank; i++) n *= t->shape[i];
    return (int)n;
}

/* The rule of an input, or NULL. */
static const struct lab_rule *rule_for(const loci_tensor *t)
{
    const struct lab_rule *rule = t->role == LOCI_INPUT ? rule_of(t->encoding, t->name) : NULL;
    return rule && rule->like ? rule_of(rule->encoding, rule->like) : rule;
}

int lab_input_of(const struct lab_model *m, const loci_tensor *t)
{
    const struct lab_rule *rule = rule_for(t);
    for (int i = 0; i < m->inputs && rule; i++)
        if (m->input[i].rule == rule) return i;
    return -1;
}

static void add(struct lab_model *m, const struct lab_rule *rule, const loci_tensor *t)
{
    const int i = lab_input_of(m, t), heads = (int)t->shape[1];
    if (i < 0)
        m->input[m->inputs++] =
            (struct lab_input){ .rule = rule, .heads = heads, .width = width_of(t) };
    /* of the heads of keys and those of queries, which repeat them, the fewer */
    else if (heads < m->input[i].heads) m->input[i].heads = heads;
}

/* Those with names come first, in the order of list.h, so that a sum over the maps of a layer has
 * one order in every company.  The others have numbers in the order of the plan. */
void lab_inputs_open(struct lab_model *m, const struct lab_encoding *e)
{
    _Static_assert(COUNT(rules) <= LAB_INPUTS, "LAB_INPUTS is the number of rules at least");
    for (int r = 0; r < COUNT(rules); r++)
        for (int t = 0; t < e->tensors && rules[r].named; t++)
            if (rule_for(&e->tensor[t]) == &rules[r]) add(m, &rules[r], &e->tensor[t]);
    for (int t = 0; t < e->tensors; t++)
        if (rule_for(&e->tensor[t])) add(m, rule_for(&e->tensor[t]), &e->tensor[t]);
}

void lab_input_names(const struct lab_model *m, int i, char w[16], char b[16])
{
    const char *name = m->input[i].rule->named;
    char number[12];
    if (!name) {
        int n = 1;
        for (int k = 0; k < i; k++) n += !m->input[k].rule->named;
        snprintf(number, sizeof number, "i%d", n);
        name = number;
    }
    snprintf(w, 16, "w%s", name);
    snprintf(b, 16, "b%s", name);
}

int lab_input_gates(const struct lab_model *m)
{
    for (int i = 0; i < m->inputs; i++)
        if (m->input[i].rule->made == LAB_LOG_SIGMOID && m->input[i].width == 1
            && m->input[i].heads == m->shape.heads)
            return i;
    return -1;
}

/* A cache keeps rotated keys, and not the numbers that rotated them. */
int lab_inputs_kept(const struct lab_model *m)
{
    int n = 0;
    for (int t = 0; t < m->trained.tensors; t++) {
        const loci_tensor *x = &m->trained.tensor[t];
        const int i = m->trained.input[t];
        const bool rotates =
            i >= 0
            && (m->input[i].rule->made == LAB_POSITION || m->input[i].rule->made == LAB_RUNNING);
        if (i >= 0 && x->shape[2] == LOCI_DIM_KEYS && !rotates)
            n += (int)x->shape[1] * m->input[i].width;
    }
    return n;
}

bool lab_input_shifts(const struct lab_input *x)
{
    return x->rule->made == LAB_SOFTPLUS || x->rule->made == LAB_LOG_SIGMOID
        || x->rule->made == LAB_STRENGTH;
}

void lab_inputs_start(struct lab_model *m)
{
    for (int i = 0; i < m->inputs; i++) {
        struct lab_input *x = &m->input[i];
        const ptrdiff_t n = (ptrdiff_t)x->heads * x->width;
        x->rate = lab_alloc((size_t)n, sizeof *x->rate);
        x->ones = lab_alloc((size_t)n, m->real);
        for (ptrdiff_t k = 0; k < n; k++) {
            double rest; /* below half an ulp */
            loci_pow_dd(10000, (double)(k % x->width), x->width, &x->rate[k], &rest);
            lab_put(m, x->ones, k, 1 / sqrt((double)x->width));
        }
    }
}

/* ---- Layouts --------------------------------------------------------------------------------- */

/* Between rows of a map, [rows][stride], and an input, [heads][rows][width]. */
static void spread(const struct lab_model *m, const struct lab_input *x, ptrdiff_t rows,
                   ptrdiff_t stride, char *map, char *apart, bool back)
{
    const size_t bytes = (size_t)x->width * m->real;
    for (int h = 0; h < x->heads; h++)
        for (ptrdiff_t r = 0; r < rows; r++) {
            char *a = lab_at(m, map, r * stride + (ptrdiff_t)h * x->width),
                 *b = lab_at(m, apart, (h * rows + r) * x->width);
            memcpy(back ? a : b, back ? b : a, bytes);
        }
}

static loci_layer layer_of(const struct lab_model *m, int heads, ptrdiff_t rows, int width,
                           loci_error *e)
{
    return (loci_layer)LOCI_LAYER(.dtype = m->dtype, .batch = 1, .rows = rows, .heads = heads,
                                  .width = width, .host = m->host, .error = e);
}
static loci_view dense(void *x) { return (loci_view){ .data = x }; }

static void negate(const struct lab_model *m, char *x, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) lab_put(m, x, i, -lab_get(m, x, i));
}
static void set(const struct lab_model *m, char *x, ptrdiff_t n, double value)
{
    for (ptrdiff_t i = 0; i < n; i++) lab_put(m, x, i, value);
}

/* ---- Forward --------------------------------------------------------------------------------- */

static void add_shift(const struct lab_model *m, const struct lab_input *x, const char *b,
                      ptrdiff_t rows, char *y)
{
    for (int h = 0; h < x->heads; h++)
        for (ptrdiff_t r = 0; r < rows; r++)
            for (int t = 0; t < x->width; t++) {
                const ptrdiff_t at = (h * rows + r) * x->width + t;
                const ptrdiff_t own = (ptrdiff_t)h * x->width + t;
                lab_put(m, y, at, lab_get(m, y, at) + lab_get(m, b, own));
            }
}

/* From y, which it may change, to what the encoding reads. */
static loci_status make(struct lab_model *m, const struct lab_batch *b, int layer, int i,
                        loci_error *e)
{
    const struct lab_input *x = &m->input[i];
    struct lab_saved *k = &m->saved[layer];
    char *y = k->projected[i], *to = k->made[i];
    const ptrdiff_t n = (ptrdiff_t)x->heads * b->rows * x->width;
    const loci_layer heads = layer_of(m, x->heads, b->rows, x->width, e),
                     numbers = layer_of(m, 1, n, 1, e);
    double *sums = m->decoder ? lab_decode_sums(m, layer, i) : NULL;
    switch (x->rule->made) {
    case LAB_PROJECTION:
        memcpy(to, y, (size_t)n * m->real);
        return LOCI_OK;
    case LAB_SOFTPLUS: /* -log sigmoid(-y) */
        negate(m, y, n);
        TRY(loci_log_gate(&numbers, dense(y), dense(to)));
        negate(m, to, n);
        return LOCI_OK;
    case LAB_LOG_SIGMOID:
        return loci_log_gate(&numbers, dense(y), dense(to));
    case LAB_STRENGTH:
        set(m, to, n, 2);
        return loci_gate(&numbers, LOCI_SIGMOID, dense(to), dense(y), dense(to));
    case LAB_UNIT:
        return loci_rmsnorm(&heads, dense(y), x->ones, 1e-12, dense(to));
    case LAB_POSITION:
        for (ptrdiff_t p = 0; p < n; p++)
            lab_put(m, to, p, (double)b->pos[p / x->width % b->rows] + lab_get(m, y, p));
        return LOCI_OK;
    case LAB_RUNNING:
        for (ptrdiff_t p = 0; p < n; p++) lab_put(m, y, p, 1 + lab_get(m, y, p));
        return loci_running_angles(&heads, dense(y), x->rate, 0, sums ? NULL : b->seg, 0, sums,
                                   sums, dense(to));
    }
    return LOCI_OK;
}

/* Each head once for every head of the queries. */
static void repeat(const struct lab_model *m, const struct lab_input *x, ptrdiff_t rows,
                   const char *from, char *to)
{
    const ptrdiff_t each = rows * x->width, times = m->shape.heads / x->heads;
    for (int h = 0; h < m->shape.heads; h++)
        memcpy(lab_at(m, to, h * each), from + (size_t)(h / times * each) * m->real,
               (size_t)each * m->real);
}

loci_status lab_make_inputs(struct lab_model *m, const struct lab_batch *b, int layer,
                            loci_error *e)
{
    struct lab_saved *k = &m->saved[layer];
    for (int i = 0; i < m->inputs; i++) {
        const struct lab_input *x = &m->input[i];
        const int map = m->map[layer][MAP_I + i];
        spread(m, x, b->rows, m->tensor[map].stride, k->map[MAP_I + i], k->projected[i], false);
        if (lab_input_shifts(x))
            add_shift(m, x, lab_weight(m, m->own[layer][OWN_BI + i]), b->rows, k->projected[i]);
        TRY(make(m, b, layer, i, e));
        if (k->repeated[i]) repeat(m, x, b->rows, k->made[i], k->repeated[i]);
    }
    return LOCI_OK;
}

void *lab_input(const struct lab_model *m, int layer, const loci_tensor *t, int i)
{
    const struct lab_saved *k = &m->saved[layer];
    return t->shape[1] == m->input[i].heads ? k->made[i] : k->repeated[i];
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* The gradient by an input, summed over the tensors that read it: m->dmade[i].  The first sets
 * it. */
static void gather(const struct lab_model *m, const struct lab_batch *b, int i)
{
    const struct lab_input *x = &m->input[i];
    const ptrdiff_t each = b->rows * x->width;
    bool first = true;
    for (int t = 0; t < m->trained.tensors; t++) {
        if (m->trained.input[t] != i) continue;
        const int heads = (int)m->trained.tensor[t].shape[1], times = heads / x->heads;
        for (int h = 0; h < heads; h++) {
            char *from = lab_at(m, m->dgiven[t], h * each),
                 *to = lab_at(m, m->dmade[i], h / times * each);
            if (first && h % times == 0) memcpy(to, from, (size_t)each * m->real);
            else m->engine->add(each, from, to);
        }
        first = false;
    }
}

static loci_status unmake(struct lab_model *m, const struct lab_batch *b, int layer, int i,
                          loci_error *e)
{
    const struct lab_input *x = &m->input[i];
    struct lab_saved *k = &m->saved[layer];
    char *y = k->projected[i], *from = m->dmade[i], *to = m->dprojected;
    const ptrdiff_t n = (ptrdiff_t)x->heads * b->rows * x->width;
    const loci_layer heads = layer_of(m, x->heads, b->rows, x->width, e),
                     numbers = layer_of(m, 1, n, 1, e);
    switch (x->rule->made) {
    case LAB_SOFTPLUS: /* y is negated, and so is what was made: twice -1 */
    case LAB_LOG_SIGMOID:
        return loci_log_gate_backward(&numbers, dense(y), dense(from), dense(to));
    case LAB_STRENGTH:
        set(m, k->made[i], n, 2);
        return loci_gate_backward(&numbers, LOCI_SIGMOID, dense(k->made[i]), dense(y), dense(from),
                                  dense(NULL), dense(to));
    case LAB_UNIT:
        return loci_rmsnorm_backward(&heads, dense(y), x->ones, 1e-12, dense(from), dense(to),
                                     NULL);
    case LAB_PROJECTION:
    case LAB_POSITION:
        memcpy(to, from, (size_t)n * m->real);
        return LOCI_OK;
    case LAB_RUNNING:
        return loci_running_angles_backward(&heads, dense(y), x->rate, 0, b->seg, 0, dense(from),
                                            NULL, dense(to), NULL, NULL);
    }
    return LOCI_OK;
}

static void sum_shift(const struct lab_model *m, const struct lab_input *x, ptrdiff_t rows, char *b)
{
    for (int h = 0; h < x->heads; h++)
        for (int t = 0; t < x->width; t++) {
            double sum = 0;
            for (ptrdiff_t r = 0; r < rows; r++)
                sum += lab_get(m, m->dprojected, (h * rows + r) * x->width + t);
            lab_put(m, b, (ptrdiff_t)h * x->width + t, sum);
        }
}

loci_status lab_make_inputs_backward(struct lab_model *m, const struct lab_batch *b, int layer,
                                     loci_error *e)
{
    for (int i = 0; i < m->inputs; i++) {
        const struct lab_input *x = &m->input[i];
        const ptrdiff_t stride = m->tensor[m->map[layer][MAP_I + i]].stride;
        gather(m, b, i);
        TRY(unmake(m, b, layer, i, e));
        if (lab_input_shifts(x))
            sum_shift(m, x, b->rows, lab_gradient(m, m->own[layer][OWN_BI + i]));
        memset(m->dmap[MAP_I + i], 0, (size_t)(b->rows * stride) * m->real);
        spread(m, x, b->rows, stride, m->dmap[MAP_I + i], m->dprojected, true);
    }
    return LOCI_OK;
}
