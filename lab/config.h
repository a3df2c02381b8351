/* SPDX-License-Identifier: MIT */
/* config.h -- all settings that decide what a run computes, and the list of runs.
 *
 * Two runs with the same configuration give the same files, on any machine.  So the identity of a
 * run is the hash of its configuration: lines "key=value" in order, with defaults filled in. */
#ifndef LOCI_LAB_CONFIG_H
#define LOCI_LAB_CONFIG_H

#include "draw/text.h"
#include "lab/model.h"
#include "lab/task.h"

enum { LAB_FORMAT = 2 }; /* increases with every change of what runs compute */

struct lab_config {
    char arm[LAB_ARM], task[LAB_NAME], size[LAB_NAME];
    int seed, layers, dim, heads, kv_heads, ffn;
    int length, steps, tokens; /* L; of training; in a step, at most */
    double rate;               /* the largest learning rate */
    /* of matrices and embeddings at initialisation */
    double std, embed_std;
    enum lab_learned learned;
    /* variants 1: tests them; finetune 1: continues training for some */
    int variants, finetune;
    bool waits;                      /* until its rate is chosen: no part of the identity */
    double option[LAB_OPTIONS];      /* of the task */
    const struct lab_corpus *corpus; /* NULL if the task needs none */
};

/* Selects a size of the lab: S, M, L, or XS for smoke. */
loci_status lab_config_size(struct lab_config *, const char *size, loci_error *);
/* Selects the task and resets its options to their defaults. */
loci_status lab_config_task(struct lab_config *, const char *task, loci_error *);
/* Sets a field by name, including options of the task.  An error names the nearest known field. */
loci_status lab_config_set(struct lab_config *, const char *key, const char *value, loci_error *);
/* Validates constraints between the fields. */
loci_status lab_config_check(const struct lab_config *, loci_error *);

struct lab_problem lab_config_problem(const struct lab_config *);
int lab_config_longest(const struct lab_config *); /* of training and tests */
struct lab_shape lab_config_shape(const struct lab_config *);
/* The "key=value" lines, and their hash. */
void lab_config_text(const struct lab_config *, struct text *);
void lab_config_id(const struct lab_config *, char id[33]);
void lab_config_json(const struct lab_config *, struct text *);
/* Reads config.json from the folder of a run, whose text is this corpus. */
loci_status lab_config_read(struct lab_config *, const char *folder, const struct lab_corpus *,
                            loci_error *);
/* Lists fields that differ from the size's and the task's defaults, in words "key=value ...". */
void lab_config_settings(const struct lab_config *, char *text, size_t capacity);
/* Changes the width of the arm's MLP so that its parameter count matches nope's. */
loci_status lab_config_match(struct lab_config *, loci_error *);

/* ---- Runs ------------------------------------------------------------------------------------ */

/* The runs of an arm on a task.  With several learning rates, the first seed tries all of them.
 * The runs of further seeds wait: lab_choose_rates() gives them the one that validation chooses. */
struct lab_group {
    int first, tried, count;
};
struct lab_runs {
    int count, capacity, groups;
    struct lab_config *list;
    struct lab_group *group; /* [groups]; runs first .. first + tried - 1 try one rate each */
};
void lab_runs_free(struct lab_runs *);

struct lab_preset_task {
    const char *name;
    int steps;
};
struct lab_preset {
    const char *name, *about, *size;
    enum { LAB_FOUR_ARMS, LAB_ALL_ARMS } arms;
    int seeds, chief_seeds; /* of all arms, and of the main eight */
    int finetune;
    double rates[4]; /* factors of the size's rate, one of which validation chooses; 0: the end */
    struct lab_preset_task tasks[20]; /* ends with a NULL name */
};
int lab_presets(const struct lab_preset **list);
const struct lab_preset *lab_preset(const char *name);

/* The user's overrides of the preset.  NULL and 0: no override. */
struct lab_wish {
    const char *preset, *arms, *tasks, *size, *grid; /* lists with commas; learning rates */
    int seeds, steps, length;
    double scale; /* of the steps */
    bool match;
    int settings;
    const char *const *key, *const *value;
    const struct lab_corpus *corpus;
};
loci_status lab_runs_make(struct lab_runs *, const struct lab_wish *, loci_error *);
/* L of the selected runs. 0 if the selection is invalid. */
int lab_wish_length(const struct lab_wish *);

/* Is this variant tested, or trained further, on sequences longer than in training?  On text all
 * variants that fit are, elsewhere those that change the encoding. */
bool lab_change_tested(enum lab_change, const struct lab_config *, const struct lab_arm *);
bool lab_change_finetuned(enum lab_change, const struct lab_config *, const struct lab_arm *);

/* The work of a run: steps of the default length, tokens of all tests, and the flops of both.  A
 * multiply-add counts twice, and sequences have their maximum length. */
struct lab_work_done {
    double steps, tested, trained_flops, tested_flops;
};
struct lab_work_done lab_config_work(const struct lab_config *);

#endif
