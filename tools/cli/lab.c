/* SPDX-License-Identifier: MIT */
/* lab.c -- `loci lab`: lists its contents, shows which runs are selected, and estimates their
 * time. */

#include "platform/clock.h"
#include "platform/file.h"
#include "platform/thread.h"
#include "cli/lab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw/text.h"
#include "models/io.h"
#include "models/json.h"
#include "lab/claims.h"
#include "lab/corpora.h"
#include "lab/store.h"
#include "lab/train.h"

int cores(void)
{
    const int n = loci_processors();
    return n > 256 ? 256 : n;
}

/* ---- Wishes ---------------------------------------------------------------------------------- */

static struct lab_corpus corpus; /* live until the program exits */

static bool open_corpus(const char *path, int length, struct lab_wish *w)
{
    loci_error e = { .text = "" };
    if (lab_corpus_find(&corpus, path, lab_corpus_bytes(length), &e)) return refuse("%s", e.text);
    w->corpus = &corpus;
    return true;
}

enum { MOST_SETTINGS = 64 };
static const char *set_keys[MOST_SETTINGS], *set_values[MOST_SETTINGS];

static bool add_setting(struct lab_wish *w, const char *key, const char *value)
{
    if (w->settings == MOST_SETTINGS)
        return refuse("lab: at most %d settings are allowed", MOST_SETTINGS);
    set_keys[w->settings] = key;
    set_values[w->settings++] = value;
    w->key = set_keys;
    w->value = set_values;
    return true;
}

/* Storage of the selection, referenced from here until the program exits. */
static char *kept[1024];
static const char *copy_text(const char *text)
{
    static int count;
    if (count == COUNT(kept))
        exit(fail("lab: at most %d words of options are allowed", COUNT(kept)));
    return kept[count++] = strcpy(alloc(strlen(text) + 1, 1), text);
}

bool add_settings(const struct args *a, const char *list, struct lab_wish *w)
{
    char *copy = (char *)(uintptr_t)copy_text(list);
    for (char *next, *p = copy; *p; p = next) {
        char *equals = strchr(p, '=');
        next = p + strcspn(p, ",");
        if (*next) *next++ = 0;
        if (!equals || equals >= next || equals == p)
            return refuse("%s: --set needs KEY=VALUE, not '%s'", a->command->name, p);
        *equals = 0;
        if (!add_setting(w, p, equals + 1)) return false;
    }
    return true;
}

bool read_wish_flags(const struct args *a, struct lab_wish *w)
{
    int seeds = 0, steps = 0, length = 0;
    if (!args_whole(a, WISH_SEEDS, 1, 1000, &seeds)
        || !args_whole(a, WISH_STEPS, 1, 1000000000, &steps)
        || !args_whole(a, WISH_LENGTH, 8, 65536, &length))
        return false;
    if (a->value[WISH_PRESET]) w->preset = a->value[WISH_PRESET];
    if (a->value[WISH_ARMS]) w->arms = a->value[WISH_ARMS];
    if (a->value[WISH_TASKS]) w->tasks = a->value[WISH_TASKS];
    if (a->value[WISH_SIZE]) w->size = a->value[WISH_SIZE];
    if (a->value[WISH_GRID]) w->grid = a->value[WISH_GRID];
    if (seeds) w->seeds = seeds;
    if (steps) w->steps = steps;
    if (length) w->length = length;
    if (a->value[WISH_MATCH]) w->match = true;
    if (a->value[WISH_SCALE] && (!parse_number(a->value[WISH_SCALE], &w->scale) || w->scale <= 0))
        return refuse("%s: --steps-scale must be a number above 0, not '%s'", a->command->name,
                      a->value[WISH_SCALE]);
    if (a->value[WISH_LR] && !add_setting(w, "rate", a->value[WISH_LR])) return false;
    return !a->value[WISH_SET] || add_settings(a, a->value[WISH_SET], w);
}

