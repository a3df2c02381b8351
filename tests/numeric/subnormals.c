/* SPDX-License-Identifier: MIT */
/* subnormals.c -- on ordinary inputs no call reads or produces a subnormal number: some CPUs need
 * 150 cycles for each. x86 records both in flags of the thread, DE and UE of MXCSR.  Elsewhere only
 * produced ones are checked, and whether an output contains any.
 *
 * Inputs are normally distributed, gates and sticks forget fast, slowly or hardly at all, and texts
 * are long enough that weights underflow. */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined __SSE__
#include <xmmintrin.h>
#endif

#include "loci/cache.h"
#include "contract/plan.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

/* ---- Flags ----------------------------------------------------------------------------------- */

enum { READ = 1, MADE = 2 }; /* subnormal numbers */

#if defined __SSE__
static void clear_flags(void) { _mm_setcsr(_mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK); }
static int flags(void)
{
    const unsigned now = _mm_getcsr();
    return (now & _MM_EXCEPT_DENORM ? READ : 0) | (now & _MM_EXCEPT_UNDERFLOW ? MADE : 0);
}
#else
static void clear_flags(void) { feclearexcept(FE_ALL_EXCEPT); }
static int flags(void) { return fetestexcept(FE_UNDERFLOW) ? MADE : 0; }
#endif

/* ---- Problems -------------------------------------------------------------------------------- */

struct trial {
    const char *text, *isa; /* isa NULL: the best */
    loci_stage stage;
    loci_dtype dtype;
    bool full, fast;
    /* The speed of forgetting: gates are sigmoid(shift + N(0, 1)), and scores, which break sticks,
     * around -shift. */
    double shift;
    int heads, dim;
    ptrdiff_t len;
};

struct problem {
    const struct trial *a;
    loci_desc desc;
    loci_plan *plan;
    int tensors;
    loci_tensor tensor[WALK_TENSORS];
    void *data[WALK_TENSORS], *ddata[WALK_TENSORS];
    void *tables;
    loci_call call;
    loci_grad grad;
    size_t q, k, rows; /* numbers of q, o and of k, v; rows of all heads */
    loci_error e;
    struct mem mem;
};

static double normal(void)
{
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += walk_uniform();
    return sum / 2;
}
static size_t size_of(const struct problem *p, bool stored)
{
    return stored ? stored_size(p->a->dtype) : p->a->dtype == LOCI_F64 ? 8 : 4;
}
/* 16 bits apply to stored numbers only.  Then everything else is f32. */
static loci_dtype type_of(const struct problem *p, bool stored)
{
    return stored || p->a->dtype == LOCI_F64 ? p->a->dtype : LOCI_F32;
}
static void *numbers(struct problem *p, size_t n, bool stored)
{
    void *x = mem_alloc(&p->mem, n * size_of(p, stored));
    for (size_t i = 0; i < n; i++) store_stored(x, type_of(p, stored), (ptrdiff_t)i, normal());
    return x;
}
static void *place(struct problem *p, size_t n, bool stored)
{
    return mem_alloc(&p->mem, n * size_of(p, stored));
}
/* Channel 0 subtracts the shift from every score. */
static void shift(struct problem *p)
{
    const double root = sqrt(p->a->shift * sqrt(p->a->dim));
    for (size_t i = 0; i < p->q && root > 0; i += (size_t)p->a->dim)
        store_stored(p->call.q.data, p->a->dtype, (ptrdiff_t)i, root);
    for (size_t i = 0; i < p->k && root > 0; i += (size_t)p->a->dim)
        store_stored(p->call.k.data, p->a->dtype, (ptrdiff_t)i, -root);
}
static void *tensor(struct problem *p, int which)
{
    const loci_tensor *t = &p->tensor[which];
    const size_t n = walk_count(t, 1, p->a->len, p->a->len);
    const bool gate = !strcmp(t->name, "log_f");
    void *x = mem_alloc(&p->mem, n * size_of(p, false));
    memset(x, 0, n * size_of(p, false));
    if (t->role != LOCI_INPUT) loci_tensor_init(p->plan, which, 1, x);
    for (size_t i = 0; i < n; i++) {
        const double start = load_stored(x, type_of(p, false), (ptrdiff_t)i),
                     more = t->role == LOCI_INPUT ? normal() : 0.1 * walk_uniform();
        store_stored(x, type_of(p, false), (ptrdiff_t)i,
                     gate ? -log1p(exp(-p->a->shift - more)) : start + more);
    }
    /* path: rows about as long as its layer makes them, so that rows fade */
    for (size_t i = 0; i < n && !strcmp(t->encoding, "path"); i++) {
        const double y = load_stored(x, type_of(p, false), (ptrdiff_t)i);
        store_stored(x, type_of(p, false), (ptrdiff_t)i,
                     strcmp(t->name, "w") ? 1 + 0.5 * y : y / sqrt(p->a->dim));
    }
    return x;
}

