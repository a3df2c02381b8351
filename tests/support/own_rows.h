/* SPDX-License-Identifier: MIT */
/* own_rows.h -- an attention of which each process creates only its own rows and keys, so that the
 * transport alone can combine them; and the result as one number.  Each number depends on its place
 * alone. */
#ifndef LOCI_TESTS_SUPPORT_OWN_ROWS_H
#define LOCI_TESTS_SUPPORT_OWN_ROWS_H

#include "loci/parallel.h"

/* The hashes of all rows of this process, o, lse, rem and ae, combined by ^.  Combining those of
 * all ranks by ^ gives the hash of the whole. transport NULL: loci_forward() with all rows. */
loci_status own_rows(const char *encoding, ptrdiff_t len, loci_layout, int gather, double dropout,
                     const loci_transport *, uint64_t *hash, loci_error *);

#endif
