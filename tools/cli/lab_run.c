/* SPDX-License-Identifier: MIT */
/* lab_run.c -- `loci lab run` and `loci lab watch`: runs the lab, and shows its progress from
 * another process. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "platform/ending.h"
#include "platform/system.h"
#include "cli/lab.h"
#include "cli/terminal.h"
#include "models/json.h"
#include "lab/run.h"
#include "lab/store.h"

/* ---- A table of progress --------------------------------------------------------------------- */

struct row {
    char arm[LAB_ARM], task[LAB_NAME];
    int seed, step, steps;
    enum lab_stage stage;
    double loss;
};

static double work_of(const struct row *r) { return r->stage == LAB_READY ? r->steps : r->step; }

/* Prints a total line and, on a terminal, one for each active run.  Returns the number of lines. */
static int print_rows(const struct row *rows, int n, double left, bool each, bool terminal)
{
    const char *clear = terminal ? "\033[K" : "";
    double done = 0, all = 0;
    int ready = 0, lines = 1;
    for (int i = 0; i < n; i++) {
        done += work_of(&rows[i]);
        all += rows[i].steps;
        ready += rows[i].stage == LAB_READY;
    }
    printf("%d of %d runs, %.0f %% of the steps", ready, n, 100 * done / fmax(1, all));
    if (ready < n && left > 0) {
        printf(", about ");
        print_time(left);
        printf(" left");
    }
    printf("%s\n", clear);
    for (int i = 0; i < n && each; i++) {
        const struct row *r = &rows[i];
        if (r->stage != LAB_TRAINS && r->stage != LAB_TESTS) continue;
        const int filled = (int)(20.0 * r->step / r->steps);
        printf("  [%.*s%*s] %-16.16s %-9s seed %d  %d/%d", filled, "####################",
               20 - filled, "", r->arm, r->task, r->seed, r->step, r->steps);
        if (r->stage == LAB_TESTS) printf("  tests%s\n", clear);
        else if (isfinite(r->loss)) printf("  loss %.3f%s\n", r->loss, clear);
        else printf("%s\n", clear);
        lines++;
    }
    return lines;
}

/* ---- run ------------------------------------------------------------------------------------- */

enum { RUN_OUTPUT = WISHES, RUN_SHARD, RUN_THREADS, RUN_CHECKPOINT, RUN_ISA, RUN_QUIET };
static const struct flag run_flags[] = {
    WISH_FLAGS,
    [RUN_OUTPUT] = { "output", "o", "DIR:@folder", "folder of the runs (default lab-out)" },
    [RUN_SHARD] = { "shard", NULL, "I/N",
                    "only every N-th run, starting at run I, counted from 0" },
    [RUN_THREADS] = { "threads", "t", "N",
                      "parallel runs, or threads of the last runs (default: all cores)" },
    [RUN_CHECKPOINT] = { "checkpoint", NULL, "SECONDS",
                         "seconds between checkpoints (default 60)" },
    [RUN_ISA] = { "isa", NULL, "NAME:@isa", "instruction set; the bits are the same" },
    [RUN_QUIET] = { "quiet", "q", NULL, "no progress" },
    { NULL, NULL, NULL, NULL }
};

static atomic_int stopping;
static void on_stop(int number) { atomic_store(&stopping, number); }

static void fill_rows(const struct lab_runs *runs, const struct lab_progress *p, int shard,
                      int shards, struct row *rows, int *n)
{
    *n = 0;
    for (int i = shard; i < runs->count; i += shards) {
        struct row *r = &rows[(*n)++];
        const struct lab_config *c = &runs->list[i];
        strcpy(r->arm, c->arm);
        strcpy(r->task, c->task);
        r->seed = c->seed;
        r->steps = c->steps;
        r->step = atomic_load(&p[i].step);
        r->stage = (enum lab_stage)atomic_load(&p[i].stage);
        r->loss = atomic_load(&p[i].loss);
    }
}

/* Updates in place on a terminal, else prints a line per minute. */
static void show_progress(struct lab_work *w, bool quiet)
{
    struct row *rows = alloc((size_t)w->runs->count, sizeof *rows);
    const bool terminal = loci_terminal() && !quiet;
    const double began = now();
    double told = began, at_start = 0;
    int n, lines = 0;
    fill_rows(w->runs, w->progress, w->shard, w->shards, rows, &n);
    for (int i = 0; i < n; i++) at_start += work_of(&rows[i]);
    while (!lab_work_ended(w)) {
        loci_sleep(0.05);
        if (quiet || now() - told < (terminal ? 0.5 : 60)) continue;
        told = now();
        double done = -at_start, all = 0;
        fill_rows(w->runs, w->progress, w->shard, w->shards, rows, &n);
        for (int i = 0; i < n; i++) {
            done += work_of(&rows[i]);
            all += rows[i].steps;
        }
        const double left = done > 0 ? (told - began) * (all - at_start - done) / done : 0;
        if (terminal && lines) printf("\033[%dA\033[J", lines);
        lines = print_rows(rows, n, left, terminal, terminal);
        fflush(stdout);
    }
    if (terminal && lines) printf("\033[%dA\033[J", lines);
    free(rows);
}

