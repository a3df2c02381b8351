/* SPDX-License-Identifier: MIT */
/* problem.c -- checks and memory that the three functions of the reference share. */
#include "reference/problem.h"

static const struct definition *const definitions[] = {
#define DEFINITION(name) &loci_define_##name,
#include "reference/list.h"
#undef DEFINITION
};

const struct definition loci_define_nope = { .name = "nope" }; /* plain attention */

/* The definition of an encoding by its name, or NULL. */
static const struct definition *find(const char *name)
{
    for (int i = 0; i < COUNT(definitions); i++)
        if (strcmp(definitions[i]->name, name) == 0) return definitions[i];
    return NULL;
}

/* Beyond 2^40 every call rejects positions and coordinates: differences stay exact. */
static loci_status near(const struct problem *p, const char *name, const int64_t *pos,
                        const double *coord, ptrdiff_t rows, loci_error *e)
{
    const ptrdiff_t n = (p->call->per_batch ? p->B : 1) * rows, all = n * p->plan->axes;
    const int64_t far = (int64_t)1 << 40;
    for (ptrdiff_t i = 0; pos && i < n; i++)
        CHECK(e, pos[i] >= -far && pos[i] <= far, LOCI_BAD_ARG,
              "%s_pos: position %lld must lie within 2^40", name, (long long)pos[i]);
    for (ptrdiff_t i = 0; coord && i < all; i++)
        CHECK(e, fabs(coord[i]) <= (double)far, LOCI_BAD_ARG,
              "%s_coord: coordinate %g must lie within 2^40", name, coord[i]);
    return LOCI_OK;
}

static bool is_needed(const loci_tensor *t, ptrdiff_t rows)
{
    bool has = false;
    for (int i = 0; i < t->rank; i++) has |= t->shape[i] == rows;
    return !rows || has || t->role != LOCI_INPUT;
}

/* The checks that every stage needs.  The plan has checked options and shapes; the engine
 * rejects all other errors of a caller. */
loci_status loci_reference_open(struct problem *p, const loci_plan *plan,
                                const void *const *tensors, ptrdiff_t rows, const loci_call *call)
{
    *p = (struct problem){
        .plan = plan,
        .call = call,
        .tensors = tensors,
        .B = call->batch,
        .Lq = call->q_len,
        .Lk = call->k_len,
        .H = plan->heads,
        .Hkv = plan->kv_heads,
        .Hk = plan->states ? plan->heads : plan->kv_heads,
        .D = plan->dim,
        .Dr = plan->score_dim,
        .Dv = plan->value_dim,
    };
    CHECK(call->error, plan->f64, LOCI_BAD_ARG,
          "the reference works in double: make the plan with dtype F64");
    CHECK(call->error, p->B >= 0 && p->Lq >= 0 && p->Lk >= 0, LOCI_BAD_ARG,
          "batch %td, q_len %td and k_len %td cannot be negative", p->B, p->Lq, p->Lk);
    for (int t = 0; t < plan->tensors.n; t++)
        CHECK(call->error, !is_needed(&plan->tensors.list[t], rows) || (tensors && tensors[t]),
              LOCI_BAD_ARG, "tensor %s of %s is missing", plan->tensors.list[t].name,
              plan->tensors.list[t].encoding);
    loci_status status = near(p, "q", call->q_pos, call->q_coord, p->Lq, call->error);
    if (!status) status = near(p, "k", call->k_pos, call->k_coord, p->Lk, call->error);
    if (status) return status;
    for (int e = 0; e < plan->encs; e++) {
        p->def[e] = find(plan->enc[e].pe->name);
        CHECK(call->error, p->def[e], LOCI_UNSUPPORTED, "the reference does not define %s yet",
              plan->enc[e].pe->name);
    }
    return LOCI_OK;
}

/* The numbers of a tensor in this call: inputs have extents that only the call knows. */
static ptrdiff_t elements(const struct problem *p, const loci_tensor *t)
{
    ptrdiff_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i] == LOCI_DIM_BATCH   ? p->B
           : t->shape[i] == LOCI_DIM_QUERIES ? p->Lq
           : t->shape[i] == LOCI_DIM_KEYS    ? p->Lk
                                             : t->shape[i];
    return n;
}

ptrdiff_t loci_reference_dtensors(struct problem *p, double *base)
{
    ptrdiff_t used = 0;
    for (int t = 0; t < p->plan->tensors.n; t++) {
        p->dtensor[t] = base ? base + used : NULL;
        used += elements(p, &p->plan->tensors.list[t]);
    }
    return used;
}

int loci_reference_rotation(const struct problem *p)
{
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->rotate) return e;
    return -1;
}
int loci_reference_walking(const struct problem *p)
{
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->products) return e;
    return -1;
}
int loci_reference_turning(const struct problem *p)
{
    const int e = loci_reference_rotation(p);
    return e >= 0 && p->def[e]->turn && option(p, e, "values", 0) == 1 ? e : -1;
}
ptrdiff_t loci_reference_scratch(const struct problem *p)
{
    const int e = loci_reference_rotation(p);
    return e >= 0 && p->def[e]->scratch_size ? p->def[e]->scratch_size(p, e) : 0;
}

/* Rows ask for the same distances, and positions that are counted have slots of their own. */
const double *loci_reference_wave(const struct problem *p, int e, double distance)
{
    const ptrdiff_t slots = p->Lq + p->Lk, slot = ((int64_t)distance % slots + slots) % slots;
    double *numbers = p->wave[e] + slot * p->def[e]->waves(p, e);
    /* wave_of is 1 + |distance| with its sign, as it begins with zeros. */
    const double known = distance < 0 ? distance - 1 : distance + 1;
    if (p->wave_of[e][slot] != known) p->def[e]->wave(p, e, distance, numbers);
    p->wave_of[e][slot] = known;
    return numbers;
}

void loci_reference_give(const struct problem *p, void *const *dtensors)
{
    for (int t = 0; dtensors && t < p->plan->tensors.n; t++)
        if (dtensors[t])
            memcpy(dtensors[t], p->dtensor[t],
                   (size_t)elements(p, &p->plan->tensors.list[t]) * sizeof(double));
}
