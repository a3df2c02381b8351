/* SPDX-License-Identifier: MIT */
/* mpi.c -- the transport over MPI, in one to four processes.  mpi.sh starts them with words that
 * select the tests:
 *
 *     library      prints which MPI this is
 *     transport    the promises of loci/parallel.h, and the errors of loci_mpi_create()
 *     failing      operations of MPI and allocations that fail, one after the other
 *     late         messages and agreements that never come, with a deadline
 *     single       MPI without threads
 *     world        MPI that begins and ends with the transport
 *     attention    a line for each encoding with the hash of its rows, whatever ranks computed them
 *     alone        the same lines by loci_forward() in one process
 *
 * There are two transports: the library itself, and its source compiled again with pieces of a few
 * bytes, counting allocators, and MPI calls that fail on demand. */
#define _POSIX_C_SOURCE 200809L
#include "loci/mpi.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "harness.h"
#include "own_rows.h"
#include "walk.h"

/* ---- The recompiled source ------------------------------------------------------------------- */

static int until; /* number of MPI operations that succeed; -1: all */
static int goes_wrong(void) { return until >= 0 && until-- == 0; }

#define FAILING(call) (goes_wrong() ? MPI_ERR_OTHER : (call))
#define MPI_Isend(...) FAILING(MPI_Isend(__VA_ARGS__))
#define MPI_Irecv(...) FAILING(MPI_Irecv(__VA_ARGS__))
#define MPI_Iallreduce(...) FAILING(MPI_Iallreduce(__VA_ARGS__))
#define MPI_Test(...) FAILING(MPI_Test(__VA_ARGS__))
#define loci_mpi_create small_create
#define loci_mpi_destroy small_destroy
#define loci_mpi_world small_world
#define loci_mpi_finish small_finish
enum { PIECE = 1000 };
#define LOCI_MPI_PIECE ((size_t)PIECE)
#include "counted.h"
#include <distributed/mpi.c>
#undef MPI_Isend
#undef MPI_Irecv
#undef MPI_Iallreduce
#undef MPI_Test
#undef loci_mpi_create
#undef loci_mpi_destroy
#undef loci_mpi_world
#undef loci_mpi_finish
#undef malloc
#undef calloc
#undef free

static int rank, ranks;
static struct kind {
    const char *name;
    loci_status (*create)(loci_transport *, MPI_Comm, double, loci_error *);
    void (*destroy)(loci_transport *);
} kinds[] = { { "library", loci_mpi_create, loci_mpi_destroy },
              { "small pieces", small_create, small_destroy } };

