/* SPDX-License-Identifier: MIT */
/* svg.c -- a figure as SVG: axes, lines with names at their ends, heat maps as one picture each.
 * It has a light and a dark form, selected by the reader's preference. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util/printable.h"
#include "draw/axis.h"
#include "draw/png.h"

/* Narrow, so that text is readable on a telephone that shows the whole width. */
enum { WIDTH = 520, LINES_HEIGHT = 320, HEAT_SIDE = 320, LETTER = 7, LEADING = 15 };

/* ---- Text ------------------------------------------------------------------------------------ */

/* The width of a text in pixels at a height of 12 pixels, estimated generously. */
static double width_of(const char *s)
{
    int n = 0;
    for (uint32_t code; *s; n++) {
        const int bytes = read_utf8(s, &code);
        s += bytes > 0 ? bytes : 1;
    }
    return LETTER * n;
}

static void label(struct text *t, double x, double y, const char *class, const char *anchor,
                  const char *words)
{
    text_add(t, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", class, x, y,
             anchor);
    text_xml(t, words);
    text_add(t, "</text>\n");
}

/* All pictures have the same style, so that a page can contain many of them. */
static void style(struct text *t)
{
    const char *const sheet =
        ".bg{fill:#fff}.s{font:12px system-ui,sans-serif;fill:#24292f}"
        ".h{font:600 14px system-ui,sans-serif;fill:#24292f}"
        ".n{font:10px system-ui,sans-serif;fill:#24292f}"
        ".g{stroke:#d8dee4}.a{stroke:#57606a;fill:none}.m{stroke:#57606a;stroke-dasharray:2 3}";
    const char *const dark = ".bg{fill:#0d1117}.s,.h,.n{fill:#e6edf3}.g{stroke:#30363d}"
                             ".a,.m{stroke:#8b949e}";
    text_add(t, "<style>%s", sheet);
    for (int i = 0; i < LINE_COLOURS; i++) {
        const struct colour c = line_colours[i].light;
        text_add(t, ".c%d{stroke:#%02x%02x%02x;stroke-dasharray:%s}.f%d{fill:#%02x%02x%02x}", i,
                 c.r, c.g, c.b, *line_colours[i].dash ? line_colours[i].dash : "none", i, c.r, c.g,
                 c.b);
    }
    text_add(t, "@media(prefers-color-scheme:dark){%s", dark);
    for (int i = 0; i < LINE_COLOURS; i++) {
        const struct colour c = line_colours[i].dark;
        text_add(t, ".c%d{stroke:#%02x%02x%02x}.f%d{fill:#%02x%02x%02x}", i, c.r, c.g, c.b, i, c.r,
                 c.g, c.b);
    }
    text_add(t, "}</style>\n");
}

/* Wraps words to the picture's width.  Returns their height. */
static double heading(struct text *t, const char *title, double x, double width)
{
    char line[sizeof((struct figure *)0)->title];
    double y = 22;
    while (*title) {
        size_t n = 0, end = 0;
        while (title[n]) {
            n += strcspn(title + n, " ");
            if (end && (double)(n * 8) > width) break;
            end = n;
            if (title[n]) n++;
        }
        memcpy(line, title, end);
        line[end] = 0;
        label(t, x, y, "h", "start", line);
        y += LEADING + 3;
        title += end + (title[end] == ' ');
    }
    return y;
}

static void begin(struct text *t, const struct figure *f, double top, double height)
{
    text_add(t, "<svg xmlns=\"http://www.w3.org/2000/svg\" ");
    if (top > 0) text_add(t, "y=\"%.0f\" ", top);
    text_add(t, "viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" role=\"img\">\n<title>",
             WIDTH, height, WIDTH, height);
    text_xml(t, f->title);
    text_add(t, "</title>\n<desc>");
    text_xml(t, f->about);
    text_add(t, "</desc>\n");
    style(t);
    text_add(t, "<rect class=\"bg\" width=\"%d\" height=\"%.0f\"/>\n", WIDTH, height);
}

/* ---- Axes ------------------------------------------------------------------------------------ */

