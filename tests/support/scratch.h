/* SPDX-License-Identifier: MIT */
/* scratch.h -- the location of test files.  Requires _DEFAULT_SOURCE. */
#ifndef LOCI_TESTS_SUPPORT_SCRATCH_H
#define LOCI_TESTS_SUPPORT_SCRATCH_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SCRATCH = 4096 };

/* A name for mkstemp() or mkdtemp(), in a folder that ctest creates. */
static inline void scratch(char name[SCRATCH], const char *what)
{
    const char *folder = getenv("TMPDIR");
    snprintf(name, SCRATCH, "%s/loci-%s-XXXXXX", folder ? folder : P_tmpdir, what);
}

/* An unnamed file, which disappears when closed.  NULL on failure. */
static inline FILE *scratch_file(void)
{
    char name[SCRATCH];
    scratch(name, "file");
    const int fd = mkstemp(name);
    if (fd < 0 || unlink(name)) return NULL;
    return fdopen(fd, "w+b");
}

#endif
