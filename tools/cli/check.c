/* SPDX-License-Identifier: MIT */
/* check.c -- `loci check`: finds the rule that the numbers of another program follow, and where
 * they depart from it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "math/half.h"
#include "util/planted_bug.h"
#include "cli/check.h"
#include "cli/device.h"
#include "cli/json.h"

/* ---- Scores ---------------------------------------------------------------------------------- */

/* Below 2^-126 the last place of float32 no longer shrinks with the number. */
double ulps_f32(double got, double want)
{
    int e;
    frexp(want, &e);
    return fabs(got - want) / ldexp(1, (want == 0 || e < -125 ? -125 : e) - 24);
}

/* NaN and infinity have an infinite error.  Squares are capped, so that one such number does not
 * make all rules equally bad. */
void score_add(struct score *s, struct place at, double got, double want, double tolerance,
               double loose)
{
    const double error = isfinite(got) ? fabs(got - want) : INFINITY;
    if (error > tolerance && s->within == s->total) {
        s->first = at;
        s->got = got;
        s->want = want;
    }
    s->total++;
    s->within += PLANTED_BUG(1, isfinite(error) && error <= tolerance);
    s->loose += isfinite(error) && error <= loose;
    s->squares += fmin(error * error, 1e30);
    if (error > s->worst) {
        s->worst = error;
        s->worst_ulps = isfinite(got) ? ulps_f32(got, want) : INFINITY;
    }
}

/* ---- Encoding texts -------------------------------------------------------------------------- */

char *part_of(const char *encoding, const char *name)
{
    for (const char *p = encoding; *p; p += strcspn(p, "+"), p += *p == '+') {
        const size_t n = strcspn(p, "+"), named = strcspn(p, ":+");
        if (named != strlen(name) || memcmp(p, name, named)) continue;
        char *part = alloc(n + 1, 1);
        return memcpy(part, p, n);
    }
    return NULL;
}

/* Finds "key=" in a text.  Returns NULL if it is absent. */
static char *find_key(char *text, const char *key)
{
    const size_t n = strlen(key);
    for (char *p = strchr(text, ':'); p; p = strchr(p + 1, ','))
        if (!strncmp(p + 1, key, n) && p[1 + n] == '=') return p + 1;
    return NULL;
}

bool text_has(const char *text, const char *key)
{
    char *copy = part_of(text, "rope");
    const bool has = copy && find_key(copy, key);
    free(copy);
    return has;
}

/* Removes the old value with its comma and appends the new one. */
bool text_with(char *text, size_t capacity, const char *key, const char *value)
{
    char *at = find_key(text, key);
    if (at) {
        const size_t n = strcspn(at, ",");
        if (at[n]) memmove(at, at + n + 1, strlen(at + n + 1) + 1);
        else at[-1] = 0;
    }
    if (!value) return true;
    const size_t used = strlen(text);
    return snprintf(text + used, capacity - used, "%c%s=%s", strchr(text, ':') ? ',' : ':', key,
                    value)
         < (int)(capacity - used);
}

/* ---- Tensors --------------------------------------------------------------------------------- */

enum { MOST = 1 << 24 }; /* every candidate rule computes this number too */

/* Element i of a tensor of any supported type. */
static double number(enum safetensors_type type, const void *data, ptrdiff_t i)
{
    switch (type) {
    case ST_I32:
        return ((const int32_t *)data)[i];
    case ST_I64:
        return (double)((const int64_t *)data)[i];
    case ST_F64:
        return load_stored(data, LOCI_F64, i);
    case ST_F32:
        return load_stored(data, LOCI_F32, i);
    case ST_BF16:
        return load_stored(data, LOCI_BF16, i);
    default:
        return load_stored(data, LOCI_F16, i);
    }
}

/* Rounding may cost half the distance from 1 to the next number of the type.  A tensor under its
 * default name is optional; a tensor that the user names is required. */
static bool read_numbers(struct check *c, struct numbers *n, const char *given, const char *usual)
{
    n->name = given ? given : usual;
    for (int i = 0; i < c->file.count && !n->tensor; i++)
        if (!strcmp(c->file.tensor[i].name, n->name)) n->tensor = &c->file.tensor[i];
    if (!n->tensor) return !given || refuse("%s: the file has no tensor '%s'", c->path, given);
    const struct safetensor *t = n->tensor;
    static const struct {
        enum safetensors_type type;
        double unit;
    } types[] = {
        { ST_F32, 0x1p-24 }, { ST_F64, 0x1p-53 }, { ST_BF16, 0x1p-8 },
        { ST_F16, 0x1p-11 }, { ST_I32, 0 },       { ST_I64, 0 },
    };
    int k = 0;
    while (k < COUNT(types) && types[k].type != t->type) k++;
    if (k == COUNT(types))
        return refuse("%s: tensor '%s' is %s, but must be F32, F64, BF16, F16, I32 or I64", c->path,
                      t->name, loci_safetensors_type_name(t->type));
    if (t->count < 1 || t->count > MOST)
        return refuse("%s: tensor '%s' has %td numbers, but must have 1 to %d; store a part of it",
                      c->path, t->name, t->count, MOST);
    n->unit = types[k].unit;
    void *raw = alloc((size_t)t->count, loci_safetensors_type_size(t->type));
    loci_error e;
    const bool read = !loci_safetensors_read(&c->file, t, raw, &e);
    if (read) n->x = alloc((size_t)t->count, sizeof(double));
    for (ptrdiff_t i = 0; i < t->count && read; i++) n->x[i] = number(t->type, raw, i);
    free(raw);
    return read || refuse("%s: %s", c->path, e.text);
}

