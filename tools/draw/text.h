/* SPDX-License-Identifier: MIT */
/* text.h -- a growing text buffer: the output of every picture, in every format. */
#ifndef LOCI_DRAW_TEXT_H
#define LOCI_DRAW_TEXT_H

#include <stddef.h>

/* s ends with a 0 that n does not count.  NULL while empty. */
struct text {
    char *s;
    size_t n, capacity;
};

/* Zeroed.  Ends the program if out of memory. */
void *draw_alloc(size_t count, size_t each);
_Noreturn void draw_no_memory(void); /* prints a sentence and exits */

void text_add(struct text *, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;
void text_put(struct text *, const char *bytes, size_t n);
/* For XML: escapes markup, and drops characters that XML forbids. */
void text_xml(struct text *, const char *);
/* A JSON string with its quotes, in ASCII. text_json_number() reads back to the same double, and is
 * null if it is not finite. */
void text_json(struct text *, const char *);
void text_json_number(struct text *, double);
void text_free(struct text *);

#endif