/* Accepts a list of words, or one text with commas. */
static const char *words_of(const json_t *value)
{
    struct text t = { .s = NULL };
    if (json_is_string(value)) return copy_text(json_string_value(value));
    if (!json_is_array(value)) return NULL;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        if (json_is_number(one)) text_add(&t, "%s%.17g", i ? "," : "", json_number_value(one));
        else if (json_is_string(one)) text_add(&t, "%s%s", i ? "," : "", json_string_value(one));
        else {
            text_free(&t);
            return NULL;
        }
    }
    const char *words = t.s ? copy_text(t.s) : NULL;
    text_free(&t);
    return words;
}
static const char *number_text(const json_t *value)
{
    if (json_is_string(value)) return words_of(value);
    if (!json_is_number(value) && !json_is_boolean(value)) return NULL;
    char text[32];
    snprintf(text, sizeof text, "%.17g",
             json_is_boolean(value) ? json_is_true(value) : json_number_value(value));
    return copy_text(text);
}

static const char *const file_keys[] = { "preset",       "arms",   "tasks", "seeds", "steps",
                                         "steps_scale",  "length", "size",  "lr",    "lr_grid",
                                         "match_params", "corpus", "set" };
static const char *file_key(int i) { return file_keys[i]; }

static bool read_key(const char *path, const char *key, const json_t *value, struct lab_wish *w)
{
    int at = 0;
    while (at < COUNT(file_keys) && strcmp(file_keys[at], key) != 0) at++;
    if (at == COUNT(file_keys)) {
        const char *near = nearest(key, file_key, COUNT(file_keys));
        return refuse("%s: unknown key '%s'%s%s", path, key, near ? "; did you mean " : "",
                      near ? near : "");
    }
    const char *words = words_of(value), *number = number_text(value);
    const double x = json_number_value(value);
    switch (at) {
    case 0:
        w->preset = words;
        break;
    case 1:
        w->arms = words;
        break;
    case 2:
        w->tasks = words;
        break;
    case 3:
        w->seeds = (int)x;
        break;
    case 4:
        w->steps = (int)x;
        break;
    case 5:
        w->scale = x;
        break;
    case 6:
        w->length = (int)x;
        break;
    case 7:
        w->size = words;
        break;
    case 8:
        return number ? add_setting(w, "rate", number) : refuse("%s: lr must be a number", path);
    case 9:
        w->grid = words;
        break;
    case 10:
        w->match = json_is_true(value);
        return json_is_boolean(value) || refuse("%s: match_params must be true or false", path);
    case 11:
        return words && open_corpus(words, 0, w);
    default: {
        const char *name;
        json_t *own;
        if (!json_is_object(value))
            return refuse("%s: set must be an object of keys and values", path);
        json_object_foreach((json_t *)(uintptr_t)value, name, own)
        {
            const char *text = number_text(own);
            if (!text) return refuse("%s: set.%s must be a number or a string", path, name);
            if (!add_setting(w, copy_text(name), text)) return false;
        }
        return true;
    }
    }
    const bool counts = at >= 3 && at <= 6;
    if (counts && !(json_is_number(value) && x > 0 && x <= 1e9 && (at == 5 || x == floor(x))))
        return refuse("%s: %s must be a %s above 0", path, key,
                      at == 5 ? "number" : "whole number");
    return counts || words || refuse("%s: %s must be a string or a list of strings", path, key);
}

/* Rejects anything but a regular file: a device may never end, or block. */
static bool read_json(const char *path, json_t **root)
{
    enum { MOST = 1 << 20 };
    struct source from;
    loci_error e;
    json_error_t error;
    if (loci_io_open(&from, path, &e)) return refuse("%s: %s", path, e.text);
    const size_t n = from.size <= MOST ? (size_t)from.size : 0;
    char *text = alloc(n + 1, 1);
    const loci_status status = loci_io_read(&from, text, n, 0, &e);
    loci_io_close(&from);
    *root = status || from.size > MOST ? NULL : json_loadb(text, n, 0, &error);
    free(text);
    if (status) return refuse("%s: %s", path, e.text);
    if (from.size > MOST) return refuse("%s: the file has more than %d MiB", path, MOST >> 20);
    return *root || refuse("%s: line %d: %s", path, error.line, error.text);
}

