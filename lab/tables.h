/* SPDX-License-Identifier: MIT */
/* tables.h -- comparison of runs: a table for each task and its options, a row for each arm and
 * each of its variants, and in every cell the statistics over its seeds. */
#ifndef LOCI_LAB_TABLES_H
#define LOCI_LAB_TABLES_H

#include "lab/result.h"
#include "lab/statistics.h"

/* An arm is the text of an encoding, with an optional @how.  Its name consists of the names of its
 * parts in alphabetical order, without options: "cape:hidden=8+alibi" is "alibi+cape". */
struct arm_name {
    char names[128], how[32];
};
struct arm_name arm_name(const char *arm);

/* Families of encodings, in the order of the tables. */
int arm_family(const char *arm);
const char *family_name(int family);
/* Arms that all others are compared with, 0 .. REFERENCES - 1. */
const char *reference_name(int);

struct cell {
    int n;         /* seeds that measured it */
    double *value; /* [seeds of the row], NaN if missing */
    struct summary of;
    struct interval mean;       /* over the seeds */
    double sampling;            /* standard error from the choice of the test sequences */
    int good;                   /* seeds with GOOD here */
    double good_low, good_high; /* Wilson's interval of that share */
};

/* A row minus another one, seed by seed, in the farthest column.  Above 0 it is better. */
struct versus {
    const char *arm;
    struct interval by;
    double holm;
};
enum { REFERENCES = 2 };
#define GOOD 0.9
#define CRITERION 0.99

struct table_row {
    const char *arm, *variant; /* variant "": as trained */
    char label[160];           /* the arm, and its differences from other rows */
    int family, seeds, learned;
    const struct lab_result **run; /* [seeds], rising */
    const struct lab_row **row;    /* of these runs */
    struct cell *cell;             /* [columns] of the table */
    /* The longest length up to which every column has GOOD of the right answers, by seed in tokens;
     * 0: none.  NULL for losses and variants. */
    double *reach;
    struct summary reach_of;
    /* Steps of training until a small test as in training first had CRITERION of the right answers,
     * by seed; NaN: never.  NULL for losses and variants. */
    double *criterion;
    struct summary criterion_of;      /* of the seeds that came there */
    double beyond;                    /* the mean of the columns beyond L */
    double rank, rank_low, rank_high; /* by `beyond`, and over seeds; of trained arms only */
    struct versus versus[REFERENCES];
};

/* An arm with one of several learning rates.  Validation chooses, and the runs with other rates
 * take part in nothing else. */
struct tried {
    const char *arm;
    char own[64]; /* its settings */
    double rate, validation;
    int seeds;
    bool chosen, edge;             /* edge: no rate was tried on one side of the chosen one */
    const struct lab_result **run; /* [seeds] */
};

struct table {
    const char *task, *size, *settings;
    int length, steps;
    int columns, rows, far; /* far: the column farthest from the trained ones */
    const struct lab_measured *head[LAB_COLUMNS];
    struct table_row *row; /* by family and name; variants follow their arm */
    int tries;
    struct tried *tried; /* by arm and rate; empty where no arm has several */
    /* runs left out as duplicates of an arm and seed */
    int twice;
};

struct tables {
    int count;
    struct table *list;
};
struct tables tables_of(const struct lab_results *);
void tables_free(struct tables *);

/* The metric that tables show, and its goodness: larger is better. */
double shown_value(const struct lab_measured *);
double goodness(const struct lab_measured *head, double value);
/* "loss", "accuracy" or "exact". */
const char *metric_name(enum lab_metric);

/* The column with the shortest name that contains all of the words: "L 3" is "3 vars at L".  "far"
 * is the farthest one. < 0: none. */
int find_column(const struct table *, const char *words);
/* The row of these names. variant "" is the arm itself.  NULL: none. */
const struct table_row *find_row(const struct table *, const char *names, const char *how,
                                 const char *variant);
/* Steps of this run until the criterion, NaN: never. */
double steps_to_criterion(const struct lab_result *);
/* Does the report count this run, or has its arm another rate?  */
bool is_chosen(const struct tables *, const struct lab_result *);
/* Standard error, from the choice of the test sequences, of row a minus row b in this column.  Both
 * saw the same sequences.  b NULL: of a alone. */
double sampling_error(const struct table_row *a, const struct table_row *b,
                      const struct lab_measured *head);
/* The run of a seed, -1: none. */
int seed_index(const struct table_row *, int seed);
/* Mean loss at positions from .. to of a row's test in one run.  NaN: not measured. */
double loss_between(const struct lab_row *, int from, int to);

#endif
