/* SPDX-License-Identifier: MIT */
/* png.h -- a heat map as a picture inside an SVG. */
#ifndef LOCI_DRAW_PNG_H
#define LOCI_DRAW_PNG_H

#include "draw/figure.h"

/* data:image/png;base64,... with a colour per cell: 0 is transparent, 1 .. 255 go from dark to
 * light.  It is uncompressed, so its bytes are the same everywhere. */
void png_data(struct text *, const unsigned char *cells, int rows, int cols);

#endif
