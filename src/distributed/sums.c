/* SPDX-License-Identifier: MIT */
/* sums.c -- sums by key that pass from rank to rank.  See sums.h. */
#include "distributed/sums.h"

/* ---- Which shares see which chunks ----------------------------------------------------------- */

static bool meets(const struct backward *w, int share, int64_t chunk)
{
    /* there is no list yet while the workspace is measured */
    const struct key_span s = w->spans ? w->spans[share].gathered
                                       : loci_share_required_range(w->w.rank_ctx, share).gathered;
    return s.first < (chunk + 1) * CHUNK && s.end > chunk * CHUNK && span_length(s);
}
/* The next share and the previous share that see a chunk.  -1: none. */
static int later(const struct rank_ctx *a, const struct backward *w, int share, int64_t chunk)
{
    for (int s = share + 1; s < a->all.count; s++)
        if (meets(w, s, chunk)) return s;
    return -1;
}
static int earlier(const struct backward *w, int share, int64_t chunk)
{
    for (int s = share - 1; s >= 0; s--)
        if (meets(w, s, chunk)) return s;
    return -1;
}
static int latest(const struct rank_ctx *a, const struct backward *w, int64_t chunk)
{
    return earlier(w, a->all.count, chunk);
}
static int rank_of(const struct rank_ctx *a, int share) { return a->all.shares[share].rank; }
static bool mine(const struct rank_ctx *a, int share) { return rank_of(a, share) == a->via.rank; }
static bool same_rank(const struct rank_ctx *a, int share, int other)
{
    return share >= 0 && other >= 0 && rank_of(a, share) == rank_of(a, other);
}

ptrdiff_t loci_key_number(const struct rank_ctx *a, const struct backward *w, int64_t key)
{
    return (ptrdiff_t)(key - (a->all.gather ? a->gathered.first : w->w.open.stream.first));
}

/* ---- Packing and unpacking sums -------------------------------------------------------------- */

void loci_copy_sums(const struct backward *w, enum what what, ptrdiff_t at, ptrdiff_t keys,
                    char *message)
{
    const size_t measured = (size_t)w->w.open.Lk;
    for (int i = 0; i < w->n; i++) {
        const struct sum_list *s = &w->sums[i];
        const size_t bytes = (size_t)keys * s->row;
        for (ptrdiff_t n = 0; n < s->lists; n++) {
            char *rows = s->data + ((size_t)n * measured + (size_t)at) * s->row;
            if (what == CLEAR) memset(rows, 0, bytes);
            else if (what == PACK) memcpy(message, rows, bytes);
            else memcpy(rows, message, bytes);
            if (what != CLEAR) message += bytes;
        }
    }
}
static void add_list(struct backward *w, void *data, ptrdiff_t lists, size_t row)
{
    if (!data || !lists) return;
    w->sums[w->n++] = (struct sum_list){ data, lists, row };
    w->bytes += (size_t)lists * row;
}
void loci_find_sums(struct backward *w, const struct call *c, bool all)
{
    static char some;
    const struct loci_plan *p = c->plan;
    w->n = 0;
    w->bytes = w->total_bytes = 0;
    add_list(w, all ? &some : c->g.dk.data, c->B * p->key_heads, (size_t)p->score_dim * p->real);
    add_list(w, all ? &some : c->g.dv.data, c->B * p->kv_heads, (size_t)p->value_dim * p->real);
    for (int x = 0; x < p->uses; x++) {
        ptrdiff_t first, count;
        const int width = p->engine->chained->keyed(c, x, &first, &count);
        double *total = c->g.total[x];
        if (!all && !total) continue;
        w->total_bytes += (size_t)first * sizeof *total;
        if (width)
            add_list(w, all ? (void *)&some : total + first, count, (size_t)width * sizeof *total);
    }
}

/* ---- Messages -------------------------------------------------------------------------------- */

static void send_from(struct rank_ctx *a, void **request, int to, int tag, const char *data,
                      size_t bytes)
{
    *request = NULL;
    if (a->broken || !bytes) return;
    a->broken = a->via.send(a->via.user, to, tag, data, bytes, request) != 0;
    a->sent += bytes;
}
void loci_send_to(struct rank_ctx *a, struct sum_buffer *b, int to, int tag, const char *data,
                  size_t bytes)
{
    send_from(a, &b->requests[b->n++], to, tag, data, bytes);
}
void loci_receive_from(struct rank_ctx *a, void **request, int from, int tag, char *data,
                       size_t bytes)
{
    *request = NULL;
    if (a->broken || !bytes) return;
    a->broken = a->via.receive(a->via.user, from, tag, data, bytes, request) != 0;
    a->received += bytes;
}
void loci_end_sends(struct rank_ctx *a, struct sum_buffer *b)
{
    for (int i = 0; i < b->n; i++) loci_end_request(a, &b->requests[i]);
    b->n = 0;
}
static struct sum_buffer *next_out(struct rank_ctx *a, struct backward *w)
{
    struct sum_buffer *b = &w->out[w->out_index++ % OUTS];
    loci_end_sends(a, b);
    return b;
}

