/* SPDX-License-Identifier: MIT */
/* convert.h -- the two forms of `loci convert`. */
#ifndef LOCI_CLI_CONVERT_H
#define LOCI_CLI_CONVERT_H

#include "cli/cli.h"
#include "models/safetensors.h"
enum {
    CONVERT_OUTPUT,
    CONVERT_DRY_RUN,
    CONVERT_TO,
    CONVERT_DIM,
    CONVERT_HEADS,
    CONVERT_KV_HEADS,
    CONVERT_TURNED,
    CONVERT_OFFSET,
    CONVERT_Q,
    CONVERT_K,
    CONVERT_PART,
    CONVERT_TABLE,
    CONVERT_ENCODING,
    CONVERT_ROWS,
    CONVERT_DTYPE,
    CONVERT_LAYER,
    CONVERT_LENGTH
};

/* ---- Input and output files: convert_shards.c */

struct shard {
    /* name: within the index's folder, NULL without an index */
    char *name, *path;
    struct safetensors file;
    int first; /* index of its first tensor among all */
};
struct shards {
    char *index; /* path of the index; NULL: a single file */
    char *text;  /* the index and its length in bytes */
    size_t bytes;
    struct shard *list;
    int count;
    struct safetensors all; /* tensors of all shards; the first one's metadata */
};
/* Returns the index of a path: the path itself, or the index in this folder.  NULL: neither. */
char *shards_index(const char *path);
/* Opens shards with or without an index.  Prints its error.  Close it either way. */
bool shards_open(struct shards *, const char *path);
void shards_close(struct shards *);
/* Tests that the files of an index can be written to this folder, which need not exist. */
bool shards_check_output(const struct shards *, const char *folder);
/* Begins the file of a shard and writes all its tensors.  Ends the file on failure. */
typedef loci_status write_shard(const void *user, const struct shard *, struct safetensors_writer *,
                                const char *path, loci_error *);
/* Writes every file, and then the index.  On failure, leaves none of them. */
bool shards_write(const struct shards *, const char *folder, write_shard *, const void *user);

/* Both return the program's exit code. */
int convert_weights(const struct args *);
int convert_table(const struct args *);

#endif
