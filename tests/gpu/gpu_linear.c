/* SPDX-License-Identifier: MIT */
/* gpu_linear.c -- linear attention: a device has the bits of the CPU, in outputs, gradients and
 * states, whole and in chunks.
 *
 * Devices are those of gpu_bits.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/gpu.h"
#include "contract/plan.h"
#include "devices.h"
#include "mem.h"

static long long compared;

struct problem {
    const char *text;
    int batch, heads, kv_heads, dim, value_dim;
    ptrdiff_t q_len, k_len;
    loci_dtype dtype;
    enum {
        FULL = 1,
        GRADIENTS = 2,
        PACKED = 4,   /* sequences by their starts */
        SEGMENTS = 8, /* and by numbers, with padding */
        REPEATS = 16, /* positions repeat, and some rows see no key */
        BROKEN = 32,  /* numbers that are not finite */
        APART = 64,   /* rows of views have gaps */
        SMALL = 128,  /* features vanish */
        STATE = 256,  /* the call leaves a state */
        LEARNS = 512  /* gradients are those of tensors alone */
    } with;
};
static const struct problem problems[] = {
    { "nope", 2, 2, 1, 12, 10, 70, 70, LOCI_F32, GRADIENTS | STATE },
    { "rope:pairing=half", 1, 4, 2, 32, 20, 150, 150, LOCI_F32, GRADIENTS },
    { "rope:pairing=half", 1, 2, 2, 16, 16, 1100, 1100, LOCI_F32, GRADIENTS | STATE },
    { "nope", 1, 2, 1, 16, 16, 2100, 2100, LOCI_F32, GRADIENTS },
    { "nope", 1, 2, 1, 64, 64, 64, 64, LOCI_F32, GRADIENTS | STATE },
    { "nope", 1, 1, 1, 20, 36, 1, 1, LOCI_F32, GRADIENTS | STATE },
    { "nope", 1, 4, 4, 16, 24, 130, 200, LOCI_F32, GRADIENTS | FULL },
    { "rope:pairing=half", 2, 4, 2, 32, 32, 90, 1100, LOCI_F32, GRADIENTS | FULL },
    { "rope:pairing=half", 1, 4, 2, 24, 20, 100, 40, LOCI_F32, GRADIENTS },
    { "rope:pairing=half", 1, 4, 2, 24, 20, 40, 100, LOCI_F32, GRADIENTS },
    { "rope:pairing=half", 1, 4, 2, 32, 24, 200, 200, LOCI_BF16, GRADIENTS | STATE },
    { "nope", 2, 4, 2, 40, 24, 130, 130, LOCI_F16, GRADIENTS | APART },
    { "rope:pairing=half", 1, 4, 2, 32, 24, 300, 300, LOCI_F32, GRADIENTS | PACKED },
    { "nope", 1, 2, 1, 16, 16, 300, 260, LOCI_F32, GRADIENTS | PACKED | FULL },
    { "rope:pairing=half", 2, 2, 1, 16, 16, 280, 280, LOCI_F32, GRADIENTS | SEGMENTS },
    { "nope", 1, 4, 2, 24, 20, 300, 300, LOCI_F32, GRADIENTS | REPEATS },
    { "rope:pairing=half", 2, 2, 1, 32, 20, 300, 200, LOCI_F32, GRADIENTS | REPEATS | APART },
    { "nope", 1, 4, 2, 20, 20, 300, 300, LOCI_F32, GRADIENTS | BROKEN },
    { "rope:pairing=half", 1, 2, 1, 32, 32, 300, 300, LOCI_F32, GRADIENTS | BROKEN | REPEATS },
    { "nope", 1, 2, 1, 16, 16, 200, 200, LOCI_F32, GRADIENTS | BROKEN | FULL },
    { "nope", 1, 2, 1, 20, 20, 200, 200, LOCI_F32, GRADIENTS | SMALL },
    { "rope:pairing=interleaved,freq=given", 1, 4, 2, 24, 20, 150, 150, LOCI_F32, STATE },
    { "rope:pairing=half,freq=given", 2, 4, 2, 24, 20, 150, 150, LOCI_F32, GRADIENTS },
    { "rope:pairing=half,freq=given", 1, 2, 1, 24, 20, 280, 280, LOCI_F32, GRADIENTS | SEGMENTS },
    { "mixed:axes=1", 1, 4, 2, 24, 20, 150, 150, LOCI_F32, GRADIENTS | STATE },
    { "mixed:axes=1", 1, 2, 1, 24, 20, 300, 200, LOCI_F32, GRADIENTS | REPEATS },
    { "comrope:kind=ld,block=4,axes=1", 1, 4, 2, 24, 20, 150, 150, LOCI_F32, GRADIENTS | STATE },
    { "comrope:kind=ap,block=4,axes=1", 1, 2, 1, 24, 20, 300, 300, LOCI_F32, GRADIENTS | REPEATS },
    { "liere:block=2,axes=1", 1, 4, 2, 24, 20, 300, 300, LOCI_BF16, GRADIENTS | PACKED },
    { "liere:block=3,axes=1", 1, 2, 2, 24, 20, 150, 150, LOCI_F32, GRADIENTS },
    { "fope:train_length=40,learn=1", 1, 2, 2, 24, 20, 150, 150, LOCI_F32, GRADIENTS },
    { "angles:pairing=half", 1, 2, 2, 24, 20, 150, 150, LOCI_F32, GRADIENTS },
    { "liere:block=3,axes=2", 1, 4, 2, 24, 20, 150, 90, LOCI_F32, GRADIENTS },
    { "liere:block=4,axes=2", 2, 2, 1, 24, 20, 90, 150, LOCI_BF16, GRADIENTS | LEARNS },
    { "comrope:kind=ld,block=2,axes=1", 1, 2, 1, 24, 20, 150, 150, LOCI_F32, GRADIENTS | LEARNS },
    { "liere:block=3,axes=1", 1, 2, 1, 24, 20, 90, 70, LOCI_F32, GRADIENTS | LEARNS },
    { "angles:pairing=half", 2, 2, 1, 16, 16, 280, 280, LOCI_F32, GRADIENTS | SEGMENTS },
    { "rope:pairing=half,freq=given,positions=given", 1, 4, 2, 24, 20, 150, 150, LOCI_F32,
      GRADIENTS },
    { "rope:pairing=half,positions=given", 2, 2, 1, 16, 16, 280, 280, LOCI_F32,
      GRADIENTS | SEGMENTS },
    { "fope:train_length=60,learn=1", 1, 4, 2, 32, 20, 300, 200, LOCI_F32, GRADIENTS | REPEATS },
    { "mixed:axes=2", 2, 4, 2, 24, 20, 150, 150, LOCI_F32, GRADIENTS | STATE },
    { "rope2d:pairing=half", 1, 4, 2, 24, 20, 200, 150, LOCI_F32, GRADIENTS | FULL },
    { "comrope:kind=ap,block=4,axes=2", 1, 2, 1, 24, 20, 150, 150, LOCI_BF16, GRADIENTS },
    { "nope", 1, 2, 1, 256, 256, 70, 70, LOCI_BF16, GRADIENTS | STATE },
    { "nope", 1, 2, 1, 16, 16, 0, 70, LOCI_F32, GRADIENTS | STATE },
    { "nope", 1, 2, 1, 16, 16, 70, 0, LOCI_F32, GRADIENTS | STATE },
    { "nope", 1, 2, 1, 128, 128, 130, 130, LOCI_F32, GRADIENTS | STATE },
};

