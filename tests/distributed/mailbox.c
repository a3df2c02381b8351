/* SPDX-License-Identifier: MIT */
/* mailbox.c -- see mailbox.h. */
#define _DEFAULT_SOURCE
#include "mailbox.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deadline.h"
#include "walk.h"

/* Seconds of CPU time for one run, over ten times what the longest takes.  A rank that computes
 * longer is in an endless loop. */
enum { PATIENCE = LOCI_EMULATED || LOCI_SLOW ? 1000 : 200 };
enum { TAGS = 1 << 15 };

/* A send or a receive.  Those of one pair of ranks and one tag match in the order in which they
 * began. */
struct request {
    struct request *next; /* in the list of open ones, or of finished ones */
    bool sends, arrived;
    int rank, peer, tag; /* owner, and source or destination */
    unsigned char *data;
    size_t bytes;
    struct request *other; /* the matching one */
    uint64_t due;          /* time of arrival; later: its rank learns of it */
};

struct rank {
    struct mailbox *all;
    loci_transport transport;
    pthread_t thread;
    bool waits, ended, broken;
    struct request *request; /* the one it waits for; NULL: highest() */
    bool inside;             /* its numbers are in, and the highest are not known */
    int64_t *numbers;
    int n;
    int open;
    long operations;
};

struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    const struct mailbox_wishes *wishes;
    struct mailbox_story *story;
    mailbox_body *body;
    void *arg;
    int ranks, turn;
    uint64_t clock, dice; /* the clock counts calls */
    struct request *open, *over;
    struct rank rank[MAILBOX_RANKS];
};

static uint64_t roll(struct mailbox *m, uint64_t sides)
{
    m->dice ^= m->dice << 13;
    m->dice ^= m->dice >> 7;
    m->dice ^= m->dice << 17;
    return m->dice % sides;
}
/* Mostly soon, sometimes very late. */
static uint64_t later(struct mailbox *m) { return m->clock + roll(m, roll(m, 8) ? 9 : 150); }

static void fault(struct mailbox *m, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!m->story->faults++) vsnprintf(m->story->fault, sizeof m->story->fault, format, args);
    va_end(args);
}

/* ---- Scheduling ------------------------------------------------------------------------------ */

static void describe(const struct mailbox *m, char *to, size_t capacity)
{
    for (int i = 0; i < m->ranks && capacity; i++) {
        const struct rank *r = &m->rank[i];
        const struct request *q = r->request;
        int n;
        if (r->ended) n = snprintf(to, capacity, "rank %d has ended; ", i);
        else if (!r->waits) n = snprintf(to, capacity, "rank %d computes; ", i);
        else if (!q) n = snprintf(to, capacity, "rank %d waits for the highest numbers; ", i);
        else
            n = snprintf(to, capacity, "rank %d waits to %s rank %d %zu bytes with tag %d; ", i,
                         q->sends ? "send" : "receive from", q->peer, q->bytes, q->tag);
        if (n < 0 || (size_t)n >= capacity) return;
        to += n;
        capacity -= (size_t)n;
    }
}

/* Also runs in a signal handler, where it only reports the location of the hang. */
static const struct mailbox *running;
static void late(int number)
{
    (void)number;
    static char text[1024] = "mailbox: this takes too long: ";
    describe(running, text + strlen(text), sizeof text - strlen(text));
    if (write(STDERR_FILENO, text, strlen(text)) < 0) {}
    abort();
}

/* ---- Messages -------------------------------------------------------------------------------- */

static void arrive(struct mailbox *m, struct request *q)
{
    struct request *from = q->sends ? q : q->other, *to = from->other;
    if (from->bytes != to->bytes)
        fault(m, "rank %d sends %zu bytes with tag %d, and rank %d wants %zu", from->rank,
              from->bytes, from->tag, to->rank, to->bytes);
    else if (from->bytes) memcpy(to->data, from->data, from->bytes);
    from->arrived = to->arrived = true;
    from->due = later(m);
    to->due = later(m);
    m->story->messages++;
    m->story->bytes += from->bytes;
}

