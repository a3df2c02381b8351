/* SPDX-License-Identifier: MIT */
/* backward.c -- gradients over many processes, with the bits of one process.
 *
 * One process adds the sums of work items chunk by chunk of keys, latest rows first.  So here the
 * sums of a chunk pass from rank to rank in that order.  Each rank adds its items one by one and
 * sends the sums on.  From the earliest rows that see the chunk they go to the owners of its keys.
 * A rank processes its shares of rows in the same order, latest first.  Within a share it processes
 * the chunks that the rows see, oldest first.  So a rank only waits for steps that precede its own
 * in an order that all ranks share, and ranks cannot wait in a circle.
 *
 * If two consecutive shares belong to the same rank, the sums are buffered at the owners in
 * between.  Otherwise the rank would have to store the sums of all chunks.  The owner sends them
 * back after it has finished the rows that are later than those that need the sums.
 *
 * Gradients of tables pass from rank to rank once, at the end: batch entry by batch entry, the last
 * one first. */
#include "distributed/sums.h"

static bool mine(const struct rank_ctx *a, int share)
{
    return a->all.shares[share].rank == a->via.rank;
}
/* The engine's number of a chunk. */
static ptrdiff_t engine_chunk(const struct rank_ctx *a, int64_t chunk)
{
    return (ptrdiff_t)(a->all.gather ? chunk - a->gathered.first / CHUNK : chunk);
}

/* ---- The rows of a share --------------------------------------------------------------------- */

/* Chunks that the rows of a share see.  Rows that see no key still get one chunk. */
struct range {
    int64_t first, last;
};
static struct range chunks_of(const struct rank_ctx *a, const struct backward *w, int share)
{
    const struct key_span s = w->spans[share].gathered;
    if (!span_length(s))
        return (struct range){ a->gathered.first / CHUNK, a->gathered.first / CHUNK };
    return (struct range){ s.first / CHUNK, (s.end - 1) / CHUNK };
}
/* Sets the pass to a chunk whose keys have arrived. */
static void begin_chunk(const struct rank_ctx *a, struct backward *w, int64_t chunk)
{
    if (!a->all.gather) loci_begin_part(&w->w.open, (ptrdiff_t)(chunk * CHUNK));
}
typedef loci_status pass_chunk(struct call *, ptrdiff_t run, ptrdiff_t chunk);
static loci_status run_chunk(struct rank_ctx *a, struct backward *w, pass_chunk *pass,
                             ptrdiff_t run, int64_t chunk)
{
    const double begun = loci_clock_steady();
    begin_chunk(a, w, chunk);
    const loci_status status = pass(&w->w.open, run, engine_chunk(a, chunk));
    w->w.attention += loci_clock_steady() - begun;
    return status ? loci_fail(&a->said, status, "cancelled by the host") : LOCI_OK;
}
/* Receives the messages of a chunk if keys are streamed. */
static void recv_keys(struct rank_ctx *a, struct recv_queue *in, int64_t chunk)
{
    while (in->more && in->next.chunk == chunk && !a->broken)
        loci_recv_message(a, in, chunk * CHUNK);
}
/* After a cancel the rank still receives and forwards, because others may wait for it. */
static loci_status run_share(struct rank_ctx *a, struct backward *w, int share, ptrdiff_t run)
{
    const struct chained *engine = a->plan->engine->chained;
    struct call *c = &w->w.open;
    const struct range r = chunks_of(a, w, share);
    const bool sees = span_length(w->spans[share].gathered);
    loci_status status = LOCI_OK;
    struct recv_queue in = { .more = false };
    c->stream.chain.oldest = engine_chunk(a, r.first);
    a->transfer.mine = w->sweep.mine = a->all.gather ? a->transfer.mine : &w->spans[share];
    if (w->scans && sees) {
        if (!a->all.gather) loci_begin_recv(a, &in, &w->sweep, NEWEST_FIRST);
        for (int64_t k = r.last; k >= r.first && !a->broken; k--) {
            recv_keys(a, &in, k);
            if (k > r.first && !status && !a->broken)
                status = run_chunk(a, w, engine->sweep, run, k);
        }
    }
    if (!a->all.gather && sees) loci_begin_recv(a, &in, &a->transfer, OLDEST_FIRST);
    for (int64_t k = r.first; k <= r.last && !a->broken; k++) {
        loci_serve_early(a, w);
        if (sees) loci_ask_sums(a, w, share, k);
        recv_keys(a, &in, k);
        if (!status && !a->broken) status = run_chunk(a, w, engine->sum, run, k);
        if (!sees || a->broken) continue;
        loci_serve_early(a, w);
        loci_recv_sums(a, w, share, k);
        const double begun = loci_clock_steady();
        if (!status && !a->broken) engine->add_keys(c, run, engine_chunk(a, k));
        w->w.attention += loci_clock_steady() - begun;
        if (!a->broken) loci_forward_sums(a, w, share, k);
    }
    return status;
}
static loci_status run_shares(struct rank_ctx *a, struct backward *w)
{
    loci_status status = LOCI_OK;
    ptrdiff_t run = 0;
    for (int s = 0; s < a->all.count; s++) run += mine(a, s) && a->all.shares[s].count;
    for (int s = a->all.count - 1; s >= 0 && !a->broken; s--) {
        if (!mine(a, s) || !a->all.shares[s].count) continue;
        loci_serve(a, w, s);
        const loci_status own = run_share(a, w, s, --run);
        if (!status) status = own;
    }
    loci_serve(a, w, 0);
    return status;
}

