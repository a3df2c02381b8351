/* SPDX-License-Identifier: MIT */
/* io.h -- what the files of this folder share. */
#ifndef LOCI_IO_H
#define LOCI_IO_H

#include "safetensors.h"

loci_status loci_io_fail(loci_error *, loci_status, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 3, 4)))
#endif
    ;
#define IO_CHECK(e, rule, ...) do { if (!(rule)) return loci_io_fail(e, LOCI_BAD_ARG, __VA_ARGS__); } while (0)

#endif
