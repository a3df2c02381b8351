/* SPDX-License-Identifier: MIT */
/* transfer.c -- transfer of keys.  Owners pack their keys once.  They start to send them to all
 * ranks that require them before anything else.  A rank requests a few messages ahead of the one
 * that it works on.  So no rank forwards keys of another rank, and none waits for what a third rank
 * does. */
#include "distributed/rank_context.h"

/* ---- Which messages there are ---------------------------------------------------------------- */

static int64_t first_chunk(const loci_share *s) { return s->first / CHUNK; }
static int64_t last_chunk(const loci_share *s) { return (s->first + s->count - 1) / CHUNK; }
static struct message message_at(const struct rank_ctx *a, int share, int64_t chunk)
{
    const loci_share *s = &a->key_shares[share];
    const int64_t low = chunk * CHUNK, high = low + CHUNK, end = s->first + s->count;
    const int64_t first = s->first > low ? s->first : low;
    return (struct message){
        .share = share, .chunk = chunk, .first = first, .count = (end < high ? end : high) - first
    };
}
int loci_owner(const struct rank_ctx *a, const struct message *p)
{
    return a->key_shares[p->share].rank;
}
static bool required(const struct transfer *g, const struct message *p,
                     const struct required_range *n)
{
    if (g->everything) return n->rows;
    return p->first < n->gathered.end && p->first + p->count > n->gathered.first;
}

/* The share that a rank starts with. */
static int start(const struct rank_ctx *a, enum order order)
{
    for (int s = 0; order == GATHERED && s < a->key_count; s++)
        if (a->key_shares[s].rank == a->via.rank) return s;
    return order == NEWEST_FIRST ? a->key_count - 1 : 0;
}
/* The first message of a share.  Returns false if the share is empty. */
static bool open_share(const struct rank_ctx *a, int share, enum order order, struct message *p)
{
    const loci_share *s = &a->key_shares[share];
    if (!s->count) return false;
    *p = message_at(a, share, order == NEWEST_FIRST ? last_chunk(s) : first_chunk(s));
    return true;
}
bool loci_message_of(const struct rank_ctx *a, int share, int64_t chunk, struct message *p)
{
    const loci_share *s = &a->key_shares[share];
    if (!s->count || chunk < first_chunk(s) || chunk > last_chunk(s)) return false;
    *p = message_at(a, share, chunk);
    return true;
}
/* The message after p in this order.  Returns false if p is the last. */
static bool step(const struct rank_ctx *a, enum order order, struct message *p)
{
    const loci_share *s = &a->key_shares[p->share];
    if (order != NEWEST_FIRST && p->chunk < last_chunk(s)) {
        *p = message_at(a, p->share, p->chunk + 1);
        return true;
    }
    if (order == NEWEST_FIRST && p->chunk > first_chunk(s)) {
        *p = message_at(a, p->share, p->chunk - 1);
        return true;
    }
    const int from = start(a, order), n = a->key_count;
    for (int share = p->share;;) {
        share = order == NEWEST_FIRST ? share - 1 : (share + 1) % n;
        if (order == NEWEST_FIRST ? share < 0 : share == from) return false;
        if (open_share(a, share, order, p)) return true;
    }
}
/* The first message in this order, from p on, that this rank requires. */
static bool needed(const struct rank_ctx *a, const struct recv_queue *in, struct message *p)
{
    do {
        if (required(in->transfer, p, in->transfer->mine)) return true;
    } while (step(a, in->order, p));
    return false;
}
bool loci_first_message(const struct rank_ctx *a, struct message *p)
{
    for (int s = 0; s < a->key_count; s++)
        if (open_share(a, s, OLDEST_FIRST, p)) return true;
    return false;
}
bool loci_next_message(const struct rank_ctx *a, struct message *p)
{
    return step(a, OLDEST_FIRST, p);
}

int64_t loci_keys_before(const struct rank_ctx *a, const struct message *p)
{
    int64_t n = p->first - a->key_shares[p->share].first;
    for (int s = 0; s < p->share; s++)
        n += a->key_shares[s].rank == loci_owner(a, p) ? a->key_shares[s].count : 0;
    return n;
}
int loci_tag_of(const struct rank_ctx *a, int kind, const struct message *p)
{
    int64_t n = p->chunk - first_chunk(&a->key_shares[p->share]);
    for (int s = 0; s < p->share; s++)
        if (a->key_shares[s].count)
            n += last_chunk(&a->key_shares[s]) - first_chunk(&a->key_shares[s]) + 1;
    return kind * LOCI_TAGS + (int)(n % LOCI_TAGS);
}
static int tag_of(const struct rank_ctx *a, const struct transfer *g, const struct message *p)
{
    return loci_tag_of(a, g->tag, p);
}

