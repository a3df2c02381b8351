/* SPDX-License-Identifier: MIT */
/* task.c -- see task.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loci/convert.h"
#include "math/q8.h"
#include "contract/plan.h"
#include "reference/reference.h"
#include "cli/task.h"

/* The list of allocations doubles when it is full. */
void *task_alloc(struct task *t, size_t count, size_t each)
{
    if (t->owned == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 16;
        void **own = realloc(t->own, (size_t)t->capacity * sizeof *own);
        if (!own) exit(fail("out of memory"));
        t->own = own;
    }
    return t->own[t->owned++] = alloc(count, each);
}

bool task_has_wide_keys(const loci_plan *p) { return key_dim(p) > p->dim; }

void task_close(struct task *t)
{
    for (int i = 0; i < t->owned; i++) free(t->own[i]);
    free(t->own);
    loci_plan_destroy(t->plan);
    *t = (struct task){ 0 };
}

ptrdiff_t shape_count(int rank, const ptrdiff_t *shape)
{
    ptrdiff_t n = 1;
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(n, shape[i], &n)) return 0;
    return n;
}

/* Fills in sizes that a call decides, once, so that later code has no placeholders. */
bool task_open(struct task *t, const loci_desc *d, ptrdiff_t batch, ptrdiff_t q_len,
               ptrdiff_t k_len, const char *about)
{
    *t = (struct task){ .desc = *d, .batch = batch, .q_len = q_len, .k_len = k_len };
    t->reals = d->dtype == LOCI_F64 ? LOCI_F64 : LOCI_F32;
    t->real = stored_size(t->reals);
    if (loci_plan_create(&t->plan, d, &t->error)) {
        fail("%s%s%s", about ? about : "", about ? ": " : "", t->error.text);
        return false;
    }
    t->tensors = loci_tensors(t->plan, NULL, 0);
    t->tensor = task_alloc(t, (size_t)t->tensors, sizeof *t->tensor);
    t->data = task_alloc(t, (size_t)t->tensors, sizeof *t->data);
    t->ddata = task_alloc(t, (size_t)t->tensors, sizeof *t->ddata);
    loci_tensors(t->plan, t->tensor, t->tensors);
    for (int i = 0; i < t->tensors; i++)
        for (int k = 0; k < t->tensor[i].rank; k++) {
            ptrdiff_t *n = &t->tensor[i].shape[k];
            if (*n == LOCI_DIM_BATCH) *n = batch;
            else if (*n == LOCI_DIM_QUERIES) *n = q_len;
            else if (*n == LOCI_DIM_KEYS) *n = k_len;
        }
    t->call = (loci_call)LOCI_CALL(.batch = batch, .q_len = q_len, .k_len = k_len,
                                   .tensors = (const void *const *)t->data, .error = &t->error);
    t->grad = (loci_grad)LOCI_GRAD(.dtensors = t->ddata);
    return true;
}

loci_desc task_embedding(const loci_desc *d, const char *encoding)
{
    return (loci_desc)LOCI_DESC(.encoding = encoding, .stage = LOCI_EMBED,
                                .model_dim = d->heads * d->dim, .dtype = d->dtype,
                                .max_len = d->max_len, .isa = d->isa);
}

void task_gradients(struct task *t)
{
    for (int i = 0; i < t->tensors; i++)
        if (t->tensor[i].role != LOCI_FIXED)
            t->ddata[i] =
                task_alloc(t, (size_t)shape_count(t->tensor[i].rank, t->tensor[i].shape), t->real);
}

/* ---- Random data ----------------------------------------------------------------------------- */

/* Steele, Lea, Flood 2014: a counter and a mixing function. */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The sum of twelve uniform numbers has variance 1, and no tails, which is fine for a benchmark.
 * Each of three draws gives four 16-bit numbers. */
static double normal(uint64_t *state)
{
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++)
        for (uint64_t z = next(state), k = 0; k < 4; k++, z >>= 16) sum += z & 0xffff;
    return (double)sum / 65536 - 6;
}

/* Rounds to float, so that F64 and F32 get the same numbers. */
static void store(void *data, loci_dtype dtype, ptrdiff_t i, double x)
{
    store_stored(data, dtype, i, (float)x);
}

