/* SPDX-License-Identifier: MIT */
/* rotate.c -- encodings that rotate queries and keys, and the rotation alone.  Frequencies and
 * angles are wider than double, as at position 2^40 they would otherwise have an error of 10^-4. */
#include <stdlib.h>

#include "reference/budget.h"

/* ---- Pairs of channels: each rotates by the sum over axes of coordinate times frequency ------ */

/* How an encoding rotates its pairs. */
struct pairs {
    int count, offset, axes;
    bool interleaved, single; /* single: angles are products of floats, rounded */
    double factor;
    /* the tensor of the frequencies; if the plan has none, they follow a formula */
    const char *learned;
    /* The number of the frequency of pair t of a kv head on an axis, and its formula. -1: the
     * axis does not rotate the pair. */
    int (*number)(const struct problem *, int e, int kv, int axis, int t);
    /* Where a row at a position stands in the current form.  NULL: at its coordinates. */
    precise (*stands)(const struct problem *, int e, bool query, int64_t pos);
    precise (*formula)(const struct problem *, int e, int number);
};

/* The two channels of pair t. */
static int first_channel(const struct pairs *r, int t)
{
    return r->offset + (r->interleaved ? 2 * t : t);
}
static int second_channel(const struct pairs *r, int t)
{
    return r->offset + (r->interleaved ? 2 * t + 1 : t + r->count);
}

/* The kv head whose frequencies a row of q or k uses. */
static int kv_of(const struct problem *p, loci_which which, int head)
{
    return which == LOCI_QUERY ? kv_head(p, head) : head;
}
/* The number of a row in a tensor of positions, and the tensor. */
static const char *positions_of(loci_which which) { return which == LOCI_QUERY ? "z_q" : "z_k"; }
static ptrdiff_t position_row(const struct problem *p, loci_which which, int head, ptrdiff_t row)
{
    const bool query = which == LOCI_QUERY;
    return (p->b * (query ? p->H : p->Hkv) + head) * (query ? p->Lq : p->Lk) + row;
}
/* The coordinate of a row; with positions=given it is an input of the head. */
static precise place(const struct problem *p, int e, const struct pairs *r, loci_which which,
                     int head, int axis, ptrdiff_t row)
{
    const bool query = which == LOCI_QUERY;
    if (r->stands) return r->stands(p, e, query, query ? q_position(p, row) : k_position(p, row));
    const double *z = tensor(p, e, positions_of(which));
    return z ? z[position_row(p, which, head, row)] : coordinate(p, which, axis, row);
}

/* phi of pair t in a row.  With `single`, frequency, coordinate and product are rounded to
 * float, as in float32 code; cos and sin of the result are still exact. */
static precise angle(const struct problem *p, int e, const struct pairs *r, loci_which which,
                     int head, ptrdiff_t row, int t)
{
    const double *learned = tensor(p, e, r->learned);
    precise phi = 0;
    for (int axis = 0; axis < r->axes; axis++) {
        int n = r->number(p, e, kv_of(p, which, head), axis, t);
        if (n < 0) continue;
        const precise x = place(p, e, r, which, head, axis, row);
        const precise w = learned ? (precise)learned[n] : r->formula(p, e, n);
        phi += r->single ? (precise)((float)(double)x * (float)(double)w) : x * w;
    }
    return phi;
}

/* Channels that are in no pair are copied. */
static void rotate_pairs(const struct problem *p, int e, const struct pairs *r, loci_which which,
                         int head, ptrdiff_t row, const double *x, double *y)
{
    memcpy(y, x, (size_t)p->D * sizeof *y);
    for (int t = 0; t < r->count; t++) {
        const precise phi = angle(p, e, r, which, head, row, t);
        double cosine, sine;
        angle_turn(phi, &cosine, &sine);
        int a = first_channel(r, t), b = second_channel(r, t);
        y[a] = r->factor * (x[a] * cosine - x[b] * sine);
        y[b] = r->factor * (x[a] * sine + x[b] * cosine);
    }
}
/* The gradient of an angle: to the frequencies by the coordinates, and the reverse. */
static void give_angle(const struct problem *p, int e, const struct pairs *r, loci_which which,
                       int head, ptrdiff_t row, int t, double dphi)
{
    const double *learned = tensor(p, e, r->learned);
    double *dlearned = dtensor(p, e, r->learned), *dz = dtensor(p, e, positions_of(which));
    for (int axis = 0; axis < r->axes; axis++) {
        int n = r->number(p, e, kv_of(p, which, head), axis, t);
        if (n < 0) continue;
        if (dlearned) dlearned[n] += (double)place(p, e, r, which, head, axis, row) * dphi;
        if (dz)
            dz[position_row(p, which, head, row)] +=
                (learned ? learned[n] : (double)r->formula(p, e, n)) * dphi;
    }
}
/* The inverse rotation, times the factor. */
static void rotate_pairs_backward(const struct problem *p, int e, const struct pairs *r,
                                  loci_which which, int head, ptrdiff_t row, const double *x,
                                  const double *dy, double *dx)
{
    const bool learns = dtensor(p, e, r->learned) || dtensor(p, e, positions_of(which));
    memcpy(dx, dy, (size_t)p->D * sizeof *dx);
    for (int t = 0; t < r->count; t++) {
        const precise phi = angle(p, e, r, which, head, row, t);
        double cosine, sine;
        angle_turn(phi, &cosine, &sine);
        int a = first_channel(r, t), b = second_channel(r, t);
        dx[a] = r->factor * (dy[a] * cosine + dy[b] * sine);
        dx[b] = r->factor * (-dy[a] * sine + dy[b] * cosine);
        /* dphi = x_a dx_b - x_b dx_a; padding, which may contain NaN, has no gradient. */
        if (!learns || (dx[a] == 0 && dx[b] == 0)) continue;
        give_angle(p, e, r, which, head, row, t, x[a] * dx[b] - x[b] * dx[a]);
    }
}

