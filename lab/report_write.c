/* SPDX-License-Identifier: MIT */
/* report_write.c -- writes a report as a page, as text, as CSV and as JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "lab/report.h"

#include "lab/arm.h"

static const struct figure *figure_of(const struct report_block *b)
{
    return b->lent ? b->lent : b->figure.title[0] ? &b->figure : NULL;
}

/* ---- HTML ------------------------------------------------------------------------------------ */

static const char style[] =
    "h2{font-size:1.25rem;margin:2rem 0 .5rem;border-bottom:1px solid #d8dee4}"
    "h3{font-size:1.05rem;margin:1.25rem 0 .25rem}"
    "p,ol,ul{max-width:60rem}article{min-width:0}"
    "small{opacity:.75;white-space:nowrap}td,th{font-variant-numeric:tabular-nums}"
    "tr.in th{padding-left:1.4rem;font-weight:400}tr.off{opacity:.55}"
    "tr.good td:nth-child(2){color:#1a7f37;font-weight:600}"
    "tr.bad td:nth-child(2){color:#cf222e;font-weight:600}"
    ".pictures{display:grid;gap:1rem 2rem;"
    "grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}"
    ".numbers td{white-space:nowrap}.hash td{font-family:monospace;font-size:.8rem}"
    "@media(prefers-color-scheme:dark){h2{border-color:#30363d}"
    "tr.good td:nth-child(2){color:#3fb950}tr.bad td:nth-child(2){color:#f85149}}"
    "@media print{body{margin:0;max-width:none;font-size:10pt}.wide{overflow:visible}"
    "section,tr{break-inside:avoid}h2,h3{break-after:avoid}}";

/* Writes "+-", in front of half an interval, as its own sign. */
static void words_html(struct text *t, const char *s, size_t n)
{
    char *part = draw_alloc(n + 1, 1);
    for (size_t i = 0; i < n;) {
        size_t k = i;
        while (k < n && !(s[k] == '+' && k + 1 < n && s[k + 1] == '-')) k++;
        memcpy(part, s + i, k - i);
        part[k - i] = 0;
        text_xml(t, part);
        if (k < n) {
            text_add(t, "&#177;");
            k += 2;
        }
        i = k;
    }
    free(part);
}

static void cell_html(struct text *t, const char *cell, bool head, bool name)
{
    const size_t first = strcspn(cell, "\t");
    text_add(t, head ? "<th scope=\"col\">" : name ? "<th scope=\"row\">" : "<td>");
    words_html(t, cell, first);
    if (cell[first]) {
        text_add(t, "<br><small>");
        words_html(t, cell + first + 1, strlen(cell + first + 1));
        text_add(t, "</small>");
    }
    text_add(t, head || name ? "</th>" : "</td>");
}

static void table_html(struct text *t, const struct report_block *b)
{
    const struct figure *f = &b->figure;
    text_add(t, "<section class=\"table%s\">\n<h3>",
             !strcmp(f->what, "runs") ? " hash"
             : b->records             ? ""
                                      : " numbers");
    text_xml(t, f->title);
    text_add(t, "</h3>\n<div class=\"wide\"><table>\n");
    for (ptrdiff_t i = 0; i < f->rows; i++) {
        const int m = b->mark[i];
        text_add(t, i ? "<tr" : "<thead><tr");
        if (m)
            text_add(t, " class=\"%s%s%s%s\"", m & MARK_INDENT ? "in " : "",
                     m & MARK_OFF ? "off" : "", m & MARK_GOOD ? "good" : "",
                     m & MARK_BAD ? "bad" : "");
        text_add(t, ">");
        for (ptrdiff_t j = 0; j < f->cols; j++) {
            const char *cell = f->cell[i * f->cols + j];
            cell_html(t, cell ? cell : "", i == 0, j == 0);
        }
        text_add(t, i ? "</tr>\n" : "</tr></thead>\n");
    }
    text_add(t, "</table></div>\n<p>");
    text_xml(t, f->about);
    text_add(t, "</p>\n</section>\n");
}

enum shape { PARAGRAPH, ITEM, TABLE, PICTURE };
static enum shape layout_of(const struct report_block *b)
{
    const struct figure *f = figure_of(b);
    if (!f) return b->item ? ITEM : PARAGRAPH;
    return f->kind == FIGURE_TABLE && !b->lent ? TABLE : PICTURE;
}

