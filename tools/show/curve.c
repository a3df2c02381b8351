/* SPDX-License-Identifier: MIT */
/* curve.c -- scores by distance: what an encoding adds, and what a rotation leaves of q.k. */
#include <stdlib.h>

#include "show/subject.h"

enum { DRAWS = 64, SHOWN_HEADS = 8 };

static void label_axes(struct figure *f, const char *y)
{
    snprintf(f->x.label, sizeof f->x.label, "distance i - j");
    snprintf(f->y.label, sizeof f->y.label, "%s", y);
}

/* ---- Biases ---------------------------------------------------------------------------------- */

/* A bias by position alone: a line for each head, or for eight of them. */
static void bias_figure(struct figure *f, const struct show *s, const double *bias)
{
    const int lines = s->heads < SHOWN_HEADS ? s->heads : SHOWN_HEADS;
    figure_lines(f, s->len, lines);
    for (int l = 0; l < lines; l++) {
        const int h = lines > 1 ? l * (s->heads - 1) / (lines - 1) : 0;
        snprintf(f->line[l].name, FIGURE_NAME, "head %d", h);
        for (ptrdiff_t d = 0; d < s->len; d++) {
            f->at[d] = (double)d;
            f->line[l].y[d] = bias[d * s->heads + h];
        }
    }
    snprintf(f->title, sizeof f->title, "%s: what it adds to a score, by distance", s->name);
    snprintf(f->about, sizeof f->about,
             "Of keys so far behind the query at position %td, with queries and keys of 0.",
             s->len - 1);
    label_axes(f, "added to the score");
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The mean of the samples and the interval of the middle nine tenths.  Sorts. */
static void sum_up(struct line *l, ptrdiff_t at, double *drawn, ptrdiff_t n)
{
    double sum = 0;
    ptrdiff_t there = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        if (isfinite(drawn[i])) {
            sum += drawn[i];
            drawn[there++] = drawn[i];
        }
    l->y[at] = l->low[at] = l->high[at] = NAN;
    if (there == 0) return;
    qsort(drawn, (size_t)there, sizeof *drawn, by_value);
    l->y[at] = sum / (double)there;
    l->low[at] = drawn[there / 20];
    l->high[at] = drawn[there - 1 - there / 20];
}

/* Random tokens of a sequence: uses all rows that have a key at this distance. */
static loci_status drawn_in_order(struct show *s, struct figure *f, loci_error *e)
{
    const ptrdiff_t n = s->len, count = n * s->heads * s->dim;
    double *q = draw_alloc((size_t)count, sizeof *q), *k = draw_alloc((size_t)count, sizeof *k);
    double *at = draw_alloc((size_t)n, sizeof *at), *drawn = draw_alloc((size_t)n, sizeof *drawn);
    double *with = draw_alloc((size_t)(n * n * s->heads), sizeof *with);
    double *without = draw_alloc((size_t)(n * n * s->heads), sizeof *without);
    show_normal(s, STREAM_Q, q, count);
    show_normal(s, STREAM_K, k, count);
    show_places(s, n, 0, at);
    const struct tokens t = { .n = n, .q = q, .k = k, .at = at };
    loci_status status = show_scores(s, &t, false, with, e);
    if (!status) status = show_scores(s, &t, true, without, e);
    for (ptrdiff_t d = 0; d < n && !status; d++) {
        for (ptrdiff_t i = d; i < n; i++) {
            const ptrdiff_t pair = (s->head * n + i) * n + i - d;
            drawn[i - d] = with[pair] - without[pair];
        }
        sum_up(&f->line[0], d, drawn, n - d);
    }
    free(q);
    free(k);
    free(at);
    free(drawn);
    free(with);
    free(without);
    return status;
}

static loci_status drawn_pairs(struct show *s, struct figure *f, loci_error *e)
{
    struct draws d = show_make_draws(s, DRAWS, false);
    double drawn[DRAWS];
    const struct pairs p = { .n = DRAWS, .q = d.q, .k = d.k };
    loci_status status = show_plain(s, &p, d.plain, e);
    for (ptrdiff_t at = 0; at < s->len && !status; at++) {
        status = show_draw(s, &d, false, -1, (double)(s->len - 1), (double)(s->len - 1 - at), e);
        for (int i = 0; i < DRAWS; i++)
            drawn[i] = d.score[i * s->heads + s->head] - d.plain[i * s->heads + s->head];
        sum_up(&f->line[0], at, drawn, DRAWS);
    }
    show_free_draws(&d);
    return status;
}

/* For biases that depend on q and k too. */
static loci_status drawn_figure(struct show *s, struct figure *f, loci_error *e)
{
    figure_lines(f, s->len, 1);
    figure_band(f, 0);
    for (ptrdiff_t d = 0; d < s->len; d++) f->at[d] = (double)d;
    snprintf(f->line[0].name, FIGURE_NAME, "mean");
    snprintf(f->title, sizeof f->title, "%s: what it adds to a score, by distance", s->name);
    snprintf(f->about, sizeof f->about,
             "It hangs on queries and keys: the mean over random ones, N(0, 1), and where nine "
             "tenths lie; head %d of %d. Their plain product is taken away.",
             s->head, s->heads);
    label_axes(f, "added to the score");
    return s->in_order ? drawn_in_order(s, f, e) : drawn_pairs(s, f, e);
}

/* ---- Rotations ------------------------------------------------------------------------------- */

/* Scores without scale, and without added biases at that distance. */
static loci_status rotated_line(struct show *s, struct line *l, bool same, int axis,
                                const double *bias, loci_error *e)
{
    struct draws d = show_make_draws(s, DRAWS, true);
    const double scale = s->all.plan->scale;
    const ptrdiff_t n = (ptrdiff_t)DRAWS * s->heads;
    double *drawn = draw_alloc((size_t)n, sizeof *drawn);
    loci_status status = LOCI_OK;
    for (ptrdiff_t at = 0; at < s->len && !status; at++) {
        const double last = show_adds(s) ? (double)(s->len - 1) : 0;
        status = show_adds(s) ? show_draw(s, &d, same, axis, last, last - (double)at, e)
                              : show_draw(s, &d, same, axis, (double)at, 0, e);
        for (ptrdiff_t i = 0; i < n; i++)
            drawn[i] = (d.score[i] - (bias ? bias[at * s->heads + i % s->heads] : 0)) / scale;
        sum_up(l, at, drawn, n);
    }
    free(drawn);
    show_free_draws(&d);
    return status;
}

static loci_status rotated_figure(struct show *s, struct figure *f, const double *bias,
                                  loci_error *e)
{
    static const char *const names[] = { "axis 0", "axis 1", "axis 2", "all axes" };
    const int lines = s->axes > 1 ? s->axes + 1 : 2;
    loci_status status = LOCI_OK;
    figure_lines(f, s->len, lines);
    for (ptrdiff_t d = 0; d < s->len; d++) f->at[d] = (double)d;
    for (int l = 0; l < lines && !status; l++) {
        figure_band(f, l);
        const char *name = s->axes > 1 ? names[l < s->axes ? l : 3] : l ? "random" : "q = k";
        snprintf(f->line[l].name, FIGURE_NAME, "%s", name);
        const bool same = s->axes > 1 || l == 0;
        status = rotated_line(s, &f->line[l], same, l < s->axes && s->axes > 1 ? l : -1, bias, e);
        if (s->axes == 1) continue;
        /* bands over bands are unreadable */
        free(f->line[l].low);
        free(f->line[l].high);
        f->line[l].low = f->line[l].high = NULL;
    }
    snprintf(f->title, sizeof f->title, "%s: what turning leaves of q.k, by distance", s->name);
    snprintf(
        f->about, sizeof f->about,
        s->axes > 1
            ? "The mean of q.R(d)k over %d random unit vectors q = k, moved along one axis or all."
            : "q.R(d)k of %d random unit vectors: of a vector with itself, and of two. The mean, "
              "and where nine tenths lie.",
        DRAWS * s->heads);
    label_axes(f, "q.R(d)k");
    return status;
}

/* ---- Score transforms ------------------------------------------------------------------------ */

/* Scores from -x to x, with x large enough to show the transform. */
static loci_status bend_figure(struct show *s, struct figure *f, loci_error *e)
{
    enum { POINTS = 129 };
    const ptrdiff_t width = (ptrdiff_t)s->heads * s->dim;
    double *q = draw_alloc((size_t)(POINTS * width), sizeof *q);
    double *k = draw_alloc((size_t)(POINTS * width), sizeof *k);
    double *at = draw_alloc((size_t)(POINTS * s->axes), sizeof *at);
    double *out = draw_alloc((size_t)(POINTS * s->heads), sizeof *out);
    figure_lines(f, POINTS, 2);
    const struct pairs p = { POINTS, q, k, at, at };
    loci_status status = LOCI_OK;
    for (double reach = 1; reach < 1e9 && !status; reach *= 2) {
        for (int i = 0; i < POINTS; i++) {
            f->at[i] = f->line[1].y[i] = reach * (2.0 * i / (POINTS - 1) - 1);
            q[i * width + s->head * s->dim] = f->at[i] / s->all.plan->scale;
            k[i * width + s->head * s->dim] = 1;
        }
        status = show_pairs(s, &p, out, e);
        for (int i = 0; i < POINTS; i++) f->line[0].y[i] = out[i * s->heads + s->head];
        if (f->line[0].y[POINTS - 1] < 0.35 * reach) break;
    }
    snprintf(f->line[0].name, FIGURE_NAME, "with it");
    snprintf(f->line[1].name, FIGURE_NAME, "without");
    snprintf(f->title, sizeof f->title, "%s: scores before and after", s->name);
    snprintf(f->about, sizeof f->about,
             "It knows no positions: a score is bent, wherever its key is.");
    snprintf(f->x.label, sizeof f->x.label, "score before");
    snprintf(f->y.label, sizeof f->y.label, "score after");
    free(q);
    free(k);
    free(at);
    free(out);
    return status;
}

loci_status show_curve(struct show *s, struct figure *f, int *count, loci_error *e)
{
    if (show_bends(s)) {
        *count = 1;
        return bend_figure(s, f, e);
    }
    double *bias = draw_alloc((size_t)(s->len * s->heads), sizeof *bias);
    bool nothing = true;
    loci_status status = LOCI_OK;
    if (show_adds(s)) {
        status = show_bias(s, s->len, bias, &nothing, e);
        if (!status && !nothing) bias_figure(f, s, bias);
        else if (!status) status = drawn_figure(s, f, e);
        *count = 1;
    }
    /* when a score depends on q and k, the effect of a rotation cannot be isolated */
    if (!status && show_rotates(s) && !s->in_order && (!show_adds(s) || !nothing))
        status = rotated_figure(s, &f[(*count)++], show_adds(s) ? bias : NULL, e);
    free(bias);
    return status;
}
