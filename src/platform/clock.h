/* SPDX-License-Identifier: MIT */
/* clock.h -- the clocks of the system, in seconds. */
#ifndef LOCI_PLATFORM_CLOCK_H
#define LOCI_PLATFORM_CLOCK_H

double loci_clock_utc(void);     /* since 1970 */
double loci_clock_steady(void);  /* since some moment; nobody sets it */
double loci_clock_thread(void);  /* of a processor, for this thread */
double loci_clock_process(void); /* of all processors, for this process */

#endif
