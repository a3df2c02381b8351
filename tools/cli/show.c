/* SPDX-License-Identifier: MIT */
/* show.c -- `loci show`: figures and properties of an encoding, computed by the engine, for
 * terminals, pages and scripts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "math/half.h"
#include "cli/show.h"
#include "models/safetensors.h"
#include "show/example.h"

static const struct flag flags[] = {
    [WHAT] = { "what", NULL, "WORD:@figure", "show only this one of the words above" },
    [HEAD] = { "head", NULL, "N", "head of a map, from 0 (default 0)" },
    [HEADS] = { "heads", NULL, "H", "heads (default 8)" },
    [DIM] = { "dim", NULL, "D", "width of a head (default 64)" },
    [LEN] = { "len", NULL, "L", "positions (default 64)" },
    [SEED] = { "seed", NULL, "S", "seed of random numbers (default 1)" },
    [TENSORS] = { "tensors", NULL, "FILE:@file",
                  "learned tensors from a safetensors file (t5.table, ...)" },
    [COMPARE] = { "compare", NULL, "LIST:@encoding,",
                  "several encodings side by side, separated by commas" },
    [ALL] = { "all", NULL, NULL, "every encoding of 'loci list'; needs --what properties" },
    [EXAMPLE] = { "example", NULL, NULL, "the textbook's example, step by step" },
    [SVG] = { "svg", NULL, "FILE:@file", "write a picture" },
    [HTML] = { "html", NULL, "FILE:@file", "write a page of all figures, without scripts" },
    [OUTPUT] = { "output", "o", "FILE:@file", "the same as --html" },
    [JSON] = { "json", NULL, NULL, "one JSON object: the numbers of all figures" },
    [MARKDOWN] = { "markdown", NULL, NULL, "tables as Markdown" },
    { NULL, NULL, NULL, NULL }
};

/* ---- Arguments ------------------------------------------------------------------------------- */

struct given_file {
    int count;
    struct given *list;
    double **data;
    struct safetensors file;
};