/* Groups lines of a list, and pictures. */
static void section_html(struct text *t, const struct report_section *s)
{
    static const char *const begin[] = {
        [ITEM] = "<ol>\n", [PICTURE] = "<div class=\"pictures\">\n", [TABLE] = NULL
    };
    static const char *const end[] = { [ITEM] = "</ol>\n", [PICTURE] = "</div>\n", [TABLE] = NULL };
    text_add(t, "<h2>");
    text_xml(t, s->title);
    text_add(t, "</h2>\n");
    for (int i = 0; i < s->blocks; i++) {
        const struct report_block *b = &s->block[i];
        const enum shape shape = layout_of(b);
        const bool first = i == 0 || layout_of(b - 1) != shape;
        const bool last = i + 1 == s->blocks || layout_of(b + 1) != shape;
        if (first && begin[shape]) text_add(t, "%s", begin[shape]);
        if (shape == TABLE) table_html(t, b);
        else if (shape == PICTURE) figure_html(t, figure_of(b));
        else {
            text_add(t, shape == ITEM ? "<li>" : "<p>");
            words_html(t, b->words, strlen(b->words));
            text_add(t, shape == ITEM ? "</li>\n" : "</p>\n");
        }
        if (last && end[shape]) text_add(t, "%s", end[shape]);
    }
}

void report_html(struct text *t, const struct report *r)
{
    html_begin(t, "loci lab",
               "Positional encodings side by side: one model, one harness, one "
               "machine.",
               style);
    text_add(t, "<main>\n");
    for (int i = 0; i < r->sections; i++) {
        text_add(t, "<article>\n");
        section_html(t, &r->section[i]);
        text_add(t, "</article>\n");
    }
    text_add(t, "</main>\n");
    html_end(t);
}

/* ---- Text ------------------------------------------------------------------------------------ */

static int first_width(const char *cell) { return (int)strcspn(cell, "\t"); }
static int second_width(const char *cell)
{
    const int n = first_width(cell);
    return cell[n] ? (int)strlen(cell + n + 1) : 0;
}

/* A name has at most a quarter of the line.  A head wraps onto lines below. */
struct grid {
    const struct figure *f;
    const struct report_block *b;
    int columns;
    int *width;
};

static const char *cell_at(const struct grid *g, ptrdiff_t i, ptrdiff_t j)
{
    const char *cell = g->f->cell[i * g->f->cols + j];
    return cell ? cell : "";
}

/* Wraps the words of a head to `width`.  Returns line number `line`, or 0 for none. */
static int head_line(const char *words, int width, int line, const char **from)
{
    const char *s = words;
    for (;; line--) {
        int n = 0;
        while (s[n]) {
            const int word = (int)strcspn(s + n + (n > 0), " ") + (n > 0);
            if (n && n + word > width) break;
            n += word;
        }
        *from = s;
        if (line == 0 || !s[n]) return line == 0 ? n : 0;
        s += n + (s[n] == ' ');
    }
}

static int widest_word(const char *s)
{
    int most = 0;
    while (*s) {
        const int n = (int)strcspn(s, " ");
        if (n > most) most = n;
        s += n + (s[n] == ' ');
    }
    return most;
}

static void widths_of(struct grid *g)
{
    g->width = draw_alloc((size_t)g->f->cols, sizeof *g->width);
    for (ptrdiff_t j = 0; j < g->f->cols; j++) {
        int w = widest_word(cell_at(g, 0, j));
        for (ptrdiff_t i = 1; i < g->f->rows; i++) {
            const char *cell = cell_at(g, i, j);
            const int indent = j == 0 && g->b->mark[i] & MARK_INDENT ? 2 : 0;
            if (first_width(cell) + indent > w) w = first_width(cell) + indent;
            if (second_width(cell) > w) w = second_width(cell);
        }
        const int most = j == 0 ? g->columns * 2 / 5 : g->columns / 2;
        g->width[j] = w < most ? w : most;
    }
}

/* One line of a row: the parts of its cells, numbers right-aligned. */
static void put_part(struct text *t, const struct grid *g, ptrdiff_t j, const char *s, int n,
                     int indent)
{
    const int width = g->width[j];
    if (n > width - indent) n = width - indent;
    if (j == 0) text_add(t, "%*s%.*s%*s", indent, "", n, s, width - indent - n, "");
    else text_add(t, "  %*s%.*s", width - n, "", n, s);
}

