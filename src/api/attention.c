/* SPDX-License-Identifier: MIT */
/* attention.c -- the public calls of attention, forward and backward. */
#include "api/api.h"
#include "contract/cache.h"

/* A view of a dense array of reals in the workspace. */
static loci_view dense(void *data, ptrdiff_t H, ptrdiff_t L, ptrdiff_t width)
{
    return (loci_view){ .data = data, .batch = H * L * width, .head = L * width, .row = width };
}

/* Refuses a call whose first row sees keys that the ring has overwritten.  The first row reaches
 * furthest back. */
static loci_status check_ring(const struct call *c)
{
    for (ptrdiff_t b = 0; b < c->B && c->cache && c->cache->form.ring; b++) {
        const int64_t len = cache_list(c->cache, c->cache->len)[b],
                      oldest = cache_oldest(c->cache, b);
        CHECK(c->in->error, oldest == 0 || len - c->Lq - c->plan->window_left >= oldest,
              LOCI_BAD_ARG,
              "the ring contains keys from %lld on, but the first of %td rows sees an older one; "
              "use a larger capacity or fewer rows",
              (long long)oldest, c->Lq);
    }
    return LOCI_OK;
}

/* Checks the page table.  There are `entries` pages of `length` keys, up to the largest page number
 * in use.  Page numbers that no key needs are never read. */
static loci_status check_pages(const struct call *c, ptrdiff_t *entries, ptrdiff_t *length)
{
    const loci_pages *p = c->in->pages;
    loci_error *e = c->in->error;
    CHECK(e, p->length >= 1, LOCI_BAD_ARG, "pages: length %td must be at least 1", p->length);
    CHECK(e, p->table || !c->B || !c->Lk, LOCI_BAD_ARG, "pages: table must not be NULL");
    CHECK(e, (uintptr_t)p->table % alignment_of(sizeof *p->table) == 0, LOCI_BAD_ARG,
          "pages: table must be aligned to %zu bytes", alignment_of(sizeof *p->table));
    *entries = 0;
    *length = p->length;
    for (ptrdiff_t b = 0; b < c->B; b++) {
        const ptrdiff_t n = tiles(keys_in(c, b), p->length);
        CHECK(e, n == 0 || c->B == 1 || p->entry >= n, LOCI_BAD_ARG,
              "pages: entry %td is less than the %td pages of batch entry %td", p->entry, n, b);
        for (ptrdiff_t i = 0; i < n; i++) {
            const int32_t page = p->table[b * p->entry + i];
            CHECK(e, page >= 0, LOCI_BAD_ARG,
                  "pages: page %td of batch entry %td is %d, but must not be negative", i, b,
                  (int)page);
            if (page >= *entries) *entries = (ptrdiff_t)page + 1;
        }
    }
    return LOCI_OK;
}
/* Opens a view whose first stride steps from page to page, or from batch entry to batch entry
 * without pages. */
static loci_status open_keys(struct call *c, loci_view *to, const loci_view *from, const char *name,
                             loci_dtype dtype, ptrdiff_t width, ptrdiff_t entries, ptrdiff_t length)
{
    *to = *from;
    TRY(loci_spell_out(to, name, entries, c->plan->kv_heads, length, width, c->in->error));
    const ptrdiff_t strides[] = { to->batch, to->head, to->row };
    for (int i = 0; i < COUNT(strides) && dtype == LOCI_Q8_0; i++)
        CHECK(c->in->error, strides[i] % Q8_BLOCK == 0, LOCI_BAD_ARG,
              "%s: stride %td must be a multiple of the %d numbers of a block of q8_0", name,
              strides[i], Q8_BLOCK);
    return LOCI_OK;
}

/* The mask's stride over keys.  *width, the keys of a row, becomes the numbers from the first to
 * the last. */
static loci_status open_mask_key(struct call *c, ptrdiff_t *width)
{
    const ptrdiff_t key = c->in->mask_key, keys = *width;
    const loci_view *v = &c->in->mask;
    loci_error *e = c->in->error;
    CHECK(e, key >= 0 || key == LOCI_BROADCAST, LOCI_BAD_ARG,
          "mask_key %td must be 0 or more, or LOCI_BROADCAST", key);
    CHECK(e, key <= 1 || v->batch || v->head || v->row, LOCI_BAD_ARG,
          "mask: with mask_key %td the strides of batch, head and row must be given", key);
    c->mask_key = key == LOCI_BROADCAST ? 0 : key ? key : 1;
    if (keys && c->mask_key != 1)
        CHECK(e,
              !__builtin_mul_overflow(keys - 1, c->mask_key, width)
                  && !__builtin_add_overflow(*width, 1, width),
              LOCI_BAD_ARG, "mask_key %td is too large for %td keys", key, keys);
    return LOCI_OK;
}
/* Adds the mask to the memory that a call reads: all from its first to its last number if keys are
 * apart. */
