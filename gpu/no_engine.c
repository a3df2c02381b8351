/* SPDX-License-Identifier: MIT */
/* no_engine.c -- this library's copy of the code that validates calls has no engines of the CPU:
 * plans come from libloci, with theirs. */
#include "contract/engine.h"

const struct engine *loci_engine(const char *isa, bool f64)
{
    (void)isa;
    (void)f64;
    return NULL;
}
bool loci_dots_bf16(void) { return false; }
bool loci_prefetch_streams(void) { return false; }
int loci_isas(const char **names, int capacity)
{
    (void)names;
    (void)capacity;
    return 0;
}
