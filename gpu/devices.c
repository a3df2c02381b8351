/* SPDX-License-Identifier: MIT */
/* devices.c -- the list of devices, and one of them: memory, copies and clocks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

static const struct backend *const backends[] = { &loci_gpu_cuda, &loci_gpu_opencl,
                                                  &loci_gpu_host };

static void describe(const struct backend *b, int number, const struct device_facts *f,
                     loci_gpu_info *to)
{
    *to = (loci_gpu_info){ .memory = f->memory, .units = f->units };
    if (b == &loci_gpu_host && number == 0) snprintf(to->id, sizeof to->id, "host");
    else snprintf(to->id, sizeof to->id, "%s:%d", b->name, number);
    snprintf(to->name, sizeof to->name, "%s", f->name);
    snprintf(to->driver, sizeof to->driver, "%s", f->driver);
}
int loci_gpu_devices(loci_gpu_info *list, int room)
{
    int n = 0;
    for (int i = 0; i < COUNT(backends); i++) {
        loci_error none;
        const int all = backends[i]->count(&none);
        for (int k = 0; k < all; k++) {
            struct device_facts f = { 0 };
            if (backends[i]->facts(k, &f, &none))
                snprintf(f.name, sizeof f.name, "%.127s", none.text);
            if (n < room) describe(backends[i], k, &f, &list[n]);
            n++;
        }
    }
    return n;
}

/* The backend and number of an id: "cuda:0"; without a number it is 0. */
static loci_status find(const char *id, const struct backend **b, int *number, loci_error *e)
{
    const char *colon = strchr(id, ':');
    const size_t n = colon ? (size_t)(colon - id) : strlen(id);
    *b = NULL;
    for (int i = 0; i < COUNT(backends); i++)
        if (strlen(backends[i]->name) == n && strncmp(id, backends[i]->name, n) == 0)
            *b = backends[i];
    CHECK(e, *b, LOCI_BAD_ARG,
          "'%s' is no device; a device is cuda, opencl or host, with a number like cuda:0", id);
    char *end = NULL;
    const long given = colon ? strtol(colon + 1, &end, 10) : 0;
    CHECK(e, !colon || (end != colon + 1 && !*end && given >= 0 && given < 1000), LOCI_BAD_ARG,
          "'%s' must end with the number of a device, like cuda:0", id);
    *number = (int)given;
    return LOCI_OK;
}
/* $LOCI_GPU_SHARED: tests give a group less shared memory than there is. */
static void take_shared(struct loci_gpu *gpu)
{
    const char *given = getenv("LOCI_GPU_SHARED");
    const long bytes = given ? strtol(given, NULL, 10) : 0;
    if (bytes > 0 && (size_t)bytes < gpu->facts.shared) gpu->facts.shared = (size_t)bytes;
}
static loci_status open(struct loci_gpu *gpu, const char *id, loci_error *e)
{
    int number = 0;
    loci_error why = { 0 };
    if (id) TRY(find(id, &gpu->backend, &number, e));
    for (int i = 0; !id && !gpu->backend; i++)
        if (backends[i]->count(&why)) gpu->backend = backends[i];
    const int all = gpu->backend->count(&why);
    CHECK(e, all || !*why.text, LOCI_UNSUPPORTED, "%s: %s", gpu->backend->name, why.text);
    CHECK(e, number < all, LOCI_BAD_ARG, "there is no %s:%d: %s has %d devices", gpu->backend->name,
          number, gpu->backend->name, all);
    TRY(gpu->backend->facts(number, &gpu->facts, e));
    TRY(gpu->backend->open(number, &gpu->state, e));
    take_shared(gpu);
    describe(gpu->backend, number, &gpu->facts, &gpu->info);
    return LOCI_OK;
}
static void discard(struct loci_gpu *gpu)
{
    lock_close(&gpu->lock);
    free(gpu);
}
loci_status loci_gpu_open(loci_gpu **to, const char *id, loci_error *e)
{
    CHECK(e, to, LOCI_BAD_ARG, "gpu must not be NULL");
    *to = NULL;
    struct loci_gpu *gpu = calloc(1, sizeof *gpu);
    CHECK(e, gpu, LOCI_NO_MEMORY, "no memory for a device");
    lock_open(&gpu->lock);
    const loci_status status = open(gpu, id, e);
    if (status) discard(gpu);
    else *to = gpu;
    return status;
}
loci_status loci_gpu_adopt(loci_gpu **to, const char *backend, void *context, void *stream,
                           loci_error *e)
{
    int number;
    CHECK(e, to && backend, LOCI_BAD_ARG, "gpu and backend must not be NULL");
    *to = NULL;
    struct loci_gpu *gpu = calloc(1, sizeof *gpu);
    CHECK(e, gpu, LOCI_NO_MEMORY, "no memory for a device");
    lock_open(&gpu->lock);
    loci_status status = find(backend, &gpu->backend, &number, e);
    if (!status && !gpu->backend->adopt)
        status = loci_fail(e, LOCI_UNSUPPORTED, "%s has no contexts; use loci_gpu_open()", backend);
    if (!status) status = gpu->backend->adopt(context, stream, &gpu->state, &gpu->facts, e);
    if (!status) take_shared(gpu);
    if (!status) describe(gpu->backend, 0, &gpu->facts, &gpu->info);
    if (status) discard(gpu);
    else *to = gpu;
    return status;
}
void loci_gpu_close(loci_gpu *gpu)
{
    if (!gpu) return;
    loci_gpu_unload_programs(gpu);
    gpu->backend->close(gpu->state);
    discard(gpu);
}
loci_gpu_info loci_gpu_describe(const loci_gpu *gpu) { return gpu->info; }

