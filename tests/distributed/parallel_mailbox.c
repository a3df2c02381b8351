/* SPDX-License-Identifier: MIT */
/* parallel_mailbox.c -- tests the mailbox itself: it delivers what is sent, late and out of order,
 * and detects each fault that it is meant to detect. */
#include <stdatomic.h>
#include <string.h>

#include "harness.h"
#include "mailbox.h"

enum { RANKS = 3, NUMBERS = 50, TAG = 7 };

/* The instructions and findings of a body. */
struct errand {
    int way;
    atomic_int wrong, early, over;
};

/* Rank 0 sends numbers to both others, rank 1 forwards what it gets. */
static void good(const loci_transport *t, void *arg)
{
    struct errand *e = arg;
    int64_t data[NUMBERS], most[3] = { t->rank, -t->rank, 5 };
    void *request[NUMBERS] = { NULL };
    const int from = (t->rank + 2) % RANKS, to = (t->rank + 1) % RANKS;
    for (int i = 0; i < NUMBERS; i++) {
        data[i] = 100 * t->rank + i;
        if (t->rank == 0) t->send(t->user, to, i % 2, &data[i], sizeof *data, &request[i]);
        else t->receive(t->user, from, i % 2, &data[i], sizeof *data, &request[i]);
    }
    /* Events out of order show that messages overtake each other. */
    for (int i = NUMBERS - 1; i > 0 && t->test; i--) {
        const bool before = request[i - 1] != NULL;
        t->test(t->user, &request[i]);
        e->over += !request[i] && before;
        e->early += request[i] && t->rank && data[i] != -1 && data[i] != i;
    }
    for (int i = 0; i < NUMBERS; i++) t->wait(t->user, &request[i]);
    for (int i = 0; i < NUMBERS; i++) e->wrong += data[i] != i || request[i] != NULL;
    for (int i = 0; i < NUMBERS && t->rank == 1; i++)
        t->send(t->user, to, i % 2, &data[i], sizeof *data, &request[i]);
    for (int i = 0; i < NUMBERS && t->rank == 1; i++) t->wait(t->user, &request[i]);
    e->wrong += mailbox_open(t) != 0;
    for (int i = 0; i < 2; i++) {
        e->wrong += t->highest(t->user, most, 3) != 0;
        e->wrong += most[0] != RANKS - 1 || most[1] != 0 || most[2] != 5;
    }
}
static void brings(void)
{
    struct errand e = { 0 };
    for (int seed = 0; seed < 60; seed++) {
        const struct mailbox_wishes wishes = {
            .seed = (uint64_t)seed,
            .no_test = seed % 5 == 4,
            .side_by_side = seed % 3 == 2,
        };
        struct mailbox_story story;
        mailbox_run(RANKS, &wishes, good, &e, &story);
        CHECK_THAT(!story.faults && !e.wrong && !e.early && story.messages == 2 * NUMBERS
                       && story.bytes == 2 * NUMBERS * sizeof(int64_t),
                   "seed %d: %d wrong, %d early, %d messages; %s", seed, e.wrong, e.early,
                   (int)story.messages, story.fault);
    }
    CHECK_THAT(e.over > 20, "%d messages have overtaken others", e.over);
}