/* ---- Output ---------------------------------------------------------------------------------- */

/* True if a rule explains the numbers, and it is the one that was asked for. */
static bool follows(const struct finding *f) { return f->explains && !f->mistake[0]; }

/* Prints for people: the rule found, the rule asked for, how well it fits, and the first number
 * that differs. */
static void print_text(const struct check *c, const struct finding *f)
{
    const struct score *s = &f->score;
    print_plain(stdout, c->path);
    if (follows(f))
        printf(": the %s follow%s %s\n", f->what, f->what[strlen(f->what) - 1] == 's' ? "" : "s",
               f->rule);
    else if (f->explains) printf(": the %s are right except for this: %s\n", f->what, f->mistake);
    else printf(": no rule explains the %s\n", f->what);
    if (!follows(f))
        printf("  nearest    %s%s%s\n", f->rule, f->mistake[0] && !f->explains ? "; " : "",
               f->explains ? "" : f->mistake);
    if (f->wanted[0] && !follows(f)) printf("  wanted     %s\n", f->wanted);
    printf("  within     %.4g %% of %td numbers; tolerance %s\n",
           100.0 * (double)s->within / (double)s->total, s->total, f->tolerance);
    if (s->within < s->total)
        printf("  first off  %s: %.9g where %.9g is exact, %.3g off or %.3g ulps of float32\n",
               f->where, s->got, s->want, fabs(s->got - s->want), ulps_f32(s->got, s->want));
    printf("  worst      %.3g off, or %.3g ulps of float32 there\n", s->worst, s->worst_ulps);
    if (f->explains && f->others)
        printf("  note       %d other rule%s would explain what was sampled; "
               "more positions tell them apart\n",
               f->others, f->others == 1 ? "" : "s");
}

static void print_json(const struct check *c, const struct finding *f)
{
    const struct score *s = &f->score;
    json_t *j = json_object(), *first = s->within < s->total ? json_object() : json_null();
    json_object_set_new(j, "file", json_text(c->path));
    json_object_set_new(j, "what", json_string(f->what));
    json_object_set_new(j, "follows", json_boolean(PLANTED_BUG(2, follows(f))));
    json_object_set_new(j, "explained", json_boolean(f->explains));
    json_object_set_new(j, "rule", json_string(f->rule));
    json_object_set_new(j, "wanted", f->wanted[0] ? json_string(f->wanted) : json_null());
    json_object_set_new(j, "mistake", f->mistake[0] ? json_string(f->mistake) : json_null());
    json_object_set_new(j, "others", json_integer(f->others));
    json_object_set_new(j, "numbers", json_integer(s->total));
    json_object_set_new(j, "within", json_integer(s->within));
    json_object_set_new(j, "tolerance", json_string(f->tolerance));
    json_object_set_new(j, "worst", json_number_or_null(s->worst));
    json_object_set_new(j, "worst_ulps", json_number_or_null(s->worst_ulps));
    if (s->within < s->total) {
        json_object_set_new(first, "where", json_string(f->where));
        json_object_set_new(first, "head", json_integer(s->first.head));
        json_object_set_new(first, "row", json_integer(s->first.row));
        json_object_set_new(first, "column", json_integer(s->first.column));
        json_object_set_new(first, "got", json_number_or_null(s->got));
        json_object_set_new(first, "exact", json_number_or_null(s->want));
        json_object_set_new(first, "off", json_number_or_null(fabs(s->got - s->want)));
        json_object_set_new(first, "ulps", json_number_or_null(ulps_f32(s->got, s->want)));
    }
    json_object_set_new(j, "first", first);
    json_print(j);
}

/* ---- The command ----------------------------------------------------------------------------- */

