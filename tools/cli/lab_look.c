/* SPDX-License-Identifier: MIT */
/* lab_look.c -- `loci lab report` and `loci lab sample`: results, and answers of a model. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "platform/file.h"
#include "cli/lab.h"
#include "cli/terminal.h"
#include "models/json.h"
#include "lab/corpora.h"
#include "lab/decode.h"
#include "lab/pictures.h"
#include "lab/report.h"
#include "lab/store.h"
#include "lab/train.h"

/* ---- report ---------------------------------------------------------------------------------- */

enum { REPORT_OUTPUT, REPORT_SVG, REPORT_TEXT, REPORT_CSV, REPORT_JSON, REPORT_CORPUS };
static const struct flag report_flags[] = {
    [REPORT_OUTPUT] = { "output", "o", "FILE:@file",
                        "write an HTML page with tables and pictures, without scripts" },
    [REPORT_SVG] = { "svg", NULL, "DIR:@folder",
                     "write the pictures of the page to this folder, one file each" },
    [REPORT_TEXT] = { "text", NULL, NULL,
                      "print tables and verdicts as text (default without -o)" },
    [REPORT_CSV] = { "csv", NULL, NULL,
                     "print a line for each arm, variant, task, seed and column" },
    [REPORT_JSON] = { "json", NULL, NULL, "print every number of the page" },
    [REPORT_CORPUS] = { "corpus", NULL, "TEXT:generated|python|jargon|kjv|@file",
                        "the text of the runs, for their pictures (default: the generated one)" },
    { NULL, NULL, NULL, NULL }
};

/* "text-loss-against-position-2": letters and digits of the title, with a number if several titles
 * are equal. */
