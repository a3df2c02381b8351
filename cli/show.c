/* SPDX-License-Identifier: MIT */
/* show.c -- `loci show`: what an encoding looks like and what can be said of it, from the engine
 * itself, for terminals, pages and scripts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/half.h"
#include "cli/cli.h"
#include "draw/figure.h"
#include "io/safetensors.h"
#include "show/example.h"
#include "show/properties.h"
#include "show/show.h"

enum { WHAT, HEAD, HEADS, DIM, LEN, SEED, TENSORS, COMPARE, ALL, EXAMPLE, SVG, HTML, OUTPUT, JSON,
       MARKDOWN };
static const struct flag flags[] = {
    [WHAT]     = { "what", NULL, "WORD",
                   "map, curve, spectrum, angles, embedding, similarity, attention or properties" },
    [HEAD]     = { "head", NULL, "N", "the head of a map, from 0 (default 0)" },
    [HEADS]    = { "heads", NULL, "H", "heads (default 8)" },
    [DIM]      = { "dim", NULL, "D", "width of a head (default 64)" },
    [LEN]      = { "len", NULL, "L", "positions (default 64)" },
    [SEED]     = { "seed", NULL, "S", "of all that is random (default 1)" },
    [TENSORS]  = { "tensors", NULL, "FILE", "learned tensors, a safetensors file (t5.table, ...)" },
    [COMPARE]  = { "compare", NULL, "LIST", "several encodings side by side, with commas between" },
    [ALL]      = { "all", NULL, NULL, "every encoding of 'loci list'; with --what properties" },
    [EXAMPLE]  = { "example", NULL, NULL, "the textbook's example, step by step" },
    [SVG]      = { "svg", NULL, "FILE", "write a picture" },
    [HTML]     = { "html", NULL, "FILE", "write a page of all figures, without scripts" },
    [OUTPUT]   = { "output", "o", "FILE", "the same as --html" },
    [JSON]     = { "json", NULL, NULL, "one JSON object: the numbers of all figures" },
    [MARKDOWN] = { "markdown", NULL, NULL, "tables as Markdown" },
    { NULL, NULL, NULL, NULL }
};

/* ---- Where it goes --------------------------------------------------------------------------- */

/* COLUMNS, else the terminal's own; a pipe has 80 and no colours. */
static struct terminal terminal(void)
{
    struct terminal t = { .columns = 80 };
    const char *columns = getenv("COLUMNS"), *true_colour = getenv("COLORTERM"), *locale = NULL;
    struct winsize size;
    int64_t n;
    static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };
    for (int i = 0; i < COUNT(names) && !locale; i++) {
        locale = getenv(names[i]);
        if (locale && !*locale) locale = NULL;
    }
    if (columns && parse_whole(columns, &n) && n > 0 && n < 10000) t.columns = (int)n;
    else if (!ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_col > 0) t.columns = size.ws_col;
    t.unicode = locale && (strstr(locale, "UTF-8") || strstr(locale, "utf8"));
    if (colours()) {
        const bool all = true_colour && (!strcmp(true_colour, "truecolor")
                                         || !strcmp(true_colour, "24bit"));
        t.colours = all ? COLOURS_TRUE : COLOURS_256;
    }
    return t;
}

static int print_text(struct text *t)
{
    if (t->n) fwrite(t->s, 1, t->n, stdout);
    text_free(t);
    return EXIT_DONE;
}

static int write_text(struct text *t, const char *path)
{
    struct new_file out;
    loci_error e;
    loci_status status = loci_output_begin(&out, path, &e);
    if (!status) {
        status = loci_output_put(&out, t->s, t->n, &e);
        status = loci_output_end(&out, status, &e);
    }
    text_free(t);
    return status ? fail("%s: %s", path, e.text) : EXIT_DONE;
}

/* ---- What is asked --------------------------------------------------------------------------- */

struct given_file { int count; struct given *list; double **data; struct safetensors file; };

