/* SPDX-License-Identifier: MIT */
/* parse.c -- encoding text -> encodings and options, and back.
 *
 *     text     = encoding { "+" encoding }
 *     encoding = name [ ":" option "=" value { "," option "=" value } ]
 *     value    = number | word | number { "/" number }
 *
 * A "+" before a digit or a point belongs to a number (1e+5); before anything else
 * it starts an encoding. */
#include "plan/parse.h"
#include "util/nearest.h"
#include "util/planted_bug.h"

#include <stdio.h>
#include <stdlib.h>

/* Bytes of a text, letters of a word in a sentence, bytes of a number, numbers of a list. */
enum { MAX_TEXT = 65536, MAX_NAME = 48, MAX_NUMBER = 64, MAX_LIST = 4096 };

/* ---- Words ----------------------------------------------------------------------------------- */

/* A piece of the text.  It is not copied. */
struct span {
    const char *at;
    int n;
};

#define SHOWN(s) (s).n < MAX_NAME ? (s).n : MAX_NAME, (s).at /* for %.*s in a sentence */

static bool same(struct span a, struct span b)
{
    return a.n == b.n && !memcmp(a.at, b.at, (size_t)a.n);
}
static struct span span_of(const char *word) { return (struct span){ word, (int)strlen(word) }; }

/* The next word of "half|interleaved"; n < 0 after the last. */
static struct span next_word(const char **words)
{
    if (!*words) return (struct span){ "", -1 };
    struct span w = { *words, (int)strcspn(*words, "|") };
    *words = w.at[w.n] ? w.at + w.n + 1 : NULL;
    return w;
}

/* What other libraries call things that loci knows. */
static const struct {
    const char *word, *ours;
} elsewhere[] = {
    { "rotary", "rope" }, { "roformer", "rope" },   { "theta", "rope" },
    { "theta", "base" },  { "rope_theta", "base" },
};

static bool is_known(const char *known, struct span word)
{
    for (struct span w; (w = next_word(&known)).n >= 0;)
        if (same(w, word)) return true;
    return false;
}

/* Completes a sentence about an unknown word: with its meaning in other libraries, with the nearest
 * of the known "a|b|c", or with all of these. */
static void hint(char *text, size_t capacity, struct span word, const char *known)
{
    struct span best = { "", 0 };
    /* One wrong letter in a short word, and one more for every four letters. */
    int least = 1 + (word.n + 1) / 4;
    const char *rest = known;
    for (struct span w; (w = next_word(&rest)).n >= 0;) {
        int distance = edits(word.at, word.n, w.at, w.n);
        /* a guess has a letter in common with the word at least */
        if (distance <= least && distance < w.n
            && (best.n == 0 || distance < edits(word.at, word.n, best.at, best.n)))
            best = w;
    }
    for (int i = 0; i < COUNT(elsewhere); i++) {
        const struct span ours = span_of(elsewhere[i].ours);
        if (same(word, span_of(elsewhere[i].word)) && is_known(known, ours)) best = ours;
    }
    if (best.n) snprintf(text, capacity, "did you mean '%.*s'?", best.n, best.at);
    else snprintf(text, capacity, "known: %s", known);
}

/* The names that hint() chooses from, as "a|b|c".  Names that do not fit are left out. */
static void known_encodings(char *text, size_t capacity)
{
    size_t n = 0;
    int count;
    const struct loci_pe *const *list = loci_pe_list(&count);
    for (int i = 0; i < count && n < capacity; i++)
        n += (size_t)snprintf(text + n, capacity - n, "%s%s", i ? "|" : "", list[i]->name);
}

