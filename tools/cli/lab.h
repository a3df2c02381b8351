/* SPDX-License-Identifier: MIT */
/* lab.h -- shared by the commands under `loci lab`: the selection of runs. */
#ifndef LOCI_CLI_LAB_H
#define LOCI_CLI_LAB_H

#include "cli/cli.h"
#include "lab/config.h"

extern const struct command cmd_lab_list, cmd_lab_corpus, cmd_lab_plan, cmd_lab_run, cmd_lab_report,
    cmd_lab_compare, cmd_lab_watch, cmd_lab_sample, cmd_lab_dump, cmd_lab_data, cmd_lab_bench;

/* Flags that select runs.  A command has them first, in this order. */
enum {
    WISH_PRESET,
    WISH_ARMS,
    WISH_TASKS,
    WISH_SEEDS,
    WISH_STEPS,
    WISH_SCALE,
    WISH_LENGTH,
    WISH_SIZE,
    WISH_LR,
    WISH_GRID,
    WISH_MATCH,
    WISH_CORPUS,
    WISH_SET,
    WISHES
};
/* clang-format off */
#define WISH_FLAGS \
    [WISH_PRESET] = { "preset", NULL, "NAME:@preset", \
                      "smoke, coffee, hour, overnight or cluster" }, \
    [WISH_ARMS]   = { "arms", NULL, "LIST:chief|@arm,", \
                      "encoding texts, or chief: the eight main ones" }, \
    [WISH_TASKS]  = { "tasks", NULL, "LIST:@task,", "tasks of 'loci lab list'" }, \
    [WISH_SEEDS]  = { "seeds", NULL, "N", "seeds 0 .. N-1 of every arm" }, \
    [WISH_STEPS]  = { "steps", NULL, "N", "training steps" }, \
    [WISH_SCALE]  = { "steps-scale", NULL, "X", "factor of the training steps" }, \
    [WISH_LENGTH] = { "length", NULL, "L", "training length in tokens" }, \
    [WISH_SIZE]   = { "size", NULL, "SIZE:XS|S|M|L", "XS, S, M or L" }, \
    [WISH_LR]     = { "lr", NULL, "X", "peak learning rate" }, \
    [WISH_GRID]   = { "lr-grid", NULL, "LIST", \
                      "several rates; validation chooses one per arm" }, \
    [WISH_MATCH]  = { "match-params", NULL, NULL, \
                      "narrow the MLP by the parameters that an arm learns" }, \
    [WISH_CORPUS] = { "corpus", NULL, "TEXT:generated|python|jargon|kjv|@file", \
                      "a text of 'loci lab corpus', or a file (default: generated)" }, \
    [WISH_SET]    = { "set", NULL, "KEY=VALUE", "any field of the configuration" }
/* clang-format on */

/* Reads the selection from flags, or from FILE.json.  Its pointers stay valid until the program
 * exits.  Prints its error. */
bool read_wish_flags(const struct args *, struct lab_wish *);
bool read_wish_file(const char *path, struct lab_wish *);
/* "key=value,key=value" */
bool add_settings(const struct args *, const char *list, struct lab_wish *);
/* The same, then creates the runs. */
bool make_runs(const struct args *, const char *file, struct lab_wish *, struct lab_runs *);

/* Measures seconds of a step and of a tested token within the given time, for one run on one
 * thread. */
bool time_run(const struct lab_config *, double seconds, double *step, double *tested);
/* Estimates the time of the runs on `threads` threads.  Measures each arm briefly. */
struct lab_estimate {
    double seconds, teraflops;
    long steps;
};
bool estimate_runs(const struct lab_runs *, int threads, struct lab_estimate *);

/* Prints the selected runs, a line for each task.  "3 min", "1.5 h". */
void print_runs(const struct lab_runs *);
void print_time(double seconds);

int cores(void);

#endif
