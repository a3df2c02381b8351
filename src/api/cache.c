/* SPDX-License-Identifier: MIT */
/* cache.c -- see loci/cache.h.  Lengths, positions and inputs by key are processed here.  The
 * engine moves keys and values.
 *
 * A cache is one block of memory with offsets instead of pointers.  So it can be moved, saved and
 * opened again.  Anyone may have written to it, so every call checks whatever could lead to an
 * access outside the block.  append() changes the lengths last.  So a call that fails or is
 * cancelled leaves the keys unchanged, except for the oldest keys of a ring. */
#include "api/api.h"
#include "api/tables.h"
#include "api/cached.h"

/* Small enough that products of lists by entry cannot overflow before lay_out() checks larger
 * ones. */
enum { MAX_BATCH = 1 << 30 };

/* Everything that two plans must agree on to share a cache.  Rings are rounded up to whole tiles
 * like other caches. */
static struct cache_form form_of(const loci_plan *p, ptrdiff_t batch, ptrdiff_t capacity, int ring,
                                 bool there)
{
    return (struct cache_form){
        .magic = there ? CACHE_MAGIC_THERE : CACHE_MAGIC,
        .batch = batch,
        .tiles = capacity / KT + (capacity % KT > 0),
        .ring = ring != 0,
        .kv_heads = p->kv_heads,
        .dim = key_dim(p),
        .value_dim = p->value_dim,
        .dtype = p->dtype,
        .k_dtype = p->k_dtype,
        .v_dtype = p->v_dtype,
        .rotated = p->keys_rotated ? 1 + p->turns_values : 0,
        .values_in_keys = p->values_in_keys,
    };
}

/* Does a cache keep the keys as rows of later tiles read them? */
static bool keeps_staged(const loci_plan *p)
{
    return p->moves >= 0 && term_is(p->use[p->moves].term, KEPT_STAGED);
}

/* The offset of a block of the cache. */
static ptrdiff_t reserve(struct arena *a, size_t count, size_t each)
{
    const size_t at = a->used;
    carve_bytes(a, count, each);
    return (ptrdiff_t)at;
}
/* Lays out the struct and the lists by entry.  They come first and do not depend on a plan, so
 * loci_is_cache() can find them. */
static void lay_out_lists(struct loci_cache *c, struct arena *a)
{
    const size_t batch = (size_t)c->form.batch;
    reserve(a, 1, sizeof *c);
    c->len = reserve(a, batch, sizeof(int64_t));
    c->most = reserve(a, batch, sizeof(int64_t));
    c->base = reserve(a, batch, sizeof(int64_t));
    c->present = reserve(a, batch, sizeof(int64_t));
    c->first = reserve(a, batch, sizeof(int64_t));
    c->done = reserve(a, batch, sizeof(int64_t));
    c->owner = reserve(a, batch, (size_t)c->form.tiles * sizeof(int64_t));
    c->readers = reserve(a, batch, (size_t)c->form.tiles * sizeof(int64_t));
}
/* Lays out a whole cache and returns its bytes, SIZE_MAX if they exceed memory.  It writes only the
 * offsets in `c`.  So it also checks a cache: laid out again from its form, it must have the same
 * offsets. */
