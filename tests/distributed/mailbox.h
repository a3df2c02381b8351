/* SPDX-License-Identifier: MIT */
/* mailbox.h -- a transport between threads of one process, as hostile as loci/parallel.h permits.
 *
 *     struct mailbox_wishes wishes = { .seed = 7 };
 *     struct mailbox_story story;
 *     mailbox_run(3, &wishes, body, &arg, &story);          // body(transport of the rank, arg)
 *     CHECK_THAT(!story.faults, "%s", story.fault);
 *
 * A message arrives after a random number of later calls of any rank, or when no rank can continue
 * without it.  Messages of other ranks and tags overtake it.  The sent bytes are read only then, so
 * a sender that changes or frees them too early is detected.  A receiver that reads too early finds
 * bytes 0xff.  Each side learns of the completion even later, at its own time.
 *
 * Ranks alternate at every call, in an order that depends on the seed, so each run can be repeated.
 * A rank that waits for a message that never comes gets an error when no rank can continue.  No
 * clock is used. */
#ifndef LOCI_TESTS_DISTRIBUTED_MAILBOX_H
#define LOCI_TESTS_DISTRIBUTED_MAILBOX_H

#include <stdbool.h>
#include <stdint.h>

#include "loci/parallel.h"

enum { MAILBOX_RANKS = 8 }; /* at most */

struct mailbox_wishes {
    uint64_t seed;
    bool side_by_side; /* ranks run in parallel: for tests of races */
    bool no_test;      /* the transport has no test() */
    /* Operation fail_at of this rank, counted from 1, fails, and so does each later one.  Ranks
     * that wait for it fail when no rank can continue. 0: none.  Each wait and each test counts,
     * except on NULL. */
    int fail_rank;
    long fail_at;
};

/* The result of a run.  Faults are violations of the contract by the library: a request that was
 * not finished, another thread, ranks and tags out of range, sizes that do not match, waiting for
 * ever. */
struct mailbox_story {
    long operations[MAILBOX_RANKS];
    bool failed[MAILBOX_RANKS]; /* its failure was reported */
    uint64_t messages, bytes;   /* that arrived */
    int faults;
    char fault[1024]; /* the first of them */
};

typedef void mailbox_body(const loci_transport *, void *arg);

void mailbox_run(int ranks, const struct mailbox_wishes *, mailbox_body *, void *arg,
                 struct mailbox_story *);

/* In a body: the number of open requests of this rank. */
int mailbox_open(const loci_transport *);

#endif