/* Values and outputs turn by the angles alone. */
static void turn_pairs(const struct problem *p, int e, const struct pairs *r, loci_which which,
                       int head, ptrdiff_t row, double sign, const double *x, double *y)
{
    memcpy(y, x, (size_t)p->Dv * sizeof *y);
    for (int t = 0; t < r->count; t++) {
        const precise phi = angle(p, e, r, which, head, row, t);
        double cosine, sine;
        angle_turn(phi, &cosine, &sine);
        int a = first_channel(r, t), b = second_channel(r, t);
        sine *= sign;
        y[a] = x[a] * cosine - x[b] * sine;
        y[b] = x[a] * sine + x[b] * cosine;
    }
}
static void turn_pairs_gradient(const struct problem *p, int e, const struct pairs *r,
                                loci_which which, int head, ptrdiff_t row, const double *x,
                                const double *d)
{
    for (int t = 0; t < r->count; t++) {
        int a = first_channel(r, t), b = second_channel(r, t);
        /* as in rotate_pairs_backward(), padding has no gradient */
        if (d[a] == 0 && d[b] == 0) continue;
        give_angle(p, e, r, which, head, row, t, x[a] * d[b] - x[b] * d[a]);
    }
}

/* Defines the functions of an encoding from its pairs. */
#define DEFINE_PAIRS(name_) \
    static void name_(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row, \
                      const double *x, double *y) \
    { \
        struct pairs r = pairs_of_##name_(p, e); \
        rotate_pairs(p, e, &r, which, head, row, x, y); \
    } \
    static void name_##_backward(const struct problem *p, int e, loci_which which, int head, \
                                 ptrdiff_t row, const double *x, const double *dy, double *dx) \
    { \
        struct pairs r = pairs_of_##name_(p, e); \
        rotate_pairs_backward(p, e, &r, which, head, row, x, dy, dx); \
    } \
    static void name_##_turn(const struct problem *p, int e, loci_which which, int head, \
                             ptrdiff_t row, double sign, const double *x, double *y) \
    { \
        struct pairs r = pairs_of_##name_(p, e); \
        turn_pairs(p, e, &r, which, head, row, sign, x, y); \
    } \
    static void name_##_turn_gradient(const struct problem *p, int e, loci_which which, int head, \
                                      ptrdiff_t row, const double *x, const double *d) \
    { \
        struct pairs r = pairs_of_##name_(p, e); \
        turn_pairs_gradient(p, e, &r, which, head, row, x, d); \
    } \
    const struct definition loci_define_##name_ = { .name = #name_, \
                                                    .rotate = name_, \
                                                    .rotate_backward = name_##_backward, \
                                                    .turn = name_##_turn, \
                                                    .turn_gradient = name_##_turn_gradient };

/* ---- rope: frequency t is base^(-2t/dim), or given ------------------------------------------- */

/* Pair t has frequency number t. */
static int one_axis(const struct problem *p, int e, int kv, int axis, int t)
{
    (void)p;
    (void)e;
    (void)kv;
    (void)axis;
    return t;
}

/* Number t of a list option, which has one per pair or per axis; 1 if it is absent. */
static double listed(const struct problem *p, int e, const char *name, int t)
{
    const struct config *cfg = &p->plan->enc[e];
    for (int i = 0; cfg->pe->opts[i].name; i++)
        if (strcmp(cfg->pe->opts[i].name, name) == 0 && cfg->list[i]) return cfg->list[i][t];
    return 1;
}
/* True if the text gives this option. */
static bool is_given(const struct problem *p, int e, const char *name)
{
    const struct config *cfg = &p->plan->enc[e];
    for (int i = 0; cfg->pe->opts[i].name; i++)
        if (strcmp(cfg->pe->opts[i].name, name) == 0) return cfg->given[i];
    return false;
}

enum scaling { NONE, LINEAR, NTK, NTK_FIXED, DYNAMIC, YARN, LONGROPE, LLAMA3, PROPORTIONAL };
static const double full_circle = 6.283185307179586; /* 2 pi */

/* The unscaled share of the frequency of pair t, from 1 to 0 between the pairs that make
 * beta_fast and beta_slow turns in the trained length. */
