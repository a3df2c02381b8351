/* SPDX-License-Identifier: MIT */
/* cache_edit.c -- truncate, remove and fork: see loci/cache.h.
 *
 * A fork shares whole tiles of keys and values, which are most of a cache.  All else that an entry
 * has (inputs by key, positions, sums) is copied or computed again.  Tiles are shared until one of
 * their readers writes them; loci_cache_own() then gives each of the two sides memory of its own.
 * An entry has memory for all its tiles from the start, so that never fails. */
#include "api/api.h"
#include "api/tables.h"
#include "api/cached.h"

/* ---- Who owns a tile ------------------------------------------------------------------------- */

static void copy_bytes(struct cache_copier *copier, struct loci_cache *c, ptrdiff_t to,
                       ptrdiff_t from, size_t bytes)
{
    if (copier) copier->copy(copier, c, to, from, bytes);
    else memcpy((char *)c + to, (char *)c + from, bytes);
}
/* Copies a tile of all heads from the memory of one entry to that of another.  On a device they are
 * one page. */
static void copy_lines(struct cache_copier *copier, struct loci_cache *c, ptrdiff_t at,
                       size_t bytes, ptrdiff_t from, ptrdiff_t to, ptrdiff_t slot)
{
    const ptrdiff_t heads = cache_is_there(c) ? 1 : (ptrdiff_t)c->form.kv_heads,
                    count = (ptrdiff_t)c->form.tiles,
                    each = (ptrdiff_t)bytes * ((ptrdiff_t)c->form.kv_heads / heads);
    for (ptrdiff_t h = 0; h < heads; h++)
        copy_bytes(copier, c, at + ((to * heads + h) * count + slot) * each,
                   at + ((from * heads + h) * count + slot) * each, (size_t)each);
}
static void copy_tile(struct cache_copier *copier, struct loci_cache *c, ptrdiff_t from,
                      ptrdiff_t to, ptrdiff_t slot)
{
    const struct cache_form *f = &c->form;
    copy_lines(copier, c, c->keys,
               (size_t)stored_bytes((loci_dtype)f->k_dtype, KT * (ptrdiff_t)f->dim), from, to,
               slot);
    if (f->values_in_keys) return;
    copy_lines(copier, c, c->values,
               (size_t)stored_bytes((loci_dtype)f->v_dtype, KT * (ptrdiff_t)f->value_dim), from, to,
               slot);
}
/* Lets entry b, which has the tile in its own memory, read that of another entry. */
static void share(struct loci_cache *c, ptrdiff_t b, ptrdiff_t owner, ptrdiff_t slot)
{
    *cache_slot(c, c->owner, b, slot) = owner - b;
    ++*cache_slot(c, c->readers, owner, slot);
}
void loci_cache_own(struct loci_cache *c, ptrdiff_t b, ptrdiff_t first, ptrdiff_t end,
                    ptrdiff_t kept, struct cache_copier *copier)
{
    for (ptrdiff_t slot = first; slot < end; slot++) {
        const ptrdiff_t owner = cache_owner(c, b, slot);
        int64_t *readers = cache_slot(c, c->readers, b, slot);
        if (owner != b) {
            if (slot - first < kept) copy_tile(copier, c, owner, b, slot);
            --*cache_slot(c, c->readers, owner, slot);
            *cache_slot(c, c->owner, b, slot) = 0;
            continue;
        }
        /* The first of the readers becomes the owner for the others. */
        ptrdiff_t heir = -1;
        for (ptrdiff_t e = 0; *readers && e < c->form.batch; e++) {
            if (e == b || cache_owner(c, e, slot) != b) continue;
            *cache_slot(c, c->owner, e, slot) = 0;
            if (heir >= 0) share(c, e, heir, slot);
            else copy_tile(copier, c, b, heir = e, slot);
        }
        *readers = 0;
    }
}

/* ---- Truncate and remove --------------------------------------------------------------------- */

/* Drops the last keys.  Nothing moves.  Sums of encodings become valid again after keys are added,
 * because cache_made() compares lengths.  An entry that becomes empty also forgets its largest
 * length. */
