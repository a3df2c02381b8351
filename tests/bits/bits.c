/* SPDX-License-Identifier: MIT */
/* bits.c -- the same bits everywhere: every text of the walk, in float.
 *
 *     instruction sets    scalar = AVX2 = AVX-512 = ...                 forward and all gradients
 *     threads             1 = 2 = 7 = jobs in any order                 forward and all gradients
 *     gradients           each alone = all together
 *     chunks of keys      the same beyond 4096 keys, in windows, and sequences packed side by side
 *     query tiles         gradients of tables restart with each
 *     chunks              full = any chunking of the prefill = token by token
 *     groups              kv heads shared by a group = the same heads repeated
 *     packing             sequences packed side by side, or padded = each of them alone; by starts,
 *                         with gradients by row
 *     padding             whatever it holds, NaN too
 *
 * Every fourth text ($LOCI_WALK: all) once more with dropout, where entry s of a call is entry 0 of
 * another call with an offset larger by s.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract/plan.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

/* ---- A problem in float ---------------------------------------------------------------------- */

/* Do calls drop weights?  Entry b of a call drops those of entry 0 with an offset larger by b. */
static bool dropping;
static void give_dropout(loci_call *call, ptrdiff_t entry)
{
    call->dropout = dropping ? 0.3 : 0;
    call->dropout_seed = 0x123456789abcdefu;
    call->dropout_offset = 10 + (uint64_t)entry;
}

/* A gradient by itself: dq, dk, dv, or ONLY_TENSOR plus the number of a tensor. */
enum { ONLY_DQ = 1, ONLY_DK, ONLY_DV, ONLY_TENSOR };
struct task {
    const char *encoding, *isa;
    int batch, heads, kv_heads, dim, value_dim;
    /* negative: this number of threads, with jobs that run one after the other in reverse order */
    int threads;
    ptrdiff_t q_len, k_len, window;
    /* Gates hardly close, sticks hardly break, and nothing is forgotten, so the state of scans
     * matters from chunk to chunk. */
    bool lasting;
    int only; /* the one gradient that is wanted; 0: all */
    loci_plan *plan;
    loci_call call;
    loci_grad grad;
    int tensors;
    loci_tensor tensor[WALK_TENSORS];
    size_t size[WALK_TENSORS];
    float *data[WALK_TENSORS], *ddata[WALK_TENSORS];
    float *q, *k, *v, *o, *rows, *dout, *dq, *dk, *dv; /* rows: lse or rem */
    float *ae, *dae;                                   /* if the encoding has states, else NULL */
    /* [axes][k_len], for encodings with several axes; the rows are the last keys */
    double *coord;
    struct mem mem;
};