static double yarn_share(const struct problem *p, int e, double base, double dim, int t)
{
    double length = option(p, e, "original_length", 1), bounds[2];
    for (int slow = 0; slow < 2; slow++) {
        /* bounds[0], bounds[1]: the pairs that make beta_fast and beta_slow turns. */
        double turns = slow ? option(p, e, "beta_slow", 1) : option(p, e, "beta_fast", 32);
        bounds[slow] = dim * log(length / (turns * full_circle)) / (2 * log(base));
        if (option(p, e, "truncate", 1) != 0)
            bounds[slow] = slow ? ceil(bounds[slow]) : floor(bounds[slow]);
    }
    if (bounds[0] < 0) bounds[0] = 0;
    if (bounds[1] > dim - 1) bounds[1] = dim - 1;
    /* As in the models' code, to avoid a division by 0. */
    if (bounds[0] == bounds[1]) bounds[1] += 0.001;
    return (1 - clip((t - bounds[0]) / (bounds[1] - bounds[0]), 0, 1))
         * option(p, e, "extrapolation_factor", 1);
}
/* By wavelengths: long ones are scaled, short ones stay, and those between are blended. */
static precise llama3_frequency(const struct problem *p, int e, precise w)
{
    const double length = option(p, e, "original_length", 1), s = option(p, e, "factor", 1),
                 wavelength = full_circle / (double)w;
    double low = option(p, e, "low_freq_factor", 1), high = option(p, e, "high_freq_factor", 4);
    /* Fewer than low turns in the trained length: scaled; at least high turns: unchanged. */
    if (wavelength > length / low) return w / s;
    if (wavelength <= length / high) return w;
    double share = (length / wavelength - low) / (high - low);
    return (1 - share) * w / s + share * w;
}
/* The frequency of pair t under the plan's scaling. */
static precise rope_frequency(const struct problem *p, int e, int t)
{
    const precise base = option(p, e, "base", 10000), dim = option(p, e, "dim", p->D);
    precise s = option(p, e, "factor", 1);
    double original = option(p, e, "original_length", 1), length = option(p, e, "length", original);
    const precise w = power_of(base, -2 * t / dim);
    enum scaling scaling = (enum scaling)option(p, e, "scaling", NONE);
    switch (scaling) {
    case NONE:
        return w;
    case LINEAR:
        return w / s;
    case DYNAMIC:
    case NTK:
        /* dynamic is ntk with a factor that grows with the length. */
        if (scaling == DYNAMIC) s = s * fmax(length, original) / original - (s - 1);
        return power_of(base * power_of(s, dim / (dim - 2)), -2 * t / dim);
    case NTK_FIXED: {
        const precise b = option(p, e, "mixed_b", 0);
        /* w exp(-ln s ((t + 1) / (dim/2))^b) */
        return b == 0 ? w * power_of(s, -2 * (t + 1) / dim)
                      : w / angle_exp(angle_log(s) / power_of(dim / 2, b) * power_of(t + 1, b));
    }
    case YARN: {
        const double share = yarn_share(p, e, (double)base, (double)dim, t);
        return w / s * (1 - share) + w * share;
    }
    case LONGROPE:
        return w / listed(p, e, length > original ? "long" : "short", t);
    case LLAMA3:
        return llama3_frequency(p, e, w);
    case PROPORTIONAL:
        return t < (int)floor(option(p, e, "partial", 1) * (double)dim / 2) ? w / s : 0;
    }
    return w;
}
static double yarn_magnitude(double s, double c) { return s <= 1 ? 1 : 0.1 * c * log(s) + 1; }
/* attention_factor as given, or by the rule of the scaling. */
static double rope_factor(const struct problem *p, int e)
{
    double s = option(p, e, "factor", 1), m = option(p, e, "mscale", 0),
           all = option(p, e, "mscale_all_dim", 0);
    int scaling = (int)option(p, e, "scaling", NONE);
    if (is_given(p, e, "attention_factor")) return option(p, e, "attention_factor", 1);
    if (scaling == YARN)
        return m != 0 && all != 0 ? yarn_magnitude(s, m) / yarn_magnitude(s, all)
                                  : yarn_magnitude(s, 1);
    if (scaling == LONGROPE)
        return s <= 1 ? 1 : sqrt(1 + log(s) / log(option(p, e, "original_length", 1)));
    return 1;
}
/* mrope and xpos begin with the same pairs. */
static struct pairs pairs_of_rope(const struct problem *p, int e)
{
    return (struct pairs){
        .count = (int)option(p, e, "dim", p->D) / 2,
        .offset = (int)option(p, e, "offset", 0),
        .axes = 1,
        .interleaved = option(p, e, "pairing", 0) == 1,
        .factor = rope_factor(p, e),
        .single = option(p, e, "angles", 0) == 1,
        .learned = "freq",
        .number = one_axis,
        .formula = rope_frequency,
    };
}
DEFINE_PAIRS(rope)

/* ---- rerope, selfextend, dca: rope at places that depend on the range of the distance -------- */

#define DEFINE_RANGED(name_, rows_, keys_) \
    static struct pairs pairs_of_##name_(const struct problem *p, int e) \
    { \
        struct pairs r = pairs_of_rope(p, e); \
        r.stands = name_##_place; \
        return r; \
    } \
    static void name_(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row, \
                      const double *x, double *y) \
    { \
        struct pairs r = pairs_of_##name_(p, e); \
        rotate_pairs(p, e, &r, which, head, row, x, y); \
    } \
    static void name_##_backward(const struct problem *p, int e, loci_which which, int head, \
                                 ptrdiff_t row, const double *x, const double *dy, double *dx) \
    { \
        struct pairs r = pairs_of_##name_(p, e); \
        rotate_pairs_backward(p, e, &r, which, head, row, x, dy, dx); \
    } \
    const struct definition loci_define_##name_ = { .name = #name_, \
                                                    .rotate = name_, \
                                                    .rotate_backward = name_##_backward, \
                                                    .row_forms = rows_, \
                                                    .key_forms = keys_, \
                                                    .class_of = name_##_class };

/* floor(x / by), also of negative positions. */
static int64_t quotient(int64_t x, int64_t by)
{
    int64_t n = x / by;
    while (n * by > x) n--;
    return n;
}
static int64_t whole_option(const struct problem *p, int e, const char *name)
{
    return (int64_t)option(p, e, name, 1);
}

