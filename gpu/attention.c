/* SPDX-License-Identifier: MIT */
/* attention.c -- the passes of a call: which kernels run, one after the other. */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "kernels/rooms.h"
#include "layout/band_k.h"
#include "layout/blocks.h"
#include "layout/factor.h"
#include "layout/fourier.h"
#include "layout/matrices.h"
#include "layout/ranged_pairs.h"
#include "layout/reflect.h"

static size_t room(int floats) { return (size_t)floats * sizeof(float); }

loci_status loci_gpu_run(const struct gpu_call *g, enum pass pass, const char *kernel,
                         int64_t groups, int floats, const struct arrays *arrays,
                         const struct params *params)
{
    loci_gpu *gpu = g->plan->gpu;
    loci_error *e = g->in.error;
    struct program *program;
    if (groups == 0) return LOCI_OK;
    CHECK(e, groups <= INT32_MAX, LOCI_UNSUPPORTED,
          "the call needs %lld groups of threads, more than a launch can have", (long long)groups);
    CHECK(e, room(floats) <= gpu->facts.shared, LOCI_UNSUPPORTED,
          "%s has %zu bytes of shared memory for a group, but dim %d needs %zu", gpu->facts.name,
          gpu->facts.shared, g->params.dim, room(floats));
    TRY(loci_gpu_program(gpu, pass, g->plan, &g->params, g->use, &program, e));
    return gpu->backend->launch(gpu->state, program,
                                &(struct launch){ .kernel = kernel,
                                                  .groups = { (int)groups, 1 },
                                                  .threads = loci_gpu_threads(g->plan, pass),
                                                  .shared = room(floats) + !floats * 16,
                                                  .arrays = arrays,
                                                  .params = params },
                                e);
}

/* Floats of shared memory of a forward pass with this many rows. */
static int forward_floats(const struct gpu_call *g, int rows)
{
    const struct params *p = &g->params;
    return forward_room(rows, p->dim, p->value_dim, p->roomy).size
         + (p->scan < 0 ? 0 : scan_room(rows)) + loci_gpu_moves_room(g->call.plan, rows);
}
static bool is_polar(const struct gpu_call *g)
{
    const struct loci_plan *p = g->call.plan;
    return p->rotate >= 0 && p->use[p->rotate].term == TERM_polar;
}
static char *input_of_call(const struct gpu_call *g, int n)
{
    const struct arrays *at = &g->arrays;
    return n == 0 ? at->in0 : n == 1 ? at->in1 : at->in2;
}
int32_t loci_gpu_places(const struct gpu_call *g, bool query)
{
    const struct loci_plan *p = g->call.plan;
    const int e = p->rotate < 0 ? 0 : p->use[p->rotate].enc,
              tensors = p->first_tensor[e + 1] - p->first_tensor[e];
    if (p->rotate < 0 || !loci_gpu_given(p->use[p->rotate].term)) return -1;
    return loci_gpu_input_number(p, e, tensors - (query ? 2 : 1));
}
/* Do gradients turn back before they are finished?  Those of places that come with the call are
 * made of them. */
static bool turns_back(const struct gpu_call *g)
{
    const int query = loci_gpu_places(g, true), key = loci_gpu_places(g, false);
    return g->backward && query >= 0
        && (g->params.rotation_part >= 0 || g->inputs[query] || g->inputs[key]);
}
/* Do those of values?  What a rotation learns from them is made of gradients that have. */
static bool turns_values_back(const struct gpu_call *g)
{
    return g->at.v && g->arrays.dv && (g->params.rotation_part >= 0 || turns_back(g));
}
bool loci_gpu_counts_places(const struct gpu_call *g, bool query)
{
    const struct where *w = &g->call.where;
    return query ? !w->q_pos && !g->in.q_coord : !w->k_pos && !w->k_coord;
}
/* Floats of rotate_rows: cos and sin of angles, then those of pairs, or rows in their basis. */
static int rotation_room(const struct gpu_call *g, int dim)
{
    const struct loci_plan *p = g->call.plan;
    const void *layout = p->rotate < 0 ? NULL : layout_of(p, p->rotate);
    if (g->params.rotation == TURN_WAVES)
        return 2 * ROTATED_ROWS * ((const struct fourier *)layout)->waves + ROTATED_ROWS * dim;
    if (g->params.rotation == TURN_BASES) return 4 * ROTATED_ROWS * blocks_pairs(layout);
    return ROTATED_ROWS * dim;
}
int loci_gpu_frequency_room(const struct gpu_call *g)
{
    const struct loci_plan *p = g->call.plan;
    if (g->params.rotation == TURN_WAVES) return rotation_room(g, 0);
    return g->params.rotation == TURN_BASES ? 3 * KEYS * blocks_width(layout_of(p, p->rotate))
                                            : KEYS;
}
loci_status loci_gpu_turn(const struct gpu_call *g, enum pass pass, struct turned t)
{
    const struct call *c = &g->call;
    struct params p = g->params;
    struct arrays at = g->arrays;
    const ptrdiff_t rows = t.query ? c->Lq : c->Lk;
    at.q = (char *)(uintptr_t)t.from;
    at.o = t.to;
    p.q = t.at;
    p.o = t.at_to;
    p.q_type = t.type;
    p.o_type = t.to_type;
    p.heads = t.heads;
    p.q_len = (int32_t)rows;
    p.dim = t.dim;
    p.where = t.query ? g->q_where : g->k_where;
    p.counted = loci_gpu_counts_places(g, t.query);
    p.back = t.back;
    p.finish = t.finish;
    p.factors = t.factors && t.finish ? p.q_factor : -1;
    p.q_paged = !t.query && g->in.pages;
    if ((t.back || p.q_paged) && !t.query) p.used = g->used;
    if (t.query && t.plain) p.used = g->used_rows;
    p.keys_side = !t.query;
    p.plain = t.plain;
    p.adds = t.adds;
    p.given = t.turns ? loci_gpu_places(g, t.query) : -1;
    if (p.rotation == TURN_RANGES) {
        const struct ranged_pairs *r = layout_of(c->plan, c->plan->rotate);
        const struct range_place place = range_place(r, t.query, t.form, 0);
        p.counted = 0;
        p.where += (int64_t)sizeof(double) * t.form * c->B * rows;
        p.form_leaks = place.leaks;
        p.form_twice = t.query && t.form && range_place(r, false, t.form, 0).still;
        if (place.still) t.turns = false;
    }
    if (c->plan->states) p.kv_heads = t.heads;
    if (t.turns && c->plan->states) {
        p.given = loci_gpu_states(c->plan, t.query);
        p.vector_share = t.query ? 1 : c->plan->group;
        return loci_gpu_run(g, pass, "state_rows", c->B * tiles(rows, ROTATED_ROWS), 0, &at, &p);
    }
    if (!t.turns) p.pairs = -1;
    if (t.turns && is_polar(g)) {
        const loci_view *given = t.query ? &c->q : &c->k; /* rows that gradients go back to */
        at.v = given->data;
        p.v = of_view(*given);
        p.v_type = stored_as(c->plan->dtype);
        return loci_gpu_run(g, pass, "polar_rows", c->B * tiles(rows, ROTATED_ROWS),
                            ROTATED_ROWS * (2 * t.dim + 1), &at, &p);
    }
    return loci_gpu_run(g, pass, "rotate_rows", c->B * tiles(rows, ROTATED_ROWS),
                        rotation_room(g, t.dim), &at, &p);
}
/* In a backward pass they are scaled, and multiplied by their factors, if wanted. */
static loci_status rotate_queries(const struct gpu_call *g, enum pass pass, bool factors)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    return loci_gpu_turn(g, pass,
                         (struct turned){ .from = c->q.data,
                                          .to = g->at.q,
                                          .at = of_view(c->q),
                                          .at_to = dense(p->heads, c->Lq, p->score_dim),
                                          .type = stored_as(p->dtype),
                                          .heads = p->heads,
                                          .dim = p->dim,
                                          .query = true,
                                          .turns = g->rotated,
                                          .finish = g->backward,
                                          .factors = factors });
}
/* Keys, or their gradients, in place. */
static loci_status fade_keys(const struct gpu_call *g, enum pass pass, char *keys)
{
    const struct loci_plan *p = g->call.plan;
    struct params k = g->params;
    struct arrays at = g->arrays;
    if (!k.fades || !keys) return LOCI_OK;
    at.k = keys;
    k.k = dense(p->kv_heads, g->call.Lk, p->score_dim);
    return loci_gpu_run(g, pass, "fade_keys", (int64_t)k.ktiles * p->kv_heads, 0, &at, &k);
}
/* Bytes from form to form of rows of q, of keys, and of their gradients. */
static ptrdiff_t form_bytes(const struct gpu_call *g, bool query)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    return c->B * (query ? p->heads * c->Lq : p->kv_heads * c->Lk) * p->score_dim
         * (ptrdiff_t)sizeof(float);
}
/* Gradients of all forms turn back, and their sum is in place of the first. */
static loci_status join_forms(const struct gpu_call *g, enum pass pass, bool query)
{
    const struct loci_plan *p = g->call.plan;
    char *first = query ? g->arrays.dq : g->arrays.dk;
    const int forms = query ? p->row_forms : p->keys_rotated ? 0 : p->key_forms;
    for (int form = 0; form < forms && first && p->row_forms > 1; form++)
        TRY(loci_gpu_turn(g, pass,
                          (struct turned){ .from = first + form * form_bytes(g, query),
                                           .to = first,
                                           .at = query ? g->params.dq : g->params.dk,
                                           .at_to = query ? g->params.dq : g->params.dk,
                                           .heads = query ? p->heads : p->kv_heads,
                                           .dim = p->dim,
                                           .form = form,
                                           .adds = form > 0 ? ADDS_TO_SUM : ADDS_NOTHING,
                                           .query = query,
                                           .turns = true,
                                           .back = true }));
    return LOCI_OK;
}
/* Rows or keys in all their forms. */
static loci_status rotate_forms(const struct gpu_call *g, enum pass pass, bool query, bool factors)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const loci_view *from = query ? &c->q : &c->k;
    const int heads = query ? p->heads : p->kv_heads;
    for (int form = 0; form < (query ? p->row_forms : p->key_forms); form++)
        TRY(loci_gpu_turn(g, pass,
                          (struct turned){
                              .from = from->data,
                              .to = (query ? g->at.q : g->at.k) + form * form_bytes(g, query),
                              .at = of_view(*from),
                              .at_to = dense(heads, query ? c->Lq : c->Lk, p->score_dim),
                              .type = stored_as(query ? p->dtype : p->k_dtype),
                              .heads = heads,
                              .dim = p->dim,
                              .form = form,
                              .query = query,
                              .turns = true,
                              .finish = query && g->backward,
                              .factors = factors }));
    return LOCI_OK;
}
static loci_status rotate_inputs(const struct gpu_call *g, enum pass pass)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    if (!g->at.q) return LOCI_OK;
    if (p->row_forms > 1) {
        TRY(rotate_forms(g, pass, true, true));
        return g->at.k ? rotate_forms(g, pass, false, false) : LOCI_OK;
    }
    TRY(rotate_queries(g, pass, true));
    if (g->at.v)
        TRY(loci_gpu_turn(g, pass,
                          (struct turned){ .from = c->v.data,
                                           .to = g->at.v,
                                           .at = of_view(c->v),
                                           .at_to = dense(p->kv_heads, c->Lk, p->value_dim),
                                           .type = stored_as(p->v_dtype),
                                           .heads = p->kv_heads,
                                           .dim = p->value_dim,
                                           .turns = true,
                                           .plain = true }));
    /* values of a group once for each of its heads */
    for (int i = 0; i < p->group && g->at.head_values; i++) {
        const ptrdiff_t head = c->Lk * p->value_dim;
        TRY(loci_gpu_turn(g, pass,
                          (struct turned){
                              .from = c->v.data,
                              .to = g->at.head_values + i * head * (ptrdiff_t)sizeof(float),
                              .at = of_view(c->v),
                              .at_to = { p->heads * head, p->group * head, p->value_dim },
                              .type = stored_as(p->v_dtype),
                              .heads = p->kv_heads,
                              .dim = p->value_dim,
                              .plain = true }));
    }
    if (!g->at.k) return LOCI_OK;
    TRY(loci_gpu_turn(g, pass,
                      (struct turned){ .from = c->k.data,
                                       .to = g->at.k,
                                       .at = of_view(c->k),
                                       .at_to = g->params.k,
                                       .type = stored_as(p->k_dtype),
                                       .heads = g->params.kv_heads,
                                       .dim = p->dim,
                                       .turns = !p->keys_rotated }));
    return fade_keys(g, pass, g->at.k);
}
/* Outputs turn back by the angles of their rows; gradients of outputs turn as values do. */
static loci_status turn_outputs(const struct gpu_call *g, enum pass pass)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const bool back = !g->backward;
    const loci_view *given = back ? &c->o : &c->g.dout; /* the other ones are in the workspace */
    const struct strides turned = dense(p->heads, c->Lq, p->value_dim);
    const int32_t type = stored_as(p->dtype);
    if (!g->at.o || !given->data) return LOCI_OK;
    return loci_gpu_turn(g, pass,
                         (struct turned){ .from = back ? g->at.o : given->data,
                                          .to = back ? given->data : g->at.o,
                                          .at = back ? turned : of_view(*given),
                                          .at_to = back ? of_view(*given) : turned,
                                          .type = back ? GPU_F32 : type,
                                          .to_type = back ? type : GPU_F32,
                                          .heads = p->heads,
                                          .dim = p->value_dim,
                                          .query = true,
                                          .turns = true,
                                          .back = back,
                                          .plain = true });
}
/* Factors of rows that see what a mask leaves.  u: the use among those of the kernels, if it is not
 * folded into rows of q. */
