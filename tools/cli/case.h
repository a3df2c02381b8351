/* SPDX-License-Identifier: MIT */
/* case.h -- a case file: a whole attention problem, and perhaps what it should give. */
#ifndef LOCI_CLI_CASE_H
#define LOCI_CLI_CASE_H

#include "models/safetensors.h"
#include "cli/task.h"

/* One result of running a case, and what the file expects of it. */
struct output {
    char name[192];                      /* "out", "d.param.t5.table", ... */
    int rank;
    ptrdiff_t shape[ST_MAX_RANK];
    loci_dtype dtype;
    const void *data;
    double *expect;                      /* NULL: nothing */
};

struct case_file {
    const char *path;
    char text[1024];                     /* the encoding, where the file's does not say enough */
    struct safetensors file;
    bool *used;                          /* per tensor of the file */
    loci_stage stage;
    double tol[2];                       /* of outputs and of gradients */
    bool backward;                       /* the file holds a cotangent */
    bool batched;                        /* positions or segments differ between batch entries */
    ptrdiff_t max_distance;
    struct task task;
    int outputs;
    struct output output[64];
};

/* Reads the file, makes the plan for it, and fills the task: inputs, tensors, positions, room for
 * the results. Prints its error and returns false; the case may be closed either way. */
bool case_open(struct case_file *, const char *path, loci_dtype, bool fast, const char *isa);
void case_close(struct case_file *);

#endif
