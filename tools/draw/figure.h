/* SPDX-License-Identifier: MIT */
/* figure.h -- a picture before it is drawn: what is on its axes, and the numbers.  The same figure
 * becomes SVG, a page of HTML, lines of a terminal or JSON; nobody else in the tree draws.
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

/* low >= high: as far as the numbers reach */
struct axis { char label[FIGURE_NAME]; bool log; double low, high; };
/* low and high, where not NULL, are a band around y.  NaN: nothing is there. */
struct line { char name[FIGURE_NAME]; double *y, *low, *high; };
/* A straight line through the picture: at an x, or where `across` at a y. */
struct mark { char name[FIGURE_NAME]; bool across; double at; };

struct figure {
    enum figure_kind kind;
    const char *what;                    /* a word for scripts */
    char title[200], about[600];         /* a heading; and what there is to see, in words */
    struct axis x, y;
    /* FIGURE_LINES */
    ptrdiff_t n;
    double *at;                          /* [n], rising */
    int lines, marks;
    struct line line[MAX_LINES];
    struct mark mark[MAX_MARKS];
    /* FIGURE_HEAT: rows lie below each other, row i at y.low + i, column j at x.low + j; z
     * [rows][cols], NaN where nothing is.  FIGURE_TABLE: cells [rows][cols], the first row is the
     * head, the first column names things.  FIGURE_BARS: cells [n][1] are names, line[k].y[i] the
     * lengths of the bars of name i, on the axis y. */
    ptrdiff_t rows, cols;
    double *z;
    struct axis scale;                   /* of z */
    char **cell;
};

/* They make room, zeroed, and set n and lines, rows and cols. */
void figure_lines(struct figure *, ptrdiff_t n, int lines);
void figure_band(struct figure *, int line);         /* low and high of it */
void figure_heat(struct figure *, ptrdiff_t rows, ptrdiff_t cols);
void figure_table(struct figure *, ptrdiff_t rows, ptrdiff_t cols);
void figure_bars(struct figure *, ptrdiff_t n, int lines);
void figure_cell(struct figure *, ptrdiff_t row, ptrdiff_t col, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 4, 5)))
#endif
    ;
void figure_free(struct figure *);

/* From the least to the largest number on an axis; where it says so itself, that.  False: there is
 * none that is finite. */
bool figure_reach(const struct figure *, struct axis *x, struct axis *y, struct axis *z);

enum colours { NO_COLOURS, COLOURS_256, COLOURS_TRUE };
/* columns: how many there are; unicode: blocks and braille, else ASCII */
struct terminal { int columns; enum colours colours; bool unicode; };

/* One SVG element for a file of its own or the inside of a page: it has its style, title and
 * description. A table is no picture, but a list of its rows in text. */
void figure_svg(struct text *, const struct figure *);
void figures_svg(struct text *, const struct figure *, int count);      /* below each other */
/* a table; of pictures the words */
void figure_markdown(struct text *, const struct figure *);
void figure_print(struct text *, const struct figure *, const struct terminal *);
/* Words in lines of so many columns, each after so many blanks. */
void wrap_text(struct text *, const char *words, int columns, int blanks);
void figure_json(struct text *, const struct figure *);          /* an object */
/* A whole page without scripts; side: figures next to each other, as many as fit. */
void figures_html(struct text *, const char *title, const char *about, const struct figure *,
                  int count, bool side);
/* Such a page's beginning, with more rules for its style, and its end: for pages with more than
 * figures. */
void html_begin(struct text *, const char *title, const char *about, const char *style);
void html_end(struct text *);
/* One figure's part of such a page: a heading, the picture or the table. */
void figure_html(struct text *, const struct figure *);

#endif