loci_status loci_cache_truncate(loci_cache *c, ptrdiff_t entry, int64_t length, loci_error *e)
{
    CHECK(e, loci_is_cache(c), LOCI_BAD_ARG,
          "cache is damaged or was not made by loci_cache_create()");
    CHECK(e, entry >= 0 && entry < c->form.batch, LOCI_BAD_ARG, "entry %td must be from 0 to %lld",
          entry, (long long)c->form.batch - 1);
    /* Without a plan the whole cache cannot be validated.  The entry is enough. */
    TRY(loci_cache_check_entry(c, entry, e));
    CHECK(e, length >= 0 && length <= lengths(c)[entry], LOCI_BAD_ARG,
          "length %lld must be from 0 to %lld", (long long)length, (long long)lengths(c)[entry]);
    /* The new length of a ring must be within the keys that it still has, or 0. */
    CHECK(e, length == 0 || length >= cache_oldest(c, entry), LOCI_BAD_ARG,
          "length %lld: the ring contains only keys from %lld on", (long long)length,
          (long long)cache_oldest(c, entry));
    if (length == 0) cache_list(c, c->most)[entry] = 0;
    loci_cache_set_length(c, entry, length);
    /* Only a cache without keys may change between given and counted positions. */
    bool empty = true;
    for (ptrdiff_t b = 0; b < c->form.batch; b++) empty &= lengths(c)[b] == 0;
    if (empty) c->placed = 0;
    return LOCI_OK;
}

/* Moves the inputs by key over the removed ones. */
static void remove_inputs(const loci_plan *p, const struct loci_cache *c, ptrdiff_t b,
                          ptrdiff_t first, ptrdiff_t count)
{
    for (int i = 0; i < p->tensors.n; i++) {
        const struct cache_input *t = &c->input[i];
        const size_t inner = (size_t)t->inner * p->real;
        for (ptrdiff_t row = b * t->outer; t->at && row < (b + 1) * t->outer; row++) {
            char *at = (char *)c + t->at + (size_t)(row * cache_capacity(c) + first) * inner;
            memmove(at, at + (size_t)count * inner,
                    (size_t)((ptrdiff_t)lengths(c)[b] - first - count) * inner);
        }
    }
}

/* Keys that move are rotated further by the difference of positions.  A rotation that also
 * multiplies did so on append and would now do it twice, so `undo` reverts that.  States and inputs
 * belong to their keys and move with them, so keys that were rotated by them are not rotated. */
static void rotate_again(const loci_plan *p, const struct call *c, struct cache_update *a)
{
    a->rotate = p->rotate >= 0 && p->keys_rotated && !p->states
             && !term_is(p->use[p->rotate].term, BY_INPUT);
    if (!a->rotate) return;
    const int enc = p->use[p->rotate].enc;
    const struct loci_pe *pe = p->enc[enc].pe;
    int channel, channels;
    const double factor = pe->multiplies ? pe->multiplies(c->table[enc], &channel, &channels) : 1;
    if (factor != 1) {
        a->undo = 1 / factor;
        a->channel = channel;
        a->channels = channels;
    }
}

/* Opens the call of an edit.  The cache is the only output.  There are no tensors, because its
 * inputs by key move with it. */
static loci_status open_edit(struct call *call, const loci_plan *p, const void *tables, void *work,
                             struct loci_cache *c, const loci_call *rows)
{
    struct regions r;
    r.n = 0;
    TRY(loci_open_call(call, p, rows, true));
    TRY(loci_open_tables(call, tables));
    TRY(loci_lay_out_workspace(call, work, loci_lay_out_update, false));
    loci_add_list(&r, "cache", c, loci_cache_bytes(p, c), 1, WRITTEN);
    loci_add_call(call, &r, tables, work);
    TRY(loci_check_regions(&r, rows->error));
    loci_fill_workspace(call);
    return LOCI_OK;
}

