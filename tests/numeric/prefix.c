/* SPDX-License-Identifier: MIT */
/* prefix.c -- the recipes of docs/batches.md for a prefix whose rows see all of it: two calls whose
 * gradients are added, or one call whose positions define visibility and whose coordinates rotate.
 * In double, against the reference, row by row with exactly the keys that the row should see. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/reference.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

enum { H = 2, G = 1, L = 90, PREFIX = 37, MOST = 64 };

/* A problem of L rows and keys: its inputs, and sums of its results. */
struct problem {
    const char *text;
    int D, axes, tensors;
    loci_tensor tensor[WALK_TENSORS];
    size_t size[WALK_TENSORS];
    double *q, *k, *v, *dout, *dlse, *coord, *data[WALK_TENSORS];
};
struct sums {
    double *o, *lse, *dq, *dk, *dv, *data[WALK_TENSORS];
};

static double *numbers(size_t n)
{
    double *x = mem_block(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = walk_uniform();
    return x;
}
static double *zeros(size_t n)
{
    return memset(mem_block(n * sizeof(double)), 0, n * sizeof(double));
}

/* Rows from .. from + n of x [outer][L][inner], or adds those of y to them. */
static double *cut(const double *x, size_t outer, size_t inner, ptrdiff_t from, ptrdiff_t n)
{
    double *y = mem_block(outer * (size_t)n * inner * sizeof *y);
    for (size_t h = 0; h < outer; h++)
        memcpy(y + h * (size_t)n * inner, x + (h * L + (size_t)from) * inner,
               (size_t)n * inner * sizeof *y);
    return y;
}
static void add(double *x, const double *y, size_t outer, size_t inner, ptrdiff_t from, ptrdiff_t n)
{
    for (size_t h = 0; h < outer; h++)
        for (size_t i = 0; i < (size_t)n * inner; i++)
            x[(h * L + (size_t)from) * inner + i] += y[h * (size_t)n * inner + i];
}

/* The axis of a tensor's rows.  False: it has none of queries or keys. */
struct layout {
    size_t outer, inner;
    bool queries;
};
static bool rows_of(const struct problem *p, int i, struct layout *at)
{
    const loci_tensor *t = &p->tensor[i];
    *at = (struct layout){ .inner = 1 };
    int axis = -1;
    for (int r = 0; r < t->rank; r++)
        if (t->shape[r] == LOCI_DIM_QUERIES || t->shape[r] == LOCI_DIM_KEYS) axis = r;
    if (axis < 0) return false;
    for (int r = axis + 1; r < t->rank; r++) at->inner *= (size_t)t->shape[r];
    at->outer = p->size[i] / (L * at->inner);
    at->queries = t->shape[axis] == LOCI_DIM_QUERIES;
    return true;
}

/* Rows from .. from + n with the first `keys` keys.  Positions as given, or of the last of these
 * keys. */
static bool run(const struct problem *p, bool reference, bool full, ptrdiff_t from, ptrdiff_t n,
                ptrdiff_t keys, const int64_t *q_pos, const int64_t *k_pos, const double *coord,
                struct sums *to)
{
    const size_t D = (size_t)p->D;
    loci_error e = { 0 };
    loci_plan *plan;
    const loci_desc d = LOCI_DESC(.encoding = p->text, .heads = H, .kv_heads = G, .dim = p->D,
                                  .dtype = LOCI_F64, .full = full, .max_len = L);
    if (loci_plan_create(&plan, &d, &e)) {
        CHECK_FAILED("%s: %s", p->text, e.text);
        return false;
    }
    void *block[MOST], *tensors[WALK_TENSORS], *dtensors[WALK_TENSORS];
    int blocks = 0;
#define COPY_STRUCT(x) (block[blocks++] = (x))
    double *o = COPY_STRUCT(zeros(H * (size_t)n * D)), *lse = COPY_STRUCT(zeros(H * (size_t)n)),
           *dq = COPY_STRUCT(zeros(H * (size_t)n * D));
    double *dk = COPY_STRUCT(zeros(G * (size_t)keys * D)),
           *dv = COPY_STRUCT(zeros(G * (size_t)keys * D));
    for (int i = 0; i < p->tensors; i++) {
        struct layout at;
        const bool rows = rows_of(p, i, &at);
        tensors[i] = rows ? COPY_STRUCT(cut(p->data[i], at.outer, at.inner, at.queries ? from : 0,
                                            at.queries ? n : keys))
                          : p->data[i];
        dtensors[i] = p->tensor[i].role == LOCI_FIXED ? NULL : COPY_STRUCT(zeros(p->size[i]));
    }
    loci_call c = LOCI_CALL(.batch = 1, .q_len = n, .k_len = keys, .lse = lse,
                            .tensors = (const void *const *)tensors, .error = &e, .q_pos = q_pos,
                            .k_pos = k_pos);
    c.q.data = COPY_STRUCT(cut(p->q, H, D, from, n));
    c.k.data = COPY_STRUCT(cut(p->k, G, D, 0, keys));
    c.v.data = COPY_STRUCT(cut(p->v, G, D, 0, keys));
    c.o.data = o;
    if (coord) {
        c.q_coord = COPY_STRUCT(cut(coord, (size_t)p->axes, 1, from, n));
        c.k_coord = COPY_STRUCT(cut(coord, (size_t)p->axes, 1, 0, keys));
    }
    double *dout = COPY_STRUCT(cut(p->dout, H, D, from, n)),
           *dlse = COPY_STRUCT(cut(p->dlse, H, 1, from, n));
    loci_grad g = LOCI_GRAD(.dout = { dout, 0, 0, 0 }, .dlse = dlse, .dq = { dq, 0, 0, 0 },
                            .dk = { dk, 0, 0, 0 }, .dv = { dv, 0, 0, 0 }, .dtensors = dtensors);
    bool ok;
    if (reference) {
        ok = !loci_reference(plan, (const void *const *)tensors, &c, &g);
    } else {
        void *tables = COPY_STRUCT(mem_block(loci_tables_size(plan, L))),
             *work = COPY_STRUCT(mem_block(loci_workspace(plan, &c, 1)));
        ok = !loci_prepare(plan, L, (const void *const *)tensors, tables)
          && !loci_forward(plan, tables, work, &c) && !loci_backward(plan, tables, work, &c, &g);
    }
    if (!ok) CHECK_FAILED("%s: %s", p->text, e.text);
    add(to->o, o, H, D, from, n);
    add(to->lse, lse, H, 1, from, n);
    add(to->dq, dq, H, D, from, n);
    add(to->dk, dk, G, D, 0, keys);
    add(to->dv, dv, G, D, 0, keys);
    for (int i = 0; i < p->tensors; i++) {
        struct layout at;
        if (!dtensors[i]) continue;
        if (rows_of(p, i, &at))
            add(to->data[i], dtensors[i], at.outer, at.inner, at.queries ? from : 0,
                at.queries ? n : keys);
        else
            for (size_t k = 0; k < p->size[i]; k++) to->data[i][k] += ((double *)dtensors[i])[k];
    }
    while (blocks) free(block[--blocks]);
    loci_plan_destroy(plan);
    return ok;
}

static void open_sums(const struct problem *p, struct sums *s)
{
    s->o = zeros(H * L * (size_t)p->D);
    s->lse = zeros(H * L);
    s->dq = zeros(H * L * (size_t)p->D);
    s->dk = zeros(G * L * (size_t)p->D);
    s->dv = zeros(G * L * (size_t)p->D);
    for (int i = 0; i < p->tensors; i++) s->data[i] = zeros(p->size[i]);
}
static void close_sums(const struct problem *p, struct sums *s)
{
    free(s->o);
    free(s->lse);
    free(s->dq);
    free(s->dk);
    free(s->dv);
    for (int i = 0; i < p->tensors; i++) free(s->data[i]);
}

static void compare(const struct problem *p, const char *how, const char *name, const double *got,
                    const double *want, size_t n)
{
    double most = 0, off = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs(want[i]));
        const double d = got[i] == want[i] ? 0 : fabs(got[i] - want[i]);
        off = fmax(off, isnan(d) ? INFINITY : d);
    }
    CHECK_THAT(off <= 1e-11 * (1 + most), "%s, %s: %s is off by %.1e", p->text, how, name, off);
}
static void compare_all(const struct problem *p, const char *how, const struct sums *got,
                        const struct sums *want)
{
    const size_t rows = H * L, D = (size_t)p->D;
    compare(p, how, "o", got->o, want->o, rows * D);
    compare(p, how, "lse", got->lse, want->lse, rows);
    compare(p, how, "dq", got->dq, want->dq, rows * D);
    compare(p, how, "dk", got->dk, want->dk, G * L * D);
    compare(p, how, "dv", got->dv, want->dv, G * L * D);
    for (int i = 0; i < p->tensors; i++)
        if (p->tensor[i].role != LOCI_FIXED)
            compare(p, how, p->tensor[i].name, got->data[i], want->data[i], p->size[i]);
}