/* The command as typed, for lab.json. */
static void command_line(const struct args *a, struct text *t)
{
    text_add(t, "loci %s", a->command->name);
    for (int i = 0; i < a->rest_count; i++) text_add(t, " %s", a->rest[i]);
    for (int i = 0; a->command->flags[i].name; i++)
        if (a->value[i] && i != RUN_OUTPUT && i != RUN_QUIET && i != RUN_THREADS && i != RUN_SHARD)
            text_add(t, " --%s%s%s", a->command->flags[i].name, *a->value[i] ? " " : "",
                     a->value[i]);
}

static bool read_shard(const struct args *a, struct lab_work *w)
{
    const char *text = a->value[RUN_SHARD];
    char end;
    w->shard = 0;
    w->shards = 1;
    if (!text) return true;
    if (sscanf(text, "%d/%d%c", &w->shard, &w->shards, &end) != 2 || w->shards < 1 || w->shard < 0
        || w->shard >= w->shards)
        return refuse("lab run: --shard must be I/N with I from 0 to N-1, not '%s'", text);
    return true;
}

/* Reports the end of the work.  Each run has its own files, so a text that cannot be opened later
 * would be useless. */
static int report_end(const struct lab_runs *runs, const struct lab_work *w, const char *dir)
{
    struct row *rows = alloc((size_t)runs->count, sizeof *rows);
    int n, ready = 0, others = 0;
    fill_rows(runs, w->progress, w->shard, w->shards, rows, &n);
    for (int i = 0; i < n; i++) {
        ready += rows[i].stage == LAB_READY;
        others += rows[i].stage == LAB_ELSEWHERE;
    }
    free(rows);
    const int left = n - ready - others;
    printf("%d of %d runs are done", ready, n);
    if (others) printf(", %d are running in other processes", others);
    if (left) printf(", %d are left; repeat the command to continue", left);
    if (ready == n) printf(": loci lab report %s", dir);
    printf("\n");
    return EXIT_DONE;
}

static int run_run(const struct args *a)
{
    struct lab_wish wish;
    static struct lab_runs runs; /* live until the program exits, however it ends */
    static struct text command;
    loci_error e = { .text = "" };
    const char *dir = a->value[RUN_OUTPUT] ? a->value[RUN_OUTPUT] : "lab-out";
    struct lab_work w = { .dir = dir,
                          .checkpoint = 60,
                          .threads = cores(),
                          .isa = a->value[RUN_ISA],
                          .stop = &stopping };
    int checkpoint = 60;
    if (!args_rest(a, 1) || !args_whole(a, RUN_THREADS, 1, 256, &w.threads)
        || !args_whole(a, RUN_CHECKPOINT, 0, 1 << 30, &checkpoint) || !read_shard(a, &w)
        || !make_runs(a, a->rest_count ? a->rest[0] : NULL, &wish, &runs))
        return EXIT_ERROR;
    if (w.isa && !lab_engine(w.isa, false))
        return fail("lab run: isa '%s' does not run on this CPU; 'loci info' lists those that do",
                    w.isa);
    char cpu[96];
    w.runs = &runs;
    w.checkpoint = checkpoint;
    w.cpu = cpu_name(cpu, sizeof cpu);
    command_line(a, &command);
    loci_ending_replace(on_stop);
    if (!a->value[RUN_QUIET]) {
        print_runs(&runs);
        printf("\n%d runs in %s, %d at a time\n", runs.count, dir,
               w.threads < runs.count ? w.threads : runs.count);
        fflush(stdout);
    }
    w.progress = alloc((size_t)runs.count, sizeof *w.progress);
    loci_status status;
    int waiting, before = lab_choose_rates(&runs, dir);
    do { /* once more if learning rates were chosen: see lab_choose_rates() */
        waiting = before;
        status = lab_store_open(dir, command.s, wish.preset, &runs, &e);
        if (!status) status = lab_work_begin(&w, &e);
        if (status) break;
        show_progress(&w, a->value[RUN_QUIET] != NULL);
        status = lab_work_end(&w, &e);
        before = lab_choose_rates(&runs, dir);
    } while (!status && !atomic_load(&stopping) && before < waiting);
    text_free(&command);
    const int code = status ? fail("lab run: %s", e.text) : report_end(&runs, &w, dir);
    free(w.progress);
    lab_runs_free(&runs);
    return code;
}