static loci_status count_keys(const struct gpu_call *g, int x, int u)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const int e = p->use[x].enc;
    struct params k = g->params;
    k.where = g->counts[x];
    if (!factor_folds(p, x)) {
        k.q_factor = g->use[u].table;
        k.factor_rows = g->backward ? g->use[u].rows : -1;
    }
    k.pairs =
        factor_learned(p, e) ? (const char *)c->table[e] - (const char *)c->table[0] + ALIGN : -1;
    k.vector_rows = g->backward ? TILE_ROWS : k.rows;
    return loci_gpu_run(g, PASS_VECTORS, "count_keys", (int64_t)k.tiles * p->heads,
                        COUNTED_ROWS * loci_gpu_threads(g->plan, PASS_VECTORS), &g->arrays, &k);
}
loci_status loci_gpu_upload_lists(const struct gpu_call *g)
{
    const struct loci_gpu *gpu = g->plan->gpu;
    TRY(gpu->backend->copy(gpu->state, g->at.lists, g->lists, g->list_bytes, TO_DEVICE,
                           g->in.error));
    for (int x = 0, u; x < g->call.plan->uses; x++) {
        if (!loci_gpu_counts(g, x)) continue;
        for (u = 0; u < g->params.uses && g->plan_use[u] != x;) u++;
        TRY(count_keys(g, x, u));
    }
    return LOCI_OK;
}
/* Programs differ by whether they have the kernels for gates and for gradients of inputs. */
static enum pass pass_of(const struct gpu_call *g)
{
    const bool gates = g->params.gates >= 0 || is_polar(g) || g->params.fades
                    || g->call.plan->moves >= 0 || g->params.mix >= 0 || g->call.plan->states;
    if (!g->backward) return gates ? PASS_FORWARD_GATES : PASS_FORWARD;
    const bool more = gates || g->key_sums || g->row_sums || loci_gpu_gives_gates(g)
                   || g->params.stick >= 0 || g->params.rotation_part >= 0 || turns_back(g);
    return more ? PASS_BACKWARD_INPUTS : PASS_BACKWARD;
}
static loci_status sum_gates(const struct gpu_call *g, enum pass pass)
{
    const struct params *p = &g->params;
    if (p->listed && g->call.plan->moves >= 0)
        TRY(loci_gpu_run(g, pass, "find_newest", (int64_t)p->tiles * p->heads, 0, &g->arrays, p));
    if (fades_rows(g->call.plan)) {
        TRY(loci_gpu_run(g, pass, "stage_keys", (int64_t)p->ktiles * p->heads, 0, &g->arrays, p));
        TRY(loci_gpu_run(g, pass, "walk_rows", (int64_t)p->tiles * p->heads, 0, &g->arrays, p));
    }
    for (int u = 0; u < p->uses; u++) {
        struct params k = *p;
        if (g->use[u].term != GPU_GATE) continue;
        k.vector_use = u;
        k.vector_rows = g->backward ? TILE_ROWS : p->rows;
        TRY(loci_gpu_run(g, pass, "sum_gates", (int64_t)p->sequences * p->heads, 0, &g->arrays,
                         &k));
        if (p->listed)
            TRY(loci_gpu_run(g, pass, "sum_seen_gates", (int64_t)p->tiles * p->heads, 0, &g->arrays,
                             &k));
    }
    return LOCI_OK;
}
/* What rows read that keys reflect: of tiles, then of larger nodes. */
static loci_status reflect_keys(const struct gpu_call *g, enum pass pass)
{
    struct params p = g->params;
    const int64_t groups = (int64_t)p.ktiles * p.kv_heads;
    if (!reflects_rows(g->call.plan)) return LOCI_OK;
    TRY(loci_gpu_run(g, pass, "reflect_tiles", groups, reflect_room_size(p.dim), &g->arrays, &p));
    for (p.form = 0; p.form < LEVELS; p.form++)
        TRY(loci_gpu_run(g, pass, "reflect_nodes", groups, 0, &g->arrays, &p));
    return LOCI_OK;
}

/* What passes back over them read: rows at the ends of their nodes. */
static loci_status walk_reflected(const struct gpu_call *g, enum pass pass)
{
    const struct params *p = &g->params;
    if (!reflects_rows(g->call.plan)) return LOCI_OK;
    return loci_gpu_run(g, pass, "reflect_rows", (int64_t)p->tiles * p->heads,
                        reflected_room(p->rows, p->dim).size, &g->arrays, p);
}
/* After these passes: sums over their rows. */
static loci_status sum_reflected(const struct gpu_call *g, enum pass pass)
{
    const struct params *p = &g->params;
    const int64_t groups = (int64_t)p->ktiles * p->kv_heads;
    if (!reflects_rows(g->call.plan) || !g->arrays.dk) return LOCI_OK;
    TRY(loci_gpu_run(g, pass, "sum_own_tiles", groups, own_room_size(), &g->arrays, p));
    return loci_gpu_run(g, pass, "sum_matrices", groups * tiles(p->dim, KEYS),
                        matrix_room_size(p->dim), &g->arrays, p);
}
/* And from nodes to their children, down to the keys. */
static loci_status unreflect_keys(const struct gpu_call *g, enum pass pass)
{
    struct params p = g->params;
    const int64_t groups = (int64_t)p.ktiles * p.kv_heads;
    if (!reflects_rows(g->call.plan) || !g->arrays.dk) return LOCI_OK;
    for (p.form = LEVELS; p.form > 0; p.form--)
        TRY(loci_gpu_run(g, pass, "unreflect_nodes", groups, KEYS * p.dim, &g->arrays, &p));
    return loci_gpu_run(g, pass, "unreflect_tiles", groups, unreflect_room_size(p.dim), &g->arrays,
                        &g->params);
}