/* The messages of a chunk, oldest first. */
#define EACH_MESSAGE(a, chunk, p) \
    for (int s_ = 0; s_ < (a)->key_count; s_++) \
        for (struct message p = { .share = -1 }; p.share < 0 && loci_message_of(a, s_, chunk, &p); \
             p.share = s_)

/* ---- Own chunks ------------------------------------------------------------------------------ */

/* The first share, from this one down, whose sums of a chunk are buffered at the owner because the
 * next share belongs to the same rank.  -1: none. */
static int waits_for(const struct rank_ctx *a, const struct backward *w, int share, int64_t chunk)
{
    int next = earlier(w, share, chunk);
    while (next >= 0 && !same_rank(a, share, next)) {
        share = next;
        next = earlier(w, share, chunk);
    }
    return next;
}
static bool waits(const struct rank_ctx *a, const struct backward *w, int64_t chunk, int *share)
{
    const int last = latest(a, w, chunk);
    *share = last < 0 ? -1 : waits_for(a, w, last, chunk);
    return *share >= 0;
}
int64_t loci_buffered_keys(const struct rank_ctx *a, const struct backward *w)
{
    int64_t n = 0;
    struct message p;
    int share;
    for (bool more = loci_first_message(a, &p); more; more = loci_next_message(a, &p))
        if (loci_owner(a, &p) == a->via.rank && waits(a, w, p.chunk, &share)) n += p.count;
    return n;
}
/* Requests the sums that will be buffered here for this share. */
static void expect(struct rank_ctx *a, const struct backward *w, struct own_chunk *h, int share)
{
    loci_end_request(a, &h->back);
    h->waits_for = share;
    h->gone = false;
    if (!mine(a, share))
        loci_receive_from(a, &h->buffered, rank_of(a, share), loci_tag_of(a, TAG_BUFFER, &h->p),
                          h->forward_buf, (size_t)h->p.count * w->bytes);
}
void loci_open_own_chunks(struct rank_ctx *a, struct backward *w)
{
    struct message p;
    char *forward_buf = w->forwarded;
    w->own_chunk_count = 0;
    w->served = a->all.count;
    for (bool more = loci_first_message(a, &p); more; more = loci_next_message(a, &p)) {
        if (loci_owner(a, &p) != a->via.rank) continue;
        const size_t bytes = (size_t)p.count * w->bytes;
        struct own_chunk *h = &w->own_chunks[w->own_chunk_count++];
        *h = (struct own_chunk){ .p = p,
                                 .waits_for = -1,
                                 .forward_buf = forward_buf,
                                 .data = w->own_sums + (size_t)loci_keys_before(a, &p) * w->bytes };
        int share, last = latest(a, w, p.chunk);
        if (waits(a, w, p.chunk, &share)) {
            forward_buf += bytes;
            expect(a, w, h, share);
        }
        for (int s = last; s >= 0; s = earlier(w, s, p.chunk)) last = s;
        if (last < 0) memset(h->data, 0, bytes); /* keys that no row sees */
        else if (!mine(a, last))
            loci_receive_from(a, &h->final, rank_of(a, last), loci_tag_of(a, TAG_OWN, &p), h->data,
                              bytes);
    }
}
/* Sends the sums that are buffered here for this share back to its rank. */
static void send_back(struct rank_ctx *a, struct backward *w, struct own_chunk *h, int share)
{
    if (!meets(w, share, h->p.chunk) || mine(a, share)
        || !same_rank(a, later(a, w, share, h->p.chunk), share))
        return;
    if (h->waits_for != share) expect(a, w, h, share);
    if (h->gone) return;
    loci_end_request(a, &h->buffered);
    h->gone = true;
    send_from(a, &h->back, rank_of(a, share), loci_tag_of(a, TAG_BACK, &h->p), h->forward_buf,
              (size_t)h->p.count * w->bytes);
}
void loci_serve_early(struct rank_ctx *a, struct backward *w)
{
    for (int64_t i = 0; i < w->own_chunk_count && a->via.test && !a->broken; i++) {
        struct own_chunk *h = &w->own_chunks[i];
        if (!h->buffered) continue;
        a->broken = a->via.test(a->via.user, &h->buffered) != 0;
        if (!h->buffered && !a->broken) send_back(a, w, h, h->waits_for);
    }
}
void loci_serve(struct rank_ctx *a, struct backward *w, int share)
{
    for (int s = w->served - 1; s >= share && !a->broken; s--)
        for (int64_t i = 0; i < w->own_chunk_count && !a->broken; i++)
            send_back(a, w, &w->own_chunks[i], s);
    w->served = share;
}
void loci_end_own_chunks(struct rank_ctx *a, struct backward *w)
{
    for (int64_t i = 0; i < w->own_chunk_count; i++) {
        struct own_chunk *h = &w->own_chunks[i];
        loci_end_request(a, &h->buffered);
        loci_end_request(a, &h->back);
        loci_end_request(a, &h->final);
    }
}
static struct own_chunk *own_chunk_of(struct backward *w, const struct message *p)
{
    int64_t low = 0, high = w->own_chunk_count;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (w->own_chunks[middle].p.first <= p->first) low = middle;
        else high = middle;
    }
    return &w->own_chunks[low];
}

