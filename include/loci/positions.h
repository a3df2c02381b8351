/* SPDX-License-Identifier: MIT */
/* loci/positions.h: coordinates of the tokens of text, pictures and films, for `mrope`.
 *
 *     loci_segment s[] = { { .tokens = 3 }, { .t = 1, .h = 2, .w = 2 }, { .tokens = 5 } };
 *     ptrdiff_t len = loci_segments_len(3, s);             // 12 tokens
 *     double *coord = malloc(3 * len * sizeof *coord), next;
 *     loci_segments_place(3, s, 0, len, coord, &next, NULL);
 *     call.q_coord = call.k_coord = coord;
 *
 * Tokens that follow in decode are text from `next` on, with t = h = w. */
#ifndef LOCI_LOCI_POSITIONS_H
#define LOCI_LOCI_POSITIONS_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A run of text, or a grid of patches as the model sees them (Qwen merges 2 x 2), in the order of
 * time, rows, columns. */
typedef struct {
    /* Text: the number of tokens; t, h and w are 0. */
    ptrdiff_t tokens;
    /* A grid: its times, rows and columns.  A picture has t = 1.  A film is one grid; for
     * Qwen3-VL, give each frame as a picture, with the text of its time before it. */
    ptrdiff_t t, h, w;
    /* Distance of two times of a film.  0 = 1 (Qwen2-VL).  Qwen2.5-VL has tokens per second times
     * seconds per grid, multiplied in float, and truncates times to whole numbers. */
    double step;
} loci_segment;

/* The number of tokens of all segments.  -1 if the list is NULL, if there are too many tokens, or
 * if a segment is neither text nor a grid. */
LOCI_API ptrdiff_t loci_segments_len(int count, const loci_segment *);

/* Writes coord [3][len], the t, h and w of each token, beginning at `start`.
 *
 * Text counts up, the same on all axes.  A grid that begins at s has (s + floor(i step), s + row,
 * s + column).  What follows a grid begins at s + max(h, w), whatever its times.  *next (NULL: not
 * written) is where decode continues: 1 more than the largest coordinate.  As in transformers
 * 5.23; see docs/encodings/mrope.md. */
LOCI_API loci_status loci_segments_place(int count, const loci_segment *, double start,
                                         ptrdiff_t len, double *coord, double *next, loci_error *);

#ifdef __cplusplus
}
#endif
#endif
