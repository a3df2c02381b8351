/* SPDX-License-Identifier: MIT */
/* gathered.c -- see gathered.h. */
#include "distributed/gathered.h"

#include "api/tables.h"

/* ---- Arrays to transfer ---------------------------------------------------------------------- */

static struct keyed *add_keyed(struct transfer *g, struct keyed x)
{
    g->bytes += (size_t)(x.n[0] * x.n[1]) * x.bytes;
    g->list[g->n] = x;
    return &g->list[g->n++];
}
static struct keyed *add_view(struct rank_ctx *a, const loci_view *v, int width)
{
    const ptrdiff_t each = (ptrdiff_t)a->plan->stored;
    return add_keyed(&a->transfer, (struct keyed){ .own = v->data,
                                                   .n = { a->call.batch, a->plan->kv_heads },
                                                   .stride = { v->batch * each, v->head * each },
                                                   .row = v->row * each,
                                                   .bytes = (size_t)(width * each) });
}
/* A dense array of [outer][keys of the rank][inner bytes]. */
static struct keyed *add_list(struct rank_ctx *a, struct transfer *g, const void *list,
                              ptrdiff_t outer, size_t inner)
{
    return add_keyed(g, (struct keyed){ .own = list,
                                        .n = { outer, 1 },
                                        .row = (ptrdiff_t)inner,
                                        .stride = { a->call.k_len * (ptrdiff_t)inner, 0 },
                                        .bytes = inner });
}
/* The extents of an INPUT tensor before and after its keys.  Returns false if it has no keys. */
bool loci_by_key(const struct rank_ctx *a, const loci_tensor *t, ptrdiff_t *outer, ptrdiff_t *inner)
{
    bool keys = false;
    *outer = *inner = 1;
    for (int d = 0; d < t->rank; d++) {
        const ptrdiff_t n = t->shape[d] == LOCI_DIM_BATCH ? a->call.batch : t->shape[d];
        if (n == LOCI_DIM_KEYS) keys = true;
        else if (keys) *inner *= n;
        else if (n >= 0) *outer *= n;
    }
    return keys && t->role == LOCI_INPUT;
}
static loci_status open_cargo(struct rank_ctx *a, struct rank_pass *w)
{
    const struct loci_plan *p = a->plan;
    const loci_call *in = &a->call;
    loci_error *e = in->error;
    const ptrdiff_t B = in->batch, each = in->per_batch ? B : 1;
    loci_view *k = &a->owned.k, *v = &a->owned.v;
    /* Positions, and inputs that are summed from the first key on, arrive before keys are
     * streamed. */
    struct transfer *early = a->all.gather ? &a->transfer : &a->before;
    a->before.everything = true;
    a->before.tag = TAG_BEFORE;
    a->transfer.tag = TAG_TRANSFER;
    *k = in->k;
    *v = in->v;
    TRY(loci_check_wide(p, k, "k", B * in->k_len, key_dim(p), e));
    TRY(loci_spell_out(k, "k", B, p->kv_heads, in->k_len, key_dim(p), e));
    TRY(loci_spell_out(v, "v", B, p->kv_heads, in->k_len, p->value_dim, e));
    const bool keys = B && in->k_len;
    CHECK(e, k->data || !keys, LOCI_BAD_ARG, "k must not be NULL");
    CHECK(e, v->data || !keys, LOCI_BAD_ARG, "v must not be NULL");
    w->k = add_view(a, k, key_dim(p));
    w->v = add_view(a, v, p->value_dim);
    TRY(loci_check_near(in->k_pos, each * in->k_len, "k_pos", e));
    TRY(loci_check_near_axes(in->k_coord, each * p->axes * in->k_len, "k_coord", e));
    if (in->k_pos) w->k_pos = add_list(a, early, in->k_pos, each, sizeof *in->k_pos);
    if (in->k_coord)
        w->k_coord = add_list(a, &a->transfer, in->k_coord, each * p->axes, sizeof *in->k_coord);
    for (int enc = 0; enc < p->encs; enc++)
        for (int i = p->first_tensor[enc]; i < p->first_tensor[enc + 1]; i++) {
            const loci_tensor *t = &p->tensors.list[i];
            const void *own = in->tensors ? in->tensors[i] : NULL;
            ptrdiff_t outer, inner;
            if (!loci_by_key(a, t, &outer, &inner) || rotated_already(p, i)) continue;
            CHECK(e, own || !keys, LOCI_BAD_ARG,
                  "%s: input tensor '%s' must be given with the call", t->encoding, t->name);
            w->tensor[i] = add_list(a, loci_from_first(p, enc) ? early : &a->transfer, own, outer,
                                    (size_t)inner * p->real);
        }
    return LOCI_OK;
}