void fill_normal(void *data, loci_dtype dtype, ptrdiff_t count, uint64_t seed, double scale)
{
    for (ptrdiff_t i = 0; i < count; i++) store(data, dtype, i, scale * normal(&seed));
}

/* Compares the block with itself, shifted by one byte. */
static bool all_zero(const void *data, size_t bytes)
{
    const char *p = data;
    return bytes == 0 || (p[0] == 0 && !memcmp(p, p + 1, bytes - 1));
}

/* Rows become as long as a layer makes them. */
static void make_units(void *data, loci_dtype dtype, ptrdiff_t count, ptrdiff_t width)
{
    for (ptrdiff_t at = 0; at < count; at += width) {
        double sum = 1e-30;
        for (ptrdiff_t d = at; d < at + width; d++)
            sum += load_stored(data, dtype, d) * load_stored(data, dtype, d);
        for (ptrdiff_t d = at; d < at + width; d++)
            store(data, dtype, d, load_stored(data, dtype, d) / sqrt(sum));
    }
}
/* Tables that start at zero get small numbers, so that a pass is not cheaper than in practice.
 * Inputs whose name denotes logarithms of gates get log(sigmoid(N(3, 1))), others what a layer
 * makes of normal numbers. */
void task_random_tensors(struct task *t, uint64_t seed)
{
    for (int i = 0; i < t->tensors; i++) {
        ptrdiff_t n = shape_count(t->tensor[i].rank, t->tensor[i].shape);
        uint64_t state = seed + 1000 * (uint64_t)(i + 1);
        t->data[i] = task_alloc(t, (size_t)n, t->real);
        if (t->tensor[i].role == LOCI_INPUT) {
            const bool gate = !strncmp(t->tensor[i].name, "log_", 4);
            const loci_source source = loci_tensor_source(t->plan, i);
            for (ptrdiff_t k = 0; k < n; k++) {
                const double x = normal(&state);
                store(t->data[i], t->reals, k,
                      gate                             ? -log1p(exp(-3 - x))
                      : source == LOCI_SOURCE_STRENGTH ? 2 / (1 + exp(-x))
                                                       : x);
            }
            if (source == LOCI_SOURCE_UNIT) make_units(t->data[i], t->reals, n, t->desc.dim);
        } else {
            loci_tensor_init(t->plan, i, state, t->data[i]);
            if (all_zero(t->data[i], (size_t)n * t->real))
                fill_normal(t->data[i], t->reals, n, state, 0.1);
        }
    }
}

/* Seed 0: allocates a result, which stays zero. */
static void *random_numbers(struct task *t, loci_dtype dtype, ptrdiff_t count, uint64_t seed)
{
    void *data = task_alloc(t, (size_t)stored_bytes(dtype, count), 1);
    for (ptrdiff_t i = 0; i < count && dtype == LOCI_Q8_0; i += Q8_BLOCK) {
        double x[Q8_BLOCK];
        for (int k = 0; k < Q8_BLOCK; k++) x[k] = normal(&seed);
        loci_round(dtype, Q8_BLOCK, x, (char *)data + stored_bytes(dtype, i));
    }
    if (seed && dtype != LOCI_Q8_0) fill_normal(data, dtype, count, seed, 1);
    return data;
}
/* Keys or values: a cache is given them in the type of queries. */
static loci_view random_keys(struct task *t, loci_dtype dtype, ptrdiff_t count, uint64_t seed)
{
    if (t->call.cache || !dtype) dtype = t->desc.dtype;
    return (loci_view){ .data = random_numbers(t, dtype, count, seed) };
}
static loci_view random_view(struct task *t, ptrdiff_t count, uint64_t seed)
{
    return (loci_view){ .data = random_numbers(t, t->desc.dtype, count, seed) };
}

/* Coordinates row by row through a square picture, if an encoding needs them.  The queries are the
 * last of the keys. */
static void picture(struct task *t)
{
    ptrdiff_t axes = loci_axes(t->plan), side = 1;
    if (axes < 2) return;
    while (side * side < t->k_len) side++;
    double *k = task_alloc(t, (size_t)(axes * t->k_len), sizeof *k);
    double *q = task_alloc(t, (size_t)(axes * t->q_len), sizeof *q);
    for (ptrdiff_t a = 0; a < axes; a++) {
        for (ptrdiff_t j = 0; j < t->k_len; j++)
            k[a * t->k_len + j] = (double)(a == axes - 1 ? j / side : j % side);
        for (ptrdiff_t i = 0; i < t->q_len; i++)
            q[a * t->q_len + i] = k[a * t->k_len + t->k_len - t->q_len + i];
    }
    t->call.q_coord = q;
    t->call.k_coord = k;
}

