/* SPDX-License-Identifier: MIT */
/* config.c -- see config.h. */
#include "platform/file.h"
#include "lab/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract/encoding.h"
#include "util/nearest.h"
#include "models/json.h"
#include "lab/result.h"
#include "lab/sha256.h"

/* ---- Sizes ----------------------------------------------------------------------------------- */

static const struct lab_config sizes[] = {
#define SIZE(name, ...) { .size = name, __VA_ARGS__ },
#include "lab/list.h"
};
/* Standard deviation of matrices: 0.02 at width 768, where that number comes from.  At width 64,
 * 0.02 would leave so little of a score that rope does not learn to recall in 2000 steps.
 * Additions to embeddings, of size 1, would drown embeddings of 0.02. */
static double start_of(int dim) { return 0.5 / sqrt(dim); }

static const char *size_name(int i) { return sizes[i].size; }

loci_status lab_config_size(struct lab_config *c, const char *size, loci_error *e)
{
    for (int i = 0; i < COUNT(sizes); i++) {
        if (strcmp(sizes[i].size, size) != 0) continue;
        strcpy(c->size, size);
        c->layers = sizes[i].layers;
        c->dim = sizes[i].dim;
        c->heads = sizes[i].heads;
        c->kv_heads = c->ffn = 0;
        c->std = start_of(c->dim);
        c->embed_std = 1;
        c->length = sizes[i].length;
        c->tokens = sizes[i].tokens;
        c->rate = sizes[i].rate;
        return LOCI_OK;
    }
    const char *near = nearest(size, size_name, COUNT(sizes));
    return loci_fail(e, LOCI_BAD_ARG, "size '%s' is none of XS, S, M, L%s%s", size,
                     near ? "; did you mean " : "", near ? near : "");
}

/* ---- Fields ---------------------------------------------------------------------------------- */

/* In the order of the hashed text. */
struct key {
    const char *name;
    size_t at;
    bool real;
    double low, high;
};
/* clang-format off */
#define WHOLE(field, low, high)                                                                    \
    {                                                                                              \
#field, offsetof(struct lab_config, field), false, low, high                               \
    }
/* clang-format on */
static const struct key keys[] = {
    WHOLE(seed, 0, 1e9),
    WHOLE(layers, 1, 64),
    WHOLE(dim, 16, 8192),
    WHOLE(heads, 1, 16),
    WHOLE(kv_heads, 0, 16),
    WHOLE(ffn, 0, 65536),
    WHOLE(length, 8, 65536),
    WHOLE(steps, 1, 1e9),
    WHOLE(tokens, 16, 1e7),
    { "rate", offsetof(struct lab_config, rate), true, 1e-9, 10 },
    { "std", offsetof(struct lab_config, std), true, 1e-6, 10 },
    { "embed_std", offsetof(struct lab_config, embed_std), true, 1e-6, 10 },
    WHOLE(variants, 0, 1),
    WHOLE(finetune, 0, 1),
};
static const char *const learned_words[] = { "refuse", "clamp", "wrap", "random" };

static double value_of(const struct lab_config *c, const struct key *k)
{
    const char *at = (const char *)c + k->at;
    return k->real ? *(const double *)at : *(const int *)at;
}

static const struct lab_task *naming; /* whose options nearest() may suggest */
static const char *key_name(int i)
{
    if (i < COUNT(keys)) return keys[i].name;
    return i == COUNT(keys) ? "learned" : naming->options[i - COUNT(keys) - 1].name;
}
static int options_of(const struct lab_task *t)
{
    int n = 0;
    while (t && t->options[n].name) n++;
    return n;
}

static const char *task_name(int i)
{
    const struct lab_task *const *list;
    lab_tasks(&list);
    return list[i]->name;
}
loci_status lab_config_task(struct lab_config *c, const char *task, loci_error *e)
{
    const struct lab_task *t = lab_task(task), *const * list;
    if (!t) {
        const char *near = nearest(task, task_name, lab_tasks(&list));
        return loci_fail(e, LOCI_BAD_ARG, "task '%s' is unknown%s%s; 'loci lab list' has all", task,
                         near ? "; did you mean " : "", near ? near : "");
    }
    strcpy(c->task, task);
    for (int i = 0; i < LAB_OPTIONS; i++) c->option[i] = 0;
    for (int i = 0; t->options[i].name; i++) c->option[i] = t->options[i].default_value;
    return LOCI_OK;
}

