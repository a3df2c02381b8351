/* SPDX-License-Identifier: MIT */
/* ranks.h -- the ranks of `loci bench --parallel`: threads of this process, or the processes of an
 * MPI job. */
#ifndef LOCI_CLI_RANKS_H
#define LOCI_CLI_RANKS_H

#include <stdbool.h>

#include "loci/parallel.h"

enum { MOST_RANKS = 256 };

/* Calls body() on each of `ranks` threads, with a transport between them, and waits for all. */
bool ranks_as_threads(int ranks, void (*body)(const loci_transport *, void *arg), void *arg);

/* Has an MPI launcher started this program as one of several processes? */
bool ranks_in_job(void);
/* Calls body() once, with the transport of libloci-mpi, which it loads. */
bool ranks_of_job(void (*body)(const loci_transport *, void *arg), void *arg);

#endif
