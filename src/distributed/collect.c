/* SPDX-License-Identifier: MIT */
/* collect.c -- encodings whose gradients need the results of all rows and keys together, because
 * rows of different ranks may have the same position.  Rank 0 collects them, computes the gradients
 * as one process does, and sends them to the other ranks. */
#include "distributed/sums.h"

enum { PIECE = 256 }; /* rows of a message */

/* Bytes of a row of a head that an encoding collects.  0: none. */
static size_t row_size(const struct call *c, int enc)
{
    const struct loci_pe *pe = c->plan->enc[enc].pe;
    return pe->stream && pe->stream->row_size ? pe->stream->row_size(c, enc) : 0;
}
static bool wanted(const struct rank_ctx *a, const struct backward *w, int enc)
{
    const struct loci_plan *p = a->plan;
    bool any = false;
    for (int i = p->first_tensor[enc]; i < p->first_tensor[enc + 1]; i++) any |= w->want[i] != NULL;
    return any && row_size(&w->w.open, enc);
}

/* The call over all rows and keys, with the fields that end() reads. */
static void make_full(const struct rank_ctx *a, struct collected *f)
{
    f->in = a->call;
    f->in.q_len = (ptrdiff_t)a->rows;
    f->in.k_len = (ptrdiff_t)a->keys;
    f->in.q_coord = f->q_coord;
    f->in.k_coord = f->k_coord;
    f->call = (struct call){ .plan = a->plan,
                             .in = &f->in,
                             .B = a->call.batch,
                             .Lq = f->in.q_len,
                             .Lk = f->in.k_len,
                             .backward = true,
                             .where.k_coord = f->k_coord };
    f->call.threads = f->in.host && f->in.host->run ? f->in.host->threads : 1;
}
void loci_lay_out_collected(const struct rank_ctx *a, const struct measured *measured,
                            struct collected *f, struct arena *m)
{
    const struct loci_plan *p = a->plan;
    const size_t B = (size_t)a->call.batch, lists = (a->call.per_batch ? B : 1) * (size_t)p->axes;
    for (int e = 0; e < p->encs; e++) {
        const size_t bytes = row_size(&measured->call, e);
        if (!bytes) continue;
        f->keys = carve_bytes(m, B * (size_t)(p->kv_heads * a->call.k_len), bytes);
        f->message = carve_bytes(m, PIECE, bytes > sizeof(double) ? bytes : sizeof(double));
        if (a->via.rank) return;
        f->q_coord = carve_bytes(m, lists * (size_t)a->rows, sizeof(double));
        f->k_coord = carve_bytes(m, lists * (size_t)a->keys, sizeof(double));
        make_full(a, f);
        f->scratch = carve_bytes(m, p->enc[e].pe->scratch(&f->call, e), 1);
        return;
    }
}

void loci_collect_keys(const struct rank_ctx *a, const struct backward *w, ptrdiff_t at,
                       ptrdiff_t keys, ptrdiff_t own)
{
    const struct loci_plan *p = a->plan;
    const struct call *c = &w->w.open;
    for (int e = 0; e < p->encs; e++) {
        if (!wanted(a, w, e)) continue;
        const size_t bytes = row_size(c, e);
        for (ptrdiff_t i = 0; i < c->B * p->kv_heads; i++)
            p->enc[e].pe->stream->move_rows(c, e, false, i, at, keys,
                                            w->collected.keys
                                                + (size_t)(i * a->call.k_len + own) * bytes,
                                            false);
    }
}

