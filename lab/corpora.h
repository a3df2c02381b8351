/* SPDX-License-Identifier: MIT */
/* corpora.h -- real texts that a machine already has, or gets from its packages: nothing is
 * downloaded.  Each is the output of a program, so that compressed files need no reader here. */
#ifndef LOCI_LAB_CORPORA_H
#define LOCI_LAB_CORPORA_H

#include "lab/task.h"

struct lab_source {
    const char *name, *about, *licence;
    const char *file;    /* without it the text is not there; NULL: the program alone decides */
    const char *get;     /* how to get it, in words */
    const char *command; /* of a shell; its output is the text */
};
int lab_sources(const struct lab_source **list);

/* Opens the generated corpus (NULL or "generated"), one of the sources by its name, or a file by
 * its path.  bytes: of the generated one. */
loci_status lab_corpus_find(struct lab_corpus *, const char *what, size_t bytes, loci_error *);

#endif