static loci_status set_number(struct lab_config *c, const struct key *k, const char *value,
                              loci_error *e)
{
    char *end;
    const double x = strtod(value, &end);
    CHECK(e, end != value && !*end && x >= k->low && x <= k->high && (k->real || x == floor(x)),
          LOCI_BAD_ARG, "%s '%s' must be a %s from %.9g to %.9g", k->name, value,
          k->real ? "number" : "whole number", k->low, k->high);
    char *at = (char *)c + k->at;
    if (k->real) *(double *)at = x;
    else *(int *)at = (int)x;
    return LOCI_OK;
}

loci_status lab_config_set(struct lab_config *c, const char *key, const char *value, loci_error *e)
{
    for (int i = 0; i < COUNT(keys); i++)
        if (!strcmp(keys[i].name, key)) return set_number(c, &keys[i], value, e);
    if (!strcmp(key, "learned")) {
        for (int i = 0; i < COUNT(learned_words); i++)
            if (!strcmp(learned_words[i], value)) {
                c->learned = (enum lab_learned)i;
                return LOCI_OK;
            }
        return loci_fail(e, LOCI_BAD_ARG, "learned '%s' must be refuse, clamp, wrap or random",
                         value);
    }
    const struct lab_task *t = lab_task(c->task);
    for (int i = 0; t && t->options[i].name; i++) {
        if (strcmp(t->options[i].name, key) != 0) continue;
        char *end;
        const double x = strtod(value, &end);
        CHECK(e, end != value && !*end, LOCI_BAD_ARG, "%s '%s' must be a number", key, value);
        struct lab_problem p = lab_config_problem(c);
        TRY(lab_problem_set(&p, key, x, e));
        c->option[i] = x;
        return LOCI_OK;
    }
    naming = t;
    const char *near = nearest(key, key_name, COUNT(keys) + 1 + options_of(t));
    return loci_fail(e, LOCI_BAD_ARG, "unknown key '%s' for task %s%s%s", key, c->task,
                     near ? "; did you mean " : "", near ? near : "");
}

struct lab_problem lab_config_problem(const struct lab_config *c)
{
    struct lab_problem p = lab_problem(lab_task(c->task), c->length, c->corpus);
    memcpy(p.option, c->option, sizeof p.option);
    return p;
}

int lab_config_longest(const struct lab_config *c)
{
    const struct lab_problem p = lab_config_problem(c);
    struct lab_column list[LAB_COLUMNS];
    int most = p.task->longest(&p);
    for (int i = 0, n = p.task->columns(&p, list); i < n; i++)
        if (list[i].length > most) most = list[i].length;
    return most;
}

struct lab_shape lab_config_shape(const struct lab_config *c)
{
    const struct lab_problem p = lab_config_problem(c);
    return (struct lab_shape){ .arm = c->arm,
                               .layers = c->layers,
                               .dim = c->dim,
                               .heads = c->heads,
                               .kv_heads = c->kv_heads,
                               .ffn = c->ffn,
                               .vocabulary = p.task->vocabulary(&p),
                               .length = p.task->longest(&p),
                               .longest = lab_config_longest(c),
                               .learned = c->learned,
                               .std = c->std,
                               .embed_std = c->embed_std };
}

loci_status lab_config_check(const struct lab_config *c, loci_error *e)
{
    const struct lab_problem p = lab_config_problem(c);
    struct lab_model *m;
    CHECK(e, !p.task->corpus || c->corpus, LOCI_BAD_ARG, "task %s needs a corpus", c->task);
    if (p.task->check && !p.task->check(&p, e)) return LOCI_BAD_ARG;
    CHECK(e, c->tokens >= p.task->longest(&p), LOCI_BAD_ARG,
          "tokens %d: a step must have room for a sequence of %s, %d tokens", c->tokens, c->task,
          p.task->longest(&p));
    const struct lab_shape s = lab_config_shape(c);
    TRY(lab_model_open(&m, &s, NULL, e));
    lab_model_close(m);
    return LOCI_OK;
}

