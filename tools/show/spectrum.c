/* SPDX-License-Identifier: MIT */
/* spectrum.c -- the speeds of a rotation, and its directions. */
#include <stdlib.h>
#include <string.h>

#include "show/subject.h"

static const double two_pi = 6.283185307179586;

double show_option(const struct config *c, const char *name)
{
    for (int i = 0; encoding_options(c->pe)[i].name; i++)
        if (!strcmp(encoding_options(c->pe)[i].name, name)) return c->opt[i];
    return NAN;
}

static const struct config *rotation_of_text(const struct show *s)
{
    const struct loci_plan *p = s->all.plan;
    return p->rotate >= 0 ? &p->enc[p->use[p->rotate].enc] : NULL;
}

/* The library's own rule, without the scaling. */
static loci_status unscaled(const struct config *c, double *list, int pairs, loci_error *e)
{
    char text[96];
    loci_plan *plan;
    snprintf(text, sizeof text, "rope:pairing=half,base=%.17g,dim=%d", show_option(c, "base"),
             2 * pairs);
    const loci_desc d =
        LOCI_DESC(.encoding = text, .stage = LOCI_ROTATE, .heads = 1, .dim = 2 * pairs);
    TRY(loci_plan_create(&plan, &d, e));
    loci_frequencies(plan, list, pairs, NULL);
    loci_plan_destroy(plan);
    return LOCI_OK;
}

/* The rule's frequency of each pair, and the scaled one. */
static loci_status by_rule(struct show *s, struct figure *f, int pairs, loci_error *e)
{
    double *now = draw_alloc((size_t)pairs, sizeof *now), factor;
    double *before = draw_alloc((size_t)pairs, sizeof *before);
    const struct config *c = rotation_of_text(s);
    const bool scaled = show_option(c, "scaling") > 0;
    const double original = show_option(c, "original_length");
    const bool told = original > 0 || s->trained != (double)s->len;
    const double length = original > 0 ? original : s->trained;
    loci_frequencies(s->all.plan, now, pairs, &factor);
    const loci_status status = scaled ? unscaled(c, before, pairs, e) : LOCI_OK;
    int slow = 0, moved = 0;
    figure_lines(f, pairs, scaled ? 2 : 1);
    for (int t = 0; t < pairs; t++) {
        f->at[t] = t;
        f->line[0].y[t] = now[t] > 0 ? two_pi / now[t] : NAN;
        if (scaled) f->line[1].y[t] = two_pi / before[t];
        slow += now[t] * length < two_pi;
        moved += scaled && !(fabs(now[t] / before[t] - 1) < 1e-9);
    }
    snprintf(f->line[0].name, FIGURE_NAME, scaled ? "as it is" : "");
    snprintf(f->line[1].name, FIGURE_NAME, "unscaled");
    f->mark[f->marks++] = (struct mark){ .across = true, .at = length };
    snprintf(f->mark[0].name, FIGURE_NAME, told ? "trained length %.0f" : "len %.0f", length);
    snprintf(f->title, sizeof f->title, "%s: wavelengths of its pairs", s->name);
    snprintf(f->about, sizeof f->about,
             "Positions per turn. %d of %d pairs never complete one within %.0f positions. ", slow,
             pairs, length);
    const size_t n = strlen(f->about);
    if (scaled)
        snprintf(f->about + n, sizeof f->about - n,
                 "The scaling moved %d of them. Turned q and k are multiplied by %.6g.", moved,
                 factor);
    snprintf(f->x.label, sizeof f->x.label, "pair");
    snprintf(f->y.label, sizeof f->y.label, "positions per turn");
    f->y.log = true;
    free(now);
    free(before);
    return status;
}

/* Rotates a single channel from 0 to 1, by axis: the angle between the vector before and after. */
static loci_status measured(struct show *s, struct figure *f, loci_error *e)
{
    const int dim = s->dim, axes = s->axes < MAX_AXES ? s->axes : MAX_AXES;
    const ptrdiff_t width = (ptrdiff_t)s->heads * dim;
    double *x = draw_alloc((size_t)(dim * width), sizeof *x);
    double *y = draw_alloc((size_t)(dim * width), sizeof *y);
    double *at = draw_alloc((size_t)(dim * s->axes), sizeof *at);
    loci_status status = LOCI_OK;
    figure_lines(f, dim, axes);
    for (int a = 0; a < axes && !status; a++) {
        for (int c = 0; c < dim; c++) {
            x[c * width + s->head * dim + c] = 1;
            for (int k = 0; k < s->axes; k++) at[c * s->axes + k] = k == a;
        }
        status = show_rotate(s, dim, x, at, y, e);
        for (int c = 0; c < dim; c++) {
            const double *turned = y + c * width + s->head * dim;
            double rest = 0;
            for (int k = 0; k < dim; k++) rest += k == c ? 0 : turned[k] * turned[k];
            const double angle = atan2(sqrt(rest), turned[c]);
            f->at[c] = c;
            f->line[a].y[c] = angle > 1e-12 ? two_pi / angle : NAN;
        }
        if (axes > 1) snprintf(f->line[a].name, FIGURE_NAME, "axis %d", a);
    }
    snprintf(f->title, sizeof f->title, "%s: how fast its channels turn", s->name);
    snprintf(f->about, sizeof f->about,
             "Positions per turn, from the angle by which a channel alone turns in one step; head "
             "%d. Channels that do not turn are left out.",
             s->head);
    snprintf(f->x.label, sizeof f->x.label, "channel");
    snprintf(f->y.label, sizeof f->y.label, "positions per turn");
    f->y.log = true;
    free(x);
    free(y);
    free(at);
    return status;
}