static size_t lay_out(const loci_plan *p, struct loci_cache *c)
{
    struct arena a = { 0 };
    const size_t batch = (size_t)c->form.batch, capacity = (size_t)c->form.tiles * KT;
    const bool there = c->form.magic == CACHE_MAGIC_THERE;
    size_t keys, rows;
    lay_out_lists(c, &a);
    if (__builtin_mul_overflow(batch, capacity, &keys)
        || __builtin_mul_overflow(keys, (size_t)p->kv_heads, &rows))
        return SIZE_MAX;
    c->pos = reserve(&a, keys, sizeof(int64_t));
    if (there) reserve(&a, 1, ALIGN); /* cache_there() */
    c->keys = reserve(&a, rows, (size_t)stored_bytes(p->k_dtype, key_dim(p)));
    if (!p->values_in_keys)
        c->values = reserve(&a, rows, (size_t)stored_bytes(p->v_dtype, p->value_dim));
    for (int i = 0; i < p->tensors.n; i++) {
        const loci_tensor *t = &p->tensors.list[i];
        /* [B][outer][keys][inner]: extents before the keys and after them.  A negative extent is
         * symbolic, and only the one for keys matters here. */
        bool by_key = false;
        struct cache_input in = { .outer = 1, .inner = 1 };
        if (!is_by_key(p, i) || rotated_already(p, i)) continue;
        for (int k = 1; k < t->rank; k++) {
            if (t->shape[k] == LOCI_DIM_KEYS) by_key = true;
            else if (t->shape[k] >= 0 && by_key) in.inner *= t->shape[k];
            else if (t->shape[k] >= 0) in.outer *= t->shape[k];
        }
        in.at = reserve(&a, keys, (size_t)(in.outer * in.inner) * p->real);
        c->input[i] = in;
    }
    if (there) return a.full || a.used > PTRDIFF_MAX ? SIZE_MAX : a.used;
    /* Encodings that store sums ask a call for its shapes.  This one has the shapes of the whole
     * cache. */
    const struct call like = {
        .plan = p,
        .B = (ptrdiff_t)batch,
        .Lk = (ptrdiff_t)capacity,
        .seqs.ktiles = (ptrdiff_t)keys / KT,
    };
    for (int e = 0; e < p->encs; e++) {
        const struct encoding_cache *cache = p->enc[e].pe->cache;
        const size_t bytes = cache ? cache->size(&like, e) : 0;
        if (bytes) c->made[e] = reserve(&a, bytes, 1);
    }
    if (keeps_staged(p)) {
        c->staged = reserve(&a, keys, (size_t)(p->key_heads * p->score_dim) * p->real);
        c->moved = reserve(&a, p->engine->moved(&like), 1);
    }
    return a.full || a.used > PTRDIFF_MAX ? SIZE_MAX : a.used;
}

/* Checks that this plan can have such a cache.  Keys are stored rotated, so that decode need not
 * rotate them for each token.  That is impossible if each query head rotates keys in its own way,
 * or if keys rotate differently for near and far rows.  Then they are stored as given. */
loci_status loci_cache_check_plan(const loci_plan *p, ptrdiff_t batch, ptrdiff_t capacity,
                                  loci_error *e)
{
    CHECK(e, p && p->magic == PLAN_MAGIC && p->stage == LOCI_ATTENTION, LOCI_BAD_ARG,
          "the plan must be one for stage ATTENTION");
    CHECK(e, batch >= 0 && batch <= MAX_BATCH, LOCI_BAD_ARG, "batch %td must be from 0 to 2^30",
          batch);
    CHECK(e, capacity >= 1 && capacity <= MOST_DISTANCE, LOCI_BAD_ARG,
          "capacity %td must be from 1 to " MOST_DISTANCE_TEXT, capacity);
    const bool by_head = p->key_heads != p->kv_heads && p->moves < 0;
    CHECK(e, p->rotate < 0 || p->keys_rotated || by_head, LOCI_BAD_ARG,
          "keys_rotated must be 1 in the plan's description: a cache stores rotated keys");
    return LOCI_OK;
}

/* A ring is no larger than other caches, so its size does not need the flag. */
size_t loci_cache_size(const loci_plan *p, ptrdiff_t batch, ptrdiff_t capacity)
{
    if (loci_cache_check_plan(p, batch, capacity, NULL)) return 0;
    struct loci_cache c = { .form = form_of(p, batch, capacity, 0, false) };
    const size_t bytes = lay_out(p, &c);
    return bytes == SIZE_MAX ? 0 : bytes;
}
size_t loci_cache_size_there(const loci_plan *p, ptrdiff_t batch, ptrdiff_t capacity, size_t *there)
{
    *there = 0;
    if (loci_cache_check_plan(p, batch, capacity, NULL)) return 0;
    struct loci_cache c = { .form = form_of(p, batch, capacity, 0, true) };
    const size_t bytes = lay_out(p, &c);
    if (bytes == SIZE_MAX) return 0;
    *there = bytes - (size_t)c.keys;
    return (size_t)c.keys;
}

