/* SPDX-License-Identifier: MIT */
/* properties.c -- measured answers to textbook questions about an encoding.  Each answer has the
 * largest deviation found, and the number of cases. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "show/measure.h"

void say(struct finding *f, double deviation, int tried, const char *brief, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(f->text, sizeof f->text, format, list);
    va_end(list);
    snprintf(f->brief, sizeof f->brief, "%s", brief);
    f->largest = deviation;
    f->tried = tried;
}

/* A deviation in words: exact, to rounding, or more. */
static const char *grade(double x) { return x == 0 ? "exact" : x < 1e-9 ? "to rounding" : "no"; }

/* ---- Cases ----------------------------------------------------------------------------------- */

/* Random queries and keys at random places below the length.  For encodings in order, a
 * sequence. */
struct cases {
    double *q, *k, *q_at, *k_at;
    ptrdiff_t n, scores;
};
static struct cases make_cases(const struct show *s)
{
    struct cases c = { .n = s->in_order && s->len < CASES ? s->len : CASES };
    const ptrdiff_t count = c.n * s->heads * s->dim;
    c.q = draw_alloc((size_t)count, sizeof(double));
    c.k = draw_alloc((size_t)count, sizeof(double));
    c.q_at = draw_alloc((size_t)(c.n * s->axes), sizeof(double));
    c.k_at = draw_alloc((size_t)(c.n * s->axes), sizeof(double));
    show_normal(s, STREAM_Q, c.q, count);
    show_normal(s, STREAM_K, c.k, count);
    show_normal(s, STREAM_AT, c.q_at, c.n * s->axes);
    show_normal(s, STREAM_AT + 100, c.k_at, c.n * s->axes);
    for (ptrdiff_t i = 0; i < c.n * s->axes; i++) {
        const double span = (double)(s->len - 1);
        c.q_at[i] = floor(fmin(fabs(c.q_at[i]) / 3, 1) * span);
        c.k_at[i] = floor(fmin(fabs(c.k_at[i]) / 3, 1) * span);
    }
    c.scores = s->in_order ? s->heads * c.n * c.n : s->heads * c.n;
    return c;
}
static void free_cases(struct cases *c)
{
    free(c->q);
    free(c->k);
    free(c->q_at);
    free(c->k_at);
}

/* Their scores with all places shifted by the same distance. */
static loci_status moved(struct show *s, const struct cases *c, double shift, double *out,
                         loci_error *e)
{
    const ptrdiff_t n = c->n * s->axes;
    double *q_at = draw_alloc((size_t)n, sizeof *q_at), *k_at = draw_alloc((size_t)n, sizeof *k_at);
    loci_status status;
    for (ptrdiff_t i = 0; i < n; i++) {
        q_at[i] = c->q_at[i] + shift;
        k_at[i] = c->k_at[i] + shift;
    }
    if (s->in_order) {
        show_places(s, c->n, shift, k_at);
        const struct tokens t = { .n = c->n, .q = c->q, .k = c->k, .at = k_at };
        status = show_scores(s, &t, false, out, e);
    } else {
        const struct pairs p = { c->n, c->q, c->k, q_at, k_at };
        status = show_pairs(s, &p, out, e);
    }
    free(q_at);
    free(k_at);
    return status;
}

/* The largest difference of finite numbers, and the largest number. */
double largest(const double *a, const double *b, ptrdiff_t n)
{
    double most = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double d = fabs(a[i] - (b ? b[i] : 0));
        if (isfinite(d)) most = fmax(most, d);
    }
    return most;
}

/* ---- The questions --------------------------------------------------------------------------- */

