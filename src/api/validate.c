/* SPDX-License-Identifier: MIT */
/* validate.c -- from a public call to the engine's.  Everything is checked, and the workspace is
 * laid out, before any output is written.  The stages share this file; they are in attention.c,
 * linear.c and rotate.c. */
#include "util/ordered_sum.h"
#include "api/api.h"
#include "api/tables.h"
#include "contract/cache.h"

/* The limits for decode: the number of rows times heads that share keys, and FEW_ROWS rows.  One
 * row is always decode. */
enum { FEW_HEADS = 64 };

/* ---- Views ----------------------------------------------------------------------------------- */

loci_status loci_open_view(const struct call *c, loci_view *to, const loci_view *from,
                           const char *name, ptrdiff_t H, ptrdiff_t L, ptrdiff_t width)
{
    *to = *from;
    return loci_spell_out(to, name, c->B, H, L, width, c->in->error);
}
/* A caller who does not know of them has less memory for them, with strides to match. */
loci_status loci_check_wide(const loci_plan *p, const loci_view *v, const char *name,
                            ptrdiff_t numbers, ptrdiff_t width, loci_error *e)
{
    CHECK(e, width <= p->dim || !v->data || !numbers || (v->row >= width && v->head >= width),
          LOCI_BAD_ARG,
          "%s: rotated keys of %s have %td channels, not %d; give strides of rows and heads that "
          "leave room, or use a cache of loci_cache_create()",
          name, p->enc[p->use[p->rotate].enc].pe->name, width, p->dim);
    return LOCI_OK;
}
loci_status loci_check_values(const loci_plan *p, const loci_call *in)
{
    CHECK(in->error, !p->values_in_keys || !in->v.data, LOCI_BAD_ARG,
          "v must be NULL: values_in_keys is 1, so values are channels of k");
    return LOCI_OK;
}
loci_status loci_require(const struct call *c, const void *p, const char *name)
{
    CHECK(c->in->error, p, LOCI_BAD_ARG, "%s must not be NULL", name);
    return LOCI_OK;
}

/* ---- Memory that a call reads and writes ----------------------------------------------------- */

/* How many numbers a tensor has in this call.  Keys are counted as the caller gives them, not as a
 * cache has them. */
static size_t tensor_numbers(const struct call *c, const loci_tensor *t)
{
    size_t n = 1;
    for (int k = 0; k < t->rank; k++) {
        const ptrdiff_t size = t->shape[k];
        n *= (size_t)(size == LOCI_DIM_BATCH     ? c->B
                      : size == LOCI_DIM_QUERIES ? c->Lq
                      : size == LOCI_DIM_KEYS    ? c->in->k_len
                                                 : size);
    }
    return n;
}
/* Learned tensors are read by prepare() and not by a call.  Their gradients are written. */
void loci_add_tensors(const struct call *c, struct regions *r, void *const *out)
{
    const struct tensors *t = &c->plan->tensors;
    for (int i = 0; i < t->n; i++) {
        const size_t n = tensor_numbers(c, &t->list[i]);
        if (t->list[i].role == LOCI_INPUT && c->in->tensors)
            loci_add_list(r, t->list[i].name, c->in->tensors[i], n, c->plan->real, READ);
        if (out) loci_add_list(r, t->list[i].name, out[i], n, c->plan->real, WRITTEN);
    }
}
void loci_add_call(const struct call *c, struct regions *r, const void *tables, const void *work)
{
    /* Lists that are NULL add no region. */
    const loci_call *in = c->in;
    const size_t B = (size_t)c->B, each = in->per_batch ? B : 1, axes = (size_t)c->plan->axes,
                 Lq = (size_t)in->q_len, Lk = (size_t)in->k_len;
    loci_add_list(r, "tables", tables, loci_tables_size(c->plan, c->range), 1, READ);
    loci_add_list(r, "work", work, c->mem.work_bytes, 1, WRITTEN);
    loci_add_list(r, "q_pos", in->q_pos, each * Lq, sizeof *in->q_pos, READ);
    loci_add_list(r, "k_pos", in->k_pos, each * Lk, sizeof *in->k_pos, READ);
    loci_add_list(r, "q_coord", in->q_coord, each * axes * Lq, sizeof *in->q_coord, READ);
    loci_add_list(r, "k_coord", in->k_coord, each * axes * Lk, sizeof *in->k_coord, READ);
    loci_add_list(r, "q_seg", in->q_seg, each * Lq, sizeof *in->q_seg, READ);
    loci_add_list(r, "k_seg", in->k_seg, each * Lk, sizeof *in->k_seg, READ);
    loci_add_list(r, "k_lens", in->k_lens, B, sizeof *in->k_lens, READ);
    loci_add_list(r, "q_lens", in->q_lens, B, sizeof *in->q_lens, READ);
    loci_add_list(r, "k_first", in->k_first, each * Lq, sizeof *in->k_first, READ);
    loci_add_list(r, "k_last", in->k_last, each * Lq, sizeof *in->k_last, READ);
    loci_add_list(r, "q_starts", in->q_starts, (size_t)in->sequences + 1, sizeof *in->q_starts,
                  READ);
    loci_add_list(r, "k_starts", in->k_starts, (size_t)in->sequences + 1, sizeof *in->k_starts,
                  READ);
}

