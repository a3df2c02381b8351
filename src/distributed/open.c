/* SPDX-License-Identifier: MIT */
/* open.c -- arguments of all parallel calls, and what their ranks must agree on. */
#include "api/tables.h"
#include "distributed/rank_context.h"

enum { USUAL_AHEAD = 2, MOST_AHEAD = 1024 };

/* ---- Arguments ------------------------------------------------------------------------------- */

/* Ranks cannot agree on anything without a usable transport. */
loci_status loci_open_transport(struct rank_ctx *a, const loci_plan *p, const loci_parallel *given)
{
    loci_error *e = a->error;
    const bool sized = wants_sizes(p);
    CHECK(e, given, LOCI_BAD_ARG, "parallel must not be NULL");
    TRY(COPY_STRUCT(loci_parallel, &a->all, given, report, sized, e));
    CHECK(e, a->all.transport, LOCI_BAD_ARG, "parallel: transport must not be NULL");
    TRY(COPY_STRUCT(loci_transport, &a->via, a->all.transport, user, sized, e));
    const loci_transport *t = &a->via;
    CHECK(e, t->ranks >= 1 && t->rank >= 0 && t->rank < t->ranks, LOCI_BAD_ARG,
          "transport: rank %d must be one of 0 .. %d", t->rank, t->ranks - 1);
    CHECK(e, t->send && t->receive && t->wait && t->highest, LOCI_BAD_ARG,
          "transport: send, receive, wait and highest must not be NULL");
    return LOCI_OK;
}

loci_status loci_copy_own_call(struct rank_ctx *a, const loci_plan *p, const loci_call *given)
{
    loci_error *e = &a->said;
    CHECK(e, given, LOCI_BAD_ARG, "call must not be NULL");
    TRY(COPY_STRUCT(loci_call, &a->call, given, error, wants_sizes(p), e));
    a->call.error = e;
    CHECK(e, loci_plan_is(p, LOCI_ATTENTION), LOCI_BAD_ARG,
          "the plan must be one for stage ATTENTION");
    CHECK(
        e, p->moves < 0, LOCI_UNSUPPORTED,
        "%s does not support attention over several processes: it changes queries from key to key",
        p->enc[p->use[p->moves].enc].pe->name);
    CHECK(
        e, plain_keys(p), LOCI_UNSUPPORTED,
        "k_dtype, v_dtype and values_in_keys must be 0: attention over several processes passes on "
        "keys and values like queries");
    a->plan = p;
    return LOCI_OK;
}
loci_status loci_check_work(const struct rank_ctx *a, const void *work, size_t bytes,
                            const char *tells)
{
    loci_error *e = a->call.error;
    if (bytes == SIZE_MAX && e->status) return e->status;
    CHECK(e, work && (uintptr_t)work % ALIGN == 0, LOCI_BAD_ARG,
          "work must not be NULL and must be aligned to 64 bytes");
    CHECK(e, bytes != SIZE_MAX, LOCI_BAD_ARG, "the shapes need more bytes than size_t can count");
    CHECK(e, !a->call.work_bytes || a->call.work_bytes >= bytes, LOCI_BAD_ARG,
          "work has %zu bytes, but this call needs %zu; %s() returns the size", a->call.work_bytes,
          bytes, tells);
    return LOCI_OK;
}

/* What calls over several processes do not support. */
loci_status loci_check_fields(const struct rank_ctx *a)
{
    const loci_call *in = &a->call;
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
        { "a cache", in->cache },
        { "a mask", in->mask_kind != LOCI_NO_MASK || in->mask.data },
        { "k_first and k_last", in->k_first || in->k_last },
    };
    for (int i = 0; i < COUNT(fields); i++)
        CHECK(e, !fields[i].given, LOCI_UNSUPPORTED,
              "%s must be NULL: rows of several processes form one sequence per batch entry",
              fields[i].name);
    return LOCI_OK;
}

