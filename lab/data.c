/* SPDX-License-Identifier: MIT */
/* data.c -- see data.h. */
#include "lab/data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw/text.h"
#include "lab/config.h" /* LAB_FORMAT alone: its functions are not in the library */
#include "lab/corpora.h"
#include "lab/draw.h"

enum { STEPS_OF_OTHERS = 1000 };

/* ---- Sequences ------------------------------------------------------------------------------- */

ptrdiff_t lab_data_draw(const struct lab_problem *p, const struct lab_column *c, uint64_t seed,
                        int64_t step, int first, int count, int32_t *token, int32_t *target,
                        int64_t *starts)
{
    ptrdiff_t rows = 0;
    starts[0] = 0;
    for (int i = 0; i < count; i++) {
        const int row = first + i;
        const uint64_t key = c ? lab_test_key(p, c->name, row) : lab_train_key(p, seed, step, row);
        rows += p->task->draw(p, c, key, row, token + rows, target + rows);
        starts[i + 1] = rows;
    }
    return rows;
}

const struct lab_column *lab_data_column(const struct lab_problem *p, const char *name,
                                         struct lab_column list[LAB_COLUMNS], loci_error *e)
{
    struct text names = { .s = NULL };
    const int n = p->task->columns(p, list);
    for (int i = 0; i < n; i++) {
        if (!strcmp(list[i].name, name)) {
            text_free(&names);
            return &list[i];
        }
        text_add(&names, "%s'%s'", i ? ", " : "", list[i].name);
    }
    lab_refuse(e, "%s has no column '%.40s'; it has %.300s", p->task->name, name, names.s);
    text_free(&names);
    return NULL;
}

int lab_data_spans(int border[LAB_SPANS], int length, int trained)
{
    const int quarter = trained - trained / 4;
    int n = 0;
    for (int k = 0, from = 0; from < length && n < LAB_SPANS;) {
        int end = (int)floor(pow(2, 0.5 * k) + 1e-9);
        if (from < quarter && end > quarter) end = quarter;
        else k++;
        if (end <= from) continue;
        border[n++] = from = end < length ? end : length;
    }
    return n;
}

/* ---- The library ----------------------------------------------------------------------------- */

struct loci_lab {
    struct lab_problem problem;
    struct lab_corpus corpus;
};

loci_status loci_lab_open(loci_lab **to, const char *name, int length, const char *corpus,
                          loci_error *e)
{
    const struct lab_task *task = lab_task(name);
    *to = NULL;
    if (!task) {
        const struct lab_task *const *list;
        struct text names = { .s = NULL };
        for (int i = 0, n = lab_tasks(&list); i < n; i++)
            text_add(&names, "%s%s", i ? ", " : "", list[i]->name);
        lab_refuse(e, "task '%.40s' is none of %.300s", name, names.s);
        text_free(&names);
        return LOCI_BAD_ARG;
    }
    loci_lab *lab = calloc(1, sizeof *lab);
    if (!lab) {
        lab_refuse(e, "%s: no memory", name);
        return LOCI_NO_MEMORY;
    }
    if (task->corpus) {
        const size_t bytes = lab_corpus_bytes(length > 0 ? length : 1);
        const loci_status status = lab_corpus_find(&lab->corpus, corpus, bytes, e);
        if (status) {
            free(lab);
            return status;
        }
    }
    lab->problem = lab_problem(task, length, task->corpus ? &lab->corpus : NULL);
    *to = lab;
    return LOCI_OK;
}
void loci_lab_close(loci_lab *lab)
{
    if (!lab) return;
    lab_corpus_close(&lab->corpus);
    free(lab);
}

loci_status loci_lab_set(loci_lab *lab, const char *option, double value, loci_error *e)
{
    return lab_problem_set(&lab->problem, option, value, e);
}
loci_status loci_lab_check(const loci_lab *lab, loci_error *e)
{
    const struct lab_problem *p = &lab->problem;
    return p->task->check && !p->task->check(p, e) ? LOCI_BAD_ARG : LOCI_OK;
}

