/* SPDX-License-Identifier: MIT */
/* pictures.h -- what encodings have learned, from the weights of runs: biases by distance, maps of
 * attention, gates, sticks. */
#ifndef LOCI_LAB_PICTURES_H
#define LOCI_LAB_PICTURES_H

#include "lab/report.h"

/* Uses the runs with the first seed.  The caller frees the figures.  A run whose weights cannot be
 * read has none. */
void lab_pictures(struct report_pictures *, const char *dir, const struct lab_results *,
                  const struct lab_corpus *);

#endif
