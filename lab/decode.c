/* SPDX-License-Identifier: MIT */
/* decode.c -- see decode.h.
 *
 * The layers are those of model.c and mix.c, on batches of one row.  Only attention differs, which
 * appends to a cache and reads it, and a shift, which remembers the token before. */
#include "lab/decode.h"

#include <stdlib.h>
#include <string.h>

#include "lab/inside.h"
#include "loci/cache.h"

loci_status lab_decode_begin(struct lab_model *m, int capacity, loci_error *e)
{
    struct lab_decoder *d = lab_alloc(1, sizeof *d);
    m->decoder = d;
    d->cache = lab_alloc((size_t)m->shape.layers, sizeof *d->cache);
    d->memory = lab_alloc((size_t)m->shape.layers, sizeof *d->memory);
    d->last_k = lab_alloc((size_t)m->shape.layers * (size_t)m->shape.dim, m->real);
    d->last_v = lab_alloc((size_t)m->shape.layers * (size_t)m->shape.dim, m->real);
    d->sums = lab_alloc((size_t)(m->shape.layers * LAB_INPUTS * m->shape.dim), sizeof *d->sums);
    lab_batch_reserve(&d->batch, 1, 1);
    loci_status status = lab_model_view(
        m, (struct lab_view){ .change = m->as.change, .times = m->as.times, .cached = true }, e);
    if (!status)
        status = lab_encoding_prepare(m, m->arm.random ? m->arm.range : m->shape.longest, e);
    for (int l = 0; l < m->shape.layers && !status; l++) {
        const size_t bytes = loci_cache_size(m->view->attention, 1, capacity);
        if (!bytes)
            status = loci_fail(e, LOCI_UNSUPPORTED, "arm '%s' has no cache of %d keys", m->arm.text,
                               capacity);
        else {
            d->memory[l] = lab_alloc(bytes, 1);
            status = loci_cache_create(&d->cache[l], m->view->attention, 1, capacity, 0,
                                       d->memory[l], e);
        }
    }
    if (status) lab_decode_end(m);
    return status;
}

void lab_decode_end(struct lab_model *m)
{
    struct lab_decoder *d = m->decoder;
    if (!d) return;
    for (int l = 0; l < m->shape.layers; l++) free(d->memory[l]);
    free(d->memory);
    free(d->cache);
    free(d->last_k);
    free(d->last_v);
    free(d->sums);
    lab_batch_free(&d->batch);
    free(d);
    m->decoder = NULL;
    lab_model_view(m, (struct lab_view){ LAB_AS_TRAINED, 1, false }, NULL);
}

loci_status lab_decode(struct lab_model *m, int32_t token, int64_t pos, const void **logits,
                       int32_t *best, loci_error *e)
{
    struct lab_batch *b = &m->decoder->batch;
    double loss;
    ptrdiff_t stride;
    b->sequences = 1;
    b->rows = 1;
    b->scored = 0;
    b->starts[0] = 0;
    b->starts[1] = 1;
    b->token[0] = token;
    b->target[0] = -1;
    b->pos[0] = pos;
    b->seg[0] = 0;
    TRY(lab_model_forward(m, b, true, best ? &loss : NULL, best, e));
    if (logits) *logits = lab_model_logits(m, &stride);
    return LOCI_OK;
}

double *lab_decode_sums(const struct lab_model *m, int layer, int i)
{
    return m->decoder->sums + (ptrdiff_t)(layer * LAB_INPUTS + i) * m->shape.dim;
}

/* Attention of a layer, whose call has only the new row. */
loci_status lab_decode_attend(struct lab_model *m, int layer, loci_call *call)
{
    struct loci_cache *cache = m->decoder->cache[layer];
    const loci_plan *plan = m->view->attention;
    call->q_starts = call->k_starts = NULL;
    call->sequences = 0;
    call->cache = cache;
    lab_grow(m, &m->work, &m->work_bytes, loci_workspace(plan, call, 0));
    TRY(loci_cache_append(plan, m->view->tables[layer], m->work, cache, call));
    if (m->own[layer][OWN_BIAS] >= 0) {
        lab_add_bias(m, layer, (ptrdiff_t)m->decoder->batch.pos[0], call);
        lab_grow(m, &m->work, &m->work_bytes, loci_workspace(plan, call, 0));
    }
    return loci_forward(plan, m->view->tables[layer], m->work, call);
}
