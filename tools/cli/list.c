/* SPDX-License-Identifier: MIT */
/* list.c -- `loci list`, `loci info`, `loci version`. */

#include <math.h>
#include <string.h>

#include <jansson.h>

#include "platform/system.h"
#include "platform/thread.h"
#include "util/shape_text.h"
#include "cli/device.h"
#include "cli/json.h"

/* ---- list ------------------------------------------------------------------------------------ */

static const struct {
    int place;
    const char *name;
} places[] = {
    { LOCI_PLACE_EMBED, "embed" }, { LOCI_PLACE_ROTATE, "rotate" }, { LOCI_PLACE_SCORE, "score" },
    { LOCI_PLACE_MIX, "mix" },     { LOCI_PLACE_WEIGHT, "weight" }, { LOCI_PLACE_VALUE, "value" },
    { LOCI_PLACE_STATE, "state" }, { LOCI_PLACE_SUM, "sum" },
};

/* "rotate,score", or "-" if the encoding has no place. */
static const char *place_names(int set, char *buffer, size_t capacity)
{
    buffer[0] = 0;
    for (int i = 0; i < COUNT(places); i++)
        if (set & places[i].place)
            snprintf(buffer + strlen(buffer), capacity - strlen(buffer), "%s%s",
                     buffer[0] ? "," : "", places[i].name);
    if (!buffer[0]) snprintf(buffer, capacity, "-");
    return buffer;
}

/* The default value of an option, as a text would have it. */
static const char *default_text(const loci_option *o, char *buffer, size_t capacity)
{
    if (o->required) snprintf(buffer, capacity, "required");
    else if (o->kind == LOCI_LIST) snprintf(buffer, capacity, "none");
    else if (isnan(o->default_value)) snprintf(buffer, capacity, "by rule");
    else if (o->kind == LOCI_WORD) {
        const char *p = o->words;
        for (int k = (int)o->default_value; k > 0 && *p; k--) {
            p += strcspn(p, "|");
            p += *p == '|';
        }
        snprintf(buffer, capacity, "%.*s", (int)strcspn(p, "|"), p);
    } else snprintf(buffer, capacity, "%.10g", o->default_value);
    return buffer;
}

/* The valid values of an option: its words, or its range. */
static const char *accepted(const loci_option *o, char *buffer, size_t capacity)
{
    const bool whole = o->kind == LOCI_WHOLE, list = o->kind == LOCI_LIST;
    const char *kind = whole ? "whole" : list ? "list of" : "number";
    if (o->kind == LOCI_WORD) snprintf(buffer, capacity, "%s", o->words);
    else snprintf(buffer, capacity, "%s %.10g .. %.10g", kind, o->min, o->max);
    return buffer;
}

/* The tensors of an encoding's example, for 8 heads of width 64. */
enum { HEADS = 8, WIDTH = 64, LENGTH = 512, MAX_TENSORS = 32 };
/* Returns the number of tensors.  The plan owns their names, and the caller destroys it. */
static int tensors_of(const loci_encoding_info *e, loci_tensor *list, loci_plan **plan)
{
    const bool embeds = e->places == LOCI_PLACE_EMBED;
    const loci_desc d =
        LOCI_DESC(.encoding = e->example, .stage = embeds ? LOCI_EMBED : LOCI_ATTENTION,
                  .heads = embeds ? 0 : HEADS, .dim = embeds ? 0 : WIDTH,
                  .model_dim = HEADS * WIDTH, .max_len = LENGTH);
    const loci_status status = loci_plan_create(plan, &d, NULL);
    if (status == LOCI_NO_MEMORY) exit(fail("out of memory"));
    if (status) return 0;
    return loci_tensors(*plan, list, MAX_TENSORS);
}
static const char *role_of(const loci_tensor *t)
{
    return t->role == LOCI_INPUT ? "input" : t->role == LOCI_FIXED ? "fixed" : "learned";
}

