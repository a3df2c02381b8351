/* SPDX-License-Identifier: MIT */
/* reflect.h -- the inputs of path, and the forms of keys that its term makes from them.
 *
 *     H_l = I - beta_l w_l w_l^T
 *     k'_j = H_end .. H_(j+1) k_j                end: the last key of the key's tile of 64
 *     M = H_first .. H_end                       of a whole tile: the row before it is M u
 *     k^_j = N k'_j,  N = M_last^T .. M_next^T   to the end of the block of 8 tiles
 *     MB = M_first .. M_last                     of a whole block
 *
 * A row reads k^ of all blocks before that of its newest key, k' of the tiles of its own block, and
 * meets the keys of its own tile one by one. */
#ifndef LOCI_LAYOUT_REFLECT_H
#define LOCI_LAYOUT_REFLECT_H

#include "contract/call.h"

enum { REFLECT_W, REFLECT_BETA }; /* tensors */
enum { SPAN = 8 };                /* tiles of a block */

#endif
