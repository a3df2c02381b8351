/* SPDX-License-Identifier: MIT */
/* layers_round.h -- one random problem for the functions of loci/layers.h. */
#ifndef LOCI_TESTS_SUPPORT_LAYERS_ROUND_H
#define LOCI_TESTS_SUPPORT_LAYERS_ROUND_H

#include "loci/loci.h"
#include "mem.h"

/* Draws by walk_uniform(); `seed` goes into what it says. */
void layers_round(unsigned long seed, const loci_host *pool, struct mem *capacity);

#endif
