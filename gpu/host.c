/* SPDX-License-Identifier: MIT */
/* host.c -- the backend without a device: kernels are functions, and groups and the threads of a
 * phase run one after the other.  It is slow, and there for tests and `--device host`: sanitizers
 * see every access, and groups and threads can run in another order, which shows a race. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/entry.h"
#include "aligned.h"
#include "device.h"
#include "platform/clock.h"
#include "util/error.h"

/* The devices: threads of a phase forward, reversed, and shuffled; groups forward on the first one,
 * and reversed on the others. */
enum { HOST_FORWARD, HOST_REVERSED, HOST_SHUFFLED, HOST_DEVICES };
static const int orders[HOST_DEVICES][THREADS] = {
#define FOUR_OF(m, n) m(n), m(n + 1), m(n + 2), m(n + 3)
#define SIXTEEN_OF(m, n) FOUR_OF(m, n), FOUR_OF(m, n + 4), FOUR_OF(m, n + 8), FOUR_OF(m, n + 12)
#define ALL_OF(m) \
    SIXTEEN_OF(m, 0), SIXTEEN_OF(m, 16), SIXTEEN_OF(m, 32), SIXTEEN_OF(m, 48), SIXTEEN_OF(m, 64), \
        SIXTEEN_OF(m, 80), SIXTEEN_OF(m, 96), SIXTEEN_OF(m, 112)
#define RISING(n) (n)
#define FALLING(n) (THREADS - 1 - (n))
#define SHUFFLED(n) (((n)*37 + 11) % THREADS)
    { ALL_OF(RISING) },
    { ALL_OF(FALLING) },
    { ALL_OF(SHUFFLED) },
};
_Thread_local const int *loci_host_order = orders[HOST_FORWARD];

struct host {
    int order;
    double mark;
};

static int host_count(loci_error *why)
{
    (void)why;
    return HOST_DEVICES;
}
static loci_status host_facts(int number, struct device_facts *f, loci_error *e)
{
    static const char *const names[HOST_DEVICES] = {
        "loops on the CPU, for checking",
        "loops on the CPU, threads reversed",
        "loops on the CPU, threads shuffled",
    };
    (void)e;
    *f = (struct device_facts){ .shared = 1 << 20, .units = 1, .processor = true };
    snprintf(f->name, sizeof f->name, "%s", names[number]);
    snprintf(f->driver, sizeof f->driver, "none");
    return LOCI_OK;
}
static loci_status host_open(int number, void **state, loci_error *e)
{
    struct host *h = calloc(1, sizeof *h);
    CHECK(e, h, LOCI_NO_MEMORY, "no memory for a device");
    h->order = number;
    *state = h;
    return LOCI_OK;
}
static void host_close(void *state) { free(state); }

static loci_status host_alloc(void *state, size_t bytes, void **to, loci_error *e)
{
    (void)state;
    *to = aligned_new(bytes);
    CHECK(e, *to, LOCI_NO_MEMORY, "no memory for %zu bytes", bytes);
    return LOCI_OK;
}
static void host_free(void *state, void *at)
{
    (void)state;
    aligned_free(at);
}
static loci_status host_copy(void *state, void *to, const void *from, size_t bytes,
                             enum direction direction, loci_error *e)
{
    (void)state;
    (void)direction;
    (void)e;
    if (bytes) memmove(to, from, bytes);
    return LOCI_OK;
}
static loci_status host_clear(void *state, void *at, size_t bytes, loci_error *e)
{
    (void)state;
    (void)e;
    if (bytes) memset(at, 0, bytes);
    return LOCI_OK;
}
static loci_status host_wait(void *state, loci_error *e)
{
    (void)state;
    (void)e;
    return LOCI_OK;
}
/* The kernels that a program has on a device: no launch may want another one. */
struct program {
    const char *line, *kernels[MOST_KERNELS + 1];
};
#define NAME(kernel) #kernel,
#define PROGRAM(list) \
    { \
        "#define LOCI_KERNELS " #list "\n", { list(NAME) NULL } \
    }
static struct program programs[] = {
    PROGRAM(FORWARD_KERNELS),      PROGRAM(BACKWARD_KERNELS),       PROGRAM(PROBE_KERNELS),
    PROGRAM(FORWARD_GATE_KERNELS), PROGRAM(BACKWARD_INPUT_KERNELS), PROGRAM(DECODE_KERNELS),
    PROGRAM(VECTOR_KERNELS),       PROGRAM(VECTOR_BACK_KERNELS),    PROGRAM(CACHE_KERNELS),
    PROGRAM(ROW_KERNELS),          PROGRAM(LINEAR_KERNELS),
};
#undef PROGRAM
#undef NAME
static loci_status host_build(void *state, const char *lines, struct program **to, loci_error *e)
{
    (void)state;
    for (int i = 0; i < COUNT(programs); i++)
        if (strncmp(lines, programs[i].line, strlen(programs[i].line)) == 0) {
            *to = &programs[i];
            return LOCI_OK;
        }
    return loci_fail(e, LOCI_BAD_ARG, "the host has no such program");
}
static void host_unload(void *state, struct program *p)
{
    (void)state;
    (void)p;
}
static bool has_kernel(const struct program *p, const char *name)
{
    int i = 0;
    while (p->kernels[i] && strcmp(p->kernels[i], name) != 0) i++;
    return p->kernels[i] != NULL;
}

static const struct {
    const char *name;
    void (*run)(struct block);
} kernels[] = {
#define KERNEL(name) { #name, name },
    KERNELS(KERNEL)
#undef KERNEL
};
static loci_status host_launch(void *state, struct program *p, const struct launch *l,
                               loci_error *e)
{
    const struct host *h = state;
    CHECK(e, has_kernel(p, l->kernel), LOCI_BAD_ARG, "the host's program has no kernel %s",
          l->kernel);
    /* exactly as much as a device would have, so that sanitizers see an access beyond */
    float *room = aligned_new(l->shared);
    CHECK(e, room, LOCI_NO_MEMORY, "no memory for %zu bytes of shared memory", l->shared);
    loci_host_order = orders[h->order];
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(kernels[i].name, l->kernel) != 0) continue;
        for (int n = 0; n < l->groups[0]; n++) {
            const int x = h->order == HOST_FORWARD ? n : l->groups[0] - 1 - n;
            kernels[i].run((struct block){
                .at = *l->arrays, .p = l->params, .x = x, .room = room, .scan = room });
        }
        break;
    }
    aligned_free(room);
    return LOCI_OK;
}
static loci_status host_mark(void *state, loci_error *e)
{
    struct host *h = state;
    (void)e;
    h->mark = loci_clock_steady();
    return LOCI_OK;
}
static loci_status host_elapsed(void *state, double *seconds, loci_error *e)
{
    const struct host *h = state;
    (void)e;
    *seconds = loci_clock_steady() - h->mark;
    return LOCI_OK;
}

const struct backend loci_gpu_host = {
    .name = "host",
    .count = host_count,
    .facts = host_facts,
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .free = host_free,
    .copy = host_copy,
    .clear = host_clear,
    .wait = host_wait,
    .build = host_build,
    .unload = host_unload,
    .launch = host_launch,
    .mark = host_mark,
    .elapsed = host_elapsed,
};
