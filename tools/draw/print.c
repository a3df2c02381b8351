/* SPDX-License-Identifier: MIT */
/* print.c -- a figure in a terminal.  With colours, a cell of a heat map is half a block and lines
 * are braille dots.  Without colours, cells are characters of different density and lines are
 * letters. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/printable.h"
#include "draw/axis.h"

enum { PLOT_ROWS = 16, NAMES = 24, LEAST_COLUMNS = 40, MOST_COLUMNS = 120 };

static int room_of(const struct terminal *m)
{
    if (m->columns < LEAST_COLUMNS) return LEAST_COLUMNS;
    return m->columns < MOST_COLUMNS ? m->columns : MOST_COLUMNS;
}

/* The nearest steps of the 256-colour palette. */
static int step_of(int x) { return x < 48 ? 0 : x < 115 ? 1 : (x - 35) / 40; }

static void paint(struct text *t, const struct terminal *m, struct colour c, bool behind)
{
    if (m->colours == COLOURS_TRUE)
        text_add(t, "\033[%d;2;%d;%d;%dm", behind ? 48 : 38, c.r, c.g, c.b);
    else
        text_add(t, "\033[%d;5;%dm", behind ? 48 : 38,
                 16 + 36 * step_of(c.r) + 6 * step_of(c.g) + step_of(c.b));
}

/* Words wrapped to `columns`, each line behind `blanks` blanks.  A word that is too long breaks
 * after a comma or a bar, or at the end of the line. */
void wrap_text(struct text *t, const char *words, int columns, int blanks)
{
    const int capacity = columns - blanks < 8 ? 8 : columns - blanks;
    int at = 0;
    bool begun = false;
    for (const char *s = words; *s;) {
        int n = (int)strcspn(s, " ");
        const bool fits = n <= capacity;
        if (!fits) {
            n = capacity - (at ? at + 1 : 0) < capacity / 2 ? capacity
                                                            : capacity - (at ? at + 1 : 0);
            int cut = n;
            while (cut > n / 2 && !strchr(",/", s[cut - 1])) cut--;
            if (cut > n / 2) n = cut;
        }
        if (at == 0 || at + 1 + n > capacity) {
            text_add(t, "%s%*s", begun ? "\n" : "", blanks, "");
            at = 0;
        } else {
            text_add(t, " ");
            at++;
        }
        text_put(t, s, (size_t)n);
        at += n;
        s += n;
        begun = true;
        if (*s && *s != ' ') at = 0; /* the rest goes onto the next line */
        while (*s == ' ') s++;
    }
    text_add(t, "\n");
}

/* ---- Heat ------------------------------------------------------------------------------------ */

/* The value at a place between 0 and 1 in both directions, as a share of the scale.  NaN: empty. */
static double share_at(const struct figure *f, const struct axis *scale, double down, double right)
{
    const ptrdiff_t i = (ptrdiff_t)(down * (double)f->rows);
    const ptrdiff_t j = (ptrdiff_t)(right * (double)f->cols);
    const double z = f->z[i * f->cols + j], share = along(scale, z);
    if (isnan(z)) return NAN;
    if (isinf(z)) return z > 0;
    return isnan(share) ? 0 : fmin(fmax(share, 0), 1);
}

static void half_blocks(struct text *t, const struct terminal *m, double above, double below)
{
    if (isnan(above) && isnan(below)) {
        text_add(t, "\033[0m ");
        return;
    }
    const bool upper = !isnan(above);
    paint(t, m, heat_colour(upper ? above : below), false);
    if (upper && !isnan(below)) paint(t, m, heat_colour(below), true);
    else text_add(t, "\033[49m");
    text_add(t, "%s", upper ? "\u2580" : "\u2584");
}

/* The text under a picture: the ends of its axis, and its name in the middle. */
static void foot(struct text *t, const struct axis *x, int left, int width)
{
    char low[TICK_ROOM], high[TICK_ROOM];
    short_number(low, sizeof low, x->low);
    short_number(high, sizeof high, x->high);
    const int gap = width - (int)strlen(low) - (int)strlen(high), name = (int)strlen(x->label);
    const int before = (gap - name) / 2;
    if (before < 1)
        text_add(t, "%*s%s%*s%s\n%*s%s\n", left, "", low, gap, "", high, left, "", x->label);
    else
        text_add(t, "%*s%s%*s%s%*s%s\n", left, "", low, before, "", x->label, gap - name - before,
                 "", high);
}

