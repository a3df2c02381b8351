/* SPDX-License-Identifier: MIT */
/* claims.h -- what papers say of encodings, and what the runs say to that.
 *
 * A claim has parts: "kerple at 4L is at least as good as alibi".  Each of them is a number by seed
 * that ought to be above 0, and its interval of 95 % decides.  A claim holds when all of its parts
 * do; one that surely does not, even after Holm's correction over the parts, contradicts it. */
#ifndef LOCI_LAB_CLAIMS_H
#define LOCI_LAB_CLAIMS_H

#include "lab/tables.h"

enum verdict { CLAIM_HOLDS, CLAIM_CONTRADICTED, CLAIM_INCONCLUSIVE, CLAIM_NOT_RUN };
enum part_state {
    PART_HOLDS,
    PART_FAILS,
    PART_UNCLEAR,
    PART_ONE_SEED,
    PART_NOT_LEARNED,
    PART_NOT_RUN
};

/* One side of a part.  `arm`: names as of arm_name(), an "@how" behind them, "a|b" the first that
 * was run.  NULL is the number 0.  `column` as of find_column(), or "out": the mean of all columns
 * longer than trained; ">L": positions beyond L of the longest test.  `from`: less that column. */
struct side {
    const char *arm, *variant, *column, *from;
};
enum part_kind {
    PART_MARGIN, /* goodness of left - of right - need > 0 */
    PART_SPREAD  /* most - least of left over seeds > need */
};
/* In `arm` of a side "*" stands for every trained arm in turn (without those of `but`, with commas
 * between), and "*@how" for every arm that was run both with that @how and without; the other
 * side's "=" is then the same arm without it. */
struct part {
    const char *task;
    struct side left, right;
    double need;
    const char *says; /* a few words of what ought to be */
    const char *but;
    enum part_kind kind;
    bool exact;    /* goodness is the share of sequences that are right */
    bool optional; /* where it was not run, nothing is missing */
};
struct claim {
    const char *id, *sentence, *source;
    int parts;
    const struct part *part;
};
int lab_claims(const struct claim **list); /* E1 .. E20 */

/* A part as it came out; `words` has its figures. */
struct finding {
    enum part_state state;
    char task[LAB_NAME], words[300];
    struct interval margin;
    bool aside;                          /* of an arm that stands for all: it has not learned */
};
struct judged {
    const struct claim *claim;
    enum verdict verdict;
    char sentence[700]; /* the figures that decided */
    int findings, aside;                 /* aside: left out, as they have not learned the task */
    struct finding *finding;
};
const char *verdict_name(enum verdict);
const char *part_state_name(enum part_state);
/* One for each claim; the caller gives each to judged_free(). */
void judge_claims(const struct tables *, struct judged *list);
void judged_free(struct judged *);

#endif