loci_status loci_cache_create(loci_cache **cache, const loci_plan *p, ptrdiff_t batch,
                              ptrdiff_t capacity, int ring, void *memory, loci_error *e)
{
    CHECK(e, cache, LOCI_BAD_ARG,
          "loci_cache_create: cache must not be NULL; it receives the cache");
    return loci_cache_make(cache, p, batch, capacity, ring, memory, NULL, e);
}
loci_status loci_cache_make(loci_cache **cache, const loci_plan *p, ptrdiff_t batch,
                            ptrdiff_t capacity, int ring, void *memory, void *there, loci_error *e)
{
    *cache = NULL;
    TRY(loci_cache_check_plan(p, batch, capacity, e));
    CHECK(e, memory && (uintptr_t)memory % 64 == 0, LOCI_BAD_ARG,
          "memory must not be NULL and must be aligned to 64 bytes");
    struct loci_cache c = { .form = form_of(p, batch, capacity, ring, there != NULL) };
    CHECK(e, lay_out(p, &c) != SIZE_MAX, LOCI_BAD_ARG,
          "batch %td and capacity %td need more bytes than size_t can count", batch, capacity);
    if (ring) {
        /* A ring drops whole tiles, so it may have up to a tile less than its capacity. */
        CHECK(e, p->window_left <= FAR, LOCI_BAD_ARG,
              "a ring overwrites keys, so the plan must have a window_left that hides them");
        CHECK(e, p->window_left < capacity - KT, LOCI_BAD_ARG,
              "capacity %td is too small for a ring: window_left %lld needs at least %lld, plus "
              "the rows of a call",
              capacity, (long long)p->window_left, (long long)p->window_left + KT + 1);
        for (int i = 0; i < p->tensors.n; i++)
            CHECK(e, !c.input[i].at, LOCI_BAD_ARG,
                  "%s has the input '%s' for each key, and a ring, which overwrites keys, does not "
                  "store it: set ring = 0",
                  p->tensors.list[i].encoding, p->tensors.list[i].name);
    }
    /* Lengths and all other lists by entry are 0: no keys yet.  The rest is written before it is
     * read and is not initialised. */
    memset(memory, 0, (size_t)c.pos);
    *cache = memcpy(memory, &c, sizeof c);
    if (there) *cache_there(*cache) = there;
    return LOCI_OK;
}

/* Checks the lengths of an entry, and the numbers that loci_cache_set_length() derives from
 * them. */
loci_status loci_cache_check_entry(const struct loci_cache *c, ptrdiff_t b, loci_error *e)
{
    const int64_t len = lengths(c)[b], most = cache_list(c, c->most)[b];
    /* `most` is bounded, too, because the oldest key follows from it. */
    bool sound = len >= 0 && len <= (c->form.ring ? FAR : cache_capacity(c)) && most >= len
              && most <= 2 * FAR;
    const int64_t base = sound ? cache_oldest(c, b) / CHUNK * CHUNK : 0;
    sound =
        sound && cache_list(c, c->base)[b] == base && cache_list(c, c->present)[b] == len - base;
    CHECK(e, sound, LOCI_BAD_ARG,
          "the cache is damaged: the length of entry %td, %lld keys, contradicts its other fields",
          b, (long long)len);
    return LOCI_OK;
}
/* Is this a cache whose lists are at the right offsets?  It needs no plan and reads only the
 * struct. */
bool loci_is_cache(const struct loci_cache *c)
{
    if (!c || (uintptr_t)c % 64 || (c->form.magic != CACHE_MAGIC && !cache_is_there(c))
        || c->form.batch < 0 || c->form.batch > MAX_BATCH || c->form.tiles < 1
        || c->form.tiles > FAR / KT)
        return false;
    struct loci_cache laid = { .form = c->form };
    lay_out_lists(&laid, &(struct arena){ 0 });
    return laid.len == c->len && laid.most == c->most && laid.base == c->base
        && laid.present == c->present && laid.first == c->first && laid.done == c->done
        && laid.owner == c->owner && laid.readers == c->readers;
}
/* Validates a whole cache against the plan before a call uses it.  Every number that could lead to
 * an access outside the block is recomputed and compared. */