static void picture_name(const char *title, int number, char name[128])
{
    size_t n = 0;
    for (const char *p = title; *p && n < 100; p++) {
        const bool word =
            (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9');
        if (word) name[n++] = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
        else if (n && name[n - 1] != '-') name[n++] = '-';
    }
    while (n && name[n - 1] == '-') n--;
    if (number > 1) snprintf(name + n, 128 - n, "-%d", number);
    else name[n] = 0;
}

static int write_pictures(const struct report *r, const char *dir)
{
    char(*taken)[128] = NULL;
    int count = 0, code = EXIT_DONE;
    if (!loci_folder_make(dir) && errno != EEXIST)
        return fail("lab report: %s: cannot make this folder: %s", dir, strerror(errno));
    for (int s = 0; s < r->sections && !code; s++)
        for (int b = 0; b < r->section[s].blocks && !code; b++) {
            const struct report_block *block = &r->section[s].block[b];
            const struct figure *f = block->lent ? block->lent : &block->figure;
            struct text t = { .s = NULL };
            char path[LAB_PATH], name[128];
            if (!f->title[0] || f->kind == FIGURE_TABLE) continue;
            for (int number = 1, same = 1; same; number++) {
                picture_name(f->title, number, name);
                same = 0;
                for (int i = 0; i < count; i++) same |= !strcmp(taken[i], name);
            }
            char(*more)[128] = alloc((size_t)count + 1, sizeof *more);
            if (count) memcpy(more, taken, (size_t)count * sizeof *more);
            free(taken);
            taken = more;
            strcpy(taken[count++], name);
            snprintf(path, sizeof path, "%.3900s/%s.svg", dir, name);
            figure_svg(&t, f);
            code = write_text(&t, path);
        }
    free(taken);
    if (!code) printf("%d pictures in %s\n", count, dir);
    return code;
}

static int run_report(const struct args *a)
{
    const char *dir = a->rest_count ? a->rest[0] : "lab-out", *path = a->value[REPORT_OUTPUT];
    struct lab_results all;
    struct report_pictures pictures = { .count = 0 };
    struct lab_corpus corpus;
    struct report r;
    struct text t = { .s = NULL };
    loci_error e = { .text = "" };
    if (!args_rest(a, 1) || !args_output(a, REPORT_OUTPUT)) return EXIT_ERROR;
    const bool pictured = path || a->value[REPORT_SVG];
    if (!!a->value[REPORT_TEXT] + !!a->value[REPORT_CSV] + !!a->value[REPORT_JSON] + !!path
            + !!a->value[REPORT_SVG]
        > 1)
        return fail("lab report: give only one of --output, --svg, --text, --csv and --json");
    if (lab_results_read(&all, dir, &e)) return fail("lab report: %s", e.text);
    for (int i = 0; i < all.skips; i++) fail("%s", all.skipped[i]);
    if (all.count == 0) {
        lab_results_free(&all);
        return fail("lab report: %s has no completed run; 'loci lab run' makes them", dir);
    }
    if (pictured) {
        int longest = 0;
        for (int i = 0; i < all.count; i++)
            if (all.list[i].length > longest) longest = all.list[i].length;
        if (lab_corpus_find(&corpus, a->value[REPORT_CORPUS], lab_corpus_bytes(longest), &e))
            return fail("%s", e.text);
        lab_pictures(&pictures, dir, &all, &corpus);
        lab_corpus_close(&corpus);
    }
    report_make(&r, &all, dir, &pictures);
    int code = EXIT_DONE;
    if (a->value[REPORT_SVG]) code = write_pictures(&r, a->value[REPORT_SVG]);
    else if (path) report_html(&t, &r);
    else if (a->value[REPORT_CSV]) report_csv(&t, &r);
    else if (a->value[REPORT_JSON]) report_json(&t, &r);
    else report_text(&t, &r, terminal().columns);
    report_free(&r);
    for (int i = 0; i < pictures.count; i++) figure_free(&pictures.list[i]);
    free(pictures.list);
    lab_results_free(&all);
    if (a->value[REPORT_SVG]) return code;
    return path ? write_text(&t, path) : print_text(&t);
}

const struct command cmd_lab_report = {
    .name = "lab report",
    .brief = "tables, pictures, and the claims that hold",
    .synopsis = "loci lab report [DIR] [-o FILE | --svg DIR | --text | --csv | --json]",
    .about =
        "    Reports all completed runs in DIR.  The page loads nothing and needs no script.\n",
    .examples =
        "    loci lab report lab-out -o report.html\n    loci lab report lab-out --csv > lab.csv\n",
    .operand_text = "@folder",
    .flags = report_flags,
    .run = run_report,
};

/* ---- sample ---------------------------------------------------------------------------------- */

enum { SAMPLE_SEED, SAMPLE_COLUMN, SAMPLE_COUNT, SAMPLE_CORPUS };
static const struct flag sample_flags[] = {
    [SAMPLE_SEED] = { "seed", NULL, "N", "seed of the run (default 0)" },
    [SAMPLE_COLUMN] = { "column", NULL, "NAME", "a test of the task (default: at trained length)" },
    [SAMPLE_COUNT] = { "count", NULL, "N", "sequences (default 4)" },
    [SAMPLE_CORPUS] = { "corpus", NULL, "TEXT:generated|python|jargon|kjv|@file",
                        "the text of the run (default: the generated one)" },
    { NULL, NULL, NULL, NULL }
};

/* Finds the folder of a finished run.  If several settings match, selects the newest. */
static bool find_run(const char *dir, const char *arm, const char *task, int seed,
                     char folder[LAB_PATH], int *length)
{
    struct lab_results all;
    loci_error e = { .text = "" };
    if (lab_results_read(&all, dir, &e)) return refuse("lab sample: %s", e.text);
    bool found = false, foreign = false;
    for (int i = 0; i < all.count && !found; i++) {
        const struct lab_result *r = &all.list[i];
        if (strcmp(r->arm, arm) || strcmp(r->task, task) || r->seed != seed) continue;
        foreign = lab_result_foreign(r);
        snprintf(folder, LAB_PATH, "%.4000s/runs/%s", dir, r->id);
        *length = r->length;
        found = true;
    }
    lab_results_free(&all);
    if (!found)
        return refuse(
            "lab sample: %s has no completed run of arm '%s' on task %s with seed %d; 'loci lab "
            "watch %s' lists the runs",
            dir, arm, task, seed, dir);
    return !foreign
        || refuse("lab sample: arm '%s' was trained in torch, where its attention is", arm);
}

static void print_tokens(const struct lab_problem *p, const char *name, const int32_t *list, int n)
{
    char word[16];
    bool wide = false;
    for (int i = 0; i < n; i++) {
        p->task->show(p, list[i], word);
        wide |= strlen(word) > 1 && list[i] != LAB_BOS;
    }
    printf("    %-9s", name);
    for (int i = 0; i < n; i++) {
        p->task->show(p, list[i], word);
        print_plain(stdout, word);
        if (wide && i < n - 1) putchar(' ');
    }
    putchar('\n');
}

/* Prints the question, the expected answer and the model's answer.  The model reads its own
 * next-token answers, right or wrong. */
static bool sample_sequence(const struct lab_config *c, struct lab_model *m,
                            const struct lab_column *column, int row, int *right, int *asked)
{
    const struct lab_problem p = lab_config_problem(c);
    struct lab_batch b = { .sequences = 0 };
    loci_error e = { .text = "" };
    lab_test_batch(c, m, column, row, 1, &b);
    const int n = (int)b.rows;
    int first = 0;
    while (b.target[first] < 0) first++;
    if (b.scored == b.rows) first = n / 2; /* the second half of a text */
    int32_t *want = alloc((size_t)n, sizeof *want), *got = alloc((size_t)n, sizeof *got), own = -1;
    int answers = 0;
    bool fine = !lab_decode_begin(m, n + 1, &e);
    for (int i = 0; i < n && fine; i++) {
        int32_t best;
        fine = !lab_decode(m, own >= 0 ? own : b.token[i], b.pos[i], NULL, &best, &e);
        own = -1;
        if (i < first || b.target[i] < 0) continue;
        want[answers] = b.target[i];
        got[answers++] = best;
        if (i + 1 < n && b.target[i] == b.token[i + 1]) own = best;
    }
    lab_decode_end(m);
    if (fine) {
        int same = 0;
        for (int i = 0; i < answers; i++) same += want[i] == got[i];
        *right += same;
        *asked += answers;
        print_tokens(&p, "prompt", b.token, first + 1);
        print_tokens(&p, "expected", want, answers);
        print_tokens(&p, "got", got, answers);
        printf("    %-9s%d of %d\n\n", "right", same, answers);
    }
    free(want);
    free(got);
    lab_batch_free(&b);
    return fine || refuse("lab sample: %s", e.text);
}

static int sample_run(const struct args *a, const struct lab_config *c, const char *folder,
                      int count)
{
    const struct lab_problem p = lab_config_problem(c);
    const struct lab_shape s = lab_config_shape(c);
    const char *name = a->value[SAMPLE_COLUMN];
    struct lab_column list[LAB_COLUMNS];
    struct lab_model *m;
    loci_error e = { .text = "" };
    const int n = p.task->columns(&p, list);
    int at = 0, right = 0, asked = 0;
    while (at < n && (name ? strcmp(list[at].name, name) != 0 : !list[at].trained)) at++;
    if (at == n) {
        char names[LAB_COLUMNS * (LAB_NAME + 2)] = "";
        for (int i = 0; i < n; i++)
            sprintf(names + strlen(names), "%s%.*s", i ? ", " : "", LAB_NAME, list[i].name);
        return fail("lab sample: task %s has no column '%s'; it has %s", c->task,
                    name ? name : "as trained", names);
    }
    if (lab_model_open(&m, &s, NULL, &e)) return fail("lab sample: %s", e.text);
    if (lab_weights_read(folder, m, &e)) {
        lab_model_close(m);
        return fail("lab sample: %s/weights.safetensors: %s", folder, e.text);
    }
    printf("%s on %s, seed %d, column %s\n\n", c->arm, c->task, c->seed, list[at].name);
    bool fine = true;
    for (int row = 0; row < count && row < list[at].count && fine; row++)
        fine = sample_sequence(c, m, &list[at], row, &right, &asked);
    if (fine) printf("%d of %d answers are right\n", right, asked);
    lab_model_close(m);
    return fine ? EXIT_DONE : EXIT_ERROR;
}

static int run_sample(const struct args *a)
{
    struct lab_corpus corpus;
    struct lab_config c;
    loci_error e = { .text = "" };
    char folder[LAB_PATH];
    int seed = 0, count = 4, length;
    if (!args_rest(a, 3) || !args_whole(a, SAMPLE_SEED, 0, 1 << 30, &seed)
        || !args_whole(a, SAMPLE_COUNT, 1, 10000, &count))
        return EXIT_ERROR;
    if (a->rest_count < 3) return fail("lab sample: give a folder, an arm and a task");
    if (!find_run(a->rest[0], a->rest[1], a->rest[2], seed, folder, &length)) return EXIT_ERROR;
    if (lab_corpus_find(&corpus, a->value[SAMPLE_CORPUS], lab_corpus_bytes(length), &e))
        return fail("%s", e.text);
    const int code = lab_config_read(&c, folder, &corpus, &e) ? fail("lab sample: %s", e.text)
                                                              : sample_run(a, &c, folder, count);
    lab_corpus_close(&corpus);
    return code;
}

const struct command cmd_lab_sample = {
    .name = "lab sample",
    .brief = "print the answers of a trained model",
    .synopsis = "loci lab sample DIR ARM TASK [OPTION...]",
    .about = "    Generates token by token from a cache of keys and values.  For text, the model\n"
             "    writes the second half.  For other tasks it answers where an answer is scored,\n"
             "    and reads its own answers where they continue the sequence.\n",
    .examples =
        "    loci lab sample lab-out alibi copy --column 'n=40'\n    loci lab sample lab-out fox "
        "text\n",
    .operand_text = "@folder @arm @task",
    .flags = sample_flags,
    .run = run_sample,
};
