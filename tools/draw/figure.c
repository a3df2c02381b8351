/* SPDX-License-Identifier: MIT */
/* figure.c -- the data of a figure: allocation, ranges, and export as JSON. */
#include "draw/figure.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void figure_lines(struct figure *f, ptrdiff_t n, int lines)
{
    f->kind = FIGURE_LINES;
    f->n = n;
    f->lines = lines;
    f->at = draw_alloc((size_t)n, sizeof *f->at);
    for (int i = 0; i < lines; i++) f->line[i].y = draw_alloc((size_t)n, sizeof(double));
}

void figure_band(struct figure *f, int line)
{
    f->line[line].low = draw_alloc((size_t)f->n, sizeof(double));
    f->line[line].high = draw_alloc((size_t)f->n, sizeof(double));
}

void figure_heat(struct figure *f, ptrdiff_t rows, ptrdiff_t cols)
{
    f->kind = FIGURE_HEAT;
    f->rows = rows;
    f->cols = cols;
    f->z = draw_alloc((size_t)(rows * cols), sizeof *f->z);
}

void figure_table(struct figure *f, ptrdiff_t rows, ptrdiff_t cols)
{
    f->kind = FIGURE_TABLE;
    f->rows = rows;
    f->cols = cols;
    f->cell = draw_alloc((size_t)(rows * cols), sizeof *f->cell);
}

void figure_bars(struct figure *f, ptrdiff_t n, int lines)
{
    figure_lines(f, n, lines);
    figure_table(f, n, 1);
    f->kind = FIGURE_BARS;
    for (ptrdiff_t i = 0; i < n; i++) f->at[i] = (double)i;
}

void figure_cell(struct figure *f, ptrdiff_t row, ptrdiff_t col, const char *format, ...)
{
    char **cell = &f->cell[row * f->cols + col];
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    const int n = vsnprintf(NULL, 0, format, list);
    va_end(list);
    free(*cell);
    *cell = draw_alloc((size_t)(n > 0 ? n : 0) + 1, 1);
    if (n > 0) vsnprintf(*cell, (size_t)n + 1, format, again);
    va_end(again);
}

void figure_free(struct figure *f)
{
    for (int i = 0; i < f->lines; i++) {
        free(f->line[i].y);
        free(f->line[i].low);
        free(f->line[i].high);
    }
    for (ptrdiff_t i = 0; f->cell && i < f->rows * f->cols; i++) free(f->cell[i]);
    free(f->cell);
    free(f->at);
    free(f->z);
    *f = (struct figure){ 0 };
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

static void widen(struct axis *a, const double *x, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; x && i < n; i++) {
        if (!isfinite(x[i]) || (a->log && x[i] <= 0)) continue;
        a->low = fmin(a->low, x[i]);
        a->high = fmax(a->high, x[i]);
    }
}

static bool fix_scale(struct axis *a, const struct axis *wanted)
{
    const bool found = a->low <= a->high;
    if (wanted->low < wanted->high) {
        a->low = wanted->low;
        a->high = wanted->high;
    } else if (!found) {
        a->low = 0;
        a->high = 1;
    }
    return found;
}

