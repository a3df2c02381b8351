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

/* ---- The files that are read and written: convert_shards.c */

struct shard {
    char *name, *path;                   /* name: in its folder; NULL without an index */
    struct safetensors file;
    int first;                           /* the number of its first tensor among all */
};
struct shards {
    char *index;                         /* its path; NULL: one file alone */
    char *text;                          /* what the index says, in so many bytes */
    size_t bytes;
    struct shard *list;
    int count;
    struct safetensors all;              /* tensors of all shards; the first one's metadata */
};
/* The index that a path means: itself, or the one in this folder; NULL: it means neither. */
char *shards_index(const char *path);
/* With `index` or without it.  What is wrong is printed; either way, close it. */
bool shards_open(struct shards *, const char *path);
void shards_close(struct shards *);
/* Can the files of an index be written to this folder?  It need not be there. */
bool shards_check_output(const struct shards *, const char *folder);
/* Begins the file of a shard and writes all its tensors.  On failure it ends the file. */
typedef loci_status write_shard(const void *user, const struct shard *, struct safetensors_writer *,
                                const char *path, loci_error *);
/* Every file, and then the index; on failure none of them. */
bool shards_write(const struct shards *, const char *folder, write_shard *, const void *user);

/* Both return the program's exit code. */
int convert_weights(const struct args *);
int convert_table(const struct args *);

#endif
