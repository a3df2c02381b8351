/* SPDX-License-Identifier: MIT */
/* vectors.c -- encodings that have a vector for every distance, which is multiplied by the query
 * or the key, or summed with the weights. */
#include "reference/problem.h"

/* ---- shaw: raw_ij = q_i.aK[r_ij], o_i += sum_j w_ij aV[r_ij] --------------------------------- */

/* The row of a distance: clipped, and counted from the left end. */
static ptrdiff_t shaw_row(const struct problem *p, int e, ptrdiff_t j)
{
    double left = option(p, e, "left", 16), right = option(p, e, "right", 16);
    double d = (double)distance(p, j);
    return (ptrdiff_t)(clip(option(p, e, "sign", 0) == 0 ? -d : d, -left, right) + left);
}

static void shaw(struct problem *p, int e, int h)
{
    const double *k = tensor(p, e, "k") + table_of_head(form(p, e, "k"), h);
    double *raw = of_head(p, p->raw, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (p->seen[j]) raw[j] += dot(p->q + q_row(p, h), k + shaw_row(p, e, j) * p->D, p->D);
}
/* raw is a product of q and aK: each gets the other. */
static void shaw_backward(struct problem *p, int e, int h)
{
    ptrdiff_t first = table_of_head(form(p, e, "k"), h);
    const double *k = tensor(p, e, "k") + first, *draw = of_head(p, p->draw, h);
    double *dk = dtensor(p, e, "k") + first;
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        ptrdiff_t r = shaw_row(p, e, j) * p->D;
        add_scaled(p->dq + q_row(p, h), draw[j], k + r, p->D);
        add_scaled(dk + r, draw[j], p->q + q_row(p, h), p->D);
    }
}

/* values=0: there is no tensor v. */
static void shaw_value(struct problem *p, int e, int h)
{
    const double *v = tensor(p, e, "v");
    if (!v) return;
    v += table_of_head(form(p, e, "v"), h);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (p->seen[j])
            add_scaled(p->o + h * p->Dv, of_head(p, p->w, h)[j], v + shaw_row(p, e, j) * p->Dv,
                       p->Dv);
}
static void shaw_value_backward(struct problem *p, int e, int h)
{
    const double *v = tensor(p, e, "v"), *dout = p->dout + h * p->Dv;
    if (!v) return;
    ptrdiff_t first = table_of_head(form(p, e, "v"), h);
    double *dv = dtensor(p, e, "v") + first;
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        ptrdiff_t r = shaw_row(p, e, j) * p->Dv;
        of_head(p, p->dw, h)[j] += dot(dout, v + first + r, p->Dv);
        add_scaled(dv + r, of_head(p, p->w, h)[j], dout, p->Dv);
    }
}

const struct definition loci_define_shaw = {
    .name = "shaw",
    .score = shaw,
    .score_backward = shaw_backward,
    .value = shaw_value,
    .value_backward = shaw_value_backward,
};

/* ---- xl ----------------------------------------------------------------------------------------
 *
 * raw_ij = u.k_j + (q_i + v).(W R_d), R_d = [sin(d w_0) .. | cos(d w_0) ..] of width Dm. */

struct xl {
    ptrdiff_t width;
    const double *w, *u, *v;
}; /* of the head */

static struct xl xl_of(const struct problem *p, int e, int h)
{
    ptrdiff_t width = form(p, e, "w")->shape[2];
    return (struct xl){ width, tensor(p, e, "w") + h * p->D * width, tensor(p, e, "u") + h * p->D,
                        tensor(p, e, "v") + h * p->D };
}
static ptrdiff_t xl_waves(const struct problem *p, int e) { return form(p, e, "w")->shape[2]; }
/* R_d; an odd width has one sine more. */
static void xl_wave(const struct problem *p, int e, double d, double *r)
{
    const double base = option(p, e, "base", 10000);
    const ptrdiff_t width = xl_waves(p, e), half = (width + 1) / 2;
    for (ptrdiff_t c = 0; c < width; c++) {
        const precise angle = d * power_of(base, (precise)-2 * (c % half) / width);
        r[c] = c < half ? angle_sin(angle) : angle_cos(angle);
    }
}
/* R_d of key j, and W R_d in scratch[1]. */
static const double *xl_distance(struct problem *p, int e, const struct xl *x, ptrdiff_t j)
{
    double limit = option(p, e, "clamp", -1), d = (double)distance(p, j);
    if (limit > 0) d = clip(d, -limit, limit);
    const double *r = loci_reference_wave(p, e, d);
    for (int c = 0; c < p->D; c++) p->scratch[1][c] = dot(x->w + c * x->width, r, x->width);
    return r;
}