/* Two lines of the overview: purpose and origin. */
static void print_line(const loci_encoding_info *e)
{
    char where[64];
    loci_plan *plan = NULL;
    loci_tensor list[MAX_TENSORS];
    const int n = tensors_of(e, list, &plan);
    printf("%s%-12s%s %-12s %s\n%26s%s%s", PAINT("1"), e->name, PAINT("0"),
           place_names(e->places, where, sizeof where), e->brief, "", PAINT("2"), e->cite);
    for (int i = 0; i < n; i++) printf("%s%s", i ? ", " : "; ", list[i].name);
    printf("%s\n", PAINT("0"));
    loci_plan_destroy(plan);
}

/* Prints all options that a text of this encoding may have. */
static void print_details(const loci_encoding_info *e)
{
    char a[128], b[128];
    loci_plan *plan = NULL;
    loci_tensor list[MAX_TENSORS];
    const int n = tensors_of(e, list, &plan);
    printf("%s%s%s  %s\n", PAINT("1"), e->name, PAINT("0"), e->brief);
    printf("    enters at   %s%s\n", place_names(e->places, a, sizeof a),
           e->causal_only ? "; causal masks only" : "");
    printf("    from        %s\n    example     %s\n"
           "    tolerance   %g of 1 + the largest exact value\n",
           e->cite, e->example, e->tolerance);
    for (int i = 0; i < n; i++)
        printf("    %s%-18s %-20s %s%s\n", i ? "            " : "tensors     ", list[i].name,
               role_of(&list[i]), shape_text(list[i].rank, list[i].shape, a, sizeof a),
               i ? "" : "   of the example, 8 heads of width 64");
    loci_plan_destroy(plan);
    for (int i = 0; i < e->option_count; i++)
        printf("    %s%-18s %-20s %-28s %s\n", i ? "            " : "options     ",
               e->options[i].name, default_text(&e->options[i], a, sizeof a),
               accepted(&e->options[i], b, sizeof b), e->options[i].help);
    printf("\n");
}

/* A word has its words, a number its range.  Infinite bounds are null. */
static json_t *option_json(const loci_option *o)
{
    static const char *const kinds[] = { "number", "whole", "word", "list" };
    char a[128];
    json_t *j = json_object();
    json_object_set_new(j, "name", json_string(o->name));
    json_object_set_new(j, "kind", json_string(kinds[o->kind]));
    json_object_set_new(j, "required", json_boolean(o->required));
    if (o->kind == LOCI_WORD) {
        const bool none = isnan(o->default_value) || o->required;
        json_object_set_new(j, "default_value",
                            none ? json_null() : json_string(default_text(o, a, sizeof a)));
        json_object_set_new(j, "words", json_string(o->words));
    } else {
        json_object_set_new(j, "default_value",
                            o->required ? json_null() : json_number_or_null(o->default_value));
        json_object_set_new(j, "min", json_number_or_null(o->min));
        json_object_set_new(j, "max", json_number_or_null(o->max));
    }
    json_object_set_new(j, "help", json_string(o->help));
    return j;
}

/* The same as print_details(), for scripts. */
static void print_encoding_json(const loci_encoding_info *e)
{
    json_t *j = json_object(), *where = json_array();
    json_t *options = json_array(), *tensors = json_array();
    loci_plan *plan = NULL;
    loci_tensor list[MAX_TENSORS];
    const int n = tensors_of(e, list, &plan);
    for (int i = 0; i < n; i++) {
        json_t *t = json_object();
        json_object_set_new(t, "name", json_string(list[i].name));
        json_object_set_new(t, "role", json_string(role_of(&list[i])));
        json_array_append_new(tensors, t);
    }
    loci_plan_destroy(plan);
    for (int i = 0; i < COUNT(places); i++)
        if (e->places & places[i].place) json_array_append_new(where, json_string(places[i].name));
    for (int i = 0; i < e->option_count; i++)
        json_array_append_new(options, option_json(&e->options[i]));
    json_object_set_new(j, "name", json_string(e->name));
    json_object_set_new(j, "brief", json_string(e->brief));
    json_object_set_new(j, "cite", json_string(e->cite));
    json_object_set_new(j, "places", where);
    json_object_set_new(j, "causal_only", json_boolean(e->causal_only));
    json_object_set_new(j, "tolerance", json_number_or_null(e->tolerance));
    json_object_set_new(j, "example", json_string(e->example));
    json_object_set_new(j, "tensors", tensors);
    json_object_set_new(j, "options", options);
    json_print(j);
}

