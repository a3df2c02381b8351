/* SPDX-License-Identifier: MIT */
/* scratch.h -- where tests put their files.  Wants _DEFAULT_SOURCE. */
#ifndef LOCI_TEST_SCRATCH_H
#define LOCI_TEST_SCRATCH_H

#include <stdio.h>
#include <stdlib.h>

enum { SCRATCH = 256 };

/* A name for mkstemp() or mkdtemp(). */
static inline void scratch(char name[SCRATCH], const char *what)
{
    const char *folder = getenv("TMPDIR");
    snprintf(name, SCRATCH, "%s/loci-%s-XXXXXX", folder ? folder : P_tmpdir, what);
}

#endif
