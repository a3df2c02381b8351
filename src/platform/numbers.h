/* SPDX-License-Identifier: MIT */
/* numbers.h -- numbers in texts have a decimal point, whatever the locale of the program is.
 *
 * Only the calling thread has the C locale between the two calls. */
#ifndef LOCI_PLATFORM_NUMBERS_H
#define LOCI_PLATFORM_NUMBERS_H

#include <stdbool.h>

struct numbers {
    void *own, *before;
    int was;
};
/* False: out of memory, and nothing has changed. */
bool loci_numbers_begin(struct numbers *);
void loci_numbers_end(struct numbers *);

#endif