/* ---- Workspace ------------------------------------------------------------------------------- */

/* Lays out the workspace for the largest contents of these shapes, and writes nothing to it.  With
 * base NULL it only measures. */
size_t loci_lay_out(struct call *c, char *base, bool backward)
{
    const struct loci_plan *p = c->plan;
    const struct engine *engine = p->engine;
    struct arena a = { .base = base };
    const ptrdiff_t rows = c->B * c->Lk;
    c->backward = backward;
    c->seqs.list = carve_bytes(&a, loci_most_sequences(c), sizeof(struct sequence));
    loci_carve_positions(c, &a);
    c->seqs.longest = all_keys(c);
    c->seqs.ktiles = loci_most_ktiles(c);
    const bool linear = p->stage == LOCI_LINEAR_ATTENTION;
    for (int e = 0; e < p->encs; e++) {
        const struct loci_pe *pe = p->enc[e].pe;
        c->mem.scratch[e] = pe->scratch ? carve_bytes(&a, pe->scratch(c, e), 1) : NULL;
    }
    /* Keys that fade must be staged even if a cache has them rotated. */
    if (p->moves >= 0
        || (p->rotate >= 0 && !linear && !rotates_late(c)
            && (!p->keys_rotated || term_is(p->use[p->rotate].term, FADES))))
        c->mem.rotated =
            carve_bytes(&a, (size_t)rows, (size_t)(p->key_heads * p->score_dim) * p->real);
    if (p->moves >= 0) {
        if (p->rotate >= 0 && !p->keys_rotated)
            c->mem.unmoved =
                carve_bytes(&a, (size_t)rows, (size_t)(p->kv_heads * p->dim) * p->real);
        c->mem.moved = carve_bytes(&a, engine->moved(c), 1);
        /* Keys that the cache keeps staged are used, but bf16 products would change them. */
        void *kept =
            c->cache && base && !c->fast ? cache_made_at(c->cache, c->cache->staged) : NULL;
        if (kept) {
            c->mem.kept = true;
            c->mem.rotated = kept;
            c->mem.moved = cache_made_at(c->cache, c->cache->moved);
        }
    }
    const bool turns = p->turns_values && !p->keys_rotated;
    if (turns)
        c->mem.turned =
            carve_bytes(&a, (size_t)rows, (size_t)(p->kv_heads * p->value_dim) * p->real);
    if (!linear && engine->skips(c))
        c->mem.knorm =
            carve_bytes(&a, (size_t)loci_most_ktiles(c), sizeof(float) * (size_t)p->key_heads);
    if (backward) {
        bool learns = false;
        for (int x = 0; x < p->uses; x++) {
            const ptrdiff_t total = engine->total(c, x);
            if (!total) continue;
            if (x == p->rotate || x == p->moves) learns = true;
            c->g.total_count[x] = total;
            c->g.total[x] = carve_bytes(&a, (size_t)total, sizeof(double));
        }
        for (int i = 0; i < p->tensors.n; i++) {
            c->g.dtensor_count[i] = (ptrdiff_t)tensor_numbers(c, &p->tensors.list[i]);
            c->g.dtensor[i] = carve_bytes(&a, (size_t)c->g.dtensor_count[i], sizeof(double));
            learns |= rotates_by(p, i);
        }
        /* Gradients of 16 bits are summed as reals and rounded once.  A rotation that learns needs
         * dK, and dV if values turn, even if the caller does not want them.  Key heads of their own
         * are added up later. */
        const bool apart = p->stored != p->real || chained(c);
        if ((learns || apart || sums_apart(p)) && !linear)
            c->g.dk_sum =
                carve_bytes(&a, (size_t)rows, (size_t)(p->key_heads * p->score_dim) * p->real);
        if (((learns && turns) || apart) && !linear)
            c->g.dv_sum =
                carve_bytes(&a, (size_t)rows, (size_t)(p->kv_heads * p->value_dim) * p->real);
    }
    if (linear) {
        c->linear.seen = carve_bytes(&a, (size_t)c->B * (size_t)c->Lq, sizeof *c->linear.seen);
        if (backward)
            c->linear.den = carve_bytes(&a, (size_t)(c->B * c->Lq), (size_t)p->heads * p->real);
        c->mem.workspace = engine->linear_workspace(c, backward);
    } else {
        c->mem.chunk_sums = carve_bytes(&a, engine->chunk_sums(c), p->real);
        c->mem.workspace = engine->workspace(c, backward);
    }
    if (c->mem.workspace == SIZE_MAX) return SIZE_MAX;
    c->mem.workspaces = carve_bytes(&a, (size_t)c->threads, c->mem.workspace);
    if (backward && !linear && !chained(c)) {
        c->mem.block = engine->block(c);
        if (c->mem.block == SIZE_MAX) return SIZE_MAX;
        c->mem.blocks =
            carve_bytes(&a, (size_t)(c->threads + spare_blocks(c->threads)), c->mem.block);
    }
    /* never 0, which loci_workspace() returns for refused calls */
    return a.full ? SIZE_MAX : a.used ? a.used : 64;
}

