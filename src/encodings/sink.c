/* SPDX-License-Identifier: MIT */
/* sink.c -- a learned logit per head that is part of the softmax and has no value, as in
 * gpt-oss.
 *
 *     w_ij = e^S_ij / (e^logit[h] + sum_k e^S_ik)       lse_i = log(e^logit[h] + sum_k e^S_ik)
 *
 * So the weights of a row may sum to less than 1.  A logit of 0 is the softmax with 1
 * added to its sum, one of -inf the plain softmax.  A row that sees no key has o 0
 * and the logit as its lse. */
#include "contract/encoding.h"
#include "layout/sink.h"

static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_tensor(t, c, "logit", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(c->heads));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_sink, GROUP_SINK);
}

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range;
    return (size_t)c->heads * real;
}
static void prepare(const struct prep *p)
{
    for (int h = 0; h < p->cfg->heads; h++) put(p, sink_at(h), param(p, 0, h));
}
static void fold(const struct prep *p)
{
    for (int h = 0; h < p->cfg->heads && p->dtensor[0]; h++)
        p->dtensor[0][h] += p->dtable[0][sink_at(h)];
}

const struct loci_pe loci_pe_sink = {
    .name = "sink",
    .cite = "OpenAI, gpt-oss, 2025",
    .brief = "a learned logit per head is added to the softmax sum; it has no value",
    .example = "sink",
    .places = LOCI_PLACE_SUM,
    .neutral = true,
    .tol = 2e-6,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
