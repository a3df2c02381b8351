/* SPDX-License-Identifier: MIT */
/* probe.h -- what this machine can do at most, measured: the yardsticks of `loci bench`. */
#ifndef LOCI_CLI_PROBE_H
#define LOCI_CLI_PROBE_H

#include <stddef.h>

#include "loci/loci.h"

/* Each runs on `threads` threads of the host (NULL: on this one) for a few milliseconds, and
 * returns what it did per second: f32 flops, two per multiply-add; the same of bf16 dot products,
 * for plans that use them; bytes read; bytes read and written together. */
double probe_flops(const char *isa, const loci_host *, int threads);
double probe_dots(const loci_host *, int threads);
double probe_read(const char *isa, const float *, size_t bytes, const loci_host *, int threads);
double probe_copy(float *to, const float *from, size_t bytes, const loci_host *, int threads);

/* Seconds that this thread has had a core; and how often another process has put one of our
 * threads aside. */
struct spent { double wall, core; long aside; };
struct spent spent_now(void);
/* The share of the time between the two in which other processes had the core. */
double taken_between(struct spent from, struct spent to);

/* More than the caches hold, or a guess where the system does not say; at most 1 GiB, and a 16th of
 * this machine's memory. */
size_t beyond_caches(void);

#endif