size_t loci_lay_out_rotate(struct call *c, char *base, size_t workspace(const struct call *))
{
    const struct loci_plan *p = c->plan;
    struct arena a = { .base = base };
    c->seqs.longest = all_keys(c);
    c->seqs.ktiles = loci_most_ktiles(c);
    loci_carve_positions(c, &a);
    if (p->rotate >= 0) {
        const int e = p->use[p->rotate].enc;
        if (p->enc[e].pe->scratch)
            c->mem.scratch[e] = carve_bytes(&a, p->enc[e].pe->scratch(c, e), 1);
    }
    c->mem.workspace = workspace(c);
    if (c->mem.workspace == SIZE_MAX) return SIZE_MAX;
    c->mem.workspaces = carve_bytes(&a, (size_t)c->threads, c->mem.workspace);
    return a.full ? SIZE_MAX : a.used;
}

/* ---- Checks that all calls share ------------------------------------------------------------- */

/* Keys and values of a cache replace k, v, k_len and k_lens, which are arguments of append(). */
static loci_status open_cache(struct call *c)
{
    const loci_call *in = c->in;
    const struct loci_cache *cache = in->cache;
    loci_error *e = in->error;
    const loci_status status = loci_cache_check(c->plan, cache, cache_is_there(cache), e);
    if (status) return status;
    CHECK(e, in->batch == cache->form.batch, LOCI_BAD_ARG,
          "batch %td must be that of the cache, %lld", in->batch, (long long)cache->form.batch);
    CHECK(e, !in->pages, LOCI_BAD_ARG, "pages must be NULL with a cache");
    c->cache = cache;
    /* The workspace is laid out for the cache's capacity, so the same one serves every token. */
    c->Lk = cache_max_keys(cache);
    c->where.lens = cache_list(cache, cache->present);
    c->where.firsts = cache_list(cache, cache->base);
    if (cache->placed) {
        c->where.k_pos = cache_list(cache, cache->pos);
        c->where.k_pos_entry = cache_capacity(cache);
    }
    for (int i = 0; i < c->plan->tensors.n; i++)
        if (cache->input[i].at) c->input[i] = (const char *)cache + cache->input[i].at;
    return LOCI_OK;
}
/* Lists that are read before overlaps are checked must at least be aligned.  All their elements
 * have 64 bits. */
