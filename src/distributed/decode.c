/* SPDX-License-Identifier: MIT */
/* decode.c -- few rows, the same on every rank, against keys that are distributed over ranks.  The
 * state of the rows passes from the owner of the newest keys to the owner of the oldest.  Each
 * joins its own chunks to it, in the order in which one process walks over them.  If no term
 * carries state from key to key, chunks are summed before the state arrives.  Then all ranks work
 * at the same time, and a hop costs one message and the joins. */
#include "api/tables.h"
#include "distributed/rank_context.h"
#include "contract/cache.h"

#include <stdio.h>

enum { TAG_STATE = 1, TAG_SUMS, TAG_RESULT };

/* The head of every message: the status of the senders so far. */
struct message_header {
    int64_t status;
    char text[512 + 56];
};
_Static_assert(sizeof(struct message_header) % ALIGN == 0, "states start on lines");
/* A message, and how many bytes follow its head. */
struct message_block {
    struct message_header *head;
    size_t bytes;
};

struct decode {
    loci_call call; /* the caller's rows against the keys of this rank */
    struct opening opening;
    struct regions messages;
    struct run run;
    struct call open;
    loci_share own;     /* share of this rank's keys; count 0: none */
    int newer, older;   /* ranks that own the adjacent keys, or -1 */
    int newest, oldest; /* ranks at the ends of the chain; -1: there are no keys */

    /* In the workspace: the state of the rows over the keys so far, the outputs, and the states
     * that encodings pass on. */
    struct message_block state, result, sums;
    size_t sums_at[MAX_ENCODINGS]; /* where each encoding's state begins */
    void *inner;                   /* workspace of the pass itself */
    double attention;              /* seconds */
};
static char *data_of(const struct message_block *b) { return (char *)(b->head + 1); }

/* ---- Arguments ------------------------------------------------------------------------------- */

/* The chain of owners.  Each owns one piece that starts at a chunk border. */
static loci_status find_chain(struct rank_ctx *a, struct decode *d)
{
    loci_error *e = a->call.error;
    const int rank = a->via.rank;
    d->newer = d->older = d->newest = d->oldest = -1;
    for (int i = 0, before = -1; i < a->key_count; i++) {
        const loci_share *s = &a->key_shares[i];
        if (!s->count) continue;
        for (int j = 0; j < i; j++)
            CHECK(e, a->key_shares[j].rank != s->rank || !a->key_shares[j].count, LOCI_UNSUPPORTED,
                  "key_shares: rank %d has two shares; in decode a rank has one share of the keys",
                  s->rank);
        CHECK(e, s->first % CHUNK == 0, LOCI_UNSUPPORTED,
              "key_shares: share %d begins at key %lld; in decode it must be a multiple of %d", i,
              (long long)s->first, CHUNK);
        if (s->rank == rank) {
            d->own = *s;
            d->older = before;
        }
        if (before == rank) d->newer = s->rank;
        if (d->oldest < 0) d->oldest = s->rank;
        d->newest = before = s->rank;
    }
    return LOCI_OK;
}
static loci_status check_cache(const struct rank_ctx *a, const struct decode *d)
{
    const loci_call *in = &a->call;
    const struct loci_cache *cache = in->cache;
    loci_error *e = in->error;
    TRY(loci_cache_check(a->plan, cache, false, e));
    CHECK(e, in->batch == cache->form.batch, LOCI_BAD_ARG,
          "batch %td must be that of the cache, %lld", in->batch, (long long)cache->form.batch);
    CHECK(e, !cache->form.ring, LOCI_UNSUPPORTED,
          "the cache must not be a ring, which overwrites keys of its share");
    for (ptrdiff_t b = 0; b < in->batch; b++)
        CHECK(e, cache_list(cache, cache->len)[b] == d->own.count, LOCI_BAD_ARG,
              "entry %td of the cache has %lld keys, but the share has %lld", b,
              (long long)cache_list(cache, cache->len)[b], (long long)d->own.count);
    /* Keys that were rotated on append were rotated by the positions that they had in the cache. */
    CHECK(e, cache->placed || a->plan->rotate < 0 || !d->own.first, LOCI_BAD_ARG,
          "the cache counts its keys from 0, but the share begins at %lld; append the keys with "
          "k_pos",
          (long long)d->own.first);
    return LOCI_OK;
}
static loci_status open_shapes(struct rank_ctx *a, struct decode *d)
{
    const loci_call *in = &a->call;
    const struct loci_plan *p = a->plan;
    loci_error *e = in->error;
    const struct {
        const char *name;
        bool given;
    } fields[] = {
        { "q_seg and k_seg", in->q_seg || in->k_seg },
        { "q_starts and k_starts", in->q_starts || in->k_starts || in->sequences },
        { "k_lens", in->k_lens },
        { "q_lens", in->q_lens },
        { "pages", in->pages },
        { "a mask", in->mask_kind != LOCI_NO_MASK || in->mask.data },
        { "k_first and k_last", in->k_first || in->k_last },
    };
    for (int i = 0; i < COUNT(fields); i++)
        CHECK(e, !fields[i].given, LOCI_UNSUPPORTED,
              "%s must be NULL: keys of several processes form one sequence per batch entry",
              fields[i].name);
    CHECK(e, in->dropout == 0, LOCI_UNSUPPORTED,
          "dropout must be 0: decoding is for inference; loci_parallel_forward() drops weights");
    a->key_shares = a->all.key_shares ? a->all.key_shares : a->all.shares;
    a->key_count = a->all.key_shares ? a->all.key_count : a->all.count;
    TRY(loci_check_shares(a->key_shares, a->key_count, a->via.ranks, "key_shares", &a->keys, e));
    CHECK(e, a->keys < MOST_NUMBERS, LOCI_BAD_ARG,
          "key_shares: %lld keys are too many; positions must lie within 2^40", (long long)a->keys);
    TRY(find_chain(a, d));
    CHECK(e,
          in->batch >= 0 && in->q_len >= 0
              && in->batch < MOST_NUMBERS / p->heads / (p->dim + p->value_dim + 1)
              && in->q_len
                     <= MOST_NUMBERS / (in->batch + 1) / p->heads / (p->dim + p->value_dim + 1),
          LOCI_BAD_ARG, "batch %td or q_len %td is too large or negative", in->batch, in->q_len);
    a->rows = in->q_len;
    a->all.shares = a->key_shares;
    a->all.count = a->key_count; /* all ranks must agree on these */
    if (in->cache) return check_cache(a, d);
    CHECK(e, in->k_len == d->own.count, LOCI_BAD_ARG,
          "k_len %td must be %lld, the keys of its share", in->k_len, (long long)d->own.count);
    return LOCI_OK;
}

