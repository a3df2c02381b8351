/* SPDX-License-Identifier: MIT */
/* reflect.h -- the inputs of path, and the forms of keys that its term makes from them.
 *
 *     H_l = I - beta_l w_l w_l^T
 *
 * Tiles of 64 keys are the leaves of a binary tree over a block of 16: a node of level n is 2^n
 * tiles, the older half of it its left child, the newer half the right one.
 *
 *     M = H_first .. H_last                    of a node: the row before it is M u
 *     k(n)_j = H_last .. H_(j+1) k_j           carried to the end of the key's node of level n
 *
 * M of a node is the product of its children's, and k(n+1) of a key in the left child is k(n)
 * carried over the right child.
 *
 * A row walks from its newest key down.  It meets the keys of its own tile one by one.  Then it
 * passes the left siblings of the nodes that contain its tile, from level 0 up, and all older
 * blocks: it reads the keys as they are carried to the end of such a node, and M takes it to the
 * node's start. */
#ifndef LOCI_LAYOUT_REFLECT_H
#define LOCI_LAYOUT_REFLECT_H

#include "contract/call.h"

enum { REFLECT_W, REFLECT_BETA }; /* tensors */
/* Levels below that of a block, and its tiles. */
enum { LEVELS = 4, SPAN = 1 << LEVELS };

#endif