/* Lists of shares, and what this rank owns by them. */
loci_status loci_open_shares(struct rank_ctx *a)
{
    loci_error *e = a->call.error;
    const int ranks = a->via.ranks, rank = a->via.rank;
    CHECK(e, a->all.gather == 0 || a->all.gather == 1, LOCI_BAD_ARG, "gather %d must be 0 or 1",
          a->all.gather);
    CHECK(e, a->all.ahead >= 0 && a->all.ahead <= MOST_AHEAD, LOCI_BAD_ARG,
          "ahead %d must be 0 .. %d messages", a->all.ahead, MOST_AHEAD);
    if (!a->all.ahead) a->all.ahead = USUAL_AHEAD;
    TRY(loci_check_shares(a->all.shares, a->all.count, ranks, "shares", &a->rows, e));
    a->key_shares = a->all.shares;
    a->key_count = a->all.count;
    a->keys = a->rows;
    if (a->all.key_shares) {
        a->key_shares = a->all.key_shares;
        a->key_count = a->all.key_count;
        TRY(loci_check_shares(a->key_shares, a->key_count, ranks, "key_shares", &a->keys, e));
    }
    const int64_t rows = loci_owned(a->all.shares, a->all.count, rank),
                  keys = loci_owned(a->key_shares, a->key_count, rank);
    CHECK(e, a->call.q_len == rows, LOCI_BAD_ARG, "q_len %td must be %lld, the rows of its shares",
          a->call.q_len, (long long)rows);
    CHECK(e, a->call.k_len == keys, LOCI_BAD_ARG, "k_len %td must be %lld, the keys of its shares",
          a->call.k_len, (long long)keys);
    CHECK(e, a->keys < MOST_NUMBERS && a->rows < MOST_NUMBERS, LOCI_BAD_ARG,
          "shares: %lld rows and %lld keys are too many; positions must lie within 2^40",
          (long long)a->rows, (long long)a->keys);
    return LOCI_OK;
}

/* ---- What all ranks must agree on ------------------------------------------------------------ */

/* All of a plan except its instruction set. */
static int64_t hash_plan(const struct loci_plan *p)
{
    const int64_t numbers[] = { p->heads,       p->kv_heads,     p->dim,           p->value_dim,
                                p->dtype,       p->fast,         p->full,          p->keys_rotated,
                                p->window_left, p->window_right, p->enc[0].max_len };
    const char *isa = strstr(p->text, " isa="), *rest = isa + strcspn(isa + 1, " ") + 1;
    int64_t h = loci_hash(0, numbers, sizeof numbers);
    h = loci_hash(h, p->text, (size_t)(isa - p->text));
    return loci_hash(h, rest, strlen(rest));
}
static int64_t hash_shares(const loci_share *list, int count)
{
    int64_t h = 0;
    for (int i = 0; i < count; i++) {
        const int64_t numbers[] = { list[i].first, list[i].count, list[i].rank };
        h = loci_hash(h, numbers, sizeof numbers);
    }
    return h;
}
loci_status loci_agree_on_call(struct rank_ctx *a, loci_status own, const void *tables)
{
    const loci_call *in = &a->call;
    const bool ok = own == LOCI_OK, drops = ok && in->dropout > 0;
    struct fact facts[] = {
        { "the library's version", LOCI_VERSION, false },
        { "the plan", ok ? hash_plan(a->plan) : 0, true },
        { "batch", in->batch, false },
        { "rows", a->rows, false },
        { "keys", a->keys, false },
        { "the shares", ok ? hash_shares(a->all.shares, a->all.count) : 0, true },
        { "the shares of keys", ok ? hash_shares(a->key_shares, a->key_count) : 0, true },
        { "gather", a->all.gather, false },
        { "whether positions are given", in->q_pos != NULL, false },
        { "whether coordinates are given", in->q_coord != NULL, false },
        { "per_batch", in->per_batch != 0, false },
        { "dropout", ok ? loci_hash(0, &in->dropout, sizeof in->dropout) : 0, true },
        { "dropout_seed", drops ? loci_hash(0, &in->dropout_seed, sizeof in->dropout_seed) : 0,
          true },
        { "dropout_offset",
          drops ? loci_hash(0, &in->dropout_offset, sizeof in->dropout_offset) : 0, true },
        { "which of lse, rem and ae are given", a->outputs, true },
        { "the distance that tables were prepared for", ok ? loci_table_range(tables) : 0, false },
        { "check_tables", a->all.check_tables != 0, false },
        { "their tables",
          ok && a->all.check_tables
              ? loci_hash(0, tables, loci_tables_size(a->plan, loci_table_range(tables)))
              : 0,
          true },
    };
    return loci_agree(a, own, facts, COUNT(facts));
}