/* ---- What there is --------------------------------------------------------------------------- */

static void add_number(struct text *t, const char *key, double value)
{
    text_add(t, "\"%s\": ", key);
    text_json_number(t, value);
}

static int steps_of(const char *task)
{
    static const struct {
        const char *task;
        int steps;
    } list[] = {
#define STEPS(task, steps) { #task, steps },
#include "lab/list.h"
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!strcmp(list[i].task, task)) return list[i].steps;
    return STEPS_OF_OTHERS;
}

static void add_sizes(struct text *t)
{
    static const struct {
        const char *name;
        int layers, dim, heads, length, tokens;
        double rate;
    } list[] = {
#define SIZE(name, ...) { name, __VA_ARGS__ },
#include "lab/list.h"
    };
    text_add(t, "\"sizes\": {");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        text_add(t,
                 "%s\"%s\": {\"layers\": %d, \"dim\": %d, \"heads\": %d, \"length\": %d, "
                 "\"tokens\": %d, ",
                 i ? ", " : "", list[i].name, list[i].layers, list[i].dim, list[i].heads,
                 list[i].length, list[i].tokens);
        add_number(t, "rate", list[i].rate);
        text_add(t, "}");
    }
    text_add(t, "}");
}

static void add_tasks(struct text *t)
{
    const struct lab_task *const *list;
    text_add(t, "\"tasks\": {");
    for (int i = 0, n = lab_tasks(&list); i < n; i++) {
        text_add(t, "%s\"%s\": {\"brief\": ", i ? ", " : "", list[i]->name);
        text_json(t, list[i]->brief);
        text_add(t, ", \"steps\": %d, \"corpus\": %s, \"options\": {", steps_of(list[i]->name),
                 list[i]->corpus ? "true" : "false");
        for (const struct lab_option *o = list[i]->options; o->name; o++) {
            text_add(t, "%s", o == list[i]->options ? "" : ", ");
            add_number(t, o->name, o->default_value);
        }
        text_add(t, "}}");
    }
    text_add(t, "}");
}

static void add_columns(struct text *t, const struct lab_problem *p)
{
    static const char *const metrics[] = {
        [LAB_LOSS] = "loss", [LAB_ACCURACY] = "accuracy", [LAB_EXACT] = "exact"
    };
    struct lab_column list[LAB_COLUMNS];
    text_add(t, "\"columns\": [");
    for (int i = 0, n = p->task->columns(p, list); i < n; i++) {
        text_add(t, "%s{\"name\": ", i ? ", " : "");
        text_json(t, list[i].name);
        text_add(t, ", ");
        add_number(t, "times", list[i].times);
        text_add(t, ", \"length\": %d, \"count\": %d, \"trained\": %s, \"metric\": \"%s\"}",
                 list[i].length, list[i].count, list[i].trained ? "true" : "false",
                 metrics[list[i].metric]);
    }
    text_add(t, "], \"spans\": [");
    for (int i = 0, n = p->task->columns(p, list); i < n; i++) {
        int border[LAB_SPANS];
        text_add(t, "%s[", i ? ", " : "");
        for (int k = 0, m = lab_data_spans(border, list[i].length, p->length); k < m; k++)
            text_add(t, "%s%d", k ? ", " : "", border[k]);
        text_add(t, "]");
    }
    text_add(t, "]");
}

