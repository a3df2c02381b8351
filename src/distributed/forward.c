/* SPDX-License-Identifier: MIT */
/* forward.c -- the forward pass over many processes.  The rows of a rank are runs of one long
 * sequence, so their bits are the same as in that sequence.  Gathered: a rank collects the keys
 * that its rows may see, then works alone.  Streamed: chunks of keys arrive newest first, in the
 * order in which every row walks over them.  Between chunks the state of rows is saved in the
 * workspace. */
#include "distributed/gathered.h"

/* Lays out the workspace, or with base NULL measures it.  Returns its bytes, or SIZE_MAX. */
static size_t lay_out(struct rank_ctx *a, char *base, struct rank_pass *w)
{
    struct arena m = { .base = base };
    const ptrdiff_t slots = loci_lay_out_rank(a, w, &m) * a->call.batch * a->plan->heads;
    if (!base) loci_measure_rank(w, !a->all.gather);
    struct measured measured;
    const size_t inner = loci_measure_attention(a->plan, &w->call, &w->opening, &measured);
    a->slot = measured.slot;
    a->inner = carve_bytes(&m, inner, 1);
    a->state = a->all.gather ? NULL : carve_bytes(&m, (size_t)slots + 1, a->slot);
    w->opening.part.state = a->state;
    w->opening.part.slot = a->slot;
    return m.full || !inner ? SIZE_MAX : m.used;
}

/* Runs the engine on the present keys. */
static loci_status pass(struct rank_ctx *a, struct call *c)
{
    const loci_status status = c->fast ? c->plan->engine->fast(c) : c->plan->engine->forward(c);
    return status ? loci_fail(&a->said, status, "cancelled by the host") : LOCI_OK;
}
static loci_status run_gathered(struct rank_ctx *a, struct rank_pass *w)
{
    struct call *c = &w->open;
    if (!c->B || !c->Lq) return LOCI_OK;
    const double begun = loci_clock_steady();
    loci_begin(c, true);
    const loci_status status = pass(a, c);
    w->attention += loci_clock_steady() - begun;
    return status;
}
/* Chunk by chunk, newest first.  After a cancel the rank still receives messages, because others
 * may wait until they are received. */
static loci_status run_streamed(struct rank_ctx *a, struct rank_pass *w)
{
    struct call *c = &w->open;
    struct recv_queue in;
    loci_status status = LOCI_OK;
    const bool rows = c->B && c->Lq;
    const int64_t oldest = a->gathered.first / CHUNK,
                  newest = span_length(a->gathered) ? (a->gathered.end - 1) / CHUNK : oldest;
    if (rows) loci_begin_others(c);
    loci_begin_recv(a, &in, &a->transfer, NEWEST_FIRST);
    for (int64_t chunk = newest; chunk >= oldest && !a->broken; chunk--) {
        while (in.more && in.next.chunk == chunk && !a->broken)
            loci_recv_message(a, &in, chunk * CHUNK);
        if (!rows || status || a->broken) continue;
        const double begun = loci_clock_steady();
        c->stream.part.opens = chunk == newest;
        c->stream.part.closes = chunk == oldest;
        loci_begin_part(c, (ptrdiff_t)(chunk * CHUNK));
        status = pass(a, c);
        w->attention += loci_clock_steady() - begun;
    }
    return status;
}

/* ---- The pass of all ranks ------------------------------------------------------------------- */

static loci_status forward(struct rank_ctx *a, const void *tables, struct rank_pass *w)
{
    /* If opening the pass can fail, messages that would not be received then are sent after it. */
    const bool late = a->placed && !a->all.gather;
    loci_send(a, &a->before);
    if (!late) loci_send(a, &a->transfer);
    loci_recv_all(a, &a->before, 0);
    if (a->all.gather) loci_recv_all(a, &a->transfer, a->gathered.first);
    if (a->placed && !a->broken) TRY(loci_agree(a, loci_open_pass(a, tables, w), NULL, 0));
    if (late) loci_send(a, &a->transfer);
    if (a->broken) return LOCI_TRANSPORT;
    const loci_status status = a->all.gather ? run_gathered(a, w) : run_streamed(a, w);
    loci_end_transfer(a, &a->before);
    loci_end_transfer(a, &a->transfer);
    return a->broken ? LOCI_TRANSPORT : loci_agree(a, status, NULL, 0);
}

static loci_status open_own(struct rank_ctx *a, const loci_plan *p, const void *tables, void *work,
                            const loci_call *given, struct rank_pass *w)
{
    TRY(loci_copy_own_call(a, p, given));
    TRY(loci_open_arrays(a, w));
    return loci_open_rank(a, tables, work, w, lay_out);
}
loci_status loci_parallel_forward(const loci_plan *p, const void *tables, void *work,
                                  const loci_call *given, const loci_parallel *all)
{
    struct rank_ctx a = { .error = given ? given->error : NULL };
    struct rank_pass w = { .rank_ctx = &a };
    TRY(loci_open_transport(&a, p, all));
    TRY(loci_agree_on_call(&a, open_own(&a, p, tables, work, given, &w), tables));
    const loci_status status = forward(&a, tables, &w);
    /* After this the caller's memory is not in use any more, even after an error. */
    loci_end_transfer(&a, &a.before);
    loci_end_transfer(&a, &a.transfer);
    if (a.broken) return loci_break(&a);
    if (!status) loci_report(&a, &w);
    return status;
}

size_t loci_forward_over_ranks(const loci_plan *p, const loci_call *given, const loci_parallel *all)
{
    struct rank_ctx a = { .error = NULL };
    struct rank_pass w = { .rank_ctx = &a };
    if (loci_open_transport(&a, p, all)
        || COPY_STRUCT(loci_call, &a.call, given, error, wants_sizes(p), NULL))
        return 0;
    a.call.error = NULL;
    a.plan = p;
    if (loci_open_arrays(&a, &w)) return 0;
    const size_t bytes = lay_out(&a, NULL, &w);
    return bytes == SIZE_MAX ? 0 : bytes;
}
