/* SPDX-License-Identifier: MIT */
/* html.c -- figures as a page without scripts: headings, pictures, tables. */
#include "draw/figure.h"

static const char sheet[] =
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;padding:0 1rem;max-width:84rem;"
    "color:#24292f;background:#fff}"
    "h1{font-size:1.5rem}h2{font-size:1.05rem;margin:1.5rem 0 .25rem}"
    "p{max-width:46rem;margin:.25rem 0}"
    "main{display:grid;gap:1rem 2rem}"
    "main.side{grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}"
    "svg{max-width:100%;height:auto}section{min-width:0}section.table{grid-column:1/-1}"
    ".wide{overflow-x:auto}"
    "table{border-collapse:collapse}"
    "th,td{text-align:left;vertical-align:top;padding:.25rem .8rem .25rem 0;"
    "border-bottom:1px solid #d8dee4}"
    "@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}"
    "th,td{border-color:#30363d}}";

static void table(struct text *t, const struct figure *f)
{
    text_add(t, "<div class=\"wide\"><table>\n");
    for (ptrdiff_t i = 0; i < f->rows; i++) {
        text_add(t, i ? "<tr>" : "<thead><tr>");
        for (ptrdiff_t j = 0; j < f->cols; j++) {
            const char *cell = f->cell[i * f->cols + j];
            const char *kind = i && j ? "td" : "th";
            text_add(t, "<%s%s>", kind, i == 0 ? " scope=\"col\"" : j ? "" : " scope=\"row\"");
            text_xml(t, cell ? cell : "");
            text_add(t, "</%s>", kind);
        }
        text_add(t, i ? "</tr>\n" : "</tr></thead>\n");
    }
    text_add(t, "</table></div>\n");
}

/* A picture contains its title.  A table gets a heading. */
void figure_html(struct text *t, const struct figure *f)
{
    text_add(t, "<section%s>\n", f->kind == FIGURE_TABLE ? " class=\"table\"" : "");
    if (f->kind == FIGURE_TABLE) {
        text_add(t, "<h2>");
        text_xml(t, f->title);
        text_add(t, "</h2>\n");
        table(t, f);
    } else figure_svg(t, f);
    text_add(t, "<p>");
    text_xml(t, f->about);
    text_add(t, "</p>\n</section>\n");
}

void html_begin(struct text *t, const char *title, const char *about, const char *style)
{
    text_add(t, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    text_xml(t, title);
    text_add(t, "</title>\n<style>%s%s</style>\n</head>\n<body>\n<h1>", sheet, style);
    text_xml(t, title);
    text_add(t, "</h1>\n<p>");
    text_xml(t, about);
    text_add(t, "</p>\n");
}

void html_end(struct text *t) { text_add(t, "</body>\n</html>\n"); }

void figures_html(struct text *t, const char *title, const char *about, const struct figure *f,
                  int count, bool side)
{
    html_begin(t, title, about, "");
    text_add(t, "<main%s>\n", side ? " class=\"side\"" : "");
    for (int i = 0; i < count; i++) figure_html(t, &f[i]);
    text_add(t, "</main>\n");
    html_end(t);
}

/* Bars separate cells, so a bar inside a cell is escaped. */
void figure_markdown(struct text *t, const struct figure *f)
{
    text_add(t, "%s\n", f->about);
    for (ptrdiff_t i = 0; f->kind == FIGURE_TABLE && i < f->rows; i++) {
        if (i == 0) text_add(t, "\n");
        for (ptrdiff_t j = 0; j < f->cols; j++) {
            const char *cell = f->cell[i * f->cols + j];
            text_add(t, j ? " | " : "| ");
            for (const char *s = cell ? cell : ""; *s; s++)
                text_add(t, *s == '|' ? "\\|" : "%c", *s);
        }
        text_add(t, " |\n");
        for (ptrdiff_t j = 0; i == 0 && j < f->cols; j++)
            text_add(t, j < f->cols - 1 ? "|---" : "|---|\n");
    }
}
