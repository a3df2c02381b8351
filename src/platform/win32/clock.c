/* SPDX-License-Identifier: MIT */
/* clock.c -- see platform/clock.h. */
#include "platform/win32/windows.h"
#include "platform/clock.h"

#include <stdint.h>

/* In units of 100 ns. */
static double ticks(const FILETIME *t)
{
    return (double)((uint64_t)t->dwHighDateTime << 32 | t->dwLowDateTime);
}
/* The system counts from 1601. */
double loci_clock_utc(void)
{
    FILETIME t;
    GetSystemTimePreciseAsFileTime(&t);
    return 1e-7 * (ticks(&t) - 116444736e9);
}
double loci_clock_steady(void)
{
    LARGE_INTEGER count, each;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&each);
    return (double)count.QuadPart / (double)each.QuadPart;
}
double loci_clock_thread(void)
{
    FILETIME begin, end, kernel, user;
    if (!GetThreadTimes(GetCurrentThread(), &begin, &end, &kernel, &user)) return 0;
    return 1e-7 * (ticks(&kernel) + ticks(&user));
}
double loci_clock_process(void)
{
    FILETIME begin, end, kernel, user;
    if (!GetProcessTimes(GetCurrentProcess(), &begin, &end, &kernel, &user)) return 0;
    return 1e-7 * (ticks(&kernel) + ticks(&user));
}
