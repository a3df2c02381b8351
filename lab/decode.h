/* SPDX-License-Identifier: MIT */
/* decode.h -- a trained model that speaks: token by token, from a cache of keys and values. */
#ifndef LOCI_LAB_DECODE_H
#define LOCI_LAB_DECODE_H

#include "lab/model.h"

/* Until lab_decode_end() forward passes of the model are these alone. */
loci_status lab_decode_begin(struct lab_model *, int capacity, loci_error *);
/* The next token of the sequence, at this position; the row has its logits, [vocabulary], or
 * best the likeliest token behind it (NULL: not wanted).  The logits have the bits of a pass
 * over all tokens. */
loci_status lab_decode(struct lab_model *, int32_t token, int64_t pos, const void **logits,
                       int32_t *best, loci_error *);
/* Bytes that the caches hold for each token so far. */
void lab_decode_end(struct lab_model *);

#endif
