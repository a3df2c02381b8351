/* SPDX-License-Identifier: MIT */
/* layer.c -- checks and threads of the functions of loci/layers.h.  These have no plan and no
 * workspace.  Each gets its shapes with the call and processes pieces of rows on the stack. */
#include "layers/layer.h"

#include <stdatomic.h>

/* More than any model has.  With the limit of 2^48 on the number of elements, these keep every
 * offset exact. */
enum { MAX_LAYER_HEADS = 65536, MAX_LAYER_WIDTH = 1 << 20 };

loci_status loci_layer_open(loci_layer *l, const loci_layer *given)
{
    if (!given) return LOCI_BAD_ARG;
    TRY(COPY_STRUCT(loci_layer, l, given, error, false, given->error));
    CHECK(l->error, l->dtype == LOCI_F32 || l->dtype == LOCI_F64,
          l->dtype == LOCI_BF16 || l->dtype == LOCI_F16 ? LOCI_UNSUPPORTED : LOCI_BAD_ARG,
          "layers: dtype %d must be LOCI_F32 or LOCI_F64", (int)l->dtype);
    CHECK(l->error, l->heads >= 1 && l->heads <= MAX_LAYER_HEADS, LOCI_BAD_ARG,
          "heads %d must be from 1 to %d", l->heads, MAX_LAYER_HEADS);
    CHECK(l->error, l->width >= 1 && l->width <= MAX_LAYER_WIDTH, LOCI_BAD_ARG,
          "width %d must be from 1 to %d", l->width, MAX_LAYER_WIDTH);
    /* An extent of 0 must not hide that the others are too large together. */
    ptrdiff_t n = (ptrdiff_t)l->heads * l->width;
    CHECK(l->error,
          l->batch >= 0 && l->rows >= 0 && !__builtin_mul_overflow(n, l->rows ? l->rows : 1, &n)
              && !__builtin_mul_overflow(n, l->batch ? l->batch : 1, &n) && n < MOST_NUMBERS,
          LOCI_BAD_ARG, "batch %td and rows %td must not be negative or too large together",
          l->batch, l->rows);
    CHECK(l->error, !l->host || !l->host->run || l->host->threads >= 1, LOCI_BAD_ARG,
          "host: threads %d must be at least 1", l->host->threads);
    return LOCI_OK;
}

/* How a view may overlap others.  A backward function reads its inputs more than once, so no output
 * may be an input there. */
static enum use_of use_of(const struct layer_view *v, bool backward)
{
    return v->use == LAYER_OUTPUT || v->use == LAYER_GRADIENT ? WRITTEN
         : v->use == LAYER_SAVED || backward                  ? READ
                                                              : REPLACED;
}
/* A function is a backward function if its views include gradients. */
loci_status loci_layer_check(const loci_layer *l, const struct layer_view *views, int n,
                             const struct layer_list *lists, int m)
{
    const size_t real = l->dtype == LOCI_F64 ? sizeof(double) : sizeof(float);
    struct regions r;
    r.n = 0;
    bool backward = false;
    for (int i = 0; i < n; i++) backward |= views[i].use == LAYER_GRADIENT;
    for (int i = 0; i < n; i++) {
        const struct layer_view *v = &views[i];
        /* Gates of tape belong to no head, so their view has one head. */
        const int heads = v->heads ? v->heads : l->heads;
        TRY(loci_spell_out(v->view, v->name, l->batch, heads, l->rows, v->width, l->error));
        CHECK(l->error, v->view->data || v->use == LAYER_GRADIENT || !l->batch || !l->rows,
              LOCI_BAD_ARG, "%s must not be NULL", v->name);
        loci_add_view(&r, v->name, v->view, l->batch, heads, l->rows, v->width, real,
                      use_of(v, backward));
    }
    for (int i = 0; i < m; i++)
        loci_add_list(&r, lists[i].name, lists[i].data, (size_t)lists[i].count,
                      lists[i].type == LIST_REAL ? real : sizeof(int64_t), lists[i].use);
    return loci_check_regions(&r, l->error);
}

/* What the work items share.  `stop` is set after the host has cancelled. */
struct work {
    const loci_layer *layer;
    void (*head)(void *arg, int h);
    void *arg;
    atomic_bool stop;
};
/* Asks the host before each item.  Completed items stay written. */
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
