/* SPDX-License-Identifier: MIT */
/* layer.c -- checks and threads of the functions of loci/layers.h. */
#include "layers/layer.h"

#include <stdatomic.h>

enum { MAX_LAYER_HEADS = 65536, MAX_LAYER_WIDTH = 1 << 20 };

static loci_status check_view(const loci_layer *l, const struct layer_view *a)
{
    loci_view *v = a->view;
    if (!v->batch && !v->head && !v->row) *v = (loci_view){ v->data, l->heads * l->rows * a->width, l->rows * a->width, a->width };
    if (!v->data) {
        CHECK(l->error, a->use == LAYER_GRADIENT || !l->batch || !l->rows, LOCI_BAD_ARG, "%s must not be NULL", a->name);
        return LOCI_OK;
    }
    const ptrdiff_t most = (ptrdiff_t)1 << 48;
    ptrdiff_t last = a->width, step;
    const ptrdiff_t n[] = { l->batch, l->heads, l->rows }, stride[] = { v->batch, v->head, v->row };
    for (int i = 0; i < COUNT(n); i++) {
        CHECK(l->error, stride[i] >= 0 && (n[i] == 0 || !__builtin_mul_overflow(n[i] - 1, stride[i], &step)) && (n[i] == 0 || step < most),
              LOCI_BAD_ARG, "%s: strides %td, %td, %td are negative or reach too far", a->name, v->batch, v->head, v->row);
        if (n[i]) last += step;
        CHECK(l->error, a->use == LAYER_INPUT || n[i] < 2 || !l->batch || !l->rows || stride[i] >= a->width, LOCI_BAD_ARG,
              "%s: strides %td, %td, %td let rows of an output overlap", a->name, v->batch, v->head, v->row);
    }
    CHECK(l->error, last < most, LOCI_BAD_ARG, "%s: strides %td, %td, %td reach too far", a->name, v->batch, v->head, v->row);
    const size_t real = l->dtype == LOCI_F64 ? sizeof(double) : sizeof(float);
    CHECK(l->error, (uintptr_t)v->data % real == 0, LOCI_BAD_ARG, "%s must start on a multiple of %zu bytes", a->name, real);
    return LOCI_OK;
}

loci_status loci_layer_check(const loci_layer *l, const struct layer_view *list, int count)
{
    if (!l) return LOCI_BAD_ARG;
    CHECK(l->error, l->size == 0 || l->size == sizeof *l, LOCI_BAD_ARG, "loci_layer: size %zu must be 0 or %zu", l->size, sizeof *l);
    CHECK(l->error, l->dtype == LOCI_F32 || l->dtype == LOCI_F64, l->dtype == LOCI_BF16 || l->dtype == LOCI_F16 ? LOCI_UNSUPPORTED : LOCI_BAD_ARG,
          "layers: dtype %d is neither LOCI_F32 nor LOCI_F64", (int)l->dtype);
    CHECK(l->error, l->heads >= 1 && l->heads <= MAX_LAYER_HEADS, LOCI_BAD_ARG, "heads %d must be from 1 to %d", l->heads, MAX_LAYER_HEADS);
    CHECK(l->error, l->width >= 1 && l->width <= MAX_LAYER_WIDTH, LOCI_BAD_ARG, "width %d must be from 1 to %d", l->width, MAX_LAYER_WIDTH);
    ptrdiff_t n = (ptrdiff_t)l->heads * l->width;
    CHECK(l->error, l->batch >= 0 && l->rows >= 0 && !__builtin_mul_overflow(n, l->rows ? l->rows : 1, &n)
          && !__builtin_mul_overflow(n, l->batch ? l->batch : 1, &n) && n < (ptrdiff_t)1 << 48, LOCI_BAD_ARG,
          "batch %td and rows %td must not be negative, nor too large together", l->batch, l->rows);
    CHECK(l->error, !l->host || !l->host->run || l->host->threads >= 1, LOCI_BAD_ARG, "host: threads %d must be at least 1", l->host->threads);
    for (int i = 0; i < count; i++) {
        const loci_status status = check_view(l, &list[i]);
        if (status) return status;
    }
    return LOCI_OK;
}

loci_status loci_layer_apart(const loci_layer *l, loci_view out, const char *name, loci_view in, const char *from)
{
    CHECK(l->error, !out.data || out.data != in.data, LOCI_BAD_ARG, "%s must not be %s: it is written while that is still read", name, from);
    return LOCI_OK;
}

struct work { const loci_layer *layer; void (*head)(void *arg, int h); void *arg; atomic_bool stop; };
static void job(void *arg, int h)
{
    struct work *w = arg;
    const loci_host *host = w->layer->host;
    if (host && host->cancelled && host->cancelled(host->user)) w->stop = true;
    if (!w->stop) w->head(w->arg, h);
}
loci_status loci_layer_run(const loci_layer *l, void (*head)(void *arg, int h), void *arg)
{
    struct work w = { .layer = l, .head = head, .arg = arg };
    if (l->host && l->host->run && l->heads > 1) l->host->run(l->host->user, l->heads, job, &w);
    else
        for (int h = 0; h < l->heads; h++) job(&w, h);
    return w.stop ? loci_fail(l->error, LOCI_CANCELLED, "cancelled by the host") : LOCI_OK;
}
