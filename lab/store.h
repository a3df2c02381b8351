/* SPDX-License-Identifier: MIT */
/* store.h -- a folder of runs: claims, checkpoints, results.
 *
 *     DIR/lab.json                        the command and its runs, and the program's version
 *     DIR/runs/ID/config.json             the configuration, whose hash is ID
 *     DIR/runs/ID/claim                   the process that works on it, and its progress
 *     DIR/runs/ID/state.safetensors       a checkpoint, until the run is done
 *     DIR/runs/ID/log.csv                 losses of the training
 *     DIR/runs/ID/weights.safetensors     the learned weights
 *     DIR/runs/ID/result.json             the result; its presence marks the run as done
 *
 * Files are written as in models/output.h: if a process is killed, each file is either complete or
 * unchanged.  A claim is created with O_EXCL.  If its process is gone, or it was not touched for
 * ten minutes, another process may replace it. */
#ifndef LOCI_LAB_STORE_H
#define LOCI_LAB_STORE_H

#include "lab/config.h"
#include "lab/result.h"

enum { LAB_PATH = 4096, LAB_STALE = 600 };

/* Creates DIR, DIR/runs and lab.json, and adds the command and its runs to lab.json. */
loci_status lab_store_open(const char *dir, const char *command, const char *preset,
                           const struct lab_runs *, loci_error *);

enum lab_claimed { LAB_MINE, LAB_DONE, LAB_OTHERS };
struct lab_claim {
    char folder[LAB_PATH];
    int fd;
    double told;
};
/* Creates the run's folder and claims it, unless it is done or claimed by another process. */
loci_status lab_claim_acquire(struct lab_claim *, const char *dir, const struct lab_config *,
                              enum lab_claimed *, loci_error *);
/* Records the progress of the run, every two seconds at most. */
void lab_claim_tell(struct lab_claim *, int step, int steps, double loss);
void lab_claim_drop(struct lab_claim *);
/* The contents of a claim.  False: no process works on the run. */
struct lab_told {
    char host[64];
    long pid;
    int step, steps;
    double loss, age;
};
bool lab_claim_read(const char *folder, struct lab_told *);
bool lab_run_done(const char *dir, const char *id);

/* A checkpoint: all lists of the model, the next step, the log so far. */
loci_status lab_state_write(const char *folder, const struct lab_config *, struct lab_model *,
                            int step, const struct lab_result *log, loci_error *);
/* *step 0: there is none. A damaged or foreign one is UNSUPPORTED with a sentence. */
loci_status lab_state_read(const char *folder, const struct lab_config *, struct lab_model *,
                           int *step, struct lab_result *log, loci_error *);
/* weights.safetensors, and the hash of the weights. */
loci_status lab_weights_write(const char *folder, const struct lab_config *, struct lab_model *,
                              char sha256[65], loci_error *);
loci_status lab_weights_read(const char *folder, struct lab_model *, loci_error *);
void lab_weights_hash(struct lab_model *, char sha256[65]);
/* Removes the checkpoint when all results are written. */
void lab_state_remove(const char *folder);

const char *lab_compiler(void); /* that built this program */

/* Only one thread of the program writes at a time. */
void lab_write_begin(void);
void lab_write_end(void);

#endif
