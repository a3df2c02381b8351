/* SPDX-License-Identifier: MIT */
/* gpu_rows.c -- rotations and embeddings alone: a device has the bits of the CPU, forward and
 * backward, for all rotations, sides and stored types.
 *
 * Devices are those of gpu_bits.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/gpu.h"
#include "contract/plan.h"
#include "devices.h"
#include "math/half.h"
#include "mem.h"

static long long compared;

enum {
    PLACES = 1,      /* positions that repeat, some of them negative */
    COORDS = 2,      /* coordinates of all axes */
    ENTRIES = 4,     /* for each entry its own */
    IN_PLACE = 8,    /* y is x, and dx is dy */
    NO_DX = 16,      /* only gradients of tensors */
    HEADS_LAST = 32, /* rows of heads are apart: [B][L][H][D] */
    ATTENTION = 64,  /* the plan is one for attention */
    BROKEN = 128,    /* infinities and NaN among the rows */
    PACKED = 256,    /* sequences by their starts, from which positions count */
    SEGMENTS = 512,  /* sequences by numbers, with padding */
    LENS = 1024      /* fewer keys, and rows, in the second entry */
};
struct rotated {
    const char *text;
    int heads, kv_heads, dim, value_dim;
    ptrdiff_t q_len, k_len;
    loci_dtype dtype;
    loci_which which;
    int with;
};
static const struct rotated rotations[] = {
    { "rope:pairing=half", 4, 2, 64, 0, 70, 9, LOCI_F32, LOCI_QUERY, 0 },
    { "rope:pairing=half", 4, 2, 64, 0, 9, 70, LOCI_F32, LOCI_KEY, IN_PLACE },
    { "rope:pairing=interleaved,dim=20", 2, 2, 24, 0, 33, 33, LOCI_BF16, LOCI_KEY, PLACES },
    { "rope:pairing=half,dim=16", 3, 1, 24, 0, 140, 3, LOCI_F16, LOCI_QUERY, ATTENTION | PLACES },
    { "rope:pairing=half", 2, 1, 32, 0, 40, 40, LOCI_F32, LOCI_QUERY, BROKEN | HEADS_LAST },
    { "rope:pairing=half,freq=given", 4, 2, 32, 0, 150, 70, LOCI_F32, LOCI_QUERY, 0 },
    { "rope:pairing=half,freq=given", 4, 2, 32, 0, 20, 150, LOCI_BF16, LOCI_KEY, NO_DX },
    { "rope:pairing=half,positions=given", 2, 2, 32, 0, 70, 70, LOCI_F32, LOCI_QUERY, ATTENTION },
    { "rope:pairing=half,positions=given", 2, 2, 32, 0, 70, 70, LOCI_F32, LOCI_KEY, NO_DX },
    { "rope:pairing=half,values=1,freq=given", 4, 2, 32, 48, 20, 70, LOCI_F32, LOCI_VALUE,
      ATTENTION },
    { "rope:pairing=half,freq=given", 4, 2, 32, 0, 150, 70, LOCI_F32, LOCI_QUERY, PACKED },
    { "xpos:scale_base=40", 4, 2, 32, 0, 70, 150, LOCI_BF16, LOCI_KEY, PACKED | ATTENTION },
    { "fope:train_length=60,learn=1", 2, 2, 32, 0, 150, 150, LOCI_F32, LOCI_KEY, PACKED },
    { "rope:pairing=half,freq=given", 2, 2, 32, 0, 90, 90, LOCI_F32, LOCI_QUERY, SEGMENTS },
    { "angles:pairing=half", 2, 2, 32, 0, 90, 90, LOCI_F32, LOCI_KEY, SEGMENTS | PLACES },
    { "comrope:axes=1", 4, 2, 32, 0, 90, 130, LOCI_F32, LOCI_KEY, LENS | ATTENTION },
    { "rope:pairing=half", 4, 2, 64, 0, 0, 9, LOCI_F32, LOCI_QUERY, 0 },
    { "tape", 2, 2, 32, 0, 70, 70, LOCI_F32, LOCI_QUERY, ATTENTION | NO_DX },
    { "mrope:sections=4/6/6,dim=32", 2, 1, 32, 0, 70, 20, LOCI_F32, LOCI_QUERY, COORDS },
    { "rope2d", 2, 2, 32, 0, 20, 70, LOCI_F32, LOCI_KEY, COORDS | ENTRIES },
    { "mixed", 4, 2, 32, 0, 70, 70, LOCI_F32, LOCI_QUERY, COORDS },
    { "mixed", 2, 2, 16, 0, 70, 140, LOCI_F32, LOCI_KEY, COORDS | NO_DX },
    { "xpos:scale_base=40", 4, 2, 32, 0, 70, 70, LOCI_F32, LOCI_QUERY, IN_PLACE },
    { "xpos:scale_base=40", 4, 2, 32, 0, 70, 70, LOCI_BF16, LOCI_KEY, PLACES },
    { "xpos:scale_base=40", 4, 2, 32, 0, 70, 70, LOCI_F32, LOCI_CACHE, ATTENTION },
    { "comrope:axes=2", 2, 2, 32, 0, 70, 70, LOCI_F32, LOCI_QUERY, COORDS },
    { "comrope:axes=1", 4, 2, 32, 0, 10, 130, LOCI_F32, LOCI_KEY, 0 },
    { "liere:block=2,axes=2", 2, 2, 32, 0, 70, 70, LOCI_F32, LOCI_QUERY, COORDS | IN_PLACE },
    { "liere:block=4,axes=1", 4, 2, 32, 0, 70, 70, LOCI_F32, LOCI_KEY, 0 },
    { "liere:block=5,axes=2", 2, 2, 35, 0, 70, 30, LOCI_F32, LOCI_QUERY, COORDS | IN_PLACE },
    { "liere:block=5,axes=2", 2, 2, 35, 0, 30, 70, LOCI_BF16, LOCI_KEY, COORDS | ENTRIES },
    { "fope:train_length=60,learn=1", 2, 2, 32, 0, 70, 70, LOCI_F32, LOCI_QUERY, 0 },
    { "fope:train_length=60", 4, 2, 32, 0, 20, 130, LOCI_F32, LOCI_KEY, IN_PLACE },
    { "angles:pairing=half", 2, 2, 32, 0, 70, 70, LOCI_F32, LOCI_QUERY, 0 },
    { "angles:pairing=interleaved", 4, 2, 32, 0, 20, 70, LOCI_BF16, LOCI_KEY, ATTENTION },
    { "pope:base=20", 2, 2, 32, 0, 20, 70, LOCI_F32, LOCI_CACHE, ATTENTION | NO_DX },
    { "tape", 2, 2, 32, 0, 70, 70, LOCI_F32, LOCI_QUERY, ATTENTION },
    { "tape", 2, 2, 32, 0, 20, 70, LOCI_F32, LOCI_KEY, ATTENTION | IN_PLACE },
    { "dca:pairing=half,chunk=90,local=20", 4, 2, 32, 0, 20, 270, LOCI_F32, LOCI_KEY, ATTENTION },
    { "rope:pairing=half,dim=64,offset=512", 3, 1, 576, 512, 70, 30, LOCI_F32, LOCI_QUERY,
      IN_PLACE },
    { "rope:pairing=half,dim=64,offset=512", 3, 1, 576, 512, 70, 30, LOCI_F32, LOCI_QUERY,
      ATTENTION },
    { "mrope:pairing=half,sections=40/44/48", 2, 1, 264, 0, 30, 20, LOCI_F32, LOCI_QUERY,
      COORDS | ATTENTION },
    { "rope2d", 2, 1, 264, 0, 20, 30, LOCI_F32, LOCI_KEY, COORDS | ATTENTION },
    { "mixed", 2, 1, 264, 0, 30, 20, LOCI_F32, LOCI_QUERY, COORDS | ATTENTION },
    { "rope:pairing=interleaved,freq=given", 2, 1, 320, 0, 20, 70, LOCI_BF16, LOCI_KEY, 0 },
    { "rope:pairing=half+t5+cape:hidden=4", 4, 2, 32, 0, 70, 30, LOCI_F32, LOCI_QUERY, ATTENTION },
};
struct embedded {
    const char *text;
    int model_dim;
    ptrdiff_t batch, q_len, max_len;
    loci_dtype dtype;
    int with;
};
static const struct embedded embeddings[] = {
    { "sinusoidal", 64, 2, 70, 0, LOCI_F32, 0 },
    { "sinusoidal", 33, 1, 20, 0, LOCI_F32, IN_PLACE },
    { "sinusoidal:layout=halves", 35, 3, 40, 0, LOCI_BF16, PLACES | ENTRIES },
    { "sinusoidal:freq=t2t", 33, 2, 40, 0, LOCI_F32, PLACES },
    { "sinusoidal:freq=t2t,layout=halves", 33, 2, 40, 0, LOCI_F16, 0 },
    { "sinusoidal:freq=t2t,layout=halves", 300, 1, 5000, 0, LOCI_F32, 0 },
    { "learned", 48, 3, 50, 60, LOCI_F32, 0 },
    { "learned", 33, 3, 90, 17, LOCI_BF16, PLACES | ENTRIES },
    { "learned", 20, 2, 400, 500, LOCI_F32, PLACES | IN_PLACE },
    { "index", 20, 2, 30, 0, LOCI_F32, 0 },
    { "normalised:length=100", 20, 2, 30, 0, LOCI_F16, PLACES },
    { "binary", 70, 2, 300, 0, LOCI_F32, IN_PLACE },
};

