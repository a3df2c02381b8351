/* SPDX-License-Identifier: MIT */
/* linear.c -- linear attention: tiles of rows and keys, memory of the device, and which kernels
 * run.  See kernels/linear.h. */
#include <string.h>

#include "gpu.h"
#include "api/linear.h"
#include "kernels/rooms.h"
#include "layout/matrices.h"

size_t loci_gpu_linear_shared(void) { return (size_t)linear_room().size * sizeof(float); }

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* Keys of the last tile of a state.  A call that is only measured may have any. */
static int carried(const struct gpu_call *g)
{
    if (g->measured) return g->backward ? 0 : KT;
    const ptrdiff_t keys = g->states->keys;
    return keys ? (int)((keys - 1) % KT) + 1 : 0;
}
/* Tiles of keys of all sequences, and those of them that have sums: all but the first ones, and the
 * first ones of a state. */
static size_t most_key_tiles(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    return (size_t)loci_most_ktiles(c) + (carried(g) ? (size_t)c->B : 0);
}
static size_t most_sums(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    return (size_t)(c->B * (c->Lk / KT)) + (carried(g) ? 2 * (size_t)c->B : 0);
}
/* Rows that end in a tile of keys are full tiles of rows, and one more. */
static size_t most_row_tiles(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const size_t rows = (size_t)(c->B * c->Lq),
                 ends = most_key_tiles(g) + 2 * loci_most_sequences(c);
    return rows / TILE_ROWS + (ends < rows ? ends : rows);
}
void loci_gpu_list_linear(struct gpu_call *g, struct arena *a)
{
    const struct call *c = &g->call;
    struct gpu_linear *l = &g->linear;
#define LIST(to, count, type) \
    do { \
        (to) = (int64_t)a->used; \
        carve_bytes(a, count, sizeof(type)); \
    } while (0)
    LIST(g->params.linear, 1, struct gpu_linear);
    LIST(l->key_tiles, most_key_tiles(g), struct gpu_key_tile);
    LIST(l->row_tiles, most_row_tiles(g) + 1, struct gpu_row_tile);
    LIST(l->walks, loci_most_sequences(c), struct gpu_walk);
    LIST(l->seen, (size_t)(c->B * c->Lq), int32_t);
#undef LIST
}
/* Rows row .. end - 1 of a sequence have their last key in a tile (-1: no keys), of which `keys`
 * are there.  key: number of keys of the sequence that are, without those of a state. */
