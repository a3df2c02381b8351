/* SPDX-License-Identifier: MIT */
/* case.h -- a case file: an attention problem, with expected results if the file has them. */
#ifndef LOCI_CLI_CASE_H
#define LOCI_CLI_CASE_H

#include "models/safetensors.h"
#include "cli/task.h"

/* A result of running a case, and its expected value from the file. */
struct output {
    char name[192]; /* "out", "d.param.t5.table", ... */
    int rank;
    ptrdiff_t shape[ST_MAX_RANK];
    loci_dtype dtype;
    const void *data;
    double *expect; /* NULL: nothing is expected */
};

struct case_file {
    const char *path;
    /* the encoding, if the file's own text is not complete */
    char text[1024];
    struct safetensors file;
    bool *used; /* per tensor of the file */
    loci_stage stage;
    double dropout;
    uint64_t seed, offset; /* of dropout */
    /* stored types of keys and values; reference: inputs are those of the reference */
    loci_dtype k_dtype, v_dtype;
    bool reference;
    double tol[2]; /* of outputs and of gradients */
    bool backward; /* the file holds a cotangent */
    bool batched;  /* positions or segments differ between batch entries */
    ptrdiff_t max_distance;
    struct task task;
    int outputs;
    struct output output[64];
};

/* Reads the file, creates its plan and fills the task: inputs, tensors, positions, buffers for the
 * results.  reference: for task_reference(), and the type is F64.  Prints its error and returns
 * false.  You may close the case either way. */
bool case_open(struct case_file *, const char *path, loci_dtype, bool fast, const char *isa,
               bool reference);
void case_close(struct case_file *);

#endif