loci_status ask_translation(struct show *s, struct finding *f, loci_error *e)
{
    static const double shifts[] = { 1, 10, 100, 1e3, 1e4, 1e5, 1e6 };
    struct cases c = make_cases(s);
    double *here = draw_alloc((size_t)c.scores, sizeof *here);
    double *there = draw_alloc((size_t)c.scores, sizeof *there);
    double worst = 0, at = 0, refused = 0;
    const loci_status status = moved(s, &c, 0, here, e);
    const double size = largest(here, NULL, c.scores);
    for (int i = 0; i < COUNT(shifts) && !status && !refused; i++) {
        loci_error error;
        if (moved(s, &c, shifts[i], there, &error)) {
            refused = shifts[i];
            break;
        }
        const double d = largest(here, there, c.scores) / (size > 0 ? size : 1);
        if (d > worst) {
            worst = d;
            at = shifts[i];
        }
    }
    const int tried = COUNT(shifts) * (int)c.scores;
    if (refused)
        say(f, worst, tried, "refused",
            "refused from a shift of %g on; scores change by up to %.2g of the largest before",
            refused, worst);
    else if (worst < 1e-9)
        say(f, worst, tried, grade(worst), "%s: shifts of 1 to 10^6 change no score by more",
            worst == 0 ? "exact" : "to rounding");
    else
        say(f, worst, tried, "no", "no: a shift of %g changes scores by %.2g of the largest", at,
            worst);
    free(here);
    free(there);
    free_cases(&c);
    return status;
}

/* Swaps queries and keys, with or without their vectors. */
loci_status ask_symmetry(struct show *s, struct finding *f, loci_error *e)
{
    if (s->causal_only || s->in_order) {
        say(f, NAN, 0, "ordered", "%s",
            s->causal_only ? "a row sees no key ahead of it" : "a row counts the keys in between");
        return LOCI_OK;
    }
    struct cases c = make_cases(s);
    const size_t n = (size_t)c.scores;
    double *a = draw_alloc(n, sizeof *a), *b = draw_alloc(n, sizeof *b);
    const struct pairs ways[] = { { c.n, c.q, c.k, c.q_at, c.k_at },
                                  { c.n, c.k, c.q, c.k_at, c.q_at },
                                  { c.n, NULL, NULL, c.q_at, c.k_at },
                                  { c.n, NULL, NULL, c.k_at, c.q_at } };
    loci_status status = show_pairs(s, &ways[0], a, e);
    if (!status) status = show_pairs(s, &ways[1], b, e);
    const double size = largest(a, NULL, c.scores);
    const double scores = largest(a, b, c.scores) / (size > 0 ? size : 1);
    if (!status) status = show_pairs(s, &ways[2], a, e);
    if (!status) status = show_pairs(s, &ways[3], b, e);
    const double bias = largest(a, b, c.scores);
    say(f, fmax(scores, bias), 2 * (int)n, scores < 1e-9 && bias < 1e-9 ? "yes" : "no",
        "q and k exchanged with their places: scores %s (%.2g of the largest); positions alone: "
        "%s (%.2g)",
        scores < 1e-9 ? "stay" : "change", scores, bias < 1e-9 ? "stay" : "change", bias);
    free(a);
    free(b);
    free_cases(&c);
    return status;
}

loci_status ask_norm(struct show *s, struct finding *f, loci_error *e)
{
    if (!show_turns(s)) {
        say(f, NAN, 0, "-",
            !show_rotates(s)             ? "nothing is turned"
            : s->all.plan->row_forms > 1 ? "rows have several forms"
                                         : "rows become wider");
        return LOCI_OK;
    }
    struct cases c = make_cases(s);
    const ptrdiff_t rows = c.n * s->heads;
    double *y = draw_alloc((size_t)(rows * s->dim), sizeof *y), worst = 0;
    for (ptrdiff_t i = 0; i < c.n * s->axes; i++)
        c.q_at[i] = floor(c.q_at[i] * 1e6 / (double)s->len);
    const loci_status status = show_rotate(s, c.n, c.q, c.q_at, y, e);
    for (ptrdiff_t i = 0; i < rows && !status; i++) {
        double before = 0, after = 0;
        for (int k = 0; k < s->dim; k++) {
            before += c.q[i * s->dim + k] * c.q[i * s->dim + k];
            after += y[i * s->dim + k] * y[i * s->dim + k];
        }
        worst = fmax(worst, fabs(sqrt(after / before) - 1));
    }
    say(f, worst, (int)rows, worst < 1e-9 ? "kept" : "changed",
        "%s: | |Rx| / |x| - 1 | is at most %.2g, at positions up to 10^6",
        worst < 1e-9 ? "kept" : "changed", worst);
    free(y);
    free_cases(&c);
    return status;
}