loci_status loci_cache_check(const loci_plan *p, const struct loci_cache *c, bool there,
                             loci_error *e)
{
    CHECK(e, loci_is_cache(c), LOCI_BAD_ARG,
          "cache is damaged or was not made by loci_cache_create()");
    CHECK(e, there || !cache_is_there(c), LOCI_BAD_ARG,
          "the cache has its keys in memory of a device: only functions of loci/gpu.h read it");
    CHECK(e, !there || cache_is_there(c), LOCI_BAD_ARG,
          "the cache has its keys in memory of the host: a device reads those of "
          "loci_gpu_cache_create()");
    const struct cache_form *f = &c->form;
    const struct cache_form like =
        form_of(p, (ptrdiff_t)f->batch, cache_capacity(c), (int)f->ring, there);
    CHECK(e, !memcmp(f, &like, sizeof like), LOCI_BAD_ARG,
          "the cache belongs to another plan: kv_heads, widths, dtypes, keys_rotated and "
          "values_in_keys must be the same");
    struct loci_cache laid = { .form = like };
    const size_t bytes = lay_out(p, &laid);
    for (int i = 0; i < p->tensors.n; i++)
        CHECK(e, laid.input[i].at == c->input[i].at, LOCI_BAD_ARG,
              "the cache belongs to another encoding: it does not contain the input '%s' of %s",
              p->tensors.list[i].name, p->tensors.list[i].encoding);
    for (int i = 0; i < p->encs; i++)
        CHECK(e, laid.made[i] == c->made[i], LOCI_BAD_ARG,
              "the cache belongs to another encoding or to other options of %s",
              p->enc[i].pe->name);
    /* Both structs are without padding between the offsets, as all of them are of one size. */
    const size_t lists = offsetof(struct loci_cache, len);
    CHECK(e,
          bytes != SIZE_MAX
              && !memcmp((const char *)c + lists, (const char *)&laid + lists, sizeof laid - lists),
          LOCI_BAD_ARG,
          "the cache is damaged or belongs to another version: its lists are not where this "
          "library stores them");
    CHECK(e, c->placed == 0 || (c->placed == 1 && !f->ring), LOCI_BAD_ARG,
          "the cache is damaged: the field that says whether it has k_pos is %d, neither 0 nor 1",
          c->placed);
    for (ptrdiff_t b = 0; b < f->batch; b++) {
        TRY(loci_cache_check_entry(c, b, e));
        for (ptrdiff_t slot = 0; slot < f->tiles; slot++) {
            const int64_t owner = *cache_slot(c, c->owner, b, slot);
            CHECK(e, owner >= -b && owner < f->batch - b && (!owner || !f->ring), LOCI_BAD_ARG,
                  "the cache is damaged: tile %td of entry %td is in entry %lld of %lld", slot, b,
                  (long long)owner + b, (long long)f->batch);
        }
    }
    return LOCI_OK;
}
/* Checks the positions of an entry's keys.  Counted positions are the numbers of the keys.  Given
 * positions are read by forward passes only, which check them themselves. */
loci_status loci_cache_check_positions(const struct loci_cache *c, ptrdiff_t b, loci_error *e)
{
    const int64_t len = lengths(c)[b];
    if (c->placed)
        return loci_check_near(position(c, b, 0), (ptrdiff_t)len, "the cache's k_pos", e);
    for (int64_t j = 0; j < len && !c->form.ring; j++)
        CHECK(e, *position(c, b, j) == j, LOCI_BAD_ARG,
              "the cache is damaged: key %lld of entry %td has position %lld, but should have its "
              "own number",
              (long long)j, b, (long long)*position(c, b, j));
    return LOCI_OK;
}
/* Checks that every tile which entries read elsewhere is in the memory of one that reads it there
 * itself, and knows how many others do.  If it did not, it would write what they still read. */
