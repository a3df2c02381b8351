/* SPDX-License-Identifier: MIT */
/* loops.h -- programs of a GPU as loops: the C compiler translates a program at run time, with the
 * lines that make it one for a single plan, and its groups and threads run one after the other, in
 * an order that shows races. */
#ifndef LOCI_GPU_TESTS_LOOPS_H
#define LOCI_GPU_TESTS_LOOPS_H

#include <stdbool.h>
#include <stddef.h>

struct arrays;
struct loops;
struct params;

struct loops_kernel {
    const char *name;
    /* Groups and the threads of a phase run in an order that shows races. */
    void (*start)(const struct arrays *, const struct params *, int groups, float *shared);
};

/* By $CC, or cc.  NULL: it failed, and said why on stderr. */
struct loops *loops_compile(const char *source);
void loops_close(struct loops *l);
/* NULL: the program has no such kernel. */
const struct loops_kernel *loops_kernel(const struct loops *l, const char *name);
/* false: there is no memory for the shared memory of a group. */
bool loops_run(const struct loops_kernel *k, int groups, size_t shared, const struct arrays *at,
               const struct params *p);

#endif
