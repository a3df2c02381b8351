/* SPDX-License-Identifier: MIT */
/* attention.c -- the public calls of attention, forward and backward. */
#include "cache.h"
#include "call.h"

/* One of reals, in the workspace. */
static loci_view dense(void *data, ptrdiff_t H, ptrdiff_t L, ptrdiff_t width)
{
    return (loci_view){ .data = data, .batch = H * L * width, .head = L * width, .row = width };
}

/* Does a ring still hold all that the rows see? */
static loci_status check_ring(const struct call *c)
{
    for (ptrdiff_t b = 0; b < c->B && c->cache && c->cache->form.ring; b++) {
        const int64_t len = cache_list(c->cache, c->cache->len)[b], oldest = cache_oldest(c->cache, b);
        CHECK(c->in->error, oldest == 0 || len - c->Lq - c->plan->window_left >= oldest, LOCI_BAD_ARG,
              "the ring holds keys from %lld on, and the first of %td rows sees one before", (long long)oldest, c->Lq);
    }
    return LOCI_OK;
}

/* Pages that are in use must be numbers of pages: then there are `entries` of `length` keys. */
static loci_status check_pages(const struct call *c, ptrdiff_t *entries, ptrdiff_t *length)
{
    const loci_pages *p = c->in->pages;
    loci_error *e = c->in->error;
    CHECK(e, p->length >= 1, LOCI_BAD_ARG, "pages: length %td must be at least 1", p->length);
    CHECK(e, p->table || !c->B || !c->Lk, LOCI_BAD_ARG, "pages: table must not be NULL");
    *entries = 0, *length = p->length;
    for (ptrdiff_t b = 0; b < c->B; b++) {
        const ptrdiff_t n = tiles(keys_in(c, b), p->length);
        CHECK(e, n == 0 || c->B == 1 || p->entry >= n, LOCI_BAD_ARG, "pages: entry %td is less than the %td pages of batch entry %td", p->entry, n, b);
        for (ptrdiff_t i = 0; i < n; i++) {
            const int32_t page = p->table[b * p->entry + i];
            CHECK(e, page >= 0, LOCI_BAD_ARG, "pages: page %td of batch entry %td is %d, which is no page", i, b, (int)page);
            if (page >= *entries) *entries = (ptrdiff_t)page + 1;
        }
    }
    return LOCI_OK;
}
static loci_status open_keys(struct call *c, loci_view *to, const loci_view *from, const char *name, ptrdiff_t width, ptrdiff_t entries, ptrdiff_t length)
{
    struct call pages = *c;
    pages.B = entries;
    return loci_open_view(&pages, to, from, name, c->plan->kv_heads, length, width, false);
}

loci_status loci_open_attention(struct call *c, const loci_plan *p, loci_stage stage, const void *tables, void *work, const loci_call *in,
                                bool backward, ptrdiff_t past)
{
    CHECK(in->error, loci_plan_is(p, stage), LOCI_BAD_ARG, "the plan must be one for stage %s",
          stage == LOCI_ATTENTION ? "ATTENTION" : "LINEAR_ATTENTION");
    TRY(loci_open_call(c, p, in, backward));
    c->linear.past = past;
    TRY(loci_open_view(c, &c->q, &in->q, "q", p->heads, c->Lq, p->dim, false));
    ptrdiff_t entries = c->B, length = c->Lk;                        /* of k and v: as they lie in memory */
    CHECK(in->error, stage == LOCI_ATTENTION || (!in->pages && !in->cache && !in->k_lens), LOCI_BAD_ARG,
          "linear attention keeps a state: it takes no pages, no k_lens and no cache");
    CHECK(in->error, !backward || (!in->pages && !in->cache), LOCI_BAD_ARG, "gradients need keys and values in one piece: no pages and no cache");
    if (in->pages) TRY(check_pages(c, &entries, &length));
    if (!c->cache) {
        TRY(open_keys(c, &c->k, &in->k, "k", p->dim, entries, length));
        TRY(open_keys(c, &c->v, &in->v, "v", p->value_dim, entries, length));
    }
    TRY(check_ring(c));
    TRY(loci_open_view(c, &c->o, &in->o, "o", p->heads, c->Lq, p->value_dim, true));
    const bool rows = c->B && c->Lq, keys = c->B && c->Lk && !c->cache;
    if (rows) { TRY(loci_need(c, c->q.data, "q")); TRY(loci_need(c, c->o.data, "o")); }
    if (keys) { TRY(loci_need(c, c->k.data, "k")); TRY(loci_need(c, c->v.data, "v")); }
    CHECK(in->error, !in->ae || p->states, LOCI_BAD_ARG, "ae: the encoding has no states whose average it could be");
    loci_view ae = { .data = in->ae };
    TRY(loci_open_view(c, &ae, &ae, "ae", p->heads, c->Lq, p->dim, true));
    CHECK(in->error, p->axes == 1 || (in->q_coord && (in->k_coord || c->cache)), LOCI_BAD_ARG, "q_coord and k_coord must be given: the encoding has %d axes", p->axes);
    if (!backward) {
        const loci_view *from[] = { &c->q, &c->k, &c->v };
        const ptrdiff_t B[] = { c->B, entries, entries }, H[] = { p->heads, p->kv_heads, p->kv_heads }, L[] = { c->Lq, length, length };
        const ptrdiff_t W[] = { p->dim, p->dim, p->value_dim };
        for (int i = 0; i < 3; i++) {
            CHECK(in->error, !loci_meet(c, &c->o, p->heads, c->Lq, p->value_dim, p->stored, from[i], B[i], H[i], L[i], W[i]), LOCI_BAD_ARG,
                  "o must not overlap q, k or v");
            CHECK(in->error, !loci_meet(c, &ae, p->heads, c->Lq, p->dim, p->real, from[i], B[i], H[i], L[i], W[i]), LOCI_BAD_ARG,
                  "ae must not overlap q, k or v");
        }
    }
    for (int e = 0; e < p->encs; e++) TRY(loci_check_inputs(c, e, 0));
    if (p->rotate >= 0) TRY(loci_check_coordinates(c));
    TRY(loci_open_tables(c, tables));
    TRY(loci_open_work(c, work, backward));
    TRY(loci_check_positions(c));
    for (int e = 0; e < p->encs; e++)
        if (p->enc[e].pe->accept) TRY(p->enc[e].pe->accept(c, e));
    return LOCI_OK;
}