/* Numbers in memory of the host and of a device, as both begin with them, and what the device
 * computed. */
enum { Q, K, V, O, DOUT, DQ, DK, DV, VIEWS };
struct array {
    loci_view host, device;
    char *begun, *result;
    size_t bytes;
};
struct arrays {
    struct array view[VIEWS];
    size_t tables, inputs[WALK_TENSORS]; /* bytes of tensors that come with the call */
    const void *tensor[WALK_TENSORS], *tensor_there[WALK_TENSORS];
    /* Gradients of tensors: those of learned ones are memory of the host on both sides. */
    int tensors;
    size_t count[WALK_TENSORS];
    void *dtensor[WALK_TENSORS], *dtensor_there[WALK_TENSORS], *dtensor_result[WALK_TENSORS];
};

static void tidy(void *x, size_t bytes, loci_dtype dtype)
{
    const size_t each = stored_size(dtype);
    for (size_t i = 0; i < bytes / each; i++) {
        const double y = load_stored(x, dtype, (ptrdiff_t)i);
        if (y != y) memset((char *)x + i * each, 0xff, each);
    }
}
/* NaN is NaN, whichever. */
static bool same(const char *name, const char *what, const void *a, const void *b, size_t bytes,
                 loci_dtype dtype)
{
    const size_t each = stored_size(dtype);
    compared += (long long)(bytes / each);
    for (size_t i = 0; i < bytes / each; i++) {
        char x[8], y[8];
        memcpy(x, (const char *)a + i * each, each);
        memcpy(y, (const char *)b + i * each, each);
        tidy(x, each, dtype);
        tidy(y, each, dtype);
        if (memcmp(x, y, each) != 0)
            return CHECK_FAILED("%s: %s differs, number %zu of %zu: %.9g, not %.9g", name, what, i,
                                bytes / each, load_stored(y, dtype, 0), load_stored(x, dtype, 0));
    }
    return harness_pass();
}