static void add_mask(const struct call *c, struct regions *r, size_t each)
{
    const loci_view *m = &c->mask;
    const int heads = c->plan->heads;
    if (c->mask_key <= 1) {
        loci_add_view(r, "mask", m, c->B, heads, c->Lq,
                      c->mask_key ? c->mask_keys : c->mask_keys > 0, each, READ);
        return;
    }
    if (!c->B || !c->Lq || !c->mask_keys) return;
    const ptrdiff_t last = (c->B - 1) * m->batch + (heads - 1) * m->head + (c->Lq - 1) * m->row
                         + (c->mask_keys - 1) * c->mask_key;
    loci_add_list(r, "mask", m->data, (size_t)last + 1, each, READ);
}

/* Checks that this plan and these keys can have a mask, or k_first and k_last. */
static loci_status open_mask(struct call *c, loci_stage stage)
{
    const loci_call *in = c->in;
    loci_error *e = in->error;
    const struct loci_plan *p = c->plan;
    const bool mask = in->mask_kind != LOCI_NO_MASK;
    ptrdiff_t longest = c->cache ? 0 : c->Lk;
    CHECK(e, in->mask_kind >= LOCI_NO_MASK && in->mask_kind <= LOCI_MASK_ADDED, LOCI_BAD_ARG,
          "mask_kind %d must be LOCI_NO_MASK, LOCI_MASK_SEEN or LOCI_MASK_ADDED",
          (int)in->mask_kind);
    CHECK(e, mask || !in->mask.data, LOCI_BAD_ARG,
          "mask is given, so mask_kind must be LOCI_MASK_SEEN or LOCI_MASK_ADDED");
    CHECK(e, !in->k_first == !in->k_last, LOCI_BAD_ARG,
          "k_first and k_last must be given together");
    CHECK(e, mask || !in->mask_key, LOCI_BAD_ARG,
          "mask_key %td must be 0 unless mask_kind is LOCI_MASK_SEEN or LOCI_MASK_ADDED",
          in->mask_key);
    if (!mask && !in->k_first) return LOCI_OK;
    CHECK(e, stage == LOCI_ATTENTION, LOCI_UNSUPPORTED,
          "linear attention adds up keys for all later rows: mask, k_first and k_last must be "
          "NULL");
    CHECK(e, !c->cache || !c->cache->form.ring, LOCI_UNSUPPORTED,
          "a ring overwrites keys, so mask, k_first and k_last must be NULL: they count keys from "
          "the first");
    TRY(loci_check_near(in->k_first, (in->per_batch ? c->B : 1) * c->Lq, "k_first", e));
    TRY(loci_check_near(in->k_last, (in->per_batch ? c->B : 1) * c->Lq, "k_last", e));
    for (ptrdiff_t b = 0; b < c->B && c->cache; b++)
        if (keys_in(c, b) > longest) longest = keys_in(c, b);
    c->mask_keys = longest;
    if (!mask) return LOCI_OK;
    ptrdiff_t width = longest;
    TRY(open_mask_key(c, &width));
    TRY(loci_open_view(c, &c->mask, &in->mask, "mask", p->heads, c->Lq, width));
    CHECK(e, in->mask.data || !c->B || !c->Lq || !longest, LOCI_BAD_ARG,
          "mask must not be NULL unless mask_kind is LOCI_NO_MASK");
    CHECK(e, p->mix < 0 || p->heads == 1 || c->mask.head == 0, LOCI_UNSUPPORTED,
          "mask: the encoding mixes heads, which must see the same keys; its head stride must be "
          "LOCI_BROADCAST");
    return LOCI_OK;
}

