/* SPDX-License-Identifier: MIT */
/* mask.h -- reads a mask of ggml: 16-bit floats, one per row and key, that are added to scores.
 * Engines write causal order, windows and sequences into it as 0 and -inf, so most rows see the
 * keys from a first to a last one, and the mask itself need not be read again.  Nothing here knows
 * a type of ggml. */
#ifndef LOCI_GGML_MASK_H
#define LOCI_GGML_MASK_H

#include <stddef.h>
#include <stdint.h>

/* What a mask says beyond the first and the last key of each row, from little to much. */
enum mask_form {
    MASK_RANGES, /* nothing: a row sees all keys between the two */
    MASK_HOLES,  /* some keys between the two are hidden */
    MASK_NUMBERS /* some numbers are neither 0 nor -inf */
};

/* Rows are `stride` numbers apart.  first and last get the two keys of each row; a row that sees no
 * key gets 0 and -1. */
enum mask_form loci_mask_read(const uint16_t *mask, ptrdiff_t stride, ptrdiff_t rows,
                              ptrdiff_t keys, int64_t *first, int64_t *last);

/* The keys that a row sees: their number; and their list, of at most that many. */
ptrdiff_t loci_mask_count(const uint16_t *row, ptrdiff_t keys);
void loci_mask_list(const uint16_t *row, ptrdiff_t keys, int32_t *list);

/* A row as bytes, 0 where a key is hidden; and as floats, times a factor above 0. */
void loci_mask_seen(const uint16_t *row, ptrdiff_t keys, unsigned char *seen);
void loci_mask_added(const uint16_t *row, ptrdiff_t keys, float factor, float *added);

#endif