static const char *encoding_name(int i)
{
    const loci_encoding_info *list;
    loci_encodings(&list);
    return list[i].name;
}

enum { LIST_JSON };
static const struct flag list_flags[] = {
    [LIST_JSON] = { "json", NULL, NULL, "one JSON object per line, tensors and options included" },
    { NULL, NULL, NULL, NULL }
};

/* Looks up all names before it prints. */
static int list_run(const struct args *a)
{
    const loci_encoding_info *list;
    int n = loci_encodings(&list);
    for (int i = 0; i < a->rest_count; i++) {
        if (find_encoding(a->rest[i], strlen(a->rest[i]))) continue;
        const char *hint = nearest(a->rest[i], encoding_name, n);
        return fail("list: unknown encoding '%s'%s%s%s", a->rest[i], hint ? "; did you mean " : "",
                    hint ? hint : "", hint ? "?" : "");
    }
    if (!a->value[LIST_JSON] && a->rest_count == 0)
        printf("%s%-12s %-12s %s%s\n", PAINT("1"), "encoding", "enters at",
               "what it does; its paper; its tensors", PAINT("0"));
    for (int i = 0; i < n; i++) {
        bool wanted = a->rest_count == 0;
        for (int k = 0; k < a->rest_count; k++)
            wanted = wanted || !strcmp(a->rest[k], list[i].name);
        if (!wanted) continue;
        if (a->value[LIST_JSON]) print_encoding_json(&list[i]);
        else if (a->rest_count) print_details(&list[i]);
        else print_line(&list[i]);
    }
    return EXIT_DONE;
}

const struct command cmd_list = {
    .name = "list",
    .brief = "list the encodings and their options",
    .synopsis = "loci list [ENCODING...] [--json]",
    .about =
        "    Without names: the place where each encoding enters, what it does, its paper and\n"
        "    its tensors.  With names: also shapes of tensors, options, defaults, ranges and\n"
        "    sources.  An encoding text is name:option=value,... and several are joined by\n"
        "    '+'.\n",
    .examples = "    loci list\n    loci list rope t5\n    loci list --json\n",
    .operand_text = "@encoding...",
    .flags = list_flags,
    .run = list_run,
};

/* ---- info ------------------------------------------------------------------------------------ */

enum { INFO_JSON };
static const struct flag info_flags[] = { [INFO_JSON] = { "json", NULL, NULL, "one JSON object" },
                                          { NULL, NULL, NULL, NULL } };

#if defined __clang__
#define COMPILER "clang " __clang_version__
#elif defined __GNUC__
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown compiler"
#endif

/* An H100 has 79.6 GiB; a device without memory of its own says none. */
static void print_devices(const struct device_list *l)
{
    for (int i = 0; i < l->count; i++) {
        const loci_gpu_info *d = &l->list[i];
        printf("%-10s%-9s ", i ? "" : "devices", d->id);
        device_print(d);
        if (d->memory) printf(", %.1f GiB, %d units", (double)d->memory / 0x1p30, d->units);
        printf("\n");
    }
    for (int i = 0; i < l->absent; i++) {
        printf("%-10s%-9s ", i || l->count ? "" : "devices", "none");
        print_plain(stdout, l->why[i].text);
        printf("\n");
    }
}
static void set_devices(json_t *j, const struct device_list *l)
{
    json_t *devices = json_array(), *absent = json_array();
    for (int i = 0; i < l->count; i++) {
        json_t *d = json_object();
        json_object_set_new(d, "id", json_text(l->list[i].id));
        json_object_set_new(d, "name", json_text(l->list[i].name));
        json_object_set_new(d, "driver", json_text(l->list[i].driver));
        json_object_set_new(d, "memory", json_integer((json_int_t)l->list[i].memory));
        json_object_set_new(d, "units", json_integer(l->list[i].units));
        json_array_append_new(devices, d);
    }
    for (int i = 0; i < l->absent; i++) json_array_append_new(absent, json_text(l->why[i].text));
    json_object_set_new(j, "devices", devices);
    json_object_set_new(j, "no_devices", absent);
}