bool read_wish_file(const char *path, struct lab_wish *w)
{
    json_t *root;
    const char *key;
    json_t *value;
    if (!read_json(path, &root)) return false;
    if (!json_is_object(root)) {
        json_decref(root);
        return refuse("%s: the file must be one JSON object", path);
    }
    json_object_foreach(root, key, value) if (!read_key(path, key, value, w))
    {
        json_decref(root);
        return false;
    }
    json_decref(root);
    return true;
}

bool make_runs(const struct args *a, const char *file, struct lab_wish *w, struct lab_runs *runs)
{
    loci_error e = { .text = "" };
    *w = (struct lab_wish){ .preset = NULL };
    if (file && !read_wish_file(file, w)) return false;
    if (!read_wish_flags(a, w)) return false;
    if ((!w->corpus || a->value[WISH_CORPUS])
        && !open_corpus(a->value[WISH_CORPUS], lab_wish_length(w), w))
        return false;
    if (lab_runs_make(runs, w, &e)) return refuse("%s: %s", a->command->name, e.text);
    return true;
}

/* ---- Time ------------------------------------------------------------------------------------ */

/* Uses CPU time, since other load here may differ during the runs.  The first step is a warm-up. */
bool time_run(const struct lab_config *c, double seconds, double *step, double *tested)
{
    const struct lab_shape s = lab_config_shape(c);
    struct lab_model *m;
    struct lab_batch b = { .sequences = 0 };
    loci_error e = { .text = "" };
    double mean;
    if (lab_model_open(&m, &s, NULL, &e)) return refuse("%s", e.text);
    lab_model_init(m, 0);
    *step = *tested = INFINITY;
    loci_status status = LOCI_OK;
    for (double began = loci_clock_thread(); !status;) {
        const double from = loci_clock_thread();
        lab_train_batch(c, m, 0, &b);
        status = lab_model_backward(m, &b, &mean, &e);
        lab_model_step(m, 1, 1e-6);
        const double between = loci_clock_thread();
        if (!status) status = lab_model_forward(m, &b, false, NULL, NULL, &e);
        const double to = loci_clock_thread();
        *step = fmin(*step, between - from);
        *tested = fmin(*tested, (to - between) / (double)b.rows);
        if (to - began > seconds) break;
    }
    lab_batch_free(&b);
    lab_model_close(m);
    return !status || refuse("%s", e.text);
}

/* Times an arm once for each task.  With many arms and tasks, times it on the first tasks only and
 * scales by its ratio to nope. */
bool estimate_runs(const struct lab_runs *runs, int threads, struct lab_estimate *to)
{
    struct seen {
        char arm[LAB_ARM], task[LAB_NAME], size[LAB_NAME];
        double step, tested;
    };
    struct seen *seen = alloc((size_t)runs->count, sizeof *seen);
    int known = 0;
    *to = (struct lab_estimate){ .seconds = 0 };
    for (int i = 0; i < runs->count; i++) {
        const struct lab_config *c = &runs->list[i];
        int k = 0;
        while (k < known
               && (strcmp(seen[k].arm, c->arm) || strcmp(seen[k].task, c->task)
                   || strcmp(seen[k].size, c->size)))
            k++;
        if (k == known) {
            const double budget = 1.0 / (1 + runs->count / 8.0);
            strcpy(seen[k].arm, c->arm);
            strcpy(seen[k].task, c->task);
            strcpy(seen[k].size, c->size);
            if (!time_run(c, budget, &seen[k].step, &seen[k].tested)) {
                free(seen);
                return false;
            }
            known++;
        }
        const struct lab_work_done w = lab_config_work(c);
        to->seconds += seen[k].step * w.steps + seen[k].tested * w.tested;
        to->teraflops += (w.trained_flops + w.tested_flops) * 1e-12;
        to->steps += c->steps;
    }
    to->seconds /= threads < runs->count ? threads : runs->count;
    free(seen);
    return true;
}

/* ---- list ------------------------------------------------------------------------------------ */

enum { LIST_JSON };
static const struct flag list_flags[] = { [LIST_JSON] = { "json", NULL, NULL, "one JSON object" },
                                          { NULL, NULL, NULL, NULL } };