static loci_view view_of(void *data, int heads, ptrdiff_t rows, int width, int gap)
{
    const ptrdiff_t row = width + gap, head = rows * row + 3 * gap;
    return (loci_view){ data, heads * head + gap, head, row };
}
/* Numbers of a view, with those of its gaps. */
static void fill(struct mem *m, struct array *a, const struct problem *s, int heads, ptrdiff_t rows,
                 int width, double size, double middle)
{
    a->host = view_of(NULL, heads, rows, width, s->with & APART ? 5 : 0);
    const size_t count = (size_t)(s->batch * a->host.batch);
    a->bytes = count * stored_size(s->dtype);
    a->host.data = mem_alloc(m, a->bytes + 1);
    a->begun = mem_alloc(m, a->bytes + 1);
    a->result = mem_alloc(m, a->bytes + 1);
    for (size_t i = 0; i < count; i++)
        store_stored(a->host.data, s->dtype, (ptrdiff_t)i, middle + size * walk_uniform());
    memcpy(a->begun, a->host.data, a->bytes);
}
static void plant(const struct problem *s, const struct array *a, int h, ptrdiff_t row, int channel,
                  double x)
{
    store_stored(a->host.data, s->dtype, h * a->host.head + row * a->host.row + channel, x);
    memcpy(a->begun, a->host.data, a->bytes);
}
static void fill_arrays(struct mem *m, struct arrays *a, const struct problem *s)
{
    const bool small = s->with & SMALL;
    struct array *v = a->view;
    fill(m, &v[Q], s, s->heads, s->q_len, s->dim, small ? 40 : 2, small ? -70 : 0);
    fill(m, &v[K], s, s->kv_heads, s->k_len, s->dim, small ? 40 : 2, small ? -70 : 0);
    fill(m, &v[V], s, s->kv_heads, s->k_len, s->value_dim, 1, 0);
    fill(m, &v[O], s, s->heads, s->q_len, s->value_dim, 1, 0);
    fill(m, &v[DOUT], s, s->heads, s->q_len, s->value_dim, 1, 0);
    fill(m, &v[DQ], s, s->heads, s->q_len, s->dim, 1, 0);
    fill(m, &v[DK], s, s->kv_heads, s->k_len, s->dim, 1, 0);
    fill(m, &v[DV], s, s->kv_heads, s->k_len, s->value_dim, 1, 0);
    if (!(s->with & BROKEN)) return;
    plant(s, &v[V], 0, 150, 3, NAN);
    plant(s, &v[V], 0, 190, 1, -INFINITY);
    plant(s, &v[K], 0, 170, 2, INFINITY);
    plant(s, &v[Q], 0, 20, 5, INFINITY);
    plant(s, &v[Q], 0, 60, 0, NAN);
    plant(s, &v[DOUT], 1, 110, 2, INFINITY);
    if (s->kv_heads < 2) return;
    /* keys of this head get nothing else that is not finite: those that the row does not see stay
     * finite */
    plant(s, &v[Q], s->heads - 1, 20, 1, NAN);
}

