/* SPDX-License-Identifier: MIT */
/* embed.c -- encodings that are added to the embeddings, and the addition. */
#include <stdlib.h>

#include "reference/problem.h"

/* ---- sinusoidal: sines and cosines of pos w_t --------------------------------------------------
 *
 * The paper has w_t = base^(-2t/d) and pairs side by side; tensor2tensor ends exactly at 1/base and
 * leaves the last channel of an odd width zero. */
static void sinusoidal(const struct problem *p, int e, int64_t pos, double *y)
{
    int d = p->plan->model_dim;
    bool t2t = option(p, e, "freq", 0) == 1, halves = option(p, e, "layout", 0) == 1;
    double base = option(p, e, "base", 10000), steps = d / 2 > 1 ? d / 2 - 1 : 1;
    /* Waves: the last sine of an odd width has no cosine, and with t2t does not exist either. */
    int count = t2t ? d / 2 : (d + 1) / 2;
    for (int t = 0; t < count; t++) {
        const precise exponent = t2t ? -t / (precise)steps : (precise)-2 * t / d;
        const precise angle = pos * power_of(base, exponent);
        int sine = halves ? t : 2 * t, cosine = halves ? count + t : 2 * t + 1;
        y[sine] += angle_sin(angle);
        if (cosine < d) y[cosine] += angle_cos(angle);
    }
}
const struct definition loci_define_sinusoidal = { .name = "sinusoidal", .embed = sinusoidal };

/* ---- learned: a row of a table per position -------------------------------------------------- */

static loci_status learned_check(const struct problem *p, int e, loci_error *error)
{
    struct problem at = *p;
    int64_t rows = form(p, e, "table")->shape[0];
    for (at.b = 0; at.b < at.B; at.b++)
        for (ptrdiff_t i = 0; i < at.Lq; i++) {
            int64_t pos = q_position(&at, i);
            CHECK(error, pos >= 0 && pos < rows, LOCI_BAD_ARG,
                  "learned: position %lld is outside of the table's %lld rows", (long long)pos,
                  (long long)rows);
        }
    return LOCI_OK;
}
/* x += table[pos], and dtable[pos] += dx. */
static void learned(const struct problem *p, int e, int64_t pos, double *y)
{
    add_scaled(y, 1, tensor(p, e, "table") + pos * p->plan->model_dim, p->plan->model_dim);
}
static void learned_backward(const struct problem *p, int e, int64_t pos, const double *dy)
{
    add_scaled(dtensor(p, e, "table") + pos * p->plan->model_dim, 1, dy, p->plan->model_dim);
}
const struct definition loci_define_learned = {
    .name = "learned",
    .check = learned_check,
    .embed = learned,
    .embed_backward = learned_backward,
};

/* ---- The position itself, as a part of the length, and in binary ----------------------------- */

/* Rejects positions that have no row or code, before any row is written. */
static loci_status below(const struct problem *p, const char *name, int64_t limit,
                         loci_error *error)
{
    struct problem at = *p;
    for (at.b = 0; at.b < at.B; at.b++)
        for (ptrdiff_t i = 0; i < at.Lq; i++) {
            int64_t pos = q_position(&at, i);
            CHECK(error, pos >= 0 && pos < limit, LOCI_BAD_ARG,
                  "%s: position %lld must be from 0 to %lld", name, (long long)pos,
                  (long long)limit - 1);
        }
    return LOCI_OK;
}
/* Adds one number to all channels. */
static void add_everywhere(const struct problem *p, double x, double *y)
{
    for (int c = 0; c < p->plan->model_dim; c++) y[c] += x;
}

static loci_status index_check(const struct problem *p, int e, loci_error *error)
{
    (void)e;
    /* all whole numbers that floats represent */
    return below(p, "index", (1 << 24) + 1, error);
}
static void whole_index(const struct problem *p, int e, int64_t pos, double *y)
{
    (void)e;
    add_everywhere(p, (double)pos, y);
}
const struct definition loci_define_index = {
    .name = "index",
    .check = index_check,
    .embed = whole_index,
};

static loci_status normalised_check(const struct problem *p, int e, loci_error *error)
{
    return below(p, "normalised", (int64_t)option(p, e, "length", 0), error);
}
static void normalised(const struct problem *p, int e, int64_t pos, double *y)
{
    add_everywhere(p, (double)pos / (option(p, e, "length", 0) - 1), y);
}
const struct definition loci_define_normalised = {
    .name = "normalised",
    .check = normalised_check,
    .embed = normalised,
};

static loci_status binary_check(const struct problem *p, int e, loci_error *error)
{
    const int bits = p->plan->model_dim;
    (void)e;
    return below(p, "binary", bits < 62 ? (int64_t)1 << bits : (int64_t)1 << 62, error);
}
/* Lowest bit first; positions are not negative, so / and % give the bits. */
static void binary(const struct problem *p, int e, int64_t pos, double *y)
{
    (void)e;
    for (int c = 0; c < p->plan->model_dim; c++, pos /= 2) y[c] += (double)(pos % 2);
}
const struct definition loci_define_binary = {
    .name = "binary",
    .check = binary_check,
    .embed = binary,
};

/* ---- The addition ---------------------------------------------------------------------------- */

/* y = x plus the encodings, row by row; x and y may be the same rows. */
loci_status loci_reference_embed(const loci_plan *plan, const void *const *tensors,
                                 const loci_call *call, loci_view x, loci_view y, loci_view dy,
                                 void *const *dtensors)
{
    struct problem problem, *p = &problem;
    loci_status status = loci_reference_open(p, plan, tensors, 0, call);
    if (status) return status;
    CHECK(call->error, plan->stage == LOCI_EMBED, LOCI_BAD_ARG,
          "the plan is not one of stage embed");
    for (int e = 0; e < plan->encs; e++)
        if (p->def[e]->check && (status = p->def[e]->check(p, e, call->error))) return status;

    double *memory = calloc((size_t)loci_reference_dtensors(p, NULL) + 1, sizeof *memory);
    CHECK(call->error, memory, LOCI_NO_MEMORY, "no memory for the reference");
    loci_reference_dtensors(p, memory);
    int width = plan->model_dim;
    x = dense(x, 1, p->Lq, width);
    y = dense(y, 1, p->Lq, width);
    dy = dense(dy, 1, p->Lq, width);
    for (p->b = 0; p->b < p->B; p->b++)
        for (ptrdiff_t i = 0; i < p->Lq; i++) {
            if (y.data)
                memmove(view_row(y, p->b, 0, i), view_row(x, p->b, 0, i),
                        (size_t)width * sizeof(double));
            for (int e = 0; e < plan->encs; e++) {
                if (!p->def[e]->embed) continue;
                if (y.data) p->def[e]->embed(p, e, q_position(p, i), view_row(y, p->b, 0, i));
                if (dy.data && p->def[e]->embed_backward)
                    p->def[e]->embed_backward(p, e, q_position(p, i), view_row(dy, p->b, 0, i));
            }
        }
    if (dy.data) loci_reference_give(p, dtensors);
    free(memory);
    return LOCI_OK;
}