static void list_json(struct text *t)
{
    const struct lab_task *const *task;
    const struct lab_preset *preset;
    const struct lab_known *arm;
    const struct claim *claim;
    const int tasks = lab_tasks(&task), presets = lab_presets(&preset), arms = lab_known_arms(&arm);
    text_add(t, "{\"tasks\": [");
    for (int i = 0; i < tasks; i++) {
        text_add(t, "%s\n  {\"name\": \"%s\", \"brief\": ", i ? "," : "", task[i]->name);
        text_json(t, task[i]->brief);
        text_add(t, ", \"scored\": ");
        text_json(t, task[i]->scored);
        text_add(t, ", \"extended\": %s, \"options\": [", task[i]->extended ? "true" : "false");
        for (const struct lab_option *o = task[i]->options; o->name; o++) {
            text_add(t,
                     "%s{\"name\": \"%s\", \"default_value\": %.9g, \"min\": %.9g, "
                     "\"max\": %.9g, \"help\": ",
                     o == task[i]->options ? "" : ", ", o->name, o->default_value, o->min, o->max);
            text_json(t, o->help);
            text_add(t, "}");
        }
        text_add(t, "]}");
    }
    text_add(t, "],\n \"presets\": [");
    for (int i = 0; i < presets; i++) {
        text_add(t, "%s\n  {\"name\": \"%s\", \"about\": ", i ? "," : "", preset[i].name);
        text_json(t, preset[i].about);
        text_add(t, ", \"size\": \"%s\", \"seeds\": %d, \"chief_seeds\": %d, \"tasks\": {",
                 preset[i].size, preset[i].seeds, preset[i].chief_seeds);
        for (int k = 0; preset[i].tasks[k].name; k++)
            text_add(t, "%s\"%s\": %d", k ? ", " : "", preset[i].tasks[k].name,
                     preset[i].tasks[k].steps);
        text_add(t, "}}");
    }
    text_add(t, "],\n \"arms\": [");
    for (int i = 0; i < arms; i++) {
        struct lab_arm a;
        char family[LAB_NAME * 2];
        lab_arm_parse(&a, arm[i].text, 64, 512, 16, NULL);
        lab_arm_family(&a, family);
        text_add(t,
                 "%s\n  {\"name\": \"%s\", \"family\": \"%s\", \"chief\": %s, \"layer\": %s, "
                 "\"at_64_tokens\": ",
                 i ? "," : "", arm[i].text, family, arm[i].chief ? "true" : "false",
                 a.layer != LAB_PLAIN ? "true" : "false");
        char text[2 * LAB_TEXT + 4];
        snprintf(text, sizeof text, "%s%s%s", a.embed, a.embed[0] ? " + " : "", a.attention);
        text_json(t, text);
        text_add(t, "}");
    }
    text_add(t, "],\n \"claims\": [");
    for (int i = 0, n = lab_claims(&claim); i < n; i++) {
        text_add(t, "%s\n  {\"id\": \"%s\", \"claim\": ", i ? "," : "", claim[i].id);
        text_json(t, claim[i].sentence);
        text_add(t, ", \"source\": ");
        text_json(t, claim[i].source);
        text_add(t, "}");
    }
    text_add(t, "]}\n");
}