static loci_status check_straight(const loci_call *in)
{
    const struct {
        const char *name;
        const void *p;
    } lists[] = {
        { "q_pos", in->q_pos },     { "k_pos", in->k_pos },       { "q_coord", in->q_coord },
        { "k_coord", in->k_coord }, { "q_seg", in->q_seg },       { "k_seg", in->k_seg },
        { "k_lens", in->k_lens },   { "q_starts", in->q_starts }, { "k_starts", in->k_starts },
        { "k_first", in->k_first }, { "k_last", in->k_last },     { "q_lens", in->q_lens },
    };
    for (int i = 0; i < COUNT(lists); i++)
        CHECK(in->error, (uintptr_t)lists[i].p % alignment_of(sizeof(int64_t)) == 0, LOCI_BAD_ARG,
              "%s must be aligned to %zu bytes, as its numbers are", lists[i].name,
              alignment_of(sizeof(int64_t)));
    return LOCI_OK;
}
/* The most rows, up to `rows`, that a call can have as decode. */
static ptrdiff_t few_rows(const struct loci_plan *p, ptrdiff_t rows)
{
    const ptrdiff_t sharing = p->mix >= 0 ? p->heads : p->group;
    ptrdiff_t few = FEW_HEADS / sharing;
    if (few < 1) few = 1;
    if (few > FEW_ROWS) few = FEW_ROWS;
    return rows < few ? rows : few;
}
/* wide: all rows are computed in tiles, even few of them. */
static void choose_way(struct call *c, bool wide)
{
    const struct loci_plan *p = c->plan;
    wide |= c->dropout.on;
    c->decode = !wide && c->Lq == few_rows(p, c->Lq);
    /* Few rows are limited by memory, not by products. */
    c->fast = p->fast && !wide && !c->decode;
}
static loci_status open_dropout(struct call *c)
{
    const double p = c->in->dropout;
    loci_error *e = c->in->error;
    CHECK(e, p >= 0 && p < 1, LOCI_BAD_ARG, "dropout %g must be at least 0 and below 1", p);
    CHECK(e, p == 0 || !c->in->cache, LOCI_UNSUPPORTED,
          "dropout must be 0 with a cache: it is for training");
    CHECK(e, p == 0 || c->plan->stage != LOCI_LINEAR_ATTENTION, LOCI_UNSUPPORTED,
          "dropout must be 0 in linear attention, which has no weights");
    const double least = p * 0x1p32 + 0.5;
    c->dropout = (struct dropout){
        .on = p > 0,
        .seed = c->in->dropout_seed,
        .offset = c->in->dropout_offset,
        .limit = (least < 0x1p32 ? (uint32_t)least : UINT32_MAX) ^ UINT32_C(0x80000000),
        .factor = 1 / (1 - p),
    };
    return LOCI_OK;
}
loci_status loci_open_call(struct call *c, const loci_plan *p, const loci_call *in, bool wide)
{
    loci_error *e = in->error;
    *c = (struct call){ .plan = p,
                        .in = in,
                        .B = in->batch,
                        .Lq = in->q_len,
                        .Lk = in->k_len,
                        .where = { .lens = in->k_lens,
                                   .q_pos = in->q_pos,
                                   .k_pos = in->k_pos,
                                   .q_pos_entry = in->per_batch ? in->q_len : 0,
                                   .k_pos_entry = in->per_batch ? in->k_len : 0,
                                   .k_coord = in->cache ? NULL : in->k_coord } };
    TRY(check_straight(in));
    for (int i = 0; i < p->tensors.n && in->tensors; i++) c->input[i] = in->tensors[i];
    CHECK(e, in->batch >= 0 && in->q_len >= 0 && in->k_len >= 0, LOCI_BAD_ARG,
          "batch %td, q_len %td and k_len %td must not be negative", in->batch, in->q_len,
          in->k_len);
    const ptrdiff_t longer = in->q_len > in->k_len ? in->q_len : in->k_len;
    ptrdiff_t n = p->heads;
    CHECK(e,
          !__builtin_mul_overflow(n, in->batch ? in->batch : 1, &n)
              && !__builtin_mul_overflow(n, longer ? longer : 1, &n)
              && !__builtin_mul_overflow(n, p->score_dim + p->value_dim + 1, &n)
              && n < MOST_NUMBERS,
          LOCI_BAD_ARG, "batch %td, %d heads and length %td are too large together", in->batch,
          p->heads, longer);
    /* A cache has the positions of its keys. */
    CHECK(e, in->cache || !in->q_pos == !in->k_pos, LOCI_BAD_ARG,
          "q_pos and k_pos must be given together");
    CHECK(e, !in->q_seg || (!in->k_lens && !in->cache), LOCI_BAD_ARG,
          "q_seg and k_seg must be NULL with k_lens or a cache");
    for (ptrdiff_t b = 0; b < c->B && c->where.lens && (in->k_len || !in->cache); b++)
        CHECK(e, c->where.lens[b] >= 0 && c->where.lens[b] <= in->k_len, LOCI_BAD_ARG,
              "k_lens: entry %td has %lld keys, and k_len is %td", b, (long long)c->where.lens[b],
              in->k_len);
    for (ptrdiff_t b = 0; b < c->B && in->q_lens; b++)
        CHECK(e, in->q_lens[b] >= 0 && in->q_lens[b] <= in->q_len, LOCI_BAD_ARG,
              "q_lens: entry %td has %lld rows, and q_len is %td", b, (long long)in->q_lens[b],
              in->q_len);
    if (in->cache) TRY(open_cache(c));
    /* Each way of packing defines where sequences end, so two of them could disagree. */
    CHECK(e, !in->q_seg == !in->k_seg, LOCI_BAD_ARG, "q_seg and k_seg must be given together");
    CHECK(e, !in->q_starts == !in->k_starts, LOCI_BAD_ARG,
          "q_starts and k_starts must be given together");
    CHECK(e, !in->q_starts || !in->q_seg, LOCI_BAD_ARG,
          "q_seg and k_seg must be NULL with q_starts and k_starts");
    CHECK(e, !in->q_starts || (!in->k_lens && !in->pages && !in->cache), LOCI_BAD_ARG,
          "k_lens, pages and cache must be NULL with q_starts and k_starts");
    CHECK(e, !in->q_lens || (!in->q_starts && !in->q_seg), LOCI_BAD_ARG,
          "q_lens must be NULL with q_seg or q_starts");
    CHECK(e, !in->q_starts || in->batch == 1, LOCI_BAD_ARG,
          "batch %td must be 1 with q_starts and k_starts", in->batch);
    CHECK(e, in->sequences >= 0 && in->sequences < MOST_NUMBERS, LOCI_BAD_ARG,
          "sequences %td must be the number of sequences", in->sequences);
    CHECK(e, in->q_starts || !in->sequences, LOCI_BAD_ARG,
          "sequences is %td, but q_starts and k_starts are NULL", in->sequences);
    c->threads = in->host && in->host->run ? in->host->threads : 1;
    CHECK(e, c->threads >= 1 && c->threads <= MAX_THREADS, LOCI_BAD_ARG,
          "host: threads %d must be 1 .. %d", c->threads, MAX_THREADS);
    TRY(open_dropout(c));
    choose_way(c, wide);
    return LOCI_OK;
}
/* A rotation of queries alone does not need the inputs by key, and a rotation of keys does not need
 * those by row.  An input without numbers may be NULL. */