static int rerope_class(const struct problem *p, int e, int64_t q, int64_t k)
{
    return q - k >= whole_option(p, e, "window") ? 1 : 0;
}
static precise rerope_place(const struct problem *p, int e, bool query, int64_t pos)
{
    const precise window = option(p, e, "window", 1), leak = option(p, e, "leak", 0);
    if (p->form == 0) return pos;
    return query ? window + leak * (pos - window) : leak * pos;
}
DEFINE_RANGED(rerope, 2, 2)

static precise selfextend_place(const struct problem *p, int e, bool query, int64_t pos)
{
    const int64_t group = whole_option(p, e, "group"), window = whole_option(p, e, "window");
    if (p->form == 0) return pos;
    return quotient(pos, group) + (query ? window - window / group : 0);
}
#define selfextend_class rerope_class
DEFINE_RANGED(selfextend, 2, 2)

static int64_t dca_chunk(const struct problem *p, int e)
{
    return whole_option(p, e, "chunk") - whole_option(p, e, "local");
}
static int dca_class(const struct problem *p, int e, int64_t q, int64_t k)
{
    const int64_t apart = quotient(q, dca_chunk(p, e)) - quotient(k, dca_chunk(p, e));
    return apart < 0 ? 0 : apart > 2 ? 2 : (int)apart;
}
static precise dca_place(const struct problem *p, int e, bool query, int64_t pos)
{
    const int64_t c = dca_chunk(p, e), most = whole_option(p, e, "chunk");
    const int64_t in = pos - c * quotient(pos, c);
    int64_t at = in;
    if (query && p->form == 1) at = in + c;
    if (query && p->form == 2) at = 2 * c - 1;
    return at < most ? at : most;
}
DEFINE_RANGED(dca, 3, 1)

/* ---- pope: magnitudes softplus(x) at angles pos w + delta ------------------------------------ */

static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
/* The phase of a channel of a key; queries have none.  The ends of the range are open to
 * gradients, also -2 pi as a float, which is a little less. */
static double pope_delta(const struct problem *p, int e, int head, int t)
{
    return tensor(p, e, "delta")[head * p->D + t];
}
static bool pope_inside(double delta) { return delta <= 0 && (float)delta >= (float)-full_circle; }
static precise pope_angle(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                          int t)
{
    const precise w = power_of(option(p, e, "base", 10000), -(precise)t / p->D);
    const precise turn = coordinate(p, which, 0, row) * w;
    return which == LOCI_QUERY ? turn : turn + clip(pope_delta(p, e, head, t), -full_circle, 0);
}
static void pope(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                 const double *x, double *y)
{
    for (int t = 0; t < p->D; t++) {
        const precise phi = pope_angle(p, e, which, head, row, t);
        double cosine, sine;
        angle_turn(phi, &cosine, &sine);
        y[t] = softplus(x[t]) * cosine;
        y[p->D + t] = softplus(x[t]) * sine;
    }
}
static void pope_backward(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                          const double *x, const double *dy, double *dx)
{
    double *ddelta = dtensor(p, e, "delta");
    for (int t = 0; t < p->D; t++) {
        const precise phi = pope_angle(p, e, which, head, row, t);
        const double a = dy[t], b = dy[p->D + t];
        double cosine, sine;
        angle_turn(phi, &cosine, &sine);
        dx[t] = 0;
        /* Padding, which may contain NaN, has no gradient. */
        if (a == 0 && b == 0) continue;
        dx[t] = sigmoid(x[t]) * (a * cosine + b * sine);
        if (which == LOCI_QUERY || !pope_inside(pope_delta(p, e, head, t))) continue;
        ddelta[head * p->D + t] += softplus(x[t]) * (b * cosine - a * sine);
    }
}
/* Softplus and its slope may be 0 below e^-60. */
static double may_be_lost(const struct problem *p, double x)
{
    return x < -60 ? 1 / p->budget->to->unit : 1;
}
static void pope_sizes(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                       const double *x, double *size)
{
    (void)e;
    (void)which;
    (void)head;
    (void)row;
    for (int t = 0; t < p->D; t++)
        size[t] = size[p->D + t] =
            (softplus(x[t]) + sigmoid(x[t]) * fabs(x[t])) * may_be_lost(p, x[t]);
}
static void pope_back_sizes(struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                            const double *x, const double *by, double *to)
{
    double *const ddelta = p->budget->dtensor[tensor_number(p, e, "delta")];
    (void)row;
    for (int t = 0; t < p->D; t++) {
        const double both = (by[t] + by[p->D + t]) * may_be_lost(p, x[t]), slope = sigmoid(x[t]);
        to[t] = slope * (1 + (1 - slope) * fabs(x[t])) * both;
        if (which == LOCI_QUERY || !pope_inside(pope_delta(p, e, head, t))) continue;
        ddelta[head * p->D + t] += (softplus(x[t]) + slope * fabs(x[t])) * both;
    }
}
const struct definition loci_define_pope = {
    .name = "pope",
    .rotate = pope,
    .rotate_backward = pope_backward,
    .row_sizes = pope_sizes,
    .row_back_sizes = pope_back_sizes,
};

/* ---- mrope: rope, but each pair rotates by one of three axes --------------------------------- */

