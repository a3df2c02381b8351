/* SPDX-License-Identifier: MIT */
/* parse.h -- the encoding text: name[:option=value,...][+name...] */
#ifndef LOCI_PLAN_PARSE_H
#define LOCI_PLAN_PARSE_H

#include "contract/plan.h"

/* Fills encs and, of every enc[], pe, opt, given, list and count.  What was allocated is the
 * plan's, also on failure.  Numbers are read and written by the thread's locale, which is "C" while
 * a plan is created. */
loci_status loci_parse(struct loci_plan *, const char *text, loci_error *);

/* Writes the canonical text, every option included, and returns its
 * length; room 0 only measures. */
size_t loci_print(const struct loci_plan *, char *text, size_t capacity);

/* A number in as few digits as read back to the same double. */
enum { NUMBER_TEXT = 32 };
const char *loci_number_text(double x, char text[NUMBER_TEXT]);

#endif
