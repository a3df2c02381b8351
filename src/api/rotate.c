/* SPDX-License-Identifier: MIT */
/* rotate.c -- the public calls of the rotation alone. */
#include "api/api.h"

/* A backward rotation needs the memory of attention. */
static size_t lay_out(struct call *c, char *base, bool backward)
{
    (void)backward;
    return loci_lay_out_rotate(c, base, c->plan->engine->rotate_workspace);
}
/* A plan of stage ATTENTION also rotates, so callers can fill caches of their own with the same
 * plan. */
loci_status loci_open_rotation(struct call *c, const loci_plan *p, const void *tables, void *work,
                               const loci_call *in, loci_which which, bool backward,
                               lay_out_workspace *given)
{
    CHECK(in->error, loci_plan_is(p, LOCI_ROTATE) || loci_plan_is(p, LOCI_ATTENTION), LOCI_BAD_ARG,
          "the plan must be one for stage ROTATE or ATTENTION");
    CHECK(in->error, p->rotate >= 0, LOCI_BAD_ARG, "the encoding does not rotate");
    CHECK(in->error, which >= LOCI_QUERY && which <= LOCI_VALUE, LOCI_BAD_ARG,
          "the argument `which` must be LOCI_QUERY, LOCI_KEY, LOCI_CACHE or LOCI_VALUE");
    CHECK(in->error, which != LOCI_VALUE || p->turns_values, LOCI_BAD_ARG,
          "values do not rotate here; they do with values=1, in a plan of stage ATTENTION");
    CHECK(in->error, (which == LOCI_QUERY ? p->row_forms : p->key_forms) == 1, LOCI_BAD_ARG,
          "%s rotates %s differently for near and far %s, so they cannot be rotated alone",
          p->enc[p->use[p->rotate].enc].pe->name, which == LOCI_QUERY ? "queries" : "keys",
          which == LOCI_QUERY ? "keys" : "rows");
    /* Wider rows are what a cache stores; nothing else reads them. */
    CHECK(
        in->error, p->score_dim == p->dim || (which == LOCI_CACHE && !backward), LOCI_BAD_ARG,
        "%s makes rows of %d channels from rows of %d: only keys for a cache can be rotated alone, "
        "without gradients",
        p->enc[p->use[p->rotate].enc].pe->name, p->score_dim, p->dim);
    /* Where each query head turns the keys of its group its own way,
     * one row of k would become several, for which y has no room. */
    CHECK(in->error, which == LOCI_QUERY || p->key_heads == p->kv_heads || p->moves >= 0,
          LOCI_BAD_ARG,
          "each of the %d heads rotates keys differently, so keys can be rotated alone only if "
          "kv_heads equals heads",
          p->heads);
    TRY(loci_open_call(c, p, in, true));
    TRY(loci_check_inputs(c, p->use[p->rotate].enc,
                          which == LOCI_QUERY ? LOCI_DIM_QUERIES : LOCI_DIM_KEYS));
    CHECK(in->error, p->axes == 1 || (which == LOCI_QUERY ? in->q_coord : c->where.k_coord),
          LOCI_BAD_ARG, "coordinates must be given: the encoding has %d axes", p->axes);
    TRY(loci_open_tables(c, tables));
    TRY(loci_lay_out_workspace(c, work,
                               given      ? given
                               : backward ? loci_lay_out
                                          : lay_out,
                               backward));
    return loci_accept(c, p->use[p->rotate].enc);
}
static int width_of(const loci_plan *p, loci_which which, bool rotated)
{
    return which == LOCI_VALUE ? p->value_dim : rotated ? p->score_dim : p->dim;
}
/* Opens x, y, dy or dx: rows of queries, keys or values, of which y and dy are rotated. */
static loci_status rotation_view(struct call *c, loci_view *v, const char *name, loci_which which,
                                 bool rotated, bool optional)
{
    const struct loci_plan *p = c->plan;
    const ptrdiff_t H = which == LOCI_QUERY ? p->heads : p->kv_heads,
                    L = which == LOCI_QUERY ? c->Lq : c->Lk;
    const loci_view from = *v;
    const int width = width_of(p, which, rotated);
    if (which == LOCI_CACHE) TRY(loci_check_wide(p, v, name, c->B * L, width, c->in->error));
    TRY(loci_open_view(c, v, &from, name, H, L, width));
    return optional || !c->B || !L ? LOCI_OK : loci_require(c, v->data, name);
}