static int run_list(const struct args *a)
{
    struct text t = { .s = NULL };
    const struct lab_task *const *task;
    const struct lab_preset *preset;
    const struct lab_known *arm;
    const struct lab_left_out *left;
    const struct claim *claim;
    if (!args_rest(a, 0)) return EXIT_ERROR;
    if (a->value[LIST_JSON]) {
        list_json(&t);
        fwrite(t.s, 1, t.n, stdout);
        text_free(&t);
        return EXIT_DONE;
    }
    printf("%sTASKS%s (--tasks; options by --set)\n", PAINT("1"), PAINT("0"));
    for (int i = 0, n = lab_tasks(&task); i < n; i++) {
        printf("    %-10s%s\n", task[i]->name, task[i]->brief);
        for (const struct lab_option *o = task[i]->options; o->name; o++)
            printf("              %s=%.9g  %s\n", o->name, o->default_value, o->help);
    }
    printf("\n%sPRESETS%s (--preset)\n", PAINT("1"), PAINT("0"));
    for (int i = 0, n = lab_presets(&preset); i < n; i++)
        printf("    %-10s%s\n", preset[i].name, preset[i].about);
    printf("\n%sARMS%s (--arms takes any encoding text; chief, the main eight, have a star)\n",
           PAINT("1"), PAINT("0"));
    for (int i = 0, n = lab_known_arms(&arm); i < n; i++) {
        struct lab_arm x;
        char family[LAB_NAME * 2];
        lab_arm_parse(&x, arm[i].text, 64, 512, 16, NULL);
        lab_arm_family(&x, family);
        printf("  %c %-22s%-14s", arm[i].chief ? '*' : ' ', arm[i].text, family);
        if (x.layer == LAB_FOX_PRO)
            printf("the layer of the forgetting Transformer, %s\n", x.attention);
        else if (x.unit > 0) printf("%s, %.3g coordinates per token\n", x.attention, x.unit);
        else printf("%s%s\n", x.embed[0] ? x.embed : x.attention, x.open ? ", gates open" : "");
    }
    printf("    bias:file=X.safetensors[,learn=1]  a table of your own: tensor 'bias' [heads, "
           "distances] or [heads, rows, keys]\n");
    for (int i = 0, n = lab_left_out(&left); i < n; i++)
        printf("    not %-11s%s\n", left[i].name, left[i].why);
    printf("\n%sCLAIMS%s (a report says which it reproduces)\n", PAINT("1"), PAINT("0"));
    for (int i = 0, n = lab_claims(&claim); i < n; i++)
        printf("    %-5s%s\n", claim[i].id, claim[i].sentence);
    return EXIT_DONE;
}

const struct command cmd_lab_list = {
    .name = "lab list",
    .brief = "tasks, presets, arms and claims",
    .synopsis = "loci lab list [--json]",
    .about = "    Arms are shown for 64 tokens of training: tables have the trained length unless\n"
             "    the encoding text sets another.\n",
    .examples = "    loci lab list\n",
    .flags = list_flags,
    .run = run_list,
};

/* ---- plan ------------------------------------------------------------------------------------ */

enum { PLAN_THREADS = WISHES, PLAN_JSON };
static const struct flag plan_flags[] = {
    WISH_FLAGS,
    [PLAN_THREADS] = { "threads", "t", "N", "threads of the planned run (default: all cores)" },
    [PLAN_JSON] = { "json", NULL, NULL, "one JSON object" },
    { NULL, NULL, NULL, NULL }
};

void print_time(double seconds)
{
    if (!(seconds < 1e7)) printf("?");
    else if (seconds < 90) printf("%.0f s", seconds);
    else if (seconds < 5400) printf("%.0f min", seconds / 60);
    else printf("%.1f h", seconds / 3600);
}

void print_runs(const struct lab_runs *runs)
{
    printf("%-10s %6s %6s %6s  %s\n", "task", "steps", "arms", "runs",
           "size, length, learning rate");
    for (int i = 0; i < runs->count;) {
        const struct lab_config *c = &runs->list[i];
        int k = i, arms = 0;
        double low = c->rate, high = c->rate;
        for (; k < runs->count && !strcmp(runs->list[k].task, c->task); k++) {
            const struct lab_config *o = &runs->list[k];
            arms += k == i || strcmp(o->arm, runs->list[k - 1].arm) != 0;
            low = fmin(low, o->waits ? INFINITY : o->rate);
            high = fmax(high, o->waits ? 0 : o->rate);
        }
        printf("%-10s %6d %6d %6d  %s, %d tokens, %.3g", c->task, c->steps, arms, k - i, c->size,
               lab_config_shape(c).length, low);
        printf(high > low ? " to %.3g\n" : "\n", high);
        i = k;
    }
}