const struct command cmd_lab_run = {
    .name = "lab run",
    .brief = "train and test the runs that are not done",
    .synopsis =
        "loci lab run --preset NAME | --arms LIST --tasks LIST | FILE.json [-o DIR] [OPTION...]",
    .about =
        "    Runs are stored in DIR, each in its own folder, named by the hash of its\n"
        "    configuration.  Completed runs are skipped.  A checkpoint is written every minute\n"
        "    and when the program is stopped; the same command then continues.  Several\n"
        "    processes and machines may share DIR.  Results have the same bits for any number\n"
        "    of threads and on all machines.\n",
    .examples =
        "    loci lab run --preset coffee -o lab-out\n"
        "    loci lab run --preset overnight -o lab-out --shard 3/16\n"
        "    loci lab run --arms 'rope,rope:base=1e6,alibi+cape' --tasks text --seeds 3 --size M\n",
    .operand_text = "@file",
    .flags = run_flags,
    .run = run_run,
};

/* ---- watch ----------------------------------------------------------------------------------- */

enum { WATCH_ONCE };
static const struct flag watch_flags[] = {
    [WATCH_ONCE] = { "once", NULL, NULL,
                     "print once and exit (default if the output is not a terminal)" },
    { NULL, NULL, NULL, NULL }
};

/* Reads the runs that lab.json names from their folders. */
static bool read_rows(const char *dir, struct row **rows, int *n)
{
    char path[LAB_PATH];
    snprintf(path, sizeof path, "%.4000s/lab.json", dir);
    loci_error e = { .text = "" };
    json_t *root;
    if (lab_json_read(&root, dir, "lab.json", &e)) return refuse("%s: %s", path, e.text);
    const json_t *list = json_object_get(root, "runs");
    if (!json_is_array(list)) {
        json_decref(root);
        return refuse("%s: the folder has no list of runs", path);
    }
    *n = 0;
    *rows = alloc(json_array_size(list) + 1, sizeof **rows);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const char *id = json_string_value(json_object_get(one, "id")),
                   *arm = json_string_value(json_object_get(one, "arm")),
                   *task = json_string_value(json_object_get(one, "task"));
        struct lab_told told;
        struct row *r = &(*rows)[*n];
        if (!id || !arm || !task || strlen(id) != 32 || strlen(arm) >= sizeof r->arm
            || strlen(task) >= sizeof r->task)
            continue;
        strcpy(r->arm, arm);
        strcpy(r->task, task);
        r->seed = (int)json_integer_value(json_object_get(one, "seed"));
        r->steps = (int)json_integer_value(json_object_get(one, "steps"));
        if (r->steps < 1) continue;
        snprintf(path, sizeof path, "%.3900s/runs/%s", dir, id);
        if (lab_run_done(dir, id)) r->stage = LAB_READY;
        else if (lab_claim_read(path, &told)) {
            r->step = told.step < r->steps ? told.step : r->steps;
            r->loss = told.loss;
            r->stage = told.step < r->steps ? LAB_TRAINS : LAB_TESTS;
        }
        (*n)++;
    }
    json_decref(root);
    return true;
}

static int run_watch(const struct args *a)
{
    const char *dir = a->rest_count ? a->rest[0] : "lab-out";
    const bool terminal = loci_terminal() && !a->value[WATCH_ONCE];
    double first = -1, began = now();
    int lines = 0;
    if (!args_rest(a, 1)) return EXIT_ERROR;
    for (;;) {
        struct row *rows;
        int n;
        double done = 0, all = 0;
        if (!read_rows(dir, &rows, &n)) return EXIT_ERROR;
        for (int i = 0; i < n; i++) {
            done += work_of(&rows[i]);
            all += rows[i].steps;
        }
        if (first < 0) first = done;
        const double left = done > first ? (now() - began) * (all - done) / (done - first) : 0;
        if (terminal && lines) printf("\033[%dA\033[J", lines);
        lines = print_rows(rows, n, left, true, terminal);
        fflush(stdout);
        free(rows);
        if (!terminal || done >= all) return EXIT_DONE;
        loci_sleep(1);
    }
}

const struct command cmd_lab_watch = {
    .name = "lab watch",
    .brief = "show the progress of runs",
    .synopsis = "loci lab watch [DIR] [--once]",
    .about =
        "    Reads the files in DIR, so it includes all processes and machines that use DIR.\n",
    .examples = "    loci lab watch lab-out\n",
    .operand_text = "@folder",
    .flags = watch_flags,
    .run = run_watch,
};