loci_status loci_gpu_alloc(loci_gpu *gpu, size_t bytes, void **to, loci_error *e)
{
    CHECK(e, gpu && to, LOCI_BAD_ARG, "gpu and memory must not be NULL");
    *to = NULL;
    return gpu->backend->alloc(gpu->state, bytes ? bytes : 1, to, e);
}
void loci_gpu_free(loci_gpu *gpu, void *at)
{
    if (gpu && at) gpu->backend->free(gpu->state, at);
}
loci_status loci_gpu_copy(loci_gpu *gpu, void *to, const void *from, size_t bytes,
                          loci_gpu_copy_kind kind, loci_error *e)
{
    CHECK(e, gpu && ((to && from) || !bytes), LOCI_BAD_ARG,
          "gpu, the source and the destination must not be NULL");
    CHECK(e, kind >= LOCI_GPU_UPLOAD && kind <= LOCI_GPU_MOVE, LOCI_BAD_ARG,
          "the kind of a copy must be LOCI_GPU_UPLOAD, LOCI_GPU_DOWNLOAD or LOCI_GPU_MOVE");
    if (!bytes) return LOCI_OK;
    const enum direction direction = kind == LOCI_GPU_UPLOAD   ? TO_DEVICE
                                   : kind == LOCI_GPU_DOWNLOAD ? FROM_DEVICE
                                                               : ON_DEVICE;
    return gpu->backend->copy(gpu->state, to, from, bytes, direction, e);
}
loci_status loci_gpu_wait(loci_gpu *gpu, loci_error *e)
{
    CHECK(e, gpu, LOCI_BAD_ARG, "gpu must not be NULL");
    return gpu->backend->wait(gpu->state, e);
}
loci_status loci_gpu_clock_start(loci_gpu *gpu, loci_error *e)
{
    CHECK(e, gpu, LOCI_BAD_ARG, "gpu must not be NULL");
    return gpu->backend->mark(gpu->state, e);
}
loci_status loci_gpu_clock_stop(loci_gpu *gpu, double *seconds, loci_error *e)
{
    CHECK(e, gpu && seconds, LOCI_BAD_ARG, "gpu and seconds must not be NULL");
    return gpu->backend->elapsed(gpu->state, seconds, e);
}