static float *around(struct task *t, size_t count, double middle, double size)
{
    float *x = mem_alloc(&t->mem, count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = (float)(middle + size * walk_uniform());
    return x;
}
static float *numbers(struct task *t, size_t count, double size)
{
    return around(t, count, 0, size);
}
static void give_coordinates(struct task *t)
{
    const ptrdiff_t axes = loci_axes(t->plan), first = t->k_len - t->q_len;
    if (axes < 2) return;
    double *q = mem_alloc(&t->mem, (size_t)(axes * t->q_len) * sizeof *q);
    for (ptrdiff_t a = 0; a < axes; a++)
        memcpy(q + a * t->q_len, t->coord + a * t->k_len + first, (size_t)t->q_len * sizeof *q);
    t->call.q_coord = q;
    t->call.k_coord = t->coord;
}
/* Those of the keys from .. from + k_len - 1 of another task. */
static void copy_coordinates(struct task *t, const struct task *whole, ptrdiff_t from)
{
    const ptrdiff_t axes = loci_axes(t->plan);
    if (axes < 2) return;
    t->coord = mem_alloc(&t->mem, (size_t)(axes * t->k_len) * sizeof *t->coord);
    for (ptrdiff_t a = 0; a < axes; a++)
        memcpy(t->coord + a * t->k_len, whole->coord + a * whole->k_len + from,
               (size_t)t->k_len * sizeof *t->coord);
    give_coordinates(t);
}

/* Creates the plan and random tensors.  The functions below set up call and outputs. */
static bool make(struct task *t)
{
    loci_desc d = LOCI_DESC(.encoding = t->encoding, .heads = t->heads, .kv_heads = t->kv_heads,
                            .dim = t->dim, .value_dim = t->value_dim, .isa = t->isa,
                            .window_left = t->window);
    loci_error e;
    if (loci_plan_create(&t->plan, &d, &e)) {
        CHECK_FAILED("%s: %s", t->encoding, e.text);
        return false;
    }
    const size_t q_rows = (size_t)(t->batch * t->heads * t->q_len),
                 k_rows = (size_t)(t->batch * t->kv_heads * t->k_len);
    const bool last = t->lasting;
    t->q = around(t, q_rows * (size_t)t->dim, last ? 1 : 0, last ? 0.3 : 1.5);
    t->k = around(t, k_rows * (size_t)t->dim, last ? -3 : 0, last ? 0.5 : 1.5);
    t->v = numbers(t, k_rows * (size_t)t->value_dim, 1);
    t->dout = numbers(t, q_rows * (size_t)t->value_dim, 1);
    t->dae = t->plan->states ? numbers(t, q_rows * (size_t)t->dim, 1) : NULL;
    t->tensors = loci_tensors(t->plan, t->tensor, WALK_TENSORS);
    for (int i = 0; i < t->tensors; i++) {
        t->size[i] = walk_count(&t->tensor[i], t->batch, t->q_len, t->k_len);
        t->data[i] = numbers(t, t->size[i], 0.2);
        if (t->tensor[i].role == LOCI_INPUT) {
            const float size = last && !strcmp(t->tensor[i].name, "log_f") ? 0.002f : 1;
            const float middle = last && !strcmp(t->tensor[i].name, "gate_k") ? -3 : -0.25f;
            for (size_t n = 0; n < t->size[i]; n++) t->data[i][n] = size * (t->data[i][n] + middle);
        } else {
            float *start = mem_alloc(&t->mem, t->size[i] * sizeof *start);
            loci_tensor_init(t->plan, i, 1, start);
            for (size_t n = 0; n < t->size[i]; n++)
                t->data[i][n] =
                    (float)walk_learned(&t->tensor[i], 0.25 + (double)t->data[i][n]) + start[n];
        }
    }
    const ptrdiff_t coordinates = loci_axes(t->plan) > 1 ? loci_axes(t->plan) * t->k_len : 0;
    t->coord = mem_alloc(&t->mem, (size_t)coordinates * sizeof *t->coord);
    for (ptrdiff_t i = 0; i < coordinates; i++) t->coord[i] = walk_coordinate(100);
    return true;
}
static void outputs(struct task *t)
{
    const size_t q_rows = (size_t)(t->batch * t->heads * t->q_len),
                 k_rows = (size_t)(t->batch * t->kv_heads * t->k_len);
    t->o = mem_alloc(&t->mem, q_rows * (size_t)t->value_dim * sizeof(float));
    t->rows = mem_alloc(&t->mem, q_rows * sizeof(float));
    t->dq = mem_alloc(&t->mem, q_rows * (size_t)t->dim * sizeof(float));
    t->dk = mem_alloc(&t->mem, k_rows * (size_t)t->dim * sizeof(float));
    t->dv = mem_alloc(&t->mem, k_rows * (size_t)t->value_dim * sizeof(float));
    t->ae = t->plan->states ? mem_alloc(&t->mem, q_rows * (size_t)t->dim * sizeof(float)) : NULL;
    for (int i = 0; i < t->tensors; i++)
        t->ddata[i] = mem_alloc(&t->mem, t->size[i] * sizeof(float));
    t->call.size = sizeof t->call;
    t->grad.size = sizeof t->grad;
    t->call.batch = t->batch;
    t->call.q_len = t->q_len;
    t->call.k_len = t->k_len;
    t->call.q.data = t->q;
    t->call.k.data = t->k;
    t->call.v.data = t->v;
    t->call.o.data = t->o;
    t->call.lse = t->plan->weight < 0 ? t->rows : NULL;
    t->call.rem = t->plan->weight < 0 ? NULL : t->rows;
    t->call.tensors = (const void *const *)t->data;
    t->grad.dout.data = t->dout;
    t->grad.dq.data = t->dq;
    t->grad.dk.data = t->dk;
    t->grad.dv.data = t->dv;
    t->call.ae = t->ae;
    t->grad.dae = t->dae;
    t->grad.dtensors = (void *const *)t->ddata;
    give_coordinates(t);
    give_dropout(&t->call, 0);
    if (!t->only) return;
    if (t->only != ONLY_DQ) t->grad.dq.data = NULL;
    if (t->only != ONLY_DK) t->grad.dk.data = NULL;
    if (t->only != ONLY_DV) t->grad.dv.data = NULL;
    for (int i = 0; i < t->tensors; i++)
        if (t->only != ONLY_TENSOR + i) t->ddata[i] = NULL;
}
static void drop(struct task *t)
{
    mem_release(&t->mem, 0);
    loci_plan_destroy(t->plan);
    *t = (struct task){ 0 };
}

static void last_first(void *user, int n, void (*job)(void *, int), void *arg)
{
    (void)user;
    while (n-- > 0) job(arg, n);
}

/* Forward, and backward if requested. */
static bool run(struct task *t, bool backward)
{
    loci_error e = { 0 };
    loci_host host = { 0 };
    const ptrdiff_t range = t->k_len > 8192 ? 16384 : 8192;
    void *tables = mem_alloc(&t->mem, loci_tables_size(t->plan, range));
    t->call.error = &e;
    if (t->threads > 1) {
        if (loci_pool_create(&host, t->threads)) exit(2);
        t->call.host = &host;
    }
    if (t->threads < 0) {
        host = (loci_host){ .run = last_first, .threads = -t->threads };
        t->call.host = &host;
    }
    void *work = mem_alloc(&t->mem, loci_workspace(t->plan, &t->call, backward));
    bool ok = !loci_prepare(t->plan, range, (const void *const *)t->data, tables)
           && !loci_forward(t->plan, tables, work, &t->call);
    if (ok && backward) {
        mem_release(&t->mem, t->mem.blocks - 1);
        work = mem_alloc(&t->mem, loci_workspace(t->plan, &t->call, true));
        ok = !loci_backward(t->plan, tables, work, &t->call, &t->grad);
    }
    if (t->threads > 1) loci_pool_destroy(&host);
    t->call.host = NULL;
    return ok || CHECK_FAILED("%s on %s: %s", t->encoding, t->isa ? t->isa : "best", e.text);
}

static void same(const char *encoding, const char *what, const char *name, const float *a,
                 const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) {
            CHECK_FAILED("%s, %s: %s[%zu] is %.9g in one way and %.9g in the other", encoding, what,
                         name, i, (double)a[i], (double)b[i]);
            return;
        }
    harness_pass();
}

