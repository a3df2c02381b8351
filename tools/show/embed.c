/* SPDX-License-Identifier: MIT */
/* embed.c -- rows that are added to tokens: their values, their similarity, and whether one matrix
 * maps each row to a later one. */
#include <stdlib.h>

#include "show/subject.h"

static loci_status rows_of(struct show *s, ptrdiff_t n, double *rows, loci_error *e)
{
    int64_t *at = draw_alloc((size_t)n, sizeof *at);
    for (ptrdiff_t i = 0; i < n; i++) at[i] = i;
    const loci_status status = show_embed(s, n, NULL, at, rows, e);
    free(at);
    return status;
}

loci_status show_embedding(struct show *s, struct figure *f, int *count, loci_error *e)
{
    figure_heat(f, s->len, s->dim);
    snprintf(f->title, sizeof f->title, "%s: what is added to a token", s->name);
    snprintf(f->about, sizeof f->about, "Row p is added to the token at position p, of width %d.",
             s->dim);
    snprintf(f->x.label, sizeof f->x.label, "channel");
    snprintf(f->y.label, sizeof f->y.label, "position p");
    snprintf(f->scale.label, sizeof f->scale.label, "value");
    *count = 1;
    return rows_of(s, s->len, f->z, e);
}

static double dot(const double *a, const double *b, ptrdiff_t n, ptrdiff_t step)
{
    double sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) sum += a[i * step] * b[i * step];
    return sum;
}

/* The residual of the best matrix M for p(i + k) = M p(i), relative to the rows' size.
 * Orthonormalises columns of rows 0 .. n - 1, and projects the later rows off them. */
static double unreached(const double *rows, ptrdiff_t n, int dim, ptrdiff_t k)
{
    double *basis = draw_alloc((size_t)(n * dim), sizeof *basis);
    double *column = draw_alloc((size_t)n, sizeof *column), left = 0, whole = 0;
    int rank = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int c = 0; c < dim; c++) {
            for (ptrdiff_t i = 0; i < n; i++) column[i] = rows[(i + pass * k) * dim + c];
            const double size = dot(column, column, n, 1);
            for (int twice = 0; twice < 2; twice++)
                for (int b = 0; b < rank; b++) {
                    const double share = dot(column, basis + b * n, n, 1);
                    for (ptrdiff_t i = 0; i < n; i++) column[i] -= share * basis[b * n + i];
                }
            const double rest = dot(column, column, n, 1);
            if (pass) {
                left += rest;
                whole += size;
            } else if (rest > 1e-18 * size && rank < dim) {
                for (ptrdiff_t i = 0; i < n; i++) basis[rank * n + i] = column[i] / sqrt(rest);
                rank++;
            }
        }
    free(basis);
    free(column);
    return whole > 0 ? sqrt(left / whole) : 0;
}

/* Wide rows can always be fitted, so there are four times as many rows as channels. */
static loci_status map_table(struct show *s, struct figure *f, loci_error *e)
{
    static const int steps[] = { 1, 2, 8, 32 };
    ptrdiff_t n = 4 * (ptrdiff_t)s->dim;
    const ptrdiff_t most = n > s->len ? n : s->len;
    double *rows = draw_alloc((size_t)((most + 32) * s->dim), sizeof *rows);
    loci_status status = rows_of(s, n + 32, rows, e);
    /* a table may have fewer rows */
    if (status && s->len > s->dim + 32) {
        n = s->len - 32;
        status = rows_of(s, n + 32, rows, e);
    }
    if (status) {
        free(rows);
        return status;
    }
    figure_table(f, COUNT(steps) + 1, 2);
    figure_cell(f, 0, 0, "k");
    figure_cell(f, 0, 1, "left over");
    for (int i = 0; i < COUNT(steps); i++) {
        figure_cell(f, i + 1, 0, "%d", steps[i]);
        figure_cell(f, i + 1, 1, "%.2g", unreached(rows, n, s->dim, steps[i]));
    }
    snprintf(f->title, sizeof f->title, "%s: is p(i + k) = M p(i)?", s->name);
    snprintf(f->about, sizeof f->about,
             "What the best matrix M leaves of p(i + k), i from 0 to %td, as a share of its size: "
             "0 where a fixed matrix moves every position by k.",
             n - 1);
    free(rows);
    return LOCI_OK;
}

loci_status show_similarity(struct show *s, struct figure *f, int *count, loci_error *e)
{
    const ptrdiff_t n = s->len;
    double *rows = draw_alloc((size_t)(n * s->dim), sizeof *rows);
    loci_status status = rows_of(s, n, rows, e);
    figure_heat(&f[0], n, n);
    for (ptrdiff_t i = 0; i < n * n; i++)
        f[0].z[i] = dot(rows + i / n * s->dim, rows + i % n * s->dim, s->dim, 1);
    snprintf(f[0].title, sizeof f[0].title, "%s: p(i).p(j)", s->name);
    snprintf(f[0].about, sizeof f[0].about, "How like each other the rows of two positions are.");
    snprintf(f[0].x.label, sizeof f[0].x.label, "position j");
    snprintf(f[0].y.label, sizeof f[0].y.label, "position i");
    snprintf(f[0].scale.label, sizeof f[0].scale.label, "p(i).p(j)");

    figure_lines(&f[1], n, 3);
    for (int l = 0; l < 3; l++) {
        const ptrdiff_t row = l * (n - 1) / 2;
        snprintf(f[1].line[l].name, FIGURE_NAME, "i = %td", row);
        for (ptrdiff_t j = 0; j < n; j++) {
            f[1].at[j] = (double)j;
            f[1].line[l].y[j] = f[0].z[row * n + j];
        }
    }
    snprintf(f[1].title, sizeof f[1].title, "%s: three rows of p(i).p(j)", s->name);
    snprintf(f[1].about, sizeof f[1].about, "The first position, the middle one and the last.");
    snprintf(f[1].x.label, sizeof f[1].x.label, "position j");
    snprintf(f[1].y.label, sizeof f[1].y.label, "p(i).p(j)");
    free(rows);
    *count = 2;
    loci_error too_short;
    if (!status && !map_table(s, &f[2], &too_short)) *count = 3;
    return status;
}