/* ---- Keys whose sums are complete ------------------------------------------------------------ */

/* The share of keys before or after a share.  -1: none. */
static int neighbour(const struct rank_ctx *a, int share, int step)
{
    for (int s = share + step; s >= 0 && s < a->key_count; s += step)
        if (a->key_shares[s].count) return s;
    return -1;
}
static void pass_key_state(struct rank_ctx *a, struct backward *w, int share, int step)
{
    const int other = neighbour(a, share, step);
    const int rank = other < 0 ? a->via.rank : a->key_shares[other].rank;
    if (!w->key_state_bytes || rank == a->via.rank) return;
    if (step < 0)
        loci_receive_from(a, &w->in.requests[w->in.n++], rank, TAG_KEY_STATE, w->key_state,
                          w->key_state_bytes);
    else loci_send_to(a, &w->in, rank, TAG_KEY_STATE, w->key_state, w->key_state_bytes);
    loci_end_sends(a, &w->in);
}
/* Gradients of INPUT tensors by key: copies the sums of present keys to the caller's arrays. */
static void store_inputs(const struct rank_ctx *a, const struct backward *w, ptrdiff_t at,
                         ptrdiff_t keys, ptrdiff_t own)
{
    const struct call *c = &w->w.open;
    for (int i = 0; i < a->plan->tensors.n; i++) {
        void *to = w->grad.dtensors ? w->grad.dtensors[i] : NULL;
        ptrdiff_t outer, inner;
        if (!to || !loci_by_key(a, &a->plan->tensors.list[i], &outer, &inner)) continue;
        for (ptrdiff_t n = 0; n < outer; n++)
            for (ptrdiff_t k = 0; k < keys * inner; k++)
                store_real(to, a->plan->f64, (n * a->call.k_len + own) * inner + k,
                           c->g.dtensor[i][(n * c->Lk + at) * inner + k]);
    }
}
static void clear_inputs(const struct rank_ctx *a, struct call *c)
{
    for (int i = 0; i < a->plan->tensors.n; i++) {
        ptrdiff_t outer, inner;
        if (c->g.dtensor[i] && loci_by_key(a, &a->plan->tensors.list[i], &outer, &inner))
            memset(c->g.dtensor[i], 0, sizeof(double) * (size_t)c->g.dtensor_count[i]);
    }
}
static void close_own_chunk(struct rank_ctx *a, struct backward *w, struct own_chunk *h,
                            ptrdiff_t tile)
{
    const struct loci_plan *p = a->plan;
    struct call *c = &w->w.open;
    const ptrdiff_t keys = (ptrdiff_t)h->p.count, own = (ptrdiff_t)loci_keys_before(a, &h->p);
    if (!a->all.gather) loci_copy_own(a, &a->transfer, &h->p, h->p.chunk * CHUNK);
    begin_chunk(a, w, h->p.chunk);
    const ptrdiff_t at = loci_key_number(a, w, h->p.first),
                    first_tile =
                        (ptrdiff_t)((h->p.first - (a->all.gather ? a->gathered.first : 0)) / KT);
    loci_copy_sums(w, UNPACK, at, keys, h->data);
    clear_inputs(a, c);
    c->stream.chain.own = at;
    c->stream.chain.count = keys;
    /* An encoding may still add to dv of values that have turned. */
    if (!c->mem.turned) p->engine->chained->rotate_back(c, first_tile, tiles(keys, KT), tile);
    for (int e = 0; e < p->encs; e++) {
        const struct loci_pe *pe = p->enc[e].pe;
        if (pe->stream && pe->stream->end_keys) pe->stream->end_keys(c, e);
        else if (pe->end_keys) pe->end_keys(c, e);
    }
    if (c->mem.turned) p->engine->chained->rotate_back(c, first_tile, tiles(keys, KT), tile);
    p->engine->store_gradients(c, at, keys, own);
    store_inputs(a, w, at, keys, own);
    loci_collect_keys(a, w, at, keys, own);
}
static void close_own_chunks(struct rank_ctx *a, struct backward *w, bool works)
{
    ptrdiff_t tile = 0;
    memset(w->key_state, 0, w->key_state_bytes);
    for (int64_t i = 0; i < w->own_chunk_count && !a->broken; i++) {
        struct own_chunk *h = &w->own_chunks[i];
        const int share = h->p.share;
        loci_end_request(a, &h->final);
        if (a->broken) return;
        if (!i || h[-1].p.share != share) pass_key_state(a, w, share, -1);
        const double begun = loci_clock_steady();
        if (works && !a->broken) close_own_chunk(a, w, h, tile);
        w->w.attention += loci_clock_steady() - begun;
        tile += tiles((ptrdiff_t)h->p.count, KT);
        if (i == w->own_chunk_count - 1 || h[1].p.share != share) pass_key_state(a, w, share, 1);
    }
}

