/* SPDX-License-Identifier: MIT */
/* module.c -- what the WebAssembly module has besides the functions of loci.h and loci/cache.h: the
 * layout of their structs, the list of encodings, and the figures of one.  loci.js calls it.
 *
 * Texts come in through room().  Returned texts end with a 0 and are valid until the next call of
 * the same function.  Numbers arrive as JavaScript doubles.  Every failure returns a sentence. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "draw/figure.h"
#include "show/show.h"
#include "loci/cache.h"

#define EXPORT(name) __attribute__((export_name(#name)))

/* Limits of a figure. */
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
EXPORT(room) char *module_room(int n)
{
    if (n >= 0 && n <= MOST_TEXT) return given;
    loci_fail(&error, LOCI_BAD_ARG,
              "the text is too long: it has %d bytes, and at most %d are allowed", n, MOST_TEXT);
    return NULL;
}
EXPORT(sentence) const char *module_sentence(void) { return error.text; }

/* ---- Structs --------------------------------------------------------------------------------- */

/* What loci.js sets and reads.  i and q: whole numbers of 32 and 64 bits; d: a double. */
struct field {
    const char *name;
    size_t at;
    char form;
};
#define FORM(x) _Generic((x), double : 'd', default : sizeof(x) == 8 ? 'q' : 'i')
#define FIELD(type, name) \
    { \
        "" #name, offsetof(type, name), FORM(((type *)0)->name) \
    }
#define VIEW(type, name) \
    FIELD(type, name.data), FIELD(type, name.batch), FIELD(type, name.head), FIELD(type, name.row)
struct one_view {
    loci_view x;
};
static const struct field of_error[] = {
    FIELD(loci_error, status),
    FIELD(loci_error, text),
};
static const struct field of_tensor[] = {
    FIELD(loci_tensor, encoding), FIELD(loci_tensor, name),  FIELD(loci_tensor, role),
    FIELD(loci_tensor, rank),     FIELD(loci_tensor, shape),
};
static const struct field of_desc[] = {
    FIELD(loci_desc, size),      FIELD(loci_desc, encoding),    FIELD(loci_desc, stage),
    FIELD(loci_desc, heads),     FIELD(loci_desc, kv_heads),    FIELD(loci_desc, dim),
    FIELD(loci_desc, value_dim), FIELD(loci_desc, model_dim),   FIELD(loci_desc, dtype),
    FIELD(loci_desc, full),      FIELD(loci_desc, window_left), FIELD(loci_desc, window_right),
    FIELD(loci_desc, scale),     FIELD(loci_desc, max_len),     FIELD(loci_desc, keys_rotated),
    FIELD(loci_desc, isa),       FIELD(loci_desc, tensors),     FIELD(loci_desc, tensor_count),
};
static const struct field of_call[] = {
    FIELD(loci_call, size),
    FIELD(loci_call, batch),
    FIELD(loci_call, q_len),
    FIELD(loci_call, k_len),
    VIEW(loci_call, q),
    VIEW(loci_call, k),
    VIEW(loci_call, v),
    VIEW(loci_call, o),
    FIELD(loci_call, lse),
    FIELD(loci_call, rem),
    FIELD(loci_call, ae),
    FIELD(loci_call, q_pos),
    FIELD(loci_call, k_pos),
    FIELD(loci_call, q_coord),
    FIELD(loci_call, k_coord),
    FIELD(loci_call, q_seg),
    FIELD(loci_call, k_seg),
    FIELD(loci_call, per_batch),
    FIELD(loci_call, k_lens),
    FIELD(loci_call, cache),
    FIELD(loci_call, q_starts),
    FIELD(loci_call, k_starts),
    FIELD(loci_call, sequences),
    FIELD(loci_call, tensors),
    FIELD(loci_call, error),
    FIELD(loci_call, work_bytes),
    FIELD(loci_call, tables_bytes),
    FIELD(loci_call, k_first),
    FIELD(loci_call, k_last),
    FIELD(loci_call, mask_kind),
    VIEW(loci_call, mask),
    FIELD(loci_call, dropout),
    FIELD(loci_call, dropout_seed),
    FIELD(loci_call, dropout_offset),
};
static const struct field of_grad[] = {
    FIELD(loci_grad, size), VIEW(loci_grad, dout), FIELD(loci_grad, dlse),
    FIELD(loci_grad, drem), FIELD(loci_grad, dae), VIEW(loci_grad, dq),
    VIEW(loci_grad, dk),    VIEW(loci_grad, dv),   FIELD(loci_grad, dtensors),
    VIEW(loci_grad, dmask),
};
static const struct field of_view[] = {
    VIEW(struct one_view, x),
};

