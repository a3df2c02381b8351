/* SPDX-License-Identifier: MIT */
/* deadline.h -- SIGPROF for what computes too long.  It counts the processor's time, so that a busy
 * machine makes nothing late; who waits for something that never comes is ended by ctest.  Wants
 * _DEFAULT_SOURCE. */
#ifndef LOCI_TESTS_SUPPORT_DEADLINE_H
#define LOCI_TESTS_SUPPORT_DEADLINE_H

#include <sys/time.h>

/* From now on; 0: none. */
static inline void deadline(int seconds)
{
    setitimer(ITIMER_PROF, &(struct itimerval){ .it_value.tv_sec = seconds }, NULL);
}

#endif