static void print_heat(struct text *t, const struct figure *f, const struct terminal *m)
{
    static const char ink[] = ".:-=+*#%@";
    const bool colours = m->colours && m->unicode;
    struct axis x, y, scale;
    figure_reach(f, &x, &y, &scale);
    const int left = 8, most = room_of(m) - left - 2;
    const int cols = f->cols < most ? (int)f->cols : most;
    /* a cell of a terminal is twice as high as wide */
    int rows = (int)((double)cols * (double)f->rows / (double)f->cols / 2 + 0.5);
    if (rows < 2) rows = 2;
    text_add(t, "  %s\n", f->y.label);
    for (int i = 0; i < rows; i++) {
        char number[TICK_ROOM] = "";
        const double row = floor((double)i * (double)f->rows / rows);
        const double down = i == rows - 1 ? y.high : y.low + row;
        if (i % 8 == 0 || i == rows - 1) short_number(number, sizeof number, down);
        text_add(t, "%*s ", left - 1, number);
        for (int j = 0; j < cols; j++) {
            const double right = (j + 0.5) / cols;
            if (colours) {
                half_blocks(t, m, share_at(f, &scale, (i + 0.25) / rows, right),
                            share_at(f, &scale, (i + 0.75) / rows, right));
                continue;
            }
            const double share = share_at(f, &scale, (i + 0.5) / rows, right);
            text_add(t, "%c", isnan(share) ? ' ' : ink[(int)(share * 8 + 0.5 + 1e-6)]);
        }
        text_add(t, colours ? "\033[0m\n" : "\n");
    }
    foot(t, &x, left, cols);
    char low[TICK_ROOM], high[TICK_ROOM];
    short_number(low, sizeof low, scale.low);
    short_number(high, sizeof high, scale.high);
    text_add(t, "  %s: %s ", f->scale.label, low);
    for (int i = 0; i < 9; i++) {
        if (colours) {
            paint(t, m, heat_colour(i / 8.0), false);
            text_add(t, "\u2588");
        } else text_add(t, "%c", ink[i]);
    }
    text_add(t, "%s %s\n", colours ? "\033[0m" : "", high);
}

/* ---- Lines ----------------------------------------------------------------------------------- */

/* A canvas of characters.  Each has 2 x 4 dots with colours, and one place without. */
struct canvas {
    int cols, rows, fine_x, fine_y;
    unsigned char *dots, *owner;
};

static void dot(struct canvas *c, int x, int y, int line)
{
    static const unsigned char bits[4][2] = { { 1, 8 }, { 2, 16 }, { 4, 32 }, { 64, 128 } };
    if (x < 0 || y < 0 || x >= c->cols * c->fine_x || y >= c->rows * c->fine_y) return;
    const int at = y / c->fine_y * c->cols + x / c->fine_x;
    c->dots[at] |= c->fine_x > 1 ? bits[y % 4][x % 2] : 1;
    c->owner[at] = (unsigned char)(line + 1);
}

/* Draws from column to column of dots, and fills the heights between them. */
static void draw_line(struct canvas *c, const struct figure *f, int line, const struct axis *x,
                      const struct axis *y)
{
    const int wide = c->cols * c->fine_x, high = c->rows * c->fine_y;
    int last_x = -1, last_y = 0;
    for (ptrdiff_t i = 0; i < f->n; i++) {
        const double a = along(x, f->at[i]), b = along(y, f->line[line].y[i]);
        if (!isfinite(a) || !isfinite(b)) {
            last_x = -1;
            continue;
        }
        const int px = (int)(a * (wide - 1) + 0.5 + 1e-9);
        const int py = (int)((1 - fmin(fmax(b, 0), 1)) * (high - 1) + 0.5 + 1e-9);
        for (int k = last_x < 0 ? px : last_x + 1; k <= px; k++) {
            const int wide_of = last_x < 0 ? 1 : px - last_x, rise = last_x < 0 ? 0 : py - last_y;
            const int from = last_x < 0 ? py : last_y + rise * (k - 1 - last_x) / wide_of;
            const int to = last_x < 0 ? py : last_y + rise * (k - last_x) / wide_of;
            dot(c, k, to, line);
            for (int h = from; h != to; h += from < to ? 1 : -1) dot(c, k, h, line);
        }
        last_x = px;
        last_y = py;
    }
}

