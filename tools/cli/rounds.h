/* SPDX-License-Identifier: MIT */
/* rounds.h -- which of the rounds of `loci bench` count.
 *
 * A neighbour on the other thread of a core halves everything for seconds at a time.  So the limit
 * of the machine is probed right before and right after every call, and a round counts only if all
 * its probes come close to the best one of the run.  Other processes take the core away for a few
 * milliseconds, which may lie between two probes: the system tells how long.  What is measured at
 * the best moments of a machine is the same in every run. */
#ifndef LOCI_CLI_ROUNDS_H
#define LOCI_CLI_ROUNDS_H

#include <stdbool.h>

enum { PATIENCE = 10 };                  /* rounds made for each that is wanted */

/* Seconds of a step; what the machine could do per second before and after, in the unit that
 * counts, and in flops; the share of the call in which other processes had the core. */
struct call { double seconds, before, after, flops, taken; };
/* One of each, at the same moment; with nothing to be compared with, other's seconds are NaN and
 * its probes those of mine. */
struct pair { struct call mine, other; };

struct rounds {
    int wanted;                          /* so many should count */
    double tolerance;                    /* of a probe, below the best one */
    bool apart;                          /* each side is compared with the best of its own probes */
    double best[2];                      /* of mine and of the other's, from row to row */
    int made;
    struct pair *pair;
};

/* `wanted`, `tolerance` and `apart` are given.  A new row forgets the rounds before; the best
 * probes are forgotten where the limit is another one. */
void rounds_open(struct rounds *);
void rounds_close(struct rounds *);
void rounds_row(struct rounds *), rounds_forget(struct rounds *);

void rounds_add(struct rounds *, struct pair);
/* Is another one due?  Not when enough count, nor when PATIENCE times as many have been made. */
bool rounds_due(const struct rounds *);
bool rounds_count(const struct rounds *, int i);
int  rounds_counted(const struct rounds *);

/* Of the rounds that count: what lies at this share from the least to the largest, 0.5 for the
 * median; NaN when none counts. */
double rounds_at(const struct rounds *, double (*figure)(const struct pair *, const void *user),
                 const void *user, double share);

#endif