/* Sends a message from its owner to rank 0.  Returns false on ranks that take no part in it. */
static bool pass(struct rank_ctx *a, struct backward *w, int owner, size_t bytes)
{
    char *message = w->collected.message;
    if (a->broken || (owner != a->via.rank && a->via.rank)) return false;
    if (owner == 0) return true;
    if (a->via.rank) loci_send_to(a, &w->in, 0, TAG_TOTALS, message, bytes);
    else loci_receive_from(a, &w->in.requests[w->in.n++], owner, TAG_TOTALS, message, bytes);
    loci_end_sends(a, &w->in);
    return !a->broken;
}
/* Pieces of all shares, in an order that both sides know.  own: the owner's own row number. */
struct walk {
    int share;
    int64_t at;
    ptrdiff_t own;
};
static bool walk(const loci_share *list, int count, struct walk *p, ptrdiff_t *rows)
{
    for (; p->share < count; p->share++, p->at = 0) {
        const loci_share *s = &list[p->share];
        if (p->at >= s->count) continue;
        p->own = (ptrdiff_t)p->at;
        for (int i = 0; i < p->share; i++)
            p->own += list[i].rank == s->rank ? (ptrdiff_t)list[i].count : 0;
        *rows = s->count - p->at < PIECE ? (ptrdiff_t)(s->count - p->at) : PIECE;
        p->at += *rows;
        return true;
    }
    return false;
}
static void collect_coordinates(struct rank_ctx *a, struct backward *w, bool query)
{
    const loci_share *list = query ? a->all.shares : a->key_shares;
    const int count = query ? a->all.count : a->key_count;
    const int64_t all = query ? a->rows : a->keys;
    const ptrdiff_t len = query ? a->call.q_len : a->call.k_len,
                    lists = (a->call.per_batch ? a->call.batch : 1) * a->plan->axes;
    const double *own = query ? a->call.q_coord : a->call.k_coord;
    double *to = query ? w->collected.q_coord : w->collected.k_coord;
    ptrdiff_t n;
    for (ptrdiff_t i = 0; own && i < lists; i++)
        for (struct walk p = { 0 }; walk(list, count, &p, &n);) {
            const int owner = list[p.share].rank;
            const size_t bytes = (size_t)n * sizeof *own;
            if (owner == a->via.rank) memcpy(w->collected.message, own + i * len + p.own, bytes);
            if (pass(a, w, owner, bytes) && !a->via.rank)
                memcpy(to + i * all + list[p.share].first + p.at - n, w->collected.message, bytes);
        }
}
static void collect_rows(struct rank_ctx *a, struct backward *w, int enc, bool query)
{
    const struct loci_pe *pe = a->plan->enc[enc].pe;
    const loci_share *list = query ? a->all.shares : a->key_shares;
    const int count = query ? a->all.count : a->key_count;
    const ptrdiff_t heads = a->call.batch * (query ? a->plan->heads : a->plan->kv_heads);
    const size_t each = row_size(&w->w.open, enc);
    char *message = w->collected.message;
    ptrdiff_t n;
    for (ptrdiff_t i = 0; i < heads; i++)
        for (struct walk p = { 0 }; walk(list, count, &p, &n);) {
            const int owner = list[p.share].rank;
            if (owner == a->via.rank && query)
                pe->stream->move_rows(&w->w.open, enc, true, i, p.own, n, message, false);
            else if (owner == a->via.rank)
                memcpy(message, w->collected.keys + (size_t)(i * a->call.k_len + p.own) * each,
                       (size_t)n * each);
            if (pass(a, w, owner, (size_t)n * each) && !a->via.rank)
                pe->stream->move_rows(&w->collected.call, enc, query, i,
                                      (ptrdiff_t)(list[p.share].first + p.at) - n, n, message,
                                      true);
        }
}
/* Rank 0 has the gradients and sends them to all others. */
static void spread(struct rank_ctx *a, struct backward *w, int enc)
{
    const struct loci_plan *p = a->plan;
    for (int i = p->first_tensor[enc]; i < p->first_tensor[enc + 1]; i++) {
        double *x = w->w.open.g.dtensor[i];
        const size_t bytes = sizeof *x * (size_t)w->w.open.g.dtensor_count[i];
        if (!x || p->tensors.list[i].role == LOCI_INPUT) continue;
        for (int r = 1; r < a->via.ranks && !a->via.rank; r++) {
            loci_send_to(a, &w->in, r, TAG_TOTALS, (const char *)x, bytes);
            loci_end_sends(a, &w->in);
        }
        if (!a->via.rank) continue;
        loci_receive_from(a, &w->in.requests[w->in.n++], 0, TAG_TOTALS, (char *)x, bytes);
        loci_end_sends(a, &w->in);
    }
}
void loci_collect(struct rank_ctx *a, struct backward *w, bool works)
{
    const struct loci_plan *p = a->plan;
    struct collected *f = &w->collected;
    for (int e = 0; e < p->encs && !a->broken; e++) {
        if (!wanted(a, w, e) || !a->call.batch) continue;
        collect_coordinates(a, w, true);
        collect_coordinates(a, w, false);
        if (!a->via.rank) {
            make_full(a, f);
            f->in.host = w->w.open.in->host;
            f->call.threads = w->w.open.threads;
            f->call.k = w->w.open.k;
            memcpy(f->call.table, w->w.open.table, sizeof f->call.table);
            memcpy(f->call.g.dtensor, w->w.open.g.dtensor, sizeof f->call.g.dtensor);
            f->call.mem.scratch[e] = f->scratch;
            p->enc[e].pe->begin(&f->call, e);
        }
        collect_rows(a, w, e, true);
        collect_rows(a, w, e, false);
        if (!a->via.rank && works && !a->broken) p->enc[e].pe->end(&f->call, e);
        spread(a, w, e);
    }
}