/* dx NULL: y is the rotated x, and may be x, in place.  Otherwise y stands for dy, and dx may be
 * dy. */
static loci_status check_memory(const struct call *c, loci_which which, const void *tables,
                                const void *work, const loci_view *x, const loci_view *y,
                                const loci_view *dx, void *const *dtensors)
{
    const struct loci_plan *p = c->plan;
    const ptrdiff_t H = which == LOCI_QUERY ? p->heads : p->kv_heads,
                    L = which == LOCI_QUERY ? c->Lq : c->Lk;
    struct regions r;
    r.n = 0;
    const int width = width_of(p, which, false), after = width_of(p, which, true);
    loci_add_view(&r, "x", x, c->B, H, L, width, p->stored, after == width ? REPLACED : READ);
    loci_add_view(&r, dx ? "dy" : "y", y, c->B, H, L, after, p->stored, dx ? REPLACED : WRITTEN);
    if (dx) loci_add_view(&r, "dx", dx, c->B, H, L, width, p->stored, WRITTEN);
    loci_add_call(c, &r, tables, work);
    loci_add_tensors(c, &r, dtensors);
    return loci_check_regions(&r, c->in->error);
}
loci_status loci_open_rotated(struct call *c, loci_which which, const void *tables,
                              const void *work, loci_view *x, loci_view *y, loci_view *dx,
                              void *const *dtensors)
{
    TRY(rotation_view(c, x, "x", which, false, false));
    TRY(rotation_view(c, y, dx ? "dy" : "y", which, true, false));
    if (dx) TRY(rotation_view(c, dx, "dx", which, false, true));
    return check_memory(c, which, tables, work, x, y, dx, dtensors);
}

loci_status loci_rotate(const loci_plan *p, const void *tables, void *work, const loci_call *given,
                        loci_which which, loci_view x, loci_view y)
{
    struct call c;
    loci_call in;
    TRY(loci_copy_call(&in, wants_sizes(p), given));
    TRY(loci_open_rotation(&c, p, tables, work, &in, which, false, NULL));
    TRY(loci_open_rotated(&c, which, tables, work, &x, &y, NULL, NULL));
    loci_fill_workspace(&c);
    loci_begin(&c, false);
    const loci_status status = p->engine->rotate(&c, which, &x, &y);
    return status ? loci_fail(in.error, status, "cancelled by the host") : LOCI_OK;
}

/* dx may be NULL if only the tensors' gradients are wanted.  These need x. */
loci_status loci_rotate_backward(const loci_plan *p, const void *tables, void *work,
                                 const loci_call *given, loci_which which, loci_view x,
                                 loci_view dy, loci_view dx, void *const *dtensors)
{
    struct call c;
    loci_call in;
    TRY(loci_copy_call(&in, wants_sizes(p), given));
    TRY(loci_open_rotation(&c, p, tables, work, &in, which, true, NULL));
    TRY(loci_open_rotated(&c, which, tables, work, &x, &dy, &dx, dtensors));
    loci_fill_workspace(&c);
    loci_want(&c, dtensors);
    loci_begin(&c, false);
    const loci_status status = p->engine->rotate_backward(&c, which, &x, &dy, &dx);
    if (status) return loci_fail(in.error, status, "cancelled by the host");
    loci_fold(&c, dtensors);
    return LOCI_OK;
}
