/* SPDX-License-Identifier: MIT */
/* run.h -- trains, tests and stores runs, several at a time. */
#ifndef LOCI_LAB_RUN_H
#define LOCI_LAB_RUN_H

#include <stdatomic.h>

#include "platform/thread.h"
#include "lab/config.h"
#include "lab/result.h"

/* The progress of a run, read from another thread. */
enum lab_stage {
    LAB_WAITS,
    LAB_TRAINS,
    LAB_TESTS,
    LAB_READY,
    LAB_ELSEWHERE,
    LAB_BROKEN,
    LAB_STOPPED
};
struct lab_progress {
    atomic_int stage, step;
    _Atomic float loss;
};

struct lab_work {
    const char *dir;
    const struct lab_runs *runs;
    /* runs whose number is shard modulo shards; 0, 1: all */
    int shard, shards;
    int threads;           /* in all */
    double checkpoint;     /* seconds */
    const char *isa, *cpu; /* cpu: its name, for the results */
    atomic_int *stop;      /* not 0: all stop after a checkpoint */

    struct lab_progress *progress; /* [runs->count] */
    /* its own */
    atomic_int next, active, failed;
    struct training *held; /* active runs */
    int each;              /* threads of a run */
    struct thread *worker;
    int workers;
    loci_error error; /* the first one */
};

/* Gives the runs that wait the learning rate with the least validation loss of those that their
 * arm's first seed tried in DIR.  Returns how many still wait for such a run. */
int lab_choose_rates(struct lab_runs *, const char *dir);

/* Begins, with threads of its own; polls for the end; waits, and returns the error.  Polling also
 * refreshes the claims of runs in a test, which may last longer than LAB_STALE. */
loci_status lab_work_begin(struct lab_work *, loci_error *);
bool lab_work_ended(struct lab_work *);
loci_status lab_work_end(struct lab_work *, loci_error *);

/* One run in the calling thread. *ended false: it was stopped, or another process has claimed
 * it. */
loci_status lab_run_one(struct lab_work *, int index, const loci_host *, loci_error *);

#endif
