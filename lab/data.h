/* SPDX-License-Identifier: MIT */
/* data.h -- the lab's sequences as arrays, for other trainers: what `loci lab data` writes, and the
 * library loci-lab, by which loci.lab in Python draws them.  It trains nothing and needs no other
 * library.
 *
 *     loci_lab *lab;
 *     loci_error error;
 *     if (loci_lab_open(&lab, "copy", 64, NULL, &error)) ...
 *     loci_lab_set(lab, "most", 12, &error);            an option of the task
 *     loci_lab_about(lab, text, sizeof text);           vocabulary, columns and more, as JSON
 *     loci_lab_train(lab, seed, step, 4096 / longest, tokens, targets, starts, &error);
 *     loci_lab_close(lab); */
#ifndef LOCI_LAB_DATA_H
#define LOCI_LAB_DATA_H

#include "lab/task.h"

/* ---- Inside the lab -------------------------------------------------------------------------- */

/* Draws `count` sequences one after another: those of a training step if the column is NULL, else
 * sequences first .. first + count - 1 of the column.  token and target have room for `count` of
 * the longest, starts for count + 1.  Returns the number of tokens. */
ptrdiff_t lab_data_draw(const struct lab_problem *, const struct lab_column *, uint64_t seed,
                        int64_t step, int first, int count, int32_t *token, int32_t *target,
                        int64_t *starts);
/* The column of this name, or NULL and a sentence with all names. */
const struct lab_column *lab_data_column(const struct lab_problem *, const char *name,
                                         struct lab_column list[LAB_COLUMNS], loci_error *);

/* Spans of positions for losses, each longer by the square root of 2, with a border where the last
 * quarter of the trained length begins.  Span i ends before border[i], and the next begins there.
 * Returns their number, at most LAB_SPANS. */
enum { LAB_SPANS = 64 };
int lab_data_spans(int border[LAB_SPANS], int length, int trained);

/* ---- The library ----------------------------------------------------------------------------- */

typedef struct loci_lab loci_lab;

/* A task with its usual options.  length: L; corpus: for tasks that need a text, as in
 * lab_corpus_find(); NULL: the generated one.  Fails with a sentence, and then *lab is NULL. */
LOCI_API loci_status loci_lab_open(loci_lab **, const char *task, int length, const char *corpus,
                                   loci_error *);
LOCI_API void loci_lab_close(loci_lab *);
/* Sets an option.  Those of a task may depend on each other: loci_lab_check() says whether they
 * agree. */
LOCI_API loci_status loci_lab_set(loci_lab *, const char *option, double value, loci_error *);
LOCI_API loci_status loci_lab_check(const loci_lab *, loci_error *);

/* JSON, as snprintf() writes it: at most `capacity` bytes with the final 0.  Returns the number of
 * bytes without it.  With NULL: sizes and tasks. */
LOCI_API size_t loci_lab_about(const loci_lab *, char *text, size_t capacity);

/* Sequences of a training step, and of a column by its number in the list of loci_lab_about(). */
LOCI_API loci_status loci_lab_train(const loci_lab *, uint64_t seed, int64_t step, int count,
                                    int32_t *tokens, int32_t *targets, int64_t *starts,
                                    loci_error *);
LOCI_API loci_status loci_lab_test(const loci_lab *, int column, int first, int count,
                                   int32_t *tokens, int32_t *targets, int64_t *starts,
                                   loci_error *);
/* The same for the column's validation, whose sequences neither training nor a test has. */
LOCI_API loci_status loci_lab_validation(const loci_lab *, int column, int first, int count,
                                         int32_t *tokens, int32_t *targets, int64_t *starts,
                                         loci_error *);
/* A token in readable form: at most 15 bytes of UTF-8 and a 0. */
LOCI_API void loci_lab_show(const loci_lab *, int token, char text[16]);
/* The numbers at the start of the tensor `name` of a lab's model: N(0, std), rounded to float. */
LOCI_API void loci_lab_normal(uint64_t seed, const char *name, double std, ptrdiff_t count,
                              float *to);

#endif