/* ---- Instruction sets and threads ------------------------------------------------------------ */

static void same_task(const struct task *a, const struct task *b, const char *what)
{
    const size_t q_rows = (size_t)(a->batch * a->heads * a->q_len),
                 k_rows = (size_t)(a->batch * a->kv_heads * a->k_len);
    same(a->encoding, what, "o", a->o, b->o, q_rows * (size_t)a->value_dim);
    same(a->encoding, what, "lse or rem", a->rows, b->rows, q_rows);
    if (a->ae) same(a->encoding, what, "ae", a->ae, b->ae, q_rows * (size_t)a->dim);
    same(a->encoding, what, "dq", a->dq, b->dq, q_rows * (size_t)a->dim);
    same(a->encoding, what, "dk", a->dk, b->dk, k_rows * (size_t)a->dim);
    same(a->encoding, what, "dv", a->dv, b->dv, k_rows * (size_t)a->value_dim);
    for (int i = 0; i < a->tensors; i++)
        if (a->tensor[i].role != LOCI_FIXED)
            same(a->encoding, what, a->tensor[i].name, a->ddata[i], b->ddata[i], a->size[i]);
}

/* The same problem again.  Random numbers restart, so two tasks of one shape have the same
 * values. */
static bool again(struct task *t, const struct task *like, const char *isa, int threads)
{
    *t = (struct task){ .encoding = like->encoding,
                        .isa = isa,
                        .batch = like->batch,
                        .heads = like->heads,
                        .kv_heads = like->kv_heads,
                        .dim = like->dim,
                        .value_dim = like->value_dim,
                        .q_len = like->q_len,
                        .k_len = like->k_len,
                        .window = like->window,
                        .lasting = like->lasting,
                        .only = like->only,
                        .threads = threads };
    walk_restart(7);
    if (!make(t)) return false;
    outputs(t);
    return run(t, true);
}
static void machines(const struct task *like)
{
    const char *isas[8];
    const int count = loci_isas(isas, 8), threads[] = { 2, 7 };
    struct task first, other;
    if (again(&first, like, isas[0], 1)) {
        for (int i = 1; i < count; i++) {
            if (again(&other, like, isas[i], 1)) same_task(&first, &other, isas[i]);
            drop(&other);
        }
        for (int i = 0; i < 2; i++) {
            if (again(&other, like, isas[count - 1], threads[i]))
                same_task(&first, &other, threads[i] == 2 ? "2 threads" : "7 threads");
            drop(&other);
        }
    }
    drop(&first);
}

/* Several work items whose keys overlap. */
static void any_order(const struct task *like)
{
    struct task first, other;
    if (again(&first, like, NULL, 1)) {
        if (again(&other, like, NULL, -3)) same_task(&first, &other, "jobs in any order");
        drop(&other);
    }
    drop(&first);
}
/* The same for work items that walk several chunks of keys, on any number of threads. */
static void across_chunks(const struct task *like)
{
    static const struct {
        int threads;
        const char *what;
    } ways[] = {
        { 2, "chunks on 2 threads" },
        { 3, "chunks on 3 threads" },
        { 5, "chunks on 5 threads" },
        { -3, "chunks in any order" },
    };
    struct task first, other;
    if (again(&first, like, NULL, 1))
        for (int i = 0; i < 4; i++) {
            if (again(&other, like, NULL, ways[i].threads)) same_task(&first, &other, ways[i].what);
            drop(&other);
        }
    drop(&first);
}

/* ---- Gradients alone ------------------------------------------------------------------------- */

