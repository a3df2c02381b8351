/* SPDX-License-Identifier: MIT */
/* program_cache.h -- compiled programs on disk, so that a program is compiled once per machine.
 *
 * They are in $XDG_CACHE_HOME/loci, or $HOME/.cache/loci; on Windows in %LOCALAPPDATA%\loci.
 * LOCI_GPU_CACHE=off: nothing is read and nothing is written.
 *
 * A file is complete when it gets its name, and it has a sum of its bytes.  So any number of
 * processes may share the folder.  A file that is damaged is as none, and one that cannot be
 * written is not: both cost a compilation and nothing else. */
#ifndef LOCI_GPU_PROGRAM_CACHE_H
#define LOCI_GPU_PROGRAM_CACHE_H

#include <stddef.h>
#include <stdint.h>

/* 128 bits of all that a program depends on. */
struct program_key {
    uint64_t half[2];
};
struct program_key loci_program_key(const char *const *texts, int count);

/* NULL if the program is not in the cache.  The caller frees it. */
void *loci_program_read(const struct program_key *, size_t *bytes);
void loci_program_write(const struct program_key *, const void *data, size_t bytes);

#endif