static void store_tables(struct rank_ctx *a, struct backward *w)
{
    void *out[MAX_TENSORS] = { NULL };
    for (int i = 0; i < a->plan->tensors.n && w->grad.dtensors; i++) {
        ptrdiff_t outer, inner;
        if (!loci_by_key(a, &a->plan->tensors.list[i], &outer, &inner))
            out[i] = w->grad.dtensors[i];
    }
    loci_fold(&w->w.open, out);
}

/* ---- Workspace ------------------------------------------------------------------------------- */

static void carve_box(struct rank_ctx *a, struct sum_buffer *b, size_t bytes, struct arena *m)
{
    const size_t most = (size_t)(a->keys < CHUNK ? a->keys : CHUNK);
    b->data = carve_bytes(m, most, bytes);
    b->requests = carve_bytes(m, (size_t)a->key_count + 2, sizeof *b->requests);
    b->n = 0;
}
/* The most items of a run, all items, and the rank's own key tiles and messages. */
struct counts {
    size_t items, all;
    ptrdiff_t tiles, messages;
};
static struct counts count(const struct rank_ctx *a, int groups)
{
    struct counts n = { 0 };
    const size_t each = (size_t)groups * (size_t)a->call.batch;
    for (int s = 0; s < a->all.count; s++) {
        const size_t items = (size_t)tiles((ptrdiff_t)a->all.shares[s].count, ROW_CHUNK) * each;
        if (!mine(a, s)) continue;
        n.all += items;
        if (items > n.items) n.items = items;
    }
    for (int s = 0; s < a->key_count; s++) {
        const loci_share *k = &a->key_shares[s];
        if (k->rank != a->via.rank || !k->count) continue;
        n.tiles += tiles((ptrdiff_t)k->count, KT);
        n.messages += (ptrdiff_t)((k->first + k->count - 1) / CHUNK - k->first / CHUNK + 1);
    }
    return n;
}
static size_t lay_out(struct rank_ctx *a, char *base, struct rank_pass *whole)
{
    struct backward *w = (struct backward *)whole;
    const struct loci_plan *p = a->plan;
    struct arena m = { .base = base };
    const size_t B = (size_t)a->call.batch;
    w->w.chain.on = true;
    w->spans = carve_bytes(&m, (size_t)a->all.count, sizeof *w->spans);
    for (int s = 0; w->spans && s < a->all.count; s++)
        w->spans[s] = loci_share_required_range(a, s);
    if (!a->all.gather) {
        a->transfer.by_share = true;
        a->transfer.required = a->transfer.mine = w->spans;
        a->transfer.required_count = a->all.count;
    }
    w->shifts = carve_bytes(&m, 2 * B, sizeof *w->shifts);
    w->last = carve_bytes(&m, B, sizeof *w->last);
    w->apart = carve_bytes(&m, B, sizeof *w->apart);
    loci_lay_out_rank(a, &w->w, &m);
    if (!base) loci_measure_rank(&w->w, !a->all.gather);
    struct measured measured;
    const size_t inner = loci_measure_attention(p, &w->w.call, &w->w.opening, &measured);
    if (!inner) return SIZE_MAX;
    if (!base) {
        loci_find_sums(w, &measured.call, true);
        w->scans = measured.chain.scans;
    }
    w->tiles = measured.chain.tile > 0;
    a->inner = carve_bytes(&m, inner, 1);
    if (w->scans && !a->all.gather) loci_carve_again(a, &w->sweep, &a->transfer, TAG_SWEEP, &m);

    const struct counts n = count(a, measured.chain.groups);
    struct chain *chain = &w->w.chain;
    chain->item = measured.chain.item;
    chain->part = measured.chain.part;
    chain->items = carve_bytes(&m, n.items, chain->item);
    chain->parts = carve_bytes(&m, n.all, chain->part);
    chain->tiles = carve_bytes(&m, (size_t)n.tiles * B, measured.chain.tile);
    chain->own_tiles = n.tiles;
    chain->last = w->last;
    w->own_chunks = carve_bytes(&m, (size_t)n.messages, sizeof *w->own_chunks);
    w->own_sums = carve_bytes(&m, (size_t)a->call.k_len, w->bytes);
    w->forwarded = carve_bytes(&m, (size_t)loci_buffered_keys(a, w), w->bytes);
    carve_box(a, &w->in, w->bytes, &m);
    for (int i = 0; i < OUTS; i++) carve_box(a, &w->out[i], w->bytes, &m);
    w->totals = carve_bytes(&m, w->total_bytes, 1);
    size_t at[MAX_ENCODINGS];
    w->key_state_bytes = 0;
    for (int e = 0; e < p->encs; e++) {
        at[e] = w->key_state_bytes;
        const struct encoding_stream *stream = p->enc[e].pe->stream;
        if (stream && stream->key_state_size)
            w->key_state_bytes += stream->key_state_size(&measured.call, e);
    }
    w->key_state = carve_bytes(&m, w->key_state_bytes, 1);
    for (int e = 0; e < p->encs && w->key_state; e++) chain->key_state[e] = w->key_state + at[e];
    loci_lay_out_collected(a, &measured, &w->collected, &m);
    w->w.opening.chain = *chain;
    /* a non-NULL state means that keys are present chunk by chunk */
    w->w.opening.part.state = a->all.gather ? NULL : chain->items;
    if (a->call.q_pos) w->w.opening.apart = w->apart;
    return m.full ? SIZE_MAX : m.used;
}