/* Products of rows of q and of keys with vectors, for the terms that look them up. */
static loci_status multiply_vectors(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    for (int u = 0; u < g->params.uses; u++) {
        const int32_t term = g->use[u].term;
        const bool query = term == GPU_ROW_VECTORS || term == GPU_SCAN;
        struct params k = g->params;
        struct arrays at = g->arrays;
        if (!is_of_vectors(term)) continue;
        k.vector_use = u;
        k.vector_share = query ? 1 : k.heads / k.kv_heads;
        k.vector_rows = g->backward ? TILE_ROWS : k.rows;
        k.vector_scale = g->backward ? 1 : k.scale; /* backward, rows are scaled already */
        if (g->backward) k.q_factor = -1;
        if (term == GPU_ROLL) {
            TRY(loci_gpu_run(g, PASS_VECTORS, "roll_numbers", (int64_t)k.tiles * p->heads,
                             VECTOR_ROWS * k.dim, &at, &k));
            continue;
        }
        if (!query) {
            at.q = at.k;
            k.q = k.k;
            k.q_type = k.k_type;
            k.q_paged = k.k_paged;
            k.q_len = k.k_len;
            k.q_factor = -1;
            k.vector_scale = 1;
            if (k.q_paged) k.used = g->used;
        }
        const ptrdiff_t rows = query ? c->Lq : c->Lk;
        TRY(loci_gpu_run(g, PASS_VECTORS, "vector_numbers",
                         c->B * tiles(rows, VECTOR_ROWS) * p->heads, VECTOR_ROWS * k.dim, &at, &k));
        if (!k.values || !query || g->use[u].values_at < 0 || !g->backward) continue;
        at.q = at.dout; /* the vectors of values, with dO */
        k.q = k.dout;
        k.q_type = k.o_type;
        k.vector_values = 1;
        TRY(loci_gpu_run(g, PASS_VECTORS, "vector_numbers",
                         c->B * tiles(rows, VECTOR_ROWS) * p->heads, VECTOR_ROWS * k.value_dim, &at,
                         &k));
    }
    return LOCI_OK;
}

/* Tiles that the rows of a sequence may see, of the sequence that has the most. */
static int64_t most_seen(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct params *p = &g->params;
    int64_t seen = 0;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        int64_t n = tiles(q->nk, KEYS);
        if (q->run && !q->segments && p->hi < INT32_MAX && p->lo > -INT32_MAX) {
            const int64_t window = (p->hi - p->lo + q->nq) / KEYS + 2;
            if (window < n) n = window > 0 ? window : 0;
        }
        if (n > seen) seen = n;
    }
    return seen;
}
/* Few rows: kernels/decode.h. */
static loci_status decode(struct gpu_call *g)
{
    struct params *p = &g->params;
    const int64_t seen = most_seen(g), sides = (int64_t)p->sequences * p->kv_heads * p->lane_parts;
    const int64_t enough = 32 * (int64_t)g->plan->gpu->facts.units, each = seen * sides / enough;
    p->part_tiles = each < 1 ? 1 : each > 8 ? 8 : (int32_t)each;
    const int64_t groups = tiles(seen, p->part_tiles) * sides;
    const int floats = decode_room(p->lanes, p->dim, p->value_dim).size;
    /* The program with the kernels that run before these: PASS_DECODE has rotate_rows alone. */
    const enum pass pass = pass_of(g) == PASS_FORWARD_GATES ? PASS_FORWARD_GATES : PASS_DECODE;
    TRY(loci_gpu_upload_lists(g));
    TRY(rotate_inputs(g, pass));
    TRY(multiply_vectors(g));
    TRY(sum_gates(g, pass));
    TRY(loci_gpu_run(g, PASS_DECODE, "decode_scores", groups, floats, &g->arrays, p));
    TRY(loci_gpu_run(g, PASS_DECODE, "decode_values", groups, floats, &g->arrays, p));
    TRY(loci_gpu_run(g, PASS_DECODE, "decode_join",
                     (int64_t)p->sequences * p->q_len * p->heads * tiles(p->value_dim, JOIN_WIDTH),
                     join_room().size, &g->arrays, p));
    return turn_outputs(g, pass);
}
/* A strip of the rows of a call whose heads mix, whose scores `forward` makes, or takes. */
static struct gpu_call strip_of(const struct gpu_call *g, int i, bool takes)
{
    struct gpu_call s = *g;
    s.params.mix += (int64_t)sizeof(struct gpu_mix) * (2 * i + takes);
    memcpy(&s.mix, g->lists + s.params.mix, sizeof s.mix);
    s.params.tiles = s.mix.first + s.mix.tiles;
    return s;
}
static int64_t tiles_of_rows(const struct gpu_call *g)
{
    return g->params.mix < 0 ? g->params.tiles : g->mix.tiles;
}
static loci_status run_rows(const struct gpu_call *g, enum pass pass, const char *kernel,
                            int floats)
{
    return loci_gpu_run(g, pass, kernel, tiles_of_rows(g) * g->params.heads, floats, &g->arrays,
                        &g->params);
}
static loci_status run_pairs(const struct gpu_call *g, enum pass pass, const char *kernel,
                             int floats)
{
    return loci_gpu_run(g, pass, kernel, (int64_t)g->mix.tiles * g->mix.ktiles, floats, &g->arrays,
                        &g->params);
}
/* Mixed scores of a strip, of which this is the call that makes scores. */
static loci_status mix_scores(const struct gpu_call *g, enum pass pass)
{
    TRY(run_rows(g, pass, "forward", forward_floats(g, g->params.rows)));
    return run_pairs(g, pass, "mix_pairs",
                     mix_room(g->params.heads, loci_gpu_threads(g->plan, pass)));
}
static loci_status forward_rows(const struct gpu_call *g, enum pass pass)
{
    const int floats = forward_floats(g, g->params.rows);
    if (g->params.mix < 0) return run_rows(g, pass, "forward", floats);
    for (int i = 0; i < g->strips; i++) {
        const struct gpu_call makes = strip_of(g, i, false), takes = strip_of(g, i, true);
        TRY(mix_scores(&makes, pass));
        TRY(run_rows(&takes, pass, "forward", floats));
    }
    return LOCI_OK;
}
/* ae of tape: states of keys in place of values.  What is left of a stick is for none of them.  It
 * comes before outputs, whose pass leaves sums in place of products with vectors. */
static loci_status average_states(const struct gpu_call *g, enum pass pass)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    struct gpu_call s = *g;
    struct params *k = &s.params;
    struct arrays *at = &s.arrays;
    if (!g->in.ae) return LOCI_OK;
    at->v = input_of_call(g, loci_gpu_states(p, false));
    at->o = g->in.ae;
    at->lse = NULL;
    k->wide = k->wide && (uintptr_t)at->v % 16 == 0;
    k->v = dense(p->heads, c->Lk, p->dim);
    k->o = dense(p->heads, c->Lq, p->dim);
    k->v_type = k->o_type = GPU_F32;
    k->value_dim = p->dim;
    k->v_paged = k->values = 0;
    k->plain = 1;
    if (k->stick >= 0) k->stick += (int64_t)sizeof(struct gpu_stick);
    return forward_rows(&s, pass);
}
static loci_status forward_pass(struct gpu_call *g)
{
    if (g->decode) return decode(g);
    const enum pass pass = pass_of(g);
    TRY(loci_gpu_upload_lists(g));
    TRY(rotate_inputs(g, pass));
    TRY(multiply_vectors(g));
    TRY(sum_gates(g, pass));
    TRY(reflect_keys(g, pass));
    TRY(average_states(g, pass));
    TRY(forward_rows(g, pass));
    return turn_outputs(g, pass);
}
loci_status loci_gpu_forward(const loci_gpu_plan *plan, const loci_gpu_tables *tables, void *work,
                             const loci_call *call)
{
    struct gpu_call g;
    if (!plan || !call) return LOCI_BAD_ARG;
    loci_status status = loci_gpu_open_call(&g, plan, tables, work, call, NULL);
    if (!status && g.lists) status = forward_pass(&g);
    loci_gpu_close_call(&g);
    return status;
}

/* ---- Caches ---------------------------------------------------------------------------------- */

