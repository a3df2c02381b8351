/* SPDX-License-Identifier: MIT */
/* example.h -- textbook examples, step by step, with the engine's numbers. */
#ifndef LOCI_SHOW_EXAMPLE_H
#define LOCI_SHOW_EXAMPLE_H

#include "show/show.h"

/* name: of an encoding without options.  Those without an example are refused with the list of
 * those that have one. */
loci_status example_print(struct text *, const char *name, loci_error *);

#endif
