/* SPDX-License-Identifier: MIT */
/* loci/cache.h: keys and values of sequences that grow, laid out so that decode is a plain stream.
 *
 *     loci_cache *cache;                   // desc.keys_rotated = 1, where the encoding rotates
 *     void *memory = aligned_alloc(64, loci_cache_size(plan, batch, capacity));
 *     loci_cache_create(&cache, plan, batch, capacity, 0, memory, &error);
 *
 *     loci_call call = LOCI_CALL(.batch = batch, .q_len = n, .k_len = n, .cache = cache,
 *                                .q = ..., .k = ..., .v = ..., .o = ...);
 *     call.work_bytes = loci_workspace(plan, &call, 0);     // for all calls of up to n rows
 *     work = aligned_alloc(64, call.work_bytes);
 *     loci_cache_append(plan, tables, work, cache, &call);  // the new k and v: turned, stored
 *     loci_forward(plan, tables, work, &call);              // the new q, against all keys
 *
 * Its use is optional: loci_forward() reads keys of any layout in place, in pages too.  With a
 * cache the same call serves both: append reads k, v, k_len, k_lens, k_pos, k_coord and the INPUT
 * tensors by key, all of the new tokens only; forward reads the rest.  The bits are those of a call
 * on all keys at once, given the same keys: in 16 bits, keys are rounded when they are stored.
 *
 * The memory is yours; a cache holds no pointer, so it may be moved, copied or saved, while nobody
 * uses it, and opened again.  Readers may share it; append, truncate and remove want it alone. */
#ifndef LOCI_LOCI_CACHE_H
#define LOCI_LOCI_CACHE_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a cache for `batch` sequences of up to `capacity` keys; 0 = impossible. */
LOCI_API size_t loci_cache_size(const loci_plan *, ptrdiff_t batch, ptrdiff_t capacity);

/* An empty one in `memory`, which starts on 64 bytes.  ring 1: sequences go on without end, and the
 * oldest keys make room for new ones; the plan's window must hide them, so capacity is at least
 * window_left + 64 + the rows of a call. */
LOCI_API loci_status loci_cache_create(loci_cache **, const loci_plan *, ptrdiff_t batch,
                                       ptrdiff_t capacity, int ring, void *memory, loci_error *);

/* One that is in `memory` already, of `bytes` bytes: moved, copied, or saved and loaded by a
 * program with the same plan on a machine with the same order of bytes.  Its form, lengths and
 * positions are checked, and so they are in every call; the numbers of keys and values cannot
 * be. */
LOCI_API loci_status loci_cache_open(loci_cache **, const loci_plan *, void *memory, size_t bytes,
                                     loci_error *);

/* Adds k_len keys to each sequence, or of entry b the last k_lens[b] of them: rows of a batch are
 * aligned at their ends, for queries and keys alike.  Positions go on by themselves, unless k_pos
 * says otherwise from the first key on.  When its host cancels it, the cache holds the keys it
 * held; only a ring may have lost old ones, whose places the new ones were to take. */
LOCI_API loci_status loci_cache_append(const loci_plan *, const void *tables, void *work,
                                       loci_cache *, const loci_call *);

/* keys so far; LOCI_NONE: no such entry */
LOCI_API int64_t loci_cache_length(const loci_cache *, ptrdiff_t entry);

/* Forgets the keys of a sequence from `length` on. */
LOCI_API loci_status loci_cache_truncate(loci_cache *, ptrdiff_t entry, int64_t length,
                                         loci_error *);

/* Forgets `count` keys from `first` on; the later ones move up, with their positions: turned keys
 * are turned back by as much, and in 16 bits rounded again.  call: batch, host, error, and cache;
 * loci_workspace() of that call, or of any other on the cache, is enough. */
LOCI_API loci_status loci_cache_remove(const loci_plan *, const void *tables, void *work,
                                       loci_cache *, ptrdiff_t entry, int64_t first, int64_t count,
                                       const loci_call *);

#ifdef __cplusplus
}
#endif
#endif
