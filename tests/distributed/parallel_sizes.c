/* SPDX-License-Identifier: MIT */
/* parallel_sizes.c -- the promises of loci_parallel_workspace() and
 * loci_parallel_decode_workspace(): one size serves both passes, fewer entries and threads and, for
 * decoding, fewer rows and keys.  Only sizes are requested, so the transport has no other side.
 *
 * The argument, a text of the walk, selects that one. */
#include <stdio.h>

#include "harness.h"
#include "loci/parallel.h"
#include "walk.h"

enum { RANKS = 3, PIECE = 4096, HEADS = 6, MOST_KEYS = 3 * PIECE, MOST_AXES = 8 };
static const double coords[MOST_AXES * MOST_KEYS];
static const int64_t places[MOST_KEYS];

/* 0 .. most */
static ptrdiff_t draw(ptrdiff_t most)
{
    const ptrdiff_t n = (ptrdiff_t)((walk_uniform() + 1) / 2 * (double)(most + 1));
    return n > most ? most : n;
}
static ptrdiff_t few_or_many(ptrdiff_t most)
{
    const ptrdiff_t n = draw(1) ? draw(9) : draw(300);
    return n < most ? n : most;
}

/* ---- A transport that is never used ---------------------------------------------------------- */

static int no_message(void *user, int rank, int tag, void **request)
{
    (void)user;
    (void)rank;
    (void)tag;
    (void)request;
    CHECK_FAILED("a size was asked for, and a message was sent");
    return 1;
}
static int no_send(void *user, int to, int tag, const void *data, size_t bytes, void **request)
{
    (void)data;
    (void)bytes;
    return no_message(user, to, tag, request);
}
static int no_receive(void *user, int from, int tag, void *data, size_t bytes, void **request)
{
    (void)data;
    (void)bytes;
    return no_message(user, from, tag, request);
}
static int no_wait(void *user, void **request) { return no_message(user, 0, 0, request); }
static int no_highest(void *user, int64_t *list, int n)
{
    (void)list;
    return no_message(user, n, 0, NULL);
}
static void run_here(void *user, int n, void (*job)(void *, int), void *arg)
{
    (void)user;
    for (int i = 0; i < n; i++) job(arg, i);
}
static const loci_transport transport =
    LOCI_TRANSPORT_INIT(.rank = 1, .ranks = RANKS, .send = no_send, .receive = no_receive,
                        .wait = no_wait, .highest = no_highest);

/* ---- Decoding -------------------------------------------------------------------------------- */

struct asked {
    ptrdiff_t batch, rows, own, newer;
    int threads;
};

/* Ranks 0, 1 and 2 own keys in that order.  Rank 1, whose size is requested, has `own`. */
static size_t decode_size(const loci_plan *p, const struct asked *s, const loci_call *like)
{
    const loci_share shares[] = { { 0, PIECE, 0 },
                                  { PIECE, s->own, 1 },
                                  { PIECE + s->own, s->newer, 2 } };
    loci_host host = { .run = run_here, .threads = s->threads };
    loci_parallel all = LOCI_PARALLEL(.transport = &transport, .shares = shares, .count = RANKS);
    loci_call call = *like;
    call.batch = s->batch;
    call.q_len = s->rows;
    call.k_len = s->own;
    call.host = &host;
    return loci_parallel_decode_workspace(p, &call, &all);
}
static void check_decode(const loci_plan *p, const char *text)
{
    loci_call like = LOCI_CALL(.lse = draw(1) ? (void *)coords : NULL);
    if (draw(1)) like.q_pos = like.k_pos = places;
    if (loci_axes(p) > 1) like.q_coord = like.k_coord = coords;
    /* shares begin at multiples of 4096, so only the newest owner has another number of keys */
    const ptrdiff_t whole = PIECE * draw(3);
    struct asked most = { .batch = draw(3),
                          .rows = few_or_many(300),
                          .own = whole,
                          .newer = draw(MOST_KEYS),
                          .threads = 1 + (int)draw(7) };
    if (!draw(2)) {
        most.own = draw(MOST_KEYS);
        most.newer = 0;
    }
    const size_t enough = decode_size(p, &most, &like);
    CHECK_THAT(enough > 0, "%s: no size for %td rows and %td keys", text, most.rows, most.own);
    for (int i = 0; i < 6; i++) {
        struct asked less = {
            .batch = draw(most.batch),
            .rows = few_or_many(most.rows),
            .own = most.own,
            .newer = draw(most.newer),
            .threads = 1 + (int)draw(most.threads - 1),
        };
        if (!most.newer) less.own = draw(most.own);
        if (most.newer && draw(1)) less.own = PIECE * draw(most.own / PIECE);
        const size_t need = decode_size(p, &less, &like);
        CHECK_THAT(need > 0 && need <= enough,
                   "%s: decode: %zu bytes for %td entries, %td rows, %td keys, %td newer ones and "
                   "%d threads, but %zu for %td, %td, %td, %td and %d",
                   text, need, less.batch, less.rows, less.own, less.newer, less.threads, enough,
                   most.batch, most.rows, most.own, most.newer, most.threads);
    }
}