loci_status loci_check_inputs(const struct call *c, int e, ptrdiff_t rows)
{
    const struct loci_plan *p = c->plan;
    for (int i = p->first_tensor[e]; i < p->first_tensor[e + 1]; i++) {
        const loci_tensor *t = &p->tensors.list[i];
        bool wanted = !rows;
        for (int k = 0; k < t->rank; k++) wanted |= t->shape[k] == rows;
        if (t->role == LOCI_INPUT && wanted && (rows || !rotated_already(p, i)))
            CHECK(c->in->error, c->input[i] || !tensor_numbers(c, t), LOCI_BAD_ARG,
                  "%s: input tensor '%s' must be given with the call", t->encoding, t->name);
    }
    return LOCI_OK;
}
loci_status loci_open_tables(struct call *c, const void *tables)
{
    TRY(loci_check_tables(c->plan, tables, c->in->tables_bytes, c->in->error));
    for (int e = 0; e < c->plan->encs; e++) c->table[e] = loci_table_of(tables, c->plan, e);
    c->range = loci_table_range(tables);
    return LOCI_OK;
}
loci_status loci_accept(const struct call *c, int e)
{
    const struct loci_pe *pe = c->plan->enc[e].pe;
    const bool own = pe->stream && pe->stream->accept;
    if (own) TRY(pe->stream->accept(c, e));
    return pe->accept && !(own && streamed(c)) ? pe->accept(c, e) : LOCI_OK;
}
loci_status loci_lay_out_workspace(struct call *c, void *work, lay_out_workspace *lay_out,
                                   bool backward)
{
    CHECK(c->in->error, work && (uintptr_t)work % 64 == 0, LOCI_BAD_ARG,
          "work must not be NULL and must be aligned to 64 bytes");
    c->mem.work_bytes = lay_out(c, work, backward);
    CHECK(c->in->error, c->mem.work_bytes != SIZE_MAX, LOCI_BAD_ARG,
          "the shapes need more bytes than size_t can count");
    CHECK(c->in->error, !c->in->work_bytes || c->in->work_bytes >= c->mem.work_bytes, LOCI_BAD_ARG,
          "work has %zu bytes, but this call needs %zu; loci_workspace() returns the size",
          c->in->work_bytes, c->mem.work_bytes);
    TRY(loci_check_starts(c));
    return loci_check_given(c);
}
void loci_fill_workspace(struct call *c)
{
    loci_count_positions(c);
    if (c->seqs.list) loci_find_sequences(c);
}