/* -1 on the two axes that do not rotate pair t. */
static int mrope_number(const struct problem *p, int e, int kv, int axis, int t)
{
    double times = listed(p, e, "sections", 0), heights = listed(p, e, "sections", 1),
           widths = listed(p, e, "sections", 2);
    int mine = 0;
    (void)kv;
    if (option(p, e, "order", 0) == 0) mine = (t >= times) + (t >= times + heights);
    else if (t % 3 == 1 && t < 3 * heights) mine = 1;
    else if (t % 3 == 2 && t < 3 * widths) mine = 2;
    return mine == axis ? t : -1;
}
static struct pairs pairs_of_mrope(const struct problem *p, int e)
{
    struct pairs r = pairs_of_rope(p, e);
    r.axes = 3;
    r.number = mrope_number;
    return r;
}
DEFINE_PAIRS(mrope)

/* ---- xpos --------------------------------------------------------------------------------------
 *
 * Rope, and pair t of a query at pos times z_t^(pos / scale_base), of a key times the inverse. */

static struct pairs pairs_of_xpos(const struct problem *p, int e)
{
    struct pairs r = pairs_of_rope(p, e);
    r.interleaved = true;
    return r;
}
/* Multiplies the pairs of a row; its own adjoint. */
static void fade_row(const struct problem *p, int e, loci_which which, ptrdiff_t row, double *x)
{
    double dim = option(p, e, "dim", p->D), gamma = option(p, e, "gamma", 0.4);
    /* Scores do not depend on this origin; a rotation alone counts from 0. */
    int64_t from = p->plan->stage == LOCI_ATTENTION && p->Lk > 0 ? k_position(p, p->Lk - 1) : 0;
    double at = which == LOCI_QUERY ? (double)(q_position(p, row) - from)
                                    : (double)(from - k_position(p, row));
    for (int t = 0; t < (int)dim / 2; t++) {
        double z = pow((2 * t / dim + gamma) / (1 + gamma), at / option(p, e, "scale_base", 512));
        x[2 * t] *= z;
        x[2 * t + 1] *= z;
    }
}
/* Rows for a cache are rotated but never faded. */
static void xpos(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                 const double *x, double *y)
{
    struct pairs r = pairs_of_xpos(p, e);
    rotate_pairs(p, e, &r, which, head, row, x, y);
    if (which != LOCI_CACHE) fade_row(p, e, which, row, y);
}
/* Fading is its own adjoint and comes first on the way back. */
static void xpos_backward(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                          const double *x, const double *dy, double *dx)
{
    struct pairs r = pairs_of_xpos(p, e);
    double faded[1024]; /* the widest head there is */
    memcpy(faded, dy, (size_t)p->D * sizeof *faded);
    if (which != LOCI_CACHE) fade_row(p, e, which, row, faded);
    rotate_pairs_backward(p, e, &r, which, head, row, x, faded, dx);
}
static void fade_cached(const struct problem *p, int e, ptrdiff_t row, double *x)
{
    fade_row(p, e, LOCI_KEY, row, x);
}

const struct definition loci_define_xpos = {
    .name = "xpos",
    .rotate = xpos,
    .rotate_backward = xpos_backward,
    .cached = fade_cached,
};

/* ---- rope2d ------------------------------------------------------------------------------------
 *
 * Half of the pairs rotate by x, half by y, each with frequencies base^(-4n/D),
 * n = 0 .. D/4 - 1. */

static int rope2d_number(const struct problem *p, int e, int kv, int axis, int t)
{
    bool alternate = option(p, e, "layout", 0) == 1;
    int quarter = p->D / 4;
    (void)kv;
    if (alternate) return t % 2 == axis ? t / 2 : -1;
    return t / quarter == axis ? t % quarter : -1;
}
static precise rope2d_frequency(const struct problem *p, int e, int n)
{
    return power_of(option(p, e, "base", 100), (precise)-4 * n / p->D);
}
static struct pairs pairs_of_rope2d(const struct problem *p, int e)
{
    return (struct pairs){
        .count = p->D / 2,
        .axes = 2,
        .interleaved = option(p, e, "pairing", 1) == 1,
        .factor = 1,
        .learned = "",
        .number = rope2d_number,
        .formula = rope2d_frequency,
    };
}
DEFINE_PAIRS(rope2d)

/* ---- mixed: freq[axis][kv head][t], learned -------------------------------------------------- */

static int mixed_number(const struct problem *p, int e, int kv, int axis, int t)
{
    (void)e;
    return (axis * p->Hkv + kv) * (p->D / 2) + t;
}
static struct pairs pairs_of_mixed(const struct problem *p, int e)
{
    return (struct pairs){
        .count = p->D / 2,
        .axes = (int)option(p, e, "axes", 2),
        .interleaved = option(p, e, "pairing", 1) == 1,
        .factor = 1,
        .learned = "freq",
        .number = mixed_number,
    };
}
DEFINE_PAIRS(mixed)

/* ---- fope --------------------------------------------------------------------------------------
 *
 * Pair (t, t + D/2) as a complex number, times c + is:
 * sums of waves for t < sums, then 1 + i pad_sin. */

/* One row's cos or sin: the number of waves, and sums of them. */
struct fope {
    const struct problem *p;
    int e, all, waves, sums, kv;
    double x;
};