/* Rows to where a list of moves says. */
struct stored {
    const void *from;
    void *to;
    struct strides at, at_to;
    int32_t type, to_type, heads;
    int dim;
    int64_t moves;
    bool finish; /* channels are multiplied once more */
};
static loci_status store(const struct gpu_call *g, struct stored s)
{
    struct params p = g->params;
    struct arrays at = g->arrays;
    at.q = (char *)(uintptr_t)s.from;
    at.o = s.to;
    p.q = s.at;
    p.o = s.at_to;
    p.q_type = s.type;
    p.o_type = s.to_type;
    p.heads = s.heads;
    p.q_len = (int32_t)g->call.Lk;
    p.dim = s.dim;
    p.where = s.moves;
    p.finish = s.finish;
    return loci_gpu_run(g, PASS_CACHE, "store_rows", g->call.B * tiles(g->call.Lk, ROTATED_ROWS), 0,
                        &at, &p);
}
/* Keys or values of a cache.  A place counts the rows of all heads of the pages before. */
static struct strides strides_there(int64_t width)
{
    return (struct strides){ 0, KT * width, width };
}
static int64_t place_there(const struct loci_cache *c, ptrdiff_t b, ptrdiff_t at)
{
    const ptrdiff_t count = (ptrdiff_t)c->form.tiles, slot = at / KT % count;
    return (cache_owner(c, b, slot) * count + slot) * (int64_t)c->form.kv_heads * KT + at % KT;
}
static loci_status turn_side(const struct gpu_call *g, bool keys, const void *from,
                             struct strides at, int32_t type)
{
    const struct loci_plan *p = g->call.plan;
    return loci_gpu_turn(g, PASS_CACHE,
                         (struct turned){ .from = from,
                                          .to = keys ? g->at.k : g->at.v,
                                          .at = at,
                                          .at_to = dense(p->kv_heads, g->call.Lk,
                                                         keys ? key_dim(p) : p->value_dim),
                                          .type = type,
                                          .heads = p->kv_heads,
                                          .dim = keys ? p->dim : p->value_dim,
                                          .turns = true,
                                          .plain = !keys });
}
/* Of an append. */
static loci_status store_side(const struct gpu_call *g, bool keys)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const struct loci_cache *to = g->update.to;
    const loci_view *given = keys ? &c->k : &c->v;
    char *turned = keys ? g->at.k : g->at.v;
    const int width = (int)(keys ? to->form.dim : to->form.value_dim);
    const struct strides dense_rows = dense(p->kv_heads, c->Lk, width);
    if (turned) TRY(turn_side(g, keys, given->data, of_view(*given), stored_as(p->dtype)));
    return store(g, (struct stored){ .from = turned ? turned : given->data,
                                     .to = cache_there_at(to, keys ? to->keys : to->values),
                                     .at = turned ? dense_rows : of_view(*given),
                                     .at_to = strides_there(width),
                                     .type = turned ? GPU_F32 : stored_as(p->dtype),
                                     .to_type = stored_as(keys ? p->k_dtype : p->v_dtype),
                                     .heads = p->kv_heads,
                                     .dim = width,
                                     .moves = g->moves });
}
static loci_status store_input(const struct gpu_call *g, int tensor)
{
    const struct loci_cache *to = g->update.to;
    const struct cache_input *in = &to->input[tensor];
    const int heads = (int)in->outer, width = (int)in->inner;
    if (!in->at) return LOCI_OK;
    return store(g, (struct stored){ .from = g->given.tensors[tensor],
                                     .to = cache_there_at(to, in->at),
                                     .at = dense(heads, g->call.Lk, width),
                                     .at_to = dense(heads, cache_capacity(to), width),
                                     .heads = heads,
                                     .dim = width,
                                     .moves = g->input_moves });
}
/* Where new keys go: in pages, and in inputs by key. */
static void fill_moves(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_cache *to = g->update.to;
    struct row_move *move = (struct row_move *)(g->lists + g->moves),
                    *input = (struct row_move *)(g->lists + g->input_moves);
    for (ptrdiff_t b = 0; b < c->B; b++) {
        const ptrdiff_t old = (ptrdiff_t)cache_list(to, to->len)[b],
                        before = c->Lk - (ptrdiff_t)cache_appended(&g->given, b);
        for (ptrdiff_t j = 0; j < c->Lk; j++, move++, input++) {
            const ptrdiff_t at = old + j - before;
            move->from = input->from = j;
            move->to = input->to = -1;
            if (j < before) continue;
            move->to = place_there(to, b, at);
            input->to = at;
        }
    }
}
loci_status loci_gpu_store_rows(struct gpu_call *g)
{
    fill_moves(g);
    TRY(loci_gpu_upload_lists(g));
    TRY(store_side(g, true));
    if (!g->call.plan->values_in_keys) TRY(store_side(g, false));
    for (int i = 0; i < g->call.plan->tensors.n; i++) TRY(store_input(g, i));
    return LOCI_OK;
}

