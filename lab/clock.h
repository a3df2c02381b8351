/* SPDX-License-Identifier: MIT */
/* clock.h -- seconds that never fall. */
#ifndef LOCI_LAB_CLOCK_H
#define LOCI_LAB_CLOCK_H

/* From some moment on, the same for all threads.  Some virtual machines' clocks step back: time
 * then goes on from where it was. */
double lab_seconds(void);

#endif
