/* SPDX-License-Identifier: MIT */
/* png.h -- a heat map as a picture inside of an SVG. */
#ifndef LOCI_DRAW_PNG_H
#define LOCI_DRAW_PNG_H

#include "draw/figure.h"

/* data:image/png;base64,... of a colour per cell: 0 is see-through, 1 .. 255 go from dark to
 * light.  Nothing is compressed, so it has the same bytes everywhere. */
void png_data(struct text *, const unsigned char *cells, int rows, int cols);

#endif