loci_status lab_config_match(struct lab_config *c, loci_error *e)
{
    struct lab_shape s = lab_config_shape(c);
    struct lab_model *m;
    TRY(lab_model_open(&m, &s, NULL, e));
    const int64_t own = lab_model_params(m, false);
    const int wide = lab_model_shape(m)->ffn;
    lab_model_close(m);
    s.arm = loci_pe_plain();
    s.ffn = 0;
    TRY(lab_model_open(&m, &s, NULL, e));
    const double more = (double)(own - lab_model_params(m, false)),
                 each = 2.0 * c->dim * c->layers * LAB_PAD;
    lab_model_close(m);
    const int ffn = wide - (int)floor(more / each + 0.5) * LAB_PAD;
    CHECK(e, ffn >= LAB_PAD, LOCI_BAD_ARG,
          "arm '%s' learns so much that no MLP is left to match nope", c->arm);
    c->ffn = ffn;
    return LOCI_OK;
}

/* ---- Identity -------------------------------------------------------------------------------- */

void lab_config_text(const struct lab_config *c, struct text *t)
{
    const struct lab_task *task = lab_task(c->task);
    text_add(t, "format=%d\narm=%s\ntask=%s\nsize=%s\n", LAB_FORMAT, c->arm, c->task, c->size);
    for (int i = 0; i < COUNT(keys); i++)
        text_add(t, "%s=%.17g\n", keys[i].name, value_of(c, &keys[i]));
    text_add(t, "learned=%s\n", learned_words[c->learned]);
    for (int i = 0; task->options[i].name; i++)
        text_add(t, "%s=%.17g\n", task->options[i].name, c->option[i]);
    if (task->corpus) text_add(t, "corpus=%s\n", c->corpus->sha256);
    struct lab_arm arm;
    char sha256[65];
    if (strchr(c->arm, ':') && !lab_arm_parse(&arm, c->arm, 2, 2, 4, NULL) && arm.bias.rank) {
        lab_bias_hash(&arm.bias, sha256);
        text_add(t, "bias=%s\n", sha256);
    }
}

void lab_config_id(const struct lab_config *c, char id[33])
{
    struct text t = { .s = NULL };
    char digits[65];
    lab_config_text(c, &t);
    sha256_of(t.s, t.n, digits);
    snprintf(id, 33, "%.32s", digits);
    text_free(&t);
}

/* A JSON object with the same lines. */
void lab_config_json(const struct lab_config *c, struct text *out)
{
    struct text t = { .s = NULL };
    lab_config_text(c, &t);
    text_add(out, "{");
    for (char *line = t.s, *end; line && *line; line = end + 1) {
        char *equals = strchr(line, '=');
        end = strchr(line, '\n');
        *end = *equals = 0;
        text_add(out, line == t.s ? "\n  " : ",\n  ");
        text_json(out, line);
        text_add(out, ": ");
        char *stop;
        const double x = strtod(equals + 1, &stop);
        if (equals[1] && !*stop) text_json_number(out, x);
        else text_json(out, equals + 1);
    }
    text_add(out, "\n}\n");
    text_free(&t);
}

loci_status lab_config_read(struct lab_config *c, const char *folder,
                            const struct lab_corpus *corpus, loci_error *e)
{
    char path[4096], id[33];
    json_t *root, *value;
    loci_error why = { .text = "" };
    *c = (struct lab_config){ .seed = 0 };
    snprintf(path, sizeof path, "%.4000s/config.json", folder);
    if (lab_json_read(&root, folder, "config.json", &why))
        return loci_fail(e, why.status, "%.200s: %.200s", path, why.text);
    const char *key, *arm = json_string_value(json_object_get(root, "arm")),
                     *task = json_string_value(json_object_get(root, "task")),
                     *size = json_string_value(json_object_get(root, "size")),
                     *text = json_string_value(json_object_get(root, "corpus"));
    loci_status status = LOCI_OK;
    if (!arm || !task || !size || strlen(arm) >= LAB_ARM
        || json_integer_value(json_object_get(root, "format")) != LAB_FORMAT)
        status = loci_fail(e, LOCI_UNSUPPORTED, "%s is no configuration of this lab", path);
    if (!status) status = lab_config_size(c, size, e);
    if (!status) status = lab_config_task(c, task, e);
    if (!status) {
        strcpy(c->arm, arm);
        c->corpus = lab_task(task)->corpus ? corpus : NULL;
        if (c->corpus && (!text || strcmp(text, corpus->sha256) != 0))
            status = loci_fail(e, LOCI_BAD_ARG,
                               "%s: the run was trained on another text; --corpus names it", path);
    }
    json_object_foreach(root, key, value)
    {
        static const char *const done[] = { "format", "arm", "task", "size", "corpus", "bias" };
        char number[32];
        bool known = status != LOCI_OK;
        for (int i = 0; i < COUNT(done); i++) known |= !strcmp(done[i], key);
        if (known) continue;
        snprintf(number, sizeof number, "%.17g", json_number_value(value));
        status =
            lab_config_set(c, key, json_is_string(value) ? json_string_value(value) : number, e);
    }
    json_decref(root);
    if (status) return status;
    lab_config_id(c, id); /* it names a folder */
    CHECK(e, !strcmp(folder + loci_path_folder(folder), id), LOCI_UNSUPPORTED,
          "%.200s is the configuration of run %s, not of this one", path, id);
    return LOCI_OK;
}

