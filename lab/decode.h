/* SPDX-License-Identifier: MIT */
/* decode.h -- decodes a trained model token by token, from a cache of keys and values. */
#ifndef LOCI_LAB_DECODE_H
#define LOCI_LAB_DECODE_H

#include "lab/model.h"

/* Until lab_decode_end(), forward passes of the model are decode steps only. */
loci_status lab_decode_begin(struct lab_model *, int capacity, loci_error *);
/* Decodes the next token of the sequence at this position. *logits is the row's logits,
 * [vocabulary], and *best the likeliest next token (NULL: not needed).  The logits have the same
 * bits as in a pass over all tokens. */
loci_status lab_decode(struct lab_model *, int32_t token, int64_t pos, const void **logits,
                       int32_t *best, loci_error *);
/* Bytes that the caches store per token. */
void lab_decode_end(struct lab_model *);

#endif
