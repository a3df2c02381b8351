/* SPDX-License-Identifier: MIT */
/* device.h -- devices of libloci-gpu, where `--device NAME` computes.  device_none.c replaces
 * device.c, check_device.c and bench_device.c in builds without them. */
#ifndef LOCI_CLI_DEVICE_H
#define LOCI_CLI_DEVICE_H

#include "loci/gpu.h"
#include "cli/problem.h"

/* ---- Devices --------------------------------------------------------------------------------- */

enum { MOST_DEVICES = 32, MOST_ABSENT = 2 };
struct device_list {
    int count, absent;
    loci_gpu_info list[MOST_DEVICES];
    loci_error why[MOST_ABSENT]; /* of drivers without a device */
};
void device_look(struct device_list *);
/* Opens the one that an option names.  Prints its error and returns false. */
bool device_open(const struct args *, int flag, loci_gpu **);
void device_close(loci_gpu *);
/* Its name, and its driver unless it is the host. */
void device_print(const loci_gpu_info *);

/* ---- A task on a device ---------------------------------------------------------------------- */

struct device_output {
    const char *name; /* "o", "lse", "dq", ... */
    void *at;         /* on the device */
    void *home;       /* the task's own */
    size_t bytes;
    loci_dtype dtype;
};
struct there {
    loci_gpu *gpu;
    loci_gpu_plan *plan;
    loci_gpu_tables tables;
    loci_call call;
    loci_grad grad;
    loci_stage stage;
    loci_view x, y, dy, dx; /* stages ROTATE and EMBED */
    loci_which which;
    const void **data; /* inputs of the call, on the device; NULL for other tensors */
    void **gradients;  /* of inputs on the device, of other tensors the task's own */
    void *work;
    size_t work_bytes;
    int blocks, outputs;
    void *block[32];
    struct device_output output[16];
};
/* Makes the plan, the tables unless the task has some, and uploads them and the inputs of a task
 * that is ready to be prepared.  Outputs begin with all bits set.  The sentence of an error is the
 * task's.  You may close it either way. */
loci_status there_open(struct there *, loci_gpu *, struct task *, ptrdiff_t max_distance,
                       bool backward);
void there_close(struct there *);
loci_status there_forward(const struct there *), there_backward(const struct there *);
loci_status there_fetch(const struct there *, const struct device_output *, void *to);

/* All of it: results are where the CPU would put them. */
loci_status device_compute(loci_gpu *, struct task *, ptrdiff_t max_distance, bool backward);

/* ---- Commands -------------------------------------------------------------------------------- */

/* `loci check --device`: are the bits those of the CPU?  Returns the exit code. */
int device_check(loci_gpu *, bool json);

/* `loci bench --device`. */
struct device_bench {
    loci_gpu *gpu;
    loci_gpu_info info;
    int repeat;
    bool json, all; /* all: encodings that do not run are left out */
    double flops, bytes;
    int rows;            /* printed */
    char names[1024];    /* of those that are left out */
    struct rival *plain; /* plain attention at this length; NULL for a rotation */
    ptrdiff_t len;
};
/* Probes the device.  Prints its error and returns false, as the next one does. */
bool device_bench_open(struct device_bench *);
bool device_bench_one(struct device_bench *, const struct problem *, const char *encoding);
/* `done`: says what was left out. */
void device_bench_close(struct device_bench *, bool done);

#endif
