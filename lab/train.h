/* SPDX-License-Identifier: MIT */
/* train.h -- a training step, and tests of the trained model. */
#ifndef LOCI_LAB_TRAIN_H
#define LOCI_LAB_TRAIN_H

#include "lab/config.h"
#include "lab/result.h"

/* The sequences of a step, counted from 0. */
void lab_train_batch(const struct lab_config *, const struct lab_model *, int64_t step,
                     struct lab_batch *);
/* Sequences first .. first + count - 1 of a column. */
void lab_test_batch(const struct lab_config *, const struct lab_model *, const struct lab_column *,
                    int first, int count, struct lab_batch *);

/* Learning rate of a step: 5 % warm up, then half a cosine down to a tenth. */
double lab_rate(const struct lab_config *, int64_t step);

/* Tests a column in the model's current view, on at most `most` of its sequences.  With `spans`,
 * also measures the loss by position.  The caller frees the measured column and the spans. */
loci_status lab_test(const struct lab_config *, struct lab_model *, const struct lab_column *,
                     int most, struct lab_measured *, struct lab_row *spans, loci_error *);

/* Tests all columns, then the variants.  Fills the rows of the result. */
loci_status lab_test_all(const struct lab_config *, struct lab_model *, struct lab_result *,
                         loci_error *);
/* A sentence for each trap of this run. */
void lab_warn(const struct lab_config *, const struct lab_model *, struct lab_result *);
void lab_add_warning(struct lab_result *, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;

#endif
