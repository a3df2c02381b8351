/* SPDX-License-Identifier: MIT */
/* rows.c -- rotations and embeddings alone, without attention: loci_gpu_rotate() and
 * loci_gpu_embed(), and their gradients. */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "api/tables.h"
#include "kernels/rooms.h"
#include "layout/matrices.h"

/* ---- Rotations ------------------------------------------------------------------------------- */

/* The side that a rotation has, and its rows. */
struct side {
    bool query, values, fades;
    int heads, dim;
    ptrdiff_t rows;
    int32_t type;
    struct strides dense; /* of a copy in the workspace, floats */
};
static struct side side_of(const struct gpu_call *g, loci_which which)
{
    const struct call *c = &g->call;
    const struct loci_plan *p = c->plan;
    const bool query = which == LOCI_QUERY, values = which == LOCI_VALUE;
    struct side s = {
        .query = query,
        .values = values,
        .fades = g->params.fades && which != LOCI_CACHE && !values,
        .heads = query ? p->heads : p->kv_heads,
        .dim = values ? p->value_dim : p->dim,
        .rows = query ? c->Lq : c->Lk,
        .type = stored_as(p->dtype),
    };
    s.dense = dense(s.heads, s.rows, s.dim);
    return s;
}
static struct turned turned_of(struct side s)
{
    return (struct turned){ .type = s.type,
                            .to_type = s.type,
                            .heads = s.heads,
                            .dim = s.dim,
                            .query = s.query,
                            .turns = true,
                            .plain = s.values };
}
/* A view as dense floats. */
static loci_status copy_rows(const struct gpu_call *g, struct side s, loci_view from, char *to)
{
    struct turned t = turned_of(s);
    t.from = from.data;
    t.at = of_view(from);
    t.to = to;
    t.at_to = s.dense;
    t.to_type = GPU_F32;
    t.turns = false;
    return loci_gpu_turn(g, PASS_ROWS, t);
}
/* Dense floats that fade on their way to a view, or to other dense floats. */
static loci_status fade(const struct gpu_call *g, struct side s, char *from, char *to,
                        struct strides at_to, int32_t type)
{
    struct params p = g->params;
    struct arrays at = g->arrays;
    at.q = from;
    at.o = to;
    p.q = s.dense;
    p.o = at_to;
    p.o_type = type;
    p.heads = s.heads;
    p.q_len = (int32_t)s.rows;
    p.dim = s.dim;
    return loci_gpu_run(g, PASS_ROWS, "fade_alone", p.batch * tiles(s.rows, ROTATED_ROWS), 0, &at,
                        &p);
}
static loci_status rotate_side(struct gpu_call *g, struct side s, loci_view x, loci_view y)
{
    struct turned t = turned_of(s);
    t.from = x.data;
    t.at = of_view(x);
    t.to = y.data;
    t.at_to = of_view(y);
    TRY(loci_gpu_upload_lists(g));
    if (g->params.rotation == TURN_MATRICES) { /* blocks read channels that others write */
        TRY(copy_rows(g, s, x, g->at.q));
        t.from = g->at.q;
        t.at = s.dense;
        t.type = GPU_F32;
    }
    if (!s.fades) return loci_gpu_turn(g, PASS_ROWS, t);
    t.to = g->at.q;
    t.at_to = s.dense;
    t.to_type = GPU_F32;
    TRY(loci_gpu_turn(g, PASS_ROWS, t));
    return fade(g, s, g->at.q, y.data, of_view(y), s.type);
}
loci_status loci_gpu_rotate(const loci_gpu_plan *plan, const loci_gpu_tables *tables, void *work,
                            const loci_call *call, loci_which which, loci_view x, loci_view y)
{
    struct gpu_call g;
    if (!plan || !call) return LOCI_BAD_ARG;
    loci_status status =
        loci_gpu_open_rotation(&g, plan, tables, work, call, which, &x, &y, NULL, NULL);
    if (!status && g.lists) status = rotate_side(&g, side_of(&g, which), x, y);
    loci_gpu_close_call(&g);
    return status;
}