/* Nothing here is measured: the system and the library report it. */
static int info_run(const struct args *a)
{
    if (!args_rest(a, 0)) return EXIT_ERROR;
    char cpu[128], system[64], machine[64];
    const char *names[16];
    int n = loci_isas(names, COUNT(names));
    if (n > COUNT(names)) n = COUNT(names);
    loci_system_names(system, machine, sizeof system);
    const long cpus = loci_processors();
    struct device_list devices;
    device_look(&devices);
    if (a->value[INFO_JSON]) {
        json_t *j = json_object(), *isas = json_array();
        for (int i = 0; i < n; i++) json_array_append_new(isas, json_string(names[i]));
        json_object_set_new(j, "version", json_string(loci_version_text()));
        json_object_set_new(j, "cpu", json_string(cpu_name(cpu, sizeof cpu)));
        json_object_set_new(j, "cpus", json_integer(cpus));
        json_object_set_new(j, "system", json_string(system));
        json_object_set_new(j, "machine", json_string(machine));
        json_object_set_new(j, "isas", isas);
        json_object_set_new(j, "isa", json_string(best_isa()));
        json_object_set_new(j, "fast", json_boolean(runs_fast(best_isa())));
        json_object_set_new(j, "compiler", json_string(COMPILER));
        json_object_set_new(j, "build", json_string(LOCI_BUILD_TYPE));
        set_devices(j, &devices);
        json_print(j);
        return EXIT_DONE;
    }
    printf("loci      %s\ncpu       %s, %ld online\nsystem    %s %s\nisas      ",
           loci_version_text(), cpu_name(cpu, sizeof cpu), cpus, system, machine);
    for (int i = 0; i < n; i++) printf("%s%s", names[i], i + 1 < n ? ", " : "");
    printf(
        "  (in use: %s)\nfast      %s\ncompiler  %s\nbuild     %s; threads are a pool of its own, "
        "without OpenMP\n",
        best_isa(),
        runs_fast(best_isa()) ? "bf16 dot products, for dtype bf16 with --fast; bits may differ"
                              : "none: this CPU has no bf16 dot products, so --fast changes no "
                                "bits",
        COMPILER, LOCI_BUILD_TYPE);
    print_devices(&devices);
    return EXIT_DONE;
}

const struct command cmd_info = {
    .name = "info",
    .brief = "print version, processor, instruction sets, build and devices",
    .synopsis = "loci info [--json]",
    .about = "    Put this into a bug report.  The instruction sets are those that this processor\n"
             "    and this build support, in ascending order of preference.  The last one is used\n"
             "    unless --isa selects another.  Devices are those that --device accepts.  For a\n"
             "    driver that has none, a sentence says why.\n",
    .examples = "    loci info\n    loci info --json\n",
    .flags = info_flags,
    .run = info_run,
};

/* ---- version --------------------------------------------------------------------------------- */

static int version_run(const struct args *a)
{
    if (!args_rest(a, 0)) return EXIT_ERROR;
    printf("loci %s\n", loci_version_text());
    return EXIT_DONE;
}

static const struct flag no_flags[] = { { NULL, NULL, NULL, NULL } };
const struct command cmd_version = {
    .name = "version",
    .brief = "the version",
    .synopsis = "loci version",
    .about = "    Prints the version and nothing else.\n",
    .examples = "    loci version\n",
    .flags = no_flags,
    .run = version_run,
};
