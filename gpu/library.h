/* SPDX-License-Identifier: MIT */
/* library.h -- the libraries of drivers and compilers, which are opened when they are first needed:
 * loci is linked with none of them.  And what the compilers' logs say. */
#ifndef LOCI_GPU_LIBRARY_H
#define LOCI_GPU_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* A function by its name in the library, and where a table of functions has the pointer to it. */
struct library_function {
    const char *name;
    size_t at;
};
struct library {
    const char *what;         /* "OpenCL" */
    const char *variable;     /* of the environment: another file, or a folder with such a file.
                                 "none": there is no library */
    const char *const *files; /* the first that opens is it; NULL: no more */
    const char *hint;         /* what the user can do if the library is missing */
    const struct library_function *functions;
    int count;
};

/* Opens the library and fills the table.  False: `why` has a sentence. */
bool loci_library_load(const struct library *, void *table, char *why, size_t capacity);

/* The first line of a compiler's log that tells of an error, or its first line. */
void loci_log_error(const char *log, char *line, size_t capacity);

#endif
