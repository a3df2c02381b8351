/* SPDX-License-Identifier: MIT */
/* cache.c -- caches whose keys and values are memory of a device.  See loci/gpu.h. */
#include "gpu.h"

/* Numbers of pages have 32 bits in kernels, and so have those of keys. */
static loci_status check_sizes(const loci_gpu_plan *plan, ptrdiff_t batch, ptrdiff_t capacity,
                               loci_error *e)
{
    CHECK(e, plan, LOCI_BAD_ARG, "plan must be one of loci_gpu_plan_create()");
    TRY(loci_cache_check_plan(plan->plan, batch, capacity, e));
    CHECK(e,
          batch < 1 << 20 && capacity < INT32_MAX / 64 - CHUNK
              && batch * tiles(capacity, KT) < INT32_MAX,
          LOCI_UNSUPPORTED, "batch %td and capacity %td are too large for a GPU", batch, capacity);
    return LOCI_OK;
}
loci_gpu_cache_bytes loci_gpu_cache_size(const loci_gpu_plan *plan, ptrdiff_t batch,
                                         ptrdiff_t capacity)
{
    loci_gpu_cache_bytes bytes = { 0 };
    if (!check_sizes(plan, batch, capacity, NULL))
        bytes.host = loci_cache_size_there(plan->plan, batch, capacity, &bytes.device);
    return bytes;
}
loci_status loci_gpu_cache_create(loci_cache **cache, const loci_gpu_plan *plan, ptrdiff_t batch,
                                  ptrdiff_t capacity, int ring, void *host, void *device,
                                  loci_error *e)
{
    CHECK(e, cache, LOCI_BAD_ARG, "cache must not be NULL; it receives the cache");
    *cache = NULL;
    TRY(check_sizes(plan, batch, capacity, e));
    CHECK(e, device && (uintptr_t)device % 64 == 0, LOCI_BAD_ARG,
          "device must be memory of the device and must be aligned to 64 bytes");
    return loci_cache_make(cache, plan->plan, batch, capacity, ring, host, device, e);
}

/* ---- Append, remove, fork -------------------------------------------------------------------- */

/* Copies of tiles that entries share no more. */
struct copier {
    struct cache_copier base;
    const loci_gpu *gpu;
    loci_status status;
    loci_error *error;
};
static void copy_bytes(struct cache_copier *base, struct loci_cache *c, ptrdiff_t to,
                       ptrdiff_t from, size_t bytes)
{
    struct copier *a = (struct copier *)base;
    if (!a->status)
        a->status = a->gpu->backend->copy(a->gpu->state, cache_there_at(c, to),
                                          cache_there_at(c, from), bytes, ON_DEVICE, a->error);
}

loci_status loci_gpu_cache_append(const loci_gpu_plan *plan, const loci_gpu_tables *tables,
                                  void *work, loci_cache *to, const loci_call *given)
{
    struct gpu_call g;
    if (!plan || !given) return LOCI_BAD_ARG;
    loci_status status = loci_gpu_open_append(&g, plan, tables, work, to, given);
    if (!status && g.lists) {
        struct copier copier = { { copy_bytes }, plan->gpu, LOCI_OK, g.given.error };
        loci_cache_own_appended(to, &g.given, &copier.base);
        status = copier.status ? copier.status : loci_gpu_store_rows(&g);
        if (status) loci_cache_lose_oldest(to, &g.given);
        else loci_cache_close_append(&g.call, to, &g.given);
    }
    loci_gpu_close_call(&g);
    return status;
}
loci_status loci_gpu_cache_remove(const loci_gpu_plan *plan, const loci_gpu_tables *tables,
                                  void *work, loci_cache *cache, ptrdiff_t entry, int64_t first,
                                  int64_t count, const loci_call *given)
{
    struct gpu_call g;
    int64_t shift[MOVED_ROWS];
    if (!plan || !given) return LOCI_BAD_ARG;
    for (int i = 0; i < MOVED_ROWS; i++) shift[i] = count > 0 ? -count : 0;
    loci_status status =
        loci_gpu_open_remove(&g, plan, tables, work, cache, entry, first, count, shift, given);
    if (!status && g.lists) {
        struct copier copier = { { copy_bytes }, plan->gpu, LOCI_OK, g.given.error };
        loci_cache_open_remove(&g.call, &g.update, cache, entry, first, count, &copier.base);
        status = copier.status ? copier.status : loci_gpu_move_rows(&g);
        if (!status) loci_cache_close_remove(&g.update);
    }
    loci_gpu_close_call(&g);
    return status;
}
loci_status loci_gpu_cache_fork(const loci_gpu_plan *plan, loci_cache *cache, ptrdiff_t from,
                                ptrdiff_t to, int64_t length, loci_error *e)
{
    CHECK(e, plan, LOCI_BAD_ARG, "plan must be one of loci_gpu_plan_create()");
    TRY(loci_cache_check_fork(plan->plan, cache, from, to, length, true, e));
    struct copier copier = { { copy_bytes }, plan->gpu, LOCI_OK, e };
    loci_cache_copy_entry(plan->plan, cache, from, to, (ptrdiff_t)length, &copier.base);
    return copier.status;
}
