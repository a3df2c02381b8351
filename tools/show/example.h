/* SPDX-License-Identifier: MIT */
/* example.h -- textbook examples, step by step, with the engine's numbers. */
#ifndef LOCI_SHOW_EXAMPLE_H
#define LOCI_SHOW_EXAMPLE_H

#include "show/show.h"

/* name: of an encoding without options.  An encoding without an example is an error that lists
 * those with one. */
loci_status example_print(struct text *, const char *name, loci_error *);

#endif