static loci_call call_on(const struct arrays *a, const struct problem *s, bool device)
{
    loci_view v[VIEWS];
    for (int i = 0; i < VIEWS; i++) v[i] = device ? a->view[i].device : a->view[i].host;
    return (loci_call)LOCI_CALL(.batch = s->batch, .q_len = s->q_len, .k_len = s->k_len, .q = v[Q],
                                .k = v[K], .v = v[V], .o = v[O],
                                .tensors = device ? a->tensor_there : a->tensor);
}
static loci_grad grad_on(const struct arrays *a, const struct problem *s, bool device)
{
    loci_view v[VIEWS];
    for (int i = 0; i < VIEWS; i++) v[i] = device ? a->view[i].device : a->view[i].host;
    for (int i = DQ; i <= DV && s->with & LEARNS; i++) v[i].data = NULL;
    return (loci_grad)LOCI_GRAD(.dout = v[DOUT], .dq = v[DQ], .dk = v[DK], .dv = v[DV],
                                .dtensors = device ? a->dtensor_there : a->dtensor);
}
/* Copies of everything, as the CPU began with it. */
static void copy_arrays(struct there *t, struct arrays *a, const void *tables, const void **there)
{
    for (int i = 0; i < VIEWS; i++) {
        a->view[i].device = a->view[i].host;
        a->view[i].device.data = copy_there(t, a->view[i].begun, a->view[i].bytes);
    }
    for (int i = 0; i < a->tensors; i++) {
        a->tensor_there[i] = NULL;
        a->dtensor_there[i] = a->dtensor_result[i];
        if (!a->inputs[i]) continue;
        a->tensor_there[i] = copy_there(t, a->tensor[i], a->inputs[i]);
        a->dtensor_there[i] = copy_there(t, a->tensor[i], a->inputs[i]);
    }
    *there = copy_there(t, tables, a->tables);
}
static bool fetch(const struct there *t, struct array *a, loci_error *e)
{
    return !a->bytes
        || !loci_gpu_copy(t->gpu, a->result, a->device.data, a->bytes, LOCI_GPU_DOWNLOAD, e);
}
static void compare(const char *name, const struct there *t, struct arrays *a, loci_dtype dtype,
                    bool gradients)
{
    static const char *const names[] = { "q", "k", "v", "o", "dO", "dq", "dk", "dv" };
    loci_error e = { 0 };
    for (int i = O; i <= (gradients ? DV : O); i++)
        if (CHECK_THAT(fetch(t, &a->view[i], &e), "%s: %s", name, e.text))
            same(name, names[i], a->view[i].host.data, a->view[i].result, a->view[i].bytes, dtype);
    for (int i = 0; i < a->tensors && gradients; i++) {
        loci_status status = LOCI_OK;
        if (a->inputs[i])
            status = loci_gpu_copy(t->gpu, a->dtensor_result[i], a->dtensor_there[i], a->inputs[i],
                                   LOCI_GPU_DOWNLOAD, &e);
        if (CHECK_THAT(!status, "%s: %s", name, e.text))
            same(name, "the gradient of a tensor", a->dtensor[i], a->dtensor_result[i],
                 a->count[i] * sizeof(float), LOCI_F32);
    }
}

