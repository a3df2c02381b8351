/* SPDX-License-Identifier: MIT */
/* devices.h -- the devices that a test compares with the CPU, and their memory. */
#ifndef LOCI_TESTS_GPU_DEVICES_H
#define LOCI_TESTS_GPU_DEVICES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/gpu.h"
#include "harness.h"
#include "walk.h"

enum { MOST_DEVICES = 16, MOST_BLOCKS = 64 };
static loci_gpu *gpus[MOST_DEVICES];
static const char *devices[MOST_DEVICES];
static int device_count;

/* Opens those that $LOCI_DEVICES names, or else these of the host, and the first OpenCL device if
 * there is one. */
static inline void open_devices(const char *hosts, bool opencl)
{
    static char names[256];
    const char *given = getenv("LOCI_DEVICES");
    loci_gpu_info list[32];
    const int all = loci_gpu_devices(list, 32);
    bool there = false;
    for (int i = 0; i < all; i++) there |= strcmp(list[i].id, "opencl:0") == 0;
    snprintf(names, sizeof names, "%s%s", given ? given : hosts,
             !given && opencl && there ? " opencl:0" : "");
    for (char *id = strtok(names, " "); id && device_count < MOST_DEVICES; id = strtok(NULL, " ")) {
        loci_error e;
        if (loci_gpu_open(&gpus[device_count], id, &e)) {
            CHECK_FAILED("%s: %s", id, e.text);
            continue;
        }
        const loci_gpu_info info = loci_gpu_describe(gpus[device_count]);
        printf("%s: %s, %s\n", id, info.name, info.driver);
        devices[device_count++] = id;
    }
}
static inline void close_devices(void)
{
    while (device_count) loci_gpu_close(gpus[--device_count]);
}

/* Memory of a device. */
struct there {
    loci_gpu *gpu;
    void *block[MOST_BLOCKS];
    int blocks;
};
/* New memory with these bytes, or, without `from`, with any. */
static inline void *copy_there(struct there *t, const void *from, size_t bytes)
{
    loci_error e = { 0 };
    void *at = NULL;
    if (t->blocks == MOST_BLOCKS || loci_gpu_alloc(t->gpu, bytes + !bytes, &at, &e)
        || (from && loci_gpu_copy(t->gpu, at, from, bytes, LOCI_GPU_UPLOAD, &e))) {
        CHECK_FAILED("memory of a device: %s", e.text);
        exit(1);
    }
    return t->block[t->blocks++] = at;
}
static inline void release(struct there *t)
{
    while (t->blocks) loci_gpu_free(t->gpu, t->block[--t->blocks]);
}

#endif