/* Adds keys or values.  Blocks of q8_0 are 17 words of 16 bits in place of 32 numbers. */
static void add_keys(struct regions *r, const char *name, loci_dtype dtype, const loci_view *v,
                     ptrdiff_t entries, int heads, ptrdiff_t length, ptrdiff_t width)
{
    const ptrdiff_t words = Q8_BYTES / 2;
    if (dtype != LOCI_Q8_0) {
        loci_add_view(r, name, v, entries, heads, length, width, stored_size(dtype), READ);
        return;
    }
    const loci_view blocks = { v->data, v->batch / Q8_BLOCK * words, v->head / Q8_BLOCK * words,
                               v->row / Q8_BLOCK * words };
    loci_add_view(r, name, &blocks, entries, heads, length, width / Q8_BLOCK * words,
                  sizeof(uint16_t), READ);
}

/* No output may overlap anything else.  A backward pass reads what the forward pass wrote, so o,
 * lse, rem and ae are inputs there.  Keys and values are `entries` entries of `length` rows each.
 * The workspace and the tensors, which every call has, come last. */
static loci_status check_memory(const struct call *c, const void *tables, const void *work,
                                const struct opening *o, ptrdiff_t entries, ptrdiff_t length)
{
    const struct loci_plan *p = c->plan;
    const loci_call *in = c->in;
    const loci_grad *grad = o->grad;
    const enum use_of rows = grad ? READ : WRITTEN;
    /* Rows of all heads: lse, rem and ae have a number or a row for each.  loci_open_call() has
     * refused shapes whose products overflow. */
    const size_t n = (size_t)(c->B * c->Lq) * (size_t)p->heads, real = p->real, stored = p->stored;
    struct regions r;
    r.n = o->more ? o->more->n : 0;
    for (int i = 0; i < r.n; i++) r.list[i] = o->more->list[i];
    loci_add_view(&r, "o", &c->o, c->B, p->heads, c->Lq, p->value_dim, stored, rows);
    loci_add_list(&r, "lse", in->lse, n, real, rows);
    loci_add_list(&r, "rem", in->rem, n, real, rows);
    loci_add_list(&r, "ae", in->ae, n * (size_t)p->dim, real, rows);
    loci_add_view(&r, "q", &c->q, c->B, p->heads, c->Lq, p->dim, stored, READ);
    add_keys(&r, "k", p->k_dtype, &c->k, entries, p->kv_heads, length, key_dim(p));
    add_keys(&r, "v", p->v_dtype, &c->v, entries, p->kv_heads, length, p->value_dim);
    add_mask(c, &r, in->mask_kind == LOCI_MASK_SEEN ? 1 : real);
    if (grad) {
        loci_add_view(&r, "dout", &c->g.dout, c->B, p->heads, c->Lq, p->value_dim, stored, READ);
        loci_add_list(&r, "dlse", grad->dlse, n, real, READ);
        loci_add_list(&r, "drem", grad->drem, n, real, READ);
        loci_add_list(&r, "dae", grad->dae, n * (size_t)p->dim, real, READ);
        loci_add_view(&r, "dq", &c->g.dq, c->B, p->heads, c->Lq, p->dim, stored, WRITTEN);
        loci_add_view(&r, "dk", &c->g.dk, c->B, p->kv_heads, c->Lk, key_dim(p), stored, WRITTEN);
        loci_add_view(&r, "dv", &c->g.dv, c->B, p->kv_heads, c->Lk, p->value_dim, stored, WRITTEN);
        loci_add_view(&r, "dmask", &c->g.dmask, c->B, p->heads, c->Lq, c->Lk, real, WRITTEN);
    }
    /* The last entry of the table may be shorter than the stride between entries. */
    const loci_pages *pages = in->pages;
    if (pages && c->B)
        loci_add_list(&r, "pages", pages->table,
                      (size_t)((c->B - 1) * pages->entry
                               + tiles(keys_in(c, c->B - 1), pages->length)),
                      sizeof *pages->table, READ);
    if (c->cache) {
        loci_add_list(&r, "cache", c->cache, loci_cache_bytes(p, c->cache), 1, READ);
        loci_cache_add_there(p, c->cache, &r, READ);
    }
    loci_add_call(c, &r, tables, work);
    loci_add_tensors(c, &r, grad ? grad->dtensors : NULL);
    return loci_check_regions(&r, in->error);
}

/* Checks the caller's arrays.  The pass itself reads copies of them, which will be in another part
 * of the same workspace. */
