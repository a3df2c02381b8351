/* SPDX-License-Identifier: MIT */
/* threads.h -- the threads of the backend, apart from those of ggml's CPU backend.
 *
 * ggml's threads spin for a while after each graph, in the hope of the next one, and would compete
 * with others for the cores.  If ggml uses OpenMP, loci's jobs run on the very same threads.  Else
 * they run on a pool of loci, whose threads sleep between calls. */
#ifndef LOCI_GGML_THREADS_H
#define LOCI_GGML_THREADS_H

#include <stdbool.h>

#include "loci/loci.h"

struct threads {
    int wanted;
    bool asked, openmp; /* does ggml use OpenMP? */
    loci_host pool;     /* 0 threads, or at least those that were wanted before */
};

void loci_threads_set(struct threads *, int wanted);
/* The host of a call, in *host; NULL: one thread. */
const loci_host *loci_threads_host(struct threads *, loci_host *host);
void loci_threads_end(struct threads *);

#endif
