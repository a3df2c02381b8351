/* SPDX-License-Identifier: MIT */
/* device.h -- what a backend provides: memory, programs and launches on one device.
 *
 * A device does its work in the order of the calls.  Pointers of its memory can be offset, on the
 * host as in kernels.  Errors are sentences that name the driver's function and its words. */
#ifndef LOCI_GPU_DEVICE_H
#define LOCI_GPU_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loci/gpu.h"
#include "kernels/arguments.h"

/* What the kernels need to know of a device, and what reports print. */
struct device_facts {
    char name[128];  /* "NVIDIA H100 80GB HBM3" */
    char driver[64]; /* "CUDA 13.0", "OpenCL 3.0 PoCL 3.1" */
    size_t shared;   /* bytes of shared memory that a group can have */
    int units;       /* multiprocessors, compute units */
    int compute;     /* CUDA: 90 for sm_90; else 0 */
    uint64_t memory; /* bytes */
    bool processor;  /* it is a CPU */
};

/* No program has more kernels. */
#define ONE_KERNEL(name) +1
enum { MOST_KERNELS = KERNELS(ONE_KERNEL) };
#undef ONE_KERNEL

struct program;

struct launch {
    const char *kernel; /* as in KERNELS of kernels/arguments.h */
    int groups[2];
    int threads; /* of a group */
    size_t shared;
    const struct arrays *arrays;
    const struct params *params;
};

enum direction { TO_DEVICE, FROM_DEVICE, ON_DEVICE };

struct backend {
    const char *name; /* "host", "opencl", "cuda" */
    /* How many devices there are; 0 with a reason if there is no driver. */
    int (*count)(loci_error *why);
    loci_status (*facts)(int number, struct device_facts *, loci_error *);
    /* open() allocates *state, which close() frees. */
    loci_status (*open)(int number, void **state, loci_error *);
    /* The host's own context and stream: CUDA's CUcontext and CUstream, OpenCL's cl_context and
     * cl_command_queue.  NULL: not possible. */
    loci_status (*adopt)(void *context, void *stream, void **state, struct device_facts *,
                         loci_error *);
    void (*close)(void *state);
    loci_status (*alloc)(void *state, size_t bytes, void **to, loci_error *);
    void (*free)(void *state, void *at);
    /* Host memory may be reused when this returns.  FROM_DEVICE waits. */
    loci_status (*copy)(void *state, void *to, const void *from, size_t bytes, enum direction,
                        loci_error *);
    loci_status (*clear)(void *state, void *at, size_t bytes, loci_error *); /* to 0 */
    loci_status (*wait)(void *state, loci_error *);
    /* Compiles the kernels with these lines before their source (kernels/source.h). */
    loci_status (*build)(void *state, const char *lines, struct program **, loci_error *);
    void (*unload)(void *state, struct program *);
    loci_status (*launch)(void *state, struct program *, const struct launch *, loci_error *);
    /* Seconds on the device between mark() and elapsed(), which waits. */
    loci_status (*mark)(void *state, loci_error *);
    loci_status (*elapsed)(void *state, double *seconds, loci_error *);
};

extern const struct backend loci_gpu_host, loci_gpu_opencl, loci_gpu_cuda;

/* The kernels as text, in the order in which a compiler reads them. */
extern const char loci_gpu_source[];

#endif
