/* SPDX-License-Identifier: MIT */
/* arm.c -- see arm.h. */
#include "lab/arm.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"

static const struct lab_known known[] = {
    { "nope", true },        { "sinusoidal", true },   { "learned", false },
    { "index", false },      { "normalised", false },  { "binary", false },
    { "alibi", true },       { "t5", true },           { "clip", false },
    { "kerple", true },      { "sandwich", false },    { "fire", false },
    { "rope", true },        { "xpos", false },        { "rope2d", false },
    { "mixed", false },      { "comrope", false },     { "liere", false },
    { "fope", false },       { "tape", false },        { "fox", true },
    { "fox-pro", false },    { "shaw", false },        { "xl", false },
    { "deberta", false },    { "cope", false },        { "sba", true },
    { "alibi+cape", false }, { "kerple+cape", false }, { "fire+cape", false },
};
static const struct lab_left_out left_out[] = {
    { "mrope", "with one axis it is rope" },
    { "softcap", "it bends scores and says nothing of positions: "
                 "rope+softcap:cap=50 is an arm" },
    { "sink", "it adds to the softmax's sum and says nothing of positions: "
              "rope+sink is an arm" },
};

int lab_known_arms(const struct lab_known **list)
{
    *list = known;
    return (int)(sizeof known / sizeof *known);
}
int lab_left_out(const struct lab_left_out **list)
{
    *list = left_out;
    return (int)(sizeof left_out / sizeof *left_out);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

/* An option that a text omits and the lab sets: a word, or a number that follows from the length of
 * training, or from the longest test.  Tables that reach beyond the trained window would have rows
 * that are never trained. */
struct usual {
    const char *name, *option, *word;
    double of_length, of_longest, plus, least;
};
static const struct usual usuals[] = {
    { "rope", "pairing", .word = "half" },
    { "t5", "bidirectional", .word = "0" },
    { "t5", "max_distance", .of_length = 0.5, .least = 20 },
    { "clip", "max", .of_length = 0.25, .least = 2 },
    { "shaw", "left", .of_length = 0.25, .least = 2 },
    { "shaw", "right", .of_length = 0.25, .least = 2 },
    { "cope", "npos", .of_length = 1, .plus = 1 },
    { "fire", "threshold", .of_length = 0.5 },
    { "deberta", "span", .of_length = 0.25, .least = 4 },
    { "deberta", "max_distance", .of_length = 0.5, .least = 8 },
    { "fope", "train_length", .of_length = 1 },
    { "normalised", "length", .of_longest = 1 },
    { "mixed", "axes", .word = "1" },
    { "comrope", "axes", .word = "1" },
    { "liere", "axes", .word = "1" },
};
enum { USUALS = sizeof usuals / sizeof *usuals };

/* Finds the value of "option=" in a part "name:option=value,..." of n characters, or NULL. */
static const char *find_option(const char *part, size_t n, const char *option)
{
    const size_t length = strlen(option);
    for (const char *p = memchr(part, ':', n), *end = part + n; p && p < end;
         p = memchr(p, ',', (size_t)(end - p))) {
        p++;
        if ((size_t)(end - p) > length && !memcmp(p, option, length) && p[length] == '=')
            return p + length + 1;
    }
    return NULL;
}
static bool is_named(const char *part, size_t n, const char *name)
{
    const size_t length = strlen(name);
    return n >= length && !memcmp(part, name, length) && (n == length || part[length] == ':');
}

const char *lab_arm_part(const char *text, const char *encoding, size_t *n)
{
    for (const char *p = text; *p; p += strcspn(p, "+"), p += *p == '+') {
        const size_t own = strcspn(p, "+");
        if (!is_named(p, own, encoding)) continue;
        if (n) *n = own;
        return p;
    }
    return NULL;
}
double lab_arm_option(const char *text, const char *encoding, const char *option)
{
    size_t n;
    const char *part = lab_arm_part(text, encoding, &n),
               *value = part ? find_option(part, n, option) : NULL;
    return value ? atof(value) : NAN;
}

/* Appends to a text of LAB_TEXT characters.  A full text is rejected later. */
static void append(char *text, const char *format, ...)
{
    const size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, LAB_TEXT - n, format, args);
    va_end(args);
}

