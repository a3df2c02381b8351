/* SPDX-License-Identifier: MIT */
/* c17.h -- what C17 has and Microsoft's C library lacks.  The compiler includes it first in every
 * file of the program and of the tests, but in none of the libraries.
 *
 * Memory of aligned_alloc() is released by free().  Microsoft's free() cannot, so both are ours. */
#ifndef LOCI_PLATFORM_WIN32_C17_H
#define LOCI_PLATFORM_WIN32_C17_H

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "platform/fma.h"
#include "platform/fmaf.h"
#define fma exact_fma
#define fmaf exact_fmaf

void *loci_win32_aligned(size_t alignment, size_t bytes);
void loci_win32_free(void *);
#define aligned_alloc loci_win32_aligned
#define free loci_win32_free

#ifndef TIME_UTC
#define TIME_UTC 1
int loci_win32_timespec(struct timespec *, int base);
#define timespec_get loci_win32_timespec
#endif

#endif