loci_status loci_cache_check_remove(const loci_plan *p, const struct loci_cache *c, ptrdiff_t entry,
                                    int64_t first, int64_t count, bool there, loci_error *e)
{
    TRY(loci_cache_check_plan(p, 0, 1, e));
    TRY(loci_cache_check(p, c, there, e));
    CHECK(e, entry >= 0 && entry < c->form.batch, LOCI_BAD_ARG, "entry %td must be from 0 to %lld",
          entry, (long long)c->form.batch - 1);
    CHECK(e, !c->form.ring, LOCI_BAD_ARG, "loci_cache_remove() does not support rings");
    CHECK(e, p->axes == 1, LOCI_BAD_ARG,
          "loci_cache_remove() does not support keys with %d coordinates", p->axes);
    CHECK(e, p->rotate < 0 || !p->keys_rotated || !term_is(p->use[p->rotate].term, NOT_AGAIN),
          LOCI_BAD_ARG,
          "rotated keys of %s cannot be rotated to other positions: truncate the cache and append "
          "them again",
          p->enc[p->use[p->rotate].enc].pe->name);
    const int64_t len = lengths(c)[entry];
    CHECK(e, first >= 0 && count >= 0 && first <= len && count <= len - first, LOCI_BAD_ARG,
          "%lld keys from key %lld on reach beyond the end: entry %td has %lld keys",
          (long long)count, (long long)first, entry, (long long)len);
    TRY(loci_cache_check_positions(c, (ptrdiff_t)entry, e));
    /* Moving makes positions smaller, and all of them must stay within 2^40. */
    for (int64_t j = first + count; j < len; j++)
        CHECK(e, *position(c, entry, j) - count >= -FAR, LOCI_BAD_ARG,
              "key %lld at position %lld would move below position -2^40", (long long)j,
              (long long)*position(c, entry, j));
    return LOCI_OK;
}
void loci_cache_open_remove(const struct call *call, struct cache_update *a, struct loci_cache *c,
                            ptrdiff_t entry, int64_t first, int64_t count,
                            struct cache_copier *copier)
{
    *a = (struct cache_update){
        .to = c,
        .remove = true,
        .entry = entry,
        .first = (ptrdiff_t)first,
        .count = (ptrdiff_t)count,
    };
    loci_cache_own(c, entry, (ptrdiff_t)first / KT, tiles((ptrdiff_t)lengths(c)[entry], KT),
                   PTRDIFF_MAX, copier);
    rotate_again(call->plan, call, a);
}
void loci_cache_close_remove(const struct cache_update *a)
{
    struct loci_cache *c = a->to;
    const ptrdiff_t len = (ptrdiff_t)lengths(c)[a->entry];
    for (ptrdiff_t j = a->first; j < len - a->count; j++)
        *position(c, a->entry, j) = *position(c, a->entry, j + a->count) - a->count;
    loci_cache_set_length(c, a->entry, len - a->count);
    /* Sums are valid up to the first key that moved, and completely in all other entries. */
    memcpy(cache_list(c, c->done), lengths(c), (size_t)c->form.batch * sizeof(int64_t));
}
/* Removes `count` keys of one entry from `first` on.  Later keys move up, as if they had been
 * appended at positions smaller by `count`. */
loci_status loci_cache_remove(const loci_plan *p, const void *tables, void *work, loci_cache *c,
                              ptrdiff_t entry, int64_t first, int64_t count, const loci_call *given)
{
    struct call call;
    struct cache_update a;
    int64_t shift[KT];
    loci_call now, *const in = &now;
    TRY(loci_copy_call(in, wants_sizes(p), given));
    loci_error *e = in->error;
    TRY(loci_cache_check_remove(p, c, entry, first, count, false, e));
    for (int i = 0; i < KT; i++) shift[i] = -count;
    const loci_call rows = loci_cache_edit_call(in, c, shift);
    TRY(open_edit(&call, p, tables, work, c, &rows));
    if (!count) return LOCI_OK;
    /* From here on keys move, and a half-moved cache would be useless.  So this is the last check
     * for a cancel. */
    if (in->host && in->host->cancelled && in->host->cancelled(in->host->user))
        return loci_fail(e, LOCI_CANCELLED, "cancelled by the host");
    loci_cache_open_remove(&call, &a, c, entry, first, count, NULL);
    loci_begin(&call, false);
    call.cache = c; /* set only now, because the call so far was about shifts */
    p->engine->update_cache(&call, &a);
    remove_inputs(p, c, entry, (ptrdiff_t)first, (ptrdiff_t)count);
    loci_cache_close_remove(&a);
    cache_list(c, c->done)[entry] = first;
    loci_cache_save_inputs(&call, c, cache_list(c, c->done));
    return LOCI_OK;
}