/* Keys, or values, of a removal: to the workspace and back, rotated again if they turn. */
static loci_status move_side(const struct gpu_call *g, bool keys)
{
    const struct loci_plan *p = g->call.plan;
    const struct cache_update *a = &g->update;
    const bool turns = a->rotate && (keys || p->turns_values);
    const int32_t stored = stored_as(keys ? p->k_dtype : p->v_dtype),
                  type = turns ? GPU_F32 : stored;
    const int width = (int)(keys ? a->to->form.dim : a->to->form.value_dim);
    char *there = cache_there_at(a->to, keys ? a->to->keys : a->to->values), *rows = g->at.q;
    const struct strides at = dense(p->kv_heads, g->call.Lk, width);
    struct stored s = { .from = there,
                        .to = rows,
                        .at = strides_there(width),
                        .at_to = at,
                        .type = stored,
                        .to_type = type,
                        .heads = p->kv_heads,
                        .dim = width,
                        .moves = g->moves };
    TRY(store(g, s));
    if (turns) {
        TRY(turn_side(g, keys, rows, at, GPU_F32));
        rows = keys ? g->at.k : g->at.v;
    }
    s = (struct stored){ .from = rows,
                         .to = there,
                         .at = at,
                         .at_to = strides_there(width),
                         .type = type,
                         .to_type = stored,
                         .heads = p->kv_heads,
                         .dim = width,
                         .moves = g->moves + MOVED_ROWS * (int64_t)sizeof(struct row_move),
                         .finish = keys && a->channels > 0 };
    return store(g, s);
}
static loci_status move_input(const struct gpu_call *g, int tensor)
{
    const struct loci_cache *to = g->update.to;
    const struct cache_input *in = &to->input[tensor];
    const int heads = (int)in->outer, width = (int)in->inner;
    char *there = cache_there_at(to, in->at
                                         + g->update.entry * in->outer * cache_capacity(to) * width
                                               * (ptrdiff_t)sizeof(float));
    const struct strides at = dense(heads, g->call.Lk, width),
                         at_there = dense(heads, cache_capacity(to), width);
    if (!in->at) return LOCI_OK;
    struct stored s = { .from = there,
                        .to = g->at.q,
                        .at = at_there,
                        .at_to = at,
                        .heads = heads,
                        .dim = width,
                        .moves = g->input_moves };
    TRY(store(g, s));
    s = (struct stored){ .from = g->at.q,
                         .to = there,
                         .at = at,
                         .at_to = at_there,
                         .heads = heads,
                         .dim = width,
                         .moves = g->input_moves + MOVED_ROWS * (int64_t)sizeof(struct row_move) };
    return store(g, s);
}
loci_status loci_gpu_move_rows(struct gpu_call *g)
{
    const struct cache_update *a = &g->update;
    struct row_move *move = (struct row_move *)(g->lists + g->moves),
                    *input = (struct row_move *)(g->lists + g->input_moves);
    struct gpu_turn *turn = (struct gpu_turn *)(g->lists + g->params.turn);
    const ptrdiff_t end = (ptrdiff_t)cache_list(a->to, a->to->len)[a->entry] - a->count;
    turn->undo = (float)a->undo;
    turn->undo_from = a->channel;
    turn->undo_count = a->channels;
    for (ptrdiff_t first = a->first; first < end; first += MOVED_ROWS) {
        for (ptrdiff_t i = 0; i < MOVED_ROWS; i++) {
            const ptrdiff_t at = first + i, from = at + a->count;
            const bool moves = at < end;
            move[i] =
                (struct row_move){ moves ? place_there(a->to, a->entry, from) : 0, moves ? i : -1 };
            move[MOVED_ROWS + i] =
                (struct row_move){ i, moves ? place_there(a->to, a->entry, at) : -1 };
            input[i] = (struct row_move){ from, moves ? i : -1 };
            input[MOVED_ROWS + i] = (struct row_move){ i, moves ? at : -1 };
        }
        TRY(loci_gpu_upload_lists(g));
        TRY(move_side(g, true));
        if (!g->call.plan->values_in_keys) TRY(move_side(g, false));
        for (int i = 0; i < g->call.plan->tensors.n; i++) TRY(move_input(g, i));
    }
    return LOCI_OK;
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* Gradients of rows that states have turned, and those of the states. */
static loci_status unturn_states(const struct gpu_call *g, bool query)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    struct params k = g->params;
    struct arrays at = g->arrays;
    const loci_view *rows = query ? &c->q : &c->k, *to = query ? &c->g.dq : &c->g.dk;
    const int given = loci_gpu_states(p, query);
    at.q = query ? g->at.dq : g->at.dk;
    at.v = rows->data;
    at.o = to->data;
    at.din0 = g->inputs[given];
    at.sums = !query && at.weights ? g->at.states : NULL;
    if (!at.o && !at.din0) return LOCI_OK;
    k.v = of_view(*rows);
    k.v_type = k.o_type = stored_as(p->dtype);
    k.o = of_view(*to);
    k.heads = query ? p->heads : p->kv_heads;
    k.vector_share = query ? 1 : p->group;
    k.dim = p->dim;
    k.q_len = (int32_t)(query ? c->Lq : c->Lk);
    k.given = given;
    k.finish = query;
    if (!query) k.used = g->used;
    if (!query && p->keys_rotated) k.pairs = -1;
    return loci_gpu_run(g, pass_of(g), "unturn_states", c->B * tiles(k.q_len, ROTATED_ROWS), 0, &at,
                        &k);
}
/* Sums of gradients become the caller's: rotated back, multiplied by the scale, rounded. */
static loci_status finish_gradients(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const struct params *k = &g->params;
    const int32_t type = stored_as(p->dtype);
    if (p->states) {
        TRY(unturn_states(g, true));
        TRY(unturn_states(g, false));
    }
    if (g->at.dq && c->g.dq.data && !p->states)
        TRY(loci_gpu_turn(g, pass_of(g),
                          (struct turned){ .from = g->at.dq,
                                           .to = c->g.dq.data,
                                           .at = k->dq,
                                           .at_to = of_view(c->g.dq),
                                           .to_type = type,
                                           .heads = p->heads,
                                           .dim = p->dim,
                                           .query = true,
                                           .turns =
                                               g->rotated && !turns_back(g) && p->row_forms == 1,
                                           .back = true,
                                           .finish = true }));
    if (g->at.dk && c->g.dk.data && !p->states)
        TRY(loci_gpu_turn(g, pass_of(g),
                          (struct turned){ .from = g->at.dk,
                                           .to = c->g.dk.data,
                                           .at = k->dk,
                                           .at_to = of_view(c->g.dk),
                                           .to_type = type,
                                           .heads = p->kv_heads,
                                           .dim = g->at.k ? p->dim : key_dim(p),
                                           .adds = fades_rows(p) && p->group > 1 ? ADDS_ZERO
                                                                                 : ADDS_NOTHING,
                                           .turns = g->at.k && !p->keys_rotated && !turns_back(g)
                                                 && p->row_forms == 1,
                                           .back = true }));
    if (g->at.dv && c->g.dv.data)
        TRY(loci_gpu_turn(g, pass_of(g),
                          (struct turned){ .from = g->at.dv,
                                           .to = c->g.dv.data,
                                           .at = k->dv,
                                           .at_to = of_view(c->g.dv),
                                           .to_type = type,
                                           .heads = p->kv_heads,
                                           .dim = p->value_dim,
                                           .turns = g->at.v && !turns_values_back(g),
                                           .back = g->at.v && !turns_values_back(g),
                                           .plain = true }));
    return LOCI_OK;
}
/* In as few pieces as its strides allow. */
loci_status loci_gpu_clear_view(const struct gpu_call *g, char *at, struct strides s, int heads,
                                ptrdiff_t rows, int width, size_t each)
{
    const struct loci_gpu *gpu = g->plan->gpu;
    struct {
        ptrdiff_t count;
        int64_t stride;
    } by[] = { { g->call.B, s.batch }, { heads, s.head }, { rows, s.row } };
    int64_t piece = width;
    for (int i = COUNT(by) - 1; i >= 0 && by[i].stride == piece; i--) {
        piece *= by[i].count;
        by[i].count = 1;
    }
    for (ptrdiff_t b = 0; b < by[0].count && at; b++)
        for (ptrdiff_t h = 0; h < by[1].count; h++)
            for (ptrdiff_t r = 0; r < by[2].count; r++)
                TRY(gpu->backend->clear(gpu->state,
                                        at + (b * s.batch + h * s.head + r * s.row) * (int64_t)each,
                                        (size_t)piece * each, g->in.error));
    return LOCI_OK;
}
/* Rows without keys, and keys without rows, may be in no tile: their gradient is 0. */
static loci_status clear_sums(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const struct params *k = &g->params;
    const struct arrays *at = &g->arrays;
    TRY(loci_gpu_clear_view(g, at->dmask, k->dmask, p->heads, c->Lq, (int)c->Lk, sizeof(float)));
    if (!packed(c) && !g->in.k_lens && c->Lq && !g->fetches_rows && k->mix < 0) return LOCI_OK;
    TRY(loci_gpu_clear_view(g, at->dq, k->dq, p->heads, c->Lq, k->dim, sizeof(float)));
    for (int form = 0; form < p->key_forms && at->dk; form++)
        TRY(loci_gpu_clear_view(g, at->dk + form * form_bytes(g, false), k->dk, k->kv_heads, c->Lk,
                                k->dim, sizeof(float)));
    TRY(loci_gpu_clear_view(g, at->dv, k->dv, p->kv_heads, c->Lk, k->value_dim, sizeof(float)));
    if (g->at.dk)
        TRY(loci_gpu_clear_view(g, c->g.dk.data, of_view(c->g.dk), p->kv_heads, c->Lk, key_dim(p),
                                p->stored));
    if (g->at.dv)
        TRY(loci_gpu_clear_view(g, c->g.dv.data, of_view(c->g.dv), p->kv_heads, c->Lk, k->value_dim,
                                p->stored));
    return LOCI_OK;
}
/* Totals of a term with vectors: numbers of a head that parts have, and those that none has. */
static void divide_totals(struct gpu_call *g, int u, const double *totals)
{
    const struct loci_plan *p = g->call.plan;
    const struct gpu_use *use = &g->use[u];
    const int x = g->plan_use[u], parts = g->params.parts;
    const ptrdiff_t all = loci_gpu_total(&g->call, x), each = all / p->heads,
                    ends = use->term == GPU_KEY_VECTORS ? 0 : each - use->count;
    double *to = g->call.g.total[x];
    memset(to, 0, (size_t)all * sizeof *to);
    if (use->term == GPU_ROW_VECTORS || use->term == GPU_SCAN) {
        memcpy(to, totals + use->direct, (size_t)all * sizeof *to);
        return;
    }
    for (int h = 0; h < p->heads; h++) {
        double *head = to + h * each;
        memcpy(head + ends, totals + h * parts + use->part, (size_t)use->count * sizeof *to);
        if (use->direct >= 0)
            memcpy(head + (ends ? 0 : use->count), totals + use->direct + h * (each - use->count),
                   (size_t)(each - use->count) * sizeof *to);
    }
}
/* Sums of what is learned, from the device to the totals of the terms. */
static loci_status fetch_totals(struct gpu_call *g, double *totals)
{
    const struct params *k = &g->params;
    const struct loci_gpu *gpu = g->plan->gpu;
    const struct loci_plan *p = g->call.plan;
    const size_t count = (size_t)(k->heads * k->parts + g->direct);
    if (count)
        TRY(gpu->backend->copy(gpu->state, totals, g->at.totals, count * sizeof(double),
                               FROM_DEVICE, g->in.error));
    for (int u = 0; u < k->uses; u++)
        if (is_of_vectors(g->use[u].term) && g->call.g.total[g->plan_use[u]])
            divide_totals(g, u, totals);
    for (int x = 0, n; x < p->uses; x++) {
        int32_t term;
        if (!g->call.g.total[x] || (loci_gpu_term_of(p->use[x].term, &term) && is_of_vectors(term)))
            continue;
        const int from = loci_gpu_part_of(g, x, &n), step = x == p->rotate ? p->group : 1;
        for (int h = 0; h < k->heads / step; h++)
            for (int i = 0; i < n; i++)
                g->call.g.total[x][h * n + i] = totals[h * step * k->parts + from + i];
    }
    return LOCI_OK;
}
loci_status loci_gpu_clear_inputs(const struct gpu_call *g)
{
    const struct loci_gpu *gpu = g->plan->gpu;
    const struct call *c = &g->call;
    const struct tensors *t = &c->plan->tensors;
    for (int i = 0, n = 0; i < t->n; i++) {
        if (t->list[i].role != LOCI_INPUT) continue;
        void *to = g->inputs[n++];
        if (to) TRY(gpu->backend->clear(gpu->state, to, loci_gpu_input_bytes(c, i), g->in.error));
    }
    return LOCI_OK;
}
/* Sums by key and by row begin at 0, and so do gradients of inputs in no sequence. */
static loci_status clear_apart(const struct gpu_call *g)
{
    const struct loci_gpu *gpu = g->plan->gpu;
    if (g->ds_bytes)
        TRY(gpu->backend->clear(gpu->state, g->at.vectors + g->ds_from, g->ds_bytes, g->in.error));
    if (g->cleared) TRY(gpu->backend->clear(gpu->state, g->at.apart, g->cleared, g->in.error));
    return loci_gpu_clear_inputs(g);
}
/* Rows of q once more, as they were before they were multiplied. */
static loci_status finish_factors(const struct gpu_call *g, enum pass pass)
{
    const struct params *p = &g->params;
    if (p->factor_part < 0 && (p->rotation_part < 0 || p->q_factor < 0)) return LOCI_OK;
    const int forms = g->call.plan->row_forms;
    if (forms > 1) TRY(rotate_forms(g, pass, true, false));
    else TRY(rotate_queries(g, pass, false));
    for (int form = 0; form < forms && p->factor_part >= 0; form++) {
        struct params k = *p;
        struct arrays at = g->arrays;
        at.q += form * form_bytes(g, true);
        at.dq += form * form_bytes(g, true);
        k.factor_part += form * FACTOR_PARTS;
        TRY(loci_gpu_run(g, pass, "finish_factors", (int64_t)k.tiles * k.heads, 0, &at, &k));
    }
    return LOCI_OK;
}
/* Of a side: its rows before they are rotated. */
static void read_rows(const struct gpu_call *g, bool query, struct params *p, struct arrays *at)
{
    const struct call *c = &g->call;
    at->q = query ? c->q.data : c->k.data;
    p->q = of_view(query ? c->q : c->k);
    p->q_type = stored_as(c->plan->dtype);
    if (query) p->scale = g->params.scale;
}
/* What turns as rows do, or keys, and its gradient: dO and outputs, whose turn has the sides
 * exchanged, or values.  False: nothing does, or no gradient is wanted. */
static bool read_values(const struct gpu_call *g, bool query, struct params *p, struct arrays *at)
{
    const struct call *c = &g->call;
    const loci_view *x = query ? &c->g.dout : &c->v;
    if (query ? !g->at.o || !x->data : !turns_values_back(g)) return false;
    at->v = x->data;
    at->dv = query ? c->o.data : g->at.dv;
    p->v = of_view(*x);
    p->v_type = stored_as(query ? c->plan->dtype : c->plan->v_dtype);
    if (query) p->dv = of_view(c->o);
    p->o_type = query ? stored_as(c->plan->dtype) : GPU_F32;
    return true;
}
/* What learned frequencies get from them, before that of rows or keys. */
static loci_status value_frequencies(const struct gpu_call *g, enum pass pass, bool query,
                                     struct params *p, struct arrays at)
{
    struct params k = *p;
    if (!read_values(g, query, &k, &at)) return LOCI_OK;
    at.q = at.v;
    at.dq = at.dv;
    k.q = k.v;
    k.q_type = k.v_type;
    k.dq = k.dv;
    k.scale = 1;
    if (query)
        return loci_gpu_run(g, pass, "query_frequencies", (int64_t)k.tiles * k.heads,
                            loci_gpu_frequency_room(g), &at, &k);
    p->adds = ADDS_TO_SUM;
    return loci_gpu_run(g, pass, "key_frequencies", (int64_t)k.ktiles * k.kv_heads,
                        loci_gpu_frequency_room(g), &at, &k);
}
/* Rows as a rotation by places that come with the call reads them, before they are rotated, and
 * gradients after they have turned back. */