/* Allocates everything that a call of this stage reads or writes.  A stick has `rem` in place of
 * lse. */
void task_random_inputs(struct task *t, uint64_t seed)
{
    const loci_desc *d = &t->desc;
    picture(t);
    int kv_heads = d->kv_heads ? d->kv_heads : d->heads;
    ptrdiff_t rows = t->batch * t->q_len, keys = t->batch * t->k_len;
    ptrdiff_t value_dim = d->value_dim ? d->value_dim : d->dim;
    if (d->stage == LOCI_ROTATE || d->stage == LOCI_EMBED) {
        ptrdiff_t n = d->stage == LOCI_EMBED ? rows * d->model_dim
                    : t->which == LOCI_QUERY ? rows * d->heads * d->dim
                                             : keys * kv_heads * d->dim;
        t->x = random_view(t, n, seed + 1);
        t->dy = random_view(t, n, seed + 2);
        t->y = random_view(t, n, 0);
        t->dx = random_view(t, n, 0);
        return;
    }
    t->call.q = random_view(t, rows * d->heads * d->dim, seed + 1);
    t->call.k = random_keys(t, d->k_dtype, keys * kv_heads * d->dim, seed + 2);
    if (!d->values_in_keys)
        t->call.v = random_keys(t, d->v_dtype, keys * kv_heads * value_dim, seed + 3);
    t->grad.dout = random_view(t, rows * d->heads * value_dim, seed + 4);
    t->call.o = random_view(t, rows * d->heads * value_dim, 0);
    t->grad.dq = random_view(t, rows * d->heads * d->dim, 0);
    t->grad.dk = random_view(t, keys * kv_heads * d->dim, 0);
    t->grad.dv = random_view(t, keys * kv_heads * value_dim, 0);
    if (d->stage == LOCI_LINEAR_ATTENTION) return;
    void *row = task_alloc(t, (size_t)(rows * d->heads), t->real);
    if (text_places(d->encoding) & LOCI_PLACE_WEIGHT) t->call.rem = row;
    else t->call.lse = row;
    if (!(text_places(d->encoding) & LOCI_PLACE_STATE)) return;
    t->call.ae = random_numbers(t, t->reals, rows * d->heads * d->dim, 0);
    t->grad.dae = random_numbers(t, t->reals, rows * d->heads * d->dim, seed + 5);
}

/* ---- Running --------------------------------------------------------------------------------- */

/* A small file must not request a huge table: positions can be arbitrary numbers. */
enum { MAX_TABLE_BYTES = 1 << 28 };

/* For errors that the library reports as a size of 0, without a sentence. */
static loci_status impossible(struct task *t, const char *what)
{
    t->error.status = LOCI_BAD_ARG;
    snprintf(t->error.text, sizeof t->error.text, "%s", what);
    return LOCI_BAD_ARG;
}

loci_status task_tables(struct task *t, ptrdiff_t max_distance)
{
    t->table_bytes = loci_tables_size(t->plan, max_distance);
    if (t->table_bytes == 0 || t->table_bytes > MAX_TABLE_BYTES)
        return impossible(t,
                          "positions are so far apart that the encoding's tables would need more "
                          "than 256 MiB");
    t->tables = task_alloc(t, t->table_bytes, 1);
    return loci_prepare_on(t->call.host, t->plan, max_distance, (const void *const *)t->data,
                           t->tables, &t->error);
}

/* The larger workspace serves both passes, since they never run at once. */
loci_status task_prepare(struct task *t, ptrdiff_t max_distance, bool backward)
{
    loci_status status = task_tables(t, max_distance);
    if (status) return status;
    for (int pass = 0; pass <= backward; pass++) {
        if (t->desc.stage == LOCI_EMBED && pass == 0) continue; /* loci_embed needs none */
        t->error.text[0] = 0;
        size_t bytes = loci_workspace(t->plan, &t->call, pass);
        if (bytes == 0)
            return t->error.text[0] ? LOCI_BAD_ARG
                                    : impossible(t, "a call of these sizes is too large");
        if (bytes > t->work_bytes) t->work_bytes = bytes;
    }
    if (t->work_bytes) t->work = task_alloc(t, t->work_bytes, 1);
    return LOCI_OK;
}