static void arrive_in_time(struct mailbox *m)
{
    for (struct request *q = m->open; q; q = q->next)
        if (q->other && !q->arrived && q->due <= m->clock) arrive(m, q);
}

static bool done(const struct mailbox *m, const struct request *q)
{
    return q->arrived && q->due <= m->clock;
}

static bool can_go_on(const struct mailbox *m, const struct rank *r)
{
    if (r->ended) return false;
    return !r->waits || r->broken || (r->request ? done(m, r->request) : !r->inside);
}

/* No rank can continue: completes a pending event now.  False: there is none. */
static bool hurry(struct mailbox *m)
{
    struct request *any = NULL;
    uint64_t n = 0;
    for (struct request *q = m->open; q; q = q->next)
        if ((q->other || q->arrived) && !done(m, q) && !roll(m, ++n)) any = q;
    if (!any) return false;
    if (any->arrived) any->due = m->clock;
    else arrive(m, any);
    return true;
}

/* Nothing is pending.  Ranks that wait for a finished rank fail.  If all wait for each other, all
 * fail. */
static void give_up(struct mailbox *m)
{
    bool gone = false, any = false, broken = false;
    for (int i = 0; i < m->ranks; i++) {
        broken |= m->rank[i].broken;
        gone |= m->rank[i].broken || m->rank[i].ended;
    }
    if (!broken) {
        char text[900] = "";
        describe(m, text, sizeof text);
        fault(m, "nobody can go on: %s", text);
    }
    for (int all = 0; all < 2 && !any; all++)
        for (int i = 0; i < m->ranks; i++) {
            struct rank *r = &m->rank[i];
            if (r->ended || r->broken) continue;
            const struct rank *peer = r->request ? &m->rank[r->request->peer] : NULL;
            if (all || (peer ? peer->broken || peer->ended : gone)) r->broken = any = true;
        }
}

/* ---- Switching ranks ------------------------------------------------------------------------- */

static void next_turn(struct mailbox *m)
{
    for (;;) {
        int list[MAILBOX_RANKS], n = 0, left = 0;
        for (int i = 0; i < m->ranks; i++) {
            left += !m->rank[i].ended;
            if (can_go_on(m, &m->rank[i])) list[n++] = i;
        }
        if (n) m->turn = list[roll(m, (uint64_t)n)];
        if (n || !left) break;
        if (!hurry(m)) give_up(m);
    }
    pthread_cond_broadcast(&m->moved);
}
static void await_turn(struct rank *r)
{
    struct mailbox *m = r->all;
    while (m->wishes->side_by_side ? !can_go_on(m, r) : m->turn != r->transport.rank)
        pthread_cond_wait(&m->moved, &m->lock);
}
static void others(struct rank *r)
{
    next_turn(r->all);
    await_turn(r);
}

/* ---- Functions of the transport -------------------------------------------------------------- */

static struct rank *enter(void *user, const char *what)
{
    struct rank *r = user;
    struct mailbox *m = r->all;
    pthread_mutex_lock(&m->lock);
    if (!pthread_equal(pthread_self(), r->thread))
        fault(m, "another thread than that of rank %d calls %s", r->transport.rank, what);
    m->clock++;
    r->operations++;
    if (m->wishes->fail_at && m->wishes->fail_rank == r->transport.rank
        && r->operations >= m->wishes->fail_at)
        r->broken = true;
    arrive_in_time(m);
    return r;
}
static int leave(struct rank *r, bool bad)
{
    struct mailbox *m = r->all;
    others(r);
    if (bad) m->story->failed[r->transport.rank] = true;
    pthread_mutex_unlock(&m->lock);
    return bad;
}