/* Positions, starts and segments of a problem. */
struct places {
    double *q_coord, *k_coord;
    int64_t *q_pos, *k_pos, *q_seg, *k_seg, starts[2][6];
};
static void add_places(struct mem *m, struct places *p, const struct problem *s, int axes,
                       loci_call *c)
{
    const size_t rows = (size_t)(s->batch * s->q_len), keys = (size_t)(s->batch * s->k_len);
    p->q_coord = mem_alloc(m, sizeof(double) * ((size_t)(axes * s->q_len) + 1));
    p->k_coord = mem_alloc(m, sizeof(double) * ((size_t)(axes * s->k_len) + 1));
    for (ptrdiff_t i = 0; i < axes * s->q_len; i++) p->q_coord[i] = walk_coordinate(40);
    for (ptrdiff_t i = 0; i < axes * s->k_len; i++) p->k_coord[i] = walk_coordinate(40);
    if (axes > 1) {
        c->q_coord = p->q_coord;
        c->k_coord = p->k_coord;
    }
    p->q_pos = mem_alloc(m, sizeof(int64_t) * (rows + 1));
    p->k_pos = mem_alloc(m, sizeof(int64_t) * (keys + 1));
    p->q_seg = mem_alloc(m, sizeof(int64_t) * (rows + 1));
    p->k_seg = mem_alloc(m, sizeof(int64_t) * (keys + 1));
    for (ptrdiff_t i = 0; i < s->q_len; i++) p->q_pos[i] = i / 3 - 5;
    for (ptrdiff_t j = 0; j < s->k_len; j++) p->k_pos[j] = j / 2;
    for (ptrdiff_t i = 0; i < (ptrdiff_t)rows; i++) {
        const ptrdiff_t at = i % s->q_len;
        p->q_seg[i] = at < 10 ? -1 : at < 95 ? 3 : at < 100 ? 4 : at < 250 ? 7 : -1;
    }
    for (ptrdiff_t j = 0; j < (ptrdiff_t)keys; j++) {
        const ptrdiff_t at = j % s->k_len;
        p->k_seg[j] = at < 6 ? -1 : at < 90 ? 3 : at < 100 ? 5 : at < 240 ? 7 : -1;
    }
    for (int side = 0; side < 2; side++) {
        const ptrdiff_t n = side ? s->k_len : s->q_len;
        const int64_t starts[] = { 0, 70, 70, 71, side ? 199 : 200, n };
        memcpy(p->starts[side], starts, sizeof starts);
    }
    if (s->with & REPEATS) {
        c->q_pos = p->q_pos;
        c->k_pos = p->k_pos;
    }
    if (s->with & SEGMENTS) {
        c->q_seg = p->q_seg;
        c->k_seg = p->k_seg;
        c->per_batch = true;
    }
    if (s->with & PACKED) {
        c->sequences = 5;
        c->q_starts = p->starts[0];
        c->k_starts = p->starts[1];
    }
}

static loci_plan *plan_of(const struct problem *s)
{
    loci_error e = { 0 };
    loci_plan *plan = NULL;
    const loci_desc d =
        LOCI_DESC(.encoding = s->text, .stage = LOCI_LINEAR_ATTENTION, .heads = s->heads,
                  .kv_heads = s->kv_heads, .dim = s->dim, .value_dim = s->value_dim,
                  .full = (s->with & FULL) != 0, .dtype = s->dtype);
    if (loci_plan_create(&plan, &d, &e)) CHECK_FAILED("%s: %s", s->text, e.text);
    return plan;
}
static void *fill_tables(struct mem *m, struct arrays *a, const struct problem *s,
                         const loci_plan *plan)
{
    loci_tensor list[WALK_TENSORS];
    const int tensors = loci_tensors(plan, list, WALK_TENSORS);
    for (int i = 0; i < tensors; i++) {
        const size_t count = walk_count(&list[i], s->batch, s->q_len, s->k_len);
        float *x = mem_alloc(m, count * sizeof(float));
        loci_tensor_init(plan, i, 1, x);
        for (size_t j = 0; j < count; j++) x[j] += (float)(0.1 + 0.1 * walk_uniform());
        a->tensor[i] = x;
        if (list[i].role == LOCI_INPUT) a->inputs[i] = count * sizeof(float);
        a->count[i] = count;
        a->dtensor[i] = mem_alloc(m, count * sizeof(float));
        a->dtensor_result[i] = mem_alloc(m, count * sizeof(float));
    }
    a->tensors = tensors;
    a->tables = loci_tables_size(plan, 4096);
    void *tables = mem_alloc(m, a->tables);
    CHECK_THAT(!loci_prepare(plan, 4096, a->tensor, tables), "%s: tables", s->text);
    return tables;
}

/* ---- A call ---------------------------------------------------------------------------------- */

