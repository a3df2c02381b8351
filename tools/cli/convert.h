/* SPDX-License-Identifier: MIT */
/* convert.h -- the two forms of `loci convert`. */
#ifndef LOCI_CLI_CONVERT_H
#define LOCI_CLI_CONVERT_H

#include "cli/cli.h"
#include "models/safetensors.h"
enum {
    CONVERT_OUTPUT, CONVERT_DRY_RUN, CONVERT_TO, CONVERT_DIM, CONVERT_HEADS, CONVERT_KV_HEADS,
    CONVERT_TURNED, CONVERT_OFFSET, CONVERT_Q, CONVERT_K, CONVERT_PART, CONVERT_TABLE,
    CONVERT_ENCODING, CONVERT_ROWS, CONVERT_DTYPE, CONVERT_LAYER, CONVERT_LENGTH
};

/* Both return the program's exit code. */
int convert_weights(const struct args *);
int convert_table(const struct args *);

#endif
