/* SPDX-License-Identifier: MIT */
/* sink.h -- the table of the term `sink`: one logit per head, reals [H].  The gradient has the same
 * form. */
#ifndef LOCI_LAYOUT_SINK_H
#define LOCI_LAYOUT_SINK_H

#include <stddef.h>

static inline ptrdiff_t sink_at(int h) { return h; }

#endif