static loci_status check_readers(const struct loci_cache *c, loci_error *e)
{
    for (ptrdiff_t slot = 0; slot < c->form.tiles; slot++) {
        int64_t elsewhere = 0, readers = 0;
        bool sound = true;
        for (ptrdiff_t b = 0; b < c->form.batch; b++) {
            const ptrdiff_t owner = cache_owner(c, b, slot);
            sound &= cache_owner(c, owner, slot) == owner
                  && (owner == b || *cache_slot(c, c->readers, owner, slot) > 0);
            elsewhere += owner != b;
            readers += *cache_slot(c, c->readers, b, slot);
        }
        CHECK(e, sound && elsewhere == readers, LOCI_BAD_ARG,
              "the cache is damaged: tile %td of its entries contradicts who reads it", slot);
    }
    return LOCI_OK;
}
/* The bytes of a validated cache in memory of the host. */
size_t loci_cache_bytes(const loci_plan *p, const struct loci_cache *c)
{
    struct loci_cache laid = { .form = c->form };
    const size_t bytes = lay_out(p, &laid);
    return cache_is_there(c) ? (size_t)laid.keys : bytes;
}
void loci_cache_add_there(const loci_plan *p, const struct loci_cache *c, struct regions *r,
                          enum use_of use)
{
    struct loci_cache laid = { .form = c->form };
    const size_t bytes = lay_out(p, &laid);
    if (cache_is_there(c))
        loci_add_list(r, "cache", *cache_there(c), bytes - (size_t)laid.keys, 1, use);
}

loci_status loci_cache_open(loci_cache **cache, const loci_plan *p, void *memory, size_t bytes,
                            loci_error *e)
{
    CHECK(e, cache, LOCI_BAD_ARG, "loci_cache_open: cache must not be NULL; it receives the cache");
    *cache = NULL;
    struct loci_cache *c = memory;
    TRY(loci_cache_check_plan(p, 0, 1, e));
    CHECK(e, memory && (uintptr_t)memory % 64 == 0, LOCI_BAD_ARG,
          "memory must not be NULL and must be aligned to 64 bytes");
    CHECK(e, bytes >= sizeof *c && loci_is_cache(c), LOCI_BAD_ARG,
          "memory does not contain a cache");
    CHECK(e, loci_cache_bytes(p, c) <= bytes, LOCI_BAD_ARG,
          "memory has %zu bytes, and a cache of %lld "
          "sequences of %lld keys needs %zu with this plan",
          bytes, (long long)c->form.batch, (long long)c->form.tiles * KT, loci_cache_bytes(p, c));
    TRY(loci_cache_check(p, c, false, e));
    for (ptrdiff_t b = 0; b < c->form.batch; b++) TRY(loci_cache_check_positions(c, b, e));
    TRY(check_readers(c, e));
    *cache = c;
    return LOCI_OK;
}

int64_t loci_cache_length(const loci_cache *c, ptrdiff_t entry)
{
    return loci_is_cache(c) && entry >= 0 && entry < c->form.batch ? lengths(c)[entry] : LOCI_NONE;
}

/* The only function that changes a length; base and present follow from it.  A ring counts its keys
 * from a chunk border at or before its oldest key, because chunks are part of the bits of a row. */
void loci_cache_set_length(struct loci_cache *c, ptrdiff_t b, int64_t length)
{
    int64_t *most = &cache_list(c, c->most)[b];
    lengths(c)[b] = length;
    if (length > *most) *most = length;
    const int64_t base = cache_oldest(c, b) / CHUNK * CHUNK;
    cache_list(c, c->base)[b] = base;
    cache_list(c, c->present)[b] = length - base;
}

/* ---- Workspace ------------------------------------------------------------------------------- */

