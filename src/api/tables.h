/* SPDX-License-Identifier: MIT */
/* tables.h -- the block that loci_prepare() fills: a header of 64 bytes, then the table of each
 * encoding, each aligned to 64 bytes.  A call validates the block by its header. */
#ifndef LOCI_API_TABLES_H
#define LOCI_API_TABLES_H

#include "contract/plan.h"

enum { TABLES_MAGIC = 0x6c6f7461 };

/* Returns BAD_ARG with an error text unless these tables were prepared for a plan like this one and
 * fit into `capacity` bytes (0: unknown). */
loci_status loci_check_tables(const loci_plan *, const void *tables, size_t capacity, loci_error *);
/* The largest distance that the tables were prepared for.  -1: these are no tables. */
ptrdiff_t loci_table_range(const void *tables);
/* The table of one encoding. */
const void *loci_table_of(const void *tables, const loci_plan *, int enc);

/* loci_workspace() of stage EMBED.  Only the backward pass needs one. */
size_t loci_embed_workspace(const loci_plan *, const loci_call *);

#endif