/* ---- Messages -------------------------------------------------------------------------------- */

static size_t message_bytes(const struct transfer *g, const struct message *p)
{
    return (size_t)p->count * g->bytes;
}
static char *own_message(const struct rank_ctx *a, const struct transfer *g,
                         const struct message *p)
{
    return g->outbox + (size_t)loci_keys_before(a, p) * g->bytes;
}
static void pack(const struct rank_ctx *a, const struct transfer *g, const struct message *p)
{
    char *to = own_message(a, g, p);
    const ptrdiff_t at = (ptrdiff_t)loci_keys_before(a, p);
    for (int i = 0; i < g->n; i++) {
        const struct keyed *x = &g->list[i];
        for (ptrdiff_t b = 0; b < x->n[0]; b++)
            for (ptrdiff_t h = 0; h < x->n[1]; h++) {
                const char *from = x->own + b * x->stride[0] + h * x->stride[1] + at * x->row;
                for (int64_t j = 0; j < p->count; j++, to += x->bytes, from += x->row)
                    memcpy(to, from, x->bytes);
            }
    }
}
/* A message may extend beyond the capacity.  The rest is ignored. */
static void unpack(const struct transfer *g, const struct message *p, const char *from,
                   int64_t first)
{
    const int64_t left = first + g->measured - p->first, count = p->count < left ? p->count : left;
    for (int i = 0; i < g->n; i++) {
        const struct keyed *x = &g->list[i];
        const size_t bytes = (size_t)p->count * x->bytes;
        for (int64_t n = 0; n < x->n[0] * x->n[1]; n++, from += bytes)
            memcpy(x->gathered + (size_t)(n * g->measured + p->first - first) * x->bytes, from,
                   (size_t)count * x->bytes);
    }
}

/* ---- Requests -------------------------------------------------------------------------------- */

void loci_end_request(struct rank_ctx *a, void **request)
{
    if (!*request) return;
    const double begun = loci_clock_steady();
    if (a->via.wait(a->via.user, request)) a->broken = true;
    a->waited += loci_clock_steady() - begun;
}

/* How many messages this rank sends if all others require all its keys. */
static int64_t most_sends(const struct rank_ctx *a, const struct transfer *g)
{
    int64_t n = 0;
    for (int s = 0; s < a->key_count; s++) {
        const loci_share *own = &a->key_shares[s];
        if (own->rank == a->via.rank && own->count) n += last_chunk(own) - first_chunk(own) + 1;
    }
    return n * g->required_count;
}

static void carve_messages(struct rank_ctx *a, struct transfer *g, struct arena *m)
{
    const int64_t most = a->keys < CHUNK ? a->keys : CHUNK;
    g->sends = NULL;
    g->slots = NULL;
    if (!g->n) return;
    g->sends = carve_bytes(m, (size_t)most_sends(a, g), sizeof *g->sends);
    g->slots = carve_bytes(m, (size_t)a->all.ahead, sizeof *g->slots);
    for (int i = 0; i < a->all.ahead; i++) {
        char *message = carve_bytes(m, (size_t)most, g->bytes);
        if (g->slots) g->slots[i] = (struct slot){ .message = message };
    }
}
void loci_carve_again(struct rank_ctx *a, struct transfer *g, const struct transfer *from, int tag,
                      struct arena *m)
{
    *g = *from;
    g->tag = tag;
    carve_messages(a, g, m);
}
void loci_carve_transfer(struct rank_ctx *a, struct transfer *g, struct arena *m)
{
    carve_messages(a, g, m);
    g->outbox = g->n ? carve_bytes(m, (size_t)a->call.k_len, g->bytes) : NULL;
    for (int i = 0; i < g->n; i++) {
        struct keyed *x = &g->list[i];
        x->gathered = carve_bytes(m, (size_t)(x->n[0] * x->n[1]) * (size_t)g->measured, x->bytes);
    }
}

