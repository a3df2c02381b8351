/* SPDX-License-Identifier: MIT */
/* arm.c -- see arm.h. */
#include "lab/arm.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract/encoding.h"

static const struct lab_known known[] = {
#define ARM(text, chief) { text, chief },
#include "lab/list.h"
};
static const struct lab_left_out left_out[] = {
#define LEFT_OUT(name, why) { name, why },
#include "lab/list.h"
};
static const struct lab_around layers[] = {
#define LAYER(name, kind, encoding) { name, kind, encoding },
#include "lab/list.h"
};
static const struct lab_usual usuals[] = {
#define USUAL(encoding, option, ...) { encoding, option, __VA_ARGS__ },
#include "lab/list.h"
};

static const struct lab_usual wides[] = {
#define WIDE(encoding, option, ...) { encoding, option, __VA_ARGS__ },
#include "lab/list.h"
};
static const struct {
    const char *encoding;
    double size;
} ranges[] = {
#define RANGE(encoding, size) { encoding, size },
#include "lab/list.h"
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
int lab_usuals(const struct lab_usual **list)
{
    *list = usuals;
    return COUNT(usuals);
}
const struct lab_around *lab_arm_around(const char *name, size_t n)
{
    for (int i = 0; i < COUNT(layers); i++)
        if (strlen(layers[i].name) == n && !memcmp(layers[i].name, name, n)) return &layers[i];
    return NULL;
}

const char lab_bias_encoding[] = "clip";
static const char bias_name[] = "bias";
bool lab_arm_bias_by_distance(const struct lab_arm *a) { return a->bias.rank == 2; }

ptrdiff_t lab_arm_reach(const struct lab_arm *a)
{
    const struct lab_bias *b = &a->bias;
    return b->rank != 3 ? PTRDIFF_MAX : b->shape[1] < b->shape[2] ? b->shape[1] : b->shape[2];
}

const struct loci_pe *lab_arm_pe(const char *name, size_t n)
{
    const struct lab_around *around = lab_arm_around(name, n);
    if (around) return loci_pe_find(around->encoding, strlen(around->encoding));
    const bool bias = n == strlen(bias_name) && !memcmp(name, bias_name, n);
    return bias ? loci_pe_find(lab_bias_encoding, strlen(lab_bias_encoding))
                : loci_pe_find(name, n);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

/* What stands behind "option=" in a part "name:option=value,..." of n characters, or NULL. */
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
/* The first part, of *n characters, whose encoding is so; NULL: none. */
static const char *find_part(const char *text, bool (*is)(const struct loci_pe *, const void *),
                             const void *arg, size_t *n)
{
    for (const char *p = text; *p; p += strcspn(p, "+"), p += *p == '+') {
        const struct loci_pe *pe = loci_pe_find(p, strcspn(p, ":+"));
        if (!pe || !is(pe, arg)) continue;
        *n = strcspn(p, "+");
        return p;
    }
    return NULL;
}
static bool has_option(const struct loci_pe *pe, const void *name)
{
    for (const loci_option *o = encoding_options(pe); o->name; o++)
        if (!strcmp(o->name, name)) return true;
    return false;
}
static bool has_place(const struct loci_pe *pe, const void *places)
{
    return pe->places & *(const int *)places;
}
const char *lab_arm_with(const char *text, const char *option, size_t *n)
{
    return find_part(text, has_option, option, n);
}
const char *lab_arm_at(const char *text, int places, size_t *n)
{
    return find_part(text, has_place, &places, n);
}
double lab_arm_option(const char *text, const char *encoding, const char *option)
{
    size_t n;
    const char *part = encoding ? lab_arm_part(text, encoding, &n) : lab_arm_with(text, option, &n),
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

/* What the numbers of an arm follow from. */
struct sizes {
    int length, longest, dim;
    bool wide;
};

/* Appends a part to the text, with the options that it omits.  False: @wide changes nothing. */
static bool add_part(char *text, const char *part, size_t n, const struct sizes *s)
{
    bool wide = false;
    for (int i = 0; i < COUNT(wides) && s->wide; i++) wide |= is_named(part, n, wides[i].encoding);
    append(text, "%s%.*s", *text ? "+" : "", (int)n, part);
    char join = memchr(part, ':', n) ? ',' : ':';
    for (int i = 0; i < (wide ? COUNT(wides) : COUNT(usuals)); i++) {
        const struct lab_usual *u = wide ? &wides[i] : &usuals[i];
        if (!is_named(part, n, u->encoding) || find_option(part, n, u->option)) continue;
        append(text, "%c%s=", join, u->option);
        if (u->word) append(text, "%s", u->word);
        else
            append(text, "%.0f",
                   fmax(u->least, floor(u->of_length * s->length + u->of_longest * s->longest)
                                      + u->plus + u->of_dim * s->dim));
        join = ',';
    }
    return wide;
}

/* Where the encoding of one part acts; an unknown one acts nowhere. */
static int places_of(const char *part)
{
    const struct loci_pe *pe = loci_pe_find(part, strcspn(part, ":+@"));
    return pe ? pe->places : 0;
}

/* A table from a file: by distance it is that of an encoding. */
static loci_status add_bias(struct lab_arm *a, const char *part, size_t n, loci_error *e)
{
    CHECK(e, !a->bias.path[0], LOCI_BAD_ARG, "arm '%s' has two biases of a file; one is possible",
          a->text);
    TRY(lab_bias_open(&a->bias, part, n, e));
    if (lab_arm_bias_by_distance(a))
        append(a->attention, "%s%s:max=%td", a->attention[0] ? "+" : "", lab_bias_encoding,
               a->bias.shape[1] - 1);
    return LOCI_OK;
}

/* What a bias of a file does not go with. */
static loci_status check_bias(const struct lab_arm *a, loci_error *e)
{
    int clips = 0;
    for (const char *p = a->attention; *p; p += strcspn(p, "+"), p += *p == '+')
        clips += is_named(p, strcspn(p, "+"), lab_bias_encoding);
    CHECK(e, !lab_arm_bias_by_distance(a) || clips == 1, LOCI_BAD_ARG,
          "arm '%s': a bias by distance takes the place of %s", a->text, lab_bias_encoding);
    CHECK(e, a->bias.rank != 3 || !a->random, LOCI_BAD_ARG,
          "arm '%s': a bias by row and key needs positions 0, 1, 2 ...", a->text);
    return LOCI_OK;
}

loci_status lab_arm_parse(struct lab_arm *a, const char *given, int length, int longest, int dim,
                          loci_error *e)
{
    const struct sizes sizes = { length, longest, dim, strstr(given, "@wide") != NULL };
    const char *how = strchr(given, '@');
    bool wide = false;
    const size_t all = how ? (size_t)(how - given) : strlen(given);
    *a = (struct lab_arm){ .layer = LAB_PLAIN };
    CHECK(e, strlen(given) < LAB_ARM, LOCI_BAD_ARG, "arm '%.40s...' is longer than %d characters",
          given, LAB_ARM - 1);
    CHECK(e, all > 0, LOCI_BAD_ARG, "arm '%s' names no encoding; 'loci list' has them", given);
    strcpy(a->text, given);
    if (how) {
        a->random = !strcmp(how, "@random");
        a->wide = !strcmp(how, "@wide");
        a->open = !strcmp(how, "@open");
        CHECK(e, a->random || a->wide || a->open, LOCI_BAD_ARG,
              "arm '%s': what follows @ must be random, wide or open; variants that need no "
              "training are tested with every arm",
              given);
        if (a->random) a->range = 32 * length; /* 2048 for 64, as its authors had for 40 */
    }
    const struct lab_around *around = lab_arm_around(given, all);
    if (around) {
        CHECK(e, !a->wide, LOCI_BAD_ARG, "arm '%s' has no table of distances that could be wide",
              given);
        a->layer = around->layer;
        add_part(a->attention, around->encoding, strlen(around->encoding), &sizes);
        return LOCI_OK;
    }
    for (const char *part = given, *end = given + all; part < end;) {
        const char *plus = memchr(part, '+', (size_t)(end - part));
        const size_t n = (size_t)((plus ? plus : end) - part);
        CHECK(e, n > 0, LOCI_BAD_ARG, "arm '%s': an encoding is missing next to a +", given);
        around = lab_arm_around(part, strcspn(part, ":+@"));
        CHECK(e, !around, LOCI_BAD_ARG, "arm '%s': %s is a layer and stands alone; %s composes",
              given, around->name, around->encoding);
        const int places = places_of(part);
        if (places & LOCI_PLACE_STATE) a->layer = LAB_TAPE;
        if (is_named(part, n, bias_name)) {
            TRY(add_bias(a, part, n, e));
        } else if (places & LOCI_PLACE_EMBED) {
            CHECK(e, !a->embed[0], LOCI_BAD_ARG,
                  "arm '%s' adds two encodings to embeddings; one is possible", given);
            add_part(a->embed, part, n, &sizes);
        } else wide |= add_part(a->attention, part, n, &sizes);
        part += n + (plus != NULL);
        CHECK(e, part < end || !plus, LOCI_BAD_ARG, "arm '%s': an encoding is missing behind the +",
              given);
    }
    CHECK(e, wide || !a->wide, LOCI_BAD_ARG,
          "arm '%s' has no table of distances that could be wide", given);
    for (int i = 0; i < COUNT(ranges); i++)
        if (lab_arm_part(a->attention, ranges[i].encoding, NULL)) a->unit = ranges[i].size / length;
    if (!a->attention[0]) strcpy(a->attention, loci_pe_plain());
    TRY(check_bias(a, e));
    CHECK(e, strlen(a->attention) + 1 < LAB_TEXT && strlen(a->embed) + 1 < LAB_TEXT, LOCI_BAD_ARG,
          "arm '%s' is too long", given);
    return LOCI_OK;
}

const char *lab_arm_narrow(const struct lab_arm *a, int head, int *width)
{
    static const struct {
        const char *encoding;
        int width;
    } heads[] = {
#define HEAD(encoding, width) { encoding, width },
#include "lab/list.h"
    };
    for (int i = 0; i < COUNT(heads); i++) {
        if (head >= heads[i].width || !lab_arm_part(a->attention, heads[i].encoding, NULL))
            continue;
        *width = heads[i].width;
        return heads[i].encoding;
    }
    return NULL;
}

bool lab_is_layer(const char *arm)
{
    struct lab_arm a;
    return !lab_arm_parse(&a, arm, 64, 512, 64, NULL) && a.layer != LAB_PLAIN;
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
    const char *texts[] = { a->embed, a->attention };
    int places = a->bias.rank ? LOCI_PLACE_SCORE : 0;
    for (int t = 0; t < 2; t++)
        for (const char *p = texts[t]; *p; p += strcspn(p, "+"), p += *p == '+')
            places |= places_of(p);
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
                                                       "dynamic", "interpolate", "window", "logn",
                                                       "rerope",  "selfextend",  "dca" };
const char *lab_change_name(enum lab_change c) { return change_names[c]; }

/* Is the changed text valid?  Some options of rope have no meaning in the other rotations, and some
 * encodings do not go with them. */
static bool creates_plan(enum lab_change c, const struct lab_arm *a)
{
    char text[LAB_TEXT];
    loci_plan *plan = NULL;
    const loci_desc d = LOCI_DESC(.encoding = text, .heads = 1, .dim = 64);
    const bool valid =
        !lab_change_text(c, a, 64, 4, text, NULL) && !loci_plan_create(&plan, &d, NULL);
    loci_plan_destroy(plan);
    return valid;
}
bool lab_change_fits(enum lab_change c, const struct lab_arm *a)
{
    size_t n = 0;
    const char *part;
    switch (c) {
    case LAB_PI:
    case LAB_NTK:
    case LAB_YARN:
    case LAB_DYNAMIC:
        part = lab_arm_with(a->attention, "scaling", &n);
        return part && !find_option(part, n, "scaling") && !find_option(part, n, "freq");
    case LAB_REROPE:
    case LAB_SELFEXTEND:
    case LAB_DCA:
        part = lab_arm_part(a->attention, "rope", &n);
        return part && !find_option(part, n, "freq") && creates_plan(c, a);
    case LAB_INTERPOLATE:
        part = lab_arm_with(a->attention, "slopes", &n);
        return part && !memchr(part, ':', n);
    case LAB_LOGN: /* weights without a softmax have no scores that could be sharpened */
        return a->layer == LAB_PLAIN && !lab_arm_at(a->attention, LOCI_PLACE_WEIGHT, &n);
    default:
        return true;
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
    /* Self-Extend: groups so large that the far keys stand within the trained length too. */
    const int half = length / 2 > 1 ? length / 2 : 1, least = (int)ceil(2 * times);
    int group = 2;
    while (group < least) group *= 2;
    char more[LAB_TEXT / 2] = "";
    const char *name = NULL; /* of the encoding that takes rope's place */
    const char *part = NULL;
    size_t n = 0;
    switch (c) {
    case LAB_PI:
        snprintf(more, sizeof more, "scaling=linear,factor=%.9g", times);
        break;
    case LAB_NTK:
        snprintf(more, sizeof more, "scaling=ntk,factor=%.9g", times);
        break;
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
    case LAB_INTERPOLATE:
        strcpy(more, "slopes=given");
        break;
    case LAB_REROPE:
        snprintf(more, sizeof more, "window=%d", half);
        break;
    case LAB_SELFEXTEND:
        snprintf(more, sizeof more, "group=%d,window=%d", group,
                 half < group ? group : half / group * group);
        break;
    case LAB_DCA: /* as ChunkLlama has it */
        snprintf(more, sizeof more, "chunk=%d,local=%d", length < 4 ? 3 : length * 3 / 4,
                 length < 8 ? 1 : length / 8);
        break;
    default:
        break;
    }
    snprintf(text, LAB_TEXT, "%s", a->attention);
    if (!more[0]) return LOCI_OK;
    if (c == LAB_REROPE || c == LAB_SELFEXTEND || c == LAB_DCA) name = change_names[c];
    part = name ? lab_arm_part(a->attention, "rope", &n)
                : lab_arm_with(a->attention, c == LAB_INTERPOLATE ? "slopes" : "scaling", &n);
    CHECK(e, part, LOCI_BAD_ARG, "arm '%s' has nothing that '%s' could change", a->text,
          change_names[c]);
    const size_t old = name ? strlen("rope") : 0; /* of the part, which is replaced */
    const int wanted = snprintf(text, LAB_TEXT, "%.*s%s%.*s%s%s%s", (int)(part - a->attention),
                                a->attention, name ? name : "", (int)(n - old), part + old,
                                memchr(part, ':', n) ? "," : ":", more, part + n);
    CHECK(e, wanted < LAB_TEXT, LOCI_BAD_ARG, "arm '%s' is too long for '%s'", a->text,
          change_names[c]);
    return LOCI_OK;
}
