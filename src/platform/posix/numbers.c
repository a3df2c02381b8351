/* SPDX-License-Identifier: MIT */
/* numbers.c -- see platform/numbers.h. */
#define _POSIX_C_SOURCE 200809L /* newlocale, uselocale */
#include "platform/numbers.h"

#include <locale.h>
#if defined __APPLE__
#include <xlocale.h>
#endif

bool loci_numbers_begin(struct numbers *n)
{
    const locale_t own = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (own == (locale_t)0) return false;
    n->own = (void *)own;
    n->before = (void *)uselocale(own);
    return true;
}
void loci_numbers_end(struct numbers *n)
{
    uselocale((locale_t)n->before);
    freelocale((locale_t)n->own);
}
