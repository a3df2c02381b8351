/* SPDX-License-Identifier: MIT */
/* given_pairs.h -- what the term `given_pairs` reads: angles of queries and keys that come with the
 * call, [B][H][Lq][pairs] and [B][Hkv][Lk][pairs]. */
#ifndef LOCI_LAYOUT_GIVEN_PAIRS_H
#define LOCI_LAYOUT_GIVEN_PAIRS_H

/* The numbers of the tensors. */
enum { GIVEN_Q, GIVEN_K };

/* Pair t is (2t, 2t + 1) if interleaved, else (t, t + count), counted from offset. */
struct given_pairs {
    int count, offset, interleaved;
};

#endif
