/* SPDX-License-Identifier: MIT */
/* plan.c -- a plan on a device: what runs, and the programs for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "kernels/rooms.h"
#include "layout/band_q.h"
#include "layout/gate.h"
#include "layout/scan.h"

/* ---- What runs ------------------------------------------------------------------------------- */

bool loci_gpu_term_of(enum term_id id, int32_t *term)
{
    switch (id) {
    case TERM_affine:
        *term = GPU_AFFINE;
        return true;
    case TERM_distance:
        *term = GPU_DISTANCE;
        return true;
    case TERM_softcap:
        *term = GPU_SOFTCAP;
        return true;
    case TERM_factor:
        *term = GPU_FACTOR;
        return true;
    case TERM_band_q:
        *term = GPU_ROW_VECTORS;
        return true;
    case TERM_roll:
        *term = GPU_ROLL;
        return true;
    case TERM_band_k:
        *term = GPU_KEY_VECTORS;
        return true;
    case TERM_scan:
        *term = GPU_SCAN;
        return true;
    case TERM_slopes:
        *term = GPU_SLOPES;
        return true;
    case TERM_pieces:
        *term = GPU_PIECES;
        return true;
    case TERM_gate:
        *term = GPU_GATE;
        return true;
    case TERM_channel_gates:
        *term = GPU_CHANNEL_GATES;
        return true;
    case TERM_reflect:
        *term = GPU_REFLECTIONS;
        return true;
    default:
        return false;
    }
}
bool loci_gpu_given(enum term_id id)
{
    return id == TERM_positioned_pairs || id == TERM_given_pairs;
}
int32_t loci_gpu_rotation_of(enum term_id id)
{
    switch (id) {
    case TERM_ranged_pairs:
        return TURN_RANGES;
    case TERM_given_pairs:
        return TURN_GIVEN;
    case TERM_fourier:
        return TURN_WAVES;
    case TERM_blocks:
        return TURN_BASES;
    case TERM_matrices:
        return TURN_MATRICES;
    case TERM_states:
        return TURN_STATES;
    default:
        return TURN_PAIRS;
    }
}
static bool rotates(enum term_id id)
{
    return id == TERM_pairs || id == TERM_fading_pairs || id == TERM_polar
        || id == TERM_positioned_pairs || loci_gpu_rotation_of(id) != TURN_PAIRS;
}
bool loci_gpu_by_key(enum term_id id) { return id == TERM_slopes || id == TERM_gate; }
bool loci_gpu_has_inputs(const struct loci_plan *p, int enc)
{
    for (int i = p->first_tensor[enc]; i < p->first_tensor[enc + 1]; i++)
        if (p->tensors.list[i].role == LOCI_INPUT) return true;
    return false;
}
bool loci_gpu_splits(const struct loci_plan *p)
{
    bool can = !is_linear(p) && !p->states && p->weight < 0 && p->moves < 0 && p->mix < 0;
    for (int x = 0; x < p->uses; x++)
        can &= p->use[x].term != TERM_scan
            && (p->use[x].term != TERM_band_q
                || !((const struct vectors *)layout_of(p, x))->values);
    return can;
}
size_t loci_gpu_decode_shared(const struct loci_plan *p)
{
    return (size_t)decode_room(MOST_LANES, p->score_dim, p->value_dim).size * sizeof(float);
}
/* Of a wide plan: rows that rotate, and decode. */
static size_t wide_bytes(const struct loci_plan *p)
{
    const int width = p->turns_values ? most(p->dim, p->value_dim) : p->dim;
    const size_t rotated = (size_t)(ROTATED_ROWS * width) * sizeof(float),
                 decode = p->stage == LOCI_ROTATE ? 0 : loci_gpu_decode_shared(p);
    return rotated > decode ? rotated : decode;
}
bool loci_gpu_has_wide_heads(const struct loci_plan *p)
{
    return p->stage != LOCI_EMBED && (p->score_dim > MOST_WHOLE || p->value_dim > MOST_WHOLE);
}
static loci_status check_wide_heads(const struct loci_plan *p, loci_error *e)
{
    const struct config *beyond = NULL;
    bool given = false;
    if (!loci_gpu_has_wide_heads(p)) return LOCI_OK;
    CHECK(e, !is_linear(p), LOCI_UNSUPPORTED,
          "linear attention does not run on a GPU in heads wider than %d", MOST_WHOLE);
    for (int x = 0; x < p->uses && !beyond; x++) {
        int32_t term;
        const enum term_id id = p->use[x].term;
        const bool plain = id == TERM_sink || id == TERM_pairs
                        || (loci_gpu_term_of(id, &term) && !is_of_vectors(term)
                            && id != TERM_reflect && id != TERM_channel_gates);
        if (!plain) beyond = &p->enc[p->use[x].enc];
        given = id == TERM_positioned_pairs;
    }
    /* pope doubles what scores read */
    CHECK(e, !beyond, LOCI_UNSUPPORTED, "%s%s does not run on a GPU in heads wider than %d",
          beyond->pe->name, given ? " with positions=given" : "",
          MOST_WHOLE * p->dim / p->score_dim);
    return LOCI_OK;
}
loci_status loci_gpu_check_plan(const struct loci_plan *p, const struct device_facts *f,
                                loci_error *e)
{
    int terms = 0, inputs = 0, scans = 0;
    (void)f;
    CHECK(e, p && p->magic == PLAN_MAGIC, LOCI_BAD_ARG, "plan must be one of loci_plan_create()");
    CHECK(e, !is_linear(p) || (p->row_forms == 1 && p->score_dim == p->dim && !p->states),
          LOCI_UNSUPPORTED, "%s does not run on a GPU in linear attention",
          p->enc[p->use[p->rotate].enc].pe->name);
    CHECK(e, !p->f64, LOCI_UNSUPPORTED, "dtype F64 does not run on a GPU; F32, BF16 and F16 do");
    if (p->stage == LOCI_EMBED) {
        const struct encoding_embed *embed = p->enc[0].pe->embed;
        CHECK(e, embed->shape, LOCI_UNSUPPORTED,
              "%s does not run on a GPU yet; docs/gpu.md lists the encodings that do",
              p->enc[0].pe->name);
        return LOCI_OK;
    }
    for (int x = 0; x < p->uses; x++) {
        int32_t term;
        const enum term_id id = p->use[x].term;
        const bool known = loci_gpu_term_of(id, &term);
        terms += known;
        CHECK(e, known || id == TERM_sink || id == TERM_stick || id == TERM_mix || rotates(id),
              LOCI_UNSUPPORTED,
              "%s does not run on a GPU yet; docs/gpu.md lists the encodings that do",
              p->enc[p->use[x].enc].pe->name);
        CHECK(e,
              id != TERM_band_q || !((const struct vectors *)layout_of(p, x))->values
                  || !p->turns_values,
              LOCI_UNSUPPORTED,
              "%s with vectors of values does not run on a GPU where values turn: values=0 does",
              p->enc[p->use[x].enc].pe->name);
        CHECK(e,
              (id != TERM_band_q && id != TERM_band_k && id != TERM_roll && id != TERM_scan)
                  || p->score_dim == p->dim,
              LOCI_UNSUPPORTED, "%s does not run on a GPU with pope",
              p->enc[p->use[x].enc].pe->name);
        scans += id == TERM_scan;
        CHECK(e, scans <= 1, LOCI_UNSUPPORTED,
              "the encoding has cope %d times, but it does not run on a GPU more than once", scans);
        CHECK(e, id != TERM_gate || p->enc[p->use[x].enc].opt[GATE_STOP] == 0, LOCI_UNSUPPORTED,
              "fox:stop must be 0 on a GPU, where rows do not end early");
    }
    for (int i = 0; i < p->tensors.n; i++) inputs += p->tensors.list[i].role == LOCI_INPUT;
    CHECK(e, inputs <= GPU_INPUTS, LOCI_UNSUPPORTED,
          "the encoding has %d input tensors, but at most %d run on a GPU", inputs, GPU_INPUTS);
    CHECK(e, terms <= GPU_USES, LOCI_UNSUPPORTED,
          "the encoding has %d terms, but at most %d run on a GPU", terms, GPU_USES);
    for (int x = 0; x < p->uses; x++) {
        int32_t term;
        CHECK(e,
              p->row_forms == 1
                  || !(loci_gpu_term_of(p->use[x].term, &term) && is_of_vectors(term)),
              LOCI_UNSUPPORTED, "%s does not run on a GPU with rows in several forms",
              p->enc[p->use[x].enc].pe->name);
        CHECK(e,
              !p->states || p->use[x].term != TERM_scan
                  || p->enc[p->use[x].enc].opt[SCAN_GATES] == GATES_K,
              LOCI_UNSUPPORTED, "%s with tape runs on a GPU with gates=k only",
              p->enc[p->use[x].enc].pe->name);
    }
    CHECK(e, p->states || p->moves >= 0 || p->key_heads == p->kv_heads * p->key_forms,
          LOCI_UNSUPPORTED, "%s does not run on a GPU yet: each head rotates keys in its own way",
          p->enc[p->use[p->rotate].enc].pe->name);
    return check_wide_heads(p, e);
}

