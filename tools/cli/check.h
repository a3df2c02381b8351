/* SPDX-License-Identifier: MIT */
/* check.h -- what `loci check` compares: numbers of a file with what rules make of them. */
#ifndef LOCI_CLI_CHECK_H
#define LOCI_CLI_CHECK_H

#include "cli/cli.h"
#include "models/safetensors.h"

enum { RULE_TEXT = 8192 };               /* longrope's lists are long */

/* Numbers of a tensor, as doubles. */
struct numbers {
    const char *name;
    const struct safetensor *tensor;     /* NULL: not there */
    double *x;
    double unit;                         /* unit roundoff of its type; 0: integers */
};

struct place { ptrdiff_t head, row, column; };
/* How well a rule explains the numbers. */
struct score {
    ptrdiff_t total, within, loose;      /* within the tolerance; within that of float32 angles */
    double squares;                      /* of the errors */
    double worst, worst_ulps;
    struct place first;                  /* outside of the tolerance, if any is */
    double got, want;
};
void score_add(struct score *, struct place, double got, double want, double tolerance,
               double loose);
double ulps_f32(double got, double want);

struct finding {
    const char *what;                    /* "rotation", "split table", "slopes", ... */
    char rule[RULE_TEXT], wanted[RULE_TEXT];       /* of the nearest rule; as given, or "" */
    char mistake[320];                   /* what of the nearest is not as it should be; or "" */
    bool explains;                       /* the nearest explains all */
    int others;                          /* rules that explain what was sampled as well */
    char tolerance[160];
    char where[160];                     /* of the first difference from the nearest */
    struct score score;                  /* of the nearest, over all numbers */
};

struct check {
    const char *path;
    struct safetensors file;
    const char *encoding;                /* NULL: not given */
    int head_dim;                        /* that CONFIG says; 0: not given */
    double tolerance;                    /* negative: by rule */
    bool rows_first;                     /* [row][head][channel] */
    struct numbers before, after, cos, sin, slopes, bias, table, pos;
};

/* They print their own error and return false.  Rotations are before and after, or cos and sin. */
bool check_rotation(const struct check *, struct finding *);
bool check_slopes(const struct check *, struct finding *);
bool check_buckets(const struct check *, struct finding *);

/* The part of an encoding text that has this name, or NULL; released with free(). */
char *part_of(const char *encoding, const char *name);
/* The text of one encoding with `key` set to value, or taken out (NULL).  False when there is no
 * room. */
bool text_with(char *text, size_t capacity, const char *key, const char *value);
bool text_has(const char *text, const char *key);

#endif