/* A gradient does not depend on which others are wanted. */
static void one_gradient(const struct task *like)
{
    struct task all, one, wanted = *like;
    if (again(&all, like, NULL, 1))
        for (wanted.only = ONLY_DQ; wanted.only < ONLY_TENSOR + all.tensors; wanted.only++) {
            const int tensor = wanted.only - ONLY_TENSOR;
            const size_t q_rows = (size_t)(all.batch * all.heads * all.q_len),
                         k_rows = (size_t)(all.batch * all.kv_heads * all.k_len);
            if (again(&one, &wanted, NULL, 1)) {
                if (wanted.only == ONLY_DQ)
                    same(all.encoding, "alone", "dq", all.dq, one.dq, q_rows * (size_t)all.dim);
                else if (wanted.only == ONLY_DK)
                    same(all.encoding, "alone", "dk", all.dk, one.dk, k_rows * (size_t)all.dim);
                else if (wanted.only == ONLY_DV)
                    same(all.encoding, "alone", "dv", all.dv, one.dv,
                         k_rows * (size_t)all.value_dim);
                else if (all.tensor[tensor].role != LOCI_FIXED)
                    same(all.encoding, "alone", all.tensor[tensor].name, all.ddata[tensor],
                         one.ddata[tensor], all.size[tensor]);
            }
            drop(&one);
        }
    drop(&all);
}

/* ---- Query tiles ----------------------------------------------------------------------------- */

/* A gradient of a table starts from 0 with each tile of 64 rows: the gradient of two tiles is the
 * sum of each tile's own.  For encodings whose tensors are their tables. */
static void two_tiles(const char *encoding)
{
    enum { ALL, FIRST, SECOND, ROWS_OF_BOTH = 128 };
    struct task t[3];
    const ptrdiff_t n = 8 * ROWS_OF_BOTH;
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        t[i] = (struct task){ .encoding = encoding,
                              .batch = 1,
                              .heads = 1,
                              .kv_heads = 1,
                              .dim = 8,
                              .value_dim = 8,
                              .q_len = ROWS_OF_BOTH,
                              .k_len = ROWS_OF_BOTH + 70,
                              .threads = 1 };
        walk_restart(17);
        if (!make(&t[i])) return;
        outputs(&t[i]);
        for (ptrdiff_t k = 0; k < n && i; k++)
            if ((k < n / 2) == (i == SECOND)) t[i].dout[k] = 0;
        ok = run(&t[i], true) && ok;
    }
    for (int i = 0; i < t[ALL].tensors && ok; i++) {
        for (size_t k = 0; k < t[ALL].size[i]; k++) t[FIRST].ddata[i][k] += t[SECOND].ddata[i][k];
        same(encoding, "two query tiles", t[ALL].tensor[i].name, t[ALL].ddata[i], t[FIRST].ddata[i],
             t[ALL].size[i]);
    }
    for (int i = 0; i < 3; i++) drop(&t[i]);
}

/* ---- Chunks ---------------------------------------------------------------------------------- */

/* x, one of the task's tensors or its gradient.  If it has a row per query or key, only the rows of
 * task t, which begin at q_from and k_from. */
static float *cut(struct task *t, const struct task *from, int i, float *x, ptrdiff_t q_from,
                  ptrdiff_t k_from)
{
    const loci_tensor *f = &from->tensor[i];
    int axis = -1;
    for (int r = 0; r < f->rank; r++)
        if (f->shape[r] == LOCI_DIM_QUERIES || f->shape[r] == LOCI_DIM_KEYS) axis = r;
    if (axis < 0) return x;
    const bool queries = f->shape[axis] == LOCI_DIM_QUERIES;
    const size_t old = (size_t)(queries ? from->q_len : from->k_len),
                 now = (size_t)(queries ? t->q_len : t->k_len);
    size_t inner = 1;
    for (int r = axis + 1; r < f->rank; r++) inner *= (size_t)f->shape[r];
    const size_t outer = from->size[i] / (old * inner);
    float *some = mem_alloc(&t->mem, outer * now * inner * sizeof *some);
    for (size_t n = 0; n < outer; n++)
        memcpy(some + n * now * inner, x + (n * old + (size_t)(queries ? q_from : k_from)) * inner,
               now * inner * sizeof *some);
    return some;
}