static void braille(struct text *t, unsigned char dots)
{
    const unsigned code = 0x2800u + dots;
    const char bytes[] = { (char)(0xe0 | code >> 12), (char)(0x80 | (code >> 6 & 63)),
                           (char)(0x80 | (code & 63)) };
    text_put(t, bytes, 3);
}

/* Names of lines, several per row. */
static void legend(struct text *t, const struct figure *f, const struct terminal *m, bool dots,
                   int left)
{
    int at = left;
    text_add(t, "%*s", left, "");
    for (int i = 0; i < f->lines; i++) {
        const int n = (int)strlen(f->line[i].name) + 4;
        if (at + n > room_of(m) && at > left) {
            text_add(t, "\n%*s", left, "");
            at = left;
        }
        if (dots) {
            paint(t, m, line_colours[i % LINE_COLOURS].dark, false);
            text_add(t, "\u2501\033[0m %s  ", f->line[i].name);
        } else text_add(t, "%c %s  ", 'a' + i, f->line[i].name);
        at += n;
    }
    text_add(t, "\n");
}

static void print_lines(struct text *t, const struct figure *f, const struct terminal *m)
{
    struct axis x, y, z;
    struct ticks ticks;
    figure_reach(f, &x, &y, &z);
    ticks_of(&ticks, &y, 5);
    const bool dots = m->colours && m->unicode;
    const int left = 10, cols = room_of(m) - left - 2;
    struct canvas c = { .cols = cols,
                        .rows = PLOT_ROWS,
                        .fine_x = dots ? 2 : 1,
                        .fine_y = dots ? 4 : 1,
                        .dots = draw_alloc((size_t)cols * PLOT_ROWS, 1),
                        .owner = draw_alloc((size_t)cols * PLOT_ROWS, 1) };
    for (int i = f->lines - 1; i >= 0; i--) draw_line(&c, f, i, &x, &y);
    text_add(t, "  %s\n", f->y.label);
    for (int i = 0; i < c.rows; i++) {
        const char *number = "";
        for (int k = 0; k < ticks.n; k++)
            if ((int)((1 - along(&y, ticks.at[k])) * (c.rows - 1) + 0.5) == i)
                number = ticks.text[k];
        text_add(t, "%*s %s", left - 2, number, *number ? "+" : "|");
        for (int j = 0; j < cols; j++) {
            const int at = i * cols + j, owner = c.owner[at] - 1;
            if (owner < 0) text_add(t, " ");
            else if (!dots) text_add(t, "%c", 'a' + owner);
            else {
                paint(t, m, line_colours[owner % LINE_COLOURS].dark, false);
                braille(t, c.dots[at]);
                text_add(t, "\033[0m");
            }
        }
        text_add(t, "\n");
    }
    foot(t, &x, left, cols);
    if (f->lines > 1 || f->line[0].name[0]) legend(t, f, m, dots, left);
    for (int i = 0; i < f->marks; i++) {
        char number[TICK_ROOM];
        short_number(number, sizeof number, f->mark[i].at);
        text_add(t, "%*s%s: %s = %s\n", left, "", f->mark[i].name,
                 f->mark[i].across ? f->y.label : f->x.label, number);
    }
    free(c.dots);
    free(c.owner);
}

/* ---- Bars ------------------------------------------------------------------------------------ */

static int columns_of(const char *s)
{
    int n = 0;
    for (uint32_t code; *s; n++) {
        const int bytes = read_utf8(s, &code);
        s += bytes > 0 ? bytes : 1;
    }
    return n;
}

/* A row for each bar.  The name comes before the first bar of its group. */
static void print_bars(struct text *t, const struct figure *f, const struct terminal *m)
{
    struct axis x, z;
    int names = 0;
    figure_reach(f, &z, &x, &z);
    for (ptrdiff_t i = 0; i < f->n; i++)
        if (columns_of(f->cell[i]) > names) names = columns_of(f->cell[i]);
    if (names > 30) names = 30;
    const int capacity = room_of(m) - names - 14;
    for (ptrdiff_t i = 0; i < f->n; i++)
        for (int k = 0; k < f->lines; k++) {
            char number[TICK_ROOM];
            const double share = along(&x, f->line[k].y[i]);
            const int n = isnan(share) ? 0 : (int)(fmin(fmax(share, 0), 1) * capacity + 0.5);
            short_number(number, sizeof number, f->line[k].y[i]);
            text_add(t, "  %-*.*s ", names, names, k ? "" : f->cell[i]);
            if (m->colours) paint(t, m, line_colours[k % LINE_COLOURS].dark, false);
            for (int c = 0; c < n; c++)
                text_add(t, "%s", m->colours && m->unicode ? "\u2588" : k ? "=" : "#");
            text_add(t, "%s %s\n", m->colours ? "\033[0m" : "", number);
        }
    for (int k = 0; k < f->lines && f->lines > 1; k++) {
        text_add(t, k ? "   " : "  ");
        if (m->colours) paint(t, m, line_colours[k % LINE_COLOURS].dark, false);
        text_add(t, "%s%s %s",
                 m->colours && m->unicode ? "\u2588"
                 : k                      ? "="
                                          : "#",
                 m->colours ? "\033[0m" : "", f->line[k].name);
    }
    text_add(t, "   %s\n", f->y.label);
}

