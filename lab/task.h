/* SPDX-License-Identifier: MIT */
/* task.h -- the training tasks of the lab's models: sequences of tokens, and which of them are
 * scored.
 *
 * No sequence is stored: sequence number `row` of a step, or of a test, is a pure function of its
 * key.  Every random number is loci_uniform(key, i) with i = 0, 1, 2 ..., so no other task, arm or
 * thread count changes any of them.  Training and tests share no key. */
#ifndef LOCI_LAB_TASK_H
#define LOCI_LAB_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loci/loci.h"

enum { LAB_NAME = 32, LAB_OPTIONS = 6, LAB_COLUMNS = 24, LAB_BOS = 0 };

/* Text for the tasks text and passkey (corpus.c): bytes as tokens 1 .. symbols.  Only bytes that
 * occur have a token.  The first 90 % are for training, the last 5 % for tests.  What lies between
 * them is for validation, which chooses learning rates. */
struct lab_corpus {
    char name[LAB_NAME]; /* "generated", a name of corpora.h, or the base name of a file */
    int32_t *token;      /* [count], each 1 .. symbols */
    /* total count; training ends before token `train`, tests begin at token `tests` */
    ptrdiff_t count, train, tests;
    int symbols;
    unsigned char byte[256]; /* [symbols]: token t is byte[t - 1] */
    /* nats per token by the frequencies of the training part */
    double unigram;
    char sha256[65]; /* of the bytes: belongs to the identity of a run */
};

struct lab_option {
    const char *name;
    double default_value, min, max;
    bool whole;
    const char *help;
};

struct lab_task;
/* A task with all its numbers. */
struct lab_problem {
    const struct lab_task *task;
    /* L: the longest training sequence in tokens, if the task's options alone do not determine
     * it */
    int length;
    double option[LAB_OPTIONS];
    const struct lab_corpus *corpus; /* NULL if the task needs none */
};

/* A measurement after training.  A column has all metrics; `metric` is the one that tables show. */
enum lab_metric { LAB_LOSS, LAB_ACCURACY, LAB_EXACT };
/* A run has learned its task if the mean over the trained columns is at least this share, or, for a
 * loss, at most this share of what the frequencies of bytes give.  It is a mark beside the figures
 * and excludes none of them. */
static inline double lab_learned_bound(enum lab_metric m) { return m == LAB_LOSS ? 0.75 : 0.9; }
struct lab_column {
    char name[LAB_NAME]; /* "4L", "0.98 at 8L", "n=30": the head of a table */
    double times;        /* length over the trained one: 1, 2, 4, 8 */
    int length;          /* tokens of its longest sequence */
    int count;           /* sequences */
    bool trained;        /* drawn as in training: shows whether the task is learned */
    bool validation;     /* of text that no test reads; its name gives it other keys, too */
    enum lab_metric metric;
    double value[4]; /* further parameters of the task */
};

struct lab_task {
    const char *name, *brief;                   /* one line */
    const char *scored;                         /* the scored part, in a few words */
    struct lab_option options[LAB_OPTIONS + 1]; /* ends with a NULL name */
    bool extended;                              /* not one of the core six */
    bool corpus;                                /* needs a corpus */
    double chance;                              /* accuracy of a guess; < 0: of the corpus */
    /* One sentence and false if the options contradict each other or the length.  NULL: nothing to
     * check. */
    bool (*check)(const struct lab_problem *, loci_error *);
    int (*vocabulary)(const struct lab_problem *); /* tokens 0 .. n - 1; 0 is BOS */
    int (*longest)(const struct lab_problem *);    /* tokens of the longest trained sequence */
    int (*columns)(const struct lab_problem *, struct lab_column *list); /* at most LAB_COLUMNS */
    /* Draws sequence `row` of a column, or with NULL one of training.  Fills token[0 .. n - 1],
     * from BOS on, and target[i]: the expected output at token i, or -1 if it is not scored.
     * Returns n, at least 2 and at most longest() or the column's length. */
    int (*draw)(const struct lab_problem *, const struct lab_column *, uint64_t key, int row,
                int32_t *token, int32_t *target);
    /* A token in readable form: at most 15 bytes of UTF-8. */
    void (*show)(const struct lab_problem *, int32_t token, char text[16]);
};

/* In the order of tasks/list.h. */
int lab_tasks(const struct lab_task *const **list);
const struct lab_task *lab_task(const char *name); /* NULL: unknown */
/* All options at their defaults. */
struct lab_problem lab_problem(const struct lab_task *, int length, const struct lab_corpus *);
/* Does the option "name" exist, and is the value valid? */
loci_status lab_problem_set(struct lab_problem *, const char *option, double value, loci_error *);

/* The keys of sequence `row`: of a training step, which depends on the seed, and of a test, which
 * does not.  `column` is the column's name. */
uint64_t lab_train_key(const struct lab_problem *, uint64_t seed, int64_t step, int row);
uint64_t lab_test_key(const struct lab_problem *, const char *column, int row);
/* The same column on other sequences, which neither training nor a test has: for validation. */
struct lab_column lab_validation(const struct lab_column *);
/* A stream from words and numbers: for keys, and for all other random numbers of the lab. */
uint64_t lab_stream(uint64_t seed, const char *name);

/* Whole number in [0, n) from number i of a stream, uniform up to 2^-40. */
static inline int lab_below(double uniform, int n) { return (int)(uniform * n); }

/* Bytes of a generated corpus that suffices for tests at 8 times this length. */
size_t lab_corpus_bytes(int length);
/* Opens the generated corpus of about `bytes`, or that of a file.  Sets the error sentence. */
loci_status lab_corpus_open(struct lab_corpus *, const char *path /* NULL: generated */,
                            size_t bytes, loci_error *);
/* That of these bytes. */
loci_status lab_corpus_of(struct lab_corpus *, const char *name, const unsigned char *bytes,
                          size_t count, loci_error *);
void lab_corpus_close(struct lab_corpus *);

#endif