static loci_status turn_back(const struct gpu_call *g, enum pass pass, bool query, struct params *p,
                             struct arrays *at)
{
    const struct call *c = &g->call;
    void *d = query ? g->at.dq : g->at.dk;
    const int heads = query ? p->heads : p->kv_heads;
    read_rows(g, query, p, at);
    p->heads = heads;
    if (!query) p->used = g->used;
    TRY(loci_gpu_turn(g, pass,
                      (struct turned){ .from = d,
                                       .to = d,
                                       .at = p->dq,
                                       .at_to = p->dq,
                                       .heads = heads,
                                       .dim = c->plan->dim,
                                       .query = query,
                                       .turns = true,
                                       .back = true }));
    p->given = loci_gpu_places(g, query);
    if (!g->inputs[p->given]) return LOCI_OK;
    struct params k = *p;
    struct arrays all = *at;
    k.plain = read_values(g, query, &k, &all);
    return loci_gpu_run(g, pass, "place_gradients", c->B * tiles(k.q_len, ROTATED_ROWS), 0, &all,
                        &k);
}
/* Gradients of values turn back in place. */
static loci_status turn_back_values(const struct gpu_call *g, enum pass pass)
{
    const struct loci_plan *p = g->call.plan;
    const struct strides at = g->params.dv;
    if (!turns_values_back(g)) return LOCI_OK;
    return loci_gpu_turn(g, pass,
                         (struct turned){ .from = g->at.dv,
                                          .to = g->at.dv,
                                          .at = at,
                                          .at_to = at,
                                          .heads = p->kv_heads,
                                          .dim = p->value_dim,
                                          .turns = true,
                                          .back = true,
                                          .plain = true });
}
/* Rows before they are rotated, and their gradients, for the host. */
static loci_status fetch_rows(const struct gpu_call *g, enum pass pass, bool query)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const struct loci_gpu *gpu = g->plan->gpu;
    const struct matrices *m = c->mem.scratch[p->use[p->rotate].enc];
    char *rows = query ? g->at.q : g->at.k, *d = query ? g->at.dq : g->at.dk;
    const int heads = query ? p->heads : p->kv_heads;
    const ptrdiff_t length = query ? c->Lq : c->Lk;
    const size_t bytes = (size_t)(c->B * heads * length * p->dim) * sizeof(float);
    if (!rows || !bytes) return LOCI_OK;
    TRY(loci_gpu_turn(g, pass,
                      (struct turned){ .from = query ? c->q.data : c->k.data,
                                       .to = rows,
                                       .at = of_view(query ? c->q : c->k),
                                       .at_to = dense(heads, length, p->dim),
                                       .type = stored_as(p->dtype),
                                       .heads = heads,
                                       .dim = p->dim,
                                       .query = query,
                                       .finish = query }));
    TRY(gpu->backend->copy(gpu->state, m->x[!query], rows, bytes, FROM_DEVICE, g->in.error));
    return gpu->backend->copy(gpu->state, m->g[!query], d, bytes, FROM_DEVICE, g->in.error);
}
/* Of tiles of rows or of keys in all their forms.  Keys that stay as they are add nothing, nor do
 * those that come rotated. */
static loci_status form_frequencies(const struct gpu_call *g, enum pass pass, bool query)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const struct loci_gpu *gpu = g->plan->gpu;
    const ptrdiff_t rows = query ? c->Lq : c->Lk;
    if (g->params.rotation_part < 0 || (!query && !g->at.k)) return LOCI_OK;
    if (!query)
        TRY(gpu->backend->clear(gpu->state, g->at.apart + g->params.by_tile,
                                (size_t)g->params.ktiles * (size_t)(p->kv_heads * p->key_forms)
                                    * (size_t)g->params.rotation_count * sizeof(float),
                                g->in.error));
    for (int form = 0; form < (query ? p->row_forms : p->key_forms); form++) {
        const struct range_place place = range_place(layout_of(p, p->rotate), query, form, 0);
        struct params k = g->params;
        struct arrays at = g->arrays;
        if (place.still) continue;
        at.q = (query ? g->at.q : g->at.k) + form * form_bytes(g, query);
        at.dq = (query ? g->at.dq : g->at.dk) + form * form_bytes(g, query);
        if (!query) k.q = k.k;
        if (!query) k.dq = k.dk;
        k.q_type = k.o_type = GPU_F32;
        k.q_len = (int32_t)rows;
        k.where = (query ? g->q_where : g->k_where) + (int64_t)sizeof(double) * form * c->B * rows;
        k.counted = 0;
        k.given = -1;
        k.scale = 1;
        k.form = form;
        k.form_leaks = place.leaks;
        k.keys_side = !query;
        if (query) k.rotation_part += form * k.rotation_count;
        TRY(loci_gpu_run(g, pass, query ? "query_frequencies" : "key_frequencies",
                         query ? (int64_t)k.tiles * k.heads : (int64_t)k.ktiles * k.kv_heads,
                         loci_gpu_frequency_room(g), &at, &k));
    }
    return LOCI_OK;
}
/* Of tiles of rows and of keys. */
static loci_status frequency_gradients(const struct gpu_call *g, enum pass pass)
{
    const struct call *c = &g->call;
    struct params p = g->params;
    struct arrays at = g->arrays;
    const bool given = turns_back(g), learns = p.rotation_part >= 0, polar = is_polar(g),
               waves = p.rotation == TURN_WAVES;
    if (g->fetches_rows) {
        TRY(fetch_rows(g, pass, true));
        return fetch_rows(g, pass, false);
    }
    if (p.rotation == TURN_RANGES) {
        TRY(form_frequencies(g, pass, true));
        return form_frequencies(g, pass, false);
    }
    if (!learns && !given) return LOCI_OK;
    p.given = -1;
    p.where = g->q_where;
    p.counted = loci_gpu_counts_places(g, true);
    p.scale = 1;
    p.o_type = GPU_F32;
    if (waves) read_rows(g, true, &p, &at);
    if (given) TRY(turn_back(g, pass, true, &p, &at));
    if (learns) TRY(value_frequencies(g, pass, true, &p, at));
    if (c->plan->turns_values) p.rotation_part += p.rotation_count; /* after those of outputs */
    if (learns && !polar)
        TRY(loci_gpu_run(g, pass, "query_frequencies", (int64_t)p.tiles * p.heads,
                         loci_gpu_frequency_room(g), &at, &p));
    if (!g->at.k) return LOCI_OK;
    if (polar) {
        at.v = c->k.data;
        p.v = of_view(c->k);
        p.v_type = stored_as(c->plan->dtype);
    }
    at.q = at.k;
    at.dq = at.dk;
    p.q = p.k;
    p.q_type = GPU_F32;
    p.dq = p.dk;
    p.q_len = (int32_t)c->Lk;
    p.where = g->k_where;
    p.counted = loci_gpu_counts_places(g, false);
    p.scale = 1;
    if (waves) read_rows(g, false, &p, &at);
    TRY(turn_back_values(g, pass));
    if (given) TRY(turn_back(g, pass, false, &p, &at));
    if (!learns) return LOCI_OK;
    TRY(value_frequencies(g, pass, false, &p, at));
    return loci_gpu_run(g, pass, polar ? "key_phases" : "key_frequencies",
                        (int64_t)p.ktiles * p.kv_heads, loci_gpu_frequency_room(g), &at, &p);
}
/* Floats of shared memory that backward passes over sticks, scans and rows that move have besides.
 */
