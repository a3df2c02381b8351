/* SPDX-License-Identifier: MIT */
/* clock.c -- see clock.h. */
#include "lab/clock.h"

#include "platform/clock.h"
#include "platform/thread.h"

/* One clock for all threads, so that their times can be compared. */
double lab_seconds(void)
{
    static struct mutex reading = MUTEX_INIT;
    static double last, lost;
    mutex_lock(&reading);
    const double read = loci_clock_steady() + lost;
    if (read < last) lost += last - read;
    else last = read;
    const double seconds = last;
    mutex_unlock(&reading);
    return seconds;
}
