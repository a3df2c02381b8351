/* SPDX-License-Identifier: MIT */
/* ending.h -- what a program does when it is told to end: by Ctrl-C, or by another process. */
#ifndef LOCI_PLATFORM_ENDING_H
#define LOCI_PLATFORM_ENDING_H

#include <stdint.h>

/* From here to loci_ending_release() this thread lets no cleaning begin. */
struct ending {
    uint64_t before[16];
};
void loci_ending_hold(struct ending *);
void loci_ending_release(const struct ending *);

/* From now on, and until it is forgotten, clean() runs before the program ends.  It may only call
 * loci_path_remove().  Between hold and release only.  If the program ignores such an event, or
 * treats it, nothing changes. */
void loci_ending_catch(void (*clean)(void));
void loci_ending_forget(void);

/* The program does not end, but calls this. */
void loci_ending_replace(void (*stop)(int number));

#endif