static loci_transport made(const struct kind *k, MPI_Comm comm, double seconds)
{
    loci_transport t;
    loci_error e = { 0 };
    until = left = -1;
    if (k->create(&t, comm, seconds, &e)) {
        CHECK_FAILED("%s: %s", k->name, e.text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return t;
}

/* ---- Messages -------------------------------------------------------------------------------- */

/* Bytes that encode source, destination, tag and number. */
struct message {
    int from, to, tag, number;
    size_t bytes;
    unsigned char *data;
    void *request;
};
enum { GUARD = 16, ABSENT = 0xa5 };

static unsigned char byte_of(const struct message *m, size_t i)
{
    uint64_t h = (uint64_t)i / 8 + 1;
    const int all[] = { m->from, m->to, m->tag, m->number };
    for (int n = 0; n < COUNT(all); n++) {
        h = (h ^ (uint64_t)all[n]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return (unsigned char)(h >> i % 8 * 8);
}
static void begin_send(const loci_transport *t, struct message *m)
{
    m->from = t->rank;
    m->data = m->bytes ? malloc(m->bytes) : NULL;
    for (size_t i = 0; i < m->bytes; i++) m->data[i] = byte_of(m, i);
    m->request = m; /* any old handle is overwritten */
    CHECK_THAT(!t->send(t->user, m->to, m->tag, m->data, m->bytes, &m->request) && m->request != m,
               "to %d, tag %d, number %d", m->to, m->tag, m->number);
}
static void begin_receive(const loci_transport *t, struct message *m)
{
    m->to = t->rank;
    m->data = malloc(m->bytes + GUARD);
    memset(m->data, ABSENT, m->bytes + GUARD);
    m->request = m;
    CHECK_THAT(!t->receive(t->user, m->from, m->tag, m->bytes ? m->data : NULL, m->bytes,
                           &m->request)
                   && m->request != m,
               "from %d, tag %d, number %d", m->from, m->tag, m->number);
}
static void drop_message(struct message *m) { free(m->data); }
/* It has arrived as sent, and not a byte more. */
static void check_message(const struct message *m, const char *how)
{
    size_t i = 0;
    while (i < m->bytes && m->data[i] == byte_of(m, i)) i++;
    while (i >= m->bytes && i < m->bytes + GUARD && m->data[i] == ABSENT) i++;
    CHECK_THAT(i == m->bytes + GUARD, "%s: %d to %d, tag %d, number %d of %zu bytes: byte %zu", how,
               m->from, m->to, m->tag, m->number, m->bytes, i);
}
static void end_by_wait(const loci_transport *t, struct message *m)
{
    CHECK_THAT(!t->wait(t->user, &m->request) && !m->request, "tag %d, number %d", m->tag,
               m->number);
}
static void end_by_test(const loci_transport *t, struct message *m)
{
    int bad = 0;
    while (!bad && m->request) {
        bad = t->test(t->user, &m->request);
        sched_yield();
    }
    CHECK_THAT(!bad, "tag %d, number %d", m->tag, m->number);
}

/* Many messages between all pairs, including messages to itself.  With the same tag they arrive in
 * the order in which they were sent, and tags do not wait for each other. */
static void between_all(const loci_transport *t, const char *name)
{
    static const size_t sizes[] = { 0, 1, PIECE - 1, 70000, PIECE, 0, PIECE + 1, 3 * PIECE, 17 };
    enum { TAGS = 3, EACH = COUNT(sizes), ALL = TAGS * EACH };
    static const int tags[TAGS] = { 0, 32767, 5 };
    struct message *in = calloc((size_t)ranks * ALL, sizeof *in),
                   *out = calloc((size_t)ranks * ALL, sizeof *out);
    /* The host's own messages, in the same communicator and with the same tag. */
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    int own = rank, other = -1;
    MPI_Request host[2];
    MPI_Irecv(&other, 1, MPI_INT, before, 5, MPI_COMM_WORLD, &host[0]);

    int n = 0;
    for (int peer = 0; peer < ranks; peer++)
        for (int i = 0; i < ALL; i++, n++) {
            in[n] = (struct message){
                .from = peer, .tag = tags[i % TAGS], .number = i / TAGS, .bytes = sizes[i / TAGS]
            };
            out[n] = in[n];
            out[n].to = peer;
        }
    /* Receives begin before their messages, after them, and tag by tag in another order. */
    for (int i = 0; i < n / 2; i++) begin_receive(t, &in[i]);
    for (int i = 0; i < n; i++) begin_send(t, &out[i]);
    MPI_Isend(&own, 1, MPI_INT, next, 5, MPI_COMM_WORLD, &host[1]);
    for (int tag = TAGS; tag-- > 0;)
        for (int i = n / 2; i < n; i++)
            if (i % TAGS == tag) {
                begin_receive(t, &in[i]);
                if (i % 2) end_by_wait(t, &in[i]);
            }
    for (int i = n; i-- > 0;) { /* in reverse order */
        if (!in[i].request)
            ;
        else if (i % 3) end_by_wait(t, &in[i]);
        else end_by_test(t, &in[i]);
        check_message(&in[i], name);
    }
    for (int i = n; i-- > 0;) {
        if (i % 3) end_by_test(t, &out[i]);
        else end_by_wait(t, &out[i]);
    }
    for (int i = 0; i < 2; i++) MPI_Wait(&host[i], MPI_STATUS_IGNORE);
    CHECK_THAT(other == before, "%s: the host's message says %d", name, other);
    for (int i = 0; i < n; i++) {
        drop_message(&in[i]);
        drop_message(&out[i]);
    }
    free(in);
    free(out);
}

/* A test that comes too early finishes nothing, and a late one finishes the request. */
static void tested(const loci_transport *t, const char *name)
{
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    struct message in = { .from = before, .tag = 9, .bytes = 500000 },
                   out = { .to = next, .tag = 9, .bytes = 500000 };
    begin_receive(t, &in);
    int64_t agreed = rank;
    for (int i = 0; i < 10; i++)
        CHECK_THAT(!t->test(t->user, &in.request) && in.request, "%s: before it was sent", name);
    CHECK_THAT(!t->highest(t->user, &agreed, 1) && agreed == ranks - 1, "%s", name);
    begin_send(t, &out);
    end_by_test(t, &in);
    check_message(&in, name);
    end_by_wait(t, &out);
    CHECK_THAT(!t->test(t->user, &in.request) && !t->wait(t->user, &in.request) && !in.request,
               "%s: NULL is no request", name);
    drop_message(&in);
    drop_message(&out);
}

static void agreements(const loci_transport *t, const char *name)
{
    enum { MOST = 300 };
    static const int lengths[] = { 1, 0, 40, MOST, 2 };
    for (int l = 0; l < COUNT(lengths); l++) {
        int64_t list[MOST + 1];
        const int n = lengths[l];
        for (int i = 0; i <= n; i++)
            list[i] = i == 0            ? INT64_MIN
                    : i == 1            ? INT64_MAX - (rank != ranks / 2)
                    : i % ranks == rank ? -i
                                        : -1000 - i - rank;
        const int64_t behind = list[n];
        int wrong = t->highest(t->user, list, n) || list[n] != behind;
        for (int i = 0; i < n; i++)
            wrong += list[i] != (i == 0 ? INT64_MIN : i == 1 ? INT64_MAX : -i);
        CHECK_THAT(!wrong, "%s: %d of %d numbers", name, wrong, n);
    }
}

static void transport(const struct kind *k)
{
    loci_transport t = made(k, MPI_COMM_WORLD, 0);
    CHECK_THAT(t.size == sizeof t && t.rank == rank && t.ranks == ranks, "%s: rank %d of %d",
               k->name, t.rank, t.ranks);
    int spent = 0;
    for (int round = 0; round < 3; round++) {
        left = 1 << 30;
        between_all(&t, k->name);
        tested(&t, k->name);
        agreements(&t, k->name);
        /* the progress of a rank before another one differs, and so the number of open requests */
        if (round == 0) spent = (1 << 30) - left;
        else
            CHECK_THAT(left == 1 << 30, "%s: %d allocations, %d at first", k->name,
                       (1 << 30) - left, spent);
    }
    CHECK_THAT(k->create == loci_mpi_create || spent > 100, "%s: %d allocations", k->name, spent);
    k->destroy(&t);
    k->destroy(&t);
    k->destroy(NULL);
    CHECK_THAT(!t.size && !t.send && !t.user && live == 0, "%s: %d blocks left", k->name, live);

    /* Also ranks that are each alone in their communicator. */
    MPI_Comm alone;
    MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &alone);
    loci_error e;
    CHECK_THAT(!k->create(&t, alone, 0, &e) && t.ranks == 1 && t.rank == 0, "%s", k->name);
    MPI_Comm_free(&alone); /* the transport has its own copy */
    int64_t number = rank;
    CHECK_THAT(!t.highest(t.user, &number, 1) && number == rank, "%s", k->name);
    k->destroy(&t);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static void refused(const struct kind *k)
{
    loci_transport t;
    loci_error e;
    CHECK_SAYS(k->create(&t, MPI_COMM_NULL, 0, &e), LOCI_BAD_ARG, &e, "MPI_COMM_NULL", k->name);
    CHECK_THAT(k->create(&t, MPI_COMM_NULL, 0, NULL) == LOCI_BAD_ARG && !t.user, "%s", k->name);

    /* Whichever rank is wrong, all ranks return the error. */
    for (int wrong = 0; wrong < ranks; wrong++) {
        const int it = wrong == rank;
        const char *others = "another rank of the communicator failed";
        CHECK_SAYS(k->create(&t, MPI_COMM_WORLD, it ? -1 : 0, &e), LOCI_BAD_ARG, &e,
                   it ? "seconds -1 must be above 0" : others, k->name);
        CHECK_SAYS(k->create(&t, MPI_COMM_WORLD, it ? NAN : 7, &e), LOCI_BAD_ARG, &e,
                   it ? "seconds nan must be" : others, k->name);
        CHECK_SAYS(k->create(it ? NULL : &t, MPI_COMM_WORLD, 0, &e), LOCI_BAD_ARG, &e,
                   it ? "the transport must not be NULL" : others, k->name);
        CHECK_THAT(!t.size && !t.user, "%s: zeroed", k->name);
        if (k->create != small_create) continue;
        left = it ? 0 : -1;
        CHECK_SAYS(k->create(&t, MPI_COMM_WORLD, 0, &e), LOCI_NO_MEMORY, &e,
                   it ? "out of memory" : others, k->name);
        left = -1;
        CHECK_THAT(live == 0, "%s: %d blocks left", k->name, live);
    }
    if (ranks > 1) {
        MPI_Comm half, between;
        MPI_Comm_split(MPI_COMM_WORLD, rank == 0, 0, &half);
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank == 0, 3, &between);
        CHECK_SAYS(k->create(&t, between, 0, &e), LOCI_BAD_ARG, &e, "must be an intracommunicator",
                   k->name);
        MPI_Comm_free(&between);
        MPI_Comm_free(&half);
    }
}

/* A failed send breaks the transport permanently. */
static void broken(const struct kind *k)
{
    int *most, found;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
    const struct {
        int peer, tag;
    } bad[] = { { -1, 0 },
                { ranks, 0 },
                { MPI_ANY_SOURCE, 0 },
                { MPI_PROC_NULL, 0 },
                { 0, -1 },
                { 0, *most < INT_MAX ? *most + 1 : -2 },
                { 0, MPI_ANY_TAG } };
    for (int i = 0; i < 2 * COUNT(bad); i++) {
        loci_transport t = made(k, MPI_COMM_WORLD, 0);
        char byte = 0;
        void *open, *r = &byte;
        CHECK_THAT(!t.receive(t.user, rank, 1, &byte, 1, &open) && open, "%s", k->name);
        const int peer = bad[i / 2].peer, tag = bad[i / 2].tag;
        const int ended = i % 2 ? t.send(t.user, peer, tag, &byte, 1, &r)
                                : t.receive(t.user, peer, tag, &byte, 1, &r);
        CHECK_THAT(ended && !r, "%s: peer %d, tag %d", k->name, peer, tag);
        int64_t number = 0;
        r = &byte;
        CHECK_THAT(t.send(t.user, rank, 1, &byte, 1, &r) && !r, "%s", k->name);
        CHECK_THAT(t.highest(t.user, &number, 1), "%s", k->name);
        CHECK_THAT(t.test(t.user, &open) && open, "%s: test leaves it to wait", k->name);
        CHECK_THAT(t.wait(t.user, &open) && !open, "%s", k->name);
        k->destroy(&t);
    }
    /* Both sides know the length of a message.  MPI should reject a longer one. */
    static const size_t sizes[][2] = {
        { 10, 9 }, { 1, 0 }, { PIECE + 6, PIECE + 5 }, { 200000, 199999 }
    };
    for (int i = 0; i < COUNT(sizes); i++) {
        loci_transport t = made(k, MPI_COMM_WORLD, 0);
        struct message in = { .from = rank, .tag = 1, .bytes = sizes[i][0] },
                       out = { .to = rank, .tag = 1, .bytes = sizes[i][1] };
        begin_receive(&t, &in);
        begin_send(&t, &out);
        CHECK_THAT(t.wait(t.user, &in.request) && !in.request, "%s: %zu bytes for %zu", k->name,
                   out.bytes, in.bytes);
        t.wait(t.user, &out.request);
        CHECK_THAT(!out.request, "%s", k->name);
        k->destroy(&t);
        drop_message(&in);
        drop_message(&out);
    }
}

/* ---- Failures -------------------------------------------------------------------------------- */

/* A bit of everything on a single rank.  Returns the number of failed calls.  After the first
 * failure, all calls fail. */
static int little(const loci_transport *t)
{
    static char from[5 * PIECE], to[5 * PIECE];
    void *r[4] = { 0 };
    int64_t numbers[3] = { 0 };
    int results[16], n = 0, failed = 0;
    results[n++] = t->receive(t->user, 0, 1, to, sizeof to, &r[0]);
    results[n++] = t->receive(t->user, 0, 2, to, 0, &r[1]);
    results[n++] = t->highest(t->user, numbers, 3);
    results[n++] = t->send(t->user, 0, 2, from, 0, &r[2]);
    if (r[1]) results[n++] = t->test(t->user, &r[1]);
    results[n++] = t->send(t->user, 0, 1, from, sizeof from, &r[3]);
    CHECK_THAT(!(results[0] && r[0]) && !(results[1] && r[1]) && !(results[3] && r[2])
                   && !(results[n - 1] && r[3]),
               "what has not begun leaves NULL");
    for (int i = 0; i < 4; i++)
        if (r[i]) {
            results[n++] = t->wait(t->user, &r[i]);
            CHECK_THAT(!r[i], "request %d is left", i);
        }
    results[n++] = t->highest(t->user, numbers, 2);
    for (int i = 0; i < n; i++) {
        CHECK_THAT(results[i] || !failed, "call %d of %d goes on", i, n);
        failed += results[i] != 0;
    }
    return failed;
}
static void failing(void)
{
    const struct kind *k = &kinds[1];
    for (int memory = 0; memory < 2; memory++) {
        int *const at = memory ? &left : &until;
        int n = 0, came = 1;
        for (; came && n < 100; n++) {
            loci_transport t = made(k, MPI_COMM_SELF, 0);
            *at = n;
            const int failed = little(&t);
            came = *at < 0;
            CHECK_THAT((failed > 0) == came, "%s: %d calls failed, at %d",
                       memory ? "memory" : "MPI", failed, n);
            left = until = -1;
            k->destroy(&t);
            CHECK_THAT(live == 0, "%d blocks left, failing at %d", live, n);
        }
        CHECK_THAT(n > 10, "%d operations", n);
    }
}

/* ---- Deadlines ------------------------------------------------------------------------------- */

/* Rank 0 waits for a message that no rank sends or receives, or for an agreement, while the others
 * have nothing to do. */
enum { RECEIVES, SENDS, AGREES, WAYS, LARGE = 8 << 20 };
static void give_up(const loci_transport *t, const char *name, int way, double deadline, char *data)
{
    const int other = (rank + 1) % ranks;
    void *r[3] = { 0 };
    int64_t number = 1;
    CHECK_THAT(!t->receive(t->user, other, 2, data, PIECE * 3, &r[0]), "%s", name);
    CHECK_THAT(!t->send(t->user, other, 3, data, 1, &r[1]), "%s", name);
    if (way == SENDS) CHECK_THAT(!t->send(t->user, other, 4, data, LARGE, &r[2]), "%s", name);
    const double start = MPI_Wtime();
    const int bad = way == AGREES ? t->highest(t->user, &number, 1)
                                  : t->wait(t->user, &r[way == SENDS ? 2 : 0]);
    const double took = MPI_Wtime() - start;
    CHECK_THAT(bad && took >= deadline, "%s, way %d: %d after %g s", name, way, bad, took);
    CHECK_THAT(number == 1, "%s: a number that nobody agreed to", name);
    for (int i = 0; i < 3; i++)
        CHECK_THAT(t->wait(t->user, &r[i]) && !r[i], "%s, way %d: request %d", name, way, i);
}
static void late(const struct kind *k)
{
    const double deadline = 0.2;
    for (int way = 0; way < WAYS; way++) {
        if (way == AGREES && ranks == 1) continue;
        if (way == SENDS && k->create == small_create) continue; /* small messages have gone */
        loci_transport t = made(k, MPI_COMM_WORLD, deadline);
        char *data = calloc(1, LARGE), one = (char)(way + 1), got = 0;
        if (rank == 0) give_up(&t, k->name, way, deadline, data);
        MPI_Barrier(MPI_COMM_WORLD);
        /* A later message does not write to the memory of the abandoned receive, */
        if (rank == 1 % ranks && rank != 0) {
            void *r;
            memset(data, 7, PIECE * 3);
            if (!t.send(t.user, 0, 2, data, PIECE * 3, &r)) t.wait(t.user, &r);
        }
        k->destroy(&t);
        /* and a new transport is not affected. */
        t = made(k, MPI_COMM_WORLD, 0);
        void *in = NULL, *out = NULL;
        if (rank == 1 % ranks) t.receive(t.user, 0, 3, &got, 1, &in);
        if (rank == 0) t.send(t.user, 1 % ranks, 3, &one, 1, &out);
        CHECK_THAT(!t.wait(t.user, &in) && !t.wait(t.user, &out), "%s: a new one", k->name);
        CHECK_THAT(rank != 1 % ranks || got == one, "%s, way %d: got %d", k->name, way, got);
        int64_t all = 0;
        CHECK_THAT(!t.highest(t.user, &all, 1), "%s: a new one", k->name);
        k->destroy(&t);
        int touched = 0;
        for (int i = 0; i < PIECE * 3; i++) touched += data[i] != 0;
        CHECK_THAT(!touched || rank == 1, "%s, way %d: %d bytes", k->name, way, touched);
        /* MPI keeps the memory of a send that was never received, as loci/mpi.h says */
        if (way != SENDS) free(data);
    }
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* Every encoding's example on some hundred rows, every second one with dropout, and one on more
 * than a chunk of keys.  One process computes all rows, and ranks share them in several ways. */
static void attention(const loci_transport *t)
{
    static const struct {
        loci_layout layout;
        int gather, all;
    } way[] = {
        { LOCI_ZIGZAG, 0, 1 },
        { LOCI_ZIGZAG, 1, 1 },
        { LOCI_CONTIGUOUS, 0, 0 },
        { LOCI_CONTIGUOUS, 1, 0 }, /* all: also with many rows */
    };
    enum { MOST = 64, MANY = 4300, FEW = 500 };
    const loci_encoding_info *list;
    const int count = loci_encodings(&list);
    struct {
        const char *text;
        ptrdiff_t rows;
    } run[MOST];
    uint64_t hash[MOST][COUNT(way)] = { { 0 } };
    int runs = 0;
    for (int i = 0; i < count && runs < MOST - 1; i++)
        if (list[i].places != LOCI_PLACE_EMBED && !walk_moves(list[i].example)) {
            run[runs].text = list[i].example;
            run[runs++].rows = FEW;
        }
    if (!LOCI_SLOW) {
        run[runs].text = "fox";
        run[runs++].rows = MANY;
    }
    for (int i = 0; i < runs; i++)
        for (int w = 0; w < (t ? COUNT(way) : 1); w++) {
            loci_error e;
            if (run[i].rows == FEW || way[w].all)
                CHECK_THAT(!own_rows(run[i].text, run[i].rows, way[w].layout, way[w].gather,
                                     i % 2 ? 0.2 : 0, t, &hash[i][w], &e),
                           "%s: %s", run[i].text, e.text);
        }
    if (t)
        MPI_Allreduce(MPI_IN_PLACE, hash, MOST * COUNT(way), MPI_UINT64_T, MPI_BXOR,
                      MPI_COMM_WORLD);
    for (int i = 0; i < runs && rank == 0; i++) {
        for (int w = 1; w < COUNT(way) && t; w++)
            CHECK_THAT(hash[i][w] == hash[i][0] || (run[i].rows == MANY && !way[w].all),
                       "%s, %td rows: way %d has other bits", run[i].text, run[i].rows, w);
        printf("%s, %td rows: %016llx\n", run[i].text, run[i].rows, (unsigned long long)hash[i][0]);
    }
    fflush(stdout); /* before any other rank prints */
}

static void world(void)
{
    loci_transport t, second;
    loci_error e;
    int over = 1;
    loci_mpi_finish(NULL);
    CHECK_THAT(!loci_mpi_world(&t, 0, &e) && t.rank < t.ranks, "%s", e.text);
    CHECK_THAT(!loci_mpi_world(&second, 0, &e) && second.ranks == t.ranks, "%s", e.text);
    int64_t most = t.rank;
    CHECK_THAT(!second.highest(second.user, &most, 1) && most == t.ranks - 1, "%d", t.ranks);
    loci_mpi_finish(&second);
    MPI_Finalized(&over);
    CHECK_THAT(!over && !second.user, "MPI ends with the first one");
    loci_mpi_finish(&t);
    MPI_Finalized(&over);
    CHECK_THAT(over && !t.user, "MPI ends");
    loci_mpi_finish(&t);
    CHECK_SAYS(loci_mpi_world(&t, 0, &e), LOCI_BAD_ARG, &e, "MPI has ended");
}

static int wanted(int argc, char **argv, const char *what)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], what)) return 1;
    return 0;
}