/* Rows from .. from + n of the task, with the keys present by then. */
static bool step(const struct task *whole, ptrdiff_t from, ptrdiff_t n, float *o, float *rows,
                 float *ae)
{
    struct task t = { .encoding = whole->encoding,
                      .batch = whole->batch,
                      .heads = whole->heads,
                      .kv_heads = whole->kv_heads,
                      .dim = whole->dim,
                      .value_dim = whole->value_dim,
                      .q_len = n,
                      .k_len = from + n,
                      .threads = 1 };
    loci_desc d = LOCI_DESC(.encoding = t.encoding, .heads = t.heads, .kv_heads = t.kv_heads,
                            .dim = t.dim, .value_dim = t.value_dim);
    if (loci_plan_create(&t.plan, &d, NULL)) return false;
    t.tensors = whole->tensors;
    for (int i = 0; i < t.tensors; i++) {
        t.tensor[i] = whole->tensor[i];
        t.data[i] = cut(&t, whole, i, whole->data[i], from, 0);
    }
    const ptrdiff_t D = t.dim, Dv = t.value_dim, Lq = whole->q_len, Lk = whole->k_len, H = t.heads,
                    G = t.kv_heads;
    float *some = mem_alloc(&t.mem, (size_t)(t.batch * H * n) * sizeof *some);
    t.call = (loci_call)LOCI_CALL(.batch = t.batch, .q_len = n, .k_len = from + n,
                                  .tensors = (const void *const *)t.data,
                                  .q = { whole->q + from * D, H * Lq * D, Lq * D, D },
                                  .k = { whole->k, G * Lk * D, Lk * D, D },
                                  .v = { whole->v, G * Lk * Dv, Lk * Dv, Dv },
                                  .o = { o + from * Dv, H * Lq * Dv, Lq * Dv, Dv });
    if (t.plan->weight < 0) t.call.lse = some;
    else t.call.rem = some;
    give_dropout(&t.call, 0);
    float *states = t.call.ae =
        ae ? mem_alloc(&t.mem, (size_t)(t.batch * H * n * D) * sizeof *states) : NULL;
    copy_coordinates(&t, whole, 0);
    const bool ok = run(&t, false);
    for (ptrdiff_t h = 0; h < t.batch * H; h++)
        memcpy(rows + h * Lq + from, some + h * n, (size_t)n * sizeof *some);
    for (ptrdiff_t h = 0; h < t.batch * H && ae; h++)
        memcpy(ae + (h * Lq + from) * D, states + h * n * D, (size_t)(n * D) * sizeof *ae);
    drop(&t);
    return ok;
}
static void chunks(const struct task *like)
{
    static const int cuts[][8] = { { 1, 1, 1, 1, 1, 1, 1, 1 },
                                   { 5, 1, 70, 3, 64, 1, 2, 130 },
                                   { 64, 64, 1, 63, 2, 62, 31, 1 } };
    struct task whole;
    if (again(&whole, like, NULL, 1)) {
        const size_t count = (size_t)(whole.batch * whole.heads * whole.q_len);
        float *o = mem_alloc(&whole.mem, count * (size_t)whole.value_dim * sizeof *o),
              *rows = mem_alloc(&whole.mem, count * sizeof *rows);
        float *ae = whole.ae ? mem_alloc(&whole.mem, count * (size_t)whole.dim * sizeof *ae) : NULL;
        for (int c = 0; c < 3; c++) {
            /* token by token is slow */
            const ptrdiff_t last = c == 0 && whole.q_len > 300 ? whole.q_len - 3 : 0;
            if (last) {
                memcpy(o, whole.o, count * (size_t)whole.value_dim * sizeof *o);
                memcpy(rows, whole.rows, count * sizeof *rows);
            }
            if (last && ae) memcpy(ae, whole.ae, count * (size_t)whole.dim * sizeof *ae);
            for (ptrdiff_t at = last, i = 0; at < whole.q_len; i++) {
                ptrdiff_t n = cuts[c][i % 8] * (whole.q_len > 1000 && c ? 20 : 1);
                if (n > whole.q_len - at) n = whole.q_len - at;
                if (!step(&whole, at, n, o, rows, ae)) break;
                at += n;
            }
            same(whole.encoding, c ? "chunks" : "token by token", "o", whole.o, o,
                 count * (size_t)whole.value_dim);
            same(whole.encoding, c ? "chunks" : "token by token", "lse or rem", whole.rows, rows,
                 count);
            if (ae)
                same(whole.encoding, c ? "chunks" : "token by token", "ae", whole.ae, ae,
                     count * (size_t)whole.dim);
        }
    }
    drop(&whole);
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static float *repeat(struct task *t, const float *x, ptrdiff_t outer, ptrdiff_t heads,
                     ptrdiff_t group, size_t inner)
{
    float *to = mem_alloc(&t->mem, (size_t)(outer * heads * group) * inner * sizeof *to);
    for (ptrdiff_t i = 0; i < outer * heads * group; i++)
        memcpy(to + (size_t)i * inner, x + (size_t)(i / group) * inner, inner * sizeof *to);
    return to;
}
static void groups(const struct task *like)
{
    struct task shared, alone = {
        .encoding = like->encoding,
        .batch = like->batch,
        .heads = like->heads,
        .kv_heads = like->heads,
        .dim = like->dim,
        .value_dim = like->value_dim,
        .q_len = like->q_len,
        .k_len = like->k_len,
        .threads = 1,
    };
    const ptrdiff_t group = like->heads / like->kv_heads;
    const size_t rows = (size_t)(like->batch * like->heads * like->q_len);
    if (again(&shared, like, NULL, 1) && make(&alone)) {
        alone.q = shared.q;
        alone.dout = shared.dout;
        alone.k = repeat(&alone, shared.k, like->batch, like->kv_heads, group,
                         (size_t)(like->k_len * like->dim));
        alone.v = repeat(&alone, shared.v, like->batch, like->kv_heads, group,
                         (size_t)(like->k_len * like->value_dim));
        for (int i = 0; i < shared.tensors; i++) {
            alone.data[i] = shared.data[i];
            const loci_tensor *f = &shared.tensor[i];
            for (int r = 0; r < f->rank; r++) {
                if (f->shape[r] == alone.tensor[i].shape[r]) continue;
                size_t inner = 1;
                for (int k = r + 1; k < f->rank; k++)
                    inner *= (size_t)(f->shape[k] == LOCI_DIM_KEYS ? like->k_len : f->shape[k]);
                alone.data[i] = repeat(&alone, shared.data[i],
                                       (ptrdiff_t)(shared.size[i] / inner) / f->shape[r],
                                       f->shape[r], group, inner);
            }
        }
        outputs(&alone);
        copy_coordinates(&alone, &shared, 0);
        if (run(&alone, false)) {
            same(like->encoding, "repeated kv heads", "o", shared.o, alone.o,
                 rows * (size_t)like->value_dim);
            same(like->encoding, "repeated kv heads", "lse or rem", shared.rows, alone.rows, rows);
            if (shared.ae)
                same(like->encoding, "repeated kv heads", "ae", shared.ae, alone.ae,
                     rows * (size_t)like->dim);
        }
    }
    drop(&shared);
    drop(&alone);
}

/* ---- Packing --------------------------------------------------------------------------------- */

static void packing(const struct task *like)
{
    /* padding before, between and after */
    static const ptrdiff_t length[] = { 70, 1, 64, 33 }, pad = 5;
    int64_t pos[256], seg[256];
    ptrdiff_t L = pad;
    for (int s = 0; s < 4; s++) L += length[s] + pad;
    struct task packed = *like, one;
    packed.batch = 1;
    packed.q_len = packed.k_len = L;
    packed.threads = 1;
    walk_restart(9);
    if (!make(&packed)) return;
    outputs(&packed);
    for (ptrdiff_t i = 0; i < L; i++) {
        seg[i] = -1;
        pos[i] = 0;
    }
    for (ptrdiff_t s = 0, at = pad; s < 4; at += length[s++] + pad)
        for (ptrdiff_t i = 0; i < length[s]; i++) {
            seg[at + i] = s;
            pos[at + i] = i;
        }
    packed.call.q_pos = packed.call.k_pos = pos;
    packed.call.q_seg = packed.call.k_seg = seg;
    const ptrdiff_t D = packed.dim, Dv = packed.value_dim, H = packed.heads, G = packed.kv_heads;
    /* the contents of padding must have no effect */
    for (ptrdiff_t i = 0; i < L; i++)
        for (ptrdiff_t g = 0; g < G && seg[i] < 0; g++)
            memset(packed.k + (g * L + i) * D, 0xff, (size_t)D * sizeof(float));
    if (!run(&packed, false)) {
        drop(&packed);
        return;
    }
    for (ptrdiff_t s = 0, at = pad; s < 4; at += length[s++] + pad) {
        const ptrdiff_t n = length[s];
        one = (struct task){ .encoding = like->encoding,
                             .batch = 1,
                             .heads = like->heads,
                             .kv_heads = like->kv_heads,
                             .dim = like->dim,
                             .value_dim = like->value_dim,
                             .q_len = n,
                             .k_len = n,
                             .threads = 1 };
        if (!make(&one)) break;
        outputs(&one);
        copy_coordinates(&one, &packed, at);
        one.call.q = (loci_view){ packed.q + at * D, H * L * D, L * D, D };
        one.call.k = (loci_view){ packed.k + at * D, G * L * D, L * D, D };
        one.call.v = (loci_view){ packed.v + at * Dv, G * L * Dv, L * Dv, Dv };
        for (int i = 0; i < packed.tensors; i++)
            one.data[i] = cut(&one, &packed, i, packed.data[i], at, at);
        if (run(&one, false))
            for (ptrdiff_t h = 0; h < H; h++) {
                same(like->encoding, "packed", "o", one.o + h * n * Dv,
                     packed.o + (h * L + at) * Dv, (size_t)(n * Dv));
                same(like->encoding, "packed", "lse or rem", one.rows + h * n,
                     packed.rows + h * L + at, (size_t)n);
                if (one.ae)
                    same(like->encoding, "packed", "ae", one.ae + h * n * D,
                         packed.ae + (h * L + at) * D, (size_t)(n * D));
            }
        drop(&one);
    }
    drop(&packed);
}

/* ---- Concatenated sequences with starts ------------------------------------------------------ */

/* Rows from .. from + n of every head, against all rows of the other. */
static void same_rows(const struct task *t, const char *name, const float *whole, ptrdiff_t len,
                      ptrdiff_t from, const float *alone, ptrdiff_t n, ptrdiff_t heads,
                      ptrdiff_t width)
{
    for (ptrdiff_t h = 0; h < heads; h++)
        same(t->encoding, "sequences by their starts", name, whole + (h * len + from) * width,
             alone + h * n * width, (size_t)(n * width));
}
static void alone(const struct task *all, int s, ptrdiff_t q_at, ptrdiff_t nq, ptrdiff_t k_at,
                  ptrdiff_t nk)
{
    const ptrdiff_t D = all->dim, Dv = all->value_dim, H = all->heads, G = all->kv_heads,
                    Lq = all->q_len, Lk = all->k_len;
    struct task one = { .encoding = all->encoding,
                        .batch = 1,
                        .heads = all->heads,
                        .kv_heads = all->kv_heads,
                        .dim = all->dim,
                        .value_dim = all->value_dim,
                        .q_len = nq,
                        .k_len = nk,
                        .threads = 1 };
    if (make(&one)) {
        outputs(&one);
        copy_coordinates(&one, all, k_at);
        give_dropout(&one.call, s);
        one.call.q = (loci_view){ all->q + q_at * D, H * Lq * D, Lq * D, D };
        one.call.k = (loci_view){ all->k + k_at * D, G * Lk * D, Lk * D, D };
        one.call.v = (loci_view){ all->v + k_at * Dv, G * Lk * Dv, Lk * Dv, Dv };
        one.grad.dout = (loci_view){ all->dout + q_at * Dv, H * Lq * Dv, Lq * Dv, Dv };
        for (ptrdiff_t h = 0; h < H && one.dae; h++)
            memcpy(one.dae + h * nq * D, all->dae + (h * Lq + q_at) * D,
                   (size_t)(nq * D) * sizeof(float));
        for (int i = 0; i < one.tensors; i++)
            one.data[i] = cut(&one, all, i, all->data[i], q_at, k_at);
        if (run(&one, true)) {
            same_rows(all, "o", all->o, Lq, q_at, one.o, nq, H, Dv);
            same_rows(all, "lse or rem", all->rows, Lq, q_at, one.rows, nq, H, 1);
            if (one.ae) same_rows(all, "ae", all->ae, Lq, q_at, one.ae, nq, H, D);
            same_rows(all, "dq", all->dq, Lq, q_at, one.dq, nq, H, D);
            same_rows(all, "dk", all->dk, Lk, k_at, one.dk, nk, G, D);
            same_rows(all, "dv", all->dv, Lk, k_at, one.dv, nk, G, Dv);
            for (int i = 0; i < one.tensors; i++) {
                const float *some = cut(&one, all, i, all->ddata[i], q_at, k_at);
                if (some != all->ddata[i])
                    same(all->encoding, "sequences by their starts", one.tensor[i].name, some,
                         one.ddata[i], one.size[i]);
            }
        }
    }
    drop(&one);
}
enum { SEQUENCES = 5 };
static void starts(const struct task *like, const int64_t *q, const int64_t *k)
{
    struct task all = *like;
    all.batch = 1;
    all.q_len = q[SEQUENCES];
    all.k_len = k[SEQUENCES];
    all.threads = 2;
    walk_restart(11);
    if (!make(&all)) return;
    outputs(&all);
    all.call.q_starts = q;
    all.call.k_starts = k;
    all.call.sequences = SEQUENCES;
    /* each sequence's rows are at its last keys */
    double *coord = (double *)all.call.q_coord;
    for (ptrdiff_t a = 0; coord && a < loci_axes(all.plan); a++)
        for (int s = 0; s < SEQUENCES; s++)
            memcpy(coord + a * all.q_len + q[s],
                   all.coord + a * all.k_len + k[s + 1] - (q[s + 1] - q[s]),
                   (size_t)(q[s + 1] - q[s]) * sizeof *coord);
    if (run(&all, true))
        for (int s = 0; s < SEQUENCES; s++)
            alone(&all, s, q[s], q[s + 1] - q[s], k[s], k[s + 1] - k[s]);
    drop(&all);
}

/* ---- Padding --------------------------------------------------------------------------------- */

static void poison(float *x, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) x[i] = NAN;
}
/* A batch with padding, which contains NaN or numbers: before sequences that end together, or among
 * segments in any order. */