void lab_config_settings(const struct lab_config *c, char *text, size_t capacity)
{
    struct lab_config usual = { .learned = LAB_RANDOM, .variants = 1 };
    struct text t = { .s = NULL };
    const struct lab_task *task = lab_task(c->task);
    lab_config_size(&usual, c->size, NULL);
    for (int i = 0; i < COUNT(keys); i++) {
        const char *name = keys[i].name;
        if (!strcmp(name, "seed") || !strcmp(name, "steps") || !strcmp(name, "finetune")) continue;
        if (value_of(c, &keys[i]) != value_of(&usual, &keys[i]))
            text_add(&t, " %s=%.9g", name, value_of(c, &keys[i]));
    }
    if (c->learned != usual.learned) text_add(&t, " learned=%s", learned_words[c->learned]);
    for (int i = 0; task->options[i].name; i++)
        if (c->option[i] != task->options[i].default_value)
            text_add(&t, " %s=%.9g", task->options[i].name, c->option[i]);
    if (task->corpus && strcmp(c->corpus->name, "generated") != 0)
        text_add(&t, " corpus=%s", c->corpus->name);
    snprintf(text, capacity, "%s", t.s ? t.s + 1 : "");
    text_free(&t);
}

/* ---- Cost ------------------------------------------------------------------------------------ */

/* Forward and backward of a token at mean distance T / 2: 6 P + 6 d V + 6 N T d; a test a third.
 */
bool lab_change_tested(enum lab_change change, const struct lab_config *c, const struct lab_arm *a)
{
    const bool text = !strcmp(c->task, "text");
    return c->variants && lab_change_fits(change, a)
        && (text || (change != LAB_WINDOW && change != LAB_LOGN));
}
/* Rope as it is goes with them: what the steps alone do. */
bool lab_change_finetuned(enum lab_change change, const struct lab_config *c,
                          const struct lab_arm *a)
{
    return c->finetune && change <= LAB_YARN && lab_change_fits(LAB_PI, a);
}

struct lab_work_done lab_config_work(const struct lab_config *c)
{
    const struct lab_problem p = lab_config_problem(c);
    const double fixed = 12.0 * c->layers * c->dim * c->dim + c->dim * p.task->vocabulary(&p);
    const int longest = p.task->longest(&p), sequences = c->tokens / longest;
    struct lab_column list[LAB_COLUMNS];
    struct lab_arm arm;
    struct lab_work_done w = { .steps = c->steps };
    lab_arm_parse(&arm, c->arm, longest, lab_config_longest(c), c->dim / c->heads, NULL);
    for (enum lab_change k = 0; k < LAB_CHANGES; k++) /* a 20th of the steps, twice as long */
        w.steps += lab_change_finetuned(k, c, &arm) ? 0.1 * c->steps : 0;
    w.trained_flops =
        6 * (fixed + (double)c->layers * longest * c->dim) * sequences * longest * w.steps;
    for (int i = 0, n = p.task->columns(&p, list); i < n; i++) {
        int times = 1;
        for (enum lab_change k = LAB_PI; k < LAB_CHANGES && list[i].times > 1; k++)
            times += lab_change_tested(k, c, &arm);
        const double tokens = (double)list[i].length * list[i].count * times;
        w.tested += tokens;
        w.tested_flops += 2 * (fixed + (double)c->layers * list[i].length * c->dim) * tokens;
    }
    return w;
}