/* ---- How much workspace ---------------------------------------------------------------------- */

/* The maximum over every pass of such a call, and over calls of fewer rows and keys.  Passes in
 * tiles and decode both need more with more rows and keys.  A call that is too long for decode also
 * counts the longest decode. */
size_t loci_workspace(const loci_plan *p, const loci_call *given, int backward)
{
    loci_call in;
    struct call c;
    if (!p || p->magic != PLAN_MAGIC || loci_copy_call(&in, wants_sizes(p), given)) return 0;
    /* rows of an embedding have no keys */
    if (p->stage == LOCI_EMBED) return loci_embed_workspace(p, &in);
    if (loci_open_call(&c, p, &in, false)) return 0;
    size_t most = in.cache ? loci_cache_workspace(p, &in) : 0;
    const ptrdiff_t few = few_rows(p, in.q_len);
    const struct {
        ptrdiff_t rows;
        bool pass, backward, wide;
    } passes[] = {
        { in.q_len, true, false, false },
        { few, few < in.q_len, false, false },
        /* a rotation alone */
        { in.q_len, p->rotate >= 0 && p->key_forms == 1, false, true },
        { in.q_len, backward, true, true },
    };
    for (int i = 0; i < COUNT(passes); i++) {
        if (!passes[i].pass) continue;
        c.Lq = passes[i].rows;
        choose_way(&c, passes[i].wide);
        const size_t n = loci_lay_out(&c, NULL, passes[i].backward);
        if (n > most) most = n;
    }
    return most > PTRDIFF_MAX ? 0 : most;
}

/* ---- Before and after the engine ------------------------------------------------------------- */

void loci_begin_encoding(struct call *c, int e)
{
    const struct loci_pe *pe = c->plan->enc[e].pe;
    const bool own = pe->stream && pe->stream->begin && (streamed(c) || chained(c));
    if (own) pe->stream->begin(c, e);
    else if (pe->begin) pe->begin(c, e);
}
void loci_begin(struct call *c, bool keys)
{
    const struct loci_plan *p = c->plan;
    /* The rotation's scratch rotates the keys, and other encodings may read rotated keys. */
    const int rotation = p->rotate >= 0 ? p->use[p->rotate].enc : -1;
    if (rotation >= 0) loci_begin_encoding(c, rotation);
    if (!keys) return;
    p->engine->keys(c);
    for (int e = 0; e < p->encs; e++)
        if (e != rotation) loci_begin_encoding(c, e);
}
/* In a chain, gradients by key are ended chunk by chunk.  An encoding that needs the rows of all
 * processes ends where those are collected. */
static void end(struct call *c)
{
    for (int e = 0; e < c->plan->encs; e++) {
        const struct loci_pe *pe = c->plan->enc[e].pe;
        if (pe->end_keys && !chained(c)) pe->end_keys(c, e);
    }
    if (c->g.turned) c->plan->engine->unrotate(c);
    for (int e = 0; e < c->plan->encs; e++) {
        const struct loci_pe *pe = c->plan->enc[e].pe;
        if (pe->end
            && !(chained(c) && pe->stream && pe->stream->row_size && pe->stream->row_size(c, e)))
            pe->end(c, e);
    }
}

