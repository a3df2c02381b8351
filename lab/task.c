/* SPDX-License-Identifier: MIT */
/* task.c -- the list of tasks, their options, and the keys of their sequences. */
#include "lab/task.h"

#include <stdarg.h>
#include <string.h>

#include "lab/draw.h"

#define TASK(name) extern const struct lab_task lab_task_##name;
#include "lab/tasks/list.h"
#undef TASK

static const struct lab_task *const tasks[] = {
#define TASK(name) &lab_task_##name,
#include "lab/tasks/list.h"
#undef TASK
};
enum { TASKS = sizeof tasks / sizeof *tasks };

int lab_tasks(const struct lab_task *const **list)
{
    *list = tasks;
    return TASKS;
}

const struct lab_task *lab_task(const char *name)
{
    for (int i = 0; i < TASKS; i++)
        if (!strcmp(tasks[i]->name, name)) return tasks[i];
    return NULL;
}

/* ---- Errors ---------------------------------------------------------------------------------- */

/* Names come from command lines and files: characters that control a terminal become "?". */
static void fail(loci_error *e, loci_status status, const char *format, va_list args)
{
    if (!e) return;
    e->status = status;
    vsnprintf(e->text, sizeof e->text, format, args);
    for (char *c = e->text; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f) *c = '?';
}

bool lab_refuse(loci_error *e, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail(e, LOCI_BAD_ARG, format, args);
    va_end(args);
    return false;
}

bool lab_check_length(const struct lab_problem *p, loci_error *e)
{
    return (p->length >= LAB_SHORTEST && p->length <= LAB_LONGEST)
        || lab_refuse(e, "%s: length %d must be %d .. %d", p->task->name, p->length, LAB_SHORTEST,
                      LAB_LONGEST);
}

bool lab_check_corpus(const struct lab_problem *p, ptrdiff_t test, loci_error *e)
{
    if (!lab_check_length(p, e)) return false;
    if (!p->corpus) return lab_refuse(e, "%s: needs a corpus", p->task->name);
    /* the test part is a 20th, rounded up */
    return p->corpus->count - p->corpus->tests >= test
        || lab_refuse(e,
                      "%s: the corpus %s has %td bytes, and length %d needs at least %td: its "
                      "last 5 %% are for tests",
                      p->task->name, p->corpus->name, p->corpus->count, p->length,
                      20 * (test - 1) + 1);
}

/* ---- Options --------------------------------------------------------------------------------- */

struct lab_problem lab_problem(const struct lab_task *task, int length,
                               const struct lab_corpus *corpus)
{
    struct lab_problem p = { .task = task, .length = length, .corpus = corpus };
    for (int i = 0; task->options[i].name; i++) p.option[i] = task->options[i].default_value;
    return p;
}

static loci_status unknown(const struct lab_task *task, const char *option, loci_error *e)
{
    char names[LAB_OPTIONS * LAB_NAME] = "";
    size_t used = 0;
    for (const struct lab_option *o = task->options; o->name; o++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                 o == task->options ? "" : ", ", o->name);
    if (used) lab_refuse(e, "%s has no option %.80s; it has %s", task->name, option, names);
    else lab_refuse(e, "%s has no option %.80s, nor any other", task->name, option);
    return LOCI_BAD_ARG;
}

loci_status lab_problem_set(struct lab_problem *p, const char *option, double value, loci_error *e)
{
    const struct lab_option *o = p->task->options;
    while (o->name && strcmp(o->name, option)) o++;
    if (!o->name) return unknown(p->task, option, e);
    /* so written that NaN is refused, too */
    const bool inside = value >= o->min && value <= o->max;
    if (!inside || (o->whole && value != (double)(int)value)) {
        lab_refuse(e, "%s: %s %g must be a %snumber in %g .. %g", p->task->name, o->name, value,
                   o->whole ? "whole " : "", o->min, o->max);
        return LOCI_BAD_ARG;
    }
    p->option[o - p->task->options] = value;
    return LOCI_OK;
}

/* ---- Keys ------------------------------------------------------------------------------------ */

static uint64_t stir(uint64_t key, uint64_t with)
{
    return loci_scramble((key ^ with) + 0x9e3779b97f4a7c15u);
}

uint64_t lab_stream(uint64_t seed, const char *name)
{
    uint64_t key = stir(0, seed);
    for (const char *c = name; *c; c++) key = stir(key, (unsigned char)*c);
    return key;
}

/* Training has the even keys and tests the odd ones, so that no key is in both. */
uint64_t lab_train_key(const struct lab_problem *p, uint64_t seed, int64_t step, int row)
{
    const uint64_t key = stir(lab_stream(seed, p->task->name), (uint64_t)step);
    return stir(key, (uint64_t)row) & ~(uint64_t)1;
}
uint64_t lab_test_key(const struct lab_problem *p, const char *column, int row)
{
    const uint64_t key = lab_stream(lab_stream(0, p->task->name), column);
    return stir(key, (uint64_t)row) | 1;
}

/* ---- Columns --------------------------------------------------------------------------------- */

struct lab_column lab_column_of(double times, int length, int count, enum lab_metric metric,
                                const char *format, ...)
{
    struct lab_column c = { .times = times, .length = length, .count = count, .metric = metric };
    va_list args;
    va_start(args, format);
    vsnprintf(c.name, sizeof c.name, format, args);
    va_end(args);
    return c;
}

struct lab_column lab_validation(const struct lab_column *of)
{
    struct lab_column c = *of;
    snprintf(c.name, sizeof c.name, "validation %.20s", of->name);
    c.validation = true;
    return c;
}

int lab_sizes(struct lab_column *list, int most, int (*tokens)(int n), int count,
              enum lab_metric metric)
{
    static const int twentieths[] = { 10, 20, 22, 25, 30, 40 };
    int columns = 0, n = 0;
    list[columns++] = lab_column_of(1, tokens(most), count, metric, "as trained");
    list[0].trained = true;
    for (size_t i = 0; i < sizeof twentieths / sizeof *twentieths; i++) {
        const int next = most * twentieths[i] / 20;
        n = next > n ? next : n + 1;
        list[columns] = lab_column_of((double)n / most, tokens(n), count, metric, "n=%d", n);
        list[columns++].value[0] = n;
    }
    return columns;
}

int lab_gap(struct lab_draws *d, const int32_t *first, int places)
{
    enum { WHOLE = 1 << 20 };
    int sum = 0, at = 0;
    for (int g = 0; g < places; g++)
        if (!first[2 * g]) sum += WHOLE / (1 + g);
    for (int left = lab_pick(d, sum);; at++) {
        if (first[2 * at]) continue;
        left -= WHOLE / (1 + at);
        if (left < 0) return at;
    }
}

void lab_show_byte(unsigned char byte, char text[16])
{
    if (byte == '\n') snprintf(text, 16, "\\n");
    else if (byte < 0x20 || byte >= 0x7f) snprintf(text, 16, "\\x%02x", byte);
    else snprintf(text, 16, "%c", byte);
}