static void check_there(const char *name, int device, const loci_plan *plan, const void *tables,
                        const struct problem *s, const loci_call *call, struct arrays *a,
                        const char *state)
{
    struct there t = { .gpu = gpus[device] };
    struct mem mem = { 0 };
    loci_error e = { 0 };
    loci_gpu_plan *there = NULL;
    const size_t state_bytes = state ? loci_linear_state(plan, s->batch) : 0;
    const bool gradients = s->with & GRADIENTS;
    loci_gpu_tables both = { tables, NULL };
    if (loci_gpu_plan_create(&there, gpus[device], plan, &e)) {
        CHECK_FAILED("%s: %s", name, e.text);
        return;
    }
    copy_arrays(&t, a, tables, &both.device);
    loci_call c = *call;
    const loci_call views = call_on(a, s, true);
    loci_grad g = grad_on(a, s, true);
    c.q = views.q;
    c.k = views.k;
    c.v = views.v;
    c.o = views.o;
    c.tensors = views.tensors;
    c.error = &e;
    c.work_bytes = loci_gpu_workspace(there, &c, gradients);
    char *work = mem_alloc(&mem, c.work_bytes);
    memset(work, 0xff, c.work_bytes);
    work = copy_there(&t, work, c.work_bytes);
    char *result = mem_alloc(&mem, state_bytes + 1);
    void *after = state ? copy_there(&t, NULL, state_bytes) : NULL;
    loci_status status = loci_gpu_linear_forward(there, &both, work, &c, NULL, after);
    if (!status && gradients) status = loci_gpu_linear_backward(there, &both, work, &c, &g);
    if (!status && state)
        status = loci_gpu_copy(t.gpu, result, after, state_bytes, LOCI_GPU_DOWNLOAD, &e);
    if (CHECK_THAT(!status, "%s: %s", name, e.text)) {
        compare(name, &t, a, s->dtype, gradients);
        if (state) same(name, "the state", state, result, state_bytes, LOCI_F32);
    }
    loci_gpu_plan_destroy(there);
    release(&t);
    mem_release(&mem, 0);
}

/* On the first devices of the list. */
static void check(const struct problem *s, int those)
{
    struct mem mem = { 0 };
    struct arrays a = { 0 };
    struct places places;
    loci_error e = { 0 };
    loci_plan *plan = plan_of(s);
    if (!plan) return;
    void *tables = fill_tables(&mem, &a, s, plan);
    fill_arrays(&mem, &a, s);
    loci_call c = call_on(&a, s, false);
    const loci_grad g = grad_on(&a, s, false);
    c.error = &e;
    add_places(&mem, &places, s, loci_axes(plan), &c);
    const bool gradients = s->with & GRADIENTS, leaves = s->with & STATE;
    char *state = leaves ? mem_alloc(&mem, loci_linear_state(plan, s->batch)) : NULL;
    void *work = mem_alloc(&mem, loci_workspace(plan, &c, gradients));
    loci_status status = loci_linear_forward(plan, tables, work, &c, NULL, state);
    if (!status && gradients) status = loci_linear_backward(plan, tables, work, &c, &g);
    for (int i = 0; i < those && CHECK_THAT(!status, "%s on the CPU: %s", s->text, e.text); i++) {
        char name[256];
        snprintf(name, sizeof name, "problem %d, %s, %td rows, %td keys, on %s",
                 (int)(s - problems), s->text, s->q_len, s->k_len, devices[i]);
        check_there(name, i, plan, tables, s, &c, &a, state);
    }
    mem_release(&mem, 0);
    loci_plan_destroy(plan);
}

/* ---- Chunks ---------------------------------------------------------------------------------- */

/* A text in chunks of these lengths, over and over: on the device each has the outputs of the CPU,
 * and the state.  Every second chunk replaces its state. */