/* ---- Presets --------------------------------------------------------------------------------- */

static const struct lab_preset presets[] = {
    { "smoke",
      "does it work: seconds",
      "XS",
      LAB_FOUR_ARMS,
      1,
      1,
      0,
      { 0 },
      { { "text", 40 }, { "flipflop", 40 }, { "copy", 40 } } },
    { "coffee",
      "what separates them fastest: minutes",
      "S",
      LAB_ALL_ARMS,
      1,
      1,
      0,
      { 0 },
      { { "text", 600 }, { "flipflop", 500 } } },
    { "hour",
      "the core six; five seeds of the main eight, three learning rates",
      "S",
      LAB_ALL_ARMS,
      1,
      5,
      1,
      { 0.3, 1, 3 },
      { { "text", 1000 },
        { "flipflop", 500 },
        { "recall", 2000 },
        { "copy", 2500 },
        { "add", 2000 },
        { "count", 2000 } } },
    { "overnight",
      "all tasks, three seeds of all",
      "S",
      LAB_ALL_ARMS,
      3,
      3,
      1,
      { 0 },
      {
#define STEPS(task, steps) { #task, steps },
#include "lab/list.h"
      } },
    { "cluster",
      "size L, five seeds: for many machines",
      "L",
      LAB_ALL_ARMS,
      5,
      5,
      1,
      { 0 },
      { { "text", 10000 },
        { "flipflop", 2000 },
        { "recall", 10000 },
        { "mqar", 10000 },
        { "induct", 10000 },
        { "copy", 10000 },
        { "copy1", 5000 },
        { "reverse", 10000 },
        { "add", 10000 },
        { "addhint", 10000 },
        { "count", 10000 },
        { "selcopy", 5000 },
        { "passkey", 10000 },
        { "parity", 5000 },
        { "evenpairs", 5000 },
        { "modular", 10000 },
        { "permute", 10000 } } },
};
static const char *preset_name(int i) { return presets[i].name; }

int lab_presets(const struct lab_preset **list)
{
    *list = presets;
    return COUNT(presets);
}
const struct lab_preset *lab_preset(const char *name)
{
    for (int i = 0; i < COUNT(presets); i++)
        if (!strcmp(presets[i].name, name)) return &presets[i];
    return NULL;
}

void lab_runs_free(struct lab_runs *r)
{
    free(r->list);
    free(r->group);
    *r = (struct lab_runs){ .count = 0 };
}

static bool is_listed(const struct lab_runs *r, const struct lab_config *c)
{
    char id[33], other[33] = "";
    lab_config_id(c, id);
    for (int i = 0; i < r->count; i++) {
        const struct lab_config *x = &r->list[i];
        if (x->seed != c->seed || strcmp(x->arm, c->arm) || strcmp(x->task, c->task)) continue;
        lab_config_id(x, other);
        if (!strcmp(id, other)) return true;
    }
    return false;
}
static void add_run(struct lab_runs *r, const struct lab_config *c)
{
    if (is_listed(r, c)) return; /* an arm that was named twice */
    if (r->count == r->capacity) {
        struct lab_config *more = draw_alloc((size_t)(2 * r->capacity + 64), sizeof *more);
        if (r->count) memcpy(more, r->list, (size_t)r->count * sizeof *more);
        free(r->list);
        r->list = more;
        r->capacity = 2 * r->capacity + 64;
    }
    r->list[r->count++] = *c;
}

static void add_group(struct lab_runs *r, const struct lab_group *g)
{
    struct lab_group *more = draw_alloc((size_t)r->groups + 1, sizeof *more);
    if (r->groups) memcpy(more, r->group, (size_t)r->groups * sizeof *more);
    free(r->group);
    r->group = more;
    r->group[r->groups++] = *g;
}

/* Copies the next word of a list separated by commas into `word`.  False at its end.  Commas inside
 * an encoding text belong to it: a comma starts a new arm only if no '=' comes before the next
 * comma or colon. */