static void add_rows(struct gpu_call *g, const struct sequence *q, ptrdiff_t row, ptrdiff_t end,
                     int64_t tile, ptrdiff_t keys, ptrdiff_t key)
{
    const struct call *c = &g->call;
    const ptrdiff_t first = q->b * c->Lq + q->q0;
    struct gpu_row_tile *tiles_of_rows = (struct gpu_row_tile *)(g->lists + g->linear.row_tiles);
    int32_t *seen = (int32_t *)(g->lists + g->linear.seen);
    for (ptrdiff_t i = row; i < end; i += TILE_ROWS)
        tiles_of_rows[g->row_tiles++] = (struct gpu_row_tile){
            .b = (int32_t)q->b,
            .row = (int32_t)(q->q0 + i),
            .rows = (int32_t)(end - i < TILE_ROWS ? end - i : TILE_ROWS),
            .tile = (int32_t)tile,
            .keys = (int32_t)keys,
        };
    for (ptrdiff_t i = row; i < end; i++)
        seen[first + i] = (int32_t)(c->linear.seen[first + i] - key + keys);
}
/* The tiles of keys of a sequence, which begin with those of a state. */
static void add_keys(struct gpu_call *g, const struct sequence *q, int64_t *sums)
{
    const struct call *c = &g->call;
    const ptrdiff_t carries = g->linear.carried, all = carries + q->nk,
                    seen = q->nq ? c->linear.seen[q->b * c->Lq + q->q0 + q->nq - 1] : 0;
    const int64_t before = g->states->keys - carries;
    struct gpu_key_tile *to = (struct gpu_key_tile *)(g->lists + g->linear.key_tiles);
    for (ptrdiff_t key = 0; key < all; key += KT) {
        const bool has_sums = key || carries, goes_on = key + KT < all;
        const ptrdiff_t left = seen - key;
        to[g->key_tiles++] = (struct gpu_key_tile){
            .b = (int32_t)q->b,
            .key = (int32_t)(q->k0 + key),
            .keys = (int32_t)(goes_on ? KT : all - key),
            .seen = (int32_t)(left < 0    ? 0
                              : left < KT ? left
                                          : KT),
            .sums = has_sums ? (int32_t)(*sums)++ : -1,
            .next = goes_on ? (int32_t)*sums : -1,
            .ages = (before + key + KT) % LINEAR_SPAN == 0,
            .ages_back = key % LINEAR_SPAN == 0,
        };
    }
}
/* Tiles in the order in which the CPU walks over keys and rows. */
static void add_sequence(struct gpu_call *g, const struct sequence *q, int64_t *sums,
                         struct gpu_walk *walk)
{
    const struct call *c = &g->call;
    const ptrdiff_t *seen = c->linear.seen + q->b * c->Lq + q->q0;
    const int64_t tile = g->key_tiles;
    walk->b = (int32_t)q->b;
    walk->tile = (int32_t)tile;
    walk->first_rows = (int32_t)g->row_tiles;
    add_keys(g, q, sums);
    walk->tiles = (int32_t)(g->key_tiles - tile);
    ptrdiff_t held = g->linear.carried, row = 0, key = 0;
    for (;;) {
        const int64_t at = held ? tile + (held - 1) / KT : -1, first = g->row_tiles;
        ptrdiff_t end = row;
        while (end < q->nq && seen[end] <= key) end++;
        add_rows(g, q, row, end, at, held ? (held - 1) % KT + 1 : 0, key);
        row = end;
        if (at >= 0) {
            struct gpu_key_tile *t = (struct gpu_key_tile *)(g->lists + g->linear.key_tiles) + at;
            t->first_rows = (int32_t)first; /* backward, a tile is met once */
            t->end_rows = (int32_t)g->row_tiles;
        } else {
            walk->end_rows = (int32_t)g->row_tiles;
        }
        if (key == q->nk) return;
        const ptrdiff_t room = KT - held % KT, n = q->nk - key < room ? q->nk - key : room;
        key += n;
        held += n;
    }
}
void loci_gpu_fill_linear(struct gpu_call *g)
{
    const struct call *c = &g->call;
    struct gpu_walk *walk = (struct gpu_walk *)(g->lists + g->linear.walks);
    int64_t sums = 0;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) add_sequence(g, &c->seqs.list[s], &sums, &walk[s]);
    memcpy(g->lists + g->params.linear, &g->linear, sizeof g->linear);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

size_t loci_gpu_lay_out_linear(struct gpu_call *g, char *base)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    struct gpu_linear *l = &g->linear;
    struct arena a = { .base = base }, n = { 0 };
    l->carried = carried(g);
    l->key_rows = (int32_t)c->Lk + l->carried;
    l->lanes = (p->dim + CHAINS - 1) / CHAINS * CHAINS;
    l->value_lanes = (p->value_dim + CHAINS - 1) / CHAINS * CHAINS;
    l->sum_floats = (int64_t)p->dim * l->value_lanes + l->lanes;
    l->state_floats = 2 * l->sum_floats + (int64_t)KT * (2 * l->lanes + l->value_lanes);
    l->goes_on = g->measured ? !g->backward : g->states->before != NULL;
    const size_t rows = (size_t)(c->B * c->Lq) * (size_t)p->heads,
                 kv_heads = (size_t)c->B * (size_t)p->kv_heads,
                 keys = kv_heads * (size_t)l->key_rows, dim = (size_t)p->dim,
                 value_dim = (size_t)p->value_dim;
