/* SPDX-License-Identifier: MIT */
/* attend.c -- see attend.h. */
#include "attend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/reference.h"

static size_t real(const struct attend *a)
{
    return a->desc.dtype == LOCI_F64 ? sizeof(double) : sizeof(float);
}

static void put(const struct attend *a, void *to, ptrdiff_t i, double x)
{
    if (a->desc.dtype == LOCI_F64) ((double *)to)[i] = x;
    else ((float *)to)[i] = (float)x;
}

static void *given(struct attend *a, const double *x, ptrdiff_t n)
{
    void *to = mem_alloc(&a->mem, (size_t)n * real(a));
    for (ptrdiff_t i = 0; i < n; i++) put(a, to, i, x ? x[i] : (float)walk_uniform());
    return to;
}

static double *widened(struct attend *a, const void *x, ptrdiff_t n)
{
    double *to = mem_alloc(&a->mem, (size_t)n * sizeof *to);
    for (ptrdiff_t i = 0; i < n; i++)
        to[i] = a->desc.dtype == LOCI_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
    return to;
}

static void need(const struct attend *a, loci_status status, const loci_error *e)
{
    if (!status) return;
    printf("%s: %s\n", a->desc.encoding, e->text);
    exit(1);
}

static void *tensor(struct attend *a, const loci_plan *plan, int which, const loci_tensor *t,
                    ptrdiff_t *count)
{
    const ptrdiff_t n = (ptrdiff_t)walk_count(t, 1, a->q_len, a->k_len);
    void *to = mem_alloc(&a->mem, (size_t)n * real(a));
    memset(to, 0, (size_t)n * real(a));
    if (!a->fill && t->role != LOCI_INPUT) loci_tensor_init(plan, which, 1, to);
    for (ptrdiff_t i = 0; i < n; i++) {
        const double start =
            a->desc.dtype == LOCI_F64 ? ((double *)to)[i] : (double)((float *)to)[i];
        put(a, to, i,
            a->fill                 ? a->fill(t->encoding, t, i)
            : t->role == LOCI_INPUT ? -0.1 * (1.1 + walk_uniform())
                                    : start + 0.1 * walk_uniform());
    }
    *count = n;
    return to;
}

void attend(struct attend *a)
{
    loci_error e = { 0 };
    loci_plan *plan;
    need(a, loci_plan_create(&plan, &a->desc, &e), &e);
    const loci_desc *d = &a->desc;
    const int kv_heads = d->kv_heads ? d->kv_heads : d->heads,
              value_dim = d->value_dim ? d->value_dim : d->dim;
    const ptrdiff_t rows = d->heads * a->q_len, keys = kv_heads * a->k_len;
    walk_restart(a->seed);
    loci_call c = LOCI_CALL(.batch = 1, .q_len = a->q_len, .k_len = a->k_len, .q_pos = a->q_pos,
                            .k_pos = a->k_pos, .q_coord = a->q_coord, .k_coord = a->k_coord,
                            .host = a->host, .error = &e);
    c.q.data = given(a, a->q, rows * d->dim);
    c.k.data = given(a, a->k, keys * d->dim);
    c.v.data = given(a, a->v, keys * value_dim);
    loci_grad g = LOCI_GRAD(.dout = { given(a, NULL, rows * value_dim), 0, 0, 0 });
    c.o.data = mem_alloc(&a->mem, (size_t)(rows * value_dim) * real(a));
    g.dq.data = mem_alloc(&a->mem, (size_t)(rows * d->dim) * real(a));
    g.dk.data = mem_alloc(&a->mem, (size_t)(keys * d->dim) * real(a));
    g.dv.data = mem_alloc(&a->mem, (size_t)(keys * value_dim) * real(a));

    loci_tensor list[WALK_TENSORS];
    const int n = loci_tensors(plan, list, WALK_TENSORS);
    void *data[WALK_TENSORS], *ddata[WALK_TENSORS];
    ptrdiff_t count[WALK_TENSORS];
    for (int i = 0; i < n; i++) {
        data[i] = tensor(a, plan, i, &list[i], &count[i]);
        ddata[i] =
            list[i].role == LOCI_FIXED ? NULL : mem_alloc(&a->mem, (size_t)count[i] * real(a));
    }
    c.tensors = (const void *const *)data;
    g.dtensors = ddata;
    ptrdiff_t range = a->q_len + a->k_len;
    for (ptrdiff_t i = 0; a->q_pos && i < a->q_len; i++)
        for (ptrdiff_t j = 0; j < a->k_len; j++)
            if (llabs(a->q_pos[i] - a->k_pos[j]) > range) range = llabs(a->q_pos[i] - a->k_pos[j]);
    void *tables = mem_alloc(&a->mem, loci_tables_size(plan, range));
    need(a, loci_prepare(plan, range, c.tensors, tables), &e);

    void *row = mem_alloc(&a->mem, (size_t)rows * real(a));
    bool stick = false;
    for (const char *at = d->encoding; at; at = strchr(at, '+') ? strchr(at, '+') + 1 : NULL)
        stick |= !strncmp(at, "sba", 3);
    if (stick) c.rem = row;
    else c.lse = row;
    void *work = mem_alloc(&a->mem, loci_workspace(plan, &c, 1));
    if (a->reference) need(a, loci_reference(plan, c.tensors, &c, &g), &e);
    else {
        need(a, loci_forward(plan, tables, work, &c), &e);
        need(a, loci_backward(plan, tables, work, &c, &g), &e);
    }
    a->o = widened(a, c.o.data, rows * value_dim);
    a->rows = widened(a, row, rows);
    a->dq = widened(a, g.dq.data, rows * d->dim);
    a->dk = widened(a, g.dk.data, keys * d->dim);
    a->dv = widened(a, g.dv.data, keys * value_dim);
    for (int i = 0; i < n; i++) a->dtensor[i] = ddata[i] ? widened(a, ddata[i], count[i]) : NULL;
    loci_plan_destroy(plan);
}

void attend_free(struct attend *a) { mem_release(&a->mem, 0); }

double attend_bias(const char *encoding, int heads, int head, int64_t q_pos, int64_t k_pos,
                   attend_fill *fill)
{
    static const double zero[64];
    struct attend a = { .desc = LOCI_DESC(.encoding = encoding, .heads = heads, .dim = 1,
                                          .dtype = LOCI_F64, .full = k_pos > q_pos),
                        .q_len = 1,
                        .k_len = 1,
                        .q = zero,
                        .k = zero,
                        .q_pos = &q_pos,
                        .k_pos = &k_pos,
                        .fill = fill };
    attend(&a);
    const double bias = a.rows[head];
    attend_free(&a);
    return bias;
}

double attend_apart(const double *a, const double *b, ptrdiff_t n, bool relative)
{
    double most = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (a[i] == b[i] || (isnan(a[i]) && isnan(b[i]))) continue;
        const double d = fabs(a[i] - b[i]) / (relative ? 1 + fabs(b[i]) : 1);
        most = fmax(most, isnan(d) ? INFINITY : d);
    }
    return most;
}
