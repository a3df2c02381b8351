/* SPDX-License-Identifier: MIT */
/* cached.h -- what append (cache.c) and the edits of a cache (cache_edit.c) share. */
#ifndef LOCI_API_CACHED_H
#define LOCI_API_CACHED_H

#include "api/api.h"
#include "contract/cache.h"

static inline int64_t *lengths(const struct loci_cache *c) { return cache_list(c, c->len); }
/* Where the position of key j is stored. */
static inline int64_t *position(const struct loci_cache *c, ptrdiff_t b, int64_t j)
{
    return &cache_list(c, c->pos)[b * cache_capacity(c) + j];
}

/* How many keys an append adds to an entry: the last ones of its k_len. */
static inline int64_t cache_appended(const loci_call *in, ptrdiff_t b)
{
    return in->k_lens ? in->k_lens[b] : in->k_len;
}

/* Is this a cache whose lists are at the right offsets?  It needs no plan and reads only the
 * struct. */
bool loci_is_cache(const struct loci_cache *);
/* Can this plan have such a cache?  Are the length of an entry and its positions sound? */
loci_status loci_cache_check_plan(const loci_plan *, ptrdiff_t batch, ptrdiff_t capacity,
                                  loci_error *);
loci_status loci_cache_check_entry(const struct loci_cache *, ptrdiff_t b, loci_error *);
loci_status loci_cache_check_positions(const struct loci_cache *, ptrdiff_t b, loci_error *);

/* The only function that changes a length; base and present follow from it. */
void loci_cache_set_length(struct loci_cache *, ptrdiff_t b, int64_t length);
/* Lets encodings update their sums from key from[b] of each entry on, stages keys, and records the
 * lengths that these cover. */
void loci_cache_save_inputs(const struct call *, struct loci_cache *, const int64_t *from);
/* The call of an edit.  A removal rotates a tile of keys at position -count, by the same angle for
 * every key that moves; `shift` has KT such positions. */
loci_call loci_cache_edit_call(const loci_call *, const struct loci_cache *, const int64_t *shift);
size_t loci_lay_out_update(struct call *, char *base, bool backward);

/* Copies bytes of a cache from offset to offset; NULL: of the host. */
struct cache_copier {
    void (*copy)(struct cache_copier *, struct loci_cache *, ptrdiff_t to, ptrdiff_t from,
                 size_t bytes);
};
/* Before entry b writes tiles first .. end - 1: they come into its own memory, and other entries
 * that read them there get theirs.  Only the first `kept` of them have contents to keep. */
void loci_cache_own(struct loci_cache *, ptrdiff_t b, ptrdiff_t first, ptrdiff_t end,
                    ptrdiff_t kept, struct cache_copier *);

/* ---- Caches in memory of a device: loci/gpu.h ------------------------------------------------ */

/* Bytes of the host, and of the device. */
size_t loci_cache_size_there(const loci_plan *, ptrdiff_t batch, ptrdiff_t capacity, size_t *there);
/* loci_cache_create().  there: memory of a device; NULL: all is memory of the host. */
loci_status loci_cache_make(loci_cache **, const loci_plan *, ptrdiff_t batch, ptrdiff_t capacity,
                            int ring, void *memory, void *there, loci_error *);

/* The steps of an append, of a validated cache.  Open checks the call, `in`, whose keys are a call
 * of their own, `rows`.  The tiles that are written become those of their entries.  Close counts
 * the keys that have been stored.  If they have not, a ring may have lost its oldest ones. */
loci_call loci_cache_append_call(const loci_call *in);
loci_status loci_cache_open_append(struct call *, struct cache_update *, const loci_call *rows,
                                   const loci_plan *, const void *tables, void *work, loci_cache *,
                                   const loci_call *in, lay_out_workspace *);
void loci_cache_own_appended(loci_cache *, const loci_call *in, struct cache_copier *);
void loci_cache_close_append(const struct call *, loci_cache *, const loci_call *in);
void loci_cache_lose_oldest(struct loci_cache *, const loci_call *in);

/* The same of a fork.  Copy returns the first key that differed. */
loci_status loci_cache_check_fork(const loci_plan *, const struct loci_cache *, ptrdiff_t from,
                                  ptrdiff_t to, int64_t length, bool there, loci_error *);
ptrdiff_t loci_cache_copy_entry(const loci_plan *, struct loci_cache *, ptrdiff_t from,
                                ptrdiff_t to, ptrdiff_t length, struct cache_copier *);
/* And of a removal.  Open says how keys move, close counts those that stay. */
loci_status loci_cache_check_remove(const loci_plan *, const struct loci_cache *, ptrdiff_t entry,
                                    int64_t first, int64_t count, bool there, loci_error *);
void loci_cache_open_remove(const struct call *, struct cache_update *, struct loci_cache *,
                            ptrdiff_t entry, int64_t first, int64_t count, struct cache_copier *);
void loci_cache_close_remove(const struct cache_update *);

#endif