#define FLOATS(to, count, each) \
    do { \
        (to) = (int64_t)n.used; \
        carve_bytes(&n, count, (each) * sizeof(float)); \
    } while (0)
    FLOATS(l->q, rows, dim);
    FLOATS(l->k, keys, dim);
    l->q_turned = l->q;
    l->k_turned = l->k;
    if (g->rotated || p->rotate >= 0) {
        FLOATS(l->q_turned, rows, dim);
        FLOATS(l->k_turned, keys, dim);
    }
    FLOATS(l->v, keys, value_dim);
    FLOATS(l->z, keys, dim);
    FLOATS(l->sums, most_sums(g) * (size_t)p->kv_heads, (size_t)l->sum_floats);
    FLOATS(l->states, l->goes_on ? kv_heads : 0, (size_t)l->state_floats);
    if (g->backward) {
        FLOATS(l->g, rows, value_dim);
        FLOATS(l->h, rows, 1);
        FLOATS(l->den, rows, 1);
        FLOATS(l->dq, rows, dim);
        FLOATS(l->dk, keys, dim);
        FLOATS(l->df, keys, dim);
        FLOATS(l->dv, keys, value_dim);
        const bool matrices = g->params.rotation == TURN_MATRICES;
        FLOATS(l->spare, matrices ? (rows > keys ? rows : keys) : 0, dim);
        const int count = g->params.rotation_part < 0 ? 0 : g->params.rotation_count;
        FLOATS(l->query_parts, most_row_tiles(g) * (size_t)p->heads, (size_t)count);
        FLOATS(l->key_parts, most_key_tiles(g) * (size_t)p->kv_heads, (size_t)count);
        g->at.totals = carve_bytes(&a, (size_t)p->kv_heads * (size_t)count, sizeof(double));
    }
#undef FLOATS
    if (n.full) return SIZE_MAX;
    g->at.lists = carve_bytes(&a, g->list_bytes, 1);
    g->at.apart = carve_bytes(&a, n.used, 1);
    return a.full ? SIZE_MAX : a.used;
}

/* ---- Passes ---------------------------------------------------------------------------------- */