struct frame {
    double left, top, width, height;
    struct axis x, y;
    bool down;
};

static double x_at(const struct frame *r, double x) { return r->left + r->width * along(&r->x, x); }
static double y_at(const struct frame *r, double y)
{
    const double share = along(&r->y, y);
    return r->top + r->height * (r->down ? share : 1 - share);
}

static double widest(const struct ticks *t)
{
    double w = 0;
    for (int i = 0; i < t->n; i++) w = fmax(w, width_of(t->text[i]));
    return w;
}

/* grid: lines across the picture; a heat map has none. */
static void axes(struct text *t, const struct frame *r, bool grid)
{
    struct ticks x, y;
    ticks_of(&x, &r->x, 7);
    ticks_of(&y, &r->y, 6);
    const double bottom = r->top + r->height, right = r->left + r->width;
    text_add(t, "<path class=\"g\" d=\"");
    for (int i = 0; grid && i < y.n; i++)
        text_add(t, "M%.1f %.1fH%.1f", r->left, y_at(r, y.at[i]), right);
    for (int i = 0; i < x.n; i++)
        text_add(t, "M%.1f %.1fV%.1f", x_at(r, x.at[i]), grid ? r->top : bottom, bottom + 4);
    for (int i = 0; !grid && i < y.n; i++)
        text_add(t, "M%.1f %.1fH%.1f", r->left - 4, y_at(r, y.at[i]), r->left);
    text_add(t, "\"/>\n");
    /* labels that would touch the one before are omitted */
    double free_from = -1;
    for (int i = 0; i < x.n; i++) {
        const double at = x_at(r, x.at[i]), half = width_of(x.text[i]) / 2;
        if (at - half < free_from) continue;
        label(t, at, bottom + 18, "s", "middle", x.text[i]);
        free_from = at + half + 6;
    }
    for (int i = 0; i < y.n; i++)
        label(t, r->left - 7, y_at(r, y.at[i]) + 4, "s", "end", y.text[i]);
    label(t, r->left + r->width / 2, bottom + 36, "s", "middle", r->x.label);
    const double up = r->top + r->height / 2;
    text_add(t,
             "<text class=\"s\" transform=\"translate(14 %.1f) rotate(-90)\" "
             "text-anchor=\"middle\">",
             up);
    text_xml(t, r->y.label);
    text_add(t, "</text>\n");
}

/* ---- Lines ----------------------------------------------------------------------------------- */

struct point {
    double x, y;
};

/* Are all points between two points within a seventh of a pixel of the straight line? */
static bool straight(const struct point *p, ptrdiff_t from, ptrdiff_t to)
{
    for (ptrdiff_t i = from + 1; i < to; i++) {
        const double f = (p[i].x - p[from].x) / (p[to].x - p[from].x);
        if (!(fabs(p[from].y + f * (p[to].y - p[from].y) - p[i].y) < 0.15)) return false;
    }
    return true;
}

/* Omits points that lie on the line between their neighbours.  A gap starts a new line. */
static void trace(struct text *t, const struct frame *r, const double *x, const double *y,
                  ptrdiff_t n, bool back, bool go_on)
{
    struct point *p = draw_alloc((size_t)n, sizeof *p);
    ptrdiff_t count = 0;
    for (ptrdiff_t k = 0; k <= n; k++) {
        const ptrdiff_t i = back ? n - 1 - k : k;
        const bool there = k < n && isfinite(x_at(r, x[i])) && isfinite(y_at(r, y[i]));
        if (there) {
            p[count++] = (struct point){ x_at(r, x[i]), y_at(r, y[i]) };
            continue;
        }
        if (count == 1 && !go_on) {
            text_add(t, "M%.1f %.1fh.1", p[0].x, p[0].y);
            count = 0;
        }
        for (ptrdiff_t from = 0; from < count;) {
            text_add(t, "%c%.1f %.1f", from || go_on ? 'L' : 'M', p[from].x, p[from].y);
            ptrdiff_t to = from + 1;
            while (to + 1 < count && straight(p, from, to + 1)) to++;
            from = to;
        }
        count = 0;
    }
    free(p);
}

