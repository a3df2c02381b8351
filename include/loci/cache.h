/* SPDX-License-Identifier: MIT */
/* loci/cache.h: keys and values of growing sequences, stored as decode reads them.
 *
 *     loci_cache *cache;                              // desc.keys_rotated = 1 with a rotation
 *     void *memory = aligned_alloc(64, loci_cache_size(plan, batch, capacity));
 *     loci_cache_create(&cache, plan, batch, capacity, 0, memory, &error);
 *
 *     loci_call call = LOCI_CALL(.batch = batch, .q_len = n, .k_len = n, .cache = cache,
 *                                .q = ..., .k = ..., .v = ..., .o = ...);
 *     call.work_bytes = loci_workspace(plan, &call, 0);     // for all calls of up to n rows
 *     work = aligned_alloc(64, call.work_bytes);
 *
 *     // The prompt with n rows, then each new token with q_len = k_len = 1:
 *     loci_cache_append(plan, tables, work, cache, &call);  // stores the new k and v
 *     loci_forward(plan, tables, work, &call);              // the new q, against all keys
 *
 * One loci_call serves both functions.  Append reads k, v, k_len, k_lens, k_pos, k_coord and the
 * INPUT tensors by key, for the new tokens only.  It rotates the keys, and the values if the
 * encoding rotates them, so pass both unrotated.
 * Forward reads the other fields.
 *
 * A cache is optional: loci_forward() also reads keys of any layout in place, and in pages.  The
 * bits are those of one call on all keys.  With a 16-bit dtype, rotated keys are rounded when they
 * are stored; a call on raw keys does not round them.
 *
 * You own the memory.  A cache contains no pointers: while no call uses it, you may move, copy or
 * save it, and open it again.  Calls that read a cache may share it.  Append, truncate and remove
 * need exclusive access. */
#ifndef LOCI_LOCI_CACHE_H
#define LOCI_LOCI_CACHE_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a cache for `batch` sequences of up to `capacity` keys; 0 if an argument is invalid. */
LOCI_API size_t loci_cache_size(const loci_plan *, ptrdiff_t batch, ptrdiff_t capacity);

/* Creates an empty cache in `memory`, which is aligned to 64 bytes.  ring 1: sequences grow without
 * end, and new keys overwrite the oldest ones.  The plan then needs a window that hides the
 * overwritten keys: capacity >= window_left + 64 + the rows of a call. */
LOCI_API loci_status loci_cache_create(loci_cache **, const loci_plan *, ptrdiff_t batch,
                                       ptrdiff_t capacity, int ring, void *memory, loci_error *);

/* Opens a cache that was moved, copied, or saved and loaded.  `memory` has `bytes` bytes.  The
 * plan must be the same and the machine must have the same byte order.  Form, lengths and positions
 * are validated here and in every call; the numbers in keys and values cannot be. */
LOCI_API loci_status loci_cache_open(loci_cache **, const loci_plan *, void *memory, size_t bytes,
                                     loci_error *);

/* Appends k_len keys to each sequence; with k_lens, the last k_lens[b] of them to entry b.  Rows
 * are aligned at their ends, for queries and keys alike.  Positions continue from the last key
 * unless every append gives k_pos.  If the host cancels it, the cache contains the keys that it
 * had before; a ring may have lost the oldest ones, which the new keys were to overwrite. */
LOCI_API loci_status loci_cache_append(const loci_plan *, const void *tables, void *work,
                                       loci_cache *, const loci_call *);

/* The number of keys of an entry; LOCI_NONE if there is no such entry. */
LOCI_API int64_t loci_cache_length(const loci_cache *, ptrdiff_t entry);

/* Deletes the keys of a sequence from key `length` on. */
LOCI_API loci_status loci_cache_truncate(loci_cache *, ptrdiff_t entry, int64_t length,
                                         loci_error *);

/* Deletes `count` keys from key `first` on.  Later keys move up, and their positions fall by
 * `count`.  Rotated keys are rotated back accordingly, which rounds them again in 16 bits.  Of the
 * call, batch, host, error and cache are read; its loci_workspace() is enough, and so is that of
 * any other call on the cache. */