static int64_t *entry(const struct rank_ctx *a, int64_t *list, ptrdiff_t b)
{
    return &list[a->call.per_batch ? b : 0];
}
/* If positions are given, no rank knows those of all rows.  They are a run if row number i is at
 * `shift` + i on every rank. */
static void agree_on_runs(struct rank_ctx *a, struct backward *w)
{
    const loci_call *in = &a->call;
    const ptrdiff_t B = in->batch, entries = in->per_batch ? B : B > 0;
    for (ptrdiff_t b = 0; b < B; b++) {
        w->last[b] = a->keys - 1;
        w->apart[b] = false;
    }
    if (!in->q_pos || !entries) return;
    int64_t *const high = w->shifts, *const low = high + entries;
    for (ptrdiff_t b = 0; b < entries; b++) {
        high[b] = low[b] = INT64_MIN;
        ptrdiff_t at = 0;
        for (int s = 0; s < a->all.count; s++)
            for (int64_t i = 0; mine(a, s) && i < a->all.shares[s].count; i++, at++) {
                const int64_t shift = in->q_pos[b * in->q_len + at] - a->all.shares[s].first - i;
                if (shift > high[b]) high[b] = shift;
                if (-shift > low[b]) low[b] = -shift;
            }
    }
    if (!loci_highest(a, high, (int)(2 * entries))) return;
    for (ptrdiff_t b = 0; b < B; b++) {
        const int64_t most = *entry(a, high, b), least = -*entry(a, low, b);
        w->last[b] = a->rows ? most + a->rows - 1 : 0;
        w->apart[b] = a->rows && most != least;
    }
}

/* Ranks must want the same gradients, because sums are made for all of them.  A rank without rows
 * or keys accepts what the others want. */
