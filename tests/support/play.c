/* SPDX-License-Identifier: MIT */
/* play.c -- see play.h. */
#include "play.h"

#include "loci/convert.h"
#include "loci/layers.h"
#include "loci/positions.h"
#include "contract/plan.h"
#include "harness.h"

static void *copy(struct play *p, const double *x, size_t count)
{
    float *to = mem_alloc(&p->mem, count * sizeof(double));
    if (p->f64) return memcpy(to, x, count * sizeof *x);
    for (size_t i = 0; i < count; i++) to[i] = (float)x[i];
    return to;
}

/* Inputs and gradients: first those of the stage, then those of the tensors. */
static void open_inputs(struct play *p, size_t real)
{
    const struct walk *w = p->w;
    const bool keys = w->stage == LOCI_ATTENTION || w->stage == LOCI_LINEAR_ATTENTION;
    for (int i = 0; i < w->inputs; i++) {
        void *x = copy(p, w->input[i].x, w->input[i].count),
             *dx = mem_alloc(&p->mem, w->input[i].count * real);
        if (i == 0) {
            p->call.q.data = x;
            p->grad.dq.data = dx;
        } else if (keys && i == 1) {
            p->call.k.data = x;
            p->grad.dk.data = dx;
        } else if (keys && i == 2) {
            p->call.v.data = x;
            p->grad.dv.data = dx;
        } else {
            p->data[i - (w->inputs - w->tensors)] = x;
            p->ddata[i - (w->inputs - w->tensors)] = dx;
        }
    }
}

/* Keys of one sequence per entry, which a cache may store rotated. */
/* A tree of one node in entry 1, which follows entry 0. */
static const int64_t zero = 0, branch = 1, none = -1;
static const loci_tree node =
    LOCI_TREE(.entry = &zero, .branch = &branch, .room = 1, .parents = &none);
static loci_call node_call(struct play *p)
{
    const loci_call *c = &p->cached.call;
    loci_call one =
        LOCI_CALL(.batch = 1, .q_len = 1, .k_len = 1, .q.data = p->cached.zeros,
                  .k.data = p->cached.zeros, .v.data = p->cached.zeros, .o.data = p->cached.row,
                  .tensors = c->tensors, .host = c->host, .error = &p->error);
    if (c->k_pos) one.q_pos = one.k_pos = p->cached.zeros;
    if (c->k_coord) one.q_coord = one.k_coord = p->cached.zeros;
    return one;
}
static void open_cache(struct play *p, loci_desc d)
{
    const loci_call *c = &p->call;
    if (p->w->stage != LOCI_ATTENTION || c->q_starts || c->q_seg) return;
    d.keys_rotated = 1;
    if (loci_plan_create(&p->cached.plan, &d, NULL)) {
        d.keys_rotated = 0;
        if (loci_plan_create(&p->cached.plan, &d, NULL)) return;
    }
    const size_t bytes = loci_cache_size(p->cached.plan, c->batch, c->k_len);
    p->cached.memory = bytes ? mem_alloc(&p->mem, bytes) : NULL;
    p->cached.bytes = bytes;
    if (!bytes
        || loci_cache_create(&p->cached.cache, p->cached.plan, c->batch, c->k_len, 0,
                             p->cached.memory, NULL)) {
        loci_plan_destroy(p->cached.plan);
        p->cached.plan = NULL;
        return;
    }
    p->cached.call = *c;
    p->cached.call.lse = p->cached.call.rem = p->cached.call.ae = NULL;
    p->cached.call.dropout = 0; /* caches have none */
    p->cached.call.cache = p->cached.cache;
    p->cached.tables = mem_alloc(&p->mem, loci_tables_size(p->cached.plan, p->w->range));
    p->cached.work = mem_alloc(&p->mem, loci_workspace(p->cached.plan, &p->cached.call, 0));
    if (c->batch < 2 || d.full || loci_tree_paths(&none, 1) != 1) return;
    const size_t row = (size_t)(d.heads * (2 * d.dim + d.value_dim)) * sizeof(double);
    p->cached.zeros = memset(mem_alloc(&p->mem, row), 0, row);
    p->cached.row = mem_alloc(&p->mem, row);
    const loci_call one = node_call(p);
    const size_t work = loci_tree_workspace(p->cached.plan, p->cached.cache, &node, &one);
    p->cached.tree_work = work ? mem_alloc(&p->mem, work) : NULL;
}

