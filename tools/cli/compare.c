/* SPDX-License-Identifier: MIT */
/* compare.c -- `loci show` of several encodings: side by side on one scale, and in one table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/show.h"

/* Splits a list whose commas separate encodings and also options.  A piece of the form "word=..."
 * continues the options of the encoding before it. */
static int split(char *list, char **texts, int most)
{
    int n = 0;
    for (char *p = list; *p;) {
        char *end = p + strcspn(p, ",");
        while (*end) {
            const char *next = end + 1;
            if (next[strcspn(next, ",:+=")] != '=') break;
            end += 1 + strcspn(next, ",");
        }
        if (n == most) return most + 1;
        texts[n++] = p;
        if (!*end) break;
        *end = 0;
        p = end + 1;
    }
    return n;
}

/* A row for each encoding: the answer's word, with its largest deviation if there is one. */
static void property_row(struct figure *f, int row, const char *name, const struct finding *all)
{
    figure_cell(f, row, 0, "%s", name);
    for (int i = 0; i < PROPERTY_COST; i++) {
        const struct finding *p = &all[i];
        const bool counts = (i == PROPERTY_TRANSLATION || i == PROPERTY_SYMMETRY
                             || i == PROPERTY_CONTENT || i == PROPERTY_NORM)
                         && p->largest > 1e-9 && strcmp(p->brief, "refused") != 0;
        if (i == PROPERTY_APART && p->largest > 0) figure_cell(f, row, i + 1, "%.2g", p->largest);
        else if (counts) figure_cell(f, row, i + 1, "%s, %.2g", p->brief, p->largest);
        else figure_cell(f, row, i + 1, "%s", p->brief);
    }
    const struct finding *cost = &all[PROPERTY_COST];
    figure_cell(f, row, PROPERTY_COST + 1, "%td", cost->parameters);
    figure_cell(f, row, PROPERTY_COST + 2, "%g", cost->flops);
    figure_cell(f, row, PROPERTY_COST + 3, "%.0f", cost->bytes);
}

static bool property_table(struct figure *f, const struct wish *w, int n, const char *const *texts)
{
    static const char *const head[] = { "encoding", "translation", "symmetric", "never rises",
                                        "falls by", "apart",       "norms",     "beyond",
                                        "content",  "parameters",  "flops",     "bytes" };
    figure_table(f, n + 1, COUNT(head));
    f->what = "properties";
    for (int j = 0; j < COUNT(head); j++) figure_cell(f, 0, j, "%s", head[j]);
    for (int i = 0; i < n; i++) {
        struct wish mine = *w;
        struct finding all[PROPERTY_COUNT];
        loci_error e = { 0 };
        mine.encoding = texts[i];
        struct show *s = open_show(&mine);
        if (!s) return false;
        const loci_status status = show_measure(s, all, &e);
        show_close(s);
        if (status) return refuse("%s: %s", texts[i], e.text);
        property_row(f, i + 1, texts[i], all);
    }
    snprintf(f->title, sizeof f->title, "Properties, measured");
    snprintf(f->about, sizeof f->about,
             "%d heads of %d, length %td. A number is the largest deviation found: of scores, as a "
             "share of the largest one, after shifts of 1 to 10^6; after q and k changed places; "
             "of norms. 'falls by': the score's drop from distance 0 to 32 lengths, 'apart': how "
             "far the closest two positions are, in scores, or of rows as a share of their size. "
             "flops: per pair, in addition to those of "
             "attention; bytes: per token and head in a decode.",
             w->heads, w->dim, w->len);
    return true;
}

/* Gives all figures of one kind the same range. */
static void one_scale(struct album *all)
{
    struct axis x, y, z;
    double low = INFINITY, high = -INFINITY;
    for (int i = 0; i < all->count; i++) {
        if (all->f[i].kind != FIGURE_HEAT || !figure_reach(&all->f[i], &x, &y, &z)) continue;
        low = fmin(low, z.low);
        high = fmax(high, z.high);
    }
    for (int i = 0; i < all->count; i++)
        if (all->f[i].kind == FIGURE_HEAT && low < high) {
            all->f[i].scale.low = low;
            all->f[i].scale.high = high;
        }
}

