/* SPDX-License-Identifier: MIT */
/* run.h -- runs are trained, tested and stored, several at a time. */
#ifndef LOCI_LAB_RUN_H
#define LOCI_LAB_RUN_H

#include <pthread.h>
#include <stdatomic.h>

#include "lab/config.h"
#include "lab/result.h"

/* What becomes of a run: seen from another thread while it goes on. */
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
    int shard, shards; /* runs whose number is shard modulo shards; 0, 1: all */
    int threads;       /* in all */
    double checkpoint; /* seconds */
    const char *isa, *cpu; /* cpu: its name, for the results */
    atomic_int *stop; /* not 0: all stop after a checkpoint */

    struct lab_progress *progress; /* [runs->count] */
    /* its own */
    atomic_int next, active, failed;
    struct training *held;               /* runs that go on */
    int each;                            /* threads of a run */
    pthread_t *worker;
    int workers;
    loci_error error;                    /* the first one */
};

/* Begins, with threads of its own; asks whether it has ended; waits, and says what failed.  Who
 * asks keeps the claims alive of runs that are tested, which may take longer than LAB_STALE. */
loci_status lab_work_begin(struct lab_work *, loci_error *);
bool lab_work_ended(struct lab_work *);
loci_status lab_work_end(struct lab_work *, loci_error *);

/* One run in the calling thread; *ended false: it was stopped, or is in other hands. */
loci_status lab_run_one(struct lab_work *, int index, const loci_host *, loci_error *);

#endif