void loci_send(struct rank_ctx *a, struct transfer *g)
{
    g->sending = 0;
    for (int s = 0; s < a->key_count; s++) {
        const loci_share *own = &a->key_shares[s];
        if (!g->n || own->rank != a->via.rank || !own->count) continue;
        for (int64_t c = first_chunk(own); c <= last_chunk(own); c++) {
            const struct message p = message_at(a, s, c);
            if (!g->packed) pack(a, g, &p);
            /* Ranks after this one come first, because ranks before it start elsewhere. */
            const int from = (int)(g->mine - g->required);
            for (int i = 1; i <= g->required_count && !a->broken; i++) {
                const struct required_range *n = &g->required[(from + i) % g->required_count];
                if (n->rank == a->via.rank || !required(g, &p, n)) continue;
                void **request = &g->sends[g->sending++];
                *request = NULL;
                a->broken = a->via.send(a->via.user, n->rank, tag_of(a, g, &p),
                                        own_message(a, g, &p), message_bytes(g, &p), request)
                         != 0;
                a->sent += message_bytes(g, &p);
            }
        }
    }
}

/* Requests messages as long as there are free slots. */
static void ask(struct rank_ctx *a, struct recv_queue *in)
{
    struct transfer *g = in->transfer;
    while (in->more_begun && !a->broken) {
        const struct message *p = &in->begun;
        if (loci_owner(a, p) != a->via.rank) {
            struct slot *slot = &g->slots[in->asked % a->all.ahead];
            if (in->asked - in->received == a->all.ahead) return;
            in->asked++;
            a->broken = a->via.receive(a->via.user, loci_owner(a, p), tag_of(a, g, p),
                                       slot->message, message_bytes(g, p), &slot->request)
                     != 0;
        }
        in->more_begun = step(a, in->order, &in->begun) && needed(a, in, &in->begun);
    }
}
void loci_begin_recv(struct rank_ctx *a, struct recv_queue *in, struct transfer *g,
                     enum order order)
{
    *in = (struct recv_queue){ .transfer = g, .order = order };
    for (int i = 0; g->slots && i < a->all.ahead; i++) g->slots[i].request = NULL;
    if (!g->n) return;
    /* the first share that is not empty */
    int share = start(a, order);
    for (int i = 0; i < a->key_count && !in->more; i++) {
        in->more = open_share(a, share, order, &in->next);
        share = order == NEWEST_FIRST ? share - 1 : (share + 1) % a->key_count;
    }
    in->more = in->more && needed(a, in, &in->next);
    in->begun = in->next;
    in->more_begun = in->more;
    ask(a, in);
}
void loci_recv_message(struct rank_ctx *a, struct recv_queue *in, int64_t first)
{
    struct transfer *g = in->transfer;
    const struct message *p = &in->next;
    if (a->broken || !in->more) return;
    if (loci_owner(a, p) == a->via.rank) {
        unpack(g, p, own_message(a, g, p), first);
    } else {
        struct slot *slot = &g->slots[in->received % a->all.ahead];
        loci_end_request(a, &slot->request);
        if (a->broken) return;
        unpack(g, p, slot->message, first);
        a->received += message_bytes(g, p);
        in->received++;
    }
    in->more = step(a, in->order, &in->next) && needed(a, in, &in->next);
    ask(a, in);
}
void loci_copy_own(const struct rank_ctx *a, const struct transfer *g, const struct message *p,
                   int64_t first)
{
    unpack(g, p, own_message(a, g, p), first);
}
void loci_recv_all(struct rank_ctx *a, struct transfer *g, int64_t first)
{
    struct recv_queue in;
    loci_begin_recv(a, &in, g, GATHERED);
    while (in.more && !a->broken) loci_recv_message(a, &in, first);
}
void loci_end_transfer(struct rank_ctx *a, struct transfer *g)
{
    for (int i = 0; g->slots && i < a->all.ahead; i++) loci_end_request(a, &g->slots[i].request);
    for (int64_t i = 0; i < g->sending; i++) loci_end_request(a, &g->sends[i]);
    g->sending = 0;
}
void loci_progress(struct rank_ctx *a, struct transfer *g)
{
    if (!a->via.test || a->broken) return;
    /* Testing one open request is enough if the transport makes progress on all of them. */
    for (int64_t i = 0; i < g->sending; i++) {
        void **request = &g->sends[a->asked++ % g->sending];
        if (!*request) continue;
        a->broken = a->via.test(a->via.user, request) != 0;
        return;
    }
    for (int i = 0; i < a->all.ahead; i++) {
        if (!g->slots[i].request) continue;
        a->broken = a->via.test(a->via.user, &g->slots[i].request) != 0;
        return;
    }
}