static void *numbers(struct mem *m, size_t count, loci_dtype dtype, bool broken)
{
    void *x = mem_alloc(m, count * stored_size(dtype));
    for (size_t i = 0; i < count; i++) {
        const double y = broken && i % 97 == 13 ? (i % 2 ? (double)INFINITY : (double)NAN)
                       : i % 11 == 3            ? 0
                                                : 2 * walk_uniform();
        store_stored(x, dtype, (ptrdiff_t)i, y);
    }
    return x;
}
/* NaN is NaN, whichever. */
static void same(const char *name, const char *what, const void *a, const void *b, size_t count,
                 loci_dtype dtype)
{
    compared += (long long)count;
    for (size_t i = 0; i < count; i++) {
        const double x = load_stored(a, dtype, (ptrdiff_t)i),
                     y = load_stored(b, dtype, (ptrdiff_t)i);
        const size_t each = stored_size(dtype), at = i * each;
        if ((x != x && y != y) || !memcmp((const char *)a + at, (const char *)b + at, each))
            continue;
        CHECK_FAILED("%s: %s differs, number %zu of %zu: %.9g, not %.9g", name, what, i, count, y,
                     x);
        return;
    }
    harness_pass();
}

/* A plan with its tensors, on the CPU. */
struct open {
    struct mem mem;
    loci_plan *plan;
    loci_error e;
    loci_tensor list[WALK_TENSORS];
    void *data[WALK_TENSORS], *gradient[WALK_TENSORS];
    size_t count[WALK_TENSORS], table_bytes;
    int tensors;
    void *tables;
};
static bool open_plan(struct open *o, const char *text, const loci_desc *d, ptrdiff_t batch,
                      ptrdiff_t q_len, ptrdiff_t k_len)
{
    *o = (struct open){ 0 };
    if (loci_plan_create(&o->plan, d, &o->e)) return CHECK_FAILED("%s: %s", text, o->e.text);
    o->tensors = loci_tensors(o->plan, o->list, WALK_TENSORS);
    for (int i = 0; i < o->tensors; i++) {
        o->count[i] = walk_count(&o->list[i], batch, q_len, k_len);
        float *x = o->data[i] = mem_alloc(&o->mem, o->count[i] * sizeof(float));
        loci_tensor_init(o->plan, i, 1, x);
        for (size_t j = 0; j < o->count[i]; j++) x[j] += (float)(0.1 + 0.1 * walk_uniform());
        o->gradient[i] = mem_alloc(&o->mem, o->count[i] * sizeof(float));
    }
    o->table_bytes = loci_tables_size(o->plan, q_len + k_len);
    o->tables = mem_alloc(&o->mem, o->table_bytes);
    return !loci_prepare(o->plan, q_len + k_len, (const void *const *)o->data, o->tables)
        || CHECK_FAILED("%s: no tables", text);
}
static void close_plan(struct open *o)
{
    loci_plan_destroy(o->plan);
    mem_release(&o->mem, 0);
}
/* The same there: plan, tables, and tensors that come with the call. */
struct open_there {
    struct there t;
    struct mem mem;
    loci_gpu_plan *plan;
    loci_gpu_tables tables;
    const void *inputs[WALK_TENSORS];
    void *gradient[WALK_TENSORS], *here[WALK_TENSORS];
};
static bool open_there(struct open_there *t, int device, const char *text, const struct open *o)
{
    loci_error e = { 0 };
    *t = (struct open_there){ .t.gpu = gpus[device] };
    if (loci_gpu_plan_create(&t->plan, gpus[device], o->plan, &e))
        return CHECK_FAILED("%s: %s", text, e.text);
    t->tables = (loci_gpu_tables){ o->tables, copy_there(&t->t, o->tables, o->table_bytes) };
    for (int i = 0; i < o->tensors; i++) {
        const size_t bytes = o->count[i] * sizeof(float);
        t->here[i] = mem_alloc(&t->mem, bytes);
        t->gradient[i] = t->here[i];
        if (o->list[i].role != LOCI_INPUT) continue;
        t->inputs[i] = copy_there(&t->t, o->data[i], bytes);
        t->gradient[i] = copy_there(&t->t, t->here[i], bytes);
    }
    return true;
}
static void close_there(struct open_there *t)
{
    loci_gpu_plan_destroy(t->plan);
    release(&t->t);
    mem_release(&t->mem, 0);
}
static void same_gradients(const char *name, struct open_there *t, const struct open *o)
{
    for (int i = 0; i < o->tensors; i++) {
        if (o->list[i].role == LOCI_INPUT)
            loci_gpu_copy(t->t.gpu, t->here[i], t->gradient[i], o->count[i] * sizeof(float),
                          LOCI_GPU_DOWNLOAD, NULL);
        same(name, o->list[i].name, o->gradient[i], t->here[i], o->count[i], LOCI_F32);
    }
}