/* The rows of a side in the workspace, and its keys without those of a state. */
static struct strides rows_there(const struct gpu_call *g, bool query, int width)
{
    const struct loci_plan *p = g->call.plan;
    return query ? dense(p->heads, g->call.Lq, width)
                 : dense(p->kv_heads, g->linear.key_rows, width);
}
static char *there(const struct gpu_call *g, bool query, int64_t at, int width)
{
    return g->at.apart + at + (query ? 0 : (ptrdiff_t)sizeof(float) * g->linear.carried * width);
}
static loci_status run(const struct gpu_call *g, const char *kernel, int64_t groups, int floats)
{
    return loci_gpu_run(g, PASS_LINEAR, kernel, groups, floats, &g->arrays, &g->params);
}
/* Features of rows or keys; plain: values as they are. */
static loci_status features(const struct gpu_call *g, bool query, bool plain, const loci_view *from,
                            int64_t to, int width)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    struct params k = g->params;
    struct arrays at = g->arrays;
    at.q = from->data;
    at.o = there(g, query, to, width);
    k.q = of_view(*from);
    k.o = rows_there(g, query, width);
    k.q_type = stored_as(p->dtype);
    k.heads = query ? p->heads : p->kv_heads;
    k.q_len = (int32_t)(query ? c->Lq : c->Lk);
    k.dim = width;
    k.plain = plain;
    return loci_gpu_run(g, PASS_LINEAR, "linear_features", c->B * tiles(k.q_len, ROTATED_ROWS), 0,
                        &at, &k);
}
static loci_status turn(const struct gpu_call *g, bool query, bool back, int64_t from, int64_t to)
{
    const struct loci_plan *p = g->call.plan;
    const int dim = p->dim;
    const struct loci_gpu *gpu = g->plan->gpu;
    if (!g->rotated || !(query ? g->call.Lq : g->call.Lk)) return LOCI_OK;
    if (from == to && g->params.rotation == TURN_MATRICES) { /* blocks read what others write */
        TRY(gpu->backend->copy(gpu->state, g->at.apart + g->linear.spare, g->at.apart + from,
                               (size_t)(g->call.B * rows_there(g, query, dim).batch)
                                   * sizeof(float),
                               ON_DEVICE, g->in.error));
        from = g->linear.spare;
    }
    return loci_gpu_turn(g, PASS_LINEAR,
                         (struct turned){ .from = there(g, query, from, dim),
                                          .to = there(g, query, to, dim),
                                          .at = rows_there(g, query, dim),
                                          .at_to = rows_there(g, query, dim),
                                          .heads = query ? p->heads : p->kv_heads,
                                          .dim = dim,
                                          .query = query,
                                          .turns = true,
                                          .back = back });
}
static int64_t row_groups(const struct gpu_call *g) { return g->row_tiles * g->call.plan->heads; }
static int64_t key_groups(const struct gpu_call *g)
{
    return g->key_tiles * g->call.plan->kv_heads;
}
/* One thread for each number of a sum. */
static int64_t sum_groups(const struct gpu_call *g)
{
    const int threads = loci_gpu_threads(g->plan, PASS_LINEAR);
    return g->call.seqs.n * g->call.plan->kv_heads * tiles(g->linear.sum_floats, threads);
}
/* Features, and sums before tiles. */
static loci_status open_pass(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const struct loci_gpu *gpu = g->plan->gpu;
    const struct gpu_linear *l = &g->linear;
    TRY(loci_gpu_upload_lists(g));
    if (l->goes_on)
        TRY(gpu->backend->copy(gpu->state, g->at.apart + l->states, g->states->before + STATE_HEAD,
                               (size_t)(c->B * p->kv_heads * l->state_floats) * sizeof(float),
                               ON_DEVICE, g->in.error));
    TRY(features(g, true, false, &c->q, l->q, p->dim));
    TRY(features(g, false, false, &c->k, l->k, p->dim));
    TRY(features(g, false, true, &c->v, l->v, p->value_dim));
    TRY(turn(g, true, false, l->q, l->q_turned));
    TRY(turn(g, false, false, l->k, l->k_turned));
    if (l->carried) TRY(run(g, "linear_carry", c->B * p->kv_heads, 0));
    TRY(run(g, "linear_tiles", key_groups(g), 0));
    return run(g, "linear_sums", sum_groups(g), 0);
}
/* The head of `after` is 0 until the state is complete. */
static loci_status store_head(const struct gpu_call *g, bool complete)
{
    const struct loci_gpu *gpu = g->plan->gpu;
    const struct call *c = &g->call;
    char head[STATE_HEAD] = { 0 };
    const struct linear_state left =
        loci_linear_head(c->plan, c->B, (int64_t)g->states->keys + c->Lk);
    if (!g->states->after) return LOCI_OK;
    if (complete) memcpy(head, &left, sizeof left);
    return gpu->backend->copy(gpu->state, g->states->after, head, sizeof head, TO_DEVICE,
                              g->in.error);
}
static loci_status forward_pass(struct gpu_call *g)
{
    const struct call *c = &g->call;
    TRY(store_head(g, false));
    if (g->states->after) g->arrays.sums = g->states->after + STATE_HEAD;
    TRY(open_pass(g));
    TRY(run(g, "linear_rows", row_groups(g), linear_room().size));
    if (g->states->after) TRY(run(g, "linear_state", c->B * c->plan->kv_heads, 0));
    return store_head(g, true);
}
/* ---- Gradients of what rotations learn ------------------------------------------------------- */

/* Of places or angles that come with the call, memory of the device; NULL: not wanted. */
static void *wanted_places(const struct gpu_call *g, bool query)
{
    const int given = loci_gpu_places(g, query);
    return given < 0 ? NULL : g->inputs[given];
}
/* Rows as they were before they rotated, or after, and their gradients, for kernels that read q and
 * dq. */