static bool make(struct problem *p)
{
    const loci_desc d = LOCI_DESC(.encoding = p->text, .heads = H, .kv_heads = G, .dim = p->D,
                                  .dtype = LOCI_F64, .full = 1, .max_len = L);
    loci_plan *plan;
    loci_error e;
    if (loci_plan_create(&plan, &d, &e)) {
        CHECK_FAILED("%s: %s", p->text, e.text);
        return false;
    }
    const size_t D = (size_t)p->D;
    p->axes = loci_axes(plan);
    p->q = numbers(H * L * D);
    p->k = numbers(G * L * D);
    p->v = numbers(G * L * D);
    p->dout = numbers(H * L * D);
    p->dlse = numbers(H * L);
    p->coord = zeros((size_t)p->axes * L);
    for (int i = 0; i < p->axes * L; i++) p->coord[i] = p->axes > 1 ? walk_coordinate(30) : i;
    p->tensors = loci_tensors(plan, p->tensor, WALK_TENSORS);
    for (int i = 0; i < p->tensors; i++) {
        p->size[i] = walk_count(&p->tensor[i], 1, L, L);
        p->data[i] = numbers(p->size[i]);
        double *start = zeros(p->size[i]);
        if (p->tensor[i].role != LOCI_INPUT) loci_tensor_init(plan, i, 1, start);
        for (size_t n = 0; n < p->size[i]; n++)
            p->data[i][n] = start[n] + 0.1 + 0.2 * (1 + p->data[i][n]);
        free(start);
    }
    loci_plan_destroy(plan);
    return true;
}