loci_status show_spectrum(struct show *s, struct figure *f, int *count, loci_error *e)
{
    const int pairs = loci_frequencies(s->all.plan, NULL, 0, NULL);
    *count = 1;
    return pairs && s->axes == 1 ? by_rule(s, f, pairs, e) : measured(s, f, e);
}

/* ---- Angles ---------------------------------------------------------------------------------- */

/* R(p) applied to a row of ones. */
static loci_status by_position(struct show *s, struct figure *f, loci_error *e)
{
    const ptrdiff_t n = s->len, width = (ptrdiff_t)s->heads * s->dim;
    double *x = draw_alloc((size_t)(n * width), sizeof *x);
    double *y = draw_alloc((size_t)(n * width), sizeof *y);
    double *at = draw_alloc((size_t)n, sizeof *at);
    for (ptrdiff_t i = 0; i < n * width; i++) x[i] = 1;
    show_places(s, n, 0, at);
    const loci_status status = show_rotate(s, n, x, at, y, e);
    figure_heat(f, n, s->dim);
    for (ptrdiff_t i = 0; i < n; i++)
        for (int c = 0; c < s->dim; c++) f->z[i * s->dim + c] = y[i * width + s->head * s->dim + c];
    snprintf(f->title, sizeof f->title, "%s: a vector of ones, turned", s->name);
    snprintf(f->about, sizeof f->about,
             "Row p is R(p) applied to a vector of %d ones, as a query of head %d at position p.",
             s->dim, s->head);
    snprintf(f->x.label, sizeof f->x.label, "channel");
    snprintf(f->y.label, sizeof f->y.label, "position p");
    snprintf(f->scale.label, sizeof f->scale.label, "value");
    free(x);
    free(y);
    free(at);
    return status;
}

/* The first two of several axes: what a rotation leaves of a vector's product with itself. */
static loci_status by_plane(struct show *s, struct figure *f, loci_error *e)
{
    const int side = s->len < 97 ? (int)s->len | 1 : 97, half = side / 2;
    const ptrdiff_t n = (ptrdiff_t)side, width = (ptrdiff_t)s->heads * s->dim;
    double *x = draw_alloc((size_t)(n * width), sizeof *x);
    double *q_at = draw_alloc((size_t)(n * s->axes), sizeof *q_at);
    double *k_at = draw_alloc((size_t)(n * s->axes), sizeof *k_at);
    double *out = draw_alloc((size_t)(n * s->heads), sizeof *out);
    const struct pairs p = { n, x, x, q_at, k_at };
    const double whole = (double)s->dim * s->all.plan->scale;
    loci_status status = LOCI_OK;
    for (ptrdiff_t i = 0; i < n * width; i++) x[i] = 1;
    figure_heat(f, n, n);
    f->x.low = f->y.low = -half;
    /* of time, height and width, the last two */
    const int up = s->axes > 2 ? 1 : 0;
    for (int i = 0; i < side && !status; i++) {
        for (int j = 0; j < side; j++) {
            q_at[j * s->axes + up] = i - half;
            q_at[j * s->axes + up + 1] = j - half;
        }
        status = show_pairs(s, &p, out, e);
        for (int j = 0; j < side; j++) f->z[i * n + j] = out[j * s->heads + s->head] / whole;
    }
    snprintf(f->title, sizeof f->title, "%s: what turning leaves of q.q, over the plane", s->name);
    snprintf(f->about, sizeof f->about,
             "q.R(dx, dy)q of a vector of ones, as a share of q.q, head %d: 1 in the middle, where "
             "nothing turns.",
             s->head);
    snprintf(f->x.label, sizeof f->x.label, "distance along axis %d", up + 1);
    snprintf(f->y.label, sizeof f->y.label, "distance along axis %d", up);
    snprintf(f->scale.label, sizeof f->scale.label, "share of q.q");
    free(x);
    free(q_at);
    free(k_at);
    free(out);
    return status;
}

loci_status show_angles(struct show *s, struct figure *f, int *count, loci_error *e)
{
    *count = 1;
    return s->axes > 1 ? by_plane(s, f, e) : by_position(s, f, e);
}