static void read_side(const struct gpu_call *g, bool query, bool turned, struct params *k,
                      struct arrays *at)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const struct gpu_linear *l = &g->linear;
    const struct strides rows = rows_there(g, query, p->dim);
    at->q = g->at.apart + (query ? turned ? l->q_turned : l->q : turned ? l->k_turned : l->k);
    at->dq = g->at.apart + (query ? l->dq : l->dk);
    k->q = k->dq = rows;
    k->q_type = GPU_F32;
    k->q_len = (int32_t)(query ? c->Lq : c->Lk);
    k->where = query ? g->q_where : g->k_where;
    k->counted = loci_gpu_counts_places(g, query);
    k->given = loci_gpu_places(g, query);
    k->keys_side = !query;
    k->scale = 1;
    k->plain = 0;
    if (!query) k->heads = p->kv_heads;
    if (!query) k->used = g->used;
}
/* Of a tile of rows, or of keys. */
static loci_status side_parts(const struct gpu_call *g, bool query)
{
    struct params k = g->params;
    struct arrays at = g->arrays;
    const bool of_input = k.rotation == TURN_WAVES || loci_gpu_places(g, query) >= 0;
    if (k.rotation_part < 0) return LOCI_OK;
    read_side(g, query, !of_input, &k, &at);
    return loci_gpu_run(g, PASS_LINEAR, query ? "linear_query_parts" : "linear_key_parts",
                        query ? row_groups(g) : key_groups(g), loci_gpu_frequency_room(g), &at, &k);
}
static loci_status place_gradients(const struct gpu_call *g, bool query)
{
    const struct call *c = &g->call;
    struct params k = g->params;
    struct arrays at = g->arrays;
    if (!wanted_places(g, query)) return LOCI_OK;
    read_side(g, query, false, &k, &at);
    return loci_gpu_run(g, PASS_LINEAR, "place_gradients", c->B * tiles(k.q_len, ROTATED_ROWS), 0,
                        &at, &k);
}
/* Rows and their gradients go to the host, for what matrices learn. */
static loci_status fetch_side(const struct gpu_call *g, bool query)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const struct loci_gpu *gpu = g->plan->gpu;
    const struct gpu_linear *l = &g->linear;
    const size_t bytes = (size_t)(c->B * rows_there(g, query, p->dim).batch) * sizeof(float);
    if (!g->fetches_rows || !bytes) return LOCI_OK;
    const struct matrices *m = c->mem.scratch[p->use[p->rotate].enc];
    TRY(gpu->backend->copy(gpu->state, m->x[!query], g->at.apart + (query ? l->q : l->k), bytes,
                           FROM_DEVICE, g->in.error));
    return gpu->backend->copy(gpu->state, m->g[!query], g->at.apart + (query ? l->dq : l->dk),
                              bytes, FROM_DEVICE, g->in.error);
}
/* Gradients of rotated features turn back.  Places that come with the call learn from those that
 * have turned, all other numbers from those that have not. */