int loci_gpu_moves_room(const struct loci_plan *p, int rows)
{
    return reflects_rows(p) ? walk_room_size(rows, p->dim)
         : p->moves >= 0    ? carry_room(rows, p->dim)
                            : 0;
}
/* Bytes of shared memory that the forward pass needs. */
static size_t forward_bytes(const struct loci_plan *p, int rows, int roomy)
{
    int more = loci_gpu_moves_room(p, rows);
    for (int x = 0; x < p->uses; x++)
        if (p->use[x].term == TERM_scan) more = scan_room(rows);
    /* states are values, too */
    const int width = p->states ? most(p->value_dim, p->dim) : p->value_dim;
    return (size_t)(forward_room(rows, p->score_dim, width, roomy).size + more) * sizeof(float);
}
/* And a backward pass. */
static size_t backward_bytes(const struct loci_plan *p, int roomy)
{
    const int width = p->states ? FOURS(p->value_dim) + p->dim : p->value_dim;
    int more = p->moves >= 0 ? loci_gpu_moves_room(p, TILE_ROWS) : 0;
    if (p->weight >= 0) more += STICK_ROOM;
    for (int x = 0; x < p->uses; x++)
        if (p->use[x].term == TERM_scan) more += scan_room(TILE_ROWS);
    const int keys = keys_room(p->score_dim, width, roomy).size,
              rows = rows_room(p->score_dim, width, roomy).size,
              inputs = inputs_room(p->score_dim, width, roomy).size;
    return (size_t)(most(keys, most(rows, inputs)) + more) * sizeof(float);
}
/* May it be tight?  Rows and keys must be read from memory as they are: no kernel may change them
 * in shared memory, or read them in a second form. */