/* ---- Rotations ------------------------------------------------------------------------------- */

enum { BATCH = 2 };

/* A workspace that is large enough for the call without positions, and holds NaN. */
static void *work_for(struct open_there *t, loci_call *c, int backward)
{
    loci_call fewer = *c;
    fewer.q_pos = fewer.k_pos = NULL;
    c->work_bytes = loci_gpu_workspace(t->plan, &fewer, backward);
    void *ones = mem_alloc(&t->mem, c->work_bytes);
    return copy_there(&t->t, ones, c->work_bytes);
}
static void rotate_there(const struct rotated *s, int device, const struct open *o,
                         const loci_call *call, const void *x, const void *dy, size_t in,
                         size_t out, loci_view like, const void *y, const void *dx)
{
    struct open_there t;
    struct mem mem = { 0 };
    loci_error e = { 0 };
    const size_t each = stored_size(s->dtype);
    char name[160];
    snprintf(name, sizeof name, "%s %s", devices[device], s->text);
    if (!open_there(&t, device, name, o)) return;
    loci_call c = *call;
    c.error = &e;
    c.tensors = t.inputs;
    loci_view from = like, to = like, d_to = like, d_from = like;
    from.data = copy_there(&t.t, x, in * each);
    void *result = mem_alloc(&mem, (in > out ? in : out) * each);
    to.data = s->with & IN_PLACE ? from.data : copy_there(&t.t, result, out * each);
    if (out != in)
        to = (loci_view){ .data = to.data,
                          .row = 2 * s->dim,
                          .head = s->k_len * 2 * s->dim,
                          .batch = s->kv_heads * s->k_len * 2 * s->dim };
    void *work = work_for(&t, &c, 0);
    loci_status status = loci_gpu_rotate(t.plan, &t.tables, work, &c, s->which, from, to);
    if (!status)
        status = loci_gpu_copy(t.t.gpu, result, to.data, out * each, LOCI_GPU_DOWNLOAD, &e);
    if (CHECK_THAT(!status, "%s: %s", name, e.text)) same(name, "y", y, result, out, s->dtype);
    if (!dy) {
        mem_release(&mem, 0);
        close_there(&t);
        return;
    }
    from.data = copy_there(&t.t, x, in * each);
    d_from.data = copy_there(&t.t, dy, in * each);
    memset(result, 0xff, in * each);
    d_to.data = s->with & NO_DX    ? NULL
              : s->with & IN_PLACE ? d_from.data
                                   : copy_there(&t.t, result, in * each);
    work = work_for(&t, &c, 1);
    status = loci_gpu_rotate_backward(t.plan, &t.tables, work, &c, s->which, from, d_from, d_to,
                                      t.gradient);
    if (!status && d_to.data)
        status = loci_gpu_copy(t.t.gpu, result, d_to.data, in * each, LOCI_GPU_DOWNLOAD, &e);
    if (CHECK_THAT(!status, "%s: backward: %s", name, e.text)) {
        if (d_to.data) same(name, "dx", dx, result, in, s->dtype);
        same_gradients(name, &t, o);
    }
    mem_release(&mem, 0);
    close_there(&t);
}
static void check_rotation(const struct rotated *s, int those)
{
    struct open o;
    const int batch = s->with & PACKED ? 1 : BATCH;
    const bool query = s->which == LOCI_QUERY,
               polar = s->which == LOCI_CACHE && strncmp(s->text, "pope", 4) == 0;
    const loci_desc d = LOCI_DESC(.stage = s->with & ATTENTION ? LOCI_ATTENTION : LOCI_ROTATE,
                                  .encoding = s->text, .heads = s->heads, .kv_heads = s->kv_heads,
                                  .dim = s->dim, .value_dim = s->value_dim, .dtype = s->dtype);
    if (!open_plan(&o, s->text, &d, batch, s->q_len, s->k_len)) return;
    const int heads = query ? s->heads : s->kv_heads,
              width = s->which == LOCI_VALUE ? s->value_dim : s->dim;
    const ptrdiff_t rows = query ? s->q_len : s->k_len;
    const size_t in = (size_t)(batch * heads * rows * width), out = polar ? 2 * in : in,
                 each = stored_size(s->dtype);
    const int axes = loci_axes(o.plan), entries = s->with & ENTRIES ? BATCH : 1;
    int64_t *q_pos = mem_alloc(&o.mem, sizeof(int64_t) * (size_t)(entries * s->q_len)),
            *k_pos = mem_alloc(&o.mem, sizeof(int64_t) * (size_t)(entries * s->k_len));
    int64_t *q_seg = mem_alloc(&o.mem, sizeof(int64_t) * (size_t)s->q_len),
            *k_seg = mem_alloc(&o.mem, sizeof(int64_t) * (size_t)s->k_len);
    double *q_coord = mem_alloc(&o.mem, sizeof(double) * (size_t)(entries * axes * s->q_len)),
           *k_coord = mem_alloc(&o.mem, sizeof(double) * (size_t)(entries * axes * s->k_len));
    for (ptrdiff_t i = 0; i < entries * s->q_len; i++) q_pos[i] = i * 7 % 31 - 5;
    for (ptrdiff_t i = 0; i < entries * s->k_len; i++) k_pos[i] = i * 5 % 29 - 3;
    for (ptrdiff_t i = 0; i < entries * axes * s->q_len; i++) q_coord[i] = (double)(i * 7 % 13);
    for (ptrdiff_t i = 0; i < entries * axes * s->k_len; i++) k_coord[i] = (double)(i * 5 % 11) / 2;
    loci_call c =
        LOCI_CALL(.batch = batch, .q_len = s->q_len, .k_len = s->k_len, .per_batch = entries > 1,
                  .tensors = (const void *const *)o.data, .error = &o.e);
    if (s->with & PLACES) {
        c.q_pos = q_pos;
        c.k_pos = k_pos;
    }
    int64_t starts[2][4] = { { 0, s->q_len / 3, s->q_len / 3, s->q_len },
                             { 0, s->k_len / 5, s->k_len / 2, s->k_len } };
    if (s->with & PACKED) {
        c.q_starts = starts[0];
        c.k_starts = starts[1];
        c.sequences = 3;
    }
    if (s->with & SEGMENTS) {
        for (ptrdiff_t i = 0; i < s->q_len; i++) q_seg[i] = i < 11 ? -1 : i / 30;
        for (ptrdiff_t i = 0; i < s->k_len; i++) k_seg[i] = i < 11 ? -1 : i / 30;
        c.q_seg = q_seg;
        c.k_seg = k_seg;
    }
    const int64_t lens[BATCH] = { s->k_len, s->k_len / 2 };
    if (s->with & LENS) c.k_lens = lens;
    if (s->with & COORDS) {
        c.q_coord = q_coord;
        c.k_coord = k_coord;
    }
    loci_view like = { .batch = heads * rows * width, .head = rows * width, .row = width };
    if (s->with & HEADS_LAST)
        like = (loci_view){ .batch = heads * rows * width, .head = width, .row = heads * width };
    void *x = numbers(&o.mem, in, s->dtype, s->with & BROKEN),
         *dy = polar ? NULL : numbers(&o.mem, in, s->dtype, false),
         *y = mem_alloc(&o.mem, out * each), *dx = mem_alloc(&o.mem, in * each);
    loci_view from = like, to = like, d_from = like, d_to = like;
    from.data = x;
    to.data = y;
    d_from.data = dy;
    d_to.data = s->with & NO_DX ? NULL : dx;
    if (polar) to = (loci_view){ y, s->kv_heads * rows * 2 * width, rows * 2 * width, 2 * width };
    void *work = mem_alloc(&o.mem, loci_workspace(o.plan, &c, 1));
    loci_status status = loci_rotate(o.plan, o.tables, work, &c, s->which, from, to);
    if (!status && dy)
        status = loci_rotate_backward(o.plan, o.tables, work, &c, s->which, from, d_from, d_to,
                                      o.gradient);
    if (CHECK_THAT(!status, "%s: %s", s->text, o.e.text))
        for (int i = 0; i < those; i++) rotate_there(s, i, &o, &c, x, dy, in, out, like, y, dx);
    close_plan(&o);
}

