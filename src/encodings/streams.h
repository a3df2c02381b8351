/* SPDX-License-Identifier: MIT */
/* streams.h -- functions that the *_stream.c files share with their encodings, to
 * continue over keys of many ranks. */
#ifndef LOCI_ENCODINGS_STREAMS_H
#define LOCI_ENCODINGS_STREAMS_H

#include "contract/call.h"

extern const struct encoding_stream loci_fox_stream, loci_liere_stream, loci_sba_stream;

/* liere: begin(); keep_rows: gradients of earlier rows stay. */
void loci_liere_begin(struct call *, int enc, bool keep_rows);

/* sba: the number of a row's own key, or -1; end_keys() with it; and begin(). */
typedef ptrdiff_t sba_own_key(const struct call *, int enc, ptrdiff_t b, ptrdiff_t row);
void loci_sba_begin(struct call *, int enc);
void loci_sba_end_keys(struct call *, int enc, sba_own_key *);

#endif