static bool next_word(const char **list, char *word, size_t capacity, bool arms)
{
    const char *p = *list;
    if (!p || !*p) return false;
    size_t n = strcspn(p, ",");
    while (arms && p[n] == ',') {
        const char *after = p + n + 1;
        if (after[strcspn(after, ",:+=@")] != '=') break;
        n += 1 + strcspn(after, ",");
    }
    snprintf(word, capacity, "%.*s", (int)n, p);
    *list = p + n + (p[n] == ',');
    return true;
}

/* A word longer than the capacity is an error: cut, it would be another word. */
static loci_status check_words(const char *list, size_t capacity, bool arms, const char *what,
                               loci_error *e)
{
    const size_t all = list ? strlen(list) + 1 : 1;
    char *word = draw_alloc(all, 1);
    bool fits = true;
    while (fits && next_word(&list, word, all, arms)) fits = strlen(word) < capacity;
    const loci_status status = fits ? LOCI_OK
                                    : loci_fail(e, LOCI_BAD_ARG,
                                                "%s '%.40s...' is longer than %d "
                                                "characters",
                                                what, word, (int)capacity - 1);
    free(word);
    return status;
}

static const char *const four[] = {
#define QUICK(text) text,
#include "lab/list.h"
    NULL
};

struct chosen {
    char text[LAB_ARM];
    bool chief;
};

/* The arms of the preset, or those that the user names. */
static int choose_arms(const struct lab_preset *p, const struct lab_wish *w, struct chosen **to)
{
    const struct lab_known *known;
    const int n = lab_known_arms(&known);
    const char *rest = w->arms;
    int count = 0, capacity = n;
    for (const char *c = rest ? rest : ""; *c; c++) capacity += *c == ',';
    struct chosen *list = draw_alloc((size_t)capacity + 1, sizeof *list);
    if (rest && !strcmp(rest, "chief")) {
        for (int i = 0; i < n; i++)
            if (known[i].chief) {
                strcpy(list[count].text, known[i].text);
                list[count++].chief = true;
            }
    } else if (rest) {
        while (next_word(&rest, list[count].text, LAB_ARM, true)) list[count++].chief = true;
    } else if (p && p->arms == LAB_FOUR_ARMS) {
        for (; four[count]; count++) {
            strcpy(list[count].text, four[count]);
            list[count].chief = true;
        }
    } else
        for (; count < n; count++) {
            strcpy(list[count].text, known[count].text);
            list[count].chief = known[count].chief;
        }
    *to = list;
    return count;
}

/* Papers claim that random positions help length extrapolation: arms for these claims. */
static const char *const drawn_tasks[] = { "copy", "reverse", "add", NULL };
static const char *const drawn_arms[] = {
#define DRAWN(text) text,
#include "lab/list.h"
    NULL
};

/* Runs of one arm on one task: seeds and learning rates. */
enum { RATE = 64 };
static loci_status add_seeds(struct lab_runs *r, struct lab_config c, int seeds,
                             const struct lab_preset *p, const struct lab_wish *w, loci_error *e)
{
    const double rate_of_size = c.rate;
    bool own_rate = w->grid != NULL;
    for (int i = 0; i < w->settings; i++) own_rate |= !strcmp(w->key[i], "rate");
    if (w->match) TRY(lab_config_match(&c, e));
    TRY(lab_config_check(&c, e));
    struct lab_group g = { .first = r->count };
    const char *grid = w->grid;
    char rate[RATE];
    const double *factor = p && !own_rate ? p->rates : (const double[]){ 0 };
    c.seed = 0;
    if (!grid && !factor[0]) add_run(r, &c);
    for (; *factor; factor++) {
        c.rate = rate_of_size * *factor;
        add_run(r, &c);
    }
    while (next_word(&grid, rate, sizeof rate, false)) {
        TRY(lab_config_set(&c, "rate", rate, e));
        add_run(r, &c);
    }
    g.tried = r->count - g.first;
    c.rate = g.tried == 1 ? c.rate : rate_of_size;
    c.waits = g.tried > 1;
    for (c.seed = 1; c.seed < seeds && g.tried; c.seed++) add_run(r, &c);
    g.count = r->count - g.first;
    add_group(r, &g);
    return LOCI_OK;
}