size_t loci_lay_out_update(struct call *c, char *base, bool backward)
{
    (void)backward;
    return loci_lay_out_rotate(c, base, c->plan->engine->cache_workspace);
}
/* An append is a call that has only its keys. */
loci_call loci_cache_append_call(const loci_call *in)
{
    loci_call rows = *in;
    rows.cache = NULL;
    rows.k_lens = rows.q_lens = NULL;
    rows.q_len = 0;
    rows.q_pos = rows.k_pos;
    return rows;
}
loci_call loci_cache_edit_call(const loci_call *in, const struct loci_cache *c,
                               const int64_t *shift)
{
    return (loci_call){
        .batch = (ptrdiff_t)c->form.batch,
        .k_len = KT,
        .q_pos = shift,
        .k_pos = shift,
        .host = in->host,
        .error = in->error,
        .work_bytes = in->work_bytes,
        .tables_bytes = in->tables_bytes,
    };
}
size_t loci_cache_workspace(const loci_plan *p, const loci_call *in)
{
    const int64_t shift[KT] = { 0 };
    const loci_call calls[] = { loci_cache_append_call(in),
                                loci_cache_edit_call(in, in->cache, shift) };
    size_t most = 0;
    for (int i = 0; i < COUNT(calls); i++) {
        struct call c;
        if (loci_open_call(&c, p, &calls[i], true)) continue;
        const size_t n = loci_lay_out_update(&c, NULL, false);
        if (n > most) most = n;
    }
    return most;
}

/* ---- Append ---------------------------------------------------------------------------------- */

/* Validates an append, except for its memory. */
static loci_status check_append(const loci_plan *p, const struct loci_cache *c, const loci_call *in)
{
    loci_error *e = in->error;
    CHECK(e, in->batch == c->form.batch, LOCI_BAD_ARG, "batch %td must be that of the cache, %lld",
          in->batch, (long long)c->form.batch);
    CHECK(e, in->k_len >= 0 && in->k_len <= cache_capacity(c), LOCI_BAD_ARG,
          "k_len %td must be from 0 to the cache's %td", in->k_len, cache_capacity(c));
    CHECK(e, !in->q_seg && !in->k_seg && !in->q_starts && !in->k_starts && !in->pages, LOCI_BAD_ARG,
          "a cache contains one sequence per batch entry: segments, starts and pages must be NULL");
    CHECK(e, !in->k_pos || !c->form.ring, LOCI_BAD_ARG,
          "k_pos must be NULL: a ring counts the positions of its keys");
    CHECK(e, p->axes == 1 || in->k_coord || !in->k_len, LOCI_BAD_ARG,
          "k_coord must be given: the encoding has %d axes", p->axes);
    for (ptrdiff_t b = 0; b < in->batch; b++) {
        const int64_t n = cache_appended(in, b), len = lengths(c)[b];
        CHECK(e, n >= 0 && n <= in->k_len, LOCI_BAD_ARG,
              "k_lens: entry %td has %lld keys, and k_len is %td", b, (long long)n, in->k_len);
        /* A ring accepts any number of keys over time, but positions end at 2^40. */
        CHECK(e,
              c->form.ring ? n <= cache_capacity(c) && n <= FAR - len
                           : n <= cache_capacity(c) - len,
              LOCI_BAD_ARG, "entry %td has %lld of %td keys; %lld more do not fit", b,
              (long long)len, cache_capacity(c), (long long)n);
        /* Positions are either all given or all counted.  A mixture could not be distinguished
         * later. */
        CHECK(e, !in->k_pos || c->placed || len == 0, LOCI_BAD_ARG,
              "k_pos must be NULL: entry %td has %lld keys that were appended without k_pos", b,
              (long long)len);
        CHECK(e, in->k_pos || !c->placed || n == 0, LOCI_BAD_ARG,
              "k_pos must be given, as it was for earlier keys");
    }
    for (int i = 0; i < p->tensors.n; i++)
        CHECK(e, !c->input[i].at || !in->k_len || (in->tensors && in->tensors[i]), LOCI_BAD_ARG,
              "%s: input tensor '%s' must be given with the call", p->tensors.list[i].encoding,
              p->tensors.list[i].name);
    return LOCI_OK;
}

