/* SPDX-License-Identifier: MIT */
/* figure.h -- a figure before it is drawn: its axes and its numbers.  The same figure becomes SVG,
 * a page of HTML, lines of a terminal or JSON.  All drawing in the tree goes through it.
 *
 *     struct figure f = { .kind = FIGURE_LINES, .what = "curve", .x.label = "distance" };
 *     figure_lines(&f, n, 2);                   // then f.at[], f.line[0].y[], ...
 *     figure_svg(&text, &f);
 *     figure_free(&f); */
#ifndef LOCI_DRAW_FIGURE_H
#define LOCI_DRAW_FIGURE_H

#include <stdbool.h>

#include "draw/text.h"

enum figure_kind { FIGURE_LINES, FIGURE_HEAT, FIGURE_BARS, FIGURE_TABLE };
enum { MAX_LINES = 12, MAX_MARKS = 4, FIGURE_NAME = 64 };

/* low >= high: the range of the numbers. */
struct axis {
    char label[FIGURE_NAME];
    bool log;
    double low, high;
};
/* low and high, where not NULL, are a band around y.  NaN: no point. */
struct line {
    char name[FIGURE_NAME];
    double *y, *low, *high;
};
/* A straight line through the picture at an x, or at a y if `across`. */
struct mark {
    char name[FIGURE_NAME];
    bool across;
    double at;
};

struct figure {
    enum figure_kind kind;
    const char *what;            /* a word for scripts */
    char title[200], about[900]; /* a heading; and a description in words */
    struct axis x, y;
    /* FIGURE_LINES */
    ptrdiff_t n;
    double *at; /* [n], rising */
    int lines, marks;
    struct line line[MAX_LINES];
    struct mark mark[MAX_MARKS];
    /* FIGURE_HEAT: row i is at y.low + i, top row first, column j at x.low + j. z [rows][cols] is
     * NaN for empty cells.  FIGURE_TABLE: cells [rows][cols]; the first row is the head, and the
     * first column has the names.  FIGURE_BARS: cells [n][1] are names, and line[k].y[i] are the
     * lengths of the bars of name i, on the axis y. */
    ptrdiff_t rows, cols;
    double *z;
    struct axis scale; /* of z */
    char **cell;
};

/* Allocate zeroed arrays, and set n and lines, rows and cols. */
void figure_lines(struct figure *, ptrdiff_t n, int lines);
void figure_band(struct figure *, int line); /* low and high of a line */
void figure_heat(struct figure *, ptrdiff_t rows, ptrdiff_t cols);
void figure_table(struct figure *, ptrdiff_t rows, ptrdiff_t cols);
void figure_bars(struct figure *, ptrdiff_t n, int lines);
void figure_cell(struct figure *, ptrdiff_t row, ptrdiff_t col, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 4, 5)))
#endif
    ;
void figure_free(struct figure *);

/* From the least to the largest number on an axis, or the axis's own range if it has one.  False:
 * no finite number. */
bool figure_reach(const struct figure *, struct axis *x, struct axis *y, struct axis *z);

enum colours { NO_COLOURS, COLOURS_256, COLOURS_TRUE };
/* columns: width of the terminal; unicode: blocks and braille, else ASCII. */
struct terminal {
    int columns;
    enum colours colours;
    bool unicode;
};

/* One SVG element, for a file of its own or for inclusion in a page.  It contains its style, title
 * and description.  A table becomes a list of its rows as text. */
void figure_svg(struct text *, const struct figure *);
void figures_svg(struct text *, const struct figure *, int count); /* stacked vertically */
/* a table; for pictures the description */
void figure_markdown(struct text *, const struct figure *);
void figure_print(struct text *, const struct figure *, const struct terminal *);
/* Words wrapped to `columns`, each line behind `blanks` blanks. */
void wrap_text(struct text *, const char *words, int columns, int blanks);
void figure_json(struct text *, const struct figure *); /* an object */
/* A complete page without scripts. side: places figures next to each other if they fit. */
void figures_html(struct text *, const char *title, const char *about, const struct figure *,
                  int count, bool side);
/* The beginning of such a page, with additional CSS rules, and its end: for pages with more than
 * figures. */
void html_begin(struct text *, const char *title, const char *about, const char *style);
void html_end(struct text *);
/* The part of such a page for one figure: a heading, the picture or the table. */
void figure_html(struct text *, const struct figure *);

#endif
