/* SPDX-License-Identifier: MIT */
/* store.h -- a folder of runs: who works on what, checkpoints, results.
 *
 *     DIR/lab.json                        what was asked for, and what made it
 *     DIR/runs/ID/config.json             the configuration, whose hash is ID
 *     DIR/runs/ID/claim                   who works on it, and how far that is
 *     DIR/runs/ID/state.safetensors       a checkpoint, until the run is done
 *     DIR/runs/ID/log.csv                 losses of the training
 *     DIR/runs/ID/weights.safetensors     what was learned
 *     DIR/runs/ID/result.json             what came out; the run is done when it is there
 *
 * Files are written as models/output.h does it, so whenever a process is killed each of them is
 * there whole, or as it was.  A claim is made by O_EXCL; one whose process is gone, or that
 * nobody has touched for ten minutes, is taken over. */
#ifndef LOCI_LAB_STORE_H
#define LOCI_LAB_STORE_H

#include "lab/config.h"
#include "lab/result.h"

enum { LAB_PATH = 4096, LAB_STALE = 600 };

/* Makes DIR, DIR/runs and lab.json, to which the command and its runs are added. */
loci_status lab_store_open(const char *dir, const char *command, const char *preset,
                           const struct lab_runs *, loci_error *);

enum lab_claimed { LAB_MINE, LAB_DONE, LAB_OTHERS };
struct lab_claim {
    char folder[LAB_PATH];
    int fd;
    double told;
};
/* Makes the run's folder and claims it, unless it is done or in other hands. */
loci_status lab_claim_acquire(struct lab_claim *, const char *dir, const struct lab_config *,
                           enum lab_claimed *, loci_error *);
/* Says how far the run is, every two seconds at most. */
void lab_claim_tell(struct lab_claim *, int step, int steps, double loss);
void lab_claim_drop(struct lab_claim *);
/* What a claim says; false: nobody works on the run. */
struct lab_told {
    char host[64];
    long pid;
    int step, steps;
    double loss, age;
};
bool lab_claim_read(const char *folder, struct lab_told *);
bool lab_run_done(const char *dir, const char *id);

/* A checkpoint: all lists of the model, the step to come, the log so far. */
loci_status lab_state_write(const char *folder, const struct lab_config *, struct lab_model *,
                            int step, const struct lab_result *log, loci_error *);
/* *step 0: there is none.  One that is damaged or foreign is UNSUPPORTED with a sentence. */
loci_status lab_state_read(const char *folder, const struct lab_config *, struct lab_model *,
                           int *step, struct lab_result *log, loci_error *);
/* weights.safetensors, and the hash of the weights. */
loci_status lab_weights_write(const char *folder, const struct lab_config *, struct lab_model *,
                              char sha256[65], loci_error *);
loci_status lab_weights_read(const char *folder, struct lab_model *, loci_error *);
void lab_weights_hash(struct lab_model *, char sha256[65]);
/* All is written: the checkpoint goes. */
void lab_state_remove(const char *folder);

const char *lab_compiler(void); /* that made this program */

/* The program's only writer at a time. */
void lab_write_begin(void);
void lab_write_end(void);

#endif