static void put_line(struct text *t, const struct grid *g, ptrdiff_t i, ptrdiff_t from,
                     ptrdiff_t to, int line)
{
    const size_t start = t->n;
    for (ptrdiff_t k = 0; k < g->b->heads + to - from; k++) {
        const ptrdiff_t j = k < g->b->heads ? k : from + k - g->b->heads;
        const char *cell = cell_at(g, i, j), *s = cell;
        int n = first_width(cell);
        if (i == 0) n = head_line(cell, g->width[j], line, &s);
        else if (line) {
            s = cell[n] ? cell + n + 1 : "";
            n = (int)strlen(s);
        }
        put_part(t, g, j, s, n, j == 0 && g->b->mark[i] & MARK_INDENT ? 2 : 0);
    }
    while (t->n > start && t->s[t->n - 1] == ' ') t->n--;
    t->s[t->n] = 0;
    text_add(t, "\n");
}

static bool has_line(const struct grid *g, ptrdiff_t i, ptrdiff_t from, ptrdiff_t to, int line)
{
    for (ptrdiff_t k = 0; k < g->b->heads + to - from; k++) {
        const ptrdiff_t j = k < g->b->heads ? k : from + k - g->b->heads;
        const char *s, *cell = cell_at(g, i, j);
        if (i == 0 && head_line(cell, g->width[j], line, &s) > 0) return true;
        if (i > 0 && line < 2 && second_width(cell) > 0) return true;
    }
    return false;
}

/* Prints the columns that fit, then the others, each time behind the names. */
static void table_text(struct text *t, const struct report_block *b, int columns)
{
    struct grid g = { &b->figure, b, columns, NULL };
    widths_of(&g);
    int names = 0;
    for (int j = 0; j < b->heads; j++) names += g.width[j] + (j ? 2 : 0);
    for (ptrdiff_t from = b->heads, to; from < g.f->cols; from = to) {
        int at = names;
        for (to = from; to < g.f->cols && (to == from || at + 2 + g.width[to] <= columns); to++)
            at += 2 + g.width[to];
        if (from > b->heads) text_add(t, "\n");
        for (ptrdiff_t i = 0; i < g.f->rows; i++) {
            put_line(t, &g, i, from, to, 0);
            for (int line = 1; has_line(&g, i, from, to, line); line++)
                put_line(t, &g, i, from, to, line);
        }
    }
    free(g.width);
}

/* The first two cells, and the others below them. */
static void records_text(struct text *t, const struct report_block *b, int columns)
{
    const struct figure *f = &b->figure;
    for (ptrdiff_t i = 1; i < f->rows; i++) {
        char *const *cell = f->cell + i * f->cols;
        const int indent = b->mark[i] & MARK_INDENT ? 4 : 0;
        text_add(t, "%*s%s  %s\n", indent, "", cell[0], cell[1]);
        for (ptrdiff_t j = 2; j < f->cols; j++)
            if (cell[j]) wrap_text(t, cell[j], columns, indent + 4);
    }
}

void report_text(struct text *t, const struct report *r, int columns)
{
    for (int i = 0; i < r->sections; i++) {
        const struct report_section *s = &r->section[i];
        if (i) text_add(t, "\n");
        wrap_text(t, s->title, columns, 0);
        for (size_t n = 0; n < strlen(s->title) && (int)n < columns; n++) text_add(t, "-");
        text_add(t, "\n");
        for (int k = 0; k < s->blocks; k++) {
            const struct report_block *b = &s->block[k];
            const enum shape shape = layout_of(b);
            if (shape == PICTURE) continue;
            if (shape == PARAGRAPH || shape == ITEM) {
                wrap_text(t, b->words, columns, shape == ITEM ? 2 : 0);
                continue;
            }
            if (k) text_add(t, "\n");
            if (k) wrap_text(t, b->figure.title, columns, 0);
            if (b->records) records_text(t, b, columns);
            else table_text(t, b, columns);
            wrap_text(t, b->figure.about, columns, 2);
        }
    }
}

/* ---- CSV ------------------------------------------------------------------------------------- */