/* All tensors of a file, in double.  Names may begin with "param." as in a case. */
static bool read_tensors(const char *path, struct given_file *g)
{
    loci_error e;
    if (loci_safetensors_open(&g->file, path, &e)) return refuse("%s: %s", path, e.text);
    g->count = g->file.count;
    g->list = take((size_t)g->count, sizeof *g->list);
    g->data = take((size_t)g->count, sizeof *g->data);
    for (int i = 0; i < g->count; i++) {
        const struct safetensor *t = &g->file.tensor[i];
        const loci_dtype types[] = { LOCI_F32, LOCI_F64, LOCI_BF16, LOCI_F16 };
        int k = 0;
        while (k < COUNT(types) && loci_safetensors_type_of(types[k]) != t->type) k++;
        if (k == COUNT(types))
            return refuse("%s: tensor '%.64s' must be F32, F64, BF16 or F16, not %s", path, t->name,
                          loci_safetensors_type_name(t->type));
        if (t->rank > COUNT(g->list->shape))
            return refuse("%s: tensor '%.64s' has %d dimensions, more than %d", path, t->name,
                          t->rank, COUNT(g->list->shape));
        void *raw = take((size_t)t->count, stored_size(types[k]));
        g->data[i] = take((size_t)t->count, sizeof(double));
        if (loci_safetensors_read(&g->file, t, raw, &e)) {
            free(raw);
            return refuse("%s: %s", path, e.text);
        }
        for (ptrdiff_t n = 0; n < t->count; n++) g->data[i][n] = load_stored(raw, types[k], n);
        free(raw);
        g->list[i] = (struct given){ .name = t->name, .rank = t->rank, .data = g->data[i] };
        if (!strncmp(t->name, "param.", 6)) g->list[i].name += 6;
        memcpy(g->list[i].shape, t->shape, (size_t)t->rank * sizeof *t->shape);
    }
    return true;
}

static void free_tensors(struct given_file *g)
{
    for (int i = 0; g->data && i < g->count; i++) free(g->data[i]);
    free(g->data);
    free(g->list);
    if (g->list) loci_safetensors_close(&g->file);
}

/* Everything that the flags say of the encoding, whichever it is. */
static bool read_wish(const struct args *a, struct wish *w)
{
    int heads = 8, dim = 64, len = 64, head = 0, seed = 1;
    if (!args_whole(a, HEADS, 1, 64, &heads) || !args_whole(a, DIM, 1, 512, &dim)
        || !args_whole(a, LEN, 2, 1024, &len) || !args_whole(a, HEAD, 0, 63, &head)
        || !args_whole(a, SEED, 1, 1 << 30, &seed))
        return false;
    *w = (struct wish){ .heads = heads, .dim = dim, .len = len, .head = head,
                        .seed = (uint64_t)seed };
    return true;
}

/* Words of --what, of which -1 is all. */
static bool read_what(const struct args *a, int *what)
{
    char words[200] = "";
    *what = -1;
    for (int i = 0; i < SHOW_COUNT; i++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s", i ? "|" : "",
                 show_names[i]);
    return !a->value[WHAT] || args_word(a, WHAT, words, what);
}

/* ---- Figures --------------------------------------------------------------------------------- */

enum { ALL_FIGURES = SHOW_COUNT * MAX_FIGURES };
struct album { int count; struct figure f[ALL_FIGURES]; };

static void free_album(struct album *all)
{
    for (int i = 0; i < all->count; i++) figure_free(&all->f[i]);
    all->count = 0;
}

/* Adds the figures of one kind, or prints why not. */
static bool add(struct album *all, struct show *s, int what)
{
    loci_error e = { 0 };
    int count;
    if (show_figures(s, (enum show_what)what, all->f + all->count, &count, &e))
        return refuse("show: %s", e.text);
    all->count += count;
    return true;
}

/* which: a bit for each kind. */
static bool add_all(struct album *all, struct show *s, unsigned which)
{
    for (int i = 0; i < SHOW_COUNT; i++)
        if ((show_has(s) & which & 1u << i) && !add(all, s, i)) return false;
    return true;
}

static struct show *open_show(const struct wish *w)
{
    struct show *s;
    loci_error e = { 0 };
    if (!show_open(&s, w, &e)) return s;
    fail("show: %s", e.text);
    return NULL;
}

/* The kind that says most of an encoding in one picture. */
static int best_kind(const struct show *s)
{
    static const enum show_what order[] = { SHOW_MAP, SHOW_EMBEDDING, SHOW_ANGLES, SHOW_CURVE,
                                            SHOW_ATTENTION };
    int i = 0;
    while (!(show_has(s) & 1u << order[i])) i++;
    return (int)order[i];
}