/* Selected by the stage, since each call has different arguments. */
loci_status task_forward(struct task *t)
{
    if (t->desc.stage == LOCI_EMBED) return loci_embed(t->plan, t->tables, &t->call, t->x, t->y);
    if (t->desc.stage == LOCI_ROTATE)
        return loci_rotate(t->plan, t->tables, t->work, &t->call, t->which, t->x, t->y);
    if (t->desc.stage == LOCI_LINEAR_ATTENTION)
        return loci_linear_forward(t->plan, t->tables, t->work, &t->call, NULL, NULL);
    return loci_forward(t->plan, t->tables, t->work, &t->call);
}

static size_t x_bytes(const struct task *t)
{
    ptrdiff_t width =
        t->desc.stage == LOCI_EMBED ? t->desc.model_dim : (ptrdiff_t)t->desc.heads * t->desc.dim;
    return (size_t)(t->batch * t->q_len * width) * stored_size(t->desc.dtype);
}

/* An embedding is added, so its input's gradient equals the output's. */
loci_status task_backward(struct task *t)
{
    if (t->desc.stage == LOCI_EMBED) {
        memcpy(t->dx.data, t->dy.data, x_bytes(t));
        return loci_embed_backward(t->plan, t->tables, t->work, &t->call, t->dy, t->ddata);
    }
    if (t->desc.stage == LOCI_ROTATE)
        return loci_rotate_backward(t->plan, t->tables, t->work, &t->call, t->which, t->x, t->dy,
                                    t->dx, t->ddata);
    if (t->desc.stage == LOCI_LINEAR_ATTENTION)
        return loci_linear_backward(t->plan, t->tables, t->work, &t->call, &t->grad);
    return loci_backward(t->plan, t->tables, t->work, &t->call, &t->grad);
}

/* The same call by the reference, which needs neither tables nor a workspace. */
loci_status task_reference(struct task *t, bool backward)
{
    const void *const *data = (const void *const *)t->data;
    loci_view none = { 0 };
    if (t->desc.stage == LOCI_ROTATE)
        return loci_reference_rotate(t->plan, data, &t->call, t->which, t->x, t->y,
                                     backward ? t->dy : none, t->dx, t->ddata);
    if (t->desc.stage == LOCI_EMBED) {
        if (backward) memcpy(t->dx.data, t->dy.data, x_bytes(t));
        return loci_reference_embed(t->plan, data, &t->call, t->x, t->y, backward ? t->dy : none,
                                    t->ddata);
    }
    if (t->desc.stage == LOCI_LINEAR_ATTENTION)
        return loci_reference_linear(t->plan, data, &t->call, backward ? &t->grad : NULL);
    return loci_reference(t->plan, data, &t->call, backward ? &t->grad : NULL);
}

/* Gates near 1 and scores near -9 keep every key relevant, so that no walk ends early. */
void task_lasting(struct task *t)
{
    const loci_desc *d = &t->desc;
    for (int i = 0; i < t->tensors; i++) {
        if (t->tensor[i].role != LOCI_INPUT || strncmp(t->tensor[i].name, "log_", 4) != 0) continue;
        float *gate = t->data[i];
        for (ptrdiff_t k = shape_count(t->tensor[i].rank, t->tensor[i].shape); k-- > 0;)
            gate[k] *= 0x1p-12f;
    }
    if (d->stage != LOCI_ATTENTION) return;
    /* Channel 0 subtracts 9 from every score: root^2 / sqrt(dim) = 9. */
    const double root = 3 * sqrt(sqrt(d->dim));
    const ptrdiff_t keys = t->batch * t->k_len * (d->kv_heads ? d->kv_heads : d->heads);
    for (ptrdiff_t i = 0; i < t->batch * t->q_len * d->heads; i++)
        store(t->call.q.data, d->dtype, i * d->dim, root);
    for (ptrdiff_t j = 0; j < keys; j++) store(t->call.k.data, d->dtype, j * d->dim, -root);
}