static void known_options(const struct loci_pe *pe, char *text, size_t capacity)
{
    size_t n = 0;
    for (int i = 0; encoding_options(pe)[i].name && n < capacity; i++)
        n += (size_t)snprintf(text + n, capacity - n, "%s%s", i ? "|" : "",
                              encoding_options(pe)[i].name);
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* Skips digits and returns how many. */
static int digits(const char **s, const char *end)
{
    int n = 0;
    for (; *s < end && **s >= '0' && **s <= '9'; ++*s) n++;
    return n;
}

/* [sign] digits [. digits] [e [sign] digits], with at least one digit before or after the point.
 * strtod() alone would also accept hexadecimal, "inf", "nan" and leading blanks. */
static bool is_number(struct span v)
{
    const char *s = v.at, *end = v.at + v.n;
    if (s < end && (*s == '+' || *s == '-')) s++;
    int n = digits(&s, end);
    if (s < end && *s == '.') {
        s++;
        n += digits(&s, end);
    }
    if (n == 0) return false;
    if (s < end && (*s == 'e' || *s == 'E')) {
        s++;
        if (s < end && (*s == '+' || *s == '-')) s++;
        if (digits(&s, end) == 0) return false;
    }
    return s == end;
}

/* One number within the range of its option.  It is copied, because strtod() needs a terminated
 * string. */
static loci_status read_number(const struct config *c, const loci_option *o, struct span v,
                               double *x, loci_error *e)
{
    char text[MAX_NUMBER + 1], low[NUMBER_TEXT], high[NUMBER_TEXT];
    bool whole = o->kind == LOCI_WHOLE;
    CHECK(e, is_number(v) && PLANTED_BUG(1, v.n <= MAX_NUMBER), LOCI_BAD_ARG,
          "%s: %s=%.*s is not a number%s", c->pe->name, o->name, SHOWN(v),
          v.n > MAX_NUMBER ? " of at most 64 characters" : "");
    memcpy(text, v.at, (size_t)v.n);
    text[v.n] = 0;
    *x = strtod(text, NULL);
    CHECK(e, isfinite(*x), LOCI_BAD_ARG, "%s: %s=%s is too large for a double", c->pe->name,
          o->name, text);
    CHECK(e, PLANTED_BUG(2, *x >= o->min && *x <= o->max) && (!whole || *x == floor(*x)),
          LOCI_BAD_ARG, "%s: %s=%.*s must be a %snumber from %s to %s", c->pe->name, o->name,
          SHOWN(v), whole ? "whole " : "", loci_number_text(o->min, low),
          loci_number_text(o->max, high));
    return LOCI_OK;
}

/* The value of a word is its index in the list of known words. */
static loci_status read_word(const struct config *c, const loci_option *o, struct span v, double *x,
                             loci_error *e)
{
    const char *rest = o->words;
    int index = 0;
    for (struct span w; (w = next_word(&rest)).n >= 0; index++) {
        if (!same(w, v)) continue;
        *x = index;
        return LOCI_OK;
    }
    return loci_fail(e, LOCI_BAD_ARG, "%s: %s=%.*s is not one of %s", c->pe->name, o->name,
                     SHOWN(v), o->words);
}

/* "1/2/3".  The plan owns the list from here on, even if a number in it is refused. */
static loci_status read_list(struct config *c, int which, struct span v, loci_error *e)
{
    const loci_option *o = &encoding_options(c->pe)[which];
    int n = 1;
    for (int i = 0; i < v.n; i++) n += v.at[i] == '/';
    CHECK(e, n <= MAX_LIST, LOCI_BAD_ARG, "%s: %s has %d numbers, but at most %d are allowed",
          c->pe->name, o->name, n, MAX_LIST);
    c->list[which] = malloc((size_t)n * sizeof(double));
    CHECK(e, c->list[which], LOCI_NO_MEMORY, "out of memory for the plan");
    c->count[which] = n;
    /* After the last number v.n is -1, and v is not used any more. */
    for (int i = 0; i < n; i++) {
        const char *slash = memchr(v.at, '/', (size_t)v.n);
        struct span item = { v.at, slash ? (int)(slash - v.at) : v.n };
        loci_status status = read_number(c, o, item, &c->list[which][i], e);
        if (status) return status;
        v = (struct span){ v.at + item.n + 1, v.n - item.n - 1 };
    }
    return LOCI_OK;
}

/* ---- Encodings ------------------------------------------------------------------------------- */

/* Finds the option and reads its value, or reports which options exist. */
static loci_status read_option(struct config *c, struct span name, struct span value, loci_error *e)
{
    const struct loci_pe *pe = c->pe;
    for (int i = 0; encoding_options(pe)[i].name; i++) {
        const loci_option *o = &encoding_options(pe)[i];
        if (!same(name, span_of(o->name))) continue;
        CHECK(e, !c->given[i], LOCI_BAD_ARG, "%s: %s is given twice", pe->name, o->name);
        CHECK(e, value.n > 0, LOCI_BAD_ARG, "%s: %s= has no value", pe->name, o->name);
        c->given[i] = true;
        if (o->kind == LOCI_WORD) return read_word(c, o, value, &c->opt[i], e);
        if (o->kind == LOCI_LIST) return read_list(c, i, value, e);
        return read_number(c, o, value, &c->opt[i], e);
    }
    char known[512] = "", end[512];
    known_options(pe, known, sizeof known);
    CHECK(e, known[0], LOCI_BAD_ARG, "%s: unknown option '%.*s'; %s has no options", pe->name,
          SHOWN(name), pe->name);
    hint(end, sizeof end, name, known);
    return loci_fail(e, LOCI_BAD_ARG, "%s: unknown option '%.*s'; %s", pe->name, SHOWN(name), end);
}

/* The encoding of that name, or an error that suggests one. */
static loci_status find_encoding(struct config *c, struct span name, loci_error *e)
{
    CHECK(e, name.n > 0, LOCI_BAD_ARG,
          "the encoding text lacks a name; it has the form name:option=value,...+name...");
    c->pe = loci_pe_find(name.at, (size_t)name.n);
    if (c->pe) return LOCI_OK;
    char known[512] = "", end[512];
    known_encodings(known, sizeof known);
    hint(end, sizeof end, name, known);
    return loci_fail(e, LOCI_BAD_ARG, "unknown encoding '%.*s'; %s", SHOWN(name), end);
}

/* The text up to one of `stops`.  A "+" that belongs to a number does not count. */
static struct span next_span(const char **s, const char *stops)
{
    struct span word = { *s, 0 };
    for (;;) {
        word.n += (int)strcspn(word.at + word.n, stops);
        char after = word.at[word.n] ? word.at[word.n + 1] : 0;
        if (word.at[word.n] != '+' || !((after >= '0' && after <= '9') || after == '.')) break;
        word.n++;
    }
    *s += word.n;
    return word;
}

/* One encoding with its options.  Options that are not given have their default values. */
static loci_status read_encoding(struct config *c, const char **s, loci_error *e)
{
    loci_status status = find_encoding(c, next_span(s, ":+"), e);
    if (status) return status;
    const struct loci_pe *pe = c->pe;
    for (int i = 0; encoding_options(pe)[i].name; i++)
        c->opt[i] = encoding_options(pe)[i].default_value;
    if (**s == ':') {
        do {
            ++*s;
            struct span name = next_span(s, "=,+");
            CHECK(e, name.n > 0, LOCI_BAD_ARG,
                  "%s: an option has no name; options have the form name=value", pe->name);
            /* without "=" the value is empty, and read_option() refuses that */
            struct span value = { *s, 0 };
            if (**s == '=') {
                ++*s;
                value = next_span(s, ",+");
            }
            if ((status = read_option(c, name, value, e))) return status;
        } while (**s == ',');
    }
    for (int i = 0; encoding_options(pe)[i].name; i++) {
        const loci_option *o = &encoding_options(pe)[i];
        CHECK(e, !o->required || c->given[i], LOCI_BAD_ARG,
              "%s: the option %s is required%s%s (%s)", pe->name, o->name,
              o->kind == LOCI_WORD ? ": " : "", o->kind == LOCI_WORD ? o->words : "", o->help);
    }
    return LOCI_OK;
}

loci_status loci_parse(struct loci_plan *p, const char *text, loci_error *e)
{
    /* The text is read up to MAX_TEXT bytes, so all lengths fit into an int. */
    CHECK(e, memchr(text, 0, MAX_TEXT), LOCI_BAD_ARG, "the encoding text is longer than %d bytes",
          MAX_TEXT - 1);
    for (const char *s = text;; s++) {
        CHECK(e, p->encs < MAX_ENCODINGS, LOCI_BAD_ARG,
              "the encoding text names more than %d encodings", MAX_ENCODINGS);
        /* Counted before it is read, so the plan frees its lists even if it is refused. */
        struct config *c = &p->enc[p->encs++];
        loci_status status = read_encoding(c, &s, e);
        if (status) return status;
        for (int i = 0; i < p->encs - 1; i++)
            CHECK(e, p->enc[i].pe != c->pe, LOCI_BAD_ARG,
                  "%s is named twice; an encoding may occur once", c->pe->name);
        if (!*s) return LOCI_OK;
    }
}

/* ---- Writing the text ------------------------------------------------------------------------ */

const char *loci_number_text(double x, char text[NUMBER_TEXT])
{
    /* 17 digits are enough for every double, and 6 for most that people write. */
    int precision = 5;
    do snprintf(text, NUMBER_TEXT, "%.*g", ++precision, x);
    while (islessgreater(strtod(text, NULL), x));
    return text;
}

/* n also counts bytes beyond the capacity.  This is how a text is measured. */
struct writer {
    char *text;
    size_t n, capacity;
};

static void write_text(struct writer *w, const char *s, int n)
{
    for (int i = 0; i < n; i++, w->n++)
        if (w->n + 1 < w->capacity) w->text[w->n] = s[i];
}

static void write_word(struct writer *w, const char *s) { write_text(w, s, (int)strlen(s)); }

/* A value in the form that read_option() reads. */
static void write_value(struct writer *w, const struct config *c, int which)
{
    const loci_option *o = &encoding_options(c->pe)[which];
    char number[NUMBER_TEXT];
    if (o->kind == LOCI_WORD) {
        const char *rest = o->words;
        struct span word = next_word(&rest);
        for (int i = 0; i < (int)c->opt[which]; i++) word = next_word(&rest);
        write_text(w, word.at, word.n);
    } else if (o->kind == LOCI_LIST) {
        for (int i = 0; i < c->count[which]; i++) {
            if (i) write_word(w, "/");
            write_word(w, loci_number_text(c->list[which][i], number));
        }
    } else {
        write_word(w, loci_number_text(c->opt[which], number));
    }
}

size_t loci_print(const struct loci_plan *p, char *text, size_t capacity)
{
    struct writer w = { text, 0, capacity };
    for (int e = 0; e < p->encs; e++) {
        const struct config *c = &p->enc[e];
        const char *before = ":";
        if (e) write_word(&w, "+");
        write_word(&w, c->pe->name);
        for (int i = 0; encoding_options(c->pe)[i].name; i++) {
            /* NaN, or no list: a rule of the encoding decides, and the same text leads to the same
             * decision. */
            if (encoding_options(c->pe)[i].kind == LOCI_LIST ? !c->list[i] : isnan(c->opt[i]))
                continue;
            write_word(&w, before);
            write_word(&w, encoding_options(c->pe)[i].name);
            write_word(&w, "=");
            write_value(&w, c, i);
            before = ",";
        }
    }
    if (capacity) text[w.n < capacity ? w.n : capacity - 1] = 0;
    return w.n;
}
