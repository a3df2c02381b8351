/* SPDX-License-Identifier: MIT */
/* Every term. */
TERM(affine)
TERM(distance)
TERM(pieces)
TERM(gate)
TERM(band_q)
TERM(band_k)
TERM(roll)
TERM(scan)
TERM(mix)
TERM(stick)
TERM(pairs)
TERM(fading_pairs)