static bool may_be_tight(const struct loci_plan *p)
{
    bool may = p->row_forms == 1 && !p->states && p->moves < 0 && p->weight < 0 && p->mix < 0;
    for (int x = 0; x < p->uses; x++)
        may &= p->use[x].term != TERM_scan && p->use[x].term != TERM_fading_pairs;
    return may;
}
static int backward_shape(const struct loci_plan *p, size_t shared)
{
    if (p->row_forms > 1 || backward_bytes(p, ROOMY_BACKWARD) <= shared) return ROOMY_BACKWARD;
    return backward_bytes(p, 0) > shared && may_be_tight(p) ? TIGHT_BACKWARD : 0;
}
/* As many rows as shared memory allows. */
static int most_rows(const struct loci_gpu_plan *g, int rows, int roomy)
{
    while (rows > 32 && forward_bytes(g->plan, rows, roomy) > g->gpu->facts.shared) rows /= 2;
    return rows;
}
/* Rows of a query tile and threads of a group: as many as shared memory and registers allow.
 * Measured on an H100 with heads of 64 and 128.  Devices with little shared memory hold one side of
 * a tile at a time, or less; rows in several forms need both. */
static void choose_shape(struct loci_gpu_plan *g)
{
    const struct loci_plan *p = g->plan;
    const size_t shared = g->gpu->facts.shared;
    const int widest = p->score_dim > p->value_dim ? p->score_dim : p->value_dim;
    const int rows =
                  widest <= 64 && p->mix < 0 ? 128 : 64, /* heads that mix keep tiles of 64 rows */
        roomy = most_rows(g, rows, ROOMY_FORWARD), narrow = most_rows(g, rows, 0);
    const bool both =
        forward_bytes(p, roomy, ROOMY_FORWARD) <= shared && (roomy >= 64 || narrow <= roomy);
    g->rows = both ? roomy : narrow;
    g->roomy = both ? ROOMY_FORWARD : 0;
    g->roomy |= backward_shape(p, shared);
    g->forward_threads = g->general || widest <= 128 ? 128 : 256;
    g->backward_threads = g->general || widest <= 64 ? 128 : 256;
}