static int fope_all(const struct problem *p, int e)
{
    return (int)fmax(option(p, e, "fourier_dim", 0), p->D) / 2;
}
static ptrdiff_t fope_room(const struct problem *p, int e) { return 2 * fope_all(p, e); }
/* Frequency l; 0 below the floor. */
static precise fope_frequency(const struct fope *f, int l)
{
    const precise w = power_of(option(f->p, f->e, "base", 10000), -(precise)l / f->all);
    double least = full_circle / option(f->p, f->e, "train_length", 512)
                 * option(f->p, f->e, "floor_ratio", 1);
    return option(f->p, f->e, "clamp", 1) != 0 && w < least ? 0 : w;
}
/* Counts the remaining waves and the pairs that are sums of them; the waves go to scratch. */
static struct fope fope_of(const struct problem *p, int e, loci_which which, int head,
                           ptrdiff_t row)
{
    struct fope f = { .p = p,
                      .e = e,
                      .all = fope_all(p, e),
                      .kv = kv_of(p, which, head),
                      .x = coordinate(p, which, 0, row) };
    bool ignore = option(p, e, "ignore_zero", 1) != 0;
    f.waves = f.all;
    /* Frequencies fall, so zeros are at the end. */
    while (ignore && f.waves > 0 && fope_frequency(&f, f.waves - 1) == 0) f.waves--;
    f.sums = !ignore ? p->D / 2 : f.waves < p->D / 4 ? f.waves : p->D / 4;
    for (int l = 0; l < f.waves; l++)
        angle_turn(f.x * fope_frequency(&f, l), p->rotate_scratch + l,
                   p->rotate_scratch + f.all + l);
    return f;
}

/* The coefficients of cos or sin of the head: their tensor, where those of column t begin, and
 * the sum of the column, by which norm divides. */
static const char *fope_tensor(const struct fope *f, bool cosine)
{
    return cosine && tensor(f->p, f->e, "cos") ? "cos" : "sin";
}
static ptrdiff_t fope_column(const struct fope *f, bool cosine, int t)
{
    return table_of_head(form(f->p, f->e, fope_tensor(f, cosine)), f->kv) + t;
}
static double fope_whole(const struct fope *f, bool cosine, int t)
{
    const double *C = tensor(f->p, f->e, fope_tensor(f, cosine)) + fope_column(f, cosine, t);
    double sum = 0;
    if (option(f->p, f->e, "norm", 0) == 0) return 1;
    for (int l = 0; l < f->waves; l++) sum += C[l * f->sums];
    return sum;
}
/* cos or sin of wave l at this row. */
static double fope_wave(const struct fope *f, bool cosine, int l)
{
    return f->p->rotate_scratch[(cosine ? 0 : f->all) + l];
}
/* cos or sin of pair t: a sum of waves, or the constants of the pairs beyond. */
static double fope_sum(const struct fope *f, bool cosine, int t)
{
    if (t >= f->sums) return cosine ? 1 : option(f->p, f->e, "pad_sin", 1);
    const double *C = tensor(f->p, f->e, fope_tensor(f, cosine)) + fope_column(f, cosine, t);
    double sum = 0;
    for (int l = 0; l < f->waves; l++) sum += fope_wave(f, cosine, l) * C[l * f->sums];
    return sum / fope_whole(f, cosine, t);
}
static void fope(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                 const double *x, double *y)
{
    const struct fope f = fope_of(p, e, which, head, row);
    int half = p->D / 2;
    for (int t = 0; t < half; t++) {
        double c = fope_sum(&f, true, t), s = fope_sum(&f, false, t);
        y[t] = x[t] * c - x[t + half] * s;
        y[t + half] = x[t] * s + x[t + half] * c;
    }
}
/* d is the gradient by the cos or sin of pair t.  Under norm the sum is a mean of the waves, so
 * each coefficient counts by its distance from the mean. */
static void give_coefficients(const struct fope *f, bool cosine, int t, double d)
{
    double *dC = dtensor(f->p, f->e, fope_tensor(f, cosine)) + fope_column(f, cosine, t),
           whole = fope_whole(f, cosine, t);
    double mean = option(f->p, f->e, "norm", 0) != 0 ? fope_sum(f, cosine, t) : 0;
    for (int l = 0; l < f->waves; l++)
        dC[l * f->sums] += d * (fope_wave(f, cosine, l) - mean) / whole;
}
static void fope_backward(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                          const double *x, const double *dy, double *dx)
{
    const struct fope f = fope_of(p, e, which, head, row);
    int half = p->D / 2;
    for (int t = 0; t < half; t++) {
        double c = fope_sum(&f, true, t), s = fope_sum(&f, false, t), a = dy[t], b = dy[t + half];
        dx[t] = a * c + b * s;
        dx[t + half] = -a * s + b * c;
        /* Padding, which may contain NaN, has no gradient. */
        if (t >= f.sums || option(p, e, "learn", 0) == 0 || (a == 0 && b == 0)) continue;
        /* y = x (c + i s): dc and ds are the real and imaginary parts of dy conj(x). */
        give_coefficients(&f, true, t, a * x[t] + b * x[t + half]);
        give_coefficients(&f, false, t, b * x[t] - a * x[t + half]);
    }
}
/* With norm, a coefficient of fope counts by its wave minus the mean of all: they may be equal. */
static void fope_means(struct problem *p, int e, int kv, const double *x, const double *by)
{
    struct sizes *z = p->budget;
    double gradient = 0, channels = 0;
    if (option(p, e, "norm", 0) == 0 || option(p, e, "learn", 0) == 0) return;
    for (int c = 0; c < p->D; c++) {
        gradient = fmax(gradient, by[c]);
        channels += fabs(x[c]);
    }
    for (int n = p->plan->first_tensor[e]; n < p->plan->first_tensor[e + 1]; n++) {
        const loci_tensor *f = &p->plan->tensors.list[n];
        const ptrdiff_t sums = f->shape[f->rank - 1], waves = f->shape[f->rank - 2],
                        first = table_of_head(f, kv);
        for (ptrdiff_t t = 0; t < sums; t++) {
            double whole = 0;
            for (ptrdiff_t l = 0; l < waves; l++)
                whole += ((const double *)p->tensors[n])[first + l * sums + t];
            for (ptrdiff_t l = 0; l < waves; l++)
                z->dtensor[n][first + l * sums + t] += gradient * channels / fabs(whole);
        }
    }
}
const struct definition loci_define_fope = {
    .name = "fope",
    .rotate = fope,
    .rotate_backward = fope_backward,
    .scratch_size = fope_room,
    .turn_sizes = fope_means,
    .cancels = true,
};