/* Rank 1 makes a mistake. */
enum way { RIGHT, SIZES, OPEN, TAGS, RANK, ITSELF, NOTHING, TWICE, CHANGED, CIRCLE, SHORT, WAYS };
static void bad(const loci_transport *t, void *arg)
{
    struct errand *e = arg;
    const enum way way = t->rank == 1 ? (enum way)e->way : RIGHT;
    char data[8] = "message";
    void *request = NULL, *again;
    int64_t one = 1, two[2] = { 1, 2 };
    if (t->rank == 0 && e->way == CIRCLE) {
        t->receive(t->user, 1, TAG, data, sizeof data, &request);
        t->wait(t->user, &request);
        return;
    }
    if (t->rank == 0) t->receive(t->user, 1, TAG, data, sizeof data, &request);
    if (way == CIRCLE) {
        t->receive(t->user, 0, TAG, data, sizeof data, &request);
    } else if (t->rank == 1) {
        const int tag = way == TAGS ? 1 << 15 : TAG;
        const int to = way == RANK ? RANKS : way == ITSELF ? 1 : 0;
        const size_t bytes = way == SIZES ? 7 : sizeof data;
        t->send(t->user, to, tag, way == NOTHING ? NULL : data, bytes, &request);
    }
    again = request;
    /* Until it is sent, it may still be read. */
    if (way == CHANGED) memcpy(data, "changed", sizeof data);
    if (way != OPEN) t->wait(t->user, &request);
    if (way == TWICE) t->wait(t->user, &again);
    if (t->rank == 0) e->wrong += strcmp(data, "message") != 0;
    t->highest(t->user, way == SHORT ? &one : two, way == SHORT ? 1 : 2);
}
static void finds(void)
{
    static const char *const says[WAYS] = {
        [SIZES] = "sends 7 bytes with tag 7, and rank 0 wants 8",
        [OPEN] = "leaves 1 requests open",
        [TAGS] = "rank 1 calls send with rank 0, tag 32768",
        [RANK] = "send with rank 3",
        [ITSELF] = "send with rank 1",
        [NOTHING] = "data NULL",
        [TWICE] = "no open request",
        [CIRCLE] = "nobody can go on: rank 0 waits to receive from rank 1 8 bytes with tag 7",
        [SHORT] = "numbers, and rank",
    };
    for (int way = 0; way < WAYS; way++) {
        int changed = 0;
        for (int seed = 0; seed < 20; seed++) {
            struct errand e = { .way = way };
            const struct mailbox_wishes wishes = { .seed = (uint64_t)seed };
            struct mailbox_story story;
            mailbox_run(RANKS, &wishes, bad, &e, &story);
            CHECK_THAT(says[way] ? strstr(story.fault, says[way]) != NULL : !story.faults,
                       "way %d, seed %d: '%s'", way, seed, story.fault);
            if (!says[way]) changed += e.wrong;
        }
        if (way == RIGHT) CHECK_THAT(!changed, "%d right messages have changed", changed);
        if (way == CHANGED) CHECK_THAT(changed > 5, "%d of 20 messages have changed", changed);
    }
}

/* A failure is permanent, and the others learn of it when no rank can continue. */
static void failing(const loci_transport *t, void *arg)
{
    struct errand *e = arg;
    char data[4] = "abc";
    void *request = NULL;
    int64_t n = 0;
    const int peer = 1 - t->rank;
    if (t->rank == 2) {
        e->wrong += !t->highest(t->user, &n, 1);
        return;
    }
    int bad = t->rank ? t->send(t->user, peer, 0, data, 4, &request)
                      : t->receive(t->user, peer, 0, data, 4, &request);
    bad |= t->wait(t->user, &request);
    e->wrong += !bad || request;
    request = &n; /* a failing send leaves it unchanged */
    if (t->rank) e->wrong += !t->send(t->user, peer, 0, data, 4, &request) || request != &n;
    e->wrong += t->rank && !t->highest(t->user, &n, 1);
}
static void fails(void)
{
    for (int seed = 0; seed < 20; seed++) {
        struct errand e = { 0 };
        const struct mailbox_wishes wishes = {
            .seed = (uint64_t)seed,
            .fail_rank = 1,
            .fail_at = 1,
        };
        struct mailbox_story story;
        mailbox_run(RANKS, &wishes, failing, &e, &story);
        CHECK_THAT(!story.faults && !e.wrong && story.failed[0] && story.failed[1]
                       && story.failed[2] && !story.messages,
                   "seed %d: %d wrong; %s", seed, e.wrong, story.fault);
    }
}

int main(void)
{
    brings();
    finds();
    fails();
    return harness_end();
}
