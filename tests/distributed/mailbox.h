/* SPDX-License-Identifier: MIT */
/* mailbox.h -- a transport between threads of one process, as nasty as loci/parallel.h lets it be.
 *
 *     struct mailbox_wishes wishes = { .seed = 7 };
 *     struct mailbox_story story;
 *     mailbox_run(3, &wishes, body, &arg, &story);          // body(transport of the rank, arg)
 *     CHECK_THAT(!story.faults, "%s", story.fault);
 *
 * A message arrives after a random number of later calls, by anybody, or when nobody can go on
 * without it.  Those of other ranks and tags overtake it.  What is sent is read only then, so a
 * sender that changes or frees it too early is found; and a receiver that looks too early finds
 * bytes 0xff.  A request is known to be done later still, by each side at its own time.
 *
 * Ranks take turns at every call, in an order that is the seed's, so each run can be had again.
 * Who waits for what never comes is told so when nobody can go on, and no clock is asked. */
#ifndef LOCI_TESTS_DISTRIBUTED_MAILBOX_H
#define LOCI_TESTS_DISTRIBUTED_MAILBOX_H

#include <stdbool.h>
#include <stdint.h>

#include "loci/parallel.h"

enum { MAILBOX_RANKS = 8 };              /* at most */

struct mailbox_wishes {
    uint64_t seed;
    bool side_by_side;                   /* ranks run at the same time: for what looks for races */
    bool no_test;                        /* the transport has no test() */
    /* Operation fail_at of this rank, counted from 1, fails, and so does each after it; ranks that
     * wait for it fail when nobody can go on.  0: none.  What is waited for or tested counts, and
     * NULL is nothing. */
    int fail_rank;
    long fail_at;
};

/* What happened.  Faults are what the library did against the contract: a request that was not
 * ended, another thread, ranks and tags out of range, sizes that do not meet, waiting for ever. */
struct mailbox_story {
    long operations[MAILBOX_RANKS];
    bool failed[MAILBOX_RANKS];          /* it was told so */
    uint64_t messages, bytes;            /* that arrived */
    int faults;
    char fault[1024];                    /* the first of them */
};

typedef void mailbox_body(const loci_transport *, void *arg);

void mailbox_run(int ranks, const struct mailbox_wishes *, mailbox_body *, void *arg,
                 struct mailbox_story *);

/* In a body: how many requests of this rank are open. */
int mailbox_open(const loci_transport *);

#endif