static int walk_room(const struct gpu_call *g)
{
    const struct params *p = &g->params;
    return (p->stick < 0 ? 0 : STICK_ROOM) + (p->scan < 0 ? 0 : scan_room(TILE_ROWS))
         + (fades_rows(g->call.plan) ? carry_room(TILE_ROWS, p->dim) : 0);
}
/* Side by side: what a view has, then numbers of states. */
static loci_status join_states(const struct gpu_call *g, enum pass pass, bool query, char *to)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const struct params *k = &g->params;
    const int width = FOURS(p->value_dim) + p->dim;
    const ptrdiff_t rows = query ? c->Lq : c->Lk;
    const struct strides at_to = dense(p->heads, rows, width);
    const struct loci_gpu *gpu = g->plan->gpu;
    struct turned t = { .from = query ? g->arrays.dout : g->arrays.v,
                        .to = to,
                        .at = query ? k->dout : k->v,
                        .at_to = at_to,
                        .type = query ? k->o_type : k->v_type,
                        .heads = p->heads,
                        .dim = p->value_dim,
                        .query = query,
                        .plain = true };
    TRY(gpu->backend->clear(gpu->state, to, (size_t)(c->B * at_to.batch) * sizeof(float),
                            g->in.error));
    if (t.from) TRY(loci_gpu_turn(g, pass, t));
    t.from = query ? g->arrays.weights : input_of_call(g, loci_gpu_states(p, false));
    t.to = to + FOURS(p->value_dim) * sizeof(float);
    t.at = dense(p->heads, rows, p->dim);
    t.type = GPU_F32;
    t.dim = p->dim;
    return loci_gpu_turn(g, pass, t);
}
/* For passes that need dp: with ae, values and states are one row. */
static struct gpu_call with_states(const struct gpu_call *g)
{
    const struct call *c = &g->call;
    const int width = FOURS(c->plan->value_dim) + c->plan->dim;
    struct gpu_call s = *g;
    if (!c->plan->states || !g->arrays.weights) return s;
    s.arrays.v = g->at.wide_v;
    s.arrays.dout = g->at.wide_dout;
    s.params.v = dense(c->plan->heads, c->Lk, width);
    s.params.dout = dense(c->plan->heads, c->Lq, width);
    s.params.v_type = s.params.o_type = GPU_F32;
    s.params.value_dim = width;
    s.params.v_paged = 0;
    s.params.wide = s.params.wide && width % 4 == 0;
    return s;
}
static loci_status sum_inputs(const struct gpu_call *narrow, enum pass pass)
{
    const struct gpu_call s = with_states(narrow), *g = &s;
    const struct params *p = &g->params;
    if (!g->key_sums) return LOCI_OK;
    return loci_gpu_run(g, pass, "backward_inputs", (int64_t)p->ktiles * p->heads,
                        inputs_room(p->dim, p->value_dim, p->roomy).size + walk_room(g), &g->arrays,
                        p);
}
static loci_status input_gradients(const struct gpu_call *g, enum pass pass)
{
    const struct params *p = &g->params;
    bool any = false;
    for (int i = 0; i < GPU_INPUTS; i++) any |= g->inputs[i] != NULL;
    if (!any) return LOCI_OK;
    if (p->mix < 0) TRY(sum_inputs(g, pass)); /* else strips have done so */
    return loci_gpu_run(g, pass, "store_inputs", (int64_t)p->sequences * p->heads, 0, &g->arrays,
                        p);
}
static bool learns(const struct gpu_call *g)
{
    bool any = false;
    for (int i = 0; i < g->call.plan->tensors.n; i++) any |= g->learned[i] != NULL;
    return any;
}
/* From ds to dq, then to what is learned. */
static loci_status finish_vectors(const struct gpu_call *g)
{
    struct params k = g->params;
    for (k.vector_use = 0; k.vector_use < k.uses; k.vector_use++)
        if (g->use[k.vector_use].term == GPU_ROW_VECTORS || g->use[k.vector_use].term == GPU_SCAN)
            TRY(loci_gpu_run(g, PASS_VECTORS_BACK, "finish_row_vectors", (int64_t)k.tiles * k.heads,
                             0, &g->arrays, &k));
        else if (g->use[k.vector_use].term == GPU_ROLL) {
            TRY(loci_gpu_run(g, PASS_VECTORS_BACK, "list_roll_blocks", (int64_t)k.tiles * k.heads,
                             0, &g->arrays, &k));
            TRY(loci_gpu_run(g, PASS_VECTORS_BACK, "roll_rows", (int64_t)k.tiles * k.heads,
                             TILE_ROWS * k.dim, &g->arrays, &k));
        }
    return LOCI_OK;
}
static loci_status vector_totals(const struct gpu_call *g)
{
    struct params k = g->params;
    const int threads = loci_gpu_threads(g->plan, PASS_VECTORS_BACK);
    for (k.vector_use = 0; k.vector_use < k.uses; k.vector_use++) {
        const struct gpu_use *u = &g->use[k.vector_use];
        if (!is_of_vectors(u->term) || u->direct < 0) continue;
        const int64_t each = (int64_t)u->vectors * (int)vectors_padded(k.dim);
        if (u->term == GPU_ROW_VECTORS || u->term == GPU_SCAN) {
            const int64_t tables = u->term == GPU_SCAN
                                     ? loci_gpu_total(&g->call, g->plan_use[k.vector_use]) / each
                                 : u->vectors_head ? k.heads
                                                   : 1;
            TRY(loci_gpu_run(g, PASS_VECTORS_BACK, "row_vector_totals",
                             tiles(each, threads) * tables, 0, &g->arrays, &k));
        }
        if (u->term == GPU_ROW_VECTORS && u->values_at >= 0) {
            struct params v = k;
            v.vector_values = 1;
            TRY(loci_gpu_run(g, PASS_VECTORS_BACK, "row_vector_totals",
                             tiles((int64_t)u->vectors * (int)vectors_padded(k.value_dim), threads)
                                 * (u->vectors_head ? k.heads : 1),
                             0, &g->arrays, &v));
        }
        if (u->term == GPU_KEY_VECTORS && k.key_parts >= 0)
            TRY(loci_gpu_run(g, PASS_VECTORS_BACK, "key_vector_pairs",
                             (int64_t)g->items * k.heads * k.chunks, 0, &g->arrays, &k));
        if (u->term == GPU_KEY_VECTORS)
            TRY(loci_gpu_run(g, PASS_VECTORS_BACK, "key_vector_totals",
                             tiles((int64_t)k.dim * u->columns, threads) * k.heads, 0, &g->arrays,
                             &k));
        if (u->term == GPU_ROLL) {
            TRY(loci_gpu_run(g, PASS_VECTORS_BACK, "roll_parts", g->roll_blocks * k.heads, 0,
                             &g->arrays, &k));
            TRY(loci_gpu_run(g, PASS_VECTORS_BACK, "roll_totals",
                             tiles((int64_t)k.dim * u->columns, threads) * k.heads, 0, &g->arrays,
                             &k));
        }
    }
    return LOCI_OK;
}
static loci_status pass_over_keys(const struct gpu_call *g, enum pass pass);
/* dk of each head, then the gradient of states, then dv, which heads that share keys sum together.
 */
static loci_status pass_over_states(const struct gpu_call *g, enum pass pass)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const int n = loci_gpu_states(p, false);
    struct gpu_call s = with_states(g);
    s.passes_states = true;
    s.arrays.dv = NULL;
    TRY(pass_over_keys(&s, pass));
    s = *g;
    s.passes_states = true;
    s.arrays.dk = NULL;
    s.arrays.v = c->v.data;
    s.params.kv_heads = p->kv_heads;
    s.params.v = of_view(c->v);
    s.params.v_type = stored_as(p->v_dtype);
    s.params.wide = 0;
    TRY(pass_over_keys(&s, pass));
    if (!g->arrays.weights || !g->inputs[n]) return LOCI_OK;
    s.params.kv_heads = p->heads;
    s.arrays.dv = g->at.states;
    s.arrays.v = input_of_call(g, n);
    s.arrays.dout = g->arrays.weights;
    s.params.v = s.params.dv = dense(p->heads, c->Lk, p->dim);
    s.params.dout = dense(p->heads, c->Lq, p->dim);
    s.params.v_type = s.params.o_type = GPU_F32;
    s.params.value_dim = p->dim;
    s.params.adds = ADDS_DOUBLES;
    return pass_over_keys(&s, pass);
}
static loci_status pass_over_keys(const struct gpu_call *g, enum pass pass)
{
    const struct params *p = &g->params;
    if (g->call.plan->states && !g->passes_states) return pass_over_states(g, pass);
    if (p->mix >= 0 && fades_rows(g->call.plan) && g->arrays.dk && g->arrays.dv) {
        struct gpu_call one = *g; /* their sums have different orders */
        one.arrays.dk = NULL;
        TRY(pass_over_keys(&one, pass));
        one.arrays.dk = g->arrays.dk;
        one.arrays.dv = NULL;
        return pass_over_keys(&one, pass);
    }
    for (int form = 0; form < g->call.plan->key_forms; form++) {
        struct params k = *p;
        struct arrays at = g->arrays;
        k.form = form;
        if (form) at.dv = NULL;
        if (form && at.dk) at.dk += form * form_bytes(g, false);
        if (at.dk || at.dv)
            TRY(loci_gpu_run(g, pass, "backward_keys", (int64_t)p->ktiles * p->kv_heads,
                             keys_room(p->dim, p->value_dim, p->roomy).size + walk_room(g), &at,
                             &k));
    }
    if (!loci_gpu_gives_gates(g)) return LOCI_OK;
    struct params k = *p;
    struct arrays at = g->arrays;
    k.adds = ADDS_GATES;
    k.dk = dense(p->kv_heads, g->call.Lk, p->dim);
    at.dk = at.apart + g->use[p->scan].gate_sums;
    at.dv = NULL;
    return loci_gpu_run(g, pass, "backward_keys", (int64_t)p->ktiles * p->kv_heads,
                        keys_room(p->dim, p->value_dim, p->roomy).size + walk_room(g), &at, &k);
}
static loci_status pass_over_rows(const struct gpu_call *narrow, enum pass pass)
{
    const struct gpu_call s = with_states(narrow), *g = &s;
    const struct params *p = &g->params;
    for (int form = 0; form < g->call.plan->row_forms; form++) {
        struct params k = *p;
        struct arrays at = g->arrays;
        k.form = form;
        if (form) { /* the first form has summed all but dq */
            at.dmask = NULL;
            k.parts = 0;
            if (at.dq) at.dq += form * form_bytes(g, true);
        }
        const bool first = g->direct || p->stick >= 0 || p->scan >= 0 || p->mix >= 0;
        if (at.dq || k.parts || at.dmask || (first && !form))
            TRY(loci_gpu_run(g, pass, "backward_rows", tiles_of_rows(g) * p->heads,
                             rows_room(p->dim, p->value_dim, p->roomy).size + walk_room(g)
                                 + (reflects_rows(g->call.plan) ? walk_room_size(TILE_ROWS, p->dim)
                                                                : 0),
                             &at, &k));
    }
    return LOCI_OK;
}
/* For a forward pass without outputs, over rows that have been multiplied. */
static struct gpu_call without_outputs(const struct gpu_call *g)
{
    struct gpu_call s = *g;
    s.params.q_factor = -1;
    s.params.values = 0;
    s.arrays.o = NULL;
    return s;
}
/* What rows carry to each tile of keys. */
static loci_status keep_carries(const struct gpu_call *g)
{
    const struct gpu_call s = without_outputs(g);
    return run_rows(&s, PASS_FORWARD_GATES, "forward", forward_floats(g, s.params.rows));
}
/* Strips from the latest rows to the earliest: mixed scores, their gradients, those of scores and
 * biases, then all else. */