/* ---- The pass of this rank alone ------------------------------------------------------------- */

/* Between work items the transport may make progress, but only on the thread that called. */
static _Thread_local char here;
static int ask_host(void *user)
{
    struct rank_pass *w = user;
    const loci_host *host = w->rank_ctx->call.host;
    if (&here == w->caller && !(w->progress && w->progress(w)))
        loci_progress(w->rank_ctx, &w->rank_ctx->transfer);
    return host && host->cancelled && host->cancelled(host->user);
}
static void run_on_host(void *user, int n, void (*job)(void *, int), void *arg)
{
    const loci_host *host = ((struct rank_pass *)user)->rank_ctx->call.host;
    host->run(host->user, n, job, arg);
}
static void make_host(struct rank_ctx *a, struct rank_pass *w)
{
    w->caller = &here;
    w->host = (loci_host){ .cancelled = ask_host, .user = w, .threads = 1 };
    if (a->call.host && a->call.host->run) {
        w->host.run = run_on_host;
        w->host.threads = a->call.host->threads;
    }
}

/* The call over all keys of the rank, at once or chunk by chunk. */
static void make_pass(struct rank_ctx *a, struct rank_pass *w)
{
    const struct loci_plan *p = a->plan;
    const bool gather = a->all.gather;
    const ptrdiff_t keys = (ptrdiff_t)a->transfer.measured, Hkv = p->kv_heads, D = key_dim(p);
    w->call = a->call;
    w->call.k_len = keys;
    w->call.work_bytes = 0;
    w->call.k = (loci_view){ w->k->gathered, Hkv * keys * D, keys * D, D };
    w->call.v =
        (loci_view){ w->v->gathered, Hkv * keys * p->value_dim, keys * p->value_dim, p->value_dim };
    if (w->k_pos) w->call.k_pos = (const int64_t *)w->k_pos->gathered;
    if (w->k_coord) w->call.k_coord = (const double *)w->k_coord->gathered;
    for (int i = 0; i < p->tensors.n; i++)
        w->tensors[i] = w->tensor[i]    ? w->tensor[i]->gathered
                      : a->call.tensors ? a->call.tensors[i]
                                        : NULL;
    w->call.tensors = w->tensors;
    w->opening = (struct opening){ .stage = LOCI_ATTENTION,
                                   .from = gather ? a->gathered.first : 0,
                                   .runs = a->runs,
                                   .run_count = a->run_count,
                                   .tiles = true,
                                   .keys = gather ? 0 : (ptrdiff_t)a->keys,
                                   .owned = &a->owned,
                                   .grad = w->grad,
                                   .chain = w->chain };
    w->opening.part = (struct part){ .state = a->state, .slot = a->slot, .count = keys };
    if (a->key_shares == a->all.shares && !a->placed) w->opening.part.values = a->owned.v;
    make_host(a, w);
    w->call.host = &w->host;
}

/* The rank's rows, run by run.  Returns the number of row tiles.  A rank without rows has an empty
 * run, because keys are rotated back within their sequence. */
static ptrdiff_t find_runs(struct rank_ctx *a)
{
    ptrdiff_t own = 0, n = 0, all = 0;
    if (a->runs) a->runs[0] = (struct run){ .first = 0 };
    for (int i = 0; i < a->all.count; i++) {
        const loci_share *s = &a->all.shares[i];
        if (s->rank != a->via.rank || !s->count) continue;
        if (a->runs)
            a->runs[n] = (struct run){ .first = own,
                                       .count = (ptrdiff_t)s->count,
                                       .at = s->first + a->keys - a->rows };
        n++;
        own += (ptrdiff_t)s->count;
        all += tiles((ptrdiff_t)s->count, ROWS);
    }
    a->run_count = n ? n : 1;
    return all;
}

