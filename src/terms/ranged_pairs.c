/* SPDX-License-Identifier: MIT */
/* ranged_pairs.c -- rotates pairs of channels by places that depend on the range of the distance;
 * layout/ranged_pairs.h has the rules.  Rows and keys are rotated in each of their forms, and a
 * tile reads the forms of its class.
 *
 * If the key of a class does not rotate, its row has the magnitude twice.
 *
 * Backward: each form rotates back what its class has summed, and a learned frequency adds its own
 * place times dphi. */
#include "terms/angles.h"
#include "layout/ranged_pairs.h"

static const struct pairs *table_of(const struct call *c, int x)
{
    return c->table[c->plan->use[x].enc];
}
static const struct ranged_pairs *rule_of(const struct call *c, int x)
{
    return layout_of(c->plan, x);
}

/* The form that row or key head h stands for: see rotation.h. */
static int form_of(const struct call *c, int h, bool query)
{
    return h % (query ? c->plan->row_forms : c->plan->key_forms);
}
static struct range_place place_of(const struct call *c, int x, ptrdiff_t b, bool query, int form,
                                   ptrdiff_t i)
{
    return range_place(rule_of(c, x), query, form, query ? pos_q(c, b, i) : pos_k(c, b, i));
}

static int class_of(const struct call *c, int x, int64_t q, int64_t k)
{
    return range_class(rule_of(c, x), q, k);
}
static bool still(const struct call *c, int x, int form)
{
    return range_place(rule_of(c, x), false, form, 0).still;
}

/* ---- Angles ---------------------------------------------------------------------------------- */

/* cos and sin of a form, [rows][cos, sin][width] as in struct angles. */
static real *form_buffer(const struct angles *at, const struct pairs *p, int form)
{
    return at->buffer + (ptrdiff_t)form * 2 * KT * p->width;
}
/* Rows whose angle has two parts, or whose magnitude is squared: joined in double, rounded once. */
static void join_twice(struct slice *k, bool leaks, bool twice, double x, real *to)
{
    const struct pairs *p = k->p;
    const double *const c = range_constant(p) + k->t0, *const s = c + p->width,
                        m = twice ? p->factor : 1;
    double cos[SLICE], sin[SLICE];
    angles_on_axis(k, 0, x, cos, sin);
    for (int t = 0; t < k->n; t++) {
        const double a = cos[t], b = sin[t];
        to[t] = (real)(m * (leaks ? a * c[t] - b * s[t] : a));
        to[p->width + t] = (real)(m * (leaks ? b * c[t] + a * s[t] : b));
    }
}
/* Computes a form's angles of n rows, unless they are there already.  `group` has a bit for each
 * form that is: heads alternate between the forms of the same rows. */
static const real *make_form(const struct call *c, int x, struct angles *at, ptrdiff_t b, int form,
                             bool query, ptrdiff_t i0, int n)
{
    const struct pairs *p = table_of(c, x);
    real *to = form_buffer(at, p, form);
    if (!at->set || at->b != b || at->query != query || at->i0 != i0 || at->rows < n)
        *at = (struct angles){
            .set = true, .query = query, .rows = n, .b = b, .i0 = i0, .buffer = at->buffer
        };
    if (at->group >> form & 1) return to;
    at->group |= 1 << form;
    const struct range_place first = place_of(c, x, b, query, form, i0);
    const bool twice = query && form && still(c, x, form);
    /* Neighbours often share a place: those of a group, and rows far from a window or chunk. */
    double places[KT];
    int of[KT], distinct = 0;
    for (int r = 0; r < n; r++) {
        const double place = place_of(c, x, b, query, form, i0 + r).x;
        if (!distinct || places[distinct - 1] != place) places[distinct++] = place;
        of[r] = distinct - 1;
    }
    for (int t0 = 0; t0 < p->width; t0 += SLICE) {
        struct slice k;
        open_slice(&k, p, first.leaks, t0, false);
        if (!twice && !(first.leaks && query)) angles_on_line(&k, distinct, places, to + t0);
        else
            for (int r = 0; r < distinct; r++)
                join_twice(&k, first.leaks, twice, places[r],
                           to + (ptrdiff_t)2 * r * p->width + t0);
    }
    /* from the last row on, so that no source is overwritten */
    const ptrdiff_t row = (ptrdiff_t)2 * p->width;
    for (int r = n - 1; r >= 0; r--)
        if (of[r] != r) memcpy(to + r * row, to + of[r] * row, sizeof(real) * (size_t)row);
    return to;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Sign -1 rotates back. */
INLINE void turn_rows(const struct pairs *p, const real *cos, int n, const real sign, real *rows,
                      ptrdiff_t stride)
{
    for (int r = 0; r < n; r++, cos += 2 * p->width) {
        real *a = rows + r * stride + p->offset;
        if (p->interleaved) rotate_interleaved(cos, cos + p->width, sign, p->count, a);
        else rotate_half(cos, cos + p->width, sign, p->count, a, a + p->count);
    }
}
static void rotate(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h, bool query,
                   ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    const int form = form_of(c, h, query);
    if (!query && still(c, x, form)) return;
    turn_rows(table_of(c, x), make_form(c, x, at, b, form, query, i0, n), n, 1, rows, stride);
}

/* dw[t] += place dphi, from a row of the output of rotate() and its gradient.  Rows without a
 * gradient may contain anything. */
static void gather(const struct pairs *p, double place, const real *row, const real *d, double *dw)
{
    for (int t = 0; t < p->count; t++) {
        const int a = p->offset + (p->interleaved ? 2 * t : t),
                  b = a + (p->interleaved ? 1 : p->count);
        if (d[a] == 0 && d[b] == 0) continue;
        dw[t] += place * ((double)row[a] * (double)d[b] - (double)row[b] * (double)d[a]);
    }
}
static void rotate_bwd(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h,
                       bool query, ptrdiff_t i0, int n, const real *rows, real *d, ptrdiff_t stride,
                       real *part)
{
    const struct pairs *p = table_of(c, x);
    const int form = form_of(c, h, query);
    if (!query && still(c, x, form)) return;
    if (part) {
        double dw[MAX_PAIRS] = { 0 };
        for (int r = 0; r < n; r++)
            gather(p, place_of(c, x, b, query, form, i0 + r).at, rows + r * stride, d + r * stride,
                   dw);
        for (int t = 0; t < p->count; t++) part[t] += (real)dw[t];
    }
    turn_rows(p, make_form(c, x, at, b, form, query, i0, n), n, -1, d, stride);
}

/* Sized for the largest possible number of pairs: tables are not known when the workspace is
 * measured. */
static ptrdiff_t buffer(const struct call *c, int x)
{
    (void)x;
    return RANGE_FORMS * angles_size(c->plan->dim / 2);
}

/* ---- Parts of learned frequencies: none if nothing is learned -------------------------------- */

static ptrdiff_t part(const struct call *c, int x)
{
    const int e = c->plan->use[x].enc;
    return c->plan->first_tensor[e + 1] > c->plan->first_tensor[e] ? pairs_part(c->plan->dim, 1)
                                                                   : 0;
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)b;
    return h / c->plan->group * part(c, x);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->kv_heads * part(c, x); }

static const struct rotation rotation = {
    .buffer = buffer,
    .rotate = rotate,
    .rotate_bwd = rotate_bwd,
    .class_of = class_of,
    .still = still,
};
const struct term N(term_ranged_pairs) = {
    .name = "ranged pairs",
    .part = part,
    .part_at = part_at,
    .total = total,
    .rotation = &rotation,
};