/* ---- angles: rows rotate by angles of the call ----------------------------------------------- */

/* Pair t of a row, and its angle. */
struct turned {
    int count, a, b;
};
static struct turned turned(const struct problem *p, int e, int t)
{
    const int count = (int)option(p, e, "dim", p->D) / 2, first = (int)option(p, e, "offset", 0);
    const bool interleaved = option(p, e, "pairing", 0) != 0;
    return (struct turned){ count, first + (interleaved ? 2 * t : t),
                            first + (interleaved ? 2 * t + 1 : t + count) };
}
static const char *angles_of(loci_which which) { return which == LOCI_QUERY ? "phi_q" : "phi_k"; }
static ptrdiff_t angles_row(const struct problem *p, int e, loci_which which, int head,
                            ptrdiff_t row)
{
    const bool query = which == LOCI_QUERY;
    return ((p->b * (query ? p->H : p->Hkv) + head) * (query ? p->Lq : p->Lk) + row)
         * turned(p, e, 0).count;
}
static void angles(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                   const double *x, double *y)
{
    const double *phi = tensor(p, e, angles_of(which)) + angles_row(p, e, which, head, row);
    memcpy(y, x, (size_t)p->D * sizeof *y);
    for (int t = 0; t < turned(p, e, 0).count; t++) {
        const struct turned r = turned(p, e, t);
        y[r.a] = x[r.a] * cos(phi[t]) - x[r.b] * sin(phi[t]);
        y[r.b] = x[r.a] * sin(phi[t]) + x[r.b] * cos(phi[t]);
    }
}
static void angles_backward(const struct problem *p, int e, loci_which which, int head,
                            ptrdiff_t row, const double *x, const double *dy, double *dx)
{
    const ptrdiff_t at = angles_row(p, e, which, head, row);
    const double *phi = tensor(p, e, angles_of(which)) + at;
    double *dphi = dtensor(p, e, angles_of(which));
    memcpy(dx, dy, (size_t)p->D * sizeof *dx);
    for (int t = 0; t < turned(p, e, 0).count; t++) {
        const struct turned r = turned(p, e, t);
        dx[r.a] = dy[r.a] * cos(phi[t]) + dy[r.b] * sin(phi[t]);
        dx[r.b] = -dy[r.a] * sin(phi[t]) + dy[r.b] * cos(phi[t]);
        if (dphi) dphi[at + t] += x[r.a] * dx[r.b] - x[r.b] * dx[r.a];
    }
}
static void angles_turn(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                        double sign, const double *x, double *y)
{
    const double *phi = tensor(p, e, angles_of(which)) + angles_row(p, e, which, head, row);
    memcpy(y, x, (size_t)p->Dv * sizeof *y);
    for (int t = 0; t < turned(p, e, 0).count; t++) {
        const struct turned r = turned(p, e, t);
        y[r.a] = x[r.a] * cos(phi[t]) - sign * x[r.b] * sin(phi[t]);
        y[r.b] = sign * x[r.a] * sin(phi[t]) + x[r.b] * cos(phi[t]);
    }
}
static void angles_turn_gradient(const struct problem *p, int e, loci_which which, int head,
                                 ptrdiff_t row, const double *x, const double *d)
{
    double *dphi = dtensor(p, e, angles_of(which));
    for (int t = 0; t < turned(p, e, 0).count; t++) {
        const struct turned r = turned(p, e, t);
        if (d[r.a] == 0 && d[r.b] == 0) continue;
        dphi[angles_row(p, e, which, head, row) + t] += x[r.a] * d[r.b] - x[r.b] * d[r.a];
    }
}
const struct definition loci_define_angles = {
    .name = "angles",
    .rotate = angles,
    .rotate_backward = angles_backward,
    .turn = angles_turn,
    .turn_gradient = angles_turn_gradient,
};

/* ---- tape: rows rotate by states, by query head; ae = sum_j w_ij ek_j ------------------------ */

/* Where the states of a row begin: they belong to query heads, for keys too. */
static ptrdiff_t tape_row(const struct problem *p, loci_which which, int head, ptrdiff_t row)
{
    return ((p->b * p->H + head) * (which == LOCI_QUERY ? p->Lq : p->Lk) + row) * p->D;
}
static const char *tape_states(loci_which which) { return which == LOCI_QUERY ? "eq" : "ek"; }