void loci_fold(struct call *c, void *const *out)
{
    const struct loci_plan *p = c->plan;
    /* end() turns sums of a call into gradients of its inputs.  fold() turns those of tables into
     * gradients of learned tensors.  Both add in double. */
    end(c);
    for (int e = 0; e < p->encs; e++) {
        const int first = p->first_tensor[e], n = p->first_tensor[e + 1] - first;
        const double *totals[MAX_USES];
        const void *data[MAX_TENSORS];
        int uses = 0;
        for (int x = 0; x < p->uses; x++)
            if (p->use[x].enc == e) totals[uses++] = c->g.total[x];
        for (int i = 0; i < n; i++) data[i] = c->input[first + i];
        /* The arguments of prepare(), and the totals of the encoding's terms in order. */
        const struct prep prep = {
            .cfg = &p->enc[e],
            .tensor = p->tensors.list + first,
            .data = data,
            .f64 = p->f64,
            .range = c->range,
            .layout = loci_layout_of(p, e),
            .table = (void *)c->table[e],
            .dtable = totals,
            .dtensor = c->g.dtensor + first,
        };
        if (p->enc[e].pe->fold) p->enc[e].pe->fold(&prep);
        for (int i = 0; i < n; i++) {
            if (!out || !out[first + i]) continue;
            for (ptrdiff_t k = 0; k < c->g.dtensor_count[first + i]; k++)
                store_real(out[first + i], p->f64, k, c->g.dtensor[first + i][k]);
        }
    }
}

/* Does a gradient need dk?  Those of what keys are rotated by do. */
static bool wants_keys(const struct call *c, void *const *out)
{
    const struct loci_plan *p = c->plan;
    const int e = p->rotate < 0 ? -1 : p->use[p->rotate].enc;
    bool wanted = c->g.dk.data != NULL;
    for (int i = e < 0 ? 0 : p->first_tensor[e]; e >= 0 && out && i < p->first_tensor[e + 1]; i++)
        wanted |= out[i] != NULL;
    return wanted;
}
void loci_want(struct call *c, void *const *out)
{
    /* The terms of an encoding sum parts if any of its tensors is wanted, because fold() computes
     * all gradients.  Where rows move, dk needs the parts too. */
    const struct loci_plan *p = c->plan;
    for (int e = 0; e < p->encs; e++) {
        bool any = false;
        for (int i = p->first_tensor[e]; i < p->first_tensor[e + 1]; i++) {
            if (!out || !out[i]) c->g.dtensor[i] = NULL;
            else {
                any = true;
                memset(c->g.dtensor[i], 0, sizeof(double) * (size_t)c->g.dtensor_count[i]);
            }
        }
        for (int x = 0; x < p->uses; x++) {
            if (p->use[x].enc != e || !c->g.total[x]) continue;
            if (!any && !(x == p->moves && wants_keys(c, out))) c->g.total[x] = NULL;
            else memset(c->g.total[x], 0, sizeof(double) * (size_t)c->g.total_count[x]);
        }
    }
}

loci_status loci_copy_grad(loci_grad *to, const loci_call *in, bool sized, const loci_grad *from)
{
    CHECK(in->error, from, LOCI_BAD_ARG, "grad must not be NULL");
    return COPY_STRUCT(loci_grad, to, from, dtensors, sized, in->error);
}
/* Gradients have the shapes of their tensors.  dk is by kv head, even if each head rotates keys in
 * its own way. */
loci_status loci_open_grad(struct call *c)
{
    const struct loci_plan *p = c->plan;
    const loci_grad *grad = c->grad;
    TRY(loci_open_view(c, &c->g.dout, &grad->dout, "dout", p->heads, c->Lq, p->value_dim));
    TRY(loci_open_view(c, &c->g.dq, &grad->dq, "dq", p->heads, c->Lq, p->dim));
    TRY(loci_check_wide(p, &grad->dk, "dk", c->B * c->Lk, key_dim(p), c->in->error));
    TRY(loci_open_view(c, &c->g.dk, &grad->dk, "dk", p->kv_heads, c->Lk, key_dim(p)));
    TRY(loci_open_view(c, &c->g.dv, &grad->dv, "dv", p->kv_heads, c->Lk, p->value_dim));
    TRY(loci_open_view(c, &c->g.dmask, &grad->dmask, "dmask", p->heads, c->Lq, c->Lk));
    return LOCI_OK;
}
