/* SPDX-License-Identifier: MIT */
/* probe.h -- measured limits of this machine: the reference speeds of `loci bench`. */
#ifndef LOCI_CLI_PROBE_H
#define LOCI_CLI_PROBE_H

#include <stddef.h>

#include "loci/loci.h"

/* Each runs on `threads` threads of the host (NULL: on this one) for a few milliseconds and returns
 * a rate per second: f32 flops, two per multiply-add; flops of bf16 dot products, for plans that
 * use them; bytes read; bytes read and written together. */
double probe_flops(const char *isa, const loci_host *, int threads);
double probe_dots(const loci_host *, int threads);
double probe_read(const char *isa, const float *, size_t bytes, const loci_host *, int threads);
double probe_copy(float *to, const float *from, size_t bytes, const loci_host *, int threads);

/* Seconds that this thread has had a core, and how often another process preempted one of our
 * threads. */
struct spent {
    double wall, core;
    long aside;
};
struct spent spent_now(void);
/* The share of the time between the two in which other processes had the core. */
double taken_between(struct spent from, struct spent to);

/* More than the caches store, or a guess if the system does not report them.  At most 1 GiB, and at
 * most a 16th of this machine's memory. */
size_t beyond_caches(void);

#endif
