/* SPDX-License-Identifier: MIT */
/* lab_data.c -- the sequences that other trainers get, by `loci lab data` and by the library
 * loci-lab, are those of the lab's own batches, for every task and column. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "lab/data.h"
#include "lab/train.h"

enum { SOME = 6 }; /* sequences of a column that are compared */

struct arrays {
    int32_t *token, *target;
    int64_t *starts;
};
static struct arrays make_arrays(int count, int longest)
{
    const size_t room = (size_t)count * (size_t)longest;
    return (struct arrays){ malloc(room * sizeof(int32_t)), malloc(room * sizeof(int32_t)),
                            malloc(((size_t)count + 1) * sizeof(int64_t)) };
}
static void free_arrays(struct arrays *a)
{
    free(a->token);
    free(a->target);
    free(a->starts);
}

static bool same(const struct arrays *a, const struct lab_batch *b)
{
    const size_t bytes = (size_t)b->rows * sizeof *b->token;
    return b->sequences > 0
        && !memcmp(a->starts, b->starts, ((size_t)b->sequences + 1) * sizeof *b->starts)
        && !memcmp(a->token, b->token, bytes) && !memcmp(a->target, b->target, bytes);
}

static void compare(const struct lab_config *c, struct lab_model *m, const loci_lab *lab)
{
    const struct lab_problem p = lab_config_problem(c);
    const int longest = p.task->longest(&p), count = c->tokens / longest;
    struct lab_batch b = { .sequences = 0 };
    struct lab_column list[LAB_COLUMNS];
    loci_error e = { .text = "" };
    for (int step = 0; step < 3; step++) {
        struct arrays a = make_arrays(count, longest);
        lab_train_batch(c, m, step, &b);
        lab_data_draw(&p, NULL, (uint64_t)c->seed, step, 0, count, a.token, a.target, a.starts);
        CHECK_THAT(same(&a, &b), "%s: step %d", c->task, step);
        memset(a.token, 0, sizeof *a.token);
        CHECK_THAT(!loci_lab_train(lab, (uint64_t)c->seed, step, count, a.token, a.target, a.starts,
                                   &e),
                   "%s", e.text);
        CHECK_THAT(same(&a, &b), "%s: step %d by the library", c->task, step);
        free_arrays(&a);
    }
    for (int i = 0, n = p.task->columns(&p, list); i < n; i++) {
        struct arrays a = make_arrays(SOME, list[i].length);
        const int first = list[i].count - SOME;
        struct lab_column found[LAB_COLUMNS];
        const struct lab_column *column = lab_data_column(&p, list[i].name, found, &e);
        if (!CHECK_THAT(column, "%s", e.text)) continue;
        lab_test_batch(c, m, &list[i], first, SOME, &b);
        lab_data_draw(&p, column, 0, 0, first, SOME, a.token, a.target, a.starts);
        CHECK_THAT(same(&a, &b), "%s: column %s", c->task, list[i].name);
        memset(a.token, 0, sizeof *a.token);
        CHECK_THAT(!loci_lab_test(lab, i, first, SOME, a.token, a.target, a.starts, &e), "%s",
                   e.text);
        CHECK_THAT(same(&a, &b), "%s: column %s by the library", c->task, list[i].name);
        const struct lab_column own = lab_validation(column);
        lab_test_batch(c, m, &own, first, SOME, &b);
        CHECK_THAT(!same(&a, &b), "%s: %s has its own sequences", c->task, own.name);
        CHECK_THAT(!loci_lab_validation(lab, i, first, SOME, a.token, a.target, a.starts, &e), "%s",
                   e.text);
        CHECK_THAT(same(&a, &b), "%s: %s by the library", c->task, own.name);
        CHECK_SAYS(loci_lab_test(lab, i, first + 1, SOME, a.token, a.target, a.starts, &e),
                   LOCI_BAD_ARG, &e, "has sequences 0 ..", c->task);
        free_arrays(&a);
    }
    CHECK_SAYS(loci_lab_test(lab, 99, 0, 1, NULL, NULL, NULL, &e), LOCI_BAD_ARG, &e,
               "column 99 must be", c->task);
    CHECK_THAT(!lab_data_column(&p, "none", list, &e) && strstr(e.text, list[0].name), "%s",
               e.text);
    lab_batch_free(&b);
}