/* Given positions may be consecutive on this rank and not on others.  They count as runs only if
 * all ranks find the same distances.  Otherwise every pair is tested. */
static loci_status agree_on_runs(struct rank_ctx *a, struct decode *d)
{
    struct call *c = &d->open;
    int64_t list[3] = { 0, 0, 0 };
    if (!c->where.k_pos && !a->call.q_pos) return LOCI_OK;
    for (ptrdiff_t s = 0; s < c->seqs.n && d->own.count; s++) {
        list[0] |= !c->seqs.list[s].run;
        list[1] = loci_hash(list[1], &c->seqs.list[s].d0, sizeof c->seqs.list[s].d0);
    }
    list[2] = -list[1];
    /* This rank has no keys and accepts any result. */
    if (!d->own.count) {
        list[0] = 0;
        list[1] = list[2] = INT64_MIN;
    }
    if (a->via.highest(a->via.user, list, 3)) return loci_break(a);
    for (ptrdiff_t s = 0; s < c->seqs.n && (list[0] || list[1] != -list[2]); s++)
        c->seqs.list[s].run = false;
    return LOCI_OK;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static size_t rows_of(const struct rank_ctx *a)
{
    return (size_t)(a->call.batch * a->call.q_len) * (size_t)a->plan->heads;
}
/* The call of this rank on its own keys. */
static void make_call(struct rank_ctx *a, struct decode *d)
{
    d->call = a->call;
    d->call.work_bytes = 0;
    d->run = (struct run){ .count = a->call.q_len, .at = a->keys - a->call.q_len };
    d->opening = (struct opening){ .stage = LOCI_ATTENTION,
                                   .runs = &d->run,
                                   .run_count = 1,
                                   .keys = (ptrdiff_t)a->keys,
                                   .first = (ptrdiff_t)d->own.first,
                                   .here = true,
                                   .more = &d->messages };
    d->opening.part = (struct part){ .count = (ptrdiff_t)d->own.count,
                                     .opens = d->newer < 0,
                                     .closes = d->older < 0,
                                     .partial_inputs = true };
}
static size_t lay_out(struct rank_ctx *a, char *base, struct decode *d)
{
    const struct loci_plan *p = a->plan;
    const size_t rows = rows_of(a);
    struct arena m = { .base = base };
    struct measured measured;
    make_call(a, d);
    d->opening.part.state = (char *)d; /* measured as if the state existed */
    const size_t inner = loci_measure_attention(p, &d->call, &d->opening, &measured);
    d->state.bytes = (rows + 1) * measured.slot;
    d->result.bytes = rows
                    * ((size_t)p->value_dim * p->stored
                       + p->real
                             * ((size_t)(a->call.lse != NULL) + (size_t)(a->call.rem != NULL)
                                + (a->call.ae ? (size_t)p->dim : 0)));
    d->sums.bytes = 0;
    for (int e = 0; e < p->encs; e++) {
        d->sums_at[e] = d->sums.bytes;
        d->sums.bytes += measured.state[e];
    }
    struct message_block *blocks[] = { &d->state, &d->result, &d->sums };
    for (int i = 0; i < COUNT(blocks); i++)
        blocks[i]->head = carve_bytes(&m, 1, sizeof(struct message_header) + blocks[i]->bytes);
    d->messages.n = 0;
    if (base) loci_add_list(&d->messages, "work", base, m.used, 1, WRITTEN);
    d->inner = carve_bytes(&m, inner, 1);
    if (base) d->opening.part.state = data_of(&d->state);
    d->opening.part.slot = measured.slot;
    for (int e = 0; e < p->encs && base; e++)
        d->opening.part.restored[e] = data_of(&d->sums) + d->sums_at[e];
    return m.full || !inner ? SIZE_MAX : m.used;
}
static loci_status open_own(struct rank_ctx *a, const loci_plan *p, const void *tables, void *work,
                            const loci_call *given, struct decode *d)
{
    TRY(loci_copy_own_call(a, p, given));
    TRY(open_shapes(a, d));
    const size_t bytes = lay_out(a, NULL, d);
    TRY(loci_check_work(a, work, bytes, "loci_parallel_decode_workspace"));
    TRY(loci_check_tables(p, tables, a->call.tables_bytes, a->call.error));
    lay_out(a, work, d);
    a->outputs = (a->call.lse != NULL) | (a->call.rem != NULL) << 1 | (a->call.ae != NULL) << 2;
    return loci_open_attention(&d->open, p, tables, d->inner, &d->call, &d->opening);
}

/* ---- Messages -------------------------------------------------------------------------------- */

static bool end(struct rank_ctx *a, void **request, int begun)
{
    const double start = loci_clock_steady();
    if (begun) a->broken = true;
    if (*request && a->via.wait(a->via.user, request)) a->broken = true;
    a->waited += loci_clock_steady() - start;
    return !a->broken;
}
static bool send_block(struct rank_ctx *a, int to, int tag, const struct message_block *b)
{
    void *request = NULL;
    const size_t bytes = sizeof(struct message_header) + b->bytes;
    if (to < 0 || a->broken) return !a->broken;
    a->sent += bytes;
    return end(a, &request, a->via.send(a->via.user, to, tag, b->head, bytes, &request));
}
static bool receive_block(struct rank_ctx *a, int from, int tag, struct message_block *b)
{
    void *request = NULL;
    const size_t bytes = sizeof(struct message_header) + b->bytes;
    if (from < 0 || a->broken) return !a->broken;
    a->received += bytes;
    return end(a, &request, a->via.receive(a->via.user, from, tag, b->head, bytes, &request));
}
/* Sends down a binomial tree from the rank that has the block.  Ranks are numbered from there.
 * Rank i receives from i less its highest bit, and sends to i + 2^k for every 2^k above i. */
static bool spread(struct rank_ctx *a, int from, int tag, struct message_block *b)
{
    const int n = a->via.ranks, i = (a->via.rank - from + n) % n;
    int high = 1;
    while (high <= i / 2) high *= 2;
    if (i && !receive_block(a, (i - high + from) % n, tag, b)) return false;
    for (int step = i ? 2 * high : 1; i + step < n; step *= 2)
        if (!send_block(a, (i + step + from) % n, tag, b)) return false;
    return true;
}
/* Stores this rank's error in the message, unless there is an earlier one. */
static void tell(struct rank_ctx *a, struct message_block *b, loci_status own)
{
    if (!own || b->head->status) return;
    b->head->status = own;
    snprintf(b->head->text, sizeof b->head->text, "parallel: rank %d: %.480s", a->via.rank,
             a->said.text);
}

/* Copies o, lse, rem and ae to a message or back. */
static char *copy(char *at, void *data, size_t bytes, bool back)
{
    if (!data) return at;
    if (back) memcpy(data, at, bytes);
    else memcpy(at, data, bytes);
    return at + bytes;
}
static void copy_results(const struct rank_ctx *a, const struct decode *d, bool back)
{
    const struct loci_plan *p = a->plan;
    const struct call *c = &d->open;
    const size_t rows = rows_of(a), width = (size_t)p->value_dim * p->stored;
    char *at = data_of(&d->result);
    for (ptrdiff_t b = 0; b < c->B; b++)
        for (int h = 0; h < p->heads; h++)
            for (ptrdiff_t i = 0; i < c->Lq; i++)
                at = copy(at,
                          (char *)c->o.data
                              + (b * c->o.batch + h * c->o.head + i * c->o.row)
                                    * (ptrdiff_t)p->stored,
                          width, back);
    at = copy(at, a->call.lse, rows * p->real, back);
    at = copy(at, a->call.rem, rows * p->real, back);
    copy(at, a->call.ae, rows * (size_t)p->dim * p->real, back);
}

/* ---- The chain ------------------------------------------------------------------------------- */

/* Runs the engine on the keys of this rank. */
static loci_status pass(struct rank_ctx *a, struct decode *d, int step)
{
    struct call *c = &d->open;
    const double begun = loci_clock_steady();
    c->stream.part.step = step;
    const loci_status status = c->fast ? c->plan->engine->fast(c) : c->plan->engine->forward(c);
    d->attention += loci_clock_steady() - begun;
    return status ? loci_fail(&a->said, status, "cancelled by the host") : LOCI_OK;
}
/* Receives the sums that continue from the owner of the older keys. */
static void restore_state(struct rank_ctx *a, struct decode *d)
{
    const struct loci_plan *p = a->plan;
    if (d->sums.bytes) receive_block(a, d->older, TAG_SUMS, &d->sums);
    if (a->broken) return;
    loci_begin(&d->open, true);
    for (int e = 0; e < p->encs; e++) {
        const struct encoding_stream *stream = p->enc[e].pe->stream;
        if (stream && stream->save_state)
            stream->save_state(&d->open, e, data_of(&d->sums) + d->sums_at[e]);
    }
    if (d->sums.bytes) send_block(a, d->newer, TAG_SUMS, &d->sums);
}
static loci_status run(struct rank_ctx *a, struct decode *d)
{
    const struct message_block *blocks[] = { &d->state, &d->result, &d->sums };
    for (int i = 0; i < COUNT(blocks); i++)
        memset(blocks[i]->head, 0, sizeof(struct message_header));
    if (!d->open.B || !d->open.Lq) return LOCI_OK;
    if (d->oldest < 0) { /* no keys: each rank computes that by itself */
        loci_begin(&d->open, true);
        return pass(a, d, PART_WHOLE);
    }
    if (d->own.count) {
        restore_state(a, d);
        if (a->broken) return LOCI_TRANSPORT;
        loci_status status = d->open.decode ? pass(a, d, PART_SUM) : LOCI_OK;
        if (!receive_block(a, d->newer, TAG_STATE, &d->state)) return LOCI_TRANSPORT;
        tell(a, &d->state, status);
        if (!d->state.head->status) tell(a, &d->state, pass(a, d, PART_JOIN));
        if (!send_block(a, d->older, TAG_STATE, &d->state)) return LOCI_TRANSPORT;
        if (a->via.rank == d->oldest) {
            *d->result.head = *d->state.head;
            if (!d->state.head->status) copy_results(a, d, false);
        }
    }
    if (!spread(a, d->oldest, TAG_RESULT, &d->result)) return LOCI_TRANSPORT;
    const struct message_header *head = d->result.head;
    if (head->status) return loci_fail(a->error, (loci_status)head->status, "%s", head->text);
    if (a->via.rank != d->oldest) copy_results(a, d, true);
    return LOCI_OK;
}

loci_status loci_parallel_decode(const loci_plan *p, const void *tables, void *work,
                                 const loci_call *given, const loci_parallel *all)
{
    struct rank_ctx a = { .error = given ? given->error : NULL };
    struct decode d = { .attention = 0 };
    TRY(loci_open_transport(&a, p, all));
    TRY(loci_agree_on_call(&a, open_own(&a, p, tables, work, given, &d), tables));
    TRY(agree_on_runs(&a, &d));
    const loci_status status = run(&a, &d);
    if (a.broken) return loci_break(&a);
    loci_parallel_report *report = a.all.report;
    if (report && !status) {
        report->attention = d.attention;
        report->waited = a.waited;
        report->sent = a.sent;
        report->received = a.received;
    }
    return status;
}

size_t loci_parallel_decode_workspace(const loci_plan *p, const loci_call *given,
                                      const loci_parallel *all)
{
    struct rank_ctx a = { .error = NULL };
    struct decode d = { .attention = 0 };
    if (!given || !loci_plan_is(p, LOCI_ATTENTION) || loci_open_transport(&a, p, all)
        || COPY_STRUCT(loci_call, &a.call, given, error, wants_sizes(p), NULL))
        return 0;
    a.call.error = NULL;
    a.plan = p;
    if (open_shapes(&a, &d)) return 0;
    /* Fewer rows are processed in another way, which may need more. */
    const ptrdiff_t rows = a.call.q_len;
    size_t most = lay_out(&a, NULL, &d);
    for (ptrdiff_t few = 1; few <= FEW_ROWS && few < rows; few++) {
        a.call.q_len = a.rows = few;
        const size_t bytes = lay_out(&a, NULL, &d);
        if (bytes > most) most = bytes;
    }
    return most == SIZE_MAX ? 0 : most;
}
