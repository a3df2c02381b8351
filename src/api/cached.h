/* SPDX-License-Identifier: MIT */
/* cached.h -- what append (cache.c) and the edits of a cache (cache_edit.c) share. */
#ifndef LOCI_API_CACHED_H
#define LOCI_API_CACHED_H

#include "contract/cache.h"

static inline int64_t *lengths(const struct loci_cache *c) { return cache_list(c, c->len); }
/* Where the position of key j is stored. */
static inline int64_t *position(const struct loci_cache *c, ptrdiff_t b, int64_t j)
{
    return &cache_list(c, c->pos)[b * cache_capacity(c) + j];
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

/* Before entry b writes tiles first .. end - 1: they come into its own memory, and other entries
 * that read them there get theirs.  Only the first `kept` of them have contents to keep. */
void loci_cache_own(struct loci_cache *, ptrdiff_t b, ptrdiff_t first, ptrdiff_t end,
                    ptrdiff_t kept);

#endif
