/* SPDX-License-Identifier: MIT */
/* gpu_decode.c -- forward passes of few rows: split over keys, and as any other pass, a device has
 * the bits of the CPU.  So it has with keys and values in pages, lengths of rows and keys, stored
 * types, and keys that are rotated already.
 *
 * Devices are those of gpu_bits.c. */
#define _POSIX_C_SOURCE 200809L /* setenv() */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/gpu.h"
#include "contract/plan.h"
#include "devices.h"
#include "math/q8.h"
#include "mem.h"

static long long compared;

struct problem {
    const char *text;
    int batch, heads, kv_heads, dim, value_dim;
    ptrdiff_t q_len, k_len;
    int64_t left;
    loci_dtype dtype, k_dtype, v_dtype;
    ptrdiff_t page;
    enum {
        LENS = 1,
        ROTATED = 2,
        MASK = 4,
        PLACES = 8,
        DROPOUT = 16,
        BROKEN = 32,
        FULL = 64,
        HUGE_ROWS = 128,
        IN_KEYS = 256 /* values are channels of the keys */
    } with;
};
#define F32 LOCI_F32, LOCI_F32, LOCI_F32
#define Q8 LOCI_F32, LOCI_Q8_0, LOCI_Q8_0
static const struct problem problems[] = {
    { "nope", 1, 4, 1, 64, 64, 1, 300, 0, F32, 0, 0 },
    { "nope", 2, 2, 2, 128, 128, 1, 4200, 0, F32, 0, LENS },
    { "alibi", 1, 3, 1, 16, 8, 1, 21000, 0, F32, 0, 0 },
    { "alibi", 2, 4, 2, 24, 20, 3, 500, 100, F32, 0, LENS },
    { "nope", 1, 16, 1, 64, 96, 4, 300, 0, F32, 0, 0 },
    { "nope", 1, 4, 2, 80, 256, 2, 200, 0, F32, 0, FULL | MASK },
    { "kerple+sink", 2, 2, 1, 32, 32, 2, 8300, 0, F32, 0, 0 },
    { "rope:pairing=half", 2, 4, 2, 64, 64, 2, 700, 0, F32, 0, LENS },
    { "rope:pairing=half", 1, 4, 2, 64, 64, 2, 700, 0, F32, 0, ROTATED },
    { "rope:pairing=half", 2, 4, 2, 64, 64, 2, 300, 0, F32, 16, LENS },
    { "rope:pairing=half", 2, 4, 2, 64, 64, 9, 300, 0, F32, 48, LENS },
    { "rope:pairing=half", 2, 4, 2, 64, 64, 2, 300, 0, F32, 64, ROTATED },
    { "t5:bidirectional=1", 3, 2, 1, 32, 32, 2, 300, 0, F32, 100, LENS | FULL },
    { "nope", 3, 2, 1, 32, 48, 70, 300, 0, F32, 1, LENS },
    { "nope", 1, 2, 1, 32, 48, 1, 5000, 0, F32, 512, 0 },
    { "nope", 2, 2, 1, 32, 48, 1, 400, 0, F32, 1000, LENS },
    { "softcap:cap=3+alibi", 1, 2, 1, 64, 64, 1, 400, 0, LOCI_BF16, LOCI_BF16, LOCI_BF16, 16, 0 },
    { "nope", 1, 4, 2, 64, 64, 2, 400, 0, LOCI_F16, LOCI_F16, LOCI_F16, 0, 0 },
    { "nope", 1, 4, 2, 64, 64, 2, 400, 0, LOCI_F32, LOCI_BF16, LOCI_BF16, 32, 0 },
    { "logn:length=20", 1, 4, 2, 32, 32, 3, 400, 0, F32, 0, 0 },
    { "clip:max=9", 2, 4, 2, 32, 32, 3, 400, 0, F32, 0, PLACES },
    { "nope", 2, 4, 2, 32, 32, 5, 400, 0, F32, 0, DROPOUT },
    { "nope", 1, 2, 1, 32, 32, 2, 400, 0, F32, 0, BROKEN },
    { "nope", 1, 2, 1, 32, 64, 2, 400, 30, F32, 0, BROKEN },
    { "nope", 1, 2, 1, 32, 32, 2, 400, 0, F32, 0, HUGE_ROWS },
    { "nope", 1, 2, 1, 19, 7, 1, 130, 0, F32, 0, 0 },
    { "nope", 1, 2, 1, 32, 32, 8, 100, 0, F32, 0, 0 }, /* more rows than some tiles have keys */
    { "nope", 2, 1, 1, 16, 16, 1, 260, 0, LOCI_BF16, LOCI_BF16, LOCI_BF16, 0, LENS },
    { "shaw:values=0", 2, 4, 2, 24, 24, 3, 300, 0, F32, 0, LENS },
    { "deberta", 2, 4, 2, 24, 24, 2, 300, 0, F32, 32, LENS | FULL },
    { "deberta:terms=p2c,p2c=ji+logn:length=20", 1, 4, 2, 20, 24, 70, 300, 0, F32, 0,
      PLACES | FULL },
    { "xl", 2, 4, 2, 24, 24, 2, 300, 0, F32, 0, LENS | FULL },
    { "xl:clamp=50", 1, 4, 2, 20, 24, 70, 300, 0, F32, 0, PLACES | FULL },
    { "xl:clamp=90+ssmax", 1, 2, 1, 32, 32, 190, 300, 0, F32, 0, 0 },
    { "rope:pairing=half+shaw:values=0,left=300+softcap:cap=2", 1, 2, 1, 32, 32, 150, 300, 0, F32,
      0, 0 },
    { "wall", 2, 4, 2, 24, 20, 1, 300, 0, F32, 32, LENS },
    { "wall", 1, 2, 1, 32, 32, 2, 4200, 0, LOCI_F32, LOCI_BF16, LOCI_BF16, 0, 0 },
    { "rope:pairing=half+wall", 1, 4, 2, 32, 32, 3, 300, 0, F32, 0, ROTATED },
    { "wall+ssmax", 1, 2, 1, 32, 32, 2, 400, 0, F32, 0, HUGE_ROWS },
    { "path", 2, 4, 2, 24, 20, 1, 300, 0, F32, 32, LENS },
    { "path", 1, 2, 1, 32, 32, 2, 4200, 0, LOCI_F32, LOCI_BF16, LOCI_BF16, 0, 0 },
    { "path", 1, 2, 1, 32, 32, 2, 400, 0, F32, 0, HUGE_ROWS },
    { "nope", 2, 4, 2, 64, 64, 1, 300, 0, Q8, 0, LENS },
    { "nope", 1, 4, 1, 128, 96, 2, 4200, 0, Q8, 16, 0 },
    { "alibi", 1, 4, 2, 32, 64, 70, 300, 0, LOCI_BF16, LOCI_Q8_0, LOCI_BF16, 0, 0 },
    { "nope", 1, 4, 2, 64, 32, 2, 400, 0, LOCI_F16, LOCI_F16, LOCI_Q8_0, 32, 0 },
    { "rope:pairing=half", 2, 4, 2, 64, 64, 2, 300, 0, Q8, 48, LENS },
    { "rope:pairing=half", 1, 4, 2, 64, 64, 2, 300, 0, Q8, 0, ROTATED },
    { "rope:pairing=half,dim=16,values=1", 1, 4, 2, 64, 64, 20, 300, 0, Q8, 0, 0 },
    { "rope:pairing=half,dim=16,values=1", 1, 4, 2, 64, 64, 2, 300, 0, LOCI_BF16, LOCI_BF16,
      LOCI_BF16, 16, 0 },
    { "rope:pairing=half,dim=16,values=1", 1, 4, 2, 64, 64, 20, 300, 0, LOCI_F16, LOCI_Q8_0,
      LOCI_F16, 0, ROTATED },
    { "deberta", 2, 4, 2, 32, 32, 2, 300, 0, Q8, 32, LENS | FULL },
    { "nope", 1, 2, 1, 32, 32, 2, 400, 0, Q8, 0, BROKEN },
    { "nope", 1, 2, 1, 64, 32, 2, 400, 0, Q8, 0, HUGE_ROWS },
    { "pope:base=20", 1, 2, 1, 32, 32, 70, 300, 0, Q8, 0, 0 },
    { "xpos:scale_base=40", 1, 2, 1, 32, 32, 2, 300, 0, Q8, 16, 0 },
    { "dca:pairing=half,chunk=90,local=20", 1, 2, 1, 32, 32, 70, 300, 0, Q8, 0, 0 },
    { "liere:block=4,axes=1+shaw", 1, 2, 1, 32, 32, 70, 300, 0, Q8, 0, 0 },
    { "fope:train_length=60", 1, 2, 1, 32, 32, 2, 300, 0, Q8, 64, 0 },
    { "cope:gates=v", 1, 2, 1, 32, 32, 2, 300, 0, Q8, 32, 0 },
    { "wall", 2, 4, 2, 32, 32, 2, 300, 0, Q8, 32, LENS },
    { "path", 1, 2, 1, 32, 32, 2, 300, 0, Q8, 48, 0 },
    { "cape:hidden=4", 1, 2, 1, 32, 32, 2, 300, 0, Q8, 32, 0 },
    { "tape", 1, 2, 1, 32, 32, 2, 300, 0, Q8, 32, 0 },
    { "cape:hidden=4", 2, 4, 2, 24, 20, 1, 300, 0, F32, 32, LENS },
    { "alibi+cape:hidden=5", 1, 2, 1, 32, 32, 2, 4200, 0, LOCI_F32, LOCI_BF16, LOCI_BF16, 0, 0 },
    { "rope:pairing=half+t5+cape:hidden=4", 1, 4, 2, 32, 32, 3, 300, 0, F32, 0, ROTATED },
    { "cape:hidden=4", 1, 2, 1, 32, 32, 2, 400, 0, F32, 0, HUGE_ROWS },
    { "tape", 2, 4, 2, 24, 20, 1, 300, 0, F32, 32, LENS },
    { "tape+alibi", 1, 2, 1, 32, 32, 2, 4200, 0, LOCI_F32, LOCI_BF16, LOCI_BF16, 0, 0 },
    { "tape", 1, 2, 2, 32, 48, 3, 300, 0, F32, 16, ROTATED },
    { "tape", 1, 2, 1, 32, 32, 2, 400, 0, F32, 0, HUGE_ROWS },
    { "tape", 2, 4, 2, 32, 32, 5, 400, 0, F32, 0, DROPOUT },
    { "fox", 2, 4, 2, 24, 20, 2, 300, 0, F32, 32, LENS },
    { "fox+alibi", 1, 2, 1, 32, 32, 1, 4200, 0, LOCI_F32, LOCI_BF16, LOCI_BF16, 0, 0 },
    { "rope:pairing=half+fox", 1, 4, 2, 32, 32, 3, 300, 100, F32, 0, PLACES },
    { "fox", 1, 4, 2, 32, 32, 3, 300, 0, F32, 0, MASK },
    { "xpos:scale_base=8", 2, 4, 2, 32, 24, 3, 1400, 0, F32, 0, LENS },
    { "xpos:scale_base=40+sink", 1, 4, 2, 32, 32, 3, 400, 0, F32, 0, PLACES },
    { "xpos:scale_base=40", 1, 2, 1, 32, 32, 2, 400, 0, F32, 0, HUGE_ROWS },
    { "pope:base=20", 1, 4, 2, 32, 32, 3, 300, 0, F32, 0, LENS },
    { "pope:base=20+alibi", 1, 2, 1, 32, 32, 1, 4200, 0, F32, 0, DROPOUT },
    { "rope:pairing=half,dim=16,values=1", 2, 4, 2, 32, 32, 3, 300, 0, F32, 0, LENS },
    { "rope:pairing=half,dim=16,values=1", 1, 4, 2, 32, 32, 1, 4200, 0, F32, 0, ROTATED },
    { "dca:pairing=half,chunk=90,local=20", 2, 4, 2, 32, 32, 3, 300, 0, F32, 32, LENS },
    { "dca:pairing=half,chunk=90,local=20", 1, 4, 2, 32, 32, 8, 900, 0, F32, 0, ROTATED },
    { "dca:pairing=half,chunk=90,local=20+ssmax", 1, 2, 1, 32, 32, 2, 400, 0, F32, 0, HUGE_ROWS },
    { "rerope:pairing=half,window=70", 2, 4, 2, 32, 24, 3, 300, 0, F32, 0, PLACES },
    { "rerope:pairing=half,window=70+alibi", 1, 4, 1, 32, 24, 2, 4300, 0, LOCI_F32, LOCI_BF16,
      LOCI_BF16, 0, 0 },
    { "selfextend:pairing=half,window=72,group=8", 2, 4, 2, 32, 32, 4, 300, 150, F32, 0, LENS },
    { "rope:pairing=half,dim=16,offset=32", 2, 4, 1, 48, 32, 3, 300, 0, F32, 0, LENS | IN_KEYS },
    { "rope:pairing=half,dim=16,offset=20", 1, 4, 2, 36, 17, 70, 300, 0, LOCI_BF16, LOCI_BF16,
      LOCI_BF16, 16, IN_KEYS },
    { "alibi", 1, 4, 1, 64, 32, 2, 300, 0, Q8, 48, IN_KEYS },
    /* latents, in slices */
    { "rope:pairing=half,dim=64,offset=512", 2, 20, 1, 576, 512, 1, 300, 0, F32, 0,
      LENS | IN_KEYS },
    { "rope:pairing=half,dim=64,offset=512", 1, 128, 1, 576, 512, 2, 150, 0, LOCI_BF16, LOCI_BF16,
      LOCI_BF16, 64, ROTATED | IN_KEYS },
    { "alibi+sink", 1, 4, 2, 576, 512, 3, 4200, 0, Q8, 0, IN_KEYS },
    { "t5:bidirectional=1", 2, 4, 2, 300, 257, 8, 130, 0, F32, 48, LENS | FULL },
    { "rope:pairing=interleaved,dim=10", 1, 3, 1, 258, 20, 2, 200, 60, F32, 0, PLACES },
    { "nope", 1, 2, 1, 30, 700, 2, 200, 0, LOCI_F16, LOCI_F16, LOCI_F16, 0, MASK },
    { "nope", 1, 2, 1, 400, 300, 2, 400, 0, F32, 0, BROKEN },
    { "nope", 1, 2, 1, 320, 260, 2, 400, 0, F32, 0, HUGE_ROWS },
    { "logn:length=20", 2, 2, 2, 384, 384, 5, 200, 0, F32, 0, DROPOUT },
    { "kerple", 3, 2, 1, 1000, 1024, 2, 0, 0, F32, 0, FULL },
    { "fox", 2, 4, 2, 320, 320, 2, 300, 0, F32, 0, LENS },
    { "rope:pairing=half+fox", 1, 2, 1, 320, 20, 2, 300, 0, LOCI_BF16, LOCI_BF16, LOCI_BF16, 0,
      MASK },
    { "logn:length=20+softcap:cap=3", 1, 2, 1, 288, 288, 2, 300, 50, F32, 0, MASK },
    { "rope:pairing=half,values=1", 1, 2, 1, 64, 320, 2, 300, 0, F32, 0, LENS },
    { "fire+ssmax", 1, 2, 1, 264, 264, 2, 200, 0, F32, 0, 0 },
};

