/* SPDX-License-Identifier: MIT */
/* deadline.h -- SIGPROF for endless computation.  It counts CPU time, so that a busy machine causes
 * no timeout. ctest ends a test that waits for ever.  Requires _DEFAULT_SOURCE. */
#ifndef LOCI_TESTS_SUPPORT_DEADLINE_H
#define LOCI_TESTS_SUPPORT_DEADLINE_H

#include <sys/time.h>

/* From now on; 0: none. */
static inline void deadline(int seconds)
{
    setitimer(ITIMER_PROF, &(struct itimerval){ .it_value.tv_sec = seconds }, NULL);
}

#endif
