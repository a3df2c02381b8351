/* SPDX-License-Identifier: MIT */
/* bias.h -- the arm bias:file=X.safetensors: a table that is added to scores, made elsewhere.
 *
 * The file has a tensor `bias` of F32 or F64, one table for all layers:
 *
 *     [heads, distances]     S_ij += bias[h][min(i - j, distances - 1)]
 *     [heads, rows, keys]    S_ij += bias[h][i][j], by the positions in a sequence
 *
 * learn=1: training starts from it, and each layer has its own.  Else it stays as it is. */
#ifndef LOCI_LAB_BIAS_H
#define LOCI_LAB_BIAS_H

#include <stdbool.h>
#include <stddef.h>

#include "loci/loci.h"

struct lab_bias {
    char path[128]; /* "": the arm has none */
    bool learn;
    int rank; /* 2: by distance; 3: by row and key */
    ptrdiff_t shape[3];
};

/* Reads the options of a part "bias:file=X,learn=1" of n characters, and the shape of the file's
 * table. */
loci_status lab_bias_open(struct lab_bias *, const char *part, size_t n, loci_error *);
/* All numbers of the table, in the file's order. */
loci_status lab_bias_read(const struct lab_bias *, double *to, loci_error *);
/* The hash of the file's bytes: it belongs to the identity of a run.  "" if it cannot be read. */
void lab_bias_hash(const struct lab_bias *, char sha256[65]);

#endif