/* Marks count towards the range, unless they are far off. */
bool figure_reach(const struct figure *f, struct axis *x, struct axis *y, struct axis *z)
{
    *x = f->x;
    *y = f->y;
    *z = f->scale;
    struct axis *const all[] = { x, y, z };
    for (int i = 0; i < 3; i++) {
        all[i]->low = INFINITY;
        all[i]->high = -INFINITY;
    }
    if (f->kind == FIGURE_HEAT) {
        x->low = f->x.low;
        x->high = f->x.low + (double)(f->cols - 1);
        y->low = f->y.low;
        y->high = f->y.low + (double)(f->rows - 1);
        widen(z, f->z, f->rows * f->cols);
        return fix_scale(z, &f->scale);
    }
    widen(x, f->at, f->n);
    for (int i = 0; i < f->lines; i++) {
        widen(y, f->line[i].y, f->n);
        widen(y, f->line[i].low, f->n);
        widen(y, f->line[i].high, f->n);
    }
    for (int i = 0; i < f->marks; i++) widen(f->mark[i].across ? y : x, &f->mark[i].at, 1);
    if (f->kind == FIGURE_BARS && !y->log) y->low = fmin(y->low, 0);
    fix_scale(x, &f->x);
    return fix_scale(y, &f->y);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void numbers(struct text *t, const char *name, const double *x, ptrdiff_t n)
{
    text_add(t, ",\"%s\":[", name);
    for (ptrdiff_t i = 0; i < n; i++) {
        if (i) text_add(t, ",");
        text_json_number(t, x[i]);
    }
    text_add(t, "]");
}

static void words(struct text *t, const char *name, const char *value)
{
    text_add(t, ",\"%s\":", name);
    text_json(t, value);
}

static void lines_json(struct text *t, const struct figure *f)
{
    words(t, "x", f->x.label);
    words(t, "y", f->y.label);
    if (f->kind == FIGURE_BARS) {
        text_add(t, ",\"names\":[");
        for (ptrdiff_t i = 0; i < f->n; i++) {
            if (i) text_add(t, ",");
            text_json(t, f->cell[i] ? f->cell[i] : "");
        }
        text_add(t, "]");
    } else numbers(t, "at", f->at, f->n);
    text_add(t, ",\"lines\":[");
    for (int i = 0; i < f->lines; i++) {
        const struct line *l = &f->line[i];
        text_add(t, "%s{\"name\":", i ? "," : "");
        text_json(t, l->name);
        numbers(t, "y", l->y, f->n);
        if (l->low) numbers(t, "low", l->low, f->n);
        if (l->high) numbers(t, "high", l->high, f->n);
        text_add(t, "}");
    }
    text_add(t, "],\"marks\":[");
    for (int i = 0; i < f->marks; i++) {
        text_add(t, "%s{\"name\":", i ? "," : "");
        text_json(t, f->mark[i].name);
        text_add(t, ",\"%s\":", f->mark[i].across ? "y" : "x");
        text_json_number(t, f->mark[i].at);
        text_add(t, "}");
    }
    text_add(t, "]");
}

static void heat_json(struct text *t, const struct figure *f)
{
    words(t, "x", f->x.label);
    words(t, "y", f->y.label);
    words(t, "z", f->scale.label);
    text_add(t, ",\"x0\":%.17g,\"y0\":%.17g,\"values\":[", f->x.low, f->y.low);
    for (ptrdiff_t i = 0; i < f->rows; i++)
        for (ptrdiff_t j = 0; j < f->cols; j++) {
            text_add(t, j ? "," : i ? ",[" : "[");
            text_json_number(t, f->z[i * f->cols + j]);
            if (j == f->cols - 1) text_add(t, "]");
        }
    text_add(t, "]");
}

static void table_json(struct text *t, const struct figure *f)
{
    text_add(t, ",\"rows\":[");
    for (ptrdiff_t i = 1; i < f->rows; i++) {
        text_add(t, i > 1 ? ",{" : "{");
        for (ptrdiff_t j = 0; j < f->cols; j++) {
            const char *value = f->cell[i * f->cols + j];
            if (j) text_add(t, ",");
            text_json(t, f->cell[j] ? f->cell[j] : "");
            text_add(t, ":");
            text_json(t, value ? value : "");
        }
        text_add(t, "}");
    }
    text_add(t, "]");
}

void figure_json(struct text *t, const struct figure *f)
{
    static void (*const kinds[])(struct text *,
                                 const struct figure *) = { [FIGURE_LINES] = lines_json,
                                                            [FIGURE_HEAT] = heat_json,
                                                            [FIGURE_BARS] = lines_json,
                                                            [FIGURE_TABLE] = table_json };
    text_add(t, "{\"what\":");
    text_json(t, f->what ? f->what : "");
    words(t, "title", f->title);
    words(t, "about", f->about);
    kinds[f->kind](t, f);
    text_add(t, "}");
}