/* ---- Whole sequences ------------------------------------------------------------------------- */

/* The shares stay: others may need more for fewer rows. */
static void check_whole(const loci_plan *p, const char *text)
{
    const int64_t rows = 1024 * draw(12);
    loci_share shares[2 * RANKS];
    const int count =
        loci_share_out(draw(1) ? LOCI_ZIGZAG : LOCI_CONTIGUOUS, rows, RANKS, shares, 2 * RANKS);
    loci_parallel all = LOCI_PARALLEL(.transport = &transport, .shares = shares, .count = count,
                                      .gather = (int)draw(1));
    loci_host host = { .run = run_here, .threads = 1 + (int)draw(7) };
    loci_call call = LOCI_CALL(.batch = 1 + draw(2), .host = &host);
    for (int i = 0; i < count; i++)
        if (shares[i].rank == 1) call.q_len += (ptrdiff_t)shares[i].count;
    call.k_len = call.q_len;
    if (loci_axes(p) > 1) call.q_coord = call.k_coord = coords;
    else if (draw(1)) call.q_pos = call.k_pos = places;
    call.k.data = call.v.data = (void *)coords;
    const void *tensors[WALK_TENSORS];
    for (int i = 0; i < WALK_TENSORS; i++) tensors[i] = coords;
    call.tensors = tensors;
    const size_t forward = loci_parallel_workspace(p, &call, &all, 0),
                 both = loci_parallel_workspace(p, &call, &all, 1);
    CHECK_THAT(forward > 0 && both >= forward, "%s: %zu bytes for a forward pass, %zu for both",
               text, forward, both);
    for (int i = 0; i < 3; i++) {
        loci_call fewer = call;
        loci_host alone = { .run = run_here, .threads = 1 + (int)draw(host.threads - 1) };
        fewer.host = &alone;
        fewer.batch = draw(call.batch);
        const int backward = (int)draw(1);
        const size_t need = loci_parallel_workspace(p, &fewer, &all, backward);
        CHECK_THAT(need > 0 && need <= (backward ? both : forward),
                   "%s: %zu bytes for %td entries and %d threads, but %zu for %td and %d%s", text,
                   need, fewer.batch, alone.threads, backward ? both : forward, call.batch,
                   host.threads, backward ? ", backward" : "");
    }
}

int main(int argc, char **argv)
{
    walk_only(argc, argv);
    int round = 0;
    for (struct walk_text t = { 0 }; walk_next(&t); round++) {
        static const struct {
            int kv_heads;
            loci_dtype dtype;
        } kinds[] = {
            { 3, LOCI_F32 },
            { 6, LOCI_F64 },
            { 1, LOCI_BF16 },
            { 3, LOCI_F16 },
        };
        loci_error e = { 0 };
        loci_plan *p;
        const loci_desc d =
            LOCI_DESC(.encoding = t.text, .heads = HEADS, .kv_heads = kinds[round % 4].kv_heads,
                      .dtype = kinds[round % 4].dtype, .max_len = 4 * MOST_KEYS,
                      .dim = walk_dim(t.text, 16));
        if (!CHECK_THAT(!loci_plan_create(&p, &d, &e), "%s: %s", t.text, e.text)) continue;
        for (int i = 0; i < 50; i++) {
            check_decode(p, t.text);
            check_whole(p, t.text);
        }
        loci_plan_destroy(p);
    }
    return harness_end();
}