static int begin(void *user, bool sends, int peer, int tag, void *data, size_t bytes,
                 void **request)
{
    const char *what = sends ? "send" : "receive";
    struct rank *r = enter(user, what);
    struct mailbox *m = r->all;
    const int rank = r->transport.rank;
    const bool bad = peer < 0 || peer >= m->ranks || peer == rank || tag < 0 || tag >= TAGS
                  || (!data && bytes) || !request;
    if (bad)
        fault(m, "rank %d calls %s with rank %d, tag %d, %zu bytes, data %s, request %s", rank,
              what, peer, tag, bytes, data ? "given" : "NULL", request ? "given" : "NULL");
    /* An operation that could not begin leaves *request unchanged. */
    if (bad || r->broken) return leave(r, true);
    struct request *q = calloc(1, sizeof *q), **end = &m->open;
    if (!q) exit(2);
    *q = (struct request){
        .sends = sends, .rank = rank, .peer = peer, .tag = tag, .data = data, .bytes = bytes
    };
    if (!sends && bytes) memset(data, 0xff, bytes);
    for (; *end; end = &(*end)->next) {
        struct request *o = *end;
        if (!q->other && !o->other && o->sends != sends && o->rank == peer && o->peer == rank
            && o->tag == tag) {
            q->other = o;
            o->other = q;
            q->due = o->due = later(m);
        }
    }
    *end = q;
    r->open++;
    *request = q;
    return leave(r, false);
}
static int send(void *user, int to, int tag, const void *data, size_t bytes, void **request)
{
    return begin(user, true, to, tag, (void *)data, bytes, request);
}
static int receive(void *user, int from, int tag, void *data, size_t bytes, void **request)
{
    return begin(user, false, from, tag, data, bytes, request);
}

/* Handles are looked up and never reused: one that never began, or has finished, is not a
 * request. */
static struct request *find(struct rank *r, void *request)
{
    for (struct request *q = r->all->open; q; q = q->next)
        if (q == request && q->rank == r->transport.rank) return q;
    fault(r->all, "rank %d waits for what is no open request of its own", r->transport.rank);
    return NULL;
}

/* Until here the memory belongs to the request.  A sent message is read once more, and a received
 * one may contain anything before. */
static void end(struct rank *r, struct request *q)
{
    static volatile unsigned char sum;
    struct request **at = &r->all->open;
    if (!q->arrived)
        for (size_t i = 0; i < q->bytes; i++) {
            if (q->sends) sum += q->data[i];
            else q->data[i] = (unsigned char)(0xe0 + i % 7);
        }
    (void)sum;
    while (*at != q) at = &(*at)->next;
    *at = q->next;
    q->next = r->all->over;
    r->all->over = q;
    if (q->other && !q->arrived) q->other->other = NULL;
    r->open--;
}

static int finish(void *user, void **request)
{
    if (request && !*request) return 0;
    struct rank *r = enter(user, "wait");
    struct request *q = request ? find(r, *request) : NULL;
    if (!q) {
        if (request) *request = NULL;
        return leave(r, true);
    }
    r->waits = true;
    r->request = q;
    others(r);
    r->waits = false;
    r->request = NULL;
    const bool bad = r->broken;
    end(r, q);
    *request = NULL;
    return leave(r, bad);
}

/* A failing test finishes nothing; only wait() does. */
static int test(void *user, void **request)
{
    if (request && !*request) return 0;
    struct rank *r = enter(user, "test");
    struct request *q = request ? find(r, *request) : NULL;
    if (!q || r->broken) return leave(r, true);
    if (done(r->all, q)) {
        end(r, q);
        *request = NULL;
    }
    return leave(r, false);
}

