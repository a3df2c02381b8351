/* SPDX-License-Identifier: MIT */
/* io.h -- functions that the files of this folder share. */
#ifndef LOCI_MODELS_IO_H
#define LOCI_MODELS_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/planted_bug.h"
#include "loci/loci.h"

loci_status loci_io_fail(loci_error *, loci_status, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 3, 4)))
#endif
    ;
#define IO_CHECK(e, rule, ...) \
    do { \
        if (!(rule)) return loci_io_fail(e, LOCI_BAD_ARG, __VA_ARGS__); \
    } while (0)

/* The input: an open file, or bytes in memory. */
struct source {
    int fd;
    const unsigned char *bytes;
    uint64_t size;
};

/* Opens a regular file; the caller closes it. */
loci_status loci_io_open(struct source *, const char *path, loci_error *);
void loci_io_close(const struct source *);
/* The caller has compared the range with the size. */
loci_status loci_io_read(const struct source *, void *to, uint64_t bytes, uint64_t at,
                         loci_error *);

#endif