static loci_status check_owned(const struct call *c, const void *tables, const struct opening *o)
{
    struct call own = *c;
    own.in = o->owned->in;
    own.k = o->owned->k;
    own.v = o->owned->v;
    own.g.dk = o->owned->dk;
    own.g.dv = o->owned->dv;
    own.Lk = own.in->k_len;
    own.mem.work_bytes = o->owned->work_bytes;
    return check_memory(&own, tables, o->owned->work, o, c->B, own.Lk);
}
static void place(struct call *c, const struct opening *o)
{
    c->where.from = o->from;
    c->stream.runs = o->runs;
    c->stream.run_count = o->run_count;
    c->stream.apart = o->apart;
    c->stream.chain = o->chain;
    c->stream.part.values = o->part.values;
    if (o->tiles) {
        c->decode = false;
        c->fast = c->plan->fast && !o->grad;
    }
    if (!o->keys) return;
    c->stream.keys = o->keys;
    c->stream.first = o->first;
    c->stream.part = o->part;
    c->stream.here = o->here;
    if (c->in->per_batch && !o->here) c->where.k_pos_entry = o->keys;
}
size_t loci_measure_attention(const loci_plan *p, const loci_call *in, const struct opening *o,
                              struct measured *measured)
{
    struct call c;
    if (loci_open_call(&c, p, in, false)) return 0;
    place(&c, o);
    measured->slot = p->engine->part_slot(&c);
    for (int e = 0; e < p->encs; e++) {
        const struct encoding_stream *stream = p->enc[e].pe->stream;
        measured->state[e] = stream && stream->state_size ? stream->state_size(&c, e) : 0;
    }
    const size_t bytes = loci_lay_out(&c, NULL, o->grad != NULL);
    if (o->chain.on) measured->chain = p->engine->chained->sizes(&c);
    measured->call = c;
    return bytes == SIZE_MAX || bytes > PTRDIFF_MAX ? 0 : bytes;
}

/* The order matters.  Shapes come first, because all later products rely on them.  Views, tensors,
 * the size of the workspace, positions and overlaps follow.  Only then is anything written, and
 * only to the workspace.  The rules of encodings come last, because they may need sequences and
 * positions from there.  A failed call does not change the outputs. */
loci_status loci_open_attention(struct call *c, const loci_plan *p, const void *tables, void *work,
                                const loci_call *in, const struct opening *o)
{
    const loci_stage stage = o->stage;
    const bool backward = o->grad != NULL;
    CHECK(in->error, loci_plan_is(p, stage), LOCI_BAD_ARG, "the plan must be one for stage %s",
          stage == LOCI_ATTENTION ? "ATTENTION" : "LINEAR_ATTENTION");
    TRY(loci_open_call(c, p, in, backward));
    if (c->cache) TRY(loci_cache_check(p, c->cache, o->there, in->error));
    place(c, o);
    TRY(loci_open_view(c, &c->q, &in->q, "q", p->heads, c->Lq, p->dim));
    /* How k and v are laid out: by batch entry, or by page. */
    ptrdiff_t entries = c->B, length = c->Lk;
    /* A state replaces all keys before this call, so there is nothing to look up. */
    CHECK(in->error, stage == LOCI_ATTENTION || (!in->pages && !in->cache && !in->k_lens),
          LOCI_BAD_ARG,
          "linear attention has a state instead of keys: pages, k_lens and cache must be NULL");
    CHECK(in->error, !backward || (!in->pages && !in->cache), LOCI_BAD_ARG,
          "gradients read k and v directly: pages and cache must be NULL");
    CHECK(in->error, !in->q_lens || (!backward && stage == LOCI_ATTENTION && !o->runs && !o->keys),
          LOCI_UNSUPPORTED,
          "q_lens must be NULL: only forward passes of attention in one process support it");
    CHECK(in->error, !backward || one_dtype(p), LOCI_UNSUPPORTED,
          "k_dtype and v_dtype must be 0: keys and values that are stored in another type than "
          "queries have no gradients");
    CHECK(in->error, !backward || !p->values_in_keys, LOCI_UNSUPPORTED,
          "values_in_keys must be 0: for gradients let the view v point to k");
    TRY(loci_check_values(p, in));
    if (in->pages) TRY(check_pages(c, &entries, &length));
    if (!c->cache) {
        TRY(loci_check_wide(p, &in->k, "k", length ? entries : 0, key_dim(p), in->error));
        TRY(open_keys(c, &c->k, &in->k, "k", p->k_dtype, key_dim(p), entries, length));
        if (p->values_in_keys) c->v = c->k;
        else TRY(open_keys(c, &c->v, &in->v, "v", p->v_dtype, p->value_dim, entries, length));
    }
    TRY(check_ring(c));
    TRY(open_mask(c, stage));
    TRY(loci_open_view(c, &c->o, &in->o, "o", p->heads, c->Lq, p->value_dim));
    if (backward) {
        c->grad = o->grad;
        TRY(loci_open_grad(c));
    }
    /* Without rows or keys the pointers may be NULL, because nothing is read. */
    const bool rows = c->B && c->Lq, keys = c->B && c->Lk && !c->cache;
    if (rows) {
        TRY(loci_require(c, c->q.data, "q"));
        TRY(loci_require(c, c->o.data, "o"));
    }
    if (keys) {
        TRY(loci_require(c, c->k.data, "k"));
        TRY(loci_require(c, c->v.data, "v"));
    }
    CHECK(in->error, !in->ae || p->states, LOCI_BAD_ARG,
          "ae must be NULL: it is an output of the encoding tape only");
    /* Positions stand in for coordinates on one axis only. */
    CHECK(in->error, p->axes == 1 || (in->q_coord && (in->k_coord || c->cache)), LOCI_BAD_ARG,
          "q_coord and k_coord must be given: the encoding has %d axes", p->axes);
    for (int e = 0; e < p->encs; e++) TRY(loci_check_inputs(c, e, 0));
    TRY(loci_open_tables(c, tables));
    TRY(loci_lay_out_workspace(c, work, o->lay_out ? o->lay_out : loci_lay_out, backward));
    TRY(o->owned ? check_owned(c, tables, o) : check_memory(c, tables, work, o, entries, length));
    loci_fill_workspace(c);
    TRY(loci_check_positions(c));
    for (int e = 0; e < p->encs; e++) TRY(loci_accept(c, e));
    return LOCI_OK;
}

