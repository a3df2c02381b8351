/* SPDX-License-Identifier: MIT */
/* version.c -- the version, as a number and as text. */
#include "loci/loci.h"

int loci_version(void) { return LOCI_VERSION; }
const char *loci_version_text(void)
{
    _Static_assert(LOCI_VERSION == 300, "the text says 0.3.0");
    return "0.3.0";
}
