/* SPDX-License-Identifier: MIT */
/* safetensors.h -- reading and writing .safetensors files, strictly.
 *
 * A file is a length (u64, little-endian), a JSON header of that many bytes, and the tensors'
 * data.  The reader trusts nothing: it checks the whole header before it allocates or reads
 * anything that depends on it.  It rejects a file unless its tensors are contiguous from the
 * header to the end of the file.  Names and metadata are valid UTF-8 without NUL, but may
 * contain control characters: escape them before printing. */
#ifndef LOCI_MODELS_SAFETENSORS_H
#define LOCI_MODELS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "models/output.h"
#include "loci/loci.h"

enum safetensors_type {
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_F8_E4M3,
    ST_F8_E5M2,
    ST_F8_E8M0,
    ST_U16,
    ST_I16,
    ST_F16,
    ST_BF16,
    ST_U32,
    ST_I32,
    ST_F32,
    ST_U64,
    ST_I64,
    ST_F64
};
/* A header of 16 MiB is one of 100000 tensors.  Reading one needs less than four times its size. */
enum {
    ST_MAX_RANK = 8,
    ST_MAX_NAME = 1024,
    ST_MAX_HEADER = 16 << 20,
    ST_MAX_TENSORS = 1 << 20,
    ST_MAX_META = 1 << 16
};

struct safetensor {
    const char *name;
    enum safetensors_type type;
    int rank;
    ptrdiff_t shape[ST_MAX_RANK];
    ptrdiff_t count;        /* elements */
    uint64_t offset, bytes; /* in the data part */
};
struct safetensors_meta {
    const char *key, *value;
};

struct safetensors {
    int count, meta_count;
    struct safetensor *tensor; /* in the order of the data */
    struct safetensors_meta *meta;
    int fd;
    uint64_t data; /* where the data part starts */
    char *text;    /* the header: contains the strings */
};

/* After a failure nothing is open.  Error sentences do not name the file: the caller knows it. */
loci_status loci_safetensors_open(struct safetensors *, const char *path, loci_error *);
void loci_safetensors_close(struct safetensors *);

/* NULL: absent */
const char *loci_safetensors_meta(const struct safetensors *, const char *key);
const char *loci_safetensors_type_name(enum safetensors_type);
size_t loci_safetensors_type_size(enum safetensors_type);
enum safetensors_type loci_safetensors_type_of(loci_dtype);

/* Reads all elements of a tensor, in this machine's order of bytes.  With other offset and bytes in
 * *t, those: whole elements too. */
loci_status loci_safetensors_read(const struct safetensors *, const struct safetensor *, void *data,
                                  loci_error *);

/* Writes a file of `count` tensors as output.h says.  Name, type, rank and shape are
 * read; the rest is computed. */
loci_status loci_safetensors_write(const char *path, int count, const struct safetensor *,
                                   const void *const *data, int meta_count,
                                   const struct safetensors_meta *, loci_error *);

/* The same for data in pieces of whole elements: begin, put all bytes in the order of the tensors,
 * end.  The tensors stay until the end.  A begin that fails needs no end.  end keeps the file if
 * `so_far` is LOCI_OK, and removes it otherwise; it returns so_far, or its own failure. */
struct safetensors_writer {
    struct new_file out;
    const struct safetensor *tensor; /* whose bytes come next */
    uint64_t left, tensor_left;      /* bytes: of all, and of that one */
};
loci_status loci_safetensors_begin(struct safetensors_writer *, const char *path, int count,
                                   const struct safetensor *, int meta_count,
                                   const struct safetensors_meta *, loci_error *);
loci_status loci_safetensors_put(struct safetensors_writer *, const void *data, uint64_t bytes,
                                 loci_error *);
loci_status loci_safetensors_end(struct safetensors_writer *, loci_status so_far, loci_error *);

#endif