/* ---- Embeddings ------------------------------------------------------------------------------ */

static void embed_there(const struct embedded *s, int device, const struct open *o,
                        const loci_call *call, const void *x, size_t count, const void *y)
{
    struct open_there t;
    struct mem mem = { 0 };
    loci_error e = { 0 };
    const size_t bytes = count * stored_size(s->dtype);
    char name[160];
    snprintf(name, sizeof name, "%s %s", devices[device], s->text);
    if (!open_there(&t, device, name, o)) return;
    loci_call c = *call;
    c.error = &e;
    void *result = mem_alloc(&mem, bytes);
    loci_view from = { .data = copy_there(&t.t, x, bytes) }, to = from;
    if (!(s->with & IN_PLACE)) to.data = copy_there(&t.t, result, bytes);
    c.work_bytes = loci_gpu_workspace(t.plan, &c, 0);
    void *work = copy_there(&t.t, NULL, c.work_bytes);
    loci_status status = loci_gpu_embed(t.plan, &t.tables, work, &c, from, to);
    if (!status) status = loci_gpu_copy(t.t.gpu, result, to.data, bytes, LOCI_GPU_DOWNLOAD, &e);
    if (CHECK_THAT(!status, "%s: %s", name, e.text)) same(name, "y", y, result, count, s->dtype);
    from.data = copy_there(&t.t, x, bytes); /* now a gradient */
    c.work_bytes = loci_gpu_workspace(t.plan, &c, 1);
    work = copy_there(&t.t, NULL, c.work_bytes);
    status = loci_gpu_embed_backward(t.plan, &t.tables, work, &c, from, t.gradient);
    if (CHECK_THAT(!status, "%s: backward: %s", name, e.text)) same_gradients(name, &t, o);
    mem_release(&mem, 0);
    close_there(&t);
}
static void check_embedding(const struct embedded *s, int those)
{
    struct open o;
    const loci_desc d =
        LOCI_DESC(.stage = LOCI_EMBED, .encoding = s->text, .model_dim = s->model_dim,
                  .dtype = s->dtype, .max_len = s->max_len);
    if (!open_plan(&o, s->text, &d, s->batch, s->q_len, 0)) return;
    const int entries = (int)(s->with & ENTRIES ? s->batch : 1);
    const ptrdiff_t n = entries * s->q_len, most = s->max_len ? s->max_len : 100,
                    least = strncmp(s->text, "sinus", 5) ? 0 : -90;
    const size_t count = (size_t)(s->batch * s->q_len * s->model_dim),
                 bytes = count * stored_size(s->dtype);
    int64_t *pos = mem_alloc(&o.mem, sizeof *pos * (size_t)n);
    for (ptrdiff_t i = 0; i < n; i++) pos[i] = least + i * i % (most - least);
    if (least) pos[3] = (int64_t)1 << 33; /* more digits than the table has */
    loci_call c = LOCI_CALL(.batch = s->batch, .q_len = s->q_len, .per_batch = entries > 1,
                            .q_pos = s->with & PLACES ? pos : NULL, .error = &o.e);
    void *x = numbers(&o.mem, count, s->dtype, false), *y = mem_alloc(&o.mem, bytes);
    const loci_view from = { .data = x }, to = { .data = y };
    void *work = mem_alloc(&o.mem, loci_workspace(o.plan, &c, 1));
    loci_status status = loci_embed(o.plan, o.tables, &c, from, to);
    if (!status) status = loci_embed_backward(o.plan, o.tables, work, &c, from, o.gradient);
    if (CHECK_THAT(!status, "%s: %s", s->text, o.e.text))
        for (int i = 0; i < those; i++) embed_there(s, i, &o, &c, x, count, y);
    close_plan(&o);
}

