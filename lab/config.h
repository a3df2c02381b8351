/* SPDX-License-Identifier: MIT */
/* config.h -- everything that decides what a run computes, and what runs there are.
 *
 * Two runs with the same configuration give the same files, on any machine, so the identity of a
 * run is the hash of its configuration: lines "key=value" in order, what was left open filled
 * in. */
#ifndef LOCI_LAB_CONFIG_H
#define LOCI_LAB_CONFIG_H

#include "draw/text.h"
#include "lab/model.h"
#include "lab/task.h"

enum { LAB_FORMAT = 1 }; /* grows when anything changes what runs compute */

struct lab_config {
    char arm[LAB_ARM], task[LAB_NAME], size[LAB_NAME];
    int seed, layers, dim, heads, kv_heads, ffn;
    int length, steps, tokens; /* L; of training; in a step, at most */
    double rate;               /* the largest learning rate */
    double std, embed_std;     /* of matrices at the start, and of embeddings */
    enum lab_learned learned;
    int variants, finetune;          /* 1: tests them too; continues training for some */
    double option[LAB_OPTIONS];      /* of the task */
    const struct lab_corpus *corpus; /* NULL where the task takes none */
};

/* A size of the lab: S, M, L, or XS for smoke. */
loci_status lab_config_size(struct lab_config *, const char *size, loci_error *);
/* Names the task; its options become the usual ones. */
loci_status lab_config_task(struct lab_config *, const char *task, loci_error *);
/* One field by its name, an option of the task too; an unknown name gets the nearest known one. */
loci_status lab_config_set(struct lab_config *, const char *key, const char *value, loci_error *);
/* What the fields have to keep to together. */
loci_status lab_config_check(const struct lab_config *, loci_error *);

struct lab_problem lab_config_problem(const struct lab_config *);
int lab_config_longest(const struct lab_config *); /* of training and tests */
struct lab_shape lab_config_shape(const struct lab_config *);
/* As "key=value" lines; and what hashing them gives. */
void lab_config_text(const struct lab_config *, struct text *);
void lab_config_id(const struct lab_config *, char id[33]);
void lab_config_json(const struct lab_config *, struct text *);
/* From config.json in the folder of a run, whose text is this corpus. */
loci_status lab_config_read(struct lab_config *, const char *folder, const struct lab_corpus *,
                            loci_error *);
/* Fields that differ from those of the size and the task, in words "key=value ...". */
void lab_config_settings(const struct lab_config *, char *text, size_t capacity);
/* Makes the MLP of the arm narrower or wider, so that it has as many numbers as nope. */
loci_status lab_config_match(struct lab_config *, loci_error *);

/* ---- What runs ------------------------------------------------------------------------------- */

struct lab_runs {
    int count, capacity;
    struct lab_config *list;
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
    struct lab_preset_task tasks[12];
};
int lab_presets(const struct lab_preset **list);
const struct lab_preset *lab_preset(const char *name);

/* What the user wants instead of what the preset says; NULL and 0: nothing. */
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
/* L of the runs that are wished for; 0 where the wish is wrong. */
int lab_wish_length(const struct lab_wish *);

/* Which variants are tested where texts are longer than in training: on text all that fit,
 * elsewhere those that change the encoding.  And with which training goes on. */
bool lab_change_tested(enum lab_change, const struct lab_config *, const struct lab_arm *);
bool lab_change_finetuned(enum lab_change, const struct lab_config *, const struct lab_arm *);

/* What a run computes: steps of the usual length, tokens of all tests, and the flops of both,
 * where a multiply-add counts twice and sequences are as long as they may be. */
struct lab_work_done {
    double steps, tested, trained_flops, tested_flops;
};
struct lab_work_done lab_config_work(const struct lab_config *);

#endif
