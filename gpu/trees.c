/* SPDX-License-Identifier: MIT */
/* trees.c -- trees of tokens on a device: src/api/tree.c with functions of a device.  See
 * loci/gpu.h. */
#include "api/trees.h"

#include "aligned.h"
#include "gpu.h"
#include "kernels/rooms.h"

_Static_assert(sizeof(struct tree_move) == sizeof(struct row_move)
                   && offsetof(struct tree_move, to) == offsetof(struct row_move, to),
               "kernels read these lists");

struct device_trees {
    struct tree_backend base;
    const loci_gpu_plan *plan;
    const loci_gpu_tables *tables;
    void *lists; /* memory of the host */
};
static void *lists_of(struct tree_backend *m, size_t bytes)
{
    struct device_trees *d = (struct device_trees *)m;
    return d->lists = aligned_new(bytes);
}
static size_t workspace_of(const struct tree_backend *m, const loci_call *c)
{
    return loci_gpu_workspace(((const struct device_trees *)m)->plan, c, 0);
}
static loci_status fork_there(struct tree_backend *m, void *work, ptrdiff_t from, ptrdiff_t to,
                              int64_t length, const loci_call *c)
{
    (void)work;
    return loci_gpu_cache_fork(((struct device_trees *)m)->plan, m->cache, from, to, length,
                               c->error);
}
static loci_status append_there(struct tree_backend *m, void *work, const loci_call *c)
{
    const struct device_trees *d = (struct device_trees *)m;
    return loci_gpu_cache_append(d->plan, d->tables, work, m->cache, c);
}
static loci_status forward_there(struct tree_backend *m, void *work, const loci_call *c)
{
    const struct device_trees *d = (struct device_trees *)m;
    return loci_gpu_forward(d->plan, d->tables, work, c);
}
static loci_status upload(struct tree_backend *m, void *to, const void *from, size_t bytes)
{
    const struct device_trees *d = (struct device_trees *)m;
    return d->plan->gpu->backend->copy(d->plan->gpu->state, to, from, bytes, TO_DEVICE, m->error);
}
static loci_status clear(struct tree_backend *m, void *at, size_t bytes)
{
    const struct device_trees *d = (struct device_trees *)m;
    return d->plan->gpu->backend->clear(d->plan->gpu->state, at, bytes, m->error);
}
/* By the kernel that puts rows into caches. */
static loci_status copy(struct tree_backend *m, const struct tree_copy *c)
{
    const struct device_trees *d = (struct device_trees *)m;
    /* What the program is compiled for, which is the same for all copies. */
    const struct gpu_call g = { .plan = d->plan,
                                .in.error = m->error,
                                .params = { .dim = m->plan->score_dim,
                                            .value_dim = m->plan->value_dim,
                                            .stick = -1,
                                            .mix = -1,
                                            .scan = -1 } };
    struct params p = g.params;
    p.dim = (int32_t)c->inner;
    p.heads = (int32_t)c->outer;
    p.batch = (int32_t)c->entries;
    p.q_len = (int32_t)c->rows;
    p.q_type = p.o_type = c->each == sizeof(float) ? GPU_F32 : GPU_BF16; /* bits as they are */
    p.q = of_view(c->from);
    p.o = of_view(c->to);
    const struct arrays at = { .q = c->from.data,
                               .o = c->to.data,
                               .lists = (char *)(uintptr_t)c->move_there };
    return loci_gpu_run(&g, PASS_CACHE, "store_rows", c->entries * tiles(c->rows, ROTATED_ROWS), 0,
                        &at, &p);
}
static struct device_trees device_of(const loci_gpu_plan *plan, const loci_gpu_tables *tables)
{
    const ptrdiff_t most = loci_gpu_most_rows(plan->plan);
    return (struct device_trees){ .base = { .plan = plan->plan,
                                            .tables = tables ? tables->host : NULL,
                                            .there = true,
                                            .longest = most < PTRDIFF_MAX ? most : 0,
                                            .lists = lists_of,
                                            .workspace = workspace_of,
                                            .fork = fork_there,
                                            .append = append_there,
                                            .forward = forward_there,
                                            .upload = upload,
                                            .clear = clear,
                                            .copy = copy },
                                  .plan = plan,
                                  .tables = tables };
}
static loci_status check_tables(const loci_gpu_tables *tables, const loci_call *given)
{
    loci_call call;
    TRY(loci_copy_call(&call, true, given));
    CHECK(call.error, tables && tables->host && tables->device, LOCI_BAD_ARG,
          "tables must have those of loci_prepare() on the host, and a copy on the device");
    return LOCI_OK;
}

size_t loci_gpu_tree_workspace(const loci_gpu_plan *plan, const loci_cache *cache,
                               const loci_tree *tree, const loci_call *call)
{
    if (!plan) return 0;
    struct device_trees d = device_of(plan, NULL);
    return loci_tree_workspace_on(&d.base, cache, tree, call);
}
loci_status loci_gpu_tree_forward(const loci_gpu_plan *plan, const loci_gpu_tables *tables,
                                  void *work, loci_cache *cache, const loci_tree *tree,
                                  const loci_call *call)
{
    if (!plan) return LOCI_BAD_ARG;
    TRY(check_tables(tables, call));
    struct device_trees d = device_of(plan, tables);
    const loci_status status = loci_tree_forward_on(&d.base, work, cache, tree, call);
    aligned_free(d.lists);
    return status;
}
loci_status loci_gpu_tree_keep(const loci_gpu_plan *plan, loci_cache *cache, const loci_tree *tree,
                               const int64_t *last, const loci_call *call)
{
    if (!plan) return LOCI_BAD_ARG;
    struct device_trees d = device_of(plan, NULL);
    const loci_status status = loci_tree_keep_on(&d.base, NULL, cache, tree, last, call);
    aligned_free(d.lists);
    return status;
}