/* ---- From rank to rank ----------------------------------------------------------------------- */

/* How many keys a chunk has, and where its messages have those of a piece. */
static ptrdiff_t chunk_keys(const struct rank_ctx *a, int64_t chunk)
{
    const int64_t left = a->keys - chunk * CHUNK;
    return (ptrdiff_t)(left < CHUNK ? left : CHUNK);
}
static char *message_at(const struct backward *w, const struct sum_buffer *b,
                        const struct message *p)
{
    return b->data + (size_t)(p->first - p->chunk * CHUNK) * w->bytes;
}
static bool owns(const struct rank_ctx *a, const struct message *p)
{
    return loci_owner(a, p) == a->via.rank;
}

void loci_ask_sums(struct rank_ctx *a, struct backward *w, int share, int64_t chunk)
{
    const int from = later(a, w, share, chunk);
    w->in.n = 0;
    if (from < 0) return;
    if (!mine(a, from)) {
        loci_receive_from(a, &w->in.requests[w->in.n++], rank_of(a, from), TAG_ON, w->in.data,
                          (size_t)chunk_keys(a, chunk) * w->bytes);
        return;
    }
    EACH_MESSAGE(a, chunk, p)
    if (!owns(a, &p))
        loci_receive_from(a, &w->in.requests[w->in.n++], loci_owner(a, &p),
                          loci_tag_of(a, TAG_BACK, &p), message_at(w, &w->in, &p),
                          (size_t)p.count * w->bytes);
}
void loci_recv_sums(struct rank_ctx *a, struct backward *w, int share, int64_t chunk)
{
    const int from = later(a, w, share, chunk);
    const ptrdiff_t at = loci_key_number(a, w, chunk * CHUNK), keys = chunk_keys(a, chunk);
    loci_end_sends(a, &w->in);
    if (a->broken) return;
    if (from < 0) loci_copy_sums(w, CLEAR, at, keys, NULL);
    else if (!mine(a, from)) loci_copy_sums(w, UNPACK, at, keys, w->in.data);
    else EACH_MESSAGE(a, chunk, p)
    loci_copy_sums(w, UNPACK, loci_key_number(a, w, p.first), (ptrdiff_t)p.count,
                   owns(a, &p) ? own_chunk_of(w, &p)->forward_buf : message_at(w, &w->in, &p));
}
void loci_forward_sums(struct rank_ctx *a, struct backward *w, int share, int64_t chunk)
{
    const int next = earlier(w, share, chunk);
    struct sum_buffer *out = next_out(a, w);
    if (a->broken) return;
    if (next >= 0 && !same_rank(a, share, next)) {
        const ptrdiff_t keys = chunk_keys(a, chunk);
        loci_copy_sums(w, PACK, loci_key_number(a, w, chunk * CHUNK), keys, out->data);
        loci_send_to(a, out, rank_of(a, next), TAG_ON, out->data, (size_t)keys * w->bytes);
        return;
    }
    EACH_MESSAGE(a, chunk, p)
    {
        struct own_chunk *h = owns(a, &p) ? own_chunk_of(w, &p) : NULL;
        char *to = !h ? message_at(w, out, &p) : next < 0 ? h->data : h->forward_buf;
        if (h && next >= 0) loci_end_request(a, &h->back);
        loci_copy_sums(w, PACK, loci_key_number(a, w, p.first), (ptrdiff_t)p.count, to);
        if (!h)
            loci_send_to(a, out, loci_owner(a, &p),
                         loci_tag_of(a, next < 0 ? TAG_OWN : TAG_BUFFER, &p), to,
                         (size_t)p.count * w->bytes);
    }
}