enum {
    ENCODING,
    LAYER,
    LENGTH,
    BEFORE,
    AFTER,
    COS,
    SIN,
    SLOPES,
    BIAS,
    TABLE,
    POS,
    LAYOUT,
    TOL,
    DEVICE,
    JSON
};
static const struct flag flags[] = {
    [ENCODING] = { "encoding", "e", "TEXT:@encoding",
                   "the expected encoding, such as rope:pairing=half,base=500000" },
    [LAYER] = { "layer", NULL, "N", "layer of CONFIG (default 0)" },
    [LENGTH] = { "length", NULL, "N",
                 "context length, if the scaling needs one (default: the trained one)" },
    [BEFORE] = { "before", NULL, "NAME", "q or k before the rotation (default: before)" },
    [AFTER] = { "after", NULL, "NAME", "the same after the rotation (default: after)" },
    [COS] = { "cos", NULL, "NAME", "a table of cos [positions][dim or dim/2] (default: cos)" },
    [SIN] = { "sin", NULL, "NAME", "a table of sin, in the same form (default: sin)" },
    [SLOPES] = { "slopes", NULL, "NAME", "ALiBi's slopes, one per head (default: slopes)" },
    [BIAS] = { "bias", NULL, "NAME",
               "T5's bias [heads][queries][keys], or bucket numbers (default: bias)" },
    [TABLE] = { "table", NULL, "NAME", "T5's learned table [buckets][heads] (default: table)" },
    [POS] = { "pos", NULL, "NAME",
              "positions of the rows (default: pos if present, else 0, 1, ...)" },
    [LAYOUT] = { "layout", NULL, "NAME:bhld|blhd",
                 "layout of before and after: bhld (default), or blhd: rows before heads" },
    [TOL] = { "tol", NULL, "X",
              "allow errors of X (|a| + |b|) m instead of 6u, and X m in a table" },
    [DEVICE] = { "device", NULL, "NAME",
                 "no FILE: compare a device of 'loci info', such as cuda:0, with the CPU" },
    [JSON] = { "json", NULL, NULL, "one JSON object" },
    { NULL, NULL, NULL, NULL }
};

/* The optional tensors: the offset of their numbers, the option and the default name. */
static const struct {
    size_t at;
    int flag;
    const char *usual;
} inputs[] = {
    { offsetof(struct check, before), BEFORE, "before" },
    { offsetof(struct check, after), AFTER, "after" },
    { offsetof(struct check, cos), COS, "cos" },
    { offsetof(struct check, sin), SIN, "sin" },
    { offsetof(struct check, slopes), SLOPES, "slopes" },
    { offsetof(struct check, bias), BIAS, "bias" },
    { offsetof(struct check, table), TABLE, "table" },
    { offsetof(struct check, pos), POS, "pos" },
};
static struct numbers *input(struct check *c, int i)
{
    return (struct numbers *)((char *)c + inputs[i].at);
}

/* Exactly one kind of input is allowed, so that the result is unambiguous. */
static bool read_all(struct check *c, const struct args *a)
{
    for (int i = 0; i < COUNT(inputs); i++)
        if (!read_numbers(c, input(c, i), a->value[inputs[i].flag], inputs[i].usual)) return false;
    const int kinds = (c->before.x || c->after.x) + (c->cos.x || c->sin.x) + (c->slopes.x != NULL)
                    + (c->bias.x != NULL);
    if (kinds == 0)
        return refuse("%s: no tensors to check; name them with --before and --after, --cos and "
                      "--sin, --slopes or --bias",
                      c->path);
    if (kinds > 1)
        return refuse("%s: check one of before and after, cos and sin, slopes, or bias at a time; "
                      "name it by an option",
                      c->path);
    if (!c->before.x != !c->after.x)
        return refuse("%s: tensor '%s' is present but '%s' is missing; both are needed", c->path,
                      c->before.x ? c->before.name : c->after.name,
                      c->before.x ? c->after.name : c->before.name);
    return true;
}

/* The tensors that are given decide which rules are tried. */
static int look(struct check *c, const struct args *a)
{
    struct finding f = { .what = "" };
    if (!read_all(c, a)) return EXIT_ERROR;
    if (!(c->slopes.x ? check_slopes(c, &f)
          : c->bias.x ? check_buckets(c, &f)
                      : check_rotation(c, &f)))
        return EXIT_ERROR;
    if (a->value[JSON]) print_json(c, &f);
    else print_text(c, &f);
    return follows(&f) ? EXIT_DONE : EXIT_BROKEN;
}

/* Reads the encoding that a model's file specifies. */
static bool read_config(const struct args *a, const char *path, loci_rope *rope)
{
    int layer = 0, length = 0;
    return args_whole(a, LAYER, 0, 1 << 20, &layer) && args_whole(a, LENGTH, 0, 1 << 30, &length)
        && read_rope(path, layer, length, rope);
}