/* Stages the keys again whose form has changed, where a cache keeps them. */
static void stage_keys(const struct call *c, struct loci_cache *to, const int64_t *from)
{
    const loci_plan *p = c->plan;
    struct call all = *c;
    if (!to->staged) return;
    all.cache = to;
    all.Lk = cache_capacity(to);
    all.seqs = (struct sequences){ .ktiles = c->B * (ptrdiff_t)to->form.tiles };
    for (int i = 0; i < p->tensors.n; i++)
        if (to->input[i].at) all.input[i] = (char *)to + to->input[i].at;
    all.mem.rotated = (char *)to + to->staged;
    all.mem.moved = (char *)to + to->moved;
    p->engine->stage_cache(&all, from);
}
/* Lets encodings update their sums from key from[b] of each entry on, stages keys, and records the
 * lengths that these cover. */
void loci_cache_save_inputs(const struct call *call, struct loci_cache *c, const int64_t *from)
{
    const loci_plan *p = call->plan;
    const ptrdiff_t batch = (ptrdiff_t)c->form.batch;
    const struct call all = {
        .plan = p,
        .B = batch,
        .Lk = cache_capacity(c),
        .seqs.ktiles = batch * (ptrdiff_t)c->form.tiles,
        .cache = c,
    };
    for (int e = 0; e < p->encs; e++)
        if (c->made[e]) p->enc[e].pe->cache->update(&all, e, from);
    stage_keys(call, c, from);
    memcpy(cache_list(c, c->done), lengths(c), (size_t)batch * sizeof(int64_t));
}
/* Appends the inputs by key after the present ones.  The lengths are still the old ones. */
static void append_inputs(const loci_plan *p, const struct loci_cache *c, const loci_call *in)
{
    for (int i = 0; i < p->tensors.n; i++) {
        const struct cache_input *t = &c->input[i];
        for (ptrdiff_t row = 0; t->at && row < in->batch * t->outer; row++) {
            /* New keys are the last ones of k_len, in each of the outer rows. */
            const ptrdiff_t b = row / t->outer, count = (ptrdiff_t)cache_appended(in, b),
                            old = (ptrdiff_t)lengths(c)[b];
            const size_t inner = (size_t)t->inner * p->real;
            memcpy((char *)c + t->at + (size_t)(row * cache_capacity(c) + old) * inner,
                   (const char *)in->tensors[i]
                       + (size_t)(row * in->k_len + in->k_len - count) * inner,
                   (size_t)count * inner);
        }
    }
}

/* After a cancelled append new keys may have overwritten old ones in a ring.  Setting the longer
 * length and then the old one moves the oldest key past those, because `most` remembers it. */
void loci_cache_lose_oldest(struct loci_cache *c, const loci_call *in)
{
    for (ptrdiff_t b = 0; b < c->form.batch && c->form.ring; b++) {
        const int64_t length = lengths(c)[b];
        loci_cache_set_length(c, b, length + cache_appended(in, b));
        loci_cache_set_length(c, b, length);
    }
}

/* The cache is the output.  All other arguments are read and must not overlap it. */
static loci_status check_memory(const struct call *c, const struct cache_update *a,
                                const void *tables, const void *work)
{
    const struct loci_plan *p = c->plan;
    struct regions r;
    r.n = 0;
    loci_add_list(&r, "cache", a->to, loci_cache_bytes(p, a->to), 1, WRITTEN);
    loci_cache_add_there(p, a->to, &r, WRITTEN);
    loci_add_view(&r, "k", &a->k, c->B, p->kv_heads, c->Lk, p->dim, p->stored, READ);
    loci_add_view(&r, "v", &a->v, c->B, p->kv_heads, c->Lk, p->value_dim, p->stored, READ);
    loci_add_list(&r, "k_lens", a->counts, (size_t)c->B, sizeof *a->counts, READ);
    loci_add_call(c, &r, tables, work);
    loci_add_tensors(c, &r, NULL);
    return loci_check_regions(&r, c->in->error);
}