/* ---- Tables ---------------------------------------------------------------------------------- */

/* Wraps the last column onto lines below if it does not fit. */
static void last_cell(struct text *t, const char *words, int left, int columns)
{
    int at = 0;
    for (const char *s = words; *s;) {
        const int n = (int)strcspn(s, " ");
        if (at && at + 1 + n > columns) {
            text_add(t, "\n%*s", left, "");
            at = 0;
        } else if (at) {
            text_add(t, " ");
            at++;
        }
        text_put(t, s, (size_t)n);
        at += n;
        s += n;
        while (*s == ' ') s++;
    }
}

/* Columns of numbers are right-aligned. */
static bool is_numbers(const struct figure *f, ptrdiff_t col)
{
    for (ptrdiff_t i = 1; i < f->rows; i++) {
        const char *cell = f->cell[i * f->cols + col];
        if (!cell || !strcmp(cell, "-")) continue;
        if (!strchr("+-.0123456789", *cell) || strchr(cell, ' ')) return false;
    }
    return f->rows > 1 && col > 0;
}

static void print_table(struct text *t, const struct figure *f, const struct terminal *m)
{
    int *width = draw_alloc((size_t)f->cols, sizeof *width), left = 2;
    for (ptrdiff_t j = 0; j < f->cols; j++)
        for (ptrdiff_t i = 0; i < f->rows; i++) {
            const char *cell = f->cell[i * f->cols + j];
            const int n = cell ? columns_of(cell) : 0;
            if (n > width[j]) width[j] = n;
        }
    for (ptrdiff_t j = 0; j + 1 < f->cols; j++) left += width[j] + 2;
    const int rest = room_of(m) - left < 20 ? 20 : room_of(m) - left;
    for (ptrdiff_t i = 0; i < f->rows; i++) {
        text_add(t, i == 0 && m->colours ? "  \033[2m" : "  ");
        for (ptrdiff_t j = 0; j < f->cols; j++) {
            const char *cell = f->cell[i * f->cols + j] ? f->cell[i * f->cols + j] : "";
            if (is_numbers(f, j)) text_add(t, "%*s%s  ", width[j] - columns_of(cell), "", cell);
            else if (j == f->cols - 1) last_cell(t, cell, left, rest);
            else text_add(t, "%s%*s", cell, width[j] + 2 - columns_of(cell), "");
        }
        text_add(t, i == 0 && m->colours ? "\033[0m\n" : "\n");
    }
    free(width);
}

/* Removes blanks before the end of a line. */
static void trim(struct text *t, size_t from)
{
    size_t to = from;
    for (size_t i = from; i < t->n; i++) {
        if (t->s[i] == '\n')
            while (to > from && t->s[to - 1] == ' ') to--;
        t->s[to++] = t->s[i];
    }
    t->n = to;
    if (t->s) t->s[to] = 0;
}

void figure_print(struct text *t, const struct figure *f, const struct terminal *m)
{
    static void (*const kinds[])(struct text *, const struct figure *,
                                 const struct terminal *) = { [FIGURE_LINES] = print_lines,
                                                              [FIGURE_HEAT] = print_heat,
                                                              [FIGURE_BARS] = print_bars,
                                                              [FIGURE_TABLE] = print_table };
    const size_t from = t->n;
    if (m->colours) text_add(t, "\033[1m");
    if (f->title[0]) wrap_text(t, f->title, room_of(m), 0);
    if (m->colours) text_add(t, "\033[0m");
    kinds[f->kind](t, f, m);
    if (f->about[0]) wrap_text(t, f->about, room_of(m), 2);
    trim(t, from);
}