static void band(struct text *t, const struct frame *r, const struct figure *f, int i)
{
    text_add(t, "<path class=\"f%d\" fill-opacity=\".15\" d=\"", i % LINE_COLOURS);
    trace(t, r, f->at, f->line[i].low, f->n, false, false);
    trace(t, r, f->at, f->line[i].high, f->n, true, true);
    text_add(t, "Z\"/>\n");
}

/* Places the names of lines at their ends, and moves them apart if they would touch. */
static void places(const struct figure *f, const struct frame *r, double *y)
{
    int order[MAX_LINES];
    for (int i = 0; i < f->lines; i++) {
        ptrdiff_t last = f->n - 1;
        while (last > 0 && !isfinite(y_at(r, f->line[i].y[last]))) last--;
        y[i] = f->n > 0 ? y_at(r, f->line[i].y[last]) : NAN;
        if (!isfinite(y[i])) y[i] = r->top + r->height;
        int k = i;
        for (; k > 0 && y[order[k - 1]] > y[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    const double bottom = r->top + r->height + 4;
    for (int k = 1; k < f->lines; k++)
        y[order[k]] = fmax(y[order[k]], y[order[k - 1]] + LEADING - 1);
    double limit = bottom;
    for (int k = f->lines - 1; k >= 0; k--, limit -= LEADING - 1)
        y[order[k]] = fmin(y[order[k]], limit);
}

static void svg_lines(struct text *t, const struct figure *f, double top)
{
    struct axis z;
    struct ticks ticks;
    struct frame r = { .top = top, .height = LINES_HEIGHT - top - 48 };
    figure_reach(f, &r.x, &r.y, &z);
    /* keeps lines away from the edge */
    if (!f->y.log && !(f->y.low < f->y.high)) {
        const double capacity = 0.04 * (r.y.high - r.y.low);
        r.y.low -= capacity;
        r.y.high += capacity;
        if (!(r.y.low < r.y.high)) {
            r.y.low -= 1;
            r.y.high += 1;
        }
    }
    ticks_of(&ticks, &r.y, 6);
    double names = 0, y[MAX_LINES];
    for (int i = 0; i < f->lines; i++) names = fmax(names, width_of(f->line[i].name));
    r.left = 24 + widest(&ticks) + 8;
    r.width = WIDTH - r.left - (f->lines > 0 && names > 0 ? names + 34 : 16);
    axes(t, &r, true);
    for (int i = 0; i < f->marks; i++) {
        const struct mark *m = &f->mark[i];
        const double at = m->across ? y_at(&r, m->at) : x_at(&r, m->at);
        if (!isfinite(at)) continue;
        if (m->across) {
            text_add(t, "<path class=\"m\" d=\"M%.1f %.1fh%.1f\"/>\n", r.left, at, r.width);
            label(t, r.left + 6, at - 5, "s", "start", m->name);
        } else {
            const bool right = at < r.left + r.width / 2;
            text_add(t, "<path class=\"m\" d=\"M%.1f %.1fV%.1f\"/>\n", at, r.top, r.top + r.height);
            label(t, at + (right ? 5 : -5), r.top + 12 + LEADING * i, "s", right ? "start" : "end",
                  m->name);
        }
    }
    for (int i = 0; i < f->lines; i++)
        if (f->line[i].low && f->line[i].high) band(t, &r, f, i);
    for (int i = 0; i < f->lines; i++) {
        text_add(t,
                 "<path class=\"c%d\" fill=\"none\" stroke-width=\"1.8\" "
                 "stroke-linecap=\"round\" d=\"",
                 i % LINE_COLOURS);
        trace(t, &r, f->at, f->line[i].y, f->n, false, false);
        text_add(t, "\"/>\n");
    }
    places(f, &r, y);
    for (int i = 0; i < f->lines && names > 0; i++) {
        const double x = r.left + r.width + 5;
        text_add(t, "<path class=\"c%d\" stroke-width=\"2\" d=\"M%.1f %.1fh20\"/>\n",
                 i % LINE_COLOURS, x, y[i]);
        label(t, x + 24, y[i] + 4, "s", "start", f->line[i].name);
    }
}

/* ---- Heat ------------------------------------------------------------------------------------ */

/* Larger maps are thinned out evenly to what a screen shows. */
enum { MOST_CELLS = 192 };
static void cells(struct text *t, const struct figure *f, const struct axis *scale)
{
    const int rows = f->rows < MOST_CELLS ? (int)f->rows : MOST_CELLS;
    const int cols = f->cols < MOST_CELLS ? (int)f->cols : MOST_CELLS;
    unsigned char *cell = draw_alloc((size_t)rows * (size_t)cols, 1);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            const double z = f->z[i * f->rows / rows * f->cols + j * f->cols / cols];
            const double share = isinf(z) ? z > 0 : fmin(fmax(along(scale, z), 0), 1);
            if (isnan(z)) continue;
            cell[i * cols + j] = (unsigned char)(1 + (isnan(share) ? 0 : 254 * share + 0.5 + 1e-6));
        }
    png_data(t, cell, rows, cols);
    free(cell);
}

static void colour_bar(struct text *t, const struct frame *r, const struct axis *scale)
{
    unsigned char steps[64];
    for (int i = 0; i < 64; i++) steps[i] = (unsigned char)(255 - i * 254 / 63);
    struct frame bar = { .left = r->left + r->width + 24,
                         .top = r->top,
                         .width = 14,
                         .height = r->height,
                         .y = *scale };
    struct ticks ticks;
    text_add(t,
             "<image x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
             "preserveAspectRatio=\"none\" href=\"",
             bar.left, bar.top, bar.width, bar.height);
    png_data(t, steps, 64, 1);
    text_add(t, "\"/>\n");
    ticks_of(&ticks, scale, 6);
    for (int i = 0; i < ticks.n; i++)
        label(t, bar.left + 20, y_at(&bar, ticks.at[i]) + 4, "s", "start", ticks.text[i]);
    const double x = bar.left + 20 + widest(&ticks) + 14, y = bar.top + bar.height / 2;
    text_add(t,
             "<text class=\"s\" transform=\"translate(%.1f %.1f) rotate(-90)\" "
             "text-anchor=\"middle\">",
             x, y);
    text_xml(t, scale->label);
    text_add(t, "</text>\n");
}

/* Cells are squares if possible.  An axis goes through their centres. */
static double heat_height(const struct figure *f)
{
    const double shape = (double)f->rows / (double)f->cols;
    return fmin(fmax(HEAT_SIDE * shape, HEAT_SIDE / 2), HEAT_SIDE);
}

static void svg_heat(struct text *t, const struct figure *f, double top)
{
    struct axis scale;
    struct ticks ticks;
    struct frame r = { .top = top, .width = HEAT_SIDE, .height = heat_height(f), .down = true };
    figure_reach(f, &r.x, &r.y, &scale);
    r.x.low -= 0.5;
    r.x.high += 0.5;
    r.y.low -= 0.5;
    r.y.high += 0.5;
    ticks_of(&ticks, &r.y, 6);
    r.left = 24 + widest(&ticks) + 8;
    text_add(t,
             "<image x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
             "preserveAspectRatio=\"none\" style=\"image-rendering:pixelated\" href=\"",
             r.left, r.top, r.width, r.height);
    cells(t, f, &scale);
    text_add(t, "\"/>\n<rect class=\"a\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
             r.left, r.top, r.width, r.height);
    axes(t, &r, false);
    colour_bar(t, &r, &scale);
}

/* ---- Bars ------------------------------------------------------------------------------------ */

enum { BAR = 9, NAMES_WIDTH = 200 };

static double bars_height(const struct figure *f)
{
    return (double)f->n * (BAR * f->lines + 8) + 70;
}

/* A row of bars for each name, thinner with more series.  The number is at the end of each bar. */
static void svg_bars(struct text *t, const struct figure *f, double top)
{
    struct axis x, z;
    char number[TICK_ROOM];
    struct ticks ticks;
    struct frame r = { .left = NAMES_WIDTH,
                       .top = top + LEADING,
                       .width = WIDTH - NAMES_WIDTH - 60,
                       .height = (double)f->n * (BAR * f->lines + 8) };
    figure_reach(f, &z, &x, &z);
    r.x = x;
    ticks_of(&ticks, &x, 6);
    for (int i = 0; i < f->lines; i++) {
        const double at = NAMES_WIDTH + 110 * i;
        text_add(t, "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"9\"/>\n", i,
                 at, top - 8);
        label(t, at + 17, top, "s", "start", f->line[i].name);
    }
    text_add(t, "<path class=\"g\" d=\"");
    for (int i = 0; i < ticks.n; i++)
        text_add(t, "M%.1f %.1fv%.1f", x_at(&r, ticks.at[i]), r.top - 4, r.height + 4);
    text_add(t, "\"/>\n");
    for (int i = 0; i < ticks.n; i++)
        label(t, x_at(&r, ticks.at[i]), r.top + r.height + 14, "s", "middle", ticks.text[i]);
    label(t, r.left + r.width / 2, r.top + r.height + 32, "s", "middle", f->y.label);
    for (ptrdiff_t i = 0; i < f->n; i++) {
        const double y = r.top + (double)i * (BAR * f->lines + 8);
        label(t, NAMES_WIDTH - 8, y + BAR * f->lines / 2.0 + 4, "s", "end", f->cell[i]);
        for (int k = 0; k < f->lines; k++) {
            const double end = x_at(&r, f->line[k].y[i]), from = x_at(&r, x.log ? x.low : 0);
            if (!isfinite(end)) continue;
            text_add(t, "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" ", k,
                     fmin(from, end), y + BAR * k, fabs(end - from));
            text_add(t, "height=\"%d\"/>\n", BAR - 1);
            short_number(number, sizeof number, f->line[k].y[i]);
            label(t, end + 4, y + BAR * k + 9, "n", "start", number);
        }
    }
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static void svg_table(struct text *t, const struct figure *f, double top)
{
    double x = 8;
    for (ptrdiff_t j = 0; j < f->cols; j++) {
        double w = 0;
        for (ptrdiff_t i = 0; i < f->rows; i++) {
            const char *cell = f->cell[i * f->cols + j] ? f->cell[i * f->cols + j] : "";
            w = fmax(w, width_of(cell));
            label(t, x, top + 4 + (LEADING + 4) * (double)i, i ? "s" : "h", "start", cell);
        }
        x += w + 18;
    }
}

/* Returns its height. */
static double one(struct text *t, const struct figure *f, double from)
{
    struct text words = { 0 };
    const double top = heading(&words, f->title, 8, WIDTH - 16);
    double height = LINES_HEIGHT;
    if (f->kind == FIGURE_HEAT) height = top + heat_height(f) + 48;
    if (f->kind == FIGURE_BARS) height = top + bars_height(f);
    if (f->kind == FIGURE_TABLE) height = top + (LEADING + 4) * (double)f->rows + 8;
    begin(t, f, from, height);
    text_put(t, words.s ? words.s : "", words.n);
    text_free(&words);
    if (f->kind == FIGURE_LINES) svg_lines(t, f, top);
    else if (f->kind == FIGURE_HEAT) svg_heat(t, f, top);
    else if (f->kind == FIGURE_BARS) svg_bars(t, f, top);
    else svg_table(t, f, top);
    text_add(t, "</svg>\n");
    return height;
}

void figure_svg(struct text *t, const struct figure *f) { one(t, f, 0); }

void figures_svg(struct text *t, const struct figure *f, int count)
{
    struct text inside = { 0 };
    double height = 0;
    if (count == 1) {
        figure_svg(t, f);
        return;
    }
    for (int i = 0; i < count; i++) height += one(&inside, &f[i], height);
    text_add(t,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
             "height=\"%.0f\">\n",
             WIDTH, height, WIDTH, height);
    text_put(t, inside.s ? inside.s : "", inside.n);
    text_add(t, "</svg>\n");
    text_free(&inside);
}