int main(int argc, char **argv)
{
    if (wanted(argc, argv, "library")) {
        char text[MPI_MAX_LIBRARY_VERSION_STRING];
        int length;
        MPI_Get_library_version(text, &length);
        return printf("%s\n", text) < 0;
    }
    if (wanted(argc, argv, "alone")) {
        attention(NULL);
        return harness_end();
    }
    if (wanted(argc, argv, "world")) {
        world();
        return harness_end();
    }
    loci_transport t;
    loci_error e;
    int level;
    until = left = -1;
    CHECK_SAYS(loci_mpi_create(&t, MPI_COMM_WORLD, 0, &e), LOCI_BAD_ARG, &e,
               "MPI is not initialised");
    loci_mpi_destroy(&t);
    const int single = wanted(argc, argv, "single");
    MPI_Init_thread(&argc, &argv, single ? MPI_THREAD_SINGLE : MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (single && level == MPI_THREAD_SINGLE)
        CHECK_SAYS(loci_mpi_create(&t, MPI_COMM_WORLD, 0, &e), LOCI_UNSUPPORTED, &e,
                   "MPI_Init_thread() with MPI_THREAD_FUNNELED");
    for (int i = 0; i < COUNT(kinds); i++) {
        if (wanted(argc, argv, "transport")) {
            transport(&kinds[i]);
            refused(&kinds[i]);
            broken(&kinds[i]);
        }
        if (wanted(argc, argv, "late")) late(&kinds[i]);
    }
    if (wanted(argc, argv, "failing")) failing();
    if (wanted(argc, argv, "attention")) {
        t = made(&kinds[0], MPI_COMM_WORLD, 600);
        attention(&t);
        loci_mpi_destroy(&t);
    }
    MPI_Finalize();
    CHECK_SAYS(loci_mpi_create(&t, MPI_COMM_WORLD, 0, &e), LOCI_BAD_ARG, &e, "MPI has ended");
    return harness_end();
}
