/* SPDX-License-Identifier: MIT */
/* text.h -- text that grows: what every picture is written into, whatever it will be. */
#ifndef LOCI_DRAW_TEXT_H
#define LOCI_DRAW_TEXT_H

#include <stddef.h>

/* s ends with a 0 that n does not count; NULL while nothing was added. */
struct text { char *s; size_t n, capacity; };

/* Zeroed; without memory the program ends. */
void *draw_alloc(size_t count, size_t each);
_Noreturn void draw_no_memory(void);      /* what it does then: a sentence, and the end */

void text_add(struct text *, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;
void text_put(struct text *, const char *bytes, size_t n);
/* For XML: no markup, and no characters that it forbids. */
void text_xml(struct text *, const char *);
/* A JSON string with its quotes, in ASCII.  A number that reads back to the same double, or null
 * where it is not finite. */
void text_json(struct text *, const char *);
void text_json_number(struct text *, double);
void text_free(struct text *);

#endif