/* Is the gradient of an input of this side wanted? */
static int32_t wanted_input(const struct gpu_call *g, struct side s)
{
    const int32_t n =
        g->call.plan->states ? loci_gpu_states(g->call.plan, s.query) : loci_gpu_places(g, s.query);
    return n >= 0 && g->inputs[n] ? n : -1;
}
/* States turn rows back and take their gradients at once. */
static loci_status unturn_states(const struct gpu_call *g, struct side s, loci_view x, loci_view dx)
{
    struct params p = g->params;
    struct arrays at = g->arrays;
    const int32_t n = loci_gpu_states(g->call.plan, s.query);
    at.q = g->at.dq;
    at.v = x.data;
    at.o = dx.data;
    at.din0 = g->inputs[n];
    at.sums = NULL;
    p.v = of_view(x);
    p.o = of_view(dx);
    p.v_type = p.o_type = s.type;
    p.heads = s.heads;
    p.vector_share = 1;
    p.dim = s.dim;
    p.q_len = (int32_t)s.rows;
    p.given = n;
    p.used = -1;
    p.finish = 0;
    return loci_gpu_run(g, PASS_ROWS, "unturn_states", p.batch * tiles(s.rows, ROTATED_ROWS), 0,
                        &at, &p);
}
/* What the rotation learns, and gradients of places: from rows x and their gradients, as the
 * rotation reads them. */
static loci_status row_gradients(struct gpu_call *g, struct side s, const struct turned *x)
{
    const struct loci_plan *plan = g->call.plan;
    const int threads = loci_gpu_threads(g->plan, PASS_ROWS);
    const int32_t given = wanted_input(g, s);
    struct params p = g->params;
    struct arrays at = g->arrays;
    at.q = x->to;
    p.q = x->at_to;
    p.q_type = x->to_type;
    at.dq = g->at.dq;
    p.dq = s.dense;
    p.o_type = GPU_F32;
    p.heads = s.heads;
    p.q_len = (int32_t)s.rows;
    p.dim = s.dim;
    p.where = s.query ? g->q_where : g->k_where;
    p.counted = loci_gpu_counts_places(g, s.query);
    p.scale = 1;
    p.given = loci_gpu_places(g, s.query);
    p.adds = ADDS_NOTHING;
    p.used = -1;
    p.plain = 0;
    if (given >= 0)
        TRY(loci_gpu_run(g, PASS_ROWS, "place_gradients", p.batch * tiles(s.rows, ROTATED_ROWS), 0,
                         &at, &p));
    if (!g->call.g.total[plan->rotate] || !p.rotation_count) return LOCI_OK;
    p.plain = s.values;
    TRY(loci_gpu_run(g, PASS_ROWS, "row_frequencies", p.batch * tiles(s.rows, TILE_ROWS) * s.heads,
                     loci_gpu_frequency_room(g), &at, &p));
    return loci_gpu_run(g, PASS_ROWS, "add_row_frequencies",
                        tiles(p.rotation_count, threads) * plan->kv_heads, 0, &at, &p);
}
/* Rows and their gradients for the host, which finds what matrices learn. */
static loci_status fetch_rows(const struct gpu_call *g, struct side s)
{
    const struct loci_gpu *gpu = g->plan->gpu;
    const struct loci_plan *p = g->call.plan;
    const struct matrices *m = g->call.mem.scratch[p->use[p->rotate].enc];
    const size_t bytes = (size_t)(g->call.B * s.heads * s.rows) * (size_t)s.dim * sizeof(float);
    TRY(gpu->backend->copy(gpu->state, m->x[!s.query], g->at.q, bytes, FROM_DEVICE, g->in.error));
    return gpu->backend->copy(gpu->state, m->g[!s.query], g->at.dq, bytes, FROM_DEVICE,
                              g->in.error);
}
/* Gradients of rows turn back.  What a rotation learns from rotated rows comes before, what it
 * learns from rows as they were comes after. */
