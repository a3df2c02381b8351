/* SPDX-License-Identifier: MIT */
/* numbers.c -- see platform/numbers.h.  setlocale() acts on the calling thread alone if the thread
 * has asked for a locale of its own. */
#include "platform/numbers.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

bool loci_numbers_begin(struct numbers *n)
{
    const char *name = setlocale(LC_ALL, NULL);
    if (!name || !(n->before = malloc(strlen(name) + 1))) return false;
    strcpy(n->before, name);
    n->was = _configthreadlocale(_ENABLE_PER_THREAD_LOCALE);
    setlocale(LC_ALL, "C");
    return true;
}
void loci_numbers_end(struct numbers *n)
{
    setlocale(LC_ALL, n->before);
    if (n->was != -1) _configthreadlocale(n->was);
    free(n->before);
}
