/* SPDX-License-Identifier: MIT */
/* loci/positions.h: where the tokens of text, pictures and films are, for the encoding `mrope`.
 *
 *     loci_segment s[] = { { .tokens = 3 }, { .t = 1, .h = 2, .w = 2 }, { .tokens = 5 } };
 *     ptrdiff_t len = loci_segments_len(3, s);             // 12 tokens
 *     double *coord = malloc(3 * len * sizeof *coord), next;
 *     loci_segments_place(3, s, 0, len, coord, &next, NULL);
 *     call.q_coord = call.k_coord = coord;
 *
 * Tokens that follow, as in a decode, are text from `next` on, where t = h = w. */
#ifndef LOCI_LOCI_POSITIONS_H
#define LOCI_LOCI_POSITIONS_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A run of text, or a grid of patches as the model sees them (Qwen merges 2 x 2), time first, then
 * rows, then columns.  A picture has t = 1.  A film is one grid whose times are `step` apart: 0 = 1
 * (Qwen2-VL), or tokens per second times seconds per grid (Qwen2.5-VL, which multiplies in float
 * and cuts times to whole numbers).  Qwen3-VL has a picture for each frame, and text with its time
 * before it. */
typedef struct {
    ptrdiff_t tokens;                    /* of text; then t, h and w are 0 */
    ptrdiff_t t, h, w;
    double step;
} loci_segment;

/* Tokens of all segments; -1 when they are too many, or one is neither text nor a grid, or there is
 * no list. */
LOCI_API ptrdiff_t loci_segments_len(int count, const loci_segment *);

/* coord [3][len] = t, h, w of each token, beginning at `start`.  Text counts on, the same on all
 * axes; a grid that begins at s has (s + floor(i step), s + row, s + column), and what follows it
 * begins max(h, w) later, however long the film was.  *next (NULL: not wanted) is where a decode
 * goes on: one behind the largest number of all.  As in transformers 5.23; see mrope's page. */
LOCI_API loci_status loci_segments_place(int count, const loci_segment *, double start,
                                         ptrdiff_t len, double *coord, double *next, loci_error *);

#ifdef __cplusplus
}
#endif
#endif