static int run_plan(const struct args *a)
{
    struct lab_wish w;
    static struct lab_runs runs;
    struct lab_estimate cost;
    int threads = cores();
    if (!args_rest(a, 1) || !args_whole(a, PLAN_THREADS, 1, 256, &threads)
        || !make_runs(a, a->rest_count ? a->rest[0] : NULL, &w, &runs)
        || !estimate_runs(&runs, threads, &cost))
        return EXIT_ERROR;
    if (a->value[PLAN_JSON]) {
        struct text t = { .s = NULL };
        text_add(
            &t,
            "{\"threads\": %d, \"seconds\": %.6g, \"teraflops\": %.6g, \"steps\": %ld, \"runs\": [",
            threads, cost.seconds, cost.teraflops, cost.steps);
        for (int i = 0; i < runs.count; i++) {
            char id[33];
            lab_config_id(&runs.list[i], id);
            text_add(&t, "%s\n  {\"id\": \"%s\", \"config\": ", i ? "," : "", id);
            lab_config_json(&runs.list[i], &t);
            text_add(&t, "}");
        }
        text_add(&t, "]}\n");
        fwrite(t.s, 1, t.n, stdout);
        text_free(&t);
    } else {
        print_runs(&runs);
        printf("\n%d runs, %ld steps, %.0f TFLOP: about ", runs.count, cost.steps, cost.teraflops);
        print_time(cost.seconds);
        printf(" on %d thread%s here.\n", threads, threads > 1 ? "s" : "");
    }
    lab_runs_free(&runs);
    return EXIT_DONE;
}

const struct command cmd_lab_plan = {
    .name = "lab plan",
    .brief = "list the runs and estimate their time",
    .synopsis = "loci lab plan --preset NAME | --arms LIST --tasks LIST | FILE.json [OPTION...]",
    .about = "    Counts arms, tasks, seeds and steps, and times a few steps of each arm.\n",
    .examples = "    loci lab plan --preset coffee\n"
                "    loci lab plan --arms nope,rope,alibi+cape --tasks text,recall --seeds 3\n",
    .operand_text = "@file",
    .flags = plan_flags,
    .run = run_plan,
};

/* ---- corpus ---------------------------------------------------------------------------------- */

enum { CORPUS_JSON };
static const struct flag corpus_flags[] = {
    [CORPUS_JSON] = { "json", NULL, NULL, "one JSON object" }, { NULL, NULL, NULL, NULL }
};

/* A text, or the sentence that says why it is not there. */
static void show_corpus(const char *what, const struct lab_source *from, bool json, bool first,
                        struct text *t)
{
    struct lab_corpus c;
    loci_error e = { .text = "" };
    const bool generated = !strcmp(what, "generated");
    const char *about = from      ? from->about
                      : generated ? "generated stories"
                                  : "a file",
               *licence = from      ? from->licence
                        : generated ? "MIT"
                                    : "that of the file";
    const loci_status status = lab_corpus_find(&c, what, lab_corpus_bytes(64), &e);
    if (json) {
        text_add(t, "%s\n  {\"name\": ", first ? "" : ",");
        text_json(t, what);
        text_add(t, ", \"about\": ");
        text_json(t, about);
        text_add(t, ", \"licence\": ");
        text_json(t, licence);
        if (status) {
            text_add(t, ", \"missing\": ");
            text_json(t, e.text);
            text_add(t, "}");
        } else
            text_add(t,
                     ", \"bytes\": %td, \"symbols\": %d, \"unigram_bits_per_byte\": %.4f, "
                     "\"sha256\": \"%s\"}",
                     c.count, c.symbols, c.unigram / log(2), c.sha256);
    } else if (status) {
        text_add(t, "%-12s%s, %s\n            not here: %s\n", what, about, licence, e.text);
    } else {
        text_add(t, "%-12s%s, %s\n            %td bytes of %d kinds, %.3f bits each alone\n", what,
                 about, licence, c.count, c.symbols, c.unigram / log(2));
        text_add(t, "            sha256 %s\n", c.sha256);
    }
    if (!status) lab_corpus_close(&c);
}