static loci_status rotate_back(struct gpu_call *g, struct side s, loci_view x, loci_view dy,
                               loci_view dx)
{
    const struct loci_plan *plan = g->call.plan;
    const struct loci_gpu *gpu = g->plan->gpu;
    const bool waves = g->params.rotation == TURN_WAVES,
               learns = g->call.g.total[plan->rotate] != NULL,
               given = loci_gpu_places(g, s.query) >= 0, after = given || s.values,
               gradients = learns || wanted_input(g, s) >= 0;
    TRY(loci_gpu_upload_lists(g));
    TRY(copy_rows(g, s, dy, g->at.dq));
    if (plan->states) return unturn_states(g, s, x, dx);
    if (s.fades) TRY(fade(g, s, g->at.dq, g->at.dq, s.dense, GPU_F32));
    struct turned back = turned_of(s), rows = turned_of(s);
    back.from = g->at.dq;
    back.at = s.dense;
    back.type = GPU_F32;
    back.to = dx.data;
    back.at_to = of_view(dx);
    back.back = true;
    rows.from = x.data;
    rows.at = of_view(x);
    rows.to = g->at.q;
    rows.at_to = s.dense;
    rows.to_type = GPU_F32;
    rows.turns = !waves && !after && !g->fetches_rows;
    if (gradients) TRY(loci_gpu_turn(g, PASS_ROWS, rows));
    if (gradients && !after && !g->fetches_rows) TRY(row_gradients(g, s, &rows));
    if (gradients && g->fetches_rows) TRY(fetch_rows(g, s));
    if (gradients && after) { /* in place, and then to the view as they are */
        back.to = g->at.dq;
        back.at_to = s.dense;
        back.to_type = GPU_F32;
        TRY(loci_gpu_turn(g, PASS_ROWS, back));
        TRY(row_gradients(g, s, &rows));
        back.to = dx.data;
        back.at_to = of_view(dx);
        back.to_type = s.type;
        back.turns = false;
    }
    if (dx.data) TRY(loci_gpu_turn(g, PASS_ROWS, back));
    if (!learns) return LOCI_OK;
    const size_t bytes = (size_t)plan->kv_heads * (size_t)g->params.rotation_count * sizeof(double);
    return bytes ? gpu->backend->copy(gpu->state, g->call.g.total[plan->rotate], g->at.totals,
                                      bytes, FROM_DEVICE, g->in.error)
                 : LOCI_OK;
}
loci_status loci_gpu_rotate_backward(const loci_gpu_plan *plan, const loci_gpu_tables *tables,
                                     void *work, const loci_call *call, loci_which which,
                                     loci_view x, loci_view dy, loci_view dx, void *const *dtensors)
{
    struct gpu_call g;
    if (!plan || !call) return LOCI_BAD_ARG;
    loci_status status =
        loci_gpu_open_rotation(&g, plan, tables, work, call, which, &x, &dy, &dx, dtensors);
    if (!status) status = loci_gpu_clear_inputs(&g);
    if (!status && g.lists) status = rotate_back(&g, side_of(&g, which), x, dy, dx);
    if (!status) loci_fold(&g.call, g.learned);
    loci_gpu_close_call(&g);
    return status;
}

/* ---- Embeddings ------------------------------------------------------------------------------ */

/* Positions of a call, the rows of each, and where both are. */
struct embed_call {
    struct gpu_call call; /* for loci_gpu_run(): its plan, parameters and arrays */
    struct gpu_embed to;
    size_t list_bytes;
    char *lists, *gradients; /* memory of the device */
    int64_t *positions;      /* backward, of the host: the distinct ones, rising */
};
/* Distinct positions are at most all rows, and at most all there are. */
static ptrdiff_t most_distinct(const struct loci_plan *p, const loci_call *c)
{
    const struct encoding_embed *embed = p->enc[0].pe->embed;
    const ptrdiff_t rows = c->batch * c->q_len,
                    all = embed->positions ? embed->positions(&p->enc[0]) : rows;
    return rows < all ? rows : all;
}
static size_t lay_out_embed(const struct loci_plan *p, const loci_call *c, bool backward,
                            char *base, struct embed_call *e)
{
    struct arena lists = { 0 }, all = { .base = base };
    const size_t rows = (size_t)(c->batch * c->q_len), distinct = (size_t)most_distinct(p, c);
    e->call.params.turn = 0;
    carve_bytes(&lists, 1, sizeof(struct gpu_embed));
    e->to.places = -1;
    if (c->q_pos) {
        e->to.places = (int64_t)lists.used;
        carve_bytes(&lists, (c->per_batch ? rows : (size_t)c->q_len), sizeof(int64_t));
    }
    e->to.rows = (int64_t)lists.used;
    if (backward) carve_bytes(&lists, rows, sizeof(int64_t));
    e->to.first = (int64_t)lists.used;
    if (backward) carve_bytes(&lists, distinct + 1, sizeof(int64_t));
    if (lists.full) return SIZE_MAX;
    e->list_bytes = lists.used;
    e->lists = carve_bytes(&all, lists.used, 1);
    if (backward) e->gradients = carve_bytes(&all, distinct * (size_t)p->model_dim, sizeof(float));
    return all.full ? SIZE_MAX : all.used;
}
size_t loci_gpu_embed_workspace(const loci_plan *p, const loci_call *in, bool backward)
{
    struct embed_call e = { 0 };
    loci_call c = *in;
    c.error = NULL;
    if (c.batch < 0 || c.q_len < 0 || c.q_len >= INT32_MAX / 64 || c.batch >= 1 << 20) return 0;
    const size_t bytes = lay_out_embed(p, &c, backward && p->enc[0].pe->embed->row_bwd, NULL, &e);
    return bytes > PTRDIFF_MAX ? 0 : bytes;
}
/* A position, and the row that has it. */
struct row_at {
    int64_t position, row;
};
static int by_position(const void *a, const void *b)
{
    const struct row_at *x = a, *y = b;
    if (x->position != y->position) return x->position < y->position ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}