/* ---- Programs -------------------------------------------------------------------------------- */

/* Programs for all plans (one for each first_term(), with cape and without) are compiled once,
 * which is worth more than speed on a processor and in tests.  PoCL 3.1 has wrong numbers in
 * programs for one plan in heads wider than 64, though not with -cl-opt-disable. */
static bool is_general(const struct loci_gpu *gpu)
{
    const char *programs = getenv("LOCI_GPU_PROGRAMS");
    if (gpu->backend == &loci_gpu_host) return true; /* it is compiled already */
    return programs && *programs ? strcmp(programs, "general") == 0 : gpu->facts.processor;
}
/* The first term if it has phases of its own; below 0: it has none. */
static int first_term(const struct params *p, const struct gpu_use *use)
{
    const int term = p->uses ? use[0].term : -1;
    return term == GPU_CHANNEL_GATES || term == GPU_REFLECTIONS ? term : -1;
}
/* PoCL takes more than ten minutes for the backward program of path that is for all plans, and one
 * for the program of a plan. */
static bool has_own_program(const loci_gpu_plan *g, enum pass pass)
{
    return pass == PASS_BACKWARD_INPUTS && reflects_rows(g->plan)
        && g->gpu->backend == &loci_gpu_opencl;
}
/* What shape.h wants to know.  Programs of the host read it from the call. */
static size_t write_lines(char *to, size_t room, enum pass pass, const loci_gpu_plan *g,
                          const struct params *p, const struct gpu_use *use)
{
    static const char *const kernels[] = {
        "FORWARD_KERNELS",        "BACKWARD_KERNELS", "PROBE_KERNELS",  "FORWARD_GATE_KERNELS",
        "BACKWARD_INPUT_KERNELS", "DECODE_KERNELS",   "VECTOR_KERNELS", "VECTOR_BACK_KERNELS",
        "CACHE_KERNELS",          "ROW_KERNELS",      "LINEAR_KERNELS"
    };
    const struct {
        const char *name;
        int number;
    } constants[] = {
        { "DIM", p->dim },         { "VALUE_DIM", p->value_dim }, { "ROWS", p->rows },
        { "USES", p->uses },       { "NEAR", p->near },           { "LISTED", p->listed },
        { "SINK", p->has_sink },   { "MASK_KIND", p->mask_kind }, { "Q_TYPE", p->q_type },
        { "K_TYPE", p->k_type },   { "V_TYPE", p->v_type },       { "O_TYPE", p->o_type },
        { "PARTS", p->parts },     { "DROPOUT", p->dropout },     { "K_PAGED", p->k_paged },
        { "V_PAGED", p->v_paged }, { "LANES", p->lanes },         { "ROTATION", p->rotation },
        { "FADES", p->fades },     { "VECTORS", p->vectors },     { "VALUES", p->values },
        { "ROOMY", p->roomy },     { "FORMS", p->forms },         { "STICK", p->stick >= 0 },
        { "SCAN", p->scan },
    };
    int n = snprintf(to, room,
                     "#define LOCI_KERNELS %s\n#define LOCI_FIRST_TERM %d\n"
                     "#define LOCI_MIXES %d\n",
                     kernels[pass], first_term(p, use), p->mix >= 0);
    if (g->gpu->facts.processor) n += snprintf(to + n, room - (size_t)n, "#define LOCI_LOOPS\n");
    if (g->general && !has_own_program(g, pass)) return (size_t)n;
    n += snprintf(to + n, room - (size_t)n, "#define LOCI_GROUP_THREADS %d\n",
                  loci_gpu_threads(g, pass));
    for (int i = 0; i < COUNT(constants); i++)
        n += snprintf(to + n, room - (size_t)n, "#define LOCI_%s %d\n", constants[i].name,
                      constants[i].number);
    n += snprintf(to + n, room - (size_t)n, "#define LOCI_TERM(u) (");
    for (int u = 0; u < p->uses; u++)
        n += snprintf(to + n, room - (size_t)n, "(u) == %d ? %d : ", u, use[u].term);
    n += snprintf(to + n, room - (size_t)n, "-1)\n#define LOCI_MULTIPLIES(u) (");
    for (int u = 0; u < p->uses; u++)
        n += snprintf(to + n, room - (size_t)n, "(u) == %d ? %d : ", u, use[u].multiplies);
    n += snprintf(to + n, room - (size_t)n, "0)\n");
    return (size_t)n;
}
static loci_status find_program(loci_gpu *gpu, const char *lines, struct program **to,
                                loci_error *e)
{
    for (const struct compiled *c = gpu->programs; c; c = c->next)
        if (strcmp(c->lines, lines) == 0) {
            *to = c->program;
            return LOCI_OK;
        }
    const size_t n = strlen(lines) + 1;
    struct compiled *c = malloc(sizeof *c + n);
    CHECK(e, c, LOCI_NO_MEMORY, "no memory for a program");
    memcpy(c->lines, lines, n);
    const loci_status status = gpu->backend->build(gpu->state, lines, &c->program, e);
    if (status) {
        free(c);
        return status;
    }
    c->next = gpu->programs;
    gpu->programs = c;
    *to = c->program;
    return LOCI_OK;
}
loci_status loci_gpu_program(loci_gpu *gpu, enum pass pass, const loci_gpu_plan *g,
                             const struct params *p, const struct gpu_use *use, struct program **to,
                             loci_error *e)
{
    char lines[4096];
    write_lines(lines, sizeof lines, pass, g, p, use);
    lock_acquire(&gpu->lock);
    const loci_status status = find_program(gpu, lines, to, e);
    lock_release(&gpu->lock);
    return status;
}
void loci_gpu_unload_programs(loci_gpu *gpu)
{
    for (struct compiled *c = gpu->programs, *next; c; c = next) {
        next = c->next;
        gpu->backend->unload(gpu->state, c->program);
        free(c);
    }
    gpu->programs = NULL;
}

