/* SPDX-License-Identifier: MIT */
/* result.h -- the result.json of a run, and all runs of a folder.
 *
 * A run is one arm on one task with one seed.  A variant (rope@ntk, alibi@window ...) tests the
 * trained model in another way without training.  It belongs to the run that trained the model. */
#ifndef LOCI_LAB_RESULT_H
#define LOCI_LAB_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lab/task.h"

/* One measured column of task.h. */
struct lab_measured {
    char name[LAB_NAME];
    double times;      /* length over the trained one */
    int length, count; /* tokens of the longest sequence, sequences */
    bool trained;
    enum lab_metric metric;       /* shown in tables */
    double loss, accuracy, exact; /* means: nats per scored token; shares in [0, 1] */
    /* [count]: the shown metric by sequence, for the error that their choice leaves */
    double *each;
};
/* Mean loss of the tokens at positions from .. to (counted from 0, inclusive). */
struct lab_span {
    int from, to;
    double loss;
    ptrdiff_t count;
};

struct lab_row {   /* the trained arm, or a variant of it */
    char name[64]; /* "" for the arm itself, else "ntk", "window", "pi+ft" */
    int columns, spans;
    struct lab_measured *column;
    struct lab_span *span;
};
/* Small tests during the training of a run. */
enum { LAB_GLANCES = 24 };
/* A line of log.csv: training loss, its learning rate, norm of the gradient.  If measured, the
 * shown metric on a column as trained and on one far out (NaN: not measured). */
struct lab_logged {
    int step;
    double loss, rate, norm, trained, far;
};

struct lab_result {
    char id[33], arm[128], task[LAB_NAME], size[LAB_NAME];
    /* the other settings of the configuration, "key=value ..." */
    char settings[512];
    int seed, length, steps;
    int64_t params, params_encoding;
    double seconds_per_step, peak_bytes, cache_bytes_per_token, teraflops;
    double validation; /* loss as in training, on sequences of its own; NaN: not measured */
    bool learned;
    char weights_sha256[65];
    char version[32], compiler[128], cpu[96], isa[16];
    int rows; /* row 0: the arm itself */
    struct lab_row *row;
    int warnings;
    char **warning; /* one sentence each */
    int logs;
    struct lab_logged *log; /* from log.csv, if it is readable */
};

loci_status lab_result_write(const struct lab_result *, const char *folder, loci_error *);
loci_status lab_result_read(struct lab_result *, const char *folder, loci_error *);
void lab_result_free(struct lab_result *);
/* Was it trained elsewhere, by loci.lab.train() in PyTorch?  Its weights are no model of this lab,
 * and its bits are not repeatable. */
bool lab_result_foreign(const struct lab_result *);

/* All finished runs of DIR, ordered by task, arm, seed.  Damaged or foreign files are skipped, with
 * one sentence each in `skipped`. */
struct lab_results {
    int count, skips;
    struct lab_result *list;
    char **skipped;
};
loci_status lab_results_read(struct lab_results *, const char *dir, loci_error *);
void lab_results_free(struct lab_results *);

/* Reads the JSON of a regular file in a folder.  Rejects any other kind of file with one sentence.
 * The caller releases it. */
struct json_t;
loci_status lab_json_read(struct json_t **, const char *folder, const char *name, loci_error *);

/* The command in DIR/lab.json, a text or a list of them.  The caller frees it. */
loci_status lab_command_read(char **command, const char *dir, loci_error *);

#endif