static loci_status agree_on_wishes(struct rank_ctx *a, struct backward *w)
{
    struct fact facts[2 + MAX_TENSORS];
    const struct tensors *t = &a->plan->tensors;
    const bool keys = a->call.batch && a->call.k_len, rows = a->call.batch && a->call.q_len;
    facts[0] = (struct fact){ "whether dk is given", keys ? w->dk.data != NULL : ANY, false };
    facts[1] = (struct fact){ "whether dv is given", keys ? w->dv.data != NULL : ANY, false };
    for (int i = 0; i < t->n; i++) {
        ptrdiff_t outer, inner;
        const bool by_key = loci_by_key(a, &t->list[i], &outer, &inner);
        const bool speaks = by_key ? keys : t->list[i].role != LOCI_INPUT || rows,
                   given = w->grad.dtensors && w->grad.dtensors[i];
        facts[2 + i] =
            (struct fact){ "which gradients of tensors are given", speaks ? given : ANY, true };
    }
    TRY(loci_agree(a, LOCI_OK, facts, 2 + t->n));
    w->want_dk = facts[0].value == 1;
    w->want_dv = facts[1].value == 1;
    for (int i = 0; i < t->n; i++) w->want[i] = facts[2 + i].value == 1 ? w : NULL;
    return LOCI_OK;
}

/* ---- The pass of all ranks ------------------------------------------------------------------- */

static void send_keys(struct rank_ctx *a, struct backward *w)
{
    if (w->scans && !a->all.gather) {
        loci_send(a, &w->sweep);
        a->transfer.packed = true; /* the messages are the same */
    }
    loci_send(a, &a->transfer);
}
/* Testing one open request is enough if the transport makes progress on all of them. */
static bool progress(struct rank_pass *whole)
{
    struct backward *w = (struct backward *)whole;
    struct rank_ctx *a = whole->rank_ctx;
    struct sum_buffer *const boxes[] = { &w->in, &w->out[0], &w->out[1] };
    for (int i = 0; i < COUNT(boxes) && a->via.test && !a->broken; i++)
        for (int n = 0; n < boxes[i]->n; n++) {
            if (!boxes[i]->requests[n]) continue;
            a->broken = a->via.test(a->via.user, &boxes[i]->requests[n]) != 0;
            return true;
        }
    return false;
}
/* After the pass is opened: finds its sums and their memory. */
static void begin(struct rank_ctx *a, struct backward *w)
{
    struct call *c = &w->w.open;
    loci_want(c, w->want);
    loci_sum_apart(c, w->want_dk, w->want_dv);
    c->g.dk_out = w->dk;
    c->g.dv_out = w->dv;
    loci_find_sums(w, c, false);
    if (!c->B) w->own_chunk_count = 0;
    else loci_open_own_chunks(a, w);
    const double begun = loci_clock_steady();
    if (a->all.gather) loci_begin(c, true);
    else loci_begin_others(c);
    w->w.attention += loci_clock_steady() - begun;
}
/* Completes all requests.  After this the caller's memory is not in use any more, even after an
 * error. */
static void end_all(struct rank_ctx *a, struct backward *w)
{
    loci_end_sends(a, &w->in);
    for (int i = 0; i < OUTS; i++) loci_end_sends(a, &w->out[i]);
    loci_end_own_chunks(a, w);
    loci_end_transfer(a, &a->before);
    loci_end_transfer(a, &a->transfer);
    loci_end_transfer(a, &w->sweep);
}