/* After a call is opened it can fail only if the host cancels it. */
loci_status loci_forward(const loci_plan *p, const void *tables, void *work, const loci_call *given)
{
    struct call c;
    loci_call in;
    const struct opening opening = { .stage = LOCI_ATTENTION };
    TRY(loci_copy_call(&in, wants_sizes(p), given));
    TRY(loci_open_attention(&c, p, tables, work, &in, &opening));
    if (!c.B || !c.Lq) return LOCI_OK; /* no rows, no outputs */
    loci_begin(&c, true);
    const loci_status status = c.fast ? p->engine->fast(&c) : p->engine->forward(&c);
    return status ? loci_fail(in.error, status, "cancelled by the host") : LOCI_OK;
}

/* Checks what a backward pass needs from the forward pass.  Refuses gradients of outputs that this
 * plan does not have. */
loci_status loci_check_results(const struct call *c, const loci_grad *grad)
{
    const struct loci_plan *p = c->plan;
    const loci_call *in = c->in;
    /* The backward pass recomputes the weights of a softmax from lse.  That of sba starts at rem
     * drem. */
    const bool stick = p->weight >= 0, rows = c->B && c->Lq;
    CHECK(in->error, stick || !rows || in->lse, LOCI_BAD_ARG,
          "lse must not be NULL: it is the one that loci_forward() wrote");
    CHECK(in->error, !stick || !rows || in->rem, LOCI_BAD_ARG,
          "rem must not be NULL: it is the one that loci_forward() wrote");
    CHECK(in->error, !grad->dlse || !stick, LOCI_BAD_ARG, "dlse must be NULL: sba has no lse");
    CHECK(in->error, !grad->drem || stick, LOCI_BAD_ARG,
          "drem must be NULL: only sba has a remainder");
    CHECK(in->error, !grad->dae || p->states, LOCI_BAD_ARG,
          "dae must be NULL: only the encoding tape has ae");
    CHECK(in->error, !grad->dae || !rows || in->ae, LOCI_BAD_ARG,
          "ae must not be NULL if dae is given: it is the one that loci_forward() wrote");
    CHECK(in->error, !grad->dmask.data || in->mask_kind == LOCI_MASK_ADDED, LOCI_BAD_ARG,
          "dmask must be NULL unless mask_kind is LOCI_MASK_ADDED");
    return LOCI_OK;
}

void loci_sum_apart(struct call *c, bool dk, bool dv)
{
    const struct loci_plan *p = c->plan;
    if (dk || rotation_learns(c)) c->g.dk = dense(c->g.dk_sum, p->key_heads, c->Lk, p->score_dim);
    if (dv || (c->mem.turned && rotation_learns(c)))
        c->g.dv = dense(c->g.dv_sum, p->kv_heads, c->Lk, p->value_dim);
}

