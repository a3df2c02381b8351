/* SPDX-License-Identifier: MIT */
/* tables.h -- the block that loci_prepare() fills: a header of 64 bytes, then the table of each
 * encoding, each starting on 64 bytes.  The header lets a call check what it is given. */
#ifndef LOCI_API_TABLES_H
#define LOCI_API_TABLES_H

#include "contract/plan.h"

enum { TABLES_MAGIC = 0x6c6f7461 };

/* BAD_ARG with a sentence unless these tables were prepared for a plan like this one, and fit into
 * `room` bytes (0: not told). */
loci_status loci_check_tables(const loci_plan *, const void *tables, size_t capacity, loci_error *);
/* The largest distance they were prepared for; -1 when these are no tables. */
ptrdiff_t loci_table_range(const void *tables);
/* One encoding's part. */
const void *loci_table_of(const void *tables, const loci_plan *, int enc);

/* loci_workspace() of stage EMBED, where only the backward pass needs one. */
size_t loci_embed_workspace(const loci_plan *, const loci_call *);

#endif