/* ---- Bad arguments --------------------------------------------------------------------------- */

static void check_refused(void)
{
    struct open o;
    struct open_there t;
    const loci_desc d =
        LOCI_DESC(.stage = LOCI_ROTATE, .encoding = "rope:pairing=half", .heads = 1, .dim = 8);
    if (!open_plan(&o, "rope", &d, 1, 4, 4)) return;
    if (!open_there(&t, 0, "rope", &o)) return;
    float x[32] = { 0 };
    loci_call c = LOCI_CALL(.batch = 1, .q_len = 4, .k_len = 4, .error = &o.e);
    c.work_bytes = loci_gpu_workspace(t.plan, &c, 0);
    void *work = copy_there(&t.t, NULL, c.work_bytes);
    const loci_view rows = { .data = copy_there(&t.t, x, sizeof x) }, none = { .data = NULL };
    CHECK_THAT(loci_gpu_rotate(t.plan, &t.tables, work, &c, LOCI_QUERY, none, rows) == LOCI_BAD_ARG
                   && strstr(o.e.text, "x"),
               "x NULL: %s", o.e.text);
    CHECK_THAT(loci_gpu_rotate(t.plan, &t.tables, work, &c, LOCI_VALUE, rows, rows) == LOCI_BAD_ARG
                   && strstr(o.e.text, "values do not rotate"),
               "values: %s", o.e.text);
    CHECK_THAT(loci_gpu_rotate(t.plan, &t.tables, NULL, &c, LOCI_QUERY, rows, rows) == LOCI_BAD_ARG
                   && strstr(o.e.text, "work"),
               "no work: %s", o.e.text);
    CHECK_THAT(loci_gpu_embed(t.plan, &t.tables, work, &c, rows, rows) == LOCI_BAD_ARG
                   && strstr(o.e.text, "EMBED"),
               "stage: %s", o.e.text);
    CHECK_THAT(loci_gpu_forward(t.plan, &t.tables, work, &c) == LOCI_BAD_ARG
                   && strstr(o.e.text, "ATTENTION"),
               "stage: %s", o.e.text);
    c.work_bytes = 64;
    CHECK_THAT(loci_gpu_rotate(t.plan, &t.tables, work, &c, LOCI_QUERY, rows, rows) == LOCI_BAD_ARG
                   && strstr(o.e.text, "64 bytes"),
               "little work: %s", o.e.text);
    close_there(&t);
    close_plan(&o);
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    open_devices("host host:2", true);
    /* PoCL has few of them: programs take long to compile */
    for (size_t i = 0; i < sizeof rotations / sizeof *rotations; i++)
        if (!only || strstr(rotations[i].text, only)) check_rotation(&rotations[i], device_count);
    for (size_t i = 0; i < sizeof embeddings / sizeof *embeddings; i++)
        if (!only || strstr(embeddings[i].text, only))
            check_embedding(&embeddings[i], device_count);
    check_refused();
    close_devices();
    printf("%lld numbers compared\n", compared);
    return harness_end();
}