loci_status loci_forward(const loci_plan *p, const void *tables, void *work, const loci_call *in)
{
    struct call c;
    if (!in) return LOCI_BAD_ARG;
    TRY(loci_open_attention(&c, p, LOCI_ATTENTION, tables, work, in, false, 0));
    if (!c.B || !c.Lq) return LOCI_OK;
    loci_begin(&c, true);
    const loci_status status = c.fast ? p->engine->fast(&c) : p->engine->forward(&c);
    return status ? loci_fail(in->error, status, "cancelled by the host") : LOCI_OK;
}

loci_status loci_backward(const loci_plan *p, const void *tables, void *work, const loci_call *in, const loci_grad *grad)
{
    struct call c;
    if (!in) return LOCI_BAD_ARG;
    TRY(loci_check_grad(in, grad));
    TRY(loci_open_attention(&c, p, LOCI_ATTENTION, tables, work, in, true, 0));
    c.grad = grad;
    TRY(loci_open_grad(&c));
    const bool stick = p->weight >= 0;
    CHECK(in->error, stick || !c.B || !c.Lq || in->lse, LOCI_BAD_ARG, "lse must be the one that loci_forward wrote");
    CHECK(in->error, !stick || !c.B || !c.Lq || in->rem, LOCI_BAD_ARG, "rem must be the one that loci_forward wrote");
    CHECK(in->error, !grad->dlse || !stick, LOCI_BAD_ARG, "dlse: these weights have no log of a sum");
    CHECK(in->error, !grad->drem || stick, LOCI_BAD_ARG, "drem: a softmax leaves no remainder");
    CHECK(in->error, !grad->dae || p->states, LOCI_BAD_ARG, "dae: the encoding has no states whose average it could be the gradient of");
    CHECK(in->error, !grad->dae || !c.B || !c.Lq || in->ae, LOCI_BAD_ARG, "ae must be the one that loci_forward wrote, as dae is given");
    loci_want(&c, grad->dtensors);
    const bool apart = p->stored != p->real;
    if (apart || p->key_heads != p->kv_heads) c.dk_out = c.dk, c.dk.data = NULL;
    if (!c.dk.data && (c.dk_out.data || (p->rotate >= 0 && c.total[p->rotate])))
        c.dk = dense(c.dk_sum, p->key_heads, c.Lk, p->dim);
    if (apart && c.dv.data) c.dv_out = c.dv, c.dv = dense(c.dv_sum, p->kv_heads, c.Lk, p->value_dim);
    loci_begin(&c, true);
    const loci_status status = p->engine->backward(&c);
    if (status) return loci_fail(in->error, status, "cancelled by the host");
    loci_fold(&c, grad->dtensors);
    p->engine->store_gradients(&c);
    return LOCI_OK;
}