size_t loci_lab_about(const loci_lab *lab, char *to, size_t capacity)
{
    struct text t = { .s = NULL };
    text_add(&t, "{");
    if (lab) {
        const struct lab_problem *p = &lab->problem;
        text_add(&t, "\"task\": \"%s\", \"vocabulary\": %d, \"longest\": %d, ", p->task->name,
                 p->task->vocabulary(p), p->task->longest(p));
        struct lab_column list[LAB_COLUMNS];
        p->task->columns(p, list);
        add_number(&t, "learned", lab_learned_bound(list[0].metric));
        text_add(&t, ", \"options\": {");
        for (int i = 0; p->task->options[i].name; i++) {
            text_add(&t, "%s", i ? ", " : "");
            add_number(&t, p->task->options[i].name, p->option[i]);
        }
        text_add(&t, "}, \"corpus\": ");
        if (p->corpus) {
            text_add(&t, "{\"name\": ");
            text_json(&t, p->corpus->name);
            text_add(&t, ", \"sha256\": \"%s\", ", p->corpus->sha256);
            add_number(&t, "unigram", p->corpus->unigram);
            text_add(&t, "}, ");
        } else text_add(&t, "null, ");
        add_columns(&t, p);
    } else {
        const struct lab_source *text;
        text_add(&t, "\"format\": %d, \"texts\": [\"generated\"", LAB_FORMAT);
        for (int i = 0, n = lab_sources(&text); i < n; i++) text_add(&t, ", \"%s\"", text[i].name);
        text_add(&t, "], ");
        add_sizes(&t);
        text_add(&t, ", ");
        add_tasks(&t);
    }
    text_add(&t, "}");
    const size_t n = t.n;
    if (capacity) snprintf(to, capacity, "%s", t.s);
    text_free(&t);
    return n;
}

/* ---- Draws ----------------------------------------------------------------------------------- */

loci_status loci_lab_train(const loci_lab *lab, uint64_t seed, int64_t step, int count,
                           int32_t *tokens, int32_t *targets, int64_t *starts, loci_error *e)
{
    const loci_status status = loci_lab_check(lab, e);
    if (!status) lab_data_draw(&lab->problem, NULL, seed, step, 0, count, tokens, targets, starts);
    return status;
}
static loci_status draw_column(const loci_lab *lab, bool validation, int column, int first,
                               int count, int32_t *tokens, int32_t *targets, int64_t *starts,
                               loci_error *e)
{
    struct lab_column list[LAB_COLUMNS];
    const loci_status status = loci_lab_check(lab, e);
    if (status) return status;
    const int n = lab->problem.task->columns(&lab->problem, list);
    if (column < 0 || column >= n) {
        lab_refuse(e, "%s: column %d must be 0 .. %d", lab->problem.task->name, column, n - 1);
        return LOCI_BAD_ARG;
    }
    if (first < 0 || count < 0 || count > list[column].count - first) {
        lab_refuse(e, "%s: column '%s' has sequences 0 .. %d", lab->problem.task->name,
                   list[column].name, list[column].count - 1);
        return LOCI_BAD_ARG;
    }
    const struct lab_column own = validation ? lab_validation(&list[column]) : list[column];
    lab_data_draw(&lab->problem, &own, 0, 0, first, count, tokens, targets, starts);
    return LOCI_OK;
}
loci_status loci_lab_test(const loci_lab *lab, int column, int first, int count, int32_t *tokens,
                          int32_t *targets, int64_t *starts, loci_error *e)
{
    return draw_column(lab, false, column, first, count, tokens, targets, starts, e);
}
loci_status loci_lab_validation(const loci_lab *lab, int column, int first, int count,
                                int32_t *tokens, int32_t *targets, int64_t *starts, loci_error *e)
{
    return draw_column(lab, true, column, first, count, tokens, targets, starts, e);
}

void loci_lab_show(const loci_lab *lab, int token, char text[16])
{
    lab->problem.task->show(&lab->problem, token, text);
}

void loci_lab_normal(uint64_t seed, const char *name, double std, ptrdiff_t count, float *to)
{
    const uint64_t stream = lab_stream(seed, name);
    for (ptrdiff_t i = 0; i < count; i++) to[i] = (float)(std * loci_normal(stream, (uint64_t)i));
}