/* Adds the figure of one encoding: the first one of its kind. */
static bool add_first(struct album *all, const struct wish *w, const char *text, int what)
{
    struct wish mine = *w;
    mine.encoding = text;
    struct show *s = open_show(&mine);
    if (!s) return false;
    const int first = all->count;
    const bool ok = add_figures(all, s, what >= 0 ? what : best_kind(s));
    while (ok && all->count > first + 1) figure_free(&all->f[--all->count]);
    show_close(s);
    return ok;
}

/* Combines the first line of each curve in one figure.  Moves the numbers out of the other figures
 * and frees those. */
static bool common_curve(struct figure *to, const struct wish *w, int n, const char *const *texts)
{
    int lines = 0;
    *to = (struct figure){ .what = "curve" };
    for (int i = 0; i < n; i++) {
        struct wish mine = *w;
        mine.encoding = texts[i];
        struct album one = { 0 };
        struct show *s = open_show(&mine);
        if (!s) return false;
        const bool has = show_has(s) & 1u << SHOW_CURVE;
        const bool ok = !has || add_figures(&one, s, SHOW_CURVE);
        if (ok && one.count && lines < MAX_LINES) {
            const struct figure *f = &one.f[0];
            const int line = f->lines > w->head ? w->head : 0;
            if (!lines) {
                figure_lines(to, f->n, 1);
                to->x = f->x;
                to->y = f->y;
            } else to->line[to->lines++].y = draw_alloc((size_t)to->n, sizeof(double));
            for (ptrdiff_t k = 0; k < to->n && k < f->n; k++) {
                to->at[k] = f->at[k];
                to->line[lines].y[k] = f->line[line].y[k];
            }
            snprintf(to->line[lines++].name, FIGURE_NAME, "%.60s", texts[i]);
        }
        free_album(&one);
        show_close(s);
        if (!ok) return false;
    }
    snprintf(to->title, sizeof to->title, "By distance, head %d", w->head);
    snprintf(to->about, sizeof to->about,
             "What each adds to a score, or what turning leaves of q.q, by the distance.");
    return true;
}

int show_several(const struct args *a, const struct wish *w, int what)
{
    enum { MOST = MAX_LINES };
    char *list = strcpy(alloc(strlen(a->value[COMPARE]) + 1, 1), a->value[COMPARE]), *cut[MOST];
    const char *texts[MOST];
    struct album all = { 0 };
    struct text none = { 0 };
    const int n = split(list, cut, MOST);
    bool ok = n >= 2 && n <= MOST;
    if (!ok) fail("show: --compare needs 2 to %d encodings", MOST);
    for (int i = 0; i < n && ok; i++) texts[i] = runnable_text(cut[i]);
    for (int i = 0; i < n && ok && what != SHOW_PROPERTIES && what != SHOW_CURVE; i++)
        ok = add_first(&all, w, texts[i], what);
    one_scale(&all);
    if (ok && (what < 0 || what == SHOW_CURVE)) {
        ok = common_curve(&all.f[all.count], w, n, texts);
        if (all.f[all.count].lines) all.count++;
    }
    if (ok && (what < 0 || what == SHOW_PROPERTIES))
        ok = property_table(&all.f[all.count++], w, n, texts);
    const struct form form = { a->value[COMPARE], "Side by side, on one scale.", true };
    const int code = ok ? put_album(a, &all, &form, &none, &none) : EXIT_ERROR;
    free_album(&all);
    free(list);
    return code;
}

/* Prints every encoding of the list in a table. */
int show_list(const struct args *a, const struct wish *w, int what)
{
    const loci_encoding_info *list;
    const int n = loci_encodings(&list);
    if (what != SHOW_PROPERTIES) return fail("show: --all needs --what properties");
    const char **texts = alloc((size_t)n, sizeof *texts);
    struct album all = { .count = 1 };
    struct text none = { 0 };
    for (int i = 0; i < n; i++) texts[i] = list[i].example;
    const bool ok = property_table(&all.f[0], w, n, texts);
    const struct form form = { "Properties, measured", "", false };
    const int code = ok ? put_album(a, &all, &form, &none, &none) : EXIT_ERROR;
    free_album(&all);
    free(texts);
    return code;
}