static void add_struct(struct text *t, const char *name, size_t size, const struct field *f, int n)
{
    text_add(t, "\"%s\":{\"bytes\":%d", name, (int)size);
    for (int i = 0; i < n; i++)
        text_add(t, ",\"%s\":[%d,\"%c\"]", f[i].name, (int)f[i].at, f[i].form);
    text_add(t, "}");
}
/* {"error": {"bytes": 516, "status": [0, "i"], ...}, "tensor": {...}, ...} */
EXPORT(structs) const char *module_structs(void)
{
    static struct text t;
    text_free(&t);
    text_add(&t, "{");
    add_struct(&t, "error", sizeof(loci_error), of_error, COUNT(of_error));
    text_add(&t, ",");
    add_struct(&t, "tensor", sizeof(loci_tensor), of_tensor, COUNT(of_tensor));
    text_add(&t, ",");
    add_struct(&t, "desc", sizeof(loci_desc), of_desc, COUNT(of_desc));
    text_add(&t, ",");
    add_struct(&t, "call", sizeof(loci_call), of_call, COUNT(of_call));
    text_add(&t, ",");
    add_struct(&t, "grad", sizeof(loci_grad), of_grad, COUNT(of_grad));
    text_add(&t, ",");
    add_struct(&t, "view", sizeof(struct one_view), of_view, COUNT(of_view));
    text_add(&t, "}");
    return t.s;
}

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
    text_add(t, ",\"causal_only\":%s", e->causal_only ? "true" : "false");
    add_number(t, "tolerance", e->tolerance);
    text_add(t, ",\"options\":[");
    for (int i = 0; i < e->option_count; i++) {
        text_add(t, i ? "," : "");
        add_option(t, &e->options[i]);
    }
    text_add(t, "]}");
}

/* {"version", "what": [...], "most": {...}, "encodings": [{...}, ...]} */
EXPORT(encodings) const char *module_encodings(void)
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
          "%s must be a whole number from %g to %.10g in a figure", name, low, high);
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
          "length x dim x heads is %.0f, but must be at most %d in a figure", len * dim * heads,
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
EXPORT(look) int module_look(double len, double dim, double heads, double head, double seed)
{
    show_close(shown);
    shown = NULL;
    given[MOST_TEXT] = 0;
    error = (loci_error){ 0 };
    return open(len, dim, heads, head, seed) ? -1 : (int)show_has(shown);
}

/* {"text", "tensors"}: the complete plan, and the origin of its tensors. */
EXPORT(about) const char *module_about(void)
{
    static struct text t;
    text_free(&t);
    text_add(&t, "{\"what\":\"about\"");
    add_text(&t, "text", shown ? show_text(shown) : "");
    add_text(&t, "tensors", shown ? show_tensors(shown) : "");
    text_add(&t, "}");
    return t.s;
}

/* The figures of one kind, as a list in JSON, as HTML or as one SVG element; NULL: see
 * sentence(). */
enum form { FORM_JSON, FORM_HTML, FORM_SVG };
EXPORT(figures) const char *module_figures(int what, int form)
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
    if (!status && form == FORM_SVG) figures_svg(&t, list, count);
    for (int i = 0; i < count; i++) {
        if (!status && form == FORM_JSON) {
            text_add(&t, i ? "," : "");
            figure_json(&t, &list[i]);
        } else if (!status && form == FORM_HTML) {
            figure_html(&t, &list[i]);
        }
        figure_free(&list[i]);
    }
    if (!status) text_add(&t, form == FORM_JSON ? "]" : "");
    return status ? NULL : t.s ? t.s : "";
}