bool play_open(struct play *p, const struct walk *w, const char *isa, bool f64,
               const loci_host *host)
{
    const size_t real = f64 ? 8 : 4;
    loci_desc d = w->desc;
    *p = (struct play){ .w = w, .isa = f64 ? "f64" : isa, .f64 = f64 };
    d.dtype = f64 ? LOCI_F64 : LOCI_F32;
    d.isa = isa;
    if (loci_plan_create(&p->plan, &d, &p->error))
        return harness_fail(__FILE__, __LINE__, "plan", "%s (%s) on %s: %s", w->encoding, w->shape,
                            p->isa, p->error.text);
    p->stick = p->plan->weight >= 0;
    p->call = w->call;
    p->call.error = &p->error;
    p->call.host = host;
    p->grad = w->grad;
    open_inputs(p, real);
    p->call.tensors = (const void *const *)p->data;
    p->grad.dtensors = p->ddata;
    p->call.o.data = mem_alloc(&p->mem, w->out_count * real);
    p->call.lse = p->stick || !w->row_count ? NULL : mem_alloc(&p->mem, w->row_count * real);
    p->call.rem = p->stick ? mem_alloc(&p->mem, w->row_count * real) : NULL;
    p->grad.dout.data = copy(p, w->grad.dout.data, w->out_count);
    p->grad.dlse = p->stick || !w->row_count ? NULL : copy(p, w->grad.dlse, w->row_count);
    p->grad.drem = p->stick ? copy(p, w->grad.drem, w->row_count) : NULL;
    if (w->state_count) {
        p->call.ae = mem_alloc(&p->mem, w->state_count * real);
        p->grad.dae = copy(p, w->grad.dae, w->state_count);
    }
    p->tables = mem_alloc(&p->mem, loci_tables_size(p->plan, w->range));
    p->work = mem_alloc(&p->mem, loci_workspace(p->plan, &p->call, 1));
    if (w->stage == LOCI_ATTENTION) {
        p->pairs = (size_t)(p->call.batch * d.heads * p->call.q_len * p->call.k_len);
        p->weights = mem_alloc(&p->mem, p->pairs * real);
    }
    if (w->stage == LOCI_LINEAR_ATTENTION && !d.full && !p->call.q_starts && !p->call.q_seg)
        p->state = mem_alloc(&p->mem, loci_linear_state(p->plan, p->call.batch));
    open_cache(p, d);
    return true;
}

void play_close(struct play *p)
{
    mem_release(&p->mem, 0);
    loci_plan_destroy(p->plan);
    loci_plan_destroy(p->cached.plan);
}

const char *const play_names[PLAY_PASSES] = { "prepare", "forward", "backward", "weights",
                                              "append",  "decode",  "remove",   "tree" };

static loci_status forward(struct play *p)
{
    switch (p->w->stage) {
    case LOCI_ATTENTION:
        return loci_forward(p->plan, p->tables, p->work, &p->call);
    case LOCI_LINEAR_ATTENTION:
        return loci_linear_forward(p->plan, p->tables, p->work, &p->call, NULL, p->state);
    case LOCI_ROTATE:
        return loci_rotate(p->plan, p->tables, p->work, &p->call, LOCI_QUERY, p->call.q, p->call.o);
    default:
        return loci_embed(p->plan, p->tables, &p->call, p->call.q, p->call.o);
    }
}
static loci_status backward(struct play *p)
{
    switch (p->w->stage) {
    case LOCI_ATTENTION:
        return loci_backward(p->plan, p->tables, p->work, &p->call, &p->grad);
    case LOCI_LINEAR_ATTENTION:
        return loci_linear_backward(p->plan, p->tables, p->work, &p->call, &p->grad);
    case LOCI_ROTATE:
        return loci_rotate_backward(p->plan, p->tables, p->work, &p->call, LOCI_QUERY, p->call.q,
                                    p->grad.dout, p->grad.dq, p->ddata);
    default:
        return loci_embed_backward(p->plan, p->tables, p->work, &p->call, p->grad.dout, p->ddata);
    }
}