/* The library's model starts as the lab's. */
static void compare_start(struct lab_model *m, const struct lab_config *c)
{
    const struct lab_tensor *t;
    const int n = lab_model_tensors(m, &t);
    const float *w = lab_model_list(m, LAB_WEIGHTS);
    lab_model_init(m, (uint64_t)c->seed);
    for (int i = 0; i < n; i++) {
        if (strcmp(t[i].name, "layers.1.w1") && strcmp(t[i].name, "embed")) continue;
        const double std = strcmp(t[i].name, "embed") ? c->std : c->embed_std;
        float *x = malloc((size_t)(t[i].rows * t[i].cols) * sizeof *x);
        loci_lab_normal((uint64_t)c->seed, t[i].name, std, t[i].rows * t[i].cols, x);
        bool equal = true;
        for (ptrdiff_t r = 0; r < t[i].rows; r++)
            equal &= !memcmp(w + t[i].at + r * t[i].stride, x + r * t[i].cols,
                             (size_t)t[i].cols * sizeof *x);
        CHECK_THAT(equal, "%s of %s", t[i].name, c->task);
        free(x);
    }
}

static json_t *about(const loci_lab *lab)
{
    const size_t n = loci_lab_about(lab, NULL, 0);
    char *text = malloc(n + 1);
    json_error_t error = { .text = "" };
    CHECK_THAT(loci_lab_about(lab, text, n + 1) == n && strlen(text) == n, "%zu bytes", n);
    json_t *root = json_loads(text, 0, &error);
    CHECK_THAT(root, "%s: %.100s", error.text, text);
    free(text);
    return root;
}

static void check_about(const struct lab_config *c, const loci_lab *lab)
{
    const struct lab_problem p = lab_config_problem(c);
    struct lab_column list[LAB_COLUMNS];
    json_t *root = about(lab);
    const int n = p.task->columns(&p, list);
    const json_t *columns = json_object_get(root, "columns");
    CHECK_THAT(json_integer_value(json_object_get(root, "vocabulary")) == p.task->vocabulary(&p),
               "%s", c->task);
    CHECK_THAT(json_integer_value(json_object_get(root, "longest")) == p.task->longest(&p), "%s",
               c->task);
    CHECK_THAT((int)json_array_size(columns) == n, "%s", c->task);
    for (int i = 0; i < n; i++) {
        const json_t *one = json_array_get(columns, (size_t)i);
        CHECK_THAT(!strcmp(json_string_value(json_object_get(one, "name")), list[i].name)
                       && json_integer_value(json_object_get(one, "count")) == list[i].count
                       && json_is_true(json_object_get(one, "trained")) == list[i].trained,
                   "%s: %s", c->task, list[i].name);
    }
    json_decref(root);
}