/* Its name, its formula and where it is from; a composition has a line for each. */
static void add_heading(struct text *t, const struct show *s, const char *text,
                        const struct terminal *m)
{
    for (const char *p = text; *p; p += strcspn(p, "+"), p += *p == '+') {
        const loci_encoding_info *i = find_encoding(p, strcspn(p, ":+"));
        if (!i) continue;
        text_add(t, m->colours ? "\033[1m%s\033[0m  %s\n" : "%s  %s\n", i->name, i->brief);
        text_add(t, m->colours ? "\033[2m    %s\033[0m\n" : "    %s\n", i->cite);
    }
    text_add(t, "    %s\n", show_text(s));
    if (*show_tensors(s)) text_add(t, "    %s\n", show_tensors(s));
    text_add(t, "\n");
}

static void add_json(struct text *t, const struct show *s, const char *text,
                     const struct album *all)
{
    text_add(t, "{\"encoding\":");
    text_json(t, text);
    text_add(t, ",\"text\":");
    text_json(t, show_text(s));
    text_add(t, ",\"tensors\":");
    text_json(t, show_tensors(s));
    text_add(t, ",\"figures\":[");
    for (int i = 0; i < all->count; i++) {
        if (i) text_add(t, ",");
        figure_json(t, &all->f[i]);
    }
    text_add(t, "]}\n");
}

/* A page's heading: the formulas. */
static void page_about(struct text *t, const struct show *s, const char *text)
{
    for (const char *p = text; *p; p += strcspn(p, "+"), p += *p == '+') {
        const loci_encoding_info *i = find_encoding(p, strcspn(p, ":+"));
        if (i) text_add(t, "%s (%s). ", i->brief, i->cite);
    }
    text_add(t, "%s", show_tensors(s));
}

static const char *page_path(const struct args *a)
{
    return a->value[HTML] ? a->value[HTML] : a->value[OUTPUT];
}

/* One encoding, in whatever form is wanted. */
static int show_one(const struct args *a, const struct wish *w, int what, const char *title)
{
    struct album all = { 0 };
    struct text t = { 0 }, about = { 0 };
    struct show *s = open_show(w);
    if (!s) return EXIT_ERROR;
    const struct terminal m = terminal();
    /* what fits a page of a terminal; files and scripts get all there is */
    const unsigned page = 1u << best_kind(s) | 1u << SHOW_CURVE | 1u << SHOW_SPECTRUM
                        | 1u << SHOW_PROPERTIES;
    bool ok;
    int code = EXIT_ERROR;
    if (what >= 0) ok = add(&all, s, what);
    else if (a->value[SVG]) ok = add(&all, s, best_kind(s));
    else ok = add_all(&all, s, a->value[JSON] || page_path(a) ? ~0u : page);
    if (ok && a->value[SVG]) {
        figures_svg(&t, all.f, all.count);
        code = write_text(&t, a->value[SVG]);
    } else if (ok && page_path(a)) {
        page_about(&about, s, w->encoding);
        figures_html(&t, title, about.s ? about.s : "", all.f, all.count, false);
        code = write_text(&t, page_path(a));
    } else if (ok && a->value[JSON]) {
        add_json(&t, s, w->encoding, &all);
        code = print_text(&t);
    } else if (ok) {
        if (!a->value[MARKDOWN]) add_heading(&t, s, w->encoding, &m);
        for (int i = 0; i < all.count; i++) {
            if (i) text_add(&t, "\n");
            if (a->value[MARKDOWN]) figure_markdown(&t, &all.f[i]);
            else figure_print(&t, &all.f[i], &m);
        }
        code = print_text(&t);
    }
    text_free(&about);
    text_free(&t);
    free_album(&all);
    show_close(s);
    return code;
}

/* ---- Several encodings ----------------------------------------------------------------------- */

/* Commas stand between encodings and between options; a piece that is "word=..." goes on with the
 * options of the one before. */
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

/* A row for each encoding: the question's word, with its largest deviation where there is one. */
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
    static const char *const head[] = {
        "encoding", "translation", "symmetric", "never rises", "falls by", "apart", "norms",
        "beyond", "content", "parameters", "flops", "bytes"
    };
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
             "flops: per pair, beside those of "
             "attention; bytes: per token and head in a decode.", w->heads, w->dim, w->len);
    return true;
}