static loci_status backward(struct rank_ctx *a, const void *tables, struct backward *w)
{
    TRY(agree_on_wishes(a, w));
    const bool late = a->placed && !a->all.gather;
    loci_send(a, &a->before);
    if (!late) send_keys(a, w);
    loci_recv_all(a, &a->before, 0);
    if (a->all.gather) loci_recv_all(a, &a->transfer, a->gathered.first);
    if (!a->broken) agree_on_runs(a, w);
    if (a->placed && !a->broken) TRY(loci_agree(a, loci_open_pass(a, tables, &w->w), NULL, 0));
    if (late) send_keys(a, w);
    if (a->broken) return LOCI_TRANSPORT;
    begin(a, w);
    const loci_status status = run_shares(a, w);
    close_own_chunks(a, w, !status);
    loci_sum_totals(a, w, !status);
    loci_collect(a, w, !status);
    if (a->broken) return LOCI_TRANSPORT;
    if (!status) store_tables(a, w);
    end_all(a, w);
    return a->broken ? LOCI_TRANSPORT : loci_agree(a, status, NULL, 0);
}
/* Checks the gradients that are given in addition to the call. */
static loci_status open_wishes(struct rank_ctx *a, struct backward *w, const loci_grad *given)
{
    const loci_call *in = &a->call;
    const struct loci_plan *p = a->plan;
    loci_error *e = in->error;
    TRY(loci_copy_grad(&w->grad, in, wants_sizes(a->plan), given));
    /* positions of rows are read before the pass is opened */
    TRY(loci_check_near(in->q_pos, (in->per_batch ? in->batch : 1) * in->q_len, "q_pos", e));
    CHECK(e, !w->grad.dmask.data, LOCI_UNSUPPORTED,
          "dmask must be NULL: calls over several processes support no mask");
    w->dk = w->grad.dk;
    w->dv = w->grad.dv;
    TRY(loci_check_wide(p, &w->dk, "dk", in->batch * in->k_len, key_dim(p), e));
    TRY(loci_spell_out(&w->dk, "dk", in->batch, p->kv_heads, in->k_len, key_dim(p), e));
    TRY(loci_spell_out(&w->dv, "dv", in->batch, p->kv_heads, in->k_len, p->value_dim, e));
    w->inner = w->grad;
    w->inner.dk = w->inner.dv = (loci_view){ .data = NULL };
    w->w.grad = &w->inner;
    a->owned.dk = w->dk;
    a->owned.dv = w->dv;
    return LOCI_OK;
}
/* Items and tiles must be the same as in one process. */
static loci_status check_borders(const struct rank_ctx *a)
{
    for (int i = 0; i < a->all.count; i++)
        CHECK(a->call.error, a->all.shares[i].first % ROW_CHUNK == 0 || !a->all.shares[i].count,
              LOCI_BAD_ARG,
              "shares: share %d begins at row %lld; in a backward pass it must be a multiple of %d",
              i, (long long)a->all.shares[i].first, ROW_CHUNK);
    for (int i = 0; i < a->key_count; i++)
        CHECK(a->call.error, a->key_shares[i].first % KT == 0 || !a->key_shares[i].count,
              LOCI_BAD_ARG,
              "key_shares: share %d begins at key %lld; in a backward pass it must be a multiple "
              "of %d",
              i, (long long)a->key_shares[i].first, KT);
    return LOCI_OK;
}
static loci_status open_own(struct rank_ctx *a, const loci_plan *p, const void *tables, void *work,
                            const loci_call *given, const loci_grad *grad, struct backward *w)
{
    a->sums = true;
    TRY(loci_copy_own_call(a, p, given));
    TRY(loci_open_arrays(a, &w->w));
    TRY(open_wishes(a, w, grad));
    TRY(check_borders(a));
    return loci_open_rank(a, tables, work, &w->w, lay_out);
}

loci_status loci_parallel_backward(const loci_plan *p, const void *tables, void *work,
                                   const loci_call *given, const loci_grad *grad,
                                   const loci_parallel *all)
{
    struct rank_ctx a = { .error = given ? given->error : NULL };
    struct backward w = { .w.rank_ctx = &a, .w.progress = progress };
    TRY(loci_open_transport(&a, p, all));
    TRY(loci_agree_on_call(&a, open_own(&a, p, tables, work, given, grad, &w), tables));
    const loci_status status = backward(&a, tables, &w);
    end_all(&a, &w);
    if (a.broken) return loci_break(&a);
    if (!status) loci_report(&a, &w.w);
    return status;
}

size_t loci_backward_over_ranks(const loci_plan *p, const loci_call *given,
                                const loci_parallel *all)
{
    struct rank_ctx a = { .error = NULL, .sums = true };
    static const loci_grad none;
    struct backward w = { .w.rank_ctx = &a, .w.grad = &none };
    if (loci_open_transport(&a, p, all)
        || COPY_STRUCT(loci_call, &a.call, given, error, wants_sizes(p), NULL))
        return 0;
    a.call.error = NULL;
    a.plan = p;
    if (loci_open_arrays(&a, &w.w)) return 0;
    const size_t bytes = lay_out(&a, NULL, &w.w);
    return bytes == SIZE_MAX ? 0 : bytes;
}
size_t loci_parallel_workspace(const loci_plan *p, const loci_call *given, const loci_parallel *all,
                               int backward)
{
    if (!given || !loci_plan_is(p, LOCI_ATTENTION)) return 0;
    const size_t forward = loci_forward_over_ranks(p, given, all),
                 back = backward && forward ? loci_backward_over_ranks(p, given, all) : 0;
    return backward && !back ? 0 : back > forward ? back : forward;
}