static bool open(struct problem *p, const struct trial *a)
{
    const bool attends = a->stage == LOCI_ATTENTION || a->stage == LOCI_LINEAR_ATTENTION;
    *p = (struct problem){ .a = a,
                           .desc =
                               LOCI_DESC(.encoding = a->text, .stage = a->stage, .heads = a->heads,
                                         .kv_heads = attends ? a->heads / 2 : 0, .dim = a->dim,
                                         .model_dim = a->dim, .dtype = a->dtype, .fast = a->fast,
                                         .full = a->full, .isa = a->isa, .max_len = 4 * a->len) };
    if (loci_plan_create(&p->plan, &p->desc, &p->e)) return false;
    walk_restart(11);
    const size_t len = (size_t)a->len;
    p->rows = (size_t)a->heads * len;
    p->q = p->rows * (size_t)a->dim;
    p->k = p->q / 2;
    p->call =
        (loci_call)LOCI_CALL(.batch = 1, .q_len = a->len, .k_len = a->len, .error = &p->e,
                             .q.data = numbers(p, p->q, true), .k.data = numbers(p, p->k, true),
                             .v.data = numbers(p, p->k, true), .o.data = place(p, p->q, true),
                             .tensors = (const void *const *)p->data);
    p->grad = (loci_grad)LOCI_GRAD(.dout.data = numbers(p, p->q, true),
                                   .dq.data = place(p, p->q, true), .dk.data = place(p, p->k, true),
                                   .dv.data = place(p, p->k, true), .dtensors = p->ddata);
    shift(p);
    if (a->stage == LOCI_ATTENTION) {
        void *row = place(p, p->rows, false), *drow = numbers(p, p->rows, false);
        if (p->plan->weight < 0) {
            p->call.lse = row;
            p->grad.dlse = drow;
        } else {
            p->call.rem = row;
            p->grad.drem = drow;
        }
        if (p->plan->states) {
            p->call.ae = place(p, p->q, false);
            p->grad.dae = numbers(p, p->q, false);
        }
    }
    const size_t axes = (size_t)loci_axes(p->plan);
    if (axes > 1) {
        double *at = mem_alloc(&p->mem, axes * len * sizeof *at);
        for (size_t i = 0; i < axes * len; i++) at[i] = walk_coordinate(300);
        p->call.q_coord = p->call.k_coord = at;
    }
    p->tensors = loci_tensors(p->plan, p->tensor, WALK_TENSORS);
    for (int i = 0; i < p->tensors; i++) {
        p->data[i] = tensor(p, i);
        p->ddata[i] = p->tensor[i].role == LOCI_FIXED
                        ? NULL
                        : place(p, walk_count(&p->tensor[i], 1, a->len, a->len), false);
    }
    p->tables = mem_alloc(&p->mem, loci_tables_size(p->plan, 2 * a->len));
    return true;
}
static void drop(struct problem *p)
{
    mem_release(&p->mem, 0);
    loci_plan_destroy(p->plan);
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

static const char *where(const struct problem *p)
{
    static char text[400];
    const struct trial *a = p->a;
    static const char *const types[] = { "f32", "f64", "bf16", "f16" };
    snprintf(text, sizeof text, "%s, %s%s%s on %s, %td tokens, shift %g", a->text,
             a->full ? "full, " : "", types[a->dtype], a->fast ? " fast" : "",
             a->isa ? a->isa : "the best", a->len, a->shift);
    return text;
}
/* A number of f16 below 2^-14 is subnormal, and o or a gradient may be that.  So with f16 only the
 * computation counts.  CPUs convert f16 at no cost. */
static void verdict(struct problem *p, const char *pass, loci_status status)
{
    const int found = flags() & (p->a->dtype == LOCI_F16 ? READ : READ | MADE);
    CHECK_THAT(!status, "%s, %s: %s", where(p), pass, p->e.text);
    CHECK_THAT(!found, "%s: %s %s", where(p), pass,
               found == READ   ? "computes with subnormal numbers"
               : found == MADE ? "makes subnormal numbers"
                               : "makes subnormal numbers and computes with them");
}
static void outputs(const struct problem *p, const char *name, const void *x, size_t n, bool stored)
{
    const double least = p->a->dtype == LOCI_F64 ? DBL_MIN : FLT_MIN;
    if (!x || (stored && p->a->dtype == LOCI_F16)) return;
    for (size_t i = 0; i < n; i++) {
        const double y = fabs(load_stored(x, type_of(p, stored), (ptrdiff_t)i));
        if (y == 0 || !(y < least)) continue;
        CHECK_FAILED("%s: %s[%zu] is %g", where(p), name, i, y);
        return;
    }
    harness_pass();
}

/* ---- Passes ---------------------------------------------------------------------------------- */

static void prepare(struct problem *p)
{
    clear_flags();
    verdict(p, "tables", loci_prepare(p->plan, 2 * p->a->len, p->call.tensors, p->tables));
}

static void gradients(const struct problem *p)
{
    for (int i = 0; i < p->tensors; i++)
        outputs(p, p->tensor[i].name, p->ddata[i],
                walk_count(&p->tensor[i], 1, p->a->len, p->a->len), false);
}

static void attention(struct problem *p)
{
    const bool linear = p->a->stage == LOCI_LINEAR_ATTENTION;
    const loci_call *c = &p->call;
    void *work = mem_alloc(&p->mem, loci_workspace(p->plan, c, 1));
    clear_flags();
    verdict(p, "forward",
            linear ? loci_linear_forward(p->plan, p->tables, work, c, NULL, NULL)
                   : loci_forward(p->plan, p->tables, work, c));
    outputs(p, "o", c->o.data, p->q, true);
    outputs(p, "lse", c->lse, p->rows, false);
    outputs(p, "rem", c->rem, p->rows, false);
    outputs(p, "ae", c->ae, p->q, false);
    /* Invisible pairs may be computed from old contents of the workspace: here no integers of the
     * forward pass. */
    work = mem_alloc(&p->mem, loci_workspace(p->plan, c, 1));
    clear_flags();
    verdict(p, "backward",
            linear ? loci_linear_backward(p->plan, p->tables, work, c, &p->grad)
                   : loci_backward(p->plan, p->tables, work, c, &p->grad));
    outputs(p, "dq", p->grad.dq.data, p->q, true);
    outputs(p, "dk", p->grad.dk.data, p->k, true);
    outputs(p, "dv", p->grad.dv.data, p->k, true);
    gradients(p);
}

/* The last rows against all keys, in the caller's arrays. */
static void decode(struct problem *p, ptrdiff_t rows)
{
    const ptrdiff_t len = p->a->len, D = p->a->dim, axes = loci_axes(p->plan);
    double at[3 * 8];
    loci_call c = p->call;
    c.q_len = rows;
    c.q = (loci_view){ (char *)c.q.data + (len - rows) * D * (ptrdiff_t)size_of(p, true), 0,
                       len * D, D };
    for (ptrdiff_t i = 0; i < axes && c.k_coord; i++)
        memcpy(at + i * rows, c.k_coord + (i + 1) * len - rows, (size_t)rows * sizeof *at);
    if (c.k_coord) c.q_coord = at;
    void *work = mem_block(loci_workspace(p->plan, &c, 0));
    clear_flags();
    verdict(p, c.cache ? "decode from a cache" : "decode",
            loci_forward(p->plan, p->tables, work, &c));
    free(work);
}
/* The last row against keys in a cache, which stores them rotated. */
static void decode_cached(struct problem *p)
{
    struct problem cached = *p;
    loci_cache *cache;
    cached.desc.keys_rotated =
        p->plan->rotate >= 0 && (p->plan->key_heads == p->plan->kv_heads || p->plan->moves >= 0);
    if (loci_plan_create(&cached.plan, &cached.desc, &p->e)) {
        CHECK_FAILED("%s: %s", where(p), p->e.text);
        return;
    }
    const size_t bytes = loci_cache_size(cached.plan, 1, p->a->len);
    if (!bytes
        || loci_cache_create(&cache, cached.plan, 1, p->a->len, 0, mem_alloc(&p->mem, bytes),
                             &p->e))
        CHECK_FAILED("%s: %s", where(p), p->e.text);
    else {
        cached.call.cache = cache;
        cached.tables = mem_alloc(&p->mem, loci_tables_size(cached.plan, 2 * p->a->len));
        void *work = mem_alloc(&p->mem, loci_workspace(cached.plan, &cached.call, 0));
        prepare(&cached);
        clear_flags();
        verdict(&cached, "append",
                loci_cache_append(cached.plan, cached.tables, work, cache, &cached.call));
        decode(&cached, 1);
    }
    loci_plan_destroy(cached.plan);
}

/* Rotations and embeddings alone. */
static void rows_alone(struct problem *p)
{
    const loci_call *c = &p->call;
    const bool embeds = p->a->stage == LOCI_EMBED;
    void *work = mem_alloc(&p->mem, loci_workspace(p->plan, c, 1));
    clear_flags();
    verdict(p, "forward",
            embeds ? loci_embed(p->plan, p->tables, c, c->q, c->o)
                   : loci_rotate(p->plan, p->tables, work, c, LOCI_QUERY, c->q, c->o));
    outputs(p, "y", c->o.data, p->q, true);
    clear_flags();
    verdict(p, "backward",
            embeds ? loci_embed_backward(p->plan, p->tables, work, c, p->grad.dout, p->ddata)
                   : loci_rotate_backward(p->plan, p->tables, work, c, LOCI_QUERY, c->q,
                                          p->grad.dout, p->grad.dq, p->ddata));
    if (!embeds) outputs(p, "dx", p->grad.dq.data, p->q, true);
    gradients(p);
}

static void run(struct trial a)
{
    struct problem p;
    a.dim = walk_dim(a.text, a.dim);
    if (open(&p, &a)) {
        prepare(&p);
        if (a.stage == LOCI_ROTATE || a.stage == LOCI_EMBED) rows_alone(&p);
        else attention(&p);
        if (a.stage == LOCI_ATTENTION && !a.full) {
            decode(&p, 1);
            decode(&p, 3);
            decode_cached(&p);
        }
    } else if (a.stage == LOCI_ATTENTION && !(a.full && walk_causal_only(a.text))) {
        /* the other stages have only some encodings */
        CHECK_FAILED("%s: %s", where(&p), p.e.text);
    }
    drop(&p);
}

/* An encoding's own text in all its stages, forms and speeds. */
static void example(struct trial a)
{
    const char *isas[8];
    const int count = loci_isas(isas, 8);
    for (a.stage = LOCI_ATTENTION; a.stage <= LOCI_LINEAR_ATTENTION; a.stage++) run(a);
    a.stage = LOCI_ATTENTION;
    a.shift = 3;
    run(a);
    a.shift = 9;
    run(a);
    a.shift = 0;
    if (LOCI_EMULATED) return;
    a.full = true;
    run(a);
    a.full = false;
    a.dtype = LOCI_BF16;
    run(a);
    a.fast = true;
    run(a);
    a.fast = false;
    a.dtype = LOCI_F16;
    run(a);
    a.dim = 16;
    a.dtype = LOCI_F64;
    run(a);
    a.dtype = LOCI_F32;
    for (int i = 0; i < count - 1; i++) {
        a.isa = isas[i];
        run(a);
    }
}

int main(int argc, char **argv)
{
    const struct trial usual = {
        .heads = 4,
        .dim = LOCI_SLOW ? 16 : 64,
        .len = LOCI_SLOW ? 320 : 640,
    };
    walk_only(argc, argv);
    for (struct walk_text t = { 0 }; walk_next(&t);) {
        struct trial a = usual;
        a.text = t.text;
        if (t.example || walk_limited()) example(a);
        else run(a);
    }
    if (walk_limited()) return harness_end();

    const loci_encoding_info *list;
    const int count = loci_encodings(&list);
    for (int i = 0; i < count; i++) {
        struct trial a = usual;
        a.text = list[i].example;
        a.stage = LOCI_EMBED;
        if (list[i].places & LOCI_PLACE_EMBED) run(a);
    }
    /* Powers that overflow the floats within this length; and sticks, gates and slopes that just
     * last for two chunks. */
    run((struct trial){ .text = "xpos:scale_base=5", .heads = 2, .dim = 16, .len = usual.len });
    if (LOCI_SLOW) return harness_end();
    run((struct trial){ .text = "sba", .shift = 5.5, .heads = 2, .dim = 16, .len = 5000 });
    run((struct trial){ .text = "fox", .shift = 5, .heads = 2, .dim = 16, .len = 5000 });
    run((struct trial){ .text = "alibi", .heads = 2, .dim = 16, .len = 5000 });
    return harness_end();
}