static void check_chunks(const struct problem *s, const ptrdiff_t *lengths, int count, int device)
{
    struct there t = { .gpu = gpus[device] };
    struct mem mem = { 0 };
    struct arrays a = { 0 };
    loci_error e = { 0 };
    loci_gpu_plan *there = NULL;
    loci_plan *plan = plan_of(s);
    if (!plan || loci_gpu_plan_create(&there, gpus[device], plan, &e)) {
        CHECK_FAILED("%s: %s", s->text, e.text);
        return;
    }
    void *tables = fill_tables(&mem, &a, s, plan);
    loci_gpu_tables both = { tables, NULL };
    fill_arrays(&mem, &a, s);
    copy_arrays(&t, &a, tables, &both.device);
    const size_t bytes = loci_linear_state(plan, s->batch), each = stored_size(s->dtype);
    char *state[] = { mem_alloc(&mem, bytes), mem_alloc(&mem, bytes) },
         *on_device[] = { copy_there(&t, NULL, bytes), copy_there(&t, NULL, bytes) },
         *result = mem_alloc(&mem, bytes), *work = NULL, *work_there = NULL;
    int old = -1;
    for (ptrdiff_t first = 0, n = 0, i = 0; first < s->k_len; first += n, i++) {
        n = lengths[i % count] < s->k_len - first ? lengths[i % count] : s->k_len - first;
        const int now = i % 2 && old >= 0 ? old : !old;
        char name[128];
        snprintf(name, sizeof name, "%s, keys %td .. %td, on %s", s->text, first, first + n - 1,
                 devices[device]);
        loci_status status = LOCI_OK;
        for (int side = 0; side < 2 && !status; side++) {
            loci_call c = call_on(&a, s, side);
            char *const *states = side ? on_device : state;
            loci_view *views[] = { &c.q, &c.k, &c.v, &c.o };
            for (int v = 0; v < 4; v++)
                views[v]->data = (char *)views[v]->data + (size_t)(first * views[v]->row) * each;
            c.q_len = c.k_len = n;
            c.error = &e;
            if (side && !work_there) {
                loci_call all = call_on(&a, s, true);
                work_there = copy_there(&t, NULL, loci_gpu_workspace(there, &all, 0));
            }
            if (!side && !work) {
                loci_call all = call_on(&a, s, false);
                work = mem_alloc(&mem, loci_workspace(plan, &all, 0));
            }
            const void *before = old < 0 ? NULL : states[old];
            status = side
                       ? loci_gpu_linear_forward(there, &both, work_there, &c, before, states[now])
                       : loci_linear_forward(plan, tables, work, &c, before, states[now]);
        }
        if (!status)
            status = loci_gpu_copy(t.gpu, result, on_device[now], bytes, LOCI_GPU_DOWNLOAD, &e);
        if (!CHECK_THAT(!status, "%s: %s", name, e.text)
            || !same(name, "the state", state[now], result, bytes, LOCI_F32))
            break;
        old = now;
    }
    compare(s->text, &t, &a, s->dtype, false);
    /* A state of the CPU is one of the device. */
    loci_call c = call_on(&a, s, true), here = call_on(&a, s, false);
    c.error = here.error = &e;
    loci_status status = loci_gpu_copy(t.gpu, on_device[0], state[old], bytes, LOCI_GPU_UPLOAD, &e);
    if (!status) status = loci_linear_forward(plan, tables, work, &here, state[old], NULL);
    if (!status) status = loci_gpu_linear_forward(there, &both, work_there, &c, on_device[0], NULL);
    if (CHECK_THAT(!status, "%s: %s", s->text, e.text))
        compare("the text once more", &t, &a, s->dtype, false);
    loci_gpu_plan_destroy(there);
    loci_plan_destroy(plan);
    release(&t);
    mem_release(&mem, 0);
}
static void check_all_chunks(int device, bool few)
{
    static const ptrdiff_t mixed[] = { 1, 62, 3, 64, 128, 5, 59, 200 }, ones[] = { 1 },
                           long_ones[] = { 700 };
    static const struct problem
        rope = { "rope:pairing=half", 2, 4, 2, 16, 20, 1300, 1300, LOCI_F32, 0 },
        nope = { "nope", 1, 2, 1, 12, 10, 200, 200, LOCI_BF16, APART },
        full = { "nope", 1, 2, 1, 16, 16, 300, 300, LOCI_F32, FULL },
        broken = { "nope", 1, 2, 1, 16, 16, 300, 300, LOCI_F32, BROKEN },
        longer = { "nope", 1, 2, 1, 16, 16, 2300, 2300, LOCI_F32, 0 };
    check_chunks(&nope, mixed, 8, device);
    if (few) return;
    check_chunks(&rope, mixed, 8, device);
    check_chunks(&nope, ones, 1, device);
    check_chunks(&full, mixed, 8, device);
    check_chunks(&broken, mixed, 8, device);
    check_chunks(&longer, long_ones, 1, device);
}

/* ---- Refusals -------------------------------------------------------------------------------- */