LOCI_API loci_status loci_cache_remove(const loci_plan *, const void *tables, void *work,
                                       loci_cache *, ptrdiff_t entry, int64_t first, int64_t count,
                                       const loci_call *);

/* Since 0.3: makes entry `to` a copy of the first `length` keys of entry `from`; what it had is
 * forgotten.  Both grow on their own.  They share their tiles of 64 keys until one of them writes
 * such a tile: a fork copies the keys and values of the last tile only.  The inputs by key are
 * copied, and sums that follow from them computed again.  A ring cannot be forked.  Calls on a
 * cache read keys once that several entries share.  Of the call, batch, host, error and cache are
 * read; its loci_workspace() is enough. */
LOCI_API loci_status loci_cache_fork(const loci_plan *, const void *tables, void *work,
                                     loci_cache *, ptrdiff_t from, ptrdiff_t to, int64_t length,
                                     const loci_call *);

/* ---- Trees of tokens -------------------------------------------------------------------------
 *
 * Speculative decoding checks several continuations of a sequence at once.  They form a tree: node
 * i comes after node parents[i], or right after the sequence.  A row sees the keys of the sequence
 * and of the nodes above it, at the position that it would have there.  So its bits are those of
 * decoding the tokens above it one by one, with every encoding.
 *
 *     const int64_t parents[] = { -1, 0, 0, 1 };          // a, a b, a c, a b d
 *     loci_tree tree = LOCI_TREE(.entry = &zero, .branch = &one, .room = 2, .parents = parents);
 *     loci_call call = LOCI_CALL(.batch = 1, .q_len = 4, .k_len = 4, .q = ..., .k = ..., .v = ...,
 *                                .o = ..., .error = &error);
 *     work = aligned_alloc(64, loci_tree_workspace(plan, cache, &tree, &call));
 *     loci_tree_forward(plan, tables, work, cache, &tree, &call);   // o has a row for each node
 *     const int64_t last = 3;                                       // the model accepts a b d
 *     loci_tree_keep(plan, tables, work, cache, &tree, &last, &call);
 *
 * Each path from the sequence to a leaf takes an entry of the cache.  The sequence is forked for
 * them, so they share its keys, and rows of neighbouring entries read these once.  The sequence
 * itself stays as it is until loci_tree_keep(). */

/* Since 0.3.  Lists have a number for each batch entry of the call, which has a tree each. */
typedef struct {
    /* sizeof(loci_tree) */
    size_t size;
    const int64_t *entry; /* the entry of the cache that the tree continues */
    /* The first of `room` entries that its paths may take.  They lose what they had. */
    const int64_t *branch;
    ptrdiff_t room;
    const int64_t *nodes; /* the first nodes[b] rows of the call's q_len; NULL: all */
    /* [batch][q_len]: the node before each one, which has a smaller number; -1: the sequence. */
    const int64_t *parents;
} loci_tree;
#define LOCI_TREE(...) LOCI_SIZED(loci_tree, __VA_ARGS__)

/* How many entries the paths of a tree take; LOCI_NONE if parents are invalid. */
LOCI_API ptrdiff_t loci_tree_paths(const int64_t *parents, ptrdiff_t nodes);

/* Bytes of `work` for both functions below, 0 if an argument is invalid. */
LOCI_API size_t loci_tree_workspace(const loci_plan *, const loci_cache *, const loci_tree *,
                                    const loci_call *);

/* Computes the rows of all nodes.  Of the call, q, k, v, o, lse, rem, ae, positions, coordinates,
 * tensors and host are used, with a row for each node; q_len and k_len are equal.  Positions
 * are counted unless the cache has k_pos; given ones rise along every path.  The plan is causal.
 * A failed call leaves the sequences as they were. */
LOCI_API loci_status loci_tree_forward(const loci_plan *, const void *tables, void *work,
                                       loci_cache *, const loci_tree *, const loci_call *);

/* Appends the nodes from the root to node last[b] to the sequence of each tree; -1: none.  The
 * trees must be those of the last loci_tree_forward() on these entries. */
LOCI_API loci_status loci_tree_keep(const loci_plan *, const void *tables, void *work, loci_cache *,
                                    const loci_tree *, const int64_t *last, const loci_call *);

#ifdef __cplusplus
}
#endif
#endif