/* Does the encoding use positions only to rotate? */
static bool only_turns(const char *text)
{
    const loci_encoding_info *list;
    const int count = loci_encodings(&list);
    for (; text; text = strchr(text, '+') ? strchr(text, '+') + 1 : NULL)
        for (int i = 0; i < count; i++)
            if (strcspn(text, ":+") == strlen(list[i].name)
                && !strncmp(text, list[i].name, strlen(list[i].name))
                && ((list[i].places & ~(LOCI_PLACE_ROTATE | LOCI_PLACE_SUM))
                    || !strcmp(list[i].name, "xpos")))
                return false;
    return true;
}

static void check(const char *text)
{
    struct problem p = { .text = text, .D = walk_dim(text, 6) };
    struct sums want, got, once;
    int64_t pos[L], until[L];
    walk_restart(21);
    if (!make(&p)) return;
    open_sums(&p, &want);
    open_sums(&p, &got);
    open_sums(&p, &once);
    for (int i = 0; i < L; i++) {
        pos[i] = i;
        until[i] = i < PREFIX ? PREFIX - 1 : i;
    }
    const double *coord = p.axes > 1 ? p.coord : NULL;
    bool ok = true;
    for (int i = 0; i < L && ok; i++)
        ok = run(&p, true, true, i, 1, i < PREFIX ? PREFIX : i + 1, pos + i, pos, coord, &want);
    if (ok && run(&p, false, true, 0, PREFIX, PREFIX, NULL, NULL, coord, &got)
        && run(&p, false, false, PREFIX, L - PREFIX, L, NULL, NULL, coord, &got))
        compare_all(&p, "two calls", &got, &want);
    if (ok && only_turns(text) && run(&p, false, false, 0, L, L, until, pos, p.coord, &once))
        compare_all(&p, "one call", &once, &want);
    close_sums(&p, &want);
    close_sums(&p, &got);
    close_sums(&p, &once);
    free(p.q);
    free(p.k);
    free(p.v);
    free(p.dout);
    free(p.dlse);
    free(p.coord);
    for (int i = 0; i < p.tensors; i++) free(p.data[i]);
}

int main(int argc, char **argv)
{
    walk_only(argc, argv);
    for (struct walk_text t = { 0 }; walk_next(&t);)
        if (!walk_causal_only(t.text)) check(t.text);
    return harness_end();
}