static loci_status prepare(struct play *p)
{
    const loci_status status = loci_prepare_on(p->call.host, p->plan, p->w->range,
                                               (const void *const *)p->data, p->tables, &p->error);
    if (status || !p->cached.plan) return status;
    return loci_prepare(p->cached.plan, p->w->range, (const void *const *)p->data,
                        p->cached.tables);
}
static loci_status append(struct play *p)
{
    const loci_call *c = &p->cached.call;
    const loci_status status = loci_cache_create(&p->cached.cache, p->cached.plan, c->batch,
                                                 c->k_len, 0, p->cached.memory, &p->error);
    return status ? status
                  : loci_cache_append(p->cached.plan, p->cached.tables, p->cached.work,
                                      p->cached.cache, c);
}
/* Entry 1 becomes a copy of half of entry 0, and then gets a node that follows it.  Nothing if
 * there is no entry 1. */
static loci_status tree(struct play *p)
{
    const loci_plan *plan = p->cached.plan;
    loci_cache *cache = p->cached.cache;
    const loci_call one = node_call(p);
    const int64_t half = loci_cache_length(cache, 0) / 2;
    if (!p->cached.tree_work) return LOCI_OK;
    loci_status status = loci_cache_truncate(cache, 0, half, &p->error);
    if (!status)
        status = loci_cache_fork(plan, p->cached.tables, p->cached.work, cache, 0, 1, half,
                                 &p->cached.call);
    if (!status)
        status = loci_tree_forward(plan, p->cached.tables, p->cached.tree_work, cache, &node, &one);
    return status ? status
                  : loci_tree_keep(plan, p->cached.tables, p->cached.tree_work, cache, &node, &zero,
                                   &one);
}
/* A pass that changes the cache gets a new cache, so that it can be repeated.  Some keys cannot be
 * moved, and the call reports that. */
static loci_status cached(struct play *p, enum play_pass pass)
{
    const loci_plan *plan = p->cached.plan;
    const loci_call *c = &p->cached.call;
    if (!plan) return LOCI_OK;
    if (pass == PLAY_DECODE) return loci_forward(plan, p->cached.tables, p->cached.work, c);
    loci_status status = append(p);
    if (pass == PLAY_APPEND || status) return status;
    if (pass == PLAY_TREE) return tree(p);
    status = loci_cache_open(&p->cached.cache, plan, p->cached.memory, p->cached.bytes, &p->error);
    if (!status)
        status = loci_cache_truncate(p->cached.cache, 0, loci_cache_length(p->cached.cache, 0) - 1,
                                     &p->error);
    if (status) return status;
    status = loci_cache_remove(plan, p->cached.tables, p->cached.work, p->cached.cache, 0, 0,
                               c->k_len / 2, c);
    return status == LOCI_CANCELLED ? status : LOCI_OK;
}

loci_status play_pass(struct play *p, enum play_pass pass)
{
    switch (pass) {
    case PLAY_PREPARE:
        return prepare(p);
    case PLAY_FORWARD:
        return forward(p);
    case PLAY_BACKWARD:
        return backward(p);
    case PLAY_WEIGHTS:
        return p->weights ? loci_weights(p->plan, p->tables, p->work, &p->call,
                                         (loci_view){ p->weights, 0, 0, 0 })
                          : LOCI_OK;
    default:
        return cached(p, pass);
    }
}

/* ---- Functions without a problem ------------------------------------------------------------- */

enum { LEN = 7, WIDTH = 16, HEADS = 2, N = HEADS * LEN * WIDTH };
struct numbers {
    float x[N], y[N], z[N], dy[N], dx[N], dz[N], weight[N], dweight[N];
    double of_double[N], sums[2][HEADS * WIDTH];
    int refused;
};
static loci_view at(float *p) { return (loci_view){ p, 0, 0, 0 }; }
static void well(struct numbers *n, loci_status status) { n->refused += status != LOCI_OK; }