static loci_status add_task(struct lab_runs *r, const struct lab_preset *p,
                            const struct lab_wish *w, const char *task, int steps,
                            const struct chosen *arm, int arms, loci_error *e)
{
    struct lab_config c = { .learned = LAB_RANDOM, .variants = 1, .finetune = p ? p->finetune : 0 };
    TRY(lab_config_size(&c, w->size ? w->size : p ? p->size : "S", e));
    TRY(lab_config_task(&c, task, e));
    c.steps = w->steps ? w->steps : steps;
    if (w->scale > 0) c.steps = (int)fmax(1, floor(c.steps * w->scale + 0.5));
    if (w->length) c.length = w->length;
    c.corpus = lab_task(task)->corpus ? w->corpus : NULL;
    for (int i = 0; i < w->settings; i++) TRY(lab_config_set(&c, w->key[i], w->value[i], e));
    c.finetune = c.finetune && !strcmp(task, "text");
    for (int i = 0; i < arms; i++) {
        strcpy(c.arm, arm[i].text);
        const int seeds = w->seeds ? w->seeds : !p ? 1 : arm[i].chief ? p->chief_seeds : p->seeds;
        TRY(add_seeds(r, c, seeds, p, w, e));
    }
    bool drawn = !w->arms && p && p->arms == LAB_ALL_ARMS;
    for (int i = 0; drawn_tasks[i] && drawn; i++) {
        if (strcmp(drawn_tasks[i], task) != 0) continue;
        for (int k = 0; drawn_arms[k]; k++) {
            strcpy(c.arm, drawn_arms[k]);
            TRY(add_seeds(r, c, w->seeds ? w->seeds : p->seeds, p, w, e));
        }
    }
    return LOCI_OK;
}

static int usual_steps(const char *task)
{
    const struct lab_preset *p = lab_preset("overnight");
    for (int i = 0; p->tasks[i].name; i++)
        if (!strcmp(p->tasks[i].name, task)) return p->tasks[i].steps;
    return 1000;
}

int lab_wish_length(const struct lab_wish *w)
{
    const struct lab_preset *p = w->preset ? lab_preset(w->preset) : NULL;
    struct lab_config c = { .length = 0 };
    lab_config_size(&c, w->size ? w->size : p ? p->size : "S", NULL);
    for (int i = 0; i < w->settings; i++)
        if (!strcmp(w->key[i], "length")) return atoi(w->value[i]);
    return w->length ? w->length : c.length;
}

loci_status lab_runs_make(struct lab_runs *r, const struct lab_wish *w, loci_error *e)
{
    const struct lab_preset *p = w->preset ? lab_preset(w->preset) : NULL;
    struct chosen *arm;
    *r = (struct lab_runs){ .count = 0 };
    if (w->preset && !p) {
        const char *near = nearest(w->preset, preset_name, COUNT(presets));
        return loci_fail(e, LOCI_BAD_ARG,
                         "preset '%s' is none of smoke, coffee, hour, overnight, cluster%s%s",
                         w->preset, near ? "; did you mean " : "", near ? near : "");
    }
    CHECK(e, p || (w->arms && w->tasks), LOCI_BAD_ARG, "what runs is a preset, or arms and tasks");
    TRY(check_words(w->arms, LAB_ARM, true, "arm", e));
    TRY(check_words(w->tasks, LAB_NAME, false, "task", e));
    TRY(check_words(w->grid, RATE, false, "learning rate", e));
    const int arms = choose_arms(p, w, &arm);
    loci_status status = LOCI_OK;
    char task[LAB_NAME];
    const char *tasks = w->tasks;
    if (tasks)
        while (!status && next_word(&tasks, task, sizeof task, false)) {
            int steps = usual_steps(task);
            for (int i = 0; p && p->tasks[i].name; i++)
                if (!strcmp(p->tasks[i].name, task)) steps = p->tasks[i].steps;
            status = add_task(r, p, w, task, steps, arm, arms, e);
        }
    else
        for (int i = 0; !status && p->tasks[i].name; i++)
            status = add_task(r, p, w, p->tasks[i].name, p->tasks[i].steps, arm, arms, e);
    free(arm);
    if (status) lab_runs_free(r);
    return status;
}
