/* SPDX-License-Identifier: MIT */
/* fox_stream.c -- sums of log_f over keys of many ranks.  Forward, each rank continues from the
 * sum and the marks of the keys before its own.  Backward, gradients of log_f are sums of dC
 * over older keys, which pass from chunk to chunk. */
#include "encodings/streams.h"
#include "layout/gate.h"

static loci_status accept(const struct call *c, int enc)
{
    CHECK(c->in->error, !streamed(c) || !gate_stops(c, enc), LOCI_UNSUPPORTED,
          "fox: stop needs the norms of all keys; set gather = 1");
    CHECK(c->in->error, !c->stream.part.partial_inputs || (!c->where.k_pos && !c->cache),
          LOCI_UNSUPPORTED,
          "fox: decode over several processes supports neither caches nor k_pos, because sums of "
          "log_f pass from process to process");
    return LOCI_OK;
}

static size_t state_size(const struct call *c, int enc)
{
    (void)enc;
    return (size_t)(c->B * c->plan->heads) * sizeof(struct gate_state);
}
static void save_state(const struct call *c, int enc, void *to)
{
    const struct gate_sums *g = c->mem.scratch[enc];
    struct gate_state *states = to;
    const ptrdiff_t tiles = (ptrdiff_t)(present_keys(c).end + KT - 1) / KT;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++)
        for (int h = 0; h < c->plan->heads; h++) {
            const struct sequence *q = &c->seqs.list[s];
            const ptrdiff_t at = h * c->seqs.ktiles + q->first_ktile + tiles - 1;
            states[q->b * c->plan->heads + h] =
                tiles ? (struct gate_state){ g->sum[at], g->marks[at] } : (struct gate_state){ 0 };
        }
}

static size_t key_state_size(const struct call *c, int enc)
{
    (void)enc;
    return (size_t)(c->B * c->plan->heads) * sizeof(double);
}
/* The rank's own keys of a chunk. */
static void end_keys(struct call *c, int enc)
{
    const struct loci_plan *p = c->plan;
    const struct chain *chain = &c->stream.chain;
    const double *total = gate_total(c, enc);
    double *dlog_f = c->g.dtensor[p->first_tensor[enc] + GATE_LOG_F];
    double *older = chain->key_state[enc];
    for (ptrdiff_t b = 0; total && dlog_f && b < c->B; b++) {
        const struct sequence *q = &c->seqs.list[b * c->stream.run_count];
        const bool sums = sees_intervals(c, q);
        const int64_t last = chain->last[b] - pos_k(c, b, -c->stream.first);
        const ptrdiff_t seen = (sums ? gate_newest_at(c, q, last) + 1 : q->nk)
                             - (c->stream.first + chain->own),
                        n = seen < 0            ? 0
                          : seen < chain->count ? seen
                                                : chain->count;
        for (int h = 0; h < p->heads; h++) {
            const ptrdiff_t at = (b * p->heads + h) * c->Lk + chain->own;
            gate_end_keys(total + at, dlog_f + at, n, sums, older + b * p->heads + h);
        }
    }
}

const struct encoding_stream loci_fox_stream = {
    .accept = accept,
    .state_size = state_size,
    .save_state = save_state,
    .end_keys = end_keys,
    .key_state_size = key_state_size,
};
