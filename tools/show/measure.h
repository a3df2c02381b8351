/* SPDX-License-Identifier: MIT */
/* measure.h -- shared by the questions about properties. */
#ifndef LOCI_SHOW_MEASURE_H
#define LOCI_SHOW_MEASURE_H

#include "show/properties.h"
#include "show/subject.h"

enum { CASES = 64, FAR = 32 }; /* FAR: multiple of the length */

/* Sets the answer: a deviation (NaN: not applicable), the number of cases, a word and a
 * sentence. */
void say(struct finding *, double largest, int tried, const char *brief, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 5, 6)))
#endif
    ;
/* The largest difference of finite numbers. b NULL: the largest number. */
double largest(const double *a, const double *b, ptrdiff_t n);

loci_status ask_translation(struct show *, struct finding *, loci_error *);
loci_status ask_symmetry(struct show *, struct finding *, loci_error *);
loci_status ask_norm(struct show *, struct finding *, loci_error *);
loci_status ask_content(struct show *, struct finding *, loci_error *);
loci_status ask_monotone(struct show *, struct finding *, loci_error *);
loci_status ask_decay(struct show *, struct finding *, loci_error *);
loci_status ask_apart(struct show *, struct finding *, loci_error *);
loci_status ask_beyond(struct show *, struct finding *, loci_error *);
loci_status ask_cost(struct show *, struct finding *, loci_error *);

#endif