/* ---- Fork ------------------------------------------------------------------------------------ */

/* Copies the inputs and positions of keys first .. end - 1. */
static void copy_lists(const loci_plan *p, struct loci_cache *c, ptrdiff_t from, ptrdiff_t to,
                       ptrdiff_t first, ptrdiff_t end, struct cache_copier *copier)
{
    for (int i = 0; i < p->tensors.n; i++) {
        const struct cache_input *t = &c->input[i];
        const size_t inner = (size_t)t->inner * p->real, each = (size_t)cache_capacity(c) * inner;
        for (ptrdiff_t row = 0; t->at && row < t->outer; row++) {
            const ptrdiff_t at = t->at + first * (ptrdiff_t)inner;
            copy_bytes(copier, c, at + (to * t->outer + row) * (ptrdiff_t)each,
                       at + (from * t->outer + row) * (ptrdiff_t)each,
                       (size_t)(end - first) * inner);
        }
    }
    memcpy(position(c, to, first), position(c, from, first),
           (size_t)(end - first) * sizeof(int64_t));
}
/* Makes entry `to` a copy of `from`.  Tiles that they share already are left as they are, and so is
 * all else that belongs to their keys: an entry that is forked from the same one again and again
 * costs little.  Returns the first key that differed. */
ptrdiff_t loci_cache_copy_entry(const loci_plan *p, struct loci_cache *c, ptrdiff_t from,
                                ptrdiff_t to, ptrdiff_t length, struct cache_copier *copier)
{
    const ptrdiff_t whole = length / KT;
    ptrdiff_t same = 0;
    while (same < whole && cache_owner(c, from, same) == cache_owner(c, to, same)) same++;
    loci_cache_own(c, to, same, (ptrdiff_t)c->form.tiles, 0, copier);
    for (ptrdiff_t slot = same; slot < whole; slot++)
        share(c, to, cache_owner(c, from, slot), slot);
    if (length % KT) copy_tile(copier, c, cache_owner(c, from, whole), to, whole);
    copy_lists(p, c, from, to, same * KT, length, copier);
    cache_list(c, c->most)[to] = 0;
    loci_cache_set_length(c, to, length);
    memcpy(cache_list(c, c->done), lengths(c), (size_t)c->form.batch * sizeof(int64_t));
    return same * KT;
}
loci_status loci_cache_check_fork(const loci_plan *p, const struct loci_cache *c, ptrdiff_t from,
                                  ptrdiff_t to, int64_t length, bool there, loci_error *e)
{
    TRY(loci_cache_check_plan(p, 0, 1, e));
    TRY(loci_cache_check(p, c, there, e));
    const ptrdiff_t batch = (ptrdiff_t)c->form.batch;
    CHECK(e, from >= 0 && from < batch && to >= 0 && to < batch && from != to, LOCI_BAD_ARG,
          "entries %td and %td must be two different ones from 0 to %td", from, to, batch - 1);
    CHECK(e, !c->form.ring, LOCI_BAD_ARG, "loci_cache_fork() does not support rings");
    CHECK(e, length >= 0 && length <= lengths(c)[from], LOCI_BAD_ARG,
          "length %lld must be from 0 to %lld, the keys of entry %td", (long long)length,
          (long long)lengths(c)[from], from);
    return LOCI_OK;
}

loci_status loci_cache_fork(const loci_plan *p, const void *tables, void *work, loci_cache *c,
                            ptrdiff_t from, ptrdiff_t to, int64_t length, const loci_call *given)
{
    struct call call;
    const int64_t shift[KT] = { 0 };
    loci_call now, *const in = &now;
    TRY(loci_copy_call(in, wants_sizes(p), given));
    TRY(loci_cache_check_fork(p, c, from, to, length, false, in->error));
    const loci_call rows = loci_cache_edit_call(in, c, shift);
    TRY(open_edit(&call, p, tables, work, c, &rows));
    const ptrdiff_t first = loci_cache_copy_entry(p, c, from, to, (ptrdiff_t)length, NULL);
    cache_list(c, c->done)[to] = first;
    loci_cache_save_inputs(&call, c, cache_list(c, c->done));
    return LOCI_OK;
}
