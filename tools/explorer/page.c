/* SPDX-License-Identifier: MIT */
/* page.c -- the functions of the library that explorer.js calls: the list of encodings, and the
 * figures of one.
 *
 * Texts come in through room().  Returned texts end with a 0 and are valid until the next call of
 * the same function.  Numbers arrive as JavaScript doubles.  Every failure returns a sentence. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "draw/figure.h"
#include "show/show.h"

#define EXPORT(name) __attribute__((export_name(#name)))

/* Limits of the work that a page may request while a reader waits. */
enum {
    MOST_TEXT = 4096,
    MOST_LENGTH = 1024,
    MOST_DIM = 512,
    MOST_HEADS = 64,
    MOST_NUMBERS = 1 << 20,
    MOST_SEED = 1 << 30
};

static char given[MOST_TEXT + 1];
static loci_error error;
static struct show *shown;

/* Returns a buffer for a text of n bytes and a 0.  NULL: it is too long. */
EXPORT(room) char *page_room(int n)
{
    if (n >= 0 && n <= MOST_TEXT) return given;
    loci_fail(&error, LOCI_BAD_ARG, "the text has %d bytes, but this page accepts at most %d", n,
              MOST_TEXT);
    return NULL;
}
EXPORT(sentence) const char *page_sentence(void) { return error.text; }

/* ---- The list -------------------------------------------------------------------------------- */

static const char *const places[] = { "embed",  "rotate", "score", "mix",
                                      "weight", "value",  "state", "sum" };
static const char *const kinds[] = { "number", "whole", "word", "list" };

static void key(struct text *t, const char *name) { text_add(t, ",\"%s\":", name); }
static void add_text(struct text *t, const char *name, const char *s)
{
    key(t, name);
    text_json(t, s);
}
static void add_number(struct text *t, const char *name, double x)
{
    key(t, name);
    text_json_number(t, x);
}
static void add_option(struct text *t, const loci_option *o)
{
    text_add(t, "{\"kind\":\"%s\"", kinds[o->kind]);
    add_text(t, "name", o->name);
    add_text(t, "help", o->help);
    add_text(t, "words", o->words ? o->words : "");
    text_add(t, ",\"required\":%s", o->required ? "true" : "false");
    add_number(t, "default_value", o->required ? NAN : o->default_value);
    add_number(t, "min", o->min);
    add_number(t, "max", o->max);
    text_add(t, "}");
}
static void add_encoding(struct text *t, const loci_encoding_info *e)
{
    text_add(t, "{\"places\":[");
    for (int i = 0, n = 0; i < COUNT(places); i++)
        if (e->places & 1 << i) text_add(t, "%s\"%s\"", n++ ? "," : "", places[i]);
    text_add(t, "]");
    add_text(t, "name", e->name);
    add_text(t, "brief", e->brief);
    add_text(t, "cite", e->cite);
    add_text(t, "example", e->example);
    text_add(t, ",\"options\":[");
    for (int i = 0; i < e->option_count; i++) {
        text_add(t, i ? "," : "");
        add_option(t, &e->options[i]);
    }
    text_add(t, "]}");
}

/* {"version", "what": [...], "most": {...}, "encodings": [{...}, ...]} */
EXPORT(encodings) const char *page_encodings(void)
{
    static struct text t;
    const loci_encoding_info *list;
    const int n = loci_encodings(&list);
    text_free(&t);
    text_add(&t, "{\"version\":\"%s\",\"what\":[", loci_version_text());
    for (int i = 0; i < SHOW_COUNT; i++) text_add(&t, "%s\"%s\"", i ? "," : "", show_names[i]);
    text_add(&t, "],\"most\":{\"len\":%d,\"dim\":%d,\"heads\":%d,\"seed\":%d},\"encodings\":[",
             MOST_LENGTH, MOST_DIM, MOST_HEADS, MOST_SEED);
    for (int i = 0; i < n; i++) {
        text_add(&t, i ? "," : "");
        add_encoding(&t, &list[i]);
    }
    text_add(&t, "]}");
    return t.s;
}

/* ---- One encoding ---------------------------------------------------------------------------- */

static loci_status check(const char *name, double x, double low, double high)
{
    CHECK(&error, x >= low && x <= high && x == floor(x), LOCI_BAD_ARG,
          "%s must be a whole number from %g to %.10g on this page", name, low, high);
    return LOCI_OK;
}
static loci_status open(double len, double dim, double heads, double head, double seed)
{
    TRY(check("length", len, 2, MOST_LENGTH));
    TRY(check("heads", heads, 1, MOST_HEADS));
    TRY(check("dim", dim, 2, MOST_DIM));
    TRY(check("head", head, 0, heads - 1));
    TRY(check("seed", seed, 1, MOST_SEED));
    CHECK(&error, len * dim * heads <= MOST_NUMBERS, LOCI_BAD_ARG,
          "length x dim x heads is %.0f, but this page accepts at most %d", len * dim * heads,
          MOST_NUMBERS);
    const struct wish w = {
        .encoding = given,
        .heads = (int)heads,
        .dim = (int)dim,
        .head = (int)head,
        .len = (ptrdiff_t)len,
        .seed = (uint64_t)seed,
    };
    return show_open(&shown, &w, &error);
}

/* Selects the encoding in room().  Returns the available figures, a bit each. -1: failed, and
 * sentence() says why. */
EXPORT(look) int page_look(double len, double dim, double heads, double head, double seed)
{
    show_close(shown);
    shown = NULL;
    given[MOST_TEXT] = 0;
    error = (loci_error){ 0 };
    return open(len, dim, heads, head, seed) ? -1 : (int)show_has(shown);
}

/* {"text", "tensors"}: the complete plan, and the origin of its tensors. */
EXPORT(about) const char *page_about(void)
{
    static struct text t;
    text_free(&t);
    text_add(&t, "{\"what\":\"about\"");
    add_text(&t, "text", shown ? show_text(shown) : "");
    add_text(&t, "tensors", shown ? show_tensors(shown) : "");
    text_add(&t, "}");
    return t.s;
}

/* The figures of one kind, as a list in JSON or as HTML; NULL: see sentence(). */
enum form { FORM_JSON, FORM_HTML };
EXPORT(figures) const char *page_figures(int what, int form)
{
    static struct text t;
    struct figure list[MAX_FIGURES] = { { 0 } };
    int count = 0;
    text_free(&t);
    error = (loci_error){ 0 };
    if (!shown || what < 0 || what >= SHOW_COUNT) {
        loci_fail(&error, LOCI_BAD_ARG, "this encoding has nothing to show");
        return NULL;
    }
    const loci_status status = show_figures(shown, (enum show_what)what, list, &count, &error);
    if (!status && form == FORM_JSON) text_add(&t, "[");
    for (int i = 0; i < count; i++) {
        if (!status && form == FORM_JSON) {
            text_add(&t, i ? "," : "");
            figure_json(&t, &list[i]);
        } else if (!status) {
            figure_html(&t, &list[i]);
        }
        figure_free(&list[i]);
    }
    if (!status) text_add(&t, form == FORM_JSON ? "]" : "");
    return status ? NULL : t.s ? t.s : "";
}
