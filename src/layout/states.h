/* SPDX-License-Identifier: MIT */
/* states.h -- the inputs of the term `states`, in the order of the encoding's tensors: those of the
 * queries and of the keys, [B][H][rows][D/2][2]. */
#ifndef LOCI_LAYOUT_STATES_H
#define LOCI_LAYOUT_STATES_H

enum { STATES_Q, STATES_K };

#endif
