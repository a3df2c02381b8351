/* SPDX-License-Identifier: MIT */
/* own_rows.h -- an attention of which each process makes the rows and keys that it owns and no
 * others, so that nothing but the transport can bring them together; and what came of it as one
 * number.  Numbers follow from their place alone. */
#ifndef LOCI_TESTS_SUPPORT_OWN_ROWS_H
#define LOCI_TESTS_SUPPORT_OWN_ROWS_H

#include "loci/parallel.h"

/* The hashes of all rows of this process, o, lse, rem and ae, combined by ^, so those of all ranks
 * combined by ^ are the hash of the whole.  transport NULL: loci_forward() with all rows. */
loci_status own_rows(const char *encoding, ptrdiff_t len, loci_layout, int gather,
                     const loci_transport *, uint64_t *hash, loci_error *);

#endif