/* The list of sizes and tasks is that of the lab. */
static void check_list(void)
{
    json_t *root = about(NULL);
    const char *name;
    json_t *one;
    int count = 0;
    json_object_foreach(json_object_get(root, "sizes"), name, one)
    {
        struct lab_config c = { .seed = 0 };
        CHECK_THAT(!lab_config_size(&c, name, NULL)
                       && json_integer_value(json_object_get(one, "layers")) == c.layers
                       && json_integer_value(json_object_get(one, "dim")) == c.dim
                       && json_integer_value(json_object_get(one, "heads")) == c.heads
                       && json_integer_value(json_object_get(one, "length")) == c.length
                       && json_integer_value(json_object_get(one, "tokens")) == c.tokens
                       && json_real_value(json_object_get(one, "rate")) == c.rate,
                   "size %s", name);
        count++;
    }
    CHECK_THAT(count == 4, "%d sizes", count);
    const struct lab_task *const *task;
    const int tasks = lab_tasks(&task);
    CHECK_THAT((int)json_object_size(json_object_get(root, "tasks")) == tasks, "%d tasks", tasks);
    for (int i = 0; i < tasks; i++) {
        struct lab_wish w = { .arms = "nope", .tasks = task[i]->name };
        struct lab_corpus corpus;
        struct lab_runs runs;
        CHECK_THAT(!lab_corpus_open(&corpus, NULL, lab_corpus_bytes(64), NULL), "corpus");
        w.corpus = &corpus;
        CHECK_THAT(!lab_runs_make(&runs, &w, NULL), "%s", task[i]->name);
        one = json_object_get(json_object_get(root, "tasks"), task[i]->name);
        CHECK_THAT(json_integer_value(json_object_get(one, "steps")) == runs.list[0].steps,
                   "steps of %s", task[i]->name);
        lab_runs_free(&runs);
        lab_corpus_close(&corpus);
    }
    json_decref(root);
}

int main(void)
{
    const struct lab_task *const *task;
    struct lab_corpus corpus;
    loci_error e = { .text = "" };
    loci_lab *lab;
    CHECK_THAT(!lab_corpus_open(&corpus, NULL, lab_corpus_bytes(64), &e), "%s", e.text);
    for (int i = 0, n = lab_tasks(&task); i < n; i++) {
        struct lab_config c = { .seed = 3, .steps = 10, .learned = LAB_RANDOM, .variants = 1 };
        struct lab_model *m;
        strcpy(c.arm, "nope");
        lab_config_size(&c, "S", NULL);
        lab_config_task(&c, task[i]->name, NULL);
        c.corpus = task[i]->corpus ? &corpus : NULL;
        const struct lab_shape s = lab_config_shape(&c);
        if (!CHECK_THAT(!lab_model_open(&m, &s, NULL, &e), "%s", e.text)) continue;
        if (CHECK_THAT(!loci_lab_open(&lab, task[i]->name, c.length, NULL, &e), "%s", e.text)) {
            compare(&c, m, lab);
            check_about(&c, lab);
            compare_start(m, &c);
        }
        loci_lab_close(lab);
        lab_model_close(m);
    }
    check_list();

    /* options, and what is refused */
    CHECK_SAYS(loci_lab_open(&lab, "cpy", 32, NULL, &e), LOCI_BAD_ARG, &e, "none of text, ");
    CHECK_THAT(!lab, "nothing is open");
    CHECK_SAYS(loci_lab_open(&lab, "text", 32, "/nowhere", &e), LOCI_BAD_ARG, &e, "no such file");
    CHECK_THAT(!loci_lab_open(&lab, "copy", 32, NULL, &e), "%s", e.text);
    CHECK_SAYS(loci_lab_set(lab, "length", 3, &e), LOCI_BAD_ARG, &e, "has no option");
    CHECK_SAYS(loci_lab_set(lab, "most", 3, &e), LOCI_BAD_ARG, &e, "must be a whole number");
    CHECK_THAT(!loci_lab_set(lab, "most", 6, &e), "%s", e.text);
    json_t *root = about(lab);
    CHECK_THAT(json_integer_value(json_object_get(root, "longest")) == 14, "2 x 6 + 2 tokens");
    json_decref(root);
    char word[16];
    loci_lab_show(lab, 1, word);
    CHECK_THAT(!strcmp(word, "SEP"), "%s", word);
    loci_lab_close(lab);
    CHECK_SAYS(loci_lab_open(&lab, "text", 1000000, NULL, &e), LOCI_BAD_ARG, &e, "generated bytes");
    loci_lab_close(lab);
    lab_corpus_close(&corpus);
    return harness_end();
}