static int check_file(struct check *c, const struct args *a)
{
    loci_error e;
    if (loci_safetensors_open(&c->file, c->path, &e)) return fail("%s: %s", c->path, e.text);
    const int code = look(c, a);
    for (int i = 0; i < COUNT(inputs); i++) free(input(c, i)->x);
    loci_safetensors_close(&c->file);
    return code;
}

/* No file: problems of its own. */
static int check_device(const struct args *a)
{
    loci_gpu *gpu;
    for (int i = 0; flags[i].name; i++)
        if (a->value[i] && i != DEVICE && i != JSON)
            return fail("check: --device goes with --json alone, without --%s", flags[i].name);
    if (a->rest_count) return fail("check: --device needs no file; it has problems of its own");
    if (!device_open(a, DEVICE, &gpu)) return EXIT_ERROR;
    const int code = device_check(gpu, a->value[JSON] != NULL);
    device_close(gpu);
    return code;
}

/* CONFIG supplies the encoding of one of its layers. */
static int run(const struct args *a)
{
    int layout = 0;
    struct check c = { .encoding = a->value[ENCODING], .tolerance = -1 };
    if (a->value[DEVICE]) return check_device(a);
    if (a->rest_count == 0) return fail("check: no file given; 'loci check --help' shows how");
    if (!args_rest(a, 2) || !args_word(a, LAYOUT, &layout)) return EXIT_ERROR;
    if (a->value[TOL] && (!parse_number(a->value[TOL], &c.tolerance) || c.tolerance < 0))
        return fail("check: --tol must be a non-negative number such as 1e-5, not '%s'",
                    a->value[TOL]);
    c.path = a->rest[0];
    c.rows_first = layout == 1;
    if (a->rest_count < 2) {
        if (a->value[LAYER] || a->value[LENGTH])
            return fail("check: --layer and --length need a CONFIG");
        return check_file(&c, a);
    }
    if (c.encoding)
        return fail("check: CONFIG and --encoding exclude each other; give one of them");
    loci_rope rope;
    if (!read_config(a, a->rest[1], &rope)) return EXIT_ERROR;
    c.encoding = rope.encoding;
    c.head_dim = rope.rotates ? rope.head_dim : 0;
    const int code = check_file(&c, a);
    loci_rope_free(&rope);
    return code;
}

const struct command cmd_check = {
    .name = "check",
    .brief = "find the rule that an engine's numbers follow, and the first number that breaks it",
    .synopsis =
        "loci check FILE [CONFIG | --encoding TEXT] "
        "[--before NAME --after NAME | --cos NAME --sin NAME |\n"
        "               --slopes NAME | --bias NAME --table NAME] [--pos NAME] [--tol X] [--json]\n"
        "    loci check --device NAME [--json]",
    .about =
        "    For engines whose output looks wrong.  Write q or k before and after the\n"
        "    rotation, or a table of cos and sin, ALiBi's slopes, or T5's bias to a\n"
        "    safetensors file.  The command prints the rule that they follow: pairing, base,\n"
        "    width, scaling, slopes, buckets.  It tries common mistakes and names them: the\n"
        "    other pairing, permuted weights, another base or width, the scaling ignored, the\n"
        "    attention factor missing or applied twice, positions off by one, 0 or rounded,\n"
        "    sin with the other sign, float32 angles; slopes of another number of heads;\n"
        "    buckets of the other form or off by one.\n"
        "\n"
        "    CONFIG is a model's config.json or GGUF file.  It states the expected rule, as\n"
        "    --encoding does.\n"
        "\n"
        "    A number is explained if it is within the rounding of its own type of the exact\n"
        "    value.  With u the unit roundoff (2^-24 in F32), a rotated number may be off by\n"
        "    6u (|a| + |b|) m for the pair (a, b) and attention factor m: 2u for cos and sin,\n"
        "    1u each for factor, product, sum and our own rounding.  A number of a table may\n"
        "    be off by 4u m.  Float32 angles are off by |pos w| (4 + |ln w|) 2^-24 more and\n"
        "    count as a mistake; --tol accepts them.  The exit code is 1 if the numbers follow\n"
        "    no rule, a mistake, or another rule than the given encoding.\n"
        "\n"
        "    With --device there is no file.  Small problems of attention, rotations, embeddings\n"
        "    and linear attention run on a device and on the CPU, forward and backward.  Outputs\n"
        "    and gradients must have the same bits.  The exit code is 1 if a number differs.\n",
    .examples = "    loci check dump.safetensors --before q --after q_rot "
                "-e rope:pairing=half,base=500000\n"
                "    loci check dump.safetensors config.json --cos cos_cached --sin sin_cached\n"
                "    loci check dump.safetensors --slopes slopes --json\n"
                "    loci check --device cuda:0\n",
    .operand_text = "@file @file",
    .flags = flags,
    .run = run,
};