ptrdiff_t loci_lay_out_rank(struct rank_ctx *a, struct rank_pass *w, struct arena *m)
{
    a->gathered = loci_required_range(a, a->via.rank).gathered;
    a->before.measured = a->keys;
    a->transfer.measured = a->all.gather   ? span_length(a->gathered)
                         : a->keys < CHUNK ? a->keys
                                           : CHUNK;
    a->required = carve_bytes(m, (size_t)a->via.ranks, sizeof *a->required);
    a->runs = carve_bytes(m, (size_t)a->all.count, sizeof *a->runs);
    for (int r = 0; a->required && r < a->via.ranks; r++)
        a->required[r] = loci_required_range(a, r);
    const ptrdiff_t rows = find_runs(a);
    struct transfer *const cargos[] = { &a->before, &a->transfer };
    for (int i = 0; i < COUNT(cargos); i++) {
        if (!cargos[i]->by_share) {
            cargos[i]->required = a->required;
            cargos[i]->required_count = a->via.ranks;
            cargos[i]->mine = a->required ? a->required + a->via.rank : NULL;
        }
        loci_carve_transfer(a, cargos[i], m);
    }
    make_pass(a, w);
    return rows;
}
void loci_measure_rank(struct rank_pass *w, bool streamed)
{
    static struct run none;
    w->opening.runs = &none;
    w->call.k_pos = w->call.q_pos;
    w->call.k_coord = w->call.q_coord;
    if (streamed) w->opening.part.state = (char *)&none;
}

loci_status loci_open_arrays(struct rank_ctx *a, struct rank_pass *w)
{
    const loci_call *in = &a->call;
    const struct loci_plan *p = a->plan;
    loci_error *e = in->error;
    TRY(loci_check_fields(a));
    TRY(loci_open_shares(a));
    CHECK(e, in->batch >= 0 && in->batch < MOST_NUMBERS / p->heads / (p->dim + p->value_dim + 1),
          LOCI_BAD_ARG, "batch %td is too large or negative", in->batch);
    CHECK(e, !in->q_pos == !in->k_pos, LOCI_BAD_ARG, "q_pos and k_pos must be given together");
    CHECK(e, !in->q_coord == !in->k_coord, LOCI_BAD_ARG,
          "q_coord and k_coord must be given together");
    a->placed = in->q_pos || in->q_coord;
    return open_cargo(a, w);
}
loci_status loci_open_pass(struct rank_ctx *a, const void *tables, struct rank_pass *w)
{
    TRY(loci_open_attention(&w->open, a->plan, tables, a->inner, &w->call, &w->opening));
    return w->grad ? loci_check_results(&w->open, w->grad) : LOCI_OK;
}
loci_status loci_open_rank(struct rank_ctx *a, const void *tables, void *work, struct rank_pass *w,
                           lay_out_rank *lay_out)
{
    loci_error *e = &a->said;
    const size_t bytes = lay_out(a, NULL, w);
    TRY(loci_check_work(a, work, bytes, "loci_parallel_workspace"));
    TRY(loci_check_tables(a->plan, tables, a->call.tables_bytes, e));
    a->owned.in = &a->call;
    a->owned.work = work;
    a->owned.work_bytes = bytes;
    lay_out(a, work, w);
    /* Positions and coordinates of keys that do not arrive are still read, so they are set to 0. */
    if (w->k_pos)
        memset(w->k_pos->gathered, 0,
               (size_t)(w->k_pos->n[0]
                        * (a->all.gather ? a->transfer.measured : a->before.measured))
                   * sizeof(int64_t));
    if (w->k_coord)
        memset(w->k_coord->gathered, 0,
               (size_t)(w->k_coord->n[0] * a->transfer.measured) * sizeof(double));
    /* If positions are given, those of the keys must arrive first. */
    return a->placed ? LOCI_OK : loci_open_pass(a, tables, w);
}

void loci_report(const struct rank_ctx *a, const struct rank_pass *w)
{
    loci_parallel_report *report = a->all.report;
    if (!report) return;
    report->attention = w->attention;
    report->waited = a->waited;
    report->sent = a->sent;
    report->received = a->received;
}