/* u.k, then q and v against the projected wave. */
static void xl(struct problem *p, int e, int h)
{
    struct xl x = xl_of(p, e, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        xl_distance(p, e, &x, j);
        of_head(p, p->raw, h)[j] += dot(x.u, p->k + k_row(p, h, j), p->D)
                                  + dot(p->q + q_row(p, h), p->scratch[1], p->D)
                                  + dot(x.v, p->scratch[1], p->D);
    }
}
/* (q + v).(W R): dW is the outer product of q + v and R. */
static void xl_backward(struct problem *p, int e, int h)
{
    struct xl x = xl_of(p, e, h);
    const double *q = p->q + q_row(p, h);
    double *dw = dtensor(p, e, "w") + h * p->D * x.width;
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        double g = of_head(p, p->draw, h)[j];
        const double *r = xl_distance(p, e, &x, j);
        add_scaled(dtensor(p, e, "u") + h * p->D, g, p->k + k_row(p, h, j), p->D);
        add_scaled(p->dk + k_row(p, h, j), g, x.u, p->D);
        add_scaled(dtensor(p, e, "v") + h * p->D, g, p->scratch[1], p->D);
        add_scaled(p->dq + q_row(p, h), g, p->scratch[1], p->D);
        for (int c = 0; c < p->D; c++)
            add_scaled(dw + c * x.width, g * (q[c] + x.v[c]), r, x.width);
    }
}
const struct definition loci_define_xl = {
    .name = "xl",
    .waves = xl_waves,
    .wave = xl_wave,
    .score = xl,
    .score_backward = xl_backward,
};

/* ---- deberta: raw_ij = q_i.K[delta_ij] + k_j.Q[delta_ij], or with p2c=ji k_j.Q[delta_ji] ----- */

enum { V1, V2 };
enum { P2C_IJ, P2C_JI };

/* The row of a signed distance.  v1: d itself.  v2: d up to span/2, then logarithmically wider
 * up to max_distance.  The first release of v2, and transformers, do not clip it beyond
 * (saturate=0), so that far keys ahead use row 0 instead of row 1. */
static ptrdiff_t deberta_row(const struct problem *p, int e, double d)
{
    int kind = (int)option(p, e, "kind", V2),
        span = (int)option(p, e, "span", kind == V1 ? 512 : 256);
    /* `middle` distances have separate rows. */
    double max = option(p, e, "max_distance", 512), middle = span / 2, size = fabs(d);
    if (kind == V2 && option(p, e, "saturate", 1) == 1) size = fmin(size, max - 1);
    if (kind == V2 && size > middle)
        size = middle + ceil(log(size / middle) / log((max - 1) / middle) * (middle - 1));
    return (ptrdiff_t)clip((d < 0 ? -size : size) + span, 0, 2 * span - 1);
}
/* Where the row of head h for key j begins in K or Q; p2c=ji reverses the distance for Q. */
static ptrdiff_t deberta_at(const struct problem *p, int e, const char *name, int h, ptrdiff_t j)
{
    double d = (double)distance(p, j);
    if (name[0] == 'q' && option(p, e, "p2c", P2C_IJ) == P2C_JI) d = -d;
    return table_of_head(form(p, e, name), h) + deberta_row(p, e, d) * p->D;
}

/* A product is enabled if its tensor exists. */
static void deberta(struct problem *p, int e, int h)
{
    const double *k = tensor(p, e, "k"), *q = tensor(p, e, "q");
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        double *raw = of_head(p, p->raw, h) + j;
        if (k) *raw += dot(p->q + q_row(p, h), k + deberta_at(p, e, "k", h, j), p->D);
        if (q) *raw += dot(p->k + k_row(p, h, j), q + deberta_at(p, e, "q", h, j), p->D);
    }
}
static void deberta_backward(struct problem *p, int e, int h)
{
    const double *k = tensor(p, e, "k"), *q = tensor(p, e, "q");
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        double g = of_head(p, p->draw, h)[j];
        if (k) {
            ptrdiff_t at = deberta_at(p, e, "k", h, j);
            add_scaled(p->dq + q_row(p, h), g, k + at, p->D);
            add_scaled(dtensor(p, e, "k") + at, g, p->q + q_row(p, h), p->D);
        }
        if (q) {
            ptrdiff_t at = deberta_at(p, e, "q", h, j);
            add_scaled(p->dk + k_row(p, h, j), g, q + at, p->D);
            add_scaled(dtensor(p, e, "q") + at, g, p->k + k_row(p, h, j), p->D);
        }
    }
}
const struct definition loci_define_deberta = {
    .name = "deberta",
    .score = deberta,
    .score_backward = deberta_backward,
};