static loci_status mixed_passes(const struct gpu_call *g, enum pass pass)
{
    const struct params *p = &g->params;
    for (int i = g->strips - 1; i >= 0; i--) {
        const struct gpu_call all = without_outputs(g), makes = strip_of(&all, i, false),
                              takes = strip_of(g, i, true);
        TRY(mix_scores(&makes, PASS_FORWARD_GATES));
        if (p->stick >= 0) TRY(keep_carries(&takes));
        const struct gpu_call wide = with_states(&takes);
        TRY(run_rows(&wide, pass, "grade_rows",
                     rows_room(p->dim, wide.params.value_dim, p->roomy).size + walk_room(g)));
        TRY(run_pairs(&takes, pass, "unmix_pairs", unmix_room(p->heads * (g->mix.biased ? 2 : 1))));
        if (g->mix.part >= 0) TRY(run_rows(&takes, pass, "add_mixed", 0));
        TRY(pass_over_rows(&takes, pass));
        TRY(pass_over_keys(&takes, pass));
        TRY(sum_reflected(&takes, pass));
        TRY(sum_inputs(&takes, pass));
    }
    return LOCI_OK;
}
/* From outputs and dO, or of sticks from dO that may have turned, which is float then. */
static loci_status sum_rows(const struct gpu_call *g, enum pass pass)
{
    const struct call *c = &g->call;
    struct params p = g->params;
    if (p.stick < 0) p.o_type = stored_as(c->plan->dtype);
    return loci_gpu_run(g, pass, "row_sums",
                        tiles(c->B * c->Lq, loci_gpu_threads(g->plan, pass)) * p.heads, 0,
                        &g->arrays, &p);
}
/* Keys whose values get what is left. */
static loci_status heir_values(const struct gpu_call *g, enum pass pass)
{
    struct params p = g->params;
    p.kv_heads = g->call.plan->kv_heads;
    if (g->stick.heir != HEIR_VALUE || !g->arrays.dv || !g->arrays.dout) return LOCI_OK;
    return loci_gpu_run(g, pass, "heir_values",
                        (int64_t)p.batch * p.kv_heads * tiles(p.k_len, KEYS), 0, &g->arrays, &p);
}
static loci_status backward_pass(struct gpu_call *g)
{
    const struct call *c = &g->call;
    const struct params *p = &g->params;
    const enum pass pass = pass_of(g);
    const int threads = loci_gpu_threads(g->plan, pass);
    const bool stick = p->stick >= 0;
    TRY(loci_gpu_upload_lists(g));
    TRY(rotate_inputs(g, pass));
    TRY(multiply_vectors(g));
    TRY(sum_gates(g, pass));
    TRY(clear_sums(g));
    TRY(clear_apart(g));
    TRY(reflect_keys(g, pass));
    TRY(walk_reflected(g, pass));
    if (!stick) TRY(sum_rows(g, pass));
    TRY(turn_outputs(g, pass));
    if (g->at.o && g->arrays.dout) {
        g->arrays.dout = g->at.o;
        g->params.dout = dense(p->heads, c->Lq, p->value_dim);
    }
    if (stick) TRY(sum_rows(g, pass)); /* its rows read dO as it has turned */
    if (g->arrays.weights) {
        const struct loci_gpu *gpu = g->plan->gpu;
        TRY(join_states(g, pass, false, g->at.wide_v));
        TRY(join_states(g, pass, true, g->at.wide_dout));
        TRY(gpu->backend->clear(gpu->state, g->at.states,
                                (size_t)(c->B * p->heads * c->Lk * p->dim) * sizeof(double),
                                g->in.error));
    }
    const bool carries = stick || p->scan >= 0,
               rows_first = carries || c->plan->moves >= 0; /* keys read what rows leave */
    if (p->mix >= 0) {
        TRY(mixed_passes(g, pass));
    } else {
        if (carries) TRY(keep_carries(g));
        if (rows_first) TRY(pass_over_rows(g, pass));
        TRY(pass_over_keys(g, pass));
        if (!rows_first) TRY(pass_over_rows(g, pass));
        TRY(sum_reflected(g, pass));
    }
    TRY(unreflect_keys(g, pass));
    if (fades_rows(c->plan) && g->arrays.dk)
        TRY(loci_gpu_run(g, pass, "unstage_keys", (int64_t)p->ktiles * p->kv_heads, 0, &g->arrays,
                         p));
    if (stick) TRY(heir_values(g, pass));
    TRY(input_gradients(g, pass)); /* before products with vectors and rows of q are others */
    TRY(finish_vectors(g));
    TRY(vector_totals(g));
    TRY(finish_factors(g, pass));
    if (g->arrays.dk) TRY(fade_keys(g, pass, g->at.dk));
    TRY(frequency_gradients(g, pass));
    TRY(join_forms(g, pass, true));
    TRY(join_forms(g, pass, false));
    TRY(finish_gradients(g));
    if (!learns(g)) return LOCI_OK;
    TRY(loci_gpu_run(g, pass, "add_parts", tiles(p->parts, threads) * p->heads, 0, &g->arrays, p));
    if (p->rotation_part >= 0) {
        struct params k = *p;
        k.form = c->plan->turns_values ? 2 : c->plan->row_forms;
        TRY(loci_gpu_run(g, pass, "add_frequencies", tiles(k.rotation_count, threads) * k.kv_heads,
                         0, &g->arrays, &k));
    }
    double *totals = malloc((size_t)(p->heads * p->parts + g->direct + 1) * sizeof *totals);
    CHECK(g->in.error, totals, LOCI_NO_MEMORY, "no memory for sums of what is learned");
    const loci_status status = fetch_totals(g, totals);
    free(totals);
    /* gradients of values are done, and in memory of the device */
    struct call folded = *c;
    folded.g.dv.data = NULL;
    if (!status) loci_fold(&folded, g->learned);
    return status;
}
loci_status loci_gpu_backward(const loci_gpu_plan *plan, const loci_gpu_tables *tables, void *work,
                              const loci_call *call, const loci_grad *given)
{
    struct gpu_call g;
    loci_call in;
    loci_grad grad;
    if (!plan || !call) return LOCI_BAD_ARG;
    TRY(loci_copy_call(&in, wants_sizes(plan->plan), call));
    TRY(loci_copy_grad(&grad, &in, wants_sizes(plan->plan), given));
    loci_status status = loci_gpu_open_call(&g, plan, tables, work, call, &grad);
    if (!status && g.lists) status = backward_pass(&g);
    loci_gpu_close_call(&g);
    return status;
}

/* ---- Peaks ----------------------------------------------------------------------------------- */

enum { PROBE_GROUPS = 8192, PROBE_REPEATS = 100 }; /* the first ones wake the device up */

/* A processor has fewer lanes: it makes fewer groups, and fewer times. */
static int probed(const loci_gpu *gpu, int all, int fewer)
{
    return gpu->facts.processor ? all / fewer : all;
}

static loci_status probe(loci_gpu *gpu, struct program *program, const char *kernel, int groups,
                         char *at, double *seconds, loci_error *e)
{
    const struct params params = { 0 };
    const size_t bytes = (size_t)groups * THREADS * PROBE_COPIES * 16;
    const int repeats = probed(gpu, PROBE_REPEATS, 20);
    const struct arrays arrays = { .q = at, .o = at + bytes };
    double best = 0;
    for (int i = 0; i < repeats; i++) {
        TRY(gpu->backend->mark(gpu->state, e));
        TRY(gpu->backend->launch(gpu->state, program,
                                 &(struct launch){ .kernel = kernel,
                                                   .groups = { groups, 1 },
                                                   .threads = THREADS,
                                                   .shared = 16,
                                                   .arrays = &arrays,
                                                   .params = &params },
                                 e));
        TRY(gpu->backend->elapsed(gpu->state, seconds, e));
        if (i == 0 || *seconds < best) best = *seconds;
    }
    *seconds = best;
    return LOCI_OK;
}
loci_status loci_gpu_peaks(loci_gpu *gpu, double *flops, double *bytes, loci_error *e)
{
    CHECK(e, gpu && flops && bytes, LOCI_BAD_ARG, "gpu, flops and bytes must not be NULL");
    const struct loci_gpu_plan plan = { .gpu = gpu, .backward_threads = THREADS };
    const struct params params = {
        .dim = 4, .value_dim = 4, .rows = 128, .stick = -1, .scan = -1, .mix = -1
    };
    struct program *program = NULL;
    void *at = NULL;
    const int fma = probed(gpu, PROBE_GROUPS, 256), copy = probed(gpu, PROBE_GROUPS, 8);
    const size_t size = (size_t)copy * THREADS * PROBE_COPIES * 16;
    double fma_seconds = 1, copy_seconds = 1;
    loci_status status = loci_gpu_program(gpu, PASS_PROBES, &plan, &params, NULL, &program, e);
    if (!status) status = gpu->backend->alloc(gpu->state, 2 * size, &at, e);
    if (!status) status = gpu->backend->clear(gpu->state, at, 2 * size, e);
    if (!status) status = probe(gpu, program, "fma_rate", fma, at, &fma_seconds, e);
    if (!status) status = probe(gpu, program, "copy_rate", copy, at, &copy_seconds, e);
    *flops = 2.0 * fma * THREADS * PROBE_ROUNDS * PROBE_CHAINS / fma_seconds;
    *bytes = 2.0 * (double)size / copy_seconds;
    if (at) gpu->backend->free(gpu->state, at);
    return status;
}