static int run_corpus(const struct args *a)
{
    const struct lab_source *list;
    const int sources = lab_sources(&list);
    const bool json = a->value[CORPUS_JSON] != NULL;
    struct text t = { .s = NULL };
    if (!args_rest(a, 64)) return EXIT_ERROR;
    if (json) text_add(&t, "{\"corpora\": [");
    if (a->rest_count == 0) show_corpus("generated", NULL, json, true, &t);
    for (int i = 0; i < sources && a->rest_count == 0; i++)
        show_corpus(list[i].name, &list[i], json, false, &t);
    for (int i = 0; i < a->rest_count; i++) {
        const struct lab_source *from = NULL;
        for (int k = 0; k < sources; k++)
            if (!strcmp(list[k].name, a->rest[i])) from = &list[k];
        show_corpus(a->rest[i], from, json, i == 0, &t);
    }
    if (json) text_add(&t, "]}\n");
    fwrite(t.s, 1, t.n, stdout);
    text_free(&t);
    return EXIT_DONE;
}

const struct command cmd_lab_corpus = {
    .name = "lab corpus",
    .brief = "real texts that are here, and how to get others",
    .synopsis = "loci lab corpus [NAME|FILE...] [--json]",
    .about = "    Texts for --corpus, with licence, size and SHA-256: Python's standard library,\n"
             "    texts of Debian packages, and your own files by their paths.  Nothing is\n"
             "    downloaded.  A run belongs to the bytes of its text, whatever the name.\n",
    .examples = "    loci lab corpus\n"
                "    loci lab corpus python enwik8\n"
                "    loci lab run --arms chief --tasks text --corpus python\n",
    .operand_text = "generated|python|jargon|kjv|@file",
    .flags = corpus_flags,
    .run = run_corpus,
};

/* ---- The overview ---------------------------------------------------------------------------- */

static const struct flag lab_flags[] = { { NULL, NULL, NULL, NULL } };
static const struct command *const under[] = { &cmd_lab_list,  &cmd_lab_corpus, &cmd_lab_plan,
                                               &cmd_lab_run,   &cmd_lab_report, &cmd_lab_compare,
                                               &cmd_lab_watch, &cmd_lab_sample, &cmd_lab_dump,
                                               &cmd_lab_data,  &cmd_lab_bench,  NULL };

/* Prints the summary of the last run in ./lab-out, if there is one. */
static void print_last(void)
{
    struct lab_results all;
    struct file_info there;
    loci_error e = { .text = "" };
    if (!loci_path_info("lab-out/lab.json", &there) || lab_results_read(&all, "lab-out", &e))
        return;
    int learned = 0;
    for (int i = 0; i < all.count; i++) learned += all.list[i].learned;
    printf("\n./lab-out has %d runs that are done, %d of which have learned their task: 'loci lab "
           "report lab-out'.\n",
           all.count, learned);
    lab_results_free(&all);
}

static int run_lab(const struct args *a)
{
    const struct lab_preset *preset;
    if (!args_rest(a, 0)) return EXIT_ERROR;
    printf(
        "loci lab trains small Transformers that differ in nothing but their positional encoding, "
        "tests them at\n"
        "1 to 8 times the trained length, and says which published orderings "
        "hold.\n\n%sPRESETS%s\n",
        PAINT("1"), PAINT("0"));
    for (int i = 0, n = lab_presets(&preset); i < n; i++)
        printf("    %-10s%s\n", preset[i].name, preset[i].about);
    printf(
        "\n    loci lab run --preset coffee -o lab-out && loci lab report lab-out -o report.html\n"
        "\n'loci lab --help' lists the commands.\n");
    print_last();
    return EXIT_DONE;
}

const struct command cmd_lab = {
    .name = "lab",
    .brief = "train small models: a fair comparison of all encodings",
    .synopsis = "loci lab [COMMAND [OPTION...]]",
    .about =
        "    Trains small Transformers that differ only in their positional encoding, and\n"
        "    tests them at 1 to 8 times the trained length.  The report states which published\n"
        "    orderings hold.  A run has the same bits on every machine.  lab/README.md has\n"
        "    results and methods.\n",
    .examples = "    loci lab plan --preset coffee\n"
                "    loci lab run --preset coffee -o lab-out\n"
                "    loci lab report lab-out -o report.html\n",
    .flags = lab_flags,
    .run = run_lab,
    .under = under,
};