/* Rows by position, those of one in their order, and the distinct positions. */
static loci_status list_rows(struct embed_call *e, const loci_call *c, char *lists)
{
    const ptrdiff_t n = c->batch * c->q_len;
    struct row_at *all = malloc((size_t)n * sizeof *all);
    int64_t *rows = (int64_t *)(lists + e->to.rows), *first = (int64_t *)(lists + e->to.first);
    e->positions = malloc((size_t)n * sizeof *e->positions);
    if (!all || !e->positions) {
        free(all);
        return loci_fail(c->error, LOCI_NO_MEMORY, "no memory for the lists of a call");
    }
    for (ptrdiff_t i = 0; i < n; i++)
        all[i] = (struct row_at){ loci_embed_pos(c, i / c->q_len, i % c->q_len), i };
    qsort(all, (size_t)n, sizeof *all, by_position);
    for (ptrdiff_t i = 0; i < n; i++) {
        rows[i] = all[i].row;
        if (i && all[i].position == all[i - 1].position) continue;
        first[e->to.distinct] = i;
        e->positions[e->to.distinct++] = all[i].position;
    }
    first[e->to.distinct] = n;
    free(all);
    return LOCI_OK;
}
/* After validation: makes the lists and uploads them. */
static loci_status open_embed(struct embed_call *e, const loci_gpu_plan *plan,
                              const loci_gpu_tables *tables, void *work, const loci_call *c,
                              bool backward)
{
    const struct loci_plan *p = plan->plan;
    const struct loci_gpu *gpu = plan->gpu;
    const struct embed_shape shape = p->enc[0].pe->embed->shape(&p->enc[0]);
    const size_t bytes = lay_out_embed(p, c, backward, work, e);
    TRY(loci_gpu_check_work(work, c->work_bytes, bytes, c->error));
    if (!backward)
        e->to.table = (const char *)loci_table_of(tables->host, p, 0) - (const char *)tables->host;
    e->to.kind = shape.kind == EMBED_WAVES    ? EMBED_OF_WAVES
               : shape.kind == EMBED_POSITION ? EMBED_OF_POSITION
               : shape.kind == EMBED_BITS     ? EMBED_OF_BITS
                                              : EMBED_OF_VECTORS;
    e->to.waves = shape.waves;
    e->to.halves = shape.halves;
    e->to.divisor = shape.divisor;
    e->to.entry = c->per_batch ? c->q_len : 0;
    e->to.start = loci_embed_pos(c, 0, 0);
    e->call.plan = plan;
    e->call.in = *c;
    e->call.params.dim = p->model_dim;
    e->call.params.q_len = (int32_t)c->q_len;
    e->call.params.batch = (int32_t)c->batch;
    e->call.params.q_type = e->call.params.o_type = stored_as(p->dtype);
    e->call.params.stick = e->call.params.mix = e->call.params.scan = -1;
    e->call.arrays.lists = e->lists;
    e->call.arrays.tables = tables ? (char *)(uintptr_t)tables->device : NULL;
    char *lists = calloc(1, e->list_bytes);
    CHECK(c->error, lists, LOCI_NO_MEMORY, "no memory for the lists of a call");
    loci_status status = backward ? list_rows(e, c, lists) : LOCI_OK;
    if (c->q_pos)
        memcpy(lists + e->to.places, c->q_pos,
               sizeof(int64_t) * (size_t)((c->per_batch ? c->batch : 1) * c->q_len));
    memcpy(lists, &e->to, sizeof e->to);
    if (!status)
        status =
            gpu->backend->copy(gpu->state, e->lists, lists, e->list_bytes, TO_DEVICE, c->error);
    free(lists);
    return status;
}
static loci_status check_embed(const loci_gpu_plan *plan, const loci_call *c)
{
    CHECK(c->error, plan->plan->stage == LOCI_EMBED, LOCI_BAD_ARG,
          "the plan must be one for stage EMBED");
    CHECK(c->error, c->q_len < INT32_MAX / 64 && c->batch < 1 << 20, LOCI_UNSUPPORTED,
          "batch %td and q_len %td are too large for a GPU", c->batch, c->q_len);
    return LOCI_OK;
}
loci_status loci_gpu_embed(const loci_gpu_plan *plan, const loci_gpu_tables *tables, void *work,
                           const loci_call *given, loci_view x, loci_view y)
{
    loci_call c;
    struct embed_call e = { 0 };
    if (!plan || !given) return LOCI_BAD_ARG;
    TRY(loci_copy_call(&c, wants_sizes(plan->plan), given));
    CHECK(c.error, tables && tables->host && tables->device, LOCI_BAD_ARG,
          "tables must have those of loci_prepare() on the host, and a copy on the device");
    TRY(check_embed(plan, &c));
    TRY(loci_open_embed(plan->plan, &c, tables->host, &x, &y));
    TRY(loci_check_embed_memory(plan->plan, &c, tables->host, NULL, &x, &y, NULL));
    if (!c.batch || !c.q_len) return LOCI_OK;
    TRY(open_embed(&e, plan, tables, work, &c, false));
    e.call.arrays.q = x.data;
    e.call.arrays.o = y.data;
    e.call.params.q = of_view(x);
    e.call.params.o = of_view(y);
    return loci_gpu_run(&e.call, PASS_ROWS, "embed_rows", c.batch * tiles(c.q_len, ROTATED_ROWS), 0,
                        &e.call.arrays, &e.call.params);
}
/* Sums of the device by distinct position become the caller's tensor, whose other rows are 0. */
static loci_status fetch_vectors(const struct embed_call *e, float *to)
{
    const struct loci_plan *p = e->call.plan->plan;
    const struct loci_gpu *gpu = e->call.plan->gpu;
    const size_t row = (size_t)p->model_dim * sizeof(float), bytes = (size_t)e->to.distinct * row;
    char *rows = malloc(bytes + !bytes);
    CHECK(e->call.in.error, rows, LOCI_NO_MEMORY, "no memory for the gradients of vectors");
    const loci_status status = bytes ? gpu->backend->copy(gpu->state, rows, e->gradients, bytes,
                                                          FROM_DEVICE, e->call.in.error)
                                     : LOCI_OK;
    if (!status) {
        memset(to, 0, (size_t)tensor_count(&p->tensors.list[0]) * sizeof(float));
        for (int32_t n = 0; n < e->to.distinct; n++)
            memcpy((char *)to + (size_t)e->positions[n] * row, rows + (size_t)n * row, row);
    }
    free(rows);
    return status;
}
/* An encoding with gradients has one tensor, a vector for each position. */
loci_status loci_gpu_embed_backward(const loci_gpu_plan *plan, const loci_gpu_tables *tables,
                                    void *work, const loci_call *given, loci_view dy,
                                    void *const *dtensors)
{
    loci_call c;
    struct embed_call e = { 0 };
    if (!plan || !given) return LOCI_BAD_ARG;
    TRY(loci_copy_call(&c, wants_sizes(plan->plan), given));
    TRY(check_embed(plan, &c));
    TRY(loci_open_embed(plan->plan, &c, NULL, &dy, NULL));
    if (!dtensors || !plan->plan->enc[0].pe->embed->row_bwd || !dtensors[0]) return LOCI_OK;
    TRY(loci_check_embed_memory(plan->plan, &c, NULL, NULL, &dy, NULL, dtensors));
    loci_status status = LOCI_OK;
    if (c.batch && c.q_len) {
        status = open_embed(&e, plan, tables, work, &c, true);
        e.call.arrays.q = dy.data;
        e.call.arrays.o = e.gradients;
        e.call.params.q = of_view(dy);
        if (!status)
            status = loci_gpu_run(&e.call, PASS_ROWS, "embed_gradients",
                                  tiles((ptrdiff_t)e.to.distinct * plan->plan->model_dim,
                                        loci_gpu_threads(plan, PASS_ROWS)),
                                  0, &e.call.arrays, &e.call.params);
    }
    e.call.plan = plan;
    e.call.in = c;
    if (!status) status = fetch_vectors(&e, dtensors[0]);
    free(e.positions);
    return status;
}
