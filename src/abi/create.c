/* SPDX-License-Identifier: MIT */
/* create.c -- loci_plan_create() under both of its symbol versions.
 *
 * A size of 0 meant the fields of version 0.1, so fields of 0.2 next to it were ignored.  Since
 * LOCI_0.3 a plan refuses such structs, in its description and in its calls.  Programs that were
 * linked earlier are bound to LOCI_0.2 and keep the old behaviour.  On systems without symbol
 * versions only the new one exists. */
#include "contract/plan.h"

#ifdef LOCI_SYMBOL_VERSIONS
#define VERSIONED(name, version) \
    __asm__(".symver " #name ", loci_plan_create@" version); \
    LOCI_API loci_status name(loci_plan **, const loci_desc *, loci_error *); \
    loci_status name(loci_plan **plan, const loci_desc *desc, loci_error *e)

VERSIONED(loci_plan_create_0_2, "LOCI_0.2") { return loci_make_plan(plan, desc, false, e); }
VERSIONED(loci_plan_create_0_3, "@LOCI_0.3") { return loci_make_plan(plan, desc, true, e); }
#else
loci_status loci_plan_create(loci_plan **plan, const loci_desc *desc, loci_error *e)
{
    return loci_make_plan(plan, desc, true, e);
}
#endif