/* Appends a part to the text, with the options that it omits. */
static void add_part(char *text, const char *part, size_t n, int length, int longest, int dim)
{
    append(text, "%s%.*s", *text ? "+" : "", (int)n, part);
    char join = memchr(part, ':', n) ? ',' : ':';
    for (int i = 0; i < USUALS; i++) {
        const struct usual *u = &usuals[i];
        if (!is_named(part, n, u->name) || find_option(part, n, u->option)) continue;
        append(text, "%c%s=", join, u->option);
        if (u->word) append(text, "%s", u->word);
        else
            append(
                text, "%.0f",
                fmax(u->least, floor(u->of_length * length + u->of_longest * longest) + u->plus));
        join = ',';
    }
    if (is_named(part, n, "liere") && !find_option(part, n, "block"))
        append(text, "%cblock=%d", join, dim);
}

static bool embeds(const char *part, size_t n)
{
    const loci_encoding_info *list;
    const int count = loci_encodings(&list);
    for (int i = 0; i < count; i++)
        if (is_named(part, n, list[i].name)) return list[i].places & LOCI_PLACE_EMBED;
    return false;
}

loci_status lab_arm_parse(struct lab_arm *a, const char *given, int length, int longest, int dim,
                          loci_error *e)
{
    const char *how = strchr(given, '@');
    const size_t all = how ? (size_t)(how - given) : strlen(given);
    *a = (struct lab_arm){ .layer = LAB_PLAIN };
    CHECK(e, strlen(given) < LAB_ARM, LOCI_BAD_ARG, "arm '%.40s...' is longer than %d characters",
          given, LAB_ARM - 1);
    CHECK(e, all > 0, LOCI_BAD_ARG, "arm '%s' names no encoding; 'loci list' has them", given);
    strcpy(a->text, given);
    if (how) {
        CHECK(e, !strcmp(how, "@random"), LOCI_BAD_ARG,
              "arm '%s': what follows @ must be random; variants that need no "
              "training are tested with "
              "every arm",
              given);
        a->random = true;
        a->range = 32 * length; /* 2048 for 64, as its authors had for 40 */
    }
    if (all == 7 && !memcmp(given, "fox-pro", 7)) {
        a->layer = LAB_FOX_PRO;
        strcpy(a->attention, "fox");
        return LOCI_OK;
    }
    for (const char *part = given, *end = given + all; part < end;) {
        const char *plus = memchr(part, '+', (size_t)(end - part));
        const size_t n = (size_t)((plus ? plus : end) - part);
        CHECK(e, n > 0, LOCI_BAD_ARG, "arm '%s': an encoding is missing beside a +", given);
        CHECK(e, !is_named(part, n, "fox-pro"), LOCI_BAD_ARG,
              "arm '%s': fox-pro is a layer and stands alone; fox composes", given);
        if (is_named(part, n, "tape")) a->layer = LAB_TAPE;
        if (embeds(part, n)) {
            CHECK(e, !a->embed[0], LOCI_BAD_ARG,
                  "arm '%s' adds two encodings to embeddings; one is possible", given);
            add_part(a->embed, part, n, length, longest, dim);
        } else add_part(a->attention, part, n, length, longest, dim);
        part += n + (plus != NULL);
        CHECK(e, part < end || !plus, LOCI_BAD_ARG, "arm '%s': an encoding is missing behind the +",
              given);
    }
    if (!a->attention[0]) strcpy(a->attention, "nope");
    CHECK(e, strlen(a->attention) + 1 < LAB_TEXT && strlen(a->embed) + 1 < LAB_TEXT, LOCI_BAD_ARG,
          "arm '%s' is too long", given);
    return LOCI_OK;
}