/* Reads all tensors of a file, in double.  Names may begin with "param." as in a case. */
static bool read_tensors(const char *path, struct given_file *g)
{
    loci_error e;
    if (loci_safetensors_open(&g->file, path, &e)) return refuse("%s: %s", path, e.text);
    g->count = g->file.count;
    g->list = alloc((size_t)g->count, sizeof *g->list);
    g->data = alloc((size_t)g->count, sizeof *g->data);
    for (int i = 0; i < g->count; i++) {
        const struct safetensor *t = &g->file.tensor[i];
        const loci_dtype types[] = { LOCI_F32, LOCI_F64, LOCI_BF16, LOCI_F16 };
        int k = 0;
        while (k < COUNT(types) && loci_safetensors_type_of(types[k]) != t->type) k++;
        if (k == COUNT(types))
            return refuse("%s: tensor '%.64s' must be F32, F64, BF16 or F16, not %s", path, t->name,
                          loci_safetensors_type_name(t->type));
        if (t->rank > COUNT(g->list->shape))
            return refuse("%s: tensor '%.64s' has %d dimensions, but at most %d are allowed", path,
                          t->name, t->rank, COUNT(g->list->shape));
        void *raw = alloc((size_t)t->count, stored_size(types[k]));
        g->data[i] = alloc((size_t)t->count, sizeof(double));
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

/* Reads the flags that describe the encoding. */
static bool read_wish(const struct args *a, struct wish *w)
{
    int heads = 8, dim = 64, len = 64, head = 0, seed = 1;
    if (!args_whole(a, HEADS, 1, 64, &heads) || !args_whole(a, DIM, 1, 512, &dim)
        || !args_whole(a, LEN, 2, 1024, &len) || !args_whole(a, HEAD, 0, 63, &head)
        || !args_whole(a, SEED, 1, 1 << 30, &seed))
        return false;
    *w = (struct wish){
        .heads = heads, .dim = dim, .len = len, .head = head, .seed = (uint64_t)seed
    };
    return true;
}

/* Reads the words of --what, of which -1 is all. */
static bool read_what(const struct args *a, int *what)
{
    char words[200] = "";
    *what = -1;
    for (int i = 0; i < SHOW_COUNT; i++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s", i ? "|" : "",
                 show_names[i]);
    return !a->value[WHAT] || args_word_of(a, WHAT, words, what);
}

/* ---- Figures --------------------------------------------------------------------------------- */

void free_album(struct album *all)
{
    for (int i = 0; i < all->count; i++) figure_free(&all->f[i]);
    all->count = 0;
}

bool add_figures(struct album *all, struct show *s, int what)
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
        if ((show_has(s) & which & 1u << i) && !add_figures(all, s, i)) return false;
    return true;
}

struct show *open_show(const struct wish *w)
{
    struct show *s;
    loci_error e = { 0 };
    if (!show_open(&s, w, &e)) return s;
    fail("show: %s", e.text);
    return NULL;
}

int best_kind(const struct show *s)
{
    static const enum show_what order[] = { SHOW_MAP, SHOW_EMBEDDING, SHOW_ANGLES, SHOW_CURVE,
                                            SHOW_ATTENTION };
    int i = 0;
    while (!(show_has(s) & 1u << order[i])) i++;
    return (int)order[i];
}

/* The name, the formula and the origin; a composition has a line for each. */
static void add_heading(struct text *t, const struct show *s, const char *text,
                        const struct terminal *m)
{
    for (const char *p = text; *p; p += strcspn(p, "+"), p += *p == '+') {
        const loci_encoding_info *i = find_encoding(p, strcspn(p, ":+"));
        if (!i) continue;
        text_add(t, m->colours ? "\033[1m%s\033[0m  %s\n" : "%s  %s\n", i->name, i->brief);
        text_add(t, m->colours ? "\033[2m    %s\033[0m\n" : "    %s\n", i->cite);
    }
    wrap_text(t, show_text(s), m->columns, 4);
    if (*show_tensors(s)) wrap_text(t, show_tensors(s), m->columns, 4);
    text_add(t, "\n");
}

/* The JSON fields besides the figures. */
static void add_json(struct text *t, const struct show *s, const char *text)
{
    text_add(t, "\"encoding\":");
    text_json(t, text);
    text_add(t, ",\"text\":");
    text_json(t, show_text(s));
    text_add(t, ",\"tensors\":");
    text_json(t, show_tensors(s));
    text_add(t, ",");
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

const char *page_path(const struct args *a)
{
    return a->value[HTML] ? a->value[HTML] : a->value[OUTPUT];
}

int put_album(const struct args *a, const struct album *all, const struct form *form,
              struct text *json, struct text *heading)
{
    const struct terminal m = terminal();
    struct text t = { 0 };
    if (a->value[SVG]) {
        figures_svg(&t, all->f, all->count);
        return write_text(&t, a->value[SVG]);
    }
    if (page_path(a)) {
        figures_html(&t, form->title, form->about, all->f, all->count, form->side);
        return write_text(&t, page_path(a));
    }
    if (a->value[JSON]) {
        text_add(&t, "{%s\"figures\":[", json->s ? json->s : "");
        for (int i = 0; i < all->count; i++) {
            if (i) text_add(&t, ",");
            figure_json(&t, &all->f[i]);
        }
        text_add(&t, "]}\n");
        return print_text(&t);
    }
    if (!a->value[MARKDOWN]) text_put(&t, heading->s, heading->n);
    for (int i = 0; i < all->count; i++) {
        if (i) text_add(&t, "\n");
        if (a->value[MARKDOWN]) figure_markdown(&t, &all->f[i]);
        else figure_print(&t, &all->f[i], &m);
    }
    return print_text(&t);
}

static int show_one(const struct args *a, const struct wish *w, int what, const char *title)
{
    struct album all = { 0 };
    struct text about = { 0 }, json = { 0 }, heading = { 0 };
    struct show *s = open_show(w);
    if (!s) return EXIT_ERROR;
    const struct terminal m = terminal();
    /* what fits a page of a terminal; files and scripts get all figures */
    const unsigned page =
        1u << best_kind(s) | 1u << SHOW_CURVE | 1u << SHOW_SPECTRUM | 1u << SHOW_PROPERTIES;
    bool ok;
    if (what >= 0) ok = add_figures(&all, s, what);
    else if (a->value[SVG]) ok = add_figures(&all, s, best_kind(s));
    else ok = add_all(&all, s, a->value[JSON] || page_path(a) ? ~0u : page);
    int code = EXIT_ERROR;
    if (ok) {
        page_about(&about, s, w->encoding);
        add_json(&json, s, w->encoding);
        add_heading(&heading, s, w->encoding, &m);
        const struct form form = { title, about.s, false };
        code = put_album(a, &all, &form, &json, &heading);
    }
    text_free(&about);
    text_free(&json);
    text_free(&heading);
    free_album(&all);
    show_close(s);
    return code;
}

/* ---- A model's rotation ---------------------------------------------------------------------- */

static bool is_model(const char *text)
{
    const char *dot = strrchr(text, '.');
    return dot && (!strcmp(dot, ".json") || !strcmp(dot, ".gguf"));
}

/* Uses the first layer, in its own width.  The default length is 4096. */
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
        return fail(one ? "show: give one encoding or model, for example: loci show alibi"
                        : "show: --all and --compare already select the encodings; leave out '%s'",
                    a->rest_count ? a->rest[0] : "");
    if (a->value[ALL] && a->value[COMPARE]) return fail("show: give either --all or --compare");
    if (!read_wish(a, &w) || !read_what(a, &what)) return EXIT_ERROR;
    if (!args_output(a, SVG) || !args_output(a, HTML) || !args_output(a, OUTPUT)) return EXIT_ERROR;
    if (a->value[EXAMPLE]) return one ? example(a) : fail("show: --example needs one encoding");
    if (a->value[TENSORS] && !read_tensors(a->value[TENSORS], &g)) {
        free_tensors(&g);
        return EXIT_ERROR;
    }
    w.given_count = g.count;
    w.given = g.list;
    if (a->value[ALL]) code = show_list(a, &w, what);
    else if (a->value[COMPARE]) code = show_several(a, &w, what);
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
    .brief = "show what an encoding looks like, and its measured properties",
    .synopsis = "loci show ENCODING|MODEL [--what WORD] [--head N] [--len L] [--svg|--html FILE] "
                "[--json]",
    .about = "    Draws an encoding as the engine computes it: scores of all pairs, curves by\n"
             "    distance, wavelengths, rows that are added, weights of attention.  It also\n"
             "    measures properties: is the encoding invariant to translation, symmetric,\n"
             "    falling, bounded?  A config.json or GGUF file stands for its first layer.  A\n"
             "    terminal shows blocks and colours, a pipe plain letters.  What is shown depends\n"
             "    on the encoding:\n"
             "\n"
             "    map         what is added to the score of each query and key\n"
             "    curve       the same by distance; for rotations, q.k after rotation\n"
             "    spectrum    positions per turn, pair by pair\n"
             "    angles      a rotated vector; for several axes, the plane\n"
             "    embedding   the rows that are added to tokens\n"
             "    similarity  the similarity of these rows\n"
             "    attention   weights of rows and keys, with the encoding and without\n"
             "    properties  measured properties, with the largest deviation and the cases\n",
    .examples = "    loci show alibi\n"
                "    loci show rope:pairing=half --what spectrum --svg rope.svg\n"
                "    loci show --compare alibi,kerple,t5,fire -o compare.html\n"
                "    loci show --all --what properties\n"
                "    loci show sinusoidal --example\n"
                "    loci show config.json\n",
    .operand_text = "@encoding|@file",
    .flags = flags,
    .run = run,
};