/* Quoted where RFC 4180 requires it. */
static void word_csv(struct text *t, const char *s)
{
    if (!strpbrk(s, ",\"\r\n")) {
        text_add(t, "%s", s);
        return;
    }
    text_add(t, "\"");
    for (; *s; s++) text_add(t, *s == '"' ? "\"\"" : "%c", *s);
    text_add(t, "\"");
}

static void number_csv(struct text *t, double x)
{
    text_add(t, ",");
    if (isfinite(x)) text_json_number(t, x);
}

static void column_csv(struct text *t, const struct lab_result *r, const struct lab_row *row,
                       const struct lab_measured *c, bool chosen)
{
    const char *const words[] = { r->arm, row->name, r->task, r->size, r->settings };
    for (int i = 0; i < COUNT(words); i++) {
        if (i) text_add(t, ",");
        word_csv(t, words[i]);
    }
    text_add(t, ",%d,%d,%d,", r->length, r->steps, r->seed);
    word_csv(t, c->name);
    number_csv(t, c->times);
    text_add(t, ",%d,%d,%d,%s", c->length, c->count, c->trained, metric_name(c->metric));
    number_csv(t, shown_value(c));
    number_csv(t, c->loss);
    number_csv(t, c->accuracy);
    number_csv(t, c->exact);
    text_add(t, ",%d,%lld,%lld", r->learned, (long long)r->params, (long long)r->params_encoding);
    number_csv(t, r->seconds_per_step);
    number_csv(t, r->peak_bytes);
    number_csv(t, r->cache_bytes_per_token);
    number_csv(t, r->teraflops);
    text_add(t, ",%s,%s", r->id, r->weights_sha256);
    number_csv(t, r->validation);
    text_add(t, ",%d", chosen);
    number_csv(t, c->metric == LAB_LOSS ? NAN : steps_to_criterion(r));
    text_add(t, "\n");
}

