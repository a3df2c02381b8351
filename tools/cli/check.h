/* SPDX-License-Identifier: MIT */
/* check.h -- shared by `loci check`: the numbers of a file, and how well a rule explains them. */
#ifndef LOCI_CLI_CHECK_H
#define LOCI_CLI_CHECK_H

#include "cli/cli.h"
#include "models/safetensors.h"

enum { RULE_TEXT = 8192 }; /* longrope's lists are long */

/* Numbers of a tensor, as doubles. */
struct numbers {
    const char *name;
    const struct safetensor *tensor; /* NULL: the file has none */
    double *x;
    double unit; /* unit roundoff of its type; 0: integers */
};

struct place {
    ptrdiff_t head, row, column;
};
/* How well a rule explains the numbers. */
struct score {
    /* within the tolerance; within the looser one for float32 angles */
    ptrdiff_t total, within, loose;
    double squares; /* of the errors */
    double worst, worst_ulps;
    struct place first; /* first number outside of the tolerance, if any */
    double got, want;
};
void score_add(struct score *, struct place, double got, double want, double tolerance,
               double loose);
double ulps_f32(double got, double want);

struct finding {
    const char *what; /* "rotation", "split table", "slopes", ... */
    /* the nearest rule; the given text, or "" */
    char rule[RULE_TEXT], wanted[RULE_TEXT];
    /* how the nearest rule departs from the given one, or "" */
    char mistake[320];
    bool explains; /* the nearest rule explains all numbers */
    int others;    /* other rules that explain the sample equally well */
    char tolerance[160];
    char where[160];    /* the first difference from the nearest rule */
    struct score score; /* of the nearest rule, over all numbers */
};

struct check {
    const char *path;
    struct safetensors file;
    const char *encoding; /* NULL: not given */
    int head_dim;         /* from CONFIG; 0: not given */
    double tolerance;     /* negative: each rule's own */
    bool rows_first;      /* [row][head][channel] */
    struct numbers before, after, cos, sin, slopes, bias, table, pos;
};

/* Print their own error and return false.  Rotations are given as before and after, or as cos and
 * sin. */
bool check_rotation(const struct check *, struct finding *);
bool check_slopes(const struct check *, struct finding *);
bool check_buckets(const struct check *, struct finding *);

/* Returns the part of an encoding text that has this name, or NULL.  Release it with free(). */
char *part_of(const char *encoding, const char *name);
/* Sets `key` to value in the text of one encoding, or removes it if value is NULL.  Returns false
 * if the capacity is too small. */
bool text_with(char *text, size_t capacity, const char *key, const char *value);
bool text_has(const char *text, const char *key);

#endif