static float *numbers(struct mem *m, size_t count, double size)
{
    float *x = mem_alloc(m, count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = (float)(size * walk_uniform());
    return x;
}
static size_t bytes_of(size_t count, loci_dtype dtype)
{
    return (size_t)stored_bytes(dtype, (ptrdiff_t)count);
}
static void *stored(struct mem *m, const float *x, size_t count, loci_dtype dtype)
{
    char *to = mem_alloc(m, bytes_of(count, dtype));
    for (size_t i = 0; i < count && dtype == LOCI_Q8_0; i += Q8_BLOCK)
        q8_round_block(x + i, to + bytes_of(i, dtype));
    for (size_t i = 0; i < count && dtype != LOCI_Q8_0; i++)
        store_stored(to, dtype, (ptrdiff_t)i, (double)x[i]);
    return to;
}
static bool same(const char *name, const char *what, const void *a, const void *b, size_t bytes)
{
    compared += (long long)(bytes / 2);
    for (size_t i = 0; i < bytes / 2; i++) {
        uint16_t x, y;
        memcpy(&x, (const char *)a + 2 * i, 2);
        memcpy(&y, (const char *)b + 2 * i, 2);
        if (x != y)
            return CHECK_FAILED("%s: %s differs, half %zu of %zu", name, what, i, bytes / 2);
    }
    return harness_pass();
}
/* NaN is NaN, whichever. */
static void tidy(void *x, size_t bytes, loci_dtype dtype)
{
    const size_t each = stored_size(dtype);
    for (size_t i = 0; i < bytes / each; i++) {
        const double y = load_stored(x, dtype, (ptrdiff_t)i);
        if (y != y) memset((char *)x + i * each, 0xff, each);
    }
}

struct sizes {
    size_t q, k, v, o, lse, ae, mask, tables;
    size_t input[WALK_TENSORS]; /* of tensors that come with the call, 0 for others */
};
static void check_there(const char *name, int device, const loci_plan *plan, const void *tables,
                        const loci_call *call, const struct sizes *n, loci_dtype dtype)
{
    struct there t = { .gpu = gpus[device] };
    struct mem mem = { 0 };
    loci_error e = { 0 };
    loci_gpu_plan *there = NULL;
    if (loci_gpu_plan_create(&there, gpus[device], plan, &e)) {
        CHECK_FAILED("%s: %s", name, e.text);
        return;
    }
    loci_call c = *call;
    c.error = &e;
    c.q.data = copy_there(&t, call->q.data, n->q);
    c.k.data = copy_there(&t, call->k.data, n->k);
    if (n->v) c.v.data = copy_there(&t, call->v.data, n->v);
    if (n->mask) c.mask.data = copy_there(&t, call->mask.data, n->mask);
    const void *inputs[WALK_TENSORS] = { 0 };
    for (int i = 0; i < WALK_TENSORS; i++)
        if (n->input[i]) inputs[i] = copy_there(&t, call->tensors[i], n->input[i]);
    c.tensors = inputs;
    void *o = mem_alloc(&mem, n->o), *lse = mem_alloc(&mem, n->lse),
         *ae = n->ae ? mem_alloc(&mem, n->ae) : NULL;
    c.o.data = copy_there(&t, o, n->o);
    c.lse = copy_there(&t, lse, n->lse);
    if (ae) c.ae = copy_there(&t, ae, n->ae);
    c.work_bytes = loci_gpu_workspace(there, &c, 0);
    void *work = copy_there(&t, NULL, c.work_bytes);
    const loci_gpu_tables both = { tables, copy_there(&t, tables, n->tables) };
    loci_status status = loci_gpu_forward(there, &both, work, &c);
    if (!status) status = loci_gpu_copy(t.gpu, o, c.o.data, n->o, LOCI_GPU_DOWNLOAD, &e);
    if (!status) status = loci_gpu_copy(t.gpu, lse, c.lse, n->lse, LOCI_GPU_DOWNLOAD, &e);
    if (!status && ae) status = loci_gpu_copy(t.gpu, ae, c.ae, n->ae, LOCI_GPU_DOWNLOAD, &e);
    if (CHECK_THAT(!status, "%s: %s", name, e.text)) {
        tidy(o, n->o, dtype);
        tidy(lse, n->lse, LOCI_F32);
        same(name, "o", call->o.data, o, n->o);
        same(name, "lse", call->lse, lse, n->lse);
        if (ae) {
            tidy(ae, n->ae, LOCI_F32);
            same(name, "ae", call->ae, ae, n->ae);
        }
    }
    loci_gpu_plan_destroy(there);
    release(&t);
    mem_release(&mem, 0);
}

/* Pages in another order, with numbers that no entry uses between them. */
static int32_t page_number(int b, ptrdiff_t i, ptrdiff_t entry)
{
    return (int32_t)(2 * (b + 1) * entry - 2 * i);
}

/* On the first devices of the list. */
static void check(const struct problem *s, int those)
{
    struct mem mem = { 0 };
    loci_error e = { 0 };
    loci_plan *plan;
    const loci_desc d =
        LOCI_DESC(.encoding = s->text, .heads = s->heads, .kv_heads = s->kv_heads, .dim = s->dim,
                  .value_dim = s->value_dim, .full = (s->with & FULL) != 0, .window_left = s->left,
                  .dtype = s->dtype, .k_dtype = s->k_dtype, .v_dtype = s->v_dtype,
                  .keys_rotated = (s->with & ROTATED) != 0,
                  .values_in_keys = (s->with & IN_KEYS) != 0);
    if (loci_plan_create(&plan, &d, &e)) {
        CHECK_FAILED("%s: %s", s->text, e.text);
        return;
    }
    const bool in_keys = (s->with & IN_KEYS) != 0;
    const ptrdiff_t entry = s->page ? (s->k_len + s->page - 1) / s->page : 0;
    const size_t rows = (size_t)(s->batch * s->heads) * (size_t)s->q_len,
                 held = s->page ? (size_t)((2 * (s->batch + 1) * entry + 1) * s->page)
                                : (size_t)(s->batch * s->k_len),
                 keys = held * (size_t)s->kv_heads;
    float *q = numbers(&mem, rows * (size_t)s->dim, 2),
          *k = numbers(&mem, keys * (size_t)s->dim, 2),
          *v = numbers(&mem, keys * (size_t)s->value_dim, 1);
    if (s->with & BROKEN) { /* the last row alone sees the last key; nobody all of the first ones */
        v[(s->k_len - 1) * s->value_dim + 2] = NAN;
        v[(s->k_len - 380) * s->value_dim] = INFINITY;
        k[(s->k_len - 1) * s->dim + 3] = INFINITY;
    }
    for (size_t i = 0; s->with & HUGE_ROWS && i < rows * (size_t)s->dim; i++) q[i] = 3e38f;
    struct sizes n = {
        .q = rows * (size_t)s->dim * stored_size(s->dtype),
        .k = bytes_of(keys * (size_t)s->dim, s->k_dtype),
        .v = in_keys ? 0 : bytes_of(keys * (size_t)s->value_dim, s->v_dtype),
        .o = rows * (size_t)s->value_dim * stored_size(s->dtype),
        .lse = rows * sizeof(float),
        .ae = plan->states ? rows * (size_t)s->dim * sizeof(float) : 0,
        .mask = s->with & MASK ? rows * (size_t)s->k_len * sizeof(float) : 0,
        .tables = loci_tables_size(plan, s->k_len + s->q_len),
    };
    loci_call c =
        LOCI_CALL(.batch = s->batch, .q_len = s->q_len, .k_len = s->k_len,
                  .q.data = stored(&mem, q, rows * (size_t)s->dim, s->dtype),
                  .k.data = stored(&mem, k, keys * (size_t)s->dim, s->k_dtype),
                  .v.data =
                      in_keys ? NULL : stored(&mem, v, keys * (size_t)s->value_dim, s->v_dtype),
                  .o.data = mem_alloc(&mem, n.o), .lse = mem_alloc(&mem, n.lse),
                  .ae = n.ae ? mem_alloc(&mem, n.ae) : NULL, .error = &e);
    int64_t *k_lens = mem_alloc(&mem, sizeof *k_lens * (size_t)s->batch),
            *q_lens = mem_alloc(&mem, sizeof *q_lens * (size_t)s->batch);
    for (int b = 0; b < s->batch; b++) {
        k_lens[b] = b == 2 ? 0 : s->k_len - 70 * b;
        q_lens[b] = b && s->q_len > 1 ? s->q_len - 1 : s->q_len;
    }
    if (s->with & LENS) {
        c.k_lens = k_lens;
        c.q_lens = q_lens;
    }
    int32_t *table = mem_alloc(&mem, sizeof *table * (size_t)(s->batch * entry));
    for (int b = 0; b < s->batch; b++)
        for (ptrdiff_t i = 0; i < entry; i++) table[b * entry + i] = page_number(b, i, entry);
    const loci_pages pages = { table, s->page, entry };
    if (s->page) c.pages = &pages;
    if (s->with & MASK) {
        float *mask = numbers(&mem, rows * (size_t)s->k_len, 1);
        for (size_t i = 0; i < rows * (size_t)s->k_len; i++)
            if (walk_uniform() < -0.3) mask[i] = -INFINITY;
        c.mask_kind = LOCI_MASK_ADDED;
        c.mask.data = mask;
    }
    int64_t *q_pos = mem_alloc(&mem, sizeof *q_pos * (size_t)s->q_len),
            *k_pos = mem_alloc(&mem, sizeof *k_pos * (size_t)s->k_len);
    for (ptrdiff_t i = 0; i < s->q_len; i++) q_pos[i] = s->k_len - 3 * i;
    for (ptrdiff_t j = 0; j < s->k_len; j++) k_pos[j] = (j * 7) % s->k_len;
    if (s->with & PLACES) {
        c.q_pos = q_pos;
        c.k_pos = k_pos;
    }
    if (s->with & DROPOUT) {
        c.dropout = 0.4;
        c.dropout_seed = 3;
    }
    loci_tensor list[WALK_TENSORS];
    void *data[WALK_TENSORS] = { 0 };
    const int tensors = loci_tensors(plan, list, WALK_TENSORS);
    for (int i = 0; i < tensors; i++) {
        const size_t count = walk_count(&list[i], s->batch, s->q_len, s->k_len);
        float *x = data[i] = mem_alloc(&mem, count * sizeof(float));
        loci_tensor_init(plan, i, 1, x);
        for (size_t j = 0; j < count; j++) x[j] += (float)(0.1 + 0.1 * walk_uniform());
        if (list[i].role != LOCI_INPUT) continue;
        for (size_t j = 0; j < count && strcmp(list[i].name, "log_f") == 0; j++) x[j] = -x[j];
        n.input[i] = count * sizeof(float);
    }
    c.tensors = (const void *const *)data;
    void *tables = mem_alloc(&mem, n.tables), *work = mem_alloc(&mem, loci_workspace(plan, &c, 0));
    loci_status status = loci_prepare(plan, s->k_len + s->q_len, (const void *const *)data, tables);
    if (!status) status = loci_forward(plan, tables, work, &c);
    if (CHECK_THAT(!status, "%s on the CPU: %s", s->text, e.text)) {
        tidy(c.o.data, n.o, s->dtype);
        tidy(c.lse, n.lse, LOCI_F32);
        if (c.ae) tidy(c.ae, n.ae, LOCI_F32);
        static const char *const ways[] = { "never", "always" };
        for (int i = 0; i < those; i++)
            for (int way = 0; way < 2; way++) {
                char name[256];
                setenv("LOCI_GPU_DECODE", ways[way], 1);
                snprintf(name, sizeof name,
                         "problem %d, %s, %td rows, %td keys, page %td, %s split, on %s",
                         (int)(s - problems), s->text, s->q_len, s->k_len, s->page, ways[way],
                         devices[i]);
                check_there(name, i, plan, tables, &c, &n, s->dtype);
            }
    }
    mem_release(&mem, 0);
    loci_plan_destroy(plan);
}

/* Keys and values in q8_0: strides are those of whole blocks, and there are no gradients. */
static void check_refusals(int device)
{
    struct there t = { .gpu = gpus[device] };
    loci_error e = { 0 };
    loci_plan *plan;
    loci_gpu_plan *there;
    const loci_desc d = LOCI_DESC(.heads = 2, .dim = 32, .k_dtype = LOCI_Q8_0);
    if (loci_plan_create(&plan, &d, &e) || loci_gpu_plan_create(&there, gpus[device], plan, &e)) {
        CHECK_FAILED("%s", e.text);
        return;
    }
    char host[64 * 1024];
    void *tables = (void *)(((uintptr_t)host + 63) / 64 * 64);
    char *memory = copy_there(&t, NULL, 1 << 20);
    const loci_gpu_tables both = { tables, memory };
    loci_prepare(plan, 100, NULL, tables);
    loci_call c = LOCI_CALL(.batch = 1, .q_len = 2, .k_len = 8, .q.data = memory + (1 << 12),
                            .k = { memory + (1 << 13), 32 * 16, 32 * 8 + 4, 32 },
                            .v.data = memory + (1 << 14), .o.data = memory + (1 << 15),
                            .lse = memory + (1 << 16), .error = &e);
    void *work = memory + (1 << 17);
    CHECK_THAT(loci_gpu_forward(there, &both, work, &c) == LOCI_BAD_ARG
                   && strstr(e.text, "must be a multiple of the 32 numbers of a block of q8_0"),
               "a stride that divides a block: %s", e.text);
    c.k.head = 32 * 8;
    CHECK_THAT(!loci_gpu_forward(there, &both, work, &c), "whole blocks: %s", e.text);
    const loci_grad g = LOCI_GRAD(.dout.data = memory + (1 << 18), .dq.data = memory + (1 << 19));
    CHECK_THAT(loci_gpu_backward(there, &both, work, &c, &g) == LOCI_UNSUPPORTED
                   && strstr(e.text, "have no gradients"),
               "gradients: %s", e.text);
    loci_gpu_plan_destroy(there);
    loci_plan_destroy(plan);
    release(&t);
}
/* Heads wider than 256 have few rows, plain terms and no gradients. */
static void check_wide_refusals(int device)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        { "shaw", "shaw does not run on a GPU in heads wider than 256" },
        { "rope:pairing=half+sba", "sba does not run on a GPU in heads wider than 256" },
        { "rope:pairing=half,positions=given",
          "rope with positions=given does not run on a GPU in heads wider than 256" },
        { "pope:base=20", "pope does not run on a GPU in heads wider than 128" },
        { "xpos", "xpos does not run on a GPU in heads wider than 256" },
        { "path", "path does not run on a GPU in heads wider than 256" },
    };
    struct there t = { .gpu = gpus[device] };
    loci_error e = { 0 };
    loci_plan *plan = NULL;
    loci_gpu_plan *there = NULL;
    loci_desc d = LOCI_DESC(.heads = 2, .dim = 320);
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        d.encoding = bad[i].text;
        CHECK_THAT(!loci_plan_create(&plan, &d, &e)
                       && loci_gpu_plan_create(&there, gpus[device], plan, &e) == LOCI_UNSUPPORTED
                       && strcmp(e.text, bad[i].says) == 0,
                   "%s: %s", bad[i].text, e.text);
        loci_plan_destroy(plan);
        plan = NULL;
    }
    d.encoding = "nope";
    if (loci_plan_create(&plan, &d, &e) || loci_gpu_plan_create(&there, gpus[device], plan, &e)) {
        CHECK_FAILED("%s", e.text);
        return;
    }
    char host[64 * 1024];
    void *tables = (void *)(((uintptr_t)host + 63) / 64 * 64);
    char *memory = copy_there(&t, NULL, 1 << 20), *work = memory + (1 << 18);
    const loci_gpu_tables both = { tables, memory };
    loci_prepare(plan, 100, NULL, tables);
    loci_call c = LOCI_CALL(.batch = 1, .q_len = 9, .k_len = 9, .q.data = memory + (1 << 12),
                            .k.data = memory + (1 << 15), .v.data = memory + (1 << 16),
                            .o.data = memory + (1 << 17), .lse = memory + (1 << 14), .error = &e);
    const int64_t starts[] = { 0, 2, 4 };
    CHECK_THAT(!loci_gpu_workspace(there, &c, 0)
                   && loci_gpu_forward(there, &both, work, &c) == LOCI_UNSUPPORTED
                   && strstr(e.text, "with at most 8 rows"),
               "9 rows: %s", e.text);
    c.q_len = c.k_len = 4;
    CHECK_THAT(loci_gpu_workspace(there, &c, 0) && !loci_gpu_forward(there, &both, work, &c),
               "4 rows: %s", e.text);
    const loci_grad g = LOCI_GRAD(.dout.data = memory + (1 << 15), .dq.data = memory + (1 << 19));
    CHECK_THAT(loci_gpu_backward(there, &both, work, &c, &g) == LOCI_UNSUPPORTED
                   && strstr(e.text, "gradients do not run on a GPU in heads wider than 256"),
               "gradients: %s", e.text);
    c.q_starts = c.k_starts = starts;
    c.sequences = 2;
    CHECK_THAT(loci_gpu_forward(there, &both, work, &c) == LOCI_UNSUPPORTED
                   && strstr(e.text, "in one sequence"),
               "packed: %s", e.text);
    loci_gpu_plan_destroy(there);
    loci_plan_destroy(plan);
    release(&t);
}

int main(int argc, char **argv)
{
    open_devices("host:2 host host:1", !LOCI_SLOW);
    /* compiling takes most of the time of an OpenCL device that nobody named */
    const bool given = getenv("LOCI_DEVICES");
    const int hosts = given || device_count < 3 ? device_count : 3;
    for (int i = 0; i < hosts; i++) {
        check_refusals(i);
        check_wide_refusals(i);
    }
    for (int i = 0; i < (int)(sizeof problems / sizeof *problems); i++)
        if (argc < 2 ? !LOCI_SLOW || i % 8 == 0 : atoi(argv[1]) == i)
            check(&problems[i], i < 2 || argc > 1 ? device_count : i % 4 && !given ? 1 : hosts);
    printf("%lld halves of numbers compared\n", compared);
    close_devices();
    return harness_end();
}