void report_csv(struct text *t, const struct report *r)
{
    text_add(t, "arm,variant,task,size,settings,length,steps,seed,column,times,tokens,count,"
                "trained,metric,value,loss,accuracy,exact,learned,params,params_encoding,"
                "seconds_per_step,peak_bytes,cache_bytes_per_token,teraflops,id,weights_sha256,"
                "validation,chosen,steps_to_99\n");
    for (int i = 0; i < r->all->count; i++) {
        const struct lab_result *o = &r->all->list[i];
        const bool chosen = is_chosen(&r->tables, o);
        for (int k = 0; k < o->rows; k++)
            for (int c = 0; c < o->row[k].columns; c++)
                column_csv(t, o, &o->row[k], &o->row[k].column[c], chosen);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void key_word(struct text *t, const char *key, const char *value)
{
    text_add(t, "\"%s\":", key);
    if (value) text_json(t, value);
    else text_add(t, "null");
    text_add(t, ",");
}

static void key_number(struct text *t, const char *key, double x)
{
    text_add(t, "\"%s\":", key);
    text_json_number(t, x);
    text_add(t, ",");
}

/* Closes a list and removes the comma behind its last entry. */
static void close_with(struct text *t, char end)
{
    if (t->s[t->n - 1] == ',') t->s[--t->n] = 0;
    text_put(t, &end, 1);
}

static void interval_json(struct text *t, const struct interval *i)
{
    text_add(t, "{\"seeds\":%d,", i->n);
    key_number(t, "mean", i->mean);
    key_number(t, "low", i->low);
    key_number(t, "high", i->high);
    key_number(t, "p", i->p);
    key_number(t, "freedom", i->freedom);
    close_with(t, '}');
}

static void cell_json(struct text *t, const struct table_row *r, const struct cell *c)
{
    text_add(t, "{\"seeds\":%d,", c->n);
    key_number(t, "mean", c->of.mean);
    key_number(t, "low", c->mean.low);
    key_number(t, "high", c->mean.high);
    key_number(t, "least", c->of.least);
    key_number(t, "most", c->of.most);
    key_number(t, "median", c->of.median);
    key_number(t, "sampling_error", c->sampling);
    text_add(t, "\"generalised\":%d,\"generalised_interval\":[", c->good);
    text_json_number(t, c->good_low);
    text_add(t, ",");
    text_json_number(t, c->good_high);
    text_add(t, "],\"values\":[");
    for (int s = 0; s < r->seeds; s++) {
        if (s) text_add(t, ",");
        text_json_number(t, c->value[s]);
    }
    text_add(t, "]}");
}

static void mean_json(struct text *t, const char *key, const struct table_row *r, size_t field)
{
    double sum = 0;
    for (int s = 0; s < r->seeds; s++) {
        double x;
        memcpy(&x, (const char *)r->run[s] + field, sizeof x);
        sum += x;
    }
    key_number(t, key, sum / r->seeds);
}

static void row_json(struct text *t, const struct table *of, const struct table_row *r)
{
    text_add(t, "{");
    key_word(t, "arm", r->arm);
    key_word(t, "variant", r->variant);
    key_word(t, "label", r->label);
    key_word(t, "family", family_name(r->family));
    text_add(t, "\"layer\":%s,", lab_is_layer(r->arm) ? "true" : "false");
    text_add(t, "\"seeds\":[");
    for (int s = 0; s < r->seeds; s++) text_add(t, "%s%d", s ? "," : "", r->run[s]->seed);
    text_add(t, "],\"learned\":%d,\"params\":%lld,\"params_encoding\":%lld,", r->learned,
             (long long)r->run[0]->params, (long long)r->run[0]->params_encoding);
    mean_json(t, "seconds_per_step", r, offsetof(struct lab_result, seconds_per_step));
    mean_json(t, "peak_bytes", r, offsetof(struct lab_result, peak_bytes));
    mean_json(t, "cache_bytes_per_token", r, offsetof(struct lab_result, cache_bytes_per_token));
    key_number(t, "beyond", goodness(of->head[of->far], r->beyond));
    if (r->reach) {
        key_number(t, "longest_90", r->reach_of.median);
        text_add(t, "\"longest_90_by_seed\":[");
        for (int s = 0; s < r->seeds; s++) text_add(t, "%s%.0f", s ? "," : "", r->reach[s]);
        text_add(t, "],");
    }
    if (r->criterion) {
        text_add(t, "\"steps_to_99_by_seed\":[");
        for (int s = 0; s < r->seeds; s++) {
            if (s) text_add(t, ",");
            text_json_number(t, r->criterion[s]);
        }
        text_add(t, "],");
    }
    key_number(t, "rank", r->rank);
    key_number(t, "rank_low", r->rank_low);
    key_number(t, "rank_high", r->rank_high);
    text_add(t, "\"better_than\":[");
    for (int k = 0; k < REFERENCES; k++) {
        const struct versus *v = &r->versus[k];
        if (!v->arm) continue;
        text_add(t, "{");
        key_word(t, "arm", v->arm);
        key_number(t, "p_holm", v->holm);
        text_add(t, "\"by\":");
        interval_json(t, &v->by);
        text_add(t, "},");
    }
    close_with(t, ']');
    text_add(t, ",\"cells\":[");
    for (int k = 0; k < of->columns; k++) {
        if (k) text_add(t, ",");
        cell_json(t, r, &r->cell[k]);
    }
    text_add(t, "]}");
}

static void table_json(struct text *t, const struct table *of)
{
    text_add(t, "{");
    key_word(t, "task", of->task);
    key_word(t, "size", of->size);
    key_word(t, "settings", of->settings);
    text_add(t, "\"length\":%d,\"steps\":%d,\"farthest\":", of->length, of->steps);
    text_json(t, of->head[of->far]->name);
    text_add(t, ",\"columns\":[");
    for (int k = 0; k < of->columns; k++) {
        const struct lab_measured *c = of->head[k];
        text_add(t, k ? ",{" : "{");
        key_word(t, "name", c->name);
        key_word(t, "metric", metric_name(c->metric));
        key_number(t, "times", c->times);
        text_add(t, "\"length\":%d,\"count\":%d,\"trained\":%s}", c->length, c->count,
                 c->trained ? "true" : "false");
    }
    text_add(t, "],\"rates\":[");
    for (int i = 0; i < of->tries; i++) {
        const struct tried *x = &of->tried[i];
        text_add(t, i ? ",{" : "{");
        key_word(t, "arm", x->arm);
        key_number(t, "rate", x->rate);
        key_number(t, "validation", x->validation);
        text_add(t, "\"seeds\":%d,\"chosen\":%s,\"edge\":%s}", x->seeds,
                 x->chosen ? "true" : "false", x->edge ? "true" : "false");
    }
    text_add(t, "],\"rows\":[");
    for (int i = 0; i < of->rows; i++) {
        text_add(t, i ? ",\n" : "\n");
        row_json(t, of, &of->row[i]);
    }
    text_add(t, "]}");
}

static void claim_json(struct text *t, const struct judged *j)
{
    text_add(t, "{");
    key_word(t, "id", j->claim->id);
    key_word(t, "claim", j->claim->sentence);
    key_word(t, "source", j->claim->source);
    key_word(t, "size", j->size);
    key_word(t, "verdict", verdict_name(j->verdict));
    key_word(t, "setting", j->sentence);
    text_add(t, "\"arms_left_out\":%d,", j->aside);
    text_add(t, "\"parts\":[");
    for (int i = 0; i < j->findings; i++) {
        const struct finding *f = &j->finding[i];
        text_add(t, "{");
        key_word(t, "task", f->task);
        key_word(t, "state", part_state_name(f->state));
        key_word(t, "figure", f->words);
        text_add(t, "\"margin\":");
        interval_json(t, &f->margin);
        text_add(t, "},");
    }
    close_with(t, ']');
    text_add(t, "}");
}

static void run_json(struct text *t, const struct lab_result *r)
{
    text_add(t, "{");
    key_word(t, "id", r->id);
    key_word(t, "task", r->task);
    key_word(t, "arm", r->arm);
    text_add(t, "\"seed\":%d,\"learned\":%s,", r->seed, r->learned ? "true" : "false");
    key_word(t, "weights_sha256", r->weights_sha256);
    key_word(t, "version", r->version);
    key_word(t, "compiler", r->compiler);
    key_word(t, "cpu", r->cpu);
    key_word(t, "isa", r->isa);
    text_add(t, "\"warnings\":[");
    for (int i = 0; i < r->warnings; i++) {
        if (i) text_add(t, ",");
        text_json(t, r->warning[i]);
    }
    text_add(t, "]}");
}

/* A table as in the page.  Lines of a cell become adjacent words. */
static void words_json(struct text *t, const struct figure *f)
{
    struct figure plain = *f;
    figure_table(&plain, f->rows, f->cols);
    for (ptrdiff_t i = 0; i < f->rows * f->cols; i++) {
        const char *cell = f->cell[i] ? f->cell[i] : "";
        const int n = first_width(cell);
        figure_cell(&plain, i / f->cols, i % f->cols, "%.*s%s%s", n, cell, cell[n] ? "; " : "",
                    cell[n] ? cell + n + 1 : "");
    }
    figure_json(t, &plain);
    figure_free(&plain);
}

static void figures_json(struct text *t, const struct report *r)
{
    for (int i = 0; i < r->sections; i++)
        for (int k = 0; k < r->section[i].blocks; k++) {
            const struct figure *f = figure_of(&r->section[i].block[k]);
            if (!f) continue;
            text_add(t, "\n");
            if (layout_of(&r->section[i].block[k]) == TABLE) words_json(t, f);
            else figure_json(t, f);
            text_add(t, ",");
        }
}

void report_json(struct text *t, const struct report *r)
{
    text_add(t, "{\"format\":\"loci lab report 1\",");
    key_word(t, "command", r->command);
    key_number(t, "teraflops", r->teraflops);
    key_number(t, "hours", r->hours);
    text_add(t, "\"claims\":[");
    for (int i = 0; i < r->claims; i++) {
        text_add(t, i ? ",\n" : "\n");
        claim_json(t, &r->claim[i]);
    }
    text_add(t, "],\n\"tables\":[");
    for (int i = 0; i < r->tables.count; i++) {
        if (i) text_add(t, ",\n");
        table_json(t, &r->tables.list[i]);
    }
    text_add(t, "],\n\"figures\":[");
    figures_json(t, r);
    close_with(t, ']');
    text_add(t, ",\n\"runs\":[");
    for (int i = 0; i < r->all->count; i++) {
        text_add(t, i ? ",\n" : "\n");
        run_json(t, &r->all->list[i]);
    }
    text_add(t, "],\n\"skipped\":[");
    for (int i = 0; i < r->all->skips; i++) {
        if (i) text_add(t, ",");
        text_json(t, r->all->skipped[i]);
    }
    text_add(t, "]}\n");
}