loci_status loci_cache_open_append(struct call *c, struct cache_update *a, const loci_call *rows,
                                   const loci_plan *p, const void *tables, void *work,
                                   loci_cache *to, const loci_call *in, lay_out_workspace *place)
{
    TRY(check_append(p, to, in));
    TRY(loci_open_call(c, p, rows, true));
    *a = (struct cache_update){
        .to = to,
        .counts = in->k_lens,
        .rotate = p->rotate >= 0 && p->keys_rotated,
    };
    TRY(loci_open_view(c, &a->k, &in->k, "k", p->kv_heads, c->Lk, p->dim));
    TRY(loci_open_view(c, &a->v, &in->v, "v", p->kv_heads, c->Lk, p->value_dim));
    TRY(loci_check_values(p, in));
    CHECK(in->error, !c->B || !c->Lk || (a->k.data && (a->v.data || p->values_in_keys)),
          LOCI_BAD_ARG, "k and v must not be NULL");
    TRY(loci_open_tables(c, tables));
    TRY(loci_lay_out_workspace(c, work, place, false));
    /* accept() of the other encodings is called when a pass reads these keys. */
    if (a->rotate) {
        if (c->B && c->Lk) TRY(loci_check_inputs(c, p->use[p->rotate].enc, LOCI_DIM_KEYS));
        TRY(loci_accept(c, p->use[p->rotate].enc));
    }
    TRY(check_memory(c, a, tables, work));
    loci_fill_workspace(c);
    /* The position of row 0 of k.  An entry with fewer keys than k_len has them at the end.  So
     * this may lie before its first new key, and even below 0. */
    int64_t *first = cache_list(to, to->first);
    for (ptrdiff_t b = 0; b < c->B; b++) first[b] = lengths(to)[b] + cache_appended(in, b) - c->Lk;
    c->where.firsts = first;
    return LOCI_OK;
}
void loci_cache_own_appended(loci_cache *to, const loci_call *in, struct cache_copier *copier)
{
    for (ptrdiff_t b = 0; b < in->batch && !to->form.ring; b++) {
        const ptrdiff_t old = (ptrdiff_t)lengths(to)[b], count = (ptrdiff_t)cache_appended(in, b);
        if (count) loci_cache_own(to, b, old / KT, tiles(old + count, KT), old % KT > 0, copier);
    }
}
void loci_cache_close_append(const struct call *c, loci_cache *to, const loci_call *in)
{
    int64_t *done = cache_list(to, to->done);
    for (ptrdiff_t b = 0; b < c->B; b++) {
        const int64_t count = cache_appended(in, b), old = lengths(to)[b];
        /* A ring counts its positions.  Other caches store them, given or counted, because remove()
         * moves them. */
        for (int64_t j = 0; j < count && !to->form.ring; j++)
            *position(to, b, old + j) = pos_k(c, b, c->Lk - count + j);
        loci_cache_set_length(to, b, old + count);
        done[b] = old;
    }
    loci_cache_save_inputs(c, to, done); /* from the old lengths on */
    to->placed |= in->k_pos != NULL;
}
loci_status loci_cache_append(const loci_plan *p, const void *tables, void *work, loci_cache *to,
                              const loci_call *given)
{
    struct call c;
    struct cache_update a;
    loci_call now, *const in = &now;
    TRY(loci_copy_call(in, wants_sizes(p), given));
    TRY(loci_cache_check_plan(p, 0, 1, in->error));
    TRY(loci_cache_check(p, to, false, in->error));
    const loci_call rows = loci_cache_append_call(in);
    TRY(loci_cache_open_append(&c, &a, &rows, p, tables, work, to, in, loci_lay_out_update));
    if (!c.B || !c.Lk) return LOCI_OK;
    loci_cache_own_appended(to, in, NULL);
    loci_begin(&c, false);
    const loci_status status = p->engine->update_cache(&c, &a);
    if (status) {
        loci_cache_lose_oldest(to, in);
        return loci_fail(in->error, status, "cancelled by the host");
    }
    append_inputs(p, to, in);
    loci_cache_close_append(&c, to, in);
    return LOCI_OK;
}
