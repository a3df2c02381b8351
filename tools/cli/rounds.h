/* SPDX-License-Identifier: MIT */
/* rounds.h -- decides which rounds of `loci bench` count.
 *
 * Load on the other thread of a core halves the speed for seconds at a time.  So the limit of the
 * machine is probed right before and right after every call.  A round counts only if all its probes
 * come close to the best one of the run.  Other processes preempt the core for a few milliseconds,
 * which may fall between two probes: the system reports how long.  Measurements at the best moments
 * of a machine are the same in every run. */
#ifndef LOCI_CLI_ROUNDS_H
#define LOCI_CLI_ROUNDS_H

#include <stdbool.h>

enum { PATIENCE = 10 }; /* rounds made at most for each wanted one */

/* Seconds of a step; the limit per second before and after, in the unit that applies, and in flops;
 * the share of the call in which other processes had the core. */
struct call {
    double seconds, before, after, flops, taken;
};
/* One call of each, at the same moment.  Without a counterpart, other's seconds are NaN and its
 * probes are those of mine. */
struct pair {
    struct call mine, other;
};

struct rounds {
    int wanted;       /* rounds that should count */
    double tolerance; /* of a probe, below the best one */
    bool apart;       /* compares each side with the best of its own probes */
    double best[2];   /* of mine and of the other's, from row to row */
    int made;
    struct pair *pair;
};

/* You set `wanted`, `tolerance` and `apart`.  A new row clears the rounds.  The best probes are
 * cleared when the limit changes. */
void rounds_open(struct rounds *);
void rounds_close(struct rounds *);
void rounds_row(struct rounds *), rounds_forget(struct rounds *);

void rounds_add(struct rounds *, struct pair);
/* Is another round due?  Not if enough count, nor if PATIENCE times that number have been made. */
bool rounds_due(const struct rounds *);
bool rounds_count(const struct rounds *, int i);
int rounds_counted(const struct rounds *);

/* The quantile at `share` over the rounds that count, 0.5 for the median.  NaN if none counts. */
double rounds_at(const struct rounds *, double (*figure)(const struct pair *, const void *user),
                 const void *user, double share);

#endif