static int highest(void *user, int64_t *list, int n)
{
    struct rank *r = enter(user, "highest");
    struct mailbox *m = r->all;
    if (n < 1 || !list) {
        fault(m, "rank %d asks for the highest of %d numbers", r->transport.rank, n);
        return leave(r, true);
    }
    /* A rank may fail before or after the others have its numbers, but only once. */
    if (r->broken && (m->story->failed[r->transport.rank] || roll(m, 2))) return leave(r, true);
    free(r->numbers);
    r->numbers = malloc((size_t)n * sizeof *list);
    if (!r->numbers) exit(2);
    memcpy(r->numbers, list, (size_t)n * sizeof *list);
    r->n = n;
    r->inside = true;
    bool all = true;
    for (int i = 0; i < m->ranks; i++) all = all && m->rank[i].inside;
    if (all) {
        for (int i = 0; i < m->ranks; i++)
            if (m->rank[i].n != n)
                fault(m, "rank %d has %d numbers, and rank %d has %d", i, m->rank[i].n,
                      r->transport.rank, n);
        for (int k = 0; k < n && !m->story->faults; k++) {
            int64_t most = INT64_MIN;
            for (int i = 0; i < m->ranks; i++)
                if (m->rank[i].numbers[k] > most) most = m->rank[i].numbers[k];
            for (int i = 0; i < m->ranks; i++) m->rank[i].numbers[k] = most;
        }
        for (int i = 0; i < m->ranks; i++) m->rank[i].inside = false;
    }
    if (!r->broken) {
        r->waits = true;
        others(r);
        r->waits = false;
    }
    const bool bad = r->broken;
    if (!bad) memcpy(list, r->numbers, (size_t)n * sizeof *list);
    return leave(r, bad);
}

/* ---- A run ----------------------------------------------------------------------------------- */

int mailbox_open(const loci_transport *t)
{
    struct rank *r = t->user;
    pthread_mutex_lock(&r->all->lock);
    const int open = r->open;
    pthread_mutex_unlock(&r->all->lock);
    return open;
}

static void *start(void *arg)
{
    struct rank *r = arg;
    struct mailbox *m = r->all;
    pthread_mutex_lock(&m->lock);
    r->thread = pthread_self();
    await_turn(r);
    pthread_mutex_unlock(&m->lock);

    m->body(&r->transport, m->arg);

    pthread_mutex_lock(&m->lock);
    if (r->open) fault(m, "rank %d leaves %d requests open", r->transport.rank, r->open);
    r->ended = true;
    next_turn(m);
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static void forget(struct request *q)
{
    while (q) {
        struct request *next = q->next;
        free(q);
        q = next;
    }
}

void mailbox_run(int ranks, const struct mailbox_wishes *wishes, mailbox_body *body, void *arg,
                 struct mailbox_story *story)
{
    if (ranks < 1 || ranks > MAILBOX_RANKS) exit(2);
    struct mailbox m = { .lock = PTHREAD_MUTEX_INITIALIZER,
                         .moved = PTHREAD_COND_INITIALIZER,
                         .wishes = wishes,
                         .story = story,
                         .body = body,
                         .arg = arg,
                         .ranks = ranks,
                         .turn = -1,
                         .dice = 0x9e3779b97f4a7c15u * (2 * wishes->seed + 1) };
    pthread_t thread[MAILBOX_RANKS];
    *story = (struct mailbox_story){ 0 };
    running = &m;
    signal(SIGPROF, late);
    deadline(PATIENCE);
    pthread_mutex_lock(&m.lock);
    for (int i = 0; i < ranks; i++) {
        m.rank[i] = (struct rank){ .all = &m };
        m.rank[i].transport =
            (loci_transport)LOCI_TRANSPORT_INIT(.rank = i, .ranks = ranks, .send = send,
                                                .receive = receive, .wait = finish,
                                                .test = wishes->no_test ? NULL : test,
                                                .highest = highest, .user = &m.rank[i]);
    }
    for (int i = 0; i < ranks; i++)
        if (pthread_create(&thread[i], NULL, start, &m.rank[i])) exit(2);
    next_turn(&m);
    pthread_mutex_unlock(&m.lock);
    /* The other ranks still read the numbers of a finished rank. */
    for (int i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < ranks; i++) {
        story->operations[i] = m.rank[i].operations;
        free(m.rank[i].numbers);
    }
    deadline(0);
    forget(m.open);
    forget(m.over);
    pthread_cond_destroy(&m.moved);
    pthread_mutex_destroy(&m.lock);
}