static void layers(struct numbers *n, const loci_host *host)
{
    const loci_layer layer = LOCI_LAYER(.batch = 1, .rows = LEN, .heads = HEADS, .width = WIDTH,
                                        .host = host),
                     *l = &layer;
    const loci_layer gate =
        LOCI_LAYER(.batch = 1, .rows = LEN, .heads = HEADS, .width = 1, .host = host);
    const loci_view x = at(n->x), y = at(n->y), z = at(n->z), dy = at(n->dy), dx = at(n->dx),
                    dz = at(n->dz);
    float *w = n->weight, *dw = n->dweight;
    well(n, loci_rmsnorm(l, x, w, 1e-5, y));
    well(n, loci_rmsnorm_backward(l, x, w, 1e-5, dy, dx, dw));
    well(n, loci_shift(l, x, z, NULL, 0, NULL, NULL, y));
    well(n, loci_shift_backward(l, x, z, NULL, 0, dy, dx, dz));
    well(n, loci_log_gate(&gate, x, y));
    well(n, loci_log_gate_backward(&gate, x, dy, dx));
    well(n, loci_gate(l, LOCI_SILU, x, z, y));
    well(n, loci_gate_backward(l, LOCI_SILU, x, z, dy, dx, dz));
    well(n, loci_temperature(l, 0.1, 8192, 1, NULL, 0, x, y));
    well(n, loci_running_angles(l, x, n->of_double, 0, NULL, 0, n->sums[0], n->sums[0], y));
    well(n, loci_running_angles_backward(l, x, n->of_double, 0, NULL, 0, dy, n->sums[0], dx,
                                         n->of_double + HEADS * WIDTH, n->sums[1]));
    well(n, loci_tape_start(l, 0, 0, NULL, 0, y));
    well(n, loci_tape_attention_update(l, LOCI_TAPE_FULL, x, z, w, y));
    well(n, loci_tape_attention_update_backward(l, LOCI_TAPE_FULL, z, w, dy, dz, dw));
    well(n, loci_tape_mlp_update(l, 4, x, z, w, w + 8, y));
    well(n, loci_tape_mlp_update_backward(l, 4, x, z, w, w + 8, dy, dx, dz, dw, dw + 8));
}

int play_others(const loci_host *host)
{
    static struct numbers n;
    static loci_plan *plan; /* created once, since plans allocate memory */
    const loci_desc d =
        LOCI_DESC(.encoding = "rope:pairing=half,scaling=yarn,factor=4,original_length=60",
                  .heads = 1, .dim = WIDTH);
    n = (struct numbers){ .refused = 0 };
    if (!plan) well(&n, loci_plan_create(&plan, &d, NULL));
    layers(&n, host);
    well(&n, loci_export_rope(plan, NULL,
                              &(loci_rope_table)LOCI_ROPE_TABLE(.dtype = LOCI_F32, .count = LEN,
                                                                .cos = n.y, .sin = n.z),
                              NULL));
    well(&n, loci_convert_channels(&(loci_channels)LOCI_CHANNELS(.element = 4, .heads = HEADS,
                                                                 .dim = WIDTH, .outer = LEN),
                                   LOCI_HALF, LOCI_INTERLEAVED, n.x, n.y, NULL));
    well(&n, loci_round(LOCI_BF16, N, n.of_double, n.y));
    const loci_segment segments[] = { { .tokens = 3 }, { .t = 1, .h = 2, .w = 2 } };
    double next, factor;
    n.refused += loci_segments_len(2, segments) != LEN;
    well(&n, loci_segments_place(2, segments, 0, LEN, n.of_double, &next, NULL));
    loci_tensor tensor;
    n.refused += loci_tensors(plan, &tensor, 1) != 0;
    loci_tensor_init(plan, 0, 1, n.y);
    n.refused += loci_tensor_source(plan, 0) != LOCI_SOURCE_OTHER;
    n.refused += isfinite(loci_tensor_low(plan, 0));
    n.refused += loci_frequencies(plan, n.of_double, N, &factor) != WIDTH / 2;
    n.refused += loci_axes(plan) != 1 || !loci_plan_text(plan)[0] || !loci_version_text()[0];
    n.refused += loci_version() != LOCI_VERSION;
    const loci_encoding_info *list;
    const char *isas[8];
    n.refused += loci_encodings(&list) < 1 || loci_isas(isas, 8) < 1;
    return n.refused;
}
