/* SPDX-License-Identifier: MIT */
/* bench_parallel.h -- `loci bench --parallel`: one attention over ranks, against one process. */
#ifndef LOCI_CLI_BENCH_PARALLEL_H
#define LOCI_CLI_BENCH_PARALLEL_H

#include "cli/problem.h"
#include "loci/parallel.h"

struct spread {
    loci_layout layout;
    bool gather, json;
    int ranks; /* number of ranks as threads; 0: processes of a job */
    int repeat;
};
/* Accepts "zigzag" and "contiguous", each with ",gather".  Prints its error. */
bool spread_parse(struct spread *, const char *text);
/* The problem's thread count is per rank. */
bool bench_parallel(const struct spread *, struct problem *, const char *encoding);

#endif
