/* SPDX-License-Identifier: MIT */
/* pipeline.h -- several threads process one work item, with the results of a single thread.
 *
 * An item has units, and each unit passes the same stages.  A unit enters a stage after the unit
 * before it has passed that stage.  So whatever the units add to in a stage is added in the order
 * of the units.  The job that owns an item begins a pipeline.  Jobs that have no item left join it.
 * All of them fetch its units, in order.
 *
 * No job waits forever.  A unit waits only for earlier units, which jobs that run have
 * fetched.  A job that has not begun owns no item and has no unit, so a host may run the jobs one
 * by one. */
#ifndef LOCI_UTIL_PIPELINE_H
#define LOCI_UTIL_PIPELINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "util/lock.h"

/* The most jobs in one pipeline, and the fewest units that a second job is worth its wake-up for.
 * Stages: all units pass LAST_STAGE, but may leave out others. */
enum { PIPELINE_JOBS = 16, LEAST_UNITS = 4, STAGES = 1 << 16, LAST_STAGE = STAGES - 1 };

struct pipeline {
    /* private */
    ptrdiff_t units;
    atomic_llong next; /* the first unit that no job has */
    /* by unit % PIPELINE_JOBS: unit * STAGES, and the stages that it and all before have passed */
    atomic_llong passed[PIPELINE_JOBS];
    int helpers; /* with the lock */
    struct pipeline *later;
};

/* The pipelines of all jobs of a pass. */
struct pipelines {
    /* woken when a pipeline begins, a unit passes a stage, a job retires or leaves, or all stop */
    struct lock lock;
    struct pipeline *first;
    int owners;         /* jobs that may still begin a pipeline */
    atomic_uint events; /* pipelines begun and owners retired, for jobs that poll */
    atomic_int waiting; /* units that wait with the lock */
    atomic_bool stop;
};

void loci_pipelines_open(struct pipelines *);
void loci_pipelines_close(struct pipelines *);
/* A job begins, or has no item left. */
void loci_pipelines_enter(struct pipelines *);
void loci_pipelines_retire(struct pipelines *);
/* Ends all waiting.  What the units have added is lost. */
void loci_pipelines_stop(struct pipelines *);

/* The owner of an item.  end() returns when all helpers have left. */
void loci_pipeline_begin(struct pipelines *, struct pipeline *, ptrdiff_t units);
void loci_pipeline_end(struct pipelines *, struct pipeline *);
/* A job that has retired joins the pipeline with the most units left for each of its jobs.  It
 * waits for one as long as there are owners.  NULL: there will be none. */
struct pipeline *loci_pipeline_join(struct pipelines *);
void loci_pipeline_leave(struct pipelines *, struct pipeline *);

/* The next unit, for the job that asks; -1: none is left. */
ptrdiff_t loci_pipeline_next(struct pipeline *);
/* Waits until the unit may enter a stage.  False: stopped. */
bool loci_pipeline_wait(struct pipelines *, struct pipeline *, ptrdiff_t unit, int stage);
/* The unit, which has entered the stage, has passed it. */
void loci_pipeline_pass(struct pipelines *, struct pipeline *, ptrdiff_t unit, int stage);

#endif