static bool padded_batch(struct task *t, const struct task *like, bool among, bool poisoned)
{
    static int64_t pos[2 * 256], seg[2 * 256];
    *t = *like;
    t->batch = 2;
    walk_restart(13);
    if (!make(t)) return false;
    outputs(t);
    const ptrdiff_t L = t->q_len, D = t->dim, Dv = t->value_dim;
    for (ptrdiff_t b = 0; b < 2; b++)
        for (ptrdiff_t i = 0, first = b ? L / 2 : L / 4; i < L; i++) {
            seg[b * L + i] = i < first || (among && i % 7 == 3) ? -1 : among ? i * 3 % 2 : 0;
            pos[b * L + i] = i < first ? 0 : i - first;
        }
    t->call.q_pos = t->call.k_pos = pos;
    t->call.q_seg = t->call.k_seg = seg;
    t->call.per_batch = 1;
    if (t->call.q_coord) { /* the same for both */
        const ptrdiff_t n = loci_axes(t->plan) * L;
        double *both = mem_alloc(&t->mem, (size_t)(2 * n) * sizeof *both);
        for (ptrdiff_t i = 0; i < 2 * n; i++) both[i] = t->coord[i % n];
        t->call.q_coord = t->call.k_coord = both;
    }
    for (ptrdiff_t n = 0; n < 2 * t->heads * L && poisoned; n++) {
        const ptrdiff_t b = n / L / t->heads,
                        key = (n / L % t->heads / (t->heads / t->kv_heads) + b * t->kv_heads) * L
                            + n % L;
        if (seg[b * L + n % L] >= 0) continue;
        poison(t->q + n * D, D);
        poison(t->dout + n * Dv, Dv);
        poison(t->k + key * D, D);
        poison(t->v + key * Dv, Dv);
        if (t->dae) poison(t->dae + n * D, D);
    }
    if (!run(t, true)) return false;
    bool zero = true;
    for (ptrdiff_t n = 0; n < 2 * t->heads * L; n++) {
        const ptrdiff_t b = n / L / t->heads,
                        key = (n / L % t->heads / (t->heads / t->kv_heads) + b * t->kv_heads) * L
                            + n % L;
        if (seg[b * L + n % L] >= 0) continue;
        for (ptrdiff_t i = 0; i < D; i++) zero &= t->dq[n * D + i] == 0 && t->dk[key * D + i] == 0;
        for (ptrdiff_t i = 0; i < Dv; i++)
            zero &= t->o[n * Dv + i] == 0 && t->dv[key * Dv + i] == 0;
    }
    CHECK_THAT(zero, "%s: padding has outputs or gradients", t->encoding);
    return true;
}
static void padding(const struct task *like, bool among)
{
    struct task clean, bad;
    if (padded_batch(&clean, like, among, false)) {
        if (padded_batch(&bad, like, among, true))
            same_task(&clean, &bad,
                      among ? "NaN in padding among segments" : "NaN in left padding");
        drop(&bad);
    }
    drop(&clean);
}