static loci_status turn_back(const struct gpu_call *g, bool query)
{
    const struct gpu_linear *l = &g->linear;
    const bool given = loci_gpu_places(g, query) >= 0;
    const int64_t rows = query ? l->dq : l->dk;
    if (!given) TRY(side_parts(g, query));
    TRY(fetch_side(g, query));
    TRY(turn(g, query, true, rows, rows));
    if (given) TRY(side_parts(g, query));
    return place_gradients(g, query);
}
static bool learns(const struct gpu_call *g)
{
    bool any = wanted_places(g, true) || wanted_places(g, false);
    for (int i = 0; i < g->call.plan->tensors.n; i++) any |= g->learned[i] != NULL;
    return any;
}
static loci_status fold(struct gpu_call *g)
{
    struct call *c = &g->call;
    const struct loci_gpu *gpu = g->plan->gpu;
    const int count = g->params.rotation_count, kv_heads = c->plan->kv_heads,
              threads = loci_gpu_threads(g->plan, PASS_LINEAR);
    bool any = false;
    for (int i = 0; i < c->plan->tensors.n; i++) any |= g->learned[i] != NULL;
    if (!any) return LOCI_OK;
    if (g->params.rotation_part >= 0) {
        TRY(run(g, "linear_totals", tiles(count, threads) * kv_heads, 0));
        TRY(gpu->backend->copy(gpu->state, c->g.total[c->plan->rotate], g->at.totals,
                               (size_t)(kv_heads * count) * sizeof(double), FROM_DEVICE,
                               g->in.error));
    }
    loci_fold(c, g->learned);
    return LOCI_OK;
}
/* Keys that no row sees, and rows and keys in no sequence, have gradients of 0. */
static loci_status clear_gradients(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const struct loci_gpu *gpu = g->plan->gpu;
    const struct gpu_linear *l = &g->linear;
    TRY(loci_gpu_clear_view(g, c->g.dk.data, of_view(c->g.dk), p->kv_heads, c->Lk, p->dim,
                            p->stored));
    TRY(loci_gpu_clear_view(g, c->g.dv.data, of_view(c->g.dv), p->kv_heads, c->Lk, p->value_dim,
                            p->stored));
    TRY(loci_gpu_clear_inputs(g));
    if (!learns(g)) return LOCI_OK;
    TRY(gpu->backend->clear(gpu->state, g->at.apart + l->dq,
                            (size_t)(c->B * rows_there(g, true, p->dim).batch) * sizeof(float),
                            g->in.error));
    return gpu->backend->clear(gpu->state, g->at.apart + l->dk,
                               (size_t)(c->B * rows_there(g, false, p->dim).batch) * sizeof(float),
                               g->in.error);
}
static loci_status backward_pass(struct gpu_call *g)
{
    const struct call *c = &g->call;
    TRY(clear_gradients(g));
    TRY(open_pass(g));
    TRY(run(g, "linear_cotangents", row_groups(g), linear_room().size));
    TRY(turn_back(g, true));
    if (c->g.dq.data) TRY(run(g, "linear_dq", row_groups(g), 0));
    if (c->g.dk.data || c->g.dv.data || learns(g)) {
        TRY(run(g, "linear_df", key_groups(g), 0));
        TRY(run(g, "linear_behind", sum_groups(g), 0));
        TRY(run(g, "linear_keys", key_groups(g), linear_room().size));
        TRY(turn_back(g, false));
        TRY(run(g, "linear_dk", key_groups(g), 0));
    }
    return fold(g);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

loci_status loci_gpu_linear_forward(const loci_gpu_plan *plan, const loci_gpu_tables *tables,
                                    void *work, const loci_call *call, const void *before,
                                    void *after)
{
    struct gpu_call g;
    loci_call in;
    if (!plan || !call) return LOCI_BAD_ARG;
    const struct loci_plan *p = plan->plan;
    const struct loci_gpu *gpu = plan->gpu;
    struct linear_state head = { 0 };
    TRY(loci_copy_call(&in, wants_sizes(p), call));
    CHECK(in.error, is_linear(p), LOCI_BAD_ARG, "the plan must be one for stage LINEAR_ATTENTION");
    if (before && (uintptr_t)before % STATE_HEAD == 0)
        TRY(gpu->backend->copy(gpu->state, &head, before, sizeof head, FROM_DEVICE, in.error));
    TRY(loci_linear_check_states(p, &in, before, after, &head));
    struct linear_states states = { before, after, (ptrdiff_t)head.keys, { 0 } };
    loci_linear_add_states(&states.memory, p, &in, before, after);
    loci_status status = loci_gpu_open_linear(&g, plan, tables, work, call, NULL, &states);
    if (!status) status = g.lists ? forward_pass(&g) : store_head(&g, true);
    loci_gpu_close_call(&g);
    return status;
}
loci_status loci_gpu_linear_backward(const loci_gpu_plan *plan, const loci_gpu_tables *tables,
                                     void *work, const loci_call *call, const loci_grad *given)
{
    struct gpu_call g;
    loci_call in;
    loci_grad grad;
    const struct linear_states none = { 0 };
    if (!plan || !call) return LOCI_BAD_ARG;
    TRY(loci_copy_call(&in, wants_sizes(plan->plan), call));
    TRY(loci_copy_grad(&grad, &in, wants_sizes(plan->plan), given));
    loci_status status = loci_gpu_open_linear(&g, plan, tables, work, call, &grad, &none);
    if (!status && g.lists) status = backward_pass(&g);
    loci_gpu_close_call(&g);
    return status;
}