static void check_refusals(int device)
{
    static const struct problem s = { "mixed:axes=1", 1, 2, 1, 16, 16, 8, 8, LOCI_F32, 0 };
    struct there t = { .gpu = gpus[device] };
    struct mem mem = { 0 };
    struct arrays a = { 0 };
    loci_error e = { 0 };
    loci_plan *plan = plan_of(&s), *attention;
    loci_gpu_plan *there, *of_attention;
    const loci_desc d = LOCI_DESC(.heads = 2, .dim = 16);
    if (!plan || loci_plan_create(&attention, &d, &e)
        || loci_gpu_plan_create(&there, t.gpu, plan, &e)
        || loci_gpu_plan_create(&of_attention, t.gpu, attention, &e)) {
        CHECK_FAILED("%s", e.text);
        return;
    }
    void *tables = fill_tables(&mem, &a, &s, plan);
    loci_gpu_tables both = { tables, NULL };
    fill_arrays(&mem, &a, &s);
    copy_arrays(&t, &a, tables, &both.device);
    loci_call c = call_on(&a, &s, true);
    loci_grad g = grad_on(&a, &s, true);
    c.error = &e;
    const size_t bytes = loci_linear_state(plan, 1);
    char *state = mem_alloc(&mem, bytes), *work = copy_there(&t, NULL, 1 << 20);
    memset(state, 0, bytes);
    char *there_state = copy_there(&t, state, bytes);
    CHECK_SAYS(loci_gpu_linear_forward(there, &both, work, &c, there_state, NULL), LOCI_BAD_ARG, &e,
               "before must be a state that loci_linear_forward() wrote");
    CHECK_SAYS(loci_gpu_linear_forward(there, &both, work, &c, NULL, there_state + 8), LOCI_BAD_ARG,
               &e, "aligned");
    CHECK_SAYS(loci_gpu_linear_forward(of_attention, &both, work, &c, NULL, NULL), LOCI_BAD_ARG, &e,
               "stage LINEAR_ATTENTION");
    CHECK_SAYS(loci_gpu_forward(there, &both, work, &c), LOCI_BAD_ARG, &e, "stage ATTENTION");
    float lse[16];
    g.dlse = lse;
    CHECK_SAYS(loci_gpu_linear_backward(there, &both, work, &c, &g), LOCI_BAD_ARG, &e,
               "dlse and drem must be NULL");
    /* a state of no batch entry is its head */
    loci_call none = call_on(&a, &s, true);
    char result[64];
    none.batch = 0;
    void *here = mem_alloc(&mem, loci_workspace(plan, &none, 0));
    none.error = &e;
    CHECK_THAT(!loci_gpu_linear_forward(there, &both, work, &none, NULL, there_state)
                   && !loci_linear_forward(plan, tables, here, &none, NULL, state)
                   && !loci_gpu_copy(t.gpu, result, there_state, 64, LOCI_GPU_DOWNLOAD, &e)
                   && !memcmp(result, state, 64),
               "no batch entry: %s", e.text);
    c.work_bytes = 64;
    CHECK_SAYS(loci_gpu_linear_forward(there, &both, work, &c, NULL, NULL), LOCI_BAD_ARG, &e,
               "work has 64 bytes");
    CHECK_THAT(loci_gpu_linear_forward(NULL, &both, work, &c, NULL, NULL) == LOCI_BAD_ARG
                   && loci_gpu_linear_backward(there, &both, work, NULL, &g) == LOCI_BAD_ARG,
               "NULL");
    loci_gpu_plan_destroy(there);
    loci_gpu_plan_destroy(of_attention);
    loci_plan_destroy(attention);
    loci_plan_destroy(plan);
    release(&t);
    mem_release(&mem, 0);
}

int main(int argc, char **argv)
{
    open_devices("host:2 host host:1", !LOCI_SLOW);
    /* compiling takes most of the time of an OpenCL device that nobody named */
    const bool given = getenv("LOCI_DEVICES");
    const int hosts = given || device_count < 3 ? device_count : 3;
    for (int i = 0; i < hosts && argc < 2; i++) check_refusals(i);
    for (int i = 0; i < (int)(sizeof problems / sizeof *problems); i++)
        if (argc < 2 ? !LOCI_SLOW || i % 4 == 0 : atoi(argv[1]) == i)
            check(&problems[i], i < 2 || argc > 1 ? device_count : i % 4 && !given ? 1 : hosts);
    for (int i = 0; i < device_count && argc < 2; i++)
        check_all_chunks(i, !given && (LOCI_SLOW || i > 0));
    printf("%lld numbers compared\n", compared);
    close_devices();
    return harness_end();
}