static void check_text(const struct walk_text t)
{
    const char *text = t.text;
    const int dim = walk_dim(text, 18);
    const ptrdiff_t length = LOCI_SLOW ? 70 : 150;
    const int few = LOCI_EMULATED ? 1 : 2;
    const struct task task = {
        .encoding = text,
        .batch = few,
        .heads = 2 * few,
        .kv_heads = few,
        .dim = dim,
        .value_dim = t.square ? dim : 21,
        .q_len = length,
        .k_len = length,
        .threads = 1,
    };
    static const int64_t many[] = { 0, 30, 31, 31, 95, 100 }, few_rows[] = { 0, 1, 3, 3, 4, 4 },
                         keys[] = { 0, 70, 79, 83, 147, 180 };
    machines(&task);
    chunks(&task);
    if (!LOCI_EMULATED && !dropping) one_gradient(&task);
    if (!LOCI_EMULATED) {
        groups(&task);
        /* rows and keys of segments are counted in their entry */
        if (!dropping) packing(&task);
        starts(&task, many, keys);
        starts(&task, few_rows, keys);
        padding(&task, false);
        padding(&task, true);
    }
    /* Across the borders of chunks of keys, and of work items.  Slow, so only with every
     * encoding's own example. */
    const struct task lengthy = {
        .encoding = text,
        .batch = 1,
        .heads = 1,
        .kv_heads = 1,
        .dim = walk_dim(text, 4),
        .value_dim = 4,
        .q_len = 4300,
        .k_len = 4300,
        .threads = 1,
    };
    struct task items = lengthy;
    items.q_len = items.k_len = 2500;
    if (t.example && !LOCI_SLOW) {
        chunks(&lengthy);
        any_order(&items);
    }
    /* The backward pass across them: three chunks and four items; a window across a border, and
     * groups; two chunks on every instruction set; sequences of one to three chunks. */
    struct task three = lengthy, window, border;
    three.heads = three.kv_heads = 2;
    three.lasting = true;
    window = border = three;
    three.q_len = 1060;
    three.k_len = 8500;
    window.q_len = 200;
    window.k_len = 8300;
    window.window = 4200;
    window.heads = 4;
    border.kv_heads = 1;
    border.q_len = 70;
    border.k_len = 4150;
    static const int64_t q_starts[] = { 0, 66, 67, 67, 140, 150 },
                         k_starts[] = { 0, 4200, 4210, 4300, 12600, 12610 };
    if (t.example && !LOCI_SLOW) {
        across_chunks(&three);
        across_chunks(&window);
        machines(&border);
        starts(&border, q_starts, k_starts);
    }
}

int main(int argc, char **argv)
{
    static const char *const tables[] = { "t5:bidirectional=0", "clip:max=100",  "sink",
                                          "alibi:slopes=given", "cape:hidden=4", "cope:npos=9" };
    walk_only(argc, argv);
    for (int i = 0; i < 6 && !walk_limited(); i++) two_tiles(tables[i]);
    for (struct walk_text t = { 0 }; walk_next(&t);) {
        if (LOCI_SLOW && !t.example && t.next % (LOCI_EMULATED ? 15 : 5) && !walk_whole()) continue;
        dropping = false;
        check_text(t);
        dropping = true;
        if (t.next % 4 == 0 || walk_whole()) check_text(t);
    }
    return harness_end();
}