/* Does the effect of positions on a pair depend on the pair's vectors? */
loci_status ask_content(struct show *s, struct finding *f, loci_error *e)
{
    if (s->in_order || s->embeds || show_bends(s) || !(show_adds(s) || show_rotates(s))) {
        const char *why = s->embeds     ? "yes: it meets the other token in the product"
                        : s->in_order   ? "yes: by the keys in between"
                        : show_bends(s) ? "yes: by the score"
                                        : "no: nothing is said";
        say(f, NAN, 0, *why == 'y' ? "yes" : "no", "%s", why);
        return LOCI_OK;
    }
    struct cases c = make_cases(s);
    double *with = draw_alloc((size_t)c.scores, sizeof *with);
    double *without = draw_alloc((size_t)c.scores, sizeof *without), spread = 0;
    for (ptrdiff_t i = 0; i < c.n * s->axes; i++) {
        c.q_at[i] = (double)(s->len / 2);
        c.k_at[i] = (double)(s->len / 4);
    }
    const struct pairs p = { c.n, c.q, c.k, c.q_at, c.k_at };
    loci_status status = show_pairs(s, &p, with, e);
    if (!status) status = show_plain(s, &p, without, e);
    for (ptrdiff_t i = s->heads; i < c.scores && !status; i++) {
        const ptrdiff_t h = i % s->heads;
        spread = fmax(spread, fabs(with[i] - without[i] - (with[h] - without[h])));
    }
    say(f, spread, (int)c.scores, spread < 1e-9 ? "no" : "yes",
        "%s: over random q and k, at one distance, it varies by %.2g", spread < 1e-9 ? "no" : "yes",
        spread);
    free(with);
    free(without);
    free_cases(&c);
    return status;
}

/* ---- All of them ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    loci_status (*ask)(struct show *, struct finding *, loci_error *);
} questions[PROPERTY_COUNT] = {
    [PROPERTY_TRANSLATION] = { "invariant to translation", ask_translation },
    [PROPERTY_SYMMETRY] = { "symmetric", ask_symmetry },
    [PROPERTY_MONOTONE] = { "never rises", ask_monotone },
    [PROPERTY_DECAY] = { "decays", ask_decay },
    [PROPERTY_APART] = { "tells positions apart", ask_apart },
    [PROPERTY_NORM] = { "keeps norms", ask_norm },
    [PROPERTY_BEYOND] = { "beyond its length", ask_beyond },
    [PROPERTY_CONTENT] = { "hangs on content", ask_content },
    [PROPERTY_COST] = { "cost", ask_cost },
};

loci_status show_measure(struct show *s, struct finding all[PROPERTY_COUNT], loci_error *e)
{
    for (int i = 0; i < PROPERTY_COUNT; i++) {
        all[i] = (struct finding){ .name = questions[i].name };
        TRY(questions[i].ask(s, &all[i], e));
    }
    return LOCI_OK;
}

loci_status show_properties(struct show *s, struct figure *f, int *count, loci_error *e)
{
    struct finding all[PROPERTY_COUNT];
    TRY(show_measure(s, all, e));
    figure_table(f, PROPERTY_COUNT + 1, 4);
    static const char *const head[] = { "property", "largest", "cases", "finding" };
    for (int j = 0; j < COUNT(head); j++) figure_cell(f, 0, j, "%s", head[j]);
    for (int i = 0; i < PROPERTY_COUNT; i++) {
        figure_cell(f, i + 1, 0, "%s", all[i].name);
        figure_cell(f, i + 1, 1, isnan(all[i].largest) ? "-" : "%.2g", all[i].largest);
        figure_cell(f, i + 1, 2, all[i].tried ? "%d" : "-", all[i].tried);
        figure_cell(f, i + 1, 3, "%s", all[i].text);
    }
    snprintf(f->title, sizeof f->title, "%s: properties, measured", s->name);
    snprintf(f->about, sizeof f->about,
             "In float64, %d heads of %d, length %td. 'largest' is the largest deviation that was "
             "found, 'cases' over how many scores.%s%s",
             s->heads, s->dim, s->len, *s->note ? " " : "", s->note);
    *count = 1;
    return LOCI_OK;
}