/* Numbers by row and key are 0 for invisible pairs, and no tile writes these. */
static void clear_pairs(const struct call *c, const loci_view *v)
{
    for (ptrdiff_t b = 0; b < c->B && v->data; b++)
        for (int h = 0; h < c->plan->heads; h++)
            for (ptrdiff_t i = 0; i < c->Lq; i++)
                memset((char *)v->data
                           + (size_t)(b * v->batch + h * v->head + i * v->row) * c->plan->real,
                       0, (size_t)c->Lk * c->plan->real);
}

loci_status loci_backward(const loci_plan *p, const void *tables, void *work,
                          const loci_call *given, const loci_grad *given_grad)
{
    struct call c;
    loci_call in;
    loci_grad wanted, *grad = &wanted;
    TRY(loci_copy_call(&in, wants_sizes(p), given));
    TRY(loci_copy_grad(grad, &in, wants_sizes(p), given_grad));
    TRY(loci_open_attention(&c, p, tables, work, &in,
                            &(struct opening){ .stage = LOCI_ATTENTION, .grad = grad }));
    TRY(loci_check_results(&c, grad));
    loci_want(&c, grad->dtensors);
    clear_pairs(&c, &c.g.dmask);
    /* Two kinds of gradients are summed as reals in the workspace and stored at the end: those
     * stored in 16 bits, and dk if query heads rotate a shared key in their own way or rows widen.
     * Rounding after each addition would lose small ones.  dk is also summed if only the rotation
     * learns from it. */
    const bool apart = p->stored != p->real;
    if (apart || sums_apart(p)) {
        c.g.dk_out = c.g.dk;
        c.g.dk.data = NULL;
    }
    if (!c.g.dk.data && (c.g.dk_out.data || rotation_learns(&c) || moves_learn(&c)))
        c.g.dk = dense(c.g.dk_sum, p->key_heads, c.Lk, p->score_dim);
    if (apart && c.g.dv.data) {
        c.g.dv_out = c.g.dv;
        c.g.dv = dense(c.g.dv_sum, p->kv_heads, c.Lk, p->value_dim);
    }
    if (!c.g.dv.data && c.mem.turned && rotation_learns(&c))
        c.g.dv = dense(c.g.dv_sum, p->kv_heads, c.Lk, p->value_dim);
    loci_begin(&c, true);
    const loci_status status = p->engine->backward(&c);
    if (status) return loci_fail(in.error, status, "cancelled by the host");
    c.g.turned = c.mem.turned != NULL;
    /* Encodings may still add to dv, so gradients are rounded and stored last. */
    loci_fold(&c, grad->dtensors);
    p->engine->store_gradients(&c, 0, c.Lk, 0);
    return LOCI_OK;
}

/* Opened like a backward pass without gradients: rows are in tiles, and lse is an input. */
loci_status loci_weights(const loci_plan *p, const void *tables, void *work, const loci_call *given,
                         loci_view weights)
{
    struct call c;
    loci_call in;
    const loci_grad none = { .size = sizeof none };
    struct regions more = { .n = 0 };
    TRY(loci_copy_call(&in, wants_sizes(p), given));
    CHECK(in.error, loci_plan_is(p, LOCI_ATTENTION), LOCI_BAD_ARG,
          "the plan must be one for stage ATTENTION");
    TRY(loci_open_call(&c, p, &in, true));
    TRY(loci_open_view(&c, &weights, &weights, "weights", p->heads, c.Lq, c.Lk));
    if (c.B && c.Lq && c.Lk) TRY(loci_require(&c, weights.data, "weights"));
    loci_add_view(&more, "weights", &weights, c.B, p->heads, c.Lq, c.Lk, p->real, WRITTEN);
    TRY(loci_open_attention(&c, p, tables, work, &in,
                            &(struct opening){
                                .stage = LOCI_ATTENTION, .grad = &none, .more = &more }));
    TRY(loci_check_results(&c, &none));
    c.weights = weights;
    clear_pairs(&c, &c.weights);
    if (!c.B || !c.Lq) return LOCI_OK;
    loci_begin(&c, true);
    const loci_status status = p->engine->weights(&c);
    return status ? loci_fail(in.error, status, "cancelled by the host") : LOCI_OK;
}