/* ---- The plan -------------------------------------------------------------------------------- */

loci_status loci_gpu_plan_create(loci_gpu_plan **to, loci_gpu *gpu, const loci_plan *plan,
                                 loci_error *e)
{
    CHECK(e, to && gpu, LOCI_BAD_ARG, "plan and gpu must not be NULL");
    *to = NULL;
    TRY(loci_gpu_check_plan(plan, &gpu->facts, e));
    struct loci_gpu_plan shape = { .gpu = gpu, .plan = plan, .general = is_general(gpu) };
    choose_shape(&shape);
    const size_t needed = is_linear(plan) ? loci_gpu_linear_shared()
                        : loci_gpu_has_wide_heads(plan)
                            ? wide_bytes(plan)
                            : forward_bytes(plan, shape.rows, shape.roomy);
    CHECK(e, needed <= gpu->facts.shared, LOCI_UNSUPPORTED,
          "%s has %zu bytes of shared memory for a group, but dim %d needs %zu", gpu->facts.name,
          gpu->facts.shared, plan->dim, needed);
    const int mixed = plan->mix < 0 ? 0
                                    : most(mix_room(plan->heads, shape.forward_threads),
                                           unmix_room(2 * plan->heads));
    CHECK(e, (size_t)mixed * sizeof(float) <= gpu->facts.shared, LOCI_UNSUPPORTED,
          "%s has %zu bytes of shared memory for a group, but %s with %d heads needs %zu",
          gpu->facts.name, gpu->facts.shared, plan->enc[plan->use[plan->mix].enc].pe->name,
          plan->heads, (size_t)mixed * sizeof(float));
    struct loci_gpu_plan *g = malloc(sizeof *g);
    CHECK(e, g, LOCI_NO_MEMORY, "no memory for a plan");
    *g = shape;
    *to = g;
    return LOCI_OK;
}
void loci_gpu_plan_destroy(loci_gpu_plan *g) { free(g); }
