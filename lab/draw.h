/* SPDX-License-Identifier: MIT */
/* draw.h -- shared by the tasks: random draws from a key, lengths and sizes of columns, and errors.
 * No function of libm, so draws have the same bits everywhere. */
#ifndef LOCI_LAB_DRAW_H
#define LOCI_LAB_DRAW_H

#include <stdio.h>

#include "math/random.h"
#include "lab/task.h"

enum { LAB_NOT_ASKED = -1, LAB_SHORTEST = 16, LAB_LONGEST = 1000000 };

/* Sequences of a column where each gives one answer (its standard error is at most 1.1 points), and
 * where each is a string that counts as a whole (1.6). */
enum { LAB_ANSWERS = 2048, LAB_STRINGS = 1024 };

/* Numbers 0, 1, 2 ... of a key, in the order of the calls. */
struct lab_draws {
    uint64_t key, next;
};

static inline double lab_next(struct lab_draws *d) { return loci_uniform(d->key, d->next++); }
static inline int lab_pick(struct lab_draws *d, int n) { return lab_below(lab_next(d), n); }
static inline int lab_between(struct lab_draws *d, int low, int high)
{
    return low + lab_pick(d, high - low + 1);
}

/* A training length in units of `unit` tokens: uniform in [L/4, L]. */
static inline int lab_any_length(struct lab_draws *d, int length, int unit)
{
    const int most = length / unit, least = (length + 4 * unit - 1) / (4 * unit);
    return unit * lab_between(d, least, most);
}

/* Writes the sentence, unless `e` is NULL, and returns false. */
bool lab_refuse(loci_error *e, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;
/* Rejects a length that no task can have. */
bool lab_check_length(const struct lab_problem *, loci_error *);
/* Also requires a corpus whose last 5 % have at least `test` bytes. */
bool lab_check_corpus(const struct lab_problem *, ptrdiff_t test, loci_error *);

/* A column of sequences of one length, which is `times` that of training. */
struct lab_column lab_column_of(double times, int length, int count, enum lab_metric,
                                const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 5, 6)))
#endif
    ;
/* Columns by the size n of a problem, as for copying: "as trained", n = most / 2 and most, then
 * 1.1, 1.25, 1.5 and 2 times that, each at least 1 above the last. value[0] is n, or 0 as trained.
 * `tokens` gives the number of tokens for size n, and each column has `count` sequences. */
int lab_sizes(struct lab_column *list, int most, int (*tokens)(int n), int count, enum lab_metric);

/* One of `places` that are free, with the weight 1 / (1 + place): the gaps of recall, which follow
 * a power law.  Place g is free if first[2 * g] is 0. */
int lab_gap(struct lab_draws *, const int32_t *first, int places);

/* A byte in readable form. */
void lab_show_byte(unsigned char byte, char text[16]);

#endif