static void tape(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                 const double *x, double *y)
{
    const double *state = tensor(p, e, tape_states(which)) + tape_row(p, which, head, row);
    for (int t = 0, half = p->D / 2; t < half; t++, state += 2) {
        y[t] = state[0] * x[t] - state[1] * x[t + half];
        y[t + half] = state[1] * x[t] + state[0] * x[t + half];
    }
}
/* Rows without a gradient, such as padding, may contain NaN. */
static void tape_backward(const struct problem *p, int e, loci_which which, int head, ptrdiff_t row,
                          const double *x, const double *dy, double *dx)
{
    const double *state = tensor(p, e, tape_states(which)) + tape_row(p, which, head, row);
    double *dstate = dtensor(p, e, tape_states(which)) + tape_row(p, which, head, row);
    for (int t = 0, half = p->D / 2; t < half; t++, state += 2, dstate += 2) {
        double a = dy[t], b = dy[t + half];
        dx[t] = dx[t + half] = 0;
        if (a == 0 && b == 0) continue;
        dx[t] = state[0] * a + state[1] * b;
        dx[t + half] = state[0] * b - state[1] * a;
        /* The same for states: a rotation by (c, s) is a complex product. */
        dstate[0] += a * x[t] + b * x[t + half];
        dstate[1] += b * x[t] - a * x[t + half];
    }
}

/* ae averages the states of keys with the weights of the values. */
static void tape_value(struct problem *p, int e, int h)
{
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (p->seen[j])
            add_scaled(p->ae + h * p->D, of_head(p, p->w, h)[j],
                       tensor(p, e, "ek") + tape_row(p, LOCI_KEY, h, j), p->D);
}
static void tape_value_backward(struct problem *p, int e, int h)
{
    const double *dae = p->dae + h * p->D;
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        of_head(p, p->dw, h)[j] += dot(dae, tensor(p, e, "ek") + tape_row(p, LOCI_KEY, h, j), p->D);
        add_scaled(dtensor(p, e, "ek") + tape_row(p, LOCI_KEY, h, j), of_head(p, p->w, h)[j], dae,
                   p->D);
    }
}
const struct definition loci_define_tape = {
    .name = "tape",
    .rotate = tape,
    .rotate_backward = tape_backward,
    .value = tape_value,
    .value_backward = tape_value_backward,
};

/* ---- The rotation alone ---------------------------------------------------------------------- */

/* One row.  dx NULL: the gradient goes to `unused`, as the tensors'
 * gradients are computed with it. */
static void rotate_row(const struct problem *p, int e, loci_which which, int h, ptrdiff_t i,
                       const double *x, const double *dy, double *y, double *dx, double *unused)
{
    const struct definition *def = e < 0 ? NULL : p->def[e];
    size_t bytes = (size_t)p->D * sizeof *x;
    if (dy && def) def->rotate_backward(p, e, which, h, i, x, dy, dx ? dx : unused);
    else if (dy && dx) memcpy(dx, dy, bytes);
    if (y && def) def->rotate(p, e, which, h, i, x, y);
    else if (y) memcpy(y, x, bytes);
}

/* Rows are independent.  With dy the gradients of tensors are summed over all of them. */
loci_status loci_reference_rotate(const loci_plan *plan, const void *const *tensors,
                                  const loci_call *call, loci_which which, loci_view x, loci_view y,
                                  loci_view dy, loci_view dx, void *const *dtensors)
{
    struct problem problem, *p = &problem;
    loci_status status =
        loci_reference_open(p, plan, tensors,
                            which == LOCI_QUERY ? LOCI_DIM_QUERIES : LOCI_DIM_KEYS, call);
    if (status) return status;
    CHECK(call->error, plan->stage != LOCI_EMBED, LOCI_BAD_ARG,
          "a plan of stage embed rotates nothing");
    CHECK(call->error, which == LOCI_QUERY || p->Hk == p->Hkv, LOCI_BAD_ARG,
          "the heads of a group turn its keys apart");

    int heads = which == LOCI_QUERY ? p->H : p->Hkv, turning = loci_reference_rotation(p);
    ptrdiff_t rows = which == LOCI_QUERY ? p->Lq : p->Lk;

    double *memory =
        calloc((size_t)(loci_reference_dtensors(p, NULL) + 3 * p->D + loci_reference_scratch(p)),
               sizeof *memory);
    CHECK(call->error, memory, LOCI_NO_MEMORY, "no memory for the reference");
    double *x1 = memory + loci_reference_dtensors(p, memory), *dy1 = x1 + p->D,
           *unused = dy1 + p->D;
    p->rotate_scratch = unused + p->D;
    x = dense(x, heads, rows, p->D);
    y = dense(y, heads, rows, p->D);
    dy = dense(dy, heads, rows, p->D);
    dx = dense(dx, heads, rows, p->D);
    for (p->b = 0; p->b < p->B; p->b++)
        for (int h = 0; h < heads; h++)
            for (ptrdiff_t i = 0; i < rows; i++) {
                /* Copies, as y may be x and dx may be dy. */
                memcpy(x1, view_row(x, p->b, h, i), (size_t)p->D * sizeof *x1);
                if (dy.data) memcpy(dy1, view_row(dy, p->b, h, i), (size_t)p->D * sizeof *dy1);
                rotate_row(p, turning, which, h, i, x1, dy.data ? dy1 : NULL,
                           y.data ? view_row(y, p->b, h, i) : NULL,
                           dx.data ? view_row(dx, p->b, h, i) : NULL, unused);
            }
    if (dy.data) loci_reference_give(p, dtensors);
    free(memory);
    return LOCI_OK;
}