void lab_arm_family(const struct lab_arm *a, char family[LAB_NAME * 2])
{
    static const struct {
        int place;
        const char *name;
    } names[] = {
        { LOCI_PLACE_EMBED, "embed" }, { LOCI_PLACE_ROTATE, "rotate" },
        { LOCI_PLACE_STATE, "state" }, { LOCI_PLACE_SCORE, "score" },
        { LOCI_PLACE_MIX, "mix" },     { LOCI_PLACE_WEIGHT, "weight" },
        { LOCI_PLACE_VALUE, "value" }, { LOCI_PLACE_SUM, "sum" },
    };
    const loci_encoding_info *list;
    const int count = loci_encodings(&list);
    const char *texts[] = { a->embed, a->attention };
    int places = 0;
    for (int t = 0; t < 2; t++)
        for (const char *p = texts[t]; *p; p += strcspn(p, "+"), p += *p == '+')
            for (int i = 0; i < count; i++)
                if (is_named(p, strcspn(p, "+"), list[i].name)) places |= list[i].places;
    family[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(family);
        if (places & names[i].place)
            snprintf(family + n, LAB_NAME * 2 - n, "%s%s", n ? "+" : "", names[i].name);
    }
    if (!family[0]) strcpy(family, "nothing");
}

/* ---- Variants -------------------------------------------------------------------------------- */

static const char *const change_names[LAB_CHANGES] = { "",        "pi",          "ntk",    "yarn",
                                                       "dynamic", "interpolate", "window", "logn" };
const char *lab_change_name(enum lab_change c) { return change_names[c]; }

bool lab_change_fits(enum lab_change c, const struct lab_arm *a)
{
    size_t n = 0;
    const char *rope = lab_arm_part(a->attention, "rope", &n);
    switch (c) {
    case LAB_PI:
    case LAB_NTK:
    case LAB_YARN:
    case LAB_DYNAMIC:
        return rope && !find_option(rope, n, "scaling") && !find_option(rope, n, "freq");
    case LAB_INTERPOLATE:
        return strstr(a->attention, "alibi:") == NULL
               && lab_arm_part(a->attention, "alibi", &n) != NULL;
    case LAB_LOGN: {
        size_t other; /* a stick has no softmax whose scores could be sharpened */
        return a->layer == LAB_PLAIN && !lab_arm_part(a->attention, "sba", &other);
    }
    default: return true;
    }
}

/* YaRN keeps pairs that complete many turns in the trained window, and rescales those that complete
 * few.  Its numbers, 32 and 1, are for windows of thousands.  At 64 tokens no pair completes more
 * than 10.2 turns, and all would be rescaled.  So here they grow with the window, and at 64 are 2
 * and 1/4. */
loci_status lab_change_text(enum lab_change c, const struct lab_arm *a, int length, double times,
                            char text[LAB_TEXT], loci_error *e)
{
    const double turns = length / 6.283185307179586;
    char more[LAB_TEXT / 2] = "";
    const char *part = NULL;
    size_t n = 0;
    switch (c) {
    case LAB_PI: snprintf(more, sizeof more, "scaling=linear,factor=%.9g", times); break;
    case LAB_NTK: snprintf(more, sizeof more, "scaling=ntk,factor=%.9g", times); break;
    case LAB_YARN:
        snprintf(more, sizeof more,
                 "scaling=yarn,factor=%.9g,original_length=%d,beta_fast=%.9g,beta_"
                 "slow=%.9g,truncate=0",
                 times, length, 0.2 * turns, 0.025 * turns);
        break;
    case LAB_DYNAMIC:
        snprintf(more, sizeof more, "scaling=dynamic,factor=2,original_length=%d,length=%.0f",
                 length, times * length);
        break;
    case LAB_INTERPOLATE: strcpy(more, "slopes=given"); break;
    default: break;
    }
    snprintf(text, LAB_TEXT, "%s", a->attention);
    if (!more[0]) return LOCI_OK;
    part = lab_arm_part(a->attention, c == LAB_INTERPOLATE ? "alibi" : "rope", &n);
    CHECK(e, part, LOCI_BAD_ARG, "arm '%s' has nothing that '%s' could change", a->text,
          change_names[c]);
    const int wanted = snprintf(text, LAB_TEXT, "%.*s%s%s%s", (int)(part + n - a->attention),
                                a->attention, memchr(part, ':', n) ? "," : ":", more, part + n);
    CHECK(e, wanted < LAB_TEXT, LOCI_BAD_ARG, "arm '%s' is too long for '%s'", a->text,
          change_names[c]);
    return LOCI_OK;
}