/* Side by side on one scale: what was drawn of the same kind reaches equally far. */
static void one_scale(struct album *all)
{
    struct axis x, y, z;
    double low = INFINITY, high = -INFINITY;
    for (int i = 0; i < all->count; i++) {
        if (all->f[i].kind != FIGURE_HEAT || !figure_reach(&all->f[i], &x, &y, &z)) continue;
        low = fmin(low, z.low), high = fmax(high, z.high);
    }
    for (int i = 0; i < all->count; i++)
        if (all->f[i].kind == FIGURE_HEAT && low < high)
            all->f[i].scale.low = low, all->f[i].scale.high = high;
}

/* The first line of each curve in one picture; takes the numbers of figures that it then frees. */
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
        const bool ok = !has || add(&one, s, SHOW_CURVE);
        if (ok && one.count && lines < MAX_LINES) {
            const struct figure *f = &one.f[0];
            const int line = f->lines > w->head ? w->head : 0;
            if (!lines) figure_lines(to, f->n, 1), to->x = f->x, to->y = f->y;
            else to->line[to->lines++].y = draw_take((size_t)to->n, sizeof(double));
            for (ptrdiff_t k = 0; k < to->n && k < f->n; k++)
                to->at[k] = f->at[k], to->line[lines].y[k] = f->line[line].y[k];
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

static int compare(const struct args *a, const struct wish *w, int what)
{
    enum { MOST = MAX_LINES };
    char *list = strcpy(take(strlen(a->value[COMPARE]) + 1, 1), a->value[COMPARE]), *cut[MOST];
    const char *texts[MOST];
    struct album all = { 0 };
    struct text t = { 0 };
    const struct terminal m = terminal();
    const int n = split(list, cut, MOST);
    bool ok = n >= 2 && n <= MOST;
    if (!ok) fail("show: --compare takes from 2 to %d encodings", MOST);
    for (int i = 0; i < n && ok; i++) texts[i] = runnable_text(cut[i]);
    for (int i = 0; i < n && ok && what != SHOW_PROPERTIES && what != SHOW_CURVE; i++) {
        struct wish mine = *w;
        mine.encoding = texts[i];
        struct show *s = open_show(&mine);
        int count = 0;
        struct figure some[MAX_FIGURES];
        loci_error e = { 0 };
        ok = s != NULL;
        const int kind = !ok ? 0 : what >= 0 ? what : best_kind(s);
        if (ok && show_figures(s, (enum show_what)kind, some, &count, &e))
            ok = refuse("show: %s", e.text);
        /* the first one of a kind is its picture */
        for (int k = 0; k < count; k++) {
            if (k == 0) all.f[all.count++] = some[k];
            else figure_free(&some[k]);
        }
        show_close(s);
    }
    one_scale(&all);
    if (ok && (what < 0 || what == SHOW_CURVE)) {
        ok = common_curve(&all.f[all.count], w, n, texts);
        if (all.f[all.count].lines) all.count++;
    }
    if (ok && (what < 0 || what == SHOW_PROPERTIES))
        ok = property_table(&all.f[all.count++], w, n, texts);
    int code = EXIT_ERROR;
    if (ok && a->value[SVG]) {
        figures_svg(&t, all.f, all.count);
        code = write_text(&t, a->value[SVG]);
    } else if (ok && page_path(a)) {
        figures_html(&t, a->value[COMPARE], "Side by side, on one scale.", all.f, all.count, true);
        code = write_text(&t, page_path(a));
    } else if (ok && a->value[JSON]) {
        text_add(&t, "{\"figures\":[");
        for (int i = 0; i < all.count; i++) text_add(&t, i ? "," : ""), figure_json(&t, &all.f[i]);
        text_add(&t, "]}\n");
        code = print_text(&t);
    } else if (ok) {
        for (int i = 0; i < all.count; i++) {
            if (i) text_add(&t, "\n");
            if (a->value[MARKDOWN]) figure_markdown(&t, &all.f[i]);
            else figure_print(&t, &all.f[i], &m);
        }
        code = print_text(&t);
    }
    text_free(&t);
    free_album(&all);
    free(list);
    return code;
}

/* Every encoding of the list, in a table. */
static int show_list(const struct args *a, const struct wish *w, int what)
{
    const loci_encoding_info *list;
    const int n = loci_encodings(&list);
    if (what != SHOW_PROPERTIES) return fail("show: --all goes with --what properties");
    const char **texts = take((size_t)n, sizeof *texts);
    struct figure f = { 0 };
    struct text t = { 0 };
    int code = EXIT_ERROR;
    for (int i = 0; i < n; i++) texts[i] = list[i].example;
    if (property_table(&f, w, n, texts)) {
        const struct terminal m = terminal();
        if (a->value[JSON]) figure_json(&t, &f), text_add(&t, "\n");
        else if (a->value[MARKDOWN]) figure_markdown(&t, &f);
        else if (page_path(a)) figures_html(&t, f.title, "", &f, 1, false);
        else figure_print(&t, &f, &m);
        code = page_path(a) ? write_text(&t, page_path(a)) : print_text(&t);
    }
    figure_free(&f);
    free(texts);
    return code;
}

/* ---- A model's rotation ---------------------------------------------------------------------- */

static bool is_model(const char *text)
{
    const char *dot = strrchr(text, '.');
    return dot && (!strcmp(dot, ".json") || !strcmp(dot, ".gguf"));
}

/* The first layer's, in its own width; a length that nobody told is 4096. */
static int show_model(const struct args *a, struct wish *w, int what)
{
    loci_rope r;
    if (!read_rope(a->rest[0], 0, 0, &r)) return EXIT_ERROR;
    w->encoding = r.attention;
    w->trained = r.trained_length > 0 ? r.trained_length : 4096;
    if (r.head_dim > 0) w->dim = r.head_dim;
    if (r.heads > 0) w->heads = r.heads < 64 ? r.heads : 64;
    if (w->head >= w->heads) w->head = 0;
    const int code = show_one(a, w, what, a->rest[0]);
    loci_rope_free(&r);
    return code;
}

static int example(const struct args *a)
{
    struct text t = { 0 };
    loci_error e = { 0 };
    if (example_print(&t, a->rest[0], &e)) return fail("show: %s", e.text);
    return print_text(&t);
}

static int run(const struct args *a)
{
    struct wish w;
    struct given_file g = { 0 };
    int what, code = EXIT_ERROR;
    const bool one = !a->value[ALL] && !a->value[COMPARE];
    if (a->rest_count != one)
        return fail(one ? "show: one encoding or model is wanted, for example: loci show alibi"
                        : "show: --all and --compare say which encodings; '%s' is one too many",
                    a->rest_count ? a->rest[0] : "");
    if (a->value[ALL] && a->value[COMPARE]) return fail("show: either --all or --compare");
    if (!read_wish(a, &w) || !read_what(a, &what)) return EXIT_ERROR;
    if (!args_output(a, SVG) || !args_output(a, HTML) || !args_output(a, OUTPUT)) return EXIT_ERROR;
    if (a->value[EXAMPLE]) return one ? example(a) : fail("show: --example goes with one encoding");
    if (a->value[TENSORS] && !read_tensors(a->value[TENSORS], &g))
        return free_tensors(&g), EXIT_ERROR;
    w.given_count = g.count, w.given = g.list;
    if (a->value[ALL]) code = show_list(a, &w, what);
    else if (a->value[COMPARE]) code = compare(a, &w, what);
    else if (is_model(a->rest[0])) code = show_model(a, &w, what);
    else {
        w.encoding = runnable_text(a->rest[0]);
        code = show_one(a, &w, what, w.encoding);
    }
    free_tensors(&g);
    return code;
}

const struct command cmd_show = {
    .name = "show",
    .brief = "what an encoding looks like, and its properties, measured",
    .synopsis = "loci show ENCODING|MODEL [--what WORD] [--head N] [--len L] [--svg|--html FILE] "
                "[--json]",
    .about =
        "    Draws an encoding from the engine itself: scores of all pairs, curves by distance,\n"
        "    wavelengths, rows that are added, what attention then looks at; and measures what\n"
        "    textbooks ask: is it invariant to translation, symmetric, falling, bounded?  A\n"
        "    config.json or GGUF file stands for its first layer.  Terminals get blocks and\n"
        "    colours, pipes plain letters.\n",
    .examples = "    loci show alibi\n"
                "    loci show rope:pairing=half --what spectrum --svg rope.svg\n"
                "    loci show --compare alibi,kerple,t5,fire -o compare.html\n"
                "    loci show --all --what properties\n"
                "    loci show sinusoidal --example\n"
                "    loci show config.json\n",
    .flags = flags,
    .run = run,
};
