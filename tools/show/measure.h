/* SPDX-License-Identifier: MIT */
/* measure.h -- what the questions about properties share. */
#ifndef LOCI_SHOW_MEASURE_H
#define LOCI_SHOW_MEASURE_H

#include "show/properties.h"
#include "show/subject.h"

enum { CASES = 64, FAR = 32 };           /* FAR: so many times the length */

/* The answer: a deviation (NaN: none to speak of), over so many cases, a word and a sentence. */
void say(struct finding *, double largest, int tried, const char *brief, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 5, 6)))
#endif
    ;
/* Largest difference of finite numbers; b NULL: the largest number. */
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
